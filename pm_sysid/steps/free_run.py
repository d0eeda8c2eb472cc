"""Free runs: what the integration methods share, a step of any of them as a recurrence over the samples of a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytensor.scalar.basic as psb
from pytensor.graph.basic import Variable

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.steps.grid import FilterInputs, StepGrid, substep_grid
from pm_sysid.symbolic.scalars import Scalar, as_variable, mul, sub, substitute, switch, symbols
from pm_sysid.symbolic.system import System

#: What a run puts out at every sample: outputs, then states; or the squares of the errors of the outputs.
type RunOutput = Literal["run", "squares"]


def free_run(system: System, substep: Phase, output: RunOutput, name: str) -> Recurrence:
    """Recurrence of a step: outputs, then states, at every sample; or the squares of the errors of the outputs.

    With ``output="squares"`` the measurement follows the inputs of a sample; the square is zero where it is missing, and
    infinite where the solution has diverged. A sample reads ``t`` and the inputs right after the sample.
    """
    x = system.x
    rates = dict(zip(system.dx, system.f, strict=True))
    outputs = substitute(system.g, rates)
    y = symbols("y", len(outputs) if output == "squares" else 0)
    results = [_square(a, b) for a, b in zip(outputs, y, strict=True)] if y else [*outputs, *x]
    return Recurrence(
        Phase.build([], system.p, x, x),
        substep,
        Phase.build(x, system.p, [system.t, *system.u, *y], [*x, *results]),
        n_carry=len(x),
        n_params=len(system.p),
        name=name if output == "run" else f"{name} squares",
    )


def _square(value: Scalar, y: Variable) -> Scalar:
    """Squared error of a value against a measurement."""
    error = sub(value, y)
    square = mul(error, error)
    lost = psb.isnan(as_variable(value))
    return switch(psb.isnan(y), 0.0, switch(lost, math.inf, square))


def run_inputs(record: TimeSeries, substeps: int | StepGrid, nodes: Sequence[float], slope: bool) -> FilterInputs:
    """Evaluate a record's inputs where a step needs them.

    Parameters
    ----------
    substeps : int or StepGrid
        Steps in a sampling interval of median length; or the steps themselves.
    nodes : sequence of float
        Places in a step, from 0 to 1, at which it evaluates the equations. A step reads the time at its start, its length,
        the inputs at each node (the ends taken from inside the sampling interval), and then their time derivatives at its
        start if ``slope``.
    """
    counts, interval, begin, end, h = substep_grid(record, substeps)
    rows = [(record.t[interval] + begin * np.diff(record.t)[interval])[:, None], h[:, None]]
    width = end - begin if isinstance(substeps, StepGrid) else 1.0 / counts[interval + 1]
    places = [end if c == 1.0 else np.clip(begin + c * width, 0.0, 1.0) for c in nodes]
    rows += [record.input_at(interval, place) for place in places]
    if slope:
        rows.append(record.input_at(interval, places[0], 1))
    here = np.arange(len(record))
    samples = np.concatenate([record.t[:, None], record.input_at(here, 0.0)], axis=1)
    return FilterInputs(counts, np.empty((1, 0)), np.concatenate(rows, axis=1), samples, float(np.median(h)) if h.size else 1.0)
