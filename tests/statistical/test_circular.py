"""Evidence and draws of angles with a circular prior, against quadrature: one mode or two, a vector, a posterior across pi."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp

import pm_sysid as sid

SEEDS = range(5)
QUIET: dict[str, Any] = {"cores": 1, "progressbar": False}


@pytest.fixture(autouse=True)
def quiet() -> None:
    for name in ("pymc", "pm_sysid"):
        logging.getLogger(name).setLevel(logging.ERROR)


def phase(true: float, seed: int, *, noise: float = 0.3, sine: float = 1.0, prior: str = "VonMises") -> pm.Model:
    """Of a phase, noisy cosines and (unless ``sine`` is zero) sines are measured; without sines its sign is unknown."""
    y = np.array([np.cos(true), sine * np.sin(true)])
    y = y + noise * np.random.default_rng(seed).standard_normal((10, 2))
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0.0, 1e-6) if prior == "VonMises" else pm.Uniform("angle", -np.pi, np.pi)
        pm.Normal("y", pm.math.stack([pm.math.cos(angle), sine * pm.math.sin(angle)]), noise, observed=y)
    return model


def quadrature(model: pm.Model) -> tuple[float, np.ndarray, np.ndarray]:
    """Log evidence; angles on a grid, and their posterior probabilities."""
    target, grid = sid.Target(model), np.linspace(-np.pi, np.pi, 20_000, endpoint=False)
    height = target.log_prior(grid[:, None]) + target.log_likelihood(grid[:, None])
    total = float(logsumexp(height))
    return total + float(np.log(grid[1] - grid[0])), grid, np.exp(height - total)


def runs(model: pm.Model, seed: int) -> list[Any]:
    """Posteriors by all that gives an evidence and chooses by itself, or is told to look everywhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [
            sid.sample_ibis(500, model=model, chains=2, random_seed=seed, **QUIET),
            sid.sample(model, 500, method="ibis", random_seed=seed, **QUIET),
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("true", "options"),
    [(1.0, {}), (3.1, {}), (3.1, {"noise": 3.0}), (1.0, {"sine": 0.0}), (3.0, {"sine": 0.0}), (0.0, {"noise": 30.0})],
    ids=["one", "across", "wide", "two", "two across", "flat"],
)
def test_evidence_and_draws_of_an_angle_are_those_of_one_turn(true: float, options: dict[str, float]) -> None:
    for seed in SEEDS:
        model = phase(true, seed, **options)
        exact, grid, probability = quadrature(model)
        for idata in runs(model, seed):
            found = sid.log_evidence(idata)
            # Proposals that end nowhere do not fit a flat density that ends at both sides: this may be said.
            assert (found.doubt == "" or true == 0.0) and found.error < 0.05, (seed, found)
            assert abs(found.value - exact) < max(4 * found.error, 0.02), (seed, found, exact)
            draws = idata.posterior["angle"].values.ravel()
            for k in (1, 2):
                apart = np.mean(np.exp(1j * k * draws)) - probability @ np.exp(1j * k * grid)
                assert abs(apart) < 0.1, (seed, k, apart)


@pytest.mark.slow
def test_independent_proposals_around_an_angle() -> None:
    for seed in SEEDS:
        for true in (1.0, 3.1):
            model = phase(true, seed)
            exact, *_ = quadrature(model)
            idata = sid.sample(model, 500, method="independent", random_seed=seed, **QUIET)
            found = sid.log_evidence(idata)
            assert idata.attrs["trusted"] and idata.attrs["modes"] == 1 and found.doubt == ""
            assert abs(found.value - exact) < max(4 * found.error, 0.01), (seed, found, exact)


@pytest.mark.slow
def test_a_vector_of_angles_beside_other_unknowns() -> None:
    """Each angle by itself is a quadrature, and the scale is known well enough to be one, too."""
    true, noise = np.array([0.5, -3.1, 2.0]), 0.3
    for seed in SEEDS:
        y = np.stack([np.cos(true), np.sin(true)]) + noise * np.random.default_rng(seed).standard_normal((10, 2, 3))
        with pm.Model() as model:
            angles = pm.VonMises("angles", 0.3, 0.5, shape=3)
            scale = pm.LogNormal("scale", 0.0, 0.1)
            mean = scale * pm.math.stack([pm.math.cos(angles), pm.math.sin(angles)])
            pm.Normal("y", mean, noise, observed=y)
        target = sid.Target(model)
        grid, logs = np.linspace(-np.pi, np.pi, 2000, endpoint=False), np.linspace(-0.6, 0.6, 241)
        exact = -np.inf
        for z in logs:  # given the scale the angles are independent
            total = 0.0
            for k in range(3):
                cosines, sines = y[:, 0, k], y[:, 1, k]
                a = np.exp(z)
                square = ((cosines[:, None] - a * np.cos(grid)) ** 2 + (sines[:, None] - a * np.sin(grid)) ** 2).sum(axis=0)
                density = -square / (2 * noise**2) - 20 * np.log(noise * np.sqrt(2 * np.pi))
                prior = 0.5 * np.cos(grid - 0.3) - np.log(2 * np.pi * np.i0(0.5))
                total += logsumexp(density + prior) + np.log(grid[1] - grid[0])
            weight = -((z / 0.1) ** 2) / 2 - np.log(0.1 * np.sqrt(2 * np.pi))
            exact = np.logaddexp(exact, total + weight + np.log(logs[1] - logs[0]))
        assert list(target.coordinates.circular) == [True, True, True, False]
        assert len(sid.find_mode(model, random_seed=seed, progressbar=False).modes) == 1
        for idata in [*runs(model, seed), sid.sample(model, 500, method="independent", random_seed=seed, **QUIET)]:
            found = sid.log_evidence(idata)
            assert found.doubt == "" and abs(found.value - exact) < max(4 * found.error, 0.05), (seed, found, exact)
            away = np.angle(np.exp(1j * (idata.posterior["angles"].values - true)))
            assert np.all(np.abs(away) < 1.0)


@pytest.mark.slow
def test_one_prior_in_two_words_has_equal_weights() -> None:
    for seed in SEEDS:
        models = {name: phase(1.0, seed, prior=name) for name in ("VonMises", "Uniform")}
        results = {n: (m, sid.sample(m, 500, method="independent", random_seed=seed, **QUIET)) for n, m in models.items()}
        table = sid.compare_models(results).table
        np.testing.assert_allclose(table["weight_evidence"].loc[list(models)], 0.5, atol=0.01)
