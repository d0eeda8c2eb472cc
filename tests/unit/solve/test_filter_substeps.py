"""The steps that ``"auto"`` chooses for a filter: enough where the posterior is, and not many more; where they are judged."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.solve.filter_graph import Unknowns
from pm_sysid.solve.filter_substeps import LogLikelihoodCriterion, _far_apart, nearest_unknowns
from pm_sysid.solve.substeps import Criterion, settled_substeps

HARE = [30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1, 40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]
LYNX = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]
DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
)


def spiking() -> tuple[pm.Model, Unknowns]:
    """FitzHugh and Nagumo's neuron: at rest in the middle of the prior."""
    system = sid.System(
        lambda t, x, u, p: (p.c * (x.V - x.V**3 / 3 + x.R), -(x.V - p.a + p.b * x.R) / p.c),
        states=("V", "R"),
        params=("a", "b", "c"),
        observe=lambda t, x, dx, u, p: (x.V, x.R),
    )
    t, truth, x0 = np.arange(41) * 0.5, {"a": 0.2, "b": 0.2, "c": 3.0}, [-1.0, 1.0]
    run = sid.simulate(system, sid.TimeSeries(t), truth, x0=x0)
    y = np.stack([run["V"], run["R"]], axis=1) + 0.2 * np.random.default_rng(0).standard_normal((41, 2))
    with pm.Model() as model:
        p = {"a": pm.Normal("a", 0, 0.4), "b": pm.Normal("b", 0, 0.4), "c": pm.ChiSquared("c", 2)}
        sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), p, noise=pm.HalfNormal("noise", 1), x0=x0)
    return model, Unknowns([*truth.values()], [x0], np.zeros((1, 2)), [0.2, 0.2], np.ones(2))


def hunting() -> tuple[pm.Model, Unknowns]:
    """Hare and lynx, with the priors of Stan's case study: in their middle the populations die out."""
    system = sid.System(
        lambda t, x, u, p: ((p.alpha - p.beta * x.v) * x.u, (-p.gamma + p.delta * x.u) * x.v),
        states=("u", "v"),
        params=("alpha", "beta", "gamma", "delta"),
        observe=lambda t, x, dx, u, p: (pt.log(x.u), pt.log(x.v)),
    )
    record = sid.TimeSeries(np.arange(21.0), None, np.log(np.c_[HARE, LYNX]))
    middles = {"alpha": (1.0, 0.5), "beta": (0.05, 0.05), "gamma": (1.0, 0.5), "delta": (0.05, 0.05)}
    with pm.Model() as model:
        p = {name: pm.TruncatedNormal(name, *middle, lower=0) for name, middle in middles.items()}
        start, noise = pm.LogNormal("start", np.log(10), 1, shape=2), pm.LogNormal("noise", -1, 1, shape=2)
        sid.ODEFilter("y", system, record, p, noise=noise, x0={"u": start[0], "v": start[1]})
    return model, Unknowns([0.55, 0.028, 0.80, 0.024], [[33.98, 5.95]], np.zeros((1, 2)), [0.25, 0.25], np.ones(2))


@pytest.mark.parametrize("build", [spiking, hunting])
def test_the_steps_are_enough_where_the_posterior_is_and_not_four_times_too_many(build, caplog) -> None:
    with caplog.at_level(logging.INFO, "pm_sysid"):
        model, posterior = build()
    view = filter_view("y", model)
    choice = view.op.grid.choice
    errors = LogLikelihoodCriterion(view.problem, view.records(), [posterior], [view.measured()], "", 1.0)
    exact = errors.value(128)
    enough = next(n for n in (1, 2, 4, 8, 16, 32) if errors.change(errors.value(n), exact) < 0.1)
    assert enough <= choice.substeps <= 2 * enough
    assert enough > 1 and choice.settled and choice.asked == "auto"
    said = f"y: substeps='auto' chose {choice.substeps} filter steps a sample, judged at the 8 of 512 prior draws"
    assert said in caplog.text


FAST = np.arange(100) * 0.2


