"""What a record has said about parameters beyond their priors, whatever their units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
import xarray as xr

from pm_sysid.idata import elements

#: Correlation of two parameters in the prior above which this ties them together, and their combinations are not looked at.
TIED = 0.95


class Learned(NamedTuple):
    """How posterior draws differ from the prior's, in normal scores.

    A parameter's score by the prior is the normal number of the same probability: standard normal where the record says
    nothing, for every prior, whatever its unit and however heavy its tails.

    Attributes
    ----------
    names : list of str
    spread : ndarray, shape (d,)
        Standard deviation of scores, over that of the prior's; NaN where there is no prior.
    beyond : ndarray, shape (d,)
        Share of the prior's draws beyond the posterior's median, on the side where there are fewer.
    combined : ndarray, shape (d, d)
        The largest such spread of a combination of two parameters; NaN where the prior ties them together.
    correlation : ndarray, shape (d, d)
        Of the posterior's own normal scores, which is that of its ranks: -1 for two factors of a known product.
    prior_draws : int
    """

    names: list[str]
    spread: np.ndarray
    beyond: np.ndarray
    combined: np.ndarray
    correlation: np.ndarray
    prior_draws: int


def learned(posterior: xr.Dataset, prior: xr.Dataset | None, names: Sequence[str]) -> Learned:
    """Compare the draws of scalar parameters with those of their prior; ``prior`` may lack some, or be None."""
    draws = elements(posterior, names)
    labels, rows = list(map(str, draws["parameter"].to_numpy())), _rows(draws)
    d = len(labels)
    found = Learned(labels, np.full(d, np.nan), np.full(d, np.nan), np.full((d, d), np.nan), _rank_correlation(rows), 0)
    shared = [] if prior is None else [n for n in names if n in prior]
    if prior is None or not shared:
        return found
    before = elements(prior, shared)
    places = {str(n): j for j, n in enumerate(before["parameter"].to_numpy())}
    both = [i for i, label in enumerate(labels) if label in places]
    drawn = _rows(before)[:, [places[labels[i]] for i in both]]
    reference = np.sort(drawn, axis=0)
    after, first = prior_scores(rows[:, both], reference), prior_scores(drawn, reference)
    width = np.sqrt(np.diag(_covariance(first)))
    square = np.ix_(both, both)
    found.spread[both] = np.sqrt(np.diag(_covariance(after))) / width
    found.combined[square] = _largest(_covariance(after / width), _covariance(first / width))
    below = np.mean(reference <= np.median(rows[:, both], axis=0), axis=0)
    found.beyond[both] = np.minimum(below, 1 - below)
    return found._replace(prior_draws=len(reference))


def prior_scores(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Normal numbers of the same probability as values (n, d), by sorted draws (m, d); equal draws count half.

    Examples
    --------
    >>> prior_scores(np.array([[2.0], [1e9]]), np.array([[1.0], [2.0], [3.0]])).round(2).tolist()
    [[0.0], [1.15]]
    """
    m, share = len(reference), np.empty(values.shape)
    for j, known in enumerate(reference.T):
        ranks = np.searchsorted(known, values[:, j], "left") + np.searchsorted(known, values[:, j], "right")
        share[:, j] = (ranks / 2 + 0.5) / (m + 1)
    return np.asarray(scipy.stats.norm.ppf(share))


def _rows(draws: xr.DataArray) -> np.ndarray:
    return np.asarray(draws.values.reshape(-1, draws.sizes["parameter"]))


def _covariance(rows: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(axis=0)
    return np.asarray(centred.T @ centred / len(rows))


def _rank_correlation(rows: np.ndarray) -> np.ndarray:
    """Correlation of normal scores by their own ranks (van der Waerden); NaN for a parameter that does not vary."""
    scores = scipy.stats.norm.ppf((scipy.stats.rankdata(rows, axis=0) - 0.5) / len(rows))
    covariance = _covariance(scores)
    std = np.sqrt(np.diag(covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariance / np.outer(std, std))


def _largest(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Largest ratio of standard deviations over combinations of each two variables, from covariances (d, d)."""
    v, r, c = np.diag(after), before, after
    with np.errstate(invalid="ignore", divide="ignore"):
        # Eigenvalues of the 2 x 2 covariance after in units of that before, whose variances are one.
        left = 1 - r**2
        half = (v[:, None] + v - 2 * r * c) / left / 2
        determinant = (np.outer(v, v) - c**2) / left
        largest = np.sqrt(half + np.sqrt(np.maximum(half**2 - determinant, 0.0)))
    return np.where(np.abs(r) < TIED, largest, np.nan)
