"""Batches of particles against single runs: values, gradients, continuation, failures, threads, vector instructions."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import mpmath
import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import join_nonshared_inputs
from pytensor.graph.replace import vectorize_graph
from test_recurrence import ARGUMENTS, COTANGENTS, LINEAR, SYSTEMS, Case, long_case

import pm_sysid as sid
from pm_sysid.backends import batch as backend
from pm_sysid.backends.numba import python_gradient_kernel
from pm_sysid.batch import BatchRecurrence, BatchRecurrenceGradient, default_threads
from pm_sysid.problem import Problem
from pm_sysid.recurrence import Phase, Recurrence, RecurrenceGradient, interpreted
from pm_sysid.scalars import symbols
from pm_sysid.steps.ek import filter_recurrence
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence

BATCH = [t(n) for t, n in zip(
    [pt.dmatrix, pt.dtensor3, pt.dtensor3, pt.lvector, pt.lvector, pt.dmatrix, pt.dmatrix, pt.lscalar],
    ["params", "starts", "state", "edges", "counts", "substeps", "samples", "threads"], strict=True)]  # fmt: skip
PULLED = [*BATCH, pt.dtensor3("g_sums"), pt.dtensor3("g_final")]
PYTHON = pytensor.compile.mode.Mode(linker="py", optimizer="fast_run")
NONE = np.empty((0, 0, 0))


@cache
def compiled(op: Any) -> Any:
    inputs = {Recurrence: ARGUMENTS, BatchRecurrence: BATCH, BatchRecurrenceGradient: PULLED}[type(op)]
    return pytensor.function(inputs, op(*inputs))


class Particles(NamedTuple):
    """Parameter sets and starts of a recurrence, and the record they run over."""

    op: Recurrence
    params: np.ndarray
    starts: np.ndarray
    record: tuple[np.ndarray, ...]

    def run(self, edges: Any, state: np.ndarray = NONE, threads: int = 2) -> Any:
        return compiled(BatchRecurrence(self.op))(self.params, self.starts, state, edges, *self.record, threads)

    def pull(self, edges: Any, g: Sequence[np.ndarray], state: np.ndarray = NONE, threads: int = 2) -> Any:
        return compiled(BatchRecurrenceGradient(self.op))(self.params, self.starts, state, edges, *self.record, threads, *g)

    def pick(self, index: Any) -> Particles:
        return self._replace(params=self.params[index], starts=self.starts[index])

    def until(self, n: int) -> tuple[np.ndarray, ...]:
        counts, substeps, samples = self.record
        return counts[:n], substeps[: np.maximum(counts[:n], 0).sum()], samples[:n]

    def reached(self, n: int) -> int:
        """Number of runs that the first n samples start."""
        return 1 + int(np.sum(self.record[0][:n] < 0))

    @property
    def every(self) -> np.ndarray:
        return np.arange(len(self.record[0]) + 1)

    def singles(self) -> tuple[np.ndarray, np.ndarray]:
        runs = [compiled(self.op)(p, x, *self.record) for p, x in zip(self.params, self.starts, strict=True)]
        return np.stack([r[0] for r in runs]), np.stack([r[1] for r in runs])


def spread(case: Case, n: int) -> Particles:
    """Particles around a case, all different."""
    rng, (params, starts, *record) = np.random.default_rng(0), case.arrays
    around = params * np.exp(0.05 * rng.normal(size=(n, params.size)))
    return Particles(case.op, around, starts * (1 + 0.1 * rng.normal(size=(n, *starts.shape))), tuple(record))


@cache
def filter_case(name: str) -> Case:
    """Three uneven records with missing samples and an uncertain start, order 2."""
    system, values, _, intersample = SYSTEMS[name]
    rng, n_x, records = np.random.default_rng(5), len(system.states), []
    for length in (12, 7, 5):
        t, y = np.cumsum(rng.uniform(0.08, 0.12, length)), rng.normal(0.0, 0.2, length)
        y[length // 2] = np.nan
        records.append(sid.TimeSeries(t, rng.normal(size=length), y, intersample=intersample))
    problem = Problem.build(system, sid.EK1(order=2, diffusion=1.0), records, (0,))
    data = problem.data(records, 2)
    theta = np.concatenate([list(values.values()), [0.7] * len(system.chain_states), [0.1], data.scale])
    starts = np.concatenate([rng.normal(0, 0.3, (3, n_x)), np.full((3, n_x), 0.1), data.starts], axis=1)
    samples = np.concatenate([data.samples, np.concatenate([r.output_matrix for r in records])], axis=1)
    return Case(filter_recurrence(problem.system, problem.form), (theta, starts, data.counts, data.substeps, samples))


@cache
def rk4_case() -> Case:
    system, values, *_ = SYSTEMS["bouc_wen"]
    inputs = rk4_inputs(sid.TimeSeries(np.arange(24) * 0.1, np.sin(np.arange(24)), None, intersample="foh"), 2)
    params = np.array(list(values.values()))
    return Case(rk4_recurrence(system), (params, np.full((1, 3), 0.2), inputs.counts, inputs.substeps, inputs.samples))


CASES = dict(
    duffing=lambda: filter_case("duffing"), bouc_wen=lambda: filter_case("bouc_wen"), rk4=rk4_case, linear=lambda: LINEAR
)


def assert_close(got: Any, want: Any, rtol: float = 1e-10) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b[np.isfinite(b)]).max(initial=0.0))


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "bouc_wen")) for n in CASES])
def test_every_particle_is_a_single_run_wherever_it_lands(name: str) -> None:
    particles, rng = spread(CASES[name](), 33), np.random.default_rng(1)
    first, want = particles.run(particles.every, threads=1), particles.singles()
    assert np.isfinite(want[0]).all() and np.unique(want[0].sum(axis=(1, 2))).size == 33
    assert_close(first, want)
    for n in (1, 7, 8, 9, 15, 16, 17, 33):
        indices = np.arange(n), rng.permutation(33)[:n], rng.integers(0, 33, n), -np.arange(n)
        for threads, index in zip((1, 2, 3, 64), indices, strict=True):
            assert_same(particles.pick(index).run(particles.every, threads=threads), [a[index] for a in first])


@pytest.mark.parametrize("name", ["duffing", "rk4"])
def test_blocks_are_sums_of_samples_and_know_nothing_of_what_follows(name: str) -> None:
    particles = spread(CASES[name](), 9)
    (outputs, final), T = particles.singles(), len(particles.every) - 1
    prefixes = [[0, n // 2, n] for n in (0, 1, 11, 12, 13, 21)]
    for edges in ([0, T], [0, 0, 3, 3, 3, 13, T, T], [0, 12, 12, 19, 20], [0], *prefixes):
        got, n, reached = particles.run(edges), edges[-1], particles.reached(edges[-1])
        want = [outputs[:, a:b].sum(axis=1) for a, b in pairwise(edges)]
        assert_close(got[:1], [np.stack(want, axis=1) if want else np.empty((9, 0, outputs.shape[2]))])
        assert np.isfinite(got[1][:, :reached]).all() and np.isnan(got[1][:, reached:]).all()
        assert_close([got[1][:, : reached - 1]], [final[:, : reached - 1]])
        for poison in (np.nan, np.inf, -1e300):
            starts, (counts, substeps, samples) = particles.starts.copy(), (a.copy() for a in particles.record)
            starts[:, reached:], substeps[len(particles.until(n)[1]) :], samples[n:] = poison, poison, poison
            assert_same(particles._replace(starts=starts, record=(counts, substeps, samples)).run(edges), got)


@pytest.mark.parametrize("name", ["duffing", "linear"])
def test_a_run_goes_on_where_it_ended(name: str) -> None:
    particles = spread(CASES[name](), 10)
    T, (outputs, final) = len(particles.every) - 1, particles.run(particles.every)
    borders = np.flatnonzero(particles.record[0] < 0)
    stops = sorted({0, 1, T - 1, T, *(int(b) + i for b in borders for i in (-1, 0, 1))})
    for a, b in ((a, b) for a in stops for b in stops if a <= b):
        state, parts = NONE, []
        for begin, end in ((0, a), (a, b), (b, T)):
            part, state = particles.run(np.arange(begin, end + 1), state)
            parts.append(part)
            done = particles.reached(end) - 1
            assert_same([state[:, :done]], [final[:, :done]])
            assert np.isfinite(state[:, done]).all() and np.isnan(state[:, done + 1 :]).all()
        assert_close([np.concatenate(parts, axis=1), state], [outputs, final], 1e-12)


def test_strided_arguments_and_shared_starts_are_read_right() -> None:
    particles = spread(filter_case("duffing"), 10)
    particles = particles._replace(starts=particles.starts[:1])
    want = particles._replace(starts=np.tile(particles.starts, (10, 1, 1))).run([0, 7, 24])
    wide = [np.asfortranarray(np.repeat(a, 2, axis=0))[::2] for a in (particles.params, particles.starts, *particles.record)]
    before = [a.copy() for a in wide]
    assert_same(particles.run([0, 7, 24]), want)
    assert_same(Particles(particles.op, *wide[:2], tuple(wide[2:])).run(np.array([0, 0, 7, 7, 24, 24])[::2]), want)
    assert_same(wide, before)


# -- particles that fail ----------------------------------------------------------------------------------------------

#: Parameters of the Duffing filter: m, c, k, k3, diffusion, noise, scales.
BROKEN = [*product(range(6), (np.nan,)), *product(range(1, 6), (np.inf,)), (0, 0.0), (1, -1e155), (2, 1e300), (3, -1e200)]


@pytest.mark.parametrize("begin", range(0, len(BROKEN), 8))
def test_failing_particles_are_minus_infinity_and_leave_their_neighbours_alone(begin: int) -> None:
    healthy, broken = spread(filter_case("duffing"), 21), BROKEN[begin : begin + 8]
    bad, lost = healthy._replace(params=healthy.params.copy(), starts=healthy.starts.copy()), [1, 19]
    bad.starts[1, :, 0], bad.starts[19, :, 1] = np.inf, np.nan
    for row, (column, value) in enumerate(broken, 3):
        bad.params[row, column] = value
        lost.append(row)
    for edges in (healthy.every, [0, 5, 5, 24], [0, 24]):
        (sums, _), (want, _) = bad.run(edges), healthy.run(edges)
        assert not np.isnan(sums).any() and np.isfinite(want).all()
        assert_same([np.delete(sums, lost, axis=0)], [np.delete(want, lost, axis=0)])
        assert np.isneginf(sums[lost][:, -1]).all(), f"{broken}: {sums[lost, -1, 0]}"
    for run in np.split(np.isneginf(bad.run(healthy.every)[0][..., 0]), np.flatnonzero(healthy.record[0] < 0), axis=1):
        assert np.all(run[:, 1:] >= run[:, :-1]), "a failed run came back"


# -- gradients --------------------------------------------------------------------------------------------------------


def cotangents(particles: Particles, edges: Sequence[int]) -> list[np.ndarray]:
    rng, B = np.random.default_rng(9), len(particles.params)
    shapes = (B, len(edges) - 1, particles.op.n_outputs), (B, particles.starts.shape[1], particles.op.n_carry)
    return [rng.normal(size=s) for s in shapes]


def reference(particles: Particles, edges: Sequence[int], g: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Interpreted gradient of each particle alone over its record cut at the last edge."""
    runs, kernel = particles.reached(edges[-1]), python_gradient_kernel(particles.op)
    params, starts = np.zeros_like(particles.params), np.zeros_like(particles.starts)
    for i, (p, x) in enumerate(zip(particles.params, particles.starts, strict=True)):
        g_outputs = np.repeat(g[0][i], np.diff(edges), axis=0)
        params[i], starts[i, :runs] = kernel(p, x[:runs], *particles.until(edges[-1]), g_outputs, g[1][i, :runs])
    return [params, starts]


