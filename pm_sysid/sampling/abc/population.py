"""Populations of particles of several models below a falling threshold: the mathematics of the ABC nested sampler."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy

from pm_sysid.sampling.abc.cover import Cover, cover
from pm_sysid.sampling.abc.ellipsoids import Ellipsoid, Pieces, around, pieces, whole_cube

#: No more than this share of a population is dropped at a time.
MOST_DROPPED = 0.9
#: Effective particles that each piece of a model keeps, for each of its coordinates and one more, and the part that it keeps if
#: it has hardly more; for pieces with at least this share of the weight.
KEPT, KEPT_PART, LIVING = 5, 0.5, 0.01
#: A model of fewer particles is proposed more often, at most by this factor.
MOST_OFTEN = 10.0
#: Share of the draws from the ellipsoid of all particles where these lie in separate pieces.
DEFENSIVE = 0.1
#: Arrays of a population.
COLUMNS = ("model", "points", "distance", "log_prior", "log_pool")
#: Most local ellipsoids of a model.
CENTRES = 100
#: Effective particles of a model, as a part of those that its weight is worth, below which it is proposed more often.
WORTH = 0.5
#: Acceptance of the ellipsoid of all particles below which local ones are drawn more often, at most with this probability.
EMPTY, MOST_LOCAL = 0.2, 0.8


class Candidates(NamedTuple):
    """Proposed particles: model (B,), points of its cube (B, d) padded by NaN, seed."""

    model: np.ndarray
    points: np.ndarray
    seed: int


class Outcome(NamedTuple):
    """What became of candidates: distance (B,), infinite if not simulated; log potential (B,); simulations run."""

    distance: np.ndarray
    log_potential: np.ndarray
    simulations: int


@dataclass(frozen=True)
class Population:
    """Particles of all models below a threshold: every candidate of all rounds so far that comes as close.

    They are draws from the mixture of all the proposals, of which the weights know (multiple importance sampling with the
    balance heuristic, Owen and Zhou 2000), so that what a later ellipsoid missed is still represented by an earlier, wider one.

    Attributes
    ----------
    model : numpy.ndarray, shape (N,)
        Number of each particle's model.
    points : numpy.ndarray, shape (N, d)
        In the unit cube of the model, padded by NaN.
    distance : numpy.ndarray, shape (N,)
    log_prior : numpy.ndarray, shape (N,)
        Log of prior probability of the model times constrained prior density of the point.
    log_pool : numpy.ndarray, shape (N,)
        Log of the densities of all proposals at the point, each times the number of candidates drawn from it.
    threshold : float
        All distances are below.
    """

    model: np.ndarray
    points: np.ndarray
    distance: np.ndarray
    log_prior: np.ndarray
    log_pool: np.ndarray
    threshold: float

    def __len__(self) -> int:
        return len(self.model)

    @property
    def weight(self) -> np.ndarray:
        """Importance weights, which sum to one."""
        log_weight = self.log_prior - self.log_pool
        weight = np.exp(log_weight - log_weight.max())
        normalised: np.ndarray = weight / weight.sum()
        return normalised

    def log_mass(self, n_models: int) -> np.ndarray:
        """Log of the estimated prior mass below the threshold, by model, times the model's prior probability."""
        log_weight = self.log_prior - self.log_pool
        parts = [log_weight[self.model == k] for k in range(n_models)]
        return np.array([scipy.special.logsumexp(part) if len(part) else -np.inf for part in parts])

    def probability(self, n_models: int) -> np.ndarray:
        """Posterior probability of each model: its share of the weight."""
        return np.bincount(self.model, self.weight, n_models)

    def share(self, n_models: int) -> np.ndarray:
        """Share of each model in the number of particles (Eq. 17 as printed)."""
        return np.bincount(self.model, minlength=n_models) / len(self)

    @property
    def ess(self) -> float:
        """Effective number of particles."""
        return 1.0 / float(np.sum(self.weight**2))

    def below(self, threshold: float) -> Population:
        """Those below a lower threshold."""
        rows = self.distance < threshold
        return replace(self, threshold=threshold, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def pooled(self, proposals: ProposalDistribution, tried: int) -> Population:
        """The same, with one more proposal in the mixture."""
        more = math.log(tried) + proposals.log_density(self.model, self.points)
        return replace(self, log_pool=np.logaddexp(self.log_pool, more))

    def join(self, other: Population) -> Population:
        """The particles of two populations as one, with the threshold of this one."""
        columns: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS}
        return replace(self, **columns)


class Part(NamedTuple):
    """Particles of a piece of a model, and how many effective ones a fall of the threshold must leave of it."""

    rows: np.ndarray
    kept: float


