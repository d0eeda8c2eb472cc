"""A heated wall against the matrix exponential of its cells, and against the heat equation as they become small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import brentq

import pm_sysid as sid
from pm_sysid.models import heated_wall

PARAMS, L = {"k": 0.8, "c": 1.6e6, "h": 12.0}, 0.3


def test_cells_are_those_of_the_matrix_exponential() -> None:
    n, (k, c, h) = 6, PARAMS.values()
    d = L / n
    G = np.diag(np.full(n - 1, k / d), 1) + np.diag(np.full(n - 1, k / d), -1)
    G -= np.diag(G.sum(axis=1))
    G[-1, -1] -= 1 / (1 / h + d / (2 * k))
    A, b = G / (c * d), np.r_[100.0 / (c * d), np.zeros(n - 1)]
    t = np.arange(0.0, 40.0) * 1800.0
    run = sid.simulate(heated_wall(n, thickness=L), sid.TimeSeries(t, np.full(t.size, 100.0)), PARAMS, x0=0.0, substeps=8)
    steady = -np.linalg.solve(A, b)
    expected = np.array([steady - expm(A * s) @ steady for s in t])
    np.testing.assert_allclose(run["T"], expected, atol=1e-6 * steady.max())
    np.testing.assert_allclose(run["inner"], expected[:, 0] + 100.0 * d / (2 * k), rtol=1e-6)
    # What flows through half a cell leaves through the air.
    outer = run["outer"].values
    np.testing.assert_allclose(h * outer, (run["T"].values[:, -1] - outer) * 2 * k / d, rtol=1e-10)


def test_the_slowest_decay_is_that_of_the_heat_equation() -> None:
    """``beta tan(beta) = h L / k`` (Carslaw and Jaeger 1959, Section 3.11); stiff: the cells take seconds to days."""
    k, c, h = PARAMS.values()
    beta = brentq(lambda b: b * np.sin(b) - h * L / k * np.cos(b), 1e-6, np.pi / 2)
    rate = k / c * (beta / L) ** 2
    t = np.arange(0.0, 20.0) * 20_000.0
    run = sid.simulate(heated_wall(30, thickness=L), sid.TimeSeries(t, np.zeros(20)), PARAMS, x0=10.0, method="implicit")
    late = run["inner"].values[10:]
    np.testing.assert_allclose(-np.log(late[1:] / late[:-1]) / 20_000.0, rate, rtol=1e-3)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(n=1, thickness=0.1), "n is 1; give a whole number"),
        (dict(n=3, thickness=-1.0), "thickness is -1.0; give the thickness of the wall in metres"),
        (dict(n=3, thickness=0.1, observe="left"), "observe is 'left'; give one of"),
    ],
)
def test_impossible_walls_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        heated_wall(**arguments)
