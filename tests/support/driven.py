"""Dense reference for linear systems with an input that is a process, in 60 digits.

Given the initial state and the path of the process, means are affine in both, and everything that is seen (ODE residuals and
measurements) is one Gaussian. The path has the covariance of its kernel, which knows nothing of state-space forms. Measurements
alone are evidence on it: the innovations of the filter, affine in the path, with the variances that do not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import mpmath
import numpy as np

import pm_sysid as sid
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.checks import vector
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.symbolic.driven import driven_system
from support.dense import (
    DIGITS,
    Equations,
    Exact,
    Linear,
    Setting,
    doubles,
    exact,
    factorise,
    forward,
    limits,
    run,
    substep_counts,
    zeros,
)

type Covariance = Callable[[int, Any, int, Any], Any]


class Prior(NamedTuple):
    """A process and its covariance: ``covariance(i, s, j, t)`` of derivative i at s and derivative j at t.

    ``higher(i)`` is what stands for derivative i at the first sample: factors of the first derivatives.
    """

    process: sid.Matern | sid.OU | sid.IntegratedWiener | sid.Periodic
    covariance: Covariance
    states: int
    higher: Callable[[int], dict[int, Any]]


def stationary(kernel: Callable[[Any], Any], states: int, higher: Callable[[int], dict[int, Any]], process: Any) -> Prior:
    """A stationary process from its kernel for lags from zero on."""

    def covariance(i: int, s: Any, j: int, t: Any) -> Any:
        lag, sign = (t - s, (-1) ** i) if t >= s else (s - t, (-1) ** j)
        return sign * (mpmath.diff(kernel, lag, i + j) if i + j else kernel(lag))

    return Prior(process, covariance, states, higher)


def matern(nu: float, scale: float, length: float) -> Prior:
    n, rate = round(nu + 0.5), mpmath.sqrt(2 * mpmath.mpf(nu)) / mpmath.mpf(length)
    polynomial = {1: lambda a: 1, 2: lambda a: 1 + a, 3: lambda a: 1 + a + a * a / 3}[n]

    def higher(i: int) -> dict[int, Any]:
        """Along the mean's flow: (d/dt + rate)^n of the process is zero."""
        if i < n:
            return {i: mpmath.mpf(1)}
        total: dict[int, Any] = {}
        for j in range(n):
            for k, v in higher(i - n + j).items():
                total[k] = total.get(k, 0) - math.comb(n, j) * rate ** (n - j) * v
        return total

    said = {"scale": float(scale), "length": float(length)}
    process = sid.OU(**said) if n == 1 else sid.Matern(nu=nu, **said)
    return stationary(lambda t: mpmath.mpf(scale) ** 2 * polynomial(rate * t) * mpmath.exp(-rate * t), n, higher, process)


def periodic(scale: float, period: float, length: float, harmonics: int) -> Prior:
    omega, x = 2 * mpmath.pi / mpmath.mpf(period), mpmath.mpf(length) ** -2
    weight = [mpmath.mpf(scale) ** 2 * (2 if j else 1) * mpmath.besseli(j, x) * mpmath.exp(-x) for j in range(harmonics + 1)]
    process = sid.Periodic(scale=float(scale), period=float(period), length=float(length), harmonics=harmonics)

    def covariance(i: int, s: Any, j: int, t: Any) -> Any:
        # d^i/ds^i d^j/dt^j cos(k w (t - s))
        turn = (j - i) * mpmath.pi / 2
        return sum(
            w * (k * omega) ** (i + j) * mpmath.cos(k * omega * (t - s) + turn) for k, w in enumerate(weight) if k or not i + j
        )

    return Prior(process, covariance, 99, lambda i: {i: mpmath.mpf(1)})


def integrated(order: int, scale: float, start: tuple[float, ...]) -> Prior:
    std = [mpmath.mpf(v) for v in (*start, *[0.0] * (order + 1 - len(start)))]

    def covariance(i: int, s: Any, j: int, t: Any) -> Any:
        a, b, early = order - i, order - j, min(s, t)
        noise = mpmath.quad(lambda u: (s - u) ** a * (t - u) ** b, [0, early]) if early else mpmath.mpf(0)
        noise = noise * mpmath.mpf(scale) ** 2 / (mpmath.factorial(a) * mpmath.factorial(b))
        for k in range(max(i, j), order + 1):
            noise += std[k] ** 2 * s ** (k - i) * t ** (k - j) / (mpmath.factorial(k - i) * mpmath.factorial(k - j))
        return noise

    process = sid.IntegratedWiener(order=order, scale=float(scale), start=start)
    return Prior(process, covariance, order + 1, lambda i: {i: mpmath.mpf(1)} if i <= order else {})


