"""Changes of the equations with time that steps pass over: a pulse, or a period, between the times at which they look.

Coarse steps, and twice and four times as many, agree where none of them has met what happens between. So equations that
contain time are looked at on a dense grid of times, and what the steps leave out of their integrals is compared with what
doubling shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.steps.derived import completed_sets
from pm_sysid.steps.grid import StepGrid, Substeps, equal_counts, substep_grid
from pm_sysid.steps.integrate import Method, method_inputs, run_batch
from pm_sysid.symbolic.scalars import evaluate_arrays
from pm_sysid.symbolic.system import System

#: Quadratures of four parts of a step, and of two: the finer one by all nodes, and the coarser one by every second.
RULES = {
    4: (np.array([7, 32, 12, 32, 7]) / 90, np.array([1, 0, 4, 0, 1]) / 6),
    2: (np.array([1, 4, 1]) / 6, np.array([1, 0, 1]) / 2),
}
#: Points of Gauss's quadrature in each of the panels that a step is cut into for the dense look.
POINTS = 4
#: Evaluations of the equations in a look at a record, and fewest and most panels of a step.
EVALUATIONS, FEWEST_PANELS, MOST_PANELS = 1_000_000, 32, 500
#: Parameter sets that are looked at, and the evaluations at each time from which on there are fewer.
SETS, FEW_SETS = 4, 64
#: Steps leave something out where it is more than this many times what doubling shows, and than this share of the integral.
TIMES_SHOWN, SHARE_OF_ALL = 2.0, 1e-7
#: Runge-Kutta steps a sample of the runs whose states are looked at, and steps in all of a run that misses nothing.
RUN_STEPS, MOST_RUN_STEPS = 8, 4_000_000


class PassedOver(NamedTuple):
    """What steps pass over.

    Attributes
    ----------
    intervals : ndarray of bool, shape (T - 1,)
        Sampling intervals in which they do.
    time : float
        When the largest of these changes happens.
    """

    intervals: np.ndarray
    time: float


class RunsBeside(NamedTuple):
    """Free runs (N, T, n_y + n_x) of steps that pass over something, and of such that are dense there; when that is."""

    steps: np.ndarray
    dense: np.ndarray
    time: float


def some(n: int) -> np.ndarray:
    """Places of the few of n parameter sets that are looked at."""
    return np.unique(np.linspace(0, n - 1, min(n, SETS)).round().astype(int))


def passed_over(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    states: np.ndarray,
    finest: int,
    grid: StepGrid | None = None,
    doubled: bool = True,
) -> PassedOver | None:
    """What steps pass over when they are as fine as the finest that were tried.

    Parameters
    ----------
    theta : ndarray, shape (N, P)
        Parameters.
    states : ndarray, shape (N, T, n_x)
        States at the samples, about which time alone moves.
    finest : int
        Steps in a sampling interval; an even number.
    grid : StepGrid, optional
        Steps that are cut into ``finest``.
    doubled : bool
        Whether what doubling shows is left to those who double: only what it does not show counts.

    Returns
    -------
    PassedOver or None
        None where time enters no equation, or so slowly that the steps see it.
    """
    if not system.timed or len(record) < 2:
        return None
    parts, steps = _view(record, finest, grid)
    sets = len(theta) if steps.interval.size * len(theta) * FEW_SETS <= EVALUATIONS else 1
    panels = int(np.clip(EVALUATIONS // (steps.interval.size * sets * POINTS), FEWEST_PANELS, MOST_PANELS))
    look = _Look(system, record, steps, parts, panels)
    found = np.zeros(steps.interval.size)
    times = np.full(steps.interval.size, np.nan)
    for whole, x in zip(completed_sets(system, theta)[:sets], states[:sets], strict=True):
        left, when = look.left_out(whole, x, doubled)
        times = np.where(left > found, when, times)
        found = np.maximum(found, left)
    if not found.any():
        return None
    intervals = np.zeros(len(record) - 1, dtype=bool)
    intervals[steps.interval[found > 0]] = True
    return PassedOver(intervals, float(times[np.argmax(found)]))


def _view(record: TimeSeries, finest: int, grid: StepGrid | None) -> tuple[int, Substeps]:
    """Parts of a step, and steps of which the finest are parts; not more than there are."""
    parts = 4 if finest % 4 == 0 else 2
    if grid is None:
        return parts, substep_grid(record, StepGrid.equal(np.maximum(1, equal_counts(record, finest) // parts)))
    return parts, substep_grid(record, grid.refined(finest // parts))


class _Look:
    """A dense look at the equations of a system in the steps of a record, some steps at a time."""

    def __init__(self, system: System, record: TimeSeries, steps: Substeps, parts: int, panels: int) -> None:
        self.system, self.record, self.steps = system, record, steps
        nodes, weights = np.polynomial.legendre.leggauss(POINTS)
        self.dense = ((np.arange(panels)[:, None] + (nodes + 1) / 2) / panels).ravel()
        self.weights = np.tile(weights / 2, panels) / panels
        self.nodes, self.rules = np.linspace(0.0, 1.0, parts + 1), RULES[parts]
        self.inputs = record.input_at(steps.interval, (steps.begin + steps.end) / 2)

    def left_out(self, params: np.ndarray, states: np.ndarray, doubled: bool) -> tuple[np.ndarray, np.ndarray]:
        """What each step leaves out of the integrals, as a share of the largest, zero where it counts for nothing; and when."""
        steps, chunk = self.steps, max(1, EVALUATIONS // 4 // self.dense.size)
        parts = [self._integrals(params, states, slice(i, i + chunk)) for i in range(0, steps.interval.size, chunk)]
        left, shown, size, when = (np.concatenate(p) for p in zip(*parts, strict=True))
        with np.errstate(all="ignore"):
            share = left / np.maximum(np.nanmax(size, axis=0, initial=0.0), 1e-300)
            counts = (share > SHARE_OF_ALL) & ((left > TIMES_SHOWN * shown) | (not doubled))
        share = np.where(counts, share, 0.0)
        worst = np.argmax(share, axis=1)[:, None]
        return np.take_along_axis(share, worst, axis=1)[:, 0], np.take_along_axis(when, worst, axis=1)[:, 0]

    def _integrals(self, params: np.ndarray, states: np.ndarray, here: slice) -> tuple[np.ndarray, ...]:
        """Of some steps, each (steps, equations): what nodes leave out, what doubling shows, the size, and when it happens.

        Two moments of each equation are integrated: of a pulse and its reverse, as of whole periods, the first is zero.
        """
        length, interval = self.steps.length[here, None], self.steps.interval[here]
        begin = self.record.t[interval] + self.steps.begin[here] * np.diff(self.record.t)[interval]
        state = _finite((states[interval] + states[interval + 1]) / 2)
        at = dict(zip(self.system.p, params, strict=True))
        at |= dict(zip(self.system.x, state.T[:, :, None], strict=True))
        at |= dict(zip(self.system.u, self.inputs[here].T[:, :, None], strict=True))
        rates = [self.system.f[i] for i in self.system.timed]
        shape = length.size, self.dense.size
        times = [begin[:, None] + length * s for s in (self.dense, self.nodes)]
        dense, coarse = (evaluate_arrays(rates, {**at, self.system.t: t}) for t in times)
        moments = [np.stack([np.ones(s.size), 2 * s - 1], axis=1) for s in (self.dense, self.nodes)]
        columns = []
        for d, c in zip(dense, coarse, strict=True):
            d, c = np.broadcast_to(d, shape), np.broadcast_to(c, (length.size, self.nodes.size))
            with np.errstate(all="ignore"):
                exact = d @ (self.weights[:, None] * moments[0])
                fine, rough = (c @ (w[:, None] * moments[1]) for w in self.rules)
                left, shown = (np.max(np.abs(a - b), axis=1) for a, b in ((exact, fine), (fine, rough)))
                apart = np.abs(d - c @ _linear(self.nodes, self.dense))
                place = np.argmax(np.nan_to_num(apart, nan=0.0), axis=1)
            sizes = np.abs(d) @ self.weights
            when = times[0][np.arange(place.size), place]
            columns.append((*(v * length[:, 0] for v in (left, shown, sizes)), when))
        return tuple(np.stack(c, axis=1) for c in zip(*columns, strict=True))


def _linear(nodes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Weights (nodes, places) of linear interpolation."""
    return np.array([np.interp(places, nodes, row) for row in np.eye(nodes.size)])


