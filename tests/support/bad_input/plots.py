"""Figures, given nonsense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pm_sysid as sid
from support import tiny
from support.junk import Entry, Late, quiet

RUNS = np.stack([tiny.Y, tiny.Y + 0.1])
NOISE = np.random.default_rng(0).normal(size=60)


def drawn(plot: Callable[..., Any]) -> Callable[..., Any]:
    """A figure that is closed again."""

    def call(**arguments: Any) -> Any:
        from matplotlib import pyplot

        try:
            return quiet(plot)(**arguments)
        finally:
            pyplot.close("all")

    return call


CANVAS = {"axes": None, "figsize": (4.0, 3.0)}
CHOICE = {"var_names": ("parameter", "variable"), "idata": ("posterior",), "truth": ("parameter",)}
ENTRIES: dict[str, Entry] = {
    "plot_abc": Entry(drawn(sid.plot_abc), {"idata": Late(tiny.nested), "share": True} | CANVAS),
    "plot_annealing": Entry(
        drawn(sid.plot_annealing),
        {"idata": Late(tiny.annealed), "var_names": ["rate"], "truth": {"rate": 1.0}, "chain": 0} | CANVAS,
        names=CHOICE,
    ),
    "plot_calibration": Entry(
        drawn(sid.plot_calibration),
        {"result": Late(tiny.calibration), "kind": "rank", "var_names": ["rate"]} | CANVAS,
        names={"var_names": ("numbers",)},
    ),
    "plot_compare_fits": Entry(
        drawn(sid.plot_compare_fits),
        {"comparison": Late(lambda: sid.compare_fits(tiny.fit(), tiny.RECORD, x0=1.0)), "window": (0.0, 1.0)} | CANVAS,
    ),
    "plot_correlation": Entry(
        drawn(sid.plot_correlation), {"idata": tiny.IDATA, "var_names": ["rate", "gain"]} | CANVAS, names=CHOICE
    ),
    "plot_fit": Entry(
        drawn(sid.plot_fit),
        {"record": tiny.RECORD, "prediction": RUNS, "output": "y", "window": (0.0, 1.5), "hdi": 0.9, "zoom": (0.2, 0.9)}
        | CANVAS,
    ),
    "plot_ibis": Entry(
        drawn(sid.plot_ibis),
        {"idata": Late(tiny.sequential), "var_names": ["rate"], "truth": {"rate": 1.0}, "chain": 0, "log_time": True} | CANVAS,
        names=CHOICE,
    ),
    "plot_prediction": Entry(
        drawn(sid.plot_prediction),
        {"record": tiny.RECORD, "predictions": {"a": RUNS}, "output": "y", "window": (0.0, 1.0), "hdi": 0.9} | CANVAS,
        names={"predictions": ("prediction",)},
    ),
    "plot_prior_posterior": Entry(
        drawn(sid.plot_prior_posterior),
        {"idata": tiny.IDATA, "var_names": ["rate"], "truth": {"rate": 1.0}} | CANVAS,
        names=CHOICE,
    ),
    "plot_record": Entry(
        drawn(sid.plot_record),
        {"record": tiny.RECORD, "channels": ["y"], "units": {"y": "m"}} | CANVAS,
        names={"channels": ("channel",)},
    ),
    "plot_resid": Entry(drawn(sid.plot_resid), {"residuals": Late(lambda: tiny.fit().resid(lags=4))} | CANVAS),
    "plot_residuals": Entry(
        drawn(sid.plot_residuals),
        {"residuals": NOISE, "u": np.sin(np.arange(60.0)), "t": None, "fs": 2.0, "lags": 5, "standardised": True} | CANVAS,
    ),
    "plot_restoring_force": Entry(
        drawn(sid.plot_restoring_force),
        {
            "idata": tiny.IDATA,
            "force": lambda x, p: p.rate * x,
            "x": np.linspace(-1, 1, 5),
            "truth": np.linspace(-1, 1, 5),
            "data": ([0.0, 1.0], [0.0, 1.1]),
            "draws": 10,
            "hdi": 0.9,
            "xlabel": "x",
            "ylabel": "f",
        }
        | CANVAS,
        names={"x": ("truth",), "force": ("len()",)},  # of another length than the truth; a function of something else
    ),
    "plot_states": Entry(
        drawn(sid.plot_states),
        {"states": Late(tiny.states), "record": None, "truth": {"level": tiny.Y}, "var_names": ["level"], "zoom": (0.2, 0.9)}
        | CANVAS,
    ),
}
