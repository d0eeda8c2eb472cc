"""With how many steps searches are on their way and draws are made, and what stays in the user's model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.inference import sample as sampling
from pm_sysid.likelihood import mode as searching
from pm_sysid.likelihood.filter_steps import enough_around
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.likelihood.global_search import Peak

DECAY = sid.System(lambda t, x, u, p: -p.w * x.level, states=("level",), params=("w",), observe=lambda t, x, dx, u, p: x.level)
T = np.arange(40) * 0.25
RECORD = sid.TimeSeries(T, None, np.exp(-0.5 * T) + 0.01 * np.random.default_rng(0).standard_normal(40))


def model_with(steps: int) -> pm.Model:
    """As if prior draws had needed so many steps."""
    with pm.Model() as model:
        rate = pm.LogNormal("w", 0.0, 1.0)
        sid.ODEFilter("y", DECAY, RECORD, {"w": rate}, noise=pm.HalfNormal("noise", 0.1), x0=1.0, substeps=steps)
    grid = filter_view("y", model).op.grid
    grid.choice = replace(grid.choice, asked="auto", settled=True)
    return model


def steps_of(model: pm.Model) -> int:
    return filter_view("y", model).op.substeps


def find(model: pm.Model) -> sid.Mode:
    return sid.find_mode(model, prior_draws=200, starts=6, random_seed=0, progressbar=False)


def test_searches_on_their_way_with_fewer_steps_end_at_the_same_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with(16)
    whole = find(model)
    ends = list[Any]()
    on_the_way = searching.Hunt._on_the_way

    def watched(hunt: searching.Hunt, batch: Any, starts: np.ndarray) -> Any:
        rest, near = on_the_way(hunt, batch, starts)
        ends.append((len(starts), len(rest), 0 if near is None else len(near.x)))
        assert steps_of(model) == 16
        return rest, near

    monkeypatch.setattr(searching.Hunt, "_on_the_way", watched)
    find(model)
    assert all(near == 0 for _, _, near in ends)  # the record is short: a second search would cost more
    ends.clear()
    monkeypatch.setattr(searching, "LONG_WAY", 0)
    mode = find(model)
    started, rest, near = ends[0]
    assert rest + near == started and near > started // 2
    np.testing.assert_allclose(mode.point, whole.point, atol=1e-4)
    assert mode.logp == pytest.approx(whole.logp, abs=1e-6)
    sd = np.sqrt(np.diag(whole.covariance))
    np.testing.assert_allclose(mode.covariance / np.outer(sd, sd), whole.covariance / np.outer(sd, sd), atol=2e-3)
    assert sum(m.searches for m in mode.modes) == sum(m.searches for m in whole.modes)


def test_a_way_that_is_interrupted_leaves_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with(16)
    monkeypatch.setattr(searching, "LONG_WAY", 0)
    descend = searching.descend

    def stopped(*args: Any, **options: Any) -> Any:
        if steps_of(model) == 4:
            raise KeyboardInterrupt
        return descend(*args, **options)

    monkeypatch.setattr(searching, "descend", stopped)
    with pytest.warns(UserWarning, match="interrupted"):
        mode = find(model)
    assert not mode.converged and steps_of(model) == 16


def test_draws_take_the_steps_that_do_around_the_mode_and_are_right() -> None:
    model = model_with(16)
    idata = sid.sample(model, 500, chains=2, cores=1, random_seed=1, progressbar=False)
    assert idata.attrs["trusted"] == 1 and idata.attrs["method"] == "independent"
    fewer = steps_of(model)
    assert fewer < 16 and f"'y' takes {fewer} step" in idata.attrs["choices"]
    assert idata.attrs["substeps_y"] == fewer and idata.attrs["substeps_y_judged"].startswith("on the posterior")
    assert idata.attrs["substeps_y_error"] < 0.1
    fine = model_with(16)
    sid.set_substeps(16, fine)  # a number that is set is obeyed
    other = sid.sample(fine, 500, chains=2, cores=1, random_seed=1, progressbar=False)
    assert steps_of(fine) == 16
    for name in ("w", "noise"):
        a, b = (d["posterior"][name].to_numpy().ravel() for d in (idata, other))
        assert abs(a.mean() - b.mean()) < 0.15 * b.std() and abs(a.std() / b.std() - 1) < 0.12


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_draws_that_are_not_made_leave_the_steps(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = model_with(16), list[int]()

    def stopped(*_: Any, **__: Any) -> Any:
        seen.append(steps_of(model))
        raise error

    monkeypatch.setattr(sampling, "sample_around_mode", stopped)
    with pytest.raises(error):
        sid.sample(model, 100, method="independent", chains=2, cores=1, random_seed=1, progressbar=False)
    assert seen[0] < 16 and steps_of(model) == 16


def test_few_steps_are_not_looked_for_below_what_there_is_to_gain() -> None:
    model = model_with(2)
    assert enough_around([{"w": 0.5, "noise": 0.01}], model) == {}
    sid.set_substeps(16, model)
    assert enough_around([{"w": 0.5, "noise": 0.01}], model) == {}  # asked for
    fast = model_with(4)
    assert enough_around([{"w": 14.0, "noise": 0.01}], fast) == {}  # as many or more are needed there


def test_hopeless_ends_of_a_few_searches_bring_no_further_ones() -> None:
    model = model_with(2)
    hunt = searching.Hunt(searching.PosteriorFunctions(model), np.zeros(2), "", lambda text: None)

    def peaks(best: int, lower: float, converged: bool = True) -> bool:
        hunt.peaks = [
            Peak(np.zeros(2), np.eye(2), 0.0, True, best), Peak(np.ones(2), np.eye(2), lower, converged, hunt.searches - best)
        ]  # fmt: skip
        return hunt._nearly_all_agree()

    assert not hunt._nearly_all_agree()
    hunt.searches = 16
    assert peaks(15, 5000.0) and not peaks(10, 5000.0)  # too few agree
    assert not peaks(15, 20.0)  # the other may hold something
    assert not peaks(15, 5000.0, converged=False)
