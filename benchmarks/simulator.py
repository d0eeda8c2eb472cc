"""A simulation and its distance, as the ABC sampler asks for them: microseconds each, beside a loop written by hand in numba.

A trilinear spring, 1001 samples with 4 Runge-Kutta steps each, acceleration, NMSE. Absolute times depend on the machine;
compare within one run. Run: ``uv run benchmarks/simulator.py``; results go to ``benchmarks/results``.
"""

from __future__ import annotations

import json
import timeit
import warnings
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pymc as pm

import pm_sysid as sid
from pm_sysid.likelihood.ode_simulator import batch_distance
from pm_sysid.steps.rk4 import rk4_inputs

RESULTS = Path(__file__).parent / "results"
TRUTH = {"m": 1.0, "c0": 2.0, "k0": 1e3, "k1": 3e3, "k2": 7e3, "d1": -1e-3, "d2": 0.5e-3}
B, T, SUBSTEPS, FS = 1000, 1001, 4, 100.0


def record() -> sid.TimeSeries:
    rng = np.random.default_rng(0)
    spectrum = np.zeros(513, dtype=complex)
    spectrum[1:200] = rng.standard_normal(199) + 1j * rng.standard_normal(199)
    u = np.fft.irfft(spectrum, 1024)[:T]
    return sid.TimeSeries(np.arange(T) / FS, 2 * u / u.std(), rng.standard_normal(T))


@numba.njit(fastmath=True, error_model="numpy")
def spring(z: float, k0: float, k1: float, k2: float, d1: float, d2: float) -> float:
    if z < d1:
        return k0 * d1 + k1 * (z - d1)
    return k0 * z if z < d2 else k0 * d2 + k2 * (z - d2)


@numba.njit(fastmath=True, error_model="numpy")
def by_hand(theta: Any, h: float, u: Any, at: Any, y: Any) -> Any:
    """Squared error of each parameter set; ``u`` at the start, middle and end of each substep, ``at`` at the samples."""
    out = np.empty(len(theta))
    for b in range(len(theta)):
        m, c, k0, k1, k2, d1, d2 = theta[b]
        z = v = total = 0.0
        row = 0
        for t in range(len(y)):
            if t:
                for _ in range(SUBSTEPS):
                    a1 = (u[row, 0] - c * v - spring(z, k0, k1, k2, d1, d2)) / m
                    z2, v2 = z + 0.5 * h * v, v + 0.5 * h * a1
                    a2 = (u[row, 1] - c * v2 - spring(z2, k0, k1, k2, d1, d2)) / m
                    z3, v3 = z + 0.5 * h * v2, v + 0.5 * h * a2
                    a3 = (u[row, 1] - c * v3 - spring(z3, k0, k1, k2, d1, d2)) / m
                    z4, v4 = z + h * v3, v + h * a3
                    a4 = (u[row, 2] - c * v4 - spring(z4, k0, k1, k2, d1, d2)) / m
                    z, v = z + h / 6 * (v + 2 * v2 + 2 * v3 + v4), v + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
                    row += 1
            error = (at[t] - c * v - spring(z, k0, k1, k2, d1, d2)) / m - y[t]
            total += error * error
        out[b] = total
    return out


def best(function: Any) -> float:
    """Microseconds a simulation, the best of several calls."""
    function()
    return 1e6 * min(timeit.repeat(function, number=1, repeat=15)) / B


def main() -> None:
    data = record()
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)  # the number of steps is what is measured
        params = {name: pm.Uniform(name, *sorted((0.5 * v, 1.5 * v))) for name, v in TRUTH.items()}
        sid.ODESimulator("y", sid.models.piecewise_oscillator(3), data, params, x0=0.0, substeps=SUBSTEPS)
    distance = batch_distance(model)
    rng = np.random.default_rng(1)
    values = {name: rng.uniform(*sorted((0.5 * v, 1.5 * v)), B) for name, v in TRUTH.items()}
    results: dict[str, float] = {}
    before = sid.set_threads(1)
    for threads in (1, 2):
        sid.set_threads(threads)
        results[f"BatchDistance, {threads} thread{'s' * (threads > 1)}"] = best(lambda: distance(values, 0))
    sid.set_threads(before)
    inputs = rk4_inputs(data, SUBSTEPS)
    theta = np.stack([values[name] for name in TRUTH], axis=1)
    u, at, y = (
        np.ascontiguousarray(inputs.substeps[:, 2:]),
        np.ascontiguousarray(inputs.samples[:, 1]),
        data.output_matrix[:, 0],
    )
    h = float(inputs.substeps[0, 1])
    results["loop by hand, numba, 1 thread"] = best(lambda: by_hand(theta, h, u, at, y))
    found, expected = distance(values, 0), 100 * by_hand(theta, h, u, at, y) / T / y.var()
    apart = float(np.max(np.abs(found / expected - 1)))
    print(f"{B} trilinear oscillators, {T} samples x {SUBSTEPS} Runge-Kutta steps; microseconds each (bar: 20 on one core)")
    for name, value in results.items():
        print(f"  {name:32s} {value:7.2f}")
    print(f"  largest relative difference of the distances: {apart:.1e}")
    (RESULTS / "simulator.json").write_text(json.dumps(results | {"difference": apart}, indent=1))


if __name__ == "__main__":
    main()
