"""Many small ellipsoids in normal scores of the unit cube: a picture of a region that is bent or broken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy

from pm_sysid.sampling.abc.ellipsoids import Ellipsoid
from pm_sysid.sampling.abc.unit_cube import EDGE

#: Neighbours that shape a local ellipsoid: for each coordinate, and at least this part of all particles. Few, because many lie
#: far along a bend: their ellipsoid is too fat, the fewer particles there are the fatter, and a part of a ridge dies of it.
NEAR, NEAR_PART = 3, 0.025
#: Each local ellipsoid is drawn from at several volumes, in its own volume, with these shares: what lies between neighbours, or
#: a little beyond the last one, has a density that does not make it a heavy particle.
VOLUMES, SHARES = np.array([1.0, 8.0, 64.0]), np.array([0.7, 0.2, 0.1])
#: Centres are chosen by this power of the weights: by the weight itself, a few heavy particles would be most of them.
TEMPERED = 0.5
#: Repetitions and exponent by which the shares are made even in density, and the largest share as a multiple of the mean.
LEVELLINGS, EXPONENT, LARGEST = 10, 0.3, 10.0


@dataclass(frozen=True)
class Cover:
    """Small ellipsoids in normal scores, the standard normal quantiles of the coordinates of the cube.

    A region at the edge of a prior is thin in the cube and is not in normal scores, in which no draw lies outside of the prior.

    Attributes
    ----------
    centres : numpy.ndarray, shape (J, d)
    roots : numpy.ndarray, shape (J, d, d)
    shares : numpy.ndarray, shape (J,)
        Probability with which each is drawn from.
    """

    centres: np.ndarray
    roots: np.ndarray
    shares: np.ndarray

    @property
    def log_volumes(self) -> np.ndarray:
        """Logarithm of each one's volume."""
        return np.array([Ellipsoid(c, r).log_volume for c, r in zip(self.centres, self.roots, strict=True)])

    def draw(self, which: np.ndarray, normal: np.ndarray, radius: np.ndarray) -> np.ndarray:
        """Points (B, d) of the cube for uniform numbers (B,), which choose, standard normal (B, d) and uniform (B,) numbers."""
        chosen = np.minimum(np.searchsorted(np.cumsum(self.shares), which, side="right"), len(self.shares) - 1)
        direction = normal / np.linalg.norm(normal, axis=1, keepdims=True)
        # The uniform number chooses the size as well; what is left of it is uniform again.
        ends = np.cumsum(SHARES)
        size = np.minimum(np.searchsorted(ends, radius, side="right"), len(SHARES) - 1)
        left = np.clip((radius - ends[size]) / SHARES[size] + 1, 0.0, 1.0)
        ball = direction * (VOLUMES[size] * left)[:, None] ** (1 / normal.shape[1])
        scores = self.centres[chosen] + np.einsum("bij,bj->bi", self.roots[chosen], ball)
        result: np.ndarray = scipy.special.ndtr(scores)
        return result

    def densities(self, points: np.ndarray) -> np.ndarray:
        """Density (B, J) of the draws from each ellipsoid at points (B, d) of the cube."""
        scores, d = normal_scores(points), points.shape[1]
        inverse = np.linalg.inv(self.roots)
        shifts = np.einsum("jik,jk->ji", inverse, self.centres)
        z = np.einsum("jik,bk->bji", inverse, scores, optimize=True) - shifts
        squares, inside = np.sum(z**2, axis=2), np.zeros((len(points), len(self.shares)))
        for share, volume in zip(SHARES, VOLUMES, strict=True):
            inside += share / volume * (squares <= volume ** (2 / d))
        # Normal scores of uniform points have the normal density, by which the one in the cube is larger.
        slope = 0.5 * np.sum(scores**2, axis=1) + 0.5 * d * math.log(2 * math.pi)
        result: np.ndarray = inside * np.exp(slope[:, None] - self.log_volumes)
        return result

    def log_density(self, points: np.ndarray, but: np.ndarray | None = None) -> np.ndarray:
        """Log-density (B,) of the draws; ``but`` (J,) are rows of points without the ellipsoid that has its centre there."""
        densities = self.densities(points)
        if but is not None:
            densities[but, np.arange(len(but))] = 0.0
        with np.errstate(divide="ignore"):
            result: np.ndarray = np.log(densities @ self.shares)
        return result

    def levelled(self, points: np.ndarray) -> Cover:
        """The same with shares that make the density at the centres, which are these points of the cube, more even.

        Where particles are few their ellipsoids are wide, and lie outside of the region for the most part. With the shares
        of the others they would bring in few new particles, and be wider still in the next round.
        """
        densities, shares = self.densities(points), self.shares
        for _ in range(LEVELLINGS):
            shares = shares * (densities @ shares) ** -EXPONENT
            shares = np.minimum(shares / shares.sum(), LARGEST / len(shares))
            shares = shares / shares.sum()
        return replace(self, shares=shares)