class Path(NamedTuple):
    """What is unknown: deviations of the initial state, derivatives of the process at the start, its values after substeps.

    ``covariance`` of all of these; ``start`` (D, 1 + unknowns), the mean of the state at the first sample.
    """

    covariance: Exact
    start: Exact
    n_start: int


def path_of(linear: Linear, setting: Setting, record: TimeSeries, prior: Prior) -> Path:
    equations = Equations(linear, setting)
    n, nx, n_start = equations.size, equations.nx, min(prior.states, setting.order)
    times = [mpmath.mpf(0)]
    for k, per in enumerate(substep_counts(record, setting.substeps), start=1):
        a, b = mpmath.mpf(float(record.t[k - 1])), mpmath.mpf(float(record.t[k]))
        times += [a + (b - a) * i / per - float(record.t[0]) for i in range(1, per + 1)]
    index = [(i, times[0]) for i in range(n_start)] + [(0, t) for t in times[1:]]
    w = nx + len(index)
    K = zeros(w, w)
    for i in range(nx):
        K[i, i] = mpmath.mpf(setting.x0_std[i]) ** 2
    for a, (i, s) in enumerate(index):
        for b, (j, t) in enumerate(index[: a + 1]):
            K[nx + a, nx + b] = K[nx + b, nx + a] = prior.covariance(i, s, j, t)
    m = zeros(n, 1 + w)
    m[:, : 1 + nx] = equations.start([np.append(u, mpmath.mpf(0)) for u in limits(record, 0, equations.q)[1]])
    for i in range(n_start):  # derivatives of the process move those of the state
        derivatives = [zeros(linear.B.shape[1]) for _ in range(equations.q)]
        for j in range(equations.q):
            derivatives[j][-1] = mpmath.mpf(prior.higher(j).get(i, 0))
        m[:, 1 + nx + i] = equations.forced(derivatives)
    return Path(K, m, n_start)


class Innovations(NamedTuple):
    """Innovations (N, 1 + unknowns), affine in what is unknown, and variances given it; of measurements, with their places."""

    measured: list[Exact]
    variance: list[Any]
    where: list[tuple[int, int]]
    residual: list[Exact]
    spread: list[Any]


def textbook(linear: Linear, setting: Setting, record: TimeSeries, prior: Prior, exact_rows: bool) -> Innovations:
    """The Kalman filter with covariances, for a given path: EK1, or EK0, whose gain sees the derivative alone."""
    equations, y = Equations(linear, setting), record.output_matrix
    path = path_of(linear, setting, record, prior)
    m, P = path.start.copy(), zeros(equations.size, equations.size)
    rows = equations.residual if exact_rows else equations.pick(own=False)
    own, first = exact(linear.B)[:, -1], 1 + equations.nx + path.n_start
    found, step = Innovations([], [], [], [], []), 0

    def on_substep(A: Exact, Q: Exact, forcing: Exact) -> None:
        nonlocal m, P, step
        m, P = A @ m, A @ P @ A.T + Q * equations.intensity(setting.diffusion)
        z = equations.residual @ m
        for c, chain in enumerate(equations.chains):
            z[c, 0] -= forcing[chain[-1]]
            z[c, first + step] -= own[chain[-1]]
        S = rows @ P @ rows.T
        K = P @ rows.T @ np.array((mpmath.matrix(S.tolist()) ** -1).tolist(), dtype=object).reshape(S.shape)
        found.residual.append(z[0])
        found.spread.append(S[0, 0])
        m, P, step = m - K @ z, P - K @ rows @ P, step + 1

    def on_sample(k: int, jump: Exact) -> None:
        nonlocal m, P
        m[:, 0] += jump
        for j in np.flatnonzero(~np.isnan(y[k])):
            row = equations.rows[j]
            gap, s = -(row @ m), row @ P @ row + mpmath.mpf(setting.noise[j]) ** 2
            gap[0] += mpmath.mpf(y[k, j])
            K = P @ row / s
            found.measured.append(gap)
            found.variance.append(s)
            found.where.append((k, int(j)))
            m, P = m + np.outer(K, gap), P - np.outer(K, K) * s

    walk(equations, record, on_substep, on_sample)
    return found


def log_densities(found: Innovations, K: Exact) -> list[Any]:
    """Log-density of each measurement given those before it, the path integrated out."""
    gaps = np.array(found.measured)
    total = gaps[:, 1:] @ K @ gaps[:, 1:].T
    for i, v in enumerate(found.variance):
        total[i, i] += v
    L, d = factorise(total)
    e = forward(L, gaps[:, :1].copy())[:, 0]
    return [-(mpmath.log(2 * mpmath.pi * v) + x * x / v) / 2 for x, v in zip(e, d, strict=True)]


