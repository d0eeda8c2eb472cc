"""Names of what a system has: scalars, vectors and arrays, and one label for each of their entries."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, shown, whole

type Shape = tuple[int, ...]

#: Dimensions of draws.
DRAWS = ("chain", "draw", "sample")
#: Entries of a vector or matrix.
MOST = 100_000


class Names(tuple[str, ...]):
    """Labels of the entries of named quantities, in order: ``z`` of a scalar, ``q[0], q[1], ...`` of a vector.

    A tuple of labels, which stand where arrays are flat: in a recurrence, in the columns of a record. ``shapes`` says how
    they belong together.

    Examples
    --------
    >>> names = Names({"q": (2,), "r": ()})
    >>> list(names), names.shapes
    (['q[0]', 'q[1]', 'r'], {'q': (2,), 'r': ()})
    """

    shapes: dict[str, Shape]

    def __new__(cls, shapes: Mapping[str, Shape]) -> Names:
        """Label every entry."""
        self = super().__new__(cls, (entry(n, i) for n, shape in shapes.items() for i in np.ndindex(shape)))
        self.shapes = dict(shapes)
        return self

    def __getnewargs__(self) -> tuple[dict[str, Shape]]:
        """For pickle."""
        return (self.shapes,)

    @property
    def scalar(self) -> bool:
        """Whether there are scalars alone."""
        return all(shape == () for shape in self.shapes.values())

    def __repr__(self) -> str:
        parts = [repr(n + _range(shape)) for n, shape in self.shapes.items()]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    def spread(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by label: an array that stands under the name of a vector becomes its entries; nothing else changes.

        Raises
        ------
        ValueError
            If an array has another shape than what it is the value of, or an entry is given twice.
        """
        if self.scalar:
            return dict(values)
        found: dict[str, Any] = {}
        for name, value in values.items():
            shape = self.shapes.get(name, ()) if isinstance(name, str) else ()
            items = (
                {entry(name, i): v for i, v in _entries(f"{what}[{name!r}]", value, shape).items()} if shape else {name: value}
            )
            if twice := [n for n in items if n in found]:
                raise ValueError(
                    f"{what} gives {twice[0]!r} twice: as an entry, and in {self.owner(twice[0])!r}; leave one out."
                )
            found |= items
        return found

    def draws(self, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by label as in :meth:`spread`, of arrays with any dimensions before those of the quantity (draws).

        Labelled arrays may have the dimensions ``chain``, ``draw`` and ``sample`` anywhere.
        """
        found: dict[str, Any] = {}
        for name, given in values.items():
            value = given
            if hasattr(given, "dims") and hasattr(given, "transpose"):
                value = given.transpose(*(d for d in given.dims if d in DRAWS), ...)
            shape = self.shapes.get(name, ()) if isinstance(name, str) else ()
            if not shape or isinstance(value, Variable) or not hasattr(value, "ndim") or value.ndim == len(shape):
                found |= self.spread(what, {name: value})
                continue
            if tuple(value.shape[-len(shape) :]) != shape:
                raise _wrong_shape(f"{what}[{name!r}]", tuple(value.shape), shape, " with the dimensions of the draws before")
            for i in np.ndindex(shape):
                part = value[(..., *i)]
                found[entry(name, i)] = part.reset_coords(drop=True) if hasattr(part, "reset_coords") else part
        return found

    def variables(self, dims: Sequence[str], values: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        """Variables of a Dataset by name from values (..., n): vectors have the dimension ``q_dim_0`` after ``dims``."""
        found = {}
        for name, where in self.vectors().items():
            shape = self.shapes[name]
            own = tuple(f"{name}_dim_{i}" for i in range(len(shape)))
            found[name] = ((*dims, *own), values[..., where].reshape((*values.shape[:-1], *shape)))
        return found

    @staticmethod
    def owner(label: str) -> str:
        """Name of the quantity an entry belongs to."""
        return label.partition("[")[0]

    def vectors(self) -> dict[str, slice]:
        """Where each quantity lies among the labels."""
        ends = np.cumsum([0, *(int(np.prod(s)) for s in self.shapes.values())])
        return {n: slice(int(a), int(b)) for n, a, b in zip(self.shapes, ends[:-1], ends[1:], strict=True)}


def entry(name: str, index: Sequence[int]) -> str:
    """Label of an entry: ``q[3]``, ``K[0, 1]``, or the name of a scalar.

    Examples
    --------
    >>> entry("K", (0, 1)), entry("c", ())
    ('K[0, 1]', 'c')
    """
    return f"{name}[{', '.join(map(str, index))}]" if len(index) else name


def _range(shape: Shape) -> str:
    return f"[{', '.join(f'0..{n - 1}' if n > 1 else '0' for n in shape)}]" if shape else ""


def _entries(what: str, value: Any, shape: Shape) -> dict[Shape, Any]:
    """Entries of an array of numbers or of variables by index."""
    if isinstance(value, list | tuple) and any(isinstance(v, Variable) for v in _leaves(value)):
        value = pt.stack([pt.stack(list(v)) if isinstance(v, list | tuple) else pt.as_tensor_variable(v) for v in value])
    if isinstance(value, Variable):
        known: Any = value.type.shape  # type: ignore[attr-defined]
        if len(known) != len(shape) or any(n not in (None, m) for n, m in zip(known, shape, strict=True)):
            raise _wrong_shape(what, tuple("?" if n is None else n for n in known), shape)
        value = pt.specify_shape(value, shape) if None in known else value
        return {i: value[i] for i in np.ndindex(shape)}  # type: ignore[index]
    if isinstance(value, str | bytes | Mapping) or value is None:
        raise TypeError(f"{what} is {shown(value)}; give an array of the shape {shape}.")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} has rows of different lengths; give an array of the shape {shape}.") from error
    if array.shape != shape:
        raise _wrong_shape(what, array.shape, shape)
    return {i: array[i] for i in np.ndindex(shape)}


def _leaves(value: Any) -> Iterable[Any]:
    return (leaf for v in value for leaf in (_leaves(v) if isinstance(v, list | tuple) else (v,)))


def _wrong_shape(what: str, got: tuple[Any, ...], shape: Shape, more: str = "") -> ValueError:
    remedy = "transpose it" if got == shape[::-1] and len(shape) == 2 else f"give an array of the shape {shape}{more}"
    return ValueError(f"{what} has the shape {got}, but the system says {shape}; {remedy}.")


def checked_names(what: str, names: Any) -> Names:
    """Names of scalars from a sequence, or of arrays from a mapping of names to sizes and shapes.

    Raises
    ------
    TypeError, ValueError
        For names that are no identifiers or appear twice, and sizes that are no positive integers.
    """
    if isinstance(names, str):
        raise TypeError(f"{what} is the string {names!r}; give a tuple of names, such as ({names!r},).")
    if isinstance(names, Names):
        return names
    if isinstance(names, Mapping):
        shapes = {_name(what, name): _shape(what, name, size) for name, size in names.items()}
        return Names(shapes)
    if not isinstance(names, Iterable) or not np.iterable(names):
        raise TypeError(f"{what} is {shown(names)}; give a tuple of names.")
    result = tuple(_name(what, name) for name in names)
    if len(set(result)) != len(result):
        raise ValueError(f"{what} contains a name twice: {result}.")
    return Names(dict.fromkeys(result, ()))


def _name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(f"{what} contains {name!r}; names must be identifiers that do not start with '_'.")
    return name


def _shape(what: str, name: str, size: Any) -> Shape:
    """Shape from a length, a tuple of lengths, or () for a scalar."""
    lengths: Any = (size,) if whole(size) else tuple(size) if isinstance(size, list | tuple) else None
    if lengths is None or not all(whole(n, 1) for n in lengths):
        raise ValueError(
            f"{what}[{name!r}] is {shown(size)}; give the length of a vector, such as 3, the shape of a matrix, such as "
            "(3, 3), or () for a scalar."
        )
    if np.prod([float(n) for n in lengths]) > MOST:
        raise ValueError(f"{what}[{name!r}] has the shape {lengths}; at most {MOST} entries can be scalars of a step.")
    return tuple(int(n) for n in lengths)


def named_entries(names: Names, wanted: Iterable[Any]) -> tuple[list[str], list[Any]]:
    """Labels that names of entries or of whole vectors mean, and those of ``wanted`` that mean none."""
    found: list[str] = []
    unknown: list[Any] = []
    for name in wanted:
        if among(name, names):
            found.append(name)
        elif among(name, names.shapes):
            found += [entry(name, i) for i in np.ndindex(names.shapes[name])]
        else:
            unknown.append(name)
    return found, unknown
