"""Whether what a free run leaves was pushed into the states or added by sensors: by a Kalman filter with process noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from pm_sysid.pem.filters import KalmanFilter, Motion
from pm_sysid.pem.objective import LogLikelihood, Objective, SquaredErrors
from pm_sysid.pem.step_error import newton_step

#: Sizes of the pushes that are tried: standard deviation of an output's prediction that they make, over its innovations.
SIZES = np.geomspace(3e-3, 3.0, 25)


def gain_by_process_noise(objective: Objective, x: np.ndarray) -> float:
    """How much more likely innovations of a free run are if random pushes move its states: twice the log-likelihood ratio.

    Of linear equations it is zero: pushes then are noise of the outputs that is correlated in time, and nothing else.

    Each chain of states is pushed in its highest derivative, all by what makes the same error of the next prediction, and all
    outputs have noise in proportion to their innovations. Parameters move by one step; the size of all noise has its
    best value.
    """
    filter, measured = objective.filter, objective.measured
    assert isinstance(filter, KalmanFilter)
    system, m = filter.system, measured.shape[1]
    # Parameters of single records, or that walk, are states that are not pushed.
    if system.linear or not filter.form.certain or any(isinstance(f, float) for f in system.f):
        return 0.0
    params, x0 = objective.layout.place(x)
    p, n = len(system.params), len(system.states)
    form = replace(filter.form, sigma=None, full_process=False, full_noise=False, certain=False)
    pushed = KalmanFilter(system, form, filter.records, filter.substeps, np.zeros((len(filter.records), n, n)))
    errors = np.where(measured, objective.outputs(x[None])[0][:, :m], np.nan)
    sizes = np.sqrt(np.nansum(errors**2, axis=0) / np.maximum(measured.sum(axis=0), 1))
    sizes = np.where(sizes > 0, sizes, 1.0)  # of an output that is never measured, or that no noise reaches
    top = [p + chain[-1] for chain in system.chain_states]

    def run(process: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Innovations (S, N) and their variances for sizes of pushes (S, chains)."""
        points = np.zeros((len(process), p + n + m))
        points[:, :p], points[:, p + n :] = params[:p], sizes
        points[:, top] = process
        starts = np.broadcast_to(x0, (len(points), *x0.shape))
        values = pushed.run_many(points, starts, Motion.none(points.shape[1], x0), "densities")[0]
        return values[:, :, :m][:, measured], values[:, :, m:][:, measured]

    def growth(chain: int, process: np.ndarray) -> np.ndarray:
        """By how much pushes of a chain (S, 1) make the variances (S, N) larger."""
        variances = run(process * np.eye(len(top))[chain])[1]
        return np.asarray(variances / np.broadcast_to(sizes, measured.shape)[measured] ** 2 - 1.0)

    with np.errstate(all="ignore"):
        unit = np.array([_unit(partial(growth, chain)) for chain in range(len(top))])
        pushes = np.concatenate([[0.0], SIZES])[:, None] * unit
        e, s = run(pushes)
        sizes_of_all = np.mean(e**2 / s, axis=1)
        deviance = np.sum(np.log(s), axis=1) + e.shape[1] * np.log(sizes_of_all)
        best = int(np.argmin(np.where(np.isfinite(deviance), deviance, np.inf)))
        if best == 0 or not np.isfinite(deviance[0]):
            return 0.0
        # Parameters that suit the pushes are others: what one step towards them gains counts, too.
        at, size = np.zeros(p + n + m), np.sqrt(sizes_of_all[best])
        at[:p], at[top], at[p + n :] = params[:p], pushes[best] * size, sizes * size
        calm = np.zeros(p + n + m)
        calm[:p], calm[p + n :] = params[:p], sizes * np.sqrt(sizes_of_all[0])
        layout = objective.layout.without_noise(at, x0)
        free = x[~objective.layout.positive]
        if isinstance(objective, SquaredErrors) and m > 1:  # a step would gain by other weights of the outputs
            return float(deviance[0] - deviance[best])
        lower = [_lower(LogLikelihood(pushed, each), free) for each in (layout, layout.without_noise(calm, x0))]
    return float(deviance[0] - deviance[best] + 2 * max(lower[0] - lower[1], 0.0))


def _unit(growth: Callable[[np.ndarray], np.ndarray]) -> float:
    """Size of pushes that doubles a prediction's variance, which grows with the square of small ones; zero where none does."""
    tried = np.geomspace(1e-15, 1e15, 61)
    each = np.nan_to_num(growth(tried[:, None]), nan=np.inf, posinf=np.inf)
    reached = np.any(each > 1e-9, axis=0)
    if not reached.any():
        return 0.0
    grown = np.median(each[:, reached], axis=1)
    small = np.flatnonzero((grown > 1e-9) & (grown < 1e-2))
    return float(tried[small[-1]] / np.sqrt(grown[small[-1]])) if small.size else 0.0


def _lower(likelihood: LogLikelihood, x: np.ndarray) -> float:
    """By how much a step towards the best parameters lowers an objective."""
    lower = newton_step(likelihood.evaluate(x), x, np.arange(x.size))[1]
    return lower if np.isfinite(lower) else 0.0
