"""IBIS: sequential Monte Carlo over parameters that takes the samples of a record in one after the other."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import pymc as pm
from rich.console import Console

from pm_sysid.arguments import flag, seed
from pm_sysid.compat import SMC_KERNEL
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.prior_draws import Mass
from pm_sysid.likelihood.target import Target
from pm_sysid.progress import NO_RATE, Beta, Rate, expecting, rate_of, text_columns
from pm_sysid.sampling.smc.algorithm import PATH, Sequential
from pm_sysid.sampling.smc.missed_modes import lost_mode, search
from pm_sysid.sampling.smc.moves import Moves
from pm_sysid.sampling.smc.particle_state import SequentialState, Start
from pm_sysid.sampling.smc.turns import turns_by_prior
from pm_sysid.storage import Checkpoint, Saved

_log = logging.getLogger("pm_sysid")

#: Statistics of a stage and their types.
STATISTICS = {
    "log_marginal_likelihood": float,
    "beta": float,
    "time_index": int,
    "ess": float,
    "accept_rate": float,
    "proposal_ess": float,
    "pareto_k": float,
    "components": int,
    "walks": int,
    "memory": float,
    "survivors": int,
    "evaluations": int,
    "log_evidence": float,
    "log_evidence_se": float,
    "log_product": float,
    "log_product_se": float,
    "log_around": float,
    "log_around_se": float,
    "log_prior_mass": float,
    "lost_mode": float,
}
#: Columns of the progress bar.
COLUMNS = {"sample": "Samples", "ess": "ESS", "accepted": "Accept", "evidence": "log Z"}
#: Their widths: PyMC would make all as narrow as that of the stage.
WIDTHS = {"sample": 9, "ess": 4, "accepted": 6, "evidence": 8}
#: Width of a terminal from which on there is room for the acceptance.
WIDE = 100
#: What is said of the search for modes.
NO_SEARCH = "IBIS: the prior cannot be drawn from, so that no search looks for modes that the particles have missed."
FOUND = (
    "IBIS: a search by all samples has found modes that hold {:.2g} of the posterior, and that the particles have missed; the "
    "chains go on with them."
)
#: What the rate counts: the likelihood of one sample for one particle.
UNIT = "evals"


class ChainTask(NamedTuple):
    """What tells a chain from the others of its run: where it starts, and its random numbers."""

    start: Any
    rng: np.random.Generator


class FinishedChain(NamedTuple):
    """A chain that has run: its last particles (N, d) and the statistics of its stages, as PyMC takes them."""

    x: np.ndarray
    stages: list[dict[str, Any]]


class IBIS(SMC_KERNEL):
    """Iterated batch importance sampling (Chopin 2002), as a kernel for ``pm.sample_smc``.

    Particles are weighted by the likelihood of one sample after the other. When the effective sample size falls to the
    threshold they are resampled and moved by Metropolis-Hastings steps that leave the posterior given the samples so far
    unchanged, so that after every stage they are draws from a valid posterior, and the product of the mean weights is the
    evidence. Early stages cost only the samples taken in so far.

    Parameters
    ----------
    draws : int, default 1000
        Number of particles.
    threshold : float, default 0.3
        Fraction of ``draws`` to which the effective sample size may fall. Half as efficient at 0.5, by measurement
        (``benchmarks/ibis.py --settings``).
    moves : Moves, optional
        Markov moves after each resampling. Default: ``Moves()``, waste-free chains of 20 states.
    threads : int, optional
        Threads for a batch of particles in each chain. Default: the environment's choice (see :func:`set_threads`); give 1
        where as many chains run at once as there are cores, as :func:`sample_ibis` does.
    store_stages : bool, default False
        Keep the particles after every stage (statistic ``particles``, in unconstrained space).
    checkpoint : path, optional
        Folder to which every chain is written after each stage. A run with the same folder, model, settings and
        ``random_seed`` continues from there, and ends as it would have without the interruption.
    search : bool, default True
        Look, when a chain has taken in the whole record, for modes that its particles do not hold, and go on with them; for
        about a tenth of the chain's evaluations (see Notes of :func:`sample_ibis`, which looks once for all chains).
    model, start, random_seed, compile_kwargs
        As PyMC passes them.

    Raises
    ------
    ValueError, TypeError
        For settings out of range, and for models that :class:`Target` refuses.

    Notes
    -----
    Works for every model whose observed variables have (time,)-shaped log-likelihoods. A single sample that would take the
    effective size below the threshold is taken in by fractions of its likelihood.

    Source: Longbottom, Champneys and Rogers (2024), Algorithm 1 and Eqs. 20-25.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model():
    ...     rate = pm.Gamma("rate", 2.0, 1.0)
    ...     _ = pm.Exponential("wait", rate, observed=[0.2, 0.7, 0.1, 0.4])
    ...     idata = pm.sample_smc(200, kernel=sid.IBIS, moves=sid.Moves(steps=10), chains=1, progressbar=False, random_seed=1)
    >>> idata.posterior["rate"].shape
    (1, 200)
    """

    #: PyMC's name and type.
    stats_dtypes_shapes: dict[str, tuple[type, list[int]]] = {  # noqa: RUF012
        **{name: (kind, []) for name, kind in STATISTICS.items()},
        "ess_path": (float, [PATH]),
    }

    def __init__(
        self,
        draws: int = 1000,
        start: Any = None,
        model: pm.Model | None = None,
        random_seed: Any = None,
        threshold: float = 0.3,
        compile_kwargs: dict[str, Any] | None = None,
        *,
        moves: Moves | None = None,
        threads: int | None = None,
        store_stages: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        search: bool = True,
    ) -> None:
        self.start, self.store_stages, self.checkpoint = start, flag(store_stages, "store_stages"), checkpoint
        self.search = flag(search, "search")
        self.rng = np.random.default_rng(seed(random_seed))
        target = Target(model_of(model), threads)
        self.sequential = Sequential(target, draws, threshold, Moves() if moves is None else moves)
        if store_stages:
            self.stats_dtypes_shapes = {**self.stats_dtypes_shapes, "particles": (float, [draws, target.size])}
        point = target.coordinates.point
        self.variables = list(target.coordinates.model.value_vars)
        self.var_info = {v.name: (np.shape(point[v.name]), int(np.size(point[v.name]))) for v in self.variables}
        # Compiled here, in the main process, by one draw of the prior: workers get the compiled functions.
        expecting(target.functions)
        target.coordinates.centre = turns_by_prior(target)
        self.state = self.sequential.init(Start(target.draw_prior(1, self.rng), mass=Mass()))
        self.elsewhere: Iterator[FinishedChain] | None = None
        self._reset_state()

    # -- whole chains -------------------------------------------------------------------------------------------------

    def run(self, task: ChainTask) -> FinishedChain:
        """Run a chain to its end, as ``pm.sample_smc`` does."""
        # The generator is copied: a task that is done again, its worker having died, begins with the same numbers.
        self.initialize(task.start, copy.deepcopy(task.rng))
        rows = []
        while self.beta < 1:
            self.update_beta_and_weights()
            rows.append(self.step())
        return FinishedChain(self.tempered_posterior, rows)

    def handing_over(self, chains: Iterator[FinishedChain]) -> Self:
        """A kernel that hands PyMC the stages of chains that run elsewhere, in the order of the chains."""
        kernel = copy.copy(self)
        kernel.elsewhere = chains
        return kernel

    # -- what PyMC calls ----------------------------------------------------------------------------------------------

    def set_rng(self, rng: np.random.Generator) -> None:
        """Use a chain's own generator; the compiled functions hold none."""
        self.rng = rng

    def _reset_state(self) -> None:
        """Forget the chain before."""
        self.beta = Beta(0.0)
        self.lost_mode = float("nan")
        self.stages: list[dict[str, Any]] = []
        self.replay: list[dict[str, Any]] = []
        self.handed: FinishedChain | None = None
        self.file: Checkpoint | None = None
        self._clock, self._counted = time.perf_counter(), 0

    def _initialize_kernel(self) -> None:
        """Draw the first particles from the prior, take those given, or those of a checkpoint."""
        if self.elsewhere is not None:
            self.handed = next(self.elsewhere)
            self.replay = list(self.handed.stages)
            return
        if self.checkpoint is not None:
            self.file = Checkpoint(self.checkpoint, self.rng)
            if (saved := self.file.load(self._identity)) is not None:
                self._restore(self.file, saved)
                return
        self.state = self.sequential.init(self._start())
        self.beta = self._progress()

    def _start(self) -> Start:
        """What the chain starts from: PyMC hands over nothing, particles by value variable, or what :func:`extend` gave."""
        if self.start is None:
            return self.sequential.draw_prior(self.rng)
        if isinstance(self.start, Start):
            return self.start
        columns = [np.reshape(self.start[v.name], (self.sequential.draws, -1)) for v in self.variables]
        return Start(np.concatenate(columns, axis=1))

    @property
    def tempered_posterior(self) -> np.ndarray:
        """Particles (N, d)."""
        return self.state.particles.x if self.handed is None else self.handed.x

    def update_beta_and_weights(self) -> None:
        """Take in samples until the effective sample size falls to the threshold, or there are no more."""
        if self.replay:
            self.beta = Beta(self.replay[0]["beta"], {**self.replay[0], "resumed": self.handed is None})
            return
        self.state = self.sequential.reweight(self.state, self.rng)
        self.beta = self._progress()

    def step(self) -> dict[str, Any]:
        """Resample and move."""
        if self.replay:
            return self.replay.pop(0)
        self.state = self.sequential.move(self.state, self.rng)
        if self.search and self.sequential.finished(self.state):
            self._look_for_missed_modes()
        stats = self.sample_stats()
        self.stages.append(stats)
        if self.file is not None:
            self._save(self.file)
            if self.sequential.finished(self.state):
                self.file.release()
        return {**stats, "particles": self.sequential.even(self.state)} if self.store_stages else stats

    def _look_for_missed_modes(self) -> None:
        """Search by all samples for modes that the particles of the chain do not hold, and go on with those."""
        state, sequential = self.state, self.sequential
        x, log_weights = self._weighted()
        fine = np.isfinite(x).all(axis=1)
        found = search(sequential.target, x[fine], log_weights[fine], state.evaluations, self.rng)
        if found is None:
            _log.info(NO_SEARCH)
            return
        if found.missed:
            _log.info(FOUND.format(found.share))
            self.state = sequential.join_parts(found.x, found.log_weights, found.part, self.rng)
            if self.state.walks:  # of a mode that is no ellipsoid, the particles have seen the rest by now
                self.state = sequential.rejoin(*self._weighted(), self.rng)
            self.lost_mode = lost_mode(found.missed, *self._weighted())
            # The weights of the stages are those of particles that followed another part of the posterior.
            self.state = self.state._replace(log_product=np.nan, product_variance=np.nan)
        self.state = self.state._replace(evaluations=self.state.evaluations + found.evaluations, ess=state.ess)

    def _weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """Particles (N, d), and log weights that sum to the integral of prior times likelihood."""
        x = self.state.particles.x
        return x, np.full(len(x), self.state.log_evidence + self.state.log_mass - np.log(len(x)))

    def mutate(self) -> None:
        """Part of :meth:`step`."""

    def sample_stats(self) -> dict[str, Any]:
        """Statistics of the stage."""
        state, share = self.state, self.sequential.share(self.state)
        return {
            "log_marginal_likelihood": state.log_evidence if share == 1 else np.nan,
            "beta": share,
            "time_index": state.n,
            "ess": state.ess,
            "accept_rate": state.accept_rate,
            "proposal_ess": state.proposal_ess,
            "pareto_k": state.pareto_k,
            "components": state.components,
            "walks": state.walks,
            "memory": state.memory,
            "survivors": state.survivors,
            "evaluations": state.evaluations,
            "log_evidence": state.log_evidence,
            "log_evidence_se": float(np.sqrt(state.variance)),
            "log_product": state.log_product,
            "log_product_se": float(np.sqrt(state.product_variance)),
            "log_around": state.log_around,
            "log_around_se": float(np.sqrt(state.around_variance)),
            "log_prior_mass": state.log_mass,
            "lost_mode": self.lost_mode,
            "ess_path": self.sequential.path(state),
        }

    def sample_settings(self) -> dict[str, Any]:
        """Settings, for the attributes of the result."""
        moves = self.sequential.moves
        return {
            "_n_draws": self.sequential.draws,
            "threshold": self.sequential.threshold,
            "moves": moves.kind,
            "steps": moves.chain_length,
            "freedom": float(moves.freedom),
            "sampler": "IBIS",
        }

    # -- progress bar -------------------------------------------------------------------------------------------------

    def _progress(self) -> Beta:
        """Share of the samples taken in, exactly one at the end, with what the bar shows.

        The rate is that of one stage, from here to there: the moves of the last stage and the samples taken in since.
        """
        state, now = self.state, time.perf_counter()
        rate = rate_of(state.evaluations - self._counted, now - self._clock, UNIT)
        self._clock, self._counted = now, state.evaluations
        shown = {name: getattr(state, name) for name in ("ess", "log_evidence", "accept_rate")}
        return Beta(self.sequential.share(state), {"time_index": state.n, **shown, **rate})

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> Any:
        shown, first = text_columns({key: (title, "{}", "") for key, title in COLUMNS.items()}, n_chains)
        for column, width in zip(shown, WIDTHS.values(), strict=True):
            column.get_table_column().ratio, column.get_table_column().min_width = None, width
        shown[0] = Rate(shown[0].text_format, table_column=shown[0].get_table_column())
        if Console().width < WIDE:
            del shown[list(COLUMNS).index("accepted")]  # in favour of the time that is left
        return shown, {**first, **{name: [none] * n_chains for name, none in NO_RATE.items()}}

    def _make_progressbar_update_functions(self) -> tuple[Callable[[dict[str, Any]], dict[str, Any]]]:
        samples = self.sequential.target.n_samples

        def update(stats: dict[str, Any]) -> dict[str, Any]:
            stage = stats["beta"].stats
            if not stage:
                return dict.fromkeys(COLUMNS, "")
            evidence = f"{stage['log_evidence']:.1f}{' (resumed)' if stage.get('resumed') else ''}"
            return {
                "sample": f"{stage['time_index']}/{samples}",
                "ess": f"{stage['ess']:.0f}",
                "accepted": f"{stage['accept_rate']:.2f}",
                "evidence": evidence,
                # Stages that were made elsewhere, or before, have none.
                **{name: stage.get(name, none) for name, none in NO_RATE.items()},
            }

        return (update,)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def _identity(self) -> dict[str, Any]:
        """What two runs must share for one to continue the other."""
        target = self.sequential.target
        return {
            **self.sample_settings(),
            "min_acceptance": self.sequential.moves.min_acceptance,
            "most_walks": self.sequential.moves.most_walks,
            "store_stages": self.store_stages,
            "variables": target.labels,
            "samples": target.n_samples,
            "search": self.search or None,  # None as in checkpoints of runs of before there was a search
        }

    def _save(self, file: Checkpoint) -> None:
        arrays, numbers = self.state.parts()
        saved = Saved(arrays, numbers, self._identity, self.stages, dict(self.rng.bit_generator.state))
        try:
            file.save(saved, self.sequential.even(self.state) if self.store_stages else None)
        except OSError as error:
            _log.warning("IBIS: the checkpoint in %s could not be written (%s); the run goes on.", file.folder, error)

    def _restore(self, file: Checkpoint, saved: Saved) -> None:
        """Take up a checkpoint; its stages are handed to PyMC once more, as if they had just been made."""
        try:
            state = SequentialState.from_parts(saved.arrays, saved.numbers)
        except KeyError as error:
            raise ValueError(f"the checkpoint in {str(file.folder)!r} lacks {error}; give a new folder.") from error
        self.state = state = self.sequential.wrapped(state)
        again = self.sequential.init(Start(state.particles.x[:1], state.n, mass=Mass()), state.diffusion_samples)
        was, now = state.particles.log_likelihood[0], again.particles.log_likelihood[0]
        if not np.isclose(now, was, rtol=1e-6, atol=1e-6):
            raise ValueError(
                f"the checkpoint in {file.folder} is of another model or record: the log-likelihood of its first "
                f"particle was {was:.6g} and is {now:.6g}; give a new folder."
            )
        self._clock, self._counted = time.perf_counter(), state.evaluations
        self.rng.bit_generator.state = saved.generator
        # A stage of an earlier version does not have the mass, which is that of the whole run.
        known = {"log_prior_mass": state.log_mass, "lost_mode": float("nan")}
        self.stages = [{**known, **stage, "ess_path": np.array(stage["ess_path"])} for stage in saved.stages]
        self.replay = [dict(stage) for stage in self.stages]
        if self.store_stages:
            for number, stage in enumerate(self.replay, start=1):
                stage["particles"] = file.load_stage(number)
        if self.sequential.finished(state):
            file.release()  # all is known: nothing will be written
