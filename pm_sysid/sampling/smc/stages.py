"""Stages of a sequential run as regular arrays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
import xarray as xr

from pm_sysid.idata import dataset, group, holds
from pm_sysid.notebook import html_line

#: Pareto shape of importance weights up to which their mean can be believed (Vehtari et al. 2024).
GOOD_K = 0.7
#: Differences in standard errors, and in nats, from which on two estimates of one evidence contradict each other: of chains,
#: and of the last stage and all weights.
#: The product of all weights is mostly too small by chance, and seldom too large: it says more where it is the larger one.
FAR, LEAST_APART, LEAST_FAR, LEAST_LOST = 4.0, 0.1, 2.0, 0.5
#: Correlation left by the last moves from which on particles have hardly moved.
STUCK = 0.5
#: Share of the stages of the record's second half in which particles may hardly move.
MOSTLY = 0.4
#: Effective fraction of independent proposals from which on they fit a posterior well.
GOOD_FIT = 0.25
#: Survivors of one sample that are too few to explore from.
FEW = 20
#: What is said where no proposal fits, and the Pareto shape of its weights.
UNFIT = (
    "No independent proposal fits the posterior (Pareto k {}), and the evidence comes from a bridge between proposals and "
    "particles. Take more draws, or other parameters."
)


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
    """Log evidence (log marginal likelihood) of a model, its standard error, the estimate of each chain, and what is in doubt.

    ``doubt`` is empty where nothing speaks against the number; otherwise it says in words why it cannot be trusted.
    """

    value: float
    error: float
    chains: np.ndarray
    doubt: str = ""

    @property
    def number(self) -> str:
        """Value and error in words; one run of ``pm.sample_smc`` does not tell its error."""
        return f"log evidence {self.value:.2f} ± {'unknown' if np.isnan(self.error) else format(self.error, '.2g')}"

    def __str__(self) -> str:
        """Value and error, those of the chains, and what is in doubt."""
        chains = ", ".join(f"{v:.2f}" for v in np.ravel(self.chains))
        said = f"{self.number} (of the chains: {chains})"
        return f"{said}\nin doubt: {self.doubt}" if self.doubt else said

    def _repr_html_(self) -> str:
        """Value and error for a notebook, and what is in doubt."""
        said = html_line(self.number, strong=True)
        chains = ", ".join(f"{v:.2f}" for v in np.ravel(self.chains))
        return said + html_line(f"of the chains: {chains}") + (html_line(f"in doubt: {self.doubt}") if self.doubt else "")


def log_evidence(idata: xr.DataTree) -> Evidence:
    """Log evidence of a model from its sequential runs.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of :func:`sample_ibis`, or of ``pm.sample_smc`` with any kernel.

    Returns
    -------
    Evidence
        ``value``: logarithm of the mean of the chains' estimates. ``error``: from the weights of each run where it reports
        that, and at least what the chains' differences say, also of chains that went on together because they differed.
        Of :func:`sample` and :func:`sample_ibis` it contains what the log-likelihood of draws moves by on average where the
        steps of filters are refined.
        NaN if one chain of ``pm.sample_smc`` does not tell it.
        ``chains``: their estimates. ``doubt``: why the value cannot be trusted, in words; empty if nothing is known against it.

    Raises
    ------
    ValueError
        If ``idata`` is not the result of a sequential run.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> def evidence(noise):
    ...     with pm.Model():
    ...         pm.Normal("y", pm.Normal("mu"), noise, observed=[0.5, -0.5, 1.0])
    ...         return sid.log_evidence(sid.sample_ibis(1000, chains=2, cores=1, progressbar=False, random_seed=1))
    >>> round(evidence(noise=1.0).value, 1), round(evidence(noise=5.0).value, 1)
    (-4.1, -7.7)
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
    if np.isfinite(apart := float(found.attrs.get("chains_sd", np.nan))):
        error = max(error, apart)
    reasons = [str(found.attrs["doubt"])] if found.attrs.get("doubt") else []
    reasons += [reason for reason in doubts(found) if reason not in " ".join(reasons)]
    return Evidence(
        float(scipy.special.logsumexp(chains) - np.log(chains.size)), error / np.sqrt(chains.size), chains, " ".join(reasons)
    )


