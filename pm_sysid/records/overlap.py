"""Samples that a record shares with others: what was used for a fit cannot validate it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pm_sysid.records.timeseries import TimeSeries

#: Consecutive samples that have to be the same; and how many of them have to differ from the one before, since records of an
#: experiment that was repeated are the same while they rest.
STRETCH, MOVING = 50, 25


def shared_samples(record: TimeSeries, others: Sequence[TimeSeries]) -> int:
    """Count the samples of a record that stand in others, too, in stretches with the same inputs and outputs.

    Times are not compared, so that a part of a record is found when it begins at zero again.

    Examples
    --------
    >>> t, rng = np.arange(100) / 50, np.random.default_rng(1)
    >>> record = TimeSeries(t, np.sin(t), rng.standard_normal(100))
    >>> part, new = record[70:], record.replace(y=rng.standard_normal(100))
    >>> shared_samples(part.replace(t=t[:30]), [record]), shared_samples(new, [record])
    (30, 0)
    """
    length = min([STRETCH, len(record), *map(len, others)])
    if length < 3:
        return 0
    moving = min(MOVING, length - 1)
    known = {key for other in others for key in _stretches(other, length, moving).values()}
    found = np.zeros(len(record), dtype=bool)
    for start, key in _stretches(record, length, moving).items():
        if key in known:
            found[start : start + length] = True
    return int(found.sum())


def _stretches(record: TimeSeries, length: int, moving: int) -> dict[int, int]:
    """Hash of every stretch in which enough outputs change, by where it starts."""
    rows = np.hstack([record.input_matrix, record.output_matrix]) + 0.0  # no negative zeros
    rows[np.isnan(rows)] = np.nan  # of one kind
    y = record.output_matrix
    changed = np.concatenate([[0], np.cumsum((y[1:] != y[:-1]).any(axis=1) & np.isfinite(y[1:]).any(axis=1))])
    data, width = np.ascontiguousarray(rows).tobytes(), rows.shape[1] * rows.itemsize
    starts = range(len(rows) - length + 1)
    return {i: hash(data[i * width : (i + length) * width]) for i in starts if changed[i + length - 1] - changed[i] >= moving}
