"""Runs of the ABC nested sampler: one seed one result, wherever and however often interrupted."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.sampling.abc import nested_sampling as abc_ns
from pm_sysid.storage import locked
from support.tiny_abc import OPTIONS, models, same

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:pytensor", "ignore:.*:DeprecationWarning:pymc")


def elsewhere(executor: Executor) -> dict[str, Any]:
    return OPTIONS | {"execution": sid.Execution(executor, max_simulations=4000)}


@pytest.fixture(scope="module")
def reference() -> xr.DataTree:
    return sid.sample_abc_ns(models(), 200, **OPTIONS)


def test_the_right_model_is_found(reference: xr.DataTree) -> None:
    rounds = reference["populations"].to_dataset()
    assert rounds["probability"].values[-1, 0] > 0.99 and "low" not in reference
    posterior = reference["right"]["posterior"]
    assert abs(float(posterior["rate"].mean()) - 1.5) < 0.05
    assert np.allclose(posterior["time_constant"], 1 / posterior["rate"])
    xr.testing.assert_equal(rounds["model_probability"], rounds["probability"].isel(population=-1, drop=True))
    assert rounds["model_probability"].dims == ("model",)
    assert np.all(np.diff(rounds["threshold"]) <= 0) and np.all(rounds["best"] < rounds["threshold"])
    assert np.allclose(rounds["probability"].sum("model"), 1) and np.allclose(rounds["share"].sum("model"), 1)
    particles = reference["particles"].to_dataset()
    assert float(particles["weight"].sum()) == pytest.approx(1) and particles.sizes["particle"] >= 200
    assert float(particles["distance"].max()) < float(rounds["threshold"][-1])


def test_one_seed_gives_one_result_on_any_threads(reference: xr.DataTree) -> None:
    before = sid.set_threads(1)
    try:
        same(sid.sample_abc_ns(models(), 200, **OPTIONS), reference)
    finally:
        sid.set_threads(before)
    other = sid.sample_abc_ns(models(), 200, **OPTIONS | {"random_seed": 5})
    assert not np.array_equal(other["particles"]["distance"].values[:9], reference["particles"]["distance"].values[:9])


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path, reference: xr.DataTree, monkeypatch: pytest.MonkeyPatch) -> None:
    file, rounds = tmp_path / "run.nc", 0
    fill = abc_ns.Run._fill

    def interrupted(self: Any, *args: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            raise KeyboardInterrupt
        fill(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(abc_ns.Run, "_fill", interrupted)
        part = sid.sample_abc_ns(models(), 200, checkpoint=file, **OPTIONS)
    assert part.attrs["stopped"] == "interrupted" and part["populations"].sizes["population"] == 4
    same(sid.sample_abc_ns(models(), 200, checkpoint=file, **OPTIONS), reference)
    whole = sid.sample_abc_ns(models(), 200, checkpoint=file, **OPTIONS | {"random_seed": None})
    assert whole["populations"].sizes["population"] == reference["populations"].sizes["population"]


def test_a_checkpoint_is_only_for_its_own_run(tmp_path: Path) -> None:
    file = tmp_path / "run.nc"
    sid.sample_abc_ns(models(), 50, checkpoint=file, **OPTIONS | {"execution": sid.Execution(max_simulations=300)})
    with pytest.raises(ValueError, match=r"of another run: particles was 50 and is 60; give the same"):
        sid.sample_abc_ns(models(), 60, checkpoint=file, **OPTIONS)
    with pytest.raises(ValueError, match=r"random_seed is 9, but the run in .* began with 4"):
        sid.sample_abc_ns(models(), 50, checkpoint=file, **OPTIONS | {"random_seed": 9})
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="is no checkpoint of sample_abc_ns"):
        sid.sample_abc_ns(models(), 50, checkpoint=file, **OPTIONS)
    with pytest.raises(ValueError, match="is the folder"):
        sid.sample_abc_ns(models(), 50, checkpoint=tmp_path, **OPTIONS)


def lagging(coefficient: float = 1.0, upper: float = 3.0, start: float = 0.0, truth: float = 1.0, steps: int = 4) -> pm.Model:
    lag = sid.System(
        lambda t, x, u, p: -p.a * x.z + coefficient * u.F,
        states=("z",),
        inputs=("F",),
        params=("a",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    t = np.arange(30) * 0.1
    record = sid.TimeSeries(t, {"F": np.sin(1.3 * t)}, intersample="foh")
    record = record.replace(y=sid.simulate(lag, record, {"a": truth}, x0=0.0)["y"].values / coefficient)
    with pm.Model() as model:
        sid.ODESimulator("y", lag, record, {"a": pm.Uniform("a", 0.1, upper)}, x0=start, substeps=steps)
    return model


def test_a_checkpoint_of_another_model_prior_or_record_is_refused(tmp_path: Path) -> None:
    file, options = tmp_path / "run.nc", OPTIONS | {"execution": sid.Execution(max_simulations=300)}
    first = sid.sample_abc_ns({"lag": lagging()}, 50, checkpoint=file, **options)
    same(sid.sample_abc_ns({"lag": lagging()}, 50, checkpoint=file, **options), first)
    for other in ({"coefficient": 1.01}, {"start": 0.1}, {"truth": 1.02}, {"steps": 1}):
        with pytest.raises(ValueError, match="the distances are not what they were; give the same models"):
            sid.sample_abc_ns({"lag": lagging(**other)}, 50, checkpoint=file, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the parameters are not what they were"):
        sid.sample_abc_ns({"lag": lagging(upper=3.5)}, 50, checkpoint=file, **options)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, reference: xr.DataTree, monkeypatch: pytest.MonkeyPatch) -> None:
    file, replace, written = tmp_path / "run.nc", os.replace, 0

    def full(source: Any, target: Any) -> None:
        nonlocal written
        written += 1
        if written > 3:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        same(sid.sample_abc_ns(models(), 200, checkpoint=file, **OPTIONS), reference)
    assert written > 5 and not list(tmp_path.glob("*.part"))
    same(sid.sample_abc_ns(models(), 200, checkpoint=file, **OPTIONS), reference)


def test_two_runs_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "run.nc"
    with locked(file), pytest.raises(RuntimeError, match="another process is writing"):
        sid.sample_abc_ns(models(), 50, checkpoint=file, **OPTIONS)
    sid.sample_abc_ns(models(), 50, checkpoint=file, **OPTIONS | {"execution": sid.Execution(max_simulations=200)})


class Fragile(Executor):
    """Runs batches at once, in this process, and breaks down after some of them."""

    _max_workers = 2

    def __init__(self, lives: int) -> None:
        self.lives = lives

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        from concurrent.futures import BrokenExecutor

        future: Future[Any] = Future()
        self.lives -= 1
        if self.lives < 0:
            future.set_exception(BrokenExecutor("a worker died"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_an_executor_that_breaks_down_loses_nothing(reference: xr.DataTree, caplog: pytest.LogCaptureFixture) -> None:
    sid_log = abc_ns._log
    sid_log.addHandler(caplog.handler)
    try:
        same(sid.sample_abc_ns(models(), 200, **elsewhere(Fragile(7))), reference)
    finally:
        sid_log.removeHandler(caplog.handler)
    assert "the executor broke down (a worker died); the run goes on in this process." in caplog.text


PROCESSES = """
import sys
sys.path.insert(0, {tests!r})
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from support import numpy_functions; numpy_functions.use()
import pm_sysid as sid
from support.tiny_abc import OPTIONS, models, same
here = sid.sample_abc_ns(models(), 200, **OPTIONS)
with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
    same(sid.sample_abc_ns(models(), 200, **OPTIONS | {{"execution": sid.Execution(executor, max_simulations=4000)}}), here)
