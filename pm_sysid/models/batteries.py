"""Batteries as equivalent circuits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy

from pm_sysid.arguments import shown
from pm_sysid.records.validation import real
from pm_sysid.symbolic.system import System


def battery(soc: Any, voltage: Any) -> System:
    """Equivalent circuit of a battery: a source ``OCV(z)``, a resistor, and two pairs of a resistor and a capacitor.

    ``z' = -I / (3600 Q)``, ``v1' = I / C1 - v1 / (R1 C1)``, ``v2' = I / C2 - v2 / (R2 C2)``, measured as
    ``V = OCV(z) - v1 - v2 - R0 I``.

    Parameters
    ----------
    soc, voltage : array, shape (n,)
        Open-circuit voltage (V) at rising states of charge (shares from 0 to 1), at least three. Between them it is a natural
        cubic spline, beyond them a straight line.

    Returns
    -------
    System
        States ``z`` (state of charge, from 0 to 1), ``v1``, ``v2`` (V); input ``I`` (A, positive when discharging); output
        ``V`` (V); parameters ``Q`` (Ah), ``R0``, ``R1``, ``R2`` (Ohm), ``C1``, ``C2`` (F).

    Raises
    ------
    ValueError, TypeError
        For tables that are not finite, of different length, too short, or not rising in ``soc``.

    Notes
    -----
    The two pairs are interchangeable: tell them apart by their priors (say ``R1 C1`` of seconds and ``R2 C2`` of minutes). A
    record of hours with samples every minute is stiff where the faster pair has settled within an interval.

    Source: Hu, Li and Peng (2012), "A comparative study of equivalent circuit models for Li-ion batteries", Journal of Power
    Sources 198; Plett (2015), Battery Management Systems I, Chapter 2.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> cell = sid.models.battery([0.0, 0.1, 0.5, 0.9, 1.0], [3.0, 3.4, 3.7, 4.0, 4.2])
    >>> values = {"Q": 2.5, "R0": 0.02, "R1": 0.01, "C1": 200.0, "R2": 0.015, "C2": 4e4}
    >>> rest = sid.TimeSeries(np.arange(0.0, 600.0, 60.0), np.zeros(10))
    >>> run = sid.simulate(cell, rest, values, x0=[0.5, 0.0, 0.0])
    >>> bool(abs(run["V"] - 3.7).max() < 1e-9)
    True
    """
    levels, volts = real(soc, "soc"), real(voltage, "voltage")
    if levels.ndim != 1 or levels.shape != volts.shape or levels.size < 3:
        raise ValueError(
            f"soc has the shape {levels.shape} and voltage {volts.shape}; give a voltage for each state of charge, "
            "at least three."
        )
    if not (np.isfinite(levels).all() and np.isfinite(volts).all()):
        raise ValueError(f"soc is {shown(soc)} and voltage {shown(voltage)}; give finite numbers.")
    if not np.all(np.diff(levels) > 0):
        raise ValueError(f"soc is {shown(soc)}; give rising states of charge, each once.")
    base, slope, bends = _natural_spline(levels, volts)

    def ocv(z: Any) -> Any:
        bent = (bend * pt.maximum(z - level, 0.0) ** 3 for level, bend in zip(levels, bends, strict=True))
        return sum(bent, base + slope * (z - levels[0]))

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any, Any]:
        return -u.I / (3600 * p.Q), u.I / p.C1 - x.v1 / (p.R1 * p.C1), u.I / p.C2 - x.v2 / (p.R2 * p.C2)

    return System(
        dynamics,
        states=("z", "v1", "v2"),
        inputs=("I",),
        params=("Q", "R0", "R1", "C1", "R2", "C2"),
        observe=lambda t, x, dx, u, p: {"V": ocv(x.z) - x.v1 - x.v2 - p.R0 * u.I},
    )


def _natural_spline(x: np.ndarray, y: np.ndarray) -> tuple[float, float, list[float]]:
    """Natural cubic spline as a straight line through the first point and a cubic power from each knot on: its factors."""
    spline = scipy.interpolate.CubicSpline(x, y, bc_type="natural")
    cubic = np.concatenate([[0.0], spline.c[0], [0.0]])
    return float(y[0]), float(spline.c[2][0]), [float(b) for b in np.diff(cubic)]
