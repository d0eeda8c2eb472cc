"""What is minimised: mean squared innovation, or Gaussian negative log-likelihood; with exact derivatives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from pm_sysid.pem.filters import Filter, Motion, Want

type ObjectiveName = Literal["mse", "likelihood"]

#: Numbers that a batch of points may hold at once.
LARGEST = 3e7


@dataclass(frozen=True)
class Layout:
    """Where unknowns stand among the parameters of a filter and its initial states.

    ``params[slots] = x[sources]`` and ``x0[x0_slots] = x[x0_sources]``; the rest are constants. ``positive`` marks standard
    deviations, which are searched for in logarithms.
    """

    names: tuple[str, ...]
    params: np.ndarray
    slots: np.ndarray
    sources: np.ndarray
    x0: np.ndarray
    x0_slots: tuple[np.ndarray, np.ndarray]
    x0_sources: np.ndarray
    positive: np.ndarray

    def place(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Parameters (P,) of the filter and initial states (R, n_x)."""
        params, x0 = self.params.copy(), self.x0.copy()
        params[self.slots] = x[self.sources]
        x0[self.x0_slots] = x[self.x0_sources]
        return params, x0

    @cached_property
    def initial(self) -> np.ndarray:
        """Marks (k,) unknowns that are initial states and no parameters."""
        k = np.arange(len(self.names))
        return np.isin(k, self.x0_sources) & ~np.isin(k, self.sources)

    @cached_property
    def motion(self) -> Motion:
        """A direction for each unknown."""
        k = len(self.names)
        params, x0 = np.zeros((k, self.params.size)), np.zeros((k, *self.x0.shape))
        params[self.sources, self.slots] = 1.0
        x0[self.x0_sources, *self.x0_slots] = 1.0
        return Motion(params, x0)

    def without_noise(self, params: np.ndarray, x0: np.ndarray) -> Layout:
        """Of the unknowns that are no standard deviations; everything else as given."""
        rest = np.flatnonzero(~self.positive)
        kept = ~self.positive[self.sources]
        return Layout(
            tuple(self.names[i] for i in rest),
            params,
            self.slots[kept],
            np.searchsorted(rest, self.sources[kept]),
            x0,
            self.x0_slots,
            np.searchsorted(rest, self.x0_sources),
            np.zeros(rest.size, dtype=bool),
        )


class Evaluation(NamedTuple):
    """An objective at a point.

    ``value``, its ``gradient`` (k,) and expected ``information`` (k, k), which for least squares is that of Gauss and Newton
    on the same scale; and the ``residuals`` (N,) with ``jacobian`` (N, k) of least squares (empty for a likelihood).
    """

    value: float
    gradient: np.ndarray
    information: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray

    @property
    def finite(self) -> bool:
        """Whether the point is possible."""
        return bool(np.isfinite(self.value) and np.isfinite(self.jacobian).all() and np.isfinite(self.information).all())


class Objective(ABC):
    """What is minimised over the unknowns of a layout.

    ``measured`` (T, n_y) marks the values that there are, and ``count`` is the number of samples with one or more. ``want``
    is what it reads of the filter.
    """

    want: Want

    def __init__(self, filter: Filter, layout: Layout) -> None:
        self.filter, self.layout = filter, layout
        y = np.concatenate([r.output_matrix for r in filter.records])
        self.measured = ~np.isnan(y)
        self.count = int(self.measured.any(axis=1).sum())

    def evaluate(self, x: np.ndarray) -> Evaluation:
        """Evaluate with all derivatives."""
        with np.errstate(all="ignore"):
            values, rates = self.filter.run(*self.layout.place(x), self.layout.motion, self.want)
            return self.of(values, rates)

    def evaluate_many(self, points: np.ndarray) -> list[Evaluation]:
        """Evaluate points (S, k) with all derivatives, in one batch as far as memory goes."""
        motion, rows = self.layout.motion, []
        per = max(1, int(LARGEST / (max(len(motion.params), 1) * self.measured.size * 4)))
        with np.errstate(all="ignore"):
            for some in np.array_split(points, range(per, len(points), per)):
                values, rates = self._run_many(some, motion)
                rows += [self.of(v, r) for v, r in zip(values, rates, strict=True)]
        return rows

    def values(self, points: np.ndarray) -> np.ndarray:
        """Objective (S,) at points (S, k); infinite where it is impossible."""
        with np.errstate(all="ignore"):
            found = [self.of(v, np.zeros((1, *v.shape))).value for v in self.outputs(points)]
        return np.where(np.isfinite(found), found, np.inf)

    def outputs(self, points: np.ndarray) -> np.ndarray:
        """What the filter gives (S, T, n) at points (S, k).

        By one direction that does not move: what has been compiled for derivatives serves, and as many points as fit into a
        vector cost as much as one.
        """
        params, x0 = self.layout.place(points[0])
        still = Motion(np.zeros((1, params.size)), np.zeros((1, *x0.shape)))
        per = max(1, int(LARGEST / (self.measured.size * 4)))
        with np.errstate(all="ignore"):
            return np.concatenate([self._run_many(s, still)[0] for s in np.array_split(points, range(per, len(points), per))])

    def _run_many(self, points: np.ndarray, motion: Motion) -> tuple[np.ndarray, np.ndarray]:
        placed = [self.layout.place(x) for x in points]
        return self.filter.run_many(np.array([p for p, _ in placed]), np.array([x0 for _, x0 in placed]), motion, self.want)

    @abstractmethod
    def of(self, values: np.ndarray, rates: np.ndarray) -> Evaluation:
        """Objective from the filter's outputs (T, n) and their rates of change (k, T, n)."""

    @abstractmethod
    def covariance(self, evaluation: Evaluation, free: np.ndarray) -> np.ndarray:
        """Covariance (f, f) of the unknowns marked ``free`` at an optimum."""


