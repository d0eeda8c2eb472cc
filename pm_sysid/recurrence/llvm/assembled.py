"""Kernels of recurrences that put their arrays together: loops for the pieces, then the recurrence's own kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from llvmlite import ir
from pytensor.scalar.basic import ScalarType

from pm_sysid.compat.numba import register_funcify_and_cache_key
from pm_sysid.recurrence.assembled import Assembled, Layout, Piece
from pm_sysid.recurrence.llvm.call import numba_function
from pm_sysid.recurrence.llvm.loops import FAULTS, Loops, kernel_type
from pm_sysid.recurrence.llvm.machine_code import load
from pm_sysid.recurrence.llvm.program import VERSION
from pm_sysid.recurrence.llvm.single import GRADIENT_ARRAYS, VALUE_ARRAYS, gradient_symbol, value_symbol
from pm_sysid.recurrence.op import Recurrence

#: What is wrong with an input: places in the list of faults.
TOO_SHORT, UNEQUAL = (FAULTS.index(next(f for f in FAULTS if f.startswith(start))) for start in ("a vector of", "arrays that"))
#: Names of what a kernel puts out.
RESULTS = "r0, r1"


def layout_source(layout: Layout, n_inputs: int) -> str:
    """Text of a function ``kernel`` of inputs and results, which puts the arrays together and calls ``run`` with them."""
    lines: list[str] = []
    for k, pieces in enumerate(layout):
        lines += _lines(k, pieces)
    body = "\n    ".join(lines)
    arrays = ", ".join(f"i{a[0].source}" if a[0].kind == "whole" else f"a{k}" for k, a in enumerate(layout))
    inputs = ", ".join(f"i{k}" for k in range(n_inputs))
    return f"def kernel({inputs}, {RESULTS}):\n    {body}\n    run({arrays}, {RESULTS})\n"


def _lines(k: int, pieces: Sequence[Piece]) -> list[str]:
    """Lines that make array ``k``; none for one that is there."""
    array, source = f"a{k}", f"i{pieces[0].source}"
    if pieces[0].kind == "whole":
        return []
    if pieces[0].kind == "counts":
        return [
            f"{array} = integers(max({source}.shape[0] - {pieces[0].start}, 0))",
            f"for j in range({array}.shape[0]):",
            f"    {array}[j] = whole({source}[{pieces[0].start} + j])",
        ]
    rows, checks = _rows(pieces)
    widths = [_width(piece) for piece in pieces]
    lines = [f"rows = {rows}", *checks, f"{array} = zeros(rows, {' + '.join(widths)})", "at = 0"]
    for (kind, number, start, _, value), width in zip(pieces, widths, strict=True):
        given = f"i{number}"
        match kind:
            case "number":
                lines += [f"{array}[0, at] = {given}"]
            case "row":
                lines += [f"for j in range({width}):", f"    {array}[0, at + j] = {given}[{start} + j]"]
            case "column":
                lines += ["for r in range(rows):", f"    {array}[r, at] = {given}[r]"]
            case "fill" if value == 0.0:
                pass
            case _:
                entry = repr(value) if kind == "fill" else f"{given}[r, j]"
                lines += ["for r in range(rows):", f"    for j in range({width}):", f"        {array}[r, at + j] = {entry}"]
        lines += [f"at += {width}"]
    return lines


def _width(piece: Piece) -> str:
    """Columns of a piece."""
    match piece.kind:
        case "number" | "column":
            return "1"
        case "row" if piece.stop < 0:
            return f"max(i{piece.source}.shape[0] - {piece.start}, 0)"
        case "columns" | "whole":
            return f"i{piece.source}.shape[1]"
    return str(piece.stop - piece.start)


def _height(piece: Piece) -> str:
    """Rows of a piece."""
    match piece.kind:
        case "number" | "row":
            return "1"
        case "fill":
            return f"i{piece.source}"
    return f"i{piece.source}.shape[0]"


def _rows(pieces: Sequence[Piece]) -> tuple[str, list[str]]:
    """Rows of an array, and lines that refuse inputs with others, or with too few entries."""
    checks: list[str] = []
    for piece in pieces:
        if piece.kind == "row" and piece.stop > 0:
            checks += [f"if i{piece.source}.shape[0] < {piece.stop}:", f"    raise ValueError(faults[{TOO_SHORT}])"]
    heights = list(dict.fromkeys(map(_height, pieces)))
    first = "1" if "1" in heights else heights[0]
    for other in heights:
        if other != first:
            checks += [f"if rows != {other}:", f"    raise ValueError(faults[{UNEQUAL}])"]
    return first, checks


def layout_module(op: Assembled, kinds: Sequence[Any], run: str, symbol: str) -> ir.Module:
    """LLVM module of the loops of a layout around the kernel ``run``."""
    module = ir.Module(symbol)
    arrays, integers = VALUE_ARRAYS if isinstance(op.op, Recurrence) else GRADIENT_ARRAYS
    kernels = {"run": ir.Function(module, kernel_type(arrays, integers), run)}
    inputs = range(len(kinds))
    reals = [k for k in inputs if kinds[k].ndim == 0 and kinds[k].dtype == "float64"]
    Loops(module, layout_source(op.layout, len(kinds)), {}, kernels=kernels).export(
        "kernel",
        symbol,
        (*(kind.ndim for kind in kinds), 2, 2),
        integers=[k for k in inputs if kinds[k].ndim and kinds[k].dtype != "float64"],
        reals=reals,
        strided=[k for k in inputs if kinds[k].ndim],
    )
    return module


def call_source(op: Assembled, kinds: Sequence[Any]) -> str:
    """Text of what PyTensor's function does: make room for the results, and call the kernel."""
    whole = sorted({pieces[0].source for pieces in op.layout if pieces[0].kind == "whole"})
    lines = [f"n{k} = i{k}{'' if isinstance(kind, ScalarType) else '.item()'}" for k, kind in enumerate(kinds) if not kind.ndim]
    lines += [f"i{k} = contiguous(i{k})" for k in whole]
    rows = [_rows(pieces)[0] if pieces[0].kind != "fill" else f"n{pieces[0].source}" for pieces in op.layout]
    if isinstance(op.op, Recurrence):
        sizes, shapes = "n_outputs, n_carry, ", [f"{rows[4]}, n_outputs", f"{rows[1]}, n_carry"]
    else:
        sizes, shapes = "", [f"{rows[k]}, {' + '.join(map(_width, op.layout[k]))}" for k in (0, 1)]
    lines += [f"r{k} = np.{'zeros' if not sizes and k else 'empty'}(({shape}))" for k, shape in enumerate(shapes)]
    inputs = ", ".join(f"i{k}" for k in range(len(kinds)))
    given = ", ".join(f"i{k}" if kind.ndim else f"n{k}" for k, kind in enumerate(kinds))
    body = "\n    ".join(lines)
    return f"""
def assembled(address, {sizes}{inputs}):
    {body}
    fault = invoke_strided(address, ({given},), ({RESULTS}))
    if fault != 0:
        refuse(fault)
    return {RESULTS}
"""


@register_funcify_and_cache_key(Assembled)
def numba_assembled(op: Assembled, node: Any, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of a recurrence that puts its arrays together."""
    kinds = [v.type for v in node.inputs]
    value = isinstance(op.op, Recurrence)
    run = value_symbol(op.op) if isinstance(op.op, Recurrence) else gradient_symbol(op.op.recurrence)
    inside, around = layout_source(op.layout, len(kinds)), call_source(op, kinds)
    key = sha256(f"{VERSION} {run} {inside} {[(kind.ndim, kind.dtype) for kind in kinds]}".encode()).hexdigest()[:40]
    symbol = load(key, partial(layout_module, op, kinds, run))
    function = numba_function(around, symbol, (op.op.n_outputs, op.op.n_carry) if value else ())
    return function, sha256(f"{symbol} {around}".encode()).hexdigest()
