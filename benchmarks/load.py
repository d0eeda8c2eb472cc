"""Large problems: seconds and peak memory, each in a process of its own; and memory over 200 fits in one process.

A record of a million samples, 100 000 particles, 50 degrees of freedom, 100 records at once. The peak is that of the whole
process; what a process needs that only imports and compiles a tiny model is printed first. Run: ``uv run benchmarks/load.py
[--only CASE] [--fits 200]``; results go to ``benchmarks/results/load.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results"
DUFFING = sid.models.duffing()
TRUTH = {"m": 1.0, "c": 1.5, "k": 150.0, "k3": 3000.0}


def record(T: int, seed: int = 0, fs: float = 50.0) -> sid.TimeSeries:
    """Duffing oscillator under a random force, with 1 % noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(T) / fs
    u = 10 * np.convolve(rng.standard_normal(T + 8), np.ones(9) / 3, "valid")
    data = sid.TimeSeries(t, u, None, inputs="F")
    y = sid.simulate(DUFFING, data, TRUTH, x0=0.0, substeps=4)["y"].values
    return data.replace(y=y + 0.01 * y.std() * rng.standard_normal(T))


def model_of(data: Any, **options: Any) -> pm.Model:
    with pm.Model() as model:
        params = {name: pm.LogNormal(name, np.log(value), 0.2) for name, value in TRUTH.items()}
        sid.ODEFilter("y", DUFFING, data, params, noise=pm.HalfNormal("noise", 0.01), substeps=1, **options)
    return model


def timed(function: Callable[[], Any], repeats: int = 2) -> tuple[float, Any]:
    """Seconds of the last call; the first ones compile."""
    for _ in range(repeats):
        begin = time.perf_counter()
        result = function()
    return time.perf_counter() - begin, result


def particles(model: pm.Model, n: int) -> tuple[sid.Target, np.ndarray]:
    target = sid.Target(model)
    return target, target.draw_prior(n, np.random.default_rng(0))


def nothing() -> dict[str, Any]:
    target, x = particles(model_of(record(100)), 4)
    return {"seconds": timed(lambda: target.log_likelihood(x))[0]}


def million_samples() -> dict[str, Any]:
    """Log-likelihood of a record of a million samples, and its gradient."""
    model = model_of(record(1_000_000))
    point = model.initial_point()
    value, gradient = model.compile_logp(), model.compile_dlogp()
    return {"seconds": timed(lambda: value(point))[0], "gradient_s": timed(lambda: gradient(point))[0]}


def many_particles() -> dict[str, Any]:
    """Log-likelihood of 100 000 particles on 200 samples."""
    target, x = particles(model_of(record(200)), 100_000)
    seconds, found = timed(lambda: target.log_likelihood(x))
    return {"seconds": seconds, "finite": int(np.isfinite(found).sum())}


def fifty_coordinates() -> dict[str, Any]:
    """A chain of 50 masses, 500 samples, one covariance block a mass: log-likelihood and gradient."""
    n, T = 50, 500
    system = sid.System(
        lambda t, x, u, p: (
            *x[n:],
            *(
                (u.F if i == 0 else 0.0)
                - p.c * x[n + i]
                - p.k * ((x[i] - x[i - 1] if i else x[0]) + (x[i] - x[i + 1] if i < n - 1 else 0.0))
                for i in range(n)
            ),
        ),
        states=(*(f"z{i}" for i in range(n)), *(f"v{i}" for i in range(n))),
        inputs=("F",),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: x[0],
    )
    t = np.arange(T) / 20
    data = sid.TimeSeries(t, np.sin(t), None, inputs="F")
    y = sid.simulate(system, data, {"c": 0.3, "k": 20.0}, x0=0.0)["y"].values
    begin = time.perf_counter()
    with pm.Model() as model:
        params = {"c": pm.LogNormal("c", -1.0, 0.3), "k": pm.LogNormal("k", 3.0, 0.3)}
        solver = sid.EK1(order=3, covariance="block")
        sid.ODEFilter("y", system, data.replace(y=y + 1e-3), params, noise=1e-3, solver=solver, substeps=1, x0=0.0)
    point = model.initial_point()
    value = model.compile_logp()
    value(point)
    built = time.perf_counter() - begin
    seconds = timed(lambda: value(point))[0]
    begin = time.perf_counter()
    gradient = model.compile_dlogp()
    gradient(point)
    return {
        "seconds": seconds,
        "build_s": built,
        "gradient_build_s": time.perf_counter() - begin,
        "gradient_s": timed(lambda: gradient(point))[0],
    }


def hundred_records() -> dict[str, Any]:
    """A hundred records of 500 samples with one set of parameters: log-likelihood, gradient and mode."""
    model = model_of([record(500, seed) for seed in range(100)])
    point = model.initial_point()
    value, gradient = model.compile_logp(), model.compile_dlogp()
    found = {"seconds": timed(lambda: value(point))[0], "gradient_s": timed(lambda: gradient(point))[0]}
    begin = time.perf_counter()
    mode = sid.find_mode(model, progressbar=False)
    found["mode_s"] = time.perf_counter() - begin
    found["mode"] = {k: float(v) for k, v in mode.initvals.items()}
    return found


