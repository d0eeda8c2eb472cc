"""Draws of a prior that potentials thin out: one limit and the same errors, whichever way the draws are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest
import scipy

from pm_sysid.likelihood import prior_draws
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.prior_draws import Prior, draw_prior

type Draw = Callable[[pm.Model, int], np.ndarray]


def together(model: pm.Model, draws: int) -> np.ndarray:
    return draw_prior(Coordinates(model), draws, 1)[:, 0]


def one_by_one(model: pm.Model, draws: int) -> np.ndarray:
    return Prior(model).draw(draws, np.random.default_rng(1))["x"]


def compiled_once(model: pm.Model, draws: int) -> np.ndarray:
    return Prior(model).particles(draws, np.random.default_rng(1))[:, 0]


WAYS = pytest.mark.parametrize("draw", [together, one_by_one, compiled_once])


def constrained(potential: Callable[[pm.Distribution], pm.Distribution]) -> pm.Model:
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("constraint", potential(x))
        pm.Normal("y", x, observed=np.zeros(3))
    return model


@WAYS
@pytest.mark.parametrize("draws", [1, 3])
def test_constraints_that_no_draw_obeys_are_refused_at_the_limit(
    draw: Draw, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prior_draws, "TRIED_TOGETHER", 200)
    monkeypatch.setattr(prior_draws, "TRIED_ONE_BY_ONE", 200)
    never = constrained(lambda x: pm.math.switch(x > 50, 0.0, -np.inf))
    with pytest.raises(ValueError, match=r"^0 of \d+ prior draws obey .* the constraints contradict the priors"):
        draw(never, draws)


@WAYS
def test_constraints_that_too_few_draws_obey_are_refused(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRIED_TOGETHER", "TRIED_ONE_BY_ONE"):
        monkeypatch.setattr(prior_draws, name, 100)
    monkeypatch.setattr(prior_draws, "TRIED_FOR_EACH", 2)
    rare = constrained(lambda x: pm.math.switch(x > 1.5, 0.0, -np.inf))
    with pytest.raises(ValueError, match=r"^[1-9]\d* of \d+ prior draws obey"):
        draw(rare, 1000)


@WAYS
def test_draws_that_obey_are_as_many_as_asked_for(draw: Draw) -> None:
    for draws in (1, 40):
        found = draw(constrained(lambda x: pm.math.switch(x > 1.0, 0.0, -np.inf)), draws)
        assert found.shape == (draws,) and found.min() > 1.0


@WAYS
def test_potentials_above_zero_are_refused(draw: Draw) -> None:
    with pytest.raises(ValueError, match="at most zero"):
        draw(constrained(lambda x: x**2), 5)


@WAYS
def test_impossible_parameters_of_a_potential_are_not_obeyed(draw: Draw) -> None:
    """The log density of a scale below zero is minus infinity, not an error."""
    found = draw(constrained(lambda x: pm.logp(pm.Normal.dist(0.0, x), 1.0)), 5)
    assert found.min() > 0


def test_particles_of_one_compiled_function_are_those_of_the_prior() -> None:
    """Of any number, the same for the same seed, and in law what is drawn one by one; also of variables drawn from others."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 2.0)
        pm.Normal("x", scale, scale, shape=2)
        pm.Normal("y", 0.0, 1.0, observed=np.zeros(3))
    prior = Prior(model)
    found = prior.particles(4000, np.random.default_rng(1))
    np.testing.assert_array_equal(found, prior.particles(4000, np.random.default_rng(1)))
    assert prior.particles(1, np.random.default_rng(1)).shape == (1, 3) and found.shape == (4000, 3)
    drawn = prior.coordinates.unconstrained(prior.draw(4000, np.random.default_rng(2)))
    for a, b in zip(found.T, drawn.T, strict=True):
        assert scipy.stats.ks_2samp(a, b).pvalue > 1e-3
    standard = (found[:, 1:] - np.exp(found[:, :1])) / np.exp(found[:, :1])
    assert scipy.stats.kstest(standard.ravel(), "norm").pvalue > 1e-3 and abs(np.corrcoef(standard.T)[0, 1]) < 0.06


