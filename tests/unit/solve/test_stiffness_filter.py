"""Filters whose steps follow a stiff solution: Robertson's kinetics against an accurate one, and rates over nine decades."""

from __future__ import annotations

import logging
import warnings
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.solve.stiffness import pilot_grid
from pm_sysid.steps.grid import StepGrid, substep_grid

#: Robertson (1966): autocatalytic reaction; the rate constants span nine decades.
ROBERTSON = sid.System(
    lambda t, x, u, p: {
        "a": -p.k1 * x.a + p.k3 * x.b * x.c,
        "b": p.k1 * x.a - p.k2 * x.b**2 - p.k3 * x.b * x.c,
        "c": p.k2 * x.b**2,
    },
    states=("a", "b", "c"),
    params=("k1", "k2", "k3"),
    observe=lambda t, x, dx, u, p: {"a": x.a, "b": x.b, "c": x.c},
)
RATES, NAMES = np.array([0.04, 3e7, 1e4]), ("k1", "k2", "k3")
TIMES = np.concatenate([[0.0], np.logspace(-4, 5, 28)])
SIZE = np.array([1.0, 3.6e-5, 1.0])


def accurate(rates: np.ndarray, t: np.ndarray = TIMES) -> np.ndarray:
    k1, k2, k3 = rates

    def f(t: float, x: np.ndarray) -> list[float]:
        made = k1 * x[0] - k3 * x[1] * x[2]
        return [-made, made - k2 * x[1] ** 2, k2 * x[1] ** 2]

    def jac(t: float, x: np.ndarray) -> list[list[float]]:
        by_b = 2 * k2 * x[1]
        return [[-k1, k3 * x[2], k3 * x[1]], [k1, -k3 * x[2] - by_b, -k3 * x[1]], [0.0, by_b, 0.0]]

    y: np.ndarray = solve_ivp(f, t[[0, -1]], [1.0, 0, 0], "LSODA", t, jac=jac, rtol=1e-12, atol=1e-16).y.T
    return y


NOISE = 0.01 * SIZE


@cache
def truth() -> np.ndarray:
    return accurate(RATES)


@cache
def measured() -> sid.TimeSeries:
    y = truth()
    return sid.TimeSeries(TIMES, None, y + NOISE * np.random.default_rng(0).normal(size=y.shape))


def gaussian(rates: np.ndarray) -> float:
    error = (measured().output_matrix - accurate(rates)) / NOISE
    return float(-0.5 * np.sum(error**2 + np.log(2 * np.pi * NOISE**2)))


@pytest.fixture(scope="module")
def model() -> Any:
    """Robertson's rates under priors of a factor of three."""
    with pm.Model() as model:
        rates = {n: pm.LogNormal(n, np.log(2 * k), 1.0) for n, k in zip(NAMES, RATES, strict=True)}
        noise = dict(zip("abc", NOISE, strict=True))
        sid.ODEFilter("y", ROBERTSON, measured(), rates, noise=noise, x0=[1.0, 0.0, 0.0], solver=sid.EK1(order=3))
    return model


def test_the_steps_follow_the_solution(model: Any) -> None:
    choice = filter_view("y", model).op.grid.choice
    assert choice.grids is not None and choice.settled and choice.error < 0.1
    assert choice.substeps * sum(int(g.counts.sum()) for g in choice.grids) < 1500  # equal ones of 1e-4 would be 1e9


def test_likelihood_and_gradient_are_those_of_the_accurate_solution(model: Any) -> None:
    names = [f"{n}_log__" for n in NAMES]
    variables = [model[name] for name in NAMES]
    density = model.compile_logp(vars=model.observed_RVs)
    loglik = model.logp(vars=model.observed_RVs)
    slopes = model.compile_fn(pytensor.grad(loglik, [model.rvs_to_values[v] for v in variables]), inputs=model.value_vars)
    at = np.log(RATES * np.array([1.01, 0.97, 1.02]))
    point = dict(zip(names, at, strict=True))
    assert density(point) == pytest.approx(gaussian(np.exp(at)), abs=0.1)
    expected = []
    for e in 1e-3 * np.eye(3):
        near, far = (gaussian(np.exp(at + k * e)) - gaussian(np.exp(at - k * e)) for k in (1, 2))
        expected.append((8 * near - far) / 12e-3)
    np.testing.assert_allclose(slopes(point), expected, rtol=2e-3)
    chosen = filter_view("y", model).op.substeps
    sid.set_substeps(4 * chosen, model)
    np.testing.assert_allclose(slopes(point), expected, rtol=1e-4)
    sid.set_substeps(chosen, model)


