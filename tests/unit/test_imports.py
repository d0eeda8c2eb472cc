"""The shape of the package: imports go one way, in the order that docs/design.md prints; public names are documented.

The root stands outside this order. It imports a public name when somebody asks for it, by the list in ``__init__.pyi``.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pm_sysid
from support.statements import statements

ROOT = Path(pm_sysid.__file__).parent
DESIGN = ROOT.parent / "docs" / "design.md"
#: Every module but the root, by its name within the package; a package has the name of its folder.
MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
    for p in sorted(ROOT.rglob("*.py"))
    if p != ROOT / "__init__.py"
}


def printed_levels(text: str) -> list[tuple[str, list[str]]]:
    """Rows of the table of levels: the package of each level, and its modules in order."""
    rows = re.findall(r"^\| \d+ \| `(\w+)/?` \| ([^|]*) \|", text, re.M)
    return [(package, re.findall(r"`([\w.]+)`", modules)) for package, modules in rows]


def ordered(levels: list[tuple[str, list[str]]]) -> list[str]:
    """Names of all modules, in the order in which they may be imported.

    A package comes after its modules, since it may hand their names on.
    """
    names = []
    for package, modules in levels:
        inner = [f"{package}.{module}" for module in modules]
        folders = dict.fromkeys(".".join(name.split(".")[:n]) for name in inner for n in range(2, name.count(".") + 1))
        names += [*inner, *folders, package]
    return names


ORDER = ordered(printed_levels(DESIGN.read_text()))
PLACE = {name: i for i, name in enumerate(ORDER)}


def imports(path: Path, *, inside_functions: bool = True) -> Iterator[str]:
    """What a file imports: ``from package import module`` counts as the module, a name as the module that holds it."""
    tree = ast.parse(path.read_text())
    for node in statements(tree) if inside_functions else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full.removeprefix("pm_sysid.") in MODULES else node.module


def own(path: Path) -> set[str]:
    """What a file imports of the package itself; the root has the name ``""``."""
    return {name.removeprefix("pm_sysid").lstrip(".") for name in imports(path) if name.split(".")[0] == "pm_sysid"}


def too_late(name: str, path: Path) -> list[str]:
    """Imports of a module that stand after it in the order, or are the root."""
    return [other for other in own(path) if other == "" or PLACE[other] >= PLACE[name]]


@cache
def own_of_module(name: str) -> set[str]:
    """What a module of the package imports of it."""
    return own(MODULES[name])


def closure(name: str) -> set[str]:
    """All that a module imports, directly or through others."""
    found: set[str] = set()
    todo = [name]
    while todo:
        for other in own_of_module(todo.pop()) - found:
            found.add(other)
            todo.append(other)
    return found


def test_the_printed_list_names_every_module_once() -> None:
    assert len(ORDER) == len(PLACE)
    assert set(MODULES) == set(ORDER)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_stands_before_it(name: str) -> None:
    assert not too_late(name, MODULES[name])


def test_the_rule_sees_imports_in_functions_and_of_the_root(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    for line in ("from pm_sysid.steps import ek", "import pm_sysid.steps.ek", "from pm_sysid.steps.ek import FilterSteps"):
        file.write_text(f"def f():\n    {line}\n")
        assert too_late("recurrence.op", file) == ["steps.ek"] and not too_late("solve.simulate", file)
    for line in ("import pm_sysid", "from pm_sysid import plot_fit", "import pm_sysid as sid"):
        file.write_text(f"def f():\n    {line}\n")
        assert too_late("reports.report", file) == [""]


def test_no_module_is_imported_by_a_name_made_up_at_run_time() -> None:
    for name, path in MODULES.items():
        assert not re.search(r"(import_module|__import__)\([^)]*pm_sysid", path.read_text()), name


def test_few_modules_stand_at_the_top() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 10


def test_only_reports_import_plots() -> None:
    importers = {n.split(".")[0] for n, path in MODULES.items() if any(i.split(".")[0] == "plots" for i in own(path))}
    assert importers <= {"plots", "reports"}


@pytest.mark.parametrize("library", ["pymc", "pytensor", "numba"])
def test_plots_need_no_sampler(library: str) -> None:
    for name in MODULES:
        if name.split(".")[0] == "plots":
            for other in {name, *closure(name)}:
                assert library not in {i.split(".")[0] for i in imports(MODULES[other])}, f"{name} through {other}"


# -- what the root imports, and when ------------------------------------------------------------------------------------

#: Public names by the modules that define them, as type checkers see them.
STUB = [node for node in ast.parse((ROOT / "__init__.pyi").read_text()).body if isinstance(node, ast.ImportFrom)]
LISTED = {alias.name: node.module for node in STUB for alias in node.names}
#: Libraries that take long to import, and that ``import pymc`` does not import. JAX is jaxlib: ArviZ puts a module called jax
#: there that imports nothing before it is used.
HEAVY = """
    arviz arviz_base arviz_plots arviz_stats filelock jaxlib jinja2 llvmlite matplotlib netCDF4 numba scipy.fft scipy.integrate
    scipy.interpolate scipy.io scipy.linalg scipy.ndimage scipy.optimize scipy.signal scipy.sparse scipy.spatial scipy.special
    scipy.stats
