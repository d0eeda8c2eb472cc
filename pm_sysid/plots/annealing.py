"""A chain of Data Annealing: how the samples come in, and where the parameters go meanwhile and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pm_sysid.idata import group, holds
from pm_sysid.plots.axes import (
    MODEL,
    PRIOR,
    AxesArray,
    FloatArray,
    Panels,
    chain_number,
    chosen_parameters,
    draw_line,
    known,
    mark_truth,
    panels,
    shared_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_annealing(
    idata: xr.DataTree,
    *,
    var_names: str | Sequence[str] | None = None,
    truth: Mapping[str, ArrayLike] | None = None,
    chain: int = 0,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw chains of Data Annealing: samples in the likelihood, acceptance, and parameters against the draw.

    The draws during which samples were taken in stand on the left, if they were kept
    (``pm.sample(..., discard_tuned_samples=False)``), and those after on the right, with a range of their own. One chain is
    blue, the others grey behind it.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of ``pm.sample`` with :class:`DataAnnealing`.
    var_names : str or sequence of str, optional
        Scalar parameters to draw; by default the first 12 of the posterior.
    truth : mapping of name to number, optional
        Known values, to mark.
    chain : int, default 0
        Which chain to bring out.
    axes, figsize : array of matplotlib axes; (float, float); optional
        Where to draw, row by row; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (2 + parameters, phases)

    Raises
    ------
    ValueError
        If the result is not one of Data Annealing, or there is no such parameter or chain.

    Notes
    -----
    Compare Green (2015), Figures 5-7.
    """
    if not holds(idata, "sample_stats") or "n_data" not in group(idata, "sample_stats"):
        raise ValueError("idata has no statistic 'n_data'; give the result of pm.sample(step=sid.DataAnnealing(...)).")
    posterior = group(idata, "posterior")
    chain, true = chain_number(chain, posterior.sizes["chain"]), known(truth)
    scalar = [str(v) for v in posterior if set(posterior[v].dims) == {"chain", "draw"}]
    missing = f"the posterior has no scalar parameter {{}}; it has {', '.join(scalar)}."
    names = chosen_parameters(scalar, var_names, true, missing)
    phases = ["warmup_", ""] if "warmup_posterior" in idata.children else [""]
    rows = [("sample_stats", "n_data", "samples"), ("sample_stats", "accept_rate", "acceptance")]
    rows += [("posterior", name, name) for name in names]
    shape = (len(rows), len(phases))
    grid = panels(axes, [shape], figsize, (4.6 * len(phases), 1.3 * len(rows) + 0.5), sharex="col")
    for line, (place, name, label) in zip(grid, rows, strict=True):
        first = 1
        for panel, phase in zip(line, phases, strict=True):
            values = group(idata, phase + place)[name].transpose("chain", "draw", ...).to_numpy().astype(float)
            _draw_chains(panel, values.reshape(*values.shape[:2]), first, chain)
            first += values.shape[1]
            if name in true and place == "posterior":
                mark_truth(panel, true[name])
        line[0].set_ylabel(label)
    most = float(group(idata, "sample_stats")["n_data"].max())
    for panel in grid[0]:
        panel.set_ylim(0, 1.05 * most)
    for panel in grid[1]:
        panel.set_ylim(0, 1)
    for panel, phase in zip(grid[0], phases, strict=True):
        panel.set_title("annealing" if phase else "after", fontsize="medium")
    for panel in grid[-1]:
        panel.set_xlabel("draw")
    shared_legend(grid, axes, "outside lower center", ncols=3 if axes is None else 1)
    return grid


def _draw_chains(ax: Axes, values: FloatArray, first: int, chain: int) -> None:
    """Draw all chains, the one to bring out on top."""
    draw = first + np.arange(float(values.shape[1]))
    for c in sorted(range(len(values)), key=lambda c: c == chain):
        style = {"color": MODEL, "lw": 0.8} if c == chain else {"color": PRIOR, "lw": 0.5, "zorder": 1}
        style["label"] = f"chain {c}" if c == chain else "other chains"
        draw_line(ax, draw, values[c], **style)
    ax.set_xlim(draw[0], draw[-1])
    ax.spines[["right", "top"]].set_visible(False)
    ax.ticklabel_format(axis="y", scilimits=(-3, 5), useMathText=True, useOffset=False)
