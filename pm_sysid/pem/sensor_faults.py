"""Offset, drift and delay of a sensor that no unknown stands for: whether the record shows them, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.filters import KalmanFilter, median_step
from pm_sysid.pem.objective import LogLikelihood, Objective
from pm_sysid.pem.uneven_noise import Samples
from pm_sysid.records.residual_tests import correlation, long_run
from pm_sysid.records.timeseries import TimeSeries

#: Standard errors by which a fault must differ from none to be told, and by which it must move an unknown.
SEEN, MOVED = 4.0, 0.5
#: Lags of the correlations by which an error of a mean is larger than that of white noise, for so many values each.
LAGS, EACH = 25, 4
#: Fewest measured values that show a fault, and the longest delay in sampling intervals that a straight line tells.
FEWEST, LATEST = 40, 3.0
#: Share of a fault that the unknowns must leave: rates of change by differences have errors of this size.
ALIKE = 1e-5
#: Outputs are moved by this share of their spread to see what a filter makes of a fault.
SMALL = 1e-4


class Fault(NamedTuple):
    """A fault of a sensor: in words, with its size; and the unknown that moves most with it, by how many standard errors."""

    words: str
    unknown: int
    moved: float


def sensor_fault(target: Objective, x: np.ndarray, stderr: np.ndarray, each: Samples) -> Fault | None:
    """The fault that would move an unknown most, of those that the record shows; None if it shows none that counts.

    A test of whether innovations are white says nothing of their mean, and the unknowns explain a part of an offset: a
    stiffness takes the mean of the output where a force has one. What is left is orthogonal to the unknowns.

    Parameters
    ----------
    target : Objective
    x, stderr : ndarray, shape (k,)
        The optimum and its standard errors.
    each : Samples
        Innovations and their derivatives there.

    Notes
    -----
    One more unknown, whose direction is what the fault makes of the innovations, by a step of Gauss and Newton; its errors are
    those of noise of any size (White) and of the correlations of what it leaves.
    """
    free = np.flatnonzero(np.isfinite(stderr) & (stderr > 0) & ~target.layout.positive)
    e, slope = each.standardised, each.slope[:, free]
    if not free.size or not isinstance(target.filter, KalmanFilter) or not (np.isfinite(e).all() and np.isfinite(slope).all()):
        return None
    scale = np.maximum(np.linalg.norm(slope, axis=0), 1e-300)
    found, rows = list[Fault](), np.nonzero(target.measured)[0]
    for words, size, largest, direction in _directions(target, x):
        step = np.linalg.lstsq(slope / scale, direction, rcond=1e-10)[0] / scale
        rest = direction - slope @ step
        length = float(rest @ rest)
        if not length > ALIKE * float(direction @ direction):
            continue
        by = float(rest @ e) / length
        noise = e - by * rest
        # Few values may have decided both, and look quiet then: by leverages, and by what is left of all.
        basis = np.linalg.qr(np.column_stack([slope / scale, direction / np.linalg.norm(direction)]))[0]
        leverage = np.minimum(np.sum(basis**2, axis=1), 0.999)
        freedom = max(len(e) - basis.shape[1], 1)
        together = np.bincount(rows, rest * noise / (1 - leverage))  # outputs may have noise in common
        variance = max(float(together @ together), length * float(noise @ noise) / freedom)
        error = np.sqrt(variance * _correlated(target, noise)) / length
        moved = np.abs(by * step) / stderr[free]
        if SEEN * error < abs(by) < largest and moved.max() > MOVED:
            most = int(np.argmax(moved))
            found.append(Fault(words.format(f"{by * size:.3g} ± {error * size:.1g}"), int(free[most]), float(moved[most])))
    return max(found, key=lambda f: f.moved, default=None)


def _correlated(target: Objective, e: np.ndarray) -> float:
    """By how much the squared errors of sums are larger than those of white noise, in the output where this is most; or one."""
    series, found, at = np.full(target.measured.shape, np.nan), [1.0], 0
    series[target.measured] = e
    for record in target.filter.records:
        for one in series[at : at + len(record)].T:
            n = int(np.isfinite(one).sum())
            if (lags := min(LAGS, n // EACH)) > 0 and np.nanstd(one) > 0:
                found.append(long_run(correlation(one, one, range(1, lags + 1))[0]))
        at += len(record)
    return float(np.max(found))


def _directions(target: Objective, x: np.ndarray) -> Iterator[tuple[str, float, float, np.ndarray]]:
    """Faults in words, the size of one in its unit, the largest that is told, and what one adds to the innovations (N,)."""
    filter, seen = target.filter, target.measured
    assert isinstance(filter, KalmanFilter)
    names, records = filter.system.outputs, filter.records
    y = np.concatenate([r.output_matrix for r in records])
    time = np.concatenate([2 * (r.t - r.t[0]) / max(float(np.ptp(r.t)), 1e-300) - 1 for r in records])
    of = np.repeat(np.arange(len(records)), [len(r) for r in records])
    freely = not filter.n_process or not target.layout.place(x)[0][len(filter.system.params) :][: filter.n_process].any()
    freely = freely and not filter.roots.any()
    values, _ = filter.run(*target.layout.place(x), target.layout.motion, target.want)
    m = seen.shape[1]
    std = np.sqrt(values[:, m : 2 * m]) if isinstance(target, LogLikelihood) else np.ones(seen.shape)
    predicted = np.where(seen, y - values[:, :m], np.nan)

    def added(pattern: np.ndarray, i: int) -> np.ndarray:
        """What a pattern (T,) in an output adds to the innovations."""
        whole = np.zeros(seen.shape)
        whole[:, i] = pattern
        if not freely:
            small = SMALL * max(float(np.nanstd(y[:, i])), 1e-300)
            moved = filter.with_outputs(y + small * whole).run(*target.layout.place(x), target.layout.motion, target.want)[0]
            whole = (moved[:, :m] - values[:, :m]) / small
        return np.asarray((whole / std)[seen])

    for i, name in enumerate(names):
        if np.count_nonzero(seen[:, i]) < FEWEST:
            continue
        for r in [-1, *range(len(records))] if len(records) > 1 else [-1]:
            here = np.ones(len(of)) if r < 0 else (of == r).astype(float)
            if np.count_nonzero(seen[:, i] & (here > 0)) < FEWEST:
                continue
            where = "" if r < 0 else f" in record {r}"
            yield f"an offset of {name}{where} ({{}})", 1.0, np.inf, added(here, i)
            yield f"a drift of {name}{where} ({{}} from beginning to end)", 2.0, np.inf, added(here * time, i)
        if freely and (late := _rates(predicted[:, i], records)) is not None:
            yield f"a delay of {name} ({{}} in time)", 1.0, LATEST * median_step(records), added(-late, i)


def _rates(predicted: np.ndarray, records: Sequence[TimeSeries]) -> np.ndarray | None:
    """Rates of change (T,) of an output as it was predicted, zero where it was not measured; None if too few are."""
    found, at = np.zeros(len(predicted)), 0
    for record in records:
        rows = np.arange(at, at + len(record))
        at += len(record)
        measured = rows[np.isfinite(predicted[rows])]
        if measured.size > 3:
            found[measured] = np.gradient(predicted[measured], record.t[measured - rows[0]])
    return found if found.any() else None
