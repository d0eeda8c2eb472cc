"""ABC nested sampling over several models at once: which structure, and which parameters, without a likelihood."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.doors import flag, shown
from pm_sysid.samplers.abc_checkpoint import ABCCheckpoint, Saved
from pm_sysid.samplers.abc_result import History, result, row
from pm_sysid.samplers.abc_settings import Bar, Settings, check_same_data, checked_names, checked_seed, prior_probabilities
from pm_sysid.samplers.checkpoint import locked
from pm_sysid.samplers.populations import (
    Candidates,
    Chances,
    Outcome,
    Population,
    Proposals,
    gathered,
    initial_proposals,
    lower,
    next_proposals,
    picked,
    share_to_drop,
)
from pm_sysid.samplers.proposals import is_number
from pm_sysid.samplers.simulations import Elsewhere, Here, Simulations, where

_log = logging.getLogger("pm_sysid")

#: The best particle's distance, as a part of the threshold, above which the population is gathered at its best.
GATHERED = 0.75
#: Effective particles of the last population, as a part of ``particles``, for which it is refined in at most so many rounds,
#: with this probability of local proposals.
REFINED, MOST_REFINED, REFINE_LOCAL = 0.5, 10, 0.5
#: Smallest and largest number of candidates in a batch.
BATCH = (256, 8192)


def sample_abc_ns(
    models: Mapping[str, pm.Model],
    particles: int = 1000,
    *,
    distance: Callable[..., float] | None = None,
    prior: Mapping[str, float] | None = None,
    epsilon: float = 200.0,
    alpha0: float = 0.4,
    alpha_min: float = 0.1,
    p_best: float = 0.05,
    p_local: float = 0.05,
    shrink: float = 0.1,
    enlarge: float = 1.1,
    tolerance: float = 0.005,
    patience: int = 3,
    min_acceptance: float = 1e-5,
    max_simulations: float | None = None,
    max_seconds: float | None = None,
    executor: Executor | None = None,
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
    epsilon : float, default 200
        First threshold.
    alpha0, alpha_min : float, default 0.4 and 0.1
        Share of the first population that is dropped; smallest share of the later ones. The share itself follows the
        growing concentration of the distances (Eq. 16).
    p_best, shrink : float, default 0.05 and 0.1
        Probability of drawing from the ellipsoid at the best particle, whose covariance is ``shrink`` times that of the
        particles. Importance weights account for it.
    p_local : float, default 0.05
        Probability of drawing from a small ellipsoid at one of the particles, shaped by its neighbours: where the region is
        bent or in pieces, the ellipsoid that holds all of it is nearly empty. Zero: the paper's proposals.
    enlarge : float, default 1.1
        Factor on the axes of the ellipsoid that holds a model's particles.
    tolerance, patience : float and int, default 0.005 and 3
        Stop when the threshold has fallen by less than this fraction in so many rounds in a row while the best particle has
        gathered the others: while it is below three quarters of the threshold there is a way to go, however slowly the
        threshold falls, as it does on the plateau of responses that have nothing to do with the measured one (NMSE of 100).
    min_acceptance : float, default 1e-5
        Stop when fewer candidates than this are accepted.
    max_simulations, max_seconds : float, optional
        Stop after the round in which this is used up.
    executor : concurrent.futures.Executor, optional
        Where to simulate: processes, or ``client.get_executor()`` of a Dask client. Default: here, on all threads (see
        :func:`set_threads`). The result is the same. A worker that dies loses nothing.
    checkpoint : path, optional
        File to which every round is written, by one process at a time. Called again with the same file, models and
        settings, the run goes on from there and ends as it would have without the interruption.
    random_seed : int, optional
        One seed gives one result.
    progressbar : bool, default True
        Show threshold, acceptance, simulations and model probabilities of each round.

    Returns
    -------
    xarray.DataTree
        A group for each model with its ``posterior`` (one chain, draws of equal weight; none for a model that died out).
        ``populations``: by round, ``threshold``, ``best`` (smallest distance), ``acceptance``, ``simulations`` (so far),
        ``ess``, ``seconds``, and by round and model ``probability``, ``share``, ``log_mass`` (of prior mass below the
        threshold, times prior probability: an evidence that depends on the threshold) and ``log_volume`` of the ellipsoid.
        ``particles``: the last population, with ``model``, ``distance``, ``weight`` and ``point`` in the unit cube. The
        attribute ``stopped`` says why it ended.

    Raises
    ------
    ValueError, TypeError
        For models without simulator or on different data, priors that have no inverse cumulative distribution, settings
        out of range.
    RuntimeError
        If hardly anything comes as close as ``epsilon``.

    Notes
    -----
    The algorithm is that of Nayek et al. (2023), Algorithms 1-5, with these differences.

    Particles carry importance weights: prior over the mixture of all proposals so far. The paper counts particles (Eq. 17;
    ``share`` here), which are drawn from ellipsoids of different volume, and more densely around the best: neither their
    number in a model nor their spread is that of a posterior. ``probability`` is the share of the weight, and is right
    whatever the ellipsoids; ``ess`` says how good. ``share`` is kept for comparison. Thresholds drop the share of the number
    or of the weight, whichever leaves less, so that a model does not hold up the others at its own best.

    Ellipsoids live in the unit cube of the priors, where uniform and log-uniform priors are what they are in the paper and
    any other prior is right too. Constraints cut the prior, which is normalised again.

    When the threshold has converged, rounds at the last threshold follow until the effective number of particles is half of
    ``particles`` (at most ten).

    An interrupt from the keyboard ends the run after the last whole round.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 1.0, 11)
    >>> record = sid.TimeSeries(t, None, np.exp(-2 * t))
    >>> def model(start):
    ...     with pm.Model() as built:
    ...         params = {"rate": pm.Uniform("rate", 0.0, 5.0)}
    ...         sid.ODESimulator("y", decay, record, params, x0=start, substeps=2)
    ...     return built
    >>> models = {"full": model(1.0), "half": model(0.5)}
    >>> result = sid.sample_abc_ns(models, 100, max_simulations=3000, random_seed=1, progressbar=False)
    >>> result["populations"]["probability"].values[-1].round(2)
    array([1., 0.])
    """
    particles = int(particles) if isinstance(particles, np.integer) else particles
    shares = (epsilon, alpha0, alpha_min, p_best, p_local, shrink, enlarge, tolerance)
    settings = Settings(particles, *shares, patience, min_acceptance)
    names = checked_names(models)
    check_same_data(models)
    for name, limit in (("max_simulations", max_simulations), ("max_seconds", max_seconds)):
        if limit is not None and not (is_number(limit) and limit > 0):
            raise ValueError(f"{name} is {shown(limit)}; give a positive number, or None for no limit.")
    flag(progressbar, "progressbar")
    chances = prior_probabilities(prior, names)
    simulations = Simulations(models, distance)
    seed = checked_seed(random_seed)
    run = Run(settings, simulations, chances, seed, max_simulations or np.inf, max_seconds or np.inf)
    place = where(simulations, executor)
    if checkpoint is None:
        stopped = run.go(place, None, progressbar)
    else:
        saved = ABCCheckpoint(checkpoint, run.signature)
        with locked(saved.path):
            run.restore(saved, random_seed)
            stopped = run.go(place, saved, progressbar)
    _log.info("sample_abc_ns: %s after %d populations and %d simulations.", stopped, len(run.history), run.simulated)
    return result(models, simulations.cubes, run.populations[-1], run.history, stopped, run.seed)


