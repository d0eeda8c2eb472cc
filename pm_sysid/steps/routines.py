"""Square-root Gaussian algebra as loops: what :mod:`pm_sysid.steps.square_root` writes out, for filters of many components.

Each routine is the text of its loops, the same algebra on whole arrays (for JAX, and as the reference in tests), and its
adjoint. The adjoints run the loops backwards and undo each update in place, so that nothing is kept but one vector a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pm_sysid.steps.iwp import diffusion_root, transition
from pm_sysid.symbolic.routines import Routine, Shape


def _rounded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _zeros(array: str, rows: int, first: int, end: int) -> str:
    """Lines that fill the last columns of an array with zeros."""
    if first == end:
        return ""
    return f"    for i in range({rows}):\n        for j in range({first}, {end}):\n            {array}[i, j] = 0.0"


def _copied(source: str, target: str, n: int) -> str:
    """Lines that copy the first columns of an array."""
    return f"    for i in range({n}):\n        for j in range({n}):\n            {target}[i, j] = {source}[i, j]\n"


class Adjoint(Routine):
    """Cotangents of what a routine reads, from what it reads and the cotangents of what it writes."""

    __props__ = ("routine",)

    def __init__(self, routine: Differentiable) -> None:
        self.routine = routine
        self.reads = (*routine.reads, *routine.writes)
        self.writes = routine.reads
        self.scratch = routine.adjoint_scratch

    def padded(self, multiple: int) -> Routine:
        """Return the adjoint of the padded routine."""
        wide = self.routine.padded(multiple)
        assert isinstance(wide, Differentiable)
        return Adjoint(wide)

    def source(self, name: str) -> str:
        """Text of the loops."""
        return self.routine.adjoint_source(name)

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """Let JAX differentiate the algebra on whole arrays."""
        import jax

        n = len(self.routine.reads)
        _, pull = jax.vjp(partial(self.routine.compute, xp), *arrays[:n])
        result: Sequence[Any] = pull(tuple(arrays[n:]))
        return result


class Differentiable(Routine):
    """A routine that brings the text of its adjoint."""

    adjoint_scratch: tuple[Shape, ...] = ()

    def adjoint_source(self, name: str) -> str:
        """Text of a function of what is read, the cotangents of what is written, their own, and arrays to work on."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """Text of both: gradients are kept under the name of the routine, and another adjoint is another gradient."""
        return self.source("routine") + self.adjoint_source("adjoint")

    def adjoint(self) -> Routine:
        """Return the routine that pulls cotangents back."""
        return Adjoint(self)


class Predict(Differentiable):
    """Prediction of a block of chains over one substep: root and sensitivities.

    Reads the diffusion of each chain (d,), the root (n, n) and the sensitivities (n, f); n = (q+1) d, component (level k,
    chain c) is number k d + c. Writes the lower triangular root of the predicted covariance, by Householder reflections as
    :func:`~pm_sysid.steps.square_root.triangularise`, and the sensitivities.
    """

    __props__ = ("order", "chains", "free", "columns")

    def __init__(self, order: int, chains: int, free: int, columns: int = 0) -> None:
        self.order, self.chains, self.free = order, chains, free
        n = (order + 1) * chains
        self.n, self.columns = n, max(n, columns)
        self.reads = ((chains,), (n, n), (n, free))
        self.writes = ((n, n), (n, free))
        self.scratch = ((n, self.columns),)
        self.adjoint_scratch = ((n, self.columns), (n, n), (n, n), (n, n), (n, self.columns))

    def padded(self, multiple: int) -> Predict:
        """Rows of the matrix that is reflected end in zeros."""
        return Predict(self.order, self.chains, self.free, _rounded(self.n, multiple))

    def _moved(self, source: str, target: str, columns: int) -> str:
        """Lines that move every column by the transition matrix."""
        A, d = transition(self.order), self.chains
        lines = [f"    for c in range({d}):", f"        for j in range({columns}):"]
        for k in range(self.order + 1):
            terms = [f"{A[k][i]!r} * {source}[{i * d} + c, j]" for i in range(k, self.order + 1)]
            lines.append(f"            {target}[{k * d} + c, j] = {' + '.join(terms)}")
        return "\n".join(lines)

    def _noise(self, target: str) -> str:
        """Lines that write the root of the diffusion."""
        Q, d, n = diffusion_root(self.order), self.chains, self.n
        lines = [f"    for i in range({n}):", f"        for j in range({n}):", f"            {target}[i, j] = 0.0"]
        lines.append(f"    for c in range({d}):")
        for k in range(self.order + 1):
            lines += [f"        {target}[{k * d} + c, {j * d} + c] = {Q[k][j]!r} * diffusion[c]" for j in range(k + 1)]
        return "\n".join(lines)

    def source(self, name: str) -> str:
        """Text of the loops."""
        n, free = self.n, self.free
        return f"""
