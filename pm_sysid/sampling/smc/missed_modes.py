"""Modes that the particles of a sequential run have missed: searches from draws of the prior, by the likelihood of all samples.

After the first samples no particle may be left near the mode that all samples favour. All that follows is then fitted to the
particles that remain, which agree with each other. Whoever looks for modes must therefore begin elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from pm_sysid.compat import ParameterValueError
from pm_sysid.likelihood.circular import in_other_turns, same_turn
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.descent import descend
from pm_sysid.likelihood.global_search import NEAR, ROUNDS, distinct, worth_polishing
from pm_sysid.likelihood.prior_draws import draw_prior
from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import evenly, normalised

#: What the search may compute, as a part of what the run has computed, and the half of that which prior draws may take.
PART, OF_DRAWS = 0.1, 0.5
#: How many times as much at most, if there are ends to look at.
DEARER = 2.0
#: Prior draws at least and at most, searches at once, and rounds of evaluations for each of them at least.
LEAST_DRAWS, MOST_DRAWS, LANES, LEAST_ROUNDS = 200, 20_000, 16, 25
#: Step of a difference for a gradient, in units of the prior's width, and of the number itself.
STEP, ROUNDING = 1e-6, 1e-10
#: Ends of searches that are looked at more closely.
ENDS = 8
#: Particles among which an end of a search lies, or does not, and the part of them that may lie further out; how many of them
#: tell what is likely, and how much likelier for each unknown an end may be.
AMONG, OUTER, LIKELY, HIGHER = 1000, 0.05, 200, 0.5
#: Widths that are tried for each coordinate at an end, relative to the prior's, and the rise of the negative log posterior
#: that is one standard deviation.
WIDTHS, RISE = np.geomspace(1e-6, 3.0, 27), 0.5
#: Least eigenvalue of a matrix of second derivatives in units of its diagonal.
FLATTEST = 1e-3
#: Draws near an end, and near one that was missed, their degrees of freedom, and how much wider than by the curvature they are.
FEW, MANY, FREEDOM, WIDER = 200, 1000, 5.0, 1.3
#: The share of a normal distribution that is near its middle.
INSIDE = 0.999
#: Share of the posterior from which on a mode matters, and the part of it that particles have to hold.
MATTERS, HELD = 0.01, 1 / 3
#: Most particles that are handed on with draws of what they have missed.
KEPT = 4000
#: By how much Laplace's approximation may be too low.
TOO_LOW = 5.0

type Values = Callable[[np.ndarray], np.ndarray]
type Starts = Callable[[np.ndarray, np.ndarray, np.ndarray], Iterable[np.ndarray]]


class Region(NamedTuple):
    """An ellipsoid about an end of a search.

    Attributes
    ----------
    point : array, shape (d,)
    root : array, shape (d, d)
        Lower root of the covariance.
    circular : array of bool, shape (d,)
        Which coordinates are angles: then all turns of theirs are one.
    """

    point: np.ndarray
    root: np.ndarray
    circular: np.ndarray | bool = False

    def distance(self, x: np.ndarray) -> np.ndarray:
        """Squared Mahalanobis distances (N,) of points (N, d)."""
        away = same_turn(x, self.point, self.circular) - self.point
        z = scipy.linalg.solve_triangular(self.root, away.T, lower=True)
        return np.asarray(np.sum(z**2, axis=0))

    def laplace(self, height: float) -> float:
        """Laplace approximation of the log mass, with ``height`` the least negative log density."""
        return float(-height + 0.5 * len(self.point) * np.log(2 * np.pi) + np.sum(np.log(np.diag(self.root))))

    def inside(self, x: np.ndarray) -> np.ndarray:
        """Which of points (N, d) are near the end."""
        return np.asarray(self.distance(x) < scipy.stats.chi2.ppf(INSIDE, len(self.point)))


class Near(NamedTuple):
    """Weighted draws in a region that particles have missed; their weights sum to what prior times likelihood is there."""

    region: Region
    x: np.ndarray
    log_weights: np.ndarray

    @property
    def log_mass(self) -> float:
        """Logarithm of the integral of prior times likelihood over the region."""
        return float(scipy.special.logsumexp(self.log_weights))


class Search(NamedTuple):
    """What a search has found beside the particles.

    Attributes
    ----------
    missed : tuple of Near
    share : float
        Of the posterior in the regions that were missed.
    x, log_weights, part : arrays, shapes (M, d), (M,) and (M,)
        Particles, and draws of the regions they have missed, weighted for the posterior; zero for particles, and the number of
        the region.
    evaluations : int
        Likelihoods of a sample that were computed.
    skipped : int
        Ends of searches that were not looked at, since evaluations had run out.
    """

    missed: tuple[Near, ...]
    share: float
    x: np.ndarray
    log_weights: np.ndarray
    part: np.ndarray
    evaluations: int
    skipped: int = 0


class Counted:
    """The negative log posterior of a target, up to the evidence, and how many points it was computed at.

    Points are first ``wrapped`` into the turn of each angle that counts, so that a search meets no edge.
    """

    def __init__(self, target: Any, wrapped: Values = lambda x: x) -> None:
        self.target, self.wrapped, self.points = target, wrapped, 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Values (N,) at points (N, d), infinite where there are none."""
        self.points += len(x)
        return self._halved(self.wrapped(x))

    def _halved(self, x: np.ndarray) -> np.ndarray:
        """Values of a batch; where a point makes it fail (searches go far), of its halves."""
        try:
            return -log_posterior(self.target, x)
        except (ParameterValueError, np.linalg.LinAlgError, ValueError):
            if len(x) == 1:
                return np.array([np.inf])
            half = len(x) // 2
            return np.concatenate([self._halved(x[:half]), self._halved(x[half:])])


