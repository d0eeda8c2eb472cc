"""The reverse sweep over scalar operations gives the derivatives that PyTensor's own rules give, at kinks too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
import pytest
from pytensor.gradient import pullback
from pytensor.graph.basic import Constant, Variable

from pm_sysid.recurrence.op import Phase
from pm_sysid.symbolic import derivatives
from pm_sysid.symbolic.derivatives import contributions, vjp
from pm_sysid.symbolic.scalars import Root, Scalar, as_variable, constant, evaluate, is_steep, root, simplify, symbols, untraced
from support.recurrences import SYSTEMS, filter_case

a, b, c = symbols("x", 3)
#: Operations that PyTensor has as functions of the module, by class.
FUNCTIONS = {
    type(f): f
    for module in (psb, psm)
    for f in vars(module).values()
    if isinstance(f, psb.ScalarOp) and type(f) is not psb.Cast
} | {Root: psb.sqrt}
ARITY = {psb.Switch: 3, psb.Clip: 3} | dict.fromkeys(
    (psb.Add, psb.Sub, psb.Mul, psb.TrueDiv, psb.Pow, psb.ArcTan2, psb.Maximum, psb.Minimum, psb.Mod, psb.Second, psb.IntDiv), 2
)
POINTS = [-1.7, -0.6, 0.0, 0.3, 0.9, 1.0, 1.4, 2.2, 3.1]


def by_pytensor(outputs: list[Variable], wrt: list[Variable], cotangents: list[Variable]) -> list[Scalar]:
    """Reference: PyTensor's own machinery, with a variable of its own for every output."""
    own = [psb.identity(o) for o in outputs]
    rows = pullback(own, wrt, cotangents, disconnected_inputs="ignore", return_disconnected="none")
    found: list[Scalar] = []
    for row in rows:
        while row is not None and not isinstance(row, Constant) and not isinstance(row.type, ps.ScalarType):
            row = row.owner.inputs[0]
        found.append(0.0 if row is None else float(row.data) if isinstance(row, Constant) else row)
    return found


@pytest.mark.parametrize("kind", [k for k in derivatives._RULES if k not in (psb.Cast, psm.GammaLn)], ids=lambda k: k.__name__)
def test_each_rule_is_that_of_pytensor(kind: Any) -> None:
    inputs = [a, b, c][: ARITY.get(kind, 1)]
    own = root(a) if kind is Root else FUNCTIONS[kind](*inputs)
    ours, theirs = (
        pull([output], inputs, [constant(1.5)]) for pull, output in ((vjp, own), (by_pytensor, FUNCTIONS[kind](*inputs)))
    )
    compared = 0
    for at in np.array(np.meshgrid(*[POINTS] * len(inputs))).reshape(len(inputs), -1).T:
        if kind is psb.Clip and at[1] > at[2]:
            continue  # a lower bound above the upper one
        values = dict(zip(inputs, at, strict=True))
        got, want = (np.array(evaluate(simplify(rows), values)) for rows in (ours, theirs))
        known = np.isfinite(want)
        np.testing.assert_allclose(got[known], want[known], rtol=1e-13, atol=1e-15, err_msg=f"{kind.__name__} at {at}")
        compared += known.sum()
    assert compared >= 4


@pytest.mark.parametrize("exponent", [0.5, 0.9, 1.0, 1.5, 1.9, 2.0, 2.5, 3.0])
@pytest.mark.parametrize("given", [True, False], ids=["given", "unknown"])
def test_a_power_has_slopes_at_zero_in_every_order(exponent: float, given: bool) -> None:
    """The right ones where they are finite, and zero where the power is too steep."""
    power: Scalar = psb.pow(a, constant(exponent) if given else b)
    at, slopes = {a: 0.0, b: exponent}, []
    for order in range(1, 4):
        by_base, by_exponent = vjp([as_variable(power)], [a, b], [constant(1.0)])
        slopes.append(evaluate(simplify([by_base, by_exponent]), at))
        power = by_base
        right = {1.0: (1.0, 0.0, 0.0), 2.0: (0.0, 2.0, 0.0), 3.0: (0.0, 0.0, 6.0)}.get(exponent, (0.0, 0.0, 0.0))[order - 1]
        assert slopes[-1][0] == right and np.isfinite(slopes[-1][1])


