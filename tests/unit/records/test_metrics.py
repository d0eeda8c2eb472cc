"""Measures of fit: their formulas, missing samples, shapes and labels."""

import itertools

import numpy as np
import pytest
import scipy
import xarray as xr
from numpy.testing import assert_allclose

from pm_sysid.records.metrics import alike, difference, fit_percent, nrmse, relative_squares, rmse

RNG = np.random.default_rng(0)
Y, DRAWS = RNG.normal(size=(50, 2)), RNG.normal(size=(3, 4, 50, 2))


def formula_rmse(y, yhat):
    return np.sqrt(np.mean((y - yhat) ** 2))


def formula_nrmse(y, yhat):
    return 100 * formula_rmse(y, yhat) / np.std(y)


def formula_fit(y, yhat):
    return 100 * (1 - np.linalg.norm(y - yhat) / np.linalg.norm(y - y.mean()))


MEASURES = [(rmse, formula_rmse), (nrmse, formula_nrmse), (fit_percent, formula_fit)]


@pytest.mark.parametrize(("measure", "formula"), MEASURES)
def test_formula_of_every_draw_and_output(measure, formula):
    y = Y.copy()
    y[7, 0] = y[[0, 49], 1] = np.nan
    value = measure(y, DRAWS)
    assert value.shape == (3, 4, 2)
    for output in range(2):
        seen = ~np.isnan(y[:, output])
        assert value[2, 1, output] == pytest.approx(formula(y[seen, output], DRAWS[2, 1, seen, output]))
        assert_allclose(measure(y[:, output], DRAWS[..., output]), value[..., output])


def test_one_prediction_gives_a_number():
    assert rmse(Y[:, 0], DRAWS[0, 0, :, 0]).shape == () and isinstance(rmse([1.0, 2.0], [1, 1]), float)


def test_perfect_and_mean_predictions():
    assert (rmse(Y[:, 0], Y[:, 0]), nrmse(Y[:, 0], Y[:, 0]), fit_percent(Y[:, 0], Y[:, 0])) == (0, 0, 100)
    assert fit_percent(Y[:, 0], np.full(50, Y[:, 0].mean())) == pytest.approx(0)


def test_degenerate_records():
    assert np.isnan(rmse([np.nan, np.nan], [1.0, 2.0]))
    assert np.isnan(rmse([1.0, 2.0], [np.nan, 2.0]))
    assert nrmse([1.0, 1.0], [1.0, 2.0]) == np.inf and np.isnan(nrmse([1.0, 1.0], [1.0, 1.0]))


@pytest.mark.parametrize("time", ["time", "y_time"])
@pytest.mark.parametrize("label_measured", [False, True])
def test_labels(time, label_measured):
    dims = ("chain", "draw", time, "output")
    predicted = xr.DataArray(DRAWS, dims=dims, coords={time: np.arange(50) / 10, "output": ["a", "b"]})
    measured = xr.DataArray(Y.T, dims=("output", "time"), coords={"output": ["a", "b"]}) if label_measured else Y
    for measure, _ in MEASURES:
        value = measure(measured, predicted)
        assert value.dims == ("chain", "draw", "output") and value["output"].values.tolist() == ["a", "b"]
        assert_allclose(value, measure(Y, DRAWS))
    if label_measured:
        assert_allclose(rmse(measured, predicted.transpose(time, ...)), rmse(Y, DRAWS).transpose(0, 1, 2))
        assert_allclose(rmse(measured, DRAWS), rmse(Y, DRAWS))
        assert_allclose(rmse(measured.sel(output="b"), predicted.sel(output="b")), rmse(Y, DRAWS)[..., 1])


@pytest.mark.parametrize(
    "start, step, shift", [(1e3, 1e-3, 1), (1e5, 1e-2, 1), (0.0, 1e-9, 1), (0.0, 1.0, 1), (1e4, 0.01, 0.1)]
)
def test_windows_that_are_shifted_by_a_part_of_a_step_are_refused(start, step, shift):
    """However late or short the record is."""
    times = start + step * np.arange(50)
    measured = labelled(Y[:, 0], "time", time=times)
    with pytest.raises(ValueError, match="predicted must be at the times of measured"):
        rmse(measured, labelled(Y[:, 0], "time", time=times + shift * step))
    rounded = labelled(Y[:, 0], "time", time=start + np.cumsum(np.full(50, step)) - step)
    assert rmse(measured, rounded) == 0


def test_times_in_single_precision_are_those_of_the_record():
    """As files may hold them."""
    times = 1000.0 + 0.01 * np.arange(50)
    measured = labelled(Y[:, 0], "time", time=times)
    assert rmse(measured, labelled(Y[:, 0], "time", time=times.astype(np.float32))) == 0
    with pytest.raises(ValueError, match="predicted must be at the times of measured"):
        rmse(measured, labelled(Y[:, 0], "time", time=(times + 0.01).astype(np.float32)))


