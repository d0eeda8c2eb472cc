"""The initial state from which a free run meets the first measurements best."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.run_substeps import EqualSteps, RunSteps
from pm_sysid.steps.grid import FilterInputs, StepGrid
from pm_sysid.steps.integrate import method_inputs, run_batch
from pm_sysid.symbolic.system import System

#: Samples that are looked at: the trace of the initial state in a stable system is gone after a few periods.
FIRST = 500
#: Samples the search begins with; it doubles them, since over many the error of a nonlinear system has several minima.
FEWEST = 10
#: Step of difference quotients, as a share of a state's standard deviation.
STEP = 1e-5
#: Standard error of a state, as a share of how much it moves in the record, above which its usual spread is consulted.
WEAK = 0.3
#: Probability of residuals that are larger, or smaller, by chance: below it the noise is taken from them.
CHANCE = 0.005

#: Deviations on the wrong side of a limit from which on the slope of the root of a log-probability is one; digits cancel there.
FAR_BEYOND = -1e4


class Spread(NamedTuple):
    """Where states are before anything is measured: means and standard deviations (n_x,); a deviation of zero says nothing."""

    mean: np.ndarray
    std: np.ndarray


class Errors(NamedTuple):
    """Why measurements are not where a free run is, as far as it is known.

    ``deviations`` (n_y,) of white noise. ``covariance`` (T n_y, T n_y) of what else moves the first T samples, such as coloured
    noise, sample by sample; only these samples are looked at then. ``limits`` (lower and upper, each (n_y,)): a measurement
    at one says only that the output is there or beyond, where the errors are white and their deviations known.
    """

    deviations: np.ndarray | None = None
    covariance: np.ndarray | None = None
    limits: tuple[np.ndarray, np.ndarray] | None = None

    def read(self, record: TimeSeries) -> np.ndarray:
        """Measurements (T, n_y), those beyond a limit at it."""
        y = record.output_matrix
        return y if self.limits is None else np.clip(y, *self.limits)

    def sides(self, y: np.ndarray) -> np.ndarray:
        """Of measurements (T, n_y): 1 at the upper limit, -1 at the lower one, 0 between them."""
        if self.limits is None:
            return np.zeros(y.shape)
        with np.errstate(invalid="ignore"):
            return (y >= self.limits[1]).astype(float) - (y <= self.limits[0])

    def first(self, record: TimeSeries) -> TimeSeries:
        """The samples that are looked at."""
        n_y = record.output_matrix.shape[1]
        return record[: FIRST if self.covariance is None else min(FIRST, len(self.covariance) // n_y)]


#: Nothing is known of the noise.
UNKNOWN = Errors()


class Drawn(NamedTuple):
    """Initial states (N, n_x), whether the usual spread had a say in them, and of which states nothing is known."""

    starts: np.ndarray
    spread: bool = False
    open: tuple[str, ...] = ()


class Whitening(NamedTuple):
    """Root of the covariance of the measurements: standard deviations (m,), or a lower triangular factor (m, m).

    ``sides`` (m,) are 1 where an error has to be positive, as that of a run that is above a sensor's upper limit is, and -1
    where it has to be negative. The square of such an error is minus two log-probabilities of a measurement at the limit.
    """

    root: np.ndarray
    sides: np.ndarray | None = None

    def __call__(self, errors: np.ndarray) -> np.ndarray:
        """Errors (..., k) of the first k measurements as independent ones of size one."""
        found = self._alone(errors)
        if self.sides is None:
            return found
        sides = self.sides[: errors.shape[-1]]
        return np.where(sides == 0, found, -sides * np.sqrt(-2 * scipy.special.log_ndtr(sides * found)))

    def slope(self, slopes: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Slopes (..., k) of such errors, from those of errors (k,)."""
        found = self._alone(slopes)
        if self.sides is None:
            return found
        sides = self.sides[: errors.shape[-1]]
        inside = sides * self._alone(errors)
        log_tail = scipy.special.log_ndtr(inside)
        size = np.sqrt(-2 * log_tail)
        with np.errstate(divide="ignore", invalid="ignore"):
            by = np.where(size > 0, np.exp(-0.5 * inside**2 - 0.5 * np.log(2 * np.pi) - log_tail) / size, 0.0)
        by = np.where(inside < FAR_BEYOND, 1.0, by)
        return np.asarray(np.where(sides == 0, 1.0, by) * found)

    def _alone(self, errors: np.ndarray) -> np.ndarray:
        k = errors.shape[-1]
        if self.root.ndim == 1:
            return np.asarray(errors / self.root[:k])
        flat = scipy.linalg.solve_triangular(self.root[:k, :k], errors.reshape(-1, k).T, lower=True, check_finite=False)
        return np.asarray(flat).T.reshape(errors.shape)


