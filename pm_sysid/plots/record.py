"""A first look at a record: over time, over frequency, and what of its range it covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import scipy

from pm_sysid.arguments import shown, words
from pm_sysid.plots.axes import (
    DATA,
    MODEL,
    TRUTH,
    AxesArray,
    FloatArray,
    Panels,
    draw_data,
    draw_line,
    panels,
    time_axis,
)
from pm_sysid.records.residual_tests import in_order
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 300  # points that a small dot is too small for
_POINTS = 20_000  # of a phase plane: more only make files large


def plot_record(
    record: TimeSeries,
    *,
    channels: Sequence[str] | None = None,
    units: dict[str, str] | None = None,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw a row of panels for each channel: over time, its amplitude spectrum, and what values it covers.

    Parameters
    ----------
    record : TimeSeries
        Inputs and outputs.
    channels : sequence of str, optional
        Which of them, in this order; by default all inputs, then all outputs.
    units : mapping of str to str, optional
        Units by channel, for the labels, in place of those of the record.
    axes, figsize : array of 3 matplotlib axes a channel; (float, float); optional
        Where to draw; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (channels, 3)
        Time series, spectrum, coverage.

    Raises
    ------
    TypeError, ValueError
        If there is no such channel, or the record is too short for a spectrum.

    Notes
    -----
    Missing values are counted, and marked by ticks at the top of the panel. The spectrum is that of the channel less its mean:
    the amplitude of a sine shows as its height (a Hann window, none for periodic records, whose lines are exact). Of
    irregular records and across missing values it is that of straight lines between the values, good for a look; its title
    says so. The coverage of an input is a histogram of its values; that of an output the states it passes, its value over its
    rate of change, without far outliers among the rates. Where a histogram is empty or a plane unvisited a model is a guess.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> t = np.arange(200) / 100
    >>> grid = plot_record(TimeSeries(t, np.sin(9 * t), np.cos(9 * t)), units={"u": "N"})
    >>> grid.shape, grid[0, 0].get_ylabel()
    ((2, 3), 'u (N)')
    """
    if not isinstance(record, TimeSeries):
        raise TypeError(f"record is {type(record).__name__}; give a TimeSeries (several one by one)")
    if len(record) < 8:
        raise ValueError(f"the record has {len(record)} samples; a look at it needs 8 or more")
    names = _chosen(record, channels, "channels")
    if not isinstance(units, Mapping | None):
        raise TypeError(f"units is {shown(units)}; give a dict of units by channel")
    _chosen(record, list(units or {}), "units")
    units = {**record.units, **(units or {})}
    values = dict(zip(record.inputs + record.outputs, np.hstack([record.input_matrix, record.output_matrix]).T, strict=True))
    grid = panels(axes, [(len(names), 3)], figsize, (9.0, 0.5 + 1.9 * len(names)))
    for row, name in zip(grid, names, strict=True):
        _draw_channel(row, record, values[name], is_input=name in record.inputs)
        unit = units.get(name)
        label = with_unit(name, unit)
        row[0].set_ylabel(label)
        row[1].set_ylabel(f"amplitude ({unit})" if unit else "amplitude")
        row[2].set_ylabel(label)
        if name not in record.inputs:
            row[2].set_xlabel(f"rate of {name} ({unit}/s)" if unit else f"rate of {name} (1/s)")
        time_axis(row[0], record.t, axes, label=name == names[-1])
        for ax in row[1:]:
            ax.ticklabel_format(axis="x", scilimits=(-3, 4), useMathText=True)
    for ax, title in zip(grid[0], ("over time", "spectrum", "coverage"), strict=True):
        ax.set_title(title, loc="left", fontsize="medium")
    grid[-1, 1].set_xlabel("frequency (Hz)")
    return grid


