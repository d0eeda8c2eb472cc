"""Cutting a scalar graph into segments with explicit loads and stores, whatever prints or compiles them.

Segments of a few hundred operations keep compile time linear in the graph: one long body makes LLVM give up on what it
could vectorise, and takes it quadratically long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from itertools import islice
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply, Constant, Variable

from pm_sysid.compat import FrozenFunctionGraph
from pm_sysid.symbolic.routines import Routine

#: Operations in one segment.
SEGMENT = 1000
#: The same where every value is a vector.
LANE_SEGMENT = 1000
#: Doubles in the vectors that LLVM makes of a row's; what is left of a row is done one by one, and often waits for the vectors.
ROW_VECTOR = 8
#: Entries in a row that are copied by a loop.
ROW = 8


class Home(NamedTuple):
    """Where a value lives: ``entry`` of an array, or of its current row; stores may ``accumulate``."""

    array: str
    entry: int
    row: bool = False
    accumulate: bool = False


class Segment(NamedTuple):
    """Loads, operations and stores, in this order."""

    loads: list[tuple[Variable, Home]]
    nodes: list[Apply]
    stores: list[tuple[Variable, Home]]


class Call(NamedTuple):
    """A routine on arrays, each of which begins at a home and has its entries one after the other."""

    routine: Routine
    arrays: list[Home]


def invariant(graph: FrozenFunctionGraph, params: Mapping[Variable, Home], slots: int) -> tuple[Segment, set[Variable], int]:
    """Find what depends on the parameters alone, which a loop over time needs only once.

    Parameters
    ----------
    params : mapping
        Home of each parameter.
    slots : int
        Entries of the parameters' array in use.

    Returns
    -------
    segment : Segment
        Computes these values and stores the ones others read behind the parameters.
    known : set
        All of these values.
    slots : int
        Entries of the parameters' array in use after that.
    """
    known: set[Variable] = set(params)
    nodes, needed = [], set(graph.outputs)
    for node in graph.toposort():
        if not isinstance(node.op, Routine) and all(v in known or isinstance(v, Constant) for v in node.inputs):
            known.add(node.outputs[0])
            nodes.append(node)
        else:
            needed.update(node.inputs)
    made = [n.outputs[0] for n in nodes]
    used = {v for n in nodes for v in n.inputs}
    stores = [(v, Home("P", slots + i)) for i, v in enumerate(v for v in made if v in needed)]
    return Segment([(v, h) for v, h in params.items() if v in used], nodes, stores), set(made), slots + len(stores)


def plan(
    graph: FrozenFunctionGraph,
    inputs: Mapping[Variable, Home],
    outputs: Sequence[Home | None],
    work: str,
    first_slot: int,
    length: int = SEGMENT,
    known: Set[Variable] = frozenset(),
    multiple: int = 1,
) -> tuple[list[Segment | Call], int]:
    """Cut a graph into segments and calls of routines.

    Parameters
    ----------
    graph : FrozenFunctionGraph
        Scalar graph.
    inputs : mapping
        Home of each input, and of each value that is computed elsewhere.
    known : set
        Values whose nodes are left out, since what is needed of them has a home.
    outputs : sequence of Home or None
        Home of each output; an output may share its home with an input, which it then replaces. None: not wanted.
    work : str
        Array that holds values passed between segments, from entry ``first_slot`` on.
    length : int
        Operations in a segment.
    multiple : int
        Numbers of a row that routines do in one instruction.

    Returns
    -------
    segments : list of Segment or Call
    slots : int
        Entries of the work array in use.
    """
    parts = _parts([n for n in graph.toposort() if n.outputs[0] not in known], length)
    made_in = {v: k for k, part in enumerate(parts) for n in part for v in n.outputs}
    last_use: dict[Variable, int] = {}
    for k, part in enumerate(parts):
        for node in part:
            last_use.update(dict.fromkeys(node.inputs, k))
    calls, reserved, slots = _arrays(parts, inputs, work, first_slot, multiple)
    wanted = [(o, home) for o, home in zip(graph.outputs, outputs, strict=True) if home and inputs.get(o) != home]
    occupant = {home: v for v, home in inputs.items()}
    copied = {o for o, _ in wanted if o not in made_in}
    # A value goes straight to its home unless what lives there is still to be read.
    direct: dict[Variable, list[Home]] = {}
    late: list[tuple[Variable, Home]] = []
    for o, home in wanted:
        old = occupant.get(home)
        free = old is None or (old not in copied and last_use.get(old, -1) <= made_in.get(o, -1))
        if o in made_in and free and made_in[o] not in calls:
            direct.setdefault(o, []).append(home)
        else:
            late.append((o, home))
    late_values = {o for o, _ in late}

    homes = {**inputs, **{v: home for v, home in reserved.items() if made_in.get(v) in calls}}
    segments: list[Segment | Call] = []
    for k, part in enumerate(parts):
        if k in calls:
            entries = zip(part[0].inputs, calls[k].places, strict=True)
            moved = [(v, place) for v, place in entries if homes.get(v) != place]
            segments += _copies(moved, homes, length)
            segments.append(calls[k].call)
            continue
        local = {n.outputs[0] for n in part}
        needed = dict.fromkeys(v for n in part for v in n.inputs if v not in local and v in homes)
        stores: list[tuple[Variable, Home]] = []
        loads = [(v, homes[v]) for v in needed]
        for node in part:
            out = node.outputs[0]
            stores += [(out, home) for home in direct.get(out, ())]
            if last_use.get(out, -1) > k or out in late_values:
                if out not in reserved:
                    reserved[out] = Home(work, slots)
                    slots += 1
                homes[out] = reserved[out]
                stores.append((out, homes[out]))
        segments.append(Segment(loads, part, stores))
    # What is read from the place of another output is read before anything is written.
    safe = [(v, place) for v, place in late if v in made_in]
    first = [(v, place) for v, place in late if v not in made_in]
    if first:
        segments.append(Segment([(v, homes[v]) for v in dict.fromkeys(v for v, _ in first) if v in homes], [], first))
    return segments + _copies(safe, homes, length), slots


class _Arrays(NamedTuple):
    """A call, and the place of each scalar that it reads."""

    call: Call
    places: list[Home]


def _parts(nodes: Sequence[Apply], length: int) -> list[list[Apply]]:
    """Runs of scalar operations, and routines by themselves."""
    parts: list[list[Apply]] = [[]]
    for node in nodes:
        if isinstance(node.op, Routine):
            parts += [[node], []]
        else:
            if len(parts[-1]) == length:
                parts.append([])
            parts[-1].append(node)
    return [part for part in parts if part]


def _arrays(
    parts: Sequence[Sequence[Apply]], inputs: Mapping[Variable, Home], work: str, slots: int, multiple: int
) -> tuple[dict[int, _Arrays], dict[Variable, Home], int]:
    """Lay out the arrays of all routines: each in one piece, where its values are if they lie so, else in the work array.

    Returns the calls by part, where values should go when they are made, and the entries of the work array in use.
    """
    calls: dict[int, _Arrays] = {}
    homes = {v: home for v, home in inputs.items() if not home.row}
    reserved: dict[Variable, Home] = {}
    scratch = 0
    routines = {k: part[0].op.padded(multiple) for k, part in enumerate(parts) if isinstance(part[0].op, Routine)}
    for routine in routines.values():
        scratch = max(scratch, sum(map(math.prod, routine.scratch)))
    scratch, slots = slots, slots + scratch
    for k, routine in routines.items():
        part = parts[k]
        arrays, places, values = [], [], iter(part[0].inputs)
        for shape in routine.reads:
            group = list(islice(values, math.prod(shape)))
            first = homes.get(group[0]) if group else None
            if first is None or any(homes.get(v) != first._replace(entry=first.entry + i) for i, v in enumerate(group)):
                first, slots = Home(work, slots), slots + len(group)
                for i, v in enumerate(group):
                    if v not in homes and not isinstance(v, Constant):
                        reserved[v] = homes[v] = Home(work, first.entry + i)
            arrays.append(first)
            places += [first._replace(entry=first.entry + i) for i in range(len(group))]
        outputs = iter(part[0].outputs)
        for shape in routine.writes:
            arrays.append(Home(work, slots))
            for v in islice(outputs, math.prod(shape)):
                reserved[v] = homes[v] = Home(work, slots)
                slots += 1
        used = scratch
        for shape in routine.scratch:
            arrays.append(Home(work, used))
            used += math.prod(shape)
        calls[k] = _Arrays(Call(routine, arrays), places)
    return calls, reserved, slots


def _copies(pairs: Sequence[tuple[Variable, Home]], homes: Mapping[Variable, Home], length: int) -> list[Segment | Call]:
    """Bring values, and constants, to other places: rows of entries by loops, single ones by segments."""
    result: list[Segment | Call] = []
    single: list[tuple[Variable, Home]] = []
    k = 0
    while k < len(pairs):
        n = _row(pairs, k, homes)
        if n < ROW:
            single.append(pairs[k])
            k += 1
        else:
            result.append(Call(Copy(n), [homes[pairs[k][0]], pairs[k][1]]))
            k += n
    for i in range(0, len(single), length):
        part = list(single[i : i + length])
        result.append(Segment([(v, homes[v]) for v in dict.fromkeys(v for v, _ in part) if v in homes], [], part))
    return result


def _row(pairs: Sequence[tuple[Variable, Home]], k: int, homes: Mapping[Variable, Home]) -> int:
    """How many values from the k-th on lie one after the other, and go to places that do."""
    source, target = homes.get(pairs[k][0]), pairs[k][1]
    if source is None or source.row or target.row or target.accumulate:
        return 0
    n = 1
    while k + n < len(pairs):
        v, home = pairs[k + n]
        if homes.get(v) != source._replace(entry=source.entry + n) or home != target._replace(entry=target.entry + n):
            break
        n += 1
    return n


class Copy(Routine):
    """Copy an array."""

    __props__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = n
        self.reads = self.writes = ((n,),)

    def source(self, name: str) -> str:
        """Text of the loop."""
        return f"def {name}(x, y):\n    for i in range({self.n}):\n        y[i] = x[i]\n"

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """Return the array."""
        return arrays
