"""Particles in the unconstrained space of a model, and what they are in the model's own variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph import vectorize_graph
from pytensor.graph.basic import Variable

from pm_sysid.compat import (
    CheckParameterValue,
    OpFromGraph,
    ViewOp,
    default_transform,
    inline_ofg_node,
    join_nonshared_inputs,
    toposort,
)
from pm_sysid.environment import compiling
from pm_sysid.idata import dataset
from pm_sysid.likelihood.circular import circular_coordinates, in_other_turns, same_turn
from pm_sysid.likelihood.kept import once
from pm_sysid.recurrence.functions import compiled


def model_of(model: pm.Model | None) -> pm.Model:
    """Return the model given, or the one on the context stack."""
    try:
        model = pm.modelcontext(model)
    except TypeError as error:  # of PyMC, without a remedy
        raise TypeError("No model on context stack; call this inside `with model:`, or give the model: model=...") from error
    if not isinstance(model, pm.Model):
        draws = f" sample takes the number of draws by name, draws={model}." if isinstance(model, int) else ""
        raise TypeError(f"model is {type(model).__name__}; give a pm.Model, or None for the one on the context stack.{draws}")
    return model


def check_continuous(model: pm.Model, why: str) -> None:
    """Refuse models with free variables that are discrete or have one value only, or with none."""
    if constant := [v.name for v in model.free_RVs if getattr(v.owner.op, "name", "") == "diracdelta"]:
        raise ValueError(f"the free variables {constant} have one value only (pm.DiracDelta); give the number in their place.")
    if discrete := [v.name for v in model.value_vars if v.type.dtype not in ("float64", "float32")]:
        raise ValueError(
            f"the free variables {discrete} are discrete; {why}. Give them continuous priors or numbers, or build a model for "
            "each of their values and compare these by their evidence (compare_models)."
        )
    if not model.value_vars:
        raise ValueError("the model has no free variables; give at least one parameter a prior.")


def element_labels(shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Name of each scalar element of variables: ``mu``, ``scale[0]``, ``scale[1]``."""
    return [
        f"{name}[{', '.join(map(str, index))}]" if shape else name
        for name, shape in shapes.items()
        for index in np.ndindex(shape)
    ]


def model_dataset(model: pm.Model, columns: dict[str, np.ndarray], dims: Sequence[str]) -> xr.Dataset:
    """Draws of a model's variables, with leading ``dims``, as a Dataset with the model's own dims and coordinates."""
    names = {k: list(v) for k, v in model.named_vars_to_dims.items() if k in columns}
    used = {dim for v in names.values() for dim in v}
    coords = {k: list(v) for k, v in model.coords.items() if v is not None and k in used}
    return dataset(columns, dims, names, coords, {})


