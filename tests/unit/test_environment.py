"""Functions that the package compiles round as written, whatever was compiled before."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt

import pm_sysid as sid
from pm_sysid.environment import compiled

ROOT = Path(sid.__file__).parent


def test_a_sum_is_taken_from_the_first_to_the_last() -> None:
    """Fails where LLVM may rearrange: it would keep several partial sums, one for each lane."""
    x = pt.dvector("x")
    values = np.random.default_rng(0).standard_normal(1001) * 10.0 ** np.arange(1001.0).clip(max=15)
    one_by_one = 0.0
    for value in values:
        one_by_one += value
    assert compiled([x], x.sum())(values) == one_by_one
    assert compiled([x, pt.dscalar("not needed")], x)(values, 1.0)[3] == values[3]


def test_the_setting_of_the_user_is_kept() -> None:
    before = pytensor.config.numba__fastmath
    compiled([], pt.constant(1.0))
    assert pytensor.config.numba__fastmath == before


def test_every_function_is_compiled_in_this_way() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "function" and path.name != "environment.py":
                assert getattr(node.value, "id", "") != "pytensor", f"{path}:{node.lineno}: use environment.compiled"
