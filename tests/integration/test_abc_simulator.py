"""A system as a simulator in what PyMC itself does with one: log-density, sequential Monte Carlo, predictive draws."""

from __future__ import annotations

from functools import cache
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from pymc.distributions.simulator import SimulatorRV

import pm_sysid as sid
from pm_sysid.likelihood.ode_simulator import batch_distance
from support.small import DUFFING, NOISE, RECORD, TRUTH, X0


def put(data: Any = RECORD, **options: Any) -> Any:
    """Priors and the simulator, in the model context."""
    c, k = pm.LogNormal("c", np.log(0.3), 0.3), pm.LogNormal("k", np.log(4.0), 0.1)
    options = dict(x0=X0, substeps=2) | options
    return sid.ODESimulator("y", DUFFING, data, TRUTH | dict(c=c, k=k), **options)


def build(data: Any = RECORD, **options: Any) -> pm.Model:
    with pm.Model() as model:
        put(data, **options)
    return model


def at(c: float, k: float) -> dict[str, np.ndarray]:
    return {"c_log__": np.log(c), "k_log__": np.log(k)}


def test_it_is_a_simulator_of_pymc() -> None:
    model = build(epsilon=2.5)
    op = model["y"].owner.op
    assert isinstance(op, SimulatorRV) and float(op.epsilon.data) == 2.5
    assert model.named_vars_to_dims["y"] == ("y_time",)
    np.testing.assert_array_equal(model.coords["y_time"], RECORD.t)
    # Its function is that of a pm.Simulator.
    run = sid.simulate(DUFFING, RECORD, TRUTH, x0=X0, substeps=2)["y"].values
    theta, start, noise, time = (
        v.eval({model["c"]: 0.3, model["k"]: 4.0}, on_unused_input="ignore") for v in op.dist_params(model["y"].owner)
    )
    np.testing.assert_allclose(op.rng_fn(np.random.default_rng(0), theta, start, noise, time, None), run, rtol=1e-12)
    assert op.rng_fn(np.random.default_rng(0), theta, start, noise, time, (3, 2)).shape == (3, 2, RECORD.t.size)


@pytest.mark.parametrize("distance", ["nmse", "nmae", sid.rmse])
def test_the_log_density_is_a_gaussian_in_the_distance(distance: Any) -> None:
    data = RECORD.replace(y=np.where(np.arange(RECORD.t.size) % 7 == 3, np.nan, RECORD.y))
    model = build(data, distance=distance, epsilon=0.5)
    logp = model.compile_logp(vars=model.observed_RVs)
    values = dict(c=np.array([0.3, 0.5]), k=np.array([4.0, 3.7]))
    rho = batch_distance(model)(values, 0)
    assert rho[1] > 2 * rho[0] > 0
    for i in range(2):
        assert logp(at(values["c"][i], values["k"][i])) == pytest.approx(-0.5 * (rho[i] / 0.5) ** 2, rel=1e-9)


