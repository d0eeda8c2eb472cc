"""Predictions some steps ahead, free runs, comparisons and tests of the innovations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from support.pem_cases import FILTER, FREE, OSCILLATOR, fit, record

DATA = record(n=120, drive=0.3, x0=(0.2, 0.0))


@pytest.fixture(scope="module")
def filtered() -> sid.PEMResult:
    return fit(DATA, predictor=FILTER, x0=[0.2, 0.0])


def transition(p: dict[str, float], steps: int) -> np.ndarray:
    """Exact to what two Runge-Kutta steps a sample leave."""
    A = 0.05 * np.array([[0.0, 1.0], [-p["k"], -p["c"]]])
    step = np.eye(2) + A + A @ A / 2 + A @ A @ A / 6 + A @ A @ A @ A / 24
    return np.linalg.matrix_power(step, 2 * steps)


def test_one_step_ahead_is_measurement_minus_innovation(filtered: sid.PEMResult) -> None:
    ahead = filtered.predict(1)["y"].to_numpy()
    np.testing.assert_allclose(ahead, DATA.y - filtered.innovations()["innovation"].to_numpy()[:, 0], atol=1e-14)
    y = DATA.y.copy()
    y[40:43] = np.nan
    gap = filtered.predict(1, DATA.replace(y=y), x0=[0.2, 0.0])["y"].to_numpy()
    np.testing.assert_allclose(gap[:41], ahead[:41], atol=1e-12)
    assert np.all(np.isfinite(gap)) and np.abs(gap[41:44] - ahead[41:44]).max() > 1e-3


def test_process_noise_on_a_record_of_another_rate_is_that_of_the_fit(filtered: sid.PEMResult) -> None:
    """Half of the samples: twice the noise between them, and as long Runge-Kutta steps."""
    every = sid.TimeSeries(DATA.t[::2], DATA.u[::2], DATA.y[::2], intersample="zoh")
    filter = filtered.setup.filter.on([every], filtered.setup.roots)
    assert filter.substeps == 4
    np.testing.assert_allclose(filter.arrays.samples[1:, 2], np.sqrt(2.0))
    assert filtered.setup.filter.on([DATA], filtered.setup.roots).substeps == 2


@pytest.mark.parametrize("k", [2, 7])
def test_more_steps_ahead_go_on_from_the_filtered_state(filtered: sid.PEMResult, k: int) -> None:
    ahead = filtered.predict(k)["y"].to_numpy()
    states = filtered.innovations()
    x = np.stack([states["state_z"], states["state_v"]], axis=1)
    free = filtered.simulate()
    z = np.stack([free["y"].to_numpy()])[0]
    np.testing.assert_allclose(ahead[:k], z[:k], atol=1e-12)
    # By superposition: where the filter stands apart from the free run, this dies out by the transition.
    run = sid.simulate(OSCILLATOR, DATA, filtered.p, x0=[0.2, 0.0], substeps=2)
    apart = x - np.stack([run["z"], run["v"]], axis=1)
    want = run["z"].to_numpy()[k:] + (apart[:-k] @ transition(filtered.p, k).T)[:, 0]
    np.testing.assert_allclose(ahead[k:], want, atol=1e-10)


def test_the_free_run_is_a_simulation(filtered: sid.PEMResult) -> None:
    run = sid.simulate(OSCILLATOR, DATA, filtered.p, x0=[0.2, 0.0], substeps=2)["y"]
    for ours in (filtered.simulate(), filtered.predict(math.inf), filtered.predict(500)):
        np.testing.assert_allclose(ours["y"], run, atol=1e-12)


def test_other_records_start_from_their_own_samples(filtered: sid.PEMResult) -> None:
    other = record(n=80, seed=5, x0=(0.5, -0.2), noise=1e-6)
    near = filtered.simulate(other)["y"].to_numpy()
    told = filtered.simulate(other, x0=[0.5, -0.2])["y"].to_numpy()
    assert abs(told[0] - 0.5) < 1e-12 and abs(near[0] - 0.5) < 0.05


def test_a_run_that_nothing_measured_starts_says_so(filtered: sid.PEMResult) -> None:
    unmeasured = record(seed=3).replace(y=None)
    with pytest.warns(UserWarning, match="all states begin at zero; give x0=") as caught:
        run = filtered.simulate(unmeasured)
    assert run["y"][0] == 0.0 and run.attrs["x0"] == "zero: nothing is measured" and caught[0].filename == __file__
    with pytest.warns(UserWarning, match="record has inputs that are .* between the samples, and record 0") as caught:
        filtered.predict(record=record(seed=3).replace(intersample="foh"))
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="record has inputs that are") as caught:
        filtered.resid(record(seed=3).replace(intersample="foh"))
    assert caught[0].filename == __file__
    filtered.simulate(unmeasured, x0=0.0)
    at_rest = sid.fit_pem(OSCILLATOR, record(), {"k": 3.0, "c": 0.3}, predictor=FREE, x0=0.0, progressbar=False)
    assert at_rest.simulate(unmeasured)["y"][0] == 0.0  # as was said of the fit


def test_one_of_several_records_is_picked_by_number() -> None:
    data = [record(x0=(0.4, 0.0)), record(seed=1, n=100)]
    result = fit(data, x0=[[0.4, 0.0], [0.0, 0.0]])
    assert result.simulate(1).sizes["time"] == 100
    np.testing.assert_array_equal(result.simulate(data[1])["y"], result.simulate(1)["y"])
    np.testing.assert_allclose(result.simulate(0)["y"][0], 0.4)
    with pytest.raises(ValueError, match="the fit has 2 records; give a number"):
        result.simulate()
    with pytest.raises(ValueError, match="record is 2; give a number from 0 to 1"):
        result.predict(1, 2)


def test_fits_are_compared_on_records(filtered: sid.PEMResult) -> None:
    fits = {"free": fit(DATA, predictor=FREE, x0=[0.2, 0.0]), "filter": filtered}
    records = {"training": DATA, "test": record(n=90, seed=9, noise=0.0)}
    result = sid.compare_fits(fits, records, x0={"v": 0.0})
    assert list(result.table.columns) == ["free", "filter"]
    assert list(result.table.index) == [("training", "y"), ("test", "y")]
    run = fits["free"].simulate(records["test"], x0={"v": 0.0})["y"].to_numpy()
    assert result.table.loc[("test", "y"), "free"] == sid.fit_percent(records["test"].y, run)
    assert result.rmse.loc[("test", "y"), "free"] == sid.rmse(records["test"].y, run)
    assert "test" in result.conclusion and "training" not in result.conclusion and result.conclusion in repr(result)
    assert "Only a record that no fit has used" in sid.compare_fits(fits, DATA, x0={"v": 0.0}).conclusion
    one = sid.compare_fits(filtered, DATA, k=1)
    assert one.conclusion == ""
    assert one.table.iloc[0, 0] > result.table.loc[("training", "y"), "filter"]
    assert "1 sample ahead" in repr(one) and "free run" in repr(result) and "<table" in result._repr_html_()


def test_fits_whose_outputs_have_other_names_are_compared(filtered: sid.PEMResult) -> None:
    called = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: {"place": x.z},
    )
    other = sid.fit_pem(called, DATA.replace(outputs=("place",)), {"c": 0.8, "k": 4.0}, x0=[0.2, 0.0], progressbar=False)
    bare = record(n=90, seed=9, noise=0.05)
    unnamed = sid.TimeSeries(bare.t, bare.input_matrix, bare.output_matrix, inputs="F", intersample=bare.intersample)
    found = sid.compare_fits({"a": filtered, "b": other}, unnamed, x0={"v": 0.0})
    assert found.conclusion.startswith(("On record", "record is too short")) and found.conclusion in repr(found)


def test_innovations_of_the_right_model_are_white(filtered: sid.PEMResult) -> None:
    tests = filtered.resid(lags=20)
    row = tests.table.loc[("y", "F")]
    assert row["white p"] > 0.01 and row["independent p"] > 0.01 and "white" in repr(tests)
    assert "<b>y and F</b>" in tests._repr_html_() and tests._repr_html_().count("Ljung-Box") == 1
    late = record(n=400, noise=0.005)
    wrong = fit(late, {"c": 0.8}, fixed={"k": 4.6}).resid()
    assert wrong.table["white p"].iloc[0] < 1e-6
    assert wrong.table["independent p"].iloc[0] < 0.01


@pytest.mark.slow
def test_of_records_with_unequal_noise_each_counts_by_its_own() -> None:
    """A loud record moves the unknowns by more than a quiet one allows; that pattern is no missing dynamics."""
    said = []
    for seed in range(20):
        loud, quiet = record(seed=seed, n=200, noise=0.3), record(seed=100 + seed, n=200, noise=0.002)
        result = fit([loud, quiet], predictor=FREE)
        said += [result.resid(i).table["white p"].iloc[0] < 0.01 for i in range(2)]
        plain = result.innovations(1)["standardised"].to_numpy()
        assert np.std(result.resid(1).standardised) <= np.std(plain)
    assert sum(said) <= 3  # of 40, at 1 %


def test_short_records_are_tested_over_few_lags() -> None:
    result = fit(record(n=25), predictor=FREE)
    assert result.resid().lags == 6
    with pytest.raises(ValueError, match="lags=25 needs at least"):
        result.resid(lags=25)


def test_of_few_measurements_it_is_said_that_errors_are_not_normal() -> None:
    few, more = fit(record(n=7), predictor=FREE), fit(record(n=40), predictor=FREE)
    assert "Only 5 measurements are left to tell the noise" in few.message and "± 2.6 standard errors" in few.message
    assert "left to tell" not in more.message
    own = fit(record(n=7), predictor=sid.ExtendedKalman(R="estimate", substeps=1), objective="likelihood")
    given = fit(record(n=7), predictor=sid.ExtendedKalman(R={"y": 0.02}, substeps=1), objective="likelihood")
    assert "Only 5 measurements are left to tell the noise" in own.message and "left to tell" not in given.message


@pytest.mark.parametrize("level", [0.0, 0.3])
def test_a_constant_output_has_a_start(filtered: sid.PEMResult, level: float) -> None:
    constant = DATA.replace(y=np.full(len(DATA), level))
    found = filtered.predict(np.inf, constant)
    assert "estimated" in found.attrs["x0"] and np.isfinite(found["y"]).all()
    assert sid.compare_fits(filtered, constant).table.iloc[0, 0] == -np.inf


def test_unforced_systems_have_no_input_to_depend_on() -> None:
    decay = sid.System(lambda t, x, u, p: -p.rate * x.s, states=("s",), params=("rate",), observe=lambda t, x, dx, u, p: x.s)
    t = 0.1 * np.arange(60)
    data = sid.TimeSeries(t, None, np.exp(-0.5 * t) + 0.01 * np.random.default_rng(0).normal(size=60))
    result = sid.fit_pem(decay, data, {"rate": 1.0}, predictor=sid.ExtendedKalman(substeps=4), x0=1.0)
    table = result.resid(lags=10).table
    assert list(table.index) == [("y", "")] and table["largest correlation"].isna().all()


@pytest.mark.parametrize(
    "act, message",
    [
        (lambda f: f.predict(0), "k is 0; give a positive integer"),
        (lambda f: f.predict(2.5), r"k is 2\.5"),
        (lambda f: f.predict(True), "k is True"),
        (lambda f: sid.compare_fits({}, DATA), "fits is {}; give a PEMResult"),
        (lambda f: sid.compare_fits({"a": 1}, DATA), "give a PEMResult"),
        (lambda f: sid.compare_fits(f, DATA.replace(y=None)), "has no outputs"),
        (lambda f: f.resid(lags=400), "lags=400 needs at least"),
        (lambda f: f.resid(x0=[1e160, 0.0]), "innovations of .* for this record, x0 and lags"),
    ],
)
def test_bad_questions_are_answered(filtered: sid.PEMResult, act: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        act(filtered)


# -- standard errors ---------------------------------------------------------------------------------------------------


def test_standard_errors_that_do_not_hold_are_said() -> None:
    """A lag of which half a time constant is seen: gain and time constant may both be much larger than the errors say."""
    lag = sid.System(
        lambda t, x, u, p: (p.K * u.u - x.T) / p.tau, states=("T",), inputs=("u",), params=("K", "tau"),
        observe=lambda t, x, dx, u, p: x.T,
    )  # fmt: skip
    t, truth, doubted = np.arange(60.0), np.array([10.0, 120.0]), 0
    clean = truth[0] * -np.expm1(-t / truth[1])
    for seed in range(20):
        noisy = clean + 1.0 * np.random.default_rng(seed).standard_normal(60)
        result = sid.fit_pem(lag, sid.TimeSeries(t, np.ones(60), noisy), {"K": 5.0, "tau": 50.0}, x0=0.0)
        far = np.any(np.abs(result.x - truth) > 4 * result.x_stderr)
        doubted += not result.success and "standard errors of ['K', 'tau'] are too small" in result.message
        assert not (far and result.success), (seed, result.x, result.x_stderr, result.message)
    assert doubted > 10
    # Seen for five time constants, and with little noise, the errors hold.
    t = np.arange(600.0)
    noisy = truth[0] * -np.expm1(-t / truth[1]) + 0.1 * np.random.default_rng(0).standard_normal(600)
    result = sid.fit_pem(lag, sid.TimeSeries(t, np.ones(600), noisy), {"K": 5.0, "tau": 50.0}, x0=0.0)
    assert result.success and np.all(np.abs(result.x - truth) < 4 * result.x_stderr)


def test_errors_of_unknowns_that_enter_linearly_hold_however_large_they_are() -> None:
    drift = sid.System(lambda t, x, u, p: p.rate, states=("s",), params=("rate",), observe=lambda t, x, dx, u, p: x.s)
    for seed in range(5):
        y = 0.001 * np.arange(20) + np.random.default_rng(seed).standard_normal(20)
        result = sid.fit_pem(drift, sid.TimeSeries(np.arange(20.0), None, y), {"rate": 1.0})
        assert result.success, result.message


def test_two_sensors_read_one_after_the_other_take_the_steps_of_one() -> None:
    """Half of the intervals are offsets of 1e-6: the median was one of them, and asked for 1e5 steps in all others."""
    t = np.sort(np.concatenate([0.1 * np.arange(100), 0.1 * np.arange(100) + 1e-6]))
    drive = sid.TimeSeries(t, np.sin(2 * t), None, inputs="F", intersample="foh")
    lag = sid.System(lambda t, x, u, p: p.k * (u.F - x.z), states=("z",), inputs=("F",), params=("k",),
                     observe=lambda t, x, dx, u, p: {"a": x.z, "b": 2 * x.z})  # fmt: skip
    run, rng = sid.simulate(lag, drive, {"k": 1.5}, x0=0.0), np.random.default_rng(0)
    y = {k: np.where(np.arange(200) % 2 == i, run[k].to_numpy() + 0.01 * rng.standard_normal(200), np.nan)
         for i, k in enumerate("ab")}  # fmt: skip
    fit = sid.fit_pem(lag, drive.replace(y=y), {"k": 1.0}, x0=0.0, progressbar=False)
    assert fit.success and abs(fit.x[0] - 1.5) < 4 * fit.x_stderr[0]
    assert fit.target.filter.arrays.substeps.shape[0] < 4000


def test_a_bent_valley_is_followed_on_both_sides() -> None:
    """A dead zone that is barely left: straight shares are 0.63 and 1.77, and along the valley 0.29."""
    zone = sid.System(
        lambda t, x, u, p: (((pt.maximum(u.F - p.d, 0.0) + pt.minimum(u.F + p.d, 0.0)) * p.b - x.z) / p.T,),
        states=("z",), inputs=("F",), params=("d", "b", "T"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    rng, t = np.random.default_rng(17), 0.05 * np.arange(200)
    force = 6 * np.sin(1.1 * t + rng.uniform(0, 6)) + 4 * np.sin(2.7 * t + rng.uniform(0, 6)) + rng.normal(size=200)
    drive = sid.TimeSeries(t, force, None, inputs="F", intersample="foh")
    y = sid.simulate(zone, drive, {"d": 8.0, "b": 1.0, "T": 0.5}, x0=0.0, substeps=256)["y"].to_numpy()
    data = drive.replace(y=y + 0.05 * rng.standard_normal(200))
    fit = sid.fit_pem(zone, data, {"d": 4.0, "b": 0.6, "T": 0.8}, progressbar=False)
    assert np.abs((fit.x[:3] - [8.0, 1.0, 0.5]) / fit.x_stderr[:3]).max() > 4
    assert not fit.success and "are too small: four of them away" in fit.message
