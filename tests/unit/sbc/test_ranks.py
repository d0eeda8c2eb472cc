"""Ranks of true values among draws, and the tests of whether they are uniform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import pm_sysid as sid
from pm_sysid.sbc.ranks import ranks

MEAN, SD, RANK, PIT, ESS, R_HAT = range(6)


def result(pit: Any, failed: Any = None, labels: Any = None, r_hat: float = 1.0, ranked: int = 99) -> xr.DataTree:
    pit = np.atleast_2d(np.asarray(pit, dtype=float).T).T
    n, m = pit.shape
    failed = np.zeros(n, bool) if failed is None else np.asarray(failed)
    z = stats.norm.ppf(pit)
    columns = {"pit": pit, "z": z, "contraction": np.full((n, m), 0.9), "r_hat": np.full((n, m), r_hat)}
    arrays = {k: (("fit", "parameter"), np.where(failed[:, None], np.nan, v)) for k, v in columns.items()}
    labels = [f"p{i}" for i in range(m)] if labels is None else labels
    by_fit = {"failed": ("fit", failed), "ranked": ("fit", np.where(failed, 0, ranked))}
    return xr.DataTree.from_dict({"calibration": xr.Dataset({**arrays, **by_fit}, {"fit": np.arange(n), "parameter": labels})})


def scores(n: int, location: float, width: float, seed: int = 0) -> np.ndarray:
    """Ranks whose normal scores have this location and width."""
    return stats.norm.cdf(location + width * np.random.default_rng(seed).standard_normal(n))


def test_a_rank_counts_the_draws_below() -> None:
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((2, 50, 3))
    table, count = ranks(np.array([-9.0, 0.1, 9.0]), draws, 1000, rng)
    flat = draws.reshape(-1, 3)
    assert count <= 100
    assert table[RANK, 0] == 0 and table[RANK, 2] == count
    assert np.allclose(table[MEAN], flat.mean(axis=0)) and np.allclose(table[SD], flat.std(axis=0, ddof=1))
    assert np.all((table[RANK] <= table[PIT] * (count + 1)) & (table[PIT] * (count + 1) <= table[RANK] + 1))


def test_few_independent_draws_are_ranked_of_a_slow_chain() -> None:
    rng, slow = np.random.default_rng(2), np.zeros((1, 2000, 1))
    for i in range(1, 2000):
        slow[0, i] = 0.99 * slow[0, i - 1] + rng.standard_normal()
    table, count = ranks(np.zeros(1), slow, 99, rng)
    assert table[ESS, 0] < 40 and count == int(table[ESS, 0])
    assert ranks(np.zeros(1), rng.standard_normal((1, 2000, 1)), 99, rng)[1] == 99


def test_ties_are_broken_evenly() -> None:
    draws, found = np.zeros((1, 20, 1)), []
    for seed in range(1000):
        table, _ = ranks(np.zeros(1), draws, 9, np.random.default_rng(seed))
        found.append(table[RANK, 0])
    counts = np.bincount(np.array(found, dtype=int), minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
def test_ranks_of_exchangeable_values_are_uniform_whatever_their_number() -> None:
    rng = np.random.default_rng(3)
    found = [
        ranks(rng.standard_normal(1), rng.standard_normal((1, 20, 1)), int(rng.integers(2, 9)), rng)[0] for _ in range(3000)
    ]
    assert stats.kstest([t[PIT, 0] for t in found], "uniform").pvalue > 1e-3


def test_impossible_draws_count_as_below() -> None:
    draws = np.full((1, 8, 1), -np.inf)
    table, count = ranks(np.zeros(1), draws, 8, np.random.default_rng(0))
    assert table[RANK, 0] == count == 8


def test_uniform_ranks_pass_and_others_are_named() -> None:
    fine = scores(400, 0.0, 1.0)
    wrong = {"narrow": scores(400, 0.0, 1.3), "wide": scores(400, 0.0, 0.75), "low": scores(400, 0.4, 1.0)}
    high, shape = scores(400, -0.4, 1.0), np.random.default_rng(5).beta(0.5, 0.5, 400)
    columns = np.stack([fine, *wrong.values(), high, shape], axis=1)
    names = ["fine", *wrong, "high", "arcsine"]
    tests = sid.calibration_tests(result(columns, labels=names))
    assert not tests.passed and tests.parameters == tuple(names)
    assert tests.verdict("fine") == "fine"
    assert tests.verdict("narrow") == "too narrow" and tests.verdict("wide") == "too wide"
    assert tests.verdict("low") == "too low" and tests.verdict("high") == "too high"
    assert "too narrow" in tests.verdict("arcsine")
    assert tests.width[1] == pytest.approx(1.3, rel=0.1) and tests.location[3] == pytest.approx(0.4, abs=0.15)
    text = repr(tests)
    assert "Not calibrated" in text and "narrow too narrow" in text and "400 fits" in text
    assert sid.calibration_tests(result(fine)).passed and "No sign" in repr(sid.calibration_tests(result(fine)))
    assert sid.calibration_tests(result(columns, labels=names), var_names="fine").passed


def test_a_shape_that_has_the_right_mean_and_width_is_found_by_uniformity() -> None:
    """Two clusters of scores at -1 and 1: mean 0, width 1."""
    rng = np.random.default_rng(7)
    s = np.sign(rng.random(400) - 0.5) * np.abs(1 + 0.1 * rng.standard_normal(400))
    s = (s - s.mean()) / s.std()
    tests = sid.calibration_tests(result(stats.norm.cdf(s)))
    assert tests.location_p[0] > 0.5 and tests.width_p[0] > 0.5
    assert tests.verdict("p0") == "ranks not uniform"


def test_false_alarms_are_as_rare_as_the_level_says() -> None:
    rng = np.random.default_rng(11)
    alarms = sum(not sid.calibration_tests(result(rng.random((100, 3))), level=0.9).passed for _ in range(200))
    # Bonferroni and dependent tests: at most one in ten, and not nearly none.
    assert 3 <= alarms <= 31


@pytest.mark.slow
@pytest.mark.parametrize("draws, most", [(3, 1.0), (10, 0.98), (99, 0.98), (1000, 0.98)])
def test_the_resolution_is_what_is_found_nine_times_in_ten(draws: int, most: float) -> None:
    """With few ranked draws, wrong widths are found later: it was the same whatever their number."""

    def passed(bias: float, factor: float, seed: int) -> bool:
        rng = np.random.default_rng(seed)
        rank = rng.binomial(draws, stats.norm.cdf((rng.standard_normal(200) - bias) / factor))
        found = result((rank + rng.random(200)) / (draws + 1), ranked=draws)["calibration"].to_dataset()
        p = sid.calibration_tests(xr.DataTree.from_dict({"calibration": found}))
        return bool(min(p.location_p[0], p.width_p[0], p.uniform_p[0]) > p.threshold)

    bias, narrow, wide = sid.calibration_tests(result(np.full((200, 1), 0.5), ranked=draws)).resolution
    for wrong in ((bias, 1.0), (0.0, 1 - narrow), (0.0, 1 + wide)):
        assert 0.81 <= 1 - np.mean([passed(*wrong, seed) for seed in range(100)]) <= most, wrong


def test_what_is_never_found_is_not_stated() -> None:
    tests = sid.calibration_tests(result(scores(40, 0.0, 1.0), ranked=3))
    assert np.isinf(tests.resolution.narrow) and np.isinf(tests.resolution.wide)
    assert "find a bias of 0.99 posterior sd." in repr(tests)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"failed": np.arange(200) < 11}, "11 of 200 fits failed, and the others may be a selection"),
        ({"r_hat": 1.2}, "200 of 200 fits have not converged"),
        ({"ranked": 3}, "Half of the fits rank the truth among 3 draws or fewer"),
    ],
)
def test_fits_that_say_little_do_not_pass(change: dict[str, Any], words: str) -> None:
    tests = sid.calibration_tests(result(scores(200, 0.0, 1.0), **change))
    assert not tests.passed and tests.verdict("p0") == "in doubt" and len(tests.doubts) == 1
    assert words in repr(tests) and "Not shown to be calibrated" in repr(tests) and "No sign" not in repr(tests)
    wrong = sid.calibration_tests(result(scores(200, 0.4, 1.0), **change))
    assert wrong.verdict("p0") == "too low" and words in repr(wrong) and "Not calibrated" in repr(wrong)
    few = sid.calibration_tests(result(scores(200, 0.0, 1.0), failed=np.arange(200) < 10, ranked=10))
    assert few.passed and few.doubts == ()


def test_failed_fits_are_counted_and_left_out() -> None:
    failed = np.arange(60) % 6 == 0
    tests = sid.calibration_tests(result(scores(60, 0.0, 1.0), failed))
    assert tests.fits == 60 and tests.failed == 10 and np.isfinite(tests.width[0])
    assert "of which 10 failed" in repr(tests)


def test_coverage_is_that_of_central_intervals() -> None:
    pit = np.concatenate([np.full(30, 0.5), np.full(50, 0.9), np.full(20, 0.99)])
    tests = sid.calibration_tests(result(pit))
    assert tests.coverage[0].tolist() == [0.3, 0.8]


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(result=xr.DataTree()), "group 'calibration'"),
        (dict(var_names="q"), "no parameter 'q'"),
        (dict(level=2.0), "level is 2.0"),
        (dict(level=True), "level is True"),
        (dict(result=result(np.full((5, 1), 0.5))), "too few"),
    ],
)
def test_doors(change: dict[str, Any], text: str) -> None:
    options = {"result": result(np.linspace(0.01, 0.99, 50)), **change}
    with pytest.raises(ValueError, match=text):
        sid.calibration_tests(options.pop("result"), **options)
