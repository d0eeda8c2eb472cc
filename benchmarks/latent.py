"""How often the band of an unrecorded force holds the force, and what the parameters are worth with and without it.

Records of a Duffing oscillator that is driven by a known force and pushed by an unknown one, drawn from a Matern process. For
each of them the posterior of parameters, noise, scale and length of the force is approximated at its mode (Laplace); the
force is smoothed at draws from it. Printed are the share of samples of the force in its 90 % band, and of records whose
parameters are in their 90 % intervals: for the model with the force, and for the same model without it.

Run: ``uv run benchmarks/latent.py`` (``--records 20`` for fewer).
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.optimize import minimize

import pm_sysid as sid

DUFFING = sid.System(
    lambda t, x, u, p: (x.v, u.F + u.d - p.c * x.v - p.k * x.z - p.k3 * x.z**3),
    states=("z", "v"),
    inputs=("F", "d"),
    params=("c", "k", "k3"),
    observe=lambda t, x, dx, u, p: x.z,
)
WITHOUT = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3),
    states=("z", "v"),
    inputs=("F",),
    params=("c", "k", "k3"),
    observe=lambda t, x, dx, u, p: x.z,
)
TRUTH = {"c": 0.3, "k": 4.0, "k3": 0.5}
FORCE = {"scale": 0.7, "length": 1.5}
NOISE, START = 0.02, {"z": 0.4, "v": 0.0}
TIMES = np.arange(200) * 0.1
KNOWN = sid.TimeSeries(TIMES, {"F": np.sin(1.3 * TIMES) + 0.7 * np.sin(2.9 * TIMES)}, intersample="foh")
#: Draws of the posterior at which a force is smoothed; normal quantile of the intervals.
DRAWS, WIDTH = 16, 1.6449
SOLVER = {"solver": sid.EK1(order=3), "substeps": 2}


def drawn(seed: int) -> tuple[sid.TimeSeries, np.ndarray]:
    """A record, and the force that was not recorded."""
    process = sid.Matern(nu=1.5, **FORCE)
    run = sid.simulate(DUFFING, KNOWN, TRUTH, x0=START, latent={"d": process}, substeps=8, random_seed=seed)
    noise = NOISE * np.random.default_rng([seed, 1]).standard_normal(len(KNOWN))
    return KNOWN.replace(y=run["y"].to_numpy() + noise), run["d"].to_numpy()


def build(record: sid.TimeSeries, force: bool) -> pm.Model:
    """Priors around other values than the true ones; with the force or without it."""
    with pm.Model() as model:
        params = {"c": pm.LogNormal("c", np.log(0.4), 0.5), "k": pm.LogNormal("k", np.log(3.0), 0.5)}
        params["k3"] = pm.LogNormal("k3", np.log(0.7), 0.7)
        noise = pm.LogNormal("noise", np.log(0.05), 1.0)
        latent = None
        if force:
            scale, length = pm.LogNormal("scale", 0.0, 1.0), pm.LogNormal("length", 0.0, 1.0)
            latent = {"d": sid.Matern(nu=1.5, scale=scale, length=length)}
        sid.ODEFilter("y", DUFFING if force else WITHOUT, record, params, noise=noise, x0=START, latent=latent, **SOLVER)
    return model


class Posterior:
    """The mode of a model's posterior and its curvature there, in unconstrained coordinates."""

    def __init__(self, model: pm.Model) -> None:
        self.model, self.names = model, [v.name for v in model.value_vars]
        function = model.logp_dlogp_function(ravel_inputs=True)
        function.set_extra_values({})
        self.function = function

    def __call__(self, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mode and covariance."""

        def down(q: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = self.function(q)
            return (-float(value), -slope) if np.isfinite(value) else (1e10, np.zeros_like(q))

        found = minimize(down, start, jac=True, method="BFGS", options={"gtol": 1e-3, "maxiter": 300})
        step = 1e-4 * np.eye(len(start))
        hessian = np.array([(down(found.x + s)[1] - down(found.x - s)[1]) / 2e-4 for s in step])
        return found.x, np.linalg.inv((hessian + hessian.T) / 2)


def start_of(names: list[str]) -> np.ndarray:
    """Where the search begins: the truth where it has one, and the noise that the residual has."""
    known = {**TRUTH, **FORCE, "noise": NOISE}
    return np.log([known[n.removesuffix("_log__")] for n in names])


def smoothed(model: pm.Model, names: list[str], draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the force over draws, a mixture of normal distributions by its first two moments."""
    values = {n.removesuffix("_log__"): (("chain", "draw"), np.exp(draws[None, :, i])) for i, n in enumerate(names)}
    found = sid.smooth(xr.Dataset(values), model=model)
    mean, std = (found[v].to_numpy()[0, :, :, 0] for v in ("inputs", "inputs_std"))
    return mean.mean(axis=0), np.sqrt(mean.var(axis=0) + np.mean(std**2, axis=0))


def study(records: int) -> dict[str, Any]:
    """Coverage over records."""
    first, _ = drawn(0)
    models = {"with": build(first, True), "without": build(first, False)}
    posteriors = {k: Posterior(m) for k, m in models.items()}
    inside: list[float] = []
    errors: list[float] = []
    scores: dict[str, list[np.ndarray]] = {"with": [], "without": []}
    begun, failed = time.time(), dict.fromkeys(models, 0)
    for seed in range(records):
        record, force = drawn(seed)
        for kind, model in models.items():
            sid.set_data({"y": record}, model)
            names = posteriors[kind].names
            mode, covariance = posteriors[kind](start_of(names))
            std = np.sqrt(np.diag(covariance))
            if not np.all(np.linalg.eigvalsh(covariance) > 0):
                failed[kind] += 1
                continue
            scores[kind].append(np.array([(mode[i] - np.log(v)) / std[i] for i, n in enumerate(names)
                                          for p, v in TRUTH.items() if n == f"{p}_log__"]))  # fmt: skip
            if kind == "with":
                rng = np.random.default_rng([seed, 2])
                draws = rng.multivariate_normal(mode, covariance, size=DRAWS)
                mean, spread = smoothed(model, names, draws)
                inside.append(float(np.mean(np.abs(force - mean) < WIDTH * spread)))
                errors.append(float(np.std(force - mean) / np.std(force)))
        if (seed + 1) % 20 == 0:
            print(f"{seed + 1} records, {time.time() - begun:.0f} s: band of the force {np.mean(inside):.3f}", flush=True)
    table = {kind: np.array(z) for kind, z in scores.items()}
    return {
        "records": records,
        "failed": failed["with"],
        "failed without": failed["without"],
        "force": {"coverage": float(np.mean(inside)), "spread": float(np.std(inside)), "error": float(np.mean(errors))},
        "parameters": {
            kind: {p: float(np.mean(np.abs(z[:, i]) < WIDTH)) for i, p in enumerate(TRUTH)} for kind, z in table.items()
        },
        "bias": {kind: {p: float(np.mean(z[:, i])) for i, p in enumerate(TRUTH)} for kind, z in table.items()},
    }


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200)
    options = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", sid.SubstepWarning)
    found = study(options.records)
    print(json.dumps(found, indent=1))
    if options.records >= 200:
        (Path(__file__).parent / "results" / "latent.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
