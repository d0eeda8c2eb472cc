"""Proposals that know of the whole posterior: a population of weighted draws that takes the samples in beside a chain.

A chain that walks stays in the mode that it has come to, and seldom sees a far tail. Draws of the prior that are weighted by
the first samples, fitted by a mixture, drawn again and weighted by more samples lose a place only if its share becomes small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.global_search import far_from_better
from pm_sysid.likelihood.prefix_target import Prefix
from pm_sysid.likelihood.prior_draws import draw_prior
from pm_sysid.sampling.smc.evidence import Estimate, importance, pareto_shape
from pm_sysid.sampling.smc.missed_modes import FEW, WIDER, Search, Way, search
from pm_sysid.sampling.smc.missed_modes import PART as OF_RUN
from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import effective_size, evenly, normalised
from pm_sysid.sampling.smc.stages import GOOD_K

#: Evaluations of the whole record for each draw of the chain, draws of a stage for each of these, and the fewest and most.
PART, STAGE, FEWEST, MOST = 0.25, 0.15, 200, 1000
#: Evaluations of the whole record that are made for a short chain, too, if it has as many draws.
LEAST = 2000
#: How many times as many draws a stage has at most, if it has few samples, and what part of a round with all it then costs.
MORE, COST = 5, 0.5
#: Rounds with all samples that evaluations are kept for.
RESERVE = 3
#: Draws of a chain below which there is no population.
SHORT = 500
#: Degrees of freedom of the proposals.
FREEDOM = 3.0
#: Factors by which the number of samples grows at least and at most, and how much further than last time it is looked.
LEAST_GROWTH, MOST_GROWTH, FURTHER = 1.2, 8.0, 1.5
#: Effective draws for each unknown, and effective share of the draws, that a stage has to keep.
FOLLOWED, KEPT = 10, 0.1
#: How often proposals are fitted again to the same samples, if too few draws bear these.
AGAIN = 10
#: Effective draws for each unknown that a mixture follows.
FITTED = 20
#: Most rounds with all samples, and the effective share with which they end.
ROUNDS, ENOUGH = 8, 0.4
#: Shares of the proposals that have the prior's width, that follow the chain, and that are near modes that had been lost.
OF_PRIOR, OF_CHAIN, OF_LOST = 0.1, 0.2, 0.1
#: Evaluations in a search for modes that were lost, for each that the population may take else, and at most; the part of them
#: that draws of the prior take.
SEARCH, MOST_OF_SEARCH, OF_DRAWS = 0.4, 1500, 0.7


class Found(NamedTuple):
    """A mixture, what draws of it say of the evidence, how many samples were evaluated; draws and their log weights.

    ``followed`` is False where hardly any draws could bear a step from few samples to more: a mode may have been lost.
    """

    proposal: Mixture
    estimate: Estimate
    evaluated: int
    x: np.ndarray
    log_weights: np.ndarray
    followed: bool


class Cloud(NamedTuple):
    """Draws (M, d) of several proposals in turn, as many of each, and the log posterior (M,) of all samples there."""

    x: np.ndarray
    log_target: np.ndarray
    proposals: tuple[Mixture, ...]

    @property
    def log_weights(self) -> np.ndarray:
        """Log weights (M,) of draws of all these proposals together."""
        densities = np.array([p.logpdf(self.x) for p in self.proposals])
        weights: np.ndarray = self.log_target - (scipy.special.logsumexp(densities, axis=0) - np.log(len(densities)))
        return weights

    @property
    def latest(self) -> Estimate:
        """What the draws of the last proposal say."""
        return importance(self.last_weighted[1])

    @property
    def last_weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws of the last proposal and their log weights."""
        last = slice(-(len(self.x) // len(self.proposals)), None)
        return self.x[last], self.log_target[last] - self.proposals[-1].logpdf(self.x[last])

    @property
    def weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws and their log weights: all of them, or those of the last proposal if all have uneven ones."""
        weights = self.log_weights
        return (self.x, weights) if pareto_shape(weights) <= GOOD_K else self.last_weighted


def size(draws: int) -> int:
    """Number of draws of each stage for a chain of so many draws; zero for short ones."""
    return 0 if draws < SHORT else int(np.clip(STAGE * evaluations(draws), FEWEST, MOST))


def evaluations(draws: int) -> float:
    """Evaluations of the whole record for a chain of so many draws."""
    return max(PART * draws, min(LEAST, draws))


def many(count: int, part: float) -> int:
    """Number of draws of a stage that sees a part of the samples."""
    return int(np.clip(COST * count / part, count, MORE * count))


def population(prefix: Prefix, draws: int, chain: np.ndarray, rng: np.random.Generator) -> Found | None:
    """Take samples in with weighted draws, until a mixture fits the posterior of all of them.

    Parameters
    ----------
    prefix : Prefix
    draws : int
        Of the chain: the population costs a part of what they do, and no more than they do where they are few; the search for
        lost modes comes on top.
    chain : numpy.ndarray, shape (M, d)
        Draws of a chain with all samples, which the last proposals follow, too; may be empty. Angles are in the turn that
        ``prefix.coordinates.centre`` is the middle of.
    rng : numpy.random.Generator

    Returns
    -------
    Found or None
        None if the chain is short or the prior cannot be drawn from.

    Notes
    -----
    A stage takes in as many samples as its weights bear. Weights that are uneven all the same are tempered before a mixture is
    fitted to them, so that it follows no handful of draws, and more draws of it are weighted by the same samples. Early stages
    have few samples, and more draws for the same cost: a mode that a few draws hold is lost by chance. With all samples in,
    draws of all rounds are weighted together.

    A narrow mode may lie between the first draws, or hold so few of them that no mixture follows it; all that comes after is
    fitted to what was kept, and agrees with itself. After the first round with all samples, modes that its draws lack are
    therefore searched for from draws of the prior. Draws of those that are found join the others before the next mixture is
    fitted, and each keeps a component of its own.

    Source: Cornuet, Marin, Mira and Robert (2012), Adaptive multiple importance sampling, Scandinavian Journal of Statistics
    39, 798-812.
    """
    count, N, d = size(draws), prefix.n_samples, len(prefix.labels)
    if not count:
        return None
    try:
        x = prefix.coordinates.wrapped(draw_prior(prefix.coordinates, MORE * count, int(rng.integers(2**31))))
    except (ValueError, NotImplementedError):  # constraints that hardly any draw obeys, or no prior to draw from
        return None
    of_prior, own = _fitted(x, rng), None
    if len(np.unique(chain, axis=0)) > 2 * d:
        own = _fitted(chain, rng)
    n, growth, evaluated, budget = 1, MOST_GROWTH, 0, evaluations(draws) * N
    first, followed, again, lost, early = True, True, 0, None, (x[:0], np.empty(0))
    x = x[: many(count, growth / N)]
    proposal, cloud = of_prior, Cloud(np.empty((0, d)), np.empty(0), ())
    while True:
        reach = min(N, int(np.ceil(growth * n)))
        log_target, log_prior = _paths(prefix, x, n, reach)
        evaluated += len(x) * reach
        if n == N and not first:
            cloud = Cloud(
                np.concatenate([cloud.x, x]), np.concatenate([cloud.log_target, log_target[:, 0]]), (*cloud.proposals, proposal)
            )
            found, rounds = cloud.latest, len(cloud.proposals)
            if rounds == ROUNDS or (rounds > 1 and found.efficiency >= ENOUGH) or evaluated + count * N > budget:
                return Found(proposal, found, evaluated, *cloud.weighted, followed)
            points, weights = cloud.x, cloud.log_weights
            followed &= rounds > 1 or bool(effective_size(weights) >= FOLLOWED * d)
            if rounds == 1 and (looked := lacked(prefix, cloud, early, draws, rng)) is not None:
                evaluated, budget = evaluated + looked.evaluations, budget + looked.evaluations
                if looked.missed:
                    lost, points, weights = _near(looked), looked.x, looked.log_weights
        else:
            # Draws of the prior have the density of the prior, up to the mass that potentials leave.
            density = log_prior if first else proposal.logpdf(x)
            if first and reach == N:
                early = (x, log_target[:, -1])
            first = False
            with np.errstate(invalid="ignore"):
                log_weights = log_target - density[:, None]
            log_weights[np.isnan(log_weights)] = -np.inf
            bears = effective_size(log_weights) >= max(FOLLOWED * d, KEPT * len(x))
            again = again + 1 if not bears[0] and again < AGAIN else 0
            ahead = int(np.max(np.flatnonzero(bears), initial=0))
            followed &= bool(bears[0]) or again > 0
            if not again:
                ahead = max(ahead, min(reach - n, int(np.ceil((LEAST_GROWTH - 1) * n))))
            growth = float(np.clip(FURTHER * (n + ahead) / n, FURTHER, MOST_GROWTH))
            points, weights, n = x, log_weights[:, ahead], n + ahead
            if evaluated + RESERVE * count * N > budget:
                n = N
        if not np.any(weights > -np.inf):
            return None
        fitted = Mixture.fit(points, tempered(weights, d), FREEDOM, rng)
        proposal = _joined([(1.0, fitted), (OF_PRIOR, of_prior), (OF_LOST, lost), (OF_CHAIN, own if cloud.proposals else None)])
        x = proposal.draw(many(count, growth * n / N) if n < N else count, rng)


def _fitted(x: np.ndarray, rng: np.random.Generator) -> Mixture:
    return Mixture.fit(x, np.full(len(x), 1 / len(x)), FREEDOM, rng)


def _paths(prefix: Prefix, x: np.ndarray, n: int, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Log posteriors (B, reach - n + 1) of points (B, d) given n to reach samples, and log priors (B,)."""
    known = [prefix.evaluate(q, n, reach) for q in x]
    prior = prefix.coordinates.once(np.array([k.prior for k in known]), x)
    with np.errstate(invalid="ignore"):
        total = np.where(np.isfinite(prior)[:, None], prior[:, None] + np.array([k.path for k in known]), -np.inf)
    return total, prior


def tempered(log_weights: np.ndarray, d: int) -> np.ndarray:
    """Weights (N,), less uneven where else a handful of the draws had all of it."""
    goal = min(FITTED * d, 0.5 * np.sum(log_weights > -np.inf))
    while effective_size(log_weights) < goal and np.ptp(log_weights[log_weights > -np.inf]) > 0:
        log_weights = log_weights / 2
    return normalised(log_weights)


def _joined(parts: list[tuple[float, Mixture | None]]) -> Mixture:
    """One mixture of several, each of which has its share, and those before it the rest."""
    shares, mixtures = list[float](), list[Mixture]()
    for share, mixture in parts:
        if mixture is not None:
            shares, mixtures = [(1 - share) * s for s in shares] + [share], [*mixtures, mixture]
    return Mixture(
        np.concatenate([share * m.shares for share, m in zip(shares, mixtures, strict=True)]),
        np.concatenate([m.means for m in mixtures]),
        np.concatenate([m.roots for m in mixtures]),
        FREEDOM,
    )


class WholeRecord(NamedTuple):
    """The log posterior of all samples for a search: prior and likelihood are computed at once, and nothing is left to add."""

    prefix: Prefix

    @property
    def coordinates(self) -> Coordinates:
        """Those of the model."""
        return self.prefix.coordinates

    @property
    def n_samples(self) -> int:
        """All."""
        return self.prefix.n_samples

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        """Log posterior (B,) of points (B, d), up to the evidence."""
        return _paths(self.prefix, x, self.n_samples, self.n_samples)[0][:, 0]

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        """What is left (B,): nothing."""
        return np.zeros(len(x))


def lacked(
    prefix: Prefix, cloud: Cloud, early: tuple[np.ndarray, np.ndarray], draws: int, rng: np.random.Generator
) -> Search | None:
    """Modes that weighted draws of the posterior lack; None if the prior cannot be drawn from.

    Searches begin at draws of the prior in other basins than those of the cloud. ``early`` are draws (n, d) of the prior that
    are known by all samples already, and their log posteriors (n,).
    """
    x, log_weights = cloud.x, cloud.log_weights

    def starts(fresh: np.ndarray, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        points, values = np.concatenate([x, fresh, early[0]]), np.concatenate([-cloud.log_target, values, -early[1]])
        rows = far_from_better(points, values, scale)
        best_is_known = rows[0] < len(x)
        found: np.ndarray = points[rows[1:] if best_is_known else rows]
        return found

    index = evenly(normalised(log_weights))
    each = float(scipy.special.logsumexp(log_weights)) - 2 * np.log(len(x))  # their sum is the evidence, the mean weight
    most = min(SEARCH * evaluations(draws), MOST_OF_SEARCH)
    way = Way(OF_DRAWS, starts, (FEW,))
    return search(WholeRecord(prefix), x[index], np.full(len(x), each), int(most * prefix.n_samples / OF_RUN), rng, way)


def _near(looked: Search) -> Mixture:
    """A component for each mode that was lost."""
    regions = [near.region for near in looked.missed]
    shares = np.full(len(regions), 1 / len(regions))
    return Mixture(shares, np.array([r.point for r in regions]), WIDER * np.array([r.root for r in regions]), FREEDOM)
