"""Algebra on scalar graphs: what is folded or shared must not change a value, and derivatives are exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
import pytest
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import io_toposort

from pm_sysid.symbolic.derivatives import jacobian, vjp
from pm_sysid.symbolic.scalars import (
    add,
    as_function,
    as_variable,
    constant,
    div,
    dot,
    elementwise,
    evaluate,
    evaluate_arrays,
    is_number,
    mul,
    simplify,
    sqrt,
    sub,
    substitute,
    switch,
    symbol,
    symbols,
)

X = symbols("x", 3)
a, b, c = X


def points(count: int, seed: int = 0) -> list[dict[Variable, float]]:
    values = np.random.default_rng(seed).normal(0.0, 1.5, (count, len(X)))
    return [dict(zip(X, row, strict=True)) for row in values]


def nodes(*outputs: Any) -> list[Any]:
    return list(io_toposort([], [o for o in outputs if isinstance(o, Variable)]))


def operations(*outputs: Any) -> list[type]:
    return [type(n.op) for n in nodes(*outputs)]


def central(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """Fourth-order central differences."""
    result = np.empty(at.size)
    for i in range(at.size):
        e = np.eye(at.size)[i] * step
        result[i] = (8 * (function(at + e) - function(at - e)) - (function(at + 2 * e) - function(at - 2 * e))) / (12 * step)
    return result


def random_expressions(seed: int, size: int = 25) -> list[Variable]:
    """A few random expressions that share sub-expressions; built without the package's own constructors."""
    rng = np.random.default_rng(seed)
    pool: list[Variable] = [*X, *(constant(v) for v in (0.0, 1.0, -1.0, 2.0, 0.5, -3.0))]

    def pick() -> Variable:
        return pool[rng.integers(len(pool))]

    def repeated() -> Variable:
        v = pick()
        return psb.mul(v, v) if rng.random() < 0.5 else psb.mul(v, pick(), v)

    makers: list[Callable[[], Variable]] = [
        lambda: psb.add(pick(), pick()),
        lambda: psb.add(pick(), pick(), pick()),
        lambda: psb.sub(pick(), pick()),
        lambda: psb.mul(pick(), pick()),
        repeated,
        lambda: psb.neg(pick()),
        lambda: psb.true_div(pick(), pick()),
        lambda: psb.reciprocal(pick()),
        lambda: psb.sqr(pick()),
        lambda: psb.pow(pick(), constant(float(rng.integers(-3, 5)))),
        lambda: psb.pow(psb.abs(pick()), constant(0.5)),
        lambda: psb.switch(psb.gt(pick(), pick()), pick(), pick()),
        lambda: psb.maximum(pick(), pick()),
        lambda: psb.minimum(pick(), pick()),
        lambda: psb.sign(pick()),
        lambda: psb.abs(pick()),
        lambda: psb.tanh(pick()),
        lambda: psb.sin(pick()),
        lambda: psb.identity(pick()),
        lambda: psb.second(pick(), pick()),
    ]
    for _ in range(size):
        pool.append(makers[rng.integers(len(makers))]())
    return pool[-6:]


@pytest.mark.parametrize("seed", range(60))
def test_simplify_keeps_values_of_random_expressions(seed: int) -> None:
    expressions = random_expressions(seed)
    simple = simplify(expressions)
    for at in points(5, seed):
        before, after = np.array(evaluate(expressions, at)), np.array(evaluate(simple, at))
        usable = np.isfinite(before) & (np.abs(before) < 1e8)  # cancellation and 0/0 may fold to something finite
        np.testing.assert_allclose(after[usable], before[usable], rtol=1e-7, atol=1e-9)


