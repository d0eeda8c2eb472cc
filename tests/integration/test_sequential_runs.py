"""Sequential runs: regular statistics, stored stages, continuation by new samples, checkpoints that survive a kill."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pm_sysid as sid
from support import small
from support.line import T, line


def exact(n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, covariance and log evidence of the first n points."""
    model = line()
    y = np.asarray(model.rvs_to_values[model["y"]].eval())[:n]
    X, prior = np.column_stack([np.ones(n), np.linspace(0, 1, T)[:n]]), np.array([0.5, 0.0])
    covariance = np.linalg.inv(np.eye(2) + X.T @ X / 0.3**2)
    evidence = stats.multivariate_normal(X @ prior, 0.3**2 * np.eye(n) + X @ X.T).logpdf(y)
    return covariance @ (prior + X.T @ y / 0.3**2), covariance, float(evidence)


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("pymc").setLevel(logging.ERROR)


def sample(model: pm.Model, draws: int = 200, **options: Any) -> Any:
    settings = {"chains": 2, "cores": 1, "random_seed": 4, "progressbar": False, "compute_convergence_checks": False}
    return sid.sample_ibis(draws, model=model, **{**settings, **options})


@pytest.fixture(scope="module")
def run() -> Any:
    logging.getLogger("pymc").setLevel(logging.ERROR)
    return sample(line(), store_stages=True)


# -- statistics ---------------------------------------------------------------------------------------------------------


def test_statistics_are_regular_numbers(run: Any) -> None:
    found = run.sample_stats
    for name in ("time_index", "ess", "accept_rate", "evaluations", "log_evidence", "log_evidence_se", "beta"):
        assert found[name].dims == ("chain", "stage") and found[name].dtype == float, name
    assert found["ess_path"].dims == ("chain", "stage", "point")
    for c in range(2):
        reached = found["time_index"][c].dropna("stage").values
        assert reached[-1] == T and np.all(np.diff(reached) >= 0)
        assert np.isnan(found["log_evidence"][c].values[len(reached) :]).all()
    np.testing.assert_allclose(found["ess_path"].isel(stage=0, point=0), 200)
    np.testing.assert_allclose(found["ess_path"].isel(point=-1), found["ess"])
    assert found.attrs["threshold"] == 0.3


def test_chains_with_different_numbers_of_stages_are_filled_up() -> None:
    ragged = np.empty(2, dtype=object)
    ragged[:] = [[1.0, 2.0, 3.0], [4.0]]
    import xarray as xr

    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"x": (("chain", "draw"), np.zeros((2, 3)))}),
            "sample_stats": xr.Dataset({"time_index": ("chain", ragged)}, attrs={"threshold": 0.3}),
        }
    )
    found = sid.stages(tree)
    np.testing.assert_array_equal(found["time_index"], [[1, 2, 3], [4, np.nan, np.nan]])
    assert found.attrs["threshold"] == 0.3


def test_what_came_before_a_new_start_is_no_part_of_the_result() -> None:
    import xarray as xr

    again = np.empty(2, dtype=object)
    again[:] = [[5.0, 9.0, 2.0, 7.0, 10.0], [4.0, 10.0]]
    evidence = np.empty(2, dtype=object)
    evidence[:] = [[-1.0, -2.0, -3.0, -4.0, -5.0], [-6.0, -7.0]]
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset({"x": (("chain", "draw"), np.zeros((2, 3)))}),
            "sample_stats": xr.Dataset({"time_index": ("chain", again), "log_evidence": ("chain", evidence)}),
        }
    )
    found = sid.stages(tree)
    np.testing.assert_array_equal(found["time_index"], [[2, 7, 10], [4, 10, np.nan]])
    np.testing.assert_array_equal(found["log_evidence"], [[-3, -4, -5], [-6, -7, np.nan]])
    np.testing.assert_array_equal(sid.log_evidence(tree).chains, [-5, -7])


