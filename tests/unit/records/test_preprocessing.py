"""Trends and sampling rates: against closed forms and SciPy, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import signal

from pm_sysid.records.preprocessing import detrend, resample
from pm_sysid.records.timeseries import TimeSeries

RNG = np.random.default_rng(4)
T = 400
TIME = np.arange(T) / 200.0
NOISE = RNG.normal(size=(T, 2))


def tones(t: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(2 * np.pi * 3.1 * t + 0.3), np.cos(2 * np.pi * 7.3 * t) + 0.5 * t], axis=1)


def record_of(t: np.ndarray = TIME, **options: Any) -> TimeSeries:
    return TimeSeries(t, tones(t)[:, 0], tones(t), inputs="F", outputs=("z", "v"), **options)


# -- trends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["constant", "linear"])
def test_regular_records_agree_with_scipy(kind: Any) -> None:
    record = TimeSeries(TIME, NOISE[:, 0] + 3.0, NOISE + TIME[:, None] * [2.0, -1.0], inputs="F", outputs=("z", "v"))
    result = detrend(record, kind)
    assert_allclose(result.u, signal.detrend(record.u, type=kind), atol=1e-12)
    assert_allclose(result.y, signal.detrend(record.y, axis=0, type=kind), atol=1e-12)
    assert result.inputs == ("F",) and result.outputs == ("z", "v")
    assert_array_equal(result.t, record.t)


def test_irregular_times_and_missing_values() -> None:
    t = np.sort(RNG.uniform(100.0, 105.0, 50))
    y = 4.0 - 0.7 * t
    y[[3, 20]] = np.nan
    result = detrend(TimeSeries(t, y=y), "linear")
    assert_array_equal(np.isnan(result.y), np.isnan(y))
    assert_allclose(result.y[~np.isnan(y)], 0.0, atol=1e-9)
    centred = detrend(TimeSeries(t, y=y)).y
    assert np.nanmean(centred) == pytest.approx(0.0, abs=1e-12)
    assert_allclose(centred, y - np.nanmean(y), atol=1e-12)


def test_channels_left_alone() -> None:
    record = record_of()
    result = detrend(record, channels=["v"])
    assert_array_equal(result.u, record.u)
    assert_array_equal(result.y[:, 0], record.y[:, 0])
    assert result.y[:, 1].mean() == pytest.approx(0.0, abs=1e-12) and record.y[:, 1].mean() > 0.4


def test_refused_trends() -> None:
    with pytest.raises(ValueError, match="kind must be 'constant' or 'linear', but is 'cubic'"):
        detrend(record_of(), "cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no channel 'a'; there are F, z, v"):
        detrend(record_of(), channels=["a"])
    with pytest.raises(TypeError, match=r"channels is the string 'z'; give .* \['z'\]"):
        detrend(record_of(), channels="z")
    with pytest.raises(ValueError, match="channel 'y' has 1 values, too few for a linear trend"):
        detrend(TimeSeries([0.0, 1.0], y=[1.0, np.nan]), "linear")
    with pytest.raises(ValueError, match="a periodic record has no linear trend"):
        detrend(record_of(periodic=True), "linear")
    with pytest.raises(TypeError, match="record is ndarray; give a TimeSeries"):
        detrend(NOISE)  # type: ignore[arg-type]


# -- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fs", [100.0, 150.0, 500.0, 80, 200.0])
def test_slow_tones_pass(fs: float) -> None:
    record = record_of()
    result = resample(record, fs)
    assert result.fs == pytest.approx(fs) and result.t[0] == record.t[0]
    assert record.t[-1] - 1 / fs < result.t[-1] <= record.t[-1] + 1e-12
    reach = int(np.ceil(21 * max(1.0, fs / 200.0)))  # of the filter, in new samples
    inner = slice(reach, -reach)
    assert_allclose(result.y[inner], tones(result.t)[inner], atol=5e-4)
    assert_allclose(result.u[inner], tones(result.t)[inner, 0], atol=5e-4)
    assert_allclose(result.y, tones(result.t), atol=0.02)
    assert (result.intersample, result.inputs, result.outputs) == ("bl", ("F",), ("z", "v"))


@pytest.mark.parametrize("fs", [48.0, 150.0, 1000 / 3, 400.0, 2000.0])
def test_an_offset_and_a_drift_change_nothing(fs: float) -> None:
    """The air pressure under a tone of half a pascal, and a drift: the filter's gain between two samples once showed."""
    t = np.arange(5000) / 1000
    tone = 0.5 * np.sin(2 * np.pi * 7 * t)
    plain, above = (resample(TimeSeries(t, None, y), fs) for y in (tone, 101325.0 + 300.0 * t + tone))
    np.testing.assert_allclose(above.y - 101325.0 - 300.0 * above.t, plain.y, atol=1e-9)


def test_fast_tones_are_filtered_not_folded() -> None:
    """51 and 90 Hz would come back as 49 and 10 Hz at a rate of 100 Hz; 40 Hz pass."""
    for frequency in (51.0, 90.0):
        record = TimeSeries(TIME, y=np.sin(2 * np.pi * frequency * TIME))
        assert np.abs(record.y[::2]).max() > 0.9
        assert np.abs(resample(record, 100.0).y[22:-22]).max() < 1e-3
    record = TimeSeries(TIME, y=np.sin(2 * np.pi * 40.0 * TIME))
    assert_allclose(resample(record, 100.0).y[22:-22], record.y[::2][22:-22], atol=1e-3)


