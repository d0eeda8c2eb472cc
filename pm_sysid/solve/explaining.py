"""Points that explain records, from prior draws and free runs alone: roughly where a posterior will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy

from pm_sysid.solve.filter_graph import Unknowns

#: Points of a round, and most rounds.
POINTS, ROUNDS = 256, 20
#: Fewest effective points that tell where the next round looks, and for each unknown.
ENOUGH, ENOUGH_EACH = 24, 3
#: Unknowns of which so many points tell nothing.
MOST_UNKNOWNS = 20
#: Degrees of freedom of the distribution that points of a round are drawn from, and how much wider than the last points it is.
FREEDOM, WIDER = 5.0, 1.3
#: Smallest width of that distribution, as a share of the prior's: rounding gives none a direction without any.
NARROWEST = 1e-9
#: Points that are drawn for each that is wanted; those that lie farthest apart are taken.
CHOICE = 12


def explaining_points(
    points: Sequence[Unknowns], log_likelihood: np.ndarray, judge: Callable[[list[Unknowns]], np.ndarray], count: int
) -> list[Unknowns]:
    """At most ``count`` points that lie far apart among those that explain records, given their approximate log-likelihoods.

    The prior's draws are weighted by a power of the likelihood that leaves enough of them, the next points are drawn about
    these, and so on until the power is one (adaptive importance sampling). Parameters and initial states that are positive at
    all draws are taken by their logarithms, the prior for Gaussian in these coordinates; no point is beyond its draws.

    Parameters
    ----------
    points : sequence of Unknowns
        Draws of the prior.
    log_likelihood : array, shape (N,)
        By free runs from them.
    judge : function
        The same of other points.
    count : int
        How many are wanted.

    Returns
    -------
    list of Unknowns
        Parameters and initial states of these, the rest as at the best point; empty where there are too many unknowns for the
        points to tell, or too few that explain anything.
    """
    values = np.array([np.concatenate([np.ravel(p.params), np.ravel(p.x0)]) for p in points], dtype=float)
    fine = np.isfinite(log_likelihood) & np.isfinite(values).all(axis=1)
    if fine.sum() < ENOUGH:
        return []
    best, first = points[int(np.argmax(np.where(fine, log_likelihood, -np.inf)))], values[fine]
    positive = (first > 0).all(axis=0)
    z = np.where(positive, np.log(np.where(positive, first, 1.0)), first)
    middle, (low, high) = z.mean(axis=0), (z.min(axis=0), z.max(axis=0))
    scale = np.where(high > low, z.std(axis=0), 1.0)
    _, sizes, axes = np.linalg.svd((z - middle) / scale, full_matrices=False)
    told = sizes > 1e-8 * sizes.max(initial=0.0)
    if not 0 < told.sum() <= MOST_UNKNOWNS:
        return []
    whitened = axes[told].T * np.sqrt(len(z)) / sizes[told]  # from standardised values to coordinates of unit covariance
    back = axes[told] * sizes[told, None] / np.sqrt(len(z))

    def of(at: np.ndarray) -> list[Unknowns]:
        shape, n = np.shape(best.params), np.size(best.params)
        rows = np.where(positive, np.exp(np.where(positive, at, 0.0)), at)
        return [best._replace(params=row[:n].reshape(shape), x0=row[n:].reshape(np.shape(best.x0))) for row in rows]

    rng, d = np.random.default_rng(0), int(told.sum())
    enough = max(ENOUGH, ENOUGH_EACH * d)
    x, near, log_weight, power = (z - middle) / scale @ whitened, log_likelihood[fine], np.zeros(len(z)), 0.0
    for _ in range(ROUNDS):
        power = _power(power, near, log_weight, enough)
        weights = _weights(power, near, log_weight)
        if not np.sum(weights**2) < 1 / d:  # too few, or none, tell in which directions to look
            return []
        if power == 1.0:
            break
        mean = weights @ x
        root = _root((x - mean).T * weights @ (x - mean))
        normal, size = rng.standard_normal((POINTS, d)), rng.chisquare(FREEDOM, (POINTS, 1)) / FREEDOM
        x = mean + normal / np.sqrt(size) @ root.T
        at = middle + scale * (x @ back)
        at[:, low == high] = low[low == high]
        inside = np.all((at >= low) & (at <= high), axis=1)
        if inside.sum() < ENOUGH:
            return []
        x, at, normal, size = x[inside], at[inside], normal[inside], size[inside]
        near = judge(of(at))
        log_density = -0.5 * (FREEDOM + d) * np.log1p(np.sum(normal**2 / size, axis=1) / FREEDOM)
        log_weight = -0.5 * np.sum(x**2, axis=1) - log_density
    else:
        return []
    picked = np.unique(rng.choice(len(x), CHOICE * count, p=weights))
    at = middle + scale * (x[_far_apart(x, picked, count)] @ back)
    at[:, low == high] = low[low == high]
    return of(at)


def _root(covariance: np.ndarray) -> np.ndarray:
    """Factor of a covariance, somewhat wider, that has no direction without width."""
    sizes, axes = np.linalg.eigh(WIDER * covariance)
    return np.asarray(axes * np.sqrt(np.maximum(sizes, NARROWEST**2)))


def _weights(power: float, log_likelihood: np.ndarray, log_weight: np.ndarray) -> np.ndarray:
    """Weights of points by a power of the likelihood."""
    tempered = np.where(np.isfinite(log_likelihood), power * np.nan_to_num(log_likelihood), -np.inf)
    weights: np.ndarray = scipy.special.softmax(tempered + log_weight)
    return weights


def _power(before: float, log_likelihood: np.ndarray, log_weight: np.ndarray, enough: float) -> float:
    """The largest power from the one ``before`` to one that leaves ``enough`` effective points."""

    def more(power: float) -> float:
        return float(1 / np.sum(_weights(power, log_likelihood, log_weight) ** 2)) - enough

    if more(1.0) >= 0:
        return 1.0
    return float(scipy.optimize.brentq(more, before, 1.0, xtol=1e-9)) if more(before) > 0 else before


def _far_apart(x: np.ndarray, among: np.ndarray, count: int) -> list[int]:
    """Places of ``count`` of some points (N, d): the middle one, then always the one that is farthest from those before."""
    some = x[among] / np.where((spread := x[among].std(axis=0)) > 0, spread, 1.0)
    picked = [int(np.argmin(np.sum((some - some.mean(axis=0)) ** 2, axis=1)))]
    while len(picked) < min(count, len(among)):
        distance = np.min([np.sum((some - some[p]) ** 2, axis=1) for p in picked], axis=0)
        picked.append(int(np.argmax(distance)))
    return [int(among[p]) for p in picked]
