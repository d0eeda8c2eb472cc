"""What compare_models refuses to compare, and what it says of a comparison."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.solve.substeps import SubstepWarning
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


def test_models_that_their_innovations_contradict_are_noted() -> None:
    model = decay(RECORD.replace(y=Y + 0.05 * np.random.default_rng(0).standard_normal(len(Y))))
    away = xr.DataTree.from_dict({"posterior": 2.0 * IDATA["posterior"].to_dataset()})
    found = sid.compare_models({"near": (model, IDATA), "away": (model, away)})
    assert [name for name, notes in found.notes.items() if any(n.startswith("model: the innov") for n in notes)] == ["away"]
    assert "Innovations contradict 'away'." in found.conclusion
    plain = sid.compare_models({"away": (model, away["posterior"].to_dataset())})  # without a tree
    assert any(n.startswith("model: the innov") for n in plain.notes["away"])


def swing(substeps: int, *, told: bool) -> pm.Model:
    """Four turns a sample interval of two, whose frequency is unknown or not; and a number that nothing depends on."""
    system = sid.System(
        lambda t, x, u, p: (x.v, -(p.w**2) * x.z), states=("z", "v"), params=("w",), observe=lambda t, x, dx, u, p: x.z
    )
    t = 0.5 * np.arange(40)
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 0.5)
        record = sid.TimeSeries(t, None, np.cos(2 * t) + 0.05 * np.cos(40 * t))
        options: Any = {"solver": sid.EK1(order=3), "substeps": substeps, "noise": 0.05, "x0": [1.0, 0.0]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SubstepWarning)
            sid.ODEFilter("y", system, record, {"w": 2 * rate if told else 2.0}, **options)
    return model


@pytest.mark.parametrize("told", [True, False])
def test_steps_that_criteria_depend_on_are_said(told: bool) -> None:
    """Where all draws change alike the posterior does not, and deviances do."""
    rng = np.random.default_rng(0)
    draws = rng.normal(1.0, 0.003, (2, 60 if told else 5))
    idata = xr.DataTree.from_dict({"posterior": xr.Dataset({"rate": (("chain", "draw"), draws)})})
    found = sid.compare_models({"coarse": (swing(1, told=told), idata), "fine": (swing(16, told=told), idata)})
    said = [text for text in found.notes["coarse"] if text.startswith("criteria:")]
    assert len(said) == 1 and "set_substeps(2)" in said[0]
    assert ("at all draws alike" in said[0]) == (not told)
    assert not any(text.startswith("criteria:") for text in found.notes.get("fine", ()))


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


def constant_mean(y: np.ndarray, draws: int, joint: bool, noise: float = 0.5) -> tuple[pm.Model, xr.DataTree]:
    """One mean of all samples, which are one point of the log-likelihood or many, with exact draws of its posterior."""
    precision = 1 + len(y) / noise**2
    values = np.random.default_rng(0).normal(y.sum() / noise**2 / precision, precision**-0.5, (2, draws))
    with pm.Model() as model:
        mu = pm.Normal("mu")
        if joint:
            pm.MvNormal("y", mu * np.ones(len(y)), noise**2 * np.eye(len(y)), observed=y)
        else:
            pm.Normal("y", mu, noise, observed=y)
    return model, xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), values)})})


@pytest.mark.parametrize("draws", [12, 500])
def test_criteria_of_other_points_are_not_subtracted(draws: int) -> None:
    """One likelihood, as twelve numbers and as one: the same WAIC, and once a difference of 139 between them."""
    y = 1 + 0.5 * np.random.default_rng(0).standard_normal(12)
    found = sid.compare_models({"each": constant_mean(y, draws, False), "joint": constant_mean(y, draws, True)})
    table = found.table
    assert abs(table["dDIC"]).max() < 1e-6
    assert np.isnan(table.loc[table["WAIC"].idxmax(), "dWAIC"]) and table["weight_stacking"].isna().all()
    notes = [n for some in found.notes.values() for n in some if n.startswith("WAIC and LOO: ")]
    assert len(notes) == (draws > 12) or "points, and that of" in notes[0]


def test_a_sample_that_is_certain_counts_as_measured() -> None:
    """At the limit of a sensor, far below the motion, a likelihood of one for all draws; an unmeasured sample is no point."""
    y = np.minimum(9 * np.exp(-T), 2.0)
    y[-1] = np.nan
    record, certain = RECORD.replace(y=y), int(np.sum(T < 1.3))

    def model(noise: float) -> pm.Model:
        with pm.Model() as model:
            params, limits = {"rate": pm.LogNormal("rate", 0.0, 0.5)}, (-np.inf, 2.0)
            sid.ODEFilter("y", DECAY, record, params, noise=noise, x0=9.0, solver=sid.EK1(order=3), substeps=1, limits=limits)
        return model

    draws = xr.Dataset({"rate": (("chain", "draw"), np.random.default_rng(0).normal(1.0, 0.02, (2, 50)))})
    idata = xr.DataTree.from_dict({"posterior": draws})
    found = sid.compare_models({"small": (model(0.01), idata), "large": (model(0.3), idata)})
    assert found.waic["small"].n_data_points == found.waic["large"].n_data_points == len(T) - 1
    assert certain > 0 and np.all(found.waic["small"].elpd_i[:certain] == 0) and found.table["dWAIC"].notna().all()


def test_models_without_likelihoods_are_refused_and_points_that_tell_nothing_have_a_value() -> None:
    with pm.Model() as simulated:
        sid.ODESimulator("y", DECAY, RECORD, {"rate": pm.Normal("mu")}, x0=1.0)
    draws = xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), np.zeros((2, 50)))})})
    with pytest.raises(ValueError, match=r"model 'a': \['y'\] have no likelihood .* sample_abc_ns"):
        sid.compare_models({"a": (simulated, draws)})
    with pm.Model() as flat:
        pm.Normal("mu")
        pm.Normal("y", 0.0, 1.0, observed=np.arange(3.0))
    found = sid.compare_models({"flat": (flat, draws)})
    assert found.table.loc["flat", "LOO"] == pytest.approx(5 + 3 * np.log(2 * np.pi)) and not found.table.loc["flat", "bad_k"]
