"""Masses by fresh candidates and the probabilities of a run: what is said where they contradict each other."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid
from pm_sysid.sampling.abc.population import Population, initial_proposals
from pm_sysid.sampling.abc.result import Masses, RunMasses, result, row
from pm_sysid.sampling.abc.unit_cube import Cube
from support.tiny_abc import OPTIONS, models

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:pytensor", "ignore:.*:DeprecationWarning:pymc")

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


def known(**changes: np.ndarray) -> Masses:
    """Masses of two models that nothing speaks against, but for some changes."""
    mass, error = np.array([3e-4, 1e-4]), np.array([3e-6, 1e-6])
    fields = dict(value=mass, error=error, run=RunMasses(mass, error), pareto_k=np.full(2, 0.3), lost=np.zeros(2))
    return Masses(**(fields | changes))  # type: ignore[arg-type]


def test_what_is_known_is_not_doubted() -> None:
    assert known().of_models(NAMES) == ""
    # few steps of weights have any Pareto shape, which matters only where it costs something
    assert known(pareto_k=np.array([2.0, 0.3])).of_models(NAMES) == ""


def test_masses_of_two_ways_are_compared() -> None:
    """Of one model the probability is 1 by both ways, whatever a run has lost."""
    lost = known(run=RunMasses(np.array([2e-4, 1e-4]), np.array([3e-6, 1e-6])))
    assert "the prior mass of 'one' below the last threshold is 0.0002 by the particles and 0.0003" in lost.of_models(NAMES)
    assert lost.total_error[0] == pytest.approx(1e-4) and lost.total_error[1] == pytest.approx(1e-6)


def test_heavy_weights_are_said() -> None:
    said = known(error=np.array([9e-5, 1e-6]), pareto_k=np.array([0.9, 0.3])).of_models(NAMES)
    assert "hangs on few heavy candidates (Pareto k 0.90)" in said and "'one'" in said


def test_no_hits_are_an_upper_limit() -> None:
    """A model whose mass may be a tenth of all is not known to have none; one that died at a thousandth is."""
    none = np.array([3e-4, 0.0])
    run = RunMasses(none, none)
    alive = known(value=none, run=run, error=np.array([3e-6, 5e-5]))
    assert "no fresh candidate of 'two'" in alive.of_models(NAMES) and "0.17 of all" in alive.of_models(NAMES)
    assert known(value=none, run=run, error=np.array([3e-6, 3e-7]), lost=np.array([0.0, 1e-3])).of_models(NAMES) == ""
    assert "may hold 0.30" in known(value=none, run=run, error=np.array([3e-6, 9e-5]), lost=np.array([0.0, 0.3])).of_models(
        NAMES
    )


def test_a_model_that_died_has_an_upper_limit_for_its_mass() -> None:
    found = sid.sample_abc_ns(models(), 200, **OPTIONS)
    rounds = found["populations"].to_dataset()
    assert "low" not in found and not found.attrs["doubt"]
    mass, error = rounds["model_mass"].values, rounds["model_mass_se"].values
    assert mass[1] == 0 and 0 < error[1] < 0.05 * mass[0] and np.all(rounds["model_probability_se"] < 0.05)


def test_few_effective_particles_are_said() -> None:
    """One round of the prior, and one heavy particle: what is left of the run is not what its number of draws says."""
    light = Population(np.zeros(500, dtype=int), np.full((500, 1), 0.5), np.ones(500), np.zeros(500), np.zeros(500), 2.0)
    heavy = replace(light, log_prior=np.where(np.arange(500) == 0, 9.0, 0.0))
    with pm.Model() as model:
        pm.Uniform("x", 0.0, 1.0)
    for population, doubted in ((light, False), (heavy, True)):
        history = [row(population, initial_proposals([1], np.ones(1), np.zeros(1)), 0.5, 500, 1.0, 1)]
        masses = Masses(np.ones(1), np.full(1, 0.01))
        found = result({"m": model}, [Cube(model)], population, history, "converged", 1, masses, 500)
        assert ("a few heavy particles hold the posterior" in found.attrs["doubt"]) == doubted
