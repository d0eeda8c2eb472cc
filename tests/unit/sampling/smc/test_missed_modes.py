"""The search for modes that particles have missed: what it finds, what it leaves alone, and what it costs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from scipy.stats import norm
from scipy.stats import t as student

from pm_sysid.likelihood.target import Target
from pm_sysid.sampling.smc.missed_modes import (
    PART,
    Counted,
    Region,
    Search,
    climbed,
    curved,
    differences,
    drawn_near,
    fewer,
    joined,
    lost_mode,
    not_held,
    search,
)

#: Of a run of two chains with a thousand particles, by the likelihood of all samples.
EVALUATIONS = 40_000


class Function:
    """A target without a model: a log density (N,) of points (N, d)."""

    n_samples = 1

    def __init__(self, log_density: Any) -> None:
        self.log_density = log_density

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x))

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.log_density(x))


def two_levels(prior: float = 3.0, scale: float = 0.01) -> tuple[pm.Model, np.ndarray, float]:
    """Four samples at zero, then eight at one, with the noise of Student: record, and log evidence by quadrature."""
    y = np.repeat([0.0, 1.0], [4, 8]) + scale * np.random.default_rng(11).standard_normal(12)
    with pm.Model() as model:
        a = pm.Normal("a", 0, prior)
        pm.StudentT("y", nu=3.0, mu=a, sigma=scale, observed=y)
    grid = np.unique(np.concatenate([np.linspace(-4, 5, 2001), *(c + scale * np.linspace(-15, 15, 2001) for c in (0, 1))]))
    joint = norm.logpdf(grid, 0, prior) + student.logpdf(y[:, None], 3.0, grid, scale).sum(axis=0)
    return model, y, float(logsumexp(joint + np.log(np.gradient(grid))))


def looked(model: pm.Model, x: np.ndarray, log_evidence: float) -> Search:
    target = Target(model, 1)
    log_weights = np.full(len(x), log_evidence - np.log(len(x)))
    found = search(target, x, log_weights, EVALUATIONS * target.n_samples, np.random.default_rng(0))
    assert found is not None
    return found


@pytest.mark.parametrize(("prior", "scale"), [(3.0, 0.01), (300.0, 0.01), (3.0, 0.001)])
def test_the_mode_of_all_samples_is_found_where_the_particles_are_at_the_first_ones(prior: float, scale: float) -> None:
    model, _, exact = two_levels(prior, scale)
    x = scale * np.random.default_rng(1).standard_normal((2000, 1))
    found = looked(model, x, exact - 60.0)
    assert len(found.missed) == 1 and found.share == pytest.approx(1.0)
    assert found.missed[0].region.point[0] == pytest.approx(1.0, abs=2 * scale)
    assert found.missed[0].log_mass == pytest.approx(exact, abs=0.1)
    assert found.evaluations < 2 * PART * 12 * EVALUATIONS
    # Particles, and draws of the mode by their mass.
    assert np.all((found.part == 1) == (found.x[:, 0] > 0.5)) and np.count_nonzero(found.part == 0) == 2000
    assert logsumexp(found.log_weights) == pytest.approx(exact, abs=0.1)


def test_particles_that_hold_the_posterior_miss_nothing() -> None:
    model, _, exact = two_levels()
    x = 1 + 0.004 * np.random.default_rng(1).standard_normal((2000, 1))
    found = looked(model, x, exact)
    assert found.missed == () and found.share == 0 and len(found.x) == 2000
    assert found.evaluations < 1.1 * PART * 12 * EVALUATIONS


@pytest.mark.parametrize("d", [1, 3, 12])
def test_of_a_gaussian_nothing_is_missing_and_the_search_costs_its_tenth(d: int) -> None:
    y = np.linspace(-1, 1, d)
    with pm.Model() as model:
        a = pm.Normal("a", shape=d)
        pm.Normal("y", a, 0.1, observed=y)
    variance = 1 / 101
    x = y * 100 * variance + np.sqrt(variance) * np.random.default_rng(0).standard_normal((2000, d))
    found = looked(model, x, float(norm.logpdf(y, 0, np.sqrt(1.01)).sum()))
    assert found.missed == () and found.evaluations < 1.5 * PART * d * EVALUATIONS


def test_a_prior_that_cannot_be_drawn_from_is_no_place_to_start() -> None:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.Normal("y", pm.Flat("a"), 1.0, observed=[0.0, 1.0])
    target = Target(model, 1)
    assert search(target, np.zeros((10, 1)), np.zeros(10), 1000, np.random.default_rng(0)) is None


def test_searches_end_at_both_of_two_modes() -> None:
    value = Counted(Function(lambda x: np.logaddexp(norm.logpdf(x, -1, 0.02), norm.logpdf(x, 1, 0.05)).sum(axis=1)))
    draws = np.random.default_rng(0).standard_normal((500, 1))
    ends, heights = climbed(value, draws, np.ones(1), 2000)
    assert {int(v) for v in np.round(ends[:, 0])} == {-1, 1}
    assert np.all(np.diff(heights) >= 0) and value.points <= 2000


def test_nowhere_to_start_from() -> None:
    ends, heights = climbed(Counted(Function(lambda x: np.full(len(x), -np.inf))), np.zeros((100, 2)), np.ones(2), 2000)
    assert ends.shape == (0, 2) and heights.shape == (0,)


def test_gradients_by_differences() -> None:
    value, gradient = differences(lambda x: np.sum(x**3, axis=1), np.array([1e-6, 1e-5]))(np.array([[1.0, 2.0], [-3.0, 0.5]]))
    np.testing.assert_allclose(value, [9.0, -26.875])
    np.testing.assert_allclose(gradient, [[3.0, 12.0], [27.0, 0.75]], rtol=1e-4)
    value, gradient = differences(lambda x: np.where(x[:, 0] > 0, np.inf, 0.0), np.ones(1))(np.array([[-0.5], [-3.0]]))
    assert value[0] == np.inf and value[1] == 0 and np.all(gradient == 0)


def test_where_a_point_makes_the_likelihood_fail_it_has_no_density() -> None:
    def fails(x: np.ndarray) -> np.ndarray:
        if np.any(x > 2):
            raise np.linalg.LinAlgError
        return -(x[:, 0] ** 2)

    value = Counted(Function(fails))
    np.testing.assert_allclose(value(np.array([[1.0], [3.0], [0.5], [0.0]])), [1.0, np.inf, 0.25, 0.0])
    assert value.points == 4


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("sd", [[1.0, 0.5, 2.0], [1e-4, 0.3, 1e-2]])
def test_the_curvature_of_a_gaussian_is_its_own(sd: list[float], correlation: float) -> None:
    covariance = np.outer(sd, sd) * (correlation + (1 - correlation) * np.eye(3))
    precision = np.linalg.inv(covariance)
    centre = np.array([3.0, -1.0, 0.0])

    def value(x: np.ndarray) -> np.ndarray:
        return 0.5 * np.einsum("ni,ij,nj->n", x - centre, precision, x - centre)

    region = curved(value, centre, 0.0, np.ones(3))
    np.testing.assert_allclose(region.root @ region.root.T, covariance, rtol=0.01, atol=1e-3 * np.min(np.square(sd)))
    assert region.laplace(0.0) == pytest.approx(0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1], abs=0.01)


@pytest.mark.parametrize(
    "value",
    [
        lambda x: np.where(x[:, 0] > 0.5, np.inf, np.sum(x**2, axis=1)),
        lambda x: -np.sum(x**2, axis=1),
        lambda x: np.zeros(len(x)),
    ],
)
def test_where_there_is_no_maximum_there_is_a_region_all_the_same(value: Any) -> None:
    region = curved(value, np.zeros(2), 0.0, np.ones(2))
    assert np.isfinite(region.root).all() and np.all(np.diag(region.root) > 0)


def near(centre: ArrayLike = 0.0, shift: float = 0.0) -> Any:
    value = Counted(Function(lambda x: norm.logpdf(x).sum(axis=1) + shift))
    return drawn_near(value, Region(np.full(2, centre), np.eye(2)), [], 2000, np.random.default_rng(0))


def test_the_mass_of_a_region_is_that_of_its_inside() -> None:
    found = near(shift=2.0)
    assert found.region.inside(found.x).all()
    assert found.log_mass == pytest.approx(2.0 + np.log(0.999), abs=0.05)


def test_what_is_held_is_counted_in_the_region_whose_mass_is_known() -> None:
    rng, found = np.random.default_rng(1), near()
    level = np.full(1000, -np.log(1000.0))
    assert not not_held(found, rng.standard_normal((1000, 2)), level)
    # Off the centre the region holds less of the posterior, and as much less of the particles.
    assert not not_held(near(2.0), rng.standard_normal((1000, 2)), level)
    away = 9 + rng.standard_normal((1000, 2))
    assert not_held(found, away, level)
    assert not not_held(found, away, level + 5)  # of less than a hundredth of the posterior
    assert not not_held(found._replace(x=found.x[:0], log_weights=found.log_weights[:0]), away, level)


def test_particles_and_draws_are_joined_by_mass_and_none_counts_twice() -> None:
    rng, found = np.random.default_rng(1), near()
    x = np.concatenate([9 + rng.standard_normal((5000, 2)), np.zeros((5, 2))])
    both = joined([found], x, np.full(5005, -np.log(5005.0)), 7)
    assert both.share == pytest.approx(0.5, abs=0.02) and both.evaluations == 7
    assert np.count_nonzero(both.part == 0) == 4000 and np.all(both.x[both.part == 0] > 4)
    assert logsumexp(both.log_weights) == pytest.approx(np.log(2), abs=0.03)
    few = np.arange(4.0)[:, None], np.log(np.arange(1.0, 5.0))
    assert fewer(*few) == few


def test_a_mode_that_is_lost_again_is_told() -> None:
    found, level = near(), np.full(1000, -np.log(1000.0))
    away = 9 + np.random.default_rng(1).standard_normal((1000, 2))
    assert lost_mode((found,), away, level) == pytest.approx(0.0, abs=0.05)
    assert np.isnan(lost_mode((found,), away - 9, level))
