"""Errors of the integration beside the standard errors of a fit: what is judged by the outputs can count for unknowns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.pem.filters import KalmanFilter
from pm_sysid.pem.objective import Evaluation, Objective
from pm_sysid.pem.side_by_side import Coordinates
from pm_sysid.pem.unseen import sizes

#: Unknowns may move by this much where the substeps are doubled, in standard errors.
TOLERATED = 0.1
#: Orders of the integration methods, and by how much substeps are multiplied at most.
ORDER, MOST = {"rk4": 4, "implicit": 2}, 32
#: Where finer steps are this much less likely, the record was simulated by the coarse ones.
OWN = 8.0
#: Root mean square errors of this share of the outputs are rounding.
ROUNDING = 1e-10


class StepError(NamedTuple):
    """The unknown that moves most as the substeps are doubled, and by how many standard errors."""

    unknown: int
    moved: float

    def times(self, method: str) -> int:
        """By how much to multiply the substeps, a power of two: by as much as makes what is moved tolerable, or the most."""
        doublings = np.ceil(np.log2(self.moved / TOLERATED) / ORDER[method])
        return int(min(2.0 ** max(doublings, 1.0), MOST))


def newton_step(at: Evaluation, x: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, float]:
    """One step of Gauss and Newton (f,) of the unknowns at the places ``free``, and how much lower it should end."""
    size = sizes(x)[free]
    information = at.information[np.ix_(free, free)] * np.outer(size, size)
    scale = 1.0 / np.sqrt(np.maximum(np.diag(information), 1e-300))
    slope = at.gradient[free] * size * scale
    step = -np.linalg.pinv(information * np.outer(scale, scale), rcond=1e-13, hermitian=True) @ slope
    return step * scale * size, -0.5 * float(slope @ step)


def step_error(target: Objective, finer: Objective, x: np.ndarray, stderr: np.ndarray) -> StepError | None:
    """Whether errors of the integration count at an optimum; None where they do not.

    Parameters
    ----------
    target, finer : Objective
        The objective, and the one with twice the substeps.
    x, stderr : ndarray, shape (k,)
        The optimum and its standard errors.

    Notes
    -----
    One step of Gauss and Newton with the finer steps. Noise that is estimated takes part in it, and is not looked at.
    """
    assert isinstance(target.filter, KalmanFilter)
    free = np.flatnonzero(np.isfinite(stderr) & (stderr > 0))
    told = np.flatnonzero(~target.layout.positive[free])
    y = np.concatenate([r.output_matrix for r in target.filter.records])
    coarse, fine = target.evaluate(x), finer.evaluate(x)
    c = Coordinates(target, np.full(x.size, -np.inf), np.full(x.size, np.inf), abs(coarse.value))
    if not told.size or not fine.finite:
        return None
    if fine.residuals.size and fine.value <= ROUNDING**2 * np.nanmean(y**2):
        return None
    step, lower = newton_step(fine, x, free)
    moved = np.abs(step / stderr[free])[told]
    if not moved.max() > TOLERATED or c.gain(coarse.value, fine.value - lower) > OWN:
        return None
    return StepError(int(free[told[np.argmax(moved)]]), float(moved.max()))
