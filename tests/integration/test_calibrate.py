"""Calibration runs: what is drawn, fitted, kept, refused, and that nothing is compiled twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pytensor.compile.maker import FunctionMaker

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.sbc.store import code_of
from support.small import DUFFING, NOISE, SOLVER, TRUTH, X0, empty, measured, put

QUIET: dict[str, Any] = dict(progressbar=False, random_seed=4)


def normal() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 1.0, 2.0)
        pm.Deterministic("twice", 2 * mu)
        pm.Normal("y", mu, 1.0, observed=pm.Data("y_data", np.zeros(6)))
    return model


def exact(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
    """Independent draws from the posterior of `normal`."""
    y = model["y_data"].get_value()
    variance = 1 / (1 / 4 + len(y))
    draws = variance * (1 / 4 + np.sum(y)) + np.sqrt(variance) * rng.standard_normal((1, 400))
    return xr.Dataset({"mu": (("chain", "draw"), draws), "twice": (("chain", "draw"), 2 * draws)})


def duffing() -> pm.Model:
    with pm.Model() as model:
        put(measured(60), substeps=1)
    return model


def numbers(result: xr.DataTree) -> xr.Dataset:
    return result["calibration"].to_dataset().drop_vars(["seconds"])


def test_the_result_says_truth_posterior_and_rank() -> None:
    model = normal()
    result = sid.calibrate(model, 8, fit=exact, **QUIET)
    found = result["calibration"].to_dataset()
    assert found["parameter"].values.tolist() == ["mu", "log_likelihood"]
    assert dict(found.sizes) == {"fit": 8, "parameter": 2}
    k = found.sel(parameter="mu")
    np.testing.assert_allclose(k["sd"], np.sqrt(1 / 6.25), rtol=0.2)
    np.testing.assert_allclose(k["z"], (k["truth"] - k["mean"]) / k["sd"])
    np.testing.assert_allclose(k["contraction"], 1 - 1 / 6.25 / 4, atol=0.03)
    assert len(np.unique(k["truth"])) == 8 and np.all(k["ranked"] == 99) and not k["failed"].any()
    assert set(result["prior_sbc"].data_vars) == {"mu", "log_likelihood"}
    assert dict(result["prior_sbc"].sizes) == {"chain": 1, "draw": 8}
    np.testing.assert_array_equal(result["prior_sbc"]["mu"].values[0], k["pit"])
    assert np.all(model["y_data"].get_value() == 0.0)  # as before
    assert result["calibration"].attrs["fit"] == "exact" and result["calibration"].attrs["random_seed"] == 4


def test_arviz_draws_it() -> None:
    import arviz_plots

    result = sid.calibrate(normal(), 20, fit=exact, **QUIET)
    figure = arviz_plots.plot_ecdf_pit(result, backend="none")
    lines = figure.viz["ecdf_lines"]
    assert set(lines.data_vars) == {"mu", "log_likelihood"}
    for name, line in lines.data_vars.items():
        steps = np.asarray(line.item()["y"])
        assert len(steps) > 10 and np.isfinite(steps).all(), name


def test_deterministic_variables_can_be_ranked() -> None:
    found = sid.calibrate(normal(), 4, fit=exact, var_names=["mu", "twice"], **QUIET)["calibration"].to_dataset()
    assert found["parameter"].values.tolist() == ["mu", "twice"]
    np.testing.assert_allclose(found["truth"].sel(parameter="twice"), 2 * found["truth"].sel(parameter="mu"))
    np.testing.assert_array_equal(found["rank"].sel(parameter="twice"), found["rank"].sel(parameter="mu"))


def test_one_seed_one_result_and_more_fits_add_to_it() -> None:
    few, many = (sid.calibrate(normal, n, fit=exact, **QUIET) for n in (3, 5))
    other = sid.calibrate(normal, 3, fit=exact, progressbar=False, random_seed=5)
    xr.testing.assert_identical(numbers(few), numbers(many).isel(fit=slice(3)))
    assert not np.any(numbers(other)["truth"].values == numbers(few)["truth"].values)


def test_finished_fits_are_kept_and_not_done_again(tmp_path: Path) -> None:
    calls = []

    def counted(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return exact(model, rng)

    with pytest.raises(KeyboardInterrupt):
        sid.calibrate(normal, 6, fit=counted, folder=tmp_path, **QUIET)
    assert len(list(tmp_path.glob("fit_*.nc"))) == 3
    resumed = sid.calibrate(normal, 6, fit=counted, folder=tmp_path, progressbar=False)  # the folder knows the seed
    assert len(calls) == 4 + 3
    straight = sid.calibrate(normal, 6, fit=counted, **QUIET)
    xr.testing.assert_identical(numbers(resumed), numbers(straight))


def test_a_folder_of_another_calibration_is_refused(tmp_path: Path) -> None:
    sid.calibrate(normal, 2, fit=exact, folder=tmp_path, **QUIET)
    with pytest.raises(ValueError, match=r"another calibration: random_seed was 4 and is 9"):
        sid.calibrate(normal, 2, fit=exact, folder=tmp_path, progressbar=False, random_seed=9)
    with pytest.raises(ValueError, match="ranked was 99 and is 50"):
        sid.calibrate(normal, 2, fit=exact, folder=tmp_path, ranked=50, **QUIET)

    def wider() -> pm.Model:
        with pm.Model() as model:
            pm.Normal("y", pm.Normal("mu", 1.0, 3.0), 1.0, observed=pm.Data("y_data", np.zeros(6)))
        return model

    with pytest.raises(ValueError, match="fits of another model"):
        sid.calibrate(wider, 2, fit=exact, folder=tmp_path, **QUIET)


def test_a_folder_of_another_equation_or_fit_function_is_refused(tmp_path: Path) -> None:
    """The log-likelihood of the truth is the same for any equation, as the noise is."""

    def measured(gain: float) -> pm.Model:
        with pm.Model() as model:
            pm.Normal("y", gain * pm.Normal("mu"), 1.0, observed=pm.Data("y_data", np.zeros(6)))
        return model

    sid.calibrate(lambda: measured(1.0), 2, fit=exact, folder=tmp_path / "equation", **QUIET)
    sid.calibrate(lambda: measured(1.0), 2, fit=exact, folder=tmp_path / "equation", **QUIET)
    with pytest.raises(ValueError, match="first record differ"):
        sid.calibrate(lambda: measured(0.01), 2, fit=exact, folder=tmp_path / "equation", **QUIET)

    def one(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        return exact(model, rng)

    before = one

    def one(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:  # type: ignore[no-redef]
        return 2.0 * exact(model, rng)

    sid.calibrate(normal, 2, fit=before, folder=tmp_path / "fit", **QUIET)
    sid.calibrate(normal, 2, fit=before, folder=tmp_path / "fit", **QUIET)
    with pytest.raises(ValueError, match="lines of fit was"):
        sid.calibrate(normal, 2, fit=one, folder=tmp_path / "fit", **QUIET)


def test_the_digest_of_a_fit_function_knows_its_lines_and_defaults() -> None:
    def fit(model: Any, rng: Any, draws: int = 10) -> int:
        return draws

    def same(model: Any, rng: Any, draws: int = 10) -> int:
        return draws

    def other(model: Any, rng: Any, draws: int = 20) -> int:
        return draws

    class Called:
        def __call__(self, model: Any, rng: Any) -> int:
            return 1

    assert code_of(fit) == code_of(same) != code_of(other) and code_of("nuts") == ""
    assert code_of(partial(fit, draws=3)) == code_of(partial(same, draws=3)) != code_of(partial(fit, draws=4))
    assert code_of(Called()) == code_of(Called()) != ""


def test_a_first_fit_that_was_impossible_is_so_again(tmp_path: Path) -> None:
    def impossible(params: Any, rng: np.random.Generator) -> Any:
        return {"y": np.full(6, np.nan) if params["mu"] < 1e9 else np.zeros(6)}

    for _ in range(2):
        with pytest.raises(RuntimeError, match="all of the 2 fits failed"):
            sid.calibrate(normal, 2, fit=exact, generate=impossible, folder=tmp_path, **QUIET)


def test_failures_are_recorded_and_nothing_is_dropped(tmp_path: Path) -> None:
    calls = []

    def unreliable(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no luck")
        if len(calls) == 3:
            return exact(model, rng) * np.nan
        if len(calls) == 4:
            return xr.zeros_like(exact(model, rng))
        return exact(model, rng)

    result = sid.calibrate(normal, 14, fit=unreliable, folder=tmp_path, **QUIET)
    found = result["calibration"].to_dataset()
    assert found["failed"].values.tolist() == [False, True, True, True] + 10 * [False]
    assert found["message"].values[1:4].tolist() == ["ValueError: no luck", "draws are not finite", "draws do not vary"]
    assert np.all(np.isnan(found["pit"].values[1:4])) and np.all(np.isfinite(found["truth"].values))
    assert result["prior_sbc"].sizes["draw"] == 11
    assert sid.calibration_tests(result).failed == 3
    again = sid.calibrate(normal, 14, fit=unreliable, folder=tmp_path, **QUIET)
    xr.testing.assert_identical(again["calibration"].to_dataset(), found)
    assert len(calls) == 14

    def hopeless(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        raise ValueError("never")

    with pytest.raises(RuntimeError, match=r"all of the 3 fits failed; the last: ValueError: never"):
        sid.calibrate(normal, 3, fit=hopeless, **QUIET)


def test_mistakes_in_a_users_function_are_raised() -> None:
    with pytest.raises(TypeError, match="fit returned dict"):
        sid.calibrate(normal, 3, fit=lambda model, rng: {}, **QUIET)
    with pytest.raises(TypeError, match=r"no draws of \['mu'\], but of \['twice'\]"):
        sid.calibrate(normal, 3, fit=lambda model, rng: exact(model, rng)[["twice"]], **QUIET)


def test_potentials_cut_the_prior() -> None:
    def cut() -> pm.Model:
        with normal() as model:
            pm.Potential("positive", pm.math.switch(model["mu"] > 0, 0.0, -np.inf))
        return model

    found = sid.calibrate(cut, 30, fit=exact, **QUIET)["calibration"].to_dataset()
    assert found["truth"].sel(parameter="mu").min() > 0
    assert sid.calibrate(normal, 30, fit=exact, **QUIET)["calibration"]["truth"].sel(parameter="mu").min() < 0


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(build=3), TypeError, "build is int"),
        (dict(n=0), ValueError, "n is 0"),
        (dict(n=2.5), ValueError, "n is 2.5"),
        (dict(ranked=-1), ValueError, "ranked is -1"),
        (dict(random_seed=-1), ValueError, "random_seed is -1"),
        (dict(fit="gibbs"), ValueError, "fit is 'gibbs'"),
        (dict(draws=7), TypeError, r"\['draws'\] are settings"),
        (dict(generate="prior"), ValueError, "generate is 'prior'"),
        (dict(generate=lambda p, rng: np.zeros(5)), ValueError, r"shape \(5,\)"),
        (dict(generate=lambda p, rng: {"z": np.zeros(6)}), ValueError, "no observed variable 'z'"),
        (dict(generate=lambda p, rng: empty(6)), ValueError, "takes no TimeSeries"),
        (dict(var_names="q"), ValueError, "var_names has 'q'"),
        (dict(fit="pem"), ValueError, "one ODEFilter"),
        (dict(fit="nuts", draws=0), ValueError, "draws is 0"),
    ],
)
def test_doors(change: dict[str, Any], error: type[Exception], text: str) -> None:
    options: dict[str, Any] = {"build": normal, "n": 3, "fit": exact, **QUIET, **change}
    with pytest.raises(error, match=text):
        sid.calibrate(options.pop("build"), options.pop("n"), **options)


def test_data_that_cannot_be_replaced_are_refused() -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(3))
    with pytest.raises(ValueError, match=r"observed=pm.Data\(\"y_data\", values\)"):
        sid.calibrate(model, 3, **QUIET)


def test_records_that_cannot_be_simulated_are_failures() -> None:
    def records(params: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
        return np.full(6, np.inf) if params["mu"] < 1.0 else params["mu"] + rng.standard_normal(6)

    found = sid.calibrate(normal, 12, fit=exact, generate=records, **QUIET)["calibration"].to_dataset()
    assert 0 < int(found["failed"].sum()) < 12
    assert all("not finite" in m and "mu = " in m for m in found["message"].values[found["failed"].values])
    assert found["truth"].sel(parameter="mu").min() > 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "fit, settings",
    [
        pytest.param("nuts", dict(draws=60, tune=40, chains=1), marks=pytest.mark.slow),
        pytest.param("ibis", dict(draws=200), marks=pytest.mark.slow),
        ("annealing", dict(draws=800, tune=300, chains=1)),
        ("pem", dict(data=measured(60), draws=200)),
    ],
)
def test_fits_by_name_compile_once(fit: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first fit nothing is compiled, and the posterior follows the record."""
    made: list[int] = []
    create = FunctionMaker.create

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return create(self, *args, **kwargs)

    monkeypatch.setattr(FunctionMaker, "create", counted)
    first = sid.calibrate(duffing, 1, fit=fit, **settings, **QUIET)
    before = len(made)
    made.clear()
    found = sid.calibrate(duffing, 4, fit=fit, **settings, **QUIET)
    # Chains of Data Annealing draw from their prior by NumPy, for a population and for a search for what it has lost, through
    # functions of PyTensor which are not compiled.
    drawing = 2 * 3 if fit == "annealing" else 0
    assert 0 < len(made) <= before + drawing
    table = numbers(found)
    xr.testing.assert_allclose(table.isel(fit=[0]), numbers(first))
    assert not table["failed"].any() and np.all(np.abs(table["z"].sel(parameter=["c", "k", "noise"])) < 5)
    assert np.all(table["contraction"].sel(parameter="k") > 0.5)


