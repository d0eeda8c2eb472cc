"""Angles: coordinates of which PyMC takes the whole line for the circle, over and over.

The transform of a circular variable (``pm.VonMises``) leaves an angle as it is on the way to the unconstrained space, and takes
whole turns off on the way back. The density there repeats itself with every turn: its integral is infinite, and every mode has
copies that a search finds. One turn is all there is of it, and any one will do: the evidence and the distribution of the angle
are the same wherever it begins. It should begin where the posterior is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm

TURN = 2 * np.pi
#: Standard deviation of an angle of which nothing is known.
ALL_ROUND = TURN / np.sqrt(12.0)
#: By how much rounding may take an angle beyond half a turn.
ROUNDING = 1e-9
#: Angles at which a turn may begin, and the concentration of the kernel that smooths draws: about a fifth of a radian.
PLACES, CONCENTRATION = 72, 25.0
#: A density this small beside the largest is no reason to begin elsewhere than at -pi.
NOTHING = 1e-3


def circular_coordinates(model: pm.Model, point: Mapping[str, Any]) -> np.ndarray:
    """Which coordinates (d,) of unconstrained space are angles, for a model and a point of that space."""
    transforms = {model.rvs_to_values[rv]: model.rvs_to_transforms[rv] for rv in model.free_RVs}
    masks = [np.full(np.size(point[v.name]), is_circular(transforms.get(v))) for v in model.value_vars]
    return np.concatenate(masks) if masks else np.zeros(0, dtype=bool)


def is_circular(transform: Any) -> bool:
    """Whether a transform takes whole turns off; of a chain it is the last one that sees the unconstrained value."""
    chained = getattr(transform, "transform_list", None)
    return is_circular(chained[-1]) if chained else getattr(transform, "name", "") == "circular"


def same_turn(points: np.ndarray, centre: np.ndarray, circular: np.ndarray | bool) -> np.ndarray:
    """Points (..., d) with as many turns added to their angles as bring these within half a turn of a centre (d,)."""
    if not np.any(circular):
        return points
    with np.errstate(invalid="ignore"):
        turns = np.where(circular, np.round((points - centre) / TURN), 0.0)
        return points - TURN * turns


def in_other_turns(points: np.ndarray, centre: np.ndarray, circular: np.ndarray | bool) -> np.ndarray:
    """Which of points (N, d) have an angle more than half a turn from a centre (d,)."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.any(circular & (np.abs(points - centre) > TURN / 2 + ROUNDING), axis=1))


def no_wider_than_turn(covariance: np.ndarray, circular: np.ndarray) -> np.ndarray:
    """Covariance (d, d) with angles no wider than spread evenly over the circle; their correlations stay as they are.

    The curvature of a phase that hardly matters says that it spreads over many turns.
    """
    narrower = np.minimum(1.0, ALL_ROUND / np.sqrt(np.diag(covariance)))
    factor = np.where(circular, narrower, 1.0)
    return np.asarray(factor[:, None] * covariance * factor)


def middle_of_turn(angles: np.ndarray, weights: np.ndarray) -> float:
    """Middle of the turn that begins and ends where weighted angles (N,) are fewest; zero unless some are near -pi and pi."""
    places = np.linspace(-np.pi, np.pi, PLACES, endpoint=False)
    density = np.exp(CONCENTRATION * (np.cos(places[:, None] - angles) - 1)) @ weights
    if density[0] <= max(NOTHING * density.max(), density.min()):
        return 0.0
    return float(places[np.argmin(density)] + np.pi)
