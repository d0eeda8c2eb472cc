"""Local ellipsoids of the ABC nested sampler, and how often they and each model are drawn from."""

import numpy as np
import pytest
from scipy import stats

from pm_sysid.sampling.abc.cover import cover, normal_scores
from pm_sysid.sampling.abc.ellipsoids import around, whole_cube
from pm_sysid.sampling.abc.population import MOST_LOCAL, ProposalProbabilities, emptiness, shortage


@pytest.mark.slow
def test_a_cover_is_drawn_from_as_it_says() -> None:
    """Two clumps: nearly all of the cover is on both and not between, and its density integrates to one."""
    rng = np.random.default_rng(8)
    points = np.concatenate([[0.2, 0.2], [0.8, 0.7]], dtype=float).reshape(2, 1, 2) + 0.02 * rng.standard_normal((2, 150, 2))
    points = points.reshape(300, 2)
    found, rows = cover(points, np.ones(300), around(points, np.ones(300), 1.1, whole_cube(2)), 40, 0.5)
    assert np.allclose(found.centres, normal_scores(points[rows])) and found.shares.sum() == pytest.approx(1)
    grid = (np.stack(np.meshgrid(np.arange(600), np.arange(600)), axis=-1).reshape(-1, 2) + 0.5) / 600
    density = np.exp(found.log_density(grid))
    assert density.mean() == pytest.approx(1.0, rel=0.02)
    between = np.all(np.abs(grid - 0.5) < 0.1, axis=1)
    assert density[between].mean() < 0.2
    draw = (rng.random(100_000), rng.standard_normal((100_000, 2)), rng.random(100_000))
    drawn = found.draw(*draw)
    assert np.all((drawn > 0) & (drawn < 1)) and np.isfinite(found.log_density(drawn)).all()
    assert np.allclose(drawn.mean(axis=0), (density[:, None] * grid).mean(axis=0), atol=0.005)
    # importance weights, which would show sizes that are not drawn as often as they say
    assert np.mean((np.abs(drawn - 0.2).max(axis=1) < 0.03) / np.exp(found.log_density(drawn))) == pytest.approx(
        0.06**2, rel=0.05
    )


def test_the_centre_of_an_ellipsoid_can_be_left_out() -> None:
    """Particles that lie far from each other are not accepted because each lies in its own ellipsoid."""
    points = np.random.default_rng(3).random((60, 2))
    found, rows = cover(points, np.ones(60), whole_cube(2), 40, 0.5)
    own = found.densities(points)[rows, np.arange(len(rows))] * found.shares
    apart = np.exp(found.log_density(points)) - np.exp(found.log_density(points, rows))
    assert np.allclose(apart[rows], own) and np.allclose(np.delete(apart, rows), 0)


def test_where_particles_are_few_a_cover_is_as_dense() -> None:
    """A bent ridge of which one half has a twentieth of the particles: by equal shares these would have few offspring."""
    rng = np.random.default_rng(5)
    angle = np.pi * np.concatenate([0.5 * rng.random(190), 0.5 + 0.5 * rng.random(10)])
    radius = 0.4 + 0.002 * rng.random(200)
    points = np.stack([0.5 + radius * np.cos(angle), 0.1 + radius * np.sin(angle)], axis=1)
    weights = np.where(angle > 0.5 * np.pi, 19.0, 1.0)
    found, _ = cover(points, weights, around(points, weights, 1.1, whole_cube(2)), 100, 0.5)
    drawn = found.draw(rng.random(200_000), rng.standard_normal((200_000, 2)), rng.random(200_000))
    away = drawn - [0.5, 0.1]
    hit = np.abs(np.linalg.norm(away, axis=1) - 0.401) < 0.001
    few = np.mean(away[hit, 0] < 0)
    assert few > 0.15, few  # half of the mass; with equal shares 0.01


def test_a_region_at_the_edge_of_a_prior_is_not_thin_in_normal_scores() -> None:
    """A product of two normal quantiles' exponentials: a straight line, all along which the cover is as dense."""
    rng = np.random.default_rng(6)
    z = 1.2 * rng.standard_normal(300)
    points = stats.norm.cdf(np.stack([z, 0.3 - z + 0.01 * rng.standard_normal(300)], axis=1))
    found, _ = cover(points, np.ones(300), around(points, np.ones(300), 1.1, whole_cube(2)), 100, 0.5)
    drawn = normal_scores(found.draw(rng.random(20_000), rng.standard_normal((20_000, 2)), rng.random(20_000)))
    assert np.mean(np.abs(drawn.sum(axis=1) - 0.3) < 0.03) > 0.4
    assert np.std(drawn[:, 0]) > 1.0


def test_very_few_particles_have_a_cover() -> None:
    points = np.array([[0.2, 1e-9, 0.5], [0.9, 0.5, 1.0]])
    found, _ = cover(points, np.ones(2), whole_cube(3), 100, 0.5)
    drawn = found.draw(np.full(9, 0.4), np.random.default_rng(1).standard_normal((9, 3)), np.full(9, 0.2))
    assert np.isfinite(found.log_density(drawn)).all() and np.all((drawn >= 0) & (drawn <= 1))


def test_local_ellipsoids_are_preferred_where_the_other_is_empty() -> None:
    assert emptiness(0.3, 0.9) == 0.0
    assert emptiness(0.001, 0.0005) == 0.0  # they are no better
    assert emptiness(0.001, 0.5) > 0.99
    probabilities = ProposalProbabilities(0.3, 0.05, (0.0, 1.0))
    assert probabilities.local_of(0) == 0.05
    assert probabilities.local_of(1) == pytest.approx(0.7 * MOST_LOCAL) and ProposalProbabilities(0.1, 0.5).local_of(1) == 0.5


def test_a_model_whose_particles_are_too_few_for_its_weight_is_short_of_them() -> None:
    assert shortage(np.full(240, 0.5 / 240), 3, 500) == 1.0
    assert shortage(np.full(10, 0.5 / 10), 3, 500) == pytest.approx(12.5)  # it should have 125
    assert shortage(np.full(10, 0.02 / 10), 3, 500) == pytest.approx(2.0)  # 20, for its shape
    assert shortage(np.full(2, 0.001), 3, 500) == 1.0  # a model that dies out
