"""Standard errors over many records: two noises with the start left to the filter, and noise that outputs have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import pm_sysid as sid

RECORDS, STEP, T = 100, 0.1, 400
RELAXATION = sid.System(lambda t, x, u, p: -p.a * x.s, states=("s",), params=("a",), observe=lambda t, x, dx, u, p: x.s)
MOTION: Any = lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z) / p.m)  # noqa: E731
BODY: dict[str, Any] = {"states": ("z", "v"), "inputs": ("F",), "params": ("m", "c", "k")}
TRUTH, GUESS = {"m": 1.0, "c": 1.0, "k": 150.0}, {"m": 1.3, "c": 0.6, "k": 120.0}
LIKELIHOOD: dict[str, Any] = {"objective": "likelihood", "progressbar": False}


def check_spread(scores: np.ndarray, low: float = 0.0005) -> None:
    """The sum of squares of the scores (n, k) is chi-square, a column at a time."""
    n = len(scores)
    bounds = stats.chi2.ppf([low, 1 - low], n) / n
    squares = np.mean(scores**2, axis=0)
    assert np.all((bounds[0] < squares) & (squares < bounds[1])), np.sqrt(squares)


@pytest.mark.slow
def test_both_noises_with_the_start_left_to_the_filter() -> None:
    drive, scores, t = np.sqrt((1 - np.exp(-2 * STEP)) / 2), [], STEP * np.arange(T)
    predictor = sid.ExtendedKalman(Q="estimate", R="estimate")
    for seed in range(RECORDS):
        rng, s, y = np.random.default_rng(seed), 0.0, np.empty(T)
        for k in range(T):
            s = np.exp(-STEP) * s + drive * rng.standard_normal() if k else np.sqrt(0.5) * rng.standard_normal()
            y[k] = s + 0.1 * rng.standard_normal()
        fit = sid.fit_pem(RELAXATION, sid.TimeSeries(t, None, y), {"a": 2.0}, predictor=predictor, **LIKELIHOOD)
        if fit.success:
            scores.append((fit.x[:2] - [1.0, drive]) / fit.x_stderr[:2])
    assert len(scores) > 0.95 * RECORDS
    check_spread(np.array(scores))


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_noise_that_outputs_have_in_common(correlation: float) -> None:
    t = np.arange(300) / 50.0
    base = sid.TimeSeries(t, 10 * np.sin(0.6 * np.pi * t * (1 + t / 2)), None, inputs="F")
    system = sid.System(MOTION, observe=lambda t, x, dx, u, p: {"z": x.z, "a": dx.v}, **BODY)
    run = sid.simulate(system, base, TRUTH, x0=0.0, substeps=16)
    clean, scores = np.column_stack([run["z"].values, run["a"].values]), []
    for seed in range(RECORDS):
        e = np.random.default_rng(seed).standard_normal((300, 2))
        e[:, 1] = correlation * e[:, 0] + np.sqrt(1 - correlation**2) * e[:, 1]
        data = base.replace(y=clean + e * [2e-3, 0.3], outputs=("z", "a"))
        fit = sid.fit_pem(system, data, GUESS, **LIKELIHOOD)
        assert fit.success
        scores.append((fit.x[:3] - list(TRUTH.values())) / fit.x_stderr[:3])
    check_spread(np.array(scores))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [(1e-3, 1e-2, 3e-3), (1e-2, 1e-3, 1e-3)])
@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_records_of_unequal_noise(noise: tuple[float, ...], objective: Any) -> None:
    t = np.arange(300) / 50.0
    u = 10 * np.sin(0.6 * np.pi * t * (1 + t / 2))
    bases = [sid.TimeSeries(t[:100], u[a : a + 100], None, inputs="F") for a in (0, 100, 200)]
    starts = [{"z": 0.05, "v": 0.0}, {"z": -0.1, "v": 1.0}, {"z": 0.0, "v": 0.0}]
    system = sid.System(MOTION, observe=lambda t, x, dx, u, p: x.z, **BODY)
    runs = [sid.simulate(system, b, TRUTH, x0=x, substeps=16)["y"].values for b, x in zip(bases, starts, strict=True)]
    scores, said = [], 0
    for seed in range(RECORDS):
        rng = np.random.default_rng(1000 + seed)
        data = [b.replace(y=y + s * rng.standard_normal(100)) for b, y, s in zip(bases, runs, noise, strict=True)]
        fit = sid.fit_pem(system, data, GUESS, objective=objective, progressbar=False)
        assert fit.success
        said += "not white" in fit.message
        scores.append((fit.x[:3] - list(TRUTH.values())) / fit.x_stderr[:3])
    assert said <= 0.02 * RECORDS
    check_spread(np.array(scores))
