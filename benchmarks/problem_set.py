"""Problems with a known answer, each under rough priors: what samplers and searches are compared on.

Each function builds one problem: a model, its record, and what is known about its posterior. Published posteriors and
quadrature are answers by themselves. Where a record is simulated, the parameters it was made with lead to one, which
``references.py`` computes. ``PROBLEMS`` has all functions by name. The substeps suffice where the posterior is, which need not
be so at the model's initial point; ``substeps="auto"`` and other numbers are an argument. The tanks need the folder of their
record (``cascaded_tanks.npz``) in ``PM_SYSID_DATA``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import logsumexp
from scipy.stats import chi2, norm
from scipy.stats import t as student_t

import pm_sysid as sid

HARE = [30, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22, 25.4, 27.1, 40.3, 57, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7]
LYNX = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]


@dataclass(frozen=True)
class Answer:
    """What is known about a posterior.

    Attributes
    ----------
    mean, sd : dict
        Posterior means and standard deviations by free variable; empty where
        ``references.py`` alone knows them.
    truth : dict
        Free variables that a simulated record was made with, or that a published fit has; where to look for the best mode.
    log_evidence : float, optional
        Log evidence, where it is exact.
    shares : dict
        Posterior mass of each mode by a name, where there are several.
    logs : tuple of str
        Positive unknowns whose moments are those of their logarithm: their tails are so far that a few draws in a thousand
        carry most of the variance.
    source : str
        Where this is from.
    """

    mean: Mapping[str, Any] = field(default_factory=dict)
    sd: Mapping[str, Any] = field(default_factory=dict)
    truth: Mapping[str, Any] = field(default_factory=dict)
    log_evidence: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    logs: tuple[str, ...] = ()
    source: str = ""

    def judged(self, draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Draws by free variable, of which ``logs`` as logarithms: what moments are taken of."""
        return {name: np.log(v) if name in self.logs else np.asarray(v) for name, v in draws.items()}


class Problem(NamedTuple):
    """A model, what is known about its posterior, and what it was made of (``system`` is None for models without ODE)."""

    name: str
    model: pm.Model
    answer: Answer
    record: sid.TimeSeries | None = None
    system: sid.System | None = None


def lotka_volterra(substeps: Any = 8, **options: Any) -> Problem:
    """Hare and lynx, 1900 to 1920; its priors leave the initial point of the model without a solution."""
    system = sid.System(
        lambda t, x, u, p: ((p.alpha - p.beta * x.v) * x.u, (-p.gamma + p.delta * x.u) * x.v),
        states=("u", "v"),
        params=("alpha", "beta", "gamma", "delta"),
        observe=lambda t, x, dx, u, p: (pt.log(x.u), pt.log(x.v)),
    )
    record = sid.TimeSeries(np.arange(21.0), None, np.log(np.c_[HARE, LYNX]))
    with pm.Model() as model:
        p = {n: pm.TruncatedNormal(n, 1.0, 0.5, lower=0) for n in ("alpha", "gamma")}
        p |= {n: pm.TruncatedNormal(n, 0.05, 0.05, lower=0) for n in ("beta", "delta")}
        z = pm.LogNormal("z_init", np.log(10), 1, shape=2)
        sigma = pm.LogNormal("sigma", -1, 1, shape=2)
        _filter("y", system, record, p, noise=sigma, x0={"u": z[0], "v": z[1]}, substeps=substeps, **options)
    mean = {"alpha": 0.55, "beta": 0.028, "gamma": 0.80, "delta": 0.024, "z_init": [33.98, 5.95], "sigma": [0.25, 0.25]}
    sd = {"alpha": 0.07, "beta": 0.004, "gamma": 0.10, "delta": 0.004, "z_init": [2.94, 0.54], "sigma": [0.05, 0.05]}
    answer = Answer(mean, sd, mean, source="Carpenter, Predator-Prey Population Dynamics (Stan case study, 2018)")
    return Problem("lotka_volterra", model, answer, record, system)


def fitzhugh_nagumo(seed: int = 0, substeps: Any = 8, **options: Any) -> Problem:
    """Spiking neuron, 41 samples half a unit apart; priors of Campbell and Steele (2012)."""
    system = sid.System(
        lambda t, x, u, p: (p.c * (x.V - x.V**3 / 3 + x.R), -(x.V - p.a + p.b * x.R) / p.c),
        states=("V", "R"),
        params=("a", "b", "c"),
        observe=lambda t, x, dx, u, p: (x.V, x.R),
    )
    truth = {"a": 0.2, "b": 0.2, "c": 3.0, "x0": [-1.0, 1.0], "sigma": [0.2, 0.2]}
    record = _measured(system, np.arange(41) * 0.5, truth, truth["x0"], 0.2, seed)
    with pm.Model() as model:
        p = {"a": pm.Normal("a", 0, 0.4), "b": pm.Normal("b", 0, 0.4), "c": pm.ChiSquared("c", 2)}
        x0 = pm.Normal("x0", 0, 2, shape=2)
        sigma = pm.HalfNormal("sigma", 1, shape=2)
        _filter("y", system, record, p, noise=sigma, x0={"V": x0[0], "R": x0[1]}, substeps=substeps, **options)
    source = "simulated; Campbell and Steele, Smooth functional tempering (Statistics and Computing, 2012)"
    return Problem("fitzhugh_nagumo", model, Answer(truth=truth, source=source), record, system)


