"""What a record becomes for a filter: substep counts and the rows of input values each phase reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pm_sysid.records.timeseries import TimeSeries

#: Most steps of a record whose sampling intervals differ: one long gap would ask for more than any memory holds.
MOST_STEPS = 20_000_000


class FilterInputs(NamedTuple):
    """Arrays a filter reads from one or more records (sampling intervals cut into substeps).

    ``counts`` (T,), ``starts`` (R, n) without the initial state, ``substeps`` (N, n), ``samples`` (T, n) without the
    measurements, and the reference ``step`` in seconds.
    """

    counts: np.ndarray
    starts: np.ndarray
    substeps: np.ndarray
    samples: np.ndarray
    step: float


@dataclass(frozen=True, eq=False)
class StepGrid:
    """Steps of any lengths in the sampling intervals of a record.

    Parameters
    ----------
    counts : ndarray of int, shape (T - 1,)
        Steps in each interval, at least one.
    ends : ndarray, shape (sum(counts),)
        Where each step ends, as a share of its interval: rising to 1 in every interval.
    """

    counts: np.ndarray
    ends: np.ndarray

    @classmethod
    def equal(cls, counts: np.ndarray) -> StepGrid:
        """Steps of one length in each interval."""
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return cls(counts, (within + 1) / np.repeat(counts, counts))

    @property
    def begins(self) -> np.ndarray:
        """Where each step begins, as a share of its interval."""
        begins = np.concatenate([[0.0], self.ends[:-1]])
        begins[np.cumsum(self.counts) - self.counts] = 0.0
        return begins

    @property
    def total(self) -> int:
        """Number of steps in all intervals."""
        return int(self.counts.sum())

    def first(self, n: int) -> StepGrid:
        """Steps of the first n intervals."""
        counts = self.counts[:n]
        return StepGrid(counts, self.ends[: counts.sum()])

    def refined(self, n: int) -> StepGrid:
        """Every step cut into n."""
        parts = np.arange(1, n + 1) / n
        ends = self.begins[:, None] + (self.ends - self.begins)[:, None] * parts
        ends[:, -1] = self.ends
        return StepGrid(self.counts * n, ends.ravel())

    def refined_in(self, intervals: np.ndarray, n: int) -> StepGrid:
        """Every step of some intervals (T - 1,), which are true, cut into n."""
        times = np.repeat(np.where(intervals, n, 1), self.counts)
        part = np.arange(1, times.sum() + 1) - np.repeat(np.cumsum(times) - times, times)
        begins, ends = (np.repeat(v, times) for v in (self.begins, self.ends))
        share = part / np.repeat(times, times)
        return StepGrid(self.counts * np.where(intervals, n, 1), np.where(share == 1.0, ends, begins + (ends - begins) * share))


class Substeps(NamedTuple):
    """Sampling intervals of a record cut into substeps, of which there are N.

    ``counts`` (T,), zero before the first sample; for each substep the number of its ``interval``, its ``begin`` and ``end`` as
    shares of it, and its ``length`` in seconds, each (N,).
    """

    counts: np.ndarray
    interval: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    length: np.ndarray


def equal_counts(record: TimeSeries, substeps: int) -> np.ndarray:
    """Steps in each sampling interval (T - 1,) that are about as long as ``substeps`` in one of median length."""
    per, dt = _equal(record, substeps), record.dt
    if per.sum() > MOST_STEPS and not record.uniform:
        usual = np.median(record.ordinary_dt)
        raise ValueError(
            f"substeps is {substeps} for a sampling interval of median length ({usual:.3g}), which makes "
            f"{per.sum():.3g} steps of equal length in all, since the longest interval is {np.max(dt):.3g}; give an array with "
            "a number of steps for each interval, or 'auto' for steps that follow the solution."
        )
    return per.astype(np.int64)


def equal_total(record: TimeSeries, substeps: int) -> float:
    """Number of steps in a record that are about as long as ``substeps`` in an interval of median length; any number."""
    return float(_equal(record, substeps).sum())


def _equal(record: TimeSeries, substeps: int) -> np.ndarray:
    dt = record.dt
    if record.uniform or dt.size == 0:
        return np.full(dt.size, float(substeps))
    return np.maximum(float(substeps), np.ceil(substeps * dt / np.median(record.ordinary_dt) * (1 - 1e-9)))


def substep_grid(record: TimeSeries, substeps: int | StepGrid) -> Substeps:
    """Cut sampling intervals into substeps.

    With a number, intervals longer than the median one (gaps) get proportionally more, so that no substep is much longer than
    the rest.

    Raises
    ------
    ValueError
        If the steps belong to another record, or would be too many.
    """
    dt = record.dt
    if isinstance(substeps, StepGrid):
        per = substeps.counts
        if per.shape != dt.shape:
            raise ValueError(
                f"substeps hold {per.size} sampling intervals, and the record has {dt.size}; give one grid for each."
            )
        interval = np.repeat(np.arange(per.size), per)
        begin, end = substeps.begins, substeps.ends
        counts = np.concatenate([[0], per]).astype(np.int64)
        return Substeps(counts, interval, begin, end, np.diff(record.t)[interval] * (end - begin))
    per = equal_counts(record, substeps)
    counts = np.concatenate([[0], per])
    interval = np.repeat(np.arange(per.size), per)
    within = np.arange(per.sum()) - np.repeat(np.cumsum(per) - per, per)
    each = np.repeat(per, per)
    end = (within + 1) / each
    regular = record.uniform and interval.size
    length = np.full(interval.size, dt[0] / substeps) if regular else np.diff(record.t)[interval] / each
    return Substeps(counts, interval, end - 1.0 / each, end, length)


def filter_inputs(
    records: Sequence[TimeSeries],
    *,
    substeps: int | Sequence[StepGrid],
    n_levels: int,
    jumps: bool,
    smoothness: int | None,
    uniform: bool,
) -> FilterInputs:
    """Evaluate the inputs of records where a filter needs them.

    Parameters
    ----------
    records : sequence of TimeSeries
    substeps : int or sequence of StepGrid
        Substeps of a sampling interval of median length; or the steps of each record.
    n_levels : int
        Levels of input derivatives a start needs.
    jumps : bool
        Whether samples carry the two sides of a jump.
    smoothness : int or None
        Order of the first input derivative that jumps.
    uniform : bool
        Whether all substeps of all records are equally long.
    """
    each: list[int | StepGrid] = [substeps] * len(records) if isinstance(substeps, int) else list(substeps)
    grids = [substep_grid(r, n) for r, n in zip(records, each, strict=True)]
    everything = np.concatenate([g.length for g in grids])
    step = float(np.median(everything)) if everything.size else 1.0
    starts, rows, samples, counts = [], [], [], []
    for number, (record, (count, interval, _, fraction, lengths)) in enumerate(zip(records, grids, strict=True)):
        T, first = len(record), np.zeros(1, dtype=int)
        starts.append(np.concatenate([record.t[:1, None], *(record.input_at(first, 0.0, j) for j in range(n_levels))], axis=1))
        time = record.t[interval] + fraction * np.diff(record.t)[interval] if interval.size else np.empty(0)
        columns = [time[:, None], record.input_at(interval, fraction)]
        if not uniform:
            columns.append(lengths[:, None] / step)
        rows.append(np.concatenate(columns, axis=1))
        here, left = np.arange(T), np.maximum(np.arange(T) - 1, 0)
        at_end = (here > 0).astype(float)
        columns = [record.t[:, None], record.input_at(here, 0.0)]
        if jumps:
            assert smoothness is not None
            columns += [record.input_at(here, 0.0, j) for j in range(1, smoothness)]
            columns.append(record.input_at(left, at_end, smoothness))
            if smoothness:
                columns.append(record.input_at(here, 0.0, smoothness))
        samples.append(np.concatenate(columns, axis=1))
        counts.append(count if number == 0 else np.concatenate([[-1], count[1:]]))
    return FilterInputs(np.concatenate(counts), np.concatenate(starts), np.concatenate(rows), np.concatenate(samples), step)
