"""Changes of the equations that steps pass over: a pulse, a period or a barrier between the places at which they look.

Coarse steps, and twice and four times as many, agree where none of them has met what happens between. So equations that may
change within less than a step, with time, a state or an input, are looked at on a dense grid of times along a run, and what the
steps leave out of their integrals is compared with what doubling shows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from pytensor.graph import graph_inputs
from pytensor.graph.basic import Variable

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
#: Evaluations of the equations in a look at a record where time enters them, where states alone do, and at once.
WITH_TIME, WITH_STATES, AT_ONCE = 1_000_000, 300_000, 20_000
#: Fewest panels of a step where time enters the equations, where states alone do, and the most.
FEWEST_WITH_TIME, FEWEST_WITH_STATES, MOST_PANELS = 32, 8, 500
#: Parameter sets that are looked at, and the evaluations at each time from which on there are fewer.
SETS, FEW_SETS = 4, 64
#: Steps leave something out where it is more than this many times what doubling shows, and than this share of the integral.
TIMES_SHOWN, SHARE_OF_ALL = 2.0, 1e-7
#: Share that a change with a state has to leave out for it to be named where steps will not do.
SHARE_OF_EVENT = 1e-2
#: Runge-Kutta steps a sample of the runs along which equations are looked at where the steps that are judged are too long for
#: these, the most steps of such a run whose ends are all kept, and steps in all of a run that misses nothing.
RUN_STEPS, MOST_ENDS, MOST_RUN_STEPS = 8, 2_000_000, 4_000_000
#: Weights of three powers of the place in a step, by which the parabola through its begin, middle and end is given.
PARABOLA = np.array([[1.0, -3.0, 2.0], [0.0, 4.0, -4.0], [0.0, -1.0, 2.0]])


class Paths(NamedTuple):
    """Times (M,) of free runs, and their states (N, M, n_x) then."""

    t: np.ndarray
    x: np.ndarray


class Event(NamedTuple):
    """A change of the equations: when it happens, and whether time enters the equation that changes."""

    time: float
    timed: bool


class PassedOver(NamedTuple):
    """What steps pass over.

    Attributes
    ----------
    intervals : ndarray of bool, shape (T - 1,)
        Sampling intervals in which they do.
    event : Event
        The largest of these changes.
    """

    intervals: np.ndarray
    event: Event


class RunsBeside(NamedTuple):
    """Free runs (N, T, n_y + n_x) of steps that pass over something, and of such that are dense there; what that is."""

    steps: np.ndarray
    dense: np.ndarray
    event: Event


def some(n: int) -> np.ndarray:
    """Places of the few of n parameter sets that are looked at."""
    return np.unique(np.linspace(0, n - 1, min(n, SETS)).round().astype(int))


def passed_over(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    paths: Paths,
    finest: int,
    grid: StepGrid | None = None,
    doubled: bool = True,
) -> PassedOver | None:
    """What steps pass over when they are as fine as the finest that were tried.

    Parameters
    ----------
    theta : ndarray, shape (N, P)
        Parameters.
    paths : Paths
        Runs along which the states move.
    finest : int
        Steps in a sampling interval; an even number.
    grid : StepGrid, optional
        Steps that are cut into ``finest``.
    doubled : bool
        Whether what doubling shows is left to those who double: only what it does not show counts.

    Returns
    -------
    PassedOver or None
        None where no equation changes abruptly, or the steps see it.
    """
    if not system.abrupt or len(record) < 2:
        return None
    parts, steps = _view(record, finest, grid)
    most, fewest = (WITH_TIME, FEWEST_WITH_TIME) if system.timed else (WITH_STATES, FEWEST_WITH_STATES)
    sets = len(theta) if steps.interval.size * len(theta) * FEW_SETS <= WITH_TIME else 1
    panels = int(np.clip(most // (steps.interval.size * sets * POINTS), fewest, MOST_PANELS))
    look = _Look(system, record, steps, parts, panels)
    found, times = np.zeros(steps.interval.size), np.full(steps.interval.size, np.nan)
    equations = np.zeros(steps.interval.size, dtype=int)
    for whole, x in zip(completed_sets(system, theta)[:sets], paths.x[:sets], strict=True):
        left, when, which = look.left_out(whole, Paths(paths.t, x), doubled)
        times, equations = np.where(left > found, when, times), np.where(left > found, which, equations)
        found = np.maximum(found, left)
    if not found.any():
        return None
    intervals, worst = np.zeros(len(record) - 1, dtype=bool), np.argmax(found)
    intervals[steps.interval[found > 0]] = True
    return PassedOver(intervals, Event(float(times[worst]), system.abrupt[equations[worst]] in system.timed))


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
        begin, dt = record.t[steps.interval], np.diff(record.t)[steps.interval]
        #: Times and inputs at the begin, middle and end of each step.
        shares = [steps.begin, (steps.begin + steps.end) / 2, steps.end]
        self.times = [begin + share * dt for share in shares]
        self.rates = [system.f[i] for i in system.abrupt]
        self.read = set(graph_inputs([e for e in self.rates if isinstance(e, Variable)]))
        self.inputs = np.zeros((len(shares), steps.interval.size, len(system.u)))
        if not self.read.isdisjoint(system.u):
            self.inputs = np.stack([record.input_at(steps.interval, share) for share in shares])
        #: Shares of the largest integral from which on what is left out is an event, whether or not doubling shows it: a corner
        #: in time can be told to the solver; one of a state is an event where it is large.
        self.least = np.array([SHARE_OF_ALL if i in system.timed else SHARE_OF_EVENT for i in system.abrupt])

    def left_out(self, params: np.ndarray, path: Paths, doubled: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What each step leaves out of the integrals, as a share of the largest, zero where it counts for nothing.

        Then when this happens, and in which of the equations.
        """
        steps, chunk = self.steps, max(1, AT_ONCE // self.dense.size)
        states = np.array([[np.interp(t, path.t, x) for x in _finite(path.x).T] for t in self.times])
        parts = [self._integrals(params, states, slice(i, i + chunk)) for i in range(0, steps.interval.size, chunk)]
        left, shown, size = (np.concatenate(p) for p in zip(*parts, strict=True))
        with np.errstate(all="ignore"):
            share = left / np.maximum(np.nanmax(size, axis=0, initial=0.0), 1e-300)
            counts = (share > SHARE_OF_ALL) & (left > TIMES_SHOWN * shown)
            if not doubled:
                counts |= share > self.least
        share = np.where(counts, share, 0.0)
        worst = np.argmax(share, axis=1)
        largest = share[np.arange(worst.size), worst]
        when, there = self.times[1].copy(), np.flatnonzero(largest)
        for i in range(0, there.size, chunk):
            here = there[i : i + chunk]
            when[here] = self._when(params, states, here, worst[here])
        return largest, when, worst

    def _integrals(self, params: np.ndarray, states: np.ndarray, here: slice) -> tuple[np.ndarray, ...]:
        """Of some steps, each (steps, equations): what nodes leave out, what doubling shows, and the size.

        Two moments of each equation are integrated: of a pulse and its reverse, as of whole periods, the first is zero.
        """
        length = self.steps.length[here]
        dense, coarse = (self._rates(params, states, here, s) for s in (self.dense, self.nodes))
        moments = [np.stack([np.ones(s.size), 2 * s - 1], axis=1) for s in (self.dense, self.nodes)]
        columns = []
        for d, c in zip(dense, coarse, strict=True):
            with np.errstate(all="ignore"):
                exact = d @ (self.weights[:, None] * moments[0])
                fine, rough = (c @ (w[:, None] * moments[1]) for w in self.rules)
                left, shown = (np.max(np.abs(a - b), axis=1) for a, b in ((exact, fine), (fine, rough)))
            columns.append(tuple(v * length for v in (left, shown, np.abs(d) @ self.weights)))
        return tuple(np.stack(c, axis=1) for c in zip(*columns, strict=True))

    def _when(self, params: np.ndarray, states: np.ndarray, here: np.ndarray, equations: np.ndarray) -> np.ndarray:
        """Times at which one equation of each of some steps is farthest from the line through its values at the nodes."""
        rows = equations, np.arange(here.size)
        d, c = (np.stack(self._rates(params, states, here, s))[rows] for s in (self.dense, self.nodes))
        with np.errstate(all="ignore"):
            apart = np.nan_to_num(np.abs(d - c @ _linear(self.nodes, self.dense)), nan=0.0)
        times: np.ndarray = self.times[0][here] + self.steps.length[here] * self.dense[np.argmax(apart, axis=1)]
        return times

    def _rates(self, params: np.ndarray, states: np.ndarray, here: slice | np.ndarray, places: np.ndarray) -> list[np.ndarray]:
        """Equations at places of some steps, each (steps, places).

        States (3, n_x, steps) and inputs move on parabolas through their values at the begin, middle and end of a step.
        """
        length = self.steps.length[here, None]
        weights = PARABOLA @ places ** np.arange(3)[:, None]
        at: dict[Variable, Any] = dict(zip(self.system.p, params, strict=True))
        at[self.system.t] = self.times[0][here, None] + length * places
        moving = np.concatenate([states[:, :, here], self.inputs[:, here].swapaxes(1, 2)], axis=1).swapaxes(0, 1)
        for symbol, values in zip([*self.system.x, *self.system.u], moving, strict=True):
            moves = symbol in self.read and np.ptp(values, axis=0).any()
            at[symbol] = values.T @ weights if moves else values[0][:, None]
        shape = length.size, places.size
        return [np.broadcast_to(rate, shape) for rate in evaluate_arrays(self.rates, at)]


def _linear(nodes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Weights (nodes, places) of linear interpolation."""
    return np.array([np.interp(places, nodes, row) for row in np.eye(nodes.size)])


def _finite(states: np.ndarray) -> np.ndarray:
    """States with zero where they are not numbers."""
    return np.where(np.isfinite(states), states, 0.0)


def _paths(
    system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray, steps: int | StepGrid, method: Method
) -> Paths:
    """States of free runs at the ends of all steps; at the samples alone, where these are many."""
    inputs, times, ends = method_inputs(record, steps, method), record.t, substep_grid(record, steps)
    n = ends.interval.size
    if n <= MOST_ENDS:  # as if each step led to a sample, whose outputs nobody reads
        counts, samples = np.ones(n + 1, dtype=np.int64), np.repeat(inputs.samples[:1], n + 1, axis=0)
        counts[0] = 0
        inputs = inputs._replace(counts=counts, samples=samples)
        times = np.concatenate([times[:1], times[ends.interval] + ends.end * np.diff(times)[ends.interval]])
    return Paths(times, run_batch(system, theta, start, inputs, method=method)[:, :, len(system.outputs) :])


def dense_run(
    system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray, substeps: int, method: Method = "rk4"
) -> np.ndarray:
    """Free runs (N, T, n_y + n_x) by ``substeps`` a sample, and by far more where equations change within a few."""
    grid, places = StepGrid.equal(equal_counts(record, substeps)), some(len(theta))
    if system.abrupt and len(theta):
        paths = _paths(system, record, theta[places], start[places], substeps, method)
        found = passed_over(system, record, theta[places], paths, 4)
        if found is not None:
            grid = _denser(grid, found)
            return run_batch(system, theta, start, method_inputs(record, grid, method), method=method)
    return run_batch(system, theta, start, method_inputs(record, substeps, method), method=method)


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
    if not system.abrupt:
        return None
    half = max(1, finest // 2)  # a Runge-Kutta step looks at its middle, too
    steps = StepGrid.equal(equal_counts(record, half)) if grid is None else grid.refined(half)
    paths = _paths(system, record, theta, start, steps, method)
    if not np.isfinite(paths.x).all():
        paths = _paths(system, record, theta, start, RUN_STEPS if grid is None else grid, method)
    found = passed_over(system, record, theta, paths, finest, grid, doubled)
    if found is None:
        return None
    coarse, dense = (
        run_batch(system, theta, start, method_inputs(record, g, method), method=method) for g in (steps, _denser(steps, found))
    )
    return RunsBeside(coarse, dense, found.event)


def _denser(grid: StepGrid, found: PassedOver) -> StepGrid:
    """The same steps, cut into many where something is passed over."""
    there = max(1, int(grid.counts[found.intervals].sum()))
    each = int(np.median(grid.counts[found.intervals]))
    return grid.refined_in(found.intervals, int(np.clip(MOST_RUN_STEPS // there, 2, max(2, POINTS * MOST_PANELS // each))))


def said(event: Event) -> str:
    """What to do where steps pass over something, in words."""
    if event.timed:
        return (
            f" Near t = {event.time:.6g} the equations change with time within less than a step, which doubling may not show. "
            "Give what changes there as an input of the record, with rows (their outputs NaN) at the times at which it "
            "changes, and intersample='zoh' if it jumps; or, if it is smooth, set far more equal steps (set_substeps)."
        )
    return (
        f" Near t = {event.time:.6g} the equations change with a state or an input within less than a step, which doubling may "
        "not show. Set far more equal steps (set_substeps), or make the change less abrupt."
    )
