"""Particles on their way through a record, as arrays that can be resampled, stored and taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pm_sysid.target import Progress


class Cloud(NamedTuple):
    """Particles (N, d) with their log prior, log-likelihood up to a sample, that of the next sample, and their filters."""

    x: np.ndarray
    prior: np.ndarray
    likelihood: np.ndarray
    next: np.ndarray
    progress: Progress

    def take(self, index: np.ndarray) -> Cloud:
        """Particles by rows."""
        x, prior, likelihood, following = (v[index] for v in self[:4])
        return Cloud(x, prior, likelihood, following, self.progress.take(index))

    def join(self, *others: Cloud) -> Cloud:
        """These particles, then others."""
        x, prior, likelihood, following = (
            np.concatenate(parts) for parts in zip(*(c[:4] for c in (self, *others)), strict=True)
        )
        progress = self.progress
        for other in others:
            progress = progress.join(other.progress)
        return Cloud(x, prior, likelihood, following, progress)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        filters = {
            f"{name}_{i}": array
            for name, arrays in zip(Progress._fields, self.progress, strict=True)
            for i, array in enumerate(arrays)
        }
        return {"x": self.x, "prior": self.prior, "likelihood": self.likelihood, "next": self.next, **filters}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Cloud:
        """Particles from what :meth:`arrays` gave."""
        filters = sum(name.startswith("params_") for name in arrays)
        progress = Progress(*(tuple(arrays[f"{name}_{i}"] for i in range(filters)) for name in Progress._fields))
        return cls(arrays["x"], arrays["prior"], arrays["likelihood"], arrays["next"], progress)
