"""The ODE filter as a PyMC distribution: everything PyMC does with a model works, and every mistake is named."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from support import small
from support.small import DUFFING, NOISE, RECORD, SOLVER, TRUTH, X0, T, at, empty, measured, posterior, put


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return small.model()


@pytest.fixture(scope="module")
def pointwise(model: pm.Model) -> Any:
    """Log-likelihood of each sample at a point."""
    return model.compile_fn(model.logp(vars=[model["y"]], sum=False)[0], inputs=model.value_vars)


@pytest.fixture(scope="module")
def density(model: pm.Model) -> Any:
    """Log-likelihood (N, T) of other measurements than the record's."""
    view = filter_view("y", model)
    assert view.op.flat
    y = pt.dvector("other")
    (logp,) = model.replace_rvs_by_values([pm.logp(view.rv, y)])
    function = pytensor.function([y, *model.value_vars], logp)
    return lambda values, point: np.stack([function(v, **point) for v in values])


@pytest.fixture(scope="module")
def draws(model: pm.Model) -> np.ndarray:
    """Records drawn at the true parameters, shape (N, T)."""
    predicted = pm.sample_posterior_predictive(posterior(c=np.full(600, 0.3)), model=model, random_seed=3, progressbar=False)
    return predicted["posterior_predictive"]["y"].values[0]


# -- log-likelihood ---------------------------------------------------------------------------------------------------


def test_variable_is_like_the_record(model: pm.Model) -> None:
    y = model["y"]
    assert y.type.ndim == 1 and model.named_vars_to_dims["y"] == ("y_time",)
    np.testing.assert_array_equal(model.coords["y_time"], RECORD.t)
    np.testing.assert_array_equal(model.rvs_to_values[y].get_value(), RECORD.y)
    assert model.observed_RVs == [y]


def test_pointwise_log_likelihood_has_the_shape_of_the_record(model: pm.Model, pointwise: Any) -> None:
    tree = posterior(c=[0.2, 0.3, 0.4])
    with model:
        pm.compute_log_likelihood(tree, progressbar=False)
    loglik = tree["log_likelihood"]["y"]
    assert loglik.dims == ("chain", "draw", "y_time") and loglik.shape == (1, 3, T)
    np.testing.assert_allclose(loglik.values[0, 2], pointwise(at(c=0.4)), rtol=1e-10)
    assert float(loglik.isel(draw=1).sum()) > float(loglik.isel(draw=0).sum())


def test_log_likelihood_is_that_of_the_deterministic_solution_with_noise(pointwise: Any) -> None:
    run = sid.simulate(DUFFING, RECORD, TRUTH, x0=X0)["y"].values
    expected = stats.norm.logpdf(RECORD.y, run, NOISE)
    np.testing.assert_allclose(pointwise(at()), expected, atol=0.02)


def test_total_is_the_sum_of_priors_and_samples(model: pm.Model, pointwise: Any) -> None:
    point = at(c=0.35, k=4.1)
    priors = model.compile_logp(vars=model.free_RVs)(point)
    assert model.compile_logp()(point) == pytest.approx(priors + pointwise(point).sum(), rel=1e-12)


def test_matrix_records_have_a_second_dimension() -> None:
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("k",),
        observe=lambda t, x, dx, u, p: dict(place=x.z, acceleration=dx.v),
    )
    data = empty(30)
    run = sid.simulate(system, data, dict(k=4.0), x0=0.1)
    y = np.stack([run["place"], run["acceleration"]], axis=1)
    y[3, 0] = np.nan
    with pm.Model():
        noise = dict(acceleration=0.5, place=0.05)
        k = pm.LogNormal("k", np.log(4.0), 0.1)
        solver = sid.EK1(order=2)
        sid.ODEFilter("y", system, data.replace(y=y), dict(k=k), noise=noise, x0=0.1, solver=solver, substeps=2)
        tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"k": (("chain", "draw"), np.full((1, 2), 4.0))})})
        pm.compute_log_likelihood(tree, progressbar=False)
        pm.sample_posterior_predictive(tree, random_seed=1, progressbar=False, extend_inferencedata=True)
    loglik = tree["log_likelihood"]["y"]
    assert loglik.dims == ("chain", "draw", "y_time", "y_output") and loglik.shape == (1, 2, 30, 2)
    assert list(loglik["y_output"].values) == ["place", "acceleration"]
    peak = stats.norm.logpdf(0.0, 0.0, [0.05, 0.5])
    np.testing.assert_allclose(np.delete(loglik.values[0, 0], 3, axis=0), np.tile(peak, (29, 1)), atol=0.02)
    assert loglik.values[0, 0, 3, 0] == 0.0
    drawn = tree["posterior_predictive"]["y"]
    assert drawn.dims == loglik.dims and np.all(np.isfinite(drawn))
    spread = np.std(drawn.values[0, 0] - np.stack([run["place"], run["acceleration"]], axis=1), axis=0)
    assert spread == pytest.approx([0.05, 0.5], rel=0.5)


