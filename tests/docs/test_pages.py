"""The code printed in the documentation runs as printed, page by page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib import pyplot

DOCS = Path(__file__).parents[2] / "docs"
GENERATED = {"_build", "api", "examples", "gallery.md", "references.md", "results.md", ".jupyter_cache", "jupyter_execute"}
#: A fence, and the line before it, which may say what the block needs beyond this package.
FENCE = re.compile(r"(?:^<!-- needs: (?P<needs>[\w, ]+) -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str, list[str]]]:
    """Line number, code and needed modules of each block of a page."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        needs = [name.strip() for name in (match["needs"] or "").split(",") if name.strip()]
        found.append((text.count("\n", 0, match.start("code")), match["code"], needs))
    return found


def pages() -> list[Any]:
    """Pages with blocks; README has a test of its own (tests/integration/test_readme.py)."""
    written = (page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).parts[0] not in GENERATED)
    found = []
    for page in written:
        needs = sorted({name for _, _, names in blocks(page) for name in names})
        if blocks(page):
            found.append(pytest.param(page, id="-".join([page.relative_to(DOCS).as_posix(), *(f"needs-{n}" for n in needs)])))
    return found


def test_blocks_are_found_with_their_lines_and_needs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\na = 1\n```\n\n<!-- needs: jax -->\n```python\nimport jax\n```\n\n```matlab\nb\n```\n")
    assert blocks(page) == [(3, "a = 1\n", []), (8, "import jax\n", ["jax"])]


def test_every_python_fence_is_one_that_is_run() -> None:
    """An indented fence, or one with more on its line, would be left out in silence."""
    for page in DOCS.rglob("*.md"):
        if page.relative_to(DOCS).parts[0] not in GENERATED:
            lines = re.findall(r"^[ \t]*```[ \t]*\{?python.*$", page.read_text(), flags=re.MULTILINE)
            assert lines == ["```python"] * len(blocks(page)), page


def test_samples_need_no_scroll_bar() -> None:
    """Code on a page is at most 96 columns wide."""
    for page in (*DOCS.rglob("*.md"), DOCS.parent / "README.md"):
        if page.is_relative_to(DOCS) and page.relative_to(DOCS).parts[0] in GENERATED:
            continue
        inside = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("```"):
                inside = not inside
            assert not inside or len(line) <= 96, f"line {number} of {page} has {len(line)} columns"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", pages())
def test_a_page_runs_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    left_out = []
    for line, code, needs in blocks(page):
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        if missing:
            left_out.append(f"the block in line {line} needs {', '.join(missing)}")
        else:
            # As many empty lines as the page has above it: a traceback then shows the line of the page.
            exec(compile("\n" * line + code, str(page), "exec"), names)
    pyplot.close("all")
    assert "sid" in names or left_out, f"no block of {page} imports the package"
    if left_out:
        pytest.skip("; ".join(left_out) + "; the others ran")