def test_a_function_of_numbers_keeps_nothing_between_calls() -> None:
    f = as_function([a, b, c], [div(mul(a, a, b), sub(b, constant(1.0))), 2.0, constant(3.0), a, psb.gt(a, b)])
    assert f(2.0, 3.0, 0.0) == [6.0, 2.0, 3.0, 2.0, 0.0]
    assert f(2.0, 1.0, 0.0) == [math.inf, 2.0, 3.0, 2.0, 1.0]
    assert f(2.0, 3.0, 0.0) == [6.0, 2.0, 3.0, 2.0, 0.0]
    with pytest.raises(ValueError, match="argument"):
        f(2.0, 3.0)
    with pytest.raises(KeyError, match="x1"):
        as_function([a], [psb.add(a, b)])


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_arrays_are_evaluated_as_numbers_are(seed: int) -> None:
    expressions, at = random_expressions(seed), points(5, seed)
    arrays = evaluate_arrays(expressions, {v: np.array([p[v] for p in at]) for v in at[0]})
    each = np.array([evaluate(expressions, p) for p in at]).T
    for found, expected in zip(arrays, each, strict=True):
        np.testing.assert_allclose(np.broadcast_to(found, expected.shape), expected, rtol=1e-12)


def test_arrays_keep_the_shape_of_what_an_expression_depends_on() -> None:
    a, b, c = symbols("a", 3)
    many, one = np.linspace(0, 1, 5)[None], np.array([[2.0]])
    outputs = [psb.add(a, b, c), psb.clip(a, constant(0.2), constant(0.7)), psb.sqr(b), ps.erf(a), 3.0, constant(4.0)]
    outputs.append(psb.switch(psb.and_(psb.gt(a, b), psb.lt(a, c)), a, b))
    found = evaluate_arrays(outputs, {a: many, b: one, c: one})
    assert [f.shape for f in found] == [(1, 5), (1, 5), (1, 1), (1, 5), (), (), (1, 5)]
    assert found[0] == pytest.approx(many + 4) and found[1] == pytest.approx(np.clip(many, 0.2, 0.7)) and found[4] == 3.0


def test_random_expressions_are_worth_testing() -> None:
    finite = [np.isfinite(evaluate(random_expressions(s), points(1, s)[0])) for s in range(60)]
    assert np.mean(finite) > 0.7
    shrunk = [len(nodes(*simplify(e))) < len(nodes(*e)) for e in map(random_expressions, range(60))]
    assert np.mean(shrunk) > 0.8


@pytest.mark.parametrize("exponent", [-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 8.0, 9.0])
def test_powers_keep_values_and_derivatives(exponent: float) -> None:
    power = psb.pow(a, constant(exponent))
    (simple,) = simplify([power])
    ((slope,),) = jacobian([simple], [a])
    for x in (0.3, 1.7) + ((-0.8, -2.1) if exponent == int(exponent) else ()):
        value, derivative = evaluate([simple, slope], {a: x})
        assert value == pytest.approx(x**exponent, rel=1e-13)
        assert derivative == pytest.approx(exponent * x ** (exponent - 1), rel=1e-12)


