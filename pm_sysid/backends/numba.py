"""A recurrence as numba kernels: one sequence at a time, its value and its derivative."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key

from pm_sysid.backends.program import KERNELS, compile_program, forward_program, interpret_program, reverse_program
from pm_sysid.recurrence import TAPE_BYTES, Recurrence, RecurrenceGradient, interpreted


def _check(op: Recurrence) -> str:
    """Refuse arrays a printed loop would read beyond."""
    widths = (op.n_params, *(phase.n_inputs for phase in (op.start, op.substep, op.sample)))
    return f"""
    if (params.shape[0], starts.shape[1], substeps.shape[1], samples.shape[1]) != {widths}:
        raise ValueError("params, starts, substeps or samples have the wrong number of columns")
    total = 0
    runs = 1
    for t in range(counts.shape[0]):
        if counts[t] < 0:
            runs += 1
        else:
            total += counts[t]
    if total != substeps.shape[0] or runs != starts.shape[0] or counts.shape[0] != samples.shape[0]:
        raise ValueError("counts do not match the rows of starts, substeps and samples")
"""


def value_source(op: Recurrence) -> str:
    """Loop of a recurrence around its phases."""
    (_, slots, p_slots), nc = forward_program(op), op.n_carry
    return f"""
def kernel(params, starts, counts, substeps, samples):{_check(op)}
    W = np.empty({slots + 1})
    P = np.empty({p_slots})
    for i in range({op.n_params}):
        P[i] = params[i]
    prepare(P, 0)
    O = np.empty((samples.shape[0], {op.n_outputs}))
    final = np.empty((starts.shape[0], {nc}))
    s = 0
    r = 0
    start(W, P, starts, O, 0)
    for t in range(counts.shape[0]):
        if counts[t] < 0:
            for i in range({nc}):
                final[r, i] = W[i]
            r += 1
            start(W, P, starts, O, r)
        for _ in range(counts[t]):
            substep(W, P, substeps, O, s)
            s += 1
        sample(W, P, samples, O, t)
    for i in range({nc}):
        final[r, i] = W[i]
    return O, final
"""


def gradient_source(op: Recurrence) -> str:
    """Loop of the reverse sweep around the derivatives of the phases.

    Carries are kept on a tape of bounded size; when a record needs more, only the carry at the start of each block is
    kept and the block is run again before it is swept back.
    """
    slots, (_, back_slots, p_slots) = forward_program(op).slots, reverse_program(op)
    nc, n_params = op.n_carry, op.n_params
    rows = max(64, TAPE_BYTES // (8 * max(1, nc)))
    return f"""
@jit
def keep(tape, row, W):
    for i in range({nc}):
        tape[row, i] = W[i]

@jit
def recall(W, tape, row):
    for i in range({nc}):
        W[i] = tape[row, i]

def kernel(params, starts, counts, substeps, samples, g_outputs, g_final):{_check(op)}
    T = counts.shape[0]
    most = 0
    for t in range(T):
        most = max(most, counts[t])
    block = max(1, T)
    if total + T > {rows}:
        block = max(1, {rows} // (most + 1))
    n_blocks = (T + block - 1) // block
    W = np.empty({slots + 1})
    V = np.zeros({back_slots + 1})
    P = np.empty({p_slots})
    for i in range({n_params}):
        P[i] = params[i]
    prepare(P, 0)
    back_prepare(P, 0)
    O = np.empty((samples.shape[0], {op.n_outputs}))
    g_starts = np.zeros((starts.shape[0], starts.shape[1]))
    heads = np.empty((n_blocks, {nc}))
    head_substep = np.zeros(n_blocks, dtype=np.int64)
    head_run = np.zeros(n_blocks, dtype=np.int64)
    tape = np.empty((min(total + T, block * (most + 1)), {nc}))
    s = 0
    r = 0
    start(W, P, starts, O, 0)
    for b in range(n_blocks):
        keep(heads, b, W)
        head_substep[b] = s
        head_run[b] = r
        if b == n_blocks - 1:
            break
        for t in range(b * block, (b + 1) * block):
            if counts[t] < 0:
                r += 1
                start(W, P, starts, O, r)
            for _ in range(counts[t]):
                substep(W, P, substeps, O, s)
                s += 1
            sample(W, P, samples, O, t)
    for i in range({nc}):
        V[i] = g_final[starts.shape[0] - 1, i]
    for b in range(n_blocks - 1, -1, -1):
        recall(W, heads, b)
        s = head_substep[b]
        r = head_run[b]
        row = 0
        end = min(T, (b + 1) * block)
        for t in range(b * block, end):
            if counts[t] < 0:
                r += 1
                start(W, P, starts, O, r)
            for _ in range(counts[t]):
                keep(tape, row, W)
                row += 1
                substep(W, P, substeps, O, s)
                s += 1
            keep(tape, row, W)
            row += 1
            if t + 1 < end:
                sample(W, P, samples, O, t)
        for t in range(end - 1, b * block - 1, -1):
            row -= 1
            back_sample(V, tape[row], P, samples, g_outputs, g_starts, t)
            for _ in range(counts[t]):
                row -= 1
                s -= 1
                back_substep(V, tape[row], P, substeps, g_outputs, g_starts, s)
            if counts[t] < 0:
                back_start(V, W, P, starts, g_outputs, g_starts, r)
                r -= 1
                for i in range({nc}):
                    V[i] = g_final[r, i]
    back_start(V, W, P, starts, g_outputs, g_starts, 0)
    g_params = np.empty({n_params})
    for i in range({n_params}):
        g_params[i] = V[{nc} + i]
    return g_params, g_starts
"""


# One kernel for all functions that use a recurrence: another one would have to be loaded again, and numba keeps the intrinsics
# of every one there has been.


@lru_cache(maxsize=KERNELS)
def _kernel(source: str, op: Recurrence, reverse: bool) -> tuple[Any, str]:
    """Numba function of a loop, and the key of its machine code."""
    return compile_program(source, forward_program(op), *([reverse_program(op)] if reverse else []))


@register_funcify_and_cache_key(Recurrence)
def numba_recurrence(op: Recurrence, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of a recurrence."""
    return _kernel(value_source(op), op, False)


@register_funcify_and_cache_key(RecurrenceGradient)
def numba_recurrence_gradient(op: RecurrenceGradient, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of the reverse sweep."""
    return _kernel(gradient_source(op.recurrence), op.recurrence, True)


@lru_cache(maxsize=32)
def python_kernel(op: Recurrence) -> Callable[..., Any]:
    """Return the recurrence as an interpreted Python function."""
    return interpret_program(value_source(op), forward_program(op))


@lru_cache(maxsize=32)
def python_gradient_kernel(op: Recurrence) -> Callable[..., Any]:
    """Return the reverse sweep as an interpreted Python function."""
    return interpret_program(gradient_source(op), forward_program(op), reverse_program(op))


@interpreted.register
def _(op: Recurrence) -> Callable[..., Any]:
    return python_kernel(op)


@interpreted.register
def _(op: RecurrenceGradient) -> Callable[..., Any]:
    return python_gradient_kernel(op.recurrence)
