"""A calibration: where true values rank, and how far off posterior means are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy
import xarray as xr
from arviz_stats import ecdf_utils

from pm_sysid.arguments import among, words
from pm_sysid.idata import group
from pm_sysid.plots.axes import MODEL, PRIOR, TRUTH, AxesArray, FloatArray, Panels, parameter_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_bands: Any = ecdf_utils  # without types
#: Probability that an ECDF stays in its band, and a bar of a histogram in its own.
_LEVEL = 0.99
_BINS = 20


def plot_calibration(
    result: xr.DataTree,
    kind: Literal["ecdf", "rank", "z"] = "ecdf",
    *,
    var_names: str | Sequence[str] | None = None,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw the ranks or the z-scores of a simulation-based calibration, one panel a parameter.

    Parameters
    ----------
    result : xarray.DataTree
        Of :func:`calibrate`.
    kind : {"ecdf", "rank", "z"}
        ``"ecdf"``: how far the distribution of the ranks is from uniform, with the band in which it stays as a whole with
        99 % probability. ``"rank"``: their histogram, with a 99 % interval for each bar. ``"z"``: z-scores of the truth
        against the contraction from prior to posterior.
    var_names : str or sequence of str, optional
        Parameters by their label, such as ``"k"`` or ``"theta[0]"``. Default: all that ``kind`` has numbers for.
    axes, figsize : array of matplotlib axes; (float, float); optional
        Where to draw; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (parameters,)

    Raises
    ------
    ValueError
        For another kind, or a parameter that was not ranked.

    Notes
    -----
    Curves above zero: more true values are low in their posteriors than should be, so that these are too high. An S says
    too narrow (first above, then below zero) or too wide.

    Source: Säilynoja, Bürkner and Vehtari (2022) for the band, by ArviZ.
    """
    if not among(kind, ("ecdf", "rank", "z")):
        raise ValueError(f"kind is {kind!r}; give 'ecdf', 'rank' or 'z'.")
    if not isinstance(result, xr.DataTree) or "calibration" not in result.children:
        raise ValueError("result has no group 'calibration'; give the result of calibrate.")
    found = group(result, "calibration")
    labels = [str(v) for v in found["parameter"].values]
    if var_names is None and kind == "z":
        labels = [v for v in labels if np.isfinite(found["contraction"].sel(parameter=v)).any()]
    names = labels if var_names is None else words(var_names, "var_names")
    if unknown := [v for v in names if v not in labels]:
        raise ValueError(f"there are no numbers of {unknown[0]!r} for kind={kind!r}; there are those of {', '.join(labels)}.")
    if not names:
        raise ValueError("there is no parameter to draw; choose some by var_names.")
    fine = found.isel(fit=np.flatnonzero(~found["failed"].values))
    if not fine.sizes["fit"]:
        raise ValueError("every fit of the calibration failed; there is nothing to draw.")
    used, columns = parameter_panels(axes, len(names), figsize, 2.2, sharey=kind != "rank")
    drawing = {"ecdf": _draw_ecdf, "rank": _draw_ranks, "z": _draw_z}[kind]
    for k, (panel, name) in enumerate(zip(used, names, strict=True)):
        drawing(panel, fine.sel(parameter=name))
        panel.set_title(name, fontsize="medium")
        panel.spines[["right", "top"]].set_visible(False)
        if k % columns == 0 or axes is not None:
            panel.set_ylabel({"ecdf": "ECDF - uniform", "rank": "fits", "z": "z-score"}[kind])
        if k >= len(names) - columns or axes is not None:
            panel.set_xlabel("contraction" if kind == "z" else "rank of the truth")
    return used


def _draw_ecdf(ax: Axes, fits: xr.Dataset) -> None:
    """Distribution of the ranks less the uniform one, in its simultaneous band."""
    values: FloatArray = np.sort(fits["pit"].values)
    x, _, low, high = _bands.ecdf_pit(values, _LEVEL, n_simulations=1000)
    ax.fill_between(x, low - x, high - x, color=PRIOR, alpha=0.2, linewidth=0, step="mid")
    ax.axhline(0, color=PRIOR, lw=0.7)
    at = np.linspace(0, 1, 1001)
    inside = np.searchsorted(values, at, side="right") / len(values) - at
    ax.plot(at, inside, color=MODEL, lw=1.2)
    ax.set_xlim(0, 1)


def _draw_ranks(ax: Axes, fits: xr.Dataset) -> None:
    """Histogram of the ranks, and what each bar may be."""
    n = fits.sizes["fit"]
    bins = int(np.clip(n // 10, 5, _BINS))
    low, high = scipy.stats.binom.interval(_LEVEL, n, 1 / bins)
    ax.axhspan(low, high, color=PRIOR, alpha=0.2, linewidth=0)
    ax.axhline(n / bins, color=PRIOR, lw=0.7)
    ax.hist(fits["pit"].values, bins=bins, range=(0, 1), color=MODEL, alpha=0.7)
    ax.set_xlim(0, 1)


def _draw_z(ax: Axes, fits: xr.Dataset) -> None:
    """Errors in posterior standard deviations against what the data told."""
    ax.axhline(0, color=PRIOR, lw=0.7)
    for edge in (-2, 2):
        ax.axhline(edge, color=TRUTH, lw=0.7, ls="--")
    ax.plot(fits["contraction"].values, fits["z"].values, ls="none", marker=".", markersize=3, color=MODEL, alpha=0.6)