@pytest.mark.parametrize("name", [pytest.param("duffing", marks=pytest.mark.slow), "rk4"])
def test_gradients_are_those_of_single_runs(name: str) -> None:
    particles, index = spread(CASES[name](), 9), np.random.default_rng(2).permutation(9)
    for edges in (particles.every, [0, 24], [0, 0, 4, 4, 13, 24, 24], [0, 5, 12], [0, 13]):
        g = cotangents(particles, edges)
        got = particles.pull(edges, g)
        assert_close(got, reference(particles, edges, g))
        assert_same(particles.pick(index).pull(edges, [c[index] for c in g], threads=3), [a[index] for a in got])
    shared, tiled = (particles._replace(starts=np.tile(particles.starts[:1], (n, 1, 1))) for n in (1, 9))
    want = tiled.pull([0, 4, 24], [np.repeat(c[:1], 9, axis=0) for c in cotangents(particles, [0, 4, 24])])
    assert_same(shared.pull([0, 4, 24], [c[:1] for c in cotangents(particles, [0, 4, 24])]), want)


@pytest.mark.parametrize("begin", [5, 11, 12, 13, 20])
def test_gradient_of_a_continuation_is_of_that_part_only(begin: int) -> None:
    particles, edges, rng = spread(filter_case("duffing"), 9), [begin, begin, 22, 24], np.random.default_rng(3)
    state, run, g = particles.run([0, begin])[1], particles.reached(begin), cotangents(particles, edges)
    g[1][:, : run - 1] = 0.0
    got, varied = particles.pull(edges, g, state), particles.op.n_params - particles.op.n_constants
    along = rng.normal(size=particles.params.shape) * (np.arange(particles.op.n_params) < varied), rng.normal(size=got[1].shape)

    def value(e: float) -> np.ndarray:
        moved = particles._replace(params=particles.params + e * along[0], starts=particles.starts + e * along[1])
        return sum(np.sum(np.where(c == 0, 0.0, c * r), axis=(1, 2)) for c, r in zip(g, moved.run(edges, state), strict=True))

    slope = (8 * (value(1e-4) - value(-1e-4)) - (value(2e-4) - value(-2e-4))) / 12e-4
    want = np.sum(got[0] * along[0], axis=1) + np.sum(got[1] * along[1], axis=(1, 2))
    np.testing.assert_allclose(want, slope, rtol=1e-6, atol=1e-6 * np.abs(slope).max())
    assert np.all(got[1][:, :run] == 0.0) and np.all(np.any(got[1][:, run:] != 0.0, axis=2))


