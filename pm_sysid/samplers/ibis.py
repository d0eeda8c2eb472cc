"""IBIS: sequential Monte Carlo over parameters that takes the samples of a record in one after the other."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
from pymc.smc.kernels import SMC_KERNEL
from rich.progress import TextColumn
from rich.table import Column
from scipy.special import logsumexp

from pm_sysid.samplers.particles import (
    Normal,
    bisect,
    cluster_variance,
    effective_size,
    independent_chains,
    normalised,
    systematic,
)
from pm_sysid.target import Progress, Target

#: Statistics of a stage and their types.
STATISTICS = {
    "log_marginal_likelihood": float,
    "beta": float,
    "time_index": int,
    "ess": float,
    "accept_rate": float,
    "evaluations": int,
    "log_evidence": float,
    "log_evidence_se": float,
}
#: Longest look ahead, in numbers of log-likelihood increments kept at a time.
LOOK = 2**20
#: Samples that a diffusion is calibrated by at the least.
CALIBRATED = 256


class Cloud(NamedTuple):
    """Particles (N, d) with their log prior, log-likelihood up to a sample, that of the next sample, and their filters."""

    x: np.ndarray
    prior: np.ndarray
    likelihood: np.ndarray
    next: np.ndarray
    progress: Progress

    def take(self, index: np.ndarray) -> Cloud:
        """Particles by rows."""
        x, prior, likelihood, following = (v[index] for v in self[:4])
        return Cloud(x, prior, likelihood, following, self.progress.take(index))

    def join(self, other: Cloud) -> Cloud:
        """These particles, then others."""
        pairs = zip(self[:4], other[:4], strict=True)
        x, prior, likelihood, following = (np.concatenate(pair) for pair in pairs)
        return Cloud(x, prior, likelihood, following, self.progress.join(other.progress))


class Beta(float):
    """Fraction of the data taken in, with what a progress bar shows; PyMC hands a number to its bars, and only that."""

    text: tuple[str, str, str] = ("0", "", "")

    def __reduce__(self) -> Any:
        return _beta, (float(self), self.text)


def _beta(value: float, text: tuple[str, str, str]) -> Beta:
    beta = Beta(value)
    beta.text = text
    return beta


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
    threshold : float, default 0.5
        Fraction of ``draws`` to which the effective sample size may fall.
    moves : {"waste-free", "plain"}
        ``"waste-free"`` (Dau and Chopin 2022): few particles are resampled, and every state of their Markov chains is
        kept. ``"plain"``: all are resampled, moved ``steps`` times, and the last states are kept.
    steps : int, optional
        Length of the chains. Default: 20 for waste-free moves, 3 for plain ones.
    min_acceptance : float, default 0.15
        Below this acceptance of the independent proposals a stage continues with random-walk moves.
    threads : int, optional
        Threads for a batch of particles in each chain. Default: the environment's choice (see :func:`set_threads`); give 1
        where as many chains run at once as there are cores.
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

    stats_dtypes_shapes: dict[str, tuple[type, list[int]]] = {name: (kind, []) for name, kind in STATISTICS.items()}  # noqa: RUF012  (PyMC's name and type)

    def __init__(
        self,
        draws: int = 1000,
        start: Any = None,
        model: pm.Model | None = None,
        random_seed: Any = None,
        threshold: float = 0.5,
        compile_kwargs: dict[str, Any] | None = None,
        *,
        moves: Literal["waste-free", "plain"] = "waste-free",
        steps: int | None = None,
        min_acceptance: float = 0.15,
        threads: int | None = None,
    ) -> None:
        if not 0 < threshold < 1:
            raise ValueError(f"threshold is {threshold!r}; give a fraction of the particles between 0 and 1.")
        if moves not in ("waste-free", "plain"):
            raise ValueError(f"moves is {moves!r}; give 'waste-free' or 'plain'.")
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise ValueError(f"steps is {steps!r}; give a positive number of Metropolis-Hastings steps.")
        self.target = Target(pm.modelcontext(model), threads)
        if draws < 2 * (self.target.size + 1):
            raise ValueError(
                f"draws is {draws!r}; {self.target.size} unknowns need at least {2 * (self.target.size + 1)} particles."
            )
        self.draws, self.start, self.threshold, self.moves = draws, start, threshold, moves
        self.steps = (20 if moves == "waste-free" else 3) if steps is None else steps
        self.min_acceptance = min_acceptance
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
        self.n, self.fraction, self.iteration = 0, 0.0, 0
        self.beta: float = Beta(0.0)
        self.log_marginal_likelihood, self.variance = 0.0, 0.0
        # By how many samples diffusions are calibrated: a power of two as many as in the end, so that early stages do not
        # pay for the whole record.
        T = self.target.n_samples
        self.calibrated = T if not self.target.calibrated else -(-T // 2 ** max(0, int(np.log2(max(T, 1) / CALIBRATED))))
        self.evaluations, self.accept_rate, self.ess, self.look = 0, 1.0, float(self.draws), 8
        self.tempered_posterior = np.empty((0, 0))

    def _initialize_kernel(self) -> None:
        """Draw the first particles from the prior, or take those given."""
        if self.start is None:
            x = self.target.draw_prior(self.draws, self.rng)
        else:
            x = np.concatenate([np.reshape(self.start[v.name], (self.draws, -1)) for v in self.variables], axis=1)
        self.cloud = self._evaluate(x, 0, 0.0)
        self.family = np.arange(self.draws)
        self.tempered_posterior = x

    def update_beta_and_weights(self) -> None:
        """Take in samples until the effective sample size falls to the threshold, or there are no more."""
        self.iteration += 1
        self.log_weights = np.zeros(self.draws)
        if self.fraction:
            self._temper()
        while self.fraction == 0.0 and self.n < self.target.n_samples and self._absorb():
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
        proposal = Normal.fit(self.cloud.x, self.weights)
        chains = self.draws if self.moves == "plain" else -(-self.draws // self.steps)
        ancestors = systematic(self.weights, chains, self.rng)
        self._independent(proposal, ancestors)
        if self.accept_rate < self.min_acceptance:
            self._random_walk(proposal, chains)
        self.tempered_posterior = self.cloud.x
        return self.sample_stats()

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
            "evaluations": self.evaluations,
            "log_evidence": self.log_marginal_likelihood,
            "log_evidence_se": float(np.sqrt(self.variance)),
        }

    def sample_settings(self) -> dict[str, Any]:
        """Settings, for the attributes of the result."""
        return {
            "_n_draws": self.draws,
            "threshold": self.threshold,
            "moves": self.moves,
            "steps": self.steps,
            "sampler": "IBIS",
        }

    # -- weighting ----------------------------------------------------------------------------------------------------

    def _absorb(self) -> bool:
        """Take in some more samples; False when the effective size is at the threshold."""
        enough = self.threshold * self.draws
        if self.n == self.calibrated:
            self._recalibrate()
            return bool(effective_size(self.log_weights) >= enough)
        count = int(min(self.look, self.calibrated - self.n, max(8, LOOK // self.draws)))
        edges = self.n + np.arange(count + 1)
        increments, progress = self.target.advance(self.cloud.x, edges, self.cloud.progress)
        self.evaluations += self.draws * count
        totals = self.log_weights[:, None] + np.cumsum(increments, axis=1)
        sizes = effective_size(totals)
        fall = np.flatnonzero(sizes < enough)
        if fall.size == 0:
            self.look = 2 * count
            self._advance_to(count, increments, totals, progress)
            return True
        k = int(fall[0])
        self.look = max(8, k)
        if k:
            _, progress = self.target.advance(self.cloud.x, self.n + np.array([0, k]), self.cloud.progress)
            self.evaluations += self.draws * k
            self._advance_to(k, increments, totals, progress)
        elif np.all(self.log_weights == 0.0):
            self.cloud = self.cloud._replace(next=increments[:, 0])
            self._temper()
        return False

    def _recalibrate(self) -> None:
        """Calibrate diffusions by twice as many samples, and weight for what that changes."""
        self.calibrated = min(2 * self.calibrated, self.target.n_samples)
        before = self.cloud.likelihood
        self.cloud = self._evaluate(self.cloud.x, self.n, 0.0)
        with np.errstate(invalid="ignore"):
            change = self.cloud.likelihood - before
        self.log_weights = self.log_weights + np.where(np.isfinite(change), change, -np.inf)

    def _advance_to(self, k: int, increments: np.ndarray, totals: np.ndarray, progress: Progress) -> None:
        self.n += k
        self.log_weights = totals[:, k - 1]
        likelihood = self.cloud.likelihood + increments[:, :k].sum(axis=1)
        self.cloud = self.cloud._replace(likelihood=likelihood, progress=progress)

    def _temper(self) -> None:
        """Take in a fraction of the next sample's likelihood: as much as the effective size allows."""
        rest, increment = 1.0 - self.fraction, np.maximum(self.cloud.next, -1e300)
        enough = self.threshold * self.draws
        step = bisect(lambda a: float(effective_size(a * increment)) >= enough, 0.0, rest)
        if step == 0.0:
            raise ValueError(f"the likelihood of sample {self.n} cannot be told apart from zero; check the record and priors.")
        self.log_weights = step * self.cloud.next
        self.fraction += step
        if step == rest:
            _, progress = self.target.advance(self.cloud.x, self.n + np.arange(2), self.cloud.progress)
            likelihood = self.cloud.likelihood + self.cloud.next
            self.cloud = self.cloud._replace(likelihood=likelihood, next=np.zeros(self.draws), progress=progress)
            self.n, self.fraction = self.n + 1, 0.0

    # -- moves --------------------------------------------------------------------------------------------------------

    def _evaluate(self, x: np.ndarray, n: int, fraction: float) -> Cloud:
        """Particles under the target given the first n samples and a fraction of the next."""
        likelihood, progress = self.target.start(x, [0, n], calibrate=self.calibrated)
        following = np.zeros(len(x))
        if fraction:
            following = self.target.advance(x, [n, n + 1], progress)[0][:, 0]
        self.evaluations += len(x) * (n + (fraction > 0))
        return Cloud(x, self.target.log_prior(x), likelihood[:, 0], following, progress)

    def _log_target(self, cloud: Cloud) -> np.ndarray:
        """Log-density the stage has weighted to, which the moves leave unchanged."""
        total = cloud.prior + cloud.likelihood
        if self.fraction:
            total = total + self.fraction * cloud.next
        result: np.ndarray = np.where(np.isnan(total), -np.inf, total)
        return result

    def _independent(self, proposal: Normal, ancestors: np.ndarray) -> None:
        """Independent Metropolis-Hastings chains; all proposals are evaluated in one batch."""
        M, plain = len(ancestors), self.moves == "plain"
        length = self.steps + 1 if plain else self.steps
        drawn = self._evaluate(proposal.draw(M * max(length - 1, 1), self.rng), self.n, self.fraction)
        everything = self.cloud.join(drawn)
        ratio = self._log_target(everything) - proposal.logpdf(everything.x)
        chains = independent_chains(ancestors, ratio, self.draws, self.rng)
        self.accept_rate = chains.acceptance
        rows = chains.source[-M:] if plain else chains.source
        self.cloud = everything.take(rows[: self.draws])
        self.family = np.tile(ancestors, len(rows) // M)[: self.draws]

    def _random_walk(self, proposal: Normal, chains: int) -> None:
        """Random-walk chains from particles of the stage, with the step that is best for a Gaussian (2.38 / sqrt(d))."""
        plain = self.moves == "plain"
        length = 10 if plain else self.steps
        index = np.arange(self.draws) if plain else self.rng.permutation(self.draws)[:chains]
        state, states, accepted = self.cloud.take(index), [], 0.0
        scale = 2.38 / np.sqrt(self.target.size)
        if not plain:
            states.append(state)
        for _ in range(length if plain else length - 1):
            step = scale * self.rng.standard_normal(state.x.shape) @ proposal.root.T
            new = self._evaluate(state.x + step, self.n, self.fraction)
            with np.errstate(invalid="ignore"):
                better = np.log(self.rng.random(len(step))) < self._log_target(new) - self._log_target(state)
            both = state.join(new)
            state = both.take(np.where(better, len(step) + np.arange(len(step)), np.arange(len(step))))
            accepted += better.mean()
            states.append(state)
        self.accept_rate = accepted / max(length if plain else length - 1, 1)
        if plain:
            self.cloud = state
            return
        joined = states[0]
        for other in states[1:]:
            joined = joined.join(other)
        self.cloud = joined.take(np.arange(self.draws))
        self.family = np.tile(self.family[index], len(states))[: self.draws]

    # -- progress bar -------------------------------------------------------------------------------------------------

    def _progress(self) -> Beta:
        """Fraction of the samples taken in, exactly one at the end."""
        text = (f"{self.n}/{self.target.n_samples}", f"{self.ess:.0f}", f"{self.log_marginal_likelihood:.2f}")
        return _beta((self.n + self.fraction) / self.target.n_samples, text)

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> Any:
        """Columns for sample, effective size and evidence."""
        titles = {"sample": "Sample", "ess": "ESS", "evidence": "Log evidence"}
        columns = [TextColumn(f"{{task.fields[{k}]}}", table_column=Column(v, ratio=1)) for k, v in titles.items()]
        return columns, {key: [""] * n_chains for key in titles}

    @staticmethod
    def _make_progressbar_update_functions() -> Any:
        def update(stats: dict[str, Any]) -> dict[str, Any]:
            return dict(zip(("sample", "ess", "evidence"), getattr(stats["beta"], "text", ("", "", "")), strict=True))

        return (update,)
