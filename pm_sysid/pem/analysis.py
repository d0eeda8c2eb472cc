"""An engineer's checks of a fit: predictions some steps ahead, free runs, fit percentages, tests of the innovations."""

from __future__ import annotations

import html
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from pm_sysid.arguments import shown, whole
from pm_sysid.idata import labelled
from pm_sysid.notebook import html_line
from pm_sysid.pem.filters import Filter, KalmanFilter, Motion, joined, tangents
from pm_sysid.pem.initial_states import InitialValues, initial_values
from pm_sysid.pem.laplace import deviations
from pm_sysid.pem.left_over import EACH, LAGS, own_errors
from pm_sysid.pem.objective import Layout, LogLikelihood
from pm_sysid.pem.optimise import solve
from pm_sysid.pem.settings import Optimiser
from pm_sysid.records.metrics import alike, fit_percent, relative_squares, rmse
from pm_sysid.records.overlap import shared_samples
from pm_sysid.records.residual_tests import ResidualTests, residual_tests
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import label_units
from pm_sysid.solve.checks import OF_FIT, PACKAGE, check_channels, check_records, warn_of_other_inputs
from pm_sysid.solve.fit_initial_state import FIRST, fitted_start
from pm_sysid.solve.run_substeps import EqualSteps
from pm_sysid.solve.simulate import equal_steps_of, simulate_by_equal_steps
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.integrate import method_inputs, run_recurrence

#: Substeps run at a time when predicting from every sample.
ROWS = 2_000_000
#: Moves of the unknowns to where each record counts by its own noise.
MOVES = 3
NO_INPUT: list[tuple[Any, Any]] = [(None, None)]


class OnRecord(NamedTuple):
    """A record with the fitted filter on it, its initial state (1, n_x), and where that comes from, in words."""

    record: TimeSeries
    filter: Filter
    x0: np.ndarray
    source: str


def on_record(fit: Any, record: TimeSeries | int | None, x0: Any, *, free: bool = False) -> OnRecord:
    """A record of the fit, by number or itself, from where the fit started; another from the state that fits it best.

    States that ``x0`` has a value for start there. ``free``: for a free run, which no measurement after the first sample
    corrects.
    """
    filter, layout = fit.setup.filter, fit.setup.unknowns.layout
    records = list(filter.records)
    if record is None:
        if len(records) > 1:
            raise ValueError(f"record is None, but the fit has {len(records)} records; give a number, or a TimeSeries.")
        record = 0
    if x0 is None:  # a record of the fit itself starts where the fit did
        record = next((i for i, own in enumerate(records) if own is record), record)
    if isinstance(record, int | np.integer) and not isinstance(record, bool):
        if not 0 <= record < len(records):
            raise ValueError(f"record is {record}; give a number from 0 to {len(records) - 1}, or a TimeSeries.")
        chosen, start = records[record], layout.place(fit.x)[1][[record]]
        roots = fit.setup.roots[[record]]
        own = filter if len(records) == 1 else filter.on([chosen], roots)
        if x0 is None:
            # States that the fit itself only read off, and left to the filter, are noise for a run without one.
            read_off = (fit.setup.initially.std[record] > 0) & ~_unknown(fit)[record]
            if free and read_off.any() and roots.any():
                return OnRecord(chosen, own, *_estimated(fit, own, start[0], read_off, free=True))
            return OnRecord(chosen, own, start, "of the fit")
        initially = _initially(fit, chosen, x0)
    else:
        (chosen,) = check_records(filter.system, record, need_y=False)  # type: ignore[arg-type]
        check_channels("record", chosen, OF_FIT, records)
        warn_of_other_inputs("record", chosen, records, filter.system.inputs)
        same = chosen.y is not None and chosen.output_matrix.shape[1] == len(filter.system.outputs)
        told = fit.setup.initially
        at_rest = told.given.all() and not told.mean.any()  # as the user said of the fit
        if not same and x0 is None and not at_rest:
            warnings.warn(
                f"record has no measurements of {filter.system.outputs} that tell where its run begins: all states begin at "
                "zero; give x0=...",
                skip_file_prefixes=(PACKAGE,),
            )
        if not same:
            chosen = chosen.replace(y=np.full((len(chosen), len(filter.system.outputs)), np.nan), outputs=filter.system.outputs)
        initially = _initially(fit, chosen, 0.0 if x0 is None and not same else x0)
        std = initially.std
        # Values that are given are exact, unless the fit has said how uncertain they are.
        exact = initially.given & ~fit.setup.roots.any(axis=(0, 2))
        wide = np.where(std > 0, std, np.where(exact, 0.0, 1.0)) if fit.setup.roots.any() else np.zeros_like(std)
        wide[:, len(fit.setup.base.states) :] = 0.0
        roots = np.array([np.diag(s) for s in wide])
        own = filter.on([chosen], roots)
    unknown = ~initially.given[0]
    if not unknown.any():
        return OnRecord(chosen, own, initially.mean, "zero: nothing is measured" if x0 is None else "given")
    return OnRecord(chosen, own, *_estimated(fit, own, initially.mean[0], unknown, free))


