"""How far a measurement is from free runs, among the runs themselves."""

from __future__ import annotations

import numpy as np
import pytest

from pm_sysid.posterior.predict import distance_rank


def paths(rng: np.random.Generator, n: int, scale: float = 1.0) -> np.ndarray:
    """Random walks about a large constant."""
    return 1e6 + scale * np.cumsum(rng.standard_normal((n, 50)), axis=1)


def test_the_rank_of_one_more_draw_is_uniform() -> None:
    """Though the samples of a path are correlated; would fail if runs were not held against the measurement, too."""
    rng = np.random.default_rng(0)
    ranks = np.array([distance_rank(paths(rng, 1)[0], paths(rng, 39), 0.0) for _ in range(2000)])
    assert np.mean(ranks <= 0.1) == pytest.approx(0.1, abs=0.025)
    assert np.mean(ranks <= 0.5) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(("scale", "rank"), [(10.0, 0.025), (0.01, 1.0)])
def test_a_path_of_another_size_is_the_farthest_or_the_nearest(scale: float, rank: float) -> None:
    rng = np.random.default_rng(1)
    assert distance_rank(paths(rng, 1, scale)[0], paths(rng, 39), 0.0) == pytest.approx(rank)