def push(t: Any, m: Any = np) -> Any:
    """A force that comes and goes."""
    return m.sin(2 * t) * m.exp(-(((t - 10) / 3) ** 2)) + 0.5 * m.sin(6 * t) * m.exp(-(((t - 9) / 3) ** 2))


def sprung(k: float) -> np.ndarray:
    """Displacements of a mass on a hardening spring, by an accurate solver."""
    slopes = lambda t, x: [x[1], push(t) - 0.3 * x[1] - k * x[0] - 0.5 * x[0] ** 3]  # noqa: E731
    return solve_ivp(slopes, (0, FAST[-1]), [0.0, 0.0], t_eval=FAST, rtol=1e-11, atol=1e-13, max_step=0.05).y[0]


@pytest.mark.parametrize("noise", [2e-2, 5e-3, 1e-3, 4e-4, 1e-4])
def test_the_posterior_is_as_wide_as_the_noise_makes_it(noise: float) -> None:
    """Noise near what the integration errs by: its variance in that of predictions is not seen where a record fits best."""
    clean, apart = sprung(4.0), 1e-3
    slope = (sprung(4.0 + apart) - sprung(4.0 - apart)) / (2 * apart)
    y = clean + noise * np.random.default_rng(2).standard_normal(len(FAST))
    sd = noise / np.linalg.norm(slope)
    system = sid.System(
        lambda t, x, u, p: (x.v, push(t, pt) - 0.3 * x.v - p.k * x.z - 0.5 * x.z**3),
        states=("z", "v"),
        params=("k",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    with pm.Model() as model:
        k = pm.LogNormal("k", np.log(4.0), 0.01)
        sid.ODEFilter("y", system, sid.TimeSeries(FAST, None, y), {"k": k}, noise=noise, x0=0.0)
    ends = np.array([4.0 - sd, 4.0, 4.0 + sd])
    below, middle, above = sid.Target(model).log_likelihood(np.log(ends)[:, None])
    curvature, gradient = 2 * middle - below - above, (above - below) / 2  # by sd
    offset = gradient / curvature - slope @ (y - clean) / noise**2 * sd
    assert filter_view("y", model).op.grid.choice.settled
    assert abs(curvature**-0.5 - 1) < 0.05 and abs(offset) < 0.05


def decay(rate: Any, noise: Any, data: Any, **options: Any) -> pm.Model:
    with pm.Model() as model:
        settings: dict[str, Any] = {"solver": sid.EK0(order=1, diffusion=1.0), "x0": 1.0, "substeps": 1} | options
        sid.ODEFilter("y", DECAY, data, {"rate": rate()}, noise=noise(), **settings)
    return model


def judged_at(model: pm.Model) -> tuple[list[Unknowns], str]:
    view = filter_view("y", model)
    return nearest_unknowns(view.problem, view.records(), view.unknowns, model)[:2]


T = np.arange(40) * 0.02
RECORD = sid.TimeSeries(T, None, np.exp(-3.0 * T) + 0.01 * np.cos(40 * T))
TWO = [RECORD.replace(y=np.where(np.arange(40) % 3, RECORD.y, np.nan)), RECORD]


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
@pytest.mark.parametrize("data", [RECORD, TWO], ids=["one", "two, with gaps"])
def test_draws_near_the_record_are_found(data) -> None:
    points, where = judged_at(decay(lambda: pm.LogNormal("rate", 0.0, 1.5), lambda: pm.HalfNormal("noise", 5.0), data))
    assert where == "at the 8 of 512 prior draws that come nearest to the record" and len(points) == 8
    np.testing.assert_allclose([p.params[0] for p in points], 3.0, rtol=0.2)
    assert all(0 < p.noise[0] < 0.1 for p in points)  # not the 3.4 that the prior expects


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_where_nothing_can_be_drawn_the_initial_point_is_taken() -> None:
    model = decay(lambda: pm.Flat("rate", initval=2.0), lambda: 0.1, RECORD)
    (point,), where = judged_at(model)
    assert where == "at the model's initial point" and point.params[0] == 2.0 and point.noise[0] == 0.1
    (point,), where = judged_at(decay(lambda: 4.0, lambda: 0.1, RECORD))
    assert where == "at the values given" and point.params[0] == 4.0


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_an_initial_value_that_fits_is_among_the_points() -> None:
    """No draw of this prior comes near the record."""
    points, _ = judged_at(decay(lambda: pm.LogNormal("rate", np.log(300.0), 0.1, initval=3.0), lambda: 0.1, RECORD))
    assert points[0].params[0] == pytest.approx(3.0)


def shaken(scale: float, force: float = 1.0, **options: Any) -> pm.Model:
    """A record of a mass on a spring in other units than those of the priors."""
    rng, t = np.random.default_rng(0), 0.02 * np.arange(500)
    input = sid.TimeSeries(t, np.convolve(rng.normal(size=500), np.ones(5), "same"), None, units={"u": "N"})
    system = sid.models.duffing()
    z = sid.simulate(system, input, {"m": 1.0, "c": 2.0, "k": 100.0, "k3": 0.0}, x0=0.0, substeps=8)["y"].to_numpy()
    z = scale * (z + 1e-3 * z.std() * rng.normal(size=500))
    with pm.Model() as model:
        params = {"m": 1.0, "c": pm.LogNormal("c", 0.7, 1.0), "k": pm.LogNormal("k", np.log(80.0), 0.7), "k3": 0.0}
        record = input.replace(u=force * input.u, y=z, outputs="z", units={"z": "mm"})
        sid.ODEFilter("y", system, record, params, noise=1e-3, substeps=2, solver=sid.EK0(order=2), **options)
    return model


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
@pytest.mark.parametrize("factors", [(1e3, 1.0), (1.0, 1e-3)], ids=["displacements", "forces"])
@pytest.mark.parametrize("options", [{"x0": 0.0}, {}], ids=["from rest", "initial state inferred"])
def test_other_units_than_those_of_the_priors_are_noticed(factors, options) -> None:
    with pytest.warns(UserWarning, match=r"the record of 'z' \[mm\] moves [\d,]+ times more than the free runs"):
        shaken(*factors, **options)


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
@pytest.mark.parametrize("factors", [(1.0, 1.0), (4.0, 1.0), (1.0, 4.0)])
def test_wrong_priors_and_priors_that_are_still_are_no_other_units(factors) -> None:
    """A factor of four is a prior's business; most draws of the other prior do not oscillate, as the record does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", sid.SubstepWarning)
        shaken(*factors, x0=0.0)
        t = 0.1 * np.arange(200)
        with pm.Model():
            params = {"mu": pm.Normal("mu", -2.0, 2.0)}
            system = sid.System(
                lambda t, x, u, p: (x.v, p.mu * (1 - x.z**2) * x.v - x.z),
                states=("z", "v"),
                params=("mu",),
                observe=lambda t, x, dx, u, p: x.z,
            )
            run = sid.simulate(system, sid.TimeSeries(t), {"mu": 1.0}, x0={"z": 0.1, "v": 0.0}, substeps=8)["y"].to_numpy()
            sid.ODEFilter("y", system, sid.TimeSeries(t, None, run), params, noise=0.1, x0=[0.1, 0.0], substeps=2)


def test_a_single_sample_needs_no_steps() -> None:
    view = filter_view("y", decay(lambda: 1.0, lambda: 0.1, sid.TimeSeries([0.0], None, [1.0]), substeps="auto"))
    assert view.op.substeps == 1 and view.op.grid.choice.settled


class Table(Criterion):
    """Values by the number of steps."""

    tolerance = 0.1

    def __init__(self, *values: float) -> None:
        self.values = dict(zip((1, 2, 4, 8, 16, 32, 64), values, strict=False))

    def value(self, substeps: int) -> float:
        return self.values[substeps]

    def change(self, coarse: float, fine: float) -> float:
        return abs(fine - coarse) if np.isfinite(fine - coarse) else np.inf

    def too_coarse(self, substeps: int, change: float) -> str:
        return f"{substeps} are too few"

    def unsettled(self, change: float) -> str:
        return f"still {change:.1f}"


@pytest.mark.parametrize(
    "values, chosen",
    [
        ((5.0, 5.01, 5.02), 1),
        ((5.0, 5.01, 1.0, 1.0, 1.0), 4),  # wrong twice in the same way
        ((np.nan, np.nan, np.nan, 3.0, 3.0, 3.0), 8),  # lost runs do not agree
        ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.05), 32),
    ],
)
def test_the_fewest_that_twice_and_four_times_as_many_confirm(values, chosen) -> None:
    assert settled_substeps(Table(*values), "auto")[0] == chosen


def test_what_does_not_settle_is_said() -> None:
    with pytest.warns(sid.SubstepWarning, match=r"still 1\.0"):
        assert settled_substeps(Table(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), "auto") == (64, 1.0)
    with pytest.warns(sid.SubstepWarning, match="2 are too few"):
        assert settled_substeps(Table(1.0, 2.0, 3.0), 2) == (2, 1.0)


@pytest.mark.parametrize("prior", [lambda: pm.HalfCauchy("k", 1.0), lambda: pm.LogNormal("k", 1.0, 1.5)])
def test_a_rate_that_is_known_from_below_alone_gets_steps_for_all_that_explain_the_record(prior) -> None:
    """The nearest draws are slow; explicit runs of the fast ones, which explain as much, are lost."""
    t = np.arange(5.0)
    y = np.array([0.03, 0.99, 1.06, 1.01, 0.95])
    filling = sid.System(lambda t, x, u, p: p.k * (1 - x.l), states=("l",), params=("k",), observe=lambda t, x, dx, u, p: x.l)
    with pm.Model() as model:
        sid.ODEFilter("y", filling, sid.TimeSeries(t, None, y), {"k": prior()}, noise=0.1, x0=0.0)
    choice, rates = filter_view("y", model).op.grid.choice, np.exp(np.arange(-1.0, 9.0))
    assert choice.follows and choice.settled
    target = sid.Target(model)
    found = target.log_likelihood(target.unconstrained({"k": rates}))
    exact = norm.logpdf(y, -np.expm1(-rates[:, None] * t), 0.1).sum(axis=1)
    np.testing.assert_allclose(found, exact, atol=0.02)


def test_points_that_come_as_near_are_taken_far_apart() -> None:
    def points(rates: Any) -> list[Unknowns]:
        return [Unknowns(np.array([r]), np.zeros((1, 1)), np.zeros((1, 1)), np.ones(1), np.ones(1)) for r in rates]

    rates = np.array([1.0, 1.1, 1.2, 1.3, 2.0, 5.0, 80.0, 1e6])
    near = np.array([0.0, -0.1, -0.2, -0.3, -0.5, -1.0, -1.9, -7.0])
    picked, many = _far_apart(near, points(rates), 4)
    assert many and picked[:2] == [0, 1] and set(picked[2:]) == {6, 3} and 7 not in picked
    assert _far_apart(near - 3 * np.arange(8), points(rates), 4) == ([0, 1, 2, 3], False)  # none comes as near as the first
    assert _far_apart(np.full(8, -np.inf), points(rates), 4) == ([], False)


def test_a_filter_that_is_lost_where_a_simulation_is_not_is_no_reason_to_look_away() -> None:
    """A slope of 1e200 at the start: such points said nothing, and that part of the prior was ruled out without a word."""
    t = 0.1 * np.arange(30)
    force = np.where(t > 0.5, 1.0, 0.0)
    system = sid.System(
        lambda t, x, u, p: u.F - p.a * x.v / (pt.abs(x.v) + 1e-200) ** p.e,
        states=("v",),
        inputs=("F",),
        params=("a", "e"),
        observe=lambda t, x, dx, u, p: x.v,
    )
    record = sid.TimeSeries(t, {"F": force}, 0.1 * t, intersample="zoh")
    with pm.Model(), pytest.warns(sid.SubstepWarning, match="does not get through where a simulation does; order one may"):
        params = {"a": pm.LogNormal("a", -1.0, 0.3), "e": pm.Beta("e", 2.0, 2.0)}
        op = sid.ODEFilter("y", system, record, params, noise=0.05, x0=0.0).owner.op
    assert not op.grid.choice.settled and op.grid.choice.error == np.inf
