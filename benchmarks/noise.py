"""What the approximations of noise that is not Gaussian cost: limits, outliers, and noise that depends on the output.

A first-order lag at an unknown rate, measured with coloured noise whose path is integrated out, so that the outputs of a
record are one Gaussian of which everything is known. Against it stand: for the coloured noise that Gaussian; for a sensor that
saturates, the probability of all censored samples together (the simulator of Geweke, Hajivassiliou and Keane); for outliers, a
Gibbs sampler over the scale of every sample; and for all of them, records drawn with known values: the bias of the posterior of
rate and noise, in its standard deviations, and how often its 90 % interval holds the truth. Beside each: the same records under
a model without it.

Run: ``uv run benchmarks/noise.py`` (``--records 20`` for fewer).
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import scipy

import pm_sysid as sid

LAG = sid.System(
    lambda t, x, u, p: p.rate * (u.u - x.level),
    states=("level",),
    inputs=("u",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: {"level": x.level},
)
TIMES = np.arange(100) * 0.1
INPUT = np.where(np.sin(1.2 * TIMES) > 0, 1.0, 0.0)
KNOWN = sid.TimeSeries(TIMES, {"u": INPUT}, intersample="zoh")
RATE, NOISE, COLOUR = 0.8, 0.05, {"scale": 0.1, "length": 0.5}
LIMIT, NU, FLOOR, SHARE = 0.65, 4.0, 0.02, 0.2
KERNEL = COLOUR["scale"] ** 2 * np.exp(-np.abs(TIMES[:, None] - TIMES) / COLOUR["length"])
#: Points of the posterior: rates and noise levels, evenly spaced in their logarithms.
RATES = RATE * np.exp(np.linspace(-0.6, 0.6, 31))
LEVELS = np.exp(np.linspace(-1.0, 1.0, 17))


def clean(rate: float) -> np.ndarray:
    """Levels without noise, in closed form from one sample to the next."""
    level, decay = np.empty(len(TIMES)), np.exp(-rate * 0.1)
    level[0] = 0.5
    for k, u in enumerate(INPUT[:-1]):
        level[k + 1] = u + (level[k] - u) * decay
    return level


def drawn(kind: str, seed: int) -> np.ndarray:
    """Measurements of a record."""
    rng = np.random.default_rng([seed, 1])
    z = clean(RATE) + np.linalg.cholesky(KERNEL + 1e-12 * np.eye(len(TIMES))) @ rng.standard_normal(len(TIMES))
    e = rng.standard_normal(len(TIMES))
    if kind == "limits":
        return np.minimum(z + NOISE * e, LIMIT)
    if kind == "outliers":
        return z + NOISE * e / np.sqrt(rng.gamma(NU / 2, 2 / NU, len(TIMES)))
    if kind == "spikes":
        return z + NOISE * np.where(rng.uniform(size=len(TIMES)) < 0.05, 20.0, 1.0) * e
    return z + np.sqrt(FLOOR**2 + (SHARE * z) ** 2) * e if kind == "dependent" else z + NOISE * e


def build(y: np.ndarray, coloured: bool = True, **options: Any) -> pm.Model:
    """Flat priors of the logarithms on the grid."""
    with pm.Model() as model:
        rate = pm.Uniform("rate", RATES[0] * 0.99, RATES[-1] * 1.01)
        level = pm.Uniform("level", LEVELS[0] * 0.99, LEVELS[-1] * 1.01)
        noise = options.pop("noise", lambda s: NOISE * s)(level)
        more = {"coloured": {"level": sid.OU(**COLOUR)}} if coloured else {}
        options |= more
        solver = sid.EK1(order=4, diffusion=1e-8)
        sid.ODEFilter("y", LAG, KNOWN.replace(y=y), {"rate": rate}, noise=noise, x0=0.5, solver=solver, substeps=2, **options)
    return model


def relative(level: Any) -> Callable[[Any], Any]:
    """Noise that depends on the output; its share is unknown."""
    return lambda y: pt.sqrt(FLOOR**2 + (SHARE * level * y) ** 2)


#: What each kind of record is analysed with.
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "limits": {"limits=": {"limits": (None, LIMIT)}, "saturated samples left out": {}, "taken as measured": {}},
    "outliers": {"StudentT(nu=4)": {"noise": lambda s: sid.StudentT(nu=NU, scale=NOISE * s)}, "Gaussian noise": {}},
    "spikes": {
        "StudentT(nu=4)": {"noise": lambda s: sid.StudentT(nu=NU, scale=NOISE * s)},
        "Gaussian noise": {"noise": lambda s: 0.2 * s},
    },
    "dependent": {"function of the output": {"noise": relative}, "one standard deviation": {"noise": lambda s: 0.1 * s}},
    "coloured": {"coloured=": {}, "white noise": {"coloured": False, "noise": lambda s: 0.11 * s}},
}


class Posterior:
    """The posterior of a model on the grid, for one record after the other."""

    def __init__(self, kind: str, what: str) -> None:
        self.blank = what == "saturated samples left out"
        self.model = build(self.seen(drawn(kind, 0)), **MODELS[kind][what])
        self.target = sid.Target(self.model)
        grid = np.array([(r, s) for r in RATES for s in LEVELS])
        bounds = [(v[0] * 0.99, v[-1] * 1.01) for v in (RATES, LEVELS)]
        self.points = np.stack([np.log((grid[:, i] - a) / (b - grid[:, i])) for i, (a, b) in enumerate(bounds)], axis=1)

    def seen(self, y: np.ndarray) -> np.ndarray:
        """The record as the model is given it."""
        return np.where(y >= LIMIT, np.nan, y) if self.blank else y

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """Log-likelihoods (rates, levels)."""
        sid.set_data({"y": KNOWN.replace(y=self.seen(y))}, self.model)
        return self.target.log_likelihood(self.points).reshape(len(RATES), len(LEVELS))


def moments(loglik: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm of a quantity from the log-density on its grid."""
    weight = np.exp(loglik - loglik.max())
    weight /= weight.sum()
    mean = float(weight @ np.log(values))
    return mean, float(np.sqrt(weight @ (np.log(values) - mean) ** 2))