def integrated_out(found: Innovations, K: Exact, shape: tuple[int, ...]) -> np.ndarray:
    """The same as an array (T, n_y) with zeros for missing samples."""
    loglik = np.zeros(shape)
    for at, density in zip(found.where, log_densities(found, K), strict=True):
        loglik[at] = float(density)
    return loglik


class Smoothed(NamedTuple):
    """Log-likelihood (T, n_y); means (T, D + 1) and their covariances (T, D + 1, T, D + 1), the process last."""

    loglik: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


def reference(
    linear: Linear, setting: Setting, record: TimeSeries, prior: Prior, intensities: Sequence[Exact] | None = None
) -> Smoothed:
    """What the filter and the smoother should say; the last input of the system is the process, and ``record`` lacks it.

    ``intensities`` are squared diffusions of each substep (chains,), in place of those of the setting.
    """
    equations, y = Equations(linear, setting), record.output_matrix
    n, nx = equations.size, equations.nx
    K, start, n_start = path_of(linear, setting, record, prior)
    m, w = start.copy(), len(K)
    own = exact(linear.B)[:, -1]

    P = zeros(n, n)
    cross: list[Exact] = []
    V: list[Exact] = []
    gaps: list[Exact] = []
    where: list[tuple[int, int] | None] = []
    kept: list[tuple[Exact, Exact]] = []
    past: list[Exact] = []
    seen: list[list[Exact]] = []
    prior_cov: dict[tuple[int, int], Exact] = {}
    step = 0

    def see(row: Exact, value: Exact, variance: Any, place: tuple[int, int] | None) -> None:
        gaps.append(value - row @ m)
        V.append(np.array([row @ c for c in cross] + [row @ P @ row + variance], dtype=object))
        cross.append(P @ row)
        where.append(place)
        for columns, p in zip(seen, past, strict=True):
            columns.append(p @ row)

    def on_substep(A: Exact, Q: Exact, forcing: Exact) -> None:
        nonlocal m, P, cross, past, step
        intensity = equations.intensity(intensities[step] if intensities else setting.diffusion)
        m, P = A @ m, A @ P @ A.T + Q * intensity
        cross, past = [A @ c for c in cross], [p @ A.T for p in past]
        for c, chain in enumerate(equations.chains):
            value = zeros(1 + w)
            value[0] = forcing[chain[-1]]
            value[1 + nx + n_start + step] = own[chain[-1]]
            see(equations.residual[c], value, mpmath.mpf(0), None)
        step += 1

    def on_sample(k: int, jump: Exact) -> None:
        m[:, 0] += jump
        for j in np.flatnonzero(~np.isnan(y[k])):
            value = zeros(1 + w)
            value[0] = mpmath.mpf(y[k, j])
            see(equations.rows[j], value, mpmath.mpf(setting.noise[j]) ** 2, (k, int(j)))
        row = zeros(1 + w)
        row[1 + nx + (n_start - 1 + step if step else 0)] = mpmath.mpf(1)
        kept.append((m.copy(), row))
        past.append(P.copy())
        seen.append(list(cross))
        for s, p in enumerate(past):
            prior_cov[s, len(past) - 1] = p.copy()

    walk(equations, record, on_substep, on_sample)
    full = zeros(len(V), len(V))
    for i, row in enumerate(V):
        full[i, : i + 1] = full[: i + 1, i] = row
    L, d = factorise(full)
    e = forward(L, np.array(gaps))
    W = [forward(L, np.array(_up_to(columns, len(V), n))) for columns in seen]
    measured = [i for i, place in enumerate(where) if place is not None]
    found = Innovations(list(e[measured]), list(d[measured]), [where[i] for i in measured], [], [])
    loglik = integrated_out(found, K, y.shape)
    a, M = e[measured, 0], e[measured, 1:]  # evidence on what is unknown
    total = M @ K @ M.T
    for i, v in enumerate(found.variance):
        total[i, i] += v
    L2, d2 = factorise(total)
    G = forward(L2, (M @ K).copy())
    w_mean, w_cov = -(G.T / d2) @ forward(L2, a[:, None].copy())[:, 0], K - (G.T / d2) @ G
    T = len(kept)
    mean, slope = zeros(T, n + 1), zeros(T, n + 1, w)
    covariance = zeros(T, n + 1, T, n + 1)
    for k, (m_k, row) in enumerate(kept):
        post = m_k + (W[k].T / d) @ e
        slope[k, :n], slope[k, n] = post[:, 1:], row[1:]
        mean[k, :n], mean[k, n] = post[:, 0] + post[:, 1:] @ w_mean, row[1:] @ w_mean
    for (k, other), p in prior_cov.items():
        block = p - (W[k].T / d) @ W[other]
        covariance[k, :n, other, :n], covariance[other, :n, k, :n] = block, block.T
    flat = slope.reshape(T * (n + 1), w)
    covariance = covariance + (flat @ w_cov @ flat.T).reshape(covariance.shape)
    return Smoothed(loglik, doubles(mean), doubles(covariance))


