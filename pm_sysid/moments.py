"""Posterior moments of parameters: what the data say about them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from pm_sysid.doors import shown, whole, words


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
    >>> posterior = xr.Dataset({"k": (("chain", "draw"), k), "c": (("chain", "draw"), 9 - 2 * k)})
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
    >>> import numpy as np, xarray as xr, pm_sysid as sid
    >>> k = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> posterior = xr.Dataset({"k": (("chain", "draw"), k), "c": (("chain", "draw"), 9 - 2 * k)})
    >>> sid.correlation(posterior).sel(parameter="k", other="c").item().__round__(3)
    -1.0
    """
    matrix = covariance(idata, var_names=var_names)
    spread = np.sqrt(np.diag(matrix))
    with np.errstate(invalid="ignore", divide="ignore"):
        return matrix.copy(data=matrix.values / np.outer(spread, spread)).rename("correlation")


def elements(idata: Any, var_names: str | Sequence[str] | None = None) -> xr.DataArray:
    """Every scalar element of the variables of a posterior side by side, dims (chain, draw, parameter)."""
    posterior = posterior_of(idata)
    names = None if var_names is None else words(var_names, "var_names")
    if names is None:
        names = [str(v) for v in posterior if not any(str(d).endswith("time") for d in posterior[v].dims)]
    if unknown := [n for n in names if n not in posterior]:
        raise ValueError(f"the posterior has no variable {unknown[0]!r}; it has {', '.join(map(str, posterior))}.")
    if not names:
        raise ValueError("the posterior has no parameters; choose variables by var_names.")
    labels, columns = [], []
    for name in names:
        value = posterior[name].transpose("chain", "draw", ...)
        dims = value.dims[2:]
        for index in np.ndindex(value.shape[2:]):
            place = ", ".join(str(value[d].to_numpy()[i]) for d, i in zip(dims, index, strict=True))
            labels.append(f"{name}[{place}]" if dims else str(name))
            columns.append(value.values[(..., *index)].astype(float))
    return xr.DataArray(np.stack(columns, axis=-1), {"parameter": labels}, ("chain", "draw", "parameter"))


def posterior_of(idata: Any) -> xr.Dataset:
    """Posterior draws of a result, with dims ``chain`` and ``draw``."""
    if isinstance(idata, xr.DataTree):
        if "posterior" not in idata.children:
            raise ValueError(f"idata has no group 'posterior', but {list(idata.children)}; give what pm.sample returned.")
        idata = idata["posterior"].to_dataset()
    if not isinstance(idata, xr.Dataset):
        raise ValueError(f"idata is {type(idata).__name__}; give what pm.sample returned.")
    if absent := {"chain", "draw"} - set(idata.dims):
        raise ValueError(f"idata has no dimension {' and '.join(sorted(absent))}; give what pm.sample returned.")
    return idata


def thinned(posterior: xr.Dataset, draws: int | None) -> np.ndarray:
    """Places of evenly spaced draws of each chain, about ``draws`` in all chains together (None: every draw)."""
    chains, total = posterior.sizes["chain"], posterior.sizes["draw"]
    if draws is None:
        return np.arange(total)
    if not whole(draws):
        raise ValueError(f"draws is {shown(draws)}; give a positive integer, or None for every draw.")
    return np.linspace(0, total - 1, min(-(-int(draws) // chains), total)).round().astype(int)
