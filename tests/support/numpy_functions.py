"""Functions of PyTensor in NumPy for a script in a process of its own, as in the tests around it."""

from __future__ import annotations

import pytensor

from pm_sysid.recurrence.functions import numpy_mode


def use() -> None:
    """From now on, in this process. Importing this file changes nothing: pytest imports it to look for doctests."""
    pytensor.config.mode = numpy_mode()
