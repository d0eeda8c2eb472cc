"""Errors of a filter that follows the measurements, in place of those of a free run."""

from __future__ import annotations

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.following import MEASUREMENT, followed, following
from support.pem_cases import FREE, GUESS, OSCILLATOR, TRUTH, record


@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_it_is_the_filter_with_noise_in_proportion(objective: str) -> None:
    """Process noise is a share of the spread of the states, measurement noise of that of the outputs."""
    data = record(n=80)
    fit = sid.fit_pem(OSCILLATOR, data, GUESS, predictor=FREE, objective=objective, starts=1)  # type: ignore[arg-type]
    target = following(fit.target, fit.x, 0.1)
    assert target is not None and not target.layout.positive.any()
    run = sid.simulate(OSCILLATOR, data, fit.p, x0=np.asarray(fit.x0), substeps=FREE.substeps)
    noise = {s: 0.1 * float(np.std(run[s])) for s in OSCILLATOR.states}
    R = {"y": MEASUREMENT * float(np.nanstd(data.output_matrix))}
    kalman = sid.ExtendedKalman(Q=noise, R=R, substeps=FREE.substeps)
    x0 = sid.InitialState(np.asarray(fit.x0), estimate=False, P0=1e-20 * np.eye(2))
    other = sid.fit_pem(OSCILLATOR, data, fit.p, predictor=kalman, x0=x0, starts=1)
    rest = fit.x[~fit.target.layout.positive]
    assert target.evaluate(rest).value == pytest.approx(other.history[0].objective, rel=1e-6)


def test_a_filter_that_has_process_noise_is_followed_by_none() -> None:
    data = record(n=80)
    kalman = sid.ExtendedKalman(Q=1e-4, R=1e-4, substeps=FREE.substeps)
    fit = sid.fit_pem(OSCILLATOR, data, GUESS, predictor=kalman, starts=1)
    assert following(fit.target, fit.x, 0.1) is None
    ends, points = followed(fit.target, fit.x, fit.x[None], np.full(fit.x.size, -np.inf), np.full(fit.x.size, np.inf))
    assert ends.shape == (0, fit.x.size) and points == 0


def test_ends_are_near_the_truth() -> None:
    fit = sid.fit_pem(OSCILLATOR, record(n=120), GUESS, predictor=FREE, starts=1)
    begin = np.array([fit.x * factor for factor in (0.5, 2.0)])
    ends, points = followed(fit.target, fit.x, begin, np.full(fit.x.size, -np.inf), np.full(fit.x.size, np.inf))
    assert points > 0
    assert np.abs(ends[:, :2] / list(TRUTH.values()) - 1).min(axis=0).max() < 0.05
