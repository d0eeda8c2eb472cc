"""What a fit says of its unknowns where a search has ended: their covariance, and whether it is a success, in words."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy

from pm_sysid.pem.between_samples import other_between
from pm_sysid.pem.coloured_noise import ALLOWED, DOUBTFUL, MISLED, PUSHED, allowing_for, coloured, runs_freely
from pm_sysid.pem.dead_time import dead_time
from pm_sysid.pem.disturbed import gain_by_process_noise
from pm_sysid.pem.far_errors import ROUGH, roughness, too_small
from pm_sysid.pem.left_over import SHORTER, LeftOver, efficient, left_over
from pm_sysid.pem.linearisation import linearisation_shift
from pm_sysid.pem.missing_terms import AS_LIKELY, LEAST, Shown, missing_term
from pm_sysid.pem.objective import LogLikelihood, Objective, SquaredErrors
from pm_sysid.pem.one_more import Directions, OneMore
from pm_sysid.pem.optima import Found
from pm_sysid.pem.sensor_faults import sensor_fault
from pm_sysid.pem.setup import Setup, Unknowns
from pm_sysid.pem.side_by_side import Coordinates
from pm_sysid.pem.uncertain_noise import boundless, has_process_noise, taken_from_noise, uncertain_noise
from pm_sysid.pem.uneven_noise import UNEVEN, Samples, evened, in_common, samples, sandwich, unevenness
from pm_sysid.pem.unseen import UNSEEN, changes, sizes, unseen_unknowns
from pm_sysid.records.remarks import FOLLOWS, Following, at_a_limit, following, held, limits_of, stood_still, wrapped

#: A standard deviation of noise with less information than this about its logarithm is as good as zero.
NEGLIGIBLE = 1e-3
#: Standard errors by which a measurement noise is too small, because unknowns fit a part of it, that are worth a word.
TAKEN = 0.5
#: Standard errors by which the linearisation of a filter may move an unknown without a word.
LINEARISED = 0.3
#: Standard errors by which what the record shows, and the model lacks, makes a fit wrong.
WRONG = 1.0
#: Standard errors by which what is predicted of samples at a limit lies beyond it.
BEYOND = 3.0
#: Logarithm of how much more likely a cause must make the record for standard errors to contain it, where it may be chance.
LIKELY = 6.0
#: Chance below which innovations follow an input beyond doubt.
MISSES = 1e-4
#: With fewer measurements than this beyond the unknowns, errors are not normal by far.
FEW_LEFT = 20
#: Measured values of an output that tell its noise, at least.
FEW_OF_NOISE = 3
#: Correlation of two unknowns from which on they are known in combination only.
ALIKE = 0.9995
#: Correlation of an output with that of the guess below which it has another sign.
AGAINST = -0.5
#: Factor by which innovations may differ from what numbers given for the noise say, and standard errors by which they must;
#: median of the magnitude of normal numbers.
SIZE, SURELY, MEDIAN = 1.25, 4.0, 0.6745
#: Share of what coloured noise of the sensors gains that random pushes on the states gain where they explain nearly as much.
NEARLY = 0.8
#: Share of the best gain by which inputs that move otherwise between the samples come before sensors and terms.
ALMOST = 0.8
#: Why standard errors may be too small where an input answers to innovations.
FED_BACK = "an input is correlated with the innovations"
#: Status of a guess outside its bounds, and of an impossible one.
INFEASIBLE, IMPOSSIBLE = -1, -2


class Lacking(NamedTuple):
    """What the record shows, and no unknown stands for: how much more likely it makes the record, words, and what to do.

    ``step`` (k,) is what the unknowns would move by, and ``counts`` whether errors have to allow for that.
    """

    gain: float
    words: str
    remedy: str
    wrong: bool
    step: np.ndarray
    counts: bool


class Conclusion:
    """What follows from where a search has ended.

    Attributes
    ----------
    success : bool
        Whether the search ended at an optimum that the record determines, with standard errors that hold.
    covariance : ndarray, shape (k, k)
        Of the unknowns: infinite for those that the record cannot tell, zero for those that are ``held``.
    allowed : ndarray, shape (k,)
        Squares of what a named cause would move the unknowns by. It is no part of the covariance: the model does not have it.
    held : ndarray of bool, shape (k,)
        Unknowns on a bound, and noise that is as good as zero.
    untold : list of int
        Initial states that are estimated by default, and that the record cannot tell.
    """

    def __init__(self, setup: Setup, target: Objective, found: Found) -> None:
        self.setup, self.target, self.found = setup, target, found
        self.x, self.evaluation, self.unknowns = found.solution.x, found.solution.evaluation, setup.unknowns
        self.success = found.solution.success and not found.doubt
        self.covariance = np.full((self.x.size, self.x.size), np.inf)
        self.held, self.unseen = (np.zeros(self.x.size, dtype=bool) for _ in range(2))
        self.allowed = np.zeros(self.x.size)
        self.untold: list[int] = []
        self._follows: Following | None = None
        self._by_innovations = False  # whether standard errors are by the size of innovations, whatever noise was given
        self._words = [found.doubt, found.solution.message]
        endless = isinstance(target, LogLikelihood) and boundless(target, self.x, setup.unknowns.x)
        searched = self.evaluation.finite and found.solution.status != INFEASIBLE
        rest = left_over(target, self.x, setup.unknowns.lower, setup.unknowns.upper) if searched else None
        if rest:
            self._of_what_is_left(rest)
            self._of_signs(rest)
        self._words.append(found.note)
        if found.solution.rates is not None:
            self._words.append(
                "The outputs do not move with the unknowns as their derivatives say (equations that switch, or chaos): "
                "optimum and standard errors are by differences."
            )
        if rest:
            self._of_unknowns(rest, endless)
        if endless:
            self._fails(
                "The likelihood has no maximum: the start, which is estimated, meets the first samples exactly, and the "
                "measurement noise vanishes. Leave out estimate=..., so that the filter finds the start, or give P0=... or the "
                "noise, R=...."
            )
        if rest and self.success and not self.untold:
            self._of_near_errors()
            self._of_far_errors()
        if rest and self.success:
            self._of_linearisation()
        self._rest = rest

    def look_beyond(self) -> None:
        """Whether the record shows what no unknown stands for. Errors of the integration, which look the same, come before."""
        self._look_for_causes()
        if self._rest is not None and not self.untold:
            self._of_size(self._rest)

    def _look_for_causes(self) -> None:
        """Causes that can be named: inputs and sensors that are other than told, terms that are missing."""
        rest = self._rest
        if rest is None or rest.noiseless or not (self.success or rest.coloured):
            return
        directions = Directions(self.target, self.errors, self._samples)
        if not self.success:  # for another reason, of which this may be the cause
            if late := self._of_dead_time(directions):
                self._words.append(f"{late.words} {late.remedy}")
            return
        self._of_limits(directions)
        inputs = self._of_inputs(rest, directions)
        sensors = self._of_sensors(rest, directions)
        dynamics = self._of_dynamics(rest, directions)
        late = self._of_dead_time(directions)
        lacking = sorted(filter(None, (inputs, sensors, dynamics, late)), key=lambda each: each.gain, reverse=True)
        if lacking:
            self._of_what_lacks(lacking, inputs, rest)
        self._of_missed_effects()

    def _of_missed_effects(self) -> None:
        """Innovations that follow an input are no noise: standard errors do not know what the model misses."""
        follows = self._follows
        if not self.success or follows is None or not (follows.lag > 0 and follows.clear and follows.p < MISSES):
            return
        if np.any(self.held & ~self._positive):  # a bound may be what the model misses, and errors hold given that
            return
        self._fails(
            "Estimates may be off by more than any standard errors say, since the model misses a part of the effect of "
            f"{follows.input}. Add what is missing (a term, a gain, a delay), or leave it to process noise (Q=...)."
        )

    def _of_what_lacks(self, lacking: list[Lacking], inputs: Lacking | None, rest: LeftOver) -> None:
        """Name what makes the record most likely; it is no success where that is the cause of what is seen."""
        # Causes look like each other, and the one that makes the record most likely comes first; or other inputs, which have no
        # size of their own that could be fitted.
        best = inputs if inputs is not None and inputs.gain > ALMOST * lacking[0].gain else lacking[0]
        also = [each for each in lacking if each is not best and (each.wrong or each.gain > best.gain - AS_LIKELY)]
        named = [best, *also]
        if any(each.wrong for each in lacking):
            remedies = " ".join(dict.fromkeys(each.remedy for each in named))
            self._fails(f"{' Or: '.join(each.words for each in named)} {remedies}")
            return
        # A cause may be a part of what is wrong, and the unknowns as far off as it says.
        self.allowed = np.max([each.step**2 if each.counts else 0.0 * each.step for each in named], axis=0)
        allow = " The standard errors allow for that."
        words = " Or: ".join(each.words + (allow if each.counts else "") for each in named)
        self._words.append(words + (" So may a term that is missing." if best is inputs and rest.coloured else ""))

    @property
    def message(self) -> str:
        """All that is said."""
        return " ".join(filter(None, self._words))

    @property
    def errors(self) -> np.ndarray:
        """Standard errors (k,)."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.diag(self.covariance) + self.allowed)

    def _fails(self, why: str) -> None:
        self.success = False
        self._words.insert(0, why)

    def _named(self, marked: np.ndarray) -> list[str]:
        return [n for n, m in zip(self.unknowns.layout.names, marked, strict=True) if m]

    @property
    def _positive(self) -> np.ndarray:
        """Unknowns that are standard deviations of noise."""
        return self.unknowns.layout.positive

    def _of_what_is_left(self, rest: LeftOver) -> None:
        """Whether the fit explains the outputs, and whether it leaves noise."""
        self.success = self.success and not rest.explains_nothing
        self._words.append(rest.words)
        if rest.noiseless:
            self._words.append(
                f"What is left of the outputs ({np.sqrt(rest.share):.1g} of their spread) is rounding and errors of the "
                "integration, and no noise: standard errors mean little."
            )

    def _of_signs(self, rest: LeftOver) -> None:
        """Outputs that go the other way at the guess, where nothing fits: nobody guesses that badly of all unknowns."""
        if self.success or not (rest.poor or rest.explains_nothing):
            return
        records = self.target.filter.records
        y = np.concatenate([r.output_matrix for r in records])
        predicted = y - self.target.outputs(self.unknowns.x[None])[0][:, : y.shape[1]]
        against = []
        for name, measured, run in zip(records[0].outputs, y.T, predicted.T, strict=True):
            there = np.isfinite(measured) & np.isfinite(run)
            if there.sum() < FEW_LEFT or not (np.ptp(measured[there]) > 0 and np.ptp(run[there]) > 0):
                continue
            correlation = float(np.corrcoef(measured[there], run[there])[0, 1])
            if correlation < AGAINST:
                against.append(f"{name} (correlation {correlation:.2f})")
        if against:
            self._words.insert(
                0,
                f"At the guess the model goes the other way than the record in {' and '.join(against)}: a sensor, an input "
                "or a term of the equations may have the wrong sign.",
            )

    def _of_unknowns(self, rest: LeftOver, endless: bool) -> None:
        """Which unknowns the record tells, and the covariance of these."""
        target, x, evaluation = self.target, self.x, self.evaluation
        size = changes(self.target, x, self.unknowns.x)
        weight = evaluation.information * np.outer(size, size)
        scale = 1.0 if not isinstance(target, SquaredErrors) else 0.5 * target.count / max(evaluation.value, 1e-300)
        gone = self._positive & (np.diag(weight) * scale < NEGLIGIBLE)
        on_bound = _on_bound(self.unknowns, x)
        self.unseen, given = unseen_unknowns(target, evaluation, weight, ~(on_bound | gone))
        self.held = on_bound | gone
        free = ~(self.held | given)
        self.covariance = np.zeros((x.size, x.size))
        if free.any():
            self._of_innovations(rest, free)
        self._of_noise(free, gone)
        self._of_few(rest, free)
        if at_bound := self._named(on_bound & ~gone):
            there = "this value" if len(at_bound) == 1 else "these values"
            self._words.append(f"At their bounds: {at_bound}. The standard errors of the others hold given {there}.")
        if self.unseen.any():
            self._of_unseen(rest, weight, endless)

    def _of_innovations(self, rest: LeftOver, free: np.ndarray) -> None:
        """Covariance of ``free`` unknowns by innovations that may be correlated in time, of several sizes, or in common."""
        target, inside = self.target, np.ix_(free, free)
        self.covariance[inside] = target.covariance(self.evaluation, free)
        each = self._samples
        own = each._replace(standardised=efficient(target, each.standardised, each.slope[:, free]))
        p, shared = unevenness(target, own, free), in_common(target, own)
        if p < UNEVEN or shared:
            self.covariance[inside] = sandwich(target, each, free, uneven=p < UNEVEN)
            self._by_innovations = True
        colour = coloured(target, evened(target, own, free) if p < UNEVEN else own, free)
        records = target.filter.records
        follows = self._follows = None if rest.noiseless else self._following(own)
        if (colour or rest.coloured) and not rest.noiseless:
            seen = colour.words if colour else f"The innovations are not white (p = {rest.p:.1g}; see resid())"
            means = MISLED
            if runs_freely(target, self.x):
                allowing = allowing_for(target, each, free, self.covariance[inside])
                self.covariance[inside] = allowing.covariance
                doubt = allowing.doubt
                if not doubt and gain_by_process_noise(target, self.x) > NEARLY * allowing.gain:
                    doubt = PUSHED
                means = DOUBTFUL.format(doubt) if doubt else ALLOWED
                means = DOUBTFUL.format(FED_BACK) if follows and (follows.lag <= 0 or not follows.clear) else means
            self._words.append(f"{seen}: {means}")
        elif p < UNEVEN and not rest.noiseless:
            self._words.append(
                f"The noise is not of one size: it varies with the output, in time or between records (p = {p:.1g}; see "
                "resid()). The standard errors allow for that; a likelihood with such noise (ODEFilter) would learn more from "
                "the quiet samples."
            )
        self._words += [follows.words(coloured=bool(colour or rest.coloured)) if follows else "", held(records)]
        if not rest.noiseless:
            self._words += [at_a_limit(records), wrapped(records), stood_still(records)]
        if shared:
            self._words.append(
                f"The innovations of {shared.first} and {shared.second} at one time are correlated "
                f"({shared.correlation:.2g}), and the likelihood takes them for independent. The standard errors allow for "
                "that."
            )

    def _following(self, own: Samples) -> Following | None:
        """Whether innovations follow an input, or an input them, in the record where this is plainest."""
        errors, records = np.full(self.target.measured.shape, np.nan), self.target.filter.records
        errors[self.target.measured] = own.standardised
        of_records = zip(records, np.split(errors, np.cumsum([len(r) for r in records])[:-1]), strict=True)
        found = [following(e, record) for record, rows in of_records for e in rows.T if record.inputs]
        first = min((f for f in found if f), key=lambda f: f.p, default=None)
        return first if first and first.p * len(found) < FOLLOWS else None

    @property
    def _predicted(self) -> np.ndarray:
        """Outputs (n, outputs) at samples where all are measured, as they were predicted."""
        y = np.concatenate([r.output_matrix for r in self.target.filter.records])
        predicted = y - self.target.outputs(self.x[None])[0][:, : y.shape[1]]
        return np.asarray(predicted[np.isfinite(predicted).all(axis=1)])

    @cached_property
    def _samples(self) -> Samples:
        return samples(self.target, self.x, self.found.solution.rates)

    def _of_noise(self, free: np.ndarray, gone: np.ndarray) -> None:
        """What a likelihood does not count: process noise that may be there, and measurement noise that unknowns have taken."""
        target, x, names, below = self.target, self.x, self.unknowns.layout.names, ""
        if isinstance(target, LogLikelihood) and free.any() and has_process_noise(target):
            c = Coordinates(target, self.unknowns.lower, self.unknowns.upper, abs(self.evaluation.value))
            uncertain = uncertain_noise(c, x, self.evaluation, free, gone, self.unknowns.x)
            allowed = np.maximum(uncertain.ratio / target.enlarged(free), 1.0)
            self.covariance *= np.outer(allowed, allowed)
            limits = [f"{names[j]} < {limit:.3g}" for j, limit in uncertain.limits.items()]
            below = f" ({', '.join(limits)} with a chance of 95 %, which the standard errors allow for)" if limits else ""
        elif isinstance(target, LogLikelihood) and free.any():
            noise = free & self._positive
            off = x * (taken_from_noise(self._samples, noise, free & ~noise) - 1.0)
            if np.any(far := off > TAKEN * np.sqrt(np.diag(self.covariance))):
                larger = ", ".join(f"{names[j]} = {x[j] + off[j]:.3g}" for j in np.flatnonzero(far))
                self._words.append(
                    f"{int(np.sum(free & ~noise))} unknowns fit a part of the noise of {int(target.measured.sum())} measured "
                    f"values, which a likelihood does not count: with it, {larger}. The standard errors allow for that."
                )
            self.covariance[np.diag_indices_from(self.covariance)] += off**2
        if gone.any():
            self._words.append(f"No noise is seen in {self._named(gone)}: as good as zero{below}.")
        measured = self._measured_by_noise()
        few = [k for k in np.flatnonzero(self._positive) if 0 < measured[k] < FEW_OF_NOISE]
        if few:
            each = [f"{names[k]} is estimated from {measured[k]} measured value{'s' if measured[k] > 1 else ''}" for k in few]
            self._fails(
                f"{'; '.join(each)}: the other unknowns can fit these exactly, and they then count as if they had no "
                "noise. Give a number (R=...)."
            )

    def _of_size(self, rest: LeftOver) -> None:
        """Whether innovations are as large as a noise says whose size was given: standard errors have no other source."""
        target = self.target
        if not isinstance(target, LogLikelihood) or self._positive.any() or rest.noiseless:
            return
        z = np.full(target.measured.shape, np.nan)
        z[target.measured] = self._samples.standardised
        taken = int(np.sum(~(self.held | self.unseen)))  # unknowns fit a part of the noise
        # Of a full covariance each output is standardised given those before it.
        each = {name: z[:, i] for i, name in enumerate(target.filter.records[0].outputs)}
        each = each if target.filter.n_noise == z.shape[1] else {" and ".join(each): z.ravel()}
        larger, smaller = list[str](), list[str]()
        for name, one in each.items():
            left = int(np.isfinite(one).sum()) - taken / len(each)
            if left <= 1:
                continue
            size = float(np.sqrt(np.nansum(one**2) / left))
            typical = float(np.nanmedian(np.abs(one)) / MEDIAN)  # of which outliers know little
            if max(size, 1 / size) < SIZE or abs(size - 1.0) < SURELY * max(size, 1.0) / np.sqrt(2.0 * left):
                continue
            if size < 1.0:
                smaller.append(f"those of {name} {size:.2g}")
            elif typical > SIZE:
                larger.append(f"those of {name} {size:.2g}")
            else:
                most = float(np.nanmax(np.abs(one)))
                self._words.append(
                    f"Some innovations of {name} are far larger than the others (up to {most:.2g} standard deviations of the "
                    "noise that was given): mark outliers as missing (NaN)."
                )
        given = "Q and R say" if target.filter.n_process else "R says"
        if smaller:
            self._words.append(
                f"Innovations are smaller than {given} ({', '.join(smaller)} times as large): standard errors may be larger "
                'than they need to be. Let the record tell the noise (R="estimate").'
            )
        if larger:
            why = (
                f"Innovations are larger than {given} ({', '.join(larger)} times as large): the noise is larger, or the model "
                'lacks dynamics. Let the record tell the noise (R="estimate"), or give a number that it bears out.'
            )
            if self._by_innovations:  # errors are those of the innovations as they are
                self._words.append(why)
            elif self.success:
                self._fails(f"The standard errors are too small. {why}")
            else:  # for a reason that may be the cause
                self._words.append(f"{why} The standard errors are those of a smaller noise.")

    def _measured_by_noise(self) -> np.ndarray:
        """How many values (k,) each unknown that is a measurement noise is the standard deviation of; zero for the others."""
        filter, layout, measured = self.target.filter, self.unknowns.layout, self.target.measured
        first, found = len(filter.system.params) + filter.n_process, np.zeros(self.x.size, dtype=int)
        if filter.n_noise == measured.shape[1]:  # else a full covariance, whose outputs share
            for slot, source in zip(layout.slots, layout.sources, strict=True):
                if slot >= first:
                    found[source] += int(measured[:, slot - first].sum())
        return found

    def _of_few(self, rest: LeftOver, free: np.ndarray) -> None:
        """What the errors are where few measurements tell the noise."""
        over = int(self.target.measured.sum()) - int(np.sum(free & ~self._positive))
        finds_noise = isinstance(self.target, SquaredErrors) or bool((free & self._positive).any())
        if finds_noise and 0 < over < FEW_LEFT and not rest.noiseless:
            self._words.append(
                f"Only {over} measurements are left to tell the noise, so that errors have a t distribution: an interval of "
                f"95 % is ± {float(scipy.stats.t.ppf(0.975, over)):.1f} standard errors."
            )

    def _of_unseen(self, rest: LeftOver, weight: np.ndarray, endless: bool) -> None:
        """Unknowns that the record cannot tell: among them initial states that nobody asked for."""
        layout, unseen = self.unknowns.layout, self.unseen
        self.covariance[unseen] = self.covariance[:, unseen] = 0.0
        self.covariance[unseen, unseen] = np.inf
        self.success = False
        # What the record says at an optimum that was hit by chance, and is poor, is not what it says.
        if self.setup.by_default and not (rest.poor and self.found.doubt):
            own = np.isin(np.arange(unseen.size), layout.x0_sources[layout.x0_sources >= self.unknowns.n_leaves])
            # What cannot be told from parameters is no number that may be taken in their place: these would follow it.
            alone = unseen_unknowns(self.target, self.evaluation, weight, unseen & own)
            starts = np.flatnonzero(alone.unknowns).tolist()
            # Those without any trace together; of those that cannot be told from each other, one.
            blind = np.sqrt(np.diag(weight)) <= UNSEEN * np.sqrt(np.diag(weight).max())
            self.untold = [i for i in starts if blind[i]] or starts[-1:]
        if not endless and self.found.doubt and rest.coloured:  # the first thing to mend is that
            self._words.append(
                f"The record cannot tell {self._named(unseen)} at this optimum, which may be the wrong one: what it tells at "
                "the right one is not known."
            )
        elif not endless:
            known = ", give what is known of the start (x0=...)" if np.any(unseen & layout.initial) else ""
            self._fails(
                f"The record cannot tell {self._named(unseen)} (from each other, or at all): the prediction errors do not "
                f"change with them. Fix some (fixed=...){known}, or excite them."
            )
        if self.setup.by_default and not np.any(np.ptp(self._predicted, axis=0) > 0):
            self._words.append(
                "The solution stands still from where the first samples say that it starts; excite it, or give a guess for the "
                "state, x0=InitialState(...)."
            )
        if stepped := [layout.names[i] for i in np.flatnonzero(unseen) if self._moves_in_steps(int(i))]:
            self._fails(
                f"The prediction errors change with {stepped} in jumps alone (a threshold of a switch), which no derivative "
                "shows: make the switch smooth (such as a steep tanh), or fit with several fixed values."
            )

    def _of_near_errors(self) -> None:
        """Whether the fit worsens two standard errors away as much as it should."""
        unknowns = self.unknowns
        ripple = roughness(self.target, self.x, self.evaluation, self.covariance, unknowns.lower, unknowns.upper)
        if ripple <= ROUGH:
            return
        worse = (
            f"Two standard errors away, the fit worsens {ripple:.2g} times as much as the standard errors say: they do not hold"
        )
        if pair := self._in_combination():
            first, second, r = pair
            self._fails(
                f"{worse}. {first} and {second} are known in combination only (correlation {r:.6f}), along a valley that is "
                "bent. Give the equations parameters that are less alike: the logarithm of a factor, a rate at a reference "
                "value in place of a factor and an exponent (Arrhenius), or fix one of the two (fixed=...)."
            )
            return
        self._fails(f"{worse}, and other optima as good as this one may be near, since neighbouring solutions part. {SHORTER}")

    def _in_combination(self) -> tuple[str, str, float] | None:
        """Two unknowns that the record hardly tells apart, and their correlation; None where there are none."""
        variance = np.diag(self.covariance)
        known = np.flatnonzero(np.isfinite(variance) & (variance > 0) & ~self._positive)
        if known.size < 2:
            return None
        sd = np.sqrt(variance[known])
        correlation = np.triu(self.covariance[np.ix_(known, known)] / np.outer(sd, sd), 1)
        i, j = np.unravel_index(np.argmax(np.abs(correlation)), correlation.shape)
        if not abs(correlation[i, j]) > ALIKE:
            return None
        names = self.unknowns.layout.names
        return names[known[i]], names[known[j]], float(correlation[i, j])

    def _of_far_errors(self) -> None:
        """Whether standard errors hold four of them away."""
        unknowns = self.unknowns
        short = too_small(self.target, self.x, self.evaluation, self.errors, unknowns.lower, unknowns.upper)
        if not short.any():
            return
        named = self._named(short)
        if self.setup.by_default and not np.any(short & ~unknowns.layout.initial):
            # Nobody asked for these, and the others' errors hold.
            self._words.append(f"The record says little of the initial states {named}: their standard errors are too small.")
            return
        self._fails(
            f"The standard errors of {named} are too small: four of them away the fit is hardly worse, since the record says "
            "little of these unknowns. Sample the posterior (sid.sample), fix some (fixed=...), or use a longer record."
        )

    def _of_linearisation(self) -> None:
        """What the linearisation of an extended Kalman filter costs beside the standard errors."""
        shift = linearisation_shift(self.target, self.x, self.errors)
        with np.errstate(invalid="ignore", divide="ignore"):
            moved = np.nan_to_num(np.abs(shift) / self.errors)
        most = int(np.argmax(moved))
        if moved[most] <= LINEARISED:
            return
        self._words.append(
            f"The filter linearises: without that, {self.unknowns.layout.names[most]} would move by {moved[most]:.2g} standard "
            "errors. The standard errors allow for that; give predictor=UnscentedKalman(...)."
        )
        self.covariance = self.covariance + np.diag(shift**2)

    def _of_limits(self, directions: Directions) -> None:
        """Whether samples at the largest or smallest value of an output, as of a sensor that ends there, move an unknown."""
        records, seen = self.target.filter.records, self.target.measured
        limits = limits_of(records) if directions.known else []
        if not limits:
            return
        y, names = np.concatenate([r.output_matrix for r in records]), list(records[0].outputs)
        of = np.repeat(np.arange(len(records)), [len(r) for r in records])
        there = np.zeros((len(limits), *seen.shape), dtype=bool)
        for limit, at in zip(limits, there, strict=True):
            i = names.index(limit.output)
            at[:, i] = seen[:, i] & (y[:, i] == limit.level) & ((limit.record < 0) | (of == limit.record))
        without = directions.without(there.any(axis=0)[seen])
        if not without.moved > WRONG:
            return
        errors = np.zeros(seen.shape)
        errors[seen] = without.there
        for limit, at in zip(limits, there, strict=True):
            i = names.index(limit.output)
            rest = errors[seen[:, i] & ~there.any(axis=0)[:, i], i]
            # A sensor cuts off what goes on behind it. A response that has settled there, or a model that ends there itself,
            # predicts the same for all of these samples.
            beyond = errors[at] if limit.which == "smallest" else -errors[at]
            if np.std(beyond) > np.std(rest) and np.mean(beyond) > BEYOND * np.std(rest) / np.sqrt(len(beyond)):
                name = self.unknowns.layout.names[without.unknown]
                moved = f"{without.moved:.2g} standard errors or more"
                self._fails(f"Without the samples at a limit, {name} would move by {moved}.")
                return

    def _of_inputs(self, rest: LeftOver, directions: Directions) -> Lacking | None:
        """Whether inputs that move in another way between the samples explain the record better, or as well."""
        bounds = self.unknowns.lower, self.unknowns.upper
        other = other_between(self.target, self.x, self.errors, *bounds, directions)
        if other is None:
            return None
        names = " and ".join(self.target.filter.records[0].inputs)
        (own,) = {r.intersample for r in self.target.filter.records if r.inputs}
        moves = f"{self.unknowns.layout.names[other.unknown]} then moves by {other.moved:.2g} standard errors"
        as_told = f"{names} between the samples: intersample={other.intersample!r}"
        if other.preferred:
            words = f"{as_told} explains the record better than {own!r}, e^{other.gain:.3g} times as likely; {moves}."
            remedy = "Give the one that is true, or a higher sampling rate."
            counts = other.clear or not rest.coloured
            return Lacking(other.gain, words, remedy, counts and other.moved > WRONG, other.step, counts)
        if other.counts:
            self._words.append(
                f"{as_told} explains the record about as well as {own!r} (e^{other.gain:.2g} times as likely), and {moves}: "
                f"the standard errors hold given {own!r}."
            )
        return None

    def _of_dead_time(self, directions: Directions) -> Lacking | None:
        """Whether inputs that act later or earlier explain the record better."""
        late = dead_time(self.target, self.x, self.errors, self.unknowns.lower, self.unknowns.upper, directions)
        if late is None:
            return None
        n, inputs = abs(late.samples), self.target.filter.records[0].inputs
        named, acts = " and ".join(inputs), "act" if len(inputs) > 1 else "acts"
        when = f"{n} sample{'s' if n > 1 else ''} ({abs(late.seconds):.3g} s) {'later' if late.samples > 0 else 'earlier'}"
        words = (
            f"The record is better explained if {named} {acts} {when} than it has that, e^{late.gain:.3g} times as likely; "
            f"{self.unknowns.layout.names[late.unknown]} then moves by {late.moved:.2g} standard errors."
        )
        remedy = "Shift the input in the record by a dead time, or correct its times."
        return Lacking(late.gain, words, remedy, late.moved > WRONG, late.step, True)

    def _of_sensors(self, rest: LeftOver, directions: Directions) -> Lacking | None:
        """Whether an offset, a drift or a delay of a sensor, which no unknown stands for, explains the record better."""
        fault = sensor_fault(self.target, self.x, directions)
        if fault is None:
            return None
        # As for a term: one that leaves white innovations has coloured them.
        wrong = fault.sure and fault.seen.moved > WRONG and (not rest.coloured or directions.white(fault.seen.left))
        remedy = "Correct the record (sid.detrend, a shift in time), or make it a parameter."
        return self._lacking(fault.words, fault.seen, fault.sure, wrong, remedy)

    def _of_dynamics(self, rest: LeftOver, directions: Directions) -> Lacking | None:
        """Whether a term that the equations lack explains the record better."""
        missing = missing_term(self.target, self.x, directions, len(self.setup.walks))
        if missing is None:
            return None
        remedy = "Add it to the dynamics, with a parameter as factor; or leave to process noise (Q=...) what has no name."
        # Where innovations are not white, one that leaves white ones is what the model lacks; others may be a part of that.
        wrong = missing.sure and missing.seen.moved > WRONG and (not rest.coloured or directions.white(missing.seen.left))
        likely = LEAST if missing.shown is Shown.SUSPECTED else LIKELY
        return self._lacking(missing.words, missing.seen, missing.sure, wrong, remedy, likely)._replace(step=missing.step)

    def _lacking(self, what: str, seen: OneMore, sure: bool, wrong: bool, remedy: str, likely: float = LIKELY) -> Lacking:
        """What the record shows, or may show."""
        # Likelihoods of correlated innovations differ by too much.
        counts = sure or seen.gain > likely * seen.correlated
        return Lacking(seen.gain, self._shown(what, seen, sure), remedy, wrong, seen.step, counts)

    def _shown(self, what: str, seen: OneMore, sure: bool) -> str:
        """What the record shows, and what it does to the unknown that moves most."""
        by = f"{abs(seen.step[seen.unknown]):.2g} ({seen.moved:.2g} standard errors without it)"
        moved = f"{self.unknowns.layout.names[seen.unknown]} would move by {by}"
        return f"The record {'shows' if sure else 'may show'} {what}, which the model lacks; with it, {moved}."

    def _moves_in_steps(self, i: int) -> bool:
        """Whether an unknown whose derivatives are all zero changes the objective where it is moved by a tenth of itself."""
        evaluation = self.target.evaluate(self.x)
        if evaluation.information[i, i] > 0:
            return False
        points = np.tile(self.x, (2, 1))
        points[:, i] += np.array([-0.1, 0.1]) * sizes(self.x)[i]
        values = self.target.values(np.clip(points, self.unknowns.lower, self.unknowns.upper))
        return bool(np.any(np.isfinite(values) & (np.abs(values - evaluation.value) > 1e-9 * abs(evaluation.value))))


def _on_bound(unknowns: Unknowns, x: np.ndarray) -> np.ndarray:
    """Unknowns that lie on a bound."""
    tolerance = 1e-7 * sizes(x)
    on = (x - unknowns.lower <= tolerance) | (unknowns.upper - x <= tolerance)
    return np.asarray(on & ~unknowns.layout.positive)
