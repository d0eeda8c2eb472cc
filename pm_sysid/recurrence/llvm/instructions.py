"""Scalar graphs as LLVM instructions, for one value or a vector of lanes.

The graph is already plain arithmetic with known types, and nothing stands between it and LLVM. With vector types every
operation works on all lanes at once, and nothing is left to the compiler's judgement of what can be vectorised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
from llvmlite import ir
from pytensor.graph.basic import Constant, Variable

from pm_sysid.recurrence.llvm.loops import Loops
from pm_sysid.recurrence.llvm.segments import Call, Home, Segment
from pm_sysid.recurrence.llvm.vector_math import Lanes
from pm_sysid.symbolic.routines import Routine
from pm_sysid.symbolic.scalars import Root

DOUBLE = ir.DoubleType()
_INTRINSICS = {
    psb.Sqrt: "sqrt", Root: "sqrt", psb.Abs: "fabs", psb.Exp: "exp", psb.Log: "log", psb.Log2: "log2", psb.Log10: "log10",
    psb.Sin: "sin", psb.Cos: "cos", psb.Pow: "pow", psb.Floor: "floor", psb.Ceil: "ceil", psb.Trunc: "trunc",
}  # fmt: skip
_LIBRARY = {
    psb.Expm1: "expm1", psb.Log1p: "log1p", psb.Tan: "tan", psb.ArcSin: "asin", psb.ArcCos: "acos",
    psb.ArcTan: "atan", psb.ArcTan2: "atan2", psb.Sinh: "sinh", psb.Cosh: "cosh", psb.Tanh: "tanh",
    psb.ArcSinh: "asinh", psb.ArcCosh: "acosh", psb.ArcTanh: "atanh", psm.Erf: "erf", psm.Erfc: "erfc",
    psm.GammaLn: "lgamma",
}  # fmt: skip
_ORDERED = {psb.LT: "<", psb.GT: ">", psb.LE: "<=", psb.GE: ">=", psb.EQ: "=="}


class Emitter:
    """Instructions for scalar operations at the current position of a builder.

    With ``lanes`` every value is a vector of so many doubles.
    """

    def __init__(self, builder: ir.IRBuilder, lanes: int = 0) -> None:
        self.builder, self.lanes = builder, lanes
        self.type = ir.VectorType(DOUBLE, lanes) if lanes else DOUBLE

    def constant(self, value: float) -> Any:
        """Return a double."""
        return ir.Constant(self.type, value)

    def real(self, v: Any) -> Any:
        """Return a truth value as 0 or 1, and anything else as it is."""
        return self.builder.uitofp(v, self.type) if v.type != self.type else v

    def truth(self, v: Any) -> Any:
        """Return whether a number is not zero."""
        return v if v.type != self.type else self.builder.fcmp_unordered("!=", v, self.constant(0.0))

    def splat(self, value: Any) -> Any:
        """Return a double in every lane."""
        if not self.lanes:
            return value
        index, undefined = ir.IntType(32), ir.Constant(self.type, ir.Undefined)
        one = self.builder.insert_element(undefined, value, ir.Constant(index, 0))
        return self.builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(index, self.lanes), 0))

    def intrinsic(self, name: str, *args: Any) -> Any:
        """Call an LLVM intrinsic."""
        if self.lanes:
            vector = Lanes(self.builder, self.lanes)
            return vector.exp(*args) if name == "exp" else vector.log(*args) if name == "log" else vector.call(name, *args)
        function = self.builder.module.declare_intrinsic(
            f"llvm.{name}", [DOUBLE], ir.FunctionType(DOUBLE, [DOUBLE] * len(args))
        )
        return self.builder.call(function, args)

    def library(self, function: str, *args: Any) -> Any:
        """Call a function of the C library, lane by lane."""
        if self.lanes:
            if function == "tanh":
                return Lanes(self.builder, self.lanes).tanh(*args)
            result, one = ir.Constant(self.type, ir.Undefined), Emitter(self.builder)
            for i in range(self.lanes):
                lane = ir.Constant(ir.IntType(32), i)
                value = one.library(function, *(self.builder.extract_element(a, lane) for a in args))
                result = self.builder.insert_element(result, value, lane)
            return result
        module = self.builder.module
        kind = ir.FunctionType(DOUBLE, [DOUBLE] * len(args))
        return self.builder.call(module.globals.get(function) or ir.Function(module, kind, function), args)

    def _chain(self, combine: Callable[[Any, Any], Any], a: Sequence[Any]) -> Any:
        result = a[0]
        for x in a[1:]:
            result = combine(result, x)
        return result

    def emit(self, op: Any, args: Sequence[Any]) -> Any:
        """Emit one scalar operation."""
        b = self.builder
        match op:
            case psb.AND() | psb.OR() | psb.XOR():
                combine = {psb.AND: b.and_, psb.OR: b.or_, psb.XOR: b.xor}[type(op)]
                return combine(*(self.truth(v) for v in args))
            case psb.Invert():
                return b.not_(self.truth(args[0]))
            case psb.Switch():
                return b.select(self.truth(args[0]), self.real(args[1]), self.real(args[2]))
        a = [self.real(v) for v in args]
        if type(op) in _ORDERED:
            return b.fcmp_ordered(_ORDERED[type(op)], *a)
        if type(op) in _INTRINSICS:
            return self.intrinsic(_INTRINSICS[type(op)], *a)
        if type(op) in _LIBRARY:
            return self.library(_LIBRARY[type(op)], *a)
        one, zero = self.constant(1.0), self.constant(0.0)
        match op:
            case psb.Add():
                return self._chain(b.fadd, a)
            case psb.Mul():
                return self._chain(b.fmul, a)
            case psb.Sub():
                return b.fsub(*a)
            case psb.TrueDiv():
                return b.fdiv(*a)
            case psb.Neg():
                return b.fneg(a[0])
            case psb.Sqr():
                return b.fmul(a[0], a[0])
            case psb.Reciprocal():
                return b.fdiv(one, a[0])
            case psb.Identity() | psb.Cast():
                return a[0]
            case psb.Second():
                return a[1]
            case psb.NEQ():
                return b.fcmp_unordered("!=", *a)
            case psb.IsNan():
                return b.fcmp_unordered("uno", a[0], a[0])
            case psb.IsInf():
                return b.fcmp_ordered("==", self.intrinsic("fabs", a[0]), self.constant(math.inf))
            case psb.Sign():
                negative = b.select(b.fcmp_ordered("<", a[0], zero), self.constant(-1.0), b.fmul(zero, a[0]))
                return b.select(b.fcmp_ordered(">", a[0], zero), one, negative)
            case psb.Maximum() | psb.Minimum():
                compare = ">" if isinstance(op, psb.Maximum) else "<"
                first = b.or_(b.fcmp_ordered(compare, *a), b.fcmp_unordered("uno", a[0], a[0]))
                return b.select(first, *a)
            case psb.Clip():
                above = b.select(b.fcmp_ordered(">", a[0], a[2]), a[2], a[0])
                return b.select(b.fcmp_ordered("<", a[0], a[1]), a[1], above)
            case psb.Mod():
                return b.fsub(a[0], b.fmul(self.intrinsic("floor", b.fdiv(*a)), a[1]))
            case psb.IntDiv():
                return self.intrinsic("floor", b.fdiv(*a))
            case psm.Sigmoid():
                return b.fdiv(one, b.fadd(one, self.intrinsic("exp", b.fneg(a[0]))))
            case psm.Softplus():
                tail = self.library("log1p", self.intrinsic("exp", b.fneg(self.intrinsic("fabs", a[0]))))
                return b.fadd(tail, b.select(b.fcmp_ordered(">", a[0], zero), a[0], zero))
        raise NotImplementedError(f"the operation {op} is not available in a recurrence; use elementary functions.")

    def segment(self, segment: Segment, address: Callable[[Home], Any]) -> None:
        """Emit the loads, operations and stores of a segment."""
        b = self.builder

        def load(place: Any) -> Any:
            value = b.load(place)
            return value if value.type == self.type else self.splat(value)

        values: dict[Variable, Any] = {v: load(address(home)) for v, home in segment.loads}

        def look_up(v: Variable) -> Any:
            return self.constant(float(v.data)) if isinstance(v, Constant) else values[v]

        for node in segment.nodes:
            values[node.outputs[0]] = self.emit(node.op, [look_up(v) for v in node.inputs])
        for v, home in segment.stores:
            value, place = self.real(look_up(v)), address(home)
            b.store(b.fadd(b.load(place), value) if home.accumulate else value, place)


def relax(function: ir.Function) -> None:
    """Allow a function's arithmetic to be reordered and contracted, as real numbers may be.

    No 'nnan' or 'ninf': missing samples and diverged states are told apart by comparisons.
    """
    for block in function.blocks:
        for instruction in block.instructions:
            if instruction.opname in ("fadd", "fsub", "fmul", "fdiv", "fneg"):
                instruction.flags = ["contract", "nsz", "arcp", "reassoc"]


def routine_function(module: ir.Module, routine: Routine, lanes: int, width: int) -> ir.Function:
    """LLVM function of a routine, once in a module."""
    function = module.globals.get(routine.symbol)
    if function is None:
        shapes = (*routine.reads, *routine.writes, *routine.scratch)
        loops = Loops(module, routine.source(routine.symbol), {}, width, lanes)
        function = loops.routine(routine.symbol, shapes)
        relax(function)
    return function


def phase_function(
    module: ir.Module, name: str, segments: Sequence[Segment | Call], arrays: Sequence[str], lanes: int = 0, width: int = 1
) -> ir.Function:
    """LLVM function of a phase: it takes an address in each of its arrays, none of which overlap.

    With ``lanes``, arrays hold ``width`` adjacent doubles for each entry and the addresses are aligned to vectors of
    ``lanes``; rows of the record have one double for each entry.
    """
    kind = ir.FunctionType(ir.VoidType(), [DOUBLE.as_pointer()] * len(arrays))
    parts = []
    for k, segment in enumerate(segments):
        part = ir.Function(module, kind, f"{name}_{k}")
        for argument in part.args:
            argument.add_attribute("noalias")
        builder = ir.IRBuilder(part.append_basic_block())
        emitter, base = Emitter(builder, lanes), dict(zip(arrays, part.args, strict=True))

        def address(home: Home, builder: ir.IRBuilder = builder, emitter: Emitter = emitter, base: Any = base) -> Any:
            wide = lanes and not home.row
            place = builder.gep(base[home.array], [ir.Constant(ir.IntType(64), home.entry * (width if wide else 1))])
            return builder.bitcast(place, emitter.type.as_pointer()) if wide else place

        if isinstance(segment, Call):
            places = [builder.bitcast(address(home), DOUBLE.as_pointer()) for home in segment.arrays]
            builder.call(routine_function(module, segment.routine, lanes, width), places)
        else:
            emitter.segment(segment, address)
        builder.ret_void()
        relax(part)
        part.linkage = "internal"
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    phase = ir.Function(module, kind, name)
    builder = ir.IRBuilder(phase.append_basic_block())
    for part in parts:
        builder.call(part, phase.args)
    builder.ret_void()
    phase.linkage = "internal"
    return phase
