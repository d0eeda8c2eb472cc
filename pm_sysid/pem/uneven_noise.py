"""Noise whose size varies, or that outputs have in common: whether it is so, and standard errors where it is."""

from __future__ import annotations

from collections.abc import Iterator
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
#: A prediction is not smaller than this share of the largest, where noise is in proportion to it.
SMALL = 1e-3
#: Powers of what is predicted that noise may be in proportion to; innovations that unknowns must have left for that; and
#: directions that are smaller than this are none.
POWERS, FEWEST_LEFT, RANK = (0.5, 0.75, 1.0), 5, 1e-7
#: No innovation counts as smaller than this share of the largest.
EXACT = 1e-12


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


def unevenness(objective: Objective, at: Samples, free: np.ndarray) -> float:
    """Chance that noise of one size varies as much with what is predicted, with time and from record to record.

    Notes
    -----
    Source: the studentised test of Koenker (1981), Journal of Econometrics 17, 107-112, of absolute innovations in place of
    squared ones, which a few large innovations do not decide. Where unknowns marked ``free`` have followed the largest samples
    of a short record, these look quiet: the ratio of restricted likelihoods (Harville 1977, Journal of the American
    Statistical Association 72, 320-338) of noise in proportion to a power of what is predicted tells them. The least of the
    tests and outputs, times their number.
    """
    chances = [1.0]
    for here, size, time, record in _outputs(objective, at.standardised):
        each = [record == r for r in np.unique(record)[1:]]
        design = np.column_stack([np.ones(len(size)), np.abs(at.predicted[here]), time, *each]).astype(float)
        design /= np.maximum(np.linalg.norm(design, axis=0), 1e-300)
        fitted, _, rank, _ = np.linalg.lstsq(design, size, rcond=1e-10)
        explained = 1.0 - np.sum((size - design @ fitted) ** 2) / np.sum((size - size.mean()) ** 2)
        if rank > 1:
            chances.append(float(scipy.stats.chi2(rank - 1).sf(size.size * explained)))
            chances.append(_in_proportion(at, here, free, record)[0])
    return min(1.0, min(chances) * max(len(chances) - 1, 1))


def _in_proportion(at: Samples, here: np.ndarray, free: np.ndarray, record: np.ndarray) -> tuple[float, np.ndarray]:
    """Chance that innovations of one size, of which ``free`` unknowns have taken, look as much like noise of some power.

    And the size (n,) of noise in proportion to the most likely power of what is predicted, with a level of each record.
    """
    errors, slopes, predicted = at.standardised[here], at.slope[np.ix_(here, free)], np.abs(at.predicted[here])
    level = np.sqrt(np.bincount(record, errors**2) / np.maximum(np.bincount(record), 1))[record]
    level = np.maximum(level, 1e-9 * max(float(level.max()), 1e-300))
    slopes = slopes / level[:, None]
    slopes = slopes / np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    vectors, values, _ = np.linalg.svd(slopes, full_matrices=False)
    basis = vectors[:, values > RANK * values.max(initial=0.0)]
    left = len(errors) - basis.shape[1]
    if left < FEWEST_LEFT:
        return 1.0, level
    logarithm = np.log(predicted + SMALL * max(float(predicted.max()), 1e-300))
    logarithm -= logarithm.mean()

    def fit(power: float) -> tuple[float, float, float]:
        """Minus twice the restricted log-likelihood of a power, the power, and the standard deviation of weighted errors."""
        weighted = np.exp(-power * logarithm)[:, None] * np.column_stack([basis, errors / level])
        triangle = np.abs(np.diag(np.linalg.qr(weighted, mode="r")))
        with np.errstate(divide="ignore"):
            deviance = 2.0 * (left * np.log(triangle[-1]) + np.log(triangle[:-1]).sum())
        return float(deviance), power, float(triangle[-1] / np.sqrt(left))

    plain, best = fit(0.0), min(map(fit, POWERS))
    gain = plain[0] - best[0]
    _, power, deviation = best if gain > 0 else plain
    chance = 0.5 * float(scipy.stats.chi2(1).sf(gain)) if gain > 0 else 1.0
    return chance, level * deviation * np.exp(power * logarithm)


