"""Posteriors by simulation-based calibration: right ones pass, and wrong ones do not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid

PRIORS = {"c": (1.0, 0.3), "k": (100.0, 0.2), "k3": (2000.0, 0.3)}
NOISE, T = 0.01, 60
DUFFING = sid.models.duffing()


def record() -> sid.TimeSeries:
    rng, t = np.random.default_rng(1), 0.05 * np.arange(T)
    u = sum(np.sin(2 * np.pi * f * t + a) for f, a in zip(np.linspace(0.3, 2.5, 8), rng.uniform(0, 6.28, 8), strict=True))
    return sid.TimeSeries(t, 3.0 * u, np.zeros(T))


RECORD = record()


def free_run(params: dict[str, Any]) -> np.ndarray:
    values = {"m": 1.0, **{name: params[name] for name in PRIORS}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)  # of draws far out in the prior
        return np.asarray(sid.simulate(DUFFING, RECORD, values, x0=0.0, substeps=16)["y"].values)


def measured(params: dict[str, Any], rng: np.random.Generator) -> sid.TimeSeries:
    return RECORD.replace(y=free_run(params) + params.get("noise", NOISE) * rng.standard_normal(T))


def duffing(noise: float | None = None) -> pm.Model:
    with pm.Model() as model:
        params = {name: pm.LogNormal(name, np.log(value), spread) for name, (value, spread) in PRIORS.items()}
        std = pm.LogNormal("noise", np.log(NOISE), 0.5) if noise is None else noise
        sid.ODEFilter("y", DUFFING, RECORD, {"m": 1.0, **params}, noise=std, x0=0.0, solver=sid.EK1(order=4), substeps=2)
    return model


def regression() -> pm.Model:
    x = np.linspace(-1.0, 1.0, 12)
    with pm.Model() as model:
        beta = pm.Normal("beta", [1.0, 0.0], [2.0, 0.5])
        pm.Normal("y", beta[0] + beta[1] * x, 0.5, observed=pm.Data("y_data", np.zeros(12)))
    return model


def exactly(width: float = 1.0, shift: float = 0.0, overlooked: int = 0) -> Any:
    """The conjugate posterior of `regression`, or one wrong by a factor of its sd, a shift, or samples not looked at."""
    X = np.stack([np.ones(12), np.linspace(-1.0, 1.0, 12)], axis=1)[overlooked:]
    covariance = np.linalg.inv(np.diag([1 / 4, 4.0]) + X.T @ X / 0.25)
    root = np.linalg.cholesky(covariance)

    def fit(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        y = model["y_data"].get_value()[overlooked:]
        mean = covariance @ (np.array([1 / 4, 0.0]) + X.T @ y / 0.25)
        draws = mean + (width * rng.standard_normal((1, 300, 2)) + shift) @ root.T
        return xr.Dataset({"beta": (("chain", "draw", "i"), draws)})

    return fit


@pytest.mark.slow
def test_an_exact_posterior_passes_and_wrong_ones_are_named() -> None:
    options: dict[str, Any] = dict(n=400, random_seed=1, progressbar=False)
    fine = sid.calibration_tests(sid.calibrate(regression, fit=exactly(), **options))
    print(fine)
    assert fine.passed and fine.parameters == ("beta[0]", "beta[1]", "log_likelihood")
    assert np.all(np.abs(fine.coverage - [0.5, 0.9]) < 0.08)
    for width, verdict in ((0.8, "too narrow"), (1.25, "too wide")):
        tests = sid.calibration_tests(sid.calibrate(regression, fit=exactly(width), **options))
        print(tests)
        assert tests.verdict("beta[0]") == tests.verdict("beta[1]") == verdict
        assert tests.width[0] == pytest.approx(1 / width, abs=0.12)
    tests = sid.calibration_tests(sid.calibrate(regression, fit=exactly(shift=0.4), **options))
    assert tests.verdict("beta[0]") == "too high"
    # A posterior given a part of the data is a posterior: only the log-likelihood of all the data tells.
    tests = sid.calibration_tests(sid.calibrate(regression, fit=exactly(overlooked=8), **options))
    print(tests)
    assert tests.verdict("beta[0]") == tests.verdict("beta[1]") == "fine"
    assert tests.verdict("log_likelihood") != "fine"


@pytest.mark.slow
def test_ibis_on_accurate_records_of_a_duffing_oscillator() -> None:
    tests = sid.calibration_tests(
        sid.calibrate(duffing, 150, fit="ibis", generate=measured, random_seed=5, progressbar=False, draws=500)
    )
    print(tests)
    assert tests.passed and tests.failed == 0 and np.all(tests.contraction[:4] > 0.9)


@pytest.mark.slow
def test_nuts_on_records_of_the_model() -> None:
    settings = dict(draws=150, tune=100)
    tests = sid.calibration_tests(sid.calibrate(duffing, 60, fit="nuts", random_seed=6, progressbar=False, **settings))
    print(tests)
    assert tests.passed and tests.failed == 0


@pytest.mark.slow
def test_half_the_noise_is_found() -> None:
    def halved() -> pm.Model:
        return duffing(NOISE / 2)

    tests = sid.calibration_tests(
        sid.calibrate(halved, 60, fit="ibis", generate=measured, random_seed=7, progressbar=False, draws=500)
    )
    print(tests)
    for name in PRIORS:
        assert tests.verdict(name) == "too narrow", name
    assert tests.verdict("log_likelihood") != "fine"


@pytest.mark.slow
def test_pem_and_its_laplace_approximation() -> None:
    """Flat priors beside narrow posteriors: nearly calibrated, by tests that would find a third too narrow."""
    tests = sid.calibration_tests(
        sid.calibrate(
            duffing, 200, fit="pem", generate=measured, data=RECORD, var_names=list(PRIORS), random_seed=8, progressbar=False
        )
    )
    print(tests)
    assert tests.failed <= 10 and max(tests.resolution) < 0.4
    assert np.all(np.abs(tests.width - 1) < 0.3) and np.all(np.abs(tests.location) < 0.4)