def goodwin(seed: int = 0, substeps: Any = 8, **options: Any) -> Problem:
    """Genetic oscillator of three concentrations, of which two are measured, only after the transient."""
    system = sid.System(
        lambda t, x, u, p: (
            p.a1 / (1 + p.a2 * x.x3**10) - p.alpha * x.x1,
            p.k1 * x.x1 - p.alpha * x.x2,
            p.k2 * x.x2 - p.alpha * x.x3,
        ),
        states=("x1", "x2", "x3"),
        params=("a1", "a2", "alpha", "k1", "k2"),
        observe=lambda t, x, dx, u, p: (x.x1, x.x2),
    )
    truth = {"a1": 1.0, "a2": 3.0, "alpha": 0.5, "k1": 2.0, "k2": 1.0, "sigma": 0.1}
    record = _measured(system, np.arange(81.0), truth, 0.0, 0.1, seed)
    y = record.output_matrix.copy()
    y[:41] = np.nan
    record = record.replace(y=y)
    with pm.Model() as model:
        p = {name: pm.Gamma(name, 2, 1) for name in system.params}
        sigma = pm.HalfNormal("sigma", 0.5)
        _filter("y", system, record, p, noise=sigma, x0=0.0, substeps=substeps, **({"solver": sid.EK1(order=3)} | options))
    source = "simulated; Calderhead and Girolami, Estimating Bayes factors (CSDA, 2009)"
    return Problem("goodwin", model, Answer(truth=truth, source=source), record, system)


def hes1(seed: int = 0, substeps: Any = 16) -> Problem:
    """Oscillation of Hes1 over four hours: protein and mRNA are measured in turn, in logarithms, the third quantity never."""
    system = sid.System(
        lambda t, x, u, p: (
            -p.a * pt.exp(x.h) + p.b * pt.exp(x.m - x.p) - p.c,
            -p.d + p.e * pt.exp(-x.m) / (1 + pt.exp(2 * x.p)),
            -p.a * pt.exp(x.p) + p.f * pt.exp(-x.h) / (1 + pt.exp(2 * x.p)) - p.g,
        ),
        states=("p", "m", "h"),
        params=tuple("abcdefg"),
        observe=lambda t, x, dx, u, p: (x.p, x.m),
    )
    truth: dict[str, Any] = {"a": 0.022, "b": 0.3, "c": 0.031, "d": 0.028, "e": 0.5, "f": 20.0, "g": 0.3}
    truth |= {"x0": np.log([1.439, 2.037, 17.904]), "sigma": 0.15}
    record = _measured(system, np.arange(33) * 7.5, truth, truth["x0"], 0.15, seed)
    y = record.output_matrix.copy()
    y[1::2, 0] = np.nan
    y[0::2, 1] = np.nan
    record = record.replace(y=y)
    with pm.Model() as model:
        p = {name: pm.LogNormal(name, np.log(0.1), 1.5) for name in "abcdg"}
        p |= {"e": pm.LogNormal("e", 0, 1.5), "f": pm.LogNormal("f", np.log(10), 1.5)}
        x0 = pm.Normal("x0", [1.0, 1.0, 2.0], [1.0, 1.0, 1.5])
        sigma = pm.HalfNormal("sigma", 0.5)
        start = {"p": x0[0], "m": x0[1], "h": x0[2]}
        _filter("y", system, record, p, noise=sigma, x0=start, solver=sid.EK1(order=3), substeps=substeps)
    source = "simulated; Hirata et al., Oscillatory expression of Hes1 (Science, 2002); Yang, Wong and Kou (PNAS, 2021)"
    # Half of the variance of g is in 0.8 % of its mass.
    return Problem("hes1", model, Answer(truth=truth, logs=("a", "f", "g"), source=source), record, system)


