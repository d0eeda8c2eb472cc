"""Numbers along an axis in a unit other than that of its data."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import Formatter, MaxNLocator


class RoundNumbers(MaxNLocator):
    """Ticks where the data are round numbers of a unit."""

    def __init__(self, unit: float) -> None:
        super().__init__(nbins="auto", steps=[1, 2, 2.5, 5, 10])
        self.unit = unit

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """Places of the ticks between two numbers, in the unit of the data."""
        return np.asarray(super().tick_values(vmin / self.unit, vmax / self.unit)) * self.unit


class InUnit(Formatter):
    """Numbers of a unit."""

    def __init__(self, unit: float) -> None:
        self.unit = unit

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The number that stands at a place in the unit of the data."""
        return self.fix_minus(f"{x / self.unit:.10g}")
