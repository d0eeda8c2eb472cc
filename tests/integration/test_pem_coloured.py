"""Innovations that are correlated in time are seen, and standard errors allow for them where predictions do not follow."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

import pm_sysid as sid
from pm_sysid.pem.coloured_noise import coloured
from pm_sysid.pem.uneven_noise import Samples

TRUTH, GUESS = {"m": 1.0, "c": 1.0, "k": 150.0}, {"m": 1.3, "c": 0.6, "k": 120.0}
STATES: dict[str, Any] = {"states": ("z", "v"), "inputs": ("F",), "params": ("m", "c", "k")}
MOTION: Any = lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z) / p.m)  # noqa: E731
OSCILLATOR = sid.System(MOTION, observe=lambda t, x, dx, u, p: x.z, **STATES)
T = np.arange(300) / 50.0
DRIVE = sid.TimeSeries(T, 10 * np.sin(0.6 * np.pi * T * (1 + T / 2)), None, inputs="F")


def noise(seed: int, correlation: float, shape: tuple[int, ...] = (300,)) -> np.ndarray:
    """Of unit variance, each value so much correlated with that before."""
    white = np.random.default_rng(seed).standard_normal((shape[0] + 100, *shape[1:]))
    return np.asarray(lfilter([np.sqrt(1 - correlation**2)], [1.0, -correlation], white, axis=0)[100:])


def scores(fits: list[sid.PEMResult]) -> np.ndarray:
    return np.array([(f.x[:3] - list(TRUTH.values())) / f.x_stderr[:3] for f in fits])


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mse", "likelihood"])
@pytest.mark.parametrize("correlation", [0.3, 0.8])
def test_errors_hold_where_noise_is_coloured(objective: Any, correlation: float) -> None:
    """Standardised errors were 1.23 to 1.29 with a correlation of 0.3, and nothing was said of two records in three."""
    clean = sid.simulate(OSCILLATOR, DRIVE, TRUTH, x0=0.0, substeps=16)["y"].values
    fits = [
        sid.fit_pem(
            OSCILLATOR, DRIVE.replace(y=clean + 0.01 * noise(seed, correlation)), GUESS, x0=0.0, objective=objective,
            progressbar=False, starts=2,
        )
        for seed in range(40)
    ]  # fmt: skip
    said = "The innovations of y are not white"
    assert sum(said in f.message and "which the standard errors allow for" in f.message for f in fits) > 36
    assert np.all(np.sqrt(np.mean(scores(fits) ** 2, axis=0)) < 1.15)
    assert np.sqrt(np.mean(scores(fits) ** 2)) > 0.8
    plain = [np.sqrt(np.diag(f.target.covariance(f.target.evaluate(f.x), np.ones(f.x.size, dtype=bool))))[:3] for f in fits]
    assert np.sqrt(np.mean((scores(fits) * [f.x_stderr[:3] for f in fits] / plain) ** 2)) > 1.2


@pytest.mark.slow
def test_errors_hold_where_outputs_have_other_colours() -> None:
    system = sid.System(MOTION, observe=lambda t, x, dx, u, p: {"z": x.z, "a": dx.v}, **STATES)
    run = sid.simulate(system, DRIVE, TRUTH, x0=0.0, substeps=16)
    fits = []
    for seed in range(60):
        e = np.column_stack([0.01 * noise(seed, 0.6), 0.5 * noise(1000 + seed, -0.4)])
        data = DRIVE.replace(y=np.column_stack([run["z"].values, run["a"].values]) + e, outputs=("z", "a"))
        fits.append(sid.fit_pem(system, data, GUESS, x0=0.0, objective="likelihood", progressbar=False, starts=1))
    assert all("not white" in f.message for f in fits)
    assert 0.8 < np.sqrt(np.mean(scores(fits) ** 2)) < 1.2


def test_correlations_of_records_add_up() -> None:
    """In each of twelve records of 50 samples a correlation of 0.3 is hardly seen; in all together it is."""
    clean = sid.simulate(OSCILLATOR, DRIVE, TRUTH, x0=0.0, substeps=16)["y"].values[:50]
    short, seen = DRIVE[:50], []
    for correlation in (0.3, 0.0):
        data = [short.replace(y=clean + 0.001 * noise(s, correlation, (50,))) for s in range(12)]
        seen.append("not white" in sid.fit_pem(OSCILLATOR, data, GUESS, x0=0.0, progressbar=False, starts=2).message)
    assert seen == [True, False]


def spread(make: Callable[[np.random.Generator], Any], x0: Any) -> np.ndarray:
    """Root mean squares (3,) of standardised errors over 60 fits, nearly all of which say that noise is coloured."""
    fits = [
        sid.fit_pem(OSCILLATOR, make(np.random.default_rng(s)), GUESS, x0=x0, progressbar=False, starts=1) for s in range(60)
    ]
    assert sum("not white" in f.message for f in fits) >= 58
    return np.asarray(np.sqrt(np.mean(scores(fits) ** 2, axis=0)))


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.6, 0.9])
def test_errors_hold_where_starts_of_short_records_follow_the_noise(correlation: float) -> None:
    """The slow part of the noise is in the initial states, which are unknowns, and not in the innovations."""
    clean = sid.simulate(OSCILLATOR, DRIVE, TRUTH, x0=0.0, substeps=16)["y"].values[100:150]
    short = DRIVE[100:150]

    def make(rng: np.random.Generator) -> list[sid.TimeSeries]:
        return [short.replace(y=clean + 0.003 * noise(int(rng.integers(2**31)), correlation, (50,))) for _ in range(10)]

    assert np.all(np.abs(spread(make, None) - 1.0) < 0.25)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["a third", "half", "blocks"])
def test_errors_hold_where_noise_is_coloured_and_samples_are_missing(missing: str) -> None:
    clean = sid.simulate(OSCILLATOR, DRIVE, TRUTH, x0=0.0, substeps=16)["y"].values

    def make(rng: np.random.Generator) -> sid.TimeSeries:
        y = clean + 0.01 * noise(int(rng.integers(2**31)), 0.9)
        gone = np.arange(300) // 20 % 2 == 1 if missing == "blocks" else rng.random(300) < (0.5 if missing == "half" else 0.33)
        return DRIVE.replace(y=np.where(gone, np.nan, y))

    assert np.all(np.abs(spread(make, 0.0) - 1.0) < 0.25)


@pytest.mark.slow
def test_errors_hold_where_times_come_in_bursts() -> None:
    """The noise is correlated over time, and not from one sample to the next."""

    def make(rng: np.random.Generator) -> sid.TimeSeries:
        t = np.concatenate([0.12 * i + np.sort(rng.uniform(0, 0.04, 6)) for i in range(50)])
        drive = sid.TimeSeries(t, 10 * np.sin(0.6 * np.pi * t * (1 + t / 2)), None, inputs="F")
        kept, e = np.exp(-np.diff(t) / 0.1), rng.standard_normal(len(t))
        for i in range(1, len(t)):
            e[i] = kept[i - 1] * e[i - 1] + np.sqrt(1 - kept[i - 1] ** 2) * e[i]
        return drive.replace(y=sid.simulate(OSCILLATOR, drive, TRUTH, x0=0.0, substeps=4)["y"].values + 0.01 * e)

    assert np.all(np.abs(spread(make, 0.0) - 1.0) < 0.25)


@pytest.mark.parametrize("kind", ["few", "slow", "hum", "quick"])
def test_it_is_said_where_standard_errors_may_be_too_small(kind: str) -> None:
    words = {"few": "too few samples for each unknown", "quick": "which the standard errors allow for"}
    clean = sid.simulate(OSCILLATOR, DRIVE, TRUTH, x0=0.0, substeps=16)["y"].values
    data: Any = DRIVE.replace(y=clean + 0.01 * noise(0, 0.9))
    if kind == "few":
        data = [DRIVE[a : a + 12].replace(y=clean[a : a + 12] + 0.003 * noise(a, 0.9, (12,))) for a in range(0, 300, 12)]
    elif kind == "slow":
        data = DRIVE.replace(y=clean + 0.01 * noise(0, 0.99))
    elif kind == "hum":
        data = DRIVE.replace(y=clean + 0.01 * noise(0, 0.5) + 0.01 * np.sin(60 * T))
    fit = sid.fit_pem(OSCILLATOR, data, GUESS, x0=None if kind == "few" else 0.0, progressbar=False, starts=1)
    assert "not white" in fit.message and words.get(kind, "over a time that is not short") in fit.message
    assert ("may be too small" in fit.message) == (kind != "quick")


def test_predictions_that_follow_coloured_noise_are_not_trusted() -> None:
    clean = sid.simulate(OSCILLATOR, DRIVE, TRUTH, x0=0.0, substeps=16)["y"].values
    data = DRIVE.replace(y=clean + 0.01 * noise(0, 0.8))
    fit = sid.fit_pem(
        OSCILLATOR, data, GUESS, x0=0.0, predictor=sid.ExtendedKalman(Q={"v": 1e-3}, R={"y": 0.01}), progressbar=False
    )
    assert "not white" in fit.message and "the standard errors are too small, and estimates may be off" in fit.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "uneven", "heavy"])
@pytest.mark.parametrize("n, k", [(30, 4), (60, 4), (300, 6)])
def test_white_innovations_are_seldom_called_coloured(n: int, k: int, kind: str) -> None:
    rng, t = np.random.default_rng(3), np.linspace(0.0, 1.0, n)
    slope = np.column_stack([np.cos(np.pi * j * t) for j in range(1, k + 1)])
    take = slope @ np.linalg.pinv(slope)
    objective: Any = SimpleNamespace(
        measured=np.ones((n, 1), dtype=bool),
        filter=SimpleNamespace(system=SimpleNamespace(outputs=("y",)), records=[range(n)]),
    )
    called = 0
    for _ in range(1000):
        e = rng.standard_t(3, n) if kind == "heavy" else rng.standard_normal(n)
        e = e * np.exp(-4 * t) if kind == "uneven" else e
        e = e - take @ e
        at = Samples(slope * e[:, None], slope, np.zeros_like(slope), e, e, slope.T @ slope)
        called += coloured(objective, at, np.ones(k, dtype=bool)) is not None
    assert called < 1000 * (0.02 if kind == "uneven" else 0.01)
