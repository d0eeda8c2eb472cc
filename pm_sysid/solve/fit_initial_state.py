"""The initial state from which a free run meets the first measurements best."""

from __future__ import annotations

import numpy as np
import scipy

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.run_substeps import EqualSteps, RunSteps
from pm_sysid.steps.grid import StepGrid
from pm_sysid.steps.integrate import method_inputs, run_batch
from pm_sysid.symbolic.system import System

#: Samples that are looked at: the trace of the initial state in a stable system is gone after a few periods.
FIRST = 500
#: Samples the search begins with; it doubles them, since over many the error of a nonlinear system has several minima.
FEWEST = 10
#: Step of difference quotients, as a share of a state's standard deviation.
STEP = 1e-5


def fitted_start(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    steps: RunSteps | EqualSteps,
    free: np.ndarray | None = None,
) -> np.ndarray:
    """Initial state by least squares over the first samples, each output weighted by its standard deviation.

    Parameters
    ----------
    system, record
        The record has outputs.
    theta : ndarray, shape (P,)
        Parameters.
    start : ndarray, shape (n_x,)
        Where the search begins.
    steps : RunSteps or EqualSteps
        How to integrate.
    free : ndarray of bool, shape (n_x,), optional
        States that may move; by default all.

    Returns
    -------
    ndarray, shape (n_x,)
        The state found, or ``start`` if nothing is measured or the run is not finite there.
    """
    first, n_y = record[:FIRST], len(system.outputs)
    y = first.output_matrix
    seen, moving = np.isfinite(y), np.flatnonzero(np.ones(len(start), bool) if free is None else free)
    if not seen.any() or not moving.size:
        return start
    substeps = steps.substeps.first(len(first) - 1) if isinstance(steps.substeps, StepGrid) else steps.substeps
    inputs = method_inputs(first, substeps, steps.method)

    def runs(starts: np.ndarray) -> np.ndarray:
        return run_batch(system, np.tile(theta, (len(starts), 1)), starts, inputs, method=steps.method)

    guess = runs(start[None])[0]
    if not np.isfinite(guess).all():
        return start
    # States that stay where they are have the scale of what they are, or one.
    scale = np.maximum(guess[:, n_y:].std(axis=0), 1e-6 * np.abs(start))
    scale = np.where(scale > 0, scale, 1.0)[moving]
    with np.errstate(invalid="ignore"):
        weight = 1 / np.maximum(np.nanstd(np.where(seen, y, np.nan), axis=0), np.finfo(float).tiny)

    def place(z: np.ndarray) -> np.ndarray:
        whole = np.tile(start, (*z.shape[:-1], 1))
        whole[..., moving] = start[moving] + z * scale
        return whole

    def residuals(z: np.ndarray, until: int) -> np.ndarray:
        error = ((runs(place(z[None]))[0, :until, :n_y] - y[:until]) * weight)[seen[:until]]
        return np.nan_to_num(error, nan=1e6, posinf=1e6, neginf=-1e6)

    def slopes(z: np.ndarray, until: int) -> np.ndarray:
        moved = runs(place(np.concatenate([z + STEP * np.eye(len(z)), z - STEP * np.eye(len(z))])))[..., :n_y] * weight
        difference = (moved[: len(z)] - moved[len(z) :])[:, :until] / (2 * STEP)
        return np.nan_to_num(difference[:, seen[:until]].T, nan=0.0, posinf=0.0, neginf=0.0)

    z = np.zeros(moving.size)
    until = max(FEWEST, 4 * len(start))
    while True:
        until = min(until, len(first))
        if seen[:until].sum() >= moving.size:
            z = scipy.optimize.least_squares(residuals, z, slopes, max_nfev=50, args=(until,)).x
        if until == len(first):
            break
        until *= 2
    better = np.sum(residuals(z, until) ** 2) < np.sum(residuals(np.zeros_like(z), until) ** 2)
    return place(z) if better else start
