"""Workers of the test run: one file or one test runs in this process, more files in two. What they share the processor with."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from importlib.util import find_spec

import pytest

# Threads of BLAS wait for each other's small matrices at full speed, and two workers already have two processors: tests of
# samplers took twice the processor's time. Before NumPy is imported, here or in a worker or process that a test starts.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: What an optional library is needed for; any other module that cannot be imported is an error.
collect_ignore_glob = [] if find_spec("jax") else ["pm_sysid/recurrence/jax/*"]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers for whole folders, none where single files or tests are named."""
    named = [argument.partition("::")[0] for argument in config.args]
    single = len(set(named)) == 1 and named[0].endswith(".py")
    return 0 if single else 2


def pytest_configure(config: pytest.Config) -> None:
    """Test files of equal names in several folders: also where ``-o addopts=`` leaves the configured import mode away."""
    config.option.importmode = "importlib"
    gc.set_threshold(10_000, 10, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Collect all garbage after each file, and never look again at what is left of it.

    Graphs are many small objects, and what a file of tests has built stays until the end. Python would search all of them again
    and again: an eighth of the time of all tests.
    """
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result