def by_output_size(y: np.ndarray) -> np.ndarray:
    """Standard deviation (n_y,) of each output over what is measured of it; of one that is constant, its size, or one."""
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of outputs that are not measured
        sizes, size = np.nanstd(y, axis=0), np.sqrt(np.nanmean(y**2, axis=0))
    return np.where(sizes > 0, sizes, np.where(size > 0, size, 1.0))


def whitening(
    y: np.ndarray, deviations: np.ndarray, covariance: np.ndarray | None, sides: np.ndarray | None = None
) -> Whitening:
    """Root of the covariance of what is measured in ``y`` (T, n_y); ``sides`` (T, n_y) are those of white errors at a limit."""
    seen = np.isfinite(y)
    white = np.broadcast_to(deviations, y.shape)[seen]
    if covariance is None:
        return Whitening(white, sides[seen] if sides is not None and sides.any() else None)
    at = np.flatnonzero(seen.ravel())
    # Deviations of zero would leave a factor that cannot be had.
    floor = 1e-6 * np.sqrt(np.diag(covariance)[at].max(initial=0.0)) or np.finfo(float).tiny
    whole = covariance[np.ix_(at, at)] + np.diag(np.maximum(white, floor) ** 2)
    return Whitening(np.linalg.cholesky(whole))


