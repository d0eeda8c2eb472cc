"""Free runs of a system over records as the function of a ``pm.Simulator``, compiled where they stand in a graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph import node_rewriter
from pytensor.graph.basic import Variable

from pm_sysid.compat import NoneTypeT, SimulatorRV, register_stabilize
from pm_sysid.likelihood.distances import Distance, MeanDistance
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.steps.derived import completed
from pm_sysid.steps.grid import FilterInputs, StepGrid
from pm_sysid.steps.integrate import Method, method_inputs, run_batch, run_recurrence
from pm_sysid.symbolic.system import System

type FloatArray = NDArray[np.float64]

#: Bytes of simulated records kept at a time.
KEEP_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class Simulation:
    """The function of a ``pm.Simulator``: free runs of a system over records, joined along time."""

    system: System
    records: tuple[TimeSeries, ...]
    substeps: tuple[int | StepGrid, ...]
    distance: Distance
    flat: bool
    noisy: bool
    method: Method = "rk4"

    @cached_property
    def inputs(self) -> list[FilterInputs]:
        """What the steps read of each record."""
        steps = zip(self.records, self.substeps, strict=True)
        return [method_inputs(record, n, self.method) for record, n in steps]

    @property
    def edges(self) -> list[int]:
        """First sample of each record, and the number of all."""
        return [0, *accumulate(map(len, self.records))]

    def graph(self, rng: Variable, theta: Any, start: Any, noise: Any) -> tuple[Variable, Variable]:
        """Next generator and one simulation, of the shape of a draw, as expressions."""
        run, n_y = run_recurrence(self.system, self.method), len(self.system.outputs)
        theta = completed(self.system, theta)
        y = pt.concatenate(
            [run(theta, start[r : r + 1], i.counts, i.substeps, i.samples)[0][:, :n_y] for r, i in enumerate(self.inputs)]
        )
        if self.noisy:
            rng, normal = pt.random.normal(0.0, 1.0, size=y.shape, rng=rng, return_next_rng=True)
            y = y + noise * normal
        return rng, y[:, 0] if self.flat else y

    def draw(self, rng: np.random.Generator, theta: FloatArray, start: FloatArray, noise: FloatArray) -> FloatArray:
        """Simulations (B, T, n_y) for parameters (B, P), initial states (B, R, n_x) and noise (B, n_y)."""
        n_y = len(self.system.outputs)
        each = (run_batch(self.system, theta, start[:, r], i, method=self.method) for r, i in enumerate(self.inputs))
        runs = [run[:, :, :n_y] for run in each]
        y = np.concatenate(runs, axis=1)
        return y + noise[:, None] * rng.standard_normal(y.shape) if self.noisy else y

    def distances(self, rng: np.random.Generator, observed: FloatArray, *values: FloatArray) -> FloatArray:
        """Distances (B,) of one simulation each, with the values that :meth:`draw` takes, from records (T, n_y)."""
        distance = self.distance
        if isinstance(distance, MeanDistance) and distance.measure.power == 2 and not self.noisy:
            # Squared errors are summed along the way: no trajectory is stored.
            theta, start, _ = values
            parts = zip(self.inputs, np.split(observed, self.edges[1:-1]), strict=True)
            sums = [run_batch(self.system, theta, start[:, r], i, y, self.method)[:, 0] for r, (i, y) in enumerate(parts)]
            result: FloatArray = distance.of_squares(observed, [sums[c.record][:, c.column] for c in distance.channels])
            return result
        block = max(16, KEEP_BYTES // (8 * len(observed) * (len(self.system.outputs) + len(self.system.states))))
        starts = range(0, len(values[0]), block)
        return np.concatenate([distance(observed, self.draw(rng, *(v[i : i + block] for v in values))) for i in starts])

    def __call__(self, rng: np.random.Generator, theta: Any, start: Any, noise: Any, time: Any, size: Any = None) -> Any:
        """Draw simulations (*size, T) or (*size, T, n_y): a ``pm.Simulator`` whose graph is not compiled calls this."""
        core = (1, 2, 1)
        arrays = [np.asarray(v, dtype=float) for v in (theta, start, noise)]
        shapes = [a.shape[: a.ndim - n] for a, n in zip(arrays, core, strict=True)]
        shape = np.broadcast_shapes(*shapes, () if size is None else tuple(size))
        full = [np.broadcast_to(a, shape + a.shape[a.ndim - n :]) for a, n in zip(arrays, core, strict=True)]
        flat = [np.ascontiguousarray(a.reshape(-1, *a.shape[len(shape) :])) for a in full]
        y = self.draw(rng, *flat)
        y = y[:, :, 0] if self.flat else y
        return y.reshape(*shape, *y.shape[1:])


@register_stabilize("pm_sysid_simulation")
@node_rewriter([SimulatorRV])
def local_compiled_simulation(fgraph: Any, node: Any) -> Any:
    """Put the system's recurrence in the place of a simulator, which would be called as a Python function."""
    simulation = node.op.fn
    if not isinstance(simulation, Simulation):
        return None
    rng, size, theta, start, noise, _ = node.inputs
    single = isinstance(size.type, NoneTypeT) or size.type.shape == (0,)
    if not single or (theta.type.ndim, start.type.ndim, noise.type.ndim) != (1, 2, 1):
        return None
    return list(simulation.graph(rng, theta, start, noise))
