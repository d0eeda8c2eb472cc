"""Fits beside measured records, and correlations of innovations with the bounds that noise would keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pm_sysid.plots.canvas import DATA, PRIOR, AxesArray, Panels, draw_data, draw_line, interval, panels, size
from pm_sysid.plots.residuals import _draw_correlation as draw_correlation

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # distinct to the colour-blind


def plot_compare(
    comparison: Any,
    *,
    window: tuple[float, float] | None = None,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw measured outputs and the predictions of several fits, with their fit in percent.

    Parameters
    ----------
    comparison : FitTable
        From :func:`compare_fits`.
    window : (float, float), optional
        First and last time, in seconds, to draw; the percentages are those of the whole records.
    axes : array of matplotlib axes, optional
        One for each row of ``comparison.table``; by default a new figure.
    figsize : (float, float), optional
        Size of a new figure in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (rows, 1)
        A row for each record and output.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    ValueError
        If the number of axes is wrong, or a record has no sample within `window`.

    Examples
    --------
    >>> import matplotlib, numpy as np, pm_sysid as sid
    >>> matplotlib.use("Agg")
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 2.0, 41)
    >>> record = sid.TimeSeries(t, None, np.exp(-1.5 * t))
    >>> fit = sid.fit_pem(decay, record, {"rate": 1.0}, predictor=sid.ExtendedKalman(substeps=2), x0=1.0)
    >>> sid.plot_compare(sid.compare_fits(fit, record, x0=1.0))[0, 0].get_title()
    'record'
    """
    if not isinstance(getattr(comparison, "predictions", None), dict):
        raise TypeError(f"comparison is {type(comparison).__name__}; give the result of compare_fits.")
    window = interval(window, "window")
    rows = list(comparison.table.index)
    grid = panels("axes", axes, [(len(rows), 1)], size(figsize) or (6.4, 0.6 + 2.0 * len(rows)))
    for ax, (label, output) in zip(grid[:, 0], rows, strict=True):
        record = comparison.records[label]
        low, high = window or (-np.inf, np.inf)
        inside = (low <= record.t) & (record.t <= high)
        if not inside.any():
            raise ValueError(f"window is {window}, but {label!r} spans {record.t[0]:g}..{record.t[-1]:g} s; widen it.")
        t = record.t[inside]
        y = record.output_matrix[inside, list(comparison.predictions[comparison.table.columns[0], label]).index(output)]
        draw_data(ax, t, y, color=DATA, lw=2.0, alpha=0.7, label="measured", zorder=2)
        for i, name in enumerate(comparison.table.columns):
            values = comparison.predictions[name, label][output].to_numpy()[inside]
            percent = comparison.table.loc[(label, output), name]
            draw_line(ax, t, values, color=_COLOURS[i % len(_COLOURS)], lw=0.9, zorder=3 + i, label=f"{name}: {percent:.1f} %")
        low, high = np.nanmin(y), np.nanmax(y)  # a run that diverges must not hide the rest
        ax.set_ylim(low - 0.15 * (high - low or 1.0), high + 0.35 * (high - low or 1.0))
        ahead = "" if math.isinf(comparison.k) else f", {comparison.k:g} samples ahead"
        ax.set(xlabel="time (s)", ylabel=output, title=f"{label}{ahead}")
        ax.margins(x=0)
        ax.legend(loc="upper right", ncols=1 + len(comparison.table.columns), fontsize="small", frameon=False)
    return grid


def plot_resid(residuals: Any, *, axes: Panels = None, figsize: tuple[float, float] | None = None) -> AxesArray:
    """Draw the autocorrelation of innovations and their correlation with each input, with 99 % bounds.

    Parameters
    ----------
    residuals : Residuals
        From :meth:`PEMResult.resid`.
    axes : array of matplotlib axes, optional
        One for each output and correlation; by default a new figure.
    figsize : (float, float), optional
        Size of a new figure in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (outputs, 1 + inputs)
        A negative lag is of later input, and means feedback or a wrong delay.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    ValueError
        If the number of axes is wrong.

    Examples
    --------
    >>> import matplotlib, numpy as np, pm_sysid as sid
    >>> matplotlib.use("Agg")
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 2.0, 81)
    >>> record = sid.TimeSeries(t, None, np.exp(-1.5 * t) + 0.01 * np.random.default_rng(0).normal(size=81))
    >>> fit = sid.fit_pem(decay, record, {"rate": 1.0}, predictor=sid.ExtendedKalman(substeps=2), x0=1.0)
    >>> sid.plot_resid(fit.resid(lags=10)).shape
    (1, 1)
    """
    if not hasattr(residuals, "input_names"):
        raise TypeError(f"residuals is {type(residuals).__name__}; give what PEMResult.resid returned.")
    varied = [j for j in range(residuals.inputs.shape[1]) if np.ptp(residuals.inputs[:, j]) > 0]
    shape = len(residuals.outputs), 1 + len(varied)
    grid = panels("axes", axes, [shape], size(figsize) or (3.2 * shape[1], 0.6 + 2.2 * shape[0]))
    lags = residuals.lags
    for row, output, e in zip(grid, residuals.outputs, residuals.standardised.T, strict=True):
        draw_correlation(row[0], e, e, range(1, lags + 1))
        row[0].set(xlabel="lag (samples)", ylabel="autocorrelation", title=output)
        for ax, j in zip(row[1:], varied, strict=True):
            draw_correlation(ax, e, residuals.inputs[:, j], range(-lags, lags + 1))
            ax.set(xlabel="lag (samples)", ylabel="cross-correlation", title=f"{output} and {residuals.input_names[j]}")
            ax.axvline(0, color=PRIOR, lw=0.6, ls=":")
    return grid
