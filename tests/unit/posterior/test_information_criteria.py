"""DIC, WAIC and leave-one-out of conjugate models against formulas; their warnings; posterior moments."""

from __future__ import annotations

import math
import warnings
from typing import Any

import arviz_stats
import matplotlib
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose
from scipy import stats

import pm_sysid as sid

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from pm_sysid.posterior.information_criteria import loo_of as loo
from pm_sysid.posterior.information_criteria import several_modes, waic_of
from pm_sysid.posterior.log_likelihood import evaluate

N, SIGMA, WIDE = 80, 0.3, 5.0
TIME = np.linspace(-1, 1, N)
Y = 1.0 - 2.0 * TIME + SIGMA * np.random.default_rng(1).standard_normal(N)


def design(terms: int) -> np.ndarray:
    return np.polynomial.legendre.legvander(TIME, terms - 1)


def line(terms: int = 2, y: Any = Y) -> pm.Model:
    """Polynomial with known noise, whose posterior is normal."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, WIDE, shape=terms)
        pm.Normal("y", pm.math.dot(design(terms), beta), SIGMA, observed=y)
    return model


def exact(terms: int, kept: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the posterior."""
    rows = np.arange(N) if kept is None else kept
    X = design(terms)[rows]
    covariance = np.linalg.inv(np.eye(terms) / WIDE**2 + X.T @ X / SIGMA**2)
    return covariance @ X.T @ Y[rows] / SIGMA**2, covariance


def tree(**variables: Any) -> xr.DataTree:
    columns = {k: (("chain", "draw", *(f"{k}_{i}" for i in range(np.ndim(v) - 2))), v) for k, v in variables.items()}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(columns)})


def posterior(terms: int = 2, draws: int = 500, seed: int = 0) -> xr.DataTree:
    beta = np.random.default_rng(seed).multivariate_normal(*exact(terms), size=(2, draws))
    return tree(beta=beta)


def log_likelihood(beta: np.ndarray) -> np.ndarray:
    """By hand, (draws, N)."""
    mean = np.atleast_2d(beta) @ design(np.shape(beta)[-1]).T
    return -0.5 * ((Y - mean) / SIGMA) ** 2 - np.log(SIGMA) - 0.5 * np.log(2 * np.pi)


def with_log_likelihood(idata: xr.DataTree, values: np.ndarray, name: str = "y") -> xr.DataTree:
    dims = ("chain", "draw", "time", "output")[: values.ndim]
    return xr.DataTree.from_dict({**idata.to_dict(), "log_likelihood": xr.Dataset({name: (dims, values)})})


def rows(idata: xr.DataTree) -> np.ndarray:
    return idata["posterior"]["beta"].values.reshape(-1, idata["posterior"]["beta"].shape[-1])


# -- values -------------------------------------------------------------------------------------------------------------


def test_dic_is_twice_the_mean_deviance_less_the_deviance_at_the_mean() -> None:
    idata = posterior()
    result = sid.dic(idata, model=line())
    beta = rows(idata)
    deviance = -2 * log_likelihood(beta).sum(axis=1)
    at_mean = -2 * log_likelihood(beta.mean(axis=0)).sum()
    assert result.deviance == pytest.approx(2 * deviance.mean() - at_mean, rel=1e-10)
    assert result.mean_deviance == pytest.approx(deviance.mean()) and result.deviance_at_mean == pytest.approx(at_mean)
    assert result.p == pytest.approx(deviance.mean() - at_mean, rel=1e-8)
    assert result.p == pytest.approx(2, abs=0.2)
    assert_allclose(result.at["beta"], beta.mean(axis=0))
    per_point = 2 * log_likelihood(beta).mean(axis=0) - log_likelihood(beta.mean(axis=0))[0]
    assert_allclose(result.elpd_i, per_point, rtol=1e-9)
    assert result.elpd_i.sum().item() == pytest.approx(result.elpd) and result.p_i.sum().item() == pytest.approx(result.p)
    error = 2 * math.sqrt(N * np.var(per_point, ddof=1))
    assert result.deviance_se == pytest.approx(error) and result.se == pytest.approx(error / 2)
    assert (result.n_samples, result.n_data_points, result.kind, result.warning) == (1000, N, "dic", False)
    text = str(result)
    assert f"DIC {result.deviance:.2f}" in text and "p_dic" in text and "Warning" not in text and repr(result) == text


