"""Files of runs: whole or not there, one writer at a time, and only for the run that wrote them."""

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pm_sysid.storage import (
    Checkpoint,
    Saved,
    check_identity,
    check_seed,
    locked,
    read,
    read_chains,
    read_settings,
    write,
    write_settings,
)

SEED = 1
HOLD = """
import sys, numpy as np
from pm_sysid.storage import Checkpoint
chain = Checkpoint(sys.argv[1], np.random.default_rng({seed}))
print("held", flush=True)
sys.stdin.read()
"""


def chain(folder: Path) -> Checkpoint:
    return Checkpoint(folder, np.random.default_rng(SEED))


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[None]:
    """Another process writes the chain of this seed."""
    arguments = [sys.executable, "-c", HOLD.format(seed=SEED), str(folder)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.kill()


def in_worker(folder: Path) -> str:
    return chain(folder).path.name


def test_arrays_and_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    arrays = {"x": rng.standard_normal((3, 4)), "i": np.arange(5), "none": np.empty((0, 2)), "nan": np.array([np.nan, np.inf])}
    rest = {"numbers": [0.1, np.float64(1 / 3), None, float("inf")], "text": "ä", "state": rng.bit_generator.state}
    write(tmp_path / "run.nc", arrays, rest)
    found, numbers = read(tmp_path / "run.nc")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
    assert numbers == {**rest, "numbers": [0.1, 1 / 3, None, float("inf")]}
    assert [p.name for p in tmp_path.iterdir()] == ["run.nc"]


def test_a_full_disk_leaves_the_old_file_and_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path / "run.nc", {"x": np.zeros(2)}, {})
    write_settings(tmp_path / "run.json", {"random_seed": 1})
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "run.nc", {"x": np.ones(2)}, {})
    with pytest.raises(OSError, match="No space"):
        write_settings(tmp_path / "run.json", {"random_seed": 2})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "run.nc"]
    assert not read(tmp_path / "run.nc")[0]["x"].any() and read_settings(tmp_path / "run.json", "")["random_seed"] == 1


@pytest.mark.parametrize("text", ["{", "[1]", '{"seed": 1}', "\xff"])
def test_damaged_settings_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.json"
    assert read_settings(file, "remove it") == {}
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"run\.json is damaged .*; remove it\."):
        read_settings(file, "remove it")


def test_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    known = {"draws": 5, "names": ["a", "b"], "old": 1}
    check_identity(known, {"draws": np.int64(5), "names": ("a", "b")}, "the file", "stop")
    with pytest.raises(ValueError, match=r"^the file: draws was 5 and is 6, new was None and is 2; stop\.$"):
        check_identity(known, {"draws": 6, "new": 2, "old": 1}, "the file", "stop")
    check_seed(None, 4, tmp_path, "stop")
    check_seed(4, 4, tmp_path, "stop")
    with pytest.raises(ValueError, match=r"random_seed is 5, but the run in .* began with 4; leave it out to go on, or stop\."):
        check_seed(5, 4, tmp_path, "stop")


def test_a_chain_goes_on_with_its_generator(tmp_path: Path) -> None:
    file, rng = chain(tmp_path), np.random.default_rng(3)
    assert file.load() is None
    state = Saved({"x": np.ones((2, 3))}, {"n": 7}, {"draws": 2}, [{"beta": 0.5}], dict(rng.bit_generator.state))
    file.save(state, np.ones((2, 3)))
    found = chain(tmp_path).load({"draws": 2})
    assert found is not None and found[1:] == state[1:]
    again = np.random.default_rng()
    again.bit_generator.state = found.generator
    assert again.random() == rng.random()
    np.testing.assert_array_equal(file.load_stage(1), np.ones((2, 3)))
    assert len(read_chains(tmp_path)) == 1
    with pytest.raises(ValueError, match="of another run: draws was 2 and is 3; give a new folder"):
        file.load({"draws": 3})


def test_two_processes_do_not_write_one_chain(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path):
        with pytest.raises(RuntimeError, match=r"another process is writing .*chain-.*\.nc; wait for it"):
            chain(tmp_path)
        Checkpoint(tmp_path, np.random.default_rng(SEED + 1)).release()
    chain(tmp_path).release()  # the other process was killed
    assert not list(tmp_path.iterdir())


def test_a_process_and_its_workers_take_up_what_an_interrupted_call_left(tmp_path: Path) -> None:
    left = chain(tmp_path)
    assert chain(tmp_path).path == left.path
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(in_worker, tmp_path).result() == left.path.name
    for same in (copy.deepcopy(left), pickle.loads(pickle.dumps(left))):
        assert same.path == left.path and same.lock is None
        same.release()
    left.release()
    left.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_is_for_one_run_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        with pytest.raises(RuntimeError, match=r"another process is writing .*run; wait for it, or give another folder"):
            with locked(tmp_path / "run", "give another folder"):
                raise AssertionError
        with locked(tmp_path / "other"):
            pass
    with pytest.raises(KeyError), locked(tmp_path / "run"):
        raise KeyError
    assert not list(tmp_path.iterdir())
