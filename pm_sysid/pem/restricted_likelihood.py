"""Correlation in time of noise, by the likelihood of what fitted unknowns have left of it; samples may be missing."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

#: The largest order of an autoregression; the fewest innovations for each order; orders in vain after which none is tried.
ORDERS, EACH_ORDER, IN_VAIN = 25, 10, 10
#: Partial correlations beyond this are no stationary noise; correlations below this are none.
STATIONARY, FADED = 0.99, 1e-6
#: Fewest innovations that a record must have left for a size of its noise of its own.
OWN_SIZE = 8
#: Directions that are smaller than this are none; intervals that differ by less are the same.
RANK, REGULAR = 1e-7, 1e-3
#: Correlation times that are tried first, in median sampling intervals, and shares of white noise.
TIMES, SHARES = (1.0, 4.0, 16.0, 64.0), (0.02, 0.3, 0.7)
#: Least and largest logarithm of a correlation time, and of a share of white noise over the rest.
BOUNDS = (-3.0, -9.0), (12.0, 9.0)
#: A deviance that is larger by this is out of the question.
BEYOND = 1e6
#: Times are not nearer to each other than this times half the correlation time.
NEAR = 1e-10


@dataclass(frozen=True, eq=False)
class Series:
    """Innovations of one output: ``errors`` (n,), and what unknowns may have taken of them.

    ``record`` (n,) is the number of each one's record, from 0 on, ``row`` (n,) its row there and ``time`` (n,) its time in
    median sampling intervals. Records one after the other, rows in order. ``basis`` (n, k) has an orthonormal basis of what the
    unknowns can do to each record by itself: of ``taken`` (R,) columns, the others are zero.
    """

    errors: np.ndarray
    basis: np.ndarray
    taken: np.ndarray
    record: np.ndarray
    row: np.ndarray
    time: np.ndarray

    @classmethod
    def of(cls, errors: np.ndarray, slopes: np.ndarray, record: np.ndarray, row: np.ndarray, time: np.ndarray) -> Series:
        """From the derivatives ``slopes`` (n, k) by all unknowns, those that records share too."""
        _, record = np.unique(record, return_inverse=True)
        basis, taken = np.zeros_like(slopes), []
        slopes = slopes / np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
        for here in np.split(np.arange(len(record)), np.flatnonzero(np.diff(record)) + 1):
            length = np.linalg.norm(slopes[here], axis=0)
            own = length > RANK  # most are initial states of other records
            vectors, values, _ = np.linalg.svd(slopes[here][:, own] / length[own], full_matrices=False)
            rank = int(np.sum(values > RANK * values.max(initial=0.0)))
            basis[here, :rank] = vectors[:, :rank]
            taken.append(rank)
        return cls(errors, basis[:, : max(taken, default=0)], np.array(taken, dtype=int), record, row, time)

    @cached_property
    def columns(self) -> np.ndarray:
        """Innovations and basis (n, 1 + k)."""
        return np.column_stack([self.errors, self.basis])

    @property
    def starts(self) -> np.ndarray:
        """Where each record begins."""
        return np.concatenate([[0], np.flatnonzero(np.diff(self.record)) + 1])

    @property
    def each_left(self) -> np.ndarray:
        """Innovations (R,) of each record less what unknowns may have taken."""
        return np.asarray(np.bincount(self.record) - self.taken)

    @property
    def left(self) -> int:
        """Those of all records."""
        return int(self.each_left.sum())

    @property
    def spans(self) -> np.ndarray:
        """Rows (R,) between the first and the last innovation of each record."""
        return np.asarray(self.row[np.append(self.starts[1:], len(self.row)) - 1] - self.row[self.starts])

    @property
    def durations(self) -> np.ndarray:
        """Median intervals (R,) between them."""
        return np.asarray(self.time[np.append(self.starts[1:], len(self.time)) - 1] - self.time[self.starts])

    @property
    def most(self) -> int:
        """The largest order of an autoregression that is tried."""
        return max(1, min(ORDERS, self.left // EACH_ORDER, int(self.spans.max())))

    @cached_property
    def lagged(self) -> Lagged:
        """Its columns, for autoregressions up to that order."""
        return Lagged.of(self)


class Lagged(NamedTuple):
    """Products of a series' columns at each lag, so that a quadratic form takes no time that grows with the series.

    ``products`` (m + 1, R, c, c) are sums over each record of a row times the row that comes a lag later, and their
    transposes. ``first`` and ``last`` (R, m, c) are the rows at the ends of each record, from the ends on. The rest is of the
    grid: ``full`` (T, c) with zeros where nothing is measured, at ``holes`` (H,), of which each record has those from ``begin``
    (R + 1,) on.
    """

    products: np.ndarray
    first: np.ndarray
    last: np.ndarray
    full: np.ndarray
    holes: np.ndarray
    begin: np.ndarray
    within: np.ndarray
    length: np.ndarray

    @classmethod
    def of(cls, series: Series) -> Lagged:
        """Of the columns of a series."""
        m, (place, within, length) = series.most, _grid(series, 2 * series.most + 1)
        full = np.zeros((len(within), series.columns.shape[1]))
        full[place] = series.columns
        missing = np.ones(len(within), dtype=bool)
        missing[place] = False
        holes, starts = np.flatnonzero(missing), np.flatnonzero(within == 0)
        records = np.split(full, starts[1:])
        products = np.empty((m + 1, len(records), full.shape[1], full.shape[1]))
        for r, rows in enumerate(records):
            products[0, r] = rows.T @ rows
            for k in range(1, m + 1):
                product = rows[:-k].T @ rows[k:]
                products[k, r] = product + product.T
        first, last = np.stack([r[:m] for r in records]), np.stack([r[: -m - 1 : -1] for r in records])
        return cls(products, first, last, full, holes, np.searchsorted(holes, np.append(starts, len(full))), within, length)


class Fit(NamedTuple):
    """A ``noise``, minus twice its restricted log-likelihood, ``variance`` (of one size), and the ``size`` (R,) of records."""

    noise: Noise
    deviance: float
    variance: float
    size: np.ndarray

    def criterion(self, left: int) -> float:
        """That of Akaike, corrected for short series."""
        order = self.noise.order
        return self.deviance + 2 * order * left / max(left - order - 1, 1)


class Noise(ABC):
    """Stationary noise of unit variance."""

    order: int

    @property
    def coordinates(self) -> np.ndarray:
        """Its numbers, on scales without an end."""
        return np.zeros(0)

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """The least and the largest of each that is one of its own kind."""
        return []

    @classmethod
    @abstractmethod
    def of(cls, coordinates: np.ndarray) -> Noise:
        """The noise with these."""

    @abstractmethod
    def whitened(self, series: Series, columns: np.ndarray) -> tuple[np.ndarray, float]:
        """Inverse of the correlation matrix times ``columns`` (n, c), and the logarithm of its determinant."""

    def products(self, series: Series) -> tuple[np.ndarray, float]:
        """Products (R, c, c) of each record's columns by the inverse of the correlation matrix, and its log determinant."""
        applied, log_det = self.whitened(series, series.columns)
        ends = np.append(series.starts, len(applied))
        return np.stack([series.columns[a:b].T @ applied[a:b] for a, b in itertools.pairwise(ends)]), log_det

    @abstractmethod
    def correlated(self, series: Series, columns: np.ndarray, *, squared: bool = False) -> np.ndarray:
        """The correlation matrix times ``columns`` (n, c); with each correlation ``squared``."""

    @abstractmethod
    def lasts(self, series: Series) -> float:
        """Time in which correlations fall to 1/e, or their envelope does, as a share of all records together."""


