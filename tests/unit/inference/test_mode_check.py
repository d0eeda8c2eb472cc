"""Modes that draws lack, whichever sampler they are from: exact shares, right draws, steps, and what cannot be told."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy.special import softmax

import pm_sysid as sid
from pm_sysid.inference import ruled_out
from pm_sysid.inference.mode_check import ModeCheck
from support.swing import T, swing

RNG = np.random.default_rng(3)
#: Masses, means and standard deviations (of both unknowns) of three modes.
SHARES, MEANS, WIDTHS = np.array([0.62, 0.3, 0.08]), np.array([[0.0, 0.0], [4.0, -3.0], [-5.0, 4.0]]), np.array([0.3, 0.1, 0.5])


def three() -> pm.Model:
    """A likelihood that makes a posterior of three Gaussians of known masses of a wide prior."""
    with pm.Model() as model:
        x = pm.Uniform("x", -10, 10, shape=2)
        squares = ((x - MEANS) ** 2).sum(axis=1) / WIDTHS**2
        density = pt.log(pt.sum(pt.exp(-squares / 2) * (SHARES / WIDTHS**2)))
        pm.CustomDist("y", density, logp=lambda value, density: density + 0 * value, observed=np.zeros(1))
    return model


def of_modes(counts: list[int], rng: np.random.Generator) -> xr.Dataset:
    """Independent draws, so many of each mode, in two chains."""
    parts = [m + w * rng.standard_normal((n, 2)) for m, w, n in zip(MEANS, WIDTHS, counts, strict=True)]
    x = rng.permutation(np.concatenate(parts)).reshape(2, -1, 2)
    return xr.Dataset({"x": (("chain", "draw", "x_dim"), x)})


MODEL = three()


def test_draws_of_all_modes_lack_none() -> None:
    found = sid.check_modes(of_modes([620, 300, 80], RNG), model=MODEL)
    assert found.level == "good" and found.share == 0 and not found.modes and found.searched > 1000
    assert "have found no mode that the draws lack" in repr(found)


@pytest.mark.parametrize(
    ("counts", "share", "level"), [([1000, 0, 0], 0.38, "bad"), ([0, 1000, 0], 0.7, "bad"), ([620, 300, 0], 0.08, "bad")]
)
def test_modes_that_draws_lack_are_found_with_their_share(counts: list[int], share: float, level: str) -> None:
    found = sid.check_modes(of_modes(counts, RNG), model=MODEL)
    assert found.level == level and found.share == pytest.approx(share, rel=0.25)
    lacking = MEANS[np.array(counts) == 0]
    assert len(found.modes) == len(lacking)
    for mean in lacking:
        assert min(np.linalg.norm(mode["x"] - mean) for mode in found.modes) < 0.1
    assert "whatever R-hat says" in found.verdict and "sid.sample" in found.verdict


def test_a_mode_with_a_third_of_its_draws_is_held_and_one_with_a_tenth_is_not() -> None:
    assert sid.check_modes(of_modes([780, 160, 60], RNG), model=MODEL).level == "good"
    assert sid.check_modes(of_modes([880, 40, 80], RNG), model=MODEL).share == pytest.approx(0.3, rel=0.25)


def test_ends_of_the_mode_that_draws_hold_do_not_hide_another() -> None:
    """Half of all searches end in each of two modes of equal height: those of the one are not all that are looked at."""
    with pm.Model() as model:
        x = pm.Uniform("x", -10, 10)
        density = pt.log(pt.exp(-0.5 * ((x - 2.191) / 0.005) ** 2) + pt.exp(-0.5 * ((x + 3.683) / 0.005) ** 2))
        pm.CustomDist("y", density, logp=lambda value, density: density + 0 * value, observed=np.zeros(1))
    draws = xr.Dataset({"x": (("chain", "draw"), 2.191 + 0.005 * RNG.standard_normal((2, 500)))})
    assert sid.check_modes(draws, model=model).share == pytest.approx(0.5, abs=0.1)


def test_a_needle_in_the_midst_of_a_broad_mode_does_not_stand_for_it() -> None:
    with pm.Model() as model:
        x = pm.Normal("x", 0, 3, shape=2)
        needle = 0.01 * pt.exp(-0.5 * ((x - 1.0) ** 2).sum() / 0.01**2) / 0.01**2  # of a hundred parts one
        density = pt.log(pt.exp(-0.5 * (x**2).sum()) + needle)
        pm.CustomDist("y", density, logp=lambda value, density: density + 0 * value, observed=np.zeros(1))
    draws = xr.Dataset({"x": (("chain", "draw", "i"), 1.0 + 0.01 * RNG.standard_normal((2, 500, 2)))})
    found = sid.check_modes(draws, model=model)
    assert found.level == "bad" and found.share > 0.9
    assert "standard deviation of x" in found.consequence


def test_small_shares_are_worth_a_look_and_tiny_ones_are_nothing() -> None:
    assert ModeCheck(0.03, ({"x": np.zeros(2)},)).level == "look"
    assert ModeCheck(0.03, ({"x": np.zeros(2)},), consequence="With these the mean ...").level == "bad"
    assert ModeCheck(0.06, ({"x": np.zeros(2)},)).level == ModeCheck(ruled_out=0.06, substeps={"y": 4}).level == "bad"
    text = ModeCheck(0.03, tuple({"x": np.arange(9.0), "k": np.array(float(i))} for i in range(5))).verdict
    assert "5 places with about 3 %" in text and "x[5] = 5, ...; " in text and text.count("x[0]") == 3


def test_a_small_mode_far_away_is_a_problem_for_what_it_does() -> None:
    """One in thirty at twelve standard deviations: shares of a few percent decide a standard deviation."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.85, 1.0)
        pm.Normal("y", a**2, 0.05, observed=[4.0])
    share = 1 / (1 + np.exp(2 * 2 * 0.85))
    draws = xr.Dataset({"a": (("chain", "draw"), 2.0 + 0.0125 * RNG.standard_normal((2, 500)))})
    found = sid.check_modes(draws, model=model)
    assert found.share == pytest.approx(share, rel=0.3) and found.level == "bad"
    assert "the standard deviation of a is" in found.verdict


