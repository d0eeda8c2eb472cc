"""Force laws of springs, dampers and sliders, as functions of a deflection and its rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytensor.tensor as pt

from pm_sysid.arguments import number

__all__ = ["ELEMENTS", "Element", "direction", "freeplay_force", "lugre_force", "lugre_rate", "speed_width", "stribeck_level"]


class Element(NamedTuple):
    """A force ``f(d, v, r, p, v_s)`` of deflection d, rate v and hidden state r; ``rate(d, v, r, p)`` is dr/dt if r exists."""

    params: tuple[str, ...]
    force: Callable[..., Any]
    rate: Callable[..., Any] | None = None


def direction(v: Any, v_s: float) -> Any:
    """Sign of a speed, smoothed over the speed ``v_s``; the sign function itself if ``v_s`` is zero."""
    return pt.tanh(v / v_s) if v_s else pt.sign(v)


def speed_width(v_s: Any) -> float:
    """Check the speed over which the sign of the friction is smoothed (m/s)."""
    remedy = "give a small speed in m/s, such as 1e-3, or 0 for the exact sign"
    if isinstance(v_s, bool) or not 0 <= number(v_s, "v_s", remedy) < 1e30:
        raise ValueError(f"v_s is {v_s!r}; {remedy}.")
    return float(v_s)


def stribeck_level(v: Any, Fc: Any, Fs: Any, v_st: Any) -> Any:
    """Friction of steady sliding: from ``Fs`` at rest down to ``Fc`` beyond the Stribeck speed ``v_st``."""
    return Fc + (Fs - Fc) * pt.exp(-((v / v_st) ** 2))


def freeplay_force(d: Any, k: Any, lower: Any, upper: Any) -> Any:
    """Force of a gap: zero between its edges, a linear spring beyond them."""
    return k * (pt.maximum(d - upper, 0.0) + pt.minimum(d - lower, 0.0))


def lugre_rate(v: Any, r: Any, level: Any, sigma0: Any, v_s: float) -> Any:
    """Rate of the bristle deflection r (Canudas de Wit et al. 1995, Section II)."""
    speed = v * direction(v, v_s) if v_s else abs(v)
    return v - sigma0 * speed * r / level


def lugre_force(r: Any, rate: Any, sigma0: Any, sigma1: Any) -> Any:
    """Force of the bristles (Canudas de Wit et al. 1995, Section II), without the viscous part."""
    return sigma0 * r + sigma1 * rate


def _lugre_rate(d: Any, v: Any, r: Any, p: Any) -> Any:
    return lugre_rate(v, r, stribeck_level(v, p.Fc, p.Fs, p.v_st), p.sigma0, 0.0)


def _bouc_wen_rate(d: Any, v: Any, r: Any, p: Any) -> Any:
    return p.alpha * v - p.beta * (p.gamma * abs(v) * r + p.delta * v * abs(r))


#: Elements that can act in parallel with the spring and the damper of a link.
ELEMENTS: dict[str, Element] = {
    "quadratic": Element(("k2",), lambda d, v, r, p, v_s: p.k2 * d**2),
    "cubic": Element(("k3",), lambda d, v, r, p, v_s: p.k3 * d**3),
    "cubic_damping": Element(("c3",), lambda d, v, r, p, v_s: p.c3 * v**3),
    "stop": Element(("ks", "ds"), lambda d, v, r, p, v_s: p.ks * pt.maximum(d - p.ds, 0.0)),
    "freeplay": Element(("kf", "d1", "d2"), lambda d, v, r, p, v_s: freeplay_force(d, p.kf, p.d1, p.d2)),
    "bilinear_damping": Element(("cr",), lambda d, v, r, p, v_s: p.cr * pt.maximum(v, 0.0)),
    "coulomb": Element(("Fc",), lambda d, v, r, p, v_s: p.Fc * direction(v, v_s)),
    "tanh": Element(("Fc", "b"), lambda d, v, r, p, v_s: p.Fc * pt.tanh(p.b * v)),
    "stribeck": Element(
        ("Fc", "Fs", "v_st"), lambda d, v, r, p, v_s: stribeck_level(v, p.Fc, p.Fs, p.v_st) * direction(v, v_s)
    ),
    "lugre": Element(
        ("Fc", "Fs", "v_st", "sigma0", "sigma1"),
        lambda d, v, r, p, v_s: lugre_force(r, _lugre_rate(d, v, r, p), p.sigma0, p.sigma1),
        _lugre_rate,
    ),
    "bouc_wen": Element(("alpha", "beta", "gamma", "delta"), lambda d, v, r, p, v_s: r, _bouc_wen_rate),
}