def _initially(fit: Any, record: TimeSeries, x0: Any) -> InitialValues:
    """Initial states on a record, where parameters that drift are what they were at the start of the fit's own record.

    A record of the fit has its own parameters, and another those of the record it is said to be like.
    """
    setup = fit.setup
    records = setup.filter.records
    like = next((i for i, one in enumerate(records) if one is record), setup.like)
    own = initial_values(setup.base, [record], x0)
    if not setup.walks:
        return own
    if setup.by_record and like is None and len(records) > 1:
        raise ValueError(
            f"record is none of the fit's, and {', '.join(setup.by_record)} has a value for each of these; say whose it has: "
            f"fit.like(0), ..., fit.like({len(records) - 1}) in place of fit."
        )
    return own.followed_by(setup.unknowns.layout.place(fit.x)[1][like or 0, len(setup.base.states) :])


def _unknown(fit: Any) -> np.ndarray:
    """Which initial states (R, n_x) the fit searched for."""
    layout = fit.setup.unknowns.layout
    found = np.zeros(layout.x0.shape, dtype=bool)
    found[layout.x0_slots] = True
    return found


def _estimated(fit: Any, filter: Filter, start: np.ndarray, unknown: np.ndarray, free: bool) -> tuple[np.ndarray, str]:
    """Initial state (1, n_x) by least squares over the first samples, and the words for it.

    A filter that knows how uncertain its start is needs none; what the first samples show is the mean of it.
    """
    (record,), system = filter.records, filter.system
    params, _ = fit.setup.unknowns.layout.place(fit.x)
    names = ", ".join(s for s, u in zip(system.states, unknown, strict=True) if u)
    words = f"{names} estimated from the first {min(FIRST, len(record))} samples"
    certain = isinstance(filter, KalmanFilter) and filter.form.certain
    if free or certain:
        p = params[: len(system.params)]
        return fitted_start(system, record, p, start, _steps(filter, record, p, start), unknown)[None], words
    if fit.setup.roots.any():
        return start[None], f"{names} read off the first samples, uncertain to the filter"
    return _filtered_start(fit, filter, params, start, unknown), words


