"""What tests of several folders need: the files of the benchmark records, messages of PyMC switched off."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

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


#: Folders and files whose subject is what PyTensor compiles by numba, or how fast it is.
COMPILED = (
    "unit/recurrence/test_functions", "unit/recurrence/test_backends", "unit/recurrence/test_op", "unit/recurrence/jax",
    "unit/recurrence/test_batch_op", "unit/test_environment", "unit/test_compat", "docs",
    "integration/test_sampling", "integration/test_target",
)  # fmt: skip


@pytest.fixture(autouse=True)
def numpy_around_the_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Functions of PyTensor in NumPy, around our machine code, where numba is not what is tested.

    Numba compiles each of them for seconds, which was most of the time of all tests. Slow tests, tests marked ``numba`` and
    the folders above have the functions that users have. The others have machine code that LLVM has spent no effort on, too: it
    is made in a third of the time, and a short record does not notice that it is half as fast.
    """
    place = request.path.relative_to(request.config.rootpath).as_posix().removeprefix("tests/")
    real = request.node.get_closest_marker("slow") or request.node.get_closest_marker("numba")
    import numpy as np
    import pytensor

    if real or place.startswith(COMPILED):
        before = pytensor.config.mode
        yield
        found, pytensor.config.mode = pytensor.config.mode, before  # or all tests after this one are interpreted
        assert found is before or found == before, "pytensor.config.mode has changed: did two threads compile at once?"
        return
    from pm_sysid.recurrence.functions import numpy_mode
    from pm_sysid.recurrence.llvm import machine_code

    if not place.startswith("unit/recurrence"):
        monkeypatch.setattr(machine_code, "SPEED", 0)
    # Where nodes were made matters to no test, and takes a twentieth of their time.
    with pytensor.config.change_flags(mode=numpy_mode(), traceback__limit=0), np.errstate(all="ignore"):
        yield
