"""Sequential runs: chains on cores, started, continued and put together."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.arguments import count, flag, of_kind, place, seed, shown, whole_seed
from pm_sysid.compat import seeds_per_chain
from pm_sysid.compat.arviz import array_stats
from pm_sysid.compat.samplers import sample_by_stages
from pm_sysid.idata import group
from pm_sysid.likelihood.coordinates import Coordinates, model_of
from pm_sysid.progress import drawable, progress_bar
from pm_sysid.recurrence.threads import default_threads
from pm_sysid.sampling.executors import Execution, backend, workers
from pm_sysid.sampling.smc.algorithm import MOST
from pm_sysid.sampling.smc.ibis import FOUND, IBIS, NO_SEARCH, ChainTask, FinishedChain
from pm_sysid.sampling.smc.missed_modes import lost_mode, search
from pm_sysid.sampling.smc.particle_state import SequentialState
from pm_sysid.sampling.smc.resampling import evenly, normalised
from pm_sysid.sampling.smc.stages import disagree, doubts, final, lost, one_after_the_other, regular, stages
from pm_sysid.sampling.smc.strata import held_alike
from pm_sysid.sampling.smc.weighed import weighed
from pm_sysid.storage import check_seed, locked, read_chains, read_settings, write_settings

_log = logging.getLogger("pm_sysid")
#: R-hat above which chains have found different parts of a posterior.
MIXED = 1.05
#: Draws of each proposal that particles are weighed against, as a part of the points the run has computed, and at least.
PART, LEAST = 0.025, 1000
#: Probability below which chains hold shares of a region that are too unlike for chance.
UNLIKE = 0.01


def sequential_draws(
    draws: int,
    *,
    model: pm.Model,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    execution: Execution | None = None,
    weighs: bool = True,
    **settings: Any,
) -> xr.DataTree:
    """What :func:`sample_ibis` returns, by the likelihood as it is: steps of filters are not judged.

    Whoever knows the modes weighs the draws against others himself (``weighs=False``).
    """
    draws, random_seed = count(draws, "draws", most=MOST), seed(random_seed)
    executor = _executor(execution, cores)
    cores = (os.cpu_count() or 1) if cores is None else count(cores, "cores", most=10**4)
    chains = max(2, cores) if chains is None else count(chains, "chains", most=10**4)
    if given := threads is not None:
        threads = count(threads, "threads")
    elif executor is None or isinstance(executor, ProcessPoolExecutor):  # on this machine
        threads = max(1, default_threads() // min(cores if executor is None else workers(executor), chains))
    if checkpoint is not None:
        checkpoint = place(checkpoint, "checkpoint")
    with ExitStack() as held:
        if checkpoint is not None:
            Path(checkpoint).mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(Path(checkpoint) / "run"))
            random_seed = _remembered(Path(checkpoint), random_seed)
        kernels: list[IBIS] = []
        settings["progressbar"] = drawable(bool(settings.get("progressbar", True)))
        looks, settings["search"] = flag(settings.get("search", True), "search"), False  # once, for all chains
        kernel = _kept(kernels, settings["progressbar"])
        if executor is not None:
            random_seed = seeds_per_chain(random_seed, chains)
            kernel = _elsewhere(kernel, executor, _tasks(settings.get("start"), random_seed))
        idata = sample_by_stages(
            draws,
            kernel,
            model=model,
            chains=chains,
            cores=cores if executor is None else 1,
            random_seed=random_seed,
            checkpoint=checkpoint,
            threads=threads,
            **settings,
        )
    statistics = stages(idata)
    reasons = doubts(statistics)
    x = _particles(idata, kernels[0].sequential.target.coordinates)
    apart = float(np.nanmax(_scale_reductions(x), initial=1.0))
    if apart > MIXED:
        reasons.append(
            f"The particles of the chains are in different places (R-hat {apart:.2f}): each has found a part of the posterior "
            "only. Take more draws and chains."
        )
    before = _evidences(statistics)
    acceptance = np.clip(final(statistics)["accept_rate"].values, 0.05, 1.0)
    if apart > MIXED or disagree(*before) or held_alike(x, acceptance, generator_of(x)) < UNLIKE:
        statistics, x = _from_all(idata, statistics, kernels[0], x)
        if disagree(*before):
            # What they find together agrees with itself. Where one has lost its way, the others may have done so too.
            statistics.attrs["chains_sd"] = float(np.std(before[0], ddof=1))
    if not given:
        kernels[0].sequential.target.threads = default_threads()  # the chains are done
    if looks:
        statistics = _with_missed_modes(idata, statistics, kernels[0], x)
        reasons += lost(final(statistics))
    if reasons:
        statistics.attrs["doubt"] = " ".join(reasons)
    if "particles" in statistics:
        particles = Coordinates(model).dataset(statistics["particles"].values, ["chain", "stage", "draw"])
        idata["stages"] = xr.DataTree(particles.assign(time_index=statistics["time_index"]))
        statistics = statistics.drop_vars("particles")
    idata["sample_stats"] = xr.DataTree(statistics)
    if looks and weighs:
        points = PART * np.nanmax(statistics["evaluations"].values, axis=1).sum() / kernels[0].sequential.target.n_samples
        for line in weighed(idata, kernels[0].sequential.target, generator_of(x), count=max(LEAST, int(points))).said:
            _log.info("IBIS: %s.", line)
    if doubt := stages(idata).attrs.get("doubt"):
        _log.warning("IBIS: %s", doubt)
    return idata


def load_checkpoint(folder: str | os.PathLike[str], *, model: pm.Model | None = None) -> xr.DataTree:
    """Read the posterior that an unfinished run has reached.

    Parameters
    ----------
    folder : path
        The ``checkpoint`` of :func:`sample_ibis`.
    model : pm.Model, optional
        The model of the run. Default: the model on the context stack.

    Returns
    -------
    xarray.DataTree
        ``posterior`` of each chain given the samples it had taken in (``sample_stats`` says how many). Every stage ends with
        a valid posterior, and the run need not have been interrupted.
    """
    model = model_of(model)
    saved = read_chains(place(folder, "folder"))
    if not saved:
        raise ValueError(f"there is no checkpoint in {folder}; give the folder that sample_ibis was given.")
    coordinates = Coordinates(model)
    if any(s.settings.get("variables") != coordinates.labels for s in saved):
        raise ValueError(
            f"the checkpoint has the variables {saved[0].settings.get('variables')}, the model {coordinates.labels}; give the "
            "model of the run."
        )
    particles = np.stack([s.arrays["x"][evenly(normalised(s.arrays["log_weights"]))] for s in saved])
    sample_stats = regular({k: [[stage[k] for stage in s.stages] for s in saved] for k in saved[0].stages[0]})
    posterior = coordinates.dataset(particles, ["chain", "draw"])
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": sample_stats})


def _kept(kernels: list[IBIS], progressbar: bool) -> Callable[..., IBIS]:
    """What makes a kernel for PyMC, and keeps it; PyMC's bar is up only when all is compiled."""

    def kernel(**settings: Any) -> IBIS:
        with progress_bar("sample_ibis", progressbar) as bar:
            bar("drawing from the prior")
            kernels.append(IBIS(**settings))
        return kernels[-1]

    return kernel


