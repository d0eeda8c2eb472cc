"""Independent proposals around a mode: the exact posterior and evidence of a conjugate model, also from a wrong curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.special import logsumexp
from scipy.stats import gumbel_r, multivariate_normal, norm
from scipy.stats import t as student_t

import pm_sysid as sid
from pm_sysid.likelihood.ridges import Ridges
from pm_sysid.likelihood.target import Target
from pm_sysid.sampling.smc import around_mode
from pm_sysid.sampling.smc.around_mode import (
    HigherPoint,
    apart,
    drift,
    log_posterior,
    missed_tail,
    prior_width,
    sample_around_mode,
    stretched,
    with_ridges,
)
from pm_sysid.sampling.smc.natural_units import NaturalUnits, positive_unknowns
from pm_sysid.sampling.smc.stages import final, stages
from pm_sysid.sampling.smc.weighed import KnownModes

X = np.linspace(-1, 1, 40)
Y = 0.3 + 0.7 * X + np.random.default_rng(0).standard_normal(40)
DESIGN = np.c_[np.ones(40), X]
COVARIANCE = np.linalg.inv(DESIGN.T @ DESIGN + np.eye(2))
MEAN = COVARIANCE @ DESIGN.T @ Y


def line() -> pm.Model:
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Deterministic("sum", a + b)
        pm.Normal("y", a + b * X, 1.0, observed=Y)
    return model


def test_a_draw_that_is_higher_than_the_mode_stops_what_begins_there() -> None:
    away = MEAN + 4 * np.sqrt(np.diag(COVARIANCE))
    settings: dict[str, Any] = {"model": line(), "chains": 1, "random_seed": 2, "progressbar": False}
    posterior = multivariate_normal(MEAN, COVARIANCE)
    height = Target(line(), 1).log_prior(away[None]) + Target(line(), 1).log_likelihood(away[None])
    with pytest.raises(HigherPoint, match="higher than at the mode") as stopped:
        sample_around_mode(away, COVARIANCE, 100, highest=float(height[0]), **settings)
    x, gain = stopped.value.x, stopped.value.gain
    assert gain == pytest.approx(posterior.logpdf(x) - posterior.logpdf(away)) and gain > 2
    top = float(height[0]) + posterior.logpdf(MEAN) - posterior.logpdf(away)
    assert sample_around_mode(MEAN, COVARIANCE, 100, highest=top, **settings)["posterior"].sizes["draw"] == 100


@pytest.mark.parametrize("scale", [1.0, 0.05, 20.0])
def test_moments_and_evidence_are_exact(scale: float) -> None:
    idata = sample_around_mode(MEAN, scale * COVARIANCE, 1000, model=line(), chains=3, random_seed=2, progressbar=False)
    found = sid.log_evidence(idata)
    exact = multivariate_normal(np.zeros(40), np.eye(40) + DESIGN @ DESIGN.T).logpdf(Y)
    assert found.doubt == "" and 0 < found.error < 0.05 and abs(found.value - exact) < 4 * found.error
    draws = np.stack([idata.posterior[name].values for name in ("a", "b")], axis=-1)
    assert draws.shape == (3, 1000, 2)
    sd = np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose((draws.mean((0, 1)) - MEAN) / sd, 0, atol=4 / np.sqrt(1000))
    np.testing.assert_allclose(draws.std((0, 1)) / sd, 1, atol=0.1)
    np.testing.assert_allclose(idata.posterior["sum"].values, draws.sum(-1))
    last = final(stages(idata))
    assert np.all(last["proposal_ess"].values > 0.4) and np.all(last["time_index"].values == 40)


LENGTHS, SLOPES = np.linspace(0.5, 1.0, 7), np.linspace(-1.0, 1.0, 7)


def thin_curve(kind: str) -> tuple[pm.Model, float, float, float]:
    """Seven unknowns that lie on a thin curve over an eighth, whose mean, standard deviation and log evidence are exact."""
    bend, prior, density = (1.0, pm.Normal, norm.logpdf) if kind == "normal" else (0.3, pm.Gumbel, gumbel_r.logpdf)
    with pm.Model() as model:
        v, x = prior("v", 0.0, 1.0), pm.Normal("x", 0.0, 20.0, shape=7)
        pm.Normal("y", x - bend * v**2 * LENGTHS - SLOPES * v, 0.1, observed=np.zeros(7))
    grid = np.linspace(-10, 20, 100_001)[:, None]
    along = bend * grid**2 * LENGTHS + SLOPES * grid
    total = density(grid[:, 0]) + norm.logpdf(along, 0, np.hypot(20.0, 0.1)).sum(axis=1)
    weights, v = np.exp(total - logsumexp(total)), grid[:, 0]
    mean = float(weights @ v)
    return model, mean, float(np.sqrt(weights @ (v - mean) ** 2)), float(logsumexp(total) + np.log(grid[1, 0] - grid[0, 0]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "skew"])
def test_a_thin_curve_is_drawn_along_its_whole_length(kind: str) -> None:
    """Proposals that begin at the mode alone have a standard deviation of 0.7 and evidence 0.2 too low, without a word."""
    model, mean, sd, evidence = thin_curve(kind)
    mode = sid.find_mode(model, random_seed=1, progressbar=False, prior_draws=0)
    idata = sample_around_mode(mode.point, mode.covariance, 1000, model=model, chains=2, random_seed=0, progressbar=False)
    v, found = idata.posterior["v"].values, sid.log_evidence(idata)
    assert abs(v.mean() - mean) < 0.1 * sd and 0.92 < v.std() / sd < 1.08
    assert abs(found.value - evidence) < 4 * found.error < 0.3


@pytest.mark.slow
def test_a_branch_behind_a_narrow_neck_is_drawn() -> None:
    """A breakpoint near zero makes one of two stiffnesses: 3 % of the mass, of which walks and proposals saw nothing.

    A spring of stiffness k1 whose motion, with an amplitude of one, never reaches the breakpoint d, beyond which k2 is added.
    Near d = 0 the sum counts alone. Against quadrature over a grid, by the static force at eight places.
    """
    z, std = np.linspace(0.3, 1.0, 8), 0.06

    def force(k1: Any, k2: Any, d: Any, top: Any) -> Any:
        return k1 * z + k2 * top(z - d, 0.0)

    with pm.Model() as model:
        k1, k2, d = pm.LogNormal("k1", 0.5, 1.0), pm.LogNormal("k2", 0.0, 1.5), pm.Uniform("d", 0.0, 4.0)
        pm.Normal("y", force(k1, k2, d, pm.math.maximum), std, observed=2.0 * z)
    a, b = (np.linspace(-8.0, 1.5, 1200)[:, None, None, None], np.linspace(-8.0, 3.0, 500)[:, None, None])
    near = np.geomspace(1e-4, 1.0, 300)
    exact = np.zeros(3)
    for c, width in zip(np.append(near, 2.5), np.append(np.gradient(near), 3.0), strict=True):
        miss = force(np.exp(a), np.exp(b), c, np.maximum) - 2.0 * z
        at = np.exp(norm.logpdf(miss, 0, std).sum(axis=-1) + norm.logpdf(a[..., 0], 0.5) + norm.logpdf(b[..., 0], 0, 1.5))
        mass = width / 4.0 * at.sum() * 9.5 / 1199 * 11.0 / 499
        exact += np.array(
            [mass, mass * (c < 0.2), width / 4.0 * at[np.exp(a[:, 0, 0, 0]) < 1.5].sum() * 9.5 / 1199 * 11.0 / 499]
        )
    mode = sid.find_mode(model, random_seed=1, progressbar=False)
    near_zero, soft, z_scores = list[float](), list[float](), list[float]()
    for seed in range(5):
        settings = {"model": model, "chains": 2, "random_seed": seed, "progressbar": False}
        idata = sample_around_mode(mode.point, mode.covariance, 500, **settings)
        near_zero.append(float((idata.posterior["d"] < 0.2).mean()))
        soft.append(float((idata.posterior["k1"] < 1.5).mean()))
        found = sid.log_evidence(idata)
        z_scores.append((found.value - np.log(exact[0])) / found.error)
    # Standard errors of these averages over 5000 draws: 0.0026 and 0.0016 where all are independent.
    assert np.mean(near_zero) == pytest.approx(exact[1] / exact[0], abs=0.008)
    assert np.mean(soft) == pytest.approx(exact[2] / exact[0], abs=0.005)
    assert np.sqrt(np.mean(np.square(z_scores))) < 2


def test_a_point_on_a_ridge_that_is_zero_in_natural_units_is_left_out() -> None:
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Normal("y", scale, 1.0, observed=Y)
    units = NaturalUnits(sid.Target(model), np.array([True]))
    first = stretched(np.array([0.5]), np.array([[0.01]]), np.array([1.0]))
    along = Ridges(np.array([[-1.0], [-800.0]]), np.array([[[0.04]], [[100.0]]]))
    found = with_ridges(first, units, along)
    assert len(found.means) == len(first.means) + 1 and found.means[-1, 0] == pytest.approx(np.exp(-1))
    assert found.shares.sum() == pytest.approx(1) and found.roots[-1, 0, 0] == pytest.approx(0.2 * np.exp(-1))
    assert with_ridges(first, units, Ridges(along.points[1:], along.covariances[1:])) is first


@pytest.mark.slow
def test_chains_have_random_numbers_of_their_own_and_a_seed_repeats_them() -> None:
    runs = [
        sample_around_mode(MEAN, COVARIANCE, 200, model=line(), chains=2, random_seed=seed, progressbar=False).posterior["a"]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0].values, runs[1].values)
    assert not np.any(np.isin(runs[0].values[0], runs[0].values[1])) and not np.any(np.isin(runs[0].values, runs[2].values))


@pytest.mark.slow
def test_a_mode_that_is_none_of_the_posterior_is_doubted() -> None:
    """Two modes far apart: from the lesser the other is not seen; what can be seen is a posterior that the proposals miss."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=6)
        pm.Normal("y", pm.math.sum(x**2), 0.01, observed=np.array([4.0]))  # a thin shell around the origin
    point = np.array([2.0, 0, 0, 0, 0, 0])
    idata = sample_around_mode(point, 1e-2 * np.eye(6), 500, model=model, chains=2, random_seed=1, progressbar=False)
    last = final(stages(idata))
    assert np.min(last["proposal_ess"].values) < 0.15


