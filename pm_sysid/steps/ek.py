"""The probabilistic ODE filter: one step of EK0 or EK1 as a scalar graph.

Each chain of states (a coordinate and its derivatives) is a q-times integrated Wiener process. A substep predicts and
conditions on the ODE residual being zero; a sample transfers the jump of the input and conditions on the measurement
(Eqs. 16-20 of the sequential paper).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

import pytensor.scalar.basic as psb
from pytensor.graph import graph_inputs
from pytensor.graph.basic import Variable

from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.steps.each_chain import each_chain
from pm_sysid.steps.elimination import Factors
from pm_sysid.steps.filter_state import Block, Carry, Form, State
from pm_sysid.steps.iwp import diffusion_root, transition
from pm_sysid.steps.relations import consistent_start, inverse_unless_implied
from pm_sysid.steps.routines import Condition, Correct, Predict, Project
from pm_sysid.steps.sensors import NOTHING, PLAIN, Seen, chosen, decorrelating
from pm_sysid.steps.square_root import (
    Matrix,
    Vector,
    correct,
    known_density,
    log_density,
    project,
    reflect,
    triangularise,
)
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import (
    Scalar,
    add,
    as_variable,
    constant,
    div,
    dot,
    is_number,
    is_steep,
    mul,
    simplify,
    sqrt,
    sub,
    substitute,
    switch,
    symbol,
    symbols,
    untraced,
)
from pm_sysid.symbolic.system import System

#: Smallest diffusion: keeps the pivots of the square root, and the squares of their squares that derivatives divide by,
#: positive when the residual is exactly zero.
FLOOR = 1e-50
#: Standard deviation that keeps the pivots positive where the processes do not reach a component, in scaled units.
UNREACHED = 1e-30
#: Part of a sensitivity that is left of it when it depends on others.
ROUNDING = 1e-12
#: A diffusion found at graded steps is at least what moves a state in a step by this share of its largest value so far.
SMALL = 1e-6

#: Factor of each component (chain, level) in a linear expression.
type Row = dict[tuple[int, int], Scalar]
type Output = Literal["loglik", "innovations", "draw", "moments", "states"]


class Update(NamedTuple):
    """What a measurement does.

    ``step`` moves the mean along the covariance with the output, ``weight_given`` shrinks the covariance for a known initial
    state, ``factor`` what is uncertain about that, and ``shares`` are of each block the share of the measurement's variance
    (for a known initial state) that does not come from it.
    """

    step: Scalar
    weight_given: Scalar
    factor: Scalar
    shares: list[Scalar]


class Evidence(NamedTuple):
    """What is put out of a measurement: log-density, innovation with its standard deviation and tail; or the drawn value."""

    density: Scalar = 0.0
    innovation: Scalar = 0.0
    deviation: Scalar = 0.0
    log_tail: Scalar = math.nan
    value: Scalar = 0.0


class Zero(NamedTuple):
    """What a residual was before it was conditioned to be zero.

    ``surprise`` is its square over its variance (when calibrating); ``gain`` is how it moved the mean.
    """

    surprise: Scalar = 0.0
    residual: Scalar = 0.0
    variance: Scalar = 0.0
    gain: Sequence[Scalar] = ()


class FilterSteps(Carry):
    """Scalar graphs of a filter for one system and one form; the recurrences are built from them.

    The carry may end with a number a chain: when calibrating the running sum of ``z^2 / s`` (Eq. 19), when tracing the
    diffusion of the last substep; with processes, how the random numbers before it follow from those after it; and at graded
    steps how large the states were.

    Conditioned on the ODE everywhere (``form.everywhere``), the carry is a filter of the ODE alone, after which comes the state
    given the measurements too (its mean as a distance from the first) and the sum that :meth:`_beside` adds to.
    """

    def __init__(self, system: System, form: Form, calibrate: bool = False, trace: bool = False, coupled: bool = False) -> None:
        super().__init__(system, form, calibrate)
        self.trace = trace
        #: Whether the means of all blocks are moved together, so that they solve the linearised equations of all chains.
        self.coupled = coupled
        self.n_extra = self.n_chains if calibrate or trace else 0
        if trace and self.latents:
            self.n_extra += self.width * (2 * self.width + self.n_kicks)
        #: Whether the carry remembers how large the states were, which gives a diffusion at graded steps its least size.
        self.remembers = form.graded and form.dynamic and not calibrate
        self.n_extra += self.n_chains * self.remembers
        #: Numbers at the end of the carry that belong to the state given the measurements, beside that of the ODE alone.
        self.n_beside = (self.n_carry + 1) * form.everywhere
        self.n_extra += self.n_beside

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self) -> Phase:
        """State and derivatives at the first sample, from the state alone.

        The derivatives of the equations of motion along the flow give all higher components exactly (Kraemer and
        Hennig 2020), and their Jacobian carries an uncertain initial state into them.
        """
        system = self.system
        n_x = len(system.states)
        std = symbols("std", n_x)
        derivatives, levels = system.total_derivatives(self.n_derivatives)
        values: dict[tuple[int, int], Scalar] = {}
        for s, (c, k) in self.place.items():
            values[c, k] = system.x[s]
        for c, chain in enumerate(system.chain_states):
            own = derivatives[c][: self.levels - len(chain)]
            for j, (d, keep) in enumerate(zip(own, self._converging(c, own), strict=True)):
                values[c, len(chain) + j] = d if keep is None else switch(keep, d, 0.0)
        factor = self._initial_root()
        start = consistent_start(system, system.x[:n_x], std, self.form.free)
        zero: dict[Variable, Scalar] = dict.fromkeys(system.x[n_x:], 0.0)
        if start.possible is not None:  # no number where the initial state contradicts a relation: the step has failed
            known = [switch(start.possible, x, math.nan) for x in start.mean]
            zero |= dict(zip(system.x[:n_x], known, strict=True))
        spread = [list(column) for column in zip(*start.spread, strict=True)][: len(self.free)]
        state: State = []
        for b in range(self.n_blocks):
            parts = self.components(b)
            mean = [values[c, k] for k, c in parts]
            partial = [substitute(row, zero) for row in jacobian(mean, system.x)] if self.width else [[] for _ in parts]
            sensitivity = [[dot(row[:n_x], column) for column in spread] for row in partial]
            for own, row in zip(sensitivity, partial, strict=True):
                own += [dot(row[n_x:], column) for column in zip(*factor, strict=True)]
                own += [0.0] * (self.width - len(own))
            state.append(Block(substitute(mean, zero), [[0.0] * self.columns(b) for _ in parts], sensitivity))
        state = self.stretched(state, [div(1.0, a) for a in self.scale])
        inputs = [*system.x[:n_x], *std, system.t, *(s for level in levels for s in level)]
        apart = [block._replace(mean=[0.0] * len(block.mean)) for block in state]
        beside = [*self.pack(apart), 0.0] if self.n_beside else []
        extra = [0.0] * (self.n_extra - self.n_beside)
        return Phase.build([], self.params, inputs, [*self.pack(state), *extra, *beside])

    def _converging(self, c: int, derivatives: Sequence[Scalar]) -> list[Variable | None]:
        """For each derivative of a chain's equation whether it is to be believed; None if it is in any case.

        Near the zero of a root or a power, higher derivatives are as large as one likes and the Taylor series means nothing: a
        term that is larger than all before it is left out, and the steps find the derivative by themselves.
        """
        conditions: list[Variable | None] = [None] * len(derivatives)
        if not is_steep(self.system.top[c]):
            return conditions
        n, q = len(self.system.chain_states[c]), self.q
        largest: Scalar = 0.0
        for j, derivative in enumerate(derivatives):
            if is_number(derivative, 0.0):
                continue
            term = as_variable(mul(math.comb(q - n + 1, q - n - j), div(derivative, self.scale[n + j])))
            size = psb.abs(term)
            if not is_number(largest, 0.0):
                largest = as_variable(largest)
                keep = psb.or_(psb.le(size, largest), psb.eq(largest, constant(0.0)))
                conditions[j], size = keep, switch(keep, size, 0.0)
                size = switch(psb.gt(size, largest), size, largest)
            largest = size
        return conditions

    # -- processes ----------------------------------------------------------------------------------------------------

    def _initial_root(self) -> Matrix:
        """Factor of the processes' covariance at the first sample."""
        return _diagonal([one.kind.initial(one.p) for one in self.latents])

    def _flow(self, step: Scalar) -> tuple[Matrix, Matrix]:
        """Transition of the processes' states over a step in seconds, and a factor of the covariance it adds."""
        kinds = [(one.kind, one.p) for one in self.latents]
        return _diagonal([k.transition(p, step) for k, p in kinds]), _diagonal([k.noise(p, step) for k, p in kinds])

    def _rotated(self, state: State) -> tuple[State, list[Scalar]]:
        """Express what is uncertain by as many random numbers as there are components.

        When tracing, the second result says what those before this substep are, given those after it and independent ones.
        """
        order = [*range(len(self.blocks), self.n_blocks), *range(len(self.blocks))]  # processes first: they get their own noise
        rows = [row for b in order for row in state[b].sensitivity]
        n, extra = self.width, self.n_kicks
        start: Matrix = [[UNREACHED * (i == j) for j in range(n)] for i in range(n)]
        if self.trace:
            rows += [[float(i == j) for j in range(n + extra)] for i in range(n)]
            start += [[0.0] * n for _ in range(n)]
        root, rest = reflect(start, rows, ROUNDING)
        back: list[Scalar] = []
        for a, b in zip(root[n:], rest[n:], strict=True):
            back += [*a, *b]
        rotated, at = list(state), 0
        for b in order:
            size = len(state[b].mean)
            rotated[b] = state[b]._replace(sensitivity=root[at : at + size])
            at += size
        return rotated, back

    # -- substep ------------------------------------------------------------------------------------------------------

    def substep(self) -> Phase:
        """Predict over one substep and condition on the ODE."""
        system, q, calibrate = self.system, self.q, self.calibrate
        carry = symbols("carry", self.n_carry)
        extra_in = symbols("extra", self.n_extra)
        extra, beside = self._apart_from_beside(extra_in)
        largest = extra[len(extra) - self.n_chains :] if self.remembers else []
        state = self.unpack(carry)
        ratio = [] if self.form.uniform else [symbol("ratio")]
        scale: list[Scalar] = list(self.scale)
        stretch: list[Scalar] = []
        if ratio:
            # A step of another length: go to its own scaling, and back at the end.
            stretch = simplify([mul(sqrt(ratio[0]), *([ratio[0]] * (q - k))) for k in range(self.levels)])
            scale = [mul(a, b) for a, b in zip(scale, stretch, strict=True)]
            state = self.stretched(state, [div(1.0, a) for a in stretch])
        flow, noise = self._flow(mul(scale[q], scale[q])) if self.latents else ([], [])
        moved = self._moved(state)
        moved += [block._replace(mean=[dot(row, block.mean) for row in flow]) for block in state[len(self.blocks) :]]
        values = self.physical(moved, scale)
        f = substitute(system.top, self._at(values))
        residual = [sub(values[c, len(chain)], f[c]) for c, chain in enumerate(system.chain_states)]
        exact = self._residual_rows(values, scale, exact=True) if self.width else []
        H = exact if exact and self.form.linearisation else self._residual_rows(values, scale)
        H = [{part: h for part, h in row.items() if part[0] < self.n_chains} for row in H]  # processes are known, or apart
        apart = moved if self.repeated else [self._apart(b, block, flow, noise) for b, block in enumerate(moved)]
        # What the residual is expected to be squared, over the processes too: it decides the diffusion.
        squares = [mul(r, r) for r in residual]
        if self.latents:
            leans = [self.along(row, apart) for row in exact]
            squares = [add(a, dot(lean, lean)) for a, lean in zip(squares, leans, strict=True)]

        diffusion: list[Scalar] = [1.0] * self.n_chains if calibrate else list(self.diffusion)
        if self.form.dynamic and not calibrate:
            LQ = diffusion_root(q)
            diffusion = []
            for c in range(self.n_chains):
                # Local quasi-maximum-likelihood: the residual over what unit diffusion lets it be.
                row = [H[c].get((c, k), 0.0) for k in range(self.levels)]
                unit = [dot(row, [LQ[k][j] for k in range(self.levels)]) for j in range(self.levels)]
                square = squares[c]
                if self.remembers:
                    # Where a residual passes through zero, or is rounding, the diffusion would vanish and its relative
                    # derivative would not exist: the likelihood had spikes there that are all a gradient saw.
                    now = mul(values[c, 0], values[c, 0])
                    largest[c] = switch(psb.gt(as_variable(now), as_variable(largest[c])), now, largest[c])
                    steps = [mul(q, div(scale[0], scale[1]))] * len(system.chain_states[c])
                    square = add(square, mul(SMALL**2, div(largest[c], mul(*steps, *steps))))
                g2 = div(square, dot(unit, unit))
                diffusion.append(sqrt(add(g2, FLOOR**2)))
        if self.trace or self.remembers:
            extra = list(diffusion) if self.trace else []

        if self.repeated:
            predicted = apart
            state, surprises = self._chain_by_chain(apart, diffusion, residual, H, exact)
            extra = [add(e, surprise) for e, surprise in zip(extra, surprises, strict=True)] if calibrate else extra
        else:
            predicted = [self._predicted(b, block, diffusion) for b, block in enumerate(apart)]
            if self.rolled:
                state = [self._conditioned_by_loops(predicted[0], residual, H, exact)]
            else:
                state, seen = self._conditioned(predicted, residual, H, exact)
                extra = [add(e, zero.surprise) for e, zero in zip(extra, seen, strict=True)] if calibrate else extra
                beside = self._beside(beside, stretch, diffusion, H, seen) if beside else []
        state = self._solved(state, predicted, f, H, exact)
        if self.system.relations:
            state = self._related(state, predicted, scale, extra)
        if self.latents:
            state, back = self._rotated(state)
            extra += back if self.trace else []
        extra += largest
        if ratio:
            state = self.stretched(state, stretch)
        inputs = [system.t, *system.u, *ratio]
        return Phase.build([*carry, *extra_in], self.params, inputs, [*self.pack(state), *extra, *beside])

    def _apart_from_beside(self, extra: Sequence[Scalar]) -> tuple[list[Scalar], list[Scalar]]:
        """What the carry holds after the state: what belongs to it, and the state given the measurements too."""
        n = self.n_extra - self.n_beside
        return list(extra[:n]), list(extra[n:])

    def _beside(
        self,
        beside: list[Scalar],
        stretch: list[Scalar],
        diffusion: list[Scalar],
        H: list[Row],
        seen: list[Zero],
    ) -> list[Scalar]:
        """Take the state given the measurements over a substep, conditioned on the ODE that is linearised at the ODE alone.

        Its mean is carried as the distance from that of the ODE alone: the two agree in all digits where the measurements say
        nothing, and the residual's standard deviation may be less than the rounding of either. ``seen`` is what the residuals
        were given the ODE alone. The last entry sums how much more (or less) probable the measurements make them, whose density
        given the ODE before divides that of both.
        """
        *packed, total = beside
        state = self.unpack(packed)
        if stretch:
            state = self.stretched(state, [div(1.0, a) for a in stretch])
        (block,) = self._moved(state)
        mean, root, _ = self._predicted(0, block, diffusion)
        for c in reversed(range(self.n_chains)):
            z, gain_alone, s_alone = seen[c].residual, seen[c].gain, seen[c].variance
            h = [H[c].get((d, k), 0.0) for k, d in self.components(0)]
            F, e = project(root, h), dot(h, mean)
            s = dot(F, F)
            gain, root = correct(root, F, div(1.0, s), 0.0)
            mean = [sub(m, add(mul(k, e), mul(sub(k, k0), z))) for m, k, k0 in zip(mean, gain, gain_alone, strict=True)]
            # -log N(z + e; 0, s) + log N(z; 0, s_alone), twice
            less = add(mul(div(e, s), add(mul(2.0, z), e)), mul(z, z, sub(div(1.0, s), div(1.0, s_alone))))
            total = sub(total, mul(0.5, add(psb.log(as_variable(div(s, s_alone))), less)))
        for i, (k, c) in enumerate(self.components(0)):
            if set(H[c]) == {(c, k)}:  # known for certain, see _solved
                mean[i], root[i] = 0.0, [0.0] * len(root)
        state = [Block(mean, root, block.sensitivity)]
        if stretch:
            state = self.stretched(state, stretch)
        return [*self.pack(state), total]

    def _moved(self, state: State) -> State:
        """Blocks of which the mean has moved over a substep; a loop over the chains moves their sensitivities with it."""
        blocks = state[: len(self.blocks)]
        if not self.repeated:
            return [block._replace(mean=self._along_transition(b, block.mean)) for b, block in enumerate(blocks)]

        def moved(mean: Vector, lean: Vector) -> tuple[Vector, Vector]:
            columns = [self._along_transition(0, lean[j :: self.width]) for j in range(self.width)]
            return self._along_transition(0, mean), [x for row in zip(*columns, strict=True) for x in row]

        means, leans = each_chain(moved, [b.mean for b in blocks], [_entries(b.sensitivity) for b in blocks])
        return [
            Block(mean, block.root, _matrix(lean, self.levels, self.width))
            for block, mean, lean in zip(blocks, means, leans, strict=True)
        ]

    def _along_transition(self, b: int, column: Sequence[Scalar]) -> Vector:
        """Column of a block after a substep."""
        return [add(*(mul(a, column[i]) for a, i in row)) for row in self._transition(b)]

    def _transition(self, b: int) -> list[list[tuple[float, int]]]:
        """Rows of the transition of a block: the factors that are not zero, each with its component."""
        A, parts = transition(self.q), self.components(b)
        at = {part: i for i, part in enumerate(parts)}
        return [[(A[k][j], at[j, c]) for j in range(k, self.levels)] for k, c in parts]

    def _apart(self, b: int, block: Block, flow: Matrix, noise: Matrix) -> Block:
        """Sensitivity of a block, of which the mean has moved, after a substep; loops move it in :meth:`_predicted`."""
        if self.rolled:
            return block
        columns = list(zip(*block.sensitivity, strict=True))
        if b == len(self.blocks):
            return block._replace(
                sensitivity=[[dot(row, c) for c in columns] + own for row, own in zip(flow, noise, strict=True)]
            )
        kicks: Vector = [0.0] * self.n_kicks
        moved = [[add(*(mul(a, c[i]) for a, i in row)) for c in columns] + kicks for row in self._transition(b)]
        return block._replace(sensitivity=moved)

    def _predicted(self, b: int, block: Block, diffusion: list[Scalar]) -> Block:
        """Covariance of a block, of which the mean has moved, after a substep."""
        parts, LQ = self.components(b), diffusion_root(self.q)
        if b == len(self.blocks):
            return block
        if self.rolled:
            root, sensitivity = Predict(self.q, self.n_chains, len(self.free)).on(diffusion, block.root, block.sensitivity)
            return Block(block.mean, root, sensitivity)
        rows = self._transition(b)
        root = [[add(*(mul(a, block.root[i][col]) for a, i in row)) for col in range(len(parts))] for row in rows]
        noise = [[mul(diffusion[c], LQ[k][j]) if d == c and j <= k else 0.0 for j, d in parts] for k, c in parts]
        return block._replace(root=triangularise(noise, root))

    def _conditioned(
        self, predicted: State, residual: list[Scalar], H: list[Row], exact: list[Row]
    ) -> tuple[State, list[Zero]]:
        """State given that the residuals are zero, and what each was before."""
        state, seen = list(predicted), [Zero()] * self.n_chains
        for c in reversed(range(self.n_chains)):
            b = next(i for i, chains in enumerate(self.blocks) if c in chains)
            block = state[b]
            h = self._for_gain(H, c) if self.coupled else [H[c].get((d, k), 0.0) for k, d in self.components(b)]
            z = add(residual[c], dot(h, [sub(m, m0) for m, m0 in zip(block.mean, predicted[b].mean, strict=True)]))
            # The derivative of z, term by term: exact where the ODE was evaluated, with h where the mean has moved since.
            lean = self.along(exact[c], predicted) if self.width else []
            for j, column in enumerate(lean):
                since = [sub(r[j], r0[j]) for r, r0 in zip(block.sensitivity, predicted[b].sensitivity, strict=True)]
                lean[j] = add(column, dot(h, since))
            state[b], seen[c] = self._given_zero(block, h, z, lean)
        if self.coupled:
            leans = [self.along(row, predicted) if self.width else [] for row in exact or H]
            state = self._together(state, predicted, [list(zero.gain) for zero in seen], residual, H, leans)
        return state, seen

    def _for_gain(self, H: list[Row], c: int) -> Vector:
        """Derivatives of a residual by the components of its own chain, as its gain is to see them.

        A chain that grows by itself, and that others hold, would have a gain that follows the growth: the pass is unstable with
        it. So what makes it grow is left out of the gain, where all chains are moved together.
        """
        own = [H[c].get((c, k), 0.0) for k in range(self.levels)]
        if not self.coupled:
            return own
        n = len(self.system.chain_states[c])
        return [
            h if k >= n or is_number(h, 0.0) else switch(psb.gt(as_variable(h), constant(0.0)), h, 0.0)
            for k, h in enumerate(own)
        ]

    def _together(
        self, state: State, predicted: State, gains: list[Vector], residual: list[Scalar], H: list[Row], leans: list[Vector]
    ) -> State:
        """Blocks of one chain each, of which the means solve the linearised equations of all chains.

        Every mean moves along the gain of its own block, by as much as makes all residuals zero. Were each moved for its own
        residual alone, the pass would be as unstable as an explicit solver where chains are coupled.
        """
        rows = range(self.n_chains)
        slopes = [[add(*(mul(H[c].get((d, k), 0.0), g) for k, g in enumerate(gains[d]))) for d in rows] for c in rows]
        factors = Factors(slopes)
        moves = factors.solve(residual)
        columns = [factors.solve(list(column)) for column in zip(*leans, strict=True)]
        result = list(state)
        for c, gain in enumerate(gains):
            before = predicted[c]
            result[c] = Block(
                [sub(m, mul(g, moves[c])) for m, g in zip(before.mean, gain, strict=True)],
                state[c].root,
                [
                    [sub(x, mul(g, column[c])) for x, column in zip(row, columns, strict=True)]
                    for row, g in zip(before.sensitivity, gain, strict=True)
                ],
            )
        return result

    def _given_zero(self, block: Block, h: Vector, z: Scalar, lean: Vector) -> tuple[Block, Zero]:
        """Block given that a residual is zero, and what the residual was before.

        The residual has the value ``z``, the derivatives ``h`` by the components and ``lean`` by what is uncertain.
        """
        F = project(block.root, h)
        s = dot(F, F)
        gain, root = correct(block.root, F, div(1.0, s), 0.0)
        sensitivity = [
            [sub(x, mul(k, a)) for x, a in zip(row, lean, strict=True)] for row, k in zip(block.sensitivity, gain, strict=True)
        ]
        # The expectation of the square is over the processes.
        surprise = div(add(mul(z, z), dot(lean, lean)), s) if self.calibrate else 0.0
        mean = [sub(m, mul(k, z)) for m, k in zip(block.mean, gain, strict=True)]
        return Block(mean, root, sensitivity), Zero(surprise, z, s, gain)

    def _chain_by_chain(
        self, moved: State, diffusion: list[Scalar], residual: list[Scalar], H: list[Row], exact: list[Row]
    ) -> tuple[State, list[Scalar]]:
        """Predict the covariance of blocks and condition on the residuals by a loop over the chains."""
        n, width = self.levels, self.width

        def one(
            own: Vector, mean: Vector, root: Vector, lean: Vector, h: Vector, z: Vector, along: Vector
        ) -> tuple[Vector, Vector, Vector, Vector, Vector]:
            predicted = self._predicted(0, Block(mean, _matrix(root, n, n), _matrix(lean, n, width)), own)
            block, zero = self._given_zero(predicted, h, z[0], along)
            surprise = [zero.surprise] if self.calibrate else []
            gain = list(zero.gain) if self.coupled else []
            return block.mean, _entries(block.root), _entries(block.sensitivity), surprise, gain

        alongs = [self.along(exact[c], moved) if width else [] for c in range(self.n_chains)]
        means, roots, leans, surprises, gains = each_chain(
            one,
            [[d] for d in diffusion],
            [block.mean for block in moved],
            [_entries(block.root) for block in moved],
            [_entries(block.sensitivity) for block in moved],
            [self._for_gain(H, c) for c in range(self.n_chains)],
            [[r] for r in residual],
            alongs,
        )
        blocks = [Block(m, _matrix(r, n, n), _matrix(s, n, width)) for m, r, s in zip(means, roots, leans, strict=True)]
        if self.coupled:
            blocks = self._together(blocks, moved, gains, residual, H, alongs)
        return blocks, [x for surprise in surprises for x in surprise]

    def _conditioned_by_loops(self, predicted: Block, residual: list[Scalar], H: list[Row], exact: list[Row]) -> Block:
        """Do the same for one dense block by :class:`~pm_sysid.steps.routines.Condition`."""
        parts = self.components(0)
        at = {(c, k): i for i, (k, c) in enumerate(parts)}
        m = 1 + max(at[part] for row in (*H, *exact) for part in row)
        rows, exactly = (
            [[row.get((c, k), 0.0) for k, c in parts[:m]] for row in matrix] for matrix in (H, exact if exact else H)
        )
        routine = Condition(len(parts), len(self.free), self.n_chains, m)
        return Block(*routine.on(*predicted, residual, rows, exactly))

    def _solved(self, state: State, predicted: State, f: list[Scalar], H: list[Row], exact: list[Row]) -> State:
        """Set the derivatives that the linearised ODE gives by itself, without a state, to what it gives.

        They are certain then. The updates leave what rounding leaves of ``a - a``, a correlation under a large diffusion.
        """
        result: State = []
        for b, block in enumerate(state):
            mean, root, sensitivity = block.mean[:], block.root[:], block.sensitivity[:]
            for i, (k, c) in enumerate(self.components(b)):
                if c >= self.n_chains or set(H[c]) != {(c, k)}:
                    continue
                mean[i] = div(f[c], H[c][c, k])
                root[i] = [0.0] * len(root)
                if self.width:
                    rest = {part: mul(-1.0, h) for part, h in exact[c].items() if part != (c, k)}
                    sensitivity[i] = [div(a, H[c][c, k]) for a in self.along(rest, predicted)]
            result.append(Block(mean, root, sensitivity))
        return result

    def _related(self, state: State, predicted: State, scale: list[Scalar], sums: list[Scalar]) -> State:
        """State given that the relations are zero too, all linearised at the mean given the ODE: what others imply shows then.

        As for the ODE, this is for a given initial state, on which a relation is no evidence here: :meth:`start` has taken
        what it says of that. When calibrating, every chain has a block of unit diffusion, and a relation between chains
        weighs them by their ``sums`` of ``z^2 / s`` so far.
        """
        n_x, unit = len(self.system.states), div(1.0, scale[0])
        blocks = range(len(self.blocks))
        sizes = [add(sums[b], FLOOR**2) for b in blocks] if self.calibrate else [1.0 for _ in blocks]
        before, at = [block.mean for block in state], self._at(self.physical(state, scale))
        for relation, slopes in zip(self.system.relations, jacobian(self.system.relations, self.system.x), strict=True):
            value, *partial = substitute([relation, *slopes[:n_x]], at)
            row = {self.place[s]: mul(d, self.unit(self.place[s], scale), unit) for s, d in enumerate(partial)}
            h = [[row.get((c, k), 0.0) for k, c in self.components(b)] for b in blocks]
            F = [self._projected(state[b].root, h[b]) for b in blocks]
            own = [mul(sizes[b], dot(F[b], F[b])) for b in blocks]
            alone = [mul(sizes[b], a, a, dot(r, r)) for b in blocks for a, r in zip(h[b], predicted[b].root, strict=True)]
            weight = inverse_unless_implied(add(*own), add(*alone)).value
            # The mean moves as the sensitivities do: all are affine in the initial state.
            since = [dot(h[b], [sub(m, m0) for m, m0 in zip(state[b].mean, before[b], strict=True)]) for b in blocks]
            z = [add(mul(value, unit), *since), *self.along(row, state)]
            for b in blocks:
                affine = [[m, *r] for m, r in zip(state[b].mean, state[b].sensitivity, strict=True)]
                others = mul(weight, add(*(v for i, v in enumerate(own) if i != b)))
                if self.rolled:
                    routine = Correct(len(affine), len(z))
                    nothing = [0.0] * len(affine)
                    _, root, affine = routine.on(nothing, state[b].root, affine, F[b], z, [weight, 1.0, 0.0, 0.0])
                else:
                    gain, root = correct(state[b].root, F[b], mul(sizes[b], weight), others)
                    affine = [[sub(x, mul(k, a)) for x, a in zip(r, z, strict=True)] for r, k in zip(affine, gain, strict=True)]
                state = [*state[:b], Block([r[0] for r in affine], root, [r[1:] for r in affine]), *state[b + 1 :]]
        return state

    def _residual_rows(self, values: dict[tuple[int, int], Scalar], scale: list[Scalar], exact: bool = False) -> list[Row]:
        """Rows of the ODE residual's linearisation in scaled components; zeroth order sees the derivative only."""
        system = self.system
        rows: list[Row] = []
        partial = jacobian(system.top, system.x) if exact or self.form.linearisation else None
        for c, chain in enumerate(system.chain_states):
            row: Row = {(c, len(chain)): scale[len(chain)]}
            if partial is not None:
                for s, d in enumerate(substitute(partial[c], self._at(values))):
                    row[self.place[s]] = mul(-1.0, d, self.unit(self.place[s], scale))
            rows.append({key: h for key, h in row.items() if not is_number(h, 0.0)})
        return rows

    # -- sample -------------------------------------------------------------------------------------------------------

    def sample(self, output: Output) -> Phase:
        """Transfer the input's jump, then condition on the measurement.

        Parameters
        ----------
        output : {"loglik", "innovations", "draw", "moments", "states"}
            What the recurrence puts out: the log-density of each measured value given those before; innovation and its
            standard deviation for each (and the log-probability of one farther out, where not all sensors are plain; NaN for
            those that are); a measurement drawn with the standard normal numbers given in place of ``y``;
            mean and covariance of all states and derivatives; or what a backward pass needs (of tracing steps): the
            diffusion of the last substep, the packed state, the jump (see :meth:`_jump`), and for each measured value
            what it did to the uncertain initial state.
        """
        system = self.system
        carry = symbols("carry", self.n_carry)
        extra_in = symbols("extra", self.n_extra)
        extra, beside = self._apart_from_beside(extra_in)
        state = self.unpack(carry)
        jump_inputs: list[Variable] = []
        jump: list[Scalar] = []
        if self.jumps:
            state, jump_inputs, jump = self._jump(state)
        n_y = len(system.g) + (len(self.sensors.heavy) if output == "draw" else 0)
        y = symbols("y", 0 if self.calibrate else n_y)
        inputs = [system.t, *system.u, *jump_inputs, *y]
        outputs: list[Scalar] = []
        if beside:
            assert output == "loglik"
            *packed, gained = beside
            apart = self._after_jump(self.unpack(packed), jump) if jump else self.unpack(packed)
            given = [
                block._replace(mean=[add(m, d) for m, d in zip(block.mean, other.mean, strict=True)])
                for block, other in zip(state, apart, strict=True)
            ]
            apart, outputs = self._measure(apart, y, output, given)
            # What the ODE said since the last sample counts with the first output; what is not a number is impossible.
            known = psb.lt(psb.abs(as_variable(gained)), constant(math.inf))
            outputs = [add(outputs[0], switch(known, gained, -math.inf)), *outputs[1:]]
            beside = [*self.pack(apart), 0.0]
        elif not self.calibrate:
            state, outputs = self._measure(state, y, output)
        if output == "states":
            outputs = [*extra[: self.n_extra - self.n_chains * self.remembers], *self.by_block(state), *jump, *outputs]
        if not self.latents:  # with processes, every substep brings new ones
            state = self.settled(state)
        return Phase.build([*carry, *extra_in], self.params, inputs, [*self.pack(state), *extra, *beside, *outputs])

    def _after_jump(self, state: State, jump: list[Scalar]) -> State:
        """Shift what is a distance from a state by the linearised shift of that, see :meth:`_jump`."""
        size, before = 1 + len(self.system.x), iter(range(0, len(jump), 1 + len(self.system.x)))
        where = {part: (b, i) for b in range(len(state)) for i, part in enumerate(self.components(b))}
        shifted: State = []
        for b, block in enumerate(state):
            mean, root = block.mean[:], block.root[:]
            for i in range(len(mean)):
                at = next(before)
                for s, factor in enumerate(jump[at + 1 : at + size]):
                    if is_number(factor, 0.0):
                        continue
                    chain, level = self.place[s]
                    source, row = where[level, chain]
                    mean[i] = add(mean[i], mul(factor, state[source].mean[row]))
                    if source == b:
                        root[i] = [add(x, mul(factor, y)) for x, y in zip(root[i], block.root[row], strict=True)]
            shifted.append(Block(mean, root, block.sensitivity))
        return shifted

    def _jump(self, state: State) -> tuple[State, list[Variable], list[Scalar]]:
        """Shift the derivatives by what the jump of the input does to them.

        The input's derivative of order ``smoothness`` is ``before`` up to the sample and ``after`` it; lower ones are
        continuous, higher ones zero. The k-th derivative along the flow changes by its difference. The last result is
        the linearised shift: of each component the constant, then the factor of each state (states do not jump).
        """
        system, order = self.system, self.form.smoothness
        assert order is not None
        derivatives, levels = system.total_derivatives(self.n_derivatives)
        n_u = len(system.u)
        continuous = [s for level in levels[1:order] for s in level]
        before, after = symbols("before", n_u), symbols("after", n_u)
        higher: dict[Variable, Scalar] = {s: 0.0 for level in levels[order + 1 :] for s in level}
        if order == 0:
            after = list(system.u)
        values = self._at(self.physical(state, list(self.scale)))
        states = {x: v for x, v in values.items() if x in set(system.x)}
        left: dict[Variable, Scalar] = {**states, **higher, **dict(zip(levels[order], before, strict=True))}
        right: dict[Variable, Scalar] = {**states, **higher, **dict(zip(levels[order], after, strict=True))}
        where = {part: (b, i) for b in range(len(state)) for i, part in enumerate(self.components(b))}

        def difference(expression: Scalar) -> Scalar:
            """After minus before; zero for what no jumping input enters."""
            if not isinstance(expression, Variable) or set(levels[order]).isdisjoint(graph_inputs([expression])):
                return 0.0
            (low,), (high,) = substitute([expression], left), substitute([expression], right)
            return simplify([sub(high, low)])[0]

        differences = [
            [difference(d) for d in derivatives[c][: self.levels - len(chain)]] for c, chain in enumerate(system.chain_states)
        ]
        converging = [self._converging(c, own) for c, own in enumerate(differences)]
        shifted: State = []
        jump: Matrix = []
        for b, block in enumerate(state):
            mean, root, sensitivity = block.mean[:], block.root[:], block.sensitivity[:]
            for i, (k, c) in enumerate(self.components(b)):
                jump.append([0.0] * (1 + len(system.x)))
                j = k - len(system.chain_states[c]) if c < self.n_chains else -1
                if j < 0:
                    continue
                keep = converging[c][j]
                shift = div(differences[c][j], self.scale[k])
                jump[-1][0] = shift if keep is None else switch(keep, shift, 0.0)
                mean[i] = add(mean[i], jump[-1][0])
                # Where the shift depends on the state, what is uncertain about the state moves with it.
                for s, partial in enumerate(jacobian([derivatives[c][j]], system.x)[0]):
                    chain, level = self.place[s]
                    source, row = where[level, chain]
                    factor = div(mul(difference(partial), self.unit((chain, level), self.scale)), self.scale[k])
                    if is_number(factor, 0.0):
                        continue
                    if keep is not None:
                        factor = switch(keep, factor, 0.0)
                    jump[-1][0] = sub(jump[-1][0], mul(factor, state[source].mean[row]))
                    jump[-1][1 + s] = factor
                    if source == b:
                        root[i] = [add(x, mul(factor, y)) for x, y in zip(root[i], block.root[row], strict=True)]
                    sensitivity[i] = [
                        add(x, mul(factor, y)) for x, y in zip(sensitivity[i], state[source].sensitivity[row], strict=True)
                    ]
            shifted.append(Block(mean, root, sensitivity))
        return shifted, [*continuous, *before, *(after if order else [])], [x for row in jump for x in row]

    def _projected(self, root: Matrix, h: Vector) -> Vector:
        """How each column of a root moves a measurement."""
        if not self.rolled:
            return project(root, h)
        m = 1 + max((i for i, x in enumerate(h) if not is_number(x, 0.0)), default=0)
        (F,) = Project(len(root), m).on(root[:m], h[:m])
        return F  # type: ignore[no-any-return]

    def _measure(
        self, state: State, y: list[Variable], output: Output, around: State | None = None
    ) -> tuple[State, list[Scalar]]:
        """Scalar updates by each output, linearised at the state before the first, or ``around`` what it is a distance in.

        Correlated noise is taken apart by the factor of its covariance: combinations of the outputs have independent noise of
        unit variance.
        """
        system, drawing, n_y = self.system, output == "draw", len(self.system.g)
        expected, rows = self._observation(state if around is None else around)
        before = [block.mean for block in state]
        missing = None if drawing else [psb.isnan(v) for v in y]
        values: list[Scalar] = list(y[:n_y])
        spare = dict(zip(self.sensors.heavy, y[n_y:], strict=False))  # second random numbers of outputs that draw with two
        own_entries, covariance = self.sensors.entries(self.noise, n_y)
        mixing: Matrix = []
        if self.sensors.correlated:
            mixing = decorrelating(covariance, n_y, missing)
            if missing is not None:
                values = [switch(gone, 0.0, v) for gone, v in zip(missing, values, strict=True)]
            expected, rows, values = self._decorrelated(mixing, expected, rows, values, drawing)
        outputs: list[Scalar] = []
        drawn: list[Scalar] = []
        for j in range(len(system.g)):
            mean, F = expected[j], []
            for b, block in enumerate(state):
                h = [rows[j].get((c, k), 0.0) for k, c in self.components(b)]
                mean = add(mean, dot(h, [sub(m, m0) for m, m0 in zip(block.mean, before[b], strict=True)]))
                F.append(self._projected(block.root, h))
            lean = self.along(rows[j], state)
            own = [dot(f, f) for f in F]
            sensor, noise = self.sensors.of(j), mul(self.noise[j], self.noise[j])
            if mixing:
                noise = 1.0
            elif sensor.rule is not None:
                std = sensor.rule.at(expected[j], own_entries[j][int(sensor.heavy) :])
                noise = mul(std, std)
            gone = None if missing is None else missing[j]
            if sensor.plain:
                update, seen = self._gaussian(values[j], mean, own, lean, noise, gone)
            else:
                at = Seen(sensor, mean, add(*own, dot(lean, lean)), noise, own_entries[j])
                update, seen = self._matched(at, values[j], spare.get(j, 0.0), own, lean, gone)
            size: Scalar = mixing[j][j] if mixing else 1.0
            if output == "loglik":
                assert gone is not None
                density = seen.density
                if mixing:  # the size is no number where the covariance is not positive definite
                    density = known_density(sub(density, psb.log(as_variable(size))), expected[j], gone)
                outputs.append(density)
            elif output == "innovations":
                outputs += [mul(size, seen.innovation), mul(size, seen.deviation)]
                if not self.sensors.plain:
                    outputs.append(seen.log_tail)
            elif drawing:
                drawn.append(seen.value)
                outputs.append(dot(mixing[j][: j + 1], drawn) if mixing else seen.value)
            if output == "states" and self.width:
                outputs += [update.step, update.factor, *lean]
            for b, block in enumerate(state):
                share = update.shares[b]
                if self.rolled:
                    numbers = [update.weight_given, div(1.0, add(1.0, sqrt(share))), update.step, update.factor]
                    routine = Correct(len(block.mean), len(self.free))
                    state[b] = Block(*routine.on(*block, F[b], lean, numbers))
                    continue
                gain, root = correct(block.root, F[b], update.weight_given, share)
                sensitivity = [
                    [sub(x, mul(k, a)) for x, a in zip(r, lean, strict=True)]
                    for r, k in zip(block.sensitivity, gain, strict=True)
                ]
                covariances = [add(dot(r, F[b]), dot(old, lean)) for r, old in zip(block.root, block.sensitivity, strict=True)]
                shrink = [mul(dot(r, lean), update.factor) for r in sensitivity]
                sensitivity = [
                    [sub(x, mul(k, a)) for x, a in zip(r, lean, strict=True)] for r, k in zip(sensitivity, shrink, strict=True)
                ]
                moved = [add(m, mul(c, update.step)) for m, c in zip(block.mean, covariances, strict=True)]
                state[b] = Block(moved, root, sensitivity)
        if output == "moments":
            outputs = self.moments(state)
        return state, outputs

    def _observation(self, state: State) -> tuple[list[Scalar], list[Row]]:
        """Expected outputs, and their linearisation in scaled components."""
        system, scale = self.system, list(self.scale)
        at = self._at(self.physical(state, scale))
        by_x = [substitute(row, at) for row in jacobian(system.g, system.x)]
        by_dx = [substitute(row, at) for row in jacobian(system.g, system.dx)]
        rows: list[Row] = []
        for j in range(len(system.g)):
            row: Row = {}
            for s, (c, k) in self.place.items():
                row[c, k] = add(row.get((c, k), 0.0), mul(by_x[j][s], self.unit((c, k), scale)))
                if c < self.n_chains:
                    row[c, k + 1] = add(row.get((c, k + 1), 0.0), mul(by_dx[j][s], scale[k + 1]))
            rows.append(row)
        return substitute(system.g, at), rows

    @staticmethod
    def _decorrelated(
        mixing: Matrix, expected: list[Scalar], rows: list[Row], values: list[Scalar], drawing: bool
    ) -> tuple[list[Scalar], list[Row], list[Scalar]]:
        """Combinations of outputs whose noise is independent: the inverse of a triangular factor, applied to each."""
        means: list[Scalar] = []
        slopes: list[Row] = []
        seen: list[Scalar] = []
        for j, factors in enumerate(mixing):
            size, before = factors[j], factors[:j]
            parts = {part for row in (rows[j], *slopes) for part in row}
            means.append(div(sub(expected[j], dot(before, means)), size))
            slopes.append({p: div(sub(rows[j].get(p, 0.0), dot(before, [r.get(p, 0.0) for r in slopes])), size) for p in parts})
            seen.append(values[j] if drawing else div(sub(values[j], dot(before, seen)), size))
        return means, slopes, seen

    def _gaussian(
        self, y: Scalar, mean: Scalar, own: Vector, lean: Vector, noise: Scalar, missing: Variable | None
    ) -> tuple[Update, Evidence]:
        """A Gaussian measurement (of a draw, ``y`` is a standard normal number)."""
        given = add(*own, noise)  # variance of the measurement for a known initial state, and in all
        total = add(given, dot(lean, lean))
        if missing is None:
            innovation = mul(y, sqrt(total))
            weight, weight_given = div(1.0, total), div(1.0, given)
            seen = Evidence(value=add(mean, innovation))
        else:
            innovation = switch(missing, 0.0, sub(y, mean))
            precision = div(1.0, total)
            weight = switch(missing, 0.0, precision)
            weight_given = switch(missing, 0.0, div(1.0, given)) if self.width else weight
            density = log_density(innovation, total, precision, mean, missing)
            seen = Evidence(density, switch(missing, math.nan, innovation), sqrt(total), math.nan)
        factor = div(weight, add(1.0, sqrt(div(given, total)))) if self.width else 0.0
        shares = [div(add(noise, *(v for i, v in enumerate(own) if i != b)), given) for b in range(len(own))]
        return Update(mul(weight, innovation), weight_given, factor, shares), seen

    def _matched(
        self, at: Seen, y: Scalar, second: Scalar, own: Vector, lean: Vector, missing: Variable | None
    ) -> tuple[Update, Evidence]:
        """Any other measurement by its first two moments; its weight is negative where it makes the output less certain."""
        if missing is None:
            y = at.drawn(y, second)
            reading, seen = at.reading(y), Evidence(value=y)
        else:
            y = switch(missing, at.mean, y)  # a number: the derivative of what is not chosen is multiplied by zero
            found = at.reading(y)
            reading = chosen(missing, NOTHING, found)
            density = known_density(found.log, at.mean, missing)
            unseen = psb.or_(missing, at.censored(y)) if at.sensor.limits != (None, None) else missing
            tail = switch(missing, math.nan, at.log_tail(y)) if at.sensor.heavy else math.nan
            seen = Evidence(density, switch(unseen, math.nan, sub(y, at.mean)), at.deviation, tail)
        left = add(reading.rest, *(mul(reading.weight, v) for v in own))  # 1 - weight lean^2
        others = [add(reading.rest, *(mul(reading.weight, v) for i, v in enumerate(own) if i != b)) for b in range(len(own))]
        factor = div(reading.weight, add(1.0, sqrt(left))) if self.width else 0.0
        return Update(reading.pull, div(reading.weight, left), factor, [div(other, left) for other in others]), seen


