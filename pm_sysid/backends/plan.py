"""Cutting a scalar graph into segments with explicit loads and stores, whatever prints or compiles them.

Segments of a few hundred operations keep compile time linear in the graph: one long body makes LLVM give up on what it
could vectorise, and takes it quadratically long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FrozenFunctionGraph

#: Operations in one segment.
SEGMENT = 1000


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


def plan(
    graph: FrozenFunctionGraph,
    inputs: Mapping[Variable, Home],
    outputs: Sequence[Home | None],
    work: str,
    first_slot: int,
) -> tuple[list[Segment], int]:
    """Cut a graph into segments.

    Parameters
    ----------
    graph : FrozenFunctionGraph
        Scalar graph.
    inputs : mapping
        Home of each input.
    outputs : sequence of Home or None
        Home of each output; an output may share its home with an input, which it then replaces. None: not wanted.
    work : str
        Array that holds values passed between segments, from entry ``first_slot`` on.

    Returns
    -------
    segments : list of Segment
    slots : int
        Entries of the work array in use.
    """
    nodes = list(graph.toposort())
    parts = [nodes[i : i + SEGMENT] for i in range(0, len(nodes), SEGMENT)]
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
