"""Predictions of several models, or made in several ways, over one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from pm_sysid.arguments import among
from pm_sysid.idata import labelled, labels
from pm_sysid.plots.axes import AxesArray, Panels, between, interval, panels, probability, time_axis
from pm_sysid.plots.fit import plot_fit
from pm_sysid.records.timeseries import TimeSeries


def plot_prediction(
    record: TimeSeries,
    predictions: Any,
    *,
    output: str | None = None,
    window: tuple[float, float] | None = None,
    hdi: float = 0.94,
    axes: Panels = None,
    figsize: tuple[float, float] | None = None,
) -> AxesArray:
    """Draw bands of predictions over a measured output, one panel for each set of predictions.

    Parameters
    ----------
    record : TimeSeries
        The record, usually not the one of the fit. Of an experiment that has not been measured, only the predictions are
        drawn; of a Dataset the first variable, unless ``output`` names another.
    predictions : mapping by label, or one set of predictions
        Each as for :func:`plot_fit`, such as what :func:`predict` returns: of several models, or of one model with the
        parameters of one draw for each run and with new ones at every step.
    output, window, hdi
        As for :func:`plot_fit`.
    axes, figsize : matplotlib axes, or an array of them; (float, float); optional
        Where to draw, one for each set; or the width and height of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib axes, shape (sets,)

    Raises
    ------
    ValueError
        If there are no predictions, no such output, or shapes do not match.

    Notes
    -----
    Compare Green (2015), Figures 11-13. The band holds what varies between the runs, not the measurement noise.

    Examples
    --------
    >>> import matplotlib, numpy as np
    >>> matplotlib.use("Agg")
    >>> record = TimeSeries([0.0, 0.1, 0.2], y=[0.0, 1.0, 0.5], outputs="z")
    >>> runs = np.array([[0.1, 1.0, 0.4], [0.0, 0.9, 0.5]])
    >>> first, second = plot_prediction(record, {"viscous": runs, "Coulomb": 2 * runs})
    >>> second.get_title(loc="left")
    'Coulomb'
    """
    window, hdi = interval(window, "window"), probability(hdi, "hdi")
    several = isinstance(predictions, Mapping) and not isinstance(predictions, xr.Dataset)
    sets: dict[str, Any] = dict(predictions) if several else {"": predictions}
    if not sets:
        raise ValueError("there are no predictions to draw; give a mapping of labels to predictions.")
    if isinstance(record, TimeSeries) and record.y is None:
        record = _not_measured(record, list(sets.values()), output)
    count = len(sets)
    used = panels(axes, [(count, 1)], figsize, (6.4, 1.9 * count + 0.6), sharex=True, sharey=True).ravel()
    for panel, (label, runs) in zip(used, sets.items(), strict=True):
        plot_fit(record, runs, output=output, window=window, hdi=hdi, axes=panel)
        panel.set_title(label, loc="left", fontsize="medium")
        legend = panel.get_legend()
        if score := legend.get_title().get_text():
            panel.set_title(score, loc="right", fontsize="small")
        legend.remove()
        time_axis(panel, record.t[between(record.t, window, "window")], axes)
    style = {"fontsize": "small", "frameon": False, "handlelength": 1.2, "columnspacing": 1.2}
    used[0].legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.12), borderaxespad=0, **style)
    for panel in used[:-1]:
        panel.set_xlabel("")
    return used


def _not_measured(record: TimeSeries, predictions: Iterable[Any], output: str | None) -> TimeSeries:
    """The record with an output of which no sample is measured: the one that is asked for, or the first of the predictions."""
    data = next((one for one in predictions if isinstance(one, xr.Dataset)), None)
    names = [] if data is None else labels(data)
    if names and output is None and "[" in names[0]:
        raise ValueError(f"predictions have the outputs {', '.join(names)}; choose one by output")
    if names and output is not None and not among(output, names):
        raise ValueError(f"output must be one of {', '.join(names)}, but is {output!r}")
    array = next((str(one.name) for one in predictions if isinstance(one, xr.DataArray) and one.name), "prediction")
    name = output or (names[0] if names else array)
    unit = "" if data is None else str(labelled(data, name).attrs.get("units", ""))
    return TimeSeries(record.t, None, np.full(len(record), np.nan), outputs=name, units={name: unit} if unit else None)