def inside(loglik: np.ndarray, values: np.ndarray, truth: float) -> bool:
    """Whether the central 90 % interval holds the truth."""
    weight = np.exp(loglik - loglik.max())
    total = np.concatenate([[0.0], np.cumsum((weight[1:] + weight[:-1]) / 2)])
    place = np.interp(np.log(truth), np.log(values), total / total[-1])
    return bool(0.05 < place < 0.95)


def coverage(kind: str, records: int) -> dict[str, Any]:
    """Bias in standard deviations, its standard deviation, and coverage of rate and noise over records."""
    result = {}
    for what in MODELS[kind]:
        posterior, scores, held = Posterior(kind, what), [], []
        for seed in range(records):
            loglik = posterior(drawn(kind, seed))
            rows = []
            for axis, values, truth in ((1, RATES, RATE), (0, LEVELS, 1.0)):
                own = scipy.special.logsumexp(loglik, axis=axis)
                mean, std = moments(own, values)
                rows.append(((mean - np.log(truth)) / std, std, inside(own, values, truth)))
            scores.append([(r[0], r[1]) for r in rows])
            held.append([r[2] for r in rows])
        z = np.array(scores)
        result[what] = {
            name: {
                "bias": float(z[:, i, 0].mean()),
                "spread": float(z[:, i, 0].std()),
                "sd": float(z[:, i, 1].mean()),
                "coverage": float(np.mean(held, axis=0)[i]),
            }
            for i, name in enumerate(("rate", "noise") if kind != "spikes" else ("rate",))  # whose noise has no true scale
        }
    return result


# -- exact references -------------------------------------------------------------------------------------------------


def censored_probability(y: np.ndarray, rate: float, uniform: np.ndarray) -> float:
    """Log-likelihood of a record with its censored samples together, by quasi-random numbers."""
    gap, total, out = y - clean(rate), KERNEL + NOISE**2 * np.eye(len(y)), y >= LIMIT
    A, B = total[np.ix_(~out, ~out)], total[np.ix_(out, ~out)]
    weights = np.linalg.solve(A, B.T).T
    mean, covariance = weights @ gap[~out], total[np.ix_(out, out)] - weights @ B.T
    known = float(scipy.stats.multivariate_normal(np.zeros(len(A)), A).logpdf(gap[~out]))
    L, least = np.linalg.cholesky(covariance), LIMIT - clean(rate)[out] - mean
    normal, log = np.zeros((len(uniform), len(least))), np.zeros(len(uniform))
    for i, limit in enumerate(least):
        beyond = (limit - normal[:, :i] @ L[i, :i]) / L[i, i]
        log += scipy.special.log_ndtr(-beyond)
        normal[:, i] = -scipy.special.ndtri_exp(np.log(uniform[:, i]) + scipy.special.log_ndtr(-beyond))
    return known + float(scipy.special.logsumexp(log) - np.log(len(uniform)))


def compared(shifts: list[float], ratios: list[float]) -> dict[str, float]:
    """Errors of posterior means in standard deviations, and ratios of standard deviations, over records."""
    return {
        "records": len(shifts),
        "shift": float(np.sqrt(np.mean(np.square(shifts)))),
        "largest_shift": float(np.max(np.abs(shifts))),
        "sd_ratio": float(np.mean(ratios)),
    }


def coloured_against_gaussian(records: int) -> dict[str, float]:
    """How far log-likelihood and posterior of the rate are from those of the one Gaussian of a record with coloured noise."""
    posterior, middle = Posterior("coloured", "coloured="), len(LEVELS) // 2
    exact = scipy.stats.multivariate_normal(np.zeros(len(TIMES)), KERNEL + NOISE**2 * np.eye(len(TIMES)))
    shifts, ratios, errors = [], [], []
    for seed in range(records):
        y = drawn("coloured", 1000 + seed)
        own, truth = posterior(y)[:, middle], np.array([exact.logpdf(y - clean(rate)) for rate in RATES])
        (m, s), (m0, s0) = moments(own, RATES), moments(truth, RATES)
        shifts.append((m - m0) / s0)
        ratios.append(s / s0)
        errors.append(np.abs(own - truth)[truth > truth.max() - 12].max())
    return compared(shifts, ratios) | {"log_likelihood": float(np.max(errors))}


