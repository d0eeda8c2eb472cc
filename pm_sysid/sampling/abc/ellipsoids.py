"""Ellipsoids around particles in the unit cube, from which nested sampling draws new ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

#: What is left at least of a point's covariance without itself: one that alone tells a direction counts as if it were ten times
#: as far away.
LEAST_LEVERAGE = 0.1
#: Pieces replace an ellipsoid if their volumes add up to less than this part of its own.
SMALLER = 0.5
#: Most particles among which gaps are looked for, and most pieces of a region.
MOST_LINKED, MOST_PIECES = 300, 8


@dataclass(frozen=True)
class Ellipsoid:
    """Points ``mean + root z`` with ``|z| <= 1``; coordinates that are ``free`` are any number from 0 to 1.

    Attributes
    ----------
    mean : numpy.ndarray, shape (d,)
    root : numpy.ndarray, shape (b, b), or None
        Lower triangular, of the b coordinates that are not free; None where all are, which is the whole unit cube.
    free : numpy.ndarray of bool, shape (d,), or None
        None where all or no coordinates are.
    """

    mean: np.ndarray
    root: np.ndarray | None
    free: np.ndarray | None = None

    @property
    def bound(self) -> np.ndarray:
        """Which coordinates (d,) are not free."""
        return np.full(len(self.mean), self.root is not None) if self.free is None else ~self.free

    @property
    def whole_root(self) -> np.ndarray:
        """The root (d, d) of all coordinates, with half the cube's width for free ones."""
        result = 0.5 * np.eye(len(self.mean))
        if self.root is not None:
            result[np.ix_(self.bound, self.bound)] = self.root
        return result

    @property
    def log_volume(self) -> float:
        """Logarithm of the volume."""
        if self.root is None:
            return 0.0
        b = len(self.root)
        ball = 0.5 * b * math.log(math.pi) - float(scipy.special.gammaln(0.5 * b + 1))
        return ball + float(np.sum(np.log(np.abs(np.diag(self.root)))))

    def draw(self, normal: np.ndarray, radius: np.ndarray, flat: np.ndarray | None = None) -> np.ndarray:
        """Uniform points (B, d) for standard normal (B, d), uniform (B,) and, for free coordinates, uniform (B, d) numbers."""
        if self.root is None or self.free is not None:
            if flat is None:
                raise ValueError("free coordinates are drawn by uniform numbers.")
            result = flat.copy()
        else:
            result = np.empty_like(normal)
        if self.root is None:
            return result
        part = normal[:, self.bound]
        direction = part / np.linalg.norm(part, axis=1, keepdims=True)
        ball = direction * radius[:, None] ** (1 / len(self.root))
        result[:, self.bound] = self.mean[self.bound] + ball @ self.root.T
        return result

    def holds(self, points: np.ndarray) -> np.ndarray:
        """Which of the points (B, d) lie inside."""
        bound = self.bound
        result: np.ndarray = np.all((points[:, ~bound] >= 0) & (points[:, ~bound] <= 1), axis=1)
        if self.root is not None:
            z = np.linalg.solve(self.root, (points[:, bound] - self.mean[bound]).T)
            result &= np.sum(z**2, axis=0) <= 1.0
        return result

    def shrunken(self, centre: np.ndarray, factor: float) -> Ellipsoid:
        """Around another centre, with the covariance times a factor; a whole cube becomes the ball that it holds."""
        return Ellipsoid(centre, math.sqrt(factor) * self.whole_root)


def whole_cube(d: int) -> Ellipsoid:
    """Return the cube itself."""
    return Ellipsoid(np.full(d, 0.5), None)


def around(points: np.ndarray, weights: np.ndarray, enlarge: float, before: Ellipsoid) -> Ellipsoid:
    """Ellipsoid with the shape of the weighted covariance that holds all points (n, d), enlarged along every axis.

    Each point lies in the ellipsoid of all the others, so that few points, which tell a shape badly, have a wide one. Where it
    is smaller, coordinates in which the points are spread most are left free: an ellipsoid around points that fill the
    cube in some directions lies outside of the cube for the most part. Very few points do not tell a shape at all; they keep
    that of the ellipsoid ``before``. Eqs. 15a and 15b.
    """
    n, d = points.shape
    share = weights / np.sum(weights)
    mean = share @ points
    apart = points - mean
    found = []
    if n > 2 * d:
        variance = share @ apart**2
        widest = np.argsort(variance)[::-1]
        for count in range(d):
            filled = np.isin(np.arange(d), widest[:count])
            root = _root(apart[:, ~filled], share)
            if root is not None:
                reach = _reach(apart[:, ~filled], share, root)
                found.append(Ellipsoid(mean, max(enlarge * reach, 1e-12) * root, filled if count else None))
    if not found:
        root = before.whole_root if before.root is None or before.free is None else before.root
        free = None if before.root is None else before.free
        bound = np.full(d, True) if free is None else ~free
        z = np.linalg.solve(root, apart[:, bound].T)
        reach = math.sqrt(float(np.max(np.sum(z**2, axis=0))))
        if n <= 2 * d:  # a few points may all lie near to each other by chance
            reach = max(reach, 0.5)
        found.append(Ellipsoid(mean, max(enlarge * reach, 1e-12) * root, free))
    result = min(found, key=lambda ellipsoid: ellipsoid.log_volume)
    if result.log_volume >= before.log_volume and before.holds(points).all():
        result = before
    return whole_cube(d) if result.log_volume >= 0 else result


