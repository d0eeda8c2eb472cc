"""The initial state: given, partly given, or read off the first samples of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, number
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.by_record import start_by_record
from pm_sysid.solve.checks import spread_numbers, vector_entries
from pm_sysid.steps.sensors import PLAIN, Sensors
from pm_sysid.symbolic.names import Names
from pm_sysid.symbolic.scales import not_negative
from pm_sysid.symbolic.system import System

#: Samples a straight line is fitted to for the initial value and slope of a measured state.
FIRST_SAMPLES = 5


def infer_state(system: System, record: TimeSeries) -> tuple[dict[str, float], dict[str, float]]:
    """Initial values and standard deviations of the states that an output shows.

    A state is *shown* if an output reads it directly, or reads another state of its chain. The value and, for the next
    state of the chain, the slope of a line through the first samples are the means; the standard deviations are those the
    state has over the record (for states that are integrals of what is measured, from the dominant frequency), so that
    the prior is wide beside what the first samples tell.

    Returns
    -------
    mean, std : dict
        By state name; states no output shows are absent.
    """
    mean: dict[str, float] = {}
    std: dict[str, float] = {}
    for chain in system.kinematic_chains:
        shown = _shown(system, chain)
        if shown is None:
            continue
        level, column = shown
        y = record.output_matrix[:, column]
        seen = np.flatnonzero(~np.isnan(y))
        if seen.size < 2:
            continue
        t, y = record.t[seen], y[seen]
        rate = np.gradient(y, t)
        deviation, rate_deviation = _deviation(y), _deviation(rate)
        omega = rate_deviation / deviation
        n = min(FIRST_SAMPLES, seen.size)
        slope, value = np.polyfit(t[:n] - record.t[0], y[:n], 1)
        for k, s in enumerate(chain):
            name = system.states[s]
            mean[name] = value if k == level else slope if k == level + 1 else 0.0
            std[name] = deviation * omega ** (k - level)
    return mean, std


def _check_first_samples(system: System, record: TimeSeries, sensors: Sensors, need: Sequence[str]) -> None:
    """Refuse to read a state off samples at a limit, which say only that it is at least there."""
    caught = sensors.censored(record.output_matrix)
    for chain in system.kinematic_chains:
        states, level = [system.states[s] for s in chain if system.states[s] in need], _shown(system, chain)
        if not states or level is None:
            continue
        column = level[1]
        first = np.flatnonzero(~np.isnan(record.output_matrix[:, column]))[:FIRST_SAMPLES]
        if caught[first, column].any():
            example = ", ".join(f"{s!r}: ..." for s in states)
            raise ValueError(
                f"x0 is not given for the states {states}, and cannot be inferred: {caught[first, column].sum()} of the first "
                f"{len(first)} samples of {system.outputs[column]!r} are at a limit, where the state may be far beyond; give "
                f"x0 and x0_std for them, wide enough for what you know: x0={{{example}}}, x0_std={{{example}}}."
            )


def check_measured_early(system: System, record: TimeSeries, need: Sequence[str]) -> None:
    """Refuse to read a state off samples that come long after the first one.

    A line through them says nothing of where the motion was, nor does the spread of what was measured: a decaying motion was
    far larger. With such a prior of the start the parameters follow it.

    Raises
    ------
    ValueError
        If the first measured sample comes later than the first few measured ones last.
    """
    for chain in system.kinematic_chains:
        states, level = [system.states[s] for s in chain if system.states[s] in need], _shown(system, chain)
        if not states or level is None:
            continue
        seen = np.flatnonzero(~np.isnan(record.output_matrix[:, level[1]]))
        if seen.size < 2:
            continue
        first, last = record.t[seen[[0, min(FIRST_SAMPLES, seen.size) - 1]]]
        if first - record.t[0] > last - first:
            example = ", ".join(f"{s!r}: ..." for s in states)
            raise ValueError(
                f"x0 is not given for the states {states}, and cannot be inferred: the first {seen[0]} samples of "
                f"{system.outputs[level[1]]!r} are missing, and where the motion was so long before the first measured one is "
                f"not known. Let the record begin there, record[{seen[0]}:], or give x0 and x0_std for these states, wide "
                f"enough for what you know: x0={{{example}}}, x0_std={{{example}}}."
            )


def _deviation(values: np.ndarray) -> float:
    """Root mean square deviation from the mean, never zero."""
    return float(np.std(values)) or max(abs(float(values[0])), 1.0) * 1e-3


def _shown(system: System, chain: Sequence[int]) -> tuple[int, int] | None:
    """Lowest level of a chain that an output reads directly, and that output's column."""
    candidates = [(k, j) for k, s in enumerate(chain) for j, g in enumerate(system.g) if g is system.x[s]]
    candidates += [(k + 1, j) for k, s in enumerate(chain) for j, g in enumerate(system.g) if g is system.dx[s]]
    return min(candidates, default=None)


