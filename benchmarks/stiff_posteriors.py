"""Posteriors of stiff systems by ``sample`` from rough priors: Robertson's rates, an enzyme, a battery.

Each seed draws noise (one percent) and the middle of a log-normal prior around the true value of each parameter, both with a
spread of a factor of e; the truth is therefore a draw of the prior. Kept are the verdict, how far the truth is from the mean in
standard deviations of the logarithms, and the chi-square probability of its Mahalanobis distance over all parameters. A result
is confidently wrong if it is trusted and that probability is below 1e-4. Run:
``uv run benchmarks/stiff_posteriors.py [--only robertson ...] [--seeds 0 20]``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from scipy.stats import chi2
from stiff import NOISE, Problem, filter_steps, problems

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "stiff_posteriors.json"
SYSTEMS = ("robertson", "enzyme", "battery")
DRAWS, CHAINS, WRONG = 500, 2, 1e-4


def posterior(problem: Problem, seed: int) -> dict[str, Any]:
    """One posterior against the truth."""
    rng = np.random.default_rng(seed)
    clean = problem.outputs(list(problem.true.values()))
    noise = NOISE * np.std(clean, axis=0)
    y = clean + noise * rng.standard_normal(clean.shape)
    begin = time.perf_counter()
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        params = {n: pm.LogNormal(n, np.log(v) + rng.standard_normal(), 1.0) for n, v in problem.true.items()}
        sid.ODEFilter(
            "y",
            problem.system,
            problem.record(y if y.shape[1] > 1 else y[:, 0]),
            params,
            noise=list(noise) if len(noise) > 1 else float(noise[0]),
            x0=problem.start,
            solver=sid.EK1(order=problem.order),
        )
        idata = sid.sample(draws=DRAWS, chains=CHAINS, cores=1, random_seed=seed, progressbar=False)
    logs = np.array([np.log(idata.posterior[n].values.ravel()) for n in problem.true])
    error = np.log(list(problem.true.values())) - logs.mean(axis=1)
    distance = float(error @ np.linalg.solve(np.cov(logs), error))
    return {
        "seed": seed,
        "trusted": int(idata.attrs["trusted"]),
        "method": str(idata.attrs["method"]),
        "z": [float(z) for z in error / logs.std(axis=1)],
        "probability": float(chi2.sf(distance, len(error))),
        "steps": filter_steps(model),
        "seconds": time.perf_counter() - begin,
        "verdict": str(idata.attrs["verdict"]),
    }


def main() -> None:
    """Sample, print and save after each seed; seeds that are saved already are left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=SYSTEMS)
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 20))
    arguments = parser.parse_args()
    known = problems()
    for seed in range(*arguments.seeds):
        for name in arguments.only:
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            rows = found.setdefault(name, [])
            if any(row["seed"] == seed for row in rows):
                continue
            rows.append(posterior(known[name], seed))
            print(name, rows[-1], flush=True)
            found = (json.loads(RESULTS.read_text()) if RESULTS.exists() else {}) | {
                name: sorted(rows, key=lambda r: r["seed"])
            }
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