class Stop(Exception):
    """A reason to end a run in the middle of a round."""


@dataclass
class Run:
    """A run: the last two populations, and all proposals so far with the number of candidates drawn from each."""

    settings: Settings
    simulations: Simulations
    prior: np.ndarray
    seed: int
    max_simulations: float
    max_seconds: float
    populations: list[Population] = field(default_factory=list)
    history: History = field(default_factory=list)
    mixture: list[tuple[int, Proposals]] = field(default_factory=list)
    simulated: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.begin = time.perf_counter()
        self.sizes = [cube.size for cube in self.simulations.cubes]
        self.log_mass = np.array([cube.log_mass for cube in self.simulations.cubes])

    @property
    def signature(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        simulations = self.simulations
        labels = {name: cube.labels for name, cube in zip(simulations.models, simulations.cubes, strict=True)}
        return {**vars(self.settings), "models": labels, "prior": self.prior.tolist()}

    def restore(self, saved: ABCCheckpoint, random_seed: int | None) -> None:
        """Go on from a checkpoint, if it has anything."""
        found = saved.load(self.sizes)
        if found is None:
            return
        if random_seed is not None and random_seed != found.seed:
            raise ValueError(
                f"random_seed is {random_seed}, but the run in {saved.path} began with {found.seed}; leave it out to go on, or "
                "give a new file."
            )
        self.seed, self.populations, self.history, self.mixture = found
        self.simulated, self.seconds = int(self.history[-1]["simulations"]), float(self.history[-1]["seconds"])

    def go(self, place: Here | Elsewhere, saved: ABCCheckpoint | None, progressbar: bool) -> str:
        """Round after round until there is a reason to stop, which is returned."""
        bar = Bar(list(self.simulations.models)) if progressbar else None
        self.begin = time.perf_counter() - self.seconds
        with bar.progress if bar else nullcontext():
            try:
                while (reason := self._converged()) is None:
                    self._round(place, bar)
                    self._note(saved, bar)
                while not self._refined():
                    self._refine(place, bar)
                    self._note(saved, bar)
            except Stop as stop:  # while it is being refined, a run has converged all the same
                reason = self._converged() or str(stop)
            except KeyboardInterrupt:
                if not self.populations:
                    raise
                reason = "interrupted"
        return reason

    def _note(self, saved: ABCCheckpoint | None, bar: Bar | None) -> None:
        """Save and show what a round has reached."""
        if saved is not None:
            try:
                saved.save(Saved(self.seed, self.populations, self.history, self.mixture))
            except OSError as error:
                _log.warning("sample_abc_ns: the checkpoint could not be written (%s); the last one stands.", error)
        if bar:
            bar.show(self.history[-1])

    def _refined(self) -> bool:
        """Whether the last population has enough effective particles, or enough has been tried to that end."""
        thresholds = [h["threshold"] for h in self.history]
        rounds = len(thresholds) - 1 - thresholds.index(thresholds[-1])
        return bool(self.history[-1]["ess"] >= REFINED * self.settings.particles or rounds >= MOST_REFINED)

    def _converged(self) -> str | None:
        if not self.history:
            return None
        s, last = self.settings, self.history[-1]
        if len(self.history) > 1 and last["threshold"] == self.history[-2]["threshold"]:
            return "converged"  # and being refined
        thresholds = np.array([h["threshold"] for h in self.history])
        falls = 1 - thresholds[1:] / thresholds[:-1]
        slow = len(falls) >= s.patience and bool(np.all(falls[-s.patience :] < s.tolerance))
        if slow and last["best"] > GATHERED * last["threshold"]:
            return "converged"
        if last["best"] <= 0:
            return "a simulation is the measurement"
        return None

    def _check_budget(self, count: int, tried: int, simulated: int) -> None:
        """Stop in the middle of a round, whose particles are then lost, where it would never end."""
        s = self.settings
        if tried * s.min_acceptance > 10 and count < tried * s.min_acceptance:
            if not self.history:
                raise RuntimeError(
                    f"only {count} of {tried} candidates are closer than {s.epsilon:.4g} to the measurement; give a larger "
                    "epsilon, or priors under which the models come closer."
                )
            raise Stop("acceptance fell below min_acceptance")
        if self.history and self.simulated + simulated >= self.max_simulations:
            raise Stop("max_simulations used up")
        if self.history and time.perf_counter() - self.begin >= self.max_seconds:
            raise Stop("max_seconds used up")

    def _round(self, place: Here | Elsewhere, bar: Bar | None) -> None:
        """One population (Algorithm 1)."""
        s = self.settings
        if not self.populations:
            first = initial_proposals(self.sizes, self.prior, self.log_mass)
            self._fill(place, bar, s.epsilon, first, None, s.particles)
            return
        now, drop = self.populations[-1], s.alpha0
        if len(self.populations) > 1:
            drop = share_to_drop(self.populations[-2], now, s.alpha_min, len(self.sizes))
        threshold = lower(now, drop)
        active = now.below(threshold)
        if not len(active):  # more than a share of the particles is at the very same distance
            threshold = float(np.nextafter(now.distance.min(), np.inf))
            active = now.below(threshold)
        proposals = self._proposals(active, now.threshold, Chances(s.p_best, s.p_local))
        self._fill(place, bar, threshold, proposals, active, s.particles - len(active))

    def _refine(self, place: Here | Elsewhere, bar: Bar | None) -> None:
        """More particles under the last threshold, where the present weights say."""
        now = self.populations[-1]
        proposals = self._proposals(now, now.threshold, Chances(0.0, REFINE_LOCAL))
        self._fill(place, bar, now.threshold, proposals, now, self.settings.particles // 2)

    def _proposals(self, active: Population, threshold: float, chances: Chances) -> Proposals:
        s, rng = self.settings, np.random.default_rng([self.seed, len(self.history), 2])
        return next_proposals(
            self.mixture[-1][1],
            active,
            threshold,
            self.prior,
            chances,
            shrink=s.shrink,
            enlarge=s.enlarge,
            uniform=float(rng.random()),
        )

    def _fill(
        self,
        place: Here | Elsewhere,
        bar: Bar | None,
        threshold: float,
        proposals: Proposals,
        active: Population | None,
        wanted: int,
    ) -> None:
        """Add particles to those that are left, and weigh all of them."""
        wanted = max(1, wanted)
        self._check_budget(0, 0, 0)
        parts, tried, simulated = self._sample(place, proposals, threshold, wanted, bar)
        self.mixture.append((tried, proposals))
        population = gathered(parts, self.mixture, threshold, self.prior, self.log_mass)
        if active is not None:
            population = active.pooled(proposals, tried).join(population)
        self.populations = [*self.populations[-1:], population]
        self.simulated += simulated
        seconds = time.perf_counter() - self.begin
        self.history.append(row(population, proposals, wanted / tried, self.simulated, seconds, len(self.sizes)))

    def _sample(
        self, place: Here | Elsewhere, proposals: Proposals, threshold: float, wanted: int, bar: Bar | None
    ) -> tuple[list[tuple[Candidates, Outcome]], int, int]:
        """Draw candidates until enough are accepted (Algorithm 5); they, their number and that of simulations."""
        last = float(self.history[-1]["acceptance"]) if self.history else 0.2
        size = int(np.clip(wanted / max(last, 1e-4) / 4, *BATCH))
        parts: list[tuple[Candidates, Outcome]] = []
        count = tried = simulated = 0
        outcomes = place.results(proposals.batches([self.seed, len(self.history)], size))
        for candidates, outcome in outcomes:
            rows = np.flatnonzero(outcome.distance < threshold)[: wanted - count]
            parts.append(picked(candidates, outcome, rows))
            count += len(rows)
            full = count >= wanted
            tried += int(rows[-1]) + 1 if full else size
            simulated += outcome.simulations
            if bar:
                bar.working(count / wanted, self.simulated + simulated)
            if full:
                break
            self._check_budget(count, tried, simulated)
        outcomes.close()
        return parts, tried, simulated