def _filtered_start(fit: Any, filter: Filter, params: np.ndarray, start: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    """Initial state (1, n_x) by the objective of the fit over the first samples, with its parameters."""
    short = filter.on([filter.records[0][:FIRST]], np.zeros((1, start.size, start.size)))
    where, none = np.flatnonzero(unknown), np.zeros(0, dtype=int)
    layout = Layout(
        tuple(filter.system.states[i] for i in where), params, none, none, start[None], (np.zeros_like(where), where),
        np.arange(where.size), np.zeros(where.size, dtype=bool),
    )  # fmt: skip
    open_side = np.full(where.size, np.inf)
    solution = solve(type(fit.target)(short, layout), start[where], -open_side, open_side, Optimiser())
    return layout.place(solution.x)[1]


def _by_unknowns(fit: Any, filter: Filter, record: TimeSeries, start: np.ndarray) -> np.ndarray:
    """How far the standard errors of the unknowns move the filtered states (T, n_x) of a record.

    Parameters that drift begin at unknowns, of a size that is one, and the filter is certain of both.
    """
    setup = fit.setup
    layout, n, m = setup.unknowns.layout, len(filter.system.states), len(filter.system.outputs)
    variance = np.diag(fit.cov)
    free = np.flatnonzero(np.isfinite(variance) & (variance > 0))
    like = next((i for i, own in enumerate(setup.filter.records) if own is record), setup.like) or 0
    motion = Motion(layout.motion.params[free], layout.motion.x0[free][:, [like]])
    if not free.size:
        return np.zeros((len(record), n))
    params, _ = layout.place(fit.x)
    with np.errstate(all="ignore"):
        rates = filter.run(params, start, motion, "states")[1][:, :, 2 * m : 2 * m + n]
    found = np.einsum("ktn,kl,ltn->tn", rates, fit.cov[np.ix_(free, free)], rates)
    return np.asarray(np.sqrt(np.maximum(found, 0.0)))


def innovations(fit: Any, record: TimeSeries | int | None, x0: Any) -> xr.Dataset:
    """One-step-ahead innovations; see :meth:`PEMResult.innovations`."""
    chosen, filter, start, source = on_record(fit, record, x0)
    params, _ = fit.setup.unknowns.layout.place(fit.x)
    values, _ = filter.run(params, start, Motion.none(params.size, start), "states")
    m = len(filter.system.outputs)
    missing = np.isnan(chosen.output_matrix)
    own = deviations(fit)
    std = np.broadcast_to(list(own.values()), (len(chosen), m)) if own else values[:, m : 2 * m]
    dims, coords = ("time", "output"), {"time": chosen.t, "output": list(filter.system.outputs)}
    found = {"innovation": (dims, np.where(missing, np.nan, values[:, :m])), "std": (dims, std)}
    data = xr.Dataset(found, coords, {"x0": source})
    data["standardised"] = data["innovation"] / data["std"]
    n, x = len(filter.system.states), values[:, 2 * m :]
    spread = x[:, n:].copy()
    if fit.setup.walks:
        here = slice(len(fit.setup.base.states), None)
        spread[:, here] = np.hypot(spread[:, here], _by_unknowns(fit, filter, chosen, start)[:, here])
    for i, s in enumerate(filter.system.states):
        data[f"state_{s}"], data[f"state_{s}_std"] = ("time", x[:, i]), ("time", spread[:, i])
    return label_units(data, filter.system.outputs, _units(filter, chosen))


def _units(filter: Filter, record: TimeSeries) -> dict[str, str]:
    """Units of a record by the outputs of the system."""
    named = zip(filter.system.outputs, record.outputs, strict=True)
    return {name: record.units[own] for name, own in named if own in record.units}


def predict(fit: Any, k: float, record: TimeSeries | int | None, x0: Any) -> xr.Dataset:
    """Outputs predicted ``k`` samples ahead; see :meth:`PEMResult.predict`."""
    endless = isinstance(k, float) and math.isinf(k) and k > 0
    if not endless and not whole(k):
        raise ValueError(f"k is {shown(k)}; give a positive integer, or infinity for the free run.")
    chosen, filter, start, source = on_record(fit, record, x0, free=endless)
    system = filter.system
    params, _ = fit.setup.unknowns.layout.place(fit.x)
    p = params[: len(system.params)]
    steps = _steps(filter, chosen, p, start[0])
    m, T = len(system.outputs), len(chosen)
    runs = _ahead(filter, chosen, p, start, np.array([0]), T - 1, steps)[0]
    values = runs.copy()
    if not endless and k < T:
        own, _ = filter.run(params, start, Motion.none(params.size, start), "states")
        if k == 1 and not np.isnan(chosen.output_matrix).any():
            values = chosen.output_matrix - own[:, :m]
        else:
            states, per = own[:, 2 * m : 2 * m + len(system.states)], max(1, ROWS // (int(k) * steps.substeps + 1))
            origins = np.arange(T - int(k))
            for some in np.array_split(origins, max(1, math.ceil(origins.size / per))):
                values[some + int(k)] = _ahead(filter, chosen, p, states[some], some, int(k), steps)[:, -1]
    found = xr.Dataset(
        system.outputs.variables(("time",), values),
        {"time": chosen.t},
        {"steps ahead": float(k), "substeps": steps.substeps, "x0": source},
    )
    return label_units(found, system.outputs, _units(filter, chosen))


def _steps(filter: Filter, record: TimeSeries, p: np.ndarray, x0: np.ndarray) -> EqualSteps:
    """How to integrate free runs: as the filter, if it takes such steps."""
    if isinstance(filter, KalmanFilter):
        return EqualSteps(filter.substeps, filter.form.method)
    system = filter.system
    values, start = (dict(zip(n, map(float, v), strict=True)) for n, v in ((system.params, p), (system.states, x0)))
    return equal_steps_of(simulate_by_equal_steps(system, record, values, x0=start))


def _ahead(
    filter: Filter, record: TimeSeries, p: np.ndarray, states: np.ndarray, origins: np.ndarray, k: int, steps: EqualSteps
) -> np.ndarray:
    """Outputs (n, k + 1, n_y) of free runs over k intervals from states (n, n_x) at samples ``origins``."""
    inputs = method_inputs(record, *steps)
    ends = np.cumsum(inputs.counts)
    parts = []
    for j in origins:
        counts = np.concatenate([[0], inputs.counts[j + 1 : j + k + 1]])
        parts.append((counts, inputs.substeps[ends[j] : ends[j + k]], inputs.samples[j : j + k + 1]))
    p = completed_sets(filter.system, p[None])[0]
    still = np.zeros((1, 0, p.size)), np.zeros((1, 0, *states.shape))
    (values, _), _ = tangents(run_recurrence(filter.system, steps.method), p[None], states[None], still, joined(parts))
    return values[0, :, : len(filter.system.outputs)].reshape(len(origins), k + 1, -1)


@dataclass(frozen=True, repr=False)
class Residuals:
    """Tests of the innovations of a fit; printing it gives the verdicts in words.

    Attributes
    ----------
    table : pandas.DataFrame
        One row for each output and input: is the innovation white, and independent of the input?
    tests : dict
        :class:`ResidualTests` by (output, input); the input is None for an unforced system.
    standardised : ndarray, shape (T, n_y)
        Innovations over their standard deviations, NaN where missing.
    inputs : ndarray, shape (T, n_u)
    fs : float or None
        Sampling rate in Hz.
    lags : int
    outputs, input_names : tuple of str
    """

    table: pd.DataFrame
    tests: dict[tuple[str, str | None], ResidualTests]
    standardised: np.ndarray
    inputs: np.ndarray
    fs: float | None
    lags: int
    outputs: tuple[str, ...]
    input_names: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(f"{output}{f' and {u}' if u else ''}: {t}" for (output, u), t in self.tests.items())

    def _repr_html_(self) -> str:
        names = {pair: " and ".join(name for name in pair if name) for pair in self.tests}
        return "".join(html_line(names[pair], strong=True) + t._repr_html_() for pair, t in self.tests.items())


def resid(fit: Any, record: TimeSeries | int | None, x0: Any, lags: int | None) -> Residuals:
    """Whiteness and independence of the innovations; see :meth:`PEMResult.resid`."""
    z = innovations(fit, record, x0)["standardised"].to_numpy()
    records = fit.setup.filter.records
    chosen = record if isinstance(record, TimeSeries) else records[record or 0]
    if not isinstance(record, TimeSeries) and x0 is None and len(records) > 1:
        z = _by_own_noise(fit, record or 0)
    each = [min(LAGS, max(1, int(n) // EACH)) if lags is None else lags for n in np.isfinite(z).sum(axis=0)]
    inputs, system = chosen.input_matrix, fit.setup.system
    tests: dict[tuple[str, str | None], ResidualTests] = {}
    for i, output in enumerate(system.outputs):
        varied = [(name, inputs[:, j]) for j, name in enumerate(system.inputs) if np.ptp(inputs[:, j]) > 0]
        for name, u in varied or NO_INPUT:
            try:
                tests[output, name] = residual_tests(z[:, i], u, each[i])
            except ValueError as error:
                raise ValueError(f"the innovations of {output!r} for this record, x0 and lags have no test: {error}") from error
    rows = [
        {
            "output": output, "input": name or "", "residuals": t.count, "Ljung-Box": t.ljung_box, "white p": t.ljung_box_p,
            "lags outside 99 %": t.share_outside, "largest correlation": t.cross_correlation, "at lag": t.cross_lag,
            "independent p": t.cross_p,
        }
        for (output, name), t in tests.items()
    ]  # fmt: skip
    table = pd.DataFrame(rows).set_index(["output", "input"])
    return Residuals(table, tests, z, inputs, chosen.fs, max(each), system.outputs, system.inputs)


def _by_own_noise(fit: Any, record: int) -> np.ndarray:
    """Standardised innovations (T, n_y) on a record of the fit, in which each record counts by its own noise.

    All count alike in a mean squared error. Those of a loud record have moved the unknowns then, by more than a quiet one
    allows, whose innovations have a pattern that no missing dynamics are the reason of.
    """
    target, unknowns = fit.target, fit.setup.unknowns
    _, z, _ = own_errors(target, fit.x, unknowns.lower, unknowns.upper, moves=MOVES)
    z = np.where(target.measured, z, np.nan)
    own = [] if isinstance(target, LogLikelihood) else list(deviations(fit).values())
    begin = np.cumsum([0, *(len(r) for r in fit.setup.filter.records)])
    return np.asarray(z[begin[record] : begin[record + 1]] / (own or 1.0))


@dataclass(frozen=True, repr=False)
class FitTable:
    """Result of :func:`compare_fits`.

    Attributes
    ----------
    table : pandas.DataFrame
        Fit in percent: a row for each record and output, a column for each fit.
    rmse : pandas.DataFrame
        Root mean square error in the unit of the output, in the same form.
    records : dict
        The records by name.
    predictions : dict
        Predicted outputs by (fit, record), a Dataset with dims ``time``; ``attrs["x0"]`` says where its initial state is from.
    k : float
        Samples ahead.
    squares : dict
        Squared errors (T,) by (fit, record), each over the variance of its output.
    used : tuple of str
        Records of which a fit has used samples.
    conclusion : str
        Which fit has the smallest errors on records that are new to all of them, and whether others have errors that differ by
        no more than chance; empty for one fit.
    """

    table: pd.DataFrame
    rmse: pd.DataFrame
    records: dict[str, TimeSeries]
    predictions: dict[tuple[str, str], xr.Dataset]
    k: float
    squares: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    used: tuple[str, ...] = ()

    def __repr__(self) -> str:
        how = "free run" if math.isinf(self.k) else f"{self.k:g} sample{'s' * (self.k != 1)} ahead"
        lines = [f"Fit in percent, {how}", self.table.round(2).to_string(), *self.starts]
        return "\n".join([*lines, self.conclusion] if self.conclusion else lines)

    @property
    def conclusion(self) -> str:
        """Which fit is ahead on records that are new to all fits, in sentences."""
        names = list(self.table.columns)
        if len(names) < 2:
            return ""
        if not (new := [label for label in self.records if label not in self.used]):
            return "Only a record that no fit has used says which one is better."
        return " ".join(filter(None, (self._ahead(label, names) for label in new)))

    def _ahead(self, label: str, names: list[str]) -> str:
        """Which fit is ahead on a record, in a sentence; empty if nothing can be said."""
        squares = {name: self.squares[name, label] for name in names}
        measured = ~np.isnan(self.records[label].output_matrix).all(axis=1)
        if not all(np.isfinite(s[measured]).all() for s in squares.values()):
            return f"On {label} not all runs are finite."
        best = min(names, key=lambda name: np.sum(squares[name][measured]))
        others = alike(squares, best)
        if others is None:
            return f"{label} is too short to say whether the fits differ by more than chance."
        if not others:
            return f"On {label} the errors of {best!r} are the smallest, by more than chance."
        return f"On {label} the errors of {', '.join(map(repr, [best, *others]))} differ by no more than chance."

    @property
    def starts(self) -> list[str]:
        """Where the initial states on each record are from, in words."""
        lines = []
        for label in self.records:
            said = {run.attrs["x0"]: None for (_, name), run in self.predictions.items() if name == label}
            lines.append(f"initial state on {label}: {'; '.join(said)}")
        return lines

    def _repr_html_(self) -> str:
        return str(self.table.round(2).to_html(border=0)) + "".join(
            f"<p>{html.escape(s)}</p>" for s in [*self.starts, *filter(None, [self.conclusion])]
        )


def compare_fits(
    fits: Any,
    records: TimeSeries | Sequence[TimeSeries] | Mapping[str, TimeSeries],
    *,
    k: float = math.inf,
    x0: Any = None,
) -> FitTable:
    """Fit percentages of several fits on several records.

    Parameters
    ----------
    fits : PEMResult, or mapping of name to PEMResult
        What to compare.
    records : TimeSeries, sequence of them, or mapping by name
        Measured records, of the fit or new ones.
    k : int or infinity, default infinity
        Samples ahead; infinity is the free run.
    x0 : optional
        State at the first sample, for all records. By default a record of the fit starts where the fit did, and the state of
        another is estimated by least squares over its first 500 samples, as MATLAB's ``compare`` does. States without a
        value in a dict are estimated too.

    Returns
    -------
    FitTable

    Raises
    ------
    TypeError, ValueError
        For what is no fit, or records that do not fit the systems, or have other units than those of the fit, where both are
        known.

    Notes
    -----
    The fit is that of MATLAB's ``compare``, 100 (1 - ||y - yhat|| / ||y - mean(y)||); see :func:`fit_percent`.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> record = sid.TimeSeries(0.05 * np.arange(41), None, np.exp(-0.075 * np.arange(41)))
    >>> def outflow(power):
    ...     law = lambda t, x, u, p: -p.rate * x.level**power
    ...     return sid.System(
    ...         law, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ...     )
    >>> predictor = sid.ExtendedKalman(substeps=2)
    >>> fits = {
    ...     f"power {n}": sid.fit_pem(outflow(n), record, [1.0], predictor=predictor, x0=1.0)
    ...     for n in (1, 2)
    ... }
    >>> sid.compare_fits(fits, {"training": record}, x0=1.0)
    Fit in percent, free run
                     power 1  power 2
    record   output
    training y         100.0    72.81
    initial state on training: given
    Only a record that no fit has used says which one is better.
    """
    named = dict(fits) if isinstance(fits, Mapping) and not hasattr(fits, "setup") else {"fit": fits}
    if not named or not all(hasattr(f, "setup") for f in named.values()):
        raise TypeError(f"fits is {shown(fits)}; give a PEMResult, or a dict of them by name.")
    several: dict[str, Any] = (
        {f"record {i}": r for i, r in enumerate(records)} if isinstance(records, list | tuple) else {"record": records}
    )
    given: dict[str, Any] = dict(records) if isinstance(records, Mapping) else several
    if not given or not all(isinstance(r, TimeSeries) for r in given.values()):
        raise TypeError(f"records is {shown(records)}; give a TimeSeries, a list of them, or a dict of them by name.")
    fit_rows: dict[tuple[str, str], dict[str, float]] = {}
    rmse_rows: dict[tuple[str, str], dict[str, float]] = {}
    predictions: dict[tuple[str, str], xr.Dataset] = {}
    squares: dict[tuple[str, str], np.ndarray] = {}
    for name, fit in named.items():
        for label, record in given.items():
            check_records(fit.setup.system, record)
            check_channels(f"records[{label!r}]", record, f"{OF_FIT} {name!r}", fit.setup.filter.records)
            predictions[name, label] = run = predict(fit, k, record, x0)
            runs = [labelled(run, output).to_numpy() for output in fit.setup.system.outputs]
            squares[name, label] = relative_squares(record.output_matrix, np.column_stack(runs))
            for y, yhat, output in zip(record.output_matrix.T, runs, fit.setup.system.outputs, strict=True):
                fit_rows.setdefault((label, output), {})[name] = float(fit_percent(y, yhat))
                rmse_rows.setdefault((label, output), {})[name] = float(rmse(y, yhat))
    tables = [pd.DataFrame.from_dict(rows, orient="index") for rows in (fit_rows, rmse_rows)]
    for table in tables:
        table.index = pd.MultiIndex.from_tuples(table.index, names=["record", "output"])
    used = [label for label, r in given.items() if any(shared_samples(r, f.setup.filter.records) for f in named.values())]
    return FitTable(tables[0], tables[1], given, predictions, k, squares, tuple(used))
