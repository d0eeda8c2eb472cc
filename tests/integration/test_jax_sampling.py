"""Samplers that run on JAX draw from the posterior the others draw from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from support.small import measured, put

pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("numpyro", reason="numpyro is not installed")


NAMES = ("c", "k", "noise")
OPTIONS = dict(cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False)


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as model:
        put(measured(60))
    return model


def sample(model: pm.Model, sampler: str, **options: Any) -> xr.Dataset:
    with model:
        return pm.sample(nuts_sampler=sampler, **(OPTIONS | options))["posterior"].to_dataset()


@pytest.fixture(scope="module")
def reference(model: pm.Model) -> xr.Dataset:
    return sample(model, "pymc", draws=1000, tune=300, chains=1)


def assert_same_posterior(draws: xr.Dataset, reference: xr.Dataset) -> None:
    """Means and standard deviations within four standard errors; at least one draw in three counts."""
    for name in NAMES:
        a, b = draws[name].values.ravel(), reference[name].values.ravel()
        size, spread = 3 * (1 / a.size + 1 / b.size), b.std()
        assert np.ptp(a) > spread
        assert abs(a.mean() - b.mean()) < 4 * spread * np.sqrt(size), name
        assert abs(np.log(a.std() / spread)) < 4 * np.sqrt(size / 2), name


def test_numpyro_samples_the_posterior_of_numba(model: pm.Model, reference: xr.Dataset) -> None:
    assert_same_posterior(sample(model, "numpyro", draws=200, tune=200, chains=1), reference)


@pytest.mark.slow
def test_numpyro_runs_chains_as_one_batch(model: pm.Model, reference: xr.Dataset) -> None:
    draws = sample(model, "numpyro", draws=200, tune=200, chains=3, nuts=dict(chain_method="vectorized"))
    assert draws.sizes["chain"] == 3 and not np.array_equal(draws["k"][0], draws["k"][1])
    assert_same_posterior(draws, reference)
