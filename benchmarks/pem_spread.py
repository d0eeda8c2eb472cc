"""Can a fit be believed? `fit_pem` as a newcomer calls it, over seeded records, from wrong guesses, and on two tanks.

- ``spread``: 1000 records of the kind of ``examples/quickstart.py``, from a rough guess and from a bad one; nothing but system,
  record and guess is given. Counted are fits with ``success`` and a parameter more than four standard errors off; the errors
  over their standard errors should spread by one (over 1000 records, by 0.96 to 1.04 with a chance of 95 %). Validation: the
  same model on another record, whose initial state is estimated.
- ``prior``: records of 4 s with parameters drawn from a prior, each fitted from the middle of that prior, without bounds: 2000
  by one search, and those that it missed, and 500 others, as by default.
- ``sign``: 200 records of an oscillator whose sensor is nearly even (the square of the position, and a little of it), with the
  force's factor guessed with the right sign and with the wrong one, which has an optimum of its own.
- ``weak``: 100 records each of a first-order lag that is seen for half of its time constant, and for five, and of
  Michaelis-Menten's law below its constant: the errors of what a record hardly tells are not symmetric.
- ``equal``: 40 records each of a drug in two compartments and of a motor, from a guess near another solution that fits exactly
  as well; of a swing from a guess near an alias of its speed; and of short epidemics, in which errors are far from symmetric.
- ``rugged``: 100 records each of two rates of a drug that may be exchanged (its volume is unknown, so that two optima are
  alike), of a spring that is a sine of the position, of three seconds of Lorenz's equations, whose free runs have very many
  optima, and of a dead zone, whose errors have ripples; a fit that is right counts as such whether it is sure or not.
- ``proportional``: 200 records each of a decay (60 samples, and 20) and of an oscillator, ringing and forced, with white noise
  of 10 % of the reading, and, for the last of these, with such noise that is correlated from sample to sample.
- ``linearised``: 100 records each of a Van der Pol oscillator that is pushed at random between samples, sampled coarsely and
  finely, by an extended Kalman filter and by an unscented one.
- ``between``: 60 records each of a Duffing oscillator, sampled coarsely, whose force is held, linear or band-limited between
  the samples, fitted as each of the three. Confidently wrong is more than three standard errors off without a word.
- ``sensors``: 40 records each of an oscillator under a random force with a mean, whose sensor has an offset, a drift or a delay
  that the fit knows nothing of, or none of these. Confidently wrong is more than 3.5 standard errors off without a word.
- ``terms``: 40 records each of oscillators and a tank whose fitted equations lack a term that the true ones have, and of such
  that lack none, with white noise, correlated noise and random pushes. Confidently wrong is more than 3.5 standard errors off,
  with success and no word that the model lacks something or that errors may be too small.
- ``networks``: 40 records each of two bodies that exchange heat, right, with a leak that the fit knows nothing of, and with a
  drift of both sensors; and of a motor with dry friction, right, whose voltage is measured as 1.1 of what it is, and fitted
  without the friction. Confidently wrong is more than four standard errors off with success, whatever is said.
- ``actuators``: 40 records each of a first-order lag and of an oscillator whose input goes through a dead zone, other gains to
  both sides, a preload, or acts some samples later or earlier than it is recorded, and of none of these. Confidently wrong is
  more than four standard errors off with success, whatever is said.
- ``drift``: 200 records of the quickstart's oscillator whose stiffness walks; size of the walk and value at the start are
  estimated, and the 90 % band of the filtered path should hold 90 % of its samples. Beside it the same fits without the walk.
- ``tanks``: the cascaded tanks (measured), by the plain law and by one with a smooth overflow, in one call each.
- ``cost``: evaluations and seconds with several starts and with one.

Run: ``uv run benchmarks/pem_spread.py [sections]``; ``--quick`` takes a tenth of the records. ``tanks`` and a part of ``cost``
need the measured records (``PM_SYSID_DATA``).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from scipy.signal import butter, lfilter, sosfiltfilt

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results"
TRUTH = {"m": 1.0, "c": 2.0, "k": 150.0, "k3": 3000.0}
GUESSES = {
    "rough guess": {"m": 1.2, "c": 1.0, "k": 200.0, "k3": 1500.0},
    "bad guess": {"m": 3.0, "c": 6.0, "k": 20.0, "k3": 100.0},
}
DUFFING = sid.models.duffing()


def quickstart_record(seed: int) -> sid.TimeSeries:
    """8 s at 50 Hz, a random force of 15 N, and 2 % noise on the displacement; it starts at rest, which nobody says."""
    rng, t = np.random.default_rng(seed), np.arange(400) / 50.0
    force = sosfiltfilt(butter(4, [0.2, 6.0], "bandpass", fs=50.0, output="sos"), rng.standard_normal(t.size))
    record = sid.TimeSeries(t, 15.0 * force / force.std(), None, inputs="F")
    clean = sid.simulate(DUFFING, record, TRUTH, x0=0.0, substeps=16)["y"].values
    return record.replace(y=clean + 0.02 * clean.std() * rng.standard_normal(t.size))


def scores(fit: Any, truth: dict[str, float]) -> np.ndarray:
    """Errors over their standard errors, of standard deviations in logarithms, as they are searched for."""
    at, true = [fit.names.index(name) for name in truth], np.array(list(truth.values()))
    x, errors = fit.x[at], fit.x_stderr[at]
    return np.where(fit.setup.unknowns.layout.positive[at], np.log(np.abs(x / true)) / (errors / x), (x - true) / errors)


def summary(name: str, fits: list[Any], z: np.ndarray, seconds: float) -> dict[str, Any]:
    """Print and keep a row."""
    said = np.array([f.success for f in fits])
    wrong = np.abs(z).max(axis=1) > 4
    good = z[said]
    row = {
        "records": len(fits), "said that it is not sure": int(np.sum(~said)), "confidently wrong": int(np.sum(wrong & said)),
        "said that innovations are coloured": sum("not white" in f.message for f in fits),
        "spread": np.std(good, axis=0).round(3).tolist(), "spread of all": round(float(np.sqrt(np.mean(good**2))), 3),
        "largest": round(float(np.abs(good).max()), 2), "evaluations": float(np.mean([f.nfev for f in fits])),
        "seconds": seconds / len(fits),
    }  # fmt: skip
    print(f"  {name}: {row}", flush=True)
    return row


def spread(n: int) -> dict[str, Any]:
    """Records of the quickstart."""
    print("\nRecords of the quickstart's kind, nothing given but system, record and guess")
    records = [quickstart_record(seed) for seed in range(n)]
    validation = quickstart_record(10_000)
    results = {}
    for name, guess in GUESSES.items():
        start = time.perf_counter()
        fits = [sid.fit_pem(DUFFING, r, guess) for r in records]
        seconds = time.perf_counter() - start
        results[name] = summary(name, fits, np.array([scores(f, TRUTH) for f in fits]), seconds)
        percent = [float(sid.compare_fits(f, validation).table.iloc[0, 0]) for f in fits[: max(n // 50, 2)]]
        results[name]["validation"] = [min(percent), max(percent)]
        print(f"    fit on a new record, its initial state estimated: {min(percent):.1f} to {max(percent):.1f} %")
    former = {"x0": sid.InitialState(estimate=False), "starts": 1}
    for name, options in (("start read off, one start (formerly the default)", former), ("one start", {"starts": 1})):
        start = time.perf_counter()
        fits = [sid.fit_pem(DUFFING, r, GUESSES["rough guess"], **options) for r in records]
        seconds = time.perf_counter() - start
        results[name] = summary(name, fits, np.array([scores(f, TRUTH) for f in fits]), seconds)
    return results


def prior(n: int) -> dict[str, Any]:
    """Short records with parameters from a prior, as in ``benchmarks/calibration.py``."""
    print("\nRecords of 4 s with parameters from a prior, fitted from its middle")
    rng, t = np.random.default_rng(1), 0.05 * np.arange(80)
    tones = zip(np.linspace(0.3, 2.5, 8), rng.uniform(0, 6.28, 8), strict=True)
    record = sid.TimeSeries(t, 3.0 * sum(np.sin(2 * np.pi * f * t + a) for f, a in tones), None)
    middle, widths = {"c": 1.0, "k": 100.0, "k3": 2000.0}, np.array([0.3, 0.2, 0.3])
    results, rng = {}, np.random.default_rng(2)
    centre = np.array(list(middle.values()))
    drawn = [dict(zip(middle, centre * np.exp(widths * rng.normal(size=3)), strict=True)) for _ in range(4 * n)]
    runs = [sid.simulate(DUFFING, record, {"m": 1.0, **p}, x0=0.0, substeps=32)["y"].values for p in drawn]
    records = [record.replace(y=y + 0.01 * rng.standard_normal(t.size)) for y in runs]

    def run(name: str, which: Sequence[int], **options: Any) -> np.ndarray:
        start = time.perf_counter()
        fits = [sid.fit_pem(DUFFING, records[i], middle, fixed={"m": 1.0}, **options) for i in which]
        z = np.array([scores(f, drawn[i]) for f, i in zip(fits, which, strict=True)])
        results[name] = summary(name, fits, z, time.perf_counter() - start)
        return np.flatnonzero(np.abs(z).max(axis=1) > 4)

    wrong = run("at rest, one start", range(4 * n), x0=0.0, starts=1)
    if wrong.size:
        run("at rest, those that one start missed", wrong.tolist(), x0=0.0)
    run("at rest", range(n), x0=0.0)
    run("start estimated", range(n))
    return results


def sign(n: int) -> dict[str, Any]:
    """A factor that is guessed with the wrong sign."""
    print("\nRecords of 30 s of an oscillator with a sensor that is nearly even")
    system = sid.System(
        lambda t, x, u, p: (x.v, p.b * u.F - p.c * x.v - p.k * x.z), states=("z", "v"), inputs=("F",), params=("c", "k", "b"),
        observe=lambda t, x, dx, u, p: x.z**2 + 0.05 * x.z,
    )  # fmt: skip
    truth, t, records = {"c": 0.4, "k": 4.0, "b": 1.0}, 0.1 * np.arange(300), []
    for seed in range(n):
        rng = np.random.default_rng(seed)
        record = sid.TimeSeries(t, 3 * np.convolve(rng.normal(size=300), np.ones(5) / 5, "same"), None, inputs="F")
        y = sid.simulate(system, record, truth, x0=0.0, substeps=8)["y"].values
        records.append(record.replace(y=y + 0.02 * np.std(y) * rng.normal(size=300)))
    results = {}
    for words, factor in (("right", 0.7), ("wrong", -0.7)):
        for state, options in (("at rest", {"x0": 0.0}), ("start estimated", {})):
            start = time.perf_counter()
            fits = [sid.fit_pem(system, r, {"c": 0.3, "k": 3.0, "b": factor}, **options) for r in records]
            z = np.array([scores(f, truth) for f in fits])
            results[f"{words} sign, {state}"] = summary(f"{words} sign, {state}", fits, z, time.perf_counter() - start)
    return results


def weak(n: int) -> dict[str, Any]:
    """Unknowns of which a record says little."""
    print("\nRecords that say little of the unknowns")
    lag = sid.System(
        lambda t, x, u, p: (p.K * u.u - x.T) / p.tau, states=("T",), inputs=("u",), params=("K", "tau"),
        observe=lambda t, x, dx, u, p: x.T,
    )  # fmt: skip
    enzyme = sid.System(
        lambda t, x, u, p: -p.V * x.S / (p.Km + x.S), states=("S",), params=("V", "Km"), observe=lambda t, x, dx, u, p: x.S
    )
    cases: dict[str, tuple[Any, ...]] = {
        f"lag, {len(t)} s, noise {noise}": (
            lag, sid.TimeSeries(t, np.ones(len(t)), None), {"K": 10.0, "tau": 120.0}, {"K": 5.0, "tau": 50.0}, 0.0, noise
        )
        for t, noise in ((np.arange(60.0), 0.6), (np.arange(60.0), 1.0), (np.arange(600.0), 1.0))
    }  # fmt: skip
    record = sid.TimeSeries(0.2 * np.arange(31), None, None)
    cases["Michaelis-Menten, noise 0.1"] = enzyme, record, {"V": 1.0, "Km": 5.0}, {"V": 0.5, "Km": 1.0}, 3.0, 0.1
    results = {}
    for name, (system, record, truth, guess, x0, noise) in cases.items():
        clean, start = sid.simulate(system, record, truth, x0=x0, substeps=8)["y"].values, time.perf_counter()
        noisy = [clean + noise * np.random.default_rng(seed).standard_normal(len(clean)) for seed in range(n)]
        fits = [sid.fit_pem(system, record.replace(y=y), guess, x0=x0) for y in noisy]
        z = np.array([scores(f, truth) for f in fits])
        said = np.array([f.success for f in fits])
        results[name] = {
            "records": n, "said that it is not sure": int(np.sum(~said)), "seconds": (time.perf_counter() - start) / n,
            "confidently wrong": int(np.sum((np.abs(z).max(axis=1) > 4) & said)),
            "more than four errors off": int(np.sum(np.abs(z).max(axis=1) > 4)),
        }  # fmt: skip
        print(f"  {name}: {results[name]}", flush=True)
    return results


def equal(n: int) -> dict[str, Any]:
    """Guesses near an optimum that is exactly as good as the true one; and short epidemics, whose valleys are bent."""
    print("\nAnother optimum is exactly as good, and the guess is nearer to it; valleys that are bent")
    drug = sid.System(
        lambda t, x, u, p: (
            -p.ka * x.gut, p.ka * x.gut - (p.k10 + p.k12) * x.blood + p.k21 * x.rest, p.k12 * x.blood - p.k21 * x.rest
        ),
        states=("gut", "blood", "rest"), params=("ka", "k10", "k12", "k21", "V"), observe=lambda t, x, dx, u, p: x.blood / p.V,
    )  # fmt: skip
    motor = sid.System(
        lambda t, x, u, p: ((u.V - x.i - 0.05 * x.w) / p.L, (0.05 * x.i - p.b * x.w) / p.J), states=("i", "w"), inputs=("V",),
        params=("L", "J", "b"), observe=lambda t, x, dx, u, p: x.w,
    )  # fmt: skip
    swing = sid.System(
        lambda t, x, u, p: (x.v, -(p.w**2) * x.z - p.c * x.v), states=("z", "v"), params=("w", "c"),
        observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    epidemic = sid.System(
        lambda t, x, u, p: (-p.b * x.S * x.I, p.b * x.S * x.I - p.g * x.I), states=("S", "I"), params=("b", "g", "rho"),
        observe=lambda t, x, dx, u, p: p.rho * x.I,
    )  # fmt: skip
    chain = sid.System(
        lambda t, x, u, p: (x.v1, x.v2, (-p.k1 * x.x1 - p.k2 * (x.x1 - x.x2)) / p.m1, u.F - p.k2 * (x.x2 - x.x1)),
        states=("x1", "x2", "v1", "v2"), inputs=("F",), params=("k1", "k2", "m1"), observe=lambda t, x, dx, u, p: x.x1,
    )  # fmt: skip
    doses = sid.TimeSeries(np.concatenate([[0.0], np.geomspace(0.1, 48, 40)]), None, None)
    t = 0.02 * np.arange(400)
    steps = sid.TimeSeries(t, np.repeat(12.0 * np.random.default_rng(0).choice([-1, 1], 20), 20), None, intersample="zoh")
    whole, infected = {"S": 0.99, "I": 0.01}, sid.InitialState({"S": 0.99, "I": 0.01}, estimate=("I",))
    t = 0.05 * np.arange(300)
    pushes = sid.TimeSeries(t, np.repeat(np.random.default_rng(0).normal(size=30), 10), None, intersample="zoh")
    rates, far = {"b": 0.6, "g": 0.25, "rho": 300.0}, {"b": 0.9, "g": 0.4, "rho": 500.0}
    given = {"gut": 100.0, "blood": 0.0, "rest": 0.0}
    cases: dict[str, tuple[Any, ...]] = {
        "drug": (
            drug, doses, {"ka": 1.2, "k10": 0.3, "k12": 0.3, "k21": 0.15, "V": 10.0},
            {"ka": 0.4, "k10": 1.0, "k12": 0.3, "k21": 0.3, "V": 5.0}, given, {"x0": given}, 0.01,
        ),
        "motor": (
            motor, steps, {"L": 0.1, "J": 0.01, "b": 0.02}, {"L": 0.4, "J": 0.003, "b": 0.01}, 0.0, {"x0": 0.0}, 0.2
        ),
        "alias": (
            swing, sid.TimeSeries(0.5 * np.arange(60), None, None), {"w": 9.0, "c": 0.05}, {"w": 4.5, "c": 0.1}, [1.0, 0.0], {},
            0.05,
        ),
        # The other solution has k2 = k1 / m1; without damping each has a narrow optimum.
        "chain without damping": (
            chain, pushes, {"k1": 20.0, "k2": 30.0, "m1": 1.0}, {"k1": 20.0, "k2": 21.0, "m1": 0.7}, 0.0, {"x0": 0.0}, 0.005
        ),
    }  # fmt: skip
    for samples in (15, 18):
        record = sid.TimeSeries(np.arange(float(samples)), None, None)
        cases[f"epidemic, {samples} samples"] = epidemic, record, rates, far, whole, {"x0": infected}, 2.0
    results = {}
    for name, (system, record, truth, guess, x0, options, noise) in cases.items():
        clean, start = sid.simulate(system, record, truth, x0=x0, substeps=32)[system.outputs[0]].values, time.perf_counter()
        noisy = [clean + noise * np.random.default_rng(seed).standard_normal(len(clean)) for seed in range(n)]
        fits = [sid.fit_pem(system, record.replace(y=y), guess, **options) for y in noisy]
        z = np.array([scores(f, truth) for f in fits])
        sure, off = np.array([f.success for f in fits]), np.abs(z).max(axis=1) > 4
        alias = np.array(["alias" in f.message for f in fits])
        results[name] = {
            "records": n, "said that it is not sure": int(np.sum(~sure)), "seconds": (time.perf_counter() - start) / n,
            "confidently wrong": int(np.sum(off & sure & ~alias)), "more than four errors off": int(np.sum(off)),
            "alias said": int(np.sum(alias)),
        }  # fmt: skip
        print(f"  {name}: {results[name]}", flush=True)
    return results


def exchanged_rates(seed: int) -> tuple[sid.System, sid.TimeSeries, dict[str, float], dict[str, Any]]:
    """Uptake and loss of a drug, of an unknown volume."""
    system = sid.System(
        lambda t, x, u, p: (-p.k1 * x.g, p.k1 * x.g - p.k2 * x.c), states=("g", "c"), params=("k1", "k2", "V"),
        observe=lambda t, x, dx, u, p: x.c / p.V,
    )  # fmt: skip
    return system, sid.TimeSeries(np.linspace(0, 10, 25), None, None), {"k1": 1.5, "k2": 0.3, "V": 2.0}, {"x0": [1.0, 0.0]}


def sine_spring(seed: int) -> tuple[sid.System, sid.TimeSeries, dict[str, float], dict[str, Any]]:
    """A spring that is a sine of the position; the motion crosses several of its periods."""
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * pt.sin(p.n * x.z)), states=("z", "v"), inputs=("F",),
        params=("c", "k", "n"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    t = np.linspace(0, 15, 150)
    record = sid.TimeSeries(t, 2 * np.sin(0.7 * t) + np.sin(1.9 * t + seed), None, inputs="F")
    return system, record, {"c": 0.4, "k": 2.0, "n": 3.0}, {}


def lorenz(seed: int) -> tuple[sid.System, sid.TimeSeries, dict[str, float], dict[str, Any]]:
    """Three seconds of Lorenz's equations, of which one state is measured."""
    system = sid.System(
        lambda t, x, u, p: (p.s * (x.y - x.x), x.x * (p.r - x.z) - x.y, x.x * x.y - p.b * x.z), states=("x", "y", "z"),
        params=("s", "r", "b"), observe=lambda t, x, dx, u, p: x.x,
    )  # fmt: skip
    record, truth = sid.TimeSeries(0.02 * np.arange(150), None, None), {"s": 10.0, "r": 28.0, "b": 8 / 3}
    return system, record, truth, {}


