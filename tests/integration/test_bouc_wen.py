"""The Bouc-Wen study: its simulated record, the benchmark's records, and a small posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from support import scripts
from support.records import FOLDER


@pytest.fixture(scope="module")
def study() -> Any:
    return scripts.load("examples/bouc_wen.py")


@pytest.fixture(scope="module")
def experiment(study: Any) -> Any:
    return study.experiment()


def test_the_force_is_the_multisine_of_the_paper(study: Any, experiment: Any) -> None:
    record, _ = experiment
    assert len(record) == 12288 and record.fs == pytest.approx(4096)
    omega = 2 * np.pi * np.linspace(0.5, 100.0, 2000)
    phases = np.random.default_rng(0).uniform(0, 2 * np.pi, 2000)
    some = np.arange(0, 12288, 611)
    fade = np.minimum(1.0, record.t[some] / 0.3)
    expected = fade * np.cos(np.outer(record.t[some], omega) + phases).sum(axis=1)
    scale = record.u[some] @ expected / (expected @ expected)
    np.testing.assert_allclose(record.u[some], scale * expected, atol=1e-8)
    assert 200 < np.abs(record.u).max() <= 208


def test_the_simulation_agrees_with_an_adaptive_integrator(study: Any, experiment: Any) -> None:
    """A piece of the strongest vibration, from the state that the simulation has at its start."""
    record, run = experiment
    m, c, k, alpha, beta, gamma, delta = study.TRUTH.values()
    start, stop = 6000, 6160

    def rate(t: float, x: np.ndarray) -> list[float]:
        z, v, r = x
        position = t * record.fs
        i = min(int(position), len(record) - 2)
        force = float(record.input_at(i, min(max(position - i, 0.0), 1.0))[0])
        return [v, (force - c * v - k * z - r) / m, alpha * v - beta * (gamma * abs(v) * r + delta * v * abs(r))]

    t = record.t[start:stop]
    states = np.stack([run[name].values[start:stop] for name in ("z", "v", "r")])
    reference = solve_ivp(rate, t[[0, -1]], states[:, 0], "DOP853", t_eval=t, rtol=1e-9, atol=1e-12, max_step=2e-4)
    for found, exact in zip(states, reference.y, strict=True):
        assert np.abs(found - exact).max() < 1e-6 * np.abs(exact).max()
    acceleration = np.array([rate(at, x)[1] for at, x in zip(t, reference.y.T, strict=True)])
    np.testing.assert_allclose(run["y"].values[start:stop], acceleration, atol=1e-5 * np.abs(acceleration).max())
    assert np.ptp(states[2]) > 100, "the piece is to show hysteresis"


def test_the_noise_is_five_percent(study: Any, experiment: Any) -> None:
    record, run = experiment
    noisy, sigma = study.measured(record, run, seed=1)
    assert np.std(noisy.y - run["y"].values) == pytest.approx(sigma, rel=0.03)
    assert sigma == pytest.approx(0.05 * np.sqrt(np.mean(run["y"].values ** 2)))


@pytest.mark.needs_records("boucwen_test_sinesweep.npz", "boucwen_test_multisine.npz")
@pytest.mark.parametrize("name, expected", [("sine sweep", 2.55e-6), ("multisine", 0.25e-6)])
def test_the_true_parameters_reproduce_the_benchmark(study: Any, name: str, expected: float) -> None:
    record = study.validation(FOLDER)[name]
    assert study.free_run_rmse(study.TRUTH, record) == pytest.approx(expected, rel=0.05)


def test_the_products_have_the_prior_of_their_factors(study: Any, experiment: Any) -> None:
    record, run = experiment
    model = study.filter_model(study.measured(record, run, 1)[0][:64], substeps=1)
    drawn = sid.Target(model).constrained(sid.Target(model).draw_prior(20_000, 1))
    for name, (mean, variance) in study.PRIORS.items():
        assert drawn[name].mean() == pytest.approx(mean, abs=4 * np.sqrt(variance / 20_000))
        assert drawn[name].var() == pytest.approx(variance, rel=0.05)
    assert abs(np.corrcoef([drawn["beta"], drawn["gamma"], drawn["delta"]]) - np.eye(3)).max() < 0.03


@pytest.mark.slow
def test_a_small_posterior_covers_the_truth(study: Any, experiment: Any) -> None:
    record, run = experiment
    model = study.filter_model(study.measured(record, run, 1)[0][:1024])
    idata = sid.sample_ibis(200, model=model, chains=1, cores=1, random_seed=1, progressbar=False)
    for name in study.IDENTIFIABLE:
        draws = idata.posterior[name]
        assert abs(float(draws.mean()) - study.TRUE[name]) < 3.5 * float(draws.std()), name
    assert float(idata.posterior["m"].std()) < 0.1 * np.sqrt(study.PRIORS["m"][1])
    # The record is silent about beta itself: a narrow interval would mean that the particles lost their way.
    assert float(idata.posterior["beta"].std()) > 70
