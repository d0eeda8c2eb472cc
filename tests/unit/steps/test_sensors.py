"""What a measurement says, against quadrature over the output that it is of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy

from pm_sysid.steps.sensors import Seen, Sensor, Sensors, farther, student_t
from pm_sysid.symbolic.scalars import evaluate, symbol

MEAN, SPREAD, NOISE, NU = 0.3, 0.8, 0.25, 4.0


def normal(z: np.ndarray, y: float) -> np.ndarray:
    return scipy.stats.norm.pdf(y, z, np.sqrt(NOISE))


def heavy(z: np.ndarray, y: float) -> np.ndarray:
    """The mixture that stands for the t distribution."""
    scales = student_t(NU)
    more = farther(NU, (y - MEAN) ** 2 / NOISE, scales[0][-1], scales[1][-1])
    weights, factors = (np.array(evaluate([*a, *b], {})) for a, b in zip(scales, more, strict=True))
    return np.sum(np.exp(weights) * scipy.stats.norm.pdf(y, z[:, None], np.sqrt(NOISE * factors)), axis=1)


def above(z: np.ndarray, y: float) -> np.ndarray:
    return scipy.stats.norm.sf(y, z, np.sqrt(NOISE))


def below(z: np.ndarray, y: float) -> np.ndarray:
    return scipy.stats.norm.cdf(y, z, np.sqrt(NOISE))


CASES: list[tuple[Sensor, float, float, Callable]] = [
    (Sensor((None, 1.0)), 1.0, 1.0, above),
    (Sensor((None, 5.0)), 5.2, 5.0, above),
    (Sensor((-1.0, 5.0)), -1.0, -1.0, below),
    (Sensor((-1.0, 5.0)), 6.0, 5.0, above),
    (Sensor((-1.0, 5.0)), 0.7, 0.7, normal),
    (Sensor(heavy=True), 0.7, 0.7, heavy),
    (Sensor(heavy=True), 4.0, 4.0, heavy),
    (Sensor(heavy=True), -30.0, -30.0, heavy),
    (Sensor(heavy=True), 3e4, 3e4, heavy),
]


@pytest.mark.parametrize("nu", [1.0, 1.5, 2.0, 4.0, 10.0, 49.9])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_tails_are_those_of_a_t_distribution_however_far_out(nu: float, spread: float) -> None:
    """Beyond the last of the fixed scales they were Gaussian: sensors that drop out to zero made the scale twice too large."""
    grid = np.linspace(-12, 12, 4001)
    for z in (0.0, 1.0, 7.0, 40.0, 300.0, 3e3, 1e6, 1e12):
        seen = Seen(Sensor(heavy=True), 0.0, spread, 1.0, [nu])
        log, pull, _, rest = evaluate(list(seen.reading(z)), {})
        weights = scipy.special.logsumexp(scipy.stats.norm.logpdf(grid))
        inside = scipy.stats.norm.logpdf(grid) - weights + scipy.stats.t.logpdf(z - np.sqrt(spread) * grid, nu)
        assert log == pytest.approx(scipy.special.logsumexp(inside), abs=0.012)
        share = np.exp(inside - scipy.special.logsumexp(inside))
        mean = np.sqrt(spread) * share @ grid
        assert spread * pull == pytest.approx(mean, rel=0.03, abs=1e-3)
        assert spread * rest == pytest.approx(spread * share @ grid**2 - mean**2, rel=0.03)


@pytest.mark.parametrize(("sensor", "y", "at", "density"), CASES)
def test_density_and_moments_are_exact(sensor: Sensor, y: float, at: float, density: Callable) -> None:
    seen = Seen(sensor, MEAN, SPREAD, NOISE, [NU])
    log, pull, weight, rest = evaluate(list(seen.reading(y)), {})
    z = MEAN + np.sqrt(SPREAD) * np.linspace(-12, 12, 24_001)
    p = density(z, at) * scipy.stats.norm.pdf(z, MEAN, np.sqrt(SPREAD))
    total = np.trapezoid(p, z)
    mean = np.trapezoid(z * p, z) / total
    variance = np.trapezoid((z - mean) ** 2 * p, z) / total
    assert log == pytest.approx(np.log(total), rel=1e-9, abs=1e-9)
    assert MEAN + SPREAD * pull == pytest.approx(mean, rel=1e-8)
    assert SPREAD * rest == pytest.approx(variance, rel=1e-8)
    assert rest == pytest.approx(1 - weight * SPREAD, rel=1e-9)


def test_an_ambiguous_outlier_makes_the_output_less_certain() -> None:
    """Either the value or the expectation is wrong: the variance rises, which no Gaussian measurement does."""
    seen = Seen(Sensor(heavy=True), 0.0, 1.0, 0.01, [3.0])
    assert max(evaluate([seen.reading(y).rest], {})[0] for y in np.linspace(2, 8, 30)) > 1.3


def test_many_degrees_of_freedom_are_gaussian() -> None:
    z = np.linspace(-3, 3, 13)
    found = [evaluate([Seen(Sensor(heavy=True), 0.0, 1e-12, 1.0, [1e3]).reading(y).log], {})[0] for y in z]
    np.testing.assert_allclose(found, scipy.stats.t.logpdf(z, 1e3), atol=5e-3)


@pytest.mark.parametrize("nu", [0.2, 0.3, 0.5, 0.7])
def test_few_degrees_of_freedom_that_a_prior_allows(nu: float) -> None:
    """Of tails that are heavier than Cauchy's a part lies beyond all fixed scales: densities were 1.3 times as large."""
    z = np.concatenate([[0.0], np.logspace(-2, 8, 60)])
    found = [evaluate([Seen(Sensor(heavy=True), 0.0, 1e-12, 1.0, [nu]).reading(y).log], {})[0] for y in z]
    error = np.array(found) - scipy.stats.t.logpdf(z, nu)
    assert np.abs(error).max() < 0.05 and abs(error.mean()) < 0.01


