"""Ridges that lead away from a mode: where a posterior is far higher than the curvature at its mode says.

A mode's curvature says how the posterior falls close by. Along a curved ridge, or into a long tail, it falls more slowly, and
proposals with that curvature seldom meet it among several unknowns. Here each unknown is moved away from the mode step by step,
and all others follow to where they are most likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.likelihood.descent import Batch, descend, hessian_at, in_units, units

#: Standard deviations of the first step away from the mode, how much farther each next one is, and most steps.
FIRST, FARTHER, MOST = 2.0, 1.5, 6
#: Fall of the log posterior beside that of a Gaussian with the curvature of the mode, up to which a lane goes on; by how much
#: it has to be above that Gaussian to be on a ridge; and how far below the mode there is nothing to be found.
SLOWER, ABOVE, BELOW = 0.85, 3.5, 10.0
#: Most evaluations of a lane, and by how much the log posterior at its end may be too low.
EVALUATIONS, ROUGHLY = 150, 1e-3


class Ridges(NamedTuple):
    """Points (K, d) on ridges, and covariances (K, d, d) of the posterior about them."""

    points: np.ndarray
    covariances: np.ndarray


class _Lane(NamedTuple):
    """Where the unknown ``unknown`` is moved to a side.

    Its last point, the steps of all unknowns for one of its own, and how far the log posterior is below the mode.
    """

    unknown: int
    side: float
    point: np.ndarray
    along: np.ndarray
    fall: float


def ridges(batch: Batch, point: np.ndarray, covariance: np.ndarray) -> Ridges:
    """Points on the ridges that lead away from a mode.

    Parameters
    ----------
    batch : callable
        Negative log posterior (B,) of points (B, d), and its gradient (B, d).
    point, covariance : numpy.ndarray, shapes (d,) and (d, d)
        The mode, and the inverse of the negative Hessian there.

    Returns
    -------
    Ridges
        No points where all profiles fall as those of a Gaussian do. The covariance about a point is the local one of all other
        unknowns, and along the ridge it reaches to the point before.
    """
    d, sd = len(point), np.sqrt(np.diag(covariance))
    (value,), _ = batch(point[None])
    roots = [_root(covariance, j) for j in range(d)]
    lanes = [_Lane(j, side, point, covariance[:, j] / sd[j] ** 2, 0.0) for j in range(d) for side in (-1.0, 1.0)]
    points, covariances = [], []
    distance, before = FIRST, 0.0
    for _ in range(MOST):
        step = distance - before
        starts = np.array([lane.point + lane.side * step * sd[lane.unknown] * lane.along for lane in lanes])
        x, values = _followed(batch, starts, np.array([roots[lane.unknown] for lane in lanes]))
        fall, gaussian = values - value, 0.5 * distance**2
        lanes = [
            lane._replace(point=x[k], along=(x[k] - lane.point) / (x[k] - lane.point)[lane.unknown], fall=fall[k])
            for k, lane in enumerate(lanes)
            if fall[k] < min(SLOWER * gaussian, BELOW)
        ]
        for lane in (lane for lane in lanes if lane.fall < gaussian - ABOVE):
            about = _about(batch, lane, step * sd[lane.unknown], sd)
            if about is not None:
                points.append(lane.point)
                covariances.append(about)
        if not lanes:
            break
        before, distance = distance, FARTHER * distance
    return Ridges(np.array(points).reshape(-1, d), np.array(covariances).reshape(-1, d, d))


def _root(covariance: np.ndarray, j: int) -> np.ndarray:
    """Root (d, d) of the covariance of all unknowns given one of them, which stays where it is."""
    given = covariance - np.outer(covariance[:, j], covariance[:, j]) / covariance[j, j]
    given[j], given[:, j] = 0.0, 0.0
    values, vectors = np.linalg.eigh(given)
    root: np.ndarray = vectors * np.sqrt(np.maximum(values, 0.0))
    root[j] = 0.0
    return root


def _followed(batch: Batch, starts: np.ndarray, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (B, d) and values (B,) after descents from ``starts``, each in the directions of its own root (B, d, d)."""
    # The number of a lane is one more coordinate, which does not move.
    number, scale = np.arange(len(starts))[:, None], np.append(np.ones(starts.shape[1]), 0.0)

    def at(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lane = z[:, -1].astype(int)
        return lane, starts[lane] + np.einsum("bij,bj->bi", roots[lane], z[:, :-1])

    def standardised(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lane, x = at(z)
        value, gradient = batch(x)
        return value, np.hstack([np.einsum("bij,bi->bj", roots[lane], gradient), np.zeros((len(z), 1))])

    found = descend(standardised, np.hstack([np.zeros_like(starts), number]), scale, EVALUATIONS, ROUGHLY)
    return at(found.x)[1], found.value


def _about(batch: Batch, lane: _Lane, reach: float, sd: np.ndarray) -> np.ndarray | None:
    """Covariance about a point: of the others given the unknown that was moved, and ``reach`` along the ridge."""
    covariance: np.ndarray = reach**2 * np.outer(lane.along, lane.along)
    if len(covariance) == 1:
        return covariance
    _, (gradient,) = batch(lane.point[None])
    unit = units(sd, sd)
    hessian = hessian_at(in_units(batch, unit), lane.point / unit, gradient * unit) / np.outer(unit, unit)
    if not np.all(np.isfinite(hessian)):
        return None
    others = np.delete(np.arange(len(lane.point)), lane.unknown)
    values, vectors = np.linalg.eigh(hessian[np.ix_(others, others)])
    if values[-1] <= 0:
        return None
    values = np.maximum(np.abs(values), 1e-10 * values[-1])
    covariance[np.ix_(others, others)] += (vectors / values) @ vectors.T
    return covariance
