"""Recurrences that put their arrays together themselves, from the numbers and vectors that a model holds.

A model's joins, slices and fills are functions of PyTensor, made for arrays of any kind: numba compiles each of them, with its
messages and its broadcasting, and what stands around a filter takes longer to compile than the filter. Where all they do is
fill an array that a recurrence reads, a few loops do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType

from pm_sysid.compat import (
    Alloc,
    DimShuffle,
    Elemwise,
    GraphRewriter,
    IncSubtensor,
    Join,
    MakeVector,
    ScalarizedJoin,
    SpecifyShape,
    Split,
    Subtensor,
    indices_from_subtensor,
    optdb,
)
from pm_sysid.recurrence.op import Recurrence, RecurrenceGradient, RunOp

#: Name of the rewrite.
ASSEMBLED = "pm_sysid_assembled"
#: Types and dimensions of the arrays that a recurrence and its gradient take.
ARRAYS = (*(("float64", 2),) * 2, ("int64", 1), *(("float64", 2),) * 4)


class Piece(NamedTuple):
    """Part of an array, and what it is read from.

    Attributes
    ----------
    kind : str
        ``"number"`` is one, ``"row"`` the entries ``start`` to ``stop`` of a vector (all if ``stop`` is -1), both in an
        array of one row; ``"columns"`` is a matrix and ``"column"`` a vector upright, with as many rows as the array;
        ``"fill"`` is ``stop`` columns of ``value``, in as many rows as the source says. ``"whole"`` is an array as it is, and
        ``"counts"`` a vector of floats from ``start`` on as whole numbers: each of these two alone is an array.
    source : int
        Which input.
    """

    kind: str
    source: int
    start: int = 0
    stop: int = -1
    value: float = 0.0


#: Pieces of each array of a recurrence, side by side.
type Layout = tuple[tuple[Piece, ...], ...]


class Assembled(RunOp):
    """A recurrence or its gradient, with the layout of its arrays; made by a rewrite for numba, and for nothing else.

    Parameters
    ----------
    op : Recurrence or RecurrenceGradient
        What is run.
    layout : tuple of tuple of Piece
        For each of its arrays.
    """

    __props__ = ("op", "layout")

    def __init__(self, op: Recurrence | RecurrenceGradient, layout: Layout) -> None:
        self.op, self.layout = op, layout

    def __repr__(self) -> str:
        return f"Assembled{{{self.op}}}"

    def make_node(self, *inputs: Any) -> Apply:
        """Inputs that the layout counts."""
        arrays = [pt.tensor(dtype=dtype, shape=(None,) * ndim) for dtype, ndim in ARRAYS[: len(self.layout)]]
        return Apply(self, list(inputs), [v.type() for v in self.op.make_node(*arrays).outputs])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Put the arrays together, and run the recurrence in plain Python."""
        self.op.perform(node, assembled(self.layout, inputs), output_storage)


