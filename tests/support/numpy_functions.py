"""Functions of PyTensor in NumPy for a script in a process of its own, which imports this first, as in the tests around it."""

from __future__ import annotations

import pytensor

from pm_sysid.recurrence.functions import numpy_mode

pytensor.config.mode = numpy_mode()
