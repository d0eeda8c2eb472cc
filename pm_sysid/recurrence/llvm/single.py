"""Kernels of a recurrence: one sequence at a time, its value and its derivative."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from inspect import getsource
from typing import Any

import numpy as np
from llvmlite import ir

from pm_sysid.compat.numba import register_funcify_and_cache_key
from pm_sysid.recurrence.llvm.call import numba_function
from pm_sysid.recurrence.llvm.machine_code import load
from pm_sysid.recurrence.llvm.program import (
    KERNELS,
    compile_program,
    forward_program,
    interpret_program,
    kernel_key,
    reverse_program,
    sample_source,
)
from pm_sysid.recurrence.op import TAPE_BYTES, Recurrence, RecurrenceGradient, interpreted

#: Part of every key: loops change with what prints them.
_TEXT = getsource(sys.modules[__name__])


def _check(op: Recurrence) -> str:
    """Refuse arrays a printed loop would read beyond."""
    widths = (op.n_params, *(phase.n_inputs for phase in (op.start, op.substep, op.sample)))
    return f"""
    if params.shape[1] != {widths[0]} or starts.shape[1] != {widths[1]}:
        raise ValueError(faults[0])
    if substeps.shape[1] != {widths[2]} or samples.shape[1] != {widths[3]}:
        raise ValueError(faults[0])
    total = 0
    runs = 1
    for t in range(counts.shape[0]):
        if counts[t] < 0:
            runs += 1
        else:
            total += counts[t]
    if total != substeps.shape[0] or runs != starts.shape[0] or counts.shape[0] != samples.shape[0]:
        raise ValueError(faults[1])
    if params.shape[0] != 1 and params.shape[0] != runs:
        raise ValueError(faults[8])
"""


#: Parameters of a run: all runs may share one row.
OWN = """
def own(P, params, r):
    if r == 0 or params.shape[0] > 1:
        for i in range(params.shape[1]):
            P[i] = params[r, i]
        prepare(P, 0)
"""
#: The same, and what the derivatives of the phases read of them.
OWN_TAPED = f"{OWN}        back_prepare(P, 0)\n"

#: How the phases are called on the arrays of one run.
CALLS = ("own(P, params, r); start(W, P, starts, O, r)", "substep(W, P, substeps, O, s)", "sample(W, P, samples, O, t)")


def value_source(op: Recurrence) -> str:
    """Loop of a recurrence around its phases."""
    (_, slots, p_slots), nc = forward_program(op), op.n_carry
    ended = [f"for i in range({nc}):", "    final[r, i] = W[i]"]
    return f"""{OWN}
def kernel(params, starts, counts, substeps, samples, O, final):{_check(op)}
    W, P = zeros({slots}), zeros({p_slots})
    s = 0
    r = 0
    own(P, params, r)
    start(W, P, starts, O, 0)
    for t in range(counts.shape[0]):
        {sample_source(*CALLS, indent=8, ended=ended)}
    for i in range({nc}):
        final[r, i] = W[i]
"""


def gradient_source(op: Recurrence) -> str:
    """Loop of the reverse sweep around the derivatives of the phases.

    Carries are kept on a tape of bounded size; when a record needs more, only the carry at the start of each block is
    kept and the block is run again before it is swept back.
    """
    slots, (_, back_slots, p_slots) = forward_program(op).slots, reverse_program(op)
    nc, n_params = op.n_carry, op.n_params
    rows = max(64, TAPE_BYTES // (8 * max(1, nc)))
    return f"""{OWN_TAPED}
def keep(tape, row, W):
    for i in range({nc}):
        tape[row, i] = W[i]

def recall(W, tape, row):
    for i in range({nc}):
        W[i] = tape[row, i]

def give(g_params, V, r):
    for i in range({n_params}):
        g_params[r, i] = V[{nc} + i]
        V[{nc} + i] = 0.0

