"""How many threads a batch of particles runs on, work of many parts on as many, and linear algebra on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import pytensor


def default_threads() -> int:
    """Threads a batch runs on: ``PM_SYSID_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the cores this process may use."""
    for name in ("PM_SYSID_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text:
            if not (text.isascii() and text.isdigit() and int(text) > 0):
                raise ValueError(
                    f"the environment variable {name} is {text!r}; give a positive number of threads, or unset it."
                )
            return int(text)
    return _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: The thread count of batches in a compiled graph, 0 before its first use; graphs get it from :func:`thread_count`.
_THREADS = pytensor.shared(np.asarray(0, dtype="int64"), "pm_sysid::threads")


def thread_count() -> Any:
    """Shared variable with the thread count of batches; the environment is read when it is first asked for.

    Raises
    ------
    ValueError
        If the environment gives something else than a positive number, and :func:`set_threads` was not called.
    """
    if not _THREADS.get_value():
        _THREADS.set_value(np.asarray(default_threads(), dtype="int64"))
    return _THREADS


def set_threads(threads: int | None = None) -> int:
    """Set how many threads a batch of particles runs on, and the draws of :func:`smooth` and :func:`sample_states`.

    Parameters
    ----------
    threads : int, optional
        Default: the environment's ``PM_SYSID_NUM_THREADS`` or ``OMP_NUM_THREADS``, else the cores this process may use.

    Returns
    -------
    int
        The number in force before.

    Raises
    ------
    ValueError
        If ``threads`` is no positive integer, or the default is asked for and the environment does not give one.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> before = sid.set_threads(1)
    >>> sid.set_threads(before)
    1
    """
    if threads is None:
        threads = default_threads()
    integer = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if not integer or not 1 <= threads < 2**31:
        raise ValueError(f"threads is {threads!r}; give a positive integer, or None for the default.")
    before = int(_THREADS.get_value()) or _before_first_use()
    _THREADS.set_value(np.asarray(threads, dtype="int64"))
    return before


def _before_first_use() -> int:
    """Threads of the environment; all cores where it names none that could be used."""
    try:
        return default_threads()
    except ValueError:
        return _cores()


def in_threads[Part, Result](work: Callable[[Part], Result], parts: Iterable[Part], done: Callable[[], Any]) -> list[Result]:
    """Results of ``work`` for each of some parts, in their order, on as many threads as batches run on.

    It pays where most of the work is machine code that leaves the interpreter to others meanwhile. NumPy's settings for errors
    are those of the caller. ``done`` is called for each part that is finished, in the caller's thread. After an error, or an
    interruption, only what has been begun is finished.
    """
    parts = list(parts)
    threads = min(int(thread_count().get_value()), len(parts), _cores())
    if threads <= 1:
        found = list[Result]()
        for part in parts:
            found.append(work(part))
            done()
        return found

    def within(context: Context, part: Part) -> Result:
        return context.run(work, part)

    with ThreadPoolExecutor(threads) as pool:
        try:
            running = [pool.submit(within, copy_context(), part) for part in parts]
            for finished in as_completed(running):
                finished.result()  # or its error
                done()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in running]


#: Those who want one thread of linear algebra at this moment: how many, and what puts back the number of before.
_ONE: dict[str, Any] = {"holders": 0, "before": None}
_CHANGING = Lock()


@contextmanager
def linear_algebra_on_one_thread() -> Iterator[None]:
    """Within this context NumPy and SciPy multiply matrices on one thread.

    Of small ones several threads gain little, and wait for each other four times as long where other work keeps a core busy.
    The number is one of the whole process: the last of those who are within the context at a time puts it back.
    """
    with _CHANGING:
        _ONE["holders"] += 1
        if _ONE["holders"] == 1:
            _ONE["before"] = _libraries().limit(limits=1, user_api="blas")
    try:
        yield
    finally:
        with _CHANGING:
            _ONE["holders"] -= 1
            if _ONE["holders"] == 0:
                _ONE["before"].restore_original_limits()


@cache
def _libraries() -> Any:
    import scipy.linalg  # noqa: F401  (it brings a library of its own, beside NumPy's)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
