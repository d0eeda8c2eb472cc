"""Unknowns of which a record says nothing: those that are zero are not among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid

DUFFING = sid.models.duffing()


@pytest.mark.parametrize("zero", ["", "k3", "c"])
def test_records_without_noise_that_begin_at_rest_are_fitted_exactly(zero: str) -> None:
    """A start that has ended within rounding of zero was given up, and held at what the first samples say, 4 % off."""
    truth: dict[str, float] = {"m": 1.0, "c": 0.5, "k": 20.0, "k3": 5.0}
    truth |= {zero: 0.0} if zero else {}
    guess: dict[str, Any] = {"m": 1.3, "c": 0.7, "k": 15.0, "k3": 8.0}
    for seed in range(3):
        rng, t = np.random.default_rng(seed), 0.05 * np.arange(120)
        force = sid.TimeSeries(t, np.convolve(10.0 * rng.normal(size=120), np.ones(3) / 3, "same"), None, inputs="F")
        y = sid.simulate(DUFFING, force, truth, x0=0.0, substeps=16)["y"].to_numpy()
        found = sid.fit_pem(DUFFING, force.replace(y=y), guess, progressbar=False)
        assert found.success and "says nothing" not in found.message and "cannot tell" not in found.message
        for name, value in truth.items():
            assert found.p[name] == pytest.approx(value, rel=1e-4, abs=1e-4)
