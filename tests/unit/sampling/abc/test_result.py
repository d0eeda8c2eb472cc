"""Masses by fresh candidates and the probabilities of a run: what is said where they contradict each other."""

from __future__ import annotations

import pickle
import warnings

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

import pm_sysid as sid
from pm_sysid.sampling.abc.result import Masses

NAMES = ["one", "two"]


def test_probabilities_within_the_errors_are_not_doubted() -> None:
    masses = Masses(np.array([3e-4, 1e-4]), np.array([3e-5, 1e-5]))
    assert masses.against(np.array([0.75, 0.25]), NAMES) == ""
    assert masses.against(np.array([0.70, 0.30]), NAMES) == ""


def test_a_lost_part_of_a_model_is_named() -> None:
    masses = Masses(np.array([3e-4, 3e-4]), np.array([1e-5, 1e-5]))
    said = masses.against(np.array([0.95, 0.05]), NAMES)
    assert "the probability of " in said and "0.50 +- 0.01" in said and "Take more particles" in said


def test_nothing_found_again_is_said() -> None:
    nothing = Masses(np.zeros(2), np.zeros(2))
    assert "no fresh candidate" in nothing.against(np.array([1.0, 0.0]), NAMES)


def test_a_result_shows_its_models_and_stays_a_tree() -> None:
    """Copies, groups and files of it are trees as xarray has them."""
    models, shape = {}, np.array([-0.1, 0.0, 0.1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, high in (("near", 1.0), ("far<", 4.0)):
            with pm.Model() as models[name]:
                x = pm.Uniform("x", 0.0, high)
                pm.Simulator("y", lambda rng, x, size=None: x + shape, x, observed=0.5 + shape)
        found = sid.sample_abc_ns(models, 60, random_seed=0, progressbar=False, thresholds=sid.Thresholds(epsilon=50.0))
    page = found._repr_html_()
    probability = float(found["populations"]["model_probability"].sel(model="near"))
    assert f"ABC-NS: {found.attrs['stopped']} after" in page and "far&lt;" in page and f"{probability:.3f}" in page
    assert page.index("prior mass below") < page.index("xr-wrap")
    assert isinstance(found, xr.DataTree) and "prior mass below" not in found["near"]._repr_html_()
    assert found.copy(deep=True).identical(found) and pickle.loads(pickle.dumps(found)).identical(found)
    assert "prior mass below" in found.copy()._repr_html_() and az.extract(found["near"]).name == "x"
    found.attrs["doubt"] = "a < b"
    assert "in doubt: a &lt; b" in found._repr_html_()
