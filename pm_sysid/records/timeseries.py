"""Measured input/output records, and what their input does between the samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pm_sysid.arguments import among, flag, shown, whole
from pm_sysid.notebook import html_line, html_table, sparkline
from pm_sysid.records.tables import Readers
from pm_sysid.records.units import checked_units
from pm_sysid.records.validation import FloatArray, Names, channels, pandas_module, read_only, real, refuse, times

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["InterSample", "TimeSeries"]

#: An interval is of samples at nearly one time where those before and after are so many times as long.
AT_ONCE = 100.0

InterSample = Literal["zoh", "foh", "bl"]
BETWEEN_SAMPLES = {"zoh": "held", "foh": "linear", "bl": "band-limited"}


class TimeSeries(Readers):
    """A sampled record of inputs and outputs, read-only: arrays are copied, `replace` makes a changed record.

    Parameters
    ----------
    t : array_like, shape (T,)
        Sample times in seconds; finite, strictly increasing, uniform or not.
    u : array_like, shape (T,) or (T, n_u), or mapping of name to shape (T,), optional
        Inputs, finite; None for an unforced system. The attribute keeps the shape; a mapping gives (T, n_u).
    y : array_like, shape (T,) or (T, n_y), or mapping of name to shape (T,), optional
        Outputs; NaN marks a missing value. None for an experiment that is only simulated. Shape as for `u`.
    intersample : {"bl", "foh", "zoh"}
        The input between samples, as in MATLAB's ``iddata``: band-limited (measured behind an anti-aliasing
        filter), linear, or held until the next sample (what a digital controller puts out).
    inputs, outputs : str or sequence of str, optional
        Channel names; by default a mapping's keys, else ``u`` or ``u1, u2, ...``, ``y`` or ``y1, y2, ...``.
    periodic : bool
        Whether the record repeats in steady state: the sample after the last would equal the first. A
        band-limited input is then interpolated exactly. Needs uniform times.
    units : mapping of str to str, optional
        Unit of each channel, such as ``{"F": "N", "z": "m"}``, for labels and reports; nothing is converted. Records of one
        fit, and new records for it, are refused where units are known and differ.

    Raises
    ------
    TypeError
        If an array does not hold real numbers.
    ValueError
        If lengths, times, values or names are unusable; the message says where and what to do.

    Notes
    -----
    Without `periodic`, ``"bl"`` is a spline. The cardinal spline of degree n tends to the sinc interpolation
    (Aldroubi, Unser and Eden, Signal Processing 28, 1992); its relative error at w rad/sample is about
    2 (w / (2 pi - w))**(n + 1). Uniform records use n = 7 (1e-7 at nine samples a period), derivatives 4 to 6
    being zero at both ends, as not-a-knot ends amplify noise 14 times in the first interval; the error is
    larger within some five samples of an end. Non-uniform records, and fewer than eight samples, use n = 3.

    Examples
    --------
    >>> record = TimeSeries(
    ...     [0.0, 0.1, 0.2], {"F": [1.0, 2.0, 2.0]}, [0.0, float("nan"), 0.3], outputs="z"
    ... )
    >>> record
    TimeSeries: 3 samples, 0.2 s, 10 Hz
      inputs:  F (band-limited between samples)
      outputs: z (1 missing)
    >>> len(record[:2]), record.u.shape
    (2, (3, 1))
    >>> record.replace(units={"F": "kN"}).units["F"]
    'kN'
    """

    t: FloatArray
    u: FloatArray | None
    y: FloatArray | None
    intersample: InterSample
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    periodic: bool
    units: Mapping[str, str]

    def __init__(
        self,
        t: ArrayLike,
        u: ArrayLike | Mapping[str, ArrayLike] | None = None,
        y: ArrayLike | Mapping[str, ArrayLike] | None = None,
        *,
        intersample: InterSample = "bl",
        inputs: Names = None,
        outputs: Names = None,
        periodic: bool = False,
        units: Mapping[str, str] | None = None,
    ) -> None:
        if not among(intersample, BETWEEN_SAMPLES):
            alike = (
                "; all inputs of a record move alike: for one that is held beside a smooth one, insert rows with NaN outputs "
                "between the samples, the smooth one interpolated there, and intersample='zoh'"
            )
            several = alike if isinstance(intersample, Mapping) else ""
            raise ValueError(f'intersample must be "zoh", "foh" or "bl", but is {intersample!r}{several}')
        t = times(t)
        u, inputs = channels("u", u, "inputs", inputs, len(t))
        y, outputs = channels("y", y, "outputs", outputs, len(t))
        if shared := set(inputs) & set(outputs):
            raise ValueError(f"inputs and outputs share the name {min(shared)!r}; rename one of them")
        if u is not None:
            refuse(~np.isfinite(u), u, "u", "finite", "interpolate across the gap, or cut the record there")
        if y is not None:
            refuse(np.isinf(y), y, "y", "finite or NaN", "mark missing values with NaN")
        fields = {"t": t, "u": u, "y": y, "inputs": inputs, "outputs": outputs}
        units = checked_units(units, inputs + outputs)
        vars(self).update(fields, intersample=intersample, periodic=flag(periodic, "periodic"), units=units)
        if self.periodic and not self.uniform:
            raise ValueError("periodic=True needs uniform times; resample, or use periodic=False")

    @cached_property
    def uniform(self) -> bool:
        """Whether every step is the mean step to one part in a million (or to the resolution of `t`)."""
        if len(self) < 2:
            return False
        tolerance = 1e-6 * self._mean_step + 2 * np.spacing(np.abs(self.t[[0, -1]]).max())
        return bool(np.all(np.abs(np.diff(self.t) - self._mean_step) <= tolerance))

    @property
    def ordinary_dt(self) -> FloatArray:
        """Sampling intervals in seconds without those of two samples at nearly one time.

        Such intervals are a hundred times shorter than those before and after, as where two sensors of one rate are read one
        after the other; they do not tell how fast the solution is.
        """
        dt = self.dt
        beside = np.minimum(np.append(dt[1:], np.inf), np.concatenate([[np.inf], dt[:-1]]))
        ordinary = dt[dt * AT_ONCE >= beside]
        return ordinary if ordinary.size else dt

    @cached_property
    def dt(self) -> FloatArray:
        """Sampling steps in seconds, shape (T - 1,); all the same number for a uniform record."""
        return read_only(np.full(len(self) - 1, self._mean_step) if self.uniform else np.diff(self.t))

    @property
    def fs(self) -> float | None:
        """Sampling rate in Hz; None if the times are not uniform."""
        return 1 / self._mean_step if self.uniform else None

    @property
    def _mean_step(self) -> float:
        return float(self.t[-1] - self.t[0]) / (len(self) - 1)

    @property
    def input_matrix(self) -> FloatArray:
        """Inputs, shape (T, n_u); n_u is 0 for an unforced system."""
        return np.empty((len(self), 0)) if self.u is None else self.u.reshape(len(self), -1)

    @property
    def output_matrix(self) -> FloatArray:
        """Outputs, shape (T, n_y); n_y is 0 without measurement."""
        return np.empty((len(self), 0)) if self.y is None else self.y.reshape(len(self), -1)

    @property
    def n_missing(self) -> tuple[int, ...]:
        """Number of missing (NaN) values of each output."""
        return tuple(np.isnan(self.output_matrix).sum(axis=0).tolist())

    @property
    def smoothness(self) -> int | None:
        """Order of the lowest time derivative of the input that may jump at a sample; None if none does."""
        return None if self._fourier or not self.inputs else self._degree

    def input_at(self, interval: ArrayLike, fraction: ArrayLike, derivative: int = 0) -> FloatArray:
        """Input, or a time derivative of it, inside sampling intervals.

        Parameters
        ----------
        interval : array_like of int
            Interval k runs from ``t[k]`` to ``t[k + 1]``. ``T - 1`` is the limit from the right at the last
            sample, whatever the fraction: the held value for ``"zoh"``, else the limit from the left; in a
            periodic band-limited record it is the interval up to the next period (and every distinct
            fraction takes an FFT).
        fraction : array_like of float
            Position in the interval, broadcast with `interval`: 0 is the limit from the right at ``t[k]``, 1
            the limit from the left at ``t[k + 1]``.
        derivative : int
            Order of the time derivative.

        Returns
        -------
        ndarray, shape (..., n_u)
            A row per broadcast element, in units of the input per second**derivative.

        Raises
        ------
        TypeError
            If `interval` or `derivative` is not of integer type.
        ValueError
            If an argument is out of range.

        Examples
        --------
        >>> record = TimeSeries([0.0, 0.5, 1.0], [1.0, 3.0, 2.0], intersample="foh")
        >>> record.input_at(
        ...     [0, 1], [1.0, 0.0], derivative=1
        ... ).ravel()  # both sides of the kink at 0.5 s
        array([ 4., -2.])
        """
        k, s = _integers(interval), real(fraction, "fraction", copy=False)
        try:
            k, s = np.broadcast_arrays(k, s)
        except ValueError:
            raise ValueError(f"fraction has the shape {s.shape}, which does not go with that of interval, {k.shape}") from None
        if np.any((k < 0) | (k >= len(self))):
            raise ValueError(f"interval must lie in 0..{len(self) - 1}, but spans {k.min()}..{k.max()}")
        if not np.all((s >= 0) & (s <= 1)):
            raise ValueError(f"fraction must lie in 0..1, but spans {s.min()}..{s.max()}")
        if not whole(derivative, 0):
            if isinstance(derivative, int | np.integer):
                raise ValueError(f"derivative must be 0 or more, but is {shown(derivative)}")
            raise TypeError(f"derivative must be an integer, 0 or more, but is {shown(derivative)}")
        order = int(derivative)
        if not self.inputs:
            return np.empty((*k.shape, 0))
        return self._evaluate_fourier(k, s, order) if self._fourier else self._evaluate_pieces(k, s, order)

    @property
    def _fourier(self) -> bool:
        return self.periodic and self.intersample == "bl"

    @property
    def _degree(self) -> int:
        if self.intersample == "zoh":
            return 0
        if self.intersample == "foh" or len(self) < 4:
            return 1
        return 7 if self.uniform and len(self) >= 8 else 3

    @cached_property
    def _pieces(self) -> FloatArray:
        """Coefficients of the powers of the fraction, shape (degree + 1, intervals, n_u)."""
        u, degree = self.input_matrix, self._degree
        if degree == 0 or len(u) == 1:
            return u[None]
        if degree == 1:
            return np.stack([u[:-1], np.diff(u, axis=0)])
        # Knots of order one apart, rather than seconds, keep the coefficients well scaled.
        x = np.arange(len(u), dtype=float) if self.uniform else (self.t - self.t[0]) / self._mean_step
        end = [(m, np.zeros(u.shape[1])) for m in (4, 5, 6)]
        spline = scipy.interpolate.make_interp_spline(x, u, k=degree, bc_type=(end, end) if degree == 7 else None)
        width = np.diff(x)[:, None]
        taylor = (spline(x[:-1], nu=m) * width**m / math.factorial(m) for m in range(1, degree + 1))
        return np.stack([u[:-1], *taylor])

    def _evaluate_pieces(self, k: NDArray[Any], s: FloatArray, order: int) -> FloatArray:
        pieces, last = self._pieces, self._pieces.shape[1] - 1
        value = np.zeros((*k.shape, len(self.inputs)))
        if order >= len(pieces):
            return value
        s = np.where(k > last, 1.0, s)[..., None]
        k = np.minimum(k, last)
        for m in reversed(range(order, len(pieces))):
            value = value * s + math.perm(m, order) * pieces[m][k]
        return value / self.dt[k][..., None] ** order if order else value

    def _evaluate_fourier(self, k: NDArray[Any], s: FloatArray, order: int) -> FloatArray:
        size, omega = len(self), 2 * np.pi * np.fft.rfftfreq(len(self))  # rad/sample
        spectrum = np.fft.rfft(self.input_matrix, axis=0)
        value = np.empty((*k.shape, len(self.inputs)))
        for fraction in np.unique(s):
            shift = 1j**order * omega**order * np.exp(1j * omega * fraction)
            if size % 2 == 0:  # of the Nyquist frequency the samples show the cosine only
                shift[-1] = shift[-1].real
            here = s == fraction
            value[here] = np.fft.irfft(spectrum * shift[:, None], n=size, axis=0)[k[here]]
        return value / self._mean_step**order

    def _fields(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in TimeSeries.__annotations__}

    def replace(self, **changes: Any) -> TimeSeries:
        """Copy the record with other ``t, u, y, intersample, inputs, outputs, periodic`` or ``units``.

        Channel names stay as long as an array of the same number of channels is replaced by another. Units stay with their
        names; a channel with a new name has the unit of the one whose place it takes.

        Raises
        ------
        TypeError
            If there is no such field.

        Examples
        --------
        >>> TimeSeries([0.0, 1.0], [1.0, 2.0]).replace(intersample="zoh").smoothness
        0
        """
        fields = self._fields()
        if unknown := sorted(changes.keys() - fields):
            raise TypeError(f"a TimeSeries has no field {unknown[0]!r}; it has {', '.join(fields)}")
        for data, names in (("u", "inputs"), ("y", "outputs")):
            new = changes.get(data, fields[data])
            if new is None or isinstance(new, Mapping) or real(new, data).shape[1:] != np.shape(fields[data])[1:]:
                fields[names] = None
        result = TimeSeries(**(fields | {"units": None} | changes))
        if "units" not in changes and self.units:
            kept: dict[str, str] = {}
            for old, new in ((self.inputs, result.inputs), (self.outputs, result.outputs)):
                renamed = zip(old, new, strict=True) if len(old) == len(new) else ()
                pairs = [*((n, n) for n in new if n in old), *((a, b) for a, b in renamed if a not in new and b not in old)]
                kept |= {b: self.units[a] for a, b in pairs if a in self.units}
            vars(result)["units"] = checked_units(kept, kept)
        return result

    def __getitem__(self, key: slice) -> TimeSeries:
        """Consecutive samples ``record[a:b]``; part of a periodic record is not periodic."""
        if not isinstance(key, slice):
            raise TypeError(f"a TimeSeries takes slices, but got {type(key).__name__}; use record[a:b]")
        start, stop, step = key.indices(len(self))
        if step != 1:
            raise ValueError(
                f"the slice step must be 1, but is {step}: skipping samples changes the input between the "
                "others; resample/decimate first (scipy.signal.decimate) and make a new TimeSeries"
            )
        if stop <= start:
            raise ValueError(f"the slice {start}:{stop} of {len(self)} samples is empty; widen it")
        arrays = {"t": self.t, "u": self.u, "y": self.y}
        part = {name: array[start:stop] for name, array in arrays.items() if array is not None}
        return self.replace(**part, periodic=self.periodic and stop - start == len(self))

    def to_dataframe(self) -> pd.DataFrame:
        """Make a table with the times in seconds as index ``time`` and one column per channel."""
        frame = pandas_module().DataFrame(self._columns(), index=pandas_module().Index(self.t, name="time"))
        frame.attrs.update(intersample=self.intersample, units=dict(self.units), **self._period())
        return frame

    def to_xarray(self) -> xr.Dataset:
        """Make a data set with one variable per channel over ``time`` in seconds."""
        import xarray as xr

        attrs = {name: {"units": unit} for name, unit in self.units.items()}
        variables = {name: ("time", values, attrs.get(name, {})) for name, values in self._columns().items()}
        times = {"time": ("time", self.t, {"units": "s"})}
        return xr.Dataset(variables, coords=times, attrs={"intersample": self.intersample, **self._period()})

    def _period(self) -> dict[str, int]:
        """Samples of a period: a table that holds a part of them is not periodic."""
        return {"periodic": len(self)} if self.periodic else {}

    def _columns(self) -> dict[str, FloatArray]:
        values = np.hstack([self.input_matrix, self.output_matrix]).T
        return dict(zip(self.inputs + self.outputs, values, strict=True))

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.t)

    def _of_rounded_times(self) -> str:
        """What to do about times that would be uniform if they had more digits; empty if they would not."""
        for digits in range(1, 10):
            unit = 10.0**-digits
            if unit < 0.1 * self._mean_step and np.abs(self.t / unit - np.round(self.t / unit)).max() < 1e-3:
                even = np.linspace(self.t[0], self.t[-1], len(self))
                if np.abs(self.t - even).max() < 1.01 * unit:
                    return f"; rounded to {unit:g} s? then give fs, about {1 / self._mean_step:.4g} Hz, in place of the times"
                break
        return ""

    def __repr__(self) -> str:
        """Describe length, rate and channels."""
        head = f"TimeSeries: {len(self)} sample{'s' * (len(self) > 1)}"
        if len(self) > 1:
            steps = f"steps of {self.dt.min():.3g} to {self.dt.max():.3g} s{self._of_rounded_times()}"
            rate = f"{self.fs:.6g} Hz" if self.uniform else f"non-uniform ({steps})"
            head += f", {self.t[-1] - self.t[0]:.6g} s, {rate}"
        between, missing = BETWEEN_SAMPLES[self.intersample], ", ".join(map(str, self.n_missing))
        labels = {name: f"{name} [{unit}]" for name, unit in self.units.items()}
        shown_inputs, shown_outputs = (", ".join(labels.get(n, n) for n in names) for names in (self.inputs, self.outputs))
        inputs = f"{shown_inputs} ({between} between samples)" if self.inputs else "none"
        outputs = f"{shown_outputs} ({missing} missing)" if self.outputs else "none"
        return f"{head}{', periodic' * self.periodic}\n  inputs:  {inputs}\n  outputs: {outputs}"

    def _repr_html_(self) -> str:
        """Table of the channels for a notebook, each with a small picture."""
        rows = []
        for kind, names, matrix in (("input", self.inputs, self.input_matrix), ("output", self.outputs, self.output_matrix)):
            for name, x in zip(names, matrix.T, strict=True):
                seen = x[np.isfinite(x)]
                numbers = [f"{f(seen):.4g}" if seen.size else "" for f in (np.min, np.max, np.mean, np.std)]
                picture = sparkline(x)
                rows.append([name, kind, self.units.get(name, ""), picture, *numbers, str(len(x) - seen.size)])
        head = repr(self).split("\n")[0]
        between = f"; input {BETWEEN_SAMPLES[self.intersample]} between samples" if self.inputs else ""
        columns = ["channel", "", "unit", "over time", "smallest", "largest", "mean", "sd", "missing"]
        return html_line(head + between, strong=True) + html_table(columns, rows, texts=4)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a record is read-only."""
        raise AttributeError(f"a TimeSeries is read-only; make a changed one with record.replace({name}=...)")

    def __reduce__(self) -> tuple[Callable[[], TimeSeries], tuple[()]]:
        """Rebuild from the fields, since a plain pickle would carry caches and drop read-only flags."""
        return partial(TimeSeries, **(self._fields() | {"units": dict(self.units)})), ()


def _integers(interval: ArrayLike) -> NDArray[Any]:
    """Numbers of intervals as an array."""
    try:
        k = np.asarray(interval)
    except (TypeError, ValueError):
        raise TypeError(f"interval is {type(interval).__name__}; give whole numbers in an array of one shape") from None
    if k.dtype.kind not in "iu":
        raise TypeError(f"interval must hold integers, but its dtype is {k.dtype}; use .astype(int)")
    return k
