"""Offset, drift and delay of sensors that no unknown stands for: whether the record shows them, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.filters import KalmanFilter, median_step
from pm_sysid.pem.objective import LogLikelihood, Objective
from pm_sysid.pem.one_more import Directions, OneMore
from pm_sysid.records.timeseries import TimeSeries

#: Standard errors by which a fault must differ from none to be told, and by which it must move an unknown.
SEEN, MOVED = 4.0, 0.5
#: The same for what the record may show, and what matters then.
PERHAPS, COUNTS = 3.0, 3.0
#: Where squared errors of sums of what is left are so many times as large as those of white noise, a fault is in doubt.
COLOURED = 2.0
#: Fewest measured values that show a fault, and the longest delay in sampling intervals that a straight line tells.
FEWEST, LATEST = 40, 3.0
#: Outputs may have a fault in common whose spreads differ by less than this factor.
OF_ONE_KIND = 10.0
#: Outputs are moved by this share of their spread to see what a filter makes of a fault.
SMALL = 1e-4


class Fault(NamedTuple):
    """A fault of a sensor in words, with its size; and the unknown that stands for it."""

    words: str
    seen: OneMore

    @property
    def sure(self) -> bool:
        """Whether the record shows it beyond doubt, and it leaves what is about white."""
        return abs(self.seen.size) > SEEN * self.seen.error and self.seen.correlated < COLOURED


def sensor_fault(target: Objective, x: np.ndarray, directions: Directions) -> Fault | None:
    """The fault that makes the record most likely, of those that it shows; None if it shows none that counts.

    A test of whether innovations are white says nothing of their mean, and the unknowns explain a part of an offset: a
    stiffness takes the mean of the output where a force has one. What is left is orthogonal to the unknowns.

    Parameters
    ----------
    target : Objective
    x : ndarray, shape (k,)
        The optimum.
    directions : Directions
        Of the innovations there.
    """
    if not directions.known or not isinstance(target.filter, KalmanFilter):
        return None
    found = list[Fault]()
    for words, unit, largest, direction in _directions(target, x):
        seen = directions.along(direction, PERHAPS)
        if seen is None or not abs(seen.size) < largest:
            continue
        shown = abs(seen.size) / seen.error if seen.error > 0 else np.inf
        if (shown > SEEN and seen.moved > MOVED) or (shown > PERHAPS and seen.moved > COUNTS):
            found.append(Fault(words.format(f"{seen.size * unit:.3g} ± {seen.error * unit:.1g}"), seen))
    return max(found, key=lambda f: (f.sure, f.seen.gain), default=None)


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

    def added(pattern: np.ndarray, *outputs: int) -> np.ndarray:
        """What a pattern (T,) in some outputs adds to the innovations."""
        whole = np.zeros(seen.shape)
        whole[:, outputs] = pattern[:, None]
        if not freely:
            small = SMALL * max(float(np.nanmin(np.nanstd(y[:, outputs], axis=0))), 1e-300)
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
            yield f"a delay of {name} ({{}} s)", 1.0, LATEST * median_step(records), added(-late, i)
    together = [i for i in range(len(names)) if np.count_nonzero(seen[:, i]) >= FEWEST]
    spread = np.nanstd(y[:, together], axis=0) if together else np.ones(1)
    if len(together) > 1 and spread.max() < OF_ONE_KIND * spread.min():
        every = " and ".join(names[i] for i in together)
        yield f"an offset of {every} ({{}} of each)", 1.0, np.inf, added(np.ones(len(of)), *together)
        yield f"a drift of {every} ({{}} of each from beginning to end)", 2.0, np.inf, added(time, *together)


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
