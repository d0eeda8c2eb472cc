"""Order of convergence on a nonlinear oscillator, with inputs that are smooth, kinked, and that jump at every sample."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.solve.options import EK0, EK1
from pm_sysid.steps.ek import Form, filter_recurrence
from pm_sysid.symbolic.system import System

PYTHON = Mode(linker="py", optimizer=None)
DUFFING = System(
    lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3),
    states=("z", "v"),
    inputs=("F",),
    params=("c", "k", "k3"),
    observe=lambda t, x, dx, u, p: x.z,
)
#: The input changes the stiffness: what its jump does to the derivatives depends on the state, and on time.
PARAMETRIC = System(
    lambda t, x, u, p: (x.v, pt.sin(t) - p.c * x.v - p.k * (1 + p.k3 * u.F * (1 + 0.3 * pt.cos(2 * t))) * x.z),
    states=("z", "v"),
    inputs=("F",),
    params=("c", "k", "k3"),
    observe=lambda t, x, dx, u, p: x.z,
)
PARAMS = (0.1, 1.0, 0.5)
X0 = (0.5, -0.3)
DT = 0.8
SUBSTEPS = (8, 16, 32, 64)


@cache
def record(kind: str) -> TimeSeries:
    """Nine samples of an input (eight if it is periodic), nothing measured."""
    t = np.arange(9) * DT
    if kind == "smooth":
        u = np.cos(2 * np.pi * t / (8 * DT)) + 0.5 * np.sin(4 * np.pi * t / (8 * DT))
        return TimeSeries(t[:8], u[:8], np.full(8, np.nan), intersample="bl", periodic=True)
    return TimeSeries(t, np.random.default_rng(3).normal(size=9), np.full(9, np.nan), intersample=kind)  # type: ignore[arg-type]


@cache
def solution(kind: str, params: tuple[float, float, float], system: System) -> np.ndarray:
    """States at the samples, shape (T, 2): DOP853 from sample to sample, so that it steps over no jump."""
    data, (c, k, k3) = record(kind), params
    states = [np.array(X0)]
    for i in range(len(data) - 1):

        def rate(t: float, x: np.ndarray, i: int = i) -> list[float]:
            fraction = min(max((t - data.t[i]) / data.dt[i], 0.0), 1.0)
            force = float(data.input_at(i, fraction)[0])
            if system is PARAMETRIC:
                stiffness = k * (1 + k3 * force * (1 + 0.3 * np.cos(2 * t)))
                return [x[1], np.sin(t) - c * x[1] - stiffness * x[0]]
            return [x[1], force - c * x[1] - k * x[0] - k3 * x[0] ** 3]

        span = (data.t[i], data.t[i + 1])
        states.append(solve_ivp(rate, span, states[-1], method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1])
    return np.array(states)


def moments(
    kind: str,
    form: Form,
    substeps: int,
    params: tuple[float, float, float] = PARAMS,
    system: System = DUFFING,
    x0: tuple[float, float] = X0,
    x0_std: tuple[float, float] = (0.0, 0.0),
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (T, q + 1) and covariance (T, q + 1, q + 1) at the samples; no measurement is seen."""
    data, n = record(kind), form.order + 1
    problem = Problem(system, form, calibrated=False)
    unknowns = Unknowns(np.array(params), np.array([x0]), np.array([x0_std]), np.ones(1), np.ones(1))
    outputs, _ = problem.run(data.output_matrix, unknowns, problem.data([data], substeps), "moments")
    values = outputs.eval(mode=PYTHON)
    return values[:, :n], values[:, n:].reshape(-1, n, n)


def error(kind: str, form: Form, substeps: int, params: tuple[float, float, float] = PARAMS, system: System = DUFFING) -> float:
    """Largest error of the filter's mean of z and v at the samples."""
    mean, _ = moments(kind, form, substeps, params, system)
    return float(np.max(np.abs(mean[:, :2] - solution(kind, params, system))))


def fitted_order(kind: str, form: Form, system: System = DUFFING) -> tuple[float, list[float]]:
    """Slope of log error on log step, and the errors."""
    errors = [error(kind, form, s, system=system) for s in SUBSTEPS]
    return -float(np.polyfit(np.log(SUBSTEPS), np.log(errors), 1)[0]), errors


def form_of(solver: type[EK0] | type[EK1], order: int, kind: str, system: System = DUFFING) -> Form:
    """Return the form that a solver gets for a record, checked to be the solver that was asked for."""
    form = solver(order=order, diffusion=1.0).form(system, [record(kind)])
    assert (form.linearisation, form.order) == (1 if solver is EK1 else 0, order)
    assert not form.dynamic and not form.block and form.uniform
    assert filter_recurrence(system, form, "moments").name == f"{solver.__name__}({order}) dense moments"
    return form


