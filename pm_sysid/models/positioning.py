"""Positioning systems: a driven mass with friction."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from pm_sysid.models.elements import speed_width
from pm_sysid.symbolic.system import System


def emps(*, v_s: float = 3e-4) -> System:
    """Electro-mechanical positioning system ``M q'' + Fv q' + Fc sign(q') + offset = tau``.

    Parameters
    ----------
    v_s : float, default 3e-4
        Speed (m/s) over which the sign of the friction is smoothed: ``sign(v)`` is replaced by ``tanh(v / v_s)``, which
        differs from one by less than 1 % for speeds above ``2.65 v_s``. With zero the sign function itself is used. The
        default is the value with the highest posterior density for the training record of the benchmark, whose maximum speed
        is 0.13 m/s, among 3e-3, 1e-3, 3e-4, 1e-4 and 0.

    Returns
    -------
    System
        States ``q`` (m), ``v`` (m/s); input ``tau``, the force of the drive (N); parameters ``M`` (kg), ``Fv`` (N s/m),
        ``Fc`` (N), ``offset`` (N); the output is ``q``.

    Raises
    ------
    ValueError
        If `v_s` is negative or not finite.

    Notes
    -----
    Effects of the choice of ``v_s``:

    - Near zero speed the smoothed friction is viscous with the rate ``Fc / (M v_s)`` (700 /s for the benchmark and the
      default). Explicit Runge-Kutta steps must be shorter than 2.8 times the inverse of this rate (4 ms). The filter is
      implicit and has no such limit, but it resolves a reversal only as finely as its steps.
    - Under a force below ``Fc`` the smoothed system does not stick: it creeps at the speed ``v_s artanh(force / Fc)``. Choose
      ``v_s`` so that this speed multiplied by the time at rest is negligible.
    - With the exact sign function (``v_s=0``) the system neither creeps nor sticks: in a numerical solution the velocity
      chatters about zero. The derivative of the sign function is zero, so the linearisation of the filter and all gradients
      lack the dependence of the reversal times on the parameters.

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
