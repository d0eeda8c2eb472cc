"""Functions of arrays from PyTensor expressions: NumPy around the kernels, or all of it compiled by numba.

A kernel does the work of a filter, and is ready in a fraction of a second. What stands around it (priors, units, sums) is a
few operations on arrays of particles, which NumPy does as fast as compiled code, while numba needs seconds to compile them anew
for each system. Numba is for functions that are called often with little to do, and for expressions that are slow in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.scalar import Composite, ScalarOp

from pm_sysid.compat import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    Alloc,
    AllocDiag,
    AllocEmpty,
    ARange,
    ArgSortOp,
    Assert,
    BatchedDot,
    Blockwise,
    CAReduce,
    CheckParameterValue,
    Cholesky,
    CumOp,
    DimShuffle,
    Dot,
    Elemwise,
    ExtractDiag,
    Eye,
    GraphRewriter,
    IncSubtensor,
    Join,
    MakeVector,
    Mode,
    Reshape,
    RewriteDatabaseQuery,
    ScalarFromTensor,
    Shape,
    Shape_i,
    Solve,
    SolveTriangular,
    SortOp,
    SpecifyShape,
    SplineWrapper,
    Split,
    Subtensor,
    TensorFromScalar,
    ViewOp,
    VMLinker,
    io_toposort,
    optdb,
)
from pm_sysid.environment import compiling, ieee_arithmetic
from pm_sysid.recurrence.op import RunOp
from pm_sysid.recurrence.run import native
from pm_sysid.symbolic.scalars import untraced

#: Numbers that NumPy handles at once, of many points: functions keep every intermediate result, and those that leave the
#: processor's caches take three times as long.
IN_CACHE = 300_000
#: Operations on whole arrays, besides the recurrences.
WHOLE = (
    AdvancedIncSubtensor, AdvancedSubtensor, Alloc, ARange, CAReduce, CheckParameterValue, CumOp, DimShuffle, Dot, ExtractDiag,
    Eye, IncSubtensor, Join, MakeVector, Reshape, ScalarFromTensor, Shape, Shape_i, SpecifyShape, Split, Subtensor,
    TensorFromScalar, ViewOp,
)  # fmt: skip
#: Operations on one small array. A batch takes them row by row, some microseconds each (seven for each draw of two correlated
#: unknowns), and numba takes half a minute and more to compile them.
ALONE = (AllocDiag, AllocEmpty, ArgSortOp, Assert, BatchedDot, Cholesky, SolveTriangular, SortOp)
#: Rows and columns up to which an array is small. All results are kept for the next call, which of a Gaussian process and many
#: particles is gigabytes.
SMALL = 16
#: Names of the rewrites below, which only :func:`compiled` asks for.
KERNELS, SOLUTIONS, VIEWS = "pm_sysid_kernels", "pm_sysid_solutions", "pm_sysid_views"


class Kernel(Op):
    """A recurrence, its batch or a gradient of one, called as machine code from Python."""

    __props__ = ("op",)

    def __init__(self, op: RunOp) -> None:
        self.op = op

    def make_node(self, *inputs: Any) -> Apply:
        """Inputs and outputs of the operation."""
        return Apply(self, list(inputs), [v.type() for v in self.op.make_node(*inputs).outputs])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Call the machine code."""
        for storage, value in zip(output_storage, native(self.op)(*inputs), strict=True):
            storage[0] = value


