"""Criteria of ODE filters, comparison of models, predictions, and the report."""

from __future__ import annotations

import base64
import logging
import re
from pathlib import Path
from typing import Any

import arviz_stats
import matplotlib
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from numpy.testing import assert_allclose

import pm_sysid as sid
from support.small import DUFFING, RECORD, STEP, X0, T, empty, linear_model, linear_oscillator, measured, posterior, put
from support.tiny import DECAY

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from pm_sysid.posterior.predict import predict_fitted

RNG = np.random.default_rng(0)
VALIDATION = measured(seed=7)
BOTH = linear_oscillator(lambda t, x, dx, u, p: {"place": x.z, "speed": x.v})


@pytest.fixture(autouse=True)
def quiet(caplog: Any) -> Any:
    logging.getLogger("pymc").setLevel(logging.ERROR)
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    yield
    plt.close("all")


def duffing(k3: float | None = 0.5, data: Any = RECORD) -> pm.Model:
    """The model of the small Duffing problem, with the cubic stiffness known, wrong, or unknown."""
    with pm.Model() as model:
        c, k = pm.LogNormal("c", np.log(0.3), 0.3), pm.LogNormal("k", np.log(4.0), 0.1)
        noise = pm.LogNormal("noise", np.log(0.05), 0.5)
        cubic: Any = pm.Normal("k3", 0.0, 2.0) if k3 is None else k3
        options: Any = dict(x0=X0, solver=sid.EK1(order=3), substeps=1, noise=noise)
        sid.ODEFilter("y", DUFFING, data, dict(m=1.0, c=c, k=k, k3=cubic), **options)
    return model


def sampled(model: pm.Model, draws: int = 300) -> xr.DataTree:
    """Posterior by Metropolis moves of a population at once, as wide as it is; in two chains.

    A small population finds it. All draws start as a normal distribution of its mean and covariance, which needs fewer moves.
    """
    target, rng = sid.Target(model), np.random.default_rng(0)
    start = np.concatenate([np.ravel(model.initial_point()[v.name]) for v in model.value_vars])

    def density(x: np.ndarray) -> np.ndarray:
        return target.log_prior(x) + target.log_likelihood(x)

    def moved(x: np.ndarray, moves: int) -> tuple[np.ndarray, np.ndarray]:
        """Places after some moves, and a root of their covariance."""
        now = density(x)
        for _ in range(moves):
            root = np.linalg.cholesky(np.cov(x, rowvar=False) + 1e-12 * np.eye(target.size))
            new = x + 2.4 / np.sqrt(target.size) * rng.choice([0.2, 1.0]) * rng.standard_normal(x.shape) @ root.T
            then = density(new)
            better = np.log(rng.uniform(size=len(x))) < then - now
            x[better], now[better] = new[better], then[better]
        return x, root

    few, root = moved(start + 0.05 * rng.standard_normal((80, target.size)), 300)
    x, _ = moved(few.mean(axis=0) + rng.standard_normal((2 * draws, target.size)) @ root.T, 60)
    found = target.coordinates.dataset(x.reshape(2, draws, -1), ("chain", "draw"))
    return xr.DataTree.from_dict({"posterior": found})


@pytest.fixture(scope="module")
def cases() -> dict[str, tuple[pm.Model, xr.DataTree]]:
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    models = {"linear": duffing(0.0), "cubic": duffing(), "free": duffing(None)}
    return {name: (model, sampled(model)) for name, model in models.items()}


@pytest.fixture(scope="module")
def comparison(cases: Any) -> sid.compare.Comparison:
    return sid.compare_models(cases, sid.Validation(VALIDATION, x0=X0))


# -- criteria of filters ------------------------------------------------------------------------------------------------


