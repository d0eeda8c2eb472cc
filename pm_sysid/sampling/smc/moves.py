"""Markov moves of particles: the user's options, many independent chains at once, and steps along differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pm_sysid.arguments import among, number, shown, whole

#: Steps along differences: shortest and longest relative to the one that is best for a Gaussian, the share of steps of full
#: length, and the part of another difference.
SHORTEST, LONGEST, JUMPS, DITHER = 0.03, 1.5, 0.15, 1e-3
#: Shares of the coordinates that a step changes.
CROSSOVER = (1 / 3, 2 / 3, 1.0)


@dataclass(frozen=True)
class Moves:
    """Markov moves of the particles of :class:`IBIS` after each resampling.

    Parameters
    ----------
    kind : {"waste-free", "plain"}
        ``"waste-free"`` (Dau and Chopin 2022): few particles are resampled, and every state of their Markov chains is
        kept. ``"plain"``: all are resampled, moved ``steps`` times, and the last states are kept.
    steps : int, optional
        Length of the Markov chains. Default: 20 for waste-free moves, 3 for plain ones. Waste-free chains of the last stage,
        whose states are the draws, take two or more steps for each state where few proposals are accepted.
    freedom : float, default 3
        Degrees of freedom of the independent proposals, mixtures of multivariate t distributions that are fitted to the
        particles. With ``inf`` they are Gaussian, as in the paper of :class:`IBIS`; a Gaussian proposal can collapse on
        narrow or curved posteriors, and the acceptance does not show it.
    min_acceptance : float, default 0.15
        A stage moves as many particles as there are, by independent proposals and along differences of particles in turn
        (ter Braak and Vrugt 2008), if the acceptance of the independent proposals is below this share, or if they fit the
        posterior poorly (``pareto_k`` above 0.7, or a ``proposal_ess`` below three tenths of what a t distribution attains for
        a Gaussian).
    most_walks : int, default 60
        Such steps are repeated until the particles no longer remember where they were, at most this often.

    Raises
    ------
    ValueError, TypeError
        For options out of range.

    Notes
    -----
    Source: Dau and Chopin (2022), Journal of the Royal Statistical Society B 84, 114-148; ter Braak and Vrugt (2008),
    Statistics and Computing 18, 435-446; Vrugt et al. (2009), International Journal of Nonlinear Sciences and Numerical
    Simulation 10, 273-290; Fearnhead and Taylor (2013), Bayesian Analysis 8, 411-438.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.Moves("plain", steps=5)
    Moves(kind='plain', steps=5, freedom=3.0, min_acceptance=0.15, most_walks=60)
    >>> sid.Moves().chain_length
    20
    """

    kind: Literal["waste-free", "plain"] = "waste-free"
    steps: int | None = None
    freedom: float = 3.0
    min_acceptance: float = 0.15
    most_walks: int = 60

    def __post_init__(self) -> None:
        if not among(self.kind, ("waste-free", "plain")):
            raise ValueError(f"kind is {shown(self.kind)}; give 'waste-free' or 'plain'.")
        if self.steps is not None and not whole(self.steps, 1, 10**6):
            raise ValueError(f"steps is {shown(self.steps)}; give a positive number of Metropolis-Hastings steps.")
        if not (isinstance(self.freedom, float) and self.freedom == np.inf) and not number(self.freedom, "freedom") >= 0.01:
            raise ValueError(f"freedom is {self.freedom!r}; give positive degrees of freedom, or inf for Gaussian proposals.")
        number(self.min_acceptance, "min_acceptance", "give a share of accepted proposals")
        if not whole(self.most_walks, 1, 10**6):
            raise ValueError(f"most_walks is {shown(self.most_walks)}; give a positive number of steps.")

    @property
    def waste_free(self) -> bool:
        """Whether every state of the Markov chains is kept."""
        return self.kind == "waste-free"

    @property
    def chain_length(self) -> int:
        """``steps``, or its default for this kind."""
        return self.steps if self.steps is not None else 20 if self.waste_free else 3


class Chains(NamedTuple):
    """States of M Markov chains of length P, as rows p * M + m; where each came from; how many moves were accepted."""

    source: np.ndarray
    acceptance: float


def independent_chains(ancestors: np.ndarray, log_ratio: np.ndarray, count: int, rng: np.random.Generator) -> Chains:
    """Run independent Metropolis-Hastings chains over proposals that have all been evaluated beforehand.

    Parameters
    ----------
    ancestors : array of int, shape (M,)
        Rows of the particles the chains start from.
    log_ratio : array, shape (n + M * (P - 1),)
        Target over proposal density: of the n particles, then of the proposals, step by step.
    count : int
        Number n of particles.

    Returns
    -------
    Chains
        ``source`` holds rows of ``log_ratio``, shape (P * M,). The proposal density is part of the ratio (Eq. 25 of the
        sequential paper leaves it out).
    """
    M = len(ancestors)
    steps = (len(log_ratio) - count) // M
    state, rows, accepted = ancestors.copy(), [ancestors], 0
    for p in range(steps):
        proposal = count + p * M + np.arange(M)
        with np.errstate(invalid="ignore"):
            better = np.log(rng.random(M)) < log_ratio[proposal] - log_ratio[state]
        state = np.where(better, proposal, state)
        accepted += int(better.sum())
        rows.append(state)
    return Chains(np.concatenate(rows), accepted / max(steps * M, 1))


def autocorrelation_time(x: np.ndarray) -> float:
    """How many states of Markov chains (step, chain, d) are worth one independent draw, of the coordinate that moves least.

    By how much more the chains' means differ than those of as many independent draws would.
    """
    steps, chains, _ = x.shape
    if chains < 2:
        return 1.0
    spread = x.reshape(steps * chains, -1).var(axis=0)
    between = steps * x.mean(axis=0).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore"):
        return float(np.max(between / np.where(spread > 0, spread, np.inf), initial=1.0))


def differences(reference: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Steps (count, d) of Markov chains: differences of two rows of a reference population (N, d), of many lengths.

    The population stays as it is while the chains move, so that a step and its opposite are equally likely. A share of the
    steps has the full length of a difference, which leads from one mode to another. Most change some coordinates only: where
    a few coordinates are hardly known and others well, one length does not suit all of them.

    Notes
    -----
    Source: ter Braak and Vrugt (2008), Statistics and Computing 18, 435-446, Eq. 2, with a frozen population and random
    lengths in place of the snooker update; coordinates at random as in Vrugt et al. (2009), International Journal of Nonlinear
    Sciences and Numerical Simulation 10, 273-290.
    """
    N, d = reference.shape
    first, second, third = rng.integers(N, size=(3, count))
    changed = rng.random((count, d)) < rng.choice(CROSSOVER, size=(count, 1))
    changed[np.arange(count), rng.integers(d, size=count)] = True
    best = 2.38 / np.sqrt(2 * changed.sum(axis=1))
    length = best * np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST), count))
    length = np.where(rng.random(count) < JUMPS, 1.0, length)[:, None]
    apart = reference[first] - reference[second]
    # A little of another difference: steps are not confined to those between particles.
    aside = DITHER * rng.standard_normal((count, 1)) * (reference[first] - reference[third])
    return np.where(changed, length * (apart + aside), 0.0)


