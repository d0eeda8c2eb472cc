"""Systems that start where a root or a power has no finite slope: an empty tank, drag from rest, equal pressures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid


class Case(NamedTuple):
    """A system of which one function serves for the filter and for SciPy, and where it starts."""

    rates: Callable[[Any, Any, Any, Any], tuple[Any, ...]]
    states: tuple[str, ...]
    truth: dict[str, float]
    start: float
    force: np.ndarray
    step: float
    noise: float


class Plain:
    """NumPy's functions under the names of PyTensor's."""

    sqrt, abs, sign, maximum, exp, tanh = np.sqrt, np.abs, np.sign, np.maximum, np.exp, np.tanh


N = 60
STEPS = np.arange(N)
CASES = {
    "drag": Case(
        lambda m, x, u, p: ((u - p["c"] * m.sign(x[0]) * m.abs(x[0]) ** p["e"]) / 2.0,),
        ("v",),
        {"c": 0.5, "e": 1.8},
        0.0,
        np.where(STEPS > 5, 2.0, 0.0),
        0.2,
        0.02,
    ),
    "empty tank": Case(
        lambda m, x, u, p: ((u - p["a"] * m.sqrt(m.maximum(x[0], 0.0))) / p["A"],),
        ("h",),
        {"a": 0.3, "A": 2.0},
        0.0,
        0.5 + 0.4 * np.sign(np.sin(0.2 * STEPS)),
        1.0,
        0.01,
    ),
    "equal pressures": Case(
        lambda m, x, u, p: (
            u - p["C"] * m.sign(x[0] - x[1]) * m.sqrt(m.abs(x[0] - x[1])),
            (p["C"] * m.sign(x[0] - x[1]) * m.sqrt(m.abs(x[0] - x[1])) - p["L"] * x[1]) / 1.5,
        ),
        ("p1", "p2"),
        {"C": 0.2, "L": 0.05},
        1.0,
        0.1 + 0.1 * np.sign(np.sin(0.3 * STEPS)),
        1.0,
        0.01,
    ),
    "gene": Case(
        lambda m, x, u, p: (p["a"] / (1.0 + m.maximum(x[1], 0.0) ** p["n"]) - x[0], 0.7 * (x[0] - x[1])),
        ("m", "P"),
        {"a": 5.0, "n": 2.4},
        0.0,
        np.zeros(N),
        0.3,
        0.1,
    ),
    "hysteresis": Case(
        lambda m, x, u, p: (
            x[1],
            u - p["k"] * x[0] - 2.0 * x[1] - x[2],
            20.0 * x[1] - 10.0 * m.abs(x[1]) * m.abs(x[2]) ** (p["n"] - 1) * x[2] - 5.0 * x[1] * m.abs(x[2]) ** p["n"],
        ),
        ("z", "v", "r"),
        {"k": 100.0, "n": 1.3},
        0.0,
        50 * np.sin(0.12 * STEPS),
        0.02,
        0.005,
    ),
}


def exact(case: Case, values: dict[str, float]) -> np.ndarray:
    """First state at the samples, with the force held between them."""
    x, rows = np.full(len(case.states), case.start), []
    for u in case.force:
        rows.append(x[0])

        def rates(t: float, x: np.ndarray, u: float = u) -> tuple[Any, ...]:
            return case.rates(Plain, x, u, values)

        x = solve_ivp(rates, (0, case.step), x, "DOP853", rtol=1e-10, atol=1e-12).y[:, -1]
    return np.array(rows)


@pytest.mark.parametrize("name", list(CASES))
def test_the_likelihood_is_that_of_an_accurate_solution(name: str) -> None:
    """Derivatives at the start were infinite, and all likelihoods minus infinity, whatever the steps."""
    case = CASES[name]
    y = exact(case, case.truth) + case.noise * np.random.default_rng(0).standard_normal(N)
    record = sid.TimeSeries(case.step * STEPS, {"F": case.force}, y, intersample="zoh")
    system = sid.System(
        lambda t, x, u, p: case.rates(pt, x, u.F, {n: p[i] for i, n in enumerate(case.truth)}),
        states=case.states,
        inputs=("F",),
        params=tuple(case.truth),
        observe=lambda t, x, dx, u, p: x[0],
    )
    with pm.Model() as model:
        params = {n: pm.LogNormal(n, np.log(v), 0.05) for n, v in case.truth.items()}
        sid.ODEFilter("y", system, record, params, noise=case.noise, x0=case.start)
    value, gradient = model.compile_logp(model.observed_RVs, jacobian=False), model.compile_dlogp(jacobian=False)
    prior = model.compile_logp(model.free_RVs, jacobian=False)
    best = -np.inf
    for factor in (1.0, 1.001):
        values = {n: factor * v for n, v in case.truth.items()}
        residuals = (y - exact(case, values)) / case.noise
        expected = -0.5 * np.sum(residuals**2) - N * np.log(case.noise * np.sqrt(2 * np.pi))
        at, best = {f"{n}_log__": np.log(v) for n, v in values.items()}, max(best, expected)
        assert value(at) == pytest.approx(expected, abs=0.1 + 0.03 * (best - expected))
    found = gradient(at)
    for i, coordinate in enumerate(at):
        up, down = (value(b) + prior(b) for b in ({**at, coordinate: at[coordinate] + d} for d in (1e-5, -1e-5)))
        assert found[i] == pytest.approx((up - down) / 2e-5, rel=2e-3, abs=0.02)


def test_a_tank_that_runs_empty_has_a_gradient() -> None:
    """The root's infinite slope was multiplied by the zero slope of the maximum."""
    t = 2.0 * np.arange(30)
    level = np.maximum(1.0 - 0.075 * t, 0.0) ** 2
    y = level + 0.01 * np.random.default_rng(0).standard_normal(30)
    system = sid.System(
        lambda t, x, u, p: -p.a * pt.sqrt(pt.maximum(x.h, 0.0)) / 2.0,
        states=("h",),
        params=("a",),
        observe=lambda t, x, dx, u, p: x.h,
    )
    with pm.Model() as model:
        a = pm.LogNormal("a", np.log(0.3), 0.3)
        sid.ODEFilter("y", system, sid.TimeSeries(t, y=y), {"a": a}, noise=0.01, x0=1.0, substeps=32)
    value, gradient = model.compile_logp(), model.compile_dlogp()
    for at in np.log([0.27, 0.31]) + 1e-4:
        difference = (value({"a_log__": at + 1e-6}) - value({"a_log__": at - 1e-6})) / 2e-6
        assert gradient({"a_log__": at}).item() == pytest.approx(difference, rel=0.01)