class White(Noise):
    """Noise without any correlation in time."""

    order = 0

    @classmethod
    def of(cls, coordinates: np.ndarray) -> White:
        """See :class:`Noise`."""
        return cls()

    def whitened(self, series: Series, columns: np.ndarray) -> tuple[np.ndarray, float]:
        """See :class:`Noise`."""
        return columns, 0.0

    def correlated(self, series: Series, columns: np.ndarray, *, squared: bool = False) -> np.ndarray:
        """See :class:`Noise`."""
        return columns

    def lasts(self, series: Series) -> float:
        """See :class:`Noise`."""
        return 0.0


class Autoregression(Noise):
    """An autoregression from row to row, by its partial correlations (p,).

    Notes
    -----
    The precision matrix of all rows of a record is banded. That of the measured ones is its Schur complement, so that missing
    ones are integrated out exactly.
    """

    def __init__(self, partial: np.ndarray) -> None:
        self.partial = np.asarray(partial, dtype=float)
        self.order = len(self.partial)
        weights = np.zeros(0)
        for reflection in self.partial:  # the recursion of Levinson and Durbin
            weights = np.append(weights - reflection * weights[::-1], reflection)
        self.weights = weights

    @property
    def coordinates(self) -> np.ndarray:
        """See :class:`Noise`."""
        return np.arctanh(self.partial)

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """See :class:`Noise`."""
        return [(-np.arctanh(STATIONARY), np.arctanh(STATIONARY))] * self.order

    @classmethod
    def of(cls, coordinates: np.ndarray) -> Autoregression:
        """See :class:`Noise`."""
        return cls(np.clip(np.tanh(coordinates), -STATIONARY, STATIONARY))

    def whitened(self, series: Series, columns: np.ndarray) -> tuple[np.ndarray, float]:
        """See :class:`Noise`."""
        place, within, length = _grid(series, 2 * self.order + 1)
        band, log_det = self._precision(within, length)
        full = np.zeros((len(within), columns.shape[1]))
        full[place] = columns
        product = _banded_product(band, full)
        missing = np.ones(len(within), dtype=bool)
        missing[place] = False
        if not missing.any():
            return product[place], log_det
        holes = np.flatnonzero(missing)
        root = scipy.linalg.cholesky_banded(_of_rows(band, holes), lower=True, check_finite=False)
        full[:] = 0.0
        full[holes] = scipy.linalg.cho_solve_banded((root, True), product[holes], check_finite=False)
        product -= _banded_product(band, full)
        return product[place], log_det + 2 * float(np.sum(np.log(root[0])))

    def products(self, series: Series) -> tuple[np.ndarray, float]:
        """See :class:`Noise`.

        Notes
        -----
        Each diagonal of a record's precision matrix is constant but for ``p`` rows at both ends, where the product of a
        Hankel matrix with itself is missing. The rest is as in :meth:`whitened`.
        """
        lagged, p = series.lagged, self.order
        if p >= len(lagged.products):
            return super().products(series)
        a = np.concatenate([[1.0], -self.weights])
        diagonals = np.array([a[: p + 1 - k] @ a[k:] for k in range(p + 1)])
        products = np.tensordot(diagonals, lagged.products[: p + 1], axes=1)
        for end in (lagged.first, lagged.last):
            lacks = scipy.linalg.hankel(a[1:]) @ end[:, :p]
            products -= lacks.swapaxes(1, 2) @ lacks
        products *= self.unit
        if not lagged.holes.size:
            return products, self._log_det(lagged.within)
        band, log_det = self._precision(lagged.within, lagged.length)
        root = scipy.linalg.cholesky_banded(_of_rows(band, lagged.holes), lower=True, check_finite=False)
        seen = _banded_rows(band, lagged.full, lagged.holes)
        filled = scipy.linalg.cho_solve_banded((root, True), seen, check_finite=False)
        for r, (i, j) in enumerate(itertools.pairwise(lagged.begin)):
            products[r] -= seen[i:j].T @ filled[i:j]
        return products, log_det + 2 * float(np.sum(np.log(root[0])))

    @property
    def unit(self) -> float:
        """Variance of noise whose innovations have a variance of 1."""
        return float(np.exp(-np.sum(np.log1p(-(self.partial**2)))))

    def _log_det(self, within: np.ndarray) -> float:
        """Logarithm of the determinant of the correlation matrix of rows ``within`` records."""
        free = np.log1p(-(self.partial**2))
        return float(len(within) * np.sum(free) - np.sum(within == 0) * (np.arange(1, self.order + 1) @ free))

    def _precision(self, within: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, float]:
        """Diagonals (p + 1, T) of the precision matrix of rows ``within`` records of a ``length`` (Siddiqui 1958).

        Annals of Mathematical Statistics 29, 585-588. Then the logarithm of the determinant of its inverse.
        """
        p, a = self.order, np.concatenate([[1.0], -self.weights])
        band = np.zeros((p + 1, len(within)))
        for k in range(p + 1):
            sums = np.concatenate([[0.0], np.cumsum(a[: p + 1 - k] * a[k:])])
            terms = 1 + np.minimum(np.minimum(within, length - 1 - within - k), p - k)
            band[k] = sums[np.maximum(terms, 0)]
        return self.unit * band, self._log_det(within)

    def correlations(self, length: int) -> np.ndarray:
        """From lag 0 on, (length,)."""
        r = np.zeros(max(length, self.order + 1))
        r[0], weights, left = 1.0, np.zeros(0), 1.0
        for k, reflection in enumerate(self.partial, start=1):
            r[k] = weights @ r[k - 1 : 0 : -1] + reflection * left
            weights = np.append(weights - reflection * weights[::-1], reflection)
            left *= 1.0 - reflection**2
        p = self.order
        for k in range(p + 1, len(r)):
            r[k] = weights @ r[k - p : k][::-1]
            if np.all(np.abs(r[k - p + 1 : k + 1]) < FADED):
                break
        return r[:length]

    def correlated(self, series: Series, columns: np.ndarray, *, squared: bool = False) -> np.ndarray:
        """See :class:`Noise`."""
        r = self.correlations(int(series.spans.max()) + 1)
        r = r**2 if squared else r
        product = np.zeros_like(columns)
        for here in np.split(np.arange(len(series.row)), series.starts[1:]):
            row = series.row[here] - series.row[here].min()
            full = np.zeros((int(row.max()) + 1, columns.shape[1]))
            full[row] = columns[here]
            product[here] = scipy.linalg.matmul_toeplitz(r[: len(full)], full, check_finite=False)[row]
        return product

    def lasts(self, series: Series) -> float:
        """See :class:`Noise`."""
        radius = float(np.max(np.abs(np.roots(np.concatenate([[1.0], -self.weights])))))
        return float(-1.0 / np.log(np.clip(radius, 1e-9, 1.0 - 1e-12)) / max(series.spans.sum(), 1))


