"""The ABC nested sampler on problems with a known answer at every threshold."""

from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pm_sysid as sid

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:pytensor", "ignore:.*:DeprecationWarning:pymc")
Y, SIGMA = 1.2, 0.5
MEANS = {"near": 0.5, "far": 2.5}


def noisy(mean: float) -> pm.Model:
    """A scalar measurement with noise: prior, likelihood and evidence are normal."""

    def simulate(rng: Any, mu: Any, size: Any = None) -> np.ndarray:
        return np.atleast_1d(mu + SIGMA * rng.standard_normal())

    with pm.Model() as model:
        mu = pm.Normal("mu", mean, 1.0)
        pm.Simulator("y", simulate, mu, observed=[Y])
    return model


def distance(observed: np.ndarray, simulated: np.ndarray) -> float:
    return float(np.abs(observed - simulated)[0])


def masses(threshold: float) -> np.ndarray:
    """Prior probability of coming closer than the threshold, by model."""
    sd = np.hypot(1.0, SIGMA)
    return np.array([np.diff(stats.norm(m, sd).cdf([Y - threshold, Y + threshold]))[0] for m in MEANS.values()])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"p_best": 0.0}, {"p_best": 0.3, "shrink": 0.5}], ids=["default", "plain", "best"])
def test_model_probability_and_posterior_over_seeds(options: dict[str, Any]) -> None:
    models = {name: noisy(mean) for name, mean in MEANS.items()}
    errors, means, variances, masses_z = [], [], [], []
    for seed in range(20):
        idata = sid.sample_abc_ns(
            models,
            400,
            distance=distance,
            thresholds=sid.Thresholds(epsilon=3.0),
            proposals=sid.EllipsoidProposals(**options),
            execution=sid.Execution(max_simulations=8000),
            random_seed=seed,
            progressbar=False,
        )
        last = idata["populations"].to_dataset().isel(population=-1)
        threshold = float(last["threshold"])
        assert threshold < 0.3
        exact = masses(threshold)
        errors.append(float(last["probability"][0]) - exact[0] / exact.sum())
        masses_z.append((last["model_mass"].values - exact / 2) / last["model_mass_se"].values)
        assert not idata.attrs["doubt"]
        mu = idata["near/posterior"]["mu"].values.ravel()
        means.append(mu.mean())
        variances.append(mu.var())
    # at thresholds far below the noise the posterior is the exact one
    variance = 1 / (1 + 1 / SIGMA**2)
    mean = variance * (MEANS["near"] + Y / SIGMA**2)
    for found, exact in ((errors, 0.0), (means, mean), (variances, variance + 0.3**2 / 12 * (variance / SIGMA**2) ** 2)):
        z = (np.mean(found) - exact) / (np.std(found, ddof=1) / np.sqrt(len(found)))
        assert abs(z) < 3.5, (np.mean(found), exact, z)
    assert np.std(errors) < 0.08
    # absolute masses: unbiased, and their errors hold
    scores = np.array(masses_z)
    print("masses: mean", scores.mean(axis=0), "sd", scores.std(axis=0))
    assert np.all(np.abs(scores.mean(axis=0)) < 3.5 / np.sqrt(len(scores)) * np.maximum(scores.std(axis=0, ddof=1), 1.0))
    assert np.all(scores.std(axis=0) < 1.6)


@pytest.mark.slow
def test_volumes_of_a_known_region() -> None:
    """Deterministic simulators: the model probability is the ratio of prior masses of the regions, of any shape."""

    def model(d: int, stretch: float) -> pm.Model:
        with pm.Model() as built:
            x = pm.Uniform("x", -1.0, 1.0, shape=d)
            pm.Simulator("y", lambda rng, x, size=None: np.append(stretch * x, np.zeros(3 - len(x))), x, observed=np.zeros(3))
        return built

    models = {"line": model(1, 8.0), "solid": model(3, 1.0)}
    radius = lambda observed, simulated: float(np.linalg.norm(simulated - observed))  # noqa: E731
    settings: dict[str, Any] = dict(thresholds=sid.Thresholds(epsilon=2.0), execution=sid.Execution(max_simulations=4000))
    logs, scores = [], []
    for seed in range(10):
        idata = sid.sample_abc_ns(models, 400, distance=radius, random_seed=seed, progressbar=False, **settings)
        last = idata["populations"].to_dataset().isel(population=-1)
        r = float(last["threshold"])
        exact = (r / 8) / (4 / 3 * np.pi * r**3 / 8)
        found, error = last["model_mass"].values, last["model_mass_se"].values
        scores.append((found - np.array([r / 8, 4 / 3 * np.pi * r**3 / 8]) / 2) / error)
        p = last["probability"].values
        logs.append(np.log(p[0] / p[1]) - np.log(exact))
    z = np.mean(logs) / (np.std(logs, ddof=1) / np.sqrt(len(logs)))
    assert abs(z) < 3.5 and np.std(logs) < 0.5, (logs, z)
    absolute = np.array(scores)
    print("masses: mean", absolute.mean(axis=0), "sd", absolute.std(axis=0))
    assert np.all(np.abs(absolute.mean(axis=0)) < 3.5 / np.sqrt(10) * np.maximum(absolute.std(axis=0, ddof=1), 1.0))
    assert np.all(absolute.std(axis=0) < 1.7)


def test_constraints_and_priors_of_models_count() -> None:
    """Half of a prior is cut away: what is left is normalised, and models weigh as their priors say."""
    with pm.Model() as half:
        x = pm.Uniform("x", -1.0, 1.0)
        pm.Potential("right", pm.math.switch(x > 0, 0.0, -np.inf))
        pm.Simulator("y", lambda rng, x, size=None: np.atleast_1d(x), x, observed=[0.5])
    with pm.Model() as whole:
        x = pm.Uniform("x", -1.0, 1.0)
        pm.Simulator("y", lambda rng, x, size=None: np.atleast_1d(x), x, observed=[0.5])
    options: dict[str, Any] = dict(distance=distance, random_seed=3, progressbar=False)
    options |= dict(thresholds=sid.Thresholds(epsilon=1.0), execution=sid.Execution(max_simulations=4000))
    idata = sid.sample_abc_ns({"half": half, "whole": whole}, 1000, **options)
    # the same region in both; the cut prior has twice the density there
    assert float(idata["populations"]["probability"][-1, 0]) == pytest.approx(2 / 3, abs=0.06)
    assert float(idata["half/posterior"]["x"].min()) > 0
    idata = sid.sample_abc_ns({"half": half, "whole": whole}, 1000, prior={"half": 1.0, "whole": 4.0}, **options)
    assert float(idata["populations"]["probability"][-1, 0]) == pytest.approx(1 / 3, abs=0.06)
