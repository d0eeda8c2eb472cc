"""Files, benchmark data and ready systems, given nonsense."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from scipy.io import savemat

import pm_sysid as sid
from support import tiny
from support.bad_input.records import sound
from support.bad_input.systems import DUFFING, ONE, PARAMS, START
from support.junk import Entry, Late, finite


@cache
def text() -> Path:
    """A table as a logger writes it."""
    path = tiny.folder() / "rig.csv"
    path.write_text("t;F;z\ns;kN;mm\n0,00;1,5;0,2\n0,01;2,0;\n0,03;1,0;0,7\n")
    return path


@cache
def matlab() -> Path:
    """Variables as MATLAB saves them."""
    path = tiny.folder() / "rig.mat"
    savemat(path, {"rig": {"F": [1.0, 2.0, 1.0], "z": [0.1, 0.3, 0.2]}, "fs": 100.0})
    return path


@cache
def benchmarks() -> Path:
    """Files of the right names with short records."""
    folder = tiny.folder() / "benchmarks"
    folder.mkdir(exist_ok=True)
    wave = np.sin(np.arange(20_000) / 7)
    np.savez(folder / "silverbox_snls80mv.npz", u_V=np.tile(wave, 7), y_V=np.tile(wave, 7))
    np.savez(folder / "boucwen_train_multisine.npz", u_N=wave, y_m=wave)
    np.savez(
        folder / "emps_train.npz",
        u_V=wave,
        q_m=wave,
        **{"qref_m": wave, "kp_per_s": 1.0, "kv_Vs_per_m": 2.0, "gtau_N_per_V": 3.0},
    )
    np.savez(folder / "cascaded_tanks.npz", train_u_V=wave, train_y_V=wave, test_u_V=wave, test_y_V=wave)
    np.savez(folder / "f16_fullmsine_level1.npz", force_N=wave, acc1=wave, acc2=wave, acc3=wave)
    return folder


def labelled(dims: Any) -> Any:
    with pm.Model(coords={"when": [0]}):
        sid.ODEFilter("y", DUFFING, ONE, PARAMS, noise=0.1, x0=START, substeps=1, solver=sid.EK0(order=2), dims=dims)
    return 1.0


def constraints(**arguments: Any) -> Any:
    with pm.Model():
        sid.models.piecewise_constraints(**arguments)
    return 1.0


def force(x: Any, **arguments: Any) -> Any:
    """Force of the law; what it says where a position is missing, or out of this world, does no harm."""
    with np.errstate(all="ignore"):
        found = sid.models.piecewise_linear(x, **arguments)
    place = np.asarray(x)
    return np.asarray(found)[np.abs(place) < 1e150] if place.dtype.kind == "f" else found


def system(make: Callable[..., sid.System]) -> Callable[..., Any]:
    def call(**arguments: Any) -> str:
        return repr(make(**arguments))

    return call


M, D = sid.models, sid.datasets
RECORD = {"folder": Late(benchmarks), "intersample": "bl"}
MOTION = {"observe": "displacement"}
COLUMN = {k: ("column", "columns", "variable", "channels", "scale") for k in ("inputs", "outputs", "time", "fs", "columns")}
FILES = (ValueError, TypeError, OSError)
WAVE = sid.TimeSeries(np.arange(12) / 10, np.sin(np.arange(12)), np.cos(np.arange(12)))
RAMP = D.Benchmark("wave", (WAVE,), {"a": WAVE, "b": WAVE}, window=3, unit="V", scale=1.0)
ENTRIES: dict[str, Entry] = {
    "from_csv": Entry(
        sid.TimeSeries.from_csv,
        {
            "path": Late(text),
            "inputs": "F",
            "outputs": ["z"],
            "time": "t",
            "fs": None,
            "scale": {"F": 1e3},
            "format": sid.TextFormat(decimal=",", unit_lines=1, missing=["-"]),
        },
        sound,
        FILES,
        COLUMN | {"path": ("file", "Errno"), "format": ("TextFormat",)},
    ),
    "TextFormat": Entry(
        lambda **arguments: sid.TimeSeries.from_csv(
            text(), inputs="F", outputs=["z"], time="t", format=sid.TextFormat(**arguments)
        ),
        {
            "columns": None,
            "delimiter": "auto",
            "decimal": ",",
            "skip": 0,
            "unit_lines": 1,
            "missing": ["-"],
            "encoding": "utf-8-sig",
            "dates": None,
        },
        sound,
        FILES,
        COLUMN | {"decimal": ("line",), "skip": ("line",), "unit_lines": ("line",), "delimiter": ("column", "line")},
    ),
    "from_mat": Entry(
        sid.TimeSeries.from_mat,
        {"path": Late(matlab), "inputs": "rig.F", "outputs": ["rig.z"], "time": None, "fs": "fs", "scale": {"rig.F": 2.0}},
        sound,
        FILES,
        COLUMN | {"path": ("there is no", "file")},
    ),
    "datasets.silverbox": Entry(D.silverbox, {"part": "train"} | RECORD, sound, FILES, {"folder": ("there is no",)}),
    "datasets.bouc_wen": Entry(D.bouc_wen, {"part": "train"} | RECORD, sound, FILES, {"folder": ("there is no",)}),
    "datasets.emps": Entry(D.emps, {"part": "train"} | RECORD, sound, FILES, {"folder": ("there is no",)}),
    "datasets.emps_controller": Entry(
        D.emps_controller,
        {"part": "train", "folder": RECORD["folder"]},
        lambda c: finite(c.reference),
        FILES,
        {"folder": ("there is no",)},
    ),
    "datasets.f16": Entry(
        D.f16, {"level": 1, "part": "full"} | RECORD, sound, FILES, {"folder": ("there is no",), "level": ("there is no",)}
    ),
    "datasets.cascaded_tanks": Entry(D.cascaded_tanks, {"part": "test"} | RECORD, sound, FILES, {"folder": ("there is no",)}),
    "datasets.benchmark": Entry(
        D.benchmark,
        {"name": "Cascaded_Tanks"} | RECORD,
        lambda found: all(sound(record) for record in (*found.train, *found.test.values())),
        FILES,
        {"folder": ("there is no",), "name": ("there is no",)},
    ),
    "datasets.Benchmark": Entry(
        D.Benchmark,
        {"name": "wave", "train": (WAVE,), "test": {"a": WAVE}, "window": 3, "unit": "V", "scale": 1.0},
        lambda board: list(sid.score(board, {name: np.zeros(12) for name in board.test})["samples"]) == [12 - board.window],
    ),
    "score": Entry(
        sid.score,
        {"benchmark": RAMP, "predictions": {"a": np.zeros(12), "b": np.zeros((12, 1))}},
        lambda table: list(table["samples"]) == [9, 9] and finite(table["rmse"]),
    ),
    "ODEFilter, dims": Entry(labelled, {"dims": ("when",)}, names={"dims": ("dimensions", "Dimension", "dim", "Dims")}),
    "friction_oscillator": Entry(system(M.friction_oscillator), {"kind": "tanh", "g": 9.81, "v_s": 1e-3} | MOTION),
    "lugre_oscillator": Entry(system(M.lugre_oscillator), {"v_s": 0.1} | MOTION),
    "stribeck_oscillator": Entry(system(M.stribeck_oscillator), {"v_s": 0.1} | MOTION),
    "van_der_pol": Entry(system(M.van_der_pol), {"forced": True} | MOTION),
    "pendulum": Entry(system(M.pendulum), {"friction": True, "v_s": 0.1, "observe": "angle"}),
    "battery": Entry(
        system(M.battery),
        {"soc": [0.0, 0.5, 1.0], "voltage": [3.0, 3.7, 4.2]},
        names={"soc": ("voltage",), "voltage": ("soc",)},
    ),
    "heated_wall": Entry(system(M.heated_wall), {"n": 3, "thickness": 0.1, "observe": "faces"}),
    "duffing, terms": Entry(system(M.duffing), {"quadratic": True, "cubic_damping": True}),
    "piecewise_oscillator, terms": Entry(system(M.piecewise_oscillator), {"regions": 3, "nonlinear": "damping"} | MOTION),
    "piecewise_linear": Entry(
        force,
        {"x": np.array([0.0, 1.0, 2.0]), "slope": 1.0, "slopes": [2.0], "breakpoints": [0.5]},
        names={
            "slopes": ("breakpoints", "broadcast"),
            "breakpoints": ("slopes", "broadcast"),
            "x": ("broadcast",),
            "slope": ("broadcast",),
        },
    ),
    "piecewise_constraints": Entry(
        constraints,
        {
            "slope": 1.0,
            "slopes": [3.0],
            "breakpoints": [0.5],
            "difference": 0.05,
            "ordered": True,
            "separation": 0.0,
            "name": "piecewise",
        },
    ),
}
