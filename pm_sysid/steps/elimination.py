"""Linear systems inside a step: Gaussian elimination written out, with what is structurally zero left out.

The matrices of an implicit step, ``I / gamma - h J``, have the pivots on their diagonal: straight-line code cannot exchange
rows by size, and for the Jacobian of a stable system it need not (rows or columns are dominated by the diagonal, or the
symmetric part is positive definite; Golub and Van Loan 2013, Section 4.2). The order of the pivots is free. Markowitz' rule
takes the one that fills fewest zeros, so that a chain of masses or a heated wall costs as much as its band.
"""

from __future__ import annotations

from collections.abc import Sequence

from pm_sysid.steps.square_root import Matrix, Vector
from pm_sysid.symbolic.scalars import Scalar, add, div, is_number, mul, sub


class Factors:
    """Triangular factors of a matrix (n, n) of scalars with pivots on the diagonal, for many right-hand sides.

    Parameters
    ----------
    matrix : nested lists, shape (n, n)
        Scalars; numbers that are zero are taken for structural zeros. Where a pivot vanishes, solutions are not finite.
    """

    def __init__(self, matrix: Matrix) -> None:
        n = len(matrix)
        rows = [{j: a for j, a in enumerate(row) if not is_number(a, 0.0)} for row in matrix]
        left = set(range(n))
        #: For each pivot in order: its index, its inverse, the multipliers of the rows below, and its row to the right.
        self.pivots: list[tuple[int, Scalar, dict[int, Scalar], dict[int, Scalar]]] = []
        while left:
            k = min(left, key=lambda i: (self._fill(rows, left, i), i))
            left.remove(k)
            inverse = div(1.0, rows[k].get(k, 0.0))
            right = {j: rows[k][j] for j in sorted(left) if j in rows[k]}
            below = {i: mul(rows[i].pop(k), inverse) for i in sorted(left) if k in rows[i]}
            for i, factor in below.items():
                for j, a in right.items():
                    rows[i][j] = sub(rows[i].get(j, 0.0), mul(factor, a))
            self.pivots.append((k, inverse, below, right))

    @staticmethod
    def _fill(rows: Sequence[dict[int, Scalar]], left: set[int], k: int) -> int:
        """Bound on the zeros that a pivot fills (Markowitz 1957)."""
        below = sum(k in rows[i] for i in left if i != k)
        right = sum(j in left for j in rows[k] if j != k)
        return below * right

    def solve(self, b: Vector) -> Vector:
        """Solution (n,) for a right-hand side (n,)."""
        x = list(b)
        for k, _, below, _ in self.pivots:
            for i, factor in below.items():
                x[i] = sub(x[i], mul(factor, x[k]))
        for k, inverse, _, right in reversed(self.pivots):
            x[k] = mul(inverse, sub(x[k], add(*(mul(a, x[j]) for j, a in right.items()))))
        return x
