"""Independent proposals one at a time: density and draws are those of the mixture."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pm_sysid.sampling.annealing.independent import HARDLY, MORE, SELDOM, SHARE, Independent, nowhere
from pm_sysid.sampling.annealing.population import FREEDOM
from pm_sysid.sampling.smc.proposals import Mixture

MIXTURE = Mixture(
    np.array([0.7, 0.3]),
    np.array([[0.0, 1.0], [5.0, -2.0]]),
    np.array([[[1.0, 0.0], [0.5, 0.2]], [[2.0, 0.0], [-1.0, 3.0]]]),
    FREEDOM,
)


def test_the_density_is_that_of_the_mixture() -> None:
    points = np.random.default_rng(0).normal(0, 4, (50, 2))
    found = Independent.of(MIXTURE, 0.5)
    np.testing.assert_allclose([found.logpdf(q) for q in points], MIXTURE.logpdf(points), rtol=1e-10)


def test_draws_have_that_density() -> None:
    rng, found = np.random.default_rng(1), Independent.of(MIXTURE, 0.5)
    ours, others = np.array([found.draw(rng) for _ in range(4000)]), MIXTURE.draw(4000, rng)
    for j in range(2):
        assert stats.ks_2samp(ours[:, j], others[:, j]).pvalue > 1e-3


@pytest.mark.parametrize("efficiency, share", [(0.5, SHARE + 0.5 * MORE), (0.01, SHARE + 0.01 * MORE), (HARDLY / 2, SELDOM)])
def test_proposals_that_fit_are_made_more_often(efficiency: float, share: float) -> None:
    assert Independent.of(MIXTURE, efficiency).share == pytest.approx(share)


def test_there_may_be_none() -> None:
    assert not nowhere(3).exists and Independent.of(MIXTURE, 0.5).exists
