"""Units of channels: read, kept, scaled, and shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.records.units import same_unit, scaled, split_header

UNITS = {"F": "N", "z": "mm"}


def record(**options: object) -> sid.TimeSeries:
    t = np.arange(20) / 10
    return sid.TimeSeries(t, {"F": np.sin(t)}, {"z": np.cos(t)}, units=UNITS, **options)  # type: ignore[arg-type]


def test_units_stay_with_their_channels() -> None:
    one = record()
    assert dict(one.units) == UNITS and "F [N] (band-limited" in repr(one) and "z [mm] (0 missing)" in repr(one)
    assert dict(one[3:9].units) == UNITS
    assert dict(one.replace(y=np.zeros((20, 1))).units) == UNITS
    assert dict(one.replace(outputs=["q"]).units) == {"F": "N", "q": "mm"}
    assert dict(one.replace(y={"a": np.zeros(20), "z": np.ones(20)}).units) == UNITS
    assert dict(one.replace(y=None).units) == {"F": "N"}
    assert dict(one.replace(units={"z": "m"}).units) == {"z": "m"}
    assert dict(pickle.loads(pickle.dumps(one)).units) == UNITS
    assert dict(record().replace(units=None).units) == {}
    with pytest.raises(TypeError):
        one.units["F"] = "kN"  # type: ignore[index]


def test_units_stay_with_their_names() -> None:
    t = np.arange(5.0)
    one = sid.TimeSeries(t, {"F": t, "d": t}, units={"F": "N", "d": "m"})
    assert dict(one.replace(u={"d": t, "F": t}).units) == {"F": "N", "d": "m"}
    assert dict(one.replace(u={"d": t, "G": t}).units) == {"d": "m"}  # G takes no place of F, whose place d has
    assert dict(one.replace(u={"G": t, "d": t}).units) == {"G": "N", "d": "m"}
    two = sid.TimeSeries(t, None, {"z": t, "v": t}, units={"z": "mm", "v": "m/s"})
    assert dict(two.replace(y={"v": t, "z": t}).units) == {"z": "mm", "v": "m/s"}


def test_tables_carry_units() -> None:
    one = record()
    frame = sid.TimeSeries.from_dataframe(one.to_dataframe(), inputs="F", outputs="z")
    cube = sid.TimeSeries.from_xarray(one.to_xarray(), inputs="F", outputs=["z"])
    assert dict(frame.units) == dict(cube.units) == UNITS
    assert one.to_xarray()["z"].attrs["units"] == "mm"


@pytest.mark.parametrize(
    "units, error, message",
    [
        ({"q": "m"}, ValueError, "units names 'q'; the record has F, z"),
        ({"F": 3}, TypeError, r"units\['F'\] is 3; give a text"),
        ("N", TypeError, "give a dict of units by channel"),
    ],
)
def test_wrong_units_are_refused(units: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        record().replace(units=units)


@pytest.mark.parametrize(
    "text, options, scale, units",
    [
        ("t [s],Force [kN],z (mm)\n0,1,2\n1,2,3\n", {}, None, {"Force": "kN", "z": "mm"}),
        ("t [s],Force [kN],z (mm)\n0,1,2\n1,2,3\n", {}, {"Force": 1e3, "z": 1e-3}, {"Force": "N", "z": "m"}),
        ("t,Force,z\ns,kN,mm\n0,1,2\n1,2,3\n", {"unit_lines": 1}, {"Force": 2.5}, {"z": "mm"}),
        ("t,Force,z\n0,1,2\n1,2,3\n", {}, None, {}),
    ],
)
def test_headers_give_units(tmp_path: Path, text: str, options: dict[str, int], scale: object, units: dict[str, str]) -> None:
    file = tmp_path / "rig.csv"
    file.write_text(text)
    form = sid.TextFormat(**options)  # type: ignore[arg-type]
    found = sid.TimeSeries.from_csv(file, inputs="Force", outputs="z", time="t", scale=scale, format=form)  # type: ignore[arg-type]
    assert found.inputs == ("Force",) and found.outputs == ("z",) and dict(found.units) == units
    factor = 1.0 if scale is None else scale.get("Force", 1.0)  # type: ignore[attr-defined]
    np.testing.assert_allclose(found.u, np.array([1.0, 2.0]) * factor)


def test_a_whole_header_may_be_named_too_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rig.csv"
    file.write_text("t,z [mm],z [V]\n0,1,2\n1,2,3\n")
    found = sid.TimeSeries.from_csv(file, inputs=None, outputs="z [V]", time="t")
    assert found.outputs == ("z",) and dict(found.units) == {"z": "V"}
    np.testing.assert_array_equal(found.y, [2.0, 3.0])
    both = sid.TimeSeries.from_csv(file, inputs=None, outputs=["z [mm]", "z [V]"], time="t", scale={"z [mm]": 1e-3})
    assert both.outputs == ("z [mm]", "z [V]") and dict(both.units) == {"z [mm]": "m", "z [V]": "V"}
    with pytest.raises(ValueError, match="has 2 columns called 'z'"):
        sid.TimeSeries.from_csv(file, inputs=None, outputs="z", time="t")


@pytest.mark.parametrize("scale", [{"z": 1e-3}, {"z [mm]": 1e-3}])
@pytest.mark.parametrize("name", ["z", "z [mm]"])
def test_a_channel_has_no_unit_in_its_name_however_its_column_is_called(
    tmp_path: Path, name: str, scale: dict[str, float]
) -> None:
    file = tmp_path / "rig.csv"
    file.write_text("t [s],F [N],z [mm]\n0,5,1\n1,6,2\n")
    found = sid.TimeSeries.from_csv(file, inputs=["F [N]"], outputs=name, time="t [s]", scale=scale)
    assert found.inputs == ("F",) and found.outputs == ("z",) and dict(found.units) == {"F": "N", "z": "m"}
    np.testing.assert_array_equal(found.y, [1e-3, 2e-3])


@pytest.mark.parametrize("header, lines", [("t [ms],z\n", 0), ("t,z\nms,mm\n", 1)])
def test_times_in_another_unit_are_not_taken_for_seconds(tmp_path: Path, header: str, lines: int) -> None:
    file = tmp_path / "rig.csv"
    file.write_text(header + "0,1\n10,2\n")
    form = sid.TextFormat(unit_lines=lines)
    with pytest.raises(ValueError, match=r"the times in the column 't' are in ms.*scale=\{'t': 0.001\}"):
        sid.TimeSeries.from_csv(file, inputs=None, outputs="z", time="t", format=form)
    found = sid.TimeSeries.from_csv(file, inputs=None, outputs="z", time="t", format=form, scale={"t": 1e-3})
    np.testing.assert_allclose(found.t, [0.0, 0.01])


def test_own_units_replace_those_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rig.csv"
    file.write_text("t,z [mm]\n0,1\n1,2\n")
    assert dict(sid.TimeSeries.from_csv(file, inputs=None, outputs="z", time="t", units={"z": "inch"}).units) == {"z": "inch"}


def test_headers_and_factors() -> None:
    assert split_header("a (b) [c]") == ("a (b)", "c")
    assert split_header("(mm)") == ("(mm)", "")
    assert [split_header(n)[1] for n in ("q[3]", "x(t)", "K[0, 1]", "y (1)")] == ["", "", "", ""]
    assert scaled("g", 1e-3) == ""  # an acceleration, or a mass
    assert [scaled("m/s^2", 9.81), scaled("µm", 1e-6), scaled("MPa", 1e6), scaled("", 10.0)] == ["", "m", "Pa", ""]


def test_units_reach_runs_and_labels() -> None:
    import matplotlib

    matplotlib.use("Agg")
    one = record()
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("k",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    run = sid.simulate(system, one, {"k": 1.0}, x0=0.0, substeps=2)
    assert run["y"].attrs["units"] == "mm"
    assert sid.plot_record(one)[1, 0].get_ylabel() == "z (mm)"
    panels = sid.plot_fit(one, run["y"].to_numpy())
    assert panels.ravel()[0].get_ylabel() == "z (mm)" and " mm, fit" in panels.ravel()[-1].get_title("right")


def test_what_is_inferred_has_the_units_of_the_record() -> None:
    t = np.arange(30) * 0.1
    y = np.c_[np.cos(t), -np.sin(t)] + 0.01 * np.random.default_rng(0).standard_normal((30, 2))
    system = sid.System(
        lambda t, x, u, p: (x.v, -p.k * x.z),
        states=("z", "v"),
        params=("k",),
        observe=lambda t, x, dx, u, p: {"z": x.z, "v": x.v},
    )
    both = sid.TimeSeries(t, None, y, outputs=["a", "b"], units={"a": "mm", "b": "mm/s"})
    one = sid.TimeSeries(t, None, y, outputs=["a", "b"], units={"a": "V", "b": "V"})
    for record, units in ((both, ["mm", "mm/s"]), (one, ["V", "V"])):
        with pm.Model() as model:
            k = pm.LogNormal("k", 0.0, 0.1)
            sid.ODEFilter("y", system, record, {"k": k}, noise=0.01, x0={"z": 1.0, "v": 0.0}, substeps=2)
        draws = xr.Dataset({"k": (("chain", "draw"), [[1.0, 1.01]])})
        fit = sid.fit_pem(system, record, {"k": 1.0}, predictor=sid.ExtendedKalman(substeps=2), x0={"z": 1.0, "v": 0.0})
        found = [
            sid.smooth(draws, model=model),
            sid.sample_states(draws, model=model, random_seed=0),
            sid.innovations(draws, model=model),
            fit.innovations(),
        ]
        for result in found:
            assert result["units"].values.tolist() == units and result["time"].attrs["units"] == "s"
            what = result["innovation"] if "innovation" in result else result["outputs"]
            assert what.attrs.get("units") == ("V" if record is one else None)
            assert "units" not in result.get("standardised", result).attrs
        # A record without outputs has none of its own.
        new = sid.TimeSeries(t, None, None)
        for runs in (sid.predict(draws, new, x0={"z": 1.0, "v": 0.0}, model=model), fit.predict()):
            assert [runs[name].attrs["units"] for name in ("z", "v")] == units


def test_units_are_the_same_however_they_are_written() -> None:
    same = [("m/s^2", "m/s²"), ("N m", "N·m"), ("µm", "um"), ("μm", "µm"), ("Ω", "ohm"), ("°C", "degC"), ("m", ""), ("", "")]
    assert all(same_unit(a, b) and same_unit(b, a) for a, b in same)
    assert not any(same_unit(a, b) for a, b in [("m", "mm"), ("N", "kN"), ("mN", "MN"), ("m/s", "m/s^2"), ("°C", "K")])
