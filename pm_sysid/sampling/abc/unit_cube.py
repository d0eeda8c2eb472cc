"""Priors as the unit cube: their inverse cumulative distributions, and the constraints on top of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph import graph_replace, vectorize_graph
from pytensor.graph.basic import Variable

from pm_sysid.likelihood.coordinates import added_transforms, element_labels, for_each_particle
from pm_sysid.recurrence.functions import compiled

#: Prior draws at a time from which the prior mass that the constraints leave is estimated, at most so many times, and the
#: relative standard error that is enough.
CONSTRAINT_DRAWS, MOST_BATCHES, RELATIVE_ERROR = 100_000, 200, 0.02
#: Distance of the cube's faces from 0 and 1, where many distributions are infinite.
EDGE = 1e-15


class ConstraintMass(NamedTuple):
    """Prior mean of the exponential of the potentials: its logarithm, and its relative standard error."""

    log: float
    error: float


class Cube:
    """The prior of a model, seen as the uniform distribution in the unit cube.

    A coordinate is the cumulative distribution of one scalar variable given those it depends on, so that uniform points are
    draws from the prior. Potentials multiply the prior; a hard constraint is one that is zero or minus infinity.

    ``labels`` names the d coordinates, ``size`` is d.
    """

    def __init__(self, model: pm.Model) -> None:
        self.model = model
        for rv in model.free_RVs:
            if rv.type.dtype.startswith(("int", "uint", "bool")):
                raise ValueError(f"{rv.name!r} is discrete; sample_abc_ns moves continuous parameters only.")
            if getattr(rv.owner.op, "ndim_supp", 1):
                raise ValueError(
                    f"the prior of {rv.name!r} is multivariate and has no inverse cumulative distribution; write it as "
                    "transformed univariate variables."
                )
        self.shapes = {str(rv.name): np.shape(rv.eval()) for rv in model.free_RVs}
        self.labels = element_labels(self.shapes)
        self.size = len(self.labels)
        if not self.size:
            raise ValueError("a model has no free variables; give it priors for what is to be identified.")

    def values(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Free variables (B, ...) by name at points (B, d) of the cube."""
        function, _ = self._functions
        found = function(np.clip(points, EDGE, 1 - EDGE))
        return dict(zip(self.shapes, found, strict=True))

    def log_potential(self, points: np.ndarray) -> np.ndarray:
        """Sum of the model's potentials (B,) at points of the cube; minus infinity where a constraint is violated.

        A transform that cannot take a value is a constraint, too.
        """
        _, function = self._functions
        if function is None:
            return np.zeros(len(points))
        with np.errstate(all="ignore"):
            found: np.ndarray = function(np.clip(points, EDGE, 1 - EDGE))
        return np.where(np.isnan(found), -np.inf, found)

    @property
    def log_mass(self) -> float:
        """Logarithm of the prior mean of the exponential of the potentials, by draws with the seed 0."""
        return self.constraint_mass([0]).log

    def constraint_mass(self, seed: Sequence[int]) -> ConstraintMass:
        """What normalises the constrained prior, by prior draws until its error is small or there have been many."""
        if self._functions[1] is None:
            return ConstraintMass(0.0, 0.0)
        rng = np.random.default_rng(seed)
        draws, total, squares, error = 0, 0.0, 0.0, np.inf
        while error > RELATIVE_ERROR and draws < MOST_BATCHES * CONSTRAINT_DRAWS:
            weight = np.exp(self.log_potential(rng.random((CONSTRAINT_DRAWS, self.size))))
            draws, total, squares = draws + len(weight), total + float(weight.sum()), squares + float(weight @ weight)
            if total > 0:
                error = float(np.sqrt(max(squares / total**2 - 1 / draws, 0.0)))
        if not 0 < total < np.inf:
            raise ValueError(
                f"none of {draws} prior draws obeys the model's potentials and transforms; the constraints contradict the "
                "priors."
            )
        return ConstraintMass(float(np.log(total / draws)), error)

    @cached_property
    def _functions(self) -> tuple[Any, Any]:
        model, cube = self.model, pt.dmatrix("cube")
        row, at = pt.dvector("row"), 0
        known: dict[Variable, Variable] = {}
        for rv, shape in zip(model.free_RVs, self.shapes.values(), strict=True):
            size = int(np.prod(shape))
            part = row[at : at + size].reshape(shape) if shape else row[at]
            at += size
            try:
                value = pm.icdf(rv, part, warn_rvs=False)
            except NotImplementedError as error:
                raise ValueError(
                    f"the prior of {rv.name!r} has no inverse cumulative distribution in PyMC; use another one, such as "
                    "Uniform, Normal or LogNormal, or transform one of these in a pm.Deterministic."
                ) from error
            (known[rv],) = graph_replace([value], known, strict=False) if known else (value,)
        constraints = [pt.sum(p) for p in model.potentials]
        for rv, transform in added_transforms(model):
            free = transform.forward(rv, *rv.owner.inputs)
            constraints.append(pt.switch(pt.any(pt.isnan(free) | pt.isinf(free)), -np.inf, 0.0))
        constraints = graph_replace(constraints, known, strict=False) if constraints else []
        values = [pt.cast(known[rv], "float64") for rv in model.free_RVs]
        total = [sum(constraints[1:], constraints[0])] if constraints else []
        count = cube.shape[0]
        batched = vectorize_graph([*values, *total], {row: cube})
        shapes = [*self.shapes.values(), *([()] if total else [])]
        full = [for_each_particle(len(shape), b, count) for b, shape in zip(batched, shapes, strict=True)]
        # A few operations on whole columns: not worth being compiled.
        options: dict[str, Any] = {"trust_input": True, "mode": "FAST_COMPILE"}
        first = compiled([cube], full[: len(values)], **options)
        return first, compiled([cube], full[-1], **options) if total else None
