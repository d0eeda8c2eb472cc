"""Noise whose size varies: the test for it, and standard errors that allow for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.uneven_noise import UNEVEN, evened, samples, sandwich, sizes_of_noise, unevenness

DECAY = sid.System(lambda t, x, u, p: -p.r * x.c, states=("c",), params=("r",), observe=lambda t, x, dx, u, p: x.c)
T = np.linspace(0, 5, 60)


def fitted(noise: np.ndarray, x0: Any = 2.0, **options: Any) -> sid.PEMResult:
    return sid.fit_pem(DECAY, sid.TimeSeries(T, None, 2 * np.exp(-T) + noise), {"r": 0.8}, x0=x0, starts=1, **options)


def test_errors_are_those_of_the_sandwich_by_hand() -> None:
    fit = fitted(0.02 * np.random.default_rng(0).standard_normal(60))
    at = samples(fit.target, fit.x)
    r = float(fit.x[0])
    e, slope = fit.setup.filter.records[0].output_matrix[:, 0] - 2 * np.exp(-r * T), 2 * T * np.exp(-r * T)
    np.testing.assert_allclose(at.standardised, e, atol=1e-6)
    np.testing.assert_allclose(np.abs(at.slope[:, 0]), slope, atol=1e-4)
    leverage = slope**2 / np.sum(slope**2)
    expected = np.sum((slope * e / (1 - leverage)) ** 2) / np.sum(slope**2) ** 2
    assert sandwich(fit.target, at, np.array([True]), uneven=False)[0, 0] == pytest.approx(expected, rel=1e-3)


def test_scores_of_a_likelihood_add_up_to_its_gradient() -> None:
    noise = 0.02 * np.random.default_rng(0).standard_normal(60)
    fit = fitted(noise, objective="likelihood", predictor=sid.ExtendedKalman(R="estimate"))
    x = fit.x * 1.1
    at, evaluation = samples(fit.target, x), fit.target.evaluate(x)
    np.testing.assert_allclose(at.score.sum(axis=0), evaluation.gradient, rtol=1e-10)
    np.testing.assert_allclose(at.information, evaluation.information, rtol=1e-10)


def test_noise_of_one_size_is_seldom_called_uneven() -> None:
    rng = np.random.default_rng(1)
    fit = fitted(0.02 * rng.standard_normal(60))
    at = samples(fit.target, fit.x)
    white, free = rng.standard_normal((1000, 60)), np.array([True])
    chances = np.array([unevenness(fit.target, at._replace(standardised=e), free) for e in white])
    assert 0.02 < np.mean(chances < 0.05) < 0.08 and np.mean(chances < 0.01) < 0.025


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_sizes_are_those_of_the_most_likely_power_of_what_is_predicted(power: float) -> None:
    """A large record tells the power; innovations over their sizes are of one size then."""
    rng, free = np.random.default_rng(3), np.array([True])
    fit = fitted(0.01 * np.exp(-power * T) * rng.standard_normal(60))
    at = samples(fit.target, fit.x)
    errors = np.exp(-power * T) * rng.standard_normal((200, 60))
    found = np.array([sizes_of_noise(fit.target, at._replace(standardised=e), free) for e in errors])
    np.testing.assert_allclose(np.exp(np.log(found).mean(axis=0)), np.exp(-power * T), rtol=0.25)
    even = np.array([evened(fit.target, at._replace(standardised=e), free).standardised for e in errors])
    np.testing.assert_allclose(np.sqrt(np.mean(even**2, axis=0)), 1.0, atol=0.3)


@pytest.mark.parametrize("n", [14, 20, 60])
def test_noise_in_proportion_is_seen_where_unknowns_have_followed_the_largest_samples(n: int) -> None:
    rng, rates, t = np.random.default_rng(4), np.array([0.8, 10.0]), np.linspace(0, 5, n)
    system = sid.System(
        lambda t, x, u, p: -p.r * x.c, states=("c",), params=("r", "a"), observe=lambda t, x, dx, u, p: p.a * x.c
    )
    clean, both = rates[1] * np.exp(-rates[0] * t), np.ones(2, dtype=bool)
    record = sid.TimeSeries(t, None, clean + 0.01 * rng.standard_normal(n))
    fit = sid.fit_pem(system, record, {"r": 1, "a": 8}, x0=1.0, starts=1)
    at = samples(fit.target, fit.x)

    def chances(noise: np.ndarray) -> np.ndarray:
        """Of noise (S, n) less what the unknowns take of it."""
        left = noise - noise @ np.linalg.pinv(at.slope).T @ at.slope.T
        return np.array([unevenness(fit.target, at._replace(standardised=e), both) for e in left])

    noise = rng.standard_normal((400, n))
    assert np.mean(chances(noise) < UNEVEN) < 0.025
    assert np.mean(chances(clean * noise) < UNEVEN) > 0.9


def test_errors_of_a_short_record_with_noise_in_proportion_hold() -> None:
    """By squares of innovations alone, those of the amplitude were 2.7 of their standard errors: the fit follows the first."""
    t, z = np.linspace(0, 5, 20), []
    system = sid.System(
        lambda t, x, u, p: -p.r * x.c, states=("c",), params=("r", "a"), observe=lambda t, x, dx, u, p: p.a * x.c
    )
    for seed in range(60):
        y = 10 * np.exp(-0.8 * t) * (1 + 0.1 * np.random.default_rng(seed).standard_normal(20))
        fit = sid.fit_pem(system, sid.TimeSeries(t, None, y), {"r": 1.0, "a": 8.0}, x0=1.0, starts=1, progressbar=False)
        assert fit.success
        z.append((fit.x - [0.8, 10.0]) / fit.x_stderr)
    assert np.all(np.sqrt(np.mean(np.square(z), axis=0)) < 1.4)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_errors_hold_where_noise_grows_with_the_output(objective: Any) -> None:
    """By errors for noise of one size, the standardised errors of a decay from an unknown start are twice as large."""
    options: dict[str, Any] = {"objective": objective, "x0": None}
    options |= {"predictor": sid.ExtendedKalman(R="estimate")} if objective == "likelihood" else {}
    z, said, plain = [], [], []
    for seed in range(60):
        fit = fitted(0.1 * 2 * np.exp(-T) * np.random.default_rng(seed).standard_normal(60), **options)
        z.append((fit.x[0] - 1.0) / fit.x_stderr[0])
        said.append("not of one size" in fit.message)
        evaluation = fit.target.evaluate(fit.x)
        plain.append((fit.x[0] - 1.0) / np.sqrt(fit.target.covariance(evaluation, np.ones(fit.x.size, dtype=bool))[0, 0]))
        assert fit.success
    assert np.mean(said) > 0.8
    assert np.sqrt(np.mean(np.square(z))) < 1.3 < 1.6 < np.sqrt(np.mean(np.square(plain)))


def test_records_of_unequal_noise_are_seen() -> None:
    rng = np.random.default_rng(2)
    records = [sid.TimeSeries(T, None, 2 * np.exp(-T) + s * rng.standard_normal(60)) for s in (0.005, 0.005, 0.05)]
    fit = sid.fit_pem(DECAY, records, {"r": 0.8}, x0={"c": 2.0}, starts=1)
    assert "between records" in fit.message and fit.success


def test_few_samples_have_larger_errors_by_likelihood() -> None:
    noise = 0.02 * np.random.default_rng(0).standard_normal(60)
    fit = fitted(noise, objective="likelihood", predictor=sid.ExtendedKalman(R="estimate"))
    information = fit.target.evaluate(fit.x).information
    expected = np.linalg.inv(information) * 60 / 59
    expected[1, 1] += (fit.x[1] * (np.sqrt(60 / 59) - 1)) ** 2  # what the rate has taken of the noise
    np.testing.assert_allclose(fit.cov, expected, rtol=1e-8)
    known = fitted(noise, objective="likelihood", predictor=sid.ExtendedKalman(R=0.02**2))
    np.testing.assert_allclose(known.cov, np.linalg.inv(known.target.evaluate(known.x).information), rtol=1e-8)


OSCILLATOR = sid.System(
    lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z) / p.m), states=("z", "v"), inputs=("F",), params=("m", "c", "k"),
    observe=lambda t, x, dx, u, p: {"z": x.z, "a": dx.v},
)  # fmt: skip
LENGTH, OF_OUTPUTS = 300, {"m": 1.0, "c": 1.0, "k": 150.0}
TIMES = np.arange(LENGTH) / 50.0
DRIVE = sid.TimeSeries(TIMES, 10 * np.sin(0.6 * np.pi * TIMES * (1 + TIMES / 2)), None, inputs="F")
NEAR = {"m": 1.3, "c": 0.6, "k": 120.0}


def clean() -> np.ndarray:
    run = sid.simulate(OSCILLATOR, DRIVE, OF_OUTPUTS, x0=0.0, substeps=16)
    return np.column_stack([run["z"].values, run["a"].values])


def two_outputs(y: np.ndarray, seed: int, correlation: float, std: tuple[float, float], **options: Any) -> sid.PEMResult:
    e = np.random.default_rng(seed).standard_normal((LENGTH, 2))
    e[:, 1] = correlation * e[:, 0] + np.sqrt(1 - correlation**2) * e[:, 1]
    return sid.fit_pem(OSCILLATOR, DRIVE.replace(y=y + e * std, outputs=("z", "a")), NEAR, progressbar=False, **options)


@pytest.mark.slow
def test_errors_hold_where_outputs_have_noise_in_common() -> None:
    """By errors for independent outputs they were a third too small, and nothing said so."""
    y, z, plain = clean(), [], []
    for seed in range(40):
        fit = two_outputs(y, seed, -0.9, (2e-3, 0.3), objective="likelihood")
        assert fit.success and "innovations of z and a at one time are correlated (-0." in fit.message
        away = fit.x[:3] - list(OF_OUTPUTS.values())
        z.append(away / fit.x_stderr[:3])
        plain.append(away / np.sqrt(np.diag(np.linalg.inv(fit.target.evaluate(fit.x).information)))[:3])
    assert np.sqrt(np.mean(np.square(z))) < 1.15 < 1.2 < np.sqrt(np.mean(np.square(plain)))


@pytest.mark.slow
def test_outputs_of_other_noise_are_not_called_coloured() -> None:
    """Errors of the loud output have moved the parameters, which the quiet one shows: 44 of 60 were called not white."""
    y = clean()
    fits = [two_outputs(y, seed, 0.0, (1e-3, 0.5)) for seed in range(20)]
    assert sum("not white" in f.message for f in fits) <= 1  # 1 of 400, as few as by chance
    assert sum("not of one size" in f.message for f in fits) <= 2
    z = np.array([(f.x[:3] - list(OF_OUTPUTS.values())) / f.x_stderr[:3] for f in fits])
    assert np.abs(z).max() < 4


def test_a_model_that_is_wrong_is_called_coloured_in_the_quiet_output_as_well() -> None:
    bent = sid.System(
        lambda t, x, u, p: (x.v, (u.F - p.c * x.v - 150.0 * x.z - 4000.0 * x.z**3) / p.m), states=("z", "v"), inputs=("F",),
        params=("m", "c"), observe=lambda t, x, dx, u, p: {"z": x.z, "a": dx.v},
    )  # fmt: skip
    run = sid.simulate(bent, DRIVE, {"m": 1.0, "c": 1.0}, x0=0.0, substeps=16)
    fit = two_outputs(np.column_stack([run["z"].values, run["a"].values]), 0, 0.0, (1e-3, 0.5))
    assert "not white" in fit.message


@pytest.mark.slow
def test_errors_hold_for_records_of_unequal_noise() -> None:
    """The quiet record looked coloured by what loud ones had done to the parameters, and errors were 2.4 times too small."""
    bases = [sid.TimeSeries(TIMES[:100], DRIVE.u[a : a + 100], None, inputs="F") for a in (0, 100, 200)]
    starts = [{"z": 0.05, "v": 0.0}, {"z": -0.1, "v": 1.0}, {"z": 0.0, "v": 0.0}]
    runs = [sid.simulate(OSCILLATOR, b, OF_OUTPUTS, x0=x, substeps=16)["z"].values for b, x in zip(bases, starts, strict=True)]
    one = sid.System(
        lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z) / p.m), states=("z", "v"), inputs=("F",),
        params=("m", "c", "k"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    z, said = [], 0
    for seed in range(40):
        rng = np.random.default_rng(1000 + seed)
        noisy = [b.replace(y=y + s * rng.standard_normal(100)) for b, y, s in zip(bases, runs, (1e-3, 1e-2, 3e-3), strict=True)]
        fit = sid.fit_pem(one, noisy, NEAR, progressbar=False)
        coloured = "not white" in fit.message
        said += coloured  # 2 of 250, as many as by chance
        assert fit.success and ("not of one size" in fit.message or coloured)
        z.append((fit.x[:3] - list(OF_OUTPUTS.values())) / fit.x_stderr[:3])
    assert said <= 1
    assert np.abs(z).max() < 4 and np.sqrt(np.mean(np.square(z))) < 1.3
