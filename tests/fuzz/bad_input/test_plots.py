"""Figures, given nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from support.bad_input.plots import ENTRIES
from support.junk import FEW, things

pytest.importorskip("matplotlib").use("Agg")
pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("name", ENTRIES)
def test_the_calls_that_are_spoiled_work(name: str) -> None:
    argument, value = next(iter(ENTRIES[name].good.items()))
    assert ENTRIES[name].probe(argument, value) is not None


@pytest.mark.parametrize("name, argument", [(n, a) for n, e in ENTRIES.items() for a in e.good])
@FEW
@given(value=things())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, value: Any) -> None:
    ENTRIES[name].probe(argument, value)
