"""A study as one file: data, equations, posterior, diagnostics, fit, residuals, integration, validation, comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.arguments import flag, place, shown
from pm_sysid.idata import posterior_of
from pm_sysid.likelihood.filter_view import FilterView, filter_names, filter_view
from pm_sysid.plots.record import plot_record
from pm_sysid.plots.zoomable import need_plotly
from pm_sysid.posterior.observed import check_sampled_on
from pm_sysid.progress import progress_bar
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.reports.blocks import Block, Facts, Heading, Links, Summary, Table, Verdicts
from pm_sysid.reports.compare import compare_models, model_pair
from pm_sysid.reports.comparison_page import overview
from pm_sysid.reports.drawing import figure
from pm_sysid.reports.html import Page, document
from pm_sysid.reports.sections import Score, Study, with_units
from pm_sysid.reports.validation import Validation
from pm_sysid.solve.checks import OF_FIT, check_channels


def report(
    model: pm.Model | Mapping[str, tuple[pm.Model, Any]],
    idata: Any = None,
    record: TimeSeries | Sequence[TimeSeries] | None = None,
    *,
    validation: TimeSeries | Sequence[TimeSeries] | Validation | None = None,
    path: str | PathLike[str] = "report.html",
    title: str = "Identification report",
    units: Mapping[str, str] | None = None,
    evidence: Mapping[str, Any] | None = None,
    interactive: bool = False,
    progressbar: bool = True,
) -> Path:
    """Write what was found about a model, or several models of one record, into one HTML file that needs no other.

    It begins with verdicts in plain language: do the chains agree, did the record decide, are the residuals noise, does the
    integration error matter, how far does a free run stay with the measurement, and does it on records not used for the fit.

    Parameters
    ----------
    model : pm.Model, or mapping of name to (model, idata)
        With an :class:`ODEFilter`; or several models of the same measurements, which are also compared.
    idata : xarray.DataTree
        Posterior of the model; None if ``model`` is a mapping.
    record : TimeSeries or list of them, optional
        What the model was fitted to, by default read back from it.
    validation : TimeSeries or list of them, or Validation, optional
        Records that were not used for the fit; a :class:`Validation` also says how many free runs are made, from which initial
        state, and what is scored, on the record of the fit too.
    path : str or path, default "report.html"
        File to write.
    title : str
        Title of the page.
    units : mapping of str to str, optional
        Units by channel or parameter, for labels and tables; those of channels are by default the records' own.
    evidence : mapping of name to idata, optional
        As for :func:`compare_models`.
    interactive : bool, default False
        Draw fits and residuals over time by plotly, so that they zoom; every sample is then in the page, and plotly's script
        (5 MB), so that it still needs no other file. On paper the figures are the still ones.
    progressbar : bool, default True
        Show which section is being made; nothing is left of the line.

    Returns
    -------
    pathlib.Path
        The file; a notebook shows a link to it.

    Raises
    ------
    ImportError
        If ``interactive`` is asked for, and plotly is missing.
    TypeError, ValueError
        If a model has no ODEFilter, a posterior does not fit its model or was sampled on other data than it holds, or a record
        does not fit, or has other units than those of the fit, where both are known.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid, tempfile
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> t, rng = np.linspace(0.0, 2.0, 60), np.random.default_rng(1)
    >>> record = sid.TimeSeries(t, None, np.exp(-t) + 0.01 * rng.standard_normal(60))
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate")
    ...     _ = sid.ODEFilter(
    ...         "y", decay, record, dict(rate=rate), noise=0.01, x0=1.0, substeps=1
    ...     )
    >>> draws = xr.Dataset({"rate": (("chain", "draw"), rng.normal(1.0, 0.004, (2, 500)))})
    >>> idata = xr.DataTree.from_dict({"posterior": draws})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = sid.report(
    ...         model, idata, record, path=folder + "/decay.html", units={"rate": "1/s"}
    ...     ).read_text()
    >>> (
    ...     "Free run on the record of the fit" in page,
    ...     "http" in page.replace("http://www.w3.org", ""),
    ... )
    (True, False)
    """
    pairs = _pairs(model, idata)
    validation = Validation.of(validation)
    target = place(path, "path")
    flag(progressbar, "progressbar")
    if flag(interactive, "interactive"):
        need_plotly("report(interactive=True)")
    if not isinstance(title, str):
        raise TypeError(f"title is {shown(title)}; give text.")
    for label, value in (("units", units), ("evidence", evidence)):
        if not isinstance(value, Mapping | None):
            raise TypeError(f"{label} is {shown(value)}; give a dict, or None.")
    studies = {}
    for name, (one, draws) in pairs.items():
        records = _records(one, draws, record)
        check_sampled_on(draws, one, "idata" if isinstance(model, pm.Model) else f"the posterior of {name!r}")
        if validation.all and len(records) != 1:
            raise ValueError(f"validation needs a model with one ODEFilter, and {name!r} has {len(records)}: {list(records)}.")
        for r, new in enumerate(validation.all):
            which = f"validation[{r}]" if len(validation.all) > 1 else "validation"
            check_channels(which, new, OF_FIT, [fitted for some in records.values() for fitted in some])
        found = _units(one, records, validation.all, units or {})
        records = {label: _called(some, filter_view(label, one).system.outputs, found) for label, some in records.items()}
        outputs = filter_view(next(iter(records)), one).system.outputs
        tried = replace(validation, records=_called(validation.all, outputs, found))
        studies[name] = Study(one, draws, records, tried, found, interactive)

    several, first = len(studies) > 1, next(iter(studies.values()))
    summary: list[Block] = []
    bodies: list[Block] = []
    with progress_bar("report", progressbar) as say:
        for name, study in studies.items():
            made = []
            for heading, make in study.sections():
                say(f"{name}, {heading.lower()}" if several else heading.lower())
                made.append((heading, make()))
            if several:
                bodies += [Heading(name, 2), Verdicts(study.verdicts)]
            for heading, blocks in made:
                bodies += [Heading(heading, 3 if several else 2), *blocks]
        findings = [v for study in studies.values() for v in study.verdicts]
        summary.append(Summary(headline(studies), findings))
        if several:
            say("comparison")
            plain = replace(first.validation, records=[r.replace(units=None) for r in first.validation.all])
            compared = replace(compare_models(pairs, plain, evidence=evidence), validation=first.validation.all)
            summary.append(Heading("Comparison"))
            summary += overview(
                compared.table_html(), compared.notes, compared.cases, first.validation.all, units, compared.conclusion
            )
        else:
            (study,) = studies.values()
            summary += [Heading("In short"), Verdicts(study.verdicts)]
    own = {new: old for label in first.records for new, old in _own_names(filter_view(label, first.model)).items()}
    data = [Heading("Data"), *_data(first.records, "", first.units, own)]
    if validation.all:
        data += _data({"": first.validation.all}, "validation", first.units, own)
    about = _about(studies, first.records, validation.all)
    return Page.of(target, document(title, _with_contents(about, [*summary, *data, *bodies])))


def headline(studies: Mapping[str, Study]) -> str:
    """One sentence on how far free runs explain the measurements: on a new record if there is one."""
    new = any(score.new for study in studies.values() for score in study.scores)
    where = "a record that the fit has not seen" if new else "the record of the fit"
    fits = {name: [s for s in study.scores if s.new == new] for name, study in studies.items()}
    known = {name: scores for name, scores in fits.items() if scores}
    if not known:
        return "No free run could be compared with a measurement."
    if len(studies) == 1:
        (scores,) = known.values()
        explained, unknown = _listed([str(s) for s in scores]), scores[0].unknown
        if unknown and not new:
            return f"With {unknown} inferred from it, the model explains {explained} on {where}, which is no test of it."
        return f"A free run{_without(scores)} explains {explained} on {where}."
    ranked = sorted(known, key=lambda name: -float(np.mean([s.fit for s in known[name]])))
    parts = [f"{name}{_without(known[name])} explains {_listed([str(s) for s in known[name]])}" for name in ranked]
    return f"On {where}, a free run of {'; one of '.join(parts)}."


def _without(scores: Sequence[Score]) -> str:
    """What a free run did not know, or took from the record."""
    unknown, new = scores[0].unknown, scores[0].new
    return f" ({unknown} {'unknown' if new else 'inferred from the record'})" if unknown else ""


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _with_contents(about: Facts, blocks: Sequence[Block]) -> list[Block]:
    """Links to all main headings behind the summary, which stay in sight, and what the report was made of."""
    named = [replace(b, anchor=_anchor(b.text)) if isinstance(b, Heading) and b.level == 2 else b for b in blocks]
    headings = {b.anchor: b.text for b in named if isinstance(b, Heading) and b.level == 2}
    return [named[0], Links(headings), about, *named[1:]]


def _pairs(model: Any, idata: Any) -> dict[str, tuple[pm.Model, Any]]:
    """Models and posteriors by name."""
    if isinstance(model, pm.Model):
        if idata is None:
            raise ValueError("idata is None; give the posterior of the model, as pm.sample returned it.")
        return {"model": (model, idata)}
    if isinstance(model, xr.DataTree | xr.Dataset):
        raise TypeError("model is a posterior, and the model comes before it; give report(model, idata), without model=.")
    if not isinstance(model, Mapping) or not model:
        raise TypeError(f"model is {type(model).__name__}; give a pm.Model, or a dict of name: (model, idata).")
    if idata is not None:
        raise ValueError(
            f"idata ({type(idata).__name__}) is given beside a dict of models; put each posterior beside its model, name: "
            "(model, idata). Records of the fit are those of the models, others are validation=."
        )
    return {str(name): model_pair(pair, f"model[{name!r}]") for name, pair in model.items()}


def _records(model: pm.Model, idata: Any, given: Any) -> dict[str, list[TimeSeries]]:
    """Records of each filter: the given ones, checked, or those that the model holds."""
    names = filter_names(model)
    if not names:
        raise ValueError(
            "the model has no ODEFilter, about which a report could be made. For a fit of fit_pem, build the model with "
            "ODEFilter and draw with sid.sample(start=fit.initval); compare_models(...).to_html does without a filter."
        )
    posterior_of(idata)  # is refused here, before anything is computed
    held = {name: filter_view(name, model).records() for name in names}
    if given is None:
        return {name: [_built_for(filter_view(name, model), r, h) for r, h in enumerate(some)] for name, some in held.items()}
    records = list(given) if isinstance(given, list | tuple) else [given]
    if not all(isinstance(r, TimeSeries) for r in records):
        raise TypeError(f"record is {shown(given)}; give a TimeSeries, or a list of them.")
    if len(names) > 1:
        raise ValueError(f"record is given, but the model has the filters {names}; leave it out: they are read from the model.")
    (known,) = held.values()
    same = len(known) == len(records) and all(
        _same(a.output_matrix, b.output_matrix) for a, b in zip(known, records, strict=True)
    )
    if not same:
        raise ValueError("record is not what the model was fitted to: its outputs differ; leave it out, or give that record.")
    return {names[0]: records}


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.allclose(a, b, equal_nan=True)


def _built_for(view: FilterView, r: int, held: TimeSeries) -> TimeSeries:
    """The record that a filter was built for, which its inputs are evaluated from, unless it was given another since."""
    built: TimeSeries = view.op.grid.records[r]
    pairs = ((built.t, held.t), (built.input_matrix, held.input_matrix), (built.output_matrix, held.output_matrix))
    return built if all(_same(a, b) for a, b in pairs) else held


def _called(records: Sequence[TimeSeries], outputs: Sequence[str], units: Mapping[str, str]) -> list[TimeSeries]:
    """Records whose outputs are called what the system calls them, as everything else in the report is, with all units.

    The system's own names in another order stay: they are refused where the record is used.
    """
    other = [len(r.outputs) == len(outputs) and set(r.outputs) != set(outputs) for r in records]
    return [with_units(r.replace(outputs=outputs) if o else r, units) for r, o in zip(records, other, strict=True)]


def _own_names(view: FilterView) -> dict[str, str]:
    """What the records of a filter call its outputs, where that differs from the system's names."""
    pairs = {pair: None for record in view.op.grid.records for pair in zip(view.system.outputs, record.outputs, strict=True)}
    return {system: record for system, record in pairs if system != record}


