"""Oscillators with one degree of freedom."""

from __future__ import annotations

from typing import Any, Literal

from pm_sysid.arguments import flag
from pm_sysid.models.sensors import choose
from pm_sysid.symbolic.system import System


def duffing(
    *,
    offset: bool = False,
    quadratic: bool = False,
    cubic_damping: bool = False,
    observe: Literal["displacement", "acceleration"] = "displacement",
) -> System:
    """Duffing oscillator ``m z'' + c z' (+ c3 z'^3) + k z (+ k2 z^2) + k3 z^3 = F (+ offset)``.

    Parameters
    ----------
    offset : bool
        Add a constant force ``offset`` (N) to the input: an offset of the amplifier.
    quadratic : bool
        Add the stiffness term ``k2 z^2``: an asymmetric spring.
    cubic_damping : bool
        Add the damping term ``c3 z'^3``.
    observe : {"displacement", "acceleration"}
        Measured quantity.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s); input ``F`` (N); parameters ``m`` (kg), ``c`` (N s/m), ``k`` (N/m), ``k3`` (N/m^3), and
        ``offset`` (N), ``k2`` (N/m^2), ``c3`` (N s^3/m^3) of the additional terms.

    Notes
    -----
    With ``k3 < 0`` the spring softens. With ``k < 0`` and ``k3 > 0`` the system is bistable, with equilibria at
    ``z = ±sqrt(-k / k3)``.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.duffing(offset=True, quadratic=True).params
    ('m', 'c', 'k', 'k3', 'offset', 'k2')
    """
    asked = {"offset": offset, "quadratic": quadratic, "cubic_damping": cubic_damping}
    offset, quadratic, cubic_damping = (flag(value, name) for name, value in asked.items())
    terms = {"offset": offset, "k2": quadratic, "c3": cubic_damping}

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        force = u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3
        if offset:
            force = force + p.offset
        if quadratic:
            force = force - p.k2 * x.z**2
        if cubic_damping:
            force = force - p.c3 * x.v**3
        return x.v, force / p.m

    return System(
        dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=("m", "c", "k", "k3", *(name for name, used in terms.items() if used)),
        observe=_sensor(observe),
    )


def bouc_wen(*, observe: Literal["displacement", "acceleration"] = "acceleration") -> System:
    """Bouc-Wen hysteresis ``m z'' + c z' + k z + r = F``, ``r' = alpha z' - beta (gamma |z'| r + delta z' |r|)``.

    The exponent nu of the general model is one (Longbottom, Champneys and Rogers 2024, Eq. 26).

    Parameters
    ----------
    observe : {"displacement", "acceleration"}
        Measured quantity.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s), ``r`` (N); input ``F`` (N); parameters ``m`` (kg), ``c`` (N s/m), ``k`` (N/m),
        ``alpha`` (N/m), ``beta`` (1/m), ``gamma``, ``delta``.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.bouc_wen().chains
    (('z', 'v'), ('r',))
    """

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any, Any]:
        hysteresis = p.alpha * x.v - p.beta * (p.gamma * abs(x.v) * x.r + p.delta * x.v * abs(x.r))
        return x.v, (u.F - p.c * x.v - p.k * x.z - x.r) / p.m, hysteresis

    return System(
        dynamics,
        states=("z", "v", "r"),
        inputs=("F",),
        params=("m", "c", "k", "alpha", "beta", "gamma", "delta"),
        observe=_sensor(observe),
    )


def _sensor(kind: str) -> Any:
    sensors = {"displacement": lambda t, x, dx, u, p: x.z, "acceleration": lambda t, x, dx, u, p: dx.v}
    return choose(kind, sensors)
