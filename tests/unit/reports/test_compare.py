"""What compare_models refuses to compare, and what it says of a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from support.tiny import DECAY, IDATA, POSTERIOR, RECORD, T, Y


def decay(record: sid.TimeSeries = RECORD, **options: Any) -> pm.Model:
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        solver = sid.EK1(order=3)
        sid.ODEFilter("y", DECAY, record, {"rate": rate}, noise=0.05, x0=1.0, solver=solver, substeps=1, **options)
    return model


def run_of(y: Any, **draws: Any) -> xr.DataTree:
    """A sequential run."""
    posterior = xr.Dataset({name: (("chain", "draw"), values) for name, values in draws.items()})
    statistics = xr.Dataset({"log_marginal_likelihood": (("chain", "stage"), np.array([[-3.0], [-3.1]]))})
    data = xr.Dataset({"y": ("t", y)})
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": statistics, "observed_data": data})


def test_censored_and_uncensored_models_are_not_compared() -> None:
    """Densities depend on the unit of y, and probabilities do not: the verdict turned round from metres to millimetres."""
    clipped = RECORD.replace(y=np.minimum(Y, 0.8))
    pairs = {"plain": (decay(clipped), IDATA), "limits": (decay(clipped, limits=(None, 0.8)), IDATA)}
    caught = int((Y >= 0.8).sum())
    message = rf"models 'plain' and 'limits' cannot be compared: of 'y', 0 of 20 samples .* first, {caught} in the second"
    with pytest.raises(ValueError, match=message):
        sid.compare_models(pairs)
    both = {"limits": pairs["limits"], "again": (decay(clipped, limits=(-9.0, 0.8)), IDATA)}
    assert sid.compare_models(both).table["LOO"].notna().all()
    with pm.Model() as normal:
        pm.Normal("z", pm.LogNormal("rate"), 0.3, observed=np.minimum(Y, 0.8))
    with pm.Model() as censored:
        pm.Censored("y", pm.Normal.dist(pm.LogNormal("rate"), 0.3), None, 0.8, observed=np.minimum(Y, 0.8))
    with pytest.raises(ValueError, match=r"of 'z', 0 of 20 samples count as a probability .* Give both models the same limits"):
        sid.compare_models({"normal": (normal, IDATA), "censored": (censored, IDATA)})


def test_an_evidence_is_that_of_the_same_model_and_data() -> None:
    draws = POSTERIOR["rate"].to_numpy()
    pairs = {"a": (decay(), IDATA)}
    found = sid.compare_models(pairs, evidence={"a": run_of(Y, rate=draws)}).table
    assert found.loc["a", "log_evidence"] == pytest.approx(-3.05, abs=0.01)
    with pytest.raises(ValueError, match=r"evidence\['a'\] was sampled on other data"):
        sid.compare_models(pairs, evidence={"a": run_of(Y + 3.0, rate=draws)})
    with pytest.raises(ValueError, match=r"evidence\['a'\] lacks the variables \['rate'\] of its model and has \['mu'\]"):
        sid.compare_models(pairs, evidence={"a": run_of(Y, mu=draws)})


def test_a_record_of_the_fit_is_noted_where_it_validates() -> None:
    new = RECORD.replace(y=np.exp(-T) + 0.05 * np.random.default_rng(2).standard_normal(20))

    def notes(*records: sid.TimeSeries) -> list[str]:
        found = sid.compare_models({"a": (decay(), IDATA)}, sid.Validation(records, x0={"level": 1.0})).notes
        return [n for n in found.get("a", ()) if n.startswith("validation: ")]

    assert not notes(new)
    assert notes(RECORD) == [
        "validation: 20 of the 20 samples of the record were used for the fit; RMSE and fit validate nothing there."
    ]
    (note,) = notes(new, RECORD[5:])
    assert "15 of the 15 samples of record 2 were used" in note
    lag = sid.System(
        lambda t, x, u, p: p.rate * (u.F - x.level),
        states=("level",),
        inputs=("F",),
        params=("rate",),
        observe=lambda t, x, dx, u, p: x.level,
    )
    bare = sid.TimeSeries(np.arange(60) / 10, {"F": np.sin((np.arange(60) / 4) ** 1.3)})
    run = sid.simulate(lag, bare, {"rate": 1.0}, x0=0.0)["y"].to_numpy()
    pushed = bare.replace(y=run + 0.1 * np.random.default_rng(3).standard_normal(60))
    with pm.Model() as model:
        sid.ODEFilter("y", lag, pushed, {"rate": pm.LogNormal("rate")}, noise=0.1, x0=0.0, substeps=2)
    (note,) = sid.compare_models({"a": (model, IDATA)}, sid.Validation(pushed, x0={"level": 0.0})).notes["a"]
    assert "60 of the 60 samples of the record were used" in note


@pytest.mark.parametrize("seed", range(4))
def test_weights_of_one_model_that_is_given_twice_are_said_to_be_chance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 3))
    y = X @ np.full(3, 0.3) + rng.normal(size=60)

    def fitted(columns: np.ndarray) -> tuple[pm.Model, xr.DataTree]:
        covariance = np.linalg.inv(np.eye(columns.shape[1]) / 9 + columns.T @ columns)
        draws = rng.multivariate_normal(covariance @ columns.T @ y, covariance, size=(4, 100))
        with pm.Model() as model:
            b = pm.Normal("b", 0.0, 3.0, shape=columns.shape[1])
            pm.Normal("y", pm.math.dot(columns, b), 1.0, observed=y)
        return model, xr.DataTree.from_dict({"posterior": xr.Dataset({"b": (("chain", "draw", "term"), draws)})})

    found = sid.compare_models({"one": fitted(X), "other": fitted(X)})
    assert found.table["weight_stacking"].max() > 0.9
    best, worse = found.table.index
    (note,) = [n for n in found.notes[worse] if n.startswith("stacking weight: ")]
    assert f"LOO does not decide between '{best}' and '{worse}' (deviances 0." in note
    assert not any("stacking" in n for n in found.notes.get(best, ())) and note in repr(found)
    y = y + 9 * X[:, 0]  # without the first column nothing is explained
    clear = sid.compare_models({"all": fitted(X), "without": fitted(X[:, 1:])})
    assert not any("stacking" in n for some in clear.notes.values() for n in some)
