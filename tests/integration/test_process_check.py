"""What linearising about processes costs, as measured by particles and as said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import scipy
import xarray as xr
from scipy.special import logsumexp

import pm_sysid as sid
from pm_sysid.idata import some_draws
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.posterior import process_check as module
from pm_sysid.posterior.particle_filter import ParticleFilter, log_likelihood
from support import tiny

N, DT, SCALE, LENGTH = 40, 0.25, 1.0, 1.0
T = np.arange(N) * DT
LAG = sid.System(
    lambda t, x, u, p: -p.a * x.z + u.d, states=("z",), inputs=("d",), params=("a",), observe=lambda t, x, dx, u, p: x.z
)
SQUARE = sid.System(
    lambda t, x, u, p: -p.a * x.z + u.d, states=("z",), inputs=("d",), params=("a",), observe=lambda t, x, dx, u, p: x.z**2
)


def cubic(strength: float) -> sid.System:
    """A lag with a cubic term beside the linear one."""
    return sid.System(
        lambda t, x, u, p: -p.a * x.z - strength * x.z**3 + u.d,
        states=("z",),
        inputs=("d",),
        params=("a",),
        observe=lambda t, x, dx, u, p: x.z,
    )


CUBE = sid.System(
    lambda t, x, u, p: -p.a * x.z**3 + u.d, states=("z",), inputs=("d",), params=("a",), observe=lambda t, x, dx, u, p: x.z
)


def relative(y: Any) -> Any:
    return pt.sqrt(0.03**2 + (0.5 * y) ** 2)


def model(system: sid.System, record: sid.TimeSeries, scale: float = SCALE, **options: Any) -> pm.Model:
    """A lag at an unknown rate, pushed by a force that nobody recorded."""
    with pm.Model() as built:
        a = pm.LogNormal("a", 0.0, 0.7)
        latent = {"d": sid.OU(scale=scale, length=LENGTH)}
        settings = {"noise": 0.2, "x0": 1.0, "solver": sid.EK1(order=2), "latent": latent, **options}
        sid.ODEFilter("y", system, record, {"a": a}, **settings)
    return built


def draws(*a: float) -> xr.Dataset:
    return xr.Dataset({"a": (("chain", "draw"), np.array([a]))})


type Rate = Callable[[Any, Any, Any], Any]


class Reference:
    """Particles of its own, in plain NumPy: a Heun step of the states on an OU path.

    Cubes are products: a power of an array takes ten times as long.
    """

    def __init__(self, rate: Rate, seen: Callable[[Any], Any], std: Callable[[Any], Any], scale: float = SCALE) -> None:
        self.rate, self.seen, self.std, self.scale = rate, seen, std, scale

    def step(self, z: Any, d: Any, a: float, rng: np.random.Generator) -> tuple[Any, Any]:
        h, keep = DT / 10, np.exp(-DT / 10 / LENGTH)
        for _ in range(10):
            new = keep * d + self.scale * np.sqrt(1 - keep**2) * rng.standard_normal(d.shape)
            k1 = self.rate(z, d, a)
            k2 = self.rate(z + h * k1, new, a)
            z, d = z + h * (k1 + k2) / 2, new
        return z, d

    def record(self, seed: int) -> sid.TimeSeries:
        rng, y = np.random.default_rng(seed), []
        z, d = np.array([1.0]), self.scale * rng.standard_normal(1)
        for i in range(N):
            if i:
                z, d = self.step(z, d, 1.0, rng)
            y.append((self.seen(z) + self.std(self.seen(z)) * rng.standard_normal(1))[0])
        return sid.TimeSeries(T, None, np.array(y))

    def log_likelihood(self, y: np.ndarray, a: float, particles: int, rng: np.random.Generator) -> float:
        z, d, total = np.ones(particles), self.scale * rng.standard_normal(particles), 0.0
        for i, value in enumerate(y):
            if i:
                z, d = self.step(z, d, a, rng)
            m = self.seen(z)
            log = np.nan_to_num(scipy.stats.norm.logpdf(value, m, self.std(m)), nan=-1e300)
            total += logsumexp(log) - np.log(particles)
            weights = np.cumsum(np.exp(log - log.max()))
            at = np.searchsorted(weights, weights[-1] * (np.arange(particles) + rng.random()) / particles)
            z, d = z[np.minimum(at, particles - 1)], d[np.minimum(at, particles - 1)]
        return float(total)

    def evidence(self, y: np.ndarray, particles: int = 8000) -> float:
        grid, rng = np.linspace(-2.2, 2.2, 19), np.random.default_rng(0)
        total = [self.log_likelihood(y, np.exp(v), particles, rng) + scipy.stats.norm.logpdf(v, 0.0, 0.7) for v in grid]
        return float(logsumexp(total) + np.log(grid[1] - grid[0]))


RELATIVE = Reference(lambda z, d, a: -a * z + d, lambda z: z, lambda m: np.sqrt(0.03**2 + (0.5 * m) ** 2))
SQUARED = Reference(lambda z, d, a: -a * z + d, lambda z: z**2, lambda m: 0.2 + 0 * m)
CUBED = Reference(lambda z, d, a: -a * (z * z * z) + d, lambda z: z, lambda m: 0.3 + 0 * m, scale=2.0)
MILD = Reference(lambda z, d, a: -a * z - 0.05 * (z * z * z) + d, lambda z: z, lambda m: 0.2 + 0 * m)
PLAIN = Reference(lambda z, d, a: -a * z + d, lambda z: z, lambda m: 0.2 + 0 * m)


def kalman(y: np.ndarray, a: float, noise: float, start: float, slow: float = 0.0) -> float:
    """Log-likelihood of the lag, exactly: state, force and coloured noise are one linear stochastic equation."""
    F = np.array([[-a, 1.0, 0.0], [0.0, -1 / LENGTH, 0.0], [0.0, 0.0, -2.0]])
    jump = np.diag([0.0, 2 * SCALE**2 / LENGTH, 4.0 * slow**2])
    A = scipy.linalg.expm(F * DT)
    stationary = scipy.linalg.solve_continuous_lyapunov(F, -jump)
    Q, H = stationary - A @ stationary @ A.T, np.array([1.0, 0.0, 1.0])
    m, P, total = np.array([1.0, 0.0, 0.0]), np.diag([start**2, SCALE**2, slow**2]), 0.0
    for i, value in enumerate(y):
        if i:
            m, P = A @ m, A @ P @ A.T + Q
        if np.isnan(value):
            continue
        s = H @ P @ H + noise**2
        total += scipy.stats.norm.logpdf(value, H @ m, np.sqrt(s))
        gain = P @ H / s
        m, P = m + gain * (value - H @ m), P - np.outer(gain, H @ P)
    return float(total)


def estimates(built: pm.Model, a: float, particles: int, repeats: int, led: bool) -> np.ndarray:
    """Independent estimates of the log-likelihood at a rate."""
    filters = ParticleFilter(filter_view(None, built))
    sets = filters.sets([[np.array(a)]])
    motions = filters.motions(sets, 4, [len(r) for r in filters.records])
    guides = filters.guides(motions, sets) if led else [None]
    (motion,), (guide,) = motions, guides
    return log_likelihood(motion, guide, np.zeros(repeats, dtype=int), particles, np.random.default_rng(0))


VARIANTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "known start": ({}, 0.0, 0.0),
    "uncertain start": ({"x0_std": 0.7}, 0.7, 0.0),
    "coloured noise": ({"coloured": {"y": sid.OU(scale=0.3, length=0.5)}}, 0.0, 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("led", [False, True], ids=["free", "led"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_particles_estimate_what_a_kalman_filter_computes(variant: str, led: bool) -> None:
    """Of linear systems: the mean of many estimates of the likelihood is the likelihood."""
    options, start, slow = VARIANTS[variant]
    y = PLAIN.record(3).output_matrix[:, 0].copy()
    y[7] = np.nan
    record = sid.TimeSeries(T, None, y)
    built = model(LAG, record, **options, substeps=8)
    for a in (0.5, 1.5):
        exact = kalman(y, a, 0.2, start, slow)
        ratio = np.exp(estimates(built, a, 100 if led else 400, 100, led) - exact)
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(100) + 0.01  # the paths are smooth between the nodes
        assert ratio.std() < (0.2 if led else 1.0)
        assert float(filter_log_likelihood(built, a)) == pytest.approx(exact, abs=0.1)


def filter_log_likelihood(built: pm.Model, a: float) -> Any:
    logp = built.compile_fn(built.logp(vars=[built["y"]]), inputs=[built.rvs_to_values[built["a"]]])
    return logp({"a_log__": np.log(a)})


@pytest.mark.slow
def test_errors_are_those_that_are_stated() -> None:
    """Where the filter is exact, what the particles say of it is an error: about as large as the standard error says."""
    built = model(LAG, PLAIN.record(1), substeps=8)
    view = filter_view(None, built)
    filters, few = ParticleFilter(view), draws(*np.exp(0.4 * np.random.default_rng(0).standard_normal(64)))
    sets, errors, stated, sizes = filters.sets(some_draws(few, view.model.free_RVs, 64)[1]), [], [], []
    run = module._Run(filters, few, sets, 4, 1.0, np.random.default_rng(0))
    for _ in range(12):
        found = run(False, 256)
        assert found is not None
        assert found.noise == pytest.approx(np.sqrt(np.mean(found.change**2)), rel=0.4)
        assert not found.biased
        errors.append([found.shift["a"], found.evidence, np.log(found.stretch["a"])])
        stated.append([found.shift_error["a"], found.evidence_error, found.stretch_error["a"]])
        sizes.append(found.ess)
    scaled = np.array(errors) / np.array(stated)
    assert np.all(np.abs(scaled) < 4) and np.all(np.sqrt(np.mean(scaled**2, axis=0)) < 1.8)
    assert np.mean(sizes) > 0.85


@pytest.mark.parametrize("led", [False, True], ids=["free", "led"])
def test_particles_estimate_what_quadrature_computes(led: bool) -> None:
    """A force whose square is measured, and nothing else: sums over a grid of its values, sample by sample."""
    system = sid.System(
        lambda t, x, u, p: -x.z, states=("z",), inputs=("d",), params=("a",), observe=lambda t, x, dx, u, p: p.a * u.d**2
    )
    y = np.array([0.5, 1.2, 0.1, np.nan, 2.0, 1.0])
    t = np.arange(6) * DT
    built = model(system, sid.TimeSeries(t, None, y), substeps=2)
    d = np.linspace(-6.0, 6.0, 1201)
    keep, width = np.exp(-DT / LENGTH), d[1] - d[0]
    moves = scipy.stats.norm.pdf(d[:, None], keep * d, np.sqrt(1 - keep**2)) * width
    density = scipy.stats.norm.pdf(d)
    for i, value in enumerate(y):
        density = density if i == 0 else moves @ density
        density = density if np.isnan(value) else density * scipy.stats.norm.pdf(value, 0.8 * d**2, 0.2)
    ratio = np.exp(estimates(built, 0.8, 400, 200, led) - np.log(np.sum(density) * width))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(200) and ratio.std() < 0.5


@pytest.mark.slow
def test_records_with_parameters_of_their_own_are_added_up() -> None:
    records = [PLAIN.record(seed)[:15] for seed in (1, 2)]
    with pm.Model() as built:
        a = pm.LogNormal("a", 0.0, 0.7, shape=2)
        walk = {"a": sid.RandomWalk(scale=0.2)}
        sid.ODEFilter("y", DECAY, records, {"a": a}, noise=0.2, x0=1.0, varying=walk, substeps=4)
    filters = ParticleFilter(filter_view(None, built))
    sets = filters.sets([[np.array([0.7, 1.3])]])
    rows, rng = np.zeros(100, dtype=int), np.random.default_rng(0)
    motions = filters.motions(sets, 4, [15, 15])
    each = zip(motions, filters.guides(motions, sets), strict=True)
    both = np.sum([log_likelihood(motion, guide, rows, 200, rng) for motion, guide in each], axis=0)
    for r, value in enumerate((0.7, 1.3)):
        with pm.Model() as one:
            sid.ODEFilter("y", DECAY, records[r], {"a": pm.LogNormal("a")}, noise=0.2, x0=1.0, varying=walk, substeps=4)
        own = ParticleFilter(filter_view(None, one))
        (motion,) = own.motions(own.sets([[np.array(value)]]), 4, [15])
        found = log_likelihood(motion, None, rows, 800, rng)
        both = both - (logsumexp(found) - np.log(len(found)))
    assert abs(logsumexp(both) - np.log(len(both))) < 4 * np.std(both) / np.sqrt(50)


DECAY = sid.System(lambda t, x, u, p: -p.a * x.z, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z)


@pytest.mark.slow
def test_a_process_without_noise_of_its_own_and_a_vector_of_outputs() -> None:
    """A periodic force moves by nothing but its first state; one output is missing now and then, and noise is correlated."""
    system = sid.System(
        lambda t, x, u, p: (x.v, u.d - p.a * x.z - x.z**3),
        states=("z", "v"),
        inputs=("d",),
        params=("a",),
        observe=lambda t, x, dx, u, p: (x.z, dx.v),
    )
    force = {"d": sid.Periodic(scale=0.5, period=2.0, length=1.0, harmonics=1)}
    y = 0.3 * np.random.default_rng(0).standard_normal((12, 2))
    y[4, 0] = y[7, 1] = np.nan
    noise = sid.Correlated(cov=[[0.04, 0.01], [0.01, 0.09]])
    with pm.Model() as built:
        a = pm.LogNormal("a", 0.0, 0.5)
        sid.ODEFilter("y", system, sid.TimeSeries(T[:12], None, y), {"a": a}, noise=noise, x0=0.1, latent=force, substeps=4)
    free, led = (estimates(built, 1.0, n, 60, way) for n, way in ((4000, False), (300, True)))
    both = [logsumexp(e) - np.log(len(e)) for e in (free, led)]
    assert both[0] == pytest.approx(both[1], abs=4 * np.hypot(np.std(free), np.std(led)) / np.sqrt(60) + 0.02)
    assert both[1] == pytest.approx(float(filter_log_likelihood(built, 1.0)), abs=0.3)


def test_what_linearises() -> None:
    record, slow = PLAIN.record(0), {"y": sid.OU(scale=0.3, length=0.5)}
    cases = [
        (model(LAG, record), False),
        (model(LAG, record, coloured=slow), False),
        (model(CUBE, record), True),
        (model(SQUARE, record), True),
        (model(LAG, record, noise=relative), True),
        (model(LAG, record, noise=sid.StudentT(nu=4, scale=0.2)), True),
        (model(LAG, record, limits=(None, 0.5)), True),
        (tiny.model(), False),
    ]
    for built, expected in cases:
        assert filter_view(None, built).problem.linearises_processes is expected
    # A state that no process moves is not linearised by noise that is one.
    with pm.Model() as beside:
        rate = {"rate": pm.LogNormal("rate")}
        system = sid.System(lambda t, x, u, p: -p.rate * x.z**3, states=("z",), params=("rate",), observe=lambda *a: a[1].z)
        sid.ODEFilter("y", system, record, rate, noise=0.2, x0=1.0, coloured=slow)
    assert not filter_view(None, beside).problem.linearises_processes


@pytest.mark.slow
def test_what_is_exact_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model(LAG, PLAIN.record(0), substeps=8)
    for message, other in (("is exact for its processes", built), ("has no processes", tiny.model())):
        with pytest.raises(ValueError, match=message):
            sid.check_processes(draws(0.9, 1.0), model=other)
    monkeypatch.setattr(ParticleFilter, "__init__", lambda self, view: pytest.fail("ran"))
    idata = sid.sample(built, draws=300, chains=2, cores=1, random_seed=1, progressbar=False)
    assert idata.attrs["trusted"] and "processes" not in idata.attrs["choices"]
    assert sid.log_evidence(idata).error < 0.05 and not sid.log_evidence(idata).doubt


@pytest.mark.slow
def test_noise_in_proportion_to_a_pushed_output_is_doubted() -> None:
    """The linearised likelihood of this record is off by four and more: the evidence says so, and so do the draws."""
    record = RELATIVE.record(3)
    built = model(LAG, record, noise=relative, substeps=8)
    with pytest.warns(UserWarning, match="cannot be trusted"):
        idata = sid.sample(built, draws=400, chains=2, cores=1, random_seed=1, progressbar=False)
    assert not idata.attrs["trusted"] and "integrated out by particles" in idata.attrs["verdict"]
    assert "linearises about processes" in idata.attrs["choices"]
    found, exact = sid.log_evidence(idata), RELATIVE.evidence(record.output_matrix[:, 0], 2000)
    assert "integrated out by particles" in found.doubt
    assert abs(found.value - exact) > 3 and abs(found.value - exact) < 2 * found.error


@pytest.mark.slow
def test_sample_ibis_doubts_it_too() -> None:
    built = model(LAG, RELATIVE.record(3), noise=relative, substeps=8)
    idata = sid.sample_ibis(200, model=built, chains=2, cores=1, random_seed=1, progressbar=False)
    assert "integrated out by particles" in sid.log_evidence(idata).doubt and sid.log_evidence(idata).error > 2


@pytest.mark.slow
def test_a_mild_curvature_raises_no_alarm() -> None:
    record = MILD.record(1)
    built = model(cubic(0.05), record, substeps=8)
    idata = sid.sample(built, draws=400, chains=2, cores=1, random_seed=1, progressbar=False)
    found = sid.log_evidence(idata)
    assert idata.attrs["trusted"] and not found.doubt
    assert abs(found.value - MILD.evidence(record.output_matrix[:, 0], 2000)) < 3 * found.error + 0.1


@pytest.mark.slow
def test_a_start_and_a_process_are_integrated_out_together() -> None:
    built = model(SQUARE, SQUARED.record(1), x0_std=0.3, substeps=8)
    with pytest.raises(ValueError, match="call check_processes, which integrates out both"):
        sid.check_initial_state(draws(0.9, 1.0, 1.1), model=built)
    found = sid.check_processes(draws(*np.linspace(0.7, 1.4, 20)), model=built, random_seed=1)
    assert np.isfinite(found.change).all() and abs(found.evidence) > 0.1


def test_of_a_long_record_the_beginning_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model(CUBE, CUBED.record(2), scale=2.0, noise=0.3, substeps=4)
    some = draws(*np.exp(-0.1 + 0.4 * np.random.default_rng(0).standard_normal(40)))
    whole = sid.check_processes(some, model=built, random_seed=1)
    assert whole.share == 1.0 and "only the first" not in whole.verdict
    monkeypatch.setattr(module, "MOST_STEPS", 10**5)
    part = sid.check_processes(some, model=built, random_seed=1)
    assert part.share < 0.9 and len(part.change) == 16
    assert f"only the first {100 * part.share:.0f} % of its samples were measured: the numbers hold for all" in part.verdict
    assert part.noise > whole.noise and part.evidence == pytest.approx(whole.evidence, abs=0.7)


def test_too_few_particles_raise_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drift that may turn a decay into a growth: few particles stay near the record, and nothing is known."""
    rng = np.random.default_rng(1)
    record = sid.TimeSeries(T, None, 1 - 0.5 * np.exp(-T) + 0.003 * rng.standard_normal(N))
    with pm.Model() as built:
        a = pm.LogNormal("a", 0.0, 0.7)
        system = sid.System(
            lambda t, x, u, p: -p.a * x.z + 1.0, states=("z",), params=("a",), observe=lambda t, x, dx, u, p: x.z
        )
        sid.ODEFilter("y", system, record, {"a": a}, noise=0.003, x0=0.5, varying={"a": sid.RandomWalk(scale=0.5)}, substeps=16)
    monkeypatch.setattr(module, "MOST_STEPS", 10**6)
    monkeypatch.setattr(ParticleFilter, "guides", lambda self, motions, sets: [None])
    found = sid.check_processes(draws(*np.linspace(0.8, 1.2, 16)), model=built, random_seed=1)
    assert not found.known and not found.biased and found.level == "look" and "is not known well" in found.verdict


