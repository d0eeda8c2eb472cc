"""Independent proposals of particles: mixtures of multivariate t distributions, fitted by weighted expectation-maximisation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from pm_sysid.recurrence.threads import linear_algebra_on_one_thread

#: Numbers of components that are tried, up to the most that are asked for; beyond the usual most, while each more has gained.
NUMBERS, USUAL, MOST = (2, 3, 4, 6, 8, 12, 16, 24, 32), 8, 32
#: Share of the global component, whose tails reach where no other component does.
DEFENCE = 0.1
#: Most iterations of expectation and maximisation, and the gain in mean log-density below which they end.
ITERATIONS, GAIN = 20, 1e-3
#: Rounds of k-means before them.
ROUNDS = 5
#: Variance that every component keeps in every direction, relative to that of all particles.
FLOOR = 1e-6
#: Information (in nats, after one for each effective unknown) that more components must gain.
WORTH = 3.0
#: Numbers of components in a row that gain nothing by the corrected criterion, after which no more are tried; and degrees of
#: freedom that are none.
PATIENCE, TINY = 2, 1e-9
#: Effective particles of a component below which it is left out, and particles' worth of the common covariance in each.
FEWEST, COMMON = 2.0, 0.05
#: Folds of particles, and particles for each unknown of a mean that a component has there.
FOLDS, MANY = 3, 2
#: Most unknowns among which mixtures may fit a posterior from afar.
FEW_UNKNOWNS = 20
#: Points of the largest weights that have a proposal around them, and how many of the nearest tell how wide it is.
POINTS_OF_WEIGHT, NEAREST = 10, 200
#: Points at which the density of a t distribution is compared with a Gaussian's.
POINTS = 2000


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
    def fit(
        cls,
        x: np.ndarray,
        weights: np.ndarray,
        freedom: float,
        rng: np.random.Generator,
        fewest: float = FEWEST,
        corrected: bool = False,
        most: int = USUAL,
    ) -> Mixture:
        """Fit to weighted particles (N, d): as many components as the information criterion finds worth their parameters.

        Notes
        -----
        One component has the weighted mean and covariance (Eq. 23 of the sequential paper). Copies of a particle count once,
        with their weights together. A mode of few particles has to keep a component, or it is lost: the criterion is Akaike's,
        and a covariance counts as far as the component has particles of its own to tell it. A hundred effective particles of
        a Gaussian in six unknowns may be given eight components by it, which follow the particles and not the posterior:
        ``corrected`` for few particles (Hurvich and Tsai 1989, Biometrika 76, 297-307) it gives one, and may give none to a
        small region. Components of less than ``fewest`` effective particles are left out.

        A thin sheet that is curved takes more than eight: with ``most`` up to 32 twelve, sixteen and so on are tried for as
        long as each more gains.
        """
        with linear_algebra_on_one_thread():
            return cls._fitted(*distinct(x, weights), freedom, rng, fewest, corrected, most)

    @classmethod
    def _fitted(
        cls,
        x: np.ndarray,
        weights: np.ndarray,
        freedom: float,
        rng: np.random.Generator,
        fewest: float,
        corrected: bool,
        most: int,
    ) -> Mixture:
        """Fit to particles (N, d) that differ."""
        mean, root = moments(x, weights)
        d, size = x.shape[1], 1.0 / np.sum(weights**2)
        z = scipy.linalg.solve_triangular(root, (x - mean).T, lower=True).T
        best, criterion, worse = None, _single(z, weights) - _penalty(np.ones(1), size, d, corrected), 0
        for K in (K for K in NUMBERS if K <= most and K * (d + 1) <= size):
            if K > USUAL and worse:
                break
            found = _expectation_maximisation(z, weights, K, fewest, rng)
            value = found[3] - _penalty(found[0], size, d, corrected)
            if size * (value - criterion) > WORTH:
                criterion, best, worse = value, found, 0
            elif (worse := worse + 1) == PATIENCE and corrected:
                break
        if best is None:
            return cls(np.ones(1), mean[None], root[None], freedom)
        shares, means, roots, _ = best
        shares = np.append((1 - DEFENCE) * shares, DEFENCE)
        means, roots = np.concatenate([mean + means @ root.T, mean[None]]), np.concatenate([root @ roots, root[None]])
        return cls(shares, means, roots, freedom)

    @classmethod
    def joined(cls, parts: Sequence[Mixture], shares: ArrayLike) -> Mixture:
        """One mixture of several, which have their degrees of freedom in common, each with a share of the whole."""
        return cls(
            np.concatenate([share * part.shares for share, part in zip(np.asarray(shares), parts, strict=True)]),
            np.concatenate([part.means for part in parts]),
            np.concatenate([part.roots for part in parts]),
            parts[0].freedom,
        )

    def with_room(self, x: np.ndarray, weights: np.ndarray) -> Mixture:
        """The same with wider components where few of the weighted particles (N, d) that it was fitted to tell their shape.

        For moves that begin in small modes. Regions are told by the components as they are: in a narrow region, a wider one
        would lose particles to its neighbours.
        """
        if len(self.shares) == 1:
            return self
        x, weights = distinct(x, weights)
        member = scipy.special.softmax(self._parts(x) + np.log(self.shares)[:, None], axis=0)[:-1] * weights
        sizes = member.sum(axis=1) ** 2 / np.maximum(np.sum(member**2, axis=1), 1e-300)
        shares = self.shares[:-1] / self.shares[:-1].sum()
        return self._replace(roots=np.concatenate([_with_room(shares, self.roots[:-1], sizes), self.roots[-1:]]))

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
        parts = self._parts(x) + np.log(self.shares)[:, None]
        highest = parts.max(axis=0)
        parts -= np.where(highest > -np.inf, highest, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(highest + np.log(np.exp(parts, out=parts).sum(axis=0)))

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Index (N,) of the component that each particle most likely came from."""
        return np.asarray(np.argmax(self._parts(x) + np.log(self.shares)[:, None], axis=0))

    def _parts(self, x: np.ndarray) -> np.ndarray:
        """Log-densities (K, N) of the components."""
        d, nu = x.shape[1], self.freedom
        # Coordinates as rows: sums over them are sums of long arrays, and the whole takes a quarter of the time.
        parts, columns = np.empty((len(self.shares), len(x))), np.ascontiguousarray(x.T)
        constant = -0.5 * d * np.log(2 * np.pi)
        if np.isfinite(nu):
            constant = scipy.special.gammaln((nu + d) / 2) - scipy.special.gammaln(nu / 2) - 0.5 * d * np.log(nu * np.pi)
        with linear_algebra_on_one_thread():
            for part, mean, root in zip(parts, self.means, self.roots, strict=True):
                inverse, _ = scipy.linalg.lapack.dtrtri(root, lower=1)
                squares = np.sum((inverse @ (columns - mean[:, None])) ** 2, axis=0)
                bend = 0.5 * (nu + d) * np.log1p(squares / nu) if np.isfinite(nu) else 0.5 * squares
                part[:] = constant - np.log(np.diag(root)).sum() - bend
        return parts


