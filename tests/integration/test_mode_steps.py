"""find_mode gives a filter the steps it needs at the mode, and climbs again with them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.inference import sample_ibis
from pm_sysid.likelihood.filter_view import filter_view

DECAY = sid.System(lambda t, x, u, p: -p.w * x.level, states=("level",), params=("w",), observe=lambda t, x, dx, u, p: x.level)
T = np.arange(20) * 0.25
RECORD = sid.TimeSeries(T, None, np.exp(-2.0 * T) + 0.01 * np.random.default_rng(0).standard_normal(20))
OPTIONS: dict[str, Any] = {"noise": 0.01, "x0": 1.0, "solver": sid.EK1(order=2, diffusion=1.0)}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as model:
        sid.ODEFilter("y", DECAY, RECORD, {"w": pm.LogNormal("w", np.log(2.0), 0.1)}, substeps=32, **OPTIONS)
    return model


def with_steps(model: pm.Model, number: int, asked: Any) -> None:
    sid.set_substeps(number, model)
    grid = filter_view("y", model).op.grid
    grid.choice = replace(grid.choice, asked=asked)


def find(model: pm.Model) -> Any:
    return sid.find_mode(model, prior_draws=100, starts=4, random_seed=0, progressbar=False)


def test_the_mode_is_that_with_enough_steps(model: pm.Model) -> None:
    with_steps(model, 32, 32)
    exact = find(model)
    assert exact.substeps["substeps_y"] == 32
    with_steps(model, 1, "auto")
    mode = find(model)
    assert mode.substeps["substeps_y_judged"] == "at the mode"
    assert 1 < mode.substeps["substeps_y"] < 32 and mode.substeps["substeps_y_error"] < 0.1
    assert filter_view("y", model).op.substeps == mode.substeps["substeps_y"]
    assert abs(mode.point - exact.point)[0] < 0.05 * np.sqrt(exact.covariance[0, 0])
    assert mode.logp == pytest.approx(exact.logp, abs=0.1)
    assert sum(m.searches for m in mode.modes) == sum(m.searches for m in exact.modes)


def test_a_number_that_goes_with_a_diffusion_is_left_alone(model: pm.Model) -> None:
    """It may be a disturbance, of a size meant for that number of steps."""
    with_steps(model, 1, 1)
    mode = find(model)
    assert mode.substeps["substeps_y"] == 1 and np.isnan(mode.substeps["substeps_y_error"])


def test_sequential_draws_say_that_they_needed_more_steps(model: pm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leave the steps as they were, where they do not begin again with what they need."""
    options: dict[str, Any] = {"model": model, "chains": 2, "cores": 1, "random_seed": 0, "progressbar": False}
    with_steps(model, 1, "auto")
    with monkeypatch.context() as patch:
        patch.setattr(sample_ibis, "AGAIN", 0)
        coarse = sid.sample_ibis(200, **options)
    doubt = sid.log_evidence(coarse).doubt
    assert "drawn with 1 steps a sample of 'y' and needs" in doubt and filter_view("y", model).op.substeps == 1
    again = sid.sample_ibis(200, **options)
    chosen = filter_view("y", model).op.substeps
    assert f"needs {chosen} steps a sample" in doubt and chosen > 1
    assert "steps a sample" not in sid.log_evidence(again).doubt


