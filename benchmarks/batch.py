"""Many particles: nanoseconds a particle-step beside the bare kernel, other packages beside, and how cost and memory grow.

A particle-step is one substep of the filter for one particle; the measurement update of each sample is in its cost. Absolute
times depend on the machine; compare within one run. Run: ``uv run --extra benchmarks benchmarks/batch.py`` (or a part of it:
``steps``, ``peers``, ``growth``); results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import timeit
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import peers
import pymc as pm
import pytensor
import pytensor.tensor as pt

import pm_sysid as sid
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.interpreted import NAMESPACE, expression
from pm_sysid.recurrence.op import Recurrence
from pm_sysid.recurrence.threads import default_threads
from pm_sysid.solve import simulate as simulation
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.steps.ek import filter_recurrence
from pm_sysid.steps.rk4 import rk4_inputs

RESULTS = Path(__file__).parent / "results"
RATE = 610.35
DUFFING = {"m": 5.368e-6, "c": 2.254e-4, "k": 0.9892, "k3": 3.961}
BOUC_WEN = {"m": 2.0, "c": 10.0, "k": 5e4, "alpha": 5e4, "beta": 1e3, "gamma": 0.8, "delta": -1.1}
NO_STATE = np.empty((0, 0, 0))


def best(function: Callable[[], Any], seconds: float = 0.5) -> float:
    """Shortest of several runs, in seconds, after one that may have to compile."""
    function()
    once = timeit.timeit(function, number=1)
    return min(timeit.repeat(function, number=1, repeat=max(3, int(seconds / once))))


def excited(T: int, level: float) -> sid.TimeSeries:
    """Record with a multisine input and small noise for an output; only its length and smoothness matter here."""
    rng = np.random.default_rng(1)
    t = np.arange(T) / RATE
    lines = zip(np.linspace(5, 120, 30), rng.uniform(0, 6.28, 30), strict=True)
    return sid.TimeSeries(t, level * sum(np.sin(2 * np.pi * f * t + a) for f, a in lines), 1e-3 * rng.standard_normal(T))


class Case:
    """A filter on a record, and the numbers a batch of particles near one parameter vector runs with."""

    def __init__(
        self, system: sid.System, values: dict[str, float], solver: Any, record: sid.TimeSeries, substeps: int
    ) -> None:
        problem = Problem.build(system, solver, [record])
        data = problem.data([record], substeps)
        n_x, n_chains = len(system.states), len(system.chains)
        self.op: Recurrence = filter_recurrence(system, problem.form)
        self.params = np.concatenate([list(values.values()), np.full(n_chains, 1e4), [1e-3] * len(system.outputs), data.scale])
        self.free = len(values)
        self.starts = np.concatenate([np.zeros((1, 2 * n_x)), data.starts], axis=1)
        self.record = [data.counts, data.substeps, np.concatenate([data.samples, record.output_matrix], axis=1)]
        self.steps = len(data.substeps)

    def particles(self, n: int) -> np.ndarray:
        """Parameter vectors within about 1 % of each other."""
        many = np.tile(self.params, (n, 1))
        many[:, : self.free] *= np.exp(0.01 * np.random.default_rng(2).standard_normal((n, self.free)))
        return many

    def single(self) -> Callable[[], Any]:
        """Compile the filter for one particle."""
        params = pt.dvector()
        function = pytensor.function([params], self.op(params, self.starts, *self.record)[0], trust_input=True)
        return lambda: function(self.params)

    def batch(self) -> Callable[[int, int], Any]:
        """Compile the sums of a number of particles on a number of threads, over this record or another."""
        params, edges, counts = pt.dmatrix(), pt.lvector(), pt.lvector()
        substeps, samples, threads = pt.dmatrix(), pt.dmatrix(), pt.lscalar()
        inputs = [params, edges, counts, substeps, samples, threads]
        outputs = BatchRecurrence(self.op)(params, self.starts[None], NO_STATE, *inputs[1:])[0]
        function = pytensor.function(inputs, outputs, trust_input=True)

        def run(n: int, k: int, other: Case = self) -> Callable[[], Any]:
            return partial(function, self.particles(n), np.array([0, len(other.record[0])]), *other.record, np.asarray(k))

        return run

    def gradient(self) -> Callable[[int, int], Any]:
        """Compile the gradients of the sums."""
        params, threads = pt.dmatrix(), pt.lscalar()
        edges = np.array([0, len(self.record[0])])
        cotangents = np.ones((1, 1, self.op.n_outputs)), np.zeros((1, 1, self.op.n_carry))
        inputs = params, self.starts[None], NO_STATE, edges, *self.record, threads, *cotangents
        function = pytensor.function([params, threads], BatchRecurrenceGradient(self.op)(*inputs)[0], trust_input=True)
        return lambda n, k: partial(function, self.particles(n), np.asarray(k))


def bare_kernel(case: Case, lanes: int = 16, segment: int = 200) -> Callable[[], Any]:
    """The substep alone, printed as loops over lanes for numba to vectorise: no samples, no start, no Op."""
    graph, nc = case.op.substep.graph, case.op.n_carry
    slot = {v: i for i, v in enumerate(graph.inputs)}
    nodes = graph.toposort()
    parts = [nodes[i : i + segment] for i in range(0, len(nodes), segment)]
    made = {n.outputs[0]: k for k, part in enumerate(parts) for n in part}
    crossing = {v for k, part in enumerate(parts) for n in part for v in n.inputs if made.get(v, k) != k}
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "nsz", "arcp", "reassoc"}}
    namespace: dict[str, Any] = dict(NAMESPACE)
    for k, part in enumerate(parts):
        names: dict[Any, str] = {}
        lines = []

        def name(v: Any, names: dict[Any, str] = names) -> str:
            if hasattr(v, "data"):
                return f"({float(v.data)!r})"
            return names.get(v) or f"W[{slot[v] * lanes} + q]"

        for i, node in enumerate(part):
            lines.append(f"x{i} = {expression(node.op, [name(v) for v in node.inputs])}")
            out = node.outputs[0]
            names[out] = f"x{i}"
            if out in crossing or out in graph.outputs:
                lines.append(f"W[{slot.setdefault(out, len(slot)) * lanes} + q] = x{i}")
        exec(f"def part{k}(W):\n  for q in range({lanes}):\n    " + "\n    ".join(lines), namespace)
        namespace[f"part{k}"] = numba.njit("void(float64[::1])", **options)(namespace[f"part{k}"])
    first_input = len(graph.inputs) - case.op.substep.n_inputs
    source = ["def loop(W, U):", " for s in range(U.shape[0]):", f"  for q in range({lanes}):"]
    source += [f"   W[{(first_input + i) * lanes} + q] = U[s, {i}]" for i in range(case.op.substep.n_inputs)]
    source += [f"  part{k}(W)" for k in range(len(parts))] + [f"  for q in range({lanes}):"]
    source += [f"   W[{i * lanes} + q] = W[{slot[o] * lanes} + q]" for i, o in enumerate(graph.outputs) if o in slot]
    exec("\n".join(source), namespace)
    loop = numba.njit(namespace["loop"], **options)
    work = np.zeros((len(slot), lanes))
    work[nc : nc + len(case.params)] = case.params[:, None]
    return lambda: loop(work.copy().ravel(), case.record[1])


def steps(quick: bool) -> dict[str, Any]:
    """Nanoseconds a particle-step: one particle, a batch on one thread and on two, its gradient, the bare kernel."""
    rows: dict[str, Any] = {}
    systems = {"Duffing": (sid.models.duffing(), DUFFING, 0.01), "Bouc-Wen": (sid.models.bouc_wen(), BOUC_WEN, 20.0)}
    print(f"\nns a particle-step, 256 particles, T = 3072, 2 substeps a sample; {default_threads()} threads by default")
    print(f"{'':24s}{'single':>9s}{'batch x1':>9s}{'ratio':>7s}{'batch x2':>9s}{'scaling':>8s}{'gradient':>9s}{'bare 16':>9s}")
    for name, (system, values, level) in systems.items():
        record = excited(3072, level)
        for solver in (sid.EK0, sid.EK1):
            for order in (3,) if quick else (2, 3, 4, 5):
                case = Case(system, values, solver(order=order, diffusion=1.0), record, 2)
                single, batch = case.single(), case.batch()
                n = 256
                one, two = batch(n, 1), batch(n, 2)
                row = {"single": best(single) / case.steps * 1e9}
                for _ in range(3):  # in turns, lest a busy spell of the machine fall on one of them
                    row["batch x1"] = min(row.get("batch x1", np.inf), best(one) / case.steps / n * 1e9)
                    row["batch x2"] = min(row.get("batch x2", np.inf), best(two) / case.steps / n * 1e9)
                row |= {"ratio": row["single"] / row["batch x1"], "scaling": row["batch x1"] / row["batch x2"]}
                if name == "Duffing" and solver is sid.EK1:
                    row["gradient"] = best(case.gradient()(n, 1)) / case.steps / n * 1e9
                    row["bare 16"] = best(bare_kernel(case)) / case.steps / 16 * 1e9
                row |= {"operations": case.op.n_nodes}
                label = f"{name} {solver.__name__}({order})"
                rows[label] = row
                cells = ("single", "batch x1", "ratio", "batch x2", "scaling", "gradient", "bare 16")
                texts = [f"{row[c]:.2f}" if c in row else "" for c in cells]
                widths = (9, 9, 7, 9, 8, 9, 9)
                print(f"{label:24s}" + "".join(f"{t:>{w}s}" for t, w in zip(texts, widths, strict=True)), flush=True)
    return rows


def ours(p: peers.Problem, order: int, substeps: int, quick: bool) -> dict[str, Any]:
    """The ODE filter on the peers' problem, through a PyMC model as a user writes it."""
    record = sid.TimeSeries(np.arange(len(p.y)) * p.dt, p.u, p.y, intersample="zoh")
    system, solver = sid.models.duffing(), sid.EK1(order=order, diffusion=1e4)
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        priors = {k: pm.LogNormal(k, np.log(v), 0.01) for k, v in zip(system.params, p.theta, strict=True)}
        sid.ODEFilter("y", system, record, priors, noise=p.noise, x0=0.0, solver=solver, substeps=substeps)
    target, alone = sid.Target(model), sid.Target(model, threads=1)
    value = model.compile_logp(vars=model.observed_RVs)
    gradient = model.compile_dlogp()
    point = model.initial_point()
    for f in (value, gradient):
        f.f.trust_input = True
    problem = Problem.build(system, solver, [record])
    data = problem.data([record], substeps)
    params = np.concatenate([p.theta, [1e4], [p.noise], data.scale])
    starts = np.concatenate([np.zeros((1, 4)), data.starts], axis=1)
    samples = np.concatenate([data.samples, np.full((len(p.y), 1), np.nan)], axis=1)
    moments = filter_recurrence(system, problem.form, "moments")(params, starts, data.counts, data.substeps, samples)[0]
    z = pytensor.function([], moments[:, 0])()
    row = {"state error": float(np.sqrt(np.mean((z - p.states[:, 0]) ** 2) / np.mean(p.states[:, 0] ** 2)))}
    row["value ms"] = 1e3 * best(lambda: value(point))
    row["value+gradient ms"] = 1e3 * best(lambda: (value(point), gradient(point)))
    for n in (64,) if quick else (256, 1000):
        many = np.log(peers.particles(p, n))
        row[f"batch {n} us"] = 1e6 / n * best(lambda many=many: target.log_likelihood(many))
        row[f"batch {n} us, 1 thread"] = 1e6 / n * best(lambda many=many: alone.log_likelihood(many))
    row[f"batch gradient {n} us"] = 1e6 / n * best(lambda: target.value_and_gradient(many))
    return row


