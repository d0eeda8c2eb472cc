"""Ellipsoids and populations of the ABC nested sampler."""

from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pm_sysid.sampling.abc.checkpoint import ABCCheckpoint, RunState
from pm_sysid.sampling.abc.ellipsoids import Ellipsoid, Pieces, around, pieces, whole_cube
from pm_sysid.sampling.abc.population import (
    Part,
    Population,
    ProposalProbabilities,
    initial_proposals,
    living_parts,
    next_proposals,
    next_threshold,
    share_to_drop,
)
from pm_sysid.sampling.abc.unit_cube import Cube


def test_draws_are_uniform_in_the_ellipsoid() -> None:
    rng = np.random.default_rng(1)
    ellipsoid = Ellipsoid(np.array([0.3, -0.2, 1.0]), np.array([[2.0, 0, 0], [1.0, 0.5, 0], [0.1, 0.2, 0.3]]))
    points = ellipsoid.draw(rng.standard_normal((20_000, 3)), rng.random(20_000))
    assert ellipsoid.holds(points).all()
    z = np.linalg.solve(ellipsoid.root, (points - ellipsoid.mean).T)
    assert stats.kstest(np.sum(z**2, axis=0) ** 1.5, "uniform").pvalue > 1e-3  # volume inside the radius
    assert np.abs(z.mean(axis=1)).max() < 4 * np.sqrt(1 / 5 / 20_000)


def test_volume_is_that_of_the_points_it_holds() -> None:
    rng = np.random.default_rng(2)
    ellipsoid = Ellipsoid(np.full(4, 0.5), 0.3 * np.linalg.cholesky(np.eye(4) + 0.5))
    share = ellipsoid.holds(rng.uniform(-0.5, 1.5, (400_000, 4))).mean()
    assert 16 * share == pytest.approx(np.exp(ellipsoid.log_volume), rel=0.05)


def test_ellipsoid_around_particles_holds_them() -> None:
    rng = np.random.default_rng(3)
    points = 0.5 + 0.01 * rng.standard_normal((100, 5)) @ rng.standard_normal((5, 5))
    tight = around(points, rng.random(100), 1.0 + 1e-9, whole_cube(5))
    assert tight.holds(points).all()
    wide = around(points, np.ones(100), 1.1, whole_cube(5))
    narrow = around(points, np.ones(100), 1.0, whole_cube(5))
    assert wide.log_volume - narrow.log_volume == pytest.approx(5 * np.log(1.1))


def test_few_particles_keep_the_shape_and_never_collapse() -> None:
    before = Ellipsoid(np.full(3, 0.5), 0.1 * np.diag([1.0, 0.1, 0.01]))
    one = around(np.array([[0.5, 0.5, 0.5]]), np.ones(1), 1.1, before)
    assert np.allclose(one.root, 1.1 * 0.5 * before.root)
    flat = around(np.full((50, 3), 0.5), np.ones(50), 1.1, before)
    assert np.isfinite(flat.log_volume) and flat.holds(np.full((1, 3), 0.5)).all()


def test_large_ellipsoids_are_the_cube() -> None:
    points = np.random.default_rng(4).random((500, 2))
    found = around(points, np.ones(500), 1.1, whole_cube(2))
    assert found.root is None and found.log_volume == 0.0


def test_the_cube_is_the_prior() -> None:
    with pm.Model() as model:
        mu = pm.Normal("mu", 1.0, 2.0)
        pm.LogNormal("scale", mu, 0.5, shape=2)
        pm.Uniform("x", -3.0, 5.0)
        pm.Potential("order", pm.math.switch(model["scale"][0] < model["scale"][1], 0.0, -np.inf))
    cube = Cube(model)
    assert cube.labels == ["mu", "scale[0]", "scale[1]", "x"] and cube.size == 4
    points = np.random.default_rng(5).random((7, 4))
    values = cube.values(points)
    expected = stats.norm(1.0, 2.0).ppf(points[:, 0])
    assert np.allclose(values["mu"], expected)
    assert np.allclose(values["scale"], np.exp(expected[:, None] + 0.5 * stats.norm.ppf(points[:, 1:3])))
    assert np.allclose(values["x"], -3 + 8 * points[:, 3])
    assert np.array_equal(cube.log_potential(points) == 0, values["scale"][:, 0] < values["scale"][:, 1])
    assert cube.log_mass == pytest.approx(np.log(0.5), abs=0.02)


