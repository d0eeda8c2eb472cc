"""What the figures share: axes, colours, and curves that stay small however long the record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pm_sysid.doors import number, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

type FloatArray = NDArray[np.float64]
type AxesArray = NDArray[np.object_]
type Panels = Axes | Sequence[Axes] | AxesArray | None

DATA, MODEL, TRUTH, PRIOR = "0.25", "#0072B2", "#D55E00", "0.45"  # distinct in grey and to the colour-blind
RUNS = 1000
_LONG = 5000  # samples: longer curves are drawn as their extremes in RUNS runs
_DOTTED = 250  # samples: in shorter views the data are dots


def panels(name: str, given: Panels, shapes: Sequence[tuple[int, int]], figsize: tuple[float, float], **grid: Any) -> AxesArray:
    """Arrange the given axes in the first shape that fits, or make a figure in the first shape."""
    if given is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError('plots need matplotlib; install it with: pip install "pm_sysid[plots]"') from error
        _, axes = pyplot.subplots(*shapes[0], figsize=figsize, squeeze=False, layout="constrained", **grid)
        return np.asarray(axes, dtype=object)
    counts = " or ".join(str(math.prod(shape)) for shape in reversed(shapes))
    try:
        array = np.array(given, dtype=object, ndmin=1)
    except (TypeError, ValueError):
        array = np.array([None])
    if not all(hasattr(a, "plot") and hasattr(a, "set_xlabel") for a in array.flat):
        raise TypeError(f"{name} is {type(given).__name__}; it must hold {counts} matplotlib axes")
    for shape in shapes:
        if array.size == math.prod(shape):
            return array.reshape(shape)
    raise ValueError(f"{name} must hold {counts} matplotlib axes, but holds {array.size}")


def size(figsize: Any) -> tuple[float, float] | None:
    """Size of a figure in inches, if it is given."""
    if figsize is None:
        return None
    try:
        width, height = (number(v, "figsize") for v in figsize)
    except (TypeError, ValueError):
        width = height = 0.0
    if not (0.1 <= width <= 1000 and 0.1 <= height <= 1000):
        raise ValueError(f"figsize is {shown(figsize)}; give width and height in inches, such as (6.0, 4.0)")
    return width, height


def interval(value: Any, name: str) -> tuple[float, float] | None:
    """First and last time of a part, if it is given; either may be infinite."""
    if value is None:
        return None
    try:
        low, high = (v if isinstance(v, float) and math.isinf(v) else number(v, name) for v in value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {shown(value)}; give its first and last time in seconds, such as (0.0, 1.5)") from None
    return low, high


def probability(value: Any, name: str) -> float:
    """A probability."""
    found = number(value, name, "give a probability between 0 and 1")
    if not 0 < found < 1:
        raise ValueError(f"{name} must lie between 0 and 1, but is {shown(value)}")
    return found


def values_of(value: Any, name: str, count: int | None = None) -> FloatArray:
    """A series of finite numbers."""
    try:
        kind = np.asarray(value).dtype.kind
        array = np.asarray(value, dtype=float) if kind in "biuf" else np.empty(0)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all() or count not in (None, array.size):
        raise ValueError(f"{name} is {shown(value)}; give an array of {count or 'some'} finite numbers")
    return array


def known(truth: Any) -> dict[str, float]:
    """True values of scalar parameters by name, if they are given."""
    if truth is None:
        return {}
    if not isinstance(truth, Mapping):
        raise TypeError(f"truth is {shown(truth)}; give a dict of numbers by name")
    return {name: number(value, f"truth[{name!r}]") for name, value in truth.items()}


def draw_data(ax: Axes, t: FloatArray, x: FloatArray, lw: float, markersize: float = 3.5, **style: Any) -> None:
    """Draw measurements: dots where they can be told apart, else a line."""
    if len(t) <= _DOTTED:
        ax.plot(t, x, ls="none", marker=".", markersize=markersize, **style)
    else:
        draw_line(ax, t, x, lw=lw, **style)


def draw_line(ax: Axes, t: FloatArray, x: FloatArray, **style: Any) -> None:
    """Draw a curve."""
    keep = _extremes(x) if len(x) > _LONG else slice(None)
    ax.plot(t[keep], x[keep], **style)


def draw_band(ax: Axes, t: FloatArray, low: FloatArray, high: FloatArray, **style: Any) -> None:
    """Fill between two curves, behind the others."""
    if len(t) > _LONG:
        starts = np.arange(0, len(t), math.ceil(len(t) / RUNS))
        middles = (starts + np.append(starts[1:], len(t)) - 1) // 2
        t, low, high = t[middles], np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
    ax.fill_between(t, low, high, linewidth=0, zorder=1, **style)


def _extremes(x: FloatArray) -> NDArray[np.int_]:
    """Find, in order, the smallest and the largest value of each of `RUNS` runs; NaN only if all are."""
    width = math.ceil(len(x) / RUNS)
    runs = np.pad(x, (0, -len(x) % width), constant_values=np.nan).reshape(-1, width)
    least = np.where(np.isnan(runs), np.inf, runs).argmin(axis=1)
    most = np.where(np.isnan(runs), -np.inf, runs).argmax(axis=1)
    return (np.sort(np.stack([least, most], axis=1)) + np.arange(len(runs))[:, None] * width).ravel()
