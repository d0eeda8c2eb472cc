"""Small tensor expressions, as users write them, turned into graphs of scalar operations.

The tensor graph is evaluated symbolically on object arrays whose elements are scalar nodes or numbers: shapes are
known, so indexing, stacking, reductions and matrix products all disappear and plain arithmetic is left, in which constants
that are zero vanish. What depends on parameters alone and has no scalar form stays a tensor expression (:class:`Still`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np
import pytensor.scalar.basic as psb
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar import ScalarType

from pm_sysid.compat import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    Alloc,
    AllocDiag,
    BlockDiagonal,
    Blockwise,
    CAReduce,
    CumOp,
    DimShuffle,
    Dot,
    Elemwise,
    ExtractDiag,
    Eye,
    IncSubtensor,
    Join,
    MakeVector,
    Reshape,
    ScalarFromTensor,
    Shape,
    Shape_i,
    Solve,
    SpecifyShape,
    Split,
    Subtensor,
    TensorFromScalar,
    indices_from_subtensor,
    io_toposort,
)
from pm_sysid.symbolic.names import entry
from pm_sysid.symbolic.scalars import Scalar, add, as_variable, constant, dot, elementwise, fold_condition, mul, root, symbol

#: Operations that put entries of an array elsewhere and zeros between them.
MOVES = (AdvancedSubtensor, AllocDiag, BlockDiagonal, Split)
#: A product of matrices of parameters takes more multiplications than this: it is computed as a matrix, once a parameter set.
WASTEFUL = 64


class UnsupportedOperation(TypeError):
    """A dynamics or observation function used an operation that has no scalar form."""


def _scalar_call(scalar_op: Any) -> Callable[..., Scalar]:
    if isinstance(scalar_op, psb.Sqrt):
        scalar_op = root

    def call(*args: Scalar) -> Scalar:
        if any(not isinstance(a, Variable) for a in args):
            known = fold_condition(scalar_op, args)
            if known is not None:
                return known
        if all(not isinstance(a, Variable) for a in args):
            with np.errstate(all="ignore"):
                return scalar_op.impl(*args)
        return scalar_op(*(as_variable(a) for a in args))

    return call


def _numbers(value: np.ndarray, what: str) -> np.ndarray:
    """Return an array of plain integers; a symbolic index or shape has no scalar form."""
    if any(isinstance(v, Variable) for v in value.ravel()):
        raise UnsupportedOperation(f"{what} depends on a state, input or parameter; use pt.switch to choose between values.")
    return value.astype(int)


def _core(node: Apply) -> Any:
    """Operation of a node, on the last dimensions where it is repeated over the first ones."""
    return node.op.core_op if isinstance(node.op, Blockwise) else node.op


def _matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rows = a if a.ndim == 2 else a[None, :]
    columns = b if b.ndim == 2 else b[:, None]
    result = np.empty((rows.shape[0], columns.shape[1]), dtype=object)
    for i, j in np.ndindex(*result.shape):
        result[i, j] = dot(rows[i], columns[:, j])
    if b.ndim == 1:
        result = result[:, 0]
    return result[0] if a.ndim == 1 else result


def _index(op: Any, index_values: list[np.ndarray]) -> tuple[Any, ...]:
    numbers = [int(_numbers(np.asarray(v, dtype=object), "An index")) for v in index_values]
    return tuple(indices_from_subtensor(numbers, op.idx_list))


def _apply(node: Apply, args: list[np.ndarray]) -> Any:
    """Output of a node as an array, or its outputs as a list of arrays."""
    op: Any = node.op
    match op:
        case Elemwise():
            return elementwise(_scalar_call(op.scalar_op), *args)
        case DimShuffle():
            kept = [d for d in op.new_order if d != "x"]
            squeezed = args[0].reshape([args[0].shape[d] for d in sorted(kept)])
            moved = squeezed.transpose([sorted(kept).index(d) for d in kept])
            return moved.reshape([1 if d == "x" else args[0].shape[d] for d in op.new_order])
        case MakeVector():
            return np.array([a[()] for a in args], dtype=object)
        case Join():
            return np.concatenate(args, axis=op.axis)
        case Subtensor():
            return np.asarray(args[0][_index(op, args[1:])], dtype=object)
        case IncSubtensor():
            result, where = args[0].copy(), _index(op, args[2:])
            value = args[1] if op.set_instead_of_inc else elementwise(add, result[where], args[1])
            result[where] = value if value.ndim else value[()]
            return result
        case Dot():
            return np.asarray(_matmul(*args), dtype=object)
        case Blockwise() if isinstance(op.core_op, Dot) and all(a.ndim == 2 for a in args):
            return _matmul(*args)
        case CAReduce():
            call = _scalar_call(op.scalar_op)
            axes = tuple(range(args[0].ndim)) if op.axis is None else tuple(op.axis)
            kept = [d for d in range(args[0].ndim) if d not in axes]
            moved = args[0].transpose([*kept, *axes]).reshape([*(args[0].shape[d] for d in kept), -1])
            result = np.empty(moved.shape[:-1], dtype=object)
            for index in np.ndindex(result.shape):
                result[index] = reduce(call, moved[index]) if moved.shape[-1] else float(op.scalar_op.identity)
            return result
        case Reshape():
            return args[0].reshape(tuple(_numbers(args[1], "A shape")))
        case Alloc():
            return np.broadcast_to(args[0], tuple(int(_numbers(a, "A shape")) for a in args[1:])).copy()
        case Shape():
            return np.array(args[0].shape, dtype=object)
        case Shape_i():
            return np.asarray(args[0].shape[op.i], dtype=object)
        case SpecifyShape() | TensorFromScalar() | ScalarFromTensor():
            return args[0]
        case ExtractDiag():
            return np.diagonal(args[0], op.offset, op.axis1, op.axis2).copy()
        case Eye():
            rows, columns, k = (int(_numbers(a, "A shape")) for a in args)
            return np.eye(rows, columns, k).astype(object)
        case CumOp():
            call = add if op.mode == "add" else mul
            return _along(lambda row: list(accumulate(row, call)), args[0], op.axis)
    if isinstance(_core(node), MOVES) or (isinstance(op, AdvancedIncSubtensor) and op.set_instead_of_inc):
        return _moved(node, args)
    if isinstance(node.outputs[0].type, ScalarType):
        return elementwise(_scalar_call(op), *args)
    raise UnsupportedOperation(
        f"the operation {op} has no scalar form. Write it with Python operators, pm.math or elementwise functions of "
        "pytensor.tensor, pt.stack, pt.concatenate, indexing, pt.switch, sums and products of arrays; what depends on "
        "parameters alone may be any expression of pytensor.tensor."
    )


def _along(function: Callable[[Sequence[Scalar]], Sequence[Scalar]], array: np.ndarray, axis: int | None) -> np.ndarray:
    """Apply a function of rows along an axis; of the whole array, row by row, if that is None."""
    if axis is None:
        array, axis = array.reshape(-1), 0
    moved = np.moveaxis(array, axis, -1)
    result = np.empty_like(moved)
    for index in np.ndindex(moved.shape[:-1]):
        result[index] = function(list(moved[index]))
    return np.moveaxis(result, -1, axis)


def _moved(node: Apply, args: list[np.ndarray]) -> Any:
    """Outputs of an operation that only moves entries: it is performed on their numbers, beginning at one."""
    entries: list[Any] = [0.0]
    numbers = []
    for v, array in zip(node.inputs, args, strict=True):
        if v.type.dtype.startswith(("int", "uint", "bool")):  # type: ignore[attr-defined]
            numbers.append(_typed(v, _numbers(array, "An index")))
            continue
        numbers.append(_typed(v, np.arange(array.size).reshape(array.shape) + len(entries)))
        entries += list(array.ravel())
    table = np.empty(len(entries), dtype=object)
    table[:] = entries
    found = [table[np.asarray(o).astype(int)] for o in _performed(node, numbers)]
    return found if len(found) > 1 else np.asarray(found[0], dtype=object)


def _typed(v: Any, array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=v.type.dtype)


def _performed(node: Apply, values: Sequence[Any]) -> list[np.ndarray]:
    """Outputs of an operation on numbers."""
    storage: list[list[Any]] = [[None] for _ in node.outputs]
    with np.errstate(all="ignore"):
        node.op.perform(node, list(values), storage)  # type: ignore[attr-defined]
    return [np.asarray(s[0]) for s in storage]


@dataclass
class Still:
    """What depends on parameters alone and stays a tensor expression: it is evaluated once a parameter set.

    Parameters
    ----------
    inputs
        The tensors of the parameters.
    """

    inputs: frozenset[Variable] = frozenset()
    #: Tensor expressions of the parameters, and the symbols that stand for their entries.
    found: dict[Variable, np.ndarray] = field(default_factory=dict)
    #: Inverses of the matrices of linear systems.
    inverses: dict[Variable, Variable] = field(default_factory=dict)

    def symbols(self, v: Any) -> np.ndarray:
        """Entries of a tensor expression as scalars of the step."""
        if v not in self.found:
            name = v.name if v.name and v.name.isidentifier() else f"h{len(self.found) + 1}"
            shape = _shape_of(v, self.inputs)
            entries = np.empty(shape, dtype=object)
            for i in np.ndindex(shape):
                entries[i] = symbol(entry(name, i))
            self.found[v] = entries
        entries = self.found[v]
        return elementwise(lambda s: psb.neq(s, constant(0.0)), entries) if v.type.dtype == "bool" else entries


def _shape_of(v: Any, inputs: frozenset[Variable]) -> tuple[int, ...]:
    """Shape of an expression of parameters: the static one, or that for some values."""
    if None not in v.type.shape:
        return tuple(v.type.shape)
    trial = {i: np.ones(i.type.shape) for i in inputs}  # type: ignore[attr-defined]
    return tuple(int(n) for n in v.shape.eval(trial, on_unused_input="ignore"))


def lower(
    outputs: Sequence[Variable], inputs: Sequence[Variable], scalars: Sequence[Any], still: Still | None = None
) -> list[np.ndarray]:
    """Evaluate tensor expressions symbolically.

    Parameters
    ----------
    outputs
        Tensor expressions of ``inputs`` with shapes that do not depend on values.
    inputs
        The tensors the expressions are written in.
    scalars
        A scalar variable for each input that is 0-d, an array of them for any other.
    still
        Takes up what depends on the parameters alone and has no scalar form, or a wasteful one; by default that is an error.

    Returns
    -------
    list of numpy.ndarray
        Object arrays, of the shape of each output, of scalar nodes and numbers.

    Raises
    ------
    UnsupportedOperation
        If an operation has no scalar form, or a variable is used that is not among the inputs.
    """
    known: dict[Variable, np.ndarray] = {}
    for tensor, scalar in zip(inputs, scalars, strict=True):
        known[tensor] = np.empty(np.shape(scalar) if isinstance(scalar, np.ndarray) else (), dtype=object)
        known[tensor][...] = scalar
    return _Lowering(known, Still() if still is None else still).run(outputs, inputs)


class _Lowering:
    """Arrays of scalars for tensors, and which tensors depend on parameters alone."""

    def __init__(self, known: Mapping[Variable, np.ndarray], still: Still) -> None:
        self.known, self.still = dict(known), still
        self.unmoved = set(still.inputs)
        #: Unmoved tensors without a scalar form.
        self.opaque: set[Variable] = set()

    def run(self, outputs: Sequence[Variable], inputs: Sequence[Variable]) -> list[np.ndarray]:
        for node in io_toposort(list(inputs), list(outputs)):
            if all(self._still(v) for v in node.inputs):
                self.unmoved.update(node.outputs)
                if any(v in self.opaque for v in node.inputs) or not self._unmoved(node):
                    self.opaque.update(node.outputs)
            elif isinstance(core := _core(node), Solve) and self._still(node.inputs[0]):
                # A matrix of parameters is inverted once a parameter set.
                matrix, right = node.inputs
                inverse: Any = pt.linalg.solve(matrix, pt.eye(matrix.shape[0]), assume_a=core.assume_a, lower=core.lower)
                self._keep(node, _matmul(self._inverse(matrix, inverse), self._look_up(right, node)))
            else:
                self._keep(node, self._evaluated(node, [self._look_up(v, node) for v in node.inputs]))
        return [self._look_up(o) for o in outputs]

    def _still(self, v: Variable) -> bool:
        return v in self.unmoved or isinstance(v, Constant)

    def _inverse(self, matrix: Variable, inverse: Any) -> np.ndarray:
        """Entries of an inverse: numbers if those of the matrix are."""
        if matrix not in self.opaque and not any(isinstance(a, Variable) for a in self._look_up(matrix).ravel()):
            return np.asarray(inverse.eval(), dtype=object)
        return self.still.symbols(self.still.inverses.setdefault(matrix, inverse))

    def _unmoved(self, node: Apply) -> bool:
        """Whether a node of parameters and numbers alone was given a scalar form."""
        args = [self._look_up(v, node) for v in node.inputs]
        symbolic = any(isinstance(a, Variable) for array in args for a in array.ravel())
        if symbolic and isinstance(_core(node), Dot) and args[0].size * args[1].shape[-1] > WASTEFUL and args[1].ndim > 1:
            return False
        try:
            self._keep(node, self._evaluated(node, args))
        except UnsupportedOperation:
            if not symbolic or not self.still.inputs:
                raise
            return False
        return True

    def _evaluated(self, node: Apply, args: list[np.ndarray]) -> Any:
        if isinstance(node.op, OpFromGraph):
            inner = _Lowering(dict(zip(node.op.inner_inputs, args, strict=True)), Still())
            return inner.run(node.op.inner_outputs, node.op.inner_inputs)
        try:
            return _apply(node, args)
        except UnsupportedOperation:
            if any(isinstance(a, Variable) for array in args for a in array.ravel()):
                raise
            values = [_typed(v, a) for v, a in zip(node.inputs, args, strict=True)]
            return [o.astype(object) for o in _performed(node, values)]

    def _keep(self, node: Apply, result: Any) -> None:
        arrays = result if isinstance(result, list) else [result]
        self.known.update(zip(node.outputs, arrays, strict=True))

    def _look_up(self, v: Variable, user: Apply | None = None) -> np.ndarray:
        if v in self.opaque and v not in self.known:
            self.known[v] = self.still.symbols(v)
        found: np.ndarray | None = self.known.get(v)
        if found is None and isinstance(v, Constant):
            found = np.asarray(v.data).astype(object)
        if found is not None:
            return found
        named = [o for o in (v, *(user.outputs if user else ())) if o.name]
        raise UnsupportedOperation(
            f"the variable {named[0] if named else v} is neither a state, an input nor a parameter of the system. Add it to "
            "params=(...) and pass its value through params={...} where the system is used."
        )
