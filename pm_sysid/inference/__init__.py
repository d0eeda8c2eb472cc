"""A posterior in one call."""
