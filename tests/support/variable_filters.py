"""Filters in PyMC models whose every argument is a variable, and records for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

from pm_sysid.likelihood.ode_filter import ODEFilter
from pm_sysid.models import duffing
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.options import Solver
from pm_sysid.solve.simulate import simulate
from pm_sysid.symbolic.system import System

DUFFING = dict(m=1.0, c=0.3, k=4.0, k3=0.5)

HYSTERESIS = dict(m=1.0, c=0.3, k=4.0, alpha=3.0, beta=0.8, gamma=0.8, delta=-0.5)

TWO = dict(k=4.0, k3=0.5, kc=1.0, c=0.2)


def record(system: System, params: dict[str, float], length: int, intersample: Any, *, start: Any, uneven: Any = 0) -> Any:
    """A record the system could have produced."""
    rng = np.random.default_rng(1)
    t = np.cumsum(rng.uniform(0.7, 1.3, length) * 0.1) if uneven else np.arange(length) * 0.1
    empty = TimeSeries(t, np.sin(3 * t) + rng.normal(0.0, 0.3, length), None, intersample=intersample)
    run = simulate(system, empty, params, x0=start, substeps=16)
    y = np.stack([run[o].values for o in system.outputs], axis=1) + rng.normal(0.0, 0.1, (length, len(system.outputs)))
    return empty.replace(y=y[:, 0] if y.shape[1] == 1 else y)


def missing(data: TimeSeries) -> TimeSeries:
    y = data.output_matrix.copy()
    y[2:4, 0] = np.nan
    y[3, -1] = np.nan
    return data.replace(y=y if data.y is None or data.y.ndim == 2 else y[:, 0])


def positive(name: str, value: Any) -> Any:
    return pm.LogNormal(name, np.log(value), 1.0, initval=value, shape=np.shape(value))


def free(name: str, value: Any) -> Any:
    return pm.Normal(name, 0.0, 10.0, initval=value, shape=np.shape(value))


def build(system: System, data: Any, values: dict[str, float], solver: Solver, *, start: Any, std: Any = None) -> Any:
    """Filter with every argument a variable; to be called in a model context."""
    params = {k: positive(k, v) if v > 0 else free(k, v) for k, v in values.items()}
    n_y = len(system.outputs)
    noise = positive("noise", 0.1) if n_y == 1 else positive("noise", np.full(n_y, 0.1))
    return ODEFilter("y", system, data, params, noise=noise, x0=start, x0_std=std, solver=solver, substeps=2)


def at_rest(solver: Solver, forced: bool) -> pm.Model:
    """State, input and residual are exactly zero at first: a step test, or a record that starts before its input."""
    t = np.arange(20) * 0.1
    data = TimeSeries(t, np.where(t > 0.7, float(forced), 0.0), np.zeros(20), intersample="zoh")
    with pm.Model() as model:
        params = {k: positive(k, v) for k, v in DUFFING.items()}
        ODEFilter("y", duffing(), data, params, noise=0.1, x0=0.0, solver=solver, substeps=2)
    return model
