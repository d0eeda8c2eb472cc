"""Batches of particles against single runs: values, gradients, continuation, failures, vectorised models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import join_nonshared_inputs
from pytensor.graph.replace import vectorize_graph

import pm_sysid as sid
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.llvm import batch as backend
from pm_sysid.recurrence.llvm.single import python_gradient_kernel
from pm_sysid.recurrence.op import RecurrenceGradient, interpreted
from support.batches import (
    BATCH,
    CASES,
    NONE,
    PULLED,
    PYTHON,
    Particles,
    assert_close,
    assert_same,
    compiled,
    cotangents,
    filter_case,
    pulled_batch,
    spread,
)
from support.recurrences import ARGUMENTS, COTANGENTS, LINEAR, long_case, pulled

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


def reference(particles: Particles, edges: Sequence[int], g: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Interpreted gradient of each particle alone over its record cut at the last edge."""
    runs, kernel = particles.reached(edges[-1]), python_gradient_kernel(particles.op)
    params, starts = np.zeros_like(particles.params), np.zeros_like(particles.starts)
    for i, (p, x) in enumerate(zip(particles.params, particles.starts, strict=True)):
        g_outputs = np.repeat(g[0][i], np.diff(edges), axis=0)
        params[i], starts[i, :runs] = kernel(p, x[:runs], *particles.until(edges[-1]), g_outputs, g[1][i, :runs])
    return [params, starts]


@pytest.mark.parametrize("name", [pytest.param("duffing", marks=pytest.mark.slow), "rk4", "loops", "chains"])
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
    function = pytensor.function(PULLED, pulled_batch(particles.op, *PULLED), mode=mode)
    for edges in ([0, 400], [0, 1, 63, 64, 65, 200, 400], [0, 130], [100, 250, 400]):
        g, state = cotangents(particles, edges), particles.run([0, edges[0]])[1]
        got = function(particles.params, particles.starts, state, edges, *particles.record, 2, *g)
        assert_close(got, particles.pull(edges, g, state) if edges[0] else reference(particles, edges, g))


def test_interpreted_batches_are_the_compiled_ones() -> None:
    particles, edges = spread(LINEAR, 3), np.array([0, 0, 3, 7])
    g, arguments = cotangents(particles, edges), (particles.params, particles.starts, NONE, edges, *particles.record, 2)
    value = pytensor.function(BATCH, BatchRecurrence(LINEAR.op)(*BATCH), mode=PYTHON)
    gradient = pytensor.function(PULLED, pulled_batch(LINEAR.op, *PULLED), mode=PYTHON)
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


def test_what_no_particle_changes_runs_once() -> None:
    factor, many = pt.dscalar(), pt.dvector()
    outputs = LINEAR.op(*ARGUMENTS)[0]
    graphs = [outputs, pulled(LINEAR.op, *ARGUMENTS, *COTANGENTS)[0]]
    values = vectorize_graph([factor * g for g in graphs], {factor: many})
    function = pytensor.function([many, *ARGUMENTS, *COTANGENTS], [*values, *graphs], mode=PYTHON)
    ones = [np.ones(o.shape) for o in compiled(LINEAR.op)(*LINEAR.arrays)]
    *got, run, slope = function([2.0, -3.0], *LINEAR.arrays, *ones)
    assert_close(got, [np.stack([2.0 * a, -3.0 * a]) for a in (run, slope)])


def test_cotangents_may_have_batch_dimensions_of_their_own() -> None:
    """As in a vectorised Jacobian."""
    outputs = LINEAR.op(*ARGUMENTS)[0][:, 0]
    both = [pytensor.gradient.jacobian(outputs, ARGUMENTS[0], vectorize=v) for v in (True, False)]
    assert_close(*([a] for a in pytensor.function(ARGUMENTS, both, mode=PYTHON)(*LINEAR.arrays)))
    particles, g = spread(LINEAR, 4), np.random.default_rng(0).normal(size=(3, 4, 8, 1))
    params, wide = pt.dmatrix(), pt.dtensor4()
    replaced = {ARGUMENTS[0]: params, COTANGENTS[0]: wide}
    values = vectorize_graph(pulled(LINEAR.op, *ARGUMENTS, *COTANGENTS)[0], replaced)
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


@pytest.mark.parametrize("name", ["duffing", "linear", "loops", "chains"])
def test_runs_of_a_particle_may_have_parameters_of_their_own(name: str) -> None:
    """As single sequences do; from the start, and from a state in the middle of a later run."""
    particles = spread(CASES[name](), 19)
    n_runs = particles.starts.shape[1]
    rng = np.random.default_rng(4)
    params = particles.params[:, None] * (1 + 0.05 * rng.normal(size=(19, n_runs, particles.params.shape[1])))
    inputs, gradients = [pt.dtensor3("params"), *BATCH[1:]], [pt.dtensor3("params"), *PULLED[1:]]
    value = pytensor.function(inputs, BatchRecurrence(particles.op)(*inputs))
    gradient = pytensor.function(gradients, BatchRecurrenceGradient(particles.op)(*gradients))
    rows, single = [pt.dmatrix("p"), *ARGUMENTS[1:]], [pt.dmatrix("p"), *ARGUMENTS[1:], *COTANGENTS]
    one = pytensor.function(rows, particles.op(*rows))
    reverse = pytensor.function(single, RecurrenceGradient(particles.op)(*single))
    edges = particles.every
    sums, final = value(params, particles.starts, NONE, edges, *particles.record, 2)
    g = cotangents(particles, edges)
    pulled_sets = gradient(params, particles.starts, NONE, edges, *particles.record, 2, *g)
    for k in (0, 7, 18):
        arrays = params[k], particles.starts[k], *particles.record
        assert_close([sums[k], final[k]], one(*arrays))
        assert_close([p[k] for p in pulled_sets], reverse(*arrays, g[0][k], g[1][k]), 1e-8)
    middle = int(np.flatnonzero(particles.record[0] < 0)[0]) + 2
    head = value(params, particles.starts, NONE, [0, middle], *particles.record, 2)
    tail = value(params, particles.starts, head[1], [middle, edges[-1]], *particles.record, 2)
    assert_close([head[0][:, 0] + tail[0][:, 0], tail[1]], [sums.sum(axis=1), final])
    ones = [np.ones((19, 1, sums.shape[2])), np.zeros(final.shape)]
    after = gradient(params, particles.starts, head[1], [middle, edges[-1]], *particles.record, 2, *ones)[0]
    assert np.all(after[:, 0] == 0.0) and np.abs(after[:, -1]).max() > 0.0
