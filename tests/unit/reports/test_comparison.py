"""What a comparison concludes, from its table and its notes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from pm_sysid.reports.comparison import UNDECIDED, UNDECIDED_BY_LOO, Comparison
from pm_sysid.reports.comparison_page import Case

NAN = [np.nan, np.nan]


def comparison(notes: dict[str, tuple[str, ...]] | None = None, **columns: Any) -> Comparison:
    """Of a cubic and a linear model, the first better by everything that is known."""
    known: dict[str, Any] = {"unknowns": [3, 2]}
    for c in ("DIC", "WAIC", "LOO"):
        known |= {c: [10.0, 50.0], f"{c}_se": [3.0, 3.0], f"p_{c}": [3.0, 2.0], f"d{c}": [0.0, 40.0], f"d{c}_se": [0.0, 5.0]}
    known |= {"log_evidence": NAN, "log_evidence_se": NAN, "weight_stacking": [1.0, 0.0], "weight_evidence": NAN} | columns
    return Comparison(pd.DataFrame(known, index=["cubic", "linear"]), {}, {}, {}, notes or {})


EVIDENCE: dict[str, Any] = {
    "log_evidence": [-10.0, -13.0],
    "log_evidence_se": [0.1, 0.1],
    "weight_evidence": [0.95, 0.05],
    "weight_evidence_se": [0.01, 0.01],
}


def test_what_decides_is_said_with_its_numbers() -> None:
    said = comparison(**EVIDENCE, fit=[90.0, 70.0]).conclusion
    assert "By evidence 'cubic' is the most probable of these models (probability 0.95 ± 0.01)." in said
    assert "By LOO 'cubic' predicts best (deviance 40.0 ± 5.0 below that of 'linear')." in said
    assert "Free runs of validation: 'cubic' 90.0 %, 'linear' 70.0 %." in said


def test_errors_that_differ_by_chance_decide_nothing() -> None:
    rng = np.random.default_rng(1)
    errors = rng.chisquare(1, 400)
    table = comparison(fit=[90.0, 89.9]).table
    cases: Any = {"cubic": Case(None, None, None, [], errors), "linear": Case(None, None, None, [], rng.chisquare(1, 400))}
    said = Comparison(table, {}, {}, {}, {}, (), cases).conclusion
    assert "'linear' 89.9 % ('cubic', 'linear' differ by no more than chance)." in said
    cases["linear"] = cases["linear"]._replace(squares=1.1 * errors)
    assert "('cubic' is ahead by more than chance)" in Comparison(table, {}, {}, {}, {}, (), cases).conclusion
    cases = {name: case._replace(squares=case.squares[:8]) for name, case in cases.items()}
    assert "too short to say" in Comparison(table, {}, {}, {}, {}, (), cases).conclusion


def test_criteria_that_were_not_computed_are_not_mentioned() -> None:
    assert comparison(LOO=NAN, weight_stacking=NAN).conclusion == ""
    alone = comparison()
    assert "evidence" not in alone.conclusion.lower() and "validation" not in alone.conclusion
    single = Comparison(alone.table.iloc[:1], {}, {}, {}, {})
    assert single.conclusion == ""


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (f"{UNDECIDED} between 'cubic' and 'linear': ...", "Evidence does not decide between 'cubic', 'linear'."),
        (
            "evidence: one run does not tell its error",
            "The notes on 'linear' doubt the evidence; by the numbers as they are, 'cubic' is ahead by 3.0 in the logarithm.",
        ),
        (
            "posterior: the chains have not mixed",
            "The notes on 'linear' doubt the evidence; by the numbers as they are, 'cubic' is ahead by 3.0 in the logarithm.",
        ),
        (
            "posterior: the chains have not mixed",
            "The notes on 'linear' doubt the LOO; by the numbers as they are, 'cubic' is ahead by a deviance of 40.0.",
        ),
        (
            "LOO: the Pareto k of 3 points is above 0.7",
            "The notes on 'linear' doubt the LOO; by the numbers as they are, 'cubic' is ahead by a deviance of 40.0.",
        ),
        (f"{UNDECIDED_BY_LOO} between ...", "LOO does not decide between 'cubic', 'linear'."),
        ("validation: 3 of 20 runs are not finite", "Validation: see the notes on 'linear'."),
        ("model: the innovations of y are not white.", "Innovations contradict 'linear'."),
    ],
)
def test_what_is_doubted_does_not_decide(note: str, said: str) -> None:
    found = comparison({"linear": (note,)}, **EVIDENCE, fit=[90.0, 70.0])
    assert said in found.conclusion
    assert said in repr(found) and said.replace("'", "&#39;") in found._repr_html_()


def test_evidence_of_some_models_says_nothing() -> None:
    found = comparison(**EVIDENCE | {"log_evidence": [-10.0, np.nan], "weight_evidence": NAN})
    assert "Evidence says nothing: that of 'linear' is not known." in found.conclusion


def test_the_best_of_wrong_models_is_not_called_right() -> None:
    note = ("model: the innovations of y are not white.",)
    assert "contradicted by its innovations" in comparison({"cubic": note, "linear": note}).conclusion