print("the same")
"""


@pytest.mark.slow
def test_processes_give_the_same_result() -> None:
    """To the last digit, although this process compiles what the others load from the disk cache."""
    script = PROCESSES.format(tests=str(Path(__file__).parents[1]))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert found.stdout.split() == ["the", "same"], found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_worker_that_is_killed_loses_nothing() -> None:
    distributed = pytest.importorskip("distributed", reason="needs distributed: the extra dask")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        executor = client.get_executor(pure=False)
        submitted = executor.submit
        count = 0

        def submit(fn: Any, *args: Any) -> Any:
            nonlocal count
            count += 1
            if count == 12:
                os.kill(next(iter(pids.values())), signal.SIGKILL)
            return submitted(fn, *args)

        executor.submit = submit
        # Workers make machine code as users have it, and so does this test, but not what the others share.
        same(sid.sample_abc_ns(models(), 200, **elsewhere(executor)), sid.sample_abc_ns(models(), 200, **OPTIONS))
        assert count > 12
        assert set(client.run(os.getpid).values()) != set(pids.values())  # one was started anew


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_keeps_the_rounds_done() -> None:
    """Ctrl-C while it simulates; while it compiles, libraries may swallow the exception."""
    calls = 0

    def slow(rng: Any, mu: Any, size: Any = None) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 1500:
            signal.raise_signal(signal.SIGINT)  # to this thread, whatever threads a cluster has left
        time.sleep(0.003)
        return np.atleast_1d(mu)

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Simulator("y", slow, mu, observed=[0.3])
    thresholds = sid.Thresholds(epsilon=3.0, tolerance=1e-9)
    idata = sid.sample_abc_ns(
        {"m": model}, 100, distance=lambda y, s: float(abs(y - s)[0]), thresholds=thresholds, progressbar=False
    )
    assert idata.attrs["stopped"] == "interrupted" and calls < 1550
    assert idata["populations"].sizes["population"] >= 2 and idata["m"]["posterior"].sizes["draw"] == 100