class SquaredErrors(Objective):
    """Mean squared innovation, ``1/N sum_k e[k]' e[k]`` with N the number of samples at which something was measured."""

    want: Want = "errors"

    @cached_property
    def of_zero(self) -> float:
        """What predictions of zero would leave; one where there is nothing to predict."""
        y = np.concatenate([r.output_matrix for r in self.filter.records])
        return float(np.sum(y[self.measured] ** 2)) / max(self.count, 1) or 1.0

    def of(self, values: np.ndarray, rates: np.ndarray) -> Evaluation:
        """See :class:`Objective`."""
        e = values[self.measured]
        jacobian = np.ascontiguousarray(rates[:, self.measured].T)
        value = float(e @ e) / self.count
        return Evaluation(value, 2 / self.count * jacobian.T @ e, 2 / self.count * jacobian.T @ jacobian, e, jacobian)

    def covariance(self, evaluation: Evaluation, free: np.ndarray) -> np.ndarray:
        """Gauss-Markov covariance for innovations that are white in time.

        ``(J'J)^-1 (sum_k J_k' S J_k) (J'J)^-1`` with S the covariance of the outputs' innovations as the record shows it; for
        one output the familiar ``s^2 (J'J)^-1``.
        """
        jacobian = evaluation.jacobian[:, free]
        size = np.linalg.norm(jacobian, axis=0)  # unknowns may differ by many orders
        pseudo = np.linalg.pinv(jacobian / size, rcond=1e-12) / size[:, None]
        m = self.measured.shape[1]
        errors, rows = np.zeros(self.measured.shape), np.zeros((*self.measured.shape, pseudo.shape[0]))
        errors[self.measured], rows[self.measured] = evaluation.residuals, pseudo.T
        pairs = self.measured.T.astype(float) @ self.measured
        per_output = pseudo.shape[0] / m  # unknowns that each output's errors have been fitted by
        spread = errors.T @ errors / np.maximum(pairs - per_output, 1.0)
        return np.asarray(np.einsum("tia,ij,tjb->ab", rows, spread, rows, optimize=True))


class LogLikelihood(Objective):
    """Gaussian negative log-likelihood of the innovations, ``1/2 sum_k (log 2 pi s_k + e_k^2 / s_k)``.

    Innovations are those of single outputs given all before, so that their variances are numbers.
    """

    want: Want = "densities"

    def of(self, values: np.ndarray, rates: np.ndarray) -> Evaluation:
        """See :class:`Objective`."""
        m = self.measured.shape[1]
        e, s = values[:, :m][self.measured], values[:, m:][self.measured]
        d_e, d_s = rates[..., :m][:, self.measured], rates[..., m:][:, self.measured]
        value = 0.5 * float(np.sum(np.log(2 * np.pi * s) + e**2 / s)) if np.all(s > 0) else np.nan
        gradient = d_e @ (e / s) + 0.5 * d_s @ ((1.0 - e**2 / s) / s)
        scaled, relative = d_e / np.sqrt(s), d_s / s
        information = scaled @ scaled.T + 0.5 * relative @ relative.T
        return Evaluation(value, gradient, information, np.empty(0), np.empty((0, len(rates))))

    def covariance(self, evaluation: Evaluation, free: np.ndarray) -> np.ndarray:
        """Inverse of the expected information, ``sum_k de_k de_k' / s_k + ds_k ds_k' / (2 s_k^2)``.

        Estimated noise is smaller than the true one by what the other unknowns have taken of it: with N measured values and k
        of those, the inverse is multiplied by ``N / (N - k)``.
        """
        information = evaluation.information[np.ix_(free, free)]
        scale = 1.0 / np.sqrt(np.diag(information))
        inverse: np.ndarray = scale[:, None] * np.linalg.pinv(information * np.outer(scale, scale), hermitian=True) * scale
        return inverse * self.enlarged(free) ** 2

    def enlarged(self, free: np.ndarray) -> float:
        """By how much standard errors are larger because the estimated noise is too small."""
        N, taken = int(self.measured.sum()), int(np.sum(free & ~self.layout.positive))
        estimated = bool(np.any(free & self.layout.positive))
        return float(np.sqrt(N / max(N - taken, 1))) if estimated else 1.0