class Folds(NamedTuple):
    """Mixtures, each fitted to the particles of all folds but one, for the particles of that fold.

    A component that follows few particles has a high density at them, because of them. A particle that has helped to fit its
    own proposal is left too easily, and small modes empty in time. So no particle does, and components of few particles are
    left out: a mode that no component covers is hardly left.
    """

    mixtures: tuple[Mixture, ...]

    @classmethod
    def fit(cls, x: np.ndarray, weights: np.ndarray, fold: np.ndarray, freedom: float, rng: np.random.Generator) -> Folds:
        """Fit to weighted particles (N, d), whose fold is 0, 1, ..."""
        mixtures = []
        for f in range(FOLDS):
            rest = fold != f
            total = weights[rest].sum()
            # A fold with nearly all of the weight has nothing else to be fitted to.
            rest, total = (rest, total) if total > 0.1 else (np.ones(len(x), dtype=bool), 1.0)
            mixtures.append(Mixture.fit(x[rest], weights[rest] / total, freedom, rng, MANY * (x.shape[1] + 1)))
        return cls(tuple(mixtures))

    def draw(self, fold: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Independent draws (N, d), one for each entry of ``fold`` (N,)."""
        x = np.empty((len(fold), self.mixtures[0].means.shape[1]))
        for f, mixture in enumerate(self.mixtures):
            x[fold == f] = mixture.draw(int(np.sum(fold == f)), rng)
        return x

    def logpdf(self, x: np.ndarray, fold: np.ndarray) -> np.ndarray:
        """Log-density (N,) of particles (N, d), each under the mixture of its fold."""
        density = np.empty(len(x))
        for f, mixture in enumerate(self.mixtures):
            if np.any(here := fold == f):
                density[here] = mixture.logpdf(x[here])
        return density


def folds(chain: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Fold (N,) of each particle, at random; particles of one chain are in one fold."""
    chains, number = np.unique(chain, return_inverse=True)
    return np.asarray((rng.permutation(len(chains)) % FOLDS)[number])


def moments(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean (d,) of particles (N, d), and the lower root of their covariance."""
    mean = weights @ x
    centred = x - mean
    return mean, root_of((weights * centred.T) @ centred)


def root_of(covariance: np.ndarray) -> np.ndarray:
    """Lower root (d, d) of the covariance of particles, with every direction open, of few or of two that are one, too."""
    scale = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance / scale / scale[:, None]
    root: np.ndarray = scale[:, None] * scipy.linalg.cholesky(correlation + 1e-9 * np.eye(len(scale)), lower=True)
    return root


def heaviest(x: np.ndarray, log_weights: np.ndarray, freedom: float) -> Mixture:
    """Proposals around those of weighted points (N, d) that have the largest weights.

    Where a posterior becomes thin, a mixture that follows all of it has hardly a draw, and the points there have large weights.
    The covariance of each part is that of the nearest points, which count half alike and half by their weights.

    Notes
    -----
    Source: Raftery and Bao (2010), incremental mixture importance sampling, Biometrics 66, 1162-1173.
    """
    held = log_weights > -np.inf
    x, rows = np.unique(x[held], axis=0, return_index=True)
    log_weights = log_weights[held][rows]
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    _, root = moments(x, weights)
    z = scipy.linalg.solve_triangular(root, x.T, lower=True)
    free, means, roots = np.ones(len(x), dtype=bool), list[np.ndarray](), list[np.ndarray]()
    near = min(NEAREST, len(x))
    while free.any() and len(means) < POINTS_OF_WEIGHT:
        top = int(np.argmax(np.where(free, log_weights, -np.inf)))
        order = np.argpartition(np.sum((z - z[:, [top]]) ** 2, axis=0), near - 1)[:near]
        order = order[np.argsort(np.sum((z[:, order] - z[:, [top]]) ** 2, axis=0))]
        free[order[: max(1, near // 4)]] = False
        own = (weights[order] / max(weights[order].sum(), 1e-300) + 1 / near) / 2
        off = x[order] - x[top]
        means.append(x[top])
        roots.append(root_of((own * off.T) @ off))
    return Mixture(np.full(len(means), 1 / len(means)), np.array(means), np.array(roots), freedom)


def distinct(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Particles without copies, with the weights of all copies, where these are not negligible."""
    rows, copies = np.unique(x, axis=0, return_inverse=True)
    together = np.bincount(copies.ravel(), weights, len(rows))
    keep = together > 1e-12 / len(rows)
    return rows[keep], together[keep] / together[keep].sum()


@cache
def attainable(d: int, freedom: float) -> float:
    """Effective share of draws of a t distribution as weighted draws of the Gaussian with its centre and scale matrix."""
    if not np.isfinite(freedom):
        return 1.0
    squares = scipy.stats.chi2.ppf((np.arange(POINTS) + 0.5) / POINTS, d)
    constant = scipy.special.gammaln((freedom + d) / 2) - scipy.special.gammaln(freedom / 2) - 0.5 * d * np.log(freedom / 2)
    log_ratio = -0.5 * squares - constant + 0.5 * (freedom + d) * np.log1p(squares / freedom)
    return float(1.0 / np.mean(np.exp(log_ratio)))


def _unknowns(shares: np.ndarray, size: float, d: int) -> float:
    """Effective number of unknowns: a covariance counts as far as the component has a particle for each direction."""
    own = np.minimum(1.0, shares * size / d)
    return float(np.sum(1 + d + own * d * (d + 1) / 2)) - 1


def _penalty(shares: np.ndarray, size: float, d: int, corrected: bool) -> float:
    """What the mean log-density of particles is too high by, since the mixture was fitted to the same particles."""
    unknowns = _unknowns(shares, size, d)
    return unknowns / (max(size - unknowns - 1, TINY) if corrected else size)


def _single(z: np.ndarray, weights: np.ndarray) -> float:
    """Mean log-density of particles with the mean 0 and the covariance 1 under their own Gaussian."""
    return float(-0.5 * z.shape[1] * np.log(2 * np.pi) - 0.5 * (weights @ np.sum(z**2, axis=1)))


def _expectation_maximisation(
    z: np.ndarray, weights: np.ndarray, K: int, fewest: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Shares, means (at most K, d) and roots (at most K, d, d) of Gaussians, and their mean log-density.

    Components that die out are left out. A little of the covariance within all components is in each, so that one of few
    particles is open in every direction.
    """
    d, share = z.shape[1], _clusters(z, weights, K, rng).T
    size, last = 1.0 / np.sum(weights**2), -np.inf
    i, j = np.triu_indices(d)
    # With the products of all pairs of coordinates, scatters and squares of all components are products of matrices.
    products, columns = z[:, i] * z[:, j], np.ascontiguousarray(z.T)
    product_columns, both = np.ascontiguousarray(products.T), np.where(i == j, 1.0, 2.0)
    for _ in range(ITERATIONS):
        own = share * weights
        total = own.sum(axis=1)
        alive = total * size > min(fewest, total.max() * size / 2)
        own, shares = own[alive], total[alive]
        means = own @ z / shares[:, None]
        scatter = np.empty((len(shares), d, d))
        scatter[:, i, j] = scatter[:, j, i] = own @ products - shares[:, None] * means[:, i] * means[:, j]
        within = scatter.sum(axis=0) / shares.sum()
        covariances = (size * scatter + COMMON * within) / (size * shares + COMMON)[:, None, None]
        roots = np.linalg.cholesky(covariances + FLOOR * np.eye(d))
        shares = shares / shares.sum()
        inverses = np.linalg.inv(roots)
        precisions = np.swapaxes(inverses, 1, 2) @ inverses
        slopes = (precisions @ means[:, :, None])[:, :, 0]
        squares = (both * precisions[:, i, j]) @ product_columns - 2 * slopes @ columns
        level = np.log(shares) - np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1) - 0.5 * np.sum(means * slopes, axis=1)
        parts = level[:, None] - 0.5 * squares
        highest = parts.max(axis=0)
        density_of_parts = np.exp(parts - highest)
        sums = density_of_parts.sum(axis=0)
        density = float(weights @ (highest + np.log(sums))) - 0.5 * d * np.log(2 * np.pi)
        if density - last < GAIN:
            break
        last, share = density, density_of_parts / sums
    return shares, means, roots, density


def _with_room(shares: np.ndarray, roots: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Roots of components (K, d, d), those of few effective particles (K,) with room in the directions that these leave out.

    The covariance of few particles is too narrow in some directions, and chains with such proposals leave a small mode more
    easily than they come back. A component's variances along its axes, relative to those within all components, are drawn to
    their mean as far as they differ by chance, and at most as far up as chance takes them down.

    Notes
    -----
    How far: the shrinkage of Chen, Wiesel, Eldar and Hero (2010), IEEE Transactions on Signal Processing 58, 5016-5029, Eq. 17.
    Of n particles in d unknowns the smallest variance is near ``(1 - sqrt(d / (n - 1)))^2`` of the true one where all are alike
    (Marchenko and Pastur 1967, Mathematics of the USSR-Sbornik 1, 457-483); where they differ much, each has lost a degree of
    freedom to every larger one.
    """
    d, n = roots.shape[1], np.maximum(sizes, 1.0)[:, None]
    within = np.linalg.cholesky(np.tensordot(shares, roots @ np.swapaxes(roots, 1, 2), 1))
    relative = np.linalg.solve(within, roots)
    variances, axes = np.linalg.eigh(relative @ np.swapaxes(relative, 1, 2))  # the smallest first
    total, square = variances.sum(axis=1, keepdims=True), np.sum(variances**2, axis=1, keepdims=True)
    apart = np.maximum(square - total**2 / d, 1e-300)
    chance = np.clip((np.maximum(n - 2, 0.0) / n * square + total**2) / ((n + 2) * apart), 0.0, 1.0)
    mean = (n * total / d + COMMON) / (n - 1 + COMMON)  # of n particles, n - 1 squares
    alike = 2 * np.log(np.maximum(1 - np.sqrt(d / np.maximum(n - 1, d)), 1e-6))
    unlike = np.log(np.maximum(1 - np.arange(d)[::-1] / np.maximum(n - 1, 1e-6), 1e-6))
    most = variances * np.exp(-chance * alike - (1 - chance) * unlike)
    wider = np.maximum(variances, np.minimum((1 - chance) * variances + chance * mean, most))
    covariances = (within @ axes) * wider[:, None, :] @ np.swapaxes(within @ axes, 1, 2)
    return np.asarray(np.linalg.cholesky(covariances))


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
