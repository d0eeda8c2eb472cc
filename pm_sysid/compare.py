"""Models of one record side by side: criteria, evidence, weights, and errors on records they have not seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import arviz_stats
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from scipy.special import softmax

from pm_sysid.criteria import dic_of, loo_of, waic_of
from pm_sysid.doors import count, number, shown
from pm_sysid.likelihood import ODEFilterRV
from pm_sysid.metrics import fit_percent, rmse
from pm_sysid.pages.comparison import Case, page
from pm_sysid.pages.html import notes_html
from pm_sysid.pointwise import evaluate
from pm_sysid.prediction import array, predict
from pm_sysid.stages import log_evidence
from pm_sysid.timeseries import TimeSeries

_CRITERIA = ("DIC", "WAIC", "LOO")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of :func:`compare_models`.

    Attributes
    ----------
    table : pandas.DataFrame
        One row a model, the best by LOO first. ``unknowns`` (scalar parameters); ``DIC``, ``WAIC``, ``LOO`` as deviances
        (lower is better), each with standard error ``.._se``, effective number of parameters ``p_..``, and difference from
        the best model ``d..`` with its standard error ``d.._se``; ``bad_k`` (points at which LOO is unreliable);
        ``log_evidence`` and ``log_evidence_se``; ``weight_stacking``, ``weight_evidence``; and on the validation records
        ``RMSE``, ``MSE`` and ``fit`` (percent) of the median of free runs, for several outputs with their names in brackets.
        NaN where there is none.
    dic, waic, loo : dict
        The criteria by model, pointwise, for ``az.compare`` and ``az.plot_compare``.
    notes : dict
        What is not to be trusted, by model.
    """

    table: pd.DataFrame
    dic: dict[str, Any]
    waic: dict[str, Any]
    loo: dict[str, Any]
    notes: dict[str, tuple[str, ...]]
    validation: tuple[TimeSeries, ...] = ()
    cases: dict[str, Case] = field(default_factory=dict)

    def __repr__(self) -> str:
        legend = "DIC, WAIC and LOO are deviances: lower is better. ± is a standard error. What is marked ! is explained below."
        lines = [self._short().to_string(), legend if self.notes else legend[: legend.index(" What")]]
        return "\n".join(lines + [f"{k}: {note}" for k, some in self.notes.items() for note in some])

    def _repr_html_(self) -> str:
        return self.table_html() + notes_html(self.notes)

    def table_html(self) -> str:
        """Return the table alone, as HTML."""
        return str(self._short().to_html(border=0))

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Write a report: the table, what its columns mean, and figures of validation, fit, residuals and posteriors.

        Parameters
        ----------
        path : str or path
            File to write; figures are embedded, so that it needs no other.

        Returns
        -------
        pathlib.Path

        Raises
        ------
        ImportError
            If matplotlib is missing.
        """
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise ImportError('a report needs matplotlib; install it with: pip install "pm_sysid[plots]"') from error
        html = page(self.table_html(), self.notes, self.cases, self.validation)
        target = Path(path)
        target.write_text(html, encoding="utf-8")
        return target

    def _short(self) -> pd.DataFrame:
        """Table of text with only what is known."""
        table, columns = self.table, {}
        columns["unknowns"] = [f"{n:d}" for n in table["unknowns"]]
        for c in _CRITERIA:
            doubted = [any(n.startswith(f"{c}:") for n in self.notes.get(str(m), ())) for m in table.index]
            columns[c] = [_text(v, ".1f") + " !" * bad for v, bad in zip(table[c], doubted, strict=True)]
            columns[f"p {c}"] = [_text(v, ".1f") for v in table[f"p_{c}"]]
        if len(table) > 1:
            columns["LOO difference"] = _both(table["dLOO"], table["dLOO_se"], ".1f")
        if table["log_evidence"].notna().any():
            columns["log evidence"] = _both(table["log_evidence"], table["log_evidence_se"], ".2f")
        for name, title in (("weight_stacking", "stacking weight"), ("weight_evidence", "evidence weight")):
            if len(table) > 1 and table[name].notna().any():
                columns[title] = [_text(v, ".2f") for v in table[name]]
        for name in table.columns:
            if str(name).split("[")[0] in ("RMSE", "MSE", "fit"):
                columns[str(name)] = [_text(v, ".4g") for v in table[name]]
        return pd.DataFrame(columns, index=table.index)


def compare_models(
    models: Mapping[str, tuple[pm.Model, Any]],
    validation: TimeSeries | Sequence[TimeSeries] | None = None,
    *,
    draws: int | None = 2000,
    runs: int = 100,
    x0: Any = None,
    skip: float = 0.0,
    evidence: Mapping[str, Any] | None = None,
) -> Comparison:
    """Criteria, evidence and held-out errors of models of the same data, side by side.

    Parameters
    ----------
    models : mapping of name to (model, idata)
        Each a PyMC model and its posterior (``xarray.DataTree``), all observed on the same measurements.
    validation : TimeSeries or sequence of them, optional
        Records that were not used for the fit. Models with one :class:`ODEFilter` run free on them.
    draws : int, optional, default 2000
        About this many draws of each posterior, evenly spaced, for DIC, WAIC and LOO; None: all.
    runs : int, default 100
        Number of free runs of each model on each record of validation.
    x0 : mapping by state, optional
        Initial state on the records of validation; a model takes what states of its own it finds. By default the one that
        fits their first samples, as for :func:`predict`.
    skip : float, default 0
        Seconds at the beginning of each record of validation that are not scored.
    evidence : mapping of name to idata, optional
        Sequential runs (:func:`sample_ibis`, ``pm.sample_smc``) of models whose posterior was sampled in another way. By
        default the evidence is taken from the posterior's own run, if that was sequential.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If the models are observed on different data, or a posterior does not fit its model.

    Notes
    -----
    What the criteria warn of is collected in ``notes`` instead. The evidence is that of :func:`log_evidence`, for posteriors
    of :func:`sample_ibis` or ``pm.sample_smc``. Stacking weights are those of ``az.compare`` from LOO (Yao et al. 2018).
    Compare Green (2015), Table 2.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> y, rng = [0.9, 1.2, 0.8, 1.1, 1.0], np.random.default_rng(1)
    >>> with pm.Model() as near:
    ...     mu = pm.Normal("mu", 0.0, 10.0)
    ...     _ = pm.Normal("y", mu, 0.2, observed=y)
    >>> with pm.Model() as far:
    ...     mu = pm.Normal("mu", 0.0, 0.01)
    ...     _ = pm.Normal("y", mu, 0.2, observed=y)
    >>> def tree(mean, std):
    ...     draws = xr.Dataset({"mu": (("chain", "draw"), rng.normal(mean, std, (2, 200)))})
    ...     return xr.DataTree.from_dict({"posterior": draws})
    >>> result = sid.compare_models({"far": (far, tree(0.01, 0.01)), "near": (near, tree(1.0, 0.09))})
    >>> list(result.table.index), int(result.table.loc["near", "unknowns"])
    (['near', 'far'], 1)
    """
    if not isinstance(models, Mapping):
        raise TypeError(f"models is {type(models).__name__}; give a dict of name: (model, idata).")
    runs, skip = count(runs, "runs"), number(skip, "skip", "give seconds, such as 0.5")
    if not isinstance(x0, Mapping | None):
        raise TypeError(f"x0 is {shown(x0)}; give a dict of numbers by state, or None to fit the first samples.")
    pairs = {str(name): _pair(name, value) for name, value in models.items()}
    if not pairs:
        raise ValueError("models is empty; give a dict of name: (model, idata).")
    records = validation_records(validation)
    _same_data({name: model for name, (model, _) in pairs.items()})
    sequential = _runs_of(evidence, pairs)
    rows: dict[str, dict[str, float]] = {}
    found: dict[str, dict[str, Any]] = {c: {} for c in _CRITERIA}
    notes: dict[str, tuple[str, ...]] = {}
    cases = {}
    for name, (model, idata) in pairs.items():
        said: list[str] = []
        likelihood = _of(name, lambda model=model, idata=idata: evaluate(idata, model, draws=draws))  # type: ignore[misc]
        row = rows[name] = {"unknowns": likelihood.size or 0}
        for criterion, function in zip(_CRITERIA, (dic_of, waic_of, loo_of), strict=True):
            result = _quietly(lambda f=function, of=likelihood: f(of), said, criterion)  # type: ignore[misc]
            if result is not None:
                found[criterion][name] = result
                row |= {criterion: -2 * result.elpd, f"{criterion}_se": 2 * result.se, f"p_{criterion}": result.p}
        if name in found["LOO"]:
            loo = found["LOO"][name]
            row["bad_k"] = int(np.sum(~(loo.pareto_k.values <= loo.good_k)))
        row["log_evidence"], row["log_evidence_se"] = _evidence(sequential.get(name, idata))
        case = cases[name] = _case(name, model, idata, records, said, runs, x0)
        row |= _scores(case, records, skip, said)
        notes[name] = tuple(said)
    table = pd.DataFrame.from_dict(rows, orient="index")
    for criterion in _CRITERIA:
        for column in (criterion, f"{criterion}_se", f"p_{criterion}"):
            table[column] = table.get(column, np.nan)
        _differences(table, criterion, found[criterion])
    table["weight_stacking"] = _stacking(found["LOO"]) if len(found["LOO"]) == len(pairs) else np.nan
    known = table["log_evidence"]
    table["weight_evidence"] = softmax(known) if known.notna().all() else np.nan
    table = table.sort_values(["LOO", "WAIC", "DIC"])[_order(table.columns)]
    said_of = {name: some for name, some in notes.items() if some}
    return Comparison(
        table, found["DIC"], found["WAIC"], found["LOO"], said_of, records, {str(n): cases[str(n)] for n in table.index}
    )


def validation_records(validation: Any) -> tuple[TimeSeries, ...]:
    """Records of validation, which must have outputs."""
    given = (validation,) if not isinstance(validation, list | tuple) else tuple(validation)
    records = () if validation is None else given
    for other in records:
        if not isinstance(other, TimeSeries):
            raise TypeError(f"validation holds {type(other).__name__}; give a TimeSeries, or a list of them.")
        if other.y is None:
            raise ValueError("a record of validation has no outputs, so that nothing can be compared; give its y.")
    return records


def _pair(name: Any, value: Any) -> tuple[pm.Model, Any]:
    if not (isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], pm.Model)):
        raise ValueError(f"models[{name!r}] is {type(value).__name__}; give a tuple of the pm.Model and its posterior.")
    return value[0], value[1]


def _runs_of(evidence: Any, models: Mapping[str, Any]) -> dict[str, Any]:
    """Sequential runs given for the evidence, checked."""
    if evidence is None:
        return {}
    if not isinstance(evidence, Mapping):
        raise TypeError(f"evidence is {shown(evidence)}; give a dict of sequential runs by model.")
    unknown = [name for name in evidence if name not in models]
    if unknown:
        raise ValueError(f"evidence names {unknown}, which are no models; the models are {list(models)}.")
    for name, idata in evidence.items():
        if np.isnan(_evidence(idata)[0]):
            raise ValueError(f"evidence[{name!r}] has no log evidence; give the result of sample_ibis or pm.sample_smc.")
    return dict(evidence)


def _same_data(models: Mapping[str, pm.Model]) -> None:
    """Refuse models that are observed on different measurements."""
    data = {name: {str(v.name): array(m.rvs_to_values[v]) for v in m.observed_RVs} for name, m in models.items()}
    (first, reference), *others = data.items()
    for name, values in others:
        by_name = set(values) == set(reference)
        ours = [values[k] for k in reference] if by_name else list(values.values())
        theirs = list(reference.values())
        shapes = [a.shape for a in theirs], [a.shape for a in ours]
        if shapes[0] != shapes[1]:
            what = f"observed shapes {shapes[0]} and {shapes[1]}"
        elif not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(theirs, ours, strict=True)):
            what = "the same shapes but other values"
        else:
            continue
        raise ValueError(
            f"models {first!r} and {name!r} have different data ({what}); criteria compare models of the same measurements "
            "only: fit both to one record, in one unit."
        )


def _of(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from error


def _quietly(function: Callable[[], Any], said: list[str], title: str) -> Any:
    """Result of a function, or None where it cannot be had, with what it says in a list."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            result = function()
        except ValueError as error:
            result = None
            said.append(f"{title}: {error}")
    for w in caught:
        text = str(w.message)
        said.append(text if text.startswith(title) else f"{title}: {text}")
    return result