@pytest.fixture
def small_tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    clear, gradient = interpreted.dispatch(BatchRecurrenceGradient).cache_clear, BatchRecurrenceGradient(LINEAR.op)
    before = backend.numba_batch_gradient(gradient)[1]
    monkeypatch.setattr(backend, "TAPE_BYTES", 1)
    assert backend.numba_batch_gradient(gradient)[1] != before
    clear()
    yield
    clear()


@pytest.mark.parametrize("mode", [None, PYTHON], ids=["compiled", "interpreted"])
def test_gradient_with_a_small_tape_is_the_same(mode: Any, small_tape: None) -> None:
    particles = spread(long_case(3), 9)
    function = pytensor.function(PULLED, BatchRecurrenceGradient(particles.op)(*PULLED), mode=mode)
    for edges in ([0, 400], [0, 1, 63, 64, 65, 200, 400], [0, 130], [100, 250, 400]):
        g, state = cotangents(particles, edges), particles.run([0, edges[0]])[1]
        got = function(particles.params, particles.starts, state, edges, *particles.record, 2, *g)
        assert_close(got, particles.pull(edges, g, state) if edges[0] else reference(particles, edges, g))


def test_interpreted_batches_are_the_compiled_ones() -> None:
    particles, edges = spread(LINEAR, 3), np.array([0, 0, 3, 7])
    g, arguments = cotangents(particles, edges), (particles.params, particles.starts, NONE, edges, *particles.record, 2)
    value = pytensor.function(BATCH, BatchRecurrence(LINEAR.op)(*BATCH), mode=PYTHON)
    gradient = pytensor.function(PULLED, BatchRecurrenceGradient(LINEAR.op)(*PULLED), mode=PYTHON)
    assert_close(value(*arguments), particles.run(edges), 1e-13)
    assert_close(gradient(*arguments, *g), particles.pull(edges, g), 1e-13)


