"""Entries of vectors in a Dataset, by their labels."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pm_sysid.idata import labelled, labels

RUNS = xr.Dataset(
    {
        "z": ("time", [1.0, 2.0]),
        "a": (("time", "a_dim_0"), np.arange(6.0).reshape(2, 3)),
        "odd[name": ("time", [5.0, 6.0]),
    }
)


def test_every_entry_has_a_label_that_finds_it() -> None:
    assert labels(RUNS) == ["z", "a[0]", "a[1]", "a[2]", "odd[name"]
    np.testing.assert_array_equal(labelled(RUNS, "a[2]"), [2.0, 5.0])
    for label in labels(RUNS):
        assert labelled(RUNS, label).dims == ("time",)


def test_what_is_not_there_is_an_error() -> None:
    for label in ("b", "b[0]", "z[0]", "a[3]"):
        with pytest.raises((KeyError, ValueError, IndexError)):
            labelled(RUNS, label)
