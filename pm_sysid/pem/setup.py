"""From what a user gives to a filter with unknowns, bounds and names; everything is checked here."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from pm_sysid.arguments import number
from pm_sysid.idata import labelled
from pm_sysid.pem.filters import Filter, KalmanFilter, ProbabilisticFilter, median_step
from pm_sysid.pem.initial_states import InitialValues, covariance_roots, estimated, initial_values
from pm_sysid.pem.objective import Layout, ObjectiveName
from pm_sysid.pem.parameter_tree import leaves, nameless
from pm_sysid.pem.predictors import ESTIMATE, Noise, Predictor, ProbabilisticKalman, as_predictor, read_walks
from pm_sysid.pem.settings import InitialState
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.checks import check_records
from pm_sysid.solve.initial_state import check_measured_early
from pm_sysid.solve.run_substeps import EqualSteps
from pm_sysid.solve.simulate import equal_steps_of, simulate_by_equal_steps
from pm_sysid.solve.substeps import SubstepWarning
from pm_sysid.steps.integrate import Method
from pm_sysid.steps.kalman import KalmanForm
from pm_sysid.symbolic.driven import with_states_for
from pm_sysid.symbolic.names import named_entries
from pm_sysid.symbolic.system import System

#: Noise is searched for from this share of what it disturbs: from above, since a likelihood is flat where there is hardly any.
START = 0.1
#: A state is taken to be this many times as large as the outputs show it, at most.
LARGEST = 10.0


class Unknowns(NamedTuple):
    """What a fit searches for, and between which bounds."""

    layout: Layout
    x: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    n_leaves: int
    noise: dict[str, tuple[int, float]]  # by name: index of the unknown, or -1 and its value

    def holding(self, held: Sequence[int]) -> Unknowns:
        """The same without some initial states, by their places among the unknowns: they stay where a search would start."""
        layout, rest = self.layout, np.delete(np.arange(self.x.size), held)
        kept = np.flatnonzero(~np.isin(layout.x0_sources, held))
        rows, columns = layout.x0_slots
        shorter = replace(
            layout,
            names=tuple(layout.names[j] for j in rest),
            x0_slots=(rows[kept], columns[kept]),
            x0_sources=np.searchsorted(rest, layout.x0_sources[kept]),
            positive=layout.positive[rest],
        )
        return self._replace(layout=shorter, x=self.x[rest], lower=self.lower[rest], upper=self.upper[rest])


class Setup(NamedTuple):
    """A problem of prediction-error minimisation.

    In ``system`` the parameters that drift or that each record has its own of, ``walks``, are the last states; ``base`` is the
    system as it was given. ``by_record`` are those that each record has its own of; ``like`` is the record whose own another
    record takes.
    """

    system: System
    base: System
    walks: tuple[str, ...]
    by_record: tuple[str, ...]
    predictor: Predictor
    filter: Filter
    unknowns: Unknowns
    roots: np.ndarray  # of the covariance of the initial states, (R, n_x, n_x)
    initially: InitialValues  # as given, or as the first samples show them
    by_default: bool  # whether it was not said which initial states are estimated
    like: int | None = None


def _constant(system: System, records: Sequence[TimeSeries]) -> str:
    """Outputs and their values where each has one value at all samples of all records; empty if one varies."""
    measured = [y[np.isfinite(y)] for y in np.concatenate([r.output_matrix for r in records]).T]
    if any(y.size == 1 or (y.size and np.ptp(y) > 0) for y in measured):
        return ""
    return ", ".join(f"{name} = {y[0]:.6g}" for name, y in zip(system.outputs, measured, strict=True) if y.size)


def set_up(
    system: System,
    data: TimeSeries | Sequence[TimeSeries],
    p_guess: Any,
    predictor: Any,
    initial: InitialState,
    bounds: Any,
    fixed: Mapping[str, float] | None,
    objective: ObjectiveName,
    varying: Any = None,
) -> Setup:
    """Check the arguments of :func:`fit_pem` and build the filter."""
    if not isinstance(system, System):
        raise TypeError(f"system is {type(system).__name__}; give a System.")
    if not system.states:
        raise ValueError(
            "the system has no states, so that there is nothing to filter; for least squares give its output to a normal "
            "likelihood, pm.Normal(name, pm_sysid.simulate(system, data, params), noise, observed=data.y), and use find_mode."
        )
    records = check_records(system, data)
    predictor = as_predictor(predictor)
    if not any(np.isfinite(r.output_matrix).any() for r in records):
        raise ValueError("data has no measurement: every output is NaN.")
    guess = _by_label(system, leaves("p_guess", p_guess))
    positional = bool(guess) and all(nameless(name) for name in guess)
    fixed = _fixed(system, fixed)
    free = [p for p in system.params if p not in fixed]
    if positional:
        if len(guess) != len(free):
            raise ValueError(f"p_guess has {len(guess)} numbers; give one for each parameter, in order: {tuple(free)}.")
        guess = dict(zip(free, guess.values(), strict=True))
    base, walks = system, read_walks(system, varying, predictor, median_step(records))
    own = _by_record(system, guess, fixed, predictor, len(records))
    # A parameter with a number for each record is one that drifts by nothing.
    walks = {**walks, **{name: 0.0 for name in own if name not in walks}}
    process, noise = predictor.noises(system)
    process = process.followed_by(list(walks.values()))
    seen = np.sum([np.isfinite(r.output_matrix).sum(axis=0) for r in records], axis=0)
    noise = _default_noise(noise, seen, objective)
    _check_measured(system, noise, seen)
    _check_names(system, guess, fixed, own, process, noise, objective)

    initially = initial_values(system, records, initial.x0)
    start, std = initially.mean, initially.std
    uncertain = objective == "likelihood" or predictor.R is not None
    unseen = 1.0 if uncertain and not isinstance(predictor, ProbabilisticKalman) else 0.0
    # Values that are given are exact.
    default = np.where(std > 0, std if uncertain else 0.0, np.where(initially.given, 0.0, unseen))
    by_default = initial.estimate is None
    # A covariance given for the start is what is known of it instead.
    marginal = by_default and initial.P0 is None and _unbounded(process, noise)
    left_to_filter = by_default and (marginal or initial.P0 is not None)
    unknown = estimated(system, initially.given, False if left_to_filter else initial.estimate)
    if (initially.hidden & ~unknown).any() and not marginal:
        initial_values(system, records, initial.x0, hidden="raise")
    if initial.P0 is None:
        for record, left in zip(records, ~unknown & ~initially.given & (std > 0), strict=True):
            check_measured_early(system, record, [s for s, own in zip(system.states, left, strict=True) if own])
    # A state that is an unknown has no distribution beside it: it would be uncertain twice.
    default = np.where(unknown, 0.0, default)
    roots = covariance_roots(system, initial.P0, default)
    if walks:
        # The value of a parameter at the first sample is one unknown, of all records or of each; the filter is certain of it.
        system, n = with_states_for(base, tuple(walks)), len(walks)
        numbers = {**guess, **fixed}
        leaf = [[own[w][r] if w in own else w for w in walks] for r in range(len(records))]
        initially = initially.followed_by([[numbers[name] for name in row] for row in leaf])
        start = initially.mean
        unknown, roots = np.pad(unknown, ((0, 0), (0, n))), np.pad(roots, ((0, 0), (0, n), (0, n)))
    _check_weights(predictor, process, noise, roots, objective)

    values = {**guess, **fixed}
    states, steps = np.ones(len(system.states)), _given_steps(predictor)
    hidden = marginal & initially.hidden
    if steps is None or ESTIMATE in process.entries or hidden.any():
        states, steps = _free_runs(system, records, values, start, predictor.substeps, _method(predictor))
    # A free run of what is unstable without feedback, or at a bad guess, says nothing of what the outputs show.
    shown = initially.std.max(axis=0)
    states = np.where(shown > 0, np.minimum(states, LARGEST * shown), states)
    roots = roots * np.where(hidden, states, 1.0)[:, :, None]  # nothing else says how large they are
    moving = tuple(system.states.index(w) for w, entry in walks.items() if entry != 0.0)
    filter = _filter(system, predictor, records, steps, process, noise, roots, moving)
    outputs = np.concatenate([r.output_matrix for r in records])
    sizes = {"process": START * states, "noise": START * _spread(outputs)}
    kalman = [("process", process, system.states), ("noise", noise, system.outputs)]
    kalman = kalman if filter.n_process else kalman[1:]
    drifting = [(r, system.states.index(w), own[w][r] if w in own else w) for w in walks for r in range(len(records))]
    unknowns = _unknowns(system, drifting, guess, values, kalman, sizes, start, unknown, bounds, positional)
    if unknowns.x.size == 0:
        raise ValueError("there is nothing to find: p_guess is empty, and neither noise nor initial states are estimated.")
    if objective == "mse" and (count := int(np.isfinite(outputs).sum())) <= unknowns.x.size:
        raise ValueError(
            f"data has {count} measurements for {unknowns.x.size} unknowns ({', '.join(unknowns.layout.names)}), so that "
            "nothing is left that would tell the noise; use a longer record, fix some (fixed=...), or give what is known of x0."
        )
    if constant := _constant(system, records):
        raise ValueError(
            f"data has outputs that do not vary ({constant} at all samples), which say nothing of the dynamics: is it the "
            "right channel, and was the sensor connected?"
        )
    return Setup(system, base, tuple(walks), tuple(own), predictor, filter, unknowns, roots, initially, by_default)


def refined(setup: Setup, x: np.ndarray) -> Setup | None:
    """The same problem, guess included, with more substeps, if ``"auto"`` needs more at unknowns ``x`` than it did before."""
    system, filter, unknowns = setup.system, setup.filter, setup.unknowns
    if setup.predictor.substeps != "auto" or not isinstance(filter, KalmanFilter):
        return None
    params, x0 = unknowns.layout.place(x)
    values = dict(zip(system.params, params[: len(system.params)].tolist(), strict=True))
    before = EqualSteps(filter.substeps, filter.form.method)
    method = "implicit" if before.method == "implicit" else _method(setup.predictor)  # once stiff, always implicit
    _, steps = _free_runs(system, filter.records, values, x0, "auto", method)
    if steps == before or (steps.method == before.method and steps.substeps <= before.substeps):
        return None
    finer = KalmanFilter(system, replace(filter.form, method=steps.method), filter.records, steps.substeps, setup.roots)
    return setup._replace(filter=finer)


def with_steps(setup: Setup, times: int) -> Setup | None:
    """The same problem with so many times the substeps, where ``"auto"`` has chosen them."""
    filter = setup.filter
    if setup.predictor.substeps != "auto" or not isinstance(filter, KalmanFilter):
        return None
    finer = KalmanFilter(setup.system, filter.form, filter.records, times * filter.substeps, setup.roots)
    return setup._replace(filter=finer)


def _by_label(system: System, guess: dict[str, float]) -> dict[str, float]:
    """Leaves of the vectors of a system by the labels of their entries: ``K_0_1`` is ``K[0, 1]``."""
    labels = {label.replace("[", "_").replace("]", "").replace(", ", "_"): label for label in system.params}
    return {name if name in system.params else labels.get(name, name): value for name, value in guess.items()}


def _fixed(system: System, fixed: Mapping[str, float] | None) -> dict[str, float]:
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        raise TypeError(f"fixed is {type(fixed).__name__}; give a dict of numbers by parameter.")
    fixed = system.params.spread("fixed", fixed)
    for name, value in fixed.items():
        if name not in system.params:
            raise ValueError(f"fixed names {name!r}, which is no parameter of the system: {system.params}.")
        number(value, f"fixed[{name!r}]")
    return {name: float(value) for name, value in fixed.items()}


def _default_noise(noise: Noise | None, seen: np.ndarray, objective: ObjectiveName) -> Noise:
    """Measurement noise where none is given: estimated by a likelihood; a free run does not depend on it.

    Nor does anything depend on that of an output of which no value is ``seen`` (n_y,).
    """
    if noise is not None:
        return noise
    return Noise(tuple(ESTIMATE if objective == "likelihood" and count else 1.0 for count in seen))


def _check_measured(system: System, noise: Noise, seen: np.ndarray) -> None:
    """Refuse to look for the noise of an output of which no value is ``seen`` (n_y,)."""
    rows, columns = np.tril_indices(len(seen))
    for i, entry in enumerate(noise.entries):
        mine = {int(rows[i]), int(columns[i])} if noise.full else {i}
        if isinstance(entry, str) and (nowhere := [system.outputs[j] for j in sorted(mine) if not seen[j]]):
            raise ValueError(
                f"R is to be found for {nowhere[0]!r}, which is measured nowhere in data; give a number, which changes "
                "nothing, or leave the output out of observe."
            )


def _unbounded(process: Noise, noise: Noise) -> bool:
    """Whether a likelihood grows without bound where initial states are unknowns beside this noise.

    The first samples can be met exactly by the start alone. Their variance is then that of the measurement noise, whose
    density at zero has no bound as it shrinks, while process noise explains all samples that follow.
    """
    return not process.zero and bool(noise.names or ESTIMATE in noise.entries)


def _check_weights(predictor: Predictor, process: Noise, noise: Noise, roots: np.ndarray, objective: ObjectiveName) -> None:
    """Without a measurement noise there is nothing to weigh an uncertain state against."""
    if objective == "likelihood" or predictor.R is not None:
        return
    if not process.zero or roots.any() or isinstance(predictor, ProbabilisticKalman):
        raise ValueError(
            "R is not given, but the predictor weighs measurements against an uncertain state (Q, P0 or a solver); give "
            "R=..., or objective='likelihood' to find it."
        )


def _by_record(
    system: System, guess: Mapping[str, float], fixed: Mapping[str, float], predictor: Predictor, n_records: int
) -> dict[str, list[str]]:
    """Leaves of the scalar parameters that have a number for each record, by parameter: ``{"k": ["k_0", "k_1"]}``.

    Raises
    ------
    ValueError
        For another number of numbers, or a predictor that cannot have them.
    """
    found: dict[str, list[str]] = {}
    for p, shape in system.params.shapes.items():
        entries = [name for name in guess if name not in system.params and re.fullmatch(rf"{re.escape(p)}_\d+", name)]
        if shape != () or p in guess or p in fixed or not entries:
            continue
        if entries != [f"{p}_{r}" for r in range(n_records)]:
            raise ValueError(
                f"p_guess has {len(entries)} numbers for {p!r}; give one, which all records share, or a list with one for each "
                f"of the {n_records} records."
            )
        if isinstance(predictor, ProbabilisticKalman):
            raise ValueError(
                f"p_guess has a number for each record for {p!r}, which a ProbabilisticKalman cannot have; take ExtendedKalman "
                f"or UnscentedKalman, or build an ODEFilter with {p} a variable of shape ({n_records},), and call find_mode."
            )
        found[p] = entries
    return found


def _check_names(
    system: System,
    guess: Mapping[str, float],
    fixed: Mapping[str, float],
    own: Mapping[str, Sequence[str]],
    process: Noise,
    noise: Noise,
    objective: ObjectiveName,
) -> None:
    """Every parameter once, and nothing else but standard deviations that the predictor names."""
    deviations = [*process.names, *noise.names]
    if clash := [n for n in deviations if n in system.params]:
        raise ValueError(f"Q or R names {clash} as standard deviations, but these are parameters of the system; rename them.")
    if objective == "mse" and (deviations or ESTIMATE in (*process.entries, *noise.entries)):
        raise ValueError(
            "Q, R or varying is to be found, but the mean squared innovation depends on their ratio alone and is least for no "
            "noise at all; use objective='likelihood'."
        )
    if twice := [n for n in guess if n in fixed]:
        raise ValueError(f"{twice} are both in p_guess and fixed; leave them out of one.")
    asked, leaf = [p for p in system.params if p not in own], {name for names in own.values() for name in names}
    missing = [n for n in (*asked, *deviations) if n not in guess and n not in fixed]
    unknown = [n for n in guess if n not in system.params and n not in deviations and n not in leaf]
    if missing or unknown:
        parts = [f"lacks {missing}"] * bool(missing) + [f"has the unknown names {unknown}"] * bool(unknown)
        raise ValueError(
            f"p_guess {' and '.join(parts)}; the system's parameters are {system.params}. A number is called by its key, the "
            "entries of a list or array k by k_0, k_1, ..., and a parameter that is known goes to fixed={...}."
        )
    for name, value in guess.items():
        if not np.isfinite(value) or (name in deviations and value <= 0):
            kind_of = "positive" if name in deviations else "finite"
            raise ValueError(f"p_guess of {name!r} is {value!r}; give a {kind_of} number.")


def _spread(values: np.ndarray) -> np.ndarray:
    """Standard deviation of each column, never zero."""
    seen = [column[np.isfinite(column)] for column in values.T]
    spread = np.array([np.std(column) if column.size else 0.0 for column in seen])
    return np.where(spread > 0, spread, 1.0)


def _free_runs(
    system: System,
    records: Sequence[TimeSeries],
    values: Mapping[str, float],
    x0: np.ndarray,
    substeps: int | Literal["auto"],
    method: Method | Literal["auto"],
) -> tuple[np.ndarray, EqualSteps]:
    """Size of each state in free runs at the guess, and how all of them are integrated."""
    params = {p: values[p] for p in system.params}
    starts = [dict(zip(system.states, map(float, start), strict=True)) for start in x0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstepWarning)  # a guess need not be a good model
        pairs = list(zip(records, starts, strict=True))
        runs = [simulate_by_equal_steps(system, r, params, x0=s, substeps=substeps, method=method) for r, s in pairs]
        if len({equal_steps_of(run).method for run in runs}) > 1:  # one stiff record makes them all stiff
            runs = [simulate_by_equal_steps(system, r, params, x0=s, substeps=substeps, method="implicit") for r, s in pairs]
    with np.errstate(all="ignore"):
        squares = np.concatenate([np.stack([labelled(run, s).values for s in system.states], axis=1) for run in runs]) ** 2
        size = np.sqrt(np.mean(squares, axis=0))
    return np.where(np.isfinite(size) & (size > 0), size, 1.0), max(map(equal_steps_of, runs))


def _method(predictor: Predictor) -> Method | Literal["auto"]:
    """Integration method that a predictor asks for."""
    return "auto" if isinstance(predictor, ProbabilisticKalman) else predictor.method


def _given_steps(predictor: Predictor) -> EqualSteps | None:
    """How a predictor integrates, if it leaves nothing to be chosen; ``"auto"`` takes a given number of Runge-Kutta steps."""
    if predictor.substeps == "auto":
        return None
    return EqualSteps(predictor.substeps, "implicit" if _method(predictor) == "implicit" else "rk4")


def _filter(
    system: System,
    predictor: Predictor,
    records: Sequence[TimeSeries],
    steps: EqualSteps,
    process: Noise,
    noise: Noise,
    roots: np.ndarray,
    drifting: tuple[int, ...],
) -> Filter:
    if isinstance(predictor, ProbabilisticKalman):
        if np.any(roots - roots * np.eye(roots.shape[1])):
            raise ValueError("P0 is not diagonal; a ProbabilisticKalman takes independent initial states.")
        return ProbabilisticFilter(system, predictor.solver, records, steps.substeps, np.sqrt(np.sum(roots**2, axis=2)))
    certain = process.zero and not roots.any()
    form = KalmanForm(predictor.points if not certain else None, process.full, noise.full, certain, steps.method, drifting)
    return KalmanFilter(system, form, records, steps.substeps, roots)


def _unknowns(
    system: System,
    drifting: Sequence[tuple[int, int, str]],
    guess: Mapping[str, float],
    values: Mapping[str, float],
    noises: Sequence[tuple[str, Noise, Sequence[str]]],
    sizes: Mapping[str, np.ndarray],
    x0: np.ndarray,
    estimate: np.ndarray,
    bounds: Any,
    positional: bool,
) -> Unknowns:
    """Order the unknowns: leaves of ``p_guess``, standard deviations, initial states.

    ``drifting``: record, state and leaf of each parameter that is a state.
    """
    names, x = list(guess), list(guess.values())
    index = {name: i for i, name in enumerate(names)}
    params = [values[p] for p in system.params]
    slots = [(i, index[p]) for i, p in enumerate(system.params) if p in index]
    deviations = {n for _, noise, _ in noises for n in noise.names}
    positive = [n in deviations for n in names]
    shown: dict[str, tuple[int, float]] = {}
    for label, of, channels in noises:
        for i, entry in enumerate(of.entries):
            channel = of.channel(i)
            name = "" if channel is None else f"{label}_{channels[channel]}"
            if isinstance(entry, str):
                if entry == ESTIMATE:
                    if name in index:
                        raise ValueError(f"p_guess has {name!r}, which is what an estimated standard deviation is called here.")
                    index[name] = len(names)
                    names.append(name)
                    x.append(float(sizes[label][channel]))
                    positive.append(True)
                    entry = name
                slots.append((len(params), index[entry]))
                shown[name] = index[entry], np.nan
                params.append(x[index[entry]])
            else:
                params.append(entry)
                if name:
                    shown[name] = -1, entry
    places = np.argwhere(estimate)
    at = [len(names) + i for i in range(len(places))]
    shared = [(r, i, index[name]) for r, i, name in drifting if name in index]
    many = len(x0) > 1
    names += [f"x0[{r}].{system.states[i]}" if many else f"x0.{system.states[i]}" for r, i in places]
    x += [float(x0[r, i]) for r, i in places]
    positive += [False] * len(places)
    lower, upper = _bounds(system, bounds, list(guess), positional, len(names))
    lower = np.where(positive, np.maximum(lower, 0.0), lower)
    layout = Layout(
        tuple(names),
        np.array(params, dtype=float),
        np.array([s for s, _ in slots], dtype=int),
        np.array([u for _, u in slots], dtype=int),
        x0,
        (
            np.array([*places[:, 0], *(r for r, _, _ in shared)], int),
            np.array([*places[:, 1], *(i for _, i, _ in shared)], int),
        ),
        np.array([*at, *(source for _, _, source in shared)], dtype=int),
        np.array(positive, dtype=bool),
    )
    return Unknowns(layout, np.array(x, dtype=float), lower, upper, len(guess), shown)


def _bounds(system: System, bounds: Any, names: list[str], positional: bool, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of all unknowns."""
    sides = [np.full(size, -np.inf), np.full(size, np.inf)]
    if bounds is None:
        return sides[0], sides[1]
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise TypeError(
            f"bounds is {bounds!r}; give a pair (lower, upper) of dicts or trees like p_guess; None leaves a side open."
        )
    for what, side, tree in zip(("lower bounds", "upper bounds"), sides, bounds, strict=True):
        if tree is None:
            continue
        found = _by_label(system, leaves(what, tree, none=float(side[0]) if size else None))
        if positional and all(nameless(n) for n in found) and len(found) == len(names):
            found = dict(zip(names, found.values(), strict=True))
        for vector in [n for n in found if n not in names and n in system.params.shapes]:  # one number for all of its entries
            entries = [n for n in named_entries(system.params, [vector])[0] if n in names]
            found |= dict.fromkeys(entries, found.pop(vector)) if entries else {}
        extra = [n for n in found if n not in names]
        if extra or (len(found) < len(names) and any(map(nameless, found))):  # which of a list are left out is not said
            raise ValueError(
                f"{what} have {extra or list(found)}, and the unknowns are {names}. Give numbers by name, or the structure of "
                "p_guess, with None where there is no bound."
            )
        for i, name in enumerate(names):
            side[i] = found.get(name, side[i])
    for name, low, high in zip(names, *sides, strict=False):
        if not low < high:
            raise ValueError(f"the bounds of {name!r} are {low} and {high}; the lower must be below the upper, or use fixed.")
    return sides[0], sides[1]
