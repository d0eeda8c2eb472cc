"""The posterior mode and the curvature there: where to start NUTS, and with which mass matrix."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm
import scipy

from pm_sysid.arguments import flag, seed, shown, whole
from pm_sysid.environment import ieee_arithmetic
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.descent import Batch, Descent, descend, units
from pm_sysid.likelihood.filter_steps import a_quarter, followed, put_steps, refined, substeps_attrs, twice
from pm_sysid.likelihood.filter_view import filter_names, filter_view
from pm_sysid.likelihood.global_search import (
    ROUNDS,
    Peak,
    Tracked,
    climb_all,
    distinct,
    hopeless,
    made_up,
    other_shares,
    ranked,
    tempered,
)
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.prior_draws import possible_draws
from pm_sysid.notebook import html_line, html_table
from pm_sysid.progress import progress_bar
from pm_sysid.solve.substeps import MOST, StepChoice, warn
from pm_sysid.symbolic.names import entry

_log = logging.getLogger("pm_sysid")

#: Most draws of the prior.
MOST_DRAWS = 100_000
#: Prior draws of a search; and most of them where no filter runs, up to so many unknowns, and observations in all draws.
PRIOR_DRAWS, MORE_DRAWS, FEW_FOR_MORE, CHEAP = 2000, 20_000, 6, 10**7
#: Share of the posterior mass, by Laplace's approximation, that a second mode must have to count.
SECOND_MODE = 1e-4
#: Coordinates that lie this many prior standard deviations off have run away.
FAR = 8.0
#: A prior all but rules out a value whose density is lower than that of its middle draw by a factor exp(``IMPOSSIBLE``), as
#: that of a normal distribution is eight standard deviations off. So many draws say what is usual.
IMPOSSIBLE, COMPARED = 32.0, 200
#: Prior draws at whose own solutions steps that follow one are tried, searches from the best of them, and how often each is
#: followed to where it ends while it gains this much.
ELSEWHERE, FROM, FOLLOWINGS, GAIN = 24, 3, 30, 0.1
#: Where no more than this share of the searches agree, there may be modes that none has found.
FEW_AGREE = 0.25
#: Where this share of them do, and the others end where nothing of the posterior is, there are no further ones.
NEARLY_ALL = 0.75
#: Further searches begin around the best then, by this many standard deviations of the prior, and again around a better one.
AROUND, ROUNDS_AROUND = 0.2, 3
#: What is said of modes whose shares depend on the number of steps.
OTHER_SHARES = "modes hold other shares of the posterior"
#: Filter steps of one evaluation, and steps a sample left of them, from which on searches are on their way with a quarter; and
#: the gain of a step with which they have come near enough.
LONG_WAY, COARSE, NEAR_ENOUGH = 10_000, 4, 0.01
#: Fewer steps say nearly the same where the log posterior is so near, in nats and over what the way gains.
CLOSE, CLOSE_SHARE = 1.0, 0.5
#: What is said of steps that searches needed.
NO_FURTHER = "since with fewer the filter gets no further through the record where searches ended"
#: Points beside the end of a search, near and farther off in standard deviations of the prior; and how many more of the latter
#: the filter has to pass for twice the steps.
BESIDE, EDGE, MORE_PASS = 64, (0.01, 0.1), 8
#: Draws of the Laplace approximation at which the steps of filters are judged, and how often.
JUDGED, SETTLINGS = 10, 5
#: A draw of the Laplace approximation that would be as far from the mode with this probability is none of the posterior.
UNLIKELY = 1e-6
#: Steps of the prior's standard deviation from a place, and the rise of the log posterior there with which it still is a peak.
PROBES, RISE = (0.01, 0.1, 1.0), 1.0


@dataclass(frozen=True, eq=False)
class LocalMode:
    """One of the modes that :func:`find_mode` found.

    Attributes
    ----------
    initvals : dict
        Free variables at the mode.
    point : numpy.ndarray, shape (n,)
        The mode in unconstrained space.
    logp : float
        Log posterior density (unnormalised, with Jacobians) there.
    log_evidence : float
        Laplace approximation of the logarithm of the posterior mass around it (unnormalised): of two modes the one with the
        larger number has more of the posterior, whatever their heights. NaN where the curvature is not that of a maximum.
    searches : int
        How many searches led there.
    covariance : numpy.ndarray, shape (n, n), optional
        Inverse of the negative Hessian there; None where it is not that of a maximum.
    """

    initvals: dict[str, np.ndarray]
    point: np.ndarray
    logp: float
    log_evidence: float
    searches: int
    covariance: np.ndarray | None = None


@dataclass(frozen=True, repr=False)
class Mode:
    """Posterior mode of a model, in unconstrained space.

    Attributes
    ----------
    initvals : dict
        Free variables at the mode, for ``pm.sample(initvals=...)``.
    point : numpy.ndarray, shape (n,)
        The mode in unconstrained space, in the order of ``model.value_vars``.
    covariance : numpy.ndarray, shape (n, n)
        Inverse of the negative Hessian at the mode: the Laplace approximation of the posterior's covariance.
    logp : float
        Log posterior density (unnormalised, with Jacobians) at the mode.
    converged : bool
        Whether the gradient vanished and the curvature is that of a maximum.
    modes : tuple of LocalMode
        All modes that were found, best Laplace evidence first; the first is this one.
    message : str
        What was searched and found, in words.
    substeps : dict
        How many steps the filters of the model take, judged at this mode: what :func:`substeps_attrs` says.
    evaluations : int
        How many points the log posterior was computed at.
    searches : int
        How many searches there were, ended at a mode or not.
    endless : bool
        Whether a search ran away from the prior to where the density is higher than at this mode: it may rise without end, as
        that of a hierarchy does where its scale goes to zero.
    """

    initvals: dict[str, np.ndarray]
    point: np.ndarray
    covariance: np.ndarray
    logp: float
    converged: bool
    modes: tuple[LocalMode, ...] = ()
    message: str = ""
    substeps: Mapping[str, Any] = field(default_factory=dict)
    evaluations: int = 0
    searches: int = 1
    endless: bool = False

    def _table(self) -> tuple[str, list[str], list[list[str]]]:
        """Head, columns and rows: the modes in the model's own units."""
        modes = self.modes or (LocalMode(self.initvals, self.point, self.logp, float("nan"), 1),)
        names = [(n, i) for n, v in self.initvals.items() for i in np.ndindex(np.shape(v))]
        rows = [
            [entry(n, i), *(f"{np.asarray(m.initvals[n])[i]:.6g}" if n in m.initvals else "" for m in modes)] for n, i in names
        ]
        rows += [["log posterior", *(f"{m.logp:.2f}" for m in modes)]]
        rows += [["log evidence (Laplace)", *(f"{m.log_evidence:.2f}" for m in modes)]]
        head = "Mode" if self.converged else "Mode (the search did not end at a maximum)"
        return head, ["", "mode", *(f"mode {k}" for k in range(2, len(modes) + 1))], rows

    def __repr__(self) -> str:
        """Table of the modes, in the model's own units."""
        head, columns, rows = self._table()
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        lines = ["  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) for r in (columns, *rows)]
        return "\n".join([head, *(f"  {line}" for line in lines), self.message]).rstrip()

    def _repr_html_(self) -> str:
        """Table of the modes for a notebook."""
        head, columns, rows = self._table()
        return html_line(head, strong=True) + html_table(columns, rows) + html_line(self.message)

    @property
    def log_evidence(self) -> float:
        """Laplace approximation of the log evidence around this mode (NaN if not converged)."""
        return self.modes[0].log_evidence if self.modes else float("nan")

    @property
    def agreed(self) -> tuple[int, int]:
        """How many searches led to modes that hold a part of the posterior, and of how many."""
        led = sum(m.searches for m, share in zip(self.modes, self.shares, strict=False) if share > SECOND_MODE)
        return led, self.searches

    @property
    def shares(self) -> np.ndarray:
        """Share of the posterior around each of ``modes``, by Laplace's approximation, shape (max(1, modes),).

        A place without the curvature of a maximum has an unknown share: it counts as much as the best.
        """
        evidences = np.array([m.log_evidence for m in self.modes])
        if len(evidences) < 2:
            return np.ones(1)
        best = np.nanmax(np.where(np.isfinite(evidences), evidences, np.nan), initial=-1e300)
        return np.asarray(scipy.special.softmax(np.where(np.isfinite(evidences), evidences, best)))

    def nuts(self, **options: Any) -> Any:
        """NUTS step method with this covariance as its (fixed) mass matrix; inside a model context.

        A UserWarning says if other modes hold more than a ten-thousandth of the posterior: chains do not travel between modes,
        and agree with each other all the same.
        """
        if np.sum(self.shares > SECOND_MODE) > 1:
            by_mode = ", ".join(f"{100 * s:.3g} %" for s in self.shares)
            warnings.warn(
                f"{len(self.modes)} modes were found (shares of the posterior by Laplace: {by_mode}), and NUTS stays in the "
                "one it starts in, whatever R-hat says; take sid.sample or sid.sample_ibis.",
                stacklevel=2,
            )
        with ieee_arithmetic():
            return pm.NUTS(scaling=self.covariance, is_cov=True, **options)


def find_mode(
    model: pm.Model | None = None,
    *,
    start: Mapping[str, Any] | None = None,
    prior_draws: int | None = None,
    starts: int = 16,
    tempering: bool = True,
    random_seed: Any = None,
    progressbar: bool = True,
) -> Mode:
    """Find the posterior mode, among several if there are, by searches from many draws of the prior.

    Long records make posteriors a thousand times narrower than their priors and strongly correlated; NUTS then spends
    most of its time finding the scale. Starting at the mode with its curvature, it needs a short tuning phase only.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model on the context stack.
    start : mapping, optional
        Free variables of one more start, such as the ``initvals`` of another model's mode; the rest, and by default all, are
        those of the model's initial point.
    prior_draws : int, optional
        Draws of the prior of which the log posterior is computed, in one batch; searches start at the best of them, and at
        those that are better than all draws around them. By default 2000, and up to 20 000 where they cost little (no filter,
        six unknowns at most, few observations), since a narrow mode is found by a draw on its slope. With zero, the only search
        is from ``start``: for who knows where the mode is.
    starts : int, default 16
        Searches that run side by side: one from ``start``, the others from draws that differ by a third of a prior standard
        deviation at least. Where they find several modes, as many again follow (see Notes).
    tempering : bool, default True
        Whether searches by diffusion tempering follow where several modes were found, or few searches agree (see Notes).
    random_seed : int, sequence or Generator, optional
        Seed of the prior draws. The same seed gives the same result.
    progressbar : bool, default True
        Show evaluations and the best log posterior while it searches; nothing is left of the line.

    Returns
    -------
    Mode
        The mode with the largest Laplace evidence, and the list of all that were found. Where the search was interrupted
        (Ctrl-C), the best point so far, with ``converged=False``.

    Raises
    ------
    ValueError
        If no start has a finite log posterior, or the model has discrete free variables.

    Warns
    -----
    UserWarning
        If the search stopped where the posterior has no maximum (and in which direction), was interrupted, a place of higher
        density was seen that is no maximum, or the prior all but rules out a value at the mode (its density is lower than that
        of the middle draw by a factor of exp(32)): then record, units, prior and equations do not belong together.
    SubstepWarning
        If the steps of a filter are too few at the mode, and a number was asked for (with no diffusion), or 32 are not enough.

    Notes
    -----
    The log shows how many searches there were, how many modes they found, and how many led to the best one. Where several
    modes are found, two further rounds follow: from the next best draws, and from all these draws once more by *diffusion
    tempering*: with a large diffusion a filter follows the record although the parameters are wrong, and its likelihood has
    fewer maxima; the diffusion is lowered in stages to that of the model. Filters with ``diffusion="dynamic"`` and other
    likelihoods are not tempered. Where still no more than a quarter of the searches agree, as many begin around the best mode,
    a fifth of the prior's standard deviation off, and again around a better one. `benchmarks/starts.py` counts how often each
    of this leads to the right mode.

    Where the steps of a filter follow the solution of a stiff system, further searches take the steps of other prior draws:
    those of one solution may say nothing of another. No search can prove that there is no better mode.

    The steps of ODE filters are judged around the best mode (:func:`settle_substeps`). Filters with ``substeps="auto"`` take
    more if they have too few, and the modes are climbed once more. Where there are several, equal steps are doubled as long as
    that changes what share of the posterior a mode holds, and the search begins again each time.

    Source: Beck et al., Diffusion Tempering Improves Parameter Estimation with Probabilistic Integrators for Ordinary
    Differential Equations (ICML 2024).

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     mode = sid.find_mode()
    >>> float(mode.covariance[0, 0]).__round__(6)
    4.0
    """
    model = model_of(model)
    if start is not None and not isinstance(start, Mapping):
        raise TypeError(f"start is {type(start).__name__}; give a dict of numbers by the name of the free variables.")
    flag(progressbar, "progressbar")
    flag(tempering, "tempering")
    if prior_draws is not None and not whole(prior_draws, 0, MOST_DRAWS):
        raise ValueError(
            f"prior_draws is {shown(prior_draws)}; give a whole number up to {MOST_DRAWS}, or 0 to search from start alone."
        )
    if not whole(starts, 1, 10**4):
        raise ValueError(f"starts is {shown(starts)}; give a positive whole number of searches.")
    rng = np.random.default_rng(seed(random_seed))
    functions = PosteriorFunctions(model)
    prior_draws = usual_draws(functions) if prior_draws is None else prior_draws
    point = {**functions.coordinates.point, **unconstrained(start or {}, model)}
    first = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars]).astype(float)
    with progress_bar("find_mode", progressbar) as say:
        say("drawing from the prior")
        say.expect(functions.search_functions(prior_draws))
        hunt = Hunt(functions, first, "start" if start else "the model's initial point", say)
        interrupted = False
        try:
            draws = hunt.prior(prior_draws, rng)
            hunt.run(draws, starts, tempering)
            hunt.look_elsewhere(draws[:ELSEWHERE])
            hunt.settle()
            hunt.go_beyond_edges(starts, tempering)
            hunt.settle_shares(starts, tempering)
            hunt.found()
        except KeyboardInterrupt:
            if hunt.tracked is None or hunt.tracked.best is None:
                raise
            interrupted = True
    return _result(hunt, interrupted)


