"""Tasks of a sampler: in this process, or on any executor, with results in the order of the tasks."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytensor

from pm_sysid.arguments import is_number, number, shown
from pm_sysid.environment import compiling

_log = logging.getLogger("pm_sysid")

#: Tasks that wait in an executor's queue for each of its workers.
AHEAD = 3
#: Functions that a worker keeps compiled.
KEPT = 4


@dataclass(frozen=True)
class Execution:
    """Where :func:`sample_abc_ns` simulates and :func:`sample_ibis` runs its chains, and what a run may cost.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Where to work: processes, or ``client.get_executor()`` of a Dask client. Default: on this machine, on all cores
        (see :func:`set_threads`). The result is the same. A worker that dies loses nothing: what it had not finished is
        done again.
    max_simulations, max_seconds : float, optional
        Stop when so many simulations, or so many seconds, are used up; a population that is not complete by then is left
        out. Default: no limit. Only for :func:`sample_abc_ns`, as is the next.
    min_acceptance : float, default 1e-5
        Stop when a smaller share of the candidates than this is accepted.

    Raises
    ------
    ValueError, TypeError
        For values out of range, and for executors that are none; the message names the argument.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import pm_sysid as sid
    >>> with ThreadPoolExecutor(2) as pool:
    ...     execution = sid.Execution(executor=pool, max_simulations=10_000)
    >>> execution.max_simulations
    10000
    """

    executor: Executor | None = None
    max_simulations: float | None = None
    max_seconds: float | None = None
    min_acceptance: float = 1e-5

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            raise TypeError(
                f"executor is {type(self.executor).__name__}; give a concurrent.futures executor, such as "
                "ProcessPoolExecutor(), or client.get_executor() of a Dask client."
            )
        for name in ("max_simulations", "max_seconds"):
            limit = getattr(self, name)
            if limit is not None and not (is_number(limit) and limit > 0):
                raise ValueError(f"{name} is {shown(limit)}; give a positive number, or None for no limit.")
        if not 0 < number(self.min_acceptance, "min_acceptance", "give a share between 0 and 1, such as 1e-5") < 1:
            raise ValueError(f"min_acceptance is {shown(self.min_acceptance)}; give a share between 0 and 1, such as 1e-5.")


class InProcess[Task, Result]:
    """Do the tasks in this process."""

    def __init__(self, work: Callable[[Task], Result]) -> None:
        self.work = work

    def results(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result]]:
        """Tasks with their results, in order, as many as are asked for."""
        for task in tasks:
            yield task, self.work(task)


class OnExecutor[Task, Result]:
    """Do the tasks on an executor: processes, or the workers of a cluster.

    Several tasks are on their way at a time; their results come back in the order of the tasks. Should the executor break
    down, what it had not finished is done in this process.

    Parameters
    ----------
    work : callable
        What does a task in this process.
    make : callable
        Makes the same function in a worker. It is pickled, and called once a worker: compiled functions stay where they are.
    executor : Executor
        Where to submit.
    """

    def __init__(
        self, work: Callable[[Task], Result], make: Callable[[], Callable[[Task], Result]], executor: Executor
    ) -> None:
        self.work, self.executor = work, executor
        self.made = cloudpickle.dumps(make)
        self.key = hashlib.sha256(self.made).hexdigest()
        self.ahead = AHEAD * max(1, workers(executor))
        self.broken = False

    def results(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result]]:
        """Tasks with their results, in order, as many as are asked for."""
        waiting: deque[tuple[Task, Future[Result] | None]] = deque()
        mode = pytensor.config.mode
        try:
            for task in tasks:
                waiting.append((task, self._submit(task)))
                if len(waiting) >= self.ahead or self.broken:
                    yield self._finish(*waiting.popleft())
            while waiting:
                yield self._finish(*waiting.popleft())
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()
            # What PyMC compiles does not wait for others: threads may have left their mode behind.
            pytensor.config.mode = mode

    def _submit(self, task: Task) -> Future[Result] | None:
        if self.broken:
            return None
        try:
            return self.executor.submit(run, self.key, self.made, task)
        except (BrokenExecutor, RuntimeError) as error:
            self._give_up(error)
            return None

    def _finish(self, task: Task, future: Future[Result] | None) -> tuple[Task, Result]:
        if future is not None:
            try:
                return task, future.result()
            except BrokenExecutor as error:
                self._give_up(error)
        return task, self.work(task)

    def _give_up(self, error: BaseException) -> None:
        if not self.broken:
            _log.warning("the executor broke down (%s); the run goes on in this process.", error or type(error).__name__)
            if isinstance(error, BrokenExecutor):
                self.executor.shutdown(wait=True)  # its last workers may still write to the files that are gone on with
        self.broken = True


def workers(executor: Executor) -> int:
    """Number of an executor's workers, or a guess."""
    count = getattr(executor, "_max_workers", None)
    if isinstance(count, int):
        return count
    client = getattr(executor, "_client", None)  # of dask.distributed
    return len(client.scheduler_info()["workers"]) if client is not None else 4


_made: OrderedDict[str, tuple[Callable[[Any], Any], threading.Lock]] = OrderedDict()
_making = threading.Lock()


def run(key: str, made: bytes, task: Any) -> Any:
    """Do a task in a worker, which makes a function when it first meets it.

    Compiled functions are for one thread at a time: where workers are threads of one process, they take turns.
    """
    with _making, compiling:
        if key not in _made:
            _made[key] = cloudpickle.loads(made)(), threading.Lock()
            while len(_made) > KEPT:
                _made.popitem(last=False)
        work, turn = _made[key]
    with turn:
        return work(task)


type Backend[Task, Result] = InProcess[Task, Result] | OnExecutor[Task, Result]


def backend[Task, Result](
    work: Callable[[Task], Result], make: Callable[[], Callable[[Task], Result]], executor: Executor | None
) -> Backend[Task, Result]:
    """Where tasks are done: on an executor, or in this process where there is none."""
    return InProcess(work) if executor is None else OnExecutor(work, make, executor)
