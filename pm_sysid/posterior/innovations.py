"""Innovations of a filter at parameters of a posterior: what the model did not foresee."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import ndtri_exp

from pm_sysid.idata import points_of
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.progress import announced
from pm_sysid.records.residual_tests import correlation, ljung_box, long_run
from pm_sysid.records.units import label_units
from pm_sysid.recurrence.functions import compiled

#: Draws whose innovations are tested, the largest lag and the fewest samples for each lag, and the p-value of no white noise.
DRAWS, LAGS, EACH, COLOURED = 9, 25, 4, 1e-4
#: Mean of innovations that counts, in their standard deviations, and in its standard errors.
OFF_CENTRE, SURE = 0.05, 4.0


def coloured_output(idata: Any, name: str, model: pm.Model) -> str:
    """An output whose innovations are not white at any of some draws of a posterior; empty if there is none."""
    return next((output for output, z in _standardised(idata, name, model) if _coloured(z)), "")


def misfit(idata: Any, name: str, model: pm.Model) -> str:
    """What is wrong with innovations at all of some draws of a posterior, in words: colour, or a mean; empty if neither is."""
    if filter_view(name, model).problem.form.sensors.limited:
        return ""  # innovations beside a limit are one-sided
    for output, z in _standardised(idata, name, model):
        if _coloured(z):
            return f"the innovations of {output} are not white (dynamics that it lacks, or noise that is correlated in time)"
        if all(_off_centre(one) for one in z):
            return f"the innovations of {output} are not centred on zero (an offset or a drift of the sensor or of an input)"
    return ""


def _standardised(idata: Any, name: str, model: pm.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Outputs, and their standardised innovations (draws, T) at some draws."""
    n = min(DRAWS, idata["posterior"].sizes["chain"] * idata["posterior"].sizes["draw"])
    found = innovations(idata, name, draws=n, model=model)["standardised"]
    for output in found["output"].values:
        yield str(output), found.sel(output=output).transpose("sample", "time").to_numpy()


def _coloured(z: np.ndarray) -> bool:
    lags = min(LAGS, int(np.isfinite(z).sum(axis=1).min()) // EACH)
    return lags > 0 and max(ljung_box(one, lags).p for one in z) < COLOURED


def _off_centre(z: np.ndarray) -> bool:
    """Whether the mean of innovations (T,) counts, and is no chance by the correlations that they have."""
    n = int(np.isfinite(z).sum())
    lags = min(LAGS, n // EACH)
    if lags < 1 or not np.nanstd(z) > 0:
        return False
    mean, r = float(np.nanmean(z)), correlation(z, z, range(1, lags + 1))[0]
    error = float(np.nanstd(z)) * np.sqrt(max(long_run(r), 1.0) / n)
    return bool(abs(mean) > max(OFF_CENTRE * float(np.nanstd(z)), SURE * error))


def innovations(idata: Any, name: str | None = None, *, draws: int | None = None, model: pm.Model | None = None) -> xr.Dataset:
    """One-step-ahead innovations of an :class:`ODEFilter`, and their standard deviations.

    Parameters
    ----------
    idata : xarray.DataTree, xarray.Dataset or mapping
        Posterior draws (a tree with the group ``posterior``, or a Dataset with ``chain`` and ``draw``), or one point: a
        mapping of the model's free variables to numbers.
    name : str, optional
        Name of the ODEFilter; needed if the model has several.
    draws : int, optional
        Use this many draws, evenly spaced. By default the posterior mean is used, as one point.
    model : pm.Model, optional
        Default: the model on the context stack.

    Returns
    -------
    xarray.Dataset
        ``innovation`` and ``std``, in the unit of the output (the coordinate ``units``, if the record says it), and their
        quotient ``standardised``; dims (time, output), after a leading ``sample`` when ``draws`` is given. NaN where a
        measurement is missing. If the model is right, ``standardised`` is white with unit variance: see
        :func:`plot_residuals` and :func:`residual_tests`. Innovations of correlated outputs are each given those before it.
        Of noise with the tails of a t distribution, ``standardised`` has the normal number of the same probability, and a
        filter with ``limits`` has NaN where ``censored`` (time, output) is true: no innovation is known there. Those beside a
        limit are then one-sided.

    Raises
    ------
    ValueError
        If there is no such filter, or several and no ``name``; if draws are missing, or fewer than asked for.
    """
    view = filter_view(name, model)
    free = view.model.free_RVs
    sensors = view.problem.form.sensors
    outputs, _ = view.problem.run(view.y, view.unknowns, view.data, "innovations")
    function = announced("innovations", lambda: compiled(free, outputs))
    results = np.stack([function(*point) for point in points_of(idata, free, draws)])
    time = view.model.coords.get(f"{view.name}_time")
    coords: dict[str, Any] = {"output": list(view.system.outputs)}
    if time is not None:
        coords["time"] = np.asarray(time)
    each = 2 if sensors.plain else 3  # numbers of an output
    innovation, std = results[..., 0::each], results[..., 1::each]
    dims = ("sample", "time", "output")
    data = xr.Dataset({"innovation": (dims, innovation), "std": (dims, std)}, coords)
    data["standardised"] = data["innovation"] / data["std"]
    if sensors.heavy:
        score = np.sign(innovation) * -ndtri_exp(results[..., 2::each])
        data["standardised"] = data["standardised"].where(np.isnan(score), score)
    if sensors.limited:
        data["censored"] = ("time", "output"), sensors.censored(view.measured())
    data = label_units(data, view.system.outputs, view.units)
    return data if draws is not None else data.isel(sample=0)
