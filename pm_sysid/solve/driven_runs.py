"""Free runs of a system with inputs and parameters that are processes: paths are drawn, then the system runs on them."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from pytensor.graph.basic import Variable

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.steps.grid import substep_grid
from pm_sysid.steps.integrate import run_batch
from pm_sysid.steps.rk4 import NODES, rk4_inputs
from pm_sysid.symbolic.names import Names
from pm_sysid.symbolic.processes import Kind, Table
from pm_sysid.symbolic.scalars import evaluate_arrays, substitute, symbol, symbols, untraced
from pm_sysid.symbolic.system import System

#: Steps in a sampling interval, at least: a path is drawn at their ends and middles, and is smooth in between.
FEWEST = 8


class DrivenRuns(NamedTuple):
    """Outputs, then states (N, T, n_y + n_x), and the values of the processes (N, T, processes) at the samples."""

    values: np.ndarray
    paths: np.ndarray


def driven_runs(
    system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray, substeps: int, rng: np.random.Generator
) -> DrivenRuns:
    """Run a system of :func:`~pm_sysid.symbolic.driven.driven_system` by the Runge-Kutta method, each set on paths of its own.

    Parameters
    ----------
    theta : ndarray, shape (N, P)
        Parameters, with the entries of the processes.
    start : ndarray, shape (N, n_x)
        Initial states.
    substeps : int
        Steps in a sampling interval.
    """
    opened, base = opened_system(system), system.base
    n_base, n_u = len(base.params), len(opened.u)
    substeps = max(substeps, FEWEST)
    inputs = rk4_inputs(record, substeps)
    half = np.repeat(substep_grid(record, substeps).length / 2, 2)
    columns = process_columns(system)
    own = [i for i in range(n_u) if i not in columns]
    ends = np.cumsum(inputs.counts)  # steps before each sample
    paths = np.empty((len(theta), len(half) + 1, len(columns)))
    for i, one in enumerate(system.driving):
        paths[..., i] = drawn_paths(one.kind, entries_of(system, one, theta), half, rng)
        if one.role == "parameter":
            paths[..., i] += theta[:, [base.params.index(one.name)]]
    # What is known is put into the rows of a step and of a sample once, and the paths of each set after it.
    rows, samples = np.empty((len(inputs.substeps), 2 + len(NODES) * n_u)), np.empty((len(record), 1 + n_u))
    rows[:, :2], samples[:, 0] = inputs.substeps[:, :2], inputs.samples[:, 0]
    samples[:, [1 + i for i in own]] = inputs.samples[:, 1:]
    for j in range(len(NODES)):
        known = inputs.substeps[:, 2 + j * len(own) : 2 + (j + 1) * len(own)]
        rows[:, [2 + j * n_u + i for i in own]] = known
    values = []
    for params, x0, path in zip(theta, start, paths, strict=True):
        for j, node in enumerate((path[:-1:2], path[1::2], path[2::2])):  # start, middle and end of each step
            rows[:, [2 + j * n_u + i for i in columns]] = node
        samples[:, [1 + i for i in columns]] = path[2 * ends]
        there = inputs._replace(substeps=rows, samples=samples)
        values.append(run_batch(opened, params[None, :n_base], x0[None], there)[0])
    return DrivenRuns(np.array(values), paths[:, 2 * ends])


def entries_of(system: System, one: Any, theta: np.ndarray) -> np.ndarray:
    """Entries (N, n) of a process of a system out of parameters (N, P)."""
    before = system.latents[: system.latents.index(one)]
    at = len(system.base.params) + sum(len(other.p) for other in before)
    return theta[:, at : at + len(one.p)]


def coloured_noise(system: System, record: TimeSeries, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the noise (N, T, n_y) that is a process, zero where an output has none."""
    noise = np.zeros((len(theta), len(record), len(system.outputs)))
    for one in system.latents:
        if one.role == "noise":
            paths = drawn_paths(one.kind, entries_of(system, one, theta), record.dt, rng)
            noise[:, :, list(system.outputs).index(one.name)] += paths
    return noise


