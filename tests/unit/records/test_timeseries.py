"""Records: checks, names, slices, the input between samples, tables."""

import pickle
import sys
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pm_sysid.records.timeseries import TimeSeries

FS = 50.0
T = np.arange(64) / FS
RNG = np.random.default_rng(20240917)
NOISE = RNG.normal(size=(64, 2))


def record(**changes):
    return TimeSeries(**({"t": T, "u": NOISE[:, 0], "y": NOISE[:, 1]} | changes))


# ---- construction ----------------------------------------------------------------------------------------


def test_arrays_are_copies_and_read_only():
    t, u, y = T.copy(), NOISE[:, 0].copy(), NOISE.copy()
    r = TimeSeries(t, u, y)
    t[0], u[0], y[0] = 9, 9, 9
    assert r.t[0] == 0 and r.u[0] == NOISE[0, 0] and r.y[0, 1] == NOISE[0, 1]
    assert r.u.shape == (64,) and r.y.shape == (64, 2)
    for array in (r.t, r.u, r.y, r.dt, r.output_matrix, r.input_matrix):
        assert array.dtype == np.float64
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


def test_fields_are_frozen():
    r = record()
    with pytest.raises(AttributeError, match=r"read-only.*record\.replace\(u=\.\.\.\)"):
        r.u = None


@pytest.mark.parametrize(
    ("fields", "inputs", "outputs"),
    [
        ({}, ("u",), ("y",)),
        ({"u": NOISE, "y": None}, ("u1", "u2"), ()),
        ({"u": None, "y": NOISE}, (), ("y1", "y2")),
        ({"u": {"F": T}, "y": {"z": T, "v": T}}, ("F",), ("z", "v")),
        ({"u": NOISE, "inputs": ["a", "b"], "outputs": "z"}, ("a", "b"), ("z",)),
        ({"y": NOISE[:, :1]}, ("u",), ("y",)),
        ({"u": {"a": T, "b": -T}, "inputs": ("b", "a")}, ("b", "a"), ("y",)),
    ],
)
def test_names(fields, inputs, outputs):
    r = record(**fields)
    assert (r.inputs, r.outputs) == (inputs, outputs)
    assert r.input_matrix.shape == (64, len(inputs)) and r.output_matrix.shape == (64, len(outputs))
    assert (r.u is None) == (inputs == ()) and (r.y is None) == (outputs == ())
    assert len(r.n_missing) == len(outputs)


def test_mapping_gives_columns_in_the_order_of_the_names():
    r = record(u={"a": T, "b": -T}, inputs=("b", "a"), y={"z": T})
    assert_array_equal(r.u, np.column_stack([-T, T]))
    assert r.y.shape == (64, 1)


def test_integers_booleans_and_masks_become_floats():
    mask = np.zeros(64, dtype=bool)
    mask[3] = True
    r = record(u=np.arange(64) > 5, y=np.ma.array(np.arange(64), mask=mask))
    assert r.u.dtype == r.y.dtype == np.float64
    assert np.isnan(r.y[3]) and r.n_missing == (1,) and not np.ma.isMaskedArray(r.y)


