"""Innovations of a filter at parameters of a posterior: what the model did not foresee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import xarray as xr

from pm_sysid.likelihood import filter_variable
from pm_sysid.mode import unconstrained
from pm_sysid.problem import RecordData, Unknowns


def innovations(idata: Any, name: str, *, draws: int | None = None, model: pm.Model | None = None) -> xr.Dataset:
    """One-step-ahead innovations of an :class:`ODEFilter`, and their standard deviations.

    Parameters
    ----------
    idata : xarray.DataTree, xarray.Dataset or mapping
        Posterior draws (a tree with the group ``posterior``, or a Dataset with ``chain`` and ``draw``), or one point: a
        mapping of the model's free variables to numbers.
    name : str
        Name of the ODEFilter.
    draws : int, optional
        Use this many draws, evenly spaced. By default the posterior mean is used, as one point.
    model : pm.Model, optional
        Default: the model on the context stack.

    Returns
    -------
    xarray.Dataset
        ``innovation`` and ``std``, in the unit of the output, and their quotient ``standardised``; dims
        (time, output), after a leading ``sample`` when ``draws`` is given. NaN where a measurement is missing. If the model
        is right, ``standardised`` is white with unit variance: see :func:`plot_residuals` and :func:`residual_tests`.
    """
    op, rv, owner = filter_variable(name, model)
    problem = op.problem
    value = owner.rvs_to_values[rv]
    inputs = owner.replace_rvs_by_values(list(rv.owner.inputs[1:]))
    y = value[:, None] if op.flat else value
    outputs, _ = problem.run(y, Unknowns(*inputs[:5]), RecordData(*inputs[5:]), "innovations")
    function = pytensor.function(owner.value_vars, outputs, on_unused_input="ignore")
    points = _points(idata, owner, draws)
    results = np.stack([function(**point) for point in points])
    time = owner.coords.get(f"{name}_time")
    coords: dict[str, Any] = {"output": list(problem.system.outputs)}
    if time is not None:
        coords["time"] = np.asarray(time)
    innovation, std = results[..., 0::2], results[..., 1::2]
    dims = ("sample", "time", "output")
    data = xr.Dataset({"innovation": (dims, innovation), "std": (dims, std)}, coords)
    data["standardised"] = data["innovation"] / data["std"]
    return data if draws is not None else data.isel(sample=0)


def _points(idata: Any, model: pm.Model, draws: int | None) -> list[dict[str, np.ndarray]]:
    """Points in the space of value variables."""
    names = [v.name for v in model.free_RVs]
    if isinstance(idata, dict):
        sets = [{k: np.asarray(idata[k]) for k in names}]
    else:
        posterior = idata["posterior"].to_dataset() if isinstance(idata, xr.DataTree) else idata
        stacked = posterior[names].stack(__sample__=("chain", "draw"))
        if draws is None:
            mean = stacked.mean("__sample__")
            sets = [{k: mean[k].values for k in names}]
        else:
            picked = np.linspace(0, stacked.sizes["__sample__"] - 1, draws).round().astype(int)
            sets = [{k: stacked[k].isel(__sample__=i).values for k in names} for i in picked]
    return [unconstrained(point, model) for point in sets]
