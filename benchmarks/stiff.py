"""Stiff systems against accurate solutions: errors of free runs, log-likelihoods and gradients, steps and seconds.

The reference is SciPy's Radau at a relative tolerance of 1e-10, and the Gaussian log-likelihood of that solution. Measured are:

- ``states``: largest error of a free run (``simulate`` with ``substeps="auto"``) at the samples, relative to the largest value
  of each state, and its number of steps;
- ``loglik``: largest error of the filter's log-likelihood (nats; noise of one percent) at two points of the posterior by
  Laplace's approximation, with the steps that ``substeps="auto"`` chose and ``settle_substeps`` judged at the truth;
  ``gradient`` that of its gradient by the logarithms of the parameters, in posterior standard deviations, and ``relative`` as a
  share of its norm;
- seconds, once compiled, of a value, a gradient, and a batch of 256 values; beside BDF and Radau of SciPy at 1e-6 (a value; a
  gradient by forward differences takes one more run for each parameter), and, if they are installed, Kvaerno5 of diffrax and
  the adaptive EK1 of probdiffeq.

Then, ``linear``: a fast linear decay to a slow curve, from the curve and from beside it, rates to 1e8 and orders 1 to 4; the
log-likelihood against the exact one, with the steps that ``substeps="auto"`` chose.

Last, for two systems that are not stiff: seconds of free runs with ``method="auto"`` and with ``"rk4"``, and whether they are
the same to the last bit. Run: ``uv run --extra benchmarks benchmarks/stiff.py [--only robertson ...] [--cache FOLDER]``;
references take minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.integrate import solve_ivp

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "stiff.json"
BATCH, POINTS, SPREAD, NOISE, PRIOR = 256, 2, 0.01, 0.01, 0.5


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
    #: Whether the filter follows it: fixed steps cannot follow jumps whose times the parameters move.
    filtered: bool = True

    @property
    def free(self) -> list[str]:
        """Parameters that are not known."""
        return [name for name in self.true if name not in self.known]

    @property
    def start(self) -> Any:
        """Initial state as the package takes it."""
        return {"T": self.x0} if "T" in self.system.states.shapes else self.x0

    def values(self, theta: np.ndarray) -> list[float]:
        """All parameters, by the logarithms of the free ones."""
        return list((self.true | dict(zip(self.free, np.exp(theta), strict=True))).values())

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
        ),
        "van der pol": Problem(
            sid.models.van_der_pol(forced=False),
            _van_der_pol,
            {"m": 1.0, "c": 1000.0, "k": 1.0, "a": 1.0},
            [2.0, 0.0],
            np.linspace(0.0, 2000.0, 41),
            lambda x, u, p: x[:, :1],
            known=("m", "a"),
            filtered=False,
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
            params[name] = value if name in problem.known else pm.LogNormal(name, np.log(1.2 * value), PRIOR)
        sid.ODEFilter(
            "y",
            problem.system,
            problem.record(y if y.shape[1] > 1 else y[:, 0]),
            params,
            noise=list(noise) if len(noise) > 1 else float(noise[0]),
            x0=problem.start,
            solver=sid.EK1(order=problem.order),
        )
    return model


def filter_steps(model: pm.Model) -> int:
    """Steps of the filter over the whole record."""
    from pm_sysid.likelihood.filter_view import filter_view

    return int(np.sum(filter_view("y", model).data.counts.get_value().clip(0)))


class Reference(NamedTuple):
    """Measurements, their noise, and accurate log-likelihoods and gradients at points of the posterior."""

    y: np.ndarray
    noise: np.ndarray
    points: np.ndarray
    loglik: np.ndarray
    gradient: np.ndarray
    #: Factor of the covariance of the posterior by Laplace's approximation.
    factor: np.ndarray


def reference(problem: Problem) -> Reference:
    """Accurate likelihoods; derivatives of the outputs are central differences of the fourth order."""
    n, truth = len(problem.free), np.log([problem.true[name] for name in problem.free])

    def outputs(theta: np.ndarray) -> np.ndarray:
        return problem.outputs(problem.values(theta))

    def slopes(theta: np.ndarray, step: float) -> np.ndarray:
        columns = []
        for e in step * np.eye(n):
            near, far = (outputs(theta + k * e) - outputs(theta - k * e) for k in (1, 2))
            columns.append((8 * near - far) / (12 * step))
        return np.stack(columns, axis=-1)

    clean, rng = outputs(truth), np.random.default_rng(0)
    noise = NOISE * np.std(clean, axis=0)
    A = (slopes(truth, 1e-4) / noise[:, None]).reshape(-1, n)
    factor = np.linalg.cholesky(np.linalg.inv(A.T @ A + np.eye(n) / PRIOR**2))
    y = clean + noise * rng.standard_normal(clean.shape)
    points = np.array([truth + factor @ rng.standard_normal(n) for _ in range(POINTS)])
    step, values, gradients = min(1e-3, float(np.linalg.norm(factor, axis=1).min()) / 2), [], []
    for theta in points:
        error = (y - outputs(theta)) / noise
        values.append(-0.5 * np.sum(error**2 + np.log(2 * np.pi * noise**2)))
        gradients.append(np.einsum("tj,tjk->k", error / noise, slopes(theta, step)))
    return Reference(y, noise, points, np.array(values), np.array(gradients), factor)


def kept(name: str, problem: Problem, folder: Path | None) -> Reference:
    """A reference from a folder, or computed and put there."""
    if folder is None:
        return reference(problem)
    file = folder / f"{name.replace(' ', '_')}.npz"
    if not file.exists():
        np.savez(file, **reference(problem)._asdict())
    return Reference(**np.load(file))


def free_runs(problem: Problem) -> dict[str, Any]:
    """Errors and steps of free runs."""
    begin = time.perf_counter()
    run = sid.simulate(problem.system, problem.record(), problem.true, x0=problem.start)
    first = time.perf_counter() - begin
    expected = problem.states(list(problem.true.values()))
    columns = [run[s].values.reshape(len(problem.t), -1) for s in problem.system.states.shapes]
    errors = np.max(np.abs(np.concatenate(columns, axis=1) - expected), axis=0) / np.max(np.abs(expected), axis=0)
    steps = run.attrs["substeps"]
    return {
        "integrator": run.attrs["integrator"],
        "states": float(errors.max()),
        "steps": int(np.sum(steps)) if np.ndim(steps) else int(steps) * (len(problem.t) - 1),
        "simulate, first": first,
    }


def measured(name: str, problem: Problem, folder: Path | None) -> dict[str, Any]:
    """Errors, steps and seconds of one problem."""
    found, free, rng = free_runs(problem), problem.free, np.random.default_rng(1)
    if not problem.filtered:
        return found
    known = kept(name, problem, folder)
    begin = time.perf_counter()
    model = model_of(problem, known.y, known.noise)
    sid.settle_substeps({n: problem.true[n] for n in free}, model=model)
    found |= {"filter steps": filter_steps(model), "build": time.perf_counter() - begin}
    target = sid.Target(model)
    assert [v.name for v in model.free_RVs] == free
    _, _, value, gradient = target.value_and_gradient(known.points)
    wrong = gradient - known.gradient
    found |= {
        "loglik": float(np.max(np.abs(value - known.loglik))),
        "gradient": float(np.max(np.linalg.norm(wrong @ known.factor, axis=1))),
        "relative": float(np.max(np.linalg.norm(wrong, axis=1) / np.linalg.norm(known.gradient, axis=1))),
    }
    theta = known.points[0]
    density, slope = model.compile_logp(vars=model.observed_RVs), model.compile_dlogp()
    point = dict(zip([v.name for v in model.value_vars], theta, strict=True))
    many = theta + SPREAD * rng.standard_normal((BATCH, len(free)))
    found |= {
        "value": seconds(lambda: density(point)),
        "gradient s": seconds(lambda: slope(point)),
        "batch": seconds(lambda: target.log_likelihood(many)),
        "BDF": seconds(lambda: problem.outputs(problem.values(theta), method="BDF", rtol=1e-6)),
        "Radau": seconds(lambda: problem.outputs(problem.values(theta), method="Radau", rtol=1e-6)),
    }
    if problem.u is None:
        found |= by_diffrax(problem, problem.values(theta)) | by_probdiffeq(problem, problem.values(theta))
    # Rates of all sizes: finite, minus infinity, or (never) not a number.
    values = target.log_likelihood(np.log(10) * rng.uniform(-3, 6, (BATCH, len(free))))
    found["wild"] = [int(np.isfinite(values).sum()), int(np.isneginf(values).sum()), int(np.isnan(values).sum())]
    return found


def by_diffrax(problem: Problem, values: Sequence[float]) -> dict[str, float]:
    """Seconds of diffrax's Kvaerno5 for a solution at 1e-6, compiled; nothing without diffrax."""
    try:
        import diffrax
        import jax
        import jax.numpy as jnp
    except ImportError:
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


