"""Functions that the package compiles round as written, whatever was compiled before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt

import pm_sysid as sid
from pm_sysid.recurrence.functions import compiled

ROOT = Path(sid.__file__).parent


def test_a_sum_is_taken_from_the_first_to_the_last() -> None:
    """Fails where LLVM may rearrange: it would keep several partial sums, one for each lane."""
    x = pt.dvector("x")
    values = np.random.default_rng(0).standard_normal(1001) * 10.0 ** np.arange(1001.0).clip(max=15)
    one_by_one = 0.0
    for value in values:
        one_by_one += value
    assert compiled([x], x.sum(), often=True)(values) == one_by_one
    assert compiled([x, pt.dscalar("not needed")], x)(values, 1.0)[3] == values[3]


def test_the_setting_of_the_user_is_kept() -> None:
    before = pytensor.config.numba__fastmath
    compiled([], pt.constant(1.0), often=True)
    assert pytensor.config.numba__fastmath == before


def test_what_pytensor_defines_for_numba_is_the_same_whoever_compiles_first() -> None:
    code = """
import pytensor, pytensor.tensor as pt
from pm_sysid.recurrence.functions import compiled
compiled([], pt.zeros(3) + 1.0)
from numba.core.dispatcher import Dispatcher
from pytensor.link.numba.dispatch.linalg import products
flags = [f.targetoptions["fastmath"] for f in vars(products).values() if isinstance(f, Dispatcher)]
assert flags and all(flags) and pytensor.config.numba__fastmath, flags
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_every_function_is_compiled_in_this_way() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "function" and path.name != "functions.py":
                assert getattr(node.value, "id", "") != "pytensor", f"{path}:{node.lineno}: use recurrence.functions.compiled"
