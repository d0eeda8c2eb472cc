"""Cutting a scalar graph into segments with explicit loads and stores, whatever prints or compiles them.

Segments of a few hundred operations keep compile time linear in the graph: one long body makes LLVM give up on what it
could vectorise, and takes it quadratically long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from pytensor.graph.basic import Apply, Constant, Variable

from pm_sysid.compat import FrozenFunctionGraph

#: Operations in one segment.
SEGMENT = 1000
#: The same where every value is a vector.
LANE_SEGMENT = 1000


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
        if all(v in known or isinstance(v, Constant) for v in node.inputs):
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
) -> tuple[list[Segment], int]:
    """Cut a graph into segments.

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

    Returns
    -------
    segments : list of Segment
    slots : int
        Entries of the work array in use.
    """
    nodes = [n for n in graph.toposort() if n.outputs[0] not in known]
    parts = [nodes[i : i + length] for i in range(0, len(nodes), length)]
    made_in = {n.outputs[0]: k for k, part in enumerate(parts) for n in part}
    last_use: dict[Variable, int] = {}
    for k, part in enumerate(parts):
        for node in part:
            last_use.update(dict.fromkeys(node.inputs, k))
    wanted = [(o, home) for o, home in zip(graph.outputs, outputs, strict=True) if home and inputs.get(o) != home]
    occupant = {home: v for v, home in inputs.items()}
    copied = {o for o, _ in wanted if o not in made_in}
    # A value goes straight to its home unless what lives there is still to be read.
    direct: dict[Variable, list[Home]] = {}
    late: list[tuple[Variable, Home]] = []
    for o, home in wanted:
        old = occupant.get(home)
        if o in made_in and (old is None or (old not in copied and last_use.get(old, -1) <= made_in[o])):
            direct.setdefault(o, []).append(home)
        else:
            late.append((o, home))
    late_values = {o for o, _ in late}

    homes, slots = dict(inputs), first_slot
    segments = []
    for k, part in enumerate(parts):
        local = {n.outputs[0] for n in part}
        needed = dict.fromkeys(v for n in part for v in n.inputs if v not in local and v in homes)
        stores: list[tuple[Variable, Home]] = []
        loads = [(v, homes[v]) for v in needed]
        for node in part:
            out = node.outputs[0]
            stores += [(out, home) for home in direct.get(out, ())]
            if last_use.get(out, -1) > k or out in late_values:
                homes[out] = Home(work, slots)
                slots += 1
                stores.append((out, homes[out]))
        segments.append(Segment(loads, part, stores))
    if late:
        segments.append(Segment([(v, homes[v]) for v in dict.fromkeys(o for o, _ in late) if v in homes], [], late))
    return segments, slots
