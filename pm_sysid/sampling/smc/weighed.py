"""Sequential draws beside weighted draws: of the prior, of proposals about the sequential ones, and about known modes.

Where a part of the posterior is behind a narrow neck, or holds little of what the first samples favour, few particles tell how
much it holds. Weighted draws do not depend on the way: where they fit the posterior and hold other shares, they take the place
of the sequential ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pm_sysid.idata import group
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.prior_draws import constrained, draw_prior_and_mass
from pm_sysid.likelihood.target import Target
from pm_sysid.sampling.smc.across_modes import across_modes, draws_near
from pm_sysid.sampling.smc.evidence import Estimate
from pm_sysid.sampling.smc.natural_units import NaturalUnits
from pm_sysid.sampling.smc.proposals import FEW_UNKNOWNS
from pm_sysid.sampling.smc.seen_draws import FROM_PRIOR, of_prior
from pm_sysid.sampling.smc.stages import final, found_to_fit, log_evidence, replace_evidence, stages, widen_evidence
from pm_sysid.sampling.smc.turns import turns_about

#: Draws of the prior for each of a proposal, and fewest that tell the share of the prior that potentials leave.
OF_PRIOR, OF_MASS = 4, 4000
#: Standard errors by which two estimates of the evidence may differ by chance.
CHANCE = 2.0
#: Draws whose values are computed at once.
AT_ONCE = 1000


class KnownModes(NamedTuple):
    """Modes that a search has found: points (modes, d), covariances (modes, d, d) and rough shares (modes,)."""

    points: np.ndarray
    covariances: np.ndarray
    shares: np.ndarray


class Weighed(NamedTuple):
    """What weighted draws have changed, in words; if they do not fit, the known modes that hold no sequential draw."""

    said: tuple[str, ...] = ()
    empty: tuple[int, ...] = ()


def weighed(
    idata: xr.DataTree, target: Target, random_seed: Any, modes: KnownModes | None = None, count: int | None = None
) -> Weighed:
    """Let draws and evidence of a sequential run be those of weighted draws where these say more.

    Parameters
    ----------
    idata : xarray.DataTree
        Result of a sequential run; it is changed.
    target : Target
    random_seed : int or numpy.random.Generator
    modes : KnownModes, optional
        Without modes nothing is done where there are many unknowns, or the record is too long for draws of the prior: there
        would be nothing new.
    count : int, optional
        Draws of each proposal (see :func:`across_modes`), and a quarter of those of the prior at most.
    """
    if modes is None and target.size > FEW_UNKNOWNS:
        return Weighed()
    posterior, rng, model = group(idata, "posterior"), np.random.default_rng(random_seed), target.coordinates.model
    chains, draws, d = posterior.sizes["chain"], posterior.sizes["draw"], target.size
    values = {v.name: posterior[v.name].values for v in model.free_RVs}
    x = target.unconstrained({name: v.reshape(chains * draws, *v.shape[2:]) for name, v in values.items()})
    if not np.isfinite(x).all():  # at a bound of an unknown, where rounding has taken it, is no place
        return Weighed()
    # No turn of an angle may begin within a mode.
    coordinates = target.coordinates
    coordinates.centre = turns_about(x, np.full(len(x), 1 / len(x)), coordinates.circular)
    x = coordinates.wrapped(x)
    points, covariances, shares = modes or KnownModes(np.empty((0, d)), np.empty((0, d, d)), np.empty(0))
    points = coordinates.wrapped(points)
    (seen,) = of_prior([NaturalUnits(target, np.zeros(d, dtype=bool))], rng, FROM_PRIOR if count is None else OF_PRIOR * count)
    if modes is None and not len(seen.z):
        return Weighed()
    found = across_modes(target, x, points, covariances, shares, rng, seen, count)
    if found is None:
        return Weighed(empty=tuple(np.flatnonzero(draws_near(x, points, covariances) == 0)))
    moved = found.moved(x) or found.lacking or found.moved_in(partial(_natural, coordinates), x, rng)
    estimate = found.estimate
    if constrained(coordinates):  # the evidence is that of the prior that is left
        mass = draw_prior_and_mass(coordinates, max(len(x), OF_MASS), rng)[1]
        estimate = estimate._replace(value=estimate.value - mass.log, error=float(np.hypot(estimate.error, mass.error)))
    if estimate.value >= log_evidence(idata).value - _chance(idata, estimate):
        found_to_fit(idata, estimate.pareto_k)
    elif modes is None:  # weighted draws that say less have left out a part themselves
        moved = False
    if modes is None and not moved and _same(idata, estimate):
        return Weighed()
    apart = float(stages(idata).attrs.get("chains_sd", 0.0))
    said = with_evidence(idata, estimate)
    if modes is None:  # where one chain has lost its way, there may be more that no draw has seen
        widen_evidence(idata, apart / np.sqrt(chains))
    if moved:
        held = coordinates.dataset(found.resampled(chains, draws, rng), ["chain", "draw"])
        idata["posterior"] = xr.DataTree(held.assign_attrs(posterior.attrs))
        where = "around the modes" if modes else "by weights"
        said.append(
            f"the draws are taken {where}, since those of the sequential run hold other shares or tails of the posterior"
        )
    return Weighed(tuple(said))


def _natural(coordinates: Coordinates, x: np.ndarray) -> np.ndarray:
    """Points (N, d) of unconstrained space as the values of the model's free variables, a column for each element.

    A tail of values is none of their logarithms.
    """
    free, parts = {rv.name for rv in coordinates.model.free_RVs}, list[np.ndarray]()
    for begin in range(0, len(x), AT_ONCE):  # deterministic variables come along, and may be long
        values = coordinates.constrained(x[begin : begin + AT_ONCE])
        some = len(x[begin : begin + AT_ONCE])
        parts.append(np.concatenate([v.reshape(some, -1) for name, v in values.items() if name in free], axis=1))
    return np.concatenate(parts).astype(float)


def with_evidence(idata: xr.DataTree, estimate: Estimate) -> list[str]:
    """Give draws the log evidence of weighted draws, where it is the better one, and say so where it is larger.

    These draws reach what sequential ones have lost: they say more, or the same with less error. Where they say less, they
    have left out a part themselves, and the difference is an error.
    """
    known = log_evidence(idata)
    more, chance = estimate.value - known.value, _chance(idata, estimate)
    if more > chance or (more >= -chance and estimate.error < known.error):
        replace_evidence(idata, estimate.value, estimate.error)
        return (
            [f"the log evidence is that of weighted draws; the sequential run had {known.value:.2f}"] if more > chance else []
        )
    widen_evidence(idata, abs(more))
    return []


def _same(idata: xr.DataTree, estimate: Estimate) -> bool:
    """Whether two estimates of the evidence differ by chance alone."""
    return abs(estimate.value - log_evidence(idata).value) <= _chance(idata, estimate)


def _chance(idata: xr.DataTree, estimate: Estimate) -> float:
    """By how much an estimate and that of a sequential run, by its own weights, may differ by chance."""
    last = final(stages(idata))
    by_weights = float(np.sqrt(np.mean(last["log_evidence_se"].values ** 2) / last.sizes["chain"]))
    return CHANCE * float(np.hypot(estimate.error, by_weights))
