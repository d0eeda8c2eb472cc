"""Posterior draws weighted by another likelihood: by how much the posterior would move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
import xarray as xr

from pm_sysid.idata import elements

#: A posterior mean that moves by less than this many standard deviations stays where it is for every purpose.
FINE, VISIBLE = 0.1, 0.5
#: Below this share of effective draws reweighting says only that the posteriors differ; above the other, that they do not. In
#: between, a shift by as much as the standard deviation would leave a third: less than half is more than can be seen.
FEW, HALF, MOST = 0.1, 0.5, 0.8


@dataclass(frozen=True, repr=False)
class Reweighted:
    """What weighting posterior draws by another likelihood does to them.

    Attributes
    ----------
    change : ndarray, shape (draws,)
        By how much the log-likelihood of each posterior draw changes.
    shift : dict of str to float
        By how many posterior standard deviations the posterior mean of each parameter moves.
    ess : float
        Effective share of the draws after reweighting; small where the two posteriors hardly overlap.
    """

    change: np.ndarray
    shift: dict[str, float]
    ess: float

    @property
    def worst(self) -> tuple[str, float]:
        """Parameter that moves most, and by how many standard deviations."""
        return max(self.shift.items(), key=lambda item: abs(item[1]))

    @property
    def level(self) -> str:
        """``"good"``, ``"look"`` or ``"bad"``."""
        size = abs(self.worst[1])
        if self.ess < HALF or not size < VISIBLE:
            return "bad"
        return "look" if size >= FINE or self.ess < MOST else "good"

    def said(self, instead: str, cause: str, remedy: str) -> str:
        """What it means, in a sentence: with what ``instead`` the posterior would move, by which ``cause``."""
        effective = f"of 100 draws {100 * self.ess:.0f} would still count"
        if self.ess < FEW:
            return f"{instead} the posterior would be another one ({effective}): {cause} biases it. {remedy}"
        name, shift = self.worst
        moved = f"{instead} the mean of {name} would move by {abs(shift):.2g} posterior standard deviations"
        if self.level == "good":
            return f"{moved}, all others by less: {cause} does not matter here."
        shape = f", and the posterior have another shape ({effective})" if self.ess < MOST else ""
        seen = "biases the posterior" if self.level == "bad" else "can be seen"
        return f"{moved}{shape}: {cause} {seen}. {remedy}"

    @property
    def details(self) -> str:
        """The numbers, for people."""
        shifts = ", ".join(f"{name} {shift:+.2g}" for name, shift in self.shift.items())
        return (
            f"  log-likelihood changes by {self.change.mean():+.3g} ± {self.change.std():.2g} over the draws\n"
            f"  shift in posterior standard deviations: {shifts}"
        )


def reweighted(draws: xr.Dataset, change: np.ndarray) -> tuple[np.ndarray, dict[str, float], float]:
    """Change of the log-likelihood, shift of the means and effective share, for draws (chain, draw)."""
    weights = np.exp(change - scipy.special.logsumexp(change))
    return change, shift_of(draws, weights), float(1.0 / (len(weights) * np.sum(weights**2)))


def shift_of(draws: xr.Dataset, weights: np.ndarray) -> dict[str, float]:
    """Change of the mean by weighting, in standard deviations, by parameter."""
    values = elements(draws)
    flat = values.transpose("chain", "draw", "parameter").to_numpy().reshape(len(weights), -1)
    std = np.maximum(flat.std(axis=0), np.finfo(float).tiny)
    moved = (weights @ flat - flat.mean(axis=0)) / std
    return dict(zip(map(str, values["parameter"].to_numpy()), map(float, moved), strict=True))
