"""Independent proposals of particles: mixtures of multivariate t distributions, fitted by weighted expectation-maximisation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

#: Most components of a mixture.
MOST_COMPONENTS = 8
#: Share of the global component, whose tails reach where no other component does.
DEFENCE = 0.1
#: Most iterations of expectation and maximisation, and the gain in mean log-density below which they end.
ITERATIONS, GAIN = 50, 1e-4
#: Rounds of k-means before them.
ROUNDS = 5
#: Variance that every component keeps in every direction, relative to that of all particles.
FLOOR = 1e-6
#: Information (BIC, in nats) that more components must gain for each that is added.
WORTH = 3.0


class Mixture(NamedTuple):
    """Mixture of K multivariate t distributions of common degrees of freedom (inf: Gaussians).

    A Gaussian fitted to the particles, as in the sequential paper, has a flaw that repeats itself: where it is narrower than
    the posterior its chains stay inside it, the next fit is narrower still, and acceptance looks normal all the while. The
    tails of a t distribution of the same covariance root reach out of it; several components follow several modes.

    Attributes
    ----------
    shares : array, shape (K,)
    means : array, shape (K, d)
    roots : array, shape (K, d, d)
        Lower Cholesky factors of the scale matrices.
    freedom : float
    """

    shares: np.ndarray
    means: np.ndarray
    roots: np.ndarray
    freedom: float = np.inf

    @classmethod
    def fit(cls, x: np.ndarray, weights: np.ndarray, freedom: float, rng: np.random.Generator) -> Mixture:
        """Fit to weighted particles (N, d): as many components as the information criterion finds worth their parameters.

        Notes
        -----
        One component has the weighted mean and covariance (Eq. 23 of the sequential paper). Copies of a particle count once,
        with their weights together.
        """
        x, weights = distinct(x, weights)
        mean, root = moments(x, weights)
        d, size = x.shape[1], 1.0 / np.sum(weights**2)
        most = int(min(MOST_COMPONENTS, size / (2 * (d + 1))))
        z = scipy.linalg.solve_triangular(root, (x - mean).T, lower=True).T
        best = None
        if most > 1:
            criterion = _single(z, weights) - 0.5 * np.log(size) * _unknowns(1, d) / size
            for K in range(2, most + 1):
                found = _expectation_maximisation(z, weights, K, rng)
                if found is None:
                    break
                value = found[3] - 0.5 * np.log(size) * _unknowns(K, d) / size
                if size * (value - criterion) > WORTH:
                    criterion, best = value, found
                elif K > 2 + (0 if best is None else len(best[0])):
                    break
        if best is None:
            return cls(np.ones(1), mean[None], root[None], freedom)
        shares, means, roots, _ = best
        shares = np.append((1 - DEFENCE) * shares, DEFENCE)
        means, roots = np.concatenate([mean + means @ root.T, mean[None]]), np.concatenate([root @ roots, root[None]])
        return cls(shares, means, roots, freedom)

    @property
    def components(self) -> int:
        """Components that follow the particles, without the global one."""
        return max(1, len(self.shares) - 1)

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Independent draws (count, d); Eq. 24 of the sequential paper."""
        z = rng.standard_normal((count, self.means.shape[1]))
        if np.isfinite(self.freedom):
            z /= np.sqrt(rng.chisquare(self.freedom, (count, 1)) / self.freedom)
        if len(self.shares) == 1:
            return np.asarray(self.means[0] + z @ self.roots[0].T)
        # Stratified: every component gets its share of the draws, in a random order.
        place = (rng.permutation(count) + rng.random(count)) / count
        k = np.minimum(np.searchsorted(np.cumsum(self.shares), place, side="right"), len(self.shares) - 1)
        return np.asarray(self.means[k] + np.einsum("nij,nj->ni", self.roots[k], z))

    def logpdf(self, x: np.ndarray) -> np.ndarray:
        """Log-density (N,) of particles (N, d)."""
        return np.asarray(scipy.special.logsumexp(self._parts(x) + np.log(self.shares)[:, None], axis=0))

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Index (N,) of the component that each particle most likely came from."""
        return np.asarray(np.argmax(self._parts(x) + np.log(self.shares)[:, None], axis=0))

    def _parts(self, x: np.ndarray) -> np.ndarray:
        """Log-densities (K, N) of the components."""
        d = x.shape[1]
        parts = np.empty((len(self.shares), len(x)))
        for part, mean, root in zip(parts, self.means, self.roots, strict=True):
            squares = np.sum(scipy.linalg.solve_triangular(root, (x - mean).T, lower=True) ** 2, axis=0)
            volume = np.log(np.diag(root)).sum()
            if np.isfinite(nu := self.freedom):
                constant = scipy.special.gammaln((nu + d) / 2) - scipy.special.gammaln(nu / 2) - 0.5 * d * np.log(nu * np.pi)
                part[:] = constant - volume - 0.5 * (nu + d) * np.log1p(squares / nu)
            else:
                part[:] = -0.5 * (d * np.log(2 * np.pi) + squares) - volume
        return parts


def moments(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean (d,) of particles (N, d), and the lower root of their covariance."""
    mean = weights @ x
    centred = x - mean
    covariance = (weights * centred.T) @ centred
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / scale / scale[:, None]
    # Few distinct particles, or two that are one: keep every direction open.
    root: np.ndarray = scale[:, None] * scipy.linalg.cholesky(correlation + 1e-9 * np.eye(len(mean)), lower=True)
    return mean, root


