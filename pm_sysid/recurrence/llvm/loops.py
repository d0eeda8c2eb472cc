"""Loops around the phases of a recurrence: a small part of Python, compiled to LLVM instructions.

A loop is written once, as the text of Python functions. Executed, it is the interpreted reference; compiled here, it is the
kernel. The part of Python is what loops over arrays need: whole numbers, ``for`` over ``range``, ``while``, ``if``, elements
and rows of arrays, calls. A function that is called is compiled into its caller; the phases are functions of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any, NamedTuple

from llvmlite import ir

from pm_sysid.recurrence.llvm import threads

DOUBLE, LONG, BIT, BYTES = ir.DoubleType(), ir.IntType(64), ir.IntType(1), ir.IntType(8).as_pointer()
#: Vectors of lanes are loaded whole, from addresses that are multiples of this.
ALIGNMENT = 128

#: What a kernel can refuse. It returns the position in this list, counted from 1, and 0 when all is well.
FAULTS = (
    "params, starts, substeps or samples have the wrong number of columns",
    "counts do not match the rows of starts, substeps and samples",
    "edges must lie within the record",
    "edges must not decrease",
    "starts are for another number of particles than params",
    "a run that goes on from a later sample needs the final state of the one before",
    "the cotangents do not fit the particles",
    "the cotangents do not fit the outputs",
    "params must have one row, or one for each run",
    "a vector of the filter has too few entries",
    "arrays that stand side by side have unequal numbers of rows",
    "the system gave no memory for the run",
)


class View(NamedTuple):
    """An array, or a part of one: the address of its first element, its shape and its strides in elements."""

    base: Any
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]

    @classmethod
    def contiguous(cls, builder: ir.IRBuilder, base: Any, shape: Sequence[Any]) -> View:
        """Array in row-major order."""
        strides: list[Any] = [number(1)]
        for n in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], n))
        return cls(base, tuple(shape), tuple(strides))


def number(value: int) -> Any:
    """Whole number."""
    return ir.Constant(LONG, value)


_COMPARE: Mapping[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


@lru_cache(maxsize=64)
def functions_of(source: str) -> Mapping[str, ast.FunctionDef]:
    """Functions of a text, by name."""
    return {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}


def kernel_type(
    dimensions: Sequence[int], integers: Sequence[int] = (), reals: Sequence[int] = (), strided: Sequence[int] = ()
) -> ir.FunctionType:
    """Type of a kernel; the arguments are those of :meth:`Loops.export`."""
    kinds: list[Any] = []
    for i, n in enumerate(dimensions):
        kind = LONG if i in integers else DOUBLE
        kinds += [kind.as_pointer(), *[LONG] * (2 * n if i in strided else n)] if n else [DOUBLE if i in reals else LONG]
    return ir.FunctionType(LONG, kinds)


class Loops:
    """Compiler of the functions of a text.

    Parameters
    ----------
    module : llvmlite.ir.Module
        Where the machine code goes.
    source : str
        Text of the functions.
    phases : mapping
        LLVM functions of the phases, by name; they take pointers only. On a call, an array of two dimensions stands for its
        current row and an array of one for what begins at the offset.
    width : int
        Doubles for each entry of an array of lanes.
    lanes : int
        Doubles in a vector, where the numbers of a routine are vectors.
    kernels : mapping
        Kernels of other modules, by name; on a call, an array stands for its address and shape.
    """

    def __init__(
        self,
        module: ir.Module,
        source: str,
        phases: Mapping[str, ir.Function],
        width: int = 1,
        lanes: int = 0,
        kernels: Mapping[str, ir.Function] | None = None,
    ) -> None:
        self.module, self.functions, self.phases, self.width = module, functions_of(source), phases, width
        self.lanes, self.real, self.kernels = lanes, ir.VectorType(DOUBLE, lanes) if lanes else DOUBLE, kernels or {}

    def export(
        self,
        name: str,
        symbol: str,
        dimensions: Sequence[int],
        integers: Sequence[int] = (),
        reals: Sequence[int] = (),
        strided: Sequence[int] = (),
    ) -> None:
        """Compile a function as ``symbol(pointer, sizes, pointer, sizes, ...)``, which returns 0 or the number of a fault.

        ``dimensions`` has one number for each argument: an array of so many dimensions, or 0 for a number, which is whole
        unless it is in ``reals``; the arguments in ``integers`` are arrays of whole numbers. Strides in bytes follow the sizes
        of those in ``strided``; others are contiguous.
        """
        function = ir.Function(self.module, kernel_type(dimensions, integers, reals, strided), symbol)
        body = Body(self, function, lambda b, fault: b.ret(number(fault) if isinstance(fault, int) else fault))
        values, arguments = iter(function.args), []
        for i, n in enumerate(dimensions):
            first, sizes = next(values), [next(values) for _ in range(n)]
            if i in strided:
                strides = [body.builder.sdiv(next(values), number(8)) for _ in range(n)]
                arguments.append(View(first, tuple(sizes), tuple(strides)))
            else:
                arguments.append(View.contiguous(body.builder, first, sizes) if n else first)
        body.call(self.functions[name], arguments)
        body.builder.ret(number(0))

    def routine(self, symbol: str, shapes: Sequence[Sequence[int]]) -> ir.Function:
        """Compile the only function as one of the addresses of arrays of fixed shapes, none of which overlap what it writes.

        With lanes the numbers are vectors, and entries are ``width`` doubles apart.
        """
        pointers = [DOUBLE.as_pointer()] * len(shapes)
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), pointers), symbol)
        body = Body(self, function, lambda b, fault: b.ret_void())
        (text,) = self.functions.values()
        arrays = []
        for place, shape in zip(function.args, shapes, strict=True):
            place.add_attribute("noalias")
            base = body.builder.bitcast(place, self.real.as_pointer())
            view = View.contiguous(body.builder, base, [number(n) for n in shape])
            apart = number(self.width // self.lanes if self.lanes else 1)
            arrays.append(view._replace(strides=tuple(body.builder.mul(n, apart) for n in view.strides)))
        body.call(text, arrays)
        body.builder.ret_void()
        function.linkage = "internal"
        function.attributes.add("noinline")
        return function


class Frame(NamedTuple):
    """What the names of one call mean: places of whole numbers, and arrays; and the memory it has asked for."""

    names: dict[str, Any]
    memory: list[Any]


class Body:
    """The body of one LLVM function, written from the top down.

    ``leave(builder, fault)`` ends the function because of a fault: its number, or the place of it.
    """

    def __init__(self, loops: Loops, function: ir.Function, leave: Callable[[ir.IRBuilder, Any], None]) -> None:
        self.loops, self.function, self.leave = loops, function, leave
        self.entry = function.append_basic_block("entry")
        self.builder = ir.IRBuilder(function.append_basic_block("body"))
        ir.IRBuilder(self.entry).branch(self.builder.block)
        self.frames: list[Frame] = []
        self.ends: list[ir.Block] = []

    # -- names ----------------------------------------------------------------------------------------------------------

    def variable(self, value: Any, kind: Any = LONG) -> Any:
        """Place of a number that may change."""
        with self.builder.goto_block(self.entry):
            place = self.builder.alloca(kind)
        self.builder.store(value, place)
        return place

    def call(self, function: ast.FunctionDef, arguments: Sequence[Any]) -> None:
        """Compile a function into this one."""
        frame = Frame({}, [])
        for argument, value in zip(function.args.args, arguments, strict=True):
            frame.names[argument.arg] = value if isinstance(value, View) else self.variable(value, value.type)
        self.frames.append(frame)
        self.statements(function.body)
        self.free(frame)
        self.frames.pop()

    def free(self, frame: Frame) -> None:
        """Give back what a call has asked for."""
        for place in frame.memory:
            self.builder.call(self.external("free", ir.VoidType(), [BYTES]), [place])

    def external(self, name: str, result: Any, kinds: Sequence[Any]) -> Any:
        """Function of the C library."""
        return self.loops.module.globals.get(name) or ir.Function(self.loops.module, ir.FunctionType(result, kinds), name)

    def memory(self, shape: Sequence[Any], kind: Any) -> View:
        """Array of zeros, at an address for vectors."""
        size = reduce(self.builder.mul, shape)
        return View.contiguous(self.builder, self.allocate(size, kind), shape)

    def allocate(self, n: Any, kind: Any) -> Any:
        """Address of ``n`` numbers, all zero; the memory is given back when the call ends."""
        b = self.builder
        calloc = self.external("calloc", BYTES, [LONG, LONG])
        found = b.call(calloc, [b.add(b.mul(n, number(8)), number(ALIGNMENT)), number(1)])
        self.leave_if(b.icmp_unsigned("==", found, ir.Constant(BYTES, None)), len(FAULTS))
        self.frames[-1].memory.append(found)
        address = b.add(b.ptrtoint(found, LONG), number(ALIGNMENT - 1))
        return b.inttoptr(b.and_(address, number(-ALIGNMENT)), kind.as_pointer())

    def leave_if(self, condition: Any, fault: Any) -> None:
        """End the function with a fault if a condition holds."""
        b = self.builder
        with b.if_then(condition, likely=False):
            for frame in self.frames:
                self.free(frame)
            self.leave(b, fault)
            b.position_at_end(self.function.append_basic_block("unreachable"))

    # -- statements -------------------------------------------------------------------------------------------------------

    def statements(self, body: Sequence[ast.stmt]) -> None:
        """Compile statements in turn."""
        for statement in body:
            getattr(self, f"_{type(statement).__name__}")(statement)
            if isinstance(statement, ast.Break | ast.Raise):
                break

    def _Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._call(node.value)  # type: ignore[arg-type]

    def _Assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))  # type: ignore[attr-defined]
        for to, value in pairs:
            self.store(to, self.value(value))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        self.store(node.target, self.arithmetic(node.op, self.value(node.target), self.value(node.value)))

    def store(self, target: ast.expr, value: Any) -> None:
        """Give a name a value, or store it in an element of an array."""
        names = self.frames[-1].names
        if isinstance(target, ast.Subscript):
            place = self.part(target)
            kind = place.base.type.pointee
            value = self.whole(value)
            self.builder.store(self.builder.sitofp(value, kind) if value.type != kind else value, place.base)
        elif isinstance(value, View):
            names[target.id] = value  # type: ignore[attr-defined]
        elif target.id in names:  # type: ignore[attr-defined]
            self.builder.store(self.whole(value), names[target.id])  # type: ignore[attr-defined]
        else:
            value = self.whole(value)
            names[target.id] = self.variable(value, value.type)  # type: ignore[attr-defined]

    @contextmanager
    def loop(self) -> Iterator[tuple[ir.Block, ir.Block, ir.Block]]:
        """Blocks of a loop: its condition, its body and what comes after it."""
        head, body, end = (self.function.append_basic_block(n) for n in ("head", "loop", "end"))
        self.builder.branch(head)
        self.ends.append(end)
        yield head, body, end
        self.ends.pop()
        self.builder.position_at_end(end)

    def _For(self, node: ast.For) -> None:
        b = self.builder
        limits = [self.value(a) for a in node.iter.args]  # type: ignore[attr-defined]
        start, stop = limits[:2] if len(limits) > 1 else (number(0), limits[0])
        step = limits[2] if len(limits) > 2 else number(1)
        backwards = isinstance(step, ir.Constant) and step.constant < 0
        counter = self.variable(start)
        with self.loop() as (head, body, end):
            b.position_at_end(head)
            current = b.load(counter)
            b.cbranch(b.icmp_signed(">" if backwards else "<", current, stop), body, end)
            b.position_at_end(body)
            self.store(node.target, current)
            self.statements(node.body)
            if not b.block.is_terminated:
                b.store(b.add(b.load(counter), step), counter)
                b.branch(head)

    def _While(self, node: ast.While) -> None:
        b = self.builder
        with self.loop() as (head, body, end):
            b.position_at_end(head)
            b.cbranch(self.truth(self.value(node.test)), body, end)
            b.position_at_end(body)
            self.statements(node.body)
            if not b.block.is_terminated:
                b.branch(head)

    def _If(self, node: ast.If) -> None:
        b = self.builder
        yes, no, end = (self.function.append_basic_block(n) for n in ("then", "else", "after"))
        b.cbranch(self.truth(self.value(node.test)), yes, no)
        for block, body in ((yes, node.body), (no, node.orelse)):
            b.position_at_end(block)
            self.statements(body)
            if not b.block.is_terminated:
                b.branch(end)
        b.position_at_end(end)

    def _Break(self, node: ast.Break) -> None:
        self.builder.branch(self.ends[-1])

    def _Raise(self, node: ast.Raise) -> None:
        for frame in self.frames:
            self.free(frame)
        index = node.exc.args[0].slice.value  # type: ignore[union-attr]
        self.leave(self.builder, 1 + index)

    # -- expressions ------------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        """Compile an expression: a number, a truth value or an array."""
        return getattr(self, f"_{type(node).__name__}")(node)

    def whole(self, value: Any) -> Any:
        """Truth value as 0 or 1, and anything else as it is."""
        return self.builder.zext(value, LONG) if value.type == BIT else value

    def truth(self, value: Any) -> Any:
        """Whether a whole number is not zero."""
        return value if value.type == BIT else self.builder.icmp_signed("!=", value, number(0))

    def arithmetic(self, op: ast.operator, a: Any, b: Any) -> Any:
        """One operation on two numbers; a quotient is of numbers that are not negative."""
        do = self.builder
        if a.type in (DOUBLE, self.loops.real):
            return {ast.Add: do.fadd, ast.Sub: do.fsub, ast.Mult: do.fmul, ast.Div: do.fdiv}[type(op)](a, b)
        whole = {ast.Add: do.add, ast.Sub: do.sub, ast.Mult: do.mul, ast.FloorDiv: do.sdiv, ast.Mod: do.srem}
        return whole[type(op)](self.whole(a), self.whole(b))

    def _BinOp(self, node: ast.BinOp) -> Any:
        return self.arithmetic(node.op, self.value(node.left), self.value(node.right))

    def _UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if value.type in (DOUBLE, self.loops.real):
            return self.builder.fneg(value)
        return number(-value.constant)

    def _Constant(self, node: ast.Constant) -> Any:
        return ir.Constant(self.loops.real if isinstance(node.value, float) else LONG, node.value)

    def _Name(self, node: ast.Name) -> Any:
        if node.id == "nan":
            return ir.Constant(DOUBLE, float("nan"))
        found = self.frames[-1].names[node.id]
        return found if isinstance(found, View) else self.builder.load(found)

    def _Compare(self, node: ast.Compare) -> Any:
        (op,), (right,) = node.ops, node.comparators
        return self.builder.icmp_signed(_COMPARE[type(op)], self.whole(self.value(node.left)), self.whole(self.value(right)))

    def _BoolOp(self, node: ast.BoolOp) -> Any:
        """What is to the right is looked at only where the left does not decide."""
        b, decided = self.builder, isinstance(node.op, ast.Or)
        result = self.variable(ir.Constant(BIT, decided), BIT)
        end = self.function.append_basic_block("decided")
        for part in node.values:
            value, further = self.truth(self.value(part)), self.function.append_basic_block("further")
            b.cbranch(value, *((end, further) if decided else (further, end)))
            b.position_at_end(further)
        b.store(ir.Constant(BIT, not decided), result)
        b.branch(end)
        b.position_at_end(end)
        return b.load(result)

    def _Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Attribute):  # a size: array.shape[i]
            return self.value(node.value.value).shape[ast.literal_eval(node.slice)]
        part = self.part(node)
        return part if part.shape else self.builder.load(part.base)

    def part(self, node: ast.Subscript) -> View:
        """Row, element or slice of an array."""
        b, view = self.builder, self.value(node.value)
        indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        base, shape, strides = view.base, list(view.shape[len(indices) :]), list(view.strides[len(indices) :])
        kept: list[tuple[Any, Any]] = []
        for axis, index in enumerate(indices):
            if isinstance(index, ast.Slice):
                first = self.value(index.lower) if index.lower else number(0)
                end = self.value(index.upper) if index.upper else view.shape[axis]
                kept.append((b.sub(end, first), view.strides[axis]))
            else:
                first = self.whole(self.value(index))
            base = b.gep(base, [b.mul(first, view.strides[axis])])
        return View(base, (*(n for n, _ in kept), *shape), (*(s for _, s in kept), *strides))

    def _Call(self, node: ast.Call) -> Any:
        return self._call(node)

    def _call(self, node: ast.Call) -> Any:
        b, name = self.builder, node.func.id  # type: ignore[attr-defined]
        if name == "parallel":
            block, *rest = node.args
            arguments = [self.value(a) for a in rest]
            return threads.share_out(self, self.loops.functions[block.id], *arguments)  # type: ignore[attr-defined]
        arguments = [self.value(a) for a in node.args]
        if name in ("min", "max"):
            first = b.icmp_signed("<" if name == "min" else ">", *arguments)
            return b.select(first, *arguments)
        if name == "whole":
            return b.fptosi(arguments[0], LONG)
        if name == "sqrt":
            kind, lanes = self.loops.real, f"v{self.loops.lanes}" if self.loops.lanes else ""
            return b.call(self.external(f"llvm.sqrt.{lanes}f64", kind, [kind]), arguments)
        if name in ("zeros", "integers"):
            return self.memory(arguments, DOUBLE if name == "zeros" else LONG)
        if name == "lanes":
            return self.memory([b.mul(arguments[0], number(self.loops.width))], DOUBLE)
        if name in self.loops.phases:
            return self.phase(self.loops.phases[name], arguments)
        if name in self.loops.kernels:
            return self.kernel(self.loops.kernels[name], arguments)
        return self.call(self.loops.functions[name], arguments)

    def kernel(self, function: ir.Function, arguments: Sequence[Any]) -> None:
        """Call a kernel with arrays that are contiguous, and have its fault."""
        values: list[Any] = []
        for argument in arguments:
            values += [argument.base, *argument.shape] if isinstance(argument, View) else [argument]
        fault = self.builder.call(function, values)
        self.leave_if(self.builder.icmp_signed("!=", fault, number(0)), fault)

    def phase(self, function: ir.Function, arguments: Sequence[Any]) -> None:
        """Call a phase on its arrays, the current row and the offset."""
        b, n = self.builder, len(function.args)
        row, offset = (*arguments[n:], number(0))[:2]
        places = []
        for view in arguments[:n]:
            rows = len(view.shape) == 2
            places.append(b.gep(view.base, [b.mul(row, view.strides[0]) if rows else offset]))
        b.call(function, places)
