"""Sequential draws beside weighted ones, on posteriors that are known."""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.special import logsumexp
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.likelihood.target import Target
from pm_sysid.sampling.smc.evidence import Estimate
from pm_sysid.sampling.smc.stages import UNFIT
from pm_sysid.sampling.smc.weighed import KnownModes, weighed, with_evidence

#: A level that is known but for its sign, one of which the prior favours.
LEVEL, NOISE, PRIOR = 1.0, 0.1, (0.3, 0.5)


def record() -> np.ndarray:
    return np.asarray(LEVEL**2 + NOISE * np.random.default_rng(3).standard_normal(20))


def unsigned() -> tuple[pm.Model, float, float]:
    """A model, the share of the posterior below zero, and the log evidence."""
    y = record()
    with pm.Model() as model:
        a = pm.Normal("a", *PRIOR)
        pm.Normal("y", a**2, NOISE, observed=y)
    grid = np.linspace(-3, 3, 20_001)
    joint = norm.logpdf(grid, *PRIOR) + norm.logpdf(y[:, None], grid**2, NOISE).sum(axis=0)
    total = float(logsumexp(joint))
    return model, float(np.exp(logsumexp(joint[grid < 0]) - total)), total + np.log(grid[1] - grid[0])


def run_of(below: float, log_evidence: float, error: float = 0.01) -> xr.DataTree:
    """Two chains of draws of which a share is below zero."""
    rng, shape = np.random.default_rng(5), (2, 1000)
    sign = np.where(rng.random(shape) < below, -1.0, 1.0)
    table = {"time_index": 20.0, "log_evidence": log_evidence, "log_evidence_se": error}
    table |= {"log_product": log_evidence, "log_marginal_likelihood": log_evidence}
    statistics = xr.Dataset({k: (("chain", "stage"), np.full((2, 1), v)) for k, v in table.items()}).assign_coords(stage=[0])
    mean = np.sqrt(record().mean())
    sd = NOISE / np.sqrt(20) / (2 * mean)
    posterior = xr.Dataset({"a": (("chain", "draw"), sign * (mean + sd * rng.standard_normal(shape)))})
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": statistics})


@pytest.mark.parametrize("known", [False, True])
def test_a_part_that_sequential_draws_have_lost_comes_back(known: bool) -> None:
    model, share, exact = unsigned()
    assert 0.02 < share < 0.2
    idata = run_of(0.0, exact - 0.5)
    points = np.array([[1.0], [-1.0]])
    modes = KnownModes(points, np.full((2, 1, 1), 1e-4), np.array([0.9, 0.1])) if known else None
    found = weighed(idata, Target(model, 1), 1, modes)
    a = idata["posterior"]["a"].values
    assert a.shape == (2, 1000) and (a < 0).mean() == pytest.approx(share, abs=0.01)
    evidence = sid.log_evidence(idata)
    assert evidence.value == pytest.approx(exact, abs=4 * evidence.error) and evidence.error < 0.05
    assert len(found.said) == 2 and found.empty == ()


@pytest.mark.parametrize("more", [-0.5, 0.0, 0.5])
def test_the_evidence_is_that_of_the_prior_that_potentials_leave(more: float) -> None:
    """The potential cuts a half of the prior, where there is no posterior."""
    model, share, exact = unsigned()
    with model:
        pm.Potential("cut", pt.switch((model["a"] > 0) & (model["a"] < 0.6), -np.inf, 0.0))
    left = 1 - np.diff(norm.cdf([0.0, 0.6], *PRIOR))[0]
    assert 0.4 < left < 0.6
    exact -= np.log(left)
    idata = run_of(0.0 if more else share, exact + more)
    found = weighed(idata, Target(model, 1), 1)
    evidence = sid.log_evidence(idata)
    assert evidence.error < 0.05 if more <= 0 else evidence.error > 0.4
    assert abs(evidence.value - exact) < 4 * evidence.error
    # Weighted draws that say less replace nothing.
    assert (np.mean(idata["posterior"]["a"].values < 0) == pytest.approx(share, abs=0.02)) == (more <= 0)
    assert bool(found.said) == (more < 0)


