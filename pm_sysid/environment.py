"""PyTensor as this package uses it: imported whatever ``OMP_NUM_THREADS`` says, and compiling to the same digits everywhere.

PyTensor stops its import at a value of ``OMP_NUM_THREADS`` that is not one integer; OpenMP itself takes lists such as ``4,2``.
The value is checked where threads are first used (``recurrence/threads.py``). A program that imports PyMC before this package
meets PyTensor's own refusal.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

NAME = "OMP_NUM_THREADS"
#: Held while a function is compiled. PyTensor sets ``config.mode`` while it rewrites a graph, for all threads: two that
#: compile at once take each other's mode for the user's and leave it behind, and what follows in the process is interpreted.
compiling = threading.RLock()


def import_pytensor() -> None:
    """Import PyTensor; a value that it would refuse is hidden from it meanwhile."""
    text = os.environ.get(NAME, "")
    try:
        int(text or 1)
    except ValueError:
        del os.environ[NAME]
    try:
        import pytensor  # noqa: F401
    finally:
        if text:
            os.environ[NAME] = text


import_pytensor()

import pytensor  # noqa: E402


def ieee_arithmetic() -> AbstractContextManager[Any]:
    """Functions that are compiled inside round every operation as it is written.

    PyTensor lets LLVM rearrange sums. How it does so depends on what it can inline: all that was compiled in this process, but
    nothing that was loaded from the disk cache. A run would then depend, in the last digit, on the history of its process, and
    the chains of one run on the processes they are in.

    Functions that PyTensor's numba backend defines when it is imported keep the setting of that moment, so that it is imported
    before: it has the user's setting, whoever compiles first.
    """
    import_module("pytensor.link.numba.dispatch")
    flags: AbstractContextManager[Any] = pytensor.config.change_flags(numba__fastmath=False)
    return flags
