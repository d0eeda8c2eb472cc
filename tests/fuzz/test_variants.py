"""The same numbers, stored in another way, give the same results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytensor
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import pm_sysid as sid
from support import tiny
from support.junk import SETTINGS, same, snapshot, variants

#: Numbers that 32 bits hold exactly.
T = np.arange(64) / 8
U = np.round(np.sin(3 * T) * 1024) / 1024
Y = np.round(np.random.default_rng(0).normal(size=64) * 1024) / 1024


def record(t: Any, u: Any, y: Any) -> Any:
    made = sid.TimeSeries(t, u, y)
    return snapshot([made.t, made.u, made.y, made.input_at(np.array([3]), 0.25), made.fs])


@cache
def target() -> sid.Target:
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        built = sid.Target(tiny.plain(), 1)
        built.log_likelihood(np.zeros((1, 1)))  # compiles
    return built


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "TimeSeries": (record, (T, U, Y)),
    "residual_tests": (lambda e, u: vars(sid.residual_tests(e, u, 5)), (Y, U)),
    "rmse": (lambda y, yhat: np.asarray(sid.rmse(y, yhat)), (Y, U)),
    "nrmse": (lambda y, yhat: np.asarray(sid.nrmse(y, yhat)), (Y, U)),
    "nmse": (lambda y, yhat: np.asarray(sid.nmse(y, yhat)), (Y, U)),
    "fit_percent": (lambda y, yhat: np.asarray(sid.fit_percent(y, yhat)), (Y, U)),
    "piecewise_linear": (lambda x: np.asarray(sid.models.piecewise_linear(x, 1.0, [3.0], [0.5]), dtype=float), (Y,)),
    "log_likelihood": (lambda x: target().log_likelihood(x), (Y[:, None],)),
}


def stored(array: np.ndarray) -> st.SearchStrategy[Any]:
    kept = variants(array).filter(lambda a: getattr(a, "dtype", np.dtype(float)).kind != "O")  # which is refused
    labelled = kept.map(lambda a: a.rename(dim_0="time") if isinstance(a, xr.DataArray) else a)
    return labelled | st.just(array.astype(np.float32)) | st.just(array.astype(">f4"))


@pytest.mark.parametrize("name", CASES)
@SETTINGS
@given(data=st.data())
def test_results_do_not_depend_on_how_numbers_are_stored(name: str, data: st.DataObject) -> None:
    function, plain = CASES[name]
    given_as = [data.draw(stored(array)) for array in plain]
    before = snapshot(given_as)
    assert same(snapshot(function(*given_as)), snapshot(function(*plain)))
    assert same(snapshot(given_as), before)


@pytest.mark.parametrize("name", [n for n in CASES if n != "log_likelihood"])
def test_arrays_of_objects_are_refused(name: str) -> None:
    function, plain = CASES[name]
    with pytest.raises(TypeError, match="real numbers"):
        function(*(a.astype(object) for a in plain))
