"""Sequential runs as users start, continue and read them."""

from __future__ import annotations

import json
import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.basic import Variable

from pm_sysid.batch import default_threads
from pm_sysid.context import model_of
from pm_sysid.coordinates import Coordinates
from pm_sysid.doors import count, place, seed
from pm_sysid.samplers.checkpoint import locked, read_chains
from pm_sysid.samplers.ibis import IBIS, MOST, SEQUEL
from pm_sysid.samplers.sequential import POOR_FIT
from pm_sysid.stages import final, group, one_after_the_other, regular, stages

_log = logging.getLogger("pm_sysid")
#: Share of stages with poor proposals that is worth a word.
MANY = 0.1


def sample_ibis(
    draws: int = 1000,
    *,
    model: pm.Model | None = None,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
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
        Threads for a batch of particles in each chain. Default: the cores that the chains leave.
    **settings
        Those of :class:`IBIS` (``threshold``, ``moves``, ``steps``, ``min_acceptance``, ``store_stages``) and of
        ``pm.sample_smc`` (``progressbar``, ``idata_kwargs``, ...).

    Returns
    -------
    xarray.DataTree
        ``posterior``; ``sample_stats`` with dims (chain, stage), NaN after a chain's last stage: ``time_index`` (samples
        taken in), ``ess`` (before resampling) and its path in the stage, ``accept_rate``, ``proposal_ess`` (effective
        fraction of the independent proposals: small where they do not fit the posterior), ``evaluations`` (sample
        likelihoods so far), ``log_evidence`` and ``log_evidence_se``, and PyMC's ``log_marginal_likelihood``; with
        ``store_stages=True`` also ``stages``: the posterior given the samples up to each stage's ``time_index``, dims
        (chain, stage, draw).

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
    draws, random_seed = count(draws, "draws", most=MOST), seed(random_seed)
    cores = (os.cpu_count() or 1) if cores is None else count(cores, "cores", most=10**4)
    chains = max(2, cores) if chains is None else count(chains, "chains", most=10**4)
    threads = max(1, default_threads() // min(cores, chains)) if threads is None else count(threads, "threads")
    if checkpoint is not None:
        checkpoint = place(checkpoint, "checkpoint")
    with ExitStack() as held:
        if checkpoint is not None:
            Path(checkpoint).mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(Path(checkpoint) / "run"))
            random_seed = _remembered(Path(checkpoint), random_seed)
        idata: xr.DataTree = pm.sample_smc(
            draws,
            kernel=IBIS,
            model=model,
            chains=chains,
            cores=cores,
            random_seed=random_seed,
            checkpoint=checkpoint,
            threads=threads,
            **settings,
        )
    statistics = stages(idata)
    poor = float((statistics["proposal_ess"] < POOR_FIT).sum() / statistics["proposal_ess"].notnull().sum())
    if poor > MANY:
        _log.warning(
            f"IBIS: the proposals fitted the posterior poorly in {100 * poor:.0f} % of the stages (proposal_ess). Compare the "
            "chains' evidence; if they differ by more than their errors, take more particles, or other parameters."
        )
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
    coordinates, start = Coordinates(model), []
    for c in range(posterior.sizes["chain"]):
        values = {rv.name: posterior[rv.name].values[c] for rv in model.free_RVs}
        rows, at, point = coordinates.unconstrained(values), 0, {}
        for v in model.value_vars:
            size = int(np.size(coordinates.point[v.name]))
            point[v.name] = rows[:, at : at + size]
            at += size
        numbers = {
            "n": n,
            "log_marginal_likelihood": float(last["log_evidence"][c]),
            "variance": float(last["log_evidence_se"][c]) ** 2,
            "evaluations": int(last["evaluations"][c]),
        }
        start.append({**point, SEQUEL: numbers})
    settings = {"store_stages": "stages" in idata, **settings}
    result = sample_ibis(
        posterior.sizes["draw"],
        model=model,
        chains=posterior.sizes["chain"],
        random_seed=random_seed,
        start=start,
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
    particles = np.stack([s.arrays["x"] for s in saved])
    sample_stats = regular({k: [[stage[k] for stage in s.stages] for s in saved] for k in saved[0].stages[0]})
    posterior = coordinates.dataset(particles, ["chain", "draw"])
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": sample_stats})


def _remembered(folder: Path, random_seed: Any) -> Any:
    """The seed a folder's run began with, or this one, or a fresh one."""
    file = folder / "run.json"
    if file.exists():
        try:
            known = json.loads(file.read_text())["random_seed"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is damaged ({error!r}); remove it and give the run's random_seed, or a new folder."
            ) from error
        if random_seed is not None and random_seed != known:
            raise ValueError(
                f"random_seed is {random_seed!r}, but the run in {folder} began with {known}; leave it out to go on, or give a "
                "new folder."
            )
        return known
    if random_seed is None:
        random_seed = int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_seed, int | np.integer):
        file.write_text(json.dumps({"random_seed": int(random_seed)}))
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
