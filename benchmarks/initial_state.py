"""What the linearised marginalisation of an uncertain initial state costs, and whether ``check_initial_state`` sees it.

For each record and three values of a parameter: the log-likelihood of the filter, and by how much it changes when the initial
state is integrated out exactly, by quadrature (a trapezium rule on a grid of the known-start likelihood around its mode) and by
the importance sampling of ``check_initial_state``, with the effective share of its draws.

Run: ``uv run benchmarks/initial_state.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import logsumexp

import pm_sysid as sid
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.posterior.initial_state_check import Integral

PENDULUM = sid.System(
    lambda t, x, u, p: (x.omega, -p.g * pt.sin(x.theta) - p.c * x.omega),
    states=("theta", "omega"),
    params=("g", "c"),
    observe=lambda t, x, dx, u, p: x.theta,
)
SOLVER = {"solver": sid.EK1(order=3), "substeps": 4}
#: Points of the quadrature along each initial state, and its half width in standard deviations of the curvature.
GRID, WIDTH = 121, 8


def duffing(noise: float) -> sid.TimeSeries:
    """A hardening spring, released and driven by a sweep."""
    t = np.arange(400) / 50.0
    record = sid.TimeSeries(t, 10 * np.sin(2 * np.pi * 0.1 * t * (1 + t)))
    params = {"m": 1.0, "c": 1.0, "k": 150.0, "k3": 2000.0}
    y = sid.simulate(sid.models.duffing(), record, params, x0={"z": 0.25, "v": 1.0}, substeps=4)["y"].values
    return record.replace(y=y + noise * np.random.default_rng(0).standard_normal(t.size))


def pendulum(noise: float) -> sid.TimeSeries:
    """A free pendulum, released near its upper rest."""
    t = np.arange(200) / 25.0
    record = sid.TimeSeries(t)
    y = sid.simulate(PENDULUM, record, {"g": 9.81, "c": 0.1}, x0={"theta": 2.5, "omega": 0.5}, substeps=4)["y"].values
    return record.replace(y=y + noise * np.random.default_rng(1).standard_normal(t.size))


def exact(
    system: sid.System, record: sid.TimeSeries, params: Mapping[str, float], noise: float, mean: np.ndarray, std: np.ndarray
) -> float:
    """Log-likelihood with the initial state integrated out by quadrature."""
    with pm.Model() as model:
        xi = pm.Normal("xi", shape=len(mean))
        sid.ODEFilter("y", system, record, params, noise=noise, x0=mean + std * xi, **SOLVER)
    mode = sid.find_mode(model, random_seed=1, progressbar=False)
    centre, width = mode.initvals["xi"], WIDTH * np.sqrt(np.diag(mode.covariance))
    axes = [np.linspace(c - w, c + w, GRID) for c, w in zip(centre, width, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(centre))
    target = sid.Target(model)
    total = target.log_prior(points) + target.log_likelihood(points, target.n_samples)
    cell = np.sum(np.log([a[1] - a[0] for a in axes]))
    return float(logsumexp(np.where(np.isnan(total), -np.inf, total)) + cell)


def compare(
    name: str,
    system: sid.System,
    record: sid.TimeSeries,
    params: dict[str, float],
    moved: str,
    noise: float,
    start: dict[str, dict[str, float]],
) -> None:
    """Print the rows of one record."""
    with pm.Model() as model:
        unknown = params | {moved: pm.LogNormal(moved, np.log(params[moved]), 0.1)}
        sid.ODEFilter("y", system, record, unknown, noise=noise, **SOLVER, **start)
    integral = Integral(filter_view(None, model))
    for factor in (0.97, 1.0, 1.03):
        value = factor * params[moved]
        before, mean, std, _ = integral.known(np.asarray(value))
        with np.errstate(all="ignore"):
            found = integral([np.asarray(value)])
        truth = exact(system, record, params | {moved: value}, noise, mean[0], std[0])
        print(
            f"{name:28} {moved} x {factor:4.2f}: linearised {before:9.3f}, exact {truth - before:+7.3f}, "
            f"check {found.change:+7.3f} (effective share {found.efficiency:.2f})",
            flush=True,
        )


def main() -> None:
    """Print all rows."""
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    wide = {"x0": {"z": 0.0, "v": 0.0}, "x0_std": {"z": 0.5, "v": 5.0}}
    spring = {"m": 1.0, "c": 1.0, "k": 150.0, "k3": 2000.0}
    for noise in (0.02, 0.1):
        for name, start in (("default", {}), ("wide", wide)):
            compare(f"Duffing, noise {noise}, {name}", sid.models.duffing(), duffing(noise), spring, "k", noise, start)
    released = {"x0": {"theta": 0.0, "omega": 0.0}, "x0_std": {"theta": 2.0, "omega": 3.0}}
    compare("pendulum, noise 0.05, wide", PENDULUM, pendulum(0.05), {"g": 9.81, "c": 0.1}, "g", 0.05, released)


if __name__ == "__main__":
    main()