def test_first_proposals_reach_the_prior_and_keep_what_unknowns_say_of_each_other() -> None:
    covariance, width = np.array([[4.0, 1.0], [1.0, 1.0]]), np.array([400.0, 3.0])
    first = stretched(np.array([1.0, 2.0]), covariance, width)
    assert first.shares.sum() == pytest.approx(1.0) and len(first.shares) == 1 + 4 + 4 * 2
    np.testing.assert_array_equal(first.means, [[1.0, 2.0]] * 13)
    found = first.roots @ np.swapaxes(first.roots, 1, 2)
    np.testing.assert_allclose(found[0], covariance)
    # Together: as wide as the prior, or ten times the mode; correlated as at the mode.
    np.testing.assert_allclose(np.sqrt(np.diag(found[4])), [400.0, 10.0])
    assert found[4][0, 1] / (400.0 * 10.0) == pytest.approx(0.5)
    # Alone: the other follows by regression, with the same variance around it.
    for part, j, sd in zip(found[-2:], (0, 1), (400.0, 10.0), strict=True):
        assert part[j, j] == pytest.approx(sd**2)
        assert part[0, 1] / part[j, j] == pytest.approx(covariance[0, 1] / covariance[j, j])
        assert np.linalg.det(part) / part[j, j] == pytest.approx(np.linalg.det(covariance) / covariance[j, j])
    assert np.all(np.diff([part[0, 0] for part in (found[0], *found[5::2])]) > 0)


