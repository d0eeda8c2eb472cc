"""What an argument has to be, asked in a way that anything may answer.

``in``, ``==`` and truth raise errors of their own for lists and arrays, and ``float`` reads numbers out of text; messages
that name no argument come of that, or results that nobody asked for.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np


def among(value: Any, options: Container[str]) -> bool:
    """Whether a value is one of some words."""
    return isinstance(value, str) and value in options


def whole(value: Any, least: int = 1, most: int = 2**31 - 1) -> bool:
    """Whether a value is a whole number (and no truth value) within limits."""
    return not isinstance(value, bool | np.bool_) and isinstance(value, int | np.integer) and bool(least <= value <= most)


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number (and no truth value)."""
    real = not isinstance(value, bool) and isinstance(value, int | float | np.integer | np.floating)
    return real and bool(-np.inf < value < np.inf)


def number(value: Any, name: str, remedy: str = "give a finite number") -> float:
    """One finite real number, or an error that names the argument."""
    kind = np.asarray(value).dtype.kind if isinstance(value, np.generic | np.ndarray) else "f"
    several = isinstance(value, np.ndarray) and value.ndim > 0  # of one entry, too: old versions of NumPy take it
    if isinstance(value, str | bytes | complex) or several or kind not in "biufO":
        raise TypeError(f"{name} is {shown(value)}; {remedy}.")
    try:
        result = float(value.item() if isinstance(value, np.ndarray) else value)
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}; {remedy}.") from None
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {shown(value)}; {remedy}.") from None
    if not np.isfinite(result):
        raise ValueError(f"{name} is {shown(value)}; {remedy}.")
    return result


def count(value: Any, name: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """A whole number within limits, or an error that names the argument."""
    if not whole(value, least, most):
        raise ValueError(f"{name} is {shown(value)}; give a whole number from {least} to {most}.")
    return int(value)


def words(value: Any, name: str) -> list[str]:
    """One word or several as a list."""
    try:
        found = [value] if isinstance(value, str) else list(value)
    except TypeError:
        found = [None]
    if not all(isinstance(word, str) for word in found):
        raise TypeError(f"{name} is {shown(value)}; give a name, or a list of names.")
    return found


def text(value: Any, name: str) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} is {shown(value)}; give text.")
    return value


def seed(value: Any, name: str = "random_seed") -> Any:
    """What NumPy takes for a seed: nothing, whole numbers that are not negative, or a generator."""
    given = value.tolist() if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1 else value
    several = isinstance(given, list | tuple) and len(given) > 0
    if not (
        value is None
        or isinstance(value, np.random.Generator | np.random.SeedSequence | np.random.BitGenerator)
        or all(whole(v, 0, 2**128) for v in (given if several else [given]))
    ):
        raise ValueError(f"{name} is {shown(value)}; give a whole number that is not negative, a generator, or None.")
    return value


def whole_seed(random_seed: Any, known: int | None = None) -> int:
    """Whole number for a seed: the one given, else the one an earlier run began with, else a fresh one."""
    if random_seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0]) if known is None else int(known)
    if not whole(random_seed, 0, 2**128):
        raise ValueError(f"random_seed is {shown(random_seed)}; give a whole number that is not negative, or None.")
    return int(random_seed)


def seed_sequence(random_seed: int, *place: int) -> np.random.SeedSequence:
    """Seeds of one part of a run: they depend on the run's seed and on the part's place, not on what ran before it."""
    return np.random.SeedSequence([random_seed, *place])


def place(value: Any, name: str) -> Path:
    """A place for files, as a path; it need not exist."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise TypeError(f"{name} is {shown(value)}; give a path.")
    return Path(value)


def flag(value: Any, name: str) -> bool:
    """A truth value."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {shown(value)}; give True or False.")
    return bool(value)


def of_kind[T](value: Any, kind: type[T], name: str) -> T:
    """Settings of one kind, or those by default."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}; give pm_sysid.{kind.__name__}(...), or None for the defaults.")
    return value


def shown(value: Any) -> str:
    """Short text for any value; whole numbers of thousands of digits have none of their own."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a whole number of {value.bit_length()} bits"
    return reprlib.repr(value) if isinstance(value, list | tuple | dict | set | str | bytes) else repr(value)