def alias_model(substeps: int | Literal["auto"] = "auto") -> pm.Model:
    """An oscillation sampled twice a second: its aliases explain the record as well, and need steps of their own frequency."""
    system = sid.System(
        lambda t, x, u, p: (x.v, -(p.w**2 + 0.0004) * x.z - 0.04 * x.v),
        states=("z", "v"),
        params=("w",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    t = np.arange(25) * 0.5
    y = np.cos(3.0 * t) * np.exp(-0.02 * t) + 0.4 * np.random.default_rng(0).standard_normal(25)
    with pm.Model() as model:
        w, record = {"w": pm.LogNormal("w", np.log(6.0), 0.6)}, sid.TimeSeries(t, None, y)
        sid.ODEFilter("y", system, record, w, noise=0.4, x0={"z": 1.0, "v": -0.02}, substeps=substeps)
    return model


def exact_alias_shares() -> dict[float, float]:
    """Shares of the posterior around each alias, by the solution itself."""
    t = np.arange(25) * 0.5
    y = np.cos(3.0 * t) * np.exp(-0.02 * t) + 0.4 * np.random.default_rng(0).standard_normal(25)
    w = np.linspace(0.1, 80.0, 800_001)
    log_density = -0.5 * (np.log(w / 6.0) / 0.6) ** 2 - np.log(w)
    for s, v in zip(t, y, strict=True):
        log_density = log_density - 0.5 * ((v - np.cos(w * s) * np.exp(-0.02 * s)) / 0.4) ** 2
    density = np.exp(log_density - log_density.max())
    places = [3.0, 4 * np.pi - 3, 4 * np.pi + 3, 8 * np.pi - 3]
    return {a: float(density[np.abs(w - a) < 1].sum() / density.sum()) for a in places}


def test_steps_are_doubled_while_other_modes_gain_by_that() -> None:
    """With the steps that do for the best mode, an alias with 7 % of the posterior was ruled out."""
    model, shares = alias_model(), exact_alias_shares()
    before = filter_view("y", model).op.substeps
    mode = sid.find_mode(model, random_seed=1, progressbar=False)
    assert filter_view("y", model).op.substeps > before and shares[4 * np.pi + 3] > 0.05
    for place, share in shares.items():
        near = [s for s, m in zip(mode.shares, mode.modes, strict=True) if abs(float(m.initvals["w"]) - place) < 0.5]
        assert sum(near) == pytest.approx(share, abs=0.02), place


def test_too_few_steps_for_other_modes_are_said_where_there_may_be_no_more() -> None:
    model = alias_model(4)
    with pytest.warns(sid.SubstepWarning, match="With 4 steps a sample of 'y', modes hold other shares of the posterior"):
        sid.find_mode(model, random_seed=1, progressbar=False)
    assert filter_view("y", model).op.substeps == 4


def test_sample_draws_from_all_aliases_or_says_that_steps_are_too_few() -> None:
    idata = sid.sample(alias_model(), draws=1000, chains=2, cores=1, random_seed=1, progressbar=False)
    w = idata["posterior"]["w"].values
    for place, share in exact_alias_shares().items():
        assert np.mean(np.abs(w - place) < 1) == pytest.approx(share, abs=0.03), place
    assert idata.attrs["trusted"], idata.attrs["verdict"]
    with pytest.warns(UserWarning, match="cannot be trusted"):
        found = sid.sample(alias_model(4), draws=500, chains=2, cores=1, random_seed=1, progressbar=False)
    assert "other shares of the posterior" in found.attrs["verdict"]
    assert "other shares of the posterior" in sid.log_evidence(found).doubt


def test_a_mode_that_few_steps_make_up_is_not_sampled() -> None:
    """Two compartments, of which a fast exchange explains the record by the error of eight steps alone."""
    t = np.array([0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
    system = sid.System(
        lambda t, x, u, p: (-(p.k10 + p.k12) * x.a + p.k21 * x.b, p.k12 * x.a - p.k21 * x.b),
        states=("a", "b"), params=("k10", "k12", "k21"), observe=lambda t, x, dx, u, p: x.a,
    )  # fmt: skip
    k10, k12, k21 = 0.02, 1.2, 0.6
    total = k10 + k12 + k21
    root = np.sqrt(total**2 - 4 * k10 * k21)
    fast, slow = (total + root) / 2, (total - root) / 2
    share = (fast - k21) / (fast - slow)
    y = 10 * (share * np.exp(-fast * t) + (1 - share) * np.exp(-slow * t)) + 0.3 * np.random.default_rng(0).standard_normal(8)
    y[0] = np.nan
    with pm.Model() as model:
        rates = {name: pm.Uniform(name, 0, high) for name, high in {"k10": 3.0, "k12": 1.25, "k21": 5.0}.items()}
        sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), rates, noise=0.3, x0={"a": 10.0, "b": 0.0})
    idata = sid.sample(model, cores=1, random_seed=0, progressbar=False)
    # By quadrature of the exact solution the standard deviation is 0.1069, and 5e-9 of the posterior lie above 1.75.
    k21_draws = idata["posterior"]["k21"].values
    assert k21_draws.std() == pytest.approx(0.1069, rel=0.15) and k21_draws.max() < 1.75
    # Another local maximum is thirteen nats lower; the error of eight steps made it the higher one.
    assert idata.attrs["method"] == "independent" and idata.attrs["trusted"], idata.attrs["verdict"]


def test_walls_beyond_draws_are_seen_behind_each_of_two_modes() -> None:
    """Two decays whose rates may be exchanged: a regression over both modes leads to rates that explain nothing."""
    system = sid.System(
        lambda t, x, u, p: (-p.r1 * x.a, -p.r2 * x.b), states=("a", "b"), params=("r1", "r2"),
        observe=lambda t, x, dx, u, p: x.a + x.b,
    )  # fmt: skip
    t = np.arange(0, 12, 0.4)
    y = np.exp(-0.2 * t) + np.exp(-5.0 * t) + 0.1 * np.random.default_rng(4).standard_normal(t.size)
    with pm.Model() as model:
        rates = {name: pm.LogNormal(name, mu, 1.5) for name, mu in {"r1": -0.5, "r2": 0.5}.items()}
        sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), rates, noise=0.1, x0=1.0)
    with warnings.catch_warnings():  # by one seed of three finer steps allow rates of a thousand, which hold next to nothing
        warnings.filterwarnings("ignore", message=".*a part of the posterior is ruled out")
        idata = sid.sample(model, cores=1, random_seed=4, progressbar=False)
    r2 = idata["posterior"]["r2"].values
    # By quadrature 0.0092 of the posterior are above 60, and the standard deviation of the logarithm is 1.447; 8 steps cut it.
    assert np.mean(r2 > 60) > 0.005 and np.log(r2).std() == pytest.approx(1.447, rel=0.05)
    assert idata.attrs["substeps_y"] > 8


