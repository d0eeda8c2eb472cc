"""Unknowns of which a record says nothing, alone or together with others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from pm_sysid.pem.objective import Objective, SquaredErrors

#: Combinations of unknowns with this share of the largest sensitivity, or less, are not seen in the record.
UNSEEN = 1e-7
#: Part of a combination from which on an unknown is in it: the combination may be of any size.
PART = 1e-3
#: Share of its guess below which an unknown counts as zero.
GONE = 1e-6


def sizes(x: np.ndarray) -> np.ndarray:
    """What counts as a change of each unknown: its own size."""
    return np.where(x == 0.0, 1.0, np.abs(x))


def changes(target: Objective, x: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """What counts as a change of each unknown, by which the record says something of it or nothing.

    Its own size; of one that has ended at zero, as states at rest do where there is no noise, that of its guess, or of the
    outputs. By a size of rounding errors the record would know nothing of it.
    """
    y = np.concatenate([r.output_matrix for r in target.filter.records])
    spread = float(np.nanmax(np.nanstd(y[:, np.isfinite(y).any(axis=0)], axis=0), initial=0.0)) or 1.0
    other = np.where(guess != 0, np.abs(guess), spread)
    return np.where(np.abs(x) > GONE * other, np.abs(x), other)


class Unseen(NamedTuple):
    """Marks (k,) of ``unknowns`` in combinations of which a record says nothing.

    ``given`` marks as many of them as there are such combinations: once these are given, the record tells the others, and what
    it says of unknowns that are in no combination does not depend on the numbers.
    """

    unknowns: np.ndarray
    given: np.ndarray


def unseen_unknowns(target: Objective, evaluation: Any, information: np.ndarray, free: np.ndarray) -> Unseen:
    """Unknowns marked ``free`` (k,) that enter a combination of which the record says nothing."""
    found = Unseen(np.zeros(free.size, dtype=bool), np.zeros(free.size, dtype=bool))
    where = np.flatnonzero(free)
    sensitivity = np.nan_to_num(np.sqrt(np.diag(information))[where], posinf=0.0)  # one that has run off to where nothing holds
    top = np.sqrt(abs(evaluation.value)) if isinstance(target, SquaredErrors) else 1.0
    blind = ~(sensitivity > 1e-12 * max(top, sensitivity.max(initial=0.0)))
    found.unknowns[where[blind]] = found.given[where[blind]] = True
    where, sensitivity = where[~blind], sensitivity[~blind]
    if not where.size:
        return found
    if isinstance(target, SquaredErrors):
        # Singular values of the Jacobian itself: those of its square would be lost at half the digits.
        columns = evaluation.jacobian[:, where]
        _, values, vectors = np.linalg.svd(columns / np.linalg.norm(columns, axis=0), full_matrices=False)
    else:
        correlation = information[np.ix_(where, where)] / np.outer(sensitivity, sensitivity)
        _, squares, vectors = np.linalg.svd(correlation, hermitian=True)
        values = np.sqrt(np.maximum(squares, 0.0))
    nothing = vectors[values <= UNSEEN * values[0]]
    if len(nothing):
        found.unknowns[where[(np.abs(nothing) > PART).any(axis=0)]] = True
        _, _, first = scipy.linalg.qr(nothing, mode="economic", pivoting=True)
        found.given[where[first[: len(nothing)]]] = True
    return found