def fitted_start(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    steps: RunSteps | EqualSteps,
    free: np.ndarray | None = None,
    errors: Errors = UNKNOWN,
    spread: Spread | None = None,
) -> np.ndarray:
    """Initial state by least squares over the first samples.

    Each output is weighted by its standard deviation over the record; by that of the errors, if they have a covariance or a
    spread has its say beside them.

    Parameters
    ----------
    system, record
        The record has outputs.
    theta : ndarray, shape (P,)
        Parameters.
    start : ndarray, shape (n_x,)
        Where the search begins.
    steps : RunSteps or EqualSteps
        How to integrate.
    free : ndarray of bool, shape (n_x,), optional
        States that may move; by default all.
    errors : Errors, optional
    spread : Spread, optional
        Where states are expected.

    Returns
    -------
    ndarray, shape (n_x,)
        The state found, or ``start`` if nothing is measured or the run is not finite there.
    """
    first, n_y = errors.first(record), len(system.outputs)
    y = errors.read(first)
    seen, moving = np.isfinite(y), np.flatnonzero(np.ones(len(start), bool) if free is None else free)
    if (not seen.any() and spread is None) or not moving.size:
        return start
    inputs = _inputs(first, steps)

    def runs(starts: np.ndarray) -> np.ndarray:
        return run_batch(system, np.tile(theta, (len(starts), 1)), starts, inputs, method=steps.method)

    guess = runs(start[None])[0]
    if not np.isfinite(guess).all():
        return start
    # States that stay where they are have the scale of what they are, or one.
    scale = np.maximum(guess[:, n_y:].std(axis=0), 1e-6 * np.abs(start))
    scale = np.where(scale > 0, scale, 1.0)[moving]
    sides = errors.sides(y)
    known = errors.deviations is not None and (spread is not None or errors.covariance is not None or sides.any())
    white = whitening(y, errors.deviations if known else by_output_size(y), errors.covariance, sides)  # type: ignore[arg-type]
    usual = np.flatnonzero(spread.std[moving] > 0) if spread is not None else np.empty(0, dtype=int)

    def place(z: np.ndarray) -> np.ndarray:
        whole = np.tile(start, (*z.shape[:-1], 1))
        whole[..., moving] = start[moving] + z * scale
        return whole

    def residuals(z: np.ndarray, until: int) -> np.ndarray:
        error = white((runs(place(z[None]))[0, :until, :n_y] - y[:until])[seen[:until]])
        error = np.nan_to_num(error, nan=1e6, posinf=1e6, neginf=-1e6)
        if spread is None:
            return np.asarray(error)
        at = moving[usual]
        return np.concatenate([error, (place(z)[at] - spread.mean[at]) / spread.std[at]])

    def slopes(z: np.ndarray, until: int) -> np.ndarray:
        moved = runs(place(np.concatenate([z + STEP * np.eye(len(z)), z - STEP * np.eye(len(z))])))[..., :n_y]
        difference = (moved[: len(z)] - moved[len(z) :])[:, :until][:, seen[:until]] / (2 * STEP)
        error = (0.5 * (moved[0] + moved[len(z)])[:until] - y[:until])[seen[:until]]
        slope = np.nan_to_num(white.slope(difference, error).T, nan=0.0, posinf=0.0, neginf=0.0)
        if spread is None:
            return np.asarray(slope)
        return np.concatenate([slope, np.diag(scale)[usual] / spread.std[moving[usual], None]])

    z = np.zeros(moving.size)
    until = max(FEWEST, 4 * len(start))
    while True:
        until = min(until, len(first))
        if seen[:until].sum() + usual.size >= moving.size:
            z = scipy.optimize.least_squares(residuals, z, slopes, max_nfev=50, args=(until,)).x
        if until == len(first):
            break
        until *= 2
    better = np.sum(residuals(z, until) ** 2) < np.sum(residuals(np.zeros_like(z), until) ** 2)
    return place(z) if better else start


def _inputs(first: TimeSeries, steps: RunSteps | EqualSteps) -> FilterInputs:
    """Inputs of the beginning of a record where the steps need them."""
    substeps = steps.substeps.first(len(first) - 1) if isinstance(steps.substeps, StepGrid) else steps.substeps
    return method_inputs(first, substeps, steps.method)