def test_width_of_the_prior() -> None:
    target = sid.Target(line())
    units = NaturalUnits(target, np.zeros(2, dtype=bool))
    np.testing.assert_allclose(prior_width(units, np.random.default_rng(1)), [1.0, 1.0], rtol=0.2)


def edges() -> pm.Model:
    """Two positive unknowns of which only the sum is measured, so that each may be zero."""
    with pm.Model() as model:
        a, b, c = pm.HalfNormal("a", 3.0), pm.LogNormal("b", 0.0, 1.0), pm.Normal("c")
        pm.Normal("y", a + b + c, 0.1, observed=np.array([0.5, 0.6]))
    return model


def test_natural_units_are_a_change_of_variables() -> None:
    target = sid.Target(edges())
    assert positive_unknowns(target).tolist() == [True, True, False]
    units = NaturalUnits(target, np.array([True, False, False]))
    x = target.draw_prior(50, 1)
    z = units.natural(x)
    np.testing.assert_allclose(units.unconstrained(z), x, atol=1e-12)
    np.testing.assert_allclose(z[:, 0], np.exp(x[:, 0]))
    np.testing.assert_array_equal(z[:, 1:], x[:, 1:])
    # p(z) dz = p(x) dx, the density of the half-normal distribution itself.
    np.testing.assert_allclose(log_posterior(units, z), log_posterior(target, x) - x[:, 0])
    others = norm.logpdf(x[:, 1]) + norm.logpdf(x[:, 2])
    np.testing.assert_allclose(units.log_prior(z), np.log(2) + norm.logpdf(z[:, 0], 0, 3) + others)
    z[:, 0] *= -1
    assert np.all(np.isneginf(units.log_prior(z))) and np.all(np.isneginf(log_posterior(units, z)))