def _evidence(idata: Any) -> tuple[float, float]:
    node = idata.get("sample_stats") if isinstance(idata, xr.DataTree) else None
    if node is None or not {"log_evidence", "log_marginal_likelihood"} & set(map(str, node.data_vars)):
        return float("nan"), float("nan")
    evidence = log_evidence(idata)
    return evidence.value, evidence.error


def _case(name: str, model: pm.Model, idata: Any, records: Sequence[TimeSeries], said: list[str], runs: int, x0: Any) -> Case:
    """A model with its free runs on the records of validation."""
    filters = [v for v in model.observed_RVs if v.owner is not None and isinstance(v.owner.op, ODEFilterRV)]
    if len(filters) != 1:
        if records:
            said.append(f"validation: the model has {len(filters)} ODEFilters; only a model with one can run free.")
        return Case(model, idata, None, [])
    op, label = filters[0].owner.op, str(filters[0].name)
    system, predictions = op.problem.system, []
    given = {k: v for k, v in x0.items() if k in system.states} if isinstance(x0, Mapping) else x0
    for record in records:
        if record.y is None or record.output_matrix.shape[1] != len(system.outputs):
            raise ValueError(f"a record of validation has the outputs {record.outputs}; model {name!r} has {system.outputs}.")
        result = _of(name, lambda r=record: predict(idata, r, model=model, name=label, draws=runs, x0=given or None))  # type: ignore[misc]
        predictions.append(np.stack([result[o].transpose("draw", "time").to_numpy() for o in system.outputs], axis=-1))
    return Case(model, idata, label, predictions)


