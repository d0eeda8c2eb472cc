"""Steps along differences, states of chains that are alike, and that independent moves keep the shares of small modes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pm_sysid.sampling.smc.evidence import importance
from pm_sysid.sampling.smc.moves import autocorrelation_time, differences, differences_within
from pm_sysid.sampling.smc.proposals import Folds, Mixture, attainable, folds


def test_a_step_and_its_opposite_are_equally_likely_and_many_change_some_coordinates_only() -> None:
    rng = np.random.default_rng(1)
    steps = differences(rng.gamma(0.5, size=(500, 4)), 100_000, rng)
    np.testing.assert_allclose(np.quantile(steps, [0.1, 0.3], axis=0), -np.quantile(steps, [0.9, 0.7], axis=0), atol=0.03)
    changed = np.count_nonzero(steps, axis=1)
    assert changed.min() == 1 and changed.max() == 4
    assert 0.4 < np.mean(changed < 4) < 0.7


def test_steps_within_a_group_have_its_size() -> None:
    rng = np.random.default_rng(1)
    narrow = np.arange(1000) % 2 == 0
    reference = np.where(narrow[:, None], 5.0 + 0.01 * rng.standard_normal((1000, 3)), rng.standard_normal((1000, 3)))
    at = rng.integers(2, size=5000)
    steps = differences_within(reference, narrow.astype(int), at, rng)
    assert np.abs(steps[at == 1]).max() < 0.2 and np.abs(steps[at == 0]).max() > 1.0
    assert not np.any(differences_within(reference[:2], np.array([0, 1]), at, rng)[at == 0])  # too few to tell a size


def _log_density(x: np.ndarray) -> np.ndarray:
    """A Gaussian in six dimensions, and one of a tenth of its width with 1.2 % of the mass."""
    wide = np.log(0.988) - 0.5 * np.sum(x**2, axis=1)
    narrow = np.log(0.012) - 6 * np.log(0.1) - 0.5 * np.sum((x - 6.0) ** 2, axis=1) / 0.01
    return np.asarray(np.logaddexp(wide, narrow))


def _leaving(seed: int) -> float:
    """By how much independent moves change the number of particles in the narrow mode, of 12 in 1000."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.standard_normal((988, 6)), 6.0 + 0.1 * rng.standard_normal((12, 6))])
    fold = folds(np.arange(1000), rng)
    proposal = Folds.fit(x, np.full(1000, 1e-3), fold, 3.0, rng)
    at = x
    for _ in range(20):
        new = proposal.draw(fold, rng)
        gain = _log_density(new) - _log_density(at) + proposal.logpdf(at, fold) - proposal.logpdf(new, fold)
        at = np.where((np.log(rng.random(1000)) < gain)[:, None], new, at)
    return float(np.sum(at.mean(axis=1) > 3.0)) - 12.0


def test_independent_moves_keep_a_small_mode() -> None:
    change = np.array([_leaving(seed) for seed in range(12)])
    assert abs(change.mean()) < 4 * change.std(ddof=1) / np.sqrt(12) + 0.5


def test_no_particle_helps_to_fit_its_own_proposal() -> None:
    rng = np.random.default_rng(1)
    x, fold = rng.standard_normal((300, 2)), folds(np.repeat(np.arange(100), 3), rng)
    assert np.all(fold.reshape(100, 3) == fold[::3, None]) and set(fold) == {0, 1, 2}
    moved = x + 10.0 * (fold == 1)[:, None]
    equal, seed = np.full(300, 1 / 300), np.random.default_rng
    one, other = (Folds.fit(points, equal, fold, 3.0, seed(2)).logpdf(x, fold) for points in (x, moved))
    assert np.array_equal(one[fold == 1], other[fold == 1]) and not np.any(one[fold == 0] == other[fold == 0])


def test_a_t_distribution_attains_a_known_share() -> None:
    rng = np.random.default_rng(1)
    t = Mixture(np.ones(1), np.zeros((1, 5)), np.eye(5)[None], 3.0)
    x = t.draw(100_000, rng)
    found = importance(stats.multivariate_normal(np.zeros(5)).logpdf(x) - t.logpdf(x))
    assert attainable(5, 3.0) == pytest.approx(found.efficiency, rel=0.01) and attainable(5, np.inf) == 1.0


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_autocorrelation_time_of_autoregressive_chains(correlation: float) -> None:
    rng = np.random.default_rng(1)
    x = np.empty((200, 2000, 2))
    x[0] = rng.standard_normal(x.shape[1:])
    for k in range(1, 200):
        x[k] = correlation * x[k - 1] + np.sqrt(1 - correlation**2) * rng.standard_normal(x.shape[1:])
    x[..., 1] = 3.0  # a coordinate that does not move at all tells nothing
    assert autocorrelation_time(x) == pytest.approx((1 + correlation) / (1 - correlation), rel=0.1)


def test_autocorrelation_time_of_chains_that_stand_still_and_of_one_chain() -> None:
    rng = np.random.default_rng(1)
    still = np.broadcast_to(rng.standard_normal((50, 1)), (20, 50, 1))
    assert autocorrelation_time(still) == pytest.approx(20, rel=0.05)
    assert autocorrelation_time(rng.standard_normal((20, 1, 1))) == 1.0
