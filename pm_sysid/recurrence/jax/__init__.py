"""Compilation by JAX; imported when a graph is first compiled for it."""
