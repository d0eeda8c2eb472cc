"""Gauss-Markov: over many records, estimates spread as their standard errors say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import pm_sysid as sid

RECORDS, SAMPLES, TRUTH = 100, 400, {"k": 4.0, "c": 0.4}
DRIVE, NOISE = 0.03, 0.02
OSCILLATOR = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.k * x.z - p.c * x.v),
    states=("z", "v"), inputs=("F",), params=("k", "c"), observe=lambda t, x, dx, u, p: x.z,
)  # fmt: skip
Q = {"z": 0.0, "v": DRIVE}
START = sid.InitialState(0.0, P0=0.0)
CASES: dict[str, Any] = {
    "free run": (0.0, {"predictor": sid.ExtendedKalman(substeps=2), "x0": 0.0}),
    "start estimated": (0.0, {"predictor": sid.ExtendedKalman(substeps=2)}),
    "filter": (DRIVE, {"predictor": sid.ExtendedKalman(Q=Q, R={"y": NOISE}, substeps=2), "x0": START}),
    "likelihood": (
        DRIVE,
        {
            "predictor": sid.ExtendedKalman(Q={"v": "estimate"}, R="estimate", substeps=2),
            "x0": START,
            "objective": "likelihood",
        },
    ),
}


def records(drive: float) -> list[sid.TimeSeries]:
    """One input, and other noise each time: velocity jumps by ``drive`` before each sample, on the map of the filter itself."""
    rng, t = np.random.default_rng(11), 0.1 * np.arange(SAMPLES)
    u = np.repeat(rng.choice([-1.0, 1.0], size=SAMPLES // 5), 5)
    h, step, push = 0.05, np.eye(3), np.array([[0.0, 1.0, 0.0], [-TRUTH["k"], -TRUTH["c"], 1.0], [0.0, 0.0, 0.0]])
    for k in (4, 3, 2, 1):  # a Runge-Kutta step of state and held input
        step = np.eye(3) + h / k * push @ step
    two, x, rows = step @ step, np.zeros((RECORDS, 2)), []
    for k in range(SAMPLES):
        rows.append(x[:, 0] + NOISE * rng.normal(size=RECORDS))
        x = np.column_stack([x, np.full(RECORDS, u[k])]) @ two[:2].T + rng.normal(size=(RECORDS, 1)) * [0.0, drive]
    return [sid.TimeSeries(t, u, y, intersample="zoh") for y in np.array(rows).T]


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_spread_of_estimates_is_their_standard_error(case: str) -> None:
    drive, options = CASES[case]
    fits = [sid.fit_pem(OSCILLATOR, r, {"k": 3.5, "c": 0.6}, **options) for r in records(drive)]
    assert all(f.success for f in fits)
    errors = np.array([f.x[:2] for f in fits]) - list(TRUTH.values())
    scores = errors / np.array([f.x_stderr[:2] for f in fits])
    # The mean of the scores is normal, the sum of their squares chi-square with a degree of freedom a record.
    assert np.all(np.abs(scores.mean(axis=0)) < 3.3 / np.sqrt(RECORDS))
    low, high = stats.chi2.ppf([0.0005, 0.9995], RECORDS) / RECORDS
    assert np.all((low < np.mean(scores**2, axis=0)) & (np.mean(scores**2, axis=0) < high))
    # Both parameters together, and so the correlation too.
    distances = [e @ np.linalg.solve(f.cov[:2, :2], e) for e, f in zip(errors, fits, strict=True)]
    low, high = stats.chi2.ppf([0.0005, 0.9995], 2 * RECORDS) / (2 * RECORDS)
    assert low < np.mean(distances) / 2 < high
