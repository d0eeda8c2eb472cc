"""An oscillator on a moving base, with friction in its guide."""

from __future__ import annotations

from typing import Any, Literal

import pytensor.tensor as pt

from pm_sysid.arguments import among, number
from pm_sysid.models.sensors import choose
from pm_sysid.symbolic.system import System

#: Parameters of each friction law.
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
        Friction ``F`` in addition to the viscous damping ``c``: none; ``Fc sgn(z')``; ``Fc tanh(beta z')``.
    g : float, default 9.81
        Component of gravity along the guide (m/s^2); zero for a horizontal guide.
    v_s : float, default 1e-3
        Speed (m/s) over which the sign of the Coulomb friction is smoothed: ``sgn(z')`` is replaced by ``tanh(z' / v_s)``,
        which differs from one by less than 1 % for speeds above ``2.65 v_s``. With zero the sign function itself is used.
        Only for ``kind="coulomb"``.
    observe : {"displacement", "acceleration"}
        Measured quantity: the displacement ``z`` relative to the base, or the acceleration ``x'' = z'' + a`` of the mass.

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
    The equilibrium under gravity is at ``z < 0``, where ``k z + k3 z^3 = -m g``.

    Choice of ``v_s``: the speed of a sliding mass passes through the smoothed range in a time of about ``2 v_s / |z''|``. If
    this time is short compared with the step, the friction is effectively a jump, and every solver (Runge-Kutta or the
    filter) is only of first order, with an error in speed of up to ``2 Fc / m`` times the step at each reversal. With a
    larger ``v_s`` the law differs more from the sign function, and the error of the solution is proportional to ``v_s``. For
    a good choice both errors are small: ``v_s`` of a hundredth of the typical speed, and steps shorter than ``v_s / |z''|``
    (``substeps="auto"`` finds them).

    Near zero speed the smoothed friction is viscous with the rate ``Fc / (m v_s)``, and explicit Runge-Kutta steps must be
    shorter than 2.8 times the inverse of this rate. Under a force f below ``Fc`` the mass creeps at the speed
    ``v_s artanh(f / Fc)``, where a real mass sticks. With the exact sign function (``v_s=0``) the velocity chatters. The
    linearisation of the filter and all gradients then lack the dependence of the reversal times on the parameters. This is a
    problem for gradient-based samplers, but not for Metropolis chains.

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
