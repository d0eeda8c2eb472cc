"""Where searches begin: points around the guess, or within the bounds, drawn at random."""

from __future__ import annotations

import numpy as np

from pm_sysid.pem.objective import Objective

#: Standard deviations of the logarithm of what multiplies an unknown, near the guess and far from it.
NEAR, FAR = 0.2, 1.0
#: Bounds this many times apart, and both positive, are drawn between in logarithms.
DECADES = 30.0
#: Largest logarithm of what multiplies an unknown where another optimum is looked for.
WIDE = 2.3
#: Points of which the best becomes a start; of few, since the best of many is near the optimum that is known.
TRIED, FEW_TRIED = 16, 4


class Starts:
    """Random starts for one problem.

    Parameters
    ----------
    objective, x, lower, upper
        The problem, its guess (k,) and bounds.
    spread : ndarray, shape (k,)
        How far an unknown may be from its guess when that is no multiple of it (initial states; zero for the others).
    rng
    """

    def __init__(
        self,
        objective: Objective,
        x: np.ndarray,
        lower: np.ndarray,
        upper: np.ndarray,
        spread: np.ndarray,
        rng: np.random.Generator,
    ) -> None:
        self.objective, self.lower, self.upper, self.rng = objective, lower, upper, rng
        self.x, self.spread = x, spread
        self.evaluated = 0

    def explaining(self) -> None:
        """Give unknowns that are zero, and have no spread, the size that would explain all of the residuals."""
        lost = (self.x == 0.0) & (self.spread == 0.0)
        if not lost.any():
            return
        evaluation = self.objective.evaluate(self.x)
        with np.errstate(all="ignore"):
            size = np.sqrt(np.abs(evaluation.value) / np.diag(evaluation.information))
        self.spread = np.where(lost, np.where(np.isfinite(size) & (size > 0), size, 1.0), self.spread)

    def near(self, centre: np.ndarray, n: int) -> np.ndarray:
        """Points (n, k) near one."""
        return self._around(centre, n, NEAR)

    def far(self, n: int) -> np.ndarray:
        """Points (n, k), each the best of some: far from the guess, and anywhere between bounds."""
        if n == 0:
            return np.empty((0, self.x.size))
        points = self._around(self.x, n * TRIED, FAR)
        between = np.isfinite(self.lower) & np.isfinite(self.upper) & (self.spread == 0.0)
        z = self.rng.random((len(points), self.x.size))
        for i in np.flatnonzero(between & ~self.objective.layout.positive):
            low, high = self.lower[i], self.upper[i]
            if low > 0 and high / low > DECADES:
                points[:, i] = np.exp(np.log(low) + z[:, i] * np.log(high / low))
            else:
                points[:, i] = low + z[:, i] * (high - low)
        values = self.objective.values(points)
        self.evaluated += len(points)
        best = [group[np.argmin(values[group])] for group in np.array_split(np.arange(len(points)), n)]
        return points[best]

    def wide(self, centre: np.ndarray, n: int) -> np.ndarray:
        """Points (n, k) up to a factor of ten from one: where another optimum may lie."""
        z = self.rng.uniform(-1.0, 1.0, (n, centre.size))
        points = np.where(self.spread > 0, centre + self.spread * z, centre * np.exp(WIDE * z))
        return np.asarray(np.clip(points, self.lower, self.upper))

    def better_wide(self, centre: np.ndarray, n: int) -> np.ndarray:
        """Points (n, k) of the same kind, each the best of a few."""
        if n == 0:
            return np.empty((0, centre.size))
        points = self.wide(centre, n * FEW_TRIED)
        values = self.objective.values(points)
        self.evaluated += len(points)
        return points[[g[np.argmin(np.nan_to_num(values[g], nan=np.inf))] for g in np.array_split(np.arange(len(points)), n)]]

    def _around(self, centre: np.ndarray, n: int, width: float) -> np.ndarray:
        z = self.rng.standard_normal((n, centre.size))
        points = np.where(self.spread > 0, centre + 0.5 * width * self.spread * z, centre * np.exp(width * z))
        # Beyond a bound: somewhere between it and the centre.
        share = self.rng.random((n, centre.size))
        points = np.where(points < self.lower, centre - share * (centre - np.maximum(self.lower, -1e300)), points)
        return np.asarray(np.where(points > self.upper, centre + share * (np.minimum(self.upper, 1e300) - centre), points))
