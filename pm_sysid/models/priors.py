"""Priors from guessed values of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable


def priors(guess: Mapping[str, Any], sd: float = 0.5, *, prefix: str = "") -> dict[str, Any]:
    """Give every parameter a prior, as a variable of the PyMC model on the context stack.

    Parameters
    ----------
    guess : mapping
        One entry for each parameter: a positive number, which is the median of a log-normal prior; a pair ``(mean, sd)`` of a
        normal prior, for parameters of either sign (an offset, a negative stiffness, an edge of a gap); or a variable of the
        model, which is used unchanged.
    sd : float, default 0.5
        Standard deviation of the logarithms of the positive parameters: with 0.5 each is within a factor of 2.7 of its guess
        with a probability of 95 %, with 0.1 within 22 %, and with 1.0 within a factor of 7.
    prefix : str, default ""
        Prefix of the names of all variables that are created.

    Returns
    -------
    dict
        A variable for each parameter, for :class:`ODEFilter` or :func:`simulate`.

    Raises
    ------
    TypeError, ValueError
        Outside a model; for a guess that is zero or negative and has no standard deviation, or for values that are not finite
        numbers.

    Notes
    -----
    A log-normal prior means that a parameter is positive and known up to a factor, whatever its unit. There are no default
    guesses, because a prior depends on the rig and not on the equations. Check it with ``pm.sample_prior_predictive``.

    For a normal prior the free variable ``{name}_scaled`` is standard normal, and the parameter is computed from it.
    Parameters of very different size, such as a cubic stiffness of 1e9 and an offset of 0.01, are then no problem for
    :func:`find_mode` and samplers, whose first steps have the same size in all variables.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     params = sid.models.priors({"m": 1.0, "c": 5.0, "k": 1e4, "k3": (0.0, 1e9)}, sd=0.5)
    >>> list(params), [variable.name for variable in model.free_RVs]
    (['m', 'c', 'k', 'k3'], ['m', 'c', 'k', 'k3_scaled'])
    """
    if not isinstance(prefix, str):
        raise TypeError(f"prefix is {prefix!r}; give the beginning of the names, such as 'left_'.")
    if not isinstance(guess, Mapping) or not all(isinstance(name, str) for name in guess):
        raise TypeError(f"guess is {type(guess).__name__}; give a mapping such as {{'m': 1.0, 'offset': (0.0, 0.1)}}.")
    if not (_number(sd) and 0 < sd < 1e30):
        raise ValueError(f"sd is {sd!r}; give a positive number, the spread of the logarithms, such as 0.5.")
    plans = {name: _plan(name, value, sd) for name, value in guess.items()}
    pm.modelcontext(None)
    return {name: plan if isinstance(plan, Variable) else plan(prefix + name) for name, plan in plans.items()}


def _plan(name: str, value: Any, sd: float) -> Any:
    """Check everything before the first variable is made."""
    if isinstance(value, Variable):
        return value
    if isinstance(value, tuple | list):
        if len(value) != 2 or not all(map(_number, value)) or not value[1] > 0:
            raise ValueError(f"guess[{name!r}] is {value!r}; give (mean, sd) with a positive sd.")
        return partial(_scaled_normal, mean=float(value[0]), sd=float(value[1]))
    if not _number(value):
        raise TypeError(f"guess[{name!r}] is {value!r}; give a positive number, (mean, sd), or a variable of the model.")
    if value <= 0:
        raise ValueError(
            f"guess[{name!r}] is {value!r}; give (mean, sd) for what may have either sign: its spread cannot be guessed from "
            "its value."
        )
    return partial(pm.LogNormal, mu=math.log(value), sigma=float(sd))


def _scaled_normal(name: str, mean: float, sd: float) -> Any:
    """Normal variable in units of its standard deviation: all unconstrained variables have the same scale."""
    return pm.Deterministic(name, mean + sd * pm.Normal(f"{name}_scaled"))


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
