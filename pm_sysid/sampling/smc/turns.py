"""Where the turn of an angle begins and ends: away from the posterior, so that no mode is cut in two.

Evidence and draws are right wherever it begins; proposals fit a mode that is whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pm_sysid.likelihood.circular import middle_of_turn
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.sampling.smc.missed_modes import log_posterior, prior
from pm_sysid.sampling.smc.resampling import effective_size, normalised

#: Prior draws that tell roughly where the posterior is, and how many of them count at least.
DRAWS, EFFECTIVE = 1000, 20.0


def turns_by_prior(target: Any) -> np.ndarray:
    """Centres (d,) of turns for draws of the posterior, by draws of the prior weighted by a likelihood that leaves some.

    They follow from the model alone, so that all workers, and a run that goes on later, have the same ones.
    """
    coordinates: Coordinates = target.coordinates
    if not coordinates.circular.any():
        return coordinates.centre
    rng = np.random.default_rng(0)
    draws = prior(coordinates, DRAWS, rng)
    if draws is None:
        return coordinates.centre
    log_weights = log_posterior(target, draws) - np.asarray(target.log_prior(draws))
    log_weights[np.isnan(log_weights)] = -np.inf
    if not np.isfinite(log_weights).any():
        return coordinates.centre
    while effective_size(log_weights) < EFFECTIVE and np.ptp(log_weights[np.isfinite(log_weights)]) > 0:
        log_weights = log_weights / 2
    return turns_about(draws, normalised(log_weights), coordinates.circular)


def turns_about(x: np.ndarray, weights: np.ndarray, circular: np.ndarray) -> np.ndarray:
    """Centres (d,) of turns that begin where weighted draws (N, d) are fewest."""
    columns = [middle_of_turn(column, weights) if angle else 0.0 for column, angle in zip(x.T, circular, strict=True)]
    return np.array(columns)