def test_missing_values_are_counted_per_output():
    y = NOISE.copy()
    y[[0, 5, 63], 1] = np.nan
    assert record(y=y).n_missing == (0, 3)
    assert record(y=np.full(64, np.nan)).n_missing == (64,)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"t": T[:, None]}, ValueError, r"t must have shape \(T,\) with T >= 1, but has \(64, 1\); pass one"),
        ({"t": []}, ValueError, r"t must have shape \(T,\) with T >= 1, but has \(0,\)"),
        ({"t": [0, np.nan]}, ValueError, r"t must be finite, but t\[1\] is nan; drop"),
        (
            {"t": [0, 0.3, 0.2]},
            ValueError,
            r"strictly, but t\[2\] = 0.2 follows t\[1\] = 0.3; sort .* drop rep",
        ),
        ({"t": [0, 1, 1]}, ValueError, r"t\[2\] = 1.0 follows t\[1\] = 1.0"),
        ({"t": T * 1j}, TypeError, "t must hold real numbers, but its dtype is complex128; pass float"),
        ({"t": T.astype("M8[s]")}, TypeError, r"dtype is datetime64\[s\]; pass seconds from the start"),
        ({"u": ["1"] * 64}, TypeError, "u must hold real numbers, but its dtype is <U1; pass floating"),
        ({"u": T.astype(object)}, TypeError, "u must hold real numbers, but its dtype is object"),
        ({"u": {"F": T * 1j}}, TypeError, r"u\['F'\] must hold real numbers, but its dtype is complex128"),
        ({"u": [[1.0], [1.0, 2.0]]}, ValueError, "u is ragged; give every sample the same number"),
        ({"u": T[1:]}, ValueError, r"u must have shape \(64,\) or \(64, n\), but has \(63,\); give one row"),
        ({"u": NOISE.T}, ValueError, r"u must have shape .* but has \(2, 64\); pass u\.T"),
        ({"y": T[:, None, None]}, ValueError, r"y must have shape .* but has \(64, 1, 1\)"),
        ({"y": 3.0}, ValueError, r"y must have shape .* but has \(\); give one row"),
        ({"u": {"F": T[1:]}}, ValueError, r"u\['F'\] must have shape \(64,\) like t, but has \(63,\)"),
        ({"u": NOISE[:, :0]}, ValueError, "u has no channels; pass u=None instead"),
        ({"y": {}}, ValueError, "y has no channels; pass y=None instead"),
        (
            {"u": np.where(T > 0.1, np.nan, 0)},
            ValueError,
            r"u must be finite, but u\[6\] is nan; interpolate",
        ),
        ({"u": np.where(T > 1, np.inf, 0)[:, None]}, ValueError, r"u must be finite, but u\[51, 0\] is inf"),
        (
            {"y": np.where(T > 1, -np.inf, 0)},
            ValueError,
            r"y must be finite or NaN, but y\[51\] is -inf; mark",
        ),
        ({"intersample": {"F": "zoh"}}, ValueError, r"all inputs of a record move alike: .* insert rows"),
        ({"intersample": "cubic"}, ValueError, 'intersample must be "zoh", "foh" or "bl", but is \'cubic\''),
        (
            {"u": None, "inputs": "F"},
            ValueError,
            r"inputs is \('F',\), but u is None; pass u, or drop inputs",
        ),
        (
            {"u": {"F": T}, "inputs": "G"},
            ValueError,
            r"inputs is \('G',\), but u has \('F',\); name the same",
        ),
        ({"outputs": ("a", "b")}, ValueError, r"outputs is \('a', 'b'\), but y has 1 channels; name each"),
        ({"y": NOISE, "outputs": ("a", "a")}, ValueError, "outputs must be distinct, non-empty names"),
        ({"inputs": ""}, ValueError, r"inputs is \(''\,\)|inputs must be distinct, non-empty"),
        ({"inputs": "time"}, ValueError, 'inputs must be distinct, non-empty names other than "time"'),
        ({"inputs": (1,)}, ValueError, "inputs must be distinct, non-empty names"),
        ({"inputs": "y"}, ValueError, "inputs and outputs share the name 'y'; rename one"),
        ({"t": T**2, "periodic": True}, ValueError, "periodic=True needs uniform times; resample, or use"),
    ],
)
def test_what_is_refused(fields, error, message):
    with pytest.raises(error, match=message):
        record(**fields)


# ---- times -----------------------------------------------------------------------------------------------


def test_uniform_times_have_one_step():
    r = record()
    assert r.uniform and len(np.unique(r.dt)) == 1 and r.dt.shape == (63,)
    assert r.fs == pytest.approx(FS, rel=1e-14)


def test_jitter_decides_uniformity():
    for jitter, uniform in ((0.4e-6, True), (3e-6, False)):
        t = T.copy()
        t[30] += jitter / FS
        r = record(t=t)
        assert r.uniform is uniform and (r.fs is None) is not uniform
    assert_array_equal(r.dt, np.diff(t))


def test_the_resolution_of_large_times_is_no_jitter():
    r = record(t=1.7e9 + T / 10)
    assert np.ptp(np.diff(r.t)) > 1e-6 * r.dt[0]
    assert r.uniform and r.fs == pytest.approx(10 * FS, rel=1e-4)


