"""The backward pass: each state given the one after it, from what the filter knew at the end of every substep.

With the process ``x[k+1] = A x[k] + g L e`` and filtered moments ``m``, ``R R'`` of ``x[k]``, one triangularisation from the
right,

    [[g L, A R],        [[P, 0],
     [0,     R]]   ->    [H, V]],

gives ``x[k] = m + H P^-1 (x[k+1] - A m) + V z`` with a standard normal ``z``: the Rauch-Tung-Striebel recursion without a
covariance, exact from a known state (``R = 0``) too. The ODE does not appear: what it says is in ``R``.

An uncertain initial state stays apart, as in the filter (:class:`pm_sysid.steps.filter_state.Carry`): all of this is for a
known one, on which the means depend linearly, and its posterior given the record is what the filter ends with. The random
numbers behind processes are uncertain in the same way; those before a substep are a rotation of those after it and of
independent ones, which the filter has put out.
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
    ``learnt`` (K, outputs, 2 + free): how each measured value moved, shrank and saw the initial state. With processes,
    ``mean`` and ``jump`` have further rows, their states; ``free`` counts all random numbers; and ``turn`` (K, free,
    free + new) gives those before the substep from those after it and new ones.
    """

    diffusion: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    jump: np.ndarray
    learnt: np.ndarray
    turn: np.ndarray


