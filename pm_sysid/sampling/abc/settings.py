"""Settings of the ABC nested sampler: its thresholds and its proposals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from pm_sysid.arguments import number, shown, whole
from pm_sysid.likelihood.filter_view import value_of


def _between(value: Any, name: str, low: float, high: float, remedy: str) -> None:
    """Refuse what is no number inside of two limits."""
    if not low < number(value, name, f"give {remedy}") < high:
        raise ValueError(f"{name} is {shown(value)}; give {remedy}.")


@dataclass(frozen=True)
class Thresholds:
    """The falling thresholds of the distance in :func:`sample_abc_ns`: the first, how they fall, and when they have converged.

    Parameters
    ----------
    epsilon : float, default 200
        First threshold, in the unit of the distance.
    alpha0, alpha_min : float, default 0.4 and 0.1
        Share of the first population that is dropped; smallest share of the later ones. The share itself follows the growing
        concentration of the distances (Eq. 16).
    tolerance, patience : float and int, default 0.005 and 3
        Stop when the threshold has fallen by less than this fraction in so many populations in a row, and the best particle
        is above three quarters of the threshold. While the best particle is far below the threshold the run goes on, however
        slowly the threshold falls: it does so where most responses have nothing to do with the measured one (NMSE of 100).
        Of simulations without noise it stops where a lower threshold would mean nothing (see :func:`sample_abc_ns`).

    Raises
    ------
    ValueError, TypeError
        For values out of range; the message names the argument.

    Notes
    -----
    Source: Nayek et al. (2023), Algorithms 1 and 2: ``epsilon`` is the paper's first threshold, ``alpha0`` its initial
    proportion of dropped particles, ``tolerance`` that of its stopping criterion.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.Thresholds(epsilon=100.0)
    Thresholds(epsilon=100.0, alpha0=0.4, alpha_min=0.1, tolerance=0.005, patience=3)
    """

    epsilon: float = 200.0
    alpha0: float = 0.4
    alpha_min: float = 0.1
    tolerance: float = 0.005
    patience: int = 3

    def __post_init__(self) -> None:
        """Check the settings."""
        _between(self.epsilon, "epsilon", 0, np.inf, "a positive distance, such as 200")
        _between(self.alpha0, "alpha0", 0, 1, "a share between 0 and 1, such as 0.4")
        _between(self.alpha_min, "alpha_min", 0, 1, "a share between 0 and 1, such as 0.1")
        _between(self.tolerance, "tolerance", 0, 1, "a relative change between 0 and 1, such as 0.005")
        if not whole(self.patience):
            raise ValueError(f"patience is {shown(self.patience)}; give a whole number of populations, such as 3.")


@dataclass(frozen=True)
class EllipsoidProposals:
    """The ellipsoids in the unit cube of the priors from which :func:`sample_abc_ns` draws its candidates.

    Parameters
    ----------
    p_best, shrink : float, default 0.05 and 0.1
        Probability of drawing from the ellipsoid at the best particle, whose covariance is ``shrink`` times that of the
        particles. Importance weights account for it.
    p_local : float, default 0.05
        Probability of drawing from a small ellipsoid at one of the particles, shaped by its neighbours: where the region is
        bent or in pieces, the ellipsoid that holds all of it is nearly empty. Zero: the paper's proposals.
    enlarge : float, default 1.1
        Factor on the axes of the ellipsoid that holds a model's particles.

    Raises
    ------
    ValueError
        For probabilities outside of 0 to 1 or with a sum of 1 or more, and for factors out of range.
    TypeError
        For what is no number.

    Notes
    -----
    In the terms of Nayek et al. (2023), Algorithms 4 and 5, ``p_best`` is the importance-sampling probability and ``shrink``
    the shrink factor.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.EllipsoidProposals(p_local=0.0)
    EllipsoidProposals(p_best=0.05, p_local=0.0, shrink=0.1, enlarge=1.1)
    """

    p_best: float = 0.05
    p_local: float = 0.05
    shrink: float = 0.1
    enlarge: float = 1.1

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("p_best", "p_local"):
            value = getattr(self, name)
            if not 0 <= number(value, name, "give a probability") < 1:
                raise ValueError(f"{name} is {shown(value)}; give a probability from 0 to below 1.")
        if self.p_best + self.p_local >= 1:
            raise ValueError(
                f"p_best and p_local add up to {self.p_best + self.p_local:g}; leave a part of 1 for the ellipsoid of "
                "all particles."
            )
        _between(self.shrink, "shrink", 0, 1, "a factor between 0 and 1, such as 0.1")
        if not number(self.enlarge, "enlarge", "give a factor of at least 1") >= 1:
            raise ValueError(f"enlarge is {self.enlarge!r}; give a factor of at least 1, such as 1.1.")


def checked_names(models: Any) -> list[str]:
    """Return the names of models."""
    if not isinstance(models, Mapping) or not models:
        raise TypeError(f"models is {type(models).__name__}; give a dict of name: pm.Model.")
    for name, model in models.items():
        if not isinstance(model, pm.Model):
            raise TypeError(f"models[{name!r}] is {type(model).__name__}; give a pm.Model with a simulator.")
        if not isinstance(name, str) or not name or "/" in name or name in ("populations", "particles"):
            raise ValueError(f"models has the name {name!r}; give a text without '/', other than 'populations', 'particles'.")
    return list(models)


def check_same_data(models: Mapping[str, pm.Model]) -> None:
    """Refuse models that are observed on different measurements."""
    data = {}
    for name, model in models.items():
        data[name] = np.concatenate([np.ravel(value_of(model.rvs_to_values[rv])) for rv in model.observed_RVs] or [np.empty(0)])
    (first, reference), *others = data.items()
    for name, found in others:
        if not np.array_equal(reference, found, equal_nan=True):
            raise ValueError(f"the models {first!r} and {name!r} are observed on different data; give both the same record.")


def prior_probabilities(prior: Mapping[str, float] | None, names: list[str]) -> np.ndarray:
    """Return normalised prior probabilities of the models."""
    if prior is None:
        return np.full(len(names), 1 / len(names))
    if not isinstance(prior, Mapping) or set(prior) != set(names):
        raise ValueError(f"prior is {shown(prior)}; give a probability for each of the models {names}.")
    given = np.array([number(prior[name], f"prior[{name!r}]") for name in names])
    if not np.all(given > 0):
        raise ValueError(f"prior is {prior!r}; give positive numbers, and leave out models that are impossible.")
    normalised: np.ndarray = given / given.sum()
    return normalised
