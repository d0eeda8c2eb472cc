"""Level of the test of whiteness on short records."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from pm_sysid.records.residual_tests import correlation, ljung_box, residual_tests


@pytest.mark.slow
@pytest.mark.parametrize("count", [27, 40, 100, 200, 600])
def test_white_residuals_are_rejected_as_often_as_the_level_says(count: int) -> None:
    """By chi-square with 25 degrees of freedom, 3.7 % of records of 40 were below 0.01, and 0.5 % below 0.0001."""
    rows = np.random.default_rng(count).standard_normal((2000, count))
    p = np.array([ljung_box(e, 25).p for e in rows])
    for level in (0.05, 0.01):
        assert abs(np.sum(p < level) - level * len(p)) < 4 * np.sqrt(level * len(p))
    assert np.sum(p < 1e-4) <= 4


def test_p_value_of_long_records_is_that_of_chi_square() -> None:
    found = residual_tests(np.random.default_rng(0).standard_normal(20_000))
    assert found.ljung_box_p == pytest.approx(scipy.stats.chi2.sf(found.ljung_box, 25), abs=0.01)


def test_few_missing_values_change_little() -> None:
    e = np.random.default_rng(1).standard_normal(300)
    p = ljung_box(e, 25).p
    e[[20, 80]] = np.nan
    assert ljung_box(e, 25).p == pytest.approx(p, abs=0.15)


def test_of_a_constant_nothing_is_known() -> None:
    r, pairs = correlation(np.ones(5), np.arange(5.0), [0, 1])
    np.testing.assert_array_equal(r, 0.0)
    np.testing.assert_array_equal(pairs, 0.0)
    e = np.zeros(200)
    e[60:62] = 1.0, 2.0
    apart = residual_tests(e, None, 5).apart
    assert apart is not None and (apart.start, apart.stop) == (60, 62)


def test_sparse_residuals_are_tested_in_the_order_of_their_measurement() -> None:
    """A sine at every 30th sample has no two neighbours, and was white with p = 1."""
    sine, noise = np.full((2, 3000), np.nan)
    sine[::30] = np.sin(0.3 * np.arange(100))
    noise[::30] = np.random.default_rng(0).standard_normal(100)
    found, alone = residual_tests(sine, lags=10), residual_tests(sine[::30], lags=10)
    assert found.ljung_box == alone.ljung_box > 300 and found.ljung_box_p == alone.ljung_box_p < 1e-6
    assert residual_tests(noise, lags=10).ljung_box_p > 0.01
    ps = []
    for seed in range(200):
        noise[::30] = np.random.default_rng(seed).standard_normal(100)
        ps.append(residual_tests(noise, lags=10).ljung_box_p)
    assert 0.0 < np.mean(np.array(ps) < 0.1) < 0.17 and 0.4 < np.mean(ps) < 0.6


def test_scattered_gaps_leave_lags_in_samples() -> None:
    """An oscillation of four samples stays one where half of them are missing."""
    rng = np.random.default_rng(1)
    e = np.cos(0.5 * np.pi * np.arange(400)) + 0.1 * rng.standard_normal(400)
    e[rng.random(400) < 0.5] = np.nan
    assert residual_tests(e, lags=8).ljung_box_p < 1e-6
    with pytest.raises(ValueError, match="needs at least 502; give lags="):
        residual_tests(e, lags=500)
