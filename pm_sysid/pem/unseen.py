"""Unknowns of which a record says nothing, alone or together with others."""

from __future__ import annotations

from typing import Any

import numpy as np

from pm_sysid.pem.objective import Objective, SquaredErrors

#: Combinations of unknowns with this share of the largest sensitivity, or less, are not seen in the record.
UNSEEN = 1e-7


def sizes(x: np.ndarray) -> np.ndarray:
    """What counts as a change of each unknown: its own size."""
    return np.where(x == 0.0, 1.0, np.abs(x))


def unseen_unknowns(target: Objective, evaluation: Any, information: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Unknowns that enter a combination of which the record says nothing."""
    result = np.zeros(free.size, dtype=bool)
    where = np.flatnonzero(free)
    sensitivity = np.nan_to_num(np.sqrt(np.diag(information))[where], posinf=0.0)  # one that has run off to where nothing holds
    top = np.sqrt(abs(evaluation.value)) if isinstance(target, SquaredErrors) else 1.0
    blind = ~(sensitivity > 1e-12 * max(top, sensitivity.max(initial=0.0)))
    result[where[blind]] = True
    where, sensitivity = where[~blind], sensitivity[~blind]
    if not where.size:
        return result
    if isinstance(target, SquaredErrors):
        # Singular values of the Jacobian itself: those of its square would be lost at half the digits.
        columns = evaluation.jacobian[:, where]
        _, values, vectors = np.linalg.svd(columns / np.linalg.norm(columns, axis=0), full_matrices=False)
    else:
        correlation = information[np.ix_(where, where)] / np.outer(sensitivity, sensitivity)
        _, squares, vectors = np.linalg.svd(correlation, hermitian=True)
        values = np.sqrt(np.maximum(squares, 0.0))
    for value, vector in zip(values, vectors, strict=True):
        if value <= UNSEEN * values[0]:
            result[where[np.abs(vector) > 0.05]] = True
    return result
