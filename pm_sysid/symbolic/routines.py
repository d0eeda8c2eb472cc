"""Loops inside a scalar graph: an operation on arrays of scalars whose code does not grow with their sizes.

Straight-line code of matrix algebra grows with the cube of the dimension. A routine is one node of a graph in its place: its
inputs and outputs are groups of scalars that stand for arrays, and its text is loops over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op

from pm_sysid.symbolic.scalars import Scalar, as_variable

type Shape = tuple[int, ...]


class Routine(Op):
    """Operation from arrays of scalars to arrays of scalars.

    A subclass says the shapes, the text of the loops, what they compute in terms of whole arrays, and the adjoint.
    """

    __props__: tuple[str, ...] = ()
    #: Shapes of the arrays it reads, writes, and works on.
    reads: tuple[Shape, ...] = ()
    writes: tuple[Shape, ...] = ()
    scratch: tuple[Shape, ...] = ()
    #: Whether it goes through whole matrices again and again.
    matrices = True

    def source(self, name: str) -> str:
        """Text of a function ``name`` of the arrays read, then written, then worked on, in the Python of ``llvm/loops.py``."""
        raise NotImplementedError

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """What it computes, by functions of NumPy or a module like it; none is changed in place."""
        raise NotImplementedError

    def adjoint(self) -> Routine:
        """Routine from its inputs and the cotangents of its outputs to the cotangents of its inputs."""
        raise NotImplementedError

    def padded(self, multiple: int) -> Routine:
        """Return the routine that goes through matrices in rows of a multiple of so many numbers, if that helps it."""
        return self

    @property
    def symbol(self) -> str:
        """Name that no other routine has."""
        return f"{type(self).__name__.lower()}_{sha256(self.text.encode()).hexdigest()[:16]}"

    @property
    def text(self) -> str:
        """All that machine code is made of; what is kept on disk is found by it."""
        return self.source("routine")

    def make_node(self, *inputs: Any) -> Apply:
        """All arrays read, one after the other and row by row, as scalars."""
        wanted = sum(map(math.prod, self.reads))
        if len(inputs) != wanted:
            raise ValueError(f"{type(self).__name__} reads {wanted} scalars in the shapes {self.reads}, not {len(inputs)}")
        outputs = [ps.float64() for _ in range(sum(map(math.prod, self.writes)))]
        return Apply(self, [as_variable(v) for v in inputs], outputs)

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        """Compute it on numbers."""
        arrays = self.compute(np, *(np.array(g, float) for g in cut(inputs, self.reads)))
        for storage, value in zip(output_storage, np.concatenate([np.ravel(a) for a in arrays]), strict=True):
            storage[0] = value

    def on(self, *arrays: Any) -> list[Any]:
        """Apply it to nested lists of scalars of the shapes that it reads; returns nested lists."""
        outputs = self.make_node(*(x for a in arrays for x in entries(a))).outputs
        return list(cut(outputs, self.writes))


def entries(array: Any) -> Iterator[Scalar]:
    """Scalars of nested lists, row by row."""
    for x in array:
        if isinstance(x, list | tuple):
            yield from entries(x)
        else:
            yield x


def cut(values: Sequence[Any], shapes: Sequence[Shape]) -> Iterator[Any]:
    """Nested lists of the given shapes from their entries."""
    rest = iter(values)

    def nested(shape: Shape) -> Any:
        return [nested(shape[1:]) for _ in range(shape[0])] if shape else next(rest)

    for shape in shapes:
        yield nested(shape)


def pull_back(node: Apply, cotangents: Sequence[Scalar]) -> Sequence[Variable]:
    """Cotangents of the inputs of a routine from those of its outputs."""
    op: Any = node.op
    result: Sequence[Variable] = op.adjoint().make_node(*node.inputs, *cotangents).outputs
    return result
