"""The prior: an integrated Wiener process in Nordsieck-scaled coordinates.

A coordinate and its first q derivatives, X = (x, x', ..., x^(q)), are written X = P xi with
P_i = sqrt(h) h^(q-i) / (q-i)!. In xi the transition and the diffusion do not depend on the step h (Eq. 15 of the
sequential paper in scaled form), and nothing overflows from q = 4 on, as it does in physical units.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np


@lru_cache
def transition(order: int) -> tuple[tuple[float, ...], ...]:
    """Scaled transition matrix A_ij = C(q-i, q-j), upper triangular, shape (q+1, q+1)."""
    n = order + 1
    return tuple(tuple(float(math.comb(order - i, order - j)) if j >= i else 0.0 for j in range(n)) for i in range(n))


@lru_cache
def diffusion_root(order: int) -> tuple[tuple[float, ...], ...]:
    """Lower Cholesky factor of the scaled diffusion Q_ij = 1 / (2q+1-i-j), shape (q+1, q+1).

    Q is a Hilbert matrix, read backwards: its factor is computed in exact fractions, since in floating point the last
    pivots of orders above five are mostly rounding.
    """
    n = order + 1
    a = [[Fraction(1, 2 * order + 1 - i - j) for j in range(n)] for i in range(n)]
    unit = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    pivots: list[Fraction] = []
    for j in range(n):
        pivots.append(a[j][j] - sum((unit[j][k] ** 2 * pivots[k] for k in range(j)), Fraction(0)))
        for i in range(j + 1, n):
            dot = sum((unit[i][k] * unit[j][k] * pivots[k] for k in range(j)), Fraction(0))
            unit[i][j] = (a[i][j] - dot) / pivots[j]
    return tuple(tuple(float(unit[i][j]) * math.sqrt(pivots[j]) for j in range(n)) for i in range(n))


def scales(order: int, step: float) -> np.ndarray:
    """Nordsieck scales P_i = sqrt(h) h^(q-i) / (q-i)!, shape (q+1,)."""
    powers = np.arange(order, -1, -1)
    result: np.ndarray = np.sqrt(step) * step**powers / np.array([math.factorial(k) for k in powers], dtype=float)
    return result
