"""find_mode gives a filter the steps it needs at the mode, and climbs again with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view

DECAY = sid.System(lambda t, x, u, p: -p.w * x.level, states=("level",), params=("w",), observe=lambda t, x, dx, u, p: x.level)
T = np.arange(20) * 0.25
RECORD = sid.TimeSeries(T, None, np.exp(-2.0 * T) + 0.01 * np.random.default_rng(0).standard_normal(20))
OPTIONS: dict[str, Any] = {"noise": 0.01, "x0": 1.0, "solver": sid.EK1(order=2, diffusion=1.0)}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as model:
        sid.ODEFilter("y", DECAY, RECORD, {"w": pm.LogNormal("w", np.log(2.0), 0.1)}, substeps=32, **OPTIONS)
    return model


def with_steps(model: pm.Model, number: int, asked: Any) -> None:
    sid.set_substeps(number, model)
    grid = filter_view("y", model).op.grid
    grid.choice = replace(grid.choice, asked=asked)


def find(model: pm.Model) -> Any:
    return sid.find_mode(model, prior_draws=100, starts=4, random_seed=0, progressbar=False)


def test_the_mode_is_that_with_enough_steps(model: pm.Model) -> None:
    with_steps(model, 32, 32)
    exact = find(model)
    assert exact.substeps["substeps_y"] == 32
    with_steps(model, 1, "auto")
    mode = find(model)
    assert mode.substeps["substeps_y_judged"] == "at the mode"
    assert 1 < mode.substeps["substeps_y"] < 32 and mode.substeps["substeps_y_error"] < 0.1
    assert filter_view("y", model).op.substeps == mode.substeps["substeps_y"]
    assert abs(mode.point - exact.point)[0] < 0.05 * np.sqrt(exact.covariance[0, 0])
    assert mode.logp == pytest.approx(exact.logp, abs=0.1)
    assert sum(m.searches for m in mode.modes) == sum(m.searches for m in exact.modes)


def test_a_number_that_goes_with_a_diffusion_is_left_alone(model: pm.Model) -> None:
    """It may be a disturbance, of a size meant for that number of steps."""
    with_steps(model, 1, 1)
    mode = find(model)
    assert mode.substeps["substeps_y"] == 1 and np.isnan(mode.substeps["substeps_y_error"])
