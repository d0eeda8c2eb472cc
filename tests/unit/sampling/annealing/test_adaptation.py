"""Shapes of proposals: long narrow ones are found from independent ones, and the numbers of a step are Vihola's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pm_sysid.sampling.annealing.adaptation import RENEWED, Shape, adapted, begun, exploring, multivariate_t


def test_one_step_is_that_of_robust_adaptive_metropolis() -> None:
    shape = begun(np.array([0.5, 2.0]))._replace(draws=7)
    step, accept = np.array([0.6, 0.8]), 0.9
    found = adapted(shape, 3.0 * step, accept, np.zeros(2), 1000)
    rate = min(1.0, 2 * 8**-0.66)
    expected = shape.root @ (np.eye(2) + rate * (accept - 0.234) * np.outer(step, step)) @ shape.root.T
    np.testing.assert_allclose(found.root @ found.root.T, expected, rtol=1e-12)
    assert found.draws == 8 and np.all(np.triu(found.root, 1) == 0)


def test_the_moments_are_those_of_the_draws_since_the_last_renewal() -> None:
    rng, shape, total = np.random.default_rng(0), begun(np.ones(3)), 200
    draws = rng.normal(5.0, 1.0, size=(60, 3))
    for draw in draws:
        shape = adapted(shape, rng.standard_normal(3), 0.234, draw, total)
    last = draws[int(RENEWED[1] * total) :]
    assert shape.since == 60 and len(last) == 0 and not shape.mean.any()
    for draw in draws[:20]:
        shape = adapted(shape, rng.standard_normal(3), 0.234, draw, total)
    np.testing.assert_allclose(shape.mean, draws[:20].mean(axis=0))
    np.testing.assert_allclose(shape.scatter / 19, np.cov(draws[:20].T))


@pytest.mark.parametrize("d, length, draws", [(1, 1e-4, 300), (2, 1e3, 1000), (6, 30.0, 2000)])
def test_a_ridge_is_found(d: int, length: float, draws: int) -> None:
    """A normal target whose axes differ by a factor; widths that fit none of them. The chain starts at its mode."""
    rng = np.random.default_rng(2)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    covariance = turn @ np.diag(np.geomspace(1.0, length, d) ** 2) @ turn.T if d > 1 else np.array([[length**2]])
    precision, q, shape = np.linalg.inv(covariance), np.zeros(d), begun(np.full(d, 0.1))
    for _ in range(draws):
        move = multivariate_t(rng, d)
        proposal = q + shape.root @ move
        ratio = 0.5 * (q @ precision @ q - proposal @ precision @ proposal)
        if np.log(rng.random()) < ratio:
            q = proposal
        shape = adapted(shape, move, float(np.exp(min(ratio, 0.0))), q, draws)
    spread = np.linalg.eigvals(precision @ shape.root @ shape.root.T).real
    assert spread.max() / spread.min() < 25.0 and 0.1 < np.sqrt(spread).mean() < 4.0


def test_other_proposals_count_by_their_draws_alone() -> None:
    shape = begun(np.ones(2))
    found = adapted(shape, None, 1.0, np.array([1.0, 2.0]), 100)
    assert found.draws == 1 and found.mean.tolist() == [1.0, 2.0]
    np.testing.assert_array_equal(found.root, shape.root)


def test_exploring_steps_are_symmetric_and_of_many_sizes() -> None:
    rng = np.random.default_rng(1)
    moves = np.array([exploring(rng, 2) for _ in range(4000)])
    assert abs(np.mean(moves > 0) - 0.5) < 0.03
    assert np.quantile(np.abs(moves), 0.1) < 0.2 and np.quantile(np.abs(moves), 0.9) > 30.0


def test_a_step_that_never_moves_shrinks_and_stays_a_factor() -> None:
    shape, rng = begun(np.array([1e-3, 1e3])), np.random.default_rng(0)
    for _ in range(500):
        shape = adapted(shape, multivariate_t(rng, 2), 0.0, np.zeros(2), 500)
    assert np.all(np.diag(shape.root) > 0) and np.all(np.diag(shape.root) < [1e-4, 1e2]) and np.isfinite(shape.root).all()


def test_what_cannot_be_a_covariance_changes_nothing() -> None:
    before = Shape(np.eye(2), 3, 0, np.zeros(2), np.zeros((2, 2)))
    after = adapted(before, np.array([np.nan, 1.0]), 0.5, np.zeros(2), 100)
    np.testing.assert_array_equal(after.root, before.root)


def test_steps_are_the_same_in_all_directions() -> None:
    rng = np.random.default_rng(1)
    moves = np.array([multivariate_t(rng, 2) for _ in range(4000)])
    assert stats.kstest(moves[:, 0], stats.t(5).cdf).pvalue > 1e-3
    angle = np.arctan2(moves[:, 1], moves[:, 0])
    assert stats.kstest(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-3
