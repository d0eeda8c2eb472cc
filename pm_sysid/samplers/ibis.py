"""IBIS: sequential Monte Carlo over parameters that takes the samples of a record in one after the other."""

from __future__ import annotations

import logging
import os
from typing import Any, Literal

import numpy as np
import pymc as pm
from pymc.smc.kernels import SMC_KERNEL
from scipy.special import logsumexp

from pm_sysid.context import model_of
from pm_sysid.doors import among, flag, number, seed, shown, whole
from pm_sysid.samplers.bar import Beta, SequentialBar, beta
from pm_sysid.samplers.checkpoint import Checkpoint, Saved
from pm_sysid.samplers.cloud import Cloud
from pm_sysid.samplers.particles import Proposal, cluster_variance, effective_size, normalised, systematic
from pm_sysid.samplers.sequential import PATH, POOR_FIT, Sequential
from pm_sysid.target import Target

_log = logging.getLogger("pm_sysid")

#: Particles of a run, of which more would fill any memory.
MOST = 10**8
#: Statistics of a stage and their types.
STATISTICS = {
    "log_marginal_likelihood": float,
    "beta": float,
    "time_index": int,
    "ess": float,
    "accept_rate": float,
    "proposal_ess": float,
    "evaluations": int,
    "log_evidence": float,
    "log_evidence_se": float,
}
#: Key of a start from which a run goes on where an earlier one ended; its value holds numbers of the kernel.
SEQUEL = "__sequel__"
#: Numbers that, with the particles, are the state of a run.
NUMBERS = (
    "n",
    "fraction",
    "iteration",
    "calibrated",
    "look",
    "log_marginal_likelihood",
    "variance",
    "evaluations",
    "accept_rate",
    "proposal_ess",
    "ess",
)