def doubts(statistics: xr.Dataset) -> list[str]:
    """What speaks against the evidence and the particles of sequential runs, from the statistics of their last stages."""
    if not {"log_product", "proposal_ess", "pareto_k", "memory", "survivors"} <= set(map(str, statistics.data_vars)):
        return []
    last, reasons = final(statistics), []
    value, error = last["log_evidence"].values, last["log_evidence_se"].values
    product, spread = last["log_product"].values, last["log_product_se"].values
    if disagree(value, error):
        reasons.append(
            f"The chains' log evidences ({', '.join(f'{v:.2f}' for v in value)}) differ by more than their errors: at least "
            "one has not found the whole posterior. Take more draws and chains."
        )
    away = value - product
    limit = FAR * np.sqrt(error**2 + spread**2)
    if np.any(away < -np.maximum(limit, LEAST_LOST)):
        reasons.append(
            f"Particles were lost on the way: the weights of all stages give a log evidence of {product[np.argmin(away)]:.2f}, "
            f"the last stage {value[np.argmin(away)]:.2f}, so that a part of the posterior may be missing. Take more draws."
        )
    # Chains that agree on a posterior of simple shape have found it again, whatever was lost on the way. One chain alone cannot
    # tell, and where the proposals fit badly there may be regions that every chain has lost.
    fits_well = bool(np.any(last["proposal_ess"].values >= GOOD_FIT))
    if np.any(away > np.maximum(limit, LEAST_FAR)) and (len(value) < 2 or disagree(value, error) or not fits_well):
        reasons.append(
            f"The weights of all stages give a log evidence of {product[np.argmax(away)]:.2f}, the last stage "
            f"{value[np.argmax(away)]:.2f}: on the way the particles did not follow the posterior. Take more "
            f"draws{', and more than one chain' if len(value) < 2 else ''}."
        )
    if "log_around" in last and np.any(np.isfinite(last["log_around"].values) & (error > LEAST_LOST)):
        reasons.append(
            f"Draws around the particles of earlier stages and those of the last one differ by {np.max(error):.2f} in log "
            "evidence: a region of the posterior may have been lost on the way. Take more draws."
        )
    if np.any(last["pareto_k"].values > GOOD_K):
        reasons.append(UNFIT.format(f"{np.nanmax(last['pareto_k'].values):.2f}"))
    if np.any(last["memory"].values > STUCK):
        reasons.append(
            f"The particles of the last stage have hardly moved (correlation {np.nanmax(last['memory'].values):.2f} with where "
            "they were): the draws are fewer than they seem. Take more draws, or other parameters."
        )
    sticking = held(statistics)
    if np.any(sticking > MOSTLY):
        reasons.append(
            f"The particles have hardly moved in {np.max(sticking):.0%} of the stages of the record's second half: a region of "
            "the posterior may have been lost on the way. Take more draws, or other parameters, and compare several seeds."
        )
    reasons += lost(last)
    if np.any(last["survivors"].values < FEW):
        reasons.append(
            f"A sample was possible for {int(np.nanmin(last['survivors'].values))} particles only, from which all others "
            "descend. Take more draws, or priors that exclude what cannot be."
        )
    return reasons


def widen_evidence(idata: xr.DataTree, error: float) -> None:
    """Let the error of the log evidence be at least as large as something else that is known of it."""
    statistics = stages(idata)
    sd = error * np.sqrt(statistics.sizes["chain"])
    statistics.attrs["chains_sd"] = max(sd, float(statistics.attrs.get("chains_sd", 0.0)))
    idata["sample_stats"] = xr.DataTree(statistics)