def test_missing_samples_contribute_nothing(density: Any) -> None:
    y = RECORD.y.copy()
    gone = [0, 5, 6, T - 1]
    y[gone] = np.nan
    (loglik,) = density([y], at())
    assert np.all(loglik[gone] == 0.0)
    kept = np.setdiff1d(np.arange(T), gone)
    np.testing.assert_allclose(loglik[kept], density([RECORD.y], at())[0][kept], atol=0.01)


def test_several_records_are_the_sum_of_single_ones(pointwise: Any) -> None:
    parts = [measured(60, seed=1), measured(90, seed=2)]
    values = []
    for data in (parts, *parts):
        with pm.Model() as model:
            starts = [X0, dict(z=0.4, v=0.1)]
            put(data, x0=starts if data is parts else starts[parts.index(data)], solver=SOLVER.replace(diffusion=3.0))
        values.append(model.compile_logp(vars=[model["y"]])(at(c=0.35)))
    assert values[0] == pytest.approx(values[1] + values[2], rel=1e-10)
    assert values[1] != values[2]


# -- random draws -----------------------------------------------------------------------------------------------------


def test_draws_are_the_deterministic_solution_with_noise(draws: np.ndarray) -> None:
    run = sid.simulate(DUFFING, RECORD, TRUTH, x0=X0)["y"].values
    standard = (draws - run) / NOISE
    assert draws.shape == (600, T)
    assert np.abs(standard.mean(axis=0) * np.sqrt(600)).max() < 4.5
    assert np.mean(standard**2) == pytest.approx(1.0, abs=4.5 * np.sqrt(2 / standard.size))
    assert stats.kstest(standard.ravel(), "norm").pvalue > 1e-4
    neighbours = np.mean(standard[:, 1:] * standard[:, :-1])
    assert abs(neighbours) < 4.5 / np.sqrt(standard[:, 1:].size)


def test_draws_are_consistent_with_the_likelihood(draws: np.ndarray, density: Any) -> None:
    """Minus twice the log-density, less its constant, is chi-square with T degrees of freedom."""
    loglik = density(draws[:300], at())
    constant = T * np.log(2 * np.pi * NOISE**2)
    chi2 = -2 * loglik.sum(axis=1) - constant
    assert np.mean(chi2) == pytest.approx(T, abs=4.5 * np.sqrt(2 * T / 300))
    assert np.var(chi2) == pytest.approx(2 * T, rel=0.4)
    assert stats.kstest(chi2, stats.chi2(T).cdf).pvalue > 1e-4


def test_true_parameters_win_on_their_own_draws(draws: np.ndarray, density: Any) -> None:
    true, other = density(draws[:20], at()), density(draws[:20], at(k=4.1))
    assert np.all(true.sum(axis=1) > other.sum(axis=1))


