"""What the figures share: panels, choices, colours, legends, and curves that stay small however long the record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pm_sysid.arguments import number, shown, whole, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

type FloatArray = NDArray[np.float64]
type AxesArray = NDArray[np.object_]
type Interval = tuple[float, float]
type Panels = Axes | Sequence[Axes] | AxesArray | None

DATA, MODEL, TRUTH, PRIOR = "0.25", "#0072B2", "#D55E00", "0.45"  # distinct in grey and to the colour-blind
# Okabe and Ito: distinct to the colour-blind.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#999999")
RUNS = 1000
#: Shortest duration in seconds that is told in a unit of time, the unit in seconds, its symbol; and the largest number of it.
UNITS_OF_TIME = (
    (7 * 86400.0, 86400.0, "d"), (3 * 3600.0, 3600.0, "h"), (0.01, 1.0, "s"), (1e-5, 1e-3, "ms"), (1e-12, 1e-6, "µs"),
)  # fmt: skip
LARGEST = 1e4
_BETWEEN = 0.08  # inches on each side of a panel: numbers of neighbours stand apart
_MOST_PARAMETERS = 12
_LONG = 5000  # samples: longer curves are drawn as their extremes in RUNS runs
_DOTTED = 250  # samples: in shorter views the data are dots


def panels(
    given: Panels,
    shapes: Sequence[tuple[int, int]],
    figsize: Any,
    default: tuple[float, float],
    **grid: Any,
) -> AxesArray:
    """Arrange the given axes in the first shape that fits, or make a figure in the first shape.

    The figure has the size that the user gave (`figsize`), or the default one, in inches.
    """
    inches = size(figsize) or default
    if given is None:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(*shapes[0], figsize=inches, squeeze=False, layout="constrained", **grid)
        figure.get_layout_engine().set(w_pad=_BETWEEN)  # type: ignore[union-attr, call-arg]
        return np.asarray(axes, dtype=object)
    counts = " or ".join(str(math.prod(shape)) for shape in reversed(shapes))
    try:
        array = np.array(given, dtype=object, ndmin=1)
    except (TypeError, ValueError):
        array = np.array([None])
    if not all(hasattr(a, "plot") and hasattr(a, "set_xlabel") for a in array.flat):
        raise TypeError(f"axes is {type(given).__name__}; it must hold {counts} matplotlib axes")
    for shape in shapes:
        if array.size == math.prod(shape):
            return array.reshape(shape)
    raise ValueError(f"axes must hold {counts} matplotlib axes, but holds {array.size}")


def one_panel(axes: Axes | None, figsize: Any, default: tuple[float, float]) -> Axes:
    """The given axes, or those of a new figure."""
    only: Axes = panels(axes, [(1, 1)], figsize, default)[0, 0]
    return only


def parameter_panels(axes: Panels, count: int, figsize: Any, width: float, **grid: Any) -> tuple[AxesArray, int]:
    """Panels of a width for `count` parameters, at most four in a row, and the number of columns."""
    rows = math.ceil(count / 4)
    columns = math.ceil(count / rows)
    shapes = [(rows, columns)] if axes is None else [(1, count)]
    made = panels(axes, shapes, figsize, (max(width * columns, 3.0), 1.9 * rows + 0.3), **grid)
    return without_spare(made.ravel(), count), columns


def without_spare(axes: AxesArray, count: int) -> AxesArray:
    """The first `count` axes of a row; the others are made invisible."""
    used, spare = np.split(axes, [count])
    for panel in spare:
        panel.set_axis_off()
    return used


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


def interval(value: Any, name: str) -> Interval | None:
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


def chosen_parameters(scalar: Sequence[str], var_names: Any, truth: Mapping[str, Any], missing: str) -> list[str]:
    """Scalar parameters to draw: those that were named, or the first twelve.

    `missing` is what an error says of a name, chosen or in `truth`, that there is not; it shows the name at ``{}``.
    """
    names = list(scalar[:_MOST_PARAMETERS]) if var_names is None else words(var_names, "var_names")
    if unknown := [name for name in [*names, *truth] if name not in scalar]:
        raise ValueError(missing.format(repr(unknown[0])))
    return names


def chain_number(chain: Any, count: int) -> int:
    """Number of a chain, counted from 0."""
    if not whole(chain, 0, count - 1):
        raise ValueError(f"chain is {shown(chain)}; there are {count}, counted from 0.")
    return int(chain)


def between(t: FloatArray, limits: Interval | None, name: str) -> slice:
    """Samples within an interval of time; all of them if there is none."""
    if limits is None:
        return slice(None)
    start, stop = np.searchsorted(t, limits[0], "left"), np.searchsorted(t, limits[1], "right")
    if stop - start < 2:
        raise ValueError(f"{name} must hold at least two samples of {t[0]:g} to {t[-1]:g} s, but is {limits}")
    return slice(int(start), int(stop))


class TimeViews(NamedTuple):
    """Columns of a figure over time: the whole record and, if there is one, its enlargement."""

    zoom: Interval | None
    slices: list[slice]
    t: FloatArray

    @classmethod
    def of(cls, t: FloatArray, zoom: Any) -> TimeViews:
        """Views of samples at times `t`."""
        zoom = interval(zoom, "zoom")
        return cls(zoom, [slice(None)] if zoom is None else [slice(None), between(t, zoom, "zoom")], t)

    @property
    def grid(self) -> dict[str, Any]:
        """Options of :func:`panels`."""
        return {"sharex": "col", "width_ratios": (1.6, 1)[: len(self.slices)]}

    def finish(self, axes: AxesArray, given: Panels) -> AxesArray:
        """Label the times, mark what is enlarged, and return the axes as a user gets them."""
        for panel in axes[-1]:
            time_axis(panel, self.t, given)
        if self.zoom is None:
            return axes[:, 0]
        for panel in axes[:, 0]:
            panel.axvspan(*self.zoom, color="0.9", lw=0, zorder=0)
        return axes


def unit_of_time(t: FloatArray) -> tuple[float, str]:
    """Unit in which times in seconds are numbers that are easily read, in seconds, and its symbol."""
    duration, latest = (float(np.ptp(t)), float(np.max(np.abs(t)))) if len(t) else (0.0, 0.0)
    for shortest, unit, symbol in UNITS_OF_TIME:
        if duration >= shortest and latest <= LARGEST * unit:
            return unit, symbol
    return 1.0, "s"


def time_axis(ax: Axes, t: FloatArray, given: Panels, label: bool = True) -> None:
    """Label an axis of times ``t`` in seconds, with numbers in a unit that suits them; the data stay in seconds.

    Axes that a user has ``given`` are in seconds, since other curves on them may be.
    """
    unit, symbol = unit_of_time(t) if given is None else (1.0, "s")
    if label:
        ax.set_xlabel(f"time ({symbol})")
    if unit != 1.0:
        from pm_sysid.plots.ticks import InUnit, RoundNumbers

        ax.xaxis.set_major_locator(RoundNumbers(unit))
        ax.xaxis.set_major_formatter(InUnit(unit))


def shared_legend(axes: AxesArray, given: Panels, loc: str, **style: Any) -> None:
    """One legend for all panels: outside of them in a figure of our own, else in the first."""
    handles = {label: handle for p in axes.flat for handle, label in zip(*p.get_legend_handles_labels(), strict=True)}
    options = {"fontsize": "small", "frameon": False, **style}
    first: Axes = axes.ravel()[0]
    if given is None:
        first.figure.legend(handles.values(), handles, loc=loc, **options)  # type: ignore[arg-type]
    else:
        first.legend(handles.values(), handles, **options)  # type: ignore[arg-type]


def mark_truth(ax: Axes, value: float, along: Literal["x", "y"] = "y") -> None:
    """Draw a line at a known value on an axis."""
    (ax.axhline if along == "y" else ax.axvline)(value, color=TRUTH, lw=1, ls="--", label="truth")


def draw_data(ax: Axes, t: FloatArray, x: FloatArray, lw: float, markersize: float = 3.5, **style: Any) -> None:
    """Draw measurements: dots where they can be told apart, else a line, of which those without neighbours would be no part."""
    there = ~np.isnan(x)
    if there.sum() <= _DOTTED:
        ax.plot(t, x, ls="none", marker=".", markersize=markersize, **style)
        return
    draw_line(ax, t, x, lw=lw, **style)
    around = np.concatenate([[False], there, [False]])
    alone = there & ~around[:-2] & ~around[2:]
    if alone.any():
        ax.plot(t[alone], x[alone], ls="none", marker=".", markersize=markersize, **{**style, "label": None})


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


def logarithmic(ax: Axes, which: Literal["x", "y"] = "y") -> None:
    """A logarithmic scale with plain numbers, at 1, 2 and 5 of each decade if these are few; powers of ten if they are many."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = axis.get_view_interval()
    if 1e-3 <= low and high < 1e5 and high < 1e6 * low:
        parts = [1.0] if high > 1e3 * low else [1.0, 2.0, 5.0] if high > 4 * low else [float(i) for i in range(1, 10)]
        axis.set_major_locator(LogLocator(subs=parts))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
