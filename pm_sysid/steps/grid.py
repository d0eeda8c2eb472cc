"""What a record becomes for a filter: substep counts and the rows of input values each phase reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pm_sysid.records.timeseries import TimeSeries


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


def substep_grid(record: TimeSeries, substeps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut sampling intervals into substeps.

    Intervals longer than the median one (gaps) get proportionally more, so that no substep is much longer than the rest.

    Returns
    -------
    counts : numpy.ndarray, shape (T,)
        Substeps before each sample; zero before the first.
    interval : numpy.ndarray, shape (N,)
        Sampling interval of each substep.
    fraction : numpy.ndarray, shape (N + 1 boundaries are implied,)
        Position of the end of each substep in its interval, in (0, 1].
    """
    dt = record.dt
    if record.uniform or dt.size == 0:
        counts = np.full(len(record), substeps, dtype=np.int64)
    else:
        counts = np.ones(len(record), dtype=np.int64)
        counts[1:] = np.maximum(1, np.ceil(substeps * dt / np.median(dt) * (1 - 1e-9)))
    counts[0] = 0
    per = counts[1:]
    interval = np.repeat(np.arange(per.size), per)
    within = np.arange(per.sum()) - np.repeat(np.cumsum(per) - per, per)
    return counts, interval, (within + 1) / np.repeat(per, per)


def filter_inputs(
    records: Sequence[TimeSeries], *, substeps: int, n_levels: int, jumps: bool, smoothness: int | None, uniform: bool
) -> FilterInputs:
    """Evaluate the inputs of records where a filter needs them.

    Parameters
    ----------
    records : sequence of TimeSeries
    substeps : int
        Substeps of a sampling interval of median length.
    n_levels : int
        Levels of input derivatives a start needs.
    jumps : bool
        Whether samples carry the two sides of a jump.
    smoothness : int or None
        Order of the first input derivative that jumps.
    uniform : bool
        Whether all substeps of all records are equally long.
    """
    grids = [substep_grid(r, substeps) for r in records]
    lengths = [np.diff(r.t)[i] / c[i + 1] if i.size else i for r, (c, i, _) in zip(records, grids, strict=True)]
    lengths = [
        np.full(n.size, r.dt[0] / substeps) if r.uniform and n.size else n for r, n in zip(records, lengths, strict=True)
    ]
    everything = np.concatenate(lengths)
    step = float(np.median(everything)) if everything.size else 1.0
    starts, rows, samples, counts = [], [], [], []
    for number, (record, (count, interval, fraction)) in enumerate(zip(records, grids, strict=True)):
        T, first = len(record), np.zeros(1, dtype=int)
        starts.append(np.concatenate([record.t[:1, None], *(record.input_at(first, 0.0, j) for j in range(n_levels))], axis=1))
        time = record.t[interval] + fraction * np.diff(record.t)[interval] if interval.size else np.empty(0)
        columns = [time[:, None], record.input_at(interval, fraction)]
        if not uniform:
            columns.append(lengths[number][:, None] / step)
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