def ours_deterministic(p: peers.Problem, quick: bool) -> dict[str, Any]:
    """Runge-Kutta with four steps a sample, reduced to the squared error on the way: what ABC asks for."""
    record = sid.TimeSeries(np.arange(len(p.y)) * p.dt, p.u, p.y, intersample="zoh")
    system, inputs = sid.models.duffing(), rk4_inputs(record, peers.SUBSTEPS)
    z = simulation._run(system, p.theta[None], np.zeros((1, 2)), inputs)[0, :, 0]
    row = {"state error": float(np.sqrt(np.mean((z - p.states[:, 0]) ** 2) / np.mean(p.states[:, 0] ** 2)))}
    for n in (64,) if quick else (256, 1000):
        many = peers.particles(p, n)
        run = partial(simulation._run, system, many, np.zeros((n, 2)), inputs, y=record.output_matrix)
        row[f"batch {n} us"] = 1e6 / n * best(run)
        before = sid.set_threads(1)
        row[f"batch {n} us, 1 thread"] = 1e6 / n * best(run)
        sid.set_threads(before)
    return row


def beside_peers(quick: bool) -> dict[str, Any]:
    """Every peer and this package on one problem in one run."""
    p = peers.problem()
    orders = ((2, 1), (3, 1), (3, 2), (4, 2))

    def own() -> dict[str, dict[str, Any]]:
        filters = {f"pm_sysid EK1({q}) x{s}": ours(p, q, s, quick) for q, s in orders}
        return {**filters, "pm_sysid simulate RK4 x4": ours_deterministic(p, quick)}

    rows = {**own(), **peers.run(p, quick=quick)}
    for name, row in own().items():  # again after the others, lest a busy spell of the machine fall on one side
        rows[name] = {k: min(v, row[k]) for k, v in rows[name].items()}
    mine = {name: row for name, row in rows.items() if name.startswith("pm_sysid EK1")}
    n = 64 if quick else 1000
    columns = {"state error": ".1e", "value ms": ".3f", "value+gradient ms": ".2f", f"batch {n} us": ".1f"}
    print(f"\nDuffing, T = {len(p.y)}, 4 parameters, zero-order hold; microseconds a particle")
    print(" " * 33 + "".join(f"{key:>18s}" for key in columns))
    for name, row in rows.items():
        cells = [format(row[key], form) if key in row else "-" for key, form in columns.items()]
        print(f"{name:33s}" + (row.get("missing") or "".join(f"{cell:>18s}" for cell in cells)))
    key = f"batch {n} us"
    for name, row in rows.items():
        per = next((row[k] for k in (key, "batch 256 us", "batch 64 us") if k in row), None)
        if per and not name.startswith("pm_sysid"):
            fits = {m: r for m, r in mine.items() if r["state error"] <= row["state error"]}
            match = min(fits, key=lambda m: rows[m][key]) if fits else min(mine, key=lambda m: mine[m]["state error"])
            row["times slower"] = per / rows[match][key]
            print(f"  {name:33s} {row['times slower']:9.1f} x {match}" + ("" if fits else " (which is less accurate)"))
    return rows


