"""Samplers on a model with an ODE filter, also where the equations cannot be solved."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pm_sysid as sid
from support.small import NOISE, RECORD, put


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as model:
        put(RECORD)
    return model


@pytest.mark.filterwarnings("ignore:`find_MAP` will:FutureWarning")
def test_find_map_recovers_the_parameters(model: pm.Model) -> None:
    found = pm.find_MAP(model=model, progressbar=False)
    assert found["k"] == pytest.approx(4.0, rel=0.03) and found["c"] == pytest.approx(0.3, rel=0.2)
    assert found["noise"] == pytest.approx(NOISE, rel=0.2)


# -- parameters that cannot be solved ---------------------------------------------------------------------------------

GROWTH = sid.System(
    lambda t, x, u, p: p.rate * x.z**3 - pt.sqrt(2.0 - p.rate) * x.z,
    states=("z",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: x.z,
)


@pytest.fixture(scope="module")
def explosive() -> pm.Model:
    """Above two there is no equation; below, down to about one half, the solution blows up in finite time."""
    t = np.arange(60) * 0.05
    with pm.Model() as model:
        rate = pm.Normal("rate", 1.9, 2.0, initval=0.1)
        data = sid.TimeSeries(t, None, np.exp(-t))
        sid.ODEFilter("y", GROWTH, data, dict(rate=rate), noise=20.0, x0=0.3, solver=sid.EK1(order=2), substeps=2)
    return model


@pytest.mark.parametrize("rate, finite", [(0.5, True), (2.1, False), (-30.0, True), (-1e200, False)])
def test_what_cannot_be_solved_has_no_likelihood(explosive: pm.Model, rate: float, finite: bool) -> None:
    function = explosive.compile_fn(explosive.logp(vars=[explosive["y"]], sum=False)[0], inputs=explosive.value_vars)
    values = function({"rate": np.array(rate)})
    assert not np.any(np.isnan(values))
    assert np.all(np.isfinite(values)) if finite else np.sum(values) == -np.inf
    failed = np.flatnonzero(values == -np.inf)
    assert np.all(values[failed[0] :] == -np.inf) if failed.size else finite


@pytest.mark.filterwarnings("ignore:There were")
def test_sampling_goes_on_beside_parameters_that_cannot_be_solved(explosive: pm.Model) -> None:
    with explosive:
        tree = pm.sample(
            80,
            tune=60,
            chains=1,
            cores=1,
            random_seed=1,
            nuts_sampler="pymc",
            progressbar=False,
            compute_convergence_checks=False,
        )
    rate = tree["posterior"]["rate"].values
    assert np.all(np.isfinite(rate)) and np.ptp(rate) > 1.0 and rate.max() < 2.0
    assert bool(tree["sample_stats"]["diverging"].any()), "the prior was to reach what cannot be solved"


# -- samplers ---------------------------------------------------------------------------------------------------------

BRIEF = dict(draws=15, tune=15, chains=2, random_seed=3, progressbar=False, compute_convergence_checks=False)


@pytest.fixture(scope="module")
def one_core(model: pm.Model) -> xr.Dataset:
    with model:
        return pm.sample(cores=1, nuts_sampler="pymc", **BRIEF)["posterior"].to_dataset()


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_two_cores_draw_what_one_core_draws(model: pm.Model, one_core: xr.Dataset, context: str) -> None:
    with model:
        two = pm.sample(cores=2, nuts_sampler="pymc", mp_ctx=context, **BRIEF)["posterior"]
    for name in ("c", "k", "noise"):
        np.testing.assert_allclose(two[name].values, one_core[name].values, rtol=1e-9)
    assert not np.array_equal(one_core["k"][0], one_core["k"][1])


@pytest.mark.slow
def test_nutpie_samples_the_same_posterior(model: pm.Model) -> None:
    pytest.importorskip("nutpie")
    with model:
        tree = pm.sample(
            150, tune=200, chains=1, cores=1, random_seed=1, nuts_sampler="nutpie", progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    k = tree["posterior"]["k"].values
    assert abs(k.mean() - 4.0) < 4 * k.std() and 0.003 < k.std() < 0.1


def test_stock_smc_runs(model: pm.Model) -> None:
    with model:
        tree = pm.sample_smc(60, chains=1, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False)
    assert float(tree["posterior"]["k"].mean()) == pytest.approx(4.0, abs=0.1)
