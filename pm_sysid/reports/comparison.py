"""The result of a comparison of models: its table, as text, in a notebook, and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import with_unit
from pm_sysid.reports.blocks import Notes
from pm_sysid.reports.comparison_page import Case, page
from pm_sysid.reports.html import Page, fragment

#: What stands for an error that the runs do not tell.
UNKNOWN = "unknown"
#: Criteria of a comparison.
CRITERIA = ("DIC", "WAIC", "LOO")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of :func:`compare_models`.

    Attributes
    ----------
    table : pandas.DataFrame
        One row a model, the best by LOO first. ``unknowns`` (scalar parameters); ``DIC``, ``WAIC``, ``LOO`` as deviances
        (lower is better), each with standard error ``.._se``, effective number of parameters ``p_..``, and difference from
        the best model ``d..`` with its standard error ``d.._se``; ``bad_k`` (points at which LOO is unreliable);
        ``log_evidence`` and ``log_evidence_se`` (NaN: not known, as of one run of ``pm.sample_smc``); ``weight_stacking``,
        ``weight_evidence`` with its uncertainty ``weight_evidence_se``; and on the validation records
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
        return self.table_html() + fragment([Notes(self.notes)])

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
        """
        html = page(self.table_html(), self.notes, self.cases, self.validation)
        return Page.of(path, html)

    def _unit(self, score: str, name: str) -> str:
        """Unit of a column of errors, where the records of validation say that of the output; empty if none is known."""
        if score == "fit":
            return "%"
        record = self.validation[0]
        unit = record.units.get(name.partition("[")[2].removesuffix("]") or record.outputs[0], "")
        if score == "RMSE" or not unit:
            return unit
        return f"{unit}²" if unit.isalpha() else f"({unit})²"

    def _short(self) -> pd.DataFrame:
        """Table of text with only what is known."""
        table, columns = self.table, {}
        columns["unknowns"] = [f"{n:d}" for n in table["unknowns"]]
        for name in map(str, table.columns):
            if (score := name.split("[")[0]) in ("RMSE", "MSE", "fit"):
                columns[with_unit(name, self._unit(score, name))] = [_text(v, ".4g") for v in table[name]]
        for c in CRITERIA:
            doubted = [any(n.startswith((f"{c}:", "posterior:")) for n in self.notes.get(str(m), ())) for m in table.index]
            columns[c] = [_text(v, ".1f") + " !" * bad for v, bad in zip(table[c], doubted, strict=True)]
            columns[f"p {c}"] = [_text(v, ".1f") for v in table[f"p_{c}"]]
        if len(table) > 1:
            columns["LOO difference"] = _both(table["dLOO"], table["dLOO_se"], ".1f")
        if table["log_evidence"].notna().any():
            columns["log evidence"] = _both(table["log_evidence"], table["log_evidence_se"], ".2f", UNKNOWN)
        for name, title in (("weight_stacking", "stacking weight"), ("weight_evidence", "evidence weight")):
            if len(table) > 1 and table[name].notna().any():
                error = table.get(f"{name}_se")
                both = None if error is None else _both(table[name], error, ".2f", UNKNOWN)
                columns[title] = both or [_text(v, ".2f") for v in table[name]]
        return pd.DataFrame(columns, index=table.index)


def _text(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)


def _both(values: Any, errors: Any, form: str, unknown: str = "") -> list[str]:
    """Values with their errors; ``unknown`` stands in the place of an error of a value that has none."""
    pairs = zip(values, errors, strict=True)
    shown = [(_text(v, form), unknown if np.isnan(e) else _text(e, form)) for v, e in pairs]
    return [f"{value} ± {error}" if value and error else value for value, error in shown]
