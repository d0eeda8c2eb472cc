"""Scalar graphs printed as Python: the interpreted reference every compiled backend is tested against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
from pytensor.graph.basic import Constant, Variable

from pm_sysid.recurrence.llvm.segments import Call, Home, Segment
from pm_sysid.symbolic.scalars import Root

_CALLS = {
    psb.Exp: "exp", psb.Expm1: "expm1", psb.Log: "log", psb.Log1p: "log1p", psb.Log2: "log2", psb.Log10: "log10",
    psb.Sqrt: "sqrt", Root: "sqrt", psb.Sin: "sin", psb.Cos: "cos", psb.Tan: "tan", psb.ArcSin: "arcsin", psb.ArcCos: "arccos",
    psb.ArcTan: "arctan", psb.ArcTan2: "arctan2", psb.Sinh: "sinh", psb.Cosh: "cosh", psb.Tanh: "tanh",
    psb.ArcSinh: "arcsinh", psb.ArcCosh: "arccosh", psb.ArcTanh: "arctanh", psb.Floor: "floor", psb.Ceil: "ceil",
    psb.Trunc: "trunc", psb.Abs: "fabs", psb.Pow: "power", psb.Maximum: "maximum", psb.Minimum: "minimum",
    psb.IsNan: "isnan", psb.IsInf: "isinf", psm.Erf: "erf", psm.Erfc: "erfc", psm.GammaLn: "lgamma",
}  # fmt: skip
_INFIX = {
    psb.Add: "+", psb.Mul: "*", psb.Sub: "-", psb.TrueDiv: "/",
    psb.LT: "<", psb.GT: ">", psb.LE: "<=", psb.GE: ">=", psb.EQ: "==", psb.NEQ: "!=",
}  # fmt: skip
_FORMS = {
    psb.Neg: "-{0}",
    psb.Sqr: "{0} * {0}",
    psb.Reciprocal: "1.0 / {0}",
    psb.Identity: "1.0 * {0}",
    psb.Cast: "1.0 * {0}",
    psb.Second: "{1}",
    psb.Switch: "{1} if {0} != 0.0 else {2}",
    psb.Sign: "1.0 if {0} > 0.0 else -1.0 if {0} < 0.0 else 0.0 * {0}",
    psb.Clip: "{1} if {0} < {1} else {2} if {0} > {2} else {0}",
    psb.Mod: "{0} - floor({0} / {1}) * {1}",
    psb.IntDiv: "floor({0} / {1})",
    psb.AND: "1.0 * (({0} != 0.0) & ({1} != 0.0))",
    psb.OR: "1.0 * (({0} != 0.0) | ({1} != 0.0))",
    psb.XOR: "1.0 * (({0} != 0.0) != ({1} != 0.0))",
    psb.Invert: "1.0 * ({0} == 0.0)",
    psm.Sigmoid: "1.0 / (1.0 + exp(-{0}))",
    psm.Softplus: "log1p(exp(-fabs({0}))) + ({0} if {0} > 0.0 else 0.0)",
}

NAMESPACE: Mapping[str, Any] = {
    "np": np,
    "inf": math.inf,
    "nan": math.nan,
    "erf": math.erf,
    "erfc": math.erfc,
    "lgamma": math.lgamma,
    **{name: getattr(np, name) for name in _CALLS.values() if hasattr(np, name)},
}


def expression(op: Any, a: Sequence[str]) -> str:
    """Print one scalar operation."""
    kind = type(op)
    if kind in _INFIX:
        text = f" {_INFIX[kind]} ".join(a)
        return f"1.0 * ({text})" if isinstance(op, psb.LogicalComparison) else text
    if kind in _CALLS:
        return f"{_CALLS[kind]}({', '.join(a)})"
    if kind in _FORMS:
        return _FORMS[kind].format(*a)
    raise NotImplementedError(f"the operation {op} is not available in a recurrence; use elementary functions.")


def _place(home: Home) -> str:
    return f"{home.array}[s, {home.entry}]" if home.row else f"{home.array}[{home.entry}]"


def print_call(call: Call) -> str:
    """Print a call of a routine on parts of arrays."""
    routine, parts = call.routine, []
    for home, shape in zip(call.arrays, (*routine.reads, *routine.writes, *routine.scratch), strict=True):
        parts.append(f"{home.array}[{home.entry}:{home.entry + math.prod(shape)}].reshape({shape})")
    return f"{routine.symbol}({', '.join(parts)})"


def print_phase(name: str, segments: Sequence[Segment | Call], arrays: Sequence[str]) -> str:
    """Print the segments of a phase as one function of its arrays and the current row ``s``, for one lane at offset zero."""
    names: dict[Variable, str] = {}
    fresh = (f"x{i}" for i in count())
    lines = []

    def literal(v: Variable) -> str:
        if not isinstance(v, Constant):
            return names[v]
        value = float(v.data)
        return f"({value!r})" if math.isfinite(value) else "nan" if math.isnan(value) else f"({'-' * (value < 0)}inf)"

    for segment in segments:
        if isinstance(segment, Call):
            lines.append(print_call(segment))
            continue
        for v, home in segment.loads:
            names[v] = next(fresh)
            lines.append(f"{names[v]} = {_place(home)}")
        for node in segment.nodes:
            text = expression(node.op, [literal(v) for v in node.inputs])
            names[node.outputs[0]] = next(fresh)
            lines.append(f"{names[node.outputs[0]]} = {text}")
        lines += [f"{_place(home)} {'+' * home.accumulate}= {literal(v)}" for v, home in segment.stores]
    return "\n    ".join([f"def {name}({', '.join(arrays)}, s, o=0):", *(lines or ["pass"])])