def test_one_sample():
    r = TimeSeries([2.0], [3.0], [np.nan])
    assert (len(r), r.fs, r.uniform, r.dt.shape) == (1, None, False, (0,))
    for intersample in ("zoh", "foh", "bl"):
        assert r.replace(intersample=intersample).input_at(0, 0.7) == [3.0]
        assert r.replace(intersample=intersample).input_at(0, 0.7, 1) == [0.0]
    assert "1 sample\n" in repr(r)


def test_repr():
    assert repr(record(periodic=True, y=None)) == (
        "TimeSeries: 64 samples, 1.26 s, 50 Hz, periodic\n  inputs:  u (band-limited between samples)\n  outputs: none"
    )
    text = repr(TimeSeries([0, 1, 3], None, [[0, 0], [np.nan, 0], [0, 0]]))
    assert "3 samples, 3 s, non-uniform (steps of 1 to 2 s)" in text
    assert "inputs:  none" in text and "y1, y2 (1, 0 missing)" in text


# ---- slices, changes, pickles ----------------------------------------------------------------------------


def test_slices_keep_times_names_and_intersample():
    r = record(inputs="F", outputs="z", intersample="foh", periodic=True)
    part = r[10:-4]
    assert_array_equal(part.t, T[10:60])
    assert_array_equal(part.u, NOISE[10:60, 0])
    assert_array_equal(part.y, NOISE[10:60, 1])
    assert (part.inputs, part.outputs, part.intersample) == (("F",), ("z",), "foh")
    assert not part.periodic and r[:].periodic and r[0:64:1].periodic
    assert record(u=None)[3:5].u is None and len(record(y=None)[3:4]) == 1


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (3, TypeError, r"takes slices, but got int; use record\[a:b\]"),
        ([1, 2], TypeError, "takes slices, but got list"),
        (slice(0, 9, 2), ValueError, "slice step must be 1, but is 2: .* resample/decimate first"),
        (slice(None, None, -1), ValueError, "slice step must be 1, but is -1"),
        (slice(5, 5), ValueError, "slice 5:5 of 64 samples is empty; widen it"),
        (slice(70, 90), ValueError, "slice 64:64 of 64 samples is empty"),
    ],
)
def test_slices_refused(key, error, message):
    with pytest.raises(error, match=message):
        record()[key]


def test_replace_keeps_names_while_the_channels_stay():
    r = record(inputs="F", outputs="z")
    assert r.replace(u=T).inputs == ("F",) and r.replace(u=T).outputs == ("z",)
    assert r.replace(u=NOISE).inputs == ("u1", "u2")
    assert r.replace(u={"G": T}).inputs == ("G",)
    assert r.replace(u=None).inputs == () and r.replace(y=None).replace(y=T).outputs == ("y",)
    assert r.replace(u=NOISE, inputs=("a", "b")).inputs == ("a", "b")
    assert r.replace(intersample="zoh").intersample == "zoh" and r.intersample == "bl"
    with pytest.raises(TypeError, match="has no field 'fs'; it has t, u, y, intersample, inputs, outputs, per"):
        r.replace(fs=3.0)


def test_pickle_keeps_content_and_read_only_flags():
    r = record(inputs="F", periodic=True, y=np.where(T > 1, np.nan, T))
    r.input_at(3, 0.5)
    copy = pickle.loads(pickle.dumps(r))
    assert repr(copy) == repr(r) and copy.periodic
    assert_array_equal(copy.y, r.y)
    assert not copy.u.flags.writeable
    cubic = record()
    size = len(pickle.dumps(cubic))
    cubic.input_at(3, 0.5)
    assert len(pickle.dumps(cubic)) == size


# ---- the input between samples ---------------------------------------------------------------------------


def test_held_input_on_both_sides_of_a_sample():
    r = TimeSeries([0, 1, 3], [1.0, 4.0, 2.0], intersample="zoh")
    assert_array_equal(r.input_at([0, 0, 0, 1, 1, 2], [0, 0.5, 1, 0, 1, 0.3])[:, 0], [1, 1, 1, 4, 4, 2])
    assert_array_equal(r.input_at([0, 1, 2], 0.5, 1), np.zeros((3, 1)))
    assert r.smoothness == 0


