"""When paths by particles and linearised bands are said to differ."""

from __future__ import annotations

import numpy as np
import pytest

from pm_sysid.posterior.particle_paths import Paths, better, deviation, scaled

MEAN, STD = np.zeros((4, 100, 2)), np.full((4, 100, 2), 2.0)


def paths(factor: float | np.ndarray, seed: int) -> np.ndarray:
    return factor * STD[:, None] * np.random.default_rng(seed).standard_normal((4, 32, 100, 2))


def test_chance_is_no_deviation() -> None:
    assert not any(deviation(paths(1.0, seed), MEAN, STD)[1] for seed in range(20))


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 3.0])
def test_bands_that_are_too_wide_or_too_narrow_are_found(factor: float) -> None:
    ratio, wrong = deviation(paths(factor, 1), MEAN, STD)
    assert wrong and np.sqrt(ratio) == pytest.approx(factor, rel=0.15)


def test_a_part_of_the_record_is_found() -> None:
    factor = np.ones((100, 2))
    factor[20:32, 1] = 1.6
    assert deviation(paths(factor, 1), MEAN, STD)[1]


def test_a_known_state_and_the_error_of_integration_do_not_count() -> None:
    std = STD.copy()
    std[:, 0] = 0.0  # a known start
    z = paths(1.0, 1)
    z[:, :, 0] = 0.0
    assert not deviation(z, MEAN, std)[1] and np.isnan(scaled(z, MEAN, std)[:, :, 0]).all()
    z[..., 1] = 0.001  # particles have no error of integration
    assert not deviation(z, MEAN, std)[1]


def test_particles_that_have_seen_more_are_better() -> None:
    rng, none = np.random.default_rng(0), np.zeros((4, 8, 1, 1))

    def of(level: float, noise: float) -> Paths:
        return Paths(none, level + noise * rng.standard_normal((4, 8)))

    assert better(of(3.0, 1.5), of(0.0, 0.2)) and better(of(0.0, 0.1), of(0.0, 0.5))
    assert not better(of(-0.5, 1.0), of(0.0, 0.2)) and not better(of(-3.0, 2.5), of(0.0, 0.2))
