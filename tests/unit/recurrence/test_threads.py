"""Work of many parts on several threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import pm_sysid as sid
from pm_sysid.recurrence.threads import in_threads, linear_algebra_on_one_thread


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = sid.set_threads(request.param)
    yield request.param
    sid.set_threads(before)


def test_results_are_in_the_order_of_the_parts_and_each_is_counted(threads: int) -> None:
    done = []

    def later_first(part: int) -> int:
        time.sleep(0.002 * (10 - part))
        return part**2

    assert in_threads(later_first, range(10), lambda: done.append(1)) == [part**2 for part in range(10)]
    assert len(done) == 10


def test_settings_for_errors_are_those_of_the_caller(threads: int) -> None:
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        in_threads(lambda part: np.ones(2) / part, [np.zeros(2)], lambda: None)
    with np.errstate(divide="ignore"):
        (found,) = in_threads(lambda part: np.ones(2) / part, [np.zeros(2)], lambda: None)
    assert np.all(np.isinf(found))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_no_further_part_is_begun(threads: int, error: type[BaseException]) -> None:
    begun = []

    def work(part: int) -> None:
        begun.append(part)
        if part == 2:
            raise error
        time.sleep(0.01)

    with pytest.raises(error):
        in_threads(work, range(200), lambda: None)
    assert len(begun) < 100


def test_an_error_is_heard_while_another_part_takes_long(threads: int) -> None:
    begun = []

    def work(part: int) -> None:
        begun.append(part)
        time.sleep(1.5 if part == 0 else 0.01)
        if part == 1:
            raise ValueError

    with pytest.raises(ValueError):
        in_threads(work, range(200), lambda: None)
    assert len(begun) < 100


def test_no_parts_are_no_results_and_more_threads_than_parts_or_cores_are_not_made() -> None:
    before, at_once = sid.set_threads(10_000), set[str]()
    try:
        assert in_threads(lambda part: part, [], lambda: None) == []
        in_threads(lambda part: (at_once.add(threading.current_thread().name), time.sleep(0.001)), range(50), lambda: None)
    finally:
        sid.set_threads(before)
    assert 1 <= len(at_once) <= (os.cpu_count() or 1)


def test_an_interruption_while_results_are_awaited_ends_the_work(threads: int) -> None:
    begun, done = [], []

    def interrupted() -> None:
        done.append(1)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_threads(lambda part: (begun.append(part), time.sleep(0.01)), range(200), interrupted)
    assert len(done) == 3 and len(begun) < 100


def test_linear_algebra_is_on_one_thread_within_the_context_and_as_before_after_it() -> None:
    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with linear_algebra_on_one_thread():  # the first time, libraries are loaded
        pass
    before = threads()
    with linear_algebra_on_one_thread():
        assert threads() and set(threads()) == {1}
        with linear_algebra_on_one_thread():
            pass
        assert set(threads()) == {1}
    assert threads() == before
    # Two threads that are within it at once, the first of which leaves it first.
    first, second, in_both = threading.Event(), threading.Event(), list[int]()
    both = threading.Barrier(3, timeout=60)

    def hold(mine: threading.Event) -> None:
        with linear_algebra_on_one_thread():
            both.wait()
            mine.wait(60)

    workers = [threading.Thread(target=hold, args=(event,)) for event in (first, second)]
    for worker in workers:
        worker.start()
    both.wait()
    first.set()
    workers[0].join()
    in_both += threads()
    second.set()
    workers[1].join()
    assert set(in_both) == {1} and threads() == before
