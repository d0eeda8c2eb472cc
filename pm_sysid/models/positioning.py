"""Positioning systems: a driven mass with friction."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from pm_sysid.models.elements import speed_width
from pm_sysid.system import System


def emps(*, v_s: float = 3e-4) -> System:
    """Electro-mechanical positioning system ``M q'' + Fv q' + Fc sign(q') + offset = tau``.

    Parameters
    ----------
    v_s : float, default 3e-4
        Speed (m/s) over which the friction changes sign: ``sign(v)`` is taken as ``tanh(v / v_s)``, which is within 1 % of
        one for speeds above ``2.65 v_s``. Zero takes the sign function itself. The default is the value at which the training
        record of the benchmark, whose top speed is 0.13 m/s, is most likely, among 3e-3, 1e-3, 3e-4, 1e-4 and 0.

    Returns
    -------
    System
        States ``q`` (m), ``v`` (m/s); input ``tau``, the force of the drive (N); parameters ``M`` (kg), ``Fv`` (N s/m),
        ``Fc`` (N), ``offset`` (N); the sensor reads ``q``.

    Raises
    ------
    ValueError
        If `v_s` is negative or not finite.

    Notes
    -----
    What the choice of ``v_s`` does:

    - Near zero speed the smooth friction is a viscous one with the rate ``Fc / (M v_s)`` (700 /s for the benchmark and the
      default). Explicit Runge-Kutta steps must be shorter than 2.8 times its inverse (4 ms); the filter is implicit and
      need not be, but sees no more of a switch than its steps resolve.
    - Held by a force below ``Fc`` the smooth system does not stick: it creeps at ``v_s artanh(force / Fc)``. Choose ``v_s``
      so that this speed times the time at rest is negligible.
    - The exact sign (``v_s=0``) neither creeps nor sticks: in a numerical solution the velocity chatters about zero. Its
      derivative is zero, so that the linearisation of the filter and all gradients miss that the time of a switch depends
      on the parameters.

    Source: Longbottom, Champneys and Rogers (2024), Eq. 28; Janot, Gautier and Brunot (2019).

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.emps().chains
    (('q', 'v'),)
    """
    v_s = speed_width(v_s)

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        direction = pt.tanh(x.v / v_s) if v_s else pt.sign(x.v)
        return x.v, (u.tau - p.offset - p.Fv * x.v - p.Fc * direction) / p.M

    return System(
        dynamics,
        states=("q", "v"),
        inputs=("tau",),
        params=("M", "Fv", "Fc", "offset"),
        observe=lambda t, x, dx, u, p: x.q,
    )
