"""Bayesian identification of nonlinear dynamic systems: a probabilistic ODE filter as a PyMC likelihood."""

import logging as _logging

from pm_sysid import datasets, models
from pm_sysid import rewrites as _rewrites  # noqa: F401  (registers itself)
from pm_sysid.backends import batch as _batch  # noqa: F401  (registers how batches are compiled)
from pm_sysid.backends import lazy as _lazy  # noqa: F401  (imports the JAX backend when it is asked for)
from pm_sysid.backends import numba as _compiled  # noqa: F401  (registers how recurrences are compiled)
from pm_sysid.batch import set_threads
from pm_sysid.calibration import calibrate
from pm_sysid.compare import compare_models
from pm_sysid.criteria import dic, waic
from pm_sysid.innovations import innovations
from pm_sysid.likelihood import ODEFilter, set_data
from pm_sysid.metrics import fit_percent, nmse, nrmse, rmse
from pm_sysid.mode import find_mode
from pm_sysid.moments import correlation, covariance
from pm_sysid.pem.checks import compare_fits
from pm_sysid.pem.fit import fit_pem
from pm_sysid.pem.predictors import ExtendedKalman, ProbabilisticKalman, UnscentedKalman
from pm_sysid.pem.result import PEMResult
from pm_sysid.plots import (
    plot_abc,
    plot_annealing,
    plot_calibration,
    plot_compare,
    plot_correlation,
    plot_fit,
    plot_ibis,
    plot_prediction,
    plot_prior_posterior,
    plot_record,
    plot_resid,
    plot_residuals,
    plot_restoring_force,
    plot_states,
)
from pm_sysid.prediction import predict
from pm_sysid.preparing import detrend, resample
from pm_sysid.reports import report
from pm_sysid.residuals import residual_tests
from pm_sysid.samplers.abc_ns import sample_abc_ns
from pm_sysid.samplers.data_annealing import DataAnnealing
from pm_sysid.samplers.ibis import IBIS
from pm_sysid.samplers.runs import extend, load_checkpoint, sample_ibis
from pm_sysid.simulation import simulate
from pm_sysid.simulator import ODESimulator
from pm_sysid.solver import EK0, EK1
from pm_sysid.stages import log_evidence, stages
from pm_sysid.states import sample_states, smooth
from pm_sysid.substep_check import check_substeps
from pm_sysid.substeps import SubstepWarning
from pm_sysid.system import System
from pm_sysid.target import Target
from pm_sysid.timeseries import TimeSeries
from pm_sysid.uniformity import calibration_tests

_log = _logging.getLogger("pm_sysid")
if not _log.handlers:  # say what was chosen, as PyMC does, without a set-up by the user
    _log.addHandler(_logging.StreamHandler())
    _log.setLevel(_logging.INFO)
    _log.propagate = False

__version__ = "0.1.0"
__all__ = [
    "EK0",
    "EK1",
    "IBIS",
    "DataAnnealing",
    "ExtendedKalman",
    "ODEFilter",
    "ODESimulator",
    "PEMResult",
    "ProbabilisticKalman",
    "SubstepWarning",
    "System",
    "Target",
    "TimeSeries",
    "UnscentedKalman",
    "calibrate",
    "calibration_tests",
    "check_substeps",
    "compare_fits",
    "compare_models",
    "correlation",
    "covariance",
    "datasets",
    "detrend",
    "dic",
    "extend",
    "find_mode",
    "fit_pem",
    "fit_percent",
    "innovations",
    "load_checkpoint",
    "log_evidence",
    "models",
    "nmse",
    "nrmse",
    "plot_abc",
    "plot_annealing",
    "plot_calibration",
    "plot_compare",
    "plot_correlation",
    "plot_fit",
    "plot_ibis",
    "plot_prediction",
    "plot_prior_posterior",
    "plot_record",
    "plot_resid",
    "plot_residuals",
    "plot_restoring_force",
    "plot_states",
    "predict",
    "report",
    "resample",
    "residual_tests",
    "rmse",
    "sample_abc_ns",
    "sample_ibis",
    "sample_states",
    "set_data",
    "set_threads",
    "simulate",
    "smooth",
    "stages",
    "waic",
]
