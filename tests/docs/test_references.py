"""References: one list, whose entries are linked wherever a page or a docstring cites them."""

from __future__ import annotations

import ast
import re
from types import ModuleType

import pytest

from support.scripts import ROOT, load
from support.statements import statements

THEORY = sorted((ROOT / "docs" / "theory").glob("*.md"))


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load("docs/references.py")


def test_every_reference_stands_once_and_has_an_address_of_the_right_form(module: ModuleType) -> None:
    listed = [(one.names, one.year) for one in module.REFERENCES]
    assert len(set(listed)) == len(listed)
    assert [names for names, _ in listed] == sorted((n for n, _ in listed), key=lambda n: plain(n).lower())
    found = [one.doi for one in module.REFERENCES if one.doi]
    assert len(set(found)) == len(found) and all(re.fullmatch(r"10\.\d{4,9}/\S+", doi) for doi in found)
    page = module.references_page()
    assert all(one.title in page and one.url in page for one in module.REFERENCES)


def plain(name: str) -> str:
    """Name without accents."""
    return name.translate(str.maketrans("äöüé", "aoue"))


@pytest.mark.parametrize(
    "line, linked",
    [
        ("* **r** (*TimeSeries or list of them*) -- It", "* **r** (:obj:`TimeSeries` *or list of them*) -- It"),
        ("* **r** (*(TimeSeries, float)*) -- It", r"* **r** (*(*\ :obj:`TimeSeries`\ *, float)*) -- It"),
        (":Parameters: * **r** (*TimeSeries*) -- It", ":Parameters: * **r** (:obj:`TimeSeries`) -- It"),
        ("*mapping of TimeSeries*", "*mapping of* :obj:`TimeSeries`"),
        ("* **n** (*int*) -- As *TimeSeries* has", "* **n** (*int*) -- As *TimeSeries* has"),
    ],
)
def test_types_of_the_package_are_linked(module: ModuleType, line: str, linked: str) -> None:
    assert module.linked_types(line, ["TimeSeries"]) == linked


@pytest.mark.parametrize("page", THEORY, ids=lambda page: page.stem)
def test_sources_of_theory_are_linked(module: ModuleType, page) -> None:
    """What is left of the section without links cites nothing but what has no DOI."""
    if "## Sources" not in page.read_text():
        return
    sources = page.read_text().split("## Sources")[1]
    without = {(plain(one.names), one.year) for one in module.REFERENCES if not one.doi}
    text = re.sub(r"\[[^\]]*\]\([^)]*\)|\*[^*]*\*", "", module.linked_page(sources))
    cited = {(plain(" ".join(names.split())), int(year)) for names, year in re.findall(r"([A-Z][\w\s,.]*?)\s\((\d{4})\)", text)}
    assert cited <= without


def test_links_leave_code_formulas_and_other_links_alone(module: ModuleType) -> None:
    cited = "[Chopin (2002)](https://doi.org/10.1093/biomet/89.3.539)"
    kept = "`Chopin (2002)`, [as Chopin (2002)](a.md)\n\n```python\n# Chopin (2002)\n```\n$$Chopin (2002)$$\n"
    text = f"# Chopin (2002)\n\n{{}}, {kept}"
    assert module.linked_page(text.format("Chopin (2002)")) == text.format(cited)
    assert module.linked_page(text.format(cited)) == text.format(cited)
    assert module.linked_page("(Dau and\nChopin 2022)") == "([Dau and\nChopin 2022](https://doi.org/10.1111/rssb.12475))"
    assert (
        module.linked_page("Greenchopin 2002, Chopin 20021, Chopin (2003)") == "Greenchopin 2002, Chopin 20021, Chopin (2003)"
    )


def test_docstrings_are_linked_but_not_their_examples(module: ModuleType) -> None:
    lines = ["Source: Chopin (2002), and ``Chopin (2002)``.", "", ">>> 1  # Chopin (2002)", "1", "", "Julier 2002; more"]
    linked = module.linked_docstring(lines)
    assert linked[0] == "Source: `Chopin (2002) <https://doi.org/10.1093/biomet/89.3.539>`__, and ``Chopin (2002)``."
    assert linked[1:5] == lines[1:5] and linked[5].startswith("`Julier 2002 <https://doi.org/")


def test_years_of_citations_are_those_of_the_list(module: ModuleType) -> None:
    """A citation by names of the list with another year is a slip of the pen, or a reference that is missing."""
    known: dict[str, set[int]] = {}
    for one in module.REFERENCES:
        known.setdefault(plain(one.names), set()).add(one.year)
    texts = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    for path in (ROOT / "pm_sysid").rglob("*.py"):
        nodes = statements(ast.parse(path.read_text()))
        texts += [ast.get_docstring(n) or "" for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Module)]
    for text in map(plain, texts):
        for names, years in known.items():
            for year in re.findall(rf"(?<![\w,] )(?<!and ){re.escape(names)}\s\(?((?:19|20)\d\d)\b", text):
                assert int(year) in years, f"{names} ({year})"
