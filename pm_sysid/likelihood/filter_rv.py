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

from pm_sysid.compat import IncSubtensor, logprob, normalize_rng_param
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.filter_graph import Problem, RecordData, Unknowns
from pm_sysid.solve.initial_state import StartSpec
from pm_sysid.solve.substeps import StepChoice

type Rows = Sequence[Sequence[Any]]


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


def numbers(data: RecordData, x0: np.ndarray, x0_std: np.ndarray) -> np.ndarray:
    """Small arrays of a filter, one after the other; the counts of steps, whose number changes with the record, are last.

    ``x0`` and ``x0_std`` (R, n_x) are the numbers of the initial states, zero in the place of variables.
    """
    return np.concatenate([np.ravel(a) for a in (data.scale, data.starts, x0, x0_std, data.counts)]).astype(float)


def shared(name: str, data: RecordData, x0: Rows, x0_std: Rows) -> tuple[RecordData, Any, Any]:
    """Arrays of a filter and its initial states (R, n_x) over shared variables, so that another record can bring its own.

    There are three: samplers that compile functions for each shared variable would have much to do with all that are small.
    """
    fixed = data.scale, data.starts, numbers_in(x0), numbers_in(x0_std)
    vector = pytensor.shared(numbers(data, *fixed[2:]), f"{name}::numbers", shape=(None,))
    ends = np.cumsum([a.size for a in fixed]).tolist()
    scale, starts, *means_and_stds = (vector[end - a.size : end].reshape(a.shape) for a, end in zip(fixed, ends, strict=True))
    counts = pt.cast(vector[ends[-1] :], "int64")
    substeps = pytensor.shared(data.substeps, f"{name}::substeps", shape=(None, data.substeps.shape[1]))
    samples = pytensor.shared(data.samples, f"{name}::samples", shape=(None, data.samples.shape[1]))
    means, stds = (with_variables(m, rows) for m, rows in zip(means_and_stds, (x0, x0_std), strict=True))
    return RecordData(scale, counts, starts, substeps, samples), means, stds


def numbers_in(rows: Rows) -> np.ndarray:
    """Matrix of the numbers in rows of numbers and variables, zero in the place of variables."""
    return np.array([[0.0 if isinstance(v, Variable) else float(v) for v in row] for row in rows])


def numbers_of(matrix: Any) -> Any:
    """Matrix under the variables that :func:`shared` has set into it, one after the other."""
    while matrix.owner is not None and isinstance(matrix.owner.op, IncSubtensor):
        matrix = matrix.owner.inputs[0]
    return matrix


def shared_under(array: Any) -> SharedVariable:
    """Shared variable that an array of :func:`shared` is a part of."""
    while not isinstance(array, SharedVariable):
        array = array.owner.inputs[0]
    return array


def with_variables(matrix: Any, rows: Rows) -> Any:
    """Matrix of numbers (R, n_x) with the variables among the entries of rows in their places."""
    matrix = pt.as_tensor_variable(matrix)
    for r, row in enumerate(rows):
        for i, v in enumerate(row):
            if isinstance(v, Variable):
                matrix = matrix[r, i].set(pt.cast(v, "float64"))
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
