"""What errors of a posterior the ranks of a calibration find, by their number and that of the draws they are among.

Ranks among few draws are coarse: the error of a posterior moves them less than it moves the truth within the posterior. The
moments of their normal scores are worked out for a Gaussian posterior that is biased or of a wrong width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy

#: Chance with which an error of the size stated is found.
POWER = 0.9
#: Draws from which on ranks are as good as the probabilities themselves.
MANY = 300
#: Numbers of draws are taken together within this factor.
TOGETHER = 1.15
#: Errors beyond which nothing is stated: bias in posterior standard deviations, and logarithm of the factor of these.
LARGEST_BIAS, LARGEST_FACTOR = 10.0, np.log(10.0)
#: Where the truth is within a right posterior, and how likely.
TRUTH = np.linspace(-6.0, 6.0, 481)
WEIGHTS = scipy.stats.norm.pdf(TRUTH) / np.sum(scipy.stats.norm.pdf(TRUTH))


class Resolution(NamedTuple):
    """Errors of a posterior that are found nine times in ten; infinite where none of a sensible size is.

    Attributes
    ----------
    bias : float
        In posterior standard deviations.
    narrow, wide : float
        By what part of the right one the posterior standard deviation is too small, and too large.
    """

    bias: float
    narrow: float
    wide: float


class Moments(NamedTuple):
    """Mean and variance of normal scores, and of their squares."""

    mean: float
    variance: float
    square: float
    variance_of_square: float


def resolution(ranked: Iterable[int], threshold: float) -> Resolution:
    """Errors that are found by as many fits, each with so many draws among which the truth is ranked.

    Parameters
    ----------
    ranked : iterable of int
        Draws of each fit.
    threshold : float
        P-value below which a test fails.
    """
    counts: dict[int, int] = {}
    for number in ranked:
        together = MANY if number >= MANY else round(TOGETHER ** (np.log(max(int(number), 1)) // np.log(TOGETHER)))
        counts[max(together, 1)] = counts.get(max(together, 1), 0) + 1
    return _resolution(tuple(sorted(counts.items())), threshold)


@lru_cache(maxsize=100)
def _resolution(counts: tuple[tuple[int, int], ...], threshold: float) -> Resolution:
    n = sum(count for _, count in counts)
    normal = float(scipy.stats.norm.isf(threshold / 2))
    least, most = scipy.stats.chi2.ppf(threshold / 2, n), scipy.stats.chi2.isf(threshold / 2, n)

    def found(bias: float, factor: float) -> float:
        """Chance that one of the tests of location and width fails."""
        each = [(count, moments(number, bias, factor)) for number, count in counts]
        mean, variance = (sum(count * m[k] for count, m in each) / n for k in (0, 1))
        square, of_square = (sum(count * m[k] for count, m in each) for k in (2, 3))
        away, sd = np.sqrt(n) * abs(mean), np.sqrt(variance)
        location = scipy.stats.norm.sf((normal - away) / sd) + scipy.stats.norm.cdf((-normal - away) / sd)
        gamma = scipy.stats.gamma(square**2 / of_square, scale=of_square / square)
        return float(max(location, gamma.sf(most) + gamma.cdf(least)))

    bias = _first(lambda b: found(b, 1.0), LARGEST_BIAS)
    narrow = _first(lambda f: found(0.0, np.exp(-f)), LARGEST_FACTOR)
    wide = _first(lambda f: found(0.0, np.exp(f)), LARGEST_FACTOR)
    return Resolution(bias, float(1 - np.exp(-narrow)) if np.isfinite(narrow) else np.inf, float(np.expm1(wide)))


def _first(found: Callable[[float], float], largest: float) -> float:
    """Error from which on the chance suffices."""
    if found(largest) < POWER:
        return np.inf
    return float(scipy.optimize.brentq(lambda size: found(size) - POWER, 0.0, largest, xtol=1e-3))


def moments(number: int, bias: float, factor: float) -> Moments:
    """Moments of the normal scores of ranks among draws of a posterior whose bias and width are wrong.

    Parameters
    ----------
    number : int
        Of the draws.
    bias : float
        Of the posterior, in right standard deviations.
    factor : float
        Posterior standard deviation over the right one.
    """
    z = (TRUTH - bias) / factor
    if number >= MANY:
        first, second, fourth = (float(WEIGHTS @ z**k) for k in (1, 2, 4))
    else:
        below, above = scipy.special.log_ndtr(z), scipy.special.log_ndtr(-z)
        rank = np.arange(number + 1)
        ways = scipy.special.gammaln(number + 1) - scipy.special.gammaln(rank + 1) - scipy.special.gammaln(number - rank + 1)
        shares = WEIGHTS @ np.exp(ways + below[:, None] * rank + above[:, None] * (number - rank))
        first, second, fourth = (float(shares @ power) for power in _scores(number))
    return Moments(first, second - first**2, second, fourth - second**2)


@lru_cache(maxsize=400)
def _scores(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean first, second and fourth powers of the normal score, by the rank among so many draws."""
    edges = scipy.stats.norm.ppf(np.linspace(0.0, 1.0, number + 2))
    density, z = scipy.stats.norm.pdf(edges), np.where(np.isfinite(edges), edges, 0.0)
    total = np.linspace(0.0, 1.0, number + 2)
    parts = (-density, total - z * density, 3 * total - (z**3 + 3 * z) * density)
    first, second, fourth = ((number + 1) * np.diff(part) for part in parts)
    return first, second, fourth
