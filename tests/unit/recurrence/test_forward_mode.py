"""Forward derivatives of graphs and of whole recurrences, against differences and reverse derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.scalar.basic as psb
import pytest

from pm_sysid.recurrence.forward_mode import inline, jvp, tangent_recurrence
from pm_sysid.recurrence.op import RecurrenceGradient, interpreted
from pm_sysid.symbolic.scalars import add, constant, div, evaluate, mul, sqrt, sub, switch, symbols
from support.batches import CASES

A, B, C = symbols("a", 3)
AT = {A: 0.7, B: -1.3, C: 0.4}
EXPRESSIONS: dict[str, Any] = {
    "product with itself": mul(A, A),
    "product with its own function": mul(A, psb.sin(A)),
    "sum of equals": psb.add(A, A, B),
    "quotient": div(psb.exp(B), add(A, mul(C, C))),
    "root of squares": sqrt(add(mul(A, A), mul(B, B))),
    "tanh and abs": mul(psb.tanh(mul(3.0, B)), psb.abs(sub(A, B))),
    "power": psb.pow(A, C),
    "switch": switch(psb.gt(A, B), mul(A, C), mul(B, B)),
    "switch, other side": switch(psb.lt(A, B), mul(A, C), mul(B, B)),
    "two conditions": switch(psb.and_(psb.gt(A, B), psb.isnan(C)), A, psb.log(A)),
    "no input": constant(2.0),
    "number": 3.0,
    "another input": B,
}


@pytest.mark.parametrize("name", list(EXPRESSIONS))
def test_derivatives_along_directions(name: str) -> None:
    expression, directions = EXPRESSIONS[name], [{A: 1.0}, {A: 0.5, B: -2.0, C: B}]
    rates = jvp([expression, A], directions)
    h = 1e-6
    for (rate, of_a), direction in zip(rates, directions, strict=True):
        numbers = {k: AT[v] if v in AT else v for k, v in direction.items()}
        up, down = ({k: v + s * h * numbers.get(k, 0.0) for k, v in AT.items()} for s in (1, -1))
        difference = (evaluate([expression], up)[0] - evaluate([expression], down)[0]) / (2 * h)
        np.testing.assert_allclose(evaluate([rate], AT)[0], difference, rtol=1e-7, atol=1e-9)
        assert evaluate([of_a], AT)[0] == numbers[A]


def test_what_stands_still_has_no_graph() -> None:
    ((rate, other),) = jvp([mul(B, B), add(A, B)], [{A: 1.0}])
    assert rate == 0.0 and other == 1.0


def test_an_impossible_side_of_a_switch_does_not_reach_the_derivative() -> None:
    """A root of a negative number is not chosen, and neither is its infinite slope."""
    expression = switch(psb.gt(A, constant(0.0)), sqrt(A), 0.0)
    ((rate,),) = jvp([expression], [{A: 1.0}])
    assert evaluate([rate], {A: 0.0}) == [0.0] and evaluate([rate], {A: 4.0}) == [0.25]


def test_a_frozen_graph_is_inlined() -> None:
    op = CASES["rk4"]().op
    graph = op.substep.graph
    values = np.linspace(0.1, 0.9, len(graph.inputs))
    fresh = symbols("fresh", len(values))
    own = inline(graph, fresh)
    mixed = inline(graph, [*fresh[:3], *map(float, values[3:])])
    at = dict(zip(fresh, values, strict=True))
    np.testing.assert_allclose(evaluate(own, at), evaluate(mixed, {k: at[k] for k in fresh[:3]}), rtol=1e-14)


@pytest.mark.parametrize("name", ["rk4", "duffing", "linear"])
def test_forward_and_reverse_derivatives_of_a_recurrence_agree(name: str) -> None:
    """Interpreted: a cotangent times the rates along a direction is the gradient times the direction."""
    case = CASES[name]()
    op, (params, starts, *record) = case.op, case.arrays
    rng = np.random.default_rng(0)
    moved, moved_starts = params * rng.normal(size=params.shape), starts * rng.normal(size=starts.shape)
    moved[op.n_params - op.n_constants :] = 0.0
    tangent = tangent_recurrence(op)
    outputs, final = interpreted(tangent)(
        np.concatenate([params, moved]), np.concatenate([starts, moved_starts], axis=1), *record
    )  # fmt: skip
    values, ends = interpreted(op)(params, starts, *record)
    n, c = op.n_outputs, op.n_carry
    np.testing.assert_allclose(outputs[:, :n], values, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(final[:, :c], ends, rtol=1e-12, atol=1e-14)
    cotangents = rng.normal(size=values.shape), rng.normal(size=ends.shape)
    g_params, g_starts = interpreted(RecurrenceGradient(op))(params, starts, *record, *cotangents)
    forward = np.sum(cotangents[0] * outputs[:, n:]) + np.sum(cotangents[1] * final[:, c:])
    reverse = g_params @ moved + np.sum(g_starts * moved_starts)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
