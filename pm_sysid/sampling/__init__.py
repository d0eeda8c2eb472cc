"""Samplers: sequential Monte Carlo, Data Annealing, and ABC nested sampling."""
