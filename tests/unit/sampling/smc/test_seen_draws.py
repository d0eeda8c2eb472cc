"""Draws of several proposals, weighted as those of one mixture."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.sampling.smc.evidence import importance
from pm_sysid.sampling.smc.natural_units import NaturalUnits
from pm_sysid.sampling.smc.resampling import effective_size
from pm_sysid.sampling.smc.seen_draws import FOLLOWED, Seen, nothing, of_prior
from support.line import line

RNG = np.random.default_rng(5)


def two_parts(z: np.ndarray) -> np.ndarray:
    """Log density of two normal distributions far apart, of mass 2 and 1."""
    parts = [np.log(2.0) + norm.logpdf(z[:, 0], -3.0, 0.5), norm.logpdf(z[:, 0], 3.0, 0.1)]
    return np.asarray(np.logaddexp(*parts))


def seen(places: list[tuple[int, float, float]]) -> Seen:
    result = nothing(1)
    for count, mean, sd in places:
        z = mean + sd * RNG.standard_normal((count, 1))
        result = result.with_draws(z, two_parts(z), lambda at, m=mean, s=sd: norm.logpdf(at[:, 0], m, s))
    return result


def test_weights_are_those_of_the_mixture_of_all_proposals() -> None:
    found = seen([(3, 0.0, 4.0), (5, -3.0, 1.0), (2, 3.0, 0.2)])
    at = found.z[:, 0]
    mixture = 0.3 * norm.pdf(at, 0.0, 4.0) + 0.5 * norm.pdf(at, -3.0, 1.0) + 0.2 * norm.pdf(at, 3.0, 0.2)
    np.testing.assert_allclose(found.log_weights, two_parts(found.z) - np.log(mixture), rtol=1e-12)


def test_a_part_that_later_proposals_do_not_reach_keeps_its_mass() -> None:
    """The second proposal knows of one part alone: its own weights are even, and a third of the mass is not there."""
    found = seen([(4000, 0.0, 4.0), (20_000, -3.0, 0.6)])
    alone = seen([(20_000, -3.0, 0.6)])
    assert importance(alone.log_weights).value == pytest.approx(np.log(2), abs=0.01)
    estimate = importance(found.log_weights)
    assert abs(estimate.value - np.log(3)) < 3 * estimate.error < 0.2
    assert np.mean(found.picked(found.log_weights, 3000, RNG) > 0) == pytest.approx(1 / 3, abs=0.05)


def test_the_evidence_is_that_of_the_last_draws_and_its_error_the_distance_to_that_of_all() -> None:
    """The last proposal has lost a third of the mass, and its draws alone would say so with an error of a hundredth."""
    found = seen([(4000, 0.0, 4.0), (20_000, -3.0, 0.6)])
    z = found.z[4000:]
    last = importance(two_parts(z) - norm.logpdf(z[:, 0], -3.0, 0.6))
    estimate = found.evidence(last)
    assert last.error < 0.01 and estimate.value == last.value
    assert estimate.error == pytest.approx(np.log(3) - np.log(2), abs=0.1)


def test_proposals_follow_no_handful_of_draws() -> None:
    found = seen([(2000, 40.0, 20.0)])
    sizes = [effective_size(weights) for weights in (found.log_weights, found.tempered)]
    assert sizes[0] < FOLLOWED <= sizes[1]
    even = Seen(np.zeros((3, 1)), np.zeros(3), np.zeros(3))
    np.testing.assert_array_equal(even.tempered, even.log_weights)  # three draws are never more


def test_draws_of_the_prior_give_the_evidence_in_any_units() -> None:
    with pm.Model() as model:
        scale = pm.LogNormal("scale", 0.0, 0.5)
        pm.Normal("y", 0.0, scale, observed=[0.5, -1.0, 0.2])
    target = sid.Target(model)
    grid = np.linspace(-6, 6, 4001)
    value = norm.logpdf([[0.5], [-1.0], [0.2]], 0.0, np.exp(grid)).sum(axis=0) + norm.logpdf(grid, 0.0, 0.5)
    exact = np.log(np.sum(np.exp(value)) * (grid[1] - grid[0]))
    turns = [NaturalUnits(target, np.array([natural])) for natural in (False, True)]
    logs, natural = of_prior(turns, RNG)
    np.testing.assert_allclose(natural.log_weights, logs.log_weights, rtol=1e-10)
    estimate = importance(natural.log_weights)
    assert abs(estimate.value - exact) < 4 * estimate.error < 0.05
    np.testing.assert_allclose(natural.z, np.exp(logs.z))


def test_the_prior_under_a_potential_is_a_density() -> None:
    """A third of the prior is left, whose density is three times as large."""
    with pm.Model() as model:
        x = pm.Uniform("x", 0.0, 3.0)
        pm.Potential("below", pm.math.where(x < 1.0, 0.0, -np.inf))
        pm.Normal("y", x, 0.5, observed=[0.7])
    target = sid.Target(model)
    (found,) = of_prior([NaturalUnits(target, np.array([False]))], RNG)
    grid = np.linspace(0.0, 1.0, 2001)
    estimate = importance(found.log_weights)
    assert abs(estimate.value - np.log(np.mean(norm.pdf(0.7, grid, 0.5)) / 3)) < 4 * estimate.error + 0.03


def test_a_very_wide_logarithm_gives_finite_weights() -> None:
    with pm.Model() as model:
        scale = pm.LogNormal("scale", 0.0, 500.0)
        pm.Normal("y", 0.0, scale, observed=[0.5])
    (found,) = of_prior([NaturalUnits(sid.Target(model), np.array([True]))], RNG)
    assert np.isfinite(found.z).all() and not np.isnan(found.log_weights).any()


def test_nothing_is_drawn_where_nothing_can_be() -> None:
    with pm.Model() as model:
        x = pm.Flat("x")
        pm.Normal("y", x, 1.0, observed=[0.7])
    (found,) = of_prior([NaturalUnits(sid.Target(model), np.array([False]))], RNG)
    assert len(found.z) == 0
    (some,) = of_prior([NaturalUnits(sid.Target(line()), np.zeros(2, dtype=bool))], RNG)
    assert len(some.z) > 1000
