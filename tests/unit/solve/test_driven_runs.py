"""Free runs on paths that are drawn: the system follows its path, and paths have the covariance of their process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.solve.driven_runs import drawn_paths

SYSTEM = sid.System(
    lambda t, x, u, p: (x.v, u.F + u.d - p.c * x.v - p.k * x.z),
    states=("z", "v"),
    inputs=("F", "d"),
    params=("c", "k"),
    observe=lambda t, x, dx, u, p: (x.z, dx.v + u.d),
)
TIMES = np.arange(12) * 0.1
F = np.sin(3.0 * TIMES)
PARAMS = {"c": 0.4, "k": 9.0}
START = {"z": 0.1, "v": 0.0}


def test_the_system_follows_its_path() -> None:
    """A line with a random slope and level, whose values at the samples are all of it."""
    line = sid.IntegratedWiener(order=1, scale=1e-9, start=(0.7, 2.0))
    record = sid.TimeSeries(TIMES, F, intersample="foh", inputs=("F",))
    run = sid.simulate(SYSTEM, record, PARAMS, x0=START, latent={"d": line}, random_seed=4)
    assert run["d"].dims == ("time",) and np.ptp(run["d"].to_numpy()) > 0.1
    full = sid.TimeSeries(TIMES, np.stack([F, run["d"]], axis=1), intersample="foh")
    known = sid.simulate(SYSTEM, full, PARAMS, x0=START, substeps=8)
    for name in ("y1", "y2", "v"):
        np.testing.assert_allclose(run[name], known[name], rtol=1e-6, atol=1e-8)


def test_a_parameter_drifts_from_its_value() -> None:
    record = sid.TimeSeries(TIMES, np.stack([F, F], axis=1), intersample="foh")
    sets = {"c": 0.4, "k": np.array([4.0, 9.0])}
    still = sid.simulate(SYSTEM, record, sets, x0=START, varying={"k": sid.RandomWalk(scale=1e-9)}, random_seed=1)
    np.testing.assert_allclose(still["k"], np.array([[4.0], [9.0]]) * np.ones(12), atol=1e-7)
    known = sid.simulate(SYSTEM, record, sets, x0=START, substeps=8)
    np.testing.assert_allclose(still["y1"], known["y1"], rtol=1e-6, atol=1e-8)
    moved = sid.simulate(SYSTEM, record, sets, x0=START, varying={"k": sid.RandomWalk(scale=2.0)}, random_seed=1)
    again = sid.simulate(SYSTEM, record, sets, x0=START, varying={"k": sid.RandomWalk(scale=2.0)}, random_seed=1)
    assert np.abs(moved["k"][:, -1] - sets["k"]).min() > 1e-3
    assert np.array_equal(moved["y1"], again["y1"]) and not np.allclose(moved["y1"], known["y1"], atol=1e-4)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"latent": {"d": sid.OU(scale=1.0, rate=1.0)}, "method": "implicit"}, "leave out distance, and method='implicit'"),
        ({"latent": {"force": sid.OU(scale=1.0, rate=1.0)}}, "latent names 'force'"),
        ({"latent": {"d": sid.OU(scale=1.0, rate=1.0)}, "random_seed": -1}, "random_seed is -1"),
    ],
)
def test_what_has_no_paths_is_refused(options: dict[str, Any], said: str) -> None:
    record = sid.TimeSeries(TIMES, F, intersample="foh", inputs=("F",))
    with pytest.raises(ValueError, match=said):
        sid.simulate(SYSTEM, record, PARAMS, x0=START, **options)


@pytest.mark.slow
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_paths_have_the_covariance_of_the_kernel(nu: float) -> None:
    process, steps = sid.Matern(nu=nu, scale=0.7, length=0.5), np.array([0.05, 0.05, 0.3, 0.7])
    n = 40_000
    paths = drawn_paths(process.kind, np.tile(process.values, (n, 1)), steps, np.random.default_rng(1))
    t = np.concatenate([[0.0], np.cumsum(steps)])
    a = np.sqrt(2 * nu) * np.abs(t[:, None] - t) / 0.5
    polynomial = {0.5: 1.0, 1.5: 1 + a, 2.5: 1 + a + a**2 / 3}[nu]
    np.testing.assert_allclose(paths.T @ paths / n, 0.49 * polynomial * np.exp(-a), atol=5 * 0.49 * np.sqrt(2 / n))
