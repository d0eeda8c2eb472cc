"""Arguments of Data Annealing: numbers of samples, and widths of the proposals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pm_sysid.arguments import is_number, shown
from pm_sysid.records.validation import real

#: Share of the tuning in which samples are taken in, if the rest is for adaptation.
ANNEALED = 0.5
#: Width of a proposal that is not given (the paper's, for logarithms of parameters).
WIDTH = 0.005


def whole_samples(name: str, value: Any, most: int) -> int:
    """Check a number of samples."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {shown(value)}; give a whole number of samples.")
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {shown(value)}; give a number of samples from 1 to {most}, which the model has.")
    return int(value)


def proposal_widths(widths: Any, shapes: Mapping[str, tuple[int, ...]]) -> np.ndarray:
    """Width of each coordinate from one number, or from numbers and arrays by variable."""
    if not isinstance(widths, Mapping):
        widths = dict.fromkeys(shapes, widths)
    if unknown := [name for name in widths if name not in shapes]:
        raise ValueError(f"widths has the unknown name {unknown[0]!r}; the variables moved here are {list(shapes)}.")
    columns = []
    for name, shape in shapes.items():
        given = widths.get(name, WIDTH)
        try:
            array = real(given, "widths")
            columns.append(np.broadcast_to(array, shape).ravel())
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"widths of {name!r} is {shown(given)}; give a positive number, or an array of the shape {shape} that the "
                "variable has in unconstrained space."
            ) from None
        if not np.all(np.isfinite(array) & (array > 0)):
            raise ValueError(f"widths of {name!r} is {given!r}; widths must be positive and finite.")
    return np.concatenate(columns)


def annealed_share(adapt: Any, annealed: Any) -> tuple[bool, float]:
    """Whether to adapt, and the share of the tuning draws in which samples are taken in."""
    if not isinstance(adapt, bool | np.bool_):
        raise TypeError(f"adapt is {shown(adapt)}; give True or False.")
    if annealed is None:
        return bool(adapt), ANNEALED if adapt else 1.0
    if not (is_number(annealed) and 0 < annealed <= 1):
        raise ValueError(f"annealed is {shown(annealed)}; give a share of the tuning draws between 0 and 1, such as 0.5.")
    if adapt and annealed == 1:
        raise ValueError(
            "annealed is 1, which leaves no draw for adaptation; give a smaller share, such as 0.5, or adapt=False."
        )
    return bool(adapt), float(annealed)
