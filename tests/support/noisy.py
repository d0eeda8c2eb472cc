"""Dense reference for measurements that are not Gaussian, or whose noise is correlated: a textbook filter in 60 digits.

What a measurement says of an output with the moments N(m, P) is the derivative of its log-density by m, taken numerically. The
update is then that of a Gaussian measurement of the same first two derivatives, whatever its variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mpmath
import numpy as np

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.steps.sensors import farther, student_t
from pm_sysid.symbolic.scalars import evaluate
from support.dense import DIGITS, Equations, Exact, Linear, Setting, doubles, exact, limits, run, zeros

#: Log-density of a value for an output of mean m and variance P.
type Density = Callable[[Any, Any], Any]
#: The densities of a sample's outputs from its number and the expected outputs; None for a missing one.
type Sensing = Callable[[int, Exact], Sequence[Density | None]]


class Matched(NamedTuple):
    """Log-density (T, n_y), and mean (D,) and covariance (D, D) of the components after the last sample."""

    loglik: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


class Textbook:
    """Moments of a filter with covariances: mean affine in the initial state, which has a posterior of its own."""

    def __init__(self, linear: Linear, setting: Setting, record: TimeSeries, exact_rows: bool = True) -> None:
        self.equations, self.setting = Equations(linear, setting), setting
        e = self.equations
        self.rows = e.residual if exact_rows else e.pick(own=False)
        self.m, self.P = e.start(limits(record, 0, e.q)[1]), zeros(e.size, e.size)
        self.d, self.D = zeros(e.nx), np.diag(exact(setting.x0_std) ** 2)

    def on_substep(self, A: Exact, Q: Exact, forcing: Exact) -> None:
        m, P = A @ self.m, A @ self.P @ A.T + Q * self.equations.intensity(self.setting.diffusion)
        z = self.equations.residual @ m
        for c, chain in enumerate(self.equations.chains):
            z[c, 0] -= forcing[chain[-1]]
        S = self.rows @ P @ self.rows.T
        K = P @ self.rows.T @ np.array((mpmath.matrix(S.tolist()) ** -1).tolist(), dtype=object).reshape(S.shape)
        self.m, self.P = m - K @ z, P - K @ self.rows @ P

    def output(self, row: Exact) -> tuple[Any, Any]:
        """Mean and variance of an output."""
        lean = row @ self.m[:, 1:]
        return row @ self.m[:, 0] + lean @ self.d, row @ self.P @ row + lean @ self.D @ lean

    def see(self, row: Exact, value: Any, noise: Any) -> None:
        """Condition on a Gaussian measurement."""
        lean, own = row @ self.m[:, 1:], row @ self.P @ row
        total = own + lean @ self.D @ lean + noise
        gap = value - self.output(row)[0]
        affine = -(row @ self.m)
        affine[0] += value
        gain, toward = self.P @ row / (own + noise), self.D @ lean
        self.m, self.P = self.m + np.outer(gain, affine), self.P - np.outer(gain, gain) * (own + noise)
        self.d, self.D = self.d + toward * gap / total, self.D - np.outer(toward, toward) / total

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        lean = self.m[:, 1:]
        return doubles(self.m[:, 0] + lean @ self.d), doubles(self.P + lean @ self.D @ lean.T)


def matched(linear: Linear, setting: Setting, record: TimeSeries, sensing: Sensing, exact_rows: bool = True) -> Matched:
    """Every output by its first two moments, one after the other."""
    with mpmath.workdps(DIGITS):
        book = Textbook(linear, setting, record, exact_rows)
        rows = book.equations.rows
        loglik = np.zeros((len(record), len(rows)))

        def on_sample(k: int, jump: Exact) -> None:
            book.m[:, 0] += jump
            densities = sensing(k, np.array([book.output(row)[0] for row in rows]))
            for j, (row, density) in enumerate(zip(rows, densities, strict=True)):
                if density is None:
                    continue
                mean, spread = book.output(row)

                def log(m: Any, density: Density = density, spread: Any = spread) -> Any:
                    return density(m, spread)

                loglik[k, j] = float(log(mean))
                slope, bend = mpmath.diff(log, mean), -mpmath.diff(log, mean, 2)
                if abs(bend) * spread < 1e-40:  # says nothing: the update by 1 / bend has no digits left
                    continue
                book.see(row, mean + slope / bend, 1 / bend - spread)

        run(book.equations, record, book.on_substep, on_sample)
        return Matched(loglik, *book.moments())


def jointly(linear: Linear, setting: Setting, record: TimeSeries, covariance: np.ndarray) -> Matched:
    """All outputs of a sample at once, with correlated noise; the log-density of a sample stands at its first output."""
    with mpmath.workdps(DIGITS):
        book = Textbook(linear, setting, record)
        rows, y = book.equations.rows, record.output_matrix
        loglik = np.zeros(y.shape)

        def on_sample(k: int, jump: Exact) -> None:
            book.m[:, 0] += jump
            seen = np.flatnonzero(~np.isnan(y[k]))
            if not len(seen):
                return
            H, R = rows[seen], exact(np.asarray(covariance)[np.ix_(seen, seen)])
            lean = H @ book.m[:, 1:]
            gap = exact(y[k, seen]) - H @ book.m[:, 0] - lean @ book.d
            given = H @ book.P @ H.T + R
            total = given + lean @ book.D @ lean.T
            loglik[k, 0] = float(
                -(gap @ inverse(total) @ gap + mpmath.log(mpmath.det(mpmath.matrix((2 * mpmath.pi * total).tolist())))) / 2
            )
            gain, toward = book.P @ H.T @ inverse(given), book.D @ lean.T @ inverse(total)
            affine = -(H @ book.m)
            affine[:, 0] += exact(y[k, seen])
            book.m, book.P = book.m + gain @ affine, book.P - gain @ H @ book.P
            book.d, book.D = book.d + toward @ gap, book.D - toward @ lean @ book.D

        run(book.equations, record, book.on_substep, on_sample)
        return Matched(loglik, *book.moments())


def inverse(matrix: Exact) -> Exact:
    return np.array((mpmath.matrix(matrix.tolist()) ** -1).tolist(), dtype=object).reshape(matrix.shape)


def log_normal(gap: Any, variance: Any) -> Any:
    return -(mpmath.log(2 * mpmath.pi * variance) + gap * gap / variance) / 2


def censored(y: float, lower: float, upper: float, noise: Any) -> Density:
    """A value with Gaussian noise that is cut off at the limits."""

    def density(m: Any, spread: Any) -> Any:
        if lower < y < upper:
            return log_normal(y - m, spread + noise**2)
        gap = m - upper if y >= upper else lower - m
        return mpmath.log(mpmath.erfc(-gap / mpmath.sqrt(2 * (spread + noise**2))) / 2)

    return density


def heavy(y: float, noise: Any, nu: float) -> Density:
    """A value whose noise is the mixture that stands for a t distribution."""
    scales = student_t(nu)

    def density(m: Any, spread: Any) -> Any:
        more = farther(nu, float((y - m) ** 2 / noise**2), scales[0][-1], scales[1][-1])
        weights, factors = (exact(evaluate([*a, *b], {})) for a, b in zip(scales, more, strict=True))
        parts = [mpmath.exp(w + log_normal(y - m, spread + noise**2 * f)) for w, f in zip(weights, factors, strict=True)]
        return mpmath.log(sum(parts))

    return density