def test_outputs_of_an_array_lie_along_the_dimension_of_their_name():
    """Also where another one, last and as long, would be taken for it."""
    predicted = np.stack([Y, Y + 1.0])  # as many draws as outputs
    for dims in (("draw", "time", "output"), ("draw", "time", "y_output"), ("draw", "time", "what")):
        array = xr.DataArray(predicted, dims=dims)
        for order in itertools.permutations(dims):
            found = rmse(Y, array.transpose(*order))
            assert set(found.dims) == {"draw", dims[2]}
            assert_allclose(found.transpose("draw", dims[2]), rmse(Y, predicted))
    with pytest.raises(ValueError, match='must have one dimension of them, called "output", but has draw, time'):
        rmse(Y, xr.DataArray(predicted[..., 0], dims=("draw", "time")))


def labelled(values, *dims, **coords):
    return xr.DataArray(values, dims=dims, coords=coords)


@pytest.mark.parametrize(
    ("measured", "predicted", "message"),
    [
        (Y[:, 0], DRAWS[..., :49, 0], r"predicted must have shape \(..., 50\) .* has \(3, 4, 49\)"),
        (Y, DRAWS[..., 0], r"predicted must have shape \(..., 50, 2\) .* has \(3, 4, 50\)"),
        (Y[0, 0], DRAWS, r"measured must have shape \(T,\) or \(T, n\), but has \(\)"),
        (Y[:, 0], labelled(DRAWS[0, ..., 0], "draw", "x"), 'predicted must have one dimension called "time"'),
        (labelled(Y[:, 0], "x"), DRAWS[..., 0], 'measured must have one dimension called "time"'),
        (Y[:, 0], labelled(DRAWS[0, :, :49, 0], "draw", "time"), "predicted must have length 50 along 'time'"),
        (labelled(Y, "time", "output"), labelled(Y[:, 0], "time"), "predicted must have the dimension 'output'"),
        (
            labelled(Y[:, 0], "time", time=np.arange(50)),
            labelled(Y[:, 0], "time", time=np.arange(50) + 1),
            "predicted must be at the times of measured",
        ),
    ],
)
def test_errors(measured, predicted, message):
    with pytest.raises(ValueError, match=message):
        rmse(measured, predicted)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_the_error_of_a_difference_allows_for_correlation(correlation):
    scores = []
    for seed in range(200):
        d = scipy.signal.lfilter([1.0], [1.0, -correlation], np.random.default_rng(seed).standard_normal(2000))
        found = difference(np.zeros(2000), 0.3 + d)
        scores.append((found.mean - 0.3) / found.error)
    assert_allclose(np.std(scores), 1.0, atol=0.15)


@pytest.mark.parametrize("count", [10, 50, 200, 1000])
@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.98])
def test_equal_series_are_seldom_told_apart_however_short_and_slow(count, correlation):
    wrong = 0
    for seed in range(200):
        d = scipy.signal.lfilter([1.0], [1.0, -correlation], np.random.default_rng(seed).standard_normal(500 + count))[500:]
        found = difference(np.zeros(count), d)
        wrong += found.known and not found.by_chance
    assert wrong <= 14  # 2.5 %, and what chance adds to that


def test_difference_leaves_out_what_was_not_measured():
    first, second = np.array([1.0, np.nan, 2.0, 1.0]), np.array([2.0, 7.0, 4.0, 1.0])
    assert difference(first, second).mean == 1.0
    assert np.isnan(difference(first[:2], second[:2]).error) and not difference(first[:2], second[:2]).known


def test_series_that_differ_by_chance_are_alike():
    rng = np.random.default_rng(0)
    squares = {"worse": 3.0 * rng.chisquare(1, 500), "a": rng.chisquare(1, 500), "b": rng.chisquare(1, 500)}
    assert alike(squares, "a") == ["b"]
    assert alike({name: values[:10] for name, values in squares.items()}, "a") is None
    assert alike({"a": squares["a"], "same": (1 + 1e-6) * squares["a"]}, "a") == ["same"]
    assert alike({"a": np.ones(100), "constant": 1.1 * np.ones(100)}, "a") is None


def test_squares_count_by_the_variance_of_their_output():
    y = np.array([[1.0, 10.0], [3.0, np.nan], [np.nan, np.nan], [2.0, 30.0]])
    squares = relative_squares(y, y + np.array([1.0, 10.0]))
    assert_allclose(squares, [1.5 + 1.0, 1.5, np.nan, 2.5])
