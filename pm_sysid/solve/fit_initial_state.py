"""The initial state from which a free run meets the first measurements best."""

from __future__ import annotations

import numpy as np
import scipy

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.run_substeps import EqualSteps, RunSteps
from pm_sysid.steps.grid import FilterInputs, StepGrid
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
    inputs = _inputs(first, steps)

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


def _inputs(first: TimeSeries, steps: RunSteps | EqualSteps) -> FilterInputs:
    """Inputs of the beginning of a record where the steps need them."""
    substeps = steps.substeps.first(len(first) - 1) if isinstance(steps.substeps, StepGrid) else steps.substeps
    return method_inputs(first, substeps, steps.method)


def drawn_starts(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    steps: RunSteps | EqualSteps,
    free: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Initial states of runs with parameters of their own, drawn from what the first samples say of each.

    Each is the state of least squares for its parameters, by one step of Gauss and Newton from ``start``, and an error with the
    covariance of least squares, by the size of what the run of the mean parameters leaves of each output.

    Parameters
    ----------
    theta : ndarray, shape (N, P)
        Parameters.
    start : ndarray, shape (N, n_x)
        Their states so far; the entries that are free are those of :func:`fitted_start` for the mean parameters.
    free : ndarray of bool, shape (n_x,)
        States that are drawn.
    rng : numpy.random.Generator
    system, record, steps
        As for :func:`fitted_start`.

    Returns
    -------
    ndarray, shape (N, n_x)
        ``start``, where nothing is measured or runs are not finite.
    """
    first, n_y, moving = record[:FIRST], len(system.outputs), np.flatnonzero(free)
    y = first.output_matrix
    seen = np.isfinite(y)
    if not moving.size or seen.sum() <= moving.size:
        return start
    inputs = _inputs(first, steps)

    def left(parameters: np.ndarray, states: np.ndarray) -> np.ndarray:
        """What runs leave of the measurements, (N, T, n_y), zero where nothing is measured."""
        runs = run_batch(system, parameters, np.ascontiguousarray(states), inputs, method=steps.method)[..., :n_y]
        return np.where(seen, y - runs, 0.0)

    mean, middle = theta.mean(axis=0), start.mean(axis=0)
    size = np.maximum(np.abs(middle[moving]), np.std(y[seen]))
    shift = np.zeros((len(moving), len(start[0])))
    shift[np.arange(len(moving)), moving] = STEP * np.where(size > 0, size, 1.0)
    around = np.concatenate([middle[None], middle + shift, middle - shift])
    errors = left(np.tile(mean, (len(around), 1)), around)
    if not np.isfinite(errors).all():
        return start
    deviations = np.sqrt(np.sum(errors[0] ** 2, axis=0) / np.maximum(seen.sum(axis=0) - moving.size / n_y, 1.0))
    weight = np.where(deviations > 0, 1 / np.where(deviations > 0, deviations, 1.0), 0.0)
    n = len(moving)
    slopes = ((errors[n + 1 :] - errors[1 : n + 1]) * weight).reshape(n, -1).T / (2 * STEP)  # by shifts of one size
    u, s, vt = np.linalg.svd(slopes, full_matrices=False)
    told = s > 1e-8 * s[0]  # directions of which the samples say something
    scale = np.diag(shift[:, moving]) / STEP
    whole = left(theta, start) * weight
    finite = np.isfinite(whole).all(axis=(1, 2))
    along = np.where(finite[:, None], whole.reshape(len(theta), -1), 0.0) @ (u[:, told] / s[told])
    moved = start.copy()
    moved[:, moving] += along @ vt[told] * scale
    after = np.sum((left(theta, moved) * weight) ** 2, axis=(1, 2))
    with np.errstate(invalid="ignore"):
        better = finite & (after <= np.sum(whole**2, axis=(1, 2)))
    result = np.where(better[:, None], moved, start)
    result[:, moving] += rng.standard_normal((len(theta), int(told.sum()))) / s[told] @ vt[told] * scale
    return result
