"""A pendulum driven by a torque."""

from __future__ import annotations

from typing import Any, Literal

import pytensor.tensor as pt

from pm_sysid.arguments import flag
from pm_sysid.models.elements import direction, speed_width
from pm_sysid.models.sensors import choose
from pm_sysid.symbolic.system import System


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
        Angular speed (rad/s) over which the sign of the friction is smoothed: ``sgn(theta')`` is replaced by
        ``tanh(theta' / v_s)``; with zero the sign function itself is used. The notes of :func:`friction_oscillator` on the
        choice also apply here.
    observe : {"angle", "velocity", "acceleration"}
        Measured quantity. The angle is not wrapped to one turn; unwrap the angle of a record first if necessary.

    Returns
    -------
    System
        States ``theta`` (rad), ``omega`` (rad/s); input ``tau`` (N m); parameters ``J`` (kg m^2), ``c`` (N m s), ``G`` (N m,
        mass times gravity times distance of the centre of mass), and ``Tc`` (N m) with friction.

    Raises
    ------
    ValueError
        As for :func:`friction_oscillator`.

    Notes
    -----
    A point mass m on a massless rod of length l has ``J = m l^2`` and ``G = m g l``. Without a torque only the ratios of the
    other parameters to ``J`` affect the motion; fix ``J`` in this case.

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
