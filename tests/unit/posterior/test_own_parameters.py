"""Leaving out a specimen with its own parameters integrated out, against a linear model where all of it is known."""

from __future__ import annotations

from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pm_sysid as sid

RECORDS, T, NOISE, SPREAD = 6, np.arange(1, 9) * 0.25, 0.05, 0.5
#: Outputs are the response to a unit load times the load of each specimen.
RESPONSE = 1 - np.exp(-(T - T[0]))
SYSTEM = sid.System(
    lambda t, x, u, p: p.load - x.level, states=("level",), params=("load",), observe=lambda t, x, dx, u, p: x.level
)


def measurements() -> np.ndarray:
    rng = np.random.default_rng(3)
    loads = 1.0 + SPREAD * rng.standard_normal(RECORDS)
    return loads[:, None] * RESPONSE + NOISE * rng.standard_normal((RECORDS, len(T)))


Y = measurements()


def build(centred: bool, potential: bool = False, coupled: bool = False) -> pm.Model:
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 2.0)
        z = pm.Normal("z", mean if centred else 0.0, SPREAD if centred else 1.0, shape=RECORDS)
        load = z if centred else mean + SPREAD * z
        if coupled:
            load = load + 0.1 * load.mean()
        if potential:
            pm.Potential("sum", -10.0 * z.sum() ** 2)
        data = [sid.TimeSeries(T, None, y) for y in Y]
        solver = sid.EK1(order=3, diffusion=1e-6)
        sid.ODEFilter("y", SYSTEM, data, {"load": load}, noise=NOISE, x0=0.0, solver=solver, substeps=2)
    return model


def exact_draws(centred: bool, n: int = 500) -> xr.Dataset:
    """The posterior of a Gaussian model."""
    rng, variance = np.random.default_rng(5), NOISE**2 / (RESPONSE @ RESPONSE)
    seen = Y @ RESPONSE / (RESPONSE @ RESPONSE)
    precision = 1 / 4 + RECORDS / (SPREAD**2 + variance)
    mean = seen.sum() / (SPREAD**2 + variance) / precision + rng.standard_normal((2, n)) / np.sqrt(precision)
    own = 1 / (1 / SPREAD**2 + 1 / variance)
    middle = own * (mean[..., None] / SPREAD**2 + seen / variance)
    load = middle + np.sqrt(own) * rng.standard_normal((2, n, RECORDS))
    z = load if centred else (load - mean[..., None]) / SPREAD
    return xr.Dataset({"mean": (("chain", "draw"), mean), "z": (("chain", "draw", "specimen"), z)})


COVARIANCE = NOISE**2 * np.eye(len(T)) + SPREAD**2 * np.outer(RESPONSE, RESPONSE)


def exact_loo() -> np.ndarray:
    """Log-density of each record given all others."""
    found = []
    for r in range(RECORDS):
        others = np.delete(Y, r, axis=0) @ RESPONSE / (RESPONSE @ RESPONSE)
        variance = SPREAD**2 + NOISE**2 / (RESPONSE @ RESPONSE)
        precision = 1 / 4 + (RECORDS - 1) / variance
        middle = others.sum() / variance / precision
        covariance = COVARIANCE + np.outer(RESPONSE, RESPONSE) / precision
        found.append(stats.multivariate_normal(RESPONSE * middle, covariance).logpdf(Y[r]))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
def test_own_parameters_are_integrated_out(centred: bool) -> None:
    """For each draw the density of the record given the mean of the population; with it, leave-one-out is right."""
    model, draws = build(centred), exact_draws(centred)
    tree = sid.log_likelihood_by_record(draws, model=model, integrate=60, random_seed=1)
    found, mean = tree["log_likelihood"]["y"], draws["mean"].to_numpy()
    truth = np.array([[stats.multivariate_normal(RESPONSE * m, COVARIANCE).logpdf(Y) for m in row] for row in mean])
    assert tree["integration"]["effective"].min() > 20
    assert np.abs(found - truth).max() < 0.6 and abs(float((found - truth).mean())) < 0.01
    loo = az.loo(tree, pointwise=True)
    assert float(loo.pareto_k.max()) < loo.good_k
    np.testing.assert_allclose(loo.elpd_i, exact_loo(), atol=0.1)
    with pytest.warns(UserWarning, match="Estimated shape parameter"):
        given = az.loo(sid.log_likelihood_by_record(draws, model=model), pointwise=True)
    assert float(given.pareto_k.min()) > given.good_k and abs(float(given.elpd_i.sum()) - exact_loo().sum()) > 1.0


@pytest.mark.parametrize("options", [{"potential": True}, {"coupled": True}], ids=str)
def test_parameters_that_others_depend_on_are_no_record_s_own(options: Any) -> None:
    with pytest.raises(
        ValueError, match="no free variable has an entry for each of the 6 records that enters this record alone"
    ):
        sid.log_likelihood_by_record(exact_draws(True, 5), model=build(True, **options), integrate=10)


def test_too_few_values_are_said() -> None:
    with pytest.warns(UserWarning, match=r"rests on fewer than 10 effective values .* give a larger integrate"):
        sid.log_likelihood_by_record(exact_draws(True, 20), model=build(True), integrate=5, random_seed=1)
    with pytest.raises(ValueError, match="integrate is -1; give a number of values"):
        sid.log_likelihood_by_record(exact_draws(True, 5), model=build(True), integrate=-1)
