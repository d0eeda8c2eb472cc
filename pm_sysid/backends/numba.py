"""A recurrence as numba kernels: one sequence at a time, its value and its derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Constant
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pm_sysid.backends.llvm import segment_function
from pm_sysid.backends.plan import Home, Segment, plan
from pm_sysid.backends.python import NAMESPACE, print_phase
from pm_sysid.recurrence import TAPE_BYTES, Phase, Recurrence, RecurrenceGradient, interpreted
from pm_sysid.scalars import untraced

#: Changes when printed code of equal text would mean something else; part of every cache key.
VERSION = 1
#: No 'nnan' or 'ninf': missing samples and diverged states are told apart by comparisons.
FASTMATH = {"contract", "nsz", "arcp", "reassoc"}


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


def _inputs(phase: Phase, n_carry: int, n_params: int) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Carry, parameter and input variables of a phase, and what follows them."""
    v = list(phase.graph.inputs)
    a, b = n_carry, n_carry + n_params
    return v[:a], v[a:b], v[b : b + phase.n_inputs], v[b + phase.n_inputs :]


class Program(NamedTuple):
    """Phases cut into segments, by name, with the arrays each works on; and the size of the work array."""

    phases: Mapping[str, tuple[list[Segment], tuple[str, ...]]]
    slots: int


@lru_cache(maxsize=32)
def _forward(op: Recurrence) -> Program:
    """Plan the three phases on a work array W that holds the carry first."""
    nc, slots = op.n_carry, op.n_carry
    phases: dict[str, tuple[list[Segment], tuple[str, ...]]] = {}
    for name, phase, carried in (("start", op.start, 0), ("substep", op.substep, nc), ("sample", op.sample, nc)):
        carry, params, inputs, _ = _inputs(phase, carried, op.n_params)
        homes = {v: Home("W", i) for i, v in enumerate(carry)}
        homes |= {v: Home("P", i) for i, v in enumerate(params)}
        homes |= {v: Home("U", i, row=True) for i, v in enumerate(inputs)}
        targets: list[Home | None] = [Home("W", i) for i in range(nc)]
        targets += [Home("O", i, row=True) for i in range(op.n_outputs if name == "sample" else 0)]
        segments, used = plan(phase.graph, homes, targets, "W", nc)
        phases[name] = (segments, ("W", "P", "U", "O"))
        slots = max(slots, used)
    return Program(phases, slots)


@lru_cache(maxsize=32)
@untraced
def _reverse(op: Recurrence) -> Program:
    """Plan the derivatives of the phases on a work array V: cotangents of the carry, then of the parameters."""
    nc, n_params = op.n_carry, op.n_params
    slots = nc + n_params
    phases: dict[str, tuple[list[Segment], tuple[str, ...]]] = {}
    for name, phase, carried in (("start", op.start, 0), ("substep", op.substep, nc), ("sample", op.sample, nc)):
        varied = [True] * (carried + n_params - op.n_constants) + [False] * op.n_constants
        graph = phase.pull_back(varied + [name == "start"] * phase.n_inputs)
        n_in = len(phase.graph.inputs)
        inputs, cotangents = list(graph.inputs[:n_in]), list(graph.inputs[n_in:])
        homes = {v: Home("W", i) for i, v in enumerate(inputs[:carried])}
        homes |= {v: Home("P", i) for i, v in enumerate(inputs[carried : carried + n_params])}
        homes |= {v: Home("U", i, row=True) for i, v in enumerate(inputs[carried + n_params :])}
        homes |= {v: Home("V", i) for i, v in enumerate(cotangents[:nc])}
        homes |= {v: Home("G", i, row=True) for i, v in enumerate(cotangents[nc:])}
        targets: list[Home | None] = [Home("V", i) for i in range(carried)]
        contributions = graph.outputs[carried : carried + n_params]
        targets += [
            None if isinstance(o, Constant) else Home("V", nc + i, accumulate=True) for i, o in enumerate(contributions)
        ]
        targets += [Home("G", i, row=True) if name == "start" else None for i in range(phase.n_inputs)]
        segments, used = plan(graph, homes, targets, "V", nc + n_params)
        phases[f"back_{name}"] = (segments, ("V", "W", "P", "U", "G"))
        slots = max(slots, used)
    return Program(phases, slots)


