"""Workers of the test run: one file or one test runs in this process, more files in two. What they share the processor with."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

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
    _without_audits()


def _without_audits() -> None:
    """Filelock audits each call of ``id``, of which PyTensor makes thousands for a graph: a tenth of the time of a function."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "addaudithook", lambda hook: None)
        import filelock  # noqa: F401


#: Rewriters of PyTensor by what was asked for.
_REWRITERS: dict[Any, Any] = {}


def pytest_collection_finish() -> None:
    """What PyTensor does in Python again and again is done once, or faster; none of it changes a result."""
    from pytensor.graph.utils import MetaType

    # Nothing is registered as a subclass of a class of PyTensor's, which Python would look for at each isinstance.
    MetaType.__instancecheck__ = type.__instancecheck__
    _remember_rewriters()


def _remember_rewriters() -> None:
    """Equal questions for rewrites of PyTensor have one answer, until the end of a file or a new rewrite.

    PyTensor would collect the same rewrites, and then find again which of them are for which operation, for each function: a
    fifth of the time of a small one.
    """
    from pytensor.graph.rewriting.db import RewriteDatabase, RewriteDatabaseQuery, SequenceDB

    ask, add_tags, remove_tags = SequenceDB.query, RewriteDatabase.add_tags, RewriteDatabase.remove_tags

    def query(self: Any, *tags: Any, **options: Any) -> Any:
        wanted = tags[0] if len(tags) == 1 and not options else None
        if not isinstance(wanted, RewriteDatabaseQuery) or wanted.subquery or wanted.extra_rewrites:
            return ask(self, *tags, **options)
        question = id(self), str(wanted)
        found = _REWRITERS.get(question)
        if found is None:
            found = _REWRITERS[question] = ask(self, wanted)
        return found

    def forgetting(change: Any) -> Any:
        def changed(self: Any, *arguments: Any) -> None:
            _REWRITERS.clear()
            change(self, *arguments)

        return changed

    SequenceDB.query = query
    RewriteDatabase.add_tags, RewriteDatabase.remove_tags = forgetting(add_tags), forgetting(remove_tags)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Collect all garbage after each file, and never look again at what is left of it.

    Graphs are many small objects, and what a file of tests has built stays until the end. Python would search all of them again
    and again: an eighth of the time of all tests.
    """
    result = yield
    if nextitem is None or nextitem.path != item.path:
        _REWRITERS.clear()  # which know all operations that they have seen
        gc.collect()
        gc.freeze()
    return result
