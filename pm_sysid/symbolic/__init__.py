"""The functions of a user as graphs of scalar operations, their derivatives, and their LaTeX."""
