"""EMPS with an unrecorded force, or with friction that drifts: whether both records agree, and how far runs are from them.

The model of ``examples/emps.py`` (viscous and Coulomb friction, an offset, a white disturbance force) alone, with a force that
is an Ornstein-Uhlenbeck process, and with a random walk in the Coulomb friction and in the offset. Each is fitted to the
training record and to the test record by its posterior mode and the curvature there (Laplace). Printed are the parameters of
both, their difference in standard deviations, and the errors of runs with the parameters of the training record (of what
drifts, the mean over it): in open loop, where the recorded force drives the model, and in closed loop, where the controller
does.

Run: ``uv run benchmarks/emps_forces.py`` (``--data FOLDER``; two minutes).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pm_sysid as sid

HERE = Path(__file__).parent
PARAMS = ("M", "Fv", "Fc", "offset")
KINDS = ("white disturbance", "and a force", "and friction and offset that drift")


def example() -> ModuleType:
    """The example on EMPS, whose closed loop runs here, too."""
    spec = importlib.util.spec_from_file_location("emps", HERE.parent / "examples" / "emps.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drive(pushed: bool) -> sid.System:
    """Mass with friction; ``pushed`` by a force beside that of the motor."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        force = u.tau - p.offset - p.Fv * x.v - p.Fc * pt.tanh(x.v / 3e-4)
        return x.v, (force + u.d if pushed else force) / p.M

    return sid.System(
        dynamics,
        states=("q", "v"),
        inputs=("tau", "d") if pushed else ("tau",),
        params=PARAMS,
        observe=lambda t, x, dx, u, p: x.q,
    )


def built(record: sid.TimeSeries, kind: str) -> pm.Model:
    """A model of one of the kinds."""
    with pm.Model() as model:
        params = {name: pm.LogNormal(name, np.log(v), 0.5) for name, v in {"M": 95.0, "Fv": 200.0, "Fc": 20.0}.items()}
        params["offset"] = pm.Normal("offset", 0.0, 10.0)
        noise, disturbance = pm.LogNormal("noise", np.log(1e-7), 1.0), pm.LogNormal("disturbance", 0.0, 1.0)
        processes: dict[str, Any] = {}
        if kind == "and a force":
            scale, length = pm.LogNormal("scale", 0.0, 1.0), pm.LogNormal("length", np.log(0.1), 2.0)
            processes["latent"] = {"d": sid.OU(scale=scale, length=length)}
        elif kind != KINDS[0]:
            rates = {name: sid.RandomWalk(scale=pm.HalfNormal(f"drift of {name}", 3.0)) for name in ("Fc", "offset")}
            processes["varying"] = rates
        solver = sid.EK1(order=2, diffusion=disturbance / params["M"] * np.sqrt(12 * record.fs))
        start = {"x0": {"q": float(record.y[0]), "v": 0.0}, "x0_std": {"q": 1e-6, "v": 1e-3}}
        sid.ODEFilter(
            "y", drive("latent" in processes), record, params, noise=noise, solver=solver, substeps=1, **start, **processes
        )
    return model


def fitted(record: sid.TimeSeries, kind: str) -> dict[str, Any]:
    """Mode of a model, with standard deviations; of a logarithm for what is positive."""
    model, begun = built(record, kind), time.perf_counter()
    with model:
        mode = sid.find_mode(starts=2, tempering=False, random_seed=1, progressbar=False)
        runs = {name: float(mode.initvals[name]) for name in PARAMS}
        if kind == KINDS[2]:
            drifting = sid.smooth(mode.initvals)["parameters"].mean(("chain", "draw", "time"))
            runs |= {str(name): float(v) for name, v in zip(drifting["parameter"].values, drifting.values, strict=True)}
    deviations = dict(zip([v.name for v in model.value_vars], np.sqrt(np.diag(mode.covariance)), strict=True))
    point = dict(zip([v.name for v in model.value_vars], mode.point, strict=True))
    return {
        "values": {k: float(v) for k, v in mode.initvals.items()},
        "runs": runs,
        "point": {k: float(v) for k, v in point.items()},
        "deviations": {k: float(v) for k, v in deviations.items()},
        "log_posterior": float(mode.logp),
        "converged": bool(mode.converged),
        "seconds": time.perf_counter() - begun,
    }


def main(folder: str | None) -> None:
    """Fit, compare, run, print."""
    emps = example()
    parts = [emps.load(part, folder) for part in ("train", "test")]
    found: dict[str, Any] = {}
    for kind in KINDS:
        both = [fitted(record, kind) for record, _ in parts]
        first, second = both
        apart = {
            name.removesuffix("_log__"): (first["point"][name] - second["point"][name])
            / float(np.hypot(first["deviations"][name], second["deviations"][name]))
            for name in first["point"]
            if not (kind == KINDS[2] and name.removesuffix("_log__") in ("Fc", "offset"))  # of the first sample alone
        }
        params = {name: np.array([first["runs"][name]]) for name in PARAMS}
        errors = [float(np.ravel(e)[0]) for e in emps.errors(params, parts)]
        names = ("open loop, training", "open loop, test", "closed loop, training", "closed loop, test")
        found[kind] = {"training": first, "test": second, "apart": apart, "errors": dict(zip(names, errors, strict=True))}
        print(kind)
        for fit in both:
            print("  ", {k: float(f"{v:.4g}") for k, v in fit["values"].items()}, f"{fit['log_posterior']:.1f}")
        print("   apart", {k: round(v, 1) for k, v in apart.items()})
        print("   mm", {k: round(v, 4) for k, v in found[kind]["errors"].items()}, flush=True)
    target = HERE / "results" / "emps_forces.json"
    target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="EMPS with an unrecorded force")
    parser.add_argument("--data", default=os.environ.get("PM_SYSID_DATA"))
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sid.SubstepWarning)  # the check of the step knows nothing of the disturbance
        main(parser.parse_args().data)