def by_probdiffeq(problem: Problem, values: Sequence[float]) -> dict[str, float]:
    """Steps, error and seconds of probdiffeq's adaptive EK1 at 1e-6, five derivatives; nothing without it."""
    try:
        import jax
        import jax.numpy as jnp
        from probdiffeq import ivpsolve
        from probdiffeq import probdiffeq as pd
    except ImportError:
        return {}
    jax.config.update("jax_enable_x64", True)
    ssm, start, at = pd.state_space_model_dense(), jnp.asarray(problem.x0, dtype=float), jnp.asarray(problem.t)

    def solve(p: Any) -> Any:
        ode = pd.ode(lambda x, /, *, t: jnp.stack(problem.law(x, p, 0.0)), jacobian=pd.jacobian_materialize())
        constraint = ssm.constraint_ode_ts1(ode)
        prior = ssm.prior_wiener_integrated(pd.jetexpand_ode_unroll(num=5)(ode, [start], t=0.0)[0])
        solver = pd.solver_dynamic(strategy=pd.strategy_filter(), constraint=constraint)
        run = ivpsolve.solve_adaptive_save_at(solver=solver, error=pd.error_residual_std(constraint=constraint), warn=False)
        found = run(prior, save_at=at, atol=1e-12, rtol=1e-6, dt0=1e-8)
        return found.u.mean[0], found.num_steps

    p = jnp.asarray(values, dtype=float)
    states, steps = jax.jit(solve)(p)
    value, batch = (jax.jit(f(lambda p: jnp.sum(solve(p)[0] ** 2))) for f in (lambda f: f, jax.vmap))
    slope = jax.jit(jax.jacfwd(lambda p: jnp.sum(solve(p)[0] ** 2)))
    many = p * np.exp(SPREAD * np.random.default_rng(0).standard_normal((BATCH, len(values))))
    expected = problem.states(values)
    return {
        "probdiffeq steps": int(steps[-1]),
        "probdiffeq states": float(np.max(np.abs(states - expected) / np.abs(expected).max(axis=0))),
        "probdiffeq": seconds(lambda: value(p).block_until_ready()),
        "probdiffeq gradient": seconds(lambda: slope(p).block_until_ready()),
        "probdiffeq batch": seconds(lambda: batch(many).block_until_ready()),
    }


