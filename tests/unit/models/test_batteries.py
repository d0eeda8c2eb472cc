"""The equivalent circuit of a battery against closed forms, and its open-circuit voltage against SciPy's spline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import pm_sysid as sid
from pm_sysid.models import battery

SOC = np.array([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
VOLTAGE = np.array([2.9, 3.25, 3.4, 3.55, 3.68, 3.85, 4.02, 4.2])
CELL = battery(SOC, VOLTAGE)
PARAMS = {"Q": 2.5, "R0": 0.02, "R1": 0.01, "C1": 200.0, "R2": 0.015, "C2": 4e4}


def test_a_constant_current() -> None:
    """Charge falls on a line, the pairs approach ``I R`` exponentially: two seconds and ten minutes, samples every minute."""
    t = np.arange(0.0, 3000.0, 60.0)
    run = sid.simulate(CELL, sid.TimeSeries(t, np.full(t.size, 2.0)), PARAMS, x0=[0.95, 0.0, 0.0], method="implicit")
    z = 0.95 - 2.0 * t / (3600 * 2.5)
    v1, v2 = 2.0 * 0.01 * -np.expm1(-t / 2.0), 2.0 * 0.015 * -np.expm1(-t / 600.0)
    np.testing.assert_allclose(run["z"], z, rtol=1e-12)
    np.testing.assert_allclose(run["v1"], v1, atol=1e-6)
    np.testing.assert_allclose(run["v2"], v2, atol=1e-6)
    expected = CubicSpline(SOC, VOLTAGE, bc_type="natural")(z) - v1 - v2 - 0.02 * 2.0
    np.testing.assert_allclose(run["V"], expected, atol=1e-6)


def test_the_open_circuit_voltage_goes_on_in_a_straight_line() -> None:
    z = np.array([-0.2, -0.1, 0.0, *SOC[1:], 1.1, 1.2])
    rest = sid.TimeSeries(np.arange(2.0), np.zeros(2))
    run = sid.simulate(CELL, rest, PARAMS, x0={"z": z, "v1": 0.0, "v2": 0.0}, substeps=1)["V"].values[:, 0]
    np.testing.assert_allclose(run[2:-2], VOLTAGE, rtol=1e-12)
    np.testing.assert_allclose(np.diff(run[:3], 2), 0.0, atol=1e-10)
    np.testing.assert_allclose(np.diff(run[-3:], 2), 0.0, atol=1e-10)


@pytest.mark.parametrize(
    "soc, voltage, message",
    [
        ([0.0, 1.0], [3.0, 4.0], "give a voltage for each state of charge, at least three"),
        ([0.0, 0.5, 1.0], [3.0, 4.0], r"soc has the shape \(3,\) and voltage \(2,\)"),
        ([0.0, 0.6, 0.5], [3.0, 3.5, 4.0], "give rising states of charge"),
        ([0.0, 0.5, np.nan], [3.0, 3.5, 4.0], "finite"),
    ],
)
def test_impossible_tables_are_refused(soc: Any, voltage: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        battery(soc, voltage)
