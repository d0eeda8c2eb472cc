"""Kalman filters in plain covariance form, to compare with: NumPy, one sample after the other, complex-step derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import pm_sysid as sid

type Function = Callable[..., np.ndarray]  # of t, x, u, p


class Plant(NamedTuple):
    """A system, the same equations for NumPy, and parameters."""

    system: sid.System
    f: Function
    g: Function
    p: dict[str, float]

    @property
    def theta(self) -> np.ndarray:
        return np.array(list(self.p.values()))


class Trace(NamedTuple):
    """What a filter says at each sample: errors, their covariances, filtered means and covariances."""

    errors: np.ndarray
    S: np.ndarray
    x: np.ndarray
    P: np.ndarray


def duffing_f(t: Any, x: Any, u: Any, p: Any) -> Any:
    m, c, k, k3 = p
    return np.array([x[1], (u[0] - c * x[1] - k * x[0] - k3 * x[0] ** 3) / m])


#: Displacement and acceleration of a Duffing oscillator.
DUFFING = Plant(
    sid.System(
        lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3) / p.m),
        states=("z", "v"),
        inputs=("F",),
        params=("m", "c", "k", "k3"),
        observe=lambda t, x, dx, u, p: (x.z, dx.v),
    ),
    duffing_f,
    lambda t, x, u, p: np.array([x[0], duffing_f(t, x, u, p)[1]]),
    dict(m=1.0, c=0.3, k=4.0, k3=2.0),
)


def sensor_f(t: Any, x: Any, u: Any, p: Any) -> Any:
    k, c, rate = p
    return np.array([x[1], u[0] - k * x[0] - c * x[1], rate * (x[0] - x[2])])


#: A linear oscillator seen through a slow sensor, and by one that also sees the input.
LINEAR = Plant(
    sid.System(
        lambda t, x, u, p: (x.v, u.F - p.k * x.z - p.c * x.v, p.rate * (x.z - x.s)),
        states=("z", "v", "s"),
        inputs=("F",),
        params=("k", "c", "rate"),
        observe=lambda t, x, dx, u, p: {"slow": x.s, "fast": x.z + 0.1 * u.F},
    ),
    sensor_f,
    lambda t, x, u, p: np.array([x[2], x[0] + 0.1 * u[0]]),
    dict(k=3.0, c=0.4, rate=2.0),
)


def record(plant: Plant, *, n: int = 40, intersample: str = "zoh", seed: int = 0, missing: bool = True) -> sid.TimeSeries:
    """A short record of any outputs, with gaps in one of them, and in all."""
    rng = np.random.default_rng(seed)
    u, y = rng.normal(size=n), 0.4 * rng.normal(size=(n, len(plant.system.outputs)))
    if missing:
        y[5, 0] = y[9, 1] = y[12:14] = np.nan
    return sid.TimeSeries(0.3 + 0.2 * np.arange(n), u, y, intersample=intersample)  # type: ignore[arg-type]


def derivative(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Exact Jacobian of an analytic function."""
    return np.stack([function(x + 1e-30j * e).imag / 1e-30 for e in np.eye(x.size)], axis=1)


def step(plant: Plant, data: sid.TimeSeries, k: int, substeps: int) -> Callable[[np.ndarray], np.ndarray]:
    """The Runge-Kutta map of sampling interval k."""
    h = (data.t[k + 1] - data.t[k]) / substeps

    def run(x: np.ndarray) -> np.ndarray:
        for i in range(substeps):
            t = data.t[k] + i * h
            u = [data.input_at(k, min((i + part) / substeps, 1.0)) for part in (0.0, 0.5, 1.0)]
            k1 = plant.f(t, x, u[0], plant.theta)
            k2 = plant.f(t + h / 2, x + h / 2 * k1, u[1], plant.theta)
            k3 = plant.f(t + h / 2, x + h / 2 * k2, u[1], plant.theta)
            k4 = plant.f(t + h, x + h * k3, u[2], plant.theta)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x

    return run


def points(x: np.ndarray, P: np.ndarray, sigma: tuple[float, float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sigma points and their weights in mean and covariance."""
    n, (alpha, beta, kappa) = x.size, sigma
    spread = alpha**2 * (n + kappa)
    L = np.linalg.cholesky(spread * P)
    w = np.full(2 * n + 1, 0.5 / spread)
    w[0] = 1 - n / spread
    c = w.copy()
    c[0] += 1 - alpha**2 + beta
    return np.concatenate([[x], x + L.T, x - L.T]), w, c


def moments(values: np.ndarray, w: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = w @ values
    return mean, (values - mean).T @ (c[:, None] * (values - mean))


def kalman(
    plant: Plant,
    data: sid.TimeSeries,
    *,
    Q: np.ndarray,
    R: np.ndarray,
    x0: np.ndarray,
    P0: np.ndarray,
    substeps: int,
    sigma: tuple[float, float, float] | None = None,
) -> Trace:
    """Extended, or with ``sigma`` unscented, Kalman filter."""
    x, P, rows = x0, P0, []
    for t in range(len(data)):
        if t:
            move = step(plant, data, t - 1, substeps)
            if sigma is None:
                F = derivative(move, x)
                x, P = move(x), F @ P @ F.T + Q
            else:
                chi, w, c = points(x, P, sigma)
                x, P = moments(np.array([move(v) for v in chi]), w, c)
                P = P + Q
        u, y = data.input_at(t, 0.0), data.output_matrix[t]

        def see(v: np.ndarray, t: int = t, u: np.ndarray = u) -> np.ndarray:
            return plant.g(data.t[t], v, u, plant.theta)

        if sigma is None:
            expected, H = see(x), derivative(see, x)
            cross, S = P @ H.T, H @ P @ H.T + R
        else:
            chi, w, c = points(x, P, sigma)
            seen = np.array([see(v) for v in chi])
            expected, S = moments(seen, w, c)
            cross, S = (chi - x).T @ (c[:, None] * (seen - expected)), S + R
        e, has = y - expected, ~np.isnan(y)
        K = cross[:, has] @ np.linalg.inv(S[np.ix_(has, has)])
        x, P = x + K @ e[has], P - K @ S[np.ix_(has, has)] @ K.T
        rows.append((np.where(has, e, 0.0), S, x, P))
    return Trace(*(np.array(c) for c in zip(*rows, strict=True)))
