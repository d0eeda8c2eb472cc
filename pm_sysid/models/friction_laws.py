"""Oscillators whose friction depends on speed (Stribeck) or on a hidden state (LuGre)."""

from __future__ import annotations

from typing import Any, Literal

from pm_sysid.models.elements import direction, lugre_force, lugre_rate, speed_width, stribeck_level
from pm_sysid.models.sensors import motion_sensor
from pm_sysid.symbolic.system import System


def stribeck_oscillator(
    *, v_s: float = 1e-3, observe: Literal["displacement", "velocity", "acceleration"] = "displacement"
) -> System:
    """Oscillator with Stribeck friction ``m z'' + c z' + k z + (Fc + (Fs - Fc) exp(-(z'/v_st)^2)) sgn(z') = F``.

    Parameters
    ----------
    v_s : float, default 1e-3
        Speed (m/s) over which the sign of the friction is smoothed: ``sgn(z')`` is replaced by ``tanh(z' / v_s)``. Choose it
        well below ``v_st``, because smoothing reduces the peak of the friction at low speed: with a tenth of ``v_st`` and
        ``Fs = 2 Fc`` the largest force is 4 % below ``Fs``. With zero the sign function itself is used.
    observe : {"displacement", "velocity", "acceleration"}
        Measured quantity.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s); input ``F`` (N); parameters ``m`` (kg), ``c`` (N s/m), ``k`` (N/m), ``Fc`` (N) at high
        and ``Fs`` (N) at low speed, the Stribeck speed ``v_st`` (m/s).

    Raises
    ------
    ValueError
        If `v_s` is negative or not finite, or there is no such sensor.

    Notes
    -----
    The notes of :func:`friction_oscillator` on the choice of ``v_s`` also apply here. Where the friction decreases with
    speed, it drives the motion. At speeds below ``v_st`` the system may be unstable (stick-slip), and free runs are sensitive
    to all parameters.

    Source: Armstrong-Helouvry, Dupont and Canudas de Wit (Automatica 30, 1994), with exponent two.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.stribeck_oscillator().params
    ('m', 'c', 'k', 'Fc', 'Fs', 'v_st')
    """
    v_s = speed_width(v_s)

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        friction = stribeck_level(x.v, p.Fc, p.Fs, p.v_st) * direction(x.v, v_s)
        return x.v, (u.F - p.c * x.v - p.k * x.z - friction) / p.m

    return System(
        dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=("m", "c", "k", "Fc", "Fs", "v_st"),
        observe=motion_sensor(observe),
    )


def lugre_oscillator(
    *, v_s: float = 0.0, observe: Literal["displacement", "velocity", "acceleration"] = "displacement"
) -> System:
    """Oscillator with LuGre friction ``m z'' + c z' + k z + sigma0 r + sigma1 r' = F``, ``r' = z' - sigma0 |z'| r / g(z')``.

    The hidden state r is the mean deflection of bristles between the surfaces; ``g(v) = Fc + (Fs - Fc) exp(-(v/v_st)^2)`` is
    the friction of steady sliding.

    Parameters
    ----------
    v_s : float, default 0.0
        Speed (m/s) over which ``|z'|`` is smoothed: it is replaced by ``z' tanh(z' / v_s)``. With zero the absolute value
        itself is used. Its corner causes only a small error, because the force is continuous without smoothing.
    observe : {"displacement", "velocity", "acceleration"}
        Measured quantity.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s), ``r`` (m); input ``F`` (N); parameters ``m`` (kg), ``c`` (N s/m, the viscous part of
        the friction included), ``k`` (N/m), ``Fc``, ``Fs`` (N), ``v_st`` (m/s), ``sigma0`` (N/m), ``sigma1`` (N s/m).

    Raises
    ------
    ValueError
        As for :func:`stribeck_oscillator`.

    Notes
    -----
    The equations of the bristles are stiff. During sliding at speed v their deflection approaches its steady value with the
    rate ``sigma0 |v| / Fc``, and explicit Runge-Kutta steps must be shorter than 2.8 times the inverse of this rate. At rest
    they oscillate with ``sqrt(sigma0 / m)`` rad/s. ``substeps="auto"`` finds such steps. The initial value of ``r`` is zero
    unless ``x0`` gives it, because it cannot be estimated from the first samples.

    Source: Canudas de Wit, Olsson, Astrom and Lischinsky (IEEE Transactions on Automatic Control 40, 1995),
    Section II, whose ``sigma2`` is ``c`` here.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.lugre_oscillator().chains
    (('z', 'v'), ('r',))
    """
    v_s = speed_width(v_s)

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any, Any]:
        rate = lugre_rate(x.v, x.r, stribeck_level(x.v, p.Fc, p.Fs, p.v_st), p.sigma0, v_s)
        friction = lugre_force(x.r, rate, p.sigma0, p.sigma1)
        return x.v, (u.F - p.c * x.v - p.k * x.z - friction) / p.m, rate

    return System(
        dynamics,
        states=("z", "v", "r"),
        inputs=("F",),
        params=("m", "c", "k", "Fc", "Fs", "v_st", "sigma0", "sigma1"),
        observe=motion_sensor(observe),
    )
