"""Measured records: times, inputs, outputs; how they are read, prepared, and compared with runs."""
