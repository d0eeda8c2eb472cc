"""The prior in closed form, and the square-root algebra on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.basic import Variable

from pm_sysid.steps.iwp import diffusion_root, scales, transition
from pm_sysid.steps.square_root import Matrix, Vector, correct, project, triangularise
from pm_sysid.symbolic.scalars import Scalar, evaluate, symbols

ORDERS = range(1, 9)
STEPS = (0.7, 2.5e-4)
RNG = np.random.default_rng(8)


def physical_transition(order: int, step: float) -> np.ndarray:
    """Matrix exponential of the chain of integrators x^(i)' = x^(i+1), by its series (it ends).

    Not by `scipy.linalg.expm`, of which the entries below 1e-16 have no digit right.
    """
    generator = np.diag(np.ones(order), 1) * step
    return sum(np.linalg.matrix_power(generator, k) / math.factorial(k) for k in range(order + 1))


# ---- prior ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("order", ORDERS)
def test_transition_is_the_exponential_of_a_chain_of_integrators(order: int, step: float) -> None:
    """Would fail for a wrong binomial or a wrong scale of any level."""
    P = scales(order, step)
    A = P[:, None] * np.array(transition(order)) / P
    assert_allclose(A, physical_transition(order, step), rtol=1e-13, atol=0)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("order", ORDERS)
def test_diffusion_is_the_integral_of_the_noise(order: int, step: float) -> None:
    """Would fail for a wrong diffusion, or scales that leave it a function of the step."""
    L = scales(order, step)[:, None] * np.array(diffusion_root(order))

    nodes, weights = np.polynomial.legendre.leggauss(order + 1)  # exact: the integrand has degree 2 q at most
    integral = np.zeros((order + 1, order + 1))
    for x, w in zip((nodes + 1) / 2 * step, weights / 2 * step, strict=True):
        column = physical_transition(order, x)[:, -1]
        integral += w * np.outer(column, column)
    assert_allclose(L @ L.T, integral, rtol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_diffusion_in_closed_form(order: int) -> None:
    """Would fail where Q_ij = h^(2q+1-i-j) / ((2q+1-i-j)(q-i)!(q-j)!) does, to the last digits."""
    q, h = order, 0.3
    L = scales(q, h)[:, None] * np.array(diffusion_root(q))
    for i in range(q + 1):
        for j in range(q + 1):
            e = 2 * q + 1 - i - j
            exact = h**e / (e * math.factorial(q - i) * math.factorial(q - j))
            assert L[i] @ L[j] == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize("order", [*ORDERS, 11])
def test_diffusion_root_keeps_its_small_pivots(order: int) -> None:
    """Would fail if the factor were taken in floating point: its last pivots would be rounding."""
    n, L = order + 1, np.array(diffusion_root(order))
    assert np.all(np.triu(L, 1) == 0)
    assert np.all(np.diag(L) > 0)
    # The determinant of the Hilbert matrix, c_n^4 / c_2n with c_n = prod i!; reading it backwards changes nothing.
    c = [Fraction(math.prod(math.factorial(i) for i in range(1, m))) for m in (n, 2 * n)]
    assert np.sum(np.log(np.diag(L))) == pytest.approx(0.5 * math.log(c[0] ** 4 / c[1]), rel=1e-13)
    # 1 / L_qq^2 is the last corner of the inverse of Q: (q+1)^2, the first one of the inverse of a Hilbert matrix.
    assert L[-1, -1] == pytest.approx(1 / (order + 1), rel=1e-13)


def test_two_half_steps_are_one_step() -> None:
    """Would fail if transition, diffusion and scales did not belong to one process (Chapman-Kolmogorov)."""
    for order in ORDERS:
        P, half = scales(order, 1.0), scales(order, 0.5)
        A = half[:, None] * np.array(transition(order)) / half
        L = half[:, None] * np.array(diffusion_root(order))
        whole = P[:, None] * np.array(diffusion_root(order))
        assert_allclose(A @ A * np.outer(1 / P, P), transition(order), rtol=1e-13)
        assert_allclose(A @ L @ L.T @ A.T + L @ L.T, whole @ whole.T, rtol=1e-12)


# ---- square roots ---------------------------------------------------------------------------------------------------


def symbolic(values: np.ndarray, prefix: str) -> tuple[Matrix, dict[Variable, float]]:
    """Matrix of scalar inputs and their values; zeros above a diagonal stay numbers, as in the filter."""
    names = symbols(prefix, values.size)
    rows: Matrix = [list(names[i * values.shape[1] : (i + 1) * values.shape[1]]) for i in range(len(values))]
    return rows, dict(zip(names, values.ravel().tolist(), strict=True))


def numbers(rows: Sequence[Sequence[Scalar]], values: dict[Variable, float]) -> np.ndarray:
    """Evaluate a matrix of scalars."""
    flat = evaluate([x for row in rows for x in row], values)
    return np.array(flat).reshape(len(rows), -1)


def triangular(values: np.ndarray, prefix: str) -> tuple[Matrix, dict[Variable, float]]:
    """As `symbolic`, with what lies above the diagonal as the number zero."""
    rows, known = symbolic(values, prefix)
    return [[x if j <= i else 0.0 for j, x in enumerate(row)] for i, row in enumerate(rows)], known


@pytest.mark.parametrize("columns", [1, 3, 5, 8])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_triangularise_is_the_qr_decomposition(n: int, columns: int) -> None:
    """Would fail for a wrong reflection, a root that is not triangular, or one of another covariance."""
    diffusion = np.tril(RNG.normal(size=(n, n)))
    diffusion[np.diag_indices(n)] = np.abs(diffusion.diagonal()) + 0.1
    spread = RNG.normal(size=(n, columns)) * 10.0 ** RNG.uniform(-3, 3, size=(n, 1))
    (a, known_a), (b, known_b) = triangular(diffusion, "a"), symbolic(spread, "b")
    root = numbers(triangularise(a, b), known_a | known_b)
    assert np.all(np.triu(root, 1) == 0)
    R = np.linalg.qr(np.hstack([diffusion, spread]).T, mode="r").T
    assert_allclose(np.abs(root), np.abs(R), rtol=1e-11, atol=1e-13 * np.abs(R).max(axis=1).min())
    covariance = diffusion @ diffusion.T + spread @ spread.T
    scale = np.sqrt(np.diag(covariance))
    assert_allclose(root @ root.T / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=1e-14)


@pytest.mark.parametrize("symbolic_zero", [False, True])
def test_triangularise_of_a_known_state(symbolic_zero: bool) -> None:
    """Would fail if a spread of zero (as a number or as a value) gave 0/0, or anything but the diffusion."""
    diffusion = np.array(diffusion_root(5))
    a, known = triangular(diffusion, "a")
    b: Matrix = [[0.0] * 6 for _ in range(6)]
    if symbolic_zero:
        b, more = symbolic(np.zeros((6, 6)), "b")
        known |= more
    root = numbers(triangularise(a, b), known)
    assert_allclose(root @ root.T, diffusion @ diffusion.T, rtol=1e-14)
    assert_allclose(np.abs(root), diffusion, rtol=1e-15)


def test_triangularise_keeps_a_small_diffusion_beside_a_large_spread() -> None:
    """Would fail if pivots were lost to cancellation: the determinant shows the smallest of them."""
    diffusion = np.array(diffusion_root(6)) * 1e-6
    spread = np.outer(np.arange(1.0, 8.0), [1.0])  # rank one
    (a, known_a), (b, known_b) = triangular(diffusion, "a"), symbolic(spread, "b")
    root = numbers(triangularise(a, b), known_a | known_b)
    # det(D D' + b b') = det(D)^2 (1 + |D^-1 b|^2)
    x = np.linalg.solve(diffusion, spread[:, 0])
    expected = np.log(np.diag(diffusion)).sum() + 0.5 * np.log1p(x @ x)
    assert np.log(np.abs(np.diag(root))).sum() == pytest.approx(expected, rel=1e-9)


def update(root: np.ndarray, h: np.ndarray, weight: float, rest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evaluate `project` and `correct`: root' h, gain, new root."""
    (rows, known), names = symbolic(root, "l"), symbols("h", len(h))
    w, r = symbols("w", 2)
    known |= dict(zip(names, h.tolist(), strict=True)) | {w: weight, r: rest}
    f: Vector = project(rows, list(names))
    gain, new = correct(rows, f, w, r)
    return numbers([f], known)[0], numbers([gain], known)[0], numbers(new, known)