@pytest.mark.slow
def test_a_run_whose_calibration_kills_its_particles_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evidence under every way of calibrating the early targets is that of the model."""
    from pm_sysid.sampling.smc import algorithm as sequential

    with pm.Model() as model:
        small.put(small.RECORD)
    runs = {}
    for name, begin, collapse in (("whole", 1000, 0.02), ("doubling", 25, 0.02), ("again", 25, 2.0)):
        monkeypatch.setattr(sequential, "MIN_DIFFUSION_SAMPLES", begin)
        monkeypatch.setattr(sequential, "COLLAPSE", collapse)
        idata = sample(model, 400, chains=1)
        runs[name] = sid.log_evidence(idata)
        reached = idata.sample_stats["time_index"].values[0]
        assert reached[-1] == small.T and np.all(np.diff(reached) >= 0), name
    for name in ("doubling", "again"):
        error = np.hypot(runs[name].error, runs["whole"].error)
        assert abs(runs[name].value - runs["whole"].value) < 4 * error < 4, (name, runs)


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 2])
def test_the_kernel_in_pymc_gives_the_same_run(chains: int) -> None:
    wrapped = sample(line(), chains=chains)
    raw = pm.sample_smc(
        200,
        kernel=sid.IBIS,
        model=line(),
        chains=chains,
        cores=1,
        random_seed=4,
        progressbar=False,
        compute_convergence_checks=False,
    )
    np.testing.assert_array_equal(raw.posterior["beta"], wrapped.posterior["beta"])
    np.testing.assert_array_equal(sid.stages(raw)["log_evidence"], wrapped.sample_stats["log_evidence"])


def test_stored_stages_are_posteriors_given_the_samples_so_far(run: Any) -> None:
    stored = run["stages"].to_dataset()
    assert stored["beta"].dims == ("chain", "stage", "draw", "term") and list(stored["term"].values) == ["level", "slope"]
    assert stored["end"].dims == ("chain", "stage", "draw")
    for c in range(2):
        last = int(stored["time_index"][c].notnull().sum()) - 1
        np.testing.assert_array_equal(stored["beta"][c, last], run.posterior["beta"][c])
    np.testing.assert_allclose(stored["end"], stored["beta"].sum("term", skipna=False))
    # Pooled over chains and later stages the errors of the means are standard normal, apart from dependence.
    whole = sample(line(), 1000, chains=1, store_stages=True)
    taken = sid.stages(whole)["time_index"].values[0]
    for stage in (2, len(taken) // 2, len(taken) - 1):
        if whole.sample_stats["beta"].values[0, stage] * T % 1 > 1e-9:
            continue
        mean, covariance, _ = exact(int(taken[stage]))
        draws = whole["stages"]["beta"].values[0, stage]
        assert np.all(np.abs(draws.mean(axis=0) - mean) < 6 * np.sqrt(np.diag(covariance) / 250))
        np.testing.assert_allclose(draws.std(axis=0), np.sqrt(np.diag(covariance)), rtol=0.25)


# -- more samples -------------------------------------------------------------------------------------------------------


def test_extend_goes_on_where_the_run_ended() -> None:
    first = sample(line(40), store_stages=True)
    both = sid.extend(first, model=line(), random_seed=6, cores=1, progressbar=False, compute_convergence_checks=False)
    old, new = first.sample_stats.to_dataset(), both.sample_stats.to_dataset()
    for c in range(2):
        begun = int(old["time_index"][c].notnull().sum())
        np.testing.assert_array_equal(new["log_evidence"][c, :begun], old["log_evidence"][c, :begun])
        reached = new["time_index"][c].dropna("stage").values
        assert reached[begun - 1] == 40 and reached[-1] == T and np.all(np.diff(reached) >= 0)
        evaluations = new["evaluations"][c].dropna("stage").values
        assert np.all(np.diff(evaluations) > 0)
    assert both["stages"]["beta"].sizes["stage"] == new.sizes["stage"]
    assert both.posterior.sizes["draw"] == 200


@pytest.mark.slow
def test_extend_is_a_single_run_in_law() -> None:
    """Evidence and means over seeds, after 25, then 40, then 60 samples."""
    mean, covariance, evidence = exact(T)
    ratios, means = [], []
    options = {"progressbar": False, "cores": 1, "compute_convergence_checks": False}
    for seed in range(20):
        idata = sample(line(25), 400, random_seed=seed, chains=1)
        for n in (40, T):
            idata = sid.extend(idata, model=line(n), random_seed=100 * n + seed, **options)
        ratios.append(np.exp(float(idata.sample_stats["log_evidence"][0, -1]) - evidence))
        means.append(idata.posterior["beta"].values[0].mean(axis=0))
    z = (np.mean(ratios) - 1) / (np.std(ratios, ddof=1) / np.sqrt(20))
    assert abs(z) < 3.5 and np.std(ratios) < 0.5
    z = (np.mean(means, axis=0) - mean) / (np.std(means, axis=0, ddof=1) / np.sqrt(20))
    assert np.all(np.abs(z) < 3.5) and np.all(np.std(means, axis=0) < 0.3 * np.sqrt(np.diag(covariance)))


def test_extend_refuses_what_is_not_a_longer_record(run: Any) -> None:
    with pytest.raises(ValueError, match="has 60 samples, and 60 have been taken in"):
        sid.extend(run, model=line())
    with pytest.raises(ValueError, match="not those that idata was made from"):
        sid.extend(sample(line(40, sigma=0.2), chains=1), model=line())
    import xarray as xr

    bare = xr.DataTree.from_dict({"posterior": run.posterior.to_dataset(), "sample_stats": xr.Dataset()})
    with pytest.raises(ValueError, match="no stages to go on from"):
        sid.extend(bare, model=line())


# -- checkpoints --------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time, numpy as np, pm_sysid as sid
from pm_sysid.sampling.smc import ibis
sys.path.insert(0, {tests!r})
from support import numpy_functions; numpy_functions.use()
from support.line import line
slow = float(sys.argv[3])
step = ibis.IBIS.step
def patient(self):  # a run long enough to be killed in the middle
    time.sleep(slow)
    return step(self)
if slow:
    ibis.IBIS.step = patient
if __name__ == "__main__":
    idata = sid.sample_ibis(300, model=line(), chains=2, cores=int(sys.argv[4]), random_seed=9, progressbar=False,
                            checkpoint=sys.argv[1], store_stages=True,
                            compute_convergence_checks=False, threads=1)
    np.savez(sys.argv[2], draws=idata.posterior["beta"], stages=idata["stages"]["beta"],
             **{{k: v.values for k, v in idata.sample_stats.data_vars.items()}})
"""


