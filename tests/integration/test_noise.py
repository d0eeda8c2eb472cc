"""Limits, outliers, correlated, coloured and dependent noise, through PyMC and everything that reads a filter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy
import xarray as xr

import pm_sysid as sid
from pm_sysid.posterior.predict import predict_fitted

T = np.arange(25) * 0.1
CLEAN = np.exp(-T)
DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level,
    states=("level",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: {"level": x.level, "loss": p.rate * x.level},
)
ALONE = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: {"level": x.level}
)
SOLVER = sid.EK1(order=3, diffusion=1e-6)
#: Short compiled functions: two outputs, of which one is cut off, missing, and an outlier.
NOISES: dict[str, dict[str, Any]] = {
    "limits": {"noise": 0.05, "limits": {"level": (0.12, 0.8)}},
    "outliers": {"noise": {"level": sid.StudentT(nu=4, scale=0.05), "loss": 0.05}, "limits": {"level": (None, 0.8)}},
    "correlated": {"noise": sid.Correlated(cov=[[0.0025, 0.001], [0.001, 0.0025]])},
    "coloured": {"noise": 0.03, "coloured": {"level": sid.OU(scale=0.05, length=0.4)}},
    "dependent": {"noise": {"level": lambda y: 0.02 + 0.1 * pt.abs(y), "loss": 0.05}},
}


def record(seed: int = 0, columns: int = 2) -> sid.TimeSeries:
    y = np.stack([CLEAN, CLEAN], axis=1) + 0.05 * np.random.default_rng(seed).normal(size=(len(T), 2))
    y[:, 0] = np.clip(y[:, 0], 0.12, 0.8)
    y[4, 1] = y[9] = np.nan
    y[15, 0] = 0.7
    return sid.TimeSeries(T, None, y if columns == 2 else y[:, 0])


def build(data: Any, system: sid.System = DECAY, **options: Any) -> pm.Model:
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        options = {"solver": SOLVER, "substeps": 1, "x0": 1.0, "x0_std": 0.1} | options
        sid.ODEFilter("y", system, data, {"rate": rate}, **options)
    return model


@pytest.fixture(scope="module", params=list(NOISES))
def model(request: pytest.FixtureRequest) -> pm.Model:
    return build(record(), **NOISES[request.param])


AT = {"rate_log__": np.array(0.1)}


def test_the_gradient_is_that_of_the_value_and_many_particles_agree(model: pm.Model) -> None:
    value, gradient = model.compile_logp(), model.compile_dlogp()(AT)
    up, down = (value({"rate_log__": AT["rate_log__"] + s}) for s in (1e-5, -1e-5))
    assert gradient[0] == pytest.approx((up - down) / 2e-5, rel=1e-6)
    likelihood = model.compile_logp(model.observed_RVs)
    rows = np.array([[0.1], [-0.4], [0.5]])
    expected = [likelihood({"rate_log__": np.array(r[0])}) for r in rows]
    np.testing.assert_allclose(sid.Target(model).log_likelihood(rows), expected, rtol=1e-9)


def test_smoothing_innovations_and_draws(model: pm.Model) -> None:
    smoothed = sid.smooth({"rate": 1.0}, model=model)
    error = np.abs(smoothed["states"].to_numpy()[0, 0, :, 0] - CLEAN)
    assert np.all(error < 4 * smoothed["states_std"].to_numpy()[0, 0, :, 0])
    found = sid.innovations({"rate": 1.0}, model=model)
    given = record().output_matrix
    caught = found["censored"].to_numpy() if "censored" in found else np.zeros(given.shape, bool)
    np.testing.assert_array_equal(np.isnan(found["standardised"]), np.isnan(given) | caught)
    drawn = pm.draw(model["y"], 3, random_seed=1)
    assert np.isfinite(drawn).all() and np.std(drawn[:, 0]) > 0
    if "censored" in found:
        assert caught.sum() > 2 and drawn[:, :, 0].max() <= 0.8
        posterior = xr.Dataset({"rate": (("chain", "draw"), np.full((1, 3), 1.0))})
        runs = sid.predict(posterior, record(), model=model, x0=1.0, substeps=2, draws=3)
        assert float(runs["level"].max()) == 0.8 and float(runs["loss"].max()) > 0.9


def test_free_runs_have_no_noise_of_any_colour() -> None:
    model = build(record(), **NOISES["coloured"])
    posterior = xr.Dataset({"rate": (("chain", "draw"), np.full((1, 3), 1.0))})
    for x0 in (1.0, "fit"):
        runs = sid.predict(posterior, record(), model=model, x0=x0, substeps=4, draws=2)
        for run in runs["level"]:  # a start that is estimated is another one in each
            assert np.max(np.abs(run / float(run[0]) - CLEAN)) < 1e-4


def test_records_add_up_and_can_be_exchanged() -> None:
    noise = NOISES["outliers"]
    one, both = build(record(0), **noise), build([record(0), record(1)], **noise)
    first = one.compile_logp(one.observed_RVs)(AT)
    with one:
        sid.set_data({"y": record(1)})
    second = one.compile_logp(one.observed_RVs)(AT)
    assert both.compile_logp(both.observed_RVs)(AT) == pytest.approx(first + second, rel=1e-10)


def test_records_may_have_scales_of_their_own() -> None:
    scale = np.array([0.05, 0.1])
    options = {"system": ALONE, "limits": (None, 0.8)}
    data = [record(seed, 1) for seed in (0, 1)]
    both = build(data, noise=sid.StudentT(nu=4, scale=scale), **options)
    parts = [build(r, noise=sid.StudentT(nu=4, scale=float(s)), **options) for r, s in zip(data, scale, strict=True)]
    expected = sum(m.compile_logp(m.observed_RVs)(AT) for m in parts)
    assert both.compile_logp(both.observed_RVs)(AT) == pytest.approx(expected, rel=1e-10)


def test_coloured_noise_is_found_as_by_a_gaussian_process() -> None:
    """The system is known: what it leaves of the record is the noise, whose posterior is a textbook formula."""
    y = CLEAN + 0.2 * np.sin(3 * T)
    model = build(sid.TimeSeries(T, None, y), ALONE, noise=0.05, coloured={"level": sid.OU(scale=0.3, length=0.5)}, x0_std=None)
    found = sid.smooth({"rate": 1.0}, model=model)
    K = 0.09 * np.exp(-np.abs(T[:, None] - T) / 0.5)
    total = K + 0.0025 * np.eye(len(T))
    mean, covariance = K @ np.linalg.solve(total, y - CLEAN), K - K @ np.linalg.solve(total, K)
    np.testing.assert_allclose(found["coloured_noise"].to_numpy()[0, 0, :, 0], mean, atol=1e-5)
    np.testing.assert_allclose(found["coloured_noise_std"].to_numpy()[0, 0, :, 0], np.sqrt(np.diag(covariance)), rtol=1e-4)
    np.testing.assert_allclose(found["outputs"].to_numpy()[0, 0, :, 0], CLEAN, atol=1e-5)
    expected = scipy.stats.multivariate_normal(CLEAN, total).logpdf(y)
    assert model.compile_logp(model.observed_RVs)({"rate_log__": np.array(0.0)}) == pytest.approx(expected, rel=1e-5)


def test_one_censored_sample_says_what_quadrature_says() -> None:
    y = np.full(len(T), np.nan)
    y[6], y[12] = 0.4, 0.2
    model = build(sid.TimeSeries(T, None, y), ALONE, noise=0.1, limits=(None, 0.4), x0=0.5, x0_std=0.3)
    y[12] = np.nan
    with model:
        sid.set_data({"y": sid.TimeSeries(T, None, y)})
    found = sid.smooth({"rate": 1.0}, model=model)
    x = np.linspace(-2, 3, 20_001)
    p = scipy.stats.norm.pdf(x, 0.5, 0.3) * scipy.stats.norm.sf(0.4, x * CLEAN[6], 0.1)
    p /= p.sum()
    mean = p @ x
    assert found["states"].to_numpy()[0, 0, 0, 0] == pytest.approx(mean, rel=1e-4)
    assert found["states_std"].to_numpy()[0, 0, 0, 0] == pytest.approx(np.sqrt(p @ (x - mean) ** 2), rel=1e-4)


def saturated() -> sid.TimeSeries:
    """The lag from 3.0, whose first samples are at the limit 0.8."""
    return sid.TimeSeries(T, None, np.minimum(3 * CLEAN, 0.8))


def test_no_start_is_read_off_samples_at_a_limit() -> None:
    options: dict[str, Any] = {"system": ALONE, "noise": 0.01, "limits": (None, 0.8)}
    message = r"for the states \['level'\], .* 5 of the first 5 samples of 'level' are at a limit.* give x0 and x0_std"
    with pytest.raises(ValueError, match=message):
        build(saturated(), x0=None, x0_std=None, **options)
    with pytest.raises(ValueError, match=message):
        build(saturated(), x0=None, x0_std=1.0, **options)
    late = saturated()[15:]
    model = build(late, x0=None, x0_std=None, **options)
    with model, pytest.raises(ValueError, match=message):
        sid.set_data({"y": saturated()})
    wide = build(saturated(), x0=0.8, x0_std=2.0, **options)
    assert np.isfinite(wide.compile_logp()(AT))


def test_free_runs_start_beyond_a_limit() -> None:
    posterior = xr.Dataset({"rate": (("chain", "draw"), np.full((1, 2), 1.0))})
    options: dict[str, Any] = {"system": ALONE, "noise": 0.01, "limits": (None, 0.8), "x0": 0.8, "x0_std": 2.0}
    ((_, runs),) = predict_fitted(posterior, model=build(saturated(), **options))
    np.testing.assert_allclose(runs["level"], np.tile(saturated().y, (2, 1)), atol=1e-3)
    driven = build(saturated(), varying={"rate": sid.RandomWalk(scale=1e-9)}, **options)
    runs = sid.predict(posterior, saturated()[10:], model=driven, substeps=4)
    np.testing.assert_allclose(runs["level"], np.tile(np.asarray(saturated().y)[10:], (2, 1)), atol=0.1)


def test_a_covariance_that_is_none_has_no_likelihood() -> None:
    with pm.Model() as model:
        c = pm.Normal("c")
        cov = pt.stack([pt.stack([4e-4, c]), pt.stack([c, 4e-4])])
        noise = sid.Correlated(cov=cov)
        sid.ODEFilter("y", DECAY, record(), {"rate": 1.0}, noise=noise, x0=1.0, solver=SOLVER, substeps=1)
    logp = model.compile_logp()
    assert np.isfinite(logp({"c": np.array(1e-4)}))
    assert logp({"c": np.array(5e-4)}) == logp({"c": np.array(-4.1e-4)}) == -np.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", list(NOISES))
def test_jax_computes_the_same(name: str) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    model = build(record(), **NOISES[name])
    assert model.compile_logp(mode="JAX")(AT) == pytest.approx(float(model.compile_logp()(AT)), rel=1e-10)
    np.testing.assert_allclose(model.compile_dlogp(mode="JAX")(AT), model.compile_dlogp()(AT), rtol=1e-8)


def test_ibis_takes_such_a_model() -> None:
    model = build(record(0, 1), ALONE, noise=sid.StudentT(nu=4, scale=0.05), limits=(0.12, 0.8))
    idata = sid.sample_ibis(60, model=model, chains=1, cores=1, progressbar=False, random_seed=1)
    assert abs(float(idata["posterior"]["rate"].mean()) - 1.0) < 0.15


# -- doors ------------------------------------------------------------------------------------------------------------

Y = {"noise": 0.05}
DOORS = [
    (Y | {"limits": {"speed": (0, 1)}}, ValueError, "limits names 'speed'; give outputs of the system"),
    (Y | {"limits": (0, 1)}, TypeError, "for several outputs give a dict"),
    (Y | {"limits": {"level": 0.8}}, TypeError, r"limits\['level'\] is 0.8; give \(lower, upper\)"),
    (Y | {"limits": {"level": (1.0, 0.0)}}, ValueError, "the lower limit must be below the upper one"),
    (Y | {"limits": {"level": (None, -3.0)}}, ValueError, "every sample is at a limit or beyond"),
    (Y | {"limits": {"level": (None, "high")}}, TypeError, "limits"),
    ({"noise": sid.Correlated(cov=np.eye(3))}, ValueError, r"the outputs ask for \(2, 2\)"),
    ({"noise": sid.Correlated(cov=np.eye(2)), "limits": {"level": (0, 0.8)}}, ValueError, "needs noise of its own"),
    ({"noise": {"level": sid.Correlated(cov=np.eye(2)), "loss": 0.1}}, ValueError, "which is for all outputs"),
    ({"noise": {"level": lambda y: 0.1, "loss": 0.1}}, ValueError, "does not use the output"),
    (
        {"noise": {"level": lambda y: 0.1 * y - 1, "loss": 0.1}},
        ValueError,
        "a standard deviation must be positive: add a floor",
    ),
    ({"noise": {"level": lambda y: pt.stack([y, y]), "loss": 0.1}}, ValueError, "let it return a scalar"),
    ({"noise": [sid.StudentT(nu=4, scale=0.1), 0.1]}, TypeError, "give a dict of them by output"),
    ({"noise": [lambda y: 0.1 + y**2, 0.1]}, TypeError, "give a dict of them by output"),
    ({"noise": {"level": lambda y: math.sqrt(0.1 + y**2), "loss": 0.1}}, TypeError, "pm.math.sqrt in place of math.sqrt"),
    (Y | {"coloured": {"speed": sid.OU(scale=1.0, length=1.0)}}, ValueError, "coloured names 'speed'; give outputs"),
    (Y | {"coloured": {"level": 0.1}}, TypeError, r"coloured\['level'\] is 0.1; give a process"),
]


@pytest.mark.parametrize(("options", "error", "message"), DOORS)
def test_what_cannot_be_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(record(), **options)


@pytest.mark.parametrize("noise", [sid.StudentT(nu=4, scale=0.1), lambda y: 0.1 + y**2, sid.Correlated(cov=np.eye(2))])
def test_a_simulator_takes_standard_deviations(noise: Any) -> None:
    for given in (noise, [noise, 0.1], {"level": noise, "loss": 0.1}):
        with pm.Model(), pytest.raises(TypeError, match="which only ODEFilter takes; give standard deviations"):
            sid.ODESimulator("y", DECAY, record(), {"rate": 1.0}, noise=given, x0=1.0)


def test_a_function_may_create_a_variable() -> None:
    """It is called once, whatever number of outputs it is for."""

    def build_with(noise: Any) -> float:
        with pm.Model() as model:
            s = pm.HalfNormal("s", 0.1) if noise is None else None
            given = (lambda y: 0.02 + s * pt.abs(y)) if noise is None else noise
            sid.ODEFilter("y", DECAY, record(), {"rate": 1.0}, noise=given, x0=1.0, solver=SOLVER, substeps=1)
        return float(model.compile_logp()({"s_log__": np.array(-2.0)}))

    def own(y: Any) -> Any:
        return 0.02 + pm.HalfNormal("s", 0.1) * pt.abs(y)

    assert build_with(own) == build_with({"level": own, "loss": own}) == build_with(None)


def test_noise_may_depend_on_outputs_that_single_precision_holds_exactly() -> None:
    """Such as those of a converter with steps of 1/256, or a zero."""
    data = record(columns=1)
    quantised = data.replace(y=np.round(256 * data.output_matrix[:, 0]) / 256)
    model = build(quantised, ALONE, noise=lambda y: 0.02 + 0.1 * pt.abs(y))
    assert np.isfinite(model.compile_logp()(AT))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sid.StudentT(nu=0.5, scale=1.0), "nu is 0.5; give a number from 1 to 50"),
        (lambda: sid.StudentT(nu=500, scale=1.0), "Gaussian noise is the same"),
        (lambda: sid.StudentT(nu=4, scale=[0.1, -1.0]), "give a positive number"),
        (lambda: sid.StudentT(nu=pt.dvector(), scale=1.0), "nu has 1 dimensions"),
        (lambda: sid.Correlated(), "neither cov nor chol is given"),
        (lambda: sid.Correlated(cov=np.eye(2), chol=np.eye(2)), "both cov and chol are given"),
        (lambda: sid.Correlated(cov=np.ones((2, 3))), "give a square matrix"),
        (lambda: sid.Correlated(cov=[[1.0, 0.2], [0.3, 1.0]]), "cov is not symmetric"),
        (lambda: sid.Correlated(cov=[[1.0, 2.0], [2.0, 1.0]]), "cov is not positive definite"),
        (lambda: sid.Correlated(chol=[[1.0, 0.5], [0.0, 1.0]]), "chol is not lower triangular"),
        (lambda: sid.Correlated(chol=[[1.0, 0.0], [0.5, -1.0]]), "diagonal that is not positive"),
        (lambda: sid.Correlated(cov=[[np.nan, 0.0], [0.0, 1.0]]), "not finite"),
        (lambda: sid.Correlated(cov=pt.dvector()), "cov has 1 dimensions"),
    ],
)
def test_settings_are_checked_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
