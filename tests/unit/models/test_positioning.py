"""The positioning system against closed forms and an adaptive integrator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from pm_sysid.models import emps
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.simulate import simulate
from pm_sysid.symbolic.scalars import evaluate

PARAMS = dict(M=90.0, Fv=200.0, Fc=20.0, offset=-3.0)
H = 1e-3


def acceleration(v: float, tau: float, **options: Any) -> float:
    system = emps(**options)
    at = dict(zip([*system.x, *system.u, *system.p], [0.1, v, tau, *(PARAMS[n] for n in system.params)], strict=True))
    rate, result = evaluate(system.f, at)
    assert rate == v
    return result


def held_force(force: Any, length: int | None = None) -> TimeSeries:
    u = np.full(length, force) if length else np.asarray(force)
    return TimeSeries(np.arange(len(u)) * H, u, intersample="zoh")


def test_channels() -> None:
    system = emps()
    assert (system.states, system.inputs, system.params) == (("q", "v"), ("tau",), ("M", "Fv", "Fc", "offset"))
    assert system.chains == (("q", "v"),) and system.g == (system.x[0],)


@pytest.mark.parametrize("v_s", [0.0, 1e-3])
@pytest.mark.parametrize("v", [-0.1, 0.1])
def test_the_force_of_a_constant_speed(v: float, v_s: float) -> None:
    force = 200.0 * v + 20.0 * np.sign(v) - 3.0
    assert acceleration(v, force, v_s=v_s) == pytest.approx(0.0, abs=1e-12)
    assert acceleration(v, force + 9.0, v_s=v_s) == pytest.approx(0.1)


def test_the_switch_is_as_wide_as_documented() -> None:
    friction = (7.0 - 200.0 * 2.65e-3 + 3.0 - 90.0 * acceleration(2.65e-3, 7.0, v_s=1e-3)) / 20.0
    assert friction == pytest.approx(0.99, abs=2e-4)
    assert acceleration(0.0, -3.0, v_s=0.0) == acceleration(0.0, -3.0) == 0.0


@pytest.mark.parametrize("v_s", [0.0, 1e-4])
def test_coasting(v_s: float) -> None:
    """Without a force the mass slides for ``M / Fv log(1 + Fv v / Fc)`` seconds."""
    params = PARAMS | {"offset": 0.0}
    rate, final = 200.0 / 90.0, -20.0 / 200.0
    stop = np.log(1 - 0.1 / final) / rate
    record = held_force(0.0, int((stop - 2e-3) / H))
    run = simulate(emps(v_s=v_s), record, params, x0=dict(q=0.0, v=0.1), substeps=8)
    decay = np.exp(-rate * record.t)
    np.testing.assert_allclose(run["v"], final + (0.1 - final) * decay, atol=1e-10 if v_s == 0 else 3e-5)
    np.testing.assert_allclose(
        run["q"], final * record.t + (0.1 - final) * (1 - decay) / rate, atol=1e-10 if v_s == 0 else 3e-5
    )
    assert 0 < run["v"][-1] < 0.001


def test_creeping_at_rest() -> None:
    """Held by less than the Coulomb force the smooth system creeps as the docstring says."""
    run = simulate(emps(v_s=1e-3), held_force(12.0, 500), PARAMS, x0=0.0)
    final = brentq(lambda v: 12.0 + 3.0 - 200.0 * v - 20.0 * np.tanh(v / 1e-3), 0.0, 0.1)
    assert float(run["v"][-1]) == pytest.approx(final, rel=1e-4)
    assert final == pytest.approx(1e-3 * np.arctanh(15.0 / 20.0), rel=0.03)


def test_states_equal_those_of_an_adaptive_integrator() -> None:
    force = 40.0 * np.sin(2 * np.pi * 4.0 * np.arange(400) * H) + np.random.default_rng(0).normal(0, 10.0, 400)
    run = simulate(emps(v_s=2e-3), held_force(force), PARAMS, x0=dict(q=0.2, v=-0.01), substeps=16)
    x, states = np.array([0.2, -0.01]), [np.array([0.2, -0.01])]
    for tau in force[:-1]:

        def rate(t: float, x: np.ndarray, tau: float = tau) -> list[float]:
            return [x[1], (tau + 3.0 - 200.0 * x[1] - 20.0 * np.tanh(x[1] / 2e-3)) / 90.0]

        x = solve_ivp(rate, (0.0, H), x, "DOP853", rtol=1e-10, atol=1e-12).y[:, -1]
        states.append(x)
    expected = np.array(states)
    assert np.sum(np.diff(np.sign(expected[:, 1])) != 0) >= 3
    np.testing.assert_allclose(run["q"], expected[:, 0], atol=1e-9)
    np.testing.assert_allclose(run["v"], expected[:, 1], atol=1e-8)


@pytest.mark.parametrize("v_s", [-1e-3, np.nan, np.inf])
def test_impossible_speeds_are_refused(v_s: float) -> None:
    with pytest.raises(ValueError, match=r"v_s is .*; give a small speed in m/s, such as 1e-3, or 0 for the exact sign"):
        emps(v_s=v_s)
