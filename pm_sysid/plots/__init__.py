"""Figures: predictions against the record, residual analysis, prior against posterior, states. Needs matplotlib."""

from pm_sysid.plots.fit import plot_fit
from pm_sysid.plots.parameters import plot_prior_posterior
from pm_sysid.plots.residuals import plot_residuals
from pm_sysid.plots.sequential import plot_ibis
from pm_sysid.plots.states import plot_states

__all__ = ["plot_fit", "plot_ibis", "plot_prior_posterior", "plot_residuals", "plot_states"]
