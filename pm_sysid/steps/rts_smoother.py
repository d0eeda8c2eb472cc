"""The backward pass: each state given the one after it, from what the filter knew at the end of every substep.

With the process ``x[k+1] = A x[k] + g L e`` and filtered moments ``m``, ``R R'`` of ``x[k]``, one triangularisation from the
right,

    [[g L, A R],        [[P, 0],
     [0,     R]]   ->    [H, V]],

gives ``x[k] = m + H P^-1 (x[k+1] - A m) + V z`` with a standard normal ``z``: the Rauch-Tung-Striebel recursion without a
covariance, exact from a known state (``R = 0``) too. The ODE does not appear: what it says is in ``R``.

An uncertain initial state stays apart, as in the filter (:class:`pm_sysid.steps.filter_state.Carry`): all of this is for a
known one, on which the means depend linearly, and its posterior given the record is what the filter ends with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from pm_sysid.steps.filter_state import Carry, Form
from pm_sysid.steps.iwp import diffusion_root, transition
from pm_sysid.symbolic.system import System


class Path(NamedTuple):
    """What the K rows of a trace are.

    ``kept`` marks the samples of a record and ``last`` the ends of records; ``ratio`` is the length of the substep that
    leads to a row over the reference step.
    """

    kept: np.ndarray
    last: np.ndarray
    ratio: np.ndarray


class Trace(NamedTuple):
    """What the filter knew at each of K rows, in scaled components.

    ``diffusion`` (K, n) of the substep before; ``mean`` (K, n, 1 + free) and its derivatives by the uncertain initial
    states; ``root`` (K, blocks, n / blocks, n / blocks); ``jump`` (K, n, 1 + states), of no width if nothing jumps;
    ``learnt`` (K, outputs, 2 + free): how each measured value moved, shrank and saw the initial state.
    """

    diffusion: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    jump: np.ndarray
    learnt: np.ndarray


class Smoother:
    """Backward pass of one form of the filter; n components, block after block."""

    def __init__(self, system: System, form: Form) -> None:
        steps = Carry(system, form)
        parts = [part for b in range(len(steps.blocks)) for part in steps.components(b)]
        at = {part: i for i, part in enumerate(parts)}
        self.level, self.chain = (np.array(v) for v in zip(*parts, strict=True))
        #: Component of each state, and of its derivative.
        self.place, self.rate = (np.array([at[k + d, c] for _, (c, k) in sorted(steps.place.items())]) for d in (0, 1))
        self.n_chains, self.n_blocks, self.n_free = steps.n_chains, len(steps.blocks), len(steps.free)
        self.n_jump = 1 + len(system.x) if steps.jumps else 0
        self.n_learnt = len(system.g) if steps.free else 0
        block = slice(0, len(parts) // self.n_blocks)  # all blocks have the same process
        pick, own = np.ix_(self.level[block], self.level[block]), self.chain[block, None] == self.chain[block]
        self.A, self.L = (np.array(matrix(form.order))[pick] * own for matrix in (transition, diffusion_root))

    def unpack(self, table: np.ndarray) -> Trace:
        """Take the output "states" of the filter apart."""
        n, nb, at = len(self.level), len(self.A), 0

        def take(*shape: int) -> np.ndarray:
            nonlocal at
            at += math.prod(shape)
            return np.ascontiguousarray(table[:, at - math.prod(shape) : at]).reshape(len(table), *shape)

        diffusion = np.ascontiguousarray(take(self.n_chains)[:, self.chain])
        blocks = [(take(nb, 1), take(nb, nb), take(nb, self.n_free)) for _ in range(self.n_blocks)]
        mean = np.concatenate([np.concatenate([m, sensitivity], axis=2) for m, _, sensitivity in blocks], axis=1)
        root = np.stack([r for _, r, _ in blocks], axis=1)
        return Trace(diffusion, mean, root, take(n, self.n_jump), take(self.n_learnt, 2 + self.n_free))

    def run(self, path: Path, trace: Trace, normal: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Condition each state on what comes after it.

        Parameters
        ----------
        normal : numpy.ndarray, shape (K, n), optional
            Standard normal numbers: draw a path instead of computing moments.

        Returns
        -------
        mean : numpy.ndarray, shape (T, n, 1 + free)
            Smoothed mean at each sample, and its derivatives by what the posterior of the record's initial state leaves
            uncertain: independent standard normal numbers.
        rest : numpy.ndarray, shape (T, n, n / blocks) or (T, n, 1)
            Rows of the roots of the blocks' covariances for a known initial state; or the drawn deviation from the mean.
        """
        z = np.empty((0, 0)) if normal is None else normal
        mean, rest = _backward(self.A, self.L, self.level, self.place, *path, *trace, z)
        return mean, rest


