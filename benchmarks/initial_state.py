"""What the linearised marginalisation of an uncertain initial state costs, and whether ``check_initial_state`` sees it.

For each record and three values of a parameter: the log-likelihood of the filter, and by how much it changes when the initial
state is integrated out exactly, by quadrature (a trapezium rule on a grid of the known-start likelihood around its mode) and by
the importance sampling of ``check_initial_state``, with the effective share of its draws. Then posteriors of one rate, as
``sample`` draws them and by quadrature over rate and start, with what ``sample`` says: a decay whose sensor has a limit,
outliers or noise that depends on the output, and a particle in one of two wells, nobody knows in which.

Run: ``uv run benchmarks/initial_state.py``; ``--posteriors`` for the second part alone.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Mapping
from typing import Any

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


DECAY = sid.System(lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: x.z)
WELLS = sid.System(
    lambda t, x, u, p: (x.v, -p.k * x.v + 4 * x.z - 4 * x.z**3),
    states=("z", "v"),
    params=("k",),
    observe=lambda t, x, dx, u, p: x.v,
)


def decay(start: float, **sensor: Any) -> tuple[sid.System, sid.TimeSeries, dict[str, Any]]:
    """A decay from a start that is known to 3, and its sensor."""
    t, rng = np.arange(30) * 0.1, np.random.default_rng(0)
    y = start * np.exp(-t)
    y = y + (0.05 + 0.2 * y if callable(sensor.get("noise")) else 0.1) * rng.standard_normal(30)
    y = np.minimum(y, sensor["limits"][1]) if "limits" in sensor else y
    return DECAY, sid.TimeSeries(t, None, y), {"noise": 0.1, **sensor, "x0": {"z": 0.0}, "x0_std": {"z": 3.0}, "substeps": 4}


def wells() -> tuple[sid.System, sid.TimeSeries, dict[str, Any]]:
    """A particle that swings in one of two wells; its speed is measured."""
    t = np.arange(50) * 0.1
    free = sid.simulate(WELLS, sid.TimeSeries(t), {"k": 0.5}, x0={"z": -0.8, "v": 0.0})["y"].values
    record = sid.TimeSeries(t, None, free + 0.3 * np.random.default_rng(0).standard_normal(50))
    return WELLS, record, {"noise": 0.3, "x0": {"z": 0.0, "v": 0.0}, "x0_std": {"z": 1.0, "v": 0.0}, "substeps": 16}


def posterior(
    name: str, system: sid.System, record: sid.TimeSeries, options: dict[str, Any], prior: tuple[float, float]
) -> None:
    """Print mean and standard deviation of the rate and the log evidence, by quadrature and by three runs of ``sample``."""
    with pm.Model() as joint:
        z = pm.Normal("z", 0.0, options["x0_std"]["z"])
        start = {**options["x0"], "z": z}
        given = {k: v for k, v in options.items() if k not in ("x0", "x0_std")}
        sid.ODEFilter("y", system, record, {"k": pm.LogNormal("k", *prior)}, **given, x0=start)
    target = sid.Target(joint)
    axes = [np.linspace(-4 * options["x0_std"]["z"], 4 * options["x0_std"]["z"], 1201), np.linspace(-3.0, 2.0, 601)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    total = target.log_prior(points) + target.log_likelihood(points, target.n_samples)
    total = np.where(np.isnan(total), -np.inf, total)
    evidence = logsumexp(total) + np.sum(np.log([a[1] - a[0] for a in axes]))
    weights, k = np.exp(total - logsumexp(total)), np.exp(points[:, 1])
    mean, sd = weights @ k, np.sqrt(weights @ k**2 - (weights @ k) ** 2)
    print(f"{name:24} quadrature: k = {mean:.3f} +- {sd:.3f}, log evidence {evidence:.2f}", flush=True)
    for seed in range(3):
        with pm.Model(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sid.ODEFilter("y", system, record, {"k": pm.LogNormal("k", *prior)}, **options)
            idata = sid.sample(chains=2, cores=1, random_seed=seed, progressbar=False)
        draws = idata["posterior"]["k"].values
        found = sid.log_evidence(idata)
        said = "trusted" if idata.attrs["trusted"] else idata.attrs["verdict"][:150]
        print(
            f"{'':24} sample: mean off by {(draws.mean() - mean) / sd:+.2f} sd, sd x {draws.std() / sd:.2f}, log evidence "
            f"{found.value:.2f} +- {found.error:.2f}; {said}",
            flush=True,
        )


def posteriors() -> None:
    """Print posteriors of a rate under sensors that are no plain ones, and of a particle in two wells."""
    rate = (0.0, 1.0)
    posterior("limit", *decay(4.0, limits=(None, 1.0)), rate)
    posterior("outliers", *decay(2.0, noise=sid.StudentT(scale=0.1, nu=3.0)), rate)
    posterior("noise by output", *decay(2.0, noise=lambda y: 0.05 + 0.2 * pt.abs(y)), rate)
    posterior("two wells", *wells(), (np.log(0.5), 0.7))


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posteriors", action="store_true")
    options = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    if not options.posteriors:
        likelihoods()
    posteriors()


def likelihoods() -> None:
    """Print by how much log-likelihoods change."""
    wide = {"x0": {"z": 0.0, "v": 0.0}, "x0_std": {"z": 0.5, "v": 5.0}}
    spring = {"m": 1.0, "c": 1.0, "k": 150.0, "k3": 2000.0}
    for noise in (0.02, 0.1):
        for name, start in (("default", {}), ("wide", wide)):
            compare(f"Duffing, noise {noise}, {name}", sid.models.duffing(), duffing(noise), spring, "k", noise, start)
    released = {"x0": {"theta": 0.0, "omega": 0.0}, "x0_std": {"theta": 2.0, "omega": 3.0}}
    compare("pendulum, noise 0.05, wide", PENDULUM, pendulum(0.05), {"g": 9.81, "c": 0.1}, "g", 0.05, released)


if __name__ == "__main__":
    main()
