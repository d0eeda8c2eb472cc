"""Specimens with unlike parameters that unrecorded forces push: a filter of them all is a filter for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from support.pushed import LENGTHS, OWN, SHARED, build, records

pytestmark = pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")


def of(r: int) -> dict[str, Any]:
    return SHARED | {name: v[r] for name, v in OWN.items()}


@pytest.fixture(scope="module")
def specimens() -> pm.Model:
    return build(records(), 3)


@pytest.fixture(scope="module")
def singles() -> list[pm.Model]:
    return [build(record) for record in records()]


def check_likelihood(together: pm.Model, alone: list[pm.Model]) -> None:
    """Log-likelihood of blocks, and the gradient, of two parameter sets."""
    target, ones = sid.Target(together), [sid.Target(model) for model in alone]
    point = SHARED | OWN
    q = target.unconstrained({k: np.array([v, np.asarray(v) * 1.1]) for k, v in point.items()})
    blocks = target.log_likelihood(q, edges=[0, 10, 32, sum(LENGTHS)])
    _, _, whole, slope = target.value_and_gradient(q)
    total, gradient, labels = np.zeros(2), np.zeros((2, target.size)), list(target.labels)
    for r, one in enumerate(ones):
        _, _, value, d = one.value_and_gradient(one.unconstrained({k: np.array([v, v * 1.1]) for k, v in of(r).items()}))
        total += value
        for j, label in enumerate(one.labels):
            (where,) = [i for i, name in enumerate(labels) if name in (label, f"{label}[{r}]")]
            gradient[:, where] += d[:, j]
    np.testing.assert_allclose(blocks.sum(axis=1), total, rtol=1e-10)
    np.testing.assert_allclose(whole, total, rtol=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-8, atol=1e-8 * np.abs(gradient).max())


def test_log_likelihood_and_gradient(specimens: pm.Model, singles: list[pm.Model]) -> None:
    check_likelihood(specimens, singles)


@pytest.mark.slow
def test_a_diffusion_for_each_step_and_outliers() -> None:
    options: dict[str, Any] = {"diffusion": "dynamic", "outliers": True}
    check_likelihood(build(records(), 3, **options), [build(record, **options) for record in records()])


def draws(point: dict[str, Any], count: int = 1) -> xr.Dataset:
    return xr.Dataset(
        {
            k: (("chain", "draw", *(f"{k}_{i}" for i in range(np.ndim(v)))), np.broadcast_to(v, (1, count, *np.shape(v))))
            for k, v in point.items()
        }
    )


def test_states_forces_and_innovations(specimens: pm.Model, singles: list[pm.Model]) -> None:
    point = SHARED | OWN
    smoothed, left = sid.smooth(point, model=specimens), sid.innovations(draws(point), model=specimens)
    paths = sid.sample_states(point, model=specimens, random_seed=1)
    names = [v for name in ("states", "outputs", "inputs", "parameters", "coloured_noise") for v in (name, f"{name}_std")]
    for r, one in enumerate(singles):
        here, alone = smoothed["record"].to_numpy() == r, sid.smooth(of(r), model=one)
        for name in names:
            np.testing.assert_allclose(smoothed[name][0, 0, here], alone[name][0, 0], rtol=1e-7, atol=1e-9, err_msg=name)
        own = sid.innovations(draws(of(r)), model=one)
        np.testing.assert_allclose(left["standardised"][here], own["standardised"], rtol=1e-8)
        # The numbers of a path are drawn record by record, so that those of the first are those of its own filter.
        assert np.isfinite(paths["inputs"][0, 0, here]).all()
    first = sid.sample_states(of(0), model=singles[0], random_seed=1)
    for name in ("states", "inputs", "parameters", "coloured_noise"):
        np.testing.assert_allclose(paths[name][0, 0, : LENGTHS[0]], first[name][0, 0], rtol=1e-7, atol=1e-9, err_msg=name)
    check_figures(smoothed, paths)


def check_figures(smoothed: xr.Dataset, paths: xr.Dataset) -> None:
    """Rows of states, force, drift and noise, with what was smoothed or drawn of one record."""
    pytest.importorskip("matplotlib").use("Agg")
    rows = ["z", "v", "d", "c", "noise y"]
    for states in (smoothed, paths):
        grid = sid.plot_states(states, record=1)
        assert [panel.get_ylabel() for panel in grid] == rows
        here, dims = states["record"] == 1, {"chain": 0, "draw": 0, "input": 0}
        (line,) = [one for one in grid[2].get_lines() if len(one.get_xdata()) == LENGTHS[1]]
        np.testing.assert_array_equal(line.get_ydata(), states["inputs"][dims][here])
    (noise,) = sid.plot_states(smoothed, record=2, var_names="noise y")
    (line,) = [one for one in noise.get_lines() if len(one.get_xdata()) == LENGTHS[2]]
    np.testing.assert_array_equal(line.get_ydata(), smoothed["coloured_noise"][0, 0, smoothed["record"] == 2, 0])


def test_predictions_take_the_parameters_of_a_record(specimens: pm.Model, singles: list[pm.Model]) -> None:
    new = records()[0].replace(y=None)
    with pytest.raises(ValueError, match=r"the records have parameters \['c', 'k'\] of their own; say which to take"):
        sid.predict(draws(SHARED | OWN, 5), new, model=specimens, x0=0.0)
    for r in (1, 2):
        together = sid.predict(draws(SHARED | OWN, 5), new, model=specimens, x0=0.0, record=r, substeps=8, random_seed=2)
        alone = sid.predict(draws(of(r), 5), new, model=singles[r], x0=0.0, substeps=8, random_seed=2)
        for name in ("y", "d", "c"):
            np.testing.assert_allclose(together[name], alone[name], rtol=1e-9, err_msg=name)
        assert np.all(together["c"][:, 0] == OWN["c"][r]) and float(together["d"].std()) > 0.2
