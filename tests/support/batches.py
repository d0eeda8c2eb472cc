"""Batches of particles to test with: cases, compiled functions, and single runs to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

import pm_sysid as sid
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.op import Recurrence
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.steps.ek import filter_recurrence
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence
from support.recurrences import ARGUMENTS, LINEAR, SYSTEMS, Case

BATCH = [t(n) for t, n in zip(
    [pt.dmatrix, pt.dtensor3, pt.dtensor3, pt.lvector, pt.lvector, pt.dmatrix, pt.dmatrix, pt.lscalar],
    ["params", "starts", "state", "edges", "counts", "substeps", "samples", "threads"], strict=True)]  # fmt: skip
PULLED = [*BATCH, pt.dtensor3("g_sums"), pt.dtensor3("g_final")]
PYTHON = pytensor.compile.mode.Mode(linker="py", optimizer="fast_run")
NONE = np.empty((0, 0, 0))


def pulled_batch(op: Recurrence, *inputs: Any) -> list[Any]:
    """Cotangents of parameters that all runs of a particle share, and of starts."""
    g_params, g_starts = BatchRecurrenceGradient(op)(*inputs)  # type: ignore[misc]
    return [g_params[:, 0], g_starts]


@cache
def compiled(op: Any) -> Any:
    inputs = {Recurrence: ARGUMENTS, BatchRecurrence: BATCH, BatchRecurrenceGradient: PULLED}[type(op)]
    return pytensor.function(inputs, op(*inputs))


class Particles(NamedTuple):
    """Parameter sets and starts of a recurrence, and the record they run over."""

    op: Recurrence
    params: np.ndarray
    starts: np.ndarray
    record: tuple[np.ndarray, ...]

    def run(self, edges: Any, state: np.ndarray = NONE, threads: int = 2) -> Any:
        return compiled(BatchRecurrence(self.op))(self.params, self.starts, state, edges, *self.record, threads)

    def pull(self, edges: Any, g: Sequence[np.ndarray], state: np.ndarray = NONE, threads: int = 2) -> Any:
        g_params, g_starts = compiled(BatchRecurrenceGradient(self.op))(
            self.params, self.starts, state, edges, *self.record, threads, *g
        )
        return [g_params.reshape(self.params.shape), g_starts]

    def pick(self, index: Any) -> Particles:
        return self._replace(params=self.params[index], starts=self.starts[index])

    def until(self, n: int) -> tuple[np.ndarray, ...]:
        counts, substeps, samples = self.record
        return counts[:n], substeps[: np.maximum(counts[:n], 0).sum()], samples[:n]

    def reached(self, n: int) -> int:
        """Number of runs that the first n samples start."""
        return 1 + int(np.sum(self.record[0][:n] < 0))

    @property
    def every(self) -> np.ndarray:
        return np.arange(len(self.record[0]) + 1)

    def singles(self) -> tuple[np.ndarray, np.ndarray]:
        runs = [compiled(self.op)(p, x, *self.record) for p, x in zip(self.params, self.starts, strict=True)]
        return np.stack([r[0] for r in runs]), np.stack([r[1] for r in runs])


def spread(case: Case, n: int) -> Particles:
    """Particles around a case, all different."""
    rng, (params, starts, *record) = np.random.default_rng(0), case.arrays
    around = params * np.exp(0.05 * rng.normal(size=(n, params.size)))
    return Particles(case.op, around, starts * (1 + 0.1 * rng.normal(size=(n, *starts.shape))), tuple(record))


@cache
def filter_case(name: str) -> Case:
    """Three uneven records with missing samples and an uncertain start, order 2."""
    system, values, _, intersample = SYSTEMS[name]
    rng, n_x, n_y, records = np.random.default_rng(5), len(system.states), len(system.g), []
    for length in (12, 7, 5):
        t, y = np.cumsum(rng.uniform(0.08, 0.12, length)), rng.normal(0.0, 0.2, (length, n_y))
        y[length // 2, 0] = np.nan
        records.append(sid.TimeSeries(t, rng.normal(size=length), y, intersample=intersample))
    covariance = "block" if name == "chains" else "dense"
    problem = Problem.build(system, sid.EK1(order=2, diffusion=1.0, covariance=covariance), records, (0,))
    data = problem.data(records, 2)
    theta = np.concatenate([list(values.values()), [0.7] * len(system.chain_states), [0.1] * n_y, data.scale])
    starts = np.concatenate([rng.normal(0, 0.3, (3, n_x)), np.full((3, n_x), 0.1), data.starts], axis=1)
    samples = np.concatenate([data.samples, np.concatenate([r.output_matrix for r in records])], axis=1)
    op = filter_recurrence(problem.system, replace(problem.form, rolled=name in ("loops", "chains")))
    return Case(op, (theta, starts, data.counts, data.substeps, samples))


@cache
def rk4_case() -> Case:
    system, values, *_ = SYSTEMS["bouc_wen"]
    inputs = rk4_inputs(sid.TimeSeries(np.arange(24) * 0.1, np.sin(np.arange(24)), None, intersample="foh"), 2)
    params = np.array(list(values.values()))
    return Case(rk4_recurrence(system), (params, np.full((1, 3), 0.2), inputs.counts, inputs.substeps, inputs.samples))


CASES = dict(
    duffing=lambda: filter_case("duffing"),
    bouc_wen=lambda: filter_case("bouc_wen"),
    rk4=rk4_case,
    linear=lambda: LINEAR,
    loops=lambda: filter_case("loops"),
    chains=lambda: filter_case("chains"),
)


def assert_close(got: Any, want: Any, rtol: float = 1e-10) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b[np.isfinite(b)]).max(initial=0.0))


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def cotangents(particles: Particles, edges: Sequence[int]) -> list[np.ndarray]:
    rng, B = np.random.default_rng(9), len(particles.params)
    shapes = (B, len(edges) - 1, particles.op.n_outputs), (B, particles.starts.shape[1], particles.op.n_carry)
    return [rng.normal(size=s) for s in shapes]


def long_linear(n: int, length: int) -> Particles:
    rng = np.random.default_rng(0)
    record = np.ones(length, int), rng.normal(size=(length, 1)), np.empty((length, 0))
    return Particles(LINEAR.op, rng.uniform(0.1, 0.9, (n, 2)), rng.normal(size=(n, 1, 2)), record)
