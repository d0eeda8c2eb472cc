"""Killed, interrupted, starved of disk, or given each other's files: a run goes on, or says what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.sampling.annealing import draw_log as journal
from pm_sysid.sampling.smc import ibis
from pm_sysid.storage import locked
from support.line import line

pytestmark = pytest.mark.filterwarnings("ignore:We recommend running at least 4 chains", "ignore:More chains")


def sample(checkpoint: Path | None, draws: int = 200, **options: Any) -> xr.DataTree:
    settings: dict[str, Any] = {"model": line(), "chains": 1, "cores": 1, "random_seed": 4, "progressbar": False}
    settings |= {"compute_convergence_checks": False, "threads": 1, "checkpoint": checkpoint}
    return sid.sample_ibis(draws, **settings | options)


def annealed(checkpoint: Path | None, seed: int = 3, model: pm.Model | None = None, **options: Any) -> xr.DataTree:
    with model or line():
        step = sid.DataAnnealing(widths=0.05, checkpoint=checkpoint, **options)
        return pm.sample(
            200,
            tune=200,
            chains=2,
            cores=1,
            random_seed=seed,
            step=step,
            progressbar=False,
            compute_convergence_checks=False,
            discard_tuned_samples=False,
        )


@cache
def uninterrupted() -> xr.DataTree:
    """What :func:`annealed` gives where nothing happens to it."""
    return annealed(None)


def same(a: xr.DataTree, b: xr.DataTree, groups: tuple[str, ...]) -> None:
    for name in groups:
        left, right = a[name].to_dataset(), b[name].to_dataset()
        for variable in left.data_vars:
            np.testing.assert_array_equal(left[variable], right[variable], err_msg=f"{name} {variable}")


# -- IBIS ---------------------------------------------------------------------------------------------------------------


def test_a_full_disk_does_not_end_a_sequential_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages whose particles could not be written are written with the first stage that can be."""
    reference, replace, calls = sample(None, store_stages=True), os.replace, 0

    def full(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if 1 < calls < 4:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        found = sample(tmp_path, store_stages=True)
    assert calls > 4 and not list(tmp_path.glob("*.part"))
    same(found, reference, ("posterior", "stages"))
    same(sample(tmp_path, store_stages=True), reference, ("posterior", "stages"))


def test_a_checkpoint_survives_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is killed after the disk was full: it goes on from the last stage that was written."""
    reference, step, stages = sample(None), ibis.IBIS.step, 0

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    def killed(self: Any) -> Any:
        nonlocal stages
        stages += 1
        if stages == 2:
            monkeypatch.setattr(os, "replace", full)
        if stages == 3:
            raise RuntimeError("killed")
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(ibis.IBIS, "step", killed)
        with pytest.raises(RuntimeError, match="killed"):
            sample(tmp_path)
    monkeypatch.undo()
    same(sample(tmp_path), reference, ("posterior",))


def test_two_processes_do_not_share_a_sequential_checkpoint(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "run"),
        pytest.raises(RuntimeError, match=r"another process is writing .* or give another checkpoint"),
    ):
        sample(tmp_path)
    sample(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"CDF\x02garbage", b"PK\x03\x04 a zip file"])
def test_a_damaged_sequential_checkpoint_is_refused(tmp_path: Path, damage: bytes) -> None:
    sample(tmp_path, store_stages=True)
    (chain,) = (p for p in tmp_path.glob("chain-*.nc") if "stage" not in p.name)
    whole = chain.read_bytes()
    chain.write_bytes(damage)
    for use in (lambda: sample(tmp_path, store_stages=True), lambda: sid.load_checkpoint(tmp_path, model=line())):
        with pytest.raises(ValueError, match="is no checkpoint of sample_ibis, or is damaged"):
            use()
    chain.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is no checkpoint of sample_ibis, or is damaged"):
        sample(tmp_path, store_stages=True)
    chain.write_bytes(whole)
    stage = sorted(tmp_path.glob("chain-*-stage-*.nc"))[1]
    stage.write_bytes(damage)
    with pytest.raises(ValueError, match=r"stage-0002\.nc is no checkpoint"):
        sample(tmp_path, store_stages=True)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json is damaged .* give the run's random_seed"):
        sample(tmp_path)


# -- Data Annealing -----------------------------------------------------------------------------------------------------

GROUPS = ("posterior", "warmup_posterior", "sample_stats", "warmup_sample_stats")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [37, 250, 430, 799])
def test_a_killed_chain_ends_as_the_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """In the first chain's tuning, in its draws, in the second chain, and at its very last draw."""
    reference, draw, count = uninterrupted(), sid.DataAnnealing._draw, 0

    def killed(self: Any, point: Any) -> Any:
        nonlocal count
        count += 1
        if count == stop:
            raise RuntimeError("killed")
        return draw(self, point)

    monkeypatch.setattr(journal, "SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(sid.DataAnnealing, "_draw", killed)
        with pytest.raises(RuntimeError, match="killed"):
            annealed(tmp_path)
        count = 0
        stop = 10**9
        same(annealed(tmp_path), reference, GROUPS)
        assert 0 < count < 800  # what was known was not computed again
        count = 0
        same(annealed(tmp_path), reference, GROUPS)
        assert count == 0


def test_a_chain_is_taken_up_by_its_own_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SECONDS", 0.0)
    draw, count = sid.DataAnnealing._draw, 0

    def killed(self: Any, point: Any) -> Any:
        nonlocal count
        count += 1
        if count == 100:
            raise RuntimeError("killed")
        return draw(self, point)

    with monkeypatch.context() as patch:
        patch.setattr(sid.DataAnnealing, "_draw", killed)
        with pytest.raises(RuntimeError, match="killed"):
            annealed(tmp_path)
    with pytest.raises(ValueError, match="of another run: n_start was 2 and is 5"):
        annealed(tmp_path, n_start=5)
    with pytest.raises(ValueError, match="of another model or record"):
        annealed(tmp_path, model=line(sigma=0.31))
    (file,) = tmp_path.glob("chain-*.nc")
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="is no checkpoint"):
        annealed(tmp_path)


def test_a_full_disk_does_not_end_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SECONDS", 0.0)

    def full(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    reference = annealed(None)
    monkeypatch.setattr(os, "replace", full)
    same(annealed(tmp_path), reference, GROUPS)
    assert not list(tmp_path.glob("*"))


def test_a_checkpoint_needs_the_whole_point(tmp_path: Path) -> None:
    with pm.Model():
        a, _ = pm.Normal("a"), pm.Normal("b")
        pm.Normal("y", a, 1.0, observed=[0.1, 0.2])
        with pytest.raises(ValueError, match="checkpoint needs all the variables"):
            sid.DataAnnealing([a], checkpoint=tmp_path)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
import numpy as np, pymc as pm
from support import numpy_functions; numpy_functions.use()
import pm_sysid as sid
from pm_sysid.sampling.abc import nested_sampling as abc_ns
from pm_sysid.sampling.annealing import draw_log as journal
kind, checkpoint, result, pause = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
checkpoint = None if checkpoint == "-" else checkpoint
def slower(cls, name):  # a run long enough to be hit in the middle
    original = getattr(cls, name)
    def patient(self, *args):
        time.sleep(pause)
        return original(self, *args)
    setattr(cls, name, patient)
def annealing():
    from support.line import line
    journal.SECONDS = 0.05
    slower(sid.DataAnnealing, "_draw")
    with line():
        step = sid.DataAnnealing(widths=0.05, checkpoint=checkpoint)
        idata = pm.sample(150, tune=150, chains=2, cores=2, random_seed=8, step=step, progressbar=False,
                          compute_convergence_checks=False)
    return idata.posterior["beta"].values
def abc():
    from support.tiny_abc import OPTIONS, models
    slower(abc_ns.Run, "_fill")
    idata = sid.sample_abc_ns(models(), 200, checkpoint=checkpoint, **OPTIONS)
    return idata["populations"]["threshold"].values
if __name__ == "__main__":
    found = annealing() if kind == "annealing" else abc()
    if found is not None:
        np.save(result, found)
"""


def start(folder: Path, kind: str, checkpoint: str, result: str, pause: float) -> subprocess.Popen[bytes]:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    arguments = [sys.executable, str(script), kind, checkpoint, str(folder / result), str(pause)]
    return subprocess.Popen(arguments, start_new_session=True, stderr=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of runs that nothing happened to; the interrupted runs load from the disk cache what these have compiled."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for kind in ("annealing", "abc"):
        assert start(folder, kind, "-", f"{kind}.npy", 0.0).wait(300) == 0
        found[kind] = np.load(folder / f"{kind}.npy")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
@pytest.mark.parametrize("kind, files, pause", [("annealing", 2, 0.02), ("abc", 1, 0.3)])
def test_processes_survive_a_kill_at_any_moment(
    tmp_path: Path, whole: dict[str, Any], how: signal.Signals, kind: str, files: int, pause: float
) -> None:
    """The same call again ends as the run that nothing happened to, to the last bit."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    checkpoint = str(folder if kind == "annealing" else folder / "run.nc")
    run = start(tmp_path, kind, checkpoint, "killed.npy", pause)
    deadline = time.monotonic() + 300
    while len(list(folder.glob("*.nc"))) < files and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(folder.glob("*.nc"))) == files
    time.sleep(0.1 + 1.5 * np.random.default_rng(how).random())
    os.killpg(run.pid, how)
    run.wait(120)
    assert start(tmp_path, kind, checkpoint, "resumed.npy", 0.0).wait(300) == 0
    np.testing.assert_array_equal(whole[kind], np.load(tmp_path / "resumed.npy"))
