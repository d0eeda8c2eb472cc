"""Loaders of the benchmark records: parts, units, where they look for files."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pm_sysid import TimeSeries, datasets
from pm_sysid.datasets import (
    EMPS_FORCE_PER_VOLT,
    Benchmark,
    benchmark,
    bouc_wen,
    cascaded_tanks,
    emps,
    emps_controller,
    f16,
    score,
    silverbox,
)  # fmt: skip
from support.records import FOLDER

SILVERBOX = pytest.mark.needs_records("silverbox_snls80mv.npz")
BOUC_WEN = pytest.mark.needs_records(
    *(f"boucwen_{part}.npz" for part in ("train_multisine", "test_multisine", "test_sinesweep"))
)
EMPS = pytest.mark.needs_records("emps_train.npz", "emps_test_pulses.npz")


@SILVERBOX
@pytest.mark.parametrize(("part", "size"), [("train", 3073), ("arrow", 39001), ("full", 131072)])
def test_silverbox(part, size):
    record = silverbox(part, FOLDER)
    assert len(record) == size and record.t[0] == 0 and record.uniform
    assert record.fs == pytest.approx(1e7 / 2**14) and record.intersample == "bl"
    if part == "arrow":
        assert record.y.std() == pytest.approx(0.0536, rel=0.02)
        assert record.u.std() == pytest.approx(0.0231, rel=0.05)
    assert np.abs(record.y).max() == pytest.approx({"train": 0.212}.get(part, 0.300), abs=0.01)


@SILVERBOX
def test_silverbox_parts_are_windows_of_the_whole():
    full = silverbox("full", FOLDER)
    assert_array_equal(silverbox("train", FOLDER).y, full.y[49277:52350])
    assert_array_equal(silverbox("arrow", FOLDER, intersample="foh").u, full.u[999:40000])


@BOUC_WEN
@pytest.mark.parametrize(
    ("part", "size", "periodic"),
    [("train", 32768, True), ("test_multisine", 8192, True), ("test_sinesweep", 153000, False)],
)
def test_bouc_wen(part, size, periodic):
    record = bouc_wen(part, FOLDER)
    assert (len(record), record.fs, record.periodic) == (size, pytest.approx(750.0), periodic)
    if part == "train":
        assert_allclose(record.u[:8192], record.u[8192:16384], atol=1e-9)
    rms = {"train": 50.0, "test_multisine": 50.0}.get(part)
    assert rms is None or np.sqrt(np.mean(record.u**2)) == pytest.approx(rms, rel=0.02)


@EMPS
@pytest.mark.parametrize("part", ["train", "test"])
def test_emps(part):
    record = emps(part, FOLDER)
    assert (len(record), record.fs) == (24841, pytest.approx(1000.0))
    assert np.abs(record.u).max() <= 10.1 * EMPS_FORCE_PER_VOLT and np.abs(record.y).max() < 1


@SILVERBOX
def test_silverbox_split_of_the_benchmark():
    full = silverbox("full", FOLDER)
    train, test = silverbox("multisine_train", FOLDER), silverbox("multisine_test", FOLDER)
    assert_array_equal(np.concatenate([train.y, test.y]), full.y[40650:127400])
    assert len(train) == int(0.75 * (127400 - 40650))
    arrow, inner = silverbox("arrow_full", FOLDER), silverbox("arrow_no_extrapolation", FOLDER)
    assert_array_equal(arrow.y[:32000], inner.y)
    assert len(arrow) == 40475 and np.abs(inner.y).max() < 1.1 * np.abs(train.y).max() < np.abs(arrow.y).max()


@EMPS
def test_emps_controller():
    """The loop reproduces the voltages that were measured, the pulses included."""
    for part in ("train", "test"):
        record, loop = emps(part, FOLDER), emps_controller(part, FOLDER)
        speed = np.gradient(record.y, record.t)
        volts = np.clip(loop.kv * (loop.kp * (loop.reference - record.y) - speed) + loop.pulses, -10, 10)
        moving = np.convolve(volts, np.ones(25) / 25, "same"), np.convolve(record.u / loop.gain, np.ones(25) / 25, "same")
        assert np.std(moving[0] - moving[1]) < 0.1 * np.std(moving[1])
        assert loop.pulses.max() == (5.0 if part == "test" else 0.0) and loop.gain == EMPS_FORCE_PER_VOLT


@pytest.mark.needs_records("f16_fullmsine_level1.npz")
def test_f16():
    record, steady = f16(folder=FOLDER), f16(1, "steady", FOLDER)
    assert (len(record), record.fs, record.periodic) == (9 * 8192, pytest.approx(400.0), False)
    assert (record.inputs, record.outputs) == (("force",), ("acc1", "acc2", "acc3"))
    assert np.sqrt(np.mean(record.u**2)) == pytest.approx(12.36, rel=0.01)
    assert len(steady) == 8 * 8192 and steady.periodic and steady.t[0] == 0
    periods = steady.y.reshape(8, 8192, 3)
    assert np.all((periods - periods.mean(axis=0)).std(axis=(0, 1)) < 0.02 * periods.std(axis=(0, 1)))


@EMPS
def test_the_environment_variable_names_the_folder(monkeypatch):
    monkeypatch.setenv("PM_SYSID_DATA", str(FOLDER))
    assert_array_equal(emps("test").y, emps("test", FOLDER).y)


@pytest.mark.parametrize("load", [silverbox, bouc_wen, emps])
def test_unknown_part(load):
    with pytest.raises(ValueError, match=r"part must be one of 'train', .* but is 'half'"):
        load("half")


def test_unknown_level_and_name():
    for level in (0, 8, True, "1"):
        with pytest.raises(ValueError, match=f"level must be one of 1 to 7, but is {level!r}"):
            f16(level)
    with pytest.raises(ValueError, match=r"name must be one of 'Silverbox', .* but is 'Tanks'"):
        benchmark("Tanks")
    with pytest.raises(ValueError, match=r'intersample must be "zoh", "foh" or "bl", or None, but is \'held\''):
        benchmark("CED", intersample="held")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*emps_train\.npz; name the folder that holds"):
        emps("train", tmp_path)


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.delenv("PM_SYSID_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "nonlinear_benchmarks", None)
    return monkeypatch


def test_no_folder_and_no_download(no_folder):
    remedies = r"pass the folder .*variable PM_SYSID_DATA, or install nonlinear_benchmarks to download"
    for load in (silverbox, emps, lambda: bouc_wen("test_sinesweep")):
        with pytest.raises(FileNotFoundError, match=remedies):
            load()
    with pytest.raises(FileNotFoundError, match=r"boucwen_train_multisine\.npz cannot be downloaded; pass the f"):
        bouc_wen("train")


def test_download(no_folder):
    def records(sizes):
        return [SimpleNamespace(u=np.arange(n) / 7, y=np.full(n, float(n))) for n in sizes]

    def only_whole(result):
        def load(train_test_split=True):
            assert not train_test_split
            return result

        return load

    package = SimpleNamespace(
        Silverbox=only_whole(records([131072])[0]),
        EMPS=only_whole(records([30, 40])),
        not_splitted_benchmarks=SimpleNamespace(BoucWen=only_whole(records([50, 60]))),
    )
    no_folder.setitem(sys.modules, "nonlinear_benchmarks", package)
    no_folder.setattr(datasets, "_PUBLISHED", {})
    assert len(silverbox("train")) == 3073
    assert [len(emps(part)) for part in ("train", "test")] == [30, 40]
    assert emps("train").u[7] == pytest.approx(EMPS_FORCE_PER_VOLT)
    assert [len(bouc_wen(part)) for part in ("test_multisine", "test_sinesweep")] == [50, 60]


@SILVERBOX
@EMPS
def test_a_download_is_compared_with_the_published_record(no_folder):
    """The real records pass, also as text of eight digits; a changed sample, a lost one and swapped channels do not."""
    whole, drive = silverbox("full", FOLDER), emps("test", FOLDER)
    volts = drive.u / EMPS_FORCE_PER_VOLT
    shown = SimpleNamespace(u=np.array([float(f"{x:.8g}") for x in whole.u]), y=whole.y)
    changed = whole.y.copy()
    changed[70000] += 0.001 * whole.y.std()

    def package(silver, volts, position):
        both = (None, SimpleNamespace(u=volts, y=position))
        loaders = SimpleNamespace(Silverbox=lambda train_test_split: silver, EMPS=lambda train_test_split: both)
        no_folder.setitem(sys.modules, "nonlinear_benchmarks", loaders)

    package(shown, volts, drive.y)
    assert_allclose(silverbox("train").y, silverbox("train", FOLDER).y)
    assert_allclose(emps("test").u, drive.u)
    package(SimpleNamespace(u=whole.u, y=changed), drive.y, volts)
    with pytest.raises(
        ValueError, match=r"silverbox_snls80mv\.npz is not the published record: channel 1 \(output\) is off by"
    ):
        silverbox("train")
    with pytest.raises(
        ValueError, match=r"channel 0 \(input\) is off by .*; channel 1 .* Delete what nonlinear_benchmarks keeps"
    ):
        emps("test")
    package(whole, volts[1:], drive.y[1:])
    with pytest.raises(ValueError, match="24840 samples instead of 24841"):
        emps("test")


def test_download_of_other_benchmarks(no_folder):
    def data(n, name="", step=0.1, window=4):
        return SimpleNamespace(
            u=np.arange(n) / 7,
            y=np.full(n, float(n)),
            sampling_time=step,
            name=name,
            state_initialization_window_length=window,
        )

    def levels(train_test_split, output_index):
        assert not train_test_split
        assert output_index in range(3)
        return [data(60 + level, f"F16Data_FullMSine_Level{level}.mat") for level in range(1, 8)]

    def tanks(train_test_split):
        assert not train_test_split
        return [data(102, step=4.0), data(103, step=4.0)]

    def offline():
        raise OSError("no route to host")

    package = SimpleNamespace(
        CED=lambda: ((data(40), data(41)), (data(10, "low"), data(11, "high"))),
        ParWH=lambda: ((data(40),), (data(10), data(11))),
        Cascaded_Tanks=tanks,
        WienerHammerBenchMark=offline,
    )
    no_folder.setitem(sys.modules, "nonlinear_benchmarks", package)
    no_folder.setattr(datasets, "_PUBLISHED", {})
    drives = benchmark("CED", intersample="zoh")
    assert {name: len(r) for name, r in drives.test.items()} == {"low": 10, "high": 11}
    assert ([len(r) for r in drives.train], drives.window, drives.unit) == ([40, 41], 4, "ticks/s")
    assert drives.train[0].intersample == "zoh"
    assert list(benchmark("ParWH").test) == ["test 1", "test 2"]  # where the package has no names
    with pytest.raises(
        FileNotFoundError, match=r"WienerHammerBenchMark could not be downloaded \(no route to host\); try again with a netw"
    ):
        benchmark("WienerHammerBenchMark")
    for old in ("test", Path("records")):
        with pytest.raises(ValueError, match=r"folder is .*, but CED comes from the package nonlinear_benchmarks alone"):
            benchmark("CED", old)
    package.CED = lambda: ((data(40),), (data(10, window=4), data(11, window=10)))
    with pytest.raises(ValueError, match=r"the tests of CED have the windows \[4, 10\]"):
        benchmark("CED")
    package.F16 = levels
    assert f16(3).y.shape == (63, 3) and f16(3).fs == pytest.approx(400.0)
    whole = benchmark("F16")
    assert [len(r) for r in whole.train] == [61, 63, 65, 67]
    assert {name: len(r) for name, r in whole.test.items()} == {"level 2": 62, "level 4": 64, "level 6": 66}
    assert len(cascaded_tanks()) == 102 and len(cascaded_tanks("test")) == 103
    no_folder.setitem(sys.modules, "nonlinear_benchmarks", None)
    with pytest.raises(FileNotFoundError, match="CED is in no known folder; install nonlinear_benchmarks"):
        benchmark("CED")


@SILVERBOX
@BOUC_WEN
@EMPS
@pytest.mark.needs_records("cascaded_tanks.npz")
@pytest.mark.parametrize(
    "name, train, tests, window",
    [
        ("Silverbox", 65062, {"multisine_test": 21688, "arrow_full": 40475, "arrow_no_extrapolation": 32000}, 50),
        ("BoucWen", 32768, {"multisine": 8192, "sinesweep": 153000}, 0),
        ("EMPS", 24841, {"pulses": 24841}, 20),
        ("Cascaded_Tanks", 1024, {"validation": 1024}, 50),
    ],
)
def test_the_official_splits(name, train, tests, window):
    found = benchmark(name, FOLDER)
    assert ([len(r) for r in found.train], {k: len(r) for k, r in found.test.items()}) == ([train], tests)
    assert found.window == window and f"{found.name!r}" in repr(found)
    held = name in ("EMPS", "Cascaded_Tanks")
    assert {r.intersample for r in (*found.train, *found.test.values())} == {"zoh" if held else "bl"}
    assert benchmark(name, FOLDER, "foh").train[0].intersample == "foh"


@pytest.mark.needs_records("cascaded_tanks.npz")
def test_cascaded_tanks_end_at_ten_volts():
    for part in ("train", "test"):
        record = cascaded_tanks(part, FOLDER)
        assert record.fs == pytest.approx(0.25) and 10.0 <= record.y.max() < 10.01 and np.sum(record.y > 9.99) > 10


def pair(window=2):
    """A benchmark with a test of one output and a test of two, and predictions that are off by known amounts."""
    t = np.arange(6.0)
    one, two = TimeSeries(t, None, np.cos(t)), TimeSeries(t, None, np.stack([t, -t], axis=1))
    off = np.array([9.0, np.nan, 1.0, -1.0, 3.0, 1.0]) * 1e-3
    board = Benchmark("pair", (one,), {"one": one, "two": two}, window, "mV", 1e3)
    return board, {"one": one.y + off, "two": two.y + np.stack([2 * off, -off], axis=1)}


def test_a_benchmark_of_ones_own_keeps_what_it_was_given():
    t = np.arange(4.0)
    record = TimeSeries(t, t, t)
    tests = {"a": record}
    board = Benchmark("mine", [record], tests, 3, "V", 1)  # type: ignore[arg-type]
    tests["b"] = record[:2]
    assert board.train == (record,) and list(board.test) == ["a"]
    assert list(score(board, t)["samples"]) == [1]
    assert replace(board, window=0).window == 0


RAMP = TimeSeries(np.arange(4.0), np.arange(4.0), np.arange(4.0))


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"window": -25}, ValueError, "window is -25; give a whole number"),
        ({"window": 1.0}, ValueError, "window is 1.0; give a whole number"),
        ({"window": True}, ValueError, "window is True; give a whole number"),
        ({"window": 4}, ValueError, r"window is 4, but test\['a'\] has 4 samples"),
        ({"test": {"a": RAMP.replace(y=[0.0, 1.0, np.nan, np.nan])}}, ValueError, r"test\['a'\] has no measured sample of y"),
        ({"test": {"a": RAMP.replace(y=None)}}, ValueError, r"test\['a'\] has no output"),
        ({"test": [RAMP]}, TypeError, "test is list; give TimeSeries by name"),
        ({"test": {"a": [1.0]}}, TypeError, "test is dict with list; give TimeSeries by name"),
        ({"test": {}}, ValueError, "test has no record"),
        ({"test": {1: RAMP}}, TypeError, "a name in test is 1; give text"),
        ({"train": RAMP}, TypeError, "train is TimeSeries; give a tuple"),
        ({"train": ()}, ValueError, "train has no record"),
        ({"scale": "x"}, TypeError, "scale is 'x'; give a positive number"),
        ({"scale": 0.0}, ValueError, "scale is 0.0; give a positive number"),
        ({"scale": np.nan}, ValueError, "scale is nan; give a positive number"),
        ({"unit": None}, TypeError, "unit is None; give text"),
        ({"name": ""}, TypeError, "name is ''; give text"),
    ],
)
def test_a_benchmark_refuses_what_could_not_be_scored(changed, error, message):
    good = {"name": "mine", "train": (RAMP,), "test": {"a": RAMP}, "window": 2, "unit": "V", "scale": 1.0}
    with pytest.raises(error, match=message):
        Benchmark(**good | changed)


def test_a_score_is_the_rmse_after_the_window():
    board, predictions = pair()
    table = score(board, predictions)
    assert list(table["test"]) == ["one", "two", "two"] and list(table["output"]) == ["y", "y1", "y2"]
    assert list(table["samples"]) == [4, 4, 4]
    assert_allclose(table["rmse"], np.sqrt(3.0) * np.array([1.0, 2.0, 1.0]), rtol=1e-9)  # sqrt((1 + 1 + 9 + 1) / 4)
    assert_array_equal(score(board, {"two": predictions["two"], "one": predictions["one"][:, None]})["rmse"], table["rmse"])
    only = replace(board, test={"one": board.test["one"]})
    assert score(only, predictions["one"])["rmse"][0] == table["rmse"][0]


def test_a_score_leaves_out_what_was_not_measured():
    board, predictions = pair()
    y = board.test["one"].y.copy()
    y[4] = np.nan
    some = replace(board, test={"one": board.test["one"].replace(y=y)})
    table = score(some, predictions["one"])
    assert table["samples"][0] == 3 and table["rmse"][0] == pytest.approx(1.0)


def test_a_score_is_that_of_the_package_where_it_is_installed(monkeypatch):
    board, predictions = pair()
    ours = score(board, predictions)
    twice = SimpleNamespace(RMSE=lambda y, run: 2 * np.sqrt(np.mean((run - y) ** 2)))
    monkeypatch.setitem(sys.modules, "nonlinear_benchmarks", SimpleNamespace(error_metrics=twice))
    monkeypatch.setitem(sys.modules, "nonlinear_benchmarks.error_metrics", twice)
    assert_allclose(score(board, predictions)["rmse"], 2 * ours["rmse"], rtol=1e-12)


def test_our_score_and_that_of_the_package_agree():
    package = pytest.importorskip("nonlinear_benchmarks.error_metrics")
    rng = np.random.default_rng(0)
    y, run = rng.standard_normal((2, 50))
    assert float(datasets.rmse(y, run)) == pytest.approx(float(package.RMSE(y, run)), rel=1e-12)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"one": np.zeros(6)}, r"predictions names the tests \['one'\]; give those of each of \['one', 'two'\]"),
        (np.zeros(6), r"predictions is one ndarray, but pair has the tests \['one', 'two'\]; give a dict"),
        ({"one": np.zeros(4), "two": np.zeros((6, 2))}, r"\['one'\] has the shape \(4,\); .* shape \(6,\): .* first 2"),
        ({"one": np.zeros(6), "two": np.zeros(6)}, r"predictions\['two'\] has the shape \(6,\); .* shape \(6, 2\)"),
        ({"one": [0, 0, 0, np.nan, np.inf, 0], "two": np.zeros((6, 2))}, r"\['one'\] has 2 values .* at sample 3; .* 2 on"),
    ],
    ids=["missing", "one for two", "short", "outputs", "not finite"],
)  # fmt: skip
def test_a_score_refuses_predictions_of_something_else(wrong, message):
    board, _ = pair()
    with pytest.raises(ValueError, match=message):
        score(board, wrong)


def test_a_score_needs_a_benchmark_and_numbers():
    board, predictions = pair()
    with pytest.raises(TypeError, match=r"benchmark is 'Silverbox'; give what pm_sysid\.datasets\.benchmark"):
        score("Silverbox", predictions)
    with pytest.raises(TypeError, match=r"predictions\['one'\] must hold real numbers"):
        score(board, predictions | {"one": ["a"] * 6})