def test_the_cube_refuses_what_it_cannot_invert() -> None:
    with pm.Model() as discrete:
        pm.Poisson("n", 3.0)
    with pytest.raises(ValueError, match="'n' is discrete"):
        Cube(discrete)
    with pm.Model() as many:
        pm.MvNormal("v", np.zeros(2), np.eye(2))
    with pytest.raises(ValueError, match="'v' is multivariate"):
        Cube(many)
    with pm.Model() as none:
        pm.VonMises("angle", 0.0, 1.0)
    with pytest.raises(ValueError, match="'angle' has no inverse cumulative distribution"):
        Cube(none).values(np.full((1, 1), 0.5))
    with pm.Model() as never:
        x = pm.Uniform("x", 0, 1)
        pm.Potential("no", pm.math.switch(x > 2, 0.0, -np.inf))
    with pytest.raises(ValueError, match="constraints contradict"):
        _ = Cube(never).log_mass
    with pm.Model() as empty:
        pm.Data("d", 1.0)
    with pytest.raises(ValueError, match="no free variables"):
        Cube(empty)


def population(distance: np.ndarray, model: np.ndarray | None = None) -> Population:
    n = len(distance)
    model = np.zeros(n, dtype=int) if model is None else model
    return Population(model, np.random.default_rng(0).random((n, 2)), distance, np.zeros(n), np.zeros(n), 200.0)


def test_thresholds_drop_the_share_that_is_asked_for() -> None:
    now = population(np.arange(100.0, 0.0, -1))
    assert next_threshold(now, 0.4) in (60.0, 61.0)  # the 40th or 41st largest of 100, 99, ...
    assert next_threshold(now, 1.0) == 11.0  # no more than 90 %
    assert next_threshold(now, 0.001) in (99.0, 100.0)
    light = Population(now.model, now.points, now.distance, np.where(now.distance > 50, -50.0, 0.0), now.log_pool, 200.0)
    assert next_threshold(light, 0.1) < 50  # particles of no weight hold nothing up


def test_concentration_raises_the_share() -> None:
    rng = np.random.default_rng(6)
    wide, narrow = population(rng.normal(100, 10, 500)), population(rng.normal(50, 2, 500))
    assert share_to_drop(wide, narrow, 0.1, 1) == pytest.approx(0.8, abs=0.05)  # peaks are as 1 to 5
    assert share_to_drop(narrow, wide, 0.1, 1) == 0.1
    assert share_to_drop(wide, population(np.full(500, 7.0)), 0.1, 1) == 0.1  # no density


def test_proposal_densities_are_those_of_the_draws() -> None:
    """Importance weights of candidates integrate functions over the cube."""
    rng = np.random.default_rng(7)
    prior, sizes = np.array([0.25, 0.75]), [2, 1]
    model = (np.arange(200) >= 150).astype(int)
    points = np.where(model[:, None] == 0, 0.5 + 0.05 * rng.standard_normal((200, 2)), 0.2 + 0.1 * rng.random((200, 2)))
    active = Population(model, points, rng.random(200), np.zeros(200), np.zeros(200), 1.0)
    start = initial_proposals(sizes, prior, np.log([0.5, 1.0]))
    assert np.allclose(start.models, [0.4, 0.6])
    proposals = next_proposals(
        start, active, 1.0, prior, ProposalProbabilities(0.2, 0.5), shrink=0.1, enlarge=1.2, uniform=0.3, particles=200
    )
    batch = next(proposals.batches([1, 2], 200_000))
    weight = np.exp(-proposals.log_density(batch.model, batch.points))
    for k, d in enumerate(sizes):
        mine, region = batch.model == k, proposals.regions[k]
        inside = mine & (region.standard.holds(batch.points[:, :d]))
        assert weight[inside].sum() / len(weight) == pytest.approx(np.exp(region.standard.log_volume), rel=0.05)
        centre = (weight[inside, None] * batch.points[inside, :d]).sum(axis=0) / weight[inside].sum()
        assert np.allclose(centre, region.standard.mean, atol=0.01)
    again = next(proposals.batches([1, 2], 200_000))
    assert np.array_equal(again.points, batch.points, equal_nan=True) and again.seed == batch.seed


def test_coordinates_that_points_fill_are_free() -> None:
    """A slab across the cube: an ellipsoid around it lies outside of the cube for the most part."""
    rng = np.random.default_rng(9)
    points = rng.random((100, 6))
    points[:, 2] = 0.4 + 0.001 * points[:, 2]
    found = around(points, np.ones(100), 1.1, whole_cube(6))
    assert found.free is not None and list(np.flatnonzero(found.bound)) == [2]
    assert found.holds(points).all() and np.exp(found.log_volume) == pytest.approx(0.0011, rel=0.1)
    drawn = found.draw(rng.standard_normal((20_000, 6)), rng.random(20_000), rng.random((20_000, 6)))
    assert found.holds(drawn).all()
    assert stats.kstest(drawn[:, 0], "uniform").pvalue > 1e-3
    low, width = found.mean[2] - found.root[0, 0], 2 * found.root[0, 0]
    assert stats.kstest((drawn[:, 2] - low) / width, "uniform").pvalue > 1e-3
    small = found.shrunken(points[0], 0.01)
    assert small.root.shape == (6, 6) and small.holds(points[:1]).all()