def {name}(diffusion, root, lean, new, moved, rest):
{self._moved("root", "rest", n)}
{_zeros("rest", n, n, self.columns)}
{self._moved("lean", "moved", free) if free else ""}
{self._noise("new")}
    for i in range({n}):
        square = new[i, i] * new[i, i]
        for j in range({self.columns}):
            square += rest[i, j] * rest[i, j]
        alpha = sqrt(square)
        pivot = new[i, i] + alpha
        beta = 1.0 / (alpha * pivot)
        for r in range(i + 1, {n}):
            d = new[r, i] * pivot
            for j in range({self.columns}):
                d += rest[r, j] * rest[i, j]
            d = d * beta
            new[r, i] -= d * pivot
            for j in range({self.columns}):
                rest[r, j] -= d * rest[i, j]
        new[i, i] = -alpha
"""

    def adjoint_source(self, name: str) -> str:
        """Text of the reflections backwards: each is undone, and the cotangents pass through it."""
        n, free, d = self.n, self.free, self.chains
        A, Q, levels = transition(self.order), diffusion_root(self.order), range(self.order + 1)

        def back(source: str, target: str, columns: int) -> str:
            lines = [f"    for c in range({d}):", f"        for j in range({columns}):"]
            for k in levels:
                terms = [f"{A[i][k]!r} * {source}[{i * d} + c, j]" for i in range(k + 1)]
                lines.append(f"            {target}[{k * d} + c, j] = {' + '.join(terms)}")
            return "\n".join(lines)

        terms = [f"{Q[k][j]!r} * g_noise[{k * d} + c, {j * d} + c]" for k in levels for j in range(k + 1)]
        return f"""
