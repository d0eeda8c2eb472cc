"""The ``Recurrence`` Op: a frozen scalar step run over time, and its derivative.

Filter, simulator and predictors are all recurrences ``carry, input_t, params -> carry, output_t``. One Op holds the step
as three small graphs of scalar operations: how a carry *starts*, what a *substep* between samples does, and what a
*sample* does and puts out. A backend turns them into a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from pm_sysid.compat import FrozenFunctionGraph, io_toposort
from pm_sysid.symbolic.derivatives import vjp
from pm_sysid.symbolic.routines import Routine
from pm_sysid.symbolic.scalars import Scalar, again, as_variable, simplify, symbols

#: Bytes of carries kept at a time while a derivative is pulled back; longer runs are recomputed block by block.
TAPE_BYTES = 32 * 2**20


#: Largest carry of loops over chains that stays in a core's first cache with 16 particles.
CROWD = 256


def freeze(inputs: Sequence[Variable], outputs: Sequence[Scalar]) -> FrozenFunctionGraph:
    """Simplify scalar expressions and freeze them as a hashable graph."""
    simple = [as_variable(o) for o in simplify(outputs)]
    return FrozenFunctionGraph.from_toposort(list(inputs), simple, list(io_toposort(list(inputs), simple)))


@singledispatch
def interpreted(op: Op) -> Callable[..., Any]:
    """Return an Op as an interpreted Python function of arrays; a backend registers how."""
    raise NotImplementedError(f"no backend interprets {op}; import pm_sysid, which registers one")


@dataclass(frozen=True)
class Phase:
    """One frozen graph of a recurrence and the sizes of its input groups."""

    graph: FrozenFunctionGraph
    n_inputs: int

    @classmethod
    def build(cls, carry: Sequence[Variable], params: Sequence[Variable], inputs: Sequence[Variable], outputs: Any) -> Phase:
        """Freeze ``outputs`` as a function of carry, parameters and inputs."""
        return cls(freeze([*carry, *params, *inputs], list(outputs)), len(inputs))

    def pull_back(self, differentiable: Sequence[bool]) -> FrozenFunctionGraph:
        """Graph from (carry, params, inputs, cotangents of the outputs) to cotangents of the inputs marked.

        Unmarked inputs have a constant zero in their place.
        """
        inputs = [v.type(v.name) for v in self.graph.inputs]
        known: dict[Variable, Variable] = dict(zip(self.graph.inputs, inputs, strict=True))
        for node in self.graph.toposort():
            known.update(again(node, known))
        outputs = [known.get(o, o) for o in self.graph.outputs]
        cotangents = symbols("cotangent", len(outputs))
        pulled = iter(vjp(outputs, [v for v, d in zip(inputs, differentiable, strict=True) if d], cotangents))
        return freeze([*inputs, *cotangents], [next(pulled) if d else 0.0 for d in differentiable])


#: What is called when an Op has been unpickled.
UNPICKLED: list[Callable[[], None]] = []


class RunOp(Op):
    """An Op that runs a scalar step over time; without a compiling backend it is interpreted."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Have the backends there: a compiled function that is unpickled, as in a spawned process, is not rewritten again."""
        self.__dict__.update(state)
        for register in UNPICKLED:
            register()

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Run the loop in plain Python: slow, and the reference for the compiled backends."""
        for storage, value in zip(output_storage, interpreted(self)(*inputs), strict=True):
            storage[0] = value


class DerivedRunOp(RunOp):
    """A :class:`RunOp` that a recurrence determines: its gradient, its batch, the gradient of its batch."""

    __props__ = ("recurrence",)

    def __init__(self, recurrence: Recurrence) -> None:
        self.recurrence = recurrence

    def __repr__(self) -> str:
        return f"{type(self).__name__}{{{self.recurrence.name}}}"


def filled_cotangents(outputs: Sequence[Variable], cotangents: Sequence[Variable]) -> list[Variable]:
    """Cotangents of outputs, with zeros for outputs on which nothing depends."""
    return [pt.zeros_like(o) if isinstance(c.type, DisconnectedType) else c for o, c in zip(outputs, cotangents, strict=True)]


def as_rows(params: Any, ndim: int) -> Variable:
    """Parameters with a dimension of runs, the last but one of ``ndim``, which is 1 where it was not given."""
    params = pt.as_tensor_variable(params, dtype="float64")
    if params.type.ndim == ndim - 1:
        params = pt.expand_dims(params, -2)
    return pt.as_tensor_variable(params, ndim=ndim)


def substeps_by_run(counts: Any, n_runs: Any) -> Variable:
    """Number of substeps (R,) that counts (T,) give to each run."""
    run = pt.cumsum(pt.lt(counts, 0))
    steps: Variable = pt.sum(pt.maximum(counts, 0)[:, None] * pt.eq(run[:, None], pt.arange(n_runs)), axis=0)
    return steps


class Recurrence(RunOp):
    """Run a scalar step over time.

    Parameters
    ----------
    start : Phase
        Parameters and start inputs to the carry.
    substep : Phase
        Carry, parameters and substep inputs to the carry.
    sample : Phase
        Carry, parameters and sample inputs to the carry and the outputs.
    n_carry, n_params : int
        Sizes.
    n_constants : int
        How many of the last parameters are constants of the record, which nobody differentiates by.
    name : str
        What it computes; shown in graphs, and for readers only.
    role : str
        What it is to the likelihood of a model, where a caller has to tell: ``"loglik"`` puts out the log-density of each
        sample, ``"calibration"`` estimates a diffusion for such a one. Other outputs of a filter have their own names.

    Notes
    -----
    As an Op it takes ``params (R, P)``, or ``(1, P)`` where all runs share them (``(P,)`` means that), ``starts (R, n)``,
    ``counts (T,)``, ``substeps (N, n)`` and ``samples (T, n)`` and returns ``outputs (T, n_out)`` and ``final (R, n_carry)``.
    ``counts[t]`` substeps come before sample ``t``; a negative
    count starts the next of the ``R`` runs, so that several records are one call. It is differentiable in ``params`` and
    ``starts``.
    """

    __props__ = ("start", "substep", "sample", "n_carry", "n_params", "n_constants", "name", "role")

    def __init__(
        self,
        start: Phase,
        substep: Phase,
        sample: Phase,
        *,
        n_carry: int,
        n_params: int,
        n_constants: int = 0,
        name: str = "recurrence",
        role: str = "",
    ) -> None:
        self.start, self.substep, self.sample = start, substep, sample
        self.n_carry, self.n_params, self.n_constants, self.name, self.role = n_carry, n_params, n_constants, name, role

    @property
    def n_outputs(self) -> int:
        """Number of outputs a sample."""
        return len(self.sample.graph.outputs) - self.n_carry

    @cached_property
    def n_nodes(self) -> dict[str, int]:
        """Scalar operations of each phase."""
        return {k: len(getattr(self, k).graph.toposort()) for k in ("start", "substep", "sample")}

    @cached_property
    def crowded(self) -> bool:
        """Whether the arrays of its loops fill a cache with few particles."""
        routines = {node.op for node in self.substep.graph.toposort() if isinstance(node.op, Routine)}
        return any(routine.matrices for routine in routines) or (bool(routines) and self.n_carry > CROWD)

    @property
    def varied(self) -> list[bool]:
        """Which parameters are differentiated by."""
        return [True] * (self.n_params - self.n_constants) + [False] * self.n_constants

    def __repr__(self) -> str:
        return f"Recurrence{{{self.name}}}"

    def make_node(self, params: Any, starts: Any, counts: Any, substeps: Any, samples: Any) -> Apply:
        """Check and wrap the inputs."""
        inputs = [
            as_rows(params, 2),
            pt.as_tensor_variable(starts, ndim=2, dtype="float64"),
            pt.as_tensor_variable(counts, ndim=1, dtype="int64"),
            pt.as_tensor_variable(substeps, ndim=2, dtype="float64"),
            pt.as_tensor_variable(samples, ndim=2, dtype="float64"),
        ]
        outputs = [
            pt.tensor("outputs", shape=(None, self.n_outputs), dtype="float64"),
            pt.tensor("final", shape=(None, self.n_carry), dtype="float64"),
        ]
        return Apply(self, inputs, outputs)

    def infer_shape(self, node: Apply, input_shapes: Any) -> Any:
        """Outputs have one row a sample; final carries one row a run."""
        return [(input_shapes[4][0], pt.constant(self.n_outputs)), (input_shapes[1][0], pt.constant(self.n_carry))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Only parameters and starts are differentiable."""
        return [[True, True], [True, True], [False, False], [False, False], [False, False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Pull cotangents back to parameters and starts, step by step."""
        filled = filled_cotangents(outputs, cotangents)
        g_params, g_starts = RecurrenceGradient(self)(*inputs, *filled)  # type: ignore[misc]
        return [g_params, g_starts, *(disconnected_type() for _ in range(3))]


class RecurrenceGradient(DerivedRunOp):
    """Reverse sweep of a :class:`Recurrence`: cotangents of its outputs to cotangents of parameters and starts."""

    def make_node(self, *inputs: Any) -> Apply:
        """Inputs of the recurrence, then the cotangents of its two outputs."""
        checked = [*self.recurrence.make_node(*inputs[:5]).inputs]
        checked += [pt.as_tensor_variable(c, ndim=2, dtype="float64") for c in inputs[5:]]
        return Apply(self, checked, [checked[0].type("g_params"), pt.dmatrix("g_starts")])

    def infer_shape(self, node: Apply, input_shapes: Any) -> Any:
        """Gradients look like what they are gradients of."""
        return [input_shapes[0], input_shapes[1]]
