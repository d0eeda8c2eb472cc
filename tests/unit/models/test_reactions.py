"""Networks of reactions against their equations, written out once more and solved to ten digits, and published values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from pm_sysid import models

type Law = Callable[[np.ndarray], Sequence[float]]


def check(
    system: sid.System, law: Law, params: dict[str, float], x0: list[float], times: np.ndarray, sums: Sequence[Sequence[int]]
) -> np.ndarray:
    """States (T, n) of a free run: within 1e-6 of the largest of each, and sums that the reactions leave as they are."""
    run = sid.simulate(system, sid.TimeSeries(times), params, x0=x0)
    found = np.stack([run[s].values for s in system.states], axis=1)
    run = solve_ivp(lambda t, x: law(x), times[[0, -1]], x0, "LSODA", times, rtol=1e-11, atol=1e-17)
    expected: np.ndarray = run.y.T
    np.testing.assert_allclose(found / expected.max(axis=0), expected / expected.max(axis=0), rtol=0, atol=1e-6)
    for several in sums:
        constant = found[:, list(several)].sum(axis=1)
        np.testing.assert_allclose(constant, constant[0], rtol=1e-10)
    return found


def test_robertson() -> None:
    def law(x: np.ndarray) -> list[float]:
        a, b, c = x
        return [-0.04 * a + 1e4 * b * c, 0.04 * a - 1e4 * b * c - 3e7 * b**2, 3e7 * b**2]

    times = np.concatenate([[0.0], np.logspace(-4, 11, 16)])
    found = check(models.robertson(), law, {"k1": 0.04, "k2": 3e7, "k3": 1e4}, [1.0, 0, 0], times, [(0, 1, 2)])
    # Mazzia and Magherini (2008), Test Set for IVP Solvers, Section II.10.
    np.testing.assert_allclose(found[-1], [0.2083340149701255e-7, 0.8333360770334713e-13, 0.9999999791665050], rtol=2e-3)


def test_hires() -> None:
    def law(y: np.ndarray) -> list[float]:
        y1, y2, y3, y4, y5, y6, y7, y8 = y
        return [
            -1.71 * y1 + 0.43 * y2 + 8.32 * y3 + 0.0007,
            1.71 * y1 - 8.75 * y2,
            -10.03 * y3 + 0.43 * y4 + 0.035 * y5,
            8.32 * y2 + 1.71 * y3 - 1.12 * y4,
            -1.745 * y5 + 0.43 * y6 + 0.43 * y7,
            -280 * y6 * y8 + 0.69 * y4 + 1.71 * y5 - 0.43 * y6 + 0.69 * y7,
            280 * y6 * y8 - 1.81 * y7,
            -280 * y6 * y8 + 1.81 * y7,
        ]

    rates = [1.71, 0.43, 8.32, 0.69, 0.035, 8.32, 280.0, 0.69, 0.69, 0.0007]
    params = dict(zip(models.hires().params, rates, strict=True))
    times = np.concatenate([np.linspace(0.0, 5.0, 6), np.linspace(10.0, 321.8122, 10)])
    found = check(models.hires(), law, params, [1.0, 0, 0, 0, 0, 0, 0, 0.0057], times, [(6, 7)])
    # Mazzia and Magherini (2008), Test Set for IVP Solvers, Section II.1.
    expected = [
        0.7371312573325668e-3,
        0.1442485726316185e-3,
        0.5888729740967575e-4,
        0.1175651343283149e-2,
        0.2386356198831331e-2,
        0.6238968252742796e-2,
        0.2849998395185769e-2,
        0.2850001604814231e-2,
    ]
    np.testing.assert_allclose(found[-1], expected, rtol=1e-6)


@pytest.mark.parametrize("kf", [30.0, 1e6])
def test_enzyme(kf: float) -> None:
    def law(x: np.ndarray) -> list[float]:
        s, e, c, _ = x
        return [-kf * s * e + 10 * c, -kf * s * e + 12 * c, kf * s * e - 12 * c, 2 * c]

    params: dict[str, Any] = {"kf": kf, "kr": 10.0, "kcat": 2.0}
    times = np.concatenate([[0.0], np.logspace(-6, 3, 19)])
    check(models.enzyme(), law, params, [1.0, 0.05, 0.0, 0.0], times, [(1, 2), (0, 2, 3)])
