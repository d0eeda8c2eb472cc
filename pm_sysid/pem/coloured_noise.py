"""Innovations that are correlated in time: whether they are, and standard errors that allow for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.pem.filters import KalmanFilter
from pm_sysid.pem.objective import LogLikelihood, Objective
from pm_sysid.pem.uneven_noise import Samples
from pm_sysid.records.residual_tests import box_p

#: The first lags, some, and many are tested: noise that fades within a few samples is lost among many lags.
LAGS = (1, 5, 25)
#: Innovations are coloured where white ones would look so, in any of these, once in so many times.
COLOURED = 0.005
#: What it means for standard errors: where predictions do not depend on what was measured, and where they do.
ALLOWED = "noise that is correlated in time, which the standard errors allow for, or dynamics that the model lacks."
MISLED = "the standard errors are too small, and estimates may be off, since predictions follow the correlated noise."
#: Fewest innovations of an output for each lag of a test, and for each order of an autoregression.
EACH, EACH_ORDER = 4, 10
#: Reflections beyond this are no stationary noise; correlations below this are none.
STATIONARY, FADED = 0.99, 1e-6


class Colour(NamedTuple):
    """What shows that innovations are not white: of an ``output``, over so many ``lags``, and the correlation at the first."""

    p: float
    output: str
    lags: int
    first: float

    @property
    def words(self) -> str:
        """What is seen."""
        over = "the first lag" if self.lags == 1 else f"{self.lags} lags"
        return (
            f"The innovations of {self.output} are not white (p = {self.p:.1g} over {over}, correlation {self.first:.2g} "
            "at the first; see resid())"
        )


class _Series(NamedTuple):
    """Innovations of one output: ``errors`` (n,) over their size in each record, at ``rows`` (n,) with gaps between records.

    ``basis`` (n, k) is the part of an orthonormal basis of what unknowns and means have taken of all innovations.
    """

    rows: np.ndarray
    errors: np.ndarray
    basis: np.ndarray


def coloured(objective: Objective, at: Samples, free: np.ndarray) -> Colour | None:
    """Whether innovations at an optimum are correlated in time; None where they are not.

    Notes
    -----
    Correlations of few lags, of some and of many are tested, and the least chance counts, times the number of tests. Each is
    studentised by the products that it is the sum of (Lobato, Nankervis and Savin 2001, International Economic Review 42,
    187-205), so that noise of several sizes is not called coloured. What fitted unknowns do to them is taken off, as Durbin
    and Watson (1950), Biometrika 37, 409-428, do for the first.
    """
    tests = []
    for output, series in zip(objective.filter.system.outputs, _series(objective, at, free), strict=True):
        n = len(series.rows)
        for lags in LAGS:
            if n >= EACH * lags and n >= 2 * EACH:
                r, z = _correlations(series, lags)
                tests.append(Colour(box_p(float(z @ z), lags, n), output, lags, float(r[0])))
    least = min(tests, default=None)
    if least is None:
        return None
    found = least._replace(p=min(1.0, least.p * len(tests)))
    return found if found.p < COLOURED else None


def allowing_for(objective: Objective, at: Samples, free: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Covariance (f, f) of the unknowns marked ``free``, changed by what correlations in time do to one for white innovations.

    Notes
    -----
    Each output's innovations are taken for an autoregression (Yule and Walker), whose order has the least criterion of Akaike,
    corrected for short records. Products of their squares, which tell the size of the noise, are correlated by its square.
    """
    information = at.information[np.ix_(free, free)]
    size = np.sqrt(np.diag(information))
    inverse = np.linalg.pinv(information / np.outer(size, size), rcond=1e-12, hermitian=True) / np.outer(size, size)
    slope, relative = at.slope[:, free] @ inverse, at.relative[:, free] @ inverse
    white, long_run = np.zeros_like(inverse), np.zeros_like(inverse)
    rows, _ = np.nonzero(objective.measured)
    shapes = [_autocorrelation(s, int(max(len(r) for r in objective.filter.records))) for s in _series(objective, at, free)]
    for i, here in _parts(objective):
        square = 1.0 if isinstance(objective, LogLikelihood) else float(np.mean(at.standardised[here] ** 2))
        places = rows[here] - rows[here].min()
        for part, r in ((slope[here] * np.sqrt(square), shapes[i]), (relative[here] * np.sqrt(0.5), shapes[i] ** 2)):
            dense = np.zeros((int(places.max()) + 1, part.shape[1]))
            dense[places] = part
            white += dense.T @ dense
            long_run += dense.T @ scipy.linalg.matmul_toeplitz(r[: len(dense)], dense)
    scale = np.sqrt(np.diag(white))
    by = np.outer(scale, scale)
    try:
        change = np.linalg.cholesky(covariance / by) @ np.linalg.inv(np.linalg.cholesky(white / by))
        changed = change @ (long_run / by) @ change.T * by
    except np.linalg.LinAlgError:  # unknowns that are hardly told from each other
        ratio = np.sqrt(np.maximum(np.diag(long_run), 0.0)) / scale
        changed = covariance * np.outer(ratio, ratio)
    return np.asarray(changed)


