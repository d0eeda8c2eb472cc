"""Systems, solvers, likelihoods and simulators, given nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

import pm_sysid as sid
from support.junk import Entry, finite, quiet

#: One sample: then nothing has to be compiled to judge a step size.
ONE = sid.TimeSeries([0.0], [1.0], [0.2], intersample="zoh")
SHORT = sid.TimeSeries(np.arange(5) / 10, np.sin(np.arange(5.0)), np.cos(np.arange(5.0)), intersample="zoh")
DUFFING = sid.models.duffing()
PARAMS = {"m": 1.0, "c": 0.3, "k": 4.0, "k3": 0.5}
START = {"z": 0.1, "v": 0.0}


DECAY: dict[str, Any] = {
    "dynamics": lambda t, x, u, p: -p.rate * x.level + u.flow,
    "states": ("level",),
    "inputs": ("flow",),
    "params": ("rate",),
    "observe": lambda t, x, dx, u, p: x.level,
    "chains": True,
    "relations": lambda t, x, u, p: x.level - p.rate,
}


def decay(dynamics: Any, **arguments: Any) -> sid.System:
    return sid.System(dynamics, **arguments)


def likelihood(name: Any = "y", system: Any = DUFFING, data: Any = ONE, params: Any = PARAMS, **options: Any) -> Any:
    with pm.Model() as model:
        sid.ODEFilter(name, system, data, params, **options)
    return model


def simulator(name: Any = "y", system: Any = DUFFING, data: Any = ONE, params: Any = PARAMS, **options: Any) -> Any:
    with pm.Model() as model:
        sid.ODESimulator(name, system, data, params, **options)
    return model


def solved_by(solver: Any) -> Any:
    """A likelihood with a solver: its numbers are checked when it is used."""

    def call(**settings: Any) -> Any:
        return likelihood(noise=0.1, x0=START, substeps=1, solver=solver(**settings))

    return call


def printed(settings: Any) -> bool:
    """Settings have a text; that the variances of a predictor are positive and finite is checked by `fit_pem`."""
    return len(repr(settings)) > 0


def exchange(new_data: Any, model: Any = None) -> Any:
    return sid.set_data(new_data, model)


MODEL = likelihood(noise=0.1, x0=START, substeps=1, solver=sid.EK0(order=2, diffusion=1.0))


def prior(guess: Any, sd: Any, prefix: Any) -> Any:
    with pm.Model():
        return sid.models.priors(guess, sd, prefix=prefix)


M = sid.models


def learned_prior(**arguments: Any) -> str:
    with pm.Model() as model:
        sid.Spline([-1.0, 0.0, 1.0]).prior(**arguments)
    return str(model.basic_RVs)


def library_prior(**arguments: Any) -> str:
    with pm.Model() as model:
        sid.Library({"z": lambda z: z, "z^3": lambda z: z**3}).prior(**arguments)
    return str(model.basic_RVs)


ENTRIES: dict[str, Entry] = {
    "System": Entry(
        decay,
        DECAY,
        lambda s: len(repr(s)) > 0,
        (ValueError, TypeError, AttributeError),
        {
            "states": ("dynamics", "observe", "relations", "x"),
            "inputs": ("dynamics", "u"),
            "params": ("dynamics", "relations", "p"),
        },
    ),
    "EK0": Entry(solved_by(sid.EK0), {"order": 2, "diffusion": "mle", "covariance": "auto"}),
    "EK1": Entry(solved_by(sid.EK1), {"order": 2, "diffusion": 1.0, "covariance": "auto"}),
    "ExtendedKalman": Entry(sid.ExtendedKalman, {"Q": 0.0, "R": 1.0, "substeps": 2, "method": "rk4"}, printed),
    "UnscentedKalman": Entry(
        sid.UnscentedKalman,
        {"Q": 0.1, "R": 1.0, "substeps": 2, "method": "rk4", "alpha": 1.0, "beta": 0.0, "kappa": 0.0},
        printed,
    ),
    "ProbabilisticKalman": Entry(sid.ProbabilisticKalman, {"solver": sid.EK1(order=2), "R": 1.0, "substeps": 2}, printed),
    "ODEFilter": Entry(
        quiet(likelihood),
        {
            "name": "y",
            "system": DUFFING,
            "data": ONE,
            "params": PARAMS,
            "noise": 0.1,
            "x0": START,
            "x0_std": None,
            "solver": sid.EK1(order=2),
            "substeps": 1,
            "latent": None,
            "varying": None,
            "coloured": None,
            "limits": None,
            "likelihood": "filter",
        },
    ),
    "Matern": Entry(sid.Matern, {"nu": 1.5, "scale": 1.0, "length": 0.5}, printed),
    "OU": Entry(sid.OU, {"scale": 1.0, "length": 0.5, "rate": None}, printed),
    "StudentT": Entry(sid.StudentT, {"nu": 4.0, "scale": 0.1}, printed),
    "Correlated": Entry(sid.Correlated, {"cov": [[0.04, 0.01], [0.01, 0.09]], "chol": None}, printed),
    "IntegratedWiener": Entry(sid.IntegratedWiener, {"order": 1, "scale": 1.0, "start": 0.0}, printed),
    "RandomWalk": Entry(sid.RandomWalk, {"scale": 1.0}, printed),
    "Periodic": Entry(sid.Periodic, {"scale": 1.0, "period": 2.0, "length": 1.0, "harmonics": 2}, printed),
    "Spline": Entry(sid.Spline, {"knots": [-1.0, 0.0, 0.5, 1.0]}, printed),
    "Spline, law": Entry(sid.Spline([-1.0, 0.0, 1.0]), {"x": np.linspace(-1, 1, 5), "w": np.arange(3.0)}),
    "HilbertBasis": Entry(sid.HilbertBasis, {"lower": -1.0, "upper": 1.0, "size": 5, "boundary": 1.5}, printed),
    "HilbertBasis, law": Entry(sid.HilbertBasis(-1.0, 1.0, 3), {"x": np.linspace(-1, 1, 5), "w": np.arange(3.0)}),
    "Library": Entry(sid.Library, {"terms": {"z": lambda z: z, "z^3": lambda z: z**3}}, printed),
    "prior of a law": Entry(learned_prior, {"name": "w", "cov": pm.gp.cov.Matern52(1, ls=0.5)}),
    "prior of a library": Entry(
        library_prior, {"name": "w", "sizes": [1.0, 2.0], "terms": 1.0, "negligible": 0.1, "slab": 4.0}
    ),
    "ODESimulator": Entry(
        quiet(simulator),
        {
            "name": "y",
            "system": DUFFING,
            "data": SHORT,
            "params": PARAMS,
            "noise": None,
            "x0": START,
            "substeps": 1,
            "method": "auto",
            "distance": "nmse",
            "epsilon": 1.0,
        },
    ),
    "set_substeps": Entry(sid.set_substeps, {"substeps": {"y": 2}, "model": MODEL}, names={"model": ("ODEFilter",)}),
    "settle_substeps": Entry(
        quiet(sid.settle_substeps),
        {"at": {}, "model": MODEL, "points": 2, "where": "at the mode"},
        names={"at": ("idata", "posterior"), "model": ("ODEFilter",)},
    ),
    "substeps_attrs": Entry(sid.substeps_attrs, {"model": MODEL}, lambda r: isinstance(r, dict)),
    "set_data": Entry(exchange, {"new_data": {"y": ONE}, "model": MODEL}, names={"new_data": ("data", "ODEFilter")}),
    "simulate": Entry(
        sid.simulate,
        {
            "system": DUFFING,
            "data": ONE,
            "params": PARAMS,
            "x0": START,
            "substeps": 1,
            "method": "auto",
            "distance": None,
            "latent": None,
            "varying": None,
            "random_seed": 0,
        },
        finite,
    ),
    "duffing": Entry(M.duffing, {"offset": False, "observe": "displacement"}),
    "bouc_wen": Entry(M.bouc_wen, {"observe": "acceleration"}),
    "cascaded_tanks": Entry(M.cascaded_tanks, {"h_s": 1e-3, "observe": "lower"}),
    "coupled_tanks": Entry(M.coupled_tanks, {"h_s": 1e-3, "observe": "both"}),
    "chain": Entry(
        M.chain,
        {"n": 2, "elements": {1: "cubic"}, "walls": "left", "forces": [1], "sensors": [2], "observe": "velocity", "v_s": 1e-3},
    ),
    "structural": Entry(
        M.structural,
        {
            "M": np.eye(2),
            "C": {"beta": np.eye(2)},
            "K": np.array([[2.0, -1.0], [-1.0, 2.0]]),
            "nonlinear": {"tip": ("cubic", 1)},
            "input": [0],
            "output": {"acceleration": [0, 1]},
            "v_s": 1e-3,
        },
    ),
    "modal": Entry(
        M.modal,
        {
            "frequencies": [1.0, 2.0],
            "damping": [0.01, 0.02],
            "shapes": [[1.0, 0.5], [0.5, -1.0]],
            "nonlinear": {"tip": (["cubic", "coulomb"], (0, 1))},
            "input": 0,
            "output": {"displacement": 1},
            "v_s": 1e-3,
        },
    ),
    "emps": Entry(M.emps, {"v_s": 1e-3}),
    "freeplay": Entry(M.freeplay, {"observe": "displacement"}),
    "priors": Entry(prior, {"guess": {"k": 4.0}, "sd": 0.5, "prefix": ""}),
    "piecewise_map": Entry(M.piecewise_map, {"regions": 3, "offset": True}),
    "piecewise_oscillator": Entry(M.piecewise_oscillator, {}),
    "robertson": Entry(M.robertson, {}),
    "hires": Entry(M.hires, {}),
    "enzyme": Entry(M.enzyme, {}),
}
