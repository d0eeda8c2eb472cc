"""Maximum likelihood: noise is found, methods agree, errors are those of the information."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from support.pem_cases import TRUTH, fit, record

#: A force held over each sample, of 0.3 N, moves the states like this; and what the sensor adds.
DRIVE, NOISE = 0.3, 0.02
BOTH = sid.ExtendedKalman(Q={"v": "estimate"}, R="estimate", substeps=2)
NAMED = sid.ExtendedKalman(Q={"v": "drive"}, R={"y": "sensor"}, substeps=2)
DATA = record(n=1500, drive=DRIVE, noise=NOISE, seed=3)


def test_noise_of_a_simulated_record_is_found() -> None:
    result = fit(DATA, predictor=BOTH, objective="likelihood", P0=0.0)
    assert result.success and result.names == ["k", "c", "process_v", "noise_y"]
    truth = np.array([*TRUTH.values(), 0.1 * DRIVE, NOISE])  # 0.1 s of the force, on a unit mass
    assert np.all(np.abs(result.x - truth) < 4 * result.x_stderr)
    assert np.all(result.x_stderr < 0.15 * truth)
    assert result.noise["process_z"] == 0.0 and result.noise["noise_y"] == result.x[3]
    z = result.innovations()["standardised"].to_numpy()
    assert abs(np.mean(z**2) - 1) < 1e-6  # the scale of all noise is at its optimum
    assert result.resid().table["white p"].iloc[0] > 0.01


@pytest.mark.parametrize("method", ["bfgs", "trust"])
def test_methods_agree(method: Any) -> None:
    a, b = (fit(DATA, predictor=BOTH, objective="likelihood", P0=0.0, method=m) for m in ("lm", method))
    assert b.success, b.message
    assert abs(a.fun - b.fun) < 1e-4
    np.testing.assert_allclose(a.x, b.x, atol=1e-2 * a.x_stderr.min())
    assert [i.objective for i in b.history] == sorted((i.objective for i in b.history), reverse=True) or method == "bfgs"


@pytest.mark.parametrize("method", ["lm", "bfgs"])
def test_bounds_of_a_likelihood(method: Any) -> None:
    result = fit(DATA, predictor=BOTH, objective="likelihood", P0=0.0, method=method, bounds=({"k": 0, "c": 0.5}, None))
    assert result.success and result.p["c"] == 0.5 and "At their bounds: ['c']" in result.message
    free = fit(DATA, {"k": 3.0}, fixed={"c": 0.5}, predictor=BOTH, objective="likelihood", P0=0.0)
    np.testing.assert_allclose(result.p["k"], free.p["k"], atol=0.01 * free.stderr["k"])


def test_standard_deviations_can_be_leaves_of_the_guess() -> None:
    guess = {"k": 3.0, "c": 0.8, "noise": {"drive": 0.1, "sensor": 0.1}}
    result = fit(DATA, guess, predictor=NAMED, objective="likelihood", P0=0.0)
    auto = fit(DATA, predictor=BOTH, objective="likelihood", P0=0.0)
    np.testing.assert_allclose(result.p["noise"]["drive"], auto.noise["process_v"], rtol=1e-4)
    np.testing.assert_allclose(result.stderr["noise"]["sensor"], auto.x_stderr[3], rtol=1e-4)


def test_a_noise_that_is_not_there_is_as_good_as_zero() -> None:
    result = fit(predictor=BOTH, objective="likelihood", P0=0.0)
    assert result.success and "No noise is seen in ['process_v']" in result.message
    assert result.noise["process_v"] < 1e-4 and result.x_stderr[2] == 0.0
    known = fit(predictor=sid.ExtendedKalman(R="estimate", substeps=2), objective="likelihood", P0=0.0)
    np.testing.assert_allclose(result.fun, known.fun, atol=1e-5)
    squares = fit()
    np.testing.assert_allclose([known.p["k"], known.p["c"]], squares.x, rtol=1e-5)  # of a free run they are the same
    np.testing.assert_allclose(known.noise["noise_y"] ** 2, squares.fun, rtol=1e-6)


@pytest.mark.slow
def test_information_is_the_spread_of_the_score() -> None:
    """Over records of the true model, the gradient at the truth varies as the expected information says."""
    predictor = sid.ExtendedKalman(Q={"v": "drive"}, R={"y": "sensor"}, substeps=2)
    truth = {**TRUTH, "drive": 0.1 * DRIVE, "sensor": NOISE}
    scores, information = [], np.zeros((4, 4))
    for seed in range(200):
        data = record(n=200, drive=DRIVE, noise=NOISE, seed=seed)
        target = fit(data, truth, predictor=predictor, objective="likelihood", P0=0.0, tolerances={"maxiter": 0}).target
        evaluation = target.evaluate(np.array(list(truth.values())))
        scores.append(evaluation.gradient)
        information += evaluation.information / 200
    root = np.linalg.cholesky(np.linalg.inv(information))
    whitened = np.array(scores) @ root
    assert np.all(np.abs(whitened.mean(axis=0)) < 4 / np.sqrt(200))
    spread = whitened.T @ whitened / 200
    np.testing.assert_allclose(spread, np.eye(4), atol=4 * np.sqrt(2 / 200))


def test_noise_cannot_be_found_by_least_squares() -> None:
    with pytest.raises(ValueError, match="objective='likelihood'"):
        fit(predictor=BOTH)


def test_an_estimated_start_is_not_uncertain_twice() -> None:
    """Without process noise the likelihood is that of the output error: same unknowns, same errors, the start's included."""
    data, free = record(n=300, noise=NOISE, seed=5), sid.ExtendedKalman(substeps=2)
    options: dict[str, Any] = dict(predictor=free, x0=None, estimate=True)
    squares, likelihood = fit(data, **options), fit(data, objective="likelihood", **options)
    of = {n: i for i, n in enumerate(likelihood.names)}
    order = [of[n] for n in squares.names]
    np.testing.assert_allclose(likelihood.x[order], squares.x, rtol=1e-3, atol=1e-2 * squares.x_stderr.max())
    np.testing.assert_allclose(likelihood.x_stderr[order], squares.x_stderr, rtol=0.05)


