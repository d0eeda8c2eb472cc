"""Whether a record says that its inputs move between the samples in another way than it was told: by steps of Newton."""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np

from pm_sysid.pem.filters import KalmanFilter
from pm_sysid.pem.left_over import left_over, own_errors
from pm_sysid.pem.objective import Evaluation, Objective
from pm_sysid.pem.one_more import MORE_LIKELY, Directions
from pm_sysid.pem.side_by_side import Coordinates
from pm_sysid.pem.step_error import newton_step
from pm_sysid.records.timeseries import InterSample

#: Standard errors by which another behaviour between the samples may move an unknown without a word.
MOVED = 0.5
#: Logarithm of how much more likely it has to make the record to be rather preferred, and not to be ruled out.
RATHER, POSSIBLE = 3.0, -5.0
#: Standard errors by which what the record cannot tell must move an unknown to be worth a word.
COUNTS = 3.0
#: Steps of Gauss and Newton towards the optimum of the other behaviour, and halvings of each.
STEPS, HALVINGS = 3, 4


class Between(NamedTuple):
    """Another behaviour of the inputs between samples: by how much it is more likely, and which unknown it moves most.

    ``clear``: whether its innovations may be white, or it is beyond doubt although they are not.
    """

    intersample: InterSample
    gain: float
    unknown: int
    moved: float
    step: np.ndarray
    clear: bool = True

    @property
    def preferred(self) -> bool:
        """Whether the record tells it from the declared one, and prefers it."""
        return self.gain > MORE_LIKELY

    @property
    def counts(self) -> bool:
        """Whether it matters that the record cannot rule it out."""
        return self.moved > COUNTS or (self.gain > RATHER and self.moved > 1.0)


def other_between(
    target: Objective, x: np.ndarray, stderr: np.ndarray, lower: np.ndarray, upper: np.ndarray, directions: Directions
) -> Between | None:
    """What counts most of the behaviours of inputs between samples that a fit was not told; None if none does.

    Half a sample of delay, which tells an input that is held from one that is not, and the gain that straight lines lose at
    high frequencies, are explained by masses, dampings and starts: the innovations stay white, and the estimates are off by
    many standard errors. What the record says of it is in the likelihoods.

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
    Between or None
        The one that the record prefers, else the one that it cannot tell from the declared one and that moves an unknown by
        more standard errors.
    """
    filter, free = target.filter, np.flatnonzero(np.isfinite(stderr) & (stderr > 0))
    told = free[~target.layout.positive[free]]
    declared = {r.intersample for r in filter.records if r.inputs}
    if not isinstance(filter, KalmanFilter) or not told.size or len(declared) != 1:
        return None
    at = target.evaluate(x)
    c = Coordinates(target, np.full(x.size, -np.inf), np.full(x.size, np.inf), abs(at.value))
    found = []
    others: list[InterSample] = [how for how in get_args(InterSample) if how not in declared]
    for intersample in others:
        other = type(target)(filter.with_inputs(intersample), target.layout)
        there = optimum_near(other, x, free, lower, upper)
        if there is None:
            continue
        moved = np.abs(there[0] - x)[told] / stderr[told]
        gain = c.gain(there[1].value, at.value)
        if moved.max() > MOVED and gain > POSSIBLE:
            clear = not left_over(other, there[0], lower, upper).coloured
            clear = clear or directions.likely(gain, own_errors(other, there[0], lower, upper)[1][target.measured])
            found.append(
                Between(intersample, float(gain), int(told[np.argmax(moved)]), float(moved.max()), there[0] - x, clear)
            )
    return max(found, key=lambda b: (b.preferred, b.gain if b.preferred else b.moved), default=None)


def optimum_near(
    other: Objective, x: np.ndarray, free: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, Evaluation] | None:
    """Where a few steps from ``x`` lead, within bounds; None where the objective has no value."""
    at = other.evaluate(x)
    if not at.finite:
        return None
    for _ in range(STEPS):
        step, gain = newton_step(at, x, free)
        if not np.isfinite(step).all() or not gain > 0:
            break
        points = np.tile(x, (HALVINGS, 1))
        points[:, free] += step * 0.5 ** np.arange(HALVINGS)[:, None]
        points = np.clip(points, lower, upper)
        values = other.values(points)
        best = int(np.argmin(values))
        if not values[best] < at.value:
            break
        x = points[best]
        at = other.evaluate(x)
    return x, at
