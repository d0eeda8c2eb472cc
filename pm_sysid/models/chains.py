"""Chains of masses with springs, dampers and nonlinear elements between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from pm_sysid.arguments import among, shown, whole
from pm_sysid.models.elements import ELEMENTS, speed_width
from pm_sysid.models.sensors import choose
from pm_sysid.symbolic.system import System

#: Largest number of masses; the filter of a longer chain cannot be compiled.
MOST = 1000


def chain(
    n: int,
    elements: Mapping[int, str | Iterable[str]] | None = None,
    *,
    walls: Literal["left", "both", "none"] = "left",
    forces: Iterable[int] | None = None,
    sensors: Iterable[int] | None = None,
    observe: Literal["displacement", "velocity", "acceleration"] = "displacement",
    v_s: float = 1e-3,
) -> System:
    """Chain of n masses ``m_i z_i'' = F_i - T_i + T_{i+1}``, with any of the nonlinear elements in its links.

    Link i pulls mass i back to mass i - 1 with ``T_i = k_i d + c_i d' + elements``, where ``d = z_i - z_{i-1}`` is its
    elongation. Link 1 connects the first mass to the wall on the left, and link n + 1 connects the last mass to the wall on
    the right.

    Parameters
    ----------
    n : int
        Number of masses.
    elements : mapping of int to str or several str, optional
        Elements of a link in addition to its spring and damper, by the number of the link; see Notes.
    walls : {"left", "both", "none"}
        Which ends are fixed: the chain has links 1 to n, 1 to n + 1, or 2 to n (a free chain).
    forces : sequence of int, optional
        Masses with an input force; by default the last one. An empty sequence means no force.
    sensors : sequence of int, optional
        Masses with a sensor; all by default.
    observe : {"displacement", "velocity", "acceleration"}
        Measured quantity.
    v_s : float, default 1e-3
        Speed (m/s) over which the sign of ``"coulomb"`` and ``"stribeck"`` friction is smoothed; see
        :func:`friction_oscillator`.

    Returns
    -------
    System
        States ``z1, v1, z2, v2, ...`` (m, m/s), then ``r1, ...`` of links with a hidden state (N; m for LuGre); inputs
        ``F1, ...`` (N) and outputs ``y1, ...`` by mass; parameters ``m1, ...`` (kg) by mass, ``k1, ...`` (N/m) and
        ``c1, ...`` (N s/m) by link, then those of the elements with the number of the link behind an underscore: ``k3_2`` is
        the cubic stiffness of link 2.

    Raises
    ------
    TypeError, ValueError
        If a number of a mass or link does not exist, an element is unknown, or two elements of a link share a parameter or
        both have a hidden state.

    Notes
    -----
    Elements, with d the elongation of the link:

    - ``"quadratic"``: ``k2 d^2`` (N/m^2); ``"cubic"``: ``k3 d^3`` (N/m^3); ``"cubic_damping"``: ``c3 d'^3`` (N s^3/m^3)
    - ``"stop"``: ``ks max(d - ds, 0)``; ``"freeplay"``: ``kf (max(d - d2, 0) + min(d - d1, 0))`` (N/m, m)
    - ``"bilinear_damping"``: ``cr max(d', 0)`` (N s/m), additional damping in extension
    - ``"coulomb"``: ``Fc sgn(d')`` (N); ``"tanh"``: ``Fc tanh(b d')`` (N, s/m)
    - ``"stribeck"``: ``Fc, Fs`` (N), ``v_st`` (m/s), as in :func:`stribeck_oscillator`
    - ``"lugre"``: ``Fc, Fs, v_st, sigma0`` (N/m), ``sigma1`` (N s/m), as in :func:`lugre_oscillator` with ``v_s=0``
    - ``"bouc_wen"``: ``alpha`` (N/m), ``beta`` (1/m), ``gamma``, ``delta``, as in :func:`bouc_wen`

    For a link without a spring or damper set ``k_i`` or ``c_i`` to zero. Each mass is one chain of derivatives with one
    Wiener process in the filter.

    Source: Newton's law for each mass; the sources of the elements are those of the systems named above.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> system = sid.models.chain(2, {1: "cubic", 2: ("coulomb", "bouc_wen")}, sensors=[2])
    >>> system.params
    ('m1', 'm2', 'k1', 'k2', 'c1', 'c2', 'k3_1', 'Fc_2', 'alpha_2', 'beta_2', 'gamma_2', 'delta_2')
    >>> system.chains, system.inputs, system.outputs
    ((('z1', 'v1'), ('z2', 'v2'), ('r2',)), ('F2',), ('y2',))
    """
    masses = range(1, _count(n) + 1)
    ends = {"left": (1, n), "both": (1, n + 1), "none": (2, n)}
    if not among(walls, ends):
        raise ValueError(f"walls is {walls!r}; give one of {sorted(ends)}.")
    links = range(ends[walls][0], ends[walls][1] + 1)
    placed = _placed({} if elements is None else elements, links)
    hidden = {(i, name): f"r{i}" for i, name in placed if ELEMENTS[name].rate}
    driven = _among("forces", [n] if forces is None else forces, masses)
    seen = _among("sensors", masses if sensors is None else sensors, masses)
    if not seen:
        raise ValueError("sensors is empty; name at least one mass.")
    letter = choose(observe, {"displacement": "z", "velocity": "v", "acceleration": "a"})
    v_s = speed_width(v_s)

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> dict[str, Any]:
        rates: dict[str, Any] = {}
        tension: dict[int, Any] = {}
        for i in links:
            d, v = (_of(x, f"{s}{i}") - _of(x, f"{s}{i - 1}") for s in "zv")
            tension[i] = _of(p, f"k{i}") * d + _of(p, f"c{i}") * v
            for name in (name for j, name in placed if j == i):
                law = ELEMENTS[name]
                own = SimpleNamespace(**{q: _of(p, f"{q}_{i}") for q in law.params})
                r = _of(x, hidden[i, name]) if law.rate else None
                tension[i] = tension[i] + law.force(d, v, r, own, v_s)
                if law.rate:
                    rates[hidden[i, name]] = law.rate(d, v, r, own)
        for i in masses:
            force = tension.get(i + 1, 0.0) - tension.get(i, 0.0) + (_of(u, f"F{i}") if i in driven else 0.0)
            rates |= {f"z{i}": _of(x, f"v{i}"), f"v{i}": force / _of(p, f"m{i}")}
        return rates

    def measured(t: Any, x: Any, dx: Any, u: Any, p: Any) -> dict[str, Any]:
        return {f"y{i}": _of(dx, f"v{i}") if letter == "a" else _of(x, f"{letter}{i}") for i in seen}

    return System(
        dynamics,
        states=(*(f"{s}{i}" for i in masses for s in "zv"), *hidden.values()),
        inputs=tuple(f"F{i}" for i in driven),
        params=(
            *(f"m{i}" for i in masses),
            *(f"{s}{i}" for s in "kc" for i in links),
            *(f"{q}_{i}" for i, name in placed for q in ELEMENTS[name].params),
        ),
        observe=measured,
    )


def _of(group: Any, name: str) -> Any:
    """Entry of a named tuple; zero for the walls, which do not move."""
    return getattr(group, name, 0.0) if name[0] in "zv" else getattr(group, name)


def _count(n: Any) -> int:
    if not whole(n, 1, MOST):
        raise ValueError(f"n is {shown(n)}; give the number of masses, 1 to {MOST}.")
    return int(n)


def _among(what: str, given: Any, masses: range) -> tuple[int, ...]:
    if isinstance(given, str) or not np.iterable(given):
        raise TypeError(f"{what} is {given!r}; give the numbers of the masses, such as [1].")
    numbers = tuple(given)
    for i in numbers:
        if not whole(i) or i not in masses:
            raise ValueError(f"{what} names the mass {i!r}; masses are numbered 1 to {masses[-1]}.")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{what} names a mass twice: {numbers}.")
    return tuple(sorted(numbers))


def _placed(elements: Any, links: range) -> list[tuple[int, str]]:
    """Link and name of every element, in order of the links."""
    if not isinstance(elements, Mapping):
        raise TypeError(
            f"elements is {elements!r}; give a mapping of the number of a link to an element, such as {{1: 'cubic'}}."
        )
    placed = []
    for i in elements:
        if not whole(i) or i not in links:
            there = f"links are numbered {links[0]} to {links[-1]}" if links else "there are no links"
            raise ValueError(f"elements names the link {i!r}; {there}.")
    for i in sorted(elements):
        names = (elements[i],) if isinstance(elements[i], str) else elements[i]
        if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"elements[{i}] is {names!r}; give the name of an element, or several.")
        names = tuple(names)
        owners: dict[str, str] = {}
        for name in names:
            if name not in ELEMENTS:
                raise ValueError(f"elements has {name!r} in link {i}; give some of {list(ELEMENTS)}.")
            for q in ELEMENTS[name].params:
                if q in owners:
                    raise ValueError(f"in link {i} {owners[q]!r} and {name!r} share the parameter {q}_{i}; keep one of them.")
                owners[q] = name
            placed.append((i, name))
        if len(memories := [name for name in names if ELEMENTS[name].rate]) > 1:
            raise ValueError(f"in link {i} both {memories[0]!r} and {memories[1]!r} have a memory; keep one of them.")
    return placed