def pendulum(seed: int = 0, substeps: Any = 16, **options: Any) -> Problem:
    """Free swing, slowed by viscous, dry and quadratic damping; the frequency is hardly known before."""
    system = sid.System(
        lambda t, x, u, p: (
            x.omega,
            -p.k * pt.sin(x.theta) - p.c * x.omega - p.dry * pt.tanh(x.omega / 0.05) - p.quadratic * x.omega * abs(x.omega),
        ),
        states=("theta", "omega"),
        params=("k", "c", "dry", "quadratic"),
        observe=lambda t, x, dx, u, p: x.theta,
    )
    truth = {"k": 20.0, "c": 0.05, "dry": 0.15, "quadratic": 0.03, "x0": [1.5, 0.0], "noise": 0.02}
    record = _measured(system, np.arange(400) * 0.05, truth, truth["x0"], 0.02, seed)
    record = record.replace(y=record.output_matrix[:, 0])
    with pm.Model() as model:
        p = {
            "k": pm.LogNormal("k", np.log(10), 1),
            "c": pm.HalfNormal("c", 0.5),
            "dry": pm.HalfNormal("dry", 0.5),
            "quadratic": pm.HalfNormal("quadratic", 0.2),
        }
        x0 = pm.Normal("x0", 0, [2, 5], shape=2)
        noise = pm.HalfNormal("noise", 0.5)
        _filter("y", system, record, p, noise=noise, x0={"theta": x0[0], "omega": x0[1]}, substeps=substeps, **options)
    return Problem("pendulum", model, Answer(truth=truth, source="simulated"), record, system)


def tanks(substeps: Any = "auto") -> Problem:
    """Cascaded tanks with square-root flow, a measured record; nobody knows the level of the upper tank at the start."""
    folder = os.environ.get("PM_SYSID_DATA")
    path = Path(folder or "") / "cascaded_tanks.npz"
    if not folder or not path.exists():
        raise FileNotFoundError("the tanks need the folder of cascaded_tanks.npz in the environment variable PM_SYSID_DATA.")
    with np.load(path) as arrays:
        u, y, step = arrays["train_u_V"], arrays["train_y_V"], float(arrays["Ts_s"])
    record = sid.TimeSeries(np.arange(len(y)) * step, u, y, intersample="zoh")
    system = sid.models.cascaded_tanks(h_s=0.1)
    with pm.Model() as model:
        p = {name: pm.LogNormal(name, np.log(0.05), 1) for name in system.params}
        x0 = pm.Normal("x0", 5, 3, shape=2)
        noise = pm.HalfNormal("noise", 1)
        # The law lacks the overflow. A diffusion that the record calibrates would take its place: the filter then follows the
        # record whatever the law, by a likelihood full of cliffs.
        solver = sid.EK1(order=2, diffusion=1e-3)
        _filter("y", system, record, p, noise=noise, x0={"h1": x0[0], "h2": x0[1]}, solver=solver, substeps=substeps)
    source = "measured; Schoukens et al., Cascaded tanks benchmark (2016); the best mode that anything has found"
    return Problem("tanks", model, Answer(source=source), record, system)


