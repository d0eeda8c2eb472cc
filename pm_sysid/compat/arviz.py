"""Names of ArviZ; importing this module imports arviz-stats."""

from __future__ import annotations

from typing import Any

from arviz_stats import ELPDData  # base class of criteria of fit
from arviz_stats.base import array_stats  # statistics of NumPy arrays without labels: ess, rhat
from arviz_stats.utils import ELPDDataLOO  # what az.loo returns

__all__ = ["ELPDData", "ELPDDataLOO", "array_stats", "elpd_table"]


def elpd_table(criterion: ELPDData) -> str:
    """Header and table of a criterion of fit, as ArviZ prints them."""
    untyped: Any = criterion
    return f"{untyped._header()}\n\n{untyped._table()}\n"
