"""The recurrence Op: a frozen scalar step run over time, its derivatives, its batch form, and the backends that run it."""
