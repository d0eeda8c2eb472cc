"""Piecewise-linear functions, oscillators and maps against the equations of the paper written out."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.models import piecewise_constraints, piecewise_linear, piecewise_map, piecewise_oscillator
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import evaluate

X = np.linspace(-3.0, 3.0, 601)
RNG = np.random.default_rng(11)


# -- the function -----------------------------------------------------------------------------------------------------


def bilinear(z: np.ndarray, k0: float, kR: float, dR: float) -> np.ndarray:
    """Eq. 4, whose breakpoint is on the right."""
    return np.where(z <= dR, k0 * z, k0 * dR + kR * (z - dR))


def trilinear(z: np.ndarray, k0: float, kL: float, kR: float, dL: float, dR: float) -> np.ndarray:
    """Eq. 5; Eq. 8 with its slip put right."""
    return np.select([z <= dL, z <= dR], [k0 * dL + kL * (z - dL), k0 * z], k0 * dR + kR * (z - dR))


def quadlinear(z: np.ndarray, k0: float, kL: float, kR1: float, kR2: float, dL: float, dR1: float, dR2: float) -> np.ndarray:
    """Eq. 6, with two breakpoints on the right."""
    inside = [k0 * dL + kL * (z - dL), k0 * z, k0 * dR1 + kR1 * (z - dR1)]
    return np.select([z <= dL, z <= dR1, z <= dR2], inside, k0 * dR1 + kR1 * (dR2 - dR1) + kR2 * (z - dR2))


@pytest.mark.parametrize("seed", range(5))
def test_equations_of_the_paper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k0, k1, k2, k3 = rng.uniform(0.1, 9.0, 4)
    left, *right = rng.uniform(0.1, 1.0, 3)
    first, second = sorted(right)
    np.testing.assert_allclose(piecewise_linear(X, k0, [], []), k0 * X)
    np.testing.assert_allclose(piecewise_linear(X, k0, [k1], [first]), bilinear(X, k0, k1, first), atol=1e-12)
    # A breakpoint on the left is the mirror image of one on the right.
    np.testing.assert_allclose(piecewise_linear(X, k0, [k1], [-left]), -bilinear(-X, k0, k1, left), atol=1e-12)
    expected = trilinear(X, k0, k1, k2, -left, first)
    np.testing.assert_allclose(piecewise_linear(X, k0, [k1, k2], [-left, first]), expected, atol=1e-12)
    expected = quadlinear(X, k0, k1, k2, k3, -left, first, second)
    np.testing.assert_allclose(piecewise_linear(X, k0, [k1, k2, k3], [-left, first, second]), expected, atol=1e-12)


@pytest.mark.parametrize("at", [(-1.7, -0.4, 0.8, 2.1), (0.2, 0.5, 0.9, 1.4), (-2.0, -1.5, -1.0, -0.5)])
def test_any_order_is_the_same_function_and_it_is_continuous(at: tuple[float, ...]) -> None:
    slopes = [3.0, 0.5, -1.0, 7.0]
    expected = piecewise_linear(X, 2.0, slopes, at)
    for order in permutations(range(4)):
        result = piecewise_linear(X, 2.0, [slopes[i] for i in order], [at[i] for i in order])
        np.testing.assert_allclose(result, expected, atol=1e-12)
    assert piecewise_linear(0.0, 2.0, slopes, at) == 0.0
    assert np.abs(np.diff(expected)).max() < 1.001 * 7.0 * (X[1] - X[0])
    # Slopes between the breakpoints, from outside in.
    edges = np.array([-9.0, *at, 9.0])
    middles = (edges[:-1] + edges[1:]) / 2
    rates = [
        (piecewise_linear(m + 1e-4, 2.0, slopes, at) - piecewise_linear(m - 1e-4, 2.0, slopes, at)) / 2e-4 for m in middles
    ]
    n = sum(d < 0 for d in at)
    np.testing.assert_allclose(rates, [*slopes[:n], 2.0, *slopes[n:]], atol=1e-9)


def test_equal_breakpoints_and_one_at_zero() -> None:
    np.testing.assert_allclose(piecewise_linear(X, 1.0, [3.0, 5.0], [0.5, 0.5]), bilinear(X, 1.0, 5.0, 0.5), atol=1e-12)
    np.testing.assert_allclose(piecewise_linear(X, 1.0, [5.0, 3.0], [0.5, 0.5]), bilinear(X, 1.0, 3.0, 0.5), atol=1e-12)
    np.testing.assert_allclose(piecewise_linear(X, 1.0, [4.0], [0.0]), np.where(X <= 0, 4.0 * X, X), atol=1e-12)


def test_numbers_among_symbols() -> None:
    d = pt.dscalar("d")
    value = piecewise_linear(X, 1.0, [3.0, 5.0], [-0.5, d])
    np.testing.assert_allclose(value.eval({d: 0.7}), trilinear(X, 1.0, 3.0, 5.0, -0.5, 0.7), atol=1e-12)


def test_draws_broadcast_in_numpy_and_by_name_in_xarray() -> None:
    k0, k1, d = (RNG.uniform(0.5, 2.0, 6) for _ in range(3))
    expected = np.array([bilinear(X, *values) for values in zip(k0, k1, d, strict=True)])
    plain = piecewise_linear(X, k0[:, None], [k1[:, None]], [d[:, None]])
    assert type(plain) is np.ndarray
    np.testing.assert_allclose(plain, expected, atol=1e-12)
    # Breakpoints that differ in order and side from draw to draw.
    at, slopes = RNG.uniform(-2.0, 2.0, (3, 6)), RNG.uniform(0.5, 9.0, (3, 6))
    together = piecewise_linear(X[:, None], k0, slopes, at)
    single = [piecewise_linear(X, k0[i], slopes[:, i], at[:, i]) for i in range(6)]
    np.testing.assert_allclose(together, np.transpose(single), atol=1e-12)
    draws = [xr.DataArray(v.reshape(2, 3), dims=("chain", "draw")) for v in (k0, k1, d)]
    labelled = piecewise_linear(xr.DataArray(X, dims="x"), draws[0], [draws[1]], [draws[2]])
    assert set(labelled.dims) == {"chain", "draw", "x"}
    np.testing.assert_allclose(labelled.transpose("chain", "draw", "x").values.reshape(6, -1), expected, atol=1e-12)


def test_symbols_give_the_same_numbers_and_the_right_gradient() -> None:
    k0, slopes, at = pt.dscalar("k0"), pt.dvector("k"), pt.vector("d", shape=(3,))
    x = pt.dvector("x")
    value = piecewise_linear(x, k0, [slopes[0], slopes[1], slopes[2]], at)
    # Weights that differ, so that no derivative cancels.
    total = pt.sum(value * np.cos(X))
    gradients = pytensor.grad(total, [k0, slopes, at])
    function = pytensor.function([x, k0, slopes, at], [value, total, *gradients])
    numbers = [np.array(1.3), np.array([4.0, 0.3, 2.0]), np.array([0.4017, -0.7013, 1.2011])]
    result, _, *exact = function(X, *numbers)
    np.testing.assert_allclose(result, piecewise_linear(X, *numbers), atol=1e-12)
    for which in range(3):
        for index in np.ndindex(numbers[which].shape):
            step = [np.zeros_like(n) for n in numbers]
            step[which][index] = 1e-5
            up, down = (function(X, *(n + s * d for n, d in zip(numbers, step, strict=True)))[1] for s in (1, -1))
            assert exact[which][index] == pytest.approx((up - down) / 2e-5, rel=1e-6)


@pytest.mark.parametrize(
    "slopes, breakpoints, error, message",
    [
        ([1.0], [], ValueError, "there are 1 slopes for 0 breakpoints; give the slope beyond each breakpoint"),
        (2.0, [0.5], TypeError, "slopes is 2.0; give a sequence with one entry for each breakpoint"),
        ([2.0], np.array(0.5), TypeError, "breakpoints is array"),
        ([2.0], "d", TypeError, "breakpoints is 'd'"),
        (pt.dvector(), [0.5], TypeError, r"slopes is a variable of shape \(None,\); give a vector of known length"),
    ],
)
def test_arguments_that_do_not_fit(slopes: Any, breakpoints: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        piecewise_linear(X, 1.0, slopes, breakpoints)


# -- systems ----------------------------------------------------------------------------------------------------------

STIFFNESS = dict(m=1.0, c0=2.0, k0=1e3, k1=3e3, k2=7e3, d1=-1e-3, d2=0.5e-3)
DAMPING = dict(m=1.0, k0=1e3, c0=2.0, c1=0.5, c2=0.2, v1=-0.05, v2=0.025)


@pytest.mark.parametrize("regions", [1, 2, 3, 4, 6])
def test_names_of_the_parameters(regions: int) -> None:
    n = range(1, regions)
    spring, damper, static = (
        piecewise_oscillator(regions),
        piecewise_oscillator(regions, nonlinear="damping"),
        piecewise_map(regions),
    )
    assert spring.params == ("m", "c0", "k0", *(f"k{i}" for i in n), *(f"d{i}" for i in n))
    assert damper.params == ("m", "k0", "c0", *(f"c{i}" for i in n), *(f"v{i}" for i in n))
    assert static.params == ("c0", *(f"c{i}" for i in n), *(f"v{i}" for i in n), "v0")
    assert piecewise_map(regions, offset=False).params == static.params[:-1]
    assert spring.chains == damper.chains == (("z", "v"),)
    assert (static.states, static.inputs, static.outputs) == ((), ("v",), ("force",))


@pytest.mark.parametrize("nonlinear, params", [("stiffness", STIFFNESS), ("damping", DAMPING)])
@pytest.mark.parametrize("state", [(-2e-3, 0.04), (2e-4, -0.3), (9e-4, 0.01), (-3e-4, 0.2)])
def test_equations_of_motion(nonlinear: Any, params: dict[str, float], state: tuple[float, float]) -> None:
    system = piecewise_oscillator(3, nonlinear=nonlinear)
    z, v = state
    p = list(params.values())[2:]
    other = 2.0 * v if nonlinear == "stiffness" else 1e3 * z
    force = other + trilinear(np.array(z if nonlinear == "stiffness" else v), *p)
    at = dict(zip([*system.x, *system.u, *system.p], [z, v, 1.7, *(params[n] for n in system.params)], strict=True))
    rate, acceleration = evaluate(system.f, at)
    assert rate == v and acceleration == pytest.approx((1.7 - force) / 1.0, rel=1e-12)
    # The Jacobian is that of the region the state is in.
    stiffness, damping = evaluate(jacobian([system.f[1]], system.x)[0], at)
    if nonlinear == "stiffness":
        expected = (-3e3 if z < -1e-3 else -1e3 if z < 0.5e-3 else -7e3), -2.0
    else:
        expected = -1e3, (-0.5 if v < -0.05 else -2.0 if v < 0.025 else -0.2)
    assert (stiffness, damping) == pytest.approx(expected)


def record(length: int = 150, y: Any = None) -> sid.TimeSeries:
    t = np.arange(length) / 100
    u = sum(2.0 * np.sin(2 * np.pi * f * t + phase) for f, phase in ((3.1, 0.3), (7.9, 1.1), (13.7, 4.0)))
    return sid.TimeSeries(t, u, y)


@pytest.mark.parametrize("nonlinear, params", [("stiffness", STIFFNESS), ("damping", DAMPING)])
@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_sensors_of_a_free_run(nonlinear: Any, params: dict[str, float]) -> None:
    runs = {
        what: sid.simulate(
            piecewise_oscillator(3, nonlinear=nonlinear, observe=what),  # type: ignore[arg-type]
            record(),
            params,
            x0=0.0,
            substeps=16,
        )
        for what in ("acceleration", "displacement", "velocity")
    }
    first = runs["displacement"]
    z, v = first["z"].values, first["v"].values
    np.testing.assert_array_equal(first["y"], z)
    np.testing.assert_array_equal(runs["velocity"]["y"], v)
    p = list(params.values())[2:]
    force = 2.0 * v + trilinear(z, *p) if nonlinear == "stiffness" else 1e3 * z + trilinear(v, *p)
    np.testing.assert_allclose(runs["acceleration"]["y"], record().u - force, rtol=1e-9, atol=1e-9)
    # All three regions are visited.
    moved = z if nonlinear == "stiffness" else v
    assert moved.min() < 1.2 * p[3] and moved.max() > 1.2 * p[4]


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_the_filter_converges_to_the_free_run() -> None:
    """Mean of the filter that sees no measurement, beside a very fine Runge-Kutta run."""
    system = piecewise_oscillator(3, observe="displacement")
    data = record(60, np.full(60, np.nan))
    truth = sid.simulate(system, data, STIFFNESS, x0=0.0, substeps=1024)["z"].values
    problem = Problem(system, sid.EK1(order=3, diffusion=1.0).form(system, [data]), calibrated=False)
    params = np.array([STIFFNESS[n] for n in system.params])
    unknowns = Unknowns(params, np.zeros((1, 2)), np.zeros((1, 2)), np.ones(1), np.ones(1))
    errors = []
    for substeps in (4, 16, 64):
        outputs, _ = problem.run(data.output_matrix, unknowns, problem.data([data], substeps), "moments")
        errors.append(float(np.max(np.abs(outputs.eval()[:, 0] - truth)) / np.ptp(truth)))
    assert errors[1] < 0.3 * errors[0] and errors[2] < 0.3 * errors[1] and errors[2] < 1e-3, errors


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_the_filter_gives_a_likelihood_and_its_gradient() -> None:
    system = piecewise_oscillator(3)
    run = sid.simulate(system, record(), STIFFNESS, x0=0.0, substeps=64)["y"].values
    y = run + 0.05 * run.std() * np.random.default_rng(4).normal(size=run.size)
    with pm.Model() as model:
        k1, k2 = pm.LogNormal("k1", np.log(3e3)), pm.LogNormal("k2", np.log(7e3))
        d1, d2 = pm.Normal("d1", -1e-3, 1e-4), pm.Normal("d2", 5e-4, 1e-4)
        params = STIFFNESS | dict(k1=k1, k2=k2, d1=d1, d2=d2)
        solver = sid.EK1(order=3, diffusion=1e5)
        sid.ODEFilter("y", system, record(y=y), params, noise=0.05 * run.std(), x0=0.0, solver=solver, substeps=8)
    logp, dlogp = model.compile_logp(), model.compile_dlogp()

    def at(q: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(("k1_log__", "k2_log__", "d1", "d2"), map(np.array, q), strict=True))

    truth = np.array([np.log(3e3), np.log(7e3), -1e-3, 5e-4])
    assert logp(at(truth)) > logp(at(truth + 0.2 * np.eye(4)[1])) + 10
    gradient = dlogp(at(truth))
    for i, size in enumerate((1e-6, 1e-6, 1e-10, 1e-10)):
        step = size * np.eye(4)[i]
        difference = (logp(at(truth + step)) - logp(at(truth - step))) / (2 * size)
        assert gradient[i] == pytest.approx(difference, rel=1e-3, abs=1e-3 * np.abs(gradient[i]))
        assert abs(gradient[i]) > 1.0


# -- static maps ------------------------------------------------------------------------------------------------------

MAP = dict(c0=40.0, c1=9.0, c2=15.0, v1=0.3, v2=-0.5, v0=0.05)
VELOCITY = sid.TimeSeries(np.arange(80) * 0.01, np.sin(np.arange(80) * 0.21), None, intersample="zoh")


def test_a_static_map_is_simulated_without_states() -> None:
    run = sid.simulate(piecewise_map(3), VELOCITY, MAP)
    assert set(run.data_vars) == {"force"}
    expected = trilinear(VELOCITY.u - 0.05, 40.0, 15.0, 9.0, -0.5, 0.3)
    np.testing.assert_allclose(run["force"], expected, atol=1e-12)
    assert "none (a static map)" in repr(piecewise_map(3)) and "chains" not in repr(piecewise_map(3))


def test_a_static_map_in_batches_and_its_distance() -> None:
    draws = np.array([30.0, 40.0, 55.0])
    measured = trilinear(VELOCITY.u - 0.05, 40.0, 15.0, 9.0, -0.5, 0.3)
    measured[7] = np.nan
    many = sid.simulate(piecewise_map(3), VELOCITY, MAP | dict(c0=draws))["force"]
    expected = [trilinear(VELOCITY.u - 0.05, c0, 15.0, 9.0, -0.5, 0.3) for c0 in draws]
    np.testing.assert_allclose(many, expected, atol=1e-12)
    distance = sid.simulate(piecewise_map(3), VELOCITY.replace(y=measured), MAP | dict(c0=draws), distance="nmse")["force"]
    np.testing.assert_allclose(distance, sid.nmse(measured, np.array(expected)), atol=1e-10)
    assert distance[1] < 1e-20 < distance[0]


def test_dynamics_without_derivatives_is_a_static_map_too() -> None:
    system = sid.System(
        lambda t, x, u, p: (), states=(), inputs=("v",), params=("c",), observe=lambda t, x, dx, u, p: (p.c * u.v, t)
    )
    run = sid.simulate(system, VELOCITY, dict(c=3.0))
    np.testing.assert_allclose(run["y1"], 3.0 * VELOCITY.u)
    np.testing.assert_allclose(run["y2"], VELOCITY.t)


@pytest.mark.slow
def test_a_static_map_in_a_likelihood_of_pymc() -> None:
    y = sid.simulate(piecewise_map(3), VELOCITY, MAP)["force"].values + np.random.default_rng(0).normal(size=80)
    data = VELOCITY.replace(y=y)
    with pm.Model() as model:
        c0 = pm.Normal("c0", 40.0, 10.0)
        pm.Normal("y", sid.simulate(piecewise_map(3), data, MAP | dict(c0=c0)), 1.0, observed=y)
    logp, dlogp = model.compile_logp(), model.compile_dlogp()

    def by_hand(c0: float) -> float:
        force = trilinear(VELOCITY.u - 0.05, c0, 15.0, 9.0, -0.5, 0.3)
        return float(-0.5 * np.sum((y - force) ** 2) - 0.5 * ((c0 - 40.0) / 10.0) ** 2)

    difference, slope = by_hand(38.0) - by_hand(41.0), (by_hand(38.001) - by_hand(37.999)) / 2e-3
    assert logp({"c0": 38.0}) - logp({"c0": 41.0}) == pytest.approx(difference, rel=1e-9)
    assert dlogp({"c0": 38.0})[0] == pytest.approx(slope, rel=1e-6)
    # The same for many particles at once.
    prior, d_prior, likelihood, d_likelihood = sid.Target(model).value_and_gradient(np.array([[38.0], [41.0]]))
    assert -np.diff(prior + likelihood) == pytest.approx(difference, rel=1e-9)
    assert (d_prior + d_likelihood)[0, 0] == pytest.approx(slope, rel=1e-6)


def test_a_static_map_has_nothing_to_filter() -> None:
    with pm.Model(), pytest.raises(ValueError, match=r"no states, so that there is no ODE to filter; .* pm.Normal\(name"):
        sid.ODEFilter("y", piecewise_map(3), VELOCITY.replace(y=VELOCITY.u), MAP, noise=1.0)


# -- constraints ------------------------------------------------------------------------------------------------------


def potentials(k0: float, slopes: Any, at: Any, **options: Any) -> dict[str, bool]:
    """Which constraints hold."""
    with pm.Model() as model:
        variables = [pm.Normal(f"x{i}") for i in range(1 + 2 * len(slopes))]
        made = piecewise_constraints(variables[0], variables[1 : 1 + len(slopes)], variables[1 + len(slopes) :], **options)
        assert model.potentials == made
    results = pytensor.function(variables, made, on_unused_input="ignore")(k0, *slopes, *at)
    assert all(r in (0.0, -np.inf) for r in results)
    return {p.name: bool(r == 0.0) for p, r in zip(made, results, strict=True)}


@pytest.mark.parametrize(
    "k0, slopes, at, options, expected",
    [
        (1.0, [], [], {}, {}),
        (1.0, [2.0], [0.5], {}, dict(piecewise_slopes=True)),
        (1.0, [1.04], [0.5], {}, dict(piecewise_slopes=False)),
        (1.0, [1.04], [0.5], dict(difference=0.03), dict(piecewise_slopes=True)),
        # 5 % of the larger: 1.052 differs by more than 5 % of 1, and by less than 5 % of itself.
        (1.0, [1.052], [0.5], {}, dict(piecewise_slopes=False)),
        (-1.0, [1.0], [0.5], {}, dict(piecewise_slopes=True)),
        # Slopes on the two sides of the origin are no neighbours of each other, but of k0.
        (1.0, [3.0, 3.0], [-0.5, 0.5], {}, dict(piecewise_slopes=True, piecewise_breakpoints=True)),
        (1.0, [3.0, 3.0], [0.2, 0.5], {}, dict(piecewise_slopes=False, piecewise_breakpoints=True)),
        # The neighbour of the outer slope 1.0 is 3.0, not k0.
        (1.0, [3.0, 1.0], [0.2, 0.5], {}, dict(piecewise_slopes=True, piecewise_breakpoints=True)),
        (1.0, [1.0, 3.0], [0.5, 0.2], {}, dict(piecewise_slopes=True, piecewise_breakpoints=False)),
        (1.0, [1.0, 3.0], [0.5, 0.2], dict(ordered=False), dict(piecewise_slopes=True, piecewise_breakpoints=True)),
        (1.0, [3.0, 9.0], [0.5, 0.5], dict(ordered=False), dict(piecewise_slopes=True, piecewise_breakpoints=False)),
        (1.0, [3.0, 9.0], [0.5, 0.6], dict(separation=0.2), dict(piecewise_slopes=True, piecewise_breakpoints=False)),
        (1.0, [3.0, 9.0], [-0.1, 0.2], dict(separation=0.2), dict(piecewise_slopes=True, piecewise_breakpoints=True)),
        (1.0, [3.0, 2.0], [0.5, 0.2], dict(ordered=False, name="k"), dict(k_slopes=True, k_breakpoints=True)),
        # All pairs, not only adjacent ones.
        (1.0, [3.0, 5.0, 7.0], [0.5, -0.2, 0.5], dict(ordered=False), dict(piecewise_slopes=True, piecewise_breakpoints=False)),
    ],
)
def test_constraints(
    k0: float, slopes: list[float], at: list[float], options: dict[str, Any], expected: dict[str, bool]
) -> None:
    assert potentials(k0, slopes, at, **options) == expected


def test_constraints_on_numbers_and_vectors() -> None:
    with pm.Model() as model:
        k = pm.Normal("k", shape=2)
        made = piecewise_constraints(1.0, k, [-0.5, 0.5])
    function = pytensor.function([k], made)
    values = [function(np.array(v)) for v in ([2.0, 3.0], [2.0, 1.01])]
    assert np.array_equal(values, [[0.0, 0.0], [-np.inf, 0.0]]) and len(model.potentials) == 2


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(difference=-0.1), "difference is -0.1; give a number that is zero or positive"),
        (dict(separation=np.nan), "separation is nan"),
        (dict(slopes=[1.0, 2.0]), "there are 2 slopes for 1 breakpoints"),
    ],
)
def test_constraints_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    arguments = dict(slopes=[2.0], breakpoints=[0.5]) | options
    with pm.Model(), pytest.raises(ValueError, match=message):
        piecewise_constraints(1.0, **arguments)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: piecewise_oscillator(0), "regions is 0; give a positive integer: 1 is linear"),
        (lambda: piecewise_oscillator(True), "regions is True"),
        (lambda: piecewise_map(2.0), "regions is 2.0"),  # type: ignore[arg-type]
        (lambda: piecewise_oscillator(nonlinear="mass"), "nonlinear is 'mass'; give 'stiffness' or 'damping'"),  # type: ignore[arg-type]
        (
            lambda: piecewise_oscillator(observe="force"),  # type: ignore[arg-type]
            r"observe is 'force'; give one of \['acceleration', 'displacement', 'velocity'\]",
        ),
    ],
)
def test_impossible_settings_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
