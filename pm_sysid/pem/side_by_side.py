"""Many searches at once: damped steps of Gauss and Newton, whose points are evaluated in one batch of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.objective import Evaluation, Objective, SquaredErrors
from pm_sysid.progress import doing

#: Steps of a search, accepted or not.
STEPS = 30
#: A search has ended where the next step would gain less than this in log-likelihood.
GAIN = 1e-3
#: Standard deviations change by this factor at most in one step, as a logarithm.
LONGEST = 2.0
#: A mean squared error of this share of the largest is as good as none.
EXACT = 1e-12


class Coordinates:
    """Unknowns as searches see them: standard deviations in logarithms; and objectives as log-likelihoods."""

    def __init__(self, objective: Objective, lower: np.ndarray, upper: np.ndarray, largest: float) -> None:
        self.objective, self.positive = objective, objective.layout.positive
        self.lower, self.upper = self.of(lower), self.of(upper)
        # A guess that explodes is no measure of what is small.
        self.largest = min(largest, objective.of_zero) if isinstance(objective, SquaredErrors) else largest

    def of(self, x: np.ndarray) -> np.ndarray:
        """Coordinates of unknowns."""
        with np.errstate(divide="ignore"):
            return np.where(self.positive, np.log(np.where(self.positive, np.maximum(x, 0.0), 1.0)), x)

    def unknowns(self, u: np.ndarray) -> np.ndarray:
        """Unknowns at coordinates."""
        with np.errstate(over="ignore"):
            return np.where(self.positive, np.exp(np.where(self.positive, u, 0.0)), u)

    def unit(self, value: float) -> float:
        """What turns differences of the objective near a value of it into those of a negative log-likelihood."""
        if not isinstance(self.objective, SquaredErrors):
            return 1.0
        return 0.5 * self.objective.count / max(value, EXACT * self.largest, 1e-300)

    def gain(self, value: float, other: float) -> float:
        """By how much a value of the objective is more likely than another one."""
        if not isinstance(self.objective, SquaredErrors):
            return other - value
        least = max(EXACT * self.largest, 1e-300)
        return 0.5 * self.objective.count * float(np.log(max(other, least) / max(value, least)))

    def slope(self, x: np.ndarray, evaluation: Evaluation) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and information by the coordinates."""
        ones = np.where(self.positive, x, 1.0)
        return evaluation.gradient * ones, evaluation.information * np.outer(ones, ones)


class End(NamedTuple):
    """Where a search ended, by what it had found: ``"joined"`` a place known before, ``"ended"``, or ``"unfinished"``."""

    x: np.ndarray
    evaluation: Evaluation
    how: str
    start: np.ndarray


class _Searcher:
    """One of the searches."""

    def __init__(self, u: np.ndarray) -> None:
        self.u, self.trial = u, u
        self.evaluation: Evaluation | None = None
        self.damping, self.how, self.predicted = 1e-2, "", np.inf
        self.start = u


def explore(
    coordinates: Coordinates, starts: np.ndarray, known: Callable[[np.ndarray, Evaluation], bool]
) -> tuple[list[End], int]:
    """Search from all starts (S, k) at once.

    Parameters
    ----------
    coordinates, starts
    known
        Whether unknowns with their evaluation are where a search has ended before; this one then ends too.

    Returns
    -------
    list of End, int
        Of those searches that found a possible point at all; and the number of points evaluated.
    """
    searchers = [_Searcher(coordinates.of(x)) for x in starts]
    points, last = 0, STEPS
    for i in range(STEPS):
        running = [s for s in searchers if not s.how]
        if not running or i > last:
            break
        trials = np.array([coordinates.unknowns(s.trial) for s in running])
        points += len(trials)
        doing(f"{len(running)} of {len(searchers)} starts, step {i + 1}")
        for s, x, evaluation in zip(running, trials, coordinates.objective.evaluate_many(trials), strict=True):
            _judge(s, x, evaluation, coordinates, known)
            if s.how and s.how != "impossible":  # the others have as long again
                last = min(last, 2 * i + 5)
        _step([s for s in running if not s.how], coordinates)
    found = [s for s in searchers if s.evaluation is not None]
    return [
        End(coordinates.unknowns(s.u), s.evaluation, s.how or "unfinished", coordinates.unknowns(s.start))
        for s in found
        if s.evaluation is not None
    ], points


