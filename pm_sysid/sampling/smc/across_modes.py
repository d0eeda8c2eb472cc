"""Shares of known modes by draws around each: what a sequential run's particles can have lost, or hold too little of.

A mode that the first samples leave little of is kept by few particles, and its share in the end is known as well as these few
tell. Where a global search has found the modes, draws around each of them, and around the particles, give the shares with an
error that does not depend on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.likelihood.target import Target
from pm_sysid.sampling.smc.evidence import Estimate, importance
from pm_sysid.sampling.smc.missed_modes import MATTERS, log_posterior
from pm_sysid.sampling.smc.proposals import Mixture, heaviest
from pm_sysid.sampling.smc.resampling import normalised, systematic
from pm_sysid.sampling.smc.seen_draws import Seen, nothing

#: Draws of a proposal for each draw that is wanted, most of them, and rounds of proposals.
EACH, MOST, ROUNDS = 8, 40_000, 8
#: Draws that proposals are fitted to, beside the particles.
FITTED = 2000
#: Powers of the density that proposals follow one after the other before that; draws of each, as a part of those of a later
#: one, and at least; the part of the later ones that is wide, and the power that this part follows.
POWERS, OF_COUNT, LEAST_WIDE, WIDE, WIDTH = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 8, 1 / 4), 1 / 8, 2000, 0.2, 1 / 4
#: Part of the proposals around the points of the largest weights, of the particles too; and of further ones, where a draw of a
#: proposal that fits weighs so many times as much as the mean all the same, and most of these; up to so many unknowns, among
#: which a Gaussian's draws weigh little more.
HEAVY, HEAVIER, MUCH, MORE_ROUNDS, FEW = 0.2, 0.4, 30.0, 4, 10
#: Part of the proposals that begin at the modes, each mode's least part of these, and how much wider than Laplace's they are.
AT_MODES, LEAST, WIDER = 0.5, 0.02, 1.3
#: Degrees of freedom of the proposals, and effective share of their draws with which they are good enough.
FREEDOM, EFFECTIVE = 5.0, 0.1
#: Pareto shape of the weights of all draws with which these are enough.
EVEN = 0.5
#: Particles at which the proposals must not be too thin, and how many times denser the posterior may be there: in the first
#: half of the rounds, which reach farther each time, and in the others.
LOOKED, REACH, REACH_LATER = 2000, 8.0, 20.0
#: Standard deviations that a mean, and share that a standard deviation may be off without the draws being replaced; standard
#: errors that they may be off, if each of so many draws counts.
OFF, ERRORS, EACH_OF = 0.1, 3.0, 4
#: What is as good as equal, relative to what it is; and weighted draws that are compared in other units.
ROUNDING, IN_UNITS = 1e-9, 4000
#: Shares of where the posterior is densest beside what is fitted to particles, and standard errors that particles may be off.
DENSEST, SURE = (0.2, 0.1, 0.05, 0.02), 4.0

type Units = Callable[[np.ndarray], np.ndarray]


class AcrossModes(NamedTuple):
    """Weighted draws around modes and particles.

    Attributes
    ----------
    x : array, shape (M, d)
    log_weights : array, shape (M,)
    region : array of int, shape (M,)
        Component of the proposals that each most likely came from.
    estimate : Estimate
        Of the normalising constant of prior times likelihood.
    lacking : bool
        Whether the particles hold another share, by more than chance, of where the posterior is much denser than what is fitted
        to them.
    """

    x: np.ndarray
    log_weights: np.ndarray
    region: np.ndarray
    estimate: Estimate
    lacking: bool

    def moved(self, draws: np.ndarray) -> bool:
        """Whether means or standard deviations of draws (N, d) are others than those of the weighted draws."""
        held = self.log_weights > -np.inf
        return _apart(self.x[held], normalised(self.log_weights[held]), draws)

    def moved_in(self, units: Units, draws: np.ndarray, rng: np.random.Generator) -> bool:
        """The same in other units, of some of the weighted draws."""
        some = units(self.resampled(1, IN_UNITS, rng)[0])
        return _apart(some, np.full(len(some), 1 / len(some)), units(draws))

    def resampled(self, chains: int, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (chains, draws, d) that count alike, of each region as many as it holds; no two chains share a draw."""
        order, total = rng.permutation(len(self.x)), normalised(self.log_weights)
        of_region = np.bincount(self.region, total)
        found = []
        for own in np.array_split(order, chains):
            own = own[np.argsort(self.region[own], kind="stable")]
            # The regions' shares by all draws: those of one chain's alone would vary more.
            here = np.bincount(self.region[own], total[own], len(of_region))
            weights = total[own] * (of_region / np.where(here > 0, here, 1.0))[self.region[own]]
            picked = own[systematic(weights / weights.sum(), draws, rng)]
            found.append(self.x[rng.permutation(picked)])
        return np.array(found)