def test_draws_repeat_with_the_seed(model: pm.Model) -> None:
    first, second, third = (pm.draw(model["y"], random_seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert np.all(first != third)


def test_prior_predictive_has_the_dims_of_the_record(model: pm.Model) -> None:
    tree = pm.sample_prior_predictive(20, model=model, random_seed=1)
    drawn = tree["prior_predictive"]["y"]
    assert drawn.dims == ("chain", "draw", "y_time") and drawn.shape == (1, 20, T)
    assert np.all(np.isfinite(drawn))
    deviation = np.abs(drawn - sid.simulate(DUFFING, RECORD, TRUTH, x0=X0)["y"].values)
    assert float(deviation.mean()) > 1.5 * NOISE, "the priors' own spread is missing"


# -- other records, interventions, optimisation -----------------------------------------------------------------------


@pytest.fixture
def changeable() -> pm.Model:
    with pm.Model() as model:
        put(RECORD, solver=SOLVER)
    return model


def test_set_data_takes_a_record_of_another_length(changeable: pm.Model, pointwise: Any) -> None:
    other = measured(120, seed=7)
    y = other.y.copy()
    y[10] = np.nan
    with changeable:
        sid.set_data({"y": other.replace(y=y)})
    with pm.Model() as fresh:
        put(other.replace(y=y))
    value = changeable.compile_logp()(at(c=0.35))
    assert value == pytest.approx(fresh.compile_logp()(at(c=0.35)), rel=1e-12)
    np.testing.assert_array_equal(changeable.coords["y_time"], other.t)
    drawn = pm.sample_posterior_predictive(posterior(), model=changeable, random_seed=1, progressbar=False)
    assert drawn["posterior_predictive"]["y"].shape == (1, 1, 120)
    np.testing.assert_array_equal(drawn["posterior_predictive"]["y_time"], other.t)
    with changeable:
        sid.set_data({"y": RECORD})
    assert changeable.compile_logp(vars=[changeable["y"]])(at()) == pytest.approx(pointwise(at()).sum(), rel=1e-12)


def test_set_data_takes_the_model_as_an_argument(changeable: pm.Model) -> None:
    sid.set_data({"y": measured(50, seed=7)}, changeable)
    assert len(changeable.rvs_to_values[changeable["y"]].get_value()) == 50


@pytest.mark.parametrize(
    "data, error, message",
    [
        (measured(50).replace(intersample="zoh"), ValueError, "differs from the old one in intersample behaviour"),
        (
            sid.TimeSeries(np.cumsum(np.tile([0.03, 0.05], 25)), np.zeros(50), np.zeros(50)),
            ValueError,
            "being uniformly sampled",
        ),
        ([measured(50), measured(50)], ValueError, "built for 1 records and got 2"),
        (measured(50).replace(u=None), ValueError, "0 input channels"),
        (empty(50), ValueError, "has no outputs"),
        (3, TypeError, "give a TimeSeries"),
    ],
)
def test_set_data_refuses_records_that_do_not_fit(model: pm.Model, data: Any, error: Any, message: str) -> None:
    before = model.rvs_to_values[model["y"]].get_value()
    with pytest.raises(error, match=message):
        sid.set_data({"y": data}, model)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].get_value(), before)


def test_set_data_names_the_filters_there_are(model: pm.Model) -> None:
    with pytest.raises(ValueError, match=r"no ODEFilter named 'z'; it has \['y'\]"):
        sid.set_data({"z": RECORD}, model)
    with pytest.raises(ValueError, match="no ODEFilter named 'c'"):
        sid.set_data({"c": RECORD}, model)


def test_pm_do_fixes_a_parameter(model: pm.Model, pointwise: Any) -> None:
    fixed = pm.do(model, {"k": 4.1})
    assert {v.name for v in fixed.free_RVs} == {"c", "noise"}
    point = {k: v for k, v in at().items() if k != "k_log__"}
    assert fixed.compile_logp(vars=[fixed["y"]])(point) == pytest.approx(pointwise(at(k=4.1)).sum(), rel=1e-10)


def test_copied_model_is_the_same_model(model: pm.Model) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(model))
    assert copy.compile_logp()(at(c=0.4)) == model.compile_logp()(at(c=0.4))
    sid.set_data({"y": measured(50, seed=7)}, copy)
    assert len(model.rvs_to_values[model["y"]].get_value()) == T


# -- the doors --------------------------------------------------------------------------------------------------------


def with_matrix(data: sid.TimeSeries) -> sid.TimeSeries:
    return data.replace(y=np.stack([data.y, data.y], axis=1))


HIDDEN = sid.models.bouc_wen()
HIDDEN_VALUES = dict(m=1.0, c=0.3, k=4.0, alpha=1.0, beta=1.0, gamma=0.8, delta=-0.5)
SHORT = measured(30)