def test_waic_is_the_mean_density_less_the_variance_of_its_logarithm() -> None:
    idata = posterior()
    result = sid.waic(idata, model=line())
    ll = log_likelihood(rows(idata))
    variance = ll.var(axis=0, ddof=1)
    per_point = np.log(np.exp(ll).mean(axis=0)) - variance
    assert_allclose(result.elpd_i, per_point, rtol=1e-9)
    assert result.deviance == pytest.approx(-2 * per_point.sum()) and result.p == pytest.approx(variance.sum())
    assert result.deviance_se == pytest.approx(2 * math.sqrt(N * np.var(per_point, ddof=1)))
    assert result.kind == "waic" and "WAIC" in str(result)


@pytest.mark.parametrize("terms", [2, 3, 5])
def test_effective_parameters_are_those_a_linear_model_has(terms: int) -> None:
    idata, model = posterior(terms, draws=2000), line(terms)
    assert sid.dic(idata, model=model).p == pytest.approx(terms, rel=0.1)
    mean, covariance = exact(terms)
    X = design(terms)
    residual, spread = Y - X @ mean, np.einsum("ij,jk,ik->i", X, covariance, X)
    variance = (residual**2 * spread + spread**2 / 2) / SIGMA**4  # of -(y - f)^2 / 2 sigma^2 with f ~ N(mean, spread)
    assert_allclose(sid.waic(idata, model=model).p_i, variance, rtol=0.1, atol=1e-3)


def test_leave_one_out_is_that_of_the_exact_predictive_density() -> None:
    result = loo(evaluate(posterior(draws=2000), line(), mean=False))
    expected = []
    for i in range(N):
        mean, covariance = exact(2, np.delete(np.arange(N), i))
        x = design(2)[i]
        expected.append(stats.norm(x @ mean, math.sqrt(SIGMA**2 + x @ covariance @ x)).logpdf(Y[i]))
    assert_allclose(result.elpd_i, expected, atol=0.02)
    assert result.elpd == pytest.approx(sum(expected), abs=0.1)
    assert result.se == pytest.approx(math.sqrt(N * np.var(result.elpd_i.values, ddof=1)))
    assert not result.warning and result.log_weights is None


def test_leave_one_out_agrees_with_arviz_and_bears_points_that_do_not_vary() -> None:
    idata = posterior()
    ll = log_likelihood(rows(idata)).reshape(2, 500, N)
    plain = arviz_stats.loo(with_log_likelihood(idata, ll), pointwise=True)
    ours = loo(evaluate(with_log_likelihood(idata, ll), None, mean=False))
    assert ours.elpd == pytest.approx(plain.elpd) and ours.se == pytest.approx(plain.se) and ours.p == pytest.approx(plain.p)
    extended = np.concatenate([np.full((2, 500, 1), -1.3), ll], axis=2)
    more = loo(evaluate(with_log_likelihood(idata, extended), None, mean=False))
    assert more.elpd == pytest.approx(plain.elpd - 1.3) and more.n_data_points == N + 1
    assert more.elpd_i.values[0] == -1.3 and more.pareto_k.values[0] == 0


