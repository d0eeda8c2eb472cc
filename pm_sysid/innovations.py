"""Innovations of a filter at parameters of a posterior: what the model did not foresee."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import xarray as xr

from pm_sysid.doors import count
from pm_sysid.likelihood import filter_variable
from pm_sysid.moments import posterior_of
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
    inputs = rv.owner.inputs[1:]
    y = value[:, None] if op.flat else value
    outputs, _ = problem.run(y, Unknowns(*inputs[:5]), RecordData(*inputs[5:]), "innovations")
    function = pytensor.function(owner.free_RVs, outputs, on_unused_input="ignore")
    results = np.stack([function(*point) for point in points_of(idata, owner, draws)])
    time = owner.coords.get(f"{name}_time")
    coords: dict[str, Any] = {"output": list(problem.system.outputs)}
    if time is not None:
        coords["time"] = np.asarray(time)
    innovation, std = results[..., 0::2], results[..., 1::2]
    dims = ("sample", "time", "output")
    data = xr.Dataset({"innovation": (dims, innovation), "std": (dims, std)}, coords)
    data["standardised"] = data["innovation"] / data["std"]
    return data if draws is not None else data.isel(sample=0)


def points_of(idata: Any, model: pm.Model, draws: int | None) -> list[list[np.ndarray]]:
    """Values of the free variables of a model, in its order, for each point."""
    types = {str(v.name): v.dtype for v in model.free_RVs}
    if isinstance(idata, dict):
        if set(idata) != set(types):
            raise ValueError(f"idata is a point of {sorted(idata)}; give a number for each free variable: {sorted(types)}.")
        sets = [idata]
    else:
        posterior = posterior_of(idata)
        if missing := [n for n in types if n not in posterior]:
            raise ValueError(f"the posterior lacks the model's variables {missing}; it has {sorted(map(str, posterior))}.")
        if draws is None:
            mean = posterior[list(types)].mean(("chain", "draw"))
            sets = [{k: mean[k].to_numpy() for k in types}]
        else:
            total = posterior.sizes["chain"] * posterior.sizes["draw"]
            draws = count(draws, "draws", most=total)
            picked = np.linspace(0, total - 1, draws).round().astype(int)
            pooled = {k: posterior[k].transpose("chain", "draw", ...).to_numpy() for k in types}
            flat = {k: v.reshape(total, *v.shape[2:]) for k, v in pooled.items()}
            sets = [{k: v[i] for k, v in flat.items()} for i in picked]
    return [[np.asarray(point[k], dtype=dtype) for k, dtype in types.items()] for point in sets]
