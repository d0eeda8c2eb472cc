"""Proposals from all over the posterior, one at a time, and what those after tuning have seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy

from pm_sysid.sampling.annealing.population import FREEDOM
from pm_sysid.sampling.smc.proposals import Mixture


class Independent(NamedTuple):
    """A mixture of K multivariate t distributions as the proposals of a chain, and those that it has made after tuning.

    Attributes
    ----------
    shares, means, roots : ndarray, shapes (K,), (K, d) and (K, d, d)
        Of the mixture; empty if there is none.
    inverses, constants : ndarray, shapes (K, d, d) and (K,)
        Of the roots, and logarithms of the densities at the means with the shares.
    x, log_weights : list
        Proposals after tuning, and the log posterior less the log density of the mixture there.
    """

    shares: np.ndarray
    means: np.ndarray
    roots: np.ndarray
    inverses: np.ndarray
    constants: np.ndarray
    x: list[np.ndarray]
    log_weights: list[float]

    @classmethod
    def of(cls, mixture: Mixture) -> Independent:
        """Proposals of a mixture, which have seen nothing."""
        at_means = [float(mixture._replace(shares=np.ones(1), means=m[None], roots=r[None]).logpdf(m[None])[0])
                    for m, r in zip(mixture.means, mixture.roots, strict=True)]  # fmt: skip
        constants = np.array(at_means) + np.log(mixture.shares)
        return cls(mixture.shares, mixture.means, mixture.roots, np.linalg.inv(mixture.roots), constants, [], [])

    @classmethod
    def known(cls, state: Mapping[str, Any]) -> Independent:
        """Proposals from a checkpoint."""
        return cls(**{**state, "x": list(state["x"]), "log_weights": list(state["log_weights"])})

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
        return float(
            scipy.special.logsumexp(self.constants - 0.5 * (FREEDOM + len(q)) * np.log1p(np.sum(z**2, axis=1) / FREEDOM))
        )

    def saw(self, proposal: np.ndarray, log_weight: float) -> None:
        """Take note of a proposal after tuning."""
        self.x.append(proposal)
        self.log_weights.append(log_weight)


def nowhere(size: int) -> Independent:
    """No such proposals."""
    square = np.empty((0, size, size))
    return Independent(np.empty(0), np.empty((0, size)), square, square, np.empty(0), [], [])
