"""Draws around modes by independent proposals: adaptive importance sampling, then a sequential run's last stage.

Proposals that begin at a mode have seen nothing else. The first ones therefore reach far beyond its curvature, in all unknowns
together and in each alone, and in the end some of the draws walk with long steps: where they leave what the proposals have
drawn, the result has a doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import scipy
import xarray as xr

from pm_sysid.compat import seeds_per_chain
from pm_sysid.compat.arviz import array_stats
from pm_sysid.compat.samplers import sample_by_stages
from pm_sysid.likelihood.circular import no_wider_than_turn
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.ridges import Ridges, ridges
from pm_sysid.likelihood.target import Target
from pm_sysid.progress import doing, drawable
from pm_sysid.sampling.smc.algorithm import Sequential
from pm_sysid.sampling.smc.evidence import Estimate, importance
from pm_sysid.sampling.smc.ibis import IBIS, FinishedChain
from pm_sysid.sampling.smc.missed_modes import log_posterior
from pm_sysid.sampling.smc.moves import Moves, differences
from pm_sysid.sampling.smc.natural_units import NaturalUnits, positive_unknowns
from pm_sysid.sampling.smc.particle_state import SequentialState
from pm_sysid.sampling.smc.proposals import MOST, Mixture, moments
from pm_sysid.sampling.smc.resampling import effective_size
from pm_sysid.sampling.smc.seen_draws import Seen, of_prior
from pm_sysid.sampling.smc.stages import stages
from pm_sysid.sampling.smc.weighed import KnownModes

#: Standard deviation of a logarithm from which on the number itself is tried in its place, and part of the best score below
#: which units are given up.
UNCERTAIN, WORSE = 0.05, 0.2
#: Degrees of freedom of the first proposals.
FREEDOM = 3.0
#: Weighted draws of a round, most rounds, the effective share of the draws with which they end if it comes twice in a row, and
#: the difference of the two evidences in standard errors that is none.
CLOUD, ROUNDS, ENOUGH, AGREE = 4000, 16, 0.4, 2.0
#: Rounds whose median score is compared with that of as many before, and the gain with which they go on.
COMPARED, GAIN = 4, 0.05
#: Widths of the first proposals beside that of the mode, evenly from there to the prior's; shares of those with all unknowns
#: wider together, and with each alone; and how much wider than at the mode the widest are at least.
WIDTHS, TOGETHER, ALONE, WIDER = 4, 0.1, 0.4, 10.0
#: Share of all proposals that are drawn about points on ridges and other modes, where there are any; least part of the first
#: ones that is around a mode.
ALONG, LEAST = 0.2, 0.02
#: Share of a proposal that follows a power of the density, and this power.
WIDE, WIDTH = 0.1, 1 / 4
#: Draws of the prior that tell its width, and the quantile for that in standard deviations of a Gaussian.
PRIOR_DRAWS, QUANTILE = 2000, 3.0
#: Draws that walk in the end, their steps, how often they walk, and their longest steps relative to what suits a Gaussian.
WALKERS, STEPS, WALKS, LONGEST = 1000, 20, 3, 100.0
#: Chances by all unknowns together: of a false alarm, and below which they walk on.
CHANCE, SUSPICIOUS = 1e-3, 0.5
#: Independent moves of each draw. Effective share of the proposals and Pareto shape of their weights within which these moves
#: are enough: narrower than in sequential sampling, since proposals that begin at a mode have seen nothing else of it before.
MOVES, GOOD_PROPOSALS, EVEN = 8, 0.3, 0.5
#: Acceptance below which draws walk, so that they always do.
ALWAYS = 1.1
#: Fewest and most times that draws walk and proposals are fitted to them again, and the change in standard errors that lets
#: them walk on.
LEAST_WALKED, MOST_WALKED, DRIFTING = 2, 10, 3.0
STILL_SPREADING = "The draws still spread after many walks: the posterior is thin and curved, and a part of it may be missing."
#: R-hat from which on chains walk together, and most times that they do.
APART, MOST_TOGETHER = 1.01, 6
#: Effective draws of all proposals for each draw that is taken by their weights alone.
EACH = 4
#: How much higher than at the mode the log posterior of a draw is, if the mode is another one.
HIGHER = 2.0


class HigherPoint(Exception):
    """A draw has a log posterior that is higher than at the mode: what follows would be drawn around the wrong one.

    Parameters
    ----------
    x : array, shape (d,)
        The draw, in unconstrained space.
    gain : float
        How much higher.
    """

    def __init__(self, x: np.ndarray, gain: float) -> None:
        super().__init__(f"a draw has a log posterior that is {gain:.1f} higher than at the mode")
        self.x, self.gain = x, gain


def sample_around_mode(
    point: np.ndarray,
    covariance: np.ndarray,
    draws: int,
    *,
    model: pm.Model,
    chains: int,
    random_seed: Any,
    progressbar: bool = True,
    highest: float | None = None,
    others: KnownModes | None = None,
) -> xr.DataTree:
    """Draw from a posterior whose modes are known, by proposals that do not depend on where a chain is.

    Each chain begins with draws of the prior and of t distributions with the curvature of each mode and with up to the width of
    the prior, weights them, fits a mixture of t distributions and draws again, until the weights are even. All draws of all
    rounds count, as draws of one mixture. The rest is the last stage of :func:`sample_ibis`: Markov chains over fresh
    proposals, and the evidence. Where these do not fit well, the draws are taken by the weights of all rounds if they are
    even; if they are not, the draws walk along differences between them until they have forgotten where they were. Chains that
    disagree walk together, by proposals fitted to the draws of all. All of it runs in batches without gradients.

    In the end a thousand of the draws walk twenty steps, long ones among them, which leaves the posterior as it is: where more
    of them than chance allows come to lie beyond all draws, or a marginal changes, the proposals have missed a tail.

    Parameters
    ----------
    point, covariance : numpy.ndarray, shapes (d,) and (d, d)
        The best mode in unconstrained space, and the inverse of the negative Hessian there.
    draws : int
        Draws of each chain.
    model : pm.Model
    chains : int
        Chains with random numbers of their own, from the first proposal on.
    random_seed : int
    progressbar : bool, default True
    highest : float, optional
        Log posterior at the highest mode that is known: a draw that is higher raises :class:`HigherPoint`.
    others : KnownModes, optional
        The other modes. Some draws of each proposal are about these, so that none is lost that holds little.

    Returns
    -------
    xarray.DataTree
        As :func:`sample_ibis` returns it, with one stage. It is to be believed where the proposals fit (``proposal_ess``,
        ``pareto_k``) or the draws have walked (``walks``), the chains agree, the last walk has found nothing (else
        :func:`log_evidence` has a doubt), and the modes have the posterior's whole mass.

    Notes
    -----
    Sources: Cappé, Guillin, Marin and Robert (2004), Population Monte Carlo, Journal of Computational and Graphical Statistics
    13, 907-929; Cornuet, Marin, Mira and Robert (2012), Adaptive Multiple Importance Sampling, Scandinavian Journal of
    Statistics 39, 798-812.
    """
    # Every draw makes moves of its own, so that it depends on few others. Where proposals do not fit, all draws walk.
    moves = Moves("plain", steps=MOVES)
    walking = replace(moves, min_acceptance=ALWAYS)
    kernel = IBIS(draws, model=model, random_seed=random_seed, moves=moves)
    target = kernel.sequential.target
    # Angles make one turn about the mode: all that is near it lies in this turn.
    target.coordinates.centre = np.where(target.coordinates.circular, point, 0.0)
    modes = _with_others(target, point, covariance, others)
    batch = PosteriorFunctions(model).descent_function()
    along = joined([ridges(batch, *at) for at in zip(modes.points, modes.covariances, strict=True)], modes)
    limit = np.inf if highest is None else highest + HIGHER
    drawn, spreading = list[_Chain](), False
    for k, seed in enumerate(seeds_per_chain(random_seed, chains)):
        rng = np.random.default_rng(seed)
        doing(f"proposals of chain {k + 1} of {chains}")
        cloud, fits = _cloud(target, modes, along, limit, rng)
        in_units: Any = cloud.units
        sequential = replace(
            kernel.sequential, target=in_units, moves=moves if fits or cloud.covers else walking, components=MOST
        )
        z = cloud.seen.picked(cloud.seen.log_weights, CLOUD, rng)
        kernel.state = sequential.join_parts(z, np.zeros(len(z)), np.zeros(len(z), dtype=int), rng)
        # Fresh proposals may show a tail that the first ones did not.
        by_weights = not (fits and fitting(kernel.state)) and cloud.covers and EACH * draws <= cloud.effective
        if not (fits and fitting(kernel.state)) and not by_weights:
            kernel.state, spreads = walked(replace(sequential, moves=walking), kernel.state, rng)
            spreading |= spreads
        row, z = kernel.sample_stats(), kernel.state.particles.x
        if by_weights:
            z = cloud.seen.picked(cloud.seen.log_weights, draws, rng)
            row |= cloud.statistics
        drawn.append(_Chain(cloud.units, replace(sequential, moves=walking), z, row))
    for _ in range(MOST_TOGETHER):
        if not apart(np.array([chain.x for chain in drawn])):
            break
        doing("draws of chains that disagree walk together")
        drawn = _walked_together(drawn, kernel, rng)
    finished = [FinishedChain(chain.x, [{**chain.row, "log_product": np.nan, "log_product_se": np.nan}]) for chain in drawn]
    idata = sample_by_stages(
        draws,
        lambda **settings: kernel.handing_over(iter(finished)),
        model=model,
        chains=chains,
        cores=1,
        random_seed=random_seed,
        progressbar=drawable(progressbar),
        compute_convergence_checks=False,
    )
    statistics = stages(idata)
    statistics.attrs["doubt"] = (
        STILL_SPREADING if spreading else missed_tail(target, np.concatenate([c.x for c in finished]), rng)
    )
    idata["sample_stats"] = xr.DataTree(statistics)
    return idata


def _with_others(target: Target, point: np.ndarray, covariance: np.ndarray, others: KnownModes | None) -> KnownModes:
    """The best mode and the others, all in one turn of an angle."""
    d, circular = len(point), target.coordinates.circular
    more = others or KnownModes(np.empty((0, d)), np.empty((0, d, d)), np.empty(0))
    return KnownModes(
        np.concatenate([point[None], target.coordinates.wrapped(more.points)]),
        np.array([no_wider_than_turn(c, circular) for c in (covariance, *more.covariances)]),
        np.concatenate([[1.0 - more.shares.sum()], more.shares]),
    )


def joined(along: Sequence[Ridges], modes: KnownModes) -> Ridges:
    """Ridges that lead away from several modes, and all modes but the first."""
    return Ridges(
        np.concatenate([*(a.points for a in along), modes.points[1:]]),
        np.concatenate([*(a.covariances for a in along), modes.covariances[1:]]),
    )


class _Chain(NamedTuple):
    """Draws (N, d) of a chain in its units, the walk that they may go on with there, and the statistics of its stage."""

    units: NaturalUnits
    walk: Sequential
    z: np.ndarray
    row: dict[str, Any]

    @property
    def x(self) -> np.ndarray:
        """Draws (N, d) in unconstrained space."""
        return self.units.unconstrained(self.z)


def apart(x: np.ndarray) -> bool:
    """Whether chains of draws (chains, N, d) disagree, by R-hat of any coordinate."""
    if len(x) < 2:
        return False
    return any(array_stats.rhat(column, method="rank") > APART for column in np.moveaxis(x, 2, 0) if np.ptp(column) > 0)


def _walked_together(drawn: list[_Chain], kernel: IBIS, rng: np.random.Generator) -> list[_Chain]:
    """Chains whose draws have walked by proposals fitted to those of all, and then by their own; each draw keeps its chain.

    Chains that each know a part of a thin, curved region best disagree about the rest. R-hat tells afterwards whether the draws
    have forgotten which chain they belong to.
    """
    units, walk = drawn[0].units, drawn[0].walk
    z = np.concatenate([units.natural(chain.x) for chain in drawn])
    together = replace(walk, draws=len(z)).rejoin(z, np.zeros(len(z)), rng)
    found = []
    for part in np.split(together.particles.x, len(drawn)):
        kernel.state = walk.rejoin(part, np.zeros(len(part)), rng)
        found.append(_Chain(units, walk, kernel.state.particles.x, kernel.sample_stats()))
    return found


def fitting(state: SequentialState) -> bool:
    """Whether the proposals of a stage fit."""
    return state.proposal_ess >= GOOD_PROPOSALS and state.pareto_k <= EVEN


def walked(sequential: Sequential, state: SequentialState, rng: np.random.Generator) -> tuple[SequentialState, bool]:
    """Draws that have walked until their distribution changes no more, and whether it still does in the end.

    Proposals that see a part of a thin, curved region fit that part well. Draws spread from there along the region, and the
    next proposals are fitted to them.
    """
    for k in range(MOST_WALKED):
        before = state.particles.x
        state = sequential.rejoin(before, np.zeros(len(before)), rng)
        if drift(before, state.particles.x) < DRIFTING and k + 1 >= LEAST_WALKED:
            return state, False
    return state, True


def drift(before: np.ndarray, after: np.ndarray) -> float:
    """Largest change of a mean or a mean square, in standard errors, when draws (N, d) have walked: row by row the same draws.

    Means and squares of all coordinates, and of the principal directions of the draws before.
    """
    mean, root = moments(before, np.full(len(before), 1 / len(before)))
    inverse = np.linalg.inv(root).T
    scale = before.std(axis=0)
    a, b = (np.hstack([(x - mean) @ inverse, (x - mean) / np.where(scale > 0, scale, 1.0)]) for x in (before, after))
    changes = np.hstack([b - a, b**2 - a**2])
    errors = changes.std(axis=0) / np.sqrt(len(changes))
    return float(np.max(np.abs(changes.mean(axis=0)) / np.where(errors > 0, errors, 1.0)))


def prior_width(units: NaturalUnits, rng: np.random.Generator) -> np.ndarray:
    """Half of the width (d,) of the prior, as that of a Gaussian in standard deviations."""
    tails = scipy.stats.norm.cdf([-QUANTILE, QUANTILE])
    low, high = np.quantile(units.natural(units.target.draw_prior(PRIOR_DRAWS, rng)), tails, axis=0)
    return np.asarray((high - low) / (2 * QUANTILE))


def stretched(point: np.ndarray, covariance: np.ndarray, width: np.ndarray) -> Mixture:
    """Mixture of t distributions about a mode: with its curvature, and up to a width (d,) in all unknowns or in one of them.

    Where one unknown is wider, the others follow it by regression, and are as well known given it as they are at the mode.
    """
    d, sd = len(point), np.sqrt(np.diag(covariance))
    longest = np.maximum(width / sd, WIDER)
    follow = covariance / sd**2  # column j: how all unknowns follow unknown j
    together, alone = [], []
    for factor in (longest ** (k / WIDTHS) for k in range(1, WIDTHS + 1)):
        together.append(factor * covariance * factor[:, None])
        alone += [covariance + (factor[j] ** 2 - 1) * sd[j] ** 2 * np.outer(follow[:, j], follow[:, j]) for j in range(d)]
    shares = [1 - TOGETHER - ALONE] + [TOGETHER / WIDTHS] * WIDTHS + [ALONE / len(alone)] * len(alone)
    roots = np.linalg.cholesky(np.array([covariance, *together, *alone]))
    return Mixture(np.array(shares), np.tile(point, (len(shares), 1)), roots, FREEDOM)


def missed_tail(target: Any, draws: np.ndarray, rng: np.random.Generator) -> str:
    """What walking says against draws (N, d), in words; empty if nothing.

    Metropolis steps leave the posterior as it is. Draws of another distribution change: of those that lack a tail, walkers come
    to lie beyond all draws. They walk on for as long as it looks like that.
    """
    x = draws[rng.permutation(len(draws))[:WALKERS]]
    density = log_posterior(target, x)
    for _ in range(WALKS):
        for _ in range(STEPS):
            longer = np.exp(rng.uniform(0, np.log(LONGEST), (len(x), 1)) * rng.integers(2, size=(len(x), 1)))
            tried = x + longer * differences(draws, len(x), rng)
            found = log_posterior(target, tried)
            with np.errstate(invalid="ignore"):
                better = np.log(rng.random(len(x))) < found - density
            x, density = np.where(better[:, None], tried, x), np.where(better, found, density)
        chances = [(beyond(*both), changed(*both)) for both in zip(draws.T, x.T, strict=True)]
        likeliest = np.argmin([min(both) for both in chances])
        chance = 2 * target.size * min(chances[likeliest])
        if chance > SUSPICIOUS:
            return ""
    if chance > CHANCE:
        return ""
    label, (tail, _) = target.labels[likeliest], chances[likeliest]
    if 2 * target.size * tail <= CHANCE:
        return f"The proposals have missed a tail of {label}: draws that walk on come to lie beyond all {len(draws)} draws."
    return f"The proposals have drawn {label} wrongly: its distribution changes when draws walk on."


def beyond(before: np.ndarray, after: np.ndarray) -> float:
    """Chance that as many of n independent draws as in ``after`` lie beyond all of N others of the same distribution.

    Whatever the distribution, a new draw does so with a probability that is distributed as Beta(2, N - 1).
    """
    outside = np.sum((after < before.min()) | (after > before.max()))
    return float(scipy.stats.betabinom(len(after), 2, len(np.unique(before)) - 1).sf(outside - 1))


def changed(before: np.ndarray, after: np.ndarray) -> float:
    """Chance that two samples of one distribution are as different (Kolmogorov and Smirnov).

    Draws that have walked are not independent of where they were, and differ less by chance than this says.
    """
    return float(scipy.stats.ks_2samp(before, after, method="asymp").pvalue)


class Cloud(NamedTuple):
    """Draws (CLOUD, d) of a proposal in some units, their log weights, what these say of the evidence, and all draws before."""

    units: NaturalUnits
    z: np.ndarray
    log_weights: np.ndarray
    estimate: Estimate
    seen: Seen

    @classmethod
    def of(cls, units: NaturalUnits, proposal: Mixture, seen: Seen, rng: np.random.Generator) -> Cloud:
        """Weighted draws of a proposal, after those that others have seen."""
        z = proposal.draw(CLOUD, rng)
        density = log_posterior(units, z)
        log_weights = density - proposal.logpdf(z)
        return cls(units, z, log_weights, importance(log_weights), seen.with_draws(z, density, proposal.logpdf))

    def check(self, limit: float) -> None:
        """Raise :class:`HigherPoint` if a draw has a log posterior in unconstrained space that is above a limit."""
        x, logs = self.units.unconstrained(self.seen.z), self.units.logs
        height = self.seen.log_density + x[:, logs].sum(axis=1)
        best = int(np.argmax(height))
        if height[best] > limit:
            raise HigherPoint(x[best], float(height[best] - limit + HIGHER))

    @property
    def enough(self) -> bool:
        """Whether enough of the draws are effective."""
        return self.estimate.efficiency >= ENOUGH

    @property
    def fits(self) -> bool:
        """Whether the proposal is close enough to the posterior for independent moves alone."""
        return self.estimate.efficiency >= GOOD_PROPOSALS and self.estimate.pareto_k <= EVEN

    @property
    def effective(self) -> float:
        """Effective number of all draws."""
        return float(effective_size(self.seen.log_weights))

    @property
    def covers(self) -> bool:
        """Whether all draws together have even weights, and the last ones fit nearly."""
        weights = importance(self.seen.log_weights)
        nearly = self.estimate.believable and self.estimate.efficiency >= GOOD_PROPOSALS
        return nearly and weights.pareto_k <= EVEN and self.effective >= GOOD_PROPOSALS * CLOUD

    @property
    def statistics(self) -> dict[str, Any]:
        """Of draws that are taken by the weights of all draws."""
        found, evenness = self.seen.evidence(self.estimate), importance(self.seen.log_weights).pareto_k
        share = min(1.0, self.effective / CLOUD)
        values = {"log_evidence": found.value, "log_evidence_se": found.error, "log_marginal_likelihood": found.value}
        return {**values, "proposal_ess": share, "pareto_k": evenness, "memory": 0.0, "walks": 0}

    def agrees(self, other: Cloud) -> bool:
        """Whether two clouds say the same of the evidence."""
        ours, others = self.estimate, other.estimate
        return bool(abs(ours.value - others.value) <= AGREE * np.hypot(ours.error, others.error))

    @property
    def score(self) -> float:
        """Logarithm of the effective share times the mass that was found: even weights may be those of a part of it."""
        with np.errstate(divide="ignore"):
            return float(self.estimate.value + np.log(self.estimate.efficiency))

    def next(self, along: Ridges, rng: np.random.Generator) -> Cloud:
        """Draws of a mixture that is fitted to all before, so weighted that it follows no handful of them, and ridges.

        A part of the mixture follows a power of the density: of that, a branch that is long and thin is a larger part.
        """
        equal = np.full(CLOUD, 1 / CLOUD)
        fitted = Mixture.fit(self.seen.picked(self.seen.tempered, CLOUD, rng), equal, FREEDOM, rng, most=MOST)
        wide = Mixture.fit(self.seen.picked(self.seen.to_power(WIDTH), CLOUD, rng), equal, FREEDOM, rng, most=MOST)
        proposal = Mixture.joined([with_ridges(fitted, self.units, along), wide], [1 - WIDE, WIDE])
        return Cloud.of(self.units, proposal, self.seen, rng)


def _about(modes: KnownModes, units: NaturalUnits, width: np.ndarray) -> Mixture:
    """The first proposals, about each mode."""
    parts, about = [], list[float]()
    for point, covariance, share in zip(modes.points, modes.covariances, np.maximum(modes.shares, LEAST), strict=True):
        slope = np.where(units.logs, units.natural(point), 1.0)
        try:
            parts.append(stretched(units.natural(point), slope * covariance * slope[:, None], width))
        except np.linalg.LinAlgError:  # an unknown that is zero to the last digit has no width in natural units
            if len(modes.points) == 1:
                raise
            continue
        about.append(share)
    return Mixture.joined(parts, np.array(about) / sum(about))


def with_ridges(mixture: Mixture, units: NaturalUnits, along: Ridges) -> Mixture:
    """A mixture with a component at each point on a ridge, and at each mode but the first."""
    slope = np.where(units.logs, units.natural(along.points), 1.0)
    means, roots = [], []
    for point, scale, covariance in zip(along.points, slope, along.covariances, strict=True):
        with suppress(np.linalg.LinAlgError):  # an unknown that is zero to the last digit has no width in natural units
            roots.append(np.linalg.cholesky(scale[:, None] * covariance * scale))
            means.append(units.natural(point))
    if not roots:
        return mixture
    about = Mixture(np.full(len(roots), 1 / len(roots)), np.array(means), np.array(roots), mixture.freedom)
    return Mixture.joined([mixture, about], [1 - ALONG, ALONG])


def gaining(scores: Sequence[float]) -> bool:
    """Whether the last rounds have gained something: many modes may be fitted from the beginning as well as ever."""
    return bool(np.median(scores[-COMPARED:]) > np.median(scores[-2 * COMPARED : -COMPARED]) + GAIN)


def _cloud(target: Target, modes: KnownModes, along: Ridges, limit: float, rng: np.random.Generator) -> tuple[Cloud, bool]:
    """Draws of a proposal that has been fitted to weighted draws before, in the better units, and whether it fits.

    Proposals that see a part of the posterior fit that part. Those fitted to their draws reach a little further, and find more
    mass if there is some: even weights count when they come twice with the same evidence.

    Whether the logarithm of a positive unknown or the unknown itself is nearer to a mixture of t distributions is tried.
    """
    logs = NaturalUnits(target, np.zeros(target.size, dtype=bool))
    uncertain = positive_unknowns(target) & (np.diagonal(modes.covariances, axis1=1, axis2=2).max(axis=0) > UNCERTAIN**2)
    turns = [logs, NaturalUnits(target, uncertain)] if uncertain.any() else [logs]
    at = []
    for units, seen in zip(turns, of_prior(turns, rng), strict=True):
        width = prior_width(units, np.random.default_rng(0))
        first = _about(modes, units, width)
        at.append(Cloud.of(units, with_ridges(first, units, along), seen, rng))
    best, scores = max(at, key=lambda cloud: cloud.score), list[float]()
    for _ in range(ROUNDS - 1):
        for cloud in at:
            cloud.check(limit)
        # Units in which proposals fit clearly worse are given up.
        at = [cloud.next(along, rng) for cloud in at if cloud.score > best.score + np.log(WORSE) or len(at) == 1]
        at = at or [best.next(along, rng)]
        latest = max(at, key=lambda cloud: cloud.score)
        if best.enough and latest.enough and best.agrees(latest) and (latest.fits or latest.covers):
            return latest, latest.fits
        scores.append(latest.score)
        # The last one has seen most.
        best = latest if latest.enough or (not best.enough and latest.score > best.score) else best
        if len(scores) >= 2 * COMPARED and not gaining(scores):
            break
    return best, False
