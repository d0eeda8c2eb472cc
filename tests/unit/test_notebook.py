"""What notebooks show: whole tables with the numbers of the object, and nothing that breaks a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np

import pm_sysid as sid
from pm_sysid.likelihood.mode import LocalMode, Mode
from pm_sysid.notebook import html_table, sparkline
from support import tiny


def parsed(page: str) -> str:
    """All text of well-formed HTML."""
    return " ".join("".join(ET.fromstring(f"<div>{page}</div>").itertext()).split())


def test_a_record() -> None:
    y = np.sin(np.arange(300.0))
    y[10:14] = np.nan
    record = sid.TimeSeries(np.arange(300) / 100, {"F<1>": np.full(300, 2.0)}, {"z": y}, units={"z": "mm"})
    page = record._repr_html_()
    text = parsed(page)
    assert "300 samples" in text and "F<1>" in text and "mm" in text and page.count("<svg") == 2
    assert "2 2 2 0" in text.replace("F<1>", "") or "2220" in text


def test_a_sparkline_has_gaps_and_survives_constants() -> None:
    gap = np.r_[np.zeros(50), np.full(20, np.nan), np.ones(50)]
    assert sparkline(gap).count("M") == 2 and sparkline(np.ones(5)).count("M") == 1
    assert sparkline(np.full(5, np.nan)) == ""


def test_systems_fits_and_tests() -> None:
    system = parsed(sid.models.duffing()._repr_html_())
    assert "2 states, 1 input, 1 output" in system and "parameters" in system and "\\dot" in system
    fit = tiny.fit()
    assert f"{fit.x[0]:.7g}" in parsed(fit._repr_html_())
    assert "white" in parsed(sid.residual_tests(np.random.default_rng(0).normal(size=200))._repr_html_())


def test_a_mode_in_a_terminal_and_in_a_notebook() -> None:
    values = {"k": np.array(150.25), "shape": np.array([1.0, -2.5])}
    one = LocalMode(values, np.zeros(3), -7.0, -9.5, 4)
    mode = Mode(values, one.point, np.eye(3), one.logp, True, (one,), "4 searches: one mode")
    lines = [line.split() for line in repr(mode).splitlines()]
    assert lines[0] == ["Mode"] and ["k", "150.25"] in lines and ["shape[1]", "-2.5"] in lines
    assert ["log", "posterior", "-7.00"] in lines and repr(mode).endswith("4 searches: one mode")
    assert all(word in parsed(mode._repr_html_()) for line in lines for word in line)
    lost = Mode(values, one.point, np.eye(3), one.logp, False)
    assert repr(lost).startswith("Mode (the search did not end at a maximum)") and "nan" in repr(lost)


def test_texts_are_escaped() -> None:
    assert "&lt;b&gt;" in html_table(["<b>"], [["x"]])
