"""The sequential algorithm itself: weighting particles by sample after sample, and moving them."""

from __future__ import annotations

import logging

import numpy as np

from pm_sysid.samplers.cloud import Cloud
from pm_sysid.samplers.particles import Proposal, bisect, effective_size, independent_chains
from pm_sysid.target import Progress, Target

_log = logging.getLogger("pm_sysid")

#: Longest look ahead, in numbers of log-likelihood increments kept at a time.
LOOK = 2**20
#: Samples that a diffusion is calibrated by at the least.
CALIBRATED = 256
#: Fraction of the particles that must survive a new calibration.
COLLAPSE = 0.02
#: Effective fraction of the proposals, as weighted draws from the posterior, below which they do not fit it.
POOR_FIT = 0.05
#: Points at which the effective size of a stage is kept.
PATH = 16


class Sequential:
    """Particles under the posterior given the first n samples, and a fraction of the likelihood of the next one."""

    target: Target
    rng: np.random.Generator
    cloud: Cloud
    draws: int
    threshold: float
    moves: str
    steps: int
    log_weights: np.ndarray
    family: np.ndarray
    log_marginal_likelihood: float
    variance: float

    def _begin(self) -> None:
        """Set all counts to those of no samples."""
        self.n, self.fraction = 0, 0.0
        # By how many samples diffusions are calibrated: in the end by all, before by at least half of those taken in, so
        # that early stages do not pay for the whole record.
        T = self.target.n_samples
        self.calibrated = T if not self.target.calibrated else -(-T // 2 ** max(0, int(np.log2(max(T, 1) / CALIBRATED))))
        self.evaluations, self.accept_rate, self.proposal_ess, self.look = 0, 1.0, 1.0, 8
        self.sizes: list[np.ndarray] = []

    @property
    def _complete(self) -> bool:
        """Whether the particles are weighted by the whole record, and their diffusions calibrated by it."""
        return self.n == self.target.n_samples == self.calibrated

    # -- weighting ----------------------------------------------------------------------------------------------------

    def _absorb(self) -> bool:
        """Take in some more samples; False when the effective size is at the threshold."""
        enough = self.threshold * self.draws
        until = min(2 * self.calibrated, self.target.n_samples)
        if self.n == until:
            self._recalibrate()
            if effective_size(self.log_weights) < COLLAPSE * self.draws:
                self._start_again()
                return True
            return bool(effective_size(self.log_weights) >= enough)
        count = int(min(self.look, until - self.n, max(8, LOOK // self.draws)))
        edges = self.n + np.arange(count + 1)
        increments, progress = self.target.advance(self.cloud.x, edges, self.cloud.progress)
        self.evaluations += self.draws * count
        totals = self.log_weights[:, None] + np.cumsum(increments, axis=1)
        sizes = effective_size(totals)
        fall = np.flatnonzero(sizes < enough)
        if fall.size == 0:
            self.look = 2 * count
            self.sizes.append(sizes)
            self._advance_to(count, increments, totals, progress)
            return True
        k = int(fall[0])
        self.look = max(8, k)
        if k:
            self.sizes.append(sizes[:k])
            _, progress = self.target.advance(self.cloud.x, self.n + np.array([0, k]), self.cloud.progress)
            self.evaluations += self.draws * k
            self._advance_to(k, increments, totals, progress)
        elif np.all(self.log_weights == 0.0):
            self.cloud = self.cloud._replace(next=increments[:, 0])
            self._temper()
        return False

    def _recalibrate(self) -> None:
        """Calibrate diffusions by all samples taken in, and weight for what that changes."""
        self.calibrated = self.n
        before = self.cloud.likelihood
        self.cloud = self._evaluate(self.cloud.x, self.n, 0.0)
        with np.errstate(invalid="ignore"):
            change = self.cloud.likelihood - before
        self.log_weights = self.log_weights + np.where(np.isfinite(change), change, -np.inf)

    def _start_again(self) -> None:
        """Calibrate by the whole record from the first sample on.

        What fits a part of the record, calibrated by that part, may be impossible for the whole (a coarse solver that
        diverges later on): particles that went there cannot be weighted back.
        """
        _log.info(
            f"IBIS: no particle that fits the first {self.n} samples survives a diffusion calibrated by them; starting "
            "again with a diffusion calibrated by the whole record."
        )
        evaluations = self.evaluations
        self._begin()
        self.calibrated, self.evaluations = self.target.n_samples, evaluations
        self.log_marginal_likelihood, self.variance = 0.0, 0.0
        self.sizes = [np.array([float(self.draws)])]
        self.log_weights, self.family = np.zeros(self.draws), np.arange(self.draws)
        self.cloud = self._evaluate(self.target.draw_prior(self.draws, self.rng), 0, 0.0)

    def _path(self) -> np.ndarray:
        """Effective size at evenly spaced samples of the stage."""
        sizes = np.concatenate(self.sizes)
        result: np.ndarray = np.interp(np.linspace(0, len(sizes) - 1, PATH), np.arange(len(sizes)), sizes)
        return result

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
        self.sizes.append(np.atleast_1d(effective_size(self.log_weights)))
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

    def _independent(self, proposal: Proposal, ancestors: np.ndarray) -> None:
        """Independent Metropolis-Hastings chains; all proposals are evaluated in one batch."""
        M, plain = len(ancestors), self.moves == "plain"
        length = self.steps + 1 if plain else self.steps
        drawn = self._evaluate(proposal.draw(M * max(length - 1, 1), self.rng), self.n, self.fraction)
        everything = self.cloud.join(drawn)
        ratio = self._log_target(everything) - proposal.logpdf(everything.x)
        chains = independent_chains(ancestors, ratio, self.draws, self.rng)
        self.accept_rate = chains.acceptance
        self.proposal_ess = float(effective_size(np.nan_to_num(ratio[self.draws :], nan=-np.inf))) / max(len(drawn.x), 1)
        rows = chains.source[-M:] if plain else chains.source
        self.cloud = everything.take(rows[: self.draws])
        self.family = np.tile(ancestors, len(rows) // M)[: self.draws]

    def _random_walk(self, proposal: Proposal, chains: int) -> None:
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
        self.cloud = states[0].join(*states[1:]).take(np.arange(self.draws))
        self.family = np.tile(self.family[index], len(states))[: self.draws]
