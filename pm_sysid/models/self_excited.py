"""Oscillators that keep themselves in motion."""

from __future__ import annotations

from typing import Any, Literal

from pm_sysid.doors import flag
from pm_sysid.models.sensors import motion_sensor
from pm_sysid.system import System


def van_der_pol(
    *, forced: bool = True, observe: Literal["displacement", "velocity", "acceleration"] = "displacement"
) -> System:
    """Van der Pol oscillator ``m z'' - c (1 - z^2 / a^2) z' + k z = F``: damping that feeds small motions, brakes large ones.

    Parameters
    ----------
    forced : bool, default True
        Whether there is an input force; without one the record needs no ``u``.
    observe : {"displacement", "velocity", "acceleration"}
        What the sensor reads.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s); input ``F`` (N) if forced; parameters ``m`` (kg), ``c`` (N s/m), ``k`` (N/m), ``a`` (m).

    Raises
    ------
    ValueError
        If there is no such sensor.

    Notes
    -----
    Without a force the motion ends in a cycle of amplitude ``2 a`` (within 1.2 % for any ``c``). ``m = k = a = 1`` is the usual
    form ``z'' - mu (1 - z^2) z' + z = F`` with ``mu = c``. Only the ratios ``c / m`` and ``k / m`` show in the motion of an
    unforced oscillator: fix ``m`` there. The rest ``z = v = 0`` is a solution, so that an unforced one needs another start.

    Source: van der Pol (Philosophical Magazine 2, 1926).

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.van_der_pol(forced=False)
    System: 2 states, 0 inputs, 1 outputs
      states      z, v
      chains      z -> v
      inputs      none
      outputs     y
      parameters  m, c, k, a (each needs a value or a prior)
    """
    forced = flag(forced, "forced")

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        force = p.c * (1.0 - (x.z / p.a) ** 2) * x.v - p.k * x.z
        return x.v, (force + u.F if forced else force) / p.m

    return System(
        dynamics,
        states=("z", "v"),
        inputs=("F",) if forced else (),
        params=("m", "c", "k", "a"),
        observe=motion_sensor(observe),
    )
