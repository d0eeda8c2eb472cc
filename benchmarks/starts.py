"""From how many starts `find_mode` reaches the right mode: number of prior draws, searches, diffusion tempering.

For each problem of ``problem_set.py`` and each setting: the share of seeds that end in the best mode that any run found (a
search from the parameters the record was made with included), the modes found, evaluations of the log posterior (each with its
gradient) and seconds, which hold the compilation in the first run of a problem. ``initial point`` is one search from where the
model starts, as was usual before; it has no seed. ``searches right`` is the share of single searches from the best draws that
lead to the best mode, plain and tempered.

Run: ``uv run benchmarks/starts.py [problem ...]``, ``--short`` with five seeds in place of twenty.
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
from problem_set import PROBLEMS, Problem

import pm_sysid as sid
from pm_sysid.likelihood.descent import descend
from pm_sysid.likelihood.global_search import ROUNDS, distinct, tempered
from pm_sysid.likelihood.mode import Hunt
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.prior_draws import possible_draws

RESULTS = Path(__file__).parent / "results"
NAMES = ("lotka_volterra", "fitzhugh_nagumo", "goodwin", "pendulum", "three_modes")
SETTINGS: dict[str, dict[str, Any]] = {
    f"{draws} draws, {searches} searches{'' if tempering else ', not tempered'}": {
        "prior_draws": draws,
        "starts": searches,
        "tempering": tempering,
    }
    for draws, searches, tempering in (
        (100, 4, False),
        (100, 4, True),
        (100, 16, False),
        (100, 16, True),
        (2000, 4, False),
        (2000, 4, True),
        (2000, 16, False),
        (2000, 16, True),
        (10_000, 16, True),
    )
}
#: A run is right if its log posterior is not further than this below the best.
CLOSE = 0.1


def search(problem: Problem, **options: Any) -> dict[str, Any]:
    """One call, as numbers."""
    begin = time.perf_counter()
    try:
        mode = sid.find_mode(problem.model, progressbar=False, **options)
    except ValueError as error:
        return {"logp": -np.inf, "modes": 0, "evaluations": 0, "seconds": 0.0, "message": str(error)}
    return {
        "logp": mode.logp if mode.converged else -np.inf,
        "modes": len(mode.modes),
        "evaluations": mode.evaluations,
        "seconds": time.perf_counter() - begin,
        "message": mode.message,
    }


def single_searches(problem: Problem, best: float, n: int = 32, seeds: int = 3) -> dict[str, float]:
    """Share of single searches from the best of 2000 draws that lead to the best mode, by way."""
    functions = PosteriorFunctions(problem.model)
    batch, right = functions.descent_function(), {"plain": [], "tempered": []}
    for seed in range(seeds):
        draws = possible_draws(functions.coordinates, 2000, np.random.default_rng(1000 + seed))
        low, high = np.quantile(draws, [0.25, 0.75], axis=0)
        scale = (high - low) / 1.349
        starts = draws[[i for i, _ in zip(distinct(draws, -functions.values(draws), scale, []), range(n), strict=False)]]
        ways = {"plain": starts}
        if functions.views:
            loosened = Hunt(functions, starts[0], "", lambda text: None).loosened(starts)
            ways["tempered"] = tempered(loosened, starts, scale)
        for way, begun in ways.items():
            right[way] += list(-descend(batch, begun, scale, ROUNDS).value > best - 1.0)
    return {way: float(np.mean(found)) for way, found in right.items() if found}


def compare(name: str, seeds: int) -> dict[str, Any]:
    """All settings on one problem."""
    problem = PROBLEMS[name]()
    truth = search(problem, start=dict(problem.answer.truth), prior_draws=0) if problem.answer.truth else {"logp": -np.inf}
    runs: dict[str, list[dict[str, Any]]] = {"initial point": [search(problem, prior_draws=0)]}
    for setting, options in SETTINGS.items():
        runs[setting] = [search(problem, random_seed=seed, **options) for seed in range(seeds)]
    best = max(run["logp"] for some in (*runs.values(), [truth]) for run in some)
    print(f"{name}: best log posterior {best:.2f}, from the truth {truth['logp']:.2f}")
    rows = {}
    for setting, some in runs.items():
        row = {key: float(np.mean([run[key] for run in some])) for key in ("modes", "evaluations", "seconds")}
        row["right"] = float(np.mean([run["logp"] > best - CLOSE for run in some]))
        rows[setting] = row
        print(
            f"  {setting:42s} right {row['right']:5.2f}  modes {row['modes']:5.1f}  evaluations {row['evaluations']:8.0f}"
            f"  {row['seconds']:6.2f} s",
            flush=True,
        )
    single = single_searches(problem, best)
    print("  searches right: " + ", ".join(f"{way} {share:.2f}" for way, share in single.items()), flush=True)
    return {"best": best, "rows": rows, "single": single}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=NAMES, help=f"of {', '.join(PROBLEMS)}")
    parser.add_argument("--short", action="store_true", help="five seeds")
    options = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    results = {name: compare(name, 5 if options.short else 20) for name in options.problems}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "starts.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
