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
#: Effective share of weighted draws from which on their weights are even, whatever the shape of the largest, which says nothing
#: of weights that are nearly equal.
EVEN = 0.5
#: Difference of two shares that is worth a word, and how many standard errors it has to be.
SHARE, ERRORS = 0.1, 5.0
#: Ratio of two standard deviations that is worth a word, and how many standard errors of the weighted draws it has to be (those
#: of a chain that has not seen a tail are no errors), or where the chain itself has a long tail.
WIDER, ERRORS_OF_WIDER, OF_LONG = 1.4, 3.5, 2.0
#: Error of the logarithm of a variance from which on a handful of weighted draws makes it up.
VAGUE = 0.5
#: Pareto shape from which on a tail is long (the variance has none), and error of a standard deviation that is worth a word.
LONG, UNCERTAIN = 0.5, 0.4
#: Fourth moment over the square of the variance (of a Gaussian: 3) below which few effective draws are no matter of a tail.
KURTOSIS = 10.0


def missed(draws: np.ndarray, x: np.ndarray, log_weights: np.ndarray, labels: Sequence[str]) -> str | None:
    """What weighted draws say against a chain, in words; empty if nothing, and None if they say too little.

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
    Of each coordinate, shares of the draws below a number are compared, which tells of modes, and standard deviations, which
    tell of tails. Differences count that are large and many standard errors, of both.
    """
    if len(draws) < SHORTEST or not np.any(log_weights > -np.inf):
        return None
    weights = normalised(log_weights)
    effective = 1 / np.sum(weights**2)
    if effective < FEWEST or (effective < EVEN * len(weights) and pareto_shape(log_weights) > GOOD_K):
        return None
    apart = [_share(draws[:, j], x[:, j], weights) for j in range(len(labels))]
    j = int(np.argmax(apart))
    if apart[j] > SHARE:
        return (
            f"of {labels[j]}, {100 * apart[j]:.0f} % of the posterior lie elsewhere than the draws of the chain, by weighted "
            "draws from all over it"
        )
    ratios = [_wider(draws[:, j], x[:, j], weights) for j in range(len(labels))]
    j = int(np.argmax(ratios))
    if ratios[j] > WIDER:
        return (
            f"the standard deviation of {labels[j]} is {ratios[j]:.2g} times that of the chain, by weighted draws from all "
            "over the posterior"
        )
    errors = [_error_of_sd(draws[:, j], x[:, j], weights) for j in range(len(labels))]
    j = int(np.argmax(errors))
    if errors[j] > UNCERTAIN:
        off = f"{100 * errors[j]:.0f} %"
        return f"the standard deviation of {labels[j]} hangs on few draws far from the others, and may be off by {off}"
    return ""


def _long(column: np.ndarray) -> bool:
    """Whether draws have a long tail."""
    away = np.abs(column - np.median(column))
    return bool((away > 0).any()) and pareto_shape(np.log(away[away > 0])) > LONG


def _error_of_sd(column: np.ndarray, x: np.ndarray, weights: np.ndarray) -> float:
    """Relative standard error of the standard deviation of draws with a long tail, by these or, if larger, by weighted draws.

    Zero where there is no such tail. A chain that seldom comes to one does not know how large its error is: the fourth moment
    comes from the weighted draws.
    """
    squares, weighted = (column - column.mean()) ** 2, (x - weights @ x) ** 2
    if not squares.any() or not weighted.any():
        return 0.0
    spread, own = weights @ weighted**2 / (weights @ weighted) ** 2, np.mean(squares**2) / squares.mean() ** 2
    if max(spread, own) < KURTOSIS:
        return 0.0
    of_moment = np.sqrt(max(spread - 1, 0.0) * _variance(column) / column.var())
    return float(max(np.sqrt(_variance(squares)) / squares.mean(), of_moment)) / 2


def _share(column: np.ndarray, x: np.ndarray, weights: np.ndarray) -> float:
    """Largest difference between the shares of draws and of weighted draws below a number, if it is significant; else zero."""
    order = np.argsort(x)
    apart = np.cumsum(weights[order]) - np.searchsorted(np.sort(column), x[order], side="right") / len(column)
    level, most = x[order][np.argmax(np.abs(apart))], float(np.max(np.abs(apart)))
    below, chain_below = x <= level, column <= level
    error = np.sqrt(np.sum(weights**2 * (below - weights @ below) ** 2) + _variance(chain_below))
    return most if most > ERRORS * error else 0.0


def _wider(column: np.ndarray, x: np.ndarray, weights: np.ndarray) -> float:
    """How many times wider weighted draws are than draws, where that is significant; zero elsewhere."""
    squares = (x - weights @ x) ** 2
    variance = float(weights @ squares)
    own = float(column.var())
    if not 0 < own < variance:
        return float(own == 0 < variance) * np.inf
    error = float(np.sqrt(np.sum(weights**2 * (squares - variance) ** 2))) / variance  # of the logarithm of the variance
    limit = OF_LONG if _long(column) else ERRORS_OF_WIDER
    significant = np.log(variance / own) > limit * error and error < VAGUE
    return float(np.sqrt(variance / own)) if significant else 0.0


def _variance(values: np.ndarray) -> float:
    """Variance of the mean of values along a chain."""
    values = np.asarray(values, dtype=float)
    if np.ptp(values) == 0:
        return 0.0
    effective = float(array_stats.ess(values[None], method="mean"))
    return float(values.var() / max(effective, 1.0)) if np.isfinite(effective) else float(values.var())
