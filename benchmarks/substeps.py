"""What ``substeps="auto"`` chooses, where it is judged, and the error that is left on the posterior.

For each problem: the number that one doubling at the model's initial point leads to (how ``"auto"`` chose at first), the
number chosen when the model is built, and the number after ``settle_substeps`` at the mode and at draws of the Laplace
approximation there. The errors are those of the log-likelihood of the record at 20 such draws, compared with 256 steps a
sample: their largest size, and their standard deviation, which is what can shift a posterior mean. "Needed" is the fewest of
1, 2, 4, ... steps whose largest error is below 0.1.

Run: ``uv run benchmarks/substeps.py``; names as arguments choose some.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from problem_set import PROBLEMS
from scipy.signal import butter, sosfiltfilt

import pm_sysid as sid
from pm_sysid.likelihood.coordinates import Coordinates
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.solve.filter_graph import Unknowns
from pm_sysid.solve.filter_substeps import LogLikelihoodCriterion, drawn_records, noise_level
from pm_sysid.solve.substeps import MOST, evaluate_at_initial_point

#: Steps a sample that stand for an exact solution, and how many draws are compared.
FINE, DRAWS = 256, 20

type Case = tuple[pm.Model, Mapping[str, Any]]


def published(name: str) -> Callable[[], Case]:
    """A problem of the suite, and where its posterior is."""

    def build() -> Case:
        problem = PROBLEMS[name](substeps="auto")
        return problem.model, problem.answer.truth or problem.answer.mean

    return build


def oscillator(
    system: sid.System, record: sid.TimeSeries, known: dict[str, float], truth: dict[str, float], wrong: float, noise: float
) -> Case:
    """A simulated record; log-normal priors around values that are wrong by a factor."""
    clean = sid.simulate(system, record, {**known, **truth}, x0=0.0, substeps=64)["y"].values
    record = record.replace(y=clean + noise * clean.std() * np.random.default_rng(1).standard_normal(len(record)))
    with pm.Model() as model:
        free = {name: pm.LogNormal(name, np.log(wrong * value), 0.5) for name, value in truth.items()}
        level = pm.HalfNormal("noise", 0.1 * clean.std())
        sid.ODEFilter("y", system, record, {**known, **free}, noise=level, x0=0.0)
    return model, {**truth, "noise": noise * clean.std()}


def quickstart() -> Case:
    """The oscillator of the quickstart: 27 samples a period."""
    t, rng = np.arange(400) / 50, np.random.default_rng(1)
    force = sosfiltfilt(butter(4, [0.2, 6.0], "bandpass", fs=50.0, output="sos"), rng.standard_normal(t.size))
    record = sid.TimeSeries(t, 15 * force / force.std(), None, inputs="F")
    return oscillator(sid.models.duffing(), record, {"m": 1.0}, {"c": 2.0, "k": 150.0, "k3": 3000.0}, 0.8, 0.02)


def multisine(length: int, step: float, top: float, size: float) -> sid.TimeSeries:
    """Multisine of eight lines."""
    rng, t = np.random.default_rng(1), step * np.arange(length)
    lines = zip(np.linspace(0.3, top, 8), rng.uniform(0, 6.28, 8), strict=True)
    return sid.TimeSeries(t, size * sum(np.sin(2 * np.pi * f * t + a) for f, a in lines), None, inputs="F")


def duffing() -> Case:
    """Stiff spring, 8 to 12 samples a period."""
    record = multisine(80, 0.05, 2.5, 3.0)
    return oscillator(sid.models.duffing(), record, {"m": 1.0}, {"c": 1.0, "k": 100.0, "k3": 2000.0}, 0.8, 0.05)


def bouc_wen() -> Case:
    """Hysteresis, with corners between the samples."""
    system, known = sid.models.bouc_wen(observe="displacement"), {"m": 1.0, "gamma": 0.8, "delta": -0.5}
    record = multisine(100, 0.05, 2.5, 4.0)
    return oscillator(system, record, known, {"c": 0.5, "k": 50.0, "alpha": 50.0, "beta": 20.0}, 0.8, 0.05)


CASES: dict[str, Callable[[], Case]] = {
    "fitzhugh_nagumo": published("fitzhugh_nagumo"),
    "lotka_volterra": published("lotka_volterra"),
    "quickstart": quickstart,
    "duffing": duffing,
    "bouc_wen": bouc_wen,
}


def at_first(model: pm.Model) -> int:
    """Steps that one doubling asks for at the model's initial point, on a record with its parameters."""
    view = filter_view(None, model)
    at = Unknowns(*evaluate_at_initial_point(list(view.unknowns), model))
    records = view.records()
    at = at._replace(noise=np.minimum(at.noise, noise_level(records)))
    y = drawn_records(view.problem, records, [at]).y
    criterion = LogLikelihoodCriterion(view.problem, records, [at], y, "", 1.0)
    n = 1
    while n <= MOST and not criterion.change(criterion.value(n), criterion.value(2 * n)) < criterion.tolerance:
        n *= 2
    return min(n, MOST)


def near_the_mode(model: pm.Model, mode: Any, draws: int) -> np.ndarray:
    """Draws of the Laplace approximation, in unconstrained space."""
    rng = np.random.default_rng(0)
    return rng.multivariate_normal(mode.point, mode.covariance, draws)


def study(name: str) -> None:
    """Print the row of a problem."""
    begin = time.perf_counter()
    model, truth = CASES[name]()
    view, built = filter_view(None, model), time.perf_counter() - begin
    first, chosen = at_first(model), view.op.grid.choice
    mode = sid.find_mode(model, start=dict(truth), prior_draws=0, progressbar=False)
    points = near_the_mode(model, mode, DRAWS)
    values = Coordinates(model).constrained(points)
    draws = [{v.name: values[v.name][i] for v in model.free_RVs} for i in range(DRAWS)]
    begin = time.perf_counter()
    at_mode = sid.settle_substeps(mode.initvals, model=model)["y"]
    on_draws = sid.settle_substeps(draws, model=model)["y"]
    seconds = time.perf_counter() - begin
    target, sums = sid.Target(model), dict[int, np.ndarray]()
    for n in sorted({1, 2, 4, 8, 16, 32, FINE, first, chosen.substeps, at_mode.substeps, on_draws.substeps}):
        sid.set_substeps(n, model)
        sums[n] = target.log_likelihood(points)
    with np.errstate(all="ignore"):
        errors = {n: np.nan_to_num(v - sums[FINE], nan=np.inf) for n, v in sums.items()}
    needed = next(n for n in sorted(errors) if np.abs(errors[n]).max() < 0.1)

    def said(n: int) -> str:
        spread = errors[n].std() if np.isfinite(errors[n]).all() else np.inf
        return f"{n} ({np.abs(errors[n]).max():.1e}, sd {spread:.1e})"

    print(f"{name}: needed {needed}; build {built:.1f} s, settle {seconds:.2f} s")
    print(f"  initial point, one doubling: {said(first)}")
    for where, choice in (("prior draws", chosen), ("mode", at_mode), ("draws", on_draws)):
        print(f"  {where}: {said(choice.substeps)}, said {choice.error:.1e}", flush=True)


def main() -> None:
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    for name in sys.argv[1:] or CASES:
        study(name)


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)
    main()
