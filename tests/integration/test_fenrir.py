"""``likelihood="fenrir"``: the density of a record given the ODE at all times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.reports.sections import Study

RNG = np.random.default_rng(3)
T = 24
TIMES = 0.25 * np.arange(T)
FORCE = 2.0 * RNG.standard_normal(T)
DUFFING = sid.models.duffing()
TRUTH = dict(m=1.0, c=0.3, k=4.0, k3=1.5)
RECORD = sid.TimeSeries(TIMES, FORCE, intersample="zoh")
CLEAN = sid.simulate(DUFFING, RECORD, TRUTH, x0=0.1)["y"].values
MEASURED = RECORD.replace(y=CLEAN + 0.05 * RNG.standard_normal(T))


def model(record: sid.TimeSeries = MEASURED, likelihood: Any = "fenrir", **options: Any) -> pm.Model:
    """A Duffing oscillator with two unknowns."""
    settings = dict(noise=0.05, x0=0.1, solver=sid.EK1(order=3, diffusion=8.0), substeps=1) | options
    with pm.Model() as built:
        k, k3 = pm.LogNormal("k", np.log(4.0), 0.5), pm.LogNormal("k3", 0.0, 0.5)
        sid.ODEFilter("y", DUFFING, record, dict(TRUTH, k=k, k3=k3), likelihood=likelihood, **settings)
    return built


def log_likelihood(built: pm.Model, k: float = 4.0, k3: float = 1.5) -> np.ndarray:
    """Log-density of each sample."""
    with built:
        function = built.compile_fn(
            built.logp(vars=[built["y"]], sum=False)[0], inputs=built.value_vars, on_unused_input="ignore"
        )
    return function(dict(k_log__=np.log(k), k3_log__=np.log(k3)))


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
@pytest.mark.parametrize("intersample", ["zoh", "foh"])
@pytest.mark.parametrize(
    "solver", [sid.EK1(order=4, diffusion=400.0), sid.EK1(order=3, diffusion="dynamic"), sid.EK0(order=2, diffusion=3.0)]
)
def test_one_sample_is_seen_around_the_smoothed_solution(solver: Any, intersample: str) -> None:
    """Would fail if what the ODE says after a sample, or a jump that depends on the state, did not reach it.

    Given the ODE everywhere, one sample is Gaussian around what the smoother says of a record without samples.
    """
    record = RECORD.replace(intersample=intersample)
    with model(record.replace(y=np.full(T, np.nan)), solver=solver, substeps=1) as blank:
        states = sid.smooth(dict(k=3.0, k3=2.5), model=blank)
    mean, std = states["outputs"].values[0, 0, :, 0], states["outputs_std"].values[0, 0, :, 0]
    one = model(record.replace(y=np.where(np.arange(T) == 1, 0.0, np.nan)), solver=solver, substeps=1)
    function = one.compile_fn(one.logp(vars=[one["y"]], sum=False)[0], inputs=one.value_vars, on_unused_input="ignore")
    assert np.max(std) > 0.02  # or there is nothing to see
    for at in (1, 2, 11, T - 2, T - 1):
        value = mean[at] + 0.1
        with one:
            sid.set_data({"y": record.replace(y=np.where(np.arange(T) == at, value, np.nan))})
        found = function(dict(k_log__=np.log(3.0), k3_log__=np.log(2.5)))
        expected = norm.logpdf(value, mean[at], np.hypot(std[at], 0.05))
        np.testing.assert_allclose(found.sum(), expected, rtol=1e-7)


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_steps_of_different_lengths_and_records_of_their_own() -> None:
    """Would fail if the second state were not taken to the scale of a step, or one record's went on in the next."""
    steps, nothing = np.tile([1, 3, 2], 8)[: T - 1], np.full(T, np.nan)
    solver, total = sid.EK1(order=4, diffusion="dynamic"), 0.0
    records, expected = [], []
    for at, k in ((11, 3.0), (T - 2, 5.0)):
        with model(RECORD.replace(y=nothing), solver=solver, substeps=steps) as blank:
            states = sid.smooth(dict(k=k, k3=2.5), model=blank)
        mean, std = (states[name].values[0, 0, at, 0] for name in ("outputs", "outputs_std"))
        records.append(RECORD.replace(y=np.where(np.arange(T) == at, mean + 0.1, np.nan)))
        expected.append(norm.logpdf(mean + 0.1, mean, np.hypot(std, 0.05)))
        total += std
    assert total > 1e-3  # or there is nothing to see
    with pm.Model() as built:
        k = pm.LogNormal("k", np.log(4.0), 0.5, shape=2)
        settings = dict(noise=0.05, x0=0.1, solver=solver, substeps=[steps, steps], likelihood="fenrir")
        sid.ODEFilter("y", DUFFING, records, dict(TRUTH, k=k, k3=2.5), **settings)
    logp = built.compile_fn(built.logp(vars=[built["y"]], sum=False)[0], inputs=built.value_vars)
    found = logp(dict(k_log__=np.log([3.0, 5.0]))).reshape(2, T).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_fine_steps_make_the_likelihoods_one() -> None:
    """Would fail if one of them conditioned on something else than the record and the ODE."""
    gaps = []
    for substeps in (2, 8, 32):
        options = dict(solver=sid.EK1(order=3), substeps=substeps)
        gaps.append(abs(log_likelihood(model(**options)) - log_likelihood(model(likelihood="filter", **options))).sum())
    assert gaps[0] > 100 * gaps[1] > 0 and gaps[2] < 1e-6


