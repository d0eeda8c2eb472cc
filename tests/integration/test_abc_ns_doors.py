"""What the ABC nested sampler refuses, how it stops, and its figures."""

from typing import Any

import matplotlib
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pm_sysid as sid

matplotlib.use("Agg")
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:pytensor", "ignore:.*:DeprecationWarning:pymc")
QUIET: dict[str, Any] = dict(random_seed=1, progressbar=False)


def simple(observed: Any = 0.5) -> pm.Model:
    with pm.Model() as model:
        x = pm.Uniform("x", 0.0, 1.0)
        pm.Simulator("y", lambda rng, x, size=None: np.atleast_1d(x), x, observed=np.atleast_1d(observed))
    return model


def distance(observed: np.ndarray, simulated: np.ndarray) -> float:
    return float(np.abs(observed - simulated).max())


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (sid.Thresholds, {"epsilon": 0.0}, "epsilon is 0.0; give a positive distance"),
        (sid.Thresholds, {"alpha0": 1.0}, "alpha0 is 1.0; give a share"),
        (sid.Thresholds, {"alpha_min": 0}, "alpha_min is 0; give a share"),
        (sid.Thresholds, {"tolerance": 0}, "tolerance is 0"),
        (sid.Thresholds, {"patience": 0}, "patience is 0"),
        (sid.EllipsoidProposals, {"p_best": 1.0}, "p_best is 1.0; give a probability"),
        (sid.EllipsoidProposals, {"p_best": 0.6, "p_local": 0.5}, "add up to 1.1"),
        (sid.EllipsoidProposals, {"shrink": 2}, "shrink is 2; give a factor"),
        (sid.EllipsoidProposals, {"enlarge": 0.9}, "enlarge is 0.9; give a factor of at least 1"),
        (sid.Execution, {"max_simulations": -1}, "max_simulations is -1"),
        (sid.Execution, {"max_seconds": "long"}, "max_seconds is 'long'"),
        (sid.Execution, {"min_acceptance": 1}, "min_acceptance is 1; give a share"),
    ],
)
def test_settings_out_of_range_are_refused(settings: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"particles": 5}, "particles is 5; give a whole number of at least 10"),
        ({"particles": 10.5}, "particles is 10.5"),
        ({"random_seed": -1}, "random_seed is -1"),
        ({"prior": {"a": 1.0}}, "give a probability for each of the models"),
        ({"prior": {"m": 0.0}}, "give positive numbers"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sid.sample_abc_ns({"m": simple()}, **{"distance": distance, **QUIET, **options})


def test_settings_of_another_kind_are_refused() -> None:
    for name, kind in (("thresholds", "Thresholds"), ("proposals", "EllipsoidProposals"), ("execution", "Execution")):
        with pytest.raises(TypeError, match=rf"{name} is 3; give pm_sysid\.{kind}\(\.\.\.\), or None"):
            sid.sample_abc_ns({"m": simple()}, distance=distance, **{name: 3}, **QUIET)  # type: ignore[arg-type]


def test_models_that_are_none_are_refused() -> None:
    with pytest.raises(TypeError, match="models is Model; give a dict"):
        sid.sample_abc_ns(simple())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"models\['m'\] is int"):
        sid.sample_abc_ns({"m": 1})  # type: ignore[dict-item]
    for name in ("", "a/b", "populations"):
        with pytest.raises(ValueError, match="models has the name"):
            sid.sample_abc_ns({name: simple()})
    with pytest.raises(TypeError, match="executor is int"):
        sid.Execution(executor=3)  # type: ignore[arg-type]
    with pm.Model() as none:
        pm.Normal("x")
    with pytest.raises(ValueError, match=r"(?i)simulator"):
        sid.sample_abc_ns({"m": none}, **QUIET)


def test_models_of_different_data_are_refused() -> None:
    with pytest.raises(ValueError, match="different data"):
        sid.sample_abc_ns({"a": simple(0.5), "b": simple(0.6)}, distance=distance, **QUIET)


def test_a_threshold_that_nothing_reaches_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"are closer than 0\.1 to the measurement; give a larger epsilon"):
        sid.sample_abc_ns(
            {"m": simple(7.0)},
            20,
            distance=distance,
            thresholds=sid.Thresholds(epsilon=0.1),
            execution=sid.Execution(min_acceptance=0.01),
            **QUIET,
        )


def test_a_model_that_cannot_come_close_converges_at_its_best() -> None:
    idata = sid.sample_abc_ns({"m": simple(2.0)}, 50, distance=distance, thresholds=sid.Thresholds(epsilon=5.0), **QUIET)
    assert idata.attrs["stopped"] == "converged"
    assert float(idata["populations"]["threshold"][-1]) == pytest.approx(1.0, abs=0.02)
    assert float(idata["m"]["posterior"]["x"].min()) > 0.97


@pytest.mark.slow
def test_a_plateau_is_no_convergence() -> None:
    """Most of the prior is at a distance of 100, whatever the parameters, as of responses that miss the record."""

    def simulate(rng: Any, x: Any, size: Any = None) -> np.ndarray:
        inside = abs(x[0] - 0.5) < 0.02
        return np.concatenate([x, [0.0]]) if inside else np.array([0.5, 0.5, 100.0 + 1e-3 * x[1]])

    with pm.Model() as model:
        x = pm.Uniform("x", 0.0, 1.0, shape=2)
        pm.Simulator("y", simulate, x, observed=[0.5, 0.5, 0.0])
    budget = sid.Execution(max_simulations=30_000)
    idata = sid.sample_abc_ns({"m": model}, 100, distance=distance, execution=budget, **QUIET)
    rounds = idata["populations"].to_dataset()
    slow = 1 - rounds["threshold"].values[1:] / rounds["threshold"].values[:-1] < 0.005
    assert slow[1:4].all()  # a rule that looks at the threshold alone would have stopped here
    assert float(rounds["threshold"][-1]) < 0.01


def test_figures() -> None:
    from matplotlib import pyplot as plt

    near, budget = sid.Thresholds(epsilon=1.0), sid.Execution(max_simulations=500)
    idata = sid.sample_abc_ns({"m": simple()}, 50, distance=distance, thresholds=near, execution=budget, **QUIET)
    axes = sid.plot_abc(idata, share=True)
    assert axes.shape == (3,) and axes[2].get_ylabel() == "probability"
    at = np.linspace(-1.0, 1.0, 11)
    ax = sid.plot_restoring_force(idata["m"], lambda v, p: p.x * v, at, truth=0.5 * at, data=(at, 0.5 * at))
    assert {t.get_text() for t in ax.get_legend().get_texts()} >= {"median", "truth", "measured"}
    with pytest.raises(ValueError, match=r"force\(x, p\) has the shape"):
        sid.plot_restoring_force(idata["m"], lambda v, p: v[0], at)
    with pytest.raises(ValueError, match="has no group 'populations'"):
        sid.plot_abc(xr.DataTree())
    plt.close("all")
