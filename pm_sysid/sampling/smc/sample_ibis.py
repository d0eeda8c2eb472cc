"""Sequential runs as users start, continue and read them."""

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
from pytensor.graph.basic import Variable

from pm_sysid.arguments import count, of_kind, place, seed, shown, whole_seed
from pm_sysid.compat import seeds_per_chain
from pm_sysid.compat.arviz import array_stats
from pm_sysid.compat.samplers import sample_by_stages
from pm_sysid.idata import group
from pm_sysid.likelihood.coordinates import Coordinates, model_of
from pm_sysid.likelihood.filter_steps import short_of_steps
from pm_sysid.progress import drawable, progress_bar
from pm_sysid.recurrence.threads import default_threads
from pm_sysid.sampling.executors import Execution, backend, workers
from pm_sysid.sampling.smc.algorithm import MOST
from pm_sysid.sampling.smc.ibis import IBIS, ChainTask, FinishedChain
from pm_sysid.sampling.smc.particle_state import Start
from pm_sysid.sampling.smc.resampling import evenly, normalised
from pm_sysid.sampling.smc.stages import disagree, doubts, final, one_after_the_other, regular, stages
from pm_sysid.sampling.smc.strata import held_alike
from pm_sysid.storage import check_seed, locked, read_chains, read_settings, write_settings

_log = logging.getLogger("pm_sysid")
#: R-hat above which chains have found different parts of a posterior.
MIXED = 1.05
#: Probability below which chains hold shares of a region that are too unlike for chance.
UNLIKE = 0.01


