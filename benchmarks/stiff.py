"""Stiff systems against accurate solutions: errors of free runs, log-likelihoods and gradients, steps and seconds.

The reference is SciPy's Radau at a relative tolerance of 1e-10, and the Gaussian log-likelihood of that solution. Measured are:

- ``states``: largest error of a free run (``simulate`` with ``substeps="auto"``) at the samples, relative to the largest value of
  each state, and its number of steps;
- ``loglik``, ``gradient``: error of the filter's log-likelihood (nats; noise of one percent) and of its gradient in the logarithms of
  the parameters (relative to its norm) at four (two) points near the true parameters, the largest; and its number of steps. The gradient
  of the reference is by central differences of the fourth order;
- seconds, once compiled, of a value, a value with its gradient, and a batch of 256 values; beside BDF and Radau of SciPy at 1e-6
  (a value; a gradient by forward differences would take one more run for each parameter), and Kvaerno5 of diffrax if it is
  installed.

Two systems that are not stiff follow: seconds of a value and a gradient with ``method="auto"`` and its predecessor, equal steps.
Run: ``uv run benchmarks/stiff.py [--only robertson ...]``.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from scipy.integrate import solve_ivp

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "stiff.json"
BATCH, POINTS, SLOPES, SPREAD, NOISE = 256, 4, 2, 0.01, 0.01


@dataclass
class Problem:
    """A system, its equations once more for SciPy, and a record."""

    system: sid.System
    #: Rates (n,) by time, state, parameters and input.
    law: Callable[..., Any]
    true: dict[str, float]
    x0: list[float]
    t: np.ndarray
    #: Outputs (T, n_y) by states (T, n), inputs (T,) and parameters.
    observe: Callable[..., np.ndarray]
    #: Parameters that are fixed at their true value.
    known: tuple[str, ...] = ()
    u: np.ndarray | None = None
    order: int = 3
    names: tuple[str, ...] = field(default=())

    def record(self, y: np.ndarray | None = None) -> sid.TimeSeries:
        """Times, held input and measurements."""
        return sid.TimeSeries(self.t, self.u, y, intersample="zoh" if self.u is not None else "bl")

    def states(self, values: Sequence[float], method: str = "Radau", rtol: float = 1e-10) -> np.ndarray:
        """Solution (T, n) by SciPy; a held input is constant in every interval."""
        size = np.array(self.x0, dtype=float)
        atol = rtol * 1e-6 * max(1e-3, float(np.max(np.abs(size))))
        options = dict(method=method, rtol=rtol, atol=atol)
        if self.u is None:
            run = solve_ivp(lambda t, x: self.law(x, values, 0.0), self.t[[0, -1]], size, t_eval=self.t, **options)
            assert run.success, run.message
            return run.y.T
        rows = [size]
        for a, b, u in zip(self.t[:-1], self.t[1:], self.u, strict=False):
            run = solve_ivp(lambda t, x, u=u: self.law(x, values, u), (a, b), rows[-1], **options)
            assert run.success, run.message
            rows.append(run.y[:, -1])
        return np.array(rows)

    def outputs(self, values: Sequence[float], **options: Any) -> np.ndarray:
        """Outputs (T, n_y) of that solution."""
        u = np.zeros(len(self.t)) if self.u is None else self.u
        return self.observe(self.states(values, **options), u, values)


def _robertson(x: Any, p: Any, u: float) -> Any:
    back, used = p[2] * x[1] * x[2], p[1] * x[1] ** 2
    return [back - p[0] * x[0], p[0] * x[0] - back - used, used]


def _hires(y: Any, p: Any, u: float) -> Any:
    k1, k2, k3, k4, k5, k6, plus, minus, star, made = p
    bound, free = plus * y[5] * y[7], (k2 + minus + star) * y[6]
    return [
        -k1 * y[0] + k2 * y[1] + k6 * y[2] + made,
        k1 * y[0] - (k2 + k3) * y[1],
        -(k1 + k6) * y[2] + k2 * y[3] + k5 * y[4],
        k3 * y[1] + k1 * y[2] - (k2 + k4) * y[3],
        -(k1 + k5) * y[4] + k2 * (y[5] + y[6]),
        -bound + k4 * y[3] + k1 * y[4] - k2 * y[5] + minus * y[6],
        bound - free,
        -bound + free,
    ]


def _van_der_pol(x: Any, p: Any, u: float) -> Any:
    m, c, k, a = p
    return [x[1], (c * (1 - (x[0] / a) ** 2) * x[1] - k * x[0]) / m]


def _enzyme(x: Any, p: Any, u: float) -> Any:
    bound, made = p[0] * x[0] * x[1] - p[1] * x[2], p[2] * x[2]
    return [-bound, made - bound, bound - made, made]


def _battery(x: Any, p: Any, u: float) -> Any:
    Q, _, R1, C1, R2, C2 = p
    return [-u / (3600 * Q), u / C1 - x[1] / (R1 * C1), u / C2 - x[2] / (R2 * C2)]


THICKNESS, CELLS = 0.05, 6


def _wall(x: Any, p: Any, u: float) -> Any:
    (k, c, h), d = p, THICKNESS / CELLS
    flow = np.concatenate([[u], -k * np.diff(x) / d, [x[-1] / (1 / h + d / (2 * k))]])
    return -np.diff(flow) / (c * d)


def _faces(x: np.ndarray, u: np.ndarray, p: Any) -> np.ndarray:
    (k, _, h), d = p, THICKNESS / CELLS
    return np.stack([x[:, 0] + u * d / (2 * k), x[:, -1] / (1 + h * d / (2 * k))], axis=1)


SOC = np.array([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
OCV = np.array([2.9, 3.25, 3.4, 3.55, 3.68, 3.85, 4.02, 4.2])


def _voltage(x: np.ndarray, u: np.ndarray, p: Any) -> np.ndarray:
    from scipy.interpolate import CubicSpline

    ocv = CubicSpline(SOC, OCV, bc_type="natural")(x[:, 0])
    return (ocv - x[:, 1] - x[:, 2] - p[1] * u)[:, None]


def _all(x: np.ndarray, u: np.ndarray, p: Any) -> np.ndarray:
    return x


def problems() -> dict[str, Problem]:
    """The stiff systems of the catalogue."""
    rates = [1.71, 0.43, 8.32, 0.69, 0.035, 8.32, 280.0, 0.69, 0.69, 0.0007]
    hires, minutes = sid.models.hires(), np.arange(0.0, 7200.0, 60.0)
    pulses = np.where((np.arange(120) // 10) % 2 == 0, 2.5, np.where((np.arange(120) // 20) % 3 == 0, 0.0, -1.0))
    return {
        "robertson": Problem(
            sid.models.robertson(),
            _robertson,
            {"k1": 0.04, "k2": 3e7, "k3": 1e4},
            [1.0, 0.0, 0.0],
            np.concatenate([[0.0], np.logspace(-4, 5, 28)]),
            _all,
        ),
        "hires": Problem(
            hires,
            _hires,
            dict(zip(hires.params, rates, strict=True)),
            [1.0, 0, 0, 0, 0, 0, 0, 0.0057],
            np.concatenate([np.linspace(0.0, 10.0, 21), np.linspace(20.0, 321.8122, 20)]),
            _all,
            known=("k4", "k5", "k6", "k_minus", "k_star", "o_ks"),
            order=2,
        ),
        "van der pol": Problem(
            sid.models.van_der_pol(forced=False),
            _van_der_pol,
            {"m": 1.0, "c": 1000.0, "k": 1.0, "a": 1.0},
            [2.0, 0.0],
            np.linspace(0.0, 2000.0, 41),
            lambda x, u, p: x[:, :1],
            known=("m", "a"),
        ),
        "enzyme": Problem(
            sid.models.enzyme(),
            _enzyme,
            {"kf": 1e4, "kr": 10.0, "kcat": 1.0},
            [1.0, 0.05, 0.0, 0.0],
            np.concatenate([[0.0], np.logspace(-5, 2, 29)]),
            _all,
        ),
        "battery": Problem(
            sid.models.battery(SOC, OCV),
            _battery,
            {"Q": 2.5, "R0": 0.02, "R1": 0.01, "C1": 200.0, "R2": 0.015, "C2": 4e4},
            [0.9, 0.0, 0.0],
            minutes,
            _voltage,
            u=pulses,
        ),
        "heated wall": Problem(
            sid.models.heated_wall(CELLS, thickness=THICKNESS),
            _wall,
            {"k": 50.0, "c": 3.5e6, "h": 12.0},
            [0.0] * CELLS,
            np.arange(0.0, 60_000.0, 600.0),
            _faces,
            u=np.where(np.arange(100) < 60, 2000.0, 0.0),
            order=2,
        ),
    }


def seconds(function: Callable[[], Any], least: float = 0.3) -> float:
    """Seconds of a call, the fastest of some after the first."""
    function()
    took, begun = [], time.perf_counter()
    while time.perf_counter() - begun < least or len(took) < 2:
        begin = time.perf_counter()
        function()
        took.append(time.perf_counter() - begin)
    return min(took)


def model_of(problem: Problem, y: np.ndarray, noise: np.ndarray) -> pm.Model:
    """Rates with priors of a factor of about two, around others than the true ones."""
    with pm.Model() as model:
        params: dict[str, Any] = {}
        for name, value in problem.true.items():
            params[name] = value if name in problem.known else pm.LogNormal(name, np.log(1.2 * value), 0.5)
        sid.ODEFilter(
            "y",
            problem.system,
            problem.record(y if y.shape[1] > 1 else y[:, 0]),
            params,
            noise=list(noise) if len(noise) > 1 else float(noise[0]),
            x0=problem.x0 if "T" not in problem.system.states.shapes else {"T": problem.x0},
            solver=sid.EK1(order=problem.order),
        )
    return model


def filter_steps(model: pm.Model) -> int:
    """Steps of the filter over the whole record."""
    from pm_sysid.likelihood.filter_view import filter_view

    return int(np.sum(filter_view("y", model).data.counts.get_value().clip(0)))


def measured(problem: Problem) -> dict[str, Any]:
    """Errors, steps and seconds of one problem."""
    free = [n for n in problem.true if n not in problem.known]
    truth, rng = list(problem.true.values()), np.random.default_rng(0)
    states = problem.states(truth)
    clean = problem.outputs(truth)
    noise = NOISE * np.maximum(np.std(clean, axis=0), 1e-12)
    y = clean + noise * rng.standard_normal(clean.shape)

    def all_values(theta: np.ndarray) -> list[float]:
        values = problem.true | dict(zip(free, np.exp(theta), strict=True))
        return list(values.values())

    def gaussian(theta: np.ndarray, **options: Any) -> float:
        error = (y - problem.outputs(all_values(theta), **options)) / noise
        return float(-0.5 * np.sum(error**2 + np.log(2 * np.pi * noise**2)))

    begin = time.perf_counter()
    x0 = problem.x0 if "T" not in problem.system.states.shapes else {"T": problem.x0}
    run = sid.simulate(problem.system, problem.record(), problem.true, x0=x0)
    first = time.perf_counter() - begin
    columns = [run[s].values.reshape(len(problem.t), -1) for s in problem.system.states.shapes]
    errors = np.max(np.abs(np.concatenate(columns, axis=1) - states), axis=0) / np.max(np.abs(states), axis=0)
    steps = run.attrs["substeps"]
    found: dict[str, Any] = {
        "integrator": run.attrs["integrator"],
        "states": float(errors.max()),
        "steps": int(np.sum(steps)) if np.ndim(steps) else int(steps) * (len(problem.t) - 1),
        "simulate, first": first,
    }

    begin = time.perf_counter()
    model = model_of(problem, y, noise)
    found |= {"filter steps": filter_steps(model), "build": time.perf_counter() - begin}
    target = sid.Target(model)
    theta = np.log([problem.true[n] for n in free]) + SPREAD * rng.standard_normal((POINTS, len(free)))
    theta = theta[:, [free.index(v.name) for v in model.free_RVs]]
    value = target.log_likelihood(theta)
    _, _, again, gradient = target.value_and_gradient(theta[:SLOPES])
    expected = np.array([gaussian(t) for t in theta])
    reference = np.empty_like(gradient)
    for row, at in zip(reference, theta[:SLOPES], strict=True):
        for i, e in enumerate(1e-3 * np.eye(len(free))):
            near, far = (gaussian(at + k * e) - gaussian(at - k * e) for k in (1, 2))
            row[i] = (8 * near - far) / 12e-3
    found |= {
        "loglik": float(np.max(np.abs(value - expected))),
        "gradient": float(np.max(np.linalg.norm(gradient - reference, axis=1) / np.linalg.norm(reference, axis=1))),
        "value and batch agree": float(np.max(np.abs(again - value[:SLOPES]))),
    }
    density, variables = model.compile_logp(vars=model.observed_RVs), [v.name for v in model.value_vars]
    slope = model.compile_dlogp()
    point = dict(zip(variables, theta[0], strict=True))
    many = theta[0] + SPREAD * rng.standard_normal((BATCH, len(free)))
    found |= {
        "value": seconds(lambda: density(point)),
        "gradient s": seconds(lambda: slope(point)),
        "batch": seconds(lambda: target.log_likelihood(many)),
        "BDF": seconds(lambda: gaussian(theta[0], method="BDF", rtol=1e-6)),
        "Radau": seconds(lambda: gaussian(theta[0], method="Radau", rtol=1e-6)),
    }
    found |= by_diffrax(problem, all_values(theta[0]))
    # Rates of all sizes: finite or minus infinity.
    wild = np.log(10) * rng.uniform(-3, 6, (BATCH, len(free)))
    values = target.log_likelihood(wild)
    found["wild"] = [int(np.isfinite(values).sum()), int(np.isneginf(values).sum()), int(np.isnan(values).sum())]
    return found


def by_diffrax(problem: Problem, values: Sequence[float]) -> dict[str, float]:
    """Seconds of diffrax's Kvaerno5 for a solution at 1e-6, compiled; nothing if it is not installed or the input is not zero."""
    try:
        import diffrax
        import jax
        import jax.numpy as jnp
    except ImportError:
        return {}
    if problem.u is not None:
        return {}
    jax.config.update("jax_enable_x64", True)
    law = diffrax.ODETerm(lambda t, x, p: jnp.stack(problem.law(x, p, 0.0)))
    control = diffrax.PIDController(rtol=1e-6, atol=1e-12)

    def solve(p: Any) -> Any:
        saved = diffrax.SaveAt(ts=jnp.asarray(problem.t))
        ends = problem.t[0], problem.t[-1], 1e-6
        run = diffrax.diffeqsolve(
            law,
            diffrax.Kvaerno5(),
            *ends,
            jnp.asarray(problem.x0),
            p,
            saveat=saved,
            stepsize_controller=control,
            max_steps=10_000,
        )
        return jnp.sum(run.ys**2)

    p = jnp.asarray(values, dtype=float)
    value, both, batch = jax.jit(solve), jax.jit(jax.value_and_grad(solve)), jax.jit(jax.vmap(solve))
    many = p * np.exp(SPREAD * np.random.default_rng(0).standard_normal((BATCH, len(values))))
    return {
        "Kvaerno5": seconds(lambda: value(p).block_until_ready()),
        "Kvaerno5 gradient": seconds(lambda: both(p)[1].block_until_ready()),
        "Kvaerno5 batch": seconds(lambda: batch(many).block_until_ready()),
    }


