"""How many substeps a sampling interval needs: the fewest whose doubling hardly moves what they are for."""

from __future__ import annotations

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, shown, whole
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.steps.grid import StepGrid

_log = logging.getLogger("pm_sysid")

#: What steps that follow a solution are counted by.
FOR_EACH = "for each of an adaptive solver"

#: Substeps are not doubled beyond this.
MOST = 32
#: More than this many are a mistake.
LIMIT = 10**6


class SubstepWarning(UserWarning):
    """The integration step is too coarse for the results to be trusted."""


@dataclass(frozen=True)
class StepChoice:
    """How many substeps a sample an ODE filter takes, and why; made by :func:`set_substeps` and :func:`settle_substeps`.

    Attributes
    ----------
    substeps : int
        Filter steps in a sampling interval.
    asked : int, "auto" or "array"
        What was asked for: a number is obeyed, and so is an array with a number for each sampling interval; ``"auto"`` lets
        :func:`settle_substeps` take more.
    where : str
        Where the number was judged, in words.
    error : float
        By how much the log-likelihood of the record there still moves when the steps are refined, in nats: an estimate of the
        integration error that is left. NaN where it could not be judged.
    settled : bool
        Whether that is small enough (less than 0.1).
    grids : tuple of StepGrid or None
        Steps of each record that follow its solution or were given, each cut into ``substeps``; None for equal steps.
    """

    substeps: int
    asked: int | Literal["auto", "array"]
    where: str
    error: float
    settled: bool
    grids: tuple[StepGrid, ...] | None = None

    @property
    def follows(self) -> bool:
        """Whether the steps follow the solution by themselves."""
        return self.grids is not None and self.asked == "auto"

    def replaces(self, before: StepChoice) -> bool:
        """Whether what was computed with the steps before is outdated."""
        return self.substeps != before.substeps or self.grids is not before.grids

    def steps(self, factor: int = 1) -> int | list[StepGrid]:
        """Steps that a filter takes, or ``factor`` times as many."""
        return cut(self.grids, self.substeps * factor)


def cut(grids: Sequence[StepGrid] | None, n: int) -> int | list[StepGrid]:
    """``n`` steps a sampling interval; or the steps of grids, each cut into n."""
    return n if grids is None else [grid.refined(n) for grid in grids]


def checked_substeps(substeps: Any, whose: str = "") -> int | Literal["auto"]:
    """A positive whole number, or ``"auto"``."""
    if among(substeps, ("auto",)):
        return "auto"
    if not whole(substeps, 1, LIMIT):
        raise ValueError(f"{whose}substeps is {shown(substeps)}; give a positive integer or 'auto'.")
    return int(substeps)


def given_steps(substeps: Any, records: Sequence[TimeSeries]) -> int | Literal["auto"] | tuple[StepGrid, ...]:
    """A positive whole number, ``"auto"``, or the steps of each record from a number for each of its sampling intervals.

    For several records the arrays are in a list.
    """
    if isinstance(substeps, Variable) or not np.iterable(substeps) or isinstance(substeps, str | bytes | Mapping):
        return checked_substeps(substeps)
    arrays: list[Any] = list(substeps)
    if len(records) == 1:
        only = isinstance(substeps, list | tuple) and len(arrays) == 1 and np.iterable(arrays[0])
        return (_given_grid(arrays[0] if only else substeps, records[0], "substeps"),)
    if len(arrays) != len(records) or not all(np.iterable(a) for a in arrays):
        raise ValueError(
            f"substeps is {shown(substeps)} for {len(records)} records; give one number for all, or a list with an array for "
            "each record that holds a number of steps for each of its sampling intervals."
        )
    return tuple(_given_grid(a, r, f"substeps[{i}]") for i, (a, r) in enumerate(zip(arrays, records, strict=True)))


def _given_grid(substeps: Any, record: TimeSeries, name: str) -> StepGrid:
    """Steps of equal length in every interval, of which each has its own number."""
    remedy = f"give a positive integer for each of the {len(record) - 1} sampling intervals of the record"
    try:
        counts = np.asarray(substeps)
    except ValueError:  # rows of different lengths
        raise ValueError(f"{name} is {shown(substeps)}; {remedy}.") from None
    if counts.dtype.kind not in "iu" and counts.size:
        raise TypeError(f"{name} holds {counts.dtype} values; {remedy}.")
    if counts.shape != record.dt.shape:
        raise ValueError(f"{name} has the shape {counts.shape}; {remedy}.")
    if counts.size and not (counts.min() >= 1 and counts.max() <= LIMIT):
        raise ValueError(f"{name} holds numbers from {counts.min()} to {counts.max()}; {remedy}, at most {LIMIT}.")
    return StepGrid.equal(counts.astype(np.int64))