class Smoother:
    """Backward pass of one form of the filter; n components, block after block."""

    def __init__(self, system: System, form: Form) -> None:
        steps = Carry(system, form)
        parts = [part for b in range(len(steps.blocks)) for part in steps.components(b)]
        at = {part: i for i, part in enumerate([*parts, *steps.processes])}
        self.level, self.chain = (np.array(v) for v in zip(*parts, strict=True))
        places = [place for _, place in sorted(steps.place.items())]
        #: Component of each state, and of its derivative; components of the processes' states.
        self.place, self.rate = (np.array([at[k + d, c] for c, k in places[: len(system.x)]]) for d in (0, 1))
        self.processes = np.array([at[k, c] for c, k in places[len(system.x) :]], dtype=int)
        self.n_chains, self.n_blocks, self.n_free = steps.n_chains, len(steps.blocks), steps.width
        self.n_jump = 1 + len(places) if steps.jumps else 0
        self.n_learnt = len(system.g) if steps.width else 0
        #: Random numbers of a path beside those of the components: of the processes in a substep.
        self.n_new = steps.width + steps.n_kicks if steps.latents else 0
        block = slice(0, len(parts) // self.n_blocks)  # all blocks have the same process
        pick, own = np.ix_(self.level[block], self.level[block]), self.chain[block, None] == self.chain[block]
        self.A, self.L = (np.array(matrix(form.order))[pick] * own for matrix in (transition, diffusion_root))

    def sizes(self, scale: np.ndarray) -> np.ndarray:
        """Physical value of one unit of each component; ``scale`` (q+1,) is that of the levels."""
        return np.concatenate([scale[self.level], np.ones(len(self.processes))])

    def unpack(self, table: np.ndarray) -> Trace:
        """Take the output "states" of the filter apart."""
        n, nb, at = len(self.level), len(self.A), 0

        def take(*shape: int) -> np.ndarray:
            nonlocal at
            at += math.prod(shape)
            return np.ascontiguousarray(table[:, at - math.prod(shape) : at]).reshape(len(table), *shape)

        m, w = len(self.processes), self.n_free
        diffusion = np.ascontiguousarray(take(self.n_chains)[:, self.chain])
        turn = take(w if m else 0, w + self.n_new)
        blocks = [(take(nb, 1), take(nb, nb), take(nb, w)) for _ in range(self.n_blocks)]
        means = [np.concatenate([m, sensitivity], axis=2) for m, _, sensitivity in blocks]
        root = np.stack([r for _, r, _ in blocks], axis=1)
        if m:
            means.append(np.concatenate([take(m, 1), take(m, w)], axis=2))
        mean = np.concatenate(means, axis=1)
        return Trace(diffusion, mean, root, take(n + m, self.n_jump), take(self.n_learnt, 2 + w), turn)

    def run(self, path: Path, trace: Trace, normal: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Condition each state on what comes after it.

        Parameters
        ----------
        normal : numpy.ndarray, shape (K, n + new), optional
            Standard normal numbers: draw a path instead of computing moments.

        Returns
        -------
        mean : numpy.ndarray, shape (T, n, 1 + free)
            Smoothed mean at each sample, and its derivatives by what the posterior of the record's initial state leaves
            uncertain: independent standard normal numbers. With processes there are n + free of them, other ones at each
            sample; and none if a path is drawn, in whose mean they are. The states of the processes are the last components.
        rest : numpy.ndarray, shape (T, n, n / blocks) or (T, n, 1)
            Rows of the roots of the blocks' covariances for a known initial state; or the drawn deviation from the mean.
        """
        z = np.empty((0, 0)) if normal is None else normal
        columns = self.n_free if not len(self.processes) else len(self.level) + self.n_free if normal is None else 0
        every = np.concatenate([self.place, self.processes])
        mean, rest = _backward(self.A, self.L, self.level, every, columns, *path, *trace, z)
        return mean, rest


# Loops over small arrays, written out: numba compiles them to what they say.


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile at the first call, and keep the machine code for the next process where there is a place for it.

    Other threads go on while it runs.
    """
    try:
        return numba.njit(function, error_model="numpy", nogil=True, cache=True)
    except RuntimeError:
        return numba.njit(function, error_model="numpy", nogil=True)


@_compiled
def _backward(
    A: Any,
    L: Any,
    level: Any,
    place: Any,
    columns: Any,
    kept: Any,
    last: Any,
    ratio: Any,
    diffusion: Any,
    mean: Any,
    root: Any,
    jump: Any,
    learnt: Any,
    turn: Any,
    z: Any,
) -> Any:
    """Run :meth:`Smoother.run`. C is the mean at a row, E the rest, D the random numbers that the row's sensitivity is by."""
    (K, rows, c), nb, drawing, n = mean.shape, A.shape[0], z.shape[0] > 0, len(level)
    w, new = 1 if drawing else nb, turn.shape[2] - turn.shape[1]
    driven = turn.shape[1] > 0
    wide = 1 + columns + (new if columns else 0)  # columns of new random numbers, while a substep is undone
    C, E, D = np.empty((rows, wide)), np.zeros((rows, w)), np.empty((c - 1, wide))
    As, Ls, current = A.copy(), L.copy(), 1.0
    t = kept.sum()
    means, rest = np.empty((t, rows, 1 + columns)), np.empty((t, rows, w))
    for k in range(K - 1, -1, -1):
        if last[k]:
            for i in range(n):
                for j in range(w):
                    E[i, j] = 0.0 if drawing else root[k, i // nb, i % nb, j]
                if drawing:
                    for j in range(nb):
                        E[i, 0] += root[k, i // nb, i % nb, j] * z[k, i // nb * nb + j]
            for i in range(c - 1):
                for j in range(wide):
                    D[i, j] = 1.0 if j == i + 1 else 0.0
                if driven and drawing:
                    D[i, 0] = z[k, n + i]
            _given(mean[k], D, C)
        else:
            _undo_sample(C, E, D, jump[k + 1], learnt[k + 1], place, nb)
            if driven:
                _turn_back(turn[k + 1], z[k, n:] if drawing else z[0:0, 0], columns, D)
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
            if driven:
                if columns:
                    _fewer(C, D, n, columns)
                _given(mean[k, n:], D, C[n:])
        if kept[k]:
            t -= 1
            for i in range(rows):
                for j in range(1 + columns):
                    means[t, i, j] = C[i, j]
                for j in range(w):
                    rest[t, i, j] = E[i, j]
    return means, rest


@_compiled
def _given(mean: Any, D: Any, C: Any) -> None:
    """Means for the random numbers D, which C is overwritten with."""
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            C[i, j] = mean[i, 0] if j == 0 else 0.0
            for m in range(D.shape[0]):
                C[i, j] += mean[i, 1 + m] * D[m, j]


@_compiled
def _turn_back(turn: Any, z: Any, columns: Any, D: Any) -> None:
    """Random numbers before a substep from those after it and new ones: drawn, or in columns of their own."""
    n, before = D.shape[0], D.copy()
    for i in range(n):
        for j in range(D.shape[1]):
            D[i, j] = 0.0
            for m in range(n):
                D[i, j] += turn[i, m] * before[m, j]
        for j in range(turn.shape[1] - n):
            if z.shape[0]:
                D[i, 0] += turn[i, n + j] * z[j]
            else:
                D[i, 1 + columns + j] = turn[i, n + j]


@_compiled
def _fewer(C: Any, D: Any, n: Any, columns: Any) -> None:
    """Rotate the columns of the first n rows of C and of D so that as many as there are rows remain."""
    both = np.empty((n + D.shape[0], C.shape[1] - 1))
    for i in range(n):
        both[i] = C[i, 1:]
    for i in range(D.shape[0]):
        both[n + i] = D[i, 1:]
    _triangularise(both, both.shape[0], 0)
    for i in range(n):
        C[i, 1:] = both[i]
    for i in range(D.shape[0]):
        D[i, 1:] = both[n + i]


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
            for m in range(D.shape[0]):
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
