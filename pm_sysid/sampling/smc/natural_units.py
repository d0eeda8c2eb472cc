"""Positive unknowns as they are, in place of their logarithms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pm_sysid.likelihood.target import Progress, Target

#: A number that is nearly zero.
TINY = 1e-300


def positive_unknowns(target: Target) -> np.ndarray:
    """Which coordinates (d,) of unconstrained space are logarithms."""
    model, point = target.coordinates.model, target.coordinates.point
    transforms = {model.rvs_to_values[rv]: model.rvs_to_transforms[rv] for rv in model.free_RVs}
    return np.concatenate(
        [np.full(np.size(point[v.name]), getattr(transforms[v], "name", "") == "log") for v in model.value_vars]
    )


@dataclass(frozen=True)
class NaturalUnits:
    """A target in whose coordinates some unknowns (``logs``) are what they are, and not their logarithms.

    The logarithm of a damping that may be zero has a long tail and curved ridges with other logarithms; in natural units the
    posterior ends at an edge.
    """

    target: Target
    logs: np.ndarray

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.target, name)

    def natural(self, x: np.ndarray) -> np.ndarray:
        """Points (N, d) of unconstrained space in these units."""
        return np.where(self.logs, np.exp(np.where(self.logs, x, 0.0)), x)

    def unconstrained(self, z: np.ndarray) -> np.ndarray:
        """Points (N, d) in unconstrained space; of impossible ones those with the other sign."""
        return np.where(self.logs, np.log(np.maximum(np.abs(z), TINY)), z)

    def log_prior(self, z: np.ndarray) -> np.ndarray:
        """Log prior density (N,) in these units."""
        x = self.unconstrained(z)
        possible = np.all((z > 0) | ~self.logs, axis=1)
        return np.where(possible, self.target.log_prior(x) - x[:, self.logs].sum(axis=1), -np.inf)

    def log_likelihood(self, z: np.ndarray) -> np.ndarray:
        """Log-likelihood (N,)."""
        return self.target.log_likelihood(self.unconstrained(z))

    def start(self, z: np.ndarray, edges: Any, **options: Any) -> tuple[np.ndarray, Progress]:
        """As :meth:`Target.start`."""
        return self.target.start(self.unconstrained(z), edges, **options)

    def advance(self, z: np.ndarray, edges: Any, progress: Progress) -> tuple[np.ndarray, Progress]:
        """As :meth:`Target.advance`."""
        return self.target.advance(self.unconstrained(z), edges, progress)