def dead_zone(seed: int) -> tuple[sid.System, sid.TimeSeries, dict[str, float], dict[str, Any]]:
    """A spring with a dead zone of unknown width."""
    system = sid.System(
        lambda t, x, u, p: (
            x.v, 5 * u.F - p.c * x.v - p.k * pt.switch(pt.abs(x.z) > p.d, x.z - p.d * pt.sign(x.z), 0.0)
        ),
        states=("z", "v"), inputs=("F",), params=("k", "d", "c"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    force = np.repeat(np.random.default_rng(1000 + seed).standard_normal(50), 6)
    record = sid.TimeSeries(0.05 * np.arange(300), force, None, inputs="F", intersample="zoh")
    return system, record, {"k": 100.0, "d": 0.1, "c": 1.0}, {}


def rugged(n: int) -> dict[str, Any]:
    """Errors with many optima, or with two that are alike."""
    print("\nRecords whose errors have many optima, or two that are alike")
    cases: tuple[tuple[Any, dict[str, float], Any, int], ...] = (
        (exchanged_rates, {"k1": 0.2, "k2": 1.0, "V": 1.0}, [1.0, 0.0], 16),
        (sine_spring, {"c": 1.0, "k": 1.0, "n": 1.0}, 0.0, 16),
        (lorenz, {"s": 8.0, "r": 25.0, "b": 2.0}, [1.0, 2.0, 20.0], 16),
        (dead_zone, {"k": 60.0, "d": 0.05, "c": 0.5}, 0.0, 512),
    )
    results = {}
    for make, guess, x0, substeps in cases:
        fits, truth, start = [], {}, time.perf_counter()
        for seed in range(n):
            system, record, truth, options = make(seed)
            y, rng = sid.simulate(system, record, truth, x0=x0, substeps=substeps)["y"].to_numpy(), np.random.default_rng(seed)
            noisy = record.replace(y=y + 0.02 * y.std() * rng.standard_normal(len(y)))
            fits.append(sid.fit_pem(system, noisy, guess, random_seed=seed, **options))
        right = np.array([np.abs(scores(f, truth)).max() < 4 for f in fits])
        said = np.array([not f.success for f in fits])
        name = (make.__doc__ or "").strip(".")
        results[name] = {
            "records": n, "right": int(np.sum(right)), "said that it is not sure": int(np.sum(said)),
            "confidently wrong": int(np.sum(~right & ~said)), "evaluations": float(np.mean([f.nfev for f in fits])),
            "seconds": (time.perf_counter() - start) / n,
        }  # fmt: skip
        print(f"  {name}: {results[name]}", flush=True)
    return results


def proportional(n: int) -> dict[str, Any]:
    """White noise in proportion to the reading."""
    print("\nRecords with noise of 10 % of the reading")
    decay = sid.System(
        lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k", "a"), observe=lambda t, x, dx, u, p: p.a * x.z
    )
    oscillator = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z), states=("z", "v"), inputs=("F",), params=("c", "k"),
        observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    t = 0.1 * np.arange(300)
    every, hits = np.arange(0.0, t[-1] + 0.5, 0.5), np.random.default_rng(0)
    forced = sid.TimeSeries(t, np.interp(t, every, hits.standard_normal(every.size)), None, inputs="F", intersample="foh")
    ringing = sid.TimeSeries(t[:200], np.zeros(200), None, inputs="F")
    rates, constants = {"k": 0.8, "a": 10.0}, {"c": 0.4, "k": 4.0}
    of_decay, of_oscillator = {"k": 1.0, "a": 8.0}, {"c": 0.5, "k": 3.5}
    cases: dict[str, tuple[Any, ...]] = {
        f"decay, {m} samples": (decay, sid.TimeSeries(np.linspace(0, 5, m), None, None), rates, of_decay, 1.0, 1.0, 0.0)
        for m in (60, 20)
    } | {
        "ringing oscillator": (oscillator, ringing, constants, of_oscillator, [1.0, 0.0], None, 0.0),
        "forced oscillator": (oscillator, forced, constants, of_oscillator, 0.0, 0.0, 0.0),
        "forced oscillator, noise correlated by 0.5": (oscillator, forced, constants, of_oscillator, 0.0, 0.0, 0.5),
    }
    results = {}
    for name, (system, record, truth, guess, start, x0, a) in cases.items():
        clean, began, fits = sid.simulate(system, record, truth, x0=start, substeps=8)["y"].to_numpy(), time.perf_counter(), []
        for seed in range(n):
            noise = np.random.default_rng(seed).standard_normal(len(clean))
            noise = lfilter([np.sqrt(1 - a**2)], [1.0, -a], noise)
            fits.append(sid.fit_pem(system, record.replace(y=clean * (1 + 0.1 * noise)), guess, x0=x0, progressbar=False))
        results[name] = summary(name, fits, np.array([scores(f, truth) for f in fits]), time.perf_counter() - began)
    return results


def pushed(n: int, dt: float, T: int = 400) -> list[sid.TimeSeries]:
    """Records of a Van der Pol oscillator whose velocity gets a random push in each sampling interval."""
    rng, t = np.random.default_rng(0), dt * np.arange(T)
    force, fine = np.sin(0.6 * t) + 0.7 * np.sin(1.3 * t + 1.0), 16
    x, z = np.stack([0.5 + 0.3 * rng.standard_normal(n), np.zeros(n)]), np.empty((T, n))

    def rate(u: float, x: np.ndarray) -> np.ndarray:
        return np.stack([x[1], 1.5 * (1 - x[0] ** 2) * x[1] - 2.0 * x[0] + u])

    for i in range(T):
        z[i] = x[0]
        u = np.interp(np.arange(2 * fine + 1) / (2 * fine), [0, 1], force[i : i + 2]) if i + 1 < T else []
        for j in range(0, len(u) - 1, 2):  # classical Runge-Kutta steps
            h = dt / fine
            a = rate(u[j], x)
            b = rate(u[j + 1], x + h / 2 * a)
            c = rate(u[j + 1], x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + rate(u[j + 2], x + h * c))
        x[1] += 0.5 * np.sqrt(dt / 0.3) * rng.standard_normal(n)
    y = z + 0.2 * rng.standard_normal(z.shape)
    return [sid.TimeSeries(t, force, y[:, k], inputs="F", intersample="foh") for k in range(n)]


def linearised(n: int) -> dict[str, Any]:
    """Process noise in a strongly nonlinear system."""
    print("\nRecords of a Van der Pol oscillator that is pushed at random")
    system = sid.System(
        lambda t, x, u, p: (x.v, p.mu * (1 - x.z**2) * x.v - p.k * x.z + u.F), states=("z", "v"), inputs=("F",),
        params=("mu", "k"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    results, guess = {}, {"mu": 1.0, "k": 2.5, "q": 0.3, "r": 0.1}
    for dt in (0.3, 0.1):
        truth = {"mu": 1.5, "k": 2.0, "q": 0.5 * np.sqrt(dt / 0.3), "r": 0.2}
        records = pushed(n, dt)
        for kind in (sid.ExtendedKalman, sid.UnscentedKalman):
            began, predictor = time.perf_counter(), kind(Q={"v": "q"}, R={"y": "r"})
            options: dict[str, Any] = {"predictor": predictor, "objective": "likelihood", "progressbar": False}
            fits = [sid.fit_pem(system, record, guess, **options) for record in records]
            name = f"a sample each {dt} s, {kind.__name__}"
            z = np.array([scores(f, truth) for f in fits])
            results[name] = summary(name, fits, z, time.perf_counter() - began)
            said = sum("The filter linearises" in f.message for f in fits)
            print(f"    said what linearising costs: {said}; mean of z: {z.mean(axis=0).round(2)}", flush=True)
            results[name] |= {"said what linearising costs": said, "mean": z.mean(axis=0).round(3).tolist()}
    return results


def between(n: int) -> dict[str, Any]:
    """What moves between the samples otherwise than the fit was told."""
    print("\nRecords of a Duffing oscillator: the force between samples as it was, and as the fit was told")
    truth, guess = {"m": 1.0, "c": 0.3, "k": 2.0, "k3": 1.0}, {"m": 1.2, "c": 0.2, "k": 3.0, "k3": 0.5}
    t, results = 0.25 * np.arange(150), {}
    kinds: tuple[Any, ...] = ("zoh", "foh", "bl")
    for true in kinds:
        records = []
        for seed in range(n):
            rng = np.random.default_rng(seed)
            force = sosfiltfilt(butter(4, 0.6, output="sos"), rng.standard_normal(t.size))
            record = sid.TimeSeries(t, 2.0 * force / force.std(), None, inputs="F", intersample=true)
            y = sid.simulate(DUFFING, record, truth, x0=0.0, substeps=16)["y"].to_numpy()
            records.append(record.replace(y=y + 0.03 * y.std() * rng.standard_normal(t.size)))
        for told in kinds:
            start = time.perf_counter()
            fits = [sid.fit_pem(DUFFING, r.replace(intersample=told), guess, progressbar=False) for r in records]
            z = np.array([np.abs(scores(f, truth)).max() for f in fits])
            said, sure = np.array(["between the samples" in f.message for f in fits]), np.array([f.success for f in fits])
            named = [f"intersample='{true}' explains" in f.message for f in fits]
            name = f"force {true}, told {told}"
            results[name] = {
                "records": n, "more than three errors off": int(np.sum(z > 3)),
                "confidently wrong": int(np.sum((z > 3) & sure & ~said)), "said that it is not sure": int(np.sum(~sure)),
                "named what is true": int(np.sum(named)), "said anything of it": int(np.sum(said)),
                "median of the largest": float(np.median(z)), "seconds": (time.perf_counter() - start) / n,
            }  # fmt: skip
            print(f"  {name}: {results[name]}", flush=True)
    return results


def sensors(n: int) -> dict[str, Any]:
    """Faults of a sensor."""
    print("\nRecords of an oscillator whose sensor has a fault")
    truth, guess, t = {"m": 1.0, "c": 1.0, "k": 150.0}, {"m": 1.5, "c": 0.6, "k": 220.0}, np.arange(300) / 50.0
    line, results = t / t[-1] - 0.5, {}
    cases: tuple[tuple[str, Any, float, int], ...] = (  # what is added, in standard deviations of the output; noise; delay
        ("no fault", 0.0, 0.2, 0), ("an offset of 0.2 sd, noise 0.2 sd", 0.2, 0.2, 0),
        ("an offset of 0.3 sd, noise 0.3 sd", 0.3, 0.3, 0), ("an offset of 0.02 sd, noise 0.02 sd", 0.02, 0.02, 0),
        ("a drift of 0.6 sd, noise 0.2 sd", 0.6 * line, 0.2, 0), ("a delay of 6 ms, noise 0.05 sd", 0.0, 0.05, 3),
        ("a delay of 2 ms, noise 0.02 sd", 0.0, 0.02, 1), ("a delay of a sample, noise 0.1 sd", 0.0, 0.1, 10),
        ("a sample is repeated, the rest is late, noise 0.1 sd", 0.0, 0.1, 0),
        ("eight samples are alike, noise 0.1 sd", 0.0, 0.1, 0), ("cut at 0.8 of the largest, noise 0.1 sd", 0.0, 0.1, 0),
    )  # fmt: skip
    for name, added, noise, late in cases:
        start, fits = time.perf_counter(), []
        for seed in range(n):
            rng = np.random.default_rng(seed)
            force = 20.0 * np.convolve(rng.standard_normal(t.size + 4), np.ones(5) / 5, "valid") + 5.0
            record = sid.TimeSeries(t, force, None, inputs="F", intersample="foh")
            fine = np.arange(10 * (t.size - 1) + 1) / 500.0
            at = record.replace(t=fine, u=np.interp(fine, t, force))
            z = sid.simulate(DUFFING, at, truth | {"k3": 0.0}, x0=0.0, substeps=2)["y"].to_numpy()
            y = z[np.maximum(10 * np.arange(t.size) - late, 0)]
            noisy = y + y.std() * (added + noise * rng.standard_normal(t.size))
            if "repeated" in name:
                noisy[101:] = noisy[100:-1].copy()
            elif "alike" in name:
                noisy[100:108] = noisy[100]
            elif "cut" in name:
                noisy = np.minimum(noisy, 0.8 * noisy.max())
            options: dict[str, Any] = {"fixed": {"k3": 0.0}, "random_seed": seed, "progressbar": False}
            fits.append(sid.fit_pem(DUFFING, record.replace(y=noisy), guess, **options))
        z = np.array([np.abs(scores(f, truth)).max() for f in fits])
        shown, sure = np.array(["which the model lacks" in f.message for f in fits]), np.array([f.success for f in fits])
        words = ("between the samples", "not white", "the same value", "exactly its")
        said = shown | np.array([any(w in f.message for w in words) for f in fits])
        results[name] = {
            "records": n, "more than 3.5 errors off": int(np.sum(z > 3.5)),
            "confidently wrong": int(np.sum((z > 3.5) & sure & ~said)), "off, and a success": int(np.sum((z > 3.5) & sure)),
            "said that it is not sure": int(np.sum(~sure)), "fault said": int(np.sum(shown)),
            "median of the largest": float(np.median(z)), "seconds": (time.perf_counter() - start) / n,
        }  # fmt: skip
        print(f"  {name}: {results[name]}", flush=True)
    return results


def oscillator(*terms: str) -> sid.System:
    """With a linear spring and damping, and other terms of the rate of change of its velocity, each with a factor."""
    known: dict[str, Callable[[Any, Any], Any]] = {
        "friction": lambda x, F: -pt.tanh(x.v / 0.02), "drag": lambda x, F: -x.v * abs(x.v),
        "hardening": lambda x, F: -(x.z**3), "softening": lambda x, F: -x.z * abs(x.z),
        "self-excited": lambda x, F: -(x.z**2) * x.v, "saturated": lambda x, F: 2.5 * pt.clip(F / 2.5, -1.0, 1.0) - F,
    }  # fmt: skip
    return sid.System(
        lambda t, x, u, p: (
            x.v,
            u.F - p.c * x.v - p.k * x.z + sum(getattr(p, name.replace("-", "_")) * known[name](x, u.F) for name in terms),
        ),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k", *(name.replace("-", "_") for name in terms)),
        observe=lambda t, x, dx, u, p: x.z,
    )


def tank(power: float) -> sid.System:
    """A tank that empties by a power of its level."""
    return sid.System(
        lambda t, x, u, p: p.b * u.q - p.a * pt.maximum(x.h, 1e-3) ** power,
        states=("h",),
        inputs=("q",),
        params=("a", "b"),
        observe=lambda t, x, dx, u, p: x.h,
    )


def terms(n: int) -> dict[str, Any]:
    """Terms that the equations lack."""
    print("\nRecords of systems whose fitted equations lack a term, or lack none")
    spring, t, results = {"c": 0.3, "k": 4.0}, 0.2 * np.arange(200), {}
    cases: tuple[tuple[str, dict[str, float], tuple[str, ...], str, dict[str, Any]], ...] = (
        ("dry friction of 3 % of the force", {"friction": 0.06}, (), "sign(v)", {}),
        ("dry friction of 5 % of the force, noise 10 %", {"friction": 0.1}, (), "sign(v)", {"noise": 0.1}),
        ("dry friction of 5 % beside a hardening spring", {"friction": 0.1, "hardening": 0.5}, ("hardening",), "sign(v)", {}),
        ("quadratic drag", {"drag": 0.1}, (), "v |v|", {}), ("a hardening spring", {"hardening": 0.1}, (), "z^3", {}),
        ("a softening spring", {"softening": -0.2}, (), "z |z|", {}),
        ("damping by z^2 v", {"self-excited": 0.1}, (), "z^2 v", {}),
        ("a force that saturates", {"saturated": 1.0}, (), "clip(F", {}),
        ("nothing", {}, (), "", {}), ("nothing, noise 10 %, 60 samples", {}, (), "", {"noise": 0.1, "T": 60}),
        ("nothing, beside friction and hardening", {"friction": 0.1, "hardening": 0.5}, ("friction", "hardening"), "", {}),
        ("nothing, noise correlated by 0.7", {"hardening": 0.5}, ("hardening",), "", {"ar": 0.7}),
        ("nothing, noise correlated by 0.95", {"hardening": 0.5}, ("hardening",), "", {"ar": 0.95}),
        ("nothing, pushes at random", {"hardening": 0.5}, ("hardening",), "", {"pushes": 0.1}),
        ("nothing, steps of the force", {"hardening": 0.5}, ("hardening",), "", {"steps": True}),
        ("nothing, noise of outliers", {"hardening": 0.5}, ("hardening",), "", {"outliers": True}),
    )  # fmt: skip
    for name, more, fitted, term, how in cases:
        start, fits, T = time.perf_counter(), [], how.get("T", t.size)
        true = {**spring, **{k.replace("-", "_"): v for k, v in more.items()}}
        model = oscillator(*fitted)
        truth = {k: true[k] for k in model.params}
        for seed in range(n):
            rng = np.random.default_rng(seed)
            if how.get("steps"):
                force = np.repeat(2.0 * rng.standard_normal(T // 20 + 1), 20)[:T]
            else:
                force = sosfiltfilt(butter(4, 0.5, output="sos"), 2.0 * rng.standard_normal(T))
            record = sid.TimeSeries(t[:T], force, None, inputs="F", intersample="zoh" if how.get("steps") else "foh")
            pushed = record.replace(u=force + how.get("pushes", 0.0) * force.std() * rng.standard_normal(T), intersample="zoh")
            y = sid.simulate(oscillator(*more), pushed if "pushes" in how else record, true, x0=0.0, substeps=20)[
                "y"
            ].to_numpy()
            noise = rng.standard_t(3, T) if how.get("outliers") else rng.standard_normal(T)
            if a := how.get("ar", 0.0):
                noise = lfilter([np.sqrt(1 - a**2)], [1.0, -a], noise)
            data = (pushed.replace(u=force) if "pushes" in how else record).replace(
                y=y + how.get("noise", 0.02) * y.std() * noise
            )
            fits.append(sid.fit_pem(model, data, {k: 1.3 * v for k, v in truth.items()}, progressbar=False))
        results[name] = _of_terms(fits, truth, term, (time.perf_counter() - start) / n)
        print(f"  {name}: {results[name]}", flush=True)
    start, fits, truth = time.perf_counter(), [], {"a": 0.1, "b": 0.2}
    for seed in range(n):
        rng = np.random.default_rng(seed)
        flow = np.repeat(rng.uniform(0.2, 4.0, 10), 20)
        record = sid.TimeSeries(2.0 * np.arange(200), flow, None, inputs="q", intersample="zoh")
        h = sid.simulate(tank(0.5), record, {"a": 0.2, "b": 0.2}, x0=2.0, substeps=8)["y"].to_numpy()
        data = record.replace(y=h + 0.05 * h.std() * rng.standard_normal(200))
        fits.append(sid.fit_pem(tank(1.0), data, truth, progressbar=False))
    results["a tank that empties by the root, fitted by a line"] = found = _of_terms(
        fits, {"b": 0.2}, "h^2", (time.perf_counter() - start) / n
    )
    print(f"  a tank that empties by the root, fitted by a line: {found}", flush=True)
    return results


def _of_terms(fits: list[Any], truth: dict[str, float], term: str, seconds: float) -> dict[str, Any]:
    z = np.array([np.abs(scores(f, truth)).max() for f in fits])
    sure, shown = np.array([f.success for f in fits]), np.array([" a term (" in f.message for f in fits])
    said = np.array(["the model lacks" in f.message or "errors may be too small" in f.message for f in fits])
    before = [f.message.partition("in the rate of change")[0] for f in fits]
    named = [f" {term} " in text or f"({term}" in text for text in before]
    return {
        "records": len(fits), "more than 3.5 errors off": int(np.sum(z > 3.5)),
        "confidently wrong": int(np.sum((z > 3.5) & sure & ~said)), "said that it is not sure": int(np.sum(~sure)),
        "a term said": int(np.sum(shown)), "the true one among them": int(np.sum(named & shown)) if term else 0,
        "median of the largest": float(np.median(z)), "seconds": seconds,
    }  # fmt: skip


def bodies(leak: float) -> sid.System:
    """Two bodies that exchange heat, the second with the surroundings, and the first through a leak."""
    return sid.System(
        lambda t, x, u, p: (
            (u.Q + p.g * (x.T2 - x.T1) + leak * (u.Ta - x.T1)) / p.C1,
            (p.g * (x.T1 - x.T2) + p.ga * (u.Ta - x.T2)) / p.C2,
        ),
        states=("T1", "T2"), inputs=("Q", "Ta"), params=("g", "ga", "C1", "C2"),
        observe=lambda t, x, dx, u, p: {"T1": x.T1, "T2": x.T2},
    )  # fmt: skip


def motor(dry: bool) -> sid.System:
    """Current and speed of a motor with viscous friction, and with a dry one."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        slowed = p.b * x.w + (p.d * pt.tanh(2.0 * x.w) if dry else 0.0)
        return (u.V - p.R * x.i - p.K * x.w) / 0.01, (p.K * x.i - slowed) / 0.002

    params = ("R", "K", "b", *(["d"] if dry else []))
    return sid.System(
        dynamics, states=("i", "w"), inputs=("V",), params=params, observe=lambda t, x, dx, u, p: {"i": x.i, "w": x.w}
    )


def networks(n: int) -> dict[str, Any]:
    """Systems of several outputs, whose equations, inputs or sensors are not all as the fit takes them."""
    print("\nBodies that exchange heat, and a motor")
    results = {}
    heat, electric = {"g": 2.0, "ga": 1.0, "C1": 50.0, "C2": 200.0}, {"R": 1.5, "K": 0.1, "b": 1e-3, "d": 0.02}
    cases: dict[str, dict[str, float]] = {
        "two bodies": {}, "two bodies, a leak is missing": {"leak": 0.15}, "two bodies, both sensors drift": {"drift": 0.1},
        "motor": {"gain": 1.0}, "motor, voltage times 1.1": {"gain": 1.1},
        "motor, dry friction is missing": {"gain": 1.0, "dry": False},
    }  # fmt: skip
    for name, how in cases.items():
        start, fits, truth = time.perf_counter(), [], dict(electric if "gain" in how else heat)
        for seed in range(n):
            rng = np.random.default_rng(seed)
            if "gain" in how:
                t, model, noises = 0.01 * np.arange(600), motor(bool(how.get("dry", True))), {"i": 0.03, "w": 0.5}
                inputs, x0 = {"V": np.repeat(rng.uniform(-12.0, 12.0, 30), 20)}, {"i": 0.0, "w": 0.0}
                true, guess = motor(True), {"R": 1.0, "K": 0.2, "b": 2e-3, "d": 0.01}
            else:
                t, model, noises = 5.0 * np.arange(400), bodies(0.0), {"T1": 0.05, "T2": 0.05}
                inputs, x0 = {"Q": np.repeat((rng.random(20) < 0.5) * 60.0, 20)}, {"T1": 15.0, "T2": 12.0}
                inputs["Ta"] = 10.0 + 3.0 * np.sin(2 * np.pi * t / 1700.0 + seed)
                true, guess = bodies(how.get("leak", 0.0)), {"g": 1.0, "ga": 0.5, "C1": 100.0, "C2": 100.0}
            record = sid.TimeSeries(t, inputs, None, intersample="zoh")
            run = sid.simulate(true, record, truth, x0=x0)
            y = {
                k: run[k].to_numpy() + v * rng.standard_normal(t.size) + how.get("drift", 0.0) * t / t[-1]
                for k, v in noises.items()
            }
            measured = {k: v * (how.get("gain", 1.0) if k == "V" else 1.0) for k, v in inputs.items()}
            data = sid.TimeSeries(t, measured, y, intersample="zoh")
            known = {k: v for k, v in guess.items() if k in model.params}
            fits.append(sid.fit_pem(model, data, known, progressbar=False))
        z = np.array([np.abs(scores(f, {k: v for k, v in truth.items() if k in model.params})).max() for f in fits])
        sure = np.array([f.success for f in fits])
        results[name] = {
            "records": n, "more than four errors off": int(np.sum(z > 4)), "confidently wrong": int(np.sum((z > 4) & sure)),
            "said that it is not sure": int(np.sum(~sure)), "median of the largest": float(np.median(z)),
            "seconds": (time.perf_counter() - start) / n,
        }  # fmt: skip
        print(f"  {name}: {results[name]}", flush=True)
    return results


LAG = sid.System(
    lambda t, x, u, p: p.b * u.u - p.a * x.x, states=("x",), inputs=("u",), params=("a", "b"),
    observe=lambda t, x, dx, u, p: x.x,
)  # fmt: skip
SPRING = sid.System(
    lambda t, x, u, p: (x.v, u.u - p.c * x.v - p.k * x.z), states=("z", "v"), inputs=("u",), params=("k", "c"),
    observe=lambda t, x, dx, u, p: x.z,
)  # fmt: skip
Acts = Callable[[np.ndarray], np.ndarray]


def actuators(n: int) -> dict[str, Any]:
    """What an actuator does to an input that the record has from before it."""
    print("\nRecords whose inputs are not what acts")

    def zone(half: float) -> Acts:
        return lambda u: np.sign(u) * np.maximum(np.abs(u) - half, 0.0)

    def late(d: int) -> Acts:
        return lambda u: u[np.clip(np.arange(u.size) - d, 0, u.size - 1)]

    cases: list[tuple[str, sid.System, float, Acts, str]] = []
    for half in (0.1, 0.2, 0.4):
        for noise in (0.02, 0.05, 0.2):
            cases.append((f"lag, dead zone of {half}, noise {noise}", LAG, noise, zone(half), "dead zone"))
    cases += [
        ("lag, negative side of gain 0.7, noise 0.05", LAG, 0.05, lambda u: np.where(u > 0, u, 0.7 * u), "max(u, 0)"),
        ("lag, preload of 0.2, noise 0.05", LAG, 0.05, lambda u: u + 0.2 * np.sign(u), "sign(u)"),
        ("oscillator, dead zone of 0.2, noise 0.05", SPRING, 0.05, zone(0.2), "dead zone"),
        ("lag, saturation at 0.7, noise 0.05", LAG, 0.05, lambda u: np.clip(u, -0.7, 0.7), "saturation"),
        ("lag, saturation at 0.9, noise 0.05", LAG, 0.05, lambda u: np.clip(u, -0.9, 0.9), "saturation"),
        ("oscillator, saturation at 0.9, noise 0.05", SPRING, 0.05, lambda u: np.clip(u, -0.9, 0.9), "saturation"),
        ("lag, saturation above 0.5, noise 0.05", LAG, 0.05, lambda u: np.minimum(u, 0.5), "saturation"),
        ("lag, saturation above 0.9, noise 0.05", LAG, 0.05, lambda u: np.minimum(u, 0.9), "saturation"),
        ("oscillator, saturation below -0.7, noise 0.05", SPRING, 0.05, lambda u: np.maximum(u, -0.7), "saturation"),
    ]
    for system, kind in ((LAG, "lag"), (SPRING, "oscillator")):
        cases += [(f"{kind}, {d} samples late, noise 0.05", system, 0.05, late(d), f"{abs(d)} sample") for d in (-2, 1, 3, 7)]
        cases += [(f"{kind}, nothing, noise {noise}", system, noise, late(0), "") for noise in (0.02, 0.2)]
    truths = {id(LAG): {"a": 1.0, "b": 2.0}, id(SPRING): {"k": 4.0, "c": 0.4}}
    results, t, k = {}, 0.1 * np.arange(300), np.arange(1, 41)
    for name, system, noise, acts, word in cases:
        start, fits, truth = time.perf_counter(), [], truths[id(system)]
        for seed in range(n):
            rng = np.random.default_rng(seed)
            u = 0.15 * np.cos(2 * np.pi * np.outer(t, k) / t[-1] + 2 * np.pi * rng.random(40)).sum(axis=1)
            record = sid.TimeSeries(t, acts(u), None, inputs="u", intersample="zoh")
            y = sid.simulate(system, record, truth, x0=0.0, substeps=8)["y"].to_numpy()
            data = record.replace(u=u, y=y + noise * y.std() * rng.standard_normal(300))
            fits.append(sid.fit_pem(system, data, {k: 0.7 * v for k, v in truth.items()}, progressbar=False))
        z = np.array([np.abs(scores(f, truth)).max() for f in fits])
        sure, named = np.array([f.success for f in fits]), np.array([bool(word) and word in f.message for f in fits])
        results[name] = {
            "records": n, "more than four errors off": int(np.sum(z > 4)),
            "confidently wrong": int(np.sum((z > 4) & sure)), "said that it is not sure": int(np.sum(~sure)),
            "cause named": int(np.sum(named)), "median of the largest": float(np.median(z)),
            "seconds": (time.perf_counter() - start) / n,
        }  # fmt: skip
        print(f"  {name}: {results[name]}", flush=True)
    return results


def drift(n: int) -> dict[str, Any]:
    """A stiffness that walks."""
    print("\nRecords of 20 s of an oscillator whose stiffness walks")
    scale, guess, results = 5.0, {"c": 1.0, "k": 200.0, "k3": 1500.0}, {}
    t, walk = np.arange(1000) / 50.0, {"k": sid.RandomWalk(scale=scale)}
    truth = TRUTH | {"process_k": scale * np.sqrt(t[1])}
    records, paths = [], []
    for seed in range(n):
        rng = np.random.default_rng(seed)
        force = sosfiltfilt(butter(4, [0.2, 6.0], "bandpass", fs=50.0, output="sos"), rng.standard_normal(t.size))
        record = sid.TimeSeries(t, 15.0 * force / force.std(), None, inputs="F")
        run = sid.simulate(DUFFING, record, TRUTH, x0=0.0, varying=walk, substeps=8, random_seed=seed)
        y = run["y"].values
        records.append(record.replace(y=y + 0.02 * y.std() * rng.standard_normal(t.size)))
        paths.append(run["k"].values)
    for name, varying in (("with the walk", {"k": "estimate"}), ("without", None)):
        start, given = time.perf_counter(), {"fixed": {"m": TRUTH["m"]}, "objective": "likelihood", "x0": 0.0}
        fits = [sid.fit_pem(DUFFING, r, guess, varying=varying, progressbar=False, **given) for r in records]
        known = {k: truth[k] for k in ("c", "k", "k3", *(["process_k"] if varying else []))}
        results[name] = summary(name, fits, np.array([scores(f, known) for f in fits]), time.perf_counter() - start)
        if varying:
            inside = []
            for fit, path in zip(fits, paths, strict=True):
                found = fit.innovations()
                inside.append(np.mean(np.abs(found["state_k"].values - path) < 1.645 * found["state_k_std"].values))
            results[name]["path in its band"] = float(np.mean(inside))
            print(f"    the 90 % band of the filtered path holds {np.mean(inside):.1%} of it")
    return results


def tanks_with_overflow() -> sid.System:
    """Two tanks; what overflows the upper one (above 10, at a rate k5) falls into the lower one in part (k6)."""

    def above(h: Any) -> Any:
        z = 10.0 * (h - 10.0)
        return (pt.log(1.0 + pt.exp(-pt.abs(z))) + 0.5 * (z + pt.abs(z))) / 10.0

    def root(h: Any) -> Any:
        return h / pt.sqrt(pt.sqrt(h * h + 1e-4))

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, Any]:
        over = above(x.h1)
        upper = p.k4 * u.u - p.k1 * root(x.h1) - p.k5 * over
        return upper, p.k2 * root(x.h1) - p.k3 * root(x.h2) + p.k6 * over - above(x.h2)

    params = ("k1", "k2", "k3", "k4", "k5", "k6")
    return sid.System(dynamics, states=("h1", "h2"), inputs=("u",), params=params, observe=lambda t, x, dx, u, p: x.h2)


def tanks(n: int) -> dict[str, Any]:
    """One call each."""
    print("\nCascaded tanks: root mean square error in V in training and in the test, whose initial state is estimated")
    folder = Path(os.environ["PM_SYSID_DATA"])
    data, t = np.load(folder / "cascaded_tanks.npz"), 4.0 * np.arange(1024)
    train, test = (
        sid.TimeSeries(t, data[f"{p}_u_V"], data[f"{p}_y_V"], intersample="zoh", inputs="u") for p in ("train", "test")
    )
    plain, over = sid.models.cascaded_tanks(), tanks_with_overflow()
    some, results = dict.fromkeys(over.params, 0.05), {}
    cases: list[tuple[str, sid.System, dict[str, Any]]] = [
        ("plain law, k1 to k4 = 0.05", plain, {}),
        ("plain law, one start", plain, {"starts": 1}),
        ("plain law, k1 known", plain, {"fixed": {"k1": 0.05}}),
        ("overflow", over, {}),
        ("overflow, 1e-3 to 2", over, {"bounds": (dict.fromkeys(over.params, 1e-3), dict.fromkeys(over.params, 2.0))}),
        ("overflow, from 0.2", over, {"p_guess": dict.fromkeys(over.params, 0.2)}),
    ]  # fmt: skip
    for name, system, options in cases:
        guess = {k: some[k] for k in system.params if k not in options.get("fixed", {})}
        start = time.perf_counter()
        fit = sid.fit_pem(system, train, **{"p_guess": guess, **options})
        seconds = time.perf_counter() - start
        errors = float(np.sqrt(fit.fun)), float(sid.rmse(test.y, fit.simulate(test)["y"]))
        print(f"  {name}: {errors[0]:.3f}, {errors[1]:.3f}; {seconds:.1f} s, {fit.nfev} evaluations; {fit.success=}; {fit.p}")
        print(f"    {fit.message}", flush=True)
        results[name] = {"train": errors[0], "test": errors[1], "success": fit.success, "message": fit.message}
    return results


def step_response() -> tuple[sid.System, sid.TimeSeries]:
    """The example of the reference page (archimedes), with noise of seed 0."""
    system = sid.System(
        lambda t, x, u, p: (x.v, -(p.omega_n**2) * x.z - 2 * p.zeta * p.omega_n * x.v + p.omega_n**2 * u.F),
        states=("z", "v"), inputs=("F",), params=("omega_n", "zeta"), observe=lambda t, x, dx, u, p: x.z,
    )  # fmt: skip
    t = np.arange(0, 10, 0.05)
    record = sid.TimeSeries(t, np.ones_like(t), None, intersample="zoh")
    z = sid.simulate(system, record, {"omega_n": 2.0, "zeta": 0.1}, x0=0.0, substeps=16)["z"].to_numpy()
    y = z + 0.01 * np.random.default_rng(0).normal(size=t.size)
    later = np.append(t, 2 * t[-1] - t[-2])  # a filter that steps before it looks at a measurement
    return system, sid.TimeSeries(later, np.ones(later.size), np.append(np.nan, y), intersample="zoh")


def cost(n: int) -> dict[str, Any]:
    """Several starts beside one, from good guesses."""
    print("\nWhat several starts cost: evaluations (value and derivatives) and seconds")
    system, record = step_response()
    ekf = sid.ExtendedKalman(Q=1e-4, R=1e-4, substeps=1)
    cases: dict[str, tuple[Any, ...]] = {
        "reference": (system, record, {"omega_n": 2.5, "zeta": 0.5}, {"predictor": ekf, "x0": 0.0}),
        "quickstart": (DUFFING, quickstart_record(0), GUESSES["rough guess"], {}),
    }
    if os.environ.get("PM_SYSID_DATA"):
        guess = {"m": 5e-6, "c": 2e-4, "k": 1.0, "k3": 4.0, "offset": 0.0}
        arrow = sid.ExtendedKalman(substeps=4)
        cases["Silverbox"] = (sid.models.duffing(offset=True), sid.datasets.silverbox("train"), guess, {"predictor": arrow})
    results = {}
    for name, (model, data, guess, options) in cases.items():
        for starts in (1, 8):
            sid.fit_pem(model, data, guess, starts=starts, **options)  # compiles
            begin = time.perf_counter()
            fit = sid.fit_pem(model, data, guess, starts=starts, **options)
            seconds = time.perf_counter() - begin
            values = ", ".join(f"{k} {v:.8g}" for k, v in zip(fit.names, fit.x, strict=True))
            print(
                f"  {name}, starts={starts}: {fit.nfev} values, {fit.njev} with derivatives, {seconds:.4f} s; {values}",
                flush=True,
            )
            results[f"{name}, {starts}"] = {"nfev": fit.nfev, "njev": fit.njev, "seconds": seconds, "x": fit.x.tolist()}
    return results


SECTIONS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "spread": (spread, 1000), "prior": (prior, 500), "sign": (sign, 200), "weak": (weak, 100), "equal": (equal, 40),
    "rugged": (rugged, 100),
    "proportional": (proportional, 200), "linearised": (linearised, 100), "between": (between, 60),
    "sensors": (sensors, 40), "terms": (terms, 40), "networks": (networks, 40),
    "actuators": (actuators, 40),
    "drift": (drift, 200), "tanks": (tanks, 1), "cost": (cost, 1),
}  # fmt: skip


def main() -> None:
    """Print the sections and save them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "pem_spread.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in options.sections or SECTIONS:
        function, n = SECTIONS[name]
        results[name] = function(max(n // 10, 2) if options.quick else n)
        path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