@pytest.mark.parametrize("nu", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("spread", [1e-6, 1.0])
def test_the_mixture_is_a_t_distribution(nu: float, spread: float) -> None:
    """To 0.005 in the logarithm up to a hundred scales from the middle."""
    for y in (0.0, 1.0, 3.0, 10.0, 100.0):
        found = evaluate([Seen(Sensor(heavy=True), 0.0, spread, 1.0, [nu]).reading(y).log], {})[0]
        x = np.linspace(-30, 6, 200_001)  # log precision
        weight = scipy.stats.gamma.pdf(np.exp(x), nu / 2, scale=2 / nu) * np.exp(x)
        truth = np.log(np.trapezoid(weight * scipy.stats.norm.pdf(y, 0, np.sqrt(spread + np.exp(-x))), x))
        assert found == pytest.approx(truth, abs=5e-3 if y < 100 or nu < 8 else 0.03)
    for y in (0.5, 4.0):
        tail = evaluate([Seen(Sensor(heavy=True), 0.0, 1e-9, 1.0, [nu]).log_tail(y)], {})[0]
        assert tail == pytest.approx(scipy.stats.t.logsf(y, nu), abs=5e-3)


def test_draws_are_of_the_mixture_and_stop_at_the_limits() -> None:
    a, b = symbol("a"), symbol("b")
    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((1500, 2))
    drawn = Seen(Sensor(heavy=True), 0.0, 1e-12, 1.0, [4.0]).drawn(a, b)
    found = np.array([evaluate([drawn], {a: x, b: y})[0] for x, y in numbers])
    assert scipy.stats.kstest(found, scipy.stats.t(4).cdf).pvalue > 0.01
    limited = Seen(Sensor((-0.5, 1.0)), 0.2, 1.0, 1.0, []).drawn(a, b)
    found = np.array([evaluate([limited], {a: x, b: 0.0})[0] for x in numbers[:200, 0]])
    np.testing.assert_allclose(found, np.clip(0.2 + np.sqrt(2) * numbers[:200, 0], -0.5, 1.0), rtol=1e-12)


def test_outputs_are_cut_off_and_marked() -> None:
    sensors = Sensors((Sensor((None, 2.0)), Sensor()))
    y = np.array([[1.0, 9.0], [2.0, -9.0], [3.0, np.nan]])
    np.testing.assert_array_equal(sensors.clipped(y), [[1.0, 9.0], [2.0, -9.0], [2.0, np.nan]])
    np.testing.assert_array_equal(sensors.censored(y), [[False, False], [True, False], [True, False]])
