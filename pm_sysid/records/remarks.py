"""What a record shows against how it is used: inputs that are held, outputs that stand still, and what inputs do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pm_sysid.records.residual_tests import correlation
from pm_sysid.records.timeseries import TimeSeries

#: Of an input that is held: fewest samples that say anything, least share of steps without a change, and of changes that are
#: followed by none.
FEWEST, STILL, ALONE = 20, 0.5, 0.9
#: Fewest changes that make a pattern.
CHANGES = 4
#: Samples at the largest or the smallest value: fewest, least share, and the share of them that any value between may have.
AT_LIMIT, SHARE_AT_LIMIT, BETWEEN = 5, 0.02, 0.2
#: Chance below which values that follow each other are not alike by chance, and the rounding of floating point numbers.
NEVER, ROUNDING = 1e-3, 1e-12
#: Steps before and after values that are alike which tell how often others are, and the chance from which on these are many.
NEAR, COARSE = 5, 0.25
#: A turn in radians and in degrees; the shares of it that all values span, and a jump has, at least; the share that other steps
#: have at most, and the least share of values in the middle half.
TURNS, SPAN, FULL, HALF_WAY, MIDDLE = (2 * np.pi, 360.0), 0.95, 0.85, 0.5, 0.1
#: Other long runs of one value from which on they are no accident.
FEW_RUNS = 2
#: Lags over which innovations and inputs are compared, the order of what whitens them, and the chance of following each other.
LAGS, ORDER, FOLLOWS = 25, 5, 1e-3
#: What comes first is clear where the other side is weaker than this share of the strongest correlation.
CLEAR = 0.7


def held(records: Sequence[TimeSeries]) -> str:
    """Which inputs keep their values over runs of samples, though the record says that they vary between samples; in words.

    Examples
    --------
    >>> t = np.arange(60.0)
    >>> u = np.repeat(np.random.default_rng(0).normal(size=12), 5)
    >>> held([TimeSeries(t, u, inputs="F")])[:52]
    'F keeps its value over runs of samples, as an input '
    >>> held([TimeSeries(t, u, inputs="F", intersample="zoh"), TimeSeries(t, np.sin(t), inputs="F")])
    ''
    """
    found = dict[str, str]()
    for record in records:
        if record.intersample == "zoh" or len(record) < FEWEST:
            continue
        for name, u in zip(record.inputs, record.input_matrix.T, strict=True):
            changes = np.diff(u) != 0
            if changes.sum() >= CHANGES and np.mean(changes) <= 1 - STILL:
                followed = changes[1:][changes[:-1]]
                if np.mean(~followed) >= ALONE:
                    found.setdefault(name, record.intersample)
    if not found:
        return ""
    names, how = " and ".join(found), next(iter(found.values()))
    return (
        f"{names} keeps its value over runs of samples, as an input that is held does (intersample='zoh'); the record says "
        f"intersample={how!r}, which moves it before it changes."
    )


class Limit(NamedTuple):
    """An output of which some ``samples`` are exactly the ``which`` (largest or smallest) value, ``level``.

    ``record``: the one in which they are, or -1 for all together.
    """

    output: str
    level: float
    which: str
    samples: int
    record: int


def limits_of(records: Sequence[TimeSeries]) -> list[Limit]:
    """Outputs of which many samples are exactly the largest or the smallest value, of all records or of one."""
    found = list[Limit]()
    for r in [-1, *range(len(records))] if len(records) > 1 else [-1]:
        own = records if r < 0 else records[r : r + 1]
        for name, values in zip(records[0].outputs, np.concatenate([x.output_matrix for x in own]).T, strict=True):
            levels, counts = np.unique(values[np.isfinite(values)], return_counts=True)
            if counts.sum() < FEWEST or len(levels) < 4:
                continue
            between = counts[1:-1].max()
            for count, level, which in ((counts[-1], levels[-1], "largest"), (counts[0], levels[0], "smallest")):
                known = any(x.output == name and x.level == level for x in found)
                if not known and count >= max(AT_LIMIT, SHARE_AT_LIMIT * counts.sum(), between / BETWEEN):
                    found.append(Limit(name, float(level), which, int(count), r))
    return found


def at_a_limit(records: Sequence[TimeSeries]) -> str:
    """What :func:`limits_of` finds, in words.

    Examples
    --------
    >>> t = np.linspace(0, 20, 200)
    >>> y = np.sin(t) + 0.01 * np.random.default_rng(0).normal(size=200)
    >>> at_a_limit([TimeSeries(t, y=np.minimum(y, 0.8))])[:52]
    '41 samples of y are exactly its largest value, 0.8: '
    >>> at_a_limit([TimeSeries(t, y=y)]), at_a_limit([TimeSeries(t, y=y.round(1))])
    ('', '')
    """
    said = []
    for x in limits_of(records):
        where = "" if x.record < 0 else f" in record {x.record}"
        said.append(f"{x.samples} samples of {x.output}{where} are exactly its {x.which} value, {x.level:.6g}")
    if not said:
        return ""
    remedy = "where a sensor ends there, and the model does not, mark them as missing (NaN), or use ODEFilter(limits=...)."
    return f"{'; '.join(said)}: {remedy}"


def wrapped(records: Sequence[TimeSeries]) -> str:
    """Outputs that jump by a whole turn, as an angle does that is kept within one; in words.

    Examples
    --------
    >>> t = np.linspace(0, 20, 200)
    >>> angle = 0.9 * t + 0.01 * np.random.default_rng(0).normal(size=200)
    >>> wrapped([TimeSeries(t, y=np.angle(np.exp(1j * angle)), outputs="phi")])[:52]
    'phi jumps by a whole turn (6.283) 3 times, as an ang'
    >>> wrapped([TimeSeries(t, y=angle)]), wrapped([TimeSeries(t, y=np.sign(np.sin(angle)) * np.pi)])
    ('', '')
    """
    said = []
    for i, name in enumerate(records[0].outputs):
        columns = [r.output_matrix[:, i] for r in records]
        known = [y[np.isfinite(y)] for y in columns]
        span = np.ptp(np.concatenate(known)) if sum(map(len, known)) >= FEWEST else 0.0
        steps = np.abs(np.concatenate([np.diff(y) for y in known]))
        for turn in TURNS:
            jumps = steps > FULL * turn
            turns = SPAN * turn < span < turn / SPAN and jumps.sum() >= 2
            if turns and not jumps.all() and not np.any(steps[~jumps] > HALF_WAY * turn):
                values = np.concatenate(known)
                off = np.abs(values - (values.min() + values.max()) / 2)
                # Unlike a switch, an angle is between the ends as well.
                if np.mean(off < span / 4) > MIDDLE:
                    said.append(f"{name} jumps by a whole turn ({turn:.4g}) {int(jumps.sum())} times")
    if not said:
        return ""
    return (
        f"{'; '.join(said)}, as an angle that is kept within one: if it is one, let it go on (np.unwrap), or measure its sine "
        "and cosine, so that errors are those of the angle."
    )


def stood_still(records: Sequence[TimeSeries]) -> str:
    """Outputs that keep one value over more samples than their resolution explains, as those of a logger that stood; in words.

    Examples
    --------
    >>> t = np.linspace(0, 20, 200)
    >>> y = np.sin(t) + 0.01 * np.random.default_rng(0).normal(size=200)
    >>> stood = y.copy()
    >>> stood[50:58] = stood[50]
    >>> stood_still([TimeSeries(t, y=stood)])[:62]
    '8 samples of y from 5.02513 on have the same value, -0.947921:'
    >>> stood_still([TimeSeries(t, y=y)]), stood_still([TimeSeries(t, y=y.round(1))])
    ('', '')
    """
    said = []
    for record in records:
        for name, values in zip(record.outputs, record.output_matrix.T, strict=True):
            there = np.flatnonzero(np.isfinite(values))
            y = values[there]
            if len(y) < FEWEST or not np.ptp(y) > 0:
                continue
            steps = np.diff(y)
            ends = np.flatnonzero(steps != 0)
            lengths = np.diff(np.concatenate([[-1], ends, [len(y) - 1]]))
            longest = int(np.argmax(lengths))
            length, begin = int(lengths[longest]), int(ends[longest - 1]) + 1 if longest else 0
            around = np.concatenate([steps[max(0, begin - NEAR) : begin], steps[begin + length - 1 :][:NEAR]])
            alike = max(float(np.mean(around == 0)), _chance_alike(y, around))
            # At the limits of a sensor, and at rest, of which steps around tell, values are the same for another reason.
            # Where more runs are long, as in backlash, it is the system that stands still.
            others = int(np.sum(lengths >= max(3, length / 3))) - 1
            within = others < FEW_RUNS and 0 < begin < len(y) - length and y.min() < y[begin] < y.max()
            if within and alike < COARSE and len(y) * alike ** (length - 1) < NEVER:
                at = f"from {record.t[there[begin]]:.6g} on"
                said.append(f"{length} samples of {name} {at} have the same value, {y[begin]:.6g}")
    if not said:
        return ""
    return f"{'; '.join(said)}: where a logger stood still, mark them as missing (NaN), and check the times after them."


def _chance_alike(y: NDArray[np.float64], around: NDArray[np.float64]) -> float:
    """Chance that two samples between steps like those ``around`` have one value: by the resolution, if there is one."""
    apart = np.diff(np.unique(y))
    smallest = float(apart[apart > ROUNDING * np.abs(y).max()].min(initial=np.inf))
    counts = (y - y.min()) / smallest
    if not np.isfinite(smallest) or np.abs(counts - np.round(counts)).max() > 0.01:
        return ROUNDING
    return min(1.0, smallest / max(float(np.median(np.abs(around))), smallest))


class Following(NamedTuple):
    """The strongest correlation of innovations with an input, by how many samples this is earlier (``lag``), and its chance.

    ``clear``: whether none is nearly as strong on the other side, as it is where an input is periodic.
    """

    input: str
    lag: int
    p: float
    clear: bool = True

    def words(self, *, coloured: bool) -> str:
        """What it means for a free run whose innovations are correlated in time, or are not."""
        misses = "the model misses a part of its effect"
        answers = "it answers to the output (feedback)"
        if self.lag > 0 and self.clear:
            return f"The innovations follow {self.input} (p = {self.p:.1g}): {misses}."
        later = self.lag < 0 and self.clear
        seen = f"The innovations are correlated with {'later ' if later else ''}{self.input} (p = {self.p:.1g})"
        why = answers if later else f"{misses}, or {answers}"
        if not coloured:  # white noise that is fed back leaves a free run right
            return f"{seen}: {why}."
        return (
            f"{seen}: {why}. Fed back, noise that is correlated in time makes a free run biased, and standard errors do not "
            "hold: predict with the measured output, predictor=ExtendedKalman(Q=..., R=...)."
        )


def following(errors: NDArray[np.float64], record: TimeSeries) -> Following | None:
    """Whether innovations (T,) of an output, NaN where missing, are correlated with an input before, at or after them.

    Notes
    -----
    Source: Haugh (1976), Journal of the American Statistical Association 71, 378-385. An autoregression whitens the
    innovations, and is applied to the inputs as well: coloured innovations and slow inputs are correlated by chance.
    """
    n = int(np.isfinite(errors).sum())
    lags = min(LAGS, n // 4)
    if lags <= ORDER or not np.nanstd(errors) > 0:
        return None
    own = np.concatenate([[1.0], correlation(errors, errors, range(1, ORDER + 1))[0]])
    own *= 1.0 - np.arange(ORDER + 1) / n  # positive definite
    whitener = np.concatenate([[1.0], -scipy.linalg.solve_toeplitz(own[:-1], own[1:])])
    white, found = np.convolve(errors, whitener, "valid"), []
    for name, u in zip(record.inputs, record.input_matrix.T, strict=True):
        moved = np.convolve(u, whitener, "valid")
        if not np.ptp(moved) > 1e-9 * np.abs(u).max() or np.isfinite(white).sum() <= lags:
            continue
        r, pairs = correlation(white, moved, range(-lags, lags + 1))
        z = np.abs(r) * np.sqrt(pairs)
        best = int(np.argmax(z))
        chance = float(2 * scipy.stats.norm.sf(z[best]))
        other = z[:lags] if best > lags else z[lags + 1 :]
        clear = best == lags or bool(other.max() < CLEAR * z[best])
        found.append(Following(name, best - lags, min(1.0, chance * len(r) * len(record.inputs)), clear))
    first = min(found, key=lambda f: f.p, default=None)
    return first if first is not None and first.p < FOLLOWS else None