def living_parts(population: Population, proposals: ProposalDistribution, enlarge: float) -> list[Part]:
    """Separate pieces of all models that have a weight worth keeping.

    A steep fall may leave so few particles of a piece that the next ellipsoid misses most of it; after one or two such rounds
    it has died, however large its share is.
    """
    weight, parts = population.weight, []
    for k, region in enumerate(proposals.regions):
        (mine,) = np.nonzero(population.model == k)
        if region is None or not len(mine):
            continue
        d = proposals.sizes[k]
        points, kernel = population.points[mine, :d], kernel_weights(population.distance[mine], population.threshold)
        for piece, _ in pieces(points, kernel, enlarge, around(points, kernel, enlarge, region.standard)):
            rows = mine[piece]
            total = float(weight[rows].sum())
            if total >= LIVING:
                effective = total**2 / float(np.sum(weight[rows] ** 2))
                # Of a straight region few particles tell the shape; a bent one is known where they are, and nowhere else.
                bent, part = proposals.probabilities.bent_of(k), KEPT_PART * effective
                parts.append(Part(rows, bent * part + (1 - bent) * min(KEPT * (d + 1), part)))
    return parts


def next_threshold(population: Population, drop: float, parts: Sequence[Part] = ()) -> float:
    """Threshold under which a share of the particles is dropped (Algorithm 1, lines 13-15; Algorithm 2, lines 12-14).

    It is the same share of the number or of the weight of the particles, whichever leaves less: particles of a model that has
    come as close as it can are many, and their weight is nothing. Each part is left the effective
    particles that it asks for.
    """
    order = np.argsort(population.distance)[::-1]
    n, share = len(order), min(drop, MOST_DROPPED)
    by_number = max(1, math.floor(share * n))
    by_weight = 1 + int(np.searchsorted(np.cumsum(population.weight[order]), share))
    index = min(max(by_number, by_weight), max(1, math.floor(MOST_DROPPED * n)))
    threshold = float(population.distance[order[index - 1]])
    for rows, kept in parts:
        nearest = rows[np.argsort(population.distance[rows])]
        weight = population.weight[nearest]
        effective = np.cumsum(weight) ** 2 / np.cumsum(weight**2)
        needed = nearest[min(int(np.argmax(effective >= kept)), len(nearest) - 1)]
        threshold = max(threshold, float(np.nextafter(population.distance[needed], np.inf)))
    return min(threshold, float(population.distance[order[0]]))


def share_to_drop(before: Population, now: Population, least: float, n_models: int) -> float:
    """Share that the growing concentration of the distances suggests (Eq. 16 and Algorithm 2)."""
    ratios = [least]
    for k in range(n_models):
        peaks = [_peak(p.distance[p.model == k]) for p in (before, now)]
        if min(peaks) > 0:
            ratios.append(1 - peaks[0] / peaks[1])
    return max(ratios)


def _peak(distances: np.ndarray) -> float:
    """Maximum of the kernel density estimate; zero where there is none."""
    if len(distances) < 3 or np.ptp(distances) <= 1e-12 * abs(distances[0]):
        return 0.0
    grid = np.linspace(distances.min(), distances.max(), 200)
    return float(np.max(scipy.stats.gaussian_kde(distances)(grid)))


def kernel_weights(distance: np.ndarray, threshold: float) -> np.ndarray:
    """Epanechnikov weights, unnormalised (Algorithm 3)."""
    result: np.ndarray = np.maximum(1 - (distance / threshold) ** 2, 1e-12)
    return result


class Region(NamedTuple):
    """Where a model's candidates come from: the ellipsoid of its particles, the shrunken one at the best, small local ones.

    Where the particles lie in separate pieces, most candidates of the first come from the pieces' own ellipsoids.
    """

    standard: Ellipsoid
    shrunken: Ellipsoid | None = None
    local: Cover | None = None
    pieces: Pieces | None = None


class ProposalProbabilities(NamedTuple):
    """Probabilities with which the shrunken and the local ellipsoids are drawn from.

    ``bent`` says of each model how empty its ellipsoid is, from 0 to 1 (see :func:`emptiness`); none: of all, 0.
    """

    shrunken: float = 0.0
    local: float = 0.0
    bent: tuple[float, ...] = ()

    def bent_of(self, k: int) -> float:
        """How empty the ellipsoid of a model is."""
        return self.bent[k] if self.bent else 0.0

    def local_of(self, k: int) -> float:
        """Probability with which the local ellipsoids of a model are drawn from."""
        return self.local_at(self.bent_of(k))

    def local_at(self, bent: float) -> float:
        """Probability with which the local ellipsoids of a model as bent are drawn from."""
        return max(self.local, (1 - self.shrunken) * MOST_LOCAL * bent)


