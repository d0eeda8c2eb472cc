"""What is said of chains that have mixed, that are apart, that are stuck, and that are too short to tell."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pm_sysid.sampling.convergence import chains_that_missed, mixing


def test_independent_draws_are_fine() -> None:
    draws = np.random.default_rng(0).normal(size=(4, 1000, 2))
    found = mixing(draws, ["a", "b"])
    assert found.bad == "" and np.all(found.r_hat < 1.01) and np.all(found.ess > 3000)


def test_chains_apart_are_named() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 1000, 2))
    draws[1, :, 1] += 4.0
    assert "effective draws of b" in mixing(draws, ["a", "b"]).bad and mixing(draws, ["a", "b"]).bad.startswith("R-hat 1.")


def test_one_chain_is_judged_by_its_halves() -> None:
    rng = np.random.default_rng(0)
    drift = np.cumsum(rng.normal(size=(1, 2000, 1)), axis=1)
    assert "R-hat" in mixing(drift, ["a"]).bad
    assert mixing(rng.normal(size=(1, 2000, 1)), ["a"]).bad == ""


def test_a_slow_chain_has_few_draws() -> None:
    rng, slow = np.random.default_rng(3), np.zeros((4, 3000, 1))
    for i in range(1, 3000):
        slow[:, i, 0] = 0.98 * slow[:, i - 1, 0] + rng.normal(size=4)
    found = mixing(slow, ["a"])
    assert 50 < found.ess[0] < 300
    assert mixing(slow[:, :1000], ["a"]).bad


def test_a_chain_that_never_moved_is_stuck() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 500, 1))
    draws[1] = 0.3
    assert mixing(draws, ["a"]).bad == "R-hat inf and 1 effective draws of a"


def test_few_draws_tell_nothing() -> None:
    assert mixing(np.zeros((2, 50, 1)), ["a"]).bad == ""


def test_chains_that_said_that_they_missed_a_part_are_counted() -> None:
    missed = np.full((4, 10), np.nan)
    missed[:, -1] = [1, 0, np.nan, 1]
    statistics = xr.Dataset({"missed": (("chain", "draw"), missed)})
    assert chains_that_missed(xr.DataTree.from_dict({"sample_stats": statistics})) == (2, 1)
    two = xr.Dataset({"missed": (("chain", "draw", "step"), np.stack([missed, missed], axis=2))})
    assert chains_that_missed(xr.DataTree.from_dict({"sample_stats": two})) == (2, 1)
    assert chains_that_missed(xr.DataTree.from_dict({"sample_stats": statistics.drop_vars("missed")})) is None
    assert chains_that_missed(xr.DataTree()) is None and chains_that_missed(xr.Dataset()) is None
