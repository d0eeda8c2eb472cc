"""How free runs are integrated: by which method, and in how many steps, judged by their outputs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, override
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor

from pm_sysid.arguments import among
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.passed_over import RunsBeside, runs_beside, said, some
from pm_sysid.solve.stiffness import fastest_decay, pilot_grid
from pm_sysid.solve.substeps import (
    FOR_EACH,
    MOST,
    Criterion,
    counted,
    fewest_substeps,
    given_steps,
    in_words,
    named,
    say_chosen,
    searched_substeps,
    settled_substeps,
    warn,
)
from pm_sysid.steps.grid import StepGrid, equal_total
from pm_sysid.steps.integrate import STEPS, Method, method_inputs, run_batch
from pm_sysid.symbolic.system import System

_log = logging.getLogger("pm_sysid")

#: The outputs of a free run may move by this fraction of their root mean square.
OUTPUT_TOLERANCE = 1e-4
#: With implicit steps, whose order is five, outputs and states may move by this, if that can be reached.
FINE_TOLERANCE = 1e-6
#: Three quarters of the prior's free runs may move by this normalised mean square (percent).
NMSE_TOLERANCE = 0.01
#: Draws of the prior whose free runs are compared.
PRIOR_DRAWS = 32
#: A Runge-Kutta step is stable up to this over the rate of the fastest decay.
STABLE = 2.78
#: Implicit steps are tried where stability asks for more Runge-Kutta steps a sample than this.
STIFF = 8
#: Runs that move by more than this share of their root mean square are unstable, or chaotic.
UNSTABLE = 1.0
#: Lost runs of the prior that are looked at for stiffness, and parameters that are named.
LOOKED_AT, NAMED = 3, 8
#: Longest sampling interval over the median one from which on the steps of a stiff system follow its solution at once.
UNEVEN = 100.0
#: Longest records that an adaptive solver follows: it is plain Python.
MOST_GRADED = 2_000
#: Equal implicit steps a sample that are not compared with steps that follow the solution.
FEW = 2
#: Runge-Kutta steps that cost as much as an implicit one.
COST = 4
#: Parameter sets beside those that steps were chosen at, at which they are checked, and how often a worst one joins them.
CHECKED, ROUNDS = 64, 3
#: Draws of the prior whose solutions steps follow.
FOLLOWED = 8


class EqualSteps(NamedTuple):
    """How a free run is integrated: steps in a sampling interval, and of which method."""

    substeps: int
    method: Method = "rk4"


class RunSteps(NamedTuple):
    """How a free run is integrated: steps in a sampling interval, or those of a record, and of which method."""

    substeps: int | StepGrid
    method: Method = "rk4"

    @property
    def in_words(self) -> str:
        """Number and kind of the steps."""
        if isinstance(self.substeps, StepGrid):
            return f"{counted(self.substeps.total, STEPS[self.method])} in all"
        return f"{counted(self.substeps, STEPS[self.method])} a sample"


def uneven(record: TimeSeries) -> bool:
    """Whether the sampling intervals of a record differ by orders of magnitude."""
    return bool(record.dt.size) and float(np.max(record.dt)) > UNEVEN * float(np.median(record.ordinary_dt))


def checked_method(method: Any, whose: str = "") -> Method | Literal["auto"]:
    """Return the name of a method, or ``"auto"``."""
    if not among(method, ("auto", "rk4", "implicit")):
        raise ValueError(
            f"{whose}method is {method!r}; give 'rk4', 'implicit' (for stiff equations), or 'auto', which chooses between them."
        )
    return method  # type: ignore[no-any-return]


def _explicit(method: Method | Literal["auto"]) -> Method:
    """Return the method that ``"auto"`` begins with."""
    return "rk4" if method == "auto" else method


def needed_steps(system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray) -> tuple[float, int] | None:
    """Rate of the fastest decay, and the Runge-Kutta steps a sampling interval that stability asks for; None if not known."""
    rate = fastest_decay(system, record, theta, start)
    return None if rate is None else (rate, int(np.ceil(1.2 * rate * float(np.median(record.ordinary_dt)) / STABLE)))


def first_loss(system: System, record: TimeSeries, run: np.ndarray) -> str:
    """Which state or output of a run (T, n_y + n_x) is the first that is not finite, and when, in words."""
    n_y, finite = len(system.outputs), np.isfinite(run)
    last = int(np.argmin(finite.all(axis=1)))
    states = [f"the state {s!r}" for s, fine in zip(system.states, finite[last, n_y:], strict=True) if not fine]
    outputs = [f"the output {s!r}" for s, fine in zip(system.outputs, finite[last, :n_y], strict=True) if not fine]
    return f"{(states or outputs)[0]} is not finite from sample {last + 1} (t = {record.t[last]:.4g}) on"


def in_numbers(names: Sequence[str], values: np.ndarray) -> str:
    """Name the first values of a set."""
    listed = ", ".join(f"{n} = {v:.6g}" for n, v in zip(names[:NAMED], values, strict=False))
    return f"{listed}{', ...' if len(names) > NAMED else ''}"


def lost_runs(runs: np.ndarray) -> np.ndarray:
    """Which runs (N, T, n) have a value that is not finite: indices."""
    return np.flatnonzero(~np.isfinite(runs).all(axis=(1, 2)))


def warn_of_lost_runs(system: System, record: TimeSeries, theta: np.ndarray, runs: np.ndarray, steps: RunSteps) -> None:
    """Warn if some of many runs (N, T, n_y + n_x) are not finite, and say what and when for the first of them.

    Where all are lost, :func:`run_substeps` has said so.
    """
    lost = lost_runs(runs)
    if lost.size in (0, len(runs)):
        return
    first = lost[0]
    at = f" at {in_numbers(system.params, theta[first])}" if len(system.params) else ""
    remedy = "more substeps or method='implicit'" if steps.method == "rk4" else "more substeps"
    warn(
        f"simulate: {lost.size} of {len(runs)} runs are not finite with {steps.in_words}. In the run with the index {first}, "
        f"{first_loss(system, record, runs[first])}{at}. Either the solution leaves all bounds there, or the steps are too "
        f"long: try {remedy}, or leave such parameters out."
    )


def changes(coarse: np.ndarray, fine: np.ndarray) -> np.ndarray:
    """Largest change over time of each of some runs (N, T, n), relative to the root mean square of an output: (N,)."""
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(fine), axis=1, keepdims=True) + 1e-300  # whose square may be beyond all numbers
        apart, fine = coarse / largest - fine / largest, fine / largest
        change = np.abs(apart) / (np.sqrt(np.mean(fine**2, axis=1, keepdims=True)) + 1e-300)
        return np.nan_to_num(np.max(change, axis=(1, 2)), nan=np.inf)


#: What the log has said of systems and records.
_SAID: WeakKeyDictionary[System, set[int]] = WeakKeyDictionary()


@dataclass(frozen=True)
class OutputCriterion(Criterion):
    """Outputs of the free runs of parameter sets (N, P) from initial states (N, n_x), relative to their root mean square.

    With a ``grid``, its steps are cut; with ``states``, these are judged too.
    """

    system: System
    record: TimeSeries
    theta: np.ndarray
    start: np.ndarray
    method: Method = "rk4"
    grid: StepGrid | None = None
    tolerance: float = OUTPUT_TOLERANCE
    states: bool = False
    who = "simulate: "

    def is_new(self, text: str) -> bool:
        """Free runs are made again and again: by a fit from each of its starts, by a report in each of its sections."""
        key = hash((self.record.t.tobytes(), self.record.input_matrix.tobytes(), text))
        said = _SAID.setdefault(self.system, set())
        new = key not in said
        said.add(key)
        return new

    @property
    def steps(self) -> str:  # type: ignore[override]
        """What is counted."""
        return STEPS[self.method]

    @property
    def per(self) -> str:  # type: ignore[override]
        """What they are counted by."""
        return "a sample" if self.grid is None else FOR_EACH

    def cut(self, substeps: int) -> int | StepGrid:
        """Steps in a sampling interval, or those of the grid, each cut."""
        return substeps if self.grid is None else self.grid.refined(substeps)

    def total(self, substeps: int) -> float:
        """Number of steps in the whole record."""
        return equal_total(self.record, substeps) if self.grid is None else float(substeps * self.grid.total)

    def runs(self, substeps: int) -> np.ndarray:
        """Outputs and states (N, T, n_y + n_x)."""
        inputs = method_inputs(self.record, self.cut(substeps), self.method)
        return run_batch(self.system, self.theta, self.start, inputs, method=self.method)

    def value(self, substeps: int) -> np.ndarray:
        """Outputs (N, T, n_y), with the states behind if those are judged."""
        return self.runs(substeps)[:, :, : None if self.states else len(self.system.outputs)]

    def change(self, coarse: np.ndarray, fine: np.ndarray) -> float:
        """Largest change over time of the runs that are finite; two that are lost do not agree."""
        finite = np.all(np.isfinite(fine), axis=(1, 2))
        return float(np.max(changes(coarse[finite], fine[finite]))) if finite.any() else np.inf

    def _beside(self, finest: int, doubled: bool = True) -> RunsBeside | None:
        """Runs by steps like these beside such that are dense where these miss something."""
        times = 2 * finest if self.method == "rk4" else finest  # Runge-Kutta steps look at their middles, too
        return runs_beside(self.system, self.record, self.theta, self.start, times, self.grid, self.method, doubled)

    def _moved(self, beside: RunsBeside) -> float:
        """By how much two runs differ, as :meth:`change` has it; nothing where neither is finite."""
        n = None if self.states else len(self.system.outputs)
        finite = np.isfinite(beside.dense).all(axis=(1, 2))
        return float(np.max(changes(beside.steps[finite, :, :n], beside.dense[finite, :, :n]), initial=0.0))

    @override
    def unseen(self, finest: int) -> float:
        beside = self._beside(finest)
        return 0.0 if beside is None else self._moved(beside)

    def event(self, substeps: int) -> str:
        """What a number of steps, and twice as many, pass over, in words; empty if that is nothing."""
        beside = self._beside(2 * substeps, doubled=False)
        return "" if beside is None or self._moved(beside) < self.tolerance else said(beside.event)

    def lost(self, substeps: int) -> str:
        """What is the matter with runs none of which is finite, in words; empty if one is."""
        runs = self.runs(substeps)
        if np.any(np.all(np.isfinite(runs), axis=(1, 2))):
            return ""
        when = first_loss(self.system, self.record, runs[0])
        if len(self.system.params):
            when += f" at {in_numbers(self.system.params, self.theta[0])}"
        equal = self.method == "rk4" and self.grid is None
        found = needed_steps(self.system, self.record, self.theta[0], self.start[0]) if equal else None
        if found is None or found[1] <= substeps:
            return f"{when}: the solution leaves all bounds, or is too steep for these steps"
        usual = float(np.median(self.record.ordinary_dt))
        return (
            f"{when}: the system is stiff. Its fastest decay, {found[0]:.3g} per unit of time, asks for at least {found[1]} "
            f"Runge-Kutta steps in a sampling interval of {usual:.4g}, however smooth the outputs "
            f"are. Give method='implicit', substeps={found[1]} or more, or replace the fast equations by their equilibria"
        )

    @override
    def too_coarse(self, substeps: int, change: float) -> str:
        if not np.isfinite(change) and (lost := self.lost(2 * substeps)):
            return f"{named(substeps, self.grid)}: {lost}."
        event = self.event(substeps)
        how = "doubled, or dense where the equations change" if event else "doubled"
        return (
            f"{named(substeps, self.grid)}: the outputs move by {in_words(change)} of their root mean square when the substeps "
            f"are {how} (more than {self.tolerance:g}); use more, or substeps='auto'.{event}"
        )

    @override
    def unsettled(self, change: float) -> str:
        if not np.isfinite(change) and (lost := self.lost(self.otherwise)):
            return f"substeps='auto': with {self.otherwise} {self.steps} {lost}."
        return (
            f"substeps='auto': the outputs still move by more than {self.tolerance:g} of their root mean square with "
            f"{self.otherwise} {self.steps}; the system may be chaotic, stiff or not smooth.{self.event(MOST // 2)}"
        )


def run_substeps(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    substeps: int | Literal["auto"] | StepGrid,
    method: Method | Literal["auto"] = "auto",
    beside: Sequence[int] = (),
    graded: bool = True,
) -> RunSteps:
    """How to integrate free runs: the steps asked for, checked, or the fewest that the outputs need.

    The runs compared are those of the first, middle and last of the parameter sets (N, P) and initial states (N, n_x), and
    those with the indices ``beside``.
    ``method="auto"`` takes Runge-Kutta steps, and implicit ones where no number of those is enough and the system is stiff.
    With ``graded`` implicit steps may follow the solution.
    """
    if len(record) < 2 or not len(theta) or not system.states:
        return RunSteps(1 if substeps == "auto" else substeps, _explicit(method))
    picked = sorted({0, len(theta) // 2, len(theta) - 1, *beside})
    criterion = OutputCriterion(system, record, theta[picked], start[picked], _explicit(method))
    if substeps == "auto":
        return _fewest(criterion, method, graded)
    if isinstance(substeps, StepGrid):
        criterion, n = replace(criterion, grid=substeps), 1
    else:
        n = substeps
    if method == "auto":
        return RunSteps(substeps, _as_given(criterion, n))
    settled_substeps(criterion, n)
    return RunSteps(substeps, method)


def _fewest(criterion: OutputCriterion, method: Method | Literal["auto"], graded: bool) -> RunSteps:
    """The fewest equal Runge-Kutta steps that will do; steps that follow the solution, or implicit ones, where those pay."""
    at_once = graded and method != "rk4" and uneven(criterion.record)
    following = _following(criterion) if at_once else None
    limit = COST * following.total if following else np.inf
    change = np.inf
    if method != "implicit" and equal_total(criterion.record, 1) <= limit:
        number, change = searched_substeps(criterion)
        if number is not None and criterion.total(number) <= limit:
            say_chosen(criterion, number, change)
            return RunSteps(number)
    if following:
        return _say_following(criterion, following)
    found = fastest(criterion.system, criterion.record, criterion.theta, criterion.start) if method == "auto" else (0.0, 0)
    if method == "rk4" or (method == "auto" and found[1] <= STIFF):
        warn(criterion.unsettled(change))
        return RunSteps(criterion.otherwise)
    implicit = replace(criterion, method="implicit")
    number, left = _searched_finely(implicit)
    if graded and not at_once and (number is None or number > FEW) and (following := _following(criterion)):
        if number is None or following.total < implicit.total(number):
            return _say_following(criterion, following)
    if number is not None:
        say_chosen(implicit, number, left)
        if method == "auto":
            say_stiff(*found)
        return RunSteps(number, "implicit")
    warn(criterion.unsettled(change if method == "auto" else left))
    return RunSteps(criterion.otherwise, criterion.method)


def _following(criterion: OutputCriterion) -> StepGrid | None:
    """Implicit steps that follow the solutions: those of an adaptive solver, cut until outputs and states no longer move."""
    if len(criterion.record) > MOST_GRADED:
        return None
    grid = pilot_grid(criterion.system, criterion.record, criterion.theta, criterion.start)
    if grid is None:
        return None
    number, _ = _searched_finely(replace(criterion, method="implicit", grid=grid))
    return None if number is None else grid.refined(number)


def _searched_finely(criterion: OutputCriterion) -> tuple[int | None, float]:
    """The fewest implicit steps for outputs and states by the fine tolerance; for outputs by the other if there are none."""
    number, change = searched_substeps(replace(criterion, tolerance=FINE_TOLERANCE, states=True))
    return (number, change) if number is not None else searched_substeps(criterion)


def _say_following(criterion: OutputCriterion, grid: StepGrid) -> RunSteps:
    steps = RunSteps(grid, "implicit")
    _log.info(
        "%sthe steps follow the solution, which is stiff or changes by orders of magnitude: %s.", criterion.who, steps.in_words
    )
    return steps


def _as_given(criterion: OutputCriterion, substeps: int) -> Method:
    """Runge-Kutta for steps that were asked for; the implicit method if that is unstable."""
    change = criterion.change(criterion.value(substeps), criterion.value(2 * substeps))
    if not change < UNSTABLE:
        found = fastest(criterion.system, criterion.record, criterion.theta, criterion.start)
        implicit = replace(criterion, method="implicit")
        few = criterion.grid is None and found[1] <= substeps
        if not few and found[0] > 0 and not lost_runs(implicit.value(substeps)).size:
            say_stiff(*found)
            settled_substeps(implicit, substeps)
            return "implicit"
    if not change < criterion.tolerance:
        warn(criterion.too_coarse(substeps, change))
    return "rk4"


def fastest(system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray) -> tuple[float, int]:
    """Rate of the fastest decay at some parameter sets (N, P), and the Runge-Kutta steps a sample that it asks for."""
    pairs = zip(theta[:LOOKED_AT], start[:LOOKED_AT], strict=True)
    found = [needed_steps(system, record, *at) for at in pairs]
    return max((n for n in found if n), default=(0.0, 0))


def say_stiff(rate: float, needed: int) -> None:
    """Say in the log why implicit steps were chosen."""
    _log.info(
        "simulate: the system is stiff (its fastest decay, %.3g per unit of time, asks for %d Runge-Kutta steps a sample); "
        "method='auto' chose implicit steps.",
        rate,
        needed,
    )


def all_runs(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    substeps: int | Literal["auto"] | StepGrid,
    method: Method | Literal["auto"],
    y: np.ndarray | None = None,
    graded: bool = True,
) -> tuple[np.ndarray, RunSteps]:
    """Free runs of all parameter sets (N, P) as by :func:`~pm_sysid.steps.integrate.run_batch`, and how they were integrated.

    With ``method="auto"``, Runge-Kutta steps that lose some of the runs by stiffness give way to implicit ones. Where steps
    follow the solutions of a few sets, others are checked too.
    """

    def run(steps: RunSteps) -> np.ndarray:
        return run_batch(system, theta, start, method_inputs(record, *steps), y, steps.method)

    steps = run_substeps(system, record, theta, start, substeps, method, graded=graded)
    if substeps == "auto" and isinstance(steps.substeps, StepGrid):
        steps = _for_all(system, record, theta, start, steps)
    runs = run(steps)
    lost = lost_runs(runs)
    if method == "auto" and steps.method == "rk4" and 0 < lost.size < len(runs):
        found = fastest(system, record, theta[lost], start[lost])
        if found[1] > STIFF:
            implicit = run_substeps(system, record, theta, start, substeps, "implicit", lost[:LOOKED_AT].tolist(), graded)
            again = run(implicit)
            if lost_runs(again).size < lost.size:
                say_stiff(*found)
                runs, steps = again, implicit
    if y is None:
        warn_of_lost_runs(system, record, theta, runs, steps)
    return runs, steps


def _for_all(system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray, steps: RunSteps) -> RunSteps:
    """Steps that follow the solutions of a few parameter sets, checked at others: the worst of them join the few."""
    places = np.unique(np.linspace(0, len(theta) - 1, CHECKED).round().astype(int))
    beside = list[int]()
    for _ in range(ROUNDS):
        if not isinstance(steps.substeps, StepGrid):
            return steps
        some = OutputCriterion(system, record, theta[places], start[places], "implicit", steps.substeps)
        coarse, fine = some.value(1), some.value(2)
        change = np.where(np.isfinite(fine).all(axis=(1, 2)), changes(coarse, fine), 0.0)
        worst = int(places[np.argmax(change)])
        if change.max() < OUTPUT_TOLERANCE or worst in beside:
            break
        beside.append(worst)
        steps = run_substeps(system, record, theta, start, "auto", "implicit", beside)
    if not change.max() < OUTPUT_TOLERANCE:
        warn(
            f"substeps='auto': steps that follow the solutions of {len(beside) + LOOKED_AT} parameter sets leave errors of "
            f"{in_words(float(change.max()))} of the root mean square in the run with the index {worst}, at "
            f"{in_numbers(system.params, theta[worst])}; simulate sets that differ this much one by one."
        )
    return steps


@dataclass(frozen=True)
class PriorRunsCriterion(Criterion):
    """Outputs of free runs over records, with parameters (N, P) and initial states (N, R, n_x) drawn from the prior.

    Compared by the normalised mean square error that three quarters of the runs stay below: a part of the prior is often
    chaotic, and no step size would do for all.
    """

    system: System
    records: Sequence[TimeSeries]
    theta: np.ndarray
    start: np.ndarray
    method: Method = "rk4"
    grids: tuple[StepGrid, ...] | None = None
    tolerance = NMSE_TOLERANCE

    @property
    def steps(self) -> str:  # type: ignore[override]
        """What is counted."""
        return STEPS[self.method]

    @property
    def per(self) -> str:  # type: ignore[override]
        """What they are counted by."""
        return "a sample" if self.grids is None else FOR_EACH

    def cut(self, substeps: int) -> list[int | StepGrid]:
        """Steps of each record."""
        return [substeps] * len(self.records) if self.grids is None else [grid.refined(substeps) for grid in self.grids]

    def total(self, substeps: int) -> float:
        """Number of steps in all records."""
        steps = zip(self.records, self.cut(substeps), strict=True)
        return sum(n.total if isinstance(n, StepGrid) else equal_total(record, n) for record, n in steps)

    def value(self, substeps: int) -> np.ndarray:
        """Outputs (N, T, n_y), joined along time."""
        steps = zip(self.records, self.cut(substeps), strict=True)
        inputs = (method_inputs(record, n, self.method) for record, n in steps)
        each = [run_batch(self.system, self.theta, self.start[:, r], i, method=self.method) for r, i in enumerate(inputs)]
        return np.concatenate(each, axis=1)[:, :, : len(self.system.outputs)]

    def change(self, coarse: np.ndarray, fine: np.ndarray) -> float:
        """Upper quartile over the runs of the largest normalised mean square error (percent) of an output.

        A run that is lost with few and with many steps says nothing; one that is lost with few of them has changed.
        """
        known = np.isfinite(fine).all(axis=(1, 2))
        if not known.any():
            return np.inf
        with np.errstate(all="ignore"):
            changes = np.max(100 * np.mean((coarse - fine) ** 2, axis=1) / np.var(fine, axis=1), axis=1)[known]
        lost = ~np.isfinite(coarse).all(axis=(1, 2))[known]
        changes = np.where(lost, np.inf, changes)
        changes = changes[~np.isnan(changes)]  # 0 / 0: an output that does not move at all
        return float(np.quantile(changes, 0.75, method="higher" if lost.any() else "linear")) if changes.size else np.inf

    def _beside(self, finest: int, doubled: bool = True) -> list[RunsBeside]:
        """Of each record in which steps like these miss something, their runs beside such that are dense there."""
        times, places = 2 * finest if self.method == "rk4" else finest, some(len(self.theta))
        theta, start = self.theta[places], self.start[places]
        grids = self.grids or [None] * len(self.records)
        found = [
            runs_beside(self.system, record, theta, start[:, r], times, grid, self.method, doubled)
            for r, (record, grid) in enumerate(zip(self.records, grids, strict=True))
        ]
        return [beside for beside in found if beside is not None]

    def _moved(self, beside: RunsBeside) -> float:
        n_y = len(self.system.outputs)
        return self.change(beside.steps[:, :, :n_y], beside.dense[:, :, :n_y])

    @override
    def unseen(self, finest: int) -> float:
        return max(map(self._moved, self._beside(finest)), default=0.0)

    def event(self, substeps: int) -> str:
        """What a number of steps, and twice as many, pass over, in words; empty if that is nothing."""
        found = [b for b in self._beside(2 * substeps, doubled=False) if self._moved(b) >= self.tolerance]
        return said(found[0].event) if found else ""

    @override
    def too_coarse(self, substeps: int, change: float) -> str:
        return (
            f"{named(substeps, self.grids)}: a quarter of the runs drawn from the prior move by a normalised mean square error "
            f"of {change:.2g} % or more when the substeps are doubled (it should be below {self.tolerance}); use more, or "
            f"'auto'.{self.event(substeps)}"
        )

    @override
    def unsettled(self, change: float) -> str:
        if not np.isfinite(self.value(self.otherwise)).all(axis=(1, 2)).any():
            record, runs = self.records[0], method_inputs(self.records[0], self.cut(self.otherwise)[0], self.method)
            run = run_batch(self.system, self.theta[:1], self.start[:1, 0], runs, method=self.method)[0]
            return (
                f"substeps='auto': none of {len(self.theta)} runs drawn from the prior is finite with {self.otherwise} "
                f"{self.steps}; in the first {first_loss(self.system, record, run)}, at "
                f"{in_numbers(self.system.params, self.theta[0])}. Narrow the priors, or give method='implicit' if the system "
                "is stiff."
            )
        return (
            f"substeps='auto': with {self.otherwise} {self.steps} a quarter of the runs drawn from the prior still move by a "
            f"normalised mean square error of more than {self.tolerance} %; the system may be chaotic, stiff or not smooth."
            f"{self.event(MOST // 2)}"
        )


def simulator_substeps(
    system: System,
    records: Sequence[TimeSeries],
    theta: Any,
    start: Any,
    substeps: Any,
    method: Method | Literal["auto"] = "auto",
) -> tuple[list[int | StepGrid], Method]:
    """How to integrate free runs: the steps asked for, checked, or the fewest that most runs of the prior need.

    ``theta`` (P,) and ``start`` (R, n_x) are expressions of a model's variables. They are drawn from the prior and not taken
    at the model's initial point: there, where all priors have their middle, regions and terms of the equations may vanish.

    Returns
    -------
    steps : list
        A number of steps in a sampling interval, or the steps themselves, for each record.
    method : {"rk4", "implicit"}
    """
    given, explicit = given_steps(substeps, records), _explicit(method)
    grids = given if isinstance(given, tuple) else None
    number: int | Literal["auto"] = 1 if isinstance(given, tuple) else given
    if not system.states or all(len(r) < 2 for r in records):
        return (list(grids) if grids else [1 if number == "auto" else number] * len(records)), explicit
    mode = pytensor.compile.Mode(linker="py", optimizer=None)
    drawn, starts = (np.asarray(v, float) for v in pm.draw([theta, start], PRIOR_DRAWS, random_seed=0, mode=mode))
    criterion = PriorRunsCriterion(system, records, drawn, starts, explicit, grids)
    at_once = number == "auto" and method != "rk4" and any(map(uneven, records))
    if at_once and (following := _prior_followed(criterion)):
        if sum(equal_total(r, 1) for r in records) > COST * following.total(1):
            return _say_prior_followed(following)
    found = fewest_substeps(criterion)[0] if number == "auto" else None
    if method == "auto":
        lost = _lost_draws(criterion, found or number)
        if lost.size and _stiff_draws(criterion, lost):
            implicit = replace(criterion, method="implicit")
            left = _lost_draws(implicit, number)
            if left.size < lost.size:
                _log.info(
                    "the system is stiff at some prior draws: %d of %d runs are lost with Runge-Kutta steps, and %d with "
                    "implicit ones; method='auto' chose these.",
                    lost.size,
                    len(drawn),
                    left.size,
                )
                criterion, found = implicit, None
    return criterion.cut(found or settled_substeps(criterion, number)[0]), criterion.method


def _prior_followed(criterion: PriorRunsCriterion) -> PriorRunsCriterion | None:
    """Runs by implicit steps that follow the solutions of some draws, as many as most of all draws need, or None."""
    if sum(len(r) for r in criterion.records) > MOST_GRADED:
        return None
    grids = []
    for r, record in enumerate(criterion.records):
        grid = pilot_grid(criterion.system, record, criterion.theta[:FOLLOWED], criterion.start[:FOLLOWED, r])
        if grid is None:
            return None
        grids.append(grid)
    implicit = replace(criterion, method="implicit", grids=tuple(grids))
    number, _ = searched_substeps(implicit)
    return None if number is None else replace(implicit, grids=tuple(grid.refined(number) for grid in grids))


def _say_prior_followed(following: PriorRunsCriterion) -> tuple[list[int | StepGrid], Method]:
    _log.info(
        "the steps follow the solutions at prior draws, which are stiff or change by orders of magnitude: %s in all.",
        counted(int(following.total(1)), following.steps),
    )
    return following.cut(1), "implicit"


def _lost_draws(criterion: PriorRunsCriterion, substeps: int | Literal["auto"]) -> np.ndarray:
    """Which runs are not finite with a number of steps; with ``"auto"``, the most that it would take."""
    return lost_runs(criterion.value(criterion.otherwise if substeps == "auto" else substeps))


def _stiff_draws(criterion: PriorRunsCriterion, lost: np.ndarray) -> bool:
    """Whether one of the first lost runs is stiff."""
    record = max(criterion.records, key=len)
    r = next(i for i, other in enumerate(criterion.records) if other is record)
    return fastest(criterion.system, record, criterion.theta[lost], criterion.start[lost, r])[1] > STIFF
