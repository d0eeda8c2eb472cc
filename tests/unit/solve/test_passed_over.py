"""What happens between the times at which steps look is noticed, and a slow dependence on time is not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.inference.sample import _Run
from pm_sysid.likelihood.filter_steps import short_of_steps
from pm_sysid.solve import filter_substeps
from pm_sysid.solve import passed_over as module
from pm_sysid.solve.passed_over import Paths, dense_run, passed_over
from pm_sysid.steps.grid import StepGrid

switch = pm.math.switch
T = 0.1 * np.arange(100)


DRAWS = xr.Dataset({"k": (("chain", "draw"), 1.0 + 0.01 * np.linspace(-1.0, 1.0, 10).reshape(2, 5))})


def forced(force: Any, **names: Any) -> sid.System:
    """A decay under a force of time."""
    options: dict[str, Any] = {"states": ("z",), "params": ("k",), "observe": lambda t, x, dx, u, p: x.z} | names
    return sid.System(lambda t, x, u, p: (force(t, x, u, p) - p.k * x.z,), **options)


def pulse(t: Any, begin: float, length: float) -> Any:
    return switch(t > begin, switch(t < begin + length, 1.0, 0.0), 0.0)


def hammer(t: Any, x: Any, u: Any, p: Any) -> Any:
    """A blow of about half a millisecond, of unit impulse."""
    return pt.exp(-0.5 * ((t - 5.0371) / 5e-4) ** 2) / (5e-4 * np.sqrt(2 * np.pi))


#: A bolus of unit size between two samples.
INFUSION = forced(lambda t, x, u, p: 100.0 * pulse(t, 5.03, 0.01))


def level(t: np.ndarray, begin: float, length: float) -> np.ndarray:
    """Solution from one at a rate of one, with a pulse of unit integral."""
    during = (1 - np.exp(-(np.clip(t - begin, 0, length)))) / length
    return np.exp(-t) + np.where(t > begin, during * np.exp(-np.maximum(t - begin - length, 0.0)), 0.0)


def filtered(system: sid.System, record: sid.TimeSeries, **options: Any) -> pm.Model:
    with pm.Model() as model:
        sid.ODEFilter("y", system, record, {"k": pm.LogNormal("k", 0.0, 0.2)}, noise=0.02, x0=1.0, **options)
    return model


def measured(t: np.ndarray, y: np.ndarray) -> sid.TimeSeries:
    return sid.TimeSeries(t, None, y + 0.02 * np.random.default_rng(0).standard_normal(len(t)))


def missed(system: sid.System, finest: int = 4, t: np.ndarray = T) -> Any:
    return passed_over(system, sid.TimeSeries(t), np.ones((1, 1)), Paths(t, np.ones((1, len(t), 1))), finest)


@pytest.mark.parametrize(
    "force",
    [
        lambda t, x, u, p: 100.0 * pulse(t, 5.03, 0.01),
        hammer,
        lambda t, x, u, p: abs(pt.sin(2 * np.pi * 20 * t)),
        lambda t, x, u, p: pt.cos(2 * np.pi * 40 * t),
        lambda t, x, u, p: pt.sin(2 * np.pi * 40 * t),  # zero at the nodes, and on average
        lambda t, x, u, p: pulse(t, 5.03, 0.005) - pulse(t, 5.035, 0.005),
        lambda t, x, u, p: pt.sin(t) + 10.0 * pulse(t, 5.03, 0.01),
        lambda t, x, u, p: x.z * pulse(t, 5.03, 0.01),
    ],
    ids=["pulse", "hammer", "rectified", "carrier", "without mean", "doublet", "on a slow force", "times a state"],
)
def test_what_coarse_steps_cannot_see_is_found(force) -> None:
    found = missed(forced(force))
    assert found is not None and found.intervals[50]
    if found.intervals.sum() == 1:
        assert found.event.time == pytest.approx(5.035, abs=0.006)


SLOW = {
    "a constant": lambda t, x, u, p: 1.0 + 0.0 * x.z,
    "sine": lambda t, x, u, p: pt.sin(t),
    "twelve samples a period": lambda t, x, u, p: pt.sin(5 * t),
    "four samples a period": lambda t, x, u, p: pt.sin(15 * t),
    "ramp": lambda t, x, u, p: 0.1 * t,
    "parabola": lambda t, x, u, p: t**2,
    "decay": lambda t, x, u, p: pt.exp(-t / 3),
    "chirp": lambda t, x, u, p: pt.sin(0.5 * t * (1 + 0.3 * t)),
    "stiffness": lambda t, x, u, p: -0.3 * pt.cos(3 * t) * x.z,
    "onset": lambda t, x, u, p: pt.tanh((t - 5.0) / 0.5),
    "bell": lambda t, x, u, p: pt.exp(-0.5 * ((t - 5) / 0.5) ** 2),
    "season": lambda t, x, u, p: 1 + 0.3 * pt.cos(2 * np.pi * t / 365),
    "jump at a sample": lambda t, x, u, p: switch(t >= 5.0, 1.0, 0.0),
    "jump between samples": lambda t, x, u, p: switch(t > 5.037, 1.0, 0.0),
    "saturation": lambda t, x, u, p: pt.clip(t - 5, 0, 1),
    "rectified": lambda t, x, u, p: abs(pt.sin(2 * t)),
}


@pytest.mark.parametrize("name", SLOW)
def test_what_steps_see_is_left_to_doubling(name) -> None:
    """Doubling shows a jump, a corner, or a period of four samples."""
    uneven = np.sort(np.concatenate([T, np.random.default_rng(0).uniform(0, 9.9, 30)]))
    assert missed(forced(SLOW[name])) is None and missed(forced(SLOW[name]), t=uneven) is None


def test_finer_steps_see_it() -> None:
    assert missed(forced(hammer), 4) is not None and missed(forced(hammer), 256) is None
    assert missed(INFUSION, 4) is not None and missed(INFUSION, 64) is None


def test_runs_that_are_dense_where_equations_change_are_exact() -> None:
    run = dense_run(INFUSION, sid.TimeSeries(T), np.ones((1, 1)), np.ones((1, 1)), 2)[0, :, 0]
    assert run == pytest.approx(level(T, 5.03, 0.01), abs=2e-3)


def test_steps_are_cut_in_some_intervals_alone() -> None:
    grid = StepGrid(np.array([1, 2, 1]), np.array([1.0, 0.25, 1.0, 1.0])).refined_in(np.array([False, True, False]), 2)
    assert grid.counts.tolist() == [1, 4, 1] and grid.ends.tolist() == [1.0, 0.125, 0.25, 0.625, 1.0, 1.0]


@pytest.fixture(scope="module")
def blown() -> tuple[pm.Model, list[str]]:
    """A decay that a hammer hits between two samples, and what was said when its filter was built."""
    record = measured(T, level(T, 5.0371, 1e-6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = filtered(forced(hammer), record)
    return model, [str(w.message) for w in caught]


def test_a_filter_that_cannot_resolve_a_blow_says_when_it_is(blown) -> None:
    model, said = blown
    attrs = sid.substeps_attrs(model)
    assert attrs["substeps_y"] == 32 and attrs["substeps_y_error"] > 1
    assert len(said) == 1 and "Near t = 5.03" in said[0] and "as an input of the record" in said[0]
    with pytest.warns(sid.SubstepWarning, match=r"Near t = 5\.03"):
        assert not sid.settle_substeps({"k": 1.0}, model=model)["y"].settled


def test_the_doubt_reaches_the_verdicts(blown) -> None:
    model, _ = blown
    run = _Run(model, 100, 100, 2, 1, 0, False)
    assert not run._more_steps({"k": 1.0}, "at the mode") and "Near t = 5.03" in run.steps_trouble
    assert "Near t = 5.03" in short_of_steps(DRAWS, model)[0]


def test_a_check_afterwards_doubts_steps_that_pass_over_a_blow(blown) -> None:
    model, _ = blown
    sid.set_substeps(1, model=model)
    check = sid.check_substeps(DRAWS, model=model)
    assert check.level == "bad" and "pass over" in check.verdict and "Near t = 5.03" in check.verdict
    sid.set_substeps(256, model=model)
    assert not sid.check_substeps(DRAWS, model=model).event


def test_a_number_of_steps_that_was_asked_for_is_doubted_as_well() -> None:
    with pytest.warns(sid.SubstepWarning, match=r"dense where the equations change .* Near t = 5\.0"):
        filtered(INFUSION, measured(T, level(T, 5.03, 0.01)), substeps=1)


def test_a_filter_takes_the_steps_that_resolve_a_blow() -> None:
    blow = forced(lambda t, x, u, p: 50 * pt.exp(-0.5 * ((t - 5.013) / 0.006) ** 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", sid.SubstepWarning)
        run = sid.simulate(blow, sid.TimeSeries(T), {"k": 1.0}, x0=1.0)["y"].to_numpy()
        model = filtered(blow, measured(T, run))
    exact = sid.simulate(blow, sid.TimeSeries(T), {"k": 1.0}, x0=1.0, substeps=500)["y"].to_numpy()
    assert run == pytest.approx(exact, abs=1e-4)
    assert sid.substeps_attrs(model)["substeps_y"] in (8, 16, 32)


def test_a_slow_dependence_on_time_changes_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", sid.SubstepWarning)
        slow = forced(SLOW["sine"])
        run = sid.simulate(slow, sid.TimeSeries(T), {"k": 1.0}, x0=1.0)
        model = filtered(slow, measured(T, run["y"].to_numpy()))
    assert sid.substeps_attrs(model)["substeps_y"] == 1


def test_a_ripple_that_noise_hides_is_no_matter(monkeypatch) -> None:
    ripple = forced(lambda t, x, u, p: pt.sin(t) + 1e-3 * pt.sin(2 * np.pi * 40 * t))
    record, chosen = measured(T, np.exp(-T)), list[int]()
    assert missed(ripple) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", sid.SubstepWarning)
        for _ in range(2):
            chosen.append(sid.substeps_attrs(filtered(ripple, record))["substeps_y"])
            monkeypatch.setattr(module, "passed_over", lambda *args: None)
    assert chosen[0] == chosen[1]


def test_free_runs_say_it_too() -> None:
    with pytest.warns(sid.SubstepWarning, match=r"Near t = 5\.03"):
        sid.simulate(forced(hammer), sid.TimeSeries(T), {"k": 1.0}, x0=1.0)


def test_simulators_say_it_too() -> None:
    with pm.Model(), pytest.warns(sid.SubstepWarning, match=r"Near t = 5\.03"):
        sid.ODESimulator("y", forced(hammer), sid.TimeSeries(T, None, np.exp(-T)), {"k": pm.LogNormal("k")}, x0=1.0)


def test_records_with_parameters_of_their_own_are_looked_at_one_by_one() -> None:
    records = [measured(T[:40], np.exp(-T[:40])), measured(T, level(T, 5.0371, 1e-6))]
    with pm.Model(), pytest.warns(sid.SubstepWarning, match=r"Near t = 5\.03"):
        k = pm.LogNormal("k", 0.0, 0.2, shape=2)
        sid.ODEFilter("y", forced(hammer), records, {"k": k}, noise=0.02, x0=1.0)


def test_a_latent_force_beside_a_blow() -> None:
    system = forced(lambda t, x, u, p: hammer(t, x, u, p) + u.d, inputs=("d",))
    with pytest.warns(sid.SubstepWarning, match=r"Near t = 5\.03"):
        filtered(system, measured(T, level(T, 5.0371, 1e-6)), latent={"d": sid.OU(scale=0.01, length=2.0)}, substeps=1)


def test_the_remedy_for_a_pulse_is_a_held_input_that_changes_at_rows_without_outputs() -> None:
    edges = np.array([5.03, 5.04])
    record = measured(T, level(T, 5.03, 0.01))
    t = np.sort(np.concatenate([T, edges]))
    y = np.full(len(t), np.nan)
    y[np.isin(t, T)] = record.y
    held = sid.TimeSeries(t, np.where((t >= edges[0]) & (t < edges[1]), 100.0, 0.0), y, intersample="zoh")
    system = forced(lambda t, x, u, p: u.D, inputs=("D",))
    with warnings.catch_warnings():
        warnings.simplefilter("error", sid.SubstepWarning)
        run = sid.simulate(system, held, {"k": 1.0}, x0=1.0)["y"].to_numpy()
        model = filtered(system, held)
    assert run == pytest.approx(level(t, 5.03, 0.01), abs=1e-4)
    found = model.compile_logp(vars=model.observed_RVs)({"k_log__": 0.0})
    residuals = (record.y - level(T, 5.03, 0.01)) / 0.02
    assert sid.substeps_attrs(model)["substeps_y"] <= 2
    assert found == pytest.approx(-0.5 * np.sum(residuals**2) - len(T) * np.log(0.02 * np.sqrt(2 * np.pi)), abs=0.1)


def test_the_remedy_for_a_smooth_blow_is_many_equal_steps() -> None:
    record, exact = measured(T, level(T, 5.0371, 1e-6)), level(T, 5.0371, 1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sid.SubstepWarning)
        run = sid.simulate(forced(hammer), record, {"k": 1.0}, x0=1.0, substeps=256)["y"].to_numpy()
        model = filtered(forced(hammer), record, substeps=256)
    assert run == pytest.approx(exact, abs=1e-4)
    found = model.compile_logp(vars=model.observed_RVs)({"k_log__": 0.0})
    residuals = (record.y - exact) / 0.02
    assert found == pytest.approx(-0.5 * np.sum(residuals**2) - len(T) * np.log(0.02 * np.sqrt(2 * np.pi)), abs=0.1)


#: A mass that reaches a stiff contact when the force grows.
CONTACT = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.k * x.z - 0.3 * x.v - 400 * switch(x.z > 0.5, x.z - 0.5, 0.0)),
    states=("z", "v"),
    inputs=("F",),
    params=("k",),
    observe=lambda t, x, dx, u, p: x.z,
)


def touching(late: bool) -> sid.TimeSeries:
    """The force grows near the end of the record, or never."""
    t = 0.05 * np.arange(700)
    force = np.where(late & (t > 27.0), 8.0, 0.1) * np.sin(1.1 * t)
    record = sid.TimeSeries(t, force, None, intersample="foh")
    z = sid.simulate(CONTACT, record, {"k": 2.0}, x0=0.0, substeps=64)["y"].to_numpy()
    return record.replace(y=z + 0.02 * np.random.default_rng(0).standard_normal(len(t)))


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_a_number_of_steps_is_looked_at_on_the_whole_record(monkeypatch) -> None:
    monkeypatch.setattr(filter_substeps, "MOST_SAMPLES", 400)
    found = {late: sid.substeps_attrs(filtered_contact(touching(late), "auto")) for late in (False, True)}
    assert found[False]["substeps_y"] == 1 and found[False]["substeps_y_error"] < 0.1
    assert found[True]["substeps_y"] >= 8


def test_a_number_that_was_asked_for_is_looked_at_on_the_whole_record(monkeypatch) -> None:
    monkeypatch.setattr(filter_substeps, "MOST_SAMPLES", 400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        record = touching(True)
    with pytest.warns(sid.SubstepWarning, match="substeps=1: .* when the substeps are doubled"):
        filtered_contact(record, 1)


def test_solutions_that_end_after_the_first_samples_are_no_agreement(monkeypatch) -> None:
    monkeypatch.setattr(filter_substeps, "MOST_SAMPLES", 40)
    growth = sid.System(
        lambda t, x, u, p: p.k * x.z**2, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: pt.log(x.z)
    )
    record = sid.TimeSeries(0.01 * np.arange(200), None, np.zeros(200))
    with pytest.warns(sid.SubstepWarning, match="first 40 samples, but .* no solution goes on to the end"):
        model = filtered(growth, record)
    assert np.isnan(sid.substeps_attrs(model)["substeps_y_error"])


def filtered_contact(record: sid.TimeSeries, substeps: Any) -> pm.Model:
    with pm.Model() as model:
        sid.ODEFilter("y", CONTACT, record, {"k": pm.LogNormal("k", np.log(2), 0.2)}, noise=0.02, x0=0.0, substeps=substeps)
    return model
