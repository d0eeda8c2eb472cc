"""Ellipsoids around particles in the unit cube, from which nested sampling draws new ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy


@dataclass(frozen=True)
class Ellipsoid:
    """Points ``mean + root z`` with ``|z| <= 1``; with no ``root``, the whole unit cube.

    Attributes
    ----------
    mean : numpy.ndarray, shape (d,)
    root : numpy.ndarray, shape (d, d), or None
        Lower triangular.
    """

    mean: np.ndarray
    root: np.ndarray | None

    @property
    def log_volume(self) -> float:
        """Logarithm of the volume."""
        if self.root is None:
            return 0.0
        d = len(self.mean)
        ball = 0.5 * d * math.log(math.pi) - float(scipy.special.gammaln(0.5 * d + 1))
        return ball + float(np.sum(np.log(np.abs(np.diag(self.root)))))

    def draw(self, normal: np.ndarray, radius: np.ndarray) -> np.ndarray:
        """Uniform points (B, d) for standard normal (B, d) and uniform (B,) numbers."""
        d = normal.shape[1]
        if self.root is None:
            raise ValueError("the whole cube is drawn from by uniform numbers.")
        direction = normal / np.linalg.norm(normal, axis=1, keepdims=True)
        ball = direction * radius[:, None] ** (1 / d)
        result: np.ndarray = self.mean + ball @ self.root.T
        return result

    def holds(self, points: np.ndarray) -> np.ndarray:
        """Which of the points (B, d) lie inside."""
        if self.root is None:
            return np.all((points >= 0) & (points <= 1), axis=1)
        z = np.linalg.solve(self.root, (points - self.mean).T)
        result: np.ndarray = np.sum(z**2, axis=0) <= 1.0
        return result

    def shrunken(self, centre: np.ndarray, factor: float) -> Ellipsoid:
        """Around another centre, with the covariance times a factor; a whole cube becomes the ball that it holds."""
        root = 0.5 * np.eye(len(centre)) if self.root is None else self.root
        return Ellipsoid(centre, math.sqrt(factor) * root)


def whole_cube(d: int) -> Ellipsoid:
    """Return the cube itself."""
    return Ellipsoid(np.full(d, 0.5), None)


def around(points: np.ndarray, weights: np.ndarray, enlarge: float, before: Ellipsoid) -> Ellipsoid:
    """Ellipsoid with the shape of the weighted covariance that holds all points (n, d), enlarged along every axis.

    Few points do not tell a shape; they keep that of the ellipsoid ``before``. Eqs. 15a and 15b.
    """
    n, d = points.shape
    share = weights / np.sum(weights)
    mean = share @ points
    apart = points - mean
    root = None
    if n > 2 * d:
        covariance = (share[:, None] * apart).T @ apart
        sd = np.sqrt(np.diag(covariance))
        if np.all(sd > 0):
            # A direction in which the particles are flat to rounding must not have the volume zero.
            scaled = covariance / np.outer(sd, sd) + 1e-10 * np.eye(d)
            root = sd[:, None] * np.linalg.cholesky(scaled)
    if root is None:
        root = before.shrunken(mean, 1.0).root
    assert root is not None
    z = np.linalg.solve(root, apart.T)
    reach = math.sqrt(float(np.max(np.sum(z**2, axis=0))))
    if n <= 2 * d:  # a few points may all lie near to each other by chance
        reach = max(reach, 0.5)
    result = Ellipsoid(mean, max(enlarge * reach, 1e-12) * root)
    return whole_cube(d) if result.log_volume >= 0 else result


@dataclass(frozen=True)
class Cover:
    """Many small ellipsoids, each as likely as the others: a rough picture of a bent or broken region.

    Attributes
    ----------
    centres : numpy.ndarray, shape (J, d)
    roots : numpy.ndarray, shape (J, d, d)
    """

    centres: np.ndarray
    roots: np.ndarray

    @property
    def log_volumes(self) -> np.ndarray:
        """Logarithm of each one's volume."""
        return np.array([Ellipsoid(c, r).log_volume for c, r in zip(self.centres, self.roots, strict=True)])

    def draw(self, which: np.ndarray, normal: np.ndarray, radius: np.ndarray) -> np.ndarray:
        """Points (B, d) for numbers of ellipsoids (B,), standard normal (B, d) and uniform (B,) numbers."""
        d = normal.shape[1]
        direction = normal / np.linalg.norm(normal, axis=1, keepdims=True)
        ball = direction * radius[:, None] ** (1 / d)
        result: np.ndarray = self.centres[which] + np.einsum("bij,bj->bi", self.roots[which], ball)
        return result

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Log-density (B,) of the draws."""
        inverse = np.linalg.inv(self.roots)
        shifts = np.einsum("jik,jk->ji", inverse, self.centres)
        z = np.einsum("jik,bk->bji", inverse, points, optimize=True) - shifts
        inside = np.sum(z**2, axis=2) <= 1.0
        with np.errstate(divide="ignore"):
            result: np.ndarray = np.log(inside @ np.exp(-self.log_volumes - math.log(len(self.centres))))
        return result


def cover(points: np.ndarray, weights: np.ndarray, region: Ellipsoid, most: int, uniform: float) -> Cover:
    """Ellipsoids at particles chosen by weight, each shaped by the covariance of its nearest neighbours.

    ``region`` is the ellipsoid of all of them, in whose metric they are near; ``uniform`` in [0, 1) chooses.
    """
    n, d = points.shape
    root = 0.5 * np.eye(d) if region.root is None else region.root
    z = np.linalg.solve(root, (points - region.mean).T).T
    count = min(most, n)
    arrows = (uniform + np.arange(count)) / count
    rows = np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), arrows, side="right"), n - 1)
    rows = np.unique(rows)
    near = min(n, max(3 * d, n // 8))
    roots = []
    for i in rows:
        apart = z - z[i]
        if near <= 2 * d:  # too few to tell a shape
            roots.append(0.5 * root)
            continue
        nearest = np.argpartition(np.sum(apart**2, axis=1), near - 1)[:near]
        covariance = apart[nearest].T @ apart[nearest] / near + 1e-12 * np.eye(d)
        # The semi-axes of a uniform ellipsoid are sqrt(d + 2) standard deviations.
        roots.append(root @ (math.sqrt(d + 2) * np.linalg.cholesky(covariance)))
    return Cover(points[rows], np.array(roots))
