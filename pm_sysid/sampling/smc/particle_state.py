"""Particles, and the state of a sequential run, as immutable tuples that can be resampled, stored and taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.likelihood.prior_draws import Mass
from pm_sysid.likelihood.target import Progress


class Particles(NamedTuple):
    """Particles (N, d) in unconstrained space, with what is known of each of them.

    ``log_prior`` (N,); ``log_likelihood`` (N,) of the samples taken in; ``next_log_likelihood`` (N,) of the next sample,
    zero unless a fraction of it is taken in; ``progress``, where their filters stand.
    """

    x: np.ndarray
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    next_log_likelihood: np.ndarray
    progress: Progress

    def take(self, index: np.ndarray) -> Particles:
        """Particles by rows."""
        return self._of({k: v[index] for k, v in self._columns().items()}, self.progress.take(index))

    def join(self, *others: Particles) -> Particles:
        """These particles, then others."""
        rest, progress = [other._columns() for other in others], self.progress
        for other in others:
            progress = progress.join(other.progress)
        return self._of({k: np.concatenate([v, *(c[k] for c in rest)]) for k, v in self._columns().items()}, progress)

    def _columns(self) -> dict[str, np.ndarray]:
        """Arrays with a row for each particle, by name; without the filters."""
        return {name: value for name, value in self._asdict().items() if name != "progress"}

    @classmethod
    def _of(cls, columns: Mapping[str, np.ndarray], progress: Progress) -> Particles:
        return cls(progress=progress, **{name: columns[name] for name in cls._fields if name != "progress"})

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        filters = self.progress._asdict().items()
        return self._columns() | {f"{name}_{i}": array for name, arrays in filters for i, array in enumerate(arrays)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Particles:
        """Particles from what :meth:`arrays` gave."""
        filters = sum(name.startswith("params_") for name in arrays)
        progress = Progress(*(tuple(arrays[f"{name}_{i}"] for i in range(filters)) for name in Progress._fields))
        return cls._of(arrays, progress)


class Start(NamedTuple):
    """Where a run begins: draws (N, d) from the posterior given the first n samples, and what an earlier run has counted.

    ``log_evidence`` is that of the first n samples, ``variance`` that of its estimate; ``evaluations`` counts likelihoods of
    a sample. With n = 0 the draws are from the prior. ``mass`` is the share of the prior that potentials leave, None where it
    has to be found. ``same_model`` is False where the draws are from a model that differs from that of the run: mean weights
    from there on say nothing of the evidence.
    """

    x: np.ndarray
    n: int = 0
    log_evidence: float = 0.0
    variance: float = 0.0
    evaluations: int = 0
    mass: Mass | None = None
    same_model: bool = True


class SequentialState(NamedTuple):
    """State of a sequential run.

    Attributes
    ----------
    particles : Particles
    chain : array of int, shape (N,)
        Which Markov chain of the last moves a particle is a state of.
    family : array of int, shape (N,)
        Which chain of the moves before its ancestor was a state of: particles of a family depend on each other.
    log_weights, moved_weights : array, shape (N,)
        Logarithms of weights of mean one; now, and after the last move, where they are zero unless regions of little weight
        were visited more often than they are due.
    region : array of int, shape (N,)
        Component of the last moves' proposals to which a particle is nearest.
    remembered : array, shape (m, d)
        Particles of earlier stages whose proposals fitted poorly.
    sizes : array
        Effective sample sizes since the last move, one for each sample or fraction of a sample taken in.
    n : int
        Samples taken in.
    fraction : float
        Fraction of the next sample's likelihood that is taken in as well.
    diffusion_samples : int
        Samples by which diffusions are calibrated.
    look_ahead : int
        Samples of which the next batch computes the likelihoods.
    stage : int
        Stages so far.
    log_evidence, variance : float
        Log evidence, and the variance of its estimate: from the last stage whose independent proposals fitted, and the mean
        weights since.
    log_product, product_variance : float
        Log of the product of all mean weights, and its variance.
    log_around, around_variance : float
        Log evidence by draws around the particles of earlier stages, and its variance; NaN where that was not looked at.
    log_mass, mass_error : float
        Logarithm of the share of the prior that the model's potentials leave, and its standard error.
    ess : float
        Effective sample size at the end of the last reweighting.
    accept_rate, proposal_ess, pareto_k : float
        Acceptance of the last moves, effective fraction of their independent proposals, and Pareto shape of the weights of
        these as draws from the posterior.
    components, walks : int
        Components of the proposals, and steps along differences, of the last moves.
    memory : float
        Correlation that the last moves left between where particles are and where they were.
    survivors : int
        Fewest particles for which a sample was possible.
    evaluations : int
        Likelihoods of a sample computed so far.
    """

    particles: Particles
    chain: np.ndarray
    family: np.ndarray
    log_weights: np.ndarray
    moved_weights: np.ndarray
    region: np.ndarray
    remembered: np.ndarray
    sizes: np.ndarray
    n: int
    fraction: float
    diffusion_samples: int
    look_ahead: int
    stage: int
    log_evidence: float
    variance: float
    log_product: float
    product_variance: float
    log_around: float
    around_variance: float
    log_mass: float
    mass_error: float
    ess: float
    accept_rate: float
    proposal_ess: float
    pareto_k: float
    components: int
    walks: int
    memory: float
    survivors: int
    evaluations: int

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and numbers by field, for a checkpoint."""
        named = self._asdict()
        arrays = named.pop("particles").arrays() | {k: v for k, v in named.items() if isinstance(v, np.ndarray)}
        return arrays, {k: v for k, v in named.items() if k not in arrays}

    @classmethod
    def from_parts(cls, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> SequentialState:
        """State from what :meth:`parts` gave.

        Raises
        ------
        KeyError
            If a field is missing.
        """
        found = {"particles": Particles.from_arrays(arrays), **arrays, **numbers}
        return cls(**{name: found[name] for name in cls._fields})
