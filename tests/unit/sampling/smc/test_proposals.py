"""Mixtures of t distributions: their densities, their draws, and how many components are fitted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pm_sysid.sampling.smc.proposals import Mixture, _with_room, distinct, heaviest

EQUAL = np.full(1000, 1e-3)


def three_modes(rng: np.random.Generator) -> np.ndarray:
    centres = np.array([[1.0, 0.7], [1.0, -0.7], [-1.0, 0.7]])
    return centres[rng.integers(3, size=1000)] + 0.01 * rng.standard_normal((1000, 2))


def test_densities_are_those_of_scipy_and_have_the_mass_one() -> None:
    rng = np.random.default_rng(1)
    roots = np.array([[[0.5, 0.0], [0.2, 0.3]], [[1.0, 0.0], [0.0, 0.1]]])
    mixture = Mixture(np.array([0.3, 0.7]), np.array([[0.0, 1.0], [2.0, -1.0]]), roots, 3.0)
    x = rng.normal(size=(50, 2))
    parts = [s * stats.multivariate_t(m, r @ r.T, df=3).pdf(x) for s, m, r in zip(*mixture[:3], strict=True)]
    np.testing.assert_allclose(mixture.logpdf(x), np.log(sum(parts)), rtol=1e-12)
    gaussian = mixture._replace(freedom=np.inf)
    parts = [s * stats.multivariate_normal(m, r @ r.T).pdf(x) for s, m, r in zip(*mixture[:3], strict=True)]
    np.testing.assert_allclose(gaussian.logpdf(x), np.log(sum(parts)), rtol=1e-12)
    drawn = gaussian.draw(20000, rng)
    np.testing.assert_allclose(drawn.mean(axis=0), [1.4, -0.4], atol=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_one_component_for_a_gaussian_and_three_for_three_modes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = Mixture.fit(rng.multivariate_normal([1.0, -2.0], [[1.0, 0.9], [0.9, 1.0]], 1000), EQUAL, 3.0, rng)
    assert one.components == 1
    x = three_modes(rng)
    found = Mixture.fit(x, EQUAL, 3.0, rng)
    assert found.components == 3
    nearest = found.nearest(x)
    assert {tuple(np.sign(x[nearest == k].mean(axis=0))) for k in np.unique(nearest)} == {(1, 1), (1, -1), (-1, 1)}


def test_weights_count_as_copies_do() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, 2))
    copies = rng.integers(1, 4, size=300)
    weighted = Mixture.fit(x, copies / copies.sum(), 3.0, np.random.default_rng(1))
    n = copies.sum()
    copied = Mixture.fit(np.repeat(x, copies, axis=0), np.full(n, 1 / n), 3.0, np.random.default_rng(1))
    np.testing.assert_allclose(weighted.means, copied.means, atol=1e-12)
    rows, together = distinct(np.repeat(x, copies, axis=0), np.full(n, 1 / n))
    assert len(rows) == 300 and together.sum() == pytest.approx(1.0)


def test_particles_that_are_all_one_still_have_a_proposal() -> None:
    rng = np.random.default_rng(1)
    found = Mixture.fit(np.ones((100, 3)), np.full(100, 0.01), 3.0, rng)
    assert found.components == 1 and np.isfinite(found.logpdf(found.draw(10, rng))).all()


@pytest.mark.parametrize("seed", range(8))
def test_what_a_stage_leaves_of_a_gaussian_in_many_unknowns_gets_one_component(seed: int) -> None:
    # Copies of 450 points, as Metropolis chains make them, of which a hundred count. Akaike's criterion without its correction
    # gives those of seeds 0 and 4 three components.
    rng, sd = np.random.default_rng(seed), 0.7
    x = rng.standard_normal((450, 6))
    x = np.repeat(x, rng.geometric(0.45, 450), axis=0)[:1000]
    weights = np.exp(0.5 * (1 - sd**-2) * np.sum(x**2, axis=1))
    weights /= weights.sum()
    found = Mixture.fit(x, weights, 3.0, rng, corrected=True)
    drawn = found.draw(4000, rng)
    ratio = np.exp(stats.norm(scale=sd).logpdf(drawn).sum(axis=1) - found.logpdf(drawn))
    assert found.components == 1 and ratio.sum() ** 2 / np.sum(ratio**2) / len(ratio) > 0.55


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_small_mode_far_away_keeps_a_component_of_its_own(seed: int, corrected: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((300, 6))
    x[:10] = 0.3 * x[:10] + 12 * np.eye(6)[0]
    found = Mixture.fit(x, np.full(300, 1 / 300), 3.0, rng, corrected=corrected)
    own = np.unique(found.nearest(x[:10]))
    assert len(own) == 1 and np.mean(found.nearest(x[10:]) == own[0]) < 0.05


@pytest.mark.parametrize("scale", [1.0, 0.1])
@pytest.mark.parametrize("spread", [(1.0, 1.0, 1.0), (1.0, 0.1, 0.01)])
def test_components_of_few_particles_have_room_where_these_leave_it_out(spread: tuple[float, ...], scale: float) -> None:
    """Beside a large component, one of eight particles, as wide or narrow, of the same shape or far from it."""
    rng, n, true = np.random.default_rng(5), 8, scale * np.array(spread)
    narrow, smallest, widest = [], [], []
    for _ in range(200):
        x = rng.normal(size=(n, 3)) * true
        few = np.linalg.cholesky(np.cov(x.T, bias=True))
        roots = np.array([np.eye(3), few])
        big, room = _with_room(np.array([0.98, 0.02]), roots, np.array([400.0, n]))
        relative = [np.linalg.eigvalsh((r @ r.T) / np.outer(true, true)) for r in (few, room)]
        narrow.append(relative[0][0])
        smallest.append(relative[1][0])
        widest.append(relative[1][-1])
        assert np.linalg.eigvalsh(room @ room.T - few @ few.T)[0] > -1e-9 * scale**2  # never narrower
        np.testing.assert_allclose(np.abs(big), np.eye(3), atol=0.1)
    assert np.median(smallest) > 1.5 * np.median(narrow) and np.median(widest) < 4
    if len(set(spread)) == 1:
        assert np.median(narrow) < 0.3 and np.median(smallest) > 0.5


def test_a_component_of_a_single_particle_has_the_size_of_the_others() -> None:
    (_, one) = _with_room(np.array([0.99, 0.01]), np.array([2 * np.eye(3), 0.1 * np.eye(3)]), np.array([400.0, 1.0]))
    np.testing.assert_allclose(np.diag(one), 2.0, rtol=0.1)


def test_a_thin_curved_sheet_takes_more_than_eight_components_and_a_gaussian_one() -> None:
    """Weights of fresh draws are more even then: of a Gaussian bent to an arc with the width of a hundredth of its length."""

    def bent(z: np.ndarray) -> np.ndarray:
        return np.column_stack([z[:, 0], 0.03 * z[:, 1] + z[:, 0] ** 2])

    def efficiency(mixture: Mixture) -> float:
        x = mixture.draw(20_000, np.random.default_rng(2))
        straight = np.column_stack([x[:, 0], (x[:, 1] - x[:, 0] ** 2) / 0.03])
        weights = np.exp(-0.5 * np.sum(straight**2, axis=1) - mixture.logpdf(x))
        return float(weights.sum() ** 2 / np.sum(weights**2)) / len(x)

    rng = np.random.default_rng(0)
    z, equal = rng.standard_normal((4000, 2)), np.full(4000, 1 / 4000)
    few = Mixture.fit(bent(z), equal, 3.0, np.random.default_rng(1))
    many = Mixture.fit(bent(z), equal, 3.0, np.random.default_rng(1), most=32)
    assert few.components <= 8 < many.components <= 32
    assert efficiency(many) > 1.5 * efficiency(few)
    assert Mixture.fit(z, equal, 3.0, np.random.default_rng(1), most=32).components == 1


def test_parts_around_the_heaviest_weights_lie_where_draws_are_too_few() -> None:
    """Two thousand draws of a Gaussian, and three of a branch that is a thousand times too thin among them."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((2000, 2)), [[9.0, 9.0], [9.1, 9.0], [9.0, 9.2]]])
    log_weights = np.where(x[:, 0] > 8, np.log(1000.0), 0.0)
    found = heaviest(np.concatenate([x, [[50.0, 50.0]]]), np.append(log_weights, -np.inf), 5.0)
    assert found.shares == pytest.approx(np.full(10, 0.1)) and found.freedom == 5.0
    assert tuple(found.means[0]) in map(tuple, x[-3:])
    covariance = found.roots[0] @ found.roots[0].T
    assert np.all(np.linalg.eigvalsh(covariance) > 0) and np.sqrt(covariance[0, 0]) < 8
    far = np.linalg.norm(found.means[1:], axis=1) < 6
    assert far.all() and len(np.unique(found.means, axis=0)) == 10
    few = heaviest(x[:5], np.zeros(5), 5.0)
    assert len(few.shares) == 5 and np.isfinite(few.logpdf(x)).all()