@pytest.mark.parametrize("kind", ["smooth", "foh", "zoh"])
@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("solver", [EK0, EK1])
def test_order_of_convergence(solver: type[EK0] | type[EK1], order: int, kind: str) -> None:
    """Would fail if a derivative were wrong at the start, in the residual, or after a jump: any costs whole orders."""
    form = form_of(solver, order, kind)
    assert form.smoothness == {"smooth": None, "foh": 1, "zoh": 0}[kind]
    slope, errors = fitted_order(kind, form)
    assert order - 0.15 < slope < order + 0.6, errors


@pytest.mark.parametrize("kind", ["foh", "zoh"])
@pytest.mark.parametrize("order", [3, 4])
def test_order_with_time_in_the_equations(order: int, kind: str) -> None:
    """Would fail if derivatives along the flow forgot explicit time, or a jump its dependence on state and time."""
    slope, errors = fitted_order(kind, form_of(EK1, order, kind, PARAMETRIC), PARAMETRIC)
    assert order - 0.15 < slope < order + 0.6, errors


@pytest.mark.parametrize("kind", ["smooth", "foh", "zoh"])
@pytest.mark.parametrize("solver", [EK0, EK1])
def test_spread_is_the_derivative_of_the_mean(solver: type[EK0] | type[EK1], kind: str) -> None:
    """Would fail if a jump moved the mean by what depends on the state, but the uncertainty of the state not with it.

    The system is linear in the state, so that a finite difference of the mean is exact.
    """
    form = form_of(solver, 3, kind, PARAMETRIC)
    (high, _), (low, _) = (moments(kind, form, 4, system=PARAMETRIC, x0=(X0[0] + d, X0[1])) for d in (0.5, -0.5))
    _, known = moments(kind, form, 4, system=PARAMETRIC)
    _, uncertain = moments(kind, replace(form, free=(0,)), 4, system=PARAMETRIC, x0_std=(1.0, 0.0))
    slope = (high - low)[:, :2]
    np.testing.assert_allclose(
        (uncertain - known)[:, :2, :2], slope[:, :, None] * slope[:, None, :], atol=1e-9 * np.abs(slope).max() ** 2
    )


@pytest.mark.parametrize(("kind", "lost"), [("zoh", 1), ("foh", 2)])
@pytest.mark.parametrize("solver", [EK0, EK1])
def test_without_the_transfer_of_jumps_orders_are_lost(solver: type[EK0] | type[EK1], kind: str, lost: int) -> None:
    """Would fail if the tests above could not tell: a filter that takes the input for smooth is of first order."""
    form = form_of(solver, 4, kind)
    blind, blind_errors = fitted_order(kind, replace(form, smoothness=None))
    assert blind == pytest.approx(lost, abs=0.15)
    assert error(kind, form, SUBSTEPS[-1]) < 1e-3 * blind_errors[-1]


@pytest.mark.parametrize("kind", ["smooth", "foh", "zoh"])
@pytest.mark.parametrize("order", [3, 4])
def test_ek1_beats_ek0(order: int, kind: str) -> None:
    """Would fail if the Jacobian were wrong: the order stays q, but the error constant does not.

    Not so at order 2, where EK0's error is the smaller one on this lightly damped oscillator.
    """
    ek0, ek1 = (error(kind, form_of(solver, order, kind), 16) for solver in (EK0, EK1))
    assert ek1 < ek0 / 1.2


@pytest.mark.parametrize("kind", ["smooth", "zoh"])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_ek1_is_stable_where_ek0_is_not(order: int, kind: str) -> None:
    """Would fail if EK1 did not use the Jacobian: overdamped, EK0 diverges at this step."""
    stiff = (20.0, 40.0, 10.0)
    ek0, ek1 = (error(kind, form_of(solver, order, kind), 4, stiff) for solver in (EK0, EK1))
    assert ek1 < 0.05
    assert not ek0 < 1e6  # NaN as well


