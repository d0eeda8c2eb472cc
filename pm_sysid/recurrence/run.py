"""Recurrences as functions of arrays, for callers that want numbers and not expressions: kernels called without PyTensor.

The compiler is imported with the first kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from pm_sysid.progress import compiling
from pm_sysid.recurrence.op import Recurrence
from pm_sysid.recurrence.threads import thread_count

#: A compiled recurrence: arrays to its outputs and its last carries.
type Run = Callable[..., tuple[np.ndarray, np.ndarray]]


@lru_cache(maxsize=64)
def compiled_run(recurrence: Recurrence) -> Run:
    """One parameter set, ``run(params, starts, counts, substeps, samples)``: arrays as :class:`Recurrence` takes them.

    The arrays must have the Op's dtypes (float64, and int64 for counts).
    """
    from pm_sysid.recurrence.llvm import single

    with compiling(recurrence.name):
        kernel = _kernel(single.value_symbol(recurrence))

    def run(params: Any, starts: Any, counts: Any, substeps: Any, samples: Any) -> tuple[np.ndarray, np.ndarray]:
        outputs, final = np.empty((len(samples), recurrence.n_outputs)), np.empty((len(starts), recurrence.n_carry))
        kernel(params, starts, counts, substeps, samples, outputs, final)
        return outputs, final

    return run


@lru_cache(maxsize=64)
def compiled_batch(recurrence: Recurrence, threads: int | None = None) -> Run:
    """Many parameter sets, ``run(params, starts, edges, counts, substeps, samples)``: arrays as :class:`BatchRecurrence`.

    Every run begins at the first sample. The arrays must have the Op's dtypes (float64, and int64 for edges and counts).
    ``threads`` is by default the number that :func:`set_threads` has set.
    """
    from pm_sysid.recurrence.llvm import batch

    with compiling(f"{recurrence.name}, many at once"):
        kernel = _kernel(batch.value_symbol(recurrence))
    no_state = np.empty((0, 0, 0))

    def run(params: Any, starts: Any, edges: Any, *record: Any) -> tuple[np.ndarray, np.ndarray]:
        number = int(thread_count().get_value()) if threads is None else threads
        sums = np.empty((len(params), max(len(edges) - 1, 0), recurrence.n_outputs))
        final = np.empty((len(params), starts.shape[1], recurrence.n_carry))
        kernel(params, starts, no_state, edges, *record, number, sums, final)
        return sums, final

    return run


def _kernel(symbol: str) -> Callable[..., None]:
    """Python function of a kernel, which writes its results into the last arrays it is given."""
    from pm_sysid.recurrence.llvm.loops import FAULTS
    from pm_sysid.recurrence.llvm.machine_code import address

    place = address(symbol)

    def call(*arguments: Any) -> None:
        # The arrays live until the kernel has returned.
        arrays = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
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
