"""Process noise that is estimated: errors over all sizes of it that the record allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.side_by_side import Coordinates
from pm_sysid.pem.uncertain_noise import has_process_noise, taken_from_noise, uncertain_noise
from pm_sysid.pem.uneven_noise import Samples
from support.pem_cases import OSCILLATOR, TRUTH

DRIFT = sid.System(lambda t, x, u, p: p.rate, states=("s",), params=("rate",), observe=lambda t, x, dx, u, p: x.s)
BOTH = sid.ExtendedKalman(Q={"s": "estimate"}, R="estimate", substeps=1)


def drifting(seed: int, n: int = 60, process: float = 0.05, noise: float = 0.1) -> sid.TimeSeries:
    rng = np.random.default_rng(seed)
    level = 0.3 * np.arange(n) + np.append(0.0, np.cumsum(process * rng.standard_normal(n - 1)))
    return sid.TimeSeries(np.arange(n) * 1.0, None, level + noise * rng.standard_normal(n))


def fitted(data: sid.TimeSeries, **options: Any) -> sid.PEMResult:
    options = {"predictor": BOTH, "x0": 0.0, "objective": "likelihood", **options}
    return sid.fit_pem(DRIFT, data, {"rate": 0.5}, **options)


def test_errors_are_those_of_the_integrated_likelihood() -> None:
    """One noise, and a rate that enters linearly: all sums on a fine grid by hand."""
    known = {"predictor": sid.ExtendedKalman(Q={"s": "estimate"}, R={"y": 0.1}, substeps=1)}
    fit = fitted(drifting(0), x0=sid.InitialState(0.0, P0=0.0), **known)
    assert has_process_noise(fit.target) and fit.names == ["rate", "process_s"]
    y, k = fit.setup.filter.records[0].output_matrix[1:, 0], np.arange(1.0, 60)
    grid = fit.x[1] * np.exp(np.linspace(-4, 4, 400))
    weights, squares = [], []
    for q in grid:
        inverse = np.linalg.inv(q**2 * np.minimum.outer(k, k) + 0.01 * np.eye(59))
        precision = k @ inverse @ k
        rate = (k @ inverse @ y) / precision
        e = y - rate * k
        _, logdet = np.linalg.slogdet(inverse)
        weights.append(0.5 * logdet - 0.5 * e @ inverse @ e - 0.5 * np.log(precision) + 2 * 0.5 * np.log(q))
        squares.append([1 / precision + (rate - fit.x[0]) ** 2, (q / fit.x[1] - 1) ** 2])
    chances = np.exp(np.array(weights) - max(weights))
    expected = np.sqrt(chances / chances.sum() @ np.array(squares))
    np.testing.assert_allclose(fit.x_stderr / [1.0, fit.x[1]], expected, rtol=0.1)


def test_a_noise_that_is_seen_well_changes_nothing() -> None:
    fit = fitted(drifting(0, n=3000, noise=0.05))
    c = Coordinates(fit.target, fit.setup.unknowns.lower, fit.setup.unknowns.upper, abs(fit.fun))
    none, every = np.zeros(3, dtype=bool), np.ones(3, dtype=bool)
    ratio = uncertain_noise(c, fit.x, fit.target.evaluate(fit.x), every, none, fit.x).ratio
    np.testing.assert_allclose(ratio, 1.0, atol=0.05)
    np.testing.assert_allclose(fit.cov, fit.target.covariance(fit.target.evaluate(fit.x), every), rtol=0.1)


def test_free_runs_have_no_process_noise() -> None:
    assert not has_process_noise(fitted(drifting(0), predictor=sid.ExtendedKalman(R="estimate", substeps=1)).target)


def test_the_most_that_a_noise_could_be_is_said() -> None:
    """Where none is seen, a rate is as uncertain as the noise allows that may be there."""
    fit = next(f for f in (fitted(drifting(seed, process=0.02)) for seed in range(20)) if f.active[1])
    without = fitted(fit.setup.filter.records[0], predictor=sid.ExtendedKalman(R="estimate", substeps=1))
    assert "as good as zero (process_s < 0.0" in fit.message and fit.success
    assert fit.x_stderr[1] == 0.0 and fit.x_stderr[0] > 1.5 * without.x_stderr[0]


def test_noise_that_may_be_nearly_zero_is_not_far_away_from_it() -> None:
    """As a logarithm it is, by which the standard error of the measurement noise was two and a half times as large."""
    relaxation = sid.System(lambda t, x, u, p: -p.a * x.s, states=("s",), params=("a",), observe=lambda t, x, dx, u, p: x.s)
    rng, s, y = np.random.default_rng(0), 0.0, np.empty(400)
    for k in range(400):
        s = np.exp(-0.1) * s + np.sqrt((1 - np.exp(-0.2)) / 2) * rng.standard_normal() if k else np.sqrt(0.5) * rng.normal()
        y[k] = s + 0.1 * rng.standard_normal()
    fit = sid.fit_pem(
        relaxation, sid.TimeSeries(0.1 * np.arange(400), None, y), {"a": 2.0}, objective="likelihood", progressbar=False,
        predictor=sid.ExtendedKalman(Q="estimate", R="estimate"),
    )  # fmt: skip
    plain = np.sqrt(np.diag(np.linalg.inv(fit.target.evaluate(fit.x).information)))
    assert fit.names[2] == "noise_y" and 1.0 <= fit.x_stderr[2] / plain[2] < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("process", [0.1, 0.2])
def test_errors_over_records(process: float) -> None:
    """By the information at the most likely noise, errors are 1.5 to 4 times as large as their standard errors."""
    rate, noise, plain = [], [], []
    for seed in range(150):
        fit = fitted(drifting(seed, n=40, process=process))
        rate.append((fit.x[0] - 0.3) / fit.x_stderr[0])
        information = fit.target.evaluate(fit.x).information
        plain.append((fit.x[0] - 0.3) * np.sqrt(information[0, 0]))
        if not fit.active[1]:
            noise.append(np.log(fit.x[1] / process) / (fit.x_stderr[1] / fit.x[1]))
    assert 0.75 < np.sqrt(np.mean(np.square(rate))) < 1.2 < 1.4 < np.sqrt(np.mean(np.square(plain)))
    assert np.sqrt(np.mean(np.square(noise))) < 1.2


def test_a_measurement_noise_is_larger_by_the_freedom_of_what_was_fitted() -> None:
    """Two outputs of a linear model, each with unknowns and a noise of its own: N / (N - k) of each."""
    rng = np.random.default_rng(1)
    first, second, noise = np.repeat([[1.0], [0.0]], [20, 40], axis=0), np.repeat([[0.0], [1.0]], [20, 40], axis=0), (0.3, 0.5)
    design = np.hstack([first * rng.standard_normal((60, 5)), second * rng.standard_normal((60, 8))])
    slope = np.hstack([design, np.zeros((60, 2))])
    relative = np.hstack([np.zeros((60, 13)), 2 / noise[0] * first, 2 / noise[1] * second])
    is_noise = np.arange(15) >= 13
    factor = taken_from_noise(Samples(slope, slope, relative, slope[:, 0], slope[:, 0], slope.T @ slope), is_noise, ~is_noise)
    np.testing.assert_allclose(factor, [1.0] * 13 + [np.sqrt(20 / 15), np.sqrt(40 / 32)])


def test_many_starts_take_a_part_of_the_measurement_noise() -> None:
    """Of ten records of eight samples a likelihood finds too little noise, and says how much it is."""
    rng, t, records = np.random.default_rng(2), 0.3 * np.arange(8), []
    for x0 in rng.standard_normal((10, 2)):
        free = sid.TimeSeries(t, np.zeros(8), None)
        y = sid.simulate(OSCILLATOR, free, TRUTH, x0=list(x0), substeps=8)["y"].to_numpy()
        records.append(free.replace(y=y + 0.1 * rng.standard_normal(8)))
    predictor = sid.ExtendedKalman(R={"y": "r"}, substeps=8)
    options: dict[str, Any] = {"predictor": predictor, "objective": "likelihood", "starts": 1, "progressbar": False}
    fit = sid.fit_pem(OSCILLATOR, records, {"k": 3.5, "c": 0.5, "r": 0.2}, **options)
    left = np.concatenate([fit.innovations(i)["innovation"].to_numpy()[:, 0] for i in range(10)])
    taken_off = np.sqrt(np.sum(left**2) / (80 - 22))
    assert fit.success and fit.p["r"] == pytest.approx(np.sqrt(np.mean(left**2)), rel=1e-3)
    assert (
        f"22 unknowns fit a part of the noise of 80 measured values, which a likelihood does not count: with it, r = {
            taken_off:.3g}"
        in fit.message
    )
    assert fit.stderr["r"] > taken_off - fit.p["r"] > 1.5 * fit.p["r"] / np.sqrt(2 * 80)
