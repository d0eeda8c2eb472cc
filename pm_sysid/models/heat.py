"""Conduction of heat."""

from __future__ import annotations

from typing import Any, Literal

import pytensor.tensor as pt

from pm_sysid.arguments import count, number
from pm_sysid.models.sensors import choose
from pm_sysid.symbolic.system import System

#: Largest number of cells.
MOST = 200


def heated_wall(n: int, *, thickness: float, observe: Literal["faces", "heated", "cells"] = "faces") -> System:
    """A wall heated on one face and cooled by air on the other: the heat equation ``c T_t = k T_xx`` on n cells.

    The faces have ``-k T_x = q`` and ``-k T_x = h T``. In cells of the width ``d = thickness / n``::

        c d T_1' = q - k (T_1 - T_2) / d
        c d T_i' = k (T_{i-1} - 2 T_i + T_{i+1}) / d
        c d T_n' = k (T_{n-1} - T_n) / d - T_n / (1 / h + d / (2 k))

    Parameters
    ----------
    n : int
        Cells, at least 2.
    thickness : float
        Of the wall (m).
    observe : {"faces", "heated", "cells"}
        Measured quantity: the temperatures ``inner`` of the heated face and ``outer`` of the cooled one, the first alone, or
        the vector ``T`` of all cells.

    Returns
    -------
    System
        State ``T``, a vector of n temperatures above that of the air (K); input ``q``, the flow of heat into the wall (W/m^2);
        parameters ``k`` (W/(m K)), ``c`` (J/(m^3 K)), ``h`` (W/(m^2 K)).

    Raises
    ------
    TypeError, ValueError
        For a number of cells or a thickness that is impossible, or a sensor that does not exist.

    Notes
    -----
    The fastest decay is nearly ``4 k / (c d^2)``, and grows with the square of n; the slowest stays as it is. Free runs take
    any n; each cell is a chain of the filter.

    Source: Fourier's law; LeVeque (2007), Finite Difference Methods for Ordinary and Partial Differential Equations, Section
    9.1, with cells in place of points, so that no heat is lost.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> wall = sid.models.heated_wall(10, thickness=0.2)
    >>> record = sid.TimeSeries(np.arange(0.0, 1e6, 3600.0), np.full(278, 50.0))
    >>> run = sid.simulate(wall, record, {"k": 1.0, "c": 2e6, "h": 10.0}, x0=0.0)
    >>> (
    ...     float(run["inner"][-1].round(3)),
    ...     float(run["outer"][-1].round(3)),
    ... )  # q (1 / h + thickness / k), q / h
    (15.0, 5.0)
    """
    n = count(n, "n", 2, MOST)
    remedy = "give the thickness of the wall in metres"
    if isinstance(thickness, bool) or not number(thickness, "thickness", remedy) > 0:
        raise ValueError(f"thickness is {thickness!r}; {remedy}, a positive number.")
    d = float(thickness) / n

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        between = p.k * (x.T[:-1] - x.T[1:]) / d
        out = x.T[-1] / (1 / p.h + d / (2 * p.k))
        flow = pt.concatenate([u.q[None], between, out[None]])
        return (flow[:-1] - flow[1:]) / (p.c * d)

    def inner(x: Any, u: Any, p: Any) -> Any:
        return x.T[0] + u.q * d / (2 * p.k)

    def outer(x: Any, p: Any) -> Any:
        return x.T[-1] / (1 + p.h * d / (2 * p.k))

    sensors = {
        "faces": lambda t, x, dx, u, p: {"inner": inner(x, u, p), "outer": outer(x, p)},
        "heated": lambda t, x, dx, u, p: {"inner": inner(x, u, p)},
        "cells": lambda t, x, dx, u, p: {"T": x.T},
    }
    return System(dynamics, states={"T": (n,)}, inputs=("q",), params=("k", "c", "h"), observe=choose(observe, sensors))
