"""Axes that figures share: units of time."""

import numpy as np
import pytest
from matplotlib import pyplot
from numpy.testing import assert_allclose

from pm_sysid.plots.axes import frequency_axis, time_axis, unit_of_time


@pytest.mark.parametrize(
    ("last", "unit", "symbol", "frequency"),
    [(30 * 86400.0, 86400.0, "d", "1/d"), (4 * 3600.0, 3600.0, "h", "1/h"), (2.0, 1.0, "s", "Hz"), (5e-4, 1e-3, "ms", "kHz")],
)
def test_times_are_told_in_a_unit_that_suits_the_record(last, unit, symbol, frequency):
    t = np.linspace(0.0, last, 50)
    assert unit_of_time(t) == (unit, symbol)
    figure, (over_time, over_frequency) = pyplot.subplots(1, 2)
    over_time.plot(t, t)
    over_frequency.plot(1 / t[1:], t[1:])
    time_axis(over_time, t)
    frequency_axis(over_frequency, t)
    figure.canvas.draw()
    assert over_time.get_xlabel() == f"time ({symbol})" and over_frequency.get_xlabel() == f"frequency ({frequency})"
    shown = [float(label.get_text().replace("\N{MINUS SIGN}", "-")) for label in over_time.get_xticklabels()]
    assert_allclose(shown, over_time.get_xticks() / unit, atol=1e-9)
    assert len(shown) > 2 and max(len(f"{number:g}") for number in shown) < 6
    assert over_time.lines[0].get_xdata()[-1] == last  # the data stay in seconds
    pyplot.close(figure)
