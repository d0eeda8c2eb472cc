"""Systems, solvers, likelihoods and simulators, given nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from support.bad_input.systems import ENTRIES
from support.junk import FEW, things


def test_the_calls_that_are_spoiled_work() -> None:
    for name, entry in ENTRIES.items():
        result = entry.call(**entry.good)
        assert entry.check(result), name


@pytest.mark.parametrize("name, argument", [(n, a) for n, e in ENTRIES.items() for a in e.good])
@FEW
@given(value=things())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, value: Any) -> None:
    ENTRIES[name].probe(argument, value)
