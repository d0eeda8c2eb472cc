"""What the package imports is declared, and bounded where a new minor version may break it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from support.statements import statements

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Extras of users; that of the benchmarks is for this repository.
EXTRAS = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "benchmarks"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(lines: list[str]) -> dict[str, str]:
    """Bounds by the name of the distribution."""
    found = [re.fullmatch(r"([\w.-]+)(\[[\w,]+\])?([^;]*).*", line) for line in lines]
    return {canonical(m[1]): m[3] for m in found if m}


def imported(path: Path) -> Iterator[str]:
    """Top-level names that a file imports, inside functions too."""
    text = path.read_text()
    walk = ast.walk if "import_module" in text else statements  # expressions are most of a file
    for node in walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value.split(".")[0] for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


#: Which distributions a package is of; the search takes longer than all these tests.
distributions_by_package = cache(packages_distributions)
MODULES = sorted({name for path in (ROOT / "pm_sysid").rglob("*.py") for name in imported(path)} - sys.stdlib_module_names)


@pytest.mark.parametrize("module", [name for name in MODULES if name != "pm_sysid"])
def test_every_import_is_declared(module: str) -> None:
    declared = requirements([*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)])
    distributions = {canonical(name) for name in distributions_by_package().get(module, [module])}
    assert distributions & set(declared), f"{module} is imported; declare {distributions} in pyproject.toml"


@pytest.mark.parametrize("name", ["arviz", "arviz-base", "arviz-stats", "numba", "pymc", "pytensor"])
def test_libraries_whose_internals_are_used_have_an_upper_bound(name: str) -> None:
    assert re.fullmatch(r">=[\d.]+,<\d+\.\d+", requirements(PROJECT["dependencies"])[name])


def test_the_recipe_of_conda_has_the_same_bounds() -> None:
    text = (ROOT / ".ci/conda/recipe.yaml").read_text()
    run = text.partition("  run:")[2].partition("run_constraints:")[0]
    found = {name.removesuffix("-base"): bound for name, bound in re.findall(r"^ *- ([\w-]+) (\S+)$", run, re.MULTILINE)}
    expected = {name.removesuffix("-base"): bound for name, bound in requirements(PROJECT["dependencies"]).items()}
    assert found == expected | {"python": PROJECT["requires-python"]}


def test_type_checkers_are_told_that_the_package_has_types() -> None:
    assert (ROOT / "pm_sysid" / "py.typed").exists()