@pytest.mark.slow
def test_records_of_a_simulator_go_into_the_filter_with_their_input() -> None:
    """A generator may change the input too; the same fit on the same record, made by hand, has the same posterior."""
    made = []

    def records(params: dict[str, Any], rng: np.random.Generator) -> sid.TimeSeries:
        data = empty(60, seed=int(rng.integers(100)))
        values = {**TRUTH, "c": params["c"], "k": params["k"]}
        y = sid.simulate(DUFFING, data, values, x0=X0, substeps=8)["y"].values
        made.append(data.replace(y=y + params["noise"] * rng.standard_normal(60)))
        return made[-1]

    result = sid.calibrate(duffing, 2, fit="nuts", generate=records, draws=100, tune=60, **QUIET)
    found = result["calibration"].to_dataset()
    assert not np.array_equal(made[0].u, made[1].u)
    with pm.Model() as model:
        put(made[1], substeps=1)
    mode = sid.find_mode(model)
    for name in ("c", "k", "noise"):
        k = found.isel(fit=1).sel(parameter=name)
        assert abs(float(k["mean"]) - float(mode.initvals[name])) < float(k["sd"]), name
    with pytest.raises(ValueError, match="has 50 values; simulate 60"):
        sid.calibrate(duffing, 2, generate=lambda p, rng: measured(50), **QUIET)


