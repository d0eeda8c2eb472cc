"""What a record shows against how it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

import pm_sysid as sid
from pm_sysid.records.remarks import Following, at_a_limit, following, held, stood_still, wrapped
from pm_sysid.records.timeseries import TimeSeries

T = 0.1 * np.arange(300)
STEPS = np.repeat(np.random.default_rng(0).standard_normal(60), 5)


def record(u: np.ndarray, y: np.ndarray | None = None, intersample: Any = "bl") -> TimeSeries:
    return TimeSeries(T, u, y, inputs="F", intersample=intersample)


@pytest.mark.parametrize("u", [np.sin(T), np.where(T > 10, 1.0, 0.0), np.clip(T - 10, 0, 5), np.sin(T).round(1)])
def test_inputs_that_vary_or_jump_once_are_not_held(u: np.ndarray) -> None:
    assert held([record(u)]) == ""


@pytest.mark.parametrize("intersample", ["bl", "foh", "zoh"])
def test_an_input_that_is_held_is_seen_where_the_record_says_otherwise(intersample: Any) -> None:
    said = held([record(STEPS, intersample=intersample)])
    assert (said == "") == (intersample == "zoh")
    assert intersample == "zoh" or (said.startswith("F keeps its value") and repr(intersample) in said)


def test_samples_at_a_limit_are_counted_and_those_of_a_converter_are_not() -> None:
    y = np.sin(T) + 0.02 * np.random.default_rng(1).standard_normal(300)
    both = at_a_limit([TimeSeries(T, y=np.clip(y, -0.7, 0.9))])
    assert f"{np.sum(y >= 0.9)} samples of y are exactly its largest value, 0.9" in both
    assert f"{np.sum(y <= -0.7)} samples of y are exactly its smallest value, -0.7" in both and "limits=" in both
    assert at_a_limit([TimeSeries(T, y=y)]) == at_a_limit([TimeSeries(T, y=y.round(1))]) == ""
    assert at_a_limit([TimeSeries(T, y=np.zeros(300))]) == ""


@pytest.mark.parametrize("length", [2, 3, 8])
def test_samples_that_a_logger_has_repeated_are_found(length: int) -> None:
    """Those of a fine resolution from two on; a converter repeats values by itself."""
    y = np.sin(T) + 0.02 * np.random.default_rng(1).standard_normal(300)
    stood, coarse = y.copy(), y.round(3)
    for values in (stood, coarse):
        values[100 : 100 + length] = values[100]
    said = stood_still([TimeSeries(T, y=stood)])
    assert f"{length} samples of y from {T[100]:.6g} on have the same value, {stood[100]:.6g}" in said
    assert ("8 samples of y" in stood_still([TimeSeries(T, y=coarse)])) == (length == 8)
    gaps = np.where(np.random.default_rng(2).random(300) < 0.3, np.nan, stood)
    gaps[100 : 100 + length] = stood[100]
    assert f"{length} samples of y" in stood_still([TimeSeries(T, y=gaps)])


def test_what_keeps_a_value_for_another_reason_is_no_logger_that_stood() -> None:
    """A converter, rest before, between and after tests, a limit, a constant."""
    rng = np.random.default_rng(3)
    y = np.sin(T) + 0.02 * rng.standard_normal(300)
    pauses = (y * np.clip((np.abs(T - 10) - 2) / 5, 0, 1) ** 3 + 0.001 * rng.standard_normal(300)).round(2)
    at_rest = np.where(T < 5, 0.0, y)
    for values in (y, y.round(1), pauses, at_rest, at_rest[::-1], np.minimum(y, 0.7), np.full(300, 2.0)):
        assert stood_still([TimeSeries(T, y=values)]) == ""
    found = [stood_still([TimeSeries(T, y=np.sin(T * rng.uniform(0.2, 3)).round(rng.integers(1, 6)))]) for _ in range(200)]
    assert sum(map(bool, found)) <= 2


def test_independent_series_seldom_follow_each_other() -> None:
    """Also slow ones, whose plain correlations are large by chance."""
    rng, found = np.random.default_rng(2), []
    for kept in (0.0, 0.9):
        for _ in range(200):
            e, u = (lfilter([1.0], [1.0, -kept], rng.standard_normal(300)) for _ in range(2))
            found.append(following(np.where(rng.random(300) < 0.05, np.nan, e), record(u)))
    assert sum(f is not None for f in found) <= 3


@pytest.mark.parametrize("lag", [-3, 0, 2])
def test_the_lag_says_which_comes_first(lag: int) -> None:
    rng = np.random.default_rng(3)
    u = rng.standard_normal(300)
    e = np.roll(u, lag) + rng.standard_normal(300)
    found = following(e, record(u))
    assert found is not None and (found.input, found.lag) == ("F", lag)
    words = found.words(coloured=True)
    assert ("feedback" in words) == (lag <= 0) and ("misses" in words) == (lag >= 0)
    assert "biased" not in found.words(coloured=False)


def test_of_a_periodic_input_it_is_not_said_which_comes_first() -> None:
    """A part of a sine that a model lacks is correlated with what comes a period later as well."""
    rng = np.random.default_rng(6)
    for phase in np.linspace(0, np.pi, 8):
        e = np.sin(2.5 * T + phase) + rng.standard_normal(300)
        found = following(e, record(np.sin(2.5 * T)))
        assert found is not None and (not found.clear or found.lag == 0)
        assert "misses a part of its effect, or it answers" in found.words(coloured=True)


def loop(seed: int, gain: float) -> TimeSeries:
    """A lag under a random force within, whose input is held, and is set by its output where the gain is not zero."""
    rng, x, u, y = np.random.default_rng(seed), 0.0, [], []
    aim, kept = np.repeat(rng.standard_normal(60), 10), np.exp(-0.03)
    for i in range(600):
        y.append(x + 0.02 * rng.standard_normal())
        u.append(gain * (0.5 * aim[i] - y[-1]) if gain else aim[i])
        x = kept * x + (1 - kept) / 0.3 * u[-1] + 0.03 * rng.standard_normal()
    return TimeSeries(0.1 * np.arange(600), np.array(u), np.array(y), inputs="F", intersample="zoh")


@pytest.mark.parametrize("gain", [0.0, 2.0])
def test_a_fit_in_closed_loop_is_not_told_that_standard_errors_allow_for_its_noise(gain: float) -> None:
    system = sid.System(
        lambda t, x, u, p: p.b * u.F - p.a * x.z, states=("z",), inputs=("F",), params=("a", "b"),
        observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    said = [sid.fit_pem(system, loop(seed, gain), {"a": 0.5, "b": 0.5}).message for seed in range(4)]
    assert all("not white" in message for message in said)
    assert all(("feedback" in message) == bool(gain) for message in said)
    assert all(("which the standard errors allow for" in message) == (not gain) for message in said)


def test_a_fit_says_what_its_record_shows() -> None:
    system = sid.System(
        lambda t, x, u, p: p.b * u.F - p.a * x.z, states=("z",), inputs=("F",), params=("a", "b"),
        observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    free = record(STEPS, intersample="zoh")
    clean = sid.simulate(system, free, {"a": 0.5, "b": 1.0}, x0=0.0)["y"].to_numpy()
    clipped = np.clip(clean + 0.02 * np.random.default_rng(4).standard_normal(300), -0.6, 0.6)
    fit = sid.fit_pem(system, free.replace(y=clipped, intersample="foh"), {"a": 0.3, "b": 0.5})
    assert "F keeps its value over runs of samples" in fit.message
    assert "exactly its largest value, 0.6" in fit.message or "exactly its smallest value, -0.6" in fit.message


def test_a_named_following_has_words() -> None:
    assert "follow u (p = 0.0001)" in Following("u", 3, 1e-4).words(coloured=False)


def test_angles_that_are_kept_within_a_turn_are_seen_and_switches_are_not() -> None:
    angle = 0.9 * T + 0.02 * np.random.default_rng(0).standard_normal(T.size)
    kept = np.angle(np.exp(1j * angle))
    assert "y jumps by a whole turn (6.283)" in wrapped([TimeSeries(T, y=kept)])
    degrees = np.degrees(kept) % 360.0
    degrees[::7] = np.nan
    assert "y jumps by a whole turn (360)" in wrapped([TimeSeries(T, y=degrees)])
    assert wrapped([TimeSeries(T, y=angle)]) == wrapped([TimeSeries(T, y=0.9 * kept)]) == ""
    switch = np.where(np.sin(T) > 0, np.pi, -np.pi)
    assert wrapped([TimeSeries(T, y=switch)]) == wrapped([TimeSeries(T, y=0.97 * switch + 0.02 * angle % 0.1)]) == ""
    assert wrapped([TimeSeries(T, y=np.pi * (-1.0) ** np.arange(T.size))]) == ""  # jumps alone
    assert wrapped([TimeSeries(T, y=np.pi * np.random.default_rng(1).uniform(-1.0, 1.0, T.size))]) == ""