def test_draws_that_are_right_stay_as_they_are() -> None:
    model, share, exact = unsigned()
    y = np.asarray(model.rvs_to_values[model["y"]].eval())
    grid = np.linspace(-3, 3, 20_001)
    joint = norm.logpdf(grid, *PRIOR) + norm.logpdf(y[:, None], grid**2, NOISE).sum(axis=0)
    draws = np.random.default_rng(0).choice(grid, (2, 1000), p=np.exp(joint - logsumexp(joint)))
    idata = run_of(share, exact, 0.001)
    idata["posterior"] = xr.DataTree(xr.Dataset({"a": (("chain", "draw"), draws)}))
    assert weighed(idata, Target(model, 1), 1).said == ()
    assert np.array_equal(idata["posterior"]["a"].values, draws)
    assert sid.log_evidence(idata).value == pytest.approx(exact, abs=4 * sid.log_evidence(idata).error)


def test_where_the_prior_cannot_be_drawn_from_there_is_nothing_new() -> None:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.Normal("y", pm.Flat("a") ** 2, NOISE, observed=np.ones(20))
    idata = run_of(0.0, 3.0)
    assert weighed(idata, Target(model, 1), 1) == ((), ())
    assert sid.log_evidence(idata).value == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("estimate", "apart", "value", "error"),
    [
        ((-57.78, 0.01), None, -57.78, 0.01),  # what the run has lost
        ((-64.418, 0.001), None, -64.418, 0.001),  # the same, better known
        ((-64.42, 0.01), 3.0, -64.42, 0.01),  # chains that differed
        ((-64.41, 0.5), None, -64.42, 0.01),  # the same, known worse: the difference is the error
        ((-66.42, 0.01), None, -64.42, 2.0),  # a part that the draws around the modes have left out
    ],
)
def test_the_evidence_of_draws_around_all_modes_counts_where_it_says_more(
    estimate: tuple[float, float], apart: float | None, value: float, error: float
) -> None:
    table = {"time_index": [5.0, 12.0], "log_evidence": [-20.0, -64.42], "log_evidence_se": [0.1, 0.005]}
    table |= {"log_product": [-20.0, -64.4], "log_marginal_likelihood": [np.nan, -64.42]}
    statistics = xr.Dataset({k: (("chain", "stage"), np.array([v, v])) for k, v in table.items()})
    statistics = statistics.assign_coords(stage=[0, 1]).assign_attrs({} if apart is None else {"chains_sd": apart})
    idata = xr.DataTree.from_dict({"sample_stats": statistics})
    said = with_evidence(idata, Estimate(*estimate, 0.0, 0.5))
    found = sid.log_evidence(idata)
    assert found.value == pytest.approx(value) and found.error == pytest.approx(error, rel=1e-6)
    assert np.all(idata["sample_stats"]["log_evidence"].values[:, 0] == -20.0) and found.doubt == ""
    assert ("-64.42" in " ".join(said)) == (value > -60)


@pytest.mark.parametrize(("more", "withdrawn"), [(-0.5, True), (0.0, True), (0.5, False)])
def test_that_no_proposal_fits_is_withdrawn_where_one_does_and_says_no_less(more: float, withdrawn: bool) -> None:
    model, share, exact = unsigned()
    idata = run_of(share, exact + more)
    idata["sample_stats"].attrs["doubt"] = f"Another. {UNFIT.format('1.20')} And one more."
    weighed(idata, Target(model, 1), 1)
    doubt = sid.log_evidence(idata).doubt
    assert ("No independent proposal fits" in doubt) != withdrawn and "Another." in doubt and "And one more." in doubt


def test_deterministic_variables_do_not_have_draws_replaced() -> None:
    """Such as constants, which differ by rounding alone, and those without a variance."""
    model, share, exact = unsigned()
    with model:
        pm.Deterministic("constant", 0 * model["a"] + 0.1)
        pm.Deterministic("ratio", 1 / (model["a"] - 1))
    assert weighed(run_of(share, exact), Target(model, 1), 1).said == ()
