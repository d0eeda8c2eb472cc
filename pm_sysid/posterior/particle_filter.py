"""A likelihood with processes integrated out by particles, where a filter linearises about them.

Particles follow the equations of motion on paths of the processes that are drawn as they are, and are weighted by what the
sensors say of them: no state is taken for Gaussian, and nothing is linearised. The product of the mean weights is an unbiased
estimate of the likelihood (Gordon, Salmond and Smith 1993; Del Moral 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
import scipy

from pm_sysid.likelihood.filter_view import FilterView
from pm_sysid.posterior.initial_state_check import log_mixture, smoothed_starts
from pm_sysid.posterior.states import Passes
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.recurrence.run import compiled_batch
from pm_sysid.sampling.smc.resampling import effective_size
from pm_sysid.solve.driven_runs import ProcessFlow, entries_of, opened_system, process_columns
from pm_sysid.solve.run_substeps import needed_steps
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.particles import moved, seen
from pm_sysid.steps.rk4 import rk4_inputs

#: Steps in a sampling interval, at least and at most: those of the filter. Paths are drawn at their ends and middles.
FEWEST, MOST = 4, 16
#: Particles are resampled where fewer than this share of them count.
RESAMPLED = 0.5
#: Share of the uncertain initial states that come from their prior, the others from about the smoothed ones.
FROM_PRIOR = 1 / 8
#: Most particles that are moved at once, so that they stay in a processor's cache.
AT_ONCE = 2**16
#: A kernel's outputs of one sample.
EDGES = np.array([0, 1])
#: Degrees of freedom of the others, and by how much they are wider than what the filter says.
FREEDOM, WIDER = 5, 1.5


class Sets(NamedTuple):
    """What a filter depends on at D draws, and what it says there.

    Parameters (D, R, P), means and standard deviations of the initial states (D, R, n_x), noise (D, R, n); smoothed initial
    states (D, R, free) and roots (D, R, free, free) of their covariances, in units of their prior; log-likelihood (D, T).
    """

    params: np.ndarray
    x0: np.ndarray
    x0_std: np.ndarray
    noise: np.ndarray
    centre: np.ndarray
    root: np.ndarray
    linearised: np.ndarray


class ParticleFilter:
    """Particles in the place of the filter of a model.

    Parameters
    ----------
    view : FilterView
        A filter with processes.
    """

    def __init__(self, view: FilterView) -> None:
        self.view, self.system = view, view.system
        self.records: Sequence[TimeSeries] = view.records()
        self.free = list(view.problem.form.free)
        self.opened, self.columns = opened_system(self.system), tuple(process_columns(self.system))
        noisy = [one for one in self.system.latents if one.role == "noise"]
        outputs = tuple(self.system.outputs.index(one.name) for one in noisy)
        #: Processes that move the states, then those that are noise.
        self.processes = [*self.system.driving, *noisy]
        self.move = compiled_batch(moved(self.opened, self.columns))
        self.see = compiled_batch(seen(self.opened, self.columns, outputs, view.problem.form.sensors))
        loglik, _ = view.problem.run(view.y, view.unknowns, view.data)
        unknowns = view.unknowns
        self.known = compiled(
            view.free, [unknowns.params, unknowns.x0, unknowns.x0_std, unknowns.noise, pt.sum(loglik, axis=1)]
        )
        self.order = [list(view.model.free_RVs).index(v) for v in view.free]
        self.smoothed = Passes(view) if self.free else None

    def sets(self, points: Sequence[Sequence[np.ndarray]]) -> Sets:
        """What the filter depends on at points: values of all free variables of the model, in its order."""
        n, found = len(self.records), []
        for point in points:
            own = [point[i] for i in self.order]
            params, x0, x0_std, noise, linearised = (np.asarray(v, dtype=float) for v in self.known(*own))
            params, noise = (np.broadcast_to(v, (n, v.shape[-1])) for v in (params, noise))
            found.append((params, x0, x0_std, noise, *self._smoothed(own, x0, x0_std), linearised))
        return Sets(*(np.array(column) for column in zip(*found, strict=True)))

    def substeps(self, sets: Sets) -> int:
        """Runge-Kutta steps in a sampling interval: those of the filter, more where stability asks for them."""
        substeps = min(max(self.view.op.substeps, FEWEST), MOST)
        for r, record in enumerate(self.records):
            base = sets.params[0, r, : len(self.system.base.params)]
            needed = needed_steps(self.system, record, base, sets.x0[0, r]) if len(base) == len(self.system.params) else None
            substeps = max(substeps, needed[1] if needed else 0)
        return substeps

    def log_likelihood(
        self, sets: Sets, which: np.ndarray, substeps: int, particles: int, lengths: Sequence[int], rng: np.random.Generator
    ) -> np.ndarray:
        """Estimates (N,) of the log-likelihood of the first samples (``lengths``) of the records at draws ``which`` (N,)."""
        total = np.zeros(len(which))
        for part in np.array_split(np.arange(len(which)), -(-len(which) * particles // AT_ONCE)):
            for r, (record, length) in enumerate(zip(self.records, lengths, strict=True)):
                here = Sets._make([*(v[which[part], r] for v in sets[:-1]), sets.linearised])
                total[part] += self._one(record[:length], here, substeps, particles, rng)
        return total

    def linearised(self, sets: Sets, lengths: Sequence[int]) -> np.ndarray:
        """Log-likelihood (D,) of the filter itself for the first samples of the records."""
        first = np.cumsum([0, *map(len, self.records)])
        return sum(sets.linearised[:, a : a + n].sum(axis=1) for a, n in zip(first, lengths, strict=False))  # type: ignore[return-value]

    def _one(self, record: TimeSeries, sets: Sets, substeps: int, particles: int, rng: np.random.Generator) -> np.ndarray:
        """Estimates (N,) for one record."""
        inputs, y = rk4_inputs(record, substeps), record.output_matrix
        theta = completed_sets(self.opened, np.ascontiguousarray(sets.params[:, : len(self.system.base.params)]))
        theta = np.repeat(theta, particles, axis=0)
        all_params = np.concatenate([theta, np.repeat(sets.noise, particles, axis=0)], axis=1)
        paths = Paths(self.system, self.processes, sets.params, particles, rng)
        x, log_weights = self._starts(sets, particles, rng)
        total, ends, driving = np.zeros(len(x)), np.cumsum(inputs.counts), len(self.columns)
        for i, end in enumerate(ends):
            for row in inputs.substeps[end - inputs.counts[i] : end]:
                nodes = [values[..., :driving] for values in paths.over(row[1])]
                final = self._run(self.move, theta, [x, *nodes], row)[1]
                x = final[..., 0, : x.shape[2]].reshape(x.shape)
            sample = np.concatenate([inputs.samples[i], y[i]])
            said = self._run(self.see, all_params, [x, paths.values], None, sample)[0]
            log_weights = log_weights + said.reshape(log_weights.shape)
            mean = scipy.special.logsumexp(log_weights, axis=1) - np.log(particles)
            total += mean
            possible = mean > -np.inf
            log_weights = np.where(possible[:, None], log_weights - np.where(possible, mean, 0.0)[:, None], 0.0)
            few = effective_size(log_weights.T) < RESAMPLED * particles
            if few.any():
                chosen = _resampled(np.exp(log_weights), few, rng)
                x, paths.states = (np.take_along_axis(a, chosen[..., None], axis=1) for a in (x, paths.states))
                log_weights[few] = 0.0
        return total

    def _run(self, kernel: Any, theta: np.ndarray, start: Sequence[np.ndarray], *rows: np.ndarray | None) -> Any:
        """Call a kernel for all particles: for the row of a step, or for none and the row of a sample."""
        state = np.concatenate(start, axis=2)
        step, sample = (np.empty((0, 0)) if row is None else row[None] for row in (*rows, np.empty(0))[:2])
        return kernel(theta, state.reshape(-1, 1, state.shape[2]), EDGES, np.array([len(step)]), step, sample)

    def _starts(self, sets: Sets, particles: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Initial states (N, particles, n_x), and their log-weights where they are uncertain."""
        x = np.repeat(sets.x0[:, None], particles, axis=1)
        if not self.free:
            return x, np.zeros(x.shape[:2])
        d, prior = len(self.free), round(FROM_PRIOR * particles)
        normal = rng.standard_normal((*x.shape[:2], d))
        heavy = normal / np.sqrt(rng.chisquare(FREEDOM, (*x.shape[:2], 1)) / FREEDOM)
        root = WIDER * sets.root
        xi = sets.centre[:, None] + np.einsum("nij,npj->npi", root, heavy)
        xi[:, :prior] = normal[:, :prior]
        x[:, :, self.free] += sets.x0_std[:, None, self.free] * xi
        log_prior = scipy.stats.norm.logpdf(xi).sum(axis=2)
        return x, log_prior - log_mixture(xi, sets.centre, root, log_prior, prior / particles)

    def _smoothed(self, own: list[np.ndarray], x0: np.ndarray, x0_std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Smoothed initial states (R, free) and roots of their covariances, in units of the prior."""
        if self.smoothed is None:
            return np.empty((len(x0), 0)), np.empty((len(x0), 0, 0))
        return smoothed_starts(self.smoothed, own, x0, x0_std, self.free)


class Paths:
    """States of processes, drawn forward: ``states`` (N, particles, n), and their ``values`` (N, particles, processes)."""

    def __init__(
        self, system: Any, processes: Sequence[Any], params: np.ndarray, particles: int, rng: np.random.Generator
    ) -> None:
        self.rng, self.particles = rng, particles
        self.flows = [ProcessFlow(one.kind, entries_of(system, one, params)) for one in processes]
        sizes = [one.kind.size for one in processes]
        self.ends = np.cumsum(sizes)
        self.level = np.zeros((len(params), 1, len(processes)))  # what a process is added to
        for i, one in enumerate(processes):
            if one.role == "parameter":
                self.level[:, 0, i] = params[:, system.base.params.index(one.name)]
        self.states = self._each(lambda flow: flow.initial, None)

    @property
    def values(self) -> np.ndarray:
        """Values of the processes."""
        parts = np.split(self.states, self.ends[:-1], axis=2)
        weighted = [np.sum(part * flow.weights[:, None], axis=2) for part, flow in zip(parts, self.flows, strict=True)]
        return np.stack(weighted, axis=2) + self.level

    def over(self, step: float) -> list[np.ndarray]:
        """Draw what happens in a step: values at its start, middle and end."""
        found = [self.values]
        for _ in range(2):
            self.states = self._each(lambda flow: flow.over(step / 2)[1], step / 2)
            found.append(self.values)
        return found

    def _each(self, factor: Any, step: float | None) -> np.ndarray:
        """States of all processes after a step, or at the first sample, with random numbers times a ``factor`` of each."""
        new = []
        before = [None] * len(self.flows) if step is None else np.split(self.states, self.ends[:-1], axis=2)
        for flow, old in zip(self.flows, before, strict=True):
            L = factor(flow)
            kicks = self.rng.standard_normal((len(L), self.particles, L.shape[2]))
            drawn = kicks @ L.transpose(0, 2, 1)
            new.append(drawn if old is None or step is None else old @ flow.over(step)[0].transpose(0, 2, 1) + drawn)
        return np.concatenate(new, axis=2)


def _resampled(weights: np.ndarray, few: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices (N, particles) of particles after systematic resampling of the rows in which few count."""
    n, particles = weights.shape
    chosen = np.tile(np.arange(particles), (n, 1))
    rows = np.cumsum(weights[few], axis=1)
    rows = rows / rows[:, -1:] + np.arange(len(rows))[:, None]  # all rows one after the other: one search for all
    arrows = (rng.random((len(rows), 1)) + np.arange(particles)) / particles + np.arange(len(rows))[:, None]
    found = np.searchsorted(rows.ravel(), arrows.ravel()).reshape(arrows.shape) - particles * np.arange(len(rows))[:, None]
    chosen[few] = np.minimum(found, particles - 1)
    return chosen
