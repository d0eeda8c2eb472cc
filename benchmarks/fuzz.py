"""Random systems, solvers and records: compiled single and batched filter against a plain NumPy one, for as long as wanted.

    python benchmarks/fuzz.py --structures 100 --cases 10 --points 10 --seed 1000

A structure is compiled once; a case is a set of records, a point a set of parameters on it. Prints disagreement by feature,
keeps every result in ``benchmarks/results/fuzz.jsonl`` and lists the seeds that fail.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT.parent / "tests"))

from support.fuzz.harness import Compiled, compare  # noqa: E402
from support.fuzz.systems import structure  # noqa: E402

RESULTS = ROOT / "results" / "fuzz.jsonl"


def run(seed: int, cases: int, points: int, components: int, gradient: bool, interpreted: bool) -> list[dict]:
    chosen = structure(seed, components)
    try:
        compiled = Compiled(chosen, gradient, interpreted=interpreted)
        results = [asdict(compare(compiled, case, points)) for case in range(cases)]
    except Exception as error:
        return [{"seed": seed, "case": -1, "points": 0, "complaints": [repr(error)], "features": sorted(chosen.features)}]
    kind = "interpreted" if interpreted else "compiled"
    return [r | {"features": [kind, *sorted(chosen.features)], "components": components} for r in results]


def table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    groups: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        for feature in ["all", *row["features"]]:
            groups[feature].append(row)
    print(f"{'':26}{'structures':>10}{'points':>8}{'-inf':>6}{'value 50 %':>12}{'99 %':>9}{'max':>9}", end="")
    print(f"{'batch max':>11}{'gradient 50 %':>15}{'max':>9}")
    for feature in ["all", *sorted(set(groups) - {"all"})]:
        part = [r for r in groups[feature] if r["case"] >= 0]
        if not part:
            continue
        value, batch, gradient = (np.array([r[k] for r in part], float) for k in ("backward", "batch", "gradient"))
        gradient = gradient[np.isfinite(gradient)]
        middle, most = (np.median(gradient), gradient.max()) if gradient.size else (np.nan, np.nan)
        count, points, lost = len({r["seed"] for r in part}), sum(r["points"] for r in part), sum(r["infinite"] for r in part)
        print(
            f"{feature:26}{count:10}{points:8}{lost:6}"
            f"{np.median(value):12.1e}{np.quantile(value, 0.99):9.1e}{value.max():9.1e}"
            f"{batch.max():11.1e}{middle:15.1e}{most:9.1e}"
        )
    failed = [(r["seed"], r["case"], r.get("components"), r["complaints"]) for r in rows if r["complaints"]]
    print(f"\n{len(failed)} cases with complaints, {sum(r.get('unresolved', 0) for r in rows)} gradients left undecided")
    for entry in failed:
        print("  ", entry)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--structures", type=int, default=20)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first structure")
    parser.add_argument("--components", type=int, default=8, help="largest covariance; compilation grows with its cube")
    parser.add_argument("--gradients", type=int, default=3, help="every how many structures the gradient is compiled; 0: never")
    parser.add_argument("--interpreted", action="store_true", help="nothing is compiled: more structures in the same time")
    parser.add_argument("--minutes", type=float, default=np.inf)
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    arguments = parser.parse_args()
    start = time.monotonic()
    for seed in range(arguments.seed, arguments.seed + (0 if arguments.table else arguments.structures)):
        if time.monotonic() - start > 60 * arguments.minutes:
            break
        gradient = bool(arguments.gradients) and seed % arguments.gradients == 0
        results = run(seed, arguments.cases, arguments.points, arguments.components, gradient, arguments.interpreted)
        with RESULTS.open("a") as file:
            file.writelines(json.dumps(r) + "\n" for r in results)
        for r in results:
            if r["complaints"]:
                print(seed, r["case"], r["complaints"], flush=True)
    table(RESULTS)


if __name__ == "__main__":
    main()