def distinct(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Particles without copies, with the weights of all copies, where these are not negligible."""
    rows, copies = np.unique(x, axis=0, return_inverse=True)
    together = np.bincount(copies.ravel(), weights, len(rows))
    keep = together > 1e-12 / len(rows)
    return rows[keep], together[keep] / together[keep].sum()


def _unknowns(components: int, d: int) -> float:
    return components * (1 + d + d * (d + 1) / 2) - 1


def _single(z: np.ndarray, weights: np.ndarray) -> float:
    """Mean log-density of particles with the mean 0 and the covariance 1 under their own Gaussian."""
    return float(-0.5 * z.shape[1] * np.log(2 * np.pi) - 0.5 * (weights @ np.sum(z**2, axis=1)))


def _expectation_maximisation(
    z: np.ndarray, weights: np.ndarray, K: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float] | None:
    """Shares (K,), means (K, d), roots (K, d, d) of Gaussians and their mean log-density; None where a component dies out."""
    d, share = z.shape[1], _clusters(z, weights, K, rng)
    size, last = 1.0 / np.sum(weights**2), -np.inf
    for _ in range(ITERATIONS):
        own = weights[:, None] * share
        shares = own.sum(axis=0)
        if np.any(shares * size < d + 1):
            return None
        means = own.T @ z / shares[:, None]
        centred = z - means[:, None]
        weighted = (own / shares).T[:, :, None] * centred
        roots = np.linalg.cholesky(np.swapaxes(weighted, 1, 2) @ centred + FLOOR * np.eye(d))
        squares = np.sum((centred @ np.swapaxes(np.linalg.inv(roots), 1, 2)) ** 2, axis=2)
        volume = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        parts = (np.log(shares) - volume)[:, None] - 0.5 * squares
        highest = parts.max(axis=0)
        density_of_parts = np.exp(parts - highest)
        total = density_of_parts.sum(axis=0)
        density = float(weights @ (highest + np.log(total))) - 0.5 * d * np.log(2 * np.pi)
        if density - last < GAIN:
            break
        last, share = density, (density_of_parts / total).T
    return shares, means, roots, density


def _clusters(z: np.ndarray, weights: np.ndarray, K: int, rng: np.random.Generator) -> np.ndarray:
    """Membership (N, K) of particles in clusters: k-means from distant centres (k-means++)."""
    centres = z[[rng.choice(len(z), p=weights)]]
    nearest = np.sum((z - centres[0]) ** 2, axis=1)
    for _ in range(1, K):
        chance = weights * nearest
        centres = np.vstack([centres, z[rng.choice(len(z), p=chance / chance.sum())]])
        nearest = np.minimum(nearest, np.sum((z - centres[-1]) ** 2, axis=1))
    for _ in range(ROUNDS):
        distances = np.sum(z**2, axis=1)[:, None] - 2 * z @ centres.T + np.sum(centres**2, axis=1)
        member = np.eye(K)[np.argmin(distances, axis=1)]
        total = weights @ member
        if np.any(total == 0):
            break
        centres = (weights * member.T) @ z / total[:, None]
    return member