def test_linear_input_on_both_sides_of_a_sample():
    r = TimeSeries([0, 1, 3], [1.0, 4.0, 2.0], intersample="foh")
    assert_allclose(r.input_at([0, 0, 0, 1, 1, 2], [0, 0.5, 1, 0, 0.5, 0.0])[:, 0], [1, 2.5, 4, 4, 3, 2])
    assert_allclose(r.input_at([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1], 1)[:, 0], [3, 3, -1, -1, -1, -1])
    assert_array_equal(r.input_at([0, 1, 2], 0.5, 2), np.zeros((3, 1)))
    assert r.smoothness == 1


@pytest.mark.parametrize("times", [T, np.cumsum(RNG.uniform(0.5, 1.5, 64)) / FS])
def test_band_limited_input_passes_the_samples_and_is_smooth_to_its_degree(times):
    r = TimeSeries(times, NOISE)
    k = np.arange(63)
    assert r.smoothness == (7 if r.uniform else 3)
    assert_array_equal(r.input_at(k, 0.0), NOISE[:-1])
    assert_allclose(r.input_at(k, 1.0), NOISE[1:], atol=1e-12)
    for order in range(1, r.smoothness + 2):
        left, right = r.input_at(k[:-1], 1.0, order), r.input_at(k[1:], 0.0, order)
        jump = np.abs(left - right).max() / FS**order
        if order < r.smoothness:
            assert jump < 1e-10
        elif order == r.smoothness:
            assert jump > 0.1
        else:
            assert_array_equal(left, 0)
        assert_array_equal(r.input_at(63, 0.0, order), r.input_at(62, 1.0, order))
        assert_array_equal(r.input_at(63, 0.4, order), r.input_at(62, 1.0, order))


