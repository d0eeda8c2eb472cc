"""Data Annealing of ODE filters under ``pm.sample``: likelihoods of prefixes, cores, start methods, other step methods."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.prefix_target import Prefix
from support.small import DUFFING, RECORD, TRUTH, X0, T, at, empty, put

matplotlib.use("Agg")

QUIET: dict[str, Any] = dict(progressbar=False, compute_convergence_checks=False)


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as built:
        put(RECORD)
    return built


def long_record() -> sid.TimeSeries:
    data = empty(1100)
    y = sid.simulate(DUFFING, data, TRUTH, x0=X0)["y"].values
    return data.replace(y=y + 0.05 * np.random.default_rng(0).standard_normal(1100))


@pytest.mark.parametrize("kind", ["calibrated", "several records and outputs"])
def test_the_log_likelihood_of_a_prefix(kind: str) -> None:
    """What other samplers see: calibrated by a part of the record until all samples are in; then it is the model's own."""
    with pm.Model() as model:
        if kind == "calibrated":
            put(long_record())
        else:
            both = sid.System(
                lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z),
                states=("z", "v"), inputs=("F",), params=("c", "k"), observe=lambda t, x, dx, u, p: (x.z, x.v),
            )  # fmt: skip
            y = np.random.default_rng(0).normal(size=(60, 2))
            y[5:9, 1] = np.nan
            c, k = pm.LogNormal("c", np.log(0.3), 0.3), pm.LogNormal("k", np.log(4.0), 0.1)
            noise, records = pm.LogNormal("noise"), [empty(60).replace(y=y), empty(50, seed=1).replace(y=y[:50])]
            solver = sid.EK1(order=2, diffusion=2.0)
            sid.ODEFilter("y", both, records, dict(c=c, k=k), noise=noise, x0=[X0, X0], solver=solver, substeps=2)
    prefix, q = Prefix(model), np.array([np.log(0.25), np.log(4.1), -2.0])
    N, point = prefix.n_samples, at(0.25, 4.1, np.exp(-2.0))
    cases = [(1, 1), (7, 30), (N // 2, N // 2 + 20), (N - 3, N), (N, N)]
    levels = [prefix.diffusion_samples(n) for n in (2, N // 2, N - 1, N)]
    if kind == "calibrated":
        assert levels == [69, 550, 550, N]
        target = sid.Target(model, threads=1)
        for n, reach in cases:
            edges = np.append(0, np.arange(n, reach + 1))
            blocks, _ = target.start(q[None], edges, diffusion_samples=prefix.diffusion_samples(n))
            np.testing.assert_allclose(prefix.evaluate(q, n, reach).path, np.cumsum(blocks[0]), rtol=1e-9)
    else:
        assert levels == [N] * 4
        [each] = model.compile_logp(vars=model.observed_RVs, sum=False)(point)
        assert each.shape == (110, 2)
        for n, reach in cases:
            expected = np.cumsum(each.sum(axis=1))[n - 1 : reach]
            np.testing.assert_allclose(prefix.evaluate(q, n, reach).path, expected, rtol=1e-9)
    whole = prefix.evaluate(q, N)
    assert whole.prior + whole.likelihood(N) == pytest.approx(model.compile_logp()(point), rel=1e-10)


def sample(model: pm.Model, step: Any = None, **options: Any) -> Any:
    with model:
        step = sid.DataAnnealing(widths=0.02) if step is None else step
        settings: dict[str, Any] = dict(chains=2, cores=1, random_seed=4, discard_tuned_samples=False, **QUIET)
        return pm.sample(**{**dict(draws=30, tune=40, step=step), **settings, **options})


@pytest.mark.slow
def test_one_seed_gives_one_result_on_any_number_of_cores_and_by_spawn(model: pm.Model) -> None:
    with model:
        step = sid.DataAnnealing(widths=0.02, schedule="adaptive")
    reference = sample(model, step)
    assert reference.warmup_sample_stats["n_data"].values[0, 0] == 2
    assert np.all(reference.sample_stats["n_data"] == T)
    for options in (dict(cores=2), dict(cores=2, mp_ctx="spawn")):
        other = sample(model, step, **options)
        for group in ("warmup_posterior", "posterior", "warmup_sample_stats", "sample_stats"):
            for name in reference[group].data_vars:
                # A fresh process may load machine code from the cache that this one compiled, which rounds differently.
                # An acceptance probability is the exponential of a difference of large log densities.
                rtol = 0.0 if "mp_ctx" not in options else 1e-8 if name == "accept" else 1e-12
                np.testing.assert_allclose(other[group][name], reference[group][name], rtol=rtol, err_msg=f"{options} {name}")


def test_the_progress_bar_shows_samples_and_acceptance(model: pm.Model, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with model:
        step = sid.DataAnnealing(widths=0.02)
    sample(model, step, progressbar=True, draws=5, tune=5)
    text = capsys.readouterr().out
    assert "Samples" in text and "Accept Rate" in text and f"{T}" in text


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of PyMC's Metropolis
def test_beside_another_step_method(model: pm.Model) -> None:
    """The rest of the variables by a Metropolis of their own: every draw has the log-density of the whole point."""
    with model:
        steps = [pm.Metropolis([model["noise"]], scaling=0.1), sid.DataAnnealing([model["c"], model["k"]], widths=0.01)]
    idata = sample(model, steps, draws=100)
    draws, logp = idata.posterior.to_dataset(), model.compile_logp()
    assert np.unique(draws["noise"][0]).size > 10 and np.unique(draws["c"][0]).size > 10
    expected = [logp(at(*(float(draws[n][0, i]) for n in ("c", "k", "noise")))) for i in range(100)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0].ravel(), expected, rtol=1e-8)


def test_beside_nuts(caplog: Any) -> None:
    """Which PyMC gives to the rest, and whose warnings are of the type of those here; both are logged."""
    with pm.Model():
        mu, scale = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("scale", 1.0)
        pm.Normal("x", mu, scale, observed=np.linspace(-1.0, 3.0, 20))
        step = sid.DataAnnealing([mu], adapt=False, widths=1e-6)
        idata = pm.sample(100, tune=50, chains=1, cores=1, step=[step], random_seed=1, progressbar=False)
    assert np.unique(idata.posterior["scale"]).size > 50 and "warning" not in idata.sample_stats
    said = [r.levelname for r in caplog.records if r.getMessage().startswith("DataAnnealing: a chain has not mixed")]
    assert said == ["WARNING"]


def test_the_figure_of_a_run(model: pm.Model) -> None:
    idata = sample(model)
    axes = sid.plot_annealing(idata, truth={"c": TRUTH["c"]})
    assert [a.get_ylabel() for a in axes[:, 0]] == ["samples", "acceptance", "c", "k", "noise"]
    assert axes[0, 0].lines[-1].get_ydata()[:3].tolist() == [2, 11, 21]
    axes[0, 0].figure.canvas.draw()
    matplotlib.pyplot.close(axes[0, 0].figure)
