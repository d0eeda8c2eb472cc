"""Free runs of a system over records as the function of a ``pm.Simulator``, compiled where they stand in a graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.simulator import SimulatorRV
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.rewriting.basic import register_stabilize
from pytensor.tensor.type_other import NoneTypeT

from pm_sysid.distances import Distance, MeanDistance
from pm_sysid.simulation import run_batch
from pm_sysid.steps.inputs import FilterInputs
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence
from pm_sysid.substeps import SubstepWarning, checked_substeps, doubled_until
from pm_sysid.system import System
from pm_sysid.timeseries import TimeSeries

_log = logging.getLogger("pm_sysid")

type FloatArray = NDArray[np.float64]

#: Three quarters of the prior's runs may move by this normalised mean square (percent) when the substeps are doubled.
TOLERANCE = 0.01
#: Draws of the prior at which the substeps are judged.
LOOK = 32
#: Bytes of simulated records kept at a time.
KEEP_BYTES = 2**26


@dataclass(frozen=True, eq=False)
class Simulation:
    """The function of a ``pm.Simulator``: free runs of a system over records, joined along time."""

    system: System
    records: tuple[TimeSeries, ...]
    substeps: int
    distance: Distance
    flat: bool
    noisy: bool

    @cached_property
    def inputs(self) -> list[FilterInputs]:
        """What the Runge-Kutta steps read of each record."""
        return [rk4_inputs(record, self.substeps) for record in self.records]

    @property
    def edges(self) -> list[int]:
        """First sample of each record, and the number of all."""
        return [0, *accumulate(map(len, self.records))]

    def graph(self, rng: Variable, theta: Any, start: Any, noise: Any) -> tuple[Variable, Variable]:
        """Next generator and one simulation, of the shape of a draw, as expressions."""
        run, n_y = rk4_recurrence(self.system), len(self.system.outputs)
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
        runs = [run_batch(self.system, theta, start[:, r], i)[:, :, :n_y] for r, i in enumerate(self.inputs)]
        y = np.concatenate(runs, axis=1)
        return y + noise[:, None] * rng.standard_normal(y.shape) if self.noisy else y

    def distances(self, rng: np.random.Generator, observed: FloatArray, *values: FloatArray) -> FloatArray:
        """Distances (B,) of one simulation each, with the values that :meth:`draw` takes, from records (T, n_y)."""
        distance = self.distance
        if isinstance(distance, MeanDistance) and distance.measure.power == 2 and not self.noisy:
            # Squared errors are summed along the way: no trajectory is stored.
            theta, start, _ = values
            parts = zip(self.inputs, np.split(observed, self.edges[1:-1]), strict=True)
            sums = [run_batch(self.system, theta, start[:, r], i, y)[:, 0] for r, (i, y) in enumerate(parts)]
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


# -- substeps ---------------------------------------------------------------------------------------------------------


def choose_substeps(system: System, records: Sequence[TimeSeries], theta: Any, start: Any, substeps: Any) -> int:
    """Fewest substeps whose doubling hardly moves three quarters of the prior's runs; or the number asked for, checked.

    Draws of the prior and not the model's initial point: there, where all priors have their middle, regions and terms of the
    equations may vanish. Not all draws: a part of the prior is often chaotic, and no step size would do.
    """
    auto = (substeps := checked_substeps(substeps)) == "auto"
    if not system.states or all(len(r) < 2 for r in records):
        return 1 if auto else int(substeps)
    mode = pytensor.compile.mode.Mode(linker="py", optimizer=None)
    parameters, starts = (np.asarray(v, dtype=float) for v in pm.draw([theta, start], LOOK, random_seed=0, mode=mode))
    n_y = len(system.outputs)

    def runs(n: int) -> FloatArray:
        each = [run_batch(system, parameters, starts[:, r], rk4_inputs(record, n)) for r, record in enumerate(records)]
        return np.concatenate(each, axis=1)[:, :, :n_y]

    def moved(a: FloatArray, b: FloatArray) -> float:
        with np.errstate(all="ignore"):
            changes = np.max(100 * np.mean((a - b) ** 2, axis=1) / np.var(b, axis=1), axis=1)
        fine = np.isfinite(changes)
        return float(np.quantile(changes[fine], 0.75)) if fine.any() else 0.0

    if not auto:
        change = moved(runs(int(substeps)), runs(2 * int(substeps)))
        if not change < TOLERANCE:
            warnings.warn(
                f"substeps={substeps}: a quarter of the runs drawn from the prior move by a normalised mean square error of "
                f"{change:.2g} % or more when the substeps are doubled (it should be below {TOLERANCE}); use more, or 'auto'.",
                SubstepWarning,
                stacklevel=3,
            )
        return int(substeps)
    n, settled = doubled_until(runs, moved, TOLERANCE)
    if settled:
        _log.info("substeps='auto' chose %d Runge-Kutta steps a sample.", n)
        return n
    warnings.warn(
        f"substeps='auto': with {n} substeps a quarter of the runs drawn from the prior still move by a normalised mean square "
        f"error of more than {TOLERANCE} %; the system may be chaotic, stiff or not smooth.",
        SubstepWarning,
        stacklevel=3,
    )
    return n
