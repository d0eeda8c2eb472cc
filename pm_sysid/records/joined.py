"""Several records as one: what a likelihood observes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pm_sysid.records.timeseries import TimeSeries


class Joined(NamedTuple):
    """Measurements of records that follow each other: ``y`` (T, n_y), and ``time`` (T,), the labels of their samples.

    ``time`` is in seconds for one record; several overlap in time, so that their samples have running numbers. ``flat``
    says that the user gave vectors, so that what is observed is a vector, too.
    """

    y: np.ndarray
    time: np.ndarray
    flat: bool

    @property
    def observed(self) -> np.ndarray:
        """Measurements in the shape the user gave them, (T,) or (T, n_y)."""
        return self.y[:, 0] if self.flat else self.y


def joined(records: Sequence[TimeSeries]) -> Joined:
    """Join records along time."""
    y = np.concatenate([r.output_matrix for r in records])
    time = records[0].t if len(records) == 1 else np.arange(len(y))
    return Joined(y, time, all(r.y is not None and r.y.ndim == 1 for r in records))