""".split()
#: What a script does before it compiles anything.
FIRST_NAMES = "System TimeSeries TextFormat EK0 EK1 ODEFilter ODESimulator Target find_mode simulate set_data models datasets"


#: What a new process does, step by step; each takes seconds, so that one process does all.
STEPS = {
    "pymc": "import pymc",
    "root": "import pm_sysid",
    "record": "pm_sysid.TimeSeries",
    "model": f"for name in '{FIRST_NAMES}'.split():\n    getattr(pm_sysid, name)",
    "package": "import pm_sysid.reports; pm_sysid.reports",
    "all names": "from pm_sysid import *; assert all(globals()[name] is getattr(pm_sysid, name) for name in pm_sysid.__all__)",
}


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """Modules that a new process has imported after each step."""
    code = "\n".join(["import sys", *(f"{statement}\nprint(*sys.modules)" for statement in STEPS.values())])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return dict(zip(STEPS, (set(line.split()) for line in done.stdout.splitlines()), strict=True))


def test_the_root_imports_the_environment_alone_and_a_model_no_heavy_library(
    imported: dict[str, set[str]],
) -> None:
    assert own(ROOT / "__init__.py") == {"environment"}
    assert imported["root"] & {f"pm_sysid.{name}" for name in MODULES} == {"pm_sysid.environment"}
    assert "pm_sysid.records.timeseries" in imported["record"]
    assert "pm_sysid.likelihood.ode_filter" not in imported["record"]
    assert "pm_sysid.likelihood.ode_filter" in imported["model"] and not imported["model"] & set(HEAVY)


def test_importing_the_package_imports_little_that_pymc_does_not(imported: dict[str, set[str]]) -> None:
    assert not imported["pymc"] & set(HEAVY), "PyMC imports this now: it is free, and no longer heavy"
    more = imported["root"] - imported["pymc"]
    assert {name.split(".")[0] for name in more} <= {"pm_sysid", *sys.stdlib_module_names}


def test_public_names_are_those_that_type_checkers_see_and_come_from_the_modules_that_define_them() -> None:
    assert sorted(pm_sysid.__all__) == sorted(LISTED)
    for node in STUB:  # the form that type checkers take as public, and that the root reads
        assert [(alias.name, alias.asname) for alias in node.names] == [(node.names[0].name, node.names[0].name)]
    for name, home in LISTED.items():
        if home == "pm_sysid":
            assert name in MODULES
        else:
            tree = ast.parse(MODULES[home.removeprefix("pm_sysid.")].read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}, (name, home)
            assert getattr(pm_sysid, name) is getattr(sys.modules[home], name)


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'pm_sysid' has no attribute 'ODEFilters'"):
        pm_sysid.ODEFilters  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'ODEFilters' from 'pm_sysid'"):
        from pm_sysid import ODEFilters  # noqa: F401


def test_a_package_can_be_imported_by_itself_and_all_names_at_once(imported: dict[str, set[str]]) -> None:
    assert "pm_sysid.reports" in imported["package"] and "pm_sysid.reports.report" not in imported["package"]
    assert "pm_sysid.reports.report" in imported["all names"]


def test_no_module_is_called_utils() -> None:
    parts = {part for name in MODULES for part in name.split(".")}
    assert not parts & {"utils", "util", "helpers", "misc", "common"}


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_their_definitions_are_documented(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text())
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
