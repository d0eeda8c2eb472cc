"""Recurrences as functions of arrays, for callers that want numbers and not expressions: kernels called without PyTensor.

The compiler is imported with the first kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache, singledispatch
from typing import Any

import numpy as np

from pm_sysid.progress import compiling
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.op import Recurrence, RecurrenceGradient, RunOp
from pm_sysid.recurrence.threads import thread_count

#: A compiled recurrence: arrays to its outputs and its last carries.
type Run = Callable[..., tuple[np.ndarray, np.ndarray]]


@singledispatch
def native(op: RunOp) -> Run:
    """Return an Op as a function of the arrays that it takes, which calls its machine code.

    The arrays must have the Op's dtypes (float64, and int64 for edges, counts and threads) and dimensions; of a single
    sequence, parameters may be a vector.
    """
    raise NotImplementedError(f"no machine code for {op}")


@native.register
@lru_cache(maxsize=64)
def _(op: Recurrence) -> Run:
    from pm_sysid.recurrence.llvm import single

    kernel = _kernel(single.value_symbol(op))

    def run(params: Any, starts: Any, counts: Any, substeps: Any, samples: Any) -> tuple[np.ndarray, np.ndarray]:
        outputs, final = np.empty((len(samples), op.n_outputs)), np.empty((len(starts), op.n_carry))
        kernel(np.atleast_2d(params), starts, counts, substeps, samples, outputs, final)
        return outputs, final

    return run


@native.register
@lru_cache(maxsize=64)
def _(op: RecurrenceGradient) -> Run:
    from pm_sysid.recurrence.llvm import single

    kernel = _kernel(single.gradient_symbol(op.recurrence))

    def run(params: Any, starts: Any, *others: Any) -> tuple[np.ndarray, np.ndarray]:
        rows = np.atleast_2d(params)
        g_params, g_starts = np.empty(rows.shape), np.zeros(np.shape(starts))
        kernel(rows, starts, *others, g_params, g_starts)
        return g_params.reshape(np.shape(params)), g_starts

    return run


@native.register
@lru_cache(maxsize=64)
def _(op: BatchRecurrence) -> Run:
    from pm_sysid.recurrence.llvm import batch

    recurrence, kernel = op.recurrence, _kernel(batch.value_symbol(op.recurrence))

    def run(params: Any, starts: Any, state: Any, edges: Any, *others: Any) -> tuple[np.ndarray, np.ndarray]:
        sums = np.empty((len(params), max(len(edges) - 1, 0), recurrence.n_outputs))
        final = np.empty((len(params), starts.shape[1], recurrence.n_carry))
        kernel(params, starts, state, edges, *others, sums, final)
        return sums, final

    return run


@native.register
@lru_cache(maxsize=64)
def _(op: BatchRecurrenceGradient) -> Run:
    from pm_sysid.recurrence.llvm import batch

    kernel = _kernel(batch.gradient_symbol(op.recurrence))

    def run(params: Any, starts: Any, *others: Any) -> tuple[np.ndarray, np.ndarray]:
        g_params, g_starts = np.zeros(params.shape), np.zeros((len(params), *starts.shape[1:]))
        kernel(params, starts, *others, g_params, g_starts)
        return g_params, g_starts

    return run


@lru_cache(maxsize=64)
def compiled_batch(recurrence: Recurrence, threads: int | None = None) -> Run:
    """Many parameter sets, ``run(params, starts, edges, counts, substeps, samples)``: arrays as :class:`BatchRecurrence`.

    Here ``params`` are (B, P), and every run begins at the first sample. The arrays must have the Op's dtypes (float64, and
    int64 for edges and counts).
    ``threads`` is by default the number that :func:`set_threads` has set.
    """
    with compiling(f"{recurrence.name}, many at once"):
        whole = native(BatchRecurrence(recurrence))
    no_state = np.empty((0, 0, 0))

    def run(params: Any, starts: Any, edges: Any, *record: Any) -> tuple[np.ndarray, np.ndarray]:
        number = int(thread_count().get_value()) if threads is None else threads
        return whole(np.expand_dims(params, -2), starts, no_state, edges, *record, number)

    return run


def _kernel(symbol: str) -> Callable[..., None]:
    """Python function of a kernel, which writes its results into the last arrays it is given."""
    from pm_sysid.recurrence.llvm.loops import FAULTS
    from pm_sysid.recurrence.llvm.machine_code import address

    place = address(symbol)

    def call(*arguments: Any) -> None:
        # The arrays live until the kernel has returned.
        arrays = [np.ascontiguousarray(a) if np.ndim(a) else int(a) for a in arguments]
        values: list[Any] = []
        for a in arrays:
            if isinstance(a, np.ndarray):
                values += [ctypes.c_void_p(a.ctypes.data), *map(ctypes.c_int64, a.shape)]
            else:
                values.append(ctypes.c_int64(a))
        fault = ctypes.CFUNCTYPE(ctypes.c_int64, *map(type, values))(place)(*values)
        if fault:
            raise MemoryError(FAULTS[-1]) if fault == len(FAULTS) else ValueError(FAULTS[fault - 1])

    return call
