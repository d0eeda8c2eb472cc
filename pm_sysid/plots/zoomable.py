"""Fit and residuals over time as figures that zoom, drawn by plotly for pages of HTML."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr

from pm_sysid.plots.axes import COLOURS, FloatArray, unit_of_time
from pm_sysid.plots.fit import measured, prediction_draws
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import with_unit

_DARK, _MEASURED, _MODEL, _BAND = "#444444", "#999999", COLOURS[0], "rgba(0, 114, 178, 0.3)"
_MARKERS = 250  # samples: shorter records have dots


def need_plotly(what: str) -> None:
    """Refuse to draw figures that zoom without plotly."""
    if find_spec("plotly") is None:
        raise ImportError(f'{what} needs plotly; install it with: pip install "pm_sysid[plots]" (or: pip install plotly)')


def fit_over_time(record: TimeSeries, prediction: xr.Dataset, output: str, unit: str = "", hdi: float = 0.94) -> Any:
    """Measured output with the median and band of its predictions, and below them what the median misses.

    Every sample is in the figure, as single-precision numbers.
    """
    from plotly.subplots import make_subplots

    name, y = measured(record, output)
    unit_of_t, symbol = unit_of_time(record.t)
    t = record.t / unit_of_t
    draws = prediction_draws(record, prediction, name)
    low, middle, high = np.quantile(draws, [(1 - hdi) / 2, 0.5, (1 + hdi) / 2], axis=0)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.7, 0.3], vertical_spacing=0.06)
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    if len(draws) > 1:
        _add(figure, 1, t, low, showlegend=False, **edge)
        _add(figure, 1, t, high, fill="tonexty", fillcolor=_BAND, name=f"{100 * hdi:g} % interval", **edge)
    mode = "lines+markers" if len(y) <= _MARKERS else "lines"
    _add(figure, 1, t, y, name="measured", mode=mode, line={"color": _MEASURED, "width": 3})
    line = {"mode": "lines", "line": {"color": _MODEL, "width": 1.5}}
    _add(figure, 1, t, middle, name="median" if len(draws) > 1 else "prediction", **line)
    _add(figure, 2, t, y - middle, name="residual", showlegend=False, mode=mode, line={"color": _DARK, "width": 1})
    figure.update_yaxes(title_text=with_unit(name, unit), row=1)
    figure.update_yaxes(title_text=with_unit("residual", unit), row=2)
    return _finished(figure, 460, f"time ({symbol})")


def residuals_over_time(residuals: FloatArray, t: FloatArray | None) -> Any:
    """Standardised residuals, with lines at two standard deviations, over their times or numbers."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=1)
    line = {"mode": "lines+markers" if len(residuals) <= _MARKERS else "lines", "line": {"color": _MODEL, "width": 1}}
    times, label = np.arange(float(len(residuals))), "sample"
    if t is not None:
        unit, symbol = unit_of_time(t)
        times, label = t / unit, f"time ({symbol})"
    _add(figure, 1, times, residuals, name="residual", showlegend=False, **line)
    for level in (-2, 2):
        figure.add_hline(y=level, line={"color": _DARK, "width": 1, "dash": "dash"})
    figure.update_yaxes(title_text="residual / \N{GREEK SMALL LETTER SIGMA}")
    return _finished(figure, 280, label)


def _add(figure: Any, row: int, t: FloatArray, x: FloatArray, **style: Any) -> None:
    """A curve; NaN leaves a gap."""
    steps = np.diff(t)
    uniform = len(steps) and np.allclose(steps, steps[0], rtol=1e-6, atol=0.0)
    times = {"x0": float(t[0]), "dx": float((t[-1] - t[0]) / len(steps))} if uniform else {"x": t}
    figure.add_scatter(y=x.astype(np.float32), row=row, col=1, **times, **style)


def _finished(figure: Any, height: int, label: str) -> Any:
    """The figure with its axes and legend as those of matplotlib here."""
    axis = {"showline": True, "linecolor": _DARK, "mirror": True, "ticks": "outside", "zeroline": False}
    figure.update_xaxes(**axis)
    figure.update_yaxes(exponentformat="power", **axis)
    figure.update_xaxes(title_text=label, row=len(figure._grid_ref))
    legend = {"orientation": "h", "x": 1, "xanchor": "right", "y": -0.14, "yanchor": "top", "traceorder": "normal"}
    margin = {"l": 70, "r": 10, "t": 30, "b": 70}
    return figure.update_layout(template="simple_white", height=height, margin=margin, legend=legend, dragmode="zoom")