def _executor(execution: Execution | None, cores: Any) -> Executor | None:
    """Where chains run, if not in processes of this call."""
    execution = of_kind(execution, Execution, "execution")
    if replace(execution, executor=None) != Execution():
        raise ValueError("execution has limits, and sample_ibis runs to its end; give Execution(executor=...) alone.")
    if execution.executor is not None and cores is not None:
        raise ValueError(f"cores is {shown(cores)} beside an executor, whose workers run the chains; leave cores out.")
    return execution.executor


def _tasks(start: Any, seeds: Sequence[int]) -> list[ChainTask]:
    """The chains as ``pm.sample_smc`` would run them: the same starts, and the same random numbers."""
    starts = start if isinstance(start, list | tuple) else [start] * len(seeds)
    if len(starts) != len(seeds):
        raise ValueError(f"start has {len(starts)} entries for {len(seeds)} chains; give one for each chain.")
    tasks = [ChainTask(s, np.random.default_rng(number)) for s, number in zip(starts, seeds, strict=True)]
    tasks[0].rng.integers(2**30)  # PyMC seeds the kernel by it
    return tasks


def _elsewhere(make: Callable[..., IBIS], executor: Executor, tasks: list[ChainTask]) -> Callable[..., IBIS]:
    """What makes a kernel for PyMC that hands over the chains of an executor."""

    def kernel(**settings: Any) -> IBIS:
        here = make(**settings)
        if (folder := settings["checkpoint"]) is not None:
            settings["checkpoint"] = Path(folder).absolute()  # a worker may be in another folder
        chains = backend(here.run, partial(_runner, settings), executor).results(tasks)
        return here.handing_over(chain for _, chain in chains)

    return kernel


def _runner(settings: dict[str, Any]) -> Callable[[ChainTask], FinishedChain]:
    """What runs chains in a worker, which compiles the model for itself."""
    return IBIS(**settings).run