class Relaxing(Noise):
    """Noise whose correlation falls as ``exp(-interval / time)``, whatever the intervals, and a ``share`` of white noise."""

    def __init__(self, time: float, share: float) -> None:
        self.time, self.share = time, share
        self.order = 2 if share > 0 else 1

    @property
    def coordinates(self) -> np.ndarray:
        """See :class:`Noise`."""
        return np.array([np.log(self.time), scipy.special.logit(self.share)])

    @property
    def bounds(self) -> list[tuple[float, float]]:
        """See :class:`Noise`."""
        return list(zip(*BOUNDS, strict=True))

    @classmethod
    def of(cls, coordinates: np.ndarray) -> Relaxing:
        """See :class:`Noise`."""
        time, share = np.clip(coordinates, *BOUNDS)
        return cls(float(np.exp(time)), float(scipy.special.expit(share)))

    def _precision(self, series: Series, time: float) -> tuple[np.ndarray, float]:
        """Diagonals (2, n) of the precision matrix of the correlated part, and the logarithm of the other one's determinant."""
        within = np.diff(series.record) == 0
        passed = np.where(within, np.diff(series.time), 0.0) / time
        kept = np.where(within, np.exp(-passed), 0.0)
        left = np.where(within, np.maximum(-np.expm1(-2 * passed), NEAR), 1.0)
        band = np.zeros((2, len(series.time)))
        band[0] = 1.0
        band[0, :-1] += kept**2 / left
        band[0, 1:] += kept**2 / left
        band[1, :-1] = -kept / left
        return band, float(np.sum(np.log(left)))

    def whitened(self, series: Series, columns: np.ndarray) -> tuple[np.ndarray, float]:
        """See :class:`Noise`."""
        precision, log_det = self._precision(series, self.time)
        product = _banded_product(precision, columns)
        if not self.share:
            return product, log_det
        both = self.share * precision
        both[0] += 1.0 - self.share
        root = scipy.linalg.cholesky_banded(both, lower=True, check_finite=False)
        product = scipy.linalg.cho_solve_banded((root, True), product, check_finite=False)
        return product, log_det + 2 * float(np.sum(np.log(root[0])))

    def correlated(self, series: Series, columns: np.ndarray, *, squared: bool = False) -> np.ndarray:
        """See :class:`Noise`."""
        power = 2 if squared else 1
        part = (1.0 - self.share) ** power
        band, _ = self._precision(series, self.time / power)
        return np.asarray((1.0 - part) * columns + part * scipy.linalg.solveh_banded(band, columns, lower=True))

    def lasts(self, series: Series) -> float:
        """See :class:`Noise`."""
        return self.time / max(float(series.durations.sum()), 1e-300)


