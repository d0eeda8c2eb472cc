"""The arithmetic of weighted particles: effective size, resampling, and the variance of their mean weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy


def effective_size(log_weights: np.ndarray) -> np.ndarray:
    """Effective sample size (sum w)^2 / sum w^2 along the first axis; Eq. 22 of the sequential paper."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(log_weights - np.max(log_weights, axis=0))
    size = np.sum(weights, axis=0) ** 2 / np.sum(weights**2, axis=0)
    result: np.ndarray = np.nan_to_num(size, nan=0.0)
    return result


def normalised(log_weights: np.ndarray) -> np.ndarray:
    """Weights that sum to one."""
    weights = np.exp(log_weights - scipy.special.logsumexp(log_weights))
    result: np.ndarray = weights / weights.sum()
    return result


def systematic(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of ``count`` particles resampled systematically: one uniform number, evenly spaced arrows."""
    arrows = (rng.random() + np.arange(count)) / count
    index: np.ndarray = np.minimum(np.searchsorted(np.cumsum(weights), arrows, side="right"), len(weights) - 1)
    return index


def evenly(weights: np.ndarray, count: int | None = None) -> np.ndarray:
    """Indices of as many particles as there are (or as ``count``), resampled without chance."""
    count = len(weights) if count is None else count
    arrows = (0.5 + np.arange(count)) / count
    index: np.ndarray = np.minimum(np.searchsorted(np.cumsum(weights), arrows, side="right"), len(weights) - 1)
    return index


def cluster_variance(log_weights: np.ndarray, before: np.ndarray, family: np.ndarray) -> float:
    """Relative variance of what the mean weight has grown by, over particles of which those of one family depend on each other.

    Parameters
    ----------
    log_weights, before : array, shape (N,)
        Now, and where the mean began.
    family : array of int, shape (N,)
        Which ancestor a particle descends from since the last resampling.
    """
    sums = np.bincount(family, normalised(log_weights) - normalised(before))
    return float(np.sum(sums**2))


def bisect(good: Callable[[float], bool], low: float, high: float) -> float:
    """Largest number between ``low`` and ``high`` that is good, when small ones are."""
    if good(high):
        return high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
