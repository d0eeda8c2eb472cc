"""ABC nested sampling over several models at once: which structure, and which parameters, without a likelihood."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import pymc as pm
import scipy
import xarray as xr

from pm_sysid.arguments import flag, of_kind, shown, whole, whole_seed
from pm_sysid.progress import progress_bar, time_left
from pm_sysid.sampling.abc.abandoned import abandoned
from pm_sysid.sampling.abc.checkpoint import ABCCheckpoint, RunState
from pm_sysid.sampling.abc.population import (
    Candidates,
    Outcome,
    Population,
    ProposalDistribution,
    ProposalProbabilities,
    gathered,
    initial_proposals,
    living_parts,
    next_proposals,
    next_threshold,
    picked,
    share_to_drop,
)
from pm_sysid.sampling.abc.result import History, Masses, RunMasses, result, row
from pm_sysid.sampling.abc.settings import (
    EllipsoidProposals,
    Thresholds,
    check_same_data,
    checked_names,
    prior_probabilities,
)
from pm_sysid.sampling.abc.simulations import Simulations
from pm_sysid.sampling.abc.unit_cube import ConstraintMass
from pm_sysid.sampling.executors import Execution, backend
from pm_sysid.sampling.smc.evidence import pareto_shape
from pm_sysid.storage import check_seed, locked

_log = logging.getLogger("pm_sysid")

#: The best particle's distance, as a part of the threshold, above which the population is gathered at its best.
GATHERED = 0.75
#: Effective particles of the last population, as a part of ``particles``, for which it is refined in at most so many rounds,
#: with this probability of local proposals.
REFINED, MOST_REFINED, REFINE_LOCAL = 0.5, 10, 0.5
#: Candidates by which masses are measured at the end, as a multiple of the particles: from proposals around the last
#: population, and from each of some earlier ones and the prior, which hold what the last ones may have lost.
FRESH, EARLIER, EARLIER_ROUNDS = 2.0, 0.25, 8
#: Most simulations, as a multiple of the particles, in searches for places that the run has left.
SEARCHED = 8.0
#: Hits that are possible, at 95 %, where there are none.
RULE_OF_THREE = 3.0
#: Smallest and largest number of candidates in a batch.
BATCH = (256, 8192)


def sample_abc_ns(
    models: Mapping[str, pm.Model],
    particles: int = 1000,
    *,
    distance: Callable[..., float] | None = None,
    prior: Mapping[str, float] | None = None,
    thresholds: Thresholds | None = None,
    proposals: EllipsoidProposals | None = None,
    execution: Execution | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Choose among models and estimate their parameters by approximate Bayesian computation with nested sampling (ABC-NS).

    One population of particles of all models moves below a falling threshold of the distance between simulation and
    measurement. In each round the worst particles are dropped, and replaced by draws from an ellipsoid around those that are
    left of each model, if their simulations fall below the threshold. Models that cannot come as close as others die out.

    Parameters
    ----------
    models : mapping of name to pm.Model
        Each with priors, constraints (as ``pm.Potential``), and one or more simulators (:class:`ODESimulator`, or any
        ``pm.Simulator``), all observed on the same data.
    particles : int, default 1000
        Number of particles of all models together.
    distance : callable, optional
        Distance of ``(observed, simulated)`` as a number, for simulators that are no :class:`ODESimulator`. Default:
        :func:`nmse`. An :class:`ODESimulator` has its own.
    prior : mapping of name to number, optional
        Prior probabilities of the models, not necessarily normalised. Default: equal.
    thresholds : Thresholds, optional
        First threshold of the distance, how the later ones fall, and when they have converged.
    proposals : EllipsoidProposals, optional
        Ellipsoids from which candidates are drawn.
    execution : Execution, optional
        Where simulations run, and limits on their number, on time and on the acceptance.
    checkpoint : path, optional
        File to which every round is written, by one process at a time. Called again with the same file, models and
        settings, the run goes on from there and ends as it would have without the interruption.
    random_seed : int, optional
        One seed gives one result.
    progressbar : bool, default True
        Show threshold, acceptance, simulations and model probabilities of each round; nothing is left of the line.

    Returns
    -------
    xarray.DataTree
        A group for each model with its ``posterior`` (one chain, draws of equal weight; none for a model that died out).
        ``populations``: ``model_probability``, the posterior probability of each model; ``model_mass``, its prior mass below
        the last threshold times its prior probability, measured by fresh candidates, with the standard error
        ``model_mass_se``; ``model_probability_se``, the standard error of the probabilities by both, at least what those
        of the particles and of the fresh candidates differ by; by round, ``threshold``, ``best``
        (smallest distance), ``acceptance``, ``simulations`` (so far), ``ess``, ``seconds``, and by round and model
        ``probability``, ``share``, ``log_mass`` (the running estimate of the mass) and ``log_volume`` of the ellipsoid.
        ``particles``: the last population, with ``model``, ``distance``, ``weight`` and ``point`` in the unit cube. The
        attribute ``stopped`` says why it ended, and ``doubt`` what speaks against the probabilities (empty: nothing).

    Raises
    ------
    ValueError, TypeError
        For models without simulator or on different data, priors that have no inverse cumulative distribution, settings
        out of range.
    RuntimeError
        If hardly anything comes as close as the first threshold, or another process writes the checkpoint.

    Notes
    -----
    The algorithm is that of Nayek et al. (2023), Algorithms 1-5, with these differences.

    Particles carry importance weights: prior over the mixture of all proposals so far. The paper counts particles (Eq. 17;
    ``share`` here), which are drawn from ellipsoids of different volume, and more densely around the best: neither their
    number in a model nor their variance is that of a posterior. ``probability`` is the share of the weight, and is right
    whatever the ellipsoids; ``ess`` says how good. ``share`` is kept for comparison. Thresholds drop the share of the number
    or of the weight, whichever leaves less, so that a model does not hold up the others at its own best.

    Coordinates that a model's particles fill are left free, separate regions have their own ellipsoids, and a region with 1 %
    of the weight or more is left enough particles to tell the next ellipsoid.

    Ellipsoids live in the unit cube of the priors, where uniform and log-uniform priors are what they are in the paper and
    any other prior is right too. Constraints cut the prior, which is normalised again.

    A run selects its particles and fits its proposals to them, and what it lost on the way no weight brings back. At the end
    the masses are therefore measured again, by about five times ``particles`` candidates (beyond ``max_simulations``) at the
    last threshold, from fixed proposals: the last ones, earlier ones and the prior. These estimates are unbiased. Where the
    probabilities contradict them, ``doubt`` says so. Searches from those candidates that are far from any nearer one, by up to
    about eight times ``particles`` simulations, look for places below the threshold that the run has left. After
    ``max_seconds`` and an interrupt there are none (NaN).

    Runs without noise have a least distance. The paper's thresholds fall to it if they are left to: to a posterior of no width,
    and to whichever model fits best by a hair. By the named distances no threshold is therefore lower than where the width is
    that of a likelihood with white noise: ``1 + (k + 2) / N`` times the least mean squared error, of k unknowns and N measured
    values; of several models, where one that lacks nothing but fits worse by three standard errors is still possible:
    ``1 + (k + 11) / N``. The run has converged there.

    When the threshold has converged, rounds at the last threshold follow until the effective number of particles is half of
    ``particles`` (at most ten).

    An interrupt from the keyboard ends the run after the last whole round.

    Examples
    --------
    Was an oscillator released at a displacement of 1, or of 0.5?

    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> oscillator, t, w = sid.models.duffing(), np.linspace(0.0, 1.0, 51), np.sqrt(99.0)
    >>> record = sid.TimeSeries(t, np.zeros(51), np.exp(-t) * (np.cos(w * t) + np.sin(w * t) / w))
    >>> def model(start):
    ...     with pm.Model() as built:
    ...         stiffness = pm.Uniform("k", 50.0, 200.0)
    ...         params = {"m": 1.0, "c": 2.0, "k": stiffness, "k3": 0.0}
    ...         sid.ODESimulator("y", oscillator, record, params, x0=[start, 0.0], substeps=4)
    ...     return built
    >>> models = {"one": model(1.0), "half": model(0.5)}
    >>> budget = sid.Execution(max_simulations=3000)
    >>> result = sid.sample_abc_ns(models, 100, execution=budget, random_seed=1, progressbar=False)
    >>> result["populations"]["model_probability"].values.round(2)
    array([1., 0.])
    """
    particles = int(particles) if isinstance(particles, np.integer) else particles
    if not whole(particles, 10, 10**8):
        raise ValueError(f"particles is {shown(particles)}; give a whole number of at least 10, such as 1000.")
    thresholds = of_kind(thresholds, Thresholds, "thresholds")
    proposals = of_kind(proposals, EllipsoidProposals, "proposals")
    execution = of_kind(execution, Execution, "execution")
    names = checked_names(models)
    check_same_data(models)
    flag(progressbar, "progressbar")
    model_prior = prior_probabilities(prior, names)
    simulations = Simulations(models, distance)
    seed = whole_seed(random_seed)
    run = Run(particles, simulations, model_prior, seed, thresholds, proposals, execution)
    if checkpoint is None:
        stopped = run.go(None, progressbar)
    else:
        saved = ABCCheckpoint(checkpoint, run.identity, simulations.tested)
        with locked(saved.path):
            run.restore(saved, random_seed)
            stopped = run.go(saved, progressbar)
    _log.info("sample_abc_ns: %s after %d populations and %d simulations.", stopped, len(run.history), run.simulated)
    masses = run.measure() if stopped not in ("interrupted", "max_seconds used up") else None
    return result(models, simulations.cubes, run.populations[-1], run.history, stopped, run.seed, masses, particles)