class JoinRows(Op):
    """Join along an axis of the last dimensions; the first ones are broadcast: what Blockwise does row by row."""

    __props__ = ("axis", "core")

    def __init__(self, axis: int, core: int) -> None:
        self.axis, self.core = axis, core

    def make_node(self, *inputs: Any) -> Apply:
        """Arrays with ``core`` last dimensions."""
        return Apply(self, list(inputs), [pt.TensorType(inputs[0].dtype, (None,) * inputs[0].type.ndim)()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Broadcast and join."""
        first = np.broadcast_shapes(*(a.shape[: a.ndim - self.core] for a in inputs))
        rows = [np.broadcast_to(a, first + a.shape[a.ndim - self.core :]) for a in inputs]
        output_storage[0][0] = np.concatenate(rows, axis=self.axis - self.core)


class SolveRows(Op):
    """Solve linear systems at once, the first dimensions of both sides broadcast: what Blockwise does matrix by matrix.

    Where a matrix has no inverse, the solution is no number.
    """

    __props__ = ("vector",)

    def __init__(self, vector: bool) -> None:
        self.vector = vector

    def make_node(self, matrix: Any, right: Any) -> Apply:
        """Matrices (..., n, n) and right-hand sides (..., n, k), or (..., n) if ``vector``."""
        ndim = max(matrix.type.ndim - self.vector, right.type.ndim)
        return Apply(self, [matrix, right], [pt.TensorType("float64", (None,) * ndim)()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Solve all, with another matrix in the place of one that has no inverse."""
        matrix, right = inputs
        right = right[..., None] if self.vector else right
        try:
            solution = np.linalg.solve(matrix, right)
        except np.linalg.LinAlgError:
            with np.errstate(all="ignore"):
                singular = ~(np.abs(np.linalg.slogdet(matrix)[1]) < np.inf)
            there = np.where(singular[..., None, None], np.eye(matrix.shape[-1]), matrix)
            solution = np.where(singular[..., None, None], np.nan, np.linalg.solve(there, right))
        output_storage[0][0] = solution[..., 0] if self.vector else solution


def _solves_general(op: Any) -> bool:
    return isinstance(op, Solve) and op.assume_a == "gen"


class _SolveAtOnce(GraphRewriter):
    """Replace solutions of linear systems before PyTensor takes them apart into factors, matrix by matrix."""

    def apply(self, fgraph: Any) -> None:
        for node in fgraph.toposort():
            core = node.op.core_op if isinstance(node.op, Blockwise) else node.op
            if _solves_general(core) and node.outputs[0].type.dtype == "float64":
                (solved,) = SolveRows(core.b_ndim == 1).make_node(*node.inputs).outputs
                solved = node.outputs[0].type.filter_variable(solved)
                fgraph.replace_all([(node.outputs[0], solved)], reason=SOLUTIONS)


class _WithoutViews(GraphRewriter):
    """Take away what only gives a variable another name, which vectorised would be done row by row."""

    def apply(self, fgraph: Any) -> None:
        for node in fgraph.toposort():
            if isinstance(node.op.core_op if isinstance(node.op, Blockwise) else node.op, ViewOp):
                (named,) = node.outputs
                fgraph.replace_all([(named, named.type.filter_variable(node.inputs[0]))], reason=VIEWS)


class _CallKernels(GraphRewriter):
    """Replace what Python would do step by step, or row by row."""

    def apply(self, fgraph: Any) -> None:
        for node in fgraph.toposort():
            if isinstance(node.op, RunOp):
                new = Kernel(node.op).make_node(*node.inputs)
            elif isinstance(node.op, Blockwise) and isinstance(node.op.core_op, Join):
                core = node.inputs[0].type.ndim - node.op.batch_ndim(node)
                new = JoinRows(node.op.core_op.axis, core).make_node(*node.inputs)
            elif isinstance(node.op, Blockwise) and isinstance(node.op.core_op, SplineWrapper):
                new = node.op.core_op.make_node(*node.inputs)
            else:
                continue
            called = [old.type.filter_variable(v) for old, v in zip(node.outputs, new.outputs, strict=True)]
            fgraph.replace_all(list(zip(node.outputs, called, strict=True)), reason=KERNELS)


optdb.register(KERNELS, _CallKernels(), position=100)
optdb.register(SOLUTIONS, _SolveAtOnce(), position=0)
optdb.register(VIEWS, _WithoutViews(), position=0)


@lru_cache(maxsize=1)
def numpy_mode() -> Mode:
    """PyTensor's rewrites without those that are for compiled code."""
    ours = [KERNELS, SOLUTIONS, VIEWS]
    query = RewriteDatabaseQuery(include=["fast_run", "py_only", *ours], exclude=["fusion", "inplace", "BlasOpt"])
    return Mode(VMLinker(allow_gc=False, use_cloop=False, c_thunks=False), query)


def on_whole_arrays(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> bool:
    """Whether NumPy computes expressions without loops of Python, but for operations on small arrays row by row."""
    return all(_on_whole_arrays(node) for node in io_toposort(inputs, outputs))


def _on_whole_arrays(node: Apply) -> bool:
    # Blockwise is what vectorize_graph leaves around these operations; a rewrite takes it away.
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if isinstance(op, ALONE):
        sizes = node.inputs[0].type.shape[-1:] if isinstance(op, SortOp | ArgSortOp) else node.inputs[0].type.shape[-2:]
        return isinstance(op, AllocEmpty | Assert) or all(size is not None and size <= SMALL for size in sizes)
    return isinstance(op, (RunOp, SplineWrapper, *WHOLE)) or _solves_general(op) or _by_elements(op)


def _by_elements(op: Op) -> bool:
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, ScalarOp) and not isinstance(op.scalar_op, Composite)


def together(numbers: int) -> int:
    """How many points a function of many is best given at once, each of so many numbers."""
    return max(IN_CACHE // max(numbers, 1), 1)


def compiled(inputs: Sequence[Variable], outputs: Any, *, often: bool = False, **options: Any) -> Any:
    """``pytensor.function``, with NumPy around the kernels where that will do, else compiled by numba in IEEE arithmetic.

    Parameters
    ----------
    inputs : sequence of Variable
        Those that no output needs are allowed.
    outputs : Variable or sequence of Variable
        What to compute.
    often : bool, default False
        It is called so often, and with so few numbers, that some microseconds for each operation count.
    **options
        Of ``pytensor.function``.

    Notes
    -----
    A mode among the options is taken, and so is one that the user has set in ``pytensor.config``.
    """
    wanted = [outputs] if isinstance(outputs, Variable) else list(outputs)
    options |= {"on_unused_input": "ignore"}
    with compiling:
        chosen = "mode" in options or pytensor.config.mode != "Mode"
        if chosen or often or not on_whole_arrays(inputs, wanted):
            with ieee_arithmetic():
                return pytensor.function(inputs, outputs, **options)
        with untraced():
            function = pytensor.function(inputs, outputs, mode=numpy_mode(), **options)

    def silent(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):  # impossible parameters are minus infinity, not a warning
            return function(*arguments)

    return silent
