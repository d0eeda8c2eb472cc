"""A run of the ABC nested sampler, and restoring forces of a posterior."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pm_sysid.arguments import count, flag, shown
from pm_sysid.idata import group, holds, posterior_of
from pm_sysid.plots.axes import (
    COLOURS,
    DATA,
    MODEL,
    TRUTH,
    AxesArray,
    Panels,
    logarithmic,
    one_panel,
    panels,
    probability,
    values_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_abc(
    idata: xr.DataTree, *, share: bool = False, axes: Panels = None, figsize: tuple[float, float] | None = None
) -> AxesArray:
    """Draw the rounds of an ABC nested sampler: threshold, acceptance, and probabilities of the models.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of :func:`sample_abc_ns`.
    share : bool, default False
        Also draw the share of each model in the number of particles, dashed.
    axes, figsize : array of three matplotlib axes; (float, float); optional
        Where to draw, from top to bottom; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (3,)

    Raises
    ------
    ValueError
        If ``idata`` is not the result of :func:`sample_abc_ns`.

    Notes
    -----
    Compare Nayek et al. (2023), Figures 8, 13 and 15.
    """
    share = flag(share, "share")
    if not holds(idata, "populations"):
        raise ValueError("idata has no group 'populations'; give the result of sample_abc_ns.")
    rounds = group(idata, "populations")
    top, middle, bottom = canvas = panels(axes, [(3, 1)], figsize, (7.0, 6.0), sharex=True).ravel()
    number = rounds["population"].values
    top.plot(number, rounds["threshold"], color=MODEL, label="threshold")
    top.plot(number, np.maximum(rounds["best"], 1e-300), color=DATA, lw=1, label="best particle")
    top.set_ylabel("distance")
    top.legend(frameon=False, fontsize="small")
    middle.plot(number, rounds["acceptance"], color=MODEL)
    middle.set_ylabel("acceptance")
    for k, name in enumerate(rounds["model"].values):
        colour = COLOURS[k % len(COLOURS)]
        bottom.plot(number, rounds["probability"].isel(model=k), color=colour, label=str(name))
        if share:
            bottom.plot(number, rounds["share"].isel(model=k), color=colour, lw=1, ls="--")
    logarithmic(top)
    logarithmic(middle)
    bottom.set_ylabel("probability")
    bottom.set_ylim(-0.02, 1.02)
    bottom.set_xlabel("population")
    bottom.legend(frameon=False, fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return canvas


def _law(force: Callable[[np.ndarray, Any], Any], x: np.ndarray, p: SimpleNamespace) -> np.ndarray:
    """The force of one draw."""
    try:
        found = force(x.copy(), p)  # a function that changes its argument changes that of no other draw
    except AttributeError as error:
        if error.obj is not p:
            raise
        raise ValueError(f"force(x, p) reads p.{error.name}, but idata has {', '.join(vars(p))}.") from None
    if type(found).__module__.startswith("pytensor"):  # which plots need not import
        raise TypeError("force(x, p) returns a PyTensor expression; give one of NumPy functions, such as np.tanh.")
    return np.asarray(found, dtype=float)


def plot_restoring_force(
    idata: Any,
    force: Callable[[np.ndarray, Any], Any],
    x: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    draws: int = 200,
    hdi: float = 0.94,
    xlabel: str = "displacement",
    ylabel: str = "restoring force",
    axes: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """Draw a static force of a posterior over its argument: draws, their median, and the band that holds most of them.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws.
    force : callable
        ``force(x, p)`` of the argument (an array of shape (n,)) and a namespace of the parameters of one draw, as inside a
        system: scalars, vectors, matrices. It returns an array of shape (n,), such as
        ``lambda x, p: sid.models.piecewise_linear(x, p.k0, [p.k1], [p.d1])``, or a learned law, ``lambda x, p: spring(x, p.w)``
        (:class:`Spline`). Draws for which it is not finite everywhere are left out with a warning.
    x : array, shape (n,)
        Where to evaluate it.
    truth : array, shape (n,), optional
        Known force, to mark.
    data : (array, array), optional
        Measured argument and force, to show behind it.
    draws : int, default 200
        At most so many draws are drawn as lines; median and band are of these.
    hdi : float, default 0.94
        Probability of the band.
    xlabel, ylabel : str
        Names of the axes, with units.
    axes, figsize : matplotlib axes; (float, float); optional
        Where to draw; or the width and height of a new figure, in inches.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    ValueError
        If ``force`` returns something of another shape, is finite for no draw, or reads a parameter that is not in ``idata``.
    TypeError
        If ``force`` returns no numbers, such as a PyTensor expression.

    Notes
    -----
    Compare Nayek et al. (2023), Figures 10, 17 and 19.
    """
    if not callable(force):
        raise TypeError(f"force is {type(force).__name__}; give a function of (x, p)")
    draws, hdi = count(draws, "draws"), probability(hdi, "hdi")
    at = values_of(x, "x")
    known = None if truth is None else values_of(truth, "truth", at.size)
    points = None
    if data is not None:
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise TypeError(f"data is {shown(data)}; give a pair of arrays: measured argument, measured force")
        first = values_of(data[0], "data")
        points = first, values_of(data[1], "data", first.size)
    stacked = posterior_of(idata).stack(__sample__=("chain", "draw")).transpose("__sample__", ...)
    n = stacked.sizes["__sample__"]
    picked = np.linspace(0, n - 1, min(draws, n)).round().astype(int)
    values = {str(k): v.values[picked] for k, v in stacked.data_vars.items()}
    laws = [_law(force, at, SimpleNamespace(**{k: v[i] for k, v in values.items()})) for i in range(len(picked))]
    shapes = {law.shape for law in laws}
    if shapes != {at.shape}:
        raise ValueError(
            f"force(x, p) has the shape {shapes.pop()} for x of {at.shape}; return {at.shape}, a force for each place."
        )
    forces = np.array(laws)
    finite = np.isfinite(forces).all(axis=1)
    if not finite.any():
        raise ValueError("force(x, p) is finite throughout for none of the draws; give an x for which it is.")
    if not finite.all():
        warnings.warn(f"{(~finite).sum()} of {len(forces)} forces are not finite everywhere and left out", stacklevel=2)
        forces = forces[finite]
    canvas = one_panel(axes, figsize, (6.0, 4.0))
    if points is not None:
        canvas.plot(*points, ".", color=DATA, ms=2, alpha=0.3, rasterized=True, label="measured")
    canvas.plot(at, forces.T, color=MODEL, lw=0.4, alpha=min(1.0, 10 / len(picked)), rasterized=True)
    low, middle, high = np.quantile(forces, [(1 - hdi) / 2, 0.5, (1 + hdi) / 2], axis=0)
    canvas.fill_between(at, low, high, color=MODEL, alpha=0.25, lw=0, label=f"{100 * hdi:g} % interval")
    canvas.plot(at, middle, color=MODEL, lw=1.5, label="median")
    if known is not None:
        canvas.plot(at, known, color=TRUTH, lw=1, ls="--", label="truth")
    canvas.set_xlabel(xlabel)
    canvas.set_ylabel(ylabel)
    canvas.legend(frameon=False, fontsize="small")
    return canvas
