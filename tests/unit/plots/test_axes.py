"""Axes that figures share: units of time."""

import pickle

import numpy as np
import pytest
from matplotlib import pyplot
from numpy.testing import assert_allclose

import pm_sysid as sid
from pm_sysid.plots.axes import time_axis, unit_of_time


@pytest.mark.parametrize(
    ("first", "last", "unit", "symbol"),
    [
        (0.0, 30 * 86400.0, 86400.0, "d"),
        (0.0, 4 * 3600.0, 3600.0, "h"),
        (1.7e9, 1.7e9 + 4 * 3600.0, 1.0, "s"),  # a date and time as seconds: hours would be numbers of six digits
        (0.0, 2.0, 1.0, "s"),
        (0.0, 5e-4, 1e-3, "ms"),
        (3000.0, 3000.005, 1.0, "s"),
        (7.0, 7.0, 1.0, "s"),
    ],
)
def test_times_are_told_in_a_unit_that_suits_the_record(first, last, unit, symbol):
    t = np.linspace(first, last, 50)
    assert unit_of_time(t) == (unit, symbol)
    figure, (ours, theirs) = pyplot.subplots(1, 2)
    for ax, given in ((ours, None), (theirs, theirs)):
        ax.plot(t, t)
        time_axis(ax, t, given)
    figure.canvas.draw()
    assert ours.get_xlabel() == f"time ({symbol})" and theirs.get_xlabel() == "time (s)"
    if unit != 1.0:
        shown = [float(label.get_text().replace("\N{MINUS SIGN}", "-")) for label in ours.get_xticklabels()]
        assert_allclose(shown, ours.get_xticks() / unit, atol=1e-9)
        assert len(shown) > 2 and len(set(shown)) == len(shown)
    assert ours.lines[0].get_xdata()[-1] == last  # the data stay in seconds
    assert pickle.loads(pickle.dumps(figure)).axes[0].get_xlabel() == ours.get_xlabel()
    pyplot.close(figure)


def test_nothing_is_in_seconds():
    assert unit_of_time(np.empty(0)) == (1.0, "s")


def test_predictions_side_by_side_have_the_unit_of_one():
    t = 3600.0 * np.arange(400)
    record = sid.TimeSeries(t, None, np.sin(t / 1e5))
    two = sid.plot_prediction(record, {"a": record.y[None], "b": record.y[None]})
    assert two[-1].get_xlabel() == "time (d)" == sid.plot_prediction(record, record.y[None])[-1].get_xlabel()
    figure = two[0].figure
    figure.canvas.draw()
    assert max(float(label.get_text()) for label in two[-1].get_xticklabels()) < 20
    pyplot.close("all")
