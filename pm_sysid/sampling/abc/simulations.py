"""The models of a comparison as functions that simulate many points of their cubes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pymc as pm

from pm_sysid.arguments import shown
from pm_sysid.likelihood.ode_simulator import BatchDistance, PlainSimulation, batch_distance
from pm_sysid.sampling.abc.population import Candidates, Outcome
from pm_sysid.sampling.abc.unit_cube import Cube

#: What one more parameter gains by chance in squared errors over the noise's variance, with a probability of 99.7 %, at most.
BY_CHANCE = 9.0

#: Points of each model that tell whether a checkpoint is of it, and of how many they are the first that constraints allow.
TESTED, TRIED = 5, 500


class Simulations:
    """The models of a comparison as functions of points in their cubes."""

    def __init__(self, models: Mapping[str, pm.Model], distance: Callable[..., float] | None) -> None:
        self.models, self.distance = dict(models), distance
        self.cubes = [Cube(model) for model in self.models.values()]
        self.distances = [batch_distance(model, distance) for model in self.models.values()]
        _check_distances(dict(zip(self.models, self.distances, strict=True)), distance)

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

    def tested(self) -> dict[str, np.ndarray]:
        """Parameters and distances at test points of each model, which tell it from one with other equations or records."""
        parameters, distances = list[np.ndarray](), list[np.ndarray]()
        for k, cube in enumerate(self.cubes):
            points = np.random.default_rng(0).random((TRIED, cube.size))
            allowed = np.flatnonzero(cube.log_potential(points) > -np.inf)
            points = points[allowed[:TESTED] if len(allowed) else slice(TESTED)]
            padded = np.pad(points, ((0, 0), (0, self.width - cube.size)), constant_values=np.nan)
            parameters += [np.ravel(v) for v in cube.values(points).values()]
            distances.append(self(Candidates(np.full(len(points), k), padded, 0)).distance)
        return {"parameters": np.concatenate(parameters), "distances": np.concatenate(distances)}


def _check_distances(distances: Mapping[str, BatchDistance], given: Callable[..., float] | None) -> None:
    """Refuse models whose distances are of different kinds: one threshold is no measure for all; and one that is not used."""
    if given is not None and not any(isinstance(s, PlainSimulation) for d in distances.values() for s in d.simulations):
        raise ValueError(
            f"distance is {shown(given)}, and would not be used: every simulator is an ODESimulator and has its own; give it "
            "there, ODESimulator(distance=...)."
        )
    (first, reference), *others = distances.items()
    for name, found in others:
        if set(reference.kinds) != set(found.kinds) or reference.parts != found.parts:
            raise ValueError(
                f"the models {first!r} and {name!r} have other distances, {_words(reference)} and {_words(found)}, and are "
                "compared below one threshold; give both the same distance of the same records."
            )


def _words(distance: BatchDistance) -> str:
    """The kinds of a distance, and the parts that it is a mean of."""
    sizes = ", ".join(str(size) for _, size in distance.parts)
    return f"{' and '.join(sorted(set(distance.kinds)))} of {sizes} values"