def hierarchy() -> None:
    scale = pm.HalfNormal("scale")
    k = pm.Normal("k", 0.0, scale, shape=3)  # PyTensor looks at the first parameter alone where a size is given
    pm.Gamma("g", alpha=2.0, beta=pm.math.exp(k[:2]))


def correlated() -> None:
    mean, scale = pm.Normal("mean", 1.0, 2.0, shape=2), pm.HalfNormal("scale")
    pm.MvNormal("x", mean, np.eye(2) * scale)
    pm.LogNormal("y", mean[0], scale, shape=(2, 2))


def ones() -> None:
    scale = pm.HalfNormal("scale", shape=1)
    k = pm.Normal("k", 0.0, scale, shape=(1,))
    pm.Normal("x", k * np.arange(3.0), 1.0)
    pm.Normal("y", 0.0, pm.math.exp(k) + np.arange(3.0), shape=(2, 3))


@pytest.mark.parametrize("prior", [hierarchy, correlated, ones])
def test_what_is_drawn_from_other_variables_is_drawn_together(prior: Callable[[], None]) -> None:
    with pm.Model() as model:
        prior()
    coordinates = Coordinates(model)
    found = prior_draws.free_draws(coordinates, 4000, 1)
    each = Prior(model).draw(4000, np.random.default_rng(2))
    drawn = coordinates.unconstrained({name: each[name] for name in (rv.name for rv in model.free_RVs)})
    graphs = prior_draws._together(model.free_RVs, prior_draws._unconstrained(model), 4000)
    assert graphs is not None and found.shape == drawn.shape
    assert Prior(model).particles(4000, np.random.default_rng(3)).shape == drawn.shape
    for a, b in zip(found.T, drawn.T, strict=True):
        assert scipy.stats.ks_2samp(a, b).pvalue > 1e-3
    pairs = [np.array([a * b for i, a in enumerate(np.abs(rows.T)) for b in rows.T[i:]]) for rows in (found, drawn)]
    for a, b in zip(*pairs, strict=True):
        assert scipy.stats.ks_2samp(a, b).pvalue > 1e-3