def restricted(noise: Noise, series: Series, size: np.ndarray | None = None) -> Fit:
    """Fit of a ``noise`` to a series; without ``size`` (R,), one for all records.

    Notes
    -----
    Source: Patterson and Thompson (1971), Biometrika 58, 545-554. It is the likelihood of those combinations of innovations
    that no unknown moves, whatever the unknowns have taken of the noise. The variance has its best value, and constants are
    left out.
    """
    size = np.ones(len(series.taken)) if size is None else size
    try:
        log_det, squares = _squares(noise, series)
    except np.linalg.LinAlgError:  # correlations so strong that rounding leaves nothing
        return Fit(noise, np.inf, np.nan, size)
    total = max(float(np.sum(squares / size**2)), 1e-300)
    deviance = log_det + series.left * np.log(total) + 2 * float(series.each_left @ np.log(size))
    return Fit(noise, deviance, total / max(series.left, 1), size)


def _squares(noise: Noise, series: Series) -> tuple[float, np.ndarray]:
    """Logarithm of the determinant of the covariance of what is left, and its whitened sum of squares (R,) in each record."""
    products, log_det = noise.products(series)
    unused = np.arange(series.basis.shape[1]) >= series.taken[:, None]
    information = products[:, 1:, 1:] + unused[:, :, None] * np.eye(unused.shape[1])
    root = np.linalg.cholesky(0.5 * (information + information.swapaxes(1, 2)))
    taken = np.linalg.solve(root, products[:, 1:, :1])[:, :, 0]
    log_det += 2 * float(np.sum(np.log(np.diagonal(root, axis1=1, axis2=2))))
    return log_det, np.maximum(products[:, 0, 0] - np.sum(taken**2, axis=1), 0.0)


