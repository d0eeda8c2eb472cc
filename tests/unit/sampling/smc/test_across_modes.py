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
