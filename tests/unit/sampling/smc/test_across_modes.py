"""Shares of known modes by weighted draws around each, against exact ones."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import norm

from pm_sysid.sampling.smc.across_modes import across_modes, draws_near

HEIGHTS = np.array([0.97, 0.03])
CENTRES, SDS = np.array([[0.0, 0.0], [6.0, -5.0]]), np.array([[1.0, 0.5], [0.2, 0.3]])


class Hills:
    """Two Gaussians, with the normalising constant exp(shift)."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x))

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        parts = [np.log(h) + norm.logpdf(x, c, s).sum(axis=1) for h, c, s in zip(HEIGHTS, CENTRES, SDS, strict=True)]
        return np.asarray(np.logaddexp(*parts) + self.shift)


@pytest.mark.parametrize("near_second", [0, 400])
def test_shares_moments_and_evidence_whatever_the_particles_hold(near_second: int) -> None:
    """Particles that lack the small mode, or hold ten times too much of it."""
    rng, target = np.random.default_rng(1), cast(Any, Hills(3.0))
    x = np.concatenate(
        [rng.normal(CENTRES[0], SDS[0], (1000 - near_second, 2)), rng.normal(CENTRES[1], SDS[1], (near_second, 2))]
    )
    covariances = np.array([np.diag(s**2) for s in SDS])
    found = across_modes(target, x, CENTRES, covariances, np.array([0.9, 0.1]), rng)
    assert found is not None and found.moved(x)
    assert found.estimate.value == pytest.approx(3.0, abs=4 * found.estimate.error)
    assert found.estimate.error < 0.02
    draws = found.resampled(4, 1000, rng)
    assert draws.shape == (4, 1000, 2)
    shares = (draws[..., 0] > 4).mean(axis=1)
    np.testing.assert_allclose(shares, HEIGHTS[1], atol=0.003)
    flat = draws.reshape(-1, 2)
    mean = HEIGHTS @ CENTRES
    np.testing.assert_allclose(flat.mean(axis=0), mean, atol=0.06)
    np.testing.assert_allclose(flat.std(axis=0), np.sqrt(HEIGHTS @ (SDS**2 + CENTRES**2) - mean**2), rtol=0.05)
    assert not found.moved(flat)
    assert len(np.unique(np.concatenate([d[:, 0] for d in draws]))) > 2000


class Stop:
    """A gap g and a stiffness exp(s) of a stop that is seldom touched: known is only exp(s) (1 - g)^1.5.

    The closer the gap comes to 1, the stiffer the stop may be, and the thinner the branch is.
    """

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        return norm.logpdf(x[:, 0], 0.5, 0.5) + norm.logpdf(x[:, 1], 1.0, 1.0)

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        pushed = np.exp(x[:, 1]) * np.maximum(1 - x[:, 0], 0.0) ** 1.5
        return np.asarray(norm.logpdf(pushed, 0.2, 0.03))

    def exact(self, gap: float) -> tuple[np.ndarray, np.ndarray]:
        """A grid's points (N, 2) and weights (N,), without what lies beyond a gap."""
        x = np.stack(np.meshgrid(np.linspace(-2, 1, 1501), np.linspace(-5, 7, 1201), indexing="ij"), axis=-1).reshape(-1, 2)
        weights = np.exp(self.log_prior(x) + self.log_likelihood(x)) * (x[:, 0] <= gap)
        return x, weights


@pytest.mark.parametrize("seed", range(5))
def test_a_thin_branch_that_particles_have_lost(seed: int) -> None:
    """The particles hold nothing of the last tenth of the gap, which is 5.6 % of the posterior."""
    target, rng = Stop(), np.random.default_rng(seed)
    x, weights = target.exact(1.0)
    _, held = target.exact(0.9)
    particles = x[rng.choice(len(x), 2000, p=held / held.sum())] + rng.uniform(-0.001, 0.001, (2000, 2))
    found = across_modes(cast(Any, target), particles, np.empty((0, 2)), np.empty((0, 2, 2)), np.empty(0), rng, count=1000)
    assert found is not None and found.lacking
    by_weights = np.exp(found.log_weights - found.log_weights.max())
    share = by_weights[found.x[:, 0] > 0.9].sum() / by_weights.sum()
    assert share == pytest.approx(1 - held.sum() / weights.sum(), rel=0.2)
    log_evidence = np.log(weights.sum() * (3 / 1500) * (12 / 1200))
    assert found.estimate.value == pytest.approx(log_evidence, abs=4 * found.estimate.error)


@pytest.mark.parametrize("seed", range(5))
def test_particles_that_hold_all_of_it_lack_nothing(seed: int) -> None:
    target, rng = Stop(), np.random.default_rng(seed)
    x, weights = target.exact(1.0)
    particles = x[rng.choice(len(x), 2000, p=weights / weights.sum())] + rng.uniform(-0.001, 0.001, (2000, 2))
    found = across_modes(cast(Any, target), particles, np.empty((0, 2)), np.empty((0, 2, 2)), np.empty(0), rng, count=1000)
    assert found is not None and not found.lacking and not found.moved(particles)


def test_which_modes_have_draws() -> None:
    rng = np.random.default_rng(0)
    covariances = np.array([np.diag(s**2) for s in SDS])
    counts = draws_near(rng.normal(CENTRES[0], SDS[0], (500, 2)), CENTRES, covariances)
    assert counts[0] > 490 and counts[1] == 0


def test_a_posterior_that_no_proposal_fits_is_left_alone() -> None:
    """Where nothing is possible."""
    rng = np.random.default_rng(0)
    covariances = np.array([np.diag(s**2) for s in SDS])
    assert across_modes(cast(Any, Hills(-np.inf)), rng.normal(size=(100, 2)), CENTRES, covariances, HEIGHTS, rng) is None
