"""Predictions drawn over the record."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pm_sysid.arguments import among
from pm_sysid.idata import labelled
from pm_sysid.plots.axes import (
    DATA,
    MODEL,
    AxesArray,
    FloatArray,
    Interval,
    Panels,
    TimeViews,
    between,
    draw_band,
    draw_data,
    draw_line,
    interval,
    panels,
    probability,
)
from pm_sysid.records.metrics import fit_percent, rmse, same_times, time_dimension
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import with_unit

# The data lie under the prediction, and stand out on both sides of it; their residual lies on top.
_DATA_STYLES: tuple[dict[str, Any], ...] = ({"lw": 2.0, "alpha": 0.7}, {"lw": 0.6, "markersize": 2.0, "zorder": 4})


def plot_fit(
    record: TimeSeries,
    prediction: ArrayLike | xr.DataArray | xr.Dataset,
    *,
    output: str | None = None,
    window: Interval | None = None,
    hdi: float = 0.94,
    zoom: Interval | None = None,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw a measured output, the median and spread of its predictions, and below them what the median misses.

    The root mean square error and the fit of MATLAB's ``compare`` are those of the median within `window`.

    Parameters
    ----------
    record : TimeSeries
        The record, with outputs; T samples.
    prediction : array_like, DataArray or Dataset, shape (..., T) or (..., T, n_y)
        Predictions at the times of the record, which a time coordinate must agree with, in units of the output; the leading
        dimensions, such as chain and draw, are pooled. A Dataset has a variable per output, as `simulate` returns it: of the
        name in the record, or of the one that a system gives an output without a name. Draws that are not finite are left
        out with a warning.
    output : str, optional
        Name of the output; may be left out if the record has one.
    window : (float, float), optional
        First and last time, in seconds, to draw and to score; by default the whole record.
    hdi : float
        Probability between the limits of the band, which cuts off equal tails. The band holds what varies
        between the draws: without measurement noise in them, the measurements may lie outside.
    zoom : (float, float), optional
        First and last time, in seconds, of an enlargement to the right.
    axes, figsize : matplotlib axes, or an array of them; (float, float); optional
        Where to draw: a row of axes for the fit and, if there are twice as many, one for the residual; or the width
        and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (2,), or (2, 2) with `zoom`
        Rows fit and residual, columns record and enlargement.

    Raises
    ------
    ValueError
        If there is no such output, shapes or times do not match, or an interval holds no sample.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> record = TimeSeries([0.0, 0.1, 0.2], y=[0.0, 1.0, 0.5], outputs="z")
    >>> fit, residual = plot_fit(record, [[0.1, 1.0, 0.4], [0.0, 0.9, 0.5]])
    >>> fit.get_ylabel(), residual.get_xlabel()
    ('z', 'time (s)')
    """
    if not isinstance(record, TimeSeries):
        raise TypeError(f"record is {type(record).__name__}; give a TimeSeries")
    hdi, window = probability(hdi, "hdi"), interval(window, "window")
    name, y = measured(record, output)
    draws = prediction_draws(record, prediction, name)
    inside = between(record.t, window, "window")
    t, y, draws = record.t[inside], y[inside], draws[:, inside]
    low, middle, high = np.quantile(draws, [(1 - hdi) / 2, 0.5, (1 + hdi) / 2], axis=0)
    views = TimeViews.of(t, zoom)
    shapes = [(rows, len(views.slices)) for rows in (2, 1)]
    grid = panels(axes, shapes, figsize, (7.2 if views.zoom else 5, 3.3), height_ratios=(2.4, 1), **views.grid)
    pooled, known = len(draws) > 1, bool(np.isfinite(y).any())
    for column, view in zip(grid.T, views.slices, strict=True):
        for panel, origin, data_style in zip(column, (0.0, middle), _DATA_STYLES, strict=False):
            below, centre, above, data = ((curve - origin)[view] for curve in (low, middle, high, y))
            if known:
                draw_data(panel, t[view], data, color=DATA, label="measured", **data_style)
            draw_line(panel, t[view], centre, color=MODEL, lw=0.8, zorder=3, label="median" if pooled else "prediction")
            if pooled:
                draw_band(panel, t[view], below, above, color=MODEL, alpha=0.35, label=f"{100 * hdi:g} % interval")
            panel.margins(x=0)
    unit = record.units.get(name)
    grid[0, 0].set_ylabel(with_unit(name, unit))
    score = f"RMSE {rmse(y, middle):.3g}{f' {unit}' if unit else ''}, fit {fit_percent(y, middle):.4g} %" if known else ""
    small = {"ncols": 3, "fontsize": "small", "frameon": False, "handlelength": 1.2, "columnspacing": 1.2}
    legend = grid[0, 0].legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1, **small)
    if len(grid) > 1:
        grid[1, 0].set_ylabel(with_unit("residual", unit), fontsize="small")
        grid[1, 0].set_title(score, loc="right", fontsize="small", pad=3)
    else:
        legend.set_title(score, prop={"size": "small"})
    return views.finish(grid, axes)


