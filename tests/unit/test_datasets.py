"""Loaders of the benchmark records: parts, units, where they look for files."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pm_sysid import datasets
from pm_sysid.datasets import EMPS_FORCE_PER_VOLT, benchmark, bouc_wen, emps, emps_controller, f16, silverbox
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
    with pytest.raises(ValueError, match=r"name must be one of 'CED', .* but is 'Tanks'"):
        benchmark("Tanks")
    with pytest.raises(ValueError, match="part must be one of 'train', 'test', but is 'all'"):
        benchmark("CED", "all")


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
    def data(n, name="", step=0.1):
        return SimpleNamespace(u=np.arange(n) / 7, y=np.full(n, float(n)), sampling_time=step, name=name)

    def levels(train_test_split, output_index):
        assert not train_test_split
        assert output_index in range(3)
        return [data(20 + level, f"F16Data_FullMSine_Level{level}.mat") for level in range(1, 8)]

    def offline():
        raise OSError("no route to host")

    package = SimpleNamespace(
        CED=lambda: ((data(40), data(41)), (data(10), data(11))),
        Cascaded_Tanks=lambda: (data(102, step=4.0), data(103, step=4.0)),
        Silverbox=offline,
    )
    no_folder.setitem(sys.modules, "nonlinear_benchmarks", package)
    assert [len(r) for r in benchmark("CED", "test")] == [10, 11]
    (tank,) = benchmark("Cascaded_Tanks", intersample="zoh")
    assert (len(tank), tank.fs, tank.intersample) == (102, pytest.approx(0.25), "zoh")
    with pytest.raises(
        FileNotFoundError, match=r"Silverbox could not be downloaded \(no route to host\); try again with a netw"
    ):
        benchmark("Silverbox")
    package.F16 = levels
    assert f16(3).y.shape == (23, 3) and f16(3).fs == pytest.approx(400.0)
    no_folder.setitem(sys.modules, "nonlinear_benchmarks", None)
    with pytest.raises(FileNotFoundError, match="CED is in no known folder; install nonlinear_benchmarks"):
        benchmark("CED")