def log_posterior(target: Any, x: np.ndarray) -> np.ndarray:
    """Log posterior (N,) of points (N, d), up to the evidence; minus infinity where it cannot be computed."""
    total = np.asarray(target.log_prior(x), dtype=float)
    possible = np.isfinite(total)
    total = np.where(possible, total, -np.inf)
    if possible.any():
        total[possible] += target.log_likelihood(x[possible])
    return np.where(np.isnan(total), -np.inf, total)


def best_and_summits(draws: np.ndarray, values: np.ndarray, scale: np.ndarray) -> Iterator[np.ndarray]:
    """Points to search from: the best draws (N, d) and summits, each apart from those before it."""
    return (draws[i] for i in distinct(draws, values, scale, []))


class Way(NamedTuple):
    """How a search goes.

    Attributes
    ----------
    of_draws : float
        Part of what it computes that draws of the prior take.
    starts : callable
        Points (d,) to search from, the most promising first, by draws (N, d) of the prior, their negative log posteriors (N,)
        and the widths (d,) of the prior.
    counts : tuple of int
        Draws near an end: few at first, then more if these say that it was missed.
    elsewhere : bool
        Whether ends that lie among the particles are taken for held, however few of these are there, and for whatever mass.
    ends : int
        Most of them that are looked at.
    """

    of_draws: float = OF_DRAWS
    starts: Starts = best_and_summits
    counts: tuple[int, ...] = (FEW, MANY)
    elsewhere: bool = True
    ends: int = ENDS


#: As at the end of a sequential run.
USUAL = Way()


def search(
    target: Any,
    x: np.ndarray,
    log_weights: np.ndarray,
    evaluations: int,
    rng: np.random.Generator,
    way: Way = USUAL,
) -> Search | None:
    """Modes of a posterior that particles do not hold, and what these hold of it; None where the prior cannot be drawn from.

    Searches go uphill from draws of the prior, by differences in the place of gradients, so that nothing is compiled and any
    likelihood will do. Where they end elsewhere than among the particles, draws give the mass of the ellipsoid around, and the
    particles in it are counted: both numbers are of the same region, whatever the shape of the posterior.

    Parameters
    ----------
    target : Target
    x : array, shape (N, d)
        Particles.
    log_weights : array, shape (N,)
        Of the particles; they sum to the integral of prior times likelihood, as far as the particles know.
    evaluations : int
        Likelihoods of a sample that the run has computed.
    rng : numpy.random.Generator
    way : Way
    """
    value, most = Counted(target, target.coordinates.wrapped), int(PART * evaluations / target.n_samples)
    draws = prior(target.coordinates, int(np.clip(way.of_draws * most, LEAST_DRAWS, MOST_DRAWS)), rng)
    if draws is None:
        return None
    scale = widths(draws)
    ends, values = climbed(value, draws, scale, most, way.starts)
    ends = target.coordinates.wrapped(ends)
    some = x[rng.permutation(len(x))[:AMONG]]
    elsewhere = ~among(value, ends, values, some, rng)
    # Those among the particles come last, if at all.
    order = np.flatnonzero(elsewhere) if way.elsewhere else np.argsort(~elsewhere, kind="stable")
    missed, seen, least = list[Near](), list[Region](), float(scipy.special.logsumexp(log_weights) + np.log(MATTERS) - TOO_LOW)
    skipped = 0
    for end, height, outside in zip(ends[order], values[order], elsewhere[order], strict=True):
        if any(region.distance(end[None])[0] < NEAR for region in seen):
            continue
        if len(seen) == way.ends:
            break
        if value.points + curvature_points(x.shape[1]) > DEARER * most:
            skipped += int(outside)
            continue
        region = curved(value, end, height, scale)._replace(circular=target.coordinates.circular)
        seen.append(region)
        if region.laplace(height) < least:
            continue
        others = [near.region for near in missed]
        for count in way.counts:  # few draws tell most regions that particles hold
            near = drawn_near(value, region, others, count, rng)
            if not not_held(near, x, log_weights, by_mass=not way.elsewhere):
                break
        else:
            missed.append(near)
    return joined(missed, x, log_weights, value.points * target.n_samples)._replace(skipped=skipped)


