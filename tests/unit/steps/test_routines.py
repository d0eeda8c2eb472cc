"""Algebra as loops: against the same on whole arrays, adjoints against differences, and inside a graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pm_sysid.recurrence.interpreted import NAMESPACE
from pm_sysid.recurrence.op import Phase, Recurrence, RecurrenceGradient, interpreted
from pm_sysid.recurrence.run import native
from pm_sysid.steps.routines import Condition, Correct, Differentiable, Gram, Predict, Project
from pm_sysid.symbolic.routines import Routine
from pm_sysid.symbolic.scalars import add, evaluate, mul, symbols

ROUTINES = [
    Predict(2, 3, 2), Predict(3, 1, 0), Predict(4, 2, 1), Condition(6, 2, 2, 4), Condition(5, 0, 1, 5), Condition(7, 1, 3, 3),
    Predict(2, 3, 2).padded(8), Predict(4, 1, 0).padded(4), Condition(6, 2, 2, 4).padded(8), Condition(5, 0, 1, 5).padded(4),
    Project(6, 3), Project(4, 4), Correct(5, 2), Correct(4, 0), Gram(4, 3), Gram(5, 0),
]  # fmt: skip


def arrays(routine: Routine) -> list[np.ndarray]:
    """Numbers to read; a diffusion is positive."""
    rng = np.random.default_rng(3)
    values = [rng.normal(size=shape) for shape in routine.reads]
    if isinstance(routine, Predict):
        values[0] = np.exp(values[0])
    return values


def by_loops(routine: Routine, *read: np.ndarray) -> list[np.ndarray]:
    """What the text of a routine writes, in places that held something else before."""
    namespace: dict[str, Any] = dict(NAMESPACE)
    exec(routine.source("routine"), namespace)
    written = [np.full(shape, 7.0) for shape in routine.writes]
    before = [a.copy() for a in read]
    namespace["routine"](*read, *written, *(np.full(shape, 7.0) for shape in routine.scratch))
    for old, new in zip(before, read, strict=True):
        np.testing.assert_array_equal(old, new)  # others may read these arrays too
    return written


def recurrence(routine: Routine) -> Recurrence:
    """A recurrence whose substep is a routine of carry and parameters, and whose output is a sum."""
    sizes = [math.prod(shape) for shape in routine.reads]
    n = sum(math.prod(shape) for shape in routine.writes)
    start, params = symbols("x", n), symbols("p", sum(sizes))
    carry, again = symbols("c", n), symbols("p", sum(sizes))
    read = [add(p, mul(0.01, carry[i % n])) if i % 3 else p for i, p in enumerate(again)]
    outputs = routine.make_node(*read).outputs
    return Recurrence(
        Phase.build([], params, start, start),
        Phase.build(carry, again, [], outputs),
        Phase.build(carry, again, [], [*carry, add(*(mul(1.0 + i, c) for i, c in enumerate(carry)))]),
        n_carry=n,
        n_params=len(params),
        name="routine",
    )


@pytest.mark.parametrize("routine", ROUTINES, ids=str)
def test_loops_compute_what_whole_arrays_do(routine: Routine) -> None:
    read = arrays(routine)
    for written, expected in zip(by_loops(routine, *read), routine.compute(np, *read), strict=True):
        np.testing.assert_allclose(written, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("routine", ROUTINES, ids=str)
def test_adjoints_are_the_slopes(routine: Differentiable) -> None:
    """Five-point differences of every entry: would fail for a term of an adjoint that is missing or has another sign."""
    read = arrays(routine)
    rng = np.random.default_rng(4)
    cotangents = [rng.normal(size=shape) for shape in routine.writes]

    def total(k: int, index: tuple[int, ...], step: float) -> float:
        moved = [a.copy() for a in read]
        moved[k][index] += step
        return sum(float((c * w).sum()) for c, w in zip(cotangents, routine.compute(np, *moved), strict=True))

    pulled = by_loops(routine.adjoint(), *read, *cotangents)
    h = 1e-3
    for k, gradient in enumerate(pulled):
        for index in np.ndindex(gradient.shape):
            near, far = (total(k, index, s * h) - total(k, index, -s * h) for s in (1, 2))
            assert gradient[index] == pytest.approx((8 * near - far) / (12 * h), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("routine", ROUTINES, ids=str)
def test_compiled_inside_a_step(routine: Routine) -> None:
    """Values that are read from a carry, from parameters and from sums; outputs that go back to the carry."""
    op = recurrence(routine)
    rng = np.random.default_rng(5)
    params = np.concatenate([a.ravel() for a in arrays(routine)])
    inputs = params, rng.normal(size=(1, op.n_carry)), np.array([0, 2, 1]), np.empty((3, 0)), np.empty((3, 0))
    cotangents = rng.normal(size=(3, 1)), rng.normal(size=(1, op.n_carry))
    for kind, arguments in ((op, inputs), (RecurrenceGradient(op), (*inputs, *cotangents))):
        for compiled, reference in zip(native(kind)(*arguments), interpreted(kind)(*arguments), strict=True):
            np.testing.assert_allclose(compiled, reference, rtol=1e-9, atol=1e-9 * np.abs(reference).max())
    # The interpreted program is planned by the same code as the compiled one; the graph itself is not.
    x = inputs[1][0]
    substep = op.substep.graph
    for count in inputs[2]:
        for _ in range(count):
            known = dict(zip(substep.inputs, [*x, *params], strict=True))
            x = np.array(evaluate(substep.outputs, known))
    np.testing.assert_allclose(native(op)(*inputs)[1][0], x, rtol=1e-9, atol=1e-9 * np.abs(x).max())


def test_wrong_numbers_of_scalars_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Project reads 9 scalars in the shapes \(\(2, 3\), \(3,\)\), not 4|reads .* not 4"):
        Project(3, 2).make_node(*symbols("x", 4))


def test_two_steps_with_equal_sizes_share_a_routine_and_others_do_not() -> None:
    assert Predict(2, 3, 1) == Predict(2, 3, 1)
    assert Predict(2, 3, 1).symbol == Predict(2, 3, 1).symbol
    assert len({r.symbol for r in ROUTINES} | {r.adjoint().symbol for r in ROUTINES}) == 2 * len(ROUTINES)
