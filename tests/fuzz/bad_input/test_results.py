"""What is asked of a posterior, given nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from support.bad_input.results import ENTRIES
from support.junk import FEW, things

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("name", ENTRIES)
def test_the_calls_that_are_spoiled_work(name: str) -> None:
    argument, value = next(iter(ENTRIES[name].good.items()))
    assert ENTRIES[name].probe(argument, value) is not None


CASES = [(n, a) for n, e in ENTRIES.items() for a in e.good]


@pytest.mark.parametrize("name, argument", [c for c in CASES if c[0] != "report"])
@FEW
@given(value=things())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, value: Any) -> None:
    ENTRIES[name].probe(argument, value)


@pytest.mark.parametrize("argument", [c[1] for c in CASES if c[0] == "report"])
@settings(FEW, max_examples=2)
@given(value=things())
def test_nonsense_for_a_report_which_takes_longer(argument: str, value: Any) -> None:
    ENTRIES["report"].probe(argument, value)
