"""Many parameter sets in one call: the batch form of a recurrence, and how a vectorised model reaches it.

Particles are independent runs of one recurrence over one record. The batch Op runs them side by side, and sums its outputs
over blocks of samples as it goes, so that a caller who wants one number a particle never stores a trajectory.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.tensor.blockwise import vectorize_node_fallback

from pm_sysid.recurrence import Recurrence, RecurrenceGradient, interpreted


def default_threads() -> int:
    """Threads a batch runs on: ``PM_SYSID_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the cores this process may use."""
    for name in ("PM_SYSID_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text:
            if not (text.isascii() and text.isdigit() and int(text) > 0):
                raise ValueError(
                    f"the environment variable {name} is {text!r}; give a positive number of threads, or unset it."
                )
            return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BatchRecurrence(Op):
    """Run a recurrence for many parameter sets over a range of samples, summing its outputs over blocks of them.

    Parameters
    ----------
    recurrence : Recurrence
        What to run.

    Notes
    -----
    As an Op it takes

    - ``params (B, P)``, and ``starts (B, R, n)`` or ``(1, R, n)`` where all particles share them;
    - ``state (B, R, n_carry)``: what an earlier call returned as ``final``, to go on from where it ended; ``(0, 0, 0)``
      when the first sample is 0;
    - ``edges (K + 1,)``: samples ``edges[0]`` up to ``edges[-1]`` are run, and block ``k`` sums those from ``edges[k]`` up
      to ``edges[k + 1]``; ``0, 1, ..., T`` gives every sample its own output and ``0, n`` a single sum over the first n;
    - ``counts (T,)``, ``substeps (N, n)`` and ``samples (T, n)`` of the record, as the recurrence has them;
    - ``threads ()``: how many to use.

    It returns ``sums (B, K, n_out)`` and ``final (B, R, n_carry)``, in which the row of a run that was not reached is NaN.
    It is differentiable in ``params`` and ``starts``.
    """

    __props__ = ("recurrence",)

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence

    def __repr__(self) -> str:
        return f"BatchRecurrence{{{self.recurrence.name}}}"

    def make_node(
        self, params: Any, starts: Any, state: Any, edges: Any, counts: Any, substeps: Any, samples: Any, threads: Any
    ) -> Apply:
        """Check and wrap the inputs."""
        inputs = [
            pt.as_tensor_variable(params, ndim=2, dtype="float64"),
            pt.as_tensor_variable(starts, ndim=3, dtype="float64"),
            pt.as_tensor_variable(state, ndim=3, dtype="float64"),
            pt.as_tensor_variable(edges, ndim=1, dtype="int64"),
            pt.as_tensor_variable(counts, ndim=1, dtype="int64"),
            pt.as_tensor_variable(substeps, ndim=2, dtype="float64"),
            pt.as_tensor_variable(samples, ndim=2, dtype="float64"),
            pt.as_tensor_variable(threads, ndim=0, dtype="int64"),
        ]
        outputs = [
            pt.tensor("sums", shape=(None, None, self.recurrence.n_outputs), dtype="float64"),
            pt.tensor("final", shape=(None, None, self.recurrence.n_carry), dtype="float64"),
        ]
        return Apply(self, inputs, outputs)

    def infer_shape(self, node: Apply, input_shapes: Any) -> Any:
        """One row a particle; blocks lie between edges."""
        params, starts, _, edges, *_ = input_shapes
        return [
            (params[0], edges[0] - 1, pt.constant(self.recurrence.n_outputs)),
            (params[0], starts[1], pt.constant(self.recurrence.n_carry)),
        ]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Only parameters and starts are differentiable."""
        return [[i < 2] * 2 for i in range(8)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Pull cotangents back to parameters and starts."""
        filled = [
            pt.zeros_like(o) if isinstance(c.type, DisconnectedType) else c for o, c in zip(outputs, cotangents, strict=True)
        ]
        g_params, g_starts = BatchRecurrenceGradient(self.recurrence)(*inputs, *filled)  # type: ignore[misc]
        if inputs[1].type.shape[0] == 1:
            g_starts = pt.sum(g_starts, axis=0, keepdims=True)
        elif inputs[1].type.shape[0] is None:  # one start for all may come in when the graph is called
            n = inputs[1].shape[0]
            g_starts = pt.switch(pt.eq(n, 1), pt.sum(g_starts, axis=0, keepdims=True), g_starts)[:n]
        return [g_params, g_starts, *(disconnected_type() for _ in range(6))]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Run the loops in plain Python: the reference for the compiled backends."""
        for storage, value in zip(output_storage, interpreted(self)(*inputs), strict=True):
            storage[0] = value


class BatchRecurrenceGradient(Op):
    """Reverse sweep of a :class:`BatchRecurrence`: cotangents of its outputs to cotangents of parameters and starts."""

    __props__ = ("recurrence",)

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence

    def __repr__(self) -> str:
        return f"BatchRecurrenceGradient{{{self.recurrence.name}}}"

    def make_node(self, *inputs: Any) -> Apply:
        """Inputs of the batch, then the cotangents of its outputs, whose first dimension may be 1."""
        checked = [*BatchRecurrence(self.recurrence).make_node(*inputs[:8]).inputs]
        checked += [pt.as_tensor_variable(c, ndim=3, dtype="float64") for c in inputs[8:]]
        return Apply(self, checked, [pt.dmatrix("g_params"), pt.dtensor3("g_starts")])

    def infer_shape(self, node: Apply, input_shapes: Any) -> Any:
        """Every particle has its own gradient by the starts, even where it shares them."""
        params, starts = input_shapes[:2]
        return [params, (params[0], starts[1], starts[2])]

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Run the loops in plain Python."""
        for storage, value in zip(output_storage, interpreted(self)(*inputs), strict=True):
            storage[0] = value


# -- how a vectorised model gets here ---------------------------------------------------------------------------------


def _flat(variable: Variable, core: int, shape: list[Variable]) -> Variable:
    """One batch dimension in place of any number of them: as long as the batch, or 1 where all particles share it."""
    n_batch = variable.type.ndim - core  # type: ignore[attr-defined]
    sizes = [variable.shape[n_batch + i] for i in range(core)]  # type: ignore[attr-defined]
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
    shape = _batch_shape([(params, 1), (starts, 2), *((c, 2) for c in inputs[5:])])
    flat = _flat(params, 1, shape)
    if flat.type.shape[0] == 1:  # type: ignore[attr-defined]
        flat = pt.broadcast_to(flat, (pt.prod(pt.stack(shape)), flat.shape[1]))  # type: ignore[attr-defined]
    edges = pt.arange(record[0].shape[0] + 1, dtype="int64")
    cotangents = [_flat(c, 2, shape) for c in inputs[5:]]
    return [flat, _flat(starts, 2, shape), pt.constant(np.empty((0, 0, 0))), edges, *record, THREADS, *cotangents], shape


def _unflat(variable: Variable, shape: list[Variable]) -> Variable:
    if len(shape) == 1:
        return variable
    return variable.reshape((*shape, *(variable.shape[i] for i in range(1, variable.type.ndim))))  # type: ignore[attr-defined]


#: The thread count of batches in a compiled graph; :func:`set_threads` changes it.
THREADS = pytensor.shared(np.asarray(default_threads(), dtype="int64"), "pm_sysid::threads")


def set_threads(threads: int | None = None) -> int:
    """Set how many threads a batch of particles runs on.

    Parameters
    ----------
    threads : int, optional
        Default: the environment's ``PM_SYSID_NUM_THREADS`` or ``OMP_NUM_THREADS``, else the cores this process may use.

    Returns
    -------
    int
        The number in force before.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> before = sid.set_threads(1)
    >>> sid.set_threads(before)
    1
    """
    if threads is None:
        threads = default_threads()
    integer = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if not integer or not 1 <= threads < 2**31:
        raise ValueError(f"threads is {threads!r}; give a positive integer, or None for the default.")
    before = int(THREADS.get_value())
    THREADS.set_value(np.asarray(threads, dtype="int64"))
    return before


@_vectorize_node.register(Recurrence)
def _vectorize_recurrence(op: Recurrence, node: Apply, *inputs: Any) -> Any:
    """Particles of a vectorised graph run side by side."""
    found = _batched(op, inputs)
    if found is None:
        return vectorize_node_fallback(op, node, *inputs)
    batched, shape = found
    outputs = BatchRecurrence(op)(*batched)
    return [_unflat(o, shape) for o in outputs]  # type: ignore[union-attr]


@_vectorize_node.register(RecurrenceGradient)
def _vectorize_gradient(op: RecurrenceGradient, node: Apply, *inputs: Any) -> Any:
    """Gradients of a vectorised graph run side by side."""
    found = _batched(op.recurrence, inputs)
    if found is None:
        return vectorize_node_fallback(op, node, *inputs)
    batched, shape = found
    outputs = BatchRecurrenceGradient(op.recurrence)(*batched)
    return [_unflat(o, shape) for o in outputs]  # type: ignore[union-attr]
