"""The recurrence Op: compiled kernels against the interpreted ones, several runs in one call, pickling, caching."""

from __future__ import annotations

import contextlib
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pm_sysid.models import duffing
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.llvm import single as backend
from pm_sysid.recurrence.op import Phase, Recurrence, RecurrenceGradient
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.solve.options import EK1
from pm_sysid.solve.simulate import simulate
from pm_sysid.steps.ek import calibration_recurrence, filter_recurrence
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence
from pm_sysid.symbolic.scalars import add, mul, switch, symbols
from pm_sysid.symbolic.system import System
from support.recurrences import ARGUMENTS, COTANGENTS, LINEAR, SYSTEMS, Case, by_hand, filter_case, linear, long_case, pulled


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {name: filter_case(name, runs=3 if name == "duffing" else 2) for name in SYSTEMS}


@pytest.fixture(scope="module")
def compiled(cases: dict[str, Case]) -> dict[str, Any]:
    return {name: pytensor.function(ARGUMENTS, case.op(*ARGUMENTS)) for name, case in cases.items()}


@pytest.fixture(scope="module")
def gradients(cases: dict[str, Case]) -> dict[str, Any]:
    inputs = [*ARGUMENTS, *COTANGENTS]
    return {n: pytensor.function(inputs, pulled(case.op, *inputs)) for n, case in cases.items()}


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_compiled_values_equal_the_interpreted_ones(name: str, cases: Any, compiled: Any) -> None:
    outputs, final = compiled[name](*cases[name].arrays)
    expected = backend.python_kernel(cases[name].op)(*cases[name].arrays)
    assert np.isfinite(expected[0]).all() and np.ptp(expected[0]) > 0.1
    np.testing.assert_allclose(outputs, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(final, expected[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SYSTEMS)
def test_compiled_gradients_equal_the_interpreted_ones(name: str, cases: Any, gradients: Any) -> None:
    arguments = [*cases[name].arrays, *cases[name].cotangents()]
    expected = backend.python_gradient_kernel(cases[name].op)(*arguments)
    for got, want in zip(gradients[name](*arguments), expected, strict=True):
        assert np.isfinite(want).all() and np.abs(want).max() > 0.1
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * np.abs(want).max())


@pytest.mark.parametrize("name", ["duffing", "two_masses"])
def test_gradients_equal_differences_of_the_values(name: str, cases: Any, compiled: Any, gradients: Any) -> None:
    case = cases[name]
    cotangents = case.cotangents()
    pulled = gradients[name](*case.arrays, *cotangents)
    rng = np.random.default_rng(0)
    varied = case.op.n_params - case.op.n_constants
    along_params = np.where(np.arange(case.op.n_params) < varied, rng.normal(size=case.op.n_params), 0.0)
    along_starts = rng.normal(size=case.arrays[1].shape)

    def value(e: float) -> float:
        arrays = (case.arrays[0] + e * along_params, case.arrays[1] + e * along_starts, *case.arrays[2:])
        return sum(float(np.sum(o * c)) for o, c in zip(compiled[name](*arrays), cotangents, strict=True))

    h = 1e-4
    slope = (8 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12 * h)
    assert pulled[0] @ along_params + np.sum(pulled[1] * along_starts) == pytest.approx(slope, rel=1e-7)


def differences(case: Case, cotangents: Sequence[np.ndarray], varied: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the interpreted kernel by parameters and starts, and central differences of its values."""
    kernel, arrays = backend.python_kernel(case.op), case.arrays
    pulled = backend.python_gradient_kernel(case.op)(*arrays, *cotangents)

    def value(params: np.ndarray, starts: np.ndarray) -> float:
        results = kernel(params, starts, *arrays[2:])
        return sum(float(np.sum(o * c)) for o, c in zip(results, cotangents, strict=True))

    expected = []
    for i in range(varied + arrays[1].size):
        both = np.concatenate([arrays[0], arrays[1].ravel()])
        step = np.eye(both.size)[i if i < varied else i - varied + arrays[0].size] * 1e-5
        ends = [np.split(both + k * step, [arrays[0].size]) for k in (1, -1, 2, -2)]
        v = [value(p, x.reshape(arrays[1].shape)) for p, x in ends]
        expected.append((8 * (v[0] - v[1]) - (v[2] - v[3])) / 12e-5)
    return np.concatenate([pulled[0][:varied], pulled[1].ravel()]), np.array(expected)


@pytest.mark.parametrize("intersample, order", [("zoh", 4), ("foh", 5), ("bl", 3)])
def test_gradient_of_the_calibration_equals_differences(intersample: Any, order: int) -> None:
    """Samples hand most of the carry on unchanged, and make the jumps of the rest from it."""
    t = np.arange(12) * 0.15
    record = TimeSeries(t, 3 * np.random.default_rng(0).normal(size=12), 0 * t, intersample=intersample)
    problem = Problem.build(duffing(), EK1(order=order), [record])
    data = problem.data([record], 1)
    params = np.concatenate([[1.0, 0.3, 4.0, 1.5, 1.0, 1.0], data.scale])
    starts = np.concatenate([[[0.5, -0.3, 0.0, 0.0]], data.starts], axis=1)
    case = Case(
        calibration_recurrence(problem.system, problem.form), (params, starts, data.counts, data.substeps, data.samples)
    )
    total = backend.python_kernel(case.op)(*case.arrays)[1][0, -1]
    cotangents = np.zeros((12, 0)), np.eye(1, case.op.n_carry, case.op.n_carry - 1) / total
    got, expected = differences(case, cotangents, 4)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_gradient_in_blocks_with_chains_that_feed_each_other_equals_differences() -> None:
    system = System(
        lambda t, x, u, p: (x.v, u.F * (1 + x.r) - p.k * x.z - p.c * x.v, p.a * u.F * x.z - x.r),
        states=("z", "v", "r"),
        inputs=("F",),
        params=("k", "c", "a"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    t, rng = np.arange(8) * 0.1, np.random.default_rng(1)
    record = TimeSeries(t, rng.normal(size=8), 0.3 * np.sin(2 * t), intersample="zoh")
    problem = Problem.build(system, EK1(order=2, diffusion=1.0, covariance="block"), [record])
    data = problem.data([record], 2)
    params = np.concatenate([[4.0, 0.3, 0.5, 0.7, 0.7, 0.1], data.scale])
    starts = np.concatenate([[[0.1, -0.3, 0.2, 0.0, 0.0, 0.0]], data.starts], axis=1)
    samples = np.concatenate([data.samples, record.output_matrix], axis=1)
    case = Case(filter_recurrence(system, problem.form), (params, starts, data.counts, data.substeps, samples))
    got, expected = differences(case, (np.ones((8, 1)), np.zeros((1, case.op.n_carry))), 6)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("output", ["innovations", "draw", "moments"])
def test_other_outputs_are_the_same_compiled_and_interpreted(output: str) -> None:
    case = filter_case("duffing", output)
    arrays = [np.nan_to_num(a, nan=0.3) if output == "draw" else a for a in case.arrays]
    got = pytensor.function(ARGUMENTS, case.op(*ARGUMENTS))(*arrays)
    want = backend.python_kernel(case.op)(*arrays)
    assert np.isfinite(want[0]).mean() > 0.8
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12, atol=1e-12)


def test_counted_conditions_are_the_same_compiled_and_interpreted() -> None:
    (x,), (u,) = symbols("x", 1), symbols("u", 1)
    positive = [x > -1.0, x > 0.0, x > 1.0]
    counted = add(*positive)
    outputs = [counted, mul(2.0, counted), switch(positive[0], counted, -5.0)]
    op = Recurrence(
        Phase.build([], [], [u], [u]),
        Phase.build([x], [], [], [add(x, 0.7)]),
        Phase.build([x], [], [], [x, *outputs]),
        n_carry=1,
        n_params=0,
    )
    arrays = (np.empty(0), np.array([[-1.5]]), np.array([0, 1, 1, 1, 1, 1]), np.empty((5, 0)), np.empty((6, 0)))
    np.testing.assert_array_equal(
        pytensor.function(ARGUMENTS, op(*ARGUMENTS))(*arrays)[0], backend.python_kernel(op)(*arrays)[0]
    )


# -- several runs -----------------------------------------------------------------------------------------------------


def test_loop_counts_substeps_and_runs_as_written_by_hand() -> None:
    outputs, final = backend.python_kernel(LINEAR.op)(*LINEAR.arrays)
    expected = by_hand(LINEAR)
    np.testing.assert_allclose(outputs, expected[0], rtol=1e-15)
    np.testing.assert_allclose(final, expected[1], rtol=1e-15)


def test_several_runs_are_the_single_ones_behind_each_other(cases: Any, compiled: Any) -> None:
    params, starts, counts, substeps, samples = cases["duffing"].arrays
    outputs, final = compiled["duffing"](params, starts, counts, substeps, samples)
    borders = [0, *np.flatnonzero(counts < 0), len(counts)]
    taken, parts, ends = 0, [], []
    for r, (begin, end) in enumerate(pairwise(borders)):
        own = np.maximum(counts[begin:end], 0)
        rows = slice(taken, taken + own.sum())
        taken = rows.stop
        part, last = compiled["duffing"](params, starts[r : r + 1], own, substeps[rows], samples[begin:end])
        parts.append(part)
        ends.append(last)
    assert len(parts) == 3
    np.testing.assert_array_equal(outputs, np.concatenate(parts))
    np.testing.assert_array_equal(final, np.concatenate(ends))


def test_cotangents_of_a_run_do_not_reach_the_others(cases: Any, gradients: Any) -> None:
    case = cases["duffing"]
    g_outputs, g_final = case.cotangents()
    second = np.flatnonzero(case.arrays[2] < 0)
    g_outputs[: second[0]] = 0.0
    g_outputs[second[1] :] = 0.0
    g_final[[0, 2]] = 0.0
    g_starts = gradients["duffing"](*case.arrays, g_outputs, g_final)[1]
    assert np.all(g_starts[[0, 2]] == 0.0) and np.any(g_starts[1] != 0.0)


# -- bounded memory ---------------------------------------------------------------------------------------------------


@pytest.fixture
def small_tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Force blocks: a tape of 64 carries, the least the kernel takes."""
    monkeypatch.setattr(backend, "TAPE_BYTES", 1)
    backend.python_gradient_kernel.cache_clear()
    yield
    backend.python_gradient_kernel.cache_clear()


@pytest.mark.parametrize("substeps", [1, 3, 100])
def test_interpreted_gradient_is_the_same_with_a_small_tape(substeps: int, request: Any) -> None:
    case = long_case(substeps)
    arguments = [*case.arrays, *case.cotangents()]
    full = backend.python_gradient_kernel(case.op)(*arguments)
    whole = backend.gradient_source(case.op)
    request.getfixturevalue("small_tape")
    assert backend.gradient_source(case.op) != whole
    blocks = backend.python_gradient_kernel(case.op)(*arguments)
    for a, b in zip(blocks, full, strict=True):
        assert np.abs(b).max() > 0.1
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_compiled_gradient_is_the_same_with_a_small_tape(request: Any) -> None:
    case = long_case()
    inputs = [*ARGUMENTS, *COTANGENTS]
    arguments = [*case.arrays, *case.cotangents()]
    full = backend.python_gradient_kernel(case.op)(*arguments)
    request.getfixturevalue("small_tape")
    blocks = pytensor.function(inputs, pulled(case.op, *inputs))(*arguments)
    for a, b in zip(blocks, full, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_tape_size_is_part_of_the_cache_key(request: Any) -> None:
    before = backend.numba_recurrence_gradient(RecurrenceGradient(LINEAR.op))[1]
    request.getfixturevalue("small_tape")
    assert backend.numba_recurrence_gradient(RecurrenceGradient(LINEAR.op))[1] != before


# -- checks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def linear_functions() -> tuple[Any, Any]:
    inputs = [*ARGUMENTS, *COTANGENTS]
    value = pytensor.function(ARGUMENTS, LINEAR.op(*ARGUMENTS))
    return value, pytensor.function(inputs, pulled(LINEAR.op, *inputs))


@pytest.mark.parametrize(
    "change",
    [
        lambda p, x, n, u, y: (p, x, n, u[:-1], y),
        lambda p, x, n, u, y: (p, x, n, np.concatenate([u, u]), y),
        lambda p, x, n, u, y: (p, x[:-1], n, u, y),
        lambda p, x, n, u, y: (p, np.concatenate([x, x]), n, u, y),
        lambda p, x, n, u, y: (p, x, n, u, y[:-1]),
        lambda p, x, n, u, y: (p, x, n[:-1], u[:-3], y),
    ],
    ids=["few substeps", "many substeps", "few starts", "many starts", "few samples", "few counts"],
)
def test_counts_that_do_not_fit_raise(change: Any, linear_functions: Any) -> None:
    arrays = change(*LINEAR.arrays)
    with pytest.raises(ValueError, match="counts do not match the rows of starts, substeps and samples"):
        linear_functions[0](*arrays)
    with pytest.raises(ValueError, match="counts do not match"):
        linear_functions[1](*arrays, *LINEAR.cotangents())
    with pytest.raises(ValueError, match="counts do not match"):
        backend.python_kernel(LINEAR.op)(*arrays)


@pytest.mark.parametrize("width", [0, 1, 3])
def test_parameters_or_starts_of_another_width_raise(width: int, linear_functions: Any) -> None:
    """The kernel reads fixed columns: without a check it would read beside the array."""
    p, x, n, u, y = LINEAR.arrays
    with pytest.raises(ValueError):
        linear_functions[0](np.ones(width), x, n, u, y)
    with pytest.raises(ValueError):
        linear_functions[0](p, np.ones((3, width)), n, u, y)


def test_integers_for_doubles_are_converted() -> None:
    node = LINEAR.op.make_node([1, 2], [[1, 2]], [0], [[1]], np.empty((1, 0), int))
    assert [v.dtype for v in node.inputs] == ["float64", "float64", "int64", "float64", "float64"]


def test_the_calls_leave_their_arguments_alone(linear_functions: Any) -> None:
    before = [a.copy() for a in LINEAR.arrays]
    cotangents = LINEAR.cotangents()
    kept = [c.copy() for c in cotangents]
    linear_functions[0](*LINEAR.arrays)
    linear_functions[1](*LINEAR.arrays, *cotangents)
    for a, b in zip([*LINEAR.arrays, *cotangents], [*before, *kept], strict=True):
        np.testing.assert_array_equal(a, b)


def test_strided_arguments_are_read_right(linear_functions: Any) -> None:
    p, x, n, u, y = LINEAR.arrays
    wide = np.repeat(np.repeat(x, 2, axis=0), 2, axis=1)[::2, ::2]
    got = linear_functions[0](np.repeat(p, 2)[::2], wide, np.repeat(n, 2)[::2], np.asfortranarray(u), y)
    np.testing.assert_allclose(got[0], by_hand(LINEAR)[0], rtol=1e-14)


def test_calls_from_four_threads_give_the_same_numbers(cases: Any, compiled: Any, gradients: Any) -> None:
    case = cases["duffing"]
    sets = [(case.arrays[0] * (1 + 0.01 * i), *case.arrays[1:]) for i in range(40)]
    one = [compiled["duffing"](*s)[0] for s in sets]
    kernels = [compiled["duffing"].copy() for _ in range(4)]

    def work(i: int) -> list[np.ndarray]:
        return [kernels[i](*s)[0] for s in sets for _ in range(5)][::5]

    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(work, range(4)):
            for a, b in zip(result, one, strict=True):
                np.testing.assert_array_equal(a, b)


# -- graph ------------------------------------------------------------------------------------------------------------


def test_shapes_are_known_without_running() -> None:
    outputs, final = LINEAR.op(*ARGUMENTS)
    shapes = pytensor.function(ARGUMENTS, [*outputs.shape, *final.shape])
    assert not any(isinstance(n.op, Recurrence) for n in shapes.maker.fgraph.apply_nodes)
    assert [int(s) for s in shapes(*LINEAR.arrays)] == [8, 1, 3, 2]
    inputs = [*ARGUMENTS, *COTANGENTS]
    g_params, g_starts = pulled(LINEAR.op, *inputs)
    shapes = pytensor.function(inputs, [*g_params.shape, *g_starts.shape])
    assert [int(s) for s in shapes(*LINEAR.arrays, *LINEAR.cotangents())] == [2, 3, 2]


def test_only_parameters_and_starts_are_differentiable() -> None:
    outputs, final = LINEAR.op(*ARGUMENTS)
    total = pt.sum(outputs) + pt.sum(final)
    pytensor.grad(total, ARGUMENTS[:2])
    with pytest.raises(pytensor.gradient.DisconnectedInputError):
        pytensor.grad(total, ARGUMENTS[4])


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_of_one_of_the_two_outputs(which: int, linear_functions: Any) -> None:
    value = LINEAR.op(*ARGUMENTS)[which]
    pulled = pytensor.function(ARGUMENTS, pytensor.grad(pt.sum(value), ARGUMENTS[:2]))(*LINEAR.arrays)
    cotangents = [np.zeros_like(c) for c in LINEAR.cotangents()]
    cotangents[which][:] = 1.0
    for a, b in zip(pulled, linear_functions[1](*LINEAR.arrays, *cotangents), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_constants_of_the_record_have_no_derivative(cases: Any, gradients: Any) -> None:
    case = cases["duffing"]
    g_params = gradients["duffing"](*case.arrays, *case.cotangents())[0]
    assert case.op.n_constants == 5
    assert np.all(g_params[-5:] == 0.0) and np.all(g_params[:-5] != 0.0)


def test_perform_is_the_interpreted_kernel() -> None:
    mode = pytensor.compile.mode.Mode(linker="py", optimizer=None)
    outputs, final = pytensor.function(ARGUMENTS, LINEAR.op(*ARGUMENTS), mode=mode)(*LINEAR.arrays)
    np.testing.assert_allclose(outputs, by_hand(LINEAR)[0])
    np.testing.assert_allclose(final, by_hand(LINEAR)[1])


def test_sizes_and_repr() -> None:
    assert LINEAR.op.n_outputs == 1 and LINEAR.op.n_nodes == {"start": 0, "substep": 4, "sample": 2}
    assert repr(LINEAR.op) == "Recurrence{linear}"
    assert repr(RecurrenceGradient(LINEAR.op)) == "RecurrenceGradient{linear}"


# -- equality, pickling, caching --------------------------------------------------------------------------------------


def test_equal_steps_are_equal_ops() -> None:
    assert linear() == linear() and hash(linear()) == hash(linear())
    assert linear(2) != linear(3)
    assert RecurrenceGradient(linear()) == RecurrenceGradient(linear())


@pytest.mark.parametrize("dumper", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_pickled_ops_are_equal_and_run_the_same(dumper: Any, cases: Any) -> None:
    for op in (cases["bouc_wen"].op, RecurrenceGradient(cases["bouc_wen"].op)):
        copy = pickle.loads(dumper.dumps(op))
        assert copy == op and hash(copy) == hash(op)
    copy = pickle.loads(dumper.dumps(cases["bouc_wen"].op))
    got = backend.python_kernel(copy)(*cases["bouc_wen"].arrays)[0]
    np.testing.assert_array_equal(got, backend.python_kernel(cases["bouc_wen"].op)(*cases["bouc_wen"].arrays)[0])


def test_recurrences_of_one_system_are_built_once() -> None:
    system = SYSTEMS["duffing"][0]
    assert rk4_recurrence(system) is rk4_recurrence(system)
    record = TimeSeries([0.0, 1.0], [0.0, 0.0], [0.0, 0.0])
    form = EK1(order=2).form(system, [record])
    assert filter_recurrence(system, form) is filter_recurrence(system, form)
    assert calibration_recurrence(system, form) is calibration_recurrence(system, form)


def test_equal_systems_have_equal_recurrences() -> None:
    assert rk4_recurrence(duffing()) == rk4_recurrence(duffing())
    assert rk4_recurrence(duffing()) != rk4_recurrence(duffing(offset=True))


KEYS = """
import numpy as np
import pm_sysid as sid
from pm_sysid.recurrence.llvm.single import numba_recurrence, numba_recurrence_gradient
from pm_sysid.recurrence.op import RecurrenceGradient
from pm_sysid.steps.ek import filter_recurrence
from pm_sysid.steps.rk4 import rk4_recurrence

system = sid.models.bouc_wen()
record = sid.TimeSeries(np.arange(3.0), np.zeros(3), np.zeros(3), intersample="zoh")
form = sid.EK0(order=2, diffusion="dynamic").form(system, [record], (0,))
ops = [filter_recurrence(system, form), rk4_recurrence(system)]
print(*(numba_recurrence(op)[1] for op in ops), numba_recurrence_gradient(RecurrenceGradient(ops[1]))[1])
"""


def test_cache_keys_are_the_same_in_every_process() -> None:
    there = subprocess.run([sys.executable, "-c", KEYS], stdout=subprocess.PIPE, text=True, timeout=120)
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(KEYS, {})
    first, second = here.getvalue().split(), there.stdout.split()
    assert len(first) == 3 and len(set(first)) == 3
    assert first == second


def test_compiled_simulator_equals_the_interpreted_one() -> None:
    system, params, *_ = SYSTEMS["two_masses"]
    t = np.arange(20) * 0.1
    record = TimeSeries(t, np.sin(t), None, intersample="foh")
    run = simulate(system, record, params, x0=0.1, substeps=4)
    inputs = rk4_inputs(record, 4)
    arrays = (np.array(list(params.values())), np.full((1, 4), 0.1), inputs.counts, inputs.substeps, inputs.samples)
    expected = backend.python_kernel(rk4_recurrence(system))(*arrays)[0]
    np.testing.assert_allclose(run[["y1", "y2"]].to_array().values.T, expected[:, :2], rtol=1e-12, atol=1e-14)


# -- runs with parameters of their own ------------------------------------------------------------------------------------


def own_case(case: Case) -> Case:
    """The same with other parameters for every run."""
    params, starts, *record = case.arrays
    factors = 1 + 0.05 * np.random.default_rng(3).normal(size=(len(starts), params.size))
    return Case(case.op, (params * factors, starts, *record))


def alone(case: Case) -> list[Case]:
    """Each run by itself."""
    params, starts, counts, substeps, samples = case.arrays
    begins = [0, *np.flatnonzero(counts < 0), len(counts)]
    used = np.concatenate([[0], np.cumsum(np.maximum(counts, 0))])
    cases = []
    for r, (a, b) in enumerate(pairwise(begins)):
        own = np.maximum(counts[a:b], 0)
        cases.append(Case(case.op, (params[r], starts[r : r + 1], own, substeps[used[a] : used[b]], samples[a:b])))
    return cases


@pytest.mark.parametrize("name", ["duffing", "loops", "long"])
def test_runs_with_parameters_of_their_own_are_runs_by_themselves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and interpreted, value and gradient, also where a run ends inside a block of the tape."""
    monkeypatch.setattr(backend, "TAPE_BYTES", 64)
    case = own_case(long_case() if name == "long" else filter_case(name, runs=3 if name == "duffing" else 2))
    cotangents = case.cotangents()
    singles = alone(case)
    outputs, final = zip(*(backend.python_kernel(c.op)(*c.arrays) for c in singles), strict=True)
    rows = np.cumsum([0, *(len(o) for o in outputs)])
    pulled_apart = [
        backend.python_gradient_kernel(c.op)(*c.arrays, cotangents[0][rows[r] : rows[r + 1]], cotangents[1][r : r + 1])
        for r, c in enumerate(singles)
    ]
    wanted = np.concatenate(outputs), np.concatenate(final)
    slopes = np.stack([g[0] for g in pulled_apart]), np.concatenate([g[1] for g in pulled_apart])
    backend.python_gradient_kernel.cache_clear()
    backend._gradient.cache_clear()
    rows_of = pt.dmatrix("p")
    inputs = [rows_of, *ARGUMENTS[1:], *COTANGENTS]
    kernels = [
        (backend.python_kernel(case.op), backend.python_gradient_kernel(case.op)),
        (
            pytensor.function(inputs[:5], case.op(*inputs[:5])),
            pytensor.function(inputs, RecurrenceGradient(case.op)(*inputs)),
        ),
    ]
    for value, gradient in kernels:
        for got, want in zip(value(*case.arrays), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
        for got, want in zip(gradient(*case.arrays, *cotangents), slopes, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10 * np.abs(want).max())


def test_another_number_of_rows_than_runs_is_refused(linear_functions: Any) -> None:
    params, *rest = LINEAR.arrays
    with pytest.raises(ValueError, match="params must have one row, or one for each run"):
        backend.python_kernel(LINEAR.op)(np.stack([params, params]), *rest)
    inputs = [pt.dmatrix("p"), *ARGUMENTS[1:]]
    with pytest.raises(ValueError, match="params must have one row, or one for each run"):
        pytensor.function(inputs, LINEAR.op(*inputs))(np.stack([params, params]), *rest)