def test_derivatives_of_the_spline_match_differences():
    r = record()
    s, h = np.linspace(0.1, 0.9, 9), 1e-4
    for order in range(6):
        difference = r.input_at(20, s + h, order) - r.input_at(20, s - h, order)
        exact = r.input_at(20, s, order + 1)
        assert_allclose(difference / (2 * h / FS), exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("start", [0.0, 3e4])
def test_accuracy_at_nine_samples_a_period(start):
    w = 2 * np.pi * FS / 9
    t = start + np.arange(400) / FS
    uniform = TimeSeries(t, np.sin(w * (t - start)))
    jittered = t + 1e-4 / FS * RNG.uniform(-1, 1, 400)
    cubic = TimeSeries(jittered, np.sin(w * (jittered - start)))
    k, s = np.meshgrid(np.arange(30, 370), np.linspace(0, 1, 5), indexing="ij")

    def error(r, order):
        exact = w**order * np.sin(w * (r.t[k] - start + s * r.dt[k]) + order * np.pi / 2)
        return np.abs(r.input_at(k, s, order)[..., 0] - exact).max() / w**order

    assert cubic.smoothness == 3
    assert error(uniform, 0) < 2.02 * (8.0**-8 + 10.0**-8)  # the two nearest images
    assert 0.5 * 8.0**-4 < error(cubic, 0) < 4 * 8.0**-4
    assert error(uniform, 1) < 1e-6 and error(uniform, 2) < 1e-4


def test_the_ends_do_not_amplify_noise():
    impulses = TimeSeries(np.arange(40.0), np.eye(40))
    gain = np.abs(impulses.input_at(0, np.linspace(0, 1, 21))).sum(axis=-1).max()
    assert gain < 3


def test_the_ends_reproduce_a_cubic():
    t = np.arange(20) / 5
    r = TimeSeries(t, t**3 - 4 * t)
    s = np.linspace(0, 1, 7)
    for k in (0, 18):
        x = t[k] + s / 5
        assert_allclose(r.input_at(k, s)[:, 0], x**3 - 4 * x, atol=1e-11)
        assert_allclose(r.input_at(k, s, 1)[:, 0], 3 * x**2 - 4, atol=1e-10)


@pytest.mark.parametrize(("size", "degree"), [(2, 1), (3, 1), (4, 3), (7, 3), (8, 7)])
def test_short_records_use_a_lower_degree(size, degree):
    t = np.arange(size) / 4
    r = TimeSeries(t, t**degree if degree < 7 else t**3)
    assert r.smoothness == degree
    assert_allclose(r.input_at(size - 2, 0.5)[0], ((t[-2] + t[-1]) / 2) ** min(degree, 3), atol=1e-12)


@pytest.mark.parametrize("size", [60, 61])
def test_periodic_input_is_exact(size):
    t = 1.0 + np.arange(size) / FS
    w = 2 * np.pi * FS / size * np.array([1, 7, 29])
    phase = np.array([0.3, 1.0, 2.0])

    def exact(x, order=0):
        return np.stack([(w**order * np.cos(w * (v - 1) + phase + order * np.pi / 2)) for v in x.ravel()])

    r = TimeSeries(t, exact(t), periodic=True)
    k, s = np.meshgrid(np.arange(size), [0, 0.25, 0.5, 1.0], indexing="ij")
    assert r.smoothness is None
    for order in range(4):
        value = r.input_at(k, s, order)
        assert value.shape == (*k.shape, 3)
        assert_allclose(value.reshape(-1, 3) / w**order, exact(t[k] + s / FS, order) / w**order, atol=1e-9)


def test_the_nyquist_frequency_is_a_cosine():
    n = np.arange(8)
    r = TimeSeries(n / 2.0, (-1.0) ** n, periodic=True)
    s = np.linspace(0, 1, 5)
    assert_allclose(r.input_at(2, s)[:, 0], np.cos(np.pi * s), atol=1e-14)
    assert_allclose(r.input_at(2, s, 1)[:, 0], -2 * np.pi * np.sin(np.pi * s), atol=1e-13)


def test_periodic_only_matters_to_a_band_limited_input():
    held, wraps = record(periodic=True, intersample="zoh"), record(periodic=True, intersample="foh")
    assert held.smoothness == 0 and wraps.smoothness == 1
    assert_array_equal(wraps.input_at(63, 0.5), record(intersample="foh").input_at(62, 1.0))


@pytest.mark.parametrize("periodic", [False, True])
def test_no_input(periodic):
    r = record(u=None, periodic=periodic)
    assert r.smoothness is None and r.input_at([1, 2], [[0.5], [0.7], [1]], 2).shape == (3, 2, 0)


@pytest.mark.parametrize("periodic", [False, True])
def test_broadcast_shapes(periodic):
    r = record(u=NOISE, periodic=periodic)
    assert r.input_at(3, 0.5).shape == (2,)
    assert r.input_at(np.arange(5), [[0.0], [0.5]]).shape == (2, 5, 2)
    assert r.input_at(np.arange(0), 0.5).shape == (0, 2)
    assert_array_equal(r.input_at(np.arange(5), 0.5)[3], r.input_at(3, 0.5))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (0.0, 0.5),
            TypeError,
            r"interval must hold integers, but its dtype is float64; use \.astype\(int\)",
        ),
        (([3, 64], 0.5), ValueError, r"interval must lie in 0\.\.63, but spans 3\.\.64"),
        ((-1, 0.5), ValueError, r"interval must lie in 0\.\.63"),
        ((0, [0.0, 1.5]), ValueError, r"fraction must lie in 0\.\.1, but spans 0\.0\.\.1\.5"),
        ((0, np.nan), ValueError, r"fraction must lie in 0\.\.1, but spans nan"),
        ((0, 0.5, -1), ValueError, "derivative must be 0 or more, but is -1"),
        ((0, 0.5, 1.0), TypeError, "integer"),
    ],
)
def test_input_at_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        record().input_at(*arguments)


# ---- tables ----------------------------------------------------------------------------------------------


def same(a, b):
    assert repr(a) == repr(b)
    for name in ("t", "u", "y"):
        assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("intersample", ["zoh", "foh", "bl"])
