"""Whether draws of any sampler lack a mode of the posterior: searches from draws of the prior, which know nothing of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.arguments import count
from pm_sysid.idata import points_of, posterior_of
from pm_sysid.inference.ruled_out import with_finer_steps
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_steps import twice
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.target import Target
from pm_sysid.posterior.reweighting import VISIBLE, WIDE
from pm_sysid.sampling.smc.evidence import Estimate, bridge
from pm_sysid.sampling.smc.missed_modes import (
    FEW,
    KEPT,
    LANES,
    PART,
    Near,
    Search,
    Way,
    curvature_points,
    log_posterior,
    search,
)
from pm_sysid.sampling.smc.proposals import Mixture
from pm_sysid.sampling.smc.resampling import normalised
from pm_sysid.sampling.smc.sequential_draws import generator_of
from pm_sysid.sampling.smc.turns import turns_about
from pm_sysid.solve.substeps import MOST

#: Log posteriors that a search computes at least; for each unknown; and at how many ends there is enough for the curvature.
POINTS, EACH, ENDS = 5000, 150, 8
#: Steps and samples of all of these, of long records, and the fewest log posteriors then.
MOST_STEPS, FEW_POINTS = 500_000_000, 1000
#: Most unknowns among which searches by differences are of use.
MANY = 50
#: Draws, and draws for each unknown, below which nothing can be said.
FEWEST, PER_UNKNOWN = 100, 4
#: Draws of a proposal that tell what the draws hold, and the error of its logarithm from which on shares are not told.
PROPOSED, VAGUE = 1000, 1.0
#: Degrees of freedom of this proposal.
FREEDOM = 5.0
#: By how many standard errors the draws may hold more than is estimated, and less is called missing.
SURE = 2.0
#: A mode may have draws, and too few; and all ends are looked at for which evaluations are left.
EVERYWHERE = Way(elsewhere=False, ends=LANES)
#: Share of the posterior in other modes that is a problem.
PROBLEM = 0.05
#: Modes and numbers of each that are printed.
SHOWN, NUMBERS = 3, 6


@dataclass(frozen=True, repr=False)
class ModeCheck:
    """Outcome of :func:`check_modes`; printing it gives a verdict in words.

    Attributes
    ----------
    share : float
        Of the posterior in modes that the draws lack; 0 if none were found.
    modes : tuple of dict of str to ndarray
        Free variables of the model at these, the largest first.
    ruled_out : float
        Share of the posterior in modes far from the draws that finer filter steps have, and the model's steps rule out.
    finer_modes : tuple of dict of str to ndarray
        Where these are.
    consequence : str
        What these modes, those of finer steps too, do to a mean or a standard deviation that matters; empty if nothing.
    substeps : dict of str to int
        Filter steps a sample by which nothing more is ruled out, of each filter that has too few.
    capped : bool
        Whether these are as many as were looked at.
    searched : int
        Log posteriors that the search by the model's own steps has computed.
    unknown : str
        Why nothing can be said; empty if something can.
    """

    share: float = 0.0
    modes: tuple[Mapping[str, np.ndarray], ...] = ()
    ruled_out: float = 0.0
    finer_modes: tuple[Mapping[str, np.ndarray], ...] = ()
    consequence: str = ""
    substeps: Mapping[str, int] | None = None
    capped: bool = False
    searched: int = 0
    unknown: str = ""

    @property
    def level(self) -> Literal["good", "look", "bad"]:
        """``"good"``, ``"look"`` or ``"bad"``."""
        if max(self.share, self.ruled_out) >= PROBLEM or self.consequence:
            return "bad"
        return "look" if self.unknown or self.share or self.ruled_out else "good"

    @property
    def verdict(self) -> str:
        """What it means, in sentences."""
        if self.unknown:
            return f"Whether the posterior has modes that the draws lack is not known: {self.unknown}"
        said = []
        if self.share:
            said.append(
                f"The draws lack {_counted(self.modes)} with about {_percent(self.share)} of the posterior, near "
                f"{_places(self.modes)}: searches from draws of the prior have found this, whatever R-hat says. Use "
                "sid.sample, or a prior that rules it out if you know better."
            )
        if self.ruled_out:
            counts = " and ".join(f"{n} for {name!r}" for name, n in (self.substeps or {}).items())
            counts += " at least, with more it was not looked" if self.capped else " will do"
            said.append(
                "The filter steps rule out a part of the posterior far from the draws: finer ones have "
                f"{_counted(self.finer_modes)} with about {_percent(self.ruled_out)} of it, near "
                f"{_places(self.finer_modes)}. Call set_substeps with more steps a sample ({counts}) and sample again, "
                "or narrow the priors."
            )
        if self.consequence:
            said.append(self.consequence)
        return " ".join(said) or (
            f"Searches from draws of the prior ({self.searched} log posteriors) have found no mode that the draws lack."
        )

    def __repr__(self) -> str:
        return self.verdict


def check_modes(idata: Any, *, model: pm.Model | None = None, points: int | None = None) -> ModeCheck:
    """Look for modes of a posterior that draws lack, whichever sampler they are from.

    Chains that have all found the same one of several modes agree with each other: R-hat and effective draws are as they
    should be, and the result is wrong. This looks elsewhere: searches go uphill from draws of the prior, and the mass around
    their ends is compared with the draws that are there. It is then done once more with twice the filter steps, and with more
    where this finds something: steps that do for the draws may rule out another mode.

    :func:`sample` and :func:`sample_ibis` do the like for themselves. This is for the draws of ``pm.sample``, by NUTS, nutpie,
    Metropolis or :class:`DataAnnealing`; :func:`report` calls it for them.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws, with dims ``chain`` and ``draw``.
    model : pm.Model, optional
        Default: the model on the context stack.
    points : int, optional
        Log posteriors that a search may compute, about. Default: 5000, more where there are many unknowns, and down to 1000
        of a long record. There are two searches, or more where finer steps find something.

    Returns
    -------
    ModeCheck

    Raises
    ------
    ValueError, TypeError
        If there is no posterior of the model's variables, the log-likelihood of the model is not a series (see
        :class:`Target`), or ``points`` is no positive number.

    Notes
    -----
    The evidence that the draws stand for comes from a mixture of t distributions fitted to half of them and a bridge to the
    other half (Meng and Wong 1996, Statistica Sinica 6, 831-860); a mode counts as missing if the draws hold less than a third
    of its share, by two errors of that.

    A mode that no search comes to is not found: nothing found is no proof. Searches begin at the best draws of the prior, which
    may all lie in one basin: of two equal modes in up to fifteen unknowns the farther one was found in 20 of 20 cases, in
    twenty unknowns in 16 of 20. Nor are thin shells found, where each place holds little.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> with pm.Model() as model:  # the sign of a is not told
    ...     a = pm.Normal("a", 0.0, 2.0)
    ...     y = pm.Normal("y", a**2, 0.1, observed=np.full(3, 1.0))
    >>> draws = 1.0 + 0.03 * np.random.default_rng(0).standard_normal((2, 500))
    >>> found = sid.check_modes(xr.Dataset({"a": (("chain", "draw"), draws)}), model=model)
    >>> found.level, round(found.share, 1), round(float(found.modes[0]["a"]), 1)
    ('bad', 0.5, -1.0)
    """
    model = model_of(model)
    posterior = posterior_of(idata)
    target = Target(model)
    d = target.size
    most = _enough(model, d) if points is None else count(points, "points")
    if d > MANY:
        return ModeCheck(unknown=f"among {d} unknowns searches by differences find little (they are made up to {MANY}).")
    x, lost = _draws(target, posterior)
    if len(np.unique(x, axis=0)) < (least := max(FEWEST, PER_UNKNOWN * d)):
        of_these = f"; {lost} are at a bound, or no numbers" if lost else ""
        return ModeCheck(unknown=f"there are too few different draws (of {d} unknowns at least {least} are needed{of_these}).")
    if still := [label for label, spread in zip(target.labels, np.ptp(x, axis=0), strict=True) if spread == 0]:
        return ModeCheck(unknown=f"the draws of {still[0]} do not vary.")
    coordinates = target.coordinates
    coordinates.centre = turns_about(x, np.full(len(x), 1 / len(x)), coordinates.circular)
    x = coordinates.wrapped(x)
    rng = generator_of(x)
    held = _held(target, x, rng)
    if not held.error < VAGUE:
        return ModeCheck(unknown="what the draws hold cannot be told (too few of them, or a posterior of a difficult shape).")
    weights = np.full(len(x), held.value + SURE * held.error - np.log(len(x)))
    evaluations = int(most * target.n_samples / PART)
    found = search(target, x, weights, evaluations, rng, EVERYWHERE)
    if found is None:
        return ModeCheck(unknown="the prior cannot be drawn from; give the unknowns proper priors that can be.")
    if found.skipped and not found.missed:
        return ModeCheck(
            unknown=f"{found.skipped} places where searches ended were not looked at; give more points={2 * most}."
        )
    searched, modes = found.evaluations // target.n_samples, _modes(target, found.missed)
    share, consequence = (found.share, _consequence(target, x, found)) if modes else (0.0, "")
    if not twice(model):
        return ModeCheck(share, modes, consequence=consequence, searched=searched)
    lacking, before, enough = with_finer_steps(model, x, weights, evaluations)
    if not lacking.ruled_out or lacking.found is None:
        return ModeCheck(share, modes, consequence=consequence, searched=searched)
    known = [near.region for near in found.missed]
    new = [n for n in lacking.found.missed if not any(r.inside(n.region.point[None])[0] for r in known)]
    finer = _modes(target, new or lacking.found.missed)
    consequence = consequence or _consequence(target, x, lacking.found)
    substeps = {name: choice.substeps for name, choice in enough.items() if choice.substeps > before[name].substeps}
    capped = any(2 * choice.substeps > MOST for choice in enough.values())
    return ModeCheck(share, modes, lacking.ruled_out, finer, consequence, substeps, capped, searched)


def _draws(target: Target, posterior: xr.Dataset) -> tuple[np.ndarray, int]:
    """Draws (N, d) in unconstrained space, as many as are needed; and how many more have no place there."""
    free, total = target.coordinates.model.free_RVs, posterior.sizes["chain"] * posterior.sizes["draw"]
    rows = points_of(posterior, free, min(total, KEPT)) if total else []
    if not rows:
        return np.empty((0, target.size)), 0
    x = target.unconstrained({str(v.name): np.stack(column) for v, column in zip(free, zip(*rows, strict=True), strict=True)})
    finite = np.isfinite(x).all(axis=1)
    return np.asarray(x[finite]), int(np.sum(~finite))


def _enough(model: pm.Model, d: int) -> int:
    """Log posteriors with which searches among d unknowns find something; of a long record, as many as there is time for."""
    wanted = max(POINTS, EACH * (d + 1) + ENDS * (curvature_points(d) + FEW))
    return min(wanted, max(FEW_POINTS, MOST_STEPS // PosteriorFunctions(model).work()))


def _held(target: Target, x: np.ndarray, rng: np.random.Generator) -> Estimate:
    """Integral of prior times likelihood that draws (N, d) stand for."""
    order = rng.permutation(len(x))
    fitted, others = x[order[::2]], x[order[1::2]][:PROPOSED]
    proposal = Mixture.fit(fitted, np.full(len(fitted), 1 / len(fitted)), FREEDOM, rng)
    drawn = proposal.draw(PROPOSED, rng)
    ratios = [log_posterior(target, z) - proposal.logpdf(z) for z in (others, drawn)]
    finite = ratios[0] > -np.inf  # a draw that a filter with other steps has made
    return bridge(ratios[0][finite], ratios[1], np.arange(int(finite.sum())))


def _modes(target: Target, missed: Sequence[Near]) -> tuple[dict[str, np.ndarray], ...]:
    """Free variables at modes, the largest first."""
    free = {str(v.name) for v in target.coordinates.model.free_RVs}
    points = [near.region.point for near in sorted(missed, key=lambda near: -near.log_mass)]
    rows = [target.constrained(point[None]) for point in points]
    return tuple({n: v[0] for n, v in row.items() if n in free} for row in rows)


def _consequence(target: Target, draws: np.ndarray, found: Search) -> str:
    """What modes that draws (N, d) lack do to a mean or a standard deviation, in words; empty where that is little."""
    weights = normalised(found.log_weights)
    mean, own, own_sd = weights @ found.x, draws.mean(axis=0), draws.std(axis=0)
    stretch = np.sqrt(weights @ (found.x - mean) ** 2) / own_sd
    shift = np.abs(mean - own) / own_sd
    if stretch[k := int(np.argmax(stretch))] > WIDE:
        return f"With these the standard deviation of {target.labels[k]} is {stretch[k]:.2g} times that of the draws."
    if shift[k := int(np.argmax(shift))] > VISIBLE:
        return f"With these the mean of {target.labels[k]} is {shift[k]:.2g} standard deviations of the draws from theirs."
    return ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _counted(modes: Sequence[Any]) -> str:
    return "a place" if len(modes) == 1 else f"{len(modes)} places"


def _places(modes: Sequence[Mapping[str, np.ndarray]]) -> str:
    """Where modes are, in words."""
    said = []
    for mode in modes[:SHOWN]:
        entries = [(name, i, value[i]) for name, value in mode.items() for i in np.ndindex(np.shape(value))]
        numbers = [f"{name}{list(i) if i else ''} = {number:.4g}" for name, i, number in entries]
        said.append(", ".join(numbers[:NUMBERS]) + (", ..." if len(numbers) > NUMBERS else ""))
    return "; ".join(said) + ("; ..." if len(modes) > SHOWN else "")
