"""Systems for the boards of nonlinearbenchmark.org: what each ingredient adds to the one before.

Every structure is an ordinary ``System``. The lists begin with the textbook model, and most structures add terms to one before
them: ``contains`` says which, so that a search begins where that of the smaller model ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor.tensor as pt

import pm_sysid as sid


@dataclass(frozen=True)
class Structure:
    """A system to be fitted: names of terms, where their search begins, what is fixed."""

    name: str
    terms: tuple[str, ...]
    build: Callable[[tuple[str, ...]], sid.System]
    guess: Mapping[str, float]
    fixed: Mapping[str, float] = field(default_factory=dict)
    lower: Mapping[str, float] = field(default_factory=dict)
    substeps: int = 3
    #: Of the runs that are scored.
    run_substeps: int = 3
    starts: int = 1
    evaluations: int | None = None
    #: Only for the page: a structure that was tried beside the way, not a step on it.
    aside: bool = False

    @property
    def system(self) -> sid.System:
        """The equations."""
        return self.build(self.terms)

    def contains(self, other: Structure) -> bool:
        """Whether the other is this structure without some terms that have a parameter: its least error cannot be smaller."""
        added = set(self.terms) - set(other.terms)
        return set(other.terms) < set(self.terms) and added <= set(self.guess)

    def begin(self, found: Mapping[str, float]) -> dict[str, float]:
        """Guess: what a smaller structure has found, else the number from which a search begins."""
        return {n: found.get(n, self.guess[n]) for n in self.system.params if n not in self.fixed}


# Silverbox ------------------------------------------------------------------------------------------------------------------

#: Force terms ``-p f(z, v, u)`` by parameter. The factors make all parameters about one.
SILVERBOX_FORCE: dict[str, Callable[..., Any]] = {
    "k2": lambda p, z, v, u: p.k2 * z**2,
    "k4": lambda p, z, v, u: p.k4 * z**4,
    "k5": lambda p, z, v, u: p.k5 * z**5,
    "k6": lambda p, z, v, u: p.k6 * z**6,
    "k7": lambda p, z, v, u: p.k7 * z**7,
    "c1": lambda p, z, v, u: 1e-3 * p.c1 * z * v,
    "c2": lambda p, z, v, u: 1e-3 * p.c2 * z**2 * v,
    "c4": lambda p, z, v, u: 1e-3 * p.c4 * z**4 * v,
    "f_v": lambda p, z, v, u: 1e-3 * p.f_v * pt.tanh(v / p.v_s),
    "f_z": lambda p, z, v, u: 1e-3 * p.f_z * pt.tanh(z / p.z_s),
    "b1": lambda p, z, v, u: -p.b1 * u * z,
    "b2": lambda p, z, v, u: -p.b2 * u * z**2,
}
#: Terms of the output beside z, by parameter; the last argument is the acceleration.
SILVERBOX_OUTPUT: dict[str, Callable[..., Any]] = {
    "delay": lambda p, z, v, a: 1e-6 * p.delay * v,
    "h1": lambda p, z, v, a: 1e-6 * p.h1 * z**2 * v,
    "h2": lambda p, z, v, a: 1e-9 * p.h2 * z**2 * a,
    "h3": lambda p, z, v, a: 1e-12 * p.h3 * v**3,
    "g3": lambda p, z, v, a: p.g3 * z**3,
}
SILVERBOX_GUESS = {
    "m": 5e-6, "c": 2e-4, "k": 1.0, "k3": 4.0, "offset": 0.005, "v_s": 10.0, "z_s": 0.02, "tau_w": 0.01, "tau_s": 0.05,
    **dict.fromkeys([*SILVERBOX_FORCE, *SILVERBOX_OUTPUT, "k_w", "k_s"], 0.0),
}  # fmt: skip


def silverbox(terms: tuple[str, ...]) -> sid.System:
    """Oscillator ``m z'' + c z' + k z + k3 z^3 = u + offset`` with terms of force and output, and slow states.

    ``k_w``: a linear state w that follows z within ``tau_w``. ``k_s``: a state s that follows z^2 and stiffens the spring.
    """
    scales = {"f_v": "v_s", "f_z": "z_s", "k_w": "tau_w", "k_s": "tau_s"}
    names = ["m", "c", "k", "k3", "offset", *terms, *(scales[t] for t in terms if t in scales)]
    slow = [state for term, state in (("k_w", "w"), ("k_s", "s")) if term in terms]

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        force = u.F + p.offset - p.c * x.v - p.k * x.z - p.k3 * x.z**3
        for term in terms:
            if term in SILVERBOX_FORCE:
                force = force - SILVERBOX_FORCE[term](p, x.z, x.v, u.F)
        rates = []
        if "w" in slow:
            force = force - p.k_w * x.w
            rates.append((x.z - x.w) / p.tau_w)
        if "s" in slow:
            force = force - p.k_s * x.s * x.z
            rates.append((x.z**2 - x.s) / p.tau_s)
        return (x.v, force / p.m, *rates)

    def observe(t: Any, x: Any, dx: Any, u: Any, p: Any) -> Any:
        y = x.z
        for term in terms:
            if term in SILVERBOX_OUTPUT:
                y = y + SILVERBOX_OUTPUT[term](p, x.z, x.v, dx.v)
        return y

    return sid.System(dynamics, states=("z", "v", *slow), inputs=("F",), params=tuple(names), observe=observe)


def silverbox_structures() -> list[Structure]:
    """From the cubic spring to crossover in the circuit."""

    def structure(name: str, *terms: str, aside: bool = False) -> Structure:
        return Structure(name, terms, silverbox, SILVERBOX_GUESS, aside=aside)

    quintic = ("k2", "k4", "k5")
    sensor = ("delay", "h1", "h2", "h3")
    damped = (*quintic, "c1", "c2", *sensor)
    crossed = (*quintic, "c1", *sensor, "f_v")
    both = (*crossed, "f_z")
    full = (*both, "g3", "b1", "b2")
    return [
        structure("cubic spring, input offset"),
        structure("+ z^2", "k2"),
        structure("+ z^4, z^5", *quintic),
        structure("+ damping by z and z^2", *quintic, "c1", "c2"),
        structure("+ lag of the sensor's harmonics", *damped),
        structure("tanh(v) in place of damping by z^2", *crossed),
        structure("+ tanh(z)", *both),
        structure("+ input gain by z, z^3 at the sensor", *full),
        structure("(damping by z^4)", *damped, "c4", aside=True),
        structure("(z^6, z^7)", *full, "k6", "k7", aside=True),
        structure("(slow stiffness)", *full, "k_s", aside=True),
        structure("(first-order linear state)", *full, "k_w", aside=True),
    ]


# Cascaded tanks -------------------------------------------------------------------------------------------------------------

SENSOR_END, EDGE = 10.0, 0.1  # V; width over which overflow begins


def ramp(x: Any, width: float) -> Any:
    """``max(x, 0)``, smooth over a width."""
    return (x + pt.sqrt(x * x + width * width)) / 2


def root(h: Any) -> Any:
    """``sqrt(h)``, smooth and odd below 0.05 V."""
    return h / pt.sqrt(pt.sqrt(h * h + 0.05**2))


TANKS_GUESS = {
    "k1": 0.05, "k2": 0.05, "k3": 0.05, "k4": 0.04, "share": 0.5, "l1": 0.0, "l2": 0.0, "p1": 0.5, "p2": 0.5, "direct": 0.0,
    "u2": 0.0, "b1": 0.0, "b2": 0.0, "y2": 0.0, "tau": 4.0,
}  # fmt: skip


def tanks(terms: tuple[str, ...]) -> sid.System:
    """Two tanks in volts of the level sensor; the upper one overflows at 10, which is the unit of its level.

    ``clip``: the sensor ends at 10 V. ``share``: what of the overflow reaches the lower tank. ``edge``: the lower tank
    overflows as well. ``l1``, ``l2``: outflow proportional to the level beside that by its root. ``p1``, ``p2``: the orifices
    lie this much below the levels zero. ``direct``: part of the inflow that reaches the lower tank at once. ``u2``: square
    of the pump's voltage; ``b1``, ``b2``: constant flows; ``y2``: square of the level in the sensor; ``tau``: lag of the pump.
    """
    names = ("k1", "k2", "k3", "k4", *(t for t in terms if t in TANKS_GUESS))
    states = ("h1", "h2", *(("q",) if "tau" in terms else ()))

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        def of(name: str) -> Any:
            return getattr(p, name) if name in terms else 0.0

        volts = x.q if "tau" in terms else u.u
        inflow = p.k4 * (volts + of("u2") * volts**2) + of("b1")
        spilled = 0.3 * ramp(x.h1 - SENSOR_END, EDGE) if "share" in terms else 0.0
        upper, lower = root(x.h1 + of("p1")), root(x.h2 + of("p2"))
        first = inflow - p.k1 * upper - of("l1") * x.h1 - spilled
        second = p.k2 * upper - p.k3 * lower - of("l2") * x.h2 + of("share") * spilled + of("b2") + of("direct") * inflow
        if "edge" in terms:
            second = second - 0.3 * ramp(x.h2 - SENSOR_END, EDGE)
        return (first, second, *([(u.u - x.q) / p.tau] if "tau" in terms else []))

    def observe(t: Any, x: Any, dx: Any, u: Any, p: Any) -> Any:
        level = x.h2 + p.y2 * x.h2**2 if "y2" in terms else x.h2
        return SENSOR_END - ramp(SENSOR_END - level, 0.02) if "clip" in terms else level

    return sid.System(dynamics, states=states, inputs=("u",), params=names, observe=observe)


def tanks_structures() -> list[Structure]:
    """From Torricelli's law to overflow of both tanks."""

    def structure(name: str, *terms: str, aside: bool = False) -> Structure:
        lower = dict.fromkeys(("k1", "k2", "k3", "k4", "share", "tau"), 1e-6)
        return Structure(
            name, terms, tanks, TANKS_GUESS, lower=lower, substeps=4, run_substeps=4, starts=4, evaluations=300, aside=aside
        )

    spills = ("clip", "share", "edge")
    lines = (*spills, "l1", "l2")
    deep = (*lines, "p1", "p2")
    full = (*deep, "direct")
    return [
        structure("square roots"),
        structure("+ sensor that ends at 10 V", "clip"),
        structure("+ overflow of the upper tank", "clip", "share"),
        structure("+ overflow of the lower tank", *spills),
        structure("+ outflow by level", *lines),
        structure("+ orifices below the levels zero", *deep),
        structure("+ inflow that reaches the lower tank", *full),
        structure("(pump with a square)", *full, "u2", aside=True),
        structure("(constant flows)", *full, "b1", "b2", aside=True),
        structure("(sensor with a square)", *full, "y2", aside=True),
        structure("(lag of the pump)", *full, "tau", aside=True),
    ]


