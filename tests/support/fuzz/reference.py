"""A probabilistic ODE filter in plain NumPy: covariances in physical units, Joseph updates, extended precision.

It is written from the equations (Longbottom, Champneys and Rogers 2024, Eqs. 12-20; initial state as in the augmented filter
of de Jong 1991) and shares nothing with the package but how a band-limited input runs between samples: no square roots, no
scaled components, no symbolic derivatives. Many parameter sets run side by side along the first axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.records.timeseries import TimeSeries
from support.fuzz import jets
from support.fuzz.jets import Jet, JetMath, flow
from support.fuzz.systems import Structure


class Values(NamedTuple):
    """Numbers for many points B: params (B, P), x0 and x0_std (B, R, n), noise (B, n_y), diffusion (B, chains)."""

    params: np.ndarray
    x0: np.ndarray
    x0_std: np.ndarray
    noise: np.ndarray
    diffusion: np.ndarray


class Belief(NamedTuple):
    """Mean (B, D) and covariance for a known initial state; derivative of the mean by it; its own covariance."""

    m: np.ndarray
    P: np.ndarray
    G: np.ndarray
    V: np.ndarray


class Result(NamedTuple):
    """Log-density of each sample, shape (B, T, n_y), and the largest number met on the way, (B,)."""

    loglik: np.ndarray
    largest: np.ndarray


def outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[:, :, None] * b[:, None, :]


def form(P: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a' P b`` for each point."""
    return np.sum(a[:, :, None] * P * b[:, None, :], axis=(1, 2))


