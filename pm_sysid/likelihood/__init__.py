"""A record and a system inside a PyMC model, and a PyMC model as functions of many particles."""
