"""Records out of text and MATLAB files: what is read, and what is refused with which remedy."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.io import savemat

from pm_sysid.records.csv_mat import TextFormat
from pm_sysid.records.timeseries import TimeSeries

PLAIN = "t,F,z,v\n0.0,1.0,0.1,10\n0.1,2.0,,20\n0.25,-1.0,0.3,NaN\n0.3,0.5,n/a,40\n"
FORMAT = {f.name for f in fields(TextFormat)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rig.csv"


def read(file: Path, text: str, **options: Any) -> TimeSeries:
    file.write_text(text, encoding="utf-8")
    form = TextFormat(**{k: options.pop(k) for k in FORMAT & set(options)})
    return TimeSeries.from_csv(file, **({"inputs": "F", "outputs": ["z", "v"], "time": "t", "format": form} | options))


def test_columns_gaps_and_irregular_times(file: Path) -> None:
    record = read(file, PLAIN, scale={"F": 1e3, "v": 0.1}, intersample="foh")
    assert (record.inputs, record.outputs, record.intersample) == (("F",), ("z", "v"), "foh")
    assert_array_equal(record.t, [0.0, 0.1, 0.25, 0.3])
    assert_array_equal(record.u, [1e3, 2e3, -1e3, 500.0])
    assert_allclose(record.y, [[0.1, 1.0], [np.nan, 2.0], [0.3, np.nan], [np.nan, 4.0]])


def test_rate_instead_of_times_and_order_of_channels(file: Path) -> None:
    record = read(file, PLAIN, inputs=None, outputs=["v", "z"], time=None, fs=50.0)
    assert record.u is None and record.fs == pytest.approx(50.0) and record.outputs == ("v", "z")
    assert_array_equal(record.y[:, 0], [10.0, 20.0, np.nan, 40.0])


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " "])
def test_delimiters_are_found(file: Path, delimiter: str) -> None:
    text = PLAIN.replace(",,", ",NaN,").replace(",", delimiter)
    expected = read(file, PLAIN)
    for how in ("auto", delimiter):
        record = read(file, text, delimiter=how)
        assert_array_equal(record.y, expected.y)
    assert_array_equal(read(file, text.replace(delimiter, "  " + delimiter)).u, expected.u)


def test_decimal_commas_units_and_a_preamble(file: Path) -> None:
    text = 'Rig 7; 2024\n\n"t";"Force; left";"z"\ns;kN;mm\n0,0;1,5;1e-1\n0,1;-2,5;\n\n\n'
    record = read(file, text, inputs="Force; left", outputs="z", decimal=",", skip=2, unit_lines=1)
    assert_array_equal(record.t, [0.0, 0.1])
    assert_array_equal(record.u, [1.5, -2.5])
    assert_array_equal(record.y, [0.1, np.nan])


def test_no_header_missing_marks_trailing_delimiters_and_a_byte_order_mark(file: Path) -> None:
    file.write_bytes("\ufeff0.0,1,2,\r\n0.5,3,---,\r\n1.0,4,-999,\r\n".encode())
    record = TimeSeries.from_csv(
        file,
        inputs="a",
        outputs="b",
        time="t",
        format=TextFormat(columns=["t", "a", "b"], missing=["---", "-999"]),
        intersample="zoh",
    )
    assert_array_equal(record.u, [1.0, 3.0, 4.0])
    assert_array_equal(record.y, [2.0, np.nan, np.nan])
    assert record.fs == pytest.approx(2.0)


@pytest.mark.parametrize("cells", [("1.5", "-9999"), ("1.5", "-9999.0"), ("", "-9999"), ("", "-9.999e3")])
def test_a_number_that_marks_what_is_missing_does_so_in_any_column(file: Path, cells: tuple[str, str]) -> None:
    file.write_text("t,F,z\n0,1,2\n" + "".join(f"{k + 1},1,{cell}\n" for k, cell in enumerate(cells)))
    record = TimeSeries.from_csv(file, inputs="F", outputs="z", time="t", format=TextFormat(missing=["-9999"]))
    assert_array_equal(record.y, [2.0, 1.5 if cells[0] else np.nan, np.nan])
    file.write_text("t,F,z\n0,1,2\n1,1,0\n")  # zero may mark what is missing, and is a time all the same
    record = TimeSeries.from_csv(file, inputs="F", outputs="z", time="t", format=TextFormat(missing=["0"]))
    assert_array_equal(record.t, [0.0, 1.0])
    assert_array_equal(record.y, [2.0, np.nan])
    file.write_text("t,F,z\n0,1,2\n1,1,-9999\n")
    assert TimeSeries.from_csv(file, inputs="F", outputs="z", time="t").y[1] == -9999.0  # unless nobody says so


@pytest.mark.parametrize("time", ["t / ms", "t/ms", "time ms"])
def test_a_unit_behind_the_name_of_the_time_is_seen(file: Path, time: str) -> None:
    file.write_text(f"{time},F,z\n0,1,2\n10,1,2\n")
    with pytest.raises(ValueError, match=r"ends in ms, .* pass scale="):
        TimeSeries.from_csv(file, inputs="F", outputs="z", time=time)
    assert TimeSeries.from_csv(file, inputs="F", outputs="z", time=time, scale={time: 1e-3}).fs == pytest.approx(100.0)


def test_columns_that_are_not_wanted_may_hold_text(file: Path) -> None:
    record = read(file, "t,F,z,comment\n0,1,2,start\n1,2,3,stop here\n", outputs="z")
    assert_array_equal(record.y, [2.0, 3.0])


@pytest.mark.parametrize(
    "stamps", [["2024-02-28T23:59:59.5", "2024-02-29 00:00:00"], ["2024-03-01T00:00:00Z", "2024-03-01T01:00:00.5+01:00"]]
)
def test_dates_become_seconds(file: Path, stamps: list[str]) -> None:
    record = read(file, f"t,F,z\n{stamps[0]},1,2\n{stamps[1]},3,4\n", outputs="z")
    assert_allclose(record.t, [0.0, 0.5])


@pytest.mark.parametrize(
    "dates, stamps",
    [
        ("%d.%m.%Y %H:%M:%S", ["29.02.2024 23:59:59", "01.03.2024 00:00:01"]),
        ("%m/%d/%Y %I %p", ["11/29/2026 11 AM", "11/29/2026 1 PM"]),
    ],
)
def test_dates_in_other_forms(file: Path, dates: str, stamps: list[str]) -> None:
    text = f"t,F,z\n{stamps[0]},1,2\n{stamps[1]},3,4\n"
    record = read(file, text, outputs="z", format=TextFormat(dates=dates))
    assert_allclose(record.t, [0.0, 2.0 if "%S" in dates else 7200.0])
    with pytest.raises(ValueError, match=r"which is not written as TextFormat\(dates='%Y %H'\) says"):
        read(file, text, outputs="z", format=TextFormat(dates="%Y %H"))
    with pytest.raises(ValueError, match=r"in column 't', which is no number; give TextFormat\(dates="):
        read(file, text, outputs="z")
    with pytest.raises(ValueError, match=r"dates is '%d\.%m'; give how dates are written, with their year"):
        TextFormat(dates="%d.%m")
    with pytest.raises(ValueError, match="no column holds the times: give time="):
        read(file, text, outputs="z", time=None, fs=1.0, format=TextFormat(dates=dates))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (
            "2024-13-01T00:00:02",
            "'2024-13-01T00:00:02' in column 't', which is no date such as '2024-02-28T00:00:00' in line 2",
        ),
        ("", "'' in column 't', which is no date such as"),
        ("2024-02-28T00:00:02Z", "has a time zone, or none, unlike '2024-02-28T00:00:00' in line 2; correct it"),
    ],
)
def test_the_line_of_a_wrong_date_is_named(file: Path, cell: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"line 4 of .*{message}"):
        read(file, f"t,F,z\n2024-02-28T00:00:00,1,2\n2024-02-28T00:00:01,1,2\n{cell},3,4\n", outputs="z")


def test_all_digits_are_read(file: Path) -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)) * 10.0 ** np.arange(-5, 10, 5)
    rows = "\n".join(",".join(map(repr, [float(i), *row])) for i, row in enumerate(values.tolist()))
    record = read(file, f"t,F,z,v\n{rows}\n")
    assert_array_equal(np.column_stack([record.u, record.y]), values)


@pytest.mark.parametrize(
    "text, options, message",
    [
        (
            PLAIN,
            dict(inputs="G"),
            r"there is no column 'G' in line 1 of .*; there are 't', 'F', 'z', 'v'; pass TextFormat\(...\) with delimiter=",
        ),
        (
            "Zeit [s];Kraft F (kN);Weg/mm\n0.0;1.0;2.0\n",
            dict(inputs="Kraft", outputs="Weg/mm", time="Zeit [s]"),
            r"no column 'Kraft' in line 1 of .* \(is it 'Kraft F \(kN\)'\?\); there are 'Zeit \[s\]', 'Kraft",
        ),
        (PLAIN, dict(unit_lines=1), "line 2 of .* holds numbers, no units, and unit_lines=1 would drop it"),
        (
            PLAIN.replace(",", ";"),
            dict(decimal=","),
            "has '0.0' in column 'F'|pass TextFormat\\(decimal=\"\\.\"\\) for decimal points",
        ),
        ("first\nsecond\n" + PLAIN, {}, "the header of .* is in line 3; pass TextFormat\\(skip=2\\)"),
        (PLAIN, dict(time=None), "pass either time, .* or fs, .*; neither is given"),
        (PLAIN, dict(fs=10.0), r"both are given \('t', 10.0\)"),
        (PLAIN, dict(time=None, fs=0.0), "fs must be a positive sampling rate in Hz, but is 0.0"),
        (PLAIN, dict(time=None, fs="rate"), "fs must be a positive sampling rate in Hz, but is 'rate'"),
        (PLAIN, dict(inputs=None, outputs=()), "inputs and outputs are both empty"),
        (PLAIN.replace("0.3,N", "oops,N"), {}, "line 4 of .* has 'oops' in column 'z', which is no number; correct it"),
        (PLAIN.replace("-1.0", "1_0"), {}, "line 4 of .* has '1_0' in column 'F'"),
        (
            "t,F,z,v\ns,N,m,m/s\n0,1,2,3\n",
            {},
            "line 2 of .* has 'N' in column 'F', which is no number; pass TextFormat\\(unit_lines=1\\)",
        ),
        ("t;F;z;v\n0,5;1;2;3\n", {}, "has '0,5' in column 't'.*pass TextFormat\\(decimal=\",\"\\)"),
        (
            "t;F;z;v\n0,5;1.000;2;3\n",
            dict(decimal=","),
            r"has '1\.000' in column 'F'.*pass TextFormat\(decimal=.\..\) for decimal points",
        ),
        (
            't,F,z,v\n0,"1,234",2,3\n',
            {},
            r"line 2 of .* has '1,234' in column 'F'.*decimal commas, or write numbers without a si",
        ),
        (
            "t;F;z;v\n0;1.234,5;2;3\n",
            {},
            r"line 2 of .* has '1\.234,5' in column 'F'.*; write numbers without a sign between th",
        ),
        ("t;F;z;v\n0;1.234,5;2;3\n", dict(decimal=","), r"'1\.234,5' in column 'F'.*; write numbers without a sign between th"),
        ("t;F;z;v\n0;1 234.5;2;3\n", dict(unit_lines=0), r"'1 234\.5' in column 'F'.*; write numbers without a sign between"),
        ("t,F,z,v\n0,12 %,2,3\n", {}, r"'12 %' in column 'F'.*; write it without the sign, with scale=\{'F': 0\.01\}"),
        ("t,F,z,v\n00:00:01,1,2,3\n", {}, r"'00:00:01' in column 't'.*; write clock times as seconds from the first"),
        ("t,F,z,v\n0,3volt,2,3\n", {}, r"'3volt' in column 'F', which is no number; correct it"),
        ("t,F,z,v\n0,1/s,2,3\n", {}, r"'1/s' in column 'F'.*pass TextFormat\(unit_lines=1\)"),
        (
            "t,F,z,v\n0,5,1,2,3\n",
            {},
            r"line 2 of .* has 5 cells, but there are 4 columns; check the delimiter, and pass TextFormat\(deci",
        ),
        (
            "t_ms" + PLAIN[1:],
            dict(time="t_ms"),
            r"the name of the column 't_ms' ends in ms, .*scale=\{'t_ms': 0.001\}, or scale=\{'t",
        ),
        (PLAIN + "0.4,1.0", {}, "line 6 of .* has 2 cells, but there are 4 columns; complete or delete it"),
        (PLAIN.replace("0.25", "\n0.25"), {}, "line 4 of .* is empty; delete it, or write"),
        (PLAIN.replace("0.25", "0.05"), {}, r"t must increase strictly, but t\[2\] = 0.05 follows .* \(line 4 of .*csv\)"),
        (PLAIN.replace("0.25", ""), {}, r"t must be finite, but t\[2\] is nan; drop the samples without a time \(line 4 of"),
        (PLAIN.replace("-1.0", ""), {}, r"u must be finite, but u\[2\] is nan; interpolate across the gap, .* \(line 4 of"),
        (PLAIN.replace("z", "F"), dict(outputs="v"), "has 2 columns called 'F'; pass TextFormat\\(columns="),
        ("t,F,z,v\n", {}, "has no rows below its header in line 1"),
        (PLAIN, dict(skip=9), "has 5 lines, of which skip=9 leaves none"),
        (PLAIN, dict(columns=["t", "F", "z"]), "columns names 3 columns, but line 1 of .* has 4 by comma, 1 by semicolon"),
        (PLAIN, dict(columns=["t", "z", "v", "w"]), "there is no column 'F'; columns names t, z, v, w"),
        (PLAIN, dict(scale={"x": 2.0}), "scale names 'x', which is not read; it may name F, z, v, t"),
        (PLAIN, dict(scale={"F": 0.0}), r"scale\['F'\] must be a finite factor other than 0, but is 0.0"),
        (PLAIN, dict(decimal="'"), 'decimal must be "." or ",", but is "\'"'),
        (PLAIN, dict(delimiter=", "), "delimiter must be .* but is ', '"),
        (PLAIN, dict(skip=-1), "skip must be a number of lines, 0 or more, but is -1"),
    ],
)
def test_refused_text(file: Path, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(file, text, **options)


def test_other_encodings_and_no_file(file: Path) -> None:
    file.write_bytes("t,F,Größe\n0,1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r'is not text in utf-8-sig; pass TextFormat\(encoding="latin-1"\)'):
        TimeSeries.from_csv(file, inputs="F", outputs="Größe", time="t")
    record = TimeSeries.from_csv(file, inputs="F", outputs="Größe", time="t", format=TextFormat(encoding="latin-1"))
    assert record.outputs == ("Größe",)
    with pytest.raises(FileNotFoundError):
        TimeSeries.from_csv(file.with_name("none.csv"), inputs="F", outputs="z", time="t")
    with pytest.raises(TypeError, match="must be names of columns, but 2 is int"):
        TimeSeries.from_csv(file, inputs="F", outputs=[2], time="t")  # type: ignore[list-item]


def test_a_subclass_stays_one(file: Path) -> None:
    class Measured(TimeSeries):
        pass

    file.write_text(PLAIN)
    assert type(Measured.from_csv(file, inputs="F", outputs="v", time="t")) is Measured


# -- MATLAB -----------------------------------------------------------------------------------------------------------

CONTENT = {
    "t": np.arange(5) / 10,
    "u": np.arange(5.0)[:, None],
    "y": np.arange(10.0).reshape(2, 5),
    "fs": 20.0,
    "name": "rig",
    "square": np.eye(2),
    "rig": {"F": np.arange(5.0), "sensors": {"z": np.array([1.0, np.nan, 3.0, 4.0, 5.0])}},
    "z": np.arange(5) * 1j,
}


def test_a_file_alone_is_answered_by_what_it_holds(file: Path, tmp_path: Path) -> None:
    file.write_text("t;F;z\n0;1;2\n1;2;3\n")
    with pytest.raises(ValueError, match=r"say which channels of .* time='t' .*; there are 't', 'F', 'z'$"):
        TimeSeries.from_csv(file)
    savemat(tmp_path / "rig.mat", {"rig": {"F": [1.0, 2.0]}, "fs": 100.0})
    with pytest.raises(ValueError, match=r"say which channels .* there are rig.F \(2,\), fs \(\)$"):
        TimeSeries.from_mat(tmp_path / "rig.mat")
    assert TimeSeries.from_csv(file, outputs="z", time="t").inputs == ()


@pytest.mark.parametrize("version", ["4", "5"])
def test_variables_of_a_matlab_file(tmp_path: Path, version: str) -> None:
    file = tmp_path / "rig.mat"
    savemat(file, {k: v for k, v in CONTENT.items() if k not in ("rig",) or version == "5"}, format=version)
    record = TimeSeries.from_mat(file, inputs="u", outputs="y", time="t", scale={"u": 10.0}, intersample="zoh")
    assert (record.inputs, record.outputs, record.intersample) == (("u",), ("y1", "y2"), "zoh")
    assert_array_equal(record.u, 10.0 * np.arange(5))
    assert_array_equal(record.y, np.arange(10.0).reshape(2, 5).T)
    assert TimeSeries.from_mat(file, inputs=["u"], outputs=["y"], fs="fs").fs == pytest.approx(20.0)
    assert TimeSeries.from_mat(file, inputs=["u", "t"], outputs=None, fs=4).u.shape == (5, 2)  # type: ignore[union-attr]


def test_fields_of_structures(tmp_path: Path) -> None:
    file = tmp_path / "rig.mat"
    savemat(file, CONTENT)
    record = TimeSeries.from_mat(file, inputs="rig.F", outputs="rig.sensors.z", fs=1.0)
    assert (record.inputs, record.outputs, record.n_missing) == (("F",), ("z",), (1,))


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(inputs="w"), r"there is no variable 'w' in .*; there are t \(5,\), .*rig.sensors.z \(5,\)"),
        (dict(inputs="name"), "the variable 'name' of .* has dtype .*; it must hold real numbers"),
        (dict(inputs="z"), "the variable 'z' of .* has dtype complex128"),
        (dict(time=None, fs="t"), r"the variable 't' of .* must hold one sampling rate, but has shape \(5,\)"),
        (dict(time=None), "neither is given"),
        (dict(inputs=["u", "square"]), "channels must have one number of samples, but have u 5, square 2"),
        (dict(inputs="square"), r"u must have shape \(5,\) or \(5, n\)"),
    ],
)
def test_refused_variables(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    file = tmp_path / "rig.mat"
    savemat(file, CONTENT)
    with pytest.raises(ValueError, match=message):
        TimeSeries.from_mat(file, **({"inputs": "u", "outputs": "y", "time": "t"} | options))


def test_files_that_scipy_does_not_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no"):
        TimeSeries.from_mat(tmp_path / "none.mat", inputs="u", outputs="y", fs=1.0)
    new = tmp_path / "new.mat"  # the head of what MATLAB writes with -v7.3
    head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    new.write_bytes(head.ljust(512, b"\0") + b"\x89HDF\r\n\x1a\n" + b"\0" * 64)
    with pytest.raises(
        ValueError, match=re.escape("version 7.3 (HDF5), which SciPy does not read; save it in MATLAB with save(file")
    ):
        TimeSeries.from_mat(new, inputs="u", outputs="y", fs=1.0)
    text = tmp_path / "text.mat"
    text.write_text("t,u\n" + "0,1\n" * 60)
    with pytest.raises(ValueError, match="is no MATLAB file of version 4 to 7"):
        TimeSeries.from_mat(text, inputs="u", outputs="y", fs=1.0)
