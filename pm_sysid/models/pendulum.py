"""A pendulum driven by a torque."""

from __future__ import annotations

from typing import Any, Literal

import pytensor.tensor as pt

from pm_sysid.doors import flag
from pm_sysid.models.elements import direction, speed_width
from pm_sysid.models.sensors import choose
from pm_sysid.system import System


def pendulum(
    *,
    friction: bool = False,
    v_s: float = 1e-2,
    observe: Literal["angle", "velocity", "acceleration"] = "angle",
) -> System:
    """Pendulum ``J theta'' + c theta' (+ Tc sgn(theta')) + G sin(theta) = tau``; it hangs at ``theta = 0``.

    Parameters
    ----------
    friction : bool, default False
        Add dry friction of the bearing, the torque ``Tc``.
    v_s : float, default 1e-2
        Angular speed (rad/s) over which it changes sign: ``sgn(theta')`` is taken as ``tanh(theta' / v_s)``; zero takes the
        sign itself. What :func:`friction_oscillator` says of the choice holds here too.
    observe : {"angle", "velocity", "acceleration"}
        What the sensor reads. The angle is not wrapped to one turn: unwrap a record that is.

    Returns
    -------
    System
        States ``theta`` (rad), ``omega`` (rad/s); input ``tau`` (N m); parameters ``J`` (kg m^2), ``c`` (N m s), ``G`` (N m,
        mass times gravity times distance of the centre of mass), and ``Tc`` (N m) if asked for.

    Raises
    ------
    ValueError
        If `v_s` is negative or not finite, or there is no such sensor.

    Notes
    -----
    A point mass m on a massless rod of length l has ``J = m l^2`` and ``G = m g l``. Without a torque only the ratios to
    ``J`` show in the motion: fix ``J`` there.

    Source: Newton's law about the pivot; Strogatz, Nonlinear Dynamics and Chaos (2nd edition, 2015), Section 6.7.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.pendulum(friction=True).params
    ('J', 'c', 'G', 'Tc')
    """
    v_s = speed_width(v_s)
    sensors = {
        "angle": lambda t, x, dx, u, p: x.theta,
        "velocity": lambda t, x, dx, u, p: x.omega,
        "acceleration": lambda t, x, dx, u, p: dx.omega,
    }

    friction = flag(friction, "friction")

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        torque = u.tau - p.c * x.omega - p.G * pt.sin(x.theta)
        if friction:
            torque = torque - p.Tc * direction(x.omega, v_s)
        return x.omega, torque / p.J

    return System(
        dynamics,
        states=("theta", "omega"),
        inputs=("tau",),
        params=("J", "c", "G", *(("Tc",) if friction else ())),
        observe=choose(observe, sensors),
    )