def draws_near(draws: np.ndarray, points: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Number of draws (N, d) near each mode: nearer than all but one in a thousand of its Laplace approximation."""
    limit, counts = scipy.stats.chi2.ppf(0.999, draws.shape[1]), []
    for point, covariance in zip(points, covariances, strict=True):
        z = np.linalg.solve(np.linalg.cholesky(covariance), (draws - point).T)
        counts.append(int(np.sum(np.sum(z**2, axis=0) < limit)))
    return np.array(counts)


def across_modes(
    target: Target,
    draws: np.ndarray,
    points: np.ndarray,
    covariances: np.ndarray,
    shares: np.ndarray,
    rng: np.random.Generator,
    seen: Seen | None = None,
    count: int | None = None,
) -> AcrossModes | None:
    """Weighted draws from a mixture about modes, if some are known, and particles; None where they do not fit the posterior.

    Parameters
    ----------
    target : Target
    draws : array, shape (N, d)
        Particles of a sequential run, in unconstrained space.
    points, covariances : arrays, shapes (modes, d) and (modes, d, d)
        Modes and the inverses of the negative Hessians there.
    shares : array, shape (modes,)
        Of the posterior, roughly.
    rng : numpy.random.Generator
    seen : Seen, optional
        Draws of the prior: particles may have lost a part that these have seen.
    count : int, optional
        Draws of each of up to eight proposals, and four more around draws that weigh much. Default: eight for each particle,
        at most 40,000.
    """
    count = min(EACH * len(draws), MOST) if count is None else count
    at_modes = AT_MODES if len(points) else 0.0
    before = nothing(draws.shape[1]) if seen is None else seen
    seen = _from_afar(target, draws, rng, before, count)
    _, fitted = seen.proposals[len(before.proposals)]
    if not np.any(seen.log_density > -np.inf):
        return None
    some = draws[rng.permutation(len(draws))[:LOOKED]]
    density_at_draws = log_posterior(target, some)
    about = np.maximum(shares, LEAST)
    at = Mixture(about / about.sum(), points, WIDER * np.linalg.cholesky(covariances), FREEDOM)
    good: AcrossModes | None = None
    for round_ in range(ROUNDS + MORE_ROUNDS):
        around = _fitted(np.concatenate([draws, seen.picked(seen.tempered, min(len(draws), FITTED), rng)]), rng)
        wide = _fitted(seen.picked(seen.to_power(WIDTH), FITTED, rng), rng)
        at_draws = density_at_draws - seen.mixture(some)
        heavy = heaviest(np.concatenate([seen.z, some]), np.concatenate([seen.log_weights, at_draws]), FREEDOM)
        of_heavy = HEAVY if good is None else HEAVIER
        shares_of_all = np.array([1 - WIDE - of_heavy, WIDE, of_heavy])
        proposal = Mixture.joined([at, around, wide, heavy], [at_modes, *(1 - at_modes) * shares_of_all])
        z = proposal.draw(count, rng)
        density = log_posterior(target, z)
        seen = seen.with_draws(z, density, proposal.logpdf)
        latest, estimate = importance(density - proposal.logpdf(z)), importance(seen.log_weights)
        if not np.isfinite(latest.value):
            return good
        # Even weights may be those of a part: what the particles hold must be within reach, too.
        limit = REACH if 2 * round_ < ROUNDS else REACH_LATER
        reached = np.max(density_at_draws - seen.mixture(some)) <= estimate.value + np.log(limit)
        fits = latest.efficiency >= EFFECTIVE and estimate.believable and reached
        # At an edge a few of the last draws may be far too heavy time and again, which all draws together show not to be so.
        enough = round_ >= ROUNDS - 1 and estimate.pareto_k <= EVEN and estimate.efficiency >= EFFECTIVE
        if fits and (latest.believable or enough):
            found = seen.evidence(latest, by_all=not latest.believable)
            # There may be other modes, and those that hold less are not looked for.
            if len(points) > 1 or around.components > 1:
                found = found._replace(error=float(np.hypot(found.error, MATTERS)))
            lacking = _lacking(seen.log_density - fitted(seen.z), seen.log_weights, density_at_draws - fitted(some))
            good = AcrossModes(seen.z, seen.log_weights, proposal.nearest(seen.z), found, lacking)
        # A few draws that weigh much are the beginning of a tail that grows thin: more are drawn around them.
        thin = draws.shape[1] <= FEW and np.max(seen.log_weights) > estimate.value + np.log(MUCH)
        if (good is not None and not thin) or (good is None and round_ >= ROUNDS - 1):
            return good
    return good


def _apart(x: np.ndarray, weights: np.ndarray, draws: np.ndarray) -> bool:
    """Whether means or standard deviations of draws (N, d) are others than those of weighted ones (M, d)."""
    mean = weights @ x
    sd = np.sqrt(weights @ (x - mean) ** 2)
    limit = max(OFF, ERRORS * np.sqrt(EACH_OF / len(draws))) * sd + ROUNDING * np.abs(mean)
    return bool(np.any((np.abs(draws.mean(axis=0) - mean) > limit) | (np.abs(draws.std(axis=0) - sd) > limit)))


def _from_afar(target: Target, draws: np.ndarray, rng: np.random.Generator, seen: Seen, count: int) -> Seen:
    """What draws of proposals have seen that follow powers of the density below one, and then the density again.

    Where a branch of the posterior is long and thin, few particles are in it, and what is fitted to them leaves it out. Of a
    small power of the density it is a larger part, and thicker.
    """
    particles = draws[rng.permutation(len(draws))[:FITTED]]
    for power in (None, *POWERS):  # at first around the particles: of what prior draws have seen, a power may leave one
        x = particles if power is None else np.concatenate([particles, seen.picked(seen.to_power(power), FITTED, rng)])
        proposal = _fitted(x, rng)
        z = proposal.draw(max(LEAST_WIDE, int(OF_COUNT * count)), rng)
        seen = seen.with_draws(z, log_posterior(target, z), proposal.logpdf)
        if not np.any(seen.log_density > -np.inf):
            break
    return seen


def _lacking(denser: np.ndarray, log_weights: np.ndarray, at_draws: np.ndarray) -> bool:
    """Whether draws hold less than they should of where the posterior is densest beside what was fitted to them.

    ``denser`` is the logarithm of that ratio at weighted draws (M,), and ``at_draws`` at those to which it was fitted (N,).
    """
    weights, order = normalised(log_weights), np.argsort(-denser)
    cumulated = np.cumsum(weights[order])
    for share in DENSEST:
        last = order[np.searchsorted(cumulated, share)]
        sd = np.sqrt(share * (1 - share) * (EACH_OF / len(at_draws) + np.sum(weights**2)))
        if share - np.mean(at_draws >= denser[last]) > SURE * sd:
            return True
    return False


def _fitted(x: np.ndarray, rng: np.random.Generator) -> Mixture:
    """Proposal that follows points (N, d), which count alike."""
    return Mixture.fit(x, np.full(len(x), 1 / len(x)), FREEDOM, rng)
