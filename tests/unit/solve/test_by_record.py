"""Parameters, noise and initial states by record: a filter of several specimens is a filter for each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.solve.by_record import noise_by_record, params_by_record

STIFFNESS = np.array([3.5, 4.0, 4.6])
SYSTEM = sid.models.duffing()


def records() -> list[sid.TimeSeries]:
    rng, found = np.random.default_rng(0), []
    for n in (25, 40, 30):
        y = 0.3 * rng.standard_normal(n)
        y[7] = np.nan
        found.append(sid.TimeSeries(np.arange(n) * 0.05, 3 * rng.standard_normal(n), y))
    return found


def specimens(diffusion: Any, **options: Any) -> pm.Model:
    """A model with a stiffness and a noise for each record, and the cubic term in common."""
    with pm.Model(coords={"specimen": range(3)}) as model:
        k = pm.Normal("k", pm.Normal("mu", 4, 1), 0.5, dims="specimen")
        noise = pm.HalfNormal("noise", 0.2, dims="specimen")
        params = {"m": 1.0, "c": 0.3, "k": k, "k3": pm.LogNormal("k3", -0.7, 0.5)}
        solver = sid.EK1(order=2, diffusion=diffusion)
        sid.ODEFilter("y", SYSTEM, records(), params, noise=noise, substeps=2, solver=solver, **{"x0": 0.0, **options})
    return model


def single(record: sid.TimeSeries, diffusion: Any) -> pm.Model:
    with pm.Model() as model:
        params = {"m": 1.0, "c": 0.3, "k": pm.Normal("k", 4, 1), "k3": pm.LogNormal("k3", -0.7, 0.5)}
        noise = pm.HalfNormal("noise", 0.2)
        sid.ODEFilter(
            "y", SYSTEM, record, params, noise=noise, x0=0.0, substeps=2, solver=sid.EK1(order=2, diffusion=diffusion)
        )
    return model


POINT = {"mu": 4.1, "k": STIFFNESS, "noise": np.array([0.1, 0.15, 0.25]), "k3": 0.55}


@pytest.mark.parametrize("diffusion", ["mle", 2.0, "dynamic"])
@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_log_likelihood_is_that_of_a_filter_for_each_record(diffusion: Any) -> None:
    """Of all samples, of blocks that go on from a state in the middle of a record, and its gradient."""
    target = sid.Target(specimens(diffusion))
    q = target.unconstrained({k: np.array([v, np.asarray(v) * 1.1]) for k, v in POINT.items()})
    edges = [0, 10, 32, 65, 95]
    blocks = target.log_likelihood(q, edges=edges)
    prior, _, whole, slope = target.value_and_gradient(q)
    assert np.isfinite(prior).all()
    singles = [sid.Target(single(record, diffusion)) for record in records()]
    total, gradient = np.zeros(2), np.zeros((2, target.size))
    labels = list(target.labels)
    for r, one in enumerate(singles):
        own = {"k": STIFFNESS[r], "noise": POINT["noise"][r], "k3": POINT["k3"]}
        x = one.unconstrained({k: np.array([v, v * 1.1]) for k, v in own.items()})
        _, _, value, d = one.value_and_gradient(x)
        total += value
        for j, label in enumerate(one.labels):
            where = [i for i, name in enumerate(labels) if name == label or name == f"{label}[{r}]"]
            assert len(where) == 1, (label, labels)
            gradient[:, where[0]] += d[:, j]
    np.testing.assert_allclose(blocks.sum(axis=1), total, rtol=1e-10)
    np.testing.assert_allclose(whole, total, rtol=1e-10)
    np.testing.assert_allclose(slope, gradient, rtol=1e-8, atol=1e-8 * np.abs(gradient).max())


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_first_samples_by_their_own_diffusion_are_those_of_their_records() -> None:
    """What IBIS sees of records that it has reached does not depend on those it has not."""
    target, few = sid.Target(specimens("mle")), sid.Target(_first_two())
    q = target.unconstrained({k: np.asarray(v)[None] for k, v in POINT.items()})
    part = {k: np.asarray(v)[None, :2] if np.ndim(v) else np.asarray(v)[None] for k, v in POINT.items()}
    sums, _ = target.start(q, [0, 65], diffusion_samples=65)
    np.testing.assert_allclose(sums[:, 0], few.log_likelihood(few.unconstrained(part)), rtol=1e-10)


def _first_two() -> pm.Model:
    with pm.Model() as model:
        k = pm.Normal("k", pm.Normal("mu", 4, 1), 0.5, shape=2)
        params = {"m": 1.0, "c": 0.3, "k": k, "k3": pm.LogNormal("k3", -0.7, 0.5)}
        noise = pm.HalfNormal("noise", 0.2, shape=2)
        sid.ODEFilter("y", SYSTEM, records()[:2], params, noise=noise, x0=0.0, substeps=2, solver=sid.EK1(order=2))
    return model


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_states_innovations_and_predictions_are_those_of_the_records() -> None:
    model, point = specimens("mle"), dict(POINT)
    smoothed, paths = sid.smooth(point, model=model), sid.sample_states(point, model=model, random_seed=1)
    tree = _draws(point)
    left = sid.innovations(tree, model=model)["innovation"].to_numpy()
    for r, record in enumerate(records()):
        one, own = single(record, "mle"), {"k": STIFFNESS[r], "noise": POINT["noise"][r], "k3": POINT["k3"]}
        here = smoothed["record"].to_numpy() == r
        alone = sid.smooth(own, model=one)
        for name in ("states", "states_std", "outputs", "outputs_std"):
            np.testing.assert_allclose(smoothed[name][0, 0, here], alone[name][0, 0], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(left[here], sid.innovations(_draws(own), model=one)["innovation"].to_numpy(), atol=1e-10)
        run = sid.predict(tree, record, model=model, record=r, x0=0.0, draws=1, substeps=4)
        same = sid.simulate(SYSTEM, record, dict(m=1.0, c=0.3, k=STIFFNESS[r], k3=0.55), x0=0.0, substeps=4)
        np.testing.assert_allclose(run["y"][0], same["y"], rtol=1e-9, atol=1e-12)
    assert np.isfinite(paths["states"]).all()


def _draws(point: dict[str, Any]) -> Any:
    return xr.Dataset(
        {k: (("chain", "draw", *(f"{k}_{i}" for i in range(np.ndim(v)))), np.asarray(v)[None, None]) for k, v in point.items()}
    )


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_a_prediction_says_whose_parameters_it_needs() -> None:
    model, tree = specimens(1.0), _draws(POINT)
    record = records()[0]
    with pytest.raises(ValueError, match=r"the records have parameters \['k'\] of their own; say which to take"):
        sid.predict(tree, record, model=model, x0=0.0)
    with pytest.raises(ValueError, match="record is 3; give a whole number from 0 to 2"):
        sid.predict(tree, record, model=model, x0=0.0, record=3)
    with pytest.raises(ValueError, match=r"params has the unknown names \['q'\]"):
        sid.predict(tree, record, model=model, x0=0.0, params={"q": 1.0})
    new = sid.predict(tree, record, model=model, x0=0.0, draws=1, params={"k": 2 * model["mu"]}, substeps=4)
    same = sid.simulate(SYSTEM, record, dict(m=1.0, c=0.3, k=8.2, k3=0.55), x0=0.0, substeps=4)
    np.testing.assert_allclose(new["y"][0], same["y"], rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_log_likelihood_by_record_is_the_sum_over_its_samples() -> None:
    model = specimens(1.0)
    rng = np.random.default_rng(0)
    point = {k: np.asarray(v) * (1 + 0.01 * rng.standard_normal((2, 60, *np.shape(v)))) for k, v in POINT.items()}
    tree = xr.Dataset({k: (("chain", "draw", *(f"{k}_{i}" for i in range(v.ndim - 2))), v) for k, v in point.items()})
    found = sid.log_likelihood_by_record(tree, model=model)["log_likelihood"]["y"]
    target = sid.Target(model)
    q = target.unconstrained({k: v.reshape(120, *v.shape[2:]) for k, v in point.items()})
    want = target.log_likelihood(q, edges=[0, 25, 65, 95]).reshape(2, 60, 3)
    np.testing.assert_allclose(found.to_numpy(), want, rtol=1e-9)
    with pytest.raises(ValueError, match="has a single record"):
        sid.log_likelihood_by_record(_draws({"k": 4.0, "noise": 0.1, "k3": 0.5}), model=single(records()[0], 1.0))


def test_vectors_noise_of_several_outputs_and_starts_by_record() -> None:
    both = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.k[0] * x.z - p.k[1] * x.v),
        states=("z", "v"),
        inputs=("F",),
        params={"k": 2},
        observe=lambda t, x, dx, u, p: {"z": x.z, "v": x.v},
    )
    rows = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(params_by_record(both, {"k": rows}, 3).eval(), rows)
    np.testing.assert_array_equal(params_by_record(both, {"k": rows[1]}, 3).eval(), rows[1])
    np.testing.assert_array_equal(params_by_record(both, {"k": pt.constant(rows)}, 3).eval(), rows)
    entries = params_by_record(both, {"k[0]": [1.0, 2.0, 3.0], "k[1]": 5.0}, 3).eval()
    np.testing.assert_array_equal(entries, [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    np.testing.assert_array_equal(
        noise_by_record(both, {"z": [1.0, 2.0, 3.0], "v": 0.5}, 3).eval(), [[1, 0.5], [2, 0.5], [3, 0.5]]
    )
    np.testing.assert_array_equal(noise_by_record(both, rows + 1, 3).eval(), rows + 1)
    np.testing.assert_array_equal(noise_by_record(both, [1.0, 2.0], 3).eval(), [1.0, 2.0])
    with pytest.raises(ValueError, match="a standard deviation must be positive"):
        noise_by_record(both, rows, 3)
    with pytest.raises(ValueError, match="noise has 3 columns; give one for each output"):
        noise_by_record(both, np.ones((3, 3)), 3)


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_starts_by_record_are_a_list_of_starts() -> None:
    by_array = specimens(1.0, x0={"z": [0.1, 0.2, 0.3], "v": 0.0})
    by_list = specimens(1.0, x0=[{"z": z, "v": 0.0} for z in (0.1, 0.2, 0.3)])
    ones = [sid.Target(m) for m in (by_array, by_list)]
    q = ones[0].unconstrained({k: np.asarray(v)[None] for k, v in POINT.items()})
    np.testing.assert_array_equal(ones[0].log_likelihood(q), ones[1].log_likelihood(q))


@pytest.mark.parametrize(
    "params, message",
    [
        ({"k": np.ones(2)}, r"params\['k'\] has 2 rows for 3 records; give one value for all records, or a row for each"),
        ({"k": np.array([1.0, np.nan, 2.0])}, r"params\['k'\] is .*nan.*give finite numbers"),
        ({"k": np.ones((3, 2))}, "params"),
        ({"k": pt.ones(5)[:2] * pt.dscalar("k")}, r"params\['k'\] has 2 rows for 3 records"),
    ],
)
def test_values_for_another_number_of_records_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        params_by_record(SYSTEM, {"m": 1.0, "c": 0.3, "k3": 0.5} | params, 3)


def test_a_list_of_one_record_takes_values_for_one() -> None:
    assert params_by_record(SYSTEM, {"m": 1.0, "c": 0.3, "k": np.array([4.0]), "k3": 0.5}, 1).eval().shape == (4,)
    with pytest.raises(TypeError, match=r"params\['k'\] is .* give a finite number or a scalar"):
        params_by_record(SYSTEM, {"m": 1.0, "c": 0.3, "k": np.ones(2), "k3": 0.5}, 1)
