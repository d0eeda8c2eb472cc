"""Searches for modes that too few filter steps cut off: a reactor that runs away where the prior's draws are quiet."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import solve_ivp

import pm_sysid as sid
from pm_sysid.likelihood import mode as mode_search

pytestmark = pytest.mark.slow

TRUE = {"k": 1.0, "E": 25.0, "H": 209.2, "U": 2.092}


def balances(ca, temperature, coolant, k, e, h, u):
    """Rates of concentration and temperature of a stirred tank with an exothermic reaction, in minutes."""
    rate = k * np.exp(-e * (350.0 / temperature - 1.0)) * ca
    return 1.0 - ca - rate, 350.0 - temperature + h * rate + u * (coolant - temperature)


def reactor(t, x, u, p):
    rate = p.k * pm.math.exp(-p.E * (350.0 / x.T - 1.0)) * x.Ca
    return 1.0 - x.Ca - rate, 350.0 - x.T + p.H * rate + p.U * (u.Tc - x.T)


SYSTEM = sid.System(reactor, states=("Ca", "T"), params=tuple(TRUE), inputs=("Tc",), observe=lambda t, x, dx, u, p: {"T": x.T})


@pytest.fixture(scope="module")
def record():
    """Forty samples of a temperature that runs away and comes back within ten of them."""
    rng, t = np.random.default_rng(1), 0.05 * np.arange(40)
    coolant = 300.0 + np.repeat(rng.uniform(-5.0, 5.0, 2), 20)
    x = [np.array([0.5, 350.0])]
    for held in coolant[:-1]:
        run = solve_ivp(lambda t, x, c=held: balances(*x, c, *TRUE.values()), (0.0, 0.05), x[-1], rtol=1e-10, atol=1e-10)
        x.append(run.y[:, -1])
    measured = np.array(x)[:, 1] + 0.5 * rng.standard_normal(40)
    return sid.TimeSeries(t, coolant, measured, inputs=("Tc",), outputs=("T",), intersample="zoh")


def model(record, substeps):
    with pm.Model() as found:
        unknowns = {
            "k": pm.LogNormal("k", 0.0, 0.7),
            "E": pm.Normal("E", 20.0, 5.0),
            "H": pm.LogNormal("H", np.log(150.0), 0.5),
            "U": pm.LogNormal("U", 0.5, 0.5),
        }
        noise = pm.HalfNormal("noise", 2.0)
        sid.ODEFilter("y", SYSTEM, record, unknowns, x0={"Ca": 0.5, "T": 350.0}, noise=noise, substeps=substeps)
    return found


OPTIONS = {"prior_draws": 300, "starts": 4, "tempering": False, "random_seed": 1, "progressbar": False}


def test_searches_go_on_beyond_an_edge_that_too_few_steps_draw(record):
    built = model(record, "auto")
    few = sid.substeps_attrs(built)["substeps_y"]
    mode = sid.find_mode(built, **OPTIONS)
    assert mode.converged
    for name, value in TRUE.items():
        assert_allclose(mode.initvals[name], value, rtol=0.05)
    assert sid.substeps_attrs(built)["substeps_y"] > few
    assert "gets no further through the record where searches ended" in mode.message


def test_steps_that_were_given_stay_and_the_remedy_is_said(record):
    built = model(record, 1)
    with pytest.warns(UserWarning, match="no clear maximum"):
        mode = sid.find_mode(built, **OPTIONS)
    assert not mode.converged and sid.substeps_attrs(built)["substeps_y"] == 1
    assert "take more substeps" in mode.message


def test_a_filter_with_given_steps_does_not_keep_another_from_more(record):
    decay = sid.System(
        lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    t = 0.1 * np.arange(20)
    built = model(record, "auto")
    with built:
        rate = {"rate": pm.LogNormal("rate", 0.0, 0.5)}
        sid.ODEFilter("z", decay, sid.TimeSeries(t, None, np.exp(-t)), rate, noise=0.05, x0=1.0, substeps=4)
    mode = sid.find_mode(built, **OPTIONS)
    assert mode.converged and abs(mode.initvals["E"] - TRUE["E"]) < 1.0
    steps = sid.substeps_attrs(built)
    assert steps["substeps_y"] > 1 and steps["substeps_z"] == 4 and "take more substeps" not in mode.message


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_second_search_that_leads_nowhere_leaves_what_the_first_has_found(record, error, monkeypatch):
    built, calls, run = model(record, "auto"), [], mode_search.Hunt.run

    def second_fails(self, *arguments, **options):
        calls.append(self)
        if len(calls) > 1:
            raise error("in the second search")
        return run(self, *arguments, **options)

    monkeypatch.setattr(mode_search.Hunt, "run", second_fails)
    with pytest.warns(UserWarning):
        mode = sid.find_mode(built, **OPTIONS)
    assert len(calls) == 2 and not mode.converged
    assert mode.logp > -250.0 and sid.substeps_attrs(built)["substeps_y"] == 1
