"""Figures of a calibration: what is drawn, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest
import xarray as xr

matplotlib.use("Agg")
from matplotlib import pyplot as plt

import pm_sysid as sid

N = 120


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def result() -> xr.DataTree:
    rng = np.random.default_rng(0)
    pit = np.stack([rng.random(N), rng.beta(0.4, 0.4, N)], axis=1)
    pit[3] = np.nan
    contraction = np.stack([np.full(N, 0.8), np.full(N, np.nan)], axis=1)
    columns = {"pit": pit, "z": rng.standard_normal((N, 2)), "contraction": contraction}
    data = {k: (("fit", "parameter"), v) for k, v in columns.items()}
    failed = np.arange(N) == 3
    coords = {"fit": np.arange(N), "parameter": ["k", "log_likelihood"]}
    return xr.DataTree.from_dict({"calibration": xr.Dataset({**data, "failed": ("fit", failed)}, coords)})


def test_ecdf_stays_in_its_band_only_if_the_ranks_are_uniform() -> None:
    fine, wrong = sid.plot_calibration(result())
    assert fine.get_title() == "k" and fine.get_ylabel() == "ECDF - uniform"
    for panel, outside in ((fine, False), (wrong, True)):
        band = panel.collections[0].get_paths()[0].vertices
        x, y = panel.lines[-1].get_data()
        assert y[-1] == pytest.approx(0) and x[0] == 0 and x[-1] == 1
        assert (np.max(np.abs(y)) > np.max(np.abs(band[:, 1]))) == outside
    fine.figure.canvas.draw()


def test_numbers_of_neighbouring_panels_do_not_touch() -> None:
    left, right = sid.plot_calibration(result())
    left.figure.canvas.draw()
    (*_, last), (first, *_) = (panel.get_xticklabels() for panel in (left, right))
    assert last.get_text() == "1.0" and first.get_text() == "0.0"
    space = first.get_window_extent().x0 - last.get_window_extent().x1
    assert space > 0.12 * left.figure.dpi  # of an inch: as wide as two digits


def test_rank_histograms_have_every_fit_that_did_not_fail() -> None:
    fine, wrong = sid.plot_calibration(result(), "rank")
    assert sum(p.get_height() for p in fine.patches if hasattr(p, "get_height") and p.get_width() < 0.5) == N - 1
    heights = [p.get_height() for p in wrong.patches if p.get_width() < 0.5]
    assert heights[0] > 2 * np.median(heights)


def test_z_scores_against_contraction() -> None:
    (panel,) = sid.plot_calibration(result(), "z")
    assert panel.get_title() == "k" and panel.get_xlabel() == "contraction"
    x, y = panel.lines[-1].get_data()
    assert len(y) == N - 1 and np.all(x == 0.8)


def test_axes_of_the_user_are_used() -> None:
    _, axes = plt.subplots(1, 2)
    found = sid.plot_calibration(result(), axes=axes)
    assert list(found) == list(axes)
    (one,) = sid.plot_calibration(result(), var_names="k", axes=plt.subplots()[1])
    assert one.get_title() == "k"


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(kind="pit"), "kind is 'pit'"),
        (dict(var_names="q"), "no numbers of 'q'"),
        (dict(result=xr.DataTree()), "group 'calibration'"),
    ],
)
def test_doors(options: dict[str, Any], text: str) -> None:
    options = {"result": result(), **options}
    with pytest.raises(ValueError, match=text):
        sid.plot_calibration(options.pop("result"), **options)
    failed = result()
    failed["calibration"]["failed"][:] = True
    with pytest.raises(ValueError, match="every fit"):
        sid.plot_calibration(failed)
