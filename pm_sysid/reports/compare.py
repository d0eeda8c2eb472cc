"""Models of one record side by side: criteria, evidence, weights, and errors on records they have not seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import arviz_stats
import numpy as np
import pandas as pd
import pymc as pm
import scipy
import xarray as xr

from pm_sysid.arguments import shown
from pm_sysid.idata import elements, group, labelled, posterior_of
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.filter_view import filter_names, filter_view
from pm_sysid.likelihood.prior_draws import constrained
from pm_sysid.posterior.information_criteria import dic_of, loo_of, waic_of
from pm_sysid.posterior.innovations import misfit
from pm_sysid.posterior.log_likelihood import evaluate
from pm_sysid.posterior.observed import check_sampled_on, observed, probabilities
from pm_sysid.posterior.predict import predict
from pm_sysid.posterior.substep_check import check_substeps
from pm_sysid.records.metrics import fit_percent, relative_squares, rmse
from pm_sysid.records.overlap import shared_samples
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.reports.comparison import CRITERIA, UNDECIDED, UNDECIDED_BY_LOO, Comparison, listed
from pm_sysid.reports.comparison_page import Case
from pm_sysid.reports.validation import Validation
from pm_sysid.reports.verdicts import distrust
from pm_sysid.sampling.convergence import chains_that_missed, mixing
from pm_sysid.sampling.smc.stages import Evidence, log_evidence, stages

#: Draws at which finer filter steps are tried, and a change of the log-likelihood that matters to a comparison.
STEP_DRAWS, STEP_CHANGE = 100, 0.5
#: Difference of two deviances up to which their standard error cannot be trusted either.
SMALL_DIFFERENCE = 8.0


def compare_models(
    models: Mapping[str, tuple[pm.Model, Any]],
    validation: TimeSeries | Sequence[TimeSeries] | Validation | None = None,
    *,
    draws: int | None = 2000,
    evidence: Mapping[str, Any] | None = None,
) -> Comparison:
    """Criteria, evidence and held-out errors of models of the same data, side by side.

    Parameters
    ----------
    models : mapping of name to (model, idata)
        Each a PyMC model and its posterior (``xarray.DataTree``), all observed on the same measurements.
    validation : TimeSeries or sequence of them, or Validation, optional
        Records that were not used for the fit. Models with one :class:`ODEFilter` run free on them; a :class:`Validation`
        says how often, from which initial state, and what is scored.
    draws : int, optional, default 2000
        About this many draws of each posterior, evenly spaced, for DIC, WAIC and LOO; None: all.
    evidence : mapping of name to idata, optional
        Sequential runs (:func:`sample_ibis`, ``pm.sample_smc``) of models whose posterior was sampled in another way. By
        default the evidence is taken from the posterior's own run, if that was sequential.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If the models are observed on different data; if a sample counts as a probability in one model and as a density in
        another, as with and without limits of a sensor; if a record of validation has other units than those of the fit, where
        both are known; if a posterior, or a run of ``evidence``, does not fit its model, or
        was sampled on other data than it holds (by its group ``observed_data``).

    Notes
    -----
    What the criteria warn of is collected in ``notes`` instead, and so are posteriors whose chains have not mixed, or that
    :func:`sample` does not trust, models whose innovations are no noise, criteria that finer filter steps would change, and
    records of validation of which a stretch of samples was used for the fit. ``conclusion`` says in sentences which model is
    the best by which criterion, and which do not decide. The evidence is that of :func:`log_evidence`, for posteriors of
    :func:`sample_ibis` or ``pm.sample_smc``; its errors go into the weights, ``notes`` say where they leave open which model
    is the best, and what speaks against an evidence. Where a model has potentials, evidences of the two kinds of runs are not
    of one definition, which ``notes`` say, too. Stacking weights are those of ``az.compare`` from LOO (Yao et al. 2018). They
    may be one and zero for two models that are the same but for chance, so that ``notes`` say where LOO does not decide:
    differences below two standard errors, or below 8 as deviances (Sivula, Magnusson, Matamoros and Vehtari 2025). Compare
    Green (2015), Table 2.

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
    >>> result = sid.compare_models(
    ...     {"far": (far, tree(0.01, 0.01)), "near": (near, tree(1.0, 0.09))}
    ... )
    >>> list(result.table.index), int(result.table.loc["near", "unknowns"])
    (['near', 'far'], 1)
    """
    if not isinstance(models, Mapping):
        raise TypeError(f"models is {type(models).__name__}; give a dict of name: (model, idata).")
    validation = Validation.of(validation)
    pairs = {str(name): model_pair(value, f"models[{name!r}]") for name, value in models.items()}
    if not pairs:
        raise ValueError("models is empty; give a dict of name: (model, idata).")
    _same_data({name: model for name, (model, _) in pairs.items()})
    _same_probabilities({name: model for name, (model, _) in pairs.items()})
    sequential = _runs_of(evidence, pairs)
    rows: dict[str, dict[str, float]] = {}
    found: dict[str, dict[str, Any]] = {c: {} for c in CRITERIA}
    notes: dict[str, tuple[str, ...]] = {}
    cases = {}
    for name, (model, idata) in pairs.items():
        said: list[str] = []
        if distrusted := distrust(idata):
            said.append(f"posterior: {distrusted}")
        if bad := _unmixed(model, idata):
            said.append(f"posterior: the chains have not mixed ({bad}): no number of this model can be trusted.")
        if (missed := chains_that_missed(idata)) and missed.chains:
            of_it = f"{missed.chains} of the chains said that they may have missed a part of it"
            said.append(f"posterior: {of_it}: no number can be trusted.")
        elif missed and missed.unknown == group(idata, "sample_stats").sizes["chain"]:
            said.append("posterior: no chain could tell whether it has missed another mode; draw more, or use sample_ibis.")
        likelihood = _of(name, lambda model=model, idata=idata: evaluate(idata, model, draws=draws))  # type: ignore[misc]
        row = rows[name] = {"unknowns": likelihood.size or 0}
        for criterion, function in zip(CRITERIA, (dic_of, waic_of, loo_of), strict=True):
            result = _quietly(lambda f=function, of=likelihood: f(of), said, criterion)  # type: ignore[misc]
            if result is not None:
                found[criterion][name] = result
                row |= {criterion: -2 * result.elpd, f"{criterion}_se": 2 * result.se, f"p_{criterion}": result.p}
        if name in found["LOO"]:
            loo = found["LOO"][name]
            row["bad_k"] = int(np.sum(~(loo.pareto_k.values <= loo.good_k)))
        said += _of_steps(model, idata)
        found_evidence = _evidence(sequential.get(name, idata))
        row["log_evidence"], row["log_evidence_se"] = found_evidence.value, found_evidence.error
        if found_evidence.doubt:
            said.append(f"evidence: {found_evidence.doubt}")
        case = _case(name, model, idata, validation, said)
        scores, squares = _scores(case, validation, said)
        cases[name] = case._replace(squares=squares)
        row |= scores
        notes[name] = tuple(said)
    table = pd.DataFrame.from_dict(rows, orient="index")
    for criterion in CRITERIA:
        for column in (criterion, f"{criterion}_se", f"p_{criterion}"):
            table[column] = table.get(column, np.nan)
        _differences(table, criterion, found[criterion])
    split = _split_otherwise(found["LOO"] or found["WAIC"] or found["DIC"])
    complete = len(found["LOO"]) == len(pairs) and not split
    table["weight_stacking"] = _stacking(found["LOO"]) if complete else np.nan
    table["weight_evidence"], table["weight_evidence_se"] = evidence_weights(table["log_evidence"], table["log_evidence_se"])
    runs = {name: sequential.get(name, idata) for name, (_, idata) in pairs.items()}
    without = _not_normalised({n: m for n, (m, _) in pairs.items()}, runs)
    undecided = (*_undecided(table).items(), *_undecided_by_loo(table).items())
    for name, note in (*undecided, *without.items(), *split.items()):
        notes[name] = (*notes[name], note)
    table = table.sort_values(["LOO", "WAIC", "DIC"])[_order(table.columns)]
    said_of = {name: some for name, some in notes.items() if some}
    return Comparison(
        table, found["DIC"], found["WAIC"], found["LOO"], said_of, validation.all, {str(n): cases[str(n)] for n in table.index}
    )


def model_pair(value: Any, what: str) -> tuple[pm.Model, Any]:
    """A model and its posterior."""
    if not (isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], pm.Model)):
        raise ValueError(f"{what} is {type(value).__name__}; give a tuple of the pm.Model and its posterior.")
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
        what, (model, _) = f"evidence[{name!r}]", models[name]
        if np.isnan(_evidence(idata).value):
            raise ValueError(f"{what} has no log evidence; give the result of sample_ibis or pm.sample_smc.")
        drawn = posterior_of(idata)
        if missing := [str(v.name) for v in model.free_RVs if v.name not in drawn]:
            raise ValueError(
                f"{what} lacks the variables {missing} of its model and has {sorted(map(str, drawn))}: it is a run of another "
                "model; give a run of this one."
            )
        check_sampled_on(idata, model, what)
    return dict(evidence)


def _same_data(models: Mapping[str, pm.Model]) -> None:
    """Refuse models that are observed on different measurements."""
    data = {name: observed(model) for name, model in models.items()}
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


def _same_probabilities(models: Mapping[str, pm.Model]) -> None:
    """Refuse models of the same measurements in which other samples count as probabilities, where others have densities."""
    (first, reference), *others = ((name, probabilities(model)) for name, model in models.items())
    for name, found in others:
        pairs = found if set(found) == set(reference) else dict(zip(reference, found.values(), strict=True))
        for variable, ours in reference.items():
            if np.array_equal(ours, pairs[variable]):
                continue
            raise ValueError(
                f"models {first!r} and {name!r} cannot be compared: of {variable!r}, {ours.sum()} of {ours.size} samples count "
                f"as a probability (at a limit, or discrete) in the first, {pairs[variable].sum()} in the second, all others "
                "as a density. Densities depend on the unit and probabilities do not, and so would the verdict. Give both "
                "models the same limits (ODEFilter(limits=...), pm.Censored), or call compare_models for each alone with "
                "records of validation, and compare their errors."
            )


def _unmixed(model: pm.Model, idata: Any) -> str:
    """What shows that the chains of a posterior have not mixed; empty if nothing does."""
    posterior = posterior_of(idata)
    names = [str(v.name) for v in model.free_RVs if v.name in posterior]
    if not names:
        return ""
    draws = elements(posterior, names)
    return mixing(draws.to_numpy(), list(map(str, draws["parameter"].to_numpy()))).bad


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


def _evidence(idata: Any) -> Evidence:
    node = idata.get("sample_stats") if isinstance(idata, xr.DataTree) else None
    if node is None or not {"log_evidence", "log_marginal_likelihood"} & set(map(str, node.data_vars)):
        return Evidence(float("nan"), float("nan"), np.array([]))
    return log_evidence(idata)


def _of_steps(model: pm.Model, idata: Any) -> list[str]:
    """What finer filter steps would change of the criteria, in words, where that is more than they can be believed to."""
    found: list[str] = []
    for name in filter_names(model):
        try:
            check = check_substeps(idata, model=model, name=name, draws=STEP_DRAWS)
        except ValueError as error:
            found.append(f"criteria: what the filter steps of {name!r} cost is not known: {error}")
            continue
        if check.level == "bad":
            found.append(f"criteria: {check.verdict}")
        elif not check.free_diffusion and abs(typical := float(np.median(check.change))) > STEP_CHANGE:
            found.append(
                f"criteria: with {check.finer} instead of {check.substeps} filter steps a sample in {name!r} the "
                f"log-likelihood changes by {typical:.2g} at all draws alike, and DIC, WAIC and LOO by about "
                f"{-2 * typical:.2g}. Call set_substeps({check.finer}) and sample again before you compare."
            )
    return found


def evidence_weights(values: Any, errors: Any) -> tuple[np.ndarray, np.ndarray]:
    """Posterior probabilities of models (K,) from their log evidences and the errors of these, and their standard deviations.

    The errors make the probabilities uncertain: mean and standard deviation over log evidences that are normally distributed
    with them. Not a number where an evidence is not known. Where only an error is not known, neither is any probability's, and
    the probabilities are those of the values as they are.

    Examples
    --------
    >>> evidence_weights([-3.0, -3.0], [0.1, np.nan])
    (array([0.5, 0.5]), array([nan, nan]))
    """
    value, error = np.asarray(values, dtype=float), np.asarray(errors, dtype=float)
    unknown = np.full(len(value), np.nan)
    if np.isnan(value).any():
        return unknown, unknown
    if np.isnan(error).any():
        return scipy.special.softmax(value), unknown
    scatter = np.random.default_rng(0).standard_normal((4000, len(value)))
    weights = scipy.special.softmax(value + error * np.concatenate([scatter, -scatter]), axis=1)
    return weights.mean(axis=0), weights.std(axis=0)


def _undecided(table: pd.DataFrame) -> dict[str, str]:
    """Models whose evidence is the best within its errors, and what that means; none where one is the best without doubt."""
    value, error = table["log_evidence"], table["log_evidence_se"]
    if len(value) < 2 or value.isna().any():
        return {}
    best = value.idxmax()
    alone = (
        "evidence: one run does not tell its error, so that these runs do not decide between the models; run several chains."
    )
    notes = {str(name): alone for name in value.index[error.isna()]}
    for name in value.index[error.notna()].drop(best, errors="ignore") if np.isfinite(error[best]) else []:
        apart, of = value[best] - value[name], float(np.hypot(error[best], error[name]))
        if apart < max(1.0, 2 * of):
            notes[str(name)] = f"{UNDECIDED} between {best!r} and {name!r}: logarithms {apart:.2f} +- {of:.2f} apart."
    return notes


def _undecided_by_loo(table: pd.DataFrame) -> dict[str, str]:
    """Models that LOO does not tell from the best, though their stacking weights may be one and zero."""
    apart, error = table["dLOO"], table["dLOO_se"]
    if len(table) < 2 or table["weight_stacking"].isna().any():
        return {}
    best = table["LOO"].idxmin()
    return {
        str(name): f"{UNDECIDED_BY_LOO} between {best!r} and {name!r} (deviances {apart[name]:.1f} +- "
        f"{error[name]:.1f} apart), and weights do not say how sure they are."
        for name in table.index.drop(best)
        if apart[name] < max(SMALL_DIFFERENCE, 2 * error[name])
    }


def _not_normalised(models: Mapping[str, pm.Model], runs: Mapping[str, Any]) -> dict[str, str]:
    """Models with constraints whose evidence is not normalised by these, where that of others is."""
    known = {name: stages(run) for name, run in runs.items() if not np.isnan(_evidence(run).value)}
    normalised = [name for name, statistics in known.items() if "log_evidence" in statistics]
    if not normalised:
        return {}
    return {
        name: f"evidence: it cannot be compared with that of {listed(normalised)}: pm.sample_smc takes potentials and "
        "transforms as they are, sample_ibis and sample normalise the prior that these leave. Sample all models in one way."
        for name in known
        if name not in normalised and constrained(Coordinates(models[name]))
    }


def _case(name: str, model: pm.Model, idata: Any, validation: Validation, said: list[str]) -> Case:
    """A model with its free runs on the records of validation."""
    filters = filter_names(model)
    if len(filters) != 1:
        if validation.all:
            said.append(f"validation: the model has {len(filters)} ODEFilters; only a model with one can run free.")
        return Case(model, idata, None, [])
    (label,) = filters
    try:
        if (wrong := misfit(idata, label, model)) is not None:
            said.append(f"model: {wrong.words}.")
    except Exception as error:  # the rest of the comparison is there
        said.append(f"innovations: they are not known ({type(error).__name__} {str(error).rstrip('.')}).")
    system, predictions = filter_view(label, model).system, []
    given = validation.start_of(system.states)
    if validation.all and system.driving:
        said.append(
            f"validation: of {', '.join(one.name for one in system.driving)} nothing is known on a new record; RMSE and fit "
            "are those of the median of runs on drawn paths, and say nothing of their spread."
        )
    fitted = filter_view(label, model).op.grid.records  # as they were given, to the last digit
    for r, record in enumerate(validation.all):
        if shared := shared_samples(record, fitted):
            which = f"record {r + 1}" if len(validation.all) > 1 else "the record"
            said.append(
                f"validation: {shared} of the {len(record)} samples of {which} were used for the fit; RMSE and fit validate "
                "nothing there."
            )
        if record.y is None or record.output_matrix.shape[1] != len(system.outputs):
            raise ValueError(f"a record of validation has the outputs {record.outputs}; model {name!r} has {system.outputs}.")
        options = {"draws": validation.runs, "x0": given or None, "record": validation.record, "params": validation.params}
        options["random_seed"] = 0
        result = _of(name, lambda r=record, o=options: predict(idata, r, model=model, name=label, **o))  # type: ignore[misc]
        predictions.append(
            np.stack([labelled(result, o).transpose("draw", "time").to_numpy() for o in system.outputs], axis=-1)
        )
    return Case(model, idata, label, predictions)


def _scores(case: Case, validation: Validation, said: list[str]) -> tuple[dict[str, float], np.ndarray | None]:
    """Errors of the median run over all records, by output, and those of each sample (T,)."""
    if not case.predictions:
        return {}, None
    measured, middle = [], []
    for record, runs in zip(validation.all, case.predictions, strict=True):
        fine = np.isfinite(runs).all(axis=(1, 2))
        if not fine.all():
            said.append(f"validation: {np.sum(~fine)} of {len(fine)} runs are not finite and left out.")
        scored = record.t >= record.t[0] + validation.skip
        if not fine.any() or not scored.any():
            said.append(
                "validation: no run is finite." if scored.any() else f"validation: skip={validation.skip} leaves no sample."
            )
            return {}, None
        measured.append(record.output_matrix[scored])
        middle.append(np.median(runs[fine], axis=0)[scored])
    y, yhat = np.concatenate(measured), np.concatenate(middle)
    error, fit = rmse(y, yhat), fit_percent(y, yhat)
    names = [f"[{o}]" for o in validation.all[0].outputs] if y.shape[1] > 1 else [""]
    scores = {f"RMSE{n}": float(e) for n, e in zip(names, error, strict=True)}
    scores |= {f"MSE{n}": float(e) ** 2 for n, e in zip(names, error, strict=True)}
    return scores | {f"fit{n}": float(f) for n, f in zip(names, fit, strict=True)}, relative_squares(y, yhat)


def _split_otherwise(results: Mapping[str, Any]) -> dict[str, str]:
    """Models whose log-likelihood falls into other points than that of the best, so that pointwise criteria say nothing."""
    if not results:
        return {}
    best = max(results, key=lambda name: results[name].elpd)
    points = {name: result.elpd_i["point"].values for name, result in results.items()}
    return {
        name: f"WAIC and LOO: the log-likelihood falls into {len(own)} points, and that of {best!r} into {len(points[best])}: "
        "they leave out other parts of the data, and neither differences nor weights have a meaning. Write both likelihoods "
        "with a number for each sample."
        for name, own in points.items()
        if not np.array_equal(own, points[best])
    }


def _differences(table: pd.DataFrame, criterion: str, results: Mapping[str, Any]) -> None:
    """Differences from the best model, and their standard errors, from the differences of the points."""
    table[f"d{criterion}"] = table[f"d{criterion}_se"] = np.nan
    if not results:
        return
    best = max(results.values(), key=lambda r: r.elpd)
    for name, result in results.items():
        if not np.array_equal(result.elpd_i["point"], best.elpd_i["point"]):
            if criterion == "DIC":  # deviances of all data, however they are split
                table.loc[name, "dDIC"] = -2 * (result.elpd - best.elpd)
            continue
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
    criteria = [name.format(c) for c in CRITERIA for name in ("{}", "{}_se", "p_{}", "d{}", "d{}_se")]
    known = ["unknowns", *criteria, "bad_k", "log_evidence", "log_evidence_se", "weight_stacking", "weight_evidence"]
    known += ["weight_evidence_se"]
    return [c for c in known if c in columns] + [str(c) for c in columns if c not in known]