# -- vectorised models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mle", "dynamic"])
def test_vectorised_log_density_and_gradients_are_a_loop_over_points(kind: str) -> None:
    """With the start among the free variables, and shared by all particles."""
    names = dict(states=("q",), inputs=("F",), params=("rate",))
    system = sid.System(lambda t, x, u, p: u.F - p.rate * x.q, observe=lambda t, x, dx, u, p: x.q, **names)
    t, rng = np.arange(15) * 0.2, np.random.default_rng(4)
    record = sid.TimeSeries(t, np.sin(t), np.exp(-t) + 0.1 * rng.normal(size=15), intersample="foh")
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""), pm.Model() as model:
        rate, noise = pm.LogNormal("rate", 0.0, 0.3), pm.HalfNormal("noise", 0.2)
        start = pm.Normal("start", 1.0, 0.2) if kind == "mle" else 1.0
        solver = sid.EK1(order=1, diffusion=kind)
        sid.ODEFilter("y", system, record, dict(rate=rate), noise=noise, x0=dict(q=start), solver=solver, substeps=2)
    (logp,), joined = join_nonshared_inputs(model.initial_point(), [model.logp()], model.value_vars)
    gradient, inputs, outputs = pytensor.grad(logp, joined), [], []
    for n in (1, 2):
        inputs.append(points := pt.tensor(f"points{n}", shape=(None,) * (n + 1), dtype="float64"))
        values, gradients = vectorize_graph([logp, gradient], {joined: points})
        outputs += [values, gradients, pytensor.grad(values.sum(), points)]
    function = pytensor.function(inputs, outputs, mode=PYTHON)
    assert any(isinstance(n.op, BatchRecurrenceGradient) for n in function.maker.fgraph.apply_nodes)
    each = pytensor.function([joined], [logp, gradient], mode=PYTHON)
    at = rng.normal(0.0, 0.2, (3, 4, len(model.value_vars)))
    flat = at.reshape(12, -1)
    want = [np.array(w) for w in zip(*(each(x) for x in flat), strict=True)]
    assert_close(function(flat, at), [*want, want[1], want[0].reshape(3, 4), *[want[1].reshape(at.shape)] * 2], 1e-9)


