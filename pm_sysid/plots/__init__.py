"""Figures: records, fits, predictions, residuals, prior and posterior, correlations, states, chains. Needs matplotlib."""

from pm_sysid.plots.abc import plot_abc, plot_restoring_force
from pm_sysid.plots.annealing import plot_annealing
from pm_sysid.plots.bands import plot_prediction
from pm_sysid.plots.calibration import plot_calibration
from pm_sysid.plots.correlation import plot_correlation
from pm_sysid.plots.fit import plot_fit
from pm_sysid.plots.parameters import plot_prior_posterior
from pm_sysid.plots.pem import plot_compare, plot_resid
from pm_sysid.plots.record import plot_record
from pm_sysid.plots.residuals import plot_residuals
from pm_sysid.plots.sequential import plot_ibis
from pm_sysid.plots.states import plot_states

__all__ = [
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
]
