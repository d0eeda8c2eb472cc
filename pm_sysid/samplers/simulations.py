"""Batches of simulations of several models: here, or on any executor, in an order that does not depend on who is first."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future

import cloudpickle
import numpy as np
import pymc as pm

from pm_sysid.samplers.cube import Cube
from pm_sysid.samplers.populations import Candidates, Outcome
from pm_sysid.simulator import batch_distance

_log = logging.getLogger("pm_sysid")

#: Batches that wait in an executor's queue for each of its workers.
AHEAD = 3
#: Problems that a worker keeps compiled.
KEPT = 4


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


class Here:
    """Simulate in this process, on the threads of the batch kernels."""

    def __init__(self, simulations: Simulations) -> None:
        self.simulations = simulations

    def results(self, batches: Iterator[Candidates]) -> Generator[tuple[Candidates, Outcome]]:
        """Batches with their outcomes, in order, as many as are asked for."""
        for candidates in batches:
            yield candidates, self.simulations(candidates)


class Elsewhere:
    """Simulate on an executor: processes, or the workers of a cluster.

    Several batches are on their way at a time; their outcomes come back in the order of the batches. Should the executor
    break down, what it had not finished is done here.
    """

    def __init__(self, simulations: Simulations, executor: Executor) -> None:
        self.simulations, self.executor = simulations, executor
        self.problem = cloudpickle.dumps((simulations.models, simulations.distance))
        self.key = hashlib.sha256(self.problem).hexdigest()
        workers = getattr(executor, "_max_workers", None)
        if not isinstance(workers, int):
            client = getattr(executor, "_client", None)  # of dask.distributed
            workers = len(client.scheduler_info()["workers"]) if client is not None else 4
        self.ahead = AHEAD * max(1, workers)
        self.broken = False

    def results(self, batches: Iterator[Candidates]) -> Generator[tuple[Candidates, Outcome]]:
        """Batches with their outcomes, in order, as many as are asked for."""
        waiting: deque[tuple[Candidates, Future[Outcome] | None]] = deque()
        try:
            for candidates in batches:
                waiting.append((candidates, self._submit(candidates)))
                if len(waiting) >= self.ahead or self.broken:
                    yield self._finish(*waiting.popleft())
            while waiting:
                yield self._finish(*waiting.popleft())
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()

    def _submit(self, candidates: Candidates) -> Future[Outcome] | None:
        if self.broken:
            return None
        try:
            return self.executor.submit(run, self.key, self.problem, candidates)
        except (BrokenExecutor, RuntimeError) as error:
            self._give_up(error)
            return None

    def _finish(self, candidates: Candidates, future: Future[Outcome] | None) -> tuple[Candidates, Outcome]:
        if future is not None:
            try:
                return candidates, future.result()
            except BrokenExecutor as error:
                self._give_up(error)
        return candidates, self.simulations(candidates)

    def _give_up(self, error: BaseException) -> None:
        if not self.broken:
            _log.warning("the executor broke down (%s); the run goes on in this process.", error or type(error).__name__)
        self.broken = True


_compiled: OrderedDict[str, Simulations] = OrderedDict()


def run(key: str, problem: bytes, candidates: Candidates) -> Outcome:
    """Simulate a batch in a worker, which compiles a problem when it first meets it."""
    if key not in _compiled:
        _compiled[key] = Simulations(*cloudpickle.loads(problem))
        while len(_compiled) > KEPT:
            _compiled.popitem(last=False)
    return _compiled[key](candidates)


def where(simulations: Simulations, executor: Executor | None) -> Here | Elsewhere:
    """Return the place where simulations run."""
    if executor is None:
        return Here(simulations)
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"executor is {type(executor).__name__}; give a concurrent.futures executor, such as ProcessPoolExecutor(), or "
            "client.get_executor() of a Dask client."
        )
    return Elsewhere(simulations, executor)