def measured(record: TimeSeries, output: str | None) -> tuple[str, FloatArray]:
    """Name and measurements (T,) of an output, which may be left out where there is one."""
    names = record.outputs
    if not names:
        raise ValueError("record has no outputs; pass a TimeSeries with y")
    if output is None and len(names) > 1:
        raise ValueError(f"record has the outputs {', '.join(names)}; choose one by output")
    name = names[0] if output is None else output
    if not among(name, names):
        raise ValueError(f"output must be one of {', '.join(names)}, but is {name!r}")
    return name, record.output_matrix[:, names.index(name)]


def prediction_draws(record: TimeSeries, prediction: Any, name: str) -> FloatArray:
    """Predictions of one output, shape (draws, T)."""
    if isinstance(prediction, xr.Dataset):
        variable = name
        if name not in prediction and name.partition("[")[0] not in prediction:
            there, i = list(map(str, prediction.data_vars)), record.outputs.index(name)
            variable = "y" if len(record.outputs) == 1 else f"y{i + 1}"  # what a system calls it that does not name it
            if there[i : i + 1] != [variable]:  # outputs stand before states
                raise ValueError(
                    f"prediction has no variable {name!r}; it has {', '.join(there)}: name the outputs of the record as the "
                    "system does, by record.replace(outputs=...)"
                )
        prediction = labelled(prediction, variable)
    if isinstance(prediction, xr.DataArray):
        time = time_dimension(prediction, "prediction")
        _check_times(record, prediction, time)
        for dim in [d for d in prediction.dims if name in prediction.coords.get(d, ())]:
            prediction = prediction.sel({dim: name})
        pooled = [dim for dim in prediction.dims if dim in ("chain", "draw", "sample")]
        prediction = prediction.transpose(*pooled, *(dim for dim in prediction.dims if dim not in pooled))
        if len(record.outputs) == 1 or prediction.ndim == len(pooled) + 1:
            prediction = prediction.transpose(..., time)
    try:
        real = np.asarray(prediction).dtype.kind in "biufO"
        values = np.asarray(prediction, dtype=float) if real else np.empty(0)
    except (TypeError, ValueError, OverflowError):
        real = False
    if not real:
        raise TypeError(f"prediction is {type(prediction).__name__}; give arrays of numbers")
    size, count = len(record), len(record.outputs)
    if values.shape[-1:] != (size,):
        if values.shape[-2:] != (size, count):
            expected = f"(..., {size}) or (..., {size}, {count})"
            raise ValueError(f"prediction must have shape {expected} to match record, but has {values.shape}")
        values = values[..., record.outputs.index(name)]
    draws = values.reshape(-1, size)
    finite = np.isfinite(draws).all(axis=1)
    if not finite.any():
        raise ValueError("prediction has no draw that is finite throughout; cut the record to where it is")
    if not finite.all():
        warnings.warn(f"{(~finite).sum()} of {len(draws)} predictions are not finite and left out", stacklevel=3)
    return draws[finite]


def _check_times(record: TimeSeries, prediction: xr.DataArray, time: str) -> None:
    """Refuse predictions at other times than the record's; where these are no numbers, or none are given, nobody knows."""
    if time not in prediction.coords or prediction[time].dtype.kind not in "iuf":
        return
    given = prediction[time].to_numpy()
    if len(given) == len(record) and not same_times(record.t, given):
        k = int(np.argmax(np.abs(given - record.t)))
        raise ValueError(
            f"prediction must be at the times of record, but sample {k} is at {given[k]:g} s and not at {record.t[k]:g} s; "
            "select the same window of both, or simulate over this record"
        )