def limits_against_probability(records: int) -> dict[str, float]:
    """How far the posterior of the rate is from the one of the exact probability; the noise is known."""
    posterior, middle = Posterior("limits", "limits="), len(LEVELS) // 2
    shifts, ratios, errors, caught, doubt = [], [], [], [], []
    for seed in range(records):
        y = drawn("limits", 1000 + seed)
        n = int(np.sum(y >= LIMIT))
        own = posterior(y)[:, middle]
        where = np.flatnonzero(own > own.max() - 12)
        uniform = scipy.stats.qmc.Sobol(n, seed=seed).random(2**12)
        halves = [np.array([censored_probability(y, RATES[i], u) for i in where]) for u in (uniform[::2], uniform[1::2])]
        exact = np.full(len(RATES), -np.inf)
        exact[where] = np.logaddexp(*halves) - np.log(2)
        (m, s), (m0, s0) = moments(own, RATES), moments(exact, RATES)
        best = where[np.argmax(exact[where])]
        shifts.append((m - m0) / s0)
        ratios.append(s / s0)
        errors.append(own[best] - exact[best])
        doubt.append(np.std(halves[0] - halves[1]) / 2)
        caught.append(n)
    return compared(shifts, ratios) | {
        "censored": float(np.mean(caught)),
        "log_likelihood": float(np.sqrt(np.mean(np.square(errors)))),
        "error_of_reference": float(np.mean(doubt)),
    }


def gibbs(y: np.ndarray, sweeps: int, rng: np.random.Generator) -> tuple[float, float]:
    """Mean and standard deviation of the log rate by a Gibbs sampler over path, scales of the samples, and rate."""
    levels, K = np.stack([clean(r) for r in RATES]), KERNEL + 1e-12 * np.eye(len(y))
    precision, index, kept = np.ones(len(y)), len(RATES) // 2, []
    for sweep in range(sweeps):
        total = K + np.diag(NOISE**2 / precision)
        factor = scipy.linalg.cho_factor(total, lower=True)
        gaps = scipy.linalg.solve_triangular(factor[0], (y - levels).T, lower=True)
        log = -0.5 * np.sum(gaps**2, axis=0)
        weight = np.exp(log - log.max())
        index = rng.choice(len(RATES), p=weight / weight.sum())
        gain = scipy.linalg.cho_solve(factor, K).T
        prior = np.linalg.cholesky(K) @ rng.standard_normal(len(y))  # a draw given the data, by Matheron's rule
        fake = prior + NOISE / np.sqrt(precision) * rng.standard_normal(len(y))
        path = prior + gain @ (y - levels[index] - fake)
        rest = (y - levels[index] - path) / NOISE
        precision = rng.gamma((NU + 1) / 2, 2 / (NU + rest**2))
        if sweep >= sweeps // 10:
            kept.append(np.log(RATES[index]))
    return float(np.mean(kept)), float(np.std(kept))


def outliers_against_gibbs(records: int, sweeps: int) -> dict[str, float]:
    """How far the posterior of the rate is from that of the Gibbs sampler; the scale is known."""
    posterior, middle = Posterior("outliers", "StudentT(nu=4)"), len(LEVELS) // 2
    shifts, ratios, doubt = [], [], []
    for seed in range(records):
        y = drawn("outliers" if seed % 2 else "spikes", 1000 + seed)
        m, s = moments(posterior(y)[:, middle], RATES)
        runs = [gibbs(y, sweeps, np.random.default_rng([seed, chain])) for chain in (0, 1)]
        m0, s0 = np.mean(runs, axis=0)
        shifts.append((m - m0) / s0)
        ratios.append(s / s0)
        doubt.append(abs(runs[0][0] - runs[1][0]) / 2 / s0)
    return compared(shifts, ratios) | {"error_of_reference": float(np.mean(doubt))}


def main() -> None:
    """Print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=300)
    parser.add_argument("--references", type=int, default=20)
    options = parser.parse_args()
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", sid.SubstepWarning)
    begun = time.time()
    found: dict[str, Any] = {"records": options.records}
    found["coloured_reference"] = coloured_against_gaussian(options.references)
    print(json.dumps(found["coloured_reference"], indent=1), f"{time.time() - begun:.0f} s", flush=True)
    found["limits_reference"] = limits_against_probability(options.references)
    print(json.dumps(found["limits_reference"], indent=1), f"{time.time() - begun:.0f} s", flush=True)
    found["outliers_reference"] = outliers_against_gibbs(options.references, 2000)
    print(json.dumps(found["outliers_reference"], indent=1), f"{time.time() - begun:.0f} s", flush=True)
    found["coverage"] = {}
    for kind in MODELS:
        found["coverage"][kind] = coverage(kind, options.records)
        print(kind, json.dumps(found["coverage"][kind], indent=1), f"{time.time() - begun:.0f} s", flush=True)
    if options.records >= 300:
        (Path(__file__).parent / "results" / "noise.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