def noise_of(series: Series) -> Fit:
    """The noise of a series that has the least criterion of Akaike, and the sizes of its records."""
    size = np.ones(len(series.taken))
    if len(size) > 1:  # the sizes of innovations are told much better than those of slow noise
        size = _sizes(_one_more(np.zeros(0), series, size).noise, series)
    return _noise(series, size)


def _one_more(partial: np.ndarray, series: Series, size: np.ndarray) -> Fit:
    """The autoregression with one more partial correlation, which is the most likely one."""

    def deviance(last: float) -> float:
        return restricted(Autoregression(np.append(partial, last)), series, size).deviance

    ends = scipy.optimize.minimize_scalar(deviance, bounds=(-STATIONARY, STATIONARY), method="bounded", options={"xatol": 2e-3})
    return restricted(Autoregression(np.append(partial, float(ends.x))), series, size)


def _noise(series: Series, size: np.ndarray) -> Fit:
    """The noise with the least criterion for given sizes of records."""
    left = series.left
    most = min(series.most, left // EACH_ORDER)
    best = restricted(White(), series, size)
    partial, vain = np.zeros(0), 0
    while len(partial) < most and vain < IN_VAIN:
        found = _one_more(partial, series, size)
        partial = np.tanh(found.noise.coordinates)
        best, vain = (found, 0) if found.criterion(left) < best.criterion(left) else (best, vain + 1)
    if best.noise.order > 1:
        best = _improved(best, series)
    if most > 1:
        relaxing = min((restricted(Relaxing(t, s), series, size) for t in TIMES for s in SHARES), key=lambda f: f.deviance)
        best = min(best, _improved(relaxing, series), key=lambda f: f.criterion(left))
    return best


def _improved(fit: Fit, series: Series) -> Fit:
    """The noise of the same kind and order that is most likely, searched for from one."""
    noise = type(fit.noise)

    def at(coordinates: np.ndarray) -> Fit:
        return restricted(noise.of(coordinates), series, fit.size)

    def deviance(coordinates: np.ndarray) -> float:
        return min(at(coordinates).deviance, fit.deviance + BEYOND)  # differences of infinities are no slopes

    options = {"ftol": 1e-7, "eps": 1e-4}
    ends = scipy.optimize.minimize(deviance, fit.noise.coordinates, method="L-BFGS-B", bounds=fit.noise.bounds, options=options)
    return min(at(ends.x), fit, key=lambda f: f.deviance)


def _sizes(noise: Noise, series: Series) -> np.ndarray:
    """Root mean squares (R,) of the innovations of each record over that of all; 1 where a record has few."""
    squares, left = _squares(noise, series)[1], series.each_left
    common = max(float(squares.sum()) / max(series.left, 1), 1e-300)
    own = np.where(left >= OWN_SIZE, squares / np.maximum(left, 1), common) / common
    return np.asarray(np.sqrt(np.maximum(own, 1e-18)))


def line(noise: Noise, series: Series) -> float:
    """Chance that noise of this kind has as much at a single frequency.

    Notes
    -----
    Source: Fisher (1929), Proceedings of the Royal Society A 125, 54-59, for each record with regular times, times the
    number of records. Products of the Fourier transforms of innovations and of what precision makes of them have no leakage
    to speak of.
    """
    applied = noise.whitened(series, series.errors[:, None])[0][:, 0]
    chance, found = 1.0, np.split(np.arange(len(applied)), series.starts[1:])
    for here in found:
        plain, whitened = np.fft.rfft([series.errors[here], applied[here]])
        power = np.maximum((plain.conj() * whitened).real, 0.0)[1 : (len(here) + 1) // 2]
        steps = np.diff(series.time[here])
        if len(power) > 1 and power.any() and np.ptp(steps) < REGULAR * np.mean(steps):
            chance = min(chance, len(power) * float(1.0 - power.max() / power.sum()) ** (len(power) - 1))
    return min(1.0, chance * len(found))


def _grid(series: Series, least: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of all records one after the other, each from its first measured one to the last, and at least so many.

    Returns
    -------
    place : ndarray, shape (n,)
        Where the measured ones are.
    within, length : ndarray, shape (T,)
        Row within the record, and length of the record.
    """
    first, last = series.row[series.starts], series.row[np.append(series.starts[1:], len(series.row)) - 1]
    length = np.maximum(last - first + 1, least)
    begin = np.cumsum(length) - length
    place = (begin - first)[series.record] + series.row
    return place, np.arange(length.sum()) - np.repeat(begin, length), np.repeat(length, length)


def _banded_product(band: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """A symmetric matrix, by its diagonals (p + 1, T) from the main one on, times ``columns`` (T, c)."""
    product = band[0][:, None] * columns
    for k in range(1, len(band)):
        part = band[k, :-k, None]
        product[k:] += part * columns[:-k]
        product[:-k] += part * columns[k:]
    return np.asarray(product)


def _banded_rows(band: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some ``rows`` (H,) of such a product."""
    product = band[0][rows, None] * columns[rows]
    for k in range(1, len(band)):
        later, sooner = rows < len(columns) - k, rows >= k
        product[later] += band[k][rows[later], None] * columns[rows[later] + k]
        product[sooner] += band[k][rows[sooner] - k, None] * columns[rows[sooner] - k]
    return np.asarray(product)


def _of_rows(band: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Diagonals of the part of a symmetric banded matrix that has certain rows and columns."""
    part = np.zeros((len(band), len(rows)))
    part[0] = band[0, rows]
    for k in range(1, min(len(band), len(rows))):
        apart = rows[k:] - rows[:-k]
        near = apart < len(band)
        part[k, : len(apart)][near] = band[apart[near], rows[:-k][near]]
    return part
