"""Predictions of a record by free runs of posterior draws."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph import ancestors

from pm_sysid.arguments import among, count, flag, seed, shown, whole
from pm_sysid.idata import posterior_of
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_view import FilterView, filter_view
from pm_sysid.posterior.states import sample_states
from pm_sysid.progress import announced
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import label_units
from pm_sysid.recurrence.functions import compiled
from pm_sysid.recurrence.run import compiled_batch
from pm_sysid.solve.checks import OF_FIT, check_channels, check_records, warn_of_other_inputs
from pm_sysid.solve.driven_runs import coloured_covariance, driven_runs
from pm_sysid.solve.fit_initial_state import FIRST, Errors, Spread, drawn_starts, fitted_start
from pm_sysid.solve.initial_state import initial_state
from pm_sysid.solve.run_substeps import RunSteps, all_runs
from pm_sysid.solve.simulate import run_variables, simulate, simulate_driven, steps_of
from pm_sysid.solve.substeps import SubstepWarning, checked_substeps
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.integrate import method_inputs, run_batch, run_recurrence

#: Samples that a start is read off where inputs or parameters are processes, and paths that say what these do to them.
FIRST_DRIVEN, PATHS = 100, 200
#: Paths for each measurement: the inverse of a covariance from few paths is too large, and what follows from it too certain.
PATHS_FOR_EACH = 20
#: Measurements of which a covariance is set up, at most.
MOST = 1500
#: Records of the fit that say where states usually are, at most, and paths of processes for each.
MOST_RECORDS, FEW_PATHS = 5, 20
#: How many times as far as states of the records of the fit those of a new record may begin, since it is another experiment.
ELSEWHERE = 3.0
#: Degrees of freedom below which the standard deviation of noise with heavy tails is that of so many.
FEWEST_DEGREES = 2.5


def predict(
    idata: Any,
    data: TimeSeries,
    *,
    model: pm.Model | None = None,
    name: str | None = None,
    draws: int = 50,
    every_step: bool = False,
    x0: Any = None,
    record: int | None = None,
    params: Mapping[str, Any] | None = None,
    substeps: int | Literal["auto"] = "auto",
    random_seed: Any = None,
) -> xr.Dataset:
    """Free runs of a model's system on the input of a record, with parameters from the posterior.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws, with dims ``chain`` and ``draw``.
    data : TimeSeries
        Times and inputs, those of the fit or new ones; ``y`` is used only to infer an initial state that is not given.
    model : pm.Model, optional
        Default: the model on the context stack.
    name : str, optional
        Name of the :class:`ODEFilter`, whose system runs; needed if the model has several.
    draws : int, default 50
        Number of runs (at most as many as there are draws, unless ``every_step``).
    every_step : bool, default False
        False: each run has the parameters of one draw, evenly spaced among all; the runs are what the posterior says about
        the output, without measurement noise (Eqs. 27 and 28). True: every sampling interval has the parameters of a new
        draw, picked at random; see Notes.
    x0 : "fit", or as for :func:`simulate`, optional
        ``"fit"``, the default for a record with outputs: the initial state from which a run with the posterior mean of the
        parameters meets the first 500 samples best, as MATLAB's ``compare`` does; zero without outputs. States that a dict
        has no value for are found in the same way. Unless ``every_step``, each run then starts from a state that is drawn from
        what these samples say of it given its parameters, with the noise of the posterior unless they speak against it. Where
        they say little, states are expected where they are in the records of the fit, within three times their deviation.
        ``attrs["x0"]`` of the result says where the initial state is from, and how many samples were measured.
    record : int, optional
        Where records have parameters of their own: those of which record, counted from 0.
    params : mapping, optional
        Values of parameters that are not those of the filter: numbers, variables of the model or expressions of them. For a
        specimen that was not measured, a draw from the population: ``{"k": model["k_new"]}`` with
        ``k_new = pm.Normal("k_new", mu, tau)`` in the model.
    substeps : int or "auto", default "auto"
        Runge-Kutta steps of a sampling interval, as for :func:`simulate`.
    random_seed : int or numpy.random.Generator, optional
        Seed of estimated initial states, of the draws that are picked when ``every_step``, and of the paths of processes.

    Returns
    -------
    xarray.Dataset
        Outputs and states with dims (draw, time), as :func:`simulate` returns them; outputs that have limits are cut off there.

    Raises
    ------
    ValueError
        If there is no such filter or no posterior, if draws are missing, or the record does not fit the system, or has other
        units than a record of the fit, where both are known; if parameters differ between records and neither ``record`` nor
        ``params`` says which to take.

    Warns
    -----
    UserWarning
        If nothing is measured and no ``x0`` is given, so that all runs begin at zero; if neither the samples nor the records
        of the fit say where a state begins; if inputs are said to move otherwise between samples than in the records of the
        fit (``intersample``), or have other names; and where the diffusion is a parameter of
        the model: it stands for process noise, which free runs do not have (``pm.sample_posterior_predictive`` draws records
        with it).

    Notes
    -----
    Where inputs or parameters of the filter are processes, each run has paths drawn from their prior, as on a new record,
    where nothing is known of them; what the record of the fit says of them is in :func:`smooth` and :func:`sample_states`. A
    start that is not given is then drawn from what the first 100 samples say of it, of which such paths are one error; the
    path of a run does not depend on its start. ``x0="fit"`` is for filters without processes.

    A new draw at every step answers another question: what if the parameters themselves were white noise, with the
    posterior as their distribution? It is not a posterior predictive, in which they are unknown but constant: what is
    unknown about a parameter then averages out over a run instead of lasting, the bands are too narrow, and ever narrower
    for a shorter sampling interval. Where the two ways give the same bands, the posterior is narrow.
    Source: Green (2015), Section 4.2, the second way after Worden and Hensman (2012).

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> record = sid.TimeSeries(
    ...     np.linspace(0.0, 2.0, 21), None, np.exp(-np.linspace(0.0, 2.0, 21))
    ... )
    >>> with pm.Model() as model:
    ...     speed = pm.Normal("speed")
    ...     _ = sid.ODEFilter(
    ...         "y", decay, record, dict(rate=pm.math.exp(speed)), noise=0.1, x0=1.0, substeps=2
    ...     )
    >>> idata = xr.Dataset({"speed": (("chain", "draw"), [[-0.1, 0.0, 0.1]])})
    >>> runs = sid.predict(idata, record, model=model, draws=3, x0=1.0)
    >>> runs["y"].dims, bool(np.isclose(runs["y"][1, -1], np.exp(-2.0), rtol=1e-4))
    (('draw', 'time'), True)
    """
    draws, every_step = count(draws, "draws"), flag(every_step, "every_step")
    seed(random_seed)
    if every_step and isinstance(x0, Mapping) and any(np.ndim(v) for v in x0.values()):
        raise ValueError("x0 holds arrays; with every_step a run belongs to no draw, so give a number for each state.")
    source = Source(idata, model_of(model), name)
    system, total = source.system, source.total
    if source.view.free_diffusion:
        warnings.warn(
            f"the diffusion of {source.view.name!r} is a parameter: it stands for process noise, which free runs do not have. "
            "Their bands are those of the equations alone, and too narrow for the measurements; put the record into the model "
            "(set_data) and call pm.sample_posterior_predictive for such with process noise.",
            stacklevel=2,
        )
    if isinstance(data, TimeSeries):  # simulate refuses what is no record
        check_channels("data", data, OF_FIT, source.view.op.grid.records)
        warn_of_other_inputs("data", data, source.view.op.grid.records, system.inputs)
    places = np.linspace(0, total - 1, min(int(draws), total)).round().astype(int)
    fixed = source.parameters(places, record, params)
    if system.driving and (every_step or isinstance(x0, str)):
        raise ValueError(
            f"{'every_step' if every_step else 'x0'} is {every_step or x0!r}, which is for filters without latent and "
            "varying; leave it out."
        )
    if system.driving:
        check_records(system, data, need_y=False)
        checked_substeps(substeps)
    seen = isinstance(data, TimeSeries) and data.y is not None
    measured = seen and data.output_matrix.shape[1] == len(system.outputs)
    if x0 is None and measured:
        x0 = "fit"
    numbers = isinstance(x0, Mapping) and all(np.asarray(v).dtype.kind in "iuf" for v in x0.values())
    partly = numbers and any(s not in x0 for s in system.states)
    said = "given" if x0 is not None else "zero: nothing is measured"
    if x0 is None and isinstance(data, TimeSeries):
        warnings.warn(
            f"data has no measurements of {system.outputs} that tell where its runs begin: all states begin at zero in all of "
            "them; give x0=...",
            stacklevel=2,
        )
    rng = np.random.default_rng(random_seed)
    if isinstance(x0, str) or (partly and measured):
        errors = source.errors(places, data, record)
        inside = data if errors.limits is not None else _inside(data, source.view)
        own = None if every_step else rng
        begin = _fitted(source, inside, fixed, x0, substeps, own, errors, places)
        x0 = begin.x0
        said = f"estimated from the first {begin.looked}{', where it is not given' if partly else ''}{begin.more}"
        if begin.open:
            warnings.warn(
                f"x0: the measured samples do not tell where {list(begin.open)} begin, and neither do the records of the fit: "
                "the bands take them as known there, and are too narrow; give x0=...",
                stacklevel=2,
            )
    if system.driving:
        sets = {p: fixed[:, i] for i, p in enumerate(system.params)}
        runs = simulate_driven(system, data, sets, x0, checked_substeps(substeps), rng)
        return source.labelled(clipped(runs, source.view)).assign_coords(draw=places).assign_attrs(x0=said)

    def run(theta: np.ndarray) -> xr.Dataset:
        sets = {p: theta[:, i] for i, p in enumerate(system.params)}
        result: xr.Dataset = simulate(system, data, sets, x0=x0, substeps=substeps)
        if "draw" not in result.dims:  # a system without parameters
            result = result.expand_dims(draw=len(theta))
        return source.labelled(clipped(result, source.view)).assign_attrs(x0=said)

    if not every_step:
        return run(fixed).assign_coords(draw=places)
    few = run(fixed[sorted({0, len(fixed) // 2, len(fixed) - 1})])
    rng = np.random.default_rng(random_seed)
    table = source.parameters(np.arange(total), record, params)
    picks = rng.integers(total, size=(max(len(data) - 1, 1), int(draws)))
    given = x0 if x0 is not None or (data.y is not None and data.output_matrix.shape[1] == len(system.outputs)) else 0.0
    start = np.array(initial_state(system, data, given, 0.0, hidden="zero")[0], dtype=float)
    values = _new_draw_every_step(system, data, table, picks, start, steps_of(few))
    runs = xr.Dataset(run_variables(system, ("draw", "time"), values), {"time": data.t}, {**few.attrs, "every_step": 1})
    return source.labelled(clipped(runs, source.view))


class Begin(NamedTuple):
    """Initial states by name, in words how many samples were looked at and what else had a say, and what is not known."""

    x0: dict[str, Any]
    looked: str
    more: str = ""
    open: tuple[str, ...] = ()


def _fitted(
    source: Source, record: TimeSeries, sets: np.ndarray, x0: Any, substeps: Any, rng: Any, errors: Errors, places: np.ndarray
) -> Begin:
    """Initial states by least squares; what is given of them stays.

    With a ``rng``, each of the parameter ``sets`` (N, P) has one of its own.
    """
    system = source.system
    given = dict(x0) if isinstance(x0, Mapping) else {}
    if not given and not isinstance(x0, Mapping) and x0 != "fit":
        raise ValueError(f"x0 is {x0!r}; give 'fit', or numbers.")
    if record.y is None or record.output_matrix.shape[1] != len(system.outputs):
        raise ValueError(f"x0='fit' needs a record with the outputs {system.outputs}; it has {record.outputs or 'none'}.")
    theta = sets.mean(axis=0)
    by_name = dict(zip(system.params, map(float, theta), strict=True))
    steps = steps_of(simulate(system, record[:FIRST], by_name, substeps=substeps))
    middle = {s: float(np.mean(v)) for s, v in given.items()}
    start = np.array(initial_state(system, record, middle or None, 0.0, hidden="zero")[0], dtype=float)
    free = np.array([s not in given for s in system.states])
    if system.driving:
        errors = _driven_errors(system, errors, record, sets, start, steps)
    found = fitted_start(system, record, theta, start, steps, free, errors)
    first = errors.first(record)
    measured = int(np.isfinite(first.output_matrix).any(axis=1).sum())
    looked = f"{len(first)} samples{f' ({measured} of them measured)' if measured < len(first) else ''}"
    if rng is None:
        return Begin(dict(zip(system.states, map(float, found), strict=True)) | given, looked)
    starts = np.column_stack([np.broadcast_to(given.get(s, v), len(sets)) for s, v in zip(system.states, found, strict=True)])
    drawn = drawn_starts(system, record, sets, starts, steps, free, rng, errors, lambda: source.usual(places, rng))
    more = ", and from the spread of the states in the records of the fit" if drawn.spread else ""
    return Begin(dict(zip(system.states, drawn.starts.T, strict=True)), looked, more, drawn.open)


def _driven_errors(
    system: Any, errors: Errors, record: TimeSeries, sets: np.ndarray, start: np.ndarray, steps: RunSteps
) -> Errors:
    """Errors of runs without the processes: what paths drawn from their prior do to the first samples is one of them."""
    first = record[: min(FIRST_DRIVEN, max(MOST // len(system.outputs), 1))]
    paths = max(PATHS, PATHS_FOR_EACH * len(first) * len(system.outputs))
    rows = sets[np.linspace(0, len(sets) - 1, paths).round().astype(int)]
    substeps = steps.substeps if isinstance(steps.substeps, int) else 1
    middle = np.tile(sets.mean(axis=0), (paths, 1))
    n_base = len(system.base.params)
    middle[:, n_base:] = rows[:, n_base:]  # entries of the processes are those of the draws
    runs = driven_runs(system, first, middle, np.tile(start, (paths, 1)), substeps, np.random.default_rng(0)).values
    flat = runs[..., : len(system.outputs)].reshape(paths, -1)
    finite = np.isfinite(flat).all(axis=1)
    if finite.sum() < paths // 2:
        return errors
    size = flat.shape[1]
    known = 0.0 if errors.covariance is None else errors.covariance[:size, :size]
    return errors._replace(covariance=known + np.cov(flat[finite].T).reshape(size, size))


def _new_draw_every_step(
    system: Any, record: TimeSeries, table: np.ndarray, picks: np.ndarray, start: np.ndarray, steps: RunSteps
) -> np.ndarray:
    """Outputs and states (N, T, n) of runs whose parameters change after each sample: every interval is a record of two."""
    inputs = method_inputs(record, *steps)
    step = compiled_batch(run_recurrence(system, steps.method), threads=1)  # the runs are short
    table = completed_sets(system, table)
    first = np.concatenate([[0], np.cumsum(inputs.counts[1:])])
    state, edges = np.tile(start, (picks.shape[1], 1)), np.arange(3)
    runs = np.empty((picks.shape[1], len(record), len(system.outputs) + len(system.states)))
    if len(record) == 1:
        return step(table[picks[0]], state[:, None], edges[:2], inputs.counts, inputs.substeps, inputs.samples)[0]
    for k in range(len(record) - 1):
        rows = inputs.substeps[first[k] : first[k + 1]]
        counts = np.array([0, len(rows)], dtype=np.int64)
        both, _ = step(table[picks[k]], state[:, None], edges, counts, rows, inputs.samples[k : k + 2])
        runs[:, k + 1] = both[:, 1]
        if k == 0:
            runs[:, 0] = both[:, 0]
        state = np.ascontiguousarray(both[:, 1, len(system.outputs) :])
    return runs


def predict_fitted(
    idata: Any, *, model: pm.Model | None = None, name: str | None = None, draws: int = 50
) -> list[tuple[TimeSeries, xr.Dataset]]:
    """Records of a model's filter, and free runs on them from the initial states that the model says.

    Arguments as for :func:`predict`. States whose initial value the model leaves uncertain are drawn from what the first
    samples say of them, as there. Where inputs or parameters are processes, runs on their prior would say little of a record
    that they have been inferred from: paths of :func:`sample_states` stand in their place.
    """
    source = Source(idata, model_of(model), name)
    if source.system.driving:
        return _inferred(source, int(draws))
    places = np.linspace(0, source.total - 1, min(int(draws), source.total)).round().astype(int)
    unknowns = source.view.unknowns
    theta, starts, stds = source.values([unknowns.params, unknowns.x0, unknowns.x0_std], places)
    pairs = []
    for r, record in enumerate(source.view.records()):
        own = theta[:, r] if theta.ndim == 3 else theta
        sets = {p: own[:, i] for i, p in enumerate(source.system.params)}
        run = simulate(source.system, record, sets, x0={s: starts[:, r, i] for i, s in enumerate(source.system.states)})
        free = (stds[:, r] > 0).any(axis=0)
        if free.any():
            middle, steps = starts[:, r].mean(axis=0), steps_of(run)
            errors = source.errors(places, record, r)
            seen = record if errors.limits is not None else _inside(record, source.view)
            found = fitted_start(source.system, seen, own.mean(axis=0), middle, steps, free, errors)
            begin, rng = np.where(free, found, starts[:, r]), np.random.default_rng(0)
            spread = Spread(middle, stds[:, r].mean(axis=0))
            begin = drawn_starts(
                source.system,
                seen,
                own,
                begin,
                steps,
                free,
                rng,
                errors,
                lambda known=spread: known,  # type: ignore[misc]
            ).starts
            given = dict(zip(source.system.states, begin.T, strict=True))
            same: Any = steps.substeps
            run = simulate(source.system, record, sets, x0=given, substeps=same, method=steps.method)
        pairs.append((record, source.labelled(clipped(run, source.view))))
    return pairs


def _inferred(source: Source, draws: int) -> list[tuple[TimeSeries, xr.Dataset]]:
    """Records, and outputs, states and processes (draw, time) that are drawn given all of each record."""
    chains, per_chain = source.posterior.sizes["chain"], source.posterior.sizes["draw"]
    count = min(per_chain, max(1, round(draws / chains)))
    of: dict[str, Any] = {"model": source.model, "name": source.view.name, "draws": count}
    paths = sample_states(source.posterior, **of, random_seed=0, progressbar=False)
    pairs = []
    for r, record in enumerate(source.view.records()):
        here = paths if source.view.n_records == 1 else paths.isel(time=np.flatnonzero(paths["record"] == r))
        pooled = {k: v.to_numpy().reshape(-1, *v.shape[2:]) for k, v in here.items() if "chain" in v.dims}
        values = np.concatenate([pooled["outputs"], pooled["states"]], axis=-1)
        variables = run_variables(source.system, ("draw", "time"), values)
        for kind in ("input", "parameter"):
            for i, one in enumerate(here[kind].to_numpy() if kind in here.coords else ()):
                variables.setdefault(str(one), (("draw", "time"), pooled[f"{kind}s"][..., i]))
        pairs.append((record, source.labelled(clipped(xr.Dataset(variables, {"time": record.t}), source.view))))
    return pairs


def without_processes(idata: Any, *, model: pm.Model | None = None, name: str | None = None) -> list[np.ndarray]:
    """Outputs (T, n_y) on each record of the fit by the known inputs alone: one run at the mean of the parameters."""
    source = Source(idata, model_of(model), name)
    places = np.linspace(0, source.total - 1, min(50, source.total)).round().astype(int)
    theta, starts = (v.mean(axis=0) for v in source.values([source.view.unknowns.params, source.view.unknowns.x0], places))
    found = []
    for r, record in enumerate(source.view.records()):
        own = theta[r] if theta.ndim == 2 else theta
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SubstepWarning)  # it is no prediction
            runs, _ = all_runs(source.system, record, own[None], starts[r][None], "auto", "auto", None, graded=False)
        found.append(source.view.problem.form.sensors.clipped(runs[0, :, : len(source.system.outputs)]))
    return found


def distance_rank(y: np.ndarray, runs: np.ndarray, floor: float) -> float:
    """Share of runs (N, T) that are at least as far from the others as a measurement ``y`` (T,) is.

    All are held to be draws from one distribution: each is measured by the squares of its distance from the mean of the others,
    in units of their variance and the square of ``floor``. If the measurement is one more draw, the share is uniform.
    """
    series, n = np.concatenate([y[None], runs]), len(runs)
    series = series - series.mean(axis=0)
    middle = -series / n  # of the others: all together have a mean of zero
    squares = (np.sum(series**2, axis=0) - series**2) / n - middle**2
    distance = np.mean((series - middle) ** 2 / (np.maximum(squares, 0.0) + floor**2), axis=1)
    return float(np.mean(distance >= distance[0]))


def _inside(record: TimeSeries, view: FilterView) -> TimeSeries:
    """A record whose samples at a limit are missing."""
    sensors, y = view.problem.form.sensors, record.output_matrix
    if not sensors.limited or y.shape[1] != len(view.system.outputs):
        return record
    y = np.where(sensors.censored(y), np.nan, y)
    return record.replace(y=y[:, 0] if record.y is not None and record.y.ndim == 1 else y)


def clipped(runs: xr.Dataset, view: FilterView) -> xr.Dataset:
    """Free runs as the sensors of a filter would show their outputs: at a limit where they are beyond it."""
    sensors, outputs = view.problem.form.sensors, view.system.outputs
    if not sensors.limited:
        return runs
    bounds = [s.limits for s in sensors.outputs]
    for name, where in outputs.vectors().items():
        shape = outputs.shapes[name]
        lower, upper = (
            np.reshape([end if pair[side] is None else pair[side] for pair in bounds[where]], shape)
            for side, end in ((0, -np.inf), (1, np.inf))
        )
        runs[name] = (
            runs[name].clip(lower, upper, keep_attrs=True)
            if shape == ()
            else runs[name].copy(data=np.clip(runs[name].to_numpy(), lower, upper))
        )
    return runs


class Source:
    """A filter of a model, and the posterior draws of what it depends on."""

    def __init__(self, idata: Any, model: pm.Model, name: str | None) -> None:
        self.model, self.posterior = model, posterior_of(idata)
        self.view = filter_view(name, model)
        self.system = self.view.system
        self.total = self.posterior.sizes["chain"] * self.posterior.sizes["draw"]

    def labelled(self, runs: xr.Dataset) -> xr.Dataset:
        """Runs with the units of their own record, else of those of the fit."""
        here = [name for name in self.system.outputs if name in runs]
        known = {name: runs[name].attrs["units"] for name in here if "units" in runs[name].attrs}
        return label_units(runs, self.system.outputs, {**self.view.units, **known})

    def parameters(self, places: np.ndarray, record: int | None, params: Mapping[str, Any] | None) -> np.ndarray:
        """Parameters (N, P) at draws counted through the chains: of a record, if they differ, with others in their place."""
        system, n_records = self.system, self.view.n_records
        if record is not None and not (whole(record, 0) and int(record) < n_records):
            raise ValueError(f"record is {shown(record)}; give a whole number from 0 to {n_records - 1}, or None.")
        if not isinstance(params, Mapping | None):
            raise TypeError(f"params is {shown(params)}; give a dict of values by name, or None.")
        given = system.params.spread("params", params or {})
        if unknown := [p for p in given if not among(p, system.params)]:
            raise ValueError(f"params has the unknown names {unknown}; the system's parameters are {system.params}.")
        (table,) = self.values([self.view.unknowns.params], places)
        if table.ndim == 3:
            unlike = [p for i, p in enumerate(system.params) if np.ptp(table[:, :, i], axis=1).any() and p not in given]
            if record is None and unlike:
                raise ValueError(
                    f"the records have parameters {unlike} of their own; say which to take: record=0 for those of the first "
                    "(Validation(..., record=0) in report and compare_models), or params={...} with a value for each, such as "
                    "a variable of the model for a new specimen."
                )
            table = table[:, int(record or 0)]
        table = np.array(table)
        names = list(given)
        variables = [pt.as_tensor_variable(given[n]) for n in names]
        if wrong := [n for n, v in zip(names, variables, strict=True) if v.type.ndim]:
            raise ValueError(f"params: {wrong} are no single numbers; give a number or a scalar variable for each.")
        for name, value in zip(names, self.values(variables, places) if names else [], strict=True):
            table[:, list(system.params).index(name)] = value
        return table

    def knows(self, variables: list[Any]) -> bool:
        """Whether the posterior has all that variables of the model depend on."""
        known = set(ancestors(variables))
        return all(v.name in self.posterior for v in self.model.free_RVs if v in known)

    def errors(self, places: np.ndarray, seen: TimeSeries, record: int | None = None) -> Errors:
        """Errors of the measurements of a record by the posterior means, as far as the posterior has them.

        Those of heavy tails count with their standard deviation.
        """
        form, n_y = self.view.problem.form, len(self.system.outputs)
        if seen.output_matrix.shape[1] != n_y or not self.knows([self.view.unknowns.noise]):
            return Errors()
        noise, theta = self.values([self.view.unknowns.noise, self.view.unknowns.params], places)
        rows = noise if noise.ndim == 2 else noise.mean(axis=1) if record is None else noise[:, int(record)]
        deviations, rest = np.sqrt(np.mean(rows[:, :n_y] ** 2, axis=0)), n_y
        for j in range(n_y):
            sensor = form.sensors.of(j)
            if sensor.heavy:
                nu = max(float(rows[:, rest].mean()), FEWEST_DEGREES)
                deviations[j] *= np.sqrt(nu / (nu - 2))
            rest += sensor.n_entries
        covariance, t = None, seen.t[: min(FIRST, max(MOST // n_y, 1))]
        if any(one.role == "noise" for one in self.system.latents):
            own = theta if theta.ndim == 2 else theta[:, int(record or 0)]
            covariance = coloured_covariance(self.system, t, own.mean(axis=0))
        if form.sensors.correlated:
            beside = np.zeros((n_y, n_y))
            beside[np.tril_indices(n_y)] = rows[:, rest:].mean(axis=0)
            beside = np.tril(beside, -1)
            joint = np.kron(np.eye(len(t)), beside + beside.T)  # the variances are those of the deviations
            covariance = joint if covariance is None else covariance + joint
        limited = form.sensors.limited and covariance is None and not self.system.driving  # whose paths have a covariance
        return Errors(deviations, covariance, form.sensors.bounds() if limited else None)

    def usual(self, places: np.ndarray, rng: np.random.Generator) -> Spread:
        """Where states may begin: means over the records of the fit, and a multiple of their or their starts' deviation."""
        system, paths, begins = self.system, [], []
        graphs = [self.view.unknowns.params, self.view.unknowns.x0, self.view.unknowns.x0_std]
        if not self.knows(graphs):
            return Spread(np.zeros(len(system.states)), np.zeros(len(system.states)))
        theta, starts, stds = self.values(graphs, places)
        for r, given in enumerate(self.view.records()[:MOST_RECORDS]):
            record = _inside(given[:FIRST], self.view)
            own, start = (theta[:, r] if theta.ndim == 3 else theta).mean(axis=0), starts[:, r].mean(axis=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SubstepWarning)  # it is no prediction
                runs, steps = all_runs(system, record, own[None], start[None], "auto", "auto", None, graded=False)
                free = (stds[:, r] > 0).any(axis=0)
                if free.any():
                    start = fitted_start(system, record, own, start, steps, free)
                if system.driving:
                    few = np.tile(own, (FEW_PATHS, 1))
                    substeps = steps.substeps if isinstance(steps.substeps, int) else 1
                    runs = driven_runs(system, record, few, np.tile(start, (FEW_PATHS, 1)), substeps, rng).values
                elif free.any():
                    runs = run_batch(system, own[None], start[None], method_inputs(record, *steps), method=steps.method)
            found = runs[..., len(system.outputs) :].reshape(-1, len(system.states))
            paths.append(found[np.isfinite(found).all(axis=1)])
            begins.append(start)
        path = np.concatenate(paths)
        if not len(path):
            return Spread(np.zeros(len(system.states)), np.zeros(len(system.states)))
        mean = path.mean(axis=0)
        away = np.sqrt(np.mean((np.array(begins) - mean) ** 2, axis=0))
        std = ELSEWHERE * np.maximum(path.std(axis=0), away)
        return Spread(mean, np.where(std > 1e-9 * np.abs(mean), std, 0.0))

    def values(self, variables: list[Any], places: np.ndarray) -> list[np.ndarray]:
        """Values (N, ...) of variables of the model at draws counted through the chains."""
        known = set(ancestors(variables))
        needed = [v for v in self.model.free_RVs if v in known]
        if missing := [v.name for v in needed if v.name not in self.posterior]:
            have = sorted(map(str, self.posterior))
            raise ValueError(f"idata has no values of {missing}, which the system depends on; it has {have}.")
        function = announced("parameters of the predictions", lambda: compiled(needed, variables))
        columns = []
        for v in needed:
            draws = self.posterior[v.name].transpose("chain", "draw", ...).to_numpy().astype(v.dtype)
            columns.append(draws.reshape(-1, *draws.shape[2:]))
        rows = [function(*(c[i] for c in columns)) for i in places]
        return [np.stack(column) for column in zip(*rows, strict=True)]