def test_criteria_of_a_filter_with_calibrated_diffusion(cases: Any) -> None:
    model, idata = cases["cubic"]
    logp = model.compile_fn(model.logp(vars=[model["y"]], sum=False)[0], inputs=model.value_vars)
    flat = {k: v.values.ravel() for k, v in idata["posterior"].data_vars.items()}

    def at(**values: float) -> np.ndarray:
        return np.asarray(logp({f"{k}_log__": np.log(v) for k, v in values.items()}))

    ll = np.stack([at(c=c, k=k, noise=n) for c, k, n in zip(flat["c"], flat["k"], flat["noise"], strict=True)])
    centre = at(**{k: float(v.mean()) for k, v in flat.items()})
    dic, waic = sid.dic(idata, model=model), sid.waic(idata, model=model)
    assert dic.deviance == pytest.approx(-4 * ll.sum(axis=1).mean() + 2 * centre.sum(), rel=1e-8)
    per_point = np.log(np.exp(ll).mean(axis=0)) - ll.var(axis=0, ddof=1)
    assert_allclose(waic.elpd_i, per_point, rtol=1e-7, atol=1e-9)
    assert dic.p == pytest.approx(3, abs=0.5) and waic.p == pytest.approx(3, abs=1)
    assert dic.n_data_points == waic.n_data_points == T


@pytest.mark.slow
def test_missing_samples_are_no_points() -> None:
    model = linear_model()
    idata = sampled(model, 100)
    dic, waic = sid.dic(idata, model=model), sid.waic(idata, model=model)
    kept = np.setdiff1d(np.arange(120), [0, 40, 41, 119])
    assert dic.elpd_i["point"].values.tolist() == waic.elpd_i["point"].values.tolist() == kept.tolist()
    assert dic.p == pytest.approx(3, abs=1)
    stored = pm.compute_log_likelihood(idata.copy(), model=model, extend_inferencedata=False, progressbar=False)
    given = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset(), "log_likelihood": stored})
    assert sid.dic(given, model=model).deviance == pytest.approx(dic.deviance)
    assert sid.waic(given).deviance == pytest.approx(waic.deviance)


@pytest.fixture(scope="module")
def two_outputs() -> tuple[pm.Model, xr.DataTree, sid.TimeSeries]:
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    data = empty(80, seed=3)
    run = sid.simulate(BOTH, data, dict(c=0.3, k=4.0), x0=0.0)
    y = np.stack([run["place"], run["speed"]], axis=-1) + [0.02, 0.1] * RNG.standard_normal((80, 2))
    y[5, 0] = y[9] = np.nan
    data = data.replace(y=y, outputs=("place", "speed"))
    with pm.Model() as model:
        c, k = pm.LogNormal("c", np.log(0.3), 0.3), pm.LogNormal("k", np.log(4.0), 0.1)
        noise = [pm.LogNormal("a", np.log(0.02), 0.5), pm.LogNormal("b", np.log(0.1), 0.5)]
        sid.ODEFilter("y", BOTH, data, dict(c=c, k=k), noise=noise, x0=0.0, solver=sid.EK1(order=3), substeps=1)
    return model, sampled(model, 150), data


def test_outputs_of_a_sample_count_once(two_outputs: Any) -> None:
    model, idata, _ = two_outputs
    dic, waic = sid.dic(idata, model=model), sid.waic(idata, model=model)
    assert dic.n_data_points == 79 and 9 not in dic.elpd_i["point"] and 5 in dic.elpd_i["point"]
    assert dic.p == pytest.approx(4, abs=1)
    stored = pm.compute_log_likelihood(idata.copy(), model=model, extend_inferencedata=False, progressbar=False)
    assert stored["y"].dims == ("chain", "draw", "y_time", "y_output")
    given = xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset(), "log_likelihood": stored})
    assert sid.dic(given, model=model).deviance == pytest.approx(dic.deviance)
    assert sid.waic(given).deviance == pytest.approx(waic.deviance)


# -- comparison ---------------------------------------------------------------------------------------------------------