# Bouc-Wen -------------------------------------------------------------------------------------------------------------------

#: Only the products of beta with gamma and delta are in the equations.
BOUC_WEN_FIXED = {"beta": 1e3}
BOUC_WEN_GUESS = {"m": 2.2, "c": 8.0, "k": 5.5e4, "alpha": 4.5e4, "gamma": 0.9, "delta": -1.3, "k3": 0.0}


def bouc_wen(terms: tuple[str, ...]) -> sid.System:
    """``m z'' + c z' + k z (+ k3 z^3) + r = F`` with the hysteresis ``r`` of Bouc and Wen, or without it."""
    if "r" not in terms:
        return sid.System(
            lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z) / p.m),
            states=("z", "v"), inputs=("F",), params=("m", "c", "k"), observe=lambda t, x, dx, u, p: x.z,
        )  # fmt: skip
    hysteretic = sid.models.bouc_wen(observe="displacement")
    if "k3" not in terms:
        return hysteretic

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        loop = p.alpha * x.v - p.beta * (p.gamma * abs(x.v) * x.r + p.delta * x.v * abs(x.r))
        return x.v, (u.F - p.c * x.v - p.k * x.z - p.k3 * 1e9 * x.z**3 - x.r) / p.m, loop

    params = (*hysteretic.params, "k3")
    return sid.System(dynamics, states=("z", "v", "r"), inputs=("F",), params=params, observe=lambda t, x, dx, u, p: x.z)


