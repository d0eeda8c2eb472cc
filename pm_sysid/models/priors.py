"""Priors from guessed values of the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.basic import Variable

from pm_sysid.arguments import shown


def priors(guess: Mapping[str, Any], sd: float = 0.5, *, prefix: str = "") -> dict[str, Any]:
    """Give every parameter a prior, as a variable of the PyMC model on the context stack.

    Parameters
    ----------
    guess : mapping
        One entry for each parameter: a positive number, which is the median of a log-normal prior; a pair ``(mean, sd)`` of a
        normal prior, for parameters of either sign (an offset, a negative stiffness, an edge of a gap); or a variable of the
        model, which is used unchanged. For a vector or matrix of parameters a NumPy array of positive numbers, or a pair
        ``(mean, sd)`` with an array as the mean or as both.
    sd : float, default 0.5
        Standard deviation of the logarithms of the positive parameters: with 0.5 each is within a factor of 2.7 of its guess
        with a probability of 95 %, with 0.1 within 22 %, and with 1.0 within a factor of 7.
    prefix : str, default ""
        Prefix of the names of all variables that are created.

    Returns
    -------
    dict
        A variable for each parameter, of the shape of its guess, for :class:`ODEFilter` or :func:`simulate`.

    Raises
    ------
    TypeError, ValueError
        Outside a model; for a guess that is zero or negative and has no standard deviation, for values that are not finite
        numbers, or for arrays whose shapes do not fit together.

    Notes
    -----
    A log-normal prior means that a parameter is positive and known up to a factor, whatever its unit. There are no default
    guesses, because a prior depends on the rig and not on the equations. Check it with ``pm.sample_prior_predictive``.

    Entries of an array are independent of each other. A matrix that has to be symmetric or positive definite needs a prior of
    its own: one parameter for each of the known matrices that it is the sum of, or a variable of the model that is such a
    matrix.

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

    Natural frequencies and mode shapes of a structure with two modes and three places:

    >>> import numpy as np
    >>> with pm.Model():
    ...     params = sid.models.priors(
    ...         {"f": np.array([3.2, 20.1]), "phi": (np.zeros((3, 2)), 0.5)}, sd=0.05
    ...     )
    >>> [variable.type.shape for variable in params.values()]
    [(2,), (3, 2)]
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
        mean, spread = _normal(name, value)
        return partial(_scaled_normal, mean=mean, sd=spread)
    guess = _numbers(value)
    if guess is None:
        raise TypeError(
            f"guess[{name!r}] is {shown(value)}; give a positive number, (mean, sd), an array of finite numbers, or a variable "
            "of the model."
        )
    if not np.all(guess > 0):
        first = tuple(int(i) for i in np.argwhere(~(guess > 0))[0])
        where = f"guess[{name!r}]{list(first) if first else ''}"
        raise ValueError(
            f"{where} is {float(guess[first])!r}; give (mean, sd) for what may have either sign: its spread cannot be guessed "
            "from its value."
        )
    return partial(pm.LogNormal, mu=np.log(guess), sigma=float(sd), shape=guess.shape)


def _normal(name: str, pair: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation that fit together."""
    mean, sd = (_numbers(v) for v in pair) if len(pair) == 2 else (None, None)
    if mean is None or sd is None or not np.all(sd > 0):
        more = "; a vector of positive guesses is a NumPy array, such as np.array([1.0, 2.0, 3.0])" if len(pair) > 2 else ""
        raise ValueError(f"guess[{name!r}] is {shown(pair)}; give (mean, sd) with a positive sd{more}.")
    if sd.shape not in ((), mean.shape):
        raise ValueError(
            f"guess[{name!r}] has a mean of the shape {mean.shape} and an sd of the shape {sd.shape}; give one sd, or one for "
            "each entry."
        )
    return mean, sd


def _scaled_normal(name: str, mean: np.ndarray, sd: np.ndarray) -> Any:
    """Normal variable in units of its standard deviation: all unconstrained variables have the same scale."""
    return pm.Deterministic(name, mean + sd * pm.Normal(f"{name}_scaled", shape=mean.shape))


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(value: Any) -> np.ndarray | None:
    """Finite numbers as an array, of no dimensions for a number alone; None for anything else."""
    if _number(value):
        return np.array(float(value))
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf" or not value.size or not np.isfinite(value).all():
        return None
    return value.astype(float)
