"""What is asked of a posterior, given nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import pm_sysid as sid
from support import tiny
from support.junk import Entry, Late, finite, quiet

MODEL, PLAIN, IDATA, RECORD = Late(tiny.model), Late(tiny.plain), tiny.IDATA, tiny.RECORD
FIT = Late(tiny.fit)
START = {"level": 1.0}
PAGE = Late(lambda: tiny.folder() / "page.html")


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


def fit_decay(**options: Any) -> Any:
    return quiet(sid.fit_pem)(tiny.DECAY, RECORD, {"rate": 0.8}, predictor=sid.ExtendedKalman(substeps=1), **options)


def said(result: Any) -> bool:
    return len(repr(result)) > 0


FEW_RUNS = sid.Validation(RECORD, runs=3, x0=START, skip=0.1)
SOURCE = {"idata": IDATA, "model": MODEL, "name": "y", "draws": 3}
NAMES = {"name": ("ODEFilter",), "idata": ("posterior", "draws")}
CHOICE = {"idata": ("posterior",), "var_names": ("variable",)}
FREE = {"x0": START, "substeps": 1}
ENTRIES: dict[str, Entry] = {
    "smooth": Entry(quiet(sid.smooth), SOURCE | {"progressbar": False}, sound, names=NAMES),
    "sample_states": Entry(quiet(sid.sample_states), SOURCE | {"random_seed": 1, "progressbar": False}, sound, names=NAMES),
    "innovations": Entry(sid.innovations, SOURCE, sound, names=NAMES),
    "predict": Entry(
        quiet(sid.predict),
        SOURCE | FREE | {"data": RECORD, "every_step": False, "random_seed": 1, "record": 0, "params": {"rate": 0.9}},
        lambda r: r is not None,
        names=NAMES | {"data": ("record", "inputs")},
    ),
    "predict, new draws": Entry(
        quiet(sid.predict),
        SOURCE | FREE | {"data": RECORD, "every_step": True, "random_seed": 1, "record": None, "params": None},
        lambda r: r is not None,
        names=NAMES | {"data": ("record", "inputs")},
    ),
    "check_substeps": Entry(quiet(sid.check_substeps), SOURCE | {"data": RECORD, "factor": 2}, sound, names=NAMES),
    "check_intersample": Entry(
        quiet(sid.check_intersample), SOURCE | {"model": Late(tiny.driven), "data": None}, sound, names=NAMES
    ),
    "check_modes": Entry(quiet(sid.check_modes), {"idata": IDATA, "model": MODEL, "points": 40}, sound, names=NAMES),
    "check_initial_state": Entry(quiet(sid.check_initial_state), SOURCE | {"model": Late(tiny.uncertain)}, sound, names=NAMES),
    "check_processes": Entry(
        quiet(sid.check_processes),
        SOURCE | {"model": Late(tiny.pushed), "random_seed": 1},
        sound,
        names=NAMES,
    ),
    "find_mode": Entry(
        quiet(sid.find_mode),
        {
            "model": PLAIN,
            "start": {"rate": 0.5},
            "prior_draws": 20,
            "starts": 2,
            "tempering": False,
            "random_seed": 1,
            "progressbar": False,
        },
        lambda m: finite(m.covariance),
    ),
    "dic": Entry(quiet(sid.dic), {"idata": IDATA, "model": PLAIN, "draws": 40, "space": "model"}, sound, names=NAMES),
    "waic": Entry(quiet(sid.waic), {"idata": IDATA, "model": PLAIN, "draws": 40}, sound, names=NAMES),
    "log_likelihood_by_record": Entry(
        quiet(sid.log_likelihood_by_record),
        {"idata": Late(tiny.of_specimens), "model": Late(tiny.specimens), "name": "y", "integrate": 50, "random_seed": 1},
        lambda t: finite(t["log_likelihood"]["y"]),
        names=NAMES,
    ),
    "stages": Entry(sid.stages, {"idata": Late(tiny.sequential)}, lambda d: "log_evidence" in d),
    "log_evidence": Entry(sid.log_evidence, {"idata": Late(tiny.sequential)}, lambda e: finite(e.value) and finite(e.error)),
    "covariance": Entry(sid.covariance, {"idata": IDATA, "var_names": ["rate", "gain"]}, sound, names=CHOICE),
    "correlation": Entry(sid.correlation, {"idata": IDATA, "var_names": "rate"}, sound, names=CHOICE),
    "compare_models": Entry(
        quiet(sid.compare_models),
        {
            "models": Late(lambda: {"one": (tiny.model(), IDATA)}),
            "validation": FEW_RUNS,
            "draws": 40,
            "evidence": None,
        },
        said,
        names={"models": ("model",), "validation": ("data", "record")},
    ),
    "Validation": Entry(
        lambda **settings: quiet(sid.compare_models)({"one": (tiny.model(), IDATA)}, sid.Validation(**settings), draws=40),
        {"records": RECORD, "runs": 3, "x0": START, "skip": 0.1, "record": None, "params": {"rate": 0.9}},
        said,
        names={"records": ("record", "data")},
    ),
    "report": Entry(
        quiet(sid.report),
        {
            "model": MODEL,
            "idata": IDATA,
            "record": RECORD,
            "validation": sid.Validation(runs=3, x0=START),
            "path": PAGE,
            "title": "A page",
            "units": {"y": "m"},
            "evidence": None,
            "interactive": False,
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
            "bounds": ({"rate": 0.1}, {"rate": 5.0}),
            "fixed": None,
            "varying": None,
            "objective": "mse",
            "optimiser": sid.Optimiser("trust", {"max_nfev": 3}),
            "starts": 2,
            "random_seed": 1,
            "progressbar": False,
        },
        said,
        names={"data": ("record",), "bounds": ("lower bounds", "upper bounds")},
    ),
    "InitialState": Entry(
        lambda **start: fit_decay(x0=sid.InitialState(**start)), {"x0": 1.0, "estimate": False, "P0": None}, said
    ),
    "Optimiser": Entry(
        lambda **how: fit_decay(x0=1.0, optimiser=sid.Optimiser(**how)),
        {"method": "trust", "options": {"max_nfev": 3}},
        said,
        names={"options": ("keyword argument",)},
    ),
    "compare_fits": Entry(
        sid.compare_fits,
        {"fits": FIT, "records": RECORD, "k": 2, "x0": 1.0},
        said,
        names={"records": ("record", "data")},
    ),
    "PEMResult.predict": Entry(
        fit_method("predict"), {"k": 2, "record": RECORD, "x0": 1.0}, lambda r: "y" in r, names={"record": ("data",)}
    ),
    "PEMResult.like": Entry(fit_method("like"), {"record": 0}, said),
    "PEMResult.resid": Entry(
        fit_method("resid"),
        {"record": RECORD, "x0": 1.0, "lags": 4},
        said,
        names={"record": ("data",), "x0": ("diverged",)},
    ),
    "calibration_tests": Entry(
        sid.calibration_tests,
        {"result": Late(tiny.calibration), "var_names": ["rate"], "level": 0.99},
        sound,
        names={"var_names": ("parameter",)},
    ),
}