def drawn_starts(
    system: System,
    record: TimeSeries,
    theta: np.ndarray,
    start: np.ndarray,
    steps: RunSteps | EqualSteps,
    free: np.ndarray,
    rng: np.random.Generator,
    errors: Errors = UNKNOWN,
    usual: Callable[[], Spread] | None = None,
) -> Drawn:
    """Initial states of runs with parameters of their own, drawn from what the first samples say of each.

    Each is the state of least squares for its parameters, by one step of Gauss and Newton from ``start``, and an error with the
    covariance of least squares. The noise is the one that is known, unless what the run of the mean parameters leaves of the
    measurements speaks against it or none is known: then its size is that of what is left, and errors are those of a t
    distribution. Where the samples say little of a state, its usual spread counts as a measurement too.

    Parameters
    ----------
    theta : ndarray, shape (N, P)
        Parameters.
    start : ndarray, shape (N, n_x)
        Their states so far; the entries that are free are those of :func:`fitted_start` for the mean parameters.
    free : ndarray of bool, shape (n_x,)
        States that are drawn.
    rng : numpy.random.Generator
    usual : function, optional
        Returns the spread of states that nothing was measured of; called where the samples say little.
    system, record, steps, errors
        As for :func:`fitted_start`.

    Returns
    -------
    Drawn
        ``start``, where runs are not finite.
    """
    first, n_y, moving = errors.first(record), len(system.outputs), np.flatnonzero(free)
    y = errors.read(first)
    seen, n, m = np.isfinite(y), len(moving), int(np.isfinite(y).sum())
    if not n:
        return Drawn(start)
    names = tuple(system.states[i] for i in moving)
    inputs, mean = _inputs(first, steps), theta.mean(axis=0)

    def runs(parameters: np.ndarray, states: np.ndarray) -> np.ndarray:
        return run_batch(system, parameters, np.ascontiguousarray(states), inputs, method=steps.method)

    def left(parameters: np.ndarray, states: np.ndarray) -> np.ndarray:
        """What runs leave of the measurements (N, m)."""
        error: np.ndarray = (y - runs(parameters, states)[..., :n_y])[:, seen]
        return error

    def linear(middle: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """What the run of the mean parameters leaves (m,), its slopes (m, n), and how much states move in it (n,)."""
        size = np.maximum(np.abs(middle[moving]), np.std(y[seen]) if m else 0.0)
        shift = np.zeros((n, len(middle)))
        shift[np.arange(n), moving] = STEP * np.where(size > 0, size, 1.0)
        around = np.concatenate([middle[None], middle + shift, middle - shift])
        found = runs(np.tile(mean, (len(around), 1)), around)
        if not np.isfinite(found).all():
            return None
        out = found[..., :n_y][:, seen]
        slopes = (out[1 : n + 1] - out[n + 1 :]).T / (2 * shift[np.arange(n), moving])
        return y[seen] - out[0], slopes, found[0, :, n_y:].std(axis=0)[moving]

    here = linear(start.mean(axis=0))
    if here is None:
        return Drawn(start, open=names)
    error, slopes, moves = here
    white, freedom = _judged(y, error, errors, n)
    spread = None
    if usual is not None and _weak(white.slope(slopes.T, error).T, moves):
        spread = usual()
        spread = _widened(spread, start.mean(axis=0), white(error), white.slope(slopes.T, error).T, moving)
        given = errors._replace(deviations=_deviations(y, white, errors))
        found = fitted_start(system, record, mean, start.mean(axis=0), steps, free, given, spread)
        again = linear(found)
        if again is None:
            return Drawn(start, open=names)
        start = np.where(free, found, start)
        error, slopes, _ = again
    at = np.flatnonzero(spread.std[moving] > 0) if spread is not None else np.empty(0, dtype=int)

    def whole(states: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """All that counts in least squares (N, m + spread), each of size one."""
        parts = white(measured)
        if spread is None:
            return parts
        i = moving[at]
        return np.concatenate([parts, (spread.mean[i] - states[:, i]) / spread.std[i]], axis=1)

    scale = np.where(moves > 0, moves, 1.0)
    table = white.slope(slopes.T, error).T * scale
    if spread is not None:
        table = np.concatenate([table, np.diag(scale)[at] / spread.std[moving[at], None]])
    u, s, vt = np.linalg.svd(table, full_matrices=False)
    told = s > 1e-8 * s.max(initial=0.0)  # directions of which something is known
    unknown = np.sum(vt[told] ** 2, axis=0) < 1 - 1e-6
    before = whole(start, left(theta, start))
    finite = np.isfinite(before).all(axis=1)
    along = np.where(finite[:, None], before, 0.0) @ (u[:, told] / s[told])
    moved = start.copy()
    moved[:, moving] += along @ vt[told] * scale
    after = np.sum(whole(moved, left(theta, moved)) ** 2, axis=1)
    with np.errstate(invalid="ignore"):
        better = finite & (after <= np.sum(before**2, axis=1))
    result = np.where(better[:, None], moved, start)
    tails = np.ones(len(theta)) if np.isinf(freedom) else np.sqrt(freedom / rng.chisquare(freedom, len(theta)))
    draws = rng.standard_normal((len(theta), int(told.sum()))) * tails[:, None]
    result[:, moving] += draws / s[told] @ vt[told] * scale
    return Drawn(result, spread is not None, tuple(name for name, yes in zip(names, unknown, strict=True) if yes))


def _judged(y: np.ndarray, error: np.ndarray, errors: Errors, n: int) -> tuple[Whitening, float]:
    """Sizes of the measurements' errors, and the degrees of freedom that these are known with; infinite where they are given.

    ``error`` (m,) is what the best run with ``n`` free states leaves of the measurements in ``y`` (T, n_y).
    """
    seen, n_y, sides = np.isfinite(y), y.shape[1], -errors.sides(y)  # an error is measurement less run
    full = seen & (sides == 0)
    columns, counts, freedom = np.nonzero(seen)[1], full.sum(axis=0), float(full.sum() - n)
    squares = np.bincount(columns, weights=np.where(full[seen], error**2, 0.0), minlength=n_y)
    own = np.maximum(counts - n / n_y, 1.0)
    rest = np.sqrt(squares / own)
    if errors.deviations is None:
        if freedom >= 1:
            return whitening(y, np.where(rest > 0, rest, by_output_size(y)), errors.covariance), freedom
        return whitening(y, by_output_size(y), errors.covariance), np.inf  # too wide rather than too narrow
    sizes = np.sqrt(np.mean(np.where(seen, y, 0.0) ** 2, axis=0))
    deviations = np.maximum(errors.deviations, np.maximum(1e-9 * sizes, np.finfo(float).tiny))
    if errors.covariance is not None:
        white = whitening(y, deviations, errors.covariance)
        total = float(np.sum(white(error) ** 2))
        if freedom >= 1 and scipy.stats.chi2.sf(total, freedom) < CHANCE:
            return Whitening(white.root * np.sqrt(total / freedom)), freedom
        return white, np.inf
    ratio = squares / deviations**2
    chance = np.minimum(scipy.stats.chi2.sf(ratio, own), scipy.stats.chi2.cdf(ratio, own))
    wrong = (chance < CHANCE) & (counts - n / n_y >= 1) & (rest > 0)
    return whitening(y, np.where(wrong, rest, deviations), None, sides), float(own[wrong].sum()) if wrong.any() else np.inf


def _deviations(y: np.ndarray, white: Whitening, errors: Errors) -> np.ndarray | None:
    """Deviations (n_y,) of white noise that were found, for the search."""
    if white.root.ndim == 2:
        return errors.deviations
    columns = np.nonzero(np.isfinite(y))[1]
    found = np.ones(y.shape[1])
    found[columns] = white.root
    return found


def _weak(slopes: np.ndarray, moves: np.ndarray) -> bool:
    """Whether measurements with ``slopes`` (m, n), in units of their errors, say little of a state that ``moves`` so much."""
    if len(slopes) < len(moves):
        return True
    s, vt = np.linalg.svd(slopes * np.where(moves > 0, moves, 1.0), full_matrices=False)[1:]
    if s[-1] <= 1e-8 * s[0]:
        return True
    return bool((np.sum((vt / s[:, None]) ** 2, axis=0) > WEAK**2).any() or (moves == 0).any())


def _widened(spread: Spread, middle: np.ndarray, error: np.ndarray, slopes: np.ndarray, moving: np.ndarray) -> Spread:
    """A spread that is made wider where the start that the samples tell is outside it.

    ``error`` (m,) and ``slopes`` (m, n) are those of a run from ``middle``, in units of the measurements' errors.
    """
    at = np.flatnonzero(spread.std[moving] > 0)
    i = moving[at]
    u, s, vt = np.linalg.svd(slopes[:, at] * spread.std[i], full_matrices=False)
    told = s > 1e-8 * max(s.max(initial=0.0), 1.0)
    if not told.any():
        return spread
    away = vt[told] @ ((middle - spread.mean)[i] / spread.std[i]) + (error @ u[:, told]) / s[told]
    ratio = float(np.mean(away**2 / (1 + s[told] ** -2)))
    return spread._replace(std=spread.std * np.sqrt(max(1.0, ratio)))
