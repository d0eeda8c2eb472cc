"""Tests of the residuals of a model: whiteness, mean, steadiness, independence of the input, normality."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pm_sysid.arguments import shown, whole
from pm_sysid.notebook import html_line
from pm_sysid.records.steadiness import Part, level_part, size_part
from pm_sysid.records.validation import real

__all__ = ["ResidualTests", "residual_tests"]

type FloatArray = NDArray[np.float64]

LEVEL = 0.99
BOUND = NormalDist().inv_cdf((1 + LEVEL) / 2)

#: Samples that two outputs must have in common for a correlation between them.
FEWEST_PAIRS = 20

#: Random series for the moments of a statistic, and the length from which on these are extrapolated.
SERIES, LONG = 4000, 400
#: A part without which residuals are white: its largest share of the record, the share of the Ljung-Box statistic of a sample
#: that may be left, and how many parts that differ may be put together.
LARGEST_APART, FALLEN, PARTS_TOGETHER = 0.25, 0.15, 4
#: Share of the residuals that another one has to follow at the next sample for lags to be counted in samples.
FOLLOW = 0.25
#: Share of lags outside their bounds above which they are mentioned, white or not.
FEW_OUTSIDE = 0.05


@dataclass(frozen=True, repr=False)
class ResidualTests:
    """Result of `residual_tests`; the printed form gives the verdicts in words.

    Attributes
    ----------
    count, missing : int
        Number of residuals used, and number of residuals that are NaN.
    mean, std : float
        Mean and standard deviation of the residuals: near 0 and 1 if they are standardised and noise and model are correct.
    mean_se : float
        Standard error of the mean, with what the autocorrelation adds to it.
    std_se : float
        Standard error of the standard deviation of white residuals, by their kurtosis, and at least that of normal ones.
    lags : int
        Largest lag, in samples.
    ljung_box, ljung_box_p : float
        Ljung-Box statistic over lags 1 to `lags`, and its p-value.
    share_outside : float
        Fraction of these lags whose autocorrelation is outside its 99 % bounds; the expected value for white noise is 0.01.
    cross_correlation : float or None
        Correlation with the input, at the lag from -`lags` to `lags` where it is most significant.
    cross_lag : int or None
        This lag: positive if the input is earlier than the residual, in samples.
    cross_p : float or None
        P-value of this correlation, corrected for the search over all lags (Sidak).
    jarque_bera_p : float
        P-value of the Jarque-Bera test for the skewness and kurtosis of a normal distribution.
    level : Part
        The part of the record whose mean differs most from that of the rest: its samples from ``start`` to before ``stop``, the
        ``change`` in standard deviations, and the p-value ``p`` of there being such a part. For white residuals.
    size : Part
        The same of the size: ``change`` is the standard deviation there over that of the rest.
    apart : Part or None
        Where residuals are not white: a part of the record, a quarter of it at most, without which they are; ``change`` as of
        the level, and ``p`` of the Ljung-Box test of the rest. None if there is none.
    cross_input : str or None
        Name of this input where a model has named ones, of several that with the most significant correlation.
    """

    count: int
    missing: int
    mean: float
    std: float
    mean_se: float
    std_se: float
    lags: int
    ljung_box: float
    ljung_box_p: float
    share_outside: float
    cross_correlation: float | None
    cross_lag: int | None
    cross_p: float | None
    jarque_bera_p: float
    level: Part
    size: Part
    apart: Part | None
    cross_input: str | None = None

    def __repr__(self) -> str:
        """Give a verdict for each test."""
        head = (
            f"ResidualTests: {self.count} residuals ({self.missing} missing), mean {self.mean:.3g}, "
            f"standard deviation {self.std:.3g}"
        )
        return "\n".join([head, *(f"  {said}" for said in self.findings)])

    @property
    def the_input(self) -> str:
        """The input with the correlation, in words."""
        return "the input" if self.cross_input is None else f"the input {self.cross_input}"

    @property
    def mean_p(self) -> float:
        """P-value of the mean, which is zero if the model is right."""
        return float(2 * scipy.stats.norm.sf(abs(self.mean) / self.mean_se))

    @property
    def findings(self) -> list[str]:
        """Verdict of each test at the 1 % level, with its numbers."""
        alpha = 1 - LEVEL
        outside = f"{100 * self.share_outside:.0f} % of the lags outside their 99 % bounds, where 1 % is expected"
        box = f"Ljung-Box {self.ljung_box:.1f} over {self.lags} lags, {_p_text(self.ljung_box_p)}"
        if not self.ljung_box_p > alpha:
            white = f"not white: dynamics or coloured noise are left in them ({box}; {outside})"
            if self.apart is not None:
                white = f"not white ({box}; {outside}), but they are without {_samples(self.apart)}: something acts there"
        elif self.share_outside > FEW_OUTSIDE:
            white = f"white as a whole ({box}), though single lags stand out ({outside})"
        else:
            white = f"white ({box}; {outside})"
        mean = f"mean {self.mean:.3g} ± {self.mean_se:.2g}, {_p_text(self.mean_p)}"
        zero = "centred on zero" if self.mean_p > alpha else "not centred on zero: an offset or a slow drift is left in them"
        lines = [white, f"{zero} ({mean})"]
        if self.cross_p is not None and self.cross_lag is not None:
            if self.cross_p > alpha:
                verdict = "independent of the input" if self.cross_input is None else "independent of all inputs"
            elif self.cross_lag >= 0:
                verdict = f"depend on {self.the_input}: the model misses part of its effect"
            else:
                later = self.the_input.replace("the", "later", 1)
                verdict = f"depend on {later}: feedback, or a wrong delay"
            lines.append(
                f"{verdict} (largest correlation {self.cross_correlation:.3f}, at lag {self.cross_lag}, "
                f"{_p_text(self.cross_p)})"
            )
        lines += self._steadiness
        normal = "normal" if self.jarque_bera_p > alpha else "not normal: outliers, or a nonlinearity is left in them"
        return [*lines, f"{normal} ({self.jarque_bera})"]

    @property
    def _steadiness(self) -> list[str]:
        """Whether a part of the record differs; nothing where correlations make parts differ by chance."""
        alpha = 1 - LEVEL
        if not self.ljung_box_p > alpha:
            return []
        lines = []
        if self.level.p <= alpha:
            lines.append(f"not steady in level: a drift, or a disturbance, is left in them ({self.moved})")
        if self.size.p <= alpha:
            lines.append(f"not steady in size: a burst, or noise that is not constant ({self.swollen})")
        return lines or [f"steady (level, {_p_text(self.level.p)}; size, {_p_text(self.size.p)})"]

    @property
    def moved(self) -> str:
        """Where the level differs most, in words."""
        side = "above" if self.level.change > 0 else "below"
        return f"{_samples(self.level)} are {abs(self.level.change):.2g} standard deviations {side} the rest"

    @property
    def swollen(self) -> str:
        """Where the size differs most, in words."""
        return f"{_samples(self.size)} are {self.size.change:.2g} times as large as the rest"

    @property
    def jarque_bera(self) -> str:
        """Test of the normal distribution with its p-value."""
        return f"Jarque-Bera, {_p_text(self.jarque_bera_p)}"

    def _repr_html_(self) -> str:
        """One line for each test, for a notebook."""
        head, *_ = repr(self).split("\n")
        return html_line(head, strong=True) + "".join(map(html_line, self.findings))


def residual_tests(residuals: ArrayLike, u: ArrayLike | None = None, lags: int = 25) -> ResidualTests:
    """Test whether residuals are white, of mean zero, steady, uncorrelated with the input, and normal.

    Parameters
    ----------
    residuals : array_like, shape (T,)
        One-step prediction errors of one output, standardised or not, equally spaced in time; NaN marks a
        missing value. The residuals of a free run are not white even for the true model.
    u : array_like, shape (T,) or (T, 1), optional
        The input, finite.
    lags : int
        Largest lag in samples.

    Returns
    -------
    ResidualTests

    Raises
    ------
    ValueError
        If shapes differ, or there are too few residuals for `lags`, or residuals or input are constant or infinite.

    Notes
    -----
    The test of whiteness is that of Ljung and Box, Biometrika 65 (1978). Where values are missing, the number of observed
    pairs of each lag replaces T - k; where hardly any two neighbours are measured, lags count measurements in their order.
    The statistic has a gamma distribution with the mean, variance and skewness that it has for as many white residuals, and
    is chi-square with `lags` degrees of freedom for very many; nothing is taken off for parameters that were fitted. The
    other tests are of residuals without their mean, which has a test of its own: its standard error is the larger one of
    that of white noise and the long-run one of Newey and West, Econometrica 55 (1987), over `lags`. The bounds of the
    correlation with the input assume white residuals. Drifts, disturbances and bursts are looked for in parts of two, four
    and more samples up to half of the record: how much one differs from the rest, less what is usual among as many parts of
    its length (Duembgen and Spokoiny, Annals of Statistics 29, 2001), is compared with random orders of the same residuals.
    Where residuals are not white, such a part is left out, and the rest is tested again.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> e, u = rng.standard_normal((2, 2000))
    >>> residual_tests(e, u)
    ResidualTests: 2000 residuals (0 missing), mean -0.0134, standard deviation 1.01
      white (Ljung-Box ...)
      centred on zero (mean ...)
      independent of the input (...)
      steady (...)
      normal (...)
    >>> drifting = residual_tests(e + np.linspace(-0.1, 0.1, 2000), u)
    >>> drifting.ljung_box_p > 0.01, drifting.level.p < 0.01  # too slow for correlations
    (True, True)
    >>> residual_tests(e[1:] + e[:-1], u[1:]).ljung_box_p < 1e-6
    True
    """
    e, u = as_residuals(residuals, u, lags)
    count = int(np.isfinite(e).sum())
    std, white = float(np.nanstd(e)), ljung_box(e, lags)
    peak: tuple[float | None, int | None, float | None] = (None, None, None)
    if u is not None:
        r, pairs = correlation(e, u, range(-lags, lags + 1))
        distance = np.abs(scores(r, pairs, count))
        k = int(distance.argmax())
        peak = float(r[k]), k - lags, _of_several(float(2 * scipy.stats.norm.sf(distance[k])), len(r))
    return ResidualTests(
        count=count,
        missing=e.size - count,
        mean=float(np.nanmean(e)),
        std=std,
        mean_se=std * float(np.sqrt(max(long_run(white.r), 1.0) / count)),
        std_se=std * float(np.sqrt((2 + max(scipy.stats.kurtosis(e, nan_policy="omit"), 0.0)) / (4 * count))),
        lags=lags,
        ljung_box=white.statistic,
        ljung_box_p=white.p,
        share_outside=white.outside,
        cross_correlation=peak[0],
        cross_lag=peak[1],
        cross_p=peak[2],
        jarque_bera_p=float(scipy.stats.jarque_bera(e[np.isfinite(e)]).pvalue),
        level=level_part(e),
        size=size_part(e),
        apart=None if white.p > 1 - LEVEL else white_without(e, lags, white),
    )


class Whiteness(NamedTuple):
    """Ljung-Box statistic and p-value, share of lags outside their 99 % bounds, and the correlations r (lags,)."""

    statistic: float
    p: float
    outside: float
    r: FloatArray


def in_order(e: FloatArray) -> FloatArray:
    """Residuals (T,), NaN where missing; of such as hardly ever follow each other, as of a laboratory, those that there are.

    Few samples after a measured one, if any, another one is: lags count measurements then.

    Examples
    --------
    >>> in_order(np.array([1.0, np.nan, np.nan, 3.0, np.nan, np.nan, 2.0]))
    array([1., 3., 2.])
    """
    known = ~np.isnan(e)
    return e if np.sum(known[1:] & known[:-1]) >= FOLLOW * (known.sum() - 1) else e[known]


def ljung_box(e: FloatArray, lags: int) -> Whiteness:
    """Whether residuals (T,), NaN where missing, are white."""
    e = in_order(e)
    r, pairs = correlation(e, e, range(1, lags + 1))
    z = scores(r, pairs, int(np.isfinite(e).sum()))
    statistic = float(z @ z)
    return Whiteness(statistic, box_p(statistic, lags, int(np.isfinite(e).sum())), float(np.mean(np.abs(z) > BOUND)), r)


def box_p(statistic: float, lags: int, count: int) -> float:
    """P-value of a Ljung-Box statistic: its gamma distribution has the moments that it has for so many residuals.

    Chi-square, which it is for very many, has too short a tail: of 40 white residuals, 3.7 % were below 0.01 over 25 lags.
    """
    short = min(count, LONG)
    moments, limit = np.array(_box_moments(lags, short)), np.array([lags, 2.0 * lags, np.sqrt(8.0 / lags)])
    mean, variance, skewness = limit + (moments - limit) * short / count  # what a short record adds goes with 1 / count
    shape = 4 / skewness**2  # all are skewed to the right
    return float(scipy.special.gammaincc(shape, max(shape + np.sqrt(shape / variance) * (statistic - mean), 0.0)))


@lru_cache(maxsize=1024)
def _box_moments(lags: int, count: int) -> tuple[float, float, float]:
    """Mean, variance and skewness of the Ljung-Box statistic of `count` white residuals, from random ones."""
    e = np.random.default_rng(0).standard_normal((SERIES, count))
    e -= e.mean(axis=1, keepdims=True)
    e /= e.std(axis=1, keepdims=True)
    box = np.zeros(SERIES)
    for lag in range(1, lags + 1):
        pairs = count - lag
        r = np.einsum("bt,bt->b", e[:, lag:], e[:, :-lag]) / pairs
        box += r**2 * pairs * (count + 2) / count
    return float(box.mean()), float(box.var()), float(scipy.stats.skew(box))


def white_without(e: FloatArray, lags: int, whole: Whiteness) -> Part | None:
    """The part of residuals (T,) that are not white without which they are; None if they are coloured elsewhere too.

    Where the level or the size differs most is looked at, and what is around it, since a part is found with a length that is a
    power of two. A shorter record shows correlations less: the statistic has to fall by more than the samples do.
    """
    count, found = np.isfinite(e).sum(), list[Part]()
    for differs in (level_part, size_part):
        left, start, stop = e, len(e), 0
        for _ in range(PARTS_TOGETHER):
            part = differs(left)
            start, stop = min(start, part.start), max(stop, part.stop)
            left = np.concatenate([e[:start], np.full(stop - start, np.nan), e[stop:]])
            rest = np.isfinite(left).sum()
            if stop - start > LARGEST_APART * len(e) or rest <= lags + 1:
                break
            white = ljung_box(left, lags)
            fallen = (white.statistic - lags) / rest < FALLEN * (whole.statistic - lags) / count
            if white.p > 1 - LEVEL and fallen:
                change = (np.nanmean(e[start:stop]) - np.nanmean(left)) / np.nanstd(e)
                found.append(Part(start, stop, float(change), white.p))
                break
    return min(found, key=lambda part: part.stop - part.start, default=None)


def with_squares(inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Inputs that vary, and the squares about their means, which a linear correlation does not see; if these vary as well.

    Examples
    --------
    >>> list(with_squares({"F": np.arange(4.0), "switch": np.array([-1.0, 1.0]), "still": np.ones(3)}))
    ['F', 'switch', 'F squared']
    """
    found = {name: u for name, u in inputs.items() if np.ptp(u) > 0}
    squares = {f"{name} squared": (u - u.mean()) ** 2 for name, u in found.items()}
    return found | {name: v for name, v in squares.items() if np.ptp(v) > 1e-9 * v.max()}


