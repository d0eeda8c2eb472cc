"""Particles in the unconstrained space of a model, and what they are in the model's own variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from pymc.pytensorf import join_nonshared_inputs
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from pm_sysid.stages import dataset

#: Prior draws for each that obeys the constraints, beyond which these are taken for a mistake.
MOST_TRIED = 100_000


class Coordinates:
    """Rows of numbers (particles) for the value variables of a model, in their order.

    Attributes
    ----------
    labels : list of str
        Name of each coordinate.
    size : int
        Their number d.
    point : dict
        The model's initial point.
    """

    def __init__(self, model: pm.Model) -> None:
        self.model = model
        self.point = model.initial_point()
        self.labels = [
            v.name if np.ndim(self.point[v.name]) == 0 else f"{v.name}[{', '.join(map(str, i))}]"
            for v in model.value_vars
            for i in np.ndindex(np.shape(self.point[v.name]))
        ]
        self.size = len(self.labels)

    def vectorised(self, graphs: Sequence[Variable], particles: Variable) -> list[Variable]:
        """Graphs of value variables as graphs of many particles (B, d)."""
        joined_graphs, joined = join_nonshared_inputs(self.point, list(graphs), self.model.value_vars)
        result: list[Variable] = vectorize_graph(joined_graphs, {joined: particles})
        return result

    def draw_prior(self, draws: int, random_seed: Any = None) -> np.ndarray:
        """Draws from the prior, shape (draws, d); potentials cut it, or thin it out."""
        if not self.model.potentials:
            return self._draw_free(draws, random_seed)
        rng, kept, count, tried = np.random.default_rng(random_seed), [], 0, 0
        while count < draws:
            # Fewer draws obey narrow constraints: then they are drawn by many.
            n = min(max(draws, 10 * tried), 100_000)
            found = self._draw_free(n, rng)
            with np.errstate(all="ignore"):
                potential = self._potential_function(found)
            if np.any(potential > 0):
                raise ValueError(
                    f"a potential of the model is {np.nanmax(potential):.3g} for a draw of the prior; prior draws can only be "
                    "thinned out: write potentials that are at most zero (constraints are zero or minus infinity)."
                )
            found = found[-rng.standard_exponential(n) < potential]
            kept.append(found)
            count, tried = count + len(found), tried + n
            if tried > MOST_TRIED * max(count, 1) and tried > MOST_TRIED * 10:
                raise ValueError(
                    f"{count} of {tried} prior draws obey the model's potentials; the constraints contradict the priors."
                )
        return np.concatenate(kept)[:draws]

    def _draw_free(self, draws: int, random_seed: Any) -> np.ndarray:
        """Draws of the free variables, whatever the potentials."""
        model, values = self.model, []
        for rv in model.free_RVs:
            transform = model.rvs_to_transforms[rv]
            values.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
        # A variable of the prior may be drawn from another one: all are drawn together.
        drawn = pm.draw(values, draws=draws, random_seed=random_seed)
        for rv, value in zip(model.free_RVs, drawn, strict=True):
            if not np.all(np.isfinite(value)):
                raise ValueError(
                    f"the prior of {rv.name!r} draws values its transform cannot take; give it a prior whose draws obey the "
                    "constraint, or start from particles of your own."
                )
        return self._columns(drawn, draws)

    def constrained(self, particles: np.ndarray) -> dict[str, np.ndarray]:
        """Free and deterministic variables of particles (B, d), by name, each of shape (B, ...)."""
        names, function = self._constrained_function
        return dict(zip(names, function(particles), strict=True))

    def unconstrained(self, values: Mapping[str, Any]) -> np.ndarray:
        """Particles (B, d) for values (B, ...) of all free variables, by name."""
        missing = [rv.name for rv in self.model.free_RVs if rv.name not in values]
        if missing:
            raise ValueError(f"the values lack the model's free variables {missing}; there are {sorted(values)}.")
        arrays = [np.asarray(values[rv.name], dtype=rv.type.dtype) for rv in self.model.free_RVs]
        for rv, array in zip(self.model.free_RVs, arrays, strict=True):
            if array.ndim != rv.type.ndim + 1 or len(array) != len(arrays[0]):
                raise ValueError(
                    f"the values of {rv.name!r} have the shape {array.shape}; give one entry a particle along the first axis."
                )
        return self._columns(self._unconstrained_function(*arrays), len(arrays[0]))

    def dataset(self, particles: np.ndarray, dims: Sequence[str]) -> xr.Dataset:
        """Particles (..., d) as the model's variables, with its dims and coordinates; NaN where particles are."""
        model = self.model
        flat = particles.reshape(-1, self.size)
        fine = np.isfinite(flat).all(axis=1)
        columns = {}
        for name, values in self.constrained(np.ascontiguousarray(flat[fine])).items():
            full = np.full((len(flat), *values.shape[1:]), np.nan)
            full[fine] = values
            columns[name] = full.reshape(*particles.shape[:-1], *values.shape[1:])
        names = {k: list(v) for k, v in model.named_vars_to_dims.items() if k in columns}
        used = {dim for v in names.values() for dim in v}
        coords = {k: list(v) for k, v in model.coords.items() if v is not None and k in used}
        return dataset(columns, dims, names, coords, {})

    def _columns(self, values: Sequence[np.ndarray], count: int) -> np.ndarray:
        """Side by side, values of the free variables in the order of their value variables."""
        order = {self.model.rvs_to_values[rv]: k for k, rv in enumerate(self.model.free_RVs)}
        columns = [np.reshape(values[order[v]], (count, -1)) for v in self.model.value_vars]
        return np.concatenate(columns, axis=1).astype(np.float64)

    @cached_property
    def _constrained_function(self) -> tuple[list[str], Any]:
        model = self.model
        wanted = [*model.free_RVs, *model.deterministics]
        values = model.replace_rvs_by_values(wanted)
        for k, rv in enumerate(model.free_RVs):
            transform, value = model.rvs_to_transforms[rv], model.rvs_to_values[rv]
            if transform is not None:
                inputs = model.replace_rvs_by_values(list(rv.owner.inputs))
                values[k] = transform.backward(value, *inputs)
            else:
                values[k] = value
        particles = pt.dmatrix("particles")
        batched = self.vectorised(values, particles)
        count = particles.shape[0]
        full = [
            b if b.type.ndim > v.type.ndim else pt.broadcast_to(b, (count, *(b.shape[i] for i in range(b.type.ndim))))
            for b, v in zip(batched, values, strict=True)
        ]
        return [v.name for v in wanted], pytensor.function([particles], full, on_unused_input="ignore", trust_input=True)

    @cached_property
    def _potential_function(self) -> Any:
        model, particles = self.model, pt.dmatrix("particles")
        total = sum(pt.sum(p) for p in model.replace_rvs_by_values(model.potentials))
        (batched,) = self.vectorised([total], particles)
        full = batched if batched.type.ndim else pt.broadcast_to(batched, (particles.shape[0],))  # type: ignore[attr-defined]
        return pytensor.function([particles], full, on_unused_input="ignore", trust_input=True, mode="FAST_COMPILE")

    @cached_property
    def _unconstrained_function(self) -> Any:
        model = self.model
        inputs = {rv: pt.tensor(rv.name, dtype=rv.type.dtype, shape=(None,) * (rv.type.ndim + 1)) for rv in model.free_RVs}
        forward = []
        for rv in model.free_RVs:
            transform = model.rvs_to_transforms[rv]
            forward.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
        batched = vectorize_graph(forward, inputs)
        return pytensor.function(list(inputs.values()), batched, on_unused_input="ignore", trust_input=True)
