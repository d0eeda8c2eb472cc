"""Systems, solvers, likelihoods and simulators, given nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from hypothesis import given
from junk import FEW, Entry, finite, things

import pm_sysid as sid

#: One sample: then nothing has to be compiled to judge a step size.
ONE = sid.TimeSeries([0.0], [1.0], [0.2], intersample="zoh")
SHORT = sid.TimeSeries(np.arange(5) / 10, np.sin(np.arange(5.0)), np.cos(np.arange(5.0)), intersample="zoh")
DUFFING = sid.models.duffing()
PARAMS = {"m": 1.0, "c": 0.3, "k": 4.0, "k3": 0.5}
START = {"z": 0.1, "v": 0.0}


def decay(**changes: Any) -> sid.System:
    arguments = {
        "dynamics": lambda t, x, u, p: -p.rate * x.level + u.flow,
        "states": ("level",),
        "inputs": ("flow",),
        "params": ("rate",),
        "observe": lambda t, x, dx, u, p: x.level,
        "chains": True,
    } | changes
    return sid.System(arguments.pop("dynamics"), **arguments)


def likelihood(name: Any = "y", system: Any = DUFFING, data: Any = ONE, params: Any = PARAMS, **options: Any) -> Any:
    with pm.Model() as model:
        sid.ODEFilter(name, system, data, params, **options)
    return model


def simulator(name: Any = "y", system: Any = DUFFING, data: Any = ONE, params: Any = PARAMS, **options: Any) -> Any:
    with pm.Model() as model:
        sid.ODESimulator(name, system, data, params, **options)
    return model


def exchange(new_data: Any, model: Any = None) -> Any:
    return sid.set_data(new_data, model)


MODEL = likelihood(noise=0.1, x0=START, substeps=1, solver=sid.EK0(order=2, diffusion=1.0))


def prior(guess: Any, sd: Any, prefix: Any) -> Any:
    with pm.Model():
        return sid.models.priors(guess, sd, prefix=prefix)


M = sid.models
ENTRIES: dict[str, Entry] = {
    "System": Entry(
        decay,
        {
            "dynamics": lambda t, x, u, p: -p.rate * x.level + u.flow,
            "states": ("level",),
            "inputs": ("flow",),
            "params": ("rate",),
            "observe": lambda t, x, dx, u, p: x.level,
            "chains": True,
        },
        lambda s: len(repr(s)) > 0,
        (ValueError, TypeError, AttributeError),
        {"states": ("dynamics", "observe", "x"), "inputs": ("dynamics", "u"), "params": ("dynamics", "p")},
    ),
    "EK0": Entry(sid.EK0, {"order": 2, "diffusion": "mle", "covariance": "auto"}),
    "EK1": Entry(sid.EK1, {"order": 2, "diffusion": 1.0, "covariance": "auto"}),
    "ExtendedKalman": Entry(sid.ExtendedKalman, {"Q": 0.0, "R": 1.0, "substeps": 2}),
    "UnscentedKalman": Entry(sid.UnscentedKalman, {"Q": 0.1, "R": 1.0, "substeps": 2, "alpha": 1.0, "beta": 0.0, "kappa": 0.0}),
    "ProbabilisticKalman": Entry(sid.ProbabilisticKalman, {"solver": sid.EK1(order=2), "R": 1.0, "substeps": 2}),
    "ODEFilter": Entry(
        likelihood,
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
            "likelihood": "filter",
        },
    ),
    "ODESimulator": Entry(
        simulator,
        {
            "name": "y",
            "system": DUFFING,
            "data": SHORT,
            "params": PARAMS,
            "noise": None,
            "x0": START,
            "substeps": 1,
            "distance": "nmse",
            "epsilon": 1.0,
        },
    ),
    "set_data": Entry(exchange, {"new_data": {"y": ONE}, "model": MODEL}, names={"new_data": ("data", "ODEFilter")}),
    "simulate": Entry(
        sid.simulate,
        {"system": DUFFING, "data": ONE, "params": PARAMS, "x0": START, "substeps": 1, "distance": None},
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
    "emps": Entry(M.emps, {"v_s": 1e-3}),
    "freeplay": Entry(M.freeplay, {"observe": "displacement"}),
    "priors": Entry(prior, {"guess": {"k": 4.0}, "sd": 0.5, "prefix": ""}),
    "piecewise_map": Entry(M.piecewise_map, {"regions": 3, "offset": True}),
    "piecewise_oscillator": Entry(M.piecewise_oscillator, {}),
}


def test_the_calls_that_are_spoiled_work() -> None:
    for name, entry in ENTRIES.items():
        result = entry.call(**entry.good)
        assert entry.check(result), name


@pytest.mark.parametrize("name, argument", [(n, a) for n, e in ENTRIES.items() for a in e.good])
@FEW
@given(value=things())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, value: Any) -> None:
    ENTRIES[name].probe(argument, value)
