"""Starts from predictions that follow the measurements, whose errors have fewer optima than those of a free run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pm_sysid.pem.filters import KalmanFilter, Motion
from pm_sysid.pem.objective import Objective, SquaredErrors
from pm_sysid.pem.side_by_side import Coordinates, explore
from pm_sysid.progress import doing

#: Standard deviations of the process noise in an interval, over the spread of each state, from errors of a step ahead towards
#: those of a free run; and of the measurement noise, over the spread of each output.
PROCESS, MEASUREMENT = (0.3, 0.1, 0.03, 0.01), 0.1
#: Lowest ends that go on, of each.
GO_ON = 4


def following(objective: Objective, x: np.ndarray, process: float) -> SquaredErrors | None:
    """Errors of a filter that corrects each prediction by the measurements before, in place of those of a free run.

    Parameters
    ----------
    objective
        Its filter is a free run; its measurement noise is no unknown of the other.
    x : ndarray, shape (k,)
        Unknowns with a free run whose states have the spread of those of the record.
    process : float
        See :data:`PROCESS`.

    Returns
    -------
    SquaredErrors or None
        None where the filter is no free run, or the run at ``x`` is impossible.
    """
    filter, layout = objective.filter, objective.layout
    if not isinstance(filter, KalmanFilter) or not filter.form.certain:
        return None
    system, y = filter.system, np.concatenate([r.output_matrix for r in filter.records])
    params, x0 = layout.place(x)
    n, m, n_p = len(system.states), len(system.outputs), len(system.params)
    with np.errstate(all="ignore"):
        states = filter.run(params, x0, Motion.none(params.size, x0), "states")[0][:, 2 * m : 2 * m + n]
        spread, size = states.std(axis=0), np.nanstd(y, axis=0)
    if not np.isfinite(spread).all():
        return None
    noise = MEASUREMENT * np.where(size > 0, size, 1.0)
    own = layout.without_noise(np.concatenate([params[:n_p], process * spread, noise]), x0)
    form = replace(filter.form, certain=False, full_process=False, full_noise=False)
    roots = np.zeros((len(filter.records), n, n))
    return SquaredErrors(KalmanFilter(system, form, filter.records, filter.substeps, roots), own)


def followed(
    objective: Objective, x: np.ndarray, starts: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, int]:
    """Where searches by such errors end, from ``starts`` (S, k) and with ever less process noise, and evaluations.

    Ends (E, k) of all sizes of process noise, the lowest of each: the more a filter follows the measurements, the fewer optima
    its errors have, but the less they tell of the parameters.
    """
    rest = ~objective.layout.positive
    ends, points, going_on = [np.empty((0, x.size))], 0, np.empty((0, x.size))
    if not rest.any():
        return ends[0], points
    for process in PROCESS:
        target = following(objective, x, process)
        if target is None:
            break
        doing(f"predictions that follow the measurements ({process:g})")
        begin = np.concatenate([going_on, starts])
        largest = float(np.min(target.values(begin[:, rest]), initial=np.inf))
        c = Coordinates(target, lower[rest], upper[rest], largest if np.isfinite(largest) else 1.0)
        found, evaluated = explore(c, begin[:, rest], lambda _, __: False)
        lowest = sorted((e for e in found if e.evaluation.finite), key=lambda e: e.evaluation.value)[:GO_ON]
        going_on = np.tile(x, (len(lowest), 1))
        going_on[:, rest] = np.array([e.x for e in lowest]).reshape(-1, int(rest.sum()))
        ends.append(going_on)
        points += evaluated + len(begin)
    return np.concatenate(ends), points
