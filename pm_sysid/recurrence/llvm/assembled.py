"""Numba functions of recurrences that put their arrays together: loops for the pieces, then the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from pytensor.scalar.basic import ScalarType

from pm_sysid.compat.numba import register_funcify_and_cache_key
from pm_sysid.recurrence.assembled import Assembled, Piece
from pm_sysid.recurrence.llvm.call import numba_function
from pm_sysid.recurrence.llvm.single import CALL_GRADIENT, CALL_VALUE, gradient_symbol, value_symbol
from pm_sysid.recurrence.op import Recurrence

#: What is wrong with an input.
TOO_SHORT, UNEQUAL = "a vector of the filter has too few entries", "arrays that stand side by side have unequal numbers of rows"


def assemble_source(op: Assembled, scalars: Sequence[bool]) -> str:
    """Text of a function ``assemble`` of the inputs, which returns the arrays one after the other.

    Parameters
    ----------
    op : Assembled
        Whose layout it follows.
    scalars : sequence of bool
        Which inputs are numbers, and not arrays.
    """
    lines: list[str] = []
    for k, pieces in enumerate(op.layout):
        lines += _lines(k, pieces, scalars)
    body = "\n    ".join(lines)
    inputs = ", ".join(f"i{k}" for k in range(len(scalars)))
    arrays = ", ".join(f"a{k}" for k in range(len(op.layout)))
    return f"def assemble({inputs}):\n    {body}\n    return {arrays}\n"


def _lines(k: int, pieces: Sequence[Piece], scalars: Sequence[bool]) -> list[str]:
    """Lines that make array ``k``."""
    array, source = f"a{k}", f"i{pieces[0].source}"
    if pieces[0].kind == "whole":
        return [f"{array} = {source}"]
    if pieces[0].kind == "counts":
        return [
            f"{array} = np.empty(max({source}.shape[0] - {pieces[0].start}, 0), np.int64)",
            f"for j in range({array}.shape[0]):",
            f"    {array}[j] = np.int64({source}[{pieces[0].start} + j])",
        ]
    rows, checks = _rows(pieces, scalars)
    widths = [_width(piece) for piece in pieces]
    lines = [f"rows = {rows}", *checks, f"{array} = np.empty((rows, {' + '.join(widths)}))", "at = 0"]
    for (kind, number, start, _, value), width in zip(pieces, widths, strict=True):
        given = f"i{number}"
        match kind:
            case "number":
                entry = given if scalars[number] else f"{given}.item()"
                lines += [f"{array}[0, at] = {entry}"]
            case "row":
                lines += [f"for j in range({width}):", f"    {array}[0, at + j] = {given}[{start} + j]"]
            case "column":
                lines += ["for r in range(rows):", f"    {array}[r, at] = {given}[r]"]
            case "fill":
                lines += ["for r in range(rows):", f"    for j in range({width}):", f"        {array}[r, at + j] = {value!r}"]
            case _:
                lines += [
                    "for r in range(rows):",
                    f"    for j in range({width}):",
                    f"        {array}[r, at + j] = {given}[r, j]",
                ]
        lines += [f"at += {width}"]
    return lines


def _width(piece: Piece) -> str:
    """Columns of a piece."""
    match piece.kind:
        case "number" | "column":
            return "1"
        case "row" if piece.stop < 0:
            return f"max(i{piece.source}.shape[0] - {piece.start}, 0)"
        case "columns":
            return f"i{piece.source}.shape[1]"
    return str(piece.stop - piece.start)


def _rows(pieces: Sequence[Piece], scalars: Sequence[bool]) -> tuple[str, list[str]]:
    """Rows of an array, and lines that refuse inputs with others, or with too few entries."""
    heights, checks = [], []
    for piece in pieces:
        given = f"i{piece.source}"
        match piece.kind:
            case "number" | "row":
                heights.append("1")
                if piece.kind == "row" and piece.stop > 0:
                    checks += [f"if {given}.shape[0] < {piece.stop}:", f"    raise ValueError({TOO_SHORT!r})"]
            case "fill":
                heights.append(f"int({given})" if scalars[piece.source] else f"int({given}.item())")
            case _:
                heights.append(f"{given}.shape[0]")
    heights = sorted(set(heights), key=heights.index)
    first = "1" if "1" in heights else heights[0]
    for other in heights:
        if other != first:
            checks += [f"if rows != {other}:", f"    raise ValueError({UNEQUAL!r})"]
    return first, checks


@register_funcify_and_cache_key(Assembled)
def numba_assembled(op: Assembled, node: Any, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of a recurrence that puts its arrays together."""
    scalars = [isinstance(v.type, ScalarType) for v in node.inputs]
    source = assemble_source(op, scalars)
    if isinstance(op.op, Recurrence):
        symbol = value_symbol(op.op)
        function = numba_function(CALL_VALUE, symbol, (op.op.n_outputs, op.op.n_carry), assemble=source)
    else:
        symbol = gradient_symbol(op.op.recurrence)
        function = numba_function(CALL_GRADIENT, symbol, assemble=source)
    return function, sha256(f"{symbol} {source}".encode()).hexdigest()
