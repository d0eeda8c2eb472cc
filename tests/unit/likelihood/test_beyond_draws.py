"""A part of a posterior that coarse steps rule out is found from draws that lack it: more steps are taken, or it is said."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.likelihood import filter_steps
from pm_sysid.likelihood.beyond_draws import apart, beyond
from pm_sysid.likelihood.filter_steps import _put
from pm_sysid.likelihood.filter_view import filter_view

#: A level that has filled before the second sample: every fast rate explains it, and four steps fail for rates above 10.
Y = np.array([0.03, 0.99, 1.06, 1.01, 0.95])
FILLING = sid.System(lambda t, x, u, p: p.k * (1 - x.l), states=("l",), params=("k",), observe=lambda t, x, dx, u, p: x.l)


def filling(substeps: Any) -> pm.Model:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        rate = pm.LogNormal("k", 1.0, 0.8)
        record = sid.TimeSeries(np.arange(5.0), None, Y)
        sid.ODEFilter("y", FILLING, record, {"k": rate}, noise=0.1, x0=0.0, solver=sid.EK1(order=4), substeps=substeps)
    return model


def cut_draws() -> xr.DataTree:
    """What a sampler finds with four steps: no rate above 10."""
    log_rate = np.random.default_rng(0).normal(1.5, 0.5, (4, 400))
    log_rate = np.where(log_rate < 2.3, log_rate, 1.5)
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"k": (("chain", "draw"), np.exp(log_rate))})})


def test_steps_that_may_be_refined_are() -> None:
    model = filling(4)
    view = filter_view("y", model)
    _put(view, replace(view.op.grid.choice, asked="auto"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choice = sid.settle_substeps(cut_draws(), model=model, where="on the posterior")["y"]
    assert choice.substeps >= 8 and choice.where == "on the posterior and beyond"
    target = sid.Target(model)
    found = target.log_likelihood(target.unconstrained({"k": np.exp(np.array([2.0, 2.5]))}))
    np.testing.assert_allclose(found, 6.51, atol=0.3)  # with four steps the second is 2.5


def test_steps_that_were_asked_for_are_kept_and_it_is_said() -> None:
    model = filling(4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert sid.settle_substeps(cut_draws(), model=model)["y"].substeps == 4
    (said,) = [str(w.message) for w in caught if "ruled out" in str(w.message)]
    assert said.startswith("With 4 steps a sample of 'y' a part of the posterior is ruled out: at k = ") and "beyond" in said
    check = sid.check_substeps(cut_draws(), model=model)
    assert check.level == "bad" and "rule out a part of the posterior: at k = " in check.verdict
    assert "set_substeps(8)" in check.verdict


def test_steps_that_suffice_are_left_alone() -> None:
    model = filling(256)
    check = sid.check_substeps(cut_draws(), model=model)
    assert not check.beyond and check.level == "good"


def test_points_lie_beyond_draws_where_the_other_coordinates_follow() -> None:
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([1.0, -2.0], [[1.0, 1.8], [1.8, 4.0]], 4000)
    points, less = beyond(x, 100)
    assert points.shape == (16 + 16, 2) and np.all(less[:16] == 9.0) and np.all(less[16:] == 6.5)
    points = points[:16]
    z = np.linalg.solve(np.linalg.cholesky(np.cov(x.T)), (points - x.mean(axis=0)).T)
    np.testing.assert_allclose(np.sort(np.linalg.norm(z, axis=0)), np.repeat([2.0, 3.5, 5.0, 8.0], 4), rtol=1e-9)
    assert len(beyond(x, 5)[0]) <= 6 and beyond(np.ones((20, 2)), 10)[0].shape == (0, 2)


def test_points_lie_beyond_the_ends_of_curved_draws() -> None:
    """The logarithm of a fast rate, and another that depends on it only where it is slow."""
    rng = np.random.default_rng(0)
    rate = rng.normal(0.0, 1.5, 4000)
    other = -np.logaddexp(0.0, -2.0 * rate)  # falls with slow rates, level for fast ones
    points, _ = beyond(np.column_stack([rate, other + 0.02 * rng.normal(size=4000)]), 100)
    far = points[points[:, 0] > 5.0]
    assert np.abs(far[:, 1] - -np.logaddexp(0.0, -2.0 * far[:, 0])).min() < 0.1
    slow = points[points[:, 0] < -5.0]
    assert np.abs(slow[:, 1] - -np.logaddexp(0.0, -2.0 * slow[:, 0])).min() < 1.0
    by_one_line = points[:16]
    assert np.abs(by_one_line[by_one_line[:, 0] > 5.0][:, 1]).min() > 1.0


def test_draws_of_modes_that_lie_apart_are_told_from_one_another() -> None:
    rng = np.random.default_rng(0)
    for d in (2, 3, 6, 10):
        assert len(apart(rng.normal(size=(400, d)))) == 1
        two = rng.normal(size=(400, d)) + np.where(np.arange(400)[:, None] < 150, 6.0, 0.0)
        assert [g.tolist() for g in sorted(apart(two), key=len)] == [list(range(150)), list(range(150, 400))]
    assert len(apart(np.ones((400, 2)))) == len(apart(rng.normal(size=(40, 2)))) == 1


def test_draws_stay_where_judging_their_steps_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = filling(4)
    view = filter_view("y", model)

    def interrupted(*_: Any) -> None:
        _put(view, replace(view.op.grid.choice, substeps=8))
        raise KeyboardInterrupt

    monkeypatch.setattr(filter_steps, "_settle", interrupted)
    said, _ = filter_steps.short_of_steps(cut_draws(), model)
    assert "was not judged to the end" in said and view.op.grid.choice.substeps == view.op.substeps == 4


@pytest.mark.slow
def test_a_curved_tail_of_fast_rates_is_not_ruled_out() -> None:
    """A -> B -> C of which C is measured: the second rate may be fast, where the first alone tells what is seen."""
    t = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 5.0])

    def level(k1: Any, k2: Any, a: Any) -> np.ndarray:
        k1, k2, a = (np.asarray(v, float)[..., None] for v in (k1, k2, a))
        k2 = np.where(abs(k1 - k2) < 1e-6 * k1, k1 * (1 + 1e-6), k2)
        return np.asarray(a * (1 - (k2 * np.exp(-k1 * t) - k1 * np.exp(-k2 * t)) / (k2 - k1)))

    y = level(2.0, 0.7, 1.0) + 0.08 * np.random.default_rng(0).standard_normal(t.size)
    grid = np.meshgrid(np.linspace(-5, 5, 101), np.linspace(-6, 9, 301), np.linspace(-1.2, 2.5, 61), indexing="ij")
    log = sum(-0.5 * (g / sd) ** 2 for g, sd in zip(grid, (1.0, 1.5, 0.5), strict=True))
    log = log - 0.5 * np.sum(((y - level(*np.exp(grid))) / 0.08) ** 2, axis=-1)
    weights = np.exp(log - log.max())
    tail = weights[np.exp(grid[1]) > 20.0].sum() / weights.sum()
    chain = sid.System(
        lambda t, x, u, p: (-p.k1 * x.A, p.k1 * x.A - p.k2 * x.B, p.k2 * x.B),
        states=("A", "B", "C"),
        params=("k1", "k2"),
        observe=lambda t, x, dx, u, p: x.C,
    )
    for seed in (0, 1):
        with pm.Model(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rates = {"k1": pm.LogNormal("k1", 0.0, 1.0), "k2": pm.LogNormal("k2", 0.0, 1.5)}
            x0 = {"A": pm.LogNormal("A0", 0.0, 0.5), "B": 0.0, "C": 0.0}
            sid.ODEFilter("y", chain, sid.TimeSeries(t, None, y), rates, noise=0.08, x0=x0)
            idata = sid.sample(random_seed=seed, progressbar=False)
        found = float((idata["posterior"]["k2"] > 20.0).mean())
        assert 0.6 * tail < found < 1.5 * tail or not idata.attrs["trusted"]
        assert found > 0.3 * tail
