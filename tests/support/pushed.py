"""Models of specimens that unrecorded forces push, whose damping drifts, and whose sensors have coloured noise and a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

import pm_sysid as sid

SYSTEM = sid.System(
    lambda t, x, u, p: (x.v, u.F + u.d - p.c * x.v - p.k * x.z - x.z**3),
    states=("z", "v"),
    inputs=("F", "d"),
    params=("c", "k"),
    observe=lambda t, x, dx, u, p: x.z,
)
#: Values that all specimens share, and those of each.
SHARED = {"scale": 0.7, "rate": 0.2, "slow": 0.05}
OWN = {"k": np.array([3.5, 4.0, 4.6]), "c": np.array([0.3, 0.5, 0.2]), "noise": np.array([0.1, 0.15, 0.25])}
LENGTHS = (20, 30, 25)


def records() -> list[sid.TimeSeries]:
    rng, found = np.random.default_rng(0), []
    for n in LENGTHS:
        y = 0.3 * rng.standard_normal(n)
        y[7] = np.nan
        found.append(sid.TimeSeries(np.arange(n) * 0.05, 3 * rng.standard_normal(n), y, inputs=("F",)))
    return found


def build(data: Any, size: int | None = None, diffusion: Any = "mle", outliers: bool = False) -> pm.Model:
    """A force, a damping that drifts, coloured noise and a limit; ``size`` specimens, or one."""
    with pm.Model() as model:
        k, c = (pm.LogNormal(name, 0.0, 1.0, shape=size) for name in ("k", "c"))
        noise = pm.HalfNormal("noise", 0.2, shape=size)
        processes = {
            "latent": {"d": sid.OU(scale=pm.LogNormal("scale"), length=0.4)},
            "varying": {"c": sid.RandomWalk(scale=pm.LogNormal("rate"))},
            "coloured": {"y": sid.OU(scale=pm.LogNormal("slow"), length=0.2)},
        }
        options = {"solver": sid.EK1(order=2, diffusion=diffusion), "substeps": 2, "limits": (None, 0.5)}
        options["noise"] = sid.StudentT(nu=4, scale=noise) if outliers else noise
        sid.ODEFilter("y", SYSTEM, data, {"k": k, "c": c}, x0=0.0, **processes, **options)
    return model
