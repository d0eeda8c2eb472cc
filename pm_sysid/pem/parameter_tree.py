"""Nested containers of numbers: their leaves by name, and the same containers around other numbers."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

type Path = tuple[Any, ...]


def leaves(what: str, tree: Any, none: float | None = None) -> dict[str, float]:
    """Numbers of a tree by name, in order.

    A number is called by the key it stands under, whatever groups that key is in; the entries of a list, tuple or array by
    the key of that array and their position, ``k_0, k_1, ...``. A number that stands under no key at all is called by its
    position alone, ``"0"``. Where there is a number for ``none``, it stands for every None.

    Raises
    ------
    TypeError, ValueError
        If a leaf is no number, or two have one name.

    Examples
    --------
    >>> leaves("p_guess", {"m": 1.0, "damping": {"c": 0.1, "k": [3.0, 4.0]}})
    {'m': 1.0, 'c': 0.1, 'k_0': 3.0, 'k_1': 4.0}
    """
    found: dict[str, float] = {}
    for path, value in _walk(what, tree, (), none):
        name = _name(path)
        if name in found:
            raise ValueError(f"{what} has two numbers called {name!r}; give each parameter once, under its own key.")
        found[name] = value
    return found


def nameless(name: str) -> bool:
    """Whether a leaf stands under no key, and is called by its position alone."""
    return all(part.isdigit() for part in name.split("_")) if name else True


def rebuild(tree: Any, values: Sequence[float]) -> Any:
    """The same tree around other numbers: floats where numbers stood, arrays where arrays did.

    Examples
    --------
    >>> rebuild({"m": 1, "groups": [{"c": 0.1}, (2.0, 3.0)]}, [5.0, 6.0, 7.0, 8.0])
    {'m': 5.0, 'groups': [{'c': 6.0}, (7.0, 8.0)]}
    """
    source = iter(values)
    result = _fill(tree, source)
    if next(source, None) is not None:
        raise ValueError(f"{len(values)} numbers do not fit the tree.")
    return result


def _walk(what: str, tree: Any, path: Path, none: float | None) -> Iterator[tuple[Path, float]]:
    if isinstance(tree, Mapping):
        for key, branch in tree.items():
            if not isinstance(key, str):
                raise TypeError(f"{what} has the key {key!r}; give names as text.")
            yield from _walk(what, branch, (*path, key), none)
    elif isinstance(tree, list | tuple):
        for i, branch in enumerate(tree):
            yield from _walk(what, branch, (*path, i), none)
    elif isinstance(tree, np.ndarray) and tree.ndim:
        for index in np.ndindex(tree.shape):
            yield from _walk(what, tree[index], (*path, *index), none)
    elif tree is None and none is not None:
        yield path, none
    else:
        real = isinstance(tree, numbers.Real | np.ndarray | np.generic) and not isinstance(tree, bool | np.bool_)
        if not real or np.asarray(tree).dtype.kind not in "iuf":
            where = f" at {_name(path)!r}" if path else ""
            raise TypeError(f"{what} holds {tree!r}{where}; give numbers in dicts, lists, tuples or arrays.")
        yield path, float(tree)


def _name(path: Path) -> str:
    """The last key and the positions after it."""
    last = max((i for i, part in enumerate(path) if isinstance(part, str)), default=0)
    return "_".join(map(str, path[last:]))


def _fill(tree: Any, source: Iterator[float]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _fill(branch, source) for key, branch in tree.items()}
    if isinstance(tree, list | tuple):
        branches = [_fill(branch, source) for branch in tree]
        if isinstance(tree, list):
            return branches
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    if isinstance(tree, np.ndarray):
        return np.array([float(next(source)) for _ in range(tree.size)]).reshape(tree.shape)
    return float(next(source))
