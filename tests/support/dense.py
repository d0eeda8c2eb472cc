"""Dense reference for the filter on linear systems x' = F x + B u, in 60 digits and physical units.

Nothing here knows of square roots, scaled components or graphs: means are affine in the initial state, covariances are
plain matrices. :func:`joint` stacks every quantity that is observed, the ODE residuals included, in one Gaussian and
factorises its covariance once (EK1); :func:`recursion` is the textbook Kalman recursion (EK0, and EK1 with the Jacobian
cut down to each chain's own block). Both yield what is known for a *given* initial state; :func:`marginalise` integrates
that over x0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import mpmath
import numpy as np

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.symbolic.system import System

#: Matrix of ``mpmath.mpf``.
type Exact = np.ndarray
type Linearisation = Literal["ek0", "ek1", "ek1 own chain"]

DIGITS = 60


def exact(values: Any) -> Exact:
    """Array of multiprecision numbers, each exactly the double it was."""
    array = np.asarray(values, dtype=float)
    return np.array([mpmath.mpf(v) for v in array.ravel()] + [None], dtype=object)[:-1].reshape(array.shape)


def zeros(*shape: int) -> Exact:
    """Array of multiprecision zeros."""
    return exact(np.zeros(shape))


def doubles(values: Any) -> np.ndarray:
    """Round to double precision."""
    return np.array(values, dtype=float)


class Linear:
    """A system ``x' = F x + B u``, ``y = C x + D x'``, for the package and for the reference.

    Parameters
    ----------
    F, B, C, D
        Matrices; F and B become parameters of :attr:`system`, but for the ones that link a chain.
    chains
        States of each chain, as they should be recognised (with ``detect=False``, one chain a state).
    rate
        How fast it moves, in rad/s.
    relations
        Pairs of a row ``a`` and a number ``b`` for each relation ``a x = b``, which nothing here takes to be true.
    """

    def __init__(
        self,
        F: Any,
        B: Any,
        C: Any,
        D: Any,
        *,
        chains: tuple[tuple[int, ...], ...],
        rate: float,
        detect: bool = True,
        relations: Sequence[tuple[Sequence[float], float]] = (),
    ) -> None:
        F, B, C, D = (np.asarray(a, float) for a in (F, B, C, D))
        n, m = len(F), B.shape[1]
        links = {(i, j) for chain in chains for i, j in pairwise(chain)}
        values = {f"f{i}{j}": F[i, j] for i in range(n) for j in range(n) if F[i, j] and (i, j) not in links}
        values |= {f"b{i}{j}": B[i, j] for i in range(n) for j in range(m) if B[i, j]}

        def dynamics(t: Any, x: Any, u: Any, p: Any) -> list[Any]:
            rates = []
            for i in range(n):
                terms = [x[j] for j in range(n) if (i, j) in links]
                terms += [getattr(p, f"f{i}{j}") * x[j] for j in range(n) if f"f{i}{j}" in values]
                terms += [getattr(p, f"b{i}{j}") * u[j] for j in range(m) if f"b{i}{j}" in values]
                rates.append(sum(terms[1:], start=terms[0]))
            return rates

        def observe(t: Any, x: Any, dx: Any, u: Any, p: Any) -> tuple[Any, ...]:
            return tuple(
                sum(float(C[k, j]) * x[j] for j in range(n) if C[k, j])
                + sum(float(D[k, j]) * dx[j] for j in range(n) if D[k, j])
                for k in range(len(C))
            )

        def zero(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
            return tuple(sum(a * x[j] for j, a in enumerate(row) if a) - b for row, b in relations)

        self.F, self.B, self.C, self.D, self.relations = F, B, C, D, tuple(relations)
        self.chains, self.rate, self.coefficients = chains, rate, values
        self.system = System(
            dynamics,
            states=[f"x{i}" for i in range(n)],
            inputs=[f"u{j}" for j in range(m)],
            params=list(values),
            observe=observe,
            chains=detect,
            relations=zero if relations else None,
        )
        assert self.system.chain_states == chains

    @property
    def params(self) -> np.ndarray:
        """Values of the system's parameters."""
        return np.array(list(self.coefficients.values()))

    def simulate(self, record: TimeSeries, x0: Sequence[float], substeps: int = 40) -> np.ndarray:
        """Outputs without noise by RK4, shape (T, n_y); good to plotting accuracy, which is all that data need."""
        F, B = self.F, self.B
        x, outputs = np.asarray(x0, float), []
        for k in range(len(record)):
            rate = F @ x + B @ record.input_at(k, 0.0)
            outputs.append(self.C @ x + self.D @ rate)
            for i in range(substeps if k + 1 < len(record) else 0):
                h = record.dt[k] / substeps
                u0, u1, u2 = (B @ record.input_at(k, (i + f) / substeps) for f in (0.0, 0.5, 1.0))
                a = F @ x + u0
                b = F @ (x + h / 2 * a) + u1
                c = F @ (x + h / 2 * b) + u1
                d = F @ (x + h * c) + u2
                x = x + h / 6 * (a + 2 * b + 2 * c + d)
        return np.array(outputs)