def prior(coordinates: Coordinates, count: int, rng: np.random.Generator) -> np.ndarray | None:
    """Draws (count, d) of the prior; None where there are none, as of ``pm.Flat``."""
    try:
        return draw_prior(coordinates, count, rng)
    except (NotImplementedError, ValueError):
        return None


def widths(draws: np.ndarray) -> np.ndarray:
    """Half of the width (d,) of the middle two thirds of draws (N, d): the standard deviation, if they are normal."""
    low, high = np.quantile(draws, scipy.stats.norm.cdf([-1.0, 1.0]), axis=0)
    return np.where(high > low, (high - low) / 2, 1.0)


def climbed(
    value: Counted, draws: np.ndarray, scale: np.ndarray, most: int, starts: Starts = best_and_summits
) -> tuple[np.ndarray, np.ndarray]:
    """Ends (n, d) of searches that may hold a part of the posterior, and negative log posteriors there; the best first.

    Prior draws and searches together compute at most ``most`` points, unless these are too few to find anything.
    """
    at = value(draws)
    d = draws.shape[1]
    lanes = int(np.clip((most - value.points) / (LEAST_ROUNDS * (d + 1)), 4, LANES))
    x = np.array([point for _, point in zip(range(lanes), starts(draws, at, scale), strict=False)])
    if not len(x):
        return draws[:0], at[:0]
    rounds = int(np.clip((most - value.points) / (len(x) * (d + 1)), LEAST_ROUNDS, ROUNDS))
    ends = descend(differences(value, STEP * scale), x, scale, rounds)
    worth = np.flatnonzero(worth_polishing(ends, []))
    order = worth[np.argsort(ends.value[worth], kind="stable")]
    return ends.x[order], ends.value[order]


