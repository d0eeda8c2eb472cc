"""Normalising constants from proposals and from bridges, against those that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pm_sysid.sampling.smc.evidence import bridge, importance, joined, pareto_shape

SEEDS = 200


def log_ratio(x: np.ndarray, width: float) -> np.ndarray:
    """Target exp(3) times a standard Gaussian, over a proposal of another width."""
    return 3.0 + stats.norm.logpdf(x) - stats.norm.logpdf(x, 0, width)


def test_importance_sampling_has_the_error_it_states() -> None:
    z = []
    for seed in range(SEEDS):
        estimate = importance(log_ratio(np.random.default_rng(seed).normal(0, 1.5, 500), 1.5))
        assert estimate.believable
        z.append((estimate.value - 3.0) / estimate.error)
    assert abs(np.mean(z)) < 0.3 and 0.85 < np.std(z) < 1.2


def test_narrow_proposals_are_seen_by_the_pareto_shape() -> None:
    """A proposal of a quarter of the width: weights without a variance, whose mean may look well known."""
    shapes = [importance(log_ratio(np.random.default_rng(s).normal(0, 0.25, 1000), 0.25)).pareto_k for s in range(20)]
    assert np.mean(np.array(shapes) > 0.7) > 0.7


@pytest.mark.parametrize(("times", "share"), [(1.2, 0.015), (2.0, 0.01), (5.0, 0.015), (10.0, 0.01)])
def test_a_region_whose_weights_are_alike_is_no_heavy_tail(times: float, share: float) -> None:
    """Weights of two regions, each at most half as large again as others in it: the step between them looks like a tail."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        weights = np.where(rng.random(16_000) < share, times, 1.0) * (1 - 0.3 * rng.random(16_000))
        assert importance(np.log(weights)).believable


@pytest.mark.parametrize(("shape", "least"), [(0.9, 0.8), (1.5, 1.0)])
def test_heavy_tails_are_heavy_at_any_depth(shape: float, least: float) -> None:
    found = [pareto_shape(-shape * np.log(np.random.default_rng(s).random(4000))) > 0.7 for s in range(20)]
    assert np.mean(found) >= least


def test_zeros_are_weights_too() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=4000)
    estimate = importance(np.where(x > 0, 0.0, -np.inf))
    assert estimate.value == pytest.approx(np.log(0.5), abs=4 * estimate.error)
    assert importance(np.full(100, -np.inf)).value == -np.inf
    assert not importance(np.where(np.arange(1000) == 3, 0.0, -np.inf)).believable


def test_the_bridge_has_the_error_it_states_with_a_narrow_proposal() -> None:
    """Where importance sampling fails the draws of the target help."""
    z, apart = [], []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        draws, proposals = rng.normal(size=500), rng.normal(0, 0.5, 500)
        estimate = bridge(log_ratio(draws, 0.5), log_ratio(proposals, 0.5), np.arange(500))
        z.append((estimate.value - 3.0) / estimate.error)
        apart.append(importance(log_ratio(proposals, 0.5)).value - 3.0)
    assert abs(np.mean(z)) < 0.3 and 0.8 < np.std(z) < 1.25
    assert np.mean(np.abs(apart)) > 0.02


def test_families_widen_the_error_of_the_bridge() -> None:
    """Draws that come in tens of copies."""
    z = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        draws, proposals = np.repeat(rng.normal(size=100), 10), rng.normal(0, 0.7, 2000)
        estimate = bridge(log_ratio(draws, 0.7), log_ratio(proposals, 0.7), np.repeat(np.arange(100), 10))
        z.append((estimate.value - 3.0) / estimate.error)
    assert 0.8 < np.std(z) < 1.3


def test_two_estimates_are_never_closer_than_they_are() -> None:
    good = importance(np.zeros(1000))
    both = joined([good._replace(value=1.0, error=0.1), good._replace(value=2.0, error=0.1)])
    assert both.value == 1.5 and both.error == 0.5
