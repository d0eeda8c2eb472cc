"""Angles count in one turn, wherever it begins: modes are listed once, and the prior integrates to one."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from pymc.distributions.transforms import Chain, circular, log
from scipy.stats import vonmises

import pm_sysid as sid
from pm_sysid.inference import sample as module
from pm_sysid.likelihood.circular import in_other_turns, is_circular, middle_of_turn, no_wider_than_turn, same_turn
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.global_search import Peak
from pm_sysid.sampling.smc.particle_state import Start
from pm_sysid.sampling.smc.turns import turns_about, turns_by_prior

TURN = 2 * np.pi


def phases(true: np.ndarray | float, noise: float = 0.2, concentration: float = 0.7) -> pm.Model:
    """A phase, or a vector of them, of which noisy sines and cosines are measured."""
    true = np.asarray(true)
    both = np.stack([np.cos(true), np.sin(true)])
    y = both + noise * np.random.default_rng(0).standard_normal((20, *both.shape))
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0.5, concentration, shape=true.shape)
        pm.Normal("y", pm.math.stack([pm.math.cos(angle), pm.math.sin(angle)]), noise, observed=y)
    return model


def test_whole_turns_are_added_to_angles_only_and_to_those_outside_of_the_turn_only() -> None:
    points, mask = np.array([[7.0, 7.0], [-3.1, 9.0], [3.1, np.inf], [-4.0, 0.0]]), np.array([True, False])
    found = same_turn(points, np.array([1.0, 0.0]), mask)
    assert np.array_equal(found[:, 1], points[:, 1])
    np.testing.assert_allclose(found[:, 0], [7 - TURN, -3.1 + TURN, 3.1, -4.0 + TURN], rtol=1e-15)
    assert found[2, 0] == 3.1  # to the last digit
    assert same_turn(points, np.zeros(2), False) is points
    assert list(in_other_turns(points, np.array([1.0, 0.0]), mask)) == [True, True, False, True]
    assert not in_other_turns(same_turn(points, np.array([1.0, 0.0]), mask), np.array([1.0, 0.0]), mask).any()


def test_which_coordinates_are_angles() -> None:
    with pm.Model() as model:
        pm.LogNormal("k")
        pm.VonMises("angles", 0.0, 1.0, shape=(2,))
        pm.Uniform("phase", -np.pi, np.pi)
    assert list(Coordinates(model).circular) == [False, True, True, False]
    assert is_circular(Chain([log, circular])) and not is_circular(Chain([circular, log])) and not is_circular(None)


def test_a_turn_begins_where_no_draws_are() -> None:
    rng = np.random.default_rng(0)
    even = np.full(500, 1 / 500)
    assert middle_of_turn(rng.normal(1.0, 0.2, 500), even) == 0.0  # none near -pi
    across = middle_of_turn((rng.normal(np.pi, 0.3, 500) + np.pi) % TURN - np.pi, even)
    assert abs(across - np.pi) < 1.5 or abs(across + np.pi) < 1.5
    # Of two groups neither is cut.
    two = (np.concatenate([rng.normal(np.pi, 0.2, 250), rng.normal(1.0, 0.2, 250)]) + np.pi) % TURN - np.pi
    wall = turns_about(np.stack([two, two], axis=1), even, np.array([True, False])) + np.pi
    assert np.min(np.abs(np.angle(np.exp(1j * (two - wall[0]))))) > 0.3 and wall[1] == np.pi


def test_covariances_of_angles_end_at_the_circle() -> None:
    wide, mask = np.array([[100.0, 5.0, 1.0], [5.0, 100.0, 0.0], [1.0, 0.0, 0.01]]), np.array([True, False, True])
    found = no_wider_than_turn(wide, mask)
    assert found[0, 0] == pytest.approx(TURN**2 / 12) and found[1, 1] == 100.0 and found[2, 2] == 0.01
    assert found[0, 1] / np.sqrt(found[0, 0] * found[1, 1]) == pytest.approx(0.05) and np.array_equal(found, found.T)


def test_an_angle_of_which_little_is_known_is_left_to_sequential_sampling() -> None:
    run = module._Run(phases(1.0, 40.0, 0.01), 100, 100, 2, 1, 1, False)
    run._search(None)
    assert run.mode is not None and run.mode.converged and run.choice() == "ibis"


@pytest.mark.parametrize("centre", [0.0, 2.0, -3.0])
def test_the_prior_of_an_angle_integrates_to_one(centre: float) -> None:
    target = sid.Target(phases(1.0))
    target.coordinates.centre = np.array([centre])
    grid = np.linspace(-20, 20, 400_001)[:, None]
    density = np.exp(target.log_prior(grid))
    assert np.trapezoid(density, grid[:, 0]) == pytest.approx(1.0, abs=1e-3)
    inside = np.abs(grid[:, 0] - centre) < 3.1
    np.testing.assert_allclose(density[inside], vonmises.pdf(grid[inside, 0], 0.7, 0.5), rtol=1e-10)
    prior, slope, *_ = target.value_and_gradient(np.array([[centre], [centre + 4]]))
    assert np.isfinite(prior[0]) and prior[1] == -np.inf and np.isfinite(slope).all()
    draws = target.draw_prior(500, 1)
    assert np.all(np.abs(draws - centre) <= np.pi + 1e-9) and np.isfinite(target.log_prior(draws)).all()
    angle = target.constrained(draws)["angle"]
    np.testing.assert_allclose(target.unconstrained({"angle": angle}), draws, atol=1e-9)


def test_particles_from_elsewhere_come_into_the_turn_that_counts() -> None:
    kernel = sid.IBIS(20, model=phases(3.1, 0.1), random_seed=1)
    target = kernel.sequential.target
    assert abs(target.coordinates.centre[0]) > 0.5
    np.testing.assert_array_equal(turns_by_prior(target), target.coordinates.centre)  # whatever was set before
    x = target.draw_prior(20, 2)
    state = kernel.sequential.init(Start(x + TURN * np.arange(20)[:, None]))
    np.testing.assert_allclose(state.particles.x, x, atol=1e-9)
    again = kernel.sequential.wrapped(state._replace(particles=state.particles._replace(x=x - TURN), remembered=x + TURN))
    np.testing.assert_allclose(again.particles.x, x, atol=1e-9)
    np.testing.assert_allclose(again.remembered, x, atol=1e-9)


@pytest.mark.parametrize("true", [1.0, 3.13, [0.5, -3.1]])
def test_a_mode_is_listed_once_and_not_in_every_turn(true: float | list[float]) -> None:
    mode = sid.find_mode(phases(np.array(true)), random_seed=1, progressbar=False)
    assert mode.converged and len(mode.modes) == 1, mode.modes
    assert np.all(np.abs(mode.point) <= np.pi)
    away = np.angle(np.exp(1j * (mode.initvals["angle"] - np.array(true))))
    assert np.all(np.abs(away) < 0.2)


def test_the_distance_to_a_peak_is_that_of_the_nearest_copy() -> None:
    peak = Peak(np.array([3.1, 0.0]), np.diag([0.25, 1.0]), 0.0, True, circular=np.array([True, False]))
    np.testing.assert_allclose(peak.distance(np.array([[3.1 + 3 * TURN, 1.0], [3.6 - TURN, 0.0]])), [1.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("true", [1.0, 3.1])
def test_the_evidence_of_an_angle_is_that_of_one_turn(true: float) -> None:
    model = phases(true)
    target = sid.Target(model)
    grid = np.linspace(-np.pi, np.pi, 20_001)[:, None]
    height = target.log_prior(grid) + target.log_likelihood(grid)
    exact = np.log(np.trapezoid(np.exp(height - height.max()), grid[:, 0])) + height.max()
    quiet = {"model": model, "cores": 1, "random_seed": 3, "progressbar": False}
    for idata in (sid.sample_ibis(300, chains=2, **quiet), sid.sample(draws=400, chains=2, method="independent", **quiet)):
        found = sid.log_evidence(idata)
        assert found.doubt == "" and abs(found.value - exact) < max(4 * found.error, 0.03)
        assert np.all(np.abs(np.angle(np.exp(1j * (idata.posterior["angle"].values - true)))) < 0.5)
