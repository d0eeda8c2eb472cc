"""One random structure compiled once, run on many random points and records, and compared with the reference.

How far a result may be from the reference is measured, not guessed: the reference runs again with every number it is given
and every residual it forms moved by :data:`MOVED` of its size. A difference is divided by what such a move does to the
result; the quotient is the relative error of the *data* that would explain it (a backward error).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.batch_op import BatchRecurrence
from pm_sysid.recurrence.op import Recurrence
from pm_sysid.solve.filter_graph import Problem, RecordData, Unknowns
from pm_sysid.steps.ek import FLOOR, calibration_recurrence, filter_recurrence
from support.fuzz.jets import precision
from support.fuzz.reference import Filter, Result, Values
from support.fuzz.systems import ArrayMath, Structure

#: Relative size of the moves that measure conditioning, and how many are made.
MOVED, MOVES = 1e-12, 4
#: Largest backward error of a value, as a fraction of the data.
BACKWARD = 1e-12
#: Largest error of a gradient beside its largest component (each times the size of its parameter), and of the batch.
GRADIENT, BATCH = 1e-8, 1e-12
#: Log-densities of which a relative move of the data by eps changes this many eps are not compared.
ILL = 1e9
#: Part of what double precision changes in the reference that it may still be wrong by in extended precision (2^-11, and some).
DIGITS = 1e-2
#: Rounding of a square root, as part of its largest entry: what is left of it is compared with the noise of a measurement.
ROOT = 1e-15
#: Beyond this, a double's squares and products may overflow where extended precision goes on.
HUGE = 1e50
#: Step of the finite differences in extended precision, relative.
STEP = 1e-5


class Point(NamedTuple):
    """Parameter sets B and one set of records with measurements (T, n_y) each."""

    values: Values
    records: list[TimeSeries]
    y: list[np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """Largest disagreements on the points of one set of records; NaN where nothing was compared."""

    seed: int
    case: int
    points: int
    backward: float
    batch: float
    gradient: float
    infinite: int
    ill: int
    unresolved: int
    complaints: tuple[str, ...]


class Compiled:
    """Single, batched and differentiated log-likelihood of a structure, as functions of everything.

    The single one and its gradient are the expressions a model is made of. The batch is its kernels alone, with NumPy between
    them: PyTensor would take longer to compile a vectorised expression than the kernels in it. ``interpreted`` structures
    have the single one alone, run by Python.
    """

    def __init__(self, structure: Structure, gradient: bool = True, *, interpreted: bool = False) -> None:
        self.structure, rng = structure, np.random.default_rng([structure.seed, 11])
        example = structure.records(rng)
        self.problem = Problem.build(structure.system, structure.solver, example, structure.free)
        self.form = self.problem.form
        assert self.form.smoothness == structure.smoothness and self.form.block == structure.block
        data = RecordData.symbolic()
        y, unknowns = pt.dmatrix("y"), Unknowns(pt.dvector(), pt.dmatrix(), pt.dmatrix(), pt.dvector(), pt.dvector())
        loglik, _ = self.problem.run(y, unknowns, data)
        mode = Mode(linker="py", optimizer=None) if interpreted else None
        self.single = pytensor.function([y, *unknowns, *data], loglik, on_unused_input="ignore", mode=mode)
        self.kernel: Any = None
        self.calibration: Any = None
        self.gradient: Any = None
        if interpreted:
            return
        self.kernel = _batch_kernel(filter_recurrence(structure.system, self.form))
        if self.problem.calibrated:
            self.calibration = _batch_kernel(calibration_recurrence(structure.system, self.form))
        if gradient:
            rows = pytensor.grad(pt.sum(loglik), list(unknowns), disconnected_inputs="ignore")
            self.gradient = pytensor.function([y, *unknowns, *data], rows, on_unused_input="ignore")

    def batch(self, y: np.ndarray, values: Values, data: RecordData, threads: int = 2) -> np.ndarray:
        """Log-densities (B, T, n_y) of all points in one call."""
        B, n_c, n_y = len(values.params), len(self.structure.chain_states), y.shape[1]
        none, one = np.empty((0, 0, 0)), np.ones

        def run(kernel: Any, edges: np.ndarray, std: np.ndarray, diffusion: np.ndarray, noise: np.ndarray, samples: Any) -> Any:
            params = np.concatenate(
                [values.params, diffusion, noise, np.broadcast_to(data.scale, (B, data.scale.size))], axis=1
            )
            starts = np.broadcast_to(data.starts, (B, *data.starts.shape))
            starts = np.concatenate([values.x0, std, starts], axis=2)
            return kernel(params, starts, none, edges, data.counts, data.substeps, samples, threads)

        diffusion = values.diffusion
        if self.calibration is not None:
            whole = np.array([0, len(y)])
            _, final = run(self.calibration, whole, 0 * values.x0_std, one((B, n_c)), one((B, n_y)), data.samples)
            diffusion = np.sqrt(final[..., -n_c:].sum(axis=1) / max(len(data.substeps), 1) + FLOOR**2)
        samples = np.concatenate([data.samples, y], axis=1)
        return run(self.kernel, np.arange(len(y) + 1), values.x0_std, diffusion, values.noise, samples)[0]

    def points(self, case: int, count: int) -> Point:
        """Random parameters around the structure's own, records, and measurements."""
        s, rng = self.structure, np.random.default_rng([self.structure.seed, 13, case])
        while True:
            records = s.records(rng)
            if s.solver.form(s.system, records, s.free) == self.form:
                break
        n_y, R = len(s.outputs), len(records)
        params = np.array(s.magnitudes) * np.exp(0.3 * rng.normal(size=(count, len(s.magnitudes))))
        wild = rng.random(params.shape) < 0.02
        params = np.where(wild, params * rng.choice([-1.0, 0.0, 30.0], params.shape), params)
        x0 = 0.7 * rng.normal(size=(count, R, s.n_states))
        std = np.zeros_like(x0)
        std[..., list(s.free)] = np.exp(rng.normal(-1.0, 1.0, (count, R, len(s.free))))
        size = float(np.exp(rng.normal(-2.0, 1.0)))
        noise = size * np.exp(0.3 * rng.normal(size=(count, n_y)))
        diffusion = np.exp(rng.normal(0.0, 2.0, (count, len(s.chain_states))))
        y = []
        for r, record in enumerate(records):
            clean = free_run(s, record, params[0], x0[0, r])
            rows = np.where(np.abs(clean) < 1e3, clean, 0.0) + size * rng.normal(size=clean.shape)
            rows[rng.random(rows.shape) < rng.choice([0.0, 0.15, 0.5])] = np.nan
            rows[rng.random(len(rows)) < 0.05] = np.nan
            y.append(rows)
        return Point(Values(params, x0, std, noise, diffusion), records, y)

    def arguments(self, point: Point) -> tuple[np.ndarray, RecordData]:
        """Measurements and record arrays for the compiled functions."""
        return np.concatenate(point.y), self.problem.data(point.records, self.structure.substeps)


