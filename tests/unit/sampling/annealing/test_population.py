"""A population beside a chain: it finds modes and tails that quadrature finds, within its budget."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pm_sysid.likelihood.prefix_target import Prefix
from pm_sysid.sampling.annealing.population import PART, population, size, tempered
from pm_sysid.sampling.smc.resampling import effective_size, normalised

NO_CHAIN = np.empty((0, 1))


def bimodal(samples: int = 50) -> pm.Model:
    """The sign of x is unknown, but for the prior."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.4, 1.0)
        pm.Normal("y", x**2, 0.2, observed=1.0 + 0.2 * np.random.default_rng(0).normal(size=samples))
    return model


@pytest.mark.slow
def test_two_modes_have_the_shares_of_quadrature() -> None:
    model = bimodal()
    grid = np.linspace(-3, 3, 6001)
    logp = model.compile_logp()
    density = np.array([logp({"x": x}) for x in grid])
    weights = normalised(density)
    prefix = Prefix(model)
    for seed in range(5):
        found = population(prefix, 3000, NO_CHAIN, np.random.default_rng(seed))
        assert found is not None and found.evaluated <= PART * 3000 * prefix.n_samples and found.estimate.efficiency > 0.3
        share = normalised(found.log_weights) @ (found.x[:, 0] > 0)
        assert abs(share - weights @ (grid > 0)) < 0.1
        evidence = np.log(np.sum(np.exp(density)) * (grid[1] - grid[0]))
        assert abs(found.estimate.value - evidence) < 5 * found.estimate.error


def test_the_last_proposals_follow_the_chain() -> None:
    """Even where the population cannot find a place in a million."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 100, shape=6)
        pm.Normal("y", x.sum(), 1e-3, observed=np.zeros(4))
        pm.Normal("z", x, 1e-3, observed=np.zeros((4, 6)))
    chain = 5e-4 * np.random.default_rng(0).standard_normal((500, 6))
    found = population(Prefix(model), 3000, chain, np.random.default_rng(0))
    assert found is not None and np.mean(np.abs(found.proposal.draw(1000, np.random.default_rng(1))).max(axis=1) < 1e-2) > 0.1


def test_there_is_none_for_short_chains_and_without_a_prior() -> None:
    assert size(499) == 0 and size(500) > 0 and population(Prefix(bimodal(3)), 499, NO_CHAIN, np.random.default_rng(0)) is None
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("x"), 1.0, observed=np.zeros(4))
    assert population(Prefix(model), 3000, NO_CHAIN, np.random.default_rng(0)) is None


def test_an_angle_counts_in_one_turn() -> None:
    """With the evidence of that turn, wherever it begins."""
    with pm.Model() as model:
        p = pm.VonMises("p", 0.0, 0.3)
        pm.Normal("y", pm.math.sin(p), 0.5, observed=np.full(4, 0.5))
    logp, grid = model.compile_logp(), np.linspace(-np.pi, np.pi, 1001)[1:]
    evidence = np.log(np.sum(np.exp([logp({"p_circular__": p}) for p in grid])) * (grid[1] - grid[0]))
    prefix = Prefix(model)
    for centre in (0.0, 2.0):
        prefix.coordinates.centre = np.array([centre])
        found = population(prefix, 3000, NO_CHAIN, np.random.default_rng(0))
        assert found is not None and abs(found.estimate.value - evidence) < 5 * found.estimate.error
        assert np.all(np.abs(found.x[found.log_weights > -np.inf] - centre) <= np.pi + 1e-9)


@pytest.mark.parametrize("spread", [0.0, 1.0, 100.0])
def test_tempered_weights_follow_no_handful(spread: float) -> None:
    log_weights = spread * np.random.default_rng(0).standard_normal(400)
    log_weights[:50] = -np.inf
    weights = tempered(log_weights, 3)
    assert weights.sum() == pytest.approx(1.0) and effective_size(np.log(weights[50:])) >= 60 and not weights[:50].any()