def door(system: Any = DUFFING, data: Any = SHORT, params: Any = TRUTH, **options: Any) -> Any:
    given = {k: v() if callable(v) and not isinstance(v, type) else v for k, v in options.items()}
    given = dict(noise=NOISE, x0=X0, substeps=2, solver=sid.EK1(order=2)) | given
    return sid.ODEFilter("y", system, data, params() if callable(params) else params, **given)


@pytest.mark.parametrize(
    "options, error, message",
    [
        (dict(params=dict(m=1.0, c=0.3)), ValueError, r"params lacks \['k', 'k3'\]"),
        (dict(params=TRUTH | dict(q=1.0)), ValueError, r"params has the unknown names \['q'\]"),
        (dict(params=dict(m=1.0, c=0.3, k=1.0, q=1.0)), ValueError, r"lacks \['k3'\] and has the unknown names"),
        (dict(params=[1.0, 2.0]), TypeError, "params is list; give a dict"),
        (dict(params=lambda: TRUTH | dict(c=pm.Normal("c", shape=2))), ValueError, r"params\['c'\] has 1 dimensions"),
        (dict(params=TRUTH | dict(c=[0.1, 0.2])), TypeError, r"params\['c'\] is .*finite number or a scalar"),
        (dict(params=TRUTH | dict(c=np.nan)), ValueError, r"params\['c'\] is nan"),
        (dict(data=SHORT.replace(u=None)), ValueError, "data has 0 input channels"),
        (dict(data=[SHORT, SHORT.replace(u=None)]), ValueError, r"data\[1\] has 0 input channels"),
        (dict(data=with_matrix(SHORT)), ValueError, "data has 2 output channels"),
        (dict(data=empty(30)), ValueError, "data has no outputs; give the measured y, with NaN"),
        (dict(data=3), TypeError, "data is int; give a TimeSeries"),
        (dict(data=[]), TypeError, "give a TimeSeries, or a list"),
        (dict(data=[SHORT, SHORT.replace(intersample="zoh")]), ValueError, "differ in intersample behaviour"),
        (dict(system=3), TypeError, "system is int; give a pm_sysid.System"),
        (dict(noise=-1.0), ValueError, "noise is -1.0; a standard deviation must be positive"),
        (dict(noise=0.0), ValueError, "noise is 0.0"),
        (dict(noise=np.inf), ValueError, "noise is inf"),
        (dict(noise=[0.1, 0.2]), ValueError, r"noise has 2 entries; give one, or one for each output: \('y',\)"),
        (dict(noise=dict(z=0.1)), ValueError, r"noise has the entries \['z'\]"),
        (dict(noise=lambda: pm.HalfNormal("n", shape=3)), ValueError, "noise has 3 entries"),
        (dict(noise=lambda: pm.HalfNormal("n", shape=(2, 2))), ValueError, "noise has 2 dimensions"),
        (dict(x0=dict(q=1.0)), ValueError, r"x0 names the states \['q'\]"),
        (dict(x0=[1.0, 2.0, 3.0]), ValueError, "x0 has 3 entries; give one for each state"),
        (dict(x0=[np.nan, 0.0]), ValueError, "x0 of 'z' is nan"),
        (dict(x0=lambda: pm.Normal("start", shape=3)), ValueError, "x0 has 3 entries"),
        (dict(x0=lambda: pm.Normal("start", shape=(2, 2))), ValueError, "x0 has 2 dimensions"),
        (dict(x0_std=-1.0), ValueError, "x0_std of 'z' is -1.0; it must be finite and not negative"),
        (dict(x0_std=dict(q=1.0)), ValueError, r"x0_std names the states \['q'\]"),
        (dict(data=[SHORT, SHORT], x0=[0.0, 0.0, 0.0]), ValueError, "3 entries for 2 records"),
        (dict(system=HIDDEN, params=HIDDEN_VALUES, x0=None), ValueError, r"not given for the states \['r'\].*x0=\{'r'"),
        (dict(solver=3), TypeError, r"solver is 3; give pm_sysid.EK0\(...\) or"),
        (dict(solver=sid.EK1), TypeError, "solver is <class"),
        (dict(solver=sid.EK1(order=1)), ValueError, "order is 1, but the chain .* use an order of at least 2"),
        (dict(solver=sid.EK1(order=2, diffusion=-1.0)), ValueError, "diffusion is .*-1.0.* must be positive"),
        (dict(solver=sid.EK1(order=2, diffusion=[1.0, 2.0])), ValueError, "diffusion has 2 entries"),
        (dict(solver=sid.EK1(order=2, diffusion=dict(q=1.0))), ValueError, r"diffusion has the entries \['q'\]"),
        (
            dict(solver=lambda: sid.EK1(order=2, diffusion=pm.HalfNormal("d", shape=3))),
            ValueError,
            "diffusion has 3 entries",
        ),
        (dict(substeps=0), ValueError, "substeps is 0; give a positive integer or 'auto'"),
        (dict(substeps=2.5), ValueError, "substeps is 2.5"),
        (dict(substeps=True), ValueError, "substeps is True"),
        (dict(substeps="many"), ValueError, "substeps is 'many'"),
        (dict(likelihood="dalton"), ValueError, "likelihood is 'dalton'; choose 'filter' or 'fenrir'"),
        (dict(dims=("a", "b")), ValueError, "dim"),
    ],
)
def test_mistakes_are_named_at_the_door(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pm.Model(), pytest.raises(error, match=message):
        door(**options)


@pytest.mark.parametrize("order", [0, 12, 2.5, True])
def test_impossible_orders_are_refused(order: Any) -> None:
    with pytest.raises(ValueError, match=r"EK1: order is .*; give an integer from 1 to 11"):
        sid.EK1(order=order)


def test_impossible_solver_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="EK0: covariance is 'full'; give 'auto', 'dense' or 'block'"):
        sid.EK0(covariance="full")
    with pytest.raises(ValueError, match="EK0: diffusion is 'map'; give 'mle', 'dynamic'"):
        sid.EK0(diffusion="map")


