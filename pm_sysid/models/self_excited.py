"""Self-excited oscillators."""

from __future__ import annotations

from typing import Any, Literal

from pm_sysid.arguments import flag
from pm_sysid.models.sensors import motion_sensor
from pm_sysid.symbolic.system import System


def van_der_pol(
    *, forced: bool = True, observe: Literal["displacement", "velocity", "acceleration"] = "displacement"
) -> System:
    """Van der Pol oscillator ``m z'' - c (1 - z^2 / a^2) z' + k z = F``: negative damping of small, positive of large motions.

    Parameters
    ----------
    forced : bool, default True
        Whether there is an input force; without one the record needs no ``u``.
    observe : {"displacement", "velocity", "acceleration"}
        Measured quantity.

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
    Without a force the motion approaches a limit cycle of amplitude ``2 a`` (within 1.2 % for any ``c``). With
    ``m = k = a = 1`` this is the usual form ``z'' - mu (1 - z^2) z' + z = F`` with ``mu = c``. The motion of an unforced
    oscillator depends only on ``a`` and the ratios ``c / m`` and ``k / m``; fix ``m`` in this case. ``z = v = 0`` is an
    equilibrium, so an unforced oscillator needs another initial state. From ``mu`` = 50 on it is stiff (1000 is a usual test of
    solvers): it creeps for 0.8 ``mu`` and jumps within ``1 / mu``.

    Source: van der Pol (Philosophical Magazine 2, 1926).

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.van_der_pol(forced=False)
    System: 2 states, 0 inputs, 1 output
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