class Setting(NamedTuple):
    """What a filter is told besides system and record; ``diffusion`` None takes it from the residual of each step."""

    order: int
    diffusion: Sequence[float] | None
    noise: Sequence[float]
    x0: Sequence[float]
    x0_std: Sequence[float]
    substeps: int


class Given(NamedTuple):
    """Results for a known initial state x0 + d.

    Entry i of the measurements: the innovation is ``innovation[i] - by_start[i] d`` with variance ``variance[i]``, at
    sample and output ``where[i]``. State after sample t: mean ``mean[t] + lean[t] d``, covariance ``covariance[t]``.
    """

    where: list[tuple[int, int]]
    innovation: Exact
    by_start: Exact
    variance: Exact
    mean: list[Exact]
    lean: list[Exact]
    covariance: list[Exact]
    average: Exact


class Reference(NamedTuple):
    """Log-density, innovation and its standard deviation (T, n_y; NaN where missing), moments (T, D) and (T, D, D)."""

    loglik: np.ndarray
    innovation: np.ndarray
    deviation: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


def start_given_relations(linear: Linear, setting: Setting) -> tuple[Exact, Exact]:
    """Mean and a root (n, n) of the covariance of the initial state given the relations, as far as it is uncertain."""
    mean, root = exact(setting.x0), exact(np.diag(setting.x0_std))
    for row, value in linear.relations:
        a = exact(row)
        f = root.T @ a
        if any(f):
            gain = root @ f / (f @ f)
            mean, root = mean - gain * (a @ mean - mpmath.mpf(value)), root - np.outer(gain, f)
    return mean, root


