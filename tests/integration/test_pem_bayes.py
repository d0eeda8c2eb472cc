"""From a fit to priors, a PyMC model and draws."""

from __future__ import annotations

import arviz_stats
import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from support.pem_cases import FILTER, FREE, fit, record

LIKELY = {"predictor": sid.ExtendedKalman(Q={"v": 0.05}, R="estimate", substeps=2), "objective": "likelihood"}


def gradient_error(model: pm.Model, point: dict[str, float]) -> float:
    """Largest relative difference between the gradient of a model and central differences."""
    logp, dlogp = model.compile_logp(), model.compile_dlogp()
    start = {v.name: np.asarray(0.9 * point0 + 0.01) for v, point0 in zip(model.value_vars, point.values(), strict=True)}
    exact = dlogp(start)
    errors = []
    for i, name in enumerate(start):
        h = 1e-5 * max(abs(float(start[name])), 0.1)
        up, down = ({**start, name: start[name] + d} for d in (h, -h))
        difference = float(logp(up) - logp(down)) / (2 * h)
        errors.append(abs(exact[i] - difference) / max(abs(difference), 1.0))
    return max(errors)


def test_the_model_has_the_likelihood_of_the_fit() -> None:
    result = fit(**LIKELY)
    model = result.model(scale=5.0)
    assert [v.name for v in model.free_RVs] == ["k", "c", "noise_y"]
    values = {"k": result.x[0], "c": result.x[1], "noise_y_log__": np.log(result.x[2])}
    logp = model.compile_logp(vars=model.observed_RVs)(values)
    np.testing.assert_allclose(-logp, result.fun, rtol=1e-10)
    assert gradient_error(model, values) < 1e-6


def test_after_least_squares_the_deviation_of_the_errors_is_unknown_too() -> None:
    result = fit(predictor=FILTER)
    model = result.model()
    assert [v.name for v in model.free_RVs] == ["k", "c", "noise_y"]
    np.testing.assert_allclose(result.initval["noise_y"] ** 2, result.fun)
    with model:
        mode = sid.find_mode(start=result.initval, prior_draws=0)
    for i, name in enumerate(("k", "c")):
        assert abs(float(mode.initvals[name]) - result.x[i]) < 0.05 * result.x_stderr[i]
    assert mode.converged
    np.testing.assert_allclose(mode.covariance[:2, :2], result.cov, rtol=0.1)


def test_laplace_draws_have_the_mean_and_covariance_of_the_fit() -> None:
    result = fit(**LIKELY)
    tree = result.laplace(2000, random_seed=1)
    draws = np.stack([tree.posterior[n].values.ravel() for n in ("k", "c")])
    error = (draws.mean(axis=1) - result.x[:2]) / result.x_stderr[:2]
    assert np.all(np.abs(error) < 4 / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(draws), result.cov[:2, :2], rtol=0.15, atol=0.1 * result.x_stderr[0] * result.x_stderr[1])
    logs = np.log(tree.posterior["noise_y"].values)
    np.testing.assert_allclose([logs.mean(), logs.std()], [np.log(result.x[2]), result.x_stderr[2] / result.x[2]], rtol=0.1)
    assert tree.log_likelihood["y"].shape == (2, 2000, 200)
    again = result.laplace(2000, random_seed=1)
    np.testing.assert_array_equal(tree.posterior["k"], again.posterior["k"])


def test_drawn_noise_is_larger_than_the_errors_that_a_fit_has_made_small() -> None:
    """Sum of squared errors over the drawn variance: chi-squared, with as many degrees less as unknowns were fitted."""
    short = record()[:30]
    result = fit(short, predictor=FREE)
    errors = result.target.evaluate(result.x).residuals
    found = np.sum(errors**2) / result.laplace(4000, random_seed=3).posterior["noise_y"].values.ravel() ** 2
    assert abs(found.mean() - 28) < 4 * np.sqrt(2 * 28 / 8000)  # 30 would be 15 standard errors off
    np.testing.assert_allclose(found.var(), 2 * 28, rtol=0.1)


@pytest.mark.slow
def test_arviz_and_compare_models_work_on_fits() -> None:
    data = record()
    y = data.y.copy()
    y[4:8] = np.nan
    data = data.replace(y=y)
    fits = {"free": fit(data), "stiff": fit(data, {"c": 0.8}, fixed={"k": 4.4})}
    pairs = {name: (f.model(), f.laplace(300, random_seed=2)) for name, f in fits.items()}
    loo = arviz_stats.loo(pairs["free"][1])
    assert abs(loo.p - 3) < 1 and loo.n_data_points == 196
    e = fits["free"].target.evaluate(fits["free"].x).residuals
    gaussian = -0.5 * 196 * (np.log(2 * np.pi * np.mean(e**2)) + 1)
    assert abs(loo.elpd - (gaussian - 3)) < 2
    table = sid.compare_models(pairs).table
    assert list(table.index) == ["free", "stiff"] and list(table["unknowns"]) == [3, 2]


