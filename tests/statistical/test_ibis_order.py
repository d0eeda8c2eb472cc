"""Sequential runs whose first samples favour another mode than all samples do, against quadrature."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp
from scipy.stats import norm, t

import pm_sysid as sid
from pm_sysid.sampling.smc import ibis, sequential_draws
from pm_sysid.sampling.smc.missed_modes import Search, search

NU, SCALE = 3.0, 0.01

type Case = tuple[pm.Model, float, Callable[[Any], float], float]


@pytest.fixture(autouse=True)
def quiet() -> None:
    for name in ("pymc", "pm_sysid"):
        logging.getLogger(name).setLevel(logging.ERROR)


def run(model: pm.Model, seed: int = 0, draws: int = 1000, **options: Any) -> Any:
    settings = {"chains": 2, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    return sid.sample_ibis(draws, model=model, random_seed=seed, **{**settings, **options})


def levels(first: int, rest: int, *, plain: bool = False) -> Case:
    """A level of zero, then of one: model, log evidence, and the posterior probability of the second level."""
    y = np.repeat([0.0, 1.0], [first, rest]) + SCALE * np.random.default_rng(11).standard_normal(first + rest)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 3)
        if plain:
            pm.StudentT("y", nu=NU, mu=a, sigma=SCALE, observed=y)
        else:
            still = sid.System(lambda t, x, u, p: (0.0 * x.z,), states=("z",), observe=lambda t, x, dx, u, p: x.z)
            record = sid.TimeSeries(0.2 * np.arange(len(y)), None, y)
            sid.ODEFilter("y", still, record, {}, noise=sid.StudentT(nu=NU, scale=SCALE), x0={"z": a})
    grid = np.unique(np.concatenate([np.linspace(-4, 5, 3001), np.linspace(-0.15, 0.15, 3001), np.linspace(0.85, 1.15, 3001)]))
    joint = norm.logpdf(grid, 0, 3) + t.logpdf(y[:, None], NU, grid, SCALE).sum(axis=0) + np.log(np.gradient(grid))
    return model, *of_grid(joint, grid > 0.5), lambda draws: float((draws["a"] > 0.5).mean())


def clusters(seed: int) -> Case:
    """Samples in turn on lines of slope one and two: model, log evidence, and the probability of slope two."""
    times = np.linspace(0, 2, 13)
    y = np.where(np.arange(13) % 2 == 0, 1.0, 2.0) * times + 0.5
    y = y + SCALE * np.random.default_rng(seed + 50).standard_normal(13)
    line = sid.System(lambda t, x, u, p: (p.b,), states=("z",), params=("b",), observe=lambda t, x, dx, u, p: x.z)
    with pm.Model() as model:
        b, a = pm.Normal("b", 0, 2), pm.Normal("a", 0, 2)
        record = sid.TimeSeries(times, None, y)
        sid.ODEFilter("y", line, record, {"b": b}, noise=sid.StudentT(nu=NU, scale=SCALE), x0={"z": a})
    slope, level = (v.ravel() for v in np.meshgrid(np.linspace(-1, 4, 2001), np.linspace(0, 1, 801), indexing="ij"))
    joint = norm.logpdf(slope, 0, 2) + norm.logpdf(level, 0, 2) + np.log(0.0025 * 0.00125)
    for time, value in zip(times, y, strict=True):
        joint += t.logpdf(value, NU, level + slope * time, SCALE)
    return model, *of_grid(joint, slope > 1.5), lambda draws: float((draws["b"] > 1.5).mean())


def of_grid(joint: np.ndarray, second: np.ndarray) -> Any:
    """Log evidence, and the share of the points of a second mode."""
    total = float(logsumexp(joint))
    return total, float(np.exp(logsumexp(joint[second]) - total))


def right(case: Any, seed: int) -> Any:
    model, exact, share, held = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        idata = run(model, seed)
    found = sid.log_evidence(idata)
    assert found.value == pytest.approx(exact, abs=0.1)
    assert held(idata.posterior) == pytest.approx(share, abs=0.01)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_the_mode_of_all_samples_is_found_where_the_first_ones_favour_another(seed: int) -> None:
    found = right(levels(4, 8, plain=True), seed)
    assert found.doubt == "" and found.error < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: levels(4, 8),
        lambda: levels(3, 5),
        lambda: levels(4, 8, plain=True),
        lambda: clusters(0),
        lambda: clusters(2),
    ],
    ids=["level48", "level35", "plain48", "clusters", "clusters2"],
)
def test_whatever_the_order_of_the_samples_the_evidence_is_right_over_seeds(build: Callable[[], Any]) -> None:
    case = build()
    for seed in range(4):
        found = right(case, seed)
        assert found.doubt or found.error < 0.05, seed


def by_kernel(model: pm.Model, draws: int = 400, **options: Any) -> Any:
    settings = {"kernel": sid.IBIS, "random_seed": [2, 3], "chains": 2, "cores": 1, "progressbar": False}
    return pm.sample_smc(draws, model=model, **{**settings, "compute_convergence_checks": False, **options})


@pytest.mark.slow
def test_every_chain_of_the_kernel_looks_for_itself(tmp_path: Path) -> None:
    model, exact, *_ = levels(4, 8, plain=True)
    idata = by_kernel(model)
    found = sid.log_evidence(idata)
    assert np.all(idata.posterior["a"] > 0.5) and found.value == pytest.approx(exact, abs=0.1)
    assert found.doubt == "" and found.error < 0.05
    for again in (by_kernel(model, cores=2), by_kernel(model, checkpoint=tmp_path), by_kernel(model, checkpoint=tmp_path)):
        np.testing.assert_array_equal(again.posterior["a"].values, idata.posterior["a"].values)
        assert sid.log_evidence(again).value == found.value
    with pytest.raises(ValueError, match="search"):
        by_kernel(model, checkpoint=tmp_path, search=False)


def test_who_leaves_the_search_out_stays_where_the_first_samples_lead() -> None:
    model, *_ = levels(4, 8, plain=True)
    for idata in (by_kernel(model, search=False), run(model, 2, 400, search=False)):
        assert np.all(idata.posterior["a"] < 0.5) and "search_evaluations" not in idata.sample_stats.attrs


def test_a_mode_in_which_a_chain_of_the_kernel_does_not_stay_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ibis, "search", unfit)
    model, *_ = levels(4, 8, plain=True)
    doubt = sid.log_evidence(by_kernel(model)).doubt
    assert "do not stay in a mode" in doubt and "+62" in doubt


@pytest.mark.slow
def test_chains_with_a_mode_that_was_missed_end_alike_on_any_number_of_cores_and_after_a_restart(tmp_path: Path) -> None:
    model, exact, *_ = levels(4, 8, plain=True)
    first = run(model, 2, 400, checkpoint=tmp_path)
    assert sid.log_evidence(first).value == pytest.approx(exact, abs=0.1)
    for again in (run(model, 2, 400, checkpoint=tmp_path), run(model, 2, 400, cores=2)):
        np.testing.assert_array_equal(again.posterior["a"].values, first.posterior["a"].values)
        assert sid.log_evidence(again).value == sid.log_evidence(first).value
        assert again.sample_stats.attrs["search_evaluations"] == first.sample_stats.attrs["search_evaluations"]


def test_stored_stages_end_with_what_the_chains_have_found_last() -> None:
    model, *_ = levels(4, 8, plain=True)
    idata = run(model, 2, 400, store_stages=True)
    assert np.all(idata.posterior["a"] > 0.5)
    stages = idata["stages"]["a"]
    last = idata.sample_stats["time_index"].notnull().sum("stage") - 1
    np.testing.assert_array_equal(stages.isel(stage=last).values, idata.posterior["a"].values)


def test_a_run_that_is_extended_finds_the_mode_of_all_samples() -> None:
    model, exact, *_ = levels(4, 8, plain=True)
    y = model.rvs_to_values[model["y"]].eval()
    with pm.Model() as shorter:
        pm.StudentT("y", nu=NU, mu=pm.Normal("a", 0, 3), sigma=SCALE, observed=y[:4])
    begun = run(shorter, 1, 400)
    assert np.all(begun.posterior["a"] < 0.5)
    extended = sid.extend(begun, model=model, random_seed=1, cores=1, progressbar=False)
    assert np.all(extended.posterior["a"] > 0.5)
    assert sid.log_evidence(extended).value == pytest.approx(exact, abs=0.1)


def test_the_mass_of_a_prior_that_a_potential_cuts_is_kept_with_a_mode_that_was_missed() -> None:
    model, exact, *_ = levels(4, 8, plain=True)
    with model:
        pm.Potential("cut", pm.math.switch(model["a"] > -0.5, 0.0, -np.inf))
    found = sid.log_evidence(run(model, 1, 400))
    assert found.value == pytest.approx(exact - norm.logsf(-0.5 / 3), abs=0.1)


def test_a_run_that_misses_nothing_is_as_the_chains_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1.0, observed=[0.5, -0.5, 1.0])
    looked = run(model, 1, 200)
    assert 0 < looked.sample_stats.attrs["search_evaluations"] < 0.3 * looked.sample_stats["evaluations"].max("stage").sum()
    monkeypatch.setattr(sequential_draws, "search", lambda *_: None)
    alone = run(model, 1, 200)
    assert "search_evaluations" not in alone.sample_stats.attrs and looked.sample_stats.attrs.get("doubt", "") == ""
    np.testing.assert_array_equal(looked.posterior["a"].values, alone.posterior["a"].values)


def unfit(target: Any, x: np.ndarray, log_weights: np.ndarray, *rest: Any) -> Search | None:
    """A search that hands on none of the draws of what it has found."""
    found = search(target, x, log_weights, *rest)
    assert found is not None and found.missed
    return found._replace(x=x, log_weights=log_weights, part=np.zeros(len(x), dtype=int))


def test_a_mode_in_which_particles_do_not_stay_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential_draws, "search", unfit)
    model, *_ = levels(4, 8, plain=True)
    idata = run(model, 2, 400)
    assert "do not stay in a mode" in sid.log_evidence(idata).doubt and "+62" in sid.log_evidence(idata).doubt
