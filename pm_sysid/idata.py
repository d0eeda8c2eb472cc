"""Reading the results of samplers: groups, posterior draws, points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from pm_sysid.arguments import count, shown, whole, words


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


def dataset(
    columns: dict[str, np.ndarray],
    sample_dims: Sequence[str],
    dims: Mapping[Any, Any],
    coords: dict[str, Any],
    attrs: Mapping[Any, Any],
) -> xr.Dataset:
    """Columns with leading sample dims as a Dataset."""
    import arviz_base  # takes a quarter of a second

    options: dict[str, Any] = {"sample_dims": list(sample_dims), "dims": dict(dims), "coords": coords}
    result: xr.Dataset = arviz_base.dict_to_dataset(columns, check_conventions=False, **options)
    result.attrs = dict(attrs)
    return result


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


def thinned(posterior: xr.Dataset, draws: int | None) -> np.ndarray:
    """Places of evenly spaced draws of each chain, about ``draws`` in all chains together (None: every draw)."""
    chains, total = posterior.sizes["chain"], posterior.sizes["draw"]
    if draws is None:
        return np.arange(total)
    if not whole(draws):
        raise ValueError(f"draws is {shown(draws)}; give a positive integer, or None for every draw.")
    return np.linspace(0, total - 1, min(-(-int(draws) // chains), total)).round().astype(int)


def some_draws(posterior: xr.Dataset, variables: Sequence[Any], draws: int) -> tuple[xr.Dataset, list[list[np.ndarray]]]:
    """About ``draws`` evenly spaced draws of a model's variables, and the values of all these in their order at each."""
    few = posterior.isel(draw=thinned(posterior, draws))[[v.name for v in variables if v.name in posterior]]
    return few, points_of(few, variables, few.sizes["chain"] * few.sizes["draw"])


def points_of(idata: Any, variables: Sequence[Any], draws: int | None) -> list[list[np.ndarray]]:
    """Values of variables, in their order, for each point."""
    types = {str(v.name): v for v in variables}
    if isinstance(idata, dict):
        if set(idata) != set(types):
            raise ValueError(f"idata is a point of {sorted(idata)}; give a number for each free variable: {sorted(types)}.")
        sets = [idata]
    else:
        posterior = posterior_of(idata)
        if missing := [n for n in types if n not in posterior]:
            raise ValueError(f"the posterior lacks the model's variables {missing}; it has {sorted(map(str, posterior))}.")
        if draws is None:
            mean = posterior[list(types)].mean(("chain", "draw"))
            sets = [{k: mean[k].to_numpy() for k in types}]
        else:
            total = posterior.sizes["chain"] * posterior.sizes["draw"]
            draws = count(draws, "draws", most=total)
            picked = np.linspace(0, total - 1, draws).round().astype(int)
            pooled = {k: posterior[k].transpose("chain", "draw", ...).to_numpy() for k in types}
            flat = {k: v.reshape(total, *v.shape[2:]) for k, v in pooled.items()}
            sets = [{k: v[i] for k, v in flat.items()} for i in picked]
    return [[value_of(k, point[k], variable) for k, variable in types.items()] for point in sets]


def value_of(name: str, value: Any, variable: Any) -> np.ndarray:
    """A value of a model's variable, of its type.

    Raises
    ------
    ValueError
        If it is no number, or has another shape.
    """
    try:
        array = np.asarray(value, dtype=variable.dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"idata[{name!r}] is {shown(value)}; give numbers.") from error
    known = variable.type.shape
    if array.ndim != variable.ndim or any(n is not None and n != m for n, m in zip(known, array.shape, strict=True)):
        raise ValueError(f"idata[{name!r}] has the shape {array.shape} at a point; that of the model's variable is {known}.")
    return array


def labelled(data: xr.Dataset, label: str) -> xr.DataArray:
    """Variable of a Dataset, or the entry ``q[3]`` of a variable ``q`` with the dimension ``q_dim_0``."""
    name, _, index = label.partition("[")
    if label in data or not index or name not in data:
        return data[label]
    places = {f"{name}_dim_{k}": int(i) for k, i in enumerate(index.rstrip("]").split(", "))}
    return data[name].isel(places)


def labels(data: xr.Dataset) -> list[str]:
    """Label of every entry of the variables of a Dataset, for :func:`labelled`, in order."""
    found = []
    for name, variable in data.data_vars.items():
        sizes = [variable.sizes[d] for d in variable.dims if str(d).startswith(f"{name}_dim_")]
        found += [f"{name}[{', '.join(map(str, i))}]" if i else str(name) for i in np.ndindex(*sizes)]
    return found
