"""Distances of many simulations against free runs one by one, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.distances import distance_of
from pm_sysid.likelihood.ode_simulator import batch_distance

DUFFING = sid.models.duffing()
TRUTH = dict(m=1.0, c=0.3, k=4.0, k3=0.5)
X0 = dict(z=0.4, v=0.0)
RNG = np.random.default_rng(5)


def record(length: int = 60, seed: int = 0, missing: Any = ()) -> sid.TimeSeries:
    rng = np.random.default_rng(seed)
    t = 0.1 * np.arange(length)
    data = sid.TimeSeries(t, np.sin(1.9 * t + rng.uniform(0, 6)) + np.sin(0.7 * t), None)
    y = sid.simulate(DUFFING, data, TRUTH, x0=X0)["y"].values + 0.05 * rng.normal(size=length)
    y[list(missing)] = np.nan
    return data.replace(y=y)


RECORD = record()
VALUES = dict(c=np.array([0.3, 0.6, 0.1]), k=np.array([4.0, 3.0, 5.0]))


def build(data: Any = RECORD, system: sid.System = DUFFING, **options: Any) -> pm.Model:
    with pm.Model() as model:
        c, k = pm.LogNormal("c", np.log(0.3), 0.3), pm.LogNormal("k", np.log(4.0), 0.1)
        options = dict(x0=X0, substeps=4) | options
        sid.ODESimulator("y", system, data, dict(m=1.0, c=c, k=k, k3=0.5), **options)
    return model


def runs(data: sid.TimeSeries, values: dict[str, np.ndarray] = VALUES, **options: Any) -> np.ndarray:
    options = dict(x0=X0, substeps=4) | options
    outputs = sid.simulate(DUFFING, data, TRUTH | values, **options)["y"].values
    return np.asarray(outputs)


# -- distances --------------------------------------------------------------------------------------------------------


def test_the_distance_is_that_of_the_paper() -> None:
    """Eq. 14, written out."""
    y, variance = RECORD.y, np.var(RECORD.y)
    expected = [100 / (60 * variance) * sum((a - b) ** 2 for a, b in zip(run, y, strict=True)) for run in runs(RECORD)]
    result = batch_distance(build())(VALUES, 0)
    np.testing.assert_allclose(result, expected, rtol=1e-10)
    assert result[0] < 2.0 < 20.0 < result[1]


@pytest.mark.parametrize("missing", [(), (0, 7, 8, 59)], ids=["complete", "missing"])
@pytest.mark.parametrize("name", ["nmse", "nrmse", "nmae"])
def test_named_distances(name: str, missing: tuple[int, ...]) -> None:
    data = record(missing=missing)
    result = batch_distance(build(data, distance=name))(VALUES, 0)
    seen = ~np.isnan(data.y)
    errors = (runs(data) - data.y)[:, seen] / np.std(data.y[seen])
    expected = {
        "nmse": 100 * np.mean(errors**2, axis=1),
        "nrmse": 100 * np.sqrt(np.mean(errors**2, axis=1)),
        "nmae": 100 * np.mean(np.abs(errors), axis=1),
    }
    np.testing.assert_allclose(result, expected[name], rtol=1e-10)


def test_a_function_as_distance_sees_records_of_the_shape_of_the_data() -> None:
    seen = []

    def largest(observed: np.ndarray, simulated: np.ndarray) -> float:
        seen.append((observed.shape, simulated.shape))
        return float(np.nanmax(np.abs(observed - simulated)))

    data = record(missing=(3,))
    result = batch_distance(build(data, distance=largest))(VALUES, 0)
    np.testing.assert_allclose(result, np.nanmax(np.abs(runs(data) - data.y), axis=1), rtol=1e-12)
    assert set(seen) == {((60,), (60,))}
    # Those of the package leave out missing samples.
    result = batch_distance(build(data, distance=sid.rmse))(VALUES, 0)
    np.testing.assert_allclose(result, sid.rmse(data.y, runs(data)), rtol=1e-12)


def two_outputs() -> sid.System:
    return sid.System(
        DUFFING.dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=DUFFING.params,
        observe=lambda t, x, dx, u, p: {"position": x.z, "acceleration": dx.v},
    )


def test_several_records_and_outputs_count_the_same() -> None:
    system, parts, expected = two_outputs(), [], []
    for length, seed in ((40, 1), (70, 2)):
        data = record(length, seed)
        run = sid.simulate(system, data, TRUTH, x0=X0)
        y = np.stack([run["position"], run["acceleration"]], axis=1) + RNG.normal(0.0, [0.05, 0.3], (length, 2))
        y[3:9, 1] = np.nan
        parts.append(data.replace(y=y))
        values = sid.simulate(system, parts[-1], TRUTH | VALUES, x0=X0, substeps=4, distance="nmse")
        expected += [values["position"].values, values["acceleration"].values]
    parts[1] = parts[1].replace(y=parts[1].y * [1.0, np.nan])  # an output that was not measured does not count
    result = batch_distance(build(parts, system))(VALUES, 0)
    np.testing.assert_allclose(result, np.mean(expected[:3], axis=0), rtol=1e-10)
    # The same through stored runs: without the sums along the way.
    stored = distance_of("nmse", [p.output_matrix for p in parts], flat=False)
    runs = []
    for p in parts:
        run = sid.simulate(system, p, TRUTH | VALUES, x0=X0, substeps=4)
        runs.append(np.stack([run["position"], run["acceleration"]], axis=2))
    observed = np.concatenate([p.output_matrix for p in parts])
    np.testing.assert_allclose(stored(observed, np.concatenate(runs, axis=1)), result, rtol=1e-10)


def test_records_have_their_own_initial_states() -> None:
    parts = [record(40, 1), record(40, 2)]
    with pm.Model() as model:
        c, z = pm.LogNormal("c", np.log(0.3), 0.3), pm.Normal("z", 0.4, 0.1)
        starts = [dict(z=z, v=0.0), dict(z=0.4, v=0.1)]
        sid.ODESimulator("y", DUFFING, parts, TRUTH | dict(c=c), x0=starts, substeps=4)
    values = dict(c=np.array([0.3, 0.5]), z=np.array([0.4, 0.2]))
    result = batch_distance(model)(values, 0)
    each = [
        [
            sid.nmse(p.y, sid.simulate(DUFFING, p, TRUTH | dict(c=c), x0=x0, substeps=4)["y"].values)
            for p, x0 in zip(parts, (dict(z=z, v=0.0), dict(z=0.4, v=0.1)), strict=True)
        ]
        for c, z in zip(*values.values(), strict=True)
    ]
    np.testing.assert_allclose(result, np.mean(each, axis=1), rtol=1e-10)


def test_parameters_may_be_expressions_vectors_and_numbers() -> None:
    with pm.Model() as model:
        q = pm.Normal("q", shape=2)
        scale = pm.Gamma("scale", 2.0, 1.0)
        params = dict(m=1.0, c=0.3 * pm.math.exp(q[0]), k=4.0 * scale, k3=0.5 + q[1])
        sid.ODESimulator("y", DUFFING, RECORD, params, x0=X0, substeps=4)
    values = dict(q=RNG.normal(0.0, 0.2, (6, 2)), scale=RNG.uniform(0.8, 1.2, 6))
    result = batch_distance(model)(values, 0)
    used = dict(c=0.3 * np.exp(values["q"][:, 0]), k=4.0 * values["scale"], k3=0.5 + values["q"][:, 1])
    np.testing.assert_allclose(result, sid.nmse(RECORD.y, runs(RECORD, used)), rtol=1e-10)


def test_divergence_is_an_infinite_distance_of_that_particle_alone() -> None:
    system = sid.System(lambda t, x, u, p: p.a * x.z**3 - x.z, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z)
    t = 0.1 * np.arange(50)
    data = sid.TimeSeries(t, None, np.exp(-t))
    for options in (dict(), dict(noise=0.1), dict(distance="nmae"), dict(distance=sid.rmse)):
        with pm.Model() as model:
            sid.ODESimulator("y", system, data, dict(a=pm.Normal("a")), x0=1.0, substeps=4, **options)
        result = batch_distance(model)(dict(a=np.array([0.0, 9.0, -0.5, np.nan])), 0)
        assert np.array_equal(np.isinf(result), [False, True, False, True]), options
        assert not np.isnan(result).any()


def test_noise_is_drawn_for_each_simulation_and_by_the_seed() -> None:
    function = batch_distance(build(noise=0.5))
    many = {k: np.repeat(v[0], 400) for k, v in VALUES.items()}
    first, again, other = function(many, 1), function(many, 1), function(many, 2)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    # The mean of the squared error is that of the run and the variance of the noise.
    expected = batch_distance(build())(many, 0)[0] + 100 * 0.5**2 / np.var(RECORD.y)
    assert first.mean() == pytest.approx(expected, abs=4 * first.std() / 20)
    with pm.Model() as model:
        s = pm.HalfNormal("s", shape=1)
        sid.ODESimulator("y", DUFFING, RECORD, TRUTH, noise=s, x0=X0, substeps=4)
    none, some = batch_distance(model)(dict(s=np.array([[0.0], [0.5]])), 1)
    assert none == pytest.approx(sid.nmse(RECORD.y, runs(RECORD, {})), rel=1e-10) and some > none


def test_memory_is_bounded_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    function, values = batch_distance(build(distance="nmae")), dict(c=RNG.uniform(0.1, 1, 50), k=RNG.uniform(3, 5, 50))
    expected = function(values, 0)
    monkeypatch.setattr("pm_sysid.likelihood.simulator_function.KEEP_BYTES", 60 * 8 * 3 * 16)
    np.testing.assert_array_equal(function(values, 0), expected)


def test_a_static_map() -> None:
    velocity = np.sin(0.3 * np.arange(100))
    damper = sid.models.piecewise_map(2, offset=False)
    data = sid.TimeSeries(
        np.arange(100.0), velocity, np.where(velocity < 0.4, 5 * velocity, 2 + velocity - 0.4), intersample="zoh"
    )
    with pm.Model() as model:
        c1 = pm.Normal("c1", 1.0, 1.0)
        sid.ODESimulator("y", damper, data, dict(c0=5.0, c1=c1, v1=0.4))
    result = batch_distance(model)(dict(c1=np.array([1.0, 3.0])), 0)
    expected = 100 * np.mean(np.where(velocity < 0.4, 0.0, 2.0 * (velocity - 0.4)) ** 2) / np.var(data.y)
    np.testing.assert_allclose(result, [0.0, expected], rtol=1e-10, atol=1e-20)


def test_the_particles_of_a_batch_may_be_few_or_none() -> None:
    function = batch_distance(build())
    whole = function(VALUES, 0)
    assert function({k: v[:0] for k, v in VALUES.items()}, 0).shape == (0,)
    single = [function({k: v[i : i + 1] for k, v in VALUES.items()}, 0) for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(single), whole)


@pytest.mark.parametrize("options", [dict(), dict(noise=0.1), dict(distance=lambda y, s: np.abs(y - s).max())])
def test_pickling(options: dict[str, Any]) -> None:
    model = build(**options)
    function = batch_distance(model)
    expected = function(VALUES, 3)
    copies = [pickle.loads(pickle.dumps(function)) for _ in range(2)]
    np.testing.assert_array_equal(copies[0](VALUES, 3), expected)
    assert copies[0] is copies[1], "a worker compiles once"
    again = batch_distance(cloudpickle.loads(cloudpickle.dumps(model)))
    np.testing.assert_array_equal(again(VALUES, 3), expected)


# -- other simulators -------------------------------------------------------------------------------------------------

#: PyTensor's, about how PyMC builds its simulators.
stock = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def normal(rng: np.random.Generator, mu: Any, sigma: Any, size: Any) -> Any:
    return rng.normal(mu, sigma, size=size)


@stock
def test_any_simulator_of_pymc() -> None:
    y = RNG.normal(1.0, 2.0, 200)
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", shape=2), pm.HalfNormal("sigma")
        pm.Simulator("y", normal, mu[0] + mu[1], sigma, observed=y)

    def of_means(observed: np.ndarray, simulated: np.ndarray) -> float:
        assert observed.shape == simulated.shape == (200,)
        return float(abs(observed.mean() - simulated.mean()))

    values = dict(mu=np.array([[0.5, 0.5], [3.0, 0.0]]), sigma=np.array([1e-9, 1e-9]))
    np.testing.assert_allclose(
        batch_distance(model, of_means)(values, 0), [abs(y.mean() - 1.0), abs(y.mean() - 3.0)], atol=1e-8
    )
    expected = [100 * np.mean((y - mean) ** 2) / np.var(y) for mean in (1.0, 3.0)]
    np.testing.assert_allclose(batch_distance(model)(values, 0), expected, rtol=1e-8)
    random = dict(values, sigma=np.array([2.0, 2.0]))
    first, again, other = (batch_distance(model, of_means)(random, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.any(first == other)
    copy = pickle.loads(pickle.dumps(batch_distance(model, of_means)))
    np.testing.assert_array_equal(copy(random, 1), first)


@stock
def test_several_simulators_count_the_same() -> None:
    other = np.array([1.0, 3.0])
    with pm.Model() as model:
        c, k = pm.LogNormal("c"), pm.LogNormal("k")
        sid.ODESimulator("y", DUFFING, RECORD, TRUTH | dict(c=c, k=k), x0=X0, substeps=4)
        pm.Simulator("other", normal, c, 1e-9, observed=other)
    result = batch_distance(model)(VALUES, 0)
    squares = [100 * np.mean((other - c) ** 2) / np.var(other) for c in VALUES["c"]]
    np.testing.assert_allclose(result, (np.array(squares) + sid.nmse(RECORD.y, runs(RECORD))) / 2, rtol=1e-7)


def test_models_that_are_no_simulators() -> None:
    with pm.Model() as empty:
        pm.Normal("a")
    with pytest.raises(ValueError, match="the model has no simulator; give it"):
        batch_distance(empty)
    model = build()
    with model:
        pm.Normal("z", model["c"], 1.0, observed=0.0)
    with pytest.raises(ValueError, match=r"the likelihoods \['z'\] beside"):
        batch_distance(model)
    with pm.Model() as fixed:
        sid.ODESimulator("y", DUFFING, RECORD, TRUTH, x0=X0, substeps=4)
    with pytest.raises(ValueError, match="no free variables"):
        batch_distance(fixed)


def test_values_that_do_not_fit() -> None:
    function = batch_distance(build())
    with pytest.raises(ValueError, match=r"the values lack the model's free variables \['k'\]; there are \['c'\]"):
        function(dict(c=np.ones(3)), 0)
    with pytest.raises(ValueError, match=r"the values of 'k' have the shape \(2,\); give one entry a particle"):
        function(dict(c=np.ones(3), k=np.ones(2)), 0)
    with pytest.raises(ValueError, match=r"the values of 'c' have the shape \(\)"):
        function(dict(c=1.0, k=1.0), 0)


# -- doors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, error, message",
    [
        (dict(system="duffing"), TypeError, "system is str; give a pm_sysid.System"),
        (dict(data=RECORD.replace(y=None)), ValueError, "data has no outputs; give the measured y"),
        (dict(data=RECORD.replace(y=np.full(60, np.nan))), ValueError, "nothing was measured: all outputs are NaN"),
        (dict(data=RECORD.replace(y=np.ones(60))), ValueError, "output 0 of record 0 is constant where it was measured"),
        (dict(params=dict(m=1.0)), ValueError, "params lacks"),
        (dict(noise=-1.0), ValueError, "noise is -1.0; a standard deviation must be positive"),
        (dict(noise=[1.0, 2.0]), ValueError, "noise has 2 entries; give one, or one for each output"),
        (dict(distance="mse"), ValueError, r"distance is 'mse'; give one of \['nmae', 'nmse', 'nrmse'\], or a function"),
        (dict(distance=3), ValueError, "distance is 3"),
        (dict(epsilon=0.0), ValueError, "epsilon is 0.0; give a positive number, in the unit of the distance"),
        (dict(epsilon=pt.dscalar("e")), TypeError, "epsilon is e"),
        (dict(substeps=0), ValueError, "substeps is 0; give a positive integer or 'auto'"),
        (dict(substeps="many"), ValueError, "substeps is 'many'"),
        (dict(x0=dict(w=1.0)), ValueError, r"x0 names the states \['w'\]"),
    ],
)
def test_mistakes_are_named_with_the_remedy(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = dict(system=DUFFING, data=RECORD, params=TRUTH, x0=X0, substeps=4) | changes
    with pm.Model(), pytest.raises(error, match=message):
        sid.ODESimulator("y", **arguments)


def test_a_distance_that_returns_no_number() -> None:
    function = batch_distance(build(distance=lambda y, s: np.ones((2, 2))))
    with pytest.raises(ValueError, match=r"distance returned an array of shape \(2, 2\); return a number"):
        function(VALUES, 0)


def test_substeps_are_judged_by_the_prior(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(sid.SubstepWarning, match="substeps=1: a quarter of the runs drawn from the prior move by"):
        stiff = RECORD.replace(t=10 * RECORD.t)
        build(stiff, substeps=1)
    with caplog.at_level("INFO", "pm_sysid"):
        build(stiff, substeps="auto")
    chosen = int(caplog.text.split("substeps='auto' chose ")[1].split()[0])
    assert chosen > 1
    build(stiff, substeps=chosen)  # without a warning


def test_a_stiff_prior_makes_steps_implicit(caplog: pytest.LogCaptureFixture) -> None:
    """Rates over eight decades: no run is lost, and their distances are those of exact solutions."""
    system = sid.System(
        lambda t, x, u, p: (-p.fast * x.a, p.fast * x.a - p.slow * x.b),
        states=("a", "b"),
        params=("fast", "slow"),
        observe=lambda t, x, dx, u, p: x.b,
    )
    t = np.arange(10.0)
    data = sid.TimeSeries(t, None, np.exp(-0.1 * t))
    with pm.Model() as model, caplog.at_level("INFO", "pm_sysid"):
        rates = {"fast": pm.LogNormal("fast", np.log(1e3), 3.0), "slow": pm.LogNormal("slow", np.log(0.1), 0.1)}
        sid.ODESimulator("y", system, data, rates, x0=[1.0, 0.0])
    assert "the system is stiff at some prior draws" in caplog.text
    fast, slow = np.array([1e1, 1e4, 1e7]), np.full(3, 0.1)
    distances = batch_distance(model)({"fast": fast, "slow": slow}, 0)
    exact = fast[:, None] / (fast - slow)[:, None] * (np.exp(-slow[:, None] * t) - np.exp(-fast[:, None] * t))
    np.testing.assert_allclose(distances, 100 * np.mean((exact - data.y) ** 2, axis=1) / np.var(data.y), rtol=1e-3)
