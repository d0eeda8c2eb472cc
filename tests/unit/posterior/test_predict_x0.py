"""Where predictions of a record start: estimated states, given ones, and what the result says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from support.pem_cases import OSCILLATOR, TRUTH, record

OTHER = record(seed=7, x0=(0.5, -1.0), noise=0.05, n=60)


@pytest.fixture(scope="module")
def fitted() -> tuple[xr.Dataset, pm.Model]:
    with pm.Model() as model:
        k = pm.Normal("k", 4.0, 0.1)
        sid.ODEFilter("y", OSCILLATOR, OTHER, {"k": k, "c": TRUTH["c"]}, noise=0.05, x0=0.0, substeps=1)
    return xr.Dataset({"k": (("chain", "draw"), [[3.99, 4.0, 4.01]])}), model


@pytest.mark.parametrize(
    "x0, said",
    [
        (None, "estimated from the first 60 samples"),
        ({"z": 0.5}, "estimated from the first 60 samples, where it is not given"),
        ({"z": np.array([0.4, 0.5, 0.6])}, "estimated from the first 60 samples, where it is not given"),
        ({"z": 0.5, "v": -1.0}, "given"),
        (0.0, "given"),
    ],
)
def test_what_is_not_given_is_estimated(fitted: tuple[xr.Dataset, pm.Model], x0: Any, said: str) -> None:
    runs = sid.predict(fitted[0], OTHER, model=fitted[1], x0=x0)
    assert runs.attrs["x0"] == said
    again = sid.predict(fitted[0], OTHER, model=fitted[1], x0=x0, random_seed=1)
    xr.testing.assert_identical(again, sid.predict(fitted[0], OTHER, model=fitted[1], x0=x0, random_seed=1))
    starts = runs[["z", "v"]].isel(time=0).to_array().to_numpy()
    if isinstance(x0, dict):
        np.testing.assert_allclose(starts[0], np.broadcast_to(x0["z"], 3))
    if "estimated" in said:
        np.testing.assert_allclose(starts[1], -1.0, atol=0.15)


def test_a_record_without_outputs_starts_at_zero(fitted: tuple[xr.Dataset, pm.Model]) -> None:
    runs = sid.predict(fitted[0], OTHER.replace(y=None), model=fitted[1])
    assert runs.attrs["x0"] == "zero: nothing is measured" and np.all(runs["z"].isel(time=0) == 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_bands_hold_the_true_motion_as_often_as_they_say(fitted: tuple[xr.Dataset, pm.Model], spread: float) -> None:
    """Parameters are drawn from their posterior, and the start is not known: 90 % bands hold 90 % of the true states."""
    rng, held, first = np.random.default_rng(1), [], []
    for seed in range(60):
        k = 4.0 + spread * rng.standard_normal()
        run = sid.simulate(OSCILLATOR, OTHER, TRUTH | {"k": k}, x0={"z": 0.5, "v": -1.0})
        measured = OTHER.replace(y=run["y"].values + 0.05 * rng.standard_normal(60))
        draws = xr.Dataset({"k": (("chain", "draw"), 4.0 + spread * rng.standard_normal((1, 200)))})
        runs = sid.predict(draws, measured, model=fitted[1], draws=200, random_seed=seed)
        low, high = (runs[["z", "v"]].to_array().quantile(q, "draw") for q in (0.05, 0.95))
        inside = (low <= run[["z", "v"]].to_array()) & (run[["z", "v"]].to_array() <= high)
        held.append(float(inside.mean()))
        first.append(float(inside.isel(time=0).mean()))
    # A band holds most of a motion or little of it: the error of the mean is 0.025. The new record says something of k as well,
    # which the bands do not use.
    assert 0.82 < np.mean(held) < (0.97 if spread == 0 else 0.995)
    assert 0.82 < np.mean(first)