def test_draws_keep_to_bounds_and_leave_what_is_on_one() -> None:
    result = fit(bounds=({"k": 0.0, "c": 0.6}, None))
    tree = result.laplace(50, random_seed=0)
    assert "c" not in tree.posterior and float(tree.constant_data["c"]) == 0.6
    assert [v.name for v in result.model().free_RVs] == ["k", "noise_y"] and list(result.priors()) == ["k", "noise_y"]
    inside = fit(guess={"k": 5.0, "c": 0.8}, bounds=({"k": fit().p["k"] - 1e-3, "c": 0.0}, None))
    draws = inside.laplace(300, random_seed=0).posterior["k"].values
    assert draws.min() >= inside.setup.unknowns.lower[0] and np.median(draws) > inside.p["k"]


def test_priors_are_as_wide_as_asked() -> None:
    result = fit(**LIKELY, bounds=({"k": 0.0, "c": 0.0}, {"k": 9.0, "c": np.inf}))
    table = result.priors(scale=7.0)
    assert table["k"] == {
        "mu": result.p["k"], "sigma": 7 * result.stderr["k"], "lower": 0.0, "upper": 9.0, "log": 0.0,
    }  # fmt: skip
    np.testing.assert_allclose(table["noise_y"]["sigma"], 7 * result.x_stderr[2] / result.x[2])
    with pm.Model() as model:
        variables = table.variables()
    assert list(variables) == ["k", "c", "noise_y"] and len(model.free_RVs) == 3
    density = [float(pm.logp(variables["k"], v).eval()) for v in (-0.1, 4.0, 9.1)]
    assert np.isinf(density[0]) and np.isfinite(density[1]) and np.isinf(density[2]) and "sigma" in repr(table)
    deviations = pm.draw(variables["noise_y"], 2000, random_seed=1)
    np.testing.assert_allclose(np.median(deviations), result.x[2], rtol=0.1)


def test_a_model_of_the_probabilistic_filter() -> None:
    predictor = sid.ProbabilisticKalman(solver=sid.EK1(2, diffusion=1.0), R="estimate", substeps=1)
    result = fit(predictor=predictor, objective="likelihood")
    point = {"k": result.x[0], "c": result.x[1], "noise_y_log__": np.log(result.x[2])}
    model = result.model()
    np.testing.assert_allclose(-model.compile_logp(vars=model.observed_RVs)(point), result.fun, rtol=1e-9)


def test_what_a_fit_does_not_know_has_no_draws() -> None:
    data = record()
    result = fit(data.replace(u=np.zeros(200)))
    for ask in (result.priors, result.model, result.laplace):
        with pytest.raises(ValueError, match=r"of \['k', 'c'\]: fix them"):
            ask()
    good = fit(predictor=FREE)
    with pytest.raises(ValueError, match="scale is 0"):
        good.priors(scale=0)
    with pytest.raises(ValueError, match="draws is 0"):
        good.laplace(0)
    with pytest.raises(ValueError, match=r"chains is 1\.5"):
        good.laplace(10, chains=1.5)  # type: ignore[arg-type]


def test_laplace_draws_of_a_vector_are_a_vector() -> None:
    """As samplers have it, so that free runs and figures take the draws; beside known entries, the others stay alone."""
    spring = sid.Spline([-1.0, 0.0, 1.0])
    system = sid.System(
        lambda t, x, u, p: -p.rate * x.level + spring(x.level, p.w),
        states=("level",),
        params={"rate": (), "w": 3},
        observe=lambda t, x, dx, u, p: x.level,
    )
    t = np.linspace(0.0, 2.0, 41)
    data = sid.TimeSeries(t, None, np.exp(-1.5 * t) + 0.01 * np.random.default_rng(0).standard_normal(41))
    common = {"x0": 1.0, "predictor": FREE, "progressbar": False, "starts": 1}
    whole = sid.fit_pem(system, data, {"w": [0.25, 0.0, 0.1]}, fixed={"rate": 1.4}, **common).laplace(50, random_seed=0)
    w = whole.posterior["w"]
    assert w.dims == ("chain", "draw", "w_dim_0") and w.shape == (2, 50, 3) and (w.std(("chain", "draw")) > 0).all()
    run = sid.simulate(system, data, whole.posterior.to_dataset()[["w"]].assign(rate=1.4), x0=1.0)["y"]
    assert run.sizes["chain"] == 2 and np.isfinite(run).all()
    part = sid.fit_pem(system, data, {"w[1]": 0.0, "w[2]": 0.1}, fixed={"rate": 1.4, "w[0]": 0.25}, **common)
    assert {"w[1]", "w[2]"} <= set(part.laplace(5, random_seed=0).posterior.data_vars)
