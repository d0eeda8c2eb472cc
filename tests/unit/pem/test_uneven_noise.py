"""Noise whose size varies: the test for it, and standard errors that allow for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.uneven_noise import samples, sandwich, unevenness

DECAY = sid.System(lambda t, x, u, p: -p.r * x.c, states=("c",), params=("r",), observe=lambda t, x, dx, u, p: x.c)
T = np.linspace(0, 5, 60)


def fitted(noise: np.ndarray, x0: Any = 2.0, **options: Any) -> sid.PEMResult:
    return sid.fit_pem(DECAY, sid.TimeSeries(T, None, 2 * np.exp(-T) + noise), {"r": 0.8}, x0=x0, starts=1, **options)


def test_errors_are_those_of_the_sandwich_by_hand() -> None:
    fit = fitted(0.02 * np.random.default_rng(0).standard_normal(60))
    at = samples(fit.target, fit.x)
    r = float(fit.x[0])
    e, slope = fit.setup.filter.records[0].output_matrix[:, 0] - 2 * np.exp(-r * T), 2 * T * np.exp(-r * T)
    np.testing.assert_allclose(at.standardised, e, atol=1e-6)
    np.testing.assert_allclose(np.abs(at.slope[:, 0]), slope, atol=1e-4)
    leverage = slope**2 / np.sum(slope**2)
    expected = np.sum((slope * e / (1 - leverage)) ** 2) / np.sum(slope**2) ** 2
    assert sandwich(fit.target, at, np.array([True]))[0, 0] == pytest.approx(expected, rel=1e-3)


def test_scores_of_a_likelihood_add_up_to_its_gradient() -> None:
    noise = 0.02 * np.random.default_rng(0).standard_normal(60)
    fit = fitted(noise, objective="likelihood", predictor=sid.ExtendedKalman(R="estimate"))
    x = fit.x * 1.1
    at, evaluation = samples(fit.target, x), fit.target.evaluate(x)
    np.testing.assert_allclose(at.score.sum(axis=0), evaluation.gradient, rtol=1e-10)
    np.testing.assert_allclose(at.information, evaluation.information, rtol=1e-10)


def test_noise_of_one_size_is_seldom_called_uneven() -> None:
    rng = np.random.default_rng(1)
    fit = fitted(0.02 * rng.standard_normal(60))
    at = samples(fit.target, fit.x)
    chances = np.array([unevenness(fit.target, at._replace(standardised=rng.standard_normal(60))) for _ in range(1000)])
    assert 0.02 < np.mean(chances < 0.05) < 0.08 and np.mean(chances < 0.01) < 0.025


@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_errors_hold_where_noise_grows_with_the_output(objective: Any) -> None:
    """By errors for noise of one size, the standardised errors of a decay from an unknown start are twice as large."""
    options: dict[str, Any] = {"objective": objective, "x0": None}
    options |= {"predictor": sid.ExtendedKalman(R="estimate")} if objective == "likelihood" else {}
    z, said, plain = [], [], []
    for seed in range(60):
        fit = fitted(0.1 * 2 * np.exp(-T) * np.random.default_rng(seed).standard_normal(60), **options)
        z.append((fit.x[0] - 1.0) / fit.x_stderr[0])
        said.append("not of one size" in fit.message)
        evaluation = fit.target.evaluate(fit.x)
        plain.append((fit.x[0] - 1.0) / np.sqrt(fit.target.covariance(evaluation, np.ones(fit.x.size, dtype=bool))[0, 0]))
        assert fit.success
    assert np.mean(said) > 0.8
    assert np.sqrt(np.mean(np.square(z))) < 1.3 < 1.6 < np.sqrt(np.mean(np.square(plain)))


def test_records_of_unequal_noise_are_seen() -> None:
    rng = np.random.default_rng(2)
    records = [sid.TimeSeries(T, None, 2 * np.exp(-T) + s * rng.standard_normal(60)) for s in (0.005, 0.005, 0.05)]
    fit = sid.fit_pem(DECAY, records, {"r": 0.8}, x0={"c": 2.0}, starts=1)
    assert "between records" in fit.message and fit.success


def test_few_samples_have_larger_errors_by_likelihood() -> None:
    noise = 0.02 * np.random.default_rng(0).standard_normal(60)
    fit = fitted(noise, objective="likelihood", predictor=sid.ExtendedKalman(R="estimate"))
    information = fit.target.evaluate(fit.x).information
    np.testing.assert_allclose(fit.cov, np.linalg.inv(information) * 60 / 59, rtol=1e-8)
    known = fitted(noise, objective="likelihood", predictor=sid.ExtendedKalman(R=0.02**2))
    np.testing.assert_allclose(known.cov, np.linalg.inv(known.target.evaluate(known.x).information), rtol=1e-8)