def _outputs(objective: Objective, errors: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Outputs with enough errors (N,) to tell whether these vary: which are theirs, how large they are, times and records."""
    rows, outputs = np.nonzero(objective.measured)
    lengths = [len(r) for r in objective.filter.records]
    record = np.repeat(np.arange(len(lengths)), lengths)[rows]
    time = np.concatenate([np.linspace(-1.0, 1.0, n) for n in lengths])[rows]
    for i in range(objective.measured.shape[1]):
        here = outputs == i
        size = np.abs(errors[here])
        if size.size >= FEWEST and np.ptp(size) > 0:
            yield here, size, time[here], record[here]


def evened(objective: Objective, at: Samples, free: np.ndarray) -> Samples:
    """Innovations over the sizes of their noise, with unknowns marked ``free`` for which each counts by its own.

    The unknowns move by a step of Gauss and Newton. See :func:`sizes_of_noise`.
    """
    size = sizes_of_noise(objective, at, free)[:, None]
    slope, errors = at.slope / size, at.standardised / size[:, 0]
    length = np.maximum(np.linalg.norm(slope[:, free], axis=0), 1e-300)
    step, *_ = np.linalg.lstsq(slope[:, free] / length, errors, rcond=1e-10)
    return at._replace(standardised=errors - slope[:, free] @ (step / length), slope=slope)


def sizes_of_noise(objective: Objective, at: Samples, free: np.ndarray) -> np.ndarray:
    """Standard deviations (N,) of noise in proportion to a power of what is predicted, the most likely one of each output."""
    size = np.abs(at.standardised)
    size = np.maximum(size, EXACT * size.max() or 1.0)  # an output measured once may be met exactly
    outputs = np.nonzero(objective.measured)[1]
    for i in np.unique(outputs):
        size[outputs == i] = np.sqrt(np.mean(size[outputs == i] ** 2))
    for here, _, _, record in _outputs(objective, at.standardised):
        size[here] = _in_proportion(at, here, free, record)[1]
    return size


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


def sandwich(objective: Objective, at: Samples, free: np.ndarray, *, uneven: bool = True) -> np.ndarray:
    """Covariance (f, f) of the unknowns marked ``free`` whatever the sizes of the noise, for innovations white in time.

    Where noise is ``uneven``, a few innovations may decide all, and unknowns have followed these: errors are not smaller than
    what :func:`sizes_of_noise` makes of them.

    Notes
    -----
    Source: White (1980), Econometrica 48, 817-838, each innovation enlarged by its leverage as in the third of the forms of
    MacKinnon and White (1985), Journal of Econometrics 29, 305-325.
    """
    information = at.information[np.ix_(free, free)]
    scale = np.sqrt(np.diag(information))
    inverse = np.linalg.pinv(information / np.outer(scale, scale), rcond=1e-12, hermitian=True) / np.outer(scale, scale)
    slope = at.slope[:, free]
    leverage = np.einsum("ni,ij,nj->n", slope, inverse, slope)
    influence = (at.score[:, free] / (1.0 - np.minimum(leverage, LARGEST))[:, None]) @ inverse
    rows, _ = np.nonzero(objective.measured)  # outputs of one sample may have noise in common
    by_sample = np.zeros((len(objective.measured), influence.shape[1]))
    np.add.at(by_sample, rows, influence)
    found = by_sample.T @ by_sample
    if uneven:
        variance = sizes_of_noise(objective, at, free) ** 2
        of_slopes, of_sizes = slope @ inverse, 0.5 * at.relative[:, free] @ inverse
        squares = variance @ of_slopes**2 + ((1.0 - variance) ** 2 + 2.0 * variance**2) @ of_sizes**2  # of normal noise
        larger = np.sqrt(np.maximum(squares / np.maximum(np.diag(found), 1e-300), 1.0))
        found = found * np.outer(larger, larger)
    return np.asarray(found)