@pytest.mark.parametrize("noise", [0.0, 1e-8, 0.3, 1e6])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 5)])
def test_correct_is_the_kalman_update(shape: tuple[int, int], noise: float) -> None:
    """Would fail for a wrong factor in Potter's form (it must hold for any noise, zero included, and any root)."""
    root, h = RNG.normal(size=shape), RNG.normal(size=shape[0])
    P = root @ root.T
    s = h @ P @ h + noise
    f, gain, new = update(root, h, 1 / s, noise / s)
    assert_allclose(f, root.T @ h, rtol=1e-13, atol=1e-14)
    assert_allclose(gain, P @ h / s, rtol=1e-12, atol=1e-14)
    assert_allclose(new @ new.T, P - np.outer(P @ h, P @ h) / s, atol=1e-12 * np.abs(P).max())


def test_correct_with_an_exact_constraint() -> None:
    """Would fail if a constraint without noise left variance in its direction; rest may be the number zero."""
    root, h = RNG.normal(size=(4, 4)), RNG.normal(size=4)
    rows, known = symbolic(root, "l")
    f = project(rows, h.tolist())
    s = float(h @ root @ root.T @ h)
    gain, new = correct(rows, f, 1 / s, 0.0)
    updated = numbers(new, known)
    assert_allclose(h @ updated, 0.0, atol=1e-13)
    assert h @ numbers([gain], known)[0] == pytest.approx(1.0, rel=1e-13)


@pytest.mark.parametrize("rest", [0.0, 0.5])
def test_correct_leaves_a_missing_sample_alone(rest: float) -> None:
    """Would fail if weight zero did not mean: no gain, the same root to the last digit."""
    root, h = RNG.normal(size=(4, 4)), RNG.normal(size=4)
    _, gain, new = update(root, h, 0.0, rest)
    assert np.all(gain == 0)
    assert np.array_equal(new, root)


def test_correct_of_a_known_state() -> None:
    """Would fail if a root of zero (a known start) gave anything but no gain and a root of zero."""
    _, gain, new = update(np.zeros((3, 3)), RNG.normal(size=3), 1 / 0.04, 1.0)
    assert np.all(gain == 0) and np.all(new == 0)
