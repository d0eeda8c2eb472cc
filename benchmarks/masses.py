"""Masses in a row from a record to a posterior: three of them, a hundred in blocks, and what blocks cost in accuracy.

The masses are tied together by springs, and the first one to the ground; there is a cubic spring beside that one. A random
force acts on the first mass, and accelerations are measured with noise of 2 %.

- *three*: six unknowns (three springs, dashpots, cubic spring, noise), 1000 samples, NUTS by ``sample``, with a dense
  covariance and in blocks.
- *hundred*: four unknowns (springs, dashpots, cubic spring, noise), 2000 samples, five sensors, a block of the covariance for
  each mass; NUTS by ``sample``.
- *blocks*: rows of 3, 5 and 10 masses with a dense covariance and one in blocks, with few steps and with more: error of the
  log-likelihood, and how far the posterior moves.

The first two run in a fresh process with an empty folder of compiled code; seconds begin before the model is written down and
contain compilation, but no imports. Run: ``uv run benchmarks/masses.py [--only three hundred]``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import arviz_stats
import numpy as np
import pymc as pm

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "masses.json"
SEED = 1


# -- a row of masses ----------------------------------------------------------------------------------------------------


def links(n: int) -> np.ndarray:
    """Matrices (n, n, n) of springs of stiffness one: the first is tied to the ground, the others to the mass before."""
    found = np.zeros((n, n, n))
    found[0, 0, 0] = 1.0
    for i in range(1, n):
        found[i, i - 1 : i + 1, i - 1 : i + 1] = [[1.0, -1.0], [-1.0, 1.0]]
    return found


def row_of_masses(n: int, sensors: list[int], own_springs: bool = False) -> sid.System:
    """Masses of 1 kg in a row, with one stiffness for all springs or one for each."""
    each, every = links(n), links(n).sum(axis=0)
    springs = {f"k_{i + 1}": spring for i, spring in enumerate(each)} if own_springs else {"k": every}
    return sid.models.structural(
        np.eye(n), {"c": every}, springs, nonlinear={"wall": ("cubic", 0)}, input=0, output={"acceleration": sensors}
    )


def recorded(system: sid.System, truth: Mapping[str, float], samples: int) -> sid.TimeSeries:
    """Simulated record of 100 Hz under white noise smoothed over 0.2 s, a force with a standard deviation of 10 N."""
    rng, t = np.random.default_rng(SEED), np.arange(samples) / 100.0
    u = np.convolve(rng.standard_normal(samples + 40), np.hanning(43)[1:-1], "valid")
    record = sid.TimeSeries(t, 10.0 * u / u.std(), inputs="F")
    clean = sid.simulate(system, record, truth, x0=0.0)["acceleration"].to_numpy()
    y = clean + 0.02 * clean.std() * rng.standard_normal(clean.shape)
    return record.replace(y=y, outputs=list(system.outputs))


def model_of(
    system: sid.System, record: sid.TimeSeries, guess: Mapping[str, Any], solver: Any, substeps: Any = "auto"
) -> pm.Model:
    """Wide priors around guesses; the noise of an acceleration (m/s^2) is that of all sensors."""
    with pm.Model() as model:
        noise = pm.HalfNormal("noise", float(np.std(record.y)))
        sid.ODEFilter("y", system, record, sid.models.priors(guess), noise=noise, x0=0.0, solver=solver, substeps=substeps)
    return model


# -- posteriors by NUTS --------------------------------------------------------------------------------------------------


def processor_seconds() -> float:
    """Processor time of this process and of those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def by_nuts(model: pm.Model, truth: Mapping[str, float], begun: float, **options: Any) -> dict[str, Any]:
    """Sample, and judge the draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = sid.sample(model, method="nuts", cores=2, random_seed=SEED, progressbar=False, **options)
    seconds = time.perf_counter() - begun
    posterior, statistics = idata["posterior"], idata["sample_stats"]
    draws = {n: posterior[n].to_numpy() for n in truth}
    gradients = int(statistics["n_steps"].sum())
    return {
        "seconds": seconds,
        "processor seconds": processor_seconds(),
        "gradients of the draws": gradients,
        "ms a gradient": 1e3 * float(statistics["process_time_diff"].sum()) / gradients,
        "divergences": int(statistics["diverging"].sum()),
        "truth": dict(truth),
        "mean": {n: float(v.mean()) for n, v in draws.items()},
        "sd": {n: float(v.std()) for n, v in draws.items()},
        "probability below the truth": {n: float(np.mean(v < truth[n])) for n, v in draws.items()},
        **diagnostics(posterior, list(truth)),
        "substeps": int(idata.attrs["substeps_y"]),
        "verdict": idata.attrs["verdict"],
        "choices": idata.attrs["choices"].splitlines(),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def diagnostics(posterior: Any, names: list[str]) -> dict[str, float]:
    """Largest R-hat, and fewest effective draws in bulk and tails."""
    table = arviz_stats.summary(posterior.to_dataset()[names], round_to="none")
    return {
        "R-hat": float(table["r_hat"].astype(float).max()),
        "effective draws": float(table[["ess_bulk", "ess_tail"]].astype(float).to_numpy().min()),
    }


def three(covariance: Any = "dense") -> dict[str, Any]:
    """Three masses with unknown springs."""
    truth = {"k_1": 95.0, "k_2": 112.0, "k_3": 102.0, "c": 0.25, "k3_wall": 500.0}
    system = row_of_masses(3, [0, 1, 2], own_springs=True)
    record = recorded(system, truth, 1000)
    begun = time.perf_counter()
    guess = {"k_1": 80.0, "k_2": 80.0, "k_3": 80.0, "c": 0.5, "k3_wall": 300.0}
    return by_nuts(model_of(system, record, guess, sid.EK1(order=4, covariance=covariance)), truth, begun, draws=300, tune=100)


def hundred() -> dict[str, Any]:
    """A hundred masses, with a block of the covariance for each."""
    truth = {"k": 100.0, "c": 0.3, "k3_wall": 500.0}
    system = row_of_masses(100, [0, 10, 25, 50, 99])
    record = recorded(system, truth, 2000)
    begun = time.perf_counter()
    guess = {"k": 80.0, "c": 0.5, "k3_wall": 300.0}
    # "auto" takes two steps for prior draws, and four at the mode, which take twice as long: the verdict says what two cost.
    model = model_of(system, record, guess, sid.EK1(order=3, covariance="block"), 2)
    return by_nuts(model, truth, begun, draws=500, tune=100)


# -- blocks --------------------------------------------------------------------------------------------------------------


def blocks() -> dict[str, Any]:
    """Filters with dense covariances and with blocks, compared with runs by Runge-Kutta steps and white noise.

    The initial state is known and nothing drives the masses but the recorded force, so that these runs have the likelihood
    without an error of integration.
    """
    truth, guess = {"k": 100.0, "c": 0.3, "k3_wall": 500.0}, {"k": 80.0, "c": 0.5, "k3_wall": 300.0}
    found = {}
    for n in (3, 5, 10):
        system = row_of_masses(n, sorted({0, n // 2, n - 1}))
        record = recorded(system, truth, 1000)
        exact = runs_model(system, record, guess)
        mode, reference = mode_near(exact, truth), sid.Target(exact)
        for covariance in ("dense", "block"):
            model = model_of(system, record, guess, sid.EK1(order=3, covariance=covariance), 1)
            target = sid.Target(model)
            for substeps in (2, 4):
                sid.set_substeps(substeps, model)
                row = compared(mode, reference, mode_near(model, truth), target)
                found[f"{n} masses, {substeps} steps, {covariance}"] = row
                print(f"{n:3d} masses, {substeps} steps, {covariance}:", row, flush=True)
    return found


def runs_model(system: sid.System, record: sid.TimeSeries, guess: Mapping[str, Any]) -> pm.Model:
    """The model with free runs in place of the filter."""
    with pm.Model() as model:
        noise = pm.HalfNormal("noise", float(np.std(record.y)))
        run = sid.simulate(system, record, sid.models.priors(guess), x0=0.0, substeps=8)
        pm.Normal("y", run, noise, observed=record.y)
    return model


def mode_near(model: pm.Model, truth: Mapping[str, float]) -> sid.Mode:
    """Mode by one search from the true parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that are too few, which is what is measured
        mode = sid.find_mode(model, start=truth, prior_draws=0, progressbar=False)
    if not mode.converged:
        raise SystemExit(f"a search did not end at a mode: {mode.message}")
    return mode


