"""Proposals from all over the posterior, one at a time, whatever place a chain is at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.sampling.annealing.population import FREEDOM
from pm_sysid.sampling.smc.proposals import Mixture

#: Share of a chain's proposals that are independent, by the effective share of their weights: at none, more for all of it, and
#: where hardly any counts.
SHARE, MORE, HARDLY, SELDOM = 0.2, 0.5, 0.003, 0.05


class Independent(NamedTuple):
    """A mixture of K multivariate t distributions as the proposals of a chain.

    Attributes
    ----------
    shares, means, roots : ndarray, shapes (K,), (K, d) and (K, d, d)
        Of the mixture; empty if there is none.
    inverses, constants : ndarray, shapes (K, d, d) and (K,)
        Of the roots, and logarithms of the densities at the means with the shares.
    share : float
        Of all proposals of the chain.
    followed : bool
        Whether the population that the mixture is fitted to has followed the posterior from the prior on.
    """

    shares: np.ndarray
    means: np.ndarray
    roots: np.ndarray
    inverses: np.ndarray
    constants: np.ndarray
    share: float
    followed: bool = False

    @classmethod
    def of(cls, mixture: Mixture, efficiency: float, followed: bool = True) -> Independent:
        """Proposals of a mixture of whose draws a part is effective."""
        one = [mixture._replace(shares=np.ones(1), means=m[None], roots=r[None]) for m, r in zip(*mixture[1:3], strict=True)]
        constants = np.log(mixture.shares) + [float(m.logpdf(m.means)[0]) for m in one]
        share = SHARE + MORE * efficiency if efficiency > HARDLY else SELDOM
        return cls(*mixture[:3], np.linalg.inv(mixture.roots), constants, share, followed)

    @property
    def exists(self) -> bool:
        """Whether there are any."""
        return len(self.shares) > 0

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """One proposal (d,)."""
        k = min(int(np.searchsorted(np.cumsum(self.shares), rng.random(), side="right")), len(self.shares) - 1)
        z = rng.standard_normal(self.means.shape[1]) / np.sqrt(rng.chisquare(FREEDOM) / FREEDOM)
        proposal: np.ndarray = self.means[k] + self.roots[k] @ z
        return proposal

    def logpdf(self, q: np.ndarray) -> float:
        """Log density at a point (d,)."""
        z = np.matmul(self.inverses, (q - self.means)[:, :, None])[:, :, 0]
        parts = self.constants - 0.5 * (FREEDOM + len(q)) * np.log1p(np.sum(z**2, axis=1) / FREEDOM)
        return float(np.logaddexp.reduce(parts))


def nowhere(size: int) -> Independent:
    """No such proposals."""
    square = np.empty((0, size, size))
    return Independent(np.empty(0), np.empty((0, size)), square, square, np.empty(0), 0.0)
