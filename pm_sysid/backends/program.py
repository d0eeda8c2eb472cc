"""The phases of a recurrence planned on arrays, and compiled into a loop printed around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from inspect import getsource
from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.core.extending import intrinsic
from pytensor.graph.basic import Constant
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit

from pm_sysid.backends import elementary, llvm, threads
from pm_sysid.backends.llvm import segment_function
from pm_sysid.backends.plan import LANE_SEGMENT, SEGMENT, Home, Segment, invariant, plan
from pm_sysid.backends.python import NAMESPACE, print_phase
from pm_sysid.backends.threads import parallel
from pm_sysid.recurrence import Phase, Recurrence
from pm_sysid.scalars import untraced

#: Part of every cache key: equal graphs compile to other code when the compiler's own source changes.
VERSION = sha256("".join(getsource(m) for m in (elementary, llvm, threads)).encode()).hexdigest()
#: No 'nnan' or 'ninf': missing samples and diverged states are told apart by comparisons.
FASTMATH = {"contract", "nsz", "arcp", "reassoc"}

#: Kernels that are kept for the next function with the same recurrence.
KERNELS = 64


class Program(NamedTuple):
    """Phases cut into segments, by name, with the arrays each works on; and the sizes of the work array and of P."""

    phases: Mapping[str, tuple[list[Segment], tuple[str, ...]]]
    slots: int
    p_slots: int


def _split(variables: Any, phase: Phase, n_carry: int, n_params: int) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Carry, parameter and input variables of a phase, and what follows them."""
    v, a, b = list(variables), n_carry, n_carry + n_params
    return v[:a], v[a:b], v[b : b + phase.n_inputs], v[b + phase.n_inputs :]


def _phases(op: Recurrence) -> list[tuple[str, Phase, int]]:
    """Name, graph and carry of each phase."""
    return [("start", op.start, 0), ("substep", op.substep, op.n_carry), ("sample", op.sample, op.n_carry)]


@lru_cache(maxsize=64)
def forward_program(op: Recurrence, lanes: bool = False) -> Program:
    """Plan the phases on arrays: carry and work W, parameters and what follows from them P, inputs U, outputs O.

    With ``lanes``, a start reads inputs of its own for each particle, and the outputs are summed.
    """
    nc, slots, p_slots = op.n_carry, op.n_carry, op.n_params
    phases: dict[str, tuple[list[Segment], tuple[str, ...]]] = {"prepare": ([], ("P",))}
    for name, phase, carried in _phases(op):
        carry, params, inputs, _ = _split(phase.graph.inputs, phase, carried, op.n_params)
        homes = {v: Home("P", i) for i, v in enumerate(params)}
        prepare, known, p_slots = invariant(phase.graph, homes, p_slots)
        phases["prepare"][0].append(prepare)
        homes |= dict(prepare.stores)
        homes |= {v: Home("W", i) for i, v in enumerate(carry)}
        homes |= {v: Home("U", i, row=not (lanes and name == "start")) for i, v in enumerate(inputs)}
        targets: list[Home | None] = [Home("W", i) for i in range(nc)]
        targets += [Home("O", i, row=not lanes, accumulate=lanes) for i in range(op.n_outputs if name == "sample" else 0)]
        segments, used = plan(phase.graph, homes, targets, "W", nc, LANE_SEGMENT if lanes else SEGMENT, known)
        phases[name] = (segments, ("W", "P", "U", "O"))
        slots = max(slots, used)
    return Program(phases, slots, p_slots)


