"""Samplers that take the data in one sample after the other."""