#: Two masses of heat, of which one is heated and both lose heat to each other and to the surroundings; nothing is fast.
NODES = System(
    lambda t, x, u, p: (1 - x.a / 1.6 - (x.a - x.b) / p.R, (x.a - x.b) / (0.9 * p.R)),
    states=("a", "b"),
    params=("R",),
    observe=lambda t, x, dx, u, p: x.a,
)


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("R", [0.2, 0.4, 1.6])
def test_the_diffusion_of_coupled_chains_is_calibrated_by_a_stable_pass(R: float, uniform: bool) -> None:
    """Would fail if each chain's mean were moved for its own residual alone: diffusions of 1e13, with sixteen steps too."""
    t = np.arange(11.0) if uniform else np.concatenate([[0.0, 0.6], np.arange(2.0, 11.0)])
    rates = solve_ivp(
        lambda t, x: [1 - x[0] / 1.6 - (x[0] - x[1]) / R, (x[0] - x[1]) / (0.9 * R)],
        (0.0, t[-1]),
        [0.0, 0.0],
        t_eval=t,
        rtol=1e-12,
        atol=1e-12,
    )
    noise, y = 0.15, rates.y[0] + 0.15 * np.random.default_rng(0).normal(size=t.size)
    exact = -0.5 * np.sum((y - rates.y[0]) ** 2) / noise**2 - t.size * np.log(noise * np.sqrt(2 * np.pi))
    data = TimeSeries(t, None, y)
    problem = Problem.build(NODES, EK1(), [data])
    unknowns = Unknowns(
        pt.constant(np.array([R])), pt.constant(np.zeros((1, 2))), pt.constant(np.zeros((1, 2))), pt.constant([noise]), None
    )
    found: list[float] = []
    diffusions: list[np.ndarray] = []
    for substeps in (8, 16, 32):
        arrays = problem.data([data], substeps)
        found.append(float(problem.run(y[:, None], unknowns, arrays)[0].sum().eval(mode=PYTHON)))
        diffusions.append(problem.calibrate(unknowns, arrays).eval(mode=PYTHON))
    np.testing.assert_allclose(found, exact, atol=0.02)
    # Of a smooth solution the squares fall with the step.
    np.testing.assert_allclose(diffusions[1], np.sqrt(2.0) * diffusions[2], rtol=0.1)


#: A mass that a magnet holds: it falls by itself, with its controller it is stable, and nothing is fast beside the samples.
LEVITATED = System(
    lambda t, x, u, p: (x.v, p.k * x.z - x.i, (250.0 * x.z + 15.0 * x.v - x.i) / 0.02),
    states=("z", "v", "i"),
    params=("k",),
    observe=lambda t, x, dx, u, p: x.z,
)
#: Two states of which one grows by itself, and the other holds it.
HELD = System(
    lambda t, x, u, p: (p.k * (3.0 * x.a + 10.0 * x.b), p.k * (-10.0 * x.a - 6.0 * x.b)),
    states=("a", "b"),
    params=("k",),
    observe=lambda t, x, dx, u, p: x.a,
)


@pytest.mark.parametrize("k", [60.0, 90.0, 100.0, 140.0])
def test_the_diffusion_of_an_unstable_chain_in_a_stable_loop_is_calibrated(k: float) -> None:
    """Would fail if the gain of a chain that grows by itself were that of a growing solution, with any number of steps."""
    rates = np.array([[0.0, 1.0, 0.0], [k, 0.0, -1.0], [250.0 / 0.02, 15.0 / 0.02, -1.0 / 0.02]])
    _check_linear(LEVITATED, k, rates, 0.01, 200, [1.0, 0.0, 0.0], 0.02, {1: 0.1, 2: 0.01, 8: 0.01})


@pytest.mark.parametrize("k", [0.8, 1.0, 1.4])
def test_the_diffusion_of_a_growing_state_that_another_holds_is_calibrated(k: float) -> None:
    rates = k * np.array([[3.0, 10.0], [-10.0, -6.0]])
    _check_linear(HELD, k, rates, 0.1, 60, [1.0, 0.0], 0.02, {4: 1.0, 8: 0.01, 16: 0.01})


def _check_linear(
    system: System, k: float, rates: np.ndarray, dt: float, T: int, x0: list[float], noise: float, within: dict[int, float]
) -> None:
    step, x = expm(dt * rates), [np.array(x0)]
    for _ in range(T - 1):
        x.append(step @ x[-1])
    mean = np.array(x)[:, 0]
    y = mean + noise * np.random.default_rng(1).normal(size=T)
    exact = -0.5 * np.sum((y - mean) ** 2) / noise**2 - T * np.log(noise * np.sqrt(2 * np.pi))
    data = TimeSeries(np.arange(T) * dt, None, y)
    problem = Problem.build(system, EK1(), [data])
    start, none = pt.constant(np.array([x0])), pt.constant(np.zeros((1, len(x0))))
    unknowns = Unknowns(pt.constant(np.array([k])), start, none, pt.constant([noise]), None)
    for substeps, most in within.items():
        found = problem.run(y[:, None], unknowns, problem.data([data], substeps))[0].sum().eval(mode=PYTHON)
        np.testing.assert_allclose(float(found), exact, atol=most)