def test_models_are_ranked_by_every_criterion(cases: Any, comparison: Any) -> None:
    table = comparison.table
    assert set(table.index) == {"linear", "cubic", "free"} and table.index[-1] == "linear"
    assert table["unknowns"].to_dict() == {"linear": 3, "cubic": 3, "free": 4}
    for criterion in ("DIC", "WAIC", "LOO"):
        results = getattr(comparison, criterion.lower())
        for name, result in results.items():
            assert table.loc[name, criterion] == pytest.approx(-2 * result.elpd)
            assert table.loc[name, f"{criterion}_se"] == pytest.approx(2 * result.se)
            assert table.loc[name, f"p_{criterion}"] == pytest.approx(result.p)
        assert table[f"d{criterion}"].min() == 0 and table.loc["linear", f"d{criterion}"] > 10
        assert abs(table.loc["free", criterion] - table.loc["cubic", criterion]) < 4
        ranked = arviz_stats.compare(results, round_to="none")
        assert_allclose(table[f"d{criterion}"], -2 * ranked["elpd_diff"][table.index], atol=1e-8)
        assert_allclose(table[f"d{criterion}_se"], 2 * ranked["dse"][table.index], rtol=1e-6)
    assert comparison.dic["free"].deviance == pytest.approx(sid.dic(cases["free"][1], model=cases["free"][0]).deviance)
    weights = arviz_stats.compare(comparison.loo, method="stacking", round_to="none")["weight"]
    assert_allclose(table["weight_stacking"], weights[table.index], atol=1e-4)
    assert table["log_evidence"].isna().all() and table["weight_evidence"].isna().all()


def test_held_out_error_is_that_of_the_median_free_run(cases: Any, comparison: Any) -> None:
    model, idata = cases["cubic"]
    runs = sid.predict(idata, VALIDATION, model=model, draws=100, x0=X0)["y"]
    assert runs.shape == (100, T)
    middle = runs.median("draw").values
    row = comparison.table.loc["cubic"]
    assert row["RMSE"] == pytest.approx(sid.rmse(VALIDATION.y, middle)) and row["MSE"] == pytest.approx(row["RMSE"] ** 2)
    assert row["fit"] == pytest.approx(sid.fit_percent(VALIDATION.y, middle))
    assert 0.03 < row["RMSE"] < 0.06 < comparison.table.loc["linear", "RMSE"]
    both = sid.Validation([VALIDATION, RECORD], x0=X0, skip=2.0)
    late = sid.compare_models({"cubic": cases["cubic"]}, both).table.loc["cubic"]
    again = sid.predict(idata, RECORD, model=model, draws=100, x0=X0)["y"].median("draw").values
    y, yhat = (np.concatenate([a[50:], b[50:]]) for a, b in ((VALIDATION.y, RECORD.y), (middle, again)))
    assert late["RMSE"] == pytest.approx(sid.rmse(y, yhat)) and late["weight_stacking"] == 1


def test_representations_show_the_rows_and_what_to_doubt(cases: Any, comparison: Any) -> None:
    text, html = repr(comparison), comparison._repr_html_()
    for name in cases:
        assert name in text and f"<th>{name}</th>" in html
    assert "lower is better" in text and "stacking weight" in text and "evidence" not in text
    doubted = sid.compare_models({"<b>": (cases["cubic"][0], posterior(c=[0.3] * 20 + [3.0], k=[4.0] * 21))})
    ((name, notes),) = doubted.notes.items()
    assert name == "<b>" and any(n.startswith("LOO: idata has 21 draws") for n in notes)
    assert np.isnan(doubted.table.loc["<b>", "LOO"]) and "<b>: LOO: idata" in repr(doubted)
    assert "&lt;b&gt;</b>: LOO" in doubted._repr_html_() and " !" in repr(doubted)
    assert any(n.startswith("DIC: ") for n in notes)  # of draws that are no posterior


