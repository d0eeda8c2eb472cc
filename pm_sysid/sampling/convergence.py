"""Whether chains have mixed: R-hat, effective draws, and the numbers by which both are judged everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.compat.arviz import array_stats
from pm_sysid.idata import group, holds

#: Chains agree up to the first R-hat, and disagree above the second.
R_HAT_AGREES, R_HAT_DISAGREES = 1.01, 1.05
#: Fewer effective draws than the first give rough means, and fewer than the second rough ends of intervals.
ESS_MEANS, ESS_INTERVALS = 100, 400
#: Part of all draws that suffices as well where they are few.
ESS_SHARE = 0.25
#: Draws of a chain below which nothing can be said.
LEAST_DRAWS = 100


class Missed(NamedTuple):
    """Chains that say at their end that they have missed a part of the posterior, and those that cannot say."""

    chains: int
    unknown: int


def chains_that_missed(idata: Any) -> Missed | None:
    """Return how many chains said at their end that they have missed a part (:class:`DataAnnealing`); None if none looks."""
    if not holds(idata, "sample_stats") or "missed" not in group(idata, "sample_stats"):
        return None
    missed = group(idata, "sample_stats")["missed"].transpose("chain", ...).to_numpy()
    missed = missed.reshape(len(missed), -1)  # of several such steps, one number each
    return Missed(int(np.sum(np.any(missed == 1, axis=-1))), int(np.sum(np.all(np.isnan(missed), axis=-1))))


class Mixing(NamedTuple):
    """Of each parameter: R-hat, and effective draws for the mean; NaN where nothing can be said. The number of all draws."""

    labels: list[str]
    r_hat: np.ndarray
    ess: np.ndarray
    draws: int

    @property
    def bad(self) -> str:
        """What shows that the draws are no posterior yet, in words; empty if nothing does."""
        with np.errstate(invalid="ignore"):
            apart, few = self.r_hat > R_HAT_DISAGREES, self.ess < min(ESS_MEANS, ESS_SHARE * self.draws)
        if apart.any():
            worst = int(np.nanargmax(self.r_hat))
            return f"R-hat {self.r_hat[worst]:.2f} and {self.ess[worst]:.0f} effective draws of {self.labels[worst]}"
        if few.any():
            worst = int(np.nanargmin(self.ess))
            return f"{self.ess[worst]:.0f} effective draws of {self.labels[worst]}"
        return ""


def mixing(draws: np.ndarray, labels: Sequence[str]) -> Mixing:
    """R-hat and effective draws of chains (chain, draw, parameter); of one chain, its halves are compared.

    Rank-normalised (Vehtari et al. 2021), so that they are the same for any monotone function of a parameter. A parameter that
    does not vary in a chain has an infinite R-hat and one effective draw: that chain is stuck.
    """
    chains, length, size = draws.shape
    if length < LEAST_DRAWS:
        unknown = np.full(size, np.nan)
        return Mixing(list(labels), unknown, unknown, chains * length)
    if chains == 1:
        half = length // 2
        draws = draws[:, length - 2 * half :].reshape(2, half, size)
    r_hat, ess = np.full(size, np.inf), np.full(size, 1.0)
    for j in range(size):
        column = draws[..., j]
        if np.isfinite(column).all() and np.ptp(column, axis=1).all():
            r_hat[j] = float(array_stats.rhat(column))
            ess[j] = float(array_stats.ess(column, method="bulk"))
    return Mixing(list(labels), r_hat, ess, chains * length)
