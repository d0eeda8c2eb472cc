"""One step of many particles, each on the path of a process of its own, and what a sample says of them, as recurrences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from pytensor.graph.basic import Variable

from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.steps.rk4 import NODES, rk4_step
from pm_sysid.steps.sensors import Sensors, log_density
from pm_sysid.symbolic.scalars import Scalar, add, substitute, symbol, symbols, untraced
from pm_sysid.symbolic.system import System


@lru_cache(maxsize=64)
@untraced()
def moved(system: System, columns: tuple[int, ...]) -> Recurrence:
    """A Runge-Kutta step, of which some input ``columns`` are each particle's own.

    A particle starts with its states and its own inputs at the start, middle and end of the step; a substep reads ``t, h`` and
    the other inputs at these places. The final carry begins with the states after it.
    """
    start, step = symbol("start"), symbol("step")
    own = [symbols(f"own{j}_", len(columns)) for j in range(len(NODES))]
    known = [symbols(f"known{j}_", len(system.u) - len(columns)) for j in range(len(NODES))]
    nodes = [_inputs(system, columns, a, b) for a, b in zip(own, known, strict=True)]
    paths = [v for node in own for v in node]
    carry, given = [*system.x, *paths], [start, step, *(v for node in known for v in node)]
    return Recurrence(
        Phase.build([], system.p, carry, carry),
        Phase.build(carry, system.p, given, [*rk4_step(system, start, step, nodes), *paths]),
        Phase.build(carry, system.p, [], carry),
        n_carry=len(carry),
        n_params=len(system.p),
        name="step of particles",
    )


@lru_cache(maxsize=64)
@untraced()
def seen(system: System, columns: tuple[int, ...], noisy: tuple[int, ...], sensors: Sensors) -> Recurrence:
    """Log-density of a sample given all that a particle is: its states, its own inputs, and the noise of the ``noisy`` outputs.

    Parameters are those of the system and the vector of the sensors; a sample reads ``t``, the other inputs and ``y``.
    """
    n_y = len(system.g)
    own, slow = symbols("own", len(columns)), symbols("slow", len(noisy))
    known, y = symbols("known", len(system.u) - len(columns)), symbols("y", n_y)
    noise = symbols("noise", n_y + sensors.n_entries(n_y))
    at = dict(zip(system.u, _inputs(system, columns, own, known), strict=True))
    rates = dict(zip(system.dx, system.f, strict=True))
    outputs = substitute(substitute(system.g, rates), at)
    for j, value in zip(noisy, slow, strict=True):
        outputs[j] = add(outputs[j], value)
    carry, params = [*system.x, *own, *slow], [*system.p, *noise]
    return Recurrence(
        Phase.build([], params, carry, carry),
        Phase.build(carry, params, [], carry),
        Phase.build(carry, params, [system.t, *known, *y], [*carry, log_density(sensors, outputs, noise, y)]),
        n_carry=len(carry),
        n_params=len(params),
        name="log-density of particles",
    )


def _inputs(system: System, columns: Sequence[int], own: Sequence[Variable], known: Sequence[Variable]) -> list[Scalar]:
    """All inputs in their order."""
    others, mine = iter(known), dict(zip(columns, own, strict=True))
    return [mine[i] if i in mine else next(others) for i in range(len(system.u))]
