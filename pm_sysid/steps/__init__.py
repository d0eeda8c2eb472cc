"""Symbolic steps: the prior, the probabilistic filter, the deterministic simulator."""