def linear() -> dict[str, Any]:
    """Errors of the log-likelihood of a fast decay to a cosine, whose solution is known, and steps over the record."""
    system = sid.System(
        lambda t, x, u, p: -p.rate * (x.z - pt.cos(t)) - pt.sin(t),
        states=("z",),
        params=("rate",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    t, noise, found = np.linspace(0.0, 2.0, 21), 0.01, dict[str, Any]()
    error = noise * np.random.default_rng(0).standard_normal(t.size)
    exact = -0.5 * np.sum((error / noise) ** 2 + np.log(2 * np.pi * noise**2))
    for rate in (1e2, 1e4, 1e6, 1e8):
        for beside in (0.0, 1.0):
            y = np.cos(t) + beside * np.exp(-rate * t) + error
            errors, steps = [], []
            for order in (1, 2, 3, 4):
                with pm.Model() as model:
                    factor = pm.LogNormal("factor", 0.0, 0.01)
                    options: dict[str, Any] = {"noise": noise, "x0": 1.0 + beside, "solver": sid.EK1(order=order)}
                    sid.ODEFilter("y", system, sid.TimeSeries(t, None, y), {"rate": rate * factor}, **options)
                errors.append(float(model.compile_logp(vars=model.observed_RVs)({"factor_log__": 0.0})) - exact)
                steps.append(filter_steps(model))
            found[f"rate {rate:.0e}, {'beside' if beside else 'on'} the curve"] = {"loglik": errors, "steps": steps}
    return found


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
        call = partial(sid.simulate, system, sid.TimeSeries(t, force), values, x0=x0)
        runs = [call(method=method) for method in ("auto", "rk4")]
        times = [seconds(partial(call, method=method)) for method in ("auto", "rk4")]
        same = all(np.array_equal(runs[0][s], runs[1][s]) for s in system.states)
        found[name] = {"identical": same, "integrator": runs[0].attrs["integrator"], "auto": times[0], "rk4": times[1]}
    return found


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--cache", type=Path, default=None, help="folder of references")
    arguments = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.INFO)
    warnings.simplefilter("always", sid.SubstepWarning)
    names = [*problems(), "linear", "not stiff"] if arguments.only is None else arguments.only
    for name in names:
        others = {"linear": linear, "not stiff": not_stiff}
        row = others[name]() if name in others else measured(name, problems()[name], arguments.cache)
        print(name, json.dumps(row, indent=1), flush=True)
        found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(found | {name: row}, indent=1) + "\n")


if __name__ == "__main__":
    main()