def test_evidence_of_sequential_runs_gives_probabilities() -> None:
    y = 0.4 + 0.3 * np.random.default_rng(0).standard_normal(30)
    cases: dict[str, Any] = {}
    for name, width in (("free", 1.0), ("zero", 0.01)):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu", 0.0, width), 0.3, observed=y)
        cases[name] = model, sid.sample_ibis(400, model=model, chains=2, cores=1, random_seed=1, progressbar=False)
    table = sid.compare_models(cases, VALIDATION).table
    for name in cases:
        evidence = sid.log_evidence(cases[name][1])
        assert table.loc[name, "log_evidence"] == evidence.value and table.loc[name, "log_evidence_se"] == evidence.error
    odds = np.exp(table.loc["zero", "log_evidence"] - table.loc["free", "log_evidence"])
    assert table.loc["free", "weight_evidence"] == pytest.approx(1 / (1 + odds)) and table.index[0] == "free"
    assert "RMSE" not in table
    half = sid.compare_models(
        {"a": cases["free"], "b": (cases["zero"][0], cases["zero"][1].filter(lambda n: n.name == "posterior"))}
    )
    assert half.table["weight_evidence"].isna().all() and half.table["log_evidence"].notna().sum() == 1
    plain = {name: (model, idata.filter(lambda n: n.name == "posterior")) for name, (model, idata) in cases.items()}
    runs = {name: idata for name, (_, idata) in cases.items()}
    assert sid.compare_models(plain, evidence=runs).table.equals(sid.compare_models(cases).table)
    with pytest.raises(ValueError, match=r"evidence names \['other'\]"):
        sid.compare_models(plain, evidence={"other": runs["free"]})
    with pytest.raises(ValueError, match=r"evidence\['zero'\] has no log evidence"):
        sid.compare_models(plain, evidence={"zero": plain["zero"][1]})
    noted = sid.compare_models(cases, VALIDATION).notes
    assert all(any("0 ODEFilters" in n for n in some) for some in noted.values()) and set(noted) == set(cases)


def test_weights_bear_a_hopeless_model() -> None:
    """Whose densities underflow at every point."""
    y, rng = 1.0 + 0.01 * np.random.default_rng(0).standard_normal(30), np.random.default_rng(1)
    cases = {}
    for name, centre in (("far", 0.0), ("near", 1.0)):
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu", centre, 0.001), 0.01, observed=y)
        mu = xr.Dataset({"mu": (("chain", "draw"), rng.normal(centre, 0.0005, (2, 100)))})
        cases[name] = model, xr.DataTree.from_dict({"posterior": mu})
    table = sid.compare_models(cases).table
    assert list(table.index) == ["near", "far"] and table.loc["far", "LOO"] > 1e5
    assert_allclose(table["weight_stacking"], [1, 0], atol=1e-6)


def test_other_data_are_refused(cases: Any) -> None:
    other = duffing(data=VALIDATION)
    with pytest.raises(ValueError, match=r"models 'cubic' and 'b' have different data \(the same shapes but other values\)"):
        sid.compare_models({"cubic": cases["cubic"], "b": (other, cases["cubic"][1])})
    short = duffing(data=RECORD[:100])
    with pytest.raises(ValueError, match=r"observed shapes \[\(200,\)\] and \[\(100,\)\]"):
        sid.compare_models({"cubic": cases["cubic"], "b": (short, cases["cubic"][1])})
    with pytest.raises(ValueError, match="models is empty"):
        sid.compare_models({})
    with pytest.raises(ValueError, match=r"models\['a'\] is DataTree; give a tuple"):
        sid.compare_models({"a": cases["cubic"][1]})
    with pytest.raises(ValueError, match=r"model 'free': the posterior lacks the model's variables \['k3'\]"):
        sid.compare_models({"free": (cases["free"][0], cases["cubic"][1])})
    with pytest.raises(ValueError, match="a record of validation has no outputs"):
        sid.compare_models({"cubic": cases["cubic"]}, empty())


# -- predictions --------------------------------------------------------------------------------------------------------


def test_predictions_are_free_runs_of_evenly_spaced_draws(cases: Any) -> None:
    model, idata = cases["free"]
    found = sid.predict(idata, VALIDATION, model=model, draws=4, x0=X0)
    assert found["draw"].values.tolist() == [0, 200, 399, 599]
    pooled = {k: idata["posterior"][k].values.ravel()[[0, 200, 399, 599]] for k in ("c", "k", "k3")}
    expected = sid.simulate(DUFFING, VALIDATION, {"m": np.ones(4), **pooled}, x0=X0)
    assert_allclose(found["y"], expected["y"])
    with model:
        assert sid.predict(idata, VALIDATION, draws=2).sizes["draw"] == 2