@pytest.mark.slow
def test_unknowns_that_may_be_zero_are_drawn_in_natural_units() -> None:
    """The posterior ends at two edges, exact by quadrature; its logarithms have long curved tails."""
    with pm.Model() as model:
        a, b = pm.HalfNormal("a", 3.0), pm.HalfNormal("b", 3.0)
        pm.Normal("y", a + b, 0.1, observed=np.array([0.9, 1.1]))
    grid = (np.arange(2000) + 0.5) / 1000
    first, second = np.meshgrid(grid, grid, indexing="ij")
    density = sum(norm.logpdf(y, first + second, 0.1) for y in (0.9, 1.1))
    density = density + 2 * np.log(2) + norm.logpdf(first, 0, 3) + norm.logpdf(second, 0, 3)
    weights = np.exp(density - logsumexp(density))
    mode = sid.find_mode(model, random_seed=1, progressbar=False)
    idata = sample_around_mode(mode.point, mode.covariance, 1000, model=model, chains=4, random_seed=1, progressbar=False)
    found = sid.log_evidence(idata)
    assert found.doubt == "" and found.error < 0.05
    assert abs(found.value - (logsumexp(density) - 2 * np.log(1000))) < 4 * found.error
    assert float(final(stages(idata))["proposal_ess"].min()) > 0.3
    draws = idata.posterior["a"].values.ravel()
    mean = float(np.sum(weights * first))
    assert draws.min() > 0 and draws.mean() == pytest.approx(mean, abs=0.03)
    assert draws.std() == pytest.approx(np.sqrt(np.sum(weights * first**2) - mean**2), rel=0.07)
    assert np.mean(draws < 0.05) == pytest.approx(weights[:50].sum(), abs=0.015)


@dataclass
class Known:
    """A density in place of a model's."""

    logpdf: Any
    size: int = 2

    @property
    def labels(self) -> list[str]:
        return ["first", "second"]

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x))

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.logpdf(x))


