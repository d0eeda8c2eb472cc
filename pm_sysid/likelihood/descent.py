"""Minimisation of one function from many starts side by side: quasi-Newton steps in lanes, then Newton's method on one of them.

A batch of points costs hardly more than one where the function runs them in vector lanes. Every lane takes one evaluation a
round and follows its own line search, so that slow lanes do not hold up the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

#: Values (B,) and gradients (B, d) of points (B, d); infinite where there is no value.
type Batch = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

#: Longest first trial of a line search, in the units of ``scale``.
LONGEST = 1.0
#: Sufficient decrease and curvature of a step (Nocedal and Wright, Numerical Optimization, Section 3.1).
DECREASE, CURVATURE = 1e-4, 0.9
#: A fall of the value that is none.
FLAT = 1e-5
#: Newton's method has converged if a step would lower the value by less than half of this, and none does.
NEARLY = 1e-2
#: Least rise of the value one standard deviation from a minimum, on the average of both sides; a half by the curvature there.
RISE = 0.02
#: Size of a coordinate below which, and above whose inverse, it has a unit of its own.
SMALL = 1e-3
#: Trials of one line search.
TRIALS = 25
#: Most steps of Newton's method: from a start far off, a quasi-Newton search may stop long before the minimum.
STEPS = 100


class Descent(NamedTuple):
    """Where lanes ended: points (B, d), values (B,), and which of them found the gradient to vanish."""

    x: np.ndarray
    value: np.ndarray
    settled: np.ndarray


@np.errstate(over="ignore", invalid="ignore")  # gradients of starts far off; what is not finite is taken for no way down
def descend(batch: Batch, x: np.ndarray, scale: np.ndarray, rounds: int, flat: float = FLAT) -> Descent:
    """Minimise from each row of ``x`` by BFGS with a bisecting Wolfe line search (Lewis and Overton 2013).

    Parameters
    ----------
    batch : callable
        Values and gradients of the points of all lanes that are not done.
    x : array, shape (B, d)
        Starts; a lane whose start has no finite value stays there.
    scale : array, shape (d,)
        Size of each coordinate, such as its prior standard deviation.
    rounds : int
        Most evaluations of a lane.
    flat : float, default 1e-5
        A lane is done where a Newton step would lower the value by less than this.
    """
    x = np.array(x, dtype=float)
    n, d = x.shape
    value, gradient = batch(x)
    gradient = gradient * scale
    value = np.array(value)
    inverse = np.tile(np.eye(d), (n, 1, 1))
    fresh = np.ones(n, dtype=bool)
    settled = np.zeros(n, dtype=bool)
    going = np.isfinite(value)
    direction, slope = np.zeros((n, d)), np.zeros(n)
    step, low, high, trials = np.ones(n), np.zeros(n), np.full(n, np.inf), np.zeros(n, dtype=int)

    def aim(lanes: np.ndarray) -> None:
        """New directions, downhill and not too long."""
        for i in lanes:
            p = -inverse[i] @ gradient[i]
            m = p @ gradient[i]
            if not m < 0 or not np.all(np.isfinite(p)):
                inverse[i], fresh[i] = np.eye(d), True
                p = -gradient[i]
                m = p @ gradient[i]
            if (not fresh[i] and -m < 2 * flat) or m == 0:
                settled[i], going[i] = True, False
            longest = np.max(np.abs(p))
            direction[i], slope[i] = p, m
            step[i] = min(1.0, LONGEST / longest) if longest > 0 else 1.0
        low[lanes], high[lanes], trials[lanes] = 0.0, np.inf, 0

    aim(np.flatnonzero(going))
    for _ in range(rounds):
        lanes = np.flatnonzero(going)
        if not lanes.size:
            break
        moved = step[lanes, None] * direction[lanes]
        tried, slopes = batch(x[lanes] + moved * scale)
        slopes = slopes * scale
        done = []
        for k, i in enumerate(lanes):
            trials[i] += 1
            along = slopes[k] @ direction[i]
            if not tried[k] <= value[i] + DECREASE * step[i] * slope[i] or not np.isfinite(tried[k]):
                high[i] = step[i]
            elif along < CURVATURE * slope[i] and step[i] * np.max(np.abs(direction[i])) < 10 * LONGEST:
                low[i] = step[i]
            else:
                change = slopes[k] - gradient[i]
                product = change @ moved[k]
                if product > 1e-12 * np.linalg.norm(change) * np.linalg.norm(moved[k]):
                    if fresh[i]:
                        inverse[i] *= product / (change @ change)
                        fresh[i] = False
                    left = np.eye(d) - np.outer(moved[k], change) / product
                    inverse[i] = left @ inverse[i] @ left.T + np.outer(moved[k], moved[k]) / product
                x[i] = x[i] + moved[k] * scale
                value[i], gradient[i] = tried[k], slopes[k]
                done.append(i)
                continue
            if trials[i] >= TRIALS:
                # Rounding, or a cliff: where even the steepest way leads nowhere the lane stays.
                if fresh[i]:
                    going[i] = False
                else:
                    inverse[i], fresh[i] = np.eye(d), True
                    done.append(i)
                continue
            step[i] = (low[i] + high[i]) / 2 if np.isfinite(high[i]) else 2 * step[i]
        aim(np.array([i for i in done if going[i]], dtype=int))
    return Descent(x, value, settled)


def units(scale: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Units (d,) of coordinates of the size ``scale`` near ``x``: one, but small where that is small, and large where both are.

    Of a large size that is a wide prior's, the posterior may be much narrower.
    """
    return np.where(scale < SMALL, scale, np.where(scale > 1 / SMALL, np.maximum(np.abs(x), 1.0), 1.0))


