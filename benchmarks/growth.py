"""How the filter grows with the coordinates: compile time, time of a step and memory, of a chain of masses.

Each number of coordinates, dense and in blocks, runs in a process of its own with an empty folder of compiled code. Measured
are the graph of the step, then its value, its gradient and its batch (256 particles), each compiled and run once (seconds); the
time of a step (microseconds; of the batch, for each particle); and the peak of memory. The last column is LAPACK's QR
factorisation of the matrix that a dense prediction factorises, in the same process. Times are processor times. Slopes are those
of log time over log coordinates, between the last two rows. Run: ``uv run benchmarks/growth.py [--dense 1 2 3] [--block 1 10
100]``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "growth.json"
ORDER, SAMPLES, PARTICLES = 3, 200, 256
COLUMNS = ["graph", "value", "gradient", "batch", "step", "gradient step", "batch step", "MiB", "QR"]


def fastest(function: Callable[[], Any], repeats: int) -> float:
    """Processor seconds of the fastest call."""
    seconds = []
    for _ in range(repeats):
        begin = time.process_time()
        function()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def case(n: int, covariance: str) -> dict[str, float]:
    """Measure one chain of masses."""
    import numpy as np
    import scipy.linalg.lapack

    import pm_sysid as sid
    import pm_sysid.recurrence.llvm.batch  # imported by the first kernel otherwise
    import pm_sysid.recurrence.llvm.single
    from pm_sysid.recurrence.batch_op import BatchRecurrence
    from pm_sysid.recurrence.op import RecurrenceGradient
    from pm_sysid.recurrence.run import native
    from pm_sysid.solve.filter_graph import Problem
    from pm_sysid.steps.ek import filter_recurrence

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
        z, v = x[:n], x[n:]
        pull = [p.k * (z[i] - (z[i - 1] if i else 0.0)) for i in range(n)] + [0.0]
        force = [pull[i + 1] - pull[i] - p.c * v[i] - p.k3 * z[i] ** 3 for i in range(n)]
        return (*v, force[0] + u.F, *force[1:])

    names = (*(f"z{i}" for i in range(n)), *(f"v{i}" for i in range(n)))
    observe = {"observe": lambda t, x, dx, u, p: (x.z0, x[n - 1])} if n > 1 else {"observe": lambda t, x, dx, u, p: x.z0}
    system = sid.System(dynamics, states=names, inputs=("F",), params=("k", "c", "k3"), **observe)
    t = np.arange(SAMPLES) / 50
    outputs = len(system.g)
    record = sid.TimeSeries(t, np.sin(t), np.full((SAMPLES, outputs), 0.01), inputs="F")
    seconds: dict[str, float] = {}
    begin = time.process_time()
    problem = Problem.build(system, sid.EK1(order=ORDER, diffusion=1.0, covariance=covariance), [record], ())
    op = filter_recurrence(problem.system, problem.form)
    seconds["graph"] = time.process_time() - begin

    data = problem.data([record], 1)
    params = np.concatenate([[20.0, 0.4, 5.0], np.ones(n), np.full(outputs, 0.01), data.scale])
    starts = np.concatenate([np.zeros((1, 4 * n)), data.starts], axis=1)
    samples = np.concatenate([data.samples, record.output_matrix], axis=1)
    rows = data.counts, data.substeps, samples
    cotangents = np.ones((SAMPLES, op.n_outputs)), np.zeros((1, op.n_carry))
    many = params * np.exp(0.01 * np.random.default_rng(0).normal(size=(PARTICLES, 1)))
    many[:, -len(data.scale) :] = data.scale
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "value": (lambda: native(op)(params, starts, *rows), 1),
        "gradient": (lambda: native(RecurrenceGradient(op))(params, starts, *rows, *cotangents), 1),
        "batch": (
            lambda: native(BatchRecurrence(op))(
                many[:, None], starts[None], np.empty((0, 0, 0)), np.array([0, SAMPLES]), *rows, np.int64(1)
            ),
            PARTICLES,
        ),
    }
    for name, (call, _) in calls.items():
        begin = time.process_time()
        result = call()
        seconds[name] = time.process_time() - begin
        if not all(np.isfinite(a).all() for a in result):
            raise SystemExit(f"{n} coordinates, {covariance}: the {name} is not finite")
    for name, (call, particles) in calls.items():
        label = "step" if name == "value" else f"{name} step"
        seconds[label] = 1e6 * fastest(call, 10 if seconds[name] < 5 else 2) / (SAMPLES * particles)
    seconds["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = (ORDER + 1) * n
    if covariance == "dense":
        matrix = np.asfortranarray(np.random.default_rng(0).normal(size=(2 * size, size)))
        seconds["QR"] = 1e6 * fastest(lambda: scipy.linalg.lapack.dgeqrf(matrix), 100)
    return seconds


def in_process(n: int, covariance: str) -> dict[str, float]:
    """Measure in a fresh process with nothing compiled."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={folder}"}
        command = [sys.executable, __file__, "--case", str(n), covariance]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("MEASURED")]
    if run.returncode or not lines:
        raise SystemExit(f"{n} coordinates, {covariance}, failed:\n{run.stderr[-3000:]}")
    measured: dict[str, float] = json.loads(lines[0].removeprefix("MEASURED"))
    return measured


def main() -> None:
    """Run the cases, print a table for each shape of covariance, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dense", type=int, nargs="*", default=[1, 2, 3, 5, 10, 20])
    parser.add_argument("--block", type=int, nargs="*", default=[1, 2, 3, 5, 10, 20, 50, 100])
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print("MEASURED", json.dumps(case(int(arguments.case[0]), arguments.case[1])))
        return
    found: dict[str, dict[str, dict[str, float]]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for covariance, sizes in (("dense", arguments.dense), ("block", arguments.block)):
        if not sizes:
            continue
        print(f"\n{covariance}, EK1({ORDER}): seconds to compile and run once; microseconds of a step; MiB\n{'':>12s}", end="")
        print("".join(f"{c:>15s}" for c in COLUMNS), flush=True)
        rows = found.setdefault(covariance, {})
        for n in sizes:
            rows[str(n)] = in_process(n, covariance)
            print(f"{n:12d}" + "".join(f"{rows[str(n)].get(c, math.nan):15.2f}" for c in COLUMNS), flush=True)
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        if len(sizes) > 1:
            a, b = sorted(sizes)[-2:]
            slopes = [
                math.log(rows[str(b)].get(c, math.nan) / rows[str(a)].get(c, math.nan)) / math.log(b / a) for c in COLUMNS
            ]
            print(f"{'slope':>12s}" + "".join(f"{s:15.2f}" for s in slopes))


if __name__ == "__main__":
    main()
