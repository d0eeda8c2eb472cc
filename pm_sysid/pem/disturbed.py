"""Whether what a free run leaves was pushed into the states or added by sensors: by a Kalman filter with process noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pm_sysid.pem.filters import KalmanFilter, Motion
from pm_sysid.pem.objective import LogLikelihood, Objective
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
    if system.linear:
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

    with np.errstate(all="ignore"):
        noise = np.broadcast_to(sizes, measured.shape)[measured]
        # By tiny pushes a prediction's variance grows with their square.
        tiny = 1e-3 * np.eye(len(top)) * float(np.mean(sizes))
        grown = np.nanmedian(run(tiny)[1] / noise**2 - 1.0, axis=1)
        unit = np.diag(tiny) / np.sqrt(np.maximum(grown, 1e-300))
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
        layout = objective.layout.without_noise(at, x0)
        free = x[~objective.layout.positive]
        _, lower = newton_step(LogLikelihood(pushed, layout).evaluate(free), free, np.arange(free.size))
    return float(deviance[0] - deviance[best] + 2 * (lower if np.isfinite(lower) else 0.0))
