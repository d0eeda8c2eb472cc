"""Dense filters of many coordinates: a chain of masses against textbook Kalman recursions, and sampled."""

from __future__ import annotations

import math
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pm_sysid as sid

Q, STEP, SUBSTEPS, NOISE, DIFFUSION = 3, 0.02, 2, 0.01, 0.5


def matrices(n: int, k: float, c: float) -> tuple[np.ndarray, np.ndarray]:
    """Stiffness and damping of unit masses in a row, the first one tied to the ground."""
    K = np.diag(np.r_[np.full(n - 1, 2.0), 1.0]) - np.eye(n, k=1) - np.eye(n, k=-1)
    return k * K, c * np.eye(n)


def chain(n: int) -> sid.System:
    K, C = matrices(n, 1.0, 1.0)
    return sid.System(
        lambda t, x, u, p: {"q": x.v, "v": -p.k * (K @ x.q) - p.c * (C @ x.v)},
        states={"q": n, "v": n},
        params=("k", "c"),
        observe=lambda t, x, dx, u, p: (x.q[0], dx.v[n - 1]),
    )


def textbook(n: int, k: float, c: float, q0: np.ndarray, y: np.ndarray) -> float:
    """Log-likelihood by predictions and updates of plain covariances, in units in which all derivatives are of one size."""
    K, C = matrices(n, k, c)
    h, levels = STEP / SUBSTEPS, Q + 1
    unit = np.array([math.sqrt(h) * h ** (Q - i) / math.factorial(Q - i) for i in range(levels)])
    A = np.array([[math.comb(Q - i, Q - j) if j >= i else 0.0 for j in range(levels)] for i in range(levels)])
    V = np.array([[1.0 / (2 * Q + 1 - i - j) for j in range(levels)] for i in range(levels)])
    A, V, unit = np.kron(A, np.eye(n)), np.kron(V, DIFFUSION**2 * np.eye(n)), np.repeat(unit, n)
    flow = np.block([[np.zeros((n, n)), np.eye(n)], [-K, -C]])
    state, derivatives = np.r_[q0, np.zeros(n)], []
    for _ in range(levels):
        derivatives.append(state[:n])
        state = flow @ state
    m, P = np.concatenate(derivatives) / unit, np.zeros((n * levels, n * levels))
    zeros = np.zeros((n, n * (levels - 3)))
    residuals = np.hstack([K, C, np.eye(n), zeros]) * unit
    seen = np.vstack([np.eye(1, n * levels), np.eye(1, n * levels, 3 * n - 1)]) * unit

    def update(h: np.ndarray, z: float, r: float) -> float:
        nonlocal m, P
        gain, s = P @ h, h @ P @ h + r
        m = m + gain * (z / s)
        keep = np.eye(len(m)) - np.outer(gain, h) / s
        P = keep @ P @ keep.T + r * np.outer(gain, gain) / s**2
        return -0.5 * (math.log(2 * math.pi * s) + z * z / s)

    total = 0.0
    for i, sample in enumerate(y):
        for _ in range(SUBSTEPS if i else 0):
            m, P = A @ m, A @ P @ A.T + V
            for row in residuals:
                update(row, -row @ m, 0.0)
        for row, value in zip(seen, sample, strict=True):
            total += update(row, value - row @ m, NOISE**2)
    return total


@pytest.mark.parametrize("n", [3, 10])
def test_a_dense_filter_is_that_of_the_textbook(n: int) -> None:
    """Would fail if the loops of large filters lost digits, or their adjoints were not the slopes."""
    rng, q0 = np.random.default_rng(n), np.linspace(0.1, 1.0, n)
    y = 0.3 * rng.standard_normal((15, 2))
    record = sid.TimeSeries(np.arange(15) * STEP, None, y)
    with pm.Model() as model:
        params = {"k": pm.LogNormal("k", 1.0, 1.0), "c": pm.LogNormal("c", 0.0, 1.0)}
        solver = sid.EK1(order=Q, diffusion=DIFFUSION, covariance="dense")
        sid.ODEFilter("y", chain(n), record, params, noise=NOISE, solver=solver, x0={"q": q0, "v": 0.0 * q0}, substeps=SUBSTEPS)
    k, c = 4.0, 0.3
    point = {"k_log__": np.log(k), "c_log__": np.log(c)}
    likelihood = model.logp(vars=model.observed_RVs)
    slope = pytensor.gradient.grad(likelihood, model.value_vars)
    value, *gradient = (float(v) for v in model.compile_fn([likelihood, *slope], point_fn=True)(point))
    assert value == pytest.approx(textbook(n, k, c, q0, y), rel=1e-9)
    h = 1e-4
    slopes = [
        (textbook(n, k * math.exp(a), c * math.exp(b), q0, y) - textbook(n, k * math.exp(-a), c * math.exp(-b), q0, y))
        / (2 * h)
        for a, b in ((h, 0.0), (0.0, h))
    ]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6)


@pytest.mark.slow
def test_three_masses_with_unknown_springs_are_sampled() -> None:
    """Every spring by itself, dense, by NUTS from the mode: the truth lies inside, and the chains agree."""
    names, truth = ("k0", "k1", "k2", "c"), dict(k0=60.0, k1=90.0, k2=40.0, c=0.3)

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
        springs = [p.k0 * x.q[0], p.k1 * (x.q[1] - x.q[0]), p.k2 * (x.q[2] - x.q[1])]
        force = [
            springs[1] - springs[0] - p.c * x.v[0],
            springs[2] - springs[1] - p.c * x.v[1],
            u.F - springs[2] - p.c * x.v[2],
        ]
        return x.v, pt.stack(force)

    system = sid.System(
        dynamics, states={"q": 3, "v": 3}, inputs=("F",), params=names, observe=lambda t, x, dx, u, p: (x.q[0], x.q[2])
    )
    t = np.arange(400) / 40
    rng = np.random.default_rng(1)
    record = sid.TimeSeries(t, 20 * np.sin(0.4 * t * (1 + t)), None, inputs="F")
    run = sid.simulate(system, record, truth, x0=0.0)
    clean = np.stack([run[name].values for name in system.outputs], axis=1)
    record = record.replace(y=clean + 0.02 * clean.std(axis=0) * rng.standard_normal(clean.shape))
    with pm.Model():
        params = {name: pm.LogNormal(name, np.log(50.0 if name != "c" else 0.5), 1.0) for name in names}
        noise = pm.HalfNormal("noise", 0.1)
        sid.ODEFilter("y", system, record, params, noise=noise, solver=sid.EK1(order=3), x0=0.0)
        mode = sid.find_mode(progressbar=False)
        options = dict(chains=2, cores=2, random_seed=1, initvals=mode.initvals, progressbar=False)
        idata = pm.sample(300, tune=200, step=mode.nuts(), **options)
    posterior = idata.posterior
    for name, value in truth.items():
        draws = posterior[name].values
        assert abs(draws.mean() - value) < 4 * draws.std(), name
        assert draws.std() < 0.05 * value
    assert az.summary(idata)["r_hat"].astype(float).max() < 1.03
