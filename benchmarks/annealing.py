"""Data Annealing with adapted proposals beside the paper's plain form, at the same number of draws.

- ``friction``: the Coulomb law of ``examples/friction_models.py`` (2 s, 3000 samples), two chains of 50,000 draws in each form:
  effective draws and R-hat of every parameter, acceptance, cost in evaluations of the whole record, seconds.
- ``pendulum``: free swings of a pendulum with viscous, Coulomb and quadratic damping; the full law and the viscous one that it
  contains, with the defaults (and with the plain form): expected log predictive density (LOO), R-hat, what was said.

Run: ``uv run benchmarks/annealing.py [friction|pendulum] [--short]``; results go to ``benchmarks/results/annealing.json``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import log

import pm_sysid as sid
from pm_sysid.idata import elements
from pm_sysid.sampling.convergence import mixing

HERE = Path(__file__).parent
UPPER = {"w2": 100.0, "c": 2.0, "Tc": 2.0, "d": 2.0}
RESULTS = HERE / "results" / "annealing.json"
FORMS: dict[str, dict[str, Any]] = {"adapted": {}, "paper": {"adapt": False}}


class Said(logging.Handler):
    """What Data Annealing says of its chains."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        if "DataAnnealing: a chain" in record.getMessage():
            self.lines.append(record.getMessage())


def sampled(model: pm.Model, form: str, tune: int, draws: int, seed: int, chains: int = 2, **settings: Any) -> Any:
    """A run, its row of numbers, and what was said."""
    said = Said()
    logging.getLogger("pymc").addHandler(said)
    begin = time.perf_counter()
    with model:
        step = sid.DataAnnealing(**FORMS[form], **settings)
        quiet: dict[str, Any] = dict(progressbar=False, compute_convergence_checks=False, discard_tuned_samples=False)
        idata = pm.sample(draws, tune=tune, step=step, chains=chains, cores=1, random_seed=seed, **quiet)
    took = time.perf_counter() - begin
    logging.getLogger("pymc").removeHandler(said)
    names = [str(v.name) for v in model.free_RVs]
    draws_of = elements(idata, names)
    found = mixing(draws_of.to_numpy(), list(map(str, draws_of["parameter"].to_numpy())))
    evaluations = sum(float(idata[g]["evaluations"].sum()) for g in ("warmup_sample_stats", "sample_stats"))
    row = {
        "tune": tune,
        "draws": draws,
        "chains": chains,
        "ess": dict(zip(found.labels, np.round(found.ess).tolist(), strict=True)),
        "r_hat": dict(zip(found.labels, np.round(found.r_hat, 3).tolist(), strict=True)),
        "accepted": float(idata.sample_stats["accepted"].mean()),
        "evaluations": evaluations / float(idata.sample_stats["n_data"].max()),
        "seconds": took,
        "said": said.lines,
    }
    return idata, row


def text(row: dict[str, Any]) -> str:
    """One row in words."""
    ess = ", ".join(f"{k} {v:.0f}" for k, v in row["ess"].items())
    return (
        f"{row['tune']} + {row['draws']} draws, {row['chains']} chains: effective {ess}; largest R-hat "
        f"{max(row['r_hat'].values()):.3f}; accepted {row['accepted']:.2f}; {row['evaluations']:.0f} evaluations, "
        f"{row['seconds']:.0f} s; said: {len(row['said'])} of {row['chains']} chains not mixed"
    )


def friction(short: bool, seeds: list[int]) -> dict[str, Any]:
    """The study's own record and model."""
    spec = importlib.util.spec_from_file_location("friction_models", HERE.parent / "examples" / "friction_models.py")
    assert spec is not None and spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    model = study.friction_model("coulomb", study.record_of("coulomb", study.TRAIN, seed=study.SEED))
    rows: dict[str, Any] = {}
    for seed in seeds:
        for form in FORMS:
            # The same number of draws in all; the paper tunes for 2000, and a fifth of the rest is its way to the posterior.
            tune = 2000 if form == "paper" else 4000 if short else 10_000
            draws = (8000 if short else 50_000) - tune
            idata, row = sampled(model, form, tune, draws, seed)
            if form == "paper":
                kept = elements(idata.isel(draw=slice(draws // 5, None)), list(row["ess"]))
                found = mixing(kept.to_numpy(), list(row["ess"]))
                row["ess"] = dict(zip(found.labels, np.round(found.ess).tolist(), strict=True))
                row["r_hat"] = dict(zip(found.labels, np.round(found.r_hat, 3).tolist(), strict=True))
            rows[f"{form}, seed {seed}"] = row
            print(f"friction, {form}, seed {seed}: {text(row)}", flush=True)
    return rows


def swings(coulomb: bool, quadratic: bool) -> sid.System:
    """Pendulum of known length with some of three laws of damping, in rates per inertia."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        a = -p.w2 * pt.sin(x.theta) - p.c * x.omega
        if coulomb:
            a = a - p.Tc * pt.tanh(x.omega / 0.02)
        if quadratic:
            a = a - p.d * x.omega * abs(x.omega)
        return x.omega, a

    params = ("w2", "c", *(("Tc",) if coulomb else ()), *(("d",) if quadratic else ()))
    return sid.System(dynamics, states=("theta", "omega"), params=params, observe=lambda t, x, dx, u, p: x.theta)


def pendulum(short: bool, seeds: list[int]) -> dict[str, Any]:
    """Full law and viscous law with the defaults."""
    truth = {"w2": 30.0, "c": 0.05, "Tc": 0.15, "d": 0.04}
    t = np.arange(600 if short else 1500) / 50.0
    empty = sid.TimeSeries(t, None, None)
    y = sid.simulate(swings(True, True), empty, truth, x0={"theta": 1.2, "omega": 0.0}, substeps=16)["y"].values
    record = empty.replace(y=y + 0.005 * np.random.default_rng(3).standard_normal(len(t)))
    rows: dict[str, Any] = {}
    for seed in seeds:
        for form in FORMS:
            elpd = {}
            for law, system in (("viscous", swings(False, False)), ("full", swings(True, True))):
                with pm.Model() as model:
                    params = {n: pm.Uniform(n, 0.0, UPPER[n], default_transform=log) for n in system.params}
                    noise, solver = pm.HalfNormal("noise", 0.05), sid.EK1(order=3)
                    sid.ODEFilter("y", system, record, params, noise=noise, solver=solver, substeps=2)
                tune, draws = (2000, 4000) if short else (4000, 12_000)
                idata, row = sampled(model, form, tune, draws, seed)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    elpd[law] = row["elpd"] = float(sid.waic(idata, model=model, draws=400).elpd)
                rows[f"{form}, {law}, seed {seed}"] = row
                print(f"pendulum, {form}, {law}, seed {seed}: elpd {elpd[law]:.1f}; {text(row)}", flush=True)
            print(f"  full less viscous, {form}: {elpd['full'] - elpd['viscous']:.1f}", flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["friction", "pendulum", []], default=[])
    parser.add_argument("--short", action="store_true", help="fewer draws; nothing is saved")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    found = {}
    for name, function in (("friction", friction), ("pendulum", pendulum)):
        if not options.what or name in options.what:
            found[name] = function(options.short, list(range(1, options.seeds + 1)))
    if not options.short:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(known | found, indent=1) + "\n")