def test_a_batch_may_be_of_parameters_of_starts_or_of_the_record() -> None:
    particles, outputs = spread(LINEAR, 4), LINEAR.op(*ARGUMENTS)[0]
    several = dict(zip(ARGUMENTS, [pt.dmatrix(), pt.dtensor3(), None, pt.dtensor3(), pt.dtensor3()], strict=True))
    stacked = [particles.params, particles.starts, *(np.stack([a] * 4) for a in particles.record)]
    stacked[3] *= np.array([1.0, 2.0, -1.0, 0.5])[:, None, None]
    for batched in ((0,), (1,), (0, 1), (3,), (0, 3), (1, 3)):
        inputs = [several[v] if i in batched else v for i, v in enumerate(ARGUMENTS)]
        values = vectorize_graph(outputs, {ARGUMENTS[i]: several[ARGUMENTS[i]] for i in batched})
        function = pytensor.function(inputs, values, mode=PYTHON)
        rows = [[a[k if i in batched else 0] for i, a in enumerate(stacked)] for k in range(4)]
        got = function(*(a if i in batched else a[0] for i, a in enumerate(stacked)))
        assert_close([got], [np.stack([compiled(LINEAR.op)(*row)[0] for row in rows])])


def test_cotangents_may_have_batch_dimensions_of_their_own() -> None:
    """As in a vectorised Jacobian."""
    outputs = LINEAR.op(*ARGUMENTS)[0][:, 0]
    both = [pytensor.gradient.jacobian(outputs, ARGUMENTS[0], vectorize=v) for v in (True, False)]
    assert_close(*([a] for a in pytensor.function(ARGUMENTS, both, mode=PYTHON)(*LINEAR.arrays)))
    particles, g = spread(LINEAR, 4), np.random.default_rng(0).normal(size=(3, 4, 8, 1))
    params, wide = pt.dmatrix(), pt.dtensor4()
    replaced = {ARGUMENTS[0]: params, COTANGENTS[0]: wide}
    values = vectorize_graph(RecurrenceGradient(LINEAR.op)(*ARGUMENTS, *COTANGENTS)[0], replaced)
    function = pytensor.function([params, *ARGUMENTS[1:], wide, COTANGENTS[1]], values, mode=PYTHON)
    shared = particles._replace(starts=LINEAR.arrays[1][None])
    want = np.stack([shared.pull(shared.every, [c, np.zeros((4, 3, 2))])[0] for c in g])
    assert_close([function(particles.params, *LINEAR.arrays[1:], g, np.zeros((3, 2)))], [want])


def test_gradient_has_the_shape_of_shared_starts() -> None:
    particles = spread(LINEAR, 5)
    shared = particles._replace(starts=particles.starts[:1])
    gradients = pytensor.grad(BatchRecurrence(LINEAR.op)(*BATCH)[0].sum(), BATCH[:2])
    function = pytensor.function(BATCH, gradients, mode=PYTHON)
    got = function(shared.params, shared.starts, NONE, [0, 8], *shared.record, 2)
    g_params, g_starts = shared.pull([0, 8], [np.ones((5, 1, 1)), np.zeros((5, 3, 2))])
    assert_close(got, [g_params, g_starts.sum(axis=0, keepdims=True)])


# -- operations -------------------------------------------------------------------------------------------------------

GRID = (-np.inf, -700.5, -2.5, -1.0, -0.3, -5e-324, -0.0, 0.0, 1e-310, 0.3, 1.0, 2.0, 7.0, 1e200, np.inf, np.nan)
UNARY = [
    psb.exp, psb.expm1, psb.log, psb.log1p, psb.log2, psb.log10, psb.sqrt, psb.sqr, psb.reciprocal, psb.neg, psb.abs,
    psb.sign, psb.floor, psb.ceil, psb.trunc, psb.sin, psb.cos, psb.tan, psb.arcsin, psb.arccos, psb.arctan, psb.sinh,
    psb.cosh, psb.tanh, psb.arcsinh, psb.arccosh, psb.arctanh, psm.erf, psm.erfc, psm.gammaln, psm.sigmoid, psm.softplus,
    psb.identity, psb.isnan, psb.isinf, lambda a: psb.invert(a > 0.5), lambda a: psb.clip(a, -1.0, 2.0),
]  # fmt: skip
BINARY = [
    psb.add, psb.mul, psb.sub, psb.true_div, psb.maximum, psb.minimum, psb.mod, psb.int_div, psb.second, psb.arctan2,
    psb.pow, psb.lt, psb.gt, psb.le, psb.ge, psb.eq, psb.neq, lambda a, b: psb.switch(a, b, -1.0),
    lambda a, b: psb.and_(a > 0.0, b > 0.0), lambda a, b: psb.or_(a > 0.0, b > 0.0), lambda a, b: psb.xor(a > 0.0, b > 0.0),
    lambda a, b: psb.switch(psb.isnan(a), psb.lt(b, 1.0), psb.add(b, psb.gt(a, 0.0), psb.gt(b, 0.0))),
]  # fmt: skip


