"""Initial states that obey the relations of a system: of given ones it is checked, uncertain ones are moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from pytensor.graph import graph_inputs
from pytensor.graph.basic import Constant, Variable

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.by_record import params_by_record
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.relations import CONTRADICTION, Consistent, consistent_start, misfit
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.names import Names
from pm_sysid.symbolic.scalars import as_variable, evaluate, symbols, untraced
from pm_sysid.symbolic.system import System


def check_start(
    system: System,
    records: Sequence[TimeSeries],
    params: Mapping[str, Any],
    x0: Sequence[Sequence[Any]],
    x0_std: Sequence[Sequence[Any]],
) -> None:
    """Refuse an initial state of numbers that contradicts a relation; variables that do are impossible parameters.

    Parameters
    ----------
    params : mapping
        As in ``ODEFilter``, checked.
    x0, x0_std : sequences
        Mean and standard deviation of each state for each record; numbers or variables.
    """
    if not system.relations:
        return
    given = {k: v for k, v in params.items() if not _varies(v)}
    base = system.base  # relations see nothing of the processes
    numbers = {k: given.get(k, np.zeros(base.params.shapes.get(k, ()))) for k in params}
    theta = np.atleast_2d(params_by_record(base, numbers, len(records)).eval())
    sets = np.broadcast_to(completed_sets(base, theta), (len(records), len(base.p)))
    known = {s for s, name in zip(base.own, base.params, strict=True) if name in given or Names.owner(name) in given}
    if len(known) == len(base.own):
        known |= set(base.p)
    known |= {system.t, *system.u}
    for r, (record, mean, std) in enumerate(zip(records, x0, x0_std, strict=True)):
        certain = [not _varies(m) and not _varies(s) and s == 0 for m, s in zip(mean, std, strict=True)]
        here = known | {x for x, sure in zip(system.x, certain, strict=False) if sure}
        values = _first_values(system, record) | dict(zip(base.p, map(float, sets[r]), strict=True))
        values |= {x: float(m) if sure else 0.0 for x, m, sure in zip(system.x, mean, certain, strict=False)}
        for name, relation in zip(system.relation_names, system.relations, strict=True):
            reads = {v for v in graph_inputs([as_variable(relation)]) if not isinstance(v, Constant)}
            if not reads <= here:
                continue
            states = list(system.x[: len(mean)])
            gap, size = evaluate(misfit(relation, jacobian([relation], states)[0], states, {}), values)
            if not gap <= CONTRADICTION * size:
                which = f" of data[{r}]" if len(records) > 1 else ""
                listed = ", ".join(f"{n} = {m!r}" for n, m in zip(system.states, mean, strict=True))
                raise ValueError(
                    f"x0 contradicts {name!r} of the system's relations, which is {gap:.3g} in size at the first sample{which} "
                    f"and not zero ({listed}); give an initial state that obeys it to six digits, or x0_std for the states "
                    "that are uncertain."
                )


def consistent_points(problem: Problem, records: Sequence[TimeSeries], at: Sequence[Unknowns]) -> list[Unknowns]:
    """Numbers for the unknowns, with the initial states moved onto the relations as far as they are uncertain."""
    system, free = problem.system, problem.form.free
    if not (system.relations and free):
        return list(at)
    std, start = _start_graph(system, free)
    moved = []
    for point in at:
        rows = []
        for r, record in enumerate(records):
            params = completed_sets(system, np.atleast_2d(point.params_of(r)))[0]
            values = _first_values(system, record) | dict(zip(system.p, map(float, params), strict=True))
            values |= dict(zip(system.x, map(float, point.x0[r]), strict=False))
            values |= dict(zip(std, map(float, point.x0_std[r]), strict=True))
            rows.append(evaluate(start.mean, values))
        moved.append(point._replace(x0=np.array(rows)))
    return moved


@lru_cache(maxsize=64)
@untraced()
def _start_graph(system: System, free: tuple[int, ...]) -> tuple[list[Variable], Consistent]:
    """Symbols of the standard deviations, and the initial state that obeys the relations."""
    std = symbols("std", len(system.states))
    return std, consistent_start(system, system.x[: len(std)], std, free)


def _first_values(system: System, record: TimeSeries) -> dict[Variable, float]:
    """Time and inputs at the first sample."""
    u = record.input_at(np.zeros(1, dtype=int), 0.0)[0]
    return {system.t: float(record.t[0])} | dict(zip(system.u, map(float, u), strict=True))


def _varies(value: Any) -> bool:
    """Whether there is a variable in a value."""
    if isinstance(value, Variable):
        return True
    return isinstance(value, list | tuple) and any(map(_varies, value))
