"""Independent proposals around a mode: the exact posterior and evidence of a conjugate model, also from a wrong curvature."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

import pm_sysid as sid
from pm_sysid.sampling.smc.around_mode import sample_around_mode
from pm_sysid.sampling.smc.stages import final, stages

X = np.linspace(-1, 1, 40)
Y = 0.3 + 0.7 * X + np.random.default_rng(0).standard_normal(40)
DESIGN = np.c_[np.ones(40), X]
COVARIANCE = np.linalg.inv(DESIGN.T @ DESIGN + np.eye(2))
MEAN = COVARIANCE @ DESIGN.T @ Y


def line() -> pm.Model:
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Deterministic("sum", a + b)
        pm.Normal("y", a + b * X, 1.0, observed=Y)
    return model


@pytest.mark.parametrize("scale", [1.0, 0.05, 20.0])
def test_moments_and_evidence_are_exact(scale: float) -> None:
    idata = sample_around_mode(MEAN, scale * COVARIANCE, 1000, model=line(), chains=3, random_seed=2, progressbar=False)
    found = sid.log_evidence(idata)
    exact = multivariate_normal(np.zeros(40), np.eye(40) + DESIGN @ DESIGN.T).logpdf(Y)
    assert found.doubt == "" and 0 < found.error < 0.05 and abs(found.value - exact) < 4 * found.error
    draws = np.stack([idata.posterior[name].values for name in ("a", "b")], axis=-1)
    assert draws.shape == (3, 1000, 2)
    sd = np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose((draws.mean((0, 1)) - MEAN) / sd, 0, atol=4 / np.sqrt(1000))
    np.testing.assert_allclose(draws.std((0, 1)) / sd, 1, atol=0.1)
    np.testing.assert_allclose(idata.posterior["sum"].values, draws.sum(-1))
    last = final(stages(idata))
    assert np.all(last["proposal_ess"].values > 0.4) and np.all(last["time_index"].values == 40)


def test_chains_have_random_numbers_of_their_own_and_a_seed_repeats_them() -> None:
    runs = [
        sample_around_mode(MEAN, COVARIANCE, 200, model=line(), chains=2, random_seed=seed, progressbar=False).posterior["a"]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].values, runs[1].values)
    assert not np.any(np.isin(runs[0].values[0], runs[0].values[1])) and not np.any(np.isin(runs[0].values, runs[2].values))


def test_a_mode_that_is_none_of_the_posterior_is_doubted() -> None:
    """Two modes far apart: from the lesser the other is not seen; what can be seen is a posterior that the proposals miss."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=6)
        pm.Normal("y", pm.math.sum(x**2), 0.01, observed=np.array([4.0]))  # a thin shell around the origin
    point = np.array([2.0, 0, 0, 0, 0, 0])
    idata = sample_around_mode(point, 1e-2 * np.eye(6), 500, model=model, chains=2, random_seed=1, progressbar=False)
    last = final(stages(idata))
    assert np.min(last["proposal_ess"].values) < 0.15
