"""What models observe, what of it counts as a probability, and posteriors of other data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.posterior.observed import check_sampled_on, observed, probabilities
from support.tiny import DECAY, IDATA, POSTERIOR, RECORD, Y, specimens

OTHER = RECORD.replace(y=Y + 0.01)


def decay(record: sid.TimeSeries = RECORD, **options: Any) -> pm.Model:
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        solver = sid.EK1(order=3)
        sid.ODEFilter("y", DECAY, record, {"rate": rate}, noise=0.05, x0=1.0, solver=solver, substeps=1, **options)
    return model


def mean_of(y: Any, make: Callable[[Any, Any], Any] = lambda mu, y: pm.Normal("y", mu, 1.0, observed=y)) -> pm.Model:
    with pm.Model() as model:
        make(pm.Normal("mu"), y)
    return model


def sampled_on(y: Any, posterior: xr.Dataset = POSTERIOR, **more: xr.Dataset) -> xr.DataTree:
    data = xr.Dataset({"y": (tuple("abc"[: np.ndim(y)]), y)})
    return xr.DataTree.from_dict({"posterior": posterior, "observed_data": data, **more})


def test_samples_at_limits_and_discrete_ones_count_as_probabilities() -> None:
    low, high = 0.2, 0.8
    at = (Y <= low) | (Y >= high)
    assert 0 < at.sum() < len(Y)
    assert np.array_equal(probabilities(decay(limits=(low, high)))["y"], at)
    assert not probabilities(decay())["y"].any() and not probabilities(decay(limits=(-9.0, 9.0)))["y"].any()

    def censored(lower: Any, upper: Any) -> np.ndarray:
        model = mean_of(Y, lambda mu, y: pm.Censored("y", pm.Normal.dist(mu, 1.0), lower, upper, observed=y))
        return probabilities(model)["y"]

    assert np.array_equal(censored(low, high), at) and np.array_equal(censored(None, high), high <= Y)
    assert np.array_equal(censored(np.full(20, low), None), low >= Y)
    counts = np.arange(5)
    assert probabilities(mean_of(counts, lambda mu, y: pm.Poisson("y", pm.math.exp(mu), observed=y)))["y"].all()
    assert not probabilities(mean_of(counts))["y"].any() and np.array_equal(observed(mean_of(counts))["y"], counts)


def test_a_posterior_of_the_data_that_a_model_holds_is_taken() -> None:
    model = decay()
    for idata in (IDATA, POSTERIOR, sampled_on(Y), sampled_on(Y[:, None]), sampled_on(Y.astype("float32"))):
        check_sampled_on(idata, model)
    gaps = np.where(np.arange(20) == 3, np.nan, Y)
    check_sampled_on(sampled_on(gaps), decay(RECORD.replace(y=gaps)))
    check_sampled_on(sampled_on(Y).assign(observed_data=xr.DataTree(xr.Dataset({"other": ("t", Y[:3])}))), model)
    with model:
        drawn = pm.sample_prior_predictive(5, random_seed=1)
    check_sampled_on(drawn, model)


@pytest.mark.parametrize("y", [Y + 0.01, Y[:10], np.where(np.arange(20) == 3, np.nan, Y)])
def test_a_posterior_of_other_data_is_refused(y: Any, tmp_path: Any) -> None:
    idata, model = sampled_on(y), decay()
    for judge in (
        lambda: sid.dic(idata, model=model),
        lambda: sid.waic(idata, model=model),
        lambda: sid.compare_models({"stale": (model, idata)}),
        lambda: sid.report(model, idata, path=tmp_path / "r.html", progressbar=False),
    ):
        with pytest.raises(ValueError, match=r"sampled on other data: its group observed_data has 'y' of shape"):
            judge()


def test_a_posterior_is_taken_again_when_its_data_are_back() -> None:
    model, idata = decay(), sampled_on(Y)
    right = sid.dic(idata, model=model).deviance
    sid.set_data({"y": OTHER}, model)
    with pytest.raises(ValueError, match=r"^idata was sampled on other data.*the model now holds other values"):
        sid.dic(idata, model=model)
    with pytest.raises(ValueError, match=r"^model 'stale': idata was sampled on other data"):
        sid.compare_models({"stale": (model, idata)})
    assert sid.dic(IDATA, model=model).deviance != right  # a posterior alone does not say on which it was sampled
    sid.set_data({"y": RECORD}, model)
    assert sid.dic(idata, model=model).deviance == right
    rates = xr.Dataset({"rate": (("chain", "draw", "specimen"), np.ones((2, 30, 2)))})
    with pytest.raises(ValueError, match="sampled on other data"):
        sid.log_likelihood_by_record(sampled_on(np.r_[Y, Y + 0.1], rates), model=specimens(), integrate=50)
