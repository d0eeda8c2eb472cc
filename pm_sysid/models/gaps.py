"""Oscillators with play."""

from __future__ import annotations

from typing import Any, Literal

from pm_sysid.models.elements import freeplay_force
from pm_sysid.models.sensors import motion_sensor
from pm_sysid.symbolic.system import System


def freeplay(*, observe: Literal["displacement", "velocity", "acceleration"] = "displacement") -> System:
    """Mass with play: ``m z'' + c z' + k (max(z - d2, 0) + min(z - d1, 0)) = F``.

    Parameters
    ----------
    observe : {"displacement", "velocity", "acceleration"}
        Measured quantity.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s); input ``F`` (N); parameters ``m`` (kg), ``c`` (N s/m), ``k`` (N/m) beyond the gap, its
        edges ``d1 < d2`` (m).

    Raises
    ------
    ValueError
        As for :func:`duffing`.

    Notes
    -----
    The gap need not contain ``z = 0``. With ``d1 > d2`` the springs are preloaded against each other, and both act between
    the edges. If this is not intended, give priors that keep the edges in order. For springs of different stiffness, or a
    spring inside the gap, use :func:`piecewise_oscillator`.

    Source: Nayek et al. (2023), Eq. 5, with ``k0 = 0`` and ``kL = kR``.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.freeplay().params
    ('m', 'c', 'k', 'd1', 'd2')
    """

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        return x.v, (u.F - p.c * x.v - freeplay_force(x.z, p.k, p.d1, p.d2)) / p.m

    return System(
        dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=("m", "c", "k", "d1", "d2"),
        observe=motion_sensor(observe),
    )