def start(folder: Path, checkpoint: str, result: str, slow: float, cores: int) -> subprocess.Popen[bytes]:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1])))
    arguments = [sys.executable, str(script), checkpoint, str(folder / result), str(slow), str(cores)]
    return subprocess.Popen(arguments, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_run_ends_as_the_uninterrupted_one(tmp_path: Path, cores: int) -> None:
    whole = sample(line(), 300, random_seed=9, store_stages=True)
    folder = tmp_path / "checkpoint"
    killed = start(tmp_path, str(folder), "killed.npz", 1.0, cores)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("chain-*-stage-0002.nc"))) < cores and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    assert killed.wait(30) == -signal.SIGKILL
    assert not (tmp_path / "killed.npz").exists()
    resumed = start(tmp_path, str(folder), "resumed.npz", 0.0, cores)
    assert resumed.wait(120) == 0
    expected = {"draws": whole.posterior["beta"], "stages": whole["stages"]["beta"], **whole.sample_stats.data_vars}
    with np.load(tmp_path / "resumed.npz") as found:
        assert set(found.files) == set(expected)
        for name in found.files:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_checkpoint_belongs_to_its_run(tmp_path: Path) -> None:
    done = sample(line(), checkpoint=tmp_path)
    again = sample(line(), checkpoint=tmp_path, random_seed=None)
    np.testing.assert_array_equal(done.posterior["beta"], again.posterior["beta"])
    with pytest.raises(ValueError, match="began with 4; leave it out"):
        sample(line(), checkpoint=tmp_path, random_seed=5)
    with pytest.raises(ValueError, match="of another run: _n_draws was 200 and is 300"):
        sample(line(), 300, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="of another model or record"):
        sample(line(sigma=0.31), checkpoint=tmp_path)


def test_a_checkpoint_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint"):
        sid.load_checkpoint(tmp_path, model=line())
    done = sample(line(), chains=1, checkpoint=tmp_path)
    found = sid.load_checkpoint(tmp_path, model=line())
    np.testing.assert_array_equal(found.posterior["beta"], done.posterior["beta"])
    assert found.posterior["beta"].dims == ("chain", "draw", "term")
    np.testing.assert_array_equal(found.sample_stats["log_evidence"], done.sample_stats["log_evidence"])
    with pm.Model() as other:
        pm.Normal("z")
    with pytest.raises(ValueError, match="give the model of the run"):
        sid.load_checkpoint(tmp_path, model=other)


# -- executors ----------------------------------------------------------------------------------------------------------

ELSEWHERE = """
import os, signal, sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context, parent_process
from pathlib import Path
import numpy as np, xarray as xr, pm_sysid as sid
from pm_sysid.sampling.smc import ibis
sys.path.insert(0, {tests!r})
from support import numpy_functions; numpy_functions.use()
from support.line import line

step, folder = ibis.IBIS.step, Path(sys.argv[1])
def fragile(self):  # the first worker that reaches the third stage of a chain is killed
    marker = folder / "killed"
    if len(self.stages) == 2 and parent_process() is not None and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self)

def sample(**options):
    return sid.sample_ibis(300, model=line(), chains=3, random_seed=4, progressbar=False, store_stages=True,
                           compute_convergence_checks=False, **options)

def same(found, name):
    for part in ("posterior", "stages", "sample_stats"):
        xr.testing.assert_equal(found[part].to_dataset(), here[part].to_dataset())
    print(name)

if __name__ == "__main__":
    here = sample(cores=1)
    with ThreadPoolExecutor(2) as pool:
        same(sample(execution=sid.Execution(pool)), "threads")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        same(sample(execution=sid.Execution(pool)), "spawned")
    ibis.IBIS.step = fragile
    for options in ({{}}, {{"checkpoint": folder / "chains"}}):
        (folder / "killed").unlink(missing_ok=True)
        with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
            same(sample(execution=sid.Execution(pool), **options), "killed")
        assert (folder / "killed").exists()
"""


