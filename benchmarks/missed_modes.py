"""What ``sid.check_modes`` says of draws: of right ones, and of chains of NUTS that all start at the best mode.

The problems are those of ``problems.py`` that need a second or so. Draws of ``sid.sample_ibis`` and of NUTS that
``problems.py`` calls right, and that say nothing against themselves, are right: to blame them is a false alarm. Chains of
PyMC's NUTS that start at the mode that ``find_mode`` has found stay there: where they are wrong (by the same judgement) and
nothing else says so, with R-hat, effective draws and divergences as they should be, the check is all that can.

``--many`` tells how often the check finds the one of two equal modes that draws lack, by the number of unknowns.

Run: ``uv run benchmarks/missed_modes.py [PROBLEM ...]``; ``--seeds N`` (default 5).
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from problem_set import PROBLEMS, Problem
from problems import Truth, errors_of, said_by, truth_of

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "missed_modes.json"
CHOSEN = (
    "three_modes", "three_narrow_modes", "pharmacokinetics", "squared_output", "three_squares", "frequency", "aliases",
    "far_aliases", "spike", "ridge", "long_tails", "funnel", "banana", "sphere", "fast_rate", "fast_drop", "lotka_volterra",
    "fitzhugh_nagumo",
)  # fmt: skip
QUIET: dict[str, Any] = {"chains": 4, "cores": 1, "progressbar": False}


def checked(idata: Any, model: pm.Model) -> dict[str, Any]:
    """Level and seconds of the check, by the steps that the model has."""
    begun = time.process_time()
    found = sid.check_modes(idata, model=model)
    return {"level": found.level, "share": found.share, "ruled out": found.ruled_out, "seconds": time.process_time() - begun}


def from_ibis(problem: Problem, truth: Truth, seed: int) -> dict[str, Any]:
    """Sequential draws, which look for modes by themselves."""
    idata = sid.sample_ibis(1000, model=problem.model, random_seed=seed, **QUIET | {"chains": 2})
    return {"seed": seed, "wrong": errors_of(problem, truth, idata), "says": [], **checked(idata, problem.model)}


def from_mode(problem: Problem, truth: Truth, seed: int) -> dict[str, Any]:
    """NUTS as of somebody who starts all chains at the best point that is known."""
    with problem.model:
        start = sid.find_mode(random_seed=seed, progressbar=False).initvals
        options: dict[str, Any] = {"initvals": start, "init": "adapt_diag", "nuts_sampler": "pymc", "random_seed": seed}
        idata = pm.sample(500, tune=500, **options, **QUIET)
    return {"seed": seed, "wrong": errors_of(problem, truth, idata), "says": said_by(idata), **checked(idata, problem.model)}


def among_many(unknowns: int, seed: int) -> bool:
    """Whether the check finds one of two narrow modes of equal mass, of which all draws are in the other."""
    rng = np.random.default_rng(seed)
    # The mode that the draws are in is nearer to most of the prior.
    means = np.stack([rng.uniform(-3, 3, unknowns), rng.uniform(-8, 8, unknowns)])
    with pm.Model() as model:
        x = pm.Uniform("x", -10, 10, shape=unknowns)
        density = pm.math.logsumexp(pt.stack([-0.5 * (((x - mean) / 0.1) ** 2).sum() for mean in means]))
        pm.CustomDist("y", density, logp=lambda value, density: density + 0 * value, observed=np.zeros(1))
    draws = means[0] + 0.1 * rng.standard_normal((2, 500, unknowns))
    return sid.check_modes(xr.Dataset({"x": (("chain", "draw", "i"), draws)}), model=model).level == "bad"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--many", action="store_true")
    options = parser.parse_args()
    for name in ("pymc", "pm_sysid"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if options.many:
        for unknowns in (2, 5, 10, 15, 20):
            found = [among_many(unknowns, seed) for seed in range(4 * options.seeds)]
            print(f"{unknowns:2d} unknowns: one of two equal modes found in {sum(found)} of {len(found)}", flush=True)
        return
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.problems or CHOSEN:
        runs: dict[str, list[dict[str, Any]]] = {"ibis": [], "nuts": []}
        for seed in range(options.seeds):
            for kind, made in (("ibis", from_ibis), ("nuts", from_mode)):
                problem = PROBLEMS[name]()  # the steps of filters are those that the model begins with
                runs[kind].append(made(problem, truth_of(problem), seed))
        results[name] = runs
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        right = [r for kind in runs.values() for r in kind if not r["wrong"] and not r["says"]]
        silent = [r for r in runs["nuts"] if r["wrong"] and not r["says"]]
        print(
            f"{name:20s} right {len(right):2d}, blamed {sum(r['level'] == 'bad' for r in right)}, "
            f"worth a look {sum(r['level'] == 'look' for r in right)}; NUTS from the mode wrong and silent {len(silent)} of "
            f"{len(runs['nuts'])}, said by the check {sum(r['level'] == 'bad' for r in silent)}; "
            f"{max(r['seconds'] for kind in runs.values() for r in kind):.1f} s at most",
            flush=True,
        )


if __name__ == "__main__":
    main()