def test_tables_round_trip(intersample):
    pytest.importorskip("pandas")
    y = np.where(NOISE > 1, np.nan, NOISE)
    r = record(y=y, inputs="F", outputs=("z", "v"), intersample=intersample)
    df, ds = r.to_dataframe(), r.to_xarray()
    assert list(df) == ["F", "z", "v"] and df.index.name == "time"
    assert ds["z"].dims == ("time",) and ds["time"].attrs["units"] == "s"
    same(TimeSeries.from_dataframe(df, inputs="F", outputs=["z", "v"]), r)
    same(TimeSeries.from_xarray(ds, inputs="F", outputs=["z", "v"]), r)
    assert TimeSeries.from_dataframe(df, inputs="F", outputs="z", intersample="foh").intersample == "foh"
    one = TimeSeries.from_xarray(ds, inputs=["F"], outputs=None, periodic=True)
    assert one.u.shape == (64, 1) and one.y is None and one.periodic


def test_tables_of_a_whole_period_are_periodic_and_parts_of_it_are_not():
    pytest.importorskip("pandas")
    r = record(inputs="F", outputs="z", periodic=True)
    df, ds = r.to_dataframe(), r.to_xarray()
    same(TimeSeries.from_dataframe(df, inputs="F", outputs="z"), r)
    same(TimeSeries.from_xarray(ds, inputs="F", outputs="z"), r)
    assert not TimeSeries.from_dataframe(df[:40], inputs="F", outputs="z").periodic
    assert not TimeSeries.from_xarray(ds.isel(time=slice(40)), inputs="F", outputs="z").periodic
    assert not TimeSeries.from_dataframe(df, inputs="F", outputs="z", periodic=False).periodic


def test_no_channels_round_trip():
    pytest.importorskip("pandas")
    r = TimeSeries(T)
    same(TimeSeries.from_dataframe(r.to_dataframe(), inputs=(), outputs=None), r)
    same(TimeSeries.from_xarray(r.to_xarray(), inputs=None, outputs=()), r)


def test_dates_become_seconds_from_the_start():
    pd = pytest.importorskip("pandas")
    day = pd.Timestamp("2024-03-01 12:00")
    for times in (
        day + pd.to_timedelta(T, unit="s"),
        day.tz_localize("Europe/Paris") + pd.to_timedelta(T, unit="s"),
        pd.to_timedelta(7 + T, unit="s"),
    ):
        df = pd.DataFrame({"when": times, "u": T, "y": T})
        read = partial(TimeSeries.from_dataframe, inputs="u", outputs="y")
        for r in (read(df, time="when"), read(df.set_index("when"))):
            assert_allclose(r.t, T, atol=1e-12)
            assert r.uniform
    ds = df.set_index("when").to_xarray()
    assert_allclose(TimeSeries.from_xarray(ds, inputs="u", outputs="y", time="when").t, T, atol=1e-12)


def test_nullable_columns_hold_missing_values():
    pd = pytest.importorskip("pandas")
    y = pd.array([0.0, None, 1.0], dtype="Float64")
    df = pd.DataFrame({"y": y, "u": pd.array([1, 2, 3], dtype="Int64")}, index=[0.0, 0.1, 0.2])
    r = TimeSeries.from_dataframe(df, inputs=["u"], outputs="y")
    assert r.n_missing == (1,) and r.u.tolist() == [[1.0], [2.0], [3.0]]


def test_tables_refused():
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"t": T, "u": T, "s": ["a"] * 64})
    read = partial(TimeSeries.from_dataframe, df, outputs=None)
    with pytest.raises(ValueError, match='index of df counts rows, not seconds; pass time="column", or set'):
        read(inputs="u")
    with pytest.raises(ValueError, match="there is no column 'F'; there are t, u, s"):
        read(inputs="F", time="t")
    with pytest.raises(ValueError, match="there is no column 'clock'"):
        read(inputs="u", time="clock")
    with pytest.raises(TypeError, match="u must hold real numbers"):
        read(inputs="s", time="t")
    ds = record().to_xarray()
    with pytest.raises(ValueError, match="there is no column 'F'; there are u, y"):
        TimeSeries.from_xarray(ds, inputs="F", outputs="y")
    with pytest.raises(ValueError, match=r"u\['w'\] must have shape \(64,\) like t, but has \(64, 3\)"):
        TimeSeries.from_xarray(ds.assign(w=ds["u"].expand_dims(n=3, axis=1)), inputs=["w"], outputs="y")


