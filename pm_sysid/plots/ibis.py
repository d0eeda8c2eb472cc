"""A sequential run: how the particles degenerate and are renewed, and how the posterior contracts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pm_sysid.arguments import flag
from pm_sysid.idata import group, holds
from pm_sysid.plots.axes import (
    MODEL,
    PRIOR,
    TRUTH,
    AxesArray,
    Panels,
    chain_number,
    chosen_parameters,
    known,
    logarithmic,
    mark_truth,
    panels,
    without_spare,
)
from pm_sysid.sampling.smc.stages import stages

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_ibis(
    idata: xr.DataTree,
    *,
    var_names: str | Sequence[str] | None = None,
    truth: Mapping[str, ArrayLike] | None = None,
    chain: int = 0,
    log_time: bool = True,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw a sequential run against the samples taken in.

    Effective sample size with the instants of resampling and the threshold, acceptance of the moves, log evidence; and, if
    the stages were stored (``sample_ibis(..., store_stages=True)``), median and 94 % band of each parameter.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of :func:`sample_ibis`, or of ``pm.sample_smc`` with :class:`IBIS`.
    var_names : str or sequence of str, optional
        Scalar parameters to draw; by default all that were stored (at most 12).
    truth : mapping of name to number, optional
        Known values, to mark.
    chain : int, default 0
        Whose effective sizes and bands to draw; acceptance and evidence are drawn for all.
    log_time : bool, default True
        Logarithmic axis of samples: most stages come early.
    axes, figsize : array of matplotlib axes; (float, float); optional
        Where to draw, one per panel (three and the parameters); or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (panels,)

    Raises
    ------
    ValueError
        If there are no stages, no such parameter, or no such chain.

    Notes
    -----
    Compare Longbottom, Champneys and Rogers (2024), Figure 2.
    """
    if not holds(idata, "sample_stats") or "time_index" not in (found := stages(idata)):
        raise ValueError("idata has no stages of a sequential run; give the result of sample_ibis.")
    chain, true, log_time = chain_number(chain, found.sizes["chain"]), known(truth), flag(log_time, "log_time")
    stored = group(idata, "stages") if "stages" in idata.children else xr.Dataset()
    names = _names(stored, var_names, true)
    count = 3 + len(names)
    columns = 1 if not names else 2 if count <= 8 else 3
    rows = math.ceil(count / columns)
    shapes = [(rows, columns)] if axes is None else [(1, count)]
    grid = panels(axes, shapes, figsize, (5.2 * columns, 1.7 * rows + 0.5), sharex=True)
    # Down the columns, so that the panels of the run stand one below the other.
    used = without_spare(grid.T.ravel() if axes is None else grid.ravel(), count)
    _draw_sizes(used[0], found.isel(chain=chain))
    for name, label, panel in (("accept_rate", "acceptance", used[1]), ("log_evidence", "log evidence", used[2])):
        for c in range(found.sizes["chain"]):
            each = found.isel(chain=c)
            style: dict[str, Any] = {"color": MODEL, "lw": 1.2} if c == chain else {"color": PRIOR, "lw": 0.7, "zorder": 1}
            panel.plot(each["time_index"], each[name], **style)
        panel.set_ylabel(label)
    used[1].set_ylim(0, 1)
    if others := [line for c, line in enumerate(used[1].lines) if c != chain]:
        others[0].set_label("other chains")
        used[1].legend(fontsize="x-small", frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98), borderaxespad=0)
    for panel, name in zip(used[3:], names, strict=True):
        _draw_band(panel, stored[name].isel(chain=chain), stored["time_index"].isel(chain=chain), name)
        if name in true:
            mark_truth(panel, true[name])
    for panel in used:
        if log_time:
            logarithmic(panel, "x")
        panel.spines[["right", "top"]].set_visible(False)
    bottoms = used if axes is not None else [p for i, p in enumerate(used) if i % rows == rows - 1 or i == count - 1]
    for panel in bottoms:
        panel.set_xlabel("samples taken in")
        panel.xaxis.set_tick_params(labelbottom=True)
    return used


def _names(stored: xr.Dataset, var_names: str | Sequence[str] | None, truth: Mapping[str, ArrayLike]) -> list[str]:
    scalar = [str(v) for v in stored if v != "time_index" and set(stored[v].dims) == {"chain", "stage", "draw"}]
    have = f"it has {', '.join(scalar)}" if scalar else "none were: sample with store_stages=True"
    return chosen_parameters(scalar, var_names, truth, f"no scalar parameter {{}} was stored after each stage; {have}.")


def _draw_sizes(ax: Axes, found: xr.Dataset) -> None:
    """Effective size along every stage, dropping to the threshold and set back by resampling."""
    ends = found["time_index"].dropna("stage").values
    starts = np.concatenate([[0.0], ends[:-1]])
    paths = found["ess_path"].values[: len(ends)]
    time = np.linspace(starts, ends, paths.shape[1], axis=1)
    ax.plot(np.maximum(time, 1).ravel(), paths.ravel(), color=MODEL, lw=0.8, label="effective size")
    threshold, draws = found.attrs.get("threshold"), found.attrs.get("_n_draws", np.nanmax(paths))
    if threshold is not None:
        ax.axhline(threshold * draws, color=TRUTH, lw=0.8, ls="--", label="threshold")
    ax.plot(np.maximum(ends, 1), np.zeros_like(ends), "|", color="0.3", markersize=6, label="resampling")
    ax.set_ylim(0, 1.05 * draws)
    ax.set_ylabel("ESS")
    ax.legend(fontsize="x-small", frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 0.98), borderaxespad=0)


def _draw_band(ax: Axes, draws: xr.DataArray, time_index: xr.DataArray, name: str) -> None:
    values = draws.dropna("stage").values
    time = np.maximum(time_index.dropna("stage").values, 1)
    low, middle, high = np.quantile(values, [0.03, 0.5, 0.97], axis=1)
    ax.fill_between(time, low, high, color=MODEL, alpha=0.25, linewidth=0)
    ax.plot(time, middle, color=MODEL, lw=1.2)
    ax.set_ylabel(name)
    # The first stages are as wide as the prior: the range is that of a later one, so that the contraction is seen.
    late = time >= min(30.0, time[-1])
    reach = float(np.max(high[late])) - float(np.min(low[late]))
    ax.set_ylim(float(np.min(low[late])) - 0.1 * reach, float(np.max(high[late])) + 0.1 * reach)
