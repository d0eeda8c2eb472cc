"""A population beside a chain: it finds modes and tails that quadrature finds, within its budget."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pm_sysid.likelihood.prefix_target import Prefix
from pm_sysid.sampling.annealing.missed import missed
from pm_sysid.sampling.annealing.population import SEARCH, evaluations, population, size, tempered
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
        most = (1 + SEARCH) * evaluations(3000) * prefix.n_samples
        assert found is not None and found.evaluated <= most and found.estimate.efficiency > 0.3
        share = normalised(found.log_weights) @ (found.x[:, 0] > 0)
        assert abs(share - weights @ (grid > 0)) < 0.1
        evidence = np.log(np.sum(np.exp(density)) * (grid[1] - grid[0]))
        assert abs(found.estimate.value - evidence) < 5 * found.estimate.error


def sign_unknown_among(others: int, seed: int) -> tuple[pm.Model, np.ndarray, float]:
    """One unknown counts by its square, the others by a known matrix; draws near its positive mode; mass of the other one."""
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(60, others)), rng.normal(size=others)
    y = A @ b + 1.0 + 0.1 * rng.standard_normal(60)
    with pm.Model() as model:
        x, beta = pm.Normal("x", 0.2, 1), pm.Normal("b", 0, 3, shape=others)
        pm.Normal("y", pm.math.dot(A, beta) + x**2, 0.1, observed=y)
    precision = np.linalg.inv(0.01 * np.eye(60) + 9 * A @ A.T)
    grid = np.linspace(-4, 4, 8001)
    density = -((grid - 0.2) ** 2) / 2 - precision.sum() * grid**4 / 2 + precision.sum(axis=0) @ y * grid**2
    near = np.c_[2 * np.ones(60), A]
    covariance = 0.01 * np.linalg.inv(near.T @ near)
    chain = rng.multivariate_normal(covariance @ near.T @ (y + 1) / 0.01, covariance, 1500)
    return model, chain, float(normalised(density) @ (grid < 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others", "draws", "knows"), [(2, 4000, 8), (3, 4000, 0), (3, 16_000, 4), (4, 16_000, 0), (6, 4000, 0)]
)
def test_a_population_that_lost_a_mode_does_not_agree_with_a_chain_that_lacks_it(others: int, draws: int, knows: int) -> None:
    """It denies the chain, or knows that its draws were too few to follow the posterior."""
    denied = 0
    for seed in range(8):
        model, chain, share = sign_unknown_among(others, seed)
        prefix = Prefix(model)
        found = population(prefix, draws, chain, np.random.default_rng(seed))
        assert found is not None
        said = missed(chain, found.x, found.log_weights, prefix.labels)
        assert said or not found.followed
        if found.followed:
            assert abs(normalised(found.log_weights) @ (found.x[:, 0] < 0) - share) < 0.1
        denied += bool(said)
    assert denied >= knows


def modes_of_two_widths(d: int, k: float, off: float) -> tuple[pm.Model, np.ndarray, float]:
    """A narrow mode at 2 and a wide one at -2 of d unknowns; draws of the wide one, and the share of the narrow one.

    By importance sampling around both.
    """

    def both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return k * np.sum((x - 2) ** 2, axis=1), np.sum((x + 2) ** 2, axis=1) + off

    rng, masses = np.random.default_rng(0), []
    for centre, width in ((2.0, 0.8 / k**0.5), (-2.0, 0.5)):
        x = centre + width * rng.standard_normal((200_000, d))
        narrow, wide = both(x)
        log_weights = -np.sum(x**2, axis=1) / 18 - 2.5 * np.minimum(narrow, wide) ** 2
        log_weights += np.sum((x - centre) ** 2, axis=1) / (2 * width**2) + d * np.log(width)
        weights = np.exp(log_weights) * ((narrow < wide) == (centre > 0))
        masses.append(weights.mean())
    with pm.Model() as model:
        th = pm.Normal("th", 0, 3, shape=d)
        mean = pm.math.minimum(k * ((th - 2) ** 2).sum(), ((th + 2) ** 2).sum() + off)
        pm.Normal("y", mean * np.ones(5), 1.0, observed=np.zeros(5))
    return model, x[rng.choice(len(x), 3000, p=weights / weights.sum())], masses[0] / sum(masses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "k", "off", "draws"),
    [(2, 100, 1.5, 6000), (3, 20, 1, 6000), (3, 20, 1.5, 16_000), (4, 8, 1, 6000), (4, 20, 1, 16_000)],
)
def test_a_narrow_mode_that_few_prior_draws_hold_is_found(d: int, k: float, off: float, draws: int) -> None:
    """Without a search, 4 of these 40 populations had it; 2 of the others knew that they could not tell, and 34 agreed."""
    model, chain, share = modes_of_two_widths(d, k, off)
    prefix, denied = Prefix(model), 0
    for seed in range(8):
        found = population(prefix, draws, chain, np.random.default_rng(seed))
        assert found is not None
        said = missed(chain, found.x, found.log_weights, prefix.labels)
        assert said or said is None or not found.followed
        denied += bool(said)
        if said:
            assert abs(normalised(found.log_weights) @ (found.x[:, 0] > 0) - share) < 0.1
    assert denied >= 6


def test_no_narrow_mode_is_made_up() -> None:
    """A population with one mode agrees with its chain, at the cost of the search."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", 0, 3, shape=3), 1.0, observed=np.zeros((5, 3)))
    prefix = Prefix(model)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        chain = rng.normal(0, np.sqrt(9 / 46), (3000, 3))
        found = population(prefix, 6000, chain, rng)
        assert found is not None and found.followed and missed(chain, found.x, found.log_weights, prefix.labels) == ""
        assert abs(found.estimate.value - 1.5 * np.log(1 / 46) + 7.5 * np.log(2 * np.pi)) < 5 * found.estimate.error
        assert found.evaluated <= (1 + SEARCH) * evaluations(6000) * prefix.n_samples


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_few_samples_have_a_population_too(samples: int) -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x"), 0.1, observed=np.ones(samples))
    found = population(Prefix(model), 1000, NO_CHAIN, np.random.default_rng(0))
    assert found is not None and found.followed and found.estimate.efficiency > 0.5


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
