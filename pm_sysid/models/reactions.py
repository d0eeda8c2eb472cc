"""Networks of chemical reactions, which are stiff where their rates differ by orders of magnitude."""

from __future__ import annotations

from typing import Any

from pm_sysid.symbolic.system import System


def robertson() -> System:
    """Robertson's autocatalytic reactions: A -> B, 2 B -> B + C, B + C -> A + C.

    ``a' = -k1 a + k3 b c``, ``b' = k1 a - k3 b c - k2 b^2``, ``c' = k2 b^2``.

    Returns
    -------
    System
        States and outputs ``a``, ``b``, ``c`` (concentrations); parameters ``k1`` (1/s), ``k2``, ``k3`` (1/(s concentration)).

    Notes
    -----
    The usual rates are 0.04, 3e7 and 1e4, the initial state is 1, 0, 0. ``a + b + c`` is constant. ``b`` rises to 3.65e-5
    within milliseconds and then follows the others: give it a noise of its own. The reaction goes on for 1e11 s, so that the
    times of a record are spaced logarithmically.

    Source: Robertson (1966), "The solution of a set of reaction rate equations", in Numerical Analysis: An Introduction,
    Academic Press; Hairer and Wanner (1996), Eq. IV.1.4.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> times = np.concatenate([[0.0], np.logspace(-4, 5, 28)])
    >>> rates = {"k1": 0.04, "k2": 3e7, "k3": 1e4}
    >>> run = sid.simulate(
    ...     sid.models.robertson(), sid.TimeSeries(times), rates, x0=[1.0, 0.0, 0.0]
    ... )
    >>> float(abs(run["a"] + run["b"] + run["c"] - 1).max()) < 1e-9
    True
    """

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any, Any]:
        back, used = p.k3 * x.b * x.c, p.k2 * x.b**2
        return back - p.k1 * x.a, p.k1 * x.a - back - used, used

    return System(
        dynamics,
        states=("a", "b", "c"),
        params=("k1", "k2", "k3"),
        observe=lambda t, x, dx, u, p: {"a": x.a, "b": x.b, "c": x.c},
    )


def hires() -> System:
    """Schaefer's high irradiance response of photomorphogenesis (HIRES): eight species and ten rates.

    With ``bound = k_plus y6 y8`` and ``free = (k2 + k_minus + k_star) y7``::

        y1' = -k1 y1 + k2 y2 + k6 y3 + o_ks       y5' = -(k1 + k5) y5 + k2 (y6 + y7)
        y2' =  k1 y1 - (k2 + k3) y2               y6' = -bound + k4 y4 + k1 y5 - k2 y6 + k_minus y7
        y3' = -(k1 + k6) y3 + k2 y4 + k5 y5       y7' =  bound - free
        y4' =  k3 y2 + k1 y3 - (k2 + k4) y4       y8' = -bound + free

    Returns
    -------
    System
        States and outputs ``y1`` ... ``y8`` (concentrations); parameters ``k1``, ``k2``, ``k3``, ``k4``, ``k5``, ``k6``,
        ``k_plus``, ``k_minus``, ``k_star``, ``o_ks``.

    Notes
    -----
    The usual values are 1.71, 0.43, 8.32, 0.69, 0.035, 8.32, 280, 0.69, 0.69 and 0.0007, in the order above, over 321.8122
    units of time from (1, 0, 0, 0, 0, 0, 0, 0.0057). ``y7 + y8`` is constant.

    Source: Schaefer (1975), "A new approach to explain the high irradiance responses of photomorphogenesis on the basis of
    phytochrome", Journal of Mathematical Biology 2; Mazzia and Magherini (2008), Test Set for IVP Solvers, Section II.1.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> names = ("k1", "k2", "k3", "k4", "k5", "k6", "k_plus", "k_minus", "k_star", "o_ks")
    >>> rates = dict(
    ...     zip(names, (1.71, 0.43, 8.32, 0.69, 0.035, 8.32, 280.0, 0.69, 0.69, 0.0007))
    ... )
    >>> start = [1.0, 0, 0, 0, 0, 0, 0, 0.0057]
    >>> run = sid.simulate(
    ...     sid.models.hires(), sid.TimeSeries(np.linspace(0.0, 321.8122, 41)), rates, x0=start
    ... )
    >>> round(float(run["y1"][-1]), 9)  # the Test Set has 0.7371312573325668e-3
    0.000737131
    """

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
        bound, free = p.k_plus * x.y6 * x.y8, (p.k2 + p.k_minus + p.k_star) * x.y7
        return (
            -p.k1 * x.y1 + p.k2 * x.y2 + p.k6 * x.y3 + p.o_ks,
            p.k1 * x.y1 - (p.k2 + p.k3) * x.y2,
            -(p.k1 + p.k6) * x.y3 + p.k2 * x.y4 + p.k5 * x.y5,
            p.k3 * x.y2 + p.k1 * x.y3 - (p.k2 + p.k4) * x.y4,
            -(p.k1 + p.k5) * x.y5 + p.k2 * (x.y6 + x.y7),
            -bound + p.k4 * x.y4 + p.k1 * x.y5 - p.k2 * x.y6 + p.k_minus * x.y7,
            bound - free,
            -bound + free,
        )

    states = tuple(f"y{i}" for i in range(1, 9))
    return System(
        dynamics,
        states=states,
        params=("k1", "k2", "k3", "k4", "k5", "k6", "k_plus", "k_minus", "k_star", "o_ks"),
        observe=lambda t, x, dx, u, p: {name: getattr(x, name) for name in states},
    )


def enzyme() -> System:
    """Enzyme kinetics by mass action: S + E <-> C -> E + P.

    ``s' = -kf s e + kr c``, ``e' = -kf s e + (kr + kcat) c``, ``c' = kf s e - (kr + kcat) c``, ``p' = kcat c``.

    Returns
    -------
    System
        States and outputs ``s`` (substrate), ``e`` (enzyme), ``c`` (complex), ``p`` (product), all concentrations; parameters
        ``kf`` (1/(s concentration)), ``kr``, ``kcat`` (1/s).

    Notes
    -----
    ``e + c`` and ``s + c + p`` are constant. Where little enzyme meets much substrate, the complex is formed within
    ``1 / (kf s + kr + kcat)`` and follows the substrate afterwards: the rate of the product is then nearly
    ``kcat (e + c) s / (K + s)`` with ``K = (kr + kcat) / kf``. Slow measurements tell ``K`` and ``kcat``, and ``kf`` only if
    some of the samples lie in the fast beginning.

    Source: Michaelis and Menten (1913), Biochemische Zeitschrift 49; Segel and Slemrod (1989), "The quasi-steady-state
    assumption", SIAM Review 31.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> times = np.concatenate([[0.0], np.logspace(-4, 3, 22)])
    >>> rates = {"kf": 1e4, "kr": 10.0, "kcat": 1.0}
    >>> run = sid.simulate(
    ...     sid.models.enzyme(), sid.TimeSeries(times), rates, x0=[1.0, 0.01, 0.0, 0.0]
    ... )
    >>> float(abs(run["s"] + run["c"] + run["p"] - 1).max()) < 1e-9
    True
    """

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
        bound = p.kf * x.s * x.e - p.kr * x.c
        made = p.kcat * x.c
        return -bound, made - bound, bound - made, made

    return System(
        dynamics,
        states=("s", "e", "c", "p"),
        params=("kf", "kr", "kcat"),
        observe=lambda t, x, dx, u, p: {"s": x.s, "e": x.e, "c": x.c, "p": x.p},
    )