def test_the_mean_may_be_taken_where_the_sampler_moves() -> None:
    rng = np.random.default_rng(1)
    scale = rng.lognormal(np.log(SIGMA), 0.3, (2, 400))
    with pm.Model() as model:
        s = pm.LogNormal("s")
        pm.Normal("y", 1.0 - 2.0 * TIME, s, observed=Y)

    def deviance(s: Any) -> Any:
        return -2 * stats.norm(1.0 - 2.0 * TIME, np.asarray(s).reshape(-1, 1)).logpdf(Y).sum(axis=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these draws are no posterior
        results = {space: sid.dic(tree(s=scale), model=model, space=space) for space in ("model", "unconstrained")}
    for space, mean in (("model", scale.mean()), ("unconstrained", np.exp(np.log(scale).mean()))):
        assert results[space].deviance == pytest.approx(2 * deviance(scale).mean() - deviance(mean)[0])
        assert results[space].at["s"] == pytest.approx(mean)
    assert results["model"].deviance != pytest.approx(results["unconstrained"].deviance, abs=0.1)


# -- where log-likelihoods come from ------------------------------------------------------------------------------------


def test_a_stored_log_likelihood_gives_the_same_and_nothing_is_added() -> None:
    idata, model = posterior(), line()
    ll = log_likelihood(rows(idata)).reshape(2, 500, N)
    stored = with_log_likelihood(idata, ll)
    assert sid.dic(stored, model=model).deviance == pytest.approx(sid.dic(idata, model=model).deviance)
    assert sid.waic(stored).deviance == pytest.approx(sid.waic(idata, model=model).deviance)
    assert set(idata.children) == {"posterior"} and set(stored.children) == {"posterior", "log_likelihood"}
    with model:
        assert sid.waic(idata).deviance == sid.waic(idata, model=model).deviance


def test_a_log_likelihood_of_another_model_is_refused() -> None:
    idata = posterior()
    stored = with_log_likelihood(idata, log_likelihood(rows(idata)).reshape(2, 500, N) + 0.001)
    with pytest.raises(ValueError, match="another model or other data"):
        sid.dic(stored, model=line())
    short = with_log_likelihood(idata, log_likelihood(rows(idata)).reshape(2, 500, N)[..., :-1])
    with pytest.raises(ValueError, match="over 79 samples for the last draw"):
        sid.dic(short, model=line())


def test_outputs_of_a_sample_are_one_point_and_samples_without_measurement_none() -> None:
    ll = np.random.default_rng(0).normal(-1, 0.1, (2, 50, 6, 2))
    ll[:, :, 2] = 0.0
    ll[:, :, 4, 1] = np.nan
    result = sid.waic(with_log_likelihood(posterior(draws=50), ll))
    assert result.elpd_i["point"].values.tolist() == [0, 1, 3, 4, 5] and result.n_data_points == 5
    whole = np.nan_to_num(ll).sum(axis=3).reshape(100, 6)[:, [0, 1, 3, 4, 5]]
    per_point = np.log(np.exp(whole).mean(axis=0)) - whole.var(axis=0, ddof=1)
    assert_allclose(result.elpd_i, per_point)


def test_several_observed_variables_add_up_sample_by_sample() -> None:
    idata = posterior(draws=50)
    a, b = np.random.default_rng(0).normal(-1, 0.1, (2, 2, 50, 6))
    both = with_log_likelihood(idata, a)
    both["log_likelihood"] = both["log_likelihood"].to_dataset().assign(z=(("chain", "draw", "time"), b))
    assert sid.waic(both).deviance == pytest.approx(sid.waic(with_log_likelihood(idata, a + b)).deviance)
    both["log_likelihood"] = both["log_likelihood"].to_dataset().assign(z=(("chain", "draw", "other"), b[..., :4]))
    with pytest.raises(ValueError, match=r"different numbers of samples: \{'y': 6, 'z': 4\}"):
        sid.waic(both)


def test_fewer_draws_are_evenly_spaced() -> None:
    idata, model = posterior(draws=500), line()
    result = sid.dic(idata, model=model, draws=40)
    places = np.linspace(0, 499, 20).round().astype(int)
    few = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset().isel(draw=places)})
    assert result.n_samples == 40 and result.deviance == sid.dic(few, model=model).deviance
    stored = with_log_likelihood(idata, log_likelihood(rows(idata)).reshape(2, 500, N))
    assert sid.dic(stored, model=model, draws=40).deviance == pytest.approx(result.deviance)


# -- ArviZ --------------------------------------------------------------------------------------------------------------


def test_arviz_compares_and_plots_criteria_of_one_kind() -> None:
    import arviz_plots

    found: dict[str, dict[str, Any]] = {"dic": {}, "waic": {}}
    for name, terms in (("constant", 1), ("line", 2), ("quartic", 5)):
        idata = posterior(terms, draws=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the constant misfits
            found["dic"][name] = sid.dic(idata, model=line(terms))
            found["waic"][name] = sid.waic(idata, model=line(terms))
    for results in found.values():
        table = arviz_stats.compare(results)
        assert list(table.index) == ["line", "quartic", "constant"]
        assert table["weight"].sum() == pytest.approx(1, abs=0.02) and table.loc["constant", "weight"] < 0.01
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arviz_plots.plot_compare(table, backend="matplotlib")
        plt.close("all")
    extra = found["dic"]["quartic"].deviance - found["dic"]["line"].deviance
    assert 0 < extra < 2 * 3  # each useless term costs two at most
    with pytest.raises(ValueError, match="incompatible cross-validation methods"):
        arviz_stats.compare({"a": found["dic"]["line"], "b": found["waic"]["line"]})


# -- what is not to be trusted ------------------------------------------------------------------------------------------


def two_hills() -> tuple[pm.Model, np.ndarray]:
    """A parameter whose sign the data do not tell."""
    y = 3.0 + 0.5 * np.random.default_rng(4).standard_normal(20)
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 10.0)
        pm.Normal("y", pm.math.abs(a), 0.5, observed=y)
    return model, y


