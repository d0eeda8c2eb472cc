"""Initial states that are read off a record."""

from __future__ import annotations

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.solve.initial_state import initial_state
from support.pem_cases import OSCILLATOR

T = 0.1 * np.arange(60)


def record(first: int, step: int = 1) -> sid.TimeSeries:
    """A decaying motion, of which samples before the first and between every few are missing."""
    y = np.where((np.arange(60) >= first) & (np.arange(60) % step == first % step), np.exp(-T) * np.cos(6 * T), np.nan)
    return sid.TimeSeries(T, np.zeros(60), y)


@pytest.mark.parametrize(("first", "step"), [(0, 1), (4, 1), (20, 6)])
def test_a_line_through_samples_goes_no_further_than_they_last(first: int, step: int) -> None:
    mean, std = initial_state(OSCILLATOR, record(first, step), None, None)
    assert np.isfinite(mean).all() and np.all(np.array(std) > 0)


def test_a_state_long_before_the_first_measured_sample_is_not_inferred() -> None:
    """Its prior would be as narrow as what is left of a motion that has decayed."""
    gone = record(25)
    with pytest.raises(ValueError, match=r"\['z', 'v'\], and cannot be inferred: the first 25 .* record\[25:\], or give x0"):
        initial_state(OSCILLATOR, gone, None, None)
    with pytest.raises(ValueError, match=r"for the states \['v'\]"):
        initial_state(OSCILLATOR, gone, {"z": 1.0}, None)
    initial_state(OSCILLATOR, gone, {"z": 1.0, "v": 0.0}, None)
    initial_state(OSCILLATOR, gone[25:], None, None)
    initial_state(OSCILLATOR, gone, None, None, hidden="zero")  # a place to begin a search at


def test_fits_that_leave_the_start_to_the_filter_say_so_too() -> None:
    predictor = sid.ExtendedKalman(Q={"v": "estimate"}, R="estimate", substeps=2)
    with pytest.raises(ValueError, match=r"Let the record begin there, record\[25:\]"):
        sid.fit_pem(OSCILLATOR, record(25), {"k": 30.0, "c": 1.0}, predictor=predictor, objective="likelihood")
    found = sid.fit_pem(OSCILLATOR, record(25), {"k": 30.0, "c": 1.0}, starts=1)  # the start is an unknown
    assert found.p["k"] == pytest.approx(37.0, rel=0.05)
