"""The likelihood of one record by three packages of probabilistic ODE filters, in one run.

Problem: Duffing oscillator, natural frequency 68 Hz, sampled at 610.35 Hz, T = 3072, a smooth multisine whose values at the
steps are exact (neither of the others takes an input that jumps), an integrated Wiener process of order 4 with a known
diffusion, EK1, known initial state with exact derivatives, white noise. Three packages filter the same model:

- pm_sysid: the predictive density of each sample, given the samples and the ODE before it, and the density given the ODE
  everywhere (``likelihood="fenrir"``);
- ode-filters: the same two (channels "obs" and "fenrir");
- rodeo: "dalton" and "fenrir", which both condition on the ODE everywhere.

The reference is the density of the data around an accurate solution. Without the others installed, their rows say so:
``python benchmarks/filters.py [--quick]`` in an environment with jax, ode-filters and rodeo. Compare times within one run only.
"""

from __future__ import annotations

import argparse
import json
import time
import timeit
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp

THETA = np.array([5.368e-6, 2.254e-4, 0.9892, 3.961])  # m, c, k, k3
RATE, ORDER, NOISE = 610.35, 4, 2e-3
#: Standard deviation of the Wiener process per root of a second, m/s^5/s^(1/2): about its quasi-maximum-likelihood value.
SIGMA = 1e11
HERE = Path(__file__).parent


class Problem(NamedTuple):
    """``m z'' + c z' + k z + k3 z^3 = u(t)`` and ``y = z + noise``, with a periodic multisine for u."""

    t: np.ndarray  # (T,) s
    lines: np.ndarray  # (L,) rad/s
    phases: np.ndarray  # (L,)
    size: float
    y: np.ndarray  # (T,)
    reference: float  # log-likelihood around the accurate solution

    def force(self, t: Any, derivative: int = 0) -> np.ndarray:
        """Force at times, or a time derivative of it."""
        turned = np.outer(np.atleast_1d(t), self.lines) + self.phases + derivative * np.pi / 2
        return self.size * (np.cos(turned) * self.lines**derivative).sum(axis=1)

    def nodes(self, steps: int) -> np.ndarray:
        """Times of the steps, (steps (T - 1) + 1,)."""
        return np.arange(steps * (len(self.t) - 1) + 1) / (RATE * steps)

    def start(self, theta: Any) -> list[Any]:
        """Exact derivatives of z at the first sample, from rest: orders 0 to 4."""
        m, c, k = theta[0], theta[1], theta[2]
        u, du, ddu = (float(self.force(0.0, i)[0]) for i in range(3))
        a = u / m
        j = (du - c * a) / m
        return [0.0 * m, 0.0 * m, a, j, (ddu - c * j - k * a) / m]


def problem(T: int = 3072, seed: int = 1) -> Problem:
    """Sixty lines from 5 to 150 Hz that repeat after T samples."""
    rng = np.random.default_rng(seed)
    lines = 2 * np.pi * RATE / T * np.unique(np.linspace(5 * T / RATE, 150 * T / RATE, 61).round())
    t = np.arange(T) / RATE
    p = Problem(t, lines, 2 * np.pi * rng.random(lines.size), 0.05 / np.sqrt(lines.size / 2), t, 0.0)
    m, c, k, k3 = THETA
    z = solve_ivp(
        lambda s, x: (x[1], (p.force(s)[0] - c * x[1] - k * x[0] - k3 * x[0] ** 3) / m),
        (0.0, t[-1]), [0.0, 0.0], "DOP853", t, rtol=1e-11, atol=1e-13,
    ).y[0]  # fmt: skip
    y = z + NOISE * rng.standard_normal(T)
    y[0] = z[0]  # the initial state is known; the others have no sample at it
    return p._replace(y=y, reference=log_density(y[1:] - z[1:]))


def log_density(error: np.ndarray) -> float:
    """Log-likelihood of white noise."""
    return float(-0.5 * np.sum(error**2) / NOISE**2 - error.size * np.log(NOISE * np.sqrt(2 * np.pi)))


class Rival(NamedTuple):
    """Functions of parameters (4,), and (N, 4), compiled at their first call."""

    version: str
    value: Callable[[np.ndarray], Any]
    value_and_grad: Callable[[np.ndarray], Any]
    batch: Callable[[np.ndarray], Any]


