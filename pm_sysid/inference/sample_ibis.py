"""Sequential runs as users start, continue and read them, judged."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.basic import Variable

from pm_sysid.idata import group
from pm_sysid.inference.linearised import Linearised
from pm_sysid.inference.ruled_out import allow_for_integration, short_far_from_draws
from pm_sysid.likelihood.coordinates import Coordinates, model_of
from pm_sysid.likelihood.filter_steps import put_steps, short_of_steps, substeps_attrs
from pm_sysid.likelihood.filter_view import filter_names, filter_view
from pm_sysid.sampling.executors import Execution
from pm_sysid.sampling.smc.particle_state import Start
from pm_sysid.sampling.smc.sequential_draws import sequential_draws
from pm_sysid.sampling.smc.stages import doubt_evidence, final, log_evidence, one_after_the_other, stages
from pm_sysid.solve.substeps import StepChoice

_log = logging.getLogger("pm_sysid")

#: Samples from which on a record has the linearisation about its uncertain initial state measured only where a sensor is not
#: Gaussian: there is little that it could have changed after so many, and it would take longer than the draws.
LONG = 2000
#: Name of the attribute that tells the times and inputs which the draws were made with, before the name of the filter.
FORCED = "forced_"
#: How often sampling begins again because the posterior needs more steps.
AGAIN = 3


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
        Those of :class:`IBIS` (``threshold``, ``moves``, ``store_stages``, ``search``) and of ``pm.sample_smc``
        (``progressbar``, ``idata_kwargs``, ...).

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
        ``log_around`` and ``log_around_se`` (by draws around particles of earlier stages, where proposals fitted poorly),
        ``log_prior_mass`` (of the share of the prior that potentials and transforms leave, by which the evidence is
        normalised), ``lost_mode`` (log mass of a mode in which the particles do not stay, relative to theirs; NaN if there is
        none), and PyMC's ``log_marginal_likelihood``; with ``store_stages=True`` also ``stages``: the posterior given the
        samples up to each stage's ``time_index``, dims (chain, stage, draw). The attribute ``doubt`` of ``sample_stats`` says
        in words what speaks against the result; :func:`log_evidence` repeats it.

    Notes
    -----
    Chains that found different parts of the posterior (evidences that differ by more than four errors, R-hat above 1.05, or
    shares of a region too unlike for chance) go on together: from particles of all chains, weighted by their evidence, with
    proposals that cover the modes of all.

    After the first samples no particle may be left near the mode that all samples favour. In the end, searches from prior draws
    therefore look for modes that the particles do not hold, by the likelihood of all samples, for about a tenth of the run's
    evaluations (attribute ``search_evaluations`` of ``sample_stats``); the chains go on with what they have missed. Then
    the draws are weighed against draws of the prior and of proposals fitted to all of them and to powers of the density, for a
    fifth to a third more (half as long again where a run takes a second or two): where these reach what the particles hold and
    say something else, weighted draws take their place. With ``search=False`` neither is done.

    The steps of filters are judged on the draws and beyond them as by :func:`settle_substeps`. Filters with
    ``substeps="auto"`` that took too few take more, and the draws begin again, at most three times; where that is not enough,
    with a ``checkpoint``, and of filters with a number of steps the doubt says so. What earlier draws have cost is the
    attribute ``earlier_evaluations`` of ``sample_stats``. Too few steps may rule out a mode far from all draws: searches with
    twice the steps look for such modes, for a tenth of the run's time, unless ``search=False``. What linearising about an
    uncertain initial state costs is measured as by :func:`check_initial_state`, and by draws of the prior: the error of the
    evidence is at least as large. Of records of more than 2,000 samples this is done only where a sensor's noise is not
    Gaussian or depends on the output, or it has limits. What linearising about processes costs is measured as by
    :func:`check_processes`, in some seconds.

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
    again = 0 if checkpoint is not None or "start" in settings else AGAIN
    known: xr.DataTree | None = None
    earlier = list[int]()
    for left in range(again, -1, -1):
        try:
            idata = sequential_draws(draws, model=model, chains=chains, cores=cores, **options, **settings)
        except KeyboardInterrupt:
            if known is None:
                raise
            earlier.pop()
            idata, short = known, "The draws had too few filter steps, and drawing them again was interrupted: sample again."
            break
        known = idata
        short, taken = short_of_steps(idata, model, take=left > 0)
        if not taken and settings.get("search", True):
            far, taken = short_far_from_draws(idata, model, take=left > 0)
            short = " ".join(filter(None, (short, far)))
        if not taken:
            break
        earlier.append(int(stages(idata)["evaluations"].max("stage").sum()))
        _log.info("IBIS: the posterior needs more filter steps than were taken; with these the draws begin again.")
    idata["sample_stats"].attrs["earlier_evaluations"] = sum(earlier)
    for reason in [*filter(None, (short, allow_for_integration(idata, model))), *_linearised(idata, model)]:
        doubt_evidence(idata, [reason])
        _log.warning("IBIS: %s", reason)
    idata.attrs.update(substeps_attrs(model))
    idata.attrs.update({f"{FORCED}{name}": filter_view(name, model).forced(None)[0].tolist() for name in filter_names(model)})
    return idata


def _linearised(idata: xr.DataTree, model: pm.Model) -> list[str]:
    """What speaks against the linearisation about initial states and processes, or that it was not measured."""
    reasons: list[str] = []
    try:
        for name in filter_names(model):
            view = filter_view(name, model)
            if view.problem.form.sensors.gaussian and len(view.measured()) > LONG and not view.problem.linearises_processes:
                continue
            found = Linearised(view, 0).against(idata, log_evidence(idata).value)
            reasons += [*found.reasons, *([found.unknown] if found.unknown else [])]
    except KeyboardInterrupt:
        reasons.append("What linearising about an uncertain initial state or processes costs was not measured: interrupted.")
    return reasons


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
        If ``idata`` has no stages, or the record is no longer than before, or its measurements, times or inputs do not
        begin as they did. ``pm.sample_smc`` keeps nothing of times and inputs: these are not compared then.

    Notes
    -----
    An initial state that an :class:`ODEFilter` reads off its record has another prior in a longer one. The result is that of
    the new prior; of the new stages ``log_product`` is not a number, since their weights are of both priors. Filters with
    ``substeps="auto"`` take at least as many steps as those of ``idata`` did.
    """
    model = model_of(model)
    old = stages(idata)
    if "time_index" not in old:
        raise ValueError("idata has no stages to go on from; give the result of sample_ibis.")
    last = final(old)
    n = int(last["time_index"].max())
    _check_longer(idata, model, n)
    posterior = group(idata, "posterior")
    _take_steps(idata, model)
    coordinates, starts, same = Coordinates(model), [], _same_starts(model, n)
    if not same:
        _log.info(
            "extend: the initial state is read off the record, and its prior is another one with the longer record. The "
            "evidence is that of the new prior; the weights of the stages are of both, and are not compared with it."
        )
    for c in range(posterior.sizes["chain"]):
        values = {rv.name: posterior[rv.name].values[c] for rv in model.free_RVs}
        evidence, error, evaluations = (last[name].values[c] for name in ("log_evidence", "log_evidence_se", "evaluations"))
        rows = coordinates.unconstrained(values)
        starts.append(Start(rows, n, float(evidence), float(error) ** 2, int(evaluations), same_model=same))
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