def input_tests(residuals: FloatArray, inputs: Mapping[str, FloatArray], lags: int) -> ResidualTests:
    """Tests of residuals with the input that they follow most, whose p-value is corrected for the search over all inputs.

    Inputs that do not vary cannot be followed, and are left out.

    Examples
    --------
    >>> e, u, w = np.random.default_rng(1).standard_normal((3, 500))
    >>> input_tests(e + 0.5 * w, {"u": u, "w": w}, 5).cross_input
    'w'
    """
    found = {name: residual_tests(residuals, u, lags) for name, u in inputs.items() if np.ptp(u) > 0}
    if not found:
        return residual_tests(residuals, None, lags)
    p = {name: float(tests.cross_p or 0.0) for name, tests in found.items()}
    first = min(p, key=lambda name: (p[name], -abs(found[name].cross_correlation or 0.0)))
    return replace(found[first], cross_p=_of_several(p[first], len(p)), cross_input=first)


class Together(NamedTuple):
    """The two outputs whose residuals of a sample are most correlated: names, correlation, and p-value for the search."""

    first: str
    second: str
    correlation: float
    p: float


def between_outputs(residuals: Mapping[str, FloatArray]) -> Together | None:
    """The strongest correlation between residuals (T,) of different outputs; None if there are no two with enough in common.

    Examples
    --------
    >>> a, b, c = np.random.default_rng(1).standard_normal((3, 500))
    >>> between_outputs({"a": a, "b": b, "both": a + b + c}).p < 1e-6
    True
    """
    found = []
    for (one, x), (other, y) in combinations(residuals.items(), 2):
        both = np.isfinite(x) & np.isfinite(y)
        if both.sum() >= FEWEST_PAIRS and np.ptp(x[both]) > 0 and np.ptp(y[both]) > 0:
            r, pairs = correlation(np.where(both, x, np.nan), np.where(both, y, np.nan), [0])
            p = float(2 * scipy.stats.norm.sf(np.abs(scores(r, pairs, int(pairs[0]))[0])))
            found.append(Together(one, other, float(r[0]), p))
    if not found:
        return None
    first = min(found, key=lambda pair: (pair.p, -abs(pair.correlation)))
    return first._replace(p=_of_several(first.p, len(found)))