def _finite(states: np.ndarray) -> np.ndarray:
    """States (steps, n_x) with zero where they are not numbers."""
    return np.where(np.isfinite(states), states, 0.0)


def dense_run(
    system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray, substeps: int, method: Method = "rk4"
) -> np.ndarray:
    """Free runs (N, T, n_y + n_x) by ``substeps`` a sample, and by far more where equations change with time within a few."""
    runs = run_batch(system, theta, start, method_inputs(record, substeps, method), method=method)
    places = some(len(theta))
    found = passed_over(system, record, theta[places], _states(system, runs[places]), 4) if len(theta) else None
    if found is None:
        return runs
    grid = _denser(StepGrid.equal(equal_counts(record, substeps)), found)
    return run_batch(system, theta, start, method_inputs(record, grid, method), method=method)


def runs_beside(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    finest: int,
    grid: StepGrid | None = None,
    method: Method = "rk4",
    doubled: bool = True,
) -> RunsBeside | None:
    """Free runs of a few parameter sets (N, P) by steps that look at the times that ``finest`` ones look at, and by dense ones.

    Where the two differ, steps pass over what matters; None where they pass over nothing (see :func:`passed_over`).
    """
    if not system.timed:
        return None
    first = RUN_STEPS if grid is None else grid
    runs = run_batch(system, theta, start, method_inputs(record, first, method), method=method)
    found = passed_over(system, record, theta, _states(system, runs), finest, grid, doubled)
    if found is None:
        return None
    half = max(1, finest // 2)  # a Runge-Kutta step looks at its middle, too
    steps = StepGrid.equal(equal_counts(record, half)) if grid is None else grid.refined(half)
    coarse, dense = (
        run_batch(system, theta, start, method_inputs(record, g, method), method=method) for g in (steps, _denser(steps, found))
    )
    return RunsBeside(coarse, dense, found.time)


def _denser(grid: StepGrid, found: PassedOver) -> StepGrid:
    """The same steps, cut into many where something is passed over."""
    there = max(1, int(grid.counts[found.intervals].sum()))
    each = int(np.median(grid.counts[found.intervals]))
    return grid.refined_in(found.intervals, int(np.clip(MOST_RUN_STEPS // there, 2, max(2, POINTS * MOST_PANELS // each))))


def _states(system: System, runs: np.ndarray) -> np.ndarray:
    return runs[:, :, len(system.outputs) :]


def said(time: float) -> str:
    """What to do where steps pass over something, in words."""
    return (
        f" Near t = {time:.6g} the equations change with time within less than a step, which doubling may not show. Give what "
        "changes there as an input of the record, with rows (their outputs NaN) at the times at which it changes, and "
        "intersample='zoh' if it jumps; or, if it is smooth, set far more equal steps (set_substeps)."
    )
