"""Whether a record says that its inputs act later, or earlier, than it has them: by steps of Newton with shifted inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.pem.between_samples import optimum_near
from pm_sysid.pem.filters import KalmanFilter
from pm_sysid.pem.left_over import own_errors
from pm_sysid.pem.objective import Objective
from pm_sysid.pem.one_more import Directions
from pm_sysid.pem.side_by_side import Coordinates

#: Most samples that inputs are shifted by, at most this share of the longest record, and how many shifts in a row may lead
#: nowhere.
MOST, SHARE, PATIENCE = 40, 0.1, 2
#: Share by which sampling intervals may differ.
EVEN = 1e-3


class DeadTime(NamedTuple):
    """By how many samples inputs act later (earlier, if negative), by how much that is more likely, and what it moves most."""

    samples: int
    seconds: float
    gain: float
    unknown: int
    moved: float
    step: np.ndarray


def dead_time(
    target: Objective, x: np.ndarray, stderr: np.ndarray, lower: np.ndarray, upper: np.ndarray, directions: Directions
) -> DeadTime | None:
    """The shift of the inputs by whole samples that makes a record most likely; None where that is none, or not clear.

    Time constants, masses and dampings take a part of a dead time upon themselves, and are many standard errors off. One of
    several samples is far from where a derivative leads: the search follows the optimum from sample to sample.

    Parameters
    ----------
    target : Objective
    x, stderr : ndarray, shape (k,)
        The optimum and its standard errors.
    lower, upper : ndarray, shape (k,)
        Bounds.
    directions : Directions
        Of the innovations there.

    Returns
    -------
    DeadTime or None
        ``moved`` and ``step`` (k,) are what a few steps of Newton with the shifted inputs do to the unknowns.
    """
    filter, free = target.filter, np.flatnonzero(np.isfinite(stderr) & (stderr > 0))
    told = free[~target.layout.positive[free]]
    if not isinstance(filter, KalmanFilter) or not told.size or not filter.system.inputs:
        return None
    steps = np.concatenate([r.dt for r in filter.records])
    if not steps.size or np.ptp(steps) > EVEN * steps.mean():
        return None
    most = min(MOST, int(SHARE * max(map(len, filter.records))))
    at = target.evaluate(x)
    c = Coordinates(target, np.full(x.size, -np.inf), np.full(x.size, np.inf), abs(at.value))
    found, best, lowest = x, 0, at.value
    for sign in (1, -1):
        here, value, last = x, at.value, 0
        for d in range(1, most + 1):
            there = optimum_near(_shifted(target, sign * d), here, free, lower, upper)
            if there is not None and there[1].value < value:
                (here, value), last = (there[0], there[1].value), d
                if value < lowest:
                    found, best, lowest = here, sign * d, value
            elif d - last >= PATIENCE:
                break
    if best == 0:
        return None
    gain = float(c.gain(lowest, at.value))
    left = own_errors(_shifted(target, best), found, lower, upper)[1][target.measured]
    if not directions.likely(gain, left):
        return None
    moved = np.abs(found - x)[told] / stderr[told]
    most_moved = int(np.argmax(moved))
    return DeadTime(best, best * float(steps.mean()), gain, int(told[most_moved]), float(moved[most_moved]), found - x)


def _shifted(target: Objective, samples: int) -> Objective:
    """The objective with inputs that act later by some samples."""
    assert isinstance(target.filter, KalmanFilter)
    return type(target)(target.filter.with_later_inputs(samples), target.layout)
