"""What is said of parameters beyond their priors: the same in every unit, and for priors of every tail."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from pm_sysid.reports import verdicts
from pm_sysid.reports.learned import learned

#: Priors by name, from standard normal numbers or of their own.
PRIORS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "lognormal": lambda rng, n: np.exp(rng.standard_normal(n)),
    "wide lognormal": lambda rng, n: np.exp(3 * rng.standard_normal(n)),
    "half Cauchy": lambda rng, n: np.abs(rng.standard_cauchy(n)),
    "Student": lambda rng, n: rng.standard_t(2, n),
    "uniform": lambda rng, n: rng.uniform(0.1, 10.0, n),
}


def told(posterior: dict[str, np.ndarray], prior: dict[str, np.ndarray]) -> list[verdicts.Verdict]:
    """Verdicts on draws by name, those of the posterior in four chains."""
    groups = [
        xr.Dataset({k: (("chain", "draw"), v.reshape(chains, -1)) for k, v in draws.items()})
        for draws, chains in ((posterior, 4), (prior, 1))
    ]
    return list(verdicts.information(learned(groups[0], groups[1], list(posterior))))


def texts(posterior: dict[str, np.ndarray], prior: dict[str, np.ndarray]) -> str:
    return " ".join(v.text for v in told(posterior, prior))


@pytest.mark.parametrize("kind", list(PRIORS))
def test_a_posterior_that_is_its_prior_is_never_said_to_come_from_the_record(kind: str) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        (verdict,) = told({"c": PRIORS[kind](rng, 2000)}, {"c": PRIORS[kind](rng, 1000)})
        assert verdict.level == "look" and verdict.text == "The record says little about c: the prior decides."


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(PRIORS))
def test_a_record_that_tells_much_is_seldom_called_weak(kind: str) -> None:
    """Of 40 right models, whose true values are draws of the prior, and each posterior a third as wide."""
    good = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = rng.standard_normal(2)
        prior = np.sort(PRIORS[kind](rng, 1000))
        scores = truth + (0.3 * rng.standard_normal(2) + 0.3 * rng.standard_normal((2000, 2)))
        values = np.quantile(np.sort(PRIORS[kind](rng, 100_000)), stats.norm.cdf(scores))
        verdict = told({"a": values[:, 0], "b": values[:, 1]}, {"a": prior, "b": rng.permutation(prior)})
        good += [v.level for v in verdict] == ["good"]
    assert good >= 38


@pytest.mark.parametrize("power", [1, -1])
def test_factors_of_a_known_product_are_known_in_combination_only(power: int) -> None:
    """Positive parameters, along whose ridge the draws do not lie on a line; the prior decides where."""
    rng = np.random.default_rng(1)
    a = np.exp(np.sqrt(0.5) * rng.standard_normal(4000))
    c = a**-power * np.exp(0.01 * rng.standard_normal(4000))
    prior = {name: np.exp(rng.standard_normal(1000)) for name in "ac"}
    said = texts({"a": a, "c": c}, prior)
    assert "little about a and c apart from a combination of them: along it, the prior decides" in said
    assert "a and c are known in combination only (correlation of their ranks" in said
    assert "not the priors" not in said


@pytest.mark.parametrize("width, combined", [(0.2, True), (0.05, False)])
def test_parameters_that_are_correlated_but_well_known_are_no_matter_of_the_prior(width: float, combined: bool) -> None:
    """Of two that are both known twenty times better than before, the combination is known better still: no matter either."""
    rng = np.random.default_rng(1)
    a = width * rng.standard_normal(4000)
    prior = {name: rng.standard_normal(1000) for name in "ac"}
    said = texts({"a": a, "c": 0.002 * rng.standard_normal(4000) - a}, prior)
    assert "not the priors, decides about every parameter" in said and ("in combination only" in said) == combined


def test_parameters_beyond_all_prior_draws_are_not_called_well_known() -> None:
    """Their normal scores by the prior are all those of its last draw."""
    rng = np.random.default_rng(1)
    a = 6.0 + 0.8 * rng.standard_normal(4000)
    prior = {name: rng.standard_normal(1000) for name in "ac"}
    assert "in combination only" in texts({"a": a, "c": 12.0 - a + 0.001 * rng.standard_normal(4000)}, prior)


def test_parameters_tied_together_by_the_prior_are_judged_one_by_one() -> None:
    rng = np.random.default_rng(1)
    common, drawn = 0.1 * rng.standard_normal(4000), rng.standard_normal(1000)
    known = {name: common + 0.01 * rng.standard_normal(4000) for name in "ac"}
    prior = {name: drawn + 0.01 * rng.standard_normal(1000) for name in "ac"}
    assert "not the priors" in texts(known, prior)


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("away", [-14.0, -5.0, -3.5, 3.5, 14.0])
def test_a_wrong_unit_is_seen_in_both_directions(away: float, spread: float) -> None:
    rng = np.random.default_rng(1)
    prior = {"a": np.exp(spread * rng.standard_normal(2000))}
    assert "a ended outside" in texts({"a": np.exp(spread * away + 0.01 * rng.standard_normal(4000))}, prior)


def test_a_parameter_within_its_prior_is_not_outside_and_few_draws_of_the_prior_know_no_better() -> None:
    rng = np.random.default_rng(1)
    for draws in (100, 1000):
        prior = {"a": np.exp(rng.standard_normal(draws))}
        for score in (-2.0, 0.0, 2.0):
            assert "not the priors" in texts({"a": np.exp(score + 0.05 * rng.standard_normal(2000))}, prior)
        assert "ended outside" in texts({"a": np.exp(5.0 + 0.05 * rng.standard_normal(2000))}, prior)


def test_nothing_is_said_without_a_prior_and_of_draws_that_do_not_vary() -> None:
    still = {"a": np.ones(8), "b": np.arange(8.0)}
    data = xr.Dataset({k: (("chain", "draw"), v.reshape(2, 4)) for k, v in still.items()})
    assert list(verdicts.information(learned(data, None, ["a", "b"]))) == []
