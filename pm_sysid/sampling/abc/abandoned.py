"""Places that a run has left and that come as close to the measurement as its particles do.

A region that is narrow has few of the particles of the first rounds, and may lose them by chance before the threshold has come
so far that most of the prior mass below it is there. What follows is fitted to the particles that remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.sampling.abc.ellipsoids import Ellipsoid, around, whole_cube
from pm_sysid.sampling.abc.population import Candidates, Outcome, ProposalDistribution

#: Searches of all models together, and of each at least; candidates of each in a round for each coordinate and at least, and
#: rounds of them.
STARTS, LEAST_STARTS, FOR_EACH, AT_LEAST, ROUNDS = 8, 2, 8, 24, 15
#: The part of the candidates, the nearest ones, that tells where the next are drawn.
ELITE = 0.25
#: Candidates that tell what lies below the threshold at a place, and how much wider than around these its ellipsoid is; how
#: often it is drawn anew, as long as its logarithmic volume grows by so much.
TOLD, ENLARGE, GROWN, GROWTH = 200, 1.5, 20, 0.1
#: Most candidates of a model among which searches begin: the time grows with their square.
MOST_KNOWN = 5000
#: Standard deviation of a first cloud of candidates, as a part of the distance to the nearest neighbours.
FIRST = 0.5


class Abandoned(NamedTuple):
    """Prior masses (K,) below the threshold, where proposals do not reach, with standard errors; and simulations run."""

    mass: np.ndarray
    error: np.ndarray
    simulations: int


class _Search(NamedTuple):
    """Where one search stands: its model, mean (d,) and root (d, d), and its nearest candidates with their distances."""

    model: int
    mean: np.ndarray
    root: np.ndarray
    points: np.ndarray
    distance: np.ndarray


def abandoned(
    candidates: Candidates,
    outcome: Outcome,
    proposals: ProposalDistribution,
    threshold: float,
    log_prior: np.ndarray,
    simulate: Callable[[Candidates], Outcome],
    rng: np.random.Generator,
    most: int,
) -> Abandoned:
    """Look for places outside of proposals that come below a threshold, from the nearest of known candidates.

    Searches begin at candidates that are far from any that comes closer to the measurement. Each draws a cloud of candidates,
    whose nearest ones tell where the next cloud is, until these are below the threshold, or inside of the proposals. What
    lies below the threshold there is measured by draws from an ellipsoid.

    Parameters
    ----------
    candidates, outcome
        Points of the cubes that have been simulated.
    proposals : ProposalDistribution
        What the particles of the last round lie in.
    threshold : float
    log_prior : array, shape (K,)
        Log prior probability of each model over the prior mass that its constraints leave.
    simulate : callable
        Outcome of candidates.
    rng : numpy.random.Generator
    most : int
        Simulations with which searches end.
    """
    K, sizes = len(proposals.sizes), proposals.sizes
    mass, variance, simulations = np.zeros(K), np.zeros(K), 0
    searches = [s for k in range(K) for s in _begun(k, candidates, outcome, proposals)]
    ends: list[_Search] = []
    for _ in range(ROUNDS):
        if not searches or simulations >= most:
            break
        clouds = [_cloud(s, rng) for s in searches]
        found = simulate(_together([s.model for s in searches], clouds, sizes, rng))
        simulations += found.simulations
        going: list[_Search] = []
        for search, cloud, distance in zip(searches, clouds, _split(found.distance, clouds), strict=True):
            search = _next(search, cloud, distance)
            outside = _outside(proposals, search.model, search.points)
            if not np.isfinite(search.distance).any() or not outside.any():
                continue
            (ends if np.all(search.distance < threshold) else going).append(search)
        searches = going
    ends += [s for s in searches if np.any(s.distance < threshold)]
    known: list[tuple[int, Ellipsoid]] = []
    for end in sorted(ends, key=lambda s: float(np.min(s.distance))):
        k, d = end.model, sizes[end.model]
        if any(of == k and other.holds(end.mean[None])[0] for of, other in known):
            continue
        wide, near = Ellipsoid(end.mean, 3.0 * end.root), end.points[end.distance < threshold]
        place = around(near, np.ones(len(near)), ENLARGE, wide if wide.log_volume < 0 else whole_cube(d))
        for _ in range(GROWN):
            drawn = place.draw(rng.standard_normal((TOLD, d)), rng.random(TOLD), rng.random((TOLD, d)))
            found = simulate(_together([k], [drawn], sizes, rng))
            simulations += found.simulations
            below = found.distance < threshold
            if below.sum() <= 2 * d:
                break
            before, place = place, around(drawn[below], np.ones(below.sum()), ENLARGE, whole_cube(d))
            if place.log_volume <= before.log_volume + GROWTH:
                place = before
                break
        counts = below & _outside(proposals, k, drawn)
        for of, other in known:
            counts &= (of != k) | ~other.holds(drawn)
        known.append((k, place))
        weight = np.where(counts, np.exp(np.where(counts, found.log_potential, 0.0)), 0.0)
        scale = math.exp(place.log_volume + log_prior[k])
        mass[k] += scale * float(weight.mean())
        variance[k] += scale**2 * float(weight.var(ddof=1)) / TOLD
    return Abandoned(mass, np.sqrt(variance), simulations)


def nearest_better(points: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """How far the nearest point is that comes closer to the measurement, of each of the points (n, d); infinite for the best.

    It is far for the best point of a separate region, and near for the others there.

    Notes
    -----
    Source: Preuss (2010), Niching the CMA-ES via nearest-better clustering, GECCO Companion, 1711-1718.
    """
    order = np.argsort(distance, kind="stable")
    ranked, away = points[order], np.full(len(points), np.inf)
    for i in range(1, len(points)):
        away[order[i]] = np.sqrt(np.min(np.sum((ranked[:i] - ranked[i]) ** 2, axis=1)))
    return away


def _begun(k: int, candidates: Candidates, outcome: Outcome, proposals: ProposalDistribution) -> list[_Search]:
    """Searches of a model, from candidates outside of its proposals that are far from any that comes closer."""
    d = proposals.sizes[k]
    rows = np.flatnonzero((candidates.model == k) & np.isfinite(outcome.distance))
    rows = rows[:: max(1, -(-len(rows) // MOST_KNOWN))]  # of all rounds alike
    points, first = np.unique(candidates.points[rows, :d], axis=0, return_index=True)
    distance = outcome.distance[rows][first]
    if not len(points):
        return []
    away = nearest_better(points, distance)
    picked = np.flatnonzero(_outside(proposals, k, points))
    picked = picked[np.argsort(-away[picked], kind="stable")][: max(STARTS // len(proposals.sizes), LEAST_STARTS)]
    if not len(picked):
        return []
    neighbours = scipy.spatial.cKDTree(points).query(points[picked], k=min(d + 2, len(points)))[0]
    scale = FIRST * (np.median(neighbours[:, 1:], axis=1) if len(points) > 1 else np.ones(1))
    started = zip(points[picked], distance[picked], scale, strict=True)
    return [_Search(k, point, width * np.eye(d), point[None], np.array([value])) for point, value, width in started]


def _outside(proposals: ProposalDistribution, k: int, points: np.ndarray) -> np.ndarray:
    """Which points (n, d) of a model its proposals do not reach."""
    if proposals.regions[k] is None:
        return np.ones(len(points), dtype=bool)
    padded = np.full((len(points), max(proposals.sizes)), np.nan)
    padded[:, : points.shape[1]] = points
    return np.asarray(np.isneginf(proposals.log_density(np.full(len(points), k), padded)))


def _cloud(search: _Search, rng: np.random.Generator) -> np.ndarray:
    """Candidates (n, d) around where a search stands, inside of the cube as far as they come."""
    d = len(search.mean)
    x = search.mean + rng.standard_normal((max(FOR_EACH * (d + 1), AT_LEAST), d)) @ search.root.T
    return np.asarray(np.where(x < 0, -x, np.where(x > 1, 2 - x, x)))


def _together(
    models: Sequence[int], clouds: Sequence[np.ndarray], sizes: Sequence[int], rng: np.random.Generator
) -> Candidates:
    """Candidates of several searches as one batch."""
    model = np.repeat(models, [len(cloud) for cloud in clouds])
    points = np.full((len(model), max(sizes)), np.nan)
    ends = np.cumsum([0, *(len(cloud) for cloud in clouds)])
    for begin, cloud in zip(ends, clouds, strict=False):
        points[begin : begin + len(cloud), : cloud.shape[1]] = cloud
    return Candidates(model, points, int(rng.integers(2**31)))


def _split(distance: np.ndarray, clouds: Sequence[np.ndarray]) -> list[np.ndarray]:
    return np.split(distance, np.cumsum([len(cloud) for cloud in clouds])[:-1])


def _next(search: _Search, cloud: np.ndarray, distance: np.ndarray) -> _Search:
    """The nearest of a cloud and of those before, and where the next cloud is drawn."""
    points, distance = np.concatenate([search.points, cloud]), np.concatenate([search.distance, distance])
    count = max(int(ELITE * len(cloud)), len(search.mean) + 1)
    nearest = np.argsort(distance, kind="stable")[:count]
    points, distance = points[nearest], distance[nearest]
    mean = points.mean(axis=0)
    apart = points - search.mean  # from where the cloud was: it stays wide as long as the search moves
    covariance = apart.T @ apart / len(points)
    least = np.maximum(np.diag(covariance).max() * 1e-6, 1e-24)
    return search._replace(
        mean=mean,
        root=np.linalg.cholesky(covariance + least * np.eye(len(mean))),
        points=points,
        distance=distance,
    )
