"""Residuals that change over a record: found where they do, and not oftener than stated where they do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy

from pm_sysid.records.residual_tests import residual_tests
from pm_sysid.records.steadiness import Part, level_part, size_part

type Draw = Callable[[np.random.Generator, int], np.ndarray]

#: Noise of which all orders are equally probable, though it is not normal.
NOISE: dict[str, Draw] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_t(2, n),
    "skew": lambda rng, n: rng.exponential(size=n),
    "quantised": lambda rng, n: np.round(rng.standard_normal(n)),
}


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("length, records", [(40, 300), (3000, 100)])  # one is put together into sums
@pytest.mark.parametrize("part", [level_part, size_part])
def test_steady_noise_is_found_unsteady_no_oftener_than_stated(
    noise: str, length: int, records: int, part: Callable[[np.ndarray], Part]
) -> None:
    rng = np.random.default_rng(length)
    p = np.array([part(NOISE[noise](rng, length)).p for _ in range(records)])
    for level in (0.02, 0.1, 0.3):
        expected = level * records
        assert np.sum(p <= level) <= expected + 3 * np.sqrt(expected)
    assert np.mean(p <= 0.3) > 0.1  # and it is no test that never rejects


@pytest.mark.parametrize("length", [300, 3000])
def test_a_disturbance_is_found_where_it_is(length: int) -> None:
    rng, start, stop = np.random.default_rng(0), length // 3, length // 3 + length // 10
    e = rng.standard_normal(length)
    e[start:stop] += 1.2
    found = level_part(e)
    assert found.p < 0.01 and abs(found.start - start) < length / 12 and abs(found.stop - stop) < length / 12
    assert found.change == pytest.approx(1.1, abs=0.5) and level_part(-e).change == pytest.approx(-found.change)


def test_a_burst_is_found_where_it_is_and_missing_samples_count() -> None:
    rng = np.random.default_rng(0)
    e = rng.standard_normal(2000)
    e[1200:1300] *= 3.0
    e[:600] = np.nan
    found = size_part(e)
    assert found.p < 0.01 and abs(found.start - 1200) < 60 and abs(found.stop - 1300) < 60 and found.change > 2
    assert level_part(e).p > 0.01


@pytest.mark.slow
def test_drifts_that_correlations_do_not_see_are_found() -> None:
    """A ramp whose squares sum up to 36 times the variance of the noise; and noise that fades."""
    rng, seen = np.random.default_rng(1), np.zeros(3)
    for _ in range(40):
        e = rng.standard_normal(4000)
        ramp = 6 / np.sqrt(4000) * np.sqrt(12) * np.linspace(-0.5, 0.5, 4000)
        fades = np.exp(np.linspace(0.15, -0.15, 4000))
        seen += residual_tests(e + ramp).ljung_box_p < 0.01, level_part(e + ramp).p < 0.01, size_part(e * fades).p < 0.01
    assert seen[0] < 20 and seen[1] > 36 and seen[2] > 30


def test_few_or_equal_residuals_have_an_answer() -> None:
    assert level_part(np.array([0.0, 1.0, 0.5])).p > 0.2 and size_part(np.array([0.0, 1.0, 0.5])).p > 0.2
    assert size_part(np.tile([-1.0, 1.0], 20)).p == 1.0  # all of one size


def test_what_is_said() -> None:
    rng = np.random.default_rng(0)
    e = rng.standard_normal(1000)
    assert "  steady (level, p = 0." in repr(residual_tests(e))
    e[500:540] -= 1.0
    said = repr(residual_tests(e))
    assert "not steady in level: a drift, or a disturbance, is left in them (samples 4" in said
    assert "standard deviations below the rest" in said and "\n  steady" not in said
    e = rng.standard_normal(1000)
    e[500:] *= 1.5
    assert "not steady in size: a burst, or noise that is not constant (samples 5" in repr(residual_tests(e))
    coloured = np.convolve(rng.standard_normal(1000), np.ones(20), "same")
    assert "steady" not in repr(residual_tests(coloured))  # parts differ since neighbours do not


def test_the_error_of_the_mean_does_not_depend_on_an_input_that_is_looked_at() -> None:
    """Correlations of the residuals widen it, not those with the input."""
    rng = np.random.default_rng(0)
    e, u = np.convolve(rng.standard_normal(800), np.ones(10), "same"), rng.standard_normal(800)
    assert residual_tests(e, u).mean_se == residual_tests(e).mean_se > 2 * e.std() / np.sqrt(800)


def coloured(n: int, by: float, seed: int) -> np.ndarray:
    e = np.random.default_rng(seed).standard_normal(n)
    return np.asarray(scipy.signal.lfilter([1.0], [1.0, -by], e))


@pytest.mark.parametrize("n", [400, 2000])
def test_where_residuals_are_white_but_for_a_part_that_part_is_named(n: int) -> None:
    rng, k = np.random.default_rng(n), np.arange(n)
    acts = (k >= 0.3 * n) & (k < 0.44 * n)
    for seed in range(5):
        e = np.random.default_rng(seed).standard_normal(n)
        tests = residual_tests(e + 3 * acts)
        assert tests.apart is not None and tests.apart.p > 0.01 and tests.apart.change > 1
        named = np.zeros(n, dtype=bool)
        named[tests.apart.start : tests.apart.stop] = True
        assert np.sum(named != acts) < 0.05 * n
        assert f"without samples {tests.apart.start} to {tests.apart.stop - 1}: something acts there" in repr(tests)
    impact = np.where(k > 0.6 * n, 8 * np.exp(-(k - 0.6 * n) / (0.03 * n)) * np.sin(0.5 * (k - 0.6 * n)), 0.0)
    tests = residual_tests(rng.standard_normal(n) + impact)
    assert tests.apart is not None and 0.55 * n < tests.apart.start and tests.apart.stop < 0.85 * n


@pytest.mark.slow
def test_noise_that_is_coloured_everywhere_is_not_put_down_to_a_part() -> None:
    named = [residual_tests(coloured(n, by, seed)).apart for n in (400, 2000) for by in (0.3, 0.9) for seed in range(20)]
    assert sum(part is not None for part in named) <= 2
    ramp = residual_tests(coloured(2000, 0.0, 1) + np.linspace(-1.5, 1.5, 2000))
    assert ramp.ljung_box_p < 0.01 and ramp.apart is None
    assert residual_tests(coloured(2000, 0.0, 1)).apart is None
