"""A model as batched functions: against loops over the model's own log-density, and formulas where there are some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import ordered
from scipy import stats

import pm_sysid as sid
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.prior_draws import free_draws
from pm_sysid.recurrence import functions

T = 12
X = np.linspace(-1.0, 1.0, T)
Y = 0.5 + 2.0 * X + 0.3 * np.random.default_rng(0).normal(size=T)
FAST = dict(mode="FAST_COMPILE", cxx="")
NAMES = dict(states=("level",), inputs=("F",), params=("rate",))
DECAY = sid.System(lambda t, x, u, p: u.F - p.rate * x.level, observe=lambda t, x, dx, u, p: x.level, **NAMES)
BOTH = sid.System(lambda t, x, u, p: u.F - p.rate * x.level, observe=lambda t, x, dx, u, p: (x.level, dx.level), **NAMES)


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Functions without compilation, where it is not the compiled ones that are tested."""
    with pytensor.config.change_flags(**FAST), np.errstate(all="ignore"):
        yield


# -- models -----------------------------------------------------------------------------------------------------------


def record(length: int = T, seed: int = 0, outputs: int = 0) -> sid.TimeSeries:
    t, rng = np.arange(length) * 0.2, np.random.default_rng(seed)
    y = np.exp(-t)[:, None] * [1.0, -1.0][: outputs or 1] + 0.1 * rng.normal(size=(length, outputs or 1))
    y[length // 2, 0] = np.nan
    return sid.TimeSeries(t, np.sin(t), y if outputs else y[:, 0], intersample="foh")


def regression() -> None:
    a, b, sigma = pm.Normal("a", 1.0, 2.0), pm.LogNormal("b", 0.5, 0.7), pm.HalfNormal("sigma", 0.5)
    pm.Normal("y", a + b * X, sigma, observed=Y)


def hierarchical() -> None:
    mu, tau, low = pm.Normal("mu", 0.5, 2.0), pm.HalfNormal("tau"), pm.Uniform("low", -3.0, -1.0)
    group, high = pm.Normal("group", mu, tau, shape=3), pm.Deterministic("high", low + pm.math.exp(mu))
    w = pm.Uniform("w", low, high, shape=2)
    share, late = pm.Beta("share", 2.0, 3.0), pm.Truncated("late", pm.Exponential.dist(2.0), lower=mu)
    pm.Potential("sum to zero", -10.0 * group.sum() ** 2)
    pm.Potential("pointwise", -0.1 * (w - Y[:2]) ** 2)
    centre = pm.Deterministic("centre", group[np.arange(T) % 3] + w[0] * share)
    pm.Normal("y", centre + late, 1.0, observed=Y)


def vectors() -> None:
    simplex, steps = pm.Dirichlet("simplex", [1.0, 2.0, 3.0]), pm.Normal("steps", shape=3)
    matrix, zero = pm.Gamma("matrix", 2.0, 1.0, shape=(2, 3)), pm.ZeroSumNormal("zero", shape=3)
    pm.Normal("y", matrix[0] * simplex + steps + zero * matrix[1, 1], 1.0, observed=np.outer(Y, [1.0, 2.0, 3.0]))


def several() -> None:
    rate, scale = pm.Gamma("rate", 2.0, 1.0), pm.HalfCauchy("scale", 1.0)
    pm.Poisson("count", rate, observed=np.arange(T))
    pm.StudentT("y", 3.0, mu=rate, sigma=scale, observed=Y)
    pm.MvNormal("pair", pt.stack([rate, scale]), np.eye(2), observed=np.stack([X, Y], axis=1))


def mixed() -> None:
    """A filter beside another observed variable that shares a parameter."""
    put("dynamic")
    pm.Normal("extra", pm.Normal("offset"), pm.modelcontext(None)["noise"], observed=Y)


def put(kind: Any, data: Any = None) -> None:
    rate, options = pm.LogNormal("rate", 0.0, 0.3), dict(x0=1.0, solver=sid.EK1(order=1, diffusion=1.0))
    noise: Any = pm.HalfNormal("noise", 0.2, shape=2 if kind == "outputs" else ())
    system, data = (BOTH, data or record(outputs=2)) if kind == "outputs" else (DECAY, data or record())
    if kind in ("mle", "dynamic"):
        options["solver"] = sid.EK1(order=1, diffusion=kind)
    elif kind == "variable":
        options["solver"] = sid.EK0(order=2, diffusion=pm.LogNormal("diffusion"))
    elif kind == "records":
        data, starts = [record(8), record(4, 1)], pm.Normal("starts", 1.0, 0.2, shape=2)
        options["x0"] = [dict(level=starts[0]), dict(level=starts[1])]
    if kind == "mle":
        options |= dict(x0=dict(level=pm.Normal("start", 1.0, 0.2)), x0_std=0.05)
    sid.ODEFilter("y", system, data, dict(rate=rate), noise=noise, substeps=2, **options)


KINDS = ("mle", "number", "dynamic", "variable", "outputs", "records")
MODELS: dict[str, Callable[[], None]] = {
    **{f.__name__: f for f in (regression, hierarchical, vectors, several, mixed)},
    **{str(k): lambda k=k: put(k) for k in KINDS},
}


def build(make: Callable[[], Any]) -> pm.Model:
    with pytensor.config.change_flags(**FAST), pm.Model() as model:
        make()
    return model


@cache
def target_of(name: str) -> sid.Target:
    return sid.Target(build(MODELS[name]))


def some(target: sid.Target, n: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 0.3, (n, target.size))


def loop(target: sid.Target, outputs: Any, particles: np.ndarray) -> np.ndarray:
    """Model expressions at each particle alone."""
    model = target.model
    function = model.compile_fn(outputs, inputs=model.value_vars, mode=FAST["mode"], on_unused_input="ignore")
    point, rows = model.initial_point(), []
    for particle in particles:
        parts = np.split(particle, np.cumsum([np.size(point[v.name]) for v in model.value_vars])[:-1])
        at = {v.name: p.reshape(np.shape(point[v.name])) for v, p in zip(model.value_vars, parts, strict=True)}
        rows.append(function(at))
    return np.array(rows)


def pointwise(target: sid.Target, particles: np.ndarray) -> np.ndarray:
    """Log-likelihood (B, T) of each sample."""
    model, total = target.model, 0.0
    for term in model.logp(vars=model.observed_RVs, sum=False):
        values = loop(target, term, particles)
        total = total + values.reshape(*values.shape[:2], -1).sum(axis=2)
    return total


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_prior_and_likelihood_are_those_of_the_model(name: str, interpreted: None) -> None:
    target, model = target_of(name), target_of(name).model
    particles = some(target)
    prior, likelihood = target.log_prior(particles), target.log_likelihood(particles)
    assert prior.shape == likelihood.shape == (6,) and np.isfinite(prior).all() and np.isfinite(likelihood).all()
    own = loop(target, [model.logp(), model.logp(vars=[*model.free_RVs, *model.potentials])], particles).T
    np.testing.assert_allclose(prior, own[1], rtol=1e-10)
    np.testing.assert_allclose(prior + likelihood, own[0], rtol=1e-10)
    each = pointwise(target, particles)
    assert each.shape == (6, target.n_samples)
    for n in (1, 7, T):
        np.testing.assert_allclose(target.log_likelihood(particles, n), each[:, :n].sum(axis=1), rtol=1e-10, atol=1e-12)
    edges = [0, 0, 3, 4, 4, 9, T]
    blocks = np.stack([each[:, a:b].sum(axis=1) for a, b in pairwise(edges)], axis=1)
    np.testing.assert_allclose(target.log_likelihood(particles, edges=edges), blocks, rtol=1e-9, atol=1e-10)


def test_a_regression_is_its_formula() -> None:
    target = sid.Target(build(regression))
    particles = some(target, 9)
    a, b, sigma = particles[:, :1], np.exp(particles[:, 1:2]), np.exp(particles[:, 2:])
    prior = stats.norm.logpdf(a, 1, 2) + stats.norm.logpdf(np.log(b), 0.5, 0.7) + np.log(sigma)
    prior += stats.halfnorm.logpdf(sigma, 0, 0.5)
    each = stats.norm.logpdf(Y, a + b * X, sigma)
    particles[4, 2], prior[4], each[4] = -800.0, np.nan, -np.inf
    assert np.isfinite(target.log_prior(particles)[4])
    prior[4] = target.log_prior(particles)[4]
    np.testing.assert_allclose(target.log_prior(particles), prior[:, 0], rtol=1e-12)
    np.testing.assert_allclose(target.log_likelihood(particles), each.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(target.log_likelihood(particles, edges=np.arange(T + 1)), each, rtol=1e-11)
    assert target.labels == ["a", "b_log__", "sigma_log__"] and target.size == 3 and target.n_samples == T
    assert repr(sid.Target(target.model, threads=3)) == "Target(3 unknowns, 12 samples, 3 threads)"


@pytest.mark.parametrize("name", ["regression", "several", "mixed"])
def test_many_points_are_evaluated_a_few_together(name: str, interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is observed without a filter would else be kept for all of them, with every intermediate result."""
    target = target_of(name)
    particles = some(target, 11)
    whole = target.log_likelihood(particles, edges=[0, 5, T])
    monkeypatch.setattr(functions, "IN_CACHE", 3 * T)
    function, seen = target._graphs.pointwise, []

    def counted(points: np.ndarray, *rest: Any) -> Any:
        seen.append(len(points))
        return function(points, *rest)

    monkeypatch.setitem(vars(target._graphs), "pointwise", counted)
    np.testing.assert_array_equal(target.log_likelihood(particles, edges=[0, 5, T]), whole)
    assert seen == [3, 3, 3, 2]


def test_searches_evaluate_a_few_points_together_where_there_is_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.zeros((600, 3))
    for make, parts in ((regression, [100] * 6), (lambda: put("number"), [512, 88])):
        monkeypatch.setattr(functions, "IN_CACHE", 100 * T)
        assert [len(part) for part in PosteriorFunctions(build(make))._parts(points)] == parts


@pytest.mark.parametrize("kind", [pytest.param("mle", marks=pytest.mark.slow), "records"])
def test_compiled_filters_go_on_where_they_ended(kind: str) -> None:
    target = sid.Target(build(lambda: put(kind)), threads=2)
    particles = some(target, 20)
    each = pointwise(target, particles[:3])
    whole = target.log_likelihood(particles, edges=np.arange(T + 1))
    np.testing.assert_allclose(whole[:3], each, rtol=1e-9)
    target.threads = 1
    np.testing.assert_array_equal(target.log_likelihood(particles, edges=np.arange(T + 1)), whole)
    for middle, late in ((0, 1), (5, 5), (3, 8), (7, 9), (8, T), (T, T)):
        first, progress = target.start(particles, [0, middle])
        second, progress = target.advance(particles, range(middle, late + 1) if late > middle else [middle, late], progress)
        third, _ = target.advance(particles, [late, T], progress)
        parts = np.concatenate([first, second, third], axis=1).sum(axis=1)
        np.testing.assert_allclose(parts, whole.sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("kind", ["mle", "number", "records"])
def test_progress_goes_with_its_particles(kind: str, interpreted: None) -> None:
    target = target_of(kind)
    old, new = some(target, 5), some(target, 3, seed=1)
    (_, mine), (_, theirs) = target.start(old, [0, 3]), target.start(new, [0, 3])
    both = np.concatenate([old, new])
    want = target.log_likelihood(both, edges=[0, 3, 7, T])[:, 1:]
    for index in (np.arange(8), np.array([4, 4, 0, 2, 6, 7, 7]), np.arange(8) % 3 == 0, np.array([7])):
        got, _ = target.advance(both[index], [3, 7, T], mine.join(theirs).take(index))
        np.testing.assert_allclose(got, want[index], rtol=1e-12)


def test_a_filter_may_be_calibrated_by_the_first_samples(interpreted: None) -> None:
    target = target_of("mle")
    particles = some(target)
    for n in (2, 7, T):
        short = sid.Target(build(lambda n=n: put("mle", record()[:n])))
        (got, _), want = (
            target.start(particles, [0, 1, n], diffusion_samples=n),
            short.log_likelihood(particles, edges=[0, 1, n]),
        )
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_blocks_after_an_outlier_are_exact(interpreted: None) -> None:
    def outlier() -> None:
        pm.Normal("y", pm.Normal("a"), 1e-3, observed=np.concatenate([[1e9], np.zeros(5)]))

    target = sid.Target(build(outlier))
    expected = stats.norm.logpdf(0.0, 0.0, 1e-3)
    np.testing.assert_allclose(target.log_likelihood(np.zeros((1, 1)), edges=[0, 1, 2, 6])[0, 1:], [expected, 4 * expected])


@pytest.mark.parametrize("name", ["regression", "several", "mixed", "number"])
def test_no_samples_have_no_likelihood(name: str, interpreted: None) -> None:
    target = target_of(name)
    particles = some(target)
    np.testing.assert_array_equal(target.log_likelihood(particles, 0), 0.0)
    first, progress = target.start(particles, [0, 5])
    rest, _ = target.advance(particles, [5, 5, T, T], progress)
    np.testing.assert_array_equal(rest[:, [0, 2]], 0.0)
    np.testing.assert_allclose(first[:, 0] + rest[:, 1], target.log_likelihood(particles), rtol=1e-12)


# -- observed variables that do not see the parameters ----------------------------------------------------------------


@pytest.mark.parametrize("what", [(T,), (T, 2), (T, T), "filter"], ids=str)
def test_observed_variables_may_be_without_parameters(what: Any, interpreted: None) -> None:
    def make() -> None:
        pm.Normal("y", pm.Normal("a"), 1.0, observed=Y)
        if what == "filter":
            sid.ODEFilter("f", DECAY, record(), dict(rate=1.0), noise=0.1, x0=1.0, solver=sid.EK1(order=1), substeps=2)
        else:
            pm.Normal("fixed", 0.0, 1.0, observed=np.random.default_rng(0).normal(size=what))

    target = sid.Target(build(make))
    particles = some(target, T)
    np.testing.assert_allclose(target.log_likelihood(particles), pointwise(target, particles).sum(axis=1), rtol=1e-10)


# -- impossible parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["regression", "hierarchical", "several", "dynamic", "outputs", "mle"])
@pytest.mark.parametrize("value", [-800.0, 800.0, np.nan])
def test_impossible_parameters_cost_only_their_own_particle(name: str, value: float, interpreted: None) -> None:
    target = target_of(name)
    column = next(i for i, label in enumerate(target.labels) if label.endswith("_log__"))
    particles = some(target)
    bad = particles.copy()
    bad[2, column] = value
    keep = np.arange(6) != 2
    for function in (target.log_prior, target.log_likelihood, lambda p: target.log_likelihood(p, edges=[0, 0, 5, T])[:, 1:]):
        got, healthy = function(bad), function(particles)
        np.testing.assert_allclose(got[keep], healthy[keep], rtol=1e-13)
        assert not np.isnan(got).any()
    with np.errstate(all="ignore"):
        total = target.log_prior(bad) + target.log_likelihood(bad)
    assert not total[2] > -300 and np.all(np.isfinite(total[keep]))
    prior, d_prior, likelihood, d_likelihood = target.value_and_gradient(bad)
    assert not np.isnan(prior).any() and not np.isnan(likelihood).any()
    assert np.isfinite(d_prior[keep]).all() and np.isfinite(d_likelihood[keep]).all()


# -- gradients --------------------------------------------------------------------------------------------------------


def check_gradients(target: sid.Target, n: int | None) -> None:
    particles = some(target, 3)
    prior, d_prior, likelihood, d_likelihood = target.value_and_gradient(particles, n)
    np.testing.assert_allclose(prior, target.log_prior(particles), rtol=1e-11)
    np.testing.assert_allclose(likelihood, target.log_likelihood(particles, n), rtol=1e-11)
    h = 1e-3
    for got, function in ((d_prior, target.log_prior), (d_likelihood, lambda p: target.log_likelihood(p, n))):
        assert got.shape == particles.shape
        slopes = []
        for e in np.eye(target.size) * h:
            near, far = (function(particles + k * e) - function(particles - k * e) for k in (1, 2))
            slopes.append((8 * near - far) / (12 * h))
        np.testing.assert_allclose(got, np.stack(slopes, axis=1), rtol=1e-6, atol=1e-6 * (1 + np.abs(got).max()))


@pytest.mark.parametrize(
    "name, n", [("hierarchical", 5), ("vectors", None), ("several", 7), ("mixed", 7), ("outputs", None), ("mle", 7)]
)
def test_gradients_are_slopes(name: str, n: int | None, interpreted: None) -> None:
    check_gradients(target_of(name), n)


@pytest.mark.slow
def test_compiled_gradients_are_slopes_and_those_of_the_model() -> None:
    target = sid.Target(build(lambda: put("records")))
    check_gradients(target, 7)
    particles = some(target, 3)
    _, d_prior, _, d_likelihood = target.value_and_gradient(particles)
    np.testing.assert_allclose(d_prior + d_likelihood, loop(target, target.model.dlogp(), particles), rtol=1e-8)


# -- prior ------------------------------------------------------------------------------------------------------------


def test_prior_draws_have_the_distribution_of_the_prior_in_unconstrained_space(interpreted: None) -> None:
    target = target_of("hierarchical")
    # The potentials of the model thin these out afterwards.
    draws = dict(zip(target.labels, free_draws(target.coordinates, 2000, 3).T, strict=True))
    mu, tau = draws["mu"], np.exp(draws["tau_log__"])
    samples = {
        "mu": stats.norm(0.5, 2.0).cdf(mu),
        "tau": stats.halfnorm().cdf(tau),
        "low": stats.logistic().cdf(draws["low_interval__"]),
        **{f"w{i}": stats.logistic().cdf(draws[f"w_interval__[{i}]"]) for i in range(2)},
        **{f"group{i}": stats.norm().cdf((draws[f"group[{i}]"] - mu) / tau) for i in range(3)},
        "share": stats.beta(2, 3).cdf(1 / (1 + np.exp(-draws["share_logodds__"]))),
    }
    for name, uniform in samples.items():
        assert stats.kstest(uniform, "uniform").pvalue > 1e-4, name
    names, values = list(samples), np.array(list(samples.values()))
    dependence = np.abs(np.corrcoef(values) - np.eye(len(names))).max()
    assert dependence < 4.5 / np.sqrt(2000), "given what they depend on, the variables are independent"


@pytest.mark.parametrize("name", ["regression", "vectors", "hierarchical", "records"])
def test_prior_draws_are_particles_and_repeat_with_the_seed(name: str, interpreted: None) -> None:
    target = target_of(name)
    first, second, third = (target.draw_prior(7, random_seed=s) for s in (1, 1, 2))
    assert first.shape == (7, target.size) and first.dtype == np.float64 and target.draw_prior(1).shape == (1, target.size)
    np.testing.assert_array_equal(first, second)
    assert np.all(first != third)
    assert np.isfinite(target.log_prior(first)).all()


def test_prior_draws_of_an_ordered_variable_are_ordered_or_refused(interpreted: None) -> None:
    def make() -> None:
        pm.Normal("y", pm.Normal("steps", shape=3, transform=ordered, initval=[0.0, 1.0, 2.0]).sum(), 1.0, observed=Y)

    target = sid.Target(build(make))
    try:
        draws = target.draw_prior(5, random_seed=0)
    except ValueError as error:
        assert "steps" in str(error)
    else:
        assert np.isfinite(draws).all()


@pytest.mark.parametrize("name", ["hierarchical", "vectors", "records"])
def test_constrained_values_are_those_of_the_model(name: str, interpreted: None) -> None:
    target, model = target_of(name), target_of(name).model
    particles = some(target, 4)
    got = target.constrained(particles)
    assert set(got) == {v.name for v in (*model.free_RVs, *model.deterministics)}
    for variable in model.unobserved_value_vars:
        if variable.name in got:
            np.testing.assert_allclose(got[variable.name], loop(target, variable, particles), rtol=1e-12)


# -- data -------------------------------------------------------------------------------------------------------------


def test_new_data_of_the_same_length_are_seen(interpreted: None) -> None:
    def with_data() -> None:
        x, y = pm.Data("x", X), pm.Data("data", Y)
        pm.Normal("y", pm.Normal("a") * x, 1.0, observed=y)

    target = sid.Target(build(with_data))
    particles = some(target)
    before = target.log_likelihood(particles), target.value_and_gradient(particles)[3]
    pm.set_data({"x": 2 * X, "data": Y**2}, model=target.model)
    after = target.log_likelihood(particles), target.value_and_gradient(particles)[3]
    np.testing.assert_allclose(after[0], stats.norm.logpdf(Y**2, particles * 2 * X).sum(axis=1), rtol=1e-12)
    assert all(np.all(a != b) for a, b in zip(after, before, strict=True))


def test_a_new_record_of_the_same_length_is_seen(interpreted: None) -> None:
    target, fresh = (sid.Target(build(lambda d=d: put("mle", d))) for d in (record(), record(seed=5)))
    particles = some(target)
    before = target.log_likelihood(particles)
    sid.set_data({"y": record(seed=5)}, target.model)
    got = target.log_likelihood(particles)
    assert np.all(got != before)
    np.testing.assert_allclose(got, fresh.log_likelihood(particles), rtol=1e-12)


def test_a_copied_target_is_the_same() -> None:
    target = sid.Target(build(lambda: put("records")), threads=2)
    cold = cloudpickle.loads(cloudpickle.dumps(target))
    want = target.log_likelihood(some(target))
    for copy in (cold, cloudpickle.loads(cloudpickle.dumps(target))):
        np.testing.assert_array_equal(copy.log_likelihood(some(target)), want)
        assert copy.labels == target.labels and repr(copy) == repr(target)


def test_log_likelihoods_of_one_number_are_taken_in_with_the_first_sample(interpreted: None) -> None:
    with pm.Model() as model:
        a = pm.Normal("a")
        series = pm.Normal("y", a, 1.0, observed=Y)
        both = [pm.MvNormal("z", a * np.ones(3), np.eye(3), observed=X[:3]), pm.Normal("measured", a, 0.5, observed=0.2)]
    target = sid.Target(model)
    assert target.n_samples == T
    particles = some(target)
    first, rest = target.log_likelihood(particles, edges=[0, 1, T]).T
    densities = [pm.logp(rv, model.rvs_to_values[rv]) for rv in (series, *both)]
    for value, early, late in zip(particles[:, 0], first, rest, strict=True):
        samples, *once = (density.eval({a: value}, mode="FAST_COMPILE") for density in densities)
        np.testing.assert_allclose([early, late], [samples[0] + sum(once), samples[1:].sum()], rtol=1e-10)


def test_a_model_without_a_series_has_one_sample() -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1.0, observed=1.0)
    target = sid.Target(model)
    assert target.n_samples == 1
    np.testing.assert_allclose(target.log_likelihood([[0.5]]), -0.5 * np.log(2 * np.pi) - 0.125)


def test_the_model_on_the_context_stack_is_the_default() -> None:
    with pm.Model() as model:
        regression()
        assert sid.Target().model is model


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: pm.Normal("a"), "the model has no observed variable; give it a likelihood, such as"),
        (lambda: pm.Normal("y", pm.Poisson("n", 2.0), 1.0, observed=Y), r"free variables \['n'\] are discrete"),
        (lambda: pm.Normal("y", 0.0, 1.0, observed=Y), "the model has no free variables"),
        (lambda: (several(), pm.Normal("z", 0.0, 1.0, observed=X[:3])), r"different numbers of samples: \{.*'z': 3\}"),
    ],
)
def test_models_that_cannot_be_targets_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sid.Target(build(make))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda t, p: t.log_prior(p[:, :2]),
            r"particles have the shape \(6, 2\); give one row a particle and 3 columns.*'b_log__'",
        ),
        (lambda t, p: t.log_likelihood(p[0]), r"particles have the shape \(3,\)"),
        (lambda t, p: t.log_likelihood(p[:0]), r"particles have the shape \(0, 3\)"),
        (lambda t, p: t.value_and_gradient(p[None]), r"particles have the shape \(1, 6, 3\)"),
        (lambda t, p: t.constrained(p[:, :1]), r"particles have the shape \(6, 1\)"),
        (lambda t, p: t.log_likelihood(p, T + 1), r"edges are \[0, 13\]; give at least two whole numbers between 0 and 12"),
        (lambda t, p: t.log_likelihood(p, -1), r"edges are \[0, -1\]"),
        (lambda t, p: t.log_likelihood(p, 2.0), r"edges are \[0, 2.0\]"),
        (lambda t, p: t.value_and_gradient(p, T + 1), r"edges are \[0, 13\]"),
        (lambda t, p: t.log_likelihood(p, edges=[0]), r"edges are \[0\]"),
        (lambda t, p: t.log_likelihood(p, edges=[]), r"edges are \[\]"),
        (lambda t, p: t.log_likelihood(p, edges=5), "edges are 5"),
        (lambda t, p: t.log_likelihood(p, edges=[0, 5, 4]), "that do not decrease"),
        (lambda t, p: t.log_likelihood(p, edges=[-1, 5]), r"edges are \[-1, 5\]"),
        (lambda t, p: t.log_likelihood(p, edges=[0.0, 5.0]), r"edges are \[0.0, 5.0\]"),
        (lambda t, p: t.log_likelihood(p, edges=[[0, 5]]), r"edges are \[\[0, 5\]\]"),
        (lambda t, p: t.log_likelihood(p, edges=[2, 5]), "edges start at 2; start at sample 0, or go on from earlier progress"),
        (lambda t, p: t.log_likelihood(p, 3, edges=[0, 3]), "give either n or edges, not both"),
        (lambda t, p: sid.Target(t.model, threads=0).log_prior(p), "threads is 0; give a positive integer"),
        (lambda t, p: sid.Target(t.model, threads=True).log_prior(p), "threads is True"),
        (lambda t, p: sid.Target(t.model, threads=1.5).log_likelihood(p), "threads is 1.5"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call: Callable[[Any, np.ndarray], Any], message: str, interpreted: None) -> None:
    target = target_of("regression")
    with pytest.raises(ValueError, match=message):
        call(target, some(target))
