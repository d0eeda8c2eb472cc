"""Where a run ends: as wide as the posterior by a likelihood, with probabilities of models as by quadrature."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.ode_simulator import batch_distance
from pm_sysid.sampling.abc.nested_sampling import Run
from pm_sysid.sampling.abc.settings import Thresholds

LAG = sid.System(
    lambda t, x, u, p: (p.g * u.u - x.z) / p.tau, states=("z",), inputs=("u",), params=("tau", "g"),
    observe=lambda t, x, dx, u, p: x.z,
)  # fmt: skip
NOISE, N = 0.2, 64


def steps(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A force that is constant for eight samples at a time, and noisy positions."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.choice([0.0, 1.0, -1.0], N // 8), 8)
    return u, response(1.0, u) * 2.0 + NOISE * rng.standard_normal(N)


def response(tau: float, u: np.ndarray) -> np.ndarray:
    """With a gain of one, exactly."""
    z, decay = np.zeros(N), np.exp(-0.1 / tau)
    for k in range(1, N):
        z[k] = decay * z[k - 1] + (1 - decay) * u[k - 1]
    return z


def model(u: np.ndarray, y: np.ndarray, gain: bool, **options: object) -> pm.Model:
    record = sid.TimeSeries(0.1 * np.arange(N), u, y, intersample="zoh", inputs="u")
    with pm.Model() as built:
        params = {"tau": pm.Uniform("tau", 0.1, 5.0), "g": pm.Uniform("g", 0.0, 6.0) if gain else 2.0}
        sid.ODESimulator("y", LAG, record, params, x0=0.0, substeps=1, **options)  # type: ignore[arg-type]
    return built


@pytest.mark.slow
def test_widths_are_those_of_a_likelihood_and_probabilities_those_of_quadrature() -> None:
    """Left to fall, thresholds had ended at the least distance: without any width, and with the true model at zero."""
    tau, g, ratios, off = np.linspace(0.1, 5, 400), np.linspace(0, 6, 301), [], []
    for seed in range(8):
        u, y = steps(seed)
        runs = np.array([response(t, u) for t in tau])
        squares = y @ y - 2 * np.outer(runs @ y, g) + np.outer((runs**2).sum(axis=1), g**2)
        weight = np.exp(-0.5 * (squares - squares.min()) / NOISE**2)
        one, two = weight[:, 100].mean(), weight.mean()
        share = weight / weight.sum()
        mean = share.sum(axis=1) @ tau
        sd = np.sqrt(share.sum(axis=1) @ (tau - mean) ** 2)
        alone = sid.sample_abc_ns({"two": model(u, y, True)}, 500, random_seed=seed, progressbar=False)
        assert alone.attrs["stopped"] == "converged"
        draws = alone["two/posterior"]["tau"].values
        assert abs(draws.mean() - mean) < 0.3 * sd
        ratios.append(draws.std() / sd)
        both = sid.sample_abc_ns(
            {"one": model(u, y, False), "two": model(u, y, True)}, 500, random_seed=seed, progressbar=False
        )
        off.append(float(both["populations"]["model_probability"][0]) - one / (one + two))
    assert 0.85 < np.mean(ratios) < 1.15 and 0.7 < min(ratios) < max(ratios) < 1.3
    assert np.median(np.abs(off)) < 0.1 and max(np.abs(off)) < 0.5


def test_the_lowest_threshold_is_known_for_named_distances_alone() -> None:
    u, y = steps(0)
    assert batch_distance(model(u, y, True)).narrowest(2) == pytest.approx(1 + 4 / N)
    assert batch_distance(model(u, y, True)).narrowest(2, 9.0) == pytest.approx(1 + 13 / N)
    assert batch_distance(model(u, y, True, distance="nrmse")).narrowest(2) == pytest.approx((1 + 4 / N) ** 0.5)
    assert batch_distance(model(u, y, True, distance=lambda a, b: float(np.sum((a - b) ** 2)))).narrowest(2) == 1.0
    assert batch_distance(model(u, y, True, noise=0.2)).narrowest(2) == 1.0


@pytest.mark.parametrize("narrowest, ends", [(1.0, None), (1.05, "converged")])
def test_particles_at_one_distance_end_a_run_only_where_a_lowest_threshold_is_known(narrowest: float, ends: str | None) -> None:
    """A distance that is a whole number has many particles at the same one, and lower ones all the same."""
    run: Any = Run.__new__(Run)
    run.simulations, run.thresholds = SimpleNamespace(narrowest=narrowest), Thresholds()
    run.history = [{"threshold": 200.0, "best": 5.0}, {"threshold": float(np.nextafter(5.0, 6.0)), "best": 5.0}]
    assert run._converged() == ends
