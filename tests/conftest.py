"""What tests of several folders need: the files of the benchmark records, messages of PyMC switched off."""

from __future__ import annotations

import base64
import logging
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

pytest.register_assert_rewrite("support")

from support.records import FOLDER  # noqa: E402


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked ``needs_records`` is skipped where its files are missing, and fails in continuous integration."""
    for mark in item.iter_markers("needs_records"):
        missing = [name for name in mark.args if not (FOLDER / name).is_file()]
        if missing:
            reason = f"{', '.join(missing)} not found in {FOLDER}; PM_SYSID_DATA names the folder of the benchmark records"
            if os.environ.get("CI"):
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """No examples are looked for in the docstrings of tests, which have none: a tenth of the time of collecting."""
    found = yield
    return [collector for collector in found if not isinstance(collector, DoctestModule)]


@pytest.fixture(autouse=True, scope="module")
def levels_of_logs() -> Iterator[None]:
    """What a file of tests silences is heard in the next one."""
    logs = [logging.getLogger(name) for name in ("pymc", "pm_sysid")]
    levels = [log.level for log in logs]
    yield
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where a shell has started the tests in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


#: What the random numbers of each test module start with.
_BEGINNINGS: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def same_random_numbers(request: pytest.FixtureRequest) -> None:
    """A module's generator starts anew for each test: which tests ran before it in the same process changes nothing."""
    generator = getattr(getattr(request.node, "module", None), "RNG", None)
    if generator is not None:
        state = _BEGINNINGS.setdefault(request.node.module.__name__, generator.bit_generator.state)
        generator.bit_generator.state = state


@contextmanager
def _unrendered() -> Iterator[None]:
    from pm_sysid.reports import drawing

    encoded, empty = drawing._encoded, base64.b64encode(b"\x89PNG").decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "_encoded", lambda drawn, form, **o: encoded(drawn, form, **o) if form == "svg" else empty)
        yield


@pytest.fixture
def unrendered() -> Iterator[None]:
    """Figures of reports are drawn into their axes, and the picture made of them is empty: half of the time of a report."""
    with _unrendered():
        yield


@pytest.fixture(scope="module")
def unrendered_for_all() -> Iterator[None]:
    """What :func:`unrendered` is for a test, while the reports that the tests of a module share are made."""
    with _unrendered():
        yield


#: Folders and files whose subject is what PyTensor compiles by numba, or how fast it is.
COMPILED = (
    "unit/recurrence/test_functions", "unit/recurrence/test_backends", "unit/recurrence/test_op", "unit/recurrence/jax",
    "unit/recurrence/test_batch_op", "unit/test_environment", "unit/test_compat", "docs",
    "integration/test_sampling", "integration/test_target", "integration/test_priors_without_numba",
)  # fmt: skip


@cache
def _as_users_have_it() -> dict[str, Any]:
    """What the functions below change, as it is before the first of them."""
    import numpy as np
    import pytensor

    from pm_sysid.recurrence.llvm import machine_code

    flags = {"mode": pytensor.config.mode, "traceback__limit": pytensor.config.traceback__limit}
    return {"flags": flags, "errors": np.geterr(), "effort": machine_code.SPEED}


@contextmanager
def _setting(flags: dict[str, Any], errors: dict[str, Any], effort: int) -> Iterator[None]:
    import numpy as np
    import pytensor

    from pm_sysid.recurrence.llvm import machine_code

    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(**flags), np.errstate(**errors):
        patch.setattr(machine_code, "SPEED", effort)
        yield


@contextmanager
def _numpy_functions(effort: int | None) -> Iterator[None]:
    """PyTensor's functions in NumPy; machine code made with so much effort of LLVM, if it is given."""
    users = _as_users_have_it()
    from pm_sysid.recurrence.functions import numpy_mode

    # Where nodes were made matters to no test, and takes a twentieth of their time.
    flags = {"mode": numpy_mode(), "traceback__limit": 0}
    with _setting(flags, {"all": "ignore"}, users["effort"] if effort is None else effort):
        yield


@contextmanager
def _functions_of_users() -> Iterator[None]:
    """What PyTensor compiles where nobody has told it otherwise, which a test must leave as it was."""
    import pytensor

    with _setting(**_as_users_have_it()):
        before = pytensor.config.mode
        yield
        found, pytensor.config.mode = pytensor.config.mode, before  # or all tests after this one are interpreted
        assert found is before or found == before, "pytensor.config.mode has changed: did two threads compile at once?"


def _around_the_kernels(path: Path, root: Path) -> AbstractContextManager[None]:
    place = path.relative_to(root).as_posix().removeprefix("tests/")
    if place.startswith(COMPILED):
        return _functions_of_users()
    return _numpy_functions(None if place.startswith("unit/recurrence") else 0)


@pytest.fixture(scope="module", autouse=True)
def numpy_around_the_kernels_of_shared_fixtures(request: pytest.FixtureRequest) -> Iterator[None]:
    """What :func:`numpy_around_the_kernels` is for a test, for the fixtures that the tests of a module share."""
    with _around_the_kernels(request.path, request.config.rootpath):
        yield


@pytest.fixture(autouse=True)
def numpy_around_the_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Functions of PyTensor in NumPy, around our machine code, where numba is not what is tested.

    Numba compiles each of them for seconds, which was most of the time of all tests. Slow tests, tests marked ``numba`` and
    the folders above have the functions that users have. The others have machine code that LLVM has spent no effort on, too: it
    is made in a third of the time, and a short record does not notice that it is half as fast.
    """
    real = request.node.get_closest_marker("slow") or request.node.get_closest_marker("numba")
    with _functions_of_users() if real else _around_the_kernels(request.path, request.config.rootpath):
        yield