def _of_several(p: float, count: int) -> float:
    """P-value of the smallest of several tests (Sidak), 1 - (1 - p)**count without cancellation."""
    return float(-np.expm1(count * np.log1p(-min(p, 1 - np.finfo(float).eps))))


def correlation(a: FloatArray, b: FloatArray, lags: Iterable[int]) -> tuple[FloatArray, FloatArray]:
    """Correlation of a[t] and b[t - lag], and the number of pairs it is the mean of; NaN is left out.

    Examples
    --------
    >>> r, pairs = correlation(
    ...     np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0]), [0, 1]
    ... )
    >>> r, pairs
    (array([-1.,  1.]), array([4., 3.]))
    """
    lags = list(lags)
    (x, x_known), (y, y_known) = (_standardised(v) for v in (a, b))

    def summed(x: FloatArray, y: FloatArray) -> FloatArray:
        return np.array([x[max(k, 0) : len(x) + min(k, 0)] @ y[max(-k, 0) : len(y) - max(k, 0)] for k in lags])

    if x_known.all() and y_known.all():
        n = len(x) - np.abs(np.array(lags, dtype=float))
    else:
        n = summed(x_known.astype(float), y_known.astype(float))
    return summed(x, y) / np.maximum(n, 1), n


def _standardised(v: FloatArray) -> tuple[FloatArray, np.ndarray]:
    """Values of mean zero and variance one, zero where missing; and where there are values."""
    known = ~np.isnan(v)
    there = v[known]
    away = there - there.mean()
    filled, std = np.zeros(v.shape), np.sqrt(np.mean(away**2))
    if not 0 < std < np.inf:  # of a constant nothing is known
        return filled, np.zeros_like(known)
    filled[known] = away / std
    return filled, known


