"""The filter of a model forward and its smoother backward at given parameters, and what they say with labels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph.basic import Variable

from pm_sysid.likelihood.filter_view import FilterView
from pm_sysid.progress import announced
from pm_sysid.records.units import label_units
from pm_sysid.recurrence.functions import compiled
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.solve.filter_graph import Problem, RecordData
from pm_sysid.steps.derived import completed
from pm_sysid.steps.rts_smoother import Path, Smoother
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import simplify, substitute, untraced
from pm_sysid.symbolic.system import System

type Arrays = dict[str, np.ndarray]


class Grid(NamedTuple):
    """A record with a sample at the end of every substep, K rows: measured, and jumping, where it was before."""

    data: RecordData
    y: np.ndarray
    path: Path


def every_substep(problem: Problem, data: RecordData, y: np.ndarray) -> Grid:
    """Put a sample at the end of every substep; ``data`` and ``y`` (T, n_y) are arrays."""
    n_u, rows = len(problem.system.u), np.maximum(data.counts, 1)
    ends, stepped = np.cumsum(rows) - 1, np.repeat(data.counts > 0, rows)
    samples = np.zeros((len(stepped), data.samples.shape[1]))
    samples[stepped, : 1 + n_u] = data.substeps[:, : 1 + n_u]
    if problem.input_levels[1] and problem.form.smoothness == 0:
        samples[:, 1 + n_u :] = samples[:, 1 : 1 + n_u]  # the input before is the input after
    samples[ends] = data.samples
    measured = np.full((len(stepped), y.shape[1]), np.nan)
    measured[ends] = y
    counts = np.where(stepped, 1, np.repeat(data.counts, rows))
    ratio = np.ones(len(stepped))
    if not problem.form.uniform:
        ratio[stepped] = data.substeps[:, -1]
    kept = np.isin(np.arange(len(stepped)), ends)
    path = Path(kept, np.append(counts[1:] < 0, True), ratio)
    return Grid(data._replace(counts=counts, samples=samples), measured, path)


@lru_cache(maxsize=64)
@untraced()
def observation(system: System) -> Recurrence:
    """Outputs at ``t, u, x, dx`` without noise, then their derivatives by x and dx, output by output; nothing is carried."""
    nothing, system = Phase.build([], system.p, [], []), system.driven
    clean: dict[Variable, Any] = {x: 0.0 for one in system.latents if one.role == "noise" for x in one.x}
    outputs = simplify(substitute(system.g, clean))
    slopes = [d for row in jacobian(outputs, [*system.x, *system.dx]) for d in row]
    sample = Phase.build([], system.p, [system.t, *system.u, *system.x, *system.dx], [*outputs, *slopes])
    return Recurrence(nothing, nothing, sample, n_carry=0, n_params=len(system.p), name="observation")


@lru_cache(maxsize=64)
@untraced()
def rates(system: System) -> Recurrence:
    """Derivatives of the states at ``t, u, x``; nothing is carried."""
    nothing, system = Phase.build([], system.p, [], []), system.driven
    sample = Phase.build([], system.p, [system.t, *system.u, *system.x], system.f[: len(system.dx)])
    return Recurrence(nothing, nothing, sample, n_carry=0, n_params=len(system.p), name="derivatives")


class Passes:
    """The filter of a model, forward and backward at given parameters; several threads may ask for different ones at once.

    PyTensor's functions are one thread's at a time. Meanwhile others can be in the backward pass, which takes twice as long.
    """

    def __init__(self, view: FilterView) -> None:
        self._one = Lock()
        self.name, self.system, self.units = view.name, view.system, view.units
        self.data, self.y = view.arrays(), view.measured()
        self.grid = every_substep(view.problem, self.data, self.y)
        self.smoother = Smoother(self.system, view.problem.form)
        #: Variables a point gives values for, in order.
        self.needed = view.free
        fine = RecordData(*map(pytensor.shared, self.grid.data))
        table, _ = view.problem.run(pytensor.shared(self.grid.y), view.unknowns, fine, "states")
        self._forward = announced("filter", lambda: compiled(self.needed, [table, view.unknowns.params]))
        params, samples = view.unknowns.params.type(), pt.dmatrix()
        runs = np.minimum(self.data.counts, 0)
        none = np.empty((len(self.data.starts), 0)), runs, np.empty((0, 0))
        self.params = view.unknowns.params.type
        self.observe = compiled([params, samples], observation(self.system)(completed(self.system, params), *none, samples)[0])

    def forward(self, point: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """What the filter knows after each substep (K, numbers), and the system's parameters (P,) or (R, P)."""
        with self._one:
            table, params = self._forward(*point)
        return table, params

    def moments(self, point: list[np.ndarray]) -> Arrays:
        """Means and standard deviations at the samples."""
        table, params = self.forward(point)
        mean, root = self.smoother.run(self.grid.path, self.smoother.unpack(table))
        scale = self.smoother.sizes(self.data.scale)[:, None]
        mean, root = mean * scale, root * scale
        place, rate, n_y = self.smoother.place, self.smoother.rate, len(self.system.g)
        columns = np.concatenate([place, self.smoother.processes, rate])
        observed = self._observed(params, mean[:, columns, 0])
        slopes = observed[:, n_y:].reshape(len(observed), n_y, -1)
        H = np.zeros((len(observed), n_y, mean.shape[1]))
        for s, component in enumerate([*place, *self.smoother.processes, *rate]):
            H[:, :, component] += slopes[:, :, s]
        width = root.shape[2]  # of a block
        parts = [H[:, :, i : i + width] @ root[:, i : i + width] for i in range(0, len(self.smoother.level), width)]
        std = np.sqrt(np.sum(root**2, axis=2) + np.sum(mean[..., 1:] ** 2, axis=2))
        driven = self._processes(params, mean[:, self.smoother.processes])
        return {
            "states": mean[:, place, 0],
            "states_std": std[:, place],
            "derivatives": mean[:, rate, 0],
            "derivatives_std": std[:, rate],
            "outputs": observed[:, :n_y],
            "outputs_std": np.sqrt(sum(np.sum(p**2, axis=2) for p in (*parts, H @ mean[..., 1:]))),
            **{name: value[..., 0] for name, value in driven.items()},
            **{f"{name}_std": np.sqrt(np.sum(value[..., 1:] ** 2, axis=2)) for name, value in driven.items()},
        }

    def starts(self, point: list[np.ndarray], first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Smoothed states (R, n_x) at the first samples of the records, and roots (R, n_x, free) of their covariances."""
        table, _ = self.forward(point)
        mean, _ = self.smoother.run(self.grid.path, self.smoother.unpack(table))
        place = self.smoother.place
        at = mean[first][:, place] * self.smoother.sizes(self.data.scale)[place][:, None]
        return at[..., 0], at[..., 1:]

    def smoothed(self, point: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Smoothed states and processes (T, n) at the samples, as particles have them, and their standard deviations."""
        table, _ = self.forward(point)
        mean, root = self.smoother.run(self.grid.path, self.smoother.unpack(table))
        places = np.concatenate([self.smoother.place, np.asarray(self.smoother.processes, dtype=int)[self.noise_last]])
        sizes = self.smoother.sizes(self.data.scale)[places]
        std = np.sqrt(np.sum(root[:, places] ** 2, axis=2) + np.sum(mean[:, places, 1:] ** 2, axis=2))
        return mean[:, places, 0] * sizes, std * sizes

    @cached_property
    def noise_last(self) -> np.ndarray:
        """Order of the states of all processes, in which those of the processes that are noise come last."""
        noisy = np.repeat([one.role == "noise" for one in self.system.latents], [one.kind.size for one in self.system.latents])
        return np.argsort(noisy, kind="stable")

    @cached_property
    def moving(self) -> Any:
        """Function of parameters and rows of ``t, u, x``, with the states of the processes: derivatives of the states."""
        params, samples, recurrence = self.params(), pt.dmatrix(), rates(self.system)
        none = np.empty((len(self.data.starts), 0)), np.minimum(self.data.counts, 0), np.empty((0, 0))
        return compiled([params, samples], recurrence(completed(self.system, params), *none, samples)[0])

    def followed(self, params: np.ndarray, z: np.ndarray) -> Arrays:
        """The results of a path of states and processes (T, n), as particles have them, by parameters (R, P)."""
        params = params if self.params.ndim == 2 else params[0]
        x, processes = np.split(z, [len(self.smoother.place)], axis=1)
        processes = processes[:, np.argsort(self.noise_last)]
        given = self.data.samples[:, : 1 + len(self.system.u)]
        speed = np.asarray(self.moving(params, np.concatenate([given, x, processes], axis=1)))
        return self._results(params, x, processes, speed)

    def path(self, point: list[np.ndarray], rng: np.random.Generator) -> Arrays:
        """Draw a path at the samples."""
        table, params = self.forward(point)
        last = self.grid.path.last
        start = rng.standard_normal((last.sum(), 0 if self.smoother.n_new else self.smoother.n_free))
        normal = rng.standard_normal((len(last), len(self.smoother.level) + self.smoother.n_new))
        mean, deviation = self.smoother.run(self.grid.path, self.smoother.unpack(table), normal)
        x = mean[..., 0] + np.einsum("tif,tf->ti", mean[..., 1:], start[self.record]) + deviation[..., 0]
        x = x * self.smoother.sizes(self.data.scale)
        place, processes, rate = self.smoother.place, self.smoother.processes, self.smoother.rate
        return self._results(params, x[:, place], x[:, processes], x[:, rate])

    def _results(self, params: np.ndarray, x: np.ndarray, processes: np.ndarray, rate: np.ndarray) -> Arrays:
        """States, derivatives, outputs and values of the processes along a path."""
        observed = self._observed(params, np.concatenate([x, processes, rate], axis=1))
        driven = self._processes(params, processes[..., None])
        return {
            "states": x,
            "derivatives": rate,
            "outputs": observed[:, : len(self.system.g)],
            **{name: value[..., 0] for name, value in driven.items()},
        }

    def _processes(self, params: np.ndarray, x: np.ndarray) -> Arrays:
        """Inputs, parameters and noise that are processes (T, n, columns), from the states of these; first column: the mean."""
        found: dict[str, list[np.ndarray]] = {}
        at, entry = 0, len(self.system.base.params)
        rows = params if params.ndim == 2 else params[None]
        which = self.record if params.ndim == 2 else np.zeros(len(x), dtype=int)  # row of each sample
        for one in self.system.latents:
            weights = np.array(
                [one.kind.value([float(v) for v in row[entry : entry + len(one.p)]]) for row in rows], dtype=float
            )
            value = np.einsum("tic,ti->tc", x[:, at : at + one.kind.size], weights[which])
            at, entry = at + one.kind.size, entry + len(one.p)
            if one.role == "parameter":
                value[:, 0] += rows[which, self.system.params.index(one.name)]
            found.setdefault("coloured_noise" if one.role == "noise" else f"{one.role}s", []).append(value)
        return {name: np.stack(values, axis=1) for name, values in found.items()}

    @property
    def record(self) -> np.ndarray:
        """Number of the record of each sample."""
        return np.cumsum(self.data.counts < 0)

    def _observed(self, params: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Outputs and their derivatives at states, states of the processes and derivatives ``x`` (T, n)."""
        given = self.data.samples[:, : 1 + len(self.system.u)]
        rows = np.concatenate([given, x], axis=1)
        with self._one:
            return np.asarray(self.observe(params, rows))

    def dataset(self, results: Arrays, coords: Mapping[str, Any]) -> xr.Dataset:
        """Label arrays of shape (chain, draw, T, m), and put the record beside them."""
        system, several = self.system, len(self.data.starts) > 1
        follower = {a: b for chain in system.kinematic_chains for a, b in pairwise(chain)}
        shown = {system.dx[s]: f"dx.{n}" for s, n in enumerate(system.states)}
        shown |= {system.dx[a]: system.states[b] for a, b in follower.items()}
        shown |= dict(zip(system.x, system.states, strict=True))
        variables: dict[str, Any] = {"measured": (("time", "output"), self.y)}
        for name, array in results.items():
            kind = name.removesuffix("_std").removesuffix("s")
            kind = {"derivative": "state", "coloured_noise": "coloured"}.get(kind, kind)
            variables[name] = (("chain", "draw", "time", kind), array)
        labels: dict[str, Any] = {
            "time": self.data.samples[:, 0],
            "state": list(system.states),
            "output": list(system.outputs),
            "shows": ("output", [shown.get(g, "") for g in system.g]),  # the state or derivative an output is
        }
        for role, dim in (("input", "input"), ("parameter", "parameter"), ("noise", "coloured")):
            if names := [one.name for one in system.latents if one.role == role]:
                labels[dim] = names
        if several:
            labels["record"] = ("time", self.record)
        for kind, entries in (("outputs", system.outputs), ("states", system.states)):
            for of in ("", "_std") if f"{kind}_std" in results else ("",):
                arrays = entries.variables(("chain", "draw", "time"), results[kind + of])
                vectors = {name + of: array for name, array in arrays.items() if entries.shapes[name]}
                variables = {k: v for k, v in vectors.items() if k not in labels} | variables
        found = xr.Dataset(variables, {**coords, **labels}, {"filter": self.name})
        return label_units(found, system.outputs, self.units)