@pytest.mark.parametrize("seed", [0, 2])
def test_steps_are_not_judged_where_a_posterior_has_nothing(seed: int) -> None:
    """Of a horseshoe's Laplace approximation most draws lie far outside the posterior, and some where a run explodes."""
    law = sid.Library({"z": lambda z: z, "z^2": lambda z: z**2, "z^3": lambda z: z**3})
    system = sid.System(
        lambda t, x, u, p: u.F - law(x.z, p.w),
        states=("z",),
        inputs=("F",),
        params={"w": law.size},
        observe=lambda t, x, dx, u, p: x.z,
    )
    t = np.arange(60) * 0.1
    record = sid.TimeSeries(t, 2 * np.sin(2 * t), None, inputs="F")
    y = sid.simulate(system, record, {"w": np.array([1.0, 0.0, 0.5])}, x0=0.0)["y"].to_numpy()
    record = record.replace(y=y + 0.02 * np.random.default_rng(seed).standard_normal(60))
    with pm.Model():
        w = law.prior("w", sizes=[10, 15, 20], terms=2)
        sid.ODEFilter("y", system, record, {"w": w}, noise=0.02, x0=0.0, substeps=2)
        mode = sid.find_mode(random_seed=1, progressbar=False)  # a warning would be an error
        said = sid.substeps_attrs()["substeps_y_error"]
        assert said < 1e-3
        assert sid.settle_substeps(mode.initvals)["y"].error <= said