def runs_freely(objective: Objective, x: np.ndarray) -> bool:
    """Whether predictions do not depend on what was measured before, so that noise of any colour leaves them right."""
    filter = objective.filter
    n = len(filter.system.params)
    return isinstance(filter, KalmanFilter) and not objective.layout.place(x)[0][n : n + filter.n_process].any()


def _parts(objective: Objective) -> Iterator[tuple[int, np.ndarray]]:
    """Outputs, and which of the measured values (N,) are theirs in one record."""
    rows, outputs = np.nonzero(objective.measured)
    lengths = [len(r) for r in objective.filter.records]
    record = np.repeat(np.arange(len(lengths)), lengths)[rows]
    for i in range(objective.measured.shape[1]):
        for r in range(len(lengths)):
            here = np.flatnonzero((outputs == i) & (record == r))
            if here.size:
                yield i, here


def _series(objective: Objective, at: Samples, free: np.ndarray) -> list[_Series]:
    """Innovations of each output."""
    rows, _ = np.nonzero(objective.measured)
    parts = list(_parts(objective))
    size, means = np.ones(len(rows)), np.zeros((len(rows), len(parts)))
    for j, (_, here) in enumerate(parts):
        size[here], means[here, j] = max(float(np.sqrt(np.mean(at.standardised[here] ** 2))), 1e-300), 1.0
    slope = at.slope[:, free] / size[:, None]
    slope = slope / np.maximum(np.linalg.norm(slope, axis=0), 1e-300)
    vectors, values, _ = np.linalg.svd(np.column_stack([slope, means / np.linalg.norm(means, axis=0)]), full_matrices=False)
    basis = vectors[:, values > 1e-7 * values.max()]
    errors = at.standardised / size
    errors = errors - basis @ (basis.T @ errors)
    lengths = [len(r) for r in objective.filter.records]
    apart = np.repeat(np.arange(len(lengths)) * max(LAGS), lengths)[rows]  # no lag reaches from one record into the next
    found = []
    for i in range(objective.measured.shape[1]):
        here = np.concatenate([np.zeros(0, int), *(h for j, h in parts if j == i)])
        found.append(_Series(rows[here] + apart[here], errors[here], basis[here]))
    return found


def _correlations(series: _Series, lags: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlations (lags,) at the lags 1, 2, ..., and as standard normal scores."""
    n = len(series.rows)
    places = series.rows - series.rows.min()
    length = int(places.max()) + 1
    e, seen, q = np.zeros(length + lags), np.zeros(length + lags), np.zeros((length + lags, series.basis.shape[1]))
    e[places], seen[places], q[places] = series.errors, 1.0, series.basis
    variance = float(e @ e) / max(n - float(np.sum(q**2)), 1.0)
    r, z = np.zeros(lags), np.zeros(lags)
    for k in range(1, lags + 1):
        products = e[k:] * e[:-k]
        total = float(np.sum(products)) + variance * float(np.sum(q[k:] * q[:-k]))
        pairs = max(float(seen[k:] @ seen[:-k]), 1.0)
        r[k - 1] = total / max(pairs * variance, 1e-300) * max(1.0 - k / length, 0.0)
        z[k - 1] = total / max(float(np.linalg.norm(products)), 1e-300)
    return r, z


def _autocorrelation(series: _Series, length: int) -> np.ndarray:
    """Correlations (length,) of an output's innovations from lag 0 on, by an autoregression."""
    result = np.zeros(length)
    result[0] = 1.0
    n = len(series.rows)
    most = min(max(LAGS), n // EACH_ORDER, length - 1)
    if most < 1:
        return result
    r = np.concatenate([[1.0], _correlations(series, most)[0]])
    weights, left = np.zeros(0), 1.0
    chosen, least = weights, 0.0
    for order in range(1, most + 1):  # the recursion of Levinson and Durbin
        reflection = (r[order] - weights @ r[order - 1 : 0 : -1]) / left
        if not abs(reflection) < STATIONARY:
            break
        weights = np.append(weights - reflection * weights[::-1], reflection)
        left *= 1.0 - reflection**2
        criterion = n * np.log(left) + 2 * order * n / max(n - order - 1, 1)
        if criterion < least:
            chosen, least = weights, criterion
    order = len(chosen)
    result[1 : order + 1] = r[1 : order + 1]
    for k in range(order + 1, length if order else 0):
        result[k] = chosen @ result[k - order : k][::-1]
        if np.all(np.abs(result[k - order + 1 : k + 1]) < FADED):
            break
    return result
