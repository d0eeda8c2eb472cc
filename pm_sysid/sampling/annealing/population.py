"""Proposals that know of the whole posterior: a population of weighted draws that takes the samples in beside a chain.

A chain that walks stays in the mode that it has come to, and seldom sees a far tail. Draws of the prior that are weighted by
the first samples, fitted by a mixture, drawn again and weighted by more samples lose a place only if its share becomes small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.likelihood.prefix_target import Prefix
from pm_sysid.likelihood.prior_draws import draw_prior
from pm_sysid.sampling.smc.evidence import Estimate, importance, pareto_shape
from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import effective_size, normalised
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
#: Shares of the proposals that have the prior's width, and that follow the chain.
OF_PRIOR, OF_CHAIN = 0.1, 0.2


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
        Of the chain: the population costs a part of what they do, and no more than they do where they are few.
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
    first, followed, again = True, True, 0
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
        else:
            # Draws of the prior have the density of the prior, up to the mass that potentials leave.
            density = log_prior if first else proposal.logpdf(x)
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
        proposal = _joined(Mixture.fit(points, tempered(weights, d), FREEDOM, rng), of_prior, own if cloud.proposals else None)
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


def _joined(fitted: Mixture, of_prior: Mixture, own: Mixture | None) -> Mixture:
    """One mixture of several."""
    parts = [(1 - OF_PRIOR, fitted), (OF_PRIOR, of_prior)]
    if own is not None:
        parts = [(share * (1 - OF_CHAIN), mixture) for share, mixture in parts] + [(OF_CHAIN, own)]
    return Mixture(
        np.concatenate([share * m.shares for share, m in parts]),
        np.concatenate([m.means for _, m in parts]),
        np.concatenate([m.roots for _, m in parts]),
        FREEDOM,
    )