def sample_ibis(
    draws: int = 1000,
    *,
    model: pm.Model | None = None,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    execution: Execution | None = None,
    **settings: Any,
) -> xr.DataTree:
    """Sample a posterior with evidence, taking the samples of the record in one after the other.

    The same as ``pm.sample_smc(draws, kernel=sid.IBIS, ...)``, with cores shared between chains and threads, and with the
    statistics of the stages as regular variables.

    Parameters
    ----------
    draws : int, default 1000
        Particles in each chain.
    model : pm.Model, optional
        Default: the model on the context stack.
    chains, cores : int, optional
        Independent runs, and how many of them at once; as in ``pm.sample_smc``.
    random_seed : int, sequence of int or numpy.random.Generator, optional
        One seed gives one result, on any number of cores.
    checkpoint : path, optional
        Folder to which every chain is written after each stage. Called again with the same folder, model and settings,
        the run goes on from there, and ends as it would have without the interruption; without a ``random_seed`` the
        folder remembers the one drawn. :func:`load_checkpoint` reads what is there.
    threads : int, optional
        Threads for a batch of particles in each chain. Default: the cores that the chains leave; for chains on a cluster,
        what the environment of each worker says.
    execution : Execution, optional
        ``Execution(executor=...)`` runs the chains on processes that are there already, or on the workers of a cluster, in
        place of ``cores``. The result is the same, and stays so when a worker dies: its chain is run again, or goes on from
        the ``checkpoint``, whose folder all workers must see.
    **settings
        Those of :class:`IBIS` (``threshold``, ``moves``, ``store_stages``) and of ``pm.sample_smc`` (``progressbar``,
        ``idata_kwargs``, ...).

    Returns
    -------
    xarray.DataTree
        ``posterior``, its draws in the order of the Markov chains of the last move; ``sample_stats`` with dims (chain, stage),
        NaN after a chain's last stage: ``time_index`` (samples taken in), ``ess`` (before resampling) and its path in the
        stage, ``accept_rate``, ``proposal_ess`` and ``pareto_k`` (effective fraction of the independent proposals and shape of
        their largest weights: small and above 0.7 where they do not fit the posterior), ``components`` of these proposals,
        ``walks`` (steps that took their place where they fitted badly), ``memory`` (correlation with where particles were),
        ``survivors`` (fewest particles for which a sample was possible), ``evaluations`` (sample likelihoods so far),
        ``log_evidence`` and ``log_evidence_se``, ``log_product`` and ``log_product_se`` (of the mean weights),
        ``log_around`` and ``log_around_se`` (by draws around particles of earlier stages, where proposals fitted poorly), and
        PyMC's ``log_marginal_likelihood``; with ``store_stages=True`` also ``stages``: the posterior given the samples up to
        each stage's ``time_index``, dims (chain, stage, draw). The attribute ``doubt`` of ``sample_stats`` says in words what
        speaks against the result; :func:`log_evidence` repeats it.

    Notes
    -----
    Chains that found different parts of the posterior (evidences that differ by more than four errors, R-hat above 1.05, or
    shares of a region too unlike for chance) go on together: from particles of all chains, weighted by their evidence, with
    proposals that cover the modes of all.

    The steps of filters are judged on the draws and beyond them as by :func:`settle_substeps`, and the doubt says where they
    were too few; they stay as they are. A mode far from all draws, which too few steps have ruled out, is not seen, and what
    linearising about an uncertain initial state costs is not judged here. :func:`sample` looks for such modes, and judges that
    too; after ``sample_ibis`` alone call :func:`check_initial_state`.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=[0.5, -0.5, 1.0])
    ...     idata = sid.sample_ibis(200, chains=2, cores=1, progressbar=False, random_seed=1, store_stages=True)
    >>> idata.sample_stats["log_evidence"].dims
    ('chain', 'stage')
    """
    model = model_of(model)
    options: dict[str, Any] = {"random_seed": random_seed, "checkpoint": checkpoint, "threads": threads, "execution": execution}
    idata = sequential_draws(draws, model=model, chains=chains, cores=cores, **options, **settings)
    if short := short_of_steps(idata, model):
        statistics = stages(idata)
        statistics.attrs["doubt"] = " ".join(filter(None, [statistics.attrs.get("doubt"), short]))
        idata["sample_stats"] = xr.DataTree(statistics)
        _log.warning("IBIS: %s", short)
    return idata


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
    **settings: Any,
) -> xr.DataTree:
    """What :func:`sample_ibis` returns, by the likelihood as it is: steps of filters are not judged."""
    draws, random_seed = count(draws, "draws", most=MOST), seed(random_seed)
    executor = _executor(execution, cores)
    cores = (os.cpu_count() or 1) if cores is None else count(cores, "cores", most=10**4)
    chains = max(2, cores) if chains is None else count(chains, "chains", most=10**4)
    if threads is not None:
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
    x = _particles(idata, kernels[0])
    apart = float(np.nanmax(_scale_reductions(x), initial=1.0))
    if apart > MIXED:
        reasons.append(
            f"The particles of the chains are in different places (R-hat {apart:.2f}): each has found a part of the posterior "
            "only. Take more draws and chains."
        )
    before = _evidences(statistics)
    acceptance = np.clip(final(statistics)["accept_rate"].values, 0.05, 1.0)
    if apart > MIXED or disagree(*before) or held_alike(x, acceptance, _generator(x)) < UNLIKE:
        statistics = _rejoined(idata, statistics, kernels[0], x)
        if disagree(*before):
            # What they find together agrees with itself. Where one has lost its way, the others may have done so too.
            statistics.attrs["chains_sd"] = float(np.std(before[0], ddof=1))
    if reasons:
        statistics.attrs["doubt"] = " ".join(reasons)
        _log.warning("IBIS: %s", statistics.attrs["doubt"])
    if "particles" in statistics:
        particles = Coordinates(model).dataset(statistics["particles"].values, ["chain", "stage", "draw"])
        idata["stages"] = xr.DataTree(particles.assign(time_index=statistics["time_index"]))
        statistics = statistics.drop_vars("particles")
    idata["sample_stats"] = xr.DataTree(statistics)
    return idata