def test_several_modes_make_the_dic_meaningless() -> None:
    model, y = two_hills()
    a = np.random.default_rng(0).normal(y.mean(), 0.5 / math.sqrt(20), (2, 300)) * np.random.default_rng(1).choice(
        [-1, 1], (2, 300)
    )
    with pytest.warns(UserWarning) as caught:
        result = sid.dic(tree(a=a), model=model)
    assert len(caught) == 2 and result.warning and len(result.reasons) == 2 and result.p < 0
    assert "effective number of parameters is negative" in str(caught[0].message)
    assert "several modes (the draws of a fall into two groups)" in str(caught[1].message)
    assert str(result).count("Warning:") == 2
    assert sid.waic(tree(a=a), model=model).p == pytest.approx(1, abs=0.5)  # to which modes make no difference
    stuck = np.abs(a) * np.array([[-1.0], [1.0]])
    with pytest.warns(UserWarning, match="several modes .R-hat of a is"), pytest.warns(UserWarning, match="negative"):
        sid.dic(tree(a=stuck), model=model)


@pytest.mark.parametrize(
    "draw", [lambda r: r.normal(size=(2, 400)), lambda r: r.uniform(size=(2, 400)), lambda r: r.standard_t(3, (2, 400)),
             lambda r: r.exponential(size=(2, 400)), lambda r: np.ones((2, 400)), lambda r: r.normal(size=(1, 3))]
)  # fmt: skip
def test_one_mode_is_taken_for_one(draw: Any) -> None:
    for seed in range(5):
        assert several_modes(tree(a=draw(np.random.default_rng(seed)))["posterior"].to_dataset()) == []


def test_more_effective_parameters_than_there_are_is_said() -> None:
    wide = posterior()
    beta = wide["posterior"]["beta"]
    wide["posterior"]["beta"] = (
        beta.mean() + 3 * (beta - beta.mean(("chain", "draw"))) + beta.mean(("chain", "draw")) - beta.mean()
    )
    with pytest.warns(UserWarning, match="DIC: the effective number of parameters is 18.* for 2 unknowns") as caught:
        result = sid.dic(wide, model=line())
    assert len(caught) == 1 and result.reasons and caught[0].filename == __file__
    with pytest.warns(UserWarning, match="for 2 unknowns"), pytest.warns(UserWarning, match="varies by more than 0.4"):
        sid.waic(wide, model=line())


def test_a_point_that_varies_much_is_counted() -> None:
    rng = np.random.default_rng(0)
    ll = rng.normal(-1, 0.05, (2, 100, 30))
    ll[..., 7:9] *= 20
    with pytest.warns(UserWarning, match="of 2 of 30 points varies by more than 0.4") as caught:
        sid.waic(with_log_likelihood(posterior(draws=100), ll))
    assert caught[0].filename == __file__


def test_bad_pareto_k_points_to_leave_future_out() -> None:
    ll = -(np.random.default_rng(0).standard_cauchy((2, 200, 10)) ** 2)
    likelihood = evaluate(with_log_likelihood(posterior(draws=200), ll), None, mean=False)
    with pytest.warns(UserWarning, match=r"the Pareto k of \d+ of 10 points is above 0\.\d+.*lfo_cv"):
        assert loo(likelihood).warning


# -- what is refused ----------------------------------------------------------------------------------------------------


