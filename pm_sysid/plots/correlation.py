"""The correlation matrix of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pm_sysid.plots.axes import one_panel
from pm_sysid.posterior.correlation import correlation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 30
_NUMBERS = 16  # parameters: with more the coefficients are shown by colour alone


def plot_correlation(
    idata: Any,
    *,
    var_names: str | Sequence[str] | None = None,
    axes: Axes | None = None,
    figsize: tuple[float, float] | None = None,
) -> Axes:
    """Draw the correlation matrix of the parameters, with its numbers.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws; or a matrix of :func:`correlation` itself, as a DataArray.
    var_names : str or sequence of str, optional
        Variables; by default all of the posterior without a time dimension.
    axes, figsize : matplotlib axes; (float, float); optional
        Where to draw; or the width and height of a new figure, in inches.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    ValueError
        If there is no posterior or no such variable, or more than 30 parameters would be drawn.

    Notes
    -----
    Compare Green (2015), Figures 8-10. A parameter that does not vary has no coefficients: its cells stay empty.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> k = np.random.default_rng(0).normal(2.0, 0.1, (2, 500))
    >>> ax = plot_correlation(
    ...     xr.Dataset({"k": (("chain", "draw"), k), "c": (("chain", "draw"), 1 - k)})
    ... )
    >>> [text.get_text() for text in ax.texts][1].replace("\N{MINUS SIGN}", "-")
    '-1.00'
    """
    given = isinstance(idata, xr.DataArray)
    if given and var_names is not None:
        raise ValueError("var_names chooses variables of a posterior; select the rows and columns of a matrix instead.")
    matrix = idata if given else correlation(idata, var_names=var_names)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a correlation matrix must be square, but has the shape {matrix.shape}.")
    values, count = matrix.to_numpy(), len(matrix)
    if not 0 < count <= _MOST:
        raise ValueError(f"there are {count} parameters to draw; choose 1 to {_MOST} by var_names.")
    names = [str(n) for n in matrix[matrix.dims[0]].to_numpy()]
    side = 0.55 * count + 1.2
    panel = one_panel(axes, figsize, (side + 0.5, side))
    image = panel.imshow(np.ma.masked_invalid(values), cmap="RdBu_r", vmin=-1, vmax=1)
    if count <= _NUMBERS:
        for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
            r = values[row, column]
            text = f"{r + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")
            colour = "white" if abs(r) > 0.6 else "black"
            panel.text(column, row, text, ha="center", va="center", color=colour, fontsize="small" if count <= 10 else 6)
    panel.set_xticks(range(count), names, rotation=90 if max(map(len, names)) > 4 else 0)
    panel.set_yticks(range(count), names)
    panel.tick_params(length=0)
    panel.set_xticks(np.arange(count - 1) + 0.5, minor=True)
    panel.set_yticks(np.arange(count - 1) + 0.5, minor=True)
    panel.grid(which="minor", color="white", lw=1)
    panel.tick_params(which="minor", length=0)
    panel.spines[:].set_visible(False)
    bar = panel.figure.colorbar(image, ax=panel, ticks=[-1, 0, 1], shrink=0.8)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("correlation")
    return panel