def extend(idata: xr.DataTree, *, model: pm.Model | None = None, random_seed: Any = None, **settings: Any) -> xr.DataTree:
    """Continue a finished sequential posterior with the new samples of a longer record.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of :func:`sample_ibis` (or of ``pm.sample_smc`` with :class:`IBIS`), or of an earlier ``extend``.
    model : pm.Model, optional
        The same model with a longer record, whose first samples are those of ``idata``. Default: the model on the context
        stack.
    random_seed, **settings
        As in :func:`sample_ibis`; the number of draws and chains is that of ``idata``.

    Returns
    -------
    xarray.DataTree
        The posterior given all samples, in law that of a single run, at the cost of the new samples and of the moves they
        make necessary. Statistics of the new stages follow those of the old ones, and the evidence is that of all.

    Raises
    ------
    ValueError
        If ``idata`` has no stages, or the record is no longer than before, or does not begin as it did.
    """
    model = model_of(model)
    old = stages(idata)
    if "time_index" not in old:
        raise ValueError("idata has no stages to go on from; give the result of sample_ibis.")
    last = final(old)
    n = int(last["time_index"].max())
    _check_longer(idata, model, n)
    posterior = group(idata, "posterior")
    coordinates, starts = Coordinates(model), []
    for c in range(posterior.sizes["chain"]):
        values = {rv.name: posterior[rv.name].values[c] for rv in model.free_RVs}
        evidence, error, evaluations = (last[name].values[c] for name in ("log_evidence", "log_evidence_se", "evaluations"))
        rows = coordinates.unconstrained(values)
        starts.append(Start(rows, n, float(evidence), float(error) ** 2, int(evaluations)))
    settings = {"store_stages": "stages" in idata, **settings}
    result = sample_ibis(
        posterior.sizes["draw"],
        model=model,
        chains=posterior.sizes["chain"],
        random_seed=random_seed,
        start=starts,
        **settings,
    )
    result["sample_stats"] = xr.DataTree(
        one_after_the_other(old.drop_vars("particles", errors="ignore"), group(result, "sample_stats"))
    )
    if "stages" in idata and "stages" in result:
        result["stages"] = xr.DataTree(one_after_the_other(group(idata, "stages"), group(result, "stages")))
    return result


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


def _particles(idata: xr.DataTree, kernel: IBIS) -> np.ndarray:
    """Draws (chain, draw, d) in unconstrained space."""
    coordinates, posterior = kernel.sequential.target.coordinates, group(idata, "posterior")
    chains, draws = posterior.sizes["chain"], posterior.sizes["draw"]
    free = {rv.name: posterior[rv.name].values for rv in coordinates.model.free_RVs}
    x = coordinates.unconstrained({name: v.reshape(chains * draws, *v.shape[2:]) for name, v in free.items()})
    return x.reshape(chains, draws, -1)


def _scale_reductions(x: np.ndarray) -> np.ndarray:
    """R-hat of each coordinate of draws (chain, draw, d); one for a single chain."""
    if len(x) < 2 or x.shape[1] < 4:
        return np.ones(x.shape[2])
    return np.array([float(array_stats.rhat(x[:, :, k], method="rank")) for k in range(x.shape[2])])


def _generator(x: np.ndarray) -> np.random.Generator:
    """Random numbers that follow from particles: the same on any number of cores, and after an interruption."""
    return np.random.default_rng(np.random.SeedSequence(list(x.tobytes()[:4096])))


def _rejoined(idata: xr.DataTree, statistics: xr.Dataset, kernel: IBIS, x: np.ndarray) -> xr.Dataset:
    """Chains that found different parts of the posterior go on from the particles of all, weighted by their evidence."""
    coordinates, posterior = kernel.sequential.target.coordinates, group(idata, "posterior")
    (chains, draws), x = x.shape[:2], x.reshape(-1, x.shape[2])
    log_weights = np.repeat(_evidences(statistics)[0], draws)
    rows, moved = [], []
    for rng in _generator(x).spawn(chains):
        kernel.state = kernel.sequential.rejoin(x, log_weights, rng)
        rows.append({**kernel.sample_stats(), "log_product": np.nan, "log_product_se": np.nan})
        moved.append(kernel.state.particles.x)
    idata["posterior"] = xr.DataTree(coordinates.dataset(np.stack(moved), ["chain", "draw"]).assign_attrs(posterior.attrs))
    new = regular({name: [[row[name]] for row in rows] for name in rows[0]}, statistics.attrs)
    if "particles" in statistics:
        new["particles"] = (("chain", "stage", *statistics["particles"].dims[2:]), np.stack(moved)[:, None])
    return one_after_the_other(statistics, new).assign_attrs(statistics.attrs)


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


def _check_longer(idata: xr.DataTree, model: pm.Model, n: int) -> None:
    for rv in model.observed_RVs:
        new = model.rvs_to_values[rv]
        y = np.asarray(new.eval() if isinstance(new, Variable) else new)
        if len(y) <= n:
            raise ValueError(
                f"the record of {rv.name!r} has {len(y)} samples, and {n} have been taken in; give the model a longer one."
            )
        if "observed_data" in idata and rv.name in idata["observed_data"]:
            before = group(idata, "observed_data")[rv.name].values[:n]
            if before.shape[1:] != y.shape[1:] or not np.array_equal(before, y[: len(before)], equal_nan=True):
                raise ValueError(
                    f"the first {n} samples of {rv.name!r} are not those that idata was made from; extend takes the same "
                    "record, longer."
                )
