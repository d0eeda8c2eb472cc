"""How a vectorised model reaches the batch: recurrences of a graph with a batch dimension run side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from pm_sysid.compat import vectorize_node, vectorize_node_fallback
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.op import Recurrence, RecurrenceGradient
from pm_sysid.recurrence.threads import thread_count


def _flat(variable: Variable, core: int, shape: list[Variable]) -> Variable:
    """One batch dimension in place of any number of them: as long as the batch, or 1 where all particles share it."""
    n_batch = variable.type.ndim - core  # type: ignore[attr-defined]
    known = variable.type.shape[n_batch:]  # type: ignore[attr-defined]
    sizes = [n if n is not None else variable.shape[n_batch + i] for i, n in enumerate(known)]  # type: ignore[attr-defined]
    if n_batch == 0 or all(variable.type.broadcastable[:n_batch]):  # type: ignore[attr-defined]
        return variable.reshape((1, *sizes))  # type: ignore[attr-defined]
    return pt.broadcast_to(variable, (*shape, *sizes)).reshape((pt.prod(pt.stack(shape)), *sizes))


def _batch_shape(variables: list[tuple[Variable, int]]) -> list[Variable]:
    """Batch dimensions that the variables broadcast to."""
    n_batch = max(v.type.ndim - core for v, core in variables)  # type: ignore[attr-defined]
    shape: list[Variable] = [pt.constant(1, dtype="int64")] * n_batch
    for v, core in variables:
        dims = v.type.ndim - core  # type: ignore[attr-defined]
        for i in range(dims):
            if not v.type.broadcastable[i]:  # type: ignore[attr-defined]
                shape[n_batch - dims + i] = v.shape[i]  # type: ignore[attr-defined]
    return shape


def _batched(op: Recurrence, inputs: tuple[Any, ...]) -> tuple[list[Variable], list[Variable]] | None:
    """Inputs of the batch Op, with cotangents if there are any, and its dimensions; None where the record is batched."""
    params, starts, *record = inputs[:5]
    if any(v.type.ndim > core for v, core in zip(record, (1, 2, 2), strict=True)):
        return None
    shape = _batch_shape([(params, 2), (starts, 2), *((c, 2) for c in inputs[5:])])
    flat = _flat(params, 2, shape)
    if flat.type.shape[0] == 1:  # type: ignore[attr-defined]
        flat = pt.broadcast_to(flat, (pt.prod(pt.stack(shape)), flat.shape[1], flat.shape[2]))  # type: ignore[attr-defined]
    edges = pt.arange(record[0].shape[0] + 1, dtype="int64")
    cotangents = [_flat(c, 2, shape) for c in inputs[5:]]
    return [flat, _flat(starts, 2, shape), pt.constant(np.empty((0, 0, 0))), edges, *record, thread_count(), *cotangents], shape


def _unbatched(node: Apply, inputs: tuple[Any, ...]) -> bool:
    """Whether no input has a batch dimension, as in the calibration of a filter whose parameters are known."""
    return all(new.type.ndim == old.type.ndim for new, old in zip(inputs, node.inputs, strict=True))


def _unflat(variable: Variable, shape: list[Variable]) -> Variable:
    if len(shape) == 1:
        return variable
    return variable.reshape((*shape, *(variable.shape[i] for i in range(1, variable.type.ndim))))  # type: ignore[attr-defined]


@vectorize_node.register(Recurrence)
def _vectorize_recurrence(op: Recurrence, node: Apply, *inputs: Any) -> Any:
    """Particles of a vectorised graph run side by side."""
    if _unbatched(node, inputs):
        return op.make_node(*inputs)
    found = _batched(op, inputs)
    if found is None:
        return vectorize_node_fallback(op, node, *inputs)
    batched, shape = found
    outputs = BatchRecurrence(op)(*batched)
    return [_unflat(o, shape) for o in outputs]  # type: ignore[union-attr]


@vectorize_node.register(RecurrenceGradient)
def _vectorize_gradient(op: RecurrenceGradient, node: Apply, *inputs: Any) -> Any:
    """Gradients of a vectorised graph run side by side."""
    if _unbatched(node, inputs):
        return op.make_node(*inputs)
    found = _batched(op.recurrence, inputs)
    if found is None:
        return vectorize_node_fallback(op, node, *inputs)
    batched, shape = found
    outputs = BatchRecurrenceGradient(op.recurrence)(*batched)
    return [_unflat(o, shape) for o in outputs]  # type: ignore[union-attr]