def valleys(
    c: Coordinates, starts: Sequence[np.ndarray], held: Sequence[int], free: np.ndarray, steps: int
) -> list[tuple[np.ndarray, Evaluation | None]]:
    """Lowest points that a few damped steps of Gauss and Newton reach from coordinates with one unknown of each held.

    Parameters
    ----------
    c
    starts : sequence of ndarray, each (k,)
    held : sequence of int
        The unknown of each that stays.
    free : ndarray, shape (k,)
        Marks unknowns that may move.
    steps

    Returns
    -------
    list of (ndarray, Evaluation or None)
        Coordinates and evaluation of each; None where no point was possible.
    """
    at, trials = list(starts), list(starts)
    best: list[Evaluation | None] = [None] * len(starts)
    damping = [1e-3] * len(starts)
    for _ in range(steps if starts else 0):
        unknowns = np.array([c.unknowns(u) for u in trials])
        for k, e in enumerate(c.objective.evaluate_many(unknowns)):
            lowest = best[k]
            if e.finite and (lowest is None or e.value <= lowest.value):
                best[k], at[k], damping[k] = e, trials[k], damping[k] / 10
            else:
                damping[k] = min(100 * damping[k], 1e6)
            lowest = best[k]
            if lowest is None:
                trials[k] = 0.5 * (trials[k] + at[k])
                continue
            moving = np.flatnonzero(free & (np.arange(free.size) != held[k]))
            slope, information = c.slope(c.unknowns(at[k]), lowest)
            gradient, information = slope[moving], information[np.ix_(moving, moving)]
            size = np.sqrt(np.maximum(np.diag(information), 1e-300))
            scaled = information / np.outer(size, size) + damping[k] * np.eye(moving.size)
            step = np.zeros(free.size)
            step[moving] = -np.linalg.lstsq(scaled, gradient / size, rcond=None)[0] / size
            trials[k] = np.clip(at[k] + step, c.lower, c.upper)
    return list(zip(at, best, strict=True))


def _judge(
    s: _Searcher,
    x: np.ndarray,
    evaluation: Evaluation,
    coordinates: Coordinates,
    known: Callable[[np.ndarray, Evaluation], bool],
) -> None:
    """Take a trial point if it is lower."""
    if evaluation.finite and (s.evaluation is None or evaluation.value <= s.evaluation.value):
        first, s.u, s.evaluation = s.evaluation is None, s.trial, evaluation
        s.damping = s.damping if first else max(s.damping / 7, 1e-9)
        if known(x, evaluation):
            s.how = "joined"
        elif not first and s.predicted < GAIN:
            s.how = "ended"
    elif s.evaluation is None:
        s.how = "impossible"
    else:
        s.damping *= 6
        if s.predicted < GAIN:
            s.how = "ended"


def _step(searchers: Sequence[_Searcher], c: Coordinates) -> None:
    """The next trial point of each, from one factorisation of all."""
    taken = list[tuple[_Searcher, np.ndarray, np.ndarray]]()
    for s in searchers:
        assert s.evaluation is not None
        gradient, information = c.slope(c.unknowns(s.u), s.evaluation)
        if np.isfinite(gradient).all() and np.isfinite(information).all():
            taken.append((s, gradient, information))
        else:
            s.how = "unfinished"  # a finite objective whose squared derivatives overflow
    if not taken:
        return
    u = np.array([s.u for s, _, _ in taken])
    gradient, information = np.array([g for _, g, _ in taken]), np.array([i for _, _, i in taken])
    free = ~(((u <= c.lower) & (gradient > 0)) | ((u >= c.upper) & (gradient < 0)))
    size = np.where(free, np.sqrt(np.diagonal(information, axis1=1, axis2=2)), 0.0)
    # Where nothing moves the outputs, no size is known: the start lies on a plateau, and the step is zero.
    largest = size.max(axis=1, keepdims=True, initial=0.0)
    size = np.where(size > 0, size, np.where(largest > 0, largest, 1.0))
    slope = np.where(free, gradient / size, 0.0)
    scaled = np.where(free[:, :, None] & free[:, None, :], information / size[:, :, None] / size[:, None, :], 0.0)
    values, vectors = np.linalg.eigh(scaled)
    values, along = np.maximum(values, 0.0), np.einsum("ski,sk->si", vectors, slope)
    damping = np.array([s.damping for s, _, _ in taken])[:, None] + 1e-13
    step = -np.where(free, np.einsum("ski,si->sk", vectors, along / (values + damping)) / size, 0.0)
    trial = np.clip(u + np.where(c.positive, np.clip(step, -LONGEST, LONGEST), step), c.lower, c.upper)
    # What a whole step would gain: the part of the residuals that the derivatives reach, small steps or not.
    reached = values > 1e-12 * values.max(axis=1, keepdims=True, initial=0.0)
    whole = np.sum(np.where(reached, along**2 / np.where(reached, values, 1.0), 0.0), axis=1)
    for (s, _, _), there, gain in zip(taken, trial, whole, strict=True):
        assert s.evaluation is not None
        s.trial, s.predicted = there, 0.5 * c.unit(s.evaluation.value) * float(gain)