def _scores(case: Case, records: Sequence[TimeSeries], skip: float, said: list[str]) -> dict[str, float]:
    """Errors of the median run over all records, by output."""
    if not case.predictions:
        return {}
    measured, middle = [], []
    for record, runs in zip(records, case.predictions, strict=True):
        fine = np.isfinite(runs).all(axis=(1, 2))
        if not fine.all():
            said.append(f"validation: {np.sum(~fine)} of {len(fine)} runs are not finite and left out.")
        scored = record.t >= record.t[0] + skip
        if not fine.any() or not scored.any():
            said.append("validation: no run is finite." if scored.any() else f"validation: skip={skip} leaves no sample.")
            return {}
        measured.append(record.output_matrix[scored])
        middle.append(np.median(runs[fine], axis=0)[scored])
    y, yhat = np.concatenate(measured), np.concatenate(middle)
    error, fit = rmse(y, yhat), fit_percent(y, yhat)
    names = [f"[{o}]" for o in records[0].outputs] if y.shape[1] > 1 else [""]
    scores = {f"RMSE{n}": float(e) for n, e in zip(names, error, strict=True)}
    scores |= {f"MSE{n}": float(e) ** 2 for n, e in zip(names, error, strict=True)}
    return scores | {f"fit{n}": float(f) for n, f in zip(names, fit, strict=True)}