def test_a_size_that_hangs_on_another_variable_leaves_generators_alone() -> None:
    """Two variables had one generator, which stayed as it was: all calls gave the same draws."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        k = pm.Normal("k", 0.0, scale, shape=3)
        pm.Normal("x", 0.0, 1.0, shape=k.shape)
    prior, rng = Prior(model), np.random.default_rng(0)
    assert len({float(prior.particles(1, rng)[0, 1]) for _ in range(5)}) == 5


def test_a_function_of_the_user_gets_one_set_of_parameters() -> None:
    """It may look at a number, which is one for each draw."""

    def random(s: np.ndarray, rng: np.random.Generator | None = None, size: Any = None) -> np.ndarray:
        assert rng is not None
        return (3.0 if s.ravel()[0] > 0.5 else -3.0) + rng.normal(size=size)

    with pm.Model() as model:
        s = pm.HalfNormal("s")
        pm.CustomDist("x", s, random=random, logp=lambda value, s: pm.logp(pm.Normal.dist(s, 1.0), value), shape=2)
    rows = prior_draws.free_draws(Coordinates(model), 200, 1)
    assert np.all((rows[:, 1:].mean(axis=1) > 0) == (np.exp(rows[:, 0]) > 0.5))


def test_particles_of_a_prior_that_is_drawn_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prior_draws, "_together", lambda *_: None)
    with pm.Model() as model:
        pm.LogNormal("x", 1.0, 0.5)
    found = Prior(model).particles(300, np.random.default_rng(1))
    assert found.shape == (300, 1) and abs(found.mean() - 1.0) < 0.15 and abs(found.std() - 0.5) < 0.1


def ordered(n: int = 3) -> pm.Model:
    with pm.Model() as model:
        k = pm.Normal("k", shape=n, transform=pm.distributions.transforms.ordered, initval=np.arange(float(n)))
        pm.Normal("y", k.sum(), observed=np.zeros(3))
    return model


def test_draws_obey_transforms_and_tell_what_these_leave() -> None:
    """One of n! orders."""
    model = ordered()
    coordinates, rng = Coordinates(model), np.random.default_rng(1)
    x, mass = prior_draws.draw_prior_and_mass(coordinates, 2000, 1)
    assert x.shape == (2000, 3) and np.isfinite(x).all()
    assert abs(mass.log + np.log(6)) < 4 * mass.error < 0.2
    # First, and gaps between neighbours: of three normal numbers in order.
    assert abs(x[:, 0].mean() + 0.846) < 0.06
    prior = Prior(model)
    assert np.all(np.diff(prior.draw(20, rng)["k"]) > 0)
    assert np.isfinite(prior.particles(20, rng)).all()
    assert prior_draws.constrained(coordinates)


def test_transforms_that_take_all_draws_leave_the_whole_prior() -> None:
    with pm.Model() as model:
        pm.LogNormal("a")
        pm.Beta("b", 2, 2)
        pm.HalfNormal("c", default_transform=None, transform=pm.distributions.transforms.log)
    assert not prior_draws.constrained(Coordinates(model))
    assert prior_draws.draw_prior_and_mass(Coordinates(model), 100, 1)[1] == prior_draws.Mass()


def test_an_interval_within_that_of_the_distribution_is_a_constraint() -> None:
    with pm.Model() as model:
        pm.Uniform("x", 0, 10, default_transform=None, transform=pm.distributions.transforms.Interval(2.0, 5.0))
    coordinates = Coordinates(model)
    mass = prior_draws.draw_prior_and_mass(coordinates, 1000, 1)[1]
    assert prior_draws.constrained(coordinates) and abs(mass.log - np.log(0.3)) < 4 * mass.error


def test_draws_at_a_bound_by_rounding_are_no_constraint() -> None:
    with pm.Model() as model:
        pm.Gamma("x", 0.001, 0.001)
        pm.Normal("y", observed=0.0)
    with pytest.raises(ValueError, match=r"the prior of x_log__ draws numbers that are zero .* a larger shape"):
        draw_prior(Coordinates(model), 100, 1)
    assert Prior(model).draw(5, np.random.default_rng(1))["x"].shape == (5,)


def test_transforms_that_take_no_draw_are_refused() -> None:
    with pm.Model() as model:
        pm.Normal("x", transform=pm.distributions.transforms.Interval(50.0, 60.0), initval=55.0)
    with pytest.raises(ValueError, match="obey the model's potentials and transforms"):
        draw_prior(Coordinates(model), 10, 1)


def below_an_observed_one(how: str) -> pm.Model:
    """The prior of x is what an observed value makes it, whichever way it is observed."""
    with pm.Model() as model:
        x_of = pm.Normal("y", pm.Normal("level"), 0.5, observed=3.0 if how == "at once" else None)
        pm.Normal("x", x_of, 0.1)
    return model if how == "at once" else pm.observe(model, {"y": 3.0})


@pytest.mark.parametrize("how", ["at once", "by pm.observe"])
def test_what_is_below_an_observed_variable_follows_its_value(how: str) -> None:
    model = below_an_observed_one(how)
    place = [rv.name for rv in model.free_RVs].index("x")
    rng = np.random.default_rng(1)
    all_ways = [
        draw_prior(Coordinates(model), 2000, 1)[:, place],
        Prior(model).particles(2000, rng)[:, place],
        Prior(model).draw(200, rng)["x"],
    ]
    for x in all_ways:
        assert abs(x.mean() - 3.0) < 0.04 and 0.085 < x.std() < 0.115
    # With what it makes the observed ones, all are drawn anew.
    drawn = Prior(model, observed=True).draw(200, rng)
    assert np.std(drawn["y"]) > 0.8 and np.std(drawn["x"] - drawn["y"]) < 0.12
