"""Small tensor expressions, as users write them, turned into graphs of scalar operations.

The tensor graph is evaluated symbolically on object arrays whose elements are scalar nodes or numbers: shapes are
known, so indexing, stacking, reductions and small matrix products all disappear and plain arithmetic is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar import ScalarType

from pm_sysid.compat import (
    Alloc,
    Blockwise,
    CAReduce,
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
    SpecifyShape,
    Subtensor,
    TensorFromScalar,
    indices_from_subtensor,
    io_toposort,
)
from pm_sysid.symbolic.scalars import Scalar, add, as_variable, dot, elementwise, fold_condition


class UnsupportedOperation(TypeError):
    """A dynamics or observation function used an operation that has no scalar form."""


def _scalar_call(scalar_op: Any) -> Callable[..., Scalar]:
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


def _apply(node: Apply, args: list[np.ndarray]) -> np.ndarray:
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
    if isinstance(node.outputs[0].type, ScalarType):
        return elementwise(_scalar_call(op), *args)
    raise UnsupportedOperation(
        f"the operation {op} has no scalar form. Write it with Python operators, pm.math or elementwise functions of "
        "pytensor.tensor, pt.stack, indexing, pt.switch, sums and products of small arrays."
    )


def lower(outputs: Sequence[Variable], inputs: Sequence[Variable], scalars: Sequence[Variable]) -> list[np.ndarray]:
    """Evaluate tensor expressions symbolically.

    Parameters
    ----------
    outputs
        Tensor expressions of ``inputs`` with shapes that do not depend on values.
    inputs
        The 0-d tensors the expressions are written in.
    scalars
        One scalar variable for each input.

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
        known[tensor] = np.empty((), dtype=object)
        known[tensor][()] = scalar

    def look_up(v: Variable, user: Apply | None = None) -> np.ndarray:
        if v in known:
            return known[v]
        if isinstance(v, Constant):
            return np.asarray(v.data).astype(object)
        named = [o for o in (v, *(user.outputs if user else ())) if o.name]
        raise UnsupportedOperation(
            f"the variable {named[0] if named else v} is neither a state, an input nor a parameter of the system. Add it to "
            "params=(...) and pass its value through params={...} where the system is used."
        )

    for node in io_toposort(list(inputs), list(outputs)):
        args = [look_up(v, node) for v in node.inputs]
        known[node.outputs[0]] = _apply(node, args)
    return [look_up(o) for o in outputs]