def spike_and_tail(x: np.ndarray) -> np.ndarray:
    """A twentieth of the first unknown's mass is thirty times as wide as the rest."""
    parts = [np.log(0.95) + norm.logpdf(x[:, 0], 0, 0.1), np.log(0.05) + student_t.logpdf(x[:, 0], 2, 0, 3.0)]
    return np.asarray(logsumexp(parts, axis=0) + norm.logpdf(x[:, 1], x[:, 0]))


@pytest.mark.slow
def test_draws_walk_where_proposals_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thin crescent, of which few draws of a mixture of eight count, against quadrature."""
    monkeypatch.setattr(around_mode, "MOST", 8)
    width = 0.01
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", 0, 3)
        pm.Normal("y", b - a**2, width, observed=[0.0])
    grid = np.linspace(-6, 6, 20_001)
    density = norm.pdf(grid) * norm.pdf(grid**2, 0, np.hypot(3, width))
    mass = density.sum() * (grid[1] - grid[0])
    idata = sample_around_mode(
        np.zeros(2), np.diag([1.0, width**2]), 1000, model=model, chains=2, random_seed=1, progressbar=False
    )
    assert np.any(final(stages(idata))["walks"].values > 0)
    found = sid.log_evidence(idata)
    assert abs(found.value - np.log(mass)) < 4 * found.error
    for draws, exact in ((idata.posterior["a"], grid), (idata.posterior["b"], grid**2)):
        mean = np.sum(density * exact) / density.sum()
        sd = np.sqrt(np.sum(density * (exact - mean) ** 2) / density.sum())
        assert abs(float(draws.mean()) - mean) < 0.1 * sd and float(draws.std()) == pytest.approx(sd, rel=0.1)


@pytest.mark.slow
def test_draws_walk_where_only_fresh_proposals_show_that_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first draws seemed to fit; a chain of the last stage that neither fits nor walks would be given up."""
    cloud = around_mode._cloud
    monkeypatch.setattr(around_mode, "_cloud", lambda *given: (cloud(*given)[0], True))
    monkeypatch.setattr(around_mode.Cloud, "covers", False)
    monkeypatch.setattr(around_mode, "MOST", 8)
    monkeypatch.setattr(around_mode, "GOOD_PROPOSALS", 0.7)  # which some of the four reach
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", 0, 3)
        pm.Normal("y", b - a**2, 0.05, observed=[0.0])
    settings = {"model": model, "chains": 4, "random_seed": 1, "progressbar": False}
    last = final(stages(sample_around_mode(np.zeros(2), np.diag([1.0, 0.0025]), 1000, **settings)))
    fits = (last["proposal_ess"].values >= around_mode.GOOD_PROPOSALS) & (last["pareto_k"].values <= around_mode.EVEN)
    walks = last["walks"].values > 0
    assert np.any(walks) and np.all(fits | walks)


