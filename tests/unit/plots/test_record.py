"""The first look at a record: what its panels show, and what is refused."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from pm_sysid.plots.record import plot_record, spectrum
from pm_sysid.records.timeseries import TimeSeries

T = 240
TIME = np.arange(T) / 60
U = 0.3 + 2.0 * np.sin(2 * np.pi * 5.0 * TIME)
Y = np.stack([np.cos(2 * np.pi * 5.0 * TIME), TIME**2], axis=1)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def record_of(**options: Any) -> TimeSeries:
    return TimeSeries(**({"t": TIME, "u": U, "y": Y, "inputs": "F", "outputs": ("z", "v")} | options))


def test_a_row_for_each_channel() -> None:
    grid = plot_record(record_of(), units={"F": "N", "z": "m"})
    assert grid.shape == (3, 3)
    assert [ax.get_ylabel() for ax in grid[:, 0]] == ["F (N)", "z (m)", "v"]
    assert [ax.get_ylabel() for ax in grid[:, 1]] == ["amplitude (N)", "amplitude (m)", "amplitude"]
    assert [ax.get_xlabel() for ax in grid[:, 2]] == ["samples", "rate of z (m/s)", "rate of v (1/s)"]
    assert (grid[-1, 0].get_xlabel(), grid[-1, 1].get_xlabel()) == ("time (s)", "frequency (Hz)")
    assert_array_equal(grid[0, 0].lines[0].get_ydata(), U)
    assert sum(patch.get_width() for patch in grid[0, 2].patches) == T
    assert_allclose(grid[1, 2].lines[0].get_xdata()[1:-1], np.gradient(Y[:, 0], TIME)[1:-1])
    assert [ax.get_title(loc="right") for ax in grid[:, 1]] == ["", "", ""]
    grid[0, 0].figure.canvas.draw()


@pytest.mark.parametrize("periodic", [True, False])
def test_a_sine_shows_with_its_amplitude(periodic: bool) -> None:
    frequency, amplitude = spectrum(record_of(periodic=periodic), U)
    peak = int(amplitude.argmax())
    assert frequency[peak] == pytest.approx(5.0) and amplitude[peak] == pytest.approx(2.0, rel=1e-9)
    assert frequency[-1] == pytest.approx(30.0)
    others = np.delete(amplitude, np.arange(peak - 1, peak + 2))
    assert others.max() < 1e-12 * (1 if periodic else 10)
    alternating = (-1.0) ** np.arange(T)
    assert spectrum(record_of(periodic=periodic), alternating)[1][-1] == pytest.approx(1.0)


def test_missing_values_are_marked_counted_and_interpolated() -> None:
    y = Y.copy()
    y[10:15, 0] = np.nan
    grid = plot_record(record_of(y=y), channels=["z"])
    assert grid.shape == (1, 3)
    marks = next(line for line in grid[0, 0].lines if line.get_label() == "missing")
    assert_array_equal(marks.get_xdata(), TIME[10:15])
    assert grid[0, 0].get_title(loc="right") == "5 missing"
    assert grid[0, 1].get_title(loc="right") == "interpolated"
    frequency, amplitude = spectrum(record_of(y=y), y[:, 0])
    assert frequency[amplitude.argmax()] == pytest.approx(5.0) and amplitude.max() == pytest.approx(1.0, rel=0.1)
    assert np.isnan(grid[0, 2].lines[0].get_xdata()[9:16]).all()
    grid[0, 0].figure.canvas.draw()


def test_a_channel_of_a_few_samples_is_drawn_by_them() -> None:
    """A line needs neighbours: 19 samples of a laboratory were not drawn at all."""
    t, sparse, alone = 10.0 * np.arange(601), *np.full((2, 601), np.nan)
    sparse[::30] = np.sin(t[::30] / 700)
    alone[:400], alone[500] = np.cos(t[:400] / 300), 0.5
    grid = plot_record(TimeSeries(t, None, {"sparse": sparse, "alone": alone}))
    (dots,) = grid[0, 0].get_lines()
    assert (
        dots.get_marker() == "."
        and np.isfinite(dots.get_ydata()).sum() == 21
        and "580 missing" in grid[0, 0].get_title("right")
    )
    assert grid[0, 1].get_xlim()[1] < 0.5 / 300 * 1.01  # as of a record of these samples
    assert "interpolated" not in grid[0, 1].get_title("right") and np.isfinite(grid[0, 2].get_lines()[0].get_xdata()).all()
    single = [line for line in grid[1, 0].get_lines() if line.get_marker() == "."]
    assert [list(line.get_xdata()) for line in single] == [[5000.0]]


def test_irregular_records() -> None:
    t = np.sort(np.random.default_rng(0).uniform(0, 4, T))
    record = TimeSeries(t, np.sin(2 * np.pi * 2 * t))
    grid = plot_record(record)
    assert grid[0, 1].get_title(loc="right") == "interpolated"
    frequency, amplitude = spectrum(record, record.u)
    assert frequency[amplitude.argmax()] == pytest.approx(2.0, abs=0.02)


def test_far_rates_do_not_squeeze_the_plane() -> None:
    t = np.delete(np.arange(1001) / 100, 500) + 0.0
    t[500] = t[499] + 1e-6
    z = np.sin(2 * np.pi * t)
    z[500] += 0.1
    low, high = plot_record(TimeSeries(t, y=z))[0, 2].get_xlim()
    assert -20 < low < -6 and 6 < high < 20 and np.gradient(z, t).max() > 1e4


def test_channels_that_do_not_vary_or_are_nearly_empty() -> None:
    y = np.full((T, 2), np.nan)
    y[:5, 0] = 1.0
    y[:, 1] = 2.0
    grid = plot_record(record_of(u=np.zeros(T), y=y))
    assert [text.get_text() for text in grid[1, 1].texts] == ["too few values"]
    assert grid[2, 1].get_yscale() == "linear"
    grid[0, 0].figure.canvas.draw()


def test_long_records_stay_small() -> None:
    t = np.arange(100_000) / 1000
    grid = plot_record(TimeSeries(t, y=np.sin(t)))
    assert all(len(line.get_xdata()) <= 25_000 for ax in grid.ravel() for line in ax.lines)


def test_given_axes_are_used() -> None:
    _, axes = plt.subplots(1, 3)
    grid = plot_record(record_of(), channels=["v"], axes=axes)
    assert grid[0, 2] is axes[2]


def test_refused() -> None:
    with pytest.raises(ValueError, match="channels names 'a'; the record has F, z, v"):
        plot_record(record_of(), channels=["a"])
    with pytest.raises(ValueError, match="units names 'a'; the record has F, z, v"):
        plot_record(record_of(), units={"a": "m"})
    with pytest.raises(TypeError, match=r"channels is the string 'z'; give a sequence of names, such as \['z'\]"):
        plot_record(record_of(), channels="z")
    with pytest.raises(ValueError, match="there is no channel to draw"):
        plot_record(TimeSeries(TIME))
    with pytest.raises(ValueError, match="the record has 7 samples; a look at it needs 8"):
        plot_record(record_of()[:7])
    with pytest.raises(ValueError, match="axes must hold 9 matplotlib axes, but holds 3"):
        plot_record(record_of(), axes=plt.subplots(1, 3)[1])
    with pytest.raises(TypeError, match="record is ndarray; give a TimeSeries"):
        plot_record(U)  # type: ignore[arg-type]
