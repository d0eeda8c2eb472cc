"""Draws of several proposals that follow each other, each weighted as a draw of the mixture of them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.likelihood.prior_draws import draw_prior_and_mass
from pm_sysid.sampling.smc.evidence import Estimate, importance
from pm_sysid.sampling.smc.missed_modes import log_posterior
from pm_sysid.sampling.smc.natural_units import NaturalUnits
from pm_sysid.sampling.smc.resampling import effective_size, normalised, systematic

#: Draws of the prior at most, and the likelihoods of a sample that they may cost.
FROM_PRIOR, SAMPLES = 16_000, 5 * 10**6
#: Weights are tempered until the effective draws are this many times the unknowns, so that a proposal follows no handful.
FOLLOWED = 20
#: A number whose square is finite.
LARGEST = 1e150

type Density = Callable[[np.ndarray], np.ndarray]


class Seen(NamedTuple):
    """Draws of all proposals so far, each weighted as a draw of the mixture of them all.

    What lies far from the mode or behind a narrow neck is seen by few draws of a round. All that have seen it count.

    Attributes
    ----------
    z : ndarray, shape (M, d)
    log_density : ndarray, shape (M,)
        Prior times likelihood.
    log_proposal : ndarray, shape (M,)
        Of all proposals, each by the number of its draws.
    proposals : tuple of (int, callable)
        Number of draws and log density of each.

    Notes
    -----
    Source: Cornuet, Marin, Mira and Robert (2012), Adaptive Multiple Importance Sampling, Scandinavian Journal of Statistics
    39, 798-812.
    """

    z: np.ndarray
    log_density: np.ndarray
    log_proposal: np.ndarray
    proposals: tuple[tuple[int, Density], ...] = ()

    @property
    def log_weights(self) -> np.ndarray:
        """Log weights (M,), whose mean is the evidence."""
        return self.to_power(1.0)

    def to_power(self, power: float) -> np.ndarray:
        """Log weights (M,) of draws of a power of prior times likelihood; of the first power, their mean is the evidence."""
        with np.errstate(invalid="ignore"):
            weights = power * self.log_density - self.log_proposal + np.log(len(self.z))
        result: np.ndarray = np.where(self.log_density > -np.inf, weights, -np.inf)
        return result

    @property
    def tempered(self) -> np.ndarray:
        """Log weights (M,) so tempered that a proposal fitted to them follows no handful of draws."""
        weights = self.log_weights
        while effective_size(weights) < FOLLOWED * self.z.shape[1] and np.ptp(weights[weights > -np.inf]) > 0:
            weights = weights / 2
        return weights

    def with_draws(self, z: np.ndarray, log_density: np.ndarray, proposal: Density) -> Seen:
        """These and draws (N, d) of one proposal more."""
        proposals = (*self.proposals, (len(z), proposal))
        before = np.logaddexp(self.log_proposal, np.log(len(z)) + proposal(self.z)) if len(self.z) else self.log_proposal
        now = scipy.special.logsumexp([np.log(count) + density(z) for count, density in proposals], axis=0)
        return Seen(
            np.concatenate([self.z, z]),
            np.concatenate([self.log_density, log_density]),
            np.concatenate([before, now]),
            proposals,
        )

    def mixture(self, z: np.ndarray) -> np.ndarray:
        """Log density (N,) of points (N, d) under the mixture of all proposals."""
        parts = [np.log(count / len(self.z)) + density(z) for count, density in self.proposals]
        return np.asarray(scipy.special.logsumexp(parts, axis=0))

    def evidence(self, last: Estimate, by_all: bool = False) -> Estimate:
        """Evidence by the ``last`` proposal's draws alone, with an error that is at least the distance to that of all draws.

        Proposals that are fitted to draws which count themselves give an evidence that is a little too low. Nothing is fitted
        to the last draws. Where their weights are not to be believed it is that of all draws (``by_all``), with an error that
        is at least the same distance.
        """
        of_all = importance(self.log_weights)
        taken = of_all if by_all else last
        return taken._replace(error=max(taken.error, abs(last.value - of_all.value)))

    def picked(self, log_weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (count, d) by some log weights (M,), which count alike."""
        rows: np.ndarray = self.z[systematic(normalised(log_weights), count, rng)]
        return rows


def nothing(d: int) -> Seen:
    """No draws of d unknowns."""
    return Seen(np.empty((0, d)), np.empty(0), np.empty(0))


def of_prior(turns: Sequence[NaturalUnits], rng: np.random.Generator, most: int = FROM_PRIOR) -> list[Seen]:
    """Draws of the prior in each of some units, as many as cost little; none where there are none, or none is possible."""
    target = turns[0].target
    none = nothing(target.size)
    count = min(most, FROM_PRIOR, SAMPLES // max(target.n_samples, 1))
    if count < FOLLOWED * target.size:
        return [none] * len(turns)
    try:
        x, mass = draw_prior_and_mass(target.coordinates, count, rng)
    except (NotImplementedError, ValueError):
        return [none] * len(turns)
    x = target.coordinates.wrapped(x)
    with np.errstate(invalid="ignore"):  # where the prior has no density neither has the posterior
        likelihood = log_posterior(target, x) - target.log_prior(x)
    if not np.any(np.isfinite(likelihood)):
        return [none] * len(turns)
    found = []
    for units in turns:
        with np.errstate(over="ignore"):  # of a very wide logarithm
            z = np.minimum(units.natural(x), LARGEST)
        density = np.where(np.isfinite(likelihood), units.log_prior(z) + likelihood, -np.inf)
        found.append(none.with_draws(z, density, _density_of_prior(units, mass.log)))
    return found


def _density_of_prior(units: NaturalUnits, log_mass: float) -> Density:
    """Log density of the prior in some units, of which potentials leave a share."""
    return lambda z: units.log_prior(z) - log_mass
