"""What the figures share: axes, colours, and curves that stay small however long the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    array = np.array(given, dtype=object, ndmin=1)
    for shape in shapes:
        if array.size == math.prod(shape):
            return array.reshape(shape)
    counts = " or ".join(str(math.prod(shape)) for shape in reversed(shapes))
    raise ValueError(f"{name} must hold {counts} matplotlib axes, but holds {array.size}")


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