def slope(x: list[float], y: list[float]) -> float:
    """Slope of a line through the last points of a log-log plot."""
    return float(np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)[0])


def chain(n: int) -> sid.System:
    """Chain of ``n`` Duffing oscillators, coupled by springs and driven at one end."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> dict[str, Any]:
        z, v = x[0::2], x[1::2]
        rates: dict[str, Any] = {}
        for i in range(n):
            force = -p.c * v[i] - p.k * z[i] - p.k3 * z[i] ** 3
            force = force + sum(p.kc * (z[j] - z[i]) for j in (i - 1, i + 1) if 0 <= j < n) + (u.F if i == 0 else 0.0)
            rates |= {f"z{i}": v[i], f"v{i}": force}
        return rates

    states = [name for i in range(n) for name in (f"z{i}", f"v{i}")]
    return sid.System(
        dynamics, states=states, inputs=("F",), params=("c", "k", "k3", "kc"), observe=lambda t, x, dx, u, p: x.z0
    )


def growth(quick: bool) -> dict[str, Any]:
    """Cost against samples, particles and degrees of freedom, and peak memory."""
    rows: dict[str, Any] = {}
    lengths = (1000, 10_000) if quick else (1000, 10_000, 100_000, 1_000_000)
    rows["T"] = [
        json.loads(
            subprocess.run([sys.executable, __file__, "--length", str(T)], check=True, capture_output=True, text=True).stdout
        )
        for T in lengths
    ]
    print("\nsamples: seconds and MiB above the record for the sums of 64 particles, EK1(3) x1")
    for row in rows["T"]:
        kept = f"{row['pointwise MiB']:.1f} if every sample's output were kept"
        print(f"  T = {row['T']:8d}  {row['seconds']:.4f} s  {row['MiB']:.1f} MiB  ({kept})")
    rows["T slope"] = slope([r["T"] for r in rows["T"]], [r["seconds"] for r in rows["T"]])
    case = Case(sid.models.duffing(), DUFFING, sid.EK1(order=3, diffusion=1.0), excited(3072, 0.01), 1)
    batch = case.batch()
    sizes = (1, 8, 64, 512) if quick else (1, 8, 16, 64, 256, 1024, 4096)
    rows["particles"] = [{"particles": n, "seconds": best(batch(n, default_threads()))} for n in sizes]
    rows["particles slope"] = slope(list(sizes), [r["seconds"] for r in rows["particles"]])
    print("particles: " + ", ".join(f"{r['particles']}: {r['seconds'] * 1e3:.2f} ms" for r in rows["particles"]))
    freedoms = (1, 2, 5) if quick else (1, 2, 5, 10, 20, 50)
    rows["coordinates"] = []
    print("coordinates, block form, EK1(3) x1, 64 particles, T = 200, one thread:")
    for n in freedoms:
        start = timeit.default_timer()
        solver = sid.EK1(order=3, diffusion=1.0, covariance="block")
        case = Case(chain(n), {"c": 2.0, "k": 4e4, "k3": 1e8, "kc": 2e4}, solver, excited(200, 1.0), 1)
        run = case.batch()(64, 1)
        run()
        compiled = timeit.default_timer() - start
        seconds = best(run)
        row = {"coordinates": n, "ns": seconds / case.steps / 64 * 1e9, "build and compile s": compiled, **case.op.n_nodes}
        rows["coordinates"].append(row)
        text = f"{row['ns']:8.1f} ns a particle-step, {row['ns'] / n:6.1f} a coordinate; built in {compiled:.1f} s"
        print(f"  {n:3d}: {text}", flush=True)
    rows["coordinates slope"] = slope(list(freedoms), [r["ns"] for r in rows["coordinates"]])
    print("log-log slopes: " + ", ".join(f"{k} {rows[f'{k} slope']:.2f}" for k in ("T", "particles", "coordinates")))
    return rows


def one_length(T: int) -> None:
    """Time and memory of one batch; in a process of its own, whose peak is then that of the batch."""
    case = Case(sid.models.duffing(), DUFFING, sid.EK1(order=3, diffusion=1.0), excited(T, 0.01), 1)
    batch = case.batch()
    batch(64, default_threads(), Case(sid.models.duffing(), DUFFING, sid.EK1(order=3, diffusion=1.0), excited(1000, 0.01), 1))()
    run = batch(64, default_threads())
    memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # noqa: E731
    before = memory()
    seconds = timeit.timeit(run, number=1) if T > 200_000 else best(run)
    print(json.dumps({"T": T, "seconds": seconds, "MiB": memory() - before, "pointwise MiB": 64 * T * 8 / 2**20}))


def figure(results: dict[str, Any]) -> None:
    """Bars of the batch beside the peers, and cost against size."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    columns = ("batch 1000 us", "batch 256 us", "batch 64 us")
    found = {k: next((r[c] for c in columns if c in r), None) for k, r in results["peers"].items()}
    rows = dict(sorted(((k, v) for k, v in found.items() if v), key=lambda item: item[1]))
    left.barh(list(rows), list(rows.values()), color=["C1" if k.startswith("pm_sysid") else "C0" for k in rows])
    left.set(xscale="log", xlabel="µs a particle (Duffing, T = 3072)", title="A batch of particles")
    left.invert_yaxis()
    for key, x in (("T", "T"), ("particles", "particles"), ("coordinates", "coordinates")):
        values = results["growth"][key]
        y = [r["seconds"] if "seconds" in r else r["ns"] for r in values]
        label = f"{key}: slope {results['growth'][f'{key} slope']:.2f}"
        right.loglog([r[x] for r in values], np.array(y) / y[0], "o-", label=label)
    right.set(xlabel="size", ylabel="time, relative to the smallest", title="Growth")
    right.legend()
    fig.savefig(RESULTS / "batch.png", dpi=120)


def main() -> None:
    """Print the tables and save them as JSON and a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["steps", "peers", "growth", []], default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--length", type=int, default=0)
    options = parser.parse_args()
    if options.length:
        one_length(options.length)
        return
    parts = {"steps": steps, "peers": beside_peers, "growth": growth}
    path = RESULTS / "batch.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in options.parts or parts:
        results[name] = parts[name](options.quick)
    results["machine"] = {"cores": os.cpu_count(), "threads": default_threads()}
    path.write_text(json.dumps(results, indent=1))
    if {"peers", "growth"} <= set(results):
        figure(results)


if __name__ == "__main__":
    main()