def test_rows_that_are_left_after_others_were_dropped_are_no_seconds():
    pd = pytest.importorskip("pandas")
    df = pd.DataFrame({"u": T, "y": np.where(T == T[3], np.nan, T)}).dropna()
    read = partial(TimeSeries.from_dataframe, inputs="u", outputs="y")
    with pytest.raises(ValueError, match="index of df counts rows"):
        read(df)
    df.index.name = "t"
    assert read(df).t.tolist() == [0.0, 1.0, 2.0, *range(4, 64)]


def test_variables_of_a_data_set_share_the_dimension_and_unit_of_its_times():
    ds = record().to_xarray()
    other = ds.assign(z=("late", np.zeros(64)), late=7 * T)
    read = partial(TimeSeries.from_xarray, inputs="u")
    with pytest.raises(ValueError, match=r"samples of 'z' are along \('late',\), and the times along \('time',\)"):
        read(other, outputs="z")
    ds["time"].attrs["units"] = "ms"
    with pytest.raises(ValueError, match="times 'time' are in ms, and times of a record are in seconds; multiply"):
        read(ds, outputs="y")
    ds["time"].attrs["units"] = "s"
    assert len(read(ds, outputs="y")) == 64


def test_pandas_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="a DataFrame needs pandas; install it, or use arrays or xarray"):
        record().to_dataframe()
    with pytest.raises(ImportError, match="needs pandas"):
        TimeSeries.from_dataframe(None, inputs=None, outputs=None)


def test_a_million_samples():
    u = RNG.normal(size=1_000_000)
    r = TimeSeries(np.arange(1_000_000) * 1e-3, u)
    k = np.arange(999_999)
    assert_allclose(r.input_at(k, 1.0)[:, 0], u[1:], atol=1e-12)
    assert_allclose(r.replace(periodic=True).input_at(k, 1.0)[:, 0], u[1:], atol=1e-9)


def test_times_that_were_rounded_are_called_so() -> None:
    even = np.arange(200) / 120
    said = repr(TimeSeries(np.round(even, 4), None, even, outputs="y"))
    assert "non-uniform (steps of 0.0083 to 0.0084 s; rounded to 0.0001 s? then give fs, about 120 Hz, in place of" in said
    jitter = np.round(even + 0.001 * np.random.default_rng(0).uniform(-1, 1, 200), 4)
    assert "rounded" not in repr(TimeSeries(jitter, None, even, outputs="y"))
    assert "rounded" not in repr(TimeSeries(even, None, even, outputs="y"))


def test_samples_at_nearly_one_time_do_not_tell_the_interval() -> None:
    steps = np.tile([1e-5, 0.1 - 1e-5], 50)
    record = TimeSeries(np.concatenate([[0.0], np.cumsum(steps)]), None)
    np.testing.assert_allclose(record.ordinary_dt, 0.1, rtol=1e-3)
    burst = TimeSeries([0.0, 0.1, 0.2, 0.3, 100.0, 100.1, 100.2], None)  # three samples and more are no coincidence
    np.testing.assert_allclose(burst.ordinary_dt, burst.dt)
    for t in ([0.0], [0.0, 1.0], [0.0, 1e-3, 1.0], np.arange(5.0)):
        record = TimeSeries(t, None)
        assert record.ordinary_dt.size == min(record.dt.size, 4) - (len(t) == 3)


def test_columns_of_a_table_keep_their_names() -> None:
    """In the order of ``inputs``, as those of a mapping do; they were taken by their places."""
    df = pytest.importorskip("pandas").DataFrame({"F": T, "G": 2 * T})
    record = TimeSeries(T, df, inputs=("G", "F"))
    assert record.inputs == ("G", "F")
    np.testing.assert_array_equal(record.u, np.stack([2 * T, T], axis=1))
    assert TimeSeries(T, df).inputs == ("F", "G")
    assert TimeSeries(T, df, inputs=("a", "b")).inputs == ("a", "b")
    with pytest.raises(ValueError, match="name the same channels"):
        TimeSeries(T, df, inputs=("G", "H"))
