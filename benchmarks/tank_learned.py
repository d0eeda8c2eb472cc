"""Cascaded tanks whose outflows are learned: curves of the level with priors, beside the roots of Torricelli's law.

The law of the board (``board_models.py``) guesses how an outflow grows with its level. Here each of the two outflows is that of
an orifice plus a curve (``sid.Spline``, six knots) with a Gaussian process as its prior, and the rest of the law is as on the
board: the sensor that ends at 10 V, both overflows, a part of the inflow that the lower tank feels at once. All unknowns have
priors, so that a curve that the record does not ask for stays flat. What a run leaves is not white; the log-likelihood is
divided by how often it counts the same error (``boards.repeated``, of the first fit of the largest law).

Printed are Laplace's evidence, errors of the mean run over the posterior on the training record and, by the board's
rule, on the test (from a state that the first 50 samples show), and how much of the test lies in the 90 % interval.

Run: ``uv run benchmarks/tank_learned.py`` (needs ``PM_SYSID_DATA`` or a network); a minute or two for each law.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from arviz_base import dict_to_dataset
from board_models import EDGE, SENSOR_END, ramp, root
from boards import Z90, repeated
from scipy.stats import multivariate_t

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "tank_learned.json"
WINDOW, SUBSTEPS, SEED = 50, 4, 7
PROPOSALS, DRAWS, DEGREES = 8000, 300, 8  # and degrees of freedom of the proposals
#: The unit of the upper level is what its overflow begins at.
CURVE = sid.Spline(np.linspace(0.0, 12.5, 6))
#: Flow (V/s) that a curve adds, by its prior, and levels over which it bends.
SIZE, LENGTH = 0.1, 4.0
#: Parameters that a law may have.
NAMES = ("k1", "k3", "k4", "ratio", "share", "direct", "a", "b")
#: Laws by what they add to two orifices and two overflows.
LAWS = {
    "orifices": (),
    "lower outflow learned": ("lower",),
    "both outflows learned": ("upper", "lower"),
    "both outflows learned, inflow that reaches the lower tank": ("upper", "lower", "direct"),
}


def system(terms: tuple[str, ...]) -> sid.System:
    """Two tanks; the flows between them and out of them have curves ``a`` and ``b`` of the levels."""
    params: dict[str, Any] = {"k1": (), "k3": (), "k4": (), "ratio": (), "share": ()}
    params |= {name: CURVE.size for name, term in (("a", "upper"), ("b", "lower")) if term in terms}
    params |= {"direct": ()} if "direct" in terms else {}

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        inflow, spilled = p.k4 * u.u, 0.3 * ramp(x.h1 - SENSOR_END, EDGE)
        out = p.k1 * root(x.h1) + (CURVE(x.h1, p.a) if "upper" in terms else 0.0)
        lower = p.k3 * root(x.h2) + (CURVE(x.h2, p.b) if "lower" in terms else 0.0)
        direct = p.direct * inflow if "direct" in terms else 0.0
        into = p.ratio * (out + p.share * spilled) + direct
        return inflow - out - spilled, into - lower - 0.3 * ramp(x.h2 - SENSOR_END, EDGE)

    def observe(t: Any, x: Any, dx: Any, u: Any, p: Any) -> Any:
        return SENSOR_END - ramp(SENSOR_END - x.h2, 0.02)

    return sid.System(dynamics, states=("h1", "h2"), inputs=("u",), params=params, observe=observe)


def model(terms: tuple[str, ...], train: sid.TimeSeries, counted: float) -> pm.Model:
    """Priors of all unknowns, and the log-likelihood of a free run in which each error counts once."""
    with pm.Model() as found:
        free: dict[str, Any] = {name: pm.LogNormal(name, np.log(0.05), 0.7) for name in ("k1", "k3", "k4")}
        free |= {"ratio": pm.LogNormal("ratio", 0.5, 0.7), "share": pm.LogNormal("share", -0.3, 0.5)}
        for name, term in (("a", "upper"), ("b", "lower")):
            if term in terms:
                free[name] = CURVE.prior(name, SIZE**2 * pm.gp.cov.Matern52(1, ls=LENGTH))
        if "direct" in terms:
            free["direct"] = pm.Normal("direct", 0.0, 0.1)
        x0 = {"h1": pm.TruncatedNormal("h10", 6.0, 2.0, lower=0.0), "h2": pm.Normal("h20", float(train.y[0]), 0.3)}
        noise = pm.LogNormal("noise", np.log(0.2), 0.5)
        run = pm.Deterministic("run", sid.simulate(system(terms), train, free, x0=x0, substeps=SUBSTEPS))
        pm.Potential("errors", pm.logp(pm.Normal.dist(run, noise), train.y).sum() / counted)
    return found


def runs(terms: tuple[str, ...], record: sid.TimeSeries, draws: dict[str, Any], x0: dict[str, Any]) -> np.ndarray:
    """Outputs (draws, T) of free runs."""
    params = {name: draws[name] for name in NAMES if name in draws}
    y = sid.simulate(system(terms), record, params, x0=x0, substeps=SUBSTEPS)["y"].values
    return np.asarray(y.reshape(-1, len(record)))


def errors_counted(terms: tuple[str, ...], train: sid.TimeSeries) -> float:
    """How often a log-likelihood of white noise counts what a law leaves; of its mode where each counts ten times."""
    with model(terms, train, 10.0):
        mode = sid.find_mode(random_seed=SEED, progressbar=False)
        found = pm.compute_deterministics(
            dict_to_dataset({n: v[None, None] for n, v in mode.initvals.items()}), progressbar=False
        )
    return repeated(train.y - found["run"].values[0, 0])


def importance(found: pm.Model, mode: Any, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], float]:
    """Draws of the posterior and how many of the proposals count: t distributions with Laplace's covariance, weighted."""
    names = [v.name for v in found.unobserved_RVs]
    values = found.replace_rvs_by_values([found[name] for name in names])
    function = found.compile_fn([found.logp(), *values], inputs=found.value_vars, point_fn=False)
    first = found.initial_point()
    shapes = [np.shape(first[v.name]) for v in found.value_vars]
    sizes = [int(np.prod(shape)) for shape in shapes]
    proposal = multivariate_t(mode.point, mode.covariance, df=DEGREES, seed=rng)
    rows, log_weights = [], []
    for x in proposal.rvs(PROPOSALS):
        parts = [part.reshape(shape) for part, shape in zip(np.split(x, np.cumsum(sizes)[:-1]), shapes, strict=True)]
        logp, *row_ = function(*parts)
        rows.append(row_)
        log_weights.append(float(logp) - float(proposal.logpdf(x)))
    log_weights_ = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    weights = np.exp(log_weights_ - log_weights_.max())
    weights /= weights.sum()
    picked = rng.choice(len(rows), size=DRAWS, p=weights)
    return {n: np.array([rows[i][k] for i in picked]) for k, n in enumerate(names)}, float(1 / np.sum(weights**2))


