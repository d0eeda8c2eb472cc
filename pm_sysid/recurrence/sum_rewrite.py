"""Graph rewrites: a batch whose outputs are only summed over time does not write them down first."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph import node_rewriter
from pytensor.graph.basic import Apply, Variable

from pm_sysid.compat import DimShuffle, Subtensor, Sum, register_specialize
from pm_sysid.recurrence.batch_op import BatchRecurrence

FULL = slice(None, None, None)


def _keeps_time(node: Apply) -> bool:
    """Whether a view leaves particles and time, the first two dimensions, where they are."""
    match node.op:
        case DimShuffle(new_order=order):
            return list(order[:2]) == [0, 1] and "x" not in order
        case Subtensor(idx_list=index):
            return list(index[:2]) == [FULL, FULL]
    return False


@register_specialize
@node_rewriter([Sum])
def local_sum_of_batch(fgraph: Any, node: Apply) -> Any:
    """Sum over time inside the batch: the sum of all blocks is one block, whatever the blocks were."""
    if node.op.axis is not None and 1 not in node.op.axis:
        return None
    views: list[Apply] = []
    variable: Variable = node.inputs[0]
    while variable.owner is not None and _keeps_time(variable.owner) and len(fgraph.clients[variable]) == 1:
        views.append(variable.owner)
        variable = variable.owner.inputs[0]
    batch = variable.owner
    if batch is None or not isinstance(batch.op, BatchRecurrence) or variable is not batch.outputs[0]:
        return None
    edges = batch.inputs[3]
    if edges.type.shape[0] == 2 or len(fgraph.clients[variable]) != 1:
        return None
    inputs = list(batch.inputs)
    inputs[3] = pt.stack([edges[0], edges[-1]])
    sums, final = batch.op(*inputs)
    for view in reversed(views):
        sums = view.op(sums, *view.inputs[1:])
    replaced = {node.outputs[0]: node.op(sums)}
    if fgraph.clients[batch.outputs[1]]:
        replaced[batch.outputs[1]] = final
    return replaced
