"""A pilot run by an implicit method with adaptive steps: how fast the fastest decay is, and where the solution changes fast."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import scipy

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.grid import StepGrid
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import as_function, untraced
from pm_sysid.symbolic.system import System

#: Sampling intervals that are looked at for the fastest decay, and evaluations of the equations in all of them.
INTERVALS, EVALUATIONS = 20, 1_000
#: Evaluations in a pilot run over a whole record, its relative tolerance, and the absolute one in units of the largest state.
PILOT_EVALUATIONS, PILOT_TOLERANCE, PILOT_SMALL = 20_000, 1e-3, 1e-9


class _TooMany(Exception):
    """More evaluations than the question is worth."""


class _Flow:
    """Equations of motion and their Jacobian as numbers, along the input of a record, a limited number of times."""

    def __init__(self, system: System, record: TimeSeries, theta: np.ndarray, evaluations: int) -> None:
        self.record, self.left = record, evaluations
        symbols = [system.t, *system.x, *system.u, *system.p]
        self.rates = as_function(symbols, [entry for row in jacobian(system.f, system.x) for entry in row])
        self.f = as_function(symbols, system.f)
        (self.params,) = completed_sets(system, np.asarray(theta, dtype=float)[None])
        #: Rate of the fastest decay seen so far.
        self.fastest = 0.0

    def _values(self, function: Callable[..., list[float]], t: float, x: np.ndarray, i: int) -> np.ndarray:
        self.left -= 1
        if self.left < 0:
            raise _TooMany
        return np.array(function(t, *x, *self._input(t, i), *self.params))

    def _input(self, t: float, i: int) -> np.ndarray | tuple[()]:
        """At a time in sampling interval ``i``, (n_u,)."""
        record = self.record
        if not record.inputs:
            return ()
        part = np.clip((t - record.t[i]) / record.dt[i], 0.0, 1.0)
        return np.asarray(record.input_at(np.array([i]), np.array([part]))[0])

    def change(self, t: float, x: np.ndarray, i: int) -> np.ndarray:
        """Jacobian (n_x, n_x)."""
        partial = self._values(self.rates, t, x, i).reshape(len(x), len(x))
        self.fastest = max(self.fastest, float(-np.linalg.eigvals(partial).real.min()))
        return partial

    def decay(self, x: np.ndarray, i: int) -> float:
        """Rate of the fastest decay at the beginning of sampling interval ``i``; never zero."""
        partial = self._values(self.rates, float(self.record.t[i]), x, i).reshape(len(x), len(x))
        return max(float(-np.linalg.eigvals(partial).real.min()), np.finfo(float).tiny)

    def run(self, x: np.ndarray, i: int, tolerance: float, small: float, first: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Times of the steps through sampling interval ``i``, and the states there (n_x, steps); Radau's method.

        Raises
        ------
        ValueError, numpy.linalg.LinAlgError, _TooMany
            Where there is no solution, or not within the number of evaluations.
        """
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            run = scipy.integrate.solve_ivp(
                lambda t, x: self._values(self.f, t, x, i),
                self.record.t[i : i + 2],
                x,
                method="Radau",
                jac=lambda t, x: self.change(t, x, i),
                rtol=tolerance,
                atol=small,
                first_step=first,
            )
        if not run.success or not np.all(np.isfinite(run.y)):
            raise ValueError("no solution")
        return run.t, run.y


@untraced()
def fastest_decay(system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray) -> float | None:
    """Largest rate at which a disturbance of the solution dies out, in the first intervals of a record.

    The solution is found by an implicit method (Radau), which no fast decay disturbs.

    Parameters
    ----------
    theta : ndarray, shape (P,)
        Parameters.
    start : ndarray, shape (n_x,)
        Initial state.

    Returns
    -------
    float or None
        Largest negative real part of an eigenvalue of the Jacobian, its sign turned; None where the implicit method finds
        no solution either, or takes too long.
    """
    flow, x = _Flow(system, record, theta, EVALUATIONS), np.asarray(start, dtype=float)
    for i in range(min(len(record) - 1, INTERVALS)):
        try:
            times, states = flow.run(x, i, 1e-4, 1e-8, None)
            for t, state in zip(times, states.T, strict=True):
                flow.change(t, state, i)
        except _TooMany:
            return flow.fastest or None
        except (ValueError, np.linalg.LinAlgError):  # not a number
            return None
        x = states[:, -1]
    return flow.fastest