def usual_draws(functions: PosteriorFunctions) -> int:
    """Prior draws that a search begins with: more where they cost little."""
    if filter_names(functions.model) or functions.first.size > FEW_FOR_MORE:
        return PRIOR_DRAWS
    return int(np.clip(CHEAP // max(functions.observed, 1), PRIOR_DRAWS, MORE_DRAWS))


def laplace_draws(point: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """A few draws (JUDGED, d) of the Laplace approximation at a mode."""
    sd = np.sqrt(np.diag(covariance))
    unit = units(sd, sd)
    shape = covariance / np.outer(unit, unit)
    return np.asarray(unit * np.random.default_rng(0).multivariate_normal(point / unit, shape, JUDGED))


def farthest(unknowns: int) -> float:
    """By how much the log posterior of a draw may be lower than at the mode."""
    return float(scipy.stats.chi2.isf(UNLIKELY, unknowns) / 2)


def best_peak(functions: PosteriorFunctions, draws: np.ndarray, starts: int) -> Peak:
    """The best mode of a model with its present data, found from prior draws (n, d), with the steps that its filters have.

    Raises
    ------
    ValueError
        If there is nowhere to start from.
    """
    hunt = Hunt(functions, functions.first, "the model's initial point", lambda text: None)
    hunt.run(draws, starts, tempering=True)
    return ranked(hunt.peaks)[0]


class Hunt:
    """A search for the modes of a model: what has been found so far, in numbers and in words."""

    def __init__(self, functions: PosteriorFunctions, first: np.ndarray, whose: str, say: Callable[[str], None]) -> None:
        self.functions, self.first, self.whose, self.say = functions, first, whose, say
        functions.begin()
        self.tracked: Tracked | None = None
        self.peaks: list[Peak] = []
        self.searches = self.drawn = 0
        self.draws = np.empty((0, first.size))
        self.scale, self.centre = np.ones(first.size), first
        self.remarks: list[str] = []

    def run(self, draws: np.ndarray, starts: int, tempering: bool) -> None:
        """Search from the best of prior draws (n, d); raises a ValueError if there is nowhere to start."""
        before = 0 if self.tracked is None else self.tracked.evaluations
        batch = self.tracked = Tracked(self.functions.descent_function(), self.say)
        batch.evaluations = before
        points = np.concatenate([self.first[None], draws])
        values = batch(self.first[None])[0]
        if len(draws):
            values = np.concatenate([values, -self.functions.values(draws)])
            batch.saw(points, values)
            # Quartiles, since priors may have heavy tails.
            low, self.centre, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
            self.scale = np.where(high > low, (high - low) / 1.349, 1.0)
        if not np.isfinite(values).any():
            raise ValueError(self._nowhere(len(draws)))
        taken = [0]
        order = distinct(points, values, self.scale, taken)
        taken += [i for i, _ in zip(order, range(starts - 1 if len(draws) else 0), strict=False)]
        picked = [i for i in taken if np.isfinite(values[i])]
        self._climb(batch, points[picked])
        if (len(self.peaks) <= 1 and self._most_agree()) or self._nearly_all_agree() or not len(draws):
            return
        more = [i for i, _ in zip(distinct(points, values, self.scale, taken), range(starts), strict=False)]
        if more:
            self._climb(batch, points[more])
        if self.functions.views and tempering:
            both = points[picked + more]
            self._climb(batch, tempered(self.loosened(both), both, self.scale))
        rng = np.random.default_rng(0)
        for _ in range(ROUNDS_AROUND):
            if not self.peaks or self._most_agree():
                return
            best = ranked(self.peaks)[0]
            around = best.point + AROUND * self.scale * rng.standard_normal((starts, self.scale.size))
            self._climb(batch, around)
            if ranked(self.peaks)[0].value >= best.value - GAIN:
                return

    def _most_agree(self) -> bool:
        """Whether many of the searches have ended at peaks that hold a part of the posterior."""
        least = ranked(self.peaks)[0].log_evidence + np.log(SECOND_MODE) if self.peaks else np.nan
        return sum(p.searches for p in self.peaks if not p.log_evidence < least) > FEW_AGREE * self.searches

    def _nearly_all_agree(self) -> bool:
        """Whether hardly a search has ended elsewhere than at the best peak, and none where anything of the posterior is."""
        if not self.peaks:
            return False
        first, *others = ranked(self.peaks)
        if not first.converged or first.searches < NEARLY_ALL * self.searches:
            return False
        return all(p.converged and p.value > first.value + hopeless(first.point.size) for p in others)

    def look_elsewhere(self, draws: np.ndarray) -> None:
        """Search from prior draws (n, d) with steps that follow their own solutions, if the steps of filters follow one.

        Steps that follow one solution may say nothing of another, whose fronts lie elsewhere: log posteriors are compared
        with the steps that each point has by itself.
        """
        if not self.peaks or not len(draws) or followed(self.functions.free(self.first), self.functions.model) is None:
            return
        at = [min(self.peaks, key=lambda p: p.value).point, *draws]
        values = [self._followed(point) for point in at]
        ends: list[tuple[float, np.ndarray]] = []
        for k in np.argsort(values, kind="stable")[:FROM]:
            point, value = at[int(k)], values[int(k)]
            for _ in range(FOLLOWINGS if np.isfinite(value) else 0):
                if not np.isfinite(self._followed(point)):
                    break
                end = descend(self.functions.descent_function(), point[None], self.scale, ROUNDS).x[0]
                if not (new := self._followed(end)) < value - GAIN:
                    break
                point, value = end, new
            ends.append((value, point))
        value, point = min(ends, key=lambda end: end[0])
        # Other modes stay if they are worth it with steps of their own.
        others = [p.point for p in self.peaks if self._followed(p.point) <= value + hopeless(point.size)]
        if np.isfinite(self._followed(point)):
            self.tracked = Tracked(self.functions.descent_function(), self.say, self.tracked)
            self.peaks = []
            self._climb(self.tracked, np.array([point, *others]))

    def _followed(self, point: np.ndarray) -> float:
        """Negative log posterior of a point (d,) with steps that follow its own solution from now on."""
        if not followed(self.functions.free(point), self.functions.model):
            return np.inf
        return float(-self.functions.values(point[None])[0])

    def settle(self) -> None:
        """Judge the steps of filters around the best mode; where they take others, climb to every peak once more.

        A search may have ended where the steps that follow a solution elsewhere carry the filter no further.
        """
        for _ in range(SETTLINGS):
            if not self.peaks:
                return
            best = ranked(self.peaks)[0]
            if best.converged:
                cloud = laplace_draws(best.point, best.covariance)
                where, at = "at the mode", [best.point, *cloud[self._allowed(cloud, best)]]
            else:
                where, at = "where the search ended", [min(self.peaks, key=lambda p: p.value).point]
            points = [self.functions.free(point) for point in at]
            if not refined(points, self.functions.model, where, following=not best.converged):
                return
            self._climb_again(best.point)

    def go_beyond_edges(self, starts: int, tempering: bool) -> None:
        """Where the best search stopped at an edge that too few steps draw, take the steps without it, and search again.

        Draws of the prior that come near a record may be quiet where the right parameters are not: with the few steps that do
        for them the filter does not get through the record at the others, and every search ends where that begins.
        """
        for _ in range(SETTLINGS):
            if not self.peaks or not len(self.draws) or ranked(self.peaks)[0].converged:
                return
            enough, given = self._steps_beyond(ranked(self.peaks)[0].point)
            counts = ", ".join(f"{c.substeps} steps a sample of {name!r}" for name, c in (enough or given).items())
            if given:
                further = "the filter gets through the record beyond where the search ended: take more substeps"
                self.remarks.append(f"with {counts} {further}")
            if not enough or not self._search_again(enough, starts, tempering):
                return
            self.remarks = [remark for remark in self.remarks if NO_FURTHER not in remark]
            self.remarks.append(f"{counts}, {NO_FURTHER}")
            self.settle()

    def _steps_beyond(self, point: np.ndarray) -> tuple[dict[str, StepChoice], dict[str, StepChoice]]:
        """Steps with which an edge beside a point (d,) is gone: of filters that choose them, else of those with given ones."""
        model = self.functions.model
        before = {name: filter_view(name, model).op.grid.choice for name in twice(model)}
        try:
            enough = self._steps_without_edge(point, own=True)
            return enough, {} if enough else self._steps_without_edge(point, own=False)
        finally:
            put_steps(before, model)

    def _search_again(self, steps: dict[str, StepChoice], starts: int, tempering: bool) -> bool:
        """Search from the same draws with other steps; where that leads nowhere, all is as before."""
        model = self.functions.model
        before = {name: filter_view(name, model).op.grid.choice for name in twice(model)}
        known = self.peaks, self.tracked, self.searches
        put_steps(steps, model)
        self.peaks, self.searches = [], 0
        try:
            self.run(self.draws, starts, tempering)
        except ValueError:
            self.peaks = []
        except KeyboardInterrupt:
            self.peaks = []
            raise
        finally:
            if not self.peaks:
                put_steps(before, model)
                self.peaks, self.tracked, self.searches = known
        return self.peaks is not known[0]

    def _steps_without_edge(self, point: np.ndarray, own: bool) -> dict[str, StepChoice]:
        """The equal steps with which an edge beside a point (d,) is gone; empty if more steps do not move it.

        Of filters that choose their ``own`` steps, or of those with a number of steps.
        """
        model, rng, enough = self.functions.model, np.random.default_rng(0), dict[str, StepChoice]()
        near, far = (point + width * self.scale * rng.standard_normal((BESIDE, point.size)) for width in EDGE)
        near = np.concatenate([near, _around(point, self.scale)])
        passed = self._finite(near), self._finite(far)

        def finer() -> dict[str, StepChoice]:
            return {n: c for n, c in twice(model).items() if c.substeps <= MOST and (c.asked == "auto") == own}

        while following := finer():
            put_steps(following, model)
            now = self._finite(near), self._finite(far)
            if enough and now[1] < passed[1] + MORE_PASS:
                break
            if enough or now[0] > passed[0]:
                enough, passed = enough | following, now
        return {n: replace(c, where="where a search had ended", error=np.nan, settled=False) for n, c in enough.items()}

    def _finite(self, points: np.ndarray) -> int:
        """At how many points the log posterior is finite."""
        return int(np.isfinite(self.functions.values(points)).sum())

    def _allowed(self, cloud: np.ndarray, best: Peak) -> np.ndarray:
        """Which draws of a Laplace approximation the posterior knows, by the present steps or by twice as many.

        Of a posterior that is far from Gaussian, as under the horseshoe, most of them may lie where there is nothing; what the
        steps are worth there is of no interest.
        """
        function, model = self.functions.descent_function(), self.functions.model
        value = function(cloud)[0]
        if finer := twice(model):
            before = put_steps(finer, model)
            try:
                value = np.minimum(value, function(cloud)[0])
            finally:
                put_steps(before, model)
        allowed: np.ndarray = value <= best.value + farthest(cloud.shape[1])
        return allowed

    def settle_shares(self, starts: int, tempering: bool) -> None:
        """Take more equal steps while these make other modes hold more or less of the posterior.

        Steps that do for the best mode may rule out another: an alias of an oscillation needs steps for its own frequency.
        """
        model, more = self.functions.model, False
        while sum(p.converged for p in self.peaks) > 1 and (finer := twice(model)) and self._shares_may_change(finer):
            coarse, tracked = self.peaks, self.tracked
            before = put_steps(finer, model)
            try:
                self._climb_again(ranked(coarse)[0].point)
                now = self.functions.values(np.array([p.point for p in coarse]))
            except KeyboardInterrupt:  # the modes that are known are those of the steps before
                put_steps(before, model)
                self.peaks, self.tracked = coarse, tracked
                raise
            if other_shares(coarse, self.peaks) or made_up(coarse, self.peaks, now):
                if all(c.asked == "auto" and c.substeps <= MOST for c in finer.values()):
                    if len(self.draws):  # modes that were hopeless may be none any more
                        self.run(self.draws, starts, tempering)
                    more = True
                    continue
                counts = ", ".join(f"{c.substeps} steps a sample of {name!r}" for name, c in before.items())
                warn(
                    f"With {counts}, {OTHER_SHARES} than with twice as many: what they hold is not known. Take more substeps, "
                    "or narrow the priors."
                )
            put_steps(before, model)
            self.peaks, self.tracked = coarse, tracked
            break
        if more:
            self.settle()

    def _shares_may_change(self, finer: Mapping[str, StepChoice]) -> bool:
        """Whether a mode beside the best one holds something, or its place is another one for finer steps."""
        first, *others = ranked(self.peaks)
        model, points = self.functions.model, np.array([p.point for p in (first, *others)])
        before = put_steps(finer, model)
        try:
            now = -self.functions.values(points)
        finally:
            put_steps(before, model)
        behind = np.array([p.value - first.value for p in others])
        still = now[1:] - now[0]
        with np.errstate(invalid="ignore"):
            nothing = (np.minimum(behind, still) > hopeless(first.point.size)) & (np.abs(still - behind) < CLOSE_SHARE * behind)
        return not nothing.all()

    def _climb_again(self, best: np.ndarray) -> None:
        """Climb to every peak once more, since the steps of filters are others."""
        before = 0 if self.tracked is None else self.tracked.evaluations
        batch = self.tracked = Tracked(self.functions.descent_function(), self.say)
        batch.evaluations, batch.best = before, best
        found = climb_all(batch, np.array([p.point for p in self.peaks]), self.scale, [], self.functions.coordinates.circular)
        searches = [0] * len(found)
        for peak in self.peaks if found else []:
            searches[int(np.argmin([q.distance(peak.point[None])[0] for q in found]))] += peak.searches
        self.peaks = [replace(q, searches=n) for q, n in zip(found, searches, strict=True)]

    def found(self) -> None:
        """Raise a ValueError if the searches have led nowhere."""
        if not self.peaks:
            raise ValueError(
                "the log posterior is finite at some prior draws, but neither its gradient there nor the log posterior where a "
                "search went: the filter hardly gets through the record. Give it finer steps (substeps), start=... with values "
                "that can explain the record, or narrower priors."
            )

    def _climb(self, batch: Tracked, starts: np.ndarray) -> None:
        rest, near = self._on_the_way(batch, starts)
        self.peaks = climb_all(batch, rest, self.scale, self.peaks, self.functions.coordinates.circular, near)
        self.searches += len(starts)
        self._leave_out_hopeless()

    def _on_the_way(self, batch: Tracked, starts: np.ndarray) -> tuple[np.ndarray, Descent | None]:
        """Search from starts (B, d) with a quarter of the steps; those that say too little, and where the others ended.

        Prior draws may need many steps, and the way to the modes few. An end counts if the log posterior there, and where the
        search began, is nearly the same with all steps.
        """
        model = self.functions.model
        coarser = a_quarter(model)
        # Where a search is short, to search a second time costs more than the way does.
        if self.functions.work() < LONG_WAY or any(c.substeps < COARSE for c in coarser.values()) or not coarser:
            return starts, None
        fine = batch(starts)[0]
        before = put_steps(coarser, model)
        try:
            tracked = Tracked(batch.batch, batch.say, batch)
            coarse = tracked(starts)[0]
            ends = descend(tracked, starts, self.scale, ROUNDS, NEAR_ENOUGH)
        finally:
            put_steps(before, model)
        values = batch(ends.x)[0]
        with np.errstate(invalid="ignore"):
            lower = fine - values
            alike = (np.abs(values - ends.value) < CLOSE) & (np.abs(coarse - fine) < CLOSE + CLOSE_SHARE * lower)
        alike &= lower > 0
        return starts[~alike], Descent(ends.x[alike], values[alike], ends.settled[alike])

    def _leave_out_hopeless(self) -> None:
        """Leave out maxima that hold nothing beside a peak with an edge, where there is no curvature of a maximum.

        Where a density rises without end, towards an edge of the space or towards no noise, the maxima stay: some place around
        is higher then.
        """
        if not self.peaks:
            return
        top = min(self.peaks, key=lambda p: p.value)
        worth = [p for p in self.peaks if not p.converged or p.value <= top.value + hopeless(top.point.size)]
        if top.converged or len(worth) == len(self.peaks) or any(p.converged for p in worth):
            return
        each = np.diag(self.scale)
        around = top.point + np.concatenate([step * each for probe in PROBES for step in (-probe, probe)])
        if np.max(self.functions.values(around)) <= RISE - top.value:
            self.peaks = worth

    def loosened(self, points: np.ndarray) -> Callable[[float], Batch]:
        """The log posterior with a diffusion added, in units of what the equations say of it at points."""
        sizes = []
        for diffusions in self.functions.diffusions(points):
            known = np.where(np.isfinite(diffusions), diffusions, np.nan)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                middle = np.nanmedian(known, axis=0)
            sizes.append(np.where(np.isfinite(middle), middle, 1.0))

        def function(factor: float) -> Batch:
            loose = self.functions.descent_function([factor * size for size in sizes])
            # Counted, but no place of the log posterior itself.
            return Tracked(loose, lambda _: self.say(f"tempering, diffusion {factor:g}"), self.tracked)

        return function

    def prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Prior draws, or none with the reason."""
        empty = np.empty((0, self.first.size))
        if n == 0:
            return empty
        try:
            draws = possible_draws(self.functions.coordinates, n, rng)
        except NotImplementedError:
            self.remarks.append("a prior cannot be drawn from (such as pm.Flat), so that there was one start")
            return empty
        self.drawn, self.draws = n, draws
        return draws

    def _nowhere(self, n: int) -> str:
        remedy = "give start=... with values that can explain the record, more prior_draws, or narrower priors"
        seen = f" and at all of {n} prior draws" if n else ""
        return f"the log posterior is minus infinity at {self.whose}{seen}, so that there is no mode to climb to; {remedy}."


def _result(hunt: Hunt, interrupted: bool) -> Mode:
    """The best of what was found, with its words."""
    tracked = hunt.tracked
    assert tracked is not None and tracked.best is not None
    peaks = hunt.peaks
    maxima = [p for p in peaks if p.converged]
    complaint = ""
    if interrupted and maxima:
        best = ranked(peaks)[0]
        complaint = "was interrupted; this is the best mode so far"
    elif interrupted:
        complaint = (
            "was interrupted; this is the best point so far, without its curvature. Go on from it, give start=..., or sample "
            "without it"
        )
        best = Peak(tracked.best, np.eye(tracked.best.size), tracked.lowest, False)
    else:
        best = ranked(peaks)[0]
        if not best.converged:
            complaint = (
                f"stopped at a point that is no clear maximum of the posterior{_where(hunt, best)}; look at the priors, "
                "or give start=..."
            )
        elif tracked.lowest < min(p.value for p in maxima) - 1.0:
            above = next((p for p in peaks if not p.converged), None)
            where = _where(hunt, above) if above is not None else ""
            complaint = (
                f"saw a log posterior of {-tracked.lowest:.6g} at a point that is no maximum{where}, above that of the "
                f"mode it returns, {-best.value:.6g}; look at the priors, or give start=..."
            )
    words = _words(hunt, maxima, best)
    against = _against_the_prior(hunt, best) if best.converged and not interrupted else ""
    complaint = " and ".join(filter(None, [complaint, against]))
    if complaint:
        warnings.warn(f"find_mode {complaint}.", stacklevel=3)
    elif hunt.searches > 1 or hunt.remarks:
        _log.info("find_mode: %s.", words)
    local = tuple(
        LocalMode(
            hunt.functions.free(p.point),
            p.point,
            -p.value,
            p.log_evidence,
            p.searches,
            p.covariance if np.isfinite(p.log_evidence) else None,
        )
        for p in [best, *(p for p in maxima if p is not best)]
    )
    message = f"{words}; it {complaint}" if complaint else words
    steps = substeps_attrs(hunt.functions.model)
    endless = any(not p.converged and p.value <= best.value and bool(_ran_away(hunt, p)) for p in peaks)
    last = message, steps, tracked.evaluations, hunt.searches, endless
    return Mode(local[0].initvals, best.point, best.covariance, -best.value, best.converged, local, *last)


def _words(hunt: Hunt, maxima: list[Peak], best: Peak) -> str:
    """What was searched and found."""
    if hunt.searches <= 1:
        begun = f"one search, from {hunt.whose}"
    else:
        begun = f"{hunt.searches} searches from the best of {hunt.drawn} prior draws and {hunt.whose}"
    reached = sum(p.searches for p in maxima)
    if not maxima:
        found = "no maximum"
    elif len(maxima) == 1:
        found = f"one mode (log posterior {-best.value:.2f})"
        found += "" if hunt.searches == 1 else f", to which {reached} of them led"
    else:
        ahead = best.log_evidence - maxima[1].log_evidence
        found = (
            f"{len(maxima)} modes; {best.searches} searches led to the best one (log posterior {-best.value:.2f}), whose log "
            f"evidence by Laplace is {ahead:.1f} above that of the next"
        )
        if best.searches == 1:
            found += (
                "; where one search alone leads to the best mode there may be a better one: try more starts, or prior_draws"
            )
    return "; ".join([f"{begun}: {found}", *hunt.remarks])


def _against_the_prior(hunt: Hunt, best: Peak) -> str:
    """Values at the best mode that the prior all but rules out, and what that may mean."""
    if not len(hunt.draws) or np.all((best.point >= hunt.draws.min(axis=0)) & (best.point <= hunt.draws.max(axis=0))):
        return ""
    found = []
    values = hunt.functions.free(best.point)
    for name, densities in hunt.functions.priors(np.concatenate([best.point[None], hunt.draws[:COMPARED]])).items():
        lower = np.median(densities[1:], axis=0) - densities[0]
        same = np.shape(lower) == np.shape(values[name])  # a multivariate prior has one density
        out = [i for i in np.ndindex(lower.shape) if lower[i] > IMPOSSIBLE]
        found += [f"{entry(name, i)} = {values[name][i]:.4g}" if same else name for i in out]
    if not found:
        return ""
    named = ", ".join([*found[:3], *(["..."] if len(found) > 3 else [])])
    return (
        f"found the best mode where the prior all but rules it out ({named}); "
        "look at the units of the record, the prior and the equations: one of them is wrong, or the likelihood fails where the "
        "prior is"
    )


def _ran_away(hunt: Hunt, peak: Peak) -> list[str]:
    """Coordinates that are far from all that the prior says, the farthest first."""
    off = np.abs(peak.point - hunt.centre) / hunt.scale
    return [hunt.functions.coordinates.labels[i] for i in np.argsort(-off) if off[i] > FAR] if hunt.drawn else []


def _where(hunt: Hunt, peak: Peak) -> str:
    """Which coordinates ran away, or where there is no curvature."""
    labels = hunt.functions.coordinates.labels
    if far := _ran_away(hunt, peak):
        return f" ({', '.join(far[:3])} ran away from the prior: the maximum may be at a bound, or at infinity)"
    if not np.all(np.isfinite(hunt.functions.values(_around(peak.point, hunt.scale)))):
        return " (it is at an edge of where the log posterior is finite)"
    _, vectors = np.linalg.eigh(peak.covariance)
    loose = np.abs(vectors[:, -1])
    flat = [labels[i] for i in np.argsort(-loose) if loose[i] > 0.5]
    return f" (it is flattest along {', '.join(flat)})" if flat else ""


def _around(point: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Points a little to both sides in each coordinate."""
    steps = np.diag(1e-2 * np.maximum(units(scale, point), np.abs(point)))
    return np.concatenate([point + steps, point - steps])


def unconstrained(point: Mapping[str, Any], model: pm.Model) -> dict[str, np.ndarray]:
    """Value variables for free variables given by name; names the model does not have are an error."""
    unknown = set(point) - {v.name for v in model.free_RVs}
    if unknown:
        names = [v.name for v in model.free_RVs]
        raise ValueError(
            f"the start has {list(map(str, unknown))}, no free variables of the model; it has {names}. "
            "Leave out what the model does not have, such as initial states of a fit, and give the free variables of which "
            "others are functions (b_scaled = b / scale)."
        )
    values = {}
    for rv in model.free_RVs:
        if rv.name not in point:
            continue
        number: Any = np.asarray(point[rv.name], dtype=float)
        transform = model.rvs_to_transforms[rv]
        if transform is not None:
            with np.errstate(all="ignore"):
                number = transform.forward(number, *model.replace_rvs_by_values(list(rv.owner.inputs))).eval()
        values[model.rvs_to_values[rv].name] = np.asarray(number)
    return values
