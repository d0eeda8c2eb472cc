"""The oscillator with friction against closed forms and against a solution that finds every reversal."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from pm_sysid.models import friction_oscillator
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.symbolic.scalars import evaluate

PARAMS = dict(m=0.2, c=0.3, k=120.0, k3=4e4, Fc=0.35, beta=800.0)
G, H, T = 9.81, 5e-3, 120
X0 = dict(z=-0.012, v=0.25)


def acceleration(v: float, a: float, z: float = 0.01, **options: Any) -> float:
    system = friction_oscillator(**options)
    at = dict(zip([*system.x, *system.u, *system.p], [z, v, a, *(PARAMS[n] for n in system.params)], strict=True))
    rate, result = evaluate(system.f, at)
    assert rate == v
    return float(result)


@pytest.mark.parametrize(
    "options, friction",
    [
        (dict(), lambda v: 0.0),
        (dict(kind="coulomb"), lambda v: 0.35 * np.tanh(v / 1e-3)),
        (dict(kind="coulomb", v_s=0.0), lambda v: 0.35 * np.sign(v)),
        (dict(kind="tanh", g=0.0), lambda v: 0.35 * np.tanh(800.0 * v)),
    ],
    ids=["viscous", "coulomb", "sign", "tanh"],
)
@pytest.mark.parametrize("v", [-0.4, -3e-4, 0.0, 0.2])
def test_forces(options: dict[str, Any], friction: Any, v: float) -> None:
    g = options.get("g", 9.81)
    expected = -(0.3 * v + 120.0 * 0.01 + 4e4 * 1e-6 + friction(v)) / 0.2 - g - 1.7
    assert acceleration(v, 1.7, **options) == pytest.approx(expected, abs=1e-12)


def test_channels_and_sensors() -> None:
    system = friction_oscillator("coulomb", observe="acceleration")
    assert (system.states, system.inputs, system.chains) == (("z", "v"), ("a",), (("z", "v"),))
    assert system.params == ("m", "c", "k", "k3", "Fc")
    assert friction_oscillator().params == ("m", "c", "k", "k3")
    record = sid.TimeSeries(np.arange(4) * H, np.full(4, 2.0), intersample="zoh")
    params = {n: PARAMS[n] for n in system.params}
    run = sid.simulate(system, record, params, x0=dict(z=0.0, v=0.1), substeps=64)
    # An accelerometer on the mass reads x'' = z'' + a.
    assert float(run["y"][0]) == pytest.approx((-0.03 - 0.35) / 0.2 - G)


def test_the_mass_hangs_under_gravity() -> None:
    z = -0.01
    params = dict(m=-(120.0 * z + 4e4 * z**3) / G, c=0.3, k=120.0, k3=4e4)
    record = sid.TimeSeries(np.arange(20) * H, np.zeros(20), intersample="zoh")
    run = sid.simulate(friction_oscillator(), record, params, x0=dict(z=z, v=0.0), substeps=4)
    np.testing.assert_allclose(run["z"], z, atol=1e-12)


# -- reversals --------------------------------------------------------------------------------------------------------

INPUT = 12.0 * np.sin(2 * np.pi * 6.0 * np.arange(T) * H) + np.random.default_rng(2).normal(0.0, 4.0, T)
RECORD = sid.TimeSeries(np.arange(T) * H, INPUT, np.full(T, np.nan), intersample="zoh")


@cache
def reference() -> tuple[np.ndarray, int]:
    """States (T, 2) under Coulomb's law, and how often the mass turned: the integration stops at every reversal."""
    m, c, k, k3, Fc = (PARAMS[n] for n in ("m", "c", "k", "k3", "Fc"))
    x, turns = np.array([X0["z"], X0["v"]]), 0
    states = [x]

    def pull(z: float, a: float) -> float:
        return float(-k * z - k3 * z**3 - m * (G + a))

    for a in INPUT[:-1]:
        t = 0.0
        while t < H:
            direction = np.sign(x[1] or pull(x[0], a))
            assert x[1] or abs(pull(x[0], a)) > Fc, "the mass sticks"

            def rate(t: float, x: np.ndarray, a: float = a, direction: float = float(direction)) -> list[float]:
                return [x[1], (pull(x[0], a) - c * x[1] - Fc * direction) / m]

            def turn(t: float, x: np.ndarray, direction: float = float(direction)) -> float:
                return float(x[1] + 1e-13 * direction)

            turn.terminal = True  # type: ignore[attr-defined]
            found = solve_ivp(rate, (t, H), x, "DOP853", rtol=1e-12, atol=1e-14, events=turn)
            x, t = found.y[:, -1], found.t[-1]
            if found.status == 1:
                x, turns = np.array([x[0], 0.0]), turns + 1
        states.append(x)
    return np.array(states), turns


