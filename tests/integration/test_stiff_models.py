"""Filters of stiff models under rough priors: steps that follow the solution are taken, if need be with a warning; no crash."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view

ENZYME = {"kf": 10_000.0, "kr": 10.0, "kcat": 1.0}
BATTERY = {"Q": 2.5, "R0": 0.02, "R1": 0.01, "C1": 200.0, "R2": 0.015, "C2": 4e4}


def measured(
    system: sid.System, record: sid.TimeSeries, true: dict[str, float], x0: Any, rng: np.random.Generator, share: float = 0.01
) -> Any:
    """A record with one percent of noise, or another share, and the noise."""
    run = sid.simulate(system, record, true, x0=x0)
    clean = np.column_stack([run[name].values for name in system.outputs])
    noise = share * clean.std(axis=0)
    return record.replace(y=clean + noise * rng.standard_normal(clean.shape)), list(noise) if len(noise) > 1 else noise[0]


def rough(true: dict[str, float], off: Any) -> dict[str, Any]:
    """Log-normal priors whose middles are a factor off."""
    return {n: pm.LogNormal(n, np.log(v) + d, 1.0) for (n, v), d in zip(true.items(), off, strict=True)}


def enzyme(substeps: Any, order: int = 3, share: float = 0.01) -> pm.Model:
    """Rates between 1e-5 and 100 s; the fast one is a factor of six too large in the middle of the prior."""
    system, times = sid.models.enzyme(), np.concatenate([[0.0], np.logspace(-5, 2, 29)])
    x0 = [1.0, 0.05, 0.0, 0.0]
    rng = np.random.default_rng(5)
    record, noise = measured(system, sid.TimeSeries(times), ENZYME, x0, rng, share)
    with pm.Model() as model:
        params = rough(ENZYME, rng.standard_normal(3))
        sid.ODEFilter("y", system, record, params, noise=noise, x0=x0, solver=sid.EK1(order=order), substeps=substeps)
    return model


@pytest.mark.slow
def test_searches_that_lead_nowhere_are_an_error_with_the_remedy() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        model = enzyme(4)  # far too few for times over seven decades: finite at a few draws, and no gradient there
    with pytest.raises(ValueError, match="substeps"):
        sid.find_mode(model, prior_draws=400, starts=4, progressbar=False, random_seed=5)


@pytest.mark.slow
def test_steps_that_follow_the_solution_are_taken_where_they_are_not_quite_enough_and_that_is_said() -> None:
    with pytest.warns(sid.SubstepWarning, match=r"follow the solution.*settle_substeps"):
        model = enzyme("auto", order=2, share=0.005)  # a low order and little noise
    choice = filter_view("y", model).op.grid.choice
    assert choice.follows and not choice.settled and 0.1 < choice.error < 1.0


def test_a_circuit_with_jumps_that_needs_many_equal_steps_takes_steps_that_follow_the_solution() -> None:
    soc = np.array([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
    system = sid.models.battery(soc, np.array([2.9, 3.25, 3.4, 3.55, 3.68, 3.85, 4.02, 4.2]))
    pulses = np.where((np.arange(120) // 10) % 2 == 0, 2.5, np.where((np.arange(120) // 20) % 3 == 0, 0.0, -1.0))
    empty = sid.TimeSeries(np.arange(0.0, 7200.0, 60.0), pulses, intersample="zoh")
    x0 = [0.9, 0.0, 0.0]
    record, noise = measured(system, empty, BATTERY, x0, np.random.default_rng(0))
    with pm.Model() as model:
        params = rough(BATTERY, [0.0, 0.0, 0.0, -0.7, 0.0, 0.0])
        sid.ODEFilter("y", system, record, params, noise=float(noise), x0=x0, solver=sid.EK1(order=3))
    choice = filter_view("y", model).op.grid.choice
    assert choice.follows and choice.settled
    # Fast decays after each jump: where a constant diffusion is wrong by hundreds with 32 equal steps, these are right.
    target, values = sid.Target(model), np.log(np.array(list(BATTERY.values())))
    fast = values - np.array([0, 0, 0, 2.5, 0, 0])
    found = target.log_likelihood(np.array([values, fast]))
    exact = []
    for x in (values, fast):
        run = sid.simulate(system, record, dict(zip(BATTERY, np.exp(x), strict=True)), x0=x0, method="implicit", substeps=64)
        error = (record.output_matrix[:, 0] - run["V"].values) / noise
        exact.append(-0.5 * np.sum(error**2 + np.log(2 * np.pi * noise**2)))
    np.testing.assert_allclose(found, exact, atol=0.1)


def test_a_network_of_eight_species_has_a_filter() -> None:
    """HIRES: 24 components by loops, with steps that follow the solution, against free runs by implicit steps."""
    system, start = sid.models.hires(), [1.0, 0, 0, 0, 0, 0, 0, 0.0057]
    rates = dict(zip(system.params, (1.71, 0.43, 8.32, 0.69, 0.035, 8.32, 280.0, 0.69, 0.69, 0.0007), strict=True))
    record, unknown = sid.TimeSeries(np.linspace(0.0, 10.0, 11)), ("k1", "k_plus")

    def solution(factors: np.ndarray) -> np.ndarray:
        values = rates | {name: rates[name] * f for name, f in zip(unknown, factors, strict=True)}
        run = sid.simulate(system, record, values, x0=start)
        return np.stack([run[name].values for name in system.outputs], axis=1)

    clean = solution(np.ones(2))
    noise = 0.01 * clean.std(axis=0)
    y = clean + noise * np.random.default_rng(0).standard_normal(clean.shape)

    def gaussian(at: np.ndarray) -> float:
        return float(-0.5 * np.sum(((y - solution(np.exp(at))) / noise) ** 2 + np.log(2 * np.pi * noise**2)))

    with pm.Model() as model:
        free = {name: pm.LogNormal(name, np.log(rates[name]), 0.1) for name in unknown}
        sid.ODEFilter("y", system, record.replace(y=y), rates | free, noise=list(noise), x0=start, solver=sid.EK1(order=2))
    grid = filter_view("y", model).op.grid
    assert grid.choice.grids is not None and filter_view("y", model).op.problem.form.rolled
    density = model.logp(vars=model.observed_RVs)
    values = [model.rvs_to_values[model[name]] for name in unknown]
    both = model.compile_fn([density, *pytensor.grad(density, values)], inputs=model.value_vars)
    at = np.array([0.01, -0.02])
    found = both({f"{name}_log__": np.log(rates[name]) + shift for name, shift in zip(unknown, at, strict=True)})
    assert found[0] == pytest.approx(gaussian(at), abs=0.1)
    expected = [(gaussian(at + e) - gaussian(at - e)) / 2e-3 for e in 1e-3 * np.eye(2)]
    assert np.linalg.norm(np.subtract(found[1:], expected)) < 1e-3 * np.linalg.norm(expected)


def test_a_filter_too_large_to_follow_a_stiff_solution_says_which_order_would() -> None:
    system, start = sid.models.hires(), [1.0, 0, 0, 0, 0, 0, 0, 0.0057]
    record = sid.TimeSeries(np.linspace(0.0, 300.0, 4), None, np.full((4, 8), 0.1))
    rates = dict(zip(system.params, (1.71, 0.43, 8.32, 0.69, 0.035, 8.32, 280.0, 0.69, 0.69, 0.0007), strict=True))
    with pm.Model(), pytest.warns(sid.SubstepWarning, match=r"take covariance='dense' and an order of at most 4"):
        sid.ODEFilter("y", system, record, rates, noise=0.01, x0=start, solver=sid.EK1(order=5))
