"""What posterior draws say about each scalar parameter: moments, intervals, convergence."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import arviz_stats
import numpy as np
import xarray as xr

from pm_sysid.idata import elements


class Diagnostics(NamedTuple):
    """Of each scalar parameter: mean, standard deviation, 94 % interval, R-hat, bulk and tail sample sizes."""

    names: list[str]
    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    r_hat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray


def diagnose(posterior: xr.Dataset, names: Sequence[str]) -> Diagnostics:
    """Summarise the draws of variables; chains of few draws have no diagnostics (NaN)."""
    draws = elements(posterior, names)
    dims = ("chain", "draw")
    low, high = (draws.quantile(q, dims).to_numpy() for q in (0.03, 0.97))
    table = xr.Dataset({"x": draws})
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant draws and single chains, whose results are NaN
        arviz: Any = arviz_stats  # without types
        for function, options in ((arviz.rhat, {}), (arviz.ess, {"method": "bulk"}), (arviz.ess, {"method": "tail"})):
            few = draws.sizes["draw"] < 4 or (function is arviz.rhat and draws.sizes["chain"] < 2)
            missing = np.full(draws.sizes["parameter"], np.nan)
            found.append(missing if few else np.asarray(function(table, **options)["x"].to_numpy(), dtype=float))
    labels = list(map(str, draws["parameter"].to_numpy()))
    return Diagnostics(labels, draws.mean(dims).to_numpy(), draws.std(dims).to_numpy(), low, high, *found)


def parameter_rows(
    found: Diagnostics, priors: Mapping[str, str], known: Diagnostics | None, units: Mapping[str, str]
) -> list[list[str]]:
    """Rows of a table: name, unit, prior and where it lies, posterior, diagnostics."""
    rows = []
    ranges = {n: f"{a:.3g} to {b:.3g}" for n, a, b in zip(known.names, known.low, known.high, strict=True)} if known else {}
    for i, name in enumerate(found.names):
        base = name.split("[")[0]
        number = [f"{found.mean[i]:.5g}", f"{found.std[i]:.2g}", f"{found.low[i]:.5g} to {found.high[i]:.5g}"]
        quality = [_or_dash(found.r_hat[i], ".3f"), _or_dash(found.ess_bulk[i], ".0f"), _or_dash(found.ess_tail[i], ".0f")]
        prior = [priors.get(base, ""), ranges.get(name, "")]
        rows.append([name, units.get(name, units.get(base, "")), *prior, *number, *quality])
    return rows


def _or_dash(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)
