"""Which draws of the prior searches begin at, and narrow modes that the best draws do not show."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.likelihood import global_search
from pm_sysid.likelihood.descent import STEPS, Descent
from pm_sysid.likelihood.global_search import (
    LOWER,
    NARROWER,
    NEIGHBOURS,
    Peak,
    climb_all,
    distinct,
    far_from_better,
    made_up,
    other_shares,
    promising,
    summits,
    worth_polishing,
)

RNG = np.random.default_rng(0)


def two_hills(x: np.ndarray) -> np.ndarray:
    """A wide bowl at zero, and a narrow pit at (3, 3) whose slope is above the wide one's floor."""
    return np.minimum(0.5 * np.sum(x**2, axis=1), 3.0 + 400 * np.sum((x - 3.0) ** 2, axis=1))


def test_summits_are_better_than_all_draws_around_them() -> None:
    points = RNG.normal(0, 2, (500, 2))
    points[7] = 3.05
    values = two_hills(points)
    found = summits(points, values, np.ones(2))
    assert {7, int(np.argmin(values))} <= set(found) and len(found) < 30
    for i in found:
        away = np.sum((points - points[i]) ** 2, axis=1)
        assert values[i] < np.min(values[np.argsort(away)[1 : NEIGHBOURS + 1]])


def test_the_best_point_of_each_basin_comes_first() -> None:
    """Of a wide one and of a narrow one far above it that forty of a thousand points are in; not of a point without a value."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(0, 1, (960, 3)), 4 + 0.3 * rng.standard_normal((40, 3))])
    values = np.where(np.arange(1000) < 960, np.sum(points**2, axis=1), 50 + np.sum((points - 4) ** 2, axis=1))
    values[5] = np.inf
    rows = far_from_better(points, values, np.ones(3))
    assert rows[0] == np.argmin(values) and rows[1] == 960 + np.argmin(values[960:]) and len(rows) == 999 and 5 not in rows


def test_draws_without_a_density_are_no_summits_and_no_starts() -> None:
    points = RNG.normal(size=(50, 3))
    values = np.full(50, np.inf)
    assert not summits(points, values, np.ones(3)).size and not promising(points, values, np.ones(3)).size
    values[4] = 1.0
    assert list(promising(points, values, np.ones(3))) == [4]
    assert not summits(points[:NEIGHBOURS], np.arange(float(NEIGHBOURS)), np.ones(3)).size


def test_the_best_draws_and_the_summits_take_turns_and_none_comes_twice() -> None:
    points = RNG.normal(0, 2, (500, 2))
    points[7] = 3.05
    values = two_hills(points)
    order = promising(points, values, np.ones(2))
    assert sorted(order) == list(range(500))
    best, high = np.argsort(values), sorted(summits(points, values, np.ones(2)), key=lambda i: values[i])
    assert list(order[:2]) == [best[0], best[1]] if high[0] == best[0] else list(order[:2]) == [best[0], high[0]]
    assert list(order).index(7) <= 2 * high.index(7) + 1 < list(best).index(7)


def test_starts_are_apart() -> None:
    points = RNG.normal(0, 2, (200, 2))
    rows = list(distinct(points, two_hills(points), np.ones(2), [0]))
    for k, i in enumerate(rows):
        others = points[[0, *rows[:k]]]
        assert np.all(np.sqrt(np.mean((others - points[i]) ** 2, axis=1)) > 0.3)


@pytest.mark.parametrize(
    "values, settled, maxima, worth",
    [
        ([0.0, 5.0, 1000.0], [1, 1, 1], [], [1, 1, 0]),
        ([0.0, 5.0, 1000.0], [1, 0, 0], [], [1, 1, 0]),  # one that was on its way is close enough to go on
        ([-1000.0, 0.0, 5.0, 1000.0], [0, 1, 1, 1], [], [1, 1, 1, 0]),  # a density that rises without end hides no maximum
        ([0.0, 5.0], [1, 1], [-1000.0], [1, 1]),  # close to the best of these starts: it is cheap to look
        ([0.0, 500.0], [1, 1], [-1000.0], [1, 0]),
        ([np.inf, np.inf], [0, 0], [], [0, 0]),
    ],
)
def test_ends_that_hold_nothing_of_the_posterior_are_not_polished(values, settled, maxima, worth) -> None:
    ends = Descent(np.zeros((len(values), 2)), np.array(values), np.array(settled, dtype=bool))
    assert list(worth_polishing(ends, maxima)) == [bool(w) for w in worth]


def test_a_wide_mode_may_lie_lower_than_a_narrow_one() -> None:
    ends = Descent(np.zeros((2, 4)), np.array([0.0, LOWER + 4 * np.log(NARROWER)]), np.ones(2, dtype=bool))
    assert worth_polishing(ends, []).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_narrow_mode_is_found_beside_a_wide_one(seed: int) -> None:
    """Half of the mass, in a ten-thousandth of the prior."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 5, shape=2)
        squares = pt.sum((x + 2) ** 2), pt.sum((x - 2) ** 2) / 0.03**2
        pm.Potential("both", pt.logaddexp(-squares[0] / 2, -squares[1] / 2 - 2 * np.log(0.03)))
    mode = sid.find_mode(model, prior_draws=10_000, random_seed=seed, progressbar=False)
    ends = np.array([m.point for m in mode.modes])
    assert len(ends) == 2
    np.testing.assert_allclose(ends[np.argsort(ends[:, 0])], [[-1.93] * 2, [2.0] * 2], atol=0.01)
    assert abs(mode.modes[0].log_evidence - mode.modes[1].log_evidence) < 0.1


