"""Umbrella sampling in a sequential run: regions that hold little of the posterior keep particles, each of less weight.

What the first samples of a record leave little of may hold much of the posterior in the end. A region with two particles in a
thousand loses them in a few stages, in every chain alike, and neither their agreement nor the product of the weights shows it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import effective_size, normalised

#: Share of the particles that a region keeps, and how many times more than its due they are at most.
KEPT, MOST = 0.05, 100.0
#: Draws that a mixture is fitted to, to tell regions, and its degrees of freedom.
FITTED, FREEDOM = 4000, 3.0
#: Particles that make a region, and the fewest effective ones that it may be left with.
REGION, LEAST = 5, 3.0


class Strata(NamedTuple):
    """Regions of a mixture, each where one of its components is the likeliest, and how much more often they are visited.

    Moves leave the posterior times ``exp(log_tilt(x))`` unchanged, and particles count by the inverse.

    Attributes
    ----------
    mixture : Mixture
    log_raise : array, shape (K,)

    Notes
    -----
    Source: Torrie and Valleau (1977), Journal of Computational Physics 23, 187-199.
    """

    mixture: Mixture
    log_raise: np.ndarray

    @classmethod
    def of(cls, mixture: Mixture, x: np.ndarray, weights: np.ndarray) -> Strata:
        """Regions in which every component has its share of particles (N, d), weighted for the posterior."""
        if mixture.components == 1:
            return cls.level(mixture)
        raised = log_raise(mixture.nearest(x), weights, len(mixture.shares))
        raised[mixture.components :] = 0.0  # what no component covers is no region
        return cls(mixture, raised)

    @classmethod
    def level(cls, mixture: Mixture) -> Strata:
        """Regions by their share of the posterior."""
        return cls(mixture, np.zeros(len(mixture.shares)))

    def log_tilt(self, x: np.ndarray) -> np.ndarray:
        """Logarithm (N,) of how much more often particles (N, d) are where they are than by the posterior."""
        if not self.log_raise.any():
            return np.zeros(len(x))
        return np.asarray(self.log_raise[self.mixture.nearest(x)])


def log_raise(region: np.ndarray, weights: np.ndarray, count: int = 0) -> np.ndarray:
    """Logarithm of what the weights (N,) of each region are multiplied by for it to keep its share, at most ``MOST``."""
    share = np.bincount(region, weights, count)
    small = (share > 0) & (share < KEPT)
    raised = np.zeros(len(share))
    raised[small] = np.log(np.minimum(KEPT / share[small], MOST))
    return raised


def thin(region: np.ndarray, copy: np.ndarray, log_weights: np.ndarray, moved: np.ndarray, share: float) -> np.ndarray:
    """Whether a region that matters is left with too few effective particles, at each of k weightings in a row.

    The posterior narrows in every region, and one that few particles are in is left with a single one, or with one at its edge,
    while those of the others are still many: its share is then anything, and no proposal can be fitted to it.

    Parameters
    ----------
    region : array of int, shape (N,)
        Region of each particle; negative where it is in none.
    copy : array of int, shape (N,)
        The same number for particles that are copies of one another, which count as one.
    log_weights : array, shape (N, k)
    moved : array, shape (N,)
        Log-weights of the particles before, which tell how often a region is visited.
    share : float
        Of the particles of a region, that have to be left.
    """
    result = np.zeros(log_weights.shape[1], dtype=bool)
    for r in np.unique(region[region >= 0]):
        here = region == r
        one, index, copies = np.unique(copy[here], return_index=True, return_counts=True)
        visited = (log_weights[here] - moved[here, None])[index] + np.log(copies)[:, None]
        if np.count_nonzero(visited[:, 0] > -np.inf) < REGION:  # what it is left with is not for smaller steps to change
            continue
        # Half of those there were may always go, or a region of many copies would let no sample in.
        least = min(max(share * len(one), LEAST), 0.5 * copies.sum() ** 2 / np.sum(copies**2))
        too_few = np.flatnonzero(effective_size(visited) < least)
        if not too_few.size:
            continue
        first = too_few[0]
        before = normalised(moved if first == 0 else log_weights[:, first - 1])
        if before[here].sum() * MOST >= KEPT:
            result[first:] = True
    return result


def held_alike(x: np.ndarray, acceptance: np.ndarray, rng: np.random.Generator) -> float:
    """Probability that chance alone makes chains (C, N, d) hold as unlike shares of some region as they do.

    R-hat does not see a mode of a few percent that one chain has lost. The regions are those of a mixture fitted to all draws;
    a chain of independent proposals with the acceptance a (C,) counts as a / (2 - a) of its draws.
    """
    chains, draws, d = x.shape
    if chains < 2 or not np.isfinite(x).all():  # at a bound of an unknown, where rounding has taken it, is no place
        return 1.0
    together = x.reshape(-1, d)
    some = together[rng.permutation(len(together))[:FITTED]]
    mixture = Mixture.fit(some, np.full(len(some), 1 / len(some)), FREEDOM, rng)
    region = mixture.nearest(together).reshape(chains, draws)
    count = np.array([(region == k).sum(axis=1) for k in range(mixture.components)]) * (acceptance / (2 - acceptance))
    own = (acceptance / (2 - acceptance)) * draws
    expected = count.sum(axis=1, keepdims=True) * own / own.sum()
    # The likelihood ratio of one share for all chains against one for each, for being in the region and for not.
    inside = scipy.special.xlogy(count, count / np.maximum(expected, 1e-300))
    outside = scipy.special.xlogy(own - count, (own - count) / np.maximum(own - expected, 1e-300))
    ratio = 2 * np.sum(inside + outside, axis=1)
    return float(min(1.0, len(count) * scipy.stats.chi2.sf(ratio.max(), chains - 1)))