def row(terms: tuple[str, ...], train: sid.TimeSeries, bench: sid.datasets.Benchmark, counted: float) -> dict[str, Any]:
    """Fit, and what it says of the test."""
    begin = time.perf_counter()
    (test,) = (r.replace(inputs=("u",)) for r in bench.test.values())
    found = model(terms, train, counted)
    mode = sid.find_mode(found, random_seed=SEED, progressbar=False)
    print(mode, flush=True)
    draws, effective = importance(found, mode, np.random.default_rng(SEED))
    trained = draws["run"].mean(axis=0)
    # Where each draw of the law begins the test, by the window alone.
    starts = []
    for i in range(len(draws["k1"])):
        values = {name: draws[name][i] for name in NAMES if name in draws}
        fit = sid.fit_pem(
            system(terms), test[:WINDOW], {}, fixed=values, predictor=sid.ExtendedKalman(substeps=SUBSTEPS),
            x0=sid.InitialState({"h1": 6.0, "h2": float(test.y[0])}, estimate=True), starts=1, progressbar=False,
        )  # fmt: skip
        starts.append(np.ravel(fit.x0))
    h1, h2 = np.array(starts).T
    tested = runs(terms, test, draws, {"h1": h1, "h2": h2})
    mean, half = tested.mean(axis=0), Z90 * np.hypot(tested.std(axis=0), draws["noise"].mean())
    inside = np.abs(mean - test.y) <= half
    return {
        "evidence": float(mode.log_evidence), "proposals that count": effective, "training": float(sid.rmse(train.y, trained)),
        "test": float(sid.score(bench, mean)["rmse"][0]), "coverage": float(inside[WINDOW:].mean()),
        "half width": float(np.median(half[WINDOW:])), "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def main() -> None:
    """Print and save."""
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", sid.SubstepWarning)
    bench = sid.datasets.benchmark("Cascaded_Tanks")
    train, results = bench.train[0].replace(inputs=("u",)), {}
    counted = errors_counted(tuple(LAWS.values())[-1], train)
    print(f"each error counts {counted:.1f} times", flush=True)
    for name, terms in LAWS.items():
        results[name] = row(terms, train, bench, counted)
        print(f"{name}: {results[name]}", flush=True)
        RESULTS.write_text(json.dumps({"counted": counted, "laws": results}, indent=1))


if __name__ == "__main__":
    main()
