"""Ridges that lead away from a mode: found where a posterior falls slowly, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln

from pm_sysid.likelihood.ridges import BELOW, ridges

RNG = np.random.default_rng(5)


def quadratic(covariance: np.ndarray, centre: np.ndarray) -> object:
    inverse = np.linalg.inv(covariance)

    def batch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = x - centre
        return 0.5 * np.einsum("bi,ij,bj->b", away, inverse, away), away @ inverse

    return batch


def test_a_gaussian_has_none() -> None:
    root = RNG.standard_normal((6, 6)) * np.exp(RNG.uniform(-4, 4, (6, 1)))
    covariance, centre = root @ root.T, RNG.standard_normal(6)
    found = ridges(quadratic(covariance, centre), centre, covariance)
    assert found.points.shape == (0, 6) and found.covariances.shape == (0, 6, 6)


#: Standard deviation across the curve on which the posterior below lies.
THIN = 0.05


def curved(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's t with three degrees of freedom in the first unknown; the others follow its square."""
    v, w = x[:, 0], x[:, 1:]
    apart = (w - (v**2)[:, None]) / THIN
    value = 2 * np.log1p(v**2 / 3) + 0.5 * np.sum(apart**2, axis=1)
    first = 4 * v / (3 + v**2) - 2 * v * np.sum(apart, axis=1) / THIN
    return value, np.column_stack([first, apart / THIN])


def test_points_lie_on_a_curved_ridge_and_covariances_follow_it() -> None:
    covariance = np.diag([0.75, THIN**2, THIN**2, THIN**2])
    found = ridges(curved, np.zeros(4), covariance)
    v, w = found.points[:, 0], found.points[:, 1:]
    assert np.sum(v > 3) >= 2 and np.sum(v < -3) >= 2  # to both sides
    np.testing.assert_allclose(w, np.repeat((v**2)[:, None], 3, axis=1), atol=2 * THIN)
    assert np.all(curved(found.points)[0] < BELOW)
    for point, about in zip(found.points, found.covariances, strict=True):
        spread = np.sqrt(np.linalg.eigvalsh(about))
        assert np.all(spread[:3] < 3 * THIN) and spread[3] > 1.0  # thin across, wide along
        direction = np.linalg.eigh(about)[1][:, 3]
        tangent = np.array([1.0, *(2 * point[0],) * 3]) / np.hypot(1.0, 2 * np.sqrt(3) * abs(point[0]))
        assert abs(direction @ tangent) > 0.9


def test_a_long_tail_to_one_side_is_followed_to_that_side() -> None:
    """The logarithm of an exponential variable: e^x falls off at once, and to the left the density falls as e^x only."""

    def batch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):
            return np.sum(np.exp(x) - x, axis=1) + gammaln(1.0), np.exp(x) - 1

    found = ridges(batch, np.zeros(2), np.eye(2))
    assert len(found.points) > 2 and np.all(found.points.min(axis=1) < -4)
    np.testing.assert_allclose(found.points.max(axis=1), 0.0, atol=0.05)


def test_one_unknown_has_its_tails() -> None:
    def batch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 2 * np.log1p(x[:, 0] ** 2 / 3), 4 * x / (3 + x**2)

    found = ridges(batch, np.zeros(1), np.array([[0.75]]))
    assert len(found.points) >= 4 and found.covariances.shape == (len(found.points), 1, 1)
    assert np.all(found.covariances > 0) and np.any(found.points < -3) and np.any(found.points > 3)


def test_impossible_points_end_a_ridge() -> None:
    def batch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = curved(x)
        outside = x[:, 0] > 1.5
        return np.where(outside, np.inf, value), np.where(outside[:, None], 0.0, gradient)

    found = ridges(batch, np.zeros(4), np.diag([0.75, THIN**2, THIN**2, THIN**2]))
    assert len(found.points) and np.all(found.points[:, 0] < 1.5)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale: float) -> None:
    def batch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, gradient = curved(x / scale)
        return value, gradient / scale

    covariance = np.diag([0.75, THIN**2, THIN**2, THIN**2])
    expected = ridges(curved, np.zeros(4), covariance)
    found = ridges(batch, np.zeros(4), scale**2 * covariance)
    np.testing.assert_allclose(found.points / scale, expected.points, atol=1e-3)
    np.testing.assert_allclose(found.covariances / scale**2, expected.covariances, rtol=0.01, atol=1e-4)
