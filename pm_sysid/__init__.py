"""Bayesian identification of nonlinear dynamic systems: a probabilistic ODE filter as a PyMC likelihood."""

import logging as _logging

from pm_sysid import environment as _environment  # noqa: F401  (imports PyTensor, before anything else does)

# isort: split
from pm_sysid import datasets, models
from pm_sysid.inference.sample import sample
from pm_sysid.likelihood.filter_steps import set_substeps, settle_substeps, substeps_attrs
from pm_sysid.likelihood.mode import find_mode
from pm_sysid.likelihood.ode_filter import ODEFilter, set_data
from pm_sysid.likelihood.ode_simulator import ODESimulator
from pm_sysid.likelihood.target import Target
from pm_sysid.pem.analysis import compare_fits
from pm_sysid.pem.fit import fit_pem
from pm_sysid.pem.predictors import ExtendedKalman, ProbabilisticKalman, UnscentedKalman
from pm_sysid.pem.result import PEMResult
from pm_sysid.pem.settings import InitialState, Optimiser
from pm_sysid.plots.abc import plot_abc, plot_restoring_force
from pm_sysid.plots.annealing import plot_annealing
from pm_sysid.plots.calibration import plot_calibration
from pm_sysid.plots.correlation import plot_correlation
from pm_sysid.plots.fit import plot_fit
from pm_sysid.plots.ibis import plot_ibis
from pm_sysid.plots.pem import plot_compare, plot_resid
from pm_sysid.plots.predictions import plot_prediction
from pm_sysid.plots.prior_posterior import plot_prior_posterior
from pm_sysid.plots.record import plot_record
from pm_sysid.plots.residuals import plot_residuals
from pm_sysid.plots.states import plot_states
from pm_sysid.posterior.correlation import correlation, covariance
from pm_sysid.posterior.information_criteria import dic, waic
from pm_sysid.posterior.initial_state_check import check_initial_state
from pm_sysid.posterior.innovations import innovations
from pm_sysid.posterior.predict import predict
from pm_sysid.posterior.states import sample_states, smooth
from pm_sysid.posterior.substep_check import check_substeps
from pm_sysid.records.csv_mat import TextFormat
from pm_sysid.records.metrics import fit_percent, nmse, nrmse, rmse
from pm_sysid.records.preprocessing import detrend, resample
from pm_sysid.records.residual_tests import residual_tests
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence import sum_rewrite as _sum_rewrite  # noqa: F401  (registers itself)
from pm_sysid.recurrence import vectorise as _vectorise  # noqa: F401  (registers how graphs are vectorised)
from pm_sysid.recurrence.jax import register as _jax  # noqa: F401  (imports the JAX backend when it is asked for)
from pm_sysid.recurrence.llvm import batch as _batch  # noqa: F401  (registers how batches are compiled)
from pm_sysid.recurrence.llvm import single as _single  # noqa: F401  (registers how recurrences are compiled)
from pm_sysid.recurrence.threads import set_threads
from pm_sysid.reports.compare import compare_models
from pm_sysid.reports.report import report
from pm_sysid.reports.validation import Validation
from pm_sysid.sampling.abc.nested_sampling import sample_abc_ns
from pm_sysid.sampling.abc.settings import EllipsoidProposals, Thresholds
from pm_sysid.sampling.annealing.step import DataAnnealing
from pm_sysid.sampling.executors import Execution
from pm_sysid.sampling.smc.ibis import IBIS
from pm_sysid.sampling.smc.moves import Moves
from pm_sysid.sampling.smc.sample_ibis import extend, load_checkpoint, sample_ibis
from pm_sysid.sampling.smc.stages import log_evidence, stages
from pm_sysid.sbc.calibrate import calibrate
from pm_sysid.sbc.uniformity_tests import calibration_tests
from pm_sysid.solve.options import EK0, EK1
from pm_sysid.solve.simulate import simulate
from pm_sysid.solve.substeps import SubstepWarning
from pm_sysid.symbolic.system import System

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
    "EllipsoidProposals",
    "Execution",
    "ExtendedKalman",
    "InitialState",
    "Moves",
    "ODEFilter",
    "ODESimulator",
    "Optimiser",
    "PEMResult",
    "ProbabilisticKalman",
    "SubstepWarning",
    "System",
    "Target",
    "TextFormat",
    "Thresholds",
    "TimeSeries",
    "UnscentedKalman",
    "Validation",
    "calibrate",
    "calibration_tests",
    "check_initial_state",
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
    "sample",
    "sample_abc_ns",
    "sample_ibis",
    "sample_states",
    "set_data",
    "set_substeps",
    "set_threads",
    "settle_substeps",
    "simulate",
    "smooth",
    "stages",
    "substeps_attrs",
    "waic",
]


def __dir__() -> list[str]:
    """Public names, and those of the module itself; not the packages behind them."""
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__spec__", "__version__"])
