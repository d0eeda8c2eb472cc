"""Restoring forces of a posterior: what is drawn, what is left out, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import matplotlib
import numpy as np
import pytensor.tensor as pt
import pytest
import xarray as xr

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from pm_sysid.plots.abc import plot_restoring_force

X = np.linspace(-2, 2, 21)
K = np.random.default_rng(0).normal(3.0, 0.2, (2, 50))
POSTERIOR = xr.Dataset({"k": (("chain", "draw"), K), "w": (("chain", "draw", "i"), np.stack([K, K], axis=-1))})


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def median(force: Callable[..., Any], **options: Any) -> np.ndarray:
    axes = plot_restoring_force(POSTERIOR, force, X, **options)
    return next(np.asarray(line.get_ydata()) for line in axes.lines if line.get_label() == "median")


def test_the_median_is_that_of_the_draws() -> None:
    np.testing.assert_allclose(median(lambda x, p: p.k * x), np.median(K) * X, atol=1e-12)
    np.testing.assert_allclose(median(lambda x, p: p.w[1] * x**3), np.median(K) * X**3, atol=1e-12)


def test_a_function_that_changes_its_argument_changes_that_of_no_other_draw() -> None:
    def force(x: np.ndarray, p: Any) -> np.ndarray:
        x *= p.k
        return x

    np.testing.assert_allclose(median(force), np.median(K) * X, atol=1e-12)


def test_draws_without_a_force_are_left_out_and_it_is_said() -> None:
    least = np.quantile(K, 0.1)

    def force(x: np.ndarray, p: Any) -> np.ndarray:
        return p.k * x if p.k > least else np.where(x > 0, np.nan, p.k * x)

    with pytest.warns(UserWarning, match="10 of 100 forces are not finite everywhere and left out"):
        found = median(force)
    np.testing.assert_allclose(found, np.median(K[K > least]) * X, atol=1e-12)
    with pytest.raises(ValueError, match="finite throughout for none of the draws"):
        median(lambda x, p: p.k * x + np.nan)


@pytest.mark.parametrize(
    ("force", "kind", "message"),
    [
        (lambda x, p: p.kk * x, ValueError, r"reads p\.kk, but idata has k, w"),
        (lambda x, p: p.k * pt.tanh(x), TypeError, r"PyTensor expression; give one of NumPy functions"),
        (lambda x, p: p.k, ValueError, r"shape \(\) for x of \(21,\)"),
        (lambda x, p: x.nothing, AttributeError, "nothing"),
    ],
)
def test_forces_that_are_none_are_refused(force: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        median(force)
