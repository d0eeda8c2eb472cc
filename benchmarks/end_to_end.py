"""From a rough prior to a posterior, by one call and by other packages: seconds with compilation to 1000 effective draws.

Two tasks. *Lotka-Volterra*: hare and lynx, 21 years, eight unknowns, the priors of Stan's case study, whose table the means are
compared with. *Silverbox*: a Duffing oscillator with offset, the 3073 samples of the training record, eight unknowns (initial
state and noise among them), wide priors; means are compared with those of the first method.

- ``sid.sample``: one call; the mode is looked for, and the steps of the filter are chosen.
- ``sid.ODEFilter + pm.sample``: PyMC as it comes (nutpie where it is installed), with the same likelihood.
- ``RK4 in JAX + numpyro``: the ODE by Runge-Kutta steps in ``lax.scan``, as few as are accurate, and NUTS with a dense mass
  matrix from the medians of the priors: about the best that one can write by hand.
- ``diffrax + numpyro``: the ODE by Tsit5 with adaptive steps (1e-6), the same NUTS.

Each runs in a process of its own with an empty folder of compiled code, four chains of 1000 draws, ``--limit`` seconds at most.
Where fewer than 1000 effective draws (the smallest bulk or tail number of all unknowns) came out, the seconds are those of as
many runs as it takes. Run: ``uv run --extra jax --extra benchmarks benchmarks/end_to_end.py [--limit 600]``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import arviz_stats
import numpy as np
import xarray as xr

RESULTS = Path(__file__).parent / "results" / "end_to_end.json"
TASKS = ("lotka_volterra", "silverbox")
DRAWS, CHAINS, TUNE = 1000, 4, 1000
#: Runge-Kutta steps in a year, and in a sample of the Silverbox: twice as many move the log-likelihood by less than 0.1.
STEPS = {"lotka_volterra": 40, "silverbox": 8}
#: Mean and standard deviation of Stan's case study.
STAN = {"alpha": (0.55, 0.07), "beta": (0.028, 0.004), "gamma": (0.80, 0.10), "delta": (0.024, 0.004)}
SILVERBOX = {"m": (np.log(5e-6), 0.5), "c": (np.log(2e-4), 0.5), "k": (0.0, 0.5), "k3": (np.log(4.0), 0.5)}


# -- this package -----------------------------------------------------------------------------------------------------------


def filter_model(task: str) -> Any:
    """The task with an ODE filter."""
    import problem_set
    import pymc as pm

    import pm_sysid as sid

    if task == "lotka_volterra":
        return problem_set.lotka_volterra(substeps="auto").model
    with pm.Model() as model:
        params: dict[str, Any] = {name: pm.LogNormal(name, *prior) for name, prior in SILVERBOX.items()}
        params["offset"] = pm.Normal("offset", 0.0, 0.01)
        z0, v0, noise = pm.Normal("z0", 0.0, 0.1), pm.Normal("v0", 0.0, 30.0), pm.LogNormal("noise", np.log(1e-3), 1.0)
        x0 = {"z": z0, "v": v0}
        sid.ODEFilter("y", sid.models.duffing(offset=True), sid.datasets.silverbox("train"), params, noise=noise, x0=x0)
    return model


def by_sample(task: str) -> xr.DataTree:
    """One call."""
    import pm_sysid as sid

    return sid.sample(filter_model(task), draws=DRAWS, chains=CHAINS, random_seed=1, progressbar=False)


def by_pymc(task: str) -> xr.DataTree:
    """PyMC as it comes."""
    import pymc as pm

    with filter_model(task):
        idata: xr.DataTree = pm.sample(DRAWS, tune=TUNE, chains=CHAINS, random_seed=1, progressbar=False)
    return idata


# -- JAX --------------------------------------------------------------------------------------------------------------------


def nuts(model: Callable[[], None]) -> xr.DataTree:
    """NUTS of numpyro, four chains side by side."""
    import jax
    import numpyro

    kernel = numpyro.infer.NUTS(model, dense_mass=True, init_strategy=numpyro.infer.init_to_median(num_samples=100))
    options: dict[str, Any] = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=TUNE, num_samples=DRAWS, **options)
    mcmc.run(jax.random.PRNGKey(1))
    draws = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    data = {k: (("chain", "draw", *(f"{k}_{i}" for i in range(v.ndim - 2))), v) for k, v in draws.items()}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(data)})


def in_jax(task: str, solved: Callable[..., Any]) -> xr.DataTree:
    """The task in numpyro, with states (T, 2) by ``solved(field, x0, t, u)``."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    jax.config.update("jax_enable_x64", True)
    sample = numpyro.sample
    if task == "lotka_volterra":
        from problem_set import HARE, LYNX

        t, y = np.arange(21.0), np.log(np.c_[HARE, LYNX])

        def predators() -> None:
            alpha, gamma = (sample(n, dist.TruncatedNormal(1.0, 0.5, low=0.0)) for n in ("alpha", "gamma"))
            beta, delta = (sample(n, dist.TruncatedNormal(0.05, 0.05, low=0.0)) for n in ("beta", "delta"))
            start = sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
            sigma = sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))

            def field(x: Any, u: Any) -> Any:
                return jnp.stack([(alpha - beta * x[1]) * x[0], (-gamma + delta * x[0]) * x[1]])

            states = solved(field, start, t, None)
            _measured(jnp.log(jnp.maximum(states, 1e-12)), sigma, y)

        return nuts(predators)

    import pm_sysid as sid

    record = sid.datasets.silverbox("train")
    t, u, z = record.t, record.input_matrix[:, 0], record.output_matrix[:, 0]

    def oscillator() -> None:
        m, c, k, k3 = (sample(n, dist.LogNormal(*prior)) for n, prior in SILVERBOX.items())
        offset, z0, v0 = (sample(n, dist.Normal(0.0, s)) for n, s in (("offset", 0.01), ("z0", 0.1), ("v0", 30.0)))
        noise = sample("noise", dist.LogNormal(np.log(1e-3), 1.0))

        def field(x: Any, force: Any) -> Any:
            return jnp.stack([x[1], (force + offset - c * x[1] - k * x[0] - k3 * x[0] ** 3) / m])

        _measured(solved(field, jnp.stack([z0, v0]), t, u)[:, 0], noise, z)

    return nuts(oscillator)


