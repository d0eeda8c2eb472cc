"""Steps of a filter changed in place: the same arrays and numbers as a filter built with them; judged at points."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.likelihood.filter_steps import integration_error, refined
from pm_sysid.likelihood.filter_view import filter_view

DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level + u.inflow,
    states=("level",),
    inputs=("inflow",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: x.level,
)
CLOCK = sid.System(  # the faster it swings the more steps it needs
    lambda t, x, u, p: (x.v, -(p.w**2) * x.z), states=("z", "v"), params=("w",), observe=lambda t, x, dx, u, p: x.z
)
T = np.arange(40) * 0.25
SWING = sid.TimeSeries(T, None, np.cos(2.0 * T) + 0.01 * np.random.default_rng(0).standard_normal(40))


def flow(length: int, seed: int, jitter: float = 0.0, **options: Any) -> sid.TimeSeries:
    rng = np.random.default_rng(seed)
    y = 1.0 + 0.1 * rng.standard_normal(length)
    y[2] = np.nan
    t = (np.arange(length) + jitter * rng.uniform(size=length)) / 3
    return sid.TimeSeries(t, rng.uniform(size=length), y, inputs="inflow", **options)


def decay(data: Any, substeps: Any) -> pm.Model:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        rate = pm.LogNormal("rate", 0.0, 0.3)
        options: dict[str, Any] = dict(noise=0.5, solver=sid.EK0(order=1, diffusion=1.0), substeps=substeps)
        sid.ODEFilter("y", DECAY, data, {"rate": rate}, **options)
    return model


def clock(substeps: Any = "auto", middle: float = 2.0, spread: float = 0.1) -> pm.Model:
    with pm.Model() as model:
        w = pm.LogNormal("w", np.log(middle), spread)
        sid.ODEFilter("y", CLOCK, SWING, {"w": w}, noise=0.01, x0=[1.0, 0.0], solver=sid.EK1(order=3), substeps=substeps)
    return model


def front(middle: float) -> tuple[pm.Model, Any]:
    """A substrate that is used up at 1 / v: a front, with a fast decay behind it; and the log posterior by ``log v``."""
    system = sid.System(
        lambda t, x, u, p: -p.v * x.s / (1e-4 + x.s), states=("s",), params=("v",), observe=lambda t, x, dx, u, p: x.s
    )
    t = np.concatenate([[0.0], np.logspace(-2, 2, 25)])
    run = sid.simulate(system, sid.TimeSeries(t, None), {"v": 1.0}, x0=[1.0], method="implicit")
    y = run["s"].values + 0.01 * np.random.default_rng(0).standard_normal(26)
    with pm.Model() as model:
        v = pm.LogNormal("v", np.log(middle), 0.2)
        sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), {"v": v}, noise=0.01, x0=[1.0], solver=sid.EK1(order=3))
    logp = model.compile_logp()
    return model, lambda at: float(logp({"v_log__": np.array(at)}))


def judged(number: int) -> pm.Model:
    """The clock, as if "auto" had chosen a number."""
    model = clock(64)
    sid.set_substeps(number, model)
    grid = filter_view("y", model).op.grid
    grid.choice = replace(grid.choice, asked="auto")
    return model


DATA = {
    "uniform": flow(12, 0),
    "irregular": flow(12, 0, 0.7, intersample="foh"),
    "periodic": flow(12, 0, periodic=True),
    "several": [flow(12, 0, intersample="zoh"), flow(7, 1, intersample="zoh")],
}


@pytest.mark.parametrize("kind", DATA)
def test_steps_set_in_place_are_those_of_a_filter_built_with_them(kind: str) -> None:
    changed, built = decay(DATA[kind], 1), decay(DATA[kind], 3)
    assert sid.set_substeps(3, changed)["y"].substeps == filter_view("y", changed).op.substeps == 3
    for a, b in zip(filter_view("y", changed).arrays(), filter_view("y", built).arrays(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_functions_compiled_before_see_the_new_steps() -> None:
    changed, built = decay(DATA["several"], 1), decay(DATA["several"], 3)
    target, at = sid.Target(changed), np.array([[0.1]])
    before = target.log_likelihood(at)
    sid.set_substeps(3, changed)
    after = target.log_likelihood(at)
    assert after != before and after == sid.Target(built).log_likelihood(at)
    sid.set_substeps({"y": 1}, changed)
    assert target.log_likelihood(at) == before


@pytest.mark.parametrize("kind", ["uniform", "several"])
def test_new_data_keep_the_steps(kind: str) -> None:
    data = DATA[kind]
    new = [flow(9, 5, intersample="zoh"), flow(14, 6, intersample="zoh")] if kind == "several" else flow(9, 5)
    model = decay(data, 1)
    sid.set_substeps(3, model)
    sid.set_data({"y": new}, model)
    view = filter_view("y", model)
    assert view.op.substeps == 3
    for a, b in zip(view.arrays(), filter_view("y", decay(new, 3)).arrays(), strict=True):
        np.testing.assert_array_equal(a, b)
    sid.set_substeps(2, model)  # of the new record, not of the old one
    for a, b in zip(view.arrays(), filter_view("y", decay(new, 2)).arrays(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_record_that_was_put_back_by_hand_is_the_one_that_is_cut() -> None:
    """Arrays of the old record in the shared variables, the new one known by name: the arrays count."""
    model = decay(DATA["several"], 2)
    view = filter_view("y", model)
    old, y = view.arrays(), view.observed.get_value()
    sid.set_data({"y": [flow(9, 5, intersample="zoh"), flow(14, 6, intersample="zoh")]}, model)
    view.put(old)
    view.observed.set_value(y)
    sid.set_substeps(4, model)
    for a, b in zip(view.arrays(), filter_view("y", decay(DATA["several"], 4)).arrays(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pickled_model_has_steps_of_its_own() -> None:
    model = decay(DATA["uniform"], 1)
    other = cloudpickle.loads(cloudpickle.dumps(model))
    sid.set_substeps(5, other)
    assert filter_view("y", other).op.substeps == 5 and filter_view("y", model).op.substeps == 1
    assert len(filter_view("y", model).arrays().substeps) == 11


def test_too_few_steps_are_doubled_until_they_will_do() -> None:
    model = judged(1)
    log = sid.Target(model)
    q = log.unconstrained({"w": np.array([2.0])})
    sums = {}
    for n in (1, 2, 4, 8, 16, 64):
        sid.set_substeps(n, model)
        sums[n] = float(log.log_likelihood(q)[0])
    fewest = next(n for n in sums if abs(sums[2 * n] - sums[n]) < 0.1 and abs(sums.get(4 * n, sums[64]) - sums[n]) < 0.1)
    assert fewest > 1
    model = judged(1)
    choice = sid.settle_substeps({"w": 2.0}, model=model)["y"]
    assert choice.substeps == fewest and choice.settled and choice.where == "at the point given"
    assert choice.error == pytest.approx(max(abs(sums[m * fewest] - sums[fewest]) for m in (2, 4)), rel=1e-6)
    assert float(sid.Target(model).log_likelihood(q)[0]) == sums[fewest]
    attrs = sid.substeps_attrs(model)
    assert attrs == {
        "substeps_y": fewest,
        "substeps_y_asked": "auto",
        "substeps_y_judged": "at the point given",
        "substeps_y_error": choice.error,
    }
    xr.Dataset(attrs=attrs).to_netcdf()


def test_more_steps_than_needed_are_kept() -> None:
    model = judged(16)
    assert sid.settle_substeps({"w": 2.0}, model=model)["y"].substeps == 16


def test_a_number_that_was_asked_for_is_kept_with_a_warning() -> None:
    with pytest.warns(sid.SubstepWarning, match="substeps=1: at the 8 of 512 prior draws"):
        model = clock(1)
    with pytest.warns(sid.SubstepWarning, match="substeps=1: at 3 points given the log-likelihood moves by"):
        choice = sid.settle_substeps([{"w": 1.9}, {"w": 2.0}, {"w": 2.1}], model=model)["y"]
    assert choice.substeps == 1 and not choice.settled and choice.error > 0.1
    with pytest.warns(sid.SubstepWarning, match="substeps=1: at the mode the log-likelihood moves by"):
        assert not refined({"w": 2.0}, model, "at the mode")


def test_draws_of_a_posterior_are_thinned() -> None:
    model = judged(2)
    draws = xr.Dataset({"w": (("chain", "draw"), np.random.default_rng(0).normal(2.0, 0.002, (2, 300)))})
    choice = sid.settle_substeps(draws, model=model, points=6)["y"]
    assert choice.where == "at 6 posterior draws" and choice.settled
    choice = sid.settle_substeps(draws, model=model, points=6, where="on the posterior")["y"]
    assert choice.where == "on the posterior"


def test_automatic_again_forgets_the_number_that_was_set() -> None:
    model = clock("auto")
    first = filter_view("y", model).op.grid.choice
    assert first.asked == "auto" and first.settled and "prior draws that come nearest" in first.where
    sid.set_substeps(50, model)
    assert filter_view("y", model).op.grid.choice.asked == 50
    assert sid.set_substeps("auto", model)["y"] == first


def test_a_point_that_cannot_be_solved_is_no_error() -> None:
    with pm.Model() as model:
        a = pm.Normal("a")
        explosive = sid.System(
            lambda t, x, u, p: p.a * x.z**3, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z
        )
        record = sid.TimeSeries(T, None, 1 / np.sqrt(1 + 2 * T) + 0.01 * np.sin(40 * T))
        sid.ODEFilter("y", explosive, record, {"a": a}, noise=0.05, x0=1.0, solver=sid.EK1(order=2))
    choice = sid.settle_substeps([{"a": -1.0}, {"a": 5.0}], model=model)["y"]
    assert choice.settled
    now = choice.substeps
    with pytest.warns(sid.SubstepWarning, match="even when 32 substeps are doubled"):
        choice = sid.settle_substeps({"a": 5.0}, model=model)["y"]
    assert not choice.settled and choice.substeps >= now


@pytest.mark.parametrize(
    "given, message",
    [
        (0, "substeps of 'y' are 0; give a positive integer or 'auto'"),
        (1.5, "substeps of 'y' are 1.5"),
        ("many", "substeps of 'y' are 'many'"),
        ({"z": 2}, r"substeps are given for 'z'; the filters of the model are \['y'\]"),
        ({"y": None}, "substeps of 'y' are None"),
    ],
)
def test_impossible_numbers_are_refused(given, message) -> None:
    model = decay(DATA["uniform"], 2)
    with pytest.raises(ValueError, match=message):
        sid.set_substeps(given, model)
    assert filter_view("y", model).op.substeps == 2


@pytest.mark.parametrize(
    "at, options, error, message",
    [
        ({}, {}, ValueError, "give a number for each free variable"),
        ({"rate": 1.0, "x": 2.0}, {}, ValueError, "give a number for each free variable"),
        ({"rate": [1.0, 2.0]}, {}, ValueError, r"'rate' has the shape \(2,\)"),
        ({"rate": "fast"}, {}, ValueError, "'rate'"),
        ([], {}, ValueError, "give a dict of the free variables"),
        (None, {}, ValueError, "give what pm.sample returned"),
        ({"rate": 1.0}, {"points": 0}, ValueError, "points is 0"),
        ({"rate": 1.0}, {"where": 3}, TypeError, "where is 3; give text"),
    ],
)
def test_impossible_points_are_refused(at, options, error, message) -> None:
    with pytest.raises(error, match=message):
        sid.settle_substeps(at, model=decay(DATA["uniform"], 2), **options)


def test_a_model_without_filters_has_none_to_set() -> None:
    with pm.Model() as model:
        pm.Normal("x")
    with pytest.raises(ValueError, match="the model has no ODEFilter"):
        sid.set_substeps(2, model)
    assert sid.substeps_attrs(model) == {}


@pytest.mark.slow
def test_steps_that_follow_another_solution_are_replaced_where_the_posterior_is() -> None:
    """Between 0.2 and 1 the front moves by four units of time, to where the steps are long: the filter says nothing there."""
    model, logp = front(0.2)
    before = filter_view("y", model).op.grid.choice
    assert before.follows and logp(0.0) < -1e5
    assert refined([{"v": 1.0}], model, "at the mode", following=True)
    after = filter_view("y", model).op.grid.choice
    assert after.replaces(before) and after.settled and after.where == "at the mode"
    accurate = logp(0.0)
    sid.set_substeps({"y": 4 * after.substeps}, model)
    assert abs(logp(0.0) - accurate) < 0.1 and accurate > 50
    assert not refined([{"v": 1.0}], model, "at the mode")


def test_steps_that_suffice_where_the_posterior_is_stay() -> None:
    model, _ = front(0.2)
    assert refined([{"v": 1.0}], model, "at the mode")
    before = filter_view("y", model).op.grid.choice
    assert not refined([{"v": 1.0001}], model, "at the mode")
    assert filter_view("y", model).op.grid.choice.grids is before.grids
    assert not refined([{"w": 2.0}], clock(), "at the mode", following=True)  # equal steps are not asked


def test_steps_that_follow_one_point_and_fail_at_the_next_are_said() -> None:
    """The front is so sharp that the likelihood falls off a cliff a few percent away; refined steps fall off it too."""
    model, _ = front(0.2)
    points = [{"v": v} for v in (1.0, 0.8, 1.2, 0.6)]
    with pytest.warns(sid.SubstepWarning, match="follow the solution of each point by itself: a front moves with the"):
        choice = sid.settle_substeps(points, model=model)["y"]
    assert not choice.settled and choice.error > 1


@pytest.mark.slow
def test_walls_around_points_drawn_between_them_are_said() -> None:
    """The same front: draws of what the likelihood is on steps that follow one of them lie within a thousandth."""
    model, logp = front(0.2)
    assert refined([{"v": 0.66}], model, "at the mode")
    points = [{"v": v} for v in 0.66 * (1 + 8e-4 * np.array([-1.0, 0.0, 1.0]))]
    here = [logp(np.log(point["v"])) for point in points]
    assert np.ptp(here) < 30 and logp(np.log(0.62)) < -1e5  # a wall, where the accurate likelihood has none
    with pytest.warns(sid.SubstepWarning, match="a front moves with the"):
        assert not sid.settle_substeps(points, model=model)["y"].settled


def test_points_far_outside_the_posterior_say_nothing_of_the_steps() -> None:
    """Along a ridge a point three times as far is less likely by millions, of which the last digits change by 90."""
    system = sid.System(
        lambda t, x, u, p: (p.L * (np.cos(t) - x.z) + p.q * x.w, -p.r * x.w + x.z),
        states=("z", "w"),
        params=("L", "q", "r"),
        observe=lambda t, x, dx, u, p: x.w,
    )
    t = 0.1 * np.arange(100)
    run = sid.simulate(system, sid.TimeSeries(t, None), {"L": 1000.0, "q": 100.0, "r": 0.5}, x0=0.0)
    record = sid.TimeSeries(t, None, run["y"].values + 0.05 * np.random.default_rng(21).standard_normal(100))
    with pm.Model() as model:
        p = {n: pm.LogNormal(n, np.log(v), s) for n, v, s in (("L", 500, 1.0), ("q", 100, 1.0), ("r", 0.6, 0.5))}
        sid.ODEFilter("y", system, record, p, noise=pm.HalfNormal("s", 0.2), x0=0.0)
    assert filter_view("y", model).op.grid.choice.follows
    points = [{"L": big, "q": q, "r": r, "s": 0.045} for big, q, r in ((440, 130, 0.58), (820, 130, 0.55), (640, 150, 0.6))]
    assert sid.settle_substeps(points, model=model)["y"].settled  # and no warning


@pytest.mark.slow
def test_a_search_looks_where_the_steps_of_other_solutions_lead_and_says_that_they_lead_no_further() -> None:
    model, _ = front(0.8)
    with pytest.warns(UserWarning, match="stopped at a point that is no clear maximum"):
        mode = sid.find_mode(model, random_seed=0, progressbar=False)
    assert abs(float(mode.initvals["v"]) - 1.0) < 0.03 and mode.logp > 70 and not mode.converged


@pytest.mark.slow
def test_modes_that_are_as_good_with_steps_of_their_own_stay() -> None:
    """A stiff system in which the sign of the parameter is unknown."""
    system = sid.System(
        lambda t, x, u, p: (-1e4 * p.v**2 * (x.s - x.q), -x.q),
        states=("s", "q"),
        params=("v",),
        observe=lambda t, x, dx, u, p: x.s,
    )
    t = np.concatenate([[0.0], np.logspace(-6, 1, 30)])
    run = sid.simulate(system, sid.TimeSeries(t), {"v": 1.0}, x0=[2.0, 1.0], method="implicit")
    y = run["s"].values + 0.01 * np.random.default_rng(0).standard_normal(31)
    with pm.Model() as model:
        v = pm.Normal("v", 0, 1)
        sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), {"v": v}, noise=0.01, x0=[2.0, 1.0], solver=sid.EK1(order=2))
    assert filter_view("y", model).op.grid.choice.follows
    modes = sid.find_mode(model, random_seed=1, progressbar=False).modes
    np.testing.assert_allclose(sorted(float(m.initvals["v"]) for m in modes), [-1.0, 1.0], atol=0.02)
    assert abs(modes[0].log_evidence - modes[1].log_evidence) < 0.1


def test_the_error_of_an_evidence_contains_what_steps_that_will_do_leave() -> None:
    """The mean of what finer steps would change at draws, and its standard error."""
    swing = sid.System(
        lambda t, x, u, p: (x.v, -(p.w**2) * x.z), states=("z", "v"), params=("w",), observe=lambda t, x, dx, u, p: x.z
    )
    t = np.linspace(0.0, 3.0, 25)
    record = sid.TimeSeries(t, None, np.cos(4.0 * t) + 0.2 * np.random.default_rng(0).standard_normal(25))
    with pm.Model() as model:
        sid.ODEFilter("y", swing, record, {"w": pm.Uniform("w", 2.0, 6.0)}, noise=0.2, x0=[1.0, 0.0], solver=sid.EK1(order=2))
    at = np.array([3.9, 4.0, 4.1, 3.95])
    draws = xr.Dataset({"w": (("chain", "draw"), at[None])})
    assert sid.settle_substeps(draws, model=model)["y"].settled
    found, chosen = integration_error(draws, model), filter_view("y", model).op.grid.choice.substeps

    def log_likelihood(substeps: int) -> np.ndarray:
        sid.set_substeps(substeps, model)
        value = model.compile_logp(vars=[model["y"]])
        points = model.rvs_to_transforms[model["w"]].forward(at, *model["w"].owner.inputs).eval()
        return np.array([value({"w_interval__": u}) for u in points])

    moved = log_likelihood(4 * chosen) - log_likelihood(chosen)
    assert found == pytest.approx(np.hypot(moved.mean(), moved.std() / 2), rel=1e-6) and found > 1e-4
    sid.set_substeps(1, model)  # a number of the user's is not judged
    assert integration_error(draws, model) == 0.0


def test_a_diffusion_that_is_a_parameter_is_no_error_of_the_integration() -> None:
    """Other steps make another model of it, whose log-likelihood may be hundreds away."""
    decay = sid.System(lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: x.z)
    t = np.linspace(0.0, 4.0, 41)
    y = np.exp(-t) + 0.05 * np.random.default_rng(0).standard_normal(41)
    with pm.Model() as model:
        solver = sid.EK1(order=1, diffusion=pm.LogNormal("q", -2.0, 2.0))
        sid.ODEFilter("y", decay, sid.TimeSeries(t, None, y), {"k": pm.LogNormal("k")}, noise=0.05, x0=1.0, solver=solver)
    draws = xr.Dataset({"k": (("chain", "draw"), [[1.0, 1.1]]), "q": (("chain", "draw"), [[0.5, 2.0]])})
    assert integration_error(draws, model) == 0.0


@pytest.mark.slow
def test_walls_are_said_beside_unknowns_that_the_record_tells_well() -> None:
    """Three times as far from the mean, a Gaussian posterior of thirteen unknowns alone is less likely by fifty."""
    gains = tuple(f"k{j}" for j in range(12))
    system = sid.System(
        lambda t, x, u, p: -p.v * x.s / (1e-4 + x.s), states=("s",), params=("v", *gains),
        observe=lambda t, x, dx, u, p: {
            "y1": x.s, "y2": sum(getattr(p, k) * np.cos(0.7 * j * np.log(1 + t)) for j, k in enumerate(gains))
        },
    )  # fmt: skip
    t = np.concatenate([[0.0], np.logspace(-2, 2, 25)])
    rng, free = np.random.default_rng(0), sid.TimeSeries(t, None)
    run = sid.simulate(system, free, {"v": 1.0, **dict.fromkeys(gains, 1.0)}, x0=[1.0], method="implicit")
    y = np.column_stack([run["y1"].values, run["y2"].values]) + 0.01 * rng.standard_normal((26, 2))
    design = np.cos(0.7 * np.arange(12) * np.log(1 + t)[:, None])
    covariance = np.linalg.inv(design.T @ design / 1e-4 + np.eye(12) / 0.25)
    mean = covariance @ (design.T @ y[:, 1] / 1e-4 + np.ones(12) / 0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        with pm.Model() as model:
            p = {"v": pm.LogNormal("v", np.log(0.2), 0.2), **{k: pm.Normal(k, 1.0, 0.5) for k in gains}}
            record = sid.TimeSeries(t, None, {"y1": y[:, 0], "y2": y[:, 1]})
            sid.ODEFilter("y", system, record, p, noise=0.01, x0=[1.0], solver=sid.EK1(order=3))
        assert refined([{"v": 0.66, **dict(zip(gains, mean, strict=True))}], model, "at the mode")
    speeds = 0.66 * (1 + 8e-4 * np.linspace(-1.0, 1.0, 20))
    drawn = mean + rng.standard_normal((20, 12)) @ np.linalg.cholesky(covariance).T
    points = [{"v": v, **dict(zip(gains, k, strict=True))} for v, k in zip(speeds, drawn, strict=True)]
    with pytest.warns(sid.SubstepWarning, match="a front moves with the"):
        assert not sid.settle_substeps(points, model=model)["y"].settled