def _take_steps(idata: xr.DataTree, model: pm.Model) -> None:
    """Give filters that choose their steps at least as many as the draws were made with."""
    more: dict[str, StepChoice] = {}
    for name in filter_names(model):
        choice, then = filter_view(name, model).op.grid.choice, int(idata.attrs.get(f"substeps_{name}", 0))
        if choice.asked == "auto" and choice.grids is None and then > choice.substeps:
            more[name] = replace(choice, substeps=then, where="for the draws that are extended")
            _log.info("extend: %r takes %d steps a sample, as the draws that are extended did.", name, then)
    put_steps(more, model)


def _same_starts(model: pm.Model, n: int) -> bool:
    """Whether the filters' initial states are those that they had when the record ended after n samples."""
    for name in filter_names(model):
        view = filter_view(name, model)
        if not all(np.allclose(a, b) for a, b in zip(view.starts(), view.starts_of_first(n), strict=True)):
            return False
    return True


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
    for name in filter_names(model):
        now, size = filter_view(name, model).forced(n)
        if np.any(np.abs(np.asarray(idata.attrs.get(f"{FORCED}{name}", now)) - now) > 1e-9 * size):
            raise ValueError(
                f"the times and inputs of the first {n} samples of {name!r} are not those that idata was made with; extend "
                "takes the same record, longer."
            )
