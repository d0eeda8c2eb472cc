"""Prior mass that constraints leave: drawn until it is known, and its error goes with the masses."""

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.sampling.abc import unit_cube
from pm_sysid.sampling.abc.result import Masses
from pm_sysid.sampling.abc.unit_cube import Cube

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:pytensor", "ignore:.*:DeprecationWarning:pymc")


def ordered(n: int) -> pm.Model:
    """A measured position, and uniform corners in ascending order: one of n! orders."""
    with pm.Model() as model:
        x = pm.Uniform("x", -1.0, 1.0)
        corners = pm.Uniform("corners", 0.0, 1.0, shape=n)
        pm.Potential("order", pt.switch(pt.all(corners[1:] > corners[:-1]), 0.0, -np.inf))
        pm.Simulator("y", lambda rng, x, size=None: np.atleast_1d(x), x, observed=[0.0])
    return model


def test_a_small_mass_is_drawn_until_it_is_known() -> None:
    """With 100,000 draws the relative error was 0.27, and went nowhere."""
    mass = Cube(ordered(6)).constraint_mass([1])
    assert 0 < mass.error <= unit_cube.RELATIVE_ERROR
    assert abs(math.exp(mass.log) * math.factorial(6) - 1) < 4 * mass.error


def test_a_transform_that_cannot_take_a_value_is_a_constraint() -> None:
    with pm.Model() as model:
        corners = pm.Uniform(
            "corners", 0.0, 1.0, shape=3, transform=pm.distributions.transforms.ordered, initval=[0.2, 0.5, 0.7]
        )
        pm.Simulator("y", lambda rng, x, size=None: np.atleast_1d(x), corners[0], observed=[0.0])
    cube = Cube(model)
    assert cube.log_potential(np.array([[0.1, 0.2, 0.3], [0.1, 0.3, 0.2]])).tolist() == [0.0, -np.inf]
    mass = cube.constraint_mass([1])
    assert abs(math.exp(mass.log) * 6 - 1) < 4 * mass.error


def test_draws_follow_the_seed() -> None:
    cube = Cube(ordered(3))
    assert cube.constraint_mass([1]) == cube.constraint_mass([1]) != cube.constraint_mass([2])


def test_an_error_that_is_left_is_in_the_masses_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_cube, "MOST_BATCHES", 1)
    found = sid.sample_abc_ns(
        {"ordered": ordered(6), "once more": ordered(2)},
        300,
        distance=lambda y, s: float(np.hypot(s[0] - y[0], 0.1)),
        thresholds=sid.Thresholds(epsilon=0.5),
        execution=sid.Execution(max_simulations=300),
        random_seed=0,
        progressbar=False,
    )
    rounds = found["populations"].to_dataset()
    assert "few prior draws obey the constraints" in found.attrs["doubt"] and "'ordered' to" in found.attrs["doubt"]
    assert float(rounds["model_mass_se"][0]) > 0.05 * float(rounds["model_mass"][0])
    probability, error = rounds["model_probability"].values, rounds["model_probability_se"].values
    assert np.all(error > 0) and np.all(np.abs(probability - 0.5) < 4 * error)


def test_shared_errors_do_not_hide_what_a_run_has_lost() -> None:
    """The constraints' error is the same for particles and fresh candidates, whose difference it does not explain."""
    masses = Masses(np.array([3e-4, 3e-4]), np.array([1e-5, 1e-5]), np.array([0.5, 0.0]))
    assert "the probability of " in masses.against(np.array([0.95, 0.05]), ["one", "two"])
    assert np.all(masses.total_error >= masses.error) and masses.total_error[0] > 1e-4
    assert masses.probability_error(np.array([0.5, 0.5]))[0] > 0.1
