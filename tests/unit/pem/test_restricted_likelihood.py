"""Correlation in time of noise of which fitted unknowns have taken a part, with samples that are missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy

from pm_sysid.pem import restricted_likelihood
from pm_sysid.pem.restricted_likelihood import Autoregression, Noise, Relaxing, Series, White, line, noise_of, restricted


def noise(rng: np.random.Generator, n: int, correlation: float = 0.9) -> np.ndarray:
    """Of unit variance, each value so much correlated with that before."""
    white = rng.standard_normal(n + 100)
    return np.asarray(scipy.signal.lfilter([np.sqrt(1 - correlation**2)], [1.0, -correlation], white)[100:])


def gappy() -> Series:
    """Three records with gaps, a short one among them, and two unknowns that they share."""
    rng = np.random.default_rng(0)
    row = np.concatenate([np.sort(rng.choice(60, 30, replace=False)), [0, 1, 5, 6], np.arange(20)])
    record = np.repeat([0, 1, 3], [30, 4, 20])
    return Series.of(rng.standard_normal(54), rng.standard_normal((54, 2)), record, row, 1.5 * row)


def fitted(errors: list[np.ndarray], keep: list[np.ndarray] | None = None) -> Series:
    """Records in each of which a level and a slope were fitted, and some samples were kept."""
    keep = [np.ones(len(e), dtype=bool) for e in errors] if keep is None else keep
    row = np.concatenate([np.flatnonzero(k) for k in keep])
    record = np.repeat(np.arange(len(errors)), [k.sum() for k in keep])
    slopes = np.zeros((len(row), 2 * len(errors)))
    slopes[np.arange(len(row)), 2 * record] = 1.0
    slopes[np.arange(len(row)), 2 * record + 1] = row
    e = np.concatenate([e[k] for e, k in zip(errors, keep, strict=True)])
    return Series.of(e - slopes @ (np.linalg.pinv(slopes) @ e), slopes, record, row, row.astype(float))


def dense(kind: Noise, series: Series) -> np.ndarray:
    lag = np.abs(series.row[:, None] - series.row)
    if isinstance(kind, Autoregression):
        r = kind.correlations(int(lag.max()) + 1)[lag]
    else:
        assert isinstance(kind, Relaxing)
        r = (1 - kind.share) * np.exp(-1.5 * lag / kind.time) + kind.share * (lag == 0)
    return np.asarray(np.where(series.record[:, None] == series.record, r, 0.0))


KINDS = [Autoregression(np.array([0.7, -0.3, 0.2])), Autoregression(np.array([-0.6])), Relaxing(5.0, 0.2), Relaxing(5.0, 0.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_dense_matrix(kind: Noise) -> None:
    series = gappy()
    columns, R = np.random.default_rng(1).standard_normal((54, 3)), dense(kind, series)
    whitened, log_det = kind.whitened(series, columns)
    np.testing.assert_allclose(whitened, np.linalg.solve(R, columns), atol=1e-5)
    assert log_det == pytest.approx(np.linalg.slogdet(R)[1], abs=1e-5)
    np.testing.assert_allclose(kind.correlated(series, columns), R @ columns, atol=1e-12)
    np.testing.assert_allclose(kind.correlated(series, columns, squared=True), R**2 @ columns, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("complete", [True, False])
def test_products_by_lags_are_those_of_each_record(kind: Noise, complete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restricted_likelihood, "FADED", 1e-13)  # the dense matrix has all correlations
    rng = np.random.default_rng(2)
    complete_one = fitted([rng.standard_normal(n) for n in (60, 45)])
    series = replace(complete_one, time=1.5 * complete_one.time) if complete else gappy()
    products, log_det = kind.products(series)
    R = dense(kind, series)
    for r, expected in enumerate(products):
        here = np.flatnonzero(series.record == r)
        columns = series.columns[here]
        np.testing.assert_allclose(expected, columns.T @ np.linalg.solve(R[np.ix_(here, here)], columns), atol=1e-9)
    assert log_det == pytest.approx(np.linalg.slogdet(R)[1], abs=1e-5)


def test_correlations_are_those_of_the_recursion() -> None:
    """Of x[t] = 0.5 x[t-1] + 0.3 x[t-2] + e[t]: 0.5 / (1 - 0.3), and on from there."""
    kind = Autoregression(np.array([0.5 / 0.7, 0.3]))
    np.testing.assert_allclose(kind.weights, [0.5, 0.3])
    r = [1.0, 0.5 / 0.7]
    for _ in range(6):
        r.append(0.5 * r[-1] + 0.3 * r[-2])
    np.testing.assert_allclose(kind.correlations(8), r)


@pytest.mark.parametrize("size", [np.ones(3), np.array([1.0, 3.0, 0.2])])
def test_the_likelihood_is_that_of_what_no_unknown_moves(size: np.ndarray) -> None:
    """Up to a constant: of all combinations of innovations in which the unknowns of a record do not occur."""
    series = gappy()
    free = scipy.linalg.block_diag(*(scipy.linalg.null_space(b.T) for b in np.split(series.basis, series.starts[1:])))
    apart = []
    for kind in KINDS:
        scale = size[series.record]
        covariance = free.T @ (dense(kind, series) * np.outer(scale, scale)) @ free
        contrasts = free.T @ series.errors
        expected = np.linalg.slogdet(covariance)[1] + len(contrasts) * np.log(
            contrasts @ np.linalg.solve(covariance, contrasts)
        )
        apart.append(restricted(kind, series, size).deviance - expected)
    np.testing.assert_allclose(apart, apart[0], atol=1e-4)


def test_what_unknowns_have_taken_is_allowed_for() -> None:
    """Twenty short records of slow noise: half of its variance is in their levels and slopes."""
    rng, found = np.random.default_rng(0), []
    for _ in range(8):
        series = fitted([noise(rng, 60) for _ in range(20)])
        fit = noise_of(series)
        found.append([fit.noise.correlated(series, np.eye(1200)[:, :1])[1, 0], fit.variance, np.mean(series.errors**2)])
    correlation, variance, plain = np.mean(found, axis=0)
    assert correlation == pytest.approx(0.9, abs=0.02) and variance == pytest.approx(1.0, abs=0.25) and plain < 0.65


@pytest.mark.parametrize("kept", ["half", "blocks"])
def test_correlations_are_found_where_samples_are_missing(kept: str) -> None:
    rng = np.random.default_rng(2)
    keep = rng.random(800) < 0.5 if kept == "half" else np.arange(800) // 20 % 2 == 0
    series = fitted([noise(rng, 800)], [keep])
    found = noise_of(series).noise
    r = found.correlations(2)[1] if isinstance(found, Autoregression) else dense(found, series)[0, 1]
    assert r == pytest.approx(0.9, abs=0.05)


def test_sizes_of_records_are_found_with_slow_noise() -> None:
    rng = np.random.default_rng(3)
    found = noise_of(fitted([s * noise(rng, 100) for s in (1.0, 5.0, 1.0, 5.0)]))
    np.testing.assert_allclose(found.size / found.size[0], [1, 5, 1, 5], rtol=0.3)


def test_white_noise_is_white() -> None:
    rng = np.random.default_rng(4)
    orders = [noise_of(fitted([rng.standard_normal(100)])).noise.order for _ in range(40)]
    assert sum(order == 0 for order in orders) >= 26


def test_noise_without_unknowns_has_a_likelihood() -> None:
    e = noise(np.random.default_rng(5), 200)
    series = Series.of(e, np.zeros((200, 0)), np.zeros(200, dtype=int), np.arange(200), np.arange(200.0))
    assert restricted(White(), series).variance == pytest.approx(np.mean(e**2))
    assert restricted(Autoregression(np.array([0.9])), series).deviance < restricted(White(), series).deviance - 100


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", [4, 10, 13])
def test_a_search_stays_within_stationary_noise(seed: int) -> None:
    """A sine has partial correlations of one: beyond the limit there is no likelihood, and no slope."""
    time = np.arange(300.0)
    e = np.sin(0.05 * time) + 1e-3 * np.random.default_rng(seed).standard_normal(300)
    series = Series.of(e, np.column_stack([np.ones(300), time]), np.zeros(300, dtype=int), np.arange(300), time)
    found = noise_of(series)
    assert np.isfinite(found.deviance) and found.deviance < restricted(White(), series).deviance - 1000


def test_a_line_is_told_from_slow_noise() -> None:
    rng = np.random.default_rng(6)
    slow = fitted([noise(rng, 400)])
    assert line(Autoregression(np.array([0.9])), slow) > 0.005
    hum = fitted([noise(rng, 400) + 0.5 * np.sin(1.3 * np.arange(400))])
    assert line(Autoregression(np.array([0.9])), hum) < 1e-6


def test_it_is_said_how_long_correlations_last() -> None:
    series = fitted([np.ones(101), np.ones(101)])
    assert Autoregression(np.array([0.9])).lasts(series) == pytest.approx(-1 / np.log(0.9) / 200)
    assert Relaxing(20.0, 0.1).lasts(series) == pytest.approx(0.1)
    assert White().lasts(series) == 0.0
