"""The documentation is whole: links, the list of the API, the examples' statements."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pm_sysid as sid
from support.scripts import ROOT, load

DOCS = ROOT / "docs"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: Below docs, when the site is built.
BUILT = {
    "_build",
    "api",
    "examples",
    "gallery",
    "gallery.md",
    "references.md",
    "results.md",
    ".jupyter_cache",
    "jupyter_execute",
}
PAGES = [ROOT / "README.md", *(p for p in sorted(DOCS.rglob("*.md")) if p.relative_to(DOCS).parts[0] not in BUILT)]


def prose(page: Path) -> str:
    """Text without code."""
    text = re.sub(r"^(```+|~~~+|:::+).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!\})`[^`\n]*`", "", text)  # a role such as {download}`...` stays


def anchors(page: Path) -> set[str]:
    """What headings can be linked by."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def source(target: Path) -> Path:
    """File in the repository that a file of the built site comes from."""
    if target == DOCS / "results.md":
        return DOCS / "results_page.py"
    if target.parent == DOCS / "gallery" and target.stem.removeprefix("study_") in load("docs/studies.py").STUDIES:
        return DOCS / "studies.py"
    if target.parent in (DOCS / "examples", DOCS / "examples" / "notebooks"):
        return ROOT / "examples" / f"{target.stem}.py"
    return target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_line_of_prose_is_a_comment(page: Path) -> None:
    """MyST leaves out lines that begin with a per cent sign."""
    assert not re.findall(r"^%.*", prose(page), flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = prose(page)
    links = re.findall(r"\]\(<?([^)\s>]+)>?\)", text) + re.findall(r"\{(?:download|doc)\}`[^`]*?<([^`>]+)>`", text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = source((page.parent / path).resolve()) if path else page
        assert target.exists(), f"{link}: there is no such file"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}: there is no such heading"


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = set()
    for page in PAGES[1:]:
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            entries = (line.strip() for line in tree.splitlines() if line.strip() and not line.startswith(":"))
            listed |= {(page.parent / re.sub(r".*<(.*)>", r"\1", entry).removesuffix(".md")).resolve() for entry in entries}
    for page in PAGES[1:]:
        assert page == DOCS / "index.md" or page.with_suffix("") in listed, page
    assert {DOCS / "examples" / script.stem for script in EXAMPLES} <= listed


def test_the_api_page_lists_everything_public() -> None:
    text = (DOCS / "api.md").read_text()
    listed = {}
    for module, block in re.findall(r"currentmodule:: (\S+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        listed.setdefault(module, []).extend(re.findall(r"^   (\w+)$", block, flags=re.MULTILINE))
    public = {
        "pm_sysid": [name for name in sid.__all__ if not isinstance(getattr(sid, name), ModuleType)],
        "pm_sysid.models": sid.models.__all__,
        "pm_sysid.datasets": sid.datasets.__all__,
    }
    for module, names in public.items():
        assert sorted(listed[module]) == sorted(names), module


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_states_what_it_takes(script: Path) -> None:
    head = script.read_text().split("# %%\n")[0]
    for word in ("Data", "Priors", "Solver", "Runtime"):
        assert re.search(rf"^# - {word}: .", head, flags=re.MULTILINE), f"{script.name} does not state its {word.lower()}"


@pytest.mark.parametrize("script", [s for s in EXAMPLES if s.stem != "quickstart"], ids=lambda script: script.stem)
def test_a_study_does_nothing_when_a_process_imports_it(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under the spawn start method every process that samples a chain imports the script."""
    module = load(f"examples/{script.name}")
    assert capsys.readouterr().out == "" and module.__name__ not in sys.modules
    assert not hasattr(module, "options")