@pytest.mark.parametrize("fs", [197.0, 100.0, 400.0])
def test_short_records(fs: float) -> None:
    """Too short for the reach of the filter, but a straight line stays one."""
    result = resample(TimeSeries(TIME[:9], y=1.0 + 5.0 * TIME[:9]), fs)
    assert_allclose(result.y, 1.0 + 5.0 * result.t, atol=2e-3)


def test_periodic_records_are_exact() -> None:
    t = np.arange(64) / 64.0

    def wave(t: np.ndarray) -> np.ndarray:
        return np.sin(2 * np.pi * 5 * t) + 0.3 * np.cos(2 * np.pi * 11 * t)

    record = TimeSeries(t, wave(t), wave(t) ** 2, periodic=True)
    for fs in (160.0, 48.0):
        result = resample(record, fs)
        assert result.periodic and len(result) == fs
        assert_allclose(result.u, wave(result.t), atol=1e-12)
    with pytest.raises(ValueError, match=r"period of 1 s holds 50.5 samples at fs = 50.5 Hz, no whole number; take 50 Hz"):
        resample(record, 50.5)


@pytest.mark.parametrize("intersample, tolerance", [("bl", 0.01), ("foh", 0.05)])
def test_irregular_records(intersample: Any, tolerance: float) -> None:
    t = TIME + np.random.default_rng(1).uniform(-1e-3, 1e-3, T)
    result = resample(record_of(t, intersample=intersample), 100.0)
    assert result.fs == pytest.approx(100.0) and result.t[-1] <= t[-1] + 1e-9 and result.t[-1] > t[-1] - 0.02
    assert_allclose(result.y[10:-10], tones(result.t)[10:-10], atol=tolerance)


def test_refused_rates() -> None:
    gap = np.delete(np.arange(T), slice(100, 110))
    missing = record_of().replace(y=np.where(np.arange(T)[:, None] == [7, -1], np.nan, tones(TIME)))
    cases: list[tuple[TimeSeries, Any, str]] = [
        (record_of(), 0.0, "fs must be a positive sampling rate in Hz, but is 0.0"),
        (record_of(), "fast", "fs must be a positive sampling rate in Hz, but is 'fast'"),
        (record_of()[:3], 100.0, "the record has 3 samples; resampling needs 4"),
        (missing, 100.0, r"output 'z' misses values, .*; cut the record there"),
        (record_of(intersample="zoh"), 100.0, "the input is held between samples .*intersample='bl'"),
        (record_of(TIME[gap]), 100.0, r"gap of 0.055 s behind t\[99\] = 0.495 s, .*record\[:100\], record\[100:\]"),
        (record_of(), 200.0 / np.pi / 1e4, r"fs = 0.0063662 Hz leaves one sample of the 1.995 s of the record"),
        (record_of(), 2 / np.pi, r"is 0.00318309886 times .*; take a rate such as 0.6369"),
        (record_of(), np.complex64(5), "fs must be a positive sampling rate in Hz"),
    ]
    for record, fs, message in cases:
        with pytest.raises(ValueError, match=message):
            resample(record, fs)


def test_outputs_of_a_held_input_alone_may_be_resampled() -> None:
    """Without an input nothing jumps."""
    assert len(resample(TimeSeries(TIME, y=tones(TIME), intersample="zoh"), 100.0)) == 200


@pytest.mark.parametrize("periodic", [False, True])
def test_a_linear_input_is_band_limited_at_a_lower_rate(periodic: bool) -> None:
    t = np.arange(400) / 200.0
    record = TimeSeries(t, np.sin(2 * np.pi * 3 * t), np.cos(2 * np.pi * 3 * t), intersample="foh", periodic=periodic)
    slow = resample(record, 20.0)
    assert slow.intersample == "bl" and slow.periodic is periodic
    # Between the samples it is what it was; straight lines would lose 7 %.
    k, s = np.arange(10, 30), np.full(20, 0.5)
    assert_allclose(slow.input_at(k, s)[:, 0], np.sin(2 * np.pi * 3 * (slow.t[k] + 0.025)), atol=5e-3)
    without = resample(TimeSeries(t, None, np.cos(t), intersample="foh"), 20.0)
    assert without.intersample == "foh"


def test_a_linear_input_stays_linear_at_a_multiple_of_the_rate() -> None:
    t, u = np.arange(60) / 10.0, np.random.default_rng(0).standard_normal(60)
    record = TimeSeries(t, u, np.sin(t), intersample="foh", periodic=False)
    fast = resample(record, 40.0)
    assert fast.intersample == "foh"
    assert_allclose(fast.u, np.interp(fast.t, t, u), atol=1e-12)
    assert_allclose(fast.y[20:-20], np.sin(fast.t)[20:-20], atol=1e-2)
    around = resample(record.replace(periodic=True, y=np.sin(2 * np.pi * t / 6)), 40.0)
    assert_allclose(around.u[-1], 0.25 * u[-1] + 0.75 * u[0])
    with pytest.raises(
        ValueError, match="corners are no samples at a rate that is no whole multiple; take a multiple of 10 Hz"
    ):
        resample(record, 15.0)
