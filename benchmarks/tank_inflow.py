"""Cascaded tanks with an inflow that nobody recorded: what it explains of the training record, and what it does to the test.

To two laws of the board (``board_models.py``) an unknown inflow to one of the tanks is added: an Ornstein-Uhlenbeck process
whose size and length are found with the parameters, by maximum likelihood (extended Kalman filter). Printed are the
log-likelihood of the innovations in training; the errors of free runs, with the inflow at zero, on the training record and on
the test (by the board's rule: from a state that the first 50 samples show); and how much of the test lies in the 90 % band of
such runs, with the inflow drawn from its process where there is one.

Run: ``uv run benchmarks/tank_inflow.py`` (needs ``PM_SYSID_DATA`` or a network).
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from board_models import TANKS_GUESS, Structure, tanks
from boards import Z90, Fitted, first_state, levels

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "tank_inflow.json"
WINDOW, SUBSTEPS, DRAWS = 50, 4, 200
LINES = ("clip", "share", "edge", "l1", "l2")
LAWS = {"outflow by level": LINES, "all terms": (*LINES, "p1", "p2", "direct")}
LOWER = dict.fromkeys(("k1", "k2", "k3", "k4", "share"), 1e-6)


def with_inflow(law: sid.System, tank: int) -> sid.System:
    """A law with the state ``d``, a flow (V/s) that comes into one of the tanks and fades within ``length`` seconds."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        assert law.dynamics is not None
        rates = list(law.dynamics(t, x, u, p))
        rates[tank] = rates[tank] + x.d
        return *rates, -x.d / p.length

    return sid.System(
        dynamics, states=(*law.states, "d"), inputs=law.inputs, params=(*law.params, "length"),
        observe=lambda t, x, dx, u, p: law.observe(t, x, dx, u, p),
    )  # fmt: skip


def plain_fit(law: Structure, train: sid.TimeSeries) -> Any:
    """Least squares of a free run, as for the board."""
    guess = law.begin({})
    lower = {n: LOWER.get(n, -np.inf) for n in guess}
    return sid.fit_pem(
        law.system, train, guess, x0=levels(law, train), bounds=(lower, dict.fromkeys(guess, np.inf)), starts=4,
        predictor=sid.ExtendedKalman(substeps=SUBSTEPS), optimiser=sid.Optimiser("lm", {"max_nfev": 300}), progressbar=False,
    )  # fmt: skip


def inflow_fit(law: sid.System, train: sid.TimeSeries, tank: int, plain: Any) -> Any:
    """Parameters, and size and length of the inflow, from where the plain law ended."""
    guess = {name: float(v) for name, v in plain.p.items()} | {"length": 40.0, "q": 0.01}
    lower = {n: LOWER.get(n, -np.inf) for n in guess} | {"length": 4.0, "q": 1e-6}
    upper = dict.fromkeys(guess, np.inf) | {"length": 4000.0}
    start = dict(zip(law.states, map(float, plain.x0), strict=True))
    return sid.fit_pem(
        with_inflow(law, tank), train, guess, x0=sid.InitialState({**start, "d": 0.0}, estimate=list(start)),
        bounds=(lower, upper), objective="likelihood", predictor=sid.ExtendedKalman(substeps=SUBSTEPS, Q={"d": "q"}), starts=1,
        progressbar=False,
    )  # fmt: skip


def pushed(
    law: sid.System, record: sid.TimeSeries, values: dict[str, float], fit: Any, tank: int, x0: np.ndarray
) -> np.ndarray:
    """Outputs (draws, T) of runs with drawn inflows; the deviation of what comes in at a sample is that of the fit."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        assert law.dynamics is not None
        rates = list(law.dynamics(t, x, u, p))
        rates[tank] = rates[tank] + u.d
        return tuple(rates)

    system = sid.System(
        dynamics, states=law.states, inputs=(*law.inputs, "d"), params=law.params,
        observe=lambda t, x, dx, u, p: law.observe(t, x, dx, u, p),
    )  # fmt: skip
    length, step = fit.p["length"], float(np.median(record.dt))
    scale = fit.p["q"] / np.sqrt(-np.expm1(-2 * step / length))
    runs = [
        sid.simulate(
            system, record, values, x0=dict(zip(law.states, map(float, x0), strict=True)), substeps=SUBSTEPS, random_seed=seed,
            latent={"d": sid.OU(scale=scale, length=length)},
        )["y"].to_numpy()
        for seed in range(DRAWS)
    ]  # fmt: skip
    return np.array(runs)


def row(law: Structure, fit: Any, train: sid.TimeSeries, bench: sid.datasets.Benchmark, tank: int | None) -> dict[str, Any]:
    """Errors of free runs and the share of the test in its band."""
    (test,) = (r.replace(inputs=law.system.inputs) for r in bench.test.values())
    states, system = law.system.states, law.system
    values = {n: float(fit.p[n]) for n in system.params}
    begin = np.ravel(fit.x0)[: len(states)]

    class Plain:
        """The law's own part of a fit."""

        p, x0, fun = values, begin, 1.0

    start, _ = first_state(Fitted(law, Plain, 0.0), test, WINDOW)
    trained, tested = (
        sid.simulate(system, r, values, x0=dict(zip(states, map(float, s), strict=True)), substeps=SUBSTEPS)["y"].to_numpy()
        for r, s in ((train, begin), (test, start))
    )
    spread = np.zeros(len(test))
    noise = float(np.sqrt(np.mean((trained - train.y) ** 2)))
    if tank is not None:
        spread, noise = pushed(system, test, values, fit, tank, start).std(axis=0), fit.noise["noise_y"]
    inside = np.abs(tested - test.y) <= Z90 * np.hypot(spread, noise)
    return {
        "training": float(sid.rmse(train.y, trained)),
        "test": float(sid.score(bench, tested)["rmse"][0]),
        "coverage": float(inside[WINDOW:].mean()),
        "half width": float(np.median(Z90 * np.hypot(spread, noise))),
    }


def main() -> None:
    """Print and save."""
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", sid.SubstepWarning)
    bench, results = sid.datasets.benchmark("Cascaded_Tanks"), {}
    train = bench.train[0].replace(inputs=("u",))
    for name, terms in LAWS.items():
        law = Structure(name, terms, tanks, TANKS_GUESS, substeps=SUBSTEPS, run_substeps=SUBSTEPS)
        plain = plain_fit(law, train)
        n, found = len(train), {}
        found["no inflow"] = {"log-likelihood": -0.5 * n * (np.log(2 * np.pi * plain.fun) + 1), "success": bool(plain.success)}
        found["no inflow"] |= row(law, plain, train, bench, None)
        for tank, where in enumerate(("upper tank", "lower tank")):
            begin = time.perf_counter()
            fit = inflow_fit(law.system, train, tank, plain)
            found[where] = {"log-likelihood": -float(fit.fun), "length": fit.p["length"], "q": fit.p["q"]}
            found[where] |= row(law, fit, train, bench, tank)
            found[where] |= {"success": bool(fit.success), "message": fit.message, "seconds": time.perf_counter() - begin}
        for where, one in found.items():
            said = ", ".join(f"{k} {v:.4g}" for k, v in one.items() if isinstance(v, float))
            print(f"{name}, {where}: {said}, success {one['success']}", flush=True)
        results[name] = found
    RESULTS.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