def test_the_log_density_is_compiled_and_has_a_gradient() -> None:
    model = build()
    logp, dlogp = model.compile_logp(), model.compile_dlogp()
    assert not any(isinstance(node.op, SimulatorRV) for node in logp.f.maker.fgraph.toposort())
    gradient = dlogp(at(0.35, 3.9))
    for i, name in enumerate(("c_log__", "k_log__")):
        up, down = (logp(at(0.35, 3.9) | {name: at(0.35, 3.9)[name] + e}) for e in (1e-6, -1e-6))
        assert gradient[i] == pytest.approx((up - down) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("options", [dict(), dict(noise=0.1), dict(distance=sid.rmse)], ids=["run", "noise", "function"])
def test_divergence_has_no_density_and_is_no_error(options: dict[str, Any]) -> None:
    system = sid.System(lambda t, x, u, p: p.a * x.z**3, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z)
    t = 0.1 * np.arange(40)
    data = sid.TimeSeries(t, None, 1 / np.sqrt(1 + t))
    with pm.Model() as model:
        sid.ODESimulator("y", system, data, dict(a=pm.Normal("a", -0.5, 0.1)), x0=1.0, substeps=4, **options)
    logp = model.compile_logp(vars=model.observed_RVs)
    assert logp({"a": 5.0}) == -np.inf
    assert np.isfinite(logp({"a": -0.5}))


@cache
def posterior_by_quadrature(epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of (log c, log k) under the kernel of a distance without noise."""
    c, k = np.meshgrid(np.exp(np.linspace(-2.4, 0.0, 161)), np.exp(np.linspace(1.1, 1.7, 161)), indexing="ij")
    rho = batch_distance(build())(dict(c=c.ravel(), k=k.ravel()), 0).reshape(c.shape)
    q = np.stack([np.log(c), np.log(k)])
    log = -0.5 * (rho / epsilon) ** 2 - 0.5 * ((q[0] - np.log(0.3)) / 0.3) ** 2 - 0.5 * ((q[1] - np.log(4.0)) / 0.1) ** 2
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = np.sum(weights * q, axis=(1, 2))
    return mean, np.sqrt(np.sum(weights * (q - mean[:, None, None]) ** 2, axis=(1, 2)))


@pytest.mark.slow
def test_sequential_monte_carlo_samples_the_density() -> None:
    with build(epsilon=1.0):
        idata = pm.sample_smc(draws=300, chains=2, cores=1, random_seed=7, progressbar=False, threshold=0.8)
    mean, std = posterior_by_quadrature(1.0)
    for i, name in enumerate(("c", "k")):
        draws = np.log(idata.posterior[name].values.ravel())
        assert 0.005 < std[i] < 0.7 * (0.3, 0.1)[i]  # wide beside the grid, narrow beside the prior
        assert draws.mean() == pytest.approx(mean[i], abs=4 * std[i] / np.sqrt(150))
        assert draws.std() == pytest.approx(std[i], rel=0.25)
        assert abs(draws.mean() - np.log(TRUTH[name])) < 3 * std[i]


@pytest.mark.parametrize("options", [dict(), dict(noise=NOISE)], ids=["run", "noise"])
def test_two_cores_give_what_one_gives(options: dict[str, Any]) -> None:
    with build(epsilon=5.0, **options):
        one, two = (
            pm.sample_smc(draws=40, chains=2, cores=cores, random_seed=3, progressbar=False, compute_convergence_checks=False)
            for cores in (1, 2)
        )
    for name in ("c", "k"):
        np.testing.assert_array_equal(one.posterior[name], two.posterior[name])
    assert not np.array_equal(one.posterior["c"][0], one.posterior["c"][1])


def test_predictive_draws_look_like_the_data() -> None:
    with build(noise=NOISE):
        prior = pm.sample_prior_predictive(30, random_seed=1)
        again = pm.sample_prior_predictive(30, random_seed=1)
        drawn = prior.prior_predictive["y"].isel(chain=0)
        np.testing.assert_array_equal(drawn, again.prior_predictive["y"].isel(chain=0))
        predictive = pm.sample_posterior_predictive(prior.prior, random_seed=2, progressbar=False).posterior_predictive["y"]
    assert drawn.sizes == {"draw": 30, "y_time": RECORD.t.size}
    assert predictive.sizes == {"chain": 1, "draw": 30, "y_time": RECORD.t.size}
    runs = sid.simulate(DUFFING, RECORD, TRUTH | {n: prior.prior[n].isel(chain=0) for n in ("c", "k")}, x0=X0, substeps=2)["y"]
    for y in (drawn.values, predictive.isel(chain=0).values):
        errors = y - runs.values
        assert errors.std() == pytest.approx(NOISE, rel=0.1) and abs(errors.mean()) < 0.1 * NOISE


def test_several_outputs_and_records_in_predictive_draws() -> None:
    system = sid.System(
        DUFFING.dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=DUFFING.params,
        observe=lambda t, x, dx, u, p: {"position": x.z, "velocity": x.v},
    )
    parts = []
    for data in (RECORD[:60], RECORD[100:]):
        run = sid.simulate(system, data, TRUTH, x0=X0)
        parts.append(data.replace(y=np.stack([run["position"], run["velocity"]], axis=1)))
    with pm.Model() as model:
        k = pm.LogNormal("k", np.log(4.0), 0.1)
        sid.ODESimulator("y", system, parts, TRUTH | dict(k=k), x0=X0, substeps=2)
        prior = pm.sample_prior_predictive(4, random_seed=1)
    drawn = prior.prior_predictive["y"].isel(chain=0)
    assert drawn.dims == ("draw", "y_time", "y_output") and drawn.shape == (4, 160, 2)
    assert list(drawn["y_output"].values) == ["position", "velocity"]
    values = prior.prior["k"].isel(chain=0)
    for part, rows in zip(parts, (slice(0, 60), slice(60, 160)), strict=True):
        run = sid.simulate(system, part, TRUTH | dict(k=values), x0=X0, substeps=2)
        np.testing.assert_allclose(drawn.values[:, rows, 0], run["position"], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(drawn.values[:, rows, 1], run["velocity"], rtol=1e-9, atol=1e-12)
    # The truth is the simulator without noise: the log-density is highest there.
    logp = model.compile_logp(vars=model.observed_RVs)
    assert -1e-4 < logp({"k_log__": np.log(4.0)}) <= 0 and logp({"k_log__": np.log(3.5)}) < -1.0


@pytest.mark.slow
def test_constraints_and_a_static_map_in_sequential_monte_carlo() -> None:
    """Breakpoints that the prior does not order, of a damper whose curve is known."""
    velocity = np.sin(0.37 * np.arange(150))
    damper = sid.models.piecewise_map(3, offset=False)
    truth = dict(c0=5.0, c1=1.0, c2=2.0, v1=-0.4, v2=0.3)
    data = sid.TimeSeries(np.arange(150.0), velocity, None, intersample="zoh")
    force = sid.simulate(damper, data, truth)["force"].values + 0.05 * np.random.default_rng(2).normal(size=150)
    with pm.Model() as model:
        slopes, at = [pm.Uniform(f"c{i}", 0.2, 8.0) for i in (1, 2)], [pm.Uniform(f"v{i}", -1.0, 1.0) for i in (1, 2)]
        sid.models.piecewise_constraints(5.0, slopes, at)
        params = dict(c0=5.0, c1=slopes[0], c2=slopes[1], v1=at[0], v2=at[1])
        sid.ODESimulator("y", damper, data.replace(y=force), params, epsilon=0.1)
        idata = pm.sample_smc(draws=100, chains=1, random_seed=5, progressbar=False, compute_convergence_checks=False)
    posterior = idata.posterior
    assert bool((posterior["v1"] < posterior["v2"]).all())
    assert bool((abs(posterior["c1"] - 5.0) >= 0.05 * 5.0).all())
    for name in ("c1", "c2", "v1", "v2"):
        assert abs(float(posterior[name].mean()) - truth[name]) < 3 * float(posterior[name].std()), name
        prior = (7.8 if name[0] == "c" else 2.0) / np.sqrt(12)
        assert float(posterior[name].std()) < prior / 4, name
    assert model.potentials


def test_a_pickled_model_is_the_same() -> None:
    model = build(distance=lambda y, simulated: np.abs(y - simulated).max(), epsilon=0.1)
    copy = cloudpickle.loads(cloudpickle.dumps(model))
    values = [m.compile_logp()(at(0.3, 4.0)) for m in (model, copy)]
    assert values[0] == values[1] and np.isfinite(values[0])
    again = build(noise=NOISE)
    with cloudpickle.loads(cloudpickle.dumps(again)):
        other = pm.sample_prior_predictive(3, random_seed=1).prior_predictive["y"]
    with again:
        np.testing.assert_array_equal(pm.sample_prior_predictive(3, random_seed=1).prior_predictive["y"], other)
