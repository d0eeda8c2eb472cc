"""Solvers on records: settings, initial states, log-likelihood graphs, free runs, and the number of substeps."""
