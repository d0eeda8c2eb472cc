"""Predictors run over records: errors of every prediction, and their exact derivatives, in one compiled call."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.records.timeseries import InterSample, TimeSeries
from pm_sysid.recurrence.forward_mode import tangent_recurrence
from pm_sysid.recurrence.op import Recurrence
from pm_sysid.recurrence.run import compiled_batch
from pm_sysid.solve.filter_graph import Problem, RecordData, Unknowns
from pm_sysid.solve.options import Solver
from pm_sysid.steps.derived import completed, completed_rates, completed_sets
from pm_sysid.steps.ek import FLOOR, calibration_recurrence, filter_recurrence
from pm_sysid.steps.integrate import method_inputs
from pm_sysid.steps.kalman import KalmanForm, kalman_recurrence
from pm_sysid.symbolic.system import System

type Want = Literal["errors", "densities", "states"]


class Motion(NamedTuple):
    """Rates of change of parameters (B, P) and initial states (B, R, n_x) along each of B directions."""

    params: np.ndarray
    x0: np.ndarray

    @classmethod
    def none(cls, n_params: int, x0: np.ndarray) -> Motion:
        """No direction: values alone are wanted, which takes less to compile."""
        return cls(np.zeros((0, n_params)), np.zeros((0, *x0.shape)))


class Arrays(NamedTuple):
    """What a recurrence reads from the records."""

    counts: np.ndarray
    substeps: np.ndarray
    samples: np.ndarray


class Filter(ABC):
    """A predictor of a system on records.

    Its parameters are those of the system, then the entries of the noise roots: of the process (``n_process``) and of the
    measurement (``n_noise``).
    """

    system: System
    records: Sequence[TimeSeries]
    substeps: int
    n_process: int
    n_noise: int

    def run(self, params: np.ndarray, x0: np.ndarray, motion: Motion, want: Want) -> tuple[np.ndarray, np.ndarray]:
        """Outputs (T, n) of all records one after the other, and their rates of change (B, T, n).

        See :meth:`run_many` for ``want``.
        """
        values, rates = self.run_many(params[None], x0[None], motion, want)
        return values[0], rates[0]

    @abstractmethod
    def run_many(self, params: np.ndarray, x0: np.ndarray, motion: Motion, want: Want) -> tuple[np.ndarray, np.ndarray]:
        """Outputs (S, T, n) and rates of change (S, B, T, n) of S sets of parameters (S, P) and starts (S, R, n_x) at once.

        ``"errors"``: of each output's prediction from the samples before, zero where it is missing. ``"densities"``: errors
        given the outputs before at the same sample, then their variances. ``"states"``: errors, their standard deviations,
        means and standard deviations of the states given the sample too.
        """

    @abstractmethod
    def graph(self, params: Any, x0: Any, want: Want) -> tuple[Any, Any]:
        """Errors and variances (T, n_y) as differentiable expressions; of ``"errors"`` the latter mean nothing."""

    @abstractmethod
    def on(self, records: Sequence[TimeSeries], roots: np.ndarray) -> Filter:
        """The same predictor on other records, with roots of the covariance of their initial states."""


def tangents(
    recurrence: Recurrence, params: np.ndarray, starts: np.ndarray, motion: tuple[np.ndarray, np.ndarray], arrays: Arrays
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Outputs (S, T, n) and final carries (S, R, n) of a recurrence, each with its rates of change along B directions.

    For S sets of parameters (S, P) and starts (S, R, n), which move by ``motion``: (S, B, P) and (S, B, R, n).
    """
    moved, moved_starts = motion
    (S, B), edges = moved.shape[:2], np.arange(len(arrays.counts) + 1)
    if B == 0:
        outputs, final = compiled_batch(recurrence)(np.ascontiguousarray(params), np.ascontiguousarray(starts), edges, *arrays)
        return (outputs, np.empty((S, 0, *outputs.shape[1:]))), (final, np.empty((S, 0, *final.shape[1:])))
    both = np.concatenate([np.broadcast_to(params[:, None], moved.shape), moved], axis=-1)
    begin = np.concatenate([np.broadcast_to(starts[:, None], (S, B, *starts.shape[1:])), moved_starts], axis=-1)
    flat = both.reshape(S * B, -1), begin.reshape(S * B, *begin.shape[2:])
    outputs, final = (
        a.reshape(S, B, *a.shape[1:]) for a in compiled_batch(tangent_recurrence(recurrence))(*flat, edges, *arrays)
    )
    n, c = recurrence.n_outputs, recurrence.n_carry
    return (outputs[:, 0, :, :n], outputs[..., n:]), (final[:, 0, :, :c], final[..., c:])


