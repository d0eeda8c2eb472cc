"""Twelve specimens in one filter beside twelve filters: time of a likelihood and of its gradient, and of their compilation.

Duffing oscillators with a stiffness, a damping and a noise of their own, records of unlike length, EK1 of order 3, two
substeps. Absolute times depend on the machine; the ratios are measured in one run. Run: ``uv run benchmarks/specimens.py``
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results"
COUNT, ROUNDS = 12, 15


def records() -> list[sid.TimeSeries]:
    """Simulated records of isolators."""
    rng, found = np.random.default_rng(0), []
    for i in range(COUNT):
        n = 300 + 20 * i
        record = sid.TimeSeries(np.arange(n) / 100.0, 50 * rng.standard_normal(n), np.zeros(n))
        z = sid.simulate(sid.models.duffing(), record, dict(m=2.0, c=6.0, k=600.0 + 30 * i, k3=4e4), x0=0.0)["y"].to_numpy()
        found.append(record.replace(y=z + 0.02 * z.std() * rng.standard_normal(n)))
    return found


def model_of(data: Any, count: int) -> pm.Model:
    """A model of one record, or of several with parameters of their own."""
    shape = {"shape": count} if count > 1 else {}
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)
        params = {"m": 2.0, "k": pm.LogNormal("k", 6.5, 0.3, **shape), "c": pm.LogNormal("c", 1.8, 0.3, **shape)}
        noise = pm.HalfNormal("noise", 1e-3, **shape)
        params["k3"] = pm.LogNormal("k3", 10.0, 0.5)
        sid.ODEFilter("y", sid.models.duffing(), data, params, noise=noise, x0=0.0, substeps=2, solver=sid.EK1(order=3))
    return model


def functions(model: pm.Model) -> tuple[float, dict[str, Callable[[], Any]]]:
    """Seconds to compile value and gradient, and both as functions of nothing."""
    begin = time.perf_counter()
    value, gradient = model.compile_logp(), model.compile_dlogp()
    point = model.initial_point()
    point |= {k: np.full_like(v, x) for k, v in point.items() for x in [{"k_log__": 6.6, "c_log__": 1.8}.get(k, v)]}
    value(point), gradient(point)
    return time.perf_counter() - begin, {"value": lambda: value(point), "gradient": lambda: gradient(point)}


def main() -> None:
    """Print and keep the table."""
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    data = records()
    together_ready, together = functions(model_of(data, COUNT))
    singles = [functions(model_of(record, 1)) for record in data]
    found: dict[str, Any] = {"specimens": COUNT, "samples": sum(map(len, data))}
    for name in ("value", "gradient"):
        best = {"together": np.inf, "apart": np.inf}
        for _ in range(ROUNDS):  # in turn, so that a slow moment meets both
            begin = time.process_time()
            together[name]()
            middle = time.process_time()
            for _, one in singles:
                one[name]()
            best["together"] = min(best["together"], middle - begin)
            best["apart"] = min(best["apart"], time.process_time() - middle)
        found[name] = {k: 1e3 * v for k, v in best.items()} | {"ratio": best["together"] / best["apart"]}
        row = found[name]
        print(f"{name}: {row['together']:.2f} ms in one filter, {row['apart']:.2f} ms in twelve, ratio {row['ratio']:.2f}")
    found["compile"] = {"together": together_ready, "all apart": sum(s for s, _ in singles)}
    print("ready after seconds: " + ", ".join(f"{k} {v:.1f}" for k, v in found["compile"].items()))
    (RESULTS / "specimens.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