def three_modes(sigma: float = 0.1, samples: int = 200, cut: float = -1.0, seed: int = 0) -> Problem:
    """Two signs that the record cannot tell, of which a constraint forbids one pair: three modes, exact by quadrature."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, samples)
    y = 1.0 + 0.5 * x + sigma * rng.standard_normal(samples)
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Potential("cut", pt.switch(a + b > cut, 0.0, -np.inf))
        pm.Normal("y", a**2 + b**2 * x, sigma, observed=y)
    grid_a, grid_b = np.linspace(0.5, 1.5, 2001), np.linspace(1e-3, 1.5, 2001)
    q, r = (np.polynomial.polynomial.polyvander(g**2, 1) for g in (grid_a, grid_b))
    sums = np.array([[y @ y, y @ x], [y.sum(), samples], [x @ x, x.sum()]])
    squares = (
        sums[0, 0]
        - 2 * q[:, 1:] * sums[1, 0]
        - 2 * r[:, 1] * sums[0, 1]
        + q[:, 1:] ** 2 * samples
        + 2 * q[:, 1:] * r[:, 1] * sums[2, 1]
        + r[:, 1] ** 2 * sums[2, 0]
    )
    log_density = -0.5 * squares / sigma**2 - samples * np.log(sigma * np.sqrt(2 * np.pi))
    log_density = log_density - 0.5 * (grid_a[:, None] ** 2 + grid_b**2) - np.log(2 * np.pi)
    area = np.log((grid_a[1] - grid_a[0]) * (grid_b[1] - grid_b[0]))
    masses = {}
    for name, s, t in (("++", 1, 1), ("+-", 1, -1), ("-+", -1, 1), ("--", -1, -1)):
        allowed = s * grid_a[:, None] + t * grid_b > cut
        masses[name] = logsumexp(np.where(allowed, log_density, -np.inf)) + area
    total = logsumexp(list(masses.values()))
    shares = {name: float(np.exp(mass - total)) for name, mass in masses.items() if mass > total - 20}
    evidence = float(total - norm.logsf(cut / np.sqrt(2)))
    answer = Answer(truth={"a": 1.0, "b": 0.5**0.5}, log_evidence=evidence, shares=shares, source="quadrature")
    return Problem("three_modes" if sigma > 0.05 else "three_narrow_modes", model, answer)


def three_narrow_modes() -> Problem:
    """The three modes with a tenth of the noise."""
    return three_modes(sigma=0.01)


def ridge(sigma: float = 0.1, samples: int = 20, seed: int = 0) -> Problem:
    """Only a product of two unknowns plus half a third is measured: two curved ridges, exact by quadrature over one unknown."""
    rng = np.random.default_rng(seed)
    y = 1.0 + sigma * rng.standard_normal(samples)
    with pm.Model() as model:
        a, b, c = pm.Normal("a"), pm.Normal("b"), pm.Normal("c")
        pm.Normal("y", a * b + c / 2, sigma, observed=y)
    # Given a the rest is linear and Gaussian, and the mean of the record is all that counts.
    grid = np.linspace(-10, 10, 200_001)
    variance = grid**2 + 0.25 + sigma**2 / samples
    log_density = norm.logpdf(grid) + norm.logpdf(y.mean(), 0, np.sqrt(variance))
    total = logsumexp(log_density)
    w = np.exp(log_density - total)
    c_mean = 0.5 / variance * y.mean()
    mean = {"a": 0.0, "b": 0.0, "c": float(w @ c_mean)}
    sd_a = float(np.sqrt(w @ grid**2))
    sd = {"a": sd_a, "b": sd_a, "c": float(np.sqrt(w @ (c_mean**2 + 1 - 0.25 / variance) - mean["c"] ** 2))}
    others = norm.logpdf(y, y.mean(), sigma).sum() - norm.logpdf(0, 0, sigma / np.sqrt(samples))
    evidence = float(total + np.log(grid[1] - grid[0]) + others)
    return Problem("ridge", model, Answer(mean, sd, log_evidence=evidence, source="quadrature"))


def funnel(unknowns: int = 4) -> Problem:
    """Unknowns and the logarithm of their common scale, hardly measured: exact by quadrature over the scale."""
    y = np.random.default_rng(0).normal(0, 2.0, unknowns)
    with pm.Model() as model:
        scale = pm.Normal("scale", 0, 3)
        x = pm.Normal("x", 0, pm.math.exp(scale / 2), shape=unknowns)
        pm.Normal("y", x, 1.0, observed=y)
    # Given the scale the rest is Gaussian.
    grid = np.linspace(-30, 30, 60_001)
    follows = 1 / (1 + np.exp(-grid))
    log_density = norm.logpdf(grid, 0, 3) + norm.logpdf(y[:, None], 0, np.sqrt(1 + np.exp(grid))).sum(axis=0)
    total = logsumexp(log_density)
    w = np.exp(log_density - total)
    mean = {"scale": w @ grid, "x": y * (w @ follows)}
    sd = {
        "scale": np.sqrt(w @ grid**2 - mean["scale"] ** 2),
        "x": np.sqrt(y**2 * (w @ follows**2) + w @ follows - mean["x"] ** 2),
    }
    evidence = float(total + np.log(grid[1] - grid[0]))
    return Problem("funnel", model, Answer(mean, sd, log_evidence=evidence, source="quadrature"))


def banana(sigma: float = 0.3) -> Problem:
    """The square of one unknown plus another is measured: a thin parabola, exact by quadrature over the first."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 3), pm.Normal("b", 0, 10)
        pm.Normal("y", a**2 + b, sigma, observed=[1.0])
    grid = np.linspace(-30, 30, 60_001)
    variance = 100 + sigma**2
    log_density = norm.logpdf(grid, 0, 3) + norm.logpdf(1.0, grid**2, np.sqrt(variance))
    total = logsumexp(log_density)
    w = np.exp(log_density - total)
    given = 100 / variance * (1 - grid**2)
    mean = {"a": w @ grid, "b": w @ given}
    sd = {"a": np.sqrt(w @ grid**2), "b": np.sqrt(w @ given**2 + 100 * sigma**2 / variance - mean["b"] ** 2)}
    evidence = float(total + np.log(grid[1] - grid[0]))
    return Problem("banana", model, Answer(mean, sd, log_evidence=evidence, source="quadrature"))


