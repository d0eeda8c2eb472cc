"""One tiny model and what comes of it, made when it is first asked for."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid

T = np.linspace(0.0, 1.9, 20)
Y = np.exp(-T) + 0.05 * np.cos(40 * T)
RECORD = sid.TimeSeries(T, None, Y)
DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
)
DRAWS = np.random.default_rng(0).normal(1.0, 0.03, (2, 30))
POSTERIOR = xr.Dataset({"rate": (("chain", "draw"), DRAWS), "gain": (("chain", "draw"), np.sin(9 * DRAWS))})
IDATA = xr.DataTree.from_dict({"posterior": POSTERIOR})


@cache
def folder() -> Path:
    """A folder that is gone when Python ends."""
    name = tempfile.mkdtemp(prefix="bad_input_")
    atexit.register(shutil.rmtree, name, ignore_errors=True)
    return Path(name)


@cache
def model() -> pm.Model:
    """A filter: decay at an unknown rate."""
    with pm.Model() as built:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        sid.ODEFilter(
            "y", DECAY, RECORD, {"rate": rate}, noise=0.05, x0=1.0, solver=sid.EK0(order=1, diffusion=1.0), substeps=1
        )
    return built


@cache
def uncertain() -> pm.Model:
    """The filter with an uncertain initial state."""
    with pm.Model() as built:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        solver = sid.EK0(order=1, diffusion=1.0)
        sid.ODEFilter("y", DECAY, RECORD, {"rate": rate}, noise=0.05, x0=1.0, x0_std=0.1, solver=solver, substeps=1)
    return built


@cache
def driven() -> pm.Model:
    """A filter with an input: a decay towards it."""
    system = sid.System(
        lambda t, x, u, p: p.rate * (u.F - x.level),
        states=("level",),
        inputs=("F",),
        params=("rate",),
        observe=lambda t, x, dx, u, p: x.level,
    )
    with pm.Model() as built:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        record = sid.TimeSeries(T, 0.1 * np.cos(9 * T), Y, inputs="F", outputs="level")
        sid.ODEFilter("y", system, record, {"rate": rate}, noise=0.1, x0=1.0, substeps=1)
    return built


@cache
def pushed() -> pm.Model:
    """A filter that linearises about a process: a cubic decay that a force pushes."""
    system = sid.System(
        lambda t, x, u, p: u.d - p.rate * x.level**3,
        states=("level",),
        inputs=("d",),
        params=("rate",),
        observe=lambda t, x, dx, u, p: x.level,
    )
    with pm.Model() as built:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        force = {"d": sid.OU(scale=0.3, length=1.0)}
        sid.ODEFilter("y", system, RECORD, {"rate": rate}, noise=0.1, x0=1.0, latent=force, substeps=2)
    return built


@cache
def specimens() -> pm.Model:
    """The filter on two records, each with a rate of its own."""
    with pm.Model() as built:
        rate = pm.LogNormal("rate", 0.0, 0.5, shape=2)
        solver = sid.EK0(order=1, diffusion=1.0)
        sid.ODEFilter("y", DECAY, [RECORD, RECORD], {"rate": rate}, noise=0.05, x0=1.0, solver=solver, substeps=4)
    return built


@cache
def of_specimens() -> xr.DataTree:
    """Draws of its two rates: few, for each is integrated over as many values as somebody makes up."""
    rates = 1 + 0.05 * np.random.default_rng(0).standard_normal((2, 2, 2))
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"rate": (("chain", "draw", "specimen"), rates)})})


@cache
def plain() -> pm.Model:
    """No filter: twelve numbers around an unknown mean."""
    with pm.Model() as built:
        rate = pm.Normal("rate")
        pm.Normal("y", rate, 0.3, observed=pm.Data("y_data", 1 + 0.3 * np.cos(np.arange(12.0))))
    return built


@cache
def simulators() -> dict[str, pm.Model]:
    """A simulator for each of two starts."""

    def one(start: float) -> pm.Model:
        with pm.Model() as built:
            params = {"rate": pm.Uniform("rate", 0.0, 5.0)}
            sid.ODESimulator("y", DECAY, RECORD, params, x0=start, substeps=1)
        return built

    return {"full": one(1.0), "half": one(0.5)}


@cache
def checkpoint() -> Path:
    """Folder of a sequential run."""
    sequential()
    return folder() / "run"


@cache
def sequential() -> xr.DataTree:
    """A sequential run with stages."""
    settings: dict[str, Any] = {"chains": 2, "cores": 1, "progressbar": False, "random_seed": 1, "store_stages": True}
    return sid.sample_ibis(20, model=plain(), moves=sid.Moves(steps=2), checkpoint=folder() / "run", **settings)


@cache
def annealed() -> xr.DataTree:
    """A chain of Data Annealing."""
    quiet = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1, "cores": 1}
    with plain():
        step = sid.DataAnnealing(widths=0.3)
        return pm.sample(20, tune=10, step=step, chains=2, discard_tuned_samples=False, **quiet)


@cache
def nested() -> xr.DataTree:
    """A run of the ABC nested sampler."""
    return sid.sample_abc_ns(simulators(), 20, execution=sid.Execution(max_simulations=300), random_seed=1, progressbar=False)


@cache
def fit() -> sid.PEMResult:
    """A fit by least squares."""
    return sid.fit_pem(DECAY, RECORD, {"rate": 0.8}, predictor=sid.ExtendedKalman(substeps=1), x0=1.0)


@cache
def states() -> xr.Dataset:
    """States of three draws."""
    return sid.sample_states(IDATA, model=model(), draws=3, random_seed=1)


@cache
def calibration() -> xr.DataTree:
    """Ranks that are uniform by construction."""
    u = (np.random.default_rng(1).permutation(40)[:, None] + 0.5) / 40
    columns = {name: (("fit", "parameter"), u) for name in ("pit", "z", "contraction", "r_hat")}
    fits = xr.Dataset({**columns, "failed": ("fit", np.zeros(40, bool))}, {"parameter": ["rate"]})
    return xr.DataTree.from_dict({"calibration": fits})
