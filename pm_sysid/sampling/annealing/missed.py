"""What a chain has missed: its draws beside draws of proposals that do not depend on it, weighted by the posterior.

Chains that all stay in one of two modes, or before a tail that they seldom see, agree with each other. Weighted draws from all
over the posterior need not agree with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pm_sysid.compat.arviz import array_stats
from pm_sysid.sampling.smc.evidence import pareto_shape
from pm_sysid.sampling.smc.resampling import normalised
from pm_sysid.sampling.smc.stages import GOOD_K

#: Effective weighted draws, and draws of a chain, below which nothing is said.
FEWEST, SHORTEST = 50.0, 100
#: Levels of the weighted draws at which shares of the draws are compared.
LEVELS = (0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.99)
#: Difference of two shares that is worth a word, and how many standard errors it has to be.
SHARE, ERRORS = 0.1, 5.0
#: Ratio of two standard deviations that is worth a word.
WIDER = 1.25


def missed(draws: np.ndarray, x: np.ndarray, log_weights: np.ndarray, labels: Sequence[str]) -> str:
    """What weighted draws say against a chain, in words; empty if nothing, or if they say too little.

    Parameters
    ----------
    draws : numpy.ndarray, shape (n, d)
        Of the chain.
    x : numpy.ndarray, shape (m, d)
        Draws of a proposal.
    log_weights : numpy.ndarray, shape (m,)
        Log posterior less log density of the proposal there.
    labels : sequence of str
        Names of the coordinates.

    Notes
    -----
    Of each coordinate, shares of the draws below quantiles of the weighted draws are compared, which tells of modes, and
    standard deviations, which tell of tails. Differences count that are large and many standard errors, of both.
    """
    if len(draws) < SHORTEST or not np.any(log_weights > -np.inf) or pareto_shape(log_weights) > GOOD_K:
        return ""
    weights = normalised(log_weights)
    if 1 / np.sum(weights**2) < FEWEST:
        return ""
    apart = [_share(draws[:, j], x[:, j], weights) for j in range(len(labels))]
    j = int(np.argmax(apart))
    if apart[j] > SHARE:
        return (
            f"draws from all over the posterior, weighted, have {100 * apart[j]:.0f} % of it where the chain has other shares of "
            f"{labels[j]}"
        )
    ratios = [_wider(draws[:, j], x[:, j], log_weights, weights) for j in range(len(labels))]
    j = int(np.argmax(ratios))
    if ratios[j] > WIDER:
        return f"by draws from all over the posterior, weighted, the standard deviation of {labels[j]} is {ratios[j]:.2g} times that of the chain"
    return ""


def _share(column: np.ndarray, x: np.ndarray, weights: np.ndarray) -> float:
    """Largest significant difference between the shares of draws and of weighted draws below a level; zero if none is."""
    order = np.argsort(x)
    below = np.cumsum(weights[order])
    levels = x[order][np.minimum(np.searchsorted(below, LEVELS), len(x) - 1)]
    worst = 0.0
    for level in levels:
        is_below, chain_below = x <= level, column <= level
        share, own = float(weights @ is_below), float(chain_below.mean())
        error = np.sqrt(np.sum(weights**2 * (is_below - share) ** 2) + _variance(chain_below))
        if abs(share - own) > ERRORS * error:
            worst = max(worst, abs(share - own))
    return worst


def _wider(column: np.ndarray, x: np.ndarray, log_weights: np.ndarray, weights: np.ndarray) -> float:
    """How many times wider weighted draws are than draws, where that is significant; zero elsewhere."""
    squares = (x - weights @ x) ** 2
    variance = float(weights @ squares)
    own = float(column.var())
    if not 0 < own < variance:
        return float(own == 0 < variance) * np.inf
    with np.errstate(divide="ignore"):
        heavy = log_weights + np.log(squares)
    error = np.sqrt(np.sum(weights**2 * (squares - variance) ** 2) + _variance((column - column.mean()) ** 2))
    significant = variance - own > ERRORS * error and pareto_shape(heavy) <= GOOD_K
    return float(np.sqrt(variance / own)) if significant else 0.0


def _variance(values: np.ndarray) -> float:
    """Variance of the mean of values along a chain."""
    values = np.asarray(values, dtype=float)
    if np.ptp(values) == 0:
        return 0.0
    effective = float(array_stats.ess(values[None], method="mean"))
    return float(values.var() / max(effective, 1.0)) if np.isfinite(effective) else float(values.var())