@pytest.mark.filterwarnings("ignore:data has inputs that are")
@pytest.mark.parametrize("intersample", ["zoh", "foh", "bl"])
def test_new_draws_that_are_all_the_same_change_nothing(intersample: Any) -> None:
    t = np.delete(np.arange(60), [7, 8, 30]) * STEP  # a gap takes more substeps
    data = sid.TimeSeries(t, np.sin(2 * t) + 0.3 * np.sin(7 * t), np.zeros_like(t), intersample=intersample)
    model = duffing()
    idata = posterior(c=[0.3] * 5)
    fixed = sid.predict(idata, data, model=model, draws=2, x0=X0)
    changing = sid.predict(idata, data, model=model, draws=3, x0=X0, every_step=True, random_seed=1)
    assert changing.attrs["substeps"] == fixed.attrs["substeps"] and changing["y"].shape == (3, 57)
    for name in fixed:
        assert_allclose(changing[name], np.broadcast_to(fixed[name][0], (3, 57)), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_new_draws_every_step_average_out() -> None:
    """A decay with a rate that is unknown, or white noise: the spread of its logarithm grows with T, or its root."""
    n, spread = 101, 0.2
    data = sid.TimeSeries(np.arange(n) / 100, None, np.exp(-np.arange(n) / 100))
    with pm.Model() as model:
        rate = pm.Normal("rate", 1.0, 1.0)
        sid.ODEFilter("y", DECAY, data, dict(rate=rate), noise=0.1, x0=1.0, substeps=1)
    idata = posterior(rate=np.random.default_rng(1).normal(1.0, spread, (2, 1000)))
    fixed = np.log(sid.predict(idata, data, model=model, draws=2000, x0=1.0)["y"]).std("draw").values
    changing = np.log(sid.predict(idata, data, model=model, draws=2000, x0=1.0, every_step=True, random_seed=2)["y"])
    steps = np.arange(n)
    assert_allclose(fixed[1:], spread * steps[1:] / 100, rtol=0.1)
    assert_allclose(changing.std("draw")[1:], spread * np.sqrt(steps[1:]) / 100, rtol=0.1)
    same = sid.predict(idata, data, model=model, draws=2000, x0=1.0, every_step=True, random_seed=2)
    assert np.array_equal(np.log(same["y"]), changing)


def test_the_records_of_a_fit_are_found_again(cases: Any, two_outputs: Any) -> None:
    model, idata = cases["cubic"]
    ((record, runs),) = predict_fitted(idata, model=model, draws=3)
    assert_allclose(record.output_matrix, RECORD.output_matrix) and record.intersample == "bl"
    assert_allclose(record.input_at(np.arange(T - 1), 0.37)[:, 0], RECORD.input_at(np.arange(T - 1), 0.37)[:, 0])
    assert_allclose(runs["y"], sid.predict(idata, RECORD, model=model, draws=3, x0=X0)["y"])
    for intersample in ("zoh", "foh"):
        parts = [measured(50, 1), measured(40, 2)]
        parts = [p.replace(intersample=intersample) for p in parts]
        start = [{"z": 0.1, "v": 0.0}, {"z": 0.2, "v": 1.0}]
        with pm.Model() as several:
            put(parts, x0=start)
        pairs = predict_fitted(posterior(), model=several)
        for (record, runs), part, x0 in zip(pairs, parts, start, strict=True):
            assert_allclose(record.output_matrix, part.output_matrix)
            assert record.intersample == intersample and np.array_equal(record.t, part.t)
            assert_allclose(runs["y"][0], sid.simulate(DUFFING, part, dict(m=1.0, c=0.3, k=4.0, k3=0.5), x0=x0)["y"])
    ((record, runs),) = predict_fitted(two_outputs[1], model=two_outputs[0], draws=2)
    assert record.outputs == ("place", "speed") and runs["speed"].shape == (2, 80)
    assert np.array_equal(record.y, two_outputs[2].y, equal_nan=True)


def test_predictions_say_what_is_missing(cases: Any) -> None:
    model, idata = cases["free"]
    with pytest.raises(ValueError, match="draws is 0"):
        sid.predict(idata, VALIDATION, model=model, draws=0)
    with pytest.raises(ValueError, match=r"no values of \['k3'\]"):
        sid.predict(cases["cubic"][1], VALIDATION, model=model)
    with pytest.raises(ValueError, match="x0 holds arrays"):
        sid.predict(idata, VALIDATION, model=model, x0={"z": np.zeros(50), "v": 0.0}, every_step=True)
    with pytest.raises(ValueError, match="this one has 0; give a model with one"), pm.Model():
        sid.predict(idata, VALIDATION)


# -- report -------------------------------------------------------------------------------------------------------------


def figures(html: str) -> dict[str, bytes]:
    found = re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)">', html)
    assert len(found) == html.count("<img")
    return {f"{i} {alt}": base64.b64decode(data) for i, (alt, data) in enumerate(found)}


