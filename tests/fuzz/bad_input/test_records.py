"""Records, what is done to them, and numbers about them, given nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from support.bad_input.records import ENTRIES
from support.junk import SETTINGS, things

CASES = [(name, argument) for name, entry in ENTRIES.items() for argument in entry.good]


@pytest.mark.parametrize("name, argument", CASES)
@SETTINGS
@given(value=things())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, value: Any) -> None:
    ENTRIES[name].probe(argument, value)


@pytest.mark.parametrize("name, argument", CASES)
def test_the_call_that_is_spoiled_works(name: str, argument: str) -> None:
    assert ENTRIES[name].probe(argument, ENTRIES[name].good[argument]) is not None
