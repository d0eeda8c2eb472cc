"""The ABC nested sampler where particles are few or in pieces: shares that are exact at every threshold."""

from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:pytensor", "ignore:.*:DeprecationWarning:pymc")
#: Distance that no parameter comes below, as of noise in the record.
FLOOR = 0.1


def distance(observed: np.ndarray, simulated: np.ndarray) -> float:
    return float(np.hypot(simulated[0] - observed[0], FLOOR))


def run(models: dict[str, pm.Model], seed: int) -> Any:
    start = sid.Thresholds(epsilon=3.0)
    return sid.sample_abc_ns(models, 500, distance=distance, thresholds=start, random_seed=seed, progressbar=False)


def straight(idle: int) -> pm.Model:
    """An output that depends on one of the parameters only."""
    with pm.Model() as model:
        a = pm.Uniform("a", 0.0, 3.0)
        if idle:
            pm.Uniform("c", 0.0, 1.0, shape=idle)
        pm.Simulator("y", lambda rng, a, size=None: np.atleast_1d(a), a, observed=[1.0])
    return model


def test_idle_parameters_do_not_cost_a_model_its_probability() -> None:
    """Two models of one law, one with nine parameters more: it died within two rounds, and nothing said so."""
    for seed in range(4):
        found = run({"short": straight(0), "long": straight(9)}, seed)
        rounds = found["populations"].to_dataset()
        probability, error = float(rounds["model_probability"][1]), float(rounds["model_probability_se"][1])
        assert abs(probability - 0.5) < max(4 * error, 0.08) and error < 0.1 and not found.attrs["doubt"], seed
        threshold = float(rounds["threshold"][-1])
        exact = 0.5 * 2 * np.sqrt(threshold**2 - FLOOR**2) / 3.0
        assert np.all(np.abs(rounds["model_mass"] - exact) < 5 * rounds["model_mass_se"]), seed
        assert np.abs(found["long/posterior"]["c"].values.std(axis=1) - 12**-0.5).max() < 0.04


def test_two_regions_keep_their_shares() -> None:
    """a exp(-a) takes a value twice: a third of the runs lost or distorted one of the regions, with one ellipsoid over both."""
    with pm.Model() as model:
        a = pm.Uniform("a", 0.0, 6.0)
        pm.Simulator("y", lambda rng, a, size=None: np.atleast_1d(a * np.exp(-a)), a, observed=[0.25])
    roots = np.array([0.35740296, 2.15329237])
    slopes = np.abs((1 - roots) * np.exp(-roots))
    exact = (1 / slopes[1]) / np.sum(1 / slopes)
    for seed in range(12):
        found = run({"m": model}, seed)
        share = float(np.mean(found["m/posterior"]["a"].values > 1))
        assert abs(share - exact) < 0.1 and not found.attrs["doubt"], (seed, share)
        rounds = found["populations"].to_dataset()
        width = 2 * np.sqrt(float(rounds["threshold"][-1]) ** 2 - FLOOR**2)
        mass, error = float(rounds["model_mass"][0]), float(rounds["model_mass_se"][0])
        assert abs(mass - width * np.sum(1 / slopes) / 6) < 5 * error, seed
        assert error < 0.1 * mass