class Equations:
    """The Gaussian model in physical units; component ``level * chains + chain`` of a state."""

    def __init__(self, linear: Linear, setting: Setting) -> None:
        self.linear, self.setting = linear, setting
        self.F, self.B = exact(linear.F), exact(linear.B)
        self.chains, self.q = linear.chains, setting.order
        self.nc, self.nx = len(self.chains), len(self.F)
        self.size = (self.q + 1) * self.nc
        # Derivative j of the state is F^j x + sum_i F^(j-1-i) B u^(i).
        self.powers = [exact(np.eye(self.nx))]
        for _ in range(self.q):
            self.powers.append(self.powers[-1] @ self.F)
        self.residual = zeros(self.nc, self.size)
        for c, chain in enumerate(self.chains):
            for i, s in self.places():
                self.residual[c, i] -= self.F[chain[-1], s]
            self.residual[c, len(chain) * self.nc + c] += 1
        self.rows = zeros(len(linear.C), self.size)
        for i, s in self.places():
            self.rows[:, i] += exact(linear.C)[:, s]
            self.rows[:, i + self.nc] += exact(linear.D)[:, s]
        self.relations: list[tuple[Exact, Any]] = []
        for row, value in linear.relations:
            whole = zeros(self.size)
            for i, s in self.places():
                whole[i] = mpmath.mpf(row[s])
            self.relations.append((whole, mpmath.mpf(value)))

    def places(self) -> list[tuple[int, int]]:
        """(component, state) of every state; the next level of the same chain is its derivative."""
        return [(k * self.nc + c, s) for c, chain in enumerate(self.chains) for k, s in enumerate(chain)]

    def pick(self, own: bool) -> Exact:
        """Rows an inexact linearisation sees: the derivative only, or the Jacobian by the chain's own states."""
        rows = zeros(self.nc, self.size)
        for c, chain in enumerate(self.chains):
            keep = [k * self.nc + c for k in range(self.q + 1)] if own else [len(chain) * self.nc + c]
            rows[c, keep] = self.residual[c, keep]
        return rows

    def forced(self, inputs: list[Exact]) -> Exact:
        """Part of every component that the input and its derivatives ``inputs[i]`` make, for x = 0."""
        part = zeros(self.size)
        for c, chain in enumerate(self.chains):
            for k in range(1, self.q + 1):
                for i in range(k):
                    part[k * self.nc + c] += (self.powers[k - 1 - i] @ self.B)[chain[0]] @ inputs[i]
        return part

    def start(self, inputs: list[Exact]) -> Exact:
        """Mean of the state (first column) and its derivative by the initial state."""
        columns = zeros(self.size, 1 + self.nx)
        for c, chain in enumerate(self.chains):
            for k in range(self.q + 1):
                columns[k * self.nc + c, 1:] = self.powers[k][chain[0]]
        x0, _ = start_given_relations(self.linear, self.setting)
        columns[:, 0] = columns[:, 1:] @ x0 + self.forced(inputs)
        return columns

    def process(self, h: Any) -> tuple[Exact, Exact]:
        """Transition, and diffusion of unit intensity, over a step."""
        q, A, Q = self.q, zeros(self.size, self.size), zeros(self.size, self.size)
        for i in range(q + 1):
            for j in range(q + 1):
                e = 2 * q + 1 - i - j
                noise = h**e / (e * mpmath.factorial(q - i) * mpmath.factorial(q - j))
                for c in range(self.nc):
                    Q[i * self.nc + c, j * self.nc + c] = noise
                    if j >= i:
                        A[i * self.nc + c, j * self.nc + c] = h ** (j - i) / mpmath.factorial(j - i)
        return A, Q

    def intensity(self, diffusion: Sequence[Any]) -> Exact:
        """Factor of every component of Q."""
        g2 = [g * g for g in exact(diffusion)] if not isinstance(diffusion, np.ndarray) else list(diffusion)
        return np.array([[g2[i % self.nc] for _ in range(self.size)] for i in range(self.size)], dtype=object)


def limits(record: TimeSeries, k: int, levels: int) -> tuple[list[Exact], list[Exact]]:
    """Input and derivatives on both sides of sample k."""
    right = [exact(record.input_at(k, 0.0, i)) for i in range(levels)]
    return right if k == 0 else [exact(record.input_at(k - 1, 1.0, i)) for i in range(levels)], right


def substep_counts(record: TimeSeries, substeps: int) -> list[int]:
    """Substeps of each interval: more where it is longer than the median one."""
    if record.uniform:
        return [substeps] * (len(record) - 1)
    median = float(np.median(record.dt)) if len(record) > 1 else 1.0
    return [max(substeps, math.ceil(substeps * d / median - 1e-6)) for d in record.dt]


def run(equations: Equations, record: TimeSeries, on_substep: Callable, on_sample: Callable) -> None:
    """Visit substeps with (A, unit Q, B u) and samples with (sample, jump of all components), in order of time."""
    counts = substep_counts(record, equations.setting.substeps)
    process: dict[Any, tuple[Exact, Exact]] = {}
    for k in range(len(record)):
        left, right = limits(record, k, equations.q)
        if k:
            h = (mpmath.mpf(float(record.t[k])) - mpmath.mpf(float(record.t[k - 1]))) / counts[k - 1]
            if h not in process:
                process[h] = equations.process(h)
            for i in range(1, counts[k - 1] + 1):
                u = exact(record.input_at(k - 1, i / counts[k - 1]))
                on_substep(*process[h], equations.B @ u)
        on_sample(k, equations.forced(right) - equations.forced(left))


def factorise(V: Exact) -> tuple[Exact, Exact]:
    """``V = L diag(d) L'`` with unit lower triangular L."""
    n = len(V)
    L, d = exact(np.eye(n)), zeros(n)
    for j in range(n):
        scaled = L[j, :j] * d[:j]
        d[j] = V[j, j] - L[j, :j] @ scaled if j else V[j, j]
        assert d[j] > 0
        if j + 1 < n:
            L[j + 1 :, j] = (V[j + 1 :, j] - (L[j + 1 :, :j] @ scaled if j else 0)) / d[j]
    return L, d


