"""IBIS: sequential Monte Carlo that takes in the samples of a record one after the other."""
