"""Tanks that drain through orifices."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytensor.tensor as pt

from pm_sysid.arguments import number
from pm_sysid.models.sensors import choose
from pm_sysid.symbolic.system import System


def cascaded_tanks(*, h_s: float = 1e-3, observe: Literal["lower", "both"] = "lower") -> System:
    """Two tanks one above the other: ``h1' = k4 u - k1 sqrt(h1)``, ``h2' = k2 sqrt(h1) - k3 sqrt(h2)``.

    Parameters
    ----------
    h_s : float, default 1e-3
        Level below which the square root is smoothed, in the units of the levels; see Notes.
    observe : {"lower", "both"}
        Measured quantity: the lower level ``h2``, or both levels.

    Returns
    -------
    System
        States ``h1``, ``h2`` (m, or V of the sensor); input ``u``, the voltage of the pump (V); parameters ``k1``, ``k2``,
        ``k3`` (m^(1/2)/s) of the orifices and ``k4`` (m/(V s)) of the pump.

    Raises
    ------
    ValueError
        If `h_s` is not positive, or there is no such sensor.

    Notes
    -----
    ``sqrt(h)`` has no derivative for an empty tank and no value for a negative level, which can occur in a numerical
    solution. It is replaced by ``h / (h^2 + h_s^2)^(1/4)``, which is smooth and odd, and differs from the root by less than
    0.25 % above ``10 h_s``. A negative level returns to zero. The last part of a tank empties exponentially with the rate
    ``k1 / sqrt(h_s)``; explicit steps must be shorter than 2.8 times the inverse of this rate.

    Overflow is not included in this model; the tanks of the benchmark overflow at the highest levels of its record.

    Source: Schoukens and Noel, "Three benchmarks addressing open challenges in nonlinear system identification" (IFAC World
    Congress, 2017), without overflow.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.cascaded_tanks().params
    ('k1', 'k2', 'k3', 'k4')
    """
    h_s = _level(h_s)

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        upper, lower = signed_root(x.h1, h_s), signed_root(x.h2, h_s)
        return p.k4 * u.u - p.k1 * upper, p.k2 * upper - p.k3 * lower

    return System(dynamics, states=("h1", "h2"), inputs=("u",), params=("k1", "k2", "k3", "k4"), observe=_level_sensor(observe))


def coupled_tanks(*, h_s: float = 1e-3, observe: Literal["lower", "both"] = "both") -> System:
    """Two tanks side by side: ``A1 h1' = q - a12 s(h1 - h2)``, ``A2 h2' = a12 s(h1 - h2) - a2 s(h2)``.

    The speed of the flow through an orifice is ``s(h) = sgn(h) sqrt(2 g |h|)``.

    Parameters
    ----------
    h_s : float, default 1e-3
        Difference of levels (m) below which the square root is smoothed, as in :func:`cascaded_tanks`.
    observe : {"lower", "both"}
        Measured quantity: the level ``h2`` of the draining tank, or both.

    Returns
    -------
    System
        States ``h1``, ``h2`` (m); input ``q``, the inflow of the first tank (m^3/s); parameters ``A1``, ``A2`` (m^2, areas of
        the tanks), ``a12``, ``a2`` (m^2, effective areas of the connection and of the outlet). Gravity is 9.81 m/s^2.

    Raises
    ------
    ValueError
        As for :func:`cascaded_tanks`.

    Notes
    -----
    Where both levels are equal, the derivative of the exact flow is unbounded. With the smoothed flow, the difference of the
    levels decays with the rate ``sqrt(2 g / h_s) a12 (1 / A1 + 1 / A2)``.

    Source: Torricelli's law and the balance of volumes.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.coupled_tanks().outputs
    ('y1', 'y2')
    """
    h_s = _level(h_s)
    speed = math.sqrt(2 * 9.81)

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        across = p.a12 * speed * signed_root(x.h1 - x.h2, h_s)
        return (u.q - across) / p.A1, (across - p.a2 * speed * signed_root(x.h2, h_s)) / p.A2

    return System(
        dynamics, states=("h1", "h2"), inputs=("q",), params=("A1", "A2", "a12", "a2"), observe=_level_sensor(observe)
    )


def signed_root(h: Any, h_s: float) -> Any:
    """``sgn(h) sqrt(|h|)``, smoothed below ``h_s``, with a finite derivative everywhere."""
    return h / pt.sqrt(pt.sqrt(h * h + h_s * h_s))


def _level(h_s: Any) -> float:
    remedy = "give a small positive level, such as 1e-3: the exact root has no slope at zero"
    if isinstance(h_s, bool) or not number(h_s, "h_s", remedy) > 0:
        raise ValueError(f"h_s is {h_s!r}; {remedy}.")
    return float(h_s)


def _level_sensor(kind: str) -> Any:
    return choose(kind, {"lower": lambda t, x, dx, u, p: x.h2, "both": lambda t, x, dx, u, p: (x.h1, x.h2)})