def forward(L: Exact, rhs: Exact) -> Exact:
    """Solve ``L x = rhs`` for unit lower triangular L."""
    x = rhs.copy()
    for i in range(1, len(L)):
        x[i] = x[i] - L[i, :i] @ x[:i]
    return x


def joint(equations: Equations, record: TimeSeries, y: np.ndarray) -> Given:
    """EK1 by one joint Gaussian of all residuals and measurements, in order of time."""
    setting, n = equations.setting, equations.size
    m = equations.start(limits(record, 0, equations.q)[1])
    P, cross = zeros(n, n), zeros(n, 0)
    gaps: list[Exact] = []  # observed value minus its mean: affine in the initial state
    V: list[Exact] = []  # rows of the lower triangle
    where: list[tuple[int, int] | None] = []
    states: list[tuple[Exact, Exact, Exact]] = []

    def observe(row: Exact, value: Any, variance: Any, place: tuple[int, int] | None) -> None:
        nonlocal cross
        gap = -(row @ m)
        gap[0] += value
        gaps.append(gap)
        V.append(np.append(row @ cross if len(V) else zeros(0), row @ P @ row + variance))
        cross = np.concatenate([cross, (P @ row)[:, None]], axis=1)
        where.append(place)

    def on_substep(A: Exact, Q: Exact, forcing: Exact) -> None:
        nonlocal m, P, cross
        m, P = A @ m, A @ P @ A.T + Q * equations.intensity(setting.diffusion)
        cross = A @ cross if len(V) else cross
        for c, chain in enumerate(equations.chains):
            observe(equations.residual[c], forcing[chain[-1]], mpmath.mpf(0), None)
        for row, value in equations.relations:
            observe(row, value, mpmath.mpf(0), None)

    def on_sample(k: int, jump: Exact) -> None:
        m[:, 0] += jump
        for j in np.flatnonzero(~np.isnan(y[k])):
            observe(equations.rows[j], mpmath.mpf(y[k, j]), mpmath.mpf(setting.noise[j]) ** 2, (k, int(j)))
        states.append((m.copy(), P, cross.copy()))

    run(equations, record, on_substep, on_sample)
    if V:
        full = zeros(len(V), len(V))
        for i, row in enumerate(V):
            full[i, : i + 1] = full[: i + 1, i] = row
        L, d = factorise(full)
        e = forward(L, np.array(gaps))
    mean, lean, covariance = [], [], []
    for prior, P, cross in states:
        seen = cross.shape[1]
        after, spread = prior, P
        if seen:
            W = forward(L[:seen, :seen], cross.T.copy())
            gain = W.T / d[:seen]
            after, spread = prior + gain @ e[:seen], P - gain @ W
        mean.append(after[:, 0])
        lean.append(after[:, 1:])
        covariance.append(spread)
    kept = [i for i, place in enumerate(where) if place is not None]
    innovation = e[kept] if kept else zeros(0, 1 + equations.nx)
    variance = d[kept] if kept else zeros(0)
    places = [place for place in where if place is not None]
    return Given(places, innovation[:, 0], -innovation[:, 1:], variance, mean, lean, covariance, zeros(0))


def everywhere(linear: Linear, setting: Setting, record: TimeSeries, y: np.ndarray, linearisation: Linearisation) -> np.ndarray:
    """Log-density of the measurements of each sample (T,) given those before, and the ODE up to it, for a known initial state.

    The sum is ``log p(y, z = 0) - log p(z = 0)``, each from one joint Gaussian that is factorised once. The residuals z are
    linearised along the mean of a Kalman recursion that sees no measurement.
    """
    with mpmath.workdps(DIGITS):
        return _everywhere(Equations(linear, setting), record, y, linearisation)