def pm_sysid(p: Problem, steps: int, likelihood: Any) -> Rival:
    import pymc as pm

    import pm_sysid as sid

    y = p.y.copy()
    y[0] = np.nan
    record = sid.TimeSeries(p.t, p.force(p.t), y, periodic=True)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        theta = pm.Normal("theta", THETA, np.abs(THETA))
        params = {name: theta[i] for i, name in enumerate(("m", "c", "k", "k3"))}
        solver = sid.EK1(order=ORDER, diffusion=SIGMA)
        settings = dict(noise=NOISE, x0=0.0, solver=solver, substeps=steps, likelihood=likelihood)
        sid.ODEFilter("y", sid.models.duffing(), record, params, **settings)
    value, slope = model.logp(vars=model.observed_RVs), model.dlogp()
    both = model.compile_fn([value, slope], inputs=model.value_vars, point_fn=False)
    single = model.compile_fn(value, inputs=model.value_vars, point_fn=False)
    target = sid.Target(model)
    return Rival(sid.__version__, single, both, target.log_likelihood)


def _jax(package: str, logp: Any) -> Rival:
    import jax

    compiled = {
        name: jax.jit(f) for name, f in (("value", logp), ("both", jax.value_and_grad(logp)), ("batch", jax.vmap(logp)))
    }
    return Rival(version(package), *((lambda x, f=f: jax.device_get(f(x))) for f in compiled.values()))


def ode_filters(p: Problem, steps: int, channel: str) -> Rival:
    import jax
    import jax.numpy as jnp
    import ode_filters as of

    jax.config.update("jax_enable_x64", True)
    t = p.nodes(steps)
    force, h = jnp.asarray(p.force(t)), 1.0 / (RATE * steps)
    prior = of.IWP(q=ORDER, d=1, Xi=jnp.eye(1) * SIGMA**2)
    data = of.prepare_observations(
        [of.Measurement(jnp.eye(1), jnp.asarray(p.y[1:, None]), t[steps::steps], noise=NOISE**2)], prior.E0, t
    )

    def build(theta: Any) -> Any:
        def field(x: Any, v: Any, *, t: Any) -> Any:  # the values of the force at the nodes: an EK1 asks for no others
            u = force[jnp.round(t / h).astype(int)]
            return (u - theta[1] * v - (theta[2] + theta[3] * x * x) * x) / theta[0]

        start = jnp.stack(p.start(theta))
        return start, jnp.zeros((ORDER + 1,) * 2), of.SecondOrderODEInformation(field, prior.E0, prior.E1, prior.E2)

    model = of.InferenceProblem(build=build, prior=prior, ts=jnp.asarray(t))
    return _jax("ode-filters", lambda theta: of.marginal_loglik(theta, data, model=model, channel=channel))


def rodeo(p: Problem, steps: int, method: str) -> Rival:
    import jax
    import jax.numpy as jnp
    import rodeo as package

    jax.config.update("jax_enable_x64", True)
    t = p.nodes(steps)
    force, h = jnp.asarray(p.force(t)), 1.0 / (RATE * steps)
    weight = jnp.zeros((1, 1, ORDER + 1)).at[0, 0, 2].set(1.0)
    # The package drops variances below 1e-8, whatever their unit: z is given in units of this size.
    unit = 1e-4
    prior = package.prior.ibm_init(dt=h, n_deriv=ORDER + 1, sigma=jnp.full(1, SIGMA / unit))
    n = len(p.t) - 1
    sensor = jnp.zeros((n, 1, 1, ORDER + 1)).at[..., 0].set(1.0)
    noise = jnp.full((n, 1, 1, 1), (NOISE / unit) ** 2)
    density = {"dalton": package.inference.dalton, "fenrir": package.inference.fenrir}[method]

    def field(X: Any, t: Any, theta: Any) -> Any:
        u, x, v = force[jnp.round(t / h).astype(int)], unit * X[0, 0], unit * X[0, 1]
        return jnp.array([[(u - theta[1] * v - (theta[2] + theta[3] * x * x) * x) / theta[0] / unit]])

    def logp(theta: Any) -> Any:
        # Half a step early: the package rounds times of samples up to the next step, and a last digit would be a step.
        return -n * np.log(unit) + density(
            key=jax.random.PRNGKey(0), ode_fun=field, ode_weight=weight, ode_init=jnp.stack(p.start(theta))[None] / unit,
            t_min=0.0, t_max=t[-1], n_steps=len(t) - 1, interrogate=package.interrogate.interrogate_kramer,
            prior_pars=prior, obs_data=jnp.asarray(p.y[1:, None, None] / unit), obs_times=jnp.asarray(t[steps::steps] - h / 2),
            obs_weight=sensor, obs_var=noise, theta=theta,
        )  # fmt: skip

    return _jax("rodeo", logp)


