"""What linearising about an uncertain initial state costs, as measured and as said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logsumexp

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.posterior.initial_state_check import linearises_initial_state, prior_evidence
from support import tiny

PENDULUM = sid.System(
    lambda t, x, u, p: (x.omega, -p.g * pt.sin(x.theta)),
    states=("theta", "omega"),
    params=("g",),
    observe=lambda t, x, dx, u, p: x.theta,
)
LINEAR = sid.System(
    lambda t, x, u, p: (x.omega, -p.g * x.theta),
    states=("theta", "omega"),
    params=("g",),
    observe=lambda t, x, dx, u, p: x.theta,
)
T = np.arange(60) / 15.0
MEAN, STD = np.array([0.0, 0.0]), np.array([2.0, 3.0])
SOLVER: dict[str, Any] = {"solver": sid.EK1(order=3, diffusion=1.0), "substeps": 4}


def record(system: sid.System, start: float) -> sid.TimeSeries:
    y = sid.simulate(system, sid.TimeSeries(T), {"g": 9.81}, x0={"theta": start, "omega": 0.5}, substeps=8)["y"].values
    return sid.TimeSeries(T, None, y + 0.05 * np.random.default_rng(1).standard_normal(T.size))


def marginal(system: sid.System, records: Any) -> pm.Model:
    with pm.Model() as model:
        params = {"g": pm.Normal("g", 9.81, 0.2)}
        starts = {"x0": dict(zip(system.states, MEAN, strict=True)), "x0_std": dict(zip(system.states, STD, strict=True))}
        sid.ODEFilter("y", system, records, params, noise=0.05, **starts, **SOLVER)
    return model


def draws(*g: float) -> xr.Dataset:
    return xr.Dataset({"g": (("chain", "draw"), np.array([g]))})


def exact(system: sid.System, measured: sid.TimeSeries, start: float, values: tuple[float, ...]) -> np.ndarray:
    """Log-likelihoods with the initial state integrated out on a grid around where the record was released."""
    with pm.Model() as model:
        params = {"g": pm.Normal("g")}
        xi = pm.Normal("xi", shape=2)
        sid.ODEFilter("y", system, measured, params, noise=0.05, x0=MEAN + STD * xi, **SOLVER)
    axes = [np.linspace(c - 0.2, c + 0.2, 301) for c in (np.array([start, 0.5]) - MEAN) / STD]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    target, found = sid.Target(model), []
    for g in values:
        points = np.column_stack([np.full(grid[..., 0].size, g), grid.reshape(-1, 2)])
        total = target.log_likelihood(points, target.n_samples).reshape(grid.shape[:2]) + stats.norm.logpdf(grid).sum(axis=2)
        edge = max(total[0].max(), total[-1].max(), total[:, 0].max(), total[:, -1].max())
        assert edge < total.max() - 20
        found.append(logsumexp(total) + np.sum(np.log([axis[1] - axis[0] for axis in axes])))
    return np.array(found)


def linearised(model: pm.Model, g: float) -> float:
    return float(model.compile_fn(model.logp(vars=[model["y"]]), inputs=[model.rvs_to_values[model["g"]]])({"g": g}))


@pytest.mark.slow
def test_the_change_is_that_of_quadrature() -> None:
    """A pendulum released far from where its prior is: the linearised likelihood is off by more than one."""
    measured, values = record(PENDULUM, 2.5), (9.41, 9.81, 10.21)
    model = marginal(PENDULUM, measured)
    found = sid.check_initial_state(draws(*values), model=model)
    truth = exact(PENDULUM, measured, 2.5, values) - [linearised(model, g) for g in values]
    assert np.ptp(truth) > 1.0
    np.testing.assert_allclose(found.change, truth, atol=0.15)
    assert found.believed == 1.0
    # The third draw gains more than the others: weighted, the mean of g moves.
    weights = np.exp(truth - logsumexp(truth))
    expected = (weights @ np.array(values) - np.mean(values)) / np.std(values)
    assert found.shift["g"] == pytest.approx(expected, abs=0.2)
    assert found.level != "good" and "Make the initial state a PyMC variable" in str(found)


def test_records_are_integrated_one_by_one() -> None:
    one, two = record(PENDULUM, 1.2), record(PENDULUM, 2.4)
    parts = [sid.check_initial_state(draws(9.81, 10.0), model=marginal(PENDULUM, r)).change for r in (one, two)]
    both = sid.check_initial_state(draws(9.81, 10.0), model=marginal(PENDULUM, [one, two])).change
    np.testing.assert_allclose(both, parts[0] + parts[1], atol=0.1)


def test_a_linear_system_is_marginalised_exactly() -> None:
    model = marginal(LINEAR, record(LINEAR, 2.4))
    found = sid.check_initial_state(draws(*np.linspace(9.6, 10.0, 20)), model=model)
    np.testing.assert_allclose(found.change, 0.0, atol=0.05)
    assert found.level == "good" and "the linearisation does not matter here" in found.verdict
    assert abs(found.evidence) < 0.05


def test_an_integral_that_does_not_come_about_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from pm_sysid.posterior import initial_state_check as module

    monkeypatch.setattr(module, "POOR", 1.1)
    found = sid.check_initial_state(draws(9.7, 9.9), model=marginal(PENDULUM, record(PENDULUM, 2.4)))
    assert found.level == "bad" and found.verdict.startswith("For 100% of the draws the initial state could not be")


def test_what_linearises() -> None:
    for system, expected in ((PENDULUM, True), (LINEAR, False)):
        assert linearises_initial_state(filter_view(None, marginal(system, record(system, 0.3)))) is expected
    assert not linearises_initial_state(filter_view(None, tiny.model()))


def watched(**sensor: Any) -> pm.Model:
    """A decay from an uncertain start, seen by a sensor that is no plain one."""
    system = sid.System(lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: x.z)
    t = np.arange(30) * 0.1
    y = 4 * np.exp(-t) + 0.1 * np.random.default_rng(0).standard_normal(30)
    if "limits" in sensor:
        y = np.minimum(y, 1.0)
    with pm.Model() as model:
        k = {"k": pm.LogNormal("k", 0.0, 1.0)}
        sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), k, **{"noise": 0.1, **sensor}, x0=0.0, x0_std=3.0, substeps=4)
    return model


def of_k(*k: float) -> xr.Dataset:
    return xr.Dataset({"k": (("chain", "draw"), np.array([k]))})


SENSORS = {
    "limit": {"limits": (None, 1.0)},
    "outliers": {"noise": sid.StudentT(scale=0.1, nu=3.0)},
    "noise by output": {"noise": lambda y: 0.05 + 0.05 * pt.abs(y)},
}


@pytest.mark.slow
@pytest.mark.parametrize("sensor", SENSORS)
def test_what_a_sensor_makes_of_an_uncertain_start_is_checked_in_linear_systems_too(sensor: str) -> None:
    """Against quadrature over the start: the filter takes what it has seen for Gaussian after each sample."""
    model, k = watched(**SENSORS[sensor]), np.array([0.95, 1.0, 1.05])
    assert linearises_initial_state(filter_view(None, model))
    found = sid.check_initial_state(of_k(*k), model=model)
    starts = np.linspace(0.5, 12.0, 4001)
    view = filter_view(None, model)
    exact = []
    with pm.Model() as known:
        free = {"k": pm.LogNormal("k", 0.0, 1.0)}
        start = {"z": pm.Normal("z", 0.0, 3.0)}
        options = {"noise": 0.1, **SENSORS[sensor]}
        sid.ODEFilter("y", view.system, view.records()[0], free, **options, x0=start, substeps=4)
    target = sid.Target(known)
    for value in k:
        rows = target.unconstrained({"k": np.full(len(starts), value), "z": starts})
        total = target.log_likelihood(rows) + stats.norm.logpdf(starts, 0.0, 3.0)
        assert max(total[0], total[-1]) < total.max() - 8
        exact.append(logsumexp(total) + np.log(starts[1] - starts[0]))
    assert found.believed == 1.0
    logp = model.compile_fn(model.logp(vars=[model["y"]]), inputs=[model.rvs_to_values[model["k"]]])
    moments = np.array([float(logp({"k_log__": np.log(value)})) for value in k])
    np.testing.assert_allclose(found.change, exact - moments, atol=0.05)
    assert np.max(np.abs(found.change)) > 0.1


@pytest.mark.slow
def test_sample_says_what_a_limit_makes_of_an_uncertain_start() -> None:
    model = watched(limits=(None, 1.0))
    with pytest.warns(UserWarning, match="cannot be trusted"):
        idata = sid.sample(model, draws=1000, chains=2, cores=1, random_seed=1, progressbar=False)
    assert not idata.attrs["trusted"] and "integrated out exactly" in idata.attrs["verdict"]
    found = sid.log_evidence(idata)
    assert found.error > 0.1 and "integrated out exactly" in found.doubt  # 8.05 in place of 7.72


@pytest.mark.slow
def test_draws_of_the_prior_give_an_evidence_of_their_own() -> None:
    """A decay under loud noise, which many draws explain; the likelihood of the filter is exact there."""
    system = sid.System(lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: x.z)
    t = np.arange(10) * 0.2
    records = [sid.TimeSeries(t, None, z * np.exp(-t) + 0.5 * np.random.default_rng(0).standard_normal(10)) for z in (1.0, 2.0)]
    with pm.Model() as model:
        k = {"k": pm.LogNormal("k", 0.0, 0.5)}
        sid.ODEFilter("y", system, records, k, noise=0.5, x0=1.0, x0_std=1.0, substeps=4)
    grid = np.linspace(-2.5, 2.5, 401)
    total = sid.Target(model).log_likelihood(grid[:, None]) + stats.norm.logpdf(grid, 0.0, 0.5)
    exact = logsumexp(total) + np.log(grid[1] - grid[0])
    found = [prior_evidence(filter_view(None, model), seed) for seed in range(4)]
    np.testing.assert_allclose(found, exact, atol=0.3)


@pytest.mark.slow
def test_sample_says_that_a_linearisation_has_ruled_out_a_part_of_the_posterior() -> None:
    """A particle is in one of two wells, nobody knows in which, and its speed is measured: the damping is off by 11 sd.

    Draws of the linearised posterior know nothing of the right damping, so that weighting them may find nothing wrong.
    """
    wells = sid.System(
        lambda t, x, u, p: (x.v, -p.c * x.v + 4 * x.z - 4 * x.z**3),
        states=("z", "v"),
        params=("c",),
        observe=lambda t, x, dx, u, p: x.v,
    )
    t = np.arange(50) * 0.1
    free = sid.simulate(wells, sid.TimeSeries(t, None), {"c": 0.5}, x0={"z": -0.8, "v": 0.0})["y"].values
    measured = sid.TimeSeries(t, None, free + 0.3 * np.random.default_rng(0).standard_normal(50))
    for seed in range(3):
        with pm.Model() as model:
            c = {"c": pm.LogNormal("c", np.log(0.5), 0.7)}
            options = {"x0": {"z": 0.0, "v": 0.0}, "x0_std": {"z": 1.0, "v": 0.0}, "substeps": 16}
            sid.ODEFilter("y", wells, measured, c, noise=0.3, **options)
        with pytest.warns(UserWarning, match="cannot be trusted"):
            idata = sid.sample(model, chains=2, cores=1, random_seed=seed, progressbar=False)
        found = sid.log_evidence(idata)
        assert "initial state" in found.doubt and found.value + 4 * found.error > -9.8  # the right one is -9.73


def test_a_known_initial_state_needs_no_check() -> None:
    with pytest.raises(ValueError, match="'y' is no uncertain one"):
        sid.check_initial_state(tiny.IDATA, model=tiny.model())
    with pytest.raises(ValueError, match="draws is 1"):
        sid.check_initial_state(tiny.IDATA, model=tiny.uncertain(), draws=1)