def long_tails(unknowns: int = 3, share: float = 0.2, width: float = 3.0) -> Problem:
    """Unknowns that are small or, a few, large, and hardly measured: a tall narrow mode with far tails, exact by quadrature."""
    y = np.random.default_rng(0).normal(0, 3 * width, unknowns)
    with pm.Model() as model:
        parts = [pm.Normal.dist(0, 0.1), pm.StudentT.dist(2, mu=0, sigma=width)]
        x = pm.Mixture("x", [1 - share, share], parts, shape=unknowns)
        pm.Normal("y", x, 3 * width, observed=y)
    grid = np.sinh(np.linspace(-10, 10, 200_001))
    spacing = np.gradient(grid)
    prior = np.logaddexp(np.log(1 - share) + norm.logpdf(grid, 0, 0.1), np.log(share) + student_t.logpdf(grid, 2, 0, width))
    log_density = prior + norm.logpdf(y[:, None], grid, 3 * width) + np.log(spacing)
    total = logsumexp(log_density, axis=1)
    w = np.exp(log_density - total[:, None])
    mean = w @ grid
    answer = Answer({"x": mean}, {"x": np.sqrt(w @ grid**2 - mean**2)}, log_evidence=float(total.sum()), source="quadrature")
    return Problem("long_tails", model, answer)


def pharmacokinetics(seed: int = 0, substeps: Any = "auto") -> Problem:
    """A drug that is absorbed and eliminated: exchanging the two rates, and another volume, gives the same curve."""
    t = np.array([0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16])

    def concentration(ka: Any, ke: Any, V: Any) -> np.ndarray:
        decays = np.exp(-np.multiply.outer(ke, t)) - np.exp(-np.multiply.outer(ka, t))
        return np.asarray((100 * ka / (V * (ka - ke)))[..., None] * decays)

    y = concentration(np.array(1.0), np.array(0.3), np.array(10.0)) + 0.3 * np.random.default_rng(seed).standard_normal(t.size)
    system = sid.System(
        lambda t, x, u, p: (-p.ka * x.gut, p.ka * x.gut / p.V - p.ke * x.c),
        states=("gut", "c"),
        params=("ka", "ke", "V"),
        observe=lambda t, x, dx, u, p: x.c,
    )
    middle = {"ka": 0.0, "ke": -1.0, "V": np.log(8)}
    with pm.Model() as model:
        p = {name: pm.LogNormal(name, mu, 1) for name, mu in middle.items()}
        _filter("y", system, sid.TimeSeries(t, None, y), p, noise=0.3, x0={"gut": 100.0, "c": 0.0}, substeps=substeps)
    logs = [np.linspace(np.log(a), np.log(b), 81) for a, b in ((0.1, 3), (0.09, 2.9), (1, 20))]  # never equal rates
    mesh = np.meshgrid(*logs, indexing="ij")
    density = norm.logpdf(mesh, np.reshape(list(middle.values()), (3, 1, 1, 1))).sum(axis=0)
    curves = concentration(*np.exp(mesh))
    density += norm.logpdf(y, curves, 0.3).sum(axis=-1)
    mean, sd, evidence = _moments(density, logs, dict(zip(middle, np.exp(mesh), strict=True)))
    return Problem("pharmacokinetics", model, Answer(mean, sd, log_evidence=evidence, source="quadrature"))


def squared_output(seed: int = 0, substeps: Any = "auto") -> Problem:
    """The square of a decaying oscillation is measured: the sign of its start, and of all that follows, is unknown."""
    t = np.linspace(0, 5, 51)

    def position(c: Any, k: Any, z0: Any) -> np.ndarray:
        w = np.sqrt(np.maximum(k - c**2 / 4, 1e-12))[..., None]
        c = np.asarray(c)[..., None]
        return np.asarray(np.asarray(z0)[..., None] * np.exp(-c * t / 2) * (np.cos(w * t) + c / (2 * w) * np.sin(w * t)))

    y = position(0.3, 10.0, 1.0) ** 2 + 0.1 * np.random.default_rng(seed).standard_normal(t.size)
    system = sid.System(
        lambda t, x, u, p: (x.v, -p.c * x.v - p.k * x.z),
        states=("z", "v"),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: x.z**2,
    )
    with pm.Model() as model:
        p = {"c": pm.HalfNormal("c", 1), "k": pm.LogNormal("k", np.log(5), 1)}
        z0 = pm.Normal("z0", 0, 2)
        _filter("y", system, sid.TimeSeries(t, None, y), p, noise=0.1, x0={"z": z0, "v": 0.0}, substeps=substeps)
    grids = [np.linspace(1e-6, 0.8, 71), np.linspace(np.log(8), np.log(12), 71), np.linspace(0.6, 1.4, 71)]
    c, log_k, z = np.meshgrid(*grids, indexing="ij")
    density = norm.logpdf(c) + np.log(2) + norm.logpdf(log_k, np.log(5), 1) + norm.logpdf(z, 0, 2)
    density += norm.logpdf(y, position(c, np.exp(log_k), z) ** 2, 0.1).sum(axis=-1)
    mean, sd, evidence = _moments(density, grids, {"c": c, "k": np.exp(log_k), "z0": z})
    mean["z0"], sd["z0"] = 0.0, float(np.hypot(mean["z0"], sd["z0"]))
    return Problem("squared_output", model, Answer(mean, sd, log_evidence=float(evidence + np.log(2)), source="quadrature"))


