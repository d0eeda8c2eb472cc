"""One more unknown at the optimum of a fit: what the record says of it, and how the others would move with it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.objective import Objective
from pm_sysid.pem.uneven_noise import Samples
from pm_sysid.records.residual_tests import correlation, in_order, ljung_box, long_run

#: Lags of the correlations by which an error of a mean is larger than that of white noise, for so many values each.
LAGS, EACH = 25, 4
#: Few lags, and the chance of white noise below which what is left is none.
FEW, NOT_WHITE = 5, 1e-4
#: Logarithm of how much more likely a cause has to make the record.
MORE_LIKELY = 8.0
#: Singular values of slopes below this share of the largest are as good as zero.
RANK = 1e-10
#: Share of a direction that the unknowns must leave: rates of change by differences have errors of this size.
ALIKE = 1e-5
#: Standard errors by which estimates without some values may differ by chance.
CHANCE = 2.0


class OneMore(NamedTuple):
    """A size of one more unknown and its standard error; and how likely it makes the record.

    ``gain`` is the logarithm of how much more likely white noise of its best size makes the record, ``step`` (k,) is what the
    unknowns move by, and ``unknown`` is the one that moves by most standard errors, ``moved``. Squared errors of sums of what
    is ``left`` (N,) are ``correlated`` times as large as those of white noise.
    """

    size: float
    error: float
    gain: float
    step: np.ndarray
    unknown: int
    moved: float
    correlated: float
    left: np.ndarray


class Without(NamedTuple):
    """Which ``unknown`` moves most where some innovations do not count, and by how many standard errors beyond chance.

    ``there`` (N,) are all innovations then, as far as they are linear.
    """

    unknown: int
    moved: float
    there: np.ndarray


class Directions:
    """Innovations (N,) of an optimum, and what they have in common with the unknowns.

    Parameters
    ----------
    target : Objective
    stderr : ndarray, shape (k,)
        Standard errors of the unknowns.
    each : Samples
        Innovations and their derivatives.

    Notes
    -----
    A step of Gauss and Newton. Errors are those of noise of any size (White 1980, Econometrica 48, 817-838), by leverages, and
    of the correlations of what is left, and of its products with the direction: a resonance that rings by itself is correlated
    with one that parameters move.
    """

    def __init__(self, target: Objective, stderr: np.ndarray, each: Samples) -> None:
        self.target, self.stderr, self.e = target, stderr, each.standardised
        #: Unknowns that have an error, and are no noise.
        self.free = np.flatnonzero(np.isfinite(stderr) & (stderr > 0) & ~target.layout.positive)
        slope = each.slope[:, self.free]
        self.scale = np.maximum(np.linalg.norm(slope, axis=0), 1e-300)
        self.slope = slope / self.scale
        self._rows = np.nonzero(target.measured)[0]

    @cached_property
    def _axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular vectors (N, r) and (r, k) of the slopes, and values (r,), without those that are as good as zero.

        Once for all directions: of a hundred terms each, a decomposition took most of the time of a fit.
        """
        left, sizes, right = np.linalg.svd(self.slope, full_matrices=False)
        kept = sizes > RANK * sizes.max(initial=0.0)
        return left[:, kept], sizes[kept], right[kept]

    @cached_property
    def _leverage(self) -> np.ndarray:
        """Leverages (N,) of the innovations by the unknowns alone."""
        return np.asarray(np.sum(self._axes[0] ** 2, axis=1))

    @property
    def known(self) -> bool:
        """Whether there is an unknown, and all derivatives are finite."""
        return bool(self.free.size and np.isfinite(self.e).all() and np.isfinite(self.slope).all())

    @np.errstate(all="ignore")  # of a direction that explodes
    def along(self, direction: np.ndarray, least: float = 0.0) -> OneMore | None:
        """One more unknown that adds ``direction`` (N,) to the innovations; None where the others do the same.

        None, too, where it differs from zero by no more than ``least`` errors of white noise, which are the smallest.
        """
        left, sizes, right = self._axes
        share = left.T @ direction
        own, rest = right.T @ (share / sizes), direction - left @ share
        length = float(rest @ rest)
        if not np.isfinite(length) or not length > ALIKE * float(direction @ direction):
            return None
        size = float(rest @ self.e) / length
        noise = self.e - size * rest
        # Few values may have decided both, and look quiet then: by leverages, and by what is left of all.
        leverage = np.minimum(self._leverage + rest**2 / length, 0.999)
        freedom = max(len(self.e) - len(sizes) - 1, 1)
        together = np.bincount(self._rows, rest * noise / (1 - leverage))  # outputs may have noise in common
        variance = max(float(together @ together), length * float(noise @ noise) / freedom)
        if abs(size) * length <= least * np.sqrt(variance):
            return None
        correlated = self.correlated(noise)
        error = float(np.sqrt(variance * max(correlated, self.correlated(rest * noise)))) / length
        step = np.zeros(self.stderr.size)
        step[self.free] = size * own / self.scale
        moved = np.abs(step[self.free]) / self.stderr[self.free]
        gain = 0.5 * len(self.e) * float(np.log(max(self.e @ self.e, 1e-300) / max(noise @ noise, 1e-300)))
        most = int(np.argmax(moved))
        return OneMore(size, error, gain, step, int(self.free[most]), float(moved[most]), correlated, noise)

    @np.errstate(all="ignore")
    def without(self, left_out: np.ndarray) -> Without:
        """Where the unknowns go if some innovations (N,) do not count."""
        kept = self.slope[~left_out]
        step = np.linalg.lstsq(kept, self.e[~left_out], rcond=1e-10)[0]
        there = self.e - self.slope @ step
        # Estimates by a part of the values scatter about those by all with the difference of the two variances.
        noise = float(np.mean(there[~left_out] ** 2)) * max(self.correlated(np.where(left_out, 0.0, there)), 1.0)
        of_kept, of_all = (noise * np.diag(np.linalg.pinv(s.T @ s)) for s in (kept, self.slope))
        chance = np.sqrt(np.maximum(of_kept - of_all, 0.0))
        stderr = np.maximum(self.stderr[self.free] * self.scale, np.sqrt(of_kept))
        moved = np.nan_to_num(np.maximum(np.abs(step) - CHANCE * chance, 0.0) / stderr)
        most = int(np.argmax(moved))
        return Without(int(self.free[most]), float(moved[most]), there)

    def correlated(self, e: np.ndarray) -> float:
        """By how much squared errors of sums are larger than those of white noise, in the output where most; or one."""
        found = [long_run(correlation(one, one, range(1, lags + 1))[0]) for one, lags in self._series(e)]
        return float(np.max([1.0, *found]))

    def likely(self, gain: float, left: np.ndarray) -> bool:
        """Whether another cause is beyond doubt, with the innovations (N,) that it leaves and its ``gain`` in log-likelihood.

        Likelihoods of correlated innovations differ by too much. By how much, a short series does not tell.
        """
        if self.white(left):
            return gain > MORE_LIKELY
        long = all(lags == LAGS for _, lags in self._series(left))
        return long and gain > MORE_LIKELY * self.correlated(left)

    def white(self, e: np.ndarray) -> bool:
        """Whether innovations (N,) may be white, in all outputs and records, over few lags and over many."""
        return all(ljung_box(one, few).p > NOT_WHITE for one, lags in self._series(e) for few in {min(lags, FEW), lags})

    def _series(self, e: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Each output in each record, and the lags for so many values."""
        series, at = np.full(self.target.measured.shape, np.nan), 0
        series[self.target.measured] = e
        for record in self.target.filter.records:
            for one in map(in_order, series[at : at + len(record)].T):
                n = int(np.isfinite(one).sum())
                if (lags := min(LAGS, n // EACH)) > 0 and np.nanstd(one) > 0:
                    yield one, lags
            at += len(record)
