"""Samplers and what starts them, given nonsense for their settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import xarray as xr
from hypothesis import strategies as st

import pm_sysid as sid
from support import tiny
from support.junk import Entry, Late, finite, quiet, things

PLAIN, IDATA = Late(tiny.plain), tiny.IDATA


def annealing(**arguments: Any) -> Any:
    """A step method, and one draw of it."""
    step = sid.DataAnnealing(**arguments)
    step.setup_chain(np.random.default_rng(1), 4, 4)
    point, _ = step.step(step.model.initial_point() if hasattr(step, "model") else tiny.plain().initial_point())
    return point


def threads(threads: Any) -> int:
    before = sid.set_threads(threads)
    sid.set_threads(before)
    return before


def target(**arguments: Any) -> Any:
    built = sid.Target(**arguments)
    return built.log_prior(np.zeros((2, 1)))


@cache
def compiled() -> sid.Target:
    return sid.Target(tiny.plain(), 1)


def likelihood(particles: Any, n: Any, edges: Any) -> Any:
    return compiled().log_likelihood(particles, n, edges=edges)


def posterior(tree: Any) -> bool:
    return isinstance(tree, xr.DataTree) and finite(tree["posterior"].to_dataset())


SHORT: dict[str, Any] = {
    "thresholds": sid.Thresholds(patience=1),
    "execution": sid.Execution(max_simulations=60, max_seconds=2.0, min_acceptance=1e-2),
}
SETTINGS: dict[str, Any] = {
    "thresholds": sid.Thresholds,
    "proposals": sid.EllipsoidProposals,
    "execution": sid.Execution,
}
#: The last where nothing comes as close as the first threshold.
NESTED_ERRORS = (ValueError, TypeError, RuntimeError)


def nested(argument: str, **settings: Any) -> xr.DataTree:
    """A run of the ABC nested sampler with settings of one kind."""
    options = SHORT | {argument: SETTINGS[argument](**settings)}
    return sid.sample_abc_ns(tiny.simulators(), 10, random_seed=1, progressbar=False, **options)


def sampled(tree: xr.DataTree) -> bool:
    return "populations" in tree.children


#: Numbers that are fine and take long: particles, fits, steps and processes are not spoiled by those.
LONG = {"draws", "particles", "n", "chains", "cores", "steps", "patience", "max_simulations"}
ENTRIES: dict[str, Entry] = {
    "sample_ibis": Entry(
        quiet(partial(sid.sample_ibis, progressbar=False)),
        {
            "draws": 8,
            "model": PLAIN,
            "chains": 1,
            "cores": 1,
            "random_seed": 1,
            "checkpoint": None,
            "threads": 1,
            "execution": None,
            "threshold": 0.3,
            "moves": sid.Moves("plain", steps=1),
            "store_stages": False,
        },
        posterior,
        names={"random_seed": ("seeds",)},  # an array of seeds, one a chain
    ),
    "sample": Entry(
        quiet(sid.sample),
        {
            "model": PLAIN,
            "draws": 40,
            "method": "ibis",
            "tune": 10,
            "chains": 2,
            "cores": 1,
            "start": {"rate": 0.5},
            "random_seed": 1,
            "progressbar": False,
        },
        posterior,
    ),
    "IBIS": Entry(
        sid.IBIS,
        {
            "draws": 8,
            "start": None,
            "model": PLAIN,
            "random_seed": 1,
            "threshold": 0.3,
            "moves": sid.Moves("plain", steps=1),
            "threads": 1,
            "store_stages": False,
            "checkpoint": None,
            "search": False,
        },
    ),
    "Moves": Entry(sid.Moves, {"kind": "plain", "steps": 1, "freedom": 3.0, "min_acceptance": 0.15, "most_walks": 5}),
    "extend": Entry(
        quiet(partial(sid.extend, progressbar=False)),
        {"idata": Late(tiny.sequential), "model": PLAIN, "random_seed": 1},
        posterior,
        names={"model": ("record",), "random_seed": ("record",)},
    ),
    "load_checkpoint": Entry(
        sid.load_checkpoint, {"folder": Late(tiny.checkpoint), "model": PLAIN}, posterior, names={"folder": ("checkpoint",)}
    ),
    "DataAnnealing": Entry(
        annealing,
        {
            "vars": None,
            "widths": 0.3,
            "schedule": "linear",
            "n_start": 2,
            "model": PLAIN,
            "adapt": False,
            "annealed": 0.5,
            "max_drop": 3.0,
            "checkpoint": None,
            "rng": 1,
        },
        finite,
    ),
    "Thresholds": Entry(
        quiet(partial(nested, "thresholds")),
        {"epsilon": 200.0, "alpha0": 0.4, "alpha_min": 0.1, "tolerance": 0.005, "patience": 1},
        sampled,
        NESTED_ERRORS,
    ),
    "EllipsoidProposals": Entry(
        quiet(partial(nested, "proposals")), {"p_best": 0.05, "p_local": 0.05, "shrink": 0.1, "enlarge": 1.1}, sampled
    ),
    "Execution": Entry(
        quiet(partial(nested, "execution")),
        {"executor": None, "max_simulations": 60, "max_seconds": 2.0, "min_acceptance": 1e-2},
        sampled,
    ),
    "sample_abc_ns": Entry(
        quiet(sid.sample_abc_ns),
        {
            "models": Late(tiny.simulators),
            "particles": 10,
            "distance": None,
            "prior": {"full": 0.5, "half": 0.5},
            **SHORT,
            "proposals": sid.EllipsoidProposals(),
            "checkpoint": None,
            "random_seed": 1,
            "progressbar": False,
        },
        sampled,
        NESTED_ERRORS,
    ),
    "calibrate": Entry(
        quiet(sid.calibrate),
        {
            "build": PLAIN,
            "n": 1,
            "fit": "ibis",
            "generate": "model",
            "var_names": "rate",
            "ranked": 5,
            "random_seed": 1,
            "folder": None,
            "progressbar": False,
            "draws": 8,
        },
        lambda tree: "calibration" in tree.children,
        names={"build": ("model",)},
    ),
    "set_threads": Entry(threads, {"threads": 1}, finite),
    "Target": Entry(target, {"model": PLAIN, "threads": 1}, finite),
    "Target.log_likelihood": Entry(likelihood, {"particles": np.zeros((2, 1)), "n": None, "edges": [0, 3, 12]}),
}


def values(argument: str) -> st.SearchStrategy[Any]:
    if argument not in LONG:
        return things()
    return things().filter(lambda v: not (isinstance(v, int | float | np.number) and 1 < abs(v) < 2**31))