def _entries(matrix: Matrix) -> Vector:
    """Entries of a matrix, row by row."""
    return [x for row in matrix for x in row]


def _matrix(entries: Vector, rows: int, columns: int) -> Matrix:
    """Matrix of such entries."""
    return [entries[i * columns : (i + 1) * columns] for i in range(rows)]


def _diagonal(parts: list[Matrix]) -> Matrix:
    """Blocks of any shapes along the diagonal of a matrix."""
    total, rows, at = sum(len(part[0]) for part in parts), [], 0
    for part in parts:
        width = len(part[0])
        rows += [[*[0.0] * at, *row, *[0.0] * (total - at - width)] for row in part]
        at += width
    return rows


@lru_cache(maxsize=64)
@untraced()
def _phases(system: System, form: Form, trace: bool) -> tuple[FilterSteps, Phase, Phase]:
    """What the recurrences of a filter have in common."""
    steps = FilterSteps(system, form, trace=trace)
    return steps, steps.start(), steps.substep()


@lru_cache(maxsize=64)
@untraced()
def filter_recurrence(system: System, form: Form, output: Output = "loglik") -> Recurrence:
    """The PN filter of a system as a recurrence.

    Parameters are the system's, the diffusion of each chain, the noise of each output and the scales (q+1,). See
    :mod:`pm_sysid.steps.grid` for the columns of its inputs.
    """
    steps, start, substep = _phases(system, form, trace=output == "states")
    shape = f"{'block' if form.block else 'dense'}{' everywhere' if form.everywhere else ''}"
    name = f"EK{form.linearisation}({form.order}) {shape} {output}"
    return Recurrence(
        start,
        substep,
        steps.sample(output),
        n_carry=steps.n_carry + steps.n_extra,
        n_params=len(steps.params),
        n_constants=steps.levels,
        name=name,
        role=output,
    )


@lru_cache(maxsize=64)
@untraced()
def calibration_recurrence(system: System, form: Form) -> Recurrence:
    """The pass over the ODE alone that calibrates the diffusion (Eq. 19).

    It runs block by block with unit diffusion: a chain's gain then does not depend on the size of its diffusion, which
    makes the quasi-maximum-likelihood estimate of each chain exact. The means of a dense filter's pass solve the linearised
    equations of all chains, which keeps it stable where they are coupled, unless a mode is fast beside the step and much
    faster than each chain alone. The last entries of ``final`` are the sums of ``z^2 / s`` over the substeps.
    """
    coupled = not form.block and len(system.chain_states) > 1
    form = replace(form, block=True, dynamic=False, everywhere=False, sensors=PLAIN)
    steps = FilterSteps(system, form, calibrate=True, coupled=coupled)
    return Recurrence(
        steps.start(),
        steps.substep(),
        steps.sample("loglik"),
        n_carry=steps.n_carry + steps.n_extra,
        n_params=len(steps.params),
        n_constants=steps.levels,
        name=f"EK{form.linearisation}({form.order}) calibration",
        role="calibration",
    )
