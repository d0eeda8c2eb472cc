"""Two models of a decay and settings, for short runs of the ABC nested sampler."""

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid
from support.tiny import DECAY

OPTIONS: dict[str, Any] = dict(
    thresholds=sid.Thresholds(epsilon=100.0), execution=sid.Execution(max_simulations=4000), random_seed=4, progressbar=False
)

T = np.linspace(0.0, 1.0, 21)


def models() -> dict[str, pm.Model]:
    """A decay of known rate, with the right start and with one that is too low, over two records."""
    records = [sid.TimeSeries(T, None, 2.0 * np.exp(-1.5 * T)), sid.TimeSeries(T[:11], None, 2.0 * np.exp(-1.5 * T[:11]))]
    found = {}
    for name, start in (("right", 2.0), ("low", 1.7)):
        with pm.Model() as model:
            rate = pm.Uniform("rate", 0.1, 5.0)
            pm.Deterministic("time_constant", 1 / rate)
            sid.ODESimulator("y", DECAY, records, {"rate": rate}, x0=start, substeps=2)
        found[name] = model
    return found


def same(a: xr.DataTree, b: xr.DataTree) -> None:
    """Assert that two results are the same to the last digit, but for the time they took."""
    assert a.attrs["stopped"] == b.attrs["stopped"]
    rounds = [result["populations"].to_dataset().drop_vars("seconds") for result in (a, b)]
    xr.testing.assert_identical(*rounds)
    xr.testing.assert_identical(a["particles"].to_dataset(), b["particles"].to_dataset())
    for name in ("right", "low"):
        assert (name in a) == (name in b)
        if name in a:
            xr.testing.assert_identical(a[name]["posterior"].to_dataset(), b[name]["posterior"].to_dataset())