def modes(**log_evidences: float) -> list[Peak]:
    """Maxima of unit width at the places that the names say, such as ``at_3``."""
    width = 0.5 * np.log(2 * np.pi)
    return [Peak(np.array([float(k[3:])]), np.eye(1), width - v, True) for k, v in log_evidences.items()]


def test_shares_of_modes_are_compared_where_they_matter() -> None:
    some = modes(at_0=0.0, at_10=-1.0, at_20=-15.0)
    assert not other_shares(some, modes(at_0=0.1, at_10=-0.9, at_20=-14.0))  # a share of 1e-6 more or less
    assert not other_shares(some, modes(at_0=-3.0, at_10=-4.0, at_20=-18.0))  # all alike
    assert other_shares(some, modes(at_0=0.0, at_10=-1.0, at_20=-3.0))
    assert other_shares(some, modes(at_0=0.0, at_10=-1.6, at_20=-15.0))
    assert other_shares(some, modes(at_0=0.0, at_20=-15.0))  # one is gone
    assert other_shares(modes(at_0=0.0, at_1=0.0), modes(at_0=0.7))
    assert other_shares(modes(at_0=0.0, at_10=-1.0), [*modes(at_0=0.0), *modes(at_5=-1.0), *modes(at_10=-1.0)])
    assert other_shares(some, []) and not other_shares([], [])


def test_a_mode_that_many_steps_have_not_is_made_up() -> None:
    """It climbs to another one, and its place has become less likely; places of one mode have not."""
    some, one = modes(at_0=0.0, at_10=-5.0), modes(at_0=0.0)
    heights = -np.array([p.value for p in some])
    assert made_up(some, one, heights - [0.0, 30.0]) and made_up(some, one, np.array([heights[0], np.nan]))
    assert not made_up(some, one, heights - [0.0, 0.5]) and not made_up(some, one, heights - 30.0)
    assert not made_up(some, some, heights - [0.0, 30.0])  # it has moved, and its share is compared by itself
    assert not made_up(modes(at_0=0.0, at_10=-8.0), one, heights - [0.0, 30.0])  # a share of 3e-4
    assert not made_up([], one, np.empty(0)) and not made_up(some, [], heights)


def test_searches_that_do_not_arrive_leave_few_steps_to_others_and_a_mode_is_found_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trough that falls without end, and a bowl that is higher: its search comes after all those of the trough."""

    def batch(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batch.points += len(x)  # type: ignore[attr-defined]
        a, b = x.T
        bend = b - np.sin(a)
        trough = a < 5.0
        values = np.where(trough, a / 50 + 50 * bend**2, 5.0 + ((a - 10.0) ** 2 + b**2) / 2)
        along = np.where(trough, 1 / 50 - 100 * bend * np.cos(a), a - 10.0)
        return values, np.stack([along, np.where(trough, 100 * bend, b)], axis=1)

    starts = np.array([*([-float(k), 0.3] for k in range(1, 13)), [9.0, 1.0]])
    counts = []
    for few in (global_search.FEW_STEPS, STEPS):
        monkeypatch.setattr(global_search, "FEW_STEPS", few)
        monkeypatch.setattr(global_search, "ROUNDS", 20)
        batch.points = 0  # type: ignore[attr-defined]
        peaks = climb_all(batch, starts, np.ones(2), [])
        counts.append(batch.points)  # type: ignore[attr-defined]
        (arrived,) = [p for p in peaks if p.converged]
        np.testing.assert_allclose(arrived.point, [10.0, 0.0], atol=1e-6)
    assert counts[0] < 0.5 * counts[1]
