"""The posterior of a model in one call: global start, steps that suffice, the sampler that fits, and a verdict."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import scipy
import xarray as xr

from pm_sysid.arguments import among, count, flag, shown, whole_seed
from pm_sysid.compat import SimulatorRV
from pm_sysid.compat.arviz import array_stats
from pm_sysid.compat.samplers import sample_by_steps
from pm_sysid.idata import group
from pm_sysid.inference.linearised import Linearised
from pm_sysid.inference.ruled_out import allow_for_integration
from pm_sysid.likelihood.circular import ALL_ROUND
from pm_sysid.likelihood.coordinates import check_continuous, element_labels, model_of
from pm_sysid.likelihood.filter_steps import a_quarter, enough_around, put_steps, settle_substeps, substeps_attrs
from pm_sysid.likelihood.filter_view import filter_names, filter_view
from pm_sysid.likelihood.mode import (
    FEW_AGREE,
    OTHER_SHARES,
    SECOND_MODE,
    LocalMode,
    Mode,
    farthest,
    find_mode,
    laplace_draws,
    unconstrained,
)
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.prior_draws import constrained, too_few_obey
from pm_sysid.likelihood.target import Target
from pm_sysid.posterior.innovations import coloured_output, misfit
from pm_sysid.posterior.intersample_check import MORE_LIKELY, check_intersample
from pm_sysid.progress import compiling, drawable, progress_bar
from pm_sysid.sampling.smc.algorithm import CROWD
from pm_sysid.sampling.smc.around_mode import EVEN, GOOD_PROPOSALS, HigherPoint, sample_around_mode
from pm_sysid.sampling.smc.proposals import FEW_UNKNOWNS
from pm_sysid.sampling.smc.sequential_draws import sequential_draws
from pm_sysid.sampling.smc.stages import doubt_evidence, final, log_evidence, stages
from pm_sysid.sampling.smc.weighed import KnownModes, weighed
from pm_sysid.solve.substeps import StepChoice

_log = logging.getLogger("pm_sysid")

#: Draws that tell how the record would be explained if inputs moved otherwise between the samples.
INTERSAMPLE_DRAWS = 60
#: R-hat and effective draws (of all chains together) between which draws are believed (Vehtari et al. 2021).
GOOD_RHAT, GOOD_ESS = 1.01, 400
#: R-hat and share of divergences from which on NUTS is given up.
POOR_RHAT, MANY_DIVERGENCES = 1.05, 0.01
#: Seconds after which the log says what a call is at.
PATIENCE = 20.0
#: How often sampling begins again because the posterior needs more steps.
AGAIN = 2
#: So few searches say nothing about others.
LONELY = 3
#: Points between two places of one region, nats by which none is lower than the lower place, and the chance that a draw of the
#: region lies as far off.
BETWEEN, VALLEY, OUTSIDE = 21, 2.0, 1e-3
#: Most modes that independent proposals are fitted around, and most unknowns of all of them together: each mode has proposals
#: that are wide in one unknown alone.
MOST_MODES, MOST_TOGETHER = 32, 160
#: Draws that modes without any should have had: with fewer it may be chance.
EXPECTED = 5.0
#: Acceptance that NUTS aims at, and at which it is tried again where some transitions diverged.
ACCEPTANCE, CAREFUL = 0.8, 0.97
#: Where PyTensor's files are, which warn of functions that run slowly ("Numba will use object mode ...").
COMPILER = str(Path(pytensor.__file__).parent)

type Method = Literal["independent", "nuts", "ibis"]


def sample(
    model: pm.Model | None = None,
    draws: int = 1000,
    *,
    method: Literal["auto", "independent", "nuts", "ibis"] = "auto",
    tune: int = 500,
    chains: int = 4,
    cores: int | None = None,
    start: Mapping[str, Any] | None = None,
    random_seed: int | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Draw from the posterior of a model, for who wants the posterior and nothing else.

    It composes what can be called alone: :func:`find_mode` looks for the modes from thousands of prior draws;
    :func:`settle_substeps` takes as many filter steps as the mode needs, and later the posterior. Where prior draws needed
    more, independent proposals and NUTS take what does there. From the mode and the curvature there follow the draws:

    - of a model with ODE filters and up to 20 unknowns by independent proposals, mixtures of t distributions fitted to weighted
      draws, which begin around all modes that were found. Where one of these draws is higher than all modes, the search goes on
      from there. Where the proposals fit poorly, the draws walk until they have forgotten where they were. No gradients are
      needed, all runs in batches, and there is an evidence;
    - else by NUTS. If some of its transitions diverge it begins again with shorter steps;
    - by :func:`sample_ibis` where there are constraints (potentials) that prior draws obey, no clear maximum, or several modes
      and independent proposals do not fit or cannot begin around all of them. It also takes the place of NUTS where chains do
      not mix, or mix slowly and nothing speaks against the sequential draws. The shares of several modes are checked by
      weighted draws around each of them; where the sequential draws have others, the weighted ones take their place, and so
      does their evidence.

    Where the initial state of a nonlinear system is uncertain, :func:`check_initial_state` measures what its linearised
    marginalisation costs, and where it has processes, :func:`check_processes` what linearising about these does. Every choice
    is logged, and kept in the attributes of the result with a verdict. It also says where the record contradicts the model:
    by innovations that are no noise, or by :func:`check_intersample`.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model on the context stack.
    draws : int, default 1000
        Draws of each chain.
    method : {"auto", "independent", "nuts", "ibis"}, default "auto"
        All others than ``"auto"`` keep to one sampler, whatever the modes are.
    tune : int, default 500
        Tuning steps of NUTS; the mass matrix is known from the mode, so that few are enough.
    chains, cores : int, optional
        Chains, and how many of them run at once.
    start : mapping, optional
        Free variables from which :func:`find_mode` searches as well, such as ``fit.initval`` of :func:`fit_pem`: where few
        prior draws explain the record.
    random_seed : int, optional
        One seed gives one result.
    progressbar : bool, default True
        Show progress of the searches and the sampler.

    Returns
    -------
    xarray.DataTree
        Posterior and sampler statistics. ``attrs``: ``verdict`` (what to think of the draws, in words; and whether innovations
        are no noise, which makes the model doubtful, however well its posterior is sampled), ``trusted`` (1 if nothing is known
        against the draws, else 0), ``method``, ``choices`` (what was done, in order, one line each), ``modes`` (how many were
        found), ``random_seed``, ``seconds``, and the steps of each filter (:func:`substeps_attrs`).

    Raises
    ------
    ValueError, TypeError
        For arguments out of range, and for models without a likelihood.

    Warns
    -----
    UserWarning
        If the draws cannot be trusted, with the reasons.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     _ = pm.Normal("y", mu, 1.0, observed=[0.5, -0.5, 1.2])
    ...     idata = sid.sample(draws=500, chains=2, cores=1, random_seed=1, progressbar=False)
    >>> idata.attrs["method"], idata.attrs["trusted"], round(float(idata.posterior["mu"].mean()), 1)
    ('nuts', 1, 0.3)
    """
    model = model_of(model)
    draws, tune, chains = count(draws, "draws"), count(tune, "tune"), count(chains, "chains")
    cores = min(chains, os.cpu_count() or 1) if cores is None else count(cores, "cores")
    if not among(method, ("auto", "independent", "nuts", "ibis")):
        raise ValueError(f"method is {shown(method)}; give 'auto', 'independent', 'nuts' or 'ibis'.")
    flag(progressbar, "progressbar")
    _check(model)
    if start is not None:
        if not isinstance(start, Mapping):
            raise TypeError(f"start is {type(start).__name__}; give a dict of numbers by the name of the free variables.")
        for value, number in unconstrained(start, model).items():
            if not np.isfinite(number).all():
                name = model.values_to_rvs[next(v for v in model.value_vars if v.name == value)].name
                raise ValueError(f"start has {name} = {shown(start[name])}, which its prior rules out; give another value.")
    run = _Run(model, draws, tune, chains, cores, whole_seed(random_seed), progressbar, start)
    run.prepare()
    for _ in range(AGAIN):
        chosen = run.choice() if method == "auto" else method
        try:
            drawn = run.draw(chosen, stops=True)
            break
        except HigherPoint as higher:
            run.search_from(higher)
    else:
        drawn = run.draw(run.choice() if method == "auto" else method)
    if method == "auto" and drawn.method == "independent" and (misfit := run.against(drawn.idata, drawn.method)):
        instead: Method = "ibis" if run.several() else "nuts"
        takes = "sequential sampling takes" if instead == "ibis" else "NUTS from the mode takes"
        run.say(f"independent proposals are given up ({' '.join(misfit)}); {takes} their place")
        drawn = run.draw(instead)
    if method == "auto" and drawn.method == "nuts" and (misfit := run.against(drawn.idata, drawn.method)):
        drawn = run.instead_of_nuts(drawn, misfit)
    return run.finished(drawn)


