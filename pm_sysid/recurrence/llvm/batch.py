"""A batch of recurrences as numba kernels: blocks of particles side by side in vector lanes, shared out over threads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from inspect import getsource
from typing import Any

import numpy as np
from llvmlite import ir

from pm_sysid.compat.numba import register_funcify_and_cache_key
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
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
from pm_sysid.recurrence.op import Recurrence, interpreted

#: Part of every key: loops change with what prints them.
_TEXT = getsource(sys.modules[__name__])
#: Particles in one vector: one register of the widest kind. With more, half of a step's values wait in memory.
LANES = 8
#: Particles in one block: vectors in turn, so that the square roots and divisions of one fill the waits of the others. A
#: step with few operations waits most.
WIDTH, SMALL_WIDTH, SMALL_STEP = 16, 32, 150
#: Steps and samples from which on it is worth a thread to compute fewer vectors on each.
LONG_RECORD = 1000
#: Bytes of carries a block keeps while a derivative is pulled back: what a core's own cache holds.
TAPE_BYTES = 2 * 2**20


def _check(op: Recurrence) -> str:
    """Refuse arrays a printed loop would read beyond, and find the substep and the run of the first sample."""
    widths = (op.n_params, *(phase.n_inputs for phase in (op.start, op.substep, op.sample)))
    return f"""
    B, T, K = params.shape[0], counts.shape[0], edges.shape[0] - 1
    if params.shape[2] != {widths[0]} or starts.shape[2] != {widths[1]}:
        raise ValueError(faults[0])
    if substeps.shape[1] != {widths[2]} or samples.shape[1] != {widths[3]}:
        raise ValueError(faults[0])
    if K < 0 or edges[0] < 0 or edges[K] > T:
        raise ValueError(faults[2])
    for k in range(K):
        if edges[k + 1] < edges[k]:
            raise ValueError(faults[3])
    total, runs, s0, r0 = 0, 1, 0, 0
    for t in range(T):
        if counts[t] < 0:
            runs += 1
            r0 += t < edges[0]
        else:
            total += counts[t]
            s0 += counts[t] * (t < edges[0])
    if total != substeps.shape[0] or runs != starts.shape[1] or T != samples.shape[0]:
        raise ValueError(faults[1])
    if params.shape[1] != 1 and params.shape[1] != runs:
        raise ValueError(faults[8])
    if starts.shape[0] != B and starts.shape[0] != 1:
        raise ValueError(faults[4])
    if edges[0] > 0 and (state.shape[0] != B or state.shape[1] != runs or state.shape[2] != {op.n_carry}):
        raise ValueError(faults[5])
"""


#: Lanes of particle data, and back (lanes that are left over repeat the last particle, or are not computed); the parameters
#: of a run, which all runs of a particle may share; and the phases of a step for the vectors of a block that hold particles.
HELPERS = """
def gather(lane, rows, first):
    last = rows.shape[0] - 1
    for q in range({L}):
        p = min(first + q, last)
        for i in range(rows.shape[1]):
            lane[i * {L} + q] = rows[p, i]

def scatter(rows, lane, first, live, n):
    for q in range(live):
        for i in range(n):
            rows[first + q, i] = lane[i * {L} + q]

def set_up(P, params, r, first, live):
    gather(P, params[:, min(r, params.shape[1] - 1)], first)
    for o in range(0, live, {V}):
        prepare(P, 0, o)

def own(P, params, r, first, live):
    if params.shape[1] > 1:
        set_up(P, params, r, first, live)

def begin_run(W, P, X, O, starts, r, first, live):
    gather(X, starts[:, r], first)
    for o in range(0, live, {V}):
        start(W, P, X, O, 0, o)

def take_substep(W, P, substeps, O, s, live):
    for o in range(0, live, {V}):
        substep(W, P, substeps, O, s, o)

def take_sample(W, P, samples, O, t, live):
    for o in range(0, live, {V}):
        sample(W, P, samples, O, t, o)
