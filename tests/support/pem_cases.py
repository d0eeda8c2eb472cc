"""A small oscillator and records of it, to fit."""

from __future__ import annotations

from typing import Any

import numpy as np

import pm_sysid as sid

TRUTH = {"k": 4.0, "c": 0.4}
OSCILLATOR = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.k * x.z - p.c * x.v),
    states=("z", "v"),
    inputs=("F",),
    params=("k", "c"),
    observe=lambda t, x, dx, u, p: x.z,
)
GUESS = {"k": 3.0, "c": 0.8}
FREE = sid.ExtendedKalman(substeps=2)
FILTER = sid.ExtendedKalman(Q={"z": 1e-4, "v": 0.05}, R={"y": 0.02}, substeps=2)


def record(
    *, n: int = 200, seed: int = 0, x0: Any = (0.0, 0.0), noise: float = 0.02, drive: float = 0.0, intersample: str = "zoh"
) -> sid.TimeSeries:
    """A noisy record; with ``drive``, the standard deviation of an additional held force, it has process noise too."""
    rng = np.random.default_rng(seed)
    t, u = 0.1 * np.arange(n), np.repeat(rng.choice([-1.0, 1.0], size=n // 5 + 1), 5)[:n]
    pushed = sid.TimeSeries(t, u + drive * rng.normal(size=n), np.zeros(n), intersample=intersample)  # type: ignore[arg-type]
    z = sid.simulate(OSCILLATOR, pushed, TRUTH, x0=list(x0), substeps=2)["y"].to_numpy()
    return pushed.replace(u=u, y=z + noise * rng.normal(size=n))


def fit(data: Any = None, guess: Any = None, method: Any = "lm", tolerances: Any = None, **options: Any) -> sid.PEMResult:
    start = sid.InitialState(options.pop("x0", 0.0), estimate=options.pop("estimate", False), P0=options.pop("P0", None))
    options = {"predictor": FREE, "x0": start, "optimiser": sid.Optimiser(method, tolerances), **options}
    return sid.fit_pem(OSCILLATOR, record() if data is None else data, GUESS if guess is None else guess, **options)
