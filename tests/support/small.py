"""A small Duffing problem, its record and its model, for the tests of what PyMC does with a filter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid

T, STEP, NOISE = 200, 0.04, 0.05
TIMES = np.arange(T) * STEP
TRUTH = dict(m=1.0, c=0.3, k=4.0, k3=0.5)
DUFFING = sid.models.duffing()
SOLVER = sid.EK1(order=3)
X0 = dict(z=0.4, v=0.0)


def empty(length: int = T, seed: int = 0, intersample: Any = "bl") -> sid.TimeSeries:
    rng = np.random.default_rng(seed)
    t = np.arange(length) * STEP
    u = sum(np.sin(w * t + rng.uniform(0, 6)) for w in (0.7, 1.9, 3.1))
    return sid.TimeSeries(t, u, None, intersample=intersample)


def measured(length: int = T, seed: int = 0) -> sid.TimeSeries:
    data = empty(length, seed)
    y = sid.simulate(DUFFING, data, TRUTH, x0=X0)["y"].values
    return data.replace(y=y + NOISE * np.random.default_rng(seed + 100).standard_normal(length))


RECORD = measured()


def put(data: Any, name: str = "y", *, x0: Any = X0, **options: Any) -> Any:
    """Priors and the filter, in the model context."""
    c, k = pm.LogNormal("c", np.log(0.3), 0.3), pm.LogNormal("k", np.log(4.0), 0.1)
    noise = pm.LogNormal("noise", np.log(NOISE), 0.3)
    options = dict(solver=SOLVER, substeps=1, noise=noise) | options
    return sid.ODEFilter(name, DUFFING, data, dict(m=1.0, c=c, k=k, k3=0.5), x0=x0, **options)


def model() -> pm.Model:
    """The filter on the whole record."""
    with pm.Model() as built:
        put(RECORD)
    return built


def posterior(**values: Any) -> xr.DataTree:
    arrays = {k: np.atleast_2d(v) for k, v in (dict(c=0.3, k=4.0, noise=NOISE) | values).items()}
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    return xr.DataTree.from_dict(
        {"posterior": xr.Dataset({k: (("chain", "draw"), np.broadcast_to(v, shape)) for k, v in arrays.items()})}
    )


def at(c: float = 0.3, k: float = 4.0, noise: float = NOISE) -> dict[str, np.ndarray]:
    return {"c_log__": np.log(c), "k_log__": np.log(k), "noise_log__": np.log(noise)}


def linear_oscillator(observe: Any) -> sid.System:
    """A linear oscillator of unit mass, pushed by a force, with sensors of its own."""
    return sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k"),
        observe=observe,
    )


def linear_model(noise=0.05):
    rng = np.random.default_rng(3)
    t = np.arange(120) / 20.0
    record = sid.TimeSeries(t, np.sin(2 * t) + 0.3 * np.sin(7 * t), None)
    system = linear_oscillator(lambda t, x, dx, u, p: x.z)
    y = sid.simulate(system, record, {"c": 0.5, "k": 9.0}, x0=0.0)["y"].values
    y = y + noise * rng.standard_normal(t.size)
    y[[0, 40, 41, -1]] = np.nan
    with pm.Model() as model:
        c, k = pm.LogNormal("c", 0, 1), pm.LogNormal("k", 2, 1)
        s = pm.HalfNormal("s", 0.1)
        sid.ODEFilter("y", system, record.replace(y=y), {"c": c, "k": k}, noise=s, solver=sid.EK1(order=3), substeps=4)
    return model
