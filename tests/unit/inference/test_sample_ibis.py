"""Sequential runs say what linearising about an uncertain initial state has done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.inference import sample_ibis as module
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.sampling.smc.stages import stages
from support import tiny

QUIET: dict[str, Any] = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False}
T = np.linspace(0, 3, 31)


def outlier_at_the_start(noise: Any = None, **start: Any) -> pm.Model:
    """A decay whose first sample is an outlier: to a filter with a wide Gaussian there, it is where the decay begins."""
    y = np.exp(-T) + 0.02 * np.random.default_rng(100).standard_t(3.0, 31)
    y[0] += 1.0
    with pm.Model() as model:
        rate, scale = pm.LogNormal("rate", 0, 0.5), pm.HalfNormal("scale", 0.2)
        noise = sid.StudentT(nu=3.0, scale=scale) if noise is None else noise(scale)
        sid.ODEFilter("y", tiny.DECAY, sid.TimeSeries(T, None, y), {"rate": rate}, noise=noise, substeps=2, **start)
    return model


@pytest.mark.slow
def test_an_outlier_in_the_first_sample_is_no_start_without_a_word() -> None:
    """The rate is twelve standard deviations off, and the log evidence thirty."""
    idata = sid.sample_ibis(300, model=outlier_at_the_start(), **QUIET)
    found = sid.log_evidence(idata)
    assert float(idata.posterior["rate"].mean()) > 1.2  # 1.014 with the initial state integrated out
    assert "has ruled out a part of the posterior" in found.doubt and "the linearisation biases it" in found.doubt
    assert found.error > 5


@pytest.mark.slow
def test_what_is_no_approximation_has_no_doubt() -> None:
    for model in (outlier_at_the_start(noise=lambda scale: scale), outlier_at_the_start(x0=1.0)):
        assert sid.log_evidence(sid.sample_ibis(300, model=model, **QUIET)).doubt == ""


def test_long_records_of_gaussian_noise_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 30)
    cubic = sid.System(
        lambda t, x, u, p: -p.rate * x.level**3, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    with pm.Model() as model:
        record = sid.TimeSeries(T, None, 1 / np.sqrt(1 + 2 * T))
        sid.ODEFilter("y", cubic, record, {"rate": pm.LogNormal("rate", 0, 0.5)}, noise=0.05, x0=1.0, x0_std=0.1, substeps=2)
    monkeypatch.setattr(module, "Linearised", None)  # is not asked
    sid.sample_ibis(200, model=model, **QUIET)


def test_an_interruption_leaves_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "Linearised", interrupted)
    idata = sid.sample_ibis(200, model=outlier_at_the_start(), **QUIET)
    assert "was not measured: interrupted" in stages(idata).attrs["doubt"]


OSCILLATOR = sid.System(
    lambda t, x, u, p: (x.v, u.F - 0.9 * x.v - p.k * x.z),
    states=("z", "v"), inputs=("F",), params=("k",), observe=lambda t, x, dx, u, p: x.z,
)  # fmt: skip


def driven(samples: int, intersample: Any = "bl", **start: Any) -> pm.Model:
    t = np.arange(60) / 10
    free = sid.TimeSeries(t, np.sin(1.3 * t) + np.sin(0.4 * t * t), inputs="F")
    z = sid.simulate(OSCILLATOR, free, {"k": 7.0}, x0={"z": 0.2, "v": 0.0})["y"].values
    record = sid.TimeSeries(t, free.u, z + 0.02 * np.random.default_rng(0).standard_normal(60), inputs="F")[:samples]
    record = record.replace(intersample=intersample)
    with pm.Model() as model:
        k = pm.LogNormal("k", np.log(5.0), 0.5)
        sid.ODEFilter("y", OSCILLATOR, record, {"k": k}, noise=0.02, **{"substeps": 2} | start)
    return model


@pytest.mark.slow
def test_a_longer_record_may_bring_another_prior_of_its_start(caplog: pytest.LogCaptureFixture) -> None:
    """Evidences that were right were doubted: weights of stages under one prior were compared with the evidence of another."""
    whole, grid = driven(60), np.linspace(np.log(7) - 0.5, np.log(7) + 0.5, 801)
    target = sid.Target(whole)
    log_density = target.log_likelihood(grid[:, None]) + np.asarray(target.log_prior(grid[:, None]))
    evidence = np.log(np.sum(np.exp(log_density - log_density.max())) * (grid[1] - grid[0])) + log_density.max()
    with caplog.at_level("INFO", logger="pm_sysid"):
        found = sid.extend(
            sid.sample_ibis(300, model=driven(8), **QUIET), model=whole, random_seed=1, cores=1, progressbar=False
        )
    said = [r for r in caplog.records if r.getMessage().startswith("extend: the initial state is read off the record")]
    assert len(said) == 1 and said[0].levelname == "INFO"
    assert (
        np.isnan(stages(found)["log_product"].values[:, -1]).all()
        and np.isfinite(stages(found)["log_product"].values[:, 0]).all()
    )
    result = sid.log_evidence(found)
    assert result.doubt == "" and abs(result.value - evidence) < 5 * result.error


@pytest.mark.slow
def test_a_start_that_is_given_is_the_same_with_a_longer_record(caplog: pytest.LogCaptureFixture) -> None:
    start = {"x0": {"z": 0.2, "v": 0.0}}
    begun = sid.sample_ibis(200, model=driven(30, **start), **QUIET)
    with caplog.at_level("INFO", logger="pm_sysid"):
        found = sid.extend(begun, model=driven(60, **start), random_seed=1, cores=1, progressbar=False)
    assert not any(r.getMessage().startswith("extend:") for r in caplog.records)
    assert np.isfinite(stages(found)["log_product"].values[:, -1]).all()


def drops_within_an_interval(**options: Any) -> tuple[pm.Model, np.ndarray, np.ndarray]:
    """``x' = a x^2``: where a is far below zero the solution drops before the second sample, and one step rules that out."""
    t, grid = np.arange(5.0), np.linspace(-8, 0.25, 33_001)[:-1]
    y = 1 / (1 - 0.1 * t) + 0.7 * np.random.default_rng(0).standard_normal(5)
    system = sid.System(lambda t, x, u, p: p.a * x.l**2, states=("l",), params=("a",), observe=lambda t, x, dx, u, p: x.l)
    with pm.Model() as model:
        sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), {"a": pm.Normal("a")}, noise=1.0, x0=1.0, **options)
    density = norm.logpdf(grid) + norm.logpdf(y, 1 / (1 - grid[:, None] * t), 1.0).sum(axis=1)
    return model, grid, density


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_filters_that_choose_their_steps_take_what_the_posterior_needs(seed: int) -> None:
    model, grid, density = drops_within_an_interval(substeps="auto")
    w = softmax(density)
    sd = np.sqrt(w @ grid**2 - (w @ grid) ** 2)
    idata = sid.sample_ibis(1000, model=model, **QUIET | {"random_seed": seed})
    found = sid.log_evidence(idata)
    assert found.doubt == "" and abs(found.value - logsumexp(density) - np.log(grid[1] - grid[0])) < 4 * found.error + 0.02
    assert 0.85 < float(idata.posterior["a"].std()) / sd < 1.15


