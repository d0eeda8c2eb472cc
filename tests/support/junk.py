"""What people hand to a function by mistake, and what may come of it.

One argument of a call that works is replaced. Either the function refuses with a documented error that names the argument, or
it returns a result without a NaN in it; nothing the caller owns is changed, and nothing takes long.
"""

from __future__ import annotations

import copy
import datetime
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from types import FrameType
from typing import Any

import numpy as np
import xarray as xr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SECONDS = 60
SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
FEW = settings(SETTINGS, max_examples=8)

THINGS: list[Any] = [
    None, True, 0, -1, 2, 10**400, -(10**20), 0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e-320, 1e308, 1j,
    1e-160, 4e152, 1e160,
    "", "text", "nan", "1.0", b"1", (), [], {}, set(), [None], [[]], [[1.0], [1.0, 2.0]], {"a": 1.0}, {1: 2.0}, {"": None},
    [1.0, "x"], ["z", "z"], [np.nan], range(3), object(), Decimal("0.5"), Fraction(1, 3), datetime.date(2020, 1, 1), len,
    np.float32(0.5), np.int8(3), np.bool_(True), np.array(0.5), np.array(3), np.array([]), np.array([], dtype=object),
    np.array([1j, 2.0]), np.array(["1", "x"]), np.array([None, 1.0]), np.array([Decimal(1)]), np.zeros((2, 3)),
    np.zeros((0, 3)), np.zeros((2, 2, 2)), np.full(3, np.nan), np.full(4, np.inf), np.array(["2020-01-01"], "M8[D]"),
    np.ma.masked_array([1.0, 2.0], [True, False]), np.arange(3, dtype=">i2"), np.ones(3, dtype="<f4"), slice(None), ...,
    xr.DataArray([1.0, np.nan], dims="q"), xr.Dataset(), np.longdouble(2),
]  # fmt: skip


def things() -> st.SearchStrategy[Any]:
    """Anything at all; often an array of the wrong kind."""
    numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(10**30), 10**30) | st.text(max_size=4)
    arrays = hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.dtype(">f8"), np.complex128, np.bool_]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    )
    return st.sampled_from(THINGS).map(copied) | numbers | arrays | st.lists(numbers, max_size=5)


def copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except TypeError:
        return value


def variants(array: np.ndarray) -> st.SearchStrategy[Any]:
    """The same numbers stored in another way: all of these have to give the same result."""

    def read_only(a: np.ndarray) -> np.ndarray:
        a = a.copy()
        a.flags.writeable = False
        return a

    def strided(a: np.ndarray) -> np.ndarray:
        wide = np.full((2 * a.shape[0], *a.shape[1:]), 7.0)
        wide[::2] = a
        return wide[::2]

    forms: list[Callable[[np.ndarray], Any]] = [
        read_only,
        strided,
        np.asfortranarray,
        lambda a: a[::-1].copy()[::-1],
        lambda a: a.astype(">f8"),
        lambda a: a.tolist(),
        lambda a: a.astype(object),
        lambda a: xr.DataArray(a),
        lambda a: a.astype(np.longdouble),
        lambda a: np.ma.masked_array(a, np.zeros(a.shape, bool)),
    ]
    return st.sampled_from(forms).map(lambda f: f(np.array(array)))


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose warnings for the user are ignored; those about bad numbers stay errors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return function(*args, **kwargs)

    return call


@contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    """A call that hangs is an error."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def snapshot(value: Any) -> Any:
    """Something to compare a value with later."""
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tobytes() if value.dtype != object else repr(value.tolist()))
    if isinstance(value, xr.DataArray | xr.Dataset):
        return value.copy(deep=True).to_dict()
    if isinstance(value, xr.DataTree):
        return {path: snapshot(node) for path, node in value.to_dict().items()}
    if isinstance(value, Mapping):
        return {repr(k): snapshot(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [snapshot(v) for v in value]
    return repr(value) if isinstance(value, int | float | complex | str | bytes) else id(value)


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


def finite(result: Any) -> bool:
    """Whether all numbers of a result are finite."""
    if isinstance(result, xr.DataTree):
        return all(finite(node.to_dataset()) for node in result.subtree)
    if isinstance(result, xr.Dataset):
        return all(finite(result[v].values) for v in result)
    if isinstance(result, Mapping):
        return all(finite(v) for v in result.values())
    array = np.asarray(result)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def harmless(result: Any) -> bool:
    """Whether a result has a text, and all its numbers, if it has any, are finite."""
    numbers = {f.name: getattr(result, f.name) for f in fields(result)} if is_dataclass(result) else result
    return len(repr(result)) > 0 and finite(numbers)


@dataclass(frozen=True)
class Late:
    """An argument that takes long to make: made when it is first needed."""

    make: Callable[[], Any]


@dataclass(frozen=True)
class Entry:
    """A call that works; ``names`` are other words an error about an argument may use."""

    call: Callable[..., Any]
    good: dict[str, Any]
    check: Callable[[Any], bool] = harmless
    errors: tuple[type[Exception], ...] = (ValueError, TypeError)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def probe(self, argument: str, value: Any) -> Any:
        """Call with one argument replaced."""
        arguments = {k: v.make() if isinstance(v, Late) else v for k, v in (self.good | {argument: value}).items()}
        before = snapshot(arguments)
        try:
            with in_time():
                result = self.call(**arguments)
        except self.errors as error:
            words = (argument, *self.names.get(argument, ()))
            named = any(re.search(rf"(?<!\w){re.escape(w)}(?!\w)", str(error)) for w in words)
            assert named, f"{argument}={value!r}: the message names no argument: {type(error).__name__}: {error}"
            result = None
        else:
            assert self.check(result), f"{argument}={value!r} gave {result!r}"
        assert same(before, snapshot(arguments)), f"{argument}={value!r} was changed"
        return result
