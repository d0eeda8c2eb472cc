"""Functions of arrays: what runs in NumPy gives the numbers of numba and of the interpreted kernels, without a warning."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph

from pm_sysid.compat import Blockwise
from pm_sysid.recurrence import functions
from pm_sysid.recurrence.batch_op import BatchRecurrence
from pm_sysid.recurrence.functions import compiled, on_whole_arrays
from support.batches import BATCH, NONE, PULLED, cotangents, pulled_batch, spread
from support.recurrences import ARGUMENTS, COTANGENTS, LINEAR, long_case, pulled

PYTHON = Mode(linker="py", optimizer=None)


def check(inputs: list[Any], outputs: list[Any], arrays: list[Any]) -> None:
    """Compare NumPy around machine code with the interpreted kernels, and with numba."""
    assert on_whole_arrays(inputs, outputs)
    got = compiled(inputs, outputs)(*arrays)
    for other in (pytensor.function(inputs, outputs, mode=PYTHON), compiled(inputs, outputs, often=True)):
        for a, b in zip(got, other(*arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.nanmax(np.abs(b)))


def test_a_recurrence_and_its_gradient() -> None:
    case = long_case(2)
    rng = np.random.default_rng(0)
    check(ARGUMENTS, case.op(*ARGUMENTS), [*case.arrays])
    shapes = [o.shape for o in compiled(ARGUMENTS, case.op(*ARGUMENTS))(*case.arrays)]
    reverse = pulled(case.op, *ARGUMENTS, *COTANGENTS)
    check([*ARGUMENTS, *COTANGENTS], reverse, [*case.arrays, *(rng.standard_normal(s) for s in shapes)])


def test_a_batch_and_its_gradient() -> None:
    particles, edges = spread(LINEAR, 19), np.array([0, 0, 3, 7])
    g, arrays = (
        cotangents(particles, edges),
        [particles.params, particles.starts, NONE, edges, *particles.record, np.asarray(2)],
    )
    check(BATCH, BatchRecurrence(LINEAR.op)(*BATCH), arrays)
    check(PULLED, pulled_batch(LINEAR.op, *PULLED), [*arrays, *g])


def test_rows_are_joined_at_once() -> None:
    """A join of what depends on the particle and what does not, along the second of the two last dimensions."""
    own, shared = pt.dmatrix("own"), pt.dmatrix("shared")
    many = pt.dtensor3("many")
    (joined,) = vectorize_graph([pt.concatenate([own, shared, own], axis=1)], {own: many})
    assert any(
        isinstance(n.op, Blockwise) for n in pytensor.function([many, shared], joined, mode=PYTHON).maker.fgraph.toposort()
    )
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((5, 3, 2)), rng.standard_normal((3, 4))]
    check([many, shared], [joined], arrays)
    inside = pytensor.function([many, shared], joined, mode=functions.numpy_mode()).maker.fgraph.toposort()
    assert not any(isinstance(n.op, Blockwise) for n in inside)


@pytest.mark.parametrize("vector", [False, True])
def test_linear_systems_are_solved_at_once(vector: bool) -> None:
    """Solutions and their gradients, where only one side depends on the particle, and where a matrix has no inverse."""
    A, b = pt.dmatrix("A"), pt.dvector("b") if vector else pt.dmatrix("b")
    solution = pt.linalg.solve(A, b, b_ndim=1 if vector else 2)
    graphs = [solution, *pt.grad((solution**2).sum(), [A, b])]
    many, rng = pt.dtensor3("many"), np.random.default_rng(1)
    arrays = [rng.standard_normal((5, 3, 3)), rng.standard_normal(3 if vector else (3, 2))]
    batch = vectorize_graph(graphs, {A: many})
    for inputs, outputs, values in (([many, b], batch, arrays), ([A, b], graphs, [arrays[0][0], arrays[1]])):
        assert functions.on_whole_arrays(inputs, outputs)
        expected = pytensor.function(inputs, outputs, mode=PYTHON)(*values)
        for got, want in zip(compiled(inputs, outputs)(*values), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10)
    arrays[0][2] = 1.0
    found = compiled([many, b], vectorize_graph([solution], {A: many}))(*arrays)[0]
    assert np.isnan(found[2]).all() and np.isfinite(np.delete(found, 2, axis=0)).all()


def test_impossible_numbers_are_not_a_warning() -> None:
    x = pt.dvector("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compiled([x], [pt.log(x), 1 / x, pt.exp(x)])(np.array([-1.0, 0.0, 1e4]))
    assert np.isnan(found[0][0]) and np.isinf(found[1][1]) and np.isinf(found[2][2])


def test_what_numpy_would_do_in_loops_is_compiled() -> None:
    x, many = pt.dmatrix("x"), pt.dtensor3("many")
    (chol,) = vectorize_graph([pt.linalg.cholesky(x)], {x: many})
    for size in (2, 300):  # of a Gaussian process with many particles, all results would be gigabytes
        one, several = pt.dmatrix(shape=(size, size)), pt.dtensor3(shape=(None, size, size))
        assert on_whole_arrays([several], vectorize_graph([pt.linalg.cholesky(one)], {one: several})) == (size == 2)
    middle = pm.Normal.dist(x, 1.0)
    assert not on_whole_arrays([many], [chol])  # of a size that is not known
    assert not on_whole_arrays([x], [middle])
    assert not on_whole_arrays([x], [pytensor.scan(lambda row: row.sum(), sequences=[x], return_updates=False)])
    # What stands before the inputs does not matter.
    assert on_whole_arrays([middle], [pt.exp(middle)])
    np.testing.assert_allclose(compiled([many], chol)(np.eye(2)[None] * 4.0), [2 * np.eye(2)])


@pytest.mark.parametrize("often", [False, True])
def test_a_mode_that_somebody_chose_is_taken(often: bool) -> None:
    x = pt.dscalar("x")
    assert compiled([x], x + 1, mode=PYTHON, often=often).maker.mode is PYTHON
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert compiled([x], x + 1, often=often).maker.mode.linker.c_thunks is False


def test_threads_that_compile_leave_no_mode_behind() -> None:
    """PyTensor sets ``config.mode`` for all threads while it rewrites; interpreted functions would follow."""
    before = pytensor.config.mode
    modes = [{}, {"mode": "FAST_COMPILE"}, {"often": True}, {"mode": PYTHON}]

    def compile_one(k: int) -> float:
        x = pt.dvector("x")
        return float(compiled([x], (pt.exp(x) + k).sum(), **modes[k % 4])(np.zeros(2)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compile_one, range(24))) == [2.0 * (1 + k) for k in range(24)]
    assert pytensor.config.mode == before