def test_a_root_has_slopes_at_zero_and_where_a_maximum_ends() -> None:
    for expression in (root(a), root(psb.maximum(a, constant(0.0)))):
        (slope,) = vjp([expression], [a], [constant(1.0)])
        (bend,) = vjp([as_variable(slope)], [a], [constant(1.0)])
        for x in (0.0, -1.0) if expression.owner.inputs[0] is not a else (0.0,):
            assert evaluate(simplify([slope, bend]), {a: x}) == [0.0, 0.0]
        assert evaluate(simplify([slope, bend]), {a: 4.0}) == pytest.approx([0.25, -1 / 32])


def test_roots_and_powers_are_steep_unless_the_exponent_is_a_whole_number_or_the_argument_positive() -> None:
    positive = 0.3 + psb.sqr(a)
    steep = [root(a), psb.pow(a, b), psb.pow(a, constant(1.5)), psb.exp(-psb.pow(a, constant(0.7))), root(a + positive)]
    steep += [root(psb.sqr(a) + psb.abs(b)), root(psb.sqr(a) * positive), root(positive - psb.sqr(a)), psb.pow(-positive, b)]
    assert all(map(is_steep, steep))
    flat = [a * b, psb.pow(a, constant(12.0)), psb.exp(a), 1.0, root(positive), psb.pow(psb.exp(a) * positive, b)]
    flat += [root(psb.maximum(a, constant(0.1))), root(root(positive) + psb.abs(a)), root(positive / psb.exp(b))]
    assert not any(map(is_steep, flat))


def test_log_gamma_has_the_digamma_function_as_its_slope() -> None:
    (row,) = vjp([psm.gammaln(a)], [a], [constant(2.0)])
    for x in (0.3, 1.0, 7.5):
        assert evaluate([row], {a: x})[0] == pytest.approx(2.0 * psm.psi.impl(x), rel=1e-12)


def test_an_operation_without_a_rule_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"gamma.*has no derivative"):
        vjp([psm.gamma(a)], [a], [constant(1.0)])


def test_a_condition_passes_nothing_on() -> None:
    node = psb.gt(a, b).owner
    assert contributions(node, constant(1.0)) == [None, None]
    (row,) = vjp([psb.gt(a, b) * a], [a], [constant(1.0)])
    assert evaluate([row], {a: 2.0, b: 1.0}) == [1.0] and evaluate([row], {a: 0.0, b: 1.0}) == [0.0]


@untraced()
def _by_pytensor(phase: Phase, differentiable: list[bool]) -> Any:
    """Pull back a phase by PyTensor's rules; returns its inputs and the rows."""
    inputs = [v.type() for v in phase.graph.inputs]
    known: dict[Any, Any] = dict(zip(phase.graph.inputs, inputs, strict=True))
    for node in phase.graph.toposort():
        known[node.outputs[0]] = node.op(*(known.get(v, v) for v in node.inputs))
    outputs = [known.get(o, o) for o in phase.graph.outputs]
    cotangents = symbols("cotangent", len(outputs))
    wrt = [v for v, d in zip(inputs, differentiable, strict=True) if d]
    return [*inputs, *cotangents], by_pytensor(outputs, wrt, cotangents)


# PyTensor cannot differentiate a routine.
@pytest.mark.parametrize("name", [name for name in SYSTEMS if name not in ("loops", "chains")])
def test_a_filter_step_is_pulled_back_as_pytensor_does(name: str) -> None:
    op = filter_case(name).op
    n = len(op.substep.graph.inputs)
    differentiable = [True] * (op.n_carry + op.n_params) + [False] * (n - op.n_carry - op.n_params)
    inputs, theirs = _by_pytensor(op.substep, differentiable)
    graph = op.substep.pull_back(differentiable)
    for seed in range(3):
        values = np.random.default_rng(seed).uniform(0.5, 1.5, len(inputs))
        want = evaluate(theirs, dict(zip(inputs, values, strict=True)))
        own = [as_variable(o) for o, d in zip(graph.outputs, differentiable, strict=False) if d]
        got = evaluate(own, dict(zip(graph.inputs, values, strict=True)))
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max())
        assert np.count_nonzero(want) > 10
