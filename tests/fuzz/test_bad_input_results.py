"""What is asked of a posterior, given nonsense."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytensor
import pytest
import tiny
import xarray as xr
from hypothesis import given, settings
from junk import FEW, Entry, Late, finite, things

import pm_sysid as sid

MODEL, PLAIN, IDATA, RECORD = Late(tiny.model), Late(tiny.plain), tiny.IDATA, tiny.RECORD
FIT = Late(tiny.fit)
START = {"level": 1.0}
PAGE = Late(lambda: tiny.folder() / "page.html")


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose advice (but no warning of a bad number) is not listened to."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return function(*args, **kwargs)

    return call


def sound(result: Any) -> bool:
    """All numbers finite, and a text."""
    if is_dataclass(result):
        values = [v for k, v in vars(result).items() if isinstance(v, float | int | np.ndarray) and k not in ("good_k", "k")]
        return all(finite(v) for v in values) and len(repr(result)) > 0
    return finite(result.values) if isinstance(result, xr.DataArray | pd.DataFrame) else finite(result)


def fit_method(name: str) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        return getattr(tiny.fit(), name)(**arguments)

    return call


SOURCE = {"idata": IDATA, "model": MODEL, "name": "y", "draws": 3}
NAMES = {"name": ("ODEFilter",), "idata": ("posterior", "draws")}
CHOICE = {"idata": ("posterior",), "var_names": ("variable",)}
FREE = {"x0": START, "substeps": 1}
ENTRIES: dict[str, Entry] = {
    "smooth": Entry(quiet(sid.smooth), SOURCE, sound, names=NAMES),
    "sample_states": Entry(quiet(sid.sample_states), SOURCE | {"random_seed": 1}, sound, names=NAMES),
    "innovations": Entry(sid.innovations, SOURCE, sound, names=NAMES),
    "predict": Entry(
        quiet(sid.predict),
        SOURCE | FREE | {"data": RECORD, "every_step": False, "random_seed": 1},
        lambda r: r is not None,
        names=NAMES | {"data": ("record", "inputs")},
    ),
    "predict, new draws": Entry(
        quiet(sid.predict),
        SOURCE | FREE | {"data": RECORD, "every_step": True, "random_seed": 1},
        lambda r: r is not None,
        names=NAMES | {"data": ("record", "inputs")},
    ),
    "check_substeps": Entry(quiet(sid.check_substeps), SOURCE | {"data": RECORD, "factor": 2}, sound, names=NAMES),
    "find_mode": Entry(
        quiet(sid.find_mode), {"model": PLAIN, "start": {"rate": 0.5}, "progressbar": False}, lambda m: finite(m.covariance)
    ),
    "dic": Entry(quiet(sid.dic), {"idata": IDATA, "model": PLAIN, "draws": 40, "space": "model"}, sound, names=NAMES),
    "waic": Entry(quiet(sid.waic), {"idata": IDATA, "model": PLAIN, "draws": 40}, sound, names=NAMES),
    "stages": Entry(sid.stages, {"idata": Late(tiny.sequential)}, lambda d: "log_evidence" in d),
    "log_evidence": Entry(sid.log_evidence, {"idata": Late(tiny.sequential)}, lambda e: finite(e.value) and finite(e.error)),
    "covariance": Entry(
        sid.covariance, {"idata": IDATA, "var_names": ["rate", "gain"]}, sound, names={"idata": ("posterior",)}
    ),
    "correlation": Entry(sid.correlation, {"idata": IDATA, "var_names": "rate"}, sound, names=CHOICE),
    "compare_models": Entry(
        quiet(sid.compare_models),
        {
            "models": Late(lambda: {"one": (tiny.model(), IDATA)}),
            "validation": RECORD,
            "draws": 40,
            "runs": 3,
            "x0": START,
            "skip": 0.1,
            "evidence": None,
        },
        lambda c: len(repr(c)) > 0,
        names={"models": ("model",), "validation": ("data", "record")},
    ),
    "report": Entry(
        quiet(sid.report),
        {
            "model": MODEL,
            "idata": IDATA,
            "record": RECORD,
            "validation": None,
            "path": PAGE,
            "title": "A page",
            "units": {"y": "m"},
            "runs": 3,
            "x0": START,
            "skip": 0.0,
            "evidence": None,
            "progressbar": False,
        },
        names={"idata": ("posterior",)},
    ),
    "fit_pem": Entry(
        quiet(sid.fit_pem),
        {
            "system": tiny.DECAY,
            "data": RECORD,
            "p_guess": {"rate": 0.8},
            "predictor": sid.ExtendedKalman(substeps=1),
            "x0": 1.0,
            "estimate_x0": False,
            "bounds": ({"rate": 0.1}, {"rate": 5.0}),
            "P0": None,
            "fixed": None,
            "objective": "mse",
            "method": "trust",
            "options": {"max_nfev": 3},
        },
        lambda f: len(repr(f)) > 0,
        names={"data": ("record",), "bounds": ("lower bounds", "upper bounds"), "options": ("keyword argument",)},
    ),
    "compare_fits": Entry(
        sid.compare_fits,
        {"fits": FIT, "records": RECORD, "k": 2, "x0": 1.0},
        lambda c: len(repr(c)) > 0,
        names={"records": ("record", "data")},
    ),
    "PEMResult.predict": Entry(
        fit_method("predict"), {"k": 2, "record": RECORD, "x0": 1.0}, lambda r: "y" in r, names={"record": ("data",)}
    ),
    "PEMResult.resid": Entry(
        fit_method("resid"),
        {"record": RECORD, "x0": 1.0, "lags": 4},
        lambda r: len(repr(r)) > 0,
        names={"record": ("data",), "x0": ("diverged",)},
    ),
    "calibration_tests": Entry(
        sid.calibration_tests,
        {"result": Late(tiny.calibration), "var_names": ["rate"], "level": 0.99},
        sound,
        names={"var_names": ("parameter",)},
    ),
}


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> Iterator[None]:
    """Compiling a graph takes longer than running these."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.mark.parametrize("name", ENTRIES)
def test_the_calls_that_are_spoiled_work(name: str) -> None:
    argument, value = next(iter(ENTRIES[name].good.items()))
    assert ENTRIES[name].probe(argument, value) is not None


CASES = [(n, a) for n, e in ENTRIES.items() for a in e.good]


@pytest.mark.parametrize("name, argument", [c for c in CASES if c[0] != "report"])
@FEW
@given(value=things())
def test_nonsense_is_refused_or_harmless(name: str, argument: str, value: Any) -> None:
    ENTRIES[name].probe(argument, value)


@pytest.mark.parametrize("argument", [c[1] for c in CASES if c[0] == "report"])
@settings(FEW, max_examples=2)
@given(value=things())
def test_nonsense_for_a_report_which_takes_longer(argument: str, value: Any) -> None:
    ENTRIES["report"].probe(argument, value)
