"""Whether residuals change over a record: a drift, a step or a disturbance in their level, a burst or a fading in their size.

Correlations between neighbours are averages over the whole record. What holds for a part of it alone is found by looking at
parts of many lengths, each compared with the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

type FloatArray = NDArray[np.float64]

#: Residuals are put together into at most this many sums; parts of the record consist of whole ones.
MOST = 1024
#: Orders of the residuals drawn at a time, at most, and how many that look more unsteady than the record end the drawing.
AT_A_TIME, AT_MOST, ENOUGH = 50, 500, 8


class Part(NamedTuple):
    """The part of a record in which residuals differ most from the rest.

    Attributes
    ----------
    start, stop : int
        Its samples, from ``start`` to before ``stop``.
    change : float
        For the level: mean there minus that of the rest, in standard deviations. For the size: standard deviation there over
        that of the rest.
    p : float
        Share of random orders of the same residuals in which some part differs as much; at least 1/501.
    """

    start: int
    stop: int
    change: float
    p: float


def level_part(residuals: FloatArray) -> Part:
    """Where the level of residuals (T,), NaN where missing, differs most from that of the rest: drifts, steps, disturbances.

    Examples
    --------
    >>> e = np.random.default_rng(1).standard_normal(500)
    >>> level_part(e).p > 0.05
    True
    >>> level_part(e + np.linspace(-0.5, 0.5, 500)).p < 0.01  # the sensor drifts
    True
    """
    where, e = _observed(residuals)
    part, p = _unlike(e)
    inside = _inside(len(e), part)
    change = (e[inside].mean() - e[~inside].mean()) / e.std()
    return Part(int(where[part[0]]), int(where[part[1] - 1]) + 1, float(change), p)


def size_part(residuals: FloatArray) -> Part:
    """Where the size of residuals (T,), NaN where missing, differs most from that of the rest: bursts, noise that fades.

    Ranks of the sizes count: squares have a tail so long that a few of them hide what the others say.

    Examples
    --------
    >>> e = np.random.default_rng(1).standard_normal(500)
    >>> size_part(e).p > 0.05
    True
    >>> size_part(np.linspace(0.7, 1.3, 500) * e).p < 0.01
    True
    """
    where, e = _observed(residuals)
    part, p = _unlike(_normal_scores(np.abs(e - np.median(e))))
    inside = _inside(len(e), part)
    with np.errstate(divide="ignore"):
        change = np.std(e[inside]) / np.std(e[~inside])
    return Part(int(where[part[0]]), int(where[part[1] - 1]) + 1, float(change), p)


def _observed(residuals: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Places and values of the residuals that are not missing."""
    where = np.flatnonzero(np.isfinite(residuals))
    return where, residuals[where]


def _normal_scores(x: FloatArray) -> FloatArray:
    """Quantiles of the normal distribution by the ranks of values."""
    return np.asarray(scipy.stats.norm.ppf(scipy.stats.rankdata(x) / (len(x) + 1)))


def _inside(length: int, part: tuple[int, int]) -> NDArray[np.bool_]:
    inside = np.zeros(length, dtype=bool)
    inside[part[0] : part[1]] = True
    return inside


def _unlike(x: FloatArray, seed: int = 0) -> tuple[tuple[int, int], float]:
    """The part whose mean differs most from that of the rest, and the p-value of there being such a part.

    Under the hypothesis all orders of the values are equally probable, so that those drawn give a p-value which needs no
    distribution. They are drawn until some differ more (Besag and Clifford 1991).
    """
    edges = np.linspace(0, len(x), min(MOST, len(x)) + 1).round().astype(int)
    count = np.diff(edges)
    sums = np.add.reduceat(x - x.mean(), edges[:-1]) / np.sqrt(count)
    deviation = float(np.sqrt(np.mean(sums**2)))
    if not deviation > 0:
        return (0, max(1, len(x) // 2)), 1.0
    sums = sums / deviation
    found, first, width = _largest(sums)
    part = int(edges[first]), int(edges[first + width])
    rng, drawn, more = np.random.default_rng(seed), 0, 0
    while drawn < AT_MOST and more < ENOUGH:
        orders = rng.permuted(np.tile(sums, (AT_A_TIME, 1)), axis=1)
        more += int(np.sum(_statistics(orders).max(axis=1) >= found))
        drawn += AT_A_TIME
    return part, (1 + more) / (1 + drawn)


def _widths(n: int) -> list[int]:
    """Lengths of the parts: two, four, ... up to a half. A single value that differs is an outlier, and has other tests."""
    return [2**i for i in range(1, n.bit_length()) if 2 * 2**i <= n] or [1]


def _statistics(values: FloatArray) -> FloatArray:
    """How much the parts (B, widths) of series (B, n) of mean zero and variance one differ at most, by their length.

    Short parts are many, and differ by chance: as much as is usual among n / width is subtracted (Duembgen and Spokoiny 2001).
    """
    n = values.shape[1]
    ends = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    found = [_scores(ends, w, n).max(axis=1) - np.sqrt(2 * np.log(n / w)) for w in _widths(n)]
    return np.stack(found, axis=1)


def _scores(ends: FloatArray, width: int, n: int) -> FloatArray:
    """Standard scores (B, n - width + 1) of the sums of all parts of a length, given that all values sum to zero."""
    return np.asarray(np.abs(ends[:, width:] - ends[:, :-width]) / np.sqrt(width * (1 - width / n)))


def _largest(values: FloatArray) -> tuple[float, int, int]:
    """The largest statistic of a series (n,), and where its part begins and how long it is."""
    n = len(values)
    of_widths = _statistics(values[None])[0]
    i = int(np.argmax(of_widths))
    width = _widths(n)[i]
    scores = _scores(np.concatenate([[0.0], np.cumsum(values)])[None], width, n)[0]
    return float(of_widths[i]), int(np.argmax(scores)), width