def test_one_more_mode_by_its_sign_is_found_for_draws_of_pymc() -> None:
    """NUTS from one place: four chains agree, and half of the posterior is elsewhere."""
    with pm.Model():
        a = pm.Normal("a", 0.0, 2.0)
        pm.Normal("y", a**2, 0.1, observed=np.full(3, 1.0))
        options: dict[str, Any] = {"initvals": {"a": 1.0}, "init": "adapt_diag", "nuts_sampler": "pymc", "progressbar": False}
        idata = pm.sample(200, tune=200, chains=2, cores=1, random_seed=1, compute_convergence_checks=False, **options)
        found = sid.check_modes(idata)
    assert found.level == "bad" and found.share == pytest.approx(0.5, abs=0.1)
    assert found.modes[0]["a"] == pytest.approx(-1.0, abs=0.05)


def test_an_angle_has_no_modes_in_other_turns() -> None:
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0.0, 0.1)
        pm.Normal("y", pt.stack([pt.cos(angle), pt.sin(angle)]), 0.1, observed=np.tile([-1.0, 0.0], (5, 1)))
    x = (np.pi + 0.05 * RNG.standard_normal((2, 500)) + np.pi) % (2 * np.pi) - np.pi  # half of them near pi, half near -pi
    assert sid.check_modes(xr.Dataset({"angle": (("chain", "draw"), x)}), model=model).level == "good"


# -- steps ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def draws_near_the_speed() -> xr.Dataset:
    """Of the posterior of ``swing(1)`` by quadrature, without its aliases."""
    y = np.cos(6.0 * T) + 0.3 * np.random.default_rng(1).standard_normal(T.size)
    w, noise = (v.ravel() for v in np.meshgrid(np.linspace(5.2, 6.8, 801), np.linspace(0.1, 0.6, 251), indexing="ij"))
    squares = np.sum((y - np.cos(w[:, None] * T)) ** 2, axis=1)
    density = -((np.log(w / 10) / 0.7) ** 2) / 2 - np.log(w) - noise**2 / 2 - squares / (2 * noise**2) - T.size * np.log(noise)
    picked = np.random.default_rng(0).choice(w.size, (2, 500), p=softmax(density))
    return xr.Dataset({"w": (("chain", "draw"), w[picked]), "noise": (("chain", "draw"), noise[picked])})


def test_aliases_that_the_steps_rule_out_are_found_and_the_steps_stay(draws_near_the_speed) -> None:
    model, _, share = swing(1, substeps=2)
    found = sid.check_modes(draws_near_the_speed, model=model)
    assert found.level == "bad" and found.ruled_out == pytest.approx(share, rel=0.35)
    assert found.substeps is not None and found.substeps["y"] > 2
    assert any(15 < mode["w"] < 25 for mode in found.finer_modes)
    assert f"{found.substeps['y']} for 'y' will do" in found.verdict and not found.capped
    assert "34 for 'y' at least" in ModeCheck(ruled_out=0.1, substeps={"y": 34}, capped=True).verdict
    assert sid.substeps_attrs(model)["substeps_y"] == 2


