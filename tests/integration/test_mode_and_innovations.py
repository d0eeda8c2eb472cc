import gc
import weakref

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.likelihood.global_search import Tracked
from pm_sysid.likelihood.kept import _KEPT
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.posterior.innovations import coloured_output, misfit
from support.small import linear_model


@pytest.fixture(scope="module")
def model():
    return linear_model()


@pytest.fixture(scope="module")
def mode(model):
    return sid.find_mode(model)


def test_the_mode_of_a_long_record_with_unknown_noise_alone():
    """No particle changes the pass that calibrates the diffusion."""
    decay = sid.System(
        lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    t = np.linspace(0.0, 2.0, 1500)
    error = 0.05 * np.random.default_rng(0).normal(size=t.size)
    with pm.Model():
        sigma = pm.Uniform("sigma", 0.0, 1.0)
        record = sid.TimeSeries(t, None, np.exp(-1.5 * t) + error)
        sid.ODEFilter("y", decay, record, {"rate": 1.5}, noise=sigma, x0=1.0, substeps=1)
        found = sid.find_mode(prior_draws=0, progressbar=False)
    n = t.size  # x0 is known, so that the first sample counts as well; the log-odds of sigma shift its mode by less than 1/n
    expected = np.sqrt(np.mean(error**2))
    assert float(found.initvals["sigma"]) == pytest.approx(expected, rel=2 / n)


def test_mode_is_a_stationary_point_with_the_curvature_of_finite_differences(model, mode):
    assert mode.converged
    logp = model.compile_logp()

    def at(x):
        return float(logp({v.name: np.asarray(xi) for v, xi in zip(model.value_vars, x, strict=True)}))

    sd = np.sqrt(np.diag(mode.covariance))
    precision = np.linalg.inv(mode.covariance)
    for i in range(3):
        e = np.zeros(3)
        e[i] = 0.05 * sd[i]
        up, down = at(mode.point + e), at(mode.point - e)
        assert abs(up - down) / 2 < 1e-3 * abs(0.05 * sd[i]) / sd[i]
        curvature = -(up - 2 * mode.logp + down) / e[i] ** 2
        assert curvature == pytest.approx(precision[i, i], rel=2e-3)


def test_mode_of_a_gaussian_is_exact():
    covariance = np.array([[2.0, 1.2], [1.2, 1.0]])
    with pm.Model():
        pm.MvNormal("x", mu=[3.0, -1.0], cov=covariance, shape=2)
        mode = sid.find_mode()
    np.testing.assert_allclose(mode.initvals["x"], [3.0, -1.0], atol=1e-6)
    np.testing.assert_allclose(mode.covariance, covariance, rtol=1e-6)


def test_a_posterior_without_maximum_is_said_so():
    with pm.Model():
        pm.Flat("x")
        with pytest.warns(UserWarning, match="no clear maximum"):
            assert not sid.find_mode().converged


def test_a_model_is_compiled_once_for_all_its_data(monkeypatch):
    """New data and another start: no new compilation; another potential: one."""
    calls = []
    compiled = PosteriorFunctions._compiled_gradient
    monkeypatch.setattr(PosteriorFunctions, "_compiled_gradient", lambda self: calls.append(self) or compiled(self))
    with pm.Model():
        x = pm.Normal("x", 0.0, 10.0)
        data = pm.Data("data", [1.0, 3.0])
        pm.Normal("y", x, 1.0, observed=data)
        first = sid.find_mode()
        pm.set_data({"data": [4.0, 6.0, 5.0]})
        second = sid.find_mode(start={"x": 3.0})
        assert len(calls) == 1
        np.testing.assert_allclose([first.point[0], second.point[0]], [4.0 / 2.01, 15.0 / 3.01], rtol=1e-6)
        assert second.initvals["x"] == second.point[0]
        pm.Potential("pull", -0.5 * x**2)
        np.testing.assert_allclose(sid.find_mode().point[0], 15.0 / 4.01, rtol=1e-6)
        pm.Deterministic("twice", 2 * x)
        assert sid.find_mode().initvals.keys() == {"x"}
    assert len(calls) == 3


def test_an_interrupted_search_returns_its_best_point(monkeypatch):
    """Ctrl-C at the fourth evaluation: the best of three, from where another search goes on."""
    seen = []

    def interrupted(self, points):
        if len(seen) == 3:
            seen.append(None)
            raise KeyboardInterrupt
        values, gradients = evaluate(self, points)
        seen.append(values.min())
        return values, gradients

    evaluate = Tracked.__call__
    monkeypatch.setattr(Tracked, "__call__", interrupted)
    with pm.Model():
        pm.StudentT("x", nu=3, mu=[30.0, -5.0], sigma=[0.1, 0.4])
        with pytest.warns(UserWarning, match=r"was interrupted; this is the best point so far.*start="):
            partial = sid.find_mode(start={"x": [0.0, 0.0]}, prior_draws=0, progressbar=False)
        assert not partial.converged and -partial.logp == min(seen[:3])
        monkeypatch.undo()
        mode = sid.find_mode(start=partial.initvals)
    np.testing.assert_allclose(mode.initvals["x"], [30.0, -5.0], atol=1e-5)


def test_innovations_give_the_log_likelihood(model, mode):
    point = {k: float(v) for k, v in mode.initvals.items()}
    result = sid.innovations(point, "y", model=model)
    v, s = result["innovation"].values[:, 0], result["std"].values[:, 0]
    density = np.nansum(-0.5 * (np.log(2 * np.pi * s**2) + v**2 / s**2))
    values = {n.name: np.asarray(x) for n, x in zip(model.value_vars, mode.point, strict=True)}
    assert density == pytest.approx(float(model.compile_logp(vars=[model["y"]])(values)), rel=1e-10)
    assert np.flatnonzero(np.isnan(v)).tolist() == [0, 40, 41, 119]
    np.testing.assert_allclose(result["standardised"].values[:, 0], v / s)


def test_innovations_of_the_true_model_are_white(model, mode):
    point = {k: float(v) for k, v in mode.initvals.items()}
    standardised = sid.innovations(point, "y", model=model)["standardised"].values[:, 0]
    verdict = sid.residual_tests(standardised)
    assert 0.8 < verdict.std < 1.2
    assert verdict.ljung_box_p > 1e-3


def test_an_output_is_coloured_where_no_draw_leaves_it_white(model, mode):
    """At the mode nothing is left; where one of the draws is far from it the others still say so."""
    off = {k: float(v) * (3.0 if k == "k" else 1.0) for k, v in mode.initvals.items()}
    draws = [{k: float(v) for k, v in mode.initvals.items()}, off]

    def posterior(*points):
        return xr.DataTree.from_dict(
            {"posterior": xr.Dataset({k: (("chain", "draw"), [[p[k] for p in points]]) for k in points[0]})}
        )

    assert coloured_output(posterior(*draws), "y", model) == ""
    assert coloured_output(posterior(off, off), "y", model) == "y"
    assert misfit(posterior(*draws), "y", model) is None
    found = misfit(posterior(off, off), "y", model)
    assert found is not None and found.words.startswith("the innovations of y are not white")


def test_innovations_name_a_filter_that_is_not_there(model):
    with pytest.raises(ValueError, match=r"no ODEFilter named 'z'; it has \['y'\]"):
        sid.innovations({}, "z", model=model)


def test_what_is_compiled_goes_with_its_model():
    """Kept functions do not keep their model."""
    with pm.Model() as model:
        x = pm.LogNormal("x")
        pm.Deterministic("twice", 2 * x)
        pm.Potential("pull", -(x**2))
        pm.Normal("y", x, 1.0, observed=pm.Data("data", [1.0, 3.0]))
        sid.find_mode()
        target = sid.Target()
        target.constrained(target.unconstrained({"x": [1.0, 2.0]}))
        target.log_likelihood(target.draw_prior(3, 1))
    assert model in _KEPT
    gone = weakref.ref(model)
    del model, x, target
    gc.collect()
    assert gone() is None
