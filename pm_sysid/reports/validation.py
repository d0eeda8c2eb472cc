"""Records that were not used for the fit, and how models run free on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pm_sysid.arguments import count, number, shown, whole
from pm_sysid.records.timeseries import TimeSeries


@dataclass(frozen=True, eq=False)
class Validation:
    """Records of validation and their free runs, for ``report(..., validation=...)`` and :func:`compare_models`.

    Parameters
    ----------
    records : TimeSeries or sequence of them, optional
        Records that were not used for the fit, with outputs; of one that was, reports say so, and call nothing good. Without
        any, a report uses the settings below for the free runs on the record of the fit alone.
    runs : int, default 100
        Number of free runs on each record, each with the parameters of one posterior draw; on the record of the fit at most
        50.
    x0 : mapping by state, or number, optional
        Initial state on each record, in the units of the states; a model takes what states of its own it finds, or one number
        for all of them. By default the one that fits the first samples, as for :func:`predict`.
    record : int, optional
        Where the records of the fit have parameters of their own: those of which record, as for :func:`predict`.
    params : mapping, optional
        Values of parameters that are not those of the filter, as for :func:`predict`.
    skip : float, default 0
        Seconds at the beginning of each record that are not scored.

    Raises
    ------
    TypeError, ValueError
        If a record has no outputs, or a setting is not of its kind.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> record = sid.TimeSeries(np.arange(100) / 50.0, None, np.zeros(100))
    >>> sid.Validation(record, runs=50, skip=0.5).skip
    0.5
    """

    records: TimeSeries | Sequence[TimeSeries] = ()
    runs: int = 100
    x0: Mapping[str, Any] | float | None = None
    skip: float = 0.0
    record: int | None = None
    params: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        for record in self.all:
            if not isinstance(record, TimeSeries):
                raise TypeError(f"validation holds the record {shown(record)}; give a TimeSeries, or a list of them.")
            if record.y is None:
                raise ValueError("a record of validation has no outputs, so that nothing can be compared; give its y.")
        count(self.runs, "runs")
        number(self.skip, "skip", "give seconds, such as 0.5")
        if self.record is not None and not whole(self.record, 0):
            raise TypeError(f"record is {shown(self.record)}; give the number of a record of the fit, from 0, or None.")
        if not isinstance(self.params, Mapping | None):
            raise TypeError(f"params is {shown(self.params)}; give a dict of values by name, or None.")
        if isinstance(self.x0, int | float | np.number) and not isinstance(self.x0, bool):
            number(self.x0, "x0", "give a number for all states, or a dict of numbers by state")
        elif not isinstance(self.x0, Mapping | None):
            raise TypeError(
                f"x0 is {shown(self.x0)}; give a dict of numbers by state, a number for all, or None to fit the first samples."
            )

    def start_of(self, states: Collection[str]) -> dict[str, Any]:
        """The initial values of some states that are given."""
        if self.x0 is None:
            return {}
        if isinstance(self.x0, Mapping):
            return {name: value for name, value in self.x0.items() if name in states}
        return dict.fromkeys(states, self.x0)

    @property
    def all(self) -> tuple[TimeSeries, ...]:
        """The records, however they were given."""
        several = isinstance(self.records, list | tuple)
        records: Any = self.records if several else [self.records]
        return tuple(records)

    @classmethod
    def of(cls, value: Any) -> Validation:
        """Settings as they are; anything else are the records, and None is no record."""
        return value if isinstance(value, cls) else cls(() if value is None else value)
