"""States of a posterior drawn over time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pm_sysid.arguments import shown, whole, words
from pm_sysid.plots.axes import (
    DATA,
    MODEL,
    TRUTH,
    AxesArray,
    FloatArray,
    Interval,
    Panels,
    TimeViews,
    draw_band,
    draw_data,
    draw_line,
    panels,
    shared_legend,
)
from pm_sysid.records.units import with_unit

#: Variables of what may be a process by their dimensions, and what stands before their names.
PROCESSES = {"input": ("inputs", ""), "parameter": ("parameters", ""), "coloured": ("coloured_noise", "noise ")}
_QUANTILES = (0.03, 0.5, 0.97)
_NORMAL = 1.880794  # standard deviations to either side that hold 94 %


class _Curves(NamedTuple):
    """What a panel shows: limits and centre of the draws, measurements, true values (T,)."""

    label: str
    centre: str
    low: FloatArray
    middle: FloatArray
    high: FloatArray
    measured: FloatArray | None
    truth: FloatArray | None


def plot_states(
    states: xr.Dataset,
    *,
    record: int | None = None,
    truth: Mapping[str, ArrayLike] | xr.Dataset | None = None,
    var_names: str | Sequence[str] | None = None,
    zoom: Interval | None = None,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw states over time: median and 94 % interval over draws, what was measured, what was true.

    Parameters
    ----------
    states : xarray.Dataset
        What `sample_states` returned; or `smooth`, of which the mean is drawn, and an interval that holds what varies
        within and between draws.
    record : int, optional
        Number of the record, from 0; may be left out if there is one.
    truth : mapping of name to shape (T,), or Dataset, optional
        True values by the names below, as `simulate` returns them.
    var_names : str or sequence of str, optional
        What to draw, a row each: a state such as ``"v"``, a derivative such as ``"dx.v"``, an output, an input or parameter
        that is a process, or the coloured noise of an output, such as ``"noise y"``. By default the states, the processes, and
        the outputs that are not just one of the states. A state or derivative that is an output is drawn with its measurements.
    zoom : (float, float), optional
        First and last time, in seconds, of an enlargement to the right.
    axes, figsize : array of matplotlib axes; (float, float); optional
        Where to draw: a row a variable, with `zoom` two columns; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (rows,), or (rows, 2) with `zoom`
        Outputs, and states that are one, have the units of the record. The number above a row is half the width of its
        interval, averaged over time.

    Raises
    ------
    ValueError
        If there is no such variable or record, lengths do not match, or an interval holds no sample.

    Warns
    -----
    UserWarning
        If draws are not finite; they are left out.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> draws = np.random.default_rng(0).normal(size=(1, 50, 4, 1))
    >>> dims = ("chain", "draw", "time")
    >>> coords = {
    ...     "time": [0.0, 0.1, 0.2, 0.3],
    ...     "state": ["z"],
    ...     "output": ["y"],
    ...     "shows": ("output", ["z"]),
    ... }
    >>> variables = {"states": ((*dims, "state"), draws), "outputs": ((*dims, "output"), draws)}
    >>> (panel,) = plot_states(
    ...     xr.Dataset(variables, coords), truth={"z": [0.0, 0.1, 0.0, -0.1]}
    ... )
    >>> panel.get_ylabel(), panel.get_xlabel()
    ('z', 'time (s)')
    """
    if not isinstance(truth, Mapping | xr.Dataset | None):
        raise TypeError(f"truth is {shown(truth)}; give a dict of arrays by name")
    data = _one_record(states, record)
    t = np.asarray(data["time"], dtype=float)
    rows = [_curves(data, name, {} if truth is None else truth) for name in _names(data, var_names)]
    views = TimeViews.of(t, zoom)
    shape = (len(rows), len(views.slices))
    grid = panels(axes, [shape], figsize, (7.2 if views.zoom else 5.5, 0.5 + 1.35 * len(rows)), **views.grid)
    for line, curves in zip(grid, rows, strict=True):
        for panel, view in zip(line, views.slices, strict=True):
            _draw(panel, t[view], curves, view)
        line[0].set_ylabel(curves.label)
        half = np.mean(curves.high - curves.low) / 2
        line[0].set_title(f"94 %: ± {half:.2g}", loc="right", fontsize="small", pad=3)
    grid[0, 0].figure.align_ylabels(grid[:, 0])
    shared_legend(grid, axes, "outside upper left", ncols=4, handlelength=1.4, columnspacing=1.2)
    return views.finish(grid, axes)