def replace_evidence(idata: xr.DataTree, value: float, error: float) -> None:
    """Let the log evidence be another estimate than that of the sequential run."""
    statistics = stages(idata).copy()
    chains = statistics.sizes["chain"]
    last = statistics["stage"] == statistics["time_index"].notnull().sum("stage") - 1
    # The product of all weights is that of the run, and says nothing of another estimate.
    new = {"log_evidence": value, "log_marginal_likelihood": value, "log_product": np.nan}
    for name, number in {**new, "log_evidence_se": error * np.sqrt(chains)}.items():
        statistics[name] = statistics[name].where(~last, number)
    statistics.attrs.pop("chains_sd", None)
    idata["sample_stats"] = xr.DataTree(statistics)


def add_to_evidence_error(idata: xr.DataTree, error: float) -> None:
    """Add an error that does not depend on chance to that of the log evidence."""
    if error:
        widen_evidence(idata, float(np.hypot(log_evidence(idata).error, error)))


def doubt_evidence(idata: xr.DataTree, reasons: Sequence[str]) -> None:
    """Let :func:`log_evidence` repeat what speaks against the likelihood that it is of."""
    statistics = stages(idata)
    known = str(statistics.attrs.get("doubt", ""))
    statistics.attrs["doubt"] = " ".join([*filter(None, [known]), *(r for r in reasons if r not in known)])
    idata["sample_stats"] = xr.DataTree(statistics)


def found_to_fit(idata: xr.DataTree, pareto_k: float) -> None:
    """Withdraw what was said where no proposal fitted the posterior, since one does, whose weights have this Pareto shape."""
    statistics = stages(idata).copy()
    if "pareto_k" in statistics:
        is_last = statistics["stage"] == statistics["time_index"].notnull().sum("stage") - 1
        statistics["pareto_k"] = statistics["pareto_k"].where(~is_last, np.minimum(statistics["pareto_k"], pareto_k))
    if said := str(statistics.attrs.pop("doubt", "")):
        unfit = re.escape(UNFIT).replace(re.escape("{}"), r"[-\d.a-z]+")
        if rest := " ".join(re.sub(unfit, "", said).split()):
            statistics.attrs["doubt"] = rest
    idata["sample_stats"] = xr.DataTree(statistics)


def lost(last: xr.Dataset) -> list[str]:
    """What is said where particles did not stay in a mode that a search has found, from the statistics of last stages."""
    above = last["lost_mode"].values if "lost_mode" in last else np.array([np.nan])
    if not np.any(np.isfinite(above)):
        return []
    return [
        f"The particles do not stay in a mode that a search by all samples has found: its log mass is {np.nanmax(above):+.1f} "
        "relative to theirs, so that a part of the posterior is missing. Take more draws, or sample."
    ]


def held(statistics: xr.Dataset) -> np.ndarray:
    """Share of each chain's stages, in the second half of its record, whose moves have left particles where they were."""
    n, memory = statistics["time_index"].values, statistics["memory"].values
    last = np.nanmax(n, axis=1, keepdims=True)
    late = (2 * n >= last) & (np.nanmin(n, axis=1, keepdims=True) < last)
    return np.asarray(np.sum(late & (memory > STUCK), axis=1) / np.maximum(np.sum(late, axis=1), 1))


def disagree(values: np.ndarray, errors: np.ndarray) -> bool:
    """Whether estimates of one number differ by more than their errors allow."""
    if len(values) < 2:
        return False
    mean = np.average(values)
    return bool(np.any(np.abs(values - mean) > np.maximum(FAR * errors, LEAST_APART)))


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
    # What spoke against the earlier run speaks against what went on from it.
    said = dict.fromkeys(d for d in (old.attrs.get("doubt"), new.attrs.get("doubt")) if d)
    result.attrs = {**old.attrs, **new.attrs, **({"doubt": " ".join(map(str, said))} if said else {})}
    if apart := [float(run.attrs["chains_sd"]) for run in (old, new) if "chains_sd" in run.attrs]:
        result.attrs["chains_sd"] = max(apart)
    return result
