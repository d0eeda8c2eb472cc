"""Piecewise-linear laws: springs with gaps and stops, dampers that differ between compression and rebound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, flag, number, shown, text, whole
from pm_sysid.models.sensors import choose
from pm_sysid.symbolic.system import System

#: Largest number of regions.
MOST = 50


def piecewise_linear(x: Any, slope: Any, slopes: Sequence[Any], breakpoints: Sequence[Any]) -> Any:
    """Continuous piecewise-linear function through the origin.

    Parameters
    ----------
    x : array_like, DataArray or tensor
        Argument of the function.
    slope : array_like, DataArray or tensor
        Slope ``k0`` of the region that contains the origin.
    slopes : sequence
        For each breakpoint, the slope of the region beyond it, as seen from the origin, up to the next breakpoint on that
        side.
    breakpoints : sequence
        Points where the slope changes: as many as ``slopes``, of either sign and in any order. A breakpoint at zero is
        treated as negative. Of equal breakpoints the later one is treated as the outer one, whose slope applies beyond it.

    Returns
    -------
    ndarray, DataArray or TensorVariable
        The value, with the shape to which all arguments broadcast; symbolic if any argument is symbolic.

    Raises
    ------
    TypeError, ValueError
        If ``slopes`` or ``breakpoints`` are not sequences, or have different lengths.

    Notes
    -----
    Every breakpoint adds the change of slope at this breakpoint, relative to its neighbour on the side of the origin,
    multiplied by the distance beyond it. The neighbour depends only on parameters: in a System it is computed once per run,
    and a step costs three operations per breakpoint.

    Source: Nayek et al. (2023), Eqs. 4-9, which give the cases of one, two and three breakpoints (their Eq. 8 has ``v_R1`` in
    place of the slope ``c_R1``).

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> stops = dict(slope=1.0, slopes=[3.0, 7.0], breakpoints=[-1.0, 0.5])
    >>> sid.models.piecewise_linear(np.array([-2.0, -1.0, 0.0, 0.5, 1.5]), **stops)
    array([-4. , -1. ,  0. ,  0.5,  7.5])
    """
    x, slope = _real("x", x), _real("slope", slope)
    corners = _corners(slope, slopes, breakpoints)
    maximum = _operations(x, slope, *(v for corner in corners for v in corner)).maximum
    force = slope * x
    for corner in corners:
        force = force + corner.side * (corner.slope - corner.inner) * maximum(corner.side * x - abs(corner.at), 0.0)
    return force


def piecewise_oscillator(
    regions: int = 3,
    *,
    nonlinear: Literal["stiffness", "damping"] = "stiffness",
    observe: Literal["acceleration", "displacement", "velocity"] = "acceleration",
) -> System:
    """Oscillator with a piecewise-linear spring, ``m z'' + c0 z' + k(z) = u``, or damper, ``m z'' + c(z') + k0 z = u``.

    Parameters
    ----------
    regions : int, default 3
        Number of linear regions, which is the number of breakpoints plus one. One region is a linear oscillator.
    nonlinear : {"stiffness", "damping"}
        Which force is piecewise linear.
    observe : {"acceleration", "displacement", "velocity"}
        Measured quantity.

    Returns
    -------
    System
        States ``z`` (m), ``v`` (m/s); input ``u`` (N). Parameters of the spring: ``m`` (kg), ``c0`` (N s/m), slopes ``k0``,
        ``k1``, ... (N/m) and breakpoints ``d1``, ... (m); of the damper: ``m``, ``k0``, slopes ``c0``, ``c1``, ... and
        breakpoints ``v1``, ... (m/s). ``k1`` is the slope beyond ``d1``, and so on; see :func:`piecewise_linear`.

    Raises
    ------
    ValueError
        For ``regions`` below one, or a force or sensor that does not exist.

    Notes
    -----
    Breakpoints have no order. With equal priors the posterior has one copy for each permutation of the breakpoints;
    :func:`piecewise_constraints` (``ordered=True``) keeps one of these copies.

    Source: Nayek et al. (2023), Eqs. 2-9; their ``k_L1``, ``d_L1``, ``k_R1``, ``d_R1`` are ``k1``, ``d1``, ``k2``, ``d2``
    here.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.models.piecewise_oscillator(3).params
    ('m', 'c0', 'k0', 'k1', 'k2', 'd1', 'd2')
    >>> sid.models.piecewise_oscillator(2, nonlinear="damping").params
    ('m', 'k0', 'c0', 'c1', 'v1')
    """
    n = _breakpoints(regions)
    if not among(nonlinear, ("stiffness", "damping")):
        raise ValueError(f"nonlinear is {nonlinear!r}; give 'stiffness' or 'damping'.")
    sensors: dict[str, Any] = {
        "acceleration": lambda t, x, dx, u, p: dx.v,
        "displacement": lambda t, x, dx, u, p: x.z,
        "velocity": lambda t, x, dx, u, p: x.v,
    }

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        if nonlinear == "stiffness":
            force = p.c0 * x.v + piecewise_linear(x.z, p.k0, _numbered(p, "k", n), _numbered(p, "d", n))
        else:
            force = p.k0 * x.z + piecewise_linear(x.v, p.c0, _numbered(p, "c", n), _numbered(p, "v", n))
        return x.v, (u.u - force) / p.m

    first = ("m", "c0", "k0") if nonlinear == "stiffness" else ("m", "k0", "c0")
    slope, breakpoint_ = ("k", "d") if nonlinear == "stiffness" else ("c", "v")
    return System(
        dynamics,
        states=("z", "v"),
        inputs=("u",),
        params=(*first, *_names(slope, n), *_names(breakpoint_, n)),
        observe=choose(observe, sensors),
    )


def piecewise_map(regions: int = 3, *, offset: bool = True) -> System:
    """Static piecewise-linear damper ``force = f(v - v0)``: a system without states.

    Parameters
    ----------
    regions : int, default 3
        Number of linear regions, which is the number of breakpoints plus one.
    offset : bool, default True
        Whether the force is zero at a velocity ``v0``, which is a parameter, instead of at zero velocity.

    Returns
    -------
    System
        No states; input ``v`` (m/s); output ``force`` (N); parameters: slopes ``c0``, ``c1``, ... (N s/m), breakpoints
        ``v1``, ... (m/s), relative to ``v0``, and ``v0`` (m/s). ``c1`` is the slope beyond ``v1``, and so on; see
        :func:`piecewise_linear`.

    Raises
    ------
    ValueError
        For ``regions`` below one.

    Notes
    -----
    Source: Nayek et al. (2023), Eq. 21.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> damper = sid.models.piecewise_map(2, offset=False)
    >>> record = sid.TimeSeries(
    ...     np.arange(3.0), np.array([-1.0, 0.5, 2.0]), None, intersample="zoh"
    ... )
    >>> sid.simulate(damper, record, dict(c0=10.0, c1=2.0, v1=1.0))["force"].values
    array([-10.,   5.,  12.])
    """
    offset = flag(offset, "offset")
    n = _breakpoints(regions)

    def observe(t: Any, x: Any, dx: Any, u: Any, p: Any) -> dict[str, Any]:
        velocity = u.v - p.v0 if offset else u.v
        return {"force": piecewise_linear(velocity, p.c0, _numbered(p, "c", n), _numbered(p, "v", n))}

    params = ("c0", *_names("c", n), *_names("v", n), *(("v0",) if offset else ()))
    return System(None, states=(), inputs=("v",), params=params, observe=observe)


def piecewise_constraints(
    slope: Any,
    slopes: Sequence[Any],
    breakpoints: Sequence[Any],
    *,
    difference: float = 0.05,
    ordered: bool = True,
    separation: float = 0.0,
    name: str = "piecewise",
) -> list[Any]:
    """Constrain the parameters of a piecewise-linear function, by potentials of the model on the context stack.

    Parameters
    ----------
    slope, slopes, breakpoints
        As for :func:`piecewise_linear`; numbers or variables of the model.
    difference : float, default 0.05
        Slopes of neighbouring regions must differ by at least this fraction of the larger of their absolute values.
    ordered : bool, default True
        Breakpoints must increase in the given order, ``d1 < d2 < ...``. The breakpoints are exchangeable, so without an order
        the posterior has one copy for each permutation.
    separation : float, default 0.0
        Breakpoints must differ by more than this.
    name : str, default "piecewise"
        The potentials are called ``name_slopes`` and ``name_breakpoints``.

    Returns
    -------
    list of TensorVariable
        The potentials: zero where the constraint holds, minus infinity elsewhere. There are none for a single region, and
        there is no ``name_breakpoints`` for a single breakpoint.

    Raises
    ------
    TypeError, ValueError
        As for :func:`piecewise_linear`; for a negative ``difference`` or ``separation``, or outside a model.

    Notes
    -----
    If the breakpoints have equal priors, they are equal at the initial point of the model, where the log density is minus
    infinity. Give them ``initval`` for samplers that start at the initial point. Sequential samplers start from the prior and
    do not need it.

    Source: Nayek et al. (2023), Section 4.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     k = [pm.LogNormal(f"k{i}") for i in range(3)]
    ...     d = [pm.Uniform("d1", -1, 1, initval=-0.5), pm.Uniform("d2", -1, 1, initval=0.5)]
    ...     _ = sid.models.piecewise_constraints(k[0], k[1:], d)
    >>> [potential.name for potential in model.potentials]
    ['piecewise_slopes', 'piecewise_breakpoints']
    """
    for what, value in (("difference", difference), ("separation", separation)):
        if not 0 <= number(value, what, "give a number that is zero or positive") < 1e30:
            raise ValueError(f"{what} is {value!r}; give a number that is zero or positive.")
    ordered, name = flag(ordered, "ordered"), text(name, "name")
    difference, separation = float(difference), float(separation)
    if not isinstance(slope, Variable):
        slope = number(slope, "slope", "give a number, or a PyMC variable")
    corners = _corners(pt.as_tensor(slope), slopes, breakpoints)
    apart = [abs(c.slope - c.inner) >= difference * pt.maximum(abs(c.slope), abs(c.inner)) for c in corners]
    at = [c.at for c in corners]
    if ordered:
        distances = [b - a for a, b in pairwise(at)]
    else:
        distances = [abs(b - a) for i, b in enumerate(at) for a in at[:i]]
    distinct = [distance > separation for distance in distances]
    conditions = {f"{name}_slopes": apart, f"{name}_breakpoints": distinct}
    return [pm.Potential(k, pt.switch(pt.all(pt.stack(v)), 0.0, -np.inf)) for k, v in conditions.items() if v]


# -- the corners of a function ----------------------------------------------------------------------------------------


class _Operations(NamedTuple):
    """Functions that depend on whether values are symbolic, labelled or plain numbers."""

    where: Callable[[Any, Any, Any], Any]
    maximum: Callable[[Any, Any], Any]


class _Corner(NamedTuple):
    """A breakpoint ``at``, its ``side`` of the origin, the slope beyond it, and the slope on its inner side."""

    at: Any
    side: Any
    slope: Any
    inner: Any


def _real(name: str, value: Any) -> Any:
    """Symbols and labelled numbers as they are, other numbers as an array."""
    if isinstance(value, Variable | xr.DataArray):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} is {shown(value)}; give real numbers, an array of them, or a tensor.")
    return array if array.ndim else array[()]


def _operations(*values: Any) -> _Operations:
    if any(isinstance(v, Variable) for v in values):
        return _Operations(pt.switch, pt.maximum)
    if any(isinstance(v, xr.DataArray) for v in values):
        return _Operations(xr.where, np.maximum)
    return _Operations(np.where, np.maximum)


def _corners(slope: Any, slopes: Any, breakpoints: Any) -> list[_Corner]:
    """Breakpoints and the slopes on both sides of each, without sorting: values may be symbols."""
    outer, at = _entries("slopes", slopes), _entries("breakpoints", breakpoints)
    if len(outer) != len(at):
        raise ValueError(f"there are {len(outer)} slopes for {len(at)} breakpoints; give the slope beyond each breakpoint.")
    if any(isinstance(v, Variable) for v in (slope, *outer, *at)):  # pt.switch needs symbolic conditions
        slope, outer, at = pt.as_tensor(slope), [pt.as_tensor(k) for k in outer], [pt.as_tensor(d) for d in at]
    where = _operations(slope, *outer, *at).where
    side = [where(d > 0, 1.0, -1.0) for d in at]
    reach = [abs(d) for d in at]
    corners = []
    for i, d in enumerate(at):
        inner, nearest = slope, 0.0
        for j in range(len(at)):
            if j == i:
                continue
            before = reach[j] <= reach[i] if j < i else reach[j] < reach[i]
            between = (side[j] * side[i] > 0) & before & (reach[j] >= nearest)
            inner, nearest = where(between, outer[j], inner), where(between, reach[j], nearest)
        corners.append(_Corner(d, side[i], outer[i], inner))
    return corners


def _entries(what: str, values: Any) -> list[Any]:
    """One entry a breakpoint; of an array or a vector variable, those along its first dimension."""
    if isinstance(values, Variable):
        shape = values.type.shape  # type: ignore[attr-defined]
        if len(shape) == 0 or shape[0] is None:
            raise TypeError(f"{what} is a variable of shape {shape}; give a vector of known length, or a list of scalars.")
        return [values[i] for i in range(shape[0])]  # type: ignore[index]
    array = isinstance(values, np.ndarray | xr.DataArray) and values.ndim > 0
    if isinstance(values, str) or not (array or isinstance(values, Sequence)):
        raise TypeError(f"{what} is {values!r}; give a sequence with one entry for each breakpoint.")
    return [_real(what, value) for value in values]


def _breakpoints(regions: Any) -> int:
    if not whole(regions, 1, MOST):
        raise ValueError(f"regions is {shown(regions)}; give a positive integer: 1 is linear, 2 bilinear, 3 trilinear.")
    return int(regions) - 1


def _names(letter: str, n: int) -> list[str]:
    return [f"{letter}{i}" for i in range(1, n + 1)]


def _numbered(p: Any, letter: str, n: int) -> list[Any]:
    return [getattr(p, name) for name in _names(letter, n)]
