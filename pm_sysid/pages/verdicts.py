"""What diagnostics mean, in sentences, each good, worth a look, or bad."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Literal, NamedTuple

import arviz_stats
import numpy as np
import xarray as xr

from pm_sysid.moments import elements
from pm_sysid.residuals import ResidualTests
from pm_sysid.stages import final, log_evidence, stages
from pm_sysid.timeseries import TimeSeries

_WORDS = {"good": "fine", "look": "look", "bad": "problem"}


class Verdict(NamedTuple):
    """A finding and what to do about it."""

    level: Literal["good", "look", "bad"]
    text: str


def verdicts_html(verdicts: Sequence[Verdict]) -> str:
    """List, problems first."""
    ordered = sorted(verdicts, key=lambda v: ("bad", "look", "good").index(v.level))
    items = (f'<li class="{v.level}"><b>{_WORDS[v.level]}</b> {escape(v.text)}</li>' for v in ordered)
    return f'<ul class="verdicts">{"".join(items)}</ul>'


class Diagnostics(NamedTuple):
    """Of each scalar parameter: mean, standard deviation, 94 % interval, R-hat, bulk and tail sample sizes."""

    names: list[str]
    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    r_hat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray


def diagnose(posterior: xr.Dataset, names: Sequence[str]) -> Diagnostics:
    """Summarise the draws of variables; chains of few draws have no diagnostics (NaN)."""
    draws = elements(posterior, names)
    dims = ("chain", "draw")
    low, high = (draws.quantile(q, dims).to_numpy() for q in (0.03, 0.97))
    table = xr.Dataset({"x": draws})
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant draws and single chains, whose results are NaN
        arviz: Any = arviz_stats  # without types
        for function, options in ((arviz.rhat, {}), (arviz.ess, {"method": "bulk"}), (arviz.ess, {"method": "tail"})):
            few = draws.sizes["draw"] < 4 or (function is arviz.rhat and draws.sizes["chain"] < 2)
            missing = np.full(draws.sizes["parameter"], np.nan)
            found.append(missing if few else np.asarray(function(table, **options)["x"].to_numpy(), dtype=float))
    labels = list(map(str, draws["parameter"].to_numpy()))
    return Diagnostics(labels, draws.mean(dims).to_numpy(), draws.std(dims).to_numpy(), low, high, *found)


def sampling(idata: Any, found: Diagnostics) -> Iterator[Verdict]:
    """Whether the draws can be taken for the posterior."""
    if np.isnan(found.r_hat).all():
        yield Verdict("look", "There is one chain only: nothing tells whether another one would end elsewhere. Sample several.")
    else:
        worst = int(np.nanargmax(found.r_hat))
        r_hat, name = found.r_hat[worst], found.names[worst]
        if r_hat > 1.05:
            text = f"The chains disagree (R-hat {r_hat:.2f} for {name}): they found different places, or are too short."
            yield Verdict("bad", f"{text} The numbers below are no posterior yet; start at find_mode, or use sample_ibis.")
        elif r_hat > 1.01:
            yield Verdict("look", f"The chains agree roughly (R-hat {r_hat:.3f} for {name}); more draws will tell.")
        else:
            yield Verdict("good", f"The chains agree (largest R-hat {r_hat:.3f}).")
    if np.isfinite(found.ess_bulk).any():
        least = np.fmin(found.ess_bulk, found.ess_tail)
        worst = int(np.nanargmin(least))
        text = f"{least[worst]:.0f} effective draws of {found.names[worst]}"
        if least[worst] < 100:
            yield Verdict("bad", f"Only {text}, fewest of all: means are rough and intervals are guesses. Draw more.")
        elif least[worst] < 400:
            yield Verdict("look", f"At least {text}: good for means, rough for the ends of intervals.")
        else:
            yield Verdict("good", f"Enough draws: at least {text}.")
    yield from _statistics(idata)


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
    if not {"log_evidence", "log_marginal_likelihood"} & set(map(str, node.data_vars)):
        return
    evidence = log_evidence(idata)
    text = f"The log evidence is {evidence.value:.2f} ± {evidence.error:.2g}"
    if np.isnan(evidence.error):
        yield Verdict("look", f"The log evidence is {evidence.value:.2f} from one chain; several say how exact it is.")
    elif evidence.error > 1:
        yield Verdict("look", f"{text}: too rough to tell models apart that differ by less. Take more particles.")
    else:
        yield Verdict("good", f"{text} ({len(evidence.chains)} runs).")
    found = stages(idata)
    if "proposal_ess" in found and "time_index" in found:
        fitted = float(final(found)["proposal_ess"].min())
        if fitted < 0.05:
            text = f"Proposals fitted the posterior poorly at the end ({100 * fitted:.1g} % effective)"
            yield Verdict("look", f"{text}: it is curved or has several modes. Compare the chains, take more particles.")


def information(found: Diagnostics, prior: Diagnostics | None, correlation: np.ndarray) -> Iterator[Verdict]:
    """What the data said beyond the priors, and what they could not tell apart."""
    if prior is not None:
        where = {name: i for i, name in enumerate(prior.names)}
        pairs = [(i, where[n]) for i, n in enumerate(found.names) if n in where and np.isfinite(prior.std[where[n]])]
        wide = [found.names[i] for i, j in pairs if prior.std[j] > 0 and found.std[i] > 0.8 * prior.std[j]]
        far = [
            found.names[i] for i, j in pairs if not prior.low[j] - prior.std[j] <= found.mean[i] <= prior.high[j] + prior.std[j]
        ]
        if wide:
            yield Verdict("look", f"The record says little about {_listed(wide)}: the prior decides.")
        if far:
            yield Verdict(
                "look", f"{_listed(far)} ended outside what the prior held likely: is the unit right, the prior too narrow?"
            )
        if not wide and not far:
            yield Verdict("good", "The record, not the priors, decides about every parameter.")
    if len(found.names) > 1:
        size = np.abs(np.where(np.isfinite(correlation), correlation, 0.0)) - np.eye(len(found.names))
        i, j = np.unravel_index(np.argmax(size), size.shape)
        if size[i, j] > 0.95:
            pair = f"{found.names[i]} and {found.names[j]}"
            text = f"{pair} are known in combination only (correlation {correlation[i, j]:.3f})"
            yield Verdict("look", f"{text}: each interval alone says less than it seems. Excite more, or fix one of them.")


def residual(output: str, tests: ResidualTests) -> Iterator[Verdict]:
    """Whether one-step innovations are noise."""
    alpha = 0.01
    if tests.ljung_box_p > alpha:
        yield Verdict("good", f"Innovations of {output} are white: no dynamics seem to be left in them.")
    else:
        level: Literal["look", "bad"] = "bad" if tests.share_outside > 0.3 else "look"
        share = f"{100 * tests.share_outside:.0f} % of lags outside the bounds"
        yield Verdict(
            level, f"Innovations of {output} are not white ({share}): the model misses some dynamics, or noise is coloured."
        )
    if tests.cross_p is not None and tests.cross_p <= alpha:
        text = f"Innovations of {output} follow the input (correlation {tests.cross_correlation:.2f} at lag {tests.cross_lag})"
        yield Verdict("look", f"{text}: part of its effect is not in the model.")
    if not 0.8 < tests.std < 1.25:
        text = f"Innovations of {output} have {tests.std:.2f} times the standard deviation that the model says"
        yield Verdict("look", f"{text}: check its noise.")
    if tests.jarque_bera_p <= alpha:
        yield Verdict(
            "look", f"Innovations of {output} are not normal: look for outliers, quantisation, or a missing nonlinearity."
        )


def left_over(what: str, output: str, tests: ResidualTests) -> Verdict:
    """Whether what a free run leaves of a measurement is noise."""
    alpha = 0.01
    text = f"{what}: what is left of {output} is"
    if tests.ljung_box_p > alpha and (tests.cross_p is None or tests.cross_p > alpha):
        return Verdict("good", f"{text} white noise: nothing seems to be missing there.")
    if tests.cross_p is not None and tests.cross_p <= alpha:
        at = f"correlation {tests.cross_correlation:.2f} at lag {tests.cross_lag}"
        return Verdict("look", f"{text} no noise, it follows the input ({at}): the structure or a parameter is off there.")
    share = f"{100 * tests.share_outside:.0f} % of lags outside the bounds"
    return Verdict("look", f"{text} not white ({share}): the structure or a parameter is off there, or noise is coloured.")


def run(what: str, output: str, error: float, fit: float, noise: float | None) -> Verdict:
    """How well a free run meets a measurement; with a known noise, compared with it."""
    text = f"{what}, {output}: fit {fit:.1f} %"
    if noise is None:
        level: Literal["good", "look", "bad"] = "good" if fit > 90 else "look" if fit > 50 else "bad"
        return Verdict(level, f"{text}.")
    ratio = error / noise
    if ratio < 1.2:
        return Verdict("good", f"{text}; its error is {ratio:.2f} times the noise, as small as can be.")
    text = f"{text}; its error is {ratio:.2g} times the noise"
    if ratio < 3:
        return Verdict("look", f"{text}: small systematic errors remain.")
    if fit > 90:
        return Verdict("look", f"{text}: accurate, but its uncertainty does not cover what the structure lacks.")
    return Verdict("bad", f"{text}: a free run drifts away, or the structure is wrong.")


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
            if out > 0.1:
                beyond[name] = 100 * out
    if beyond:
        parts = _listed([f"{name} ({value:.0f} %)" for name, value in beyond.items()])
        text = f"The record of validation goes beyond the range of the fit in {parts}"
        yield Verdict("look", f"{text}: what holds there holds for that record; the prediction of others is a guess.")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def parameter_rows(
    found: Diagnostics, priors: Mapping[str, str], known: Diagnostics | None, units: Mapping[str, str]
) -> list[list[str]]:
    """Rows of a table: name, unit, prior and where it lies, posterior, diagnostics."""
    rows = []
    ranges = {n: f"{a:.3g} to {b:.3g}" for n, a, b in zip(known.names, known.low, known.high, strict=True)} if known else {}
    for i, name in enumerate(found.names):
        base = name.split("[")[0]
        number = [f"{found.mean[i]:.5g}", f"{found.std[i]:.2g}", f"{found.low[i]:.5g} to {found.high[i]:.5g}"]
        quality = [_or_dash(found.r_hat[i], ".3f"), _or_dash(found.ess_bulk[i], ".0f"), _or_dash(found.ess_tail[i], ".0f")]
        prior = [priors.get(base, ""), ranges.get(name, "")]
        rows.append([name, units.get(name, units.get(base, "")), *prior, *number, *quality])
    return rows


def _or_dash(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)
