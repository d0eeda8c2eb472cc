"""Forward derivatives: scalar graphs, and whole recurrences, along a direction of their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import pytensor.scalar.basic as psb
from pytensor.graph.basic import Apply, Variable

from pm_sysid.compat import FrozenFunctionGraph, io_toposort
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.symbolic.derivatives import contributions
from pm_sysid.symbolic.scalars import Scalar, add, again, as_variable, is_number, mul, simplify, switch, symbols, untraced


def inline(graph: FrozenFunctionGraph, arguments: Sequence[Scalar]) -> list[Scalar]:
    """Outputs of a frozen graph as expressions of other inputs."""
    known = dict(zip(graph.inputs, (as_variable(a) for a in arguments), strict=True))
    for node in graph.toposort():
        known.update(again(node, known))
    return simplify([known.get(o, o) for o in graph.outputs])


def jvp(outputs: Sequence[Scalar], directions: Sequence[Mapping[Variable, Scalar]]) -> list[list[Scalar]]:
    """Derivatives of scalar expressions along directions, one list for each.

    Parameters
    ----------
    outputs
        Expressions.
    directions
        For each, the rate of change of every input that moves; inputs that are not named stand still.

    Notes
    -----
    A node moves by its partial derivatives times how its inputs move. The partials are built once for all directions, so
    that the derivatives along n directions cost n passes over the graph and not n times n.
    """
    moves: list[dict[Variable, Scalar]] = [dict(direction) for direction in directions]
    for node in io_toposort([], [o for o in outputs if isinstance(o, Variable)]):
        out = node.outputs[0]
        if out.type.dtype == "bool":  # a condition jumps, and has no rate
            continue
        partials: dict[Variable, Scalar] | None = None
        for moving in moves:
            if out in moving or not any(v in moving for v in node.inputs):
                continue
            if isinstance(node.op, psb.Switch):
                condition, yes, no = node.inputs
                rates = moving.get(yes, 0.0), moving.get(no, 0.0)
                moving[out] = rates[0] if rates[0] is rates[1] else switch(condition, *rates)
                continue
            partials = _partials(node) if partials is None else partials
            rate = add(*(mul(d, moving[v]) for v, d in partials.items() if v in moving))
            if not is_number(rate, 0.0):
                moving[out] = rate
    flat = simplify([moving.get(o, 0.0) if isinstance(o, Variable) else 0.0 for moving in moves for o in outputs])
    return [flat[i * len(outputs) : (i + 1) * len(outputs)] for i in range(len(moves))]


def _partials(node: Apply) -> dict[Variable, Scalar]:
    """Partial derivatives of a node's output by each of its inputs."""
    partials: dict[Variable, Scalar] = {}
    for v, slope in zip(node.inputs, contributions(node, 1.0), strict=True):
        if slope is not None and v.type.dtype != "bool":  # type: ignore[attr-defined]
            partials[v] = add(partials.get(v, 0.0), slope)
    return partials


@lru_cache(maxsize=64)
@untraced()
def tangent_recurrence(recurrence: Recurrence) -> Recurrence:
    """A recurrence together with its derivative along one direction of its parameters and starts.

    Carry, outputs, parameters and starts are those of the original followed by their rates of change; what a substep and a
    sample read from the record stands still. Run as a batch with a unit direction for each particle it gives the exact
    Jacobian of every output of every sample.
    """
    n_carry, n_params, n_start = recurrence.n_carry, recurrence.n_params, recurrence.start.n_inputs

    def phase(original: Phase, carried: int, moving_inputs: bool) -> Phase:
        carry, rates = symbols("carry", carried), symbols("carry_rate", carried)
        params, params_rates = symbols("param", n_params), symbols("param_rate", n_params)
        inputs = symbols("input", original.n_inputs)
        input_rates = symbols("input_rate", n_start if moving_inputs else 0)
        outputs = inline(original.graph, [*carry, *params, *inputs])
        varied = n_params - recurrence.n_constants
        moving: dict[Variable, Scalar] = dict(zip([*carry, *params[:varied]], [*rates, *params_rates[:varied]], strict=True))
        moving |= dict(zip(inputs if moving_inputs else [], input_rates, strict=True))
        (moved,) = jvp(outputs, [moving])
        n = n_carry
        both = [*outputs[:n], *moved[:n], *outputs[n:], *moved[n:]]
        return Phase.build([*carry, *rates], [*params, *params_rates], [*inputs, *input_rates], both)

    return Recurrence(
        phase(recurrence.start, 0, True),
        phase(recurrence.substep, n_carry, False),
        phase(recurrence.sample, n_carry, False),
        n_carry=2 * n_carry,
        n_params=2 * n_params,
        name=f"{recurrence.name} tangent",
    )
