"""How a recurrence runs."""
