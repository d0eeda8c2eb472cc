"""Iterated batch importance sampling as functions of an immutable state: reweight by sample after sample, and move.

The state is a :class:`SequentialState`; :meth:`Sequential.init` makes the first one, and :meth:`Sequential.step` the next,
until :meth:`Sequential.finished`. Random numbers come from the generator that is handed in.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field

import numpy as np
import scipy

from pm_sysid.arguments import number, shown, whole
from pm_sysid.likelihood.prior_draws import Mass, constrained, draw_prior_and_mass
from pm_sysid.likelihood.target import MIN_DIFFUSION_SAMPLES, Target
from pm_sysid.sampling.smc.evidence import Estimate, bridge, importance, joined
from pm_sysid.sampling.smc.missed_modes import MATTERS
from pm_sysid.sampling.smc.moves import Moves, autocorrelation_time, differences, differences_within, independent_chains, memory
from pm_sysid.sampling.smc.particle_state import Particles, SequentialState, Start
from pm_sysid.sampling.smc.proposals import USUAL, Folds, Mixture, attainable, folds, moments
from pm_sysid.sampling.smc.resampling import bisect, cluster_variance, effective_size, evenly, normalised, systematic
from pm_sysid.sampling.smc.stages import FEW
from pm_sysid.sampling.smc.strata import Strata, log_raise, thin

_log = logging.getLogger("pm_sysid")

#: Particles of a run, of which more would fill any memory.
MOST = 10**8
#: Most log-likelihood increments (particles times samples ahead) that one batch computes.
LOOK = 2**20
#: Fewest samples that one batch looks ahead.
LEAST_LOOK = 8
#: Fraction of the particles that must survive a new calibration of the diffusion.
COLLAPSE = 0.02
#: Effective share of the proposals, as weighted draws from the posterior, relative to what is attainable for a Gaussian, from
#: which on they fit it. Independent moves by proposals that fit worse empty small modes: such modes have few particles to tell
#: their shape, and are left more easily than found.
GOOD_SHARE = 0.3
#: How many times denser the posterior may be, at any particle, than proposals of few components.
REACH = 20.0
#: Points at which the effective size of a stage is kept.
PATH = 16
#: Draws from the prior for each particle: the first samples cost little, and what no draw has found is seldom found later.
CROWD = 30
#: Survivors of a sample that particles are made more for, as a multiple of those that are too few.
ENOUGH = 5
#: Most particles that a mixture is fitted to.
FITTED = 2000
#: Steps along differences between two looks at how much the particles remember, and the correlation that is little enough.
WALKS, FORGOTTEN = 6, 0.2
#: Largest error of the log evidence that the last stage leaves as it is, rounds of proposals that may lower it, and how
#: many draws there are for each particle then.
GOOD_ERROR, ROUNDS, MANY = 0.2, 3, 4
#: Draws that are worth one independent draw, at most, unless more of them cost more than so much of the run before.
ALIKE, DEARER = 2.5, 0.5
#: Particles of a stage that are remembered, most stages, and draws for each particle around what is remembered.
REMEMBERED, STAGES, AROUND = 64, 40, 12
#: Standard errors by which two estimates of the evidence may differ by chance.
CHANCE = 2.0


def _possible(state: SequentialState) -> int:
    """Number of particles for which all samples that were taken in are possible."""
    return int(np.sum(state.log_weights > -np.inf))


@dataclass(frozen=True, eq=False)
class Sequential:
    """Sequential Monte Carlo over the samples of a record.

    Parameters
    ----------
    target : Target
        What the particles are draws of, in the end.
    draws : int
        Number N of particles.
    threshold : float, default 0.3
        Fraction of ``draws`` to which the effective sample size may fall.
    moves : Moves, optional
        Markov moves after each resampling.
    components : int, default 8
        Most components of a mixture of independent proposals.

    Raises
    ------
    ValueError, TypeError
        For settings out of range.
    """

    target: Target
    draws: int = 1000
    threshold: float = 0.3
    moves: Moves = field(default_factory=Moves)
    components: int = USUAL

    def __post_init__(self) -> None:
        if not 0 < number(self.threshold, "threshold", "give a fraction of the particles") < 1:
            raise ValueError(f"threshold is {self.threshold!r}; give a fraction of the particles between 0 and 1.")
        if not isinstance(self.moves, Moves):
            raise TypeError(f"moves is {shown(self.moves)}; give sid.Moves(), or with options: sid.Moves('plain', steps=3).")
        least = 2 * (self.target.size + 1)
        if not whole(self.draws, least, MOST):
            raise ValueError(f"draws is {shown(self.draws)}; {self.target.size} unknowns need at least {least} particles.")

    # -- states -------------------------------------------------------------------------------------------------------

    def draw_prior(self, rng: np.random.Generator) -> Start:
        """Begin with draws from the prior: many more than there will be particles, as the first samples cost little."""
        x, mass = draw_prior_and_mass(self.target.coordinates, CROWD * self.draws, rng)
        return Start(x, mass=mass)

    def init(self, start: Start, diffusion_samples: int | None = None) -> SequentialState:
        """Evaluate the particles of a start.

        ``diffusion_samples`` is the number of samples by which diffusions are calibrated: in the end all, before that at
        least half of those taken in, so that early stages do not pay for the whole record.
        """
        T, count = self.target.n_samples, len(start.x)
        start = start._replace(x=self.target.coordinates.wrapped(start.x))
        by = diffusion_samples
        if by is None:
            first = -(-T // 2 ** max(0, int(np.log2(max(T, 1) / MIN_DIFFUSION_SAMPLES))))
            by = T if not self.target.calibrates_diffusion else start.n or first
        mass = start.mass
        if mass is None:  # of particles that are no prior draws of this run: the prior is drawn from for its mass alone
            coordinates = self.target.coordinates
            mass = draw_prior_and_mass(coordinates, self.draws, 0)[1] if constrained(coordinates) else Mass()
        return SequentialState(
            particles=self._particles(start.x, start.n, 0.0, by),
            chain=np.arange(count),
            family=np.arange(count),
            log_weights=np.zeros(count),
            moved_weights=np.zeros(count),
            region=np.zeros(count, dtype=int),
            remembered=np.empty((0, self.target.size)),
            sizes=np.array([float(count)]),
            n=start.n,
            fraction=0.0,
            diffusion_samples=by,
            look_ahead=LEAST_LOOK,
            stage=0,
            log_evidence=start.log_evidence,
            variance=start.variance,
            log_product=start.log_evidence if start.same_model else np.nan,
            product_variance=start.variance if start.same_model else np.nan,
            log_around=np.nan,
            around_variance=np.nan,
            log_mass=mass.log,
            mass_error=mass.error,
            ess=float(count),
            accept_rate=1.0,
            proposal_ess=1.0,
            pareto_k=-np.inf,
            components=1,
            walks=0,
            memory=0.0,
            survivors=count,
            evaluations=start.evaluations + count * start.n,
        )

    def step(self, state: SequentialState, rng: np.random.Generator) -> SequentialState:
        """One stage: reweight, resample and move."""
        return self.move(self.reweight(state, rng), rng)

    def rejoin(self, x: np.ndarray, log_weights: np.ndarray, rng: np.random.Generator) -> SequentialState:
        """Go on from particles (M, d) of several finished runs, weighted: resample as many as one run has, and move them.

        The moves' proposals cover the modes of all runs, and so does the evidence that they give.
        """
        picked = x[systematic(normalised(log_weights), self.draws, rng)]
        mass = draw_prior_and_mass(self.target.coordinates, self.draws, rng)[1]
        return self.move(self.init(Start(picked, self.target.n_samples, mass=mass), self.target.n_samples), rng)

    def join_parts(self, x: np.ndarray, log_weights: np.ndarray, part: np.ndarray, rng: np.random.Generator) -> SequentialState:
        """Go on from weighted particles (M, d) of several parts of the posterior, which are numbered, and move them.

        Proposals are fitted to a share of particles of every part: one that holds little is not left to a few.
        """
        level = log_weights - scipy.special.logsumexp(log_weights) + np.log(len(x))
        mass = draw_prior_and_mass(self.target.coordinates, self.draws, rng)[1]
        state = self.init(Start(x, self.target.n_samples, mass=mass), self.target.n_samples)
        return self.move(state._replace(log_weights=level, region=part), rng)

    def wrapped(self, state: SequentialState) -> SequentialState:
        """A state with all particles in the one turn of each angle that counts for this target."""
        wrapped, particles = self.target.coordinates.wrapped, state.particles
        return state._replace(particles=particles._replace(x=wrapped(particles.x)), remembered=wrapped(state.remembered))

    def finished(self, state: SequentialState) -> bool:
        """Whether the particles are weighted by the whole record, and their diffusions calibrated by it."""
        return state.n == self.target.n_samples == state.diffusion_samples

    def share(self, state: SequentialState) -> float:
        """Share of the samples taken in: one if the run is finished, and only then."""
        T = self.target.n_samples
        if state.n == T and not self.finished(state):
            return float(np.nextafter(1.0, 0.0))
        return float((state.n + state.fraction) / T)

    def chains(self, state: SequentialState) -> np.ndarray:
        """Particles (chain, draw, d): the Markov chains of the last waste-free moves, or all as one chain."""
        x, length = state.particles.x, self.moves.chain_length
        if not self.moves.waste_free or self.draws % length or length == 1 or state.walks:
            return x[None]
        return x.reshape(-1, length, x.shape[1])

    @staticmethod
    def even(state: SequentialState) -> np.ndarray:
        """Particles (N, d) that count alike: draws from the posterior given what has been taken in."""
        x = state.particles.x
        return x[evenly(normalised(state.log_weights))] if state.log_weights.any() else x

    def path(self, state: SequentialState) -> np.ndarray:
        """Effective size, at most that of ``draws``, at evenly spaced samples of the stage."""
        last = len(state.sizes) - 1
        path: np.ndarray = np.interp(np.linspace(0, last, PATH), np.arange(last + 1), np.minimum(state.sizes, self.draws))
        return path

    # -- weighting ----------------------------------------------------------------------------------------------------

    def reweight(self, state: SequentialState, rng: np.random.Generator) -> SequentialState:
        """Take in samples until the effective sample size falls to the threshold, or there are no more.

        Where a sample is possible for few particles only, they are weighted again from many more.

        Raises
        ------
        ValueError
            If no particle can explain the samples.
        """
        weighted = self._weighted(state, rng)
        alive = _possible(weighted)
        least = min(FEW, self.draws / 2)
        if alive < least and len(state.particles.x) <= self.draws:
            begun = state._replace(evaluations=weighted.evaluations)
            crowded = self._crowd(begun, min(CROWD, ENOUGH * FEW // max(alive, 1) + 1), rng)
            again = self._weighted(crowded, rng) if crowded.particles is not state.particles else crowded
            # Weights that few of the new draws share would fit the next proposals to a point.
            enough = bool(effective_size(again.log_weights) >= least and _possible(again) > alive)
            weighted = again if enough and again is not crowded else weighted._replace(evaluations=again.evaluations)
        count = len(weighted.log_weights)
        with np.errstate(divide="ignore"):
            mean = scipy.special.logsumexp(weighted.log_weights) - np.log(count)
        if not np.isfinite(mean):
            raise ValueError(
                f"every particle has a likelihood of zero at sample {weighted.n}: no draw of the prior can explain the record "
                "up to there. Check units, input and priors (pm.sample_prior_predictive shows what they expect)."
            )
        variance = cluster_variance(weighted.log_weights, weighted.moved_weights, weighted.family)
        return weighted._replace(
            ess=min(float(effective_size(weighted.log_weights)), float(self.draws)),
            variance=weighted.variance + variance,
            log_evidence=weighted.log_evidence + float(mean),
            product_variance=weighted.product_variance + variance,
            log_product=weighted.log_product + float(mean),
            survivors=min(weighted.survivors, _possible(weighted)),
        )

    def _weighted(self, state: SequentialState, rng: np.random.Generator) -> SequentialState:
        """Particles weighted by as many more samples as the effective sample size allows."""
        moved = state.moved_weights
        state = state._replace(stage=state.stage + 1, log_weights=moved, sizes=np.array([float(effective_size(moved))]))
        # Once a stage: particles stay where they are while they are weighted.
        copy = np.unique(state.particles.x, axis=0, return_inverse=True)[1].ravel() if state.components > 1 else moved
        if state.fraction:
            state = self._temper(state, copy)
        enough = True
        while enough and state.fraction == 0.0 and not self.finished(state):
            state, enough = self._absorb(state, copy, rng)
        return state

    def _crowd(self, state: SequentialState, times: int, rng: np.random.Generator) -> SequentialState:
        """Add many more draws of the same target to the particles, by independent proposals that are like it.

        What the few particles that a sample leaves say of the next target is little: all others descend from them. Draws and
        particles are weighted by the balance heuristic, so that none counts much more where the proposals hardly reach.
        """
        x, found = state.particles.x, normalised(state.moved_weights)
        N, M = len(x), times * self.draws
        for corrected in (True, False):  # few components first, as for moves
            proposal = Mixture.fit(x, found, self.moves.freedom, rng, corrected=corrected, most=self.components)
            proposal = proposal.with_room(x, found)
            state, drawn = self._evaluate(state, proposal.draw(M, rng))
            ratio = self._log_ratio(state, drawn, proposal)
            estimate = importance(ratio)
            if estimate.believable and estimate.efficiency * M >= self.draws:
                break
        else:
            return state
        everything = state.particles.join(drawn)
        ratio = np.concatenate([self._log_ratio(state, state.particles, proposal), ratio]) - estimate.value
        joint = ratio - np.logaddexp(np.log(N / (N + M)) + ratio, np.log(M / (N + M)))
        weights = np.concatenate([state.moved_weights + joint[:N], joint[N:]])
        some = np.flatnonzero(weights > -np.inf)
        weights = weights[some] - scipy.special.logsumexp(weights[some]) + np.log(len(some))
        return state._replace(
            particles=everything.take(some),
            chain=np.arange(len(some)),
            family=np.arange(len(some)),
            log_weights=weights,
            moved_weights=weights,
            region=proposal.nearest(everything.x[some]),
            components=proposal.components,
        )

    def _absorb(self, state: SequentialState, copy: np.ndarray, rng: np.random.Generator) -> tuple[SequentialState, bool]:
        """Take in some more samples; False when the effective size is at the threshold."""
        N = len(state.particles.x)
        enough = self.threshold * self.draws
        until = min(2 * state.diffusion_samples, self.target.n_samples)
        if state.n == until:
            state = self._recalibrate(state)
            size = effective_size(state.log_weights)
            return (self._start_again(state, rng), True) if size < COLLAPSE * self.draws else (state, bool(size >= enough))
        count = int(min(state.look_ahead, until - state.n, max(LEAST_LOOK, LOOK // N)))
        edges = state.n + np.arange(count + 1)
        particles = state.particles
        increments, progress = self.target.advance(particles.x, edges, particles.progress)
        state = state._replace(evaluations=state.evaluations + N * count)
        totals = state.log_weights[:, None] + np.cumsum(increments, axis=1)
        sizes = effective_size(totals)
        below = np.flatnonzero((sizes < enough) | self._thin(state, copy, totals))
        # Samples that are taken in: all of them, or those before the first at which the effective size is too small.
        k = count if below.size == 0 else int(below[0])
        state = state._replace(look_ahead=2 * count if k == count else max(LEAST_LOOK, k))
        if k == 0:
            if np.array_equal(state.log_weights, state.moved_weights):
                particles = particles._replace(next_log_likelihood=increments[:, 0])
                state = self._temper(state._replace(particles=particles), copy)
            return state, False
        if k < count:
            _, progress = self.target.advance(particles.x, state.n + np.array([0, k]), particles.progress)
            state = state._replace(evaluations=state.evaluations + N * k)
        likelihood = particles.log_likelihood + increments[:, :k].sum(axis=1)
        state = state._replace(
            particles=particles._replace(log_likelihood=likelihood, progress=progress),
            log_weights=totals[:, k - 1],
            sizes=np.concatenate([state.sizes, sizes[:k]]),
            n=state.n + k,
        )
        return state, k == count

    def _temper(self, state: SequentialState, copy: np.ndarray) -> SequentialState:
        """Take in a fraction of the next sample's likelihood: as much as the effective size allows.

        A sample that is impossible for most particles takes these away at once; the fraction is chosen for the rest.
        """
        particles, rest = state.particles, 1.0 - state.fraction
        following = particles.next_log_likelihood
        possible = following[following > -np.inf]
        if not len(possible):
            return state._replace(log_weights=np.full(len(following), -np.inf))
        moved = state.moved_weights[following > -np.inf]
        enough = self.threshold * min(self.draws, float(effective_size(moved)))

        def good(a: float) -> bool:
            if effective_size(moved + a * possible) < enough:
                return False
            return not self._thin(state, copy, (state.moved_weights + a * following)[:, None])[0]

        step = max(bisect(good, 0.0, rest), 1e-12 * rest)
        log_weights = state.moved_weights + step * following
        sizes = np.append(state.sizes, effective_size(log_weights))
        state = state._replace(log_weights=log_weights, sizes=sizes, fraction=state.fraction + step)
        if step < rest:
            return state
        _, progress = self.target.advance(particles.x, state.n + np.arange(2), particles.progress)
        likelihood = particles.log_likelihood + following
        particles = particles._replace(
            log_likelihood=likelihood, next_log_likelihood=np.zeros(len(following)), progress=progress
        )
        return state._replace(particles=particles, n=state.n + 1, fraction=0.0)

    def _thin(self, state: SequentialState, copy: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
        """Whether a region has too few effective particles left, at each of several weightings (N, k)."""
        if state.components == 1:
            return np.zeros(log_weights.shape[1], dtype=bool)
        region = np.where(state.region < state.components, state.region, -1)
        return thin(region, copy, log_weights, state.moved_weights, 0.5 * self.threshold * self.draws / len(region))

    def _recalibrate(self, state: SequentialState) -> SequentialState:
        """Calibrate diffusions by all samples taken in, and weight for what that changes."""
        before = state.particles.log_likelihood
        state, particles = self._evaluate(state._replace(diffusion_samples=state.n), state.particles.x)
        with np.errstate(invalid="ignore"):
            change = particles.log_likelihood - before
        log_weights = state.log_weights + np.where(np.isfinite(change), change, -np.inf)
        return state._replace(particles=particles, log_weights=log_weights)

    def _start_again(self, state: SequentialState, rng: np.random.Generator) -> SequentialState:
        """Begin anew with diffusions that are calibrated by the whole record from the first sample on.

        What fits a part of the record, calibrated by that part, may be impossible for the whole (a coarse solver that
        diverges later on): particles that went there cannot be weighted back.
        """
        _log.info(
            f"IBIS: no particle that fits the first {state.n} samples survives a diffusion calibrated by them; starting "
            "again with a diffusion calibrated by the whole record."
        )
        again = self.init(self.draw_prior(rng), self.target.n_samples)
        return again._replace(stage=state.stage, evaluations=state.evaluations)

    # -- moves --------------------------------------------------------------------------------------------------------

    def move(self, state: SequentialState, rng: np.random.Generator) -> SequentialState:
        """Resample, and move by Metropolis-Hastings steps that leave the posterior weighted to unchanged.

        The independent proposals of the moves are draws for importance sampling as well: where they fit the posterior the log
        evidence is set to what they say.
        """
        # The mixture is fitted to particles as they were visited, and to those of every region where there were some: one that
        # the last samples have left little of keeps a component.
        # Where there are more draws, of a proposal, their weights say nothing of regions.
        visited = state.log_weights - (state.moved_weights if len(state.particles.x) <= self.draws else 0.0)
        x, found = state.particles.x, normalised(visited + log_raise(state.region, normalised(visited))[state.region])
        if len(x) > FITTED:
            x, found = x[systematic(found, FITTED, rng)], np.full(FITTED, 1 / FITTED)
        last, before = self.finished(state), state
        # Few components first, and more where these leave out particles or do not fit. Moves that always walk need no few ones.
        for corrected in (True, False) if self.moves.min_acceptance <= 1 else (False,):
            proposal = Mixture.fit(x, found, self.moves.freedom, rng, corrected=corrected, most=self.components)
            wider = proposal.with_room(x, found)
            if corrected and not self._reaches(before, wider):
                continue
            strata = Strata.level(proposal) if last else Strata.of(proposal, before.particles.x, normalised(before.log_weights))
            tilted = before._replace(log_weights=before.log_weights + strata.log_tilt(before.particles.x))
            weights, count = normalised(tilted.log_weights), self.draws
            chains = -(-count // self.moves.chain_length) if self.moves.waste_free else count
            begun = before._replace(evaluations=state.evaluations)
            # Region by region, so that the chains begin in each as often as its share asks for.
            by_region = np.argsort(proposal.nearest(before.particles.x), kind="stable")
            ancestors = by_region[systematic(weights[by_region], chains, rng)]
            state, estimate = self._independent(begun, strata, wider, ancestors, rng)
            fits = self._fits(estimate)
            if fits and state.accept_rate >= self.moves.min_acceptance:
                break
        else:
            # From as many particles as there are: the few chains of waste-free moves lose modes that proposals do not reach.
            state = self._walk(state, tilted, strata, systematic(weights, count, rng), rng)
        if last:
            state, estimate = self._conclude(state, estimate, fits, rng)
            fits = True
        if fits and np.isfinite(estimate.value):
            variance = estimate.error**2 + state.mass_error**2
            if last and proposal.components > 1:  # there may be other modes, and those that hold less are not looked for
                variance += MATTERS**2
            state = state._replace(log_evidence=estimate.value - state.log_mass, variance=variance)
        if last and len(state.remembered):
            state = self._look_around(state, rng)
        moved = -strata.log_tilt(state.particles.x)
        moved = moved - scipy.special.logsumexp(moved) + np.log(len(moved))
        state = state._replace(log_weights=moved, moved_weights=moved, region=proposal.nearest(state.particles.x))
        if not state.walks or last or 2 * state.n < self.target.n_samples:
            return state
        # Where proposals fit poorly, particles are remembered for a look around in the end.
        some = state.particles.x[rng.integers(len(moved), size=REMEMBERED)]
        return state._replace(remembered=np.concatenate([state.remembered, some])[-STAGES * REMEMBERED :])

    def _reaches(self, state: SequentialState, proposal: Mixture) -> bool:
        """Whether the density of a proposal is nowhere much less than the posterior's, as far as the particles know.

        Draws that fit a part of the posterior have even weights. The particles know of the other parts, and Markov chains with
        such proposals would leave these more easily than they come back.
        """
        weights, ratio = normalised(state.log_weights), self._log_ratio(state, state.particles, proposal)
        some = weights > 0
        # The reciprocal of the evidence is the posterior mean of proposal over target.
        log_evidence = -scipy.special.logsumexp(-ratio[some], b=weights[some])
        return bool(np.max(ratio[some]) - log_evidence <= np.log(REACH))

    def _look_around(self, state: SequentialState, rng: np.random.Generator) -> SequentialState:
        """The finished state, with the log evidence by draws around the particles of earlier stages.

        A region that particles have lost on the way is in no proposal that follows the last ones, and what follows them gives
        the evidence of the rest with a small error. The proposal for this is not fitted to its own draws, which would lose the
        region again. Of the two estimates the more certain one is taken; its error is at least their distance where that is
        more than chance.
        """
        x = np.concatenate([state.remembered, state.particles.x])
        proposal = Mixture.fit(x, np.full(len(x), 1 / len(x)), self.moves.freedom, rng, most=self.components)
        state, drawn = self._evaluate(state, proposal.draw(AROUND * self.draws, rng))
        found = importance(self._log_ratio(state, drawn, proposal))
        if not found.believable:
            return state
        around, variance = found.value - state.log_mass, found.error**2 + state.mass_error**2
        if proposal.components > 1:  # as for the evidence of the last stage
            variance += MATTERS**2
        value, error = (around, variance) if variance < state.variance else (state.log_evidence, state.variance)
        distance = (around - state.log_evidence) ** 2
        if distance > CHANCE**2 * (variance + state.variance):
            error = max(error, distance)
        return state._replace(log_around=around, around_variance=variance, log_evidence=value, variance=error)

    def _particles(self, x: np.ndarray, n: int, fraction: float, diffusion_samples: int) -> Particles:
        """Particles under the target given the first n samples and a fraction of the next."""
        likelihood, progress = self.target.start(x, [0, n], diffusion_samples=diffusion_samples)
        following = np.zeros(len(x))
        if fraction:
            following = self.target.advance(x, [n, n + 1], progress)[0][:, 0]
        return Particles(x, self.target.log_prior(x), likelihood[:, 0], following, progress)

    def _evaluate(self, state: SequentialState, x: np.ndarray) -> tuple[SequentialState, Particles]:
        """Other particles under the target of a state, and the state with their evaluations counted."""
        particles = self._particles(x, state.n, state.fraction, state.diffusion_samples)
        evaluations = state.evaluations + len(x) * (state.n + (state.fraction > 0))
        return state._replace(evaluations=evaluations), particles

    @staticmethod
    def _log_target(state: SequentialState, particles: Particles) -> np.ndarray:
        """Log-density the stage has weighted to, which the moves leave unchanged."""
        total = particles.log_prior + particles.log_likelihood
        if state.fraction:
            total = total + state.fraction * particles.next_log_likelihood
        result: np.ndarray = np.where(np.isnan(total), -np.inf, total)
        return result

    def _log_ratio(self, state: SequentialState, particles: Particles, proposal: Mixture) -> np.ndarray:
        """Log of target over proposal density."""
        ratio: np.ndarray = self._log_target(state, particles) - proposal.logpdf(particles.x)
        return ratio

    def _independent(
        self, state: SequentialState, strata: Strata, proposal: Mixture, ancestors: np.ndarray, rng: np.random.Generator
    ) -> tuple[SequentialState, Estimate]:
        """Independent Metropolis-Hastings chains; all proposals are evaluated in one batch.

        Every state of a waste-free chain is kept. Those of the last stage are the draws: where neighbours are too much alike,
        chains go on, and every second or third state is kept.
        """
        M, count, N, spent = len(ancestors), self.draws, len(state.particles.x), state.evaluations
        moved = max(self.moves.chain_length - self.moves.waste_free, 1)
        everything, every, more = state.particles, 0, 1
        while more:
            every += more
            state, drawn = self._evaluate(state, proposal.draw(more * moved * M, rng))
            everything = everything.join(drawn)
            ratio = self._log_ratio(state, everything, proposal)
            chains = independent_chains(ancestors, ratio + strata.log_tilt(everything.x), N, rng)
            estimate = importance(ratio[N:])
            useful = self.finished(state) and chains.acceptance >= self.moves.min_acceptance and self._fits(estimate)
            x = everything.x[chains.source].reshape(-1, M, self.target.size)
            more = self._longer(x, every, spent / (count * max(state.n, 1))) if self.moves.waste_free and useful else 0
        # Chain by chain, in a random order of the chains: neighbours are what depends on each other.
        order = rng.permutation(M)
        rows = chains.source.reshape(-1, M)[::every, order] if self.moves.waste_free else chains.source[-M:][order][None]
        kept = rows.T.ravel()[:count]
        chain = np.repeat(order, len(rows))[:count]
        state = state._replace(
            particles=everything.take(kept),
            chain=chain,
            family=state.chain[ancestors][chain],
            accept_rate=chains.acceptance,
            proposal_ess=estimate.efficiency,
            pareto_k=estimate.pareto_k,
            components=proposal.components,
            walks=0,
            memory=0.0,
        )
        return state, estimate

    def _fits(self, estimate: Estimate) -> bool:
        """Whether weights of independent proposals are as even as proposals that fit a posterior have them."""
        return estimate.believable and estimate.efficiency >= GOOD_SHARE * attainable(self.target.size, self.moves.freedom)

    @staticmethod
    def _longer(x: np.ndarray, every: int, cost: float) -> int:
        """By how many of their first lengths chains (step, chain, d), of which every so many steps are kept, should go on.

        ``cost`` is that of the run so far, in as many particles by the whole record.
        """
        wanted = math.ceil(every * (autocorrelation_time(x[::every]) - 1) / (ALIKE - 1))
        return max(min(wanted, 1 + int(DEARER * cost)) - every, 0)

    def _walk(
        self, state: SequentialState, before: SequentialState, strata: Strata, index: np.ndarray, rng: np.random.Generator
    ) -> SequentialState:
        """Steps of particles resampled from before the moves, until they have forgotten where they were.

        In turn: independent proposals, which lead from one mode to another; differences of any two particles; and differences
        within the particle's region, for modes that are narrower than others.
        """
        proposal, at, N = strata.mixture, before.particles.take(index), len(index)
        reference, density = at.x, self._log_target(state, at) + strata.log_tilt(at.x)
        _, root = moments(reference, np.full(N, 1 / N))
        whitened = np.linalg.inv(root).T
        own = group = proposal.nearest(reference)
        fold = folds(before.chain, rng)
        independent = Folds.fit(before.particles.x, normalised(before.log_weights), fold, self.moves.freedom, rng)
        fold = fold[index]
        at_density = independent.logpdf(at.x, fold)
        accepted, left, walks = 0.0, 1.0, 0
        while walks < self.moves.most_walks and left > FORGOTTEN:
            for _ in range(min(WALKS, self.moves.most_walks - walks)):
                kind = walks % 3
                if kind == 0:
                    x = independent.draw(fold, rng)
                elif kind == 1:
                    x = at.x + differences(reference, N, rng)
                else:
                    x = at.x + differences_within(reference, own, group, rng)
                state, new = self._evaluate(state, x)
                new_group = proposal.nearest(x)
                new_density = self._log_target(state, new) + strata.log_raise[new_group]
                with np.errstate(invalid="ignore"):
                    gain = new_density - density
                new_at = independent.logpdf(x, fold)
                if kind == 0:
                    gain = gain + at_density - new_at
                with np.errstate(invalid="ignore"):
                    better = np.log(rng.random(N)) < gain
                better &= (new_group == group) | (kind != 2)
                at = at.join(new).take(np.where(better, N + np.arange(N), np.arange(N)))
                density, group = np.where(better, new_density, density), np.where(better, new_group, group)
                at_density = np.where(better, new_at, at_density)
                accepted, walks = accepted + better.mean(), walks + 1
            left = memory(reference @ whitened, at.x @ whitened, own)
        return state._replace(
            particles=at,
            chain=index,
            family=before.chain[index],
            accept_rate=accepted / walks,
            walks=walks,
            memory=left,
        )

    def _conclude(
        self, state: SequentialState, estimate: Estimate, fits: bool, rng: np.random.Generator
    ) -> tuple[SequentialState, Estimate]:
        """Log evidence from the particles of the last stage.

        Where its own proposals do not fit, proposals are fitted again to the particles that have moved, with more draws, and
        particles and proposals are joined by a bridge: it sees what part of the particles the proposals do not reach.
        """
        equal = np.full(self.draws, 1 / self.draws)
        if fits and estimate.error <= GOOD_ERROR:
            return state, estimate
        for _ in range(ROUNDS):
            proposal = Mixture.fit(state.particles.x, equal, self.moves.freedom, rng, most=self.components)
            state, drawn = self._evaluate(state, proposal.draw(MANY * self.draws, rng))
            again = importance(self._log_ratio(state, drawn, proposal))
            if again.believable and (not estimate.believable or again.error < estimate.error):
                estimate = again
                state = state._replace(proposal_ess=again.efficiency, pareto_k=again.pareto_k)
            if estimate.believable and estimate.error <= GOOD_ERROR:
                break
        # A proposal fitted to one half of the chains meets the other half, and the other way round.
        chains, number = np.unique(state.chain, return_inverse=True)
        if len(chains) < 2:
            return state, estimate
        second = rng.permutation(len(chains))[number] % 2 == 1
        halves = []
        for fitted, met in ((~second, second), (second, ~second)):
            even = np.full(fitted.sum(), 1 / fitted.sum())
            proposal = Mixture.fit(state.particles.x[fitted], even, self.moves.freedom, rng, most=self.components)
            state, drawn = self._evaluate(state, proposal.draw(MANY * self.draws, rng))
            at_draws = self._log_ratio(state, state.particles.take(met), proposal)
            halves.append(bridge(at_draws, self._log_ratio(state, drawn, proposal), state.family[met]))
        both = joined(halves)
        if not estimate.believable:
            return state, both
        apart = abs(both.value - estimate.value)
        return state, both._replace(error=max(both.error, apart)) if both.error < estimate.error else estimate._replace(
            error=max(estimate.error, apart)
        )