def test_few_points_have_an_ellipsoid_that_holds_others() -> None:
    """Thirty points in five dimensions: their own ellipsoid, 1.1 times as long, missed 6 % of what they came from."""
    rng = np.random.default_rng(10)
    held = []
    for _ in range(20):
        ball = Ellipsoid(np.full(5, 0.5), 0.01 * np.eye(5))
        points, others = (ball.draw(rng.standard_normal((n, 5)), rng.random(n)) for n in (30, 2000))
        held.append(around(points, np.ones(30), 1.1, whole_cube(5)).holds(others).mean())
    assert np.mean(held) > 0.98, np.mean(held)


def test_pieces_are_found_where_there_is_a_gap() -> None:
    rng = np.random.default_rng(11)
    left, right = 0.2 + 0.01 * rng.standard_normal((150, 3)), 0.8 + 0.002 * rng.standard_normal((50, 3))
    points = rng.permutation(np.concatenate([left, right]))
    found = pieces(points, np.ones(200), 1.1, around(points, np.ones(200), 1.1, whole_cube(3)))
    assert sorted(len(rows) for rows, _ in found) == [50, 150]
    assert all(ellipsoid.holds(points[rows]).all() for rows, ellipsoid in found)
    ball = Ellipsoid(np.full(3, 0.5), 0.01 * np.eye(3))
    one = ball.draw(rng.standard_normal((200, 3)), rng.random(200))
    ((rows, region),) = pieces(one, np.ones(200), 1.1, around(one, np.ones(200), 1.1, whole_cube(3)))
    assert len(rows) == 200 and region.holds(one).all()


def test_pieces_are_drawn_from_as_they_say() -> None:
    rng = np.random.default_rng(12)
    free = np.array([False, True])
    found = Pieces(
        (Ellipsoid(np.array([0.2, 0.5]), np.array([[0.05]]), free), Ellipsoid(np.full(2, 0.7), 0.1 * np.eye(2))),
        np.array([0.3, 0.7]),
    )
    grid = (np.stack(np.meshgrid(np.arange(500), np.arange(500)), axis=-1).reshape(-1, 2) + 0.5) / 500
    density = np.exp(found.log_density(grid))
    assert density.mean() == pytest.approx(1.0, rel=0.02)
    drawn = found.draw(rng.random(100_000), rng.standard_normal((100_000, 2)), rng.random(100_000), rng.random((100_000, 2)))
    assert np.allclose(drawn.mean(axis=0), (density[:, None] * grid).mean(axis=0), atol=0.005)
    assert np.isfinite(found.log_density(drawn)).all()


def test_a_piece_that_lives_is_not_thinned_out_at_once() -> None:
    """The farthest twenty of a hundred particles hold a fifth of the weight: the threshold falls no further than they allow."""
    now = population(np.arange(100.0, 0.0, -1))
    far = Part(np.arange(20), 9.5)
    assert next_threshold(now, 0.9) < 20
    assert now.below(next_threshold(now, 0.9, [far])).distance.max() == 90.0
    assert next_threshold(now, 0.9, [Part(np.arange(20), 21.0)]) <= now.distance.max()  # it falls all the same
    heavy = np.where(now.distance > 95, -0.0, -5.0)
    clumps = Population(
        now.model,
        0.5 + np.where(now.distance[:, None] > 50, 0.2, -0.2) + 0.01 * now.points,
        now.distance,
        heavy,
        now.log_pool,
        200.0,
    )
    parts = living_parts(clumps, initial_proposals([2], np.ones(1), np.zeros(1)), 1.1)
    assert sorted(len(p.rows) for p in parts) == [50, 50] and min(p.kept for p in parts) < 3 < max(p.kept for p in parts)


def test_a_checkpoint_keeps_pieces_and_free_coordinates(tmp_path: Path) -> None:
    rng = np.random.default_rng(13)
    points = rng.random((200, 3))
    points[:, 0] = np.where(points[:, 1] > 0.5, 0.2, 0.8) + 0.001 * points[:, 0]
    active = Population(np.zeros(200, dtype=int), points, rng.random(200), np.zeros(200), np.zeros(200), 1.0)
    start = initial_proposals([3], np.ones(1), np.zeros(1))
    around_them = next_proposals(
        start, active, 1.0, np.ones(1), ProposalProbabilities(0.1, 0.2), shrink=0.1, enlarge=1.1, uniform=0.3, particles=200
    )
    assert around_them.regions[0].pieces is not None
    saved = ABCCheckpoint(tmp_path / "run.nc", {})
    saved.save(RunState(1, [active], [], [(10, start), (20, around_them)]))
    _, (_, again) = saved.load([3]).mixture
    batch = next(around_them.batches([1], 500))
    assert np.array_equal(again.log_density(batch.model, batch.points), around_them.log_density(batch.model, batch.points))