class _Drawn(NamedTuple):
    """Draws of one sampler, and what speaks against them.

    ``reasons`` are all that do, ``wrong`` those of them that an evidence of the sampler has no part in, and ``unknown`` is what
    could not be measured.
    """

    idata: xr.DataTree
    method: Method
    reasons: list[str]
    wrong: list[str]
    unknown: list[str]


class _Run:
    """One call of :func:`sample`: what was found and chosen so far."""

    def __init__(
        self,
        model: pm.Model,
        draws: int,
        tune: int,
        chains: int,
        cores: int,
        random_seed: int,
        progressbar: bool,
        start: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.draws, self.tune, self.chains, self.cores = model, draws, tune, chains, cores
        self.start, self.random_seed, self.progressbar = start, random_seed, progressbar
        self.begun, self.choices = time.perf_counter(), list[str]()
        self.mode: Mode | None = None
        self.trouble = self.steps_trouble = self.shares_trouble = self.lost = ""
        self.agreed = 0, 0
        self.linearised = dict[str, Linearised]()
        self.remarks = list[str]()
        self.more_steps = dict[str, StepChoice]()

    def say(self, choice: str, *, known: bool = False) -> None:
        """Log a choice that is not ``known`` from another function's log, and keep it for the attributes."""
        choice = choice.removesuffix(".")
        self.choices.append(choice)
        if not known:
            _log.info("sample: %s.", choice)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Say what is being done, in a bar, and in the log of a call that takes long."""
        if time.perf_counter() - self.begun > PATIENCE:
            _log.info("sample: %s ...", what)
        with progress_bar("sample", self.progressbar) as say:
            say(what)
            yield

    def prepare(self) -> None:
        """Find the modes, and steps that suffice there; a finer filter may have its mode elsewhere."""
        self._search(None)
        for _ in range(AGAIN):
            if self.mode is None or not self._more_steps(self.mode.initvals, "at the mode"):
                break
            self._search(self.mode)

    def _search(self, known: Mode | None) -> None:
        options: dict[str, Any] = {} if self.start is None else {"start": self.start}
        if known is not None:
            options = {"start": known.initvals, "prior_draws": 0}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = find_mode(self.model, random_seed=self.random_seed, progressbar=self.progressbar, **options)
            except ValueError as error:
                self.mode, self.trouble = None, str(error)
                self.say(f"no mode was found: {error}")
                return
        said, logged = _said(caught), found.searches > 1 and not caught
        if known is None:
            self.agreed = found.agreed
            self.shares_trouble = _said([w for w in caught if OTHER_SHARES in str(w.message)])
        if known is not None and known.modes:
            found = _with_modes(found, known)
        self.mode, self.trouble = found, said
        message = self.trouble or found.message or f"log posterior {found.logp:.2f} at the mode"
        self.say(message, known=logged)

    def search_from(self, higher: HigherPoint) -> None:
        """Find the mode near a point that is higher than the one known, and steps that suffice there."""
        self.say(f"the search goes on from a draw whose log posterior is {higher.gain:.1f} higher than at the mode")
        known, coordinates, agreed = self._found(), Target(self.model).coordinates, self.agreed
        self.agreed = 0, self.agreed[1]
        values = coordinates.dataset(higher.x[None, None], ["chain", "draw"])
        self._search(replace(known, initvals={str(name): v.values[0, 0] for name, v in values.data_vars.items()}, modes=()))
        if self.mode is None:
            return
        if self._one_region(known, self.mode):
            self.agreed = agreed
        if known.log_evidence > self.mode.log_evidence:  # a higher place that holds less
            self.mode = replace(known, modes=(*known.modes, *self.mode.modes))
            return
        self.mode = replace(self.mode, modes=(*self.mode.modes, *known.modes))
        if self._more_steps(self.mode.initvals, "at the mode"):
            self._search(self.mode)

    def _one_region(self, first: Mode, second: Mode) -> bool:
        """Whether a place is within the region of a second, higher one, and no valley between: searches have found that region.

        Where a density has edges, each search stops at one, lower than others of the same region. Of a needle on a broad region
        the other place is far outside.
        """
        if not second.converged:
            return False
        off = first.point - second.point
        if not off @ np.linalg.solve(second.covariance, off) <= scipy.stats.chi2.isf(OUTSIDE, off.size):
            return False
        share = np.linspace(0.0, 1.0, BETWEEN)[:, None]
        values = PosteriorFunctions(self.model).values((1 - share) * first.point + share * second.point)
        return bool(np.min(values) > min(first.logp, second.logp) - VALLEY)

    def _more_steps(self, at: Any, where: str) -> bool:
        """Settle the filters' steps at points, and say whether there are more than before."""
        names = filter_names(self.model)
        if not names:
            return False
        before = {n: filter_view(n, self.model).op.grid.choice for n in names}
        with warnings.catch_warnings(record=True) as caught, self.during(f"judging the steps of filters {where}"):
            warnings.simplefilter("always")
            after = settle_substeps(at, model=self.model, where=where)
        self.steps_trouble = _said(caught)
        others = [n for n in names if after[n].replaces(before[n])]
        for name in others:
            now, then = after[name], before[name]
            follows = " for each of an adaptive solver" if now.follows else ""
            instead = f"instead of {then.substeps}" if now.grids is then.grids else "that follow other solutions"
            self.say(f"{name!r} takes {now.substeps} steps{follows}, {instead}, judged {where}")
        return bool(others)

    def _fewer_steps(self) -> None:
        """Let filters that took many steps for the sake of prior draws take what does around the modes.

        What lies beyond is judged on the draws.
        """
        mode = self._found()
        if self.more_steps or not a_quarter(self.model):  # draws of another sampler may have asked for more since
            return
        functions, points = PosteriorFunctions(self.model), list[np.ndarray]()
        known: list[Mode | LocalMode] = [m for m, share in zip(mode.modes, mode.shares, strict=True) if share > SECOND_MODE]
        for m in known or [mode]:
            if m.covariance is None or not _has_root(m.covariance):
                return
            cloud = laplace_draws(m.point, m.covariance)
            points += [m.point, *cloud[functions.values(cloud) >= m.logp - farthest(m.point.size)]]
        fewer = enough_around([functions.free(point) for point in points], self.model)
        before = put_steps(fewer, self.model)
        self.more_steps |= {name: choice for name, choice in before.items() if name not in self.more_steps}
        for name, choice in fewer.items():
            self.say(f"{name!r} takes {choice.substeps} steps instead of {before[name].substeps}, which do around the modes")

    def _steps_of_before(self) -> None:
        """Put back the steps that there were before there were fewer, except where draws have asked for as many since."""
        for name, choice in self.more_steps.items():
            if filter_view(name, self.model).op.grid.choice.substeps < choice.substeps:
                put_steps({name: choice}, self.model)
        self.more_steps = {}

    def choice(self) -> Method:
        """Independent proposals or NUTS where there is one clear maximum and nothing cuts the space."""
        try:
            coordinates = Target(self.model).coordinates
        except ValueError as error:
            self.say(f"NUTS, since sequential sampling cannot take this model ({error})")
            return "nuts"
        if self.mode is None or not self.mode.converged:
            self.say("sequential sampling, since the search did not end at a clear maximum")
            return "ibis"
        if self.mode.endless:
            self.say("sequential sampling, since a search ran away to where the density is higher: it may rise without end")
            return "ibis"
        if constrained(coordinates):
            if few := too_few_obey(coordinates, CROWD * max(self.draws, 20 * self.chains)):
                self.say(f"NUTS from the mode, since a sequential run cannot begin at the prior: {few}")
                return "nuts"
            self.say("sequential sampling, since potentials or transforms cut the prior")
            return "ibis"
        shares = self.mode.shares[self.mode.shares > SECOND_MODE]
        by_mode = f"{len(shares)} modes (shares by Laplace: {', '.join(f'{100 * s:.3g} %' for s in shares)})"
        # Without filters a gradient costs little, and so does a sequential run, which also sees modes that no search has found.
        if self.several() and not (filter_names(self.model) and self._around_all()):
            self.say(f"sequential sampling, since there are {by_mode}")
            return "ibis"
        if np.any(np.diag(self.mode.covariance)[coordinates.circular] > ALL_ROUND**2):
            # Along a flat circle no trajectory of NUTS ever turns back.
            self.say("sequential sampling, since little is known of an angle, around which NUTS would go without end")
            return "ibis"
        # Without filters a gradient costs little; among many unknowns independent proposals seldom fit.
        if filter_names(self.model) and self.mode.point.size <= FEW_UNKNOWNS:
            self.say(f"independent proposals, fitted around {by_mode if self.several() else 'the mode'}")
            return "independent"
        self.say("NUTS from the mode, with the curvature there")
        return "nuts"

    def draw(self, method: Method, stops: bool = False) -> _Drawn:
        """Draws, sampled again where the posterior needs finer steps, and what speaks against them.

        Independent proposals may stop where they find a point that is higher than the mode.
        """
        samplers: dict[Method, Callable[[], xr.DataTree]] = {"nuts": self._nuts, "ibis": self._ibis}
        sampler = samplers.get(method, partial(self._independent, stops))
        if method == "ibis":  # it begins at the prior
            self._steps_of_before()
        else:
            self._fewer_steps()
        try:
            idata = sampler()
        except BaseException:  # steps that no draws have judged do not stay in the user's model
            self._steps_of_before()
            raise
        for again in range(AGAIN + 1):
            if not self._more_steps(idata, "on the posterior"):
                break
            if again == AGAIN:
                self.steps_trouble += " The posterior needs more steps than it was drawn with: sample again."
            else:
                idata = sampler()
        return self._judged(idata, method)

    def instead_of_nuts(self, nuts: _Drawn, misfit: list[str]) -> _Drawn:
        """Sequential draws in the place of those of NUTS that do not mix.

        Where NUTS mixes slowly rather than not at all, they take its place only if nothing speaks against them, and are tried
        only where they cost little.
        """
        slowly = not _mixes_poorly(nuts.idata)
        too_few = self.draws * self.chains < GOOD_ESS
        if slowly and (too_few or self._found().point.size > FEW_UNKNOWNS):
            return nuts
        said = "mixes slowly" if slowly else "is given up"
        self.say(f"NUTS {said} ({' '.join(misfit)}); sequential sampling is tried instead")
        try:
            found = self.draw("ibis")
        except ValueError as error:
            self.say(f"sequential sampling cannot take this model ({error}); the draws of NUTS stay")
            return nuts
        if slowly and found.reasons:
            self.say(f"the draws of NUTS stay, since sequential ones are in doubt, too ({' '.join(found.reasons)})")
            return nuts
        return found

    def _found(self) -> Mode:
        if self.mode is None:
            raise ValueError(f"there is no mode to start from: {self.trouble} Give method='ibis', or other priors.")
        return self.mode

    def _independent(self, stops: bool) -> xr.DataTree:
        mode = self._found()
        settings: dict[str, Any] = {"model": self.model, "chains": self.chains, "progressbar": self.progressbar}
        heights = [mode.logp, *(m.logp for m in mode.modes)]
        settings["highest"] = max(heights) if stops else None
        settings["others"] = self._modes_at([k for k in self._known_modes() if k > 0])
        draws = max(self.draws, 2 * (mode.point.size + 1))
        with self.during("drawing independent proposals"):
            return sample_around_mode(mode.point, mode.covariance, draws, random_seed=self.random_seed, **settings)

    def _nuts(self) -> xr.DataTree:
        idata = self._nuts_aiming_at(ACCEPTANCE)
        diverged = int(idata["sample_stats"]["diverging"].sum())
        if 0 < diverged <= MANY_DIVERGENCES * self.draws * self.chains:
            self.say(f"{diverged} transitions of NUTS diverged; it begins again with shorter steps")
            idata = self._nuts_aiming_at(CAREFUL)
        return idata

    def _nuts_aiming_at(self, acceptance: float) -> xr.DataTree:
        mode = self._found()
        rng = np.random.default_rng(self.random_seed)
        with self.model, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # said in the verdict
            with progress_bar("sample", self.progressbar), compiling("log posterior and gradient for NUTS"):
                step = mode.nuts(target_accept=acceptance)
            idata = sample_by_steps(
                self.draws,
                step,
                tune=self.tune,
                chains=self.chains,
                cores=self.cores,
                random_seed=[int(s) for s in rng.integers(2**31, size=self.chains)],
                initvals=mode.initvals,
                progressbar=drawable(self.progressbar),
                compute_convergence_checks=False,
            )
        return idata

    def _ibis(self) -> xr.DataTree:
        """Draws of a sequential run, or such as hold the modes that the search has found by their shares, where it did not."""
        self.lost, known = "", self._known_modes()
        idata = self._sequential(weighs=not known)
        if self.mode is None or not known:
            return idata
        modes = self._modes_at(known)
        found = weighed(idata, Target(self.model), self.random_seed, modes)
        if found.empty:
            least = float(np.sum(modes.shares[list(found.empty)]))
            lost = f"No draw is near modes that hold about {100 * least:.2g} % of the posterior (Laplace's approximation)"
            if least * self.draws * self.chains > EXPECTED:
                self.lost = f"{lost}."
            else:
                self.say(f"{lost}; of {self.draws * self.chains} draws this may be chance")
        for line in found.said:
            self.say(line)
        return idata

    def several(self) -> bool:
        """Whether more than one mode counts."""
        return self._counting() > 1

    def _counting(self) -> int:
        """How many modes hold a part of the posterior."""
        return 0 if self.mode is None else int(np.sum(self.mode.shares > SECOND_MODE))

    def _around_all(self) -> bool:
        """Whether independent proposals can be fitted around all modes that count."""
        modes = self._counting()
        few = modes <= min(MOST_MODES, MOST_TOGETHER // self._found().point.size)
        return few and len(self._known_modes()) == modes

    def _modes_at(self, known: list[int]) -> KnownModes:
        """Some of the modes, by their places in the list of all."""
        mode = self._found()
        d = mode.point.size
        points = np.reshape([mode.modes[k].point for k in known], (len(known), d))
        covariances = np.reshape([mode.modes[k].covariance for k in known], (len(known), d, d))
        return KnownModes(points, covariances, mode.shares[known])

    def _known_modes(self) -> list[int]:
        """Which modes draws can be made around; none where there is one only, or too many unknowns."""
        if self.mode is None or self.mode.point.size > FEW_UNKNOWNS:
            return []
        found = [
            k
            for k, m in enumerate(self.mode.modes)
            if self.mode.shares[k] > SECOND_MODE and m.covariance is not None and _has_root(m.covariance)
        ]
        return found if len(found) > 1 else []

    def _sequential(self, weighs: bool) -> xr.DataTree:
        return sequential_draws(
            max(self.draws, 20 * self.chains),
            model=self.model,
            chains=max(2, self.chains),
            cores=self.cores,
            random_seed=self.random_seed,
            progressbar=self.progressbar,
            weighs=weighs,
            compute_convergence_checks=False,
        )

    def against(self, idata: xr.DataTree, method: str) -> list[str]:
        """What speaks against what a sampler has drawn."""
        rhat, worst_rhat, ess, worst_ess = _diagnostics(idata)
        reasons = []
        if not rhat <= GOOD_RHAT:
            reasons.append(f"R-hat of {worst_rhat} is {rhat:.3f} (limit {GOOD_RHAT}): the chains do not agree.")
        if ess < GOOD_ESS:
            reasons.append(f"{worst_ess} has {ess:.0f} effective draws (limit {GOOD_ESS}).")
        if method == "nuts" and (divergences := int(idata["sample_stats"]["diverging"].sum())):
            reasons.append(f"{divergences} transitions of NUTS diverged: a part of the posterior may not have been reached.")
        if method != "nuts" and (doubt := log_evidence(idata).doubt):
            reasons.append(doubt)
        if method == "independent":
            last = final(stages(idata))
            fit, shape = float(last["proposal_ess"].min()), float(last["pareto_k"].max())
            if (fit < GOOD_PROPOSALS or shape > EVEN) and np.any(last["walks"].values == 0):
                reasons.append(
                    f"Independent proposals do not fit the posterior: {100 * fit:.0f} % of them count, Pareto k {shape:.2f}."
                )
        return reasons

    def _judged(self, idata: xr.DataTree, method: Method) -> _Drawn:
        """Draws with what speaks against them."""
        reasons, elsewhere = self.against(idata, method), list[str]()
        if self.mode is not None and self.several():
            if method == "nuts":
                elsewhere.append(f"There are {len(self.mode.modes)} modes, and NUTS stays in the one it starts in.")
            if method == "independent" and not self._around_all():
                elsewhere.append(f"There are {self._counting()} modes, and the proposals do not begin around all of them.")
        if method != "ibis" and self.trouble:
            elsewhere.append(self.trouble)
        linearised, unknown = self._linearised(idata, method)
        missed = self._missed(idata, method)
        wrong = [self.lost, missed, *_unmeasured(self.model), self.shares_trouble, self.steps_trouble, *linearised]
        said = " ".join(elsewhere)
        # What a sampler that begins at a mode may not have reached is missing in its evidence, too.
        wrong = [*elsewhere, *(reason for reason in wrong if reason and reason not in said)]
        return _Drawn(idata, method, [*reasons, *wrong], wrong, unknown)

    def _missed(self, idata: xr.DataTree, method: Method) -> str:
        """Why a better mode may have been missed: one search alone has found the best, or few, and something is left."""
        led, searches = self.agreed
        if searches <= LONELY or led > FEW_AGREE * searches:
            return ""
        remedy = "Give narrower priors, a shorter record first, or more searches (find_mode(starts=..., prior_draws=...))."
        mode = self.mode
        # Where searches end at no maximum (the density has edges, or is rough), each ends at a place of its own, and how many
        # agree says nothing. A sequential run begins at the prior, and looks for modes that it has missed.
        apart = method == "ibis" and (mode is None or not mode.converged)
        if led == 0 and not apart:
            return (
                f"None of {searches} searches led to the best mode, which a draw has found: there may be a better one. {remedy}"
            )
        # Where a density rises without end (the scale of a hierarchy goes to zero), each search stops at a place of its own.
        # The likelihood of a filter may be so rough that a search stops before its maximum, and another mode is possible.
        endless = mode is not None and not mode.converged and (mode.endless or not filter_names(self.model))
        if led == 1 and not endless and not apart:
            return f"Only {led} of {searches} searches led to the best mode: there may be a better one. {remedy}"
        for name in filter_names(self.model):
            if output := coloured_output(idata, name, self.model):
                return (
                    f"Only {led} of {searches} searches led to modes that count, and the innovations of {output} are not "
                    f"white: a better mode may have been missed, or the model lacks dynamics. {remedy}"
                )
        return ""

    def _misfits(self, idata: xr.DataTree) -> tuple[list[str], list[str]]:
        """What the draws cannot show: that the model is wrong, which biases parameters, however well they are sampled.

        And what could not be computed of that.
        """
        found, not_known = list[str](), list[str]()
        try:
            for name in filter_names(self.model):
                if wrong := misfit(idata, name, self.model):
                    found.append(f"The model is in doubt: {wrong.words}. Its parameters may be biased; see sid.report.")
                if filter_view(name, self.model).system.inputs:
                    with suppress(ValueError):  # of draws that are not around one mode
                        between = check_intersample(idata, model=self.model, name=name, draws=INTERSAMPLE_DRAWS)
                        # Where innovations are larger than the model says, likelihoods differ by too much, too.
                        sure = between.most_likely > MORE_LIKELY * max(1.0, wrong.size if wrong else 1.0) ** 2
                        found += [between.verdict] if between.level == "bad" and sure else []
        except (Exception, KeyboardInterrupt) as error:  # the draws are there, whatever becomes of this
            not_known.append(
                f"What the record says against the model is not known: {type(error).__name__} {error}".rstrip(". ") + "."
            )
        return found, not_known

    def _linearised(self, idata: xr.DataTree, method: str) -> tuple[list[str], list[str]]:
        """What speaks against the linearisation about uncertain initial states and processes, and what is not known of it."""
        reasons, unknown, self.remarks = list[str](), list[str](), list[str]()
        for name in filter_names(self.model):
            judge = self.linearised.setdefault(name, Linearised(filter_view(name, self.model), self.random_seed))
            laplace = np.nan if self.mode is None else self.mode.log_evidence
            evidence = log_evidence(idata).value if method != "nuts" else laplace
            with self.during("measuring what linearising costs"):
                found = judge.against(idata, evidence, sequential=method != "nuts")
            if found.verdict:
                self.say(found.verdict.rstrip("."))
            reasons += found.reasons
            self.remarks += [found.remark] if found.remark else []
            unknown += [found.unknown] if found.unknown else []
        return reasons, unknown

    def finished(self, drawn: _Drawn) -> xr.DataTree:
        """The result with its attributes and verdict."""
        idata, trusted = drawn.idata, not drawn.reasons
        if drawn.method != "nuts":
            if said := [r for r in (*drawn.wrong, *drawn.unknown, allow_for_integration(idata, self.model)) if r]:
                doubt_evidence(idata, said)
        with self.during("comparing the record with the model"):
            misfits, not_known = self._misfits(idata) if trusted else ([], [])
        verdict = "Nothing is known against these draws." if trusted else "These draws cannot be trusted."
        if misfits:  # two things: whether the posterior was drawn, and whether it is that of the right model
            verdict = "Nothing is known against these draws as draws of this posterior, but something against the model."
        remarks = self.remarks if trusted else []
        verdict = " ".join([verdict, *drawn.reasons, *drawn.unknown, *remarks, *misfits, *not_known])
        self.say(verdict.rstrip("."))
        idata.attrs.update(
            verdict=verdict,
            trusted=int(trusted),
            method=drawn.method,
            choices="\n".join(self.choices),
            modes=0 if self.mode is None else max(1, len(self.mode.modes)),
            random_seed=str(self.random_seed),
            seconds=time.perf_counter() - self.begun,
            **substeps_attrs(self.model),
        )
        if not trusted:
            warnings.warn(f"sample: {verdict}", stacklevel=3)
        return idata


def _has_root(covariance: np.ndarray) -> bool:
    """Whether a covariance (d, d) is positive definite, whatever the units: of sizes of 1e-9 rounding would decide."""
    sd = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return bool(np.all(sd > 0)) and bool(np.linalg.eigvalsh(covariance / np.outer(sd, sd))[0] > 0)


def _said(caught: list[warnings.WarningMessage]) -> str:
    """What warnings say to a user of the posterior, each once; how functions are compiled is no part of that."""
    said = [w for w in caught if issubclass(w.category, UserWarning) and not w.filename.startswith(COMPILER)]
    return " ".join(dict.fromkeys(str(w.message) for w in said))


def _check(model: pm.Model) -> None:
    """Refuse models that none of the samplers here can take."""
    if not model.observed_RVs:
        raise ValueError("the model has no observed variable; give it a likelihood, such as pm_sysid.ODEFilter.")
    simulators = [v.name for v in model.observed_RVs if isinstance(v.owner.op, SimulatorRV)]
    if simulators:
        raise ValueError(f"{simulators} have no likelihood (pm.Simulator); sample_abc_ns is for such models.")
    check_continuous(model, "the samplers here move continuous ones only")


def _unmeasured(model: pm.Model) -> list[str]:
    """What is said of filters whose records have no measurements."""
    empty = [name for name in filter_names(model) if not np.isfinite(filter_view(name, model).measured()).any()]
    return [f"No sample of {empty} is measured: the draws are those of the prior."] if empty else []


def _with_modes(found: Mode, known: Mode) -> Mode:
    """A mode that was polished again, with the others that had been found before."""
    return replace(found, modes=(*found.modes[:1], *known.modes[1:]), message=known.message)


def _mixes_poorly(idata: xr.DataTree) -> bool:
    """Whether NUTS has to be given up."""
    rhat, *_ = _diagnostics(idata)
    diverging = float(idata["sample_stats"]["diverging"].mean())
    return not rhat <= POOR_RHAT or diverging > MANY_DIVERGENCES


def _diagnostics(idata: xr.DataTree) -> tuple[float, str, float, str]:
    """Largest R-hat and smallest number of effective draws (bulk and tail) of all free elements, and where they are."""
    posterior = group(idata, "posterior")
    arrays = {str(k): v.values for k, v in posterior.data_vars.items()}
    columns = np.concatenate([a.reshape(*a.shape[:2], -1) for a in arrays.values()], axis=2)
    labels = element_labels({k: a.shape[2:] for k, a in arrays.items()})
    moving = [k for k in range(len(labels)) if np.ptp(columns[:, :, k]) > 0]
    rhats = np.array([float(array_stats.rhat(columns[:, :, k], method="rank")) for k in moving])
    sizes = [
        min(
            float(array_stats.ess(columns[:, :, k], method="bulk")),
            float(array_stats.ess(columns[:, :, k], method="tail", prob=0.1)),
        )
        for k in moving
    ]
    if not moving:
        return 1.0, "nothing", float("inf"), "nothing"
    worst, least = int(np.nanargmax(rhats)), int(np.nanargmin(sizes))
    return float(rhats[worst]), labels[moving[worst]], float(sizes[least]), labels[moving[least]]