def simulated(v_s: float, substeps: int) -> float:
    """Largest error of z (m) of a run."""
    system = friction_oscillator("coulomb", v_s=v_s)
    params = {n: PARAMS[n] for n in system.params}
    run = sid.simulate(system, RECORD, params, x0=X0, substeps=substeps)
    return float(np.max(np.abs(run["z"].values - reference()[0][:, 0])))


def filtered(v_s: float, substeps: int) -> float:
    """Largest error of z (m) of the filter's mean, which sees no measurement."""
    system = friction_oscillator("coulomb", v_s=v_s)
    problem = Problem(system, sid.EK1(order=3, diffusion=1.0).form(system, [RECORD]), calibrated=False)
    params, start = np.array([PARAMS[n] for n in system.params]), np.array([[*X0.values()]])
    unknowns = Unknowns(params, start, np.zeros((1, 2)), np.ones(1), np.ones(1))
    outputs, _ = problem.run(RECORD.output_matrix, unknowns, problem.data([RECORD], substeps), "moments")
    return float(np.max(np.abs(outputs.eval()[:, 0] - reference()[0][:, 0])))


def test_the_record_has_reversals() -> None:
    states, turns = reference()
    assert turns >= 6 and np.ptp(states[:, 0]) > 0.04


def test_a_narrower_switch_comes_closer_to_the_sign() -> None:
    """Error in proportion to the width, with steps that resolve it."""
    widths = np.array([8e-3, 4e-3, 2e-3, 1e-3])
    errors = [simulated(v_s, 128) for v_s in widths]
    slope = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert 0.8 < slope < 1.7, errors
    assert errors[-1] < 0.01 * np.ptp(reference()[0][:, 0])


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_shorter_steps_come_closer_to_the_exact_sign() -> None:
    substeps = np.array([4, 16, 64, 256])
    errors = [simulated(0.0, int(n)) for n in substeps]
    slope = -np.polyfit(np.log(substeps), np.log(errors), 1)[0]
    assert 0.7 < slope, errors
    assert errors[-1] < 1e-3 * np.ptp(reference()[0][:, 0])


def test_the_filter_converges_to_the_sign() -> None:
    """Width and step shrink together, the step staying below the time of passing the switch."""
    errors = [filtered(v_s, n) for v_s, n in [(8e-3, 16), (2e-3, 64), (5e-4, 256)]]
    assert errors[1] < 0.5 * errors[0] and errors[2] < 0.5 * errors[1], errors
    assert errors[2] < 0.01 * np.ptp(reference()[0][:, 0])


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_the_gradient_of_the_filter_is_that_of_finite_differences() -> None:
    system = friction_oscillator("coulomb", v_s=2e-2)
    y = reference()[0][:60, 0] + 1e-4 * np.random.default_rng(0).normal(size=60)
    record = sid.TimeSeries(RECORD.t[:60], INPUT[:60], y, intersample="zoh")
    with pm.Model() as model:
        Fc, c = pm.LogNormal("Fc", np.log(0.3)), pm.LogNormal("c", np.log(0.3))
        params = {n: PARAMS[n] for n in system.params} | dict(Fc=Fc, c=c)
        sid.ODEFilter("y", system, record, params, noise=1e-4, x0=X0, solver=sid.EK1(order=2, diffusion=50.0), substeps=8)
    logp, dlogp = model.compile_logp(), model.compile_dlogp()

    def at(q: np.ndarray) -> dict[str, np.ndarray]:
        return {"Fc_log__": np.array(q[0]), "c_log__": np.array(q[1])}

    q = np.log([0.3, 0.25])
    gradient = dlogp(at(q))
    assert np.all(np.abs(gradient) > 1.0)
    for i in range(2):
        e = 1e-5 * np.eye(2)[i]
        assert gradient[i] == pytest.approx((logp(at(q + e)) - logp(at(q - e))) / 2e-5, rel=1e-4)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(kind="dry"), r"kind is 'dry'; give one of \['viscous', 'coulomb', 'tanh'\]"),
        (dict(v_s=-1e-3), "v_s is -0.001; give a small speed in m/s"),
        (dict(g=np.inf), "g is inf; give the gravity along the guide"),
        (dict(observe="speed"), r"observe is 'speed'; give one of \['acceleration', 'displacement'\]"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        friction_oscillator(**options)
