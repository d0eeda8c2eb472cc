"""Checks of what a record is made of: times, channels and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

type FloatArray = NDArray[np.float64]
type Names = str | Sequence[str] | None


def read_only(array: FloatArray) -> FloatArray:
    """Lock an array against writing."""
    array.flags.writeable = False
    return array


def real(value: Any, name: str, *, copy: bool = True) -> FloatArray:
    """Float64 array of real numbers; masked elements become NaN."""
    try:
        array = np.asanyarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is ragged; give every sample the same number of channels") from error
    except TypeError as error:
        raise TypeError(f"{name} is {type(value).__name__}; give an array of numbers") from error
    if array.dtype.kind not in "biuf":
        seconds = "pass seconds from the start" if array.dtype.kind in "mM" else "pass floating-point numbers"
        raise TypeError(f"{name} must hold real numbers, but its dtype is {array.dtype}; {seconds}")
    with np.errstate(over="ignore"):  # of extended precision: infinite, which is for the caller to refuse
        return np.array(np.ma.filled(array.astype(np.float64, copy=copy), np.nan), copy=copy or None)


def refuse(bad: NDArray[np.bool_], values: FloatArray, name: str, expected: str, remedy: str) -> None:
    """Raise at the first element that is marked bad."""
    if bad.any():
        where = np.argwhere(bad)[0].tolist()
        raise ValueError(f"{name} must be {expected}, but {name}{where} is {values[tuple(where)]}; {remedy}")


def named(given: Names, argument: str) -> tuple[str, ...]:
    """Names of channels as a tuple; empty where there are none."""
    if given is None or isinstance(given, str):
        return () if given is None else (given,)
    try:
        names = tuple(given)
    except TypeError:
        raise TypeError(f"{argument} is {given!r}; give a name, or a sequence of names") from None
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{argument} must be distinct, non-empty names, but is {given!r}")
    return names


def times(value: ArrayLike) -> FloatArray:
    """Finite, strictly increasing sample times, read-only."""
    t = real(value, "t")
    if t.ndim != 1 or t.size == 0:
        raise ValueError(f"t must have shape (T,) with T >= 1, but has {t.shape}; pass one time per sample")
    refuse(~np.isfinite(t), t, "t", "finite", "drop the samples without a time")
    if (back := np.flatnonzero(np.diff(t) <= 0)).size:
        k = int(back[0]) + 1
        raise ValueError(
            f"t must increase strictly, but t[{k}] = {t[k]} follows t[{k - 1}] = {t[k - 1]}; "
            "sort the samples by time and drop repeated times"
        )
    return read_only(t)


def channels(data: str, value: Any, argument: str, given: Names, size: int) -> tuple[FloatArray | None, tuple[str, ...]]:
    """Values in the shape they were given, and the names of their channels."""
    names = named(given, argument)
    if value is None:
        if names:
            raise ValueError(f"{argument} is {names}, but {data} is None; pass {data}, or drop {argument}")
        return None, ()
    columns = tuple(getattr(value, "columns", ()))
    # Of a DataFrame whose columns have names, these say which is which; other names than these are new ones, in order.
    distinct = len(set(columns)) == len(columns)
    if columns and distinct and all(isinstance(c, str) for c in columns) and (not names or set(names) & set(columns)):
        value = {name: value[name] for name in columns}
    if isinstance(value, Mapping):
        names = names or tuple(value)
        if set(names) != set(value):
            raise ValueError(f"{argument} is {names}, but {data} has {tuple(value)}; name the same channels")
        series = [real(value[name], f"{data}[{name!r}]") for name in names]
        for name, column in zip(names, series, strict=True):
            if column.shape != (size,):
                raise ValueError(f"{data}[{name!r}] must have shape ({size},) like t, but has {column.shape}")
        values = np.stack(series, axis=1) if series else np.empty((size, 0))
    else:
        values = real(value, data)
    if values.ndim not in (1, 2) or len(values) != size:
        remedy = f"pass {data}.T" if values.shape[1:] == (size,) else "give one row per time"
        raise ValueError(f"{data} must have shape ({size},) or ({size}, n), but has {values.shape}; {remedy}")
    count = 1 if values.ndim == 1 else values.shape[1]
    if count == 0:
        raise ValueError(f"{data} has no channels; pass {data}=None instead")
    names = names or ((data,) if count == 1 else tuple(f"{data}{i + 1}" for i in range(count)))
    if len(names) != count:
        raise ValueError(f"{argument} is {names}, but {data} has {count} channels; name each of them")
    if len(set(names)) < count or not all(isinstance(n, str) and n not in ("", "time") for n in names):
        raise ValueError(f'{argument} must be distinct, non-empty names other than "time", but is {names}')
    return read_only(values), names


def column(table: Any, name: str) -> Any:
    """Take a column of a table, or say which there are."""
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"there is no column {name!r}; there are {', '.join(map(str, table))}")
    return table[name]


def pandas_module() -> Any:
    """Import pandas where it is needed."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("a DataFrame needs pandas; install it, or use arrays or xarray") from error
    return pandas
