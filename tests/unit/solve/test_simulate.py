"""Free runs against an adaptive integrator of high order; batches; the symbolic form and its gradient."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.integrate import solve_ivp

from pm_sysid.models import duffing
from pm_sysid.records.metrics import nmse
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.simulate import simulate
from pm_sysid.solve.substeps import SubstepWarning
from pm_sysid.symbolic.system import System

PARAMS = dict(m=0.8, c=0.4, k=4.0, k3=0.6)
X0 = dict(z=0.5, v=-0.3)
DUFFING = duffing()


def record(intersample: Any = "bl", *, uneven: bool = False, length: int = 40, y: Any = None) -> TimeSeries:
    rng = np.random.default_rng(3)
    t = np.cumsum(rng.uniform(0.05, 0.25, length)) if uneven else 1.0 + 0.15 * np.arange(length)
    return TimeSeries(t, np.sin(2 * t) + rng.normal(0, 0.4, length), y, intersample=intersample)


def by_scipy(data: TimeSeries, params: dict[str, float], start: list[float]) -> np.ndarray:
    """States at the samples, integrated interval by interval so that no jump lies inside a step."""
    x, states = np.array(start, float), [np.array(start, float)]
    for k, (t0, t1) in enumerate(zip(data.t[:-1], data.t[1:], strict=True)):

        def rate(t: float, x: np.ndarray, k: int = k, t0: float = t0, t1: float = t1) -> list[float]:
            force = float(data.input_at(k, np.clip((t - t0) / (t1 - t0), 0, 1))[0])
            z, v = x
            return [v, (force - params["c"] * v - params["k"] * z - params["k3"] * z**3) / params["m"]]

        x = solve_ivp(rate, (t0, t1), x, "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
        states.append(x)
    return np.array(states)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uneven", [False, True], ids=["uniform", "uneven"])
@pytest.mark.parametrize("intersample", ["zoh", "foh", "bl"])
def test_states_equal_those_of_an_adaptive_integrator(intersample: str, uneven: bool) -> None:
    data = record(intersample, uneven=uneven)
    run = simulate(DUFFING, data, PARAMS, x0=X0, substeps=64)
    expected = by_scipy(data, PARAMS, [0.5, -0.3])
    assert np.ptp(expected[:, 0]) > 0.5
    np.testing.assert_allclose(run["z"], expected[:, 0], atol=1e-8)
    np.testing.assert_allclose(run["v"], expected[:, 1], atol=1e-8)
    np.testing.assert_array_equal(run["y"], run["z"])


def test_intersample_behaviours_differ() -> None:
    runs = [simulate(DUFFING, record(i), PARAMS, x0=X0)["z"].values for i in ("zoh", "foh", "bl")]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in ((runs[0], runs[1]), (runs[1], runs[2])))


def test_derivative_outputs_use_the_input_right_after_the_sample() -> None:
    data = record("zoh")
    run = simulate(duffing(observe="acceleration"), data, PARAMS, x0=X0, substeps=32)
    z, v = run["z"], run["v"]
    expected = (data.u - PARAMS["c"] * v - PARAMS["k"] * z - PARAMS["k3"] * z**3) / PARAMS["m"]
    np.testing.assert_allclose(run["y"], expected, rtol=1e-12, atol=1e-12)


def test_time_enters_at_the_right_instant() -> None:
    system = System(lambda t, x, u, p: pt.cos(t), states=("z",), observe=lambda t, x, dx, u, p: (x.z, t, dx.z))
    t = np.linspace(2.0, 5.0, 13)
    run = simulate(system, TimeSeries(t), {}, x0=np.array([np.sin(2.0)]), substeps=16)
    np.testing.assert_allclose(run["y1"], np.sin(t), atol=1e-8)
    np.testing.assert_allclose(run["y2"], t, rtol=1e-15)
    np.testing.assert_allclose(run["y3"], np.cos(t), rtol=1e-14)


def test_error_falls_with_the_fourth_power_of_the_step() -> None:
    data = record("foh")
    truth = by_scipy(data, PARAMS, [0.5, -0.3])[:, 0]
    with pytest.warns(SubstepWarning):
        errors = [np.abs(simulate(DUFFING, data, PARAMS, x0=X0, substeps=n)["z"].values - truth).max() for n in (1, 2)]
    assert 3.5 < np.log2(errors[0] / errors[1]) < 4.6


def test_automatic_substeps_reach_the_tolerance() -> None:
    data = record("bl")
    run = simulate(DUFFING, data, PARAMS, x0=X0)
    assert run.attrs["integrator"] == "RK4" and run.attrs["substeps"] >= 1
    rms = np.sqrt(np.mean(run["z"].values ** 2))
    assert np.abs(run["z"].values - by_scipy(data, PARAMS, [0.5, -0.3])[:, 0]).max() < 2e-4 * rms


def test_automatic_substeps_grow_with_the_stiffness(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pm_sysid"):
        soft, hard = (simulate(DUFFING, record(), PARAMS | dict(k=k), x0=X0).attrs["substeps"] for k in (1.0, 400.0))
    assert hard > soft
    assert f"substeps='auto' chose {hard} Runge-Kutta steps a sample" in caplog.text


def test_long_gaps_get_more_steps() -> None:
    t = np.array([0.0, 0.1, 0.2, 0.3, 2.3, 2.4, 2.5])
    data = TimeSeries(t, np.zeros(7), None, intersample="zoh")
    run = simulate(DUFFING, data, PARAMS, x0=X0, substeps=8)
    np.testing.assert_allclose(run["z"], by_scipy(data, PARAMS, [0.5, -0.3])[:, 0], atol=1e-6)


def test_initial_state_is_read_off_the_record() -> None:
    t = np.arange(30) * 0.02
    data = TimeSeries(t, np.zeros(30), 0.3 + 0.5 * t)
    run = simulate(DUFFING, data, PARAMS)
    assert float(run["z"][0]) == pytest.approx(0.3) and float(run["v"][0]) == pytest.approx(0.5)
    at_rest = simulate(DUFFING, data.replace(y=None), PARAMS)
    assert np.all(at_rest["z"] == 0.0)


def test_one_sample_is_the_initial_state() -> None:
    run = simulate(DUFFING, record(length=1), PARAMS, x0=X0)
    assert run["z"].shape == (1,) and float(run["z"][0]) == 0.5 and float(run["v"][0]) == -0.3


# -- many parameter sets ----------------------------------------------------------------------------------------------


def test_a_batch_equals_single_runs() -> None:
    ks = np.array([3.0, 4.0, 5.5, 7.0])
    batch = simulate(DUFFING, record(), PARAMS | dict(k=ks), x0=X0, substeps=16)
    assert batch["y"].dims == ("draw", "time") and batch["y"].shape == (4, 40)
    for i, k in enumerate(ks):
        single = simulate(DUFFING, record(), PARAMS | dict(k=k), x0=X0, substeps=16)
        np.testing.assert_array_equal(batch["y"][i], single["y"])
        np.testing.assert_array_equal(batch["v"][i], single["v"])


def test_initial_states_may_be_draws() -> None:
    starts = np.array([0.1, 0.2, 0.3])
    run = simulate(DUFFING, record(), PARAMS, x0=dict(z=starts, v=0.0))
    np.testing.assert_array_equal(run["z"][:, 0], starts)
    np.testing.assert_array_equal(run["v"][:, 0], 0.0)


def test_initial_states_in_order_may_be_draws() -> None:
    starts = np.array([0.1, 0.2, 0.3])
    run = simulate(DUFFING, record(), PARAMS, x0=[starts, 2 * starts])
    np.testing.assert_array_equal(run["v"][:, 0], 2 * starts)


def test_labelled_draws_keep_their_dims_and_coordinates() -> None:
    k = xr.DataArray([[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]], dims=("chain", "draw"), coords={"draw": [10, 20, 30]})
    data = record()
    run = simulate(DUFFING, data, PARAMS | dict(k=k), x0=X0, substeps=16)
    assert run["y"].dims == ("chain", "draw", "time") and run["y"].shape == (2, 3, 40)
    np.testing.assert_array_equal(run["draw"], [10, 20, 30])
    np.testing.assert_array_equal(run["time"], data.t)
    single = simulate(DUFFING, data, PARAMS | dict(k=7.0), x0=X0, substeps=16)
    np.testing.assert_array_equal(run["y"].sel(draw=20)[1], single["y"])


def test_draws_over_different_dims_are_crossed() -> None:
    k, c = xr.DataArray([3.0, 4.0], dims="stiff"), xr.DataArray([0.1, 0.2, 0.3], dims="damp")
    run = simulate(DUFFING, record(), PARAMS | dict(k=k, c=c), x0=X0, substeps=16)
    assert dict(run["y"].sizes) == dict(stiff=2, damp=3, time=40)
    single = simulate(DUFFING, record(), PARAMS | dict(k=4.0, c=0.1), x0=X0, substeps=16)
    np.testing.assert_array_equal(run["y"].isel(stiff=1, damp=0), single["y"])


@pytest.mark.parametrize("container", [lambda d: d, lambda d: xr.DataTree.from_dict({"posterior": d})["posterior"]])
def test_parameters_are_picked_from_a_posterior(container: Any) -> None:
    names = {**PARAMS, "noise": 0.1}
    draws = xr.Dataset({n: (("chain", "draw"), np.full((2, 3), v)) for n, v in names.items()})
    run = simulate(DUFFING, record(), container(draws), x0=X0)
    assert run["y"].dims == ("chain", "draw", "time")


def test_no_draws_give_no_runs() -> None:
    assert simulate(DUFFING, record(), PARAMS | dict(k=np.empty(0)), x0=X0)["y"].shape == (0, 40)


def test_a_state_called_time_is_refused_with_the_remedy() -> None:
    """The name of the dimension of every result."""
    with pytest.raises(ValueError, match=r"rename|names must|reserved"):
        system = System(lambda t, x, u, p: -x.time, states=("time",), observe=lambda t, x, dx, u, p: x.time)
        simulate(system, TimeSeries([0.0, 0.1]), {}, x0=1.0)


# -- the symbolic form ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def symbolic() -> tuple[Any, Any]:
    """Outputs, and the gradient of a weighted sum of them, as functions of all parameters and the initial state."""
    values = [pt.dscalar(n) for n in (*DUFFING.params, "z0", "v0")]
    data = record("foh", length=20)
    params = dict(zip(DUFFING.params, values[:4], strict=True))
    outputs = simulate(DUFFING, data, params, x0=dict(z=values[4], v=values[5]), substeps=8)
    weights = np.cos(np.arange(20.0))
    gradient = pytensor.grad(pt.dot(weights, outputs), values)
    return pytensor.function(values, outputs), pytensor.function(values, gradient)


def test_symbolic_outputs_equal_the_numeric_ones(symbolic: Any) -> None:
    numbers = [*PARAMS.values(), 0.5, -0.3]
    expected = simulate(DUFFING, record("foh", length=20), PARAMS, x0=X0, substeps=8)["y"]
    np.testing.assert_allclose(symbolic[0](*numbers), expected, rtol=1e-13, atol=1e-15)


def test_symbolic_gradient_equals_central_differences(symbolic: Any) -> None:
    at, weights = np.array([*PARAMS.values(), 0.5, -0.3]), np.cos(np.arange(20.0))
    expected = []
    for e in np.eye(6) * 1e-4:
        near, far = (weights @ (symbolic[0](*(at + k * e)) - symbolic[0](*(at - k * e))) for k in (1, 2))
        expected.append((8 * near - far) / 12e-4)
    np.testing.assert_allclose(symbolic[1](*at), expected, rtol=1e-8)


@pytest.mark.parametrize("observe", [lambda x: x.z, lambda x: 2.0 * x.z, lambda x: x.z + p_squared(x)])
def test_symbolic_gradient_of_an_output_that_is_a_state(observe: Any) -> None:
    """The output and the state it reads are one node, or one is made from the other."""
    system = System(lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: observe(x))
    k = pt.dscalar("k")
    last = simulate(system, TimeSeries(np.arange(11) * 0.1), dict(k=k), x0=1.0, substeps=8)[-1]
    slope = pytensor.function([k], [last, pytensor.grad(last, k)])
    (up, _), (down, _), (_, gradient) = slope(1.5001), slope(1.4999), slope(1.5)
    assert gradient == pytest.approx((up - down) / 2e-4, rel=1e-6)


def p_squared(x: Any) -> Any:
    return x.z * x.z


@pytest.mark.parametrize("y, shape", [(None, (5,)), (np.zeros(5), (5,)), (np.zeros((5, 1)), (5, 1))])
def test_symbolic_outputs_look_like_the_record(y: Any, shape: Any) -> None:
    k = pt.dscalar("k")
    outputs = simulate(DUFFING, record(length=5, y=y), PARAMS | dict(k=k), x0=0.0, substeps=2)
    assert outputs.eval({k: 4.0}).shape == shape


def test_symbolic_vector_of_initial_states() -> None:
    start = pt.dvector("start")
    outputs = simulate(DUFFING, record(length=5), PARAMS, x0=start, substeps=2)
    assert outputs.eval({start: np.array([0.7, 0.0])})[0] == pytest.approx(0.7)


def test_several_symbolic_outputs_are_columns() -> None:
    system = System(
        lambda t, x, u, p: -p.k * x.z,
        states=("z",),
        params=("k",),
        observe=lambda t, x, dx, u, p: (x.z, dx.z),
    )
    k = pt.dscalar("k")
    values = simulate(system, TimeSeries(np.arange(4) * 0.1), dict(k=k), x0=1.0, substeps=8).eval({k: 2.0})
    np.testing.assert_allclose(values, np.exp(-0.2 * np.arange(4))[:, None] * [1.0, -2.0], rtol=1e-6)


def test_symbolic_run_serves_any_likelihood_in_a_model() -> None:
    data = record(length=20)
    y = simulate(DUFFING, data, PARAMS, x0=X0)["y"].values
    with pm.Model() as model:
        k = pm.LogNormal("k", np.log(4.0), 0.2)
        mean = simulate(DUFFING, data, PARAMS | dict(k=k), x0=X0)
        pm.StudentT("y", nu=4, mu=mean, sigma=0.01, observed=y)
    logp = model.compile_logp()
    assert logp({"k_log__": np.log(4.0)}) > logp({"k_log__": np.log(4.2)}) + 10


@pytest.mark.parametrize("substeps", [0, -2, 2.5, True, "many"])
@pytest.mark.parametrize("kind", ["numeric", "symbolic"])
def test_impossible_substeps_are_refused(substeps: Any, kind: str) -> None:
    k = 4.0 if kind == "numeric" else pt.dscalar("k")
    with pytest.raises(ValueError, match=r"substeps is .*; give a positive integer or 'auto'"):
        simulate(DUFFING, record(), PARAMS | dict(k=k), x0=X0, substeps=substeps)


def test_symbolic_automatic_substeps_without_a_value_are_refused_with_the_remedy() -> None:
    with pytest.raises((ValueError, TypeError), match="substeps"):
        simulate(DUFFING, record(), PARAMS | dict(k=pt.dscalar("k")), x0=X0)


# -- warnings and divergence ------------------------------------------------------------------------------------------


def test_coarse_steps_are_obeyed_with_a_warning() -> None:
    message = r"substeps=1: the outputs move by .* of their root mean square when the substeps are doubled.*'auto'"
    with pytest.warns(SubstepWarning, match=message) as caught:
        run = simulate(DUFFING, record(), PARAMS | dict(k=80.0), x0=X0, substeps=1)
    assert run.attrs["substeps"] == 1 and len(caught) == 1
    assert caught[0].filename == __file__


def test_the_warning_looks_at_draws_beyond_the_first() -> None:
    with pytest.warns(SubstepWarning, match="substeps=2"):
        simulate(DUFFING, record(), PARAMS | dict(k=np.array([0.5, 0.6, 500.0])), x0=X0, substeps=2)


def test_what_no_step_resolves_is_said() -> None:
    rough = System(
        lambda t, x, u, p: pt.sign(pt.sin(1e4 * t)),
        states=("z",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    with pytest.warns(SubstepWarning, match=r"'auto': the outputs still move by more than 0\.0001 .* stiff or not"):
        simulate(rough, TimeSeries(np.arange(5) * 0.317), {}, x0=0.0)


def test_divergence_gives_no_numbers_and_no_exception() -> None:
    explosive = System(lambda t, x, u, p: p.a * x.z**3, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z)
    data = TimeSeries(np.arange(30) * 0.1)
    with pytest.warns(SubstepWarning, match=r"not finite from sample 3 \(t = 0.2\) on at a = 5: the solution leaves"):
        assert not np.isfinite(simulate(explosive, data, dict(a=5.0), x0=1.0)["y"][-1])
    lost = r"index 1, the state 'z' is not finite from sample 4 \(t = 0.3\) on at a = 5\. .*implicit"
    with pytest.warns(SubstepWarning, match=rf"1 of 3 runs are not finite .* {lost}"):
        run = simulate(explosive, data, dict(a=np.array([-1.0, 5.0, -2.0])), x0=1.0)
    assert np.all(np.isfinite(run["y"][[0, 2]])) and not np.isfinite(run["y"][1, -1])
    np.testing.assert_allclose(run["y"][2], 1 / np.sqrt(1 + 4 * data.t), rtol=1e-4)


def test_a_draw_that_is_not_a_number_spoils_only_itself() -> None:
    with pytest.warns(SubstepWarning, match=r"1 of 2 runs are not finite .* index 1, .* k = nan"):
        run = simulate(DUFFING, record(), PARAMS | dict(k=np.array([4.0, np.nan])), x0=X0)
    assert np.all(np.isfinite(run["y"][0])) and np.all(np.isnan(run["y"][1, 1:]))


# -- errors -----------------------------------------------------------------------------------------------------------

LABELLED = xr.DataArray(np.ones(2), dims="draw")


@pytest.mark.parametrize(
    "options, error, message",
    [
        (dict(params=dict(m=1.0, c=1.0)), ValueError, r"params lacks \['k', 'k3'\]"),
        (dict(params=PARAMS | dict(q=1.0)), ValueError, r"unknown names \['q'\]"),
        (dict(params=[1.0]), TypeError, "params is list; give a dict"),
        (dict(params=PARAMS | dict(k=np.ones(2), c=np.ones(3))), ValueError, r"arrays of the shapes \[\(2,\), \(3,\)\]"),
        (dict(params=PARAMS | dict(k=LABELLED, c=np.ones(2))), ValueError, "beside DataArrays"),
        (dict(params=PARAMS | dict(k=pt.dscalar(), c=np.ones(3))), TypeError, r"params\['c'\]"),
        (dict(x0=dict(q=1.0)), ValueError, r"x0 names the states \['q'\]"),
        (dict(x0=[1.0, 2.0, 3.0]), ValueError, "x0 has 3 entries"),
        (dict(x0=[1.0, np.nan]), ValueError, "x0 of 'v' is nan"),
        (dict(data=record().replace(u=None)), ValueError, "0 input channels"),
        (dict(data=3), TypeError, "data is int; give a TimeSeries"),
        (dict(data=[record(), record()]), (TypeError, ValueError), "TimeSeries|one record"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], error: Any, message: str) -> None:
    given = dict(data=record(), params=PARAMS, x0=X0, substeps=8) | options
    with pytest.raises(error, match=message):
        simulate(DUFFING, given.pop("data"), given.pop("params"), **given)


def test_distance_is_that_of_the_runs_and_infinite_where_one_diverges() -> None:
    rng = np.random.default_rng(5)
    system = duffing()
    record = TimeSeries(np.arange(80) * 0.05, rng.normal(size=80), None, intersample="foh")
    y = simulate(system, record, dict(m=1.0, c=0.5, k=30.0, k3=10.0), x0=0.0, substeps=4)["y"].values
    record = record.replace(y=np.where(rng.random(80) < 0.1, np.nan, y + 0.01 * rng.normal(size=80)))
    draws = {k: v * np.exp(0.1 * rng.normal(size=(2, 3))) for k, v in dict(m=1.0, c=0.5, k=30.0, k3=10.0).items()}
    draws["c"][1, 1] = -1e6
    params = {k: xr.DataArray(v, dims=("chain", "draw")) for k, v in draws.items()}
    with pytest.warns(SubstepWarning, match=r"1 of 6 runs are not finite"):
        runs = simulate(system, record, params, x0=0.0, substeps=4)
    distance = simulate(system, record, params, x0=0.0, substeps=4, distance="nmse")
    assert distance["y"].dims == ("chain", "draw") and "time" not in distance.dims
    expected = nmse(record.y, runs["y"].values)
    assert np.isinf(distance["y"].values[1, 1]) and not np.isfinite(expected[1, 1])
    fine = np.isfinite(expected)
    np.testing.assert_allclose(distance["y"].values[fine], expected[fine], rtol=1e-10)


def test_distance_needs_a_measurement_numbers_and_a_known_name() -> None:
    system, record = duffing(), TimeSeries(np.arange(5) * 0.1, np.zeros(5), None)
    params = dict(m=1.0, c=0.5, k=30.0, k3=10.0)
    with pytest.raises(ValueError, match="data has no outputs"):
        simulate(system, record, params, x0=0.0, distance="nmse")
    with pytest.raises(ValueError, match="distance is 'rmse'; give 'nmse'"):
        simulate(system, record, params, x0=0.0, distance="rmse")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="distance='nmse' needs numbers"):
        variable = {**params, "k": pt.dscalar("k")}
        simulate(system, record.replace(y=np.zeros(5)), variable, x0=0.0, distance="nmse")


NETWORK = System(
    lambda t, x, u, p: (-p.fast * x.a, p.fast * x.a - p.slow * x.b),
    states=("a", "b"),
    params=("fast", "slow"),
    observe=lambda t, x, dx, u, p: x.b,
)


def network(data: TimeSeries, fast: float, slow: float) -> np.ndarray:
    return fast / (fast - slow) * (np.exp(-slow * (data.t - data.t[0])) - np.exp(-fast * (data.t - data.t[0])))


@pytest.mark.parametrize("substeps, said", [("auto", "'auto': with 64"), (3, "substeps=3:")])
def test_a_stiff_system_is_called_stiff(substeps: Any, said: str) -> None:
    """At one and at two steps the run is lost; that is no agreement."""
    data, params = TimeSeries(np.arange(12.0)), dict(fast=1e5, slow=1e-5)
    what = r"the state 'a' is not finite from sample \d+ .* at fast = 100000, slow = 1e-05"
    message = rf"{said}.*{what}: the system is stiff. .* 1e\+05 per .* at least 43\d\d\d Runge-Kutta.* method='implicit'"
    with pytest.warns(SubstepWarning, match=message):
        run = simulate(NETWORK, data, params, x0=[1.0, 0.0], substeps=substeps, method="rk4")
    assert not np.isfinite(run["y"][-1])


def test_the_number_of_steps_that_is_named_for_a_stiff_system_will_do() -> None:
    data, params = TimeSeries(np.arange(12.0)), dict(fast=300.0, slow=0.1)
    with pytest.warns(SubstepWarning, match="stiff") as caught:
        simulate(NETWORK, data, params, x0=[1.0, 0.0], method="rk4")
    named = int(str(caught[0].message).split("substeps=")[2].split()[0])
    run = simulate(NETWORK, data, params, x0=[1.0, 0.0], substeps=2 * named, method="rk4")
    np.testing.assert_allclose(run["y"], network(data, 300.0, 0.1), rtol=2e-4, atol=1e-5)


# -- implicit steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("substeps", ["auto", 3])
def test_implicit_steps_are_chosen_where_the_system_is_stiff(substeps: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = TimeSeries(np.arange(12.0))
    with caplog.at_level(logging.INFO, "pm_sysid"):
        run = simulate(NETWORK, data, dict(fast=1e5, slow=1e-2), x0=[1.0, 0.0], substeps=substeps)
    assert run.attrs["integrator"] == "Rodas5P"
    assert "the system is stiff (its fastest decay, 1e+05 per unit of time" in caplog.text
    np.testing.assert_allclose(run["y"], network(data, 1e5, 1e-2), rtol=1e-4, atol=1e-6)


def test_a_stiff_draw_among_others_makes_all_steps_implicit() -> None:
    """The draws at which steps are chosen (first, middle, last) are not stiff."""
    data, fast = TimeSeries(np.arange(12.0)), np.array([1.0, 1e6, 2.0, 3.0, 4.0])
    run = simulate(NETWORK, data, dict(fast=fast, slow=0.1), x0=[1.0, 0.0])
    assert run.attrs["integrator"] == "Rodas5P"
    expected = np.stack([network(data, f, 0.1) for f in fast])
    np.testing.assert_allclose(run["y"], expected, rtol=1e-4, atol=1e-6)
    error = simulate(NETWORK, data.replace(y=np.arange(12.0)), dict(fast=fast, slow=0.1), x0=[1.0, 0.0], distance="nmse")
    assert np.isfinite(error["y"]).all() and error.attrs["integrator"] == "Rodas5P"


def test_systems_that_are_not_stiff_take_runge_kutta_steps() -> None:
    run = simulate(DUFFING, record(), PARAMS, x0=X0)
    assert run.attrs["integrator"] == "RK4"
    np.testing.assert_array_equal(run["z"], simulate(DUFFING, record(), PARAMS, x0=X0, method="rk4")["z"])


@pytest.mark.parametrize("intersample", ["zoh", "foh", "bl"])
def test_implicit_states_equal_those_of_an_adaptive_integrator(intersample: str) -> None:
    data = record(intersample, uneven=intersample == "foh")
    run = simulate(DUFFING, data, PARAMS, x0=X0, substeps=32, method="implicit")
    expected = by_scipy(data, PARAMS, [0.5, -0.3])
    np.testing.assert_allclose(run["z"], expected[:, 0], atol=1e-8)
    np.testing.assert_allclose(run["v"], expected[:, 1], atol=1e-8)


def test_gradient_through_implicit_steps() -> None:
    """Of a weighted sum of the second species, by the rates and the start, against the derivative of the exact solution."""
    data, values = TimeSeries(np.arange(12.0)), [pt.dscalar(n) for n in ("fast", "slow", "a0")]
    params = dict(zip(("fast", "slow"), values, strict=False))
    outputs = simulate(NETWORK, data, params, x0=[values[2], 0.0], substeps=4, method="implicit")
    weights = np.cos(np.arange(12.0))
    gradient = pytensor.function(values, pytensor.grad(pt.dot(weights, outputs), values))
    a, b, s = pt.dscalars("a", "b", "s")
    exact = s * a / (a - b) * (pt.exp(-b * data.t) - pt.exp(-a * data.t))
    expected = pytensor.function([a, b, s], pytensor.grad(pt.dot(weights, exact), [a, b, s]))
    at = (1e4, 0.1, 2.0)
    np.testing.assert_allclose(gradient(*at), expected(*at), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("method", ["bdf", None, 3])
def test_unknown_methods_are_refused(method: Any) -> None:
    with pytest.raises(ValueError, match=r"method is .*; give 'rk4', 'implicit' .* or 'auto'"):
        simulate(DUFFING, record(), PARAMS, x0=X0, method=method)