def functions_of(x: Any, *functions: Callable[..., Any]) -> Particles:
    """Functions of the two entries (B, 2) of the start as outputs."""
    v = symbols("x", 2)
    phases = Phase.build([], [], v, v), Phase.build(v, [], [], v), Phase.build(v, [], [], [*v, *(f(*v) for f in functions)])
    record = np.zeros(1, int), np.empty((0, 0)), np.empty((1, 0))
    return Particles(Recurrence(*phases, n_carry=2, n_params=0), np.empty((len(x), 0)), np.array(x)[:, None], record)


def test_every_operation_on_vectors_is_the_one_on_numbers() -> None:
    particles = functions_of([*product(GRID, GRID)], *(lambda a, b, f=f: f(a) for f in UNARY), *BINARY)
    got, want = particles.run([0, 1])[0][:, 0], particles.singles()[0][:, 0]
    for a, b, f in zip(got.T, want.T, UNARY + BINARY, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14, atol=0, err_msg=str(f))


def elementary(x: Any) -> np.ndarray:
    functions = (lambda a, b, f=f: f(a) for f in (psb.exp, psb.log, psb.tanh))
    return functions_of(np.stack([x, x], axis=1), *functions).run([0, 1])[0][:, 0].T


RNG, SIGN = np.random.default_rng(1), np.tile([-1.0, 1.0], 300)
POINTS = {
    ("exp", "wide"): RNG.uniform(-708, 709, 600), ("exp", "near 0"): SIGN * 10 ** RNG.uniform(-323, 0, 600),
    ("exp", "subnormal"): RNG.uniform(-745, -708, 600), ("exp", "largest"): np.linspace(709.4, 709.782712893384, 600),
    ("exp", "smallest"): np.linspace(-745.133, -744, 600), ("exp", "n ln 2"): np.log(2) * (np.arange(600) - 300.5),
    ("log", "wide"): 10 ** RNG.uniform(-307, 308, 600), ("log", "near 1"): 1 + SIGN * 10 ** RNG.uniform(-16, -0.5, 600),
    ("log", "subnormal"): 10 ** RNG.uniform(-323, -308, 600), ("log", "sqrt 2"): 2**0.5 + SIGN / 2 ** RNG.uniform(6, 52, 600),
    ("tanh", "wide"): RNG.uniform(-20, 20, 600), ("tanh", "near 0"): SIGN * 10 ** RNG.uniform(-323, 0, 600),
    ("tanh", "large"): SIGN * 10 ** RNG.uniform(1, 308, 600),
}  # fmt: skip


@pytest.mark.parametrize("name, where", POINTS)
def test_elementary_functions_are_accurate_to_four_units(name: str, where: str) -> None:
    got = elementary(at := POINTS[name, where])[("exp", "log", "tanh").index(name)]
    with mpmath.workprec(200):
        exact = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in at]
        errors = [abs(float(e - mpmath.mpf(float(g)))) / np.spacing(abs(float(e))) for g, e in zip(got, exact, strict=True)]
    assert max(errors) <= 4.0, f"at {at[np.argmax(errors)]!r}: {got[np.argmax(errors)]!r}"


def test_elementary_functions_of_special_values() -> None:
    x = [0.0, -0.0, np.inf, -np.inf, np.nan, 709.79, 1e308, -745.14, -1e308, -1.0, -5e-324, 5e-324, 1.0]
    inf, nan, e, tanh, log = np.inf, np.nan, math.e, math.tanh(1), math.log
    exps = [1, 1, inf, 0, nan, inf, inf, 0, 0, 1 / e, 1, 1, e]
    logs = [-inf, -inf, inf, nan, nan, log(709.79), log(1e308), nan, nan, nan, nan, log(5e-324), 0]
    tanhs = [0, 0, 1, -1, nan, 1, 1, -1, -1, -tanh, -5e-324, 5e-324, tanh]
    np.testing.assert_allclose(elementary(x), [exps, logs, tanhs], rtol=1e-15, atol=0)


# -- instructions -----------------------------------------------------------------------------------------------------


def test_a_step_is_instructions_on_vectors() -> None:
    particles = spread(filter_case("duffing"), 8)
    kernel = backend.numba_batch(BatchRecurrence(particles.op))[0]

    @numba.njit
    def outer(*args: Any) -> Any:
        return kernel(*args)

    outer(particles.params, particles.starts, NONE, np.array([0, 24]), *particles.record, np.array(1))
    llvm, assembly = ("\n".join(f().values()) for f in (outer.inspect_llvm, outer.inspect_asm))
    vector, scalar = (
        len(re.findall(rf" = (?:tail )?(?:f(?:add|sub|mul|div|neg)|call) [a-z ]*{kind}", llvm))
        for kind in ("<8 x double>", "double")
    )
    assert vector > 300 and scalar < 0.02 * vector
    if platform.machine() in ("x86_64", "AMD64"):
        arithmetic = r"\b(?:v?(?:add|sub|mul|div|sqrt)|vfn?m(?:add|sub)\d*)"
        packed, alone = (len(re.findall(rf"{arithmetic}{kind}\b", assembly)) for kind in ("pd", "sd"))
        assert packed > 300 and alone < 0.02 * packed
        assert re.search(r"\bv?mulpd\b", assembly) and re.search(r"\bv?sqrtpd\b", assembly)


