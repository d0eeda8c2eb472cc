"""The phases of a recurrence planned on arrays, and compiled with the loop around them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from inspect import getsource
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from pytensor.graph.basic import Constant

from pm_sysid.recurrence import op as recurrences
from pm_sysid.recurrence.interpreted import NAMESPACE, print_phase
from pm_sysid.recurrence.llvm import instructions, loops, machine_code, segments, threads, vector_math
from pm_sysid.recurrence.llvm.instructions import phase_function
from pm_sysid.recurrence.llvm.loops import FAULTS, Loops
from pm_sysid.recurrence.llvm.segments import LANE_SEGMENT, ROW_VECTOR, SEGMENT, Call, Home, Segment, invariant, plan
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.symbolic import routines, scalars
from pm_sysid.symbolic.routines import Routine
from pm_sysid.symbolic.scalars import untraced

#: Kernels that are kept for the next function with the same recurrence.
KERNELS = 64
#: Part of every key: equal steps compile to other code when what compiles them changes.
_COMPILER = (recurrences, scalars, routines, segments, vector_math, instructions, loops, threads, machine_code)
VERSION = sha256("".join(map(getsource, (*_COMPILER, sys.modules[__name__]))).encode()).hexdigest()


class Program(NamedTuple):
    """Phases cut into segments, by name, with the arrays each works on; and the sizes of the work array and of P."""

    phases: Mapping[str, tuple[list[Segment | Call], tuple[str, ...]]]
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
    phases: dict[str, tuple[list[Segment | Call], tuple[str, ...]]] = {"prepare": ([], ("P",))}
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
        segments, used = plan(
            phase.graph, homes, targets, "W", nc, LANE_SEGMENT if lanes else SEGMENT, known, 1 if lanes else ROW_VECTOR
        )
        phases[name] = (segments, ("W", "P", "U", "O"))
        slots = max(slots, used)
    return Program(phases, slots, p_slots)


@lru_cache(maxsize=64)
@untraced()
def reverse_program(op: Recurrence, lanes: bool = False) -> Program:
    """Plan the derivatives of the phases.

    V holds the cotangents of the carry, then of the parameters, then work; C those of the outputs, G those of the starts.
    """
    nc, n_params = op.n_carry, op.n_params
    slots, p_slots = nc + n_params, forward_program(op, lanes).p_slots
    phases: dict[str, tuple[list[Segment | Call], tuple[str, ...]]] = {"back_prepare": ([], ("P",))}
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
        segments, used = plan(
            graph, homes, targets, "V", nc + n_params, LANE_SEGMENT if lanes else SEGMENT, known, 1 if lanes else ROW_VECTOR
        )
        phases[f"back_{name}"] = (segments, ("V", "W", "P", "U", "C", "G"))
        slots = max(slots, used)
    return Program(phases, slots, p_slots)


def kernel_key(op: Recurrence, kind: str, *sizes: int, text: str = "") -> str:
    """Name of a kernel: equal for equal steps and an equal text of what prints the loop, in every process."""
    return sha256(f"{VERSION} {text} {kind} {sizes} {_printed(op)}".encode()).hexdigest()[:40]


@lru_cache(maxsize=KERNELS)
def _printed(op: Recurrence) -> str:
    """The phases as text, each operation with its arguments."""
    lines = [f"{op.n_carry} {op.n_params} {op.n_constants}"]
    for name, phase, carried in _phases(op):
        names: dict[Any, str] = {v: f"i{i}" for i, v in enumerate(phase.graph.inputs)}

        def text(v: Any, names: dict[Any, str] = names) -> str:
            return float(v.data).hex() if isinstance(v, Constant) else names[v]

        lines.append(f"{name} {carried} {phase.n_inputs}")
        for k, node in enumerate(phase.graph.toposort()):
            for i, out in enumerate(node.outputs):
                names[out] = f"n{k}.{i}" if i else f"n{k}"
            name = node.op.symbol if isinstance(node.op, Routine) else type(node.op).__name__
            lines.append(f"{name} {' '.join(map(text, node.inputs))}")
        lines.append(" ".join(map(text, phase.graph.outputs)))
    return "\n".join(lines)


def compile_program(
    symbol: str,
    source: str,
    dimensions: Sequence[int],
    integers: Sequence[int],
    *programs: Program,
    lanes: int = 0,
    width: int = 1,
) -> ir.Module:
    """LLVM module of the loop ``kernel`` around phases.

    Parameters
    ----------
    symbol : str
        Name of the function.
    source : str
        Text of the loop.
    dimensions, integers : sequence of int
        Of its arguments, as :meth:`Loops.export` takes them.
    programs : Program
        The phases.
    lanes, width : int
        Doubles in a vector, and in an entry of an array of lanes.
    """
    module = ir.Module(symbol)
    phases = {
        name: phase_function(module, name, parts, arrays, lanes, width)
        for program in programs
        for name, (parts, arrays) in program.phases.items()
    }
    Loops(module, source, phases, width).export("kernel", symbol, dimensions, integers)
    return module


def interpret_program(source: str, *programs: Program) -> Callable[..., Any]:
    """Return the same loop as an interpreted Python function, for one lane."""

    def parallel(block: Any, n_blocks: int, threads: int, *arguments: Any) -> None:
        for b in range(n_blocks):
            block(b, *arguments)

    def zeros(*shape: int) -> Any:
        return np.zeros(shape)

    def integers(n: int) -> Any:
        return np.zeros(n, dtype=np.int64)

    tools = {"parallel": parallel, "zeros": zeros, "lanes": zeros, "integers": integers, "faults": FAULTS}
    namespace = {**NAMESPACE, **tools}
    for program in programs:
        for name, (parts, arrays) in program.phases.items():
            for routine in {part.routine for part in parts if isinstance(part, Call)}:
                exec(routine.source(routine.symbol), namespace)
            exec(print_phase(name, parts, arrays), namespace)
    exec(source, namespace)

    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return namespace["kernel"](*args)

    return run


def sample_source(start: str, substep: str, sample: str, *, indent: int, ended: Sequence[str] = (), taped: bool = False) -> str:
    """Lines of a loop over samples ``t``: begin the next run if the count says so, take the substeps, take the sample.

    Parameters
    ----------
    start, substep, sample : str
        Calls of the phases.
    indent : int
        Spaces before each line but the first, which stands where the text is put.
    ended : sequence of str
        Lines for a run that has ended.
    taped : bool
        Whether every carry is kept for a reverse sweep; the last sample before ``end`` is then not taken.
    """
    tape = ["keep(tape, row, W)", "row += 1"] if taped else []
    lines = ["if counts[t] < 0:", *(f"    {line}" for line in (*ended, "r += 1", start))]
    lines += ["for _ in range(counts[t]):", *(f"    {line}" for line in (*tape, substep, "s += 1"))]
    lines += [*tape, "if t + 1 < end:", f"    {sample}"] if taped else [sample]
    return f"\n{' ' * indent}".join(lines)