def state_of(model: pm.Model) -> dict[str, np.ndarray]:
    """All arrays of a filter in a model, and its time coordinate."""
    view = filter_view("y", model)
    known = {"y": view.measured(), **view.arrays()._asdict(), **dict(zip(("x0", "x0_std"), view.starts(), strict=True))}
    return {**{k: np.array(v) for k, v in known.items()}, "time": np.array(model.coords["y_time"])}


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_left_as_it_was_and_the_prior_of_its_initial_state_stays(fails: bool) -> None:
    """Records with another input, another time and another start, whose initial state the model infers."""
    starts, seen = [], []

    def records(params: dict[str, Any], rng: np.random.Generator) -> sid.TimeSeries:
        starts.append(params["y_x0"])
        data = empty(60, seed=int(rng.integers(100)))
        values = {**TRUTH, "c": params["c"], "k": params["k"]}
        y = sid.simulate(DUFFING, data, values, x0=params["y_x0"], substeps=8)["y"].values
        return sid.TimeSeries(data.t + 3.0, data.u, y + params["noise"] * rng.standard_normal(60), intersample="bl")

    def look(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        seen.append(state_of(model))
        if fails and len(seen) == 2:
            raise TypeError("a mistake in a program")
        return xr.Dataset({k: (("chain", "draw"), rng.lognormal(size=(1, 50))) for k in ("c", "k", "noise")})

    with pm.Model() as model:
        put(measured(60), x0=None)
    before = state_of(model)
    if fails:
        with pytest.raises(TypeError, match="a mistake in a program"):
            sid.calibrate(model, 3, fit=look, generate=records, **QUIET)
    else:
        sid.calibrate(model, 40, fit=look, generate=records, **QUIET)
    after = state_of(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    for found in seen:
        np.testing.assert_array_equal(found["x0"], before["x0"])
        np.testing.assert_array_equal(found["x0_std"], before["x0_std"])
    assert not np.array_equal(seen[0]["y"], seen[1]["y"]) and not np.array_equal(seen[0]["samples"], before["samples"])
    if not fails:
        scores = (np.array([[s["z"], s["v"]] for s in starts]) - before["x0"]) / before["x0_std"]
        assert np.all(np.abs(scores.mean(axis=0)) < 0.6) and np.all(np.abs(scores.std(axis=0) - 1) < 0.4)


def test_missing_samples_stay_missing() -> None:
    data = measured(40)
    y = data.y.copy()
    y[10:20] = np.nan
    seen = []

    def look(model: pm.Model, rng: np.random.Generator) -> xr.Dataset:
        seen.append(model.rvs_to_values[model["y"]].get_value())
        values = {k: (("chain", "draw"), rng.lognormal(size=(1, 50))) for k in ("c", "k", "noise")}
        return xr.Dataset(values)

    with pm.Model() as model:
        put(data.replace(y=y))
    sid.calibrate(model, 2, fit=look, **QUIET)
    assert all(np.array_equal(np.isnan(s), np.isnan(y)) for s in seen)
    assert not np.array_equal(seen[0], seen[1], equal_nan=True)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].get_value(), y)