def test_a_force_that_nobody_recorded_is_a_state_with_process_noise() -> None:
    """What the error of ``latent`` says to do: stiffness, size of the force and noise are found."""
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F + x.d - p.k * x.z - 0.4 * x.v, -x.d / 0.6),
        states=("z", "v", "d"),
        inputs=("F",),
        params=("k",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    pushed = sid.System(
        lambda t, x, u, p: (x.v, u.F + u.d - p.k * x.z - 0.4 * x.v),
        states=("z", "v"),
        inputs=("F", "d"),
        params=("k",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    t, gust = np.arange(600) * 0.1, sid.OU(scale=0.5, length=0.6)
    known = sid.TimeSeries(t, 2.0 * np.sin(0.8 * t) + np.sin(2.2 * t), inputs="F")
    z = sid.simulate(pushed, known, {"k": 4.0}, x0=0.0, latent={"d": gust}, random_seed=4)["y"].to_numpy()
    data = known.replace(y=z + 0.02 * np.random.default_rng(4).standard_normal(len(t)))
    predictor = sid.ExtendedKalman(Q={"d": "q"}, R={"y": "r"}, substeps=2)
    guess = {"k": 3.0, "q": 0.1, "r": 0.05}
    found = sid.fit_pem(system, data, guess, predictor=predictor, x0=0.0, objective="likelihood", starts=1, progressbar=False)
    # In a sampling interval the force forgets 1 - exp(-2 * 0.1 / 0.6) of its variance and gets as much.
    truth = {"k": 4.0, "q": 0.5 * np.sqrt(1 - np.exp(-0.2 / 0.6)), "r": 0.02}
    for name, value in truth.items():
        assert abs(found.p[name] - value) < 3 * found.stderr[name] and found.stderr[name] < 0.2 * value, name


PAIR = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.k * x.z - p.c * x.v), states=("z", "v"), inputs=("F",), params=("k", "c"),
    observe=lambda t, x, dx, u, p: {"z": x.z, "a": dx.v},
)  # fmt: skip


def beside(n: int, seed: int, *, z: bool = True) -> sid.TimeSeries:
    """An oscillator's position, or none, and ``n`` samples of its acceleration, from an unknown start."""
    rng, t = np.random.default_rng(seed), 0.1 * np.arange(120)
    record = sid.TimeSeries(t, np.sin(2 * t) + np.sin(5 * t), None, inputs="F", intersample="foh")
    run = sid.simulate(PAIR, record, {"k": 9.0, "c": 0.6}, x0=rng.normal(size=2), substeps=4)
    measured = np.isin(np.arange(120), np.linspace(20, 90, n).astype(int))
    a = np.where(measured, run["a"].to_numpy() + 0.5 * rng.standard_normal(120), np.nan)
    return record.replace(y={"z": run["z"].to_numpy() + 0.1 * rng.standard_normal(120) if z else np.full(120, np.nan), "a": a})


def by_likelihood(data: sid.TimeSeries, R: Any = "estimate") -> sid.PEMResult:
    predictor = sid.ExtendedKalman(R=R, substeps=4)
    return sid.fit_pem(PAIR, data, {"k": 7.0, "c": 0.4}, predictor=predictor, objective="likelihood", progressbar=False)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
@pytest.mark.parametrize("n", [1, 2])
def test_noise_of_one_or_two_values_is_a_doubt(n: int, seed: int) -> None:
    """The other unknowns can fit them exactly: of 120 such fits 4 were a success up to seven standard errors off."""
    data = beside(n, seed)
    found = by_likelihood(data)
    assert not found.success
    assert f"noise_a is estimated from {n} measured value{'s' * (n > 1)}: the other unknowns can fit" in found.message
    given = by_likelihood(data, {"z": "estimate", "a": 0.5})
    assert given.success and np.all(np.abs(given.x[:2] - [9.0, 0.6]) < 4 * given.x_stderr[:2])
    assert "noise_a is estimated" not in by_likelihood(beside(3, seed)).message


def test_noise_alone_may_be_unknown() -> None:
    """No search among equally good parameters, of which there are none."""
    t = 0.05 * np.arange(200)
    tone = sid.System(
        lambda t, x, u, p: (x.v, -(6.28**2) * x.z), states=("z", "v"), params=(), observe=lambda t, x, dx, u, p: x.z
    )
    data = sid.TimeSeries(t, None, np.cos(6.28 * t) + 0.05 * np.random.default_rng(0).standard_normal(200))
    options = dict(predictor=sid.ExtendedKalman(R="estimate"), objective="likelihood", random_seed=0, progressbar=False)
    found = sid.fit_pem(tone, data, {}, x0=[1.0, 0.0], **options)
    assert found.success and found.noise["noise_y"] == pytest.approx(0.05, rel=0.15)
    wrong = sid.fit_pem(tone, data.replace(y=np.cos(8.0 * t)), {}, x0=[1.0, 0.0], **options)
    assert not wrong.success and "The fit explains nothing" in wrong.message


@pytest.mark.parametrize("z", [True, False])
def test_noise_of_what_is_measured_nowhere_is_not_looked_for(z: bool) -> None:
    """It ended in errors of linear algebra, or in a noise of 1e26."""
    data = beside(0 if z else 120, 0, z=z)
    name = "a" if z else "z"
    with pytest.raises(ValueError, match=f"R is to be found for '{name}', which is measured nowhere in data; give a number"):
        by_likelihood(data)
    found = sid.fit_pem(PAIR, data, {"k": 7.0, "c": 0.4}, objective="likelihood", progressbar=False)
    assert found.success and found.noise[f"noise_{name}"] == 1.0
    assert np.all(np.abs(found.x[:2] - [9.0, 0.6]) < 4 * found.x_stderr[:2])


def test_noise_with_a_name_is_not_looked_for_either() -> None:
    with pytest.raises(ValueError, match="'a', which is measured nowhere"):
        sid.fit_pem(
            PAIR, beside(0, 0), {"k": 7.0, "c": 0.4, "sensor": 0.1, "other": 0.1}, objective="likelihood", progressbar=False,
            predictor=sid.ExtendedKalman(R={"z": "sensor", "a": "other"}),
        )  # fmt: skip
