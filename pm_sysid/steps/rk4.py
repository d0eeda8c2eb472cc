"""The classical Runge-Kutta step as a scalar graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.steps.free_run import RunOutput, free_run, run_inputs
from pm_sysid.steps.grid import FilterInputs, StepGrid
from pm_sysid.symbolic.scalars import Scalar, add, div, mul, substitute, symbol, symbols, untraced
from pm_sysid.symbolic.system import System

#: Places in a step at which it evaluates the equations.
NODES = (0.0, 0.5, 1.0)


@lru_cache(maxsize=64)
@untraced()
def rk4_recurrence(system: System, output: RunOutput = "run") -> Recurrence:
    """Free run of a system as a recurrence; see :func:`~pm_sysid.steps.free_run.free_run`.

    A substep reads ``t, h`` and the inputs at its start, middle and end.
    """
    start, step = symbol("start"), symbol("step")
    nodes = [symbols(f"u{i}_", len(system.u)) for i in range(len(NODES))]
    new = rk4_step(system, start, step, nodes)
    inputs = [start, step, *(u for node in nodes for u in node)]
    return free_run(system, Phase.build(system.x, system.p, inputs, new), output, "RK4")


def rk4_step(system: System, start: Scalar, step: Scalar, nodes: Sequence[Sequence[Scalar]]) -> list[Scalar]:
    """States after a step, by those before (the symbols of the system) and the inputs at its start, middle and end."""
    x = system.x
    u0, u1, u2 = nodes

    def slope(t: Scalar, state: Sequence[Scalar], u: Sequence[Scalar]) -> list[Scalar]:
        at = {system.t: t, **dict(zip(x, state, strict=True)), **dict(zip(system.u, u, strict=True))}
        return substitute(system.f, at)

    def along(k: Sequence[Scalar], weight: Scalar) -> list[Scalar]:
        return [add(a, mul(weight, b)) for a, b in zip(x, k, strict=True)]

    half = mul(0.5, step)
    k1 = slope(start, x, u0)
    k2 = slope(add(start, half), along(k1, half), u1)
    k3 = slope(add(start, half), along(k2, half), u1)
    k4 = slope(add(start, step), along(k3, step), u2)
    sums = [add(a, mul(2.0, b), mul(2.0, c), d) for a, b, c, d in zip(k1, k2, k3, k4, strict=True)]
    return along(sums, div(step, 6.0))


def rk4_inputs(record: TimeSeries, substeps: int | StepGrid) -> FilterInputs:
    """Evaluate a record's inputs where the Runge-Kutta step needs them."""
    return run_inputs(record, substeps, NODES, slope=False)