@dataclass
class ProposalDistribution:
    """Regions of all models that are alive, and how often each is drawn from.

    Attributes
    ----------
    regions : list of Region or None
        None for a model that has died.
    models : numpy.ndarray, shape (K,)
        Probability with which each model is proposed.
    probabilities : ProposalProbabilities
    sizes : sequence of int
        Coordinates of each model.
    """

    regions: list[Region | None]
    models: np.ndarray
    probabilities: ProposalProbabilities
    sizes: Sequence[int]

    def batches(self, seed: Sequence[int], size: int) -> Iterator[Candidates]:
        """Candidates without end; each batch has a seed of its own, so that any batch can be drawn again."""
        number = 0
        while True:
            sequence = np.random.SeedSequence([*seed, number])
            yield self._draw(np.random.default_rng(sequence), size)
            number += 1

    def _draw(self, rng: np.random.Generator, size: int) -> Candidates:
        model = rng.choice(len(self.models), size, p=self.models)
        points = np.full((size, max(self.sizes)), np.nan)
        for k, region in enumerate(self.regions):
            (rows,) = np.nonzero(model == k)
            if region is None or not len(rows):
                continue
            d = self.sizes[k]
            choice = rng.random(len(rows))[:, None]
            normal, radius, flat = rng.standard_normal((len(rows), d)), rng.random(len(rows)), rng.random((len(rows), d))
            drawn = region.standard.draw(normal, radius, flat)
            if region.pieces is not None:
                which, wide = rng.random((2, len(rows)))
                drawn = np.where(wide[:, None] < DEFENSIVE, drawn, region.pieces.draw(which, normal, radius, flat))
            if region.shrunken is not None:
                drawn = np.where(choice < self.probabilities.shrunken, region.shrunken.draw(normal, radius), drawn)
            if region.local is not None:
                which = rng.random(len(rows))
                drawn = np.where(choice >= 1 - self.probabilities.local_of(k), region.local.draw(which, normal, radius), drawn)
            points[rows, :d] = drawn
        return Candidates(model, points, int(rng.integers(2**31)))

    def log_density(self, model: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Log-density (B,) with which particles are drawn."""
        result = np.full(len(model), -np.inf)
        for k, region in enumerate(self.regions):
            (rows,) = np.nonzero(model == k)
            if region is not None and len(rows):
                result[rows] = math.log(self.models[k]) + self._log_mixture(region, k, points[rows, : self.sizes[k]])
        return result

    def _log_mixture(self, region: Region, k: int, points: np.ndarray) -> np.ndarray:
        """Log-density of the mixture of a model's ellipsoids."""
        shrunken = self.probabilities.shrunken if region.shrunken is not None else 0.0
        local = self.probabilities.local_of(k) if region.local is not None else 0.0
        with np.errstate(divide="ignore"):
            total: np.ndarray = np.where(
                region.standard.holds(points), np.log1p(-shrunken - local) - region.standard.log_volume, -np.inf
            )
            if region.pieces is not None:
                most = np.log1p(-shrunken - local) + np.log1p(-DEFENSIVE) + region.pieces.log_density(points)
                total = np.logaddexp(total + np.log(DEFENSIVE), most)
            if region.shrunken is not None:
                inside = region.shrunken.holds(points)
                total = np.logaddexp(total, np.where(inside, np.log(shrunken) - region.shrunken.log_volume, -np.inf))
            if region.local is not None:
                total = np.logaddexp(total, np.log(local) + region.local.log_density(points))
        return total


def initial_proposals(sizes: Sequence[int], prior: np.ndarray, log_mass: np.ndarray) -> ProposalDistribution:
    """The priors themselves; a model of which constraints reject much is proposed more often."""
    models = prior / np.exp(log_mass)
    return ProposalDistribution([Region(whole_cube(d)) for d in sizes], models / models.sum(), ProposalProbabilities(), sizes)


def next_proposals(
    before: ProposalDistribution,
    active: Population,
    threshold: float,
    prior: np.ndarray,
    probabilities: ProposalProbabilities,
    *,
    shrink: float,
    enlarge: float,
    uniform: float,
    particles: int,
) -> ProposalDistribution:
    """Ellipsoids around the active particles of each model (Algorithm 4); ``threshold`` is the one before."""
    K = len(before.sizes)
    regions: list[Region | None] = []
    weight, often, bent, accepted = active.weight, np.zeros(K), np.zeros(K), np.zeros(K)
    for k, d in enumerate(before.sizes):
        mine = active.model == k
        old = before.regions[k]
        if not mine.any() or old is None:
            regions.append(None)
            continue
        points, distance = active.points[mine, :d], active.distance[mine]
        kernel = kernel_weights(distance, threshold)
        standard = around(points, kernel, enlarge, old.standard)
        shrunken = standard.shrunken(points[np.argmin(distance)], shrink) if probabilities.shrunken > 0 else None
        share = np.maximum(weight[mine] / weight[mine].max(), 1e-300)
        # Sums of the densities of proposals over these are the parts of their draws that are accepted.
        volume = np.exp(-active.log_pool[mine])
        accepted[k] = empty = float(np.sum(volume * standard.holds(points))) * math.exp(-standard.log_volume)
        local = None
        if probabilities.local > 0:
            local, centres = cover(points, share, standard, CENTRES, uniform)
            dense = float(np.sum(volume * np.exp(local.log_density(points, centres))))
            bent[k] = emptiness(empty, dense)
            if bent[k] == 0:  # even density is for bent regions; in others, centres are as likely as each other
                local = replace(local, shares=np.full(len(centres), 1 / len(centres)))
            accepted[k] += probabilities.local_at(bent[k]) * (dense - empty)
        often[k] = shortage(weight[mine], d, particles)
        regions.append(Region(standard, shrunken, local, _separate(points, kernel, share, enlarge, standard)))
    # Models that lack particles are proposed the more often the fewer of their candidates are accepted.
    alike = np.maximum(np.max(accepted) / np.maximum(accepted, 1e-300), 1.0)
    models = prior * np.where(often > 1, np.minimum(often * alike, MOST_OFTEN), often)
    return ProposalDistribution(regions, models / models.sum(), probabilities._replace(bent=tuple(bent.tolist())), before.sizes)


def shortage(weight: np.ndarray, d: int, particles: int) -> float:
    """Factor by which the effective particles of a model, with these weights, are too few; 1 if they are enough.

    Few particles that hold much of the weight would be fewer still after the next fall of the threshold. ``particles`` is the
    number for all models, whose weights add up to one.
    """
    total = float(weight.sum())
    if total < LIVING:
        return 1.0
    effective = total**2 / float(np.sum(weight**2))
    return max(max(KEPT * (d + 1), WORTH * particles * total) / effective, 1.0)


def emptiness(accepted: float, locally: float) -> float:
    """How empty an ellipsoid is, from 0 to 1, by the acceptance of its draws and of those from local ellipsoids.

    Nearly all draws from that around a bent region are in vain. Where the local ones do hardly better, as in many dimensions or
    beside a simulator with much noise, they are not preferred.
    """
    return max(1 - accepted / EMPTY, 0.0) * max(1 - 2 * accepted / max(locally, 1e-300), 0.0)


def _separate(points: np.ndarray, kernel: np.ndarray, weight: np.ndarray, enlarge: float, standard: Ellipsoid) -> Pieces | None:
    """Ellipsoids of separate pieces, drawn from half by their weight and half evenly; None for a single piece."""
    found = pieces(points, kernel, enlarge, standard)
    if len(found) == 1:
        return None
    mass = np.array([weight[rows].sum() for rows, _ in found])
    return Pieces(tuple(ellipsoid for _, ellipsoid in found), 0.5 * (mass / mass.sum() + 1 / len(found)))


def picked(candidates: Candidates, outcome: Outcome, rows: np.ndarray) -> tuple[Candidates, Outcome]:
    """Some of the candidates, and what became of them."""
    some = candidates._replace(model=candidates.model[rows], points=candidates.points[rows])
    return some, outcome._replace(distance=outcome.distance[rows], log_potential=outcome.log_potential[rows])


def gathered(
    parts: Sequence[tuple[Candidates, Outcome]],
    mixture: Sequence[tuple[int, ProposalDistribution]],
    threshold: float,
    prior: np.ndarray,
    log_mass: np.ndarray,
) -> Population:
    """Accepted candidates as a population; ``mixture`` holds all proposals, with the number of candidates drawn from each."""
    model = np.concatenate([c.model for c, _ in parts])
    points = np.concatenate([c.points for c, _ in parts])
    distance = np.concatenate([o.distance for _, o in parts])
    potential = np.concatenate([o.log_potential for _, o in parts])
    log_prior = np.log(prior[model]) - log_mass[model] + potential
    new = Population(model, points, distance, log_prior, np.full(len(model), -np.inf), threshold)
    for tried, proposals in mixture:
        new = new.pooled(proposals, tried)
    return new