def along(P: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.sum(P * h[:, None, :], axis=2)


def solve(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Solution (B, n) of systems (B, n, n), by Gauss-Jordan elimination: LAPACK has no long doubles."""
    rows = np.concatenate([A, b[:, :, None]], axis=2)
    for k in range(A.shape[1]):
        rows[:, k] /= rows[:, k, k, None]
        others = np.arange(A.shape[1]) != k
        rows[:, others] -= rows[:, others, k, None] * rows[:, None, k]
    return np.asarray(rows[:, :, -1])


class Filter:
    """The filter of one structure.

    To measure conditioning, ``rounding`` moves every residual by that much of its terms, but for the first ``still`` points.
    """

    def __init__(self, structure: Structure, values: Values, rounding: float = 0.0, seed: int = 0, still: int = 0) -> None:
        self.s, self.rounding, self.rng = structure, jets.REAL(rounding), np.random.default_rng(seed)
        self.moving = slice(still, None)
        self.transitions: dict[Any, tuple[np.ndarray, np.ndarray]] = {}
        self.q, self.chains = structure.order, structure.chain_states
        self.n, self.nc = structure.n_states, len(structure.chain_states)
        self.D = (self.q + 1) * self.nc
        self.values = Values(*(np.asarray(v, jets.REAL) for v in values))
        self.B = len(self.values.params)
        self.place = {s: c * (self.q + 1) + k for c, chain in enumerate(self.chains) for k, s in enumerate(chain)}
        self.owner = np.repeat(np.arange(self.nc), self.q + 1)
        self.own = self.owner[:, None] == self.owner[None, :]
        self.params = self.values.params
        self.columns = np.array([self.place[i] for i in range(self.n)])

    # -- pieces -------------------------------------------------------------------------------------------------------

    def levels(self, record: TimeSeries, k: int, fraction: float, count: int) -> list[np.ndarray]:
        return [self.s.input_at(record, k, fraction, j) for j in range(count)]

    def stacked(self, derivatives: np.ndarray) -> np.ndarray:
        """Components (D, B, 1 + n) from derivatives of every state."""
        return np.concatenate([derivatives[:, chain[0]] for chain in self.chains])

    def components(self, t: float, x: np.ndarray, levels: Sequence[np.ndarray]) -> np.ndarray:
        return self.stacked(flow(self.s.dynamics, t, x, levels, self.params, self.q))

    def start(self, record: TimeSeries, r: int) -> Belief:
        x0, std = self.values.x0[:, r], self.values.x0_std[:, r]
        parts = self.components(record.t[0], x0, self.levels(record, 0, 0.0, self.q + 1))
        free = list(self.s.free)
        G = np.moveaxis(parts[..., 1:], 0, 1)[:, :, free]
        V = np.stack([np.diag(row) for row in std[:, free] ** 2]) if free else np.zeros((self.B, 0, 0), jets.REAL)
        return Belief(parts[..., 0].T.copy(), np.zeros((self.B, self.D, self.D), jets.REAL), G, V)

    def transition(self, h: Any) -> tuple[np.ndarray, np.ndarray]:
        if h not in self.transitions:  # most substeps of a record are of one length
            self.transitions[h] = self._transition(h)
        return self.transitions[h]

    def _transition(self, h: Any) -> tuple[np.ndarray, np.ndarray]:
        q, A, Q = self.q, np.zeros((self.D, self.D), jets.REAL), np.zeros((self.D, self.D), jets.REAL)
        h = jets.REAL(h)
        for i in range(q + 1):
            for j in range(q + 1):
                e = 2 * q + 1 - i - j
                noise = h**e / jets.REAL(e * math.factorial(q - i) * math.factorial(q - j))
                for c in range(self.nc):
                    a, b = c * (q + 1) + i, c * (q + 1) + j
                    Q[a, b] = noise
                    if j >= i:
                        A[a, b] = h ** (j - i) / jets.REAL(math.factorial(j - i))
        return A, Q

    def residuals(self, t: float, m: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Residual (B, chains) of each equation of motion and its gradient (B, chains, D)."""
        x = [Jet.constant(m[:, self.place[i]], 0, self.n, i) for i in range(self.n)]
        given = [Jet.constant(np.full(self.B, v), 0, self.n) for v in u]
        p = [Jet.constant(self.params[:, i], 0, self.n) for i in range(self.params.shape[1])]
        rates = self.s.dynamics(JetMath, Jet.constant(np.full(self.B, t), 0, self.n), x, given, p)
        z, H = np.zeros((self.B, self.nc), jets.REAL), np.zeros((self.B, self.nc, self.D), jets.REAL)
        for c, chain in enumerate(self.chains):
            rate = x[0].like(rates[chain[-1]]).c[0]
            top = c * (self.q + 1) + len(chain)
            z[:, c] = m[:, top] - rate[:, 0]
            if self.rounding:
                size = (np.abs(m[:, top]) + np.abs(rate[:, 0]))[self.moving]
                z[self.moving, c] += self.rounding * self.rng.normal(size=len(size)) * size
            H[:, c, self.columns] -= rate[:, 1:]
            H[:, c, top] += 1
        return z, H

    def substep(
        self, b: Belief, h: Any, t: float, u: np.ndarray, diffusion: np.ndarray | None, block: bool, together: bool = False
    ) -> Any:
        """Predict and condition on the ODE; also ``z^2 / s`` of each chain under unit diffusion where none is given.

        With blocks ``together``, means move along the gains of their chains until the linearised equations of all hold.
        """
        A, Q = self.transition(h)
        m, G = b.m @ A.T, A @ b.G
        z, exact = self.residuals(t, m, u)
        H = exact.copy()
        if not self.s.linear:
            H[:] = 0
            for c, chain in enumerate(self.chains):
                H[:, c, c * (self.q + 1) + len(chain)] = 1
        own = H * (self.owner == np.arange(self.nc)[:, None])
        if diffusion is None:
            g2 = np.stack([z[:, c] ** 2 / form(Q[None], own[:, c], own[:, c]) for c in range(self.nc)], axis=1)
        else:
            g2 = diffusion**2
        P = A @ b.P @ A.T + g2[:, self.owner, None] * Q
        rows = own.copy() if block else H
        if together:  # gains do not see what makes a chain grow by itself
            for c, chain in enumerate(self.chains):
                below = slice(c * (self.q + 1), c * (self.q + 1) + len(chain))
                rows[:, c, below] = np.maximum(rows[:, c, below], 0)
        m0, G0, squares = m, G, np.zeros((self.B, self.nc), jets.REAL)
        gains = np.zeros((self.B, self.D, self.nc), jets.REAL)
        for c in range(self.nc):
            row = rows[:, c]
            gap = z[:, c] + (0.0 if together else np.sum(row * (m - m0), axis=1))
            lean = np.einsum("bd,bdf->bf", exact[:, c], G0) + np.einsum("bd,bdf->bf", row, G - G0)
            cov = along(P, row)
            variance = np.sum(row * cov, axis=1)
            squares[:, c] = gap**2 / variance
            K = cov / variance[:, None]
            if block:
                K = np.where(self.owner == c, K, 0)
            gains[:, :, c] = K
            m, G = m - K * gap[:, None], G - outer(K, lean)
            W = np.eye(self.D, dtype=jets.REAL) - outer(K, row)
            P = W @ P @ np.swapaxes(W, 1, 2)
        if together:
            m = m0 - np.einsum("bdc,bc->bd", gains, solve(np.einsum("bcd,bde->bce", H, gains), z))
        return Belief(m, P * self.own if block else P, G, b.V), squares

    def jump(self, b: Belief, record: TimeSeries, k: int, block: bool) -> Belief:
        """What a jump of the input, or of its derivative, does to the derivatives of the state."""
        order = self.s.smoothness
        if order is None or k == 0 or not self.s.n_inputs:
            return b
        right, before = self.levels(record, k, 0.0, order + 1), self.s.input_at(record, k - 1, 1.0, order)
        left = [*right[:order], before]
        x = b.m[:, self.columns]
        shift = self.components(record.t[k], x, right) - self.components(record.t[k], x, left)
        J = np.broadcast_to(np.eye(self.D, dtype=jets.REAL), (self.B, self.D, self.D)).copy()
        J[:, :, self.columns] += np.moveaxis(shift[..., 1:], 0, 1)
        own = np.where(self.own, J, 0) if block else J
        return Belief(b.m + shift[..., 0].T, own @ b.P @ np.swapaxes(own, 1, 2), J @ b.G, b.V)

    def measure(self, b: Belief, t: float, u: np.ndarray, y: np.ndarray, block: bool) -> tuple[Belief, np.ndarray]:
        """Condition on each output (B, n_y) in turn; all are linearised at the state before the first."""
        both, n = 2 * self.n, self.n
        x = [Jet.constant(b.m[:, self.place[i]], 0, both, i) for i in range(n)]
        dx = [Jet.constant(b.m[:, self.place[i] + 1], 0, both, n + i) for i in range(n)]
        given = [Jet.constant(np.full(self.B, v), 0, both) for v in u]
        p = [Jet.constant(self.params[:, i], 0, both) for i in range(self.params.shape[1])]
        outputs = self.s.observe(JetMath, Jet.constant(np.full(self.B, t), 0, both), x, dx, given, p)
        (m, P, G, V), m0, loglik = b, b.m, np.zeros((self.B, len(outputs)), jets.REAL)
        for j, output in enumerate(outputs):
            if np.isnan(y[0, j]):
                continue
            value = x[0].like(output).c[0]
            row = np.zeros((self.B, self.D), jets.REAL)
            for i in range(n):
                row[:, self.place[i]] += value[:, 1 + i]
                row[:, self.place[i] + 1] += value[:, 1 + n + i]
            gap = y[:, j] - value[:, 0] - np.sum(row * (m - m0), axis=1)
            lean, cov, r = np.einsum("bd,bdf->bf", row, G), along(P, row), self.values.noise[:, j] ** 2
            known = np.sum(row * cov, axis=1) + r
            start = np.einsum("bfg,bg->bf", V, lean)
            total = known + np.sum(lean * start, axis=1)
            loglik[:, j] = -(np.log(2 * jets.REAL(np.pi) * total) + gap**2 / total) / 2
            K, k = cov / known[:, None], start / total[:, None]
            G = G - outer(K, lean)
            m = m + K * gap[:, None] + np.einsum("bdf,bf->bd", G, k) * gap[:, None]
            W = np.eye(self.D, dtype=jets.REAL) - outer(K, row)
            if block:  # each chain's own covariance, corrected with its own part of the row
                P = np.where(self.own, P - outer(cov, cov) / known[:, None, None], 0)
            else:
                P = W @ P @ np.swapaxes(W, 1, 2) + outer(K, K) * r[:, None, None]
            V = V - outer(k, k) * total[:, None, None]
        return Belief(m, P, G, V), loglik

    # -- the whole ----------------------------------------------------------------------------------------------------

    def calibrated(self, records: Sequence[TimeSeries]) -> np.ndarray:
        """Quasi-maximum-likelihood diffusion (Eq. 19): a pass over the ODE alone, chain by chain with unit diffusion.

        Where the filter is dense, the means of the chains are moved together.
        """
        total, count, unit = np.zeros((self.B, self.nc), jets.REAL), 0, np.ones((self.B, self.nc), jets.REAL)
        for r, record in enumerate(records):
            b = self.start(record, r)._replace(G=np.zeros((self.B, self.D, 0), jets.REAL))
            for k in range(len(record)):
                for h, t, u in self.s.substeps_before(record, k):
                    b, squares = self.substep(b, h, t, u, unit, block=True, together=self.nc > 1 and not self.s.block)
                    total, count = total + squares, count + 1
                b = self.jump(b, record, k, block=True)
        return np.sqrt(total / max(count, 1))

    def run(self, records: Sequence[TimeSeries], y: Sequence[np.ndarray]) -> Result:
        """Filter records with measurements y[r] (B, T, n_y)."""
        with np.errstate(all="ignore"):
            diffusion = {"mle": lambda: self.calibrated(records), "dynamic": lambda: None}.get(
                self.s.diffusion, lambda: self.values.diffusion
            )()
            rows, largest = [], np.zeros(self.B, jets.REAL)
            for r, record in enumerate(records):
                b = self.start(record, r)
                for k in range(len(record)):
                    for h, t, u in self.s.substeps_before(record, k):
                        b, _ = self.substep(b, h, t, u, diffusion, self.s.block)
                        largest = np.fmax(largest, _size(b))
                    b = self.jump(b, record, k, self.s.block)
                    largest = np.fmax(largest, _size(b))
                    u = self.s.input_at(record, k, 0.0, 0)
                    b, loglik = self.measure(b, record.t[k], u, np.asarray(y[r][:, k], jets.REAL), self.s.block)
                    rows.append(loglik)
            return Result(np.stack(rows, axis=1), largest)


def _size(b: Belief) -> np.ndarray:
    """Largest absolute entry, infinite where something is not a number."""
    sizes = [np.abs(a).reshape(len(a), -1).max(axis=1, initial=0) for a in (b.m, b.P, b.G)]
    size = np.max(sizes, axis=0)
    return np.where(np.isfinite(size), size, np.inf)