def test_errors_say_the_remedy() -> None:
    idata, model = posterior(draws=20), line()
    ll = log_likelihood(rows(idata)).reshape(2, 20, N)
    with pytest.raises(ValueError, match="the log-likelihood must be computed; give the model"):
        sid.waic(idata)
    with pytest.raises(ValueError, match="at the posterior mean must be computed; give the model"):
        sid.dic(with_log_likelihood(idata, ll))
    with pytest.raises(ValueError, match=r"no group 'posterior', but \['prior'\]"):
        sid.dic(xr.DataTree.from_dict({"prior": xr.Dataset()}), model=model)
    with pytest.raises(ValueError, match=r"lacks the model's variables \['beta'\]; it has \['gamma'\]"):
        sid.dic(tree(gamma=np.zeros((2, 5))), model=model)
    with pytest.raises(ValueError, match="space is 'log'"):
        sid.dic(idata, model=model, space="log")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="draws is 0"):
        sid.waic(idata, model=model, draws=0)
    with pytest.raises(ValueError, match="one number a draw"):
        sid.waic(with_log_likelihood(idata, ll.sum(axis=2)))
    with pytest.raises(ValueError, match="every sample is zero"):
        sid.waic(with_log_likelihood(idata, 0 * ll))
    failed = ll.copy()
    failed[1, 3, 5:] = -np.inf
    with pytest.raises(ValueError, match="of 1 of 40 draws is not finite"):
        sid.waic(with_log_likelihood(idata, failed))
    with pytest.raises(ValueError, match="needs at least 25"):
        loo(evaluate(posterior(draws=12), model, mean=False))
    with pytest.raises(ValueError, match="the WAIC needs at least two"):
        waic_of(evaluate(tree(beta=np.zeros((1, 1, 2))), model, mean=False))


def test_a_mean_the_model_cannot_have_is_refused() -> None:
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 10.0)
        pm.Normal("y", 0.0, pm.math.switch(pm.math.abs(a) > 1, 1.0, -1.0), observed=[0.1, 0.2])
    a = np.array([[-2.0, -1.5, 2.0, 1.5]])
    with pytest.raises(ValueError, match="at the posterior mean is not finite"):
        sid.dic(tree(a=a), model=model)


# -- moments ------------------------------------------------------------------------------------------------------------


def test_covariance_and_correlation_of_scalars_and_vectors() -> None:
    rng = np.random.default_rng(0)
    draws = rng.multivariate_normal([0, 1, 2], [[1, 0.5, 0], [0.5, 2, -1], [0, -1, 3]], (2, 100))
    idata = tree(a=draws[..., 0], b=draws[..., 1:])
    path = (("chain", "draw", "y_time"), rng.normal(size=(2, 100, 4)))
    idata["posterior"] = idata["posterior"].to_dataset().assign(z_path=path)
    found = sid.covariance(idata)
    assert found["parameter"].values.tolist() == ["a", "b[0]", "b[1]"] == found["other"].values.tolist()
    pooled = draws.reshape(-1, 3)
    assert_allclose(found, np.cov(pooled, rowvar=False))
    assert_allclose(sid.correlation(idata, var_names=["b", "a"]), np.corrcoef(pooled[:, [1, 2, 0]], rowvar=False))
    assert sid.correlation(idata["posterior"].to_dataset(), var_names="a").shape == (1, 1)
    labelled = idata["posterior"].to_dataset().assign_coords(b_0=["left", "right"])
    assert sid.covariance(labelled, var_names="b")["other"].values.tolist() == ["b[left]", "b[right]"]


def test_a_parameter_that_does_not_vary_has_no_correlation() -> None:
    found = sid.correlation(tree(a=np.ones((1, 5)), b=np.arange(5.0)[None]))
    assert np.isnan(found.values[0]).all() and np.isnan(found.values[:, 0]).all() and found.values[1, 1] == pytest.approx(1)


def test_moments_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match="no variable 'k'; it has a"):
        sid.covariance(tree(a=np.ones((1, 5))), var_names="k")
    with pytest.raises(ValueError, match="1 draws; a covariance needs at least two"):
        sid.covariance(tree(a=np.ones((1, 1))))
    with pytest.raises(ValueError, match="no dimension chain"):
        sid.covariance(xr.Dataset({"a": ("draw", [1.0, 2.0])}))
    with pytest.raises(ValueError, match="no parameters"):
        sid.covariance(tree(a=np.ones((1, 5))), var_names=[])
    with pytest.raises(ValueError, match="idata is list"):
        sid.covariance([1.0])


# -- figures ------------------------------------------------------------------------------------------------------------