class Criterion(ABC):
    """A quantity that must hardly change when the substeps are doubled."""

    #: Change that is small enough.
    tolerance: float
    #: What the log says is counted, and who says it.
    steps, who = "Runge-Kutta steps", ""
    #: What they are counted by.
    per = "a sample"
    #: Substeps that are used where no doubling up to twice ``MOST`` changes little enough.
    otherwise = 2 * MOST
    #: The number that is used already, which the log does not repeat.
    known: int | None = None

    @abstractmethod
    def value(self, substeps: int) -> Any:
        """Quantity at a number of substeps."""

    @abstractmethod
    def change(self, coarse: Any, fine: Any) -> float:
        """By how much two values differ; infinite where neither is a number, since that is no sign of agreement."""

    @abstractmethod
    def too_coarse(self, substeps: int, change: float) -> str:
        """Text of the warning about a number that was asked for."""

    @abstractmethod
    def unsettled(self, change: float) -> str:
        """Text of the warning if even the last doubling changes too much."""

    def unseen(self, finest: int) -> float:
        """What changes if the equations are looked at between the times of the finest steps that were tried, too."""
        return 0.0

    def is_new(self, text: str) -> bool:
        """Whether the log has not said so before of the same system and record."""
        return True

    def reached(self, change: float) -> str:
        """What the log adds to the number: where it was judged and what is left."""
        return ""


def settled_substeps(criterion: Criterion, substeps: int | Literal["auto"], first: int = 1) -> tuple[int, float]:
    """The number asked for, checked by doubling it; or the fewest of ``first``, twice, four times ... it that will do.

    A number will do if neither twice nor four times as many change much: coarse steps can be wrong in the same way twice. Nor
    may there be anything that all of these have passed over.

    Returns
    -------
    substeps : int
    change : float
        What still changes there.
    """
    if substeps != "auto":
        change = criterion.change(criterion.value(substeps), criterion.value(2 * substeps))
        if change < criterion.tolerance:
            change = max(change, criterion.unseen(2 * substeps))
        if not change < criterion.tolerance:
            warn(criterion.too_coarse(substeps, change))
        return substeps, change
    found, change = fewest_substeps(criterion, first)
    if found is not None:
        return found, change
    warn(criterion.unsettled(change))
    return max(first, criterion.otherwise), change


def fewest_substeps(criterion: Criterion, first: int = 1) -> tuple[int | None, float]:
    """What :func:`searched_substeps` finds, and say so in the log."""
    found, change = searched_substeps(criterion, first)
    if found is not None:
        say_chosen(criterion, found, change)
    return found, change


def say_chosen(criterion: Criterion, n: int, change: float) -> None:
    """Say in the log how many steps were chosen."""
    steps, reached = counted(n, criterion.steps), criterion.reached(change)
    text = f"{criterion.who}substeps='auto' chose {steps} {criterion.per}{reached}."
    if n != criterion.known and criterion.is_new(text):
        _log.info("%s", text)


def searched_substeps(criterion: Criterion, first: int = 1, most: int = MOST) -> tuple[int | None, float]:
    """The fewest of ``first``, twice, four times ... it that will do, and what still changes there; None if none will do."""
    values: dict[int, Any] = {}

    def changed(n: int, factor: int) -> float:
        for m in (n, factor * n):
            values[m] = values[m] if m in values else criterion.value(m)
        return criterion.change(values[n], values[factor * n])

    n = first
    while True:
        change, finest = changed(n, 2), 2 * n
        if change < criterion.tolerance and 4 * n <= 2 * MOST:
            change, finest = max(change, changed(n, 4)), 4 * n
        if change < criterion.tolerance:
            change = max(change, criterion.unseen(finest))
        if change < criterion.tolerance:
            return n, change
        if 2 * n > most:
            return None, change
        values.pop(n)
        n *= 2


def named(substeps: int, grids: Any) -> str:
    """What was asked for, in a warning: a number of equal steps, or steps of different lengths that are cut further."""
    return f"substeps={substeps}" if grids is None else f"the steps of each sampling interval{_cut_into(substeps)}"


def _cut_into(n: int) -> str:
    return "" if n == 1 else f", each cut into {n}"


def counted(n: int, things: str) -> str:
    """Number with a noun whose plural ends in s."""
    return f"{n} {things.removesuffix('s') if n == 1 else things}"


def warn(text: str, category: type[Warning] = SubstepWarning) -> None:
    """Warn at the line outside the package that led here."""
    warnings.warn(text, category, skip_file_prefixes=(str(Path(__file__).parents[1]),))


def in_words(change: float) -> str:
    """A change as text."""
    return f"{change:.3g}" if math.isfinite(change) else "no finite amount"


def evaluate_at_initial_point(expressions: Any, model: pm.Model | None) -> list[np.ndarray]:
    """Numbers for expressions of a model's variables at its initial point."""
    if model is None:
        return [np.asarray(e.eval()) for e in expressions]
    mode = pytensor.compile.Mode(linker="py", optimizer=None)
    values = model.replace_rvs_by_values(list(expressions))
    function = compiled(model.value_vars, values, mode=mode)
    point = model.initial_point(random_seed=0)
    return list(function(**{v.name: point[v.name] for v in model.value_vars}))