def assembled(layout: Layout, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Arrays of a layout, in NumPy: the reference for the loops that are compiled."""
    return [_array(pieces, inputs) for pieces in layout]


def _array(pieces: Sequence[Piece], inputs: Sequence[Any]) -> np.ndarray:
    parts: list[np.ndarray] = []
    for kind, source, start, stop, value in pieces:
        given = np.asarray(inputs[source])
        match kind:
            case "whole":
                return given
            case "counts":
                return given[start:].astype(np.int64)
            case "number":
                parts.append(given.reshape(1, 1))
            case "row":
                parts.append(given[None, start : None if stop < 0 else stop])
            case "column":
                parts.append(given[:, None])
            case "fill":
                parts.append(np.full((int(given), stop), value))
            case _:
                parts.append(given)
    return np.concatenate(parts, axis=1)


class _Inputs(dict[Variable, int]):
    """Inputs of a layout by their number: those that no pattern takes apart further."""

    def of(self, variable: Variable) -> int:
        return self.setdefault(variable, len(self))


def _number(variable: Variable) -> int | None:
    """Value of a constant whole number."""
    return int(variable.data) if isinstance(variable, Constant) else None


def _is_float(variable: Variable) -> bool:
    return getattr(variable.type, "dtype", "") == "float64"


def _slice(node: Apply) -> tuple[int, int] | None:
    """Beginning and end (-1 for that of the vector) of a slice of a vector that a graph says outright."""
    if not isinstance(node.op, Subtensor) or node.inputs[0].type.ndim != 1 or len(node.op.idx_list) != 1:
        return None
    (index,) = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    if not isinstance(index, slice) or index.step is not None:
        return None
    start = 0 if index.start is None else _whole(index.start)
    stop = -1 if index.stop is None else _whole(index.stop)
    if start is None or stop is None or start < 0 or (index.stop is not None and stop < start):
        return None
    return start, stop


def _whole(value: Any) -> int | None:
    return _number(value) if isinstance(value, Variable) else int(value)


def _row(variable: Variable, known: _Inputs) -> list[Piece] | None:
    """Pieces of a vector, or of a number."""
    if not _is_float(variable):
        return None
    node = variable.owner
    if isinstance(variable.type, ScalarType) or variable.type.ndim == 0:
        return [Piece("number", known.of(variable))]
    if node is not None:
        match node.op:
            case ScalarizedJoin() | MakeVector():
                return _joined([_row(v, known) for v in node.inputs])
            case Join(axis=0):
                return _joined([_row(v, known) for v in node.inputs])
            case DimShuffle(new_order=("x",)):
                return _row(node.inputs[0], known)
            case SpecifyShape() if node.inputs[0].owner is not None and (ends := _slice(node.inputs[0].owner)):
                if ends[1] - ends[0] == variable.type.shape[0] and _is_float(node.inputs[0]):
                    return [Piece("row", known.of(node.inputs[0].owner.inputs[0]), *ends)]
            case Subtensor() if (ends := _slice(node)) and ends[1] >= 0 and ends[1] - ends[0] == variable.type.shape[0]:
                return [Piece("row", known.of(node.inputs[0]), *ends)]
    length = variable.type.shape[0]
    return [Piece("row", known.of(variable), 0, -1 if length is None else length)]


def _joined(parts: Sequence[list[Piece] | None]) -> list[Piece] | None:
    """One list, if all parts have one."""
    found = [p for p in parts if p is not None]
    return [piece for part in found for piece in part] if len(found) == len(parts) else None


def _columns(variable: Variable, known: _Inputs) -> list[Piece] | None:
    """Pieces of a matrix, side by side."""
    if not _is_float(variable) or variable.type.ndim != 2:
        return None
    node = variable.owner
    if node is not None:
        match node.op:
            case Join(axis=1):
                return _joined([_columns(v, known) for v in node.inputs])
            case DimShuffle(new_order=("x", 0)):
                return _row(node.inputs[0], known)
            case DimShuffle(new_order=(0, "x")):
                return [Piece("column", known.of(node.inputs[0]))]
            case Alloc() if isinstance(node.inputs[0], Constant) and node.inputs[0].data.size == 1:
                width, value = _number(node.inputs[2]), float(node.inputs[0].data.item())
                if width is not None and np.isfinite(value):  # others are no numbers of the text that is compiled
                    return [Piece("fill", known.of(node.inputs[1]), 0, width, value)]
            case IncSubtensor():
                trial = _Inputs(known)
                if (found := _tail(node, trial)) is not None:
                    known.update(trial)
                    return found
    return [Piece("columns", known.of(variable))]


def _tail(node: Apply, known: _Inputs) -> list[Piece] | None:
    """Pieces of a row of zeros whose last entries are set to a vector, or have it added."""
    under, entries = node.inputs[:2]
    zeros = _columns(under, known) if under.owner is not None and isinstance(under.owner.op, Alloc) else None
    index = indices_from_subtensor(node.inputs[2:], node.op.idx_list)
    if zeros is None or len(zeros) != 1 or zeros[0].kind != "fill" or zeros[0].value != 0.0 or under.type.shape[0] != 1:
        return None
    if len(index) != 2 or isinstance(index[0], slice) or not isinstance(index[1], slice) or _whole(index[0]) != 0:
        return None
    start, width = index[1].start, zeros[0].stop
    first = None if start is None or index[1].stop is not None or index[1].step is not None else _whole(start)
    if first is None or entries.type.ndim != 1 or not _is_float(entries):
        return None
    first = first + width if first < 0 else first
    if entries.type.shape[0] != width - first:
        return None
    return [zeros[0]._replace(stop=first), Piece("row", known.of(entries), 0, width - first)]


def _counts(variable: Variable, known: _Inputs) -> list[Piece]:
    """The counts of steps, which a model may keep as floats at the end of a vector."""
    node = variable.owner
    if node is not None and isinstance(node.op, Elemwise) and str(node.op.scalar_op) == "Cast{int64}":
        inner = node.inputs[0]
        if inner.owner is not None and _is_float(inner) and (ends := _slice(inner.owner)) and ends[1] < 0:
            return [Piece("counts", known.of(inner.owner.inputs[0]), ends[0])]
    return [Piece("whole", known.of(variable))]


def _assemble(node: Apply) -> Apply | None:
    """The same run by pieces, if there is anything to put together."""
    known, layout, apart = _Inputs(), [], False
    for position, variable in enumerate(node.inputs):
        found = _counts(variable, known) if position == 2 else _pieces(variable, known)
        apart |= found[0].kind != "whole"
        layout.append(tuple(found))
    if not apart:
        return None
    op = Assembled(node.op, tuple(layout))
    return Apply(op, list(known), [o.type() for o in node.outputs])


def _pieces(variable: Variable, known: _Inputs) -> list[Piece]:
    """Pieces of a matrix; the whole of one that is not put together."""
    trial = _Inputs(known)
    found = _columns(variable, trial)
    if found is None or (len(found) == 1 and found[0].kind == "columns"):
        return [Piece("whole", known.of(variable))]
    known.update(trial)
    return found


def _of_gradient(variable: Variable) -> bool:
    """Whether a vector is what a gradient has put out, in other dimensions."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle):
        variable = variable.owner.inputs[0]
    return variable.owner is not None and isinstance(variable.owner.op, Assembled | RecurrenceGradient)


class _Assemble(GraphRewriter):
    """Have recurrences put their arrays together, and read the parts of their gradients by slices."""

    def apply(self, fgraph: Any) -> None:
        for node in fgraph.toposort():
            if isinstance(node.op, Recurrence | RecurrenceGradient):
                if (new := _assemble(node)) is not None:
                    fgraph.replace_all(list(zip(node.outputs, new.outputs, strict=True)), reason=ASSEMBLED)
            elif isinstance(node.op, Split) and _of_gradient(node.inputs[0]) and isinstance(node.inputs[1], Constant):
                ends, before = np.cumsum([0, *node.inputs[1].data]).tolist(), (slice(None),) * node.op.axis
                for out, start, stop in zip(node.outputs, ends[:-1], ends[1:], strict=True):
                    if fgraph.clients[out]:
                        part = out.type.filter_variable(node.inputs[0][(*before, slice(start, stop))])
                        fgraph.replace_all([(out, part)], reason=ASSEMBLED)


# After PyTensor has taken numbers out of their arrays.
optdb.register(ASSEMBLED, _Assemble(), "numba", position=101)