def test_correlation_matrix_is_drawn_with_its_numbers() -> None:
    rng = np.random.default_rng(0)
    idata = tree(c=rng.normal(size=(2, 50)), k=rng.normal(size=(2, 50)), fixed=np.ones((2, 50)))
    ax = sid.plot_correlation(idata)
    r = sid.correlation(idata).values
    image = ax.images[0].get_array()
    assert_allclose(image.filled(np.nan), r)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["c", "k", "fixed"]
    numbers = [t.get_text().replace("\N{MINUS SIGN}", "-") for t in ax.texts]
    assert numbers == ["1.00", f"{r[0, 1]:.2f}", f"{r[1, 0]:.2f}", "1.00"]
    ax.figure.canvas.draw()
    labels = ax.get_yticklabels() + ax.get_xticklabels()
    assert all(t.get_window_extent().x0 >= 0 and t.get_window_extent().y0 >= 0 for t in labels)  # nothing is cut off
    _, given = plt.subplots()
    assert sid.plot_correlation(sid.correlation(idata, var_names=["c", "k"]), axes=given) is given
    with pytest.raises(ValueError, match="var_names chooses variables of a posterior"):
        sid.plot_correlation(sid.correlation(idata), var_names="c")
    with pytest.raises(ValueError, match="must be square"):
        sid.plot_correlation(sid.correlation(idata)[:2])
    with pytest.raises(ValueError, match="31 parameters to draw; choose 1 to 30"):
        sid.plot_correlation(tree(a=rng.normal(size=(1, 50, 31))))
    many = sid.plot_correlation(tree(a=rng.normal(size=(1, 50, 20))))
    assert not many.texts
    plt.close("all")


def test_predictions_of_several_models_share_their_axes() -> None:
    t = np.arange(60) / 10
    record = sid.TimeSeries(t, y=np.sin(t), outputs="z")
    runs = np.sin(t) * np.linspace(0.9, 1.1, 11)[:, None]
    axes = sid.plot_prediction(record, {"viscous": runs, "Coulomb": 1.2 * runs}, window=(1.0, 4.0), hdi=0.8)
    assert [a.get_title(loc="left") for a in axes] == ["viscous", "Coulomb"]
    assert axes[0].get_ylim() == axes[1].get_ylim() and axes[0].get_xlabel() == "" and axes[1].get_xlabel() == "time (s)"
    inside = slice(10, 41)
    error = sid.rmse(record.y[inside], 1.2 * np.sin(t)[inside])
    assert axes[1].get_title(loc="right").startswith(f"RMSE {error:.3g},")
    assert [x.get_text() for x in axes[0].get_legend().get_texts()] == ["measured", "median", "80 % interval"]
    assert axes[1].get_legend() is None
    band = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    low, high = np.quantile(runs[:, inside], [0.1, 0.9], axis=0)
    assert (band.min(), band.max()) == pytest.approx((low.min(), high.max()))
    (alone,) = sid.plot_prediction(record, xr.Dataset({"z": (("draw", "time"), runs)}, {"time": t}))
    assert alone.get_title(loc="left") == "" and len(alone.collections) == 1
    with pytest.raises(ValueError, match="no predictions to draw"):
        sid.plot_prediction(record, {})
    plt.close("all")


def test_predictions_of_what_has_not_been_measured_are_drawn_alone() -> None:
    t = np.arange(60) / 10
    runs = np.sin(t) * np.linspace(0.9, 1.1, 11)[:, None]
    data = xr.Dataset({"z": (("draw", "time"), runs), "v": (("draw", "time"), 2 * runs)}, {"time": t})
    for prediction, output, name in ((data, None, "z"), (data, "v", "v"), (runs, None, "prediction")):
        (panel,) = sid.plot_prediction(sid.TimeSeries(t, np.cos(t)), prediction, output=output)
        assert panel.get_ylabel() == name and panel.get_title(loc="right") == ""
        assert [x.get_text() for x in panel.get_legend().get_texts()] == ["median", "94 % interval"]
    bare, several = (
        sid.TimeSeries(t, np.cos(t), inputs="z"),
        xr.Dataset({"q": (("draw", "time", "q_dim_0"), np.stack([runs, 5 + runs], -1))}),
    )
    assert sid.plot_prediction(bare, data)[0].get_ylabel() == "z"
    with pytest.raises(ValueError, match=r"predictions have the outputs q\[0\], q\[1\]; choose one by output"):
        sid.plot_prediction(bare, several)
    (panel,) = sid.plot_prediction(bare, several, output="q[1]")
    assert panel.get_ylabel() == "q[1]" and panel.lines[0].get_ydata().min() > 3
    with pytest.raises(ValueError, match="output must be one of z, v, but is 'typo'"):
        sid.plot_prediction(bare, data, output="typo")
    plt.close("all")
