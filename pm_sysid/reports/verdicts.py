"""What diagnostics mean, in sentences, each good, worth a look, or bad."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr

from pm_sysid.inference.mode_check import PROBLEM
from pm_sysid.posterior.intersample_check import COUNTS, MORE_LIKELY
from pm_sysid.posterior.intersample_check import SMALL as SMALL_SHIFT
from pm_sysid.posterior.intersample_check import WRONG as WRONG_SHIFT
from pm_sysid.posterior.process_check import MUCH, TOLERATED
from pm_sysid.posterior.reweighting import FINE, HALF, STRETCHED, VISIBLE, WIDE
from pm_sysid.records.overlap import STRETCH
from pm_sysid.records.residual_tests import ResidualTests, Together
from pm_sysid.records.steadiness import Part
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.reports.diagnostics import Diagnostics
from pm_sysid.reports.learned import Learned
from pm_sysid.sampling.convergence import ESS_INTERVALS, ESS_MEANS, R_HAT_AGREES, R_HAT_DISAGREES, chains_that_missed
from pm_sysid.sampling.smc.stages import final, log_evidence, stages

#: Error of the log evidence, and effective share of the last proposals, that are worth a look.
EVIDENCE_ERROR, PROPOSALS = 1.0, 0.05
#: Posterior standard deviation, as a part of the prior's, above which the prior decides, both of normal scores; correlation of
#: these above which two parameters are known in combination only, unless both have a posterior as narrow as the last.
PRIOR_DECIDES, IN_COMBINATION, WELL_KNOWN = 0.8, 0.95, 0.1
#: Share of the prior beyond the posterior's median below which this is outside what was held likely.
OUTSIDE = 0.002
#: Level of the tests of residuals; share of lags outside the bounds above which colour is a problem; standard deviation of
#: standardised innovations, outside of which the noise is worth a look whatever its error.
ALPHA, COLOURED, SPREAD = 0.01, 0.3, (0.8, 1.25)
#: Factor by which this standard deviation may be off however significant that is.
SPREAD_SURE = 1.1
#: Mean of residuals, in their standard deviations, up to which an offset is of no consequence however significant, and above
#: which it is a problem.
OFFSET = (0.05, 0.5)
#: Correlation between the innovations of two outputs up to which it is of little consequence, and above which it is a problem.
COMMON = (0.1, 0.5)
#: Error of a free run, in units of the noise, up to which it is noise, and up to which it is small.
NOISE_ONLY, SMALL = 1.2, 3.0
#: Fit of a free run in percent below which it is poor, and above which it is accurate, whatever the noise.
POOR_FIT, ACCURATE_FIT = 50.0, 90.0
#: Share of free runs, drawn from the prior of what was not recorded, that are as far from the others as the measurement, and
#: of those that are nearer, below which the measurement is no such run.
UNLIKE = 0.025
#: What makes a problem of another likelihood, where posterior draws are weighted by it.
BAD = f"problem: by {VISIBLE:g}, by {100 * (WIDE - 1):.0f} %, or less than {100 * HALF:.0f} of 100 draws would still count"
#: Part of the range of the fit by which a record of validation may go beyond it.
BEYOND = 0.1

#: What the page on reports says: the verdict, the criterion for a problem, and the remedy.
TABLE = (
    ("what `sid.sample` says", "its draws are not trusted (problem)", "what its verdict says"),
    (
        "chains agree",
        f"R-hat above {R_HAT_AGREES} ({R_HAT_DISAGREES}: problem)",
        "more draws; start at `find_mode`; `sample_ibis`",
    ),
    (
        "nothing missed",
        "a chain of `DataAnnealing` cannot say whether it has missed a part, or says that it may have (problem)",
        "more draws; `sample_ibis`",
    ),
    (
        "no other modes",
        "`sid.check_modes`, for draws that neither `sid.sample` nor `sample_ibis` has made: searches from draws of the prior "
        "find modes that the draws lack, by the model's filter steps or by finer ones (problem: with "
        f"{100 * PROBLEM:g} % of the posterior, or where they move a mean by {VISIBLE:g} standard deviations or widen one by "
        f"{100 * (WIDE - 1):.0f} %); or it cannot be told",
        "`sid.sample`; more filter steps; a prior that rules them out",
    ),
    ("enough draws", f"effective sample size below {ESS_INTERVALS} ({ESS_MEANS}: problem)", "more draws"),
    (
        "log evidence",
        f"its error is above {EVIDENCE_ERROR:g}, or less than {100 * PROPOSALS:g} % of the last proposals were effective "
        "(problem: `log_evidence` has a doubt)",
        "more particles, several chains",
    ),
    (
        "the record decides",
        f"posterior standard deviation above {PRIOR_DECIDES:g} of the prior's, of a parameter or a combination of two (both of "
        f"normal scores by the prior); or less than {100 * OUTSIDE:g} % of the prior beyond the posterior's median",
        "more excitation, or a prior from knowledge instead of a guess",
    ),
    (
        "known in combination only",
        f"correlation of ranks (normal scores) above {IN_COMBINATION:g}, and a posterior standard deviation of one of the two "
        f"above {WELL_KNOWN:g} of the prior's",
        "fix one of the two, or use an excitation that distinguishes them",
    ),
    (
        "innovations are white",
        f"Ljung-Box test, and correlation with any input, at the {100 * ALPHA:g} % level (problem: {100 * COLOURED:g} % of "
        "lags outside the bounds)",
        "another structure; [meaning of the residuals](../theory/residuals.md)",
    ),
    (
        "innovations are centred on zero",
        f"mean significant at the {100 * ALPHA:g} % level, and above {OFFSET[0]:g} of their standard deviation "
        f"({OFFSET[1]:g}: problem)",
        "an unknown offset of the sensor or of the input as a parameter, or a detrended record (`sid.detrend`)",
    ),
    (
        "innovations are steady",
        f"a part of the record differs from the rest at the {100 * ALPHA:g} % level: in the mean, by more than {OFFSET[0]:g} "
        f"of the standard deviation, or in the size, by a factor outside {SPREAD[0]:g} to {SPREAD[1]:g}",
        "leave that part out (NaN), or describe a drift (`coloured=`) or an unknown force (`latent=`); the logarithm as output "
        "where noise grows with the signal",
    ),
    (
        "outputs err independently",
        f"correlation between the innovations of two outputs significant at the {100 * ALPHA:g} % level, and above "
        f"{COMMON[0]:g} ({COMMON[1]:g}: problem)",
        "correlated noise (`sid.Correlated`); a disturbance that both measure (`latent=`)",
    ),
    (
        "size of the innovations",
        f"standard deviation outside {SPREAD[0]:g} to {SPREAD[1]:g} of what the model says, or more than "
        f"{100 * (SPREAD_SURE - 1):.0f} % off and significant at the {100 * ALPHA:g} % level",
        "check the noise",
    ),
    (
        "integration error",
        f"`sid.check_substeps`: means change by more than {FINE:g} standard deviations, or standard deviations by more than "
        f"{100 * (STRETCHED - 1):.0f} %, at half the step ({BAD}; no problem with a diffusion that is a parameter, to which "
        "the number of steps belongs)",
        "`sid.set_substeps` twice as many, or a higher order; sample again",
    ),
    (
        "linearised initial state",
        "`sid.check_initial_state`, where the initial state is uncertain (`x0_std`, or no `x0`), and the system not linear or "
        f"its sensor not Gaussian: means change by more than {FINE:g} standard deviations, or standard deviations by more than "
        f"{100 * (STRETCHED - 1):.0f} %, with the initial state integrated out ({BAD})",
        "make the initial state a PyMC variable and sample again",
    ),
    (
        "linearised processes",
        "`sid.check_processes`, where there are processes and the system is not linear or its sensor not Gaussian: means "
        f"change by more than {TOLERATED:g} standard deviations, standard deviations by more than {100 * (WIDE - 1):.0f} %, or "
        f"the log evidence by more than {MUCH:g}, with the processes integrated out by particles (problem), beyond what chance "
        "does",
        "a force of a few parameters; the record of a sensor turned back into what it measures",
    ),
    (
        "inputs between the samples",
        f"`sid.check_intersample`, where there are inputs: the record is more than e^{MORE_LIKELY:g} times as likely with "
        f"another `intersample`, and means change by more than {SMALL_SHIFT:g} standard deviations (problem: by "
        f"{WRONG_SHIFT:g}); or it is about as likely, and means change by more than {COUNTS:g}; or one cannot be compared",
        "`record.replace(intersample=...)` with the true one, sample again; a higher sampling rate",
    ),
    (
        "free run",
        f"error above {NOISE_ONLY:g} times the noise (up to {SMALL:g}: small; no problem where the diffusion is a parameter, "
        f"which stands for process noise); or fit below {POOR_FIT:g} %; or innovations, or what the run leaves, are no noise, "
        "whatever the size of the error",
        "another structure, another `intersample`",
    ),
    (
        "with a process inferred",
        f"error of the outputs above {NOISE_ONLY:g} times the noise (above {SMALL:g}: problem); fit below {POOR_FIT:g} % "
        "(problem, unless the error is as large as the noise and innovations are noise); innovations are no noise; or the "
        f"known inputs alone explain less than {POOR_FIT:g} %",
        "another process or structure; a record in which the known inputs do more",
    ),
    (
        "free run where a process is drawn from its prior",
        f"fewer than {100 * UNLIKE:g} % of the runs are as far from the others as the measurement (problem, if its initial "
        f"state was given), or fewer than {100 * UNLIKE:g} % nearer",
        "another structure; `sid.Validation(x0=..., skip=...)`",
    ),
    (
        "the fit has not seen the validation record",
        f"{STRETCH} consecutive samples of it (or all, of a shorter one) stand in a record of the fit, too; nothing of it is "
        "called good then",
        "a record, or a part of one, that was not used for the fit",
    ),
    (
        "residuals of a free run of the validation record are white",
        f"Ljung-Box test, correlation with any input, and mean (above {OFFSET[0]:g} of their standard deviation), at the "
        f"{100 * ALPHA:g} % level",
        "the same: the structure or a parameter is wrong there",
    ),
    (
        "validation beyond the range of the fit",
        f"input or output more than {100 * BEYOND:g} % outside",
        "rely on the model only within the range of the fit",
    ),
)


class Verdict(NamedTuple):
    """A finding and what to do about it."""

    level: Literal["good", "look", "bad"]
    text: str


def sampling(idata: Any, found: Diagnostics) -> Iterator[Verdict]:
    """Whether the draws can be taken for the posterior."""
    if said := distrust(idata):
        yield Verdict("bad", f"sid.sample: {said}")
    if np.isnan(found.r_hat).all():
        yield Verdict("look", "There is one chain only: nothing tells whether another one would end elsewhere. Sample several.")
    else:
        worst = int(np.nanargmax(found.r_hat))
        r_hat, name = found.r_hat[worst], found.names[worst]
        stuck = [n for n, r in zip(found.names, found.r_hat, strict=True) if np.isnan(r)]
        if stuck:
            text = f"The draws of {_listed(stuck)} do not vary in a chain, or are not finite: it is stuck."
            yield Verdict("bad", f"{text} The numbers below are no posterior yet; start at find_mode, or use sample_ibis.")
        elif r_hat > R_HAT_DISAGREES:
            text = f"The chains disagree (R-hat {r_hat:.2f} for {name}): they found different places, or are too short."
            yield Verdict("bad", f"{text} The numbers below are no posterior yet; start at find_mode, or use sample_ibis.")
        elif r_hat > R_HAT_AGREES:
            yield Verdict("look", f"The chains agree roughly (R-hat {r_hat:.3f} for {name}); more draws will tell.")
        else:
            yield Verdict("good", f"The chains agree (largest R-hat {r_hat:.3f}).")
    missed, part = chains_that_missed(idata), "missed a part of the posterior (another mode, or a long tail)"
    if missed and missed.chains:
        text = f"{missed.chains} of the chains said that they may have {part}."
        yield Verdict("bad", f"{text} They may agree all the same: draw more and tune longer, or use sample_ibis.")
    elif missed and missed.unknown:
        text = f"{missed.unknown} of the chains could not say whether they have {part}: too few draws for so many parameters."
        yield Verdict("look", f"{text} Compare with sample_ibis.")
    if np.isfinite(found.ess_bulk).any():
        least = np.fmin(found.ess_bulk, found.ess_tail)
        worst = int(np.nanargmin(least))
        text = f"{least[worst]:.0f} effective draws of {found.names[worst]}"
        if least[worst] < ESS_MEANS:
            yield Verdict("bad", f"Only {text}, fewest of all: means are rough and intervals are guesses. Draw more.")
        elif least[worst] < ESS_INTERVALS:
            yield Verdict("look", f"At least {text}: good for means, rough for the ends of intervals.")
        else:
            yield Verdict("good", f"Enough draws: at least {text}.")
    yield from _statistics(idata)


def distrust(idata: Any) -> str:
    """What :func:`~pm_sysid.sample` has against its own draws, in words; empty if nothing, or if they are not its own."""
    attrs = getattr(idata, "attrs", {})
    return "" if int(attrs.get("trusted", 1)) else str(attrs.get("verdict", "These draws cannot be trusted."))


def told_before(idata: Any, text: str) -> bool:
    """Whether a sampler has said the same against its draws or their evidence, with numbers of its own perhaps.

    What is found by weighting draws begins with what the other likelihood is.
    """
    statistics = idata.get("sample_stats") if isinstance(idata, xr.DataTree) else None
    doubt = "" if statistics is None else str(statistics.attrs.get("doubt", ""))
    return text.split(",")[0] in f"{distrust(idata)} {doubt}"


def _statistics(idata: Any) -> Iterator[Verdict]:
    node = idata.get("sample_stats") if isinstance(idata, xr.DataTree) else None
    if node is None:
        return
    if "diverging" in node.data_vars:
        count = int(node["diverging"].sum())
        if count:
            share = f"{count} of {node['diverging'].size} draws diverged"
            text = "the sampler met places too steep for its step, and may have missed a part of the posterior."
            yield Verdict("bad", f"{share}: {text} Start at find_mode, or raise target_accept.")
        else:
            yield Verdict("good", "No draw diverged.")
    if {"log_evidence", "log_marginal_likelihood"} & set(map(str, node.data_vars)):
        yield from _of_evidence(idata)


def _of_evidence(idata: Any) -> Iterator[Verdict]:
    """Whether the log evidence can be trusted: the scatter of its runs, and what the sampler says of its own."""
    evidence = log_evidence(idata)
    text = f"The log evidence is {evidence.value:.2f} ± {evidence.error:.2g}"
    if evidence.doubt:
        told = evidence.doubt in distrust(idata)
        why = "see what sid.sample says of these draws." if told else evidence.doubt
        yield Verdict("bad", f"{text}, and cannot be trusted: {why}")
    elif np.isnan(evidence.error):
        yield Verdict("look", f"The log evidence is {evidence.value:.2f} from one chain; several say how exact it is.")
    elif evidence.error > EVIDENCE_ERROR:
        yield Verdict("look", f"{text}: too rough to tell models apart that differ by less. Take more particles.")
    else:
        yield Verdict("good", f"{text} ({len(evidence.chains)} run{'s' * (len(evidence.chains) != 1)}).")
    found = stages(idata)
    if "proposal_ess" in found and "time_index" in found:
        fitted = float(final(found)["proposal_ess"].min())
        if fitted < PROPOSALS:
            text = f"Proposals fitted the posterior poorly at the end ({100 * fitted:.1g} % effective)"
            yield Verdict("look", f"{text}: it is curved or has several modes. Compare the chains, take more particles.")


def information(found: Learned) -> Iterator[Verdict]:
    """What the data said beyond the priors, and what they could not tell apart."""
    if found.prior_draws:
        few = max(OUTSIDE, 1 / found.prior_draws)
        wide = [name for name, spread in zip(found.names, found.spread, strict=True) if spread > PRIOR_DECIDES]
        far = [name for name, share in zip(found.names, found.beyond, strict=True) if share < few]
        pair = _widest(found, wide)
        if wide:
            yield Verdict("look", f"The record says little about {_listed(wide)}: the prior decides.")
        if pair:
            text = f"The record says little about {_listed(pair)} apart from a combination of them"
            yield Verdict("look", f"{text}: along it, the prior decides.")
        if far:
            yield Verdict(
                "look", f"{_listed(far)} ended outside what the prior held likely: is the unit right, the prior too narrow?"
            )
        if not wide and not far and not pair:
            yield Verdict("good", "The record, not the priors, decides about every parameter.")
    if len(found.names) > 1:
        size = np.abs(np.where(np.isfinite(found.correlation), found.correlation, 0.0)) - np.eye(len(found.names))
        if found.prior_draws:  # two that are both known well are known, whatever they have in common
            well = (found.spread < WELL_KNOWN) & (found.beyond >= max(OUTSIDE, 1 / found.prior_draws))
            size = np.where(np.outer(well, well), 0.0, size)
        i, j = np.unravel_index(np.argmax(size), size.shape)
        if size[i, j] > IN_COMBINATION:
            text = f"{found.names[i]} and {found.names[j]} are known in combination only"
            text = f"{text} (correlation of their ranks {found.correlation[i, j]:.3f})"
            yield Verdict("look", f"{text}: each interval alone says less than it seems. Excite more, or fix one of them.")


def _widest(found: Learned, known: Sequence[str]) -> list[str]:
    """Two parameters of which one combination is as wide as the prior, though neither of them is; empty if there are none."""
    alone = np.array([name not in known for name in found.names])
    spread = np.where(np.outer(alone, alone) & np.isfinite(found.combined), found.combined, 0.0)
    i, j = sorted(map(int, np.unravel_index(np.argmax(spread), spread.shape)))
    return [found.names[i], found.names[j]] if spread[i, j] > PRIOR_DECIDES else []


def follows(tests: ResidualTests) -> bool:
    """Whether residuals follow an input, by no chance."""
    return tests.cross_p is not None and tests.cross_p <= ALPHA


def coloured(tests: ResidualTests) -> str:
    """What shows that residuals are no noise, in words; empty if nothing does."""
    if follows(tests):
        return f"follows {tests.the_input} (correlation {tests.cross_correlation:.2f} at lag {tests.cross_lag})"
    if not tests.ljung_box_p > ALPHA:
        return f"is not white ({_whiteness(tests)})"
    if _off_centre(tests):
        return f"is not centred on zero ({_mean(tests)})"
    return f"is not steady ({tests.moved})" if _moves(tests) else ""


def _off_centre(tests: ResidualTests) -> bool:
    """Whether residuals have a mean that is no chance, and not too small to matter."""
    return tests.mean_p <= ALPHA and abs(tests.mean) > OFFSET[0] * tests.std


def _moves(tests: ResidualTests) -> bool:
    """Whether a part of the record has another level than the rest, by no chance, and enough to matter."""
    return tests.ljung_box_p > ALPHA and tests.level.p <= ALPHA and abs(tests.level.change) > OFFSET[0]


def _swells(tests: ResidualTests) -> bool:
    """Whether residuals of a part of the record are of another size than the rest, by no chance, and enough to matter."""
    return tests.ljung_box_p > ALPHA and tests.size.p <= ALPHA and not SPREAD[0] < tests.size.change < SPREAD[1]


def _off_size(tests: ResidualTests) -> bool:
    """Whether standardised residuals have another standard deviation than one, by no chance, and enough to matter."""
    errors = abs(tests.std - 1) / max(tests.std_se, np.finfo(float).tiny)
    return not 1 / SPREAD_SURE < tests.std < SPREAD_SURE and 2 * NormalDist().cdf(-errors) <= ALPHA


def _mean(tests: ResidualTests) -> str:
    """Mean of residuals in numbers."""
    size, errors = tests.mean / tests.std, abs(tests.mean) / tests.mean_se
    return f"mean {size:.2f} of the standard deviation, {errors:.1f} standard errors"


def _whiteness(tests: ResidualTests) -> str:
    """What speaks against white noise, in numbers."""
    p = tests.ljung_box_p
    shown = f"= {p:.2g}" if p >= 1e-4 else "< 0.0001"
    return f"Ljung-Box p {shown}; {100 * tests.share_outside:.0f} % of lags outside their 99 % bounds"


def without(part: Part) -> str:
    """What is said of a part without which residuals are white."""
    return (
        f"but they are without samples {part.start} to {part.stop - 1}: something acts there that the model does not know, or "
        "the sensor fails. Leave these samples out (NaN), or describe what acts (latent=)"
    )


def student(freedom: float) -> str:
    """Name of the t distribution with these degrees of freedom."""
    return f"t distribution with {freedom:.3g} degrees of freedom"


def sentences(tests: ResidualTests, freedom: float = np.inf) -> list[str]:
    """Findings of tests as sentences.

    Where noise has a finite number of degrees of freedom, residuals have become normal numbers of the same probability, which
    are normal if the t distribution is right.
    """
    missing = f", {tests.missing} missing" if tests.missing else ""
    first = f"There are {tests.count} of them{missing}, with mean {tests.mean:.3g} and standard deviation {tests.std:.3g}."
    said = [f"They are {f}." if not f.startswith("depend") else f"They {f}." for f in tests.findings]
    if np.isfinite(freedom):
        follow = "follow" if tests.jarque_bera_p > ALPHA else "do not follow"
        numbers = "of normal numbers of the same probability"
        said[-1] = f"They {follow} the model's {student(freedom)} ({tests.jarque_bera}, {numbers})."
    return [first, *said]


def residual(output: str, tests: ResidualTests, freedom: float = np.inf) -> Iterator[Verdict]:
    """Whether one-step innovations are noise, of the distribution that the model says: normal, or t with some freedom."""
    off_centre = _off_centre(tests)
    level: Literal["look", "bad"]
    if not tests.ljung_box_p > ALPHA:
        level = "bad" if tests.share_outside > COLOURED else "look"
        text = f"Innovations of {output} are not white ({_whiteness(tests)})"
        reason = "the model misses some dynamics, or noise is coloured"
        yield Verdict(level, f"{text}: {reason}." if tests.apart is None else f"{text}, {without(tests.apart)}.")
    elif not follows(tests) and not off_centre and not _moves(tests):
        yield Verdict("good", f"Innovations of {output} are white: no dynamics seem to be left in them.")
    if off_centre:
        level = "bad" if abs(tests.mean) > OFFSET[1] * tests.std else "look"
        text = f"Innovations of {output} are not centred on zero ({_mean(tests)})"
        remedy = "make an unknown offset of the sensor, or of the input, a parameter, or detrend the record (sid.detrend)"
        yield Verdict(level, f"{text}: {remedy}.")
    if follows(tests):
        at = f"correlation {tests.cross_correlation:.2f} at lag {tests.cross_lag}"
        text = f"Innovations of {output} follow {tests.the_input} ({at})"
        yield Verdict("look", f"{text}: part of its effect is not in the model.")
    if _moves(tests):
        text = f"Innovations of {output} are not steady: {tests.moved}"
        yield Verdict("look", f"{text}. A drift, or a disturbance, is not in the model: leave that part out, or describe it.")
    if _swells(tests):
        text = f"Innovations of {output} are not steady: {tests.swollen}"
        yield Verdict("look", f"{text}. A burst, or noise that is not constant: check the noise.")
    if not SPREAD[0] < tests.std < SPREAD[1] or _off_size(tests):
        text = f"Innovations of {output} have {tests.std:.2f} times the standard deviation that the model says"
        yield Verdict("look", f"{text}: check its noise.")
    if not tests.jarque_bera_p > ALPHA:
        if np.isinf(freedom):
            text = f"Innovations of {output} are not normal, as the model takes them to be"
            yield Verdict("look", f"{text}: look for outliers (sid.StudentT), quantisation, or a missing nonlinearity.")
        else:
            text = f"Innovations of {output} do not follow the {student(freedom)} of the model's noise"
            yield Verdict("look", f"{text}: let nu be unknown, look for quantisation, or a missing nonlinearity.")


def common(pair: Together) -> Iterator[Verdict]:
    """Whether two outputs err together, so that they say less than two that do not."""
    if pair.p <= ALPHA and abs(pair.correlation) > COMMON[0]:
        level: Literal["look", "bad"] = "bad" if abs(pair.correlation) > COMMON[1] else "look"
        text = f"Innovations of {pair.first} and {pair.second} are correlated ({pair.correlation:.2f})"
        yield Verdict(
            level,
            f"{text}, but count as independent: intervals are too narrow. Give correlated noise (sid.Correlated), or what "
            "disturbs both (latent=).",
        )
    else:
        yield Verdict("good", "Innovations of different outputs are hardly correlated: each has a say of its own.")


def left_over(what: str, output: str, tests: ResidualTests) -> Verdict:
    """Whether what a free run leaves of a measurement is noise."""
    text = f"{what}: what is left of {output} is"
    if not coloured(tests):
        return Verdict("good", f"{text} white noise: the tests find nothing missing there.")
    if follows(tests):
        at = f"correlation {tests.cross_correlation:.2f} at lag {tests.cross_lag}"
        return Verdict(
            "look", f"{text} no noise, it follows {tests.the_input} ({at}): the structure or a parameter is off there."
        )
    if _off_centre(tests) and tests.ljung_box_p > ALPHA:
        return Verdict("look", f"{text} not centred on zero ({_mean(tests)}): an offset differs, or the static gain is off.")
    if tests.ljung_box_p > ALPHA:
        return Verdict("look", f"{text} not steady ({tests.moved}): there was a drift, or a disturbance.")
    reason = "the structure or a parameter is off there, or noise is coloured"
    text = f"{text} not white ({_whiteness(tests)})"
    return Verdict("look", f"{text}: {reason}." if tests.apart is None else f"{text}, {without(tests.apart)}.")


def run(
    what: str, output: str, error: float, fit: float, noise: float | None, colour: str | None = "", driven: bool = False
) -> Verdict:
    """How well a free run meets a measurement.

    A noise that the model estimates takes up whatever the structure lacks, so that an error of its size says little by
    itself: only with a fair fit and residuals that are noise it is as small as can be.

    Parameters
    ----------
    what, output : str
        The run and the output, for the reader.
    error, fit : float
        Root mean square error, and fit in percent.
    noise : float or None
        Standard deviation of the noise by the model.
    colour : str or None
        What shows that innovations, or what the run leaves, are no noise (:func:`coloured`); None if there were too few
        to test.
    driven : bool
        Whether the model has process noise, as a diffusion that is a parameter, which no free run has.
    """
    text = f"{what}, {output}: fit {fit:.1f} %"
    if noise is None:
        level: Literal["good", "look", "bad"]
        level = "good" if fit > ACCURATE_FIT and colour == "" else "look" if fit > POOR_FIT else "bad"
        return Verdict(level, f"{text}.")
    ratio = error / noise
    text = f"{text}; its error is {ratio:.3g} times the noise of the model"
    if ratio < NOISE_ONLY:
        poor = not fit > POOR_FIT
        if colour:
            said = f"{text}, but what is left {colour}: this noise covers what the structure lacks."
            return Verdict("bad" if poor else "look", said)
        if poor:
            said = f"{text}, which is most of the measurement: measure the noise by itself, or doubt the structure."
            return Verdict("look", said)
        if colour is None:
            return Verdict(
                "look", f"{text}; whether what is left is noise cannot be tested (too few samples, or coloured noise)."
            )
        return Verdict("good", f"{text}, and what is left is noise: as small as can be.")
    if driven:
        said = f"{text}: a free run lacks the process noise that the diffusion of this model stands for, which innovations have"
        return Verdict("look", f"{said}; pm.sample_posterior_predictive draws records with it.")
    if colour == "":
        return Verdict("look", f"{text}, and what is left is white: the noise was louder there than in the fit.")
    if ratio < SMALL and fit > POOR_FIT:
        return Verdict("look", f"{text}: small systematic errors remain.")
    if fit > ACCURATE_FIT:
        return Verdict("look", f"{text}: accurate, but its uncertainty does not cover what the structure lacks.")
    return Verdict("bad", f"{text}: a free run drifts away, or the structure is wrong.")


def inferred(
    what: str, output: str, unknown: str, error: float, fits: tuple[float, float, float], colour: str | None = ""
) -> Verdict:
    """What a model with processes makes of a record that these were inferred from.

    A process can explain nearly anything, so that a good fit is no more than necessary: what counts is whether the next sample
    is predicted, and what the equations do without it.

    Parameters
    ----------
    unknown : str
        What the processes are.
    error : float
        Root mean square error of the outputs given the whole record, in units of the noise; NaN where no noise is known.
    fits : tuple of float
        Fit in percent of these outputs, of predictions one sample ahead, and of a run without the processes.
    colour : str or None
        What shows that innovations are no noise (:func:`coloured`); None if there were too few to test.
    """
    fit, ahead, alone = fits
    text = f"{what}, {output}: with {unknown} inferred from it, fit {fit:.1f} %; one sample ahead {ahead:.1f} %"
    poor = not fit > POOR_FIT
    if poor and error < NOISE_ONLY and not colour:
        text = f"{text}; the error is {error:.3g} times the noise, which is most of the measurement"
        if colour is None:
            return Verdict("look", f"{text}; whether what is left is noise cannot be tested (too few samples).")
        said = (
            "what is left is noise, so that this is as near as such a noise allows. If that size of the noise is known from "
            "elsewhere, the record cannot say more; if not, measure the noise by itself, or doubt the structure"
        )
        return Verdict("look", f"{text}: {said}.")
    if error >= NOISE_ONLY or poor:
        size = f"; the error is {error:.3g} times the noise" if np.isfinite(error) else ""
        said = f"{text}{size}: the structure is wrong, or the process too small or too smooth."
        return Verdict("bad" if error >= SMALL or poor else "look", said)
    if colour:
        return Verdict("look", f"{text}, but what is left {colour}: a process explains much, and even so something is missing.")
    if not alone > POOR_FIT:
        said = f"without it a run explains {max(alone, 0.0):.1f} %, so that this says little of the equations: try a new record"
        return Verdict("look", f"{text}; {said}.")
    if colour is None:
        return Verdict("look", f"{text}; whether what is left is noise cannot be tested (too few samples).")
    return Verdict("good", f"{text}; without it a run explains {alone:.1f} %, and what is left is noise.")


def spread(
    what: str, output: str, unknown: str, fit: float, inside: float, rank: float | None, start_known: bool = True
) -> Verdict:
    """How far free runs are from a record on which nothing is known of the processes, and how far these let them be.

    Parameters
    ----------
    unknown : str
        What the processes are.
    fit, inside : float
        Fit of the median in percent; percent of the samples in the 90 % band of runs and noise.
    rank : float or None
        Share of runs as far from the others as the measurement (:func:`~pm_sysid.posterior.predict.distance_rank`); None if it
        is not known.
    start_known : bool
        Whether the initial state was given.
    """
    text = f"{what}, {output}: {unknown} drawn from the prior, since nothing is known of it there; the median of the runs has "
    text += f"fit {fit:.1f} %, their 90 % band holds {inside:.0f} % of the samples"
    if rank is None:
        return Verdict("look", f"{text}; whether that is as it should be cannot be told (too few runs, or coloured noise).")
    if rank < UNLIKE:
        if start_known:
            return Verdict("bad", f"{text}: farther off than what is unknown explains. The structure or a parameter is wrong.")
        said = (
            "farther off than what is unknown explains: by its initial state (give it, or skip the beginning), or the structure"
        )
        return Verdict("look", f"{text}: {said}.")
    if rank > 1 - UNLIKE:
        return Verdict("look", f"{text}: nearer than what is unknown lets it be; there is less of it here, or it is too large.")
    return Verdict("good", f"{text}: as far off as what is unknown lets it be.")


def seen(what: str, shared: int, samples: int) -> Verdict:
    """That samples of a record of validation were used for the fit."""
    if shared == samples:
        return Verdict("look", f"{what}: this record was used for the fit, and validates nothing. Give one that was not.")
    text = f"{what}: {shared} of its {samples} samples were used for the fit, and validate nothing"
    return Verdict("look", f"{text}. Leave them out.")


def coverage(trained: Sequence[TimeSeries], record: TimeSeries) -> Iterator[Verdict]:
    """Whether a record of validation goes where the data of the fit have been."""
    beyond: dict[str, float] = {}
    for kind, names in (("input_matrix", record.inputs), ("output_matrix", record.outputs)):
        known, new = np.concatenate([getattr(r, kind) for r in trained]), getattr(record, kind)
        for i, name in enumerate(names[: known.shape[1]]):
            if not (np.isfinite(known[:, i]).any() and np.isfinite(new[:, i]).any()):
                continue
            low, high = np.nanmin(known[:, i]), np.nanmax(known[:, i])
            out = max(np.nanmax(new[:, i]) - high, low - np.nanmin(new[:, i])) / max(high - low, np.finfo(float).tiny)
            if out > BEYOND:
                beyond[name] = 100 * out
    if beyond:
        parts = _listed([f"{name} ({value:.0f} %)" for name, value in beyond.items()])
        text = f"The record of validation goes beyond the range of the fit in {parts}"
        yield Verdict("look", f"{text}: what holds there holds for that record; the prediction of others is a guess.")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
