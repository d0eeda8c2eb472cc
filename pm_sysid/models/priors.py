"""Priors around what one would guess."""

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
        By parameter: a positive number, the median of a log-normal prior; a pair ``(mean, sd)``, those of a normal prior, for
        what may have either sign (an offset, a negative stiffness, an edge of a gap); or a variable of the model, which stays
        as it is.
    sd : float, default 0.5
        Standard deviation of the logarithms of the positive parameters: 0.5 means that each is thought to be within a factor
        of 2.7 of its guess with a probability of 95 %, 0.1 within 22 %, 1.0 within a factor of 7.
    prefix : str, default ""
        Put before the name of every variable made here.

    Returns
    -------
    dict
        A variable for each parameter, to be handed to :class:`ODEFilter` or :func:`simulate`.

    Raises
    ------
    TypeError, ValueError
        Outside a model; for a guess that is zero or negative without a spread, or values that are no finite numbers.

    Notes
    -----
    A log-normal prior says that a parameter is positive and known up to a factor, whatever its unit. No guess is made up
    here: a prior belongs to the rig, not to the equations. Look at it with ``pm.sample_prior_predictive``.

    A normal prior is that of a free variable ``{name}_scaled``, standard normal, and the parameter follows from it: a cubic
    stiffness of 1e9 beside an offset of 0.01 is no matter then for :func:`find_mode` and samplers, which start with steps of
    one size.

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
    """Draw in units of the spread: optimisers and samplers see parameters of one size."""
    return pm.Deterministic(name, mean + sd * pm.Normal(f"{name}_scaled"))


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
