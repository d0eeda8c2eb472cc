"""One likelihood: value and gradient beside a bare kernel and ``pytensor.scan`` of the same step; compile time; long records.

Duffing oscillator, natural frequency 68 Hz, sampled at 610.35 Hz, T = 3072, EK1 of order 4, two substeps, eight unknowns.
Absolute times depend on the machine; the ratios are measured in one run. Run: ``uv run benchmarks/likelihood.py``
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import join_nonshared_inputs
from pytensor.graph.basic import Constant
from pytensor.tensor.elemwise import Elemwise

import pm_sysid as sid
from pm_sysid.recurrence.interpreted import NAMESPACE, print_phase
from pm_sysid.recurrence.llvm.program import FASTMATH, forward_program
from pm_sysid.recurrence.llvm.single import value_source

TRUTH = {"m": 5.368e-6, "c": 2.254e-4, "k": 0.9892, "k3": 3.961, "offset": -5.4e-3}


def record(length: int) -> sid.TimeSeries:
    """Simulated record with a multisine input and 1 % noise."""
    fs = 610.35
    t = np.arange(length) / fs
    rng = np.random.default_rng(1)
    u = sum(
        0.01 * np.sin(2 * np.pi * f * t + a) for f, a in zip(np.linspace(5, 120, 30), rng.uniform(0, 6.28, 30), strict=True)
    )
    data = sid.TimeSeries(t, u, None)
    y = sid.simulate(sid.models.duffing(offset=True), data, TRUTH, x0=0.0, substeps=8)["y"].values
    return data.replace(y=y + 0.01 * y.std() * rng.standard_normal(length))


def build(data: sid.TimeSeries, diffusion: Any) -> pm.Model:
    """Model with eight unknowns: five parameters, noise, and the initial state."""
    with pm.Model() as model:
        params = {k: pm.LogNormal(k, np.log(v), 0.01) for k, v in TRUTH.items() if v > 0}
        params["offset"] = pm.Normal("offset", TRUTH["offset"], 1e-4)
        x0 = {"z": pm.Normal("z0", 0, 1e-4), "v": pm.Normal("v0", 0, 1e-2)}
        noise = pm.LogNormal("noise", np.log(5e-4), 0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sid.SubstepWarning)
            sid.ODEFilter(
                "y", sid.models.duffing(offset=True), data, params, noise=noise, x0=x0,
                solver=sid.EK1(order=4, diffusion=diffusion), substeps=2,
            )  # fmt: skip
    return model


def best(function: Callable[[], Any], repeats: int = 50) -> float:
    """Shortest of several runs, in seconds."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def compiled(model: pm.Model) -> tuple[Callable[..., Any], Callable[..., Any], np.ndarray]:
    """Value, and value with gradient, as functions of the joined free variables."""
    point = model.initial_point()
    (logp,), joined = join_nonshared_inputs(point, [model.logp()], model.value_vars)
    value = pytensor.function([joined], logp, trust_input=True)
    both = pytensor.function([joined], [logp, pytensor.grad(logp, joined)], trust_input=True)
    start = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars])
    return value, both, start


def bare_kernel(model: pm.Model) -> tuple[Callable[[], Any], list[np.ndarray], Any]:
    """The filter's loop as one plain numba function of arrays: no PyTensor, no PyMC."""
    op, inputs = filter_arguments(model)
    program = forward_program(op)

    def jit(function: Any) -> Any:
        return numba.njit(function, fastmath=FASTMATH, error_model="numpy", forceinline=function.__name__ != "kernel")

    namespace: dict[str, Any] = {**NAMESPACE, "np": np, "zeros": numba.njit(lambda *shape: np.zeros(shape))}
    for name, (segments, arrays) in program.phases.items():
        exec(print_phase(name, segments, arrays), namespace)
        namespace[name] = jit(namespace[name])
    exec(re.sub(r"raise ValueError\(.*\)", "raise ValueError", value_source(op)), namespace)
    namespace["own"] = jit(namespace["own"])
    kernel = jit(namespace["kernel"])
    params, *rest = inputs
    outputs, final = np.empty((len(inputs[4]), op.n_outputs)), np.empty((len(inputs[1]), op.n_carry))

    def run() -> Any:
        kernel(np.atleast_2d(params), *rest, outputs, final)
        return outputs.sum()

    return run, inputs, op


def filter_arguments(model: pm.Model) -> tuple[Any, list[np.ndarray]]:
    """The filter's recurrence in a model's graph, and the numbers it is called with at the initial point."""
    graph = pytensor.graph.FunctionGraph(outputs=[model.logp()], clone=False)
    node = next(n for n in graph.toposort() if repr(n.op).endswith("loglik}"))
    function = pytensor.function(model.value_vars, list(node.inputs), on_unused_input="ignore")
    point = model.initial_point()
    arrays = function(*[point[v.name] for v in model.value_vars])
    return node.op, [np.ascontiguousarray(a) for a in arrays]


