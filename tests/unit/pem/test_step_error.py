"""Substeps of a fit: judged at what a search has found, and by standard errors where noise is small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.setup import refined, set_up, with_steps
from pm_sysid.pem.step_error import StepError, step_error

T = 200
TRUTH = {"m": 1.0, "c": 1.0, "k": 150.0, "k3": 2000.0}
TIMES = np.arange(T) / 50.0
DRIVE = sid.TimeSeries(TIMES, 10 * np.sin(0.6 * np.pi * TIMES * (1 + TIMES)), None, inputs="F")
GUESS = {k: 1.05 * v for k, v in TRUTH.items()}


def record(noise: float, seed: int = 0, substeps: int = 128) -> sid.TimeSeries:
    """A Duffing oscillator with noise in shares of its standard deviation."""
    y = sid.simulate(sid.models.duffing(), DRIVE, TRUTH, x0=0.0, substeps=substeps)["y"].values
    return DRIVE.replace(y=y + noise * y.std() * np.random.default_rng(seed).standard_normal(T))


def fit(noise: float, seed: int = 0, substeps: int = 128, **options: Any) -> sid.PEMResult:
    data = record(noise, seed, substeps)
    return sid.fit_pem(sid.models.duffing(), data, GUESS, x0=0.0, progressbar=False, **options)


@pytest.mark.parametrize("noise", [1e-5, 1e-6])
def test_clean_records_have_the_steps_that_their_errors_ask_for(noise: float) -> None:
    """By the steps of a simulation alone, estimates were tens of standard errors off, and nothing said so."""
    plain, z = fit(1e-2).substeps, []
    for seed in range(6):
        found = fit(noise, seed)
        assert found.success and found.substeps > plain and "integration" not in found.message
        z.append((found.x - list(TRUTH.values())) / found.x_stderr)
    assert np.abs(z).max() < 4


def test_error_of_the_steps_is_what_a_finer_fit_moves_by() -> None:
    options: dict[str, Any] = {"starts": 1}
    coarse, fine = (fit(1e-4, predictor=sid.ExtendedKalman(substeps=n), **options) for n in (2, 4))
    found = step_error(coarse.target, fine.target, coarse.x, coarse.x_stderr)
    moved = np.abs(fine.x - coarse.x) / coarse.x_stderr
    assert found is not None and moved.max() > 0.5
    assert found.unknown == np.argmax(moved) and found.moved == pytest.approx(moved.max(), rel=0.05)
    assert step_error(coarse.target, fine.target, coarse.x, 10 * coarse.x_stderr) is None


def test_records_that_were_simulated_with_the_same_steps_keep_them() -> None:
    plain = fit(1e-2).substeps
    for noise in (0.0, 1e-7):
        found = fit(noise, substeps=plain)
        assert found.success and found.substeps == plain
        np.testing.assert_allclose(found.x, list(TRUTH.values()), rtol=1e-6)


def test_number_of_steps_by_the_order_of_the_method() -> None:
    assert [StepError(0, moved).times("rk4") for moved in (0.11, 1.6, 1.7, 1e9)] == [2, 2, 4, 32]
    assert StepError(0, 1.6).times("implicit") == 4


def test_more_steps_keep_the_guess() -> None:
    """Further starts are drawn around it, whatever a search with too few steps has found."""
    initial = sid.InitialState()
    setup = set_up(sid.models.duffing(), record(1e-2), GUESS, sid.ExtendedKalman(), initial, None, None, "mse")
    x = setup.unknowns.x * np.array([1.0, 1.0, 100.0, 1.0, 1.0, 1.0])
    finer = refined(setup, x)
    assert finer is not None and finer.filter.substeps > setup.filter.substeps
    np.testing.assert_array_equal(finer.unknowns.x, setup.unknowns.x)
    assert refined(setup, setup.unknowns.x) is None
    given = set_up(sid.models.duffing(), record(1e-2), GUESS, sid.ExtendedKalman(substeps=1), initial, None, None, "mse")
    assert refined(given, x) is None and with_steps(given, 2) is None


@pytest.mark.slow
def test_poor_optima_of_coarse_steps_are_not_what_further_starts_are_drawn_around() -> None:
    """A relaxation oscillation: fits were 50 standard errors off, with the speed at the start as a poor optimum had it."""
    van_der_pol = sid.System(
        lambda t, x, u, p: (x.v, p.mu * (1 - x.z**2 / p.a**2) * x.v - p.w2 * x.z), states=("z", "v"),
        params=("mu", "a", "w2"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    truth, t = np.array([3.0, 1.0, 20.0]), np.arange(1500) / 50.0
    empty = sid.TimeSeries(t, None, None)
    clean = sid.simulate(
        van_der_pol, empty, dict(zip(("mu", "a", "w2"), truth, strict=True)), x0={"z": 0.5, "v": 0.0}, substeps=32
    )
    y = clean["y"].values
    for seed in (6, 9):
        rng = np.random.default_rng(seed + 77)
        guess = {}
        for name, value in zip(("mu", "a", "w2"), truth, strict=True):
            factor = np.exp(rng.uniform(np.log(2), np.log(5)))
            guess[name] = value * factor if rng.random() < 0.5 else value / factor
        data = empty.replace(y=y + 0.03 * y.std() * np.random.default_rng(seed).standard_normal(1500))
        found = sid.fit_pem(van_der_pol, data, guess, progressbar=False)
        assert not found.success or np.all(np.abs(np.abs(found.x[:3]) - truth) < 4 * found.x_stderr[:3]), found
        assert "says nothing about the initial state" not in found.message