@lru_cache(maxsize=64)
@untraced
def reverse_program(op: Recurrence, lanes: bool = False) -> Program:
    """Plan the derivatives of the phases.

    V holds the cotangents of the carry, then of the parameters, then work; C those of the outputs, G those of the starts.
    """
    nc, n_params = op.n_carry, op.n_params
    slots, p_slots = nc + n_params, forward_program(op, lanes).p_slots
    phases: dict[str, tuple[list[Segment], tuple[str, ...]]] = {"back_prepare": ([], ("P",))}
    for name, phase, carried in _phases(op):
        first = name == "start"
        graph = phase.pull_back([True] * carried + op.varied + [first] * phase.n_inputs)
        carry, params, inputs, cotangents = _split(graph.inputs, phase, carried, n_params)
        homes = {v: Home("P", i) for i, v in enumerate(params)}
        prepare, known, p_slots = invariant(graph, homes, p_slots)
        phases["back_prepare"][0].append(prepare)
        homes |= dict(prepare.stores)
        homes |= {v: Home("W", i) for i, v in enumerate(carry)}
        homes |= {v: Home("U", i, row=not (lanes and first)) for i, v in enumerate(inputs)}
        homes |= {v: Home("V", i) for i, v in enumerate(cotangents[:nc])}
        homes |= {v: Home("C", i, row=not lanes) for i, v in enumerate(cotangents[nc:])}
        targets: list[Home | None] = [Home("V", i) for i in range(carried)]
        contributions = graph.outputs[carried : carried + n_params]
        targets += [
            None if isinstance(o, Constant) else Home("V", nc + i, accumulate=True) for i, o in enumerate(contributions)
        ]
        targets += [Home("G", i, row=not lanes) if first else None for i in range(phase.n_inputs)]
        segments, used = plan(graph, homes, targets, "V", nc + n_params, LANE_SEGMENT if lanes else SEGMENT, known)
        phases[f"back_{name}"] = (segments, ("V", "W", "P", "U", "C", "G"))
        slots = max(slots, used)
    return Program(phases, slots, p_slots)


def _jit(function: Any, **options: Any) -> Any:
    return numba_njit(function, fastmath=FASTMATH, error_model="numpy", **options)


@intrinsic
def _address(typingctx: Any, array: Any) -> Any:
    """Address of an array's first element."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.int64))

    return types.int64(array), codegen


def compile_program(source: str, *programs: Program, lanes: int = 0, width: int = 0) -> tuple[Any, str]:
    """Numba function of a loop around phases, and the key under which its machine code is kept on disk."""
    namespace: dict[str, Any] = {"np": np, "jit": _jit, "parallel": parallel, "address": _address}
    for program in programs:
        for name, (segments, arrays) in program.phases.items():
            arguments = f"{', '.join(arrays)}, s{', o' if lanes else ''}"
            calls = []
            for k, segment in enumerate(segments):
                namespace[f"{name}_{k}_ir"] = segment_function(segment, arrays, lanes, width)
                text = f"def {name}_{k}({arguments}):\n    {name}_{k}_ir({arguments})"
                exec(text, namespace)
                namespace[f"{name}_{k}"] = _jit(namespace[f"{name}_{k}"])
                calls.append(f"    {name}_{k}({arguments})")
            exec("\n".join([f"def {name}({arguments}):", *(calls or ["    pass"])]), namespace)
            # Compiled into the caller: passing the arrays would cost a third of a step.
            namespace[name] = _jit(namespace[name], forceinline=True)
    function = compile_numba_function_src(source, "kernel", namespace, namespace)
    printed = [print_phase(n, segments, arrays) for p in programs for n, (segments, arrays) in p.phases.items()]
    key = sha256("\n".join([f"pm_sysid {VERSION}, {lanes} of {width} lanes", source, *printed]).encode()).hexdigest()
    return _jit(function), key


def interpret_program(source: str, *programs: Program) -> Callable[..., Any]:
    """Return the same loop as an interpreted Python function."""

    def parallel(block: Any, n_arguments: int) -> Any:
        def run(n_blocks: int, threads: int, *arguments: Any) -> None:
            for b in range(n_blocks):
                block(b, *arguments)

        return run

    namespace = {**NAMESPACE, "jit": lambda f: f, "parallel": parallel, "address": lambda array: 0}
    for program in programs:
        for name, (segments, arrays) in program.phases.items():
            exec(print_phase(name, segments, arrays), namespace)
    exec(source, namespace)

    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return namespace["kernel"](*args)

    return run
