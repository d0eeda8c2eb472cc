"""A likelihood with processes integrated out by particles, where a filter linearises about them.

Particles follow the equations of motion on paths of the processes that are drawn as they are, and are weighted by what the
sensors say of them: no state is taken for Gaussian, and nothing is linearised. The product of the mean weights is an unbiased
estimate of the likelihood (Gordon, Salmond and Smith 1993; Del Moral 1996).

The linearisation may lead the particles: where the rest of the record says that they have to be, drawn and resampled by what it
says, and weighted by what it has changed (twisted particle filters: Guarniero, Johansen and Lee 2017). That is no
approximation, and where the linearisation is good, few particles are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
import scipy

from pm_sysid.likelihood.filter_view import FilterView
from pm_sysid.posterior.passes import Passes
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.recurrence.run import compiled_batch
from pm_sysid.sampling.smc.resampling import effective_size
from pm_sysid.solve.driven_runs import ProcessFlow, entries_of, opened_system, process_columns
from pm_sysid.solve.run_substeps import needed_steps
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.particles import moved, seen
from pm_sysid.steps.rk4 import NODES, rk4_inputs

#: Steps in a sampling interval, at least and at most: those of the filter. Paths are drawn at their ends and middles.
FEWEST, MOST = 4, 16
#: Particles are resampled where fewer than this share of them count.
RESAMPLED = 0.5
#: Share of the particles that move as the prior says, and how much less likely than for others the rest of a record may be said
#: to be for a particle: so that none is lost where the linearisation knows nothing of it.
DEFENCE, LEAST = 1 / 16, 5.0
#: Most particles that are moved at once, so that they stay in a processor's cache.
AT_ONCE = 2**16
#: Most numbers of particles that are kept, from which paths are read back.
KEPT = 2**25
#: A kernel's outputs of one sample.
EDGES = np.array([0, 1])
#: Differences that slopes of the equations and curvatures of log-densities are taken over, in standard deviations of the
#: smoothed states over the record (or at least so much), and differences of the random numbers that move a particle.
APART, CURVED, PUSH = 1e-4, 1e-2, 1e-2


class Sets(NamedTuple):
    """What a filter depends on at D draws, and what it says there.

    Parameters (D, R, P), means and standard deviations of the initial states (D, R, n_x), noise (D, R, n); smoothed states and
    processes (D, T, n) at all samples, and their standard deviations; log-likelihood (D, T).
    """

    params: np.ndarray
    x0: np.ndarray
    x0_std: np.ndarray
    noise: np.ndarray
    smoothed: np.ndarray
    smoothed_std: np.ndarray
    linearised: np.ndarray


class ParticleFilter:
    """Particles in the place of the filter of a model.

    Parameters
    ----------
    view : FilterView
        A filter with processes.
    passes : Passes, optional
        Its smoother, if that has been compiled already.
    """

    def __init__(self, view: FilterView, passes: Passes | None = None) -> None:
        self.view, self.system = view, view.system
        self.records: Sequence[TimeSeries] = view.records()
        self.first = np.cumsum([0, *map(len, self.records)])
        self.passes = passes or Passes(view)
        loglik, _ = view.problem.run(view.y, view.unknowns, view.data)
        unknowns = view.unknowns
        wanted = [unknowns.params, unknowns.x0, unknowns.x0_std, unknowns.noise, pt.sum(loglik, axis=1)]
        self.known = compiled(view.free, wanted)
        self.order = [list(view.model.free_RVs).index(v) for v in view.free]

    def sets(self, points: Sequence[Sequence[np.ndarray]]) -> Sets:
        """What the filter depends on at points: values of all free variables of the model, in its order."""
        return self.own_sets([[point[i] for i in self.order] for point in points])

    def own_sets(self, points: Sequence[list[np.ndarray]]) -> Sets:
        """The same at values of the free variables of the filter."""
        n, found = len(self.records), []
        for own in points:
            params, x0, x0_std, noise, linearised = (np.asarray(v, dtype=float) for v in self.known(*own))
            params, noise = (np.broadcast_to(v, (n, v.shape[-1])) for v in (params, noise))
            found.append((params, x0, x0_std, noise, *self.passes.smoothed(own), linearised))
        return Sets(*(np.array(column) for column in zip(*found, strict=True)))

    def substeps(self, sets: Sets) -> int:
        """Runge-Kutta steps in a sampling interval: those of the filter, more where stability asks for them."""
        substeps = min(max(self.view.op.substeps, FEWEST), MOST)
        for r, record in enumerate(self.records):
            base = sets.params[0, r, : len(self.system.base.params)]
            needed = needed_steps(self.system, record, base, sets.x0[0, r]) if len(base) == len(self.system.params) else None
            substeps = max(substeps, needed[1] if needed else 0)
        return substeps

    def linearised(self, sets: Sets, lengths: Sequence[int]) -> np.ndarray:
        """Log-likelihood (D,) of the filter itself for the first samples of the records."""
        parts = [sets.linearised[:, a : a + n].sum(axis=1) for a, n in zip(self.first, lengths, strict=False)]
        total: np.ndarray = np.sum(parts, axis=0)
        return total

    def motions(self, sets: Sets, substeps: int, lengths: Sequence[int]) -> list[Motion]:
        """How particles of all draws move through the first samples of each record."""
        return [
            Motion(self.view, record[:length], Sets._make([*(v[:, r] for v in sets[:4]), *sets[4:]]), substeps)
            for r, (record, length) in enumerate(zip(self.records, lengths, strict=True))
        ]

    def guides(self, motions: Sequence[Motion], sets: Sets) -> list[list[Guide] | None]:
        """What the linearisation about the smoothed states says of the rest of each record; None where it has no slopes."""
        return [guides(m, sets.smoothed[:, a : a + len(m.y)]) for m, a in zip(motions, self.first, strict=False)]


class Guide(NamedTuple):
    """What is likely at a sample given all measurements from there on, linearised, for each of D draws.

    About the state ``at`` (D, n) a particle moves by ``constant + slopes`` times how far it was from the state at the sample
    before, and by ``spread`` (D, n, kicks) times standard normal numbers. What the measurements from this sample on say of the
    state has a density proportional to ``exp(level + pull' d - d' weight d / 2)`` at the distance d from ``at``.
    """

    at: np.ndarray
    constant: np.ndarray
    slopes: np.ndarray
    spread: np.ndarray
    weight: np.ndarray
    pull: np.ndarray
    level: np.ndarray

    def log(self, distance: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Logarithm (N, particles) of the density at distances (N, particles, n), for draws ``which`` (N,)."""
        return _quadratic(distance, self.weight[which], self.pull[which], self.level[which])

    def before(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weight, pull and level of the same at the sample before, where the random numbers are averaged over."""
        Q = self.spread @ self.spread.transpose(0, 2, 1)
        A, c = self.slopes, self.constant[..., None]
        left = np.linalg.inv(np.eye(Q.shape[1]) + Q @ self.weight)
        M = self.weight @ left
        M = (M + M.transpose(0, 2, 1)) / 2
        pull = self.pull[..., None]
        h = left.transpose(0, 2, 1) @ pull
        level = 0.5 * np.linalg.slogdet(left)[1] + self.level
        level = level + (0.5 * pull.transpose(0, 2, 1) @ left @ Q @ pull + (h - 0.5 * M @ c).transpose(0, 2, 1) @ c)[:, 0, 0]
        return A.transpose(0, 2, 1) @ M @ A, (A.transpose(0, 2, 1) @ (h - M @ c))[..., 0], level


class Motion:
    """How states and processes of particles move through a record, at each of D draws of the parameters."""

    def __init__(self, view: FilterView, record: TimeSeries, sets: Sets, substeps: int) -> None:
        system = view.system
        opened, columns = opened_system(system), tuple(process_columns(system))
        noisy = [one for one in system.latents if one.role == "noise"]
        outputs = tuple(system.outputs.index(one.name) for one in noisy)
        processes = [*system.driving, *noisy]
        self.driving, self.n_x = len(columns), len(system.states)
        self.move = compiled_batch(moved(opened, columns))
        self.see = compiled_batch(seen(opened, columns, outputs, view.problem.form.sensors))
        self.inputs, self.y = rk4_inputs(record, substeps), record.output_matrix
        self.ends = np.cumsum(self.inputs.counts)
        self.theta = completed_sets(opened, np.ascontiguousarray(sets.params[:, : len(system.base.params)]))
        self.noise = sets.noise
        self.flows = [ProcessFlow(one.kind, entries_of(system, one, sets.params)) for one in processes]
        self.sizes = [one.kind.size for one in processes]
        self.kicks = sum(one.kind.kicks for one in processes)
        level = [sets.params[:, system.base.params.index(one.name)] if one.role == "parameter" else 0 for one in processes]
        self.level = np.stack([np.broadcast_to(v, len(self.theta)) for v in level], axis=1)  # what a process is added to
        free = np.eye(self.n_x)[:, list(view.problem.form.free)] * sets.x0_std[:, :, None]
        self.start = np.concatenate([sets.x0, np.zeros((len(sets.x0), sum(self.sizes)))], axis=1)
        self.start_spread = _blocks([free, *(flow.initial for flow in self.flows)])
        self.weights = _blocks([flow.weights[:, None] for flow in self.flows])
        self.flow = lru_cache(maxsize=None)(self._flow)

    def _flow(self, step: float) -> tuple[np.ndarray, np.ndarray]:
        """Transition of all processes over a step, and factor of the covariance that it adds, transposed."""
        both = [flow.over(step) for flow in self.flows]
        return _blocks([F for F, _ in both]).transpose(0, 2, 1), _blocks([L for _, L in both]).transpose(0, 2, 1)

    def n_kicks(self, sample: int) -> int:
        """Random numbers that move a particle to a sample, or to where it starts."""
        return int(2 * self.inputs.counts[sample] * self.kicks) if sample else self.start_spread.shape[2]

    def moved(self, z: np.ndarray, kicks: np.ndarray, sample: int, which: np.ndarray) -> np.ndarray:
        """States and processes (N, particles, n) at a sample, by those at the one before and standard normal numbers."""
        if not sample:
            started: np.ndarray = self.start[which][:, None] + kicks @ self.start_spread[which].transpose(0, 2, 1)
            return started
        theta = np.repeat(self.theta[which], z.shape[1], axis=0)
        states, end = z[..., self.n_x :], self.ends[sample]
        each = iter(np.split(kicks, kicks.shape[2] // self.kicks, axis=2) if self.kicks else ())
        # States, and what the processes are at the start, in the middle and at the end of a step.
        parts = np.empty((*z.shape[:2], self.n_x + len(NODES) * self.driving))
        parts[..., : self.n_x] = z[..., : self.n_x]
        at = [slice(self.n_x + j * self.driving, self.n_x + (j + 1) * self.driving) for j in range(len(NODES))]
        parts[..., at[-1]] = self._values(states, which)[..., : self.driving]
        for row in self.inputs.substeps[end - self.inputs.counts[sample] : end]:
            F, L = (table[which] for table in self.flow(row[1] / 2))
            parts[..., at[0]] = parts[..., at[-1]]
            for node in at[1:]:
                states = _times(states, F)
                if self.kicks:
                    states = states + _times(next(each), L)
                parts[..., node] = self._values(states, which)[..., : self.driving]
            final = self._run(self.move, theta, parts, row)[1]
            parts[..., : self.n_x] = final[..., 0, : self.n_x].reshape(*z.shape[:2], self.n_x)
        return np.concatenate([parts[..., : self.n_x], states], axis=2)

    def seen(self, z: np.ndarray, sample: int, which: np.ndarray) -> np.ndarray:
        """Log-density (N, particles) of a sample."""
        params = np.repeat(np.concatenate([self.theta[which], self.noise[which]], axis=1), z.shape[1], axis=0)
        row = np.concatenate([self.inputs.samples[sample], self.y[sample]])
        state = np.concatenate([z[..., : self.n_x], self._values(z[..., self.n_x :], which)], axis=2)
        said: np.ndarray = self._run(self.see, params, state, None, row)[0]
        return said.reshape(z.shape[:2])

    def _values(self, states: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Values of the processes."""
        values = _times(states, self.weights[which].transpose(0, 2, 1))
        values += self.level[which][:, None]
        return values

    def _run(self, kernel: Any, theta: np.ndarray, state: np.ndarray, *rows: np.ndarray | None) -> Any:
        """Call a kernel for all particles: for the row of a step, or for none and the row of a sample."""
        step, sample = (np.empty((0, 0)) if row is None else row[None] for row in (*rows, np.empty(0))[:2])
        return kernel(theta, state.reshape(-1, 1, state.shape[2]), EDGES, np.array([len(step)]), step, sample)


def guides(motion: Motion, smoothed: np.ndarray) -> list[Guide] | None:
    """Guides at all samples, linearised about smoothed states and processes (D, T, n); None where that is not finite."""
    if not np.isfinite(smoothed).all():
        return None
    n_draws, n = len(smoothed), smoothed.shape[2]
    which, size = np.arange(n_draws), np.maximum(np.std(smoothed, axis=1), APART)
    found: list[Guide] = []
    weight, pull, level = np.zeros((n_draws, n, n)), np.zeros((n_draws, n)), np.zeros(n_draws)
    for i in range(len(motion.y) - 1, -1, -1):
        at = smoothed[:, i]
        slope, curvature = _curvature(lambda z, i=i: motion.seen(z, i, which), at, CURVED * size)  # type: ignore[misc]
        kicks = motion.n_kicks(i)
        if i:
            apart = APART * np.concatenate([np.zeros((n_draws, 1)), np.repeat(size, 2, axis=1)], axis=1)
            steps = np.concatenate([np.zeros((1, n)), np.repeat(np.eye(n), 2, axis=0) * np.tile([1.0, -1.0], n)[:, None]])
            start = smoothed[:, None, i - 1] + steps * apart[..., None]
            still = motion.moved(start, np.zeros((*start.shape[:2], kicks)), i, which)
            slopes = ((still[:, 1::2] - still[:, 2::2]) / (2 * APART * size[..., None])).transpose(0, 2, 1)
            constant = still[:, 0] - at
            spread = np.zeros((n_draws, n, kicks))
            if kicks:
                pushes = PUSH * np.concatenate([np.eye(kicks), -np.eye(kicks)])
                start = np.repeat(smoothed[:, None, i - 1], 2 * kicks, axis=1)
                pushed = motion.moved(start, np.repeat(pushes[None], n_draws, axis=0), i, which)
                spread = ((pushed[:, :kicks] - pushed[:, kicks:]) / (2 * PUSH)).transpose(0, 2, 1)
        else:
            slopes, constant, spread = np.zeros((n_draws, n, n)), motion.start - at, motion.start_spread
        guide = Guide(at, constant, slopes, spread, weight + curvature, pull + slope, level)
        if not all(np.isfinite(part).all() for part in guide):
            return None
        found.append(guide)
        weight, pull, level = guide.before()
    return found[::-1]


def _curvature(function: Any, at: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope (D, n) of a function of points (D, n), and minus its second derivatives (D, n, n), as far as it is concave."""
    n = at.shape[1]
    pairs = [(i, j) for i in range(n) for j in range(i)]
    steps = [np.zeros(n), *np.eye(n), *-np.eye(n), *(np.eye(n)[i] + s * np.eye(n)[j] for i, j in pairs for s in (1, -1))]
    steps += [-step for step in steps[1 + 2 * n :]]
    values = function(at[:, None] + np.array(steps) * size[:, None])
    middle, up, down = values[:, :1], values[:, 1 : 1 + n], values[:, 1 + n : 1 + 2 * n]
    H = np.zeros((len(at), n, n))
    H[:, range(n), range(n)] = up + down - 2 * middle
    across = values[:, 1 + 2 * n :].reshape(len(at), 2, len(pairs), 2).sum(axis=1)
    for k, (i, j) in enumerate(pairs):
        H[:, i, j] = H[:, j, i] = (across[:, k, 0] - across[:, k, 1]) / 4
    slope = (up - down) / 2
    known = np.isfinite(H).all(axis=(1, 2)) & np.isfinite(slope).all(axis=1)
    H, slope = np.where(known[:, None, None], H, 0.0), np.where(known[:, None], slope, 0.0)
    scaled = H / size[:, :, None] / size[:, None]
    values, vectors = np.linalg.eigh(-scaled)
    return slope / size, (vectors * np.maximum(values, 0.0)[:, None]) @ vectors.transpose(0, 2, 1)


def log_likelihood(
    motion: Motion, guided: Sequence[Guide] | None, which: np.ndarray, particles: int, rng: np.random.Generator
) -> np.ndarray:
    """Estimates (N,) of the log-likelihood of a record at draws ``which`` (N,), with or without guides."""
    parts = np.array_split(which, -(-len(which) * particles // AT_ONCE))
    return np.concatenate([_estimates(motion, guided, part, particles, rng) for part in parts])


def drawn_paths(
    motion: Motion, guided: Sequence[Guide] | None, which: np.ndarray, particles: int, rngs: Sequence[np.random.Generator]
) -> tuple[np.ndarray, np.ndarray]:
    """Paths (N, T, n) of states and processes given a record, and estimates (N,) of its log-likelihood.

    Each is that of one particle out of so many, drawn by their weights at the end, with its ancestors. It depends on its own
    generator alone, whatever others are drawn with it. NaN where no particle explains the record.
    """
    n, length = motion.start.shape[1], len(motion.y)
    at_once = max(1, min(AT_ONCE, KEPT // (length * (n + 1))) // particles)
    paths, totals = np.empty((len(which), length, n)), np.empty(len(which))
    for first in range(0, len(which), at_once):
        part = slice(first, first + at_once)
        history: list[tuple[np.ndarray, np.ndarray]] = []
        streams = Streams(rngs[part])
        log_weights = _followed(motion, guided, which[part], particles, streams, history)
        totals[part] = scipy.special.logsumexp(log_weights, axis=1) - np.log(particles)
        weights = np.cumsum(np.exp(log_weights - log_weights.max(axis=1, keepdims=True)), axis=1)
        arrows = streams.random((len(weights), 1)) * weights[:, -1:]
        one = np.minimum(np.sum(weights <= arrows, axis=1), particles - 1)[:, None]
        for i in range(length - 1, -1, -1):
            z, chosen = history.pop()
            one = np.take_along_axis(chosen, one, axis=1)
            paths[part, i] = np.take_along_axis(z, one[..., None], axis=1)[:, 0]
    paths[~np.isfinite(totals)] = np.nan
    return paths, totals


class Streams:
    """Random numbers of which each row has a generator of its own."""

    def __init__(self, rngs: Sequence[np.random.Generator]) -> None:
        self.rngs = rngs

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal numbers, one row for each generator."""
        return np.stack([rng.standard_normal(shape[1:]) for rng in self.rngs])

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers from zero to one, one row for each generator."""
        return np.stack([rng.random(shape[1:]) for rng in self.rngs])

    def only(self, rows: np.ndarray) -> Streams:
        """The generators of some rows."""
        return Streams([rng for rng, kept in zip(self.rngs, rows, strict=True) if kept])


def _estimates(
    motion: Motion, guided: Sequence[Guide] | None, which: np.ndarray, particles: int, rng: np.random.Generator
) -> np.ndarray:
    """Estimates for draws whose particles are moved at once."""
    log_weights = _followed(motion, guided, which, particles, rng)
    total: np.ndarray = scipy.special.logsumexp(log_weights, axis=1) - np.log(particles)
    return total


def _followed(
    motion: Motion,
    guided: Sequence[Guide] | None,
    which: np.ndarray,
    particles: int,
    rng: np.random.Generator | Streams,
    history: list[tuple[np.ndarray, np.ndarray]] | None = None,
) -> np.ndarray:
    """Log-weights (N, particles) at the end of a record.

    A history gets the states and processes of all particles at each sample, and which of them went on.
    """
    shape = len(which), particles
    z, log_weights, ahead = np.zeros((*shape, 0)), np.zeros(shape), np.zeros(shape)
    everyone = np.broadcast_to(np.arange(particles), shape)
    for i in range(len(motion.y)):
        kicks = rng.standard_normal((*shape, motion.n_kicks(i)))
        if guided is not None:
            kicks, log_ratio = _guided(guided[i], z - guided[i - 1].at[which][:, None] if i else z, kicks, which, rng)
            log_weights = log_weights + log_ratio
        z = motion.moved(z, kicks, i, which)
        said = motion.seen(z, i, which)
        log_weights = log_weights + np.where(np.isnan(said), -np.inf, said)
        if guided is not None:
            ahead = _ahead(guided, i, z, which)
        log_weights = np.where(np.isfinite(z).all(axis=2), log_weights, -np.inf)
        promise = log_weights + ahead
        few = effective_size(promise.T) < RESAMPLED * particles
        few &= promise.max(axis=1) > -np.inf
        before, chosen = z, everyone
        if few.any():
            mean = scipy.special.logsumexp(promise, axis=1, keepdims=True) - np.log(particles)
            chosen = _resampled(np.exp(promise[few] - mean[few]), few, rng)
            z, ahead = np.take_along_axis(z, chosen[..., None], axis=1), np.take_along_axis(ahead, chosen, axis=1)
            log_weights = np.where(few[:, None], mean - ahead, log_weights)
        if history is not None:
            history.append((before, chosen))
    return log_weights


def _guided(
    guide: Guide, distance: np.ndarray, kicks: np.ndarray, which: np.ndarray, rng: np.random.Generator | Streams
) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers that lead where the measurements say, by those of the prior, and the log-ratio of both densities.

    A draw of the prior is conditioned on what the guide says of the state, as if that were a measurement whose error is drawn,
    too (Matheron's rule); some stay as they are.
    """
    constant, slopes, spread, weight = guide.constant[which], guide.slopes[which], guide.spread[which], guide.weight[which]
    still = constant[:, None] + (distance @ slopes.transpose(0, 2, 1) if distance.shape[2] else 0.0)
    values, vectors = np.linalg.eigh(weight)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None]).transpose(0, 2, 1)
    error = rng.standard_normal((*kicks.shape[:2], root.shape[1])) @ root
    gap = guide.pull[which][:, None] - (still + kicks @ spread.transpose(0, 2, 1)) @ weight - error
    Q = spread @ spread.transpose(0, 2, 1)
    gain = np.linalg.solve(np.eye(Q.shape[1]) + weight @ Q, np.eye(Q.shape[1]))
    led = kicks + gap @ gain.transpose(0, 2, 1) @ spread
    led = np.where(rng.random((*kicks.shape[:2], 1)) < DEFENCE, kicks, led)
    said = guide.log(still + led @ spread.transpose(0, 2, 1), which)
    # The density by which a number is drawn is that of the prior times what is said, divided by what that is on average.
    weight_before, pull_before, level = guide._replace(slopes=np.broadcast_to(np.eye(Q.shape[1]), guide.slopes.shape)).before()
    average = _quadratic(still - constant[:, None], weight_before[which], pull_before[which], level[which])
    return led, -np.logaddexp(np.log(DEFENCE), np.log1p(-DEFENCE) + said - average)


