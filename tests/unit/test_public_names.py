"""The public names, written out: none is lost by accident, and completion shows no others."""

from __future__ import annotations

from types import ModuleType

import pytest

import pm_sysid as sid

NAMES = """
    Correlated StudentT
    EK0 EK1 IBIS OU DataAnnealing ExtendedKalman HilbertBasis IntegratedWiener Library Matern ODEFilter ODESimulator
    PEMResult Periodic ProbabilisticKalman RandomWalk Spline SubstepWarning System
    Target TimeSeries UnscentedKalman calibrate calibration_tests check_initial_state check_intersample
    check_modes check_processes check_substeps compare_fits compare_models correlation covariance datasets detrend dic extend
    find_mode fit_pem fit_percent
    innovations
    load_checkpoint log_evidence log_likelihood_by_record models nmse nrmse plot_abc plot_annealing plot_calibration
    plot_compare_fits
    plot_correlation plot_fit plot_ibis plot_prediction plot_prior_posterior plot_record plot_resid plot_residuals
    plot_restoring_force plot_states predict report resample residual_tests rmse sample sample_abc_ns sample_ibis
    sample_states score set_data set_substeps set_threads settle_substeps simulate smooth stages substeps_attrs waic
"""
MODELS = """
    battery bouc_wen cascaded_tanks chain coupled_tanks duffing emps enzyme freeplay friction_oscillator heated_wall
    hires lugre_oscillator modal pendulum piecewise_constraints piecewise_linear piecewise_map piecewise_oscillator priors
    robertson stribeck_oscillator structural van_der_pol
"""
DATASETS = """
    Benchmark EmpsController benchmark bouc_wen cascaded_tanks emps emps_controller f16 silverbox
"""
OFFERED = pytest.mark.parametrize(
    "module, names", [(sid, NAMES), (sid.models, MODELS), (sid.datasets, DATASETS)], ids=["pm_sysid", "models", "datasets"]
)


@OFFERED
def test_the_public_names_are_still_there(module: ModuleType, names: str) -> None:
    missing = [name for name in names.split() if name not in module.__all__ or not hasattr(module, name)]
    assert not missing


@OFFERED
def test_completion_shows_public_names_only(module: ModuleType, names: str) -> None:
    shown = [name for name in dir(module) if not (name.startswith("__") and name.endswith("__"))]
    assert shown == sorted(module.__all__)


def test_the_version_is_shown() -> None:
    assert "__version__" in dir(sid) and sid.__version__
