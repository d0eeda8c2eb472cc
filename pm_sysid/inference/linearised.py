"""What linearising about uncertain initial states and processes has done to draws, and to their evidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.filter_view import FilterView
from pm_sysid.likelihood.prior_draws import constrained
from pm_sysid.posterior.initial_state_check import (
    InitialStateCheck,
    check_initial_state,
    linearises_initial_state,
    not_checkable,
    prior_evidence,
)
from pm_sysid.posterior.process_check import check_processes
from pm_sysid.sampling.smc.stages import widen_evidence

#: How far draws of the prior put the log evidence above that of a sampler by chance in one case of twenty at most.
SURPRISE = 3.0
#: Draws where a hundred leave a shift near its limit, and standard errors by which a change of the evidence may be larger.
MANY, CHANCE = 1000, 2.0


class Judgement(NamedTuple):
    """What is linearised and what that costs, in words (empty if nothing is), and what speaks against the draws.

    What is ``unknown`` was not measured, and no error of the evidence covers it. A ``remark`` speaks against nothing, and is
    worth a reader's while.
    """

    verdict: str
    reasons: list[str]
    unknown: str = ""
    remark: str = ""


class Linearised:
    """The uncertain initial states and the processes of a filter.

    What the prior says of initial states is computed once for each number of steps.

    Parameters
    ----------
    view : FilterView
    random_seed : int
        Of the draws of the prior, and of particles.
    """

    def __init__(self, view: FilterView, random_seed: int) -> None:
        self.view, self.random_seed = view, random_seed
        self.from_prior = dict[int, float]()

    def against(self, idata: xr.DataTree, evidence: float, *, sequential: bool = True) -> Judgement:
        """Judge draws whose log evidence is known; that of sequential ones gets an error at least as large as what is found."""
        view = self.view
        if unknown := not_checkable(view):
            return Judgement("", [unknown])
        if view.problem.linearises_processes:
            return self._processes(idata, sequential)
        if not linearises_initial_state(view):
            return Judgement("", [])
        check = check_initial_state(idata, model=view.model, name=view.name)
        if check.level == "look":  # near the limit, a hundred draws do not tell on which side
            check = check_initial_state(idata, model=view.model, name=view.name, draws=MANY)
        change = abs(check.evidence) + CHANCE * check.evidence_error
        if sequential and np.isfinite(change):
            widen_evidence(idata, change)
        reasons = [check.verdict] if check.level == "bad" else []
        said = f"the initial state of {view.name!r} is marginalised linearised: {check.verdict}"
        remark = check.verdict if check.level == "look" else ""
        return Judgement(said, [*reasons, *self._ruled_out(idata, evidence, check, sequential)], remark=remark)

    def _processes(self, idata: xr.DataTree, sequential: bool) -> Judgement:
        """Judge draws by particles in the place of the linearisation about processes (and an uncertain initial state)."""
        view = self.view
        try:
            check = check_processes(idata, model=view.model, name=view.name, random_seed=self.random_seed)
        except ValueError as error:
            unknown = f"What linearising about the processes of {view.name!r} costs was not measured: {error}"
            return Judgement(unknown, [], unknown)
        if sequential:
            widen_evidence(idata, check.error)
        said = f"the filter {view.name!r} linearises about processes: {check.verdict}"
        remark = check.verdict if check.level == "look" else ""
        return Judgement(said, [check.verdict] if check.level == "bad" else [], remark=remark)

    def _ruled_out(self, idata: xr.DataTree, evidence: float, check: InitialStateCheck, sequential: bool) -> list[str]:
        """What speaks for parameters that a linearisation has ruled out: posterior draws know nothing of them."""
        view = self.view
        if len(view.model.observed_RVs) > 1 or constrained(Coordinates(view.model)):
            return []
        if (least := self.from_prior.get(view.op.substeps)) is None:  # the same for every sampler
            least = self.from_prior[view.op.substeps] = prior_evidence(view, self.random_seed)
        if not least > evidence + max(check.evidence, 0.0) + SURPRISE:
            return []
        if sequential:
            widen_evidence(idata, least - evidence)
        return [
            f"Draws of the prior alone, with initial states of their own, give a log evidence of {least:.1f}, and these draws "
            f"{evidence:.1f}: linearising about the initial state of {view.name!r} has ruled out a part of the posterior. Make "
            "the initial state a PyMC variable (x0={...}) and sample again."
        ]
