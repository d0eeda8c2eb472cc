"""Free runs on steps of different lengths: chosen along a stiff solution, or given for each sampling interval."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from pm_sysid.solve.simulate import steps_of
from pm_sysid.solve.substeps import counted
from pm_sysid.steps.grid import MOST_STEPS, StepGrid

ROBERTSON, RATES = sid.models.robertson(), {"k1": 0.04, "k2": 3e7, "k3": 1e4}
TIMES, START = np.concatenate([[0.0], np.logspace(-6, 10, 17)]), [1.0, 0.0, 0.0]
DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
)
FOUR = sid.TimeSeries(np.array([0.0, 0.5, 1.0, 1.5]))


def accurate(k1: float, k2: float, k3: float) -> np.ndarray:
    """States (T, 3) of Robertson's reactions."""

    def f(t: float, x: np.ndarray) -> list[float]:
        back, used = k3 * x[1] * x[2], k2 * x[1] ** 2
        return [back - k1 * x[0], k1 * x[0] - back - used, used]

    run: np.ndarray = solve_ivp(f, TIMES[[0, -1]], START, "LSODA", TIMES, rtol=1e-11, atol=1e-18).y.T
    return run


def states(run: Any) -> np.ndarray:
    return np.stack([run[name].values for name in "abc"], axis=-1)