# Loops over small arrays, written out: numba compiles them to what they say.


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call, and keep the machine code for the next process where there is a place for it."""
    try:
        return numba.njit(function, error_model="numpy", cache=True)
    except RuntimeError:
        return numba.njit(function, error_model="numpy")


@_compiled
def _backward(
    A: Any,
    L: Any,
    level: Any,
    place: Any,
    kept: Any,
    last: Any,
    ratio: Any,
    diffusion: Any,
    mean: Any,
    root: Any,
    jump: Any,
    learnt: Any,
    z: Any,
) -> Any:
    """Run :meth:`Smoother.run`. C is the mean at a row, E the rest, D the initial state in units of the row's sensitivity."""
    (K, n, c), nb, drawing = mean.shape, A.shape[0], z.shape[0] > 0
    w = 1 if drawing else nb
    C, E, D = np.empty((n, c)), np.empty((n, w)), np.empty((c - 1, c))
    As, Ls, current = A.copy(), L.copy(), 1.0
    t = kept.sum()
    means, rest = np.empty((t, n, c)), np.empty((t, n, w))
    for k in range(K - 1, -1, -1):
        if last[k]:
            for i in range(n):
                for j in range(c):
                    C[i, j] = mean[k, i, j]
                for j in range(w):
                    E[i, j] = 0.0 if drawing else root[k, i // nb, i % nb, j]
                if drawing:
                    for j in range(nb):
                        E[i, 0] += root[k, i // nb, i % nb, j] * z[k, i // nb * nb + j]
            for i in range(c - 1):
                for j in range(c):
                    D[i, j] = 1.0 if j == i + 1 else 0.0
        else:
            _undo_sample(C, E, D, jump[k + 1], learnt[k + 1], place, nb)
            if ratio[k + 1] != current:  # a step of another length, in the scaling of the reference step
                current = ratio[k + 1]
                for i in range(nb):
                    for j in range(nb):
                        As[i, j] = A[i, j] * current ** float(level[j] - level[i])
                        Ls[i, j] = L[i, j] * current ** (level[-1] - level[i] + 0.5)
            for b in range(root.shape[1]):
                own = slice(b * nb, (b + 1) * nb)
                normal = z[k, own] if drawing else z[0:0, 0]
                _undo_substep(As, Ls, diffusion[k + 1, own], mean[k, own], root[k, b], D, normal, C[own], E[own])
        if kept[k]:
            t -= 1
            for i in range(n):
                for j in range(c):
                    means[t, i, j] = C[i, j]
                for j in range(w):
                    rest[t, i, j] = E[i, j]
    return means, rest


@_compiled
def _undo_sample(C: Any, E: Any, D: Any, jump: Any, learnt: Any, place: Any, nb: int) -> None:
    """Go from after a sample to before it: take back what was learnt on the initial state, then the jump."""
    for j in range(learnt.shape[0] - 1, -1, -1):
        for col in range(D.shape[1]):
            seen = 0.0
            for i in range(D.shape[0]):
                seen += learnt[j, 2 + i] * D[i, col]
            for i in range(D.shape[0]):
                D[i, col] -= learnt[j, 1] * seen * learnt[j, 2 + i]
        for i in range(D.shape[0]):
            D[i, 0] += learnt[j, 0] * learnt[j, 2 + i]
    if jump.shape[1] == 0:
        return
    for i in range(jump.shape[0]):
        C[i, 0] -= jump[i, 0]
        for s in range(place.shape[0]):
            factor, source = jump[i, 1 + s], place[s]
            if factor != 0.0:
                for col in range(C.shape[1]):
                    C[i, col] -= factor * C[source, col]
                if source // nb == i // nb:
                    for col in range(E.shape[1]):
                        E[i, col] -= factor * E[source, col]


@_compiled
def _undo_substep(A: Any, L: Any, diffusion: Any, mean: Any, root: Any, D: Any, z: Any, C: Any, E: Any) -> None:
    """Go from the end of a substep to its start, for one block; C and E are overwritten."""
    n, c, w = C.shape[0], C.shape[1], E.shape[1]
    a, x, given = np.zeros((2 * n, 2 * n)), np.empty((n, c + w)), np.empty((n, c))
    for i in range(n):
        for j in range(n):
            a[i, j] = diffusion[i] * L[i, j]
            a[n + i, n + j] = root[i, j]
            for m in range(i, n):
                a[i, n + j] += A[i, m] * root[m, j]
        for j in range(c):
            given[i, j] = mean[i, 0] if j == 0 else 0.0
            for m in range(c - 1):
                given[i, j] += mean[i, 1 + m] * D[m, j]
    _triangularise(a, n, n)
    for i in range(n):
        for j in range(c):
            x[i, j] = C[i, j]
            for m in range(i, n):
                x[i, j] -= A[i, m] * given[m, j]
        for j in range(w):
            x[i, c + j] = E[i, j]
        for j in range(c + w):
            for m in range(i):
                x[i, j] -= a[i, m] * x[m, j]
            x[i, j] /= a[i, i]
    wide = np.zeros((n, 2 * n))
    for i in range(n):
        for j in range(c):
            C[i, j] = given[i, j]
            for m in range(n):
                C[i, j] += a[n + i, m] * x[m, j]
        for j in range(w):
            for m in range(n):
                wide[i, j] += a[n + i, m] * x[m, c + j]
        for j in range(n):
            if z.shape[0]:
                wide[i, 0] += a[n + i, n + j] * z[j]
            else:
                wide[i, n + j] = a[n + i, n + j]
    if z.shape[0] == 0:
        _triangularise(wide, n, 0)
    for i in range(n):
        for j in range(w):
            E[i, j] = wide[i, j]


@_compiled
def _triangularise(a: Any, rows: int, first: int) -> None:
    """Make the first rows lower triangular by reflections from the right; the columns before ``first`` already are."""
    for i in range(rows):
        start = max(i + 1, first)
        tail = 0.0
        for j in range(start, a.shape[1]):
            tail += a[i, j] ** 2
        if tail == 0.0:
            continue
        alpha = -math.copysign(math.sqrt(a[i, i] ** 2 + tail), a[i, i])
        pivot = a[i, i] - alpha
        for r in range(i + 1, a.shape[0]):
            d = a[r, i] * pivot
            for j in range(start, a.shape[1]):
                d += a[r, j] * a[i, j]
            d /= -alpha * pivot
            a[r, i] -= d * pivot
            for j in range(start, a.shape[1]):
                a[r, j] -= d * a[i, j]
        a[i, i] = alpha
        for j in range(start, a.shape[1]):
            a[i, j] = 0.0
