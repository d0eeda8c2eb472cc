"""A line through noisy points: a model whose posterior and evidence are known in closed form."""

from __future__ import annotations

import numpy as np
import pymc as pm

T = 60


def line(n: int = T, *, sigma: float = 0.3, wide: float = 1.0) -> pm.Model:
    """A line through n of 60 noisy points; two free variables, one of them a vector with dims."""
    rng = np.random.default_rng(5)
    time = np.linspace(0, 1, T)
    y = 1.0 - 2.0 * time + sigma * rng.standard_normal(T)
    with pm.Model(coords={"term": ["level", "slope"]}) as model:
        beta = pm.Normal("beta", [0.5, 0.0], wide, dims="term")
        pm.Deterministic("end", beta[0] + beta[1])
        pm.Normal("y", beta[0] + beta[1] * time[:n], sigma, observed=y[:n])
    return model