def _root(apart: np.ndarray, share: np.ndarray) -> np.ndarray | None:
    """Root of the weighted covariance, or None where points do not differ in a coordinate."""
    covariance = (share[:, None] * apart).T @ apart
    sd = np.sqrt(np.diag(covariance))
    if not np.all(sd > 0):
        return None
    # A direction in which the particles are flat to rounding must not have the volume zero.
    scaled = covariance / np.outer(sd, sd) + 1e-10 * np.eye(len(sd))
    root: np.ndarray = sd[:, None] * np.linalg.cholesky(scaled)
    return root


def _reach(apart: np.ndarray, share: np.ndarray, root: np.ndarray) -> float:
    """Factor on the root so that each point lies in the ellipsoid of the mean and covariance of all the others."""
    z = np.linalg.solve(root, apart.T)
    distance = np.sum(z**2, axis=0)
    # Without the point the mean moves away from it, and the covariance loses its term (Sherman and Morrison).
    left = np.maximum(1 - share, LEAST_LEVERAGE)
    alone = distance / (left * np.maximum(1 - share / left * distance, LEAST_LEVERAGE))
    return math.sqrt(float(np.max(alone)))


def pieces(points: np.ndarray, weights: np.ndarray, enlarge: float, region: Ellipsoid) -> list[tuple[np.ndarray, Ellipsoid]]:
    """Separate pieces of a region: which of the points (n, d) lie in each, and its ellipsoid.

    Points are divided where there is a gap among them, if the ellipsoids of both parts are together much smaller than that of
    all. A region without gaps is one piece.
    """
    whole = [(np.arange(len(points)), region)]
    done: list[tuple[np.ndarray, Ellipsoid]] = []
    while whole:
        rows, here = whole.pop()
        parts = _divided(points[rows], here) if len(whole) + len(done) + 2 <= MOST_PIECES else None
        if parts is not None:
            found = [around(points[rows[part]], weights[rows[part]], enlarge, here) for part in parts]
            total = np.logaddexp(found[0].log_volume, found[1].log_volume)
            if total < here.log_volume + math.log(SMALLER):
                whole += [(rows[part], ellipsoid) for part, ellipsoid in zip(parts, found, strict=True)]
                continue
        done.append((rows, here))
    return done


def _divided(points: np.ndarray, region: Ellipsoid) -> tuple[np.ndarray, np.ndarray] | None:
    """Points on both sides of the widest gap that leaves enough on each to tell a shape, or None."""
    n, d = points.shape
    least = 2 * d + 1
    if n < 2 * least:
        return None
    z = np.linalg.solve(region.whole_root, (points - region.mean).T).T
    some = z[np.linspace(0, n - 1, min(n, MOST_LINKED)).astype(int)]
    tree = scipy.cluster.hierarchy.linkage(some, "single")
    m = len(some)
    size = np.concatenate([np.ones(m), tree[:, 3]])
    smaller = np.minimum(size[tree[:, 0].astype(int)], size[tree[:, 1].astype(int)])
    (gaps,) = np.nonzero(smaller >= min(least, m // 4))
    if not len(gaps):
        return None
    # Single linkage joins ever wider gaps, and the last of these is the widest.
    sides = [_members(tree, int(node), m) for node in tree[gaps[-1], :2]]
    away = [scipy.spatial.cKDTree(some[side]).query(z)[0] for side in sides]
    first = away[0] <= away[1]
    if min(first.sum(), (~first).sum()) < least:
        return None
    return np.flatnonzero(first), np.flatnonzero(~first)


def _members(tree: np.ndarray, node: int, m: int) -> list[int]:
    """Points under a node of a linkage tree of m points."""
    found, open_nodes = [], [node]
    while open_nodes:
        node = open_nodes.pop()
        if node < m:
            found.append(node)
        else:
            open_nodes += [int(child) for child in tree[node - m, :2]]
    return found


@dataclass(frozen=True)
class Pieces:
    """Ellipsoids of the separate pieces of a region, each with the share of draws that come from it.

    Attributes
    ----------
    ellipsoids : tuple of Ellipsoid
    shares : numpy.ndarray, shape (J,)
    """

    ellipsoids: tuple[Ellipsoid, ...]
    shares: np.ndarray

    def draw(self, which: np.ndarray, normal: np.ndarray, radius: np.ndarray, flat: np.ndarray) -> np.ndarray:
        """Points (B, d) for uniform numbers (B,), which choose pieces, and those of :meth:`Ellipsoid.draw`."""
        result = np.empty_like(normal)
        piece = np.minimum(np.searchsorted(np.cumsum(self.shares), which, side="right"), len(self.shares) - 1)
        for j, ellipsoid in enumerate(self.ellipsoids):
            (rows,) = np.nonzero(piece == j)
            result[rows] = ellipsoid.draw(normal[rows], radius[rows], flat[rows])
        return result

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Log-density (B,) of the draws."""
        density = np.zeros(len(points))
        for share, ellipsoid in zip(self.shares, self.ellipsoids, strict=True):
            density += ellipsoid.holds(points) * share * math.exp(-ellipsoid.log_volume)
        with np.errstate(divide="ignore"):
            result: np.ndarray = np.log(density)
        return result
