"""Data Annealing as a step method of PyMC."""
