"""Residuals drawn with the bounds that noise would keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pm_sysid.arguments import flag, number
from pm_sysid.plots.axes import DATA, MODEL, PRIOR, AxesArray, FloatArray, Panels, draw_data, panels, time_axis
from pm_sysid.records.residual_tests import (
    BOUND,
    LEVEL,
    as_residuals,
    correlation,
    in_order,
    ljung_box,
    scores,
    white_without,
)
from pm_sysid.records.steadiness import level_part, size_part
from pm_sysid.records.validation import real

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_residuals(
    residuals: ArrayLike,
    *,
    u: ArrayLike | None = None,
    fs: float | None = 1.0,
    t: ArrayLike | None = None,
    lags: int = 50,
    standardised: bool = True,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw residuals over time, their correlations with 99 % bounds, and their normal quantiles.

    Shaded is a part of the record whose level or size differs from the rest, as a drift, a disturbance or a burst leaves it; of
    residuals that are not white, a part without which they are.
    `pm_sysid.residual_tests` puts the same questions as numbers.

    Parameters
    ----------
    residuals : array_like, shape (T,)
        One-step prediction errors of one output; NaN marks a missing value.
    u : array_like, shape (T,), optional
        The input; a negative lag is of later input, and means feedback or a wrong delay.
    fs : float, optional
        Sampling rate in Hz; None, as of an irregular record: the axis counts samples.
    t : array_like, shape (T,), optional
        Times in seconds, in place of a sampling rate.
    lags : int
        Largest lag in samples.
    standardised : bool
        Whether the residuals were divided by their predicted standard deviations, so that they should be
        standard normal; if not, they are compared with a normal distribution of their own mean and spread.
    axes, figsize : array of 4 matplotlib axes; (float, float); optional
        Where to draw; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (2, 2)
        Time series, autocorrelation; correlation with the input, normal quantiles.

    Raises
    ------
    ValueError
        If shapes differ, or there are too few residuals for `lags`.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> plot_residuals(np.random.default_rng(0).standard_normal(200), lags=10)[
    ...     0, 1
    ... ].get_ylabel()
    'autocorrelation'
    """
    e, u = as_residuals(residuals, u, lags)
    standardised = flag(standardised, "standardised")
    if fs is not None and not number(fs, "fs") > 1e-100:
        raise ValueError(f"fs must be positive, but is {fs}")
    times = np.arange(len(e)) / (fs or 1.0) if t is None else real(t, "t")
    if times.shape != e.shape or not np.isfinite(times).all():
        raise ValueError(f"t has the shape {times.shape}; give {len(e)} finite times, one for each residual")
    centre, spread = (0.0, 1.0) if standardised else (float(np.nanmean(e)), float(np.nanstd(e)))
    label = r"residual / $\sigma$" if standardised else "residual"
    grid = panels(axes, [(2, 2)], figsize, (6.4, 4.4))
    (series, auto), (cross, quantiles) = grid

    draw_data(series, times, e, color=MODEL, lw=0.5)
    for level in (-2, 2):
        series.axhline(centre + level * spread, color=DATA, lw=0.8, ls="--", zorder=3)
    _shade_unsteady(series, times, e, lags)
    series.set(xlabel="sample", ylabel=label)
    if not (fs is None and t is None):
        time_axis(series, times, axes)
    series.margins(x=0)

    draw_autocorrelation(auto, e, lags)
    if u is None:
        cross.text(0.5, 0.5, "no input", transform=cross.transAxes, ha="center", va="center", color=PRIOR)
        cross.set(xticks=[], yticks=[])
    else:
        draw_cross_correlation(cross, e, u, lags)

    _draw_quantiles(quantiles, np.sort(e[np.isfinite(e)]), centre, spread)
    quantiles.set(xlabel="normal quantile", ylabel=label)
    return grid


def _shade_unsteady(ax: Axes, times: FloatArray, e: FloatArray, lags: int) -> None:
    """Shade the parts whose level or size differs from the rest, where residuals are white otherwise."""
    whole = ljung_box(e, lags)
    if whole.p > 1 - LEVEL:
        parts = [part for part in (level_part(e), size_part(e)) if part.p <= 1 - LEVEL]
    else:
        apart = white_without(e, lags, whole)
        parts = [] if apart is None else [apart]
    for part in parts:
        ax.axvspan(times[part.start], times[part.stop - 1], color=PRIOR, alpha=0.25, lw=0, zorder=0)


def draw_autocorrelation(ax: Axes, e: FloatArray, lags: int) -> None:
    """Correlation of residuals with those 1 to `lags` samples before, with the bounds of white noise."""
    measured = in_order(e)
    _draw_correlation(ax, measured, measured, range(1, min(lags, len(measured) - 1) + 1))
    ax.set(xlabel="lag (samples)" if measured is e else "lag (measurements)", ylabel="autocorrelation")


def draw_cross_correlation(ax: Axes, e: FloatArray, u: FloatArray, lags: int) -> None:
    """Correlation of residuals with an input, with the bounds of independence."""
    _draw_correlation(ax, e, u, range(-lags, lags + 1))
    ax.set(xlabel="lag (samples)", ylabel="cross-correlation")


def _draw_correlation(ax: Axes, e: FloatArray, other: FloatArray, lags: range) -> None:
    r, pairs = correlation(e, other, lags)
    bound = BOUND / scores(np.ones_like(r), pairs, int(np.isfinite(e).sum()))
    ax.fill_between(lags, -bound, bound, color="0.85", linewidth=0, zorder=0, label=f"{LEVEL:.0%} bounds")
    ax.vlines(lags, 0, r, color=MODEL, lw=1.2 if len(lags) <= 60 else 0.8)
    ax.axhline(0, color=DATA, lw=0.6)
    ax.set_xlim(lags[0] - 1, lags[-1] + 1)
    ax.set_ylim(*np.array([-1.25, 1.25]) * max(np.abs(r).max(), 1.4 * bound.max()))


def _draw_quantiles(ax: Axes, values: FloatArray, centre: float, spread: float) -> None:
    """Sorted values over normal quantiles, with the straight line and pointwise bounds of a normal sample."""
    n = len(values)
    z = scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)
    rank = np.unique(np.searchsorted(z, np.linspace(z[0], z[-1], 400))) if n > 400 else np.arange(n)
    tail = (1 - LEVEL) / 2
    low, high = (scipy.stats.norm.ppf(scipy.stats.beta.ppf(p, rank + 1, n - rank)) for p in (tail, 1 - tail))
    ax.fill_between(z[rank], centre + spread * low, centre + spread * high, color="0.85", linewidth=0, zorder=0)
    ax.plot(z[[0, -1]], centre + spread * z[[0, -1]], color=DATA, lw=0.8)
    ax.plot(z[rank], values[rank], ls="none", marker=".", markersize=3.5, color=MODEL)