def initial_state(
    system: System, record: TimeSeries, x0: Any, x0_std: Any, *, hidden: str = "raise", sensors: Sensors = PLAIN
) -> tuple[list[Any], list[Any]]:
    """Mean and standard deviation of every state at the first sample.

    Parameters
    ----------
    system, record
        System and one record.
    x0 : None, number, mapping, sequence or vector
        Given values; entries may be numbers or PyMC variables. A number is given to every state. States that are not
        given are inferred.
    x0_std : None, number, mapping or sequence
        Standard deviations. By default zero for states that are given, and wide for those inferred.
    hidden : {"raise", "zero"}
        What to do with a state that is neither given nor shown by an output.
    sensors : Sensors, optional
        Limits of the outputs: no state is inferred where one of the first samples is at a limit.

    Returns
    -------
    mean, std : list
        One entry a state.
    """
    given = entries_by_state(system, "x0", x0)
    given_std = entries_by_state(system, "x0_std", x0_std)
    need = [s for s in system.states if s not in given]
    if need and sensors.limited:
        _check_first_samples(system, record, sensors, need)
    if hidden == "raise":
        check_measured_early(system, record, need)
    mean, std = infer_state(system, record) if need else ({}, {})
    unknown = [s for s in need if s not in mean]
    if unknown and hidden == "raise":
        example = ", ".join(f"{s!r}: 0.0" for s in unknown)
        raise ValueError(
            f"x0 is not given for the states {unknown}, and cannot be inferred: no output reads them directly, or fewer than "
            f"two of its values were measured. Give them, for example x0={{{example}}} for a record that starts at rest (and "
            "x0_std if they are uncertain)."
        )
    values, deviations = [], []
    for s in system.states:
        values.append(given.get(s, mean.get(s, 0.0)))
        deviations.append(given_std.get(s, 0.0 if s in given else std.get(s, 0.0)))
    for s, d in zip(system.states, deviations, strict=True):
        if not isinstance(d, Variable) and not (np.isfinite(d) and d >= 0):
            raise ValueError(f"x0_std of {s!r} is {d!r}; it must be finite and not negative.")
    return values, [not_negative(d) for d in deviations]


def entries_by_state(system: System, what: str, value: Any) -> dict[str, Any]:
    """What was given of an initial state, by state name; states that were not given are absent."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        value = system.states.spread(what, spread_numbers(system.states, value))
        unknown = [k for k in value if not among(k, system.states)]
        if unknown:
            raise ValueError(f"{what} names the states {unknown}, which the system does not have: {system.states}.")
        entries = dict(value)
    elif isinstance(value, Variable):
        entries = dict(zip(system.states, vector_entries(what, value, system.states), strict=True))
    elif not np.iterable(value) or isinstance(value, str | bytes):
        entries = dict.fromkeys(system.states, number(value, what, "give a finite number, one for each state, or a dict"))
    else:
        items = list(value)
        if len(items) != len(system.states):
            raise ValueError(f"{what} has {len(items)} entries; give one for each state {system.states}, or a dict.")
        entries = dict(zip(system.states, items, strict=True))
    for s, v in entries.items():
        if isinstance(v, Variable):
            if v.type.ndim:  # type: ignore[attr-defined]
                raise ValueError(f"{what} of {s!r} has {v.type.ndim} dimensions; give a scalar variable.")  # type: ignore[attr-defined]
        else:
            entries[s] = number(v, f"{what} of {s!r}", "it must be finite")
    return entries


@dataclass(frozen=True)
class StartSpec:
    """What a user said about the initial state of each record."""

    x0: tuple[Any, ...]
    x0_std: tuple[Any, ...]

    @classmethod
    def of(cls, x0: Any, x0_std: Any, n_records: int, states: Names) -> StartSpec:
        """One entry a record: several records take a list or a mapping of arrays, anything else holds for all."""

        def for_each(what: str, value: Any) -> tuple[Any, ...]:
            if (rows := start_by_record(states, what, value, n_records)) is not None:
                return tuple(rows)
            if n_records == 1 or not isinstance(value, list | tuple):
                return (value,) * n_records
            if len(value) != n_records:
                raise ValueError(f"{what} has {len(value)} entries for {n_records} records; give a list with one for each.")
            if any(not isinstance(v, Mapping) and np.ndim(v) == 0 for v in value if v is not None):
                raise ValueError(f"{what} is {value!r}: for several records, give each a dict or a vector of its states.")
            return tuple(value)

        return cls(for_each("x0", x0), for_each("x0_std", x0_std))

    def states(
        self, system: System, records: Sequence[TimeSeries], sensors: Sensors = PLAIN
    ) -> tuple[list[list[Any]], list[list[Any]]]:
        """Means and standard deviations, one row a record."""
        given = zip(records, self.x0, self.x0_std, strict=True)
        rows = [initial_state(system, r, a, b, sensors=sensors) for r, a, b in given]
        return [mean for mean, _ in rows], [std for _, std in rows]

    def numeric(self) -> StartSpec:
        """The same with zeros for variables, which live in the model's graph."""
        return StartSpec(tuple(map(_plain, self.x0)), tuple(map(_plain, self.x0_std)))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return 0.0 if isinstance(value, Variable) else value
