"""Models that one threshold compares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from support.tiny import DECAY, RECORD


def decay(records: Any = RECORD, **options: Any) -> pm.Model:
    with pm.Model() as model:
        sid.ODESimulator("y", DECAY, records, {"rate": pm.LogNormal("rate", 0.0, 0.5)}, x0=1.0, substeps=1, **options)
    return model


def both(*models: pm.Model, **options: Any) -> Any:
    named = {f"model_{i}": model for i, model in enumerate(models)}
    return sid.sample_abc_ns(named, 20, random_seed=0, progressbar=False, **options)


def test_distances_of_other_kinds_or_parts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'model_0' and 'model_1' have other distances, nmse of 20 values and nrmse of 20"):
        both(decay(), decay(distance="nrmse"))
    halves = [RECORD[:10], RECORD[10:]]
    with pytest.raises(ValueError, match="nmse of 20 values and nmse of 10, 10 values, and are compared below one threshold"):
        both(decay(), decay(halves))
    own = {"distance": lambda y, simulated: float(np.abs(y - simulated).max())}
    budget = sid.Execution(max_simulations=300)
    wide = sid.Thresholds(epsilon=1e3)
    assert "stopped" in both(decay(**own), decay(**own), execution=budget, thresholds=wide).attrs


def test_a_distance_that_no_simulator_uses_is_refused() -> None:
    with pytest.raises(ValueError, match="would not be used: every simulator is an ODESimulator and has its own"):
        both(decay(), distance=lambda y, simulated: 0.0)
