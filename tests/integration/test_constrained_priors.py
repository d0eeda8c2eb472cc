"""Potentials that cut the prior: sequential runs start from what is left, and the evidence is that of the cut prior."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pm_sysid as sid
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.prior_draws import draw_prior

Y = 0.3 + np.random.default_rng(0).standard_normal(12)


def halved() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Potential("positive", pm.math.switch(mu > 0, 0.0, -np.inf))
        pm.Normal("y", mu, 1.0, observed=Y)
    return model


def test_prior_draws_obey_constraints() -> None:
    draws = draw_prior(Coordinates(halved()), 4000, 1)[:, 0]
    assert len(draws) == 4000 and draws.min() > 0
    assert stats.kstest(draws, stats.halfnorm(scale=2.0).cdf).pvalue > 1e-3
    assert np.array_equal(draws, draw_prior(Coordinates(halved()), 4000, 1)[:, 0])


def test_soft_potentials_thin_the_prior_out() -> None:
    with pm.Model() as model:
        x = pm.Uniform("x", 0.0, 1.0, default_transform=None)
        pm.Potential("bent", pm.math.log(x))
        pm.Normal("y", x, 1.0, observed=Y)
    draws = draw_prior(Coordinates(model), 4000, 2)[:, 0]
    assert stats.kstest(draws, lambda v: v**2).pvalue > 1e-3


def test_evidence_is_that_of_the_cut_prior() -> None:
    idata = sid.sample_ibis(1000, model=halved(), chains=4, cores=1, random_seed=3, progressbar=False)
    n, variance = len(Y), 1 / (1 / 4 + len(Y))
    mean = variance * Y.sum()
    whole = stats.multivariate_normal(np.zeros(n), np.eye(n) + 4.0).logpdf(Y)
    exact = whole + stats.norm.logcdf(mean / np.sqrt(variance)) - np.log(0.5)
    found = sid.log_evidence(idata)
    assert abs(found.value - exact) < 4 * max(found.error, 0.01)
    posterior = stats.truncnorm(-mean / np.sqrt(variance), np.inf, mean, np.sqrt(variance))
    assert float(idata.posterior["mu"].min()) > 0
    assert float(idata.posterior["mu"].mean()) == pytest.approx(posterior.mean(), abs=0.02)


def test_constraints_that_cannot_be_met_are_refused() -> None:
    with pm.Model() as never:
        x = pm.Normal("x")
        pm.Potential("no", pm.math.switch(x > 50, 0.0, -np.inf))
    with pytest.raises(ValueError, match="constraints contradict the priors"):
        draw_prior(Coordinates(never), 10, 1)
    with pm.Model() as positive:
        x = pm.Normal("x")
        pm.Potential("plus", x**2)
    with pytest.raises(ValueError, match="at most zero"):
        draw_prior(Coordinates(positive), 10, 1)


def test_a_constraint_that_hardly_a_draw_obeys_is_sampled_from_the_mode() -> None:
    """A sum that is known to a thousandth: exact by conditioning a Gaussian."""
    with pm.Model():
        a = pm.Normal("a", 0.0, 1.0, shape=3)
        pm.Potential("sum", -0.5 * ((a.sum() - 3.0) / 1e-3) ** 2)
        pm.Normal("y", a[0], 0.5, observed=[0.2, 0.4])
        idata = sid.sample(draws=500, chains=2, cores=1, random_seed=1, progressbar=False)
    rows = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]) / np.array([[1e-3], [1.0], [1.0]])
    covariance = np.linalg.inv(np.eye(3) + rows.T @ rows)
    mean = covariance @ rows.T @ np.array([3e3, 0.4, 0.8])
    found = idata.posterior["a"].values[..., 0]
    assert idata.attrs["method"] == "nuts" and "cannot begin at the prior" in idata.attrs["choices"]
    assert found.mean() == pytest.approx(mean[0], abs=0.1) and found.std() == pytest.approx(covariance[0, 0] ** 0.5, rel=0.15)