@pytest.mark.parametrize(("order", "substeps"), [(6, 64), (8, 64), pytest.param(11, 8, marks=pytest.mark.slow)])
def test_residuals_as_small_as_their_rounding(order: int, substeps: int) -> None:
    """Would fail if the two states were subtracted: what rounding leaves, over a residual's deviation, was 1000 nats."""
    options = dict(solver=sid.EK1(order=order), substeps=substeps)
    found, expected = (log_likelihood(model(likelihood=kind, **options)).sum() for kind in ("fenrir", "filter"))
    assert found == pytest.approx(expected, abs=1e-6)


def test_gradient_and_batch() -> None:
    """Would fail if the second state were left out of the adjoint, or lanes mixed the two."""
    built = model()
    value, gradient = built.compile_logp(), built.compile_dlogp()
    points = [dict(k_log__=np.log(k), k3_log__=np.log(k3)) for k, k3 in ((3.0, 2.5), (5.0, 0.5), (9.0, 1.0))]
    for point in points:
        for i, name in enumerate(point):
            above, below = (value(point | {name: point[name] + h}) for h in (1e-5, -1e-5))
            assert gradient(point)[i] == pytest.approx((above - below) / 2e-5, rel=1e-6, abs=1e-6)
    target = sid.Target(built)
    rows = np.array([list(point.values()) for point in points])
    likely = np.array([log_likelihood(built, np.exp(a), np.exp(b)).sum() for a, b in rows])
    np.testing.assert_allclose(target.log_likelihood(rows, T), likely, rtol=1e-10)
    half = np.array([log_likelihood(built, np.exp(a), np.exp(b))[: T // 2].sum() for a, b in rows])
    np.testing.assert_allclose(target.log_likelihood(rows, T // 2), half, rtol=1e-10)


def test_parameters_without_a_solution_are_impossible() -> None:
    """Would fail if what is not a number became one of the model's."""
    assert log_likelihood(model(), 1e200, 1e300).sum() == -np.inf


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_missing_samples_and_other_records() -> None:
    """Would fail if a missing sample stopped what the ODE says of those before it, or ``set_data`` lost the likelihood."""
    gone = np.arange(T) % 3 == 1
    missing = MEASURED.replace(y=np.where(gone, np.nan, MEASURED.y))
    built = model()
    with built:
        sid.set_data({"y": missing})
    found = log_likelihood(built)
    np.testing.assert_allclose(found, log_likelihood(model(missing)), rtol=1e-12)
    apart = log_likelihood(model(missing, likelihood="filter"))
    assert np.all(apart[gone] == 0.0) and np.all(found[gone][1:] != 0.0)
    assert np.isfinite(found).all()


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_a_posterior_by_mode_and_by_particles() -> None:
    """Would fail if a sampler took another likelihood than the model's."""
    built = model(solver=sid.EK1(order=3), substeps=2)
    mode = sid.find_mode(built, random_seed=0, progressbar=False)
    with built:
        result = sid.sample_ibis(400, chains=1, random_seed=1, progressbar=False)
    for name in ("k", "k3"):
        draws = result.posterior[name].values
        assert abs(draws.mean() - TRUTH[name]) < 4 * draws.std()
        assert abs(draws.mean() - mode.initvals[name]) < draws.std()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(x0=None), r"takes a known initial state, and that of \['z', 'v'\] has an x0_std; give x0 without x0_std"),
        (dict(x0_std=0.1), "takes a known initial state"),
        (
            dict(noise=sid.StudentT(scale=0.05, nu=4.0)),
            "takes Gaussian noise only, without limits or StudentT; use likelihood='filter'",
        ),
        (dict(limits=(-1.0, 1.0)), "takes Gaussian noise only"),
        (dict(varying={"k": sid.RandomWalk(scale=0.1)}), "does not know latent, varying or coloured processes"),
    ],
)
def test_what_it_does_not_know_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"likelihood='fenrir' {message}"):
        model(**options)


def test_large_filters_and_relations_are_refused() -> None:
    system = sid.models.chain(6)
    record = sid.TimeSeries(TIMES, FORCE, np.zeros((T, len(system.outputs))))
    values = {name: 1.0 for name in system.params}
    with pm.Model(), pytest.raises(ValueError, match="up to 20 components, and a dense filter of order 4 with 6 chains has 30"):
        sid.ODEFilter("y", system, record, values, noise=0.1, x0=0.0, likelihood="fenrir")
    with pm.Model(), pytest.raises(ValueError, match="takes the joint covariance of all chains; choose covariance='dense'"):
        blocks = sid.EK1(order=2, covariance="block")
        sid.ODEFilter("y", system, record, values, noise=0.1, x0=0.0, solver=blocks, likelihood="fenrir")
    closed = sid.System(
        lambda t, x, u, p: (-p.k * x.a, p.k * x.a),
        states=("a", "b"),
        params=("k",),
        observe=lambda t, x, dx, u, p: x.a,
        relations=lambda t, x, u, p: x.a + x.b - 1.0,
    )
    with pm.Model(), pytest.raises(ValueError, match="does not know relations; use likelihood='filter'"):
        start = dict(a=1.0, b=0.0)
        sid.ODEFilter("y", closed, sid.TimeSeries(TIMES, None, CLEAN), dict(k=1.0), noise=0.1, x0=start, likelihood="fenrir")


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_a_report_names_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    draws = {"k": 4.0 + 0.1 * rng.standard_normal((2, 100)), "k3": 1.5 + 0.1 * rng.standard_normal((2, 100))}
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({n: (("chain", "draw"), v) for n, v in draws.items()})})
    study = Study(model(), idata, {"y": [MEASURED]}, sid.Validation.of(None), {}, False)
    equations = dict(study.sections())["Equations"]
    assert any("given the ODE everywhere (Fenrir)" in str(block) for block in equations())
