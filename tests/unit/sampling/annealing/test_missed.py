"""A chain beside weighted draws: modes and tails that it lacks are told, chance is not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pm_sysid.sampling.annealing.missed import missed
from pm_sysid.sampling.smc.evidence import pareto_shape

LABELS = ["a", "b"]


def weighted(rng: np.random.Generator, log_density, count: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Draws of a wide t distribution and their log weights."""
    x = 4 * rng.standard_t(3, (count, 2))
    return x, log_density(x) - stats.t(3, scale=4).logpdf(x).sum(axis=1)


def normal(x: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(x).sum(axis=1)


def two_modes(x: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(x[:, 0]) + np.logaddexp(
        stats.norm.logpdf(x[:, 1], -5), np.log(0.4) + stats.norm.logpdf(x[:, 1], 5)
    )


def test_a_right_chain_is_left_alone() -> None:
    said = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        chain = rng.standard_normal((1000, 2))
        for i in range(1, len(chain)):  # as correlated as that of a random walk
            chain[i] = 0.9 * chain[i - 1] + np.sqrt(1 - 0.9**2) * chain[i]
        said.append(missed(chain, *weighted(rng, normal), LABELS))
    assert said == [""] * 20


@pytest.mark.parametrize("at, others", [(-5, 29), (5, 71)])
def test_another_mode_is_told_with_its_share(at: int, others: int) -> None:
    rng = np.random.default_rng(0)
    said = missed(rng.normal([0, at], 1, (1000, 2)), *weighted(rng, two_modes), LABELS)
    assert said is not None and said.startswith("of b, ")
    assert abs(int(said.split()[2]) - others) < 6


def test_a_missing_tail_is_told() -> None:
    def tails(x: np.ndarray) -> np.ndarray:
        far = np.logaddexp(np.log(0.97) + stats.norm.logpdf(x[:, 0]), np.log(0.03) + stats.norm.logpdf(x[:, 0], 0, 15))
        return far + stats.norm.logpdf(x[:, 1])

    rng = np.random.default_rng(0)
    said = missed(rng.standard_normal((1000, 2)), *weighted(rng, tails), LABELS)
    assert said is not None and "standard deviation of a is" in said and "times that of the chain" in said


def test_a_standard_deviation_that_hangs_on_few_draws_is_told() -> None:
    """A long tail that the chain has seen, now and then."""
    rng, ends = np.random.default_rng(2), stats.cauchy.cdf([-1000, 1000])
    levels = rng.permutation((np.arange(400) + 0.5) / 400)
    chain = np.column_stack([stats.cauchy.ppf(ends[0] + levels * np.ptp(ends)), rng.standard_normal(400)])
    x = np.column_stack([30 * rng.standard_cauchy(2000), 2 * rng.standard_normal(2000)])
    log_weights = stats.cauchy.logpdf(x[:, 0]) - stats.cauchy(0, 30).logpdf(x[:, 0])
    log_weights += stats.norm.logpdf(x[:, 1]) - stats.norm(0, 2).logpdf(x[:, 1])
    said = missed(chain, x, np.where(np.abs(x[:, 0]) < 1000, log_weights, -np.inf), LABELS)
    assert said is not None and "standard deviation of a hangs on few draws far from the others" in said


def test_weights_that_say_nothing_are_no_verdict() -> None:
    rng = np.random.default_rng(0)
    chain = rng.normal([0, -5], 1, (1000, 2))
    x, log_weights = weighted(rng, two_modes)
    assert missed(chain, np.empty((0, 2)), np.empty(0), LABELS) is None
    assert missed(chain, x, np.full(len(x), -np.inf), LABELS) is None
    assert missed(chain, x, 20 * log_weights, LABELS) is None
    assert missed(chain[:50], x, log_weights, LABELS) is None


def test_weights_that_are_nearly_equal_say_something_whatever_the_shape_of_the_largest() -> None:
    """Their Pareto shape may be above one: it is that of small differences."""
    rng = np.random.default_rng(2)
    log_weights = np.log1p(1e-5 * rng.pareto(0.7, 600))
    assert pareto_shape(log_weights) > 0.8
    assert missed(rng.standard_normal((1000, 2)), rng.standard_normal((600, 2)), log_weights, LABELS) == ""