def test_chains_that_disagree_walk_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two chains is given one half of a Gaussian posterior; in the end both have the whole."""
    walk, together = around_mode._walked_together, list[np.ndarray]()

    def halved(drawn: list[Any], *given: Any) -> list[Any]:
        together.append(np.array([chain.z for chain in drawn]))
        if len(together) == 1:
            z = together[0].reshape(-1, 2)
            z = z[np.argsort(z[:, 0])].reshape(2, -1, 2)
            drawn = [chain._replace(z=part) for chain, part in zip(drawn, z, strict=True)]
        return walk(drawn, *given)

    monkeypatch.setattr(around_mode, "_walked_together", halved)
    monkeypatch.setattr(around_mode, "apart", lambda x: not together or apart(x))
    idata = sample_around_mode(MEAN, COVARIANCE, 1000, model=line(), chains=2, random_seed=1, progressbar=False)
    x = np.stack([idata.posterior[name].values for name in ("a", "b")], axis=-1)
    assert 1 <= len(together) <= around_mode.MOST_TOGETHER and not apart(x)
    assert np.all(final(stages(idata))["walks"].values > 0)
    errors = np.sqrt(np.diag(COVARIANCE) / 1000)
    assert np.all(np.abs(x.mean(axis=1) - MEAN) < 5 * errors)
    np.testing.assert_allclose(np.cov(x.reshape(-1, 2).T), COVARIANCE, rtol=0.15, atol=0.1 * COVARIANCE.max())


def test_chains_are_apart_if_any_coordinate_is() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 1000, 3))
    assert not apart(x) and not apart(x[:1])
    x[:, :, 2] = 1.0  # an unknown that does not move
    assert not apart(x)
    x[0, :, 1] += 0.5
    assert apart(x)


@pytest.mark.slow
def test_proposals_that_fit_a_part_of_the_posterior_go_on() -> None:
    """Once they fit what they have seen of this crescent, its evidence is still more than three of their errors too low."""
    width = 0.03
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", 0, 3)
        pm.Normal("y", b - a**2, width, observed=[0.0])
    grid = np.linspace(-6, 6, 20_001)
    mass = np.sum(norm.pdf(grid) * norm.pdf(grid**2, 0, np.hypot(3, width))) * (grid[1] - grid[0])
    z = []
    for seed in range(3):
        settings = {"model": model, "chains": 4, "random_seed": seed, "progressbar": False}
        found = sid.log_evidence(sample_around_mode(np.zeros(2), np.diag([1.0, width**2]), 1000, **settings))
        assert found.error < 0.02
        z.append((found.value - np.log(mass)) / found.error)
    assert np.sqrt(np.mean(np.square(z))) < 2.5


@pytest.mark.slow
def test_draws_that_still_spread_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_mode, "ENOUGH", 2.0)  # nothing fits
    monkeypatch.setattr(around_mode.Cloud, "covers", False)
    monkeypatch.setattr(around_mode, "DRIFTING", 0.0)
    monkeypatch.setattr(around_mode, "MOST_WALKED", 2)
    idata = sample_around_mode(MEAN, COVARIANCE, 200, model=line(), chains=1, random_seed=1, progressbar=False)
    assert around_mode.STILL_SPREADING in sid.log_evidence(idata).doubt


def test_a_drift_is_a_change_of_mean_or_width_and_not_chance() -> None:
    rng = np.random.default_rng(3)
    before, again = rng.standard_normal((2, 4000, 3)) @ np.array([[1.0, 0.9, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 1e-6]])
    assert drift(before, before) == 0.0 and drift(before, again) < 4
    assert drift(before, 1.1 * again) > 4 and drift(before, again + 0.1 * before.std(axis=0)) > 4
    thin = again.copy()
    thin[:, 1] += 0.01 * rng.standard_normal(4000) * 5  # wider across a ridge, which no single unknown shows
    assert drift(before, thin) > 4


@pytest.mark.slow
def test_walking_finds_a_tail_that_draws_lack_and_nothing_where_they_are_right() -> None:
    target: Any = Known(spike_and_tail)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tail = rng.random(4000) < 0.05
        right = np.where(tail, 3.0 * rng.standard_t(2, 4000), 0.1 * rng.standard_normal(4000))
        for first, missing in ((right, False), (0.1 * rng.standard_normal(4000), True)):
            x = np.c_[first, first + rng.standard_normal(4000)]
            doubt = missed_tail(target, x, rng)
            assert doubt.startswith("The proposals have missed a tail of first:") if missing else doubt == ""


def test_walking_finds_a_wrong_width() -> None:
    target: Any = Known(lambda x: norm.logpdf(x).sum(axis=1))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((4000, 2))
        assert missed_tail(target, x, rng) == ""
        assert "second" in missed_tail(target, x * [1.0, 0.7], rng)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_tail_far_from_the_mode_is_found_or_its_lack_is_said(seed: int) -> None:
    """A tenth of the mass lies up to thousands of the mode's standard deviations away."""
    with pm.Model() as model:
        parts = [pm.Normal.dist(0, 0.1), pm.StudentT.dist(2, mu=0, sigma=100)]
        x = pm.Mixture("x", [0.9, 0.1], parts)
        pm.Normal("y", x, 300, observed=[100.0])
    grid = np.sinh(np.linspace(-10, 10, 100_001))
    density = np.logaddexp(np.log(0.9) + norm.logpdf(grid, 0, 0.1), np.log(0.1) + student_t.logpdf(grid, 2, 0, 100))
    density += norm.logpdf(100.0, grid, 300) + np.log(np.gradient(grid))
    far = np.exp(logsumexp(density[np.abs(grid) > 1]) - logsumexp(density))
    idata = sample_around_mode(np.zeros(1), 0.01 * np.eye(1), 1000, model=model, chains=4, random_seed=seed, progressbar=False)
    share = float(np.mean(np.abs(idata.posterior["x"].values) > 1))
    assert share == pytest.approx(far, abs=0.03) or sid.log_evidence(idata).doubt