def _completed(system: System, params: np.ndarray, moved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put what is derived from the parameters of a system after them: into sets (S, P) and rates of change (S, B, P)."""
    if not system.derived:
        return params, moved
    n = len(system.params)
    own, rates = params[:, :n], completed_rates(system, params[:, :n], moved[..., :n])
    return np.concatenate([completed_sets(system, own), params[:, n:]], axis=1), np.concatenate(
        [rates, moved[..., n:]], axis=-1
    )


def joined(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Arrays:
    """Records one after the other: a count of -1 starts the next."""
    counts = [np.concatenate([[-1], c[1:]]) if i else c for i, (c, _, _) in enumerate(parts)]
    return Arrays(np.concatenate(counts), np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts]))


def median_step(records: Sequence[TimeSeries]) -> float:
    """Median sampling interval in seconds."""
    steps = np.concatenate([r.ordinary_dt for r in records])
    return float(np.median(steps)) if steps.size else 1.0


class KalmanFilter(Filter):
    """An extended or unscented Kalman filter on records.

    Parameters
    ----------
    system, form, records, substeps
    roots : ndarray, shape (R, n_x, n_x)
        Lower triangular roots of the covariance of each initial state.
    interval : float, optional
        Seconds over which the process noise is what it is; by default the median sampling interval.
    """

    def __init__(
        self,
        system: System,
        form: KalmanForm,
        records: Sequence[TimeSeries],
        substeps: int,
        roots: np.ndarray,
        interval: float | None = None,
    ) -> None:
        self.system, self.form, self.records, self.substeps = system, form, records, substeps
        self.interval = median_step(records) if interval is None else interval
        n, m = len(system.states), len(system.outputs)
        self.n_process = 0 if form.certain else n * (n + 1) // 2 if form.full_process else n
        self.n_noise = m * (m + 1) // 2 if form.full_noise else m
        rows, columns = np.tril_indices(n)
        self.roots = np.empty((len(roots), 0)) if form.certain else roots[:, rows, columns]
        self.arrays = self._arrays()

    def _arrays(self) -> Arrays:
        """Inputs, lengths and outputs of all records."""
        parts = []
        for record in self.records:
            inputs = method_inputs(record, self.substeps, self.form.method)
            length = np.concatenate([[0.0], np.sqrt(record.dt / self.interval)])
            samples = np.concatenate([inputs.samples, length[:, None], record.output_matrix], axis=1)
            steps = inputs.substeps
            if self.form.drifting:
                per = inputs.counts[1:]
                steps = np.concatenate([steps, np.repeat(length[1:] / np.sqrt(np.maximum(per, 1)), per)[:, None]], axis=1)
            parts.append((inputs.counts, steps, samples))
        return joined(parts)

    def _recurrence(self, want: Want) -> Recurrence:
        return kalman_recurrence(self.system, self.form, want)

    def run_many(self, params: np.ndarray, x0: np.ndarray, motion: Motion, want: Want) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`Filter`."""
        S = len(params)
        starts = np.concatenate([x0, np.broadcast_to(self.roots, (S, *self.roots.shape))], axis=-1)
        still = np.zeros((len(motion.x0), *self.roots.shape))
        moved = motion.params, np.concatenate([motion.x0, still], axis=-1)
        rows = tuple(np.broadcast_to(m, (S, *m.shape)) for m in moved)
        params, moving = _completed(self.system, params, rows[0])
        return tangents(self._recurrence(want), params, starts, (moving, rows[1]), self.arrays)[0]

    def graph(self, params: Any, x0: Any, want: Want) -> tuple[Any, Any]:
        """See :class:`Filter`."""
        starts, n_p = pt.concatenate([x0, self.roots], axis=1), len(self.system.params)
        params = pt.concatenate([completed(self.system, params[:n_p]), params[n_p:]])
        outputs, _ = self._recurrence(want)(params, starts, *self.arrays)
        m = len(self.system.outputs)
        return outputs[:, :m], outputs[:, -m:]

    def with_sigma_points(self, sigma: tuple[float, float, float]) -> KalmanFilter:
        """The same predictor by sigma points (alpha, beta, kappa) in the place of a linearisation."""
        other = copy(self)
        other.form = replace(self.form, sigma=sigma)
        return other

    def with_system(self, system: System) -> KalmanFilter:
        """The same predictor of a system with the same states and outputs."""
        other = copy(self)
        other.system = system
        return other

    def with_inputs(self, intersample: InterSample) -> KalmanFilter:
        """The same predictor on records whose inputs move between samples in another way."""
        other = copy(self)
        other.records = [r.replace(intersample=intersample) for r in self.records]
        other.arrays = other._arrays()
        return other

    def with_later_inputs(self, samples: int) -> KalmanFilter:
        """The same predictor on records whose inputs act later by so many samples, or earlier; they were, or stay, constant."""
        other = copy(self)
        other.records = []
        for r in self.records:
            places = np.arange(len(r)) - samples
            later = r.input_matrix[places % len(r) if r.periodic else np.clip(places, 0, len(r) - 1)]
            other.records.append(r.replace(u=later[:, 0] if r.u is not None and r.u.ndim == 1 else later))
        other.arrays = other._arrays()
        return other

    def with_outputs(self, y: np.ndarray) -> KalmanFilter:
        """The same predictor on other measurements (T, n_y), in place of those there were."""
        other, samples = copy(self), self.arrays.samples.copy()
        samples[:, -y.shape[1] :] = y
        other.arrays = self.arrays._replace(samples=samples)
        return other

    def on(self, records: Sequence[TimeSeries], roots: np.ndarray) -> KalmanFilter:
        """See :class:`Filter`."""
        substeps = max(1, math.ceil(self.substeps * median_step(records) / self.interval * (1 - 1e-9)))
        return KalmanFilter(self.system, self.form, records, substeps, roots, self.interval)


class ProbabilisticFilter(Filter):
    """The probabilistic ODE filter on records.

    Relations of the system are left out, since the initial state that is fitted need not obey them.

    Parameters
    ----------
    system, solver, records, substeps
    std : ndarray, shape (R, n_x)
        Standard deviations of each initial state.
    """

    def __init__(self, system: System, solver: Solver, records: Sequence[TimeSeries], substeps: int, std: np.ndarray) -> None:
        system = system.without_relations
        self.system, self.solver, self.records, self.substeps = system, solver, records, substeps
        self.n_process, self.n_noise = 0, len(system.outputs)
        free = tuple(int(i) for i in np.flatnonzero(std.any(axis=0)))
        self.problem = Problem.build(system, solver, records, free)
        self.std = std
        self.data: RecordData = self.problem.data(records, substeps)
        y = np.concatenate([r.output_matrix for r in records])
        self.measured = ~np.isnan(y)
        self.arrays = Arrays(self.data.counts, self.data.substeps, np.concatenate([self.data.samples, y], axis=1))
        given = solver.diffusions(system)
        if given is not None and any(isinstance(v, Variable) for v in given):
            raise ValueError("diffusion holds a PyMC variable, but a fit has no model; give numbers, 'mle' or 'dynamic'.")
        self.fixed = np.ones(len(system.chain_states)) if given is None else np.array(given, dtype=float)

    def run_many(self, params: np.ndarray, x0: np.ndarray, motion: Motion, want: Want) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`Filter`."""
        S, n_p = len(params), len(self.system.params)
        p, noise = params[:, :n_p], params[:, n_p:]
        diffusion, d_diffusion = self._diffusion(p, x0, motion)
        scale = self.data.scale
        still = np.zeros((S, len(motion.params), scale.size))
        theta = np.concatenate([p, diffusion, noise, np.broadcast_to(scale, (S, scale.size))], axis=1)
        moving = np.broadcast_to(motion.params, (S, *motion.params.shape))
        moved = np.concatenate([moving[..., :n_p], d_diffusion, moving[..., n_p:], still], axis=-1)
        theta, moved = _completed(self.system, theta, moved)
        begin, moved_begin = self._starts(x0, motion, self.std)

        def outputs(kind: Literal["innovations", "moments"]) -> tuple[np.ndarray, np.ndarray]:
            recurrence = filter_recurrence(self.system, self.problem.form, kind)
            return tangents(recurrence, theta, begin, (moved, moved_begin), self.arrays)[0]

        values, rates = outputs("innovations")
        missing = ~self.measured
        e, std = np.where(missing, 0.0, values[..., 0::2]), values[..., 1::2]
        d_e, d_std = np.where(missing, 0.0, rates[..., 0::2]), rates[..., 1::2]
        if want == "errors":
            return e, d_e
        if want == "densities":
            return np.concatenate([e, std**2], axis=-1), np.concatenate([d_e, 2 * std[:, None] * d_std], axis=-1)
        means, spreads = self._states(*outputs("moments"))
        return (
            np.concatenate([e, std, means[0], spreads[0]], axis=-1),
            np.concatenate([d_e, d_std, means[1], spreads[1]], axis=-1),
        )

    def _states(self, values: np.ndarray, rates: np.ndarray) -> tuple[Any, Any]:
        """Means and standard deviations of the states out of those of all components, with their rates."""
        steps, at = self.problem.steps, 0
        columns: dict[tuple[int, int], int] = {}
        variances: dict[tuple[int, int], int] = {}
        parts = [steps.components(b) for b in range(len(steps.blocks))]
        total = sum(len(p) for p in parts)
        for block in parts:
            for i, (k, c) in enumerate(block):
                columns[c, k] = len(columns)
                variances[c, k] = total + at + i * (len(block) + 1)
            at += len(block) ** 2
        mean = [columns[steps.place[s]] for s in range(len(self.system.states))]
        variance = [variances[steps.place[s]] for s in range(len(self.system.states))]
        std = np.sqrt(np.maximum(values[..., variance], 0.0))
        d_std = 0.5 * rates[..., variance] / np.where(std > 0, std, 1.0)[:, None]
        return (values[..., mean], rates[..., mean]), (std, d_std)

    def _starts(self, x0: np.ndarray, motion: Motion, std: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rest = np.concatenate([std, self.data.starts], axis=1)
        begin = np.concatenate([x0, np.broadcast_to(rest, (len(x0), *rest.shape))], axis=-1)
        moving = np.concatenate([motion.x0, np.zeros((len(motion.x0), *rest.shape))], axis=-1)
        return begin, np.broadcast_to(moving, (len(x0), *moving.shape))

    def _diffusion(self, p: np.ndarray, x0: np.ndarray, motion: Motion) -> tuple[np.ndarray, np.ndarray]:
        """Diffusion of each chain and its rates of change; Eq. 19 of Longbottom et al. where it is calibrated."""
        S, n, B = len(p), len(self.fixed), len(motion.params)
        if not self.problem.calibrated:
            return np.broadcast_to(self.fixed, (S, n)), np.zeros((S, B, n))
        rest = np.concatenate([np.ones(n + len(self.system.g)), self.data.scale])
        theta = np.concatenate([p, np.broadcast_to(rest, (S, rest.size))], axis=1)
        moving = np.concatenate([motion.params[:, : p.shape[1]], np.zeros((B, rest.size))], axis=1)
        theta, moved = _completed(self.system, theta, np.broadcast_to(moving, (S, *moving.shape)))
        arrays = self.arrays._replace(samples=self.data.samples)
        recurrence = calibration_recurrence(self.system, self.problem.form)
        starts = self._starts(x0, motion, np.zeros_like(self.std))
        _, (final, d_final) = tangents(recurrence, theta, starts[0], (moved, starts[1]), arrays)
        count = max(len(self.data.substeps), 1)
        diffusion = np.sqrt(final[..., -n:].sum(axis=1) / count + FLOOR**2)
        return diffusion, d_final[..., -n:].sum(axis=2) / (2 * count * diffusion[:, None])

    def graph(self, params: Any, x0: Any, want: Want) -> tuple[Any, Any]:
        """See :class:`Filter`."""
        n_p = len(self.system.params)
        unknowns = Unknowns(params[:n_p], x0, self.std, params[n_p:], self.fixed)
        y = np.concatenate([r.output_matrix for r in self.records])
        outputs, _ = self.problem.run(y, unknowns, self.data, "innovations")
        return pt.switch(self.measured, outputs[:, 0::2], 0.0), outputs[:, 1::2] ** 2

    def on(self, records: Sequence[TimeSeries], roots: np.ndarray) -> ProbabilisticFilter:
        """See :class:`Filter`."""
        std = np.sqrt(np.sum(roots**2, axis=2))
        return ProbabilisticFilter(self.system, self.solver, records, self.substeps, std)
