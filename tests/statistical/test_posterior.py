"""Whole posteriors: two samplers on one model, and the truth inside it."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid

TRUTH = {"c": 1.0, "k": 120.0, "k3": 2000.0}


def duffing_model():
    rng = np.random.default_rng(11)
    t = np.arange(150) / 25.0
    u = sum(np.sin(2 * np.pi * f * t + a) for f, a in zip(np.linspace(0.4, 4, 9), rng.uniform(0, 6.28, 9), strict=True))
    record = sid.TimeSeries(t, 3.0 * u, None)
    system = sid.models.duffing()
    y = sid.simulate(system, record, {"m": 1.0, **TRUTH}, x0=0.0)["y"].values
    record = record.replace(y=y + 0.03 * y.std() * rng.standard_normal(t.size))
    with pm.Model() as model:
        params = {name: pm.LogNormal(name, np.log(value) + 0.2, 0.3) for name, value in TRUTH.items()}
        noise = pm.HalfNormal("noise", 0.02)
        sid.ODEFilter("y", system, record, {"m": 1.0, **params}, noise=noise, substeps=4)
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nuts_ibis_and_tempering_agree():
    """Means and standard deviations of all three, evidence of the two sequential ones."""
    model = duffing_model()
    with model:
        mode = sid.find_mode()
        nuts = pm.sample(
            1500, tune=300, chains=2, cores=2, random_seed=3, initvals=mode.initvals, step=mode.nuts(), progressbar=False
        )
        tempered = pm.sample_smc(1000, chains=4, cores=2, random_seed=3, progressbar=False)
        ibis = sid.sample_ibis(1000, chains=4, cores=2, random_seed=3, progressbar=False)
    assert int(nuts.sample_stats["diverging"].sum()) == 0
    summary = az.summary(nuts, round_to=10)
    assert float(summary["r_hat"].max()) < 1.01
    draws = nuts.posterior.to_dataset()
    for sequential in (tempered, ibis):
        chains = sequential.posterior.to_dataset().mean("draw")
        for name in [*TRUTH, "noise"]:
            error = float(chains[name].std(ddof=1)) / 2.0
            difference = float(summary.loc[name, "mean"]) - float(chains[name].mean())
            z = difference / np.hypot(error, float(summary.loc[name, "mcse_mean"]))
            assert abs(z) < 5.0, (name, z)  # t-distributed with three degrees of freedom
            ratio = float(sequential.posterior[name].std()) / float(draws[name].std())
            assert 0.85 < ratio < 1.15, (name, ratio)
    for name in TRUTH:
        assert abs(float(draws[name].mean()) - TRUTH[name]) < 4 * float(draws[name].std())
    a, b = sid.log_evidence(tempered), sid.log_evidence(ibis)
    assert a.chains.size == b.chains.size == 4
    assert abs(a.value - b.value) < 5 * np.hypot(a.error, b.error) and b.error < 0.3