def _draw(ax: Any, t: FloatArray, curves: _Curves, view: slice) -> None:
    """One panel: the measurements under the curves, the truth on top."""
    if curves.measured is not None:
        draw_data(ax, t, curves.measured[view], color=DATA, lw=2.0, alpha=0.55, label="measured", zorder=2)
    draw_band(ax, t, curves.low[view], curves.high[view], color=MODEL, alpha=0.35, label="94 % interval")
    draw_line(ax, t, curves.middle[view], color=MODEL, lw=0.9, label=curves.centre, zorder=3)
    if curves.truth is not None:
        draw_line(ax, t, curves.truth[view], color=TRUTH, lw=0.9, ls=(0, (4, 3)), label="truth", zorder=4)
    ax.margins(x=0)
    ax.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)


def _one_record(states: xr.Dataset, record: int | None) -> xr.Dataset:
    """Part of a dataset that is one record."""
    if not isinstance(states, xr.Dataset) or "states" not in states:
        raise ValueError(f"states is {type(states).__name__} without states; give what sample_states or smooth returned")
    if "record" not in states.coords:
        if record is not None and not whole(record, 0, 0):
            raise ValueError(f"record is {record!r}, but there is one record; leave it out")
        return states
    numbers = np.unique(states["record"])
    if not whole(record, 0) or record not in numbers:
        raise ValueError(f"record is {record!r}; choose one of {', '.join(map(str, numbers))}")
    return states.isel(time=np.flatnonzero(states["record"] == record))


def _names(data: xr.Dataset, names: str | Sequence[str] | None) -> list[str]:
    """Variables to draw, all of which exist."""
    states, outputs = ([str(v) for v in data[d].to_numpy()] for d in ("state", "output"))
    driven = list(_processes(data))
    if names is None:
        return [*states, *driven, *(o for o in outputs if _shown(data, o) not in states and o not in states)]
    chosen = words(names, "var_names")
    known = list(dict.fromkeys([*states, *driven, *(f"dx.{s}" for s in states), *outputs]))
    if not chosen or not set(chosen) <= set(known):
        raise ValueError(f"var_names is {names!r}; choose from {', '.join(known)}")
    return chosen


def _processes(data: xr.Dataset) -> dict[str, tuple[str, dict[str, str]]]:
    """Variable of each process by its name in the figure, and where in it."""
    return {
        f"{prefix}{v}": (variable, {d: str(v)})
        for d, (variable, prefix) in PROCESSES.items()
        if d in data.coords
        for v in data[d].to_numpy()
    }


def _shown(data: xr.Dataset, output: str) -> str:
    """State or derivative that an output is; empty if it is neither."""
    return str(data["shows"].sel(output=output).item())


def _curves(data: xr.Dataset, name: str, truth: Mapping[Any, ArrayLike]) -> _Curves:
    """Middle and limits of a variable, its measurements and true values."""
    outputs = [str(o) for o in data["output"].to_numpy()]
    if name in data["state"]:
        group, place = "states", {"state": name}
    elif name in outputs:
        group, place = "outputs", {"output": name}
    elif name in (processes := _processes(data)):
        group, place = processes[name]
    else:
        group, place = "derivatives", {"state": name.removeprefix("dx.")}

    def draws(variable: str) -> FloatArray:
        chosen = data[variable].sel(place).transpose(..., "time")
        return np.asarray(chosen, dtype=float).reshape(-1, data.sizes["time"])

    x = draws(group)
    fine = np.isfinite(x).all(axis=1)
    if not fine.any():
        raise ValueError(f"states has no draw of {name!r} that is finite")
    if not fine.all():
        warnings.warn(f"{(~fine).sum()} of {len(x)} draws of {name!r} are not finite and left out", stacklevel=3)
    if f"{group}_std" in data:  # a mixture of normal distributions, by its first two moments
        middle = x[fine].mean(axis=0)
        half = _NORMAL * np.sqrt(x[fine].var(axis=0) + np.mean(draws(f"{group}_std")[fine] ** 2, axis=0))
        low, high, centre = middle - half, middle + half, "mean"
    else:
        centre = "median"
        low, middle, high = np.quantile(x[fine], _QUANTILES, axis=0)
    shows = [o for o in outputs if (o == name and group == "outputs") or _shown(data, o) == name]
    measured = np.asarray(data["measured"].sel(output=shows[0]), dtype=float) if shows and "measured" in data else None
    label = f"d{name.removeprefix('dx.')}/dt" if group == "derivatives" else name
    if shows and "units" in data.coords:
        label = with_unit(label, str(data["units"].sel(output=shows[0]).item()))
    true = None
    if name in truth:
        true = np.asarray(truth[name], dtype=float)
        if true.shape != middle.shape:
            raise ValueError(f"truth[{name!r}] must have shape {middle.shape}, but has {true.shape}; give a value a sample")
    return _Curves(label, centre, low, middle, high, measured, true)
