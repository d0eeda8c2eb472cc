"""What a filter carries: scaled means, square roots and initial-state sensitivities of the chains, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytensor.scalar.basic as psb
from pytensor.graph.basic import Variable

from pm_sysid.steps.routines import Gram
from pm_sysid.steps.sensors import PLAIN, Sensors
from pm_sysid.steps.square_root import Matrix, Vector
from pm_sysid.symbolic.scalars import Scalar, add, constant, dot, mul, switch, symbols
from pm_sysid.symbolic.system import System

#: Derivatives by the initial state (in scaled components) below this have no effect on anything.
FORGOTTEN = 1e-75


@dataclass(frozen=True)
class Form:
    """What shape of filter a step is built for.

    ``smoothness`` is the order of the first input derivative that jumps at a sample (None: none does); ``uniform`` says
    that all substeps are equally long; ``free`` lists the states whose initial value is uncertain; ``rolled`` has the algebra
    of a dense filter done by loops (:mod:`pm_sysid.steps.routines`), and that of many blocks by a loop over the chains
    (:mod:`pm_sysid.steps.each_chain`), where it is written out for small ones. ``graded`` says that steps follow the solution:
    a dynamic diffusion then has a least size, in terms of what the residual is made of. ``sensors`` is how the outputs are
    measured. ``everywhere`` conditions the measurements on the ODE at all times, linearised along the solution that no
    measurement has moved.
    """

    order: int
    linearisation: Literal[0, 1]
    block: bool
    dynamic: bool
    uniform: bool
    smoothness: int | None
    free: tuple[int, ...] = ()
    rolled: bool = False
    graded: bool = False
    sensors: Sensors = PLAIN
    everywhere: bool = False


def input_levels(system: System, form: Form) -> tuple[int, bool]:
    """Time derivatives of the equation of motion that a start or a jump needs, and whether a jump reaches the state."""
    n_derivatives = form.order + 1 - min(len(c) for c in system.chain_states)
    return n_derivatives, bool(system.u) and form.smoothness is not None and form.smoothness < n_derivatives


class Block(NamedTuple):
    """Scaled moments of the chains of one block: mean (n,), root (n, n), sensitivity (n, uncertain initial states).

    ``sensitivity`` is the initial-state sensitivity of the mean, see :class:`Carry`. The states of processes are a block
    without root.
    """

    mean: Vector
    root: Matrix
    sensitivity: Matrix


type State = list[Block]


class Carry:
    """Where the components of a filter's state are in its flat carry, and the symbols its steps share.

    The carry holds, block by block, the mean, the square root of the covariance *given the initial state*, and the
    initial-state sensitivity (``sensitivity``): the derivative of the mean by each uncertain initial state, times that state's
    standard deviation. (Where a loop goes through the blocks, it holds each of these numbers for all blocks side by side.) The
    ODE is conditioned on with the first part alone and only propagates the sensitivity. Were the initial state part of the
    covariance, conditioning on the ODE would take the size of the solution's high derivatives as evidence on it; kept apart,
    it is marginalised exactly (the augmented filter of de Jong 1991).

    Processes that stand for inputs (:mod:`pm_sysid.symbolic.driven`) are kept apart for the same reason: the smoothness of the
    solution's prior would be evidence that a rough force is smooth. Their states are the last block, which has a mean and a
    sensitivity only. Every substep adds its own random numbers to what is uncertain; rotated, they need no more columns than
    there are components.
    """

    def __init__(self, system: System, form: Form, calibrate: bool = False) -> None:
        self.system, self.form, self.calibrate = system.driven, form, calibrate
        self.free = () if calibrate else form.free
        self.q = form.order
        self.rolled = form.rolled and not form.block
        #: Whether the blocks are predicted and conditioned by a loop over them, after which no relation looks at them.
        self.repeated = form.rolled and form.block and not system.relations
        chains = system.chain_states
        if max(len(c) for c in chains) > self.q:
            longest = max(chains, key=len)
            raise ValueError(
                f"order is {self.q}, but the chain {tuple(system.states[i] for i in longest)} has {len(longest)} states; "
                f"use an order of at least {len(longest)}, so that its process contains the equation of motion."
            )
        self.n_chains = len(chains)
        self.blocks = [[c] for c in range(self.n_chains)] if form.block else [list(range(self.n_chains))]
        self.levels = self.q + 1
        #: Processes, numbered after the chains, and (number, state) of theirs.
        self.latents = system.latents
        self.processes = [(k, self.n_chains + c) for c, one in enumerate(self.latents) for k in range(one.kind.size)]
        #: Random numbers that the processes need in a substep.
        self.n_kicks = sum(one.kind.kicks for one in self.latents)
        #: (chain, level) of every state.
        self.place = {s: (c, k) for c, chain in enumerate(chains) for k, s in enumerate(chain)}
        self.place |= {len(system.states) + i: (c, k) for i, (k, c) in enumerate(self.processes)}
        #: Blocks, with that of the processes, and columns of their sensitivities.
        self.n_blocks = len(self.blocks) + bool(self.latents)
        self.width = self.n_chains * self.levels + len(self.processes) if self.latents else len(self.free)
        self.n_derivatives, self.jumps = input_levels(system, form)
        self.p = system.p
        self.scale = symbols("scale", self.levels)
        self.diffusion = symbols("diffusion", self.n_chains)
        self.sensors = form.sensors
        self.noise = symbols("noise", len(system.g) + form.sensors.n_entries(len(system.g)))
        self.params = [*self.p, *self.diffusion, *self.noise, *self.scale]

    def components(self, block: int) -> list[tuple[int, int]]:
        """(level, chain) of each component of a block, level by level: an ODE residual then touches the first few."""
        if block == len(self.blocks):
            return self.processes
        return [(k, c) for k in range(self.levels) for c in self.blocks[block]]

    def columns(self, block: int) -> int:
        """Columns of the root of a block; processes have none."""
        return 0 if block == len(self.blocks) else len(self.components(block))

    def unit(self, part: tuple[int, int], scale: Sequence[Scalar]) -> Scalar:
        """Physical value of one unit of a component (chain, level)."""
        return scale[part[1]] if part[0] < self.n_chains else 1.0

    @property
    def n_carry(self) -> int:
        """Means, square roots and sensitivities of all blocks."""
        return sum(len(self.components(b)) * (1 + self.columns(b) + self.width) for b in range(self.n_blocks))

    def unpack(self, carry: Sequence[Scalar]) -> State:
        """Blocks from a flat carry."""
        if self.repeated:
            size = len(carry) // self.n_blocks
            carry = [carry[i * self.n_blocks + b] for b in range(self.n_blocks) for i in range(size)]
        state: State = []
        values = iter(carry)
        for b in range(self.n_blocks):
            n = len(self.components(b))
            mean = [next(values) for _ in range(n)]
            root = [[next(values) for _ in range(self.columns(b))] for _ in range(n)]
            sensitivity = [[next(values) for _ in range(self.width)] for _ in range(n)]
            state.append(Block(mean, root, sensitivity))
        return state

    def pack(self, state: State) -> list[Scalar]:
        """Flat carry from blocks."""
        if self.repeated:
            return [x for row in zip(*(self.by_block([b]) for b in state), strict=True) for x in row]
        return self.by_block(state)

    @staticmethod
    def by_block(state: State) -> list[Scalar]:
        """All numbers of each block in turn."""
        return [x for b in state for x in (*b.mean, *(x for m in (b.root, b.sensitivity) for row in m for x in row))]

    def stretched(self, state: State, factor: Sequence[Scalar]) -> State:
        """Multiply every component by the factor of its level."""
        result: State = []
        for number, block in enumerate(state):
            f = [self.unit((c, k), factor) for k, c in self.components(number)]
            rows = [[[mul(x, a) for x in row] for row, a in zip(m, f, strict=True)] for m in (block.root, block.sensitivity)]
            result.append(Block([mul(m, a) for m, a in zip(block.mean, f, strict=True)], *rows))
        return result

    @staticmethod
    def settled(state: State) -> State:
        """Set to zero what has decayed of the derivatives by the initial state.

        They fall without end; numbers below the normal range of doubles would make every operation on them slow. An
        exact zero is left as it is, for it may be one only at these parameters: its own derivative is not zero.
        """

        def kept(x: Scalar) -> Scalar:
            # What is not a number stays: it says that the step failed.
            if not isinstance(x, Variable):
                return x
            decayed = psb.and_(psb.lt(psb.abs(x), constant(FORGOTTEN)), psb.neq(x, constant(0.0)))
            return switch(decayed, 0.0, x)

        return [b._replace(sensitivity=[[kept(x) for x in row] for row in b.sensitivity]) for b in state]

    def along(self, row: dict[tuple[int, int], Scalar], state: State) -> Vector:
        """Sensitivity of a measurement with the given row to each uncertain initial state."""
        total: Vector = [0.0] * len(state[0].sensitivity[0])
        for b, block in enumerate(state):
            h = [row.get((c, k), 0.0) for k, c in self.components(b)]
            total = [add(t, *(mul(a, r[j]) for a, r in zip(h, block.sensitivity, strict=True))) for j, t in enumerate(total)]
        return total

    def physical(self, state: State, scale: list[Scalar]) -> dict[tuple[int, int], Scalar]:
        """Physical value of each component (chain, level)."""
        values: dict[tuple[int, int], Scalar] = {}
        for b, block in enumerate(state):
            for (k, c), m in zip(self.components(b), block.mean, strict=True):
                values[c, k] = mul(self.unit((c, k), scale), m)
        return values

    def _at(self, values: dict[tuple[int, int], Scalar]) -> dict[Variable, Scalar]:
        """Substitution of states and their derivatives."""
        system, result = self.system, {}
        for s, (c, k) in self.place.items():
            result[system.x[s]] = values[c, k]
            if c < self.n_chains:
                result[system.dx[s]] = values[c, k + 1]
        return result

    def moments(self, state: State) -> list[Scalar]:
        """Physical means of all components, then covariances block by block (row-major)."""
        mean: list[Scalar] = []
        covariance: list[Scalar] = []
        for b, block in enumerate(state):
            parts = self.components(b)
            size = [self.unit((c, k), self.scale) for k, c in parts]
            mean += [mul(a, m) for a, m in zip(size, block.mean, strict=True)]
            if self.rolled:
                (products,) = Gram(len(parts), len(self.free)).on(block.root, block.sensitivity)
            else:
                rows = [[*r, *extra] for r, extra in zip(block.root, block.sensitivity, strict=True)]
                products = [[dot(row, r) for r in rows] for row in rows]
            for a, row in zip(size, products, strict=True):
                covariance += [mul(a, b, x) for b, x in zip(size, row, strict=True)]
        return mean + covariance
