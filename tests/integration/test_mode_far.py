"""The search for the mode where it is hard: a start that L-BFGS gives up on, records with parameters of their own."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")  # eight steps are few at the mode; the search is tested here
def test_the_mode_is_found_where_the_first_search_stops_far_off() -> None:
    """A lightly damped circuit: from these priors L-BFGS stops 2000 units of log density below the maximum."""
    circuit = sid.models.duffing()
    t = np.arange(600) / 610.35
    record = sid.TimeSeries(t, 0.1 * np.sin(2 * np.pi * (40.0 + 30.0 * t) * t))
    truth = {"m": 5.4e-6, "c": 2.3e-4, "k": 0.99, "k3": 4.0}
    y = sid.simulate(circuit, record, truth, x0=0.0, substeps=8)["y"].values
    record = record.replace(y=y + 5e-3 * np.random.default_rng(0).standard_normal(t.size))
    with pm.Model():
        params = sid.models.priors({"m": 4e-6, "c": 4e-4, "k": 1.2, "k3": (0.0, 5.0)}, sd=0.3)
        noise = pm.HalfNormal("noise", 0.03)
        sid.ODEFilter("y", circuit, record, params, noise=noise, x0=0.0, solver=sid.EK1(order=3), substeps=8)
        mode = sid.find_mode()
    assert mode.converged
    found = np.array([mode.initvals[name] for name in ("m", "c", "k")])
    np.testing.assert_allclose(found, [truth[name] for name in ("m", "c", "k")], rtol=0.02)
    np.testing.assert_allclose(mode.initvals["noise"], 5e-3, rtol=0.1)


def by_record() -> pm.Model:
    decay = sid.System(lambda t, x, u, p: -p.r * x.c, states=("c",), params=("r",), observe=lambda t, x, dx, u, p: x.c)
    rng, t = np.random.default_rng(0), np.linspace(0, 4, 4)
    records = [np.exp(-np.exp(-0.9 + 0.5 * rng.standard_normal()) * t) + 0.1 * rng.standard_normal(4) for _ in range(6)]
    with pm.Model() as model:
        mean, spread = pm.Normal("mean", -1, 1), pm.HalfNormal("spread", 1)
        rates = {"r": pt.exp(pm.Normal("log_r", mean, spread, shape=6))}
        sid.ODEFilter("y", decay, [sid.TimeSeries(t, None, y) for y in records], rates, noise=0.1, x0=1.0, substeps=1)
    return model


def test_records_with_parameters_of_their_own_have_one_diffusion_to_temper_by() -> None:
    (sizes,) = PosteriorFunctions(by_record()).diffusions(np.zeros((3, 8)))
    assert sizes.shape == (3, 1) and np.isfinite(sizes).all() and (sizes > 0).all()


@pytest.mark.slow
def test_records_with_parameters_of_their_own_may_have_several_modes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the spread has no mode but zero
        mode = sid.find_mode(by_record(), prior_draws=200, starts=6, random_seed=0, progressbar=False)
    assert np.isfinite(mode.logp)


@pytest.mark.slow
def test_a_peak_with_an_edge_is_found_where_the_only_smooth_maximum_holds_nothing() -> None:
    """Of a dead zone: a maximum a thousand nats below, of a spring that is hardly reached, was returned."""
    t = np.arange(80) * 0.1
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * (pt.maximum(x.z - p.d, 0.0) - pt.maximum(-x.z - p.d, 0.0))),
        states=("z", "v"),
        inputs=("F",),
        params=("k", "d", "c"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    record = sid.TimeSeries(t, 3 * np.sin(2 * t) * np.minimum(1, t / 4), None, inputs="F", intersample="zoh")
    truth = {"k": 20.0, "d": 0.3, "c": 0.5}
    y = sid.simulate(system, record, truth, x0=0.0, substeps=32)["y"].to_numpy()
    record = record.replace(y=y + 0.08 * np.random.default_rng(0).standard_normal(80))
    with pm.Model():
        k, c = pm.LogNormal("k", np.log(10.0), 1.5), pm.LogNormal("c", 0.0, 1.5)
        params = {"k": k, "d": pm.Uniform("d", 0.0, 3.0), "c": c}
        sid.ODEFilter("y", system, record, params, noise=0.08, x0=0.0, substeps=4)
        with pytest.warns(UserWarning, match="stopped at a point that is no clear maximum"):
            mode = sid.find_mode(random_seed=0)
    assert not mode.converged
    assert mode.logp > 80.0
    for name, sd in {"k": 1.5, "d": 0.015, "c": 0.05}.items():
        assert abs(mode.initvals[name] - truth[name]) < 4 * sd
