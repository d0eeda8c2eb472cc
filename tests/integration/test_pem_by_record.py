"""Several specimens in one fit: some parameters are shared, others have a number for each record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import pm_sysid as sid

LAG = sid.System(
    lambda t, x, u, p: p.b * u.u - p.r * x.l,
    states=("l",),
    inputs=("u",),
    params=("r", "b"),
    observe=lambda t, x, dx, u, p: x.l,
)
RATES, NOISE = (0.5, 0.8, 1.3), 0.01
FILTER = sid.ExtendedKalman(substeps=2)


def record(rate: float, seed: int, n: int = 60) -> sid.TimeSeries:
    t = 0.1 * np.arange(n)
    data = sid.TimeSeries(t, {"u": np.sin((1 + 0.3 * seed) * t)}, None, intersample="foh")
    y = sid.simulate(LAG, data, {"r": rate, "b": 2.0}, x0=0.3, substeps=2)["y"].to_numpy()
    return data.replace(y=y + NOISE * np.random.default_rng(seed).normal(size=n))


RECORDS = [record(rate, seed, 50 + 10 * seed) for seed, rate in enumerate(RATES)]


def fit(guess: Any, **options: Any) -> sid.PEMResult:
    return sid.fit_pem(LAG, RECORDS, guess, **{"predictor": FILTER, "progressbar": False, **options})


@pytest.fixture(scope="module")
def shared() -> sid.PEMResult:
    return fit({"r": [0.6, 0.6, 0.6], "b": 1.0})


def test_fits_that_share_nothing_are_those_of_each_record() -> None:
    together = fit({"r": [0.6] * 3, "b": [1.0] * 3})
    for i, one in enumerate(RECORDS):
        alone = sid.fit_pem(LAG, one, {"r": 0.6, "b": 1.0}, predictor=FILTER, progressbar=False)
        assert_allclose([together.p["r"][i], together.p["b"][i]], [alone.p["r"], alone.p["b"]], rtol=1e-7)
        assert_allclose(together.x0[i], alone.x0, atol=1e-7)


def test_what_is_shared_is_known_better_and_each_rate_is_found(shared: sid.PEMResult) -> None:
    z = (np.array(shared.p["r"]) - RATES) / shared.stderr["r"]
    assert shared.success and np.all(np.abs(z) < 3) and abs(shared.p["b"] - 2) < 3 * shared.stderr["b"]
    alone = sid.fit_pem(LAG, RECORDS[0], {"r": 0.6, "b": 1.0}, predictor=FILTER, progressbar=False)
    assert shared.stderr["b"] < alone.stderr["b"] and shared.stderr["r"][0] < alone.stderr["r"]
    assert [len(x) for x in shared.x0] == [1, 1, 1] and shared.names[:4] == ["r_0", "r_1", "r_2", "b"]


def test_derivatives_are_those_of_differences(shared: sid.PEMResult) -> None:
    x, target = shared.x * 1.01, shared.target
    gradient = target.evaluate(x).gradient
    for j in range(x.size):
        up, down = (target.evaluate(x + s * np.eye(x.size)[j]).value for s in (1e-5, -1e-5))
        assert gradient[j] == pytest.approx((up - down) / 2e-5, rel=1e-6, abs=1e-9)


def test_a_new_record_is_that_of_the_specimen_that_is_named(shared: sid.PEMResult) -> None:
    new = record(RATES[1], 7)
    with pytest.raises(ValueError, match=r"r has a value for each of these; say whose it has: fit\.like\(0\)"):
        shared.predict(np.inf, record=new)
    percent = [sid.compare_fits(shared.like(i), new).table.iloc[0, 0] for i in range(3)]
    assert np.argmax(percent) == 1 and percent[1] > 97
    run = sid.simulate(LAG, new, {"r": shared.p["r"][1], "b": shared.p["b"]}, x0=0.3, substeps=2)["y"]
    assert_allclose(shared.like(1).predict(np.inf, record=new, x0=0.3)["y"], run, rtol=1e-6, atol=1e-9)
    own = shared.predict(np.inf, record=1)["y"]
    assert_allclose(shared.like(0).predict(np.inf, record=1)["y"], own)  # a record of the fit has its own
    from_one = [f.predict(np.inf, record=r, x0=1.0)["y"] for f in (shared, shared.like(0)) for r in (1, RECORDS[1])]
    assert all(np.array_equal(from_one[0], other) for other in from_one[1:])
    for wrong in (3, -1, "a", True):
        with pytest.raises(ValueError, match="give the number of a record of the fit, 0 to 2"):
            shared.like(wrong)  # type: ignore[arg-type]


def test_rates_drift_from_numbers_of_their_own() -> None:
    found = fit(
        {"r": [0.6, 0.6, 0.6], "b": 1.0},
        varying={"r": sid.RandomWalk(scale=0.02)},
        predictor=sid.ExtendedKalman(substeps=2, R="estimate"),
        objective="likelihood",
    )
    assert np.all(np.abs(np.array(found.p["r"]) - RATES) < 3 * np.array(found.stderr["r"]))
    path = found.innovations(2)["state_r"]
    assert path.values[0] == pytest.approx(found.p["r"][2]) and float(path.std()) > 0


def test_bounds_and_posteriors_are_by_record_too() -> None:
    found = fit({"r": [0.6] * 3, "b": 1.0}, bounds=({"r": [0.4] * 3, "b": 0.0}, {"r": [1.0] * 3, "b": 9.0}))
    assert found.p["r"][2] == 1.0 and "At their bounds: ['r_2']" in found.message
    assert {"r_0", "r_1", "b"} <= set(found.laplace(10, random_seed=1)["posterior"].data_vars)


@pytest.mark.parametrize(
    "guess, options, message",
    [
        ({"r": [0.6, 0.6], "b": 1.0}, {}, "p_guess has 2 numbers for 'r'; give one, .* for each of the 3 records"),
        ({"r": [0.6] * 4, "b": 1.0}, {}, "p_guess has 4 numbers for 'r'"),
        ({"r": [0.6] * 3, "b": 1.0}, {"predictor": sid.EK1()}, "which a ProbabilisticKalman cannot have; take ExtendedKalman"),
        ({"r": [0.6] * 3, "b": 1.0}, {"fixed": {"r": 0.5}}, r"p_guess has the unknown names \['r_0', 'r_1', 'r_2'\]"),
    ],
)
def test_other_numbers_are_refused(guess: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(guess, **options)