class Stop(Exception):
    """A reason to end a run in the middle of a round."""


@dataclass
class Run:
    """A run: the last two populations, and all proposals so far with the number of candidates drawn from each."""

    particles: int
    simulations: Simulations
    prior: np.ndarray
    seed: int
    thresholds: Thresholds = field(default_factory=Thresholds)
    proposals: EllipsoidProposals = field(default_factory=EllipsoidProposals)
    execution: Execution = field(default_factory=Execution)
    populations: list[Population] = field(default_factory=list)
    history: History = field(default_factory=list)
    mixture: list[tuple[int, ProposalDistribution]] = field(default_factory=list)
    simulated: int = 0
    seconds: float = 0.0
    show: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self.begin = time.perf_counter()
        self.sizes = [cube.size for cube in self.simulations.cubes]
        simulations = self.simulations
        make = partial(Simulations, simulations.models, simulations.distance)
        self.backend = backend(simulations, make, self.execution.executor)

    @cached_property
    def constraints(self) -> list[ConstraintMass]:
        """Prior mass that the constraints leave of each model, from draws with the seed of the run."""
        return [cube.constraint_mass([self.seed, k, 4]) for k, cube in enumerate(self.simulations.cubes)]

    @property
    def log_mass(self) -> np.ndarray:
        """Logarithm of the prior mass that the constraints leave, by model."""
        return np.array([mass.log for mass in self.constraints])

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        simulations = self.simulations
        labels = {name: cube.labels for name, cube in zip(simulations.models, simulations.cubes, strict=True)}
        # The coordinates of local ellipsoids: files of earlier versions have them in the cube.
        settings = {"particles": self.particles, "local": "normal scores", **vars(self.thresholds), **vars(self.proposals)}
        return {**settings, "min_acceptance": self.execution.min_acceptance, "models": labels, "prior": self.prior}

    def restore(self, saved: ABCCheckpoint, random_seed: int | None) -> None:
        """Go on from a checkpoint, if it has anything."""
        found = saved.load(self.sizes)
        if found is None:
            return
        check_seed(random_seed, found.seed, saved.path, "give a new file")
        self.seed, self.populations, self.history, self.mixture = found
        self.simulated, self.seconds = int(self.history[-1]["simulations"]), float(self.history[-1]["seconds"])

    def go(self, saved: ABCCheckpoint | None, progressbar: bool) -> str:
        """Round after round until there is a reason to stop, which is returned."""
        self.begin = time.perf_counter() - self.seconds
        with progress_bar("sample_abc_ns", progressbar) as self.show:
            self.show("first population")
            try:
                while (reason := self._converged()) is None:
                    self.next_population()
                    self._save(saved)
                while not self._refined():
                    self._refine()
                    self._save(saved)
            except Stop as stop:  # while it is being refined, a run has converged all the same
                reason = self._converged() or str(stop)
            except KeyboardInterrupt:
                if not self.populations:
                    raise
                reason = "interrupted"
        return reason

    def measure(self) -> Masses:
        """Prior mass of each model below the last threshold, from candidates that had no part in finding it.

        The particles of a run were selected by its thresholds, and later proposals were fitted to them, so that sums of their
        weights lean on what they estimate. Here threshold, proposals and the number of candidates from each are fixed
        beforehand, which makes the sums unbiased: whatever lies below the threshold can be drawn, at least from the prior.
        """
        last, K = self.populations[-1], len(self.sizes)
        fresh = self._around(last, last.threshold, ProposalProbabilities(0.0, REFINE_LOCAL))
        earlier = self._earlier_rounds()
        prior = initial_proposals(self.sizes, np.full(K, 1 / K), self.log_mass)  # a model that is improbable, too
        parts = [(FRESH, fresh), *((EARLIER, self.mixture[i][1]) for i in earlier), (K * EARLIER, prior)]
        dead = np.array([region is None for region in fresh.regions])
        if dead.any():
            parts.append((EARLIER, self._where_last(dead)))
        drawn = [(max(2, round(share * self.particles)), proposals) for share, proposals in parts]
        kept, tried, known = [], [], []
        for number, (count, proposals) in enumerate(drawn):
            batches = proposals.batches([self.seed, len(self.history), 3, number], count)
            ((candidates, outcome),) = self.backend.results(islice(batches, 1))
            kept.append(picked(candidates, outcome, np.flatnonzero(outcome.distance < last.threshold)))
            known.append((candidates, outcome))
            if proposals is fresh or number > len(earlier) + 1:
                tried.append(picked(candidates, outcome, np.flatnonzero(outcome.log_potential > -np.inf)))
        population = gathered(kept, drawn, last.threshold, self.prior, self.log_mass)
        weight = np.exp(population.log_prior - population.log_pool)
        part = np.repeat(np.arange(len(kept)), [len(c.model) for c, _ in kept])
        sums, squares = (np.zeros((len(kept), K)) for _ in range(2))
        np.add.at(sums, (part, population.model), weight)
        np.add.at(squares, (part, population.model), weight**2)
        counts = np.array([count for count, _ in drawn], dtype=float)[:, None]
        variance = counts / (counts - 1) * (squares - sums**2 / counts)
        value, error = sums.sum(axis=0), np.sqrt(np.maximum(variance, 0.0).sum(axis=0))
        constraint = np.array([mass.error for mass in self.constraints])
        log_weight = np.log(weight)
        shape = np.array([pareto_shape(log_weight[population.model == k]) for k in range(K)])
        run = np.array([np.sqrt(np.sum(last.weight[last.model == k] ** 2)) for k in range(K)]) * np.exp(last.log_mass(K)).sum()
        unseen = gathered(tried, drawn, last.threshold, self.prior, self.log_mass)
        for k in map(int, np.flatnonzero(value == 0)):
            possible = np.exp((unseen.log_prior - unseen.log_pool)[unseen.model == k])
            error[k] = min(RULE_OF_THREE * np.max(possible, initial=0.0), self.prior[k]) if len(possible) else self.prior[k]
            if dead[k]:  # draws of its prior and searches would have met it
                error[k] = min(error[k], self._last_share(k) * float(value.sum()) if value.sum() > 0 else np.inf)
        lost = np.array([self._last_share(k) if dead[k] else 0.0 for k in range(K)])
        # Of what is at places that the run has left, candidates have met a part.
        beyond = np.bincount(population.model, weight * np.isneginf(fresh.log_density(population.model, population.points)), K)
        left = np.maximum(self._abandoned(known, fresh) - beyond, 0.0)
        return Masses(value, error, constraint, RunMasses(np.exp(last.log_mass(K)), run), shape, lost, left)

    def _abandoned(self, known: list[tuple[Candidates, Outcome]], fresh: ProposalDistribution) -> np.ndarray:
        """Prior mass of each model below the last threshold, times its prior probability, at places that the run has left."""
        candidates = Candidates(np.concatenate([c.model for c, _ in known]), np.concatenate([c.points for c, _ in known]), 0)
        distance, potential = (np.concatenate(parts) for parts in zip(*(o[:2] for _, o in known), strict=True))
        rng = np.random.default_rng([self.seed, len(self.history), 5])

        def simulate(some: Candidates) -> Outcome:
            ((_, outcome),) = self.backend.results([some])
            return outcome

        log_prior = np.log(self.prior) - self.log_mass
        threshold = self.populations[-1].threshold
        most, known_outcome = int(SEARCHED * self.particles), Outcome(distance, potential, 0)
        return abandoned(candidates, known_outcome, fresh, threshold, log_prior, simulate, rng, most).mass

    def _earlier_rounds(self) -> np.ndarray:
        """Some rounds between which the prior mass has fallen by about the same factor: most rounds are at nearly the same."""
        total = np.array([scipy.special.logsumexp(h["log_mass"]) for h in self.history])
        fallen = np.maximum.accumulate(total[0] - total)
        return np.unique(np.searchsorted(fallen, np.linspace(0.0, fallen[-1], EARLIER_ROUNDS)))

    def _where_last(self, dead: np.ndarray) -> ProposalDistribution:
        """Proposals from the last region of each model that has died."""
        regions = [
            next(r for _, p in reversed(self.mixture) if (r := p.regions[k]) is not None) if dead[k] else None
            for k in range(len(dead))
        ]
        models = np.where(dead, self.prior, 0.0)
        return ProposalDistribution(regions, models / models.sum(), self.mixture[-1][1].probabilities, self.sizes)

    def _last_share(self, k: int) -> float:
        """Probability of a model in the last round that had it; its prior probability if none had."""
        return next((p for h in reversed(self.history) if (p := float(h["probability"][k])) > 0), float(self.prior[k]))

    def _save(self, saved: ABCCheckpoint | None) -> None:
        """Write what a round has reached, if there is a checkpoint."""
        if saved is None:
            return
        try:
            saved.save(RunState(self.seed, self.populations, self.history, self.mixture))
        except OSError as error:
            _log.warning("sample_abc_ns: the checkpoint could not be written (%s); the last one stands.", error)

    def _report(self, accepted: float, simulated: int) -> None:
        """Show what the last round has reached, and how far the present one is."""
        text, before = "", 0.0
        if self.history:
            last = self.history[-1]
            alive = zip(self.simulations.models, last["probability"], strict=True)
            probabilities = ", ".join(f"{name} {p:.2f}" for name, p in alive if p > 0)
            text = f"population {len(self.history)}: threshold {last['threshold']:.4g}, best {last['best']:.4g}, "
            text += f"accepted {last['acceptance']:.2g}; {probabilities}; "
            before = last["seconds"]
        left = time_left(accepted, time.perf_counter() - self.begin - before)
        self.show(f"{text}next {accepted:.0%}{f', {left}' if left else ''}, {self.simulated + simulated:,} simulations")

    def _refined(self) -> bool:
        """Whether the last population has enough effective particles, or enough has been tried to that end."""
        thresholds = [h["threshold"] for h in self.history]
        rounds = len(thresholds) - 1 - thresholds.index(thresholds[-1])
        return bool(self.history[-1]["ess"] >= REFINED * self.particles or rounds >= MOST_REFINED)

    def _converged(self) -> str | None:
        if not self.history:
            return None
        patience, last = self.thresholds.patience, self.history[-1]
        if len(self.history) > 1 and last["threshold"] == self.history[-2]["threshold"]:
            return "converged"  # and being refined
        thresholds = np.array([h["threshold"] for h in self.history])
        falls = 1 - thresholds[1:] / thresholds[:-1]
        slow = len(falls) >= patience and bool(np.all(falls[-patience:] < self.thresholds.tolerance))
        if slow and last["best"] > GATHERED * last["threshold"]:
            return "converged"
        narrowest = self.simulations.narrowest
        if narrowest > 1 and last["threshold"] <= narrowest * last["best"] * (1 + 1e-9):
            return "converged"  # below, a posterior is narrower than noise allows
        if last["best"] <= 0:
            return "a simulation is the measurement"
        return None

    def _check_budget(self, count: int, tried: int, simulated: int) -> None:
        """Stop in the middle of a round, whose particles are then lost, where it would never end."""
        limits = self.execution
        if tried * limits.min_acceptance > 10 and count < tried * limits.min_acceptance:
            if not self.history:
                raise RuntimeError(
                    f"only {count} of {tried} candidates are closer than {self.thresholds.epsilon:.4g} to the measurement; "
                    "give a larger epsilon in thresholds, or priors under which the models come closer."
                )
            raise Stop("acceptance fell below min_acceptance")
        if self.history and self.simulated + simulated >= (limits.max_simulations or np.inf):
            raise Stop("max_simulations used up")
        if self.history and time.perf_counter() - self.begin >= (limits.max_seconds or np.inf):
            raise Stop("max_seconds used up")

    def next_population(self) -> None:
        """One population (Algorithm 1)."""
        if not self.populations:
            first = initial_proposals(self.sizes, self.prior, self.log_mass)
            self._fill(self.thresholds.epsilon, first, None, self.particles)
            return
        now, drop = self.populations[-1], self.thresholds.alpha0
        if len(self.populations) > 1:
            drop = share_to_drop(self.populations[-2], now, self.thresholds.alpha_min, len(self.sizes))
        threshold = next_threshold(now, drop, living_parts(now, self.mixture[-1][1], self.proposals.enlarge))
        threshold = max(threshold, min(self.simulations.narrowest * float(now.distance.min()), now.threshold))
        active = now.below(threshold)
        if not len(active):  # more than a share of the particles is at the very same distance
            threshold = float(np.nextafter(now.distance.min(), np.inf))
            active = now.below(threshold)
        probabilities = ProposalProbabilities(self.proposals.p_best, self.proposals.p_local)
        self._fill(threshold, self._around(active, now.threshold, probabilities), active, self.particles - len(active))

    def _refine(self) -> None:
        """More particles under the last threshold, where the present weights say."""
        now = self.populations[-1]
        proposals = self._around(now, now.threshold, ProposalProbabilities(0.0, REFINE_LOCAL))
        self._fill(now.threshold, proposals, now, self.particles // 2)

    def _around(self, active: Population, threshold: float, probabilities: ProposalProbabilities) -> ProposalDistribution:
        rng = np.random.default_rng([self.seed, len(self.history), 2])
        return next_proposals(
            self.mixture[-1][1],
            active,
            threshold,
            self.prior,
            probabilities,
            shrink=self.proposals.shrink,
            enlarge=self.proposals.enlarge,
            uniform=float(rng.random()),
            particles=self.particles,
        )

    def _fill(self, threshold: float, proposals: ProposalDistribution, active: Population | None, wanted: int) -> None:
        """Add particles to those that are left, and weigh all of them."""
        wanted = max(1, wanted)
        self._check_budget(0, 0, 0)
        parts, tried, simulated = self._sample(proposals, threshold, wanted)
        self.mixture.append((tried, proposals))
        population = gathered(parts, self.mixture, threshold, self.prior, self.log_mass)
        if active is not None:
            population = active.pooled(proposals, tried).join(population)
        self.populations = [*self.populations[-1:], population]
        self.simulated += simulated
        seconds = time.perf_counter() - self.begin
        self.history.append(row(population, proposals, wanted / tried, self.simulated, seconds, len(self.sizes)))

    def _sample(
        self, proposals: ProposalDistribution, threshold: float, wanted: int
    ) -> tuple[list[tuple[Candidates, Outcome]], int, int]:
        """Draw candidates until enough are accepted (Algorithm 5); they, their number and that of simulations."""
        last = float(self.history[-1]["acceptance"]) if self.history else 0.2
        size = int(np.clip(wanted / max(last, 1e-4) / 4, *BATCH))
        parts: list[tuple[Candidates, Outcome]] = []
        count = tried = simulated = 0
        outcomes = self.backend.results(proposals.batches([self.seed, len(self.history)], size))
        for candidates, outcome in outcomes:
            rows = np.flatnonzero(outcome.distance < threshold)[: wanted - count]
            parts.append(picked(candidates, outcome, rows))
            count += len(rows)
            full = count >= wanted
            tried += int(rows[-1]) + 1 if full else size
            simulated += outcome.simulations
            self._report(count / wanted, simulated)
            if full:
                break
            self._check_budget(count, tried, simulated)
        outcomes.close()
        return parts, tried, simulated