def {name}(diffusion, root, lean, g_new, g_moved, g_diffusion, g_root, g_lean, rest, new, noise, g_noise, g_rest):
{self._moved("root", "rest", n)}
{_zeros("rest", n, n, self.columns)}
{self._noise("noise")}
    for i in range({n}):
        square = noise[i, i] * noise[i, i]
        for j in range({self.columns}):
            square += rest[i, j] * rest[i, j]
        alpha = sqrt(square)
        pivot = noise[i, i] + alpha
        beta = 1.0 / (alpha * pivot)
        new[i, i] = alpha
        for r in range(i + 1, {n}):
            d = noise[r, i] * pivot
            for j in range({self.columns}):
                d += rest[r, j] * rest[i, j]
            d = d * beta
            new[r, i] = d
            for j in range({self.columns}):
                rest[r, j] -= d * rest[i, j]
    for i in range({n - 1}, -1, -1):
        p = noise[i, i]
        alpha = new[i, i]
        pivot = p + alpha
        beta = 1.0 / (alpha * pivot)
        g_alpha = 0.0 - g_new[i, i]
        g_pivot = 0.0
        g_beta = 0.0
        for j in range({self.columns}):
            g_rest[i, j] = 0.0
        for j in range({n}):
            g_noise[i, j] = 0.0
        for r in range(i + 1, {n}):
            d = new[r, i]
            g = g_new[r, i]
            g_d = 0.0 - g * pivot
            for j in range({self.columns}):
                g_d -= g_rest[r, j] * rest[i, j]
            g_pivot -= g * d
            e = g_d * beta
            g_beta += g_d * d * alpha * pivot
            g_noise[r, i] = g + e * pivot
            g_pivot += e * noise[r, i]
            for j in range({self.columns}):
                rest[r, j] += d * rest[i, j]
                g_rest[i, j] += e * rest[r, j] - d * g_rest[r, j]
                g_rest[r, j] += e * rest[i, j]
        g_alpha -= beta * (beta * (pivot * g_beta))
        g_pivot -= beta * (beta * (alpha * g_beta))
        g_alpha += g_pivot
        g_noise[i, i] = g_pivot + g_alpha * p / alpha
        ratio = g_alpha / alpha
        for j in range({self.columns}):
            g_rest[i, j] += ratio * rest[i, j]
    for c in range({d}):
        g_diffusion[c] = {" + ".join(terms)}
{back("g_rest", "g_root", n)}
{back("g_moved", "g_lean", free) if free else ""}
"""

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """The same by a QR factorisation."""
        diffusion, root, lean = arrays
        A, Q = (xp.asarray(m) for m in (transition(self.order), diffusion_root(self.order)))
        move = xp.kron(A, xp.eye(self.chains))
        noise = xp.kron(Q, xp.diag(diffusion))
        upper = xp.linalg.qr(xp.concatenate([noise, move @ root], axis=1).T)[1]
        sign = xp.where(xp.diag(upper) > 0.0, -1.0, 1.0)  # the reflections leave a negative diagonal
        return (sign[:, None] * upper).T, move @ lean


class Condition(Differentiable):
    """Conditioning a block on its ODE residuals, one scalar update after the other, from the last to the first.

    Reads mean (n,), root (n, n), sensitivities (n, f), residuals (d,) at the mean, and the rows of their linearisation in
    the first m components: as the filter sees it (d, m), and exactly (d, m), which moves the sensitivities. Writes mean,
    root, sensitivities.
    """

    __props__ = ("n", "free", "residuals", "touched", "columns")

    def __init__(self, n: int, free: int, residuals: int, touched: int, columns: int = 0) -> None:
        self.n, self.free, self.residuals, self.touched, self.columns = n, free, residuals, touched, max(n, columns)
        d, m, wide = residuals, touched, self.columns
        state: tuple[Shape, ...] = ((n,), (n, n), (n, free))
        self.reads = (*state, (d,), (d, m), (d, m))
        self.writes = state
        scratch = ((d, wide), (d, n), (d, 2), (d, free))
        self.scratch = (*scratch, (n, wide))
        self.adjoint_scratch = (*scratch, (n,), (n, wide), (n, free), (wide,), (free,), (n,), (n, free), (n, wide))

    def padded(self, multiple: int) -> Condition:
        """Rows of the root end in zeros while it is worked on."""
        return Condition(self.n, self.free, self.residuals, self.touched, _rounded(self.n, multiple))

    def _forward(self) -> str:
        n, free, d, m, wide = self.n, self.free, self.residuals, self.touched, self.columns
        return f"""
{_zeros("R", n, n, wide)}
    for i in range({n}):
        m[i] = mean[i]
        for j in range({n}):
            R[i, j] = root[i, j]
        for a in range({free}):
            S[i, a] = lean[i, a]
    for c in range({d - 1}, -1, -1):
        r = z[c]
        for j in range({wide}):
            F[c, j] = 0.0
        for a in range({free}):
            L[c, a] = 0.0
        for i in range({m}):
            r += H[c, i] * (m[i] - mean[i])
            for j in range({wide}):
                F[c, j] += H[c, i] * R[i, j]
            for a in range({free}):
                L[c, a] += E[c, i] * lean[i, a] + H[c, i] * (S[i, a] - lean[i, a])
        s = 0.0
        for j in range({wide}):
            s += F[c, j] * F[c, j]
        w[c, 0] = r
        w[c, 1] = 1.0 / s
        for i in range({n}):
            g = 0.0
            for j in range({wide}):
                g += R[i, j] * F[c, j]
            g = g * w[c, 1]
            K[c, i] = g
            m[i] -= g * r
            for j in range({wide}):
                R[i, j] -= g * F[c, j]
            for a in range({free}):
                S[i, a] -= g * L[c, a]
"""

    def source(self, name: str) -> str:
        """Text of the loops."""
        head = f"def {name}(mean, root, lean, z, H, E, m, new, S, F, K, w, L, R):"
        return f"{head}{self._forward()}{_copied('R', 'new', self.n)}"

    def adjoint_source(self, name: str) -> str:
        """Text of the updates backwards, each undone."""
        n, free, d, m, wide = self.n, self.free, self.residuals, self.touched, self.columns
        return f"""
