"""A textbook filter in 60 digits for linear systems with a process for an input and whatever goes with it.

Means are affine in what is unknown: the initial state, the path of the process, and the noise of the first output where it is
coloured. Measurements alone are evidence on these, by a Gaussian update with the first two derivatives of their log-densities.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mpmath
import numpy as np

from pm_sysid.records.timeseries import TimeSeries
from support.dense import DIGITS, Equations, Exact, Linear, Setting, doubles, exact, limits, run, zeros
from support.driven import Path, Prior, path_of, walk
from support.noisy import Density, Sensing, inverse, log_normal


class Combined(NamedTuple):
    """Log-density (T, n_y); mean (D,) and covariance (D, D) after the last sample; squared diffusion of each substep.

    ``total`` is the sum of the log-densities with all its digits.
    """

    loglik: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    intensities: list[Exact]
    total: Any


class Book:
    """Moments of the filter; with ``setting.diffusion`` None each substep has the diffusion that its residual asks for.

    ``own_chain`` is the block form: the gain of a chain sees its own states, and what two chains have in common is dropped.
    """

    def __init__(
        self,
        linear: Linear,
        setting: Setting,
        record: TimeSeries,
        prior: Prior | None,
        *,
        colour: Prior | None = None,
        own_chain: bool = False,
    ) -> None:
        self.equations, self.setting = Equations(linear, setting), setting
        e, T = self.equations, len(record)
        path = path_of(linear, setting, record, prior) if prior else self._start(record)
        self.rows = e.pick(own=True) if own_chain else e.residual
        chain = np.arange(e.size) % e.nc
        self.mask = exact(chain[:, None] == chain) if own_chain else exact(np.ones((e.size, e.size)))
        self.push, self.first = exact(linear.B)[:, -1] if prior else None, 1 + e.nx + path.n_start
        w, extra = len(path.covariance), T if colour else 0
        self.noise_from = 1 + w
        self.m, self.P = np.concatenate([path.start, zeros(e.size, extra)], axis=1), zeros(e.size, e.size)
        self.d, self.D = zeros(w + extra), zeros(w + extra, w + extra)
        self.D[:w, :w] = path.covariance
        self.coloured = colour is not None
        for a in range(extra):
            for b in range(extra):
                lag = abs(mpmath.mpf(float(record.t[a])) - mpmath.mpf(float(record.t[b])))
                self.D[w + a, w + b] = colour.covariance(0, mpmath.mpf(0), 0, lag)  # type: ignore[union-attr]
        self.step, self.intensities = 0, []  # type: int, list[Exact]

    def _start(self, record: TimeSeries) -> Path:
        """What is unknown without a process: the initial state."""
        spread = np.diag(exact(self.setting.x0_std) ** 2)
        return Path(spread, self.equations.start(limits(record, 0, self.equations.q)[1]), 0)

    def on_substep(self, A: Exact, Q: Exact, forcing: Exact) -> None:
        e = self.equations
        m = A @ self.m
        z = e.residual @ m
        for c, chain in enumerate(e.chains):
            z[c, 0] -= forcing[chain[-1]]
            if self.push is not None:
                z[c, self.first + self.step] -= self.push[chain[-1]]
        if self.setting.diffusion is None:
            middle, lean, own = z[:, 0] + z[:, 1:] @ self.d, z[:, 1:], e.pick(own=True)
            squares = [middle[c] ** 2 + lean[c] @ self.D @ lean[c] for c in range(e.nc)]
            g2 = np.array([squares[c] / (own[c] @ Q @ own[c]) for c in range(e.nc)], dtype=object)
        else:
            g2 = np.array([g * g for g in exact(self.setting.diffusion)], dtype=object)
        self.intensities.append(g2)
        P = A @ self.P @ A.T + Q * e.intensity(g2)
        K = P @ self.rows.T @ inverse(self.rows @ P @ self.rows.T)
        self.m, self.P, self.step = m - K @ z, (P - K @ self.rows @ P) * self.mask, self.step + 1

    def see(self, k: int, j: int, density: Density) -> Any:
        """Condition on output j of sample k, and say how likely it was."""
        row = self.equations.rows[j]
        affine = row @ self.m
        if self.coloured and j == 0:
            affine[self.noise_from + k] += 1
        own, lean = row @ self.P @ row, affine[1:]
        mean, spread = affine[0] + lean @ self.d, own + lean @ self.D @ lean

        def log(at: Any) -> Any:
            return density(at, spread)

        slope, bend = mpmath.diff(log, mean), -mpmath.diff(log, mean, 2)
        noise = 1 / bend - spread
        gap = -affine
        gap[0] += mean + slope / bend
        gain, toward = self.P @ row / (own + noise), self.D @ lean
        self.m = self.m + np.outer(gain, gap)
        self.P = (self.P - np.outer(gain, gain) * (own + noise)) * self.mask
        self.d, self.D = self.d + toward * slope, self.D - np.outer(toward, toward) * bend
        return log(mean)


def combined(
    linear: Linear, setting: Setting, record: TimeSeries, prior: Prior | None, sensing: Sensing | None = None, **options: Any
) -> Combined:
    """Every output of a record that lacks the last input of the system (with a prior); by default with Gaussian noise."""
    y = record.output_matrix
    with mpmath.workdps(DIGITS):
        book = Book(linear, setting, record, prior, **options)
        loglik, total = np.zeros(y.shape), mpmath.mpf(0)

        def gaussian(k: int, j: int) -> Density:
            return lambda m, spread: log_normal(y[k, j] - m, spread + mpmath.mpf(setting.noise[j]) ** 2)

        def on_sample(k: int, jump: Exact) -> None:
            nonlocal total
            book.m[:, 0] += jump
            densities = sensing(k, zeros(0)) if sensing else [gaussian(k, j) for j in range(y.shape[1])]
            for j in np.flatnonzero(~np.isnan(y[k])):
                density = densities[j]
                assert density is not None
                found = book.see(k, int(j), density)
                loglik[k, j], total = float(found), total + found

        visit = walk if prior else run
        visit(book.equations, record, book.on_substep, on_sample)
        lean = book.m[:, 1:]
        mean, covariance = book.m[:, 0] + lean @ book.d, book.P + lean @ book.D @ lean.T
        return Combined(loglik, doubles(mean), doubles(covariance), book.intensities, total)
