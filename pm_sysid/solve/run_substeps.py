"""How many Runge-Kutta steps free runs need, judged by their outputs; runs that no number of steps keeps finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, override

import numpy as np
import pymc as pm
import pytensor

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.stiffness import fastest_decay
from pm_sysid.solve.substeps import Criterion, checked_substeps, settled_substeps
from pm_sysid.steps.rk4 import rk4_inputs, run_batch
from pm_sysid.symbolic.system import System

#: The outputs of a free run may move by this fraction of their root mean square.
OUTPUT_TOLERANCE = 1e-4
#: Three quarters of the prior's free runs may move by this normalised mean square (percent).
NMSE_TOLERANCE = 0.01
#: Draws of the prior whose free runs are compared.
PRIOR_DRAWS = 32
#: A Runge-Kutta step is stable up to this over the rate of the fastest decay.
STABLE = 2.78


@dataclass(frozen=True)
class OutputCriterion(Criterion):
    """Outputs of the free runs of parameter sets (N, P) from initial states (N, n_x), relative to their root mean square."""

    system: System
    record: TimeSeries
    theta: np.ndarray
    start: np.ndarray
    tolerance = OUTPUT_TOLERANCE
    who = "simulate: "

    def value(self, substeps: int) -> np.ndarray:
        """Outputs (N, T, n_y)."""
        runs = run_batch(self.system, self.theta, self.start, rk4_inputs(self.record, substeps))
        return runs[:, :, : len(self.system.outputs)]

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

    def _lost(self, substeps: int) -> str:
        """What is the matter with runs none of which is finite, in words; empty if one is."""
        runs = self.value(substeps)
        if np.any(np.all(np.isfinite(runs), axis=(1, 2))):
            return ""
        last = int(np.argmin(np.isfinite(runs[0]).all(axis=1)))
        when = f"are not finite from sample {last + 1} (t = {self.record.t[last]:.4g}) on"
        rate, h = fastest_decay(self.system, self.record, self.theta[0], self.start[0]), float(np.median(self.record.dt))
        needed = int(np.ceil(1.2 * (rate or 0.0) * h / STABLE))
        if rate is None or needed <= substeps:
            return f"{when}: the solution leaves all bounds, or is too steep for these steps"
        return (
            f"{when}: the system is stiff. Its fastest decay, {rate:.3g} per unit of time, asks for at least {needed} "
            f"Runge-Kutta steps in a sampling interval of {h:.4g}, however smooth the outputs are, and there are no implicit "
            f"steps here. Give substeps={needed} or more, or replace the fast equations by their equilibria"
        )

    @override
    def too_coarse(self, substeps: int, change: float) -> str:
        if not np.isfinite(change) and (lost := self._lost(2 * substeps)):
            return f"substeps={substeps}: the outputs {lost}."
        return (
            f"substeps={substeps}: the outputs move by {change:.2g} of their root mean square when the substeps are "
            f"doubled (more than {self.tolerance:g}); use more, or substeps='auto'."
        )

    @override
    def unsettled(self, change: float) -> str:
        if not np.isfinite(change) and (lost := self._lost(self.otherwise)):
            return f"substeps='auto': with {self.otherwise} substeps the outputs {lost}."
        return (
            f"substeps='auto': the outputs still move by more than {self.tolerance:g} of their root mean square with "
            f"{self.otherwise} substeps; the system may be chaotic, stiff or not smooth."
        )


def run_substeps(
    system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray, substeps: int | Literal["auto"]
) -> int:
    """Runge-Kutta steps a sample: the number asked for, checked, or the fewest that the outputs need.

    The runs compared are those of the first, middle and last of the parameter sets (N, P) and initial states (N, n_x).
    """
    if len(record) < 2 or not len(theta):
        return 1 if substeps == "auto" else substeps
    picked = sorted({0, len(theta) // 2, len(theta) - 1})
    return settled_substeps(OutputCriterion(system, record, theta[picked], start[picked]), substeps)[0]


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
    tolerance = NMSE_TOLERANCE

    def value(self, substeps: int) -> np.ndarray:
        """Outputs (N, T, n_y), joined along time."""
        inputs = (rk4_inputs(record, substeps) for record in self.records)
        each = [run_batch(self.system, self.theta, self.start[:, r], i) for r, i in enumerate(inputs)]
        return np.concatenate(each, axis=1)[:, :, : len(self.system.outputs)]

    def change(self, coarse: np.ndarray, fine: np.ndarray) -> float:
        """Upper quartile over the runs of the largest normalised mean square error (percent) of an output."""
        with np.errstate(all="ignore"):
            changes = np.max(100 * np.mean((coarse - fine) ** 2, axis=1) / np.var(fine, axis=1), axis=1)
        finite = np.isfinite(changes)
        return float(np.quantile(changes[finite], 0.75)) if finite.any() else np.inf

    @override
    def too_coarse(self, substeps: int, change: float) -> str:
        return (
            f"substeps={substeps}: a quarter of the runs drawn from the prior move by a normalised mean square error of "
            f"{change:.2g} % or more when the substeps are doubled (it should be below {self.tolerance}); use more, or 'auto'."
        )

    @override
    def unsettled(self, change: float) -> str:
        return (
            f"substeps='auto': with {self.otherwise} substeps a quarter of the runs drawn from the prior still move by a "
            f"normalised mean square error of more than {self.tolerance} %; the system may be chaotic, stiff or not smooth."
        )


def simulator_substeps(
    system: System, records: Sequence[TimeSeries], theta: Any, start: Any, substeps: int | Literal["auto"]
) -> int:
    """Runge-Kutta steps a sample: the number asked for, checked, or the fewest that most runs of the prior need.

    ``theta`` (P,) and ``start`` (R, n_x) are expressions of a model's variables. They are drawn from the prior and not taken
    at the model's initial point: there, where all priors have their middle, regions and terms of the equations may vanish.
    """
    substeps = checked_substeps(substeps)
    if not system.states or all(len(r) < 2 for r in records):
        return 1 if substeps == "auto" else substeps
    mode = pytensor.compile.Mode(linker="py", optimizer=None)
    drawn = (np.asarray(v, dtype=float) for v in pm.draw([theta, start], PRIOR_DRAWS, random_seed=0, mode=mode))
    return settled_substeps(PriorRunsCriterion(system, records, *drawn), substeps)[0]
