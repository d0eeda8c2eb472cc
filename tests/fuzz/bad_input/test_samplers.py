"""Samplers and what starts them, given nonsense for their settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.bad_input.samplers import ENTRIES, likelihood, values
from support.junk import FEW

pytestmark = pytest.mark.usefixtures("interpreted")

SOUND = [n for n in ENTRIES if n != "extend"]  # which needs a record that is longer


@pytest.mark.parametrize("name", SOUND)
def test_the_calls_that_are_spoiled_work(name: str) -> None:
    argument, value = next(iter(ENTRIES[name].good.items()))
    if name == "Target.log_likelihood":
        assert np.isfinite(likelihood(value, None, [0, 3, 12])).all()
    else:
        assert ENTRIES[name].probe(argument, value) is not None


@pytest.mark.parametrize("name, argument", [(n, a) for n, e in ENTRIES.items() for a in e.good])
@FEW
@given(data=st.data())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, data: st.DataObject) -> None:
    ENTRIES[name].probe(argument, data.draw(values(argument)))
