"""Whether standard errors hold: how a fit worsens some of them away from the optimum, beside the parabola that they are of."""

from __future__ import annotations

import numpy as np

from pm_sysid.pem.objective import Evaluation, Objective, SquaredErrors
from pm_sysid.pem.side_by_side import EXACT, Coordinates, valleys

#: Standard errors from the optimum at which an unknown is looked at.
FAR = 4.0
#: Where less than this share of what the parabola loses in log-likelihood is lost there, the error is too small: 4 standard
#: errors are then as far as 2.5 should be.
SHALLOW = 0.4
#: So many standard errors away a fit is rough that worsens, in the middle of all directions, so many times as much as the
#: parabola; nearer, single jumps of equations that switch count.
NEAR, ROUGH = 2.0, 3.0
#: Along the parabola's valley, shares between these are those of a parabola, and nothing more is looked at.
PARABOLA = (0.6, 1.6)
#: If those of both sides of an unknown differ by more than this factor, the valley is bent, and they say little.
LOPSIDED = 2.0
#: Steps of the other unknowns towards the bottom of the valley, and from how many places at most: those least like a parabola.
STEPS, LOOKED_AT = 5, 16
#: Shares of a way that leads to where nothing is possible that are tried, one after the other.
NEARER = (0.5, 0.5)
#: Axes of less information than this share of the largest are lost in rounding.
SEEN = 1e-10


def roughness(
    objective: Objective, x: np.ndarray, evaluation: Evaluation, covariance: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> float:
    """How much a fit worsens two standard errors away, beside the parabola: one if standard errors are of its shape.

    The median over both sides of all principal axes of a ``covariance`` (k, k), without those beyond a bound, of unknowns that
    are finite there and no noise. Where neighbouring solutions part, as those of chaos do, the parabola is that of a ripple,
    and others are as good.
    """
    c = Coordinates(objective, lower, upper, abs(evaluation.value))
    variance = np.diag(covariance)
    inside = np.flatnonzero(np.isfinite(variance) & (variance > 0) & ~c.positive)
    outputs = np.concatenate([r.output_matrix for r in objective.filter.records])
    if not inside.size or (isinstance(objective, SquaredErrors) and evaluation.value <= EXACT * np.nanmean(outputs**2)):
        return 1.0
    size = np.sqrt(variance[inside])
    squares, axes = np.linalg.eigh(covariance[np.ix_(inside, inside)] / np.outer(size, size))
    information = c.slope(x, evaluation)[1] * c.unit(evaluation.value)
    points, expected, u = [], [], c.of(x)
    for square, axis in zip(squares, axes.T, strict=True):
        for sign in (-1.0, 1.0) if square > SEEN * squares[-1] else ():
            move = np.zeros(x.size)
            move[inside] = sign * NEAR * np.sqrt(square) * axis * size
            if np.all((u + move >= c.lower) & (u + move <= c.upper)):
                points.append(c.unknowns(u + move))
                expected.append(0.5 * float(move @ information @ move))
    if not points:
        return 1.0
    lost = [c.gain(evaluation.value, v) if np.isfinite(v) else np.inf for v in objective.values(np.array(points))]
    return float(np.median(np.array(lost) / np.maximum(expected, 1e-300)))


def too_small(
    objective: Objective, x: np.ndarray, evaluation: Evaluation, stderr: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Mark unknowns (k,) whose standard errors say too little.

    Each is moved by ``FAR`` of them to both sides, along the valley of the parabola, and the others go on from there to where
    they fit best. Standard deviations stay as they are: process noise that grows explains any distance, which says nothing of
    the others' errors. Unknowns without a finite error are not looked at, nor are places beyond a bound.
    """
    c = Coordinates(objective, lower, upper, abs(evaluation.value))
    marked = np.zeros(x.size, dtype=bool)
    outputs = np.concatenate([r.output_matrix for r in objective.filter.records])
    if isinstance(objective, SquaredErrors) and evaluation.value <= EXACT * np.nanmean(outputs**2):
        return marked  # what is left is rounding, which is no parabola
    free = np.isfinite(stderr) & (stderr > 0) & ~c.positive
    targets = np.flatnonzero(free)
    _, information = c.slope(x, evaluation)
    size = np.where(free & (np.diag(information) > 0), np.sqrt(np.abs(np.diag(information))), 1.0)
    inside = np.flatnonzero(free)
    inverse = np.zeros_like(information)
    scaled = information[np.ix_(inside, inside)] / np.outer(size[inside], size[inside])
    inverse[np.ix_(inside, inside)] = np.linalg.pinv(scaled, rcond=1e-13, hermitian=True) / np.outer(size[inside], size[inside])
    points, expected, which = [], [], []
    for i in targets:
        for sign in (-1.0, 1.0):
            away = sign * FAR * stderr[i] * inverse[:, i] / inverse[i, i] if inverse[i, i] > 0 else np.zeros(x.size)
            u = c.of(x) + away
            if not away.any() or not c.lower[i] < u[i] < c.upper[i]:
                continue
            points.append(np.clip(u, c.lower, c.upper))
            expected.append(c.gain(evaluation.value, evaluation.value + 0.5 * float(away @ information @ away)))
            which.append(int(i))
    if not points:
        return marked
    values = objective.values(np.array([c.unknowns(u) for u in points]))
    for nearer in NEARER:  # the valley may be bent, and a straight way along it lead to where the system has no solution
        lost = [k for k in range(len(points)) if not np.isfinite(values[k])]
        for k in lost:
            away = nearer * (points[k] - c.of(x))
            points[k] = c.of(x) + away
            expected[k] = c.gain(evaluation.value, evaluation.value + 0.5 * float(away @ information @ away))
        if lost:
            values[lost] = objective.values(np.array([c.unknowns(points[k]) for k in lost]))
    shares = np.array(
        [c.gain(evaluation.value, v) / e if np.isfinite(v) and e > 0 else np.inf for v, e in zip(values, expected, strict=True)]
    )
    logs = np.log(np.clip(shares, 1e-300, 1e300))
    bent = {i for i in set(which) if np.ptp(logs[np.array(which) == i]) > np.log(LOPSIDED)}
    clear = [PARABOLA[0] < s < PARABOLA[1] and i not in bent for i, s in zip(which, shares, strict=True)]
    unclear = [k for k in range(len(points)) if not clear[k] and shares[k] > SHALLOW and expected[k] > 0]
    unclear = sorted(unclear, key=lambda k: -abs(np.log(shares[k])))[:LOOKED_AT]
    lowest = valleys(c, [points[k] for k in unclear], [which[k] for k in unclear], free, STEPS)
    for k, (_, found) in zip(unclear, lowest, strict=True):
        value = np.inf if found is None else found.value
        shares[k] = c.gain(evaluation.value, value) / expected[k] if np.isfinite(value) else np.inf
    marked[[i for i, share in zip(which, shares, strict=True) if share < SHALLOW]] = True
    return marked
