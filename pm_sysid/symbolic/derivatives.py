"""Exact derivatives of scalar graphs by a reverse sweep over their operations.

PyTensor's own machinery for gradients takes a millisecond for each scalar operation; steps have thousands. The rules are
the same, at kinks too: the maximum of equal numbers is the first, the absolute value has slope zero at zero.

So have roots and powers whose slope would be infinite there. A tank that starts empty, drag from rest, or a valve with equal
pressures on both sides would else have no likelihood, since an infinite slope times the zero beside it is no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
from pytensor.graph.basic import Apply, Constant, Variable

from pm_sysid.compat import io_toposort
from pm_sysid.symbolic.routines import Routine, pull_back
from pm_sysid.symbolic.scalars import Root, Scalar, add, constant, div, is_number, mul, simplify, sqrt, sub, switch

#: Size below which the argument of a power is at zero: what is steeper there overflows in higher derivatives.
AT_ZERO = 1e-60

#: Cotangent of the output, inputs, output: cotangents of the inputs, of which None is no dependence.
type Rule = Callable[[Scalar, Sequence[Any], Any], Sequence[Scalar | None]]


def _square(x: Scalar) -> Scalar:
    return psb.sqr(x) if isinstance(x, Variable) else x * x


def _product(g: Scalar, x: Sequence[Scalar], y: Scalar) -> list[Scalar]:
    return [mul(g, *x[:i], *x[i + 1 :]) for i in range(len(x))]


def _quotient(g: Scalar, x: Sequence[Scalar], y: Scalar) -> list[Scalar]:
    by_numerator = div(g, x[1])
    return [by_numerator, mul(-1.0, by_numerator, y)]


def _power(g: Scalar, x: Sequence[Any], y: Any) -> list[Scalar]:
    base, exponent = x
    zero, near = psb.eq(base, constant(0.0)), psb.lt(psb.abs(base), constant(AT_ZERO))
    if isinstance(exponent, Constant):
        steep = near if exponent.data < 1 else None
    else:
        steep = psb.and_(near, psb.lt(exponent, constant(1.0)))
    by_base = _beside(steep, base, lambda b: mul(g, exponent, psb.pow(b, sub(exponent, 1.0))))
    return [by_base, _beside(zero, base, lambda b: mul(g, psb.log(b), y))]


def _root(g: Scalar, x: Sequence[Any], y: Any) -> list[Scalar]:
    return [_beside(psb.lt(x[0], constant(AT_ZERO)), y, lambda r: div(g, mul(2.0, r)))]


def _beside(condition: Variable | None, value: Any, slope: Callable[[Any], Scalar]) -> Scalar:
    """Slope where the condition does not hold, zero where it does; there it is not computed from the value in any order."""
    return slope(value) if condition is None else switch(condition, 0.0, slope(switch(condition, 1.0, value)))


def _where(condition: Variable, g: Scalar, other: bool = False) -> Variable:
    return switch(condition, 0.0, g) if other else switch(condition, g, 0.0)


def _clip(g: Scalar, x: Sequence[Any], y: Any) -> list[Scalar]:
    value, low, high = x
    below, above = psb.lt(value, low), psb.gt(value, high)
    return [switch(below, 0.0, _where(above, g, other=True)), _where(below, g), _where(above, g)]


def _angle(g: Scalar, x: Sequence[Scalar], y: Any) -> list[Scalar]:
    squares = add(_square(x[0]), _square(x[1]))
    return [div(mul(g, x[1]), squares), div(mul(-1.0, g, x[0]), squares)]


def _of_one(slope: Callable[[Any, Any], Scalar]) -> Rule:
    """Rule of a function of one argument with the slope ``slope(x, y)``."""
    return lambda g, x, y: [mul(g, slope(x[0], y))]


def _over(denominator: Callable[[Any, Any], Scalar]) -> Rule:
    """Rule of a function of one argument with the slope ``1 / denominator(x, y)``."""
    return lambda g, x, y: [div(g, denominator(x[0], y))]


def _gauss(sign: float) -> Rule:
    return _of_one(lambda x, y: mul(sign * 2.0 / math.sqrt(math.pi), psb.exp(mul(-1.0, _square(x)))))


_FLAT: Rule = lambda g, x, y: [None] * len(x)  # noqa: E731
_RULES: Mapping[type, Rule] = {
    psb.Add: lambda g, x, y: [g] * len(x),
    psb.Sub: lambda g, x, y: [g, mul(-1.0, g)],
    psb.Mul: _product,
    psb.TrueDiv: _quotient,
    psb.Pow: _power,
    psb.ArcTan2: _angle,
    psb.Clip: _clip,
    psb.Switch: lambda g, x, y: [None, _where(x[0], g), _where(x[0], g, other=True)],
    psb.Maximum: lambda g, x, y: [_where(psb.ge(*x), g), _where(psb.ge(*x), g, other=True)],
    psb.Minimum: lambda g, x, y: [_where(psb.le(*x), g), _where(psb.le(*x), g, other=True)],
    psb.Mod: lambda g, x, y: [g, mul(-1.0, psb.int_div(*x), g)],
    psb.Second: lambda g, x, y: [None, g],
    psb.Neg: _of_one(lambda x, y: -1.0),
    psb.Identity: _of_one(lambda x, y: 1.0),
    psb.Cast: _of_one(lambda x, y: 1.0),
    psb.Sqr: _of_one(lambda x, y: mul(2.0, x)),
    psb.Abs: _of_one(lambda x, y: psb.sign(x)),
    psb.Reciprocal: _of_one(lambda x, y: mul(-1.0, _square(y))),
    psb.Exp: _of_one(lambda x, y: y),
    psb.Expm1: _of_one(lambda x, y: psb.exp(x)),
    psb.Sqrt: _over(lambda x, y: mul(2.0, y)),
    Root: _root,
    psb.Log: _over(lambda x, y: x),
    psb.Log1p: _over(lambda x, y: add(1.0, x)),
    psb.Log2: _over(lambda x, y: mul(math.log(2.0), x)),
    psb.Log10: _over(lambda x, y: mul(math.log(10.0), x)),
    psb.Sin: _of_one(lambda x, y: psb.cos(x)),
    psb.Cos: _of_one(lambda x, y: mul(-1.0, psb.sin(x))),
    psb.Tan: _of_one(lambda x, y: add(1.0, _square(y))),
    psb.ArcSin: _over(lambda x, y: sqrt(sub(1.0, _square(x)))),
    psb.ArcCos: _over(lambda x, y: mul(-1.0, sqrt(sub(1.0, _square(x))))),
    psb.ArcTan: _over(lambda x, y: add(1.0, _square(x))),
    psb.Sinh: _of_one(lambda x, y: psb.cosh(x)),
    psb.Cosh: _of_one(lambda x, y: psb.sinh(x)),
    psb.Tanh: _of_one(lambda x, y: sub(1.0, _square(y))),
    psb.ArcSinh: _over(lambda x, y: sqrt(add(_square(x), 1.0))),
    psb.ArcCosh: _over(lambda x, y: sqrt(sub(_square(x), 1.0))),
    psb.ArcTanh: _over(lambda x, y: sub(1.0, _square(x))),
    psm.Erf: _gauss(1.0),
    psm.Erfc: _gauss(-1.0),
    psm.GammaLn: _of_one(lambda x, y: psm.psi(x)),
    psm.Sigmoid: _of_one(lambda x, y: mul(y, sub(1.0, y))),
    psm.Softplus: _of_one(lambda x, y: psm.sigmoid(x)),
    **dict.fromkeys((psb.Sign, psb.Floor, psb.Ceil, psb.Trunc, psb.IntDiv), _FLAT),
}


def contributions(node: Apply, cotangent: Scalar) -> Sequence[Scalar | None]:
    """Cotangents of the inputs of a scalar operation; None where it does not depend on one smoothly."""
    if node.outputs[0].type.dtype != "float64":  # type: ignore[attr-defined]
        return [None] * len(node.inputs)
    rule = _RULES.get(type(node.op))
    if rule is None and isinstance(node.op, Routine):
        raise NotImplementedError(f"the routine {node.op} has an adjoint only; pull its derivative back.")
    if rule is None:
        raise NotImplementedError(f"the operation {node.op} has no derivative in a recurrence; use elementary functions.")
    return rule(cotangent, node.inputs, node.outputs[0])


def vjp(outputs: Sequence[Variable], wrt: Sequence[Variable], cotangents: Sequence[Variable]) -> list[Scalar]:
    """Vector-Jacobian product of scalar graphs; zero where an output does not depend on an input.

    Parameters
    ----------
    outputs
        Expressions.
    wrt
        Inputs of the graph.
    cotangents
        One for each output.
    """
    nodes = list(io_toposort([], list(outputs)))
    moving = set(wrt)
    for node in nodes:
        if any(v in moving for v in node.inputs):
            moving.update(node.outputs)
    terms: dict[Variable, list[Scalar]] = {}
    for output, cotangent in zip(outputs, cotangents, strict=True):
        terms.setdefault(output, []).append(cotangent)
    for node in reversed(nodes):
        if node.outputs[0] not in moving:
            continue
        totals = [add(*terms.pop(out, ())) for out in node.outputs]
        if all(is_number(total, 0.0) for total in totals):
            continue
        pulled = pull_back(node, totals) if isinstance(node.op, Routine) else contributions(node, totals[0])
        for v, term in zip(node.inputs, pulled, strict=True):
            if term is not None and v in moving and v.type.dtype == "float64":  # type: ignore[attr-defined]
                terms.setdefault(v, []).append(term)
    return [add(*terms.get(v, ())) for v in wrt]


def jacobian(outputs: Sequence[Scalar], wrt: Sequence[Variable]) -> list[list[Scalar]]:
    """Exact derivatives ``d outputs[i] / d wrt[j]``, simplified."""
    rows: list[Scalar] = []
    for out in outputs:
        if isinstance(out, Variable) and wrt:
            rows += vjp([out], wrt, [constant(1.0)])
        else:
            rows += [0.0] * len(wrt)
    flat = simplify(rows)
    return [flat[i * len(wrt) : (i + 1) * len(wrt)] for i in range(len(outputs))]