def test_a_filter_needs_a_model() -> None:
    with pytest.raises(TypeError, match="No model on context stack"):
        door()


def test_one_noise_for_outputs_of_different_size_gets_a_word() -> None:
    """Metres beside metres per second squared; a vector, a dict, or outputs of one size do not."""
    system = sid.System(
        lambda t, x, u, p: (x.v, -p.k * x.z),
        states=("z", "v"),
        params=("k",),
        observe=lambda t, x, dx, u, p: {"z": x.z, "a": dx.v},
    )
    t = np.linspace(0.0, 1.0, 60)
    options: dict[str, Any] = dict(x0={"z": 1.0, "v": 0.0}, substeps=16)
    message = r"one noise is given .*\(standard deviations: z 0\.7\d*, a 6\.\de\+02\).*noise={\"z\": \.\.\., \"a\""
    cases = ((900.0, 0.1, True), (900.0, [0.1, 0.1], False), (900.0, {"z": 0.1, "a": 1.0}, False), (9.0, 0.1, False))
    for k, noise, warned in cases:
        z = np.cos(np.sqrt(k) * t)
        record = sid.TimeSeries(t, None, {"z": z, "a": -k * z})
        expected = pytest.warns(UserWarning, match=message) if warned else nullcontext()
        with pm.Model(), expected:
            sid.ODEFilter("y", system, record, {"k": k}, noise=noise, **options)


def test_coarse_steps_are_obeyed_with_a_warning() -> None:
    data = SHORT.replace(t=SHORT.t * 12.0)
    with pm.Model(), pytest.warns(sid.SubstepWarning, match="substeps=1: at the values given .* moves by"):
        y = door(data=data, substeps=1)
    assert y.owner.op.substeps == 1


def test_automatic_substeps_suffice(model: pm.Model) -> None:
    data = SHORT.replace(t=SHORT.t * 4.0)
    with pm.Model():
        assert door(data=data, substeps="auto").owner.op.substeps > 1
        assert model["y"].owner.op.substeps == 1


def test_own_dims_are_used() -> None:
    with pm.Model(coords={"when": SHORT.t}) as model:
        door(dims="when")
    assert model.named_vars_to_dims["y"] == ("when",)
