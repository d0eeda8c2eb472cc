"""The tests mirror the package, and what two of them share lies in tests/support or in a conftest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.scripts import ROOT

TESTS, PACKAGE = ROOT / "tests", ROOT / "pm_sysid"
FILES = sorted(TESTS.rglob("test_*.py"))
UNIT = TESTS / "unit"

#: Tests of the whole package: its levels, its public names, what it depends on, this file.
OF_THE_WHOLE = {"test_dependencies.py", "test_imports.py", "test_layout.py", "test_public_names.py"}


def imported(file: Path) -> set[str]:
    """Modules a file imports anywhere, also in the text of the programs it starts."""
    found = set()
    trees = [ast.parse(file.read_text())]
    while trees:
        for node in ast.walk(trees.pop()):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
                try:
                    trees.append(ast.parse(node.value))
                except SyntaxError:  # prose
                    continue
    return found


@pytest.mark.parametrize("file", [*FILES, *sorted(TESTS.rglob("conftest.py")), *sorted((TESTS / "support").rglob("*.py"))],
                         ids=lambda f: f.relative_to(TESTS).as_posix())  # fmt: skip
def test_nothing_imports_a_test_module(file: Path) -> None:
    assert not [name for name in imported(file) if {f.stem for f in FILES} & set(name.split("."))]


def mirrored(file: Path) -> list[Path]:
    """Modules or packages of pm_sysid that a unit test is named after: ``test_ek_dense.py`` after ``ek.py``."""
    folder, name = PACKAGE / file.parent.relative_to(UNIT), file.stem.removeprefix("test_")
    there = [p for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()] if folder.is_dir() else []
    return [p for p in there if name == p.stem or name.startswith(f"{p.stem}_")]


@pytest.mark.parametrize("file", [f for f in FILES if f.is_relative_to(UNIT)], ids=lambda f: f.relative_to(UNIT).as_posix())
def test_a_unit_test_is_named_after_what_it_tests(file: Path) -> None:
    assert mirrored(file) or (file.name in OF_THE_WHOLE and file.parent == UNIT)