def differences_within(reference: np.ndarray, group: np.ndarray, at: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Steps (count, d) like :func:`differences`, each between two rows of the group ``at`` (count,) that its particle is in.

    A narrow mode needs steps of its own size. A step and its opposite are equally likely as long as the particle stays in its
    group, and one that leaves it must be refused.
    """
    steps = np.zeros((len(at), reference.shape[1]))
    for g in np.unique(at):
        here, members = at == g, reference[group == g]
        if len(members) > 2:
            steps[here] = differences(members, int(here.sum()), rng)
    return steps


def memory(before: np.ndarray, after: np.ndarray, group: np.ndarray) -> float:
    """Largest correlation of where particles (N, d) are with where they were, over the directions of their spread.

    ``group`` (N,) is the mode that a particle started in: how far it is from the middle of the mode counts, and not which
    mode it is in, since modes far apart have their shares from the weights.
    """
    a, b = before.copy(), after.copy()
    for g in np.unique(group):
        rows = group == g
        a[rows] -= a[rows].mean(axis=0)
        b[rows] -= b[rows].mean(axis=0)
    scale = np.sqrt(np.sum(a**2, axis=0) * np.sum(b**2, axis=0))
    along = np.abs(np.sum(a * b, axis=0)) / np.where(scale > 0, scale, 1.0)
    return float(along.max())
