"""Posterior draws weighted by another likelihood: by how much the posterior would move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
import xarray as xr

from pm_sysid.idata import elements

#: A posterior mean that moves by less than this many standard deviations stays where it is for every purpose.
FINE, VISIBLE = 0.1, 0.3
#: The same for a standard deviation, as a factor either way.
STRETCHED, WIDE = 1.1, 1.25
#: Below this share of effective draws reweighting says only that the posteriors differ; above the last, that they do not. A
#: shift by as much as the standard deviation would leave a third of the draws.
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
    stretch : dict of str to float
        What the posterior standard deviation of each parameter is multiplied by.
    ess : float
        Effective share of the draws after reweighting; small where the two posteriors hardly overlap.
    """

    change: np.ndarray
    shift: dict[str, float]
    stretch: dict[str, float]
    ess: float

    @property
    def worst(self) -> tuple[str, float]:
        """Parameter that moves most, and by how many standard deviations."""
        return max(self.shift.items(), key=lambda item: abs(item[1]))

    @property
    def most_stretched(self) -> tuple[str, float]:
        """Parameter whose standard deviation changes most, and what it is multiplied by."""
        return max(self.stretch.items(), key=lambda item: abs(np.log(max(item[1], 1e-300))))

    @property
    def level(self) -> str:
        """``"good"``, ``"look"`` or ``"bad"``."""
        size, factor = abs(self.worst[1]), np.exp(abs(np.log(max(self.most_stretched[1], 1e-300))))
        if self.ess < HALF or not size < VISIBLE or not factor < WIDE:
            return "bad"
        return "look" if size >= FINE or factor >= STRETCHED or self.ess < MOST else "good"

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
        wider, factor = self.most_stretched
        if not 1 / STRETCHED < factor < STRETCHED:
            shape = f", and the standard deviation of {wider} be {factor:.2g} times as large{shape}"
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


def reweighted(draws: xr.Dataset, change: np.ndarray) -> tuple[np.ndarray, dict[str, float], dict[str, float], float]:
    """Change of the log-likelihood, of means and standard deviations, and effective share, for draws (chain, draw)."""
    weights = np.exp(change - scipy.special.logsumexp(change))
    ess = float(1.0 / (len(weights) * np.sum(weights**2)))
    return change, shift_of(draws, weights), stretch_of(draws, weights), ess


def shift_of(draws: xr.Dataset, weights: np.ndarray) -> dict[str, float]:
    """Change of the mean by weighting, in standard deviations, by parameter."""
    names, flat = _flat(draws, len(weights))
    std = np.maximum(flat.std(axis=0), np.finfo(float).tiny)
    moved = (weights @ flat - flat.mean(axis=0)) / std
    return dict(zip(names, map(float, moved), strict=True))


def stretch_of(draws: xr.Dataset, weights: np.ndarray) -> dict[str, float]:
    """What weighting multiplies the standard deviation by, by parameter; one where there is none."""
    names, flat = _flat(draws, len(weights))
    std = flat.std(axis=0)
    weighted = np.sqrt(weights @ (flat - weights @ flat) ** 2)
    return dict(zip(names, map(float, np.where(std > 0, weighted / np.where(std > 0, std, 1.0), 1.0)), strict=True))


def standardised(draws: xr.Dataset, count: int) -> tuple[list[str], np.ndarray]:
    """Names of the parameters, and their draws (count, P) less the mean, in standard deviations; zero where they are equal."""
    names, flat = _flat(draws, count)
    std = flat.std(axis=0)
    return names, (flat - flat.mean(axis=0)) / np.where(std > 0, std, 1.0)


def _flat(draws: xr.Dataset, count: int) -> tuple[list[str], np.ndarray]:
    """Names of the parameters, and their draws (count, P)."""
    values = elements(draws)
    flat = values.transpose("chain", "draw", "parameter").to_numpy().reshape(count, -1)
    return list(map(str, values["parameter"].to_numpy())), flat
