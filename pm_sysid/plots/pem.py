"""Fits beside measured records, and correlations of innovations with the bounds that noise would keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pm_sysid.idata import labelled, labels
from pm_sysid.plots.axes import COLOURS, DATA, PRIOR, AxesArray, Panels, draw_data, draw_line, interval, panels, time_axis
from pm_sysid.plots.residuals import draw_autocorrelation, draw_cross_correlation
from pm_sysid.records.units import with_unit


def plot_compare_fits(
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
    axes, figsize : array of matplotlib axes; (float, float); optional
        One for each row of ``comparison.table``; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (rows, 1)
        A row for each record and output.

    Raises
    ------
    ValueError
        If the number of axes is wrong, or a record has no sample within `window`.

    Examples
    --------
    >>> import matplotlib, numpy as np, pm_sysid as sid
    >>> matplotlib.use("Agg")
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> t = np.linspace(0.0, 2.0, 41)
    >>> record = sid.TimeSeries(t, None, np.exp(-1.5 * t))
    >>> fit = sid.fit_pem(
    ...     decay, record, {"rate": 1.0}, predictor=sid.ExtendedKalman(substeps=2), x0=1.0
    ... )
    >>> sid.plot_compare_fits(sid.compare_fits(fit, record, x0=1.0))[0, 0].get_title()
    'record'
    """
    if not isinstance(getattr(comparison, "predictions", None), dict):
        raise TypeError(f"comparison is {type(comparison).__name__}; give the result of compare_fits.")
    window = interval(window, "window")
    rows = list(comparison.table.index)
    grid = panels(axes, [(len(rows), 1)], figsize, (6.4, 0.6 + 2.0 * len(rows)))
    for ax, (label, output) in zip(grid[:, 0], rows, strict=True):
        record = comparison.records[label]
        low, high = window or (-np.inf, np.inf)
        inside = (low <= record.t) & (record.t <= high)
        if not inside.any():
            raise ValueError(f"window is {window}, but {label!r} spans {record.t[0]:g}..{record.t[-1]:g} s; widen it.")
        t = record.t[inside]
        place = labels(comparison.predictions[comparison.table.columns[0], label]).index(output)
        y = record.output_matrix[inside, place]
        draw_data(ax, t, y, color=DATA, lw=2.0, alpha=0.7, label="measured", zorder=2)
        for i, name in enumerate(comparison.table.columns):
            values = labelled(comparison.predictions[name, label], output).to_numpy()[inside]
            percent = comparison.table.loc[(label, output), name]
            draw_line(ax, t, values, color=COLOURS[i % len(COLOURS)], lw=0.9, zorder=3 + i, label=f"{name}: {percent:.1f} %")
        low, high = np.nanmin(y), np.nanmax(y)  # a run that diverges must not hide the rest
        ax.set_ylim(low - 0.15 * (high - low or 1.0), high + 0.35 * (high - low or 1.0))
        ahead = "" if math.isinf(comparison.k) else f", {comparison.k:g} sample{'s' * (comparison.k != 1)} ahead"
        unit = record.units.get(record.outputs[place])
        ax.set(ylabel=with_unit(output, unit), title=f"{label}{ahead}")
        time_axis(ax, record.t, axes)
        ax.margins(x=0)
        ax.legend(loc="upper right", ncols=1 + len(comparison.table.columns), fontsize="small", frameon=False)
    return grid


def plot_resid(residuals: Any, *, axes: Panels = None, figsize: tuple[float, float] | None = None) -> AxesArray:
    """Draw the autocorrelation of innovations and their correlation with each input, with 99 % bounds.

    Parameters
    ----------
    residuals : Residuals
        From :meth:`PEMResult.resid`.
    axes, figsize : array of matplotlib axes; (float, float); optional
        One for each output and correlation; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (outputs, 1 + inputs)
        A negative lag is of later input, and means feedback or a wrong delay.

    Raises
    ------
    ValueError
        If the number of axes is wrong.

    Examples
    --------
    >>> import matplotlib, numpy as np, pm_sysid as sid
    >>> matplotlib.use("Agg")
    >>> drive = sid.TimeSeries(
    ...     0.025 * np.arange(200), np.random.default_rng(0).normal(size=200)
    ... )
    >>> system = sid.System(
    ...     lambda t, x, u, p: u.u - p.rate * x.flow,
    ...     states=("flow",),
    ...     inputs=("u",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.flow,
    ... )
    >>> flow = sid.simulate(system, drive, {"rate": 1.5}, x0=0.0)["y"].values
    >>> fit = sid.fit_pem(
    ...     system,
    ...     drive.replace(y=flow + 0.01 * np.random.default_rng(1).normal(size=200)),
    ...     [1.0],
    ...     x0=0.0,
    ... )
    >>> sid.plot_resid(fit.resid(lags=10)).shape
    (1, 2)
    """
    if not hasattr(residuals, "input_names"):
        raise TypeError(f"residuals is {type(residuals).__name__}; give what PEMResult.resid returned.")
    varied = [j for j in range(residuals.inputs.shape[1]) if np.ptp(residuals.inputs[:, j]) > 0]
    shape = len(residuals.outputs), 1 + len(varied)
    grid = panels(axes, [shape], figsize, (3.2 * shape[1], 0.6 + 2.2 * shape[0]))
    lags = residuals.lags
    for row, output, e in zip(grid, residuals.outputs, residuals.standardised.T, strict=True):
        draw_autocorrelation(row[0], e, lags)
        row[0].set_title(output)
        for ax, j in zip(row[1:], varied, strict=True):
            draw_cross_correlation(ax, e, residuals.inputs[:, j], lags)
            ax.set_title(f"{output} and {residuals.input_names[j]}")
            ax.axvline(0, color=PRIOR, lw=0.6, ls=":")
    return grid
