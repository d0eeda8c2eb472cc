"""An oscillator on a shaking table with friction in its guide."""

from __future__ import annotations

from typing import Any, Literal

import pytensor.tensor as pt

from pm_sysid.doors import among, number
from pm_sysid.models.sensors import choose
from pm_sysid.system import System

#: Parameters of each law of friction.
LAWS: dict[str, tuple[str, ...]] = {"viscous": (), "coulomb": ("Fc",), "tanh": ("Fc", "beta")}


def friction_oscillator(
    kind: Literal["viscous", "coulomb", "tanh"] = "viscous",
    *,
    g: float = 9.81,
    v_s: float = 1e-3,
    observe: Literal["displacement", "acceleration"] = "displacement",
) -> System:
    """Mass on a nonlinear spring and a guide with friction: ``m x'' = -c z' - k z - k3 z^3 - m g - F``, ``z = x - y``.

    The base moves by y(t); the input is its acceleration ``a = y''``, so that
    ``m z'' = -c z' - k z - k3 z^3 - F - m (g + a)``.

    Parameters
    ----------
    kind : {"viscous", "coulomb", "tanh"}
        Friction ``F`` beside the viscous damping ``c``: none; ``Fc sgn(z')``; ``Fc tanh(beta z')``.
    g : float, default 9.81
        Gravity along the guide (m/s^2); zero for a horizontal one.
    v_s : float, default 1e-3
        Speed (m/s) over which Coulomb friction changes sign: ``sgn(z')`` is taken as ``tanh(z' / v_s)``, which is within 1 %
        of one for speeds above ``2.65 v_s``. Zero takes the sign function itself. Only for ``kind="coulomb"``.
    observe : {"displacement", "acceleration"}
        What the sensor reads: the displacement ``z`` relative to the base, or the acceleration ``x'' = z'' + a`` of the mass.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s), relative to the base; input ``a`` (m/s^2); parameters ``m`` (kg), ``c`` (N s/m), ``k``
        (N/m), ``k3`` (N/m^3), and ``Fc`` (N), ``beta`` (s/m) of the laws that have them.

    Raises
    ------
    ValueError
        For a law or sensor that does not exist, and for ``g`` or ``v_s`` out of range.

    Notes
    -----
    At rest under gravity the mass hangs at ``z < 0``, where ``k z + k3 z^3 = -m g``.

    What the choice of ``v_s`` does. A sliding mass passes the smooth switch in a time of about ``2 v_s / |z''|``: the
    smaller that is beside the step, the more the steps see a jump, and any solver (Runge-Kutta or the filter) falls to first
    order, with an error in speed of up to ``2 Fc / m`` times the step at each reversal. The larger ``v_s``, the more the law
    differs: the solution departs from that of the sign in proportion to ``v_s``. A good choice makes both small: ``v_s`` of
    a hundredth of the typical speed, and steps shorter than ``v_s / |z''|`` (``substeps="auto"`` finds them).

    Near zero speed the smooth friction is viscous with the rate ``Fc / (m v_s)``, and explicit Runge-Kutta steps must be
    shorter than 2.8 times its inverse. A mass held by a force f below ``Fc`` creeps at ``v_s artanh(f / Fc)`` where the true
    one sticks. With the exact sign (``v_s=0``) it chatters, and the linearisation of the filter and all gradients miss that
    the instants of reversal depend on the parameters, which gradient-based samplers suffer from, Metropolis chains do not.

    Source: Green (2015), Eqs. 23-26.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.friction_oscillator("tanh").params
    ('m', 'c', 'k', 'k3', 'Fc', 'beta')
    """
    if not among(kind, LAWS):
        raise ValueError(f"kind is {kind!r}; give one of {list(LAWS)}.")
    if not number(v_s, "v_s", "give a small speed in m/s") >= 0:
        raise ValueError(f"v_s is {v_s!r}; give a small speed in m/s, such as 1e-3, or 0 for the exact sign.")
    if not abs(number(g, "g", "give the gravity along the guide in m/s^2")) < 1e30:
        raise ValueError(f"g is {g!r}; give the gravity along the guide in m/s^2, such as 9.81, or 0.")
    sensors: dict[str, Any] = {
        "displacement": lambda t, x, dx, u, p: x.z,
        "acceleration": lambda t, x, dx, u, p: dx.v + u.a,
    }

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        force = -p.c * x.v - p.k * x.z - p.k3 * x.z**3
        if kind == "coulomb":
            force = force - p.Fc * (pt.tanh(x.v / v_s) if v_s else pt.sign(x.v))
        elif kind == "tanh":
            force = force - p.Fc * pt.tanh(p.beta * x.v)
        return x.v, force / p.m - (g + u.a)

    return System(
        dynamics,
        states=("z", "v"),
        inputs=("a",),
        params=("m", "c", "k", "k3", *LAWS[kind]),
        observe=choose(observe, sensors),
    )