def bouc_wen_structures() -> list[Structure]:
    """With hysteresis, without, and with a spring that is not there."""

    def structure(name: str, *terms: str, aside: bool = False) -> Structure:
        fixed = BOUC_WEN_FIXED if "r" in terms else {}
        guess = BOUC_WEN_GUESS if "r" in terms else BOUC_WEN_GUESS | {"k": 1e5}
        return Structure(name, terms, bouc_wen, guess, fixed=fixed, substeps=8, run_substeps=16, aside=aside)

    return [structure("linear", aside=True), structure("Bouc-Wen", "r"), structure("(cubic spring)", "r", "k3", aside=True)]


def decimated(y: np.ndarray) -> np.ndarray:
    """What a sensor sees that averages with the low-pass filter of MATLAB's ``decimate(y, 20, "fir")`` at 15 kHz.

    The 31 coefficients of ``fir1(30, 1 / 20)`` are symmetric and reach three quarters of a sample of 750 Hz to either side.
    """
    from scipy.signal import firwin

    between = sid.TimeSeries(np.arange(len(y)) / 750.0, y)
    samples, seen = np.arange(len(y)), np.zeros(len(y))
    for n, weight in zip(range(-15, 16), firwin(31, 1 / 20), strict=True):
        place = np.clip(samples + n / 20, 0.0, len(y) - 1.0)  # before its start and after its end the record is held
        first = np.floor(place).astype(int)
        seen += weight * between.input_at(first, place - first)[:, 0]
    return seen