def aliases(seed: int = 0, substeps: Any = "auto") -> Problem:
    """A swing sampled too rarely: its speed and two aliases explain the record equally well."""
    grid = np.linspace(0.5, 16, 6201)
    prior = np.full(grid.size, -np.log(15.5))
    return _swing("aliases", 3.0, 0.5, lambda: pm.Uniform("w", 0.5, 16), grid, grid, prior, seed, substeps)


def far_aliases(seed: int = 1, substeps: Any = "auto") -> Problem:
    """A swing sampled four times in a unit of time: its aliases hold a quarter, and need steps for speeds of 19 and more."""
    logs = np.linspace(np.log(0.3), np.log(150), 20_001)
    prior = norm.logpdf(logs, np.log(10), 0.7)
    speed = np.exp(logs)
    return _swing("far_aliases", 6.0, 0.25, lambda: pm.LogNormal("w", np.log(10), 0.7), logs, speed, prior, seed, substeps)


def _swing(
    name: str,
    w: float,
    apart: float,
    speed: Callable[[], Any],
    grid: np.ndarray,
    speeds: np.ndarray,
    prior: np.ndarray,
    seed: int,
    substeps: Any,
) -> Problem:
    """A swing of a speed w, 25 samples of it with noise; exact by quadrature over a grid for the speed, and over the noise.

    Moments of the speed are those of the grid, whose values have the log densities ``prior``.
    """
    t = np.arange(25) * apart
    y = np.cos(w * t) + 0.3 * np.random.default_rng(seed).standard_normal(t.size)
    system = sid.System(
        lambda t, x, u, p: (x.v, -(p.w**2) * x.z), states=("z", "v"), params=("w",), observe=lambda t, x, dx, u, p: x.z
    )
    with pm.Model() as model:
        params, noise, start = {"w": speed()}, pm.HalfNormal("noise", 1), {"z": 1.0, "v": 0.0}
        _filter("y", system, sid.TimeSeries(t, None, y), params, noise=noise, x0=start, substeps=substeps)
    grids = [grid, np.linspace(0.1, 0.9, 141)]
    of_speed, sigma = np.meshgrid(*grids, indexing="ij")
    squares = np.sum((y - np.cos(np.multiply.outer(speeds, t))) ** 2, axis=1)[:, None]
    log_prior = prior[:, None] + norm.logpdf(sigma) + np.log(2)
    density = log_prior - squares / (2 * sigma**2) - t.size * np.log(sigma * np.sqrt(2 * np.pi))
    mean, sd, evidence = _moments(density, grids, {"w": of_speed, "noise": sigma})
    logs = () if grid is speeds else ("w",)
    return Problem(name, model, Answer(mean, sd, log_evidence=evidence, logs=logs, source="quadrature"))


def frequency(seed: int = 0, sigma: float = 0.7) -> Problem:
    """A weak sine at irregular times: a dozen frequencies explain it about as well, exact by quadrature over the frequency."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 10, 15))
    y = np.sin(6 * t) + sigma * rng.standard_normal(15)
    with pm.Model() as model:
        a, b, w = pm.Normal("a"), pm.Normal("b"), pm.Uniform("w", 0.1, 20)
        pm.Normal("y", a * pt.sin(w * t) + b * pt.cos(w * t), sigma, observed=y)
    # Given the frequency the rest is linear and Gaussian.
    grid = np.linspace(0.1, 20, 20_001)
    basis = np.stack([np.sin(np.multiply.outer(grid, t)), np.cos(np.multiply.outer(grid, t))], axis=2)
    precision = np.eye(2) + np.swapaxes(basis, 1, 2) @ basis / sigma**2
    covariance, right = np.linalg.inv(precision), np.einsum("gti,t->gi", basis, y) / sigma**2
    middle = np.einsum("gij,gj->gi", covariance, right)
    exponent = -(y @ y / sigma**2 - np.sum(right * middle, axis=1)) / 2 - np.linalg.slogdet(precision)[1] / 2
    density = exponent - len(y) * np.log(sigma * np.sqrt(2 * np.pi)) - np.log(19.9)
    mean, sd, evidence = _moments(density, [grid], {"a": middle[:, 0], "b": middle[:, 1], "w": grid})
    weights = np.exp(density - logsumexp(density))
    for i, name in enumerate("ab"):
        sd[name] = float(np.sqrt(sd[name] ** 2 + weights @ covariance[:, i, i]))
    return Problem("frequency", model, Answer(mean, sd, log_evidence=evidence, source="quadrature"))


def sphere(unknowns: int = 5, sigma: float = 0.01) -> Problem:
    """The sum of squares of some unknowns is measured, as one number: a thin shell, exact by quadrature over the sum."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=unknowns)
        pm.Normal("y", pt.sum(x**2), sigma, observed=1.0)
    grid = np.linspace(0.9, 1.1, 20_001)
    density = chi2.logpdf(grid, unknowns) + norm.logpdf(1.0, grid, sigma)
    mean, _, evidence = _moments(density, [grid], {"sum": grid})
    each = np.full(unknowns, np.sqrt(mean["sum"] / unknowns))
    return Problem("sphere", model, Answer({"x": 0 * each}, {"x": each}, log_evidence=evidence, source="quadrature"))


