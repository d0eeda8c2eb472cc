"""Innovations of a filter at parameters of a posterior: what the model did not foresee."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import ndtr, ndtri_exp

from pm_sysid.idata import points_of, posterior_of
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.progress import announced
from pm_sysid.records.residual_tests import ljung_box, long_run
from pm_sysid.records.units import label_units
from pm_sysid.recurrence.functions import compiled

#: Draws whose innovations are tested, the largest lag and the fewest samples for each lag, and the p-value of no white noise.
DRAWS, LAGS, EACH, COLOURED = 9, 25, 4, 1e-4
#: Mean of innovations that counts, in their standard deviations, and in its standard errors.
OFF_CENTRE, SURE = 0.05, 4.0
#: Standard deviation of standardised innovations above which, and below whose inverse, they have another size; chance of the
#: largest one that makes it an outlier; median of the size of a standard normal number.
LARGER, RARE, MEDIAN = 1.25, 1e-4, 0.6745


def coloured_output(idata: Any, name: str, model: pm.Model) -> str:
    """An output whose innovations are not white at any of some draws of a posterior; empty if there is none."""
    return next((output for output, z in _standardised(idata, name, model) if _coloured(z)), "")


class Misfit(NamedTuple):
    """What is wrong with innovations, in words; and how many times as large they are as a model says, if that is wrong."""

    words: str
    size: float = 1.0


def misfit(idata: Any, name: str, model: pm.Model) -> Misfit | None:
    """What is wrong with innovations at all of some draws of a posterior: size, colour, or a mean; None if nothing is."""
    if filter_view(name, model).problem.form.sensors.limited:
        return None  # innovations beside a limit are one-sided
    for output, z in _standardised(idata, name, model):
        found = _off_size(z)
        if _coloured(z):
            what = "are not white (dynamics that it lacks, or noise that is correlated in time)"
            return Misfit(f"the innovations of {output} {what}", found.size if found else 1.0)
        if found:
            return found._replace(words=found.words.format(output))
        if all(_off_centre(one) for one in z):
            what = "are not centred on zero (an offset or a drift of the sensor or of an input)"
            return Misfit(f"the innovations of {output} {what}")
    return None


def _standardised(idata: Any, name: str, model: pm.Model) -> Iterator[tuple[str, np.ndarray]]:
    """Outputs, and their standardised innovations (draws, T) at some draws."""
    sizes = posterior_of(idata).sizes
    n = min(DRAWS, sizes["chain"] * sizes["draw"])
    found = innovations(idata, name, draws=n, model=model)["standardised"]
    for output in found["output"].values:
        yield str(output), found.sel(output=output).transpose("sample", "time").to_numpy()


def _coloured(z: np.ndarray) -> bool:
    lags = min(LAGS, int(np.isfinite(z).sum(axis=1).min()) // EACH)
    return lags > 0 and max(ljung_box(one, lags).p for one in z) < COLOURED


def _off_size(z: np.ndarray) -> Misfit | None:
    """Whether innovations (draws, T) are all larger or smaller than they should be, or a few are far out, in words."""
    count = np.isfinite(z).sum(axis=1)
    if not count.min():
        return None
    size, sure = np.sqrt(np.nanmean(z**2, axis=1)), SURE / np.sqrt(2.0 * count)
    far = np.nanmax(np.abs(z), axis=1)
    outliers = bool(np.all(2.0 * count * ndtr(-far) < RARE))
    # Outliers make the mean square large; the median knows little of them.
    most = np.nanmedian(np.abs(z), axis=1) / MEDIAN
    large, small = np.all((size > LARGER) & (size > 1 + sure)), np.all((size < 1 / LARGER) & (size < 1 - sure))
    if small or (large and not (outliers and np.all(most < LARGER))):
        typical = float(np.median(size))
        words = f"the innovations of {{}} are {typical:.2g} times as large as it says (the size of the noise, or the dynamics)"
        return Misfit(words, typical)
    if outliers:
        remedy = "(an outlier: noise=StudentT(...), or NaN in its place)"
        return Misfit(f"an innovation of {{}} is {np.median(far):.3g} standard deviations large {remedy}")
    return None


def _off_centre(z: np.ndarray) -> bool:
    """Whether the mean of innovations (T,) counts, and is no chance by the correlations that they have."""
    n = int(np.isfinite(z).sum())
    lags = min(LAGS, n // EACH)
    if lags < 1 or not np.nanstd(z) > 0:
        return False
    mean, r = float(np.nanmean(z)), ljung_box(z, lags).r
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
