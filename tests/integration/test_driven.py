"""A force that nobody recorded and a stiffness that drifts, through PyMC and everything that reads a filter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.linalg import expm

import pm_sysid as sid

SYSTEM = sid.System(
    lambda t, x, u, p: (x.v, u.F + u.d - p.c * x.v - p.k * x.z),
    states=("z", "v"),
    inputs=("F", "d"),
    params=("c", "k"),
    observe=lambda t, x, dx, u, p: x.z,
)
TRUTH = {"c": 0.4, "k": 9.0}
POINT = {"k": 9.0, "scale": 1.0}


def record(seed: int, n: int = 60) -> sid.TimeSeries:
    """A force of two tones, of which the record has none."""
    t = np.arange(n) * 0.1
    u = np.stack([np.sin(1.1 * t + seed), np.sin(2.3 * t) + 0.5 * np.sin(0.7 * t + 1)], axis=1)
    full = sid.TimeSeries(t, u, intersample="bl", inputs=("F", "d"))
    y = sid.simulate(SYSTEM, full, TRUTH, x0=0.0)["y"].to_numpy()
    y = y + 0.01 * np.random.default_rng(seed).normal(size=n)
    return sid.TimeSeries(t, u[:, :1], y, intersample="bl", inputs=("F",))


def force(n: int = 60) -> np.ndarray:
    t = np.arange(n) * 0.1
    return np.sin(2.3 * t) + 0.5 * np.sin(0.7 * t + 1)


def build(data: Any, **options: Any) -> pm.Model:
    with pm.Model() as model:
        k, scale = pm.LogNormal("k", np.log(9.0), 0.2), pm.LogNormal("scale", 0.0, 0.5)
        latent = {"d": sid.Matern(nu=1.5, scale=scale, length=0.8)}
        options = {"noise": 0.01, "x0": {"z": 0.0, "v": 0.0}, "solver": sid.EK1(order=2), "substeps": 2} | options
        sid.ODEFilter("y", SYSTEM, data, {"c": 0.4, "k": k}, latent=latent, **options)
    return model


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return build(record(0))


def test_the_gradient_of_the_model_is_that_of_its_log_posterior(model: pm.Model) -> None:
    at = {v.name: np.array(x) for v, x in zip(model.value_vars, (np.log(8.0), 0.3), strict=True)}
    value, gradient = model.compile_logp(), model.compile_dlogp()(at)
    for i, name in enumerate(at):
        up, down = ({**at, name: at[name] + s} for s in (1e-5, -1e-5))
        assert gradient[i] == pytest.approx((value(up) - value(down)) / 2e-5, rel=1e-6)


PROCESSES = {
    "ou": lambda s, t: sid.OU(scale=s, length=t),
    "matern": lambda s, t: sid.Matern(nu=1.5, scale=s, length=t),
    "trend": lambda s, t: sid.IntegratedWiener(order=1, scale=s, start=(0.4, t)),
    "periodic": lambda s, t: sid.Periodic(scale=s, period=2.0, length=t, harmonics=2),
}


@pytest.mark.filterwarnings("ignore:substeps=1")  # few and coarse: the gradient is that of what is computed
@pytest.mark.parametrize("diffusion", ["mle", "dynamic"])
@pytest.mark.parametrize("name", list(PROCESSES))
def test_compiled_gradients_are_those_of_differences_where_states_follow_from_the_force(name: str, diffusion: str) -> None:
    """Given the ODE, the derivative of a level depends on the level and the force: their sensitivities have no full rank.

    What rounding leaves of one has a direction by chance, along which gradients were off by up to a hundredth.
    """
    lag = sid.System(
        lambda t, x, u, p: p.r * (u.u + u.d - x.l),
        states=("l",),
        inputs=("u", "d"),
        params=("r",),
        observe=lambda t, x, dx, u, p: x.l,
    )
    t = 0.1 * np.arange(30)
    data = sid.TimeSeries(t, {"u": np.ones(30)}, 1 - 0.7 * np.exp(-0.8 * t) + 0.05 * np.sin(3 * t), intersample="zoh")
    with pm.Model() as model:
        r, scale, length = pm.LogNormal("r", -0.2, 0.5), pm.LogNormal("scale", -1.0, 0.5), pm.LogNormal("length", -0.3, 0.5)
        latent, solver = {"d": PROCESSES[name](scale, length)}, sid.EK1(order=3, diffusion=diffusion)
        sid.ODEFilter("y", lag, data, {"r": r}, noise=0.003, x0=0.3, latent=latent, solver=solver, substeps=1)
    value, gradient, at = model.compile_logp(), model.compile_dlogp(), model.initial_point()
    for shift in (0.0, 0.3, -0.2):
        here = {k: v + shift for k, v in at.items()}
        found = gradient(here)
        for i, k in enumerate(here):
            wide, narrow = ((value({**here, k: here[k] + s}) - value({**here, k: here[k] - s})) / (2 * s) for s in (2e-4, 1e-4))
            assert found[i] == pytest.approx((4 * narrow - wide) / 3, rel=1e-6, abs=1e-6 * np.abs(found).max())


def test_the_smoothed_force_covers_the_one_that_was_there(model: pm.Model) -> None:
    found = sid.smooth(POINT, model=model)
    mean, std = (found[name].sel(input="d").to_numpy()[0, 0] for name in ("inputs", "inputs_std"))
    inside = np.abs(mean - force()) < 3 * std
    assert np.mean(inside) > 0.95 and np.std(mean - force()) < 0.35 * np.std(force())


def test_paths_spread_as_the_smoothed_moments_say(model: pm.Model) -> None:
    """Would fail for draws that use a random number twice."""
    draws = {name: np.full((1, 400), value) for name, value in POINT.items()}
    posterior = xr.Dataset({name: (("chain", "draw"), v) for name, v in draws.items()})
    paths = sid.sample_states(posterior, model=model, random_seed=3)["inputs"].to_numpy()[0, :, :, 0]
    moments = sid.smooth(POINT, model=model)
    mean, std = (moments[name].to_numpy()[0, 0, :, 0] for name in ("inputs", "inputs_std"))
    z = (paths.mean(axis=0) - mean) / std * 20
    assert np.abs(z).max() < 4.5
    assert np.abs(paths.std(axis=0) / std - 1).max() < 0.2


def test_records_add_up_and_can_be_exchanged(model: pm.Model) -> None:
    solver = sid.EK1(order=2, diffusion=3.0)  # one that does not depend on the record
    single = [build(record(seed), solver=solver) for seed in (0, 1)]
    both = build([record(0), record(1)], x0=[{"z": 0.0, "v": 0.0}] * 2, solver=solver)
    at = single[0].initial_point()
    parts = [m.compile_logp(m.observed_RVs)(at) for m in single]
    assert both.compile_logp(both.observed_RVs)(at) == pytest.approx(sum(parts), rel=1e-10)
    with single[0]:
        sid.set_data({"y": record(1)})
    assert single[0].compile_logp(single[0].observed_RVs)(at) == pytest.approx(parts[1], rel=1e-10)


def test_many_particles_see_the_same_likelihood(model: pm.Model) -> None:
    target = sid.Target(model)
    q = np.array([[np.log(9.0), 0.0], [np.log(7.0), 0.5]])
    value = model.compile_logp(model.observed_RVs)
    names = [v.name for v in model.value_vars]
    expected = [value(dict(zip(names, row, strict=True))) for row in q]
    np.testing.assert_allclose(target.log_likelihood(q), expected, rtol=1e-9)


def test_predictions_draw_the_force_of_a_new_record(model: pm.Model) -> None:
    draws = {name: (("chain", "draw"), np.full((1, 40), value)) for name, value in POINT.items()}
    new = sid.TimeSeries(np.arange(30) * 0.1, np.zeros(30), intersample="bl", inputs=("F",))
    runs = sid.predict(xr.Dataset(draws), new, model=model, draws=40, x0=0.0, random_seed=2)
    assert runs["y"].dims == ("draw", "time") and runs["d"].shape == (40, 30)
    assert 0.6 < float(runs["d"].std()) < 1.4 and float(runs["y"].std("draw")[-1]) > 0.02
    with pytest.raises(ValueError, match="every_step is True"):
        sid.predict(xr.Dataset(draws), new, model=model, every_step=True)


# -- several chains ---------------------------------------------------------------------------------------------------


def two_chains(*, forced: bool) -> sid.System:
    """A mass on a spring with a lag that pushes it; ``forced`` adds an input that nobody recorded."""
    return sid.System(
        lambda t, x, u, p: (x.v, u.F + (u.d if forced else 0.0) - p.k * x.z - 0.6 * x.v + 0.8 * x.q, x.z - x.q),
        states=("z", "v", "q"),
        inputs=("F", "d") if forced else ("F",),
        params=("k",),
        observe=lambda t, x, dx, u, p: {"y": x.z},
    )


def markov_loglik(k: float, data: sid.TimeSeries, noise: float, force: float, colour: float) -> float:
    """Log-likelihood of two chains by a Kalman filter of states, force and coloured noise (both OU of length 0.5)."""
    rates = np.zeros((5, 5))
    rates[0, 1] = rates[2, 0] = 1.0
    rates[1] = [-k, -0.6, 0.8, 1.0, 0.0]
    rates[2, 2] = -1.0
    rates[3, 3] = rates[4, 4] = -2.0
    spread = np.diag([0.0, 0.0, 0.0, 4.0 * force**2, 4.0 * colour**2])
    together = np.block([[-rates, spread], [np.zeros((5, 5)), rates.T]]) * 0.1
    flow = expm(together)
    A = flow[5:, 5:].T
    Q = A @ flow[:5, 5:]
    held = expm(np.block([[rates, np.eye(5)[:, 1:2]], [np.zeros((1, 6))]]) * 0.1)[:5, 5]
    row = np.array([1.0, 0.0, 0.0, 0.0, 1.0])
    m, P, total = np.zeros(5), np.diag([0.0, 0.0, 0.0, force**2, colour**2]), 0.0
    for u, y in zip(data.input_matrix[:, 0], data.output_matrix[:, 0], strict=True):
        s, e = row @ P @ row + noise**2, y - row @ m
        total -= 0.5 * (np.log(2 * np.pi * s) + e**2 / s)
        gain = P @ row / s
        m, P = m + gain * e, P - np.outer(gain, gain) * s
        m, P = A @ m + held * u, A @ P @ A.T + Q
    return float(total)


@pytest.mark.parametrize("latent, coloured", [(True, False), (False, True), (True, True)])
def test_two_chains_with_processes_have_the_likelihood_of_a_kalman_filter(latent: bool, coloured: bool) -> None:
    """The pass that calibrates the diffusion moves all chains together, and what is uncertain of the processes with them."""
    rng, t = np.random.default_rng(0), 0.1 * np.arange(60)
    data = sid.TimeSeries(t, {"F": np.sign(np.sin(t))}, 0.3 * np.sin(t) + 0.05 * rng.standard_normal(60), intersample="zoh")
    processes: dict[str, Any] = {"latent": {"d": sid.OU(scale=0.7, length=0.5)}} if latent else {}
    if coloured:
        processes["coloured"] = {"y": sid.OU(scale=0.1, length=0.5)}
    with pm.Model() as model:
        k = pm.LogNormal("k", 1.5, 0.5)
        options = {"noise": 0.05, "x0": 0.0, "solver": sid.EK1(order=3), "substeps": 4}
        sid.ODEFilter("y", two_chains(forced=latent), data, {"k": k}, **options, **processes)
    value, gradient = model.compile_logp(model.observed_RVs), model.compile_dlogp(jacobian=False)
    prior = model.compile_logp([k], jacobian=False)
    for at in (np.log(3.0), np.log(5.0)):
        exact = markov_loglik(np.exp(at), data, 0.05, 0.7 * latent, 0.1 * coloured)
        assert value({"k_log__": at}) == pytest.approx(exact, abs=0.003)
        up, down = (value(here) + prior(here) for here in ({"k_log__": at + 1e-5}, {"k_log__": at - 1e-5}))
        assert gradient({"k_log__": at}).item() == pytest.approx((up - down) / 2e-5, rel=1e-5)


# -- a parameter that drifts ------------------------------------------------------------------------------------------

STIFFNESS = 9.0 + 3.0 * np.sin(0.3 * np.arange(200) * 0.1)


@pytest.fixture(scope="module")
def drifting() -> pm.Model:
    t = np.arange(200) * 0.1
    u = np.sin(2.8 * t) + np.sin(1.3 * t)
    spring = sid.System(
        lambda t, x, u, p: (x.v, u.F - 0.4 * x.v - u.k * x.z),
        states=("z", "v"),
        inputs=("F", "k"),
        observe=lambda t, x, *_: x.z,
    )
    full = sid.TimeSeries(t, np.stack([u, STIFFNESS], axis=1), intersample="bl")
    y = sid.simulate(spring, full, {}, x0=0.0)["y"].to_numpy() + 0.01 * np.random.default_rng(3).normal(size=200)
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - 0.4 * x.v - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("k",),
        observe=lambda t, x, *_: x.z,
    )
    with pm.Model() as model:
        k, scale = pm.LogNormal("k", np.log(9.0), 0.2), pm.LogNormal("scale", 0.0, 0.5)
        data = sid.TimeSeries(t, u, y, intersample="bl", inputs=("F",))
        options = {"noise": 0.01, "x0": {"z": 0.0, "v": 0.0}, "solver": sid.EK1(order=3), "substeps": 2}
        sid.ODEFilter("y", system, data, {"k": k}, varying={"k": sid.RandomWalk(scale=scale)}, **options)
    return model


def test_a_drifting_stiffness_is_followed(drifting: pm.Model) -> None:
    found = sid.smooth({"k": 9.0, "scale": 1.0}, model=drifting)
    mean, std = (found[name].sel(parameter="k").to_numpy()[0, 0] for name in ("parameters", "parameters_std"))
    assert std[0] == pytest.approx(0.0, abs=1e-6) and mean[0] == pytest.approx(9.0)  # the value in params, at the first sample
    error = mean - STIFFNESS
    assert np.mean(np.abs(error) < 2.5 * std + 1e-9) > 0.9 and np.std(error[20:]) < 0.4


# -- sequential runs, and one process in two places -------------------------------------------------------------------


@pytest.mark.slow
def test_ibis_has_the_evidence_and_the_mean_of_quadrature() -> None:
    """Two specimens with a damping of their own; of the force only the size is unknown."""
    damping = np.array([0.4, 0.7])
    with pm.Model() as model:
        scale = pm.LogNormal("scale", 0.0, 0.5)
        force = sid.OU(scale=scale, length=0.8)
        options = {"noise": 0.01, "x0": 0.0, "solver": sid.EK1(order=2), "substeps": 1}
        params = {"c": damping, "k": 9.0}
        sid.ODEFilter("y", SYSTEM, [record(0, 30), record(1, 20)], params, latent={"d": force}, **options)
        idata = sid.sample_ibis(400, chains=2, cores=1, random_seed=1, progressbar=False)
    x = np.linspace(-2.5, 2.5, 401)
    logp = sid.Target(model).log_likelihood(x[:, None]) - 0.5 * (x / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    weight = np.exp(logp - logp.max())
    evidence, mean = np.log(weight.sum() * (x[1] - x[0])) + logp.max(), weight @ x / weight.sum()
    std = np.sqrt(weight @ (x - mean) ** 2 / weight.sum())
    found = sid.log_evidence(idata)
    assert found.error < 0.2 and abs(found.value - evidence) < 4 * max(found.error, 0.02)
    draws = np.log(idata["posterior"]["scale"].to_numpy().ravel())
    assert abs(draws.mean() - mean) < 0.2 * std and draws.std() == pytest.approx(std, rel=0.2)


def test_a_drifting_offset_is_a_force_of_its_own() -> None:
    """A parameter that enters as an input does, so that the same process may stand in either place; by record, too."""
    offset = np.array([0.3, -0.2])
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F + u.d + p.offset - 0.4 * x.v - 9.0 * x.z),
        states=("z", "v"),
        inputs=("F", "d"),
        params=("offset",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    push, drift = sid.Matern(nu=1.5, scale=0.8, length=0.5), sid.RandomWalk(scale=0.4)
    options = {"noise": 0.01, "x0": 0.0, "solver": sid.EK1(order=2), "substeps": 1}
    models = []
    for swapped in (False, True):
        with pm.Model() as model:
            processes = {"latent": {"d": drift if swapped else push}, "varying": {"offset": push if swapped else drift}}
            factor = pm.LogNormal("factor", 0.0, 0.1)
            sid.ODEFilter("y", system, [record(0, 30), record(1, 20)], {"offset": factor * offset}, **processes, **options)
        models.append(model)
    values = [m.compile_logp()({"factor_log__": np.array(0.0)}) for m in models]
    assert values[0] == pytest.approx(values[1], rel=1e-10)
    one, other = (sid.smooth({"factor": 1.0}, model=m) for m in models)
    base = offset[one["record"].to_numpy()][:, None]
    np.testing.assert_allclose(one["parameters"][0, 0] - base, other["inputs"][0, 0], atol=1e-8)
    np.testing.assert_allclose(one["inputs_std"], other["parameters_std"], atol=1e-8)
