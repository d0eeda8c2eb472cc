"""The arithmetic of weighted particles: effective size, resampling, moments, and Markov moves of many at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import logsumexp


def effective_size(log_weights: np.ndarray) -> np.ndarray:
    """Effective sample size (sum w)^2 / sum w^2 along the first axis; Eq. 22 of the sequential paper."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(log_weights - np.max(log_weights, axis=0))
    size = np.sum(weights, axis=0) ** 2 / np.sum(weights**2, axis=0)
    result: np.ndarray = np.nan_to_num(size, nan=0.0)
    return result


def normalised(log_weights: np.ndarray) -> np.ndarray:
    """Weights that sum to one."""
    weights = np.exp(log_weights - logsumexp(log_weights))
    result: np.ndarray = weights / weights.sum()
    return result


def systematic(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of ``count`` particles resampled systematically: one uniform number, evenly spaced arrows."""
    arrows = (rng.random() + np.arange(count)) / count
    index: np.ndarray = np.minimum(np.searchsorted(np.cumsum(weights), arrows, side="right"), len(weights) - 1)
    return index


class Proposal(NamedTuple):
    """Multivariate t with a mean (d,), the lower root of its scale matrix (d, d) and degrees of freedom (inf: Gaussian).

    A Gaussian fitted to the particles, as in the sequential paper, has a flaw that repeats itself: where it is narrower than
    the posterior its chains stay inside it, the next fit is narrower still, and acceptance looks normal all the while. The
    tails of a t distribution of the same covariance root reach out of it.
    """

    mean: np.ndarray
    root: np.ndarray
    freedom: float = np.inf

    @classmethod
    def fit(cls, x: np.ndarray, weights: np.ndarray, freedom: float = np.inf) -> Proposal:
        """Weighted mean and covariance of particles (N, d); Eq. 23."""
        mean = weights @ x
        centred = x - mean
        covariance = (weights * centred.T) @ centred
        scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
        correlation = covariance / scale / scale[:, None]
        # Few distinct particles, or two that are one: keep every direction open.
        return cls(mean, scale[:, None] * cholesky(correlation + 1e-9 * np.eye(len(mean)), lower=True), freedom)

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Independent draws (count, d); Eq. 24."""
        z = rng.standard_normal((count, len(self.mean)))
        if np.isfinite(self.freedom):
            z /= np.sqrt(rng.chisquare(self.freedom, (count, 1)) / self.freedom)
        result: np.ndarray = self.mean + z @ self.root.T
        return result

    def logpdf(self, x: np.ndarray) -> np.ndarray:
        """Log-density of particles (N, d), up to a constant."""
        z = (x - self.mean) @ solve_triangular(self.root, np.eye(len(self.mean)), lower=True).T
        squares = np.sum(z**2, axis=1)
        if not np.isfinite(self.freedom):
            return -0.5 * squares
        result: np.ndarray = -0.5 * (self.freedom + len(self.mean)) * np.log1p(squares / self.freedom)
        return result


class Chains(NamedTuple):
    """States of M Markov chains of length P, as rows p * M + m; where each came from; how many moves were accepted."""

    source: np.ndarray
    acceptance: float


def independent_chains(ancestors: np.ndarray, log_ratio: np.ndarray, count: int, rng: np.random.Generator) -> Chains:
    """Run independent Metropolis-Hastings chains over proposals that have all been evaluated beforehand.

    Parameters
    ----------
    ancestors : array of int, shape (M,)
        Rows of the particles the chains start from.
    log_ratio : array, shape (n + M * (P - 1),)
        Target over proposal density: of the n particles, then of the proposals, step by step.
    count : int
        Number n of particles.

    Returns
    -------
    Chains
        ``source`` holds rows of ``log_ratio``, shape (P * M,). The proposal density is part of the ratio (Eq. 25 of the
        sequential paper leaves it out).
    """
    M = len(ancestors)
    steps = (len(log_ratio) - count) // M
    state, rows, accepted = ancestors.copy(), [ancestors], 0
    for p in range(steps):
        proposal = count + p * M + np.arange(M)
        with np.errstate(invalid="ignore"):
            better = np.log(rng.random(M)) < log_ratio[proposal] - log_ratio[state]
        state = np.where(better, proposal, state)
        accepted += int(better.sum())
        rows.append(state)
    return Chains(np.concatenate(rows), accepted / max(steps * M, 1))


def cluster_variance(log_weights: np.ndarray, family: np.ndarray) -> float:
    """Relative variance of a mean weight over particles of which those of one family depend on each other.

    Parameters
    ----------
    log_weights : array, shape (N,)
    family : array of int, shape (N,)
        Which ancestor a particle descends from since the last resampling.
    """
    weights = np.exp(log_weights - logsumexp(log_weights))
    sums = np.bincount(family, weights - 1 / len(weights))
    return float(np.sum(sums**2))


def bisect(good: Callable[[float], bool], low: float, high: float) -> float:
    """Largest number between ``low`` and ``high`` that is good, when small ones are."""
    if good(high):
        return high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
