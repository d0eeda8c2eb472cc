"""Preparation of a record: removal of trends, and change of the sampling rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
import scipy

from pm_sysid.arguments import among, is_number, shown
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.validation import FloatArray, named

__all__ = ["detrend", "resample"]

_FASTEST = 1e15  # Hz
_LARGEST = 10_000  # numerator and denominator of a ratio of rates: the filter has twenty times as many taps
_GAP = 4.0  # steps; across a wider gap there is no information to interpolate
_HALF, _CUTOFF, _KAISER = 20, 0.91, 5.65  # samples of the lower rate, fraction of its Nyquist frequency, 60 dB


def detrend(
    record: TimeSeries, kind: Literal["constant", "linear"] = "constant", *, channels: Sequence[str] | None = None
) -> TimeSeries:
    """Subtract the mean of each channel, or the straight line that fits it by least squares.

    Parameters
    ----------
    record : TimeSeries
        Times may be irregular, and values of outputs may be missing.
    kind : {"constant", "linear"}
        Subtract the mean over the samples, or a line over time.
    channels : sequence of str, optional
        Inputs and outputs to change; all by default.

    Returns
    -------
    TimeSeries
        The record at the same times; missing values remain missing.

    Raises
    ------
    TypeError, ValueError
        If there is no such kind or channel, a channel has too few values, or a line is to be subtracted from a periodic
        record.

    Notes
    -----
    The behaviour of a linear system does not depend on its operating point; that of a nonlinear system does. If a force
    deflects a hardening spring to one side, its mean is part of the experiment, and removing it changes the identified
    system. In this case add an offset to the model (``duffing(offset=True)``) and do not change the record. Use this function
    to remove the offset and the drift of a sensor.

    Lines are fitted to the observed values, each at its own time. ``scipy.signal.detrend`` needs regular samples without
    missing values; for such records the result is the same.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> record = sid.TimeSeries([0.0, 1.0, 3.0], [1.0, 2.0, 6.0], [5.0, float("nan"), 11.0])
    >>> sid.detrend(record).u
    array([-2., -1.,  3.])
    >>> sid.detrend(record, "linear", channels=["y"]).y.round(12) + 0.0
    array([ 0., nan,  0.])
    """
    _check_record(record)
    if not among(kind, ("constant", "linear")):
        raise ValueError(f"kind must be 'constant' or 'linear', but is {kind!r}")
    if kind == "linear" and record.periodic:
        raise ValueError("a periodic record has no linear trend; use kind='constant', or record.replace(periodic=False)")
    chosen = _chosen(record, channels)
    order = ("constant", "linear").index(kind)
    time = (record.t - record.t.mean()) / (np.ptp(record.t) or 1.0)
    basis = np.stack([time**power for power in range(order + 1)], axis=1)

    def flattened(name: str, values: FloatArray) -> FloatArray:
        there = ~np.isnan(values)
        if name not in chosen:
            return values
        if there.sum() <= order:
            raise ValueError(f"channel {name!r} has {there.sum()} values, too few for a {kind} trend; leave it out of channels")
        coefficients = np.linalg.lstsq(basis[there], values[there], rcond=None)[0]
        return np.asarray(values - basis @ coefficients)

    return record.replace(**_each_channel(record, flattened))


def resample(record: TimeSeries, fs: float) -> TimeSeries:
    """Change the sampling rate of a record, with an anti-aliasing filter.

    Parameters
    ----------
    record : TimeSeries
        All outputs must be observed. If times are irregular, the channels are interpolated first (see Notes).
    fs : float
        New sampling rate in Hz.

    Returns
    -------
    TimeSeries
        Uniform times, from the first time of the record to at most its last.

    Raises
    ------
    TypeError, ValueError
        If outputs are missing, the input is held between the samples, or is linear and the rate rises to no whole multiple, the
        ratio of the rates is not a ratio of small integers, a gap in irregular times is too wide, or the period of a periodic
        record is not a whole number of new samples.

    Notes
    -----
    Regular records are resampled by ``scipy.signal.resample_poly`` with a symmetric filter, which causes no time shift.
    Amplitudes are correct to 0.1 % up to 0.8 times the lower of the two Nyquist frequencies. Components above this Nyquist
    frequency are reduced by a factor of one thousand. The filter extends over 20 samples of the lower rate. At the ends,
    where the record is continued by odd reflection, the result is less accurate. Periodic records are resampled exactly, by
    their Fourier series.

    An input that is linear between the samples (``"foh"``) is band-limited (``"bl"``) at a lower rate, since the filter has
    made it so; at a whole multiple of the rate it stays linear, and is not filtered.

    Irregular records are first interpolated at regular times whose step is at most their mean step: by straight lines if the
    input is ``"foh"``, otherwise by a cubic spline. This is not an ideal reconstruction: components near the mean Nyquist
    frequency are reduced or aliased. The likelihoods of this package accept irregular times and missing values, so this
    function is rarely needed for them. Use it to shorten a record that was sampled too fast.

    White noise becomes coloured at a higher rate, and near the edge of the band also at a lower rate. Posteriors from
    likelihoods with independent errors are then slightly too narrow.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> t = np.arange(1000) / 1000
    >>> record = sid.TimeSeries(t, np.sin(2 * np.pi * 5 * t), np.cos(2 * np.pi * 5 * t))
    >>> slow = sid.resample(record, 100.0)
    >>> (
    ...     slow.fs,
    ...     len(slow),
    ...     bool(abs(slow.u - np.sin(2 * np.pi * 5 * slow.t))[10:-10].max() < 1e-3),
    ... )
    (100.0, 100, True)
    """
    _check_record(record)
    if not is_number(fs) or not 1 / _FASTEST < fs < _FASTEST:
        raise ValueError(f"fs must be a positive sampling rate in Hz, but is {shown(fs)}")
    if len(record) < 4:
        raise ValueError(f"the record has {len(record)} samples; resampling needs 4 or more")
    if any(record.n_missing):
        name = next(n for n, k in zip(record.outputs, record.n_missing, strict=True) if k)
        raise ValueError(
            f"output {name!r} misses values, across which there is no anti-aliasing filter; cut the record there "
            "(record[a:b]), or leave the rate as it is: likelihoods take missing values"
        )
    if record.inputs and record.intersample == "zoh":
        raise ValueError(
            "the input is held between samples ('zoh') and jumps there, which no other rate shows; leave the rate as it is, or "
            "use record.replace(intersample='bl') if the input is in truth band-limited"
        )
    if fs * float(np.ptp(record.t)) < 1 - 1e-9:
        raise ValueError(f"fs = {fs:g} Hz leaves one sample of the {np.ptp(record.t):g} s of the record; give a higher rate")
    if record.periodic:
        return _periodic(record, float(fs))
    if not record.uniform:
        record = _regular(record, float(fs))
    return _polyphase(record, float(fs))


def _polyphase(record: TimeSeries, fs: float) -> TimeSeries:
    assert record.fs is not None
    ratio = Fraction(fs / record.fs).limit_denominator(_LARGEST)
    up, down = ratio.numerator, ratio.denominator
    if up == 0 or up > _LARGEST or not math.isclose(record.fs * up / down, fs, rel_tol=1e-6):
        near = max(1, round(record.fs / fs)) if fs < record.fs else 1
        raise ValueError(
            f"fs = {fs:g} Hz is {fs / record.fs:.9g} times the rate of the record, no ratio of integers up to {_LARGEST}; "
            f"take a rate such as {record.fs / near:.12g} Hz"
        )
    if ratio == 1:
        return record
    count = math.floor((len(record) - 1) * up / down + 1e-9) + 1  # none beyond the last sample

    lower = max(up, down)
    half = _HALF * lower
    taps = scipy.signal.firwin(2 * half + 1, _CUTOFF / lower, window=("kaiser", _KAISER))
    # Odd reflections go on with value and slope; their length is a whole number of new samples.
    ends = min(down * math.ceil(half / up / down), (len(record) - 1) // down * down)

    old, new = np.arange(len(record)) / record.fs, np.arange(count) / fs

    def filtered(name: str, values: FloatArray) -> FloatArray:
        # The filter has a gain of its own between two samples, which an offset or a drift would show whatever the signal is.
        line = np.polynomial.Polynomial.fit(old, values, 1)
        values = values - line(old)
        before, after = 2 * values[0] - values[ends:0:-1], 2 * values[-1] - values[-2 : -ends - 2 : -1]
        extended = np.concatenate([before, values, after])
        start = ends * up // down
        found = scipy.signal.resample_poly(extended, up, down, window=taps, padtype="line")[start : start + count]
        return np.asarray(found + line(new))

    return _resampled(record, record.t[0] + new, _each_channel(record, filtered), ratio)


def _periodic(record: TimeSeries, fs: float) -> TimeSeries:
    assert record.fs is not None
    exact = len(record) * fs / record.fs
    count = round(exact)
    if count < 1 or not math.isclose(exact, count, rel_tol=1e-9):
        rate = max(1, count) * record.fs / len(record)
        raise ValueError(
            f"the period of {len(record) / record.fs:g} s holds {exact:.6g} samples at fs = {fs:g} Hz, no whole number; take "
            f"{rate:.12g} Hz, or record.replace(periodic=False)"
        )

    def series(name: str, values: FloatArray) -> FloatArray:
        return np.asarray(scipy.signal.resample(values, count))

    ratio = Fraction(count, len(record))
    return _resampled(record, record.t[0] + np.arange(count) / fs, _each_channel(record, series), ratio)


def _resampled(record: TimeSeries, t: FloatArray, channels: dict[str, FloatArray], ratio: Fraction) -> TimeSeries:
    """The record at times that are so many times as dense, with filtered channels; an input that is linear stays what it was.

    At a whole multiple of the rate all corners of its lines are samples, and the lines are known; a lower rate has none of
    them, and the filter has made the input band-limited.
    """
    if not record.inputs or record.intersample != "foh" or ratio == 1:
        return record.replace(t=t, **channels)
    if ratio < 1:
        return record.replace(t=t, intersample="bl", **channels)
    if ratio.denominator != 1:
        raise ValueError(
            "the input is linear between samples ('foh'), and its corners are no samples at a rate that is no whole multiple; "
            f"take a multiple of {record.fs:.12g} Hz, or record.replace(intersample='bl') if the input is in truth band-limited"
        )
    u = channels["u"].reshape(len(t), -1)
    old = record.t if not record.periodic else np.append(record.t, record.t[-1] + 1 / (record.fs or 1.0))
    for j, column in enumerate(record.input_matrix.T):
        u[:, j] = np.interp(t, old, column if not record.periodic else np.append(column, column[0]))
    return record.replace(t=t, **channels)


def _regular(record: TimeSeries, fs: float) -> TimeSeries:
    """Interpolate at an integer multiple of the new rate that is not below the mean rate of the record."""
    steps = np.diff(record.t)
    widest, usual = int(steps.argmax()), float(np.median(steps))
    if steps[widest] > _GAP * max(usual, 1 / fs):
        raise ValueError(
            f"there is a gap of {steps[widest]:.3g} s behind t[{widest}] = {record.t[widest]:g} s, more than {_GAP:g} "
            f"steps; cut the record there (record[:{widest + 1}], record[{widest + 1}:]), or leave the times as they are: "
            "likelihoods take irregular ones"
        )
    rate = fs * max(1, math.ceil((len(record) - 1) / float(np.ptp(record.t)) / fs - 1e-9))
    count = math.floor(float(np.ptp(record.t)) * rate * (1 + 1e-12)) + 1
    t = np.minimum(record.t[0] + np.arange(count) / rate, record.t[-1])
    degree = 1 if record.intersample == "foh" else 3

    def interpolated(name: str, values: FloatArray) -> FloatArray:
        return np.asarray(scipy.interpolate.make_interp_spline(record.t, values, k=degree)(t))

    return record.replace(t=record.t[0] + np.arange(count) / rate, **_each_channel(record, interpolated))


def _each_channel(record: TimeSeries, change: Callable[[str, FloatArray], FloatArray]) -> dict[str, FloatArray]:
    """Arrays ``u`` and ``y`` of a record, in their shapes, with a change made to every channel."""
    arrays = {}
    for field, names, before, matrix in (
        ("u", record.inputs, record.u, record.input_matrix),
        ("y", record.outputs, record.y, record.output_matrix),
    ):
        if before is not None:
            columns = [change(name, column) for name, column in zip(names, matrix.T, strict=True)]
            arrays[field] = columns[0] if before.ndim == 1 else np.stack(columns, axis=1)
    return arrays


def _chosen(record: TimeSeries, channels: Sequence[str] | None) -> set[str]:
    there = (*record.inputs, *record.outputs)
    if channels is None:
        return set(there)
    if isinstance(channels, str):
        raise TypeError(f"channels is the string {channels!r}; give a sequence of names, such as [{channels!r}]")
    chosen = named(channels, "channels")
    for name in chosen:
        if name not in there:
            raise ValueError(f"there is no channel {name!r}; there are {', '.join(there)}")
    return set(chosen)


def _check_record(record: object) -> None:
    if not isinstance(record, TimeSeries):
        raise TypeError(f"record is {type(record).__name__}; give a TimeSeries (several one by one)")