# -- threads and processes --------------------------------------------------------------------------------------------


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process beside this file."""
    given = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | environment
    options = dict(capture_output=True, text=True, env=given, cwd=Path(__file__).parent, timeout=300)
    return subprocess.run([sys.executable, "-c", code], **options)


@pytest.mark.parametrize(
    "own, common, expected",
    [("3", "5", 3), ("", " 5,2 ", 5), ("0", "1", "PM_SYSID_NUM_THREADS is '0'; give a positive number"),
     ("two", "1", "PM_SYSID_NUM_THREADS is 'two'"), ("\u00b2", "1", "PM_SYSID_NUM_THREADS is '\u00b2'"),
     ("", "-1", "OMP_NUM_THREADS is '-1'"), ("", "1.5", "OMP_NUM_THREADS is '1.5'")],
)  # fmt: skip
def test_environment_sets_the_threads(own: str, common: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PM_SYSID_NUM_THREADS", own)
    monkeypatch.setenv("OMP_NUM_THREADS", common)
    if isinstance(expected, int):
        assert default_threads() == expected
    else:
        with pytest.raises(ValueError, match=expected):
            default_threads()


def test_set_threads_returns_what_was_in_force() -> None:
    before = sid.set_threads(3)
    try:
        assert sid.set_threads(np.int64(5)) == 3 and sid.set_threads() == 5 and sid.set_threads(2) == default_threads()
        for wrong in (0, -1, 1.5, True, "2"):
            with pytest.raises(ValueError, match="give a positive integer, or None for the default"):
                sid.set_threads(wrong)
    finally:
        assert sid.set_threads(before) == 2


def long_linear(n: int, length: int) -> Particles:
    rng = np.random.default_rng(0)
    record = np.ones(length, int), rng.normal(size=(length, 1)), np.empty((length, 0))
    return Particles(LINEAR.op, rng.uniform(0.1, 0.9, (n, 2)), rng.normal(size=(n, 1, 2)), record)


def test_work_is_shared_out_over_the_threads() -> None:
    particles, shares = long_linear(4096, 50_000), []
    for threads in (1, 4):
        particles.run([0, 10], threads=threads)
        begin = np.array([time.thread_time(), time.process_time()])
        particles.run([0, 50_000], threads=threads)
        own, everything = np.array([time.thread_time(), time.process_time()]) - begin
        shares.append(own / everything)
    assert shares[0] > 0.9 and shares[1] < 0.8


def test_calls_from_several_threads_at_once() -> None:
    particles = long_linear(50, 500)
    arguments = particles.params, particles.starts, NONE, [0, 100, 500], *particles.record, 3
    function = compiled(BatchRecurrence(LINEAR.op))
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda f: [f(*arguments) for _ in range(30)], [function.copy() for _ in range(4)])
        for got in (r for each in results for r in each):
            assert_same(got, function(*arguments))


def run_pickled(payload: bytes, arguments: Any) -> Any:
    return pickle.loads(payload)(*arguments)


def test_a_spawned_process_runs_a_pickled_function() -> None:
    particles = long_linear(20, 50)
    arguments = particles.params, particles.starts, NONE, [0, 10, 50], *particles.record, 3
    function = compiled(BatchRecurrence(LINEAR.op))
    assert_same(run_pickled(pickle.dumps(function), arguments), function(*arguments))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert_same(pool.apply(run_pickled, (cloudpickle.dumps(function), arguments)), function(*arguments))


FRESH = """
import os, resource, numpy as np, pm_sysid
from test_batch import long_linear
print(pm_sysid.set_threads(1))
particles = long_linear(64, 100_000)
short, g = particles._replace(record=particles.until(1000)), [np.ones((64, 1, 1)), np.ones((64, 1, 2))]
short.run([0, 1000], threads=1), short.pull([0, 1000], g, threads=1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 40 * 2**20, -1))
print(*(np.isfinite(r[0]).all() for r in (particles.run([0, 100_000], threads=1), particles.pull([0, 100_000], g, threads=1))))
try:
    particles.run(particles.every, threads=1)
except MemoryError:
    print("stored")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
