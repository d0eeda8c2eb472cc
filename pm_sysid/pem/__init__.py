"""Prediction-error minimisation: predictors, objectives, fits, and what follows from a fit."""
