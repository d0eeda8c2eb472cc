"""Filters that follow the record loosely: nothing changed is the model, and what is changed is what it says."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.tempering import loose_filters

DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
)
TIMES = np.linspace(0.0, 2.0, 21)
RECORD = sid.TimeSeries(TIMES, None, np.exp(-1.5 * TIMES) + 0.05 * np.sin(9 * TIMES))


@pytest.fixture(autouse=True)
def quickly_compiled():
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


def decay(diffusion=0.3):
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, 1.0)
        s = pm.LogNormal("s", np.log(0.1), 1.0)
        solver = sid.EK0(order=1, diffusion=diffusion)
        sid.ODEFilter("y", DECAY, RECORD, {"rate": rate}, noise=s, x0=1.0, solver=solver, substeps=8)
    return model


def likelihood(model, point):
    """Log-likelihood of the filter at a point (rate, s) in logarithms."""
    return float(model.compile_logp(vars=[model["y"]])({"rate_log__": np.array(point[0]), "s_log__": np.array(point[1])}))


@pytest.mark.parametrize("diffusion", [0.3, "mle"])
def test_nothing_changed_is_the_model(diffusion):
    model = decay(diffusion)
    functions = PosteriorFunctions(model)
    points = np.array([[0.3, -2.0], [-1.0, -3.0]])
    expected = [model.compile_logp()({"rate_log__": np.array(a), "s_log__": np.array(b)}) for a, b in points]
    values, gradients = functions.descent_function()(points)
    np.testing.assert_allclose(-values, expected, rtol=1e-9)
    np.testing.assert_allclose(functions.values(points), expected, rtol=1e-9)
    step = 1e-5 * np.eye(2)
    for i in range(2):
        up, down = (functions.values(points + sign * step[i]) for sign in (1, -1))
        np.testing.assert_allclose(-gradients[:, i], (up - down) / 2e-5, rtol=1e-4)


def test_what_is_changed_is_the_likelihood_with_that_diffusion():
    model = decay()
    functions = PosteriorFunctions(model)
    point = [0.3, -2.0]
    found = -functions.descent_function([np.array([0.4])])(np.array([point]))[0][0]
    rest = float(model.compile_logp()({"rate_log__": np.array(0.3), "s_log__": np.array(-2.0)})) - likelihood(model, point)
    expected = rest + likelihood(decay(diffusion=0.5), point)
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_dynamic_diffusion_cannot_be_raised():
    assert [view.name for view in loose_filters(decay())] == ["y"]
    assert loose_filters(decay("dynamic")) == []


@pytest.mark.slow
def test_a_filter_with_several_modes_is_tempered():
    """The sign of a rate that enters by its square: two modes, found with every kind of search."""
    system = sid.System(
        lambda t, x, u, p: -(p.root**2) * x.level, states=("level",), params=("root",), observe=lambda t, x, dx, u, p: x.level
    )
    with pm.Model() as model:
        root, s = pm.Normal("root", 0.2, 1.0), pm.LogNormal("s", np.log(0.1), 1.0)
        sid.ODEFilter("y", system, RECORD, {"root": root}, noise=s, x0=1.0, solver=sid.EK0(order=1, diffusion=0.3), substeps=8)
    mode = sid.find_mode(model, prior_draws=20, starts=3, random_seed=1, progressbar=False)
    assert mode.converged and len(mode.modes) == 2
    assert mode.point[0] == pytest.approx(pt.sqrt(1.5).eval(), abs=0.15) and mode.modes[1].point[0] < -1
    plain = sid.find_mode(model, prior_draws=20, starts=3, tempering=False, random_seed=1, progressbar=False)
    np.testing.assert_allclose(plain.point, mode.point, atol=1e-3)
    assert plain.evaluations < mode.evaluations