def _batch_kernel(recurrence: Recurrence) -> Any:
    tensors = (pt.dmatrix, pt.dtensor3, pt.dtensor3, pt.lvector, pt.lvector, pt.dmatrix, pt.dmatrix, pt.lscalar)
    inputs = [tensor() for tensor in tensors]
    return pytensor.function(inputs, BatchRecurrence(recurrence)(*inputs))


def free_run(s: Structure, record: TimeSeries, p: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Outputs of Euler's method with small steps: measurements that look like the system, no more."""
    rows, t, small = [], record.t[0], 8

    def rate(t: float, x: np.ndarray, u: np.ndarray) -> np.ndarray:
        return np.array(s.dynamics(ArrayMath, t, list(x), list(u), list(p)), float)

    with np.errstate(all="ignore"):
        for k in range(len(record)):
            u = s.input_at(record, k, 0.0, 0)
            rows.append(np.array(s.observe(ArrayMath, record.t[k], list(x), list(rate(t, x, u)), list(u), list(p)), float))
            for i in range(small if k + 1 < len(record) else 0):
                h = record.dt[k] / small
                t = record.t[k] + i * h
                x = x + h * rate(t, x, s.input_at(record, k, i / small, 0))
    return np.array(rows)


def stacked(values: Values, copies: int) -> Values:
    return Values(*(np.concatenate([np.asarray(v, np.longdouble)] * copies) for v in values))


def moved(values: Values, rng: np.random.Generator) -> Values:
    return Values(*(v * (1 + MOVED * rng.choice([-1.0, 1.0], v.shape)) for v in values))


class Truth(NamedTuple):
    """Log-densities (B, T, n_y); what a relative move of the data by one does to them; their own rounding error."""

    loglik: np.ndarray
    change: np.ndarray
    error: np.ndarray
    largest: np.ndarray
    rounding: np.ndarray

    @property
    def doubtful(self) -> np.ndarray:
        """Where, or before where, the result depends on more digits than there are."""
        bad = ~np.isfinite(self.loglik) | ~(self.change < ILL * (np.abs(self.loglik) + 1))
        bad |= ~(self.rounding < 1e-6)[:, None, None]
        bad |= ~(self.error < 1e-3 * (np.abs(self.loglik) + 1)) | ~(self.largest < HUGE)[:, None, None]
        return np.maximum.accumulate(bad.any(axis=2, keepdims=True) | np.zeros_like(bad), axis=1)


def reference(s: Structure, point: Point) -> Truth:
    """The plain filter, how it reacts to moved data, and how it reacts to double precision."""
    B, rng = len(point.values.params), np.random.default_rng(5)
    y = [np.broadcast_to(rows, (B, *rows.shape)) for rows in point.y]
    with precision(np.float64):
        short = Filter(s, point.values).run(point.records, y)
    # Points as they are, and moved ones beside them: NumPy takes as long for five times as many.
    copies = [[rows * (1 + MOVED * rng.choice([-1, 1], rows.shape)) for _ in range(MOVES)] for rows in y]
    y = [np.concatenate([rows, *others]) for rows, others in zip(y, copies, strict=True)]
    beside = moved(stacked(point.values, MOVES), rng)
    values = Values(*(np.concatenate(v) for v in zip(stacked(point.values, 1), beside, strict=True)))
    both = Filter(s, values, rounding=MOVED, still=B).run(point.records, y)
    exact, again = (Result(both.loglik[part], both.largest[part]) for part in (slice(B), slice(B, None)))
    with np.errstate(all="ignore"):
        change = np.abs(again.loglik.reshape(MOVES, B, *exact.loglik.shape[1:]) - exact.loglik).max(axis=0) / MOVED
        error = np.abs(short.loglik - exact.loglik) * DIGITS
    largest = np.fmax(exact.largest, short.largest)
    return Truth(exact.loglik, change, error, largest, ROOT * np.sqrt(largest) / point.values.noise.min(axis=1))


def compare(c: Compiled, case: int, count: int, gradients: int = 1) -> Outcome:
    """Run the points of a case three ways."""
    s, point = c.structure, c.points(case, count)
    y, data = c.arguments(point)
    before = [a.copy() for a in (y, *point.values, *data)]
    single = np.stack([c.single(y, *(v[b] for v in point.values), *data) for b in range(count)])
    batch = single if c.kernel is None else c.batch(y, point.values, data)
    complaints = []
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(before, (y, *point.values, *data), strict=True)):
        complaints.append("an argument was changed")
    truth = reference(s, point)
    want, lost = truth.loglik, truth.doubtful
    for name, got in (("single", single), ("batch", batch)):
        if np.isnan(got).any() or np.isposinf(got).any():
            complaints.append(f"{name} has NaN or +inf")
        if np.any(np.isneginf(got) & ~lost):
            complaints.append(f"{name} is -inf where the reference is finite")
    if not np.array_equal(np.isneginf(single), np.isneginf(batch)):
        complaints.append("single and batch are -inf at different samples")
    fine = np.isfinite(single) & np.isfinite(batch) & ~lost
    with np.errstate(all="ignore"):
        size = truth.change + np.abs(want) + 1
        allowed = truth.error + truth.rounding[:, None, None] * size
        backward = np.where(fine, np.abs(single - want) / size, 0)
        excess = np.where(fine, np.maximum(np.abs(single - want) - allowed, 0) / size, 0)
        apart = np.where(fine, np.maximum(np.abs(single - batch) - allowed, 0) / size, 0)
    if excess.max(initial=0) > BACKWARD:
        complaints.append(f"value: backward error {excess.max():.2g}")
    if apart.max(initial=0) > BATCH:
        complaints.append(f"batch: {apart.max():.2g}")
    worst, unresolved = np.nan, 0
    for b in range(min(gradients, count) if c.gradient is not None else 0):
        if not fine[b].all():
            continue
        error, doubtful = gradient_error(c, point, b, float(np.abs(want[b]).sum()))
        unresolved += doubtful
        worst = np.fmax(worst, error)
    if worst > GRADIENT:
        complaints.append(f"gradient: {worst:.2g}")
    infinite = int(np.isneginf(single).any(axis=(1, 2)).sum())
    ill = int((~fine & np.isfinite(single)).any(axis=(1, 2)).sum())
    largest = (float(a.max(initial=0)) for a in (backward, apart))
    return Outcome(s.seed, case, count, *largest, float(worst), infinite, ill, unresolved, tuple(complaints))