# EMPS -----------------------------------------------------------------------------------------------------------------------

EMPS_TERMS: dict[str, Callable[..., Any]] = {
    "v1": lambda p, q, v, sign: p.v1 * abs(v),
    "v2": lambda p, q, v, sign: p.v2 * v * abs(v),
    "kq": lambda p, q, v, sign: p.kq * q,
    "Fq": lambda p, q, v, sign: p.Fq * q * sign,
    "vq": lambda p, q, v, sign: p.vq * q * v,
    "Fs": lambda p, q, v, sign: p.Fs * pt.exp(-((v / 0.01) ** 2)) * sign,
}
EMPS_GUESS = {"M": 95.0, "Fv": 200.0, "Fc": 20.0, "offset": -3.0, **dict.fromkeys(EMPS_TERMS, 0.0)}


def emps(terms: tuple[str, ...]) -> sid.System:
    """Mass with viscous and Coulomb friction and an offset, as ``sid.models.emps``, and further terms of the friction.

    ``v1``: viscous friction that differs by direction; ``v2``: square of the speed; ``Fs``: rise below 1 cm/s (Stribeck);
    ``kq``, ``Fq``, ``vq``: force, Coulomb and viscous friction that change along the way.
    """

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        sign = pt.tanh(x.v / 3e-4)
        force = u.tau - p.offset - p.Fv * x.v - p.Fc * sign
        for term in terms:
            force = force - EMPS_TERMS[term](p, x.q, x.v, sign)
        return x.v, force / p.M

    return sid.System(
        dynamics, states=("q", "v"), inputs=("tau",), params=("M", "Fv", "Fc", "offset", *terms),
        observe=lambda t, x, dx, u, p: x.q,
    )  # fmt: skip


def emps_structures() -> list[Structure]:
    """Laws of friction."""

    def structure(name: str, *terms: str, aside: bool = False) -> Structure:
        return Structure(name, terms, emps, EMPS_GUESS, substeps=1, run_substeps=1, evaluations=80, aside=aside)

    return [
        structure("viscous, Coulomb, offset"),
        structure("+ viscous by direction", "v1"),
        structure("+ square of the speed", "v1", "v2"),
        structure("+ force along the way", "v1", "v2", "kq"),
        structure("+ friction along the way", "v1", "v2", "kq", "Fq", "vq"),
        structure("(Stribeck)", "v1", "Fs", aside=True),
    ]
