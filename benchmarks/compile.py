"""What a changed equation costs: seconds of a whole session, of what filter and priors add to a model, and of chains of masses.

Each case runs in a process of its own, first with an empty folder of compiled code, then with another equation (what is
shared is there, the system is new), then with the same equation again (everything is there). The case ``imports`` compares
``import pm_sysid`` with ``import pymc``, in turn in fresh processes. Seconds are by the clock and of the processor: the second
does not see other work on the machine. Run: ``uv run benchmarks/compile.py [--only CASE ...]``; with ``--extra benchmarks
--extra jax`` the same model in diffrax, JAX and NumPyro is measured beside it. Results go to
``benchmarks/results/compile.json``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results" / "compile.json"
TRUTH = {"m": 1.0, "c": 1.0, "k": 150.0, "k3": 2000.0}
SECONDS: dict[str, tuple[float, float]] = {}


@contextmanager
def measured(name: str) -> Iterator[None]:
    """Keep the seconds of what happens inside, by the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    SECONDS[name] = time.perf_counter() - clock, time.process_time() - processor


def duffing(tag: float) -> tuple[Any, Any]:
    """A Duffing oscillator with a term that makes its equation a new one, and a record."""
    import numpy as np

    import pm_sysid as sid

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        return x.v, (u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3 - tag * x.z**5) / p.m

    options = dict(states=("z", "v"), inputs=("F",), params=tuple(TRUTH), observe=lambda t, x, dx, u, p: x.z)
    system = sid.System(dynamics, **options)
    t = np.arange(400) / 50
    return system, sid.TimeSeries(t, 10 * np.sin(0.2 * np.pi * t * (1 + t)), None, inputs="F")


def session(tag: float) -> None:
    """An engineer's session: simulate, fit, model, mode, NUTS, innovations, IBIS."""
    with measured("import pymc"):
        import numpy as np
        import pymc as pm
    with measured("import pm_sysid after it"):
        import pm_sysid as sid
    system, record = duffing(tag)
    with measured("simulate"):
        y = sid.simulate(system, record, TRUTH, x0=0.0)["y"].values
    record = record.replace(y=y + 0.002 * np.random.default_rng(0).standard_normal(len(y)))
    with measured("fit_pem"):
        sid.fit_pem(system, record, {"m": 1.2, "c": 0.8, "k": 140.0, "k3": 1500.0}, x0={"z": 0.0, "v": 0.0})
    with measured("model, steps chosen"), pm.Model() as model:
        params = {name: pm.LogNormal(name, np.log(value), 0.3) for name, value in TRUTH.items()}
        sid.ODEFilter("y", system, record, params, noise=pm.HalfNormal("noise", 0.01))
    with model:
        with measured("find_mode"):
            mode = sid.find_mode(progressbar=False)
        options = dict(chains=2, cores=1, initvals=mode.initvals, progressbar=False, random_seed=1)
        with measured("NUTS, 2 x 500"):
            idata = pm.sample(300, tune=200, step=mode.nuts(), **options)
        with measured("innovations"):
            sid.innovations(idata, "y", model=model)
        with measured("log-likelihood by sample"):
            pm.compute_log_likelihood(idata, progressbar=False)
        with measured("sample_ibis(500)"):
            sid.sample_ibis(500, model=model, chains=1, random_seed=1, progressbar=False)


def added(tag: float) -> None:
    """Seconds to the first number of the value, the gradient and the batch: five variables alone, and with the filter."""
    import numpy as np
    import pymc as pm

    import pm_sysid as sid

    system, record = duffing(tag)
    y = 0.01 * np.random.default_rng(0).standard_normal(400)

    def variables() -> dict[str, Any]:
        return {name: pm.LogNormal(name, np.log(value), 0.3) for name, value in TRUTH.items()}

    with pm.Model() as plain:
        params, t = variables(), record.t
        force = params["m"] * np.sin(t) + params["c"] * t + params["k"] * t**2 + params["k3"] * np.cos(t)
        pm.Normal("y", force, pm.HalfNormal("noise", 0.01), observed=y)
    with pm.Model() as filtered:
        sid.ODEFilter("y", system, record.replace(y=y), variables(), noise=pm.HalfNormal("noise", 0.01), substeps=1)
    for name, model in (("without the filter", plain), ("with the filter", filtered)):
        point = model.initial_point()
        with measured(f"value {name}"):
            model.compile_logp()(point)
        with measured(f"gradient {name}"):
            model.compile_dlogp()(point)
    for name, model in (("without the filter", plain), ("with the filter", filtered)):
        target = sid.Target(model)
        with measured(f"batch {name}"):
            target.log_likelihood(np.zeros((64, 5)))


