"""Figures that zoom hold every sample, with names, units and gaps."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.plots.zoomable import fit_over_time, need_plotly, residuals_over_time

T = 300
RNG = np.random.default_rng(0)
TIME = np.arange(T) / 50.0
Y = np.where(np.arange(T) == 40, np.nan, np.sin(TIME))
RECORD = sid.TimeSeries(TIME, None, Y, outputs="z")


def runs(count: int) -> xr.Dataset:
    return xr.Dataset({"z": (("draw", "time"), np.sin(TIME) + 0.1 * RNG.standard_normal((count, 1)))})


def times(trace: object) -> np.ndarray:
    """Places of the samples of a curve: given, or counted from the first."""
    if trace.x is not None:  # type: ignore[attr-defined]
        return np.asarray(trace.x)  # type: ignore[attr-defined]
    return trace.x0 + trace.dx * np.arange(len(trace.y))  # type: ignore[attr-defined, no-any-return]


def test_a_fit_has_the_measurement_the_median_its_band_and_the_residual() -> None:
    drawn = runs(9)
    figure = fit_over_time(RECORD, drawn, "z", unit="mm", hdi=0.5)
    curves = {trace.name: trace for trace in figure.data}
    middle = np.median(drawn["z"], axis=0)
    np.testing.assert_allclose(curves["measured"].y, Y, rtol=1e-6)
    np.testing.assert_allclose(curves["median"].y, middle, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(curves["residual"].y, Y - middle, rtol=1e-5, atol=1e-6)
    assert np.isnan(curves["residual"].y[40])
    low, high = figure.data[0].y, curves["50 % interval"].y
    np.testing.assert_allclose([low, high], np.quantile(drawn["z"], [0.25, 0.75], axis=0), rtol=1e-5, atol=1e-6)
    for trace in figure.data:
        np.testing.assert_allclose(times(trace), TIME, atol=1e-12)
    assert figure.layout.yaxis.title.text == "z (mm)" and figure.layout.yaxis2.title.text == "residual (mm)"
    assert figure.layout.xaxis2.title.text == "time (s)" and figure.layout.xaxis.title.text is None


def test_one_run_has_no_band() -> None:
    names = {trace.name for trace in fit_over_time(RECORD, runs(1), "z").data}
    assert names == {"measured", "prediction", "residual"}


def test_irregular_times_are_kept() -> None:
    t = np.sort(RNG.uniform(0, 10, 50))
    (trace,) = residuals_over_time(RNG.standard_normal(50), t).data
    np.testing.assert_array_equal(times(trace), t)
    counted = residuals_over_time(RNG.standard_normal(50), None)
    np.testing.assert_allclose(times(counted.data[0]), np.arange(50))
    assert counted.layout.xaxis.title.text == "sample"
    assert sorted(line.y0 for line in counted.layout.shapes) == [-2, 2]


def test_the_remedy_is_named_where_plotly_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ImportError, match=r"this needs plotly; install it with: pip install \"pm_sysid\[plots\]\""):
        need_plotly("this")
