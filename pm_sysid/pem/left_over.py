"""What a fit has left in the innovations: structure, and how much of the outputs."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.objective import LogLikelihood, Objective
from pm_sysid.pem.uneven_noise import UNEVEN, Samples, evened, unevenness
from pm_sysid.records.residual_tests import ljung_box

#: Largest lag of the test, and the fewest innovations for each of them.
LAGS, EACH = 25, 4
#: Innovations are coloured where white ones would look so once in this many times.
COLOURED = 1e-4
#: Steps between which the weights of series of different noise are found.
WEIGHTINGS = 3
#: A fit that has left this share of the outputs' variance, or more, explains no more than a constant.
NOTHING = 0.8
#: One that has left at most this share explains the outputs, coloured innovations or not.
LITTLE = 0.05
#: No instrument's noise has so small a share of the outputs' variance.
NOISELESS = 1e-16
#: What to do about errors with many optima, as those of a long free run are where neighbouring solutions part.
SHORTER = (
    "Over a long free run, errors of chaotic, unstable or oscillating systems have very many optima: fit a shorter part of the "
    "record first, or predict with the measured output, by process noise (predictor=ExtendedKalman(Q=..., R=...)); or give "
    "bounds, a better guess or more starts (starts=50)."
)


class LeftOver(NamedTuple):
    """``p``: least p-value for white innovations, over records and outputs; ``share`` of the outputs' variance left over."""

    p: float
    share: float

    @property
    def coloured(self) -> bool:
        """Whether the innovations have a structure in time."""
        return self.p < COLOURED

    @property
    def explains_nothing(self) -> bool:
        """Whether a constant output would be as good."""
        return self.coloured and self.share > NOTHING

    @property
    def poor(self) -> bool:
        """Whether there may well be a better optimum."""
        return self.coloured and self.share > LITTLE

    @property
    def noiseless(self) -> bool:
        """Whether all that is left is rounding and errors of the integration, whose size and correlations mean nothing."""
        return self.share <= NOISELESS

    @property
    def words(self) -> str:
        """What a reader must know; empty where there is nothing to say."""
        if self.explains_nothing:
            return (
                f"The fit explains nothing: its errors have {100 * self.share:.0f} % of the outputs' variance, and are not "
                f"white. {SHORTER} Or use another model."
            )
        return ""


def left_over(objective: Objective, x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> LeftOver:
    """Test the innovations at unknowns ``x`` within their bounds."""
    filter, m, seen = objective.filter, objective.measured.shape[1], objective.measured
    errors, z, slopes = own_errors(objective, x, lower, upper)
    y = np.concatenate([r.output_matrix for r in filter.records])
    z[seen] = _evened(objective, z[seen], slopes, (y - errors)[seen], (x > lower) & (x < upper))
    tests, at = [1.0], 0
    for record in filter.records:
        rows = slice(at, at + len(record))
        at += len(record)
        for i in range(m):
            one = np.where(seen[rows, i], z[rows, i], np.nan)
            lags = min(LAGS, int(seen[rows, i].sum()) // EACH)
            if lags > 0 and np.nanstd(one) > 1e-9 * max(float(np.nanstd(y[rows, i])), 1e-300):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tests.append(ljung_box(one, lags).p)
    varying = [(i, here) for i, here in enumerate(seen.T) if here.any() and np.ptp(y[here, i]) > 0]
    shares = [np.mean(errors[here, i] ** 2) / max(float(np.var(y[here, i])), 1e-300) for i, here in varying]
    return LeftOver(min(1.0, float(np.nanmin(tests)) * max(len(tests) - 1, 1)), float(np.mean(shares)) if shares else 0.0)


def _evened(objective: Objective, z: np.ndarray, slopes: np.ndarray, predicted: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Errors (N,), over the size of the noise where this varies: a few large ones are no structure in time."""
    if not (np.isfinite(z).all() and np.isfinite(slopes).all()):
        return z
    at = Samples(slopes * z[:, None], slopes, np.zeros_like(slopes), z, predicted, np.zeros((0, 0)))
    return evened(objective, at, free).standardised if unevenness(objective, at, free) < UNEVEN else z


def own_errors(
    objective: Objective, x: np.ndarray, lower: np.ndarray, upper: np.ndarray, moves: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors (T, n_y) at an optimum, and those in which each record counts by its own noise, standardised by a likelihood.

    The latter are linear in what the unknowns move by; or they have moved so many times, where noise is very unequal. And the
    derivatives (N, k) of those that are measured.
    """
    m, seen, free = objective.measured.shape[1], objective.measured, (x > lower) & (x < upper)

    def at(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Errors, efficient ones, their derivatives, and the move of the unknowns that they take."""
        values, rates = objective.filter.run(*objective.layout.place(x), objective.layout.motion, objective.want)
        errors, slopes = values[:, :m], rates[..., :m]
        z = errors.copy()
        if isinstance(objective, LogLikelihood):
            std = np.sqrt(values[:, m : 2 * m])
            z, slopes = errors / std, slopes / std
        slopes = slopes[:, seen].T
        z[seen], step = _own(objective, z[seen], slopes[:, free])
        return errors, z, slopes, step

    with np.errstate(all="ignore"):
        errors, z, slopes, step = at(x)
        for _ in range(moves):
            x = x.copy()
            x[free] = np.clip(x[free] + step, lower[free], upper[free])
            _, moved, slopes_there, step = at(x)
            if not np.isfinite(moved[seen]).all():
                break
            z, slopes = moved, slopes_there
    return errors, z, slopes


def efficient(objective: Objective, errors: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Errors (N,) at the optimum in which each output of each record counts by its own noise.

    Parameters
    ----------
    objective
    errors : ndarray, shape (N,)
        At an optimum in which all count alike. Noise of a loud record has moved the unknowns then, by much more than a quiet
        one allows, whose errors have the pattern of that: of unknowns that are off, and of no model that is wrong.
    slopes : ndarray, shape (N, k)
        Their derivatives.

    Returns
    -------
    ndarray, shape (N,)
        By steps of Gauss and Newton, between which the sizes of the series are found anew.
    """
    return _own(objective, errors, slopes)[0]


def _own(objective: Objective, errors: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors of :func:`efficient`, and what the unknowns (k,) move by for them."""
    rows, outputs = np.nonzero(objective.measured)
    lengths = [len(r) for r in objective.filter.records]
    record = np.repeat(np.arange(len(lengths)), lengths)[rows]
    _, series = np.unique(record * objective.measured.shape[1] + outputs, return_inverse=True)
    count = np.bincount(series)
    if len(count) == 1 or not (np.isfinite(errors).all() and np.isfinite(slopes).all()):
        return errors, np.zeros(slopes.shape[1])
    length = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    slopes, found, step = slopes / length, errors, np.zeros(slopes.shape[1])
    for _ in range(WEIGHTINGS):
        size = np.sqrt(np.bincount(series, found**2) / count)
        weight = (1.0 / np.maximum(size, 1e-9 * max(size.max(), 1e-300)))[series]
        step, *_ = np.linalg.lstsq(weight[:, None] * slopes, weight * errors, rcond=1e-10)
        found = errors - slopes @ step
    return found, -step / length