def priors(tag: float) -> None:
    """Seconds to the mode of one system by priors that are written in several ways, each a model of its own."""
    import numpy as np
    import pymc as pm

    import pm_sysid as sid

    system, record = duffing(tag)
    y = sid.simulate(system, record, TRUTH, x0=0.0)["y"].values
    record = record.replace(y=y + 0.002 * np.random.default_rng(0).standard_normal(len(y)))

    def plain(name: str, value: float) -> Any:
        return pm.LogNormal(name, np.log(value), 0.3)

    def deterministic(name: str, value: float) -> Any:
        return pm.Deterministic(name, value * pm.math.exp(0.3 * pm.Normal(f"{name}_z")))

    def mixture(name: str, value: float) -> Any:
        return pm.LogNormal(name, np.log(value), 0.3) if name != "c" else mixed(name, value)

    def mixed(name: str, value: float) -> Any:
        return pm.Mixture(name, [0.5, 0.5], [pm.LogNormal.dist(np.log(value) + shift, 0.2) for shift in (-0.3, 0.3)])

    def correlated() -> dict[str, Any]:
        root, _, _ = pm.LKJCholeskyCov("root", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(0.3), compute_corr=True)
        both = pm.MvNormal("log_c_k", np.log([TRUTH["c"], TRUTH["k"]]), chol=root)
        return {name: plain(name, TRUTH[name]) for name in ("m", "k3")} | {"c": pm.math.exp(both[0]), "k": pm.math.exp(both[1])}

    ways: dict[str, Callable[[], dict[str, Any]]] = {
        way.__name__: partial(lambda way: {name: way(name, value) for name, value in TRUTH.items()}, way)
        for way in (plain, deterministic, mixture)
    }
    for name, parameters in (ways | {"correlated (LKJ)": correlated}).items():
        with measured(f"find_mode, {name}"), pm.Model():
            noise = pm.HalfNormal("noise", 0.01)
            sid.ODEFilter("y", system, record, parameters(), noise=noise, x0=0.0, substeps=2)
            sid.find_mode(prior_draws=200, starts=4, tempering=False, random_seed=1, progressbar=False)


def masses(tag: float, n: int = 3, covariance: str = "dense") -> None:
    """Masses in a row, EK1 of order 3: model, value and gradient."""
    import numpy as np
    import pymc as pm

    import pm_sysid as sid

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        z, v = x[:n], x[n:]
        pull = [p.k * (z[i] - (z[i - 1] if i else 0.0)) for i in range(n)] + [0.0]
        force = [pull[i + 1] - pull[i] - p.c * v[i] - tag * z[i] ** 3 for i in range(n)]
        return (*v, force[0] + u.F, *force[1:])

    names = (*(f"z{i}" for i in range(n)), *(f"v{i}" for i in range(n)))
    options = dict(states=names, inputs=("F",), params=("k", "c"), observe=lambda t, x, dx, u, p: x.z0)
    system, t = sid.System(dynamics, **options), np.arange(400) / 50
    record = sid.TimeSeries(t, np.sin(t), 0.01 * np.cos(t), inputs="F")
    with measured("model"), pm.Model() as model:
        params = {"k": pm.LogNormal("k", 3.0, 0.3), "c": pm.LogNormal("c", -1.0, 0.3)}
        solver = sid.EK1(order=3, covariance=covariance)
        sid.ODEFilter("y", system, record, params, noise=0.01, solver=solver, substeps=1, x0=0.0)
    point = model.initial_point()
    with measured("value"):
        model.compile_logp()(point)
    with measured("gradient"):
        model.compile_dlogp()(point)


def diffrax(tag: float) -> None:
    """The session's model in diffrax, JAX and NumPyro: an accurate solver in place of the filter, NUTS, 2 x 500."""
    with measured("import"):
        import diffrax as dfx
        import jax
        import jax.numpy as jnp
        import numpy as np
        import numpyro
        import numpyro.distributions as dist
    jax.config.update("jax_enable_x64", True)
    t = np.arange(400) / 50
    u = 10 * np.sin(0.2 * np.pi * t * (1 + t))

    def solve(p: Any) -> Any:
        def rate(s: Any, x: Any, args: Any) -> Any:
            force = jnp.interp(s, t, u)
            return jnp.stack([x[1], (force - p["c"] * x[1] - p["k"] * x[0] - p["k3"] * x[0] ** 3 - tag * x[0] ** 5) / p["m"]])

        options = dict(saveat=dfx.SaveAt(ts=t), stepsize_controller=dfx.PIDController(rtol=1e-6, atol=1e-9), max_steps=20_000)
        return dfx.diffeqsolve(dfx.ODETerm(rate), dfx.Tsit5(), 0.0, t[-1], 0.005, jnp.zeros(2), **options).ys[:, 0]

    with measured("simulate"):
        y = np.asarray(jax.jit(solve)(TRUTH)) + 0.002 * np.random.default_rng(0).standard_normal(len(t))

    def model() -> None:
        p = {name: numpyro.sample(name, dist.LogNormal(np.log(value), 0.3)) for name, value in TRUTH.items()}
        numpyro.sample("y", dist.Normal(solve(p), numpyro.sample("noise", dist.HalfNormal(0.01))), obs=y)

    with measured("NUTS, 2 x 500"):
        start = {**TRUTH, "noise": 0.002}
        kernel = numpyro.infer.NUTS(model, init_strategy=numpyro.infer.init_to_value(values=start))
        run = numpyro.infer.MCMC(
            kernel, num_warmup=200, num_samples=300, num_chains=2, chain_method="sequential", progress_bar=False
        )
        run.run(jax.random.PRNGKey(0))
        jax.block_until_ready(run.get_samples())


