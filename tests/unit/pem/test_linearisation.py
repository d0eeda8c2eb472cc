"""What an extended Kalman filter's linearisation costs a fit, against the fit by an unscented one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.linearisation import linearisation_shift

TRUTH = {"mu": 1.5, "k": 2.0}
NOISE = {"q": 0.3, "r": 0.1}


def van_der_pol() -> sid.System:
    return sid.System(
        lambda t, x, u, p: (x.v, p.mu * (1 - x.z**2) * x.v - p.k * x.z + u.F),
        states=("z", "v"),
        inputs=("F",),
        params=("mu", "k"),
        observe=lambda t, x, dx, u, p: x.z,
    )


def record(system: sid.System, seed: int, q: float, dt: float = 0.3, n: int = 400) -> sid.TimeSeries:
    """A path that is pushed in each sampling interval by a random number of the size q, measured with noise of 0.2."""
    rng = np.random.default_rng(seed)
    t = dt * np.arange(n)
    force = np.sin(0.6 * t) + 0.7 * np.sin(1.3 * t + 1.0)
    x, z = np.array([0.5, 0.0]), np.empty(n)
    for i in range(n):
        z[i] = x[0]
        if i + 1 < n:
            x = moved(x, t[i : i + 2], force[i : i + 2]) + np.array([0.0, q * rng.standard_normal()])
    return sid.TimeSeries(t, force, z + 0.2 * rng.standard_normal(n), inputs="F", intersample="foh")


def moved(x: np.ndarray, t: np.ndarray, force: np.ndarray, parts: int = 16) -> np.ndarray:
    """The state at the end of a sampling interval, by Runge-Kutta steps."""

    def rate(s: float, x: np.ndarray) -> np.ndarray:
        return np.array([x[1], TRUTH["mu"] * (1 - x[0] ** 2) * x[1] - TRUTH["k"] * x[0] + np.interp(s, t, force)])

    h = (t[1] - t[0]) / parts
    for s in t[0] + h * np.arange(parts):
        a = rate(s, x)
        b = rate(s + h / 2, x + h / 2 * a)
        c = rate(s + h / 2, x + h / 2 * b)
        x = x + h / 6 * (a + 2 * b + 2 * c + rate(s + h, x + h * c))
    return x


def fit(system: sid.System, data: sid.TimeSeries, kind: Any, **options: Any) -> sid.PEMResult:
    predictor = kind(Q={"v": "q"}, R={"y": "r"}, **options)
    return sid.fit_pem(system, data, {**TRUTH, **NOISE}, predictor=predictor, objective="likelihood", progressbar=False)


def test_one_step_goes_where_the_fit_by_an_unscented_filter_ends() -> None:
    system = van_der_pol()
    data = record(system, 3, q=0.5)
    extended, unscented = fit(system, data, sid.ExtendedKalman), fit(system, data, sid.UnscentedKalman)
    shift = linearisation_shift(extended.target, extended.x, extended.x_stderr)
    assert np.all(np.abs(extended.x + shift - unscented.x) < 0.1 * unscented.x_stderr)
    far = np.abs(shift / unscented.x_stderr)
    k = extended.names.index("k")
    assert far[k] > 1.0
    assert "The filter linearises: without that, k would move by" in extended.message
    assert "linearises" not in unscented.message
    # The standard errors hold what the linearisation has moved.
    assert extended.success and extended.x_stderr[k] > 1.3 * unscented.x_stderr[k]


@pytest.mark.parametrize("q", [0.0, 0.02])
def test_nothing_is_said_where_the_state_is_known_well(q: float) -> None:
    system = van_der_pol()
    found = fit(system, record(system, 4, q=q, dt=0.1, n=200), sid.ExtendedKalman)
    assert "linearises" not in found.message


def test_linear_equations_are_not_linearised() -> None:
    system = sid.System(lambda t, x, u, p: -p.k * x.y, states=("y",), params=("k",), observe=lambda t, x, dx, u, p: x.y)
    t = np.linspace(0.0, 5.0, 60)
    data = sid.TimeSeries(t, None, np.exp(-t) + 0.05 * np.random.default_rng(0).standard_normal(60))
    found = sid.fit_pem(
        system,
        data,
        {"k": 1.2, "q": 0.05, "r": 0.05},
        predictor=sid.ExtendedKalman(Q={"y": "q"}, R={"y": "r"}),
        objective="likelihood",
        progressbar=False,
    )
    assert not linearisation_shift(found.target, found.x, found.x_stderr).any()