def for_each_particle(ndim: int, many: Any, count: Any) -> Any:
    """Give a vectorised graph of a value with ``ndim`` axes a leading particle axis, also where it is the same for all."""
    return many if many.type.ndim > ndim else pt.broadcast_to(many, (count, *(many.shape[i] for i in range(many.type.ndim))))


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
    circular : array of bool, shape (d,)
        Which coordinates are angles. The density repeats itself with every turn of theirs, and one turn is the whole of it.
    centre : array, shape (d,)
        Middle of this turn, for samplers to set: the angles of particles are within half a turn of it.
    """

    def __init__(self, model: pm.Model) -> None:
        self.model = model
        with compiling:
            self.point = model.initial_point()
        self.labels = element_labels({v.name: np.shape(self.point[v.name]) for v in model.value_vars})
        self.size = len(self.labels)
        self.circular = circular_coordinates(model, self.point)
        self.centre = np.zeros(self.size)

    def wrapped(self, particles: np.ndarray) -> np.ndarray:
        """The same particles (..., d) in the one turn of each angle that counts."""
        return same_turn(particles, self.centre, self.circular)

    def once(self, log_density: np.ndarray, particles: np.ndarray) -> np.ndarray:
        """Log density (B,) of particles (B, d), minus infinity in all turns but one: else its integral would be infinite."""
        if not self.circular.any():
            return log_density
        return np.where(in_other_turns(particles, self.centre, self.circular), -np.inf, log_density)

    def vectorised(self, graphs: Sequence[Variable], particles: Variable) -> list[Variable]:
        """Graphs of value variables as graphs of many particles (B, d)."""
        joined_graphs, joined = join_nonshared_inputs(self.point, list(graphs), self.model.value_vars)
        result: list[Variable] = vectorize_graph(joined_graphs, {joined: particles})
        return result

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
        return self.columns(self._unconstrained_function(*arrays), len(arrays[0]))

    def dataset(self, particles: np.ndarray, dims: Sequence[str]) -> xr.Dataset:
        """Particles (..., d) as the model's variables, with its dims and coordinates; NaN where particles are."""
        flat = particles.reshape(-1, self.size)
        fine = np.isfinite(flat).all(axis=1)
        columns = {}
        for name, values in self.constrained(np.ascontiguousarray(flat[fine])).items():
            full = np.full((len(flat), *values.shape[1:]), np.nan)
            full[fine] = values
            columns[name] = full.reshape(*particles.shape[:-1], *values.shape[1:])
        return model_dataset(self.model, columns, dims)

    def columns(self, values: Sequence[np.ndarray], count: int) -> np.ndarray:
        """Side by side, values of the free variables in the order of their value variables."""
        order = {self.model.rvs_to_values[rv]: k for k, rv in enumerate(self.model.free_RVs)}
        columns = [np.reshape(values[order[v]], (count, -1)) for v in self.model.value_vars]
        return self.wrapped(np.concatenate(columns, axis=1).astype(np.float64))

    @cached_property
    def _constrained_function(self) -> Any:
        return once(self.model, self.point, (Coordinates, "constrained"), self._compiled_constrained)

    def _compiled_constrained(self) -> tuple[list[str], Any]:
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
        full = [for_each_particle(v.type.ndim, b, count) for b, v in zip(batched, values, strict=True)]
        return [v.name for v in wanted], compiled([particles], full, trust_input=True)

    def potential(self, particles: np.ndarray) -> np.ndarray:
        """Sum of the model's potentials (B,) for particles (B, d)."""
        with np.errstate(all="ignore"):
            result: np.ndarray = self._potential_function(particles)
        return result

    @cached_property
    def _potential_function(self) -> Any:
        return once(self.model, self.point, (Coordinates, "potential"), self._compiled_potential)

    def _compiled_potential(self) -> Any:
        model, particles = self.model, pt.dmatrix("particles")
        (batched,) = self.vectorised([checked(model.logp(vars=model.potentials, jacobian=False))], particles)
        full = for_each_particle(0, batched, particles.shape[0])
        return compiled([particles], full, trust_input=True, mode="FAST_COMPILE")

    @cached_property
    def _unconstrained_function(self) -> Any:
        return once(self.model, self.point, (Coordinates, "unconstrained"), self._compiled_unconstrained)

    def _compiled_unconstrained(self) -> Any:
        model = self.model
        inputs = {rv: pt.TensorType(rv.type.dtype, (None,) * (rv.type.ndim + 1))(name=rv.name) for rv in model.free_RVs}
        forward = []
        for rv in model.free_RVs:
            transform = model.rvs_to_transforms[rv]
            forward.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
        batched = vectorize_graph(forward, inputs)
        return compiled(list(inputs.values()), batched, trust_input=True)


def added_transforms(model: pm.Model) -> list[tuple[Variable, Any]]:
    """Free variables with transforms that their distributions do not have by themselves: these may cut the prior."""
    found = []
    for rv, transform in model.rvs_to_transforms.items():
        own = default_transform(rv.owner.op, rv) if rv in model.free_RVs else transform
        if transform is not None and _kind(transform) != _kind(own):
            found.append((rv, transform))
    return found


def _kind(transform: Any) -> tuple[Any, ...]:
    """What transforms have in common that do the same; those to intervals with the rule by which these follow."""
    return type(transform), getattr(getattr(transform, "args_fn", None), "__code__", None)


def checked(output: Variable) -> Variable:
    """Make impossible parameter values give minus infinity: an exception would end the batch for one particle.

    Operations that are graphs of others (a logarithm of a sum of exponentials) are those others then: as one, they would be
    computed for one particle after the other.
    """
    known: dict[Variable, Variable] = {}
    output = _taken_apart(output)
    for node in toposort([output]):
        inputs = [known.get(v, v) for v in node.inputs]
        if isinstance(node.op, CheckParameterValue) and node.op.can_be_replaced_by_ninf:
            value, *conditions = inputs
            known[node.outputs[0]] = pt.switch(pt.all([pt.all(c) for c in conditions]), value, -np.inf)
        elif any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            known.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs, strict=True))
    return known.get(output, output)


def _of_one_graph(op: OpFromGraph) -> bool:
    """Whether derivatives are those of the graph inside, and not another function, which would be lost with the operation."""
    own = op.pullback_overrides is None and op.pushforward_overrides is None
    return own and type(op).pullback is OpFromGraph.pullback


def _taken_apart(output: Variable) -> Variable:
    """The same without operations that are graphs of others, or give a variable another name alone.

    Before particles are vectorised: each of these would become an operation that is repeated for each row.
    """
    known: dict[Variable, Variable] = {}
    again = False
    for node in toposort([output]):
        inputs = [known.get(v, v) for v in node.inputs]
        if isinstance(node.op, ViewOp):
            known[node.outputs[0]] = inputs[0]
        elif isinstance(node.op, OpFromGraph) and _of_one_graph(node.op):
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            inner = inline_ofg_node(node if same else node.clone_with_new_inputs(inputs))
            known.update(zip(node.outputs, inner, strict=True))
            again = True  # its graph may have others in it
        elif any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            known.update(zip(node.outputs, node.clone_with_new_inputs(inputs).outputs, strict=True))
    found = known.get(output, output)
    return _taken_apart(found) if again else found
