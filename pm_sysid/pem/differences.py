"""Equations that switch: derivatives by differences over a standard error, where those of the recurrence say something else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.pem.objective import Evaluation, SquaredErrors
from pm_sysid.pem.side_by_side import EXACT, Coordinates

#: Unknowns are moved by these shares of a standard error to see whether outputs change as the derivatives say.
SMALL, LARGER = 0.1, 0.5
#: And by no more than this share of an unknown itself: standard errors of what a record hardly tells are far.
MOST = 0.2
#: The equations switch where the changes are this share of them off by the small move, and by the larger one less than so many
#: times as much: of smooth equations 25 times.
SWITCHES, GROWS = 0.05, 8.0
#: What derivatives by differences are over, in standard errors to both sides: far enough that single jumps do not matter.
MOVE = 2.0
#: Steps of Gauss and Newton by differences, and the shares of each that are tried.
STEPS, SHARES = 8, (1.0, 0.5, 0.25, 0.1)


class Differences(NamedTuple):
    """An optimum by differences: unknowns, objective with derivatives, rates (k, T, n) behind these, and points evaluated."""

    x: np.ndarray
    evaluation: Evaluation
    rates: np.ndarray
    evaluated: int


def standard_errors(c: Coordinates, x: np.ndarray, evaluation: Evaluation) -> np.ndarray:
    """Standard errors (k,) of the coordinates, zero on a bound and where there is no sensitivity at all."""
    _, information = c.slope(x, evaluation)
    information, u = information * c.unit(evaluation.value), c.of(x)
    free = (u > c.lower) & (u < c.upper) & (np.diag(information) > 0) & np.isfinite(information).all(axis=0)
    result = np.zeros(x.size)
    if free.any():
        size = np.sqrt(np.diag(information))[free]
        scaled = information[np.ix_(free, free)] / size[:, None] / size
        result[free] = np.sqrt(np.maximum(np.diag(np.linalg.pinv(scaled, rcond=1e-12, hermitian=True)), 0.0)) / size
    return result


def by_differences(c: Coordinates, x: np.ndarray, evaluation: Evaluation) -> Differences | None:
    """The optimum and its derivatives by differences over standard errors; None where the equations do not switch.

    Notes
    -----
    Where a force jumps as a speed changes its sign, the time of the jump moves with the unknowns, and what comes after is
    stretched or shrunk by the jump. Steps of equal length jump at one of their ends whatever the unknowns, so that the exact
    derivative of the steps has nothing of this: searches end a little beside the optimum, and standard errors are wrong.
    """
    if not switches(c, x, evaluation):
        return None
    evaluated = 2 * x.size
    errors = standard_errors(c, x, evaluation)
    found = _evaluated(c, x, MOVE * errors)
    for _ in range(STEPS if found else 0):
        assert found is not None
        evaluated += 2 * x.size + len(SHARES)
        gradient, information = c.slope(found.x, found.evaluation)
        moving = np.flatnonzero(standard_errors(c, found.x, found.evaluation))
        if not moving.size:
            break
        size = np.sqrt(np.diag(information))[moving]
        scaled, step = information[np.ix_(moving, moving)] / np.outer(size, size), np.zeros(x.size)
        step[moving] = -np.linalg.pinv(scaled, rcond=1e-10, hermitian=True) @ (gradient[moving] / size) / size
        trials = np.array([c.unknowns(np.clip(c.of(found.x) + share * step, c.lower, c.upper)) for share in SHARES])
        values = c.objective.values(trials)
        lowest = int(np.argmin(values))
        if not c.gain(values[lowest], found.evaluation.value) > 1e-6:
            break
        errors = standard_errors(c, found.x, found.evaluation)
        further = _evaluated(c, trials[lowest], MOVE * errors)
        if further is None:
            break
        found = further
    return None if found is None else found._replace(evaluated=evaluated)


def switches(c: Coordinates, x: np.ndarray, evaluation: Evaluation) -> bool:
    """Whether outputs change with the unknowns otherwise than the derivatives say, however little these are moved."""
    y = np.concatenate([r.output_matrix for r in c.objective.filter.records])
    if isinstance(c.objective, SquaredErrors) and evaluation.value <= EXACT * np.nanmean(y**2):
        return False  # what is left is rounding
    m, seen, errors = y.shape[1], c.objective.measured, standard_errors(c, x, evaluation)
    errors = np.where(c.positive | (x == 0.0) | c.objective.layout.initial, errors, np.minimum(errors, MOST * np.abs(x)))
    errors = np.where(c.positive, np.minimum(errors, 1.0), errors)  # of noise that is hardly seen the logarithm tells nothing
    exact = _exact(c, x)[..., :m][:, seen]
    size = np.linalg.norm(exact, axis=1)

    def off(share: float) -> np.ndarray:
        rates = _rates(c, x, share * errors)
        apart = np.zeros_like(exact) if rates is None else rates[..., :m][:, seen] - exact
        return np.where(size > 0, np.linalg.norm(np.nan_to_num(apart), axis=1) / np.where(size > 0, size, 1.0), 0.0)

    small = off(SMALL)
    return bool(np.any(small > SWITCHES)) and bool(np.any((small > SWITCHES) & (GROWS * small > off(LARGER))))


def _exact(c: Coordinates, x: np.ndarray) -> np.ndarray:
    """Derivatives of the recurrence (k, T, n)."""
    layout = c.objective.layout
    with np.errstate(all="ignore"):
        return c.objective.filter.run(*layout.place(x), layout.motion, c.objective.want)[1]


def _rates(c: Coordinates, x: np.ndarray, move: np.ndarray) -> np.ndarray | None:
    """Outputs' rates of change (k, T, n) by moving each coordinate to both sides; NaN for those that do not move.

    None where a point is impossible.
    """
    u, away = c.of(x), np.diag(move)
    low, high = (np.array([c.unknowns(np.clip(u + sign * row, c.lower, c.upper)) for row in away]) for sign in (-1.0, 1.0))
    length = np.diag(high) - np.diag(low)
    outputs = c.objective.outputs(np.concatenate([low, high]))
    if not np.isfinite(outputs[:, c.objective.measured.any(axis=1)]).all():
        return None
    with np.errstate(all="ignore"):
        return np.asarray((outputs[x.size :] - outputs[: x.size]) / np.where(length > 0, length, np.nan)[:, None, None])


def _evaluated(c: Coordinates, x: np.ndarray, move: np.ndarray) -> Differences | None:
    """The objective with derivatives by differences; those of the recurrence for what does not move."""
    rates = _rates(c, x, move)
    if rates is None:
        return None
    rates = np.where(np.isfinite(rates).all(axis=(1, 2), keepdims=True), rates, _exact(c, x))
    with np.errstate(all="ignore"):
        found = c.objective.of(c.objective.outputs(x[None])[0], rates)
    return Differences(x, found, rates, 0) if found.finite else None
