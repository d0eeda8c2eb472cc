"""A swing that is sampled so seldom that other speeds explain the record as well, with the answer by quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from scipy.special import logsumexp, softmax
from scipy.stats import norm

import pm_sysid as sid

T = np.arange(25) * 0.25


def swing(seed: int, substeps: Any = "auto", width: float = 0.7) -> tuple[pm.Model, float, float]:
    """A swing of speed 6 whose aliases (19, 31, ...) are as likely by the record; the log evidence, and the share above 9.

    Four samples in a unit of time; two steps of the filter in each do for the speed 6, and not for its aliases.
    """
    y = np.cos(6.0 * T) + 0.3 * np.random.default_rng(seed).standard_normal(T.size)
    system = sid.System(
        lambda t, x, u, p: (x.v, -(p.w**2) * x.z), states=("z", "v"), params=("w",), observe=lambda t, x, dx, u, p: x.z
    )
    with pm.Model() as model:
        params = {"w": pm.LogNormal("w", np.log(10), width)}
        noise, start = pm.HalfNormal("noise", 1), {"z": 1.0, "v": 0.0}
        sid.ODEFilter("y", system, sid.TimeSeries(T, None, y), params, noise=noise, x0=start, substeps=substeps)
    speed, sigma = np.linspace(np.log(0.3), np.log(150), 20_001), np.linspace(0.1, 0.9, 81)
    squares = np.sum((y - np.cos(np.multiply.outer(np.exp(speed), T))) ** 2, axis=1)[:, None]
    log_prior = norm.logpdf(speed, np.log(10), width)[:, None] + np.log(2) + norm.logpdf(sigma)
    density = log_prior - squares / (2 * sigma**2) - T.size * np.log(sigma * np.sqrt(2 * np.pi))
    log_evidence = logsumexp(density) + np.log(speed[1] - speed[0]) + np.log(sigma[1] - sigma[0])
    return model, float(log_evidence), float(softmax(logsumexp(density, axis=1))[np.exp(speed) > 9].sum())
