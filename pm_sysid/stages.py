"""Stages of a sequential run as regular arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from arviz_base import dict_to_dataset
from scipy.special import logsumexp


def stages(idata: xr.DataTree) -> xr.Dataset:
    """Statistics of a sequential run with dims (chain, stage), NaN after a chain's last stage.

    PyMC keeps those of several chains as objects, since chains may have different numbers of stages. Results of
    :func:`sample_ibis` are regular already.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of ``pm.sample_smc`` with :class:`IBIS`, or of :func:`sample_ibis`.

    Returns
    -------
    xarray.Dataset
    """
    found = group(idata, "sample_stats")
    if "stage" in found.dims:
        return found
    chains = idata["posterior"].sizes["chain"]
    columns = {str(k): [v.values] if chains == 1 else list(v.values) for k, v in found.data_vars.items()}
    return regular(columns, found.attrs)


def group(idata: xr.DataTree, name: str) -> xr.Dataset:
    """Return a group of a result."""
    if not holds(idata, name):
        have = list(idata.children) if isinstance(idata, xr.DataTree) else f"is {type(idata).__name__}"
        raise ValueError(f"idata has no group {name!r}: {have}; give the xarray.DataTree that sampling returned.")
    node = idata[name]
    assert isinstance(node, xr.DataTree)
    return node.to_dataset()


def holds(idata: Any, name: str) -> bool:
    """Whether something is a result with a group."""
    return isinstance(idata, xr.DataTree) and name in idata.children


def regular(columns: Mapping[str, Sequence[Any]], attrs: Mapping[Any, Any] | None = None) -> xr.Dataset:
    """Statistics with dims (chain, stage) from a series of stages for each chain, filled up with NaN."""
    # A run that started again: its first attempt is no part of the result.
    begin = [_begin(np.asarray(row, dtype=float)) for row in columns.get("time_index", [])]
    columns_of_stages: dict[str, np.ndarray] = {}
    for name, rows in columns.items():
        arrays = [np.asarray([np.asarray(entry, dtype=float) for entry in row]) for row in rows]
        arrays = [a[b:] for a, b in zip(arrays, begin, strict=True)] if begin else arrays
        padded = np.full((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), np.nan)
        for row, values in zip(padded, arrays, strict=True):
            row[: len(values)] = values
        columns_of_stages[name] = padded
    dims = {"ess_path": ["point"], "particles": ["draw", "coordinate"]}
    return dataset(columns_of_stages, ["chain", "stage"], dims, {}, attrs or {})


def _begin(time_index: np.ndarray) -> int:
    """First stage after the last fall of the number of samples taken in."""
    falls = np.flatnonzero(np.diff(time_index) < 0)
    return int(falls[-1]) + 1 if falls.size else 0


class Evidence(NamedTuple):
    """Log evidence (log marginal likelihood) of a model, its standard error, and the estimate of each chain."""

    value: float
    error: float
    chains: np.ndarray


def log_evidence(idata: xr.DataTree) -> Evidence:
    """Log evidence of a model from its sequential runs.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of :func:`sample_ibis`, or of ``pm.sample_smc`` with any kernel.

    Returns
    -------
    Evidence
        ``value``: logarithm of the mean of the chains' estimates, each of which is unbiased. ``error``: from the weights of
        each run where it reports that, and at least what the chains' differences say. ``chains``: their estimates.

    Raises
    ------
    ValueError
        If ``idata`` is not the result of a sequential run.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=[0.5, -0.5, 1.0])
    ...     idata = sid.sample_ibis(1000, chains=2, cores=1, progressbar=False, random_seed=1)
    >>> round(sid.log_evidence(idata).value, 1)
    -4.1
    """
    found = stages(idata) if holds(idata, "sample_stats") else xr.Dataset()
    name = "log_evidence" if "log_evidence" in found else "log_marginal_likelihood"
    if name not in found:
        raise ValueError("idata has no evidence; give the result of sample_ibis or pm.sample_smc.")
    last = found[name].isel(stage=found[name].notnull().cumsum("stage").argmax("stage"))
    chains = np.asarray(last, dtype=float)
    error = float(np.std(chains, ddof=1)) if chains.size > 1 else float("nan")
    if "log_evidence_se" in found:
        error = float(np.fmax(error, np.sqrt(np.mean(final(found)["log_evidence_se"].values ** 2))))
    return Evidence(float(logsumexp(chains) - np.log(chains.size)), error / np.sqrt(chains.size), chains)


def final(statistics: xr.Dataset) -> xr.Dataset:
    """Statistics of each chain's last stage."""
    return statistics.isel(stage=statistics["time_index"].notnull().sum("stage") - 1)


def one_after_the_other(old: xr.Dataset, new: xr.Dataset) -> xr.Dataset:
    """Stages of an earlier run, then of a later one; a chain's later stages follow its own last one."""
    both = xr.concat([old.drop_vars("stage", errors="ignore"), new.drop_vars("stage", errors="ignore")], "stage")
    counts = old["time_index"].notnull().sum("stage").values
    # A run that started again from the first sample follows nothing.
    counts = np.where(new["time_index"].isel(stage=0) < final(old)["time_index"], 0, counts)
    total = counts + new["time_index"].notnull().sum("stage").values
    parts = []
    for c, count in enumerate(counts):
        gap = old.sizes["stage"] - count
        order = [*range(count), *range(old.sizes["stage"], both.sizes["stage"]), *range(count, count + gap)]
        parts.append(both.isel(chain=[c], stage=order))
    joined = xr.concat(parts, "chain").isel(stage=slice(0, int(total.max())))
    result: xr.Dataset = joined.assign_coords(stage=np.arange(joined.sizes["stage"]))
    return result


def dataset(
    columns: dict[str, np.ndarray],
    sample_dims: Sequence[str],
    dims: Mapping[Any, Any],
    coords: dict[str, Any],
    attrs: Mapping[Any, Any],
) -> xr.Dataset:
    """Columns with leading sample dims as a Dataset."""
    options: dict[str, Any] = {"sample_dims": list(sample_dims), "dims": dict(dims), "coords": coords}
    result: xr.Dataset = dict_to_dataset(columns, check_conventions=False, **options)
    result.attrs = dict(attrs)
    return result
