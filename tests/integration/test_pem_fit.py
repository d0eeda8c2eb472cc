"""Fits end where they should, whatever the method, and say so when they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.objective import Evaluation, SquaredErrors
from support.pem_cases import FILTER, FREE, GUESS, OSCILLATOR, TRUTH, fit, record


def estimates(result: sid.PEMResult) -> np.ndarray:
    return np.array([result.p["k"], result.p["c"]])


def close(result: sid.PEMResult, to: np.ndarray, errors: float = 4.0) -> None:
    assert np.all(np.abs(result.x[: len(to)] - to) < errors * result.x_stderr[: len(to)])


@pytest.mark.parametrize("predictor", [FREE, FILTER], ids=["free run", "filter"])
def test_methods_find_the_same_optimum(predictor: Any) -> None:
    results = {m: fit(predictor=predictor, method=m) for m in ("lm", "bfgs", "trust")}
    for result in results.values():
        assert result.success, result.message
        np.testing.assert_allclose(result.x, results["lm"].x, atol=1e-4 * results["lm"].x_stderr.min())
        np.testing.assert_allclose(result.cov, results["lm"].cov, rtol=1e-4)
    close(results["lm"], np.array(list(TRUTH.values())))
    lowest = results["lm"]
    for step in (0.1, -0.1):
        for i in range(2):
            x = lowest.x + step * lowest.x_stderr * (np.arange(2) == i)
            assert lowest.target.evaluate(x).value > lowest.fun


def test_the_result_is_that_of_its_own_errors() -> None:
    result = fit(predictor=FILTER)
    e = result.innovations()["innovation"].to_numpy()[:, 0]
    np.testing.assert_allclose(result.fun, np.mean(e**2), rtol=1e-12)
    assert result.jac.shape == (200, 2)
    np.testing.assert_allclose(result.grad, 2 / 200 * result.jac.T @ e, atol=1e-12)
    sigma = np.sum(e**2) / 198
    np.testing.assert_allclose(result.cov, sigma * np.linalg.inv(result.jac.T @ result.jac), rtol=1e-8)


def test_history_goes_down_from_the_guess_to_the_result() -> None:
    for method in ("lm", "bfgs", "trust"):
        result = fit(method=method)
        values = [i.objective for i in result.history]
        assert len(values) == result.nit + 1 and result.nit >= 3
        assert np.all(np.diff(values) <= 1e-12 * values[0])
        np.testing.assert_array_equal(result.history[0].parameters, [3.0, 0.8])
        np.testing.assert_array_equal(result.history[-1].parameters, result.x)
        assert result.history[0].step == 0 and result.history[-1].step < 1e-3 < result.history[1].step
        assert result.fun == values[-1] and result.nfev >= result.nit


@pytest.mark.parametrize(
    "guess",
    [
        {"k": 3.0, "damping": {"c": 0.8}},
        {"all": [{"c": 0.8}, {"k": np.array(3.0)}]},
        [3.0, 0.8],
        np.array([3.0, 0.8]),
        ([3.0], (0.8,)),
    ],
    ids=["nested", "list", "positional", "array", "nested positional"],
)
def test_structure_is_kept(guess: Any) -> None:
    result, plain = fit(guess=guess), fit()
    expected = {"k": plain.p["k"], "c": plain.p["c"]}
    flat = dict(zip(result.names, result.x, strict=True))
    assert type(result.p) is type(guess)
    np.testing.assert_allclose([flat["k"], flat["c"]], [expected["k"], expected["c"]], rtol=1e-8)
    if isinstance(guess, np.ndarray):
        np.testing.assert_array_equal(result.p, result.x)
        assert result.stderr.shape == (2,)
    if isinstance(guess, dict) and "damping" in guess:
        assert result.p["damping"]["c"] == flat["c"] and result.stderr["damping"]["c"] > 0


def test_entries_of_arrays_are_numbered_parameters() -> None:
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.r_0 * x.z - p.r_1 * x.v),
        states=("z", "v"), inputs=("F",), params=("r_0", "r_1"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    result = sid.fit_pem(system, record(), {"r": np.array([3.0, 0.8])}, predictor=FREE, x0=0.0)
    np.testing.assert_allclose(result.p["r"], estimates(fit()), rtol=1e-8)


def test_fixed_parameters_stay() -> None:
    result = fit(guess={"c": 0.8}, fixed={"k": 4.0})
    assert list(result.p) == ["c"] and result.x.shape == (1,)
    close(result, np.array([0.4]))


@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_an_unknown_that_ends_at_a_bound_of_zero_is_said_to_be_there(objective: Any) -> None:
    """An interior search ends at 1e-21, where differences of its size are rounding: no unknown that outputs do not show."""
    hardening = sid.System(
        lambda t, x, u, p: (x.v, u.F - 0.4 * x.v - p.k * x.z - p.k3 * x.z**3),
        states=("z", "v"), inputs=("F",), params=("k", "k3"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    rng, t = np.random.default_rng(7), np.arange(200) * 0.1
    force = sid.TimeSeries(t, np.interp(t, np.arange(0, 21, 0.5), rng.standard_normal(42)), None, inputs="F", intersample="foh")
    clean = sid.simulate(hardening, force, {"k": 4.0, "k3": -0.3}, x0=0.0)["y"].values
    measured = force.replace(y=clean + 0.05 * rng.standard_normal(200))
    options: dict[str, Any] = {"objective": objective, "x0": 0.0, "progressbar": False}
    if objective == "likelihood":
        options["predictor"] = sid.ExtendedKalman(R=0.05**2)
    bounded = sid.fit_pem(hardening, measured, {"k": 3.5, "k3": 0.1}, bounds=({"k": None, "k3": 0.0}, None), **options)
    known = sid.fit_pem(hardening, measured, {"k": 3.5}, fixed={"k3": 0.0}, **options)
    assert bounded.success and bounded.p["k3"] == 0.0 and bounded.stderr["k3"] == 0.0
    assert "At their bounds: ['k3']" in bounded.message and "cannot tell" not in bounded.message
    assert bounded.p["k"] == pytest.approx(known.p["k"], abs=1e-3 * known.stderr["k"])
    assert bounded.stderr["k"] == pytest.approx(known.stderr["k"], rel=0.01)


@pytest.mark.parametrize("method", ["lm", "bfgs", "trust"])
def test_bounds_hold_and_bind(method: Any) -> None:
    low, high = {"k": 0.0, "c": 0.6}, {"k": np.inf, "c": 1.0}
    result = fit(bounds=(low, high), method=method)
    assert (
        result.success
        and result.p["c"] == 0.6
        and "At their bounds: ['c']. The standard errors of the others hold given this value." in result.message
    )
    fixed = fit(guess={"k": 3.0}, fixed={"c": 0.6})
    np.testing.assert_allclose(result.p["k"], fixed.p["k"], rtol=1e-6)
    assert result.stderr["c"] == 0.0
    np.testing.assert_allclose(result.stderr["k"], fixed.stderr["k"], rtol=0.01)
    inside = fit(bounds=({"k": 0.0, "c": 0.0}, None), method=method)
    np.testing.assert_allclose(inside.x, fit().x, rtol=1e-6)


def test_initial_states_of_some_records_are_found() -> None:
    data = [record(x0=(0.5, -0.5)), record(seed=1, x0=(-0.3, 0.8), n=150)]
    starts = [[0.0, 0.0], {"z": -0.3, "v": 0.8}]
    result = fit(data, x0=starts, estimate=(True, False))
    assert result.success and result.names == ["k", "c", "x0[0].z", "x0[0].v"]
    close(result, np.array([4.0, 0.4, 0.5, -0.5]))
    np.testing.assert_array_equal(result.x0[1], [-0.3, 0.8])
    np.testing.assert_array_equal(result.x0[0], result.x[2:])
    one = fit(data[0], x0=[0.5, 0.0], estimate=("v",))
    assert one.names == ["k", "c", "x0.v"] and one.x0[0] == 0.5
    assert np.all(result.x_stderr[:2] < one.x_stderr[:2])
    rows = fit(data, x0=np.array([[0.0, 0.0], [-0.3, 0.8]]), estimate=[{"z": True, "v": True}, False])
    np.testing.assert_array_equal(rows.x, result.x)


def test_every_record_has_its_own_start_covariance() -> None:
    data = [record(x0=(0.5, -0.5)), record(seed=1, n=150)]
    covariances = np.array([np.eye(2), np.zeros((2, 2))])
    result = fit(data, predictor=FILTER, P0=covariances)
    again = fit(data, predictor=FILTER, P0=(1.0, 0.0))
    np.testing.assert_array_equal(result.x, again.x)
    close(result, np.array([4.0, 0.4]))
    first = result.innovations(0)["state_z_std"][0], result.innovations(1)["state_z_std"][0]
    assert first[0] > 0.019 and first[1] < 1e-40


@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_a_start_that_is_given_is_exact(objective: Any) -> None:
    """The filter began with the identity, so that the standard errors were those of a start that nobody knows."""
    predictor = FILTER if objective == "mse" else sid.ExtendedKalman(R="estimate", substeps=2)
    options: dict[str, Any] = {"predictor": predictor, "objective": objective}
    given, exact = sid.fit_pem(OSCILLATOR, record(), GUESS, x0=0.0, **options), fit(P0=0.0, **options)
    np.testing.assert_allclose(given.x, exact.x, rtol=1e-12)
    assert np.all(given.innovations()[["state_z_std", "state_v_std"]].isel(time=0).to_array() < 1e-40)
    other = record(seed=4)
    first = given.innovations(other, x0=0.0).isel(time=0)
    assert first["state_z_std"] < 1e-40 and first["state_v_std"] < 1e-40
    wide = fit(P0=1.0, **options).innovations().isel(time=0)
    assert wide["state_z_std"] > 0.01 and wide["state_v_std"] > 0.9


def test_an_uncertain_start_is_forgotten() -> None:
    data = record(x0=(0.5, -0.5))
    wrong, right = fit(data, predictor=FILTER, P0=1.0), fit(data, predictor=FILTER, x0=[0.5, -0.5], P0=0.0)
    close(wrong, right.x[:2], 1.0)
    certain = fit(data, predictor=FILTER, P0=1e-12)
    assert certain.fun > 2 * wrong.fun


def test_missing_samples_are_skipped() -> None:
    data = record()
    y = data.y.copy()
    y[3:90:4] = np.nan
    result = fit(data.replace(y=y), predictor=FILTER)
    close(result, np.array([4.0, 0.4]))
    e = result.innovations()["innovation"].to_numpy()[:, 0]
    np.testing.assert_allclose(result.fun, np.nanmean(e**2))
    assert result.jac.shape == (int(np.sum(~np.isnan(y))), 2)


@pytest.mark.parametrize("intersample", ["zoh", "foh", "bl"])
def test_the_input_between_samples_is_the_records(intersample: str) -> None:
    data = record(intersample=intersample, noise=1e-6)
    result = fit(data)
    np.testing.assert_allclose(estimates(result), [4.0, 0.4], rtol=1e-4)
    other = fit(data.replace(intersample="zoh" if intersample != "zoh" else "foh"))
    assert other.fun > 1e4 * result.fun


def test_options_reach_scipy() -> None:
    result = fit(tolerances={"max_nfev": 2}, starts=1)
    assert not result.success and result.nfev <= 3
    assert fit(method="bfgs", tolerances={"maxiter": 1}, starts=1).nit == 1
    with pytest.raises(TypeError, match="nonsense"):
        fit(tolerances={"nonsense": 1})


@pytest.mark.slow
def test_points_and_solver_predict_like_derivatives() -> None:
    data, plain = record(), fit(predictor=FILTER)
    sigma = fit(data, predictor=sid.UnscentedKalman(Q={"z": 1e-4, "v": 0.05}, R={"y": 0.02}, substeps=2))
    np.testing.assert_allclose(sigma.x, plain.x, rtol=1e-6)  # a linear system
    solver = fit(data, predictor=sid.ProbabilisticKalman(solver=sid.EK1(3), R={"y": 0.02}))
    np.testing.assert_allclose(solver.x, fit(data).x, rtol=1e-4)


# -- guesses from which there is no way -------------------------------------------------------------------------------


def no_nan(result: sid.PEMResult) -> None:
    assert not result.success and result.message
    for value in (result.x, result.cov, result.x_stderr, result.jac, result.x0, np.array(result.fun)):
        assert not np.isnan(value).any()
    assert result.p.keys() == GUESS.keys() and repr(result)


@pytest.mark.parametrize("method", ["lm", "bfgs", "trust"])
def test_a_diverging_guess_is_said_to_be_impossible(method: Any) -> None:
    result = fit(guess={"k": 3.0, "c": -1e4}, method=method)
    no_nan(result)
    assert "impossible" in result.message and result.fun == np.inf and result.status == -2


def test_a_guess_outside_its_bounds_is_infeasible() -> None:
    result = fit(bounds=({"k": 5.0, "c": 0.0}, None))
    no_nan(result)
    assert "infeasible: k = 3 is outside 5..inf" in result.message and result.status == -1


@pytest.mark.parametrize("method", ["lm", "bfgs", "trust"])
def test_parameters_the_record_cannot_tell_are_named(method: Any) -> None:
    product = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.k * x.z - p.a * p.b * x.v),
        states=("z", "v"), inputs=("F",), params=("k", "a", "b"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    result = sid.fit_pem(
        product, record(), {"k": 3.0, "a": 1.0, "b": 0.8}, predictor=FREE, x0=0.0, optimiser=sid.Optimiser(method)
    )
    assert not result.success and "cannot tell ['a', 'b']" in result.message
    assert np.isinf(result.stderr["a"]) and np.isinf(result.stderr["b"]) and np.isfinite(result.stderr["k"])
    np.testing.assert_allclose(result.p["a"] * result.p["b"], fit().p["c"], rtol=1e-5)
    idle = record()
    still = fit(idle.replace(u=np.zeros(200)), method=method)
    no_nan(still)
    assert "cannot tell ['k', 'c']" in still.message


@pytest.mark.parametrize("method", ["lm", "bfgs", "trust"])
def test_a_search_comes_back_from_impossible_trial_points(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the solution has decayed before the first sample, a step of Gauss and Newton makes it explode."""
    decay = sid.System(lambda t, x, u, p: -p.rate * x.s, states=("s",), params=("rate",), observe=lambda t, x, dx, u, p: x.s)
    t = 0.1 * np.arange(100)
    data, seen = sid.TimeSeries(t, None, np.exp(-0.5 * t)), []
    evaluate = SquaredErrors.evaluate

    def watched(self: SquaredErrors, x: np.ndarray) -> Evaluation:
        seen.append(evaluate(self, x))
        return seen[-1]

    monkeypatch.setattr(SquaredErrors, "evaluate", watched)
    guess = {"rate": 27.0}
    options = {"predictor": sid.ExtendedKalman(substeps=4), "optimiser": sid.Optimiser(method)}
    # From one start: at a rate of 111 the Runge-Kutta steps of a record without noise say exactly the same.
    result = sid.fit_pem(decay, data, guess, x0=1.0, starts=1, **options)
    assert any(not e.finite for e in seen) or method == "trust"  # whose first step is short
    assert result.success, result.message
    np.testing.assert_allclose(result.p["rate"], 0.5, rtol=1e-5)


def test_of_a_record_without_noise_it_is_said_that_errors_mean_little() -> None:
    t = np.arange(400) / 50
    system = sid.models.duffing()
    record = sid.TimeSeries(t, 2.0 * np.sin(0.8 * t * (1 + t)), None, inputs="F")
    y = sid.simulate(system, record, {"m": 1.0, "c": 0.5, "k": 20.0, "k3": 50.0}, x0=0.0, substeps=64)["y"].values
    fit = sid.fit_pem(system, record.replace(y=y), {"m": 1.1, "c": 0.4, "k": 18.0, "k3": 40.0}, x0=0.0)
    assert "is rounding and errors of the integration, and no noise: standard errors mean little" in fit.message
    # Neither sizes nor correlations of what is no noise mean anything.
    assert "not of one size" not in fit.message and "not white" not in fit.message
