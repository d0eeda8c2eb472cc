"""Units and order of the channels of records that are used together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.solve.checks import check_channels, check_records

LAG = sid.System(
    lambda t, x, u, p: p.rate * (u.F - x.level),
    states=("level",),
    inputs=("F",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: x.level,
)
T = np.linspace(0.0, 3.0, 40)
IDATA = xr.DataTree.from_dict(
    {"posterior": xr.Dataset({"rate": (("chain", "draw"), np.random.default_rng(0).normal(1.0, 0.03, (2, 30)))})}
)


def record(seed: int = 0, size: float = 1.0, **units: str) -> sid.TimeSeries:
    bare = sid.TimeSeries(T, {"F": np.sin(2 * T)})
    y = sid.simulate(LAG, bare, {"rate": 1.0}, x0=0.0)["y"].to_numpy() + 0.02 * np.random.default_rng(seed).standard_normal(40)
    return sid.TimeSeries(T, {"F": np.sin(2 * T)}, {"y": size * y}, units=units)


METRES, MILLIMETRES, UNKNOWN = record(F="N", y="m"), record(1, 1e3, y="mm"), record(2)


def built(data: Any = METRES) -> pm.Model:
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 0.3)
        sid.ODEFilter("y", LAG, data, {"rate": rate}, noise=0.02, x0=0.0, solver=sid.EK1(order=3), substeps=2)
    return model


def test_units_that_contradict_each_other_are_refused_and_unknown_ones_are_not() -> None:
    for some in ([METRES, UNKNOWN], [UNKNOWN, MILLIMETRES], [METRES, record(y="m", F="N")], [METRES, record(y="m")]):
        assert check_records(LAG, some) == some
    message = r"^data\[2\] has the output 'y' in 'mm', and data\[0\] has it in 'm': nothing is converted\. Convert .*y=\.\.\., "
    with pytest.raises(ValueError, match=message):
        check_records(LAG, [METRES, UNKNOWN, MILLIMETRES])
    with pytest.raises(ValueError, match=r"^new has the input 'F' in 'kN', and record 0 of it has it in 'N'"):
        check_channels("new", record(F="kN"), "record {} of it", [METRES])
    renamed = METRES.replace(outputs=("level",), inputs=("force",))
    with pytest.raises(ValueError, match=r"^new has the output 'level' in 'm', and the old has it in 'mm'"):
        check_channels("new", renamed, "the old", [MILLIMETRES])
    check_channels("new", sid.TimeSeries(T, {"F": T}, np.c_[T, T], units={"y1": "mm"}), "the old", [METRES])


def fit() -> Any:
    return sid.fit_pem(LAG, METRES, {"rate": 0.8}, x0=0.0)


KILO = METRES.replace(units={"F": "kN", "y": "m"})
USES: dict[str, Callable[[Path], Any]] = {
    "two records": lambda _: built([METRES, MILLIMETRES]),
    "set_data": lambda _: sid.set_data({"y": MILLIMETRES}, built()),
    "predict": lambda _: sid.predict(IDATA, MILLIMETRES, model=built()),
    "input of predict": lambda _: sid.predict(IDATA, KILO.replace(y=None), model=built(), x0=0.0),
    "compare_models": lambda _: sid.compare_models({"a": (built(), IDATA)}, MILLIMETRES),
    "report": lambda path: sid.report(built(), IDATA, validation=MILLIMETRES, path=path / "r.html", progressbar=False),
    "fit_pem": lambda _: sid.fit_pem(LAG, [METRES, MILLIMETRES], {"rate": 0.8}),
    "predict of a fit": lambda _: fit().predict(record=MILLIMETRES),
    "compare_fits": lambda _: sid.compare_fits({"f": fit()}, {"new": MILLIMETRES}),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_records_compares_their_units(use: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"in '(mm|kN)', and (data\[0\]|record 0 of the fit.*) has it in '(m|N)'"):
        USES[use](tmp_path)


TWO = sid.System(
    lambda t, x, u, p: p.rate * (u.heater + u.sun - x.level),
    states=("level",),
    inputs=("heater", "sun"),
    params=("rate",),
    observe=lambda t, x, dx, u, p: x.level,
)
ROOM = sid.TimeSeries(T, {"Heizung": np.sin(2 * T), "Sonne": np.cos(T)}, METRES.y)
EXCHANGED = sid.TimeSeries(T, {"Sonne": np.cos(T), "Heizung": np.sin(2 * T)}, METRES.y)


def room() -> pm.Model:
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 0.3)
        sid.ODEFilter("y", TWO, ROOM, {"rate": rate}, noise=0.02, x0=0.0, solver=sid.EK1(order=3), substeps=2)
    return model


ORDERS: dict[str, Callable[[Path], Any]] = {
    "set_data": lambda _: sid.set_data({"y": EXCHANGED}, room()),
    "predict": lambda _: sid.predict(IDATA, EXCHANGED, model=room(), x0=0.0),
    "report": lambda path: sid.report(room(), IDATA, validation=EXCHANGED, path=path / "r.html", progressbar=False),
    "fit_pem": lambda _: sid.fit_pem(TWO, [ROOM, EXCHANGED], {"rate": 0.8}),
    "simulate of a fit": lambda _: sid.fit_pem(TWO, ROOM, {"rate": 0.8}, x0=0.0).simulate(EXCHANGED),
    "compare_fits": lambda _: sid.compare_fits({"f": sid.fit_pem(TWO, ROOM, {"rate": 0.8}, x0=0.0)}, {"new": EXCHANGED}),
}


@pytest.mark.filterwarnings("ignore:fit_pem")
@pytest.mark.parametrize("use", ORDERS)
def test_names_of_the_first_record_in_another_order_are_refused(use: str, tmp_path: Path) -> None:
    """Also where the system calls its inputs otherwise."""
    with pytest.raises(
        ValueError, match=r"inputs \('Sonne', 'Heizung'\) and (data\[0\]|record 0 of the fit.*) \('Heizung', 'Son.*order"
    ):
        ORDERS[use](tmp_path)


def test_inputs_of_another_kind_are_said() -> None:
    with pytest.warns(UserWarning, match=r"inputs that are 'zoh' between the samples, and record 0 of the fit has 'bl': "):
        sid.predict(IDATA, METRES.replace(intersample="zoh"), model=built(), x0=0.0)
    with pytest.warns(UserWarning, match=r"has the inputs \('Strom',\), and record 0 of the fit has \('F',\): channels"):
        sid.predict(IDATA, METRES.replace(inputs="Strom"), model=built(), x0=0.0)
    sid.predict(IDATA, METRES.replace(inputs="u"), model=built(), x0=0.0)  # nothing is known of an input without a name
    moved = ROOM.replace(inputs=("Wind", "Sonne"))  # one name in common
    with pytest.warns(UserWarning, match=r"inputs \('Wind', 'Sonne'\), and record 0 of the fit has \('Heizung', 'Sonne'\)"):
        sid.predict(IDATA, moved, model=room(), x0=0.0)
    sid.predict(IDATA, ROOM.replace(inputs=("heater", "sun")), model=room(), x0=0.0)  # the system's own names
    with pytest.raises(ValueError, match="data has 0 input channels"):
        sid.predict(IDATA, sid.TimeSeries(T, None, METRES.y), model=built(), x0=0.0)


def test_one_name_at_the_place_of_another_is_enough() -> None:
    """A record of the travel first, and of what the system calls otherwise, was fitted as if it had that first."""
    two = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.k * x.z), states=("z", "v"), inputs=("F",), params=("k",),
        observe=lambda t, x, dx, u, p: {"acc": dx.v, "travel": x.z},
    )  # fmt: skip
    y = np.column_stack([METRES.y, METRES.y])
    data = sid.TimeSeries(T, np.cos(T), y, outputs=("travel", "body_acc"))
    with pytest.raises(ValueError, match=r"outputs .* and the system .*: 'travel' stands at another place.*reorder"):
        sid.fit_pem(two, data, {"k": 1.0})
    moved = ROOM.replace(inputs=("Sonne", "Wind"))
    with pytest.raises(ValueError, match=r"record 0 of the fit .*'Sonne' stands at another place"):
        sid.predict(IDATA, moved, model=room(), x0=0.0)
    sid.fit_pem(two, data.replace(outputs=("acceleration", "travel")), {"k": 1.0}, starts=1)
    counted = sid.System(
        lambda t, x, u, p: -p.k * x.z + u.u1 + u.u2, states=("z",), inputs=("u1", "u2"), params=("k",),
        observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    sid.fit_pem(counted, sid.TimeSeries(T, np.stack([np.cos(T), np.sin(T)], axis=1), METRES.y), {"k": 1.0}, starts=1)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_records_without_units_and_labels_of_a_report_stay_accepted(tmp_path: Path) -> None:
    model, new = built(), UNKNOWN
    assert sid.predict(IDATA, new, model=model)["y"].attrs["units"] == "m"
    sid.set_data({"y": new}, model)
    sid.set_data({"y": METRES}, model)
    pairs = {"a": (model, IDATA), "b": (model, IDATA)}
    options: dict[str, Any] = {"validation": new, "path": tmp_path / "r.html", "progressbar": False}
    page = sid.report(pairs, **options, units={"y": "metres"}).read_text()
    assert "<th>RMSE (metres)</th>" in page
