"""Noise whose size varies, or that outputs have in common: whether it is so, and standard errors where it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.pem.objective import LogLikelihood, Objective
from pm_sysid.records.residual_tests import Together, between_outputs

#: Noise is of several sizes where such of one size would look so once in this many times. Standard errors hold either way;
#: those for one size vary less.
UNEVEN = 0.01
#: Fewest innovations of an output for a test, and the largest leverage that is corrected for.
FEWEST, LARGEST = 12, 0.9


class Samples(NamedTuple):
    """What each measured value (N,) says at an optimum.

    ``score`` (N, k) is its part of the gradient of a negative log-likelihood (of squared errors, without their variance), and
    ``slope`` (N, k) that of its standardised innovation, ``standardised`` (N,); ``relative`` (N, k) are the derivatives of the
    logarithm of its variance, and ``predicted`` (N,) is what was predicted of it.
    """

    score: np.ndarray
    slope: np.ndarray
    relative: np.ndarray
    standardised: np.ndarray
    predicted: np.ndarray
    information: np.ndarray


def samples(objective: Objective, x: np.ndarray, by_differences: np.ndarray | None = None) -> Samples:
    """Evaluate an objective value by value at unknowns ``x``; with rates of change (k, T, n) in place of its own."""
    m, seen = objective.measured.shape[1], objective.measured
    with np.errstate(all="ignore"):
        values, rates = objective.filter.run(*objective.layout.place(x), objective.layout.motion, objective.want)
    rates = rates if by_differences is None else by_differences
    e, slope = values[:, :m][seen], rates[..., :m][:, seen].T
    predicted = np.concatenate([r.output_matrix for r in objective.filter.records])[seen] - e
    if not isinstance(objective, LogLikelihood):
        return Samples(slope * e[:, None], slope, np.zeros_like(slope), e, predicted, slope.T @ slope)
    s, d_s = values[:, m:][seen], rates[..., m:][:, seen].T
    root = np.sqrt(s)
    relative = d_s / s[:, None]
    score = slope * (e / s)[:, None] + 0.5 * relative * (1.0 - e**2 / s)[:, None]
    scaled = slope / root[:, None]
    return Samples(score, scaled, relative, e / root, predicted, scaled.T @ scaled + 0.5 * relative.T @ relative)


def unevenness(objective: Objective, at: Samples) -> float:
    """Chance that noise of one size varies as much with what is predicted, with time and from record to record.

    Notes
    -----
    Source: the studentised test of Koenker (1981), Journal of Econometrics 17, 107-112, of absolute innovations in place of
    squared ones, which a few large innovations do not decide; the least of the outputs, times their number.
    """
    rows, outputs = np.nonzero(objective.measured)
    lengths = [len(r) for r in objective.filter.records]
    record = np.repeat(np.arange(len(lengths)), lengths)[rows]
    time = np.concatenate([np.linspace(-1.0, 1.0, n) for n in lengths])[rows]
    chances = [1.0]
    for i in range(objective.measured.shape[1]):
        here = outputs == i
        n, size = int(here.sum()), np.abs(at.standardised[here])
        if n < FEWEST or not np.ptp(size) > 0:
            continue
        columns = [np.ones(n), np.abs(at.predicted[here]), time[here]]
        columns += [record[here] == r for r in range(1, len(lengths))]
        design = np.column_stack(columns).astype(float)
        design /= np.maximum(np.linalg.norm(design, axis=0), 1e-300)
        fitted, _, rank, _ = np.linalg.lstsq(design, size, rcond=1e-10)
        explained = 1.0 - np.sum((size - design @ fitted) ** 2) / np.sum((size - size.mean()) ** 2)
        if rank > 1:
            chances.append(float(scipy.stats.chi2(rank - 1).sf(n * explained)))
    return min(1.0, min(chances) * max(len(chances) - 1, 1))


def in_common(objective: Objective, at: Samples) -> Together | None:
    """Outputs whose innovations at one time are correlated though a likelihood takes them for independent, if there are any.

    Squared errors have standard errors for correlated outputs anyway.
    """
    if not isinstance(objective, LogLikelihood):
        return None
    z = np.full(objective.measured.shape, np.nan)
    z[objective.measured] = at.standardised
    found = between_outputs(dict(zip(objective.filter.system.outputs, z.T, strict=True)))
    return found if found and found.p < UNEVEN else None


def sandwich(objective: Objective, at: Samples, free: np.ndarray) -> np.ndarray:
    """Covariance (f, f) of the unknowns marked ``free`` whatever the sizes of the noise, for innovations white in time.

    Notes
    -----
    Source: White (1980), Econometrica 48, 817-838, each innovation enlarged by its leverage as in the third of the forms of
    MacKinnon and White (1985), Journal of Econometrics 29, 305-325.
    """
    information = at.information[np.ix_(free, free)]
    size = np.sqrt(np.diag(information))
    inverse = np.linalg.pinv(information / np.outer(size, size), rcond=1e-12, hermitian=True) / np.outer(size, size)
    slope = at.slope[:, free]
    leverage = np.einsum("ni,ij,nj->n", slope, inverse, slope)
    influence = (at.score[:, free] / (1.0 - np.minimum(leverage, LARGEST))[:, None]) @ inverse
    rows, _ = np.nonzero(objective.measured)  # outputs of one sample may have noise in common
    by_sample = np.zeros((len(objective.measured), influence.shape[1]))
    np.add.at(by_sample, rows, influence)
    return np.asarray(by_sample.T @ by_sample)