def _units(
    model: pm.Model, records: Mapping[str, Sequence[TimeSeries]], validation: Sequence[TimeSeries], given: Mapping[str, str]
) -> dict[str, str]:
    """Units by channel, as the records and the systems call them, and by parameter."""
    found: dict[str, str] = {}
    for record in validation:
        found |= record.units
    for name, some in records.items():
        view = filter_view(name, model)
        for record in (*some, *view.records()):
            found |= record.units
        found |= {system: given[own] for system, own in _own_names(view).items() if own in given}
    return found | dict(given)


def _data(
    records: Mapping[str, Sequence[TimeSeries]], what: str, units: Mapping[str, str], own: Mapping[str, str]
) -> list[Block]:
    """What the records hold: a table of channels, with their names in the records if they are others, and a figure for each."""
    blocks: list[Block] = []
    for label, some in records.items():
        for r, record in enumerate(some):
            words = [what.capitalize() or "Record", label if len(records) > 1 else "", str(r + 1) if len(some) > 1 else ""]
            title = " ".join(w for w in words if w)
            rate = f"{record.fs:.6g} Hz" if record.fs else "irregular"
            span = f"{len(record)} samples, {record.t[-1] - record.t[0]:.6g} s, {rate}"
            blocks.append(Heading(f"{title}: {span}", 3))
            rows = []
            for kind, names, matrix in (
                ("input", record.inputs, record.input_matrix),
                ("output", record.outputs, record.output_matrix),
            ):
                for name, x in zip(names, matrix.T, strict=True):
                    seen = x[np.isfinite(x)]
                    numbers = [f"{f(seen):.4g}" if seen.size else "" for f in (np.min, np.max, np.mean, np.std)]
                    said = f"{kind}, recorded as {own[name]}" if kind == "output" and name in own else kind
                    rows.append([name, said, units.get(name, ""), *numbers, str(len(x) - seen.size)])
            blocks.append(
                Table(["", "", "unit", "smallest", "largest", "mean", "sd", "missing"], rows, texts=(1, 2)).without_empty()
            )
            if len(record) >= 8:
                known = {k: v for k, v in units.items() if k in (*record.inputs, *record.outputs)}
                caption = f"{title}: over time, amplitude spectrum, and the values it covers"
                blocks.append(figure(caption, partial(plot_record, record, units=known)))
    return blocks