def test_with_enough_steps_the_aliases_are_modes_that_draws_lack(draws_near_the_speed) -> None:
    model, _, share = swing(1, substeps=16)
    found = sid.check_modes(draws_near_the_speed, model=model)
    assert found.level == "bad" and found.share == pytest.approx(share, rel=0.35) and not found.ruled_out


def test_an_interrupted_look_leaves_the_steps_as_they_were(draws_near_the_speed, monkeypatch: pytest.MonkeyPatch) -> None:
    model, *_ = swing(1, substeps=2)

    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(ruled_out, "search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sid.check_modes(draws_near_the_speed, model=model)
    assert sid.substeps_attrs(model)["substeps_y"] == 2


# -- what cannot be told, and nonsense ------------------------------------------------------------------------------------


def stuck() -> tuple[xr.Dataset, pm.Model]:
    return xr.Dataset(
        {"x": (("chain", "draw", "x_dim"), np.tile(np.arange(40.0)[:, None], (2, 10, 2)).reshape(2, 400, 2) / 100)}
    ), MODEL


def constant() -> tuple[xr.Dataset, pm.Model]:
    x = np.stack([RNG.standard_normal((2, 200)), np.ones((2, 200))], axis=-1)
    return xr.Dataset({"x": (("chain", "draw", "x_dim"), x)}), MODEL


def improper() -> tuple[xr.Dataset, pm.Model]:
    with pm.Model() as model:
        pm.Normal("y", pm.Flat("mu"), 1.0, observed=np.zeros(4))
    return xr.Dataset({"mu": (("chain", "draw"), 0.5 * RNG.standard_normal((2, 200)))}), model


def many() -> tuple[xr.Dataset, pm.Model]:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", shape=51), 1.0, observed=np.zeros(51))
    return xr.Dataset({"mu": (("chain", "draw", "i"), RNG.standard_normal((2, 200, 51)))}), model


@pytest.mark.parametrize(
    ("case", "why"), [(stuck, "too few different draws"), (improper, "prior cannot be drawn from"), (many, "among 51 unknowns")]
)
def test_what_cannot_be_told_is_said(case: Callable[[], tuple[xr.Dataset, pm.Model]], why: str) -> None:
    draws, model = case()
    found = sid.check_modes(draws, model=model)
    assert found.level == "look" and why in found.unknown and "is not known" in found.verdict


def test_draws_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("lacks the model's variables ['x']; it has ['z']")):
        sid.check_modes(xr.Dataset({"z": (("chain", "draw"), np.zeros((2, 100)))}), model=MODEL)
    with pytest.raises(ValueError, match="has the shape"):
        sid.check_modes(xr.Dataset({"x": (("chain", "draw", "i"), np.zeros((2, 100, 3)))}), model=MODEL)
    with pytest.raises(ValueError, match="points is 0"):
        sid.check_modes(of_modes([100, 0, 0], RNG), model=MODEL, points=0)


# -- over seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_over_seeds_right_draws_are_not_blamed_and_shares_are_right() -> None:
    """Twenty sets of draws of all modes and of one: no false alarm, no mode of 30 % unseen."""
    shares = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(1000, SHARES).tolist()
        assert sid.check_modes(of_modes(counts, rng), model=MODEL).level == "good"
        found = sid.check_modes(of_modes([1000, 0, 0], rng), model=MODEL)
        assert found.level == "bad"
        shares.append(found.share)
    assert np.mean(shares) == pytest.approx(0.38, abs=0.05) and np.std(shares) < 0.06


def test_ends_for_which_evaluations_do_not_suffice_are_no_good_sign() -> None:
    """Would be "no mode that the draws lack" if what was not looked at counted as nothing."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 2.0, shape=8)
        pm.Normal("y", x**2, 0.1, observed=np.ones(8))
    draws = 1.0 + 0.05 * RNG.standard_normal((2, 500, 8))
    dataset = xr.Dataset({"x": (("chain", "draw", "i"), draws)})
    short = sid.check_modes(dataset, model=model, points=50)
    assert short.level != "good" and (short.share > 0 or "points=100" in short.unknown)
    assert sid.check_modes(dataset, model=model).level == "bad"
