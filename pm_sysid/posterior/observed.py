"""What a model observes: its values, which of them count as probabilities, and whether a posterior was sampled on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph import ancestors

from pm_sysid.compat import CensoredRV
from pm_sysid.idata import group, holds
from pm_sysid.likelihood.filter_view import filter_names, filter_view, value_of


def observed(model: pm.Model) -> dict[str, np.ndarray]:
    """Values that a model holds now, by observed variable."""
    return {str(v.name): value_of(model.rvs_to_values[v]) for v in model.observed_RVs}


def measured_samples(model: pm.Model, samples: int) -> np.ndarray:
    """Which of a model's samples (T,) have a measurement, of any variable; a single number or matrix counts with the first."""
    found = np.zeros(samples, dtype=bool)
    for values in observed(model).values():
        if values.ndim and len(values) == samples:
            found |= ~np.isnan(np.asarray(values, dtype=float).reshape(samples, -1)).all(axis=1)
        else:
            found[0] = True
    return found


def probabilities(model: pm.Model) -> dict[str, np.ndarray]:
    """Which of these values count as a probability, and not as a density: those that are censored, or of discrete variables."""
    filters, found = filter_names(model), {}
    for variable in model.observed_RVs:
        name, values = str(variable.name), value_of(model.rvs_to_values[variable])
        if name in filters:
            view = filter_view(name, model)
            found[name] = view.problem.form.sensors.censored(view.measured()).reshape(values.shape)
        elif variable.dtype.startswith(("int", "uint", "bool")):
            found[name] = np.ones(values.shape, dtype=bool)
        elif variable.owner is not None and isinstance(variable.owner.op, CensoredRV):
            found[name] = _censored(model, variable.owner.inputs, values)
        else:
            found[name] = np.zeros(values.shape, dtype=bool)
    return found


def _censored(model: pm.Model, inputs: list[Any], values: np.ndarray) -> np.ndarray:
    """Which values of a ``pm.Censored`` are at a limit; limits that are unknown themselves are passed over."""
    base, *limits = inputs
    if base.dtype.startswith(("int", "uint", "bool")):
        return np.ones(values.shape, dtype=bool)
    unknown = set(model.basic_RVs)
    lower, upper = (
        value_of(limit) if unknown.isdisjoint(ancestors([limit])) else np.array(infinite)
        for limit, infinite in zip(limits, (-np.inf, np.inf), strict=True)
    )
    return np.asarray((values <= lower) | (values >= upper))


def check_sampled_on(idata: Any, model: pm.Model, what: str = "idata") -> None:
    """Refuse a posterior that was sampled on other data than its model holds, as far as it says on which.

    Raises
    ------
    ValueError
        If the group ``observed_data`` has a variable of the model with another shape or other values.
    """
    if not holds(idata, "observed_data"):
        return
    known = group(idata, "observed_data")
    for variable in model.observed_RVs:
        name = str(variable.name)
        if name not in known:
            continue
        before, now = known[name].to_numpy(), value_of(model.rvs_to_values[variable])
        if np.squeeze(before).shape != np.squeeze(now).shape:
            other = f"of shape {before.shape}, and the model now holds the shape {now.shape}"
        else:
            now = now.reshape(before.shape).astype(before.dtype if before.dtype.kind == "f" else now.dtype)
            if np.array_equal(before, now, equal_nan=True):
                continue
            other = f"of shape {before.shape}, and the model now holds other values"
        raise ValueError(
            f"{what} was sampled on other data: its group observed_data has {name!r} {other}. Put the data it was sampled on "
            "back (set_data, or pm.set_data), or sample again; drop the group if the draws are to be judged by other data."
        )