#: What is imported in a process of its own, and its title.
IMPORTS = {
    "import pymc": "import pymc",
    "import pm_sysid": "import pm_sysid",
    "both": "import pymc, pm_sysid",
    "both, and the names of a model": (
        "import pymc, pm_sysid\nfor name in ('System', 'TimeSeries', 'ODEFilter', 'simulate', 'find_mode', 'models'):\n"
        "    getattr(pm_sysid, name)"
    ),
    "both, and all names": "import pymc\nfrom pm_sysid import *",
}
#: How often; what is compared is imported in turn, so that other work on the machine meets all of it.
ROUNDS = 7


def imports() -> dict[str, dict[str, tuple[float, float]]]:
    """Seconds of imports, by the clock and of the processor, and as multiples of PyMC's in the same round: medians."""
    seconds: dict[str, list[tuple[float, float]]] = {title: [] for title in IMPORTS}
    for _ in range(ROUNDS + 1):
        for title, code in IMPORTS.items():
            clock, before = time.perf_counter(), os.times()
            subprocess.run([sys.executable, "-c", code], check=True)
            after = os.times()
            processor = sum(getattr(after, k) - getattr(before, k) for k in ("children_user", "children_system"))
            seconds[title].append((time.perf_counter() - clock, processor))
    found: dict[str, dict[str, tuple[float, float]]] = {"seconds": {}, "times import pymc": {}}
    for title, rounds in seconds.items():
        warm = list(zip(rounds, seconds["import pymc"], strict=True))[1:]  # the first round fills the file cache
        found["seconds"][title] = median(own[0] for own, _ in warm), median(own[1] for own, _ in warm)
        found["times import pymc"][title] = (
            median(own[0] / pymc[0] for own, pymc in warm),
            median(own[1] / pymc[1] for own, pymc in warm),
        )
    return found


CASES: dict[str, Callable[[float], None]] = {
    "session": session,
    "added": added,
    "priors": priors,
    "masses": masses,
    "ten masses": partial(masses, n=10),
    "fifty masses": partial(masses, n=50, covariance="block"),
    "diffrax": diffrax,
}
#: Folder of compiled code and equation of each run.
RUNS = {"first on a machine": 0.31, "new equation": 0.32, "the same again": 0.32}


def in_processes(case: str) -> dict[str, dict[str, tuple[float, float]]]:
    """Seconds of the steps of a case, in each of the runs."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={folder}"}
        for name, tag in RUNS.items():
            command = [sys.executable, __file__, "--case", case, "--tag", str(tag)]
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
            lines = [line for line in run.stdout.splitlines() if line.startswith("MEASURED")]
            if run.returncode or not lines:
                raise SystemExit(f"{case} failed:\n{run.stderr[-3000:]}")
            rows[name] = json.loads(lines[0].removeprefix("MEASURED"))
    return rows


def show(case: str, rows: dict[str, dict[str, tuple[float, float]]], digits: int = 1) -> None:
    """Print a table: one line a step, one column a run."""
    print(f"\n{case}: seconds by the clock (of the processor)")
    print(f"{'':32s}" + "".join(f"{name:>22s}" for name in rows))
    for step in next(iter(rows.values())):
        cells = [f"{row[step][0]:.{digits}f} ({row[step][1]:.{digits}f})" for row in rows.values()]
        print(f"{step:32s}" + "".join(cell.rjust(22) for cell in cells))


def main() -> None:
    """Run the cases, print a table each, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=["imports", *CASES])
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--tag", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        logging.disable(logging.WARNING)
        with measured("whole"):
            CASES[arguments.case](arguments.tag)
        print("MEASURED", json.dumps(SECONDS))
        return
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for case in arguments.only or ["imports", *CASES]:
        if case == "diffrax" and importlib.util.find_spec("diffrax") is None:
            print("diffrax is not installed: uv run --extra benchmarks --extra jax benchmarks/compile.py")
            continue
        found[case] = imports() if case == "imports" else in_processes(case)
        show(case, found[case], 2 if case == "imports" else 1)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
