"""One chain's algebra, written once and done for every chain in a loop.

With a covariance in blocks all chains go through the same prediction and the same update by their equation of motion. Written
out for each of many chains, this algebra is most of a step's code. Here it is a graph of one chain's scalars and a loop around
it. The arrays have one row for each scalar of a chain and one column for each chain, so that neighbouring chains lie side by
side and are computed in one register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pytensor.scalar.basic as psb
from pytensor.graph.basic import Constant, Variable

from pm_sysid.recurrence.op import Phase
from pm_sysid.symbolic.routines import Routine, Shape
from pm_sysid.symbolic.scalars import Scalar, is_number, symbols

#: Scalars of a chain: one for each row.
type Column = Sequence[Scalar]

_FORMS = {
    psb.Neg: "-{0}", psb.Sqr: "{0} * {0}", psb.Sqrt: "sqrt({0})", psb.Reciprocal: "1.0 / {0}",
    psb.Sub: "{0} - {1}", psb.TrueDiv: "{0} / {1}",
}  # fmt: skip
_INFIX = {psb.Add: " + ", psb.Mul: " * "}


class EachChain(Routine):
    """A graph of the scalars of one chain, applied to each of ``chains`` chains.

    Parameters
    ----------
    graph : Phase
        From all rows read, array by array, to all rows written. It may add, subtract, multiply, divide and take roots.
    chains : int
        Number of chains.
    read, written : tuple of int
        Rows of each array.
    """

    __props__ = ("graph", "chains", "read", "written")
    matrices = False

    def __init__(self, graph: Phase, chains: int, read: tuple[int, ...], written: tuple[int, ...]) -> None:
        self.graph, self.chains, self.read, self.written = graph, chains, read, written
        self.reads: tuple[Shape, ...] = tuple((n, chains) for n in read)
        self.writes: tuple[Shape, ...] = tuple((n, chains) for n in written)

    @cached_property
    def _text(self) -> tuple[list[str], list[str], list[str]]:
        """Names of what is read, a line for each operation, and names (or numbers) of what is written."""
        graph = self.graph.graph
        read = [f"i{k}" for k in range(len(graph.inputs))]
        names: dict[Variable, str] = dict(zip(graph.inputs, read, strict=True))

        def name(v: Variable) -> str:
            return f"({float(v.data)!r})" if isinstance(v, Constant) else names[v]

        lines = []
        for k, node in enumerate(graph.toposort()):
            arguments, kind = [name(v) for v in node.inputs], type(node.op)
            if kind not in _INFIX and kind not in _FORMS:
                raise NotImplementedError(f"the operation {node.op} is not available in a loop over chains.")
            text = _INFIX[kind].join(arguments) if kind in _INFIX else _FORMS[kind].format(*arguments)
            names[node.outputs[0]] = f"v{k}"
            lines.append(f"v{k} = {text}")
        return read, lines, [name(v) for v in graph.outputs]

    def source(self, name: str) -> str:
        """Text of the loop over chains."""
        arrays = [f"a{k}" for k in range(len(self.read))], [f"b{k}" for k in range(len(self.written))]
        elements = [list(_elements(of, rows)) for of, rows in zip(arrays, (self.read, self.written), strict=True)]
        read, lines, written = self._text
        body = [f"{v} = {e}" for v, e in zip(read, elements[0], strict=True)]
        body += [*lines, *(f"{e} = {v}" for v, e in zip(written, elements[1], strict=True))]
        head = f"def {name}({', '.join((*arrays[0], *arrays[1]))}):\n    for c in range({self.chains}):\n"
        return head + "".join(f"        {line}\n" for line in body)

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """The same operations on rows, which hold all chains."""
        read, lines, written = self._text
        names: dict[str, Any] = {"sqrt": xp.sqrt}
        names |= dict(zip(read, (row for array in arrays for row in array), strict=True))
        exec("\n".join(lines), names)
        rows = iter(eval(v, names) + xp.zeros(self.chains) for v in written)
        return [xp.stack([next(rows) for _ in range(n)]) if n else xp.zeros((0, self.chains)) for n in self.written]

    def adjoint(self) -> Routine:
        """Return the loop over the derivative of one chain's graph."""
        pulled = self.graph.pull_back([True] * sum(self.read))
        return EachChain(Phase(pulled, 0), self.chains, (*self.read, *self.written), self.read)


def _elements(arrays: Sequence[str], rows: Sequence[int]) -> Iterator[str]:
    """Each row of each array, at the current chain."""
    return (f"{array}[{i}, c]" for array, n in zip(arrays, rows, strict=True) for i in range(n))


def each_chain(function: Callable[..., Sequence[Column]], *groups: Sequence[Column]) -> list[list[list[Scalar]]]:
    """Apply a function of one chain's scalars to all chains, by a loop.

    Parameters
    ----------
    function : callable
        Takes lists of scalars, one for each group, and returns lists of scalars.
    groups : sequence of sequences
        For each chain a list of scalars, of the same length for all. What is the same number for all chains is that number to
        the function, which can leave out what it multiplies by zero.

    Returns
    -------
    list
        For each list that the function returns, and each chain, the list of scalars.
    """
    chains = len(groups[0])
    read: list[list[Sequence[Scalar]]] = []  # rows over all chains
    arguments: list[list[Scalar]] = []
    inputs: list[Variable] = []
    for g, group in enumerate(groups):
        read.append([])
        arguments.append([])
        for i, row in enumerate(zip(*group, strict=True)):
            if is_number(row[0]) and all(is_number(x, row[0]) for x in row):  # type: ignore[arg-type]
                arguments[-1].append(row[0])
                continue
            (new,) = symbols(f"group{g}_{i}_", 1)
            read[-1].append(row)
            arguments[-1].append(new)
            inputs.append(new)
    results = [list(result) for result in function(*arguments)]
    graph = Phase.build([], [], inputs, [x for result in results for x in result])
    sizes = tuple(len(rows) for rows in read if rows), tuple(map(len, results))
    written = EachChain(graph, chains, *sizes).on(*(rows for rows in read if rows))
    return [[list(column) for column in zip(*rows, strict=True)] if rows else [[]] * chains for rows in written]
