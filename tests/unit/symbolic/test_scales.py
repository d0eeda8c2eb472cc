"""Scales that a prior may make negative: no likelihood there, and nothing to pay where a prior is positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.symbolic.scales import never_negative, not_negative

SYSTEM = sid.System(
    lambda t, x, u, p: -p.a * x.z + u.d,
    states=("z",),
    inputs=("d",),
    params=("a",),
    observe=lambda t, x, dx, u, p: x.z,
)
T = np.arange(12) / 10
RECORD = sid.TimeSeries(T, None, np.exp(-T) + 0.02 * np.random.default_rng(1).standard_normal(12))

#: What a scale may be of.
PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "noise": lambda s: {"noise": s},
    "noise of an output": lambda s: {"noise": {"y": s}},
    "StudentT": lambda s: {"noise": sid.StudentT(nu=4.0, scale=s)},
    "x0_std": lambda s: {"x0_std": {"z": s}},
    "OU": lambda s: {"latent": {"d": sid.OU(scale=s, length=1.0)}},
    "length": lambda s: {"latent": {"d": sid.Matern(nu=1.5, scale=0.1, length=s)}},
    "diffusion": lambda s: {"solver": sid.EK1(diffusion=s)},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_negative_scale_has_no_likelihood(place: str) -> None:
    with pm.Model() as model:
        options = {"noise": 0.02, "latent": {"d": sid.OU(scale=0.1, length=1.0)}, "x0": {"z": 1.0}}
        sid.ODEFilter("y", SYSTEM, RECORD, {"a": 1.0}, substeps=4, **(options | PLACES[place](pm.Normal("s", 0.1, 0.1))))
    value = model.compile_fn(model.logp(vars=model["y"]), point_fn=True)
    assert np.isfinite(value({"s": 0.02})) and value({"s": -0.02}) == -np.inf


def test_a_prior_that_reaches_below_zero_counts_each_scale_once() -> None:
    """Posterior and evidence are those of positive scales, as with the distributions of PyMC."""
    decay = sid.System(lambda t, x, u, p: -p.a * x.z, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z)
    with pm.Model():
        sid.ODEFilter("y", decay, RECORD, {"a": 1.0}, noise=pm.Normal("s", 0.02, 0.02), x0=1.0)
        found = sid.sample(draws=400, chains=2, cores=1, random_seed=1, progressbar=False)
    grid = np.linspace(1e-4, 0.2, 20_001)
    squares = float(np.sum((RECORD.y - np.exp(-T)) ** 2))
    log_density = -0.5 * squares / grid**2 - 12 * np.log(grid * np.sqrt(2 * np.pi))
    log_density += -0.5 * ((grid - 0.02) / 0.02) ** 2 - np.log(0.02 * np.sqrt(2 * np.pi))
    weights = np.exp(log_density - log_density.max())
    evidence = sid.log_evidence(found)
    exact = log_density.max() + np.log(weights.sum() * (grid[1] - grid[0]))
    assert float(found.posterior["s"].min()) > 0 and found.attrs["trusted"]
    assert evidence.value == pytest.approx(exact, abs=4 * evidence.error + 0.005)
    assert float(found.posterior["s"].mean()) == pytest.approx(weights @ grid / weights.sum(), rel=0.02)


def test_of_what_an_expression_shows_to_be_positive_nothing_is_asked() -> None:
    with pm.Model():
        half, wide = pm.HalfNormal("half", shape=2), pm.Normal("wide")
        positive = [
            half, half[0], 2 * half[1] + 1, pm.math.exp(wide), pt.sqr(wide) + 0.1, pt.maximum(0.0, half[0]),
            pm.Uniform("u", 0.0, 1.0), pm.TruncatedNormal("t", 1.0, lower=0.1), pm.LogNormal("l"), pm.HalfStudentT("h", 3),
            pt.constant(2.0), pm.Exponential("e", 1.0) / 3,
        ]  # fmt: skip
        other = [wide, -half[0], half[0] - 1, pm.Uniform("v", -1.0, 1.0), pm.TruncatedNormal("w", upper=1.0), pt.dscalar()]
    assert all(map(never_negative, positive)) and not any(map(never_negative, other))
    assert not_negative(half) is half and not_negative(0.3) == 0.3
    np.testing.assert_array_equal(not_negative(pt.as_tensor([-1.0, 2.0]) * pt.cast(1, "float64")).eval(), [np.nan, 2.0])