def spike(width: float = 0.03) -> Problem:
    """Half of the mass in a spike that fills a ten-thousandth of the prior, half on a wide hill, exact by quadrature."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 5, shape=2)

        def logp(value: Any, a: Any, b: Any) -> Any:
            wide, narrow = (a + 2) ** 2 + (b + 2) ** 2, ((a - 2) ** 2 + (b - 2) ** 2) / width**2
            return pt.logaddexp(-wide / 2, -narrow / 2 - 2 * np.log(width))

        pm.CustomDist("y", x[0], x[1], logp=logp, observed=0.0)
    parts = []
    for middle, size in ((-2.0, 1.0), (2.0, width)):
        grid = middle + size * np.linspace(-9, 9, 4001)
        density = norm.logpdf(grid, 0, 5) - ((grid - middle) / size) ** 2 / 2 - np.log(size)
        parts.append(_moments(density, [grid], {"x": grid}))
    log_mass = 2 * np.array([evidence for *_, evidence in parts])
    weights = np.exp(log_mass - logsumexp(log_mass))
    means = np.array([mean["x"] for mean, *_ in parts])
    mean = float(weights @ means)
    sd = float(np.sqrt(weights @ (np.array([sd["x"] for _, sd, _ in parts]) ** 2 + means**2) - mean**2))
    evidence = float(logsumexp(log_mass))
    return Problem("spike", model, Answer({"x": [mean] * 2}, {"x": [sd] * 2}, log_evidence=evidence, source="quadrature"))


def fast_rate(seed: int = 0, substeps: Any = "auto") -> Problem:
    """A level that has filled before the second sample: its rate is known from below only, and may be stiff."""
    t = np.arange(5.0)
    y = 1 + 0.1 * np.random.default_rng(seed).standard_normal(t.size)
    y[0] = 0.03
    system = sid.System(lambda t, x, u, p: p.k * (1 - x.l), states=("l",), params=("k",), observe=lambda t, x, dx, u, p: x.l)
    with pm.Model() as model:
        log_k = pm.Normal("log_k", 1.0, 1.5)
        _filter("y", system, sid.TimeSeries(t, None, y), {"k": pt.exp(log_k)}, noise=0.1, x0=0.0, substeps=substeps)
    grid = np.linspace(-8, 12, 20_001)
    level = -np.expm1(-np.exp(grid)[:, None] * t)
    density = norm.logpdf(grid, 1.0, 1.5) + norm.logpdf(y, level, 0.1).sum(axis=1)
    mean, sd, evidence = _moments(density, [grid], {"log_k": grid})
    return Problem("fast_rate", model, Answer(mean, sd, log_evidence=evidence, source="quadrature"))


def fast_drop(substeps: Any = "auto") -> Problem:
    """``x' = a x^2`` with few and noisy samples: where a is far below zero the solution drops within the first interval."""
    t = np.arange(5.0)
    y = 1 / (1 - 0.1 * t) + 0.7 * np.random.default_rng(0).standard_normal(t.size)
    system = sid.System(lambda t, x, u, p: p.a * x.l**2, states=("l",), params=("a",), observe=lambda t, x, dx, u, p: x.l)
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        _filter("y", system, sid.TimeSeries(t, None, y), {"a": a}, noise=1.0, x0=1.0, substeps=substeps)
    grid = np.linspace(-8, 0.25, 33_001)[:-1]  # there is no solution from 1/4 on
    density = norm.logpdf(grid) + norm.logpdf(y, 1 / (1 - grid[:, None] * t), 1.0).sum(axis=1)
    mean, sd, evidence = _moments(density, [grid], {"a": grid})
    return Problem("fast_drop", model, Answer(mean, sd, log_evidence=evidence, source="quadrature"))