def _quadratic(distance: np.ndarray, weight: np.ndarray, pull: np.ndarray, level: np.ndarray) -> np.ndarray:
    """``level + pull' d - d' weight d / 2`` at distances d (N, particles, n)."""
    curved = np.sum((distance @ weight) * distance, axis=2)
    value: np.ndarray = level[:, None] + np.sum(distance * pull[:, None], axis=2) - 0.5 * curved
    return value


def _ahead(guided: Sequence[Guide], sample: int, z: np.ndarray, which: np.ndarray) -> np.ndarray:
    """What the linearisation says of the rest of the record after a sample, for each particle."""
    if sample + 1 == len(guided):
        return np.zeros(z.shape[:2])
    weight, pull, level = guided[sample + 1].before()
    here = guided[sample]._replace(weight=weight, pull=pull, level=level)
    log = here.log(z - here.at[which][:, None], which)
    log = np.where(np.isnan(log), -np.inf, log)
    return np.maximum(log, log.max(axis=1, keepdims=True) - LEAST)  # type: ignore[no-any-return]


def _resampled(weights: np.ndarray, few: np.ndarray, rng: np.random.Generator | Streams) -> np.ndarray:
    """Indices (N, particles) of particles after systematic resampling of the rows of which few count, by their ``weights``."""
    n, particles = len(few), weights.shape[1]
    chosen = np.tile(np.arange(particles), (n, 1))
    offset = np.arange(len(weights))[:, None]
    rows = np.cumsum(weights, axis=1)
    rows = rows / rows[:, -1:] + offset  # all rows one after the other: one search for all
    own = rng.only(few) if isinstance(rng, Streams) else rng
    arrows = (own.random((len(rows), 1)) + np.arange(particles)) / particles + offset
    found = np.searchsorted(rows.ravel(), arrows.ravel()).reshape(arrows.shape) - particles * offset
    chosen[few] = np.minimum(found, particles - 1)
    return chosen


def _times(rows: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """``rows @ matrices``; NumPy takes several times as long for matrices of one number."""
    product: np.ndarray = rows * matrices if matrices.shape[1:] == (1, 1) else rows @ matrices
    return product


def _blocks(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Matrices (D, n, m) along the diagonal of one."""
    rows, columns = (sum(part.shape[k] for part in parts) for k in (1, 2))
    whole, i, j = np.zeros((len(parts[0]), rows, columns)), 0, 0
    for part in parts:
        whole[:, i : i + part.shape[1], j : j + part.shape[2]] = part
        i, j = i + part.shape[1], j + part.shape[2]
    return whole