def scan_of(op: Any, inputs: list[np.ndarray], length: int) -> Callable[[], Any]:
    """The same step (substeps unrolled) under ``pytensor.scan``, over the first samples."""
    (params,), starts, counts, substeps, samples = inputs
    n = int(counts[1])

    def replay(phase: Any, carry: list[Any], row: Any) -> list[Any]:
        known = dict(zip(phase.graph.inputs, [*carry, *params_t, *(row[i] for i in range(phase.n_inputs))], strict=True))
        for node in phase.graph.toposort():
            args = [pt.constant(v.data) if isinstance(v, Constant) else known[v] for v in node.inputs]
            known[node.outputs[0]] = Elemwise(node.op)(*args)
        return [pt.constant(np.float64(o.data)) if isinstance(o, Constant) else known[o] for o in phase.graph.outputs]

    params_vector = pt.dvector("params")
    params_t = [params_vector[i] for i in range(len(params))]

    def step(row: Any, rows: Any, carry: Any, *_: Any) -> list[Any]:
        values = [carry[i] for i in range(op.n_carry)]
        for k in range(n):
            values = replay(op.substep, values, rows[k])
        outputs = replay(op.sample, values, row)
        return [pt.stack(outputs[: op.n_carry]), pt.stack(outputs[op.n_carry :])]

    first = np.empty((1, op.n_carry))
    first = pytensor.function([], op(params, starts, counts[:1], substeps[:0], samples[:1])[1])()[0]
    rows = substeps.reshape(-1, n, substeps.shape[1])[: length - 1]
    (_, outputs) = pytensor.scan(
        step,
        sequences=[pt.as_tensor_variable(samples[1:length]), pt.as_tensor_variable(rows)],
        outputs_info=[pt.as_tensor_variable(first), None],
        non_sequences=[params_vector],
        return_updates=False,
    )
    function = pytensor.function([params_vector], outputs.sum(), trust_input=True)
    return lambda: function(params)


def compile_times() -> dict[str, float]:
    """Seconds to the first value and gradient with an empty and with a filled cache, in fresh processes."""
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTENSOR_FLAGS": f"base_compiledir={folder}", "NUMBA_CACHE_DIR": f"{folder}/numba"}
        for label in ("cold", "warm"):
            out = subprocess.run(
                [sys.executable, __file__, "--compile-only"], env=environment, check=True, capture_output=True, text=True
            )
            result[label] = float(out.stdout.split()[-1])
    return result


def main() -> None:
    """Print the table and save it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--long", type=int, default=0, help="length of a long record for the memory of the gradient")
    parser.add_argument("--skip-scan", action="store_true")
    options = parser.parse_args()
    if options.compile_only:
        model = build(record(300), "mle")
        start = time.perf_counter()
        value, both, point = compiled(model)
        value(point), both(point)
        print(time.perf_counter() - start)
        return
    if options.long:
        value, both, point = compiled(build(record(options.long), 1e5))
        value(point)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        both(point)
        took = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            json.dumps({"T": options.long, "seconds": took, "gradient_MiB": (peak - before) / 1024, "process_MiB": peak / 1024})
        )
        return

    results: dict[str, Any] = {}
    data = record(3072)
    print(f"Duffing, T = {len(data)}, EK1(4), 2 substeps a sample, 8 unknowns")
    model = build(data, 1e5)
    kernel, inputs, op = bare_kernel(model)
    print(f"  operations: {op.n_nodes}")
    value, both, point = compiled(model)
    results["bare kernel ms"] = best(kernel) * 1e3
    results["value ms"] = best(lambda: value(point)) * 1e3
    results["value + gradient ms"] = best(lambda: both(point)) * 1e3
    short, _, _ = compiled(build(record(4), 1e5))
    results["overhead us (T = 4)"] = best(lambda: short(point), 2000) * 1e6
    value_mle, both_mle, _ = compiled(build(data, "mle"))
    results["mle: value ms"] = best(lambda: value_mle(point)) * 1e3
    results["mle: value + gradient ms"] = best(lambda: both_mle(point)) * 1e3
    if not options.skip_scan:
        start = time.perf_counter()
        scan = scan_of(op, inputs, 3072)
        scan()
        results["pytensor.scan compile s"] = time.perf_counter() - start
        results["pytensor.scan value ms"] = best(scan, 5) * 1e3
    results |= {f"compile {k} s": v for k, v in compile_times().items()}
    for length in (1000, 10_000, 100_000, 1_000_000):
        out = subprocess.run([sys.executable, __file__, "--long", str(length)], check=True, capture_output=True, text=True)
        results[f"T = {length}"] = json.loads(out.stdout.splitlines()[-1])
    ratios = {
        "value / bare kernel": (results["value ms"] / results["bare kernel ms"], 1.5),
        "(value + gradient) / value": (results["value + gradient ms"] / results["value ms"], 5.0),
        "mle: (value + gradient) / value": (results["mle: value + gradient ms"] / results["mle: value ms"], 5.0),
    }
    for name, number in results.items():
        print(f"  {name:32s} {number if isinstance(number, dict) else f'{number:.3f}'}")
    for name, (ratio, bar) in ratios.items():
        print(f"  {name:32s} {ratio:.2f}  (bar {bar})")
    path = Path(__file__).parent / "results" / "likelihood.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**results, **{k: r for k, (r, _) in ratios.items()}}, indent=1))


if __name__ == "__main__":
    main()
