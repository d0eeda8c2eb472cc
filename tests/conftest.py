"""What tests of several folders need: the files of the benchmark records, messages of PyMC switched off."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

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
