"""Innovations that are correlated in time: whether they are, and standard errors that allow for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.filters import KalmanFilter, median_step
from pm_sysid.pem.objective import Objective
from pm_sysid.pem.restricted_likelihood import Noise, Series, White, line, noise_of, restricted
from pm_sysid.pem.uneven_noise import Samples
from pm_sysid.records.residual_tests import box_p

#: The first lags, some, and many are tested: noise that fades within a few samples is lost among many lags.
LAGS = (1, 5, 25)
#: Innovations are coloured where white ones would look so, in any of these, once in so many times.
COLOURED = 0.005
#: What it means for standard errors: where predictions do not depend on what was measured, and where they do.
ALLOWED = "noise that is correlated in time, which the standard errors allow for, or dynamics that the model lacks."
DOUBTFUL = "noise that is correlated in time, or dynamics that the model lacks. The standard errors may be too small: {}."
MISLED = "the standard errors are too small, and estimates may be off, since predictions follow the correlated noise."
#: Why standard errors may be too small all the same.
FEW = "the records have too few samples for each unknown to tell how the noise is correlated"
SLOW = "the noise, or a part of it such as hum, is correlated over a time that is not short beside the records"
PUSHED = (
    "random pushes on the states, or dynamics that the model lacks, explain the innovations nearly as well, and their errors "
    "are larger. Compare a fit with process noise (predictor=ExtendedKalman(Q=..., R=...), objective='likelihood')"
)
UNLIKE = "no stationary noise with a short memory describes what is seen"
#: Fewest innovations of an output for each lag of a test; fewest that unknowns have left for an estimate of correlations.
EACH, FEWEST = 4, 20
#: Share of the innovations of an output that unknowns must have left of it, record by record.
LEFT = 0.75
#: Noise is slow whose correlations take more than this share of the longest record, or of all records, to fall to 1/e.
OF_LONGEST, OF_ALL = 0.3, 0.1


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


class Allowed(NamedTuple):
    """A ``covariance`` (f, f) that allows for correlated noise, and why it may be too small; empty where there is no doubt.

    ``gain`` is by how much such noise lowers Akaike's criterion below that of white noise.
    """

    covariance: np.ndarray
    doubt: str
    gain: float


def allowing_for(objective: Objective, at: Samples, free: np.ndarray, covariance: np.ndarray) -> Allowed:
    """Covariance of the unknowns marked ``free``, changed by what correlations in time do to one (f, f) for white innovations.

    Notes
    -----
    The correlation of each output's noise is the most likely one for what the unknowns have left of it
    (:mod:`pm_sysid.pem.restricted_likelihood`), and so is its variance, which innovations that unknowns have followed do not
    show in full. Products of their squares, which tell the size of the noise, are correlated by its square.
    """
    information = at.information[np.ix_(free, free)]
    size = np.sqrt(np.diag(information))
    inverse = np.linalg.pinv(information / np.outer(size, size), rcond=1e-12, hermitian=True) / np.outer(size, size)
    slope, relative = at.slope[:, free] @ inverse, at.relative[:, free] @ inverse
    leverage = np.einsum("ni,ij,nj->n", at.slope[:, free], inverse, at.slope[:, free])
    white, long_run = np.zeros_like(inverse), np.zeros_like(inverse)
    doubts, noise, gain = set[str](), list[Noise](), 0.0
    for here in _outputs(objective):
        series = _left(objective, at, free, here)
        plain = float(np.sum(at.standardised[here] ** 2) / max(len(here) - float(leverage[here].sum()), 1.0))
        sizes, variance = np.ones(len(here)), plain
        noise.append(White())
        if series.left >= FEWEST:
            fit = noise_of(series)
            noise[-1], variance, sizes = fit.noise, fit.variance, fit.size[series.record]
            gain += restricted(White(), series, fit.size).criterion(series.left) - fit.criterion(series.left)
        if series.left < max(FEWEST, LEFT * len(here)):
            doubts.add(FEW)
        elif _is_slow(noise[-1], series) or (noise[-1].order and line(noise[-1], series) < COLOURED):
            doubts.add(SLOW)
        own = slope[here] * sizes[:, None]
        white += plain * own.T @ own
        long_run += variance * own.T @ noise[-1].correlated(series, own)
        own = relative[here] * np.sqrt(0.5)
        white += own.T @ own
        long_run += own.T @ noise[-1].correlated(series, own, squared=True)
    if not any(n.order for n in noise):
        doubts.add(UNLIKE)
    scale = np.sqrt(np.diag(white))
    by = np.outer(scale, scale)
    try:
        change = np.linalg.cholesky(covariance / by) @ np.linalg.inv(np.linalg.cholesky(white / by))
        changed = change @ (long_run / by) @ change.T * by
    except np.linalg.LinAlgError:  # unknowns that are hardly told from each other
        ratio = np.sqrt(np.maximum(np.diag(long_run), 0.0)) / scale
        changed = covariance * np.outer(ratio, ratio)
    return Allowed(np.asarray(changed), next((d for d in (FEW, SLOW, UNLIKE) if d in doubts), ""), gain)


def _is_slow(noise: Noise, series: Series) -> bool:
    """Whether records are too short beside the time over which noise is correlated."""
    return noise.lasts(series) > min(OF_ALL, OF_LONGEST * float(series.spans.max()) / float(series.spans.sum()))


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


def _outputs(objective: Objective) -> Iterator[np.ndarray]:
    """Which of the measured values (N,) are of each output that is measured at all."""
    _, outputs = np.nonzero(objective.measured)
    for i in range(objective.measured.shape[1]):
        if (here := np.flatnonzero(outputs == i)).size:
            yield here


def _left(objective: Objective, at: Samples, free: np.ndarray, here: np.ndarray) -> Series:
    """Innovations of one output for the restricted likelihood."""
    rows = np.nonzero(objective.measured)[0][here]
    records = objective.filter.records
    record = np.repeat(np.arange(len(records)), [len(r) for r in records])[rows]
    time = np.concatenate([r.t - r.t[0] for r in records])[rows] / median_step(records)
    return Series.of(at.standardised[here], at.slope[np.ix_(here, free)], record, rows, time)


def _series(objective: Objective, at: Samples, free: np.ndarray) -> list[_Series]:
    """Innovations of each output."""
    rows, _ = np.nonzero(objective.measured)
    parts = list(_parts(objective))
    size, means = np.ones(len(rows)), np.zeros((len(rows), len(parts)))
    least = max(1e-9 * float(np.sqrt(np.mean(at.standardised**2))), 1e-300)  # a record of one sample may be met exactly
    for j, (_, here) in enumerate(parts):
        size[here], means[here, j] = max(float(np.sqrt(np.mean(at.standardised[here] ** 2))), least), 1.0
    slope = at.slope[:, free] / size[:, None]
    slope = slope / np.maximum(np.linalg.norm(slope, axis=0), 1e-300)
    means = means / np.linalg.norm(means, axis=0)
    vectors, values, _ = np.linalg.svd(np.column_stack([slope, means]), full_matrices=False)
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