def test_pem_reads_the_model_or_says_what_it_cannot() -> None:
    with pytest.raises(TypeError, match=r"fit='pem'.*data=record"):
        sid.calibrate(duffing, 2, fit="pem", **QUIET)
    with pm.Model() as model:
        c = pm.Normal("log_c", -1.0, 0.3)
        sid.ODEFilter("y", DUFFING, measured(60), {**TRUTH, "c": pm.math.exp(c)}, noise=NOISE, x0=X0, solver=SOLVER, substeps=1)
    with pytest.raises(ValueError, match="free variables or numbers"):
        sid.calibrate(model, 2, fit="pem", data=measured(60), **QUIET)
    with pm.Model() as model:
        start = {"z": pm.Normal("log_z", 0.0, 0.1) * 2.0, "v": 0.0}
        sid.ODEFilter("y", DUFFING, measured(60), TRUTH, noise=NOISE, x0=start, solver=SOLVER, substeps=1)
    with pytest.raises(ValueError, match="free variables or numbers"):
        sid.calibrate(model, 2, fit="pem", data=measured(60), **QUIET)


def test_a_chain_of_data_annealing_knows_nothing_of_the_record_before() -> None:
    """A chain that never moved ends where the next one starts, and its likelihood is that of the record before."""
    model, other = duffing(), measured(60, seed=9)
    with model:
        step = sid.DataAnnealing(widths=1e9, n_start=60)  # every proposal is impossible
    start = model.initial_point()
    for expected in (model.compile_logp()(start), None):
        step.setup_chain(np.random.default_rng(0), 0, 1)
        step.stop_tuning()
        _, [row] = step.step(start)
        if expected is not None:
            assert row["model_logp"] == pytest.approx(float(expected))
            sid.set_data({"y": other}, model)
    assert row["model_logp"] == pytest.approx(float(model.compile_logp()(start)))


