"""Which likelihood leads from a wrong start to the right mode: ``likelihood="filter"`` or ``"fenrir"``.

For each problem of ``problem_set.py`` named below, each likelihood and each number of steps a sample: the share of searches
from draws of the prior (the same for all) that end in the best mode that any of them found,

- ``plain``: by the likelihood itself, whose diffusion is calibrated on the ODE alone;
- ``free diffusion``: the diffusion is one more unknown with a wide prior and starts 1e3 or 1e8 times larger than that, so that
  the solution follows the record (as Tronarp, Bosch and Hennig do); where it ends, a plain search goes on;
- ``tempered``: diffusion tempering, as in ``find_mode``, before a plain search.

Evaluations are those of all its searches, each with its gradient. Beside them, the log posterior at the best mode of 32 steps
a sample, whose difference from its value there is the error of the steps.

Run: ``uv run benchmarks/wrong_starts.py [problem ...]`` (a quarter of an hour), ``--short`` with 32 draws in place of 100.
Writes ``benchmarks/results/wrong_starts.json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from problem_set import PROBLEMS

import pm_sysid as sid
from pm_sysid.likelihood.descent import descend
from pm_sysid.likelihood.global_search import ROUNDS, tempered
from pm_sysid.likelihood.mode import Hunt
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.prior_draws import possible_draws

RESULTS = Path(__file__).parent / "results"
NAMES = ("lotka_volterra", "fitzhugh_nagumo", "pendulum")
LIKELIHOODS = ("filter", "fenrir")
STEPS, FINE = (2, 8), 32
#: A search is right if its log posterior is not further than this below the best.
CLOSE = 1.0
#: A free diffusion starts this many times larger than the calibrated one, with this standard deviation of its logarithm.
LARGER, WIDE = {"free diffusion, 1e3": 1e3, "free diffusion, 1e8": 1e8}, 10.0


class Searches:
    """Searches under the log posterior of a model; points are rows of unconstrained coordinates."""

    def __init__(self, model: pm.Model) -> None:
        self.functions = PosteriorFunctions(model)
        self.batch = self.functions.descent_function()
        draws = possible_draws(self.functions.coordinates, 2000, np.random.default_rng(1000))
        self.scale = np.subtract(*np.quantile(draws, [0.75, 0.25], axis=0)) / 1.349
        self.draws = draws
        self.evaluations = 0

    def _counted(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.evaluations += len(x)
        return self.batch(x)

    def ends(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where searches end, and the log posterior there."""
        end = descend(self._counted, starts, self.scale, ROUNDS)
        return end.x, -end.value

    def best(self, starts: np.ndarray) -> np.ndarray:
        """The best end (1, d) of searches, tempered too."""
        ends = [self.ends(starts), self.ends(self.tempered(starts))]
        x, values = np.concatenate([e[0] for e in ends]), np.concatenate([e[1] for e in ends])
        return x[[np.argmax(values)]]

    def tempered(self, starts: np.ndarray) -> np.ndarray:
        """Starts moved by diffusion tempering."""
        loosened = Hunt(self.functions, starts[0], "", lambda text: None).loosened(starts)

        def counted(stage: float) -> Any:
            batch = loosened(stage)

            def evaluated(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                self.evaluations += len(x)
                return batch(x)

            return evaluated

        return tempered(counted, starts, self.scale)


def free(diffusion: np.ndarray) -> Callable[[], sid.EK1]:
    """Solver whose diffusion is one more unknown, the last of the model it is made in."""

    def solver() -> sid.EK1:
        return sid.EK1(diffusion=pm.LogNormal("diffusion", np.log(diffusion), WIDE, shape=diffusion.size))

    return solver


def compare(name: str, n: int) -> dict[str, Any]:
    """All ways on one problem."""
    fine = {kind: Searches(PROBLEMS[name](substeps=FINE, likelihood=kind).model) for kind in LIKELIHOODS}
    starts = fine["filter"].draws
    starts = starts[np.isfinite(fine["filter"].functions.values(starts))][:n]
    best = fine["filter"].best(starts)
    row = {f"log posterior, {FINE} steps": {kind: float(s.functions.values(best)[0]) for kind, s in fine.items()}}
    rows: dict[str, Any] = {"starts": len(starts), **row}
    calibrated = fine["filter"].functions.diffusions(best)[0][0]
    for steps in STEPS:
        for kind in LIKELIHOODS:
            ways, searches = {}, Searches(PROBLEMS[name](substeps=steps, likelihood=kind).model)
            for way in ("plain", *LARGER, "tempered"):
                begun, searches.evaluations, moved = time.perf_counter(), 0, starts
                if way == "tempered":
                    moved = searches.tempered(starts)
                elif way in LARGER:
                    large = LARGER[way] * calibrated
                    loose = Searches(PROBLEMS[name](substeps=steps, likelihood=kind, solver=free(large)).model)
                    tail = np.tile(np.log(large), (len(starts), 1))
                    moved = loose.ends(np.c_[starts, tail])[0][:, : starts.shape[1]]
                    searches.evaluations += loose.evaluations
                values = searches.ends(moved)[1]
                ways[way] = values, searches.evaluations, time.perf_counter() - begun
            top = max(searches.ends(best)[1][0], *(values.max() for values, _, _ in ways.values()))
            at = float(searches.functions.values(best)[0])
            rows[f"{kind}, {steps} steps"] = {
                "log posterior at the mode of fine steps": at,
                "ways": {
                    way: {"right": float(np.mean(values > top - CLOSE)), "evaluations": count / len(starts), "seconds": seconds}
                    for way, (values, count, seconds) in ways.items()
                },
            }
            error = at - row[f"log posterior, {FINE} steps"][kind]
            print(
                f"{name:16s} {kind:7s} {steps:2d} steps  error of the steps {error:9.4f}  "
                + "  ".join(
                    f"{way} {np.mean(values > top - CLOSE):.2f} ({count / len(starts):.0f} evaluations)"
                    for way, (values, count, _) in ways.items()
                ),
                flush=True,
            )
    return rows


def main() -> None:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=NAMES, help=f"of {', '.join(NAMES)}")
    parser.add_argument("--short", action="store_true", help="32 draws")
    options = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    warnings.simplefilter("ignore")
    results = {name: compare(name, 32 if options.short else 100) for name in options.problems}
    if not options.short:
        (RESULTS / "wrong_starts.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
