"""Figures: records, fits, predictions, residuals, prior and posterior, correlations, states, chains. Needs matplotlib."""