def _measured(output: Any, noise: Any, y: np.ndarray) -> None:
    """Normal noise; minus infinity where there is no solution."""
    import jax.numpy as jnp
    import numpyro

    fine = jnp.isfinite(output)
    density = -0.5 * ((y - jnp.where(fine, output, 0.0)) / noise) ** 2 - jnp.log(noise)
    numpyro.factor("likelihood", jnp.where(jnp.all(fine), jnp.sum(density), -jnp.inf))


def by_runge_kutta(task: str) -> xr.DataTree:
    """Runge-Kutta steps in a scan."""
    import jax
    import jax.numpy as jnp
    from scipy.interpolate import make_interp_spline

    steps = STEPS[task]

    def solved(field: Any, x0: Any, t: np.ndarray, u: np.ndarray | None) -> Any:
        h = (t[1] - t[0]) / steps
        nodes = t[0] + np.arange(2 * steps * (len(t) - 1) + 1) * h / 2
        fine = np.zeros(len(nodes)) if u is None else make_interp_spline(t, u, k=9)(nodes)
        windows = np.lib.stride_tricks.sliding_window_view(fine, 2 * steps + 1)[:: 2 * steps]

        def interval(x: Any, window: Any) -> tuple[Any, Any]:
            def step(x: Any, now: Any) -> tuple[Any, None]:
                a = field(x, now[0])
                b = field(x + h / 2 * a, now[1])
                c = field(x + h / 2 * b, now[1])
                return x + h / 6 * (a + 2 * b + 2 * c + field(x + h * c, now[2])), None

            each = jnp.stack([window[:-2:2], window[1:-1:2], window[2::2]], axis=1)
            x, _ = jax.lax.scan(step, x, each)
            return x, x

        _, states = jax.lax.scan(interval, x0, jnp.asarray(windows))
        return jnp.concatenate([x0[None], states])

    return in_jax(task, solved)


