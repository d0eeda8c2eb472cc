"""The models of a comparison as functions that simulate many points of their cubes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pymc as pm

from pm_sysid.likelihood.ode_simulator import batch_distance
from pm_sysid.sampling.abc.population import Candidates, Outcome
from pm_sysid.sampling.abc.unit_cube import Cube

#: What one more parameter gains by chance in squared errors over the noise's variance, with a probability of 99.7 %, at most.
BY_CHANCE = 9.0


class Simulations:
    """The models of a comparison as functions of points in their cubes."""

    def __init__(self, models: Mapping[str, pm.Model], distance: Callable[..., float] | None) -> None:
        self.models, self.distance = dict(models), distance
        self.cubes = [Cube(model) for model in self.models.values()]
        self.distances = [batch_distance(model, distance) for model in self.models.values()]

    @property
    def width(self) -> int:
        """Coordinates of the largest model."""
        return max(cube.size for cube in self.cubes)

    @property
    def narrowest(self) -> float:
        """Threshold over the least distance that is the lowest with a meaning, for the model with most unknowns.

        Beside others, a model that lacks nothing but fits worse by chance is not ruled out.
        """
        more = BY_CHANCE if len(self.cubes) > 1 else 0.0
        return max(d.narrowest(cube.size, more) for d, cube in zip(self.distances, self.cubes, strict=True))

    def __call__(self, candidates: Candidates) -> Outcome:
        """Simulate what lies in the cube and obeys the constraints."""
        B = len(candidates.model)
        distance, potential, simulations = np.full(B, np.inf), np.full(B, -np.inf), 0
        for k, (cube, function) in enumerate(zip(self.cubes, self.distances, strict=True)):
            (rows,) = np.nonzero(candidates.model == k)
            points = candidates.points[rows, : cube.size]
            inside = np.all((points >= 0) & (points <= 1), axis=1)
            rows, points = rows[inside], points[inside]
            if not len(rows):
                continue
            potential[rows] = cube.log_potential(points)
            allowed = potential[rows] > -np.inf
            rows, points = rows[allowed], np.ascontiguousarray(points[allowed])
            if len(rows):
                distance[rows] = function(cube.values(points), candidates.seed + k)
                simulations += len(rows)
        return Outcome(distance, potential, simulations)
