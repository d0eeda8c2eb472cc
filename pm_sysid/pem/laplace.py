"""From a fit to Bayes: priors around it, a PyMC model of the innovations, and draws of the Laplace approximation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from pm_sysid.pem.objective import SquaredErrors


class Priors(dict[str, dict[str, float]]):
    """Priors by name: ``mu``, ``sigma``, ``lower``, ``upper`` of a normal distribution, cut at the bounds.

    Those of standard deviations are log-normal (``log`` is 1): ``mu`` and ``sigma`` are of the logarithm.
    """

    def variables(self, names: Any = None) -> dict[str, Any]:
        """Random variables of these priors in the model on the context stack.

        Parameters
        ----------
        names : sequence of str, optional
            Which; default all.
        """
        return {name: _variable(name, self[name]) for name in (self if names is None else names)}

    def __repr__(self) -> str:
        return str(pd.DataFrame.from_dict(self, orient="index"))


def _variable(name: str, prior: Mapping[str, float]) -> Any:
    mu, sigma, lower, upper = (prior[k] for k in ("mu", "sigma", "lower", "upper"))
    if prior["log"]:
        return pm.LogNormal(name, mu, sigma)
    if np.isfinite(lower) or np.isfinite(upper):
        return pm.TruncatedNormal(name, mu, sigma, lower=lower, upper=upper)
    return pm.Normal(name, mu, sigma)


def deviations(fit: Any) -> dict[str, float]:
    """Standard deviation of each output's innovations, which a fit of squared errors leaves to the record."""
    if not isinstance(fit.target, SquaredErrors):
        return {}
    errors, measured = np.zeros(fit.target.measured.shape), fit.target.measured
    errors[measured] = fit.target.evaluate(fit.x).residuals
    std = np.sqrt(np.sum(errors**2, axis=0) / np.maximum(measured.sum(axis=0), 1))
    pairs = zip(fit.setup.system.outputs, std, strict=True)
    return {f"noise_{o}": float(s) for o, s in pairs if np.isfinite(s)}


def priors(fit: Any, scale: float) -> Priors:
    """Priors ``scale`` times as wide as the standard errors of a fit."""
    if isinstance(scale, bool) or not np.isfinite(scale) or scale <= 0:
        raise ValueError(f"scale is {scale!r}; give a positive number.")
    layout, unknowns = fit.setup.unknowns.layout, fit.setup.unknowns
    if bad := [n for n, s in zip(fit.names, fit.x_stderr, strict=True) if not np.isfinite(s)]:
        raise ValueError(f"the fit has no standard error of {bad}: fix them (fixed=...) and fit again, or write their priors.")
    result = Priors()
    for i in np.flatnonzero(~fit.active):
        x, spread, log = float(fit.x[i]), scale * float(fit.x_stderr[i]), bool(layout.positive[i])
        mu, sigma = (float(np.log(x)), spread / x) if log else (x, spread)
        low, high = (0.0, np.inf) if log else (float(unknowns.lower[i]), float(unknowns.upper[i]))
        result[fit.names[i]] = {"mu": mu, "sigma": sigma, "lower": low, "upper": high, "log": float(log)}
    count = fit.target.measured.sum(axis=0)
    for (name, std), n in zip(deviations(fit).items(), count, strict=False):
        sigma = float(scale / np.sqrt(2 * n))
        result[name] = {"mu": float(np.log(std)), "sigma": sigma, "lower": 0.0, "upper": np.inf, "log": 1.0}
    return result


def model(fit: Any, scale: float) -> pm.Model:
    """PyMC model of the innovations with priors around a fit; see :meth:`PEMResult.model`."""
    layout, table = fit.setup.unknowns.layout, priors(fit, scale)
    y = np.concatenate([r.output_matrix for r in fit.setup.filter.records])
    measured = ~np.isnan(y)
    with pm.Model(coords={"sample": np.arange(int(measured.sum()))}) as built:
        free = table.variables([n for n in fit.names if n in table])
        x = pt.stack([free.get(n, pt.constant(v)) for n, v in zip(fit.names, fit.x, strict=True)])
        params, x0 = pt.as_tensor_variable(layout.params), pt.as_tensor_variable(layout.x0)
        if layout.slots.size:
            params = params[layout.slots].set(x[layout.sources])
        if layout.x0_sources.size:
            x0 = x0[layout.x0_slots].set(x[layout.x0_sources])
        names = list(deviations(fit))
        errors, variances = fit.setup.filter.graph(params, x0, "errors" if names else "densities")
        if names:
            std = pt.stack(list(table.variables(names).values()))
            variances = pt.broadcast_to(std**2, y.shape)
        rows, columns = np.nonzero(measured)
        expected = y[measured] - errors[rows, columns]
        pm.Normal("y", expected, pt.sqrt(variances[rows, columns]), observed=y[measured], dims="sample")
    return built


