"""What a free run leaves: noise of the sensor that is correlated in time, or pushes on the states."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

import pm_sysid as sid
from pm_sysid.pem.disturbed import gain_by_process_noise

TRUTH = {"c": 0.4, "k": 4.0, "k3": 3.0}
T = 200


def oscillator() -> sid.System:
    return sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k", "k3"),
        observe=lambda t, x, dx, u, p: x.z,
    )


def forced(rng: np.random.Generator, pushes: float) -> sid.TimeSeries:
    """A record without noise of the sensor, under a force and another one that nobody knows."""
    t = 0.1 * np.arange(T)
    waves, phases = np.array([0.6, 1.3, 2.2, 3.5]), rng.uniform(0, 6, 4)
    force = rng.normal(size=4) @ np.sin(waves[:, None] * t + phases[:, None])
    data = sid.TimeSeries(t, force, None, inputs="F", intersample="zoh")
    unknown = data.replace(u=force + pushes * rng.standard_normal(T))
    return data.replace(y=sid.simulate(oscillator(), unknown, TRUTH, x0=0.0, substeps=8)["y"].values)


def fit(data: sid.TimeSeries) -> sid.PEMResult:
    return sid.fit_pem(oscillator(), data, {"c": 0.5, "k": 3.6, "k3": 3.4}, progressbar=False)


@pytest.mark.parametrize("seed", range(3))
def test_pushes_on_the_states_are_no_noise_that_errors_allow_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = forced(rng, pushes=1.0)
    found = fit(data.replace(y=data.y + 0.03 * rng.standard_normal(T)))
    assert "which the standard errors allow for" not in found.message
    assert "The standard errors may be too small" in found.message
    assert gain_by_process_noise(found.target, found.x) > 30


@pytest.mark.parametrize("seed", range(3))
def test_noise_of_a_sensor_that_is_correlated_is_allowed_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = forced(rng, pushes=0.0)
    noise = lfilter([np.sqrt(0.75)], [1.0, -0.5], rng.standard_normal(T + 50))[50:]
    found = fit(data.replace(y=data.y + 0.1 * noise))
    assert "which the standard errors allow for" in found.message
    assert "pushes" not in found.message


def test_pushes_explain_nothing_of_white_noise() -> None:
    rng = np.random.default_rng(0)
    data = forced(rng, pushes=0.0)
    found = fit(data.replace(y=data.y + 0.1 * rng.standard_normal(T)))
    assert 0 <= gain_by_process_noise(found.target, found.x) < 8