want = short.run([0, 1000], threads=4)[0], short.pull([0, 1000], g, threads=4)[0]
child = os.fork()
if child == 0:
    again = [(short.run([0, 1000], threads=t)[0], short.pull([0, 1000], g, threads=t)[0]) for t in (4, 1, 3)]
    os._exit(0 if all(np.array_equal(a, b) for pair in again for a, b in zip(pair, want)) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_fresh_process_obeys_its_environment_stores_no_trajectory_and_forks() -> None:
    """A trajectory of all particles would take 51 MB; 40 MB are to be had beyond what a run of 1000 samples takes."""
    result = python(FRESH, PM_SYSID_NUM_THREADS="3", OMP_NUM_THREADS="5")
    assert result.stdout.split() == ["3", "True", "True", "stored", "0"], result.stderr


def test_a_wrong_environment_is_named_at_import() -> None:
    assert "PM_SYSID_NUM_THREADS is 'none'; give a positive" in python("import pm_sysid", PM_SYSID_NUM_THREADS="none").stderr


# -- shapes -----------------------------------------------------------------------------------------------------------

#: Which argument, what in its place, and the message; five particles of LINEAR with the edges [0, 8].
WRONG: dict[str, list[tuple[int, Any]]] = {
    "wrong number of columns": [(0, (5, 1)), (0, (5, 3)), (1, (5, 3, 3)), (5, (7, 2)), (6, (8, 1))],
    "starts are for another number": [(1, (0, 3, 2)), (1, (4, 3, 2)), (1, (6, 3, 2))],
    "counts do not match": [(1, (5, 2, 2)), (4, [*LINEAR.arrays[2], 0]), (5, (6, 1)), (6, (7, 0))],
    "edges must lie within": [(3, []), (3, [-1, 8]), (3, [0, 9])],
    "edges must not decrease": [(3, [0, 5, 4, 8]), (3, [0, 90, 8])],
    "needs the final state": [(3, [1, 8]), (2, (4, 3, 2)), (2, (5, 2, 2)), (2, (5, 3, 3)), (2, (1, 3, 2))],
    "cotangents do not fit": [(8, (5, 2, 1)), (8, (5, 1, 2)), (8, (5, 1, 0)), (8, (3, 1, 1)), (8, (0, 1, 1)),
                              (9, (5, 2, 2)), (9, (5, 3, 3)), (9, (5, 3, 1)), (9, (3, 3, 2))],
}  # fmt: skip


@pytest.mark.parametrize("message, place, value", [(m, *w) for m, wrong in WRONG.items() for w in wrong])
def test_shapes_that_do_not_fit_are_refused(message: str, place: int, value: Any) -> None:
    particles = spread(LINEAR, 5)
    arguments = [particles.params, particles.starts, NONE, [0, 8], *particles.record, 2, np.ones((5, 1, 1)), np.ones((5, 3, 2))]
    if place == 2:
        arguments[3] = [2, 8]
    arguments[place] = np.ones(value) if isinstance(value, tuple) else np.array(value, dtype=int)
    for op, given in ((BatchRecurrence, arguments[:8]), (BatchRecurrenceGradient, arguments)):
        if place < len(given):
            with pytest.raises(ValueError, match=message):
                compiled(op(LINEAR.op))(*given)


def test_no_particles_have_no_results_and_shapes_are_known_without_running() -> None:
    shapes = pytensor.function(BATCH, [s for o in BatchRecurrence(LINEAR.op)(*BATCH) for s in o.shape], mode=PYTHON)
    assert not any(isinstance(n.op, BatchRecurrence) for n in shapes.maker.fgraph.apply_nodes)
    for n in (0, 5):
        some = spread(LINEAR, 5).pick(slice(0, n))
        assert [int(s) for s in shapes(some.params, some.starts, NONE, [0, 3, 8], *some.record, 2)] == [n, 2, 1, n, 3, 2]
        for each in (some, some._replace(starts=np.ones((1, 3, 2)))):
            assert [a.shape for a in each.run([0, 3, 8])] == [(n, 2, 1), (n, 3, 2)]
            assert [a.shape for a in each.pull([0, 3, 8], cotangents(some, [0, 3, 8]))] == [(n, 2), (n, 3, 2)]


# -- rewrites ---------------------------------------------------------------------------------------------------------


def test_a_sum_over_time_moves_inside_the_batch() -> None:
    sums, final = BatchRecurrence(LINEAR.op)(*BATCH)
    for total in (sums.sum(axis=1), sums[:, :, 0].sum(axis=1), sums[:, :, :1].sum(axis=(1, 2))):
        function = pytensor.function(BATCH, [total, final], mode=PYTHON.including("specialize"))
        (node,) = [n for n in function.maker.fgraph.apply_nodes if isinstance(n.op, BatchRecurrence)]
        assert node.inputs[3].type.shape == (2,)
    function = pytensor.function(BATCH, [sums.sum(axis=1), sums], mode=PYTHON.including("specialize"))
    assert [n.inputs[3].type.shape for n in function.maker.fgraph.apply_nodes if isinstance(n.op, BatchRecurrence)] == [(None,)]