def {name}(
    mean, root, lean, z, H, E, c_m, c_R, c_S, g_m, g_root, g_S, g_z, g_H, g_E, F, K, w, L, m, R, S, g_F, g_L, b_m, b_S, g_R
):
{self._forward()}
{_zeros("g_R", n, n, wide)}
    for i in range({n}):
        g_m[i] = c_m[i]
        for j in range({n}):
            g_R[i, j] = c_R[i, j]
        for a in range({free}):
            g_S[i, a] = c_S[i, a]
            b_S[i, a] = 0.0
        b_m[i] = 0.0
    for c in range({d}):
        r = w[c, 0]
        weight = w[c, 1]
        g_r = 0.0
        g_s = 0.0
        for j in range({wide}):
            g_F[j] = 0.0
        for a in range({free}):
            g_L[a] = 0.0
        for i in range({n}):
            k = K[c, i]
            m[i] += k * r
            g = 0.0 - g_m[i] * r
            g_r -= g_m[i] * k
            for a in range({free}):
                S[i, a] += k * L[c, a]
                g -= g_S[i, a] * L[c, a]
                g_L[a] -= k * g_S[i, a]
            for j in range({wide}):
                g -= g_R[i, j] * F[c, j]
            g_s -= g * k * weight
            g = g * weight
            for j in range({wide}):
                R[i, j] += k * F[c, j]
                g_F[j] += g * R[i, j] - k * g_R[i, j]
                g_R[i, j] += g * F[c, j]
        for j in range({wide}):
            g_F[j] += 2.0 * g_s * F[c, j]
        for i in range({m}):
            h = H[c, i]
            g = g_r * (m[i] - mean[i])
            e = 0.0
            for j in range({wide}):
                g += R[i, j] * g_F[j]
                g_R[i, j] += h * g_F[j]
            for a in range({free}):
                g += (S[i, a] - lean[i, a]) * g_L[a]
                e += lean[i, a] * g_L[a]
                b_S[i, a] += (E[c, i] - h) * g_L[a]
                g_S[i, a] += h * g_L[a]
            g_H[c, i] = g
            g_E[c, i] = e
            g_m[i] += h * g_r
            b_m[i] -= h * g_r
        g_z[c] = g_r
    for i in range({n}):
        g_m[i] += b_m[i]
        for a in range({free}):
            g_S[i, a] += b_S[i, a]
{_copied("g_R", "g_root", n)}
"""

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """The same, update by update, on whole arrays."""
        mean, root, lean, z, H, E = arrays
        m, R, S, top = mean, root, lean, self.touched
        for c in reversed(range(self.residuals)):
            residual = z[c] + H[c] @ (m - mean)[:top]
            F = R[:top].T @ H[c]
            L = lean[:top].T @ E[c] + (S - lean)[:top].T @ H[c]
            gain = R @ F / (F @ F)
            m, R, S = m - gain * residual, R - xp.outer(gain, F), S - xp.outer(gain, L)
        return m, R, S


class Project(Differentiable):
    """How each column of a root moves a measurement, ``root' h``; reads the rows (m, n) that h (m,) touches."""

    __props__ = ("n", "touched")

    def __init__(self, n: int, touched: int) -> None:
        self.n, self.touched = n, touched
        self.reads = ((touched, n), (touched,))
        self.writes = ((n,),)

    def source(self, name: str) -> str:
        """Text of the loops."""
        return f"""
def {name}(R, h, F):
    for j in range({self.n}):
        F[j] = 0.0
    for i in range({self.touched}):
        for j in range({self.n}):
            F[j] += h[i] * R[i, j]
"""

    def adjoint_source(self, name: str) -> str:
        """Text of the loops."""
        return f"""
def {name}(R, h, c_F, g_R, g_h):
    for i in range({self.touched}):
        g = 0.0
        for j in range({self.n}):
            g += R[i, j] * c_F[j]
            g_R[i, j] = h[i] * c_F[j]
        g_h[i] = g
"""

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """Return the product."""
        root, h = arrays
        return (root.T @ h,)


