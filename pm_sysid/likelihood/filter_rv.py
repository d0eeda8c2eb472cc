"""The random variable of an ODE filter: its op, its log-density, and the order of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from pm_sysid.compat import logprob, normalize_rng_param
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.filter_graph import Problem, RecordData, Unknowns
from pm_sysid.solve.initial_state import StartSpec
from pm_sysid.solve.substeps import StepChoice


class Inputs(NamedTuple):
    """Inputs of the random variable by name; :func:`pack` and :func:`unpack` alone know their order in the graph."""

    rng: Any
    unknowns: Unknowns
    data: RecordData


def pack(inputs: Inputs) -> list[Variable]:
    """Inputs as the flat list that the op takes: the order of ``ODEFilterRV.extended_signature``."""
    return [inputs.rng, *(pt.as_tensor_variable(v) for v in (*inputs.unknowns, *inputs.data))]


def unpack(flat: Sequence[Variable]) -> Inputs:
    """Inputs by name from the flat list of :func:`pack`."""
    rng, *rest = flat
    n = len(Unknowns._fields)
    return Inputs(rng, Unknowns(*rest[:n]), RecordData(*rest[n:]))


def with_variables(rows: Sequence[Sequence[Any]], name: str) -> Any:
    """Matrix of numbers and variables whose numbers are shared, so that another record can bring its own.

    :func:`numbers_of` finds the shared matrix again.
    """
    numbers = np.array([[0.0 if isinstance(v, Variable) else float(v) for v in row] for row in rows])
    matrix = pytensor.shared(numbers, name, shape=numbers.shape)
    for r, row in enumerate(rows):
        for i, v in enumerate(row):
            if isinstance(v, Variable):
                matrix = matrix[r, i].set(pt.cast(v, "float64"))
    return matrix


def numbers_of(matrix: Any) -> SharedVariable:
    """Shared matrix under the variables that :func:`with_variables` set into it, one after the other."""
    while not isinstance(matrix, SharedVariable):
        matrix = matrix.owner.inputs[0]
    return matrix


@dataclass
class Grid:
    """What the shared arrays of a filter were made of: its records, and the steps chosen for them.

    It changes with the arrays, and copies of a graph share both.
    """

    records: list[TimeSeries]
    choice: StepChoice


class ODEFilterRV(pm.SymbolicRandomVariable):
    """A measured record as a random variable: process noise of the PN prior and measurement noise."""

    extended_signature = "[rng],(p),(r,x),(r,x),(m),(c),(q),(t),(r,i),(n,j),(t,k)->[rng],(t,o)"
    own_signature = extended_signature.replace("(p)", "(r,p)").replace(",(m),", ",(r,m),")
    _print_name = ("ODEFilter", "\\operatorname{ODEFilter}")
    problem: Problem
    flat: bool
    grid: Grid
    start: StartSpec

    @property
    def substeps(self) -> int:
        """Filter steps in a sampling interval."""
        return self.grid.choice.substeps

    @classmethod
    def rv_op(
        cls,
        problem: Problem,
        unknowns: Unknowns,
        data: RecordData,
        *,
        flat: bool,
        grid: Grid,
        start: StartSpec,
        rng: Any = None,
    ) -> Any:
        """Random draws: each measurement from its predictive distribution given the drawn ones before."""
        inputs = pack(Inputs(normalize_rng_param(rng), unknowns, data))
        inner = [v.type() for v in inputs]
        inner_rng, u, d = unpack(inner)
        shape = (d.counts.shape[0], problem.n_normals)
        next_rng, normal = pt.random.normal(0, 1, size=shape, rng=inner_rng, return_next_rng=True)
        record, _ = problem.run(normal, u, d, "draw")
        signature = cls.own_signature if unknowns.own else cls.extended_signature
        signature = signature[: -len("(t,o)")] + ("(t)" if flat else "(t,o)")
        op = cls(inner, [next_rng, record[:, 0] if flat else record], extended_signature=signature)
        op.problem, op.flat, op.grid, op.start = problem, flat, grid, start
        return op(*inputs)


@logprob.register(ODEFilterRV)
def _ode_filter_logprob(op: ODEFilterRV, values: Any, *inputs: Any, **kwargs: Any) -> Any:
    """Log-density of each sample given those before it (Eq. 20), shape (T,) or (T, n_y)."""
    [value] = values
    y = value[:, None] if op.flat else value
    _, unknowns, data = unpack(inputs)
    loglik, _ = op.problem.run(y, unknowns, data)
    return loglik[:, 0] if op.flat else loglik