def _everywhere(equations: Equations, record: TimeSeries, y: np.ndarray, linearisation: Linearisation) -> np.ndarray:
    setting = equations.setting
    rows = equations.residual if linearisation == "ek1" else equations.pick(own=False)
    m, P = equations.start(limits(record, 0, equations.q)[1])[:, 0], zeros(equations.size, equations.size)
    events: list[tuple] = []  # what happens to the state, and what is then observed of it

    def on_substep(A: Exact, Q: Exact, forcing: Exact) -> None:
        nonlocal m, P
        Q = Q * equations.intensity(setting.diffusion)
        m, P = A @ m, A @ P @ A.T + Q
        f = np.array([forcing[chain[-1]] for chain in equations.chains])
        z = equations.residual @ m - f
        events.append(
            (A, Q, zeros(equations.size), [(row, row @ m - r, mpmath.mpf(0)) for row, r in zip(rows, z, strict=True)])
        )
        S = rows @ P @ rows.T
        inverse = np.array((mpmath.matrix(S.tolist()) ** -1).tolist(), dtype=object).reshape(S.shape)
        K = P @ rows.T @ inverse
        m, P = m - K @ z, P - K @ S @ K.T

    def on_sample(k: int, jump: Exact) -> None:
        nonlocal m
        m = m + jump
        seen = [
            (equations.rows[j], mpmath.mpf(y[k, j]), mpmath.mpf(setting.noise[j]) ** 2) for j in np.flatnonzero(~np.isnan(y[k]))
        ]
        events.append((None, None, jump, seen))

    def densities(measured: bool) -> list[Any]:
        """Sum of the log-densities since the last sample, at each sample."""
        m, P = equations.start(limits(record, 0, equations.q)[1])[:, 0], zeros(equations.size, equations.size)
        cross, gaps, V, sample = zeros(equations.size, 0), [], [], []
        n = 0
        for A, Q, shift, observed in events:
            if A is not None:
                m, P, cross = A @ m, A @ P @ A.T + Q, A @ cross if V else cross
            m = m + shift
            for row, value, variance in observed if A is not None or measured else ():
                gaps.append(value - row @ m)
                V.append(np.append(row @ cross if V else zeros(0), row @ P @ row + variance))
                cross = np.concatenate([cross, (P @ row)[:, None]], axis=1)
                sample.append(n)
            n += A is None
        full = zeros(len(V), len(V))
        for i, row in enumerate(V):
            full[i, : i + 1] = full[: i + 1, i] = row
        total = [mpmath.mpf(0)] * n
        if V:
            L, d = factorise(full)
            e = forward(L, np.array(gaps))
            for i, k in enumerate(sample):
                total[k] -= (mpmath.log(2 * mpmath.pi * d[i]) + e[i] ** 2 / d[i]) / 2
        return total

    run(equations, record, on_substep, on_sample)
    return doubles([a - b for a, b in zip(densities(True), densities(False), strict=True)])


