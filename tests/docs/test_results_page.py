"""The page of results says what the saved files say."""

from __future__ import annotations

import json
import re
from types import ModuleType

import pytest

from support.scripts import ROOT, load


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load("docs/results_page.py")


def test_numbers_as_text(module: ModuleType) -> None:
    assert [module.number(v) for v in (None, 0.0, 1.23456, 12345.6, 1.5e-7)] == ["", "0", "1.23", "12,346", "1.5e-07"]
    assert module.triple([1e-6, 2e-6, 3.25e-6], 1e6, 2) == "1.00 / 2.00 / 3.25"
    assert module.best({"a": 1.0, "b": 2.0}, "a", "1.0") == "**1.0**"
    assert module.best({"a": 1.0, "b": 2.0}, "b", "2.0") == "2.0"


def test_a_table(module: ModuleType) -> None:
    assert module.table(["", "x"], [["a", 1]]) == "|  | x |\n| :-- | --: |\n| a | 1 |\n"


def test_every_saved_file_has_a_section(module: ModuleType) -> None:
    used = {section[2] for section in module.SECTIONS}
    saved = [*(ROOT / "examples" / "results").glob("*.json"), *(ROOT / "benchmarks" / "results").glob("*.json")]
    assert {file.relative_to(ROOT).as_posix() for file in saved} == used
    for _, script, _, discussion, _ in module.SECTIONS:
        assert (ROOT / script).exists() and (ROOT / "docs" / discussion).exists()


def test_the_page_has_whole_tables_with_the_numbers_of_the_files(module: ModuleType) -> None:
    page = module.results_page(ROOT)
    tables = re.findall(r"(?:^\|.*\|\n)+", page, flags=re.MULTILINE)
    assert len(tables) >= len(module.SECTIONS)
    for table in tables:
        widths = {line.count(" | ") for line in table.splitlines()}
        assert len(widths) == 1, table
        assert len(table.splitlines()) > 2, table
    found = json.loads((ROOT / "examples" / "results" / "silverbox.json").read_text())
    assert " / ".join(f"{v:.3f}" for v in found["ibis"]) in page
    found = json.loads((ROOT / "benchmarks" / "results" / "ibis.json").read_text())
    assert f"{found['IBIS']['evaluations']:,.0f}" in page


def test_a_changed_file_changes_the_page(module: ModuleType) -> None:
    found = {"BatchDistance, 1 thread": 8.125, "difference": 1.0}
    assert "| BatchDistance, 1 thread | 8.12 |" in module.simulator(found)
    assert "difference" not in module.simulator(found)
