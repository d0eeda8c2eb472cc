"""Parameters just beyond the draws of a posterior: whether a filter's steps rule out what finer ones would allow.

Draws of a posterior whose likelihood has a wall stay on this side of it, and the integration error there may be small. If
the wall is the integration error's, it moves when the steps are refined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pm_sysid.likelihood.coordinates import Coordinates, checked, for_each_particle
from pm_sysid.likelihood.filter_view import FilterView
from pm_sysid.likelihood.kept import once
from pm_sysid.recurrence.functions import compiled

#: Distances from the mean of the draws, in standard deviations along each coordinate, at which the likelihood is looked at.
DISTANCES = (-8.0, -5.0, -3.5, -2.0, 2.0, 3.5, 5.0, 8.0)
#: The outermost draws on each side of a coordinate, as a share of all, and how far from their mean the likelihood is looked at.
OUTERMOST, FARTHER = 0.2, (1.0, 2.5)
#: A point is part of the posterior if its density is less than that at half of the draws by at most this (logarithm): so low a
#: tail holds less than a thousandth, if it is six standard deviations long. The steps rule it out if finer ones raise the
#: density by this much.
LESS, WALL = 9.0, 1.0
#: The same at points that outermost draws lead to, which are on a tail itself: what is lower there is less than half a percent.
LESS_LED = 6.5
#: Fewest draws that tell where the posterior is.
FEWEST = 12
#: Distance of the means of two groups of draws, in standard deviations within them, from which on they are modes of their own.
APART = 4.0
#: Fewest draws of a group.
MEMBERS = 25


class Wall(NamedTuple):
    """A point beyond draws that finer steps allow.

    Attributes
    ----------
    gain : float
        By how much they raise the log-likelihood there; infinite where it was minus infinity.
    values : dict
        Free variables there.
    finer : dict of str to float
        What the refined log-likelihoods of each filter gain there.
    """

    gain: float
    values: dict[str, np.ndarray]
    finer: dict[str, float]

    @property
    def words(self) -> str:
        """A sentence."""
        where = ", ".join(f"{n} = {np.array2string(np.asarray(v), precision=3)}" for n, v in self.values.items())
        gain = f"rises by {self.gain:.3g}" if np.isfinite(self.gain) else "becomes finite"
        return f"at {where}, beyond the draws, the log-likelihood {gain} if the steps are refined, and the record is explained."


def beyond(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (M, d), at most about ``most``, on both sides of draws (N, d), coordinate by coordinate; how low they may be (M,).

    The others follow the coordinate by regression, so that a point is as likely as one can be that is so far off. Where a
    posterior is curved, the outermost draws on a side lead on: the others follow by regression among them, or stay, as they do
    where a fast rate no longer matters.
    """
    mean, covariance = x.mean(axis=0), np.atleast_2d(np.cov(x.T))
    sd = np.sqrt(np.diag(covariance))
    moving = np.flatnonzero(sd > 0)
    if not moving.size:
        return np.empty((0, len(mean))), np.empty(0)
    slopes = covariance[:, moving] / sd[moving]
    points = [mean + distance * slopes.T for distance in DISTANCES]
    straight = len(DISTANCES) * moving.size
    outermost = max(FEWEST, round(OUTERMOST * len(x)))
    for sign in (-1.0, 1.0):
        for j in moving:
            tail = x[np.argsort(sign * x[:, j])[-outermost:]]
            edge = tail.mean(axis=0)
            own = tail[:, j] - edge[j]
            alone = np.where(np.arange(len(mean)) == j, 1.0, 0.0)
            follows = (tail - edge).T @ own / (own @ own) if own.any() else alone
            points += [edge + sign * distance * sd[j] * np.stack([follows, alone]) for distance in FARTHER]
    every = np.concatenate(points)
    less = np.where(np.arange(len(every)) < straight, LESS, LESS_LED)
    thinned = slice(None, None, max(1, -(-len(every) // max(most, 1))))
    return every[thinned], less[thinned]


def apart(x: np.ndarray, within: Sequence[int] | None = None) -> list[np.ndarray]:
    """Draws (N, d) in groups that lie apart, such as those of several modes: lists of their places among the draws.

    Draws are parted by the plane that leaves the least variance on both sides (two means). The parts are apart if their means
    are, by more than ``APART`` standard deviations of the parts along the line between them; of a Gaussian it is 2.7.
    """
    rows = np.arange(len(x)) if within is None else np.asarray(within)
    some = x[rows]
    sd = some.std(axis=0)
    least = max(MEMBERS, 10 * int(np.sum(sd > 0)))  # among few draws any two groups look apart
    if len(rows) < 2 * least or not (sd > 0).any():
        return [rows]
    z = (some - some.mean(axis=0))[:, sd > 0] / sd[sd > 0]
    # The first division is across the direction in which they spread most.
    _, _, directions = np.linalg.svd(z, full_matrices=False)
    far = z @ directions[0] > 0
    for _ in range(20):
        if not least <= far.sum() <= len(far) - least:
            return [rows]
        means = z[~far].mean(axis=0), z[far].mean(axis=0)
        before, far = far, np.sum((z - means[1]) ** 2, axis=1) < np.sum((z - means[0]) ** 2, axis=1)
        if (far == before).all():
            break
    if not least <= far.sum() <= len(far) - least:
        return [rows]
    line = z[far].mean(axis=0) - z[~far].mean(axis=0)
    along = z @ line / np.linalg.norm(line)
    width = np.sqrt(np.mean(far) * np.var(along[far]) + np.mean(~far) * np.var(along[~far]))
    parts = [*apart(x, rows[~far]), *apart(x, rows[far])]
    # Of three modes two are on one side, and widen it: they are apart if that side falls into parts.
    return parts if len(parts) > 2 or np.linalg.norm(line) > APART * width else [rows]


class BeyondDraws:
    """The posterior at draws and beyond them, with filters' log-likelihoods by any number of steps.

    Parameters
    ----------
    model : pm.Model
    views : mapping
        Its filters by name.
    rows : sequence
        Values of the free variables at a few draws, at which the likelihood is computed.
    located : sequence
        The same at many, which tell where the posterior is.
    most : int
        Points beyond them.
    """

    def __init__(
        self,
        model: pm.Model,
        views: Mapping[str, FilterView],
        rows: Sequence[Sequence[np.ndarray]],
        located: Sequence[Sequence[np.ndarray]],
        most: int,
    ) -> None:
        self.model, self.views, coordinates = model, views, Coordinates(model)
        names = [v.name for v in model.free_RVs]
        x, many = (
            coordinates.unconstrained({n: np.array([row[k] for row in of]) for k, n in enumerate(names)})
            for of in (rows, located)
        )
        groups = [beyond(many[group], most) for group in apart(many)]
        found = [beyond(many, most), *groups] if len(groups) > 1 else groups
        points, less = (np.concatenate(parts) for parts in zip(*found, strict=True))
        values = coordinates.constrained(points)
        fine = np.all([np.isfinite(values[n]).reshape(len(points), -1).all(axis=1) for n in names], axis=0)
        rest = once(model, coordinates.point, (BeyondDraws, "rest", *views), lambda: self._rest(coordinates))
        with np.errstate(all="ignore"):
            at_points = rest(points)
        fine &= np.isfinite(at_points)
        self.points = [[values[n][i] for n in names] for i in np.flatnonzero(fine)]
        self.rest, self.at_rows, self.less = at_points[fine], rest(x), less[fine]
        self.rows = rows

    def _rest(self, coordinates: Coordinates) -> Callable[[np.ndarray], np.ndarray]:
        """Log-density of everything but the filters, for particles (B, d)."""
        model, particles = self.model, pt.dmatrix("particles")
        others = [v for v in model.basic_RVs if v.name not in self.views] + model.potentials
        (batched,) = coordinates.vectorised([checked(model.logp(vars=others))], particles)
        full = for_each_particle(0, batched, particles.shape[0])
        function: Callable[[np.ndarray], np.ndarray] = compiled([particles], full, trust_input=True, mode="FAST_COMPILE")
        return function

    def wall(self, value: Callable[[str, Sequence[Any], int], np.ndarray]) -> Wall | None:
        """The point that finer steps raise most, of those that they make a part of the posterior; None if there is none.

        ``value(name, rows, factor)`` are a filter's log-likelihoods with ``factor`` times its steps.
        """
        if not self.points:
            return None
        own = self.at_rows + sum(value(name, self.rows, 1) for name in self.views)
        by_factor = {f: {name: value(name, self.points, f) for name in self.views} for f in (1, 2, 4)}
        total = {f: self.rest + sum(parts.values()) for f, parts in by_factor.items()}
        with np.errstate(invalid="ignore"):
            finer = np.fmax(total[2], total[4])
            gain = np.where(np.isfinite(finer), finer - np.nan_to_num(total[1], nan=-np.inf, neginf=-np.inf), 0.0)
            gain = np.where(
                finer >= np.median(own[np.isfinite(own)], axis=0) - self.less if np.isfinite(own).any() else False, gain, 0.0
            )
        k = int(np.argmax(gain))
        if not gain[k] > WALL:
            return None
        better = 2 if total[2][k] >= total[4][k] else 4
        parts = {name: float(by_factor[better][name][k] - by_factor[1][name][k]) for name in self.views}
        names = [v.name for v in self.model.free_RVs]
        return Wall(float(gain[k]), dict(zip(names, self.points[k], strict=True)), parts)