def test_steps_follow_a_solution_over_sixteen_decades(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pm_sysid"):
        run = sid.simulate(ROBERTSON, sid.TimeSeries(TIMES), RATES, x0=START)
    assert run.attrs["integrator"] == "Rodas5P" and run.attrs["substeps"].shape == (17,)
    assert "simulate: the steps follow the solution" in caplog.text
    assert run.attrs["substeps"].sum() < 500
    expected = accurate(**RATES)
    np.testing.assert_allclose(states(run) / expected.max(axis=0), expected / expected.max(axis=0), atol=1e-6, rtol=0)
    grid = steps_of(run).substeps
    assert isinstance(grid, StepGrid) and grid.total == run.attrs["substeps"].sum()


def test_the_log_says_once_for_a_system_and_record_how_many_steps_were_chosen(caplog: pytest.LogCaptureFixture) -> None:
    def decay() -> sid.System:
        names = {"states": ("level",), "params": ("rate",)}
        return sid.System(lambda t, x, u, p: -p.rate * x.level, observe=lambda t, x, dx, u, p: x.level, **names)

    one, other = decay(), decay()
    said = "substeps='auto' chose"
    with caplog.at_level(logging.INFO, "pm_sysid"):
        for _ in range(3):
            sid.simulate(one, FOUR, {"rate": 0.1}, x0=1.0)
        assert caplog.text.count(said) == 1
        sid.simulate(one, sid.TimeSeries(FOUR.t), {"rate": 0.1}, x0=1.0)  # another object with the same times
        assert caplog.text.count(said) == 1
        sid.simulate(one, sid.TimeSeries(2 * FOUR.t), {"rate": 0.1}, x0=1.0)
        assert caplog.text.count(said) == 2
        sid.simulate(one, FOUR, {"rate": 3.0}, x0=1.0)  # another number
        assert caplog.text.count(said) == 3
        sid.simulate(other, FOUR, {"rate": 0.1}, x0=1.0)
        assert caplog.text.count(said) == 4


def test_steps_do_for_parameter_sets_that_they_were_not_chosen_at() -> None:
    """The first, middle and last set are slow; one between them is a thousand times faster."""
    k1 = np.full(9, 0.04)
    k1[2] = 40.0
    sets = {"k1": k1, "k2": np.full(9, 3e7), "k3": np.full(9, 1e4)}
    run = sid.simulate(ROBERTSON, sid.TimeSeries(TIMES), sets, x0=START)
    expected = accurate(40.0, 3e7, 1e4)
    np.testing.assert_allclose(states(run)[2] / expected.max(axis=0), expected / expected.max(axis=0), atol=2e-5, rtol=0)


def test_gradient_through_steps_that_follow_the_solution() -> None:
    """Of the sum of the squared concentrations of A, against differences of accurate solutions."""
    with pm.Model() as model:
        k1 = pm.LogNormal("k1", np.log(0.04), 0.1)
        out = sid.simulate(ROBERTSON, sid.TimeSeries(TIMES), {**RATES, "k1": k1}, x0=START)
        (out, value) = model.replace_rvs_by_values([out])[0], model.rvs_to_values[k1]
    slope = pytensor.function([value], pytensor.grad(pt.sum(out[:, 0] ** 2), value), mode="NUMBA")
    at, e = np.log(0.04), 1e-3
    ahead, behind = (np.sum(accurate(np.exp(at + s), 3e7, 1e4)[:, 0] ** 2) for s in (e, -e))
    assert float(slope(at)) == pytest.approx((ahead - behind) / (2 * e), rel=1e-4)


@pytest.mark.parametrize("method", ["rk4", "implicit"])
def test_a_number_for_each_interval(method: Any) -> None:
    """Equal numbers are one number; more steps where it matters are more accurate than the same number everywhere."""
    at = dict(params={"rate": 2.0}, x0=1.0, method=method)
    same = [sid.simulate(DECAY, FOUR, substeps=n, **at)["y"].values for n in (4, [4, 4, 4], np.array([4, 4, 4]))]
    np.testing.assert_allclose(same[1], same[0], rtol=1e-14)
    np.testing.assert_array_equal(same[2], same[1])
    run = sid.simulate(DECAY, FOUR, substeps=[40, 30, 40], **at)
    np.testing.assert_array_equal(run.attrs["substeps"], [40, 30, 40])
    np.testing.assert_allclose(run["y"], np.exp(-2.0 * FOUR.t), rtol=1e-7)


def test_coarse_steps_that_were_given_are_called_coarse() -> None:
    with pytest.warns(sid.SubstepWarning, match="the steps of each sampling interval: the outputs move by"):
        sid.simulate(DECAY, FOUR, {"rate": 4.0}, x0=1.0, substeps=[1, 1, 1], method="rk4")


def test_given_steps_that_are_unstable_become_implicit() -> None:
    run = sid.simulate(DECAY, FOUR, {"rate": 1e4}, x0=1.0, substeps=[8, 4, 4])
    assert run.attrs["integrator"] == "Rodas5P" and abs(run["y"][-1]) < 1e-6


WRONG = [
    ([1, 2], ValueError, r"substeps has the shape \(2,\); give a positive integer for each of the 3 sampling intervals"),
    ([[1, 2, 3], [1, 2, 3]], ValueError, r"substeps has the shape \(2, 3\)"),
    ([1, 0, 2], ValueError, "substeps holds numbers from 0 to 2"),
    ([1, 10**7, 2], ValueError, "at most 1000000"),
    ([1.0, 2.0, 2.0], TypeError, "substeps holds float64 values"),
    ([True, True, True], TypeError, "substeps holds bool values"),
    ([[1], [1, 2], 3], ValueError, "substeps is .*; give a positive integer for each"),
]


@pytest.mark.parametrize("substeps, error, message", WRONG)
def test_arrays_that_do_not_fit_are_refused(substeps: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sid.simulate(DECAY, FOUR, {"rate": 1.0}, x0=1.0, substeps=substeps)
    y = FOUR.replace(y=np.exp(-FOUR.t))
    with pm.Model():
        with pytest.raises(error, match=message):
            sid.ODEFilter("y", DECAY, y, {"rate": 1.0}, noise=0.1, x0=1.0, substeps=substeps)
        with pytest.raises(error, match=message):
            sid.ODESimulator("y", DECAY, y, {"rate": 1.0}, x0=1.0, substeps=substeps)


def test_several_records_take_a_list_of_arrays() -> None:
    y = [r.replace(y=np.exp(-r.t)) for r in (FOUR, FOUR[:2])]
    with pm.Model() as model:
        rate = {"rate": pm.LogNormal("rate")}
        with pytest.raises(ValueError, match="for 2 records; give one number for all, or a list with an array for each"):
            sid.ODESimulator("bad", DECAY, y, rate, x0=[[1.0], [1.0]], substeps=[1, 2, 3])
        with pytest.raises(ValueError, match=r"substeps\[1\] has the shape \(2,\)"):
            sid.ODESimulator("bad", DECAY, y, rate, x0=[[1.0], [1.0]], substeps=[[8, 8, 8], [8, 8]])
        sid.ODESimulator("y", DECAY, y, rate, x0=[[1.0], [1.0]], substeps=[[8, 9, 8], [8]], method="rk4")
    (simulation,) = [rv.owner.op.fn for rv in model.observed_RVs]
    np.testing.assert_array_equal(simulation.inputs[0].counts, [0, 8, 9, 8])


def test_a_long_gap_is_no_matter_of_memory() -> None:
    gap = sid.TimeSeries(np.array([0.0, 1.0, 2.0, 3.0, 1e10]))
    with pytest.raises(ValueError, match=r"substeps is 3 .* 3e\+10 steps of equal length in all.* give an array with a number"):
        sid.simulate(DECAY, gap, {"rate": 1.0}, x0=1.0, substeps=3)
    assert MOST_STEPS < 1e10
    run = sid.simulate(DECAY, gap, {"rate": 1.0}, x0=1.0)
    np.testing.assert_allclose(run["y"], np.exp(-gap.t), atol=1e-6)


def test_prior_runs_of_a_simulator_follow_the_solutions(caplog: pytest.LogCaptureFixture) -> None:
    truth = accurate(**RATES)
    record = sid.TimeSeries(TIMES, None, truth, outputs=("a", "b", "c"))
    with caplog.at_level(logging.INFO, "pm_sysid"), pm.Model() as model:
        rates = {name: pm.LogNormal(name, np.log(value), 0.5) for name, value in RATES.items()}
        sid.ODESimulator("y", ROBERTSON, record, rates, x0=START)
    assert "the steps follow the solutions at prior draws" in caplog.text
    (simulation,) = [rv.owner.op.fn for rv in model.observed_RVs]
    assert simulation.method == "implicit" and simulation.inputs[0].counts.sum() < 5000
    runs = simulation.draw(np.random.default_rng(0), np.array([list(RATES.values())]), np.array([[START]]), np.zeros((1, 3)))
    np.testing.assert_allclose(runs[0] / truth.max(axis=0), truth / truth.max(axis=0), atol=1e-3)


def test_numbers_and_nouns() -> None:
    assert counted(1, "implicit steps") == "1 implicit step" and counted(2, "implicit steps") == "2 implicit steps"