def kernel(params, starts, counts, substeps, samples, g_outputs, g_final, g_params, g_starts):{_check(op)}
    if g_outputs.shape[0] != samples.shape[0] or g_outputs.shape[1] != {op.n_outputs}:
        raise ValueError(faults[7])
    if g_final.shape[0] != starts.shape[0] or g_final.shape[1] != {nc}:
        raise ValueError(faults[7])
    T = counts.shape[0]
    most = 0
    for t in range(T):
        most = max(most, counts[t])
    block = max(1, T)
    if total + T > {rows}:
        block = max(1, {rows} // (most + 1))
    n_blocks = (T + block - 1) // block
    W, V, P, O = zeros({slots}), zeros({back_slots}), zeros({p_slots}), zeros(T, {op.n_outputs})
    heads, head_substep, head_run = zeros(n_blocks, {nc}), integers(n_blocks), integers(n_blocks)
    tape = zeros(min(total + T, block * (most + 1)), {nc})
    s = 0
    r = 0
    own(P, params, r)
    start(W, P, starts, O, 0)
    for b in range(n_blocks):
        keep(heads, b, W)
        head_substep[b] = s
        head_run[b] = r
        if b == n_blocks - 1:
            break
        for t in range(b * block, (b + 1) * block):
            {sample_source(*CALLS, indent=12)}
    for i in range({nc}):
        V[i] = g_final[starts.shape[0] - 1, i]
    for b in range(n_blocks - 1, -1, -1):
        recall(W, heads, b)
        s = head_substep[b]
        r = head_run[b]
        own(P, params, r)
        row = 0
        end = min(T, (b + 1) * block)
        for t in range(b * block, end):
            {sample_source(*CALLS, indent=12, taped=True)}
        for t in range(end - 1, b * block - 1, -1):
            row -= 1
            back_sample(V, tape[row], P, samples, g_outputs, g_starts, t)
            for _ in range(counts[t]):
                row -= 1
                s -= 1
                back_substep(V, tape[row], P, substeps, g_outputs, g_starts, s)
            if counts[t] < 0:
                back_start(V, W, P, starts, g_outputs, g_starts, r)
                if params.shape[0] > 1:
                    give(g_params, V, r)
                r -= 1
                own(P, params, r)
                for i in range({nc}):
                    V[i] = g_final[r, i]
    back_start(V, W, P, starts, g_outputs, g_starts, 0)
    give(g_params, V, 0)
"""


#: What PyTensor's functions do: make room for the results, and call the kernel.
CALL_VALUE = """
def recurrence(address, n_outputs, n_carry, params, starts, counts, substeps, samples):
    outputs, final = np.empty((samples.shape[0], n_outputs)), np.empty((starts.shape[0], n_carry))
    params, starts, counts = contiguous(params), contiguous(starts), contiguous(counts)
    fault = invoke(address, (params, starts, counts, contiguous(substeps), contiguous(samples), outputs, final))
    if fault != 0:
        refuse(fault)
    return outputs, final
"""
CALL_GRADIENT = """
def gradient(address, params, starts, counts, substeps, samples, g_outputs, g_final):
    g_params, g_starts = np.empty(params.shape), np.zeros(starts.shape)
    params, starts, counts = contiguous(params), contiguous(starts), contiguous(counts)
    substeps, samples, g_outputs, g_final = (
        contiguous(substeps), contiguous(samples), contiguous(g_outputs), contiguous(g_final)
    )
    fault = invoke(address, (params, starts, counts, substeps, samples, g_outputs, g_final, g_params, g_starts))
    if fault != 0:
        refuse(fault)
    return g_params, g_starts
"""


#: Dimensions of the arrays of a recurrence's kernel, and of its reverse sweep's, and which hold whole numbers.
VALUE_ARRAYS: tuple[tuple[int, ...], tuple[int, ...]] = (2, 2, 1, 2, 2, 2, 2), (2,)
GRADIENT_ARRAYS: tuple[tuple[int, ...], tuple[int, ...]] = (*VALUE_ARRAYS[0], 2, 2), (2,)


def value_module(op: Recurrence, symbol: str) -> ir.Module:
    """LLVM module of a recurrence."""
    return compile_program(symbol, value_source(op), *VALUE_ARRAYS, forward_program(op))


def gradient_module(op: Recurrence, symbol: str) -> ir.Module:
    """LLVM module of the reverse sweep."""
    return compile_program(symbol, gradient_source(op), *GRADIENT_ARRAYS, forward_program(op), reverse_program(op))


def value_symbol(op: Recurrence) -> str:
    """Symbol of a recurrence's kernel, loaded."""
    return load(kernel_key(op, "value", text=_TEXT), partial(value_module, op))


def gradient_symbol(op: Recurrence) -> str:
    """Symbol of the reverse sweep's kernel, loaded."""
    return load(kernel_key(op, "gradient", TAPE_BYTES, text=_TEXT), partial(gradient_module, op))


@lru_cache(maxsize=KERNELS)
def _value(op: Recurrence) -> tuple[Any, str]:
    """Numba function of a recurrence, and the key of its machine code."""
    symbol = value_symbol(op)
    return numba_function(CALL_VALUE, symbol, (op.n_outputs, op.n_carry)), symbol


@lru_cache(maxsize=KERNELS)
def _gradient(op: Recurrence, tape_bytes: int) -> tuple[Any, str]:
    """Numba function of the reverse sweep, and the key of its machine code."""
    symbol = gradient_symbol(op)
    return numba_function(CALL_GRADIENT, symbol), symbol


@register_funcify_and_cache_key(Recurrence)
def numba_recurrence(op: Recurrence, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of a recurrence."""
    return _value(op)


@register_funcify_and_cache_key(RecurrenceGradient)
def numba_recurrence_gradient(op: RecurrenceGradient, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of the reverse sweep."""
    return _gradient(op.recurrence, TAPE_BYTES)


@lru_cache(maxsize=32)
def python_kernel(op: Recurrence) -> Callable[..., Any]:
    """Return the recurrence as an interpreted Python function."""
    kernel = interpret_program(value_source(op), forward_program(op))

    def run(params: Any, starts: Any, counts: Any, substeps: Any, samples: Any) -> Any:
        outputs, final = np.empty((len(samples), op.n_outputs)), np.empty((len(starts), op.n_carry))
        kernel(np.atleast_2d(params), starts, counts, substeps, samples, outputs, final)
        return outputs, final

    return run


@lru_cache(maxsize=32)
def python_gradient_kernel(op: Recurrence) -> Callable[..., Any]:
    """Return the reverse sweep as an interpreted Python function."""
    kernel = interpret_program(gradient_source(op), forward_program(op), reverse_program(op))

    def run(params: Any, starts: Any, *others: Any) -> Any:
        rows = np.atleast_2d(params)
        g_params, g_starts = np.empty(rows.shape), np.zeros(np.shape(starts))
        kernel(rows, starts, *others, g_params, g_starts)
        return g_params.reshape(np.shape(params)), g_starts

    return run


@interpreted.register
def _(op: Recurrence) -> Callable[..., Any]:
    return python_kernel(op)


@interpreted.register
def _(op: RecurrenceGradient) -> Callable[..., Any]:
    return python_gradient_kernel(op.recurrence)
