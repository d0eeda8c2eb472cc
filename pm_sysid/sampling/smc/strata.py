"""Umbrella sampling in a sequential run: regions that hold little of the posterior keep particles, each of less weight.

What the first samples of a record leave little of may hold much of the posterior in the end. A region with two particles in a
thousand loses them in a few stages, in every chain alike, and neither their agreement nor the product of the weights shows it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.sampling.smc.proposals import Mixture

#: Share of the particles that a region keeps, and how many times more than its due they are at most.
KEPT, MOST = 0.05, 100.0


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