def _differences(table: pd.DataFrame, criterion: str, results: Mapping[str, Any]) -> None:
    """Differences from the best model, and their standard errors, from the differences of the points."""
    table[f"d{criterion}"] = table[f"d{criterion}_se"] = np.nan
    if not results:
        return
    best = max(results.values(), key=lambda r: r.elpd)
    for name, result in results.items():
        difference = -2 * (result.elpd_i.values - best.elpd_i.values)
        table.loc[name, f"d{criterion}"] = difference.sum()
        table.loc[name, f"d{criterion}_se"] = np.sqrt(len(difference) * np.var(difference))


def _stacking(results: Mapping[str, Any]) -> pd.Series | float:
    """Stacking weights of ``az.compare``; densities are taken relative to the best of each point, lest they underflow."""
    if len(results) == 1:
        return 1.0
    best = np.max([r.elpd_i.values for r in results.values()], axis=0)
    relative = {
        k: replace(r, elpd_i=r.elpd_i.copy(data=np.maximum(r.elpd_i.values - best, -600.0))) for k, r in results.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of differences, which are not taken from here
        arviz: Any = arviz_stats  # without types
        weights: pd.Series = arviz.compare(relative, method="stacking", round_to="none")["weight"]
    return weights


def _order(columns: Sequence[Any]) -> list[str]:
    """Columns in the order of a report."""
    criteria = [name.format(c) for c in _CRITERIA for name in ("{}", "{}_se", "p_{}", "d{}", "d{}_se")]
    known = ["unknowns", *criteria, "bad_k", "log_evidence", "log_evidence_se", "weight_stacking", "weight_evidence"]
    return [c for c in known if c in columns] + [str(c) for c in columns if c not in known]


def _text(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)


def _both(values: Any, errors: Any, form: str) -> list[str]:
    pairs = zip(values, errors, strict=True)
    return [f"{_text(v, form)} ± {_text(e, form)}" if not np.isnan(e) else _text(v, form) for v, e in pairs]
