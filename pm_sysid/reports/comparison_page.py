"""A comparison of models as one HTML page that needs no other file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pm_sysid.idata import posterior_of
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.plots.correlation import plot_correlation
from pm_sysid.plots.fit import plot_fit
from pm_sysid.plots.predictions import plot_prediction
from pm_sysid.plots.prior_posterior import plot_prior_posterior
from pm_sysid.plots.residuals import plot_residuals
from pm_sysid.posterior.innovations import innovations
from pm_sysid.posterior.predict import predict_fitted
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.reports.blocks import Block, Definitions, Frame, Heading, Notes, Paragraph
from pm_sysid.reports.drawing import figure
from pm_sysid.reports.html import document

#: Where free runs on records of validation begin.
START = (
    "Free runs start at the initial state that was given. States without one are estimated: the run with the posterior mean of "
    "the parameters meets the first 500 samples of the record best."
)
#: What each criterion means, and when it is not to be trusted.
MEANINGS = {
    "DIC": "Deviance at the posterior mean plus twice the effective number of parameters p; lower is better. Not to be "
    "trusted when the posterior has several modes or is bent, so that its mean is no typical point, or when p is negative or "
    "far above the number of unknowns.",
    "WAIC": "Estimate, on the same scale, of how well a new sample would be predicted, averaged over the posterior; lower is "
    "better. Not to be trusted when the log-likelihood of single samples varies much (by more than 0.4) over the posterior.",
    "LOO": "The same quantity by leaving out each sample in turn, by importance sampling; lower is better. Not to be trusted "
    "where Pareto k is above its threshold; and in a record the samples around the one left out give it away, so that "
    "leave-future-out (az.lfo_cv) or the evidence asks the harder question.",
    "difference": "Difference of LOO from the best model, with the standard error of the difference, which treats samples as "
    "independent; a difference of less than a few standard errors, or below 8, says little.",
    "log evidence": "Log probability of the whole record under the model, averaged over the prior: the sum of the log "
    "densities of each sample given those before it; higher is better. Not to be trusted when the priors were chosen "
    "carelessly (it falls with the width of a prior that the data do not need), or when its error is as large as the "
    "differences.",
    "stacking weight": "Weights of a mixture of the models that predicts best by LOO; no probabilities, and as "
    "little to be trusted as LOO. Where the difference of LOO says little, they may be one and zero by chance.",
    "evidence weight": "Probability of each model if all were equally probable before; assumes that one of them is true.",
    "RMSE, MSE, fit": "Error of the median of free runs with posterior draws on a record that was not used for the fit; fit is "
    "100 (1 - RMSE / standard deviation) percent. Not to be trusted beyond the excitation of that record, or if it served to "
    "choose the model.",
}


#: What a table has to say for a meaning to be printed below it.
COLUMNS = {
    "DIC": "DIC",
    "WAIC": "WAIC",
    "LOO": "LOO",
    "difference": "LOO difference",
    "log evidence": "log evidence",
    "stacking weight": "stacking weight",
    "evidence weight": "evidence weight",
    "RMSE, MSE, fit": "RMSE",
}


class Case(NamedTuple):
    """A model, its posterior, its filter if it has one, and its predictions (draws, T, n_y) of the validation records.

    ``squares`` (T,) are the errors of the median of these over all records, as :func:`relative_squares` has them.
    """

    model: pm.Model
    idata: Any
    filter: str | None
    predictions: list[np.ndarray]
    squares: np.ndarray | None = None


def page(
    table: str,
    notes: Mapping[str, Sequence[str]],
    cases: Mapping[str, Case],
    validation: Sequence[TimeSeries],
    conclusion: str = "",
) -> str:
    """HTML of the whole comparison."""
    parts = overview(table, notes, cases, validation, conclusion=conclusion)
    for name, case in cases.items():
        parts.append(Heading(name))
        parts += [figure(caption, draw) for caption, draw in _figures(case)]
    return document("Comparison of models", parts)


def overview(
    table: str,
    notes: Mapping[str, Sequence[str]],
    cases: Mapping[str, Case],
    validation: Sequence[TimeSeries],
    units: Mapping[str, str] | None = None,
    conclusion: str = "",
) -> list[Block]:
    """Table of the models, what it says, their predictions of the records of validation, and the meaning of the table."""
    there = {term: text for term, text in MEANINGS.items() if COLUMNS[term] in table}
    parts: list[Block] = [Frame(table), *([Paragraph(conclusion)] if conclusion else []), Notes(notes)]
    if validation:
        parts.append(Heading("Validation", 3))
        parts += [figure(caption, draw, units) for caption, draw in _validation(cases, validation)]
        parts.append(Paragraph(START))
    return [*parts, Heading("What the columns mean", 3), Definitions(there)]


type _Drawing = tuple[str, Callable[[], Any]]


def _validation(cases: Mapping[str, Case], validation: Sequence[TimeSeries]) -> Iterator[_Drawing]:
    for r, record in enumerate(validation):
        sets = {name: case.predictions[r] for name, case in cases.items() if case.predictions}
        for output in record.outputs if sets else ():
            which = f" of record {r + 1}" if len(validation) > 1 else ""
            caption = f"Free runs of posterior draws and measured {output}{which}"
            yield caption, partial(plot_prediction, record, sets, output=output)


def _figures(case: Case) -> Iterator[_Drawing]:
    names = [v.name for v in case.model.free_RVs]
    if case.filter is not None:
        fitted = predict_fitted(case.idata, model=case.model, name=case.filter, draws=20)
        driving = [one.name for one in filter_view(case.filter, case.model).system.driving]
        made = "free runs of 20 posterior draws"
        if driving:
            made = f"20 draws, given the record, with {', '.join(driving)} inferred from it,"
        for r, (record, runs) in enumerate(fitted):
            which = f" {r + 1}" if len(fitted) > 1 else ""
            for output in record.outputs:
                caption = f"Fit: {made} on the identification record{which}, {output}"
                yield caption, partial(plot_fit, record, runs, output=output)
        found = innovations(case.idata, case.filter, model=case.model)["standardised"].to_numpy()
        u = [record.input_matrix[:, 0] for record, _ in fitted if record.inputs]
        options: dict[str, Any] = {"u": np.concatenate(u) if u else None, "lags": min(50, len(found) // 4)}
        options |= {"t": fitted[0][0].t} if len(fitted) == 1 else {"fs": None}
        for i, output in enumerate(filter_view(case.filter, case.model).system.outputs):
            e = found[:, i]
            if np.isfinite(e).sum() > 20:
                caption = f"Residuals: standardised innovations of {output} at the posterior mean"
                yield caption, partial(plot_residuals, e, **options)
    yield "Posterior and, if it was sampled, prior", partial(plot_prior_posterior, case.idata, var_names=names)
    yield "Posterior correlation", partial(plot_correlation, posterior_of(case.idata), var_names=names)
