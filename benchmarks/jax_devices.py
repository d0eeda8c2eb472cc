"""Where JAX pays: a batch of log-likelihoods, with gradients and without, by numba, by JAX on the processor and on a GPU.

The log-density of one model over a batch of points: numba compiles the batch, JAX maps the log-density (``jax.vmap``), and all
values are compared. Without a GPU its columns are left out. Run:
``uv run --extra jax benchmarks/jax_devices.py``; results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import join_nonshared_inputs
from pymc.sampling.jax import get_jaxified_logp
from pytensor.graph.replace import vectorize_graph

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "jax_devices.json"
SIZES = (1, 256, 4096, 32768, 262144)
LARGEST_OF_PROCESSOR = 4096  # JAX on the processor takes a minute a call for more
TRUTH = {"m": 1.0, "c": 0.3, "k": 4.0, "k3": 2.0}


def duffing(samples: int = 400) -> pm.Model:
    """A Duffing oscillator with five unknowns under a sine of two frequencies."""
    system = sid.models.duffing()
    t = 0.05 * np.arange(samples)
    record = sid.TimeSeries(t, 2.0 * np.sin(1.7 * t) + np.sin(4.1 * t), intersample="foh")
    clean = sid.simulate(system, record, TRUTH, x0=0.0)["y"].values
    record = record.replace(y=clean + 0.02 * np.random.default_rng(0).standard_normal(samples))
    with pm.Model() as model:
        params = {"m": 1.0, **{name: pm.LogNormal(name, np.log(TRUTH[name]), 0.3) for name in ("c", "k", "k3")}}
        noise = pm.HalfNormal("noise", 0.1)
        sid.ODEFilter("y", system, record, params, noise=noise, x0=0.0, solver=sid.EK1(order=4), substeps=1)
    return model


def by_numba(model: pm.Model, *, gradient: bool) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Compile the log-densities of a batch of points, with their gradients if asked for."""
    (logp,), joined = join_nonshared_inputs(model.initial_point(), [model.logp()], model.value_vars)
    points = pt.dmatrix("points")
    outputs = vectorize_graph([logp, pytensor.grad(logp, joined)] if gradient else [logp], {joined: points})
    return pytensor.function([points], outputs, mode="NUMBA", trust_input=True)


def by_jax(model: pm.Model, *, gradient: bool) -> Callable[[jax.Array], Any]:
    """Return the same for JAX, where all free variables are numbers."""
    logp, names = get_jaxified_logp(model), model.value_vars

    def density(point: jax.Array) -> jax.Array:
        return logp([point[i] for i in range(len(names))])

    batch = jax.jit(jax.vmap(jax.value_and_grad(density) if gradient else lambda point: (density(point),)))
    return lambda points: jax.block_until_ready(batch(points))


def seconds(function: Callable[[], Any], limit: float = 3.0) -> float:
    """Shortest of up to ten runs within about the limit."""
    best, end = np.inf, time.perf_counter() + limit
    for _ in range(10):
        begin = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return best


def devices() -> dict[str, Any]:
    """Return the devices of JAX by name: the processor, and the first GPU if there is one."""
    found = {"JAX, processor": jax.devices("cpu")[0]}
    others = [d for d in jax.devices() if d.platform != "cpu"]
    return found | ({"JAX, GPU": others[0]} if others else {})


def batches(model: pm.Model, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Microseconds a point, each size by each way, and the largest difference from numba's values."""
    start = np.concatenate([np.atleast_1d(v) for v in model.initial_point().values()])
    for gradient in (False, True):
        numba, waited = by_numba(model, gradient=gradient), by_jax(model, gradient=gradient)
        for size in sizes:
            at = start + 0.1 * np.random.default_rng(size).standard_normal((size, start.size))
            want = numba(at)
            row = {"gradient": gradient, "size": size, "numba": 1e6 * seconds(partial(numba, at)) / size}
            for name, device in devices().items():
                if device.platform == "cpu" and size > LARGEST_OF_PROCESSOR:
                    continue
                there = jax.device_put(at, device)
                begin = time.perf_counter()
                try:
                    got = waited(there)
                except jax.errors.JaxRuntimeError as error:
                    print(f"{size} points, {name}: {str(error)[:200]}", flush=True)
                    continue
                row[f"{name}, first call (s)"] = time.perf_counter() - begin
                row[name] = 1e6 * seconds(partial(waited, there)) / size
                row[f"{name}, difference"] = max(
                    float(np.max(np.abs(np.asarray(a) - b) / (1.0 + np.abs(b)))) for a, b in zip(got, want, strict=True)
                )
            print(" ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
            yield row


def main() -> None:
    """Print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="largest batch")
    parser.add_argument("--file", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    model = duffing()
    found: dict[str, Any] = {"devices": {name: d.device_kind for name, d in devices().items()}, "cores": os.cpu_count()}
    print(found, flush=True)
    found["batches"] = []
    for row in batches(model, tuple(n for n in SIZES if n <= arguments.largest)):
        found["batches"].append(row)
        arguments.file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
