"""Minimisation in lanes, and Newton's method."""

import numpy as np
import pytest

from pm_sysid.likelihood.descent import descend, newton


def rosenbrock(points):
    x, y = points.T
    value = (1 - x) ** 2 + 100 * (y - x**2) ** 2
    return value, np.stack([-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)], axis=1)


def test_each_lane_finds_the_minimum_of_a_curved_valley():
    starts = np.random.default_rng(0).normal(size=(20, 2)) * [2, 5]
    ends = descend(rosenbrock, starts, np.ones(2), 300)
    assert ends.settled.all()
    assert ends.value.max() < 0.03
    alone = descend(rosenbrock, starts[3:4], np.ones(2), 300)
    np.testing.assert_array_equal(alone.x[0], ends.x[3])


def test_coordinates_of_different_sizes_need_their_scale():
    sizes = np.array([1e-6, 1.0, 1e4])

    def bowl(points):
        z = points / sizes - 3
        return 0.5 * np.sum(z**2, axis=1), z / sizes

    ends = descend(bowl, np.zeros((1, 3)), sizes, 50)
    np.testing.assert_allclose(ends.x[0] / sizes, 3.0, atol=1e-2)


def test_lanes_keep_away_from_places_without_a_value():
    def barrier(points):
        x = points[:, 0]
        with np.errstate(all="ignore"):
            value = np.where(x > 0, x - np.log(x), np.inf)
        return value, np.where(x > 0, 1 - 1 / np.where(x > 0, x, 1.0), 0.0)[:, None]

    ends = descend(barrier, np.array([[1e-3], [20.0], [-1.0]]), np.ones(1), 100)
    np.testing.assert_allclose(ends.x[:2, 0], 1.0, atol=0.02)
    assert ends.x[2, 0] == -1.0 and not np.isfinite(ends.value[2]) and not ends.settled[2]


def test_lanes_that_run_out_of_rounds_say_so():
    ends = descend(rosenbrock, np.array([[-1.2, 1.0]]), np.ones(2), 5)
    assert not ends.settled[0] and np.isfinite(ends.value[0])


def test_newton_polishes_and_gives_the_curvature():
    x, covariance, converged = newton(rosenbrock, np.array([0.8, 0.7]))
    assert converged
    np.testing.assert_allclose(x, 1.0, atol=1e-4)
    np.testing.assert_allclose(np.linalg.inv(covariance), [[802.0, -400.0], [-400.0, 200.0]], rtol=1e-3)


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_an_edge_or_a_slope_without_end_is_no_minimum(slope):
    def edge(points):
        x = points[:, 0]
        return np.where(x >= 1.0, x, np.inf), np.where(x >= 1.0, 1.0, 0.0)[:, None]

    def line(points):
        return slope * points[:, 0], np.full_like(points, slope)

    assert not newton(edge, np.array([1.0]))[2]
    assert not newton(line, np.array([1.0]))[2]


def test_a_cliff_beside_a_slope_is_no_minimum():
    """Differences of gradients take the cliffs for a curvature so large that no step is worth taking."""

    def ledge(points):
        x = points[:, 0]
        over = np.maximum(np.abs(x) - 1e-5, 0.0)
        return 60 * x + 1e14 * over**2, (60 + 2e14 * over * np.sign(x))[:, None]

    for start in (0.0, 5e-6, -9e-6):
        assert not newton(ledge, np.array([start]))[2]


def test_a_gradient_that_is_not_exact_does_not_keep_newton_from_its_end():
    def bowl(points):
        x = points[:, 0]
        return 0.5 * x**2, (x + 2e-3)[:, None]

    calls = []
    x, covariance, converged = newton(lambda p: calls.append(len(p)) or bowl(p), np.array([0.3]))
    assert converged and abs(x[0]) < 0.01 and sum(calls) < 100
    np.testing.assert_allclose(covariance, 1.0, rtol=1e-6)
