"""Shares of known modes by draws around each: what a sequential run's particles can have lost, or hold too little of.

A mode that the first samples leave little of is kept by few particles, and its share in the end is known as well as these few
tell. Where a global search has found the modes, draws around each of them, and around the particles, give the shares with an
error that does not depend on the way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.likelihood.target import Target
from pm_sysid.sampling.smc.evidence import Estimate, importance
from pm_sysid.sampling.smc.missed_modes import MATTERS, log_posterior
from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import normalised, systematic
from pm_sysid.sampling.smc.seen_draws import Seen, nothing

#: Draws of a proposal for each draw that is wanted, most of them, and rounds of proposals.
EACH, MOST, ROUNDS = 8, 40_000, 4
#: Draws that proposals are fitted to, beside the particles.
FITTED = 2000
#: Part of the proposals that begin at the modes, each mode's least part of these, and how much wider than Laplace's they are.
AT_MODES, LEAST, WIDER = 0.5, 0.02, 1.3
#: Degrees of freedom of the proposals, and effective share of their draws with which they are good enough.
FREEDOM, EFFECTIVE = 5.0, 0.1
#: Particles at which the proposals must not be too thin, and how many times denser the posterior may be there.
LOOKED, REACH = 2000, 20.0
#: Standard deviations that a mean, and share that a standard deviation may be off without the draws being replaced; standard
#: errors that they may be off, if each of so many draws counts.
OFF, ERRORS, EACH_OF = 0.1, 3.0, 4


class AcrossModes(NamedTuple):
    """Weighted draws around modes and particles.

    Attributes
    ----------
    x : array, shape (M, d)
    log_weights : array, shape (M,)
    region : array of int, shape (M,)
        Component of the proposals that each most likely came from.
    estimate : Estimate
        Of the normalising constant of prior times likelihood.
    """

    x: np.ndarray
    log_weights: np.ndarray
    region: np.ndarray
    estimate: Estimate

    def moved(self, draws: np.ndarray) -> bool:
        """Whether means or standard deviations of draws (N, d) are others than those of the weighted draws."""
        weights = normalised(self.log_weights)
        mean = weights @ self.x
        sd = np.sqrt(weights @ (self.x - mean) ** 2)
        limit = max(OFF, ERRORS * np.sqrt(EACH_OF / len(draws))) * sd
        return bool(np.any((np.abs(draws.mean(axis=0) - mean) > limit) | (np.abs(draws.std(axis=0) - sd) > limit)))

    def resampled(self, chains: int, draws: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (chains, draws, d) that count alike, of each region as many as it holds; no two chains share a draw."""
        order, total = rng.permutation(len(self.x)), normalised(self.log_weights)
        of_region = np.bincount(self.region, total)
        found = []
        for own in np.array_split(order, chains):
            own = own[np.argsort(self.region[own], kind="stable")]
            # The regions' shares by all draws: those of one chain's alone would vary more.
            here = np.bincount(self.region[own], total[own], len(of_region))
            weights = total[own] * (of_region / np.where(here > 0, here, 1.0))[self.region[own]]
            picked = own[systematic(weights / weights.sum(), draws, rng)]
            found.append(self.x[rng.permutation(picked)])
        return np.array(found)


def draws_near(draws: np.ndarray, points: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Number of draws (N, d) near each mode: nearer than all but one in a thousand of its Laplace approximation."""
    limit, counts = scipy.stats.chi2.ppf(0.999, draws.shape[1]), []
    for point, covariance in zip(points, covariances, strict=True):
        z = np.linalg.solve(np.linalg.cholesky(covariance), (draws - point).T)
        counts.append(int(np.sum(np.sum(z**2, axis=0) < limit)))
    return np.array(counts)


def across_modes(
    target: Target,
    draws: np.ndarray,
    points: np.ndarray,
    covariances: np.ndarray,
    shares: np.ndarray,
    rng: np.random.Generator,
    seen: Seen | None = None,
    count: int | None = None,
) -> AcrossModes | None:
    """Weighted draws from a mixture about modes, if some are known, and particles; None where they do not fit the posterior.

    Parameters
    ----------
    target : Target
    draws : array, shape (N, d)
        Particles of a sequential run, in unconstrained space.
    points, covariances : arrays, shapes (modes, d) and (modes, d, d)
        Modes and the inverses of the negative Hessians there.
    shares : array, shape (modes,)
        Of the posterior, roughly.
    rng : numpy.random.Generator
    seen : Seen, optional
        Draws of the prior: particles may have lost a part that these have seen.
    count : int, optional
        Draws of each of up to four proposals. Default: eight for each particle, at most 40,000.
    """
    count = min(EACH * len(draws), MOST) if count is None else count
    at_modes = AT_MODES if len(points) else 0.0
    x, seen = draws, nothing(draws.shape[1]) if seen is None else seen
    some = draws[rng.permutation(len(draws))[:LOOKED]]
    density_at_draws = log_posterior(target, some)
    about = np.maximum(shares, LEAST)
    roots = WIDER * np.linalg.cholesky(covariances)
    for _ in range(ROUNDS):
        if len(seen.z):
            x = np.concatenate([draws, seen.picked(seen.tempered, min(len(draws), FITTED), rng)])
        around = Mixture.fit(x, np.full(len(x), 1 / len(x)), FREEDOM, rng)
        proposal = Mixture(
            np.concatenate([at_modes * about / about.sum(), (1 - at_modes) * around.shares]),
            np.concatenate([points, around.means]),
            np.concatenate([roots, around.roots]),
            FREEDOM,
        )
        z = proposal.draw(count, rng)
        density = log_posterior(target, z)
        seen = seen.with_draws(z, density, proposal.logpdf)
        latest, estimate = importance(density - proposal.logpdf(z)), importance(seen.log_weights)
        if not np.isfinite(latest.value):
            return None
        # Even weights may be those of a part: what the particles hold must be within reach, too.
        reached = np.max(density_at_draws - seen.mixture(some)) <= estimate.value + np.log(REACH)
        if latest.believable and latest.efficiency >= EFFECTIVE and estimate.believable and reached:
            found = seen.evidence(latest)
            if proposal.components > 1:  # there may be other modes, and those that hold less are not looked for
                found = found._replace(error=float(np.hypot(found.error, MATTERS)))
            return AcrossModes(seen.z, seen.log_weights, proposal.nearest(seen.z), found)
    return None