def _up_to(columns: list[Exact], count: int, n: int) -> list[Exact]:
    assert len(columns) == count
    return columns if count else [zeros(n)]


def walk(equations: Equations, record: TimeSeries, on_substep: Any, on_sample: Any) -> None:
    """The walk of :func:`support.dense.run`, with a zero for the input that the record lacks."""

    class Padded:
        t, dt, uniform = record.t, record.dt, record.uniform

        def __len__(self) -> int:
            return len(record)

        def input_at(self, k: Any, fraction: Any, derivative: int = 0) -> np.ndarray:
            return np.append(record.input_at(k, fraction, derivative), 0.0)

    run(equations, Padded(), on_substep, on_sample)  # type: ignore[arg-type]


# -- cases ------------------------------------------------------------------------------------------------------------

OSCILLATOR = Linear([[0, 1], [-36, -0.7]], [[0, 0], [36, 20]], [[1, 0], [0, 0.2]], [[0, 0], [0, 1]], chains=((0, 1),), rate=6.0)
TWO = Linear(
    [[0, 1, 0], [-36, -0.7, 9], [2, 0, -3]],
    [[0, 0], [36, 20], [4, -3]],
    [[1, 0, 0], [0, 0, 1]],
    [[0, 0, 0], [0, 0, 0]],
    chains=((0, 1), (2,)),
    rate=6.0,
)
#: Chains that do not see each other, pushed by one process; each output sees one.
APART = Linear(
    [[0, 1, 0], [-36, -0.7, 0], [0, 0, -3]],
    [[0, 0], [36, 20], [4, -3]],
    [[1, 0, 0], [0, 0, 1]],
    [[0, 0.03, 0], [0, 0, 0]],
    chains=((0, 1), (2,)),
    rate=6.0,
)
PRIORS = {
    "ou": lambda: matern(0.5, 0.7, 0.3),
    "matern 3/2": lambda: matern(1.5, 0.7, 0.3),
    "matern 5/2": lambda: matern(2.5, 0.7, 0.3),
    "short": lambda: matern(1.5, 0.7, 1e-3),
    "wiener": lambda: integrated(0, 1.2, (0.4,)),
    "trend": lambda: integrated(1, 1.2, (0.4, 0.3)),
    "periodic": lambda: periodic(0.8, 1.1, 0.9, 2),
}


def record_of(linear: Linear, intersample: Any = "zoh") -> TimeSeries:
    """A record without the last input; what is measured need not come from the system. One of them has a gap."""
    times = (0, 1.0, 1.7, 3.6) if intersample == "foh" else (0, 1, 2, 3)
    rng = np.random.default_rng(7)
    t = 0.3 + 0.1 * np.asarray(times)
    y = rng.normal(size=(len(t), len(linear.C)))
    y[1, 0] = np.nan
    return TimeSeries(t, rng.normal(size=(len(t), 1)), y, intersample=intersample)


def setting_of(linear: Linear, order: int, free: tuple[int, ...], substeps: int) -> Setting:
    n, rng = len(linear.F), np.random.default_rng(8)
    std = np.where(np.isin(np.arange(n), free), 0.5, 0.0)
    diffusion = [0.4 * 6.0 ** (order + 0.5)] * len(linear.chains)
    return Setting(order, diffusion, [0.05] * len(linear.C), rng.normal(size=n), std, substeps)


def problem_of(
    linear: Linear, solver: Any, record: TimeSeries, prior: Prior, free: tuple[int, ...]
) -> tuple[Problem, list[Any]]:
    system, values = driven_system(linear.system, {linear.system.inputs[-1]: prior.process})
    return Problem.build(system, solver, [record], free), values


def unknowns_of(linear: Linear, setting: Setting, values: Any) -> Unknowns:
    rows = np.array([setting.x0]), np.array([setting.x0_std])
    params = vector([*linear.params, *values])
    return Unknowns(params, *rows, np.array(setting.noise), np.array(setting.diffusion))


@cache
def expected(linear: Linear, name: str, order: int, free: tuple[int, ...], substeps: int, intersample: str) -> Smoothed:
    with mpmath.workdps(DIGITS):
        record = record_of(linear, intersample)
        return reference(linear, setting_of(linear, order, free, substeps), record, PRIORS[name]())