def test_pem_fits_entries_of_a_vector() -> None:
    """Scalar variables that a model puts together to a vector are found again in the draws of a fit."""
    system = sid.System(
        lambda t, x, u, p: -p.w[0] * x.level + p.w[1],
        states=("level",),
        params={"w": 2},
        observe=lambda t, x, dx, u, p: x.level,
    )
    t = np.arange(40) * 0.1
    record = sid.TimeSeries(t, None, 0.5 + 0.5 * np.exp(-t) + 0.05 * np.random.default_rng(0).standard_normal(40))
    with pm.Model() as model:
        rate, inflow = pm.LogNormal("rate", 0.0, 0.2), pm.Normal("inflow", 0.5, 0.1)
        noise = pm.LogNormal("noise", np.log(0.05), 0.1)
        params = {"w": pm.math.stack([rate, inflow])}
        sid.ODEFilter("y", system, record, params, noise=noise, x0=1.0, substeps=2, solver=sid.EK1(order=3))
    found = sid.calibrate(model, 3, fit="pem", data=record, random_seed=0, progressbar=False)["calibration"]
    assert {"rate", "inflow", "noise"} <= set(found["parameter"].values) and not found["failed"].any()
    assert (found["sd"].sel(parameter=["rate", "inflow"]) > 0.01).all()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["inferred", "marginalised"])
def test_pem_estimates_an_initial_state_that_the_model_does_not_know(start: str) -> None:
    with pm.Model() as model:
        if start == "inferred":
            put(measured(60), x0={"z": pm.Normal("z0", 0.0, 0.05), "v": pm.Normal("v0", 0.0, 0.3)})
        else:
            put(measured(60), x0_std=[0.05, 0.3])

    def records(params: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
        values = {**TRUTH, "c": params["c"], "k": params["k"]}
        y = sid.simulate(DUFFING, measured(60), values, x0=params["y_x0"], substeps=8)["y"].values
        return np.asarray(y + params["noise"] * rng.standard_normal(60))

    found = sid.calibrate(model, 12, fit="pem", data=measured(60), generate=records, **QUIET)["calibration"]
    assert set(found["parameter"].values) - {"log_likelihood"} == {rv.name for rv in model.free_RVs}
    assert not found["failed"].any()
    # Held at the middle of what the model knows, the start would bias all else by many standard errors.
    assert float(np.sqrt(np.mean(found["z"].sel(parameter=["c", "k"]) ** 2))) < 1.5
