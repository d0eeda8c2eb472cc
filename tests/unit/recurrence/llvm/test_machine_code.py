"""Machine code on disk: shared by processes, bounded, and never wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pm_sysid.recurrence.llvm import machine_code
from pm_sysid.recurrence.llvm.program import kernel_key
from support.recurrences import LINEAR, filter_case, linear

SCRIPT = """
import os, sys
import numpy as np
import pytensor
from support import numpy_functions; numpy_functions.use()
from pm_sysid.recurrence.llvm import machine_code
from support.recurrences import ARGUMENTS, COTANGENTS, filter_case, pulled
compiled = []
build = machine_code.machine_code
machine_code.machine_code = lambda module: compiled.append(module.name) or build(module)
case = filter_case("two_masses")
inputs = [*ARGUMENTS, *COTANGENTS]
functions = pytensor.function(ARGUMENTS, case.op(*ARGUMENTS)), pytensor.function(inputs, pulled(case.op, *inputs))
for line in sys.stdin:  # a process for each file, which knows no kernel yet
    children = []
    for name in line.split():
        children.append(os.fork())
        if not children[-1]:
            value, gradient = functions[0](*case.arrays), functions[1](*case.arrays, *case.cotangents())
            np.savez(name, *value, *gradient, compiled=len(compiled))
            os._exit(0)
    print(*(os.waitpid(child, 0)[1] for child in children), flush=True)
"""


class Processes:
    """Processes that have imported and traced everything, and begin to compile, in a folder, when they are asked to."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={folder}"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        self.parent = subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=Path(__file__).parents[3], **pipes)

    def run(self, *files: Path) -> None:
        """One process for each file, all at once; wait for them."""
        assert self.parent.stdin is not None and self.parent.stdout is not None
        print(*files, file=self.parent.stdin, flush=True)
        assert self.parent.stdout.readline().split() == ["0"] * len(files)

    def close(self) -> None:
        """End the process that the others come from."""
        self.parent.communicate(timeout=60)
        assert self.parent.returncode == 0


def results(path: Path) -> tuple[list[np.ndarray], int]:
    """Arrays, and how many kernels were compiled for them."""
    found = np.load(path)
    return [found[k] for k in found.files if k != "compiled"], int(found["compiled"])


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_processes_share_code_and_mend_damaged_files(tmp_path: Path) -> None:
    """Two compile at once; the next finds it; a truncated, an empty and a foreign file are compiled again."""
    folder = tmp_path / "compiled"
    processes = Processes(folder)
    processes.run(*(tmp_path / f"{i}.npz" for i in range(2)))
    first, second = (results(tmp_path / f"{i}.npz") for i in range(2))
    same(first[0], second[0])
    files = sorted((folder / "pm_sysid").iterdir())
    assert len(files) == 2 and all(f.suffix == ".o" for f in files)
    processes.run(tmp_path / "2.npz")
    again, compiled = results(tmp_path / "2.npz")
    assert compiled == 0
    same(again, first[0])
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[: len(whole) // 2])
    files[1].write_bytes(b"")
    processes.run(tmp_path / "3.npz")
    again, compiled = results(tmp_path / "3.npz")
    assert compiled == 2 and files[0].read_bytes() == whole
    same(again, first[0])
    processes.close()


def test_a_bit_that_fell_over_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "kernel.o"
    machine_code.write(path, b"code" * 100)
    assert machine_code.read(path) == b"code" * 100
    damaged = bytearray(path.read_bytes())
    damaged[200] ^= 1
    path.write_bytes(bytes(damaged))
    assert machine_code.read(path) is None
    assert machine_code.read(tmp_path / "none.o") is None


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_a_folder_that_takes_nothing_is_a_warning(error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Any, target: Any) -> None:
        raise error

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match=r"cannot be kept in .*base_compiledir"):
        machine_code.write(tmp_path / "new" / "kernel.o", b"code")
    assert not list((tmp_path / "new").iterdir())


def test_a_kernel_runs_where_none_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is a file."""
    (tmp_path / "folder").write_text("")
    monkeypatch.setattr(machine_code, "folder", lambda: tmp_path / "folder" / "pm_sysid")
    from pm_sysid.recurrence.llvm import single

    op = linear(17)
    key = kernel_key(op, "test")
    with pytest.warns(RuntimeWarning, match="cannot be kept"):
        symbol = machine_code.load(key, lambda name: single.value_module(op, name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert machine_code.load(key, lambda name: single.value_module(op, name)) == symbol


def test_the_oldest_files_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "FOLDER_BYTES", 1000)
    for i in range(4):
        machine_code.write(tmp_path / f"{i}.o", bytes(200))
        os.utime(tmp_path / f"{i}.o", (time.time() - 100 + i,) * 2)
    assert machine_code.read(tmp_path / "0.o") is not None  # used again: now the youngest
    machine_code.write(tmp_path / "4.o", bytes(200))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["0.o", "3.o", "4.o"]


def test_the_folder_is_looked_at_when_enough_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at every file: with thousands of them there that took longer than to compile."""
    looked = []
    monkeypatch.setattr(machine_code, "_cut_back", looked.append)
    monkeypatch.setattr(machine_code, "FOLDER_BYTES", 64 * 1000)
    for i in range(12):
        machine_code.write(tmp_path / f"{i}.o", bytes(200))
    assert len(looked) == 1 + 11 // 6  # the first file, and again after more than 1000 bytes


def test_keys_tell_steps_and_kinds_apart() -> None:
    case = filter_case("duffing")
    keys = [kernel_key(op, kind) for op in (LINEAR.op, linear(3), case.op) for kind in ("value", "gradient")]
    assert len(set(keys)) == 6
    assert kernel_key(linear(3), "value") == kernel_key(linear(3), "value")
    assert kernel_key(case.op, "gradient", 1) != kernel_key(case.op, "gradient", 2)
    assert kernel_key(case.op, "gradient", text="one loop") != kernel_key(case.op, "gradient", text="another")