def gradient_error(c: Compiled, point: Point, b: int, size: float) -> tuple[float, int]:
    """Error of the gradient beside its largest component, and whether differences could not tell."""
    s = c.structure
    y, data = c.arguments(point)
    at = Values(*(v[b] for v in point.values))
    rows = c.gradient(y, *at, *data)
    if any(not np.isfinite(r).all() for r in rows):
        return np.inf, 0
    which: list[tuple[int, tuple[int, ...]]] = [(0, i) for i in np.ndindex(at.params.shape)]
    which += [(1, i) for i in np.ndindex(at.x0.shape)]
    which += [(2, i) for i in np.ndindex(at.x0_std.shape) if i[-1] in s.free]
    which += [(3, i) for i in np.ndindex(at.noise.shape)]
    which += [(4, i) for i in np.ndindex(at.diffusion.shape)] if s.diffusion == "fixed" else []
    scale = np.array([max(abs(float(at[g][i])), 0.05) for g, i in which], np.longdouble)
    offsets = np.array([1, -1, 2, -2, 0.5, -0.5], np.longdouble)
    copies = Values(*(np.repeat(np.asarray(v, np.longdouble)[None], len(which) * len(offsets), axis=0) for v in at))
    for n, (g, i) in enumerate(which):
        for k, offset in enumerate(offsets):
            copies[g][(n * len(offsets) + k, *i)] += offset * STEP * scale[n]
    measured = [np.broadcast_to(r, (len(copies.params), *r.shape)) for r in point.y]
    run = Filter(s, copies).run(point.records, measured).loglik
    total = run.sum(axis=(1, 2)).reshape(len(which), len(offsets))
    first = (8 * (total[:, 0] - total[:, 1]) - (total[:, 2] - total[:, 3])) / 12 / STEP
    second = (8 * (total[:, 4] - total[:, 5]) - (total[:, 0] - total[:, 1])) / 6 / STEP
    got = np.array([rows[g][i] for g, i in which]) * scale
    largest = np.abs(second).max() + size + 1
    doubt = np.abs(first - second).max() / largest
    if not doubt < 1e-3 * GRADIENT:
        return np.nan, 1
    return float(np.abs(got - second).max() / largest), 0


def outcomes(c: Compiled, cases: Sequence[int], count: int, gradients: int = 1) -> Iterator[Outcome]:
    for case in cases:
        yield compare(c, case, count, gradients)
