"""Random structures for the fuzzing of the filter, and a plain NumPy filter in extended precision to compare with."""
