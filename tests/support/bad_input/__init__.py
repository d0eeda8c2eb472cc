"""Calls of the public functions that work, by topic: what nonsense is put into, one argument at a time."""
