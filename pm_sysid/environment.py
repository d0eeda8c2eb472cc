"""Import of PyTensor whatever ``OMP_NUM_THREADS`` says: it stops the import at a value that is not one integer.

OpenMP itself takes lists such as ``4,2``. The value is checked where threads are first used (``recurrence/threads.py``). A
program that imports PyMC before this package meets PyTensor's own refusal.
"""

from __future__ import annotations

import os

NAME = "OMP_NUM_THREADS"


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
