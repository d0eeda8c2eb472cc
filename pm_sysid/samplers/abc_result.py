"""What an ABC nested sampler returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph.replace import vectorize_graph

from pm_sysid.samplers.cube import Cube
from pm_sysid.samplers.particles import systematic
from pm_sysid.samplers.populations import Population, Proposals
from pm_sysid.stages import dataset

type History = list[dict[str, Any]]


def row(
    population: Population, proposals: Proposals, acceptance: float, simulated: int, seconds: float, n_models: int
) -> dict[str, Any]:
    """Statistics of a round."""
    return {
        "threshold": population.threshold,
        "best": float(population.distance.min()),
        "acceptance": acceptance,
        "simulations": simulated,
        "ess": population.ess,
        "seconds": seconds,
        "probability": population.probability(n_models).tolist(),
        "share": population.share(n_models).tolist(),
        "log_mass": population.log_mass(n_models).tolist(),
        "log_volume": [float("nan") if r is None else r.large.log_volume for r in proposals.regions],
    }


def result(
    models: Mapping[str, pm.Model], cubes: Sequence[Cube], population: Population, history: History, stopped: str, seed: int
) -> xr.DataTree:
    """Posterior of each model, the rounds, and the last population."""
    rng = np.random.default_rng([seed, len(history), 1])
    groups: dict[str, Any] = {}
    for k, (name, model) in enumerate(models.items()):
        (rows,) = np.nonzero(population.model == k)
        if len(rows):
            groups[f"{name}/posterior"] = _posterior(model, cubes[k], population, rows, rng)
    groups["populations"] = _rounds(list(models), history)
    names = np.array(list(models))
    groups["particles"] = xr.Dataset(
        {
            "model": ("particle", names[population.model]),
            "distance": ("particle", population.distance),
            "weight": ("particle", population.weight),
            "point": (("particle", "coordinate"), population.points),
        }
    )
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(stopped=stopped, random_seed=seed)
    return tree


def _posterior(model: pm.Model, cube: Cube, population: Population, rows: np.ndarray, rng: np.random.Generator) -> xr.Dataset:
    """Draws of equal weight, as many as the model has particles."""
    weight = population.weight[rows] / np.sum(population.weight[rows])
    drawn = rows[systematic(weight, len(rows), rng)]
    values = cube.values(population.points[drawn, : cube.size])
    free = list(model.free_RVs)
    if model.deterministics:
        values |= _deterministics(model, [values[str(rv.name)] for rv in free])
    columns = {name: value[None] for name, value in values.items()}
    names = {k: list(v) for k, v in model.named_vars_to_dims.items() if k in columns}
    used = {dim for v in names.values() for dim in v}
    coords = {k: list(v) for k, v in model.coords.items() if v is not None and k in used}
    return dataset(columns, ["chain", "draw"], names, coords, {})


def _deterministics(model: pm.Model, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Deterministic variables at draws of the free ones."""
    many = {rv: pt.tensor(rv.name, dtype="float64", shape=(None,) * (rv.type.ndim + 1)) for rv in model.free_RVs}
    wanted = list(model.deterministics)
    batched = vectorize_graph(wanted, many)
    function = pytensor.function(list(many.values()), batched, on_unused_input="ignore")
    return {str(d.name): value for d, value in zip(wanted, function(*values), strict=True)}


def _rounds(names: list[str], history: History) -> xr.Dataset:
    """Statistics with dims (population,) and (population, model)."""
    by_model = ("probability", "share", "log_mass", "log_volume")
    columns = {
        key: (("population", "model") if key in by_model else ("population",), np.array([h[key] for h in history]))
        for key in history[0]
    }
    return xr.Dataset(columns, {"population": np.arange(1, len(history) + 1), "model": names})