def not_stiff() -> dict[str, Any]:
    """Digits and seconds where nothing is stiff: the method that chooses against Runge-Kutta steps, which were there before."""
    found, t = dict[str, Any](), np.arange(1024) * 0.02
    force = 3 * np.sin(1.7 * t) + 2 * np.sin(0.6 * t)
    for name, system, values, x0 in (
        ("Duffing", sid.models.duffing(), dict(m=1.0, c=0.5, k=30.0, k3=10.0), [0.1, 0.0]),
        (
            "Bouc-Wen",
            sid.models.bouc_wen(),
            dict(m=2.0, c=10.0, k=50.0, alpha=50.0, beta=1.0, gamma=0.8, delta=-1.1),
            [0.0, 0.0, 0.0],
        ),
    ):
        record = sid.TimeSeries(t, force)
        runs, times = [], []
        for method in ("auto", "rk4"):
            at = dict(params=values, x0=x0, method=method)
            runs.append(sid.simulate(system, record, **at))
            times.append(seconds(lambda at=at: sid.simulate(system, record, **at)))
        same = all(np.array_equal(runs[0][s], runs[1][s]) for s in system.states)
        found[name] = {"identical": same, "integrator": runs[0].attrs["integrator"], "auto": times[0], "rk4": times[1]}
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.INFO)
    warnings.simplefilter("always", sid.SubstepWarning)
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, problem in problems().items():
        if arguments.only is None or name in arguments.only:
            found[name] = measured(problem)
            print(name, json.dumps(found[name], indent=1), flush=True)
    if arguments.only is None or "not stiff" in arguments.only:
        found["not stiff"] = not_stiff()
        print(json.dumps(found["not stiff"], indent=1))
    if not arguments.no_save:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