def value_source(op: Recurrence) -> str:
    """Loop of a recurrence around its phases."""
    slots, nc = _forward(op).slots, op.n_carry
    return f"""
def kernel(params, starts, counts, substeps, samples):{_check(op)}
    W = np.empty({slots + 1})
    P = params.copy()
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
    slots, back_slots = _forward(op).slots, _reverse(op).slots
    nc, n_params = op.n_carry, op.n_params
    rows = max(64, TAPE_BYTES // (8 * nc))
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
    block = T
    if total + T > {rows}:
        block = max(1, {rows} // (most + 1))
    n_blocks = (T + block - 1) // block
    W = np.empty({slots + 1})
    V = np.zeros({back_slots + 1})
    P = params.copy()
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
            back_sample(V, tape[row], P, samples, g_outputs, t)
            for _ in range(counts[t]):
                row -= 1
                s -= 1
                back_substep(V, tape[row], P, substeps, g_outputs, s)
            if counts[t] < 0:
                back_start(V, W, P, starts, g_starts, r)
                r -= 1
                for i in range({nc}):
                    V[i] = g_final[r, i]
    back_start(V, W, P, starts, g_starts, 0)
    return V[{nc}:{nc + n_params}].copy(), g_starts
"""


def _jit(function: Any, **options: Any) -> Any:
    return numba_njit(function, fastmath=FASTMATH, error_model="numpy", **options)


def _compile(source: str, *programs: Program) -> tuple[Any, str]:
    """Numba function of a program and the key under which its machine code is kept on disk."""
    namespace: dict[str, Any] = {"np": np, "jit": _jit}
    for program in programs:
        for name, (segments, arrays) in program.phases.items():
            arguments = f"{', '.join(arrays)}, s"
            calls = []
            for k, segment in enumerate(segments):
                namespace[f"{name}_{k}_ir"] = segment_function(segment, arrays)
                text = f"def {name}_{k}({arguments}):\n    {name}_{k}_ir({arguments})"
                exec(text, namespace)
                namespace[f"{name}_{k}"] = _jit(namespace[f"{name}_{k}"])
                calls.append(f"    {name}_{k}({arguments})")
            exec("\n".join([f"def {name}({arguments}):", *(calls or ["    pass"])]), namespace)
            # Compiled into the caller: passing the arrays would cost a third of a step.
            namespace[name] = _jit(namespace[name], forceinline=True)
    function = compile_numba_function_src(source, "kernel", namespace, namespace)
    printed = [print_phase(n, segments, arrays) for p in programs for n, (segments, arrays) in p.phases.items()]
    key = sha256("\n".join([f"pm_sysid {VERSION}", source, *printed]).encode()).hexdigest()
    return _jit(function), key


@register_funcify_and_cache_key(Recurrence)
def numba_recurrence(op: Recurrence, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of a recurrence."""
    return _compile(value_source(op), _forward(op))


@register_funcify_and_cache_key(RecurrenceGradient)
def numba_recurrence_gradient(op: RecurrenceGradient, **kwargs: Any) -> tuple[Any, str]:
    """Numba implementation of the reverse sweep."""
    return _compile(gradient_source(op.recurrence), _forward(op.recurrence), _reverse(op.recurrence))


def _interpret(source: str, *programs: Program) -> Callable[..., Any]:
    namespace = {**NAMESPACE, "jit": lambda f: f}
    for program in programs:
        for name, (segments, arrays) in program.phases.items():
            exec(print_phase(name, segments, arrays), namespace)
    exec(source, namespace)

    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return namespace["kernel"](*args)

    return run


@lru_cache(maxsize=32)
def python_kernel(op: Recurrence) -> Callable[..., Any]:
    """Return the recurrence as an interpreted Python function."""
    return _interpret(value_source(op), _forward(op))


@lru_cache(maxsize=32)
def python_gradient_kernel(op: Recurrence) -> Callable[..., Any]:
    """Return the reverse sweep as an interpreted Python function."""
    return _interpret(gradient_source(op), _forward(op), _reverse(op))


@interpreted.register
def _(op: Recurrence) -> Callable[..., Any]:
    return python_kernel(op)


@interpreted.register
def _(op: RecurrenceGradient) -> Callable[..., Any]:
    return python_gradient_kernel(op.recurrence)
