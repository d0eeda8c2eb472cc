"""Numerical extremes: units, stiff systems, noise far below the signal, records of one and two samples, nothing happening."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pytensor.compile.mode import Mode

import pm_sysid as sid
from pm_sysid.solve.filter_graph import Problem, Unknowns

PYTHON = Mode(linker="py", optimizer=None)
DUFFING = sid.models.duffing()
LAG = sid.System(
    lambda t, x, u, p: p.rate * (u.goal - x.level),
    states=("level",),
    inputs=("goal",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: (x.level, dx.level),
)
VALUES = dict(m=1.3, c=0.4, k=9.0, k3=2.5)
T = np.arange(30) / 16
RNG = np.random.default_rng(0)
U, Y = np.sin(5 * T) + 0.3 * RNG.normal(size=30), 0.2 * np.cos(3 * T) + 0.01 * RNG.normal(size=30)


def loglik(
    system: sid.System, record: Any, params: Any, noise: Any, x0: Any, solver: Any, *, substeps: int = 2, diffusion: Any = 1.0
) -> np.ndarray:
    """Log-density of every sample, interpreted: nothing is compiled."""
    records = record if isinstance(record, list) else [record]
    problem = Problem.build(system, solver, records)
    n_y, R = len(system.outputs), len(records)
    start = np.tile(np.asarray(x0, float), (R, 1))
    known = np.broadcast_to(np.asarray(diffusion, float), len(system.chains)).copy()
    unknowns = Unknowns(
        np.array(list(params.values()), float), start, 0 * start, np.broadcast_to(noise, n_y).astype(float), known
    )
    y = np.concatenate([r.output_matrix for r in records])
    return problem.run(y, unknowns, problem.data(records, substeps))[0].eval(mode=PYTHON)


# -- units ------------------------------------------------------------------------------------------------------------

POWERS = [(0, 0, 0, 0), (20, 0, 0, 0), (0, -30, 0, 0), (0, 0, 17, 0), (0, 0, 0, -40), (-10, 25, -20, 9), (30, -30, 12, 40)]


@pytest.mark.parametrize("solver", [sid.EK0(order=3), sid.EK1(order=4), sid.EK1(order=3, diffusion="dynamic")])
@pytest.mark.parametrize("intersample", ["zoh", "bl"])
def test_units_change_the_likelihood_by_their_jacobian(solver: Any, intersample: Any) -> None:
    """Powers of two for length, time, force and mass: parameters of 1e-12 to 1e12 and the same digits in the result."""
    reference = None
    for length, time, force, _ in POWERS:
        L, S, F = (2.0**p for p in (length, time, force))
        record = sid.TimeSeries(T * S, U * F, Y * L, intersample=intersample)
        scale = dict(m=F * S**2 / L, c=F * S / L, k=F / L, k3=F / L**3)
        params = {name: VALUES[name] * scale[name] for name in VALUES}
        got = loglik(DUFFING, record, params, 0.01 * L, [0.2 * L, 0.1 * L / S], solver)
        shifted = got[:, 0] + np.log(L)
        reference = shifted if reference is None else reference
        np.testing.assert_allclose(shifted, reference, rtol=1e-9, atol=1e-9)
        # Near where the optimiser would look it matters what the density does, not only what it is.
        assert np.isfinite(got).all()


@pytest.mark.parametrize("mass", [5e-6, 1e-12, 1e12])
def test_mass_of_any_size(mass: float) -> None:
    """The Silverbox has a mass of 5e-6 and a stiffness of one: slow time, then, is a matter of units."""
    params = dict(m=mass, c=0.4 * mass * 10, k=90.0 * mass, k3=25.0 * mass)
    record = sid.TimeSeries(T, U * mass, Y)
    got = loglik(DUFFING, record, params, 0.01, [0.2, 0.1], sid.EK1(order=4))
    same = loglik(DUFFING, record.replace(u=U), {k: v / mass for k, v in params.items()}, 0.01, [0.2, 0.1], sid.EK1(order=4))
    np.testing.assert_allclose(got, same, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("factor", [1e-12, 1e12])
@pytest.mark.parametrize("name", ["m", "c", "k", "k3", "noise"])
@pytest.mark.parametrize("solver", [sid.EK0(order=3), sid.EK1(order=3)])
def test_one_parameter_of_any_size(name: str, factor: float, solver: Any) -> None:
    """A value or minus infinity, whatever a trial point is; never a NaN."""
    params = VALUES | ({name: VALUES[name] * factor} if name != "noise" else {})
    noise = 0.01 * (factor if name == "noise" else 1.0)
    got = loglik(DUFFING, sid.TimeSeries(T, U, Y), params, noise, [0.2, 0.1], solver)
    assert not np.isnan(got).any() and not np.isposinf(got).any()


# -- stiff systems ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("rate", [1.0, 1e2, 1e4, 1e6])
def test_stiff_systems_follow_their_quasi_steady_state(order: int, rate: float) -> None:
    """Steps up to a million time constants long: EK1 is L-stable (Tronarp et al. 2019).

    It starts with the true derivatives, ``rate**order`` in size, and forgets them by a factor a step, not at once. Each corner
    of the input does the same to derivatives from the second on: orders above two do not recover from that between samples.
    """
    steps = np.arange(120.0)
    goal = np.where(steps < 80, 0.5, np.sin(0.3 * steps))
    record = sid.TimeSeries(steps, goal, np.full((120, 2), np.nan), intersample="foh")
    problem = Problem.build(LAG, sid.EK1(order=order, diffusion=1.0), [record])
    unknowns = Unknowns(np.array([rate]), np.array([[1.0]]), np.zeros((1, 1)), np.full(2, 0.1), np.ones(1))
    moments = problem.run(record.output_matrix, unknowns, problem.data([record], 2), "moments")[0].eval(mode=PYTHON)
    assert np.isfinite(moments).all()
    if rate >= 1e4:
        np.testing.assert_allclose(moments[70:79, 0], goal[70:79], atol=1e-6)
        if order <= 2:
            np.testing.assert_allclose(moments[-10:, 0], goal[-10:], atol=2e-2)


# -- noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [sid.EK0(order=3, diffusion=1e9), sid.EK1(order=3, diffusion=1.0)])
@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-9])
def test_noise_far_below_the_signal(solver: Any, noise: float) -> None:
    got = loglik(DUFFING, sid.TimeSeries(T, U, Y), VALUES, noise, [0.2, 0.1], solver, diffusion=1.0)
    assert np.isfinite(got).all()


@pytest.mark.parametrize("noise", [0.1, 1e-5])
@pytest.mark.parametrize("solver", [sid.EK0(order=2), sid.EK1(order=2)])
def test_the_same_output_three_times_is_its_mean_once(noise: float, solver: Any) -> None:
    """The innovation covariance of copies is singular but for the noise; a density of copies has a closed form."""
    three = sid.System(
        lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: (x.level,) * 3
    )
    one = sid.System(
        lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    t, rng = np.arange(10) / 5, np.random.default_rng(1)
    y = np.exp(-t)[:, None] + noise * rng.normal(size=(10, 3))
    got = loglik(three, sid.TimeSeries(t, None, y), {"rate": 1.0}, noise, [1.0], solver)
    mean, spread = y.mean(axis=1), ((y - y.mean(axis=1, keepdims=True)) ** 2).sum()
    want = loglik(one, sid.TimeSeries(t, None, mean), {"rate": 1.0}, noise / np.sqrt(3), [1.0], solver)
    within = -spread / 2 / noise**2 - 10 * (np.log(2 * np.pi * noise**2) + np.log(3) / 2)
    np.testing.assert_allclose(got.sum(), want.sum() + within, rtol=1e-9)


@pytest.mark.parametrize("solver", [sid.EK0(order=4, diffusion=1.0), sid.EK0(order=2, diffusion=1.0)])
def test_a_derivative_that_the_ode_knows_is_known_under_any_diffusion(solver: Any) -> None:
    """EK0 knows the highest derivative for certain; measuring it must not move the others, however uncertain they are.

    What a difference of two large roots leaves was taken for a correlation: off by a factor of five at a diffusion of 1e9.
    """
    free = sid.System(
        lambda t, x, u, p: (x.v, u.F / p.m),
        states=("z", "v"),
        inputs=("F",),
        params=("m",),
        observe=lambda t, x, dx, u, p: dx.v,
    )
    record = sid.TimeSeries(T, U, U + 0.01, intersample="foh")
    exact = -0.5 * (np.log(2 * np.pi * 0.05**2) + (0.01 / 0.05) ** 2)
    for diffusion in (1.0, 1e3, 1e6, 1e9, 1e12):
        for kind in (solver, sid.EK1(order=solver.order, diffusion=1.0)):
            got = loglik(free, record, {"m": 1.0}, 0.05, [0.0, 0.0], kind, diffusion=diffusion)
            np.testing.assert_allclose(got, exact, rtol=1e-9, err_msg=f"{kind}, {diffusion}")


# -- short records, and records in which nothing happens ---------------------------------------------------------------


def model_of(record: Any, **options: Any) -> pm.Model:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        k, noise = pm.LogNormal("k", np.log(9.0), 0.3), pm.LogNormal("noise", np.log(0.05), 0.5)
        options = dict(x0=dict(z=0.2, v=0.0), solver=sid.EK1(order=2), substeps=1, noise=noise) | options
        sid.ODEFilter("y", DUFFING, record, VALUES | dict(k=k), **options)
    return model


QUIET: dict[str, sid.TimeSeries] = {
    "one sample": sid.TimeSeries([0.0], [1.0], [0.2], intersample="zoh"),
    "one sample, missing": sid.TimeSeries([0.0], [1.0], [np.nan], intersample="zoh"),
    "two samples": sid.TimeSeries([0.0, 0.1], [1.0, 0.0], [0.2, 0.21], intersample="zoh"),
    "two samples, one missing": sid.TimeSeries([0.0, 0.1], [1.0, 0.0], [np.nan, 0.21], intersample="zoh"),
    "zero input": sid.TimeSeries(T, 0 * T, Y, intersample="zoh"),
    "constant output": sid.TimeSeries(T, 0 * T, 0 * T + 0.2, intersample="zoh"),
    "zero output": sid.TimeSeries(T, 0 * T, 0 * T, intersample="zoh"),
    "nothing measured": sid.TimeSeries(T, U, np.nan * T, intersample="zoh"),
}


@pytest.mark.slow
def test_records_in_which_nothing_happens() -> None:
    """Likelihood, gradient, mode, states, innovations and prediction are finite on every one of them; one compilation each."""
    model = model_of(QUIET["zero input"])
    value, slope = model.compile_logp(), model.compile_dlogp()
    point = model.initial_point()
    draws = {"k": [[9.0, 10.0]], "noise": [[0.05, 0.06]]}
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({n: (("chain", "draw"), v) for n, v in draws.items()})})
    for name, record in QUIET.items():
        if len(record) < 2:  # no step: not uniform, and another form of the filter
            continue
        sid.set_data({"y": record}, model)
        assert np.isfinite(value(point)) and np.isfinite(slope(point)).all(), name
        states = sid.smooth(idata, model=model)
        assert all(np.isfinite(states[v]).all() for v in states if v != "measured"), name
        innovations = sid.innovations({"k": 9.0, "noise": 0.05}, "y", model=model)
        assert np.array_equal(np.isnan(innovations["innovation"].values[:, 0]), np.isnan(record.y)), name
        assert np.isfinite(innovations["std"]).all(), name


def test_the_mode_of_a_record_without_information_is_that_of_the_prior() -> None:
    model = model_of(QUIET["nothing measured"])
    mode = sid.find_mode(model)
    assert mode.converged
    np.testing.assert_allclose(mode.point, [np.log(9.0), np.log(0.05)], atol=1e-6)
    np.testing.assert_allclose(np.diag(mode.covariance), [0.3**2, 0.5**2], rtol=1e-4)


@pytest.mark.parametrize("name", [n for n in QUIET if n.startswith("one")])
def test_one_sample(name: str) -> None:
    model = model_of(QUIET[name])
    assert np.isfinite(model.compile_logp()(model.initial_point()))
    assert np.isfinite(sid.find_mode(model).logp)


def test_short_records_have_free_runs_and_refuse_tests() -> None:
    for record in QUIET.values():
        run = sid.simulate(DUFFING, record, VALUES, x0=dict(z=0.2, v=0.0), substeps=8)
        assert run.sizes["time"] == len(record) and all(np.isfinite(run[v]).all() for v in run)
    for residuals in ([0.1], [0.1, 0.2], np.zeros(60), np.full(60, np.nan)):
        with pytest.raises(ValueError, match="residuals"):
            sid.residual_tests(residuals, lags=5)