@pytest.mark.slow
def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    built = model(CUBE, CUBED.record(2), scale=2.0, noise=0.3, substeps=4)
    monkeypatch.setattr(module, "STIFF", 0)
    with pytest.raises(ValueError, match="the system is stiff"):
        sid.check_processes(draws(0.9, 1.0), model=built)
    idata = sid.sample(built, draws=300, chains=2, cores=1, random_seed=1, progressbar=False)
    assert idata.attrs["trusted"] and "costs was not measured: the system is stiff" in idata.attrs["verdict"]
    assert "was not measured" in sid.log_evidence(idata).doubt


CASES: dict[str, tuple[Reference, sid.System, dict[str, Any]]] = {
    "noise in proportion": (RELATIVE, LAG, {"noise": relative}),
    "square": (SQUARED, SQUARE, {}),
    "cubic": (CUBED, CUBE, {"noise": 0.3, "scale": 2.0}),
    "mild": (MILD, cubic(0.05), {}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:sample")
@pytest.mark.parametrize("case", CASES)
def test_no_evidence_is_wrong_and_sure_of_itself(case: str) -> None:
    """Over eight records; of a system that is nearly linear hardly any is doubted."""
    reference, system, options = CASES[case]
    sure, doubted = [], 0
    for seed in range(8):
        record = reference.record(seed)
        built = model(system, record, **options)
        settings: dict[str, Any] = {"chains": 2, "cores": 1, "random_seed": seed, "progressbar": False}
        idata = sid.sample(built, 500, method="independent", **settings)  # NUTS has no evidence
        found, exact = sid.log_evidence(idata), reference.evidence(record.output_matrix[:, 0])
        doubted += "integrated out by particles" in found.doubt
        if abs(found.value - exact) > 4 * found.error + 0.3:
            sure.append((seed, found.value, found.error, exact))
    assert not sure
    assert doubted <= 1 if case == "mild" else doubted >= 2