def by_diffrax(task: str) -> xr.DataTree:
    """Adaptive steps of diffrax."""
    import diffrax
    import jax.numpy as jnp

    def solved(field: Any, x0: Any, t: np.ndarray, u: np.ndarray | None) -> Any:
        if u is None:

            def force(now: Any) -> Any:
                return 0.0
        else:
            path = diffrax.CubicInterpolation(t, diffrax.backward_hermite_coefficients(t, jnp.asarray(u)))
            force = path.evaluate

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda now, x, args: field(x, force(now))),
            diffrax.Tsit5(),
            t[0],
            t[-1],
            None,
            x0,
            saveat=diffrax.SaveAt(ts=jnp.asarray(t)),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-9),
            max_steps=16 * len(t) + 1000,
            throw=False,
        )
        return solution.ys

    return in_jax(task, solved)


METHODS: Mapping[str, Callable[[str], xr.DataTree]] = {
    "sid.sample": by_sample,
    "sid.ODEFilter + pm.sample": by_pymc,
    "RK4 in JAX + numpyro": by_runge_kutta,
    "diffrax + numpyro": by_diffrax,
}


# -- measuring --------------------------------------------------------------------------------------------------------------


def child(task: str, method: str) -> None:
    """One run, judged, as a line of JSON."""
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    idata = METHODS[method](task)
    seconds = time.perf_counter() - begun
    table = arviz_stats.summary(idata, round_to="none")
    posterior = idata["posterior"]
    names = STAN if task == "lotka_volterra" else (*SILVERBOX, "offset", "noise")
    found = {
        "seconds": seconds,
        "effective draws": float(table[["ess_bulk", "ess_tail"]].astype(float).to_numpy().min()),
        "R-hat": float(table["r_hat"].astype(float).max()),
        "mean": {n: float(posterior[n].mean()) for n in names},
        "sd": {n: float(posterior[n].std()) for n in names},
        "verdict": str(idata.attrs.get("verdict", "")),
    }
    print("RESULT" + json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a run is ended")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    print(
        f"{'task':15s} {'method':26s} {'seconds':>8s} {'effective':>9s} {'R-hat':>6s} {'s to 1000':>9s} {'off (sd)':>8s}",
        flush=True,
    )
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for task in options.tasks:
        if task == "silverbox" and not os.environ.get("PM_SYSID_DATA"):
            print("silverbox       left out: PM_SYSID_DATA is not set")
            continue
        rows = results.setdefault(task, {})
        for method in options.methods:
            row = measured(task, method, options.limit)
            first = rows.get("sid.sample", row)
            if "mean" in row:
                row["seconds to 1000"] = row["seconds"] * max(1.0, 1000 / row["effective draws"])
            if "mean" in row and "mean" in first:
                ours = {n: (m, first["sd"][n]) for n, m in first["mean"].items()}
                known = STAN if task == "lotka_volterra" else ours
                row["off"] = max(abs(row["mean"][n] - m) / s for n, (m, s) in known.items())
            rows[method] = row
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            print(line(task, method, row), flush=True)


def measured(task: str, method: str, limit: float) -> dict[str, Any]:
    """A run in a fresh process, with nothing compiled."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={folder}", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, __file__, "--child", task, method]
        begun = time.perf_counter()
        try:
            run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return {"says": f"did not end in {limit:.0f} s"}
        found = [text for text in run.stdout.splitlines() if text.startswith("RESULT")]
        if not found:
            return {"says": (run.stderr.strip().splitlines() or ["no result"])[-1][:200]}
        return dict(json.loads(found[0].removeprefix("RESULT")), **{"with imports": time.perf_counter() - begun})


def line(task: str, method: str, row: Mapping[str, Any]) -> str:
    """A row of the table."""
    if "mean" not in row:
        return f"{task:15s} {method:26s} {row['says']}"
    seconds = f"{row['seconds']:8.1f} {row['effective draws']:9.0f} {row['R-hat']:6.3f} {row['seconds to 1000']:9.1f}"
    return f"{task:15s} {method:26s} {seconds} {row.get('off', float('nan')):8.2f}"


if __name__ == "__main__":
    main()