def test_rates_over_nine_decades_give_a_number_or_minus_infinity(model: Any) -> None:
    density, rng = model.compile_logp(vars=model.observed_RVs), np.random.default_rng(1)
    for _ in range(60):
        at = np.log(RATES) + np.log(10) * rng.uniform(-4.5, 4.5, 3)
        value = density(dict(zip([f"{n}_log__" for n in NAMES], at, strict=True)))
        assert not np.isnan(value) and value < np.inf


def test_settling_keeps_the_grid_and_other_records_are_refused(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pm_sysid"):
        after = sid.settle_substeps(dict(zip(NAMES, RATES, strict=True)), model=model)["y"]
    assert after.grids is not None and after.settled and after.where == "at the point given"
    with pytest.raises(ValueError, match=r"are those of its record.* build a new model"):
        sid.set_data({"y": measured()[:20]}, model)
    with pytest.raises(ValueError, match=r"follow the solution of its record already.* give the number"):
        sid.set_substeps("auto", model)


def test_other_measurements_at_the_same_times_are_taken(model: Any) -> None:
    density = model.compile_logp(vars=model.observed_RVs)
    point, before = (
        {f"{n}_log__": np.log(k) for n, k in zip(NAMES, RATES, strict=True)},
        filter_view("y", model).observed.get_value(),
    )
    try:
        sid.set_data({"y": measured().replace(y=truth())}, model)
        exact = -0.5 * len(TIMES) * np.sum(np.log(2 * np.pi * NOISE**2))
        assert float(density(point)) == pytest.approx(exact, abs=0.1)
    finally:
        sid.set_data({"y": measured().replace(y=before)}, model)


# -- grids ------------------------------------------------------------------------------------------------------------


def test_refining_cuts_every_step() -> None:
    grid = StepGrid(np.array([1, 3]), np.array([1.0, 0.1, 0.4, 1.0]))
    np.testing.assert_array_equal(grid.begins, [0.0, 0.0, 0.1, 0.4])
    fine = grid.refined(2)
    np.testing.assert_array_equal(fine.counts, [2, 6])
    np.testing.assert_allclose(fine.ends, [0.5, 1.0, 0.05, 0.1, 0.25, 0.4, 0.7, 1.0])


def test_equal_steps_are_those_of_a_number() -> None:
    record = sid.TimeSeries(np.array([0.0, 0.5, 1.0, 1.5]))
    cut, same = substep_grid(record, 4), substep_grid(record, StepGrid.equal(np.array([4, 4, 4])))
    for a, b in zip(cut, same, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-16)


def test_a_pilot_is_as_fine_as_the_solution_that_changes_fastest() -> None:
    decay = sid.System(lambda t, x, u, p: -p.k * (x.z - 1.0), states=("z",), params=("k",), observe=lambda t, x, dx, u, p: x.z)
    record = sid.TimeSeries(np.arange(4.0))
    rates = ([1e3], [1.0], [1e3, 1.0])
    grids = [pilot_grid(decay, record, np.array(ks)[:, None], np.zeros((len(ks), 1))) for ks in rates]
    fast, slow, both = (g for g in grids if g is not None)
    assert fast.ends[0] < 1e-2 and both.ends[0] <= 1.01 * fast.ends[0]
    assert both.counts.sum() >= max(fast.counts.sum(), slow.counts.sum())
    assert np.all(np.diff(both.ends) != 0) and np.all(both.ends[np.cumsum(both.counts) - 1] == 1.0)


def test_a_grid_of_another_record_is_refused() -> None:
    with pytest.raises(ValueError, match="substeps hold 2 sampling intervals, and the record has 3"):
        substep_grid(sid.TimeSeries(np.arange(4.0)), StepGrid.equal(np.array([1, 2])))


# -- steps that are given ---------------------------------------------------------------------------------------------


def test_steps_given_for_each_interval_are_those_of_the_filter(model: Any) -> None:
    """Robertson's reactions on equal steps in each interval, of which the beginning has most."""
    counts = np.r_[60, np.full(27, 24)]
    with pm.Model() as other:
        rates = {n: pm.LogNormal(n, np.log(2 * k), 1.0) for n, k in zip(NAMES, RATES, strict=True)}
        noise = dict(zip("abc", NOISE, strict=True))
        sid.ODEFilter(
            "y", ROBERTSON, measured(), rates, noise=noise, x0=[1.0, 0.0, 0.0], solver=sid.EK1(order=3), substeps=counts
        )
    choice = filter_view("y", other).op.grid.choice
    assert choice.asked == "array" and choice.grids is not None and choice.grids[0].total == counts.sum()
    point = {f"{n}_log__": np.log(k) for n, k in zip(NAMES, RATES, strict=True)}
    assert other.compile_logp(vars=other.observed_RVs)(point) == pytest.approx(gaussian(RATES), abs=0.1)
    assert sid.substeps_attrs(other)["substeps_y_asked"] == "array"
    with pytest.raises(ValueError, match=r"those of its record .* given for each sampling interval"):
        sid.set_data({"y": measured()[:20]}, other)


@pytest.mark.parametrize("solver", [sid.EK0(order=2), sid.EK1(order=2, covariance="block")])
def test_the_same_number_for_each_interval_is_that_number_without_a_diffusion_for_each_step(solver: Any) -> None:
    decay = sid.System(lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: x.z)
    t = np.arange(6.0)
    record, values = sid.TimeSeries(t, None, np.exp(-0.7 * t)), []
    for substeps in (3, np.full(5, 3)):
        with pm.Model() as model:
            k = {"k": pm.LogNormal("k")}
            sid.ODEFilter("y", decay, record, k, noise=0.1, x0=1.0, solver=solver, substeps=substeps)
        values.append(model.compile_logp()({"k_log__": np.log(0.8)}))
    assert values[1] == pytest.approx(values[0], rel=1e-10)


@pytest.mark.parametrize("substeps", [4, "auto"])
def test_a_sawtooth_of_rates_gives_a_number_or_minus_infinity(substeps: Any) -> None:
    """Rates of an enzyme from 1e-3 to 1e6, with equal and with graded steps: nothing raises, nothing is NaN."""
    enzyme, start = sid.models.enzyme(), [1.0, 0.05, 0.0, 0.0]
    t = np.concatenate([[0.0], np.logspace(-3, 2, 11)])
    clean = sid.simulate(enzyme, sid.TimeSeries(t), {"kf": 1e3, "kr": 10.0, "kcat": 1.0}, x0=start)
    y = np.stack([clean[name].values for name in "sp"], axis=1) + 0.01 * np.random.default_rng(0).normal(size=(12, 2))
    system = sid.System(
        lambda t, x, u, p: (
            -p.kf * x.s * x.e + p.kr * x.c,
            -p.kf * x.s * x.e + (p.kr + p.kcat) * x.c,
            p.kf * x.s * x.e - (p.kr + p.kcat) * x.c,
            p.kcat * x.c,
        ),
        states=("s", "e", "c", "p"),
        params=("kf", "kr", "kcat"),
        observe=lambda t, x, dx, u, p: {"s": x.s, "p": x.p},
    )
    record = sid.TimeSeries(t, None, y, outputs=("s", "p"))
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        rates = {n: pm.LogNormal(n, np.log(v), 2.0) for n, v in {"kf": 1e3, "kr": 10.0, "kcat": 1.0}.items()}
        sid.ODEFilter("y", system, record, rates, noise=0.01, x0=start, solver=sid.EK1(order=2), substeps=substeps)
    rng = np.random.default_rng(1)
    saw = np.log(10) * np.concatenate([rng.uniform(-3, 6, (40, 3)), [[-3, -3, -3], [6, 6, 6], [6, -3, 6], [-3, 6, -3]]])
    values = sid.Target(model).log_likelihood(saw)
    assert not np.isnan(values).any() and (values < np.inf).all()
    if substeps == "auto":
        assert np.isfinite(values).mean() > 0.9


ENZYME, ENZYME_TIMES = sid.models.enzyme(), np.concatenate([[0.0], np.logspace(-5, 2, 29)])
ENZYME_START = [1.0, 0.05, 0.0, 0.0]


def test_no_step_of_a_filter_is_many_times_as_long_as_the_one_before() -> None:
    """The samples leave rests of the adaptive solver's steps; free runs keep them."""
    record, rng = sid.TimeSeries(ENZYME_TIMES), np.random.default_rng(0)
    worst = {}
    for rests in (True, False):
        ratios = []
        for _ in range(10):
            rates = np.array([[1e4, 10.0, 1.0]]) * np.exp(0.3 * rng.standard_normal(3))
            grid = pilot_grid(ENZYME, record, rates, np.array([ENZYME_START]), rests=rests)
            assert grid is not None
            length = (grid.ends - grid.begins) * np.repeat(record.dt, grid.counts)
            ratios.append(np.max(length[1:] / length[:-1]))
        worst[rests] = max(ratios)
    assert worst[True] > 30 and worst[False] < 12, worst


def test_there_are_as_many_steps_as_gradients_need() -> None:
    """Four steps for each of the adaptive solver do for values; on the front at which the substrate runs out, they ripple."""
    true = {"kf": 1e4, "kr": 10.0, "kcat": 1.0}
    run = sid.simulate(ENZYME, sid.TimeSeries(ENZYME_TIMES), true, x0=ENZYME_START)
    clean = np.column_stack([run[s].values for s in ENZYME.states])
    noise = 0.01 * clean.std(axis=0)
    record = sid.TimeSeries(ENZYME_TIMES, None, clean + noise * np.random.default_rng(0).standard_normal(clean.shape))
    with pm.Model() as model:
        rates = {name: pm.LogNormal(name, np.log(1.2 * value), 0.5) for name, value in true.items()}
        sid.ODEFilter("y", ENZYME, record, rates, noise=list(noise), x0=ENZYME_START, solver=sid.EK1(order=3))
    sid.settle_substeps(true, model=model)
    target, chosen = sid.Target(model), filter_view("y", model).op.grid.choice
    points = np.log(list(true.values())) + 0.003 * np.random.default_rng(1).standard_normal((6, 3))

    def at(substeps: int) -> tuple[np.ndarray, np.ndarray]:
        sid.set_substeps(substeps, model)
        _, _, value, gradient = target.value_and_gradient(points)
        return value, gradient

    (few, rippled), (enough, smooth), (many, exact) = (at(n) for n in (4, chosen.substeps, 32))
    assert chosen.follows and chosen.substeps > 4
    np.testing.assert_allclose([few, enough], [many, many], atol=0.01)  # by values alone four would do

    def off(gradient: np.ndarray) -> float:
        return float(np.max(np.linalg.norm(gradient - exact, axis=1) / np.linalg.norm(exact, axis=1)))

    assert off(rippled) > 0.01 and off(smooth) < 1e-3, (off(rippled), off(smooth))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_linear_decay_of_any_rate_has_its_exact_likelihood(order: int) -> None:
    """From beside the slow curve that it decays to, ten million times as fast as the samples follow each other."""
    t, error = np.linspace(0.0, 2.0, 21), 0.01 * np.random.default_rng(0).standard_normal(21)
    system = sid.System(
        lambda t, x, u, p: -p.rate * (x.z - pt.cos(t)) - pt.sin(t),
        states=("z",),
        params=("rate",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    y = np.cos(t) + np.exp(-1e8 * t) + error
    with pm.Model() as model:
        factor = pm.LogNormal("factor", 0.0, 0.01)
        record, solver = sid.TimeSeries(t, None, y), sid.EK1(order=order)
        sid.ODEFilter("y", system, record, {"rate": 1e8 * factor}, noise=0.01, x0=2.0, solver=solver)
    exact = -0.5 * np.sum((error / 0.01) ** 2 + np.log(2 * np.pi * 1e-4))
    found = sid.Target(model).log_likelihood(np.log([[1.0], [1.03]]))
    np.testing.assert_allclose(found, exact, atol=1e-6)