def test_the_report_is_one_file_with_every_figure(tmp_path: Path, cases: Any, comparison: Any) -> None:
    before = plt.get_fignums()
    path = comparison.to_html(tmp_path / "report.html")
    html = path.read_text(encoding="utf-8")
    assert plt.get_fignums() == before and html.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?://|<link|<script|@import|url\(", html) and set(re.findall(r'src="(.{5})', html)) == {"data:"}
    drawn = figures(html)
    kinds = [re.sub(r"^\d+ ", "", k) for k in drawn]
    for start, count in (("Free runs", 1), ("Fit", 3), ("Residuals", 3), ("Posterior and", 3), ("Posterior correlation", 3)):
        assert sum(k.startswith(start) for k in kinds) == count, start
    for data in drawn.values():
        assert data.startswith(b"\x89PNG") and len(data) > 5000
    order = [html.index(f"<h2>{name}</h2>") for name in comparison.table.index]
    assert order == sorted(order)
    for word in ("DIC", "WAIC", "LOO", "stacking weight", "RMSE, MSE, fit"):
        assert f"<dt>{word}</dt><dd>" in html
    for word in ("log evidence", "evidence weight"):  # the table has no such column
        assert (f"<dt>{word}</dt><dd>" in html) == (f"<th>{word}</th>" in html)
    for name in cases:
        assert f"{comparison.table.loc[name, 'DIC']:.1f}" in html


@pytest.mark.usefixtures("unrendered")
def test_the_report_of_several_outputs_and_of_models_without_a_filter(tmp_path: Path, two_outputs: Any) -> None:
    model, idata, data = two_outputs
    result = sid.compare_models({"a < b": (model, idata)}, sid.Validation(data, x0=dict(z=0.0, v=0.0)))
    assert {"RMSE[place]", "RMSE[speed]", "fit[speed]"} <= set(result.table.columns)
    html = result.to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h2>a &lt; b</h2>" in html and len(figures(html)) == 2 + 2 + 2 + 1 + 1
    with pm.Model() as plain:
        pm.Normal("y", pm.Normal("mu"), 0.3, observed=np.zeros(30))
    mu = xr.Dataset({"mu": (("chain", "draw"), 0.05 * RNG.standard_normal((2, 100)))})
    alone = sid.compare_models({"plain": (plain, xr.DataTree.from_dict({"posterior": mu}))})
    assert len(figures(alone.to_html(str(tmp_path / "plain.html")).read_text(encoding="utf-8"))) == 2


def with_evidence(values: list[float], **changed: Any) -> xr.DataTree:
    """A posterior whose run of ``pm.sample_smc`` had these evidences in its chains."""
    draws = np.random.default_rng(1).normal(1.0, 0.09, (len(values), 200))
    statistics = xr.Dataset({"log_marginal_likelihood": (("chain", "stage"), np.array(values)[:, None])} | changed)
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), draws)}), "sample_stats": statistics})


def constrained(potential: bool = False) -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 10.0)
        if potential:
            pm.Potential("positive", pm.math.switch(mu > 0, 0.0, -np.inf))
        pm.Normal("y", mu, 0.2, observed=[0.9, 1.2, 0.8, 1.1, 1.0])
    return model


