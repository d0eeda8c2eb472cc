"""The shape of the package: imports go one way, modules stay small, public names are documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pm_sysid

ROOT = Path(pm_sysid.__file__).parent
MODULES = {".".join(p.relative_to(ROOT.parent).with_suffix("").parts): p for p in sorted(ROOT.rglob("*.py"))}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}

#: What must not be imported, directly or through others, by what stands below it: "lower < higher".
LAYERS = [
    ("doors", "channels"),
    ("channels", "timeseries"),
    ("files", "readers"),
    ("readers", "timeseries"),
    ("timeseries", "preparing"),
    ("scalars", "lowering"),
    ("lowering", "system"),
    ("scalars", "recurrence"),
    ("recurrence", "batch"),
    ("batch", "simulation"),
    ("batch", "target"),
    ("likelihood", "target"),
    ("recurrence", "steps"),
    ("system", "steps"),
    ("timeseries", "steps"),
    ("steps", "solver"),
    ("solver", "problem"),
    ("problem", "substeps"),
    ("problem", "likelihood"),
    ("initial", "likelihood"),
    ("substeps", "likelihood"),
    ("likelihood", "innovations"),
    ("likelihood", "states"),
    ("target", "samplers"),
    ("steps", "pem"),
    ("problem", "pem"),
    ("simulation", "pem"),
    ("distances", "free_runs"),
    ("simulation", "free_runs"),
    ("free_runs", "simulator"),
    ("likelihood", "simulator"),
    ("simulator", "samplers"),
    ("stages", "samplers"),
    ("stages", "compare"),
    ("criteria", "compare"),
    ("pages", "compare"),
    ("compare", "reports"),
    ("scalars", "equations"),
    ("equations", "system"),
    ("samplers", "refits"),
    ("pem", "refits"),
    ("refits", "calibration"),
    ("system", "models"),
    ("timeseries", "datasets"),
]


def imports(path: Path, *, everywhere: bool = True) -> Iterator[str]:
    """Modules of the package that a file imports; ``from package import module`` counts as the module."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} uses a relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, part: str) -> bool:
    return name == f"pm_sysid.{part}" or name.startswith(f"pm_sysid.{part}.")


def known(path: Path) -> set[str]:
    return {name for name in imports(path) if name in MODULES and name != "pm_sysid"}


GRAPH = {name: {i for i in imports(path, everywhere=False) if i in MODULES} - {"pm_sysid"} for name, path in MODULES.items()}


def closure(name: str) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        for other in GRAPH[todo.pop()] - found:
            found.add(other)
            todo.append(other)
    return found


def test_the_parser_sees_the_package() -> None:
    assert "pm_sysid.steps.ek" in MODULES and "pm_sysid.recurrence" in GRAPH["pm_sysid.steps.ek"]
    assert "pm_sysid.scalars" in closure("pm_sysid.likelihood")


@pytest.mark.parametrize("lower, higher", LAYERS, ids=[f"{a} < {b}" for a, b in LAYERS])
def test_lower_layers_do_not_import_higher_ones(lower: str, higher: str) -> None:
    assert any(within(name, lower) for name in MODULES) and any(within(name, higher) for name in MODULES)
    for name in MODULES:
        if within(name, lower):
            assert not [other for other in closure(name) if within(other, higher)], name


def test_no_module_imports_itself_through_others() -> None:
    circular = [name for name in MODULES if name != "pm_sysid" and name in closure(name)]
    assert not circular


def test_backends_import_recurrence_and_no_step() -> None:
    allowed = ("backends", "recurrence", "batch", "scalars")
    for name in MODULES:
        if within(name, "backends"):
            assert all(any(within(other, part) for part in allowed) for other in closure(name)), name


def test_imports_inside_functions_respect_the_layers_too() -> None:
    """A recurrence asks its backend to run; nothing else reaches up from inside a function."""
    for name, path in MODULES.items():
        late = known(path) - GRAPH[name]
        if name == "pm_sysid.recurrence":
            late -= {"pm_sysid.backends.numba"}
        assert not [other for other in late if name in closure(other)], name


def test_only_the_top_imports_plots() -> None:
    importers = [n for n, path in MODULES.items() if any(within(i, "plots") for i in imports(path))]
    assert [n for n in importers if not within(n, "plots")] == ["pm_sysid"]


@pytest.mark.parametrize("library", ["pymc", "pytensor", "numba"])
def test_plots_need_no_sampler(library: str) -> None:
    for name, path in MODULES.items():
        if within(name, "plots"):
            assert library not in {i.split(".")[0] for i in imports(path)}, name
            for other in closure(name):
                assert library not in {i.split(".")[0] for i in imports(MODULES[other])}, f"{name} through {other}"


def test_importing_the_package_imports_no_matplotlib() -> None:
    code = "import sys, pm_sysid; print('matplotlib.pyplot' in sys.modules, 'pandas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split()[0] == "False"


def test_importing_the_package_imports_no_jax() -> None:
    # ArviZ puts a module called jax there that imports nothing before it is used.
    code = "import sys, pymc, pm_sysid; print('jaxlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split()[0] == "False"


@pytest.mark.parametrize("name", MODULES)
def test_modules_stay_small(name: str) -> None:
    assert len(MODULES[name].read_text().splitlines()) <= 400


def test_no_module_is_called_utils() -> None:
    parts = {part for name in MODULES for part in name.split(".")}
    assert not parts & {"utils", "util", "helpers", "misc", "common"}


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_their_public_definitions_are_documented(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
    if tree.body:
        assert ast.get_docstring(tree), name
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{name}.{node.name}"


def test_public_names_exist_are_sorted_and_have_their_own_docstring() -> None:
    assert pm_sysid.__all__ == sorted(pm_sysid.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    for name in pm_sysid.__all__:
        thing = getattr(pm_sysid, name)
        doc = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
        assert doc and len(doc.strip()) > 10, name


def test_public_functions_have_examples_or_say_what_they_return() -> None:
    for name in pm_sysid.__all__:
        thing = getattr(pm_sysid, name)
        if callable(thing) and not isinstance(thing, type):
            assert any(word in thing.__doc__ for word in ("Returns", ">>>", "Parameters")), name