def in_units(batch: Batch, unit: np.ndarray) -> Batch:
    """The same function of coordinates in other units: steps that suit numbers near one suit no others."""

    def function(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = batch(z * unit)
        return value, gradient * unit

    return batch if np.all(unit == 1.0) else function


@np.errstate(over="ignore", invalid="ignore")
def newton(batch: Batch, x: np.ndarray, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray, bool]:
    """Minimum near a point, the inverse Hessian there, and whether the gradient vanishes and the curvature is a minimum's."""
    converged = False
    covariance = np.eye(x.size)
    for _ in range(steps):
        (f,), (gradient,) = batch(x[None])
        if not np.isfinite(f):
            break
        hessian = hessian_at(batch, x, gradient)
        if not np.all(np.isfinite(hessian)):
            break
        values, vectors = np.linalg.eigh(hessian)
        floor = max(1e-10 * float(values[-1]), 1e-14)
        covariance = (vectors / np.maximum(np.abs(values), floor)) @ vectors.T
        step = -covariance @ gradient
        decrement = float(-gradient @ step)
        if decrement < 1e-6:
            converged = bool(values[0] > floor)
            last = x + step  # closer by as many digits again
            x = last if batch(last[None])[0][0] <= f else x
            break
        scales = 0.5 ** np.arange(28)
        better = None
        for some in (scales[:1], scales[1:8], scales[8:]):  # the whole step nearly always is the one
            tried, _ = batch(x + some[:, None] * step)
            better = next((s for s, t in zip(some, tried, strict=True) if t < f), None)
            if better is not None:
                break
        if better is None:
            converged = bool(values[0] > floor and decrement < NEARLY)
            break
        x = x + better * step
        if decrement < NEARLY and f - np.min(tried[np.isfinite(tried)]) < FLAT:
            # The gradient is no more exact than that: of steps too coarse for it, or by rounding.
            converged = bool(values[0] > floor)
            break
    return x, covariance, converged and _bowl(batch, x, covariance)


def _bowl(batch: Batch, x: np.ndarray, covariance: np.ndarray) -> bool:
    """Whether the value rises by about a half where a covariance says so.

    Differences of gradients take a cliff close by, or rounding, for a curvature.
    """
    values, vectors = np.linalg.eigh(covariance)
    away = (vectors * np.sqrt(values)).T
    (here,), _ = batch(x[None])
    both = batch(np.concatenate([x + away, x - away]))[0].reshape(2, -1)
    return bool(np.all(both.mean(axis=0) - here > RISE))


def hessian_at(batch: Batch, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Central differences of exact gradients, with steps at which the gradient changes measurably."""
    # A step of about a tenth of a standard deviation, found from the curvature of a first, tiny step.
    tiny = 1e-6 * np.maximum(1.0, np.abs(x))
    _, near = batch(x + np.diag(tiny))
    curvature = np.abs(np.diag(near) - gradient) / tiny
    with np.errstate(divide="ignore"):
        steps = np.where(curvature > 0, np.minimum(0.1 / np.sqrt(curvature), 1e-2), 1e-4)
    steps = np.where(np.isfinite(steps), steps, 1e-4)
    values, both = batch(np.concatenate([x + np.diag(steps), x - np.diag(steps)]))
    if not np.all(np.isfinite(values)):  # at an edge, where there is no curvature
        return np.full((x.size, x.size), np.nan)
    hessian: np.ndarray = (both[: x.size] - both[x.size :]) / (2 * steps[:, None])
    symmetric: np.ndarray = (hessian + hessian.T) / 2
    return symmetric
