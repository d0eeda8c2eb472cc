"""One chain's graph in a loop over chains: against the same graph for each chain, its derivative, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.scalar.basic as psb
import pytest

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.interpreted import NAMESPACE
from pm_sysid.recurrence.op import Phase, Recurrence, RecurrenceGradient, interpreted
from pm_sysid.recurrence.run import native
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.solve.options import EK1, UNROLLED_CHAINS
from pm_sysid.steps.each_chain import EachChain, each_chain
from pm_sysid.symbolic.routines import Routine
from pm_sysid.symbolic.scalars import Scalar, add, constant, div, evaluate, mul, sqrt, sub, symbols
from pm_sysid.symbolic.system import System

CHAINS = 11  # neither a whole number of registers nor fewer than one


def mixture(a: list[Scalar], b: list[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
    """Every operation of the algebra; ``b`` holds a zero for all chains and a number that differs."""
    root = sqrt(add(mul(a[0], a[0]), mul(b[0], b[0]), 1.0))
    return [div(a[1], root), sub(mul(-1.0, a[0]), mul(b[1], a[1])), mul(-0.5, root)], [div(1.0, root), mul(b[2], a[0])]


def by_chain(values: np.ndarray) -> tuple[list[list[Any]], list[list[Any]]]:
    """Scalars of each chain; the second of ``b`` is zero for all."""
    return [[x, y] for x, y, *_ in values], [[z, 0.0, w] for *_, z, w in values]


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(CHAINS, 4))


def the_routine() -> EachChain:
    first, second = by_chain(np.array([symbols(f"x{c}", 4) for c in range(CHAINS)], dtype=object))
    out = each_chain(mixture, first, second)
    op = out[0][0][0].owner.op  # type: ignore[union-attr]
    assert isinstance(op, EachChain)
    return op


def test_a_loop_gives_every_chain_what_its_own_graph_does() -> None:
    inputs = np.array([symbols(f"x{c}", 4) for c in range(CHAINS)], dtype=object)
    looped = each_chain(mixture, *by_chain(inputs))
    alone = [mixture(*chain) for chain in zip(*by_chain(inputs), strict=True)]
    values = dict(zip(inputs.ravel(), numbers().ravel(), strict=True))
    for g in range(2):
        for c in range(CHAINS):
            np.testing.assert_allclose(evaluate(looped[g][c], values), evaluate(alone[c][g], values), rtol=1e-14)


def test_what_is_the_same_number_for_all_chains_is_left_out_of_the_loop() -> None:
    op = the_routine()
    assert op.reads == ((2, CHAINS), (2, CHAINS)) and op.writes == ((3, CHAINS), (2, CHAINS))
    other = symbols("y", 2)
    mixed = each_chain(lambda a: [[mul(2.0, a[0])]], [[other[0]], [1.5], [other[1]]])
    assert evaluate([row[0] for row in mixed[0]], {other[0]: 1.0, other[1]: 2.0}) == [2.0, 3.0, 4.0]


def written(routine: Routine, *read: np.ndarray) -> list[np.ndarray]:
    """What the text of a routine writes."""
    namespace: dict[str, Any] = dict(NAMESPACE)
    exec(routine.source("routine"), namespace)
    results = [np.full(shape, 7.0) for shape in routine.writes]
    namespace["routine"](*read, *results)
    return results


def test_whole_rows_give_what_the_loop_does() -> None:
    routine, rng = the_routine(), np.random.default_rng(1)
    for op in (routine, routine.adjoint()):
        read = [rng.normal(size=shape) for shape in op.reads]
        for loop, rows in zip(written(op, *read), op.compute(np, *read), strict=True):
            np.testing.assert_allclose(loop, rows, rtol=1e-13, atol=1e-14)


def test_the_adjoint_is_the_derivative() -> None:
    """Along random directions, by steps into the complex plane, which have no error of rounding."""
    routine, rng, h = the_routine(), np.random.default_rng(2), 1e-30
    read, cotangents = ([rng.normal(size=shape) for shape in shapes] for shapes in (routine.reads, routine.writes))
    pulled = written(routine.adjoint(), *read, *cotangents)
    for _ in range(5):
        directions = [rng.normal(size=a.shape) for a in read]
        moved = routine.compute(np, *(a + 1j * h * d for a, d in zip(read, directions, strict=True)))
        rate = sum(float((c * m.imag).sum()) / h for c, m in zip(cotangents, moved, strict=True))
        own = sum(float((g * d).sum()) for g, d in zip(pulled, directions, strict=True))
        assert own == pytest.approx(rate, rel=1e-12)


def test_compiled_inside_a_step() -> None:
    """Values of a carry that lie side by side, sums that do not, and cotangents that go back to both."""
    n = 4 * CHAINS
    carry, params = symbols("c", n), symbols("p", 3)
    chains = [[carry[i * CHAINS + c] for i in range(4)] for c in range(CHAINS)]
    first, second = by_chain(np.array([[x[0], add(x[1], params[0]), mul(params[1], x[2]), x[3]] for x in chains], dtype=object))
    made = each_chain(mixture, first, second)
    rows = [made[0][c][i] for i in range(3) for c in range(CHAINS)] + [made[1][c][0] for c in range(CHAINS)]
    start = symbols("s", n)
    op = Recurrence(
        Phase.build([], params, start, start),
        Phase.build(carry, params, [], rows),
        Phase.build(carry, params, [], [*carry, add(*(mul(1.0 + i, c) for i, c in enumerate(carry)))]),
        n_carry=n,
        n_params=3,
        name="each",
    )
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=3), rng.normal(size=(1, n)), np.array([0, 2, 1]), np.empty((3, 0)), np.empty((3, 0))
    cotangents = rng.normal(size=(3, 1)), rng.normal(size=(1, n))
    for kind, arguments in ((op, inputs), (RecurrenceGradient(op), (*inputs, *cotangents))):
        for compiled, reference in zip(native(kind)(*arguments), interpreted(kind)(*arguments), strict=True):
            np.testing.assert_allclose(compiled, reference, rtol=1e-11, atol=1e-11 * np.abs(reference).max())
            assert np.ptp(reference) > 0


def test_operations_that_are_not_algebra_are_refused() -> None:
    (x,) = symbols("x", 1)
    with pytest.raises(NotImplementedError, match=r"exp.*not available in a loop over chains"):
        each_chain(lambda a: [[psb.exp(a[0])]], [[x], [constant(1.0)]])[0][0][0].owner.op.source("f")  # type: ignore[union-attr]


def chain_of_masses(n: int) -> System:
    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
        z, v = x[:n], x[n:]
        pull = [p.k * (z[i] - (z[i - 1] if i else 0.0)) for i in range(n)] + [0.0]
        return (*v, *(pull[i + 1] - pull[i] - p.c * v[i] + (u.F if i == 0 else 0.0) for i in range(n)))

    names = (*(f"z{i}" for i in range(n)), *(f"v{i}" for i in range(n)))
    return System(dynamics, states=names, inputs=("F",), params=("k", "c"), observe=lambda t, x, dx, u, p: (x.z0,))


@pytest.mark.parametrize("n", [UNROLLED_CHAINS, UNROLLED_CHAINS + 1])
def test_the_number_of_chains_decides_and_code_then_grows_with_the_equations_only(n: int) -> None:
    t = np.arange(20) / 10
    record = TimeSeries(t, np.sin(t), np.sin(t), inputs="F")
    problem = Problem.build(chain_of_masses(n), EK1(order=3, diffusion=1.0, covariance="block"), [record], ())
    assert problem.form.rolled == (n > UNROLLED_CHAINS)
