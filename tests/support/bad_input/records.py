"""Records, what is done to them, and numbers about them, given nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import pm_sysid as sid
from support.junk import Entry, finite

T = np.arange(12) / 10
U = np.sin(3 * T)
Y = np.stack([np.cos(T), np.sin(T) ** 2], axis=1)
RECORD = sid.TimeSeries(T, U, Y)
NOISE = np.random.default_rng(0).normal(size=60)
TABLE = pd.DataFrame({"F": U, "z": Y[:, 0]}, index=pd.Index(T, name="time"))


def sound(record: Any) -> bool:
    """A record that can be used: finite times and inputs, outputs finite or missing, read-only."""
    arrays = [a for a in (record.t, record.u, record.y) if a is not None]
    inputs = np.isfinite(record.input_matrix).all() and np.isfinite(record.dt).all() and np.all(record.dt > 0)
    between = record.input_at(np.arange(len(record)), 0.5)
    return (
        bool(
            np.isfinite(record.t).all()
            and inputs
            and np.isfinite(between).all()
            and not np.isinf(record.output_matrix).any()
            and not any(a.flags.writeable for a in arrays)
        )
        and len(repr(record)) > 0
    )


def numbers_of_tests(result: Any) -> bool:
    values = [v for v in vars(result).values() if v is not None]
    parts = [number for value in values if isinstance(value, tuple) for number in value]
    known = finite([v for v in values if not isinstance(v, tuple)]) and finite(parts)
    return known and 0 <= result.ljung_box_p <= 1 and len(repr(result)) > 0


def real(measure: Any) -> bool:
    """Real numbers; infinite for a constant record, NaN for an output that was never measured, as documented."""
    return np.asarray(measure).dtype.kind == "f"


#: A column that is not there is called by its name, and the argument by what it is.
COLUMN = dict.fromkeys(("inputs", "outputs", "time", "ds"), ("column",))
ENTRIES: dict[str, Entry] = {
    "TimeSeries": Entry(
        sid.TimeSeries,
        {
            "t": T,
            "u": U,
            "y": Y,
            "intersample": "bl",
            "inputs": ("F",),
            "outputs": ("a", "b"),
            "periodic": False,
            "units": {"F": "N"},
        },
        sound,
        names={"t": ("u",), "u": ("inputs",), "y": ("outputs",), "inputs": ("units",), "outputs": ("units",)},
    ),
    "replace": Entry(
        RECORD.replace,
        {"t": T, "u": U, "y": Y, "intersample": "foh"},
        sound,
        names={"t": ("u",), "u": ("inputs",), "y": ("outputs",)},
    ),
    "input_at": Entry(RECORD.input_at, {"interval": [0, 3], "fraction": 0.5, "derivative": 1}, finite),
    "from_dataframe": Entry(
        sid.TimeSeries.from_dataframe, {"df": TABLE, "inputs": "F", "outputs": "z", "time": None}, sound, names=COLUMN
    ),
    "from_xarray": Entry(
        sid.TimeSeries.from_xarray,
        {"ds": RECORD.replace(outputs=("a", "b")).to_xarray(), "inputs": "u", "outputs": "a", "time": "time"},
        sound,
        names=COLUMN,
    ),
    "detrend": Entry(
        sid.detrend, {"record": RECORD, "kind": "linear", "channels": ["y1"]}, sound, names={"channels": ("channel",)}
    ),
    "resample": Entry(sid.resample, {"record": RECORD, "fs": 20.0}, sound),
    "rmse": Entry(sid.rmse, {"measured": Y, "predicted": Y + 0.1}, real),
    "nrmse": Entry(sid.nrmse, {"measured": Y, "predicted": Y + 0.1}, real),
    "nmse": Entry(sid.nmse, {"measured": Y, "predicted": Y + 0.1}, real),
    "fit_percent": Entry(sid.fit_percent, {"measured": Y, "predicted": Y + 0.1}, real),
    "residual_tests": Entry(
        sid.residual_tests, {"residuals": NOISE, "u": np.sin(np.arange(60.0)), "lags": 5}, numbers_of_tests
    ),
}