def laplace(fit: Any, draws: int, chains: int, random_seed: Any) -> xr.DataTree:
    """Draws of the Gaussian approximation around a fit; see :meth:`PEMResult.laplace`."""
    for what, number in (("draws", draws), ("chains", chains)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{what} is {number!r}; give a positive integer.")
    if not np.isfinite(fit.cov).all():
        bad = [n for n, s in zip(fit.names, fit.x_stderr, strict=True) if not np.isfinite(s)]
        raise ValueError(f"the fit has no covariance of {bad}: fix them (fixed=...) and fit again.")
    rng = np.random.default_rng(random_seed)
    total = int(draws) * int(chains)
    x, noise = _within(fit, total, rng), deviations(fit)
    count = fit.target.measured.sum(axis=0)[: len(noise)]
    # Unknowns that each output's errors have been fitted by make these smaller than the noise is, as in the covariance.
    freedom = np.maximum(count - np.sum(~fit.active) / fit.target.measured.shape[1], 1.0)
    std = np.array(list(noise.values())) * np.sqrt(count / rng.chisquare(freedom, (total, len(noise))))
    values = {fit.names[i]: x[:, i] for i in np.flatnonzero(~fit.active)} | {name: std[:, i] for i, name in enumerate(noise)}
    loglik = np.stack([pointwise(fit, a, b) for a, b in zip(x, std, strict=True)])
    dims, shape = ("chain", "draw"), (int(chains), int(draws))
    coords = {"chain": np.arange(chains), "draw": np.arange(draws)}
    scalars = {name: (dims, v.reshape(shape)) for name, v in values.items()}
    posterior = xr.Dataset(_with_vectors(fit, scalars), coords, {"approximation": "Laplace"})
    groups = {
        "posterior": posterior,
        "log_likelihood": xr.Dataset({"y": ((*dims, "sample"), loglik.reshape(*shape, -1))}, coords),
    }
    if fit.active.any():
        groups["constant_data"] = xr.Dataset({fit.names[i]: float(fit.x[i]) for i in np.flatnonzero(fit.active)})
    return xr.DataTree.from_dict(groups)


def _with_vectors(fit: Any, scalars: dict[str, Any]) -> dict[str, Any]:
    """Entries of vectors and matrices put together where all were fitted, as samplers have them."""
    names, fitted = fit.setup.system.params, dict(zip(fit.names, fit.x, strict=True))
    for name, where in names.vectors().items():
        labels, size = names[where], names.shapes[name]
        drawn = [scalars[label] for label in labels if label in scalars]
        if not size or not drawn or not set(labels) <= set(fitted):
            continue
        dims, first = drawn[0]
        at_bounds = {label: (dims, np.full_like(first, fitted[label])) for label in labels}
        entries = np.stack([scalars.pop(label, at_bounds[label])[1] for label in labels], axis=-1)
        scalars[name] = (*dims, *(f"{name}_dim_{i}" for i in range(len(size)))), entries.reshape(*first.shape, *size)
    return scalars


def _within(fit: Any, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Normal draws within the bounds; of standard deviations, in logarithms. Unknowns that a fit left no freedom stay."""
    positive, unknowns = fit.setup.unknowns.layout.positive, fit.setup.unknowns
    ones = np.where(positive, fit.x, 1.0)
    centre = np.where(positive, np.log(np.where(positive, fit.x, 1.0)), fit.x)
    values, vectors = np.linalg.eigh(fit.cov / np.outer(ones, ones))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    kept: list[np.ndarray] = []
    for _ in range(1000):
        u = centre + rng.standard_normal((draws, fit.x.size)) @ root.T
        x = np.where(positive, np.exp(np.where(positive, u, 0.0)), u)
        x = np.where(fit.active, fit.x, x)
        kept.extend(x[np.all((x >= unknowns.lower) & (x <= unknowns.upper), axis=1)])
        if len(kept) >= draws:
            return np.array(kept[:draws])
    raise ValueError("hardly any draw is within the bounds; the fit is too uncertain for a Gaussian approximation.")


def pointwise(fit: Any, x: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Log-likelihood of every measured value at unknowns ``x``."""
    layout, m = fit.setup.unknowns.layout, fit.target.measured.shape[1]
    params, x0 = layout.place(x)
    motion = type(layout.motion).none(params.size, x0)
    values, _ = fit.setup.filter.run(params, x0, motion, "errors" if std.size else "densities")
    e, s = values[:, :m], values[:, m:]
    if std.size:
        s = np.broadcast_to(std**2, e.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # a draw whose run diverges is infinitely unlikely
        density = -0.5 * (np.log(2 * np.pi * s) + e**2 / s)
    return np.asarray(density[fit.target.measured])
