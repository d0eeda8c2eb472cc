"""Smoothed states and drawn paths of models: what a user gets, what it means, and what is refused."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from support import small
from support.small import DUFFING, NOISE, RECORD, SOLVER, TIMES, TRUTH, X0, T, empty, posterior, put

matplotlib.use("Agg")
from matplotlib import pyplot as plt

POINT = dict(c=0.3, k=4.0, noise=NOISE)
N = 400


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return small.model()


@pytest.fixture(scope="module")
def draws() -> xr.DataTree:
    rng = np.random.default_rng(5)
    return posterior(c=0.3 + 0.01 * rng.normal(size=(2, 9)), k=4 + 0.02 * rng.normal(size=(2, 9)))


@pytest.fixture(scope="module")
def paths(model: pm.Model, draws: xr.DataTree) -> xr.Dataset:
    return sid.sample_states(draws, model=model, random_seed=11)


@pytest.mark.parametrize("threads", [1, 4])
def test_any_number_of_threads_gives_the_same_numbers(
    model: pm.Model, draws: xr.DataTree, paths: xr.Dataset, threads: int
) -> None:
    before = sid.set_threads(threads)
    try:
        again, moments = sid.sample_states(draws, model=model, random_seed=11), sid.smooth(draws, model=model)
    finally:
        sid.set_threads(before)
    assert again.identical(paths) and moments.identical(sid.smooth(draws, model=model))


# -- two outputs, one of them nonlinear, of which some are missing; parameters that are expressions --------------------

SENSORS = sid.System(
    lambda t, x, u, p: (x.v, u.u - p.c * x.v - p.k * x.z - 0.5 * x.z**3),
    states=("z", "v"),
    inputs=("u",),
    params=("c", "k"),
    observe=lambda t, x, dx, u, p: dict(accel=dx.v, mixed=x.z * x.v + 0.1 * u.u + p.k + t, speed=dx.z),
)


@pytest.fixture(scope="module")
def sensors() -> Any:
    """Model, truth, and the smoothed states and N paths at the true parameters."""
    rng = np.random.default_rng(8)
    record = sid.TimeSeries(TIMES[:60] + 2.0, rng.normal(size=60), intersample="zoh")
    truth = sid.simulate(SENSORS, record, dict(c=0.3, k=4.0), x0=X0)
    y = np.stack([truth[o] for o in SENSORS.outputs], axis=1) + 0.05 * rng.normal(size=(60, 3))
    y[10:30, 0], y[20:25], y[-1, 1] = np.nan, np.nan, np.nan
    with pm.Model() as model:
        log_k = pm.Normal("log_k", np.log(4.0), 0.1)
        sid.ODEFilter(
            "y", SENSORS, record.replace(y=y), dict(c=0.3, k=pm.math.exp(log_k)), noise=0.05,
            solver=sid.EK1(order=2), substeps=4, x0=X0, x0_std=dict(z=0.2, v=0.1),
        )  # fmt: skip
        point = dict(log_k=np.log(4.0))
        smoothed = sid.smooth(point)
        many = xr.Dataset(dict(log_k=(("chain", "draw"), np.full((1, N), np.log(4.0)))))
        paths = sid.sample_states(many, random_seed=2)
    return model, truth, smoothed, paths


def test_dims_and_coordinates(model: pm.Model, draws: xr.DataTree, paths: xr.Dataset) -> None:
    smoothed = sid.smooth(draws, model=model)
    for result in (smoothed, paths):
        assert result["states"].dims == result["derivatives"].dims == ("chain", "draw", "time", "state")
        assert result["outputs"].dims == ("chain", "draw", "time", "output")
        assert dict(result.sizes) == dict(chain=2, draw=9, time=T, state=2, output=1)
        assert np.array_equal(result["time"], TIMES) and "record" not in result.coords
        assert (list(result["state"].values), list(result["output"].values)) == (["z", "v"], ["y"])
        assert result["shows"].sel(output="y") == "z"
        assert np.array_equal(result["measured"][:, 0], RECORD.y)
    assert set(smoothed) == {"measured"} | {f"{v}{s}" for v in ("states", "derivatives", "outputs") for s in ("", "_std")}
    assert set(paths) == {"measured", "states", "derivatives", "outputs"}
    assert np.all(np.diff(smoothed["states"].std(("chain", "draw")).sel(state="z")[1:20]) != 0)


def test_a_known_start_is_known_and_the_equation_of_motion_holds(
    model: pm.Model, paths: xr.Dataset, draws: xr.DataTree
) -> None:
    z, v = (paths["states"].sel(state=s) for s in ("z", "v"))
    assert np.all(z[..., 0] == X0["z"]) and np.all(v[..., 0] == X0["v"])
    np.testing.assert_array_equal(paths["outputs"].sel(output="y"), z)
    np.testing.assert_array_equal(paths["derivatives"].sel(state="z"), v)
    p = draws["posterior"].to_dataset()
    force = xr.DataArray(RECORD.u, dims="time") - p["c"] * v - p["k"] * z - TRUTH["k3"] * z**3
    np.testing.assert_allclose(paths["derivatives"].sel(state="v"), force.transpose("chain", "draw", "time"), atol=1e-6)
    assert float(paths["states"].std(("chain", "draw"))[1:].min()) > 0


def test_one_point_is_one_draw(model: pm.Model) -> None:
    with model:
        point, draw = sid.smooth(POINT), sid.smooth(posterior().posterior.to_dataset())
    xr.testing.assert_equal(point, draw)


def test_paths_have_the_smoothed_moments(sensors: Any) -> None:
    """Would fail if paths had another mean or spread at any time, in any state, derivative or output."""
    _, _, smoothed, paths = sensors
    for name in ("states", "derivatives", "outputs"):
        mean, std = (smoothed[name + s].values[0, 0] for s in ("", "_std"))
        x = paths[name].values[0]
        assert np.all(std > 0)
        if name == "outputs":  # the nonlinear one is linearised
            curvature = np.abs(smoothed["states_std"].values[0, 0]).prod(axis=1)
            assert np.all(curvature < 0.1 * std[:, 1])
        z = (x.mean(axis=0) - mean) / std * np.sqrt(N)
        ratio = (x.var(axis=0, ddof=1) / std**2 - 1) * np.sqrt((N - 1) / 2)
        assert np.abs(z).max() < 5 and np.abs(ratio).max() < 5.5, name
        assert 0.3 < np.mean(z**2) < 3 and 0.3 < np.mean(ratio**2) < 3, name


def test_outputs_are_the_observation_of_the_states(sensors: Any) -> None:
    model, truth, smoothed, paths = sensors
    record = filter_view("y", model).arrays().samples
    for result in (smoothed, paths):
        z, v = (result["states"].sel(state=s).values for s in ("z", "v"))
        mixed = z * v + 0.1 * record[:, 1] + 4.0 + result["time"].values
        np.testing.assert_allclose(result["outputs"].sel(output="mixed"), mixed, rtol=1e-12)
        np.testing.assert_array_equal(result["outputs"].sel(output="accel"), result["derivatives"].sel(state="v"))
        assert result["shows"].values.tolist() == ["dx.v", "", "v"]
    deviation = np.stack([truth[s] for s in ("z", "v")], axis=1) - smoothed["states"].values[0, 0]
    standard = deviation / smoothed["states_std"].values[0, 0]
    assert np.abs(standard).max() < 4.5 and np.mean(standard**2) > 0.1


# -- several records --------------------------------------------------------------------------------------------------

SHORT, RECORDS = 40, 40


def one_record(seed: int) -> tuple[sid.TimeSeries, np.ndarray]:
    rng = np.random.default_rng(seed)
    data = empty(SHORT, seed)
    run = sid.simulate(DUFFING, data, TRUTH, x0=dict(z=1.5 * rng.normal(), v=rng.normal()), substeps=8)
    return data.replace(y=run["y"].values + NOISE * rng.normal(size=SHORT)), np.stack([run["z"], run["v"]], axis=1)


@pytest.fixture(scope="module")
def many() -> Any:
    """Model of many records with unknown initial states, and their true states."""
    records, states = zip(*(one_record(seed) for seed in range(RECORDS)), strict=True)
    with pm.Model() as model:
        put(list(records), x0=None, substeps=2, solver=sid.EK1(order=3, diffusion=0.05))
    return model, records, np.array(states)


def test_intervals_cover_the_true_states(many: Any) -> None:
    """Would fail if the initial state were known too well or too badly, or noise counted twice."""
    model, _, truth = many
    smoothed = sid.smooth(POINT, model=model)
    mean, std = (smoothed[v].values[0, 0].reshape(RECORDS, SHORT, 2) for v in ("states", "states_std"))
    z = (truth - mean) / std
    for t in (0, SHORT // 2, SHORT - 1):
        for s in range(2):
            p = stats.chi2.cdf(np.sum(z[:, t, s] ** 2), RECORDS)
            assert 1e-3 < p < 1 - 1e-3, (t, s, p)
    assert 0.9 < np.mean(np.abs(z) < stats.norm.ppf(0.975)) < 0.99


def test_records_are_as_if_alone(many: Any) -> None:
    model, records, _ = many
    with model:
        joined = sid.smooth(POINT)
        drawn = sid.sample_states(POINT, random_seed=0)
    assert np.array_equal(joined["record"], np.repeat(np.arange(RECORDS), SHORT))
    assert np.array_equal(joined["time"], np.tile(records[0].t, RECORDS))
    with pm.Model() as single:
        put(records[3], x0=None, substeps=2, solver=sid.EK1(order=3, diffusion=0.05))
    alone = sid.smooth(POINT, model=single)
    part = joined.isel(time=np.flatnonzero(joined["record"] == 3)).drop_vars("record")
    xr.testing.assert_allclose(part, alone, rtol=1e-12)
    distance = (drawn["states"] - joined["states"]) / joined["states_std"]
    start = distance.values[0, 0].reshape(RECORDS, SHORT, 2)[:, 0]
    assert stats.kstest(start.ravel(), "norm").pvalue > 1e-3  # each record starts from a draw of its own


# -- seeds, failures, errors ------------------------------------------------------------------------------------------


def test_paths_depend_on_seed_and_draw_alone(model: pm.Model, draws: xr.DataTree, paths: xr.Dataset) -> None:
    with model:
        again = sid.sample_states(draws, random_seed=11)
        fewer = sid.sample_states(draws, random_seed=11, draws=3)
        other = sid.sample_states(draws, random_seed=12)
        seeded = [sid.sample_states(draws, random_seed=np.random.default_rng(1), draws=1) for _ in range(2)]
        fresh = [sid.sample_states(draws, draws=1) for _ in range(2)]
    xr.testing.assert_identical(again, paths)
    xr.testing.assert_identical(fewer, paths.isel(draw=[0, 4, 8]))
    assert not np.any(other["states"][..., 1:, :] == paths["states"][..., 1:, :])
    xr.testing.assert_identical(*seeded)
    assert not fresh[0].equals(fresh[1])


@pytest.mark.parametrize("function", [sid.smooth, sid.sample_states])
def test_a_draw_that_blows_up_is_nan(function: Any, model: pm.Model) -> None:
    idata = posterior(k=np.array([[4.0, -1e300, 3.9], [4.0, 4.0, 4.1]]))
    with pytest.warns(UserWarning, match="parameters of 1 of 6 draws; their states are NaN"):
        result = function(idata, model=model)
    failed = np.isnan(result["states"]).any(("time", "state")).values
    assert failed.tolist() == [[False, True, False], [False, False, False]]
    for name in set(result) - {"measured"}:
        assert np.isnan(result[name].values[0, 1]).all() and np.isfinite(result[name].values[~failed]).all()


def test_new_data_are_smoothed(model: pm.Model) -> None:
    with pm.Model():
        put(RECORD)
        sid.set_data({"y": RECORD[20:90]})
        result = sid.smooth(POINT)
    assert np.array_equal(result["time"], TIMES[20:90]) and np.array_equal(result["measured"][:, 0], RECORD.y[20:90])


def test_filters_by_name(model: pm.Model) -> None:
    with pm.Model() as two:
        c = pm.LogNormal("c")
        for name, stop in (("first", 30), ("second", 50)):
            sid.ODEFilter(name, DUFFING, RECORD[:stop], dict(TRUTH, c=c), noise=NOISE, x0=X0, solver=SOLVER, substeps=1)
    assert sid.smooth(dict(c=0.3), model=two, name="second").sizes["time"] == 50
    with pytest.raises(
        ValueError, match=r"needs a model with one ODEFilter, but this one has 2; choose one of \['first', 'sec"
    ):
        sid.smooth(dict(c=0.3), model=two)
    with pytest.raises(ValueError, match=r"no ODEFilter named 'z'; it has \['first', 'second'\]"):
        sid.sample_states(dict(c=0.3), model=two, name="z")
    with pytest.raises(ValueError, match="but this one has 0; give a model with one"):
        sid.smooth(dict(c=0.3), model=pm.Model())


@pytest.mark.parametrize(
    ("idata", "options", "message"),
    [
        (dict(c=0.3, noise=0.1), {}, r"no values of \['k'\], which the filter depends on; it has \['c', 'noise'\]"),
        (posterior(), {"draws": 2}, "draws is 2, but idata has 1 draws in each chain; give an integer from 1 to 1"),
        (posterior(), {"draws": 0}, "draws is 0"),
        (posterior(), {"draws": 0.5}, "draws is 0.5"),
        (xr.DataTree.from_dict({"prior": xr.Dataset()}), {}, r"no group 'posterior', but \['prior'\]"),
        ([1.0], {}, "idata is list; give what pm.sample returned, or a dict"),
        (posterior().posterior.to_dataset().isel(chain=0), {}, "idata has no dimension chain"),
    ],
)
def test_refusals(model: pm.Model, idata: Any, options: Any, message: str) -> None:
    for function in (sid.smooth, sid.sample_states):
        with pytest.raises(ValueError, match=message):
            function(idata, model=model, **options)


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def close_figures() -> Any:
    yield
    plt.close("all")


def line(ax: Any, label: str) -> Any:
    return next(artist for artist in ax.lines if artist.get_label() == label)


def test_plot_of_paths(sensors: Any, close_figures: None) -> None:
    _, truth, _, paths = sensors
    axes = sid.plot_states(paths, truth=truth, zoom=(2.5, 3.0))
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["z", "v", "accel", "mixed"] and axes.shape == (4, 2)
    x = paths["states"].sel(state="v").values[0]
    low, median, high = np.quantile(x, [0.03, 0.5, 0.97], axis=0)
    v = axes[1, 0]
    np.testing.assert_allclose(line(v, "median").get_ydata(), median)
    np.testing.assert_allclose(line(v, "truth").get_ydata(), truth["v"])
    np.testing.assert_array_equal(line(v, "measured").get_ydata(), paths["measured"].sel(output="speed"))
    band = v.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((low.min(), high.max()))
    assert v.get_title(loc="right") == f"94 %: ± {np.mean(high - low) / 2:.2g}"
    assert not [a for a in axes[0, 0].lines if a.get_label() == "measured"]
    assert line(axes[3, 1], "measured").get_xdata()[0] >= 2.5 and axes[3, 1].get_xlabel() == "time (s)"
    v.figure.canvas.draw()


def test_plot_of_moments(sensors: Any, close_figures: None) -> None:
    _, _, smoothed, _ = sensors
    (panel,) = sid.plot_states(smoothed, var_names="dx.v", axes=plt.subplots()[1])
    assert panel.get_ylabel() == "dv/dt" and line(panel, "measured") is not None
    mean, std = (smoothed[f"derivatives{s}"].sel(state="v").values[0, 0] for s in ("", "_std"))
    np.testing.assert_allclose(line(panel, "mean").get_ydata(), mean)
    band = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(np.max(mean + 1.880794 * std), rel=1e-4)
    assert panel.get_legend() is not None


def test_plot_has_the_units_of_what_was_measured(sensors: Any, close_figures: None) -> None:
    _, _, _, paths = sensors
    units = {"speed": "m/s", "accel": "m/s^2"}
    known = paths.assign_coords(units=("output", [units.get(str(o), "") for o in paths["output"].values]))
    assert [ax.get_ylabel() for ax in sid.plot_states(known)] == ["z", "v (m/s)", "accel (m/s^2)", "mixed"]


def test_plot_of_one_record_and_of_draws_that_failed(many: Any, model: pm.Model, close_figures: None) -> None:
    smoothed = sid.smooth(POINT, model=many[0])
    z, _ = sid.plot_states(smoothed, record=2)
    np.testing.assert_array_equal(line(z, "measured").get_ydata(), many[1][2].y)
    with pytest.raises(ValueError, match="record is None; choose one of 0, 1, "):
        sid.plot_states(smoothed)
    with pytest.warns(UserWarning, match="1 of 3 draws; their"):
        paths = sid.sample_states(posterior(k=np.array([[4.0, -1e300, 3.9]])), model=model, random_seed=0)
    with pytest.warns(UserWarning, match="1 of 3 draws of 'z' are not finite"):
        (z,) = sid.plot_states(paths, var_names="z")
    np.testing.assert_allclose(line(z, "median").get_ydata(), paths["states"].sel(state="z").mean("draw")[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"var_names": "w"}, "var_names is 'w'; choose from z, v, dx.z, dx.v, y"),
        ({"var_names": []}, r"var_names is \[\]"),
        ({"record": 1}, "record is 1, but there is one record"),
        ({"zoom": (9, 10)}, "zoom must hold at least two samples of 0 to 7.96 s"),
        ({"truth": {"z": [1.0]}}, r"truth\['z'\] must have shape \(200,\), but has \(1,\)"),
        ({"axes": []}, "axes must hold 2 matplotlib axes, but holds 0"),
    ],
)
def test_plot_refuses(paths: xr.Dataset, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sid.plot_states(paths, **options)
    with pytest.raises(ValueError, match="states is DataArray without states"):
        sid.plot_states(paths["states"])  # type: ignore[arg-type]