def test_an_error_of_an_evidence_that_is_not_known_is_not_taken_for_none() -> None:
    one, several = with_evidence([-3.0]), with_evidence([-3.2, -3.3, -3.25])
    result = sid.compare_models({"one": (constrained(), one), "several": (constrained(), several)})
    assert result.table["weight_evidence_se"].isna().all() and result.table["weight_evidence"].sum() == pytest.approx(1.0)
    assert result._short().loc["one", "log evidence"] == "-3.00 ± unknown"
    assert all(text.endswith("± unknown") for text in result._short()["evidence weight"])
    assert any("these runs do not decide between the models; run several chains" in n for n in result.notes["one"])
    assert not any("do not decide" in n for n in result.notes.get("several", ()))
    assert "± unknown" in str(sid.log_evidence(one)) and "nan" not in str(sid.log_evidence(one))


@pytest.mark.slow
def test_evidences_of_two_definitions_are_not_compared() -> None:
    """With a potential, ``pm.sample_smc`` does not normalise the prior, and ``sample_ibis`` does."""
    ours = {
        cut: sid.sample_ibis(300, model=constrained(cut), chains=2, cores=1, random_seed=1, progressbar=False)
        for cut in (False, True)
    }
    masses = [float(sid.stages(ours[cut])["log_prior_mass"][0, -1]) for cut in (False, True)]
    assert masses[0] == 0.0 and masses[1] == pytest.approx(np.log(0.5), abs=0.1)
    theirs = with_evidence([-3.2, -3.3, -3.25])

    def noted(mine: bool, other: bool) -> list[str]:
        pairs = {"mine": (constrained(mine), ours[mine]), "other": (constrained(other), theirs)}
        notes = sid.compare_models(pairs).notes
        assert not any("cannot be compared" in n for n in notes.get("mine", ()))
        return [n for n in notes.get("other", ()) if "cannot be compared" in n]

    assert "with that of 'mine'" in noted(True, True)[0] and noted(False, True)
    assert not noted(True, False) and not noted(False, False)
    both = {"a": (constrained(True), theirs), "b": (constrained(True), theirs)}
    assert not any("cannot be compared" in n for some in sid.compare_models(both).notes.values() for n in some)


def test_chains_that_have_not_mixed_are_noted_and_mark_every_number() -> None:
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 10.0)
        pm.Normal("y", mu, 0.2, observed=[0.9, 1.2, 0.8, 1.1, 1.0])
    apart = rng.normal(1.0, 0.09, (2, 300)) + np.array([[0.0], [1.0]])
    trees = {
        name: xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), draws)})})
        for name, draws in (("apart", apart), ("together", rng.normal(1.0, 0.09, (2, 300))))
    }
    result = sid.compare_models({name: (model, tree) for name, tree in trees.items()})
    (note,) = [n for n in result.notes["apart"] if n.startswith("posterior:")]
    assert "the chains have not mixed (R-hat" in note and "of mu" in note
    assert not any(n.startswith("posterior:") for n in result.notes.get("together", ()))
    short = result._short()
    assert all("!" in short.loc["apart", c] for c in ("DIC", "WAIC", "LOO"))
    # Chains that agree may have said themselves that they have missed a part.
    said = np.full((2, 300), np.nan)
    for last, words in ((1.0, "1 of the chains said that they may have missed a part of it"), (np.nan, "no chain could tell")):
        said[0, -1] = last
        missed = {**trees["together"].to_dict(), "sample_stats": xr.Dataset({"missed": (("chain", "draw"), said)})}
        (note,) = sid.compare_models({"together": (model, xr.DataTree.from_dict(missed))}).notes["together"]
        assert note.startswith(f"posterior: {words}")


def test_what_sample_has_against_its_draws_is_noted() -> None:
    doubted, trusted = with_evidence([-3.2, -3.3, -3.25]), with_evidence([-3.2, -3.3, -3.25])
    doubted.attrs.update(trusted=0, verdict="These draws cannot be trusted. There are 2 modes.")
    trusted.attrs.update(trusted=1, verdict="Nothing is known against these draws.")
    notes = sid.compare_models({"a": (constrained(), doubted), "b": (constrained(), trusted)}).notes
    assert "posterior: These draws cannot be trusted. There are 2 modes." in notes["a"]
    assert not any("trusted" in n for n in notes.get("b", ()))
