"""Elimination without pivoting: solutions against LAPACK, and what is structurally zero stays so."""

from __future__ import annotations

import numpy as np
import pytest
from pytensor.graph import graph_inputs

from pm_sysid.compat import io_toposort
from pm_sysid.steps.elimination import Factors
from pm_sysid.symbolic.scalars import evaluate, symbols


def solved(matrix: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, int]:
    """Solution by elimination, and the operations it takes; zeros of the matrix are structural."""
    n = len(b)
    entries, known = symbols("a", matrix.size), symbols("b", n)
    rows = [[entries[n * i + j] if matrix[i, j] else 0.0 for j in range(n)] for i in range(n)]
    outputs = Factors(rows).solve(list(known))
    values = dict(zip(entries, matrix.ravel(), strict=True)) | dict(zip(known, b, strict=True))
    used = {v: float(values[v]) for v in graph_inputs(outputs) if v in values}
    return np.array(evaluate(outputs, used)), len(list(io_toposort([], outputs)))


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_solutions_are_those_of_lapack(n: int) -> None:
    rng = np.random.default_rng(n)
    rates = rng.lognormal(0, 4, (n, n)) * (rng.random((n, n)) < 0.6)  # a network: columns sum to less than zero
    np.fill_diagonal(rates, 0.0)
    matrix = 4.7 * np.eye(n) - 0.3 * (rates - np.diag(rates.sum(axis=0) + rng.random(n)))
    b = rng.normal(size=n)
    np.testing.assert_allclose(solved(matrix, b)[0], np.linalg.solve(matrix, b), rtol=1e-11)


def test_a_chain_costs_as_much_as_its_band() -> None:
    """An arrow whose head comes first fills a matrix if its head is eliminated first."""

    def arrow(n: int) -> np.ndarray:
        matrix = np.eye(n) * np.arange(2.0, n + 2.0)
        matrix[0, 1:], matrix[1:, 0] = 0.1, 0.2
        return matrix

    counts = {n: solved(arrow(n), np.ones(n))[1] for n in (10, 20)}
    assert counts[20] < 2.3 * counts[10]
    np.testing.assert_allclose(solved(arrow(20), np.ones(20))[0], np.linalg.solve(arrow(20), np.ones(20)), rtol=1e-13)