def differences(value: Values, step: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Values (B,) and gradients (B, d) of points (B, d) by differences with steps (d,), in one batch."""

    def batch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, d = x.shape
        there = x + (step + ROUNDING * np.abs(x))
        moved = np.where(np.eye(d, dtype=bool), there[:, None], x[:, None])
        found = value(np.concatenate([x, moved.reshape(-1, d)]))
        with np.errstate(invalid="ignore"):
            gradient = (found[n:].reshape(n, d) - found[:n, None]) / (there - x)
        lost = ~np.isfinite(found[:n]) | ~np.isfinite(gradient).all(axis=1)
        return np.where(lost, np.inf, found[:n]), np.where(lost[:, None], 0.0, gradient)

    return batch


def among(value: Values, ends: np.ndarray, values: np.ndarray, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which ends (n, d) lie among particles (N, d) and are not much likelier than all of them.

    A spike in the midst of the particles is likelier.
    """
    around = Mixture.fit(x, np.full(len(x), 1 / len(x)), FREEDOM, rng)
    best = float(np.min(value(x[:LIKELY])))
    with np.errstate(over="ignore"):  # all particles may be one
        outer, inside = np.quantile(around.logpdf(x), OUTER), around.logpdf(ends)
    return np.asarray((inside >= outer) & (values >= best - 1 - HIGHER * x.shape[1]))


def curvature_points(d: int) -> int:
    """Points at which the curvature in d unknowns is computed."""
    return 2 * len(WIDTHS) * d + 2 * d * (d - 1)


def curved(value: Values, point: np.ndarray, height: float, scale: np.ndarray) -> Region:
    """Region about a point, by how the negative log posterior rises from ``height`` there.

    Along each coordinate the width is the one at which it has risen by a half; along pairs of coordinates these widths are the
    steps of second differences. Where it does not rise as around a maximum, the region is what comes nearest to that.
    """
    d = len(point)
    steps = WIDTHS[:, None, None] * np.diag(scale)
    both = value(np.concatenate([(point + steps).reshape(-1, d), (point - steps).reshape(-1, d)]))
    rise = both.reshape(2, len(WIDTHS), d).mean(axis=0) - height
    steep = rise > RISE
    first = np.where(steep.any(axis=0), np.argmax(steep, axis=0), len(WIDTHS) - 1)
    risen = rise[first, np.arange(d)]
    below = WIDTHS[np.maximum(first - 1, 0)]
    width = scale * np.clip(WIDTHS[first] * np.sqrt(RISE / np.maximum(risen, RISE)), below, WIDTHS[first])
    hessian = np.eye(d)
    i, j = np.triu_indices(d, 1)
    if len(i):
        one, other = np.eye(d)[i] * width, np.eye(d)[j] * width
        corners = np.concatenate([point + a * one + b * other for a, b in ((1, 1), (-1, -1), (1, -1), (-1, 1))])
        with np.errstate(invalid="ignore"):
            mixed = np.array([1, 1, -1, -1]) @ value(corners).reshape(4, -1) / (8 * RISE)
        hessian[i, j] = hessian[j, i] = np.where(np.isfinite(mixed), np.clip(mixed, -1.0, 1.0), 0.0)
    eigenvalues, vectors = np.linalg.eigh(hessian)
    covariance = (vectors / np.maximum(np.abs(eigenvalues), FLATTEST)) @ vectors.T
    return Region(point, np.linalg.cholesky(width[:, None] * covariance * width))


def drawn_near(value: Values, region: Region, others: list[Region], count: int, rng: np.random.Generator) -> Near:
    """Weighted draws in a region, without those in others."""
    proposal = Mixture(np.ones(1), region.point[None], WIDER * region.root[None], FREEDOM)
    x = proposal.draw(count, rng)
    log_weights = -value(x) - proposal.logpdf(x) - np.log(len(x))
    here = region.inside(x) & (log_weights > -np.inf) & ~in_other_turns(x, region.point, region.circular)
    for other in others:
        here &= ~other.inside(x)
    return Near(region, x[here], log_weights[here])


def not_held(near: Near, x: np.ndarray, log_weights: np.ndarray, by_mass: bool = False) -> bool:
    """Whether a region has a share of the posterior that matters, of which the particles (N, d) hold too little.

    ``by_mass`` it is also compared with what the particles stand for that lie in it: all of them may lie in a needle that
    stands in the midst of a broad mode.
    """
    if not len(near.x):
        return False
    inside = near.region.inside(x)
    rest = float(scipy.special.logsumexp(log_weights[~inside])) if not inside.all() else -np.inf
    share = float(np.exp(near.log_mass - np.logaddexp(near.log_mass, rest)))
    held = float(normalised(log_weights)[inside].sum()) >= HELD * share
    if held and by_mass and inside.any():
        held = float(scipy.special.logsumexp(log_weights[inside])) >= near.log_mass + np.log(HELD)
    return share > MATTERS and not held


def joined(missed: list[Near], x: np.ndarray, log_weights: np.ndarray, evaluations: int) -> Search:
    """Particles outside of the regions that they have missed, and draws in these."""
    outside = np.ones(len(x), dtype=bool)
    for near in missed:
        outside &= ~near.region.inside(x)
    x, log_weights = fewer(x[outside], log_weights[outside])
    rows = np.concatenate([x, *(near.x for near in missed)])
    together = np.concatenate([log_weights, *(near.log_weights for near in missed)])
    part = np.repeat(np.arange(len(missed) + 1), [len(x), *(len(near.x) for near in missed)])
    share = float(normalised(together)[part > 0].sum())
    return Search(tuple(missed), share, rows, together, part, evaluations)


def fewer(x: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted particles (N, d), or as many of those of many chains as are enough, with the same sum of their weights."""
    if len(x) <= KEPT:
        return x, log_weights
    total = float(scipy.special.logsumexp(log_weights))
    return x[evenly(normalised(log_weights), KEPT)], np.full(KEPT, total - np.log(KEPT))


def lost_mode(missed: Sequence[Near], x: np.ndarray, log_weights: np.ndarray) -> float:
    """Log mass, relative to that of particles (N, d), of a missed mode in which they do not stay; NaN if they hold them all."""
    lost = [near.log_mass for near in missed if not_held(near, x, log_weights)]
    return max(lost) - float(scipy.special.logsumexp(log_weights)) if lost else float("nan")
