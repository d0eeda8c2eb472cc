"""Methods of free runs by name: their recurrences, what they read of a record, and runs of many parameter sets."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import Recurrence
from pm_sysid.recurrence.run import compiled_batch
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.free_run import RunOutput
from pm_sysid.steps.grid import FilterInputs, StepGrid
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence
from pm_sysid.steps.rosenbrock import rosenbrock_inputs, rosenbrock_recurrence
from pm_sysid.symbolic.system import System

#: The classical Runge-Kutta method, and a Rosenbrock method for stiff equations.
type Method = Literal["rk4", "implicit"]
#: What the methods are called in results, and their steps in words.
INTEGRATORS: dict[Method, str] = {"rk4": "RK4", "implicit": "Rodas5P"}
STEPS: dict[Method, str] = {"rk4": "Runge-Kutta steps", "implicit": "implicit steps"}


def run_recurrence(system: System, method: Method, output: RunOutput = "run") -> Recurrence:
    """Free run of a system by a method as a recurrence: outputs, then states, at every sample."""
    return rk4_recurrence(system, output) if method == "rk4" else rosenbrock_recurrence(system, output)


def method_inputs(record: TimeSeries, substeps: int | StepGrid, method: Method) -> FilterInputs:
    """Evaluate a record's inputs where the step of a method needs them."""
    return rk4_inputs(record, substeps) if method == "rk4" else rosenbrock_inputs(record, substeps)


def run_batch(
    system: System,
    theta: np.ndarray,
    start: np.ndarray,
    inputs: FilterInputs,
    y: np.ndarray | None = None,
    method: Method = "rk4",
) -> np.ndarray:
    """Free runs of many parameter sets on the inputs of a record, as arrays.

    Parameters
    ----------
    theta : ndarray, shape (N, P)
        Parameters.
    start : ndarray, shape (N, n_x)
        Initial states.
    inputs : FilterInputs
        From :func:`method_inputs`.
    y : ndarray, shape (T, n_y), optional
        Measurements, NaN where missing: return the sums of squared errors instead of the runs.
    method : {"rk4", "implicit"}
        For which the inputs were evaluated.

    Returns
    -------
    ndarray, shape (N, T, n_y + n_x) or (N, 1, n_y)
        Outputs, then states; or the sums over time of the squared errors of the outputs.
    """
    T, starts = len(inputs.counts), np.ascontiguousarray(start[:, None])
    run = compiled_batch(run_recurrence(system, method, "run" if y is None else "squares"))
    edges, samples = np.arange(T + 1), inputs.samples
    if y is not None:
        edges, samples = np.array([0, T]), np.concatenate([samples, y], axis=1)
    return run(completed_sets(system, theta), starts, edges, inputs.counts, inputs.substeps, samples)[0]
