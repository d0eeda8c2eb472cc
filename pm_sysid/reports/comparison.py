"""The result of a comparison of models: its table, as text, in a notebook, and as a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pm_sysid.records.metrics import alike
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import with_unit
from pm_sysid.reports.blocks import Notes, Paragraph
from pm_sysid.reports.comparison_page import Case, page
from pm_sysid.reports.html import Page, fragment

#: What stands for an error that the runs do not tell.
UNKNOWN = "unknown"
#: Criteria of a comparison.
CRITERIA = ("DIC", "WAIC", "LOO")
#: Beginnings of notes where errors leave open which model is the best.
UNDECIDED, UNDECIDED_BY_LOO = "evidence: it does not decide", "stacking weight: LOO does not decide"


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
    conclusion : str
        What the table says, and where it does not decide, in sentences; empty for one model.
    """

    table: pd.DataFrame
    dic: dict[str, Any]
    waic: dict[str, Any]
    loo: dict[str, Any]
    notes: dict[str, tuple[str, ...]]
    validation: tuple[TimeSeries, ...] = ()
    cases: dict[str, Case] = field(default_factory=dict)

    @property
    def conclusion(self) -> str:
        """Which model evidence, LOO and free runs of validation hold best, or that they do not say, in sentences."""
        if len(self.table) < 2:
            return ""
        return " ".join(filter(None, (self._by_evidence(), self._by_loo(), self._by_validation(), self._in_doubt())))

    def __repr__(self) -> str:
        legend = "DIC, WAIC and LOO are deviances: lower is better. ± is a standard error. What is marked ! is explained below."
        lines = [self._short().to_string(), legend if self.notes else legend[: legend.index(" What")]]
        lines += [self.conclusion] if self.conclusion else []
        return "\n".join(lines + [f"{k}: {note}" for k, some in self.notes.items() for note in some])

    def _repr_html_(self) -> str:
        said = [Paragraph(self.conclusion)] if self.conclusion else []
        return self.table_html() + fragment([*said, Notes(self.notes)])

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
        html = page(self.table_html(), self.notes, self.cases, self.validation, self.conclusion)
        return Page.of(path, html)

    def _noted(self, *begins: str, but: str | tuple[str, ...] = ()) -> list[str]:
        """Models with a note that begins so, ``but`` not so."""
        noted = {m: [n for n in self.notes.get(str(m), ()) if n.startswith(begins)] for m in self.table.index}
        return [str(m) for m, notes in noted.items() if any(not n.startswith(but) for n in notes)]

    def _as_they_are(self, criterion: str, doubted: list[str]) -> str:
        """The beginning of a sentence on numbers that notes doubt."""
        return f"The notes on {listed(doubted)} doubt the {criterion}; by the numbers as they are"

    def _by_evidence(self) -> str:
        value, weight = self.table["log_evidence"], self.table["weight_evidence"]
        if value.isna().all():
            return ""
        if value.isna().any():
            return f"Evidence says nothing: that of {listed(map(str, value.index[value.isna()]))} is not known."
        if doubted := self._noted("evidence:", "posterior:", "criteria:", but=UNDECIDED):
            ahead = value.max() - value.drop(value.idxmax()).max()
            return (
                f"{self._as_they_are('evidence', doubted)}, {str(value.idxmax())!r} is ahead by {ahead:.1f} in the logarithm."
            )
        if open_ := self._noted(UNDECIDED):
            return f"Evidence does not decide between {listed([str(value.idxmax()), *open_])}."
        best, error = value.idxmax(), self.table.get("weight_evidence_se")
        within = "" if error is None or not error[best] >= 0.005 else f" ± {error[best]:.2f}"
        return f"By evidence {str(best)!r} is the most probable of these models (probability {weight[best]:.2f}{within})."

    def _by_loo(self) -> str:
        loo, apart, error = self.table["LOO"], self.table["dLOO"], self.table["dLOO_se"]
        if loo.isna().all():
            return ""
        if self.table["weight_stacking"].isna().any():
            return "LOO says nothing: not all models have one of the same points."
        if doubted := self._noted("LOO:", "posterior:", "criteria:"):
            best, second = loo.idxmin(), loo.drop(loo.idxmin()).idxmin()
            return f"{self._as_they_are('LOO', doubted)}, {str(best)!r} is ahead by a deviance of {apart[second]:.1f}."
        best = loo.idxmin()
        if open_ := self._noted(UNDECIDED_BY_LOO):
            return f"LOO does not decide between {listed([str(best), *open_])}."
        second = loo.drop(best).idxmin()
        gap = f"deviance {apart[second]:.1f} ± {error[second]:.1f} below that of {str(second)!r}"
        return f"By LOO {str(best)!r} predicts best ({gap})."

    def _by_validation(self) -> str:
        fits = [c for c in self.table.columns if str(c).split("[")[0] == "fit"]
        if not fits or self.table[fits].isna().any(axis=None):
            return ""
        if seen := self._noted("validation:"):
            return f"Validation: see the notes on {listed(seen)}."
        mean = self.table[fits].mean(axis=1).sort_values(ascending=False)
        said = f"Free runs of validation: {', '.join(f'{str(m)!r} {v:.1f} %' for m, v in mean.items())}"
        return f"{said}{self._as_good([str(m) for m in mean.index])}."

    def _as_good(self, ranked: list[str]) -> str:
        """Whether the errors of free runs differ by more than chance, in words; empty if they are not known."""
        squares = {name: case.squares for name in ranked if (case := self.cases.get(name)) and case.squares is not None}
        if len(squares) < len(ranked):
            return ""
        best, others = ranked[0], alike(squares, ranked[0])
        if others is None:
            return " (the records are too short to say whether that is more than chance)"
        if not others:
            return f" ({best!r} is ahead by more than chance)"
        return f" ({listed([best, *others])} differ by no more than chance)"

    def _in_doubt(self) -> str:
        if not (wrong := self._noted("model:")):
            return ""
        if len(wrong) == len(self.table):
            return "Every one of these models is contradicted by its innovations: the best of them is not right for that."
        return f"Innovations contradict {listed(wrong)}."

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


def listed(names: Iterable[str]) -> str:
    """Names for a sentence."""
    return ", ".join(map(repr, names))


def _text(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)


def _both(values: Any, errors: Any, form: str, unknown: str = "") -> list[str]:
    """Values with their errors; ``unknown`` stands in the place of an error of a value that has none."""
    pairs = zip(values, errors, strict=True)
    shown = [(_text(v, form), unknown if np.isnan(e) else _text(e, form)) for v, e in pairs]
    return [f"{value} ± {error}" if value and error else value for value, error in shown]
