"""Measures of the error of predictions of a measured record; missing samples are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from pm_sysid.records.validation import real

__all__ = ["fit_percent", "nmse", "nrmse", "rmse"]

type FloatArray = NDArray[np.float64]

#: Chance of a difference of errors that is none, and independent samples that tell it at least.
CHANCE, ENOUGH = 0.025, 25.0
#: Share of an error by which others are as good as equal, whatever is seen of the difference.
NOTHING = 1e-3


def rmse(measured: ArrayLike | xr.DataArray, predicted: ArrayLike | xr.DataArray) -> Any:
    """Root mean square of the prediction error, in units of the output.

    Parameters
    ----------
    measured : array_like or DataArray, shape (T,) or (T, n)
        Measured outputs; NaN marks a missing value, which is left out of every sum.
    predicted : array_like or DataArray, shape (..., T) or (..., T, n)
        Predictions, with any number of leading dimensions such as chains and draws; NaN gives NaN. In a DataArray the time
        dimension is the one called ``time`` or ending in ``_time``, at any position. Outputs of an array `measured` lie
        along the one called ``output`` or ending in ``_output``; where there is none, along the last one besides the time.

    Returns
    -------
    float, ndarray or DataArray, shape (...) or (..., n)
        One number per draw and output; a DataArray if `predicted` is one. NaN for an output that was never measured.

    Raises
    ------
    ValueError
        If lengths, outputs or times of `measured` and `predicted` differ, or a DataArray has no time dimension.

    Examples
    --------
    >>> float(rmse([1.0, 2.0, float("nan"), 4.0], [1.0, 2.0, 3.0, 1.0])).__round__(3)
    1.732
    >>> rmse([1.0, 3.0], [[1.0, 3.0], [2.0, 4.0]])  # two draws
    array([0., 1.])
    """
    return _over_time(_rmse, measured, predicted)


def nrmse(measured: ArrayLike | xr.DataArray, predicted: ArrayLike | xr.DataArray) -> Any:
    """Root mean square error in percent of the standard deviation of `measured` (divisor T).

    The prediction of the mean of the record has the value 100. Arguments, shapes and errors are those of `rmse`. For a
    constant record the result is infinity, or NaN where the prediction has no error.

    Examples
    --------
    >>> nrmse([1.0, 3.0], [[1.0, 3.0], [2.0, 2.0]])
    array([  0., 100.])
    """
    return _over_time(_nrmse, measured, predicted)


def nmse(measured: ArrayLike | xr.DataArray, predicted: ArrayLike | xr.DataArray) -> Any:
    """Normalised mean squared error, 100 / (T var(y)) sum (y - yhat)^2: the square of `nrmse`, divided by 100.

    The prediction of the mean of the record has the value 100. Arguments, shapes and errors are those of `nrmse`. Source:
    Nayek et al. (2023), the distance of their approximate Bayesian computation.

    Examples
    --------
    >>> nmse([1.0, 3.0], [[1.0, 3.0], [2.0, 2.5]])
    array([ 0. , 62.5])
    """
    return nrmse(measured, predicted) ** 2 / 100


def fit_percent(measured: ArrayLike | xr.DataArray, predicted: ArrayLike | xr.DataArray) -> Any:
    """Fit of MATLAB's ``compare``: 100 (1 - ||y - yhat|| / ||y - mean(y)||), which is 100 minus `nrmse`.

    The value is 100 for a perfect prediction, 0 for the mean of the record, and negative for a worse prediction. Arguments,
    shapes and errors are those of `nrmse`.

    Examples
    --------
    >>> fit_percent([1.0, 3.0], [[1.0, 3.0], [2.0, 2.0]])
    array([100.,   0.])
    """
    return 100 - nrmse(measured, predicted)


def relative_squares(measured: FloatArray, predicted: FloatArray) -> FloatArray:
    """Squared errors (T,) of outputs (T, n_y), each over the variance of its output; NaN where nothing is measured."""
    seen = ~np.isnan(measured)
    variance = np.array([np.var(y[there]) if there.any() else 0.0 for y, there in zip(measured.T, seen.T, strict=True)])
    with np.errstate(over="ignore"):
        squares = (measured - predicted) ** 2 / np.where(variance > 0, variance, 1.0)
    return np.where(seen.any(axis=1), np.sum(squares, axis=1, where=seen), np.nan)


class Difference(NamedTuple):
    """Mean difference of two series, its standard error, and how many independent samples it is worth."""

    mean: float
    error: float
    effective: float

    @property
    def known(self) -> bool:
        """Whether there are enough samples to tell the error."""
        return self.effective >= ENOUGH

    @property
    def by_chance(self) -> bool:
        """Whether chance alone makes the second series as much larger."""
        return not self.mean > float(scipy.stats.t.isf(CHANCE, self.effective - 1)) * self.error


def difference(first: FloatArray, second: FloatArray) -> Difference:
    """Mean difference of two series (T,), the second less the first.

    Errors of free runs are alike from one sample to the next. Their autocovariances count up to the lag from which on those of
    two neighbouring lags sum up to less than zero. Of a series that is hardly longer than its correlation they are too small,
    and so is the error: few ``effective`` samples say so.

    Notes
    -----
    The test of Diebold and Mariano (1995, Journal of Business and Economic Statistics 13, 253-263), with the window of Geyer
    (1992, Statistical Science 7, 473-483) and Student's t.

    Examples
    --------
    >>> found = difference(np.zeros(400), np.tile([1.0, 3.0], 200))
    >>> found.mean, found.error < 0.2, found.by_chance
    (2.0, True, False)
    """
    d = second - first
    d = d[np.isfinite(d)]
    count = len(d)
    if count < 2:
        return Difference(np.nan, np.nan, 0.0)
    away = d - d.mean()
    power = np.abs(np.fft.rfft(away, 2 * count)) ** 2
    covariance = np.fft.irfft(power)[:count] / count
    pairs = covariance[: count - count % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    sums = pairs[: negative[0]] if negative.size else pairs
    long_run = max(2 * sums.sum() - covariance[0], covariance[0])
    effective = count * covariance[0] / long_run if long_run > 0 else 0.0  # a constant difference is one of rounding, or of few
    return Difference(float(d.mean()), float(np.sqrt(long_run / count)), float(effective))


def alike(squares: Mapping[str, FloatArray], best: str) -> list[str] | None:
    """Names of the series (T,) that are larger than the ``best`` by no more than chance; None if they are too short to say."""
    gaps = {name: difference(squares[best], other) for name, other in squares.items() if name != best}
    if not all(gap.known for gap in gaps.values()):
        return None
    least = NOTHING * np.nanmean(squares[best])
    return [name for name, gap in gaps.items() if gap.by_chance or gap.mean < least]


def time_dimension(array: xr.DataArray, name: str) -> str:
    """Find the dimension called ``time``, else the only one ending in ``_time``; `name` is for the error."""
    dims = [str(dim) for dim in array.dims]
    found = [d for d in dims if d == "time"] or [d for d in dims if d.endswith("_time")]
    if len(found) != 1:
        raise ValueError(
            f'{name} must have one dimension called "time" or ending in "_time", but has '
            f"{', '.join(dims) or 'none'}; rename its time dimension"
        )
    return found[0]


def same_times(first: ArrayLike, second: ArrayLike) -> bool:
    """Whether two arrays of numbers are the same times, but for a thousandth of the shortest step and for rounding.

    Rounding is that of the coarser of their types: files may hold times in single precision.
    """
    kinds = [np.asarray(times).dtype for times in (first, second)]
    rounding = max(float(np.finfo(kind if kind.kind == "f" else float).eps) for kind in kinds)
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if a.shape != b.shape:
        return False
    step = float(np.min(np.abs(np.diff(a)), initial=np.inf))
    most = 1e-3 * step if np.isfinite(step) else 0.0
    return bool(np.all(np.abs(a - b) <= most + 8 * rounding * np.abs(a)))


def _rmse(y: FloatArray, yhat: FloatArray) -> FloatArray:
    seen = ~np.isnan(y)
    with np.errstate(invalid="ignore", over="ignore"):  # without measurements 0 / 0; a diverged run overflows
        square = np.sum(np.square(y - yhat), axis=-1, where=seen) / seen.sum(axis=-1)
        return np.asarray(np.sqrt(square))


def _nrmse(y: FloatArray, yhat: FloatArray) -> FloatArray:
    seen = ~np.isnan(y)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.sum(y, axis=-1, where=seen, keepdims=True) / seen.sum(axis=-1, keepdims=True)
        constant = np.max(y, axis=-1, where=seen, initial=-np.inf) == np.min(y, axis=-1, where=seen, initial=np.inf)
        spread = np.where(constant, 0.0, _rmse(y, mean))  # rounding of the mean is no spread
        return np.asarray(100 * _rmse(y, yhat) / spread)


def _over_time(measure: Callable[[FloatArray, FloatArray], FloatArray], measured: Any, predicted: Any) -> Any:
    """Apply a measure that takes arrays (..., T) to arrays or DataArrays."""
    if isinstance(predicted, xr.DataArray):
        return _labelled(measure, measured, predicted)
    if isinstance(measured, xr.DataArray):
        measured = measured.transpose(time_dimension(measured, "measured"), ...)
    y, yhat = _record(measured), real(predicted, "predicted", copy=False)
    if yhat.shape[-y.ndim :] != y.shape:
        expected = ", ".join(["...", *map(str, y.shape)])
        raise ValueError(f"predicted must have shape ({expected}) to match measured, but has {yhat.shape}")
    return measure(y.T, np.moveaxis(yhat, -y.ndim, -1))[()]


def _labelled(measure: Callable[[FloatArray, FloatArray], FloatArray], measured: Any, predicted: xr.DataArray) -> xr.DataArray:
    time = time_dimension(predicted, "predicted")
    if isinstance(measured, xr.DataArray):
        y = measured.rename({time_dimension(measured, "measured"): time})
    else:
        values = _record(measured)
        y = xr.DataArray(values, dims=(time, _output_dimension(predicted, time)) if values.ndim == 2 else (time,))
    if missing := set(y.dims) - set(predicted.dims):
        raise ValueError(f"predicted must have the dimension {missing.pop()!r} of measured, but has {predicted.dims}")
    for dim in y.dims:
        if y.sizes[dim] != predicted.sizes[dim]:
            raise ValueError(
                f"predicted must have length {y.sizes[dim]} along {dim!r} to match measured, but has {predicted.sizes[dim]}"
            )
    if time in y.coords and time in predicted.coords and not same_times(y[time], predicted[time]):
        raise ValueError(f"predicted must be at the times of measured, but {time!r} differs; select the same window")
    core = [[time], [time]]
    y, predicted = y.drop_vars(time, errors="ignore"), predicted.drop_vars(time, errors="ignore")
    result: xr.DataArray = xr.apply_ufunc(measure, y.astype(float), predicted.astype(float), input_core_dims=core, join="exact")
    return result.transpose(*(dim for dim in predicted.dims if dim != time))


def _output_dimension(predicted: xr.DataArray, time: str) -> str:
    """Along which outputs lie."""
    dims = [str(dim) for dim in predicted.dims if dim != time]
    named = [d for d in dims if d == "output"] or [d for d in dims if d.endswith("_output")]
    found = named if named else [d for d in dims if d not in ("chain", "draw", "sample")][-1:]
    if len(found) != 1:
        raise ValueError(
            f'measured has several outputs, and predicted must have one dimension of them, called "output", but has '
            f"{', '.join(map(str, predicted.dims))}; rename it, or give measured as a DataArray"
        )
    return found[0]


def _record(measured: Any) -> FloatArray:
    y = real(measured, "measured", copy=False)
    if y.ndim not in (1, 2):
        raise ValueError(f"measured must have shape (T,) or (T, n), but has {y.shape}")
    return y