def _evidences(statistics: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Log evidence of each chain, and its standard error."""
    last = final(statistics)
    return last["log_evidence"].values, last["log_evidence_se"].values


def weighted_particles(idata: xr.DataTree, coordinates: Coordinates) -> tuple[np.ndarray, np.ndarray]:
    """Draws (N, d) of all chains of a finished run, and log weights that sum to the integral of prior times likelihood."""
    return _finite(*_pooled(stages(idata), _particles(idata, coordinates)))


def _particles(idata: xr.DataTree, coordinates: Coordinates) -> np.ndarray:
    """Draws (chain, draw, d) in unconstrained space."""
    posterior = group(idata, "posterior")
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    free = {rv.name: posterior[rv.name].values for rv in coordinates.model.free_RVs}
    x = coordinates.unconstrained({name: v.reshape(chains * draws, *v.shape[2:]) for name, v in free.items()})
    return x.reshape(chains, draws, -1)


def _scale_reductions(x: np.ndarray) -> np.ndarray:
    """R-hat of each coordinate of draws (chain, draw, d); one for a single chain."""
    if len(x) < 2 or x.shape[1] < 4:
        return np.ones(x.shape[2])
    return np.array([float(array_stats.rhat(x[:, :, k], method="rank")) for k in range(x.shape[2])])


def generator_of(x: np.ndarray) -> np.random.Generator:
    """Random numbers that follow from particles: the same on any number of cores, and after an interruption."""
    return np.random.default_rng(np.random.SeedSequence(list(x.tobytes()[:4096])))


def _pooled(statistics: xr.Dataset, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Particles (chain, draw, d) of all chains in one row, and their log weights by the chains' evidences."""
    last = final(statistics)
    each = last["log_evidence"].values + last["log_prior_mass"].values - np.log(x.shape[0] * x.shape[1])
    return x.reshape(-1, x.shape[2]), np.repeat(each, x.shape[1])


def _rejoined(
    idata: xr.DataTree, statistics: xr.Dataset, kernel: IBIS, x: np.ndarray, rejoin: Callable[..., SequentialState]
) -> tuple[xr.Dataset, np.ndarray]:
    """Chains that go on from particles (M, d) of different parts of the posterior: statistics and particles.

    ``rejoin(rng)`` is the state of each chain then.
    """
    coordinates, posterior = kernel.sequential.target.coordinates, group(idata, "posterior")
    rows, moved = [], []
    for rng in generator_of(x).spawn(posterior.sizes["chain"]):
        kernel.state = rejoin(rng=rng)
        rows.append({**kernel.sample_stats(), "log_product": np.nan, "log_product_se": np.nan})
        moved.append(kernel.state.particles.x)
    idata["posterior"] = xr.DataTree(coordinates.dataset(np.stack(moved), ["chain", "draw"]).assign_attrs(posterior.attrs))
    new = regular({name: [[row[name]] for row in rows] for name in rows[0]}, statistics.attrs)
    if "particles" in statistics:
        new["particles"] = (("chain", "stage", *statistics["particles"].dims[2:]), np.stack(moved)[:, None])
    return one_after_the_other(statistics, new).assign_attrs(statistics.attrs), np.stack(moved)


def _from_all(idata: xr.DataTree, statistics: xr.Dataset, kernel: IBIS, x: np.ndarray) -> tuple[xr.Dataset, np.ndarray]:
    """Chains that go on from the particles (chain, draw, d) of all, weighted by their evidence."""
    rows, log_weights = _pooled(statistics, x)
    return _rejoined(idata, statistics, kernel, rows, partial(kernel.sequential.rejoin, rows, log_weights))


def _with_missed_modes(idata: xr.DataTree, statistics: xr.Dataset, kernel: IBIS, x: np.ndarray) -> xr.Dataset:
    """Statistics of chains that go on with the modes they have missed, if there are some."""
    target, pool = kernel.sequential.target, _pooled(statistics, x)
    evaluations = int(np.nanmax(statistics["evaluations"].values, axis=1).sum())
    found = search(target, *_finite(*pool), evaluations, generator_of(x))
    if found is None:
        _log.info(NO_SEARCH)
        return statistics
    statistics.attrs["search_evaluations"] = found.evaluations
    if not found.missed:
        return statistics
    _log.info(FOUND.format(found.share))
    join = partial(kernel.sequential.join_parts, found.x, found.log_weights, found.part)
    statistics, x = _rejoined(idata, statistics, kernel, found.x, join)
    if np.any(final(statistics)["walks"].values > 0):  # of a mode that is no ellipsoid, the particles have seen the rest by now
        statistics, x = _from_all(idata, statistics, kernel, x)
    above = lost_mode(found.missed, *_pooled(statistics, x))
    last = statistics["stage"] == statistics["time_index"].notnull().sum("stage") - 1
    return statistics.assign(lost_mode=statistics["lost_mode"].where(~last, above))


def _finite(x: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Particles that are not at a bound of an unknown, where rounding has taken them, and their weights."""
    fine = np.isfinite(x).all(axis=1)
    return x[fine], log_weights[fine]


def _remembered(folder: Path, random_seed: Any) -> Any:
    """The seed a folder's run began with, or this one, or a fresh one."""
    file = folder / "run.json"
    known = read_settings(file, "remove it and give the run's random_seed, or a new folder").get("random_seed")
    if known is not None:
        check_seed(random_seed, known, folder, "give a new folder")
        return known
    if random_seed is None:
        random_seed = whole_seed(None)
    if isinstance(random_seed, int | np.integer):
        write_settings(file, {"random_seed": int(random_seed)})
    return random_seed
