"""Figures of fits show what the tables say."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pm_sysid as sid

matplotlib.use("Agg")
from matplotlib import pyplot as plt


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def comparison(k: float = np.inf) -> Any:
    """Two fits on one record of two outputs, of which one fit diverges."""
    t = np.linspace(0.0, 1.0, 50)
    record = sid.TimeSeries(t, None, {"a": np.sin(6 * t), "b": np.cos(6 * t)})
    good, bad = (xr.Dataset({"a": ("time", c * np.sin(6 * t)), "b": ("time", c * np.cos(6 * t))}) for c in (1.0, 1e6))
    index = pd.MultiIndex.from_tuples([("test", "a"), ("test", "b")], names=["record", "output"])
    table = pd.DataFrame({"good": [99.0, 98.0], "bad": [-1e8, -1e8]}, index=index)
    predictions = {("good", "test"): good, ("bad", "test"): bad}
    return SimpleNamespace(table=table, records={"test": record}, predictions=predictions, k=k)


def test_comparison_has_a_row_for_each_output() -> None:
    grid = sid.plot_compare_fits(comparison(k=3))
    assert grid.shape == (2, 1)
    assert [ax.get_ylabel() for ax in grid[:, 0]] == ["a", "b"]
    assert grid[0, 0].get_title() == "test, 3 samples ahead"
    lines = {line.get_label(): line for line in grid[1, 0].lines}
    assert list(lines) == ["measured", "good: 98.0 %", "bad: -100000000.0 %"]
    np.testing.assert_allclose(lines["measured"].get_ydata(), lines["good: 98.0 %"].get_ydata())
    assert np.abs(grid[1, 0].get_ylim()).max() < 2.0


def test_a_window_can_be_drawn() -> None:
    line = sid.plot_compare_fits(comparison(), window=(0.5, 0.7))[0, 0].lines[0]
    assert 0.5 <= line.get_xdata().min() and line.get_xdata().max() <= 0.7 and len(line.get_xdata()) == 10
    with pytest.raises(ValueError, match=r"window is \(2.0, 3.0\), but 'test' spans 0..1 s"):
        sid.plot_compare_fits(comparison(), window=(2.0, 3.0))


def test_axes_can_be_given() -> None:
    _, axes = plt.subplots(2)
    assert sid.plot_compare_fits(comparison(), axes=axes)[1, 0] is axes[1]
    with pytest.raises(ValueError, match="axes must hold 2 matplotlib axes, but holds 1"):
        sid.plot_compare_fits(comparison(), axes=axes[0])


def residuals(n_u: int) -> Any:
    rng = np.random.default_rng(0)
    u = np.column_stack([rng.normal(size=200), np.ones(200)])[:, :n_u]
    e = np.column_stack([rng.normal(size=200), np.roll(u[:, 0], 3) if n_u else rng.normal(size=200)])
    names = ("F", "idle")[:n_u]
    return SimpleNamespace(standardised=e, inputs=u, lags=12, outputs=("y1", "y2"), input_names=names)


def test_correlations_with_inputs_that_vary() -> None:
    grid = sid.plot_resid(residuals(2))
    assert grid.shape == (2, 2)  # the second input is constant
    assert grid[1, 1].get_title() == "y2 and F" and grid[0, 0].get_ylabel() == "autocorrelation"
    stems = grid[1, 1].collections[1].get_segments()
    heights = {int(s[0][0]): s[1][1] for s in stems}
    assert heights[3] > 0.99 and abs(heights[-3]) < 0.3
    assert sid.plot_resid(residuals(0)).shape == (2, 1)