def three_squares() -> Problem:
    """Squares of three unknowns that are probably positive: three of the eight modes hold a thirty-fifth each."""
    y = np.array([1.0, 1.05, 0.98])
    with pm.Model() as model:
        x = pm.Normal("x", 0.87, 0.7, shape=3)
        pm.Normal("y", x**2, 0.05, observed=y)
    grid = np.linspace(-2, 2, 40_001)
    parts = [_moments(norm.logpdf(grid, 0.87, 0.7) + norm.logpdf(v, grid**2, 0.05), [grid], {"x": grid}) for v in y]
    answer = Answer(
        {"x": [mean["x"] for mean, _, _ in parts]},
        {"x": [sd["x"] for _, sd, _ in parts]},
        log_evidence=float(sum(evidence for *_, evidence in parts)),
        source="quadrature",
    )
    return Problem("three_squares", model, answer)


def sine_spring(seed: int = 1, substeps: Any = 4) -> Problem:
    """A spring that is a sine of the position, over several of its periods: few searches end at the mode that counts.

    With this record the second best mode, at a shorter period of the spring, leaves innovations that look white.
    """
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * pt.sin(p.n * x.z)),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k", "n"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    t, truth, rng = np.linspace(0, 15, 150), {"c": 0.4, "k": 2.0, "n": 3.0}, np.random.default_rng(seed)
    record = sid.TimeSeries(t, 2 * np.sin(0.7 * t) + np.sin(1.9 * t + seed), None, inputs="F")
    y = sid.simulate(system, record, truth, x0=0.0, substeps=16)["y"].to_numpy()
    noise = 0.02 * float(y.std())
    record = record.replace(y=y + noise * rng.standard_normal(t.size))
    with pm.Model() as model:
        p = {name: pm.LogNormal(name, 0.0, 1.0) for name in system.params}
        _filter("y", system, record, p, noise=pm.HalfNormal("noise", float(y.std())), x0=0.0, substeps=substeps)
    answer = Answer(truth=truth | {"noise": noise}, source="simulated")
    return Problem("sine_spring", model, answer, record, system)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "lotka_volterra": lotka_volterra,
    "fitzhugh_nagumo": fitzhugh_nagumo,
    "goodwin": goodwin,
    "hes1": hes1,
    "pendulum": pendulum,
    "tanks": tanks,
    "three_modes": three_modes,
    "three_narrow_modes": three_narrow_modes,
    "ridge": ridge,
    "funnel": funnel,
    "banana": banana,
    "long_tails": long_tails,
    "pharmacokinetics": pharmacokinetics,
    "squared_output": squared_output,
    "aliases": aliases,
    "far_aliases": far_aliases,
    "frequency": frequency,
    "sphere": sphere,
    "spike": spike,
    "fast_rate": fast_rate,
    "fast_drop": fast_drop,
    "three_squares": three_squares,
    "sine_spring": sine_spring,
}


def _moments(
    log_density: np.ndarray, grids: Sequence[np.ndarray], values: Mapping[str, np.ndarray]
) -> tuple[dict[str, float], dict[str, float], float]:
    """Means and standard deviations of values on an even grid, and the logarithm of the density's integral over it."""
    total = logsumexp(log_density)
    weights = np.exp(log_density - total)
    mean = {name: float(np.sum(weights * v)) for name, v in values.items()}
    sd = {name: float(np.sqrt(max(np.sum(weights * v**2) - mean[name] ** 2, 0.0))) for name, v in values.items()}
    return mean, sd, float(total + sum(np.log(grid[1] - grid[0]) for grid in grids))


def _measured(system: sid.System, t: np.ndarray, truth: Mapping[str, Any], x0: Any, noise: float, seed: int) -> sid.TimeSeries:
    """Record of a simulated run with noise added."""
    params = {name: truth[name] for name in system.params}
    start = dict(zip(system.states, np.broadcast_to(x0, len(system.states)), strict=True))
    run = sid.simulate(system, sid.TimeSeries(t, None), params, x0=start, substeps=64)
    y = np.stack([run[name].values for name in system.outputs], axis=1)
    return sid.TimeSeries(t, None, y + noise * np.random.default_rng(seed).standard_normal(y.shape))


def _filter(*args: Any, **options: Any) -> None:
    """An ODE filter whose substeps are not judged at the model's initial point, far from where they matter.

    A function for a solver is called in the model: its diffusion may be a variable.
    """
    if callable(options.get("solver")):
        options["solver"] = options["solver"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        sid.ODEFilter(*args, **options)