def compared(exact: sid.Mode, reference: sid.Target, mode: sid.Mode, target: sid.Target) -> dict[str, float]:
    """Error of the log-likelihood at the exact mode, and of mode and curvature, in exact posterior standard deviations."""
    at, sd = exact.point[None], np.sqrt(np.diag(exact.covariance))
    return {
        "log-likelihood": float((target.log_likelihood(at) - reference.log_likelihood(at))[0]),
        "shift": float(np.max(np.abs(mode.point - exact.point) / sd)),
        "sd ratio, least": float(np.min(np.sqrt(np.diag(mode.covariance)) / sd)),
        "sd ratio, largest": float(np.max(np.sqrt(np.diag(mode.covariance)) / sd)),
    }


# -- measuring -----------------------------------------------------------------------------------------------------------

CASES = {"three": three, "three in blocks": lambda: three("block"), "hundred": hundred, "blocks": blocks}


def in_process(case: str) -> dict[str, Any]:
    """One case in a fresh process with nothing compiled."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={folder}", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, __file__, "--case", case]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    found = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    if run.returncode or not found:
        raise SystemExit(f"{case} failed")
    print("\n".join(line for line in run.stdout.splitlines() if line not in found))
    return dict(json.loads(found[0].removeprefix("RESULT")))


def main() -> None:
    """Run the cases, print them and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        logging.getLogger("pm_sysid").setLevel(logging.WARNING)
        logging.getLogger("pymc").setLevel(logging.ERROR)
        print("RESULT" + json.dumps(CASES[options.case]()), flush=True)
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for case in options.only:
        results[case] = in_process(case)
        print(case, json.dumps(results[case], indent=1), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
