"""Process noise that a likelihood has found: how uncertain it is, and what that does to the errors of all unknowns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pm_sysid.pem.objective import Evaluation, Objective
from pm_sysid.pem.side_by_side import Coordinates, valleys
from pm_sysid.pem.uneven_noise import Samples

#: Standard errors from the optimum, of the logarithm of a noise, at which the other unknowns are fitted again; and by how many
#: steps.
GRID, STEPS = np.array([-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.5]), 4
#: Standard errors of a logarithm longer than this count as this.
LONGEST = 1.0
#: Information about another noise's logarithm below which it counts as zero there.
SEEN = 1e-3
#: Where noise is as good as zero: as many values from the largest that loses less than this in log-likelihood.
VALUES, LOST = 9, 8.0
#: Halvings of a noise, from where it is first searched for, among which that value is.
HALVINGS = 24
#: Measurement noise has vanished at this share of where it is first searched for, a tenth of the output's spread.
VANISHED = 1e-4
#: A share of the chance below which a noise that is as good as zero lies.
LIMIT = 0.95


class Uncertain(NamedTuple):
    """``ratio`` (k,): by how much errors of the coordinates are larger than at the noise that was found.

    ``limits``: by the place of each noise that is as good as zero, below what it lies with a chance of 95 %.
    """

    ratio: np.ndarray
    limits: dict[int, float]


def uncertain_noise(
    c: Coordinates, x: np.ndarray, evaluation: Evaluation, free: np.ndarray, gone: np.ndarray, first: np.ndarray
) -> Uncertain:
    """Errors over all noise that the record allows, in place of those at the most likely one.

    Parameters
    ----------
    c, x, evaluation
        The optimum of a likelihood.
    free, gone : ndarray, shape (k,)
        Marks unknowns with errors, and noise that is as good as zero.
    first : ndarray, shape (k,)
        Where the search for the unknowns begins.

    Notes
    -----
    The most likely noise is too small, by what the other unknowns have taken of it, and its likelihood is skewed. Each noise
    is moved over a grid, the others are fitted again, and each place counts by its likelihood, over which the others are
    integrated (Laplace's approximation, which is restricted maximum likelihood of linear models), with a prior flat in the
    standard deviation. Errors are the root mean squares around the estimates: of covariances at these places and of distances
    between them and the optimum. Several noises are moved one at a time.

    Source: Patterson and Thompson (1971), Biometrika 58, 545-554; Rue, Martino and Chopin (2009), Journal of the Royal
    Statistical Society B 71, 319-392.
    """
    optimum = c.of(x)
    _, information = c.slope(x, evaluation)
    plain = np.zeros(x.size)
    inverse = _inverse(information, np.flatnonzero(free))
    plain[free] = np.diag(inverse)[free]
    extra, limits = np.zeros(x.size), {}
    for j in np.flatnonzero(c.positive & (free | gone)):
        starts = _of_zero(c, x, evaluation, int(j), first) if gone[j] else _around(c, optimum, inverse, int(j))
        if len(starts) < 3:
            continue
        found = [(u, e) for u, e in valleys(c, starts, [int(j)] * len(starts), free, STEPS) if e is not None]
        if len(found) < 3 or not np.ptp([u[j] for u, _ in found]) > 0:
            continue
        weights, squares = [], []
        for u, e in found:
            _, there = c.slope(c.unknowns(u), e)
            seen = free & (~c.positive & (np.diag(there) > 0) | (np.diag(there) > SEEN)) & (np.arange(x.size) != j)
            rest = np.flatnonzero(seen & ~c.positive)
            size = np.sqrt(np.diag(there)[rest])
            _, log_determinant = np.linalg.slogdet(there[np.ix_(rest, rest)] / np.outer(size, size))
            weights.append(-e.value - 0.5 * log_determinant - np.sum(np.log(size)))
            squares.append(_squares(c, u - optimum, np.diag(_inverse(there, np.flatnonzero(seen))), seen, int(j)))
        s = np.exp([u[j] for u, _ in found])
        chances = np.exp(np.array(weights) - np.max(weights)) * np.gradient(s)
        chances /= chances.sum()
        extra += np.where(free, chances @ np.array(squares) - plain, 0.0)
        if gone[j]:
            limits[int(j)] = float(np.interp(LIMIT, np.cumsum(chances), s))
    ratio = np.sqrt(np.maximum(1.0 + extra / np.where(plain > 0, plain, 1.0), 1.0))
    return Uncertain(np.where(free & (plain > 0), ratio, 1.0), limits)


def _squares(c: Coordinates, away: np.ndarray, variance: np.ndarray, seen: np.ndarray, j: int) -> np.ndarray:
    """Mean squares (k,) around the optimum of what is ``away`` from it with a variance, of noise as shares of the most likely.

    Noise that may be nearly zero is far away as a logarithm, while it cannot differ by more than all of itself.
    """
    moved = np.where(seen | (np.arange(away.size) == j), away, 0.0)
    share = np.exp(np.where(c.positive, moved, 0.0))
    return np.asarray(variance * share**2 + np.where(c.positive, share - 1.0, moved) ** 2)


def _around(c: Coordinates, optimum: np.ndarray, inverse: np.ndarray, j: int) -> list[np.ndarray]:
    """Coordinates along the parabola's valley of one noise."""
    if not inverse[j, j] > 0:
        return []
    step = np.sqrt(inverse[j, j])
    points = [optimum + t * min(step, LONGEST) * inverse[:, j] / inverse[j, j] for t in GRID]
    return [np.clip(u, c.lower, c.upper) for u in points if c.lower[j] < u[j] < c.upper[j]]


def _of_zero(c: Coordinates, x: np.ndarray, evaluation: Evaluation, j: int, first: np.ndarray) -> list[np.ndarray]:
    """Coordinates with one noise between nearly zero and as much as the record allows."""
    tried = first[j] * 2.0 ** -np.arange(HALVINGS)
    points = np.tile(x, (HALVINGS, 1))
    points[:, j] = tried
    allowed = np.flatnonzero(c.objective.values(points) < evaluation.value + LOST)
    if not allowed.size:
        return []
    result = np.tile(c.of(x), (VALUES, 1))
    # Others fitted again make room for more of it.
    result[:, j] = np.log(np.linspace(0.0, min(4.0 * tried[allowed[0]], first[j]), VALUES + 1)[1:])
    return [u for u in result if u[j] < c.upper[j]]


def _inverse(information: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Inverse of the part of an information that is of the unknowns ``free``; zero elsewhere."""
    result = np.zeros_like(information)
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))[free]
    part = np.linalg.pinv(information[np.ix_(free, free)] / np.outer(size, size), rcond=1e-13, hermitian=True)
    result[np.ix_(free, free)] = part / np.outer(size, size)
    return result


def taken_from_noise(at: Samples, noise: np.ndarray, others: np.ndarray) -> np.ndarray:
    """By what factor (k,) each measurement noise is larger than what a likelihood has found; one for all that is no noise.

    What unknowns fit of the noise is missing in the innovations: of a sample its leverage. A likelihood does not count this,
    so that many initial states on short records leave a noise that is much too small.

    Parameters
    ----------
    at : Samples
        The likelihood sample by sample at its optimum.
    noise, others : ndarray of bool, shape (k,)
        Marks noise that has been found, and the other unknowns with errors.

    Notes
    -----
    Source: Patterson and Thompson (1971), Biometrika 58, 545-554 (for one noise; of several, each from the samples that it is
    in, by the share of it there).
    """
    q, _ = np.linalg.qr(at.slope[:, others])
    leverage, share = np.sum(q**2, axis=1), np.where(noise, at.relative, 0.0)
    total = share.sum(axis=0)
    mean = np.where(total > 0, share.T @ leverage, 0.0) / np.where(total > 0, total, 1.0)
    return np.asarray(1 / np.sqrt(1.0 - np.minimum(mean, 1.0 - 1.0 / len(leverage))))


def boundless(objective: Objective, x: np.ndarray, first: np.ndarray) -> bool:
    """Whether a search goes where a likelihood has no bound: measurement noise vanishes, and the start meets the first samples.

    Initial states that are unknowns can do so beside process noise, which explains all samples that follow. ``first`` is where
    the search for the unknowns began.
    """
    layout, n = objective.layout, len(objective.filter.system.params) + objective.filter.n_process
    measurement = layout.sources[layout.slots >= n]
    vanished = layout.positive[measurement] & (x[measurement] < VANISHED * first[measurement])
    return bool(vanished.any() and layout.initial.any() and objective.filter.n_process)


def has_process_noise(objective: Objective) -> bool:
    """Whether noise enters a filter between samples, so that what is found of it changes how predictions are made."""
    layout, n = objective.layout, len(objective.filter.system.params)
    process = (layout.slots >= n) & (layout.slots < n + objective.filter.n_process)
    return bool(np.any(layout.positive[layout.sources[process]]))