def _anchor(name: str) -> str:
    return "model-" + "".join(c if c.isalnum() else "-" for c in name)


def _about(
    studies: Mapping[str, Study], records: Mapping[str, Sequence[TimeSeries]], validation: Sequence[TimeSeries]
) -> Facts:
    """When, of what and with what the report was made: enough to make it again."""
    named = ("pm_sysid", "pymc", "pytensor", "arviz", "numpy")
    facts = {"date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"}
    for label, some in [*records.items(), ("validation", validation)]:
        for r, record in enumerate(some):
            rate = f"{record.fs:.6g} Hz" if record.fs else "irregular times"
            which = f"{label} {r + 1}" if len(some) > 1 else label
            facts[f"record {which}"] = f"{len(record)} samples, {rate}, SHA-256 {checksum(record)}"
    for name, study in studies.items():
        seed = _seed(study.idata)
        if seed is not None:
            facts["seed" if len(studies) == 1 else f"seed of {name}"] = str(seed)
    return Facts(facts | {"versions": ", ".join(f"{n} {version(n)}" for n in named)})


def checksum(record: TimeSeries) -> str:
    """First digits of the SHA-256 of a record's times, inputs and outputs."""
    digest = sha256()
    for array in (record.t, record.input_matrix, record.output_matrix):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _seed(idata: Any) -> Any:
    """Seed that a sampler has written down."""
    nodes = [
        idata,
        *(idata[name] for name in ("posterior", "sample_stats") if isinstance(idata, xr.DataTree) and name in idata),
    ]
    return next((n.attrs["random_seed"] for n in nodes if "random_seed" in getattr(n, "attrs", {})), None)