def recursion(
    equations: Equations, record: TimeSeries, y: np.ndarray, linearisation: Linearisation, by_chain: bool = False
) -> Given:
    """Kalman recursion with any linearisation of the residual; residual values are exact.

    ``by_chain`` is for unit diffusion: relations weigh the chains by their residuals so far, and leave them uncorrelated; and
    the mean moves along the gains of the chains, which do not see what makes a chain grow by itself, until the linearised
    equations of all hold.
    """
    setting = equations.setting
    rows = equations.residual if linearisation == "ek1" else equations.pick(own=linearisation != "ek0")
    own = equations.pick(own=True)
    if by_chain and linearisation != "ek0":
        rows = rows.copy()
        for c, chain in enumerate(equations.chains):
            below = [i for i in range(equations.size) if i % equations.nc == c and i // equations.nc < len(chain)]
            rows[c, below] = [max(value, mpmath.mpf(0)) for value in rows[c, below]]
    m, P = equations.start(limits(record, 0, equations.q)[1]), zeros(equations.size, equations.size)
    where: list[tuple[int, int]] = []
    innovations: list[Exact] = []
    variances: list[Any] = []
    mean, lean, covariance = [], [], []
    total, count = zeros(equations.nc), 0

    def on_substep(A: Exact, Q: Exact, forcing: Exact) -> None:
        nonlocal m, P, total, count
        m = A @ m
        z = equations.residual @ m
        z[:, 0] -= np.array([forcing[chain[-1]] for chain in equations.chains])
        if setting.diffusion is None:
            pick = own if linearisation != "ek0" else rows
            g2 = np.array([z[c, 0] ** 2 / (pick[c] @ Q @ pick[c]) for c in range(equations.nc)], dtype=object)
            Q = Q * equations.intensity(g2)
        else:
            Q = Q * equations.intensity(setting.diffusion)
        P = A @ P @ A.T + Q
        S = rows @ P @ rows.T
        total, count = total + z[:, 0] ** 2 / np.diag(S), count + 1
        inverse = np.array((mpmath.matrix(S.tolist()) ** -1).tolist(), dtype=object).reshape(S.shape)
        K = P @ rows.T @ inverse
        if by_chain and linearisation != "ek0":
            slopes = mpmath.matrix((equations.residual @ K).tolist())
            z = np.array((slopes**-1 * mpmath.matrix(z.tolist())).tolist(), dtype=object).reshape(z.shape)
        m, P = m - K @ z, P - K @ S @ K.T
        size = np.array([total[i % equations.nc] if by_chain else mpmath.mpf(1) for i in range(equations.size)], dtype=object)
        for a, value in equations.relations:
            z, s = a @ m, a @ (size * (P @ a))
            z[0] -= value
            K = size * (P @ a) / s
            m, P = m - np.outer(K, z), P - np.outer(K, P @ a)
            if by_chain:
                P = P * np.equal.outer(np.arange(equations.size) % equations.nc, np.arange(equations.size) % equations.nc)

    def on_sample(k: int, jump: Exact) -> None:
        nonlocal m, P
        m[:, 0] += jump
        for j in np.flatnonzero(~np.isnan(y[k])):
            a = equations.rows[j]
            gap = -(a @ m)
            gap[0] += mpmath.mpf(y[k, j])
            s = a @ P @ a + mpmath.mpf(setting.noise[j]) ** 2
            K = P @ a / s
            m, P = m + np.outer(K, gap), P - np.outer(K, K) * s
            where.append((k, int(j)))
            innovations.append(gap)
            variances.append(s)
        mean.append(m[:, 0])
        lean.append(m[:, 1:])
        covariance.append(P)

    run(equations, record, on_substep, on_sample)
    gaps = np.array(innovations).reshape(len(innovations), 1 + equations.nx)
    average = total / count if count else total
    return Given(where, gaps[:, 0], -gaps[:, 1:], np.array(variances), mean, lean, covariance, average)


def marginalise(given: Given, S: Exact, shape: tuple[int, int]) -> Reference:
    """Integrate over the initial state of covariance S; the ODE residuals are no evidence on it, the measurements are."""
    loglik, innovation, deviation = (np.full(shape, np.nan) for _ in range(3))
    G, n = given.by_start, len(given.where)
    if n:
        L, d = factorise(np.diag(given.variance) + G @ S @ G.T)
        e = forward(L, given.innovation)
        W = forward(L, G @ S)
    for i, place in enumerate(given.where):
        loglik[place] = -(mpmath.log(2 * mpmath.pi * d[i]) + e[i] ** 2 / d[i]) / 2
        innovation[place], deviation[place] = e[i], mpmath.sqrt(d[i])
    means, covariances = [], []
    for t, (mean, lean, covariance) in enumerate(zip(given.mean, given.lean, given.covariance, strict=True)):
        seen = sum(k <= t for k, _ in given.where)
        shift, spread = zeros(len(S)), S
        if seen:
            gain = W[:seen].T / d[:seen]
            shift, spread = gain @ e[:seen], S - gain @ W[:seen]
        means.append(doubles(mean + lean @ shift))
        covariances.append(doubles(covariance + lean @ spread @ lean.T))
    return Reference(loglik, innovation, deviation, np.array(means), np.array(covariances))


def reference(
    linear: Linear, setting: Setting, record: TimeSeries, linearisation: Linearisation, recursive: bool = False
) -> Reference:
    """Filter results of one record; EK1 by the joint Gaussian unless ``recursive``."""
    with mpmath.workdps(DIGITS):
        equations, y = Equations(linear, setting), record.output_matrix
        if linearisation == "ek1" and not recursive:
            given = joint(equations, record, y)
        else:
            given = recursion(equations, record, y, linearisation)
        root = start_given_relations(linear, setting)[1]
        return marginalise(given, root @ root.T, y.shape)


def mean_squares(linear: Linear, setting: Setting, record: TimeSeries, linearisation: Linearisation) -> tuple[np.ndarray, int]:
    """Average of z^2 / s over the substeps for each chain at unit diffusion and without data, and their number."""
    with mpmath.workdps(DIGITS):
        unit = setting._replace(diffusion=[1.0] * len(linear.chains))
        y = np.full((len(record), len(linear.C)), np.nan)
        average = recursion(Equations(linear, unit), record, y, linearisation, by_chain=True).average
        return doubles(average), sum(substep_counts(record, setting.substeps))
