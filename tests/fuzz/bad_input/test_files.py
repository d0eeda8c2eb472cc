"""Files, benchmark data and ready systems, given nonsense."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given

import pm_sysid as sid
from support.bad_input.files import ENTRIES, benchmarks
from support.junk import FEW, things


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder but the one given, and no network."""
    monkeypatch.setenv("PM_SYSID_DATA", str(benchmarks()))


@pytest.mark.parametrize("name", ENTRIES)
def test_the_calls_that_are_spoiled_work(name: str) -> None:
    argument, value = next(iter(ENTRIES[name].good.items()))
    assert ENTRIES[name].probe(argument, value) is not None


@pytest.mark.parametrize("name, argument", [(n, a) for n, e in ENTRIES.items() for a in e.good])
@FEW
@given(value=things())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        ENTRIES[name].probe(argument, value)