def normal_scores(points: np.ndarray) -> np.ndarray:
    """Standard normal quantiles of points of the cube."""
    result: np.ndarray = scipy.special.ndtri(np.clip(points, EDGE, 1 - EDGE))
    return result


def cover(points: np.ndarray, weights: np.ndarray, region: Ellipsoid, most: int, uniform: float) -> tuple[Cover, np.ndarray]:
    """Ellipsoids at particles chosen by weight, each shaped by the covariance of its nearest neighbours; and their rows.

    ``region`` is the ellipsoid of all of them, which gives the shape where they are too few; ``uniform`` in [0, 1) chooses.
    """
    n, d = points.shape
    scores, count = normal_scores(points), min(most, n)
    cumulative = np.cumsum(weights**TEMPERED)
    arrows = (uniform + np.arange(count)) / count
    rows = np.unique(np.minimum(np.searchsorted(cumulative / cumulative[-1], arrows, side="right"), n - 1))
    near, even = min(n, max(NEAR * d, int(NEAR_PART * n))), np.full(len(rows), 1 / len(rows))
    roots = _region_roots(scores[rows], region) if near <= 2 * d else _local_roots(scores, weights, rows, near)
    return Cover(scores[rows], roots, even).levelled(points[rows]), rows


def _local_roots(scores: np.ndarray, weights: np.ndarray, rows: np.ndarray, near: int) -> np.ndarray:
    """Roots (J, d, d) from the nearest neighbours of some rows of scores (n, d), in the metric of all of them."""
    d = scores.shape[1]
    share = weights / weights.sum()
    apart = scores - share @ scores
    metric = _root(apart.T @ (share[:, None] * apart))
    z = np.linalg.solve(metric, scores.T).T
    roots = []
    for i in rows:
        apart = z - z[i]
        nearest = np.argpartition(np.sum(apart**2, axis=1), near - 1)[:near]
        covariance = apart[nearest].T @ apart[nearest] / near + 1e-12 * np.eye(d)
        # The semi-axes of a uniform ellipsoid are sqrt(d + 2) standard deviations.
        roots.append(metric @ (math.sqrt(d + 2) * np.linalg.cholesky(covariance)))
    return np.array(roots)


def _region_roots(scores: np.ndarray, region: Ellipsoid) -> np.ndarray:
    """Roots (J, d, d) of the region's ellipsoid at half its size, carried over to normal scores; no wider than the prior."""
    slopes = np.exp(-0.5 * scores**2) / math.sqrt(2 * math.pi)
    roots = 0.5 * region.whole_root / slopes[:, :, None]
    sd = np.linalg.norm(roots, axis=2, keepdims=True)
    result: np.ndarray = roots / np.maximum(sd, 1.0)
    return result


def _root(covariance: np.ndarray) -> np.ndarray:
    """Lower root of a covariance that may be flat in some directions."""
    sd = np.sqrt(np.maximum(np.diag(covariance), 1e-24))
    root: np.ndarray = sd[:, None] * np.linalg.cholesky(covariance / np.outer(sd, sd) + 1e-10 * np.eye(len(sd)))
    return root