def coloured_covariance(system: System, t: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Covariance (T n_y, T n_y) of the noise that is a process, at times (T,) and parameters (P,), sample by sample."""
    n_y = len(system.outputs)
    whole = np.zeros((len(t), n_y, len(t), n_y))
    for one in system.latents:
        if one.role == "noise":
            j = list(system.outputs).index(one.name)
            whole[:, j, :, j] += process_covariance(one.kind, entries_of(system, one, theta[None]), np.diff(t))
    return whole.reshape(len(t) * n_y, -1)


def process_covariance(kind: Kind, entries: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Covariance (K + 1, K + 1) of the values of a process at the ends of steps (K,), for ``entries`` (1, n)."""
    flow = ProcessFlow(kind, entries)
    own, weights = flow.initial[0] @ flow.initial[0].T, flow.weights[0]
    earlier = own @ weights[:, None]  # covariances of the state with the values so far, (size, k + 1)
    found = np.empty((len(steps) + 1, len(steps) + 1))
    found[0, 0] = weights @ earlier[:, 0]
    for k, step in enumerate(steps, start=1):
        F, L = (matrix[0] for matrix in flow.over(step))
        own = F @ own @ F.T + L @ L.T
        earlier = np.column_stack([F @ earlier, own @ weights])
        found[k, : k + 1] = found[: k + 1, k] = weights @ earlier
    return found


def drawn_paths(kind: Kind, entries: np.ndarray, steps: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values (N, K + 1) of a process at the ends of steps (K,) in seconds, drawn for each of the ``entries`` (N, n)."""
    flow = ProcessFlow(kind, entries)
    x = np.einsum("nij,nj->ni", flow.initial, rng.standard_normal((len(entries), kind.size)))
    kicks = rng.standard_normal((len(steps), len(entries), kind.kicks))
    paths = np.empty((len(entries), len(steps) + 1))
    paths[:, 0] = np.sum(flow.weights * x, axis=1)
    for i, step in enumerate(steps):
        F, L = flow.over(step)
        x = (F @ x[..., None] + L @ kicks[i][..., None])[..., 0]
        paths[:, i + 1] = np.sum(flow.weights * x, axis=1)
    return paths


class ProcessFlow:
    """Matrices of a process in numbers, for each of its ``entries`` (N, n).

    ``weights`` (N, size) of the states in the value, ``initial`` (N, size, size), the factor of the covariance at the first
    sample.
    """

    def __init__(self, kind: Kind, entries: np.ndarray) -> None:
        self.kind, self.entries = kind, entries
        self.p, self.h = symbols("p", len(kind.entries)), symbol("h")
        self.flows: dict[float, tuple[np.ndarray, np.ndarray]] = {}
        self.weights = self._numbers([kind.value(self.p)], 0.0)[:, 0]
        self.initial = self._numbers(kind.initial(self.p), 0.0)

    def over(self, step: float) -> tuple[np.ndarray, np.ndarray]:
        """Transition (N, size, size) over a step in seconds, and factor (N, size, kicks) of the covariance that it adds."""
        length = float(f"{step:.12e}")  # lengths that differ by rounding are the same
        if length not in self.flows:
            tables = self.kind.transition(self.p, self.h), self.kind.noise(self.p, self.h)
            self.flows[length] = self._numbers(tables[0], length), self._numbers(tables[1], length)
        return self.flows[length]

    def _numbers(self, table: Table, length: float) -> np.ndarray:
        """Entries (N, rows, columns) of a matrix."""
        n, flat = len(self.entries), [entry for row in table for entry in row]
        given = {**dict(zip(self.p, self.entries.T, strict=True)), self.h: length}
        arrays = [np.broadcast_to(a, n) for a in evaluate_arrays(flat, given)]
        return np.stack(arrays, axis=1).reshape(n, len(table), -1) if arrays else np.empty((n, len(table), 0))


def process_columns(system: System) -> list[int]:
    """Where the processes are among the inputs of :func:`opened_system`."""
    n, varying = len(system.base.u), [one for one in system.latents if one.role == "parameter"]
    return [system.base.inputs.index(one.name) if one.role == "input" else n + varying.index(one) for one in system.driving]


@lru_cache(maxsize=64)
@untraced()
def opened_system(system: System) -> System:
    """The system of the user with the parameters that drift as further inputs."""
    base, varying = system.base, [one for one in system.latents if one.role == "parameter"]
    if not varying:
        return base
    opened = copy.copy(base)
    fresh = [symbol(one.name) for one in varying]
    replace: dict[Variable, Any] = {base.own[base.params.index(one.name)]: s for one, s in zip(varying, fresh, strict=True)}
    opened.f, opened.g = (tuple(substitute(e, replace)) for e in (base.f, base.g))
    opened.u = [*base.u, *fresh]
    opened.inputs = Names(base.inputs.shapes | {f"{one.name} (drifting)": () for one in varying})
    opened.driven = opened.base = opened
    return opened