class IBIS(SequentialBar, Sequential, SMC_KERNEL):
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
    moves : {"waste-free", "plain"}
        ``"waste-free"`` (Dau and Chopin 2022): few particles are resampled, and every state of their Markov chains is
        kept. ``"plain"``: all are resampled, moved ``steps`` times, and the last states are kept.
    steps : int, optional
        Length of the chains. Default: 20 for waste-free moves, 3 for plain ones.
    freedom : float, default 3
        Degrees of freedom of the proposals, multivariate t distributions with the mean and covariance root of the particles;
        ``inf`` for the Gaussian ones of the paper, which can collapse on narrow or curved posteriors without a sign of it
        in the acceptance.
    min_acceptance : float, default 0.15
        Below this acceptance of the independent proposals, or where they fit the posterior poorly (statistic
        ``proposal_ess`` below 0.05), a stage continues with random-walk moves.
    threads : int, optional
        Threads for a batch of particles in each chain. Default: the environment's choice (see :func:`set_threads`); give 1
        where as many chains run at once as there are cores, as :func:`sample_ibis` does.
    store_stages : bool, default False
        Keep the particles after every stage (statistic ``particles``, in unconstrained space).
    checkpoint : path, optional
        Folder to which every chain is written after each stage. A run with the same folder, model, settings and
        ``random_seed`` goes on from there, and ends as it would have without the interruption.
    model, start, random_seed, compile_kwargs
        As PyMC passes them.

    Raises
    ------
    ValueError
        For settings out of range, and for models whose log-likelihood is not a series (see :class:`Target`).

    Notes
    -----
    Works for every model whose observed variables have (time,)-shaped log-likelihoods. A single sample that would take the
    effective size below the threshold is taken in by fractions of its likelihood.

    Source: Longbottom, Champneys and Rogers (2024), Algorithm 1 and Eqs. 20-25.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=[0.5, -0.5, 1.0])
    ...     idata = pm.sample_smc(200, kernel=sid.IBIS, chains=1, progressbar=False, random_seed=1)
    >>> idata.posterior["mu"].shape
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
        moves: Literal["waste-free", "plain"] = "waste-free",
        steps: int | None = None,
        freedom: float = 3.0,
        min_acceptance: float = 0.15,
        threads: int | None = None,
        store_stages: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        if not 0 < number(threshold, "threshold", "give a fraction of the particles") < 1:
            raise ValueError(f"threshold is {threshold!r}; give a fraction of the particles between 0 and 1.")
        if not among(moves, ("waste-free", "plain")):
            raise ValueError(f"moves is {moves!r}; give 'waste-free' or 'plain'.")
        if steps is not None and not whole(steps, 1, 10**6):
            raise ValueError(f"steps is {shown(steps)}; give a positive number of Metropolis-Hastings steps.")
        if not (isinstance(freedom, float) and freedom == np.inf) and not number(freedom, "freedom") >= 0.01:
            raise ValueError(f"freedom is {freedom!r}; give positive degrees of freedom, or inf for Gaussian proposals.")
        number(min_acceptance, "min_acceptance", "give a share of accepted proposals")
        flag(store_stages, "store_stages")
        seed(random_seed)
        self.target = Target(model_of(model), threads)
        if not whole(draws, 2 * (self.target.size + 1), MOST):
            raise ValueError(
                f"draws is {shown(draws)}; {self.target.size} unknowns need at least {2 * (self.target.size + 1)} particles."
            )
        self.draws, self.start, self.threshold, self.moves = draws, start, threshold, moves
        self.steps = (20 if moves == "waste-free" else 3) if steps is None else steps
        self.freedom = float(freedom)
        self.min_acceptance, self.store_stages, self.checkpoint = min_acceptance, store_stages, checkpoint
        if store_stages:
            self.stats_dtypes_shapes = {**self.stats_dtypes_shapes, "particles": (float, [draws, self.target.size])}
        self.rng = np.random.default_rng(random_seed)
        point = self.target.model.initial_point()  # type: ignore[union-attr]
        self.variables = list(self.target.model.value_vars)  # type: ignore[union-attr]
        self.var_info = {v.name: (np.shape(point[v.name]), int(np.size(point[v.name]))) for v in self.variables}
        self._reset_state()
        # Compiled here, in the main process: workers get the compiled functions.
        self._evaluate(self.target.draw_prior(1, self.rng), 0, 0.0)

    # -- what PyMC calls ----------------------------------------------------------------------------------------------

    def set_rng(self, rng: np.random.Generator) -> None:
        """Use a chain's own generator; the compiled functions hold none."""
        self.rng = rng

    def _reset_state(self) -> None:
        self._begin()
        self.iteration, self.ess = 0, float(self.draws)
        self.beta: float = Beta(0.0)
        self.log_marginal_likelihood, self.variance = 0.0, 0.0
        self.tempered_posterior = np.empty((0, 0))

    def _initialize_kernel(self) -> None:
        """Draw the first particles from the prior, take those given, or those of a checkpoint."""
        self.stages: list[dict[str, Any]] = []
        self.replay: list[dict[str, Any]] = []
        self.file = None if self.checkpoint is None else Checkpoint(self.checkpoint, self.rng)
        if self.file is not None and (saved := self.file.load()) is not None:
            self._restore(saved)
            return
        if self.start is None:
            x = self.target.draw_prior(self.draws, self.rng)
        else:
            x = np.concatenate([np.reshape(self.start[v.name], (self.draws, -1)) for v in self.variables], axis=1)
            for name, value in self.start.get(SEQUEL, {}).items():
                setattr(self, name, value)
            if self.target.calibrated and self.n:
                self.calibrated = self.n
        self.cloud = self._evaluate(x, self.n, 0.0)
        self.family = np.arange(self.draws)
        self.tempered_posterior = x
        self.beta = self._progress()

    def update_beta_and_weights(self) -> None:
        """Take in samples until the effective sample size falls to the threshold, or there are no more."""
        if self.replay:
            self.beta = beta(self.replay[0]["beta"], (f"{self.replay[0]['time_index']}", "", "resumed"))
            return
        self.iteration += 1
        self.log_weights = np.zeros(self.draws)
        self.sizes = [np.array([float(self.draws)])]
        if self.fraction:
            self._temper()
        while self.fraction == 0.0 and not self._complete and self._absorb():
            pass
        mean = logsumexp(self.log_weights) - np.log(self.draws)
        if not np.isfinite(mean):
            raise ValueError(
                f"every particle has a likelihood of zero at sample {self.n}: no draw of the prior can explain the record up "
                "to there. Check units, input and priors (pm.sample_prior_predictive shows what they expect)."
            )
        self.ess = float(effective_size(self.log_weights))
        self.variance += cluster_variance(self.log_weights, self.family)
        self.log_marginal_likelihood += float(mean)
        self.weights = normalised(self.log_weights)
        self.beta = self._progress()

    def step(self) -> dict[str, Any]:
        """Resample and move."""
        if self.replay:
            return self.replay.pop(0)
        proposal = Proposal.fit(self.cloud.x, self.weights, self.freedom)
        chains = self.draws if self.moves == "plain" else -(-self.draws // self.steps)
        ancestors = systematic(self.weights, chains, self.rng)
        self._independent(proposal, ancestors)
        if self.accept_rate < self.min_acceptance or self.proposal_ess < POOR_FIT:
            self._random_walk(proposal, chains)
        self.tempered_posterior = self.cloud.x
        stats = self.sample_stats()
        self.stages.append(stats)
        if self.file is not None:
            self._save(self.file)
        return {**stats, "particles": self.cloud.x} if self.store_stages else stats

    def mutate(self) -> None:
        """Part of :meth:`step`."""

    def sample_stats(self) -> dict[str, Any]:
        """Statistics of the stage."""
        return {
            "log_marginal_likelihood": self.log_marginal_likelihood if self.beta == 1 else np.nan,
            "beta": float(self.beta),
            "time_index": self.n,
            "ess": self.ess,
            "accept_rate": self.accept_rate,
            "proposal_ess": self.proposal_ess,
            "evaluations": self.evaluations,
            "log_evidence": self.log_marginal_likelihood,
            "log_evidence_se": float(np.sqrt(self.variance)),
            "ess_path": self._path(),
        }

    def sample_settings(self) -> dict[str, Any]:
        """Settings, for the attributes of the result."""
        return {
            "_n_draws": self.draws,
            "threshold": self.threshold,
            "moves": self.moves,
            "steps": self.steps,
            "freedom": self.freedom,
            "sampler": "IBIS",
        }

    # -- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def _identity(self) -> dict[str, Any]:
        """What two runs must share for one to go on where the other ended."""
        target = {"variables": self.target.labels, "samples": self.target.n_samples}
        return {**self.sample_settings(), "min_acceptance": self.min_acceptance, "store_stages": self.store_stages, **target}

    def _save(self, file: Checkpoint) -> None:
        numbers = {name: getattr(self, name) for name in NUMBERS}
        arrays = {"family": self.family, **self.cloud.arrays()}
        saved = Saved(arrays, numbers, self._identity, self.stages, dict(self.rng.bit_generator.state))
        try:
            file.save(saved, self.cloud.x if self.store_stages else None)
        except OSError as error:
            _log.warning("IBIS: the checkpoint in %s could not be written (%s); the run goes on.", file.folder, error)

    def _restore(self, saved: Saved) -> None:
        """Take up a checkpoint; its stages are handed to PyMC once more, as if they had just been made."""
        assert self.file is not None
        other = {k: (saved.settings.get(k), v) for k, v in self._identity.items() if saved.settings.get(k) != v}
        if other:
            differences = ", ".join(f"{k} was {was!r} and is {now!r}" for k, (was, now) in other.items())
            raise ValueError(
                f"the checkpoint in {str(self.file.folder)!r} is of another run: {differences}; give a new folder."
            )
        for name, value in saved.numbers.items():
            setattr(self, name, value)
        self.cloud, self.family = Cloud.from_arrays(saved.arrays), saved.arrays["family"]
        again = self.target.start(self.cloud.x[:1], [0, self.n], calibrate=self.calibrated)[0][0, 0]
        if not np.isclose(again, self.cloud.likelihood[0], rtol=1e-6, atol=1e-6):
            raise ValueError(
                f"the checkpoint in {self.file.folder} is of another model or record: the log-likelihood of its first "
                f"particle was {self.cloud.likelihood[0]:.6g} and is {again:.6g}; give a new folder."
            )
        self.rng.bit_generator.state = saved.generator
        self.tempered_posterior = self.cloud.x
        self.stages = [{**stage, "ess_path": np.array(stage["ess_path"])} for stage in saved.stages]
        self.replay = [dict(stage) for stage in self.stages]
        if self.store_stages:
            for number, stage in enumerate(self.replay, start=1):
                stage["particles"] = self.file.load_stage(number)

    def _progress(self) -> Beta:
        """Fraction of the samples taken in, exactly one at the end."""
        text = (f"{self.n}/{self.target.n_samples}", f"{self.ess:.0f}", f"{self.log_marginal_likelihood:.2f}")
        T = self.target.n_samples
        # All samples taken in, but not yet calibrated by all: not quite at the end.
        value = np.nextafter(1.0, 0.0) if self.n == T and not self._complete else (self.n + self.fraction) / T
        return beta(float(value), text)
