"""Bands of states beside processes: by particles where the linearisation makes them wrong, as before where it does not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytest
import scipy
import xarray as xr

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.posterior import states as module
from pm_sysid.posterior.particle_filter import ParticleFilter, drawn_paths

DT, N, NOISE = 0.25, 16, 0.2
SQUARE = sid.System(
    lambda t, x, u, p: -x.z, states=("z",), inputs=("d",), params=("a",), observe=lambda t, x, dx, u, p: p.a * u.d**2
)
LAG = sid.System(
    lambda t, x, u, p: -p.a * x.z + u.d, states=("z",), inputs=("d",), params=("a",), observe=lambda t, x, dx, u, p: x.z
)
MILD = sid.System(
    lambda t, x, u, p: -p.a * x.z - 0.05 * x.z**3 + u.d,
    states=("z",), inputs=("d",), params=("a",), observe=lambda t, x, dx, u, p: x.z,
)  # fmt: skip


def model(system: sid.System, y: np.ndarray, **options: Any) -> pm.Model:
    with pm.Model() as built:
        a = pm.LogNormal("a", 0.0, 0.2)
        latent = {"d": sid.OU(scale=1.0, length=1.0)}
        record = sid.TimeSeries(np.arange(len(y)) * DT, None, y)
        settings = {"noise": NOISE, "x0": 0.0, "latent": latent, "substeps": 4, **options}
        sid.ODEFilter("y", system, record, {"a": a}, **settings)
    return built


def draws(count: int) -> xr.Dataset:
    return xr.Dataset({"a": (("chain", "draw"), np.ones((1, count)))})


def force(seed: int) -> np.ndarray:
    rng, keep, d = np.random.default_rng(seed), np.exp(-DT), [0.0]
    for _ in range(N - 1):
        d.append(keep * d[-1] + np.sqrt(1 - keep**2) * rng.standard_normal())
    return np.array(d)


def squared(seed: int = 1) -> np.ndarray:
    d = 1.2 + force(seed)
    return d**2 + NOISE * np.random.default_rng(seed + 100).standard_normal(N)


def exact(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A grid of forces, and their probabilities (T, grid) given all of the record: forward and backward sums."""
    d, keep = np.linspace(-5.0, 5.0, 801), np.exp(-DT)
    moves = scipy.stats.norm.pdf(d[:, None], keep * d, np.sqrt(1 - keep**2))
    said = scipy.stats.norm.pdf(y[:, None], d**2, NOISE)
    before, after = [scipy.stats.norm.pdf(d) * said[0]], [np.ones_like(d)]
    for row in said[1:]:
        now = (moves @ before[-1]) * row
        before.append(now / now.sum())
    for row in said[:0:-1]:
        now = moves.T @ (after[-1] * row)
        after.append(now / now.sum())
    both = np.array(before) * np.array(after[::-1])
    return d, both / both.sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_paths_given_the_square_of_a_force_are_those_of_a_grid() -> None:
    """The sign is not known: linearised paths had one of the two only, and their bands held the half of what is likely."""
    y, count = squared(), 400
    built = model(SQUARE, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sid.sample_states(draws(count), model=built, random_seed=1)
    assert "90 % bands hold" in found.attrs["processes"]
    d = found["inputs"].to_numpy()[0, :, :, 0]
    grid, share = exact(y)
    cdf = np.cumsum(share, axis=1)
    for q in (0.25, 0.5, 1.0, 2.0):
        for limit in (-q, q):
            expected = np.array([min(1.0, np.interp(limit, grid, row)) for row in cdf])
            seen, error = np.mean(d < limit, axis=0), np.sqrt(expected * (1 - expected) / count)
            assert np.all(np.abs(seen - expected) < 4.5 * error + 0.04), (limit, seen, expected)
    np.testing.assert_allclose(found["outputs"].to_numpy()[0, :, :, 0], d**2, atol=1e-9)
    np.testing.assert_allclose(found["derivatives"], -found["states"], atol=1e-9)


@pytest.mark.slow
def test_a_path_depends_on_its_seed_and_place_alone() -> None:
    built = model(SQUARE, squared())
    with built:
        every = sid.sample_states(draws(70), random_seed=3)
        few = sid.sample_states(draws(70), draws=3, random_seed=3)
        other = sid.sample_states(draws(70), draws=3, random_seed=4)
    xr.testing.assert_equal(every.sel(draw=few["draw"]), few)
    assert np.all(few["inputs"] != other["inputs"])


@pytest.mark.slow
def test_smoothed_moments_that_are_wrong_are_said_to_be() -> None:
    built = model(SQUARE, squared())
    with pytest.warns(UserWarning, match=r"bands hold \d+ %.*sample_states") as caught:
        found = sid.smooth(draws(30), model=built)
    assert len([w for w in caught if "linearises" in str(w.message)]) == 1
    assert "bands hold" in found.attrs["processes"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mild_curvature_changes_nothing_and_says_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    y = 0.5 * force(seed) + NOISE * np.random.default_rng(seed).standard_normal(N)
    built = model(MILD, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sid.sample_states(draws(5), model=built, random_seed=1)
        assert "same bands" in sid.smooth(draws(5), model=built).attrs["processes"]
    monkeypatch.setattr(module, "_judged", lambda *_: (None, None))
    xr.testing.assert_equal(found, sid.sample_states(draws(5), model=built, random_seed=1))


def test_what_is_linear_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.PathSampler, "__init__", lambda *_: pytest.fail("ran"))
    with model(LAG, force(1)):
        assert "processes" not in sid.sample_states(draws(2), random_seed=1).attrs
        assert "processes" not in sid.smooth(draws(2)).attrs


def test_what_cannot_be_followed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pm_sysid.posterior.particle_paths.MOST_STEPS", 10)
    monkeypatch.setattr("pm_sysid.posterior.particle_paths.UNKNOWN", 0.0)
    with model(SQUARE, squared()), pytest.warns(UserWarning, match="could not be measured"):
        sid.sample_states(draws(2), random_seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("led", [False, True], ids=["free", "led"])
@pytest.mark.parametrize("coloured", [False, True], ids=["white", "coloured"])
def test_paths_of_linear_systems_have_the_moments_of_the_exact_smoother(led: bool, coloured: bool) -> None:
    y = 0.5 * force(5) + NOISE * np.random.default_rng(5).standard_normal(N)
    y[4] = np.nan
    built = model(LAG, y, substeps=8, x0_std=0.5, **({"coloured": {"y": sid.OU(scale=0.3, length=0.5)}} if coloured else {}))
    filters, count = ParticleFilter(filter_view(None, built)), 600
    sets = filters.own_sets([[np.array(1.0)]])
    (motion,) = filters.motions(sets, 4, [N])
    guide = filters.guides([motion], sets)[0] if led else None
    rngs = [np.random.default_rng(s) for s in np.random.SeedSequence(0).spawn(count)]
    paths, _ = drawn_paths(motion, guide, np.zeros(count, dtype=int), 64 if led else 300, rngs)
    mean, std = sets.smoothed[0], sets.smoothed_std[0]
    z = (paths - mean) / std
    assert np.all(np.abs(z.mean(axis=0)) < 4.5 / np.sqrt(count) + 0.05)
    assert np.all(np.abs(z.std(axis=0) - 1) < 4.5 / np.sqrt(2 * count) + 0.04)
    steps, expected = np.diff(paths[..., 0], axis=1).std(axis=0), _linear_steps(filters, count)
    np.testing.assert_allclose(steps, expected, rtol=0.15)  # a path hangs together


def _linear_steps(filters: ParticleFilter, count: int) -> np.ndarray:
    """Standard deviations of the steps of paths by the smoother."""
    paths = [filters.passes.path([np.array(1.0)], np.random.default_rng(k))["states"][:, 0] for k in range(count)]
    return np.diff(np.array(paths), axis=1).std(axis=0)


@pytest.mark.slow
def test_of_long_records_the_first_samples_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pm_sysid.posterior.particle_paths.LONG", 12)
    with model(SQUARE, squared()) as built, pytest.warns(UserWarning, match="compared at the first 6 samples"):
        sid.smooth(draws(4), model=built)
    y = 0.5 * force(2) + NOISE * np.random.default_rng(2).standard_normal(N)
    assert "same bands (compared at the first 6 samples)" in sid.smooth(draws(4), model=model(MILD, y)).attrs["processes"]


@pytest.mark.slow
def test_several_records_follow_each_other() -> None:
    with pm.Model() as built:
        records = [sid.TimeSeries(np.arange(n) * DT, None, squared(seed)[:n]) for seed, n in ((1, 10), (2, 8))]
        latent = {"d": sid.OU(scale=1.0, length=1.0)}
        a = pm.LogNormal("a", 0.0, 0.2)
        sid.ODEFilter("y", SQUARE, records, {"a": a}, noise=NOISE, x0=0.0, latent=latent, substeps=4)
    found = sid.sample_states(draws(40), model=built, random_seed=1)
    assert "bands hold" in found.attrs["processes"] and found.sizes["time"] == 18 and np.isfinite(found["states"]).all()
    error = found["outputs"].mean(("chain", "draw"))[:, 0] - found["measured"][:, 0]
    assert float(np.abs(error).max()) < 4 * NOISE
