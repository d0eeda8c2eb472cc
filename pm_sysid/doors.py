"""What an argument has to be, asked in a way that anything may answer.

``in``, ``==`` and truth raise errors of their own for lists and arrays, and ``float`` reads numbers out of text; messages
that name no argument come of that, or results that nobody asked for.
"""

from __future__ import annotations

import reprlib
from collections.abc import Container
from typing import Any

import numpy as np


def among(value: Any, options: Container[str]) -> bool:
    """Whether a value is one of some words."""
    return isinstance(value, str) and value in options


def whole(value: Any, least: int = 1, most: int = 2**31 - 1) -> bool:
    """Whether a value is a whole number (and no truth value) within limits."""
    return not isinstance(value, bool | np.bool_) and isinstance(value, int | np.integer) and bool(least <= value <= most)


def number(value: Any, name: str, remedy: str = "give a finite number") -> float:
    """One finite real number, or an error that names the argument."""
    kind = np.asarray(value).dtype.kind if isinstance(value, np.generic | np.ndarray) else "f"
    if isinstance(value, str | bytes | complex) or kind not in "biufO":
        raise TypeError(f"{name} is {shown(value)}; {remedy}.")
    try:
        result = float(value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value)
    except TypeError:
        raise TypeError(f"{name} is {shown(value)}; {remedy}.") from None
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {shown(value)}; {remedy}.") from None
    if not np.isfinite(result):
        raise ValueError(f"{name} is {shown(value)}; {remedy}.")
    return result


def flag(value: Any, name: str) -> bool:
    """A truth value."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {shown(value)}; give True or False.")
    return bool(value)


def shown(value: Any) -> str:
    """Short text for any value; whole numbers of thousands of digits have none of their own."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"a whole number of {value.bit_length()} bits"
    return reprlib.repr(value) if isinstance(value, list | tuple | dict | set | str | bytes) else repr(value)
