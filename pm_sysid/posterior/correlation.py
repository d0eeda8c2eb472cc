"""Posterior moments of parameters: what the data say about them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pm_sysid.idata import elements


def covariance(idata: Any, *, var_names: str | Sequence[str] | None = None) -> xr.DataArray:
    """Covariance matrix of the parameters over all posterior draws.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws: a tree with the group ``posterior``, or a Dataset with dims ``chain`` and ``draw``.
    var_names : str or sequence of str, optional
        Variables; elements of vectors count one by one. Default: all of the posterior without a time dimension.

    Returns
    -------
    xarray.DataArray, dims (parameter, other)
        In products of the parameters' units (divisor: draws - 1), labelled by their names.

    Raises
    ------
    ValueError
        If there is no posterior, no such variable, or fewer than two draws.

    Notes
    -----
    Source: Green (2015), Section 4, Figures 8-10.

    Examples
    --------
    >>> import numpy as np, xarray as xr, pm_sysid as sid
    >>> k = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> posterior = xr.Dataset(
    ...     {"k": (("chain", "draw"), k), "c": (("chain", "draw"), 9 - 2 * k)}
    ... )
    >>> sid.covariance(posterior).sel(parameter="k", other="c").item().__round__(3)
    -3.333
    """
    draws = elements(idata, var_names)
    rows = draws.values.reshape(-1, draws.sizes["parameter"])
    if len(rows) < 2:
        raise ValueError(f"idata has {len(rows)} draws; a covariance needs at least two.")
    names = draws["parameter"].values
    matrix = np.atleast_2d(np.cov(rows, rowvar=False))
    return xr.DataArray(matrix, {"parameter": names, "other": names}, ("parameter", "other"), "covariance")


def correlation(idata: Any, *, var_names: str | Sequence[str] | None = None) -> xr.DataArray:
    """Correlation matrix of the parameters over all posterior draws; NaN for a parameter that does not vary.

    Arguments, shapes and errors as for :func:`covariance`. A coefficient near 1 or -1 says that the data fix a combination
    of two parameters rather than each of them.

    Returns
    -------
    xarray.DataArray, dims (parameter, other)

    Examples
    --------
    >>> import xarray as xr, pm_sysid as sid
    >>> draws = {"k": [[1.0, 2.0, 3.0]], "c": [[9.0, 7.0, 5.0]]}
    >>> posterior = xr.Dataset(
    ...     {name: (("chain", "draw"), values) for name, values in draws.items()}
    ... )
    >>> sid.correlation(posterior).sel(parameter="k", other="c").item().__round__(3)
    -1.0
    """
    matrix = covariance(idata, var_names=var_names)
    std = np.sqrt(np.diag(matrix))
    with np.errstate(invalid="ignore", divide="ignore"):
        return matrix.copy(data=matrix.values / np.outer(std, std)).rename("correlation")
