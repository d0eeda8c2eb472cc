"""Samplers and what starts them, given nonsense for their settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytensor
import pytest
import tiny
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from junk import FEW, Entry, Late, finite, things

import pm_sysid as sid

PLAIN, IDATA = Late(tiny.plain), tiny.IDATA


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return function(*args, **kwargs)

    return call


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
            "threshold": 0.3,
            "moves": "plain",
            "steps": 1,
            "freedom": 3.0,
            "min_acceptance": 0.15,
            "store_stages": False,
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
            "moves": "plain",
            "steps": 1,
            "freedom": 3.0,
            "min_acceptance": 0.15,
            "threads": 1,
            "store_stages": False,
            "checkpoint": None,
        },
    ),
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
            "adapt_widths": False,
            "max_drop": 3.0,
            "checkpoint": None,
            "rng": 1,
        },
        finite,
    ),
    "sample_abc_ns": Entry(
        quiet(sid.sample_abc_ns),
        {
            "models": Late(tiny.simulators),
            "particles": 10,
            "distance": None,
            "prior": {"full": 0.5, "half": 0.5},
            "epsilon": 200.0,
            "alpha0": 0.4,
            "alpha_min": 0.1,
            "p_best": 0.05,
            "p_local": 0.05,
            "shrink": 0.1,
            "enlarge": 1.1,
            "tolerance": 0.005,
            "patience": 1,
            "min_acceptance": 1e-2,
            "max_simulations": 60,
            "max_seconds": 2.0,
            "executor": None,
            "checkpoint": None,
            "random_seed": 1,
            "progressbar": False,
        },
        lambda tree: "populations" in tree.children,
        (ValueError, TypeError, RuntimeError),  # the last where nothing comes as close as epsilon
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


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> Iterator[None]:
    """Compiling a graph takes longer than running these."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text may be taken for a path: what is written is written to a folder that is removed."""
    monkeypatch.chdir(tiny.folder())


SOUND = [n for n in ENTRIES if n != "extend"]  # which needs a record that is longer


@pytest.mark.parametrize("name", SOUND)
def test_the_calls_that_are_spoiled_work(name: str) -> None:
    argument, value = next(iter(ENTRIES[name].good.items()))
    if name == "Target.log_likelihood":
        assert np.isfinite(likelihood(value, None, [0, 3, 12])).all()
    else:
        assert ENTRIES[name].probe(argument, value) is not None


@pytest.mark.parametrize("name, argument", [(n, a) for n, e in ENTRIES.items() for a in e.good])
@FEW
@given(data=st.data())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, data: st.DataObject) -> None:
    ENTRIES[name].probe(argument, data.draw(values(argument)))
