"""Simulation-based calibration: posteriors of records whose parameters are known draws from the prior."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.arguments import count, flag, place, seed_sequence, whole_seed
from pm_sysid.progress import progress_bar
from pm_sysid.sbc.fitters import Drawn, Refit, refit_of
from pm_sysid.sbc.ranks import Quantities, ranks
from pm_sysid.sbc.replicated_data import Data, Generator, ImpossibleRecord, Replicate, Replicates
from pm_sysid.sbc.store import LINES, Row, Store, code_of, numbers_of

_log = logging.getLogger("pm_sysid")

#: What a fit may raise and be counted as failed for; anything else is a mistake in a program.
FAILURES = (ValueError, RuntimeError, ArithmeticError)
#: Numbers of a fit by parameter.
COLUMNS = ("truth", "mean", "sd", "rank", "pit", "ess", "r_hat")


def calibrate(
    build: Callable[[], pm.Model] | pm.Model,
    n: int = 200,
    *,
    fit: Any = "nuts",
    generate: Generator = "model",
    var_names: str | Sequence[str] | None = None,
    ranked: int = 99,
    random_seed: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    progressbar: bool = True,
    **settings: Any,
) -> xr.DataTree:
    r"""Fit a model to many records whose parameters are known draws from its prior, and rank these among the posterior's.

    If prior, likelihood and sampler fit together, the rank of the true value among independent posterior draws is uniform:
    whatever the prior, the length of the record or the number of draws. Posteriors that are too narrow push ranks to both
    ends, wide ones to the middle, biased ones to one side.

    Parameters
    ----------
    build : callable or pm.Model
        Function without arguments that returns the model, or the model. What it was observed on gives the shape of the
        records (times, inputs, missing samples); data of variables that are no :class:`ODEFilter` must be in ``pm.Data``.
    n : int, default 200
        Number of fits. The rank histogram of a posterior that is a tenth too narrow needs about a thousand to be seen.
    fit : {"nuts", "ibis", "annealing", "pem"} or callable
        How to sample. ``"nuts"``: from the mode, as :func:`sample` does (settings ``draws=500, tune=200, chains=2,
        target_accept=0.8, prior_draws=500, starts=4``). ``"ibis"``: one run of :class:`IBIS` (``draws=1000``, and its
        ``threshold``, ``moves`` and ``threads``). ``"annealing"``: :class:`DataAnnealing` from draws of the prior
        (``draws=6000, tune=2000, chains=2, thin=5`` and its settings). ``"pem"``: :func:`fit_pem` on ``data=record`` and its
        Laplace approximation (``draws=1000`` and the options of ``fit_pem``); an initial state that the model infers or
        marginalises is estimated. Or a function of (model, rng) that returns draws as ``pm.sample`` does.
    generate : "model" or callable
        Where records come from: the model's own random draws; or a function of (params, rng) that returns a record (or a
        dict of records or arrays by the name of the observed variable), such as an accurate free run with noise, which puts
        the integration error to the test too. ``params`` has every free and deterministic variable by name, and the initial
        state of a filter "y", drawn from what the model knows of it, as ``params["y_x0"]``: a dict by state (a list of them
        for several records).
    var_names : str or sequence of str, optional
        Free or deterministic variables to rank. By default all free ones, and with them the log-likelihood of the data,
        which is the most sensitive to a posterior that overlooks a part of the data.
    ranked : int, default 99
        Posterior draws, evenly spaced, among which the truth is ranked; fewer in fits with a smaller effective sample size.
    random_seed : int, optional
        One seed gives one result. Fit ``i`` depends on it and on ``i`` alone.
    folder : path, optional
        Where finished fits are kept. Called again with the same folder, seed and model, only the missing ones are done, so
        that an interrupted calibration goes on, and a larger ``n`` adds to it. The fits of another model, of other records or
        by other lines of a fit function are refused; what a fit function calls or closes over is not looked at.
    progressbar : bool, default True
        Show how many fits are done; nothing is left of the line.
    **settings
        Of a fit by name.

    Returns
    -------
    xarray.DataTree
        ``prior_sbc``: for ArviZ (``az.plot_ecdf_pit(result)``), of each parameter the probability of less than the truth
        under the posterior, ``(rank + u) / (draws + 1)`` with a uniform ``u``; dims (chain, draw), one draw a fit that did
        not fail. ``calibration``, dims (fit, parameter): ``truth``, posterior ``mean`` and ``sd``, ``z`` (of the truth, in
        posterior standard deviations from the mean), ``contraction`` (1 less the quotient of posterior and prior variance),
        ``rank``, ``pit``, ``ess``, ``r_hat``; dims (fit,): ``ranked``, ``seconds``, ``failed``, ``message``, and statistics of
        the sampler; NaN where a fit failed. :func:`calibration_tests` judges it, :func:`plot_calibration` draws it.

    Raises
    ------
    ValueError, TypeError
        For settings that do not fit, models whose data cannot be replaced, records of another shape, a folder of another
        calibration.
    RuntimeError
        If every fit failed, or another process writes to the folder.

    Notes
    -----
    The model is compiled once. A fit that raises a ``ValueError``, ``RuntimeError`` or ``ArithmeticError``, whose draws do
    not vary, or whose record cannot be simulated counts as failed: ``failed`` and ``message`` say which and why, and its
    ranks are missing, which is a selection if there are many.

    An initial state that the model read off the record it was built with is a prior like any other here, centred where that
    record began, and the same for every record. Records that start elsewhere than where ``params["y_x0"]`` says are none that
    this prior makes; ranks need not be uniform then.

    The model is left as it was found: its data, inputs and initial states.

    Source: Talts, Betancourt, Simpson, Vehtari and Gelman (2018), arXiv:1804.06788, Algorithm 1 and 2; the log-likelihood
    among the ranked quantities is the advice of Modrak et al. (2023), arXiv:2211.02383.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> def build():
    ...     with pm.Model() as model:
    ...         mu = pm.Normal("mu")
    ...         pm.Normal("y", mu, 1.0, observed=pm.Data("y_data", np.zeros(5)))
    ...     return model
    >>> result = sid.calibrate(
    ...     build, 5, fit="ibis", draws=100, random_seed=1, progressbar=False
    ... )
    >>> result.calibration["z"].sizes
    Frozen({'fit': 5, 'parameter': 2})
    """
    n, ranked = count(n, "n"), count(ranked, "ranked")
    model = build if isinstance(build, pm.Model) else build() if callable(build) else None
    if not isinstance(model, pm.Model):
        raise TypeError(f"build is {type(build).__name__}; give a function that returns a pm.Model, or the model.")
    if not model.free_RVs or not model.observed_RVs:
        raise ValueError("the model needs free variables and data: there is nothing to calibrate without.")
    flag(progressbar, "progressbar")
    data = Data(model)
    store = None if folder is None else Store(place(folder, "folder"))
    seed = whole_seed(random_seed, None if store is None else store.known.get("random_seed"))
    replicates = Replicates(model, data, generate)
    quantities = Quantities(model, var_names)
    refit = refit_of(fit, model, settings)
    name = fit if isinstance(fit, str) else getattr(fit, "__name__", "function")
    identity = {
        "fit": name,
        LINES: code_of(fit),
        "settings": repr(sorted(settings.items())),
        "ranked": ranked,
        "parameters": quantities.labels,
    }
    with nullcontext() if store is None else store.locked():
        if store is not None:
            store.open({"random_seed": seed, **identity})
        try:
            rows = list(_rows(n, seed, replicates, data, quantities, refit, ranked, store, progressbar))
        finally:
            data.restore()
    made = "model" if generate == "model" else getattr(generate, "__name__", "function")
    prior_sd = quantities.prior_sd(replicates.prior, seed)
    return _tree(rows, quantities.labels, prior_sd, {"fit": name, "generate": made, "random_seed": seed, "ranked": ranked})


def _rows(
    n: int,
    seed: int,
    replicates: Replicates,
    data: Data,
    quantities: Quantities,
    refit: Refit,
    ranked: int,
    store: Store | None,
    progressbar: bool,
) -> Iterator[Row]:
    """Fit after fit, those that are kept from the store."""
    failures = 0
    with progress_bar("fits", progressbar, n) as bar:
        for i in range(n):
            row = store.load(i) if store is not None else None
            if i == 0 and row is not None and row.ranked and store is not None:
                try:
                    truth = _truth(replicates(_seeds(seed, 0).spawn(3)[0]), data, quantities)
                except ImpossibleRecord as error:  # it has not been one before
                    raise ValueError(store.other) from error
                store.check(row, truth, numbers_of(data.current()))
            if row is None:
                row = _row(_seeds(seed, i), replicates, data, quantities, refit, ranked)
                if store is not None:
                    store.save(i, row)
            if row.message:
                failures += 1
                if failures == 1:
                    _log.warning("calibrate: fit %d failed: %s", i, row.message)
            if failures == n:
                raise RuntimeError(f"all of the {n} fits failed; the last: {row.message}")
            bar(f"{failures} failed" if failures else "", advance=1)
            yield row


def _row(
    seed: np.random.SeedSequence, replicates: Replicates, data: Data, quantities: Quantities, refit: Refit, ranked: int
) -> Row:
    """Draw parameters and a record, fit, and rank."""
    first, second, third = seed.spawn(3)
    begin, table = time.perf_counter(), np.full((len(COLUMNS), len(quantities.labels)), np.nan)
    try:
        replicate: Replicate = replicates(first)
    except ImpossibleRecord as error:
        return Row(table, 0, 0.0, {}, str(error))
    table[0] = _truth(replicate, data, quantities)
    record = numbers_of(data.current())
    begin = time.perf_counter()
    try:
        drawn = refit(np.random.default_rng(second))
    except FAILURES as error:
        return Row(table, 0, time.perf_counter() - begin, {}, f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - begin
    chains, draws = next(iter(drawn.values.values())).shape[:2]
    flat = quantities.of(_flat(drawn)).reshape(chains, draws, -1)
    values = flat[..., : len(quantities.labels) - quantities.likelihood]
    if not np.all(np.isfinite(values)):
        return Row(table, 0, seconds, drawn.statistics, "draws are not finite")
    if not np.all(np.ptp(values, axis=(0, 1)) > 0):
        return Row(table, 0, seconds, drawn.statistics, "draws do not vary")
    table[1:], count = ranks(table[0], flat, ranked, np.random.default_rng(third))
    return Row(table, count, seconds, drawn.statistics, "", record)


def _seeds(seed: int, i: int) -> np.random.SeedSequence:
    """Seeds of fit number i."""
    return seed_sequence(seed, 1, i)


def _truth(replicate: Replicate, data: Data, quantities: Quantities) -> np.ndarray:
    """Put the data into the model; the true quantities."""
    data.put(replicate.data)
    values: np.ndarray = quantities.of({k: v[None] for k, v in replicate.truth.items()})[0]
    return values


def _flat(drawn: Drawn) -> dict[str, np.ndarray]:
    """Draws (chain * draw, ...)."""
    return {k: v.reshape(-1, *v.shape[2:]) for k, v in drawn.values.items()}


def _tree(rows: Sequence[Row], labels: Sequence[str], prior_sd: np.ndarray, attributes: Mapping[str, Any]) -> xr.DataTree:
    """Rows as labelled arrays."""
    table = np.stack([row.table for row in rows])
    columns = {name: (("fit", "parameter"), table[:, k]) for k, name in enumerate(COLUMNS)}
    truth, mean, sd = (columns[name][1] for name in ("truth", "mean", "sd"))
    with np.errstate(all="ignore"):
        columns["z"] = ("fit", "parameter"), (truth - mean) / sd
        columns["contraction"] = ("fit", "parameter"), 1 - (sd / prior_sd) ** 2
    statistics = {name for row in rows for name in row.statistics}
    by_fit: dict[str, Any] = {name: [row.statistics.get(name, np.nan) for row in rows] for name in sorted(statistics)}
    by_fit |= {"ranked": [row.ranked for row in rows], "seconds": [row.seconds for row in rows]}
    by_fit |= {"failed": [bool(row.message) for row in rows], "message": [row.message for row in rows]}
    coords = {"fit": np.arange(len(rows)), "parameter": list(labels)}
    found = xr.Dataset({**columns, **{k: ("fit", np.array(v)) for k, v in by_fit.items()}}, coords, dict(attributes))
    fine = ~found["failed"].values
    pit = {label: (("chain", "draw"), columns["pit"][1][fine, k][None]) for k, label in enumerate(labels)}
    prior_sbc = xr.Dataset(pit, {"chain": [0], "draw": found["fit"].values[fine]}, dict(attributes))
    return xr.DataTree.from_dict({"prior_sbc": prior_sbc, "calibration": found})
