"""Prediction-error minimisation beside archimedes, in one process on the same data.

The reference page's example (a second-order oscillator, 200 samples), whose noise has no seed there, and a Duffing oscillator
of 3072 samples with four Runge-Kutta steps a sample (problem A of ``benchmarks/peers.py``). archimedes is run twice on it: as
its page says, with ``discretize``, and with the whole sample written as one scalar graph, which is the fastest way found.

archimedes steps before it looks at a measurement: ``y[k]`` comes after ``u[k]`` has acted. The same filter here has a record
with one more sample before the first, at which nothing is measured. Compilation is the first call less the second.

Run: ``uv run --extra benchmarks benchmarks/pem.py``; ``--quick`` leaves out the slow way. Without archimedes its lines are
left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import peers

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results"
#: Stop where rounding does, to compare optima; and where each package stops by default.
TIGHT = {"ftol": 1e-14, "xtol": 1e-12, "gtol": 1e-12}


def one_before(t: np.ndarray, u: np.ndarray, y: np.ndarray) -> sid.TimeSeries:
    """Record of a filter that steps first: a start at which nothing is measured, and each measurement a sample later."""
    later = np.append(t, 2 * t[-1] - t[-2])
    return sid.TimeSeries(later, np.append(u, u[-1]), np.append(np.nan, y), intersample="zoh")


def timed(function: Callable[[], Any], repeat: int = 5) -> tuple[Any, float, float]:
    """Result, seconds of a later call (the best of some), and what the first took beyond that."""
    times = []
    for _ in range(1 + repeat):
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):  # archimedes prints its iterations
            result = function()
        times.append(time.perf_counter() - start)
        if sum(times) > 60 and len(times) > 1:
            break
    return result, min(times[1:]), times[0] - min(times[1:])


def line(name: str, values: np.ndarray, objective: float, iterations: int, seconds: float, compiling: float) -> dict[str, Any]:
    """Print and keep one line."""
    numbers = " ".join(f"{v:14.8g}" for v in values)
    print(f"  {name:44s} {numbers} {objective:14.8e} {iterations:6d} {seconds:10.4f} {compiling:10.1f}", flush=True)
    return {
        "parameters": list(map(float, values)), "objective": float(objective), "iterations": iterations, "seconds": seconds,
        "compile seconds": compiling,
    }  # fmt: skip


def header(title: str, names: list[str]) -> None:
    """Print the head of a table."""
    columns = " ".join(f"{n:>14s}" for n in names)
    print(f"\n{title}\n  {'':44s} {columns} {'J':>14s} {'iter.':>6s} {'seconds':>10s} {'compile s':>10s}")


def archimedes_version() -> str | None:
    """Version of archimedes, if it is here."""
    try:
        return version("archimedes")
    except PackageNotFoundError:
        return None


# -- the example of the reference page --------------------------------------------------------------------------------


@cache
def oscillator() -> sid.System:
    """The page's equations."""
    return sid.System(
        lambda t, x, u, p: (x.v, -(p.omega_n**2) * x.z - 2 * p.zeta * p.omega_n * x.v + p.omega_n**2 * u.F),
        states=("z", "v"), inputs=("F",), params=("omega_n", "zeta"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip


@cache
def step_response(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, input and noisy output of the page's experiment (200 samples, noise of 0.01)."""
    t = np.arange(0, 10, 0.05)
    record = sid.TimeSeries(t, np.ones_like(t), None, intersample="zoh")
    z = sid.simulate(oscillator(), record, {"omega_n": 2.0, "zeta": 0.1}, x0=0.0, substeps=16)["z"].to_numpy()
    return t, np.ones_like(t), z + 0.01 * np.random.default_rng(seed).normal(size=t.size)


GUESS = {"omega_n": 2.5, "zeta": 0.5}
BOUNDS = ({"omega_n": 0.0, "zeta": 0.0}, {"omega_n": 10.0, "zeta": 1.0})
VARIANCE = 0.01**2


def reference_archimedes(**options: Any) -> tuple[np.ndarray, float, int]:
    """The page's lines."""
    import archimedes as arc
    from archimedes.observers import ExtendedKalmanFilter
    from archimedes.sysid import Timeseries, pem

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        return np.hstack([x[1], -(p["omega_n"] ** 2) * x[0] - 2 * p["zeta"] * p["omega_n"] * x[1] + p["omega_n"] ** 2 * u[0]])

    t, u, y = step_response()
    discrete = arc.discretize(dynamics, 0.05, method="rk4")
    ekf = ExtendedKalmanFilter(discrete, lambda t, x, u, p: x[0], VARIANCE * np.eye(2), VARIANCE * np.eye(1))
    data = Timeseries(ts=t, us=u[None], ys=y[None])
    result = pem(ekf, data, GUESS, x0=np.zeros(2), **options)
    return np.array([float(v) for v in result.p.values()]), float(np.mean(np.square(result.fun))), int(result.nit)


def reference_ours(
    method: Any = "lm", tolerances: Any = None, shifted: bool = True, **options: Any
) -> tuple[np.ndarray, float, int]:
    """The same in this package; or with the state at the first sample, as it was simulated."""
    t, u, y = step_response()
    record = one_before(t, u, y) if shifted else sid.TimeSeries(t, u, y, intersample="zoh")
    predictor = sid.ExtendedKalman(Q=VARIANCE, R=VARIANCE, substeps=1)
    fit = sid.fit_pem(
        oscillator(), record, GUESS, predictor=predictor, x0=0.0, optimiser=sid.Optimiser(method, tolerances), **options
    )
    return np.array(list(fit.p.values())), fit.fun, fit.nit


def reference() -> dict[str, Any]:
    """Both on the page's example."""
    header("Example of the reference page, noise with seed 0", list(GUESS))
    results = {}
    cases: list[tuple[str, Callable[[], Any]]] = [
        ("pm_sysid lm, shifted as archimedes", reference_ours),
        (
            "pm_sysid lm, its settings of archimedes",
            lambda: reference_ours(tolerances={"ftol": 1e-4, "xtol": 1e-6, "gtol": 1e-6}),
        ),
        ("pm_sysid bfgs, shifted", lambda: reference_ours("bfgs")),
        ("pm_sysid trust, shifted", lambda: reference_ours("trust")),
        ("pm_sysid lm with bounds, shifted", lambda: reference_ours(bounds=BOUNDS)),
        ("pm_sysid lm, state at the first sample", lambda: reference_ours(shifted=False)),
    ]
    if archimedes_version():
        cases += [
            ("archimedes lm, its settings", reference_archimedes),
            ("archimedes lm, tight", lambda: reference_archimedes(options=TIGHT)),
            ("archimedes lm with bounds", lambda: reference_archimedes(bounds=BOUNDS)),
        ]
    for name, function in cases:
        (values, objective, iterations), seconds, compiling = timed(function, 2)
        results[name] = line(name, values, objective, iterations, seconds, compiling)
    return results


# -- problem A --------------------------------------------------------------------------------------------------------

START = np.array([1.05, 0.9, 1.05, 0.9])  # times the true m, c, k, k3
NAMES = ["m", "c", "k", "k3"]


DUFFING = sid.models.duffing()


def duffing_ours(p: peers.Problem, method: Any = "lm", tolerances: Any = None) -> tuple[np.ndarray, float, int]:
    """EKF on four Runge-Kutta steps; the known first sample is not measured."""
    record = sid.TimeSeries(p.dt * np.arange(len(p.y)), p.u, np.append(np.nan, p.y[1:]), intersample="zoh")
    predictor = sid.ExtendedKalman(Q=np.diag((1e-5 * p.states.std(axis=0)) ** 2), R=p.noise**2, substeps=peers.SUBSTEPS)
    guess = dict(zip(NAMES, START * p.theta, strict=True))
    start, optimiser = sid.InitialState(0.0, P0=0.0), sid.Optimiser(method, tolerances)
    fit = sid.fit_pem(DUFFING, record, guess, predictor=predictor, x0=start, optimiser=optimiser)
    return fit.x, fit.fun, fit.nit


def duffing_archimedes(p: peers.Problem, by_hand: bool, **options: Any) -> tuple[np.ndarray, float, int]:
    """The same, with a sample as one graph of scalars, or by ``discretize``."""
    import archimedes as arc
    from archimedes.observers import ExtendedKalmanFilter
    from archimedes.sysid import Timeseries, pem

    def step(t: Any, x: Any, u: Any, theta: Any) -> Any:
        q, z, v = (*(theta[i] for i in range(4)), u[0]), x[0], x[1]
        for _ in range(peers.SUBSTEPS):
            z, v = peers.rk4(peers.accel, q, z, v, p.dt / peers.SUBSTEPS)
        return np.hstack([z, v])

    def slope(t: Any, x: Any, u: Any, theta: Any) -> Any:
        return np.hstack([x[1], peers.accel((*(theta[i] for i in range(4)), u[0]), x[0], x[1])])

    if by_hand:
        dynamics = arc.compile(step, kind="SX")
    else:
        dynamics = arc.discretize(slope, p.dt, method="rk4", n_steps=peers.SUBSTEPS)
    observe = arc.compile(lambda t, x, u, theta: x[:1], kind="SX", name="observe")
    ekf = ExtendedKalmanFilter(dynamics, observe, np.diag((1e-5 * p.states.std(axis=0)) ** 2), np.array([[p.noise**2]]))
    data = Timeseries(ts=p.dt * np.arange(1, len(p.y)), us=p.u[None, :-1], ys=p.y[None, 1:])
    result = pem(ekf, data, START * p.theta, x0=p.x0, P0=np.zeros((2, 2)), **options)
    return np.asarray(result.p), float(np.mean(np.square(result.fun))), int(result.nit)


def duffing(quick: bool) -> dict[str, Any]:
    """Both on problem A."""
    p = peers.problem()
    header("Duffing oscillator, T = 3072, Runge-Kutta x4", NAMES)
    results = {}
    cases: list[tuple[str, Callable[[], Any], int]] = [
        ("pm_sysid lm", lambda: duffing_ours(p), 20),
        (
            "pm_sysid lm, its settings of archimedes",
            lambda: duffing_ours(p, tolerances={"ftol": 1e-4, "xtol": 1e-6, "gtol": 1e-6}),
            20,
        ),
        ("pm_sysid bfgs", lambda: duffing_ours(p, method="bfgs"), 10),
        ("pm_sysid trust", lambda: duffing_ours(p, method="trust"), 20),
    ]
    if archimedes_version():
        cases.append(("archimedes lm, one graph, its settings", lambda: duffing_archimedes(p, True), 2))
        cases.append(("archimedes lm, one graph, tight", lambda: duffing_archimedes(p, True, options=TIGHT), 1))
        if not quick:
            cases.append(("archimedes lm, discretize, its settings", lambda: duffing_archimedes(p, False), 1))
    for name, function, repeat in cases:
        (values, objective, iterations), seconds, compiling = timed(function, repeat)
        results[name] = line(name, values, objective, iterations, seconds, compiling)
    ours = results["pm_sysid lm"]
    for name, row in results.items():
        if name.startswith("archimedes"):
            apart = np.max(np.abs(np.array(row["parameters"]) / ours["parameters"] - 1))
            row |= {"apart": float(apart), "ratio": row["seconds"] / ours["seconds"]}
            print(f"  {name}: largest relative difference {apart:.1e}, {row['ratio']:.0f} times the seconds of pm_sysid lm")
    return results


def main() -> None:
    """Print the tables and save them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(f"archimedes {archimedes_version() or 'is not installed: its lines are left out'}")
    results = {"archimedes": archimedes_version(), "reference": reference(), "duffing": duffing(options.quick)}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "pem.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
