"""Estimates of a normalising constant from draws of a proposal and, where these fit badly, from draws of the target too."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.compat.arviz import array_stats
from pm_sysid.sampling.smc.stages import GOOD_K

#: Shape above which shorter tails are looked at, their parts of the usual tail, the fewest weights of one, and the shape below
#: which its largest weights are alike.
STEEP, SHORTER, FEWEST, LIGHT = 0.5, (1 / 2, 1 / 4, 1 / 8), 40, 0.2
#: Iterations of bridge sampling, and the change of the logarithm that ends them.
ITERATIONS, CHANGE = 1000, 1e-8


class Estimate(NamedTuple):
    """Logarithm of a normalising constant, its standard error, and the Pareto shape and effective share of the weights."""

    value: float
    error: float
    pareto_k: float
    efficiency: float

    @property
    def believable(self) -> bool:
        """Whether the weights have a mean and a variance that the draws can show."""
        return bool(np.isfinite(self.value) and self.pareto_k <= GOOD_K)


def importance(log_ratio: np.ndarray) -> Estimate:
    """Estimate from draws of a proposal alone.

    Parameters
    ----------
    log_ratio : array, shape (n,)
        Unnormalised target over normalised proposal density at independent draws of the proposal; minus infinity where the
        target is zero.
    """
    n = len(log_ratio)
    total = float(scipy.special.logsumexp(log_ratio)) if np.any(log_ratio > -np.inf) else -np.inf
    if not np.isfinite(total):
        return Estimate(-np.inf, np.inf, np.inf, 0.0)
    weights = np.exp(log_ratio - total)
    squares = float(np.sum(weights**2))
    return Estimate(total - np.log(n), float(np.sqrt(max(squares - 1 / n, 0.0))), pareto_shape(log_ratio), 1.0 / squares / n)


def pareto_shape(log_ratio: np.ndarray) -> float:
    """Shape of the generalised Pareto distribution that the largest weights follow; infinity where few are not zero.

    A heavy tail is heavy among the largest weights, and among the largest of these. Where a region's weights are all larger
    than those elsewhere, and alike, the step between the two looks heavy; what counts is then the tail within the region.
    """
    found = log_ratio[log_ratio > -np.inf]
    if len(found) < 25:
        return float("inf")
    # Weights of zero are weights: the tail is a share of all of them.
    filled = np.maximum(log_ratio, found.max() - 700.0)
    n = len(filled)
    count = min(n / 5, 3 * np.sqrt(n))
    if np.ptp(np.sort(filled)[-int(count) :]) < 1e-9:
        return -float("inf")
    shape = _shape_of_tail(filled, 1.0)
    for part in SHORTER:
        if shape <= STEEP or part * count < FEWEST:
            break
        if (within := _shape_of_tail(filled, part)) < LIGHT:
            return within
    return shape


def _shape_of_tail(log_weights: np.ndarray, part: float) -> float:
    """Shape of a part of the tail that is usual (Vehtari et al. 2024): its largest weights."""
    n = len(log_weights)
    # The usual tail has 3 sqrt(n / r_eff) weights, but at most a fifth of all.
    reduction = (3 * np.sqrt(n) / (part * min(n / 5, 3 * np.sqrt(n)))) ** 2 if part < 1 else 1.0
    with np.errstate(all="ignore"):  # smoothed weights of a very heavy tail overflow; its shape does not
        shape = float(array_stats.psislw(-log_weights, r_eff=reduction)[1])
    return shape if np.isfinite(shape) else float("inf")


def bridge(at_draws: np.ndarray, at_proposals: np.ndarray, family: np.ndarray) -> Estimate:
    """Estimate from draws of the target and of a proposal (Meng and Wong 1996), by the optimal bridge.

    Parameters
    ----------
    at_draws : array, shape (m,)
        Log of target over proposal density at draws of the target, to which the proposal was not fitted.
    at_proposals : array, shape (n,)
        The same at independent draws of the proposal.
    family : array of int, shape (m,)
        Draws of one family depend on each other.

    Notes
    -----
    Source: Meng and Wong (1996), Statistica Sinica 6, 831-860; error as in Fruehwirth-Schnatter (2004), Econometrics Journal
    7, 143-167, with sums over families in the place of autocorrelations.
    """
    m, n = len(np.unique(family)), len(at_proposals)
    share = m / (m + n)
    shift = float(np.median(at_draws))
    draws, proposals, log_z = at_draws - shift, at_proposals - shift, 0.0
    up = low = np.zeros(1)
    for _ in range(ITERATIONS):
        # f = (target / proposal) / (share * target + (1 - share) * z * proposal), and the same for 1 / target.
        up = proposals - np.logaddexp(np.log(share) + proposals, np.log1p(-share) + log_z)
        low = -np.logaddexp(np.log(share) + draws, np.log1p(-share) + log_z)
        new = float(scipy.special.logsumexp(up) - np.log(n) - (scipy.special.logsumexp(low) - np.log(len(low))))
        log_z, change = new, abs(new - log_z)
        if not np.isfinite(log_z):
            return Estimate(-np.inf, np.inf, np.inf, 0.0)
        if change < CHANGE:
            break
    of_proposals = np.exp(up - scipy.special.logsumexp(up))
    of_draws = np.exp(low - scipy.special.logsumexp(low))
    clusters = np.bincount(family, of_draws - 1 / len(of_draws))
    variance = float(np.sum((of_proposals - 1 / n) ** 2) + np.sum(clusters**2))
    return Estimate(log_z + shift, float(np.sqrt(variance)), pareto_shape(up), 1.0 / float(np.sum(of_proposals**2)) / n)


def joined(estimates: list[Estimate]) -> Estimate:
    """Mean of estimates of one number, with an error that is at least half their distance."""
    values = np.array([e.value for e in estimates])
    error = float(np.sqrt(np.mean([e.error**2 for e in estimates])))
    apart = float(np.ptp(values)) if len(values) > 1 and np.isfinite(values).all() else 0.0
    return Estimate(
        float(np.mean(values)),
        max(error, apart / 2),
        max(e.pareto_k for e in estimates),
        min(e.efficiency for e in estimates),
    )