RIVALS: dict[str, Callable[[Problem, int], Rival]] = {
    "pm_sysid": lambda p, steps: pm_sysid(p, steps, "filter"),
    "pm_sysid, Fenrir": lambda p, steps: pm_sysid(p, steps, "fenrir"),
    "ode-filters": lambda p, steps: ode_filters(p, steps, "obs"),
    "ode-filters, Fenrir": lambda p, steps: ode_filters(p, steps, "fenrir"),
    "rodeo, DALTON": lambda p, steps: rodeo(p, steps, "dalton"),
    "rodeo, Fenrir": lambda p, steps: rodeo(p, steps, "fenrir"),
}


def once(function: Callable[..., Any], x: np.ndarray) -> tuple[float, Any]:
    """Seconds of a first call, and its result."""
    start = time.perf_counter()
    result = function(x)
    return time.perf_counter() - start, result


def measure(p: Problem, names: list[str], quick: bool) -> dict[str, dict[str, Any]]:
    """Rows of the table; a rival that is missing or fails says so in its row."""
    rows: dict[str, dict[str, Any]] = {}
    ready: list[tuple[dict[str, Any], str, float, Callable[[], Any]]] = []
    many = THETA * np.exp(0.01 * np.random.default_rng(2).standard_normal((16 if quick else 256, 4)))
    for name in names:
        rows[name] = row = {}
        try:
            rival, row["first call, build s"] = None, 0.0
            seconds, rival = once(lambda steps, f=RIVALS[name]: f(p, steps), 2)  # type: ignore[arg-type]
            row |= {"version": rival.version, "first call, build s": seconds}
            row["first call, value s"], value = once(rival.value, THETA)
            row["first call, gradient s"], both = once(rival.value_and_grad, THETA)
            row["first call, batch s"], batch = once(rival.batch, many)
            row["error, 2 steps"] = float(value) - p.reference
            step = 1e-6 * THETA * [0.3, 1.0, -0.5, 0.2]
            slope = float(np.asarray(both[1]) @ step)
            difference = float(rival.value(THETA + step) - rival.value(THETA - step)) / 2
            row["gradient, relative error"] = abs(slope - difference) / abs(difference)
            row["batch unlike value"] = float(abs(np.asarray(batch)[0] - float(rival.value(many[0]))))
            for steps in (4, 16):
                if not quick:
                    row[f"error, {steps} steps"] = float(RIVALS[name](p, steps).value(THETA)) - p.reference
        except Exception as error:  # a package that is absent, or has changed, must not take the others with it
            row["missing"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        ready.append((row, "value ms", 1e3, lambda f=rival.value: f(THETA)))
        ready.append((row, "value and gradient ms", 1e3, lambda f=rival.value_and_grad: f(THETA)))
        ready.append((row, "batch us", 1e6 / len(many), lambda f=rival.batch: f(many)))
    for _ in range(2 if quick else 4):  # in turns, lest a busy spell of the machine fall on one of them
        for row, key, scale, function in ready:
            repeats = max(1, min(20, int(0.3 / timeit.timeit(function, number=1))))
            row[key] = min(row.get(key, np.inf), scale * min(timeit.repeat(function, number=1, repeat=repeats)))
    return rows


def main() -> None:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short record and a small batch")
    parser.add_argument("names", nargs="*", default=list(RIVALS))
    options = parser.parse_args()
    p = problem(512 if options.quick else 3072)
    rows = measure(p, options.names, options.quick)
    for name, row in rows.items():
        print(f"\n{name} {row.get('version', '')}")
        for key, number in row.items():
            print(f"  {key:28s}{number if isinstance(number, str) else format(number, '.4g')}")
    if not options.quick:
        (HERE / "results" / "filters.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
