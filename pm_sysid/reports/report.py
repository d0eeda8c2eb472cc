"""A study as one file: data, equations, posterior, diagnostics, fit, residuals, integration, validation, comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

from pm_sysid.arguments import flag, place, shown
from pm_sysid.idata import posterior_of
from pm_sysid.likelihood.filter_view import filter_names, filter_view
from pm_sysid.plots.record import plot_record
from pm_sysid.progress import progress_bar
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.reports.blocks import Block, Heading, Links, Paragraph, Table, Verdicts
from pm_sysid.reports.compare import compare_models, model_pair
from pm_sysid.reports.comparison_page import overview
from pm_sysid.reports.drawing import figure, need_matplotlib
from pm_sysid.reports.html import document
from pm_sysid.reports.sections import Study
from pm_sysid.reports.validation import Validation


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
        What the model was fitted to, by default read back from it (then it is not known whether it is periodic).
    validation : TimeSeries or list of them, or Validation, optional
        Records that were not used for the fit; a :class:`Validation` also says how many free runs are made, from which initial
        state, and what is scored, on the record of the fit too.
    path : str or path, default "report.html"
        File to write.
    title : str
        Title of the page.
    units : mapping of str to str, optional
        Units by channel or parameter, for labels and tables.
    evidence : mapping of name to idata, optional
        As for :func:`compare_models`.
    progressbar : bool, default True
        Show which section is being made; nothing is left of the line.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    TypeError, ValueError
        If a model has no ODEFilter, a posterior does not fit its model, or a record does not.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid, tempfile
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t, rng = np.linspace(0.0, 2.0, 60), np.random.default_rng(1)
    >>> record = sid.TimeSeries(t, None, np.exp(-t) + 0.01 * rng.standard_normal(60))
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate")
    ...     _ = sid.ODEFilter("y", decay, record, dict(rate=rate), noise=0.01, x0=1.0, substeps=1)
    >>> draws = xr.Dataset({"rate": (("chain", "draw"), rng.normal(1.0, 0.004, (2, 500)))})
    >>> idata = xr.DataTree.from_dict({"posterior": draws})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = sid.report(model, idata, record, path=folder + "/decay.html", units={"rate": "1/s"}).read_text()
    >>> "Free run on the record of the fit" in page, "http" in page.replace("http://www.w3.org", "")
    (True, False)
    """
    need_matplotlib()
    pairs = _pairs(model, idata)
    validation = Validation.of(validation)
    target = place(path, "path")
    flag(progressbar, "progressbar")
    if not isinstance(title, str):
        raise TypeError(f"title is {shown(title)}; give text.")
    for label, value in (("units", units), ("evidence", evidence)):
        if not isinstance(value, Mapping | None):
            raise TypeError(f"{label} is {shown(value)}; give a dict, or None.")
    studies = {}
    for name, (one, draws) in pairs.items():
        records = _records(one, draws, record)
        if validation.all and len(records) != 1:
            raise ValueError(f"validation needs a model with one ODEFilter, and {name!r} has {len(records)}: {list(records)}.")
        studies[name] = Study(one, draws, records, validation, dict(units or {}))

    several = len(studies) > 1
    summary: list[Block] = []
    bodies: list[Block] = []
    with progress_bar("report", progressbar) as say:
        for name, study in studies.items():
            made = []
            for heading, make in study.sections():
                say(f"{name}, {heading.lower()}" if several else heading.lower())
                made.append((heading, make()))
            if several:
                bodies += [Heading(name, 2, _anchor(name)), Verdicts(study.verdicts)]
            for heading, blocks in made:
                bodies += [Heading(heading, 3 if several else 2), *blocks]
        if several:
            say("comparison")
            found = compare_models(pairs, validation, evidence=evidence)
            summary += [Links({_anchor(name): name for name in studies}), Heading("Comparison")]
            summary += overview(found.table_html(), found.notes, found.cases, validation.all, units)
        else:
            (study,) = studies.values()
            summary += [Heading("In short"), Verdicts(study.verdicts)]
    first = next(iter(studies.values()))
    data = [Heading("Data"), *_data(first.records, "", first.units)]
    if validation.all:
        data += _data({"": validation.all}, "validation", first.units)
    target.write_text(document(title, [*summary, *data, *bodies, _made()]), encoding="utf-8")
    return target


def _pairs(model: Any, idata: Any) -> dict[str, tuple[pm.Model, Any]]:
    """Models and posteriors by name."""
    if isinstance(model, pm.Model):
        if idata is None:
            raise ValueError("idata is None; give the posterior of the model, as pm.sample returned it.")
        return {"model": (model, idata)}
    if not isinstance(model, Mapping) or not model:
        raise TypeError(f"model is {type(model).__name__}; give a pm.Model, or a dict of name: (model, idata).")
    if idata is not None:
        raise ValueError("idata is given beside a dict of models; put each posterior beside its model: name: (model, idata).")
    return {str(name): model_pair(pair, f"model[{name!r}]") for name, pair in model.items()}


def _records(model: pm.Model, idata: Any, given: Any) -> dict[str, list[TimeSeries]]:
    """Records of each filter: the given ones, checked, or those that the model holds."""
    names = filter_names(model)
    if not names:
        raise ValueError(
            "the model has no ODEFilter, about which a report could be made; compare_models(...).to_html does without."
        )
    posterior_of(idata)  # is refused here, before anything is computed
    held = {name: filter_view(name, model).records() for name in names}
    if given is None:
        return held
    records = list(given) if isinstance(given, list | tuple) else [given]
    if not all(isinstance(r, TimeSeries) for r in records):
        raise TypeError(f"record is {shown(given)}; give a TimeSeries, or a list of them.")
    if len(names) > 1:
        raise ValueError(f"record is given, but the model has the filters {names}; leave it out: they are read from the model.")
    (known,) = held.values()
    same = len(known) == len(records) and all(
        a.output_matrix.shape == b.output_matrix.shape and np.allclose(a.output_matrix, b.output_matrix, equal_nan=True)
        for a, b in zip(known, records, strict=True)
    )
    if not same:
        raise ValueError("record is not what the model was fitted to: its outputs differ; leave it out, or give that record.")
    return {names[0]: records}


def _data(records: Mapping[str, Sequence[TimeSeries]], what: str, units: Mapping[str, str]) -> list[Block]:
    """What the records hold: a table of channels, and a figure for each."""
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
                    rows.append([name, kind, units.get(name, ""), *numbers, str(len(x) - seen.size)])
            blocks.append(Table(["", "", "unit", "smallest", "largest", "mean", "sd", "missing"], rows, texts=(1, 2)))
            if len(record) >= 8:
                known = {k: v for k, v in units.items() if k in (*record.inputs, *record.outputs)}
                caption = f"{title}: over time, amplitude spectrum, and the values it covers"
                blocks.append(figure(caption, partial(plot_record, record, units=known)))
    return blocks


def _anchor(name: str) -> str:
    return "model-" + "".join(c if c.isalnum() else "-" for c in name)


def _made() -> Block:
    names = ("pm_sysid", "pymc", "pytensor", "arviz", "numpy")
    return Paragraph(f"Made with {', '.join(f'{n} {version(n)}' for n in names)}.", "small")