def _draw_channel(row: AxesArray, record: TimeSeries, x: FloatArray, *, is_input: bool) -> None:
    over_time, over_frequency, coverage = row
    gaps = np.isnan(x)
    draw_data(over_time, record.t, x, 0.7, color=DATA)
    if gaps.any():
        if gaps.sum() < len(x) / 2:  # of more, marks would be one bar
            style = dict(ls="none", marker="|", color=TRUTH, markersize=7, transform=over_time.get_xaxis_transform())
            over_time.plot(record.t[gaps], np.full(gaps.sum(), 0.98), label="missing", **style)
        over_time.set_title(f"{gaps.sum()} missing", loc="right", fontsize="small", color=TRUTH)
    over_time.margins(x=0)
    if (~gaps).sum() < 8:
        for ax in (over_frequency, coverage):
            ax.text(0.5, 0.5, "too few values", transform=ax.transAxes, ha="center", va="center", color=DATA)
        return
    if len(in_order(x)) < len(x):  # hardly any two neighbours are measured: what is between is none of the channel
        record = TimeSeries(record.t[~gaps], None, x[~gaps])
        x = record.output_matrix[:, 0]
    frequency, amplitude = spectrum(record, x)
    draw_line(over_frequency, frequency, amplitude, color=MODEL, lw=0.7)
    _logarithmic(over_frequency, amplitude)
    over_frequency.set_xlim(0, frequency[-1])
    if np.isnan(x).any() or not record.uniform:
        over_frequency.set_title("interpolated", loc="right", fontsize="small")
    if is_input:
        coverage.hist(x, bins="auto" if len(x) < 2000 else 60, orientation="horizontal", color=MODEL, alpha=0.8)
        coverage.set_xlabel("samples")
    else:
        rate = np.gradient(x, record.t)  # NaN beside a gap: no rate is made up there
        keep = slice(None, None, max(1, len(x) // _POINTS))
        if np.isfinite(rate).any() and (limits := _central(rate))[0] < limits[1]:
            coverage.set_xlim(*limits)
        size = 1.5 if len(x) > _FEW else 4.0
        coverage.plot(rate[keep], x[keep], ls="none", marker=".", markersize=size, color=MODEL, alpha=0.5, rasterized=True)


def spectrum(record: TimeSeries, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Frequencies in Hz and the amplitudes of sines there, of a channel less its mean."""
    there = ~np.isnan(x)
    t = record.t
    if not there.all() or not record.uniform:
        t = np.linspace(t[0], t[-1], len(t))
        x = np.interp(t, record.t[there], x[there])
    x = x - x.mean()
    window = np.ones(len(x)) if record.periodic else scipy.signal.windows.hann(len(x), sym=False)
    amplitude = 2 * np.abs(np.fft.rfft(x * window)) / window.sum()
    if len(x) % 2 == 0:
        amplitude[-1] /= 2  # of the Nyquist frequency there is one line, not two
    return np.fft.rfftfreq(len(x), (t[-1] - t[0]) / (len(t) - 1)), amplitude


def _central(values: FloatArray) -> FloatArray:
    """Limits that hold 99 % of the values with room: rates between two close samples may be all noise."""
    low, high = np.nanquantile(values, [0.005, 0.995])
    room = 0.4 * (high - low)
    return np.array([low - room, high + room], dtype=float)


def _logarithmic(ax: Axes, amplitude: FloatArray) -> None:
    """Show at most seven decades: below are rounding errors."""
    if (top := amplitude.max()) > 0:
        ax.set_yscale("log")
        ax.set_ylim(max(amplitude[amplitude > 0].min(), 1e-7 * top) / 1.5, 3 * top)


def _chosen(record: TimeSeries, names: Sequence[str] | None, argument: str) -> tuple[str, ...]:
    there = record.inputs + record.outputs
    if isinstance(names, str):
        raise TypeError(f"{argument} is the string {names!r}; give a sequence of names, such as [{names!r}]")
    names = None if names is None else words(names, argument)
    for name in names or ():
        if name not in there:
            raise ValueError(f"{argument} names {name!r}; the record has {', '.join(there) or 'no channels'}")
    chosen = there if names is None else tuple(names)
    if not chosen and argument == "channels":
        raise ValueError("there is no channel to draw; give a record with inputs or outputs, and channels=None for all")
    return chosen