@pytest.mark.parametrize("exponent", [-3.0, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_small_powers_need_no_power_function(exponent: float) -> None:
    assert psb.Pow not in operations(*simplify([psb.pow(a, constant(exponent))]))


@pytest.mark.parametrize(
    "product, slope",
    [
        (lambda: psb.mul(a, a), lambda x, y: (2 * x, 0.0)),
        (lambda: psb.mul(a, a, a), lambda x, y: (3 * x**2, 0.0)),
        (lambda: psb.mul(a, b, a), lambda x, y: (2 * x * y, x**2)),
        (lambda: psb.mul(psb.mul(a, b), psb.mul(b, a)), lambda x, y: (2 * x * y**2, 2 * x**2 * y)),
        (lambda: psb.mul(psb.sin(a), psb.sin(a)), lambda x, y: (math.sin(2 * x), 0.0)),
        (lambda: mul(a, a, b, b), lambda x, y: (2 * x * y**2, 2 * x**2 * y)),
        (lambda: psb.true_div(a, psb.mul(a, a)), lambda x, y: (-1 / x**2, 0.0)),
        (lambda: psb.add(a, a, b), lambda x, y: (2.0, 1.0)),
        (lambda: psb.maximum(a, a), lambda x, y: (1.0, 0.0)),
    ],
)
def test_repeated_arguments_have_the_full_derivative(product: Any, slope: Any) -> None:
    (rows,) = jacobian(simplify([product()]), [a, b])
    assert evaluate(rows, {a: 1.3, b: -0.7}) == pytest.approx(slope(1.3, -0.7), rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_jacobian_equals_finite_differences_of_random_expressions(seed: int) -> None:
    simple = simplify(random_expressions(seed, size=12))
    rows = jacobian(simple, X)
    compared = 0
    for at in points(4, seed):
        x0 = np.array(list(at.values()))
        for expression, row in zip(simple, rows, strict=True):

            def value(x: np.ndarray, expression: Any = expression) -> float:
                return evaluate([expression], dict(zip(X, x, strict=True)))[0]

            exact, coarse, fine = np.array(evaluate(row, at)), central(value, x0, 2e-5), central(value, x0, 1e-5)
            if not np.all(np.isfinite(coarse + fine)) or np.any(np.abs(coarse - fine) > 1e-7 * (1 + np.abs(fine))):
                continue  # a kink or a pole within reach of the differences
            np.testing.assert_allclose(exact, fine, rtol=1e-6, atol=1e-6)
            compared += 1
    assert compared > 0


@pytest.mark.parametrize(
    "function, slope",
    [
        (lambda v: psb.abs(v), lambda x: np.sign(x)),
        (lambda v: psb.sign(v), lambda x: 0.0),
        (lambda v: psb.tanh(v), lambda x: 1 - np.tanh(x) ** 2),
        (lambda v: psb.exp(v), lambda x: np.exp(x)),
        (lambda v: psb.log1p(psb.sqr(v)), lambda x: 2 * x / (1 + x**2)),
        (lambda v: psb.maximum(v, constant(0.0)), lambda x: float(x > 0)),
        (lambda v: psb.minimum(v, constant(0.5)), lambda x: float(x < 0.5)),
        (lambda v: psb.neg(psb.maximum(v, constant(0.0))), lambda x: -float(x > 0)),
        (lambda v: psb.neg(psb.minimum(v, constant(0.0))), lambda x: -float(x < 0)),
        (lambda v: psb.clip(v, constant(-1.0), constant(1.0)), lambda x: float(abs(x) < 1)),
        (lambda v: psb.neg(psb.clip(v, constant(-1.0), constant(1.0))), lambda x: -float(abs(x) < 1)),
        (
            lambda v: psb.sub(psb.maximum(v, constant(0.0)), psb.maximum(v, constant(1.0))),
            lambda x: float(x > 0) - float(x > 1),
        ),
        (
            lambda v: psb.add(psb.maximum(v, constant(0.0)), psb.maximum(v, constant(-1.0))),
            lambda x: float(x > 0) + float(x > -1),
        ),
        (lambda v: psb.arctan2(v, constant(2.0)), lambda x: 2 / (4 + x**2)),
        (lambda v: psm.sigmoid(v), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
        (lambda v: psm.softplus(v), lambda x: 1 / (1 + np.exp(-x))),
        (lambda v: psm.erf(v), lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x**2))),
        (lambda v: psb.switch(psb.gt(v, constant(0.0)), psb.sqr(v), psb.neg(v)), lambda x: 2 * x if x > 0 else -1.0),
    ],
)
def test_derivatives_of_elementary_functions(function: Any, slope: Any) -> None:
    rows = jacobian([function(a)], [a])
    for x in (-1.7, -0.4, 0.3, 2.2):
        assert evaluate(rows[0], {a: x})[0] == pytest.approx(slope(x), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("function", [psb.abs, psb.sign, lambda v: psb.mul(psb.abs(v), v), lambda v: psb.sqr(v)])
def test_derivatives_at_rest_are_finite(function: Any) -> None:
    rows = jacobian([function(a)], [a])
    assert math.isfinite(evaluate(rows[0], {a: 0.0})[0])


def test_jacobian_of_numbers_and_unrelated_inputs_is_the_number_zero() -> None:
    assert jacobian([2.0, psb.sqr(a)], [b, c]) == [[0.0, 0.0], [0.0, 0.0]]
    assert jacobian([a], []) == [[]]
    assert jacobian([], [a]) == []


def test_vjp_weights_the_rows_of_the_jacobian() -> None:
    outputs = [psb.mul(a, b), psb.sin(a)]
    pulled = vjp(outputs, [a, b, c], [constant(2.0), constant(-3.0)])
    assert evaluate(pulled, {a: 0.4, b: 1.2, c: 0.0}) == pytest.approx([2 * 1.2 - 3 * math.cos(0.4), 0.8, 0.0])
    assert vjp([], [a, b], []) == [0.0, 0.0]


def test_vjp_adds_the_cotangents_of_equal_outputs() -> None:
    sine = psb.sin(a)
    for output, slope in ((a, 1.0), (sine, math.cos(0.4))):
        pulled = vjp([output, output], [a], [constant(2.0), constant(3.0)])
        assert evaluate(pulled, {a: 0.4}) == pytest.approx([5.0 * slope])


def test_vjp_of_an_output_that_another_output_is_made_from() -> None:
    sine = psb.sin(a)
    pulled = vjp([a, sine, psb.sqr(sine)], [a], [constant(2.0), constant(3.0), constant(4.0)])
    slope = math.cos(0.4)
    assert evaluate(pulled, {a: 0.4}) == pytest.approx([2.0 + 3.0 * slope + 8.0 * math.sin(0.4) * slope])


def test_neutral_elements_disappear() -> None:
    assert add(a, 0.0) is a and mul(1.0, a) is a and sub(a, 0.0) is a and div(a, 1.0) is a
    assert mul(a, 0.0) == 0.0 and div(0.0, a) == 0.0
    assert add(1.0, 2.0) == 3.0 and mul(2.0, 3.0) == 6.0 and sub(1.0, 4.0) == -3.0 and sqrt(9.0) == 3.0
    assert add() == 0.0 and mul() == 1.0 and dot([], []) == 0.0


@pytest.mark.parametrize(
    "build, value",
    [
        (lambda: add(a, 2.0, b, -0.5), lambda x, y: x + y + 1.5),
        (lambda: mul(a, 2.0, b, -0.5), lambda x, y: -x * y),
        (lambda: mul(-1.0, a), lambda x, y: -x),
        (lambda: sub(0.0, a), lambda x, y: -x),
        (lambda: sub(2.0, a), lambda x, y: 2 - x),
        (lambda: div(a, 4.0), lambda x, y: x / 4),
        (lambda: div(3.0, b), lambda x, y: 3 / y),
        (lambda: dot([a, 2.0, 0.0], [b, a, b]), lambda x, y: x * y + 2 * x),
        (lambda: sqrt(mul(a, a)), lambda x, y: abs(x)),
        (lambda: switch(psb.lt(a, b), 1.0, a), lambda x, y: 1.0 if x < y else x),
    ],
)
def test_constructors_compute_what_they_say(build: Any, value: Any) -> None:
    for x, y in ((0.7, -1.1), (-2.0, 3.0)):
        assert evaluate([build()], {a: x, b: y}) == pytest.approx([value(x, y)], rel=1e-14)


def test_equal_expressions_are_shared() -> None:
    first, second = simplify([psb.sin(psb.mul(a, b)), psb.sin(psb.mul(b, a))])
    assert first is second
    first, second = simplify([psb.sub(a, b), psb.sub(b, a)])
    assert first is not second
    assert simplify([psb.sub(psb.mul(a, b), psb.mul(a, b)), psb.true_div(a, b)])[0] == 0.0


def test_sharing_tells_operations_and_constants_apart() -> None:
    outputs = simplify([psb.maximum(a, b), psb.minimum(a, b), psb.add(a, constant(2.0)), psb.add(a, constant(3.0))])
    assert evaluate(outputs, {a: 0.5, b: 4.0}) == [4.0, 0.5, 2.5, 3.5]


def test_simplify_is_idempotent() -> None:
    once = simplify(random_expressions(3))
    assert len(nodes(*simplify(once))) == len(nodes(*once))


def test_simplify_folds_constant_outputs_to_floats() -> None:
    outputs = simplify([psb.exp(constant(0.0)), 3, psb.switch(constant(1.0), constant(2.0), a), constant(4.0)])
    assert outputs == [1.0, 3.0, 2.0, 4.0] and all(isinstance(v, float) for v in outputs)


def test_simplify_folds_division_by_zero_without_an_exception() -> None:
    assert simplify([psb.true_div(constant(1.0), constant(0.0))]) == [math.inf]
    (guarded,) = simplify([psb.switch(psb.gt(a, constant(0.0)), b, psb.true_div(b, constant(0.0)))])
    assert evaluate([guarded], {a: 1.0, b: 2.0}) == [2.0]


def test_switch_with_equal_branches_needs_no_condition() -> None:
    assert simplify([psb.switch(psb.gt(a, b), c, c)])[0] is c
    assert simplify([psb.switch(psb.gt(a, b), constant(2.0), constant(2.0))]) == [2.0]


def test_negated_conditions_are_numbers() -> None:
    assert evaluate([mul(-1.0, psb.gt(a, constant(0.0)))], {a: 2.0}) == [-1.0]
    assert evaluate([sub(psb.gt(a, b), psb.gt(b, a))], {a: 2.0, b: 3.0}) == [-1.0]


@pytest.mark.parametrize("value", [2.7, -2.7, 0.0])
def test_casts_convert_as_numbers(value: float) -> None:
    (whole, flag) = simplify([psb.cast(a, "int64"), psb.cast(a, "bool")])
    assert evaluate([whole, flag], {a: value}) == [math.trunc(value), float(value != 0)]


def test_casts_to_single_precision_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="float32 is not available"):
        simplify([psb.convert_to_float32(a)])


@pytest.mark.parametrize("operation, expected", [(psb.and_, 2.0), (psb.or_, 1.0), (psb.xor, 1.0)])
def test_conditions_with_a_constant_part_are_folded(operation: Any, expected: float) -> None:
    condition = operation(psb.gt(a, constant(0.0)), psb.gt(constant(1.0), constant(0.0)))
    simple = simplify([psb.switch(condition, constant(1.0), constant(2.0))])
    assert evaluate(simple, {a: -1.0}) == [expected]


@pytest.mark.parametrize("operation, expected", [(psb.and_, 2.0), (psb.or_, 1.0), (psb.xor, 1.0)])
def test_constant_conditions_are_folded(operation: Any, expected: float) -> None:
    yes, no = psb.gt(constant(1.0), constant(0.0)), psb.lt(constant(1.0), constant(0.0))
    (simple,) = simplify([psb.switch(operation(yes, no), constant(1.0), constant(2.0))])
    assert simple == expected


def test_substitute_replaces_by_numbers_and_by_expressions() -> None:
    (result,) = substitute([psb.add(psb.mul(a, b), c)], {a: 2.0, c: psb.sin(b)})
    assert evaluate([result], {b: 0.3}) == pytest.approx([0.6 + math.sin(0.3)])
    assert substitute([a, 3.0, b], {a: c}) == [c, 3.0, b]


def test_substitute_does_all_replacements_at_once() -> None:
    swapped = substitute([psb.sub(a, b)], {a: b, b: a})
    assert evaluate(swapped, {a: 5.0, b: 2.0}) == [-3.0]


def test_elementwise_broadcasts() -> None:
    result = elementwise(add, np.array([[1.0], [2.0]], object), np.array([10.0, 20.0], object))
    np.testing.assert_array_equal(result.astype(float), [[11, 21], [12, 22]])


def test_numbers_and_variables_are_told_apart() -> None:
    assert is_number(2.0) and is_number(2.0, 2.0) and not is_number(2.0, 1.0) and not is_number(a)
    assert as_variable(a) is a and as_variable(2.0).data == 2.0
    assert symbol("q").type == ps.float64 and [s.name for s in symbols("q", 2)] == ["q0", "q1"]