def resident() -> float:
    """Memory of this process in MiB."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def sample_briefly(model: pm.Model) -> None:
    """Mode and a short chain, for which PyMC compiles a function a variable."""
    with model:
        mode = sid.find_mode(progressbar=False)
        options: dict[str, Any] = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
        pm.sample(20, tune=20, step=pm.Metropolis(), initvals=mode.initvals, **options)


def repeated(fits: int, fit: Callable[[int], Any]) -> dict[str, Any]:
    """Fit again and again; MiB after each, and how much more it is after the last than after half of them."""
    sizes = []
    for i in range(fits):
        fit(i)
        sizes.append(resident())
    return grown(sizes)


def grown(sizes: list[float]) -> dict[str, Any]:
    half, fits = sizes[len(sizes) // 2], len(sizes)
    per_fit = (sizes[-1] - half) / (fits - 1 - fits // 2)
    return {"fits": fits, "MiB": sizes[:: max(1, fits // 20)], "MiB_a_fit": per_fit, "growth_%": 100 * (sizes[-1] / half - 1)}


def calibrated(fits: int) -> dict[str, Any]:
    """``sid.calibrate`` with NUTS: one compiled model, and what its functions leave behind."""
    data, sizes = record(100), []

    def generate(params: dict[str, Any], rng: np.random.Generator) -> sid.TimeSeries:
        sizes.append(resident())
        y = sid.simulate(DUFFING, data, {k: params[k] for k in TRUTH}, x0=0.0, substeps=4)["y"].values
        return data.replace(y=y + params["noise"] * rng.standard_normal(len(y)))

    options: dict[str, Any] = {"draws": 30, "tune": 20, "chains": 1, "random_seed": 1, "progressbar": False}
    sid.calibrate(lambda: model_of(data, x0=0.0), fits, fit="nuts", generate=generate, **options)
    return grown(sizes)


def new_data(fits: int, fit: Callable[[pm.Model], Any]) -> dict[str, Any]:
    """New data in one model."""
    model = model_of(record(100))

    def again(i: int) -> None:
        sid.set_data({"y": record(100, i)}, model)
        fit(model)

    return repeated(fits, again)


def without_a_filter(i: int) -> pm.Model:
    """As many variables, and a likelihood of PyMC's own: what PyMC, PyTensor and numba leave behind by themselves."""
    with pm.Model() as model:
        a, b, c, d = (pm.LogNormal(name, 0.0, 0.2) for name in "abcd")
        y = pm.Data("data", np.random.default_rng(i).standard_normal(100))
        pm.Normal("y", a * np.arange(100.0) + b * c * d, pm.HalfNormal("noise", 1.0), observed=y)
    return model


def four_arrays() -> pm.Model:
    """A likelihood of PyMC's own with as many arrays of data as a filter has."""
    with pm.Model() as model:
        a, b, c, d = (pm.LogNormal(name, 0.0, 0.2) for name in "abcd")
        y, *x = (pm.Data(f"data_{i}", np.random.default_rng(i).standard_normal(100)) for i in range(4))
        pm.Normal("y", a * sum(x) + b * c * d, pm.HalfNormal("noise", 1.0), observed=y)
    return model


def sampled_again(fits: int, model: pm.Model, sampler: str) -> dict[str, Any]:
    """``pm.sample`` again and again on one model, by NUTS."""
    options: dict[str, Any] = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}

    def fit(i: int) -> None:
        with model:
            pm.sample(20, tune=20, nuts_sampler=sampler, random_seed=i, **options)

    return repeated(fits, fit)


#: Models that are sampled again and again.
AGAIN: dict[str, Callable[[], pm.Model]] = {
    "a filter": lambda: model_of(record(100)),
    "PyMC's own, one array": lambda: without_a_filter(0),
    "PyMC's own, four arrays": four_arrays,
}
CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "nothing": lambda fits: nothing(),
    "a million samples": lambda fits: million_samples(),
    "100 000 particles": lambda fits: many_particles(),
    "50 coordinates": lambda fits: fifty_coordinates(),
    "100 records": lambda fits: hundred_records(),
    "calibrate, NUTS": calibrated,
    "new data, mode": lambda fits: new_data(fits, lambda model: sid.find_mode(model, progressbar=False)),
    "new data, mode and pm.sample": lambda fits: new_data(fits, sample_briefly),
    "a new model each time": lambda fits: repeated(fits, lambda i: sample_briefly(model_of(record(100, i)))),
    "a new model without a filter": lambda fits: repeated(fits, lambda i: sample_briefly(without_a_filter(i))),
    **{
        f"pm.sample again, {sampler}: {name}": partial(
            lambda fits, build, sampler: sampled_again(fits, build(), sampler), **again
        )
        for name, build in AGAIN.items()
        for sampler in ("pymc", "nutpie")
        for again in [{"build": build, "sampler": sampler}]
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description="load")
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--fits", type=int, default=200)
    options = parser.parse_args()
    if options.inside:
        logging.getLogger("pm_sysid").setLevel(logging.WARNING)
        logging.getLogger("pymc").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        found = CASES[options.inside](options.fits)
        found["peak_MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    path = RESULTS / "load.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in [options.only] if options.only else CASES:
        command = [sys.executable, __file__, "--inside", name, "--fits", str(options.fits)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
        results[name] = json.loads(done.stdout.splitlines()[-1])
        shown = {k: v for k, v in results[name].items() if k not in ("MiB", "mode")}
        print(f"{name:22s}", "  ".join(f"{k} {v:.4g}" for k, v in shown.items()), flush=True)
        path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
