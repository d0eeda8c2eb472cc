"""The deterministic simulator: the classical Runge-Kutta step as a scalar graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import pytensor.scalar.basic as psb
from pytensor.graph.basic import Variable

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.recurrence.run import compiled_batch
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.grid import FilterInputs, substep_grid
from pm_sysid.symbolic.scalars import Scalar, add, as_variable, div, mul, sub, substitute, switch, symbol, symbols, untraced
from pm_sysid.symbolic.system import System


@lru_cache(maxsize=64)
@untraced()
def rk4_recurrence(system: System, output: Literal["run", "squares"] = "run") -> Recurrence:
    """Free run of a system as a recurrence: outputs, then states, at every sample.

    With ``output="squares"`` it puts out the squares of the errors of the outputs instead: zero where the measurement,
    which follows the inputs of a sample, is missing, and infinite where the solution has diverged.

    A substep reads ``t, h`` and the inputs at its start, middle and end, the ends taken from inside the sampling
    interval; a sample reads ``t`` and the inputs right after the sample.
    """
    x = symbols("x", len(system.states))
    start, step = symbol("start"), symbol("step")
    u0, u1, u2 = (symbols(f"u{i}_", len(system.u)) for i in range(3))

    def slope(t: Scalar, state: Sequence[Scalar], u: Sequence[Scalar]) -> list[Scalar]:
        at = {system.t: t, **dict(zip(system.x, state, strict=True)), **dict(zip(system.u, u, strict=True))}
        return substitute(system.f, at)

    def along(k: Sequence[Scalar], weight: Scalar) -> list[Scalar]:
        return [add(a, mul(weight, b)) for a, b in zip(x, k, strict=True)]

    half = mul(0.5, step)
    k1 = slope(start, x, u0)
    k2 = slope(add(start, half), along(k1, half), u1)
    k3 = slope(add(start, half), along(k2, half), u1)
    k4 = slope(add(start, step), along(k3, step), u2)
    sums = [add(a, mul(2.0, b), mul(2.0, c), d) for a, b, c, d in zip(k1, k2, k3, k4, strict=True)]
    new = along(sums, div(step, 6.0))

    at = dict(zip(system.x, x, strict=True))
    rates = substitute(system.f, at)
    outputs = substitute(system.g, {**at, **dict(zip(system.dx, rates, strict=True))})
    y = symbols("y", len(outputs) if output == "squares" else 0)
    results = [_square(a, b) for a, b in zip(outputs, y, strict=True)] if y else [*outputs, *x]
    return Recurrence(
        Phase.build([], system.p, system.x, system.x),
        Phase.build(x, system.p, [start, step, *u0, *u1, *u2], new),
        Phase.build(x, system.p, [system.t, *system.u, *y], [*x, *results]),
        n_carry=len(x),
        n_params=len(system.p),
        name="RK4" if output == "run" else "RK4 squares",
    )


def _square(value: Scalar, y: Variable) -> Scalar:
    """Squared error of a value against a measurement."""
    error = sub(value, y)
    square = mul(error, error)
    lost = psb.isnan(as_variable(value))
    return switch(psb.isnan(y), 0.0, switch(lost, math.inf, square))


def rk4_inputs(record: TimeSeries, substeps: int) -> FilterInputs:
    """Evaluate a record's inputs where the Runge-Kutta step needs them."""
    counts, interval, end = substep_grid(record, substeps)
    per = counts[interval + 1]
    begin = end - 1.0 / per
    lengths = np.diff(record.t)[interval]
    h = np.full(interval.size, record.dt[0] / substeps) if record.uniform and interval.size else lengths / per
    rows = [(record.t[interval] + begin * lengths)[:, None], h[:, None]]
    rows += [record.input_at(interval, np.clip(part, 0.0, 1.0)) for part in (begin, begin + 0.5 / per, end)]
    here = np.arange(len(record))
    samples = np.concatenate([record.t[:, None], record.input_at(here, 0.0)], axis=1)
    return FilterInputs(counts, np.empty((1, 0)), np.concatenate(rows, axis=1), samples, float(np.median(h)) if h.size else 1.0)


def run_batch(
    system: System, theta: np.ndarray, start: np.ndarray, inputs: FilterInputs, y: np.ndarray | None = None
) -> np.ndarray:
    """Free runs of many parameter sets on the inputs of a record, as arrays.

    Parameters
    ----------
    theta : ndarray, shape (N, P)
        Parameters.
    start : ndarray, shape (N, n_x)
        Initial states.
    inputs : FilterInputs
        From :func:`rk4_inputs`.
    y : ndarray, shape (T, n_y), optional
        Measurements, NaN where missing: return the sums of squared errors instead of the runs.

    Returns
    -------
    ndarray, shape (N, T, n_y + n_x) or (N, 1, n_y)
        Outputs, then states; or the sums over time of the squared errors of the outputs.
    """
    T, starts = len(inputs.counts), np.ascontiguousarray(start[:, None])
    run = compiled_batch(rk4_recurrence(system, "run" if y is None else "squares"))
    edges, samples = np.arange(T + 1), inputs.samples
    if y is not None:
        edges, samples = np.array([0, T]), np.concatenate([samples, y], axis=1)
    return run(completed_sets(system, theta), starts, edges, inputs.counts, inputs.substeps, samples)[0]