@untraced()
def pilot_times(system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray) -> list[np.ndarray] | None:
    """Times of the steps that an adaptive implicit method takes, one array for each sampling interval, ends included.

    Steps grow through the samples of an unforced system. After a jump of the input they begin with the time of the fastest
    decay: the solver hardly sees what a small jump excites, but the derivatives that a filter carries do. None where there is
    no solution, or it takes too long.
    """
    flow, x = _Flow(system, record, theta, PILOT_EVALUATIONS), np.asarray(start, dtype=float)
    small, step, parts = PILOT_SMALL * (float(np.max(np.abs(x), initial=0.0)) or 1.0), None, list[np.ndarray]()
    for i in range(len(record) - 1):
        length = float(record.t[i + 1] - record.t[i])
        try:
            if step is not None and _jumps(record, i):
                step = min(step, 1 / flow.decay(x, i))
            times, states = flow.run(x, i, PILOT_TOLERANCE, small, None if step is None else min(step, length))
        except (_TooMany, ValueError, np.linalg.LinAlgError):
            return None
        taken = np.diff(times)
        # The last step is cut off by the sample; what the error allows is at least the one before it.
        step = max(float(taken[-1]), float(taken[-2]) if taken.size > 1 else 0.0, 5 * step if step and taken.size == 1 else 0.0)
        x = states[:, -1]
        parts.append(times)
    return parts


def _jumps(record: TimeSeries, i: int) -> bool:
    """Whether the input jumps at sample ``i``."""
    before, after = record.input_at(np.array([i - 1]), np.ones(1)), record.input_at(np.array([i]), np.zeros(1))
    return i > 0 and not np.array_equal(before, after)


def pilot_grid(system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray, rests: bool = True) -> StepGrid | None:
    """Steps that follow the solutions of parameter sets (N, P) from initial states (N, n_x): as short as the shortest.

    The density of steps is the largest of those that the adaptive runs have; each interval gets a whole number of them, of
    lengths with the same integral of the density. None where none of the runs has a solution.

    The last step of a run in an interval is the rest that its sample has left. Without ``rests`` it counts as one as long as
    that before it: a step after a rest would be many times as long as the rest, and the variance of a filter's high
    derivatives grows with that ratio, however finely both are cut.
    """
    runs = [times for at in zip(theta, start, strict=True) if (times := pilot_times(system, record, *at)) is not None]
    if not runs:
        return None
    counts, ends = [], []
    for i in range(len(record) - 1):
        knots = np.unique(np.concatenate([run[i] for run in runs]))
        middle = (knots[1:] + knots[:-1]) / 2
        density = np.zeros(middle.size)
        for run in runs:
            place = np.clip(np.searchsorted(run[i], middle) - 1, 0, run[i].size - 2)
            density = np.maximum(density, 1 / _lengths(run[i], rests)[place])
        total = np.concatenate([[0.0], np.cumsum(density * np.diff(knots))])
        n = max(1, int(np.ceil(total[-1] * (1 - 1e-9))))
        times = np.interp(total[-1] * np.arange(1, n + 1) / n, total, knots)
        share = (times - knots[0]) / (knots[-1] - knots[0])
        share[-1] = 1.0
        counts.append(n)
        ends.append(share)
    return StepGrid(np.array(counts, dtype=np.int64), np.concatenate(ends))


def _lengths(times: np.ndarray, rests: bool) -> np.ndarray:
    """Lengths of the steps of an adaptive run in an interval; without rests the last is as long as the one before it."""
    taken = np.diff(times)
    if not rests:
        taken[-1] = max(taken[-2:])
    return taken