def long_run(r: FloatArray) -> float:
    """Long-run variance of a series over its variance, from its correlations at the lags 1, 2, ... (Bartlett's window).

    Examples
    --------
    >>> long_run(np.zeros(3)), long_run(np.array([0.5]))
    (1.0, 1.5)
    """
    window = 1 - np.arange(1, len(r) + 1) / (len(r) + 1)
    return float(1 + 2 * window @ r)


def scores(r: FloatArray, pairs: FloatArray, count: int) -> FloatArray:
    """Correlations as standard normal scores: their variance is about count / ((count + 2) pairs)."""
    return r * np.sqrt(pairs * (count + 2) / count)


def _samples(part: Part) -> str:
    """Samples of a part in words."""
    return f"samples {part.start} to {part.stop - 1}"


def _p_text(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def as_residuals(residuals: ArrayLike, u: ArrayLike | None, lags: int) -> tuple[FloatArray, FloatArray | None]:
    """Check residuals, input and lags."""
    e = real(residuals, "residuals", copy=False)
    if e.ndim != 1:
        raise ValueError(f"residuals must have shape (T,), but has {e.shape}; pass one output of one draw at a time")
    if not whole(lags):
        raise ValueError(f"lags must be a whole number, 1 or more, but is {shown(lags)}")
    if np.isinf(e).any():
        raise ValueError("residuals must be finite or NaN; leave out the samples where the model diverged")
    if (count := int(np.isfinite(e).sum())) < lags + 2:
        fewer = f"; give lags={count // 4}" if count >= 4 else ""
        raise ValueError(f"residuals has {count} finite values, but lags={lags} needs at least {lags + 2}{fewer}")
    with np.errstate(over="ignore"):
        flat = not 0 < np.nanvar(e) < np.inf
    if flat:
        raise ValueError(
            "residuals are all equal, or too small or large to have a variance; pass the differences between measurement and "
            "prediction"
        )
    if u is None:
        return e, None
    u = real(u, "u", copy=False)
    u = u[:, 0] if u.ndim == 2 and u.shape[1] == 1 else u
    if u.shape != e.shape:
        raise ValueError(f"u must have shape {e.shape} like residuals, but has {u.shape}")
    if not np.isfinite(u).all() or not 0 < np.var(u) < np.inf:
        raise ValueError("u must be finite and vary; pass u=None for an unforced system")
    return e, u