@pytest.mark.slow
def test_chains_are_the_same_on_any_executor_and_through_a_killed_worker(tmp_path: Path) -> None:
    """To the last digit, although this process compiles what the others load from the disk cache."""
    (tmp_path / "script.py").write_text(ELSEWHERE.format(tests=str(Path(__file__).parents[1])))
    found = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path], capture_output=True, text=True, timeout=400, cwd=tmp_path
    )
    assert found.stdout.split() == ["threads", "spawned", "killed", "killed"], found.stdout + found.stderr
    assert found.stderr.count("the executor broke down") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_chains_on_dask_are_the_same_through_a_killed_worker() -> None:
    distributed = pytest.importorskip("distributed", reason="needs distributed: the extra dask")
    here = sample(line(), chains=4)
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        executor = client.get_executor(pure=False)
        submitted, count = executor.submit, 0

        def submit(fn: Any, *args: Any) -> Any:
            nonlocal count
            count += 1
            future = submitted(fn, *args)
            if count == 4:
                os.kill(next(iter(pids.values())), signal.SIGKILL)
            return future

        executor.submit = submit
        there = sample(line(), chains=4, cores=None, execution=sid.Execution(executor))
        assert count == 4 and set(client.run(os.getpid).values()) != set(pids.values())  # one was started anew
    np.testing.assert_array_equal(there.posterior["beta"], here.posterior["beta"])
    np.testing.assert_array_equal(there.sample_stats["log_evidence"], here.sample_stats["log_evidence"])


def test_a_posterior_is_extended_on_an_executor() -> None:
    with ThreadPoolExecutor(2) as pool:
        short = sample(line(40), cores=None, execution=sid.Execution(pool))
        there = sid.extend(
            short,
            model=line(),
            random_seed=2,
            execution=sid.Execution(pool),
            progressbar=False,
            compute_convergence_checks=False,
        )
    here = sid.extend(short, model=line(), random_seed=2, cores=1, progressbar=False, compute_convergence_checks=False)
    np.testing.assert_allclose(there.posterior["beta"], here.posterior["beta"], rtol=1e-9)
    assert there.sample_stats["time_index"].max() == T


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_reaches_a_run_on_an_executor() -> None:
    class Endless(Executor):
        submitted = cancelled = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.submitted += 1
            if self.submitted == 3:
                threading.Timer(0.3, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]).start()
            future: Future[Any] = Future()
            future.add_done_callback(self.count)
            return future

        def count(self, future: Future[Any]) -> None:
            self.cancelled += future.cancelled()

    pool = Endless()
    with pytest.raises(KeyboardInterrupt):
        sample(line(), chains=3, cores=None, execution=sid.Execution(pool))
    assert pool.cancelled == 2  # those behind the one that was waited for


def test_settings_of_an_executor_are_checked() -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match="cores is 1 beside an executor"):
            sample(line(), execution=sid.Execution(pool))
        with pytest.raises(ValueError, match="execution has limits"):
            sample(line(), execution=sid.Execution(max_seconds=3.0))
        with pytest.raises(TypeError, match=r"give pm_sysid.Execution\(...\)"):
            sample(line(), execution=pool)
        with pytest.raises(ValueError, match="start has 1 entries for 2 chains"):
            sample(line(), cores=None, execution=sid.Execution(pool), start=[None])


# -- the picture --------------------------------------------------------------------------------------------------------


def test_plot_ibis_shows_effective_size_evidence_and_bands(run: Any) -> None:
    plots = pytest.importorskip("matplotlib")
    plots.use("Agg")
    from matplotlib import pyplot

    used = sid.plot_ibis(run, truth={"end": -1.0})
    assert [p.get_ylabel() for p in used] == ["ESS", "acceptance", "log evidence", "end"]
    x, y = used[0].lines[0].get_data()
    assert max(y) == pytest.approx(200) and max(x) == T and np.nanmin(y) <= 110
    drawn = np.asarray(used[2].lines[0].get_ydata())
    assert drawn[np.isfinite(drawn)][-1] == pytest.approx(float(run.sample_stats["log_evidence"][0].dropna("stage")[-1]))
    with pytest.raises(ValueError, match="'beta' was stored"):
        sid.plot_ibis(run, var_names="beta")
    with pytest.raises(ValueError, match="chain is 2"):
        sid.plot_ibis(run, chain=2)
    bare = sample(line(), chains=1)
    assert len(sid.plot_ibis(bare)) == 3
    with pytest.raises(ValueError, match="store_stages=True"):
        sid.plot_ibis(bare, var_names="end")
    pyplot.close("all")