class Correct(Differentiable):
    """Update of a block by a scalar measurement, in Potter's form, with the uncertain initial state marginalised.

    Reads mean (n,), root (n, n), sensitivities (n, f), what the measurement is in the columns of the root (n,) and in the
    uncertain initial states (f,), and four numbers: the inverse variance of the innovation given the initial state, the
    factor of Potter's form, the innovation times its inverse variance, and that factor for the sensitivities. Writes mean,
    root, sensitivities.
    """

    __props__ = ("n", "free")

    def __init__(self, n: int, free: int) -> None:
        self.n, self.free = n, free
        state: tuple[Shape, ...] = ((n,), (n, n), (n, free))
        self.reads = (*state, (n,), (free,), (4,))
        self.writes = state

    def source(self, name: str) -> str:
        """Text of the loops."""
        n, free = self.n, self.free
        return f"""
def {name}(mean, root, lean, F, L, w, m, R, S):
    for i in range({n}):
        u = 0.0
        for j in range({n}):
            u += root[i, j] * F[j]
        g = u * w[0]
        shrink = g * w[1]
        for j in range({n}):
            R[i, j] = root[i, j] - shrink * F[j]
        t = 0.0
        for a in range({free}):
            u += lean[i, a] * L[a]
            S[i, a] = lean[i, a] - g * L[a]
            t += S[i, a] * L[a]
        t = t * w[3]
        for a in range({free}):
            S[i, a] -= t * L[a]
        m[i] = mean[i] + u * w[2]
"""

    def adjoint_source(self, name: str) -> str:
        """Text of the loops."""
        n, free = self.n, self.free
        return f"""
def {name}(mean, root, lean, F, L, w, c_m, c_R, c_S, g_m, g_R, g_S, g_F, g_L, g_w):
    for k in range(4):
        g_w[k] = 0.0
    for j in range({n}):
        g_F[j] = 0.0
    for a in range({free}):
        g_L[a] = 0.0
    for i in range({n}):
        u = 0.0
        for j in range({n}):
            u += root[i, j] * F[j]
        g = u * w[0]
        shrink = g * w[1]
        v = 0.0
        along = 0.0
        g_t = 0.0
        for a in range({free}):
            along += lean[i, a] * L[a]
            v += (lean[i, a] - g * L[a]) * L[a]
            g_t -= c_S[i, a] * L[a]
        t = v * w[3]
        g_u = c_m[i] * w[2]
        g_m[i] = c_m[i]
        g_w[2] += c_m[i] * (u + along)
        g_w[3] += g_t * v
        g_v = g_t * w[3]
        g_g = 0.0
        for a in range({free}):
            one = c_S[i, a] + g_v * L[a]
            g_L[a] += g_v * (lean[i, a] - g * L[a]) - t * c_S[i, a] - g * one + g_u * lean[i, a]
            g_g -= one * L[a]
            g_S[i, a] = one + g_u * L[a]
        g_shrink = 0.0
        for j in range({n}):
            g_shrink -= c_R[i, j] * F[j]
        g_g += g_shrink * w[1]
        g_w[1] += g_shrink * g
        g_w[0] += g_g * u
        g_u += g_g * w[0]
        for j in range({n}):
            g_F[j] += g_u * root[i, j] - shrink * c_R[i, j]
            g_R[i, j] = c_R[i, j] + g_u * F[j]
"""

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """The same on whole arrays."""
        mean, root, lean, F, L, w = arrays
        u = root @ F
        S = lean - xp.outer(u * w[0], L)
        S = S - xp.outer(S @ L * w[3], L)
        return mean + (u + lean @ L) * w[2], root - xp.outer(u * w[0] * w[1], F), S


class Gram(Differentiable):
    """Covariance (n, n) of a root (n, n) and sensitivities (n, f)."""

    __props__ = ("n", "free")

    def __init__(self, n: int, free: int) -> None:
        self.n, self.free = n, free
        self.reads = ((n, n), (n, free))
        self.writes = ((n, n),)

    def source(self, name: str) -> str:
        """Text of the loops."""
        return f"""
def {name}(R, S, C):
    for i in range({self.n}):
        for k in range({self.n}):
            x = 0.0
            for j in range({self.n}):
                x += R[i, j] * R[k, j]
            for a in range({self.free}):
                x += S[i, a] * S[k, a]
            C[i, k] = x
"""

    def adjoint_source(self, name: str) -> str:
        """Text of the loops."""

        def half(array: str, columns: int) -> str:
            return f"""
        for j in range({columns}):
            x = 0.0
            for k in range({self.n}):
                x += (c_C[i, k] + c_C[k, i]) * {array}[k, j]
            g_{array}[i, j] = x"""

        return f"def {name}(R, S, c_C, g_R, g_S):\n    for i in range({self.n}):{half('R', self.n)}{half('S', self.free)}\n"

    def compute(self, xp: Any, *arrays: Any) -> Sequence[Any]:
        """Return the sum of products."""
        root, lean = arrays
        return (root @ root.T + lean @ lean.T,)