def two_modes() -> tuple[pm.Model, np.ndarray, np.ndarray]:
    """A curved mode and a second one of a hundredth; modes (2, 2) and covariances (2, 2, 2)."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 1.2, 1.0), pm.Normal("b", 0.0, 1.0)
        pm.Normal("y", a**2, 0.6, observed=4.0)
        pm.Normal("z", a * b, 0.2, observed=1.0)
    modes = []
    for sign in (1.0, -1.0):
        found = sid.find_mode(model, start={"a": 2 * sign, "b": 0.5 * sign}, prior_draws=0, progressbar=False)
        modes.append((found.point, found.covariance))
    return model, *map(np.array, zip(*modes, strict=True))


def exact_two_modes() -> tuple[float, float, np.ndarray]:
    """Share of the second mode, log evidence, and standard deviations of both unknowns in the first one, by quadrature."""
    a, b = np.meshgrid(np.linspace(-6, 6, 6001), np.linspace(-5, 5, 2001), indexing="ij")
    log = norm(1.2, 1).logpdf(a) + norm(0, 1).logpdf(b) + norm(4.0, 0.6).logpdf(a**2) + norm(1.0, 0.2).logpdf(a * b)
    weights = np.exp(log) * (a[1, 0] - a[0, 0]) * (b[0, 1] - b[0, 0])
    total, first = weights.sum(), np.where(a > 0, weights, 0.0) / weights[a > 0].sum()
    sd = [np.sqrt(np.sum(first * v**2) - np.sum(first * v) ** 2) for v in (a, b)]
    return float(weights[a < 0].sum() / total), float(np.log(total)), np.array(sd)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 22), marks=pytest.mark.slow)], ids=["two", "twenty"])
def test_each_mode_that_is_known_holds_its_share(seeds: range) -> None:
    model, points, covariances = two_modes()
    share, evidence, sd = exact_two_modes()
    assert 0.002 < share < 0.02
    off = []
    for seed in seeds:
        options: dict[str, Any] = {"model": model, "chains": 4, "random_seed": seed, "progressbar": False}
        others = KnownModes(points[1:], covariances[1:], np.array([0.3]))  # a rough share may be wrong
        idata = sample_around_mode(points[0], covariances[0], 1000, others=others, **options)
        found, draws = sid.log_evidence(idata), np.stack([idata.posterior[name].values for name in ("a", "b")], axis=-1)
        assert found.doubt == ""
        first = draws[draws[..., 0] > 0]
        off.append([(found.value - evidence) / found.error, np.mean(draws[..., 0] < 0) / share - 1, *first.std(0) / sd - 1])
    z, shares, *sds = np.array(off).T
    by_chance = np.sqrt((1 - share) / (share * 4000))
    assert np.all(np.abs(z) < 4) and np.sqrt(np.mean(z**2)) < 1.5
    assert np.all(np.abs(shares) < 4 * by_chance) and abs(np.mean(shares)) < 4 * by_chance / np.sqrt(len(seeds))
    assert np.all(np.abs(sds) < 0.06)


def test_rounds_end_where_they_gain_nothing() -> None:
    around = around_mode.COMPARED
    assert not around_mode.gaining([-3.0] * around + [-3.0 + 0.9 * around_mode.GAIN] * around)
    assert around_mode.gaining([-3.0] * around + [-2.5] * (around - 1) + [-np.inf])  # a round may fail
    assert around_mode.gaining([-9.0] * 5 + [-3.0] * around + [-3.0 + 1.1 * around_mode.GAIN] * around)


@pytest.mark.slow
def test_a_weak_sine_of_a_dozen_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals of a fifth of effective draws from the first round on, which no round makes better."""
    rng, sigma = np.random.default_rng(0), 0.7
    t = np.sort(rng.uniform(0, 10, 15))
    y = np.sin(6 * t) + sigma * rng.standard_normal(15)
    with pm.Model() as model:
        a, b, w = pm.Normal("a"), pm.Normal("b"), pm.Uniform("w", 0.1, 20)
        pm.Normal("y", a * pm.math.sin(w * t) + b * pm.math.cos(w * t), sigma, observed=y)
    # Given the frequency the rest is linear and Gaussian.
    grid = np.linspace(0.1, 20, 20_001)
    phase = np.multiply.outer(grid, t)
    marginal = sigma**2 * np.eye(15) + np.cos(phase[:, :, None] - phase[:, None, :])
    log = -0.5 * (np.linalg.slogdet(2 * np.pi * marginal)[1] + np.linalg.solve(marginal, y[:, None])[..., 0] @ y) - np.log(19.9)
    evidence, weights = logsumexp(log) + np.log(grid[1] - grid[0]), np.exp(log - logsumexp(log))
    rounds, following = list[Any](), around_mode.Cloud.next
    monkeypatch.setattr(around_mode.Cloud, "next", lambda *args: rounds.append(1) or following(*args))
    for seed in range(2):
        idata = sid.sample(model, 1000, method="independent", random_seed=seed, cores=1, progressbar=False)
        found, drawn = sid.log_evidence(idata), idata.posterior["w"].values.ravel()
        assert idata.attrs["modes"] > 8 and idata.attrs["trusted"] == 1, idata.attrs["verdict"]
        assert found.value == pytest.approx(evidence, abs=4 * found.error) and found.error < 0.05
        for low, high in ((0, 4), (4, 7), (7, 12), (12, 20)):
            share = weights[(grid > low) & (grid <= high)].sum()
            assert np.mean((drawn > low) & (drawn <= high)) == pytest.approx(share, abs=4 * np.sqrt(share / len(drawn)) + 0.01)
    assert len(rounds) <= 2 * 4 * 12


def test_modes_may_lie_on_both_sides_of_where_an_angle_begins() -> None:
    with pm.Model() as model:
        angle = pm.VonMises("angle", 3.0, 0.5)
        pm.Normal("y", pm.math.cos(angle), 0.05, observed=-0.9)  # two angles, near to each other across the half turn
    at = np.arccos(-0.9)
    target = Target(model)
    points = target.unconstrained({"angle": np.array([at, -at])})
    covariance = np.array([[[(0.05 / np.sin(at)) ** 2]]])
    grid = np.linspace(-np.pi, np.pi, 100_001)
    weights = np.exp(0.5 * np.cos(grid - 3.0) - 0.5 * ((np.cos(grid) + 0.9) / 0.05) ** 2)
    others = KnownModes(points[1:], covariance, np.array([0.5]))
    idata = sample_around_mode(
        points[0], covariance[0], 1000, model=model, chains=2, random_seed=1, progressbar=False, others=others
    )
    share = weights[grid < 0].sum() / weights.sum()
    assert sid.log_evidence(idata).doubt == ""
    assert np.mean(idata.posterior["angle"].values < 0) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 2000))
