"""How free runs are integrated: by which method, and in how many steps, judged by their outputs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, override

import numpy as np
import pymc as pm
import pytensor

from pm_sysid.arguments import among
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.stiffness import fastest_decay
from pm_sysid.solve.substeps import Criterion, checked_substeps, fewest_substeps, in_words, settled_substeps, warn
from pm_sysid.steps.integrate import STEPS, Method, method_inputs, run_batch
from pm_sysid.symbolic.system import System

_log = logging.getLogger("pm_sysid")

#: The outputs of a free run may move by this fraction of their root mean square.
OUTPUT_TOLERANCE = 1e-4
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


class RunSteps(NamedTuple):
    """How a free run is integrated: steps in a sampling interval, and of which method."""

    substeps: int
    method: Method = "rk4"


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
    return None if rate is None else (rate, int(np.ceil(1.2 * rate * float(np.median(record.dt)) / STABLE)))


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
    with_steps = f"with {steps.substeps} {STEPS[steps.method]} a sample"
    warn(
        f"simulate: {lost.size} of {len(runs)} runs are not finite {with_steps}. In the run with the index {first}, "
        f"{first_loss(system, record, runs[first])}{at}. Either the solution leaves all bounds there, or the steps are too "
        f"long: try {remedy}, or leave such parameters out."
    )


@dataclass(frozen=True)
class OutputCriterion(Criterion):
    """Outputs of the free runs of parameter sets (N, P) from initial states (N, n_x), relative to their root mean square."""

    system: System
    record: TimeSeries
    theta: np.ndarray
    start: np.ndarray
    method: Method = "rk4"
    tolerance = OUTPUT_TOLERANCE
    who = "simulate: "

    @property
    def steps(self) -> str:  # type: ignore[override]
        """What is counted."""
        return STEPS[self.method]

    def runs(self, substeps: int) -> np.ndarray:
        """Outputs and states (N, T, n_y + n_x)."""
        inputs = method_inputs(self.record, substeps, self.method)
        return run_batch(self.system, self.theta, self.start, inputs, method=self.method)

    def value(self, substeps: int) -> np.ndarray:
        """Outputs (N, T, n_y)."""
        return self.runs(substeps)[:, :, : len(self.system.outputs)]

    def change(self, coarse: np.ndarray, fine: np.ndarray) -> float:
        """Largest change over time of the runs that are finite; two that are lost do not agree."""
        finite = np.all(np.isfinite(fine), axis=(1, 2))
        if not finite.any():
            return np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            largest = np.max(np.abs(fine[finite]), axis=1, keepdims=True) + 1e-300  # whose square may be beyond all numbers
            apart, fine = coarse[finite] / largest - fine[finite] / largest, fine[finite] / largest
            change = np.max(np.abs(apart) / (np.sqrt(np.mean(fine**2, axis=1, keepdims=True)) + 1e-300))
        return float(np.nan_to_num(change, nan=np.inf))

    def lost(self, substeps: int) -> str:
        """What is the matter with runs none of which is finite, in words; empty if one is."""
        runs = self.runs(substeps)
        if np.any(np.all(np.isfinite(runs), axis=(1, 2))):
            return ""
        when = first_loss(self.system, self.record, runs[0])
        if len(self.system.params):
            when += f" at {in_numbers(self.system.params, self.theta[0])}"
        found = needed_steps(self.system, self.record, self.theta[0], self.start[0]) if self.method == "rk4" else None
        if found is None or found[1] <= substeps:
            return f"{when}: the solution leaves all bounds, or is too steep for these steps"
        return (
            f"{when}: the system is stiff. Its fastest decay, {found[0]:.3g} per unit of time, asks for at least {found[1]} "
            f"Runge-Kutta steps in a sampling interval of {float(np.median(self.record.dt)):.4g}, however smooth the outputs "
            f"are. Give method='implicit', substeps={found[1]} or more, or replace the fast equations by their equilibria"
        )

    @override
    def too_coarse(self, substeps: int, change: float) -> str:
        if not np.isfinite(change) and (lost := self.lost(2 * substeps)):
            return f"substeps={substeps}: {lost}."
        return (
            f"substeps={substeps}: the outputs move by {in_words(change)} of their root mean square when the substeps are "
            f"doubled (more than {self.tolerance:g}); use more, or substeps='auto'."
        )

    @override
    def unsettled(self, change: float) -> str:
        if not np.isfinite(change) and (lost := self.lost(self.otherwise)):
            return f"substeps='auto': with {self.otherwise} {self.steps} {lost}."
        return (
            f"substeps='auto': the outputs still move by more than {self.tolerance:g} of their root mean square with "
            f"{self.otherwise} {self.steps}; the system may be chaotic, stiff or not smooth."
        )


def run_substeps(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    substeps: int | Literal["auto"],
    method: Method | Literal["auto"] = "auto",
    beside: Sequence[int] = (),
) -> RunSteps:
    """How to integrate free runs: the number of steps asked for, checked, or the fewest that the outputs need.

    The runs compared are those of the first, middle and last of the parameter sets (N, P) and initial states (N, n_x), and
    those with the indices ``beside``.
    ``method="auto"`` takes Runge-Kutta steps, and implicit ones where no number of those is enough and the system is stiff.
    """
    if len(record) < 2 or not len(theta) or not system.states:
        return RunSteps(1 if substeps == "auto" else substeps, _explicit(method))
    picked = sorted({0, len(theta) // 2, len(theta) - 1, *beside})
    criterion = OutputCriterion(system, record, theta[picked], start[picked], _explicit(method))
    if method != "auto":
        return RunSteps(settled_substeps(criterion, substeps)[0], method)
    return _fewest(criterion) if substeps == "auto" else _as_given(criterion, substeps)


def _fewest(criterion: OutputCriterion) -> RunSteps:
    """The fewest Runge-Kutta steps that will do; implicit steps if none will and the system is stiff."""
    number, change = fewest_substeps(criterion)
    if number is not None:
        return RunSteps(number)
    found = fastest(criterion.system, criterion.record, criterion.theta, criterion.start)
    if found[1] > STIFF:
        number, _ = fewest_substeps(replace(criterion, method="implicit"))
        if number is not None:
            say_stiff(*found)
            return RunSteps(number, "implicit")
    warn(criterion.unsettled(change))
    return RunSteps(criterion.otherwise)


def _as_given(criterion: OutputCriterion, substeps: int) -> RunSteps:
    """The number of Runge-Kutta steps that was asked for; of implicit steps if those are unstable."""
    change = criterion.change(criterion.value(substeps), criterion.value(2 * substeps))
    if not change < UNSTABLE:
        found = fastest(criterion.system, criterion.record, criterion.theta, criterion.start)
        implicit = replace(criterion, method="implicit")
        if found[1] > substeps and not lost_runs(implicit.value(substeps)).size:
            say_stiff(*found)
            return RunSteps(settled_substeps(implicit, substeps)[0], "implicit")
    if not change < criterion.tolerance:
        warn(criterion.too_coarse(substeps, change))
    return RunSteps(substeps)


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
    substeps: int | Literal["auto"],
    method: Method | Literal["auto"],
    y: np.ndarray | None = None,
) -> tuple[np.ndarray, RunSteps]:
    """Free runs of all parameter sets (N, P) as by :func:`~pm_sysid.steps.integrate.run_batch`, and how they were integrated.

    With ``method="auto"``, Runge-Kutta steps that lose some of the runs by stiffness give way to implicit ones.
    """

    def run(steps: RunSteps) -> np.ndarray:
        return run_batch(system, theta, start, method_inputs(record, *steps), y, steps.method)

    steps = run_substeps(system, record, theta, start, substeps, method)
    runs = run(steps)
    lost = lost_runs(runs)
    if method == "auto" and steps.method == "rk4" and 0 < lost.size < len(runs):
        found = fastest(system, record, theta[lost], start[lost])
        if found[1] > STIFF:
            implicit = run_substeps(system, record, theta, start, substeps, "implicit", lost[:LOOKED_AT].tolist())
            again = run(implicit)
            if lost_runs(again).size < lost.size:
                say_stiff(*found)
                runs, steps = again, implicit
    if y is None:
        warn_of_lost_runs(system, record, theta, runs, steps)
    return runs, steps


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
    tolerance = NMSE_TOLERANCE

    @property
    def steps(self) -> str:  # type: ignore[override]
        """What is counted."""
        return STEPS[self.method]

    def value(self, substeps: int) -> np.ndarray:
        """Outputs (N, T, n_y), joined along time."""
        inputs = (method_inputs(record, substeps, self.method) for record in self.records)
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

    @override
    def too_coarse(self, substeps: int, change: float) -> str:
        return (
            f"substeps={substeps}: a quarter of the runs drawn from the prior move by a normalised mean square error of "
            f"{change:.2g} % or more when the substeps are doubled (it should be below {self.tolerance}); use more, or "
            "'auto'."
        )

    @override
    def unsettled(self, change: float) -> str:
        if not np.isfinite(self.value(self.otherwise)).all(axis=(1, 2)).any():
            record, runs = self.records[0], method_inputs(self.records[0], self.otherwise, self.method)
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
        )


def simulator_substeps(
    system: System,
    records: Sequence[TimeSeries],
    theta: Any,
    start: Any,
    substeps: int | Literal["auto"],
    method: Method | Literal["auto"] = "auto",
) -> RunSteps:
    """How to integrate free runs: the number of steps asked for, checked, or the fewest that most runs of the prior need.

    ``theta`` (P,) and ``start`` (R, n_x) are expressions of a model's variables. They are drawn from the prior and not taken
    at the model's initial point: there, where all priors have their middle, regions and terms of the equations may vanish.
    """
    substeps, explicit = checked_substeps(substeps), _explicit(method)
    if not system.states or all(len(r) < 2 for r in records):
        return RunSteps(1 if substeps == "auto" else substeps, explicit)
    mode = pytensor.compile.Mode(linker="py", optimizer=None)
    drawn, starts = (np.asarray(v, float) for v in pm.draw([theta, start], PRIOR_DRAWS, random_seed=0, mode=mode))
    criterion = PriorRunsCriterion(system, records, drawn, starts, explicit)
    found = fewest_substeps(criterion)[0] if substeps == "auto" else None
    if method == "auto":
        lost = _lost_draws(criterion, found or substeps)
        if lost.size and _stiff_draws(criterion, lost):
            implicit = replace(criterion, method="implicit")
            left = _lost_draws(implicit, substeps)
            if left.size < lost.size:
                _log.info(
                    "the system is stiff at some prior draws: %d of %d runs are lost with Runge-Kutta steps, and %d with "
                    "implicit ones; method='auto' chose these.",
                    lost.size,
                    len(drawn),
                    left.size,
                )
                return RunSteps(settled_substeps(implicit, substeps)[0], "implicit")
    return RunSteps(found or settled_substeps(criterion, substeps)[0], criterion.method)


def _lost_draws(criterion: PriorRunsCriterion, substeps: int | Literal["auto"]) -> np.ndarray:
    """Which runs are not finite with a number of steps; with ``"auto"``, the most that it would take."""
    return lost_runs(criterion.value(criterion.otherwise if substeps == "auto" else substeps))


def _stiff_draws(criterion: PriorRunsCriterion, lost: np.ndarray) -> bool:
    """Whether one of the first lost runs is stiff."""
    record = max(criterion.records, key=len)
    r = next(i for i, other in enumerate(criterion.records) if other is record)
    return fastest(criterion.system, record, criterion.theta[lost], criterion.start[lost, r])[1] > STIFF
