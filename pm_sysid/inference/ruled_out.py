"""What filter steps do to draws: modes that too few rule out, and what is left in the evidence where they will do."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pymc as pm
import scipy
import xarray as xr

from pm_sysid.likelihood.filter_steps import integration_error, put_steps, twice
from pm_sysid.likelihood.target import Target
from pm_sysid.sampling.smc.missed_modes import MATTERS, Search, log_posterior, search
from pm_sysid.sampling.smc.sequential_draws import generator_of, weighted_particles
from pm_sysid.sampling.smc.stages import add_to_evidence_error, stages
from pm_sysid.solve.substeps import MOST, StepChoice

#: Part of what a run has computed that one search with finer steps may compute, relative to a search of the run itself.
PART = 0.5
#: Relative change of what the draws lack, from one number of steps to the next, that is none.
SETTLED = 0.1


class Lacking(NamedTuple):
    """Share of the posterior in modes that draws do not hold: by finer steps, and by those that the draws were made with.

    ``found`` is the search with finer steps; None if it found nothing.
    """

    finer: float
    present: float
    found: Search | None = None

    @property
    def ruled_out(self) -> float:
        """The part that the present steps rule out, if it matters."""
        apart = self.finer - self.present
        return apart if apart > max(MATTERS, SETTLED * self.finer) else 0.0


def allow_for_integration(idata: xr.DataTree, model: pm.Model) -> str:
    """Let the error of the log evidence contain what the integration leaves; why it does not, in words."""
    try:
        add_to_evidence_error(idata, integration_error(idata, model))
    except KeyboardInterrupt:  # the draws are there
        return "What the integration leaves in the log evidence was not measured: interrupted."
    return ""


def short_far_from_draws(draws: xr.DataTree, model: pm.Model, take: bool = False) -> tuple[str, bool]:
    """What finer steps find far from the draws of a sequential run, in words; and whether filters have taken such steps.

    With ``take`` filters that choose their steps take what is needed, and nothing is said against them, since the draws have
    to be made again; else all keep theirs.
    """
    if not twice(model):
        return "", False
    x, log_weights = weighted_particles(draws, Target(model).coordinates)
    evaluations = int(PART * stages(draws)["evaluations"].max("stage").sum())
    try:
        lacking, before, enough = with_finer_steps(model, x, log_weights, evaluations)
    except KeyboardInterrupt:  # the draws are there
        return "Whether finer steps allow modes far from the draws was not looked at to the end: interrupted.", False
    if lacking.ruled_out and take:
        fits = {name: c for name, c in enough.items() if c.asked == "auto" and c.substeps <= MOST}
        put_steps({name: replace(c, where="far from the draws") for name, c in fits.items()}, model)
        if fits:
            return "", True
    if not lacking.finer:
        return "", False
    if not lacking.ruled_out:
        return (
            f"A search has found modes that hold about {100 * lacking.finer:.2g} % of the posterior, and that the draws lack: "
            "take more draws, or sample.",
            False,
        )
    counts = ", ".join(f"{c.substeps} steps a sample of {name!r}" for name, c in before.items())
    return (
        f"With {counts}, a part of the posterior is ruled out: finer steps allow modes far from the draws, which hold about "
        f"{100 * lacking.finer:.2g} % of it. Take more substeps, or narrow the priors.",
        False,
    )


def with_finer_steps(
    model: pm.Model, x: np.ndarray, log_weights: np.ndarray, evaluations: int
) -> tuple[Lacking, dict[str, StepChoice], dict[str, StepChoice]]:
    """What draws lack by finer steps; the steps that filters have, and keep, and those by which nothing more is ruled out.

    Steps that do for the draws may rule out other modes: an alias of an oscillation needs steps for its own frequency.
    Searches from draws of the prior therefore look once more for modes that the draws do not hold, with twice the steps, and
    where these find some, with more, until what is ruled out stays the same.

    Parameters
    ----------
    model : pm.Model
        With filters that settle with more equal steps.
    x, log_weights : arrays, shapes (N, d) and (N,)
        Draws, and weights that sum to the integral of prior times likelihood.
    evaluations : int
        Of which a search may compute a part (see :func:`~pm_sysid.sampling.smc.missed_modes.search`).
    """
    enough = twice(model)
    before = put_steps(enough, model)
    try:
        lacking = _lacking(model, x, log_weights, evaluations, before)
        while lacking.ruled_out and all(2 * c.substeps <= MOST for c in enough.values()):
            put_steps(following := twice(model), model)
            again = _lacking(model, x, log_weights, evaluations, before)
            if again.ruled_out <= (1 + SETTLED) * lacking.ruled_out:
                break
            enough, lacking = following, again
    finally:
        put_steps(before, model)
    return lacking, before, enough


def _lacking(
    model: pm.Model, x: np.ndarray, log_weights: np.ndarray, evaluations: int, before: dict[str, StepChoice]
) -> Lacking:
    """What draws lack by the steps that filters take now, and by those ``before``."""
    target = Target(model)
    found = search(target, x, log_weights, evaluations, generator_of(x).spawn(1)[0])  # other draws than the run's search had
    if found is None or not found.missed:
        return Lacking(0.0, 0.0)
    rows = np.concatenate([near.x for near in found.missed])
    weights = np.concatenate([near.log_weights for near in found.missed])
    finer = log_posterior(target, rows)
    now = put_steps(before, model)
    try:
        present = log_posterior(target, rows)
    finally:
        put_steps(now, model)
    with np.errstate(invalid="ignore"):
        change = np.exp(np.minimum(scipy.special.logsumexp(weights + present - finer) - scipy.special.logsumexp(weights), 0.0))
    return Lacking(found.share, found.share * float(change), found)