@pytest.mark.slow
def test_a_number_of_steps_and_a_checkpoint_leave_them_as_they_are(tmp_path: Any) -> None:
    model, *_ = drops_within_an_interval(substeps=1)
    assert (
        "With 1 steps a sample of 'y' a part of the posterior is ruled out"
        in sid.log_evidence(sid.sample_ibis(500, model=model, **QUIET)).doubt
    )
    model, *_ = drops_within_an_interval(substeps="auto")
    assert "needs" in sid.log_evidence(sid.sample_ibis(500, model=model, checkpoint=tmp_path, **QUIET)).doubt


@pytest.mark.slow
def test_an_interruption_of_the_second_run_leaves_the_draws_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model, *_ = drops_within_an_interval(substeps="auto")
    drawn, draws = [], module.sequential_draws

    def once(*arguments: Any, **options: Any) -> Any:
        if drawn:
            raise KeyboardInterrupt
        drawn.append(draws(*arguments, **options))
        return drawn[0]

    monkeypatch.setattr(module, "sequential_draws", once)
    idata = sid.sample_ibis(300, model=model, **QUIET)
    assert idata is drawn[0] and "drawing them again was interrupted" in sid.log_evidence(idata).doubt


def test_inputs_and_times_of_an_extended_record_are_those_of_the_draws() -> None:
    """The measurements are equal, and what moves the system is not."""
    start = {"x0": {"z": 0.2, "v": 0.0}}
    begun = sid.sample_ibis(60, model=driven(30, **start), **QUIET)
    longer = filter_view("y", driven(40, **start)).records()[0]
    held = driven(40, **start | {"intersample": "zoh"})
    for other in (longer.replace(u=2.0 * longer.u), longer.replace(t=2.0 * longer.t), None):
        model = held if other is None else driven(40, **start)
        if other is not None:
            sid.set_data({"y": other}, model=model)
        with pytest.raises(ValueError, match="the times and inputs of the first 30 samples of 'y' are not those"):
            sid.extend(begun, model=model, random_seed=1)
    on = sid.extend(begun, model=driven(40, **start), random_seed=1, cores=1, progressbar=False)
    assert on.posterior.sizes["draw"] == 60


@pytest.mark.slow
def test_draws_are_extended_with_the_steps_that_they_were_made_with() -> None:
    start = {"x0": {"z": 0.2, "v": 0.0}}
    begun = sid.sample_ibis(200, model=driven(30, **start), **QUIET)
    assert begun.attrs["substeps_y"] == 2
    begun.attrs["substeps_y"] = 16  # as if the posterior of the first samples had needed them
    model = driven(60, **start | {"substeps": "auto"})
    assert filter_view("y", model).op.substeps < 16
    longer = sid.extend(begun, model=model, random_seed=1, cores=1, progressbar=False)
    assert filter_view("y", model).op.substeps == longer.attrs["substeps_y"] == 16
    fixed = driven(60, **start)
    sid.extend(begun, model=fixed, random_seed=1, cores=1, progressbar=False)
    assert filter_view("y", fixed).op.substeps == 2
