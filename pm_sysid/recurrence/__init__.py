"""Recurrences: the Op that runs a step over time, its gradient, its batch, and the backends.

Importing any of these modules tells PyTensor how the Ops are vectorised, rewritten and compiled.
"""

from pm_sysid.recurrence import assembled, backends, sum_rewrite, vectorise

__all__ = ["assembled", "backends", "sum_rewrite", "vectorise"]