"""


#: How the helpers that run the phases are called on the lanes of a block.
CALLS = (
    "own(P, params, r, first, live); begin_run(W, P, X, O, starts, r, first, live)",
    "take_substep(W, P, substeps, O, s, live)",
    "take_sample(W, P, samples, O, t, live)",
)


def block_width(op: Recurrence) -> int:
    """Particles in one block of a recurrence."""
    if op.crowded:
        return LANES
    return SMALL_WIDTH if op.n_nodes["substep"] < SMALL_STEP else WIDTH


#: Particles of a block: as many as it holds, or fewer vectors where threads would be idle through a long record. A particle is
#: computed in the same way in any block.
SIZE = """
    size = {L}
    if total + T > {LONG}:
        size = min({L}, max(1, (B + threads * {V} - 1) // (threads * {V})) * {V})"""


def value_source(op: Recurrence, width: int, lanes: int) -> str:
    """Loop of a block of particles around the phases, and the blocks."""
    (_, slots, p_slots), nc, n_out = forward_program(op, lanes=True), op.n_carry, op.n_outputs
    return f"""{HELPERS.format(L=width, V=lanes)}
def block(b, size, params, starts, state, edges, counts, substeps, samples, s, r, sums, final):
    first = b * size
    live = min(size, params.shape[0] - first)
    K = edges.shape[0] - 1
    W, P, X, O = lanes({slots}), lanes({p_slots}), lanes(starts.shape[2]), lanes({n_out})
    set_up(P, params, r, first, live)
    if edges[0] == 0:
        begin_run(W, P, X, O, starts, 0, first, live)
    else:
        gather(W, state[:, r], first)
    for k in range(K):
        for i in range({n_out * width}):
            O[i] = 0.0
        for t in range(edges[k], edges[k + 1]):
            {sample_source(*CALLS, indent=12, ended=[f"scatter(final[:, r], W, first, live, {nc})"])}
        scatter(sums[:, k], O, first, live, {n_out})
    scatter(final[:, r], W, first, live, {nc})

def kernel(params, starts, state, edges, counts, substeps, samples, threads, sums, final):{_check(op)}
    for p in range(B):
        for r in range(runs):
            for i in range({nc}):
                if edges[0] > 0:
                    final[p, r, i] = state[p, r, i]
                else:
                    final[p, r, i] = nan
{SIZE.format(L=width, V=lanes, LONG=LONG_RECORD)}
    n = (B + size - 1) // size
    parallel(block, n, threads, size, params, starts, state, edges, counts, substeps, samples, s0, r0, sums, final)
"""


def gradient_source(op: Recurrence, width: int, lanes: int) -> str:
    """Loop of the reverse sweep of a block of particles.

    As for a single sequence, carries are kept on a tape of bounded size, from the heads of blocks of samples.
    """
    slots, (_, back_slots, p_slots) = forward_program(op, lanes=True).slots, reverse_program(op, lanes=True)
    nc, n_params, n_out, n_start = op.n_carry, op.n_params, op.n_outputs, op.start.n_inputs
    rows = max(64, TAPE_BYTES // (8 * max(1, nc) * width))
    return f"""{HELPERS.format(L=width, V=lanes)}
def keep(tape, row, W):
    for i in range({nc * width}):
        tape[row * {nc * width} + i] = W[i]

def recall(W, tape, row):
    for i in range({nc * width}):
        W[i] = tape[row * {nc * width} + i]

def own_taped(P, params, r, first, live):
    if params.shape[1] > 1:
        set_up(P, params, r, first, live)
        for o in range(0, live, {lanes}):
            back_prepare(P, 0, o)

def give(g_params, V, r, first, live):
    scatter(g_params[:, r], V[{nc * width} :], first, live, {n_params})
    for i in range({n_params * width}):
        V[{nc * width} + i] = 0.0

def block(b, size, params, starts, state, edges, counts, substeps, samples, g_sums, g_final, s, r, g_params, g_starts):
    first = b * size
    live = min(size, params.shape[0] - first)
    K = edges.shape[0] - 1
    begin, T = edges[0], edges[K]
    n_steps = 0
    most = 0
    for t in range(begin, T):
        n_steps += 1 + max(counts[t], 0)
        most = max(most, counts[t])
    length = max(T - begin, 1)
    if n_steps > {rows}:
        length = max(1, {rows} // (most + 1))
    n_blocks = (T - begin + length - 1) // length
    W, P, X, O = lanes({slots}), lanes({p_slots}), lanes({n_start}), lanes({n_out})
    V, C, G = lanes({back_slots}), lanes({n_out}), lanes({n_start})
    heads = lanes({nc} * n_blocks)
    head_substep, head_run = integers(n_blocks), integers(n_blocks)
    tape = lanes(min(n_steps, length * (most + 1)) * {nc})
    set_up(P, params, r, first, live)
    for o in range(0, live, {lanes}):
        back_prepare(P, 0, o)
    if begin == 0:
        begin_run(W, P, X, O, starts, 0, first, live)
    else:
        gather(W, state[:, r], first)
    for h in range(n_blocks):
        keep(heads, h, W)
        head_substep[h] = s
        head_run[h] = r
        if h == n_blocks - 1:
            break
        for t in range(begin + h * length, begin + (h + 1) * length):
            {sample_source(*CALLS, indent=12)}
    k = K
    for h in range(n_blocks - 1, -1, -1):
        recall(W, heads, h)
        s = head_substep[h]
        r = head_run[h]
        own(P, params, r, first, live)
        row = 0
        head = begin + h * length
        end = min(T, head + length)
        for t in range(head, end):
            {sample_source(*CALLS, indent=12, taped=True)}
        if h == n_blocks - 1:
            gather(V, g_final[:, r], first)
        own_taped(P, params, r, first, live)
        for t in range(end - 1, head - 1, -1):
            if t < edges[k] or k == K:
                k -= 1
                while t < edges[k]:
                    k -= 1
                gather(C, g_sums[:, k], first)
            row -= 1
            for o in range(0, live, {lanes}):
                back_sample(V, tape[row * {nc * width} : (row + 1) * {nc * width}], P, samples, C, G, t, o)
            for _ in range(counts[t]):
                row -= 1
                s -= 1
                for o in range(0, live, {lanes}):
                    back_substep(V, tape[row * {nc * width} : (row + 1) * {nc * width}], P, substeps, C, G, s, o)
            if counts[t] < 0:
                gather(X, starts[:, r], first)
                for o in range(0, live, {lanes}):
                    back_start(V, W, P, X, C, G, 0, o)
                scatter(g_starts[:, r], G, first, live, {n_start})
                if params.shape[1] > 1:
                    give(g_params, V, r, first, live)
                r -= 1
                own_taped(P, params, r, first, live)
                gather(V, g_final[:, r], first)
    if begin == 0:
        if n_blocks == 0:
            gather(V, g_final[:, r], first)
        gather(X, starts[:, 0], first)
        for o in range(0, live, {lanes}):
            back_start(V, W, P, X, C, G, 0, o)
        scatter(g_starts[:, 0], G, first, live, {n_start})
    give(g_params, V, min(r, params.shape[1] - 1), first, live)

def kernel(params, starts, state, edges, counts, substeps, samples, threads, g_sums, g_final, g_params, g_starts):{_check(op)}
    if (g_sums.shape[0] != B and g_sums.shape[0] != 1) or (g_final.shape[0] != B and g_final.shape[0] != 1):
        raise ValueError(faults[6])
    if g_sums.shape[1] != K or g_sums.shape[2] != {n_out} or g_final.shape[1] != runs or g_final.shape[2] != {nc}:
        raise ValueError(faults[7])
{SIZE.format(L=width, V=lanes, LONG=LONG_RECORD)}
    n = (B + size - 1) // size
    parallel(block, n, threads, size, params, starts, state, edges, counts, substeps, samples, g_sums, g_final, s0, r0,
             g_params, g_starts)
"""


#: What PyTensor's functions do: make room for the results, and call the kernel.
CALL_VALUE = """
def batch(address, n_outputs, n_carry, params, starts, state, edges, counts, substeps, samples, threads):
    sums = np.empty((params.shape[0], max(edges.shape[0] - 1, 0), n_outputs))
    final = np.empty((params.shape[0], starts.shape[1], n_carry))
    params, starts, state, edges = contiguous(params), contiguous(starts), contiguous(state), contiguous(edges)
    counts, substeps, samples = contiguous(counts), contiguous(substeps), contiguous(samples)
    record = (params, starts, state, edges, counts, substeps, samples, threads.item(), sums, final)
    fault = invoke(address, record)
    if fault != 0:
        refuse(fault)
    return sums, final
"""
CALL_GRADIENT = """
def batch_gradient(address, params, starts, state, edges, counts, substeps, samples, threads, g_sums, g_final):
    g_params = np.zeros(params.shape)
    g_starts = np.zeros((params.shape[0], starts.shape[1], starts.shape[2]))
    params, starts, state, edges = contiguous(params), contiguous(starts), contiguous(state), contiguous(edges)
    counts, substeps, samples = contiguous(counts), contiguous(substeps), contiguous(samples)
    g_sums, g_final = contiguous(g_sums), contiguous(g_final)
    record = (params, starts, state, edges, counts, substeps, samples, threads.item(), g_sums, g_final, g_params, g_starts)
    fault = invoke(address, record)
    if fault != 0:
        refuse(fault)
    return g_params, g_starts
"""


def value_module(op: Recurrence, symbol: str) -> ir.Module:
    """LLVM module of a batch."""
    source, dimensions = value_source(op, block_width(op), LANES), (3, 3, 3, 1, 1, 2, 2, 0, 3, 3)
    program = forward_program(op, lanes=True)
    return compile_program(symbol, source, dimensions, (3, 4), program, lanes=LANES, width=block_width(op))


def gradient_module(op: Recurrence, symbol: str) -> ir.Module:
    """LLVM module of the reverse sweep of a batch."""
    source, dimensions = gradient_source(op, block_width(op), LANES), (3, 3, 3, 1, 1, 2, 2, 0, 3, 3, 3, 3)
    programs = forward_program(op, lanes=True), reverse_program(op, lanes=True)
    return compile_program(symbol, source, dimensions, (3, 4), *programs, lanes=LANES, width=block_width(op))


def value_symbol(op: Recurrence) -> str:
    """Symbol of a batch's kernel, loaded."""
    return load(kernel_key(op, "batch", LANES, block_width(op), text=_TEXT), partial(value_module, op))


def gradient_symbol(op: Recurrence) -> str:
    """Symbol of the kernel of a batch's reverse sweep, loaded."""
    return load(kernel_key(op, "batch gradient", LANES, block_width(op), TAPE_BYTES, text=_TEXT), partial(gradient_module, op))


@lru_cache(maxsize=KERNELS)
def _value(op: Recurrence) -> tuple[Any, str]:
    """Numba function of a batch, and the key of its machine code."""
    symbol = value_symbol(op)
    return numba_function(CALL_VALUE, symbol, (op.n_outputs, op.n_carry)), symbol


@lru_cache(maxsize=KERNELS)
def _gradient(op: Recurrence, tape_bytes: int) -> tuple[Any, str]:
    """Numba function of the reverse sweep of a batch, and the key of its machine code."""
    symbol = gradient_symbol(op)
    return numba_function(CALL_GRADIENT, symbol), symbol


@register_funcify_and_cache_key(BatchRecurrence)
def numba_batch(op: BatchRecurrence, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of a batch."""
    return _value(op.recurrence)


@register_funcify_and_cache_key(BatchRecurrenceGradient)
def numba_batch_gradient(op: BatchRecurrenceGradient, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of the reverse sweep of a batch."""
    return _gradient(op.recurrence, TAPE_BYTES)


@interpreted.register
@lru_cache(maxsize=32)
def _(op: BatchRecurrence) -> Callable[..., Any]:
    recurrence = op.recurrence
    kernel = interpret_program(value_source(recurrence, 1, 1), forward_program(recurrence, lanes=True))

    def run(params: Any, starts: Any, state: Any, edges: Any, *record: Any) -> Any:
        sums = np.empty((len(params), max(len(edges) - 1, 0), recurrence.n_outputs))
        final = np.empty((len(params), starts.shape[1], recurrence.n_carry))
        kernel(params, starts, state, edges, *record, sums, final)
        return sums, final

    return run


@interpreted.register
@lru_cache(maxsize=32)
def _(op: BatchRecurrenceGradient) -> Callable[..., Any]:
    programs = forward_program(op.recurrence, lanes=True), reverse_program(op.recurrence, lanes=True)
    kernel = interpret_program(gradient_source(op.recurrence, 1, 1), *programs)

    def run(params: Any, starts: Any, *others: Any) -> Any:
        g_params, g_starts = np.zeros(params.shape), np.zeros((len(params), *starts.shape[1:]))
        kernel(params, starts, *others, g_params, g_starts)
        return g_params, g_starts

    return run
