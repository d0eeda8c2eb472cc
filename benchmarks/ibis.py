"""A posterior with evidence, by three samplers on one model: IBIS, PyMC's own kernel, and waste-free tempering of `particles`.

The Silverbox record, a Duffing oscillator with offset, EK1 of order 3 with two substeps a sample, six unknowns. Times are of a
second run in the same process, after everything is compiled. Evaluations are likelihoods of the whole record (a likelihood of
its first half counts one half). Run: ``uv run --extra benchmarks benchmarks/ibis.py``, with the record's folder in
``PM_SYSID_DATA``; ``--quick`` leaves out PyMC's kernel. ``--settings`` compares settings of IBIS on a short simulated record:
spread of evidence and posterior means over seeds, and evaluations. ``--shares`` compares shares of small modes with exact ones,
``--ess`` the effective draws that ArviZ counts in a run with those by which the means of forty runs scatter.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from problem_set import Problem, banana, fast_drop, frequency, funnel, ridge, three_squares
from pymc.smc.kernels import IMH
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.compat.arviz import array_stats
from pm_sysid.sampling.smc.algorithm import Sequential
from pm_sysid.sampling.smc.particle_state import SequentialState, Start

RESULTS = Path(__file__).parent / "results"
PRIORS = {
    "m": (np.log(5e-6), 0.5),
    "c": (np.log(2e-4), 0.5),
    "k": (0.0, 0.5),
    "k3": (np.log(4.0), 0.5),
    "noise": (np.log(1e-3), 1.0),
}
OFFSET = (0.0, 0.01)
PARAMS = ("m", "c", "k", "k3", "offset")
N = 1000
GAUSSIAN = sid.Moves(freedom=np.inf)
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "threshold=0.5": {"threshold": 0.5},
    "threshold=0.7": {"threshold": 0.7},
    "Gaussian proposals": {"moves": GAUSSIAN},
    "Gaussian proposals, threshold=0.5": {"moves": GAUSSIAN, "threshold": 0.5},
    "freedom=5": {"moves": sid.Moves(freedom=5.0)},
    "steps=10": {"moves": sid.Moves(steps=10)},
    "steps=50": {"moves": sid.Moves(steps=50)},
    "steps=10, threshold=0.5": {"moves": sid.Moves(steps=10), "threshold": 0.5},
    "plain moves, steps=1": {"moves": sid.Moves("plain", steps=1)},
    "plain moves, steps=3": {"moves": sid.Moves("plain", steps=3)},
    "plain moves, steps=3, threshold=0.5": {"moves": sid.Moves("plain", steps=3), "threshold": 0.5},
}


def silverbox_model(record: sid.TimeSeries) -> pm.Model:
    """Duffing oscillator with offset under wide priors; all Gaussian in unconstrained space."""
    with pm.Model() as model:
        free: dict[str, Any] = {name: pm.LogNormal(name, *prior) for name, prior in PRIORS.items()}
        free["offset"] = pm.Normal("offset", *OFFSET)
        system = sid.models.duffing(offset=True)
        params = {name: free[name] for name in PARAMS}
        sid.ODEFilter("y", system, record, params, noise=free["noise"], solver=sid.EK1(order=3), substeps=2)
    return model


def row(name: str, seconds: float, evaluations: float, evidence: float, posterior: Any, arrow: sid.TimeSeries) -> Any:
    """One line of the table, with the free run of the posterior on the arrow head."""
    run = sid.simulate(sid.models.duffing(offset=True), arrow, {k: posterior[k].ravel()[:200] for k in PARAMS})
    rmse = 1e3 * np.asarray(sid.rmse(arrow.y, run["y"]))
    noise = posterior["noise"]
    print(
        f"{name:42s} {seconds:8.2f} {evaluations:11,.0f} {evidence:13.2f} {1e3 * noise.mean():8.4f} {1e3 * noise.std():8.4f}"
        f" {rmse.min():6.3f} / {rmse.mean():5.3f} / {rmse.max():5.3f}",
        flush=True,
    )
    return {
        "seconds": seconds,
        "evaluations": evaluations,
        "log evidence": evidence,
        "rmse mV": [rmse.min(), rmse.mean(), rmse.max()],
    }


def compiled(model: pm.Model, **options: Any) -> Sequential:
    """Sequential sampler, compiled by a draw of the prior."""
    sequential = Sequential(sid.Target(model), N, **options)
    sequential.init(Start(sequential.target.draw_prior(1)))
    return sequential


def run(sequential: Sequential, seed: int) -> tuple[SequentialState, float]:
    """Final state of one chain, and the seconds it took from the first particles on."""
    rng = np.random.default_rng(seed)
    state = sequential.init(sequential.draw_prior(rng))
    start = time.perf_counter()
    while not sequential.finished(state):
        state = sequential.step(state, rng)
    return state, time.perf_counter() - start


def ibis(model: pm.Model, arrow: sid.TimeSeries, T: int, name: str = "defaults") -> Any:
    """One chain of IBIS on all threads; the functions are compiled once and run twice."""
    sequential = compiled(model, **SETTINGS[name])
    for seed in (1, 2):
        state, seconds = run(sequential, seed)
    posterior = sequential.target.constrained(state.particles.x)
    return row(f"IBIS ({name}; {state.stage} stages)", seconds, state.evaluations / T, state.log_evidence, posterior, arrow)


def whole_call(model: pm.Model, arrow: sid.TimeSeries, T: int) -> Any:
    """``sample_ibis`` as a user calls it, with its search for other modes and its checks; a second call on one model."""
    options: dict[str, Any] = {"model": model, "chains": 1, "cores": 1, "progressbar": False}
    for seed in (1, 2):
        start = time.perf_counter()
        idata = sid.sample_ibis(N, random_seed=seed, **options)
        seconds = time.perf_counter() - start
        print(f"{'sample_ibis, first call' if seed == 1 else 'second call':42s} {seconds:8.2f}", flush=True)
    evaluations = float(idata["sample_stats"]["evaluations"].max()) + idata["sample_stats"].attrs["search_evaluations"]
    posterior = {k: idata["posterior"][k].values for k in (*PARAMS, "noise")}
    return row("sample_ibis, second call", seconds, evaluations / T, sid.log_evidence(idata).value, posterior, arrow)


class Counting(IMH):
    """PyMC's kernel, counting its evaluations."""

    calls = 0

    def mutate(self) -> None:
        """Move, and count."""
        super().mutate()
        Counting.calls += self.draws * self.n_steps


def pymc_kernel(model: pm.Model, arrow: sid.TimeSeries) -> Any:
    """One chain of PyMC's tempering, one likelihood after the other."""
    options: Any = {"chains": 1, "progressbar": False, "compute_convergence_checks": False, "kernel": Counting, "model": model}
    pm.sample_smc(50, random_seed=1, **options)
    Counting.calls = N
    start = time.perf_counter()
    idata = pm.sample_smc(N, random_seed=2, **options)
    seconds = time.perf_counter() - start
    evidence = float(np.ravel(idata.sample_stats["log_marginal_likelihood"])[-1])
    posterior = {k: idata.posterior[k].values for k in (*PARAMS, "noise")}
    return row("pm.sample_smc, its own kernel", seconds, Counting.calls, evidence, posterior, arrow)


def waste_free(model: pm.Model, arrow: sid.TimeSeries) -> Any:
    """Adaptive tempering of the package `particles` over this package's batched likelihood."""
    import particles
    from particles import distributions as dists
    from particles import smc_samplers as ssp

    vars(np)["float"] = float  # what the package still calls it
    target = sid.Target(model)

    class Silverbox(ssp.StaticModel):  # type: ignore[misc]
        evaluations = 0

        def loglik(self, theta: Any, t: Any = None) -> np.ndarray:
            self.evaluations += len(theta)
            rows = np.column_stack([theta[label] for label in target.labels])
            return np.nan_to_num(target.log_likelihood(rows), nan=-np.inf)

    scale = {f"{k}_log__": dists.Normal(*v) for k, v in PRIORS.items()} | {"offset": dists.Normal(*OFFSET)}
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002  (the package draws from numpy's global generator)
        tempered = Silverbox(data=[0.0], prior=dists.StructDist({label: scale[label] for label in target.labels}))
        algorithm = particles.SMC(fk=ssp.AdaptiveTempering(tempered, wastefree=True, len_chain=20), N=N // 20, verbose=False)
        start = time.perf_counter()
        algorithm.run()
        seconds = time.perf_counter() - start
    rows = np.column_stack([algorithm.X.theta[label] for label in target.labels])
    drawn = np.random.default_rng(0).choice(len(rows), 1000, p=algorithm.W)
    posterior = target.constrained(rows[drawn])
    return row("particles, waste-free tempering (batched)", seconds, tempered.evaluations, algorithm.logLt, posterior, arrow)


def short_model() -> pm.Model:
    """Simulated Duffing oscillator, 400 samples, four unknowns."""
    rng = np.random.default_rng(11)
    t = np.arange(400) / 25.0
    u = sum(np.sin(2 * np.pi * f * t + a) for f, a in zip(np.linspace(0.4, 4, 9), rng.uniform(0, 6.28, 9), strict=True))
    record, truth = sid.TimeSeries(t, 3.0 * u, None), {"c": 1.0, "k": 120.0, "k3": 2000.0}
    system = sid.models.duffing()
    y = sid.simulate(system, record, {"m": 1.0, **truth}, x0=0.0)["y"].values
    record = record.replace(y=y + 0.03 * y.std() * rng.standard_normal(t.size))
    with pm.Model() as model:
        params = {name: pm.LogNormal(name, np.log(value) + 0.2, 0.3) for name, value in truth.items()}
        noise = pm.HalfNormal("noise", 0.02)
        sid.ODEFilter("y", system, record, {"m": 1.0, **params}, noise=noise, solver=sid.EK1(order=3), substeps=2)
    return model


def settings_table(seeds: int = 20) -> None:
    """Inefficiency: variance of the log evidence, and of posterior means in units of the posterior's, times evaluations."""
    model, T = short_model(), 400
    print(f"Duffing, T = {T}, {N} particles, {seeds} seeds")
    print(f"{'settings':38s} stages  evaluations  log evidence    sd  reported  x evaluations  means x evaluations")
    for name, options in SETTINGS.items():
        sequential, rows = compiled(model, **options), []
        for seed in range(seeds):
            state, _ = run(sequential, seed)
            x = state.particles.x
            rows.append([state.log_evidence, state.variance**0.5, state.evaluations / T, state.stage, *x.mean(0)])
        table = np.array(rows)
        value, reported, evaluations, stages = table[:, :4].mean(0)
        means = np.mean(table[:, 4:].var(0, ddof=1) / x.var(0))
        spread = table[:, 0].std(ddof=1)
        print(
            f"{name:38s} {stages:6.0f} {evaluations:12,.0f} {value:13.2f} {spread:5.2f} {reported:9.2f}"
            f" {spread**2 * evaluations:14,.0f} {means * evaluations:20,.0f}",
            flush=True,
        )


def small_modes() -> tuple[pm.Model, float]:
    """Squares of three unknowns that are probably positive, and the exact probability that one is negative."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.87, 0.7, shape=3)
        pm.Normal("y", x**2, 0.05, observed=[1.0, 1.0, 1.0])
    grid = np.linspace(-2, 2, 40_001)
    density = norm.pdf(grid, 0.87, 0.7) * norm.pdf(1.0, grid**2, 0.05)
    return model, float(density[grid < 0].sum() / density.sum())


def shares_table(runs: int = 200) -> None:
    """Shares that one chain gives modes of a few percent, relative to the exact ones."""
    model, exact = small_modes()
    print(f"Three modes of {exact:.1%}, {runs} chains; shares relative to the exact ones")
    print("particles   mean  +-      sd of a chain  chains with less than three tenths")
    for draws in (N, 4 * N):
        sequential = Sequential(sid.Target(model), draws)
        share = np.array([np.mean(run(sequential, seed)[0].particles.x < 0, axis=0) for seed in range(runs)]) / exact
        error = share.std() / np.sqrt(share.size)
        print(f"{draws:9d} {share.mean():6.3f}  {error:.3f}  {share.std():12.2f}  {np.mean(share < 0.3):12.4f}", flush=True)


def hundred_on_a_ridge() -> Problem:
    """A product of two unknowns plus half a third, a hundred times: most proposals are refused."""
    return ridge(sigma=0.3, samples=100)


def ess_table(runs: int = 40) -> None:
    """Effective draws of the mean of each unknown: the median that runs state, over the number by which their means scatter.

    The second is the exact variance over that of the means, which forty runs know to a quarter.
    """
    logging.getLogger("pymc").setLevel(logging.ERROR)
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", UserWarning)
    print(f"{runs} runs of one chain of {N} particles; effective draws stated (medians) / by the scatter of the means: ratio")
    rows = {}
    for make in (hundred_on_a_ridge, ridge, banana, funnel, three_squares, frequency, fast_drop):
        problem, means, stated = make(), [], []
        for seed in range(runs):
            options: dict[str, Any] = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
            idata = sid.sample_ibis(N, model=problem.model, random_seed=seed, **options)
            draws = np.concatenate([idata["posterior"][x].values[0].reshape(N, -1).T for x in problem.answer.mean])
            means.append(draws.mean(axis=1))
            stated.append([float(array_stats.ess(row[None], method="mean")) for row in draws])
        variance = np.concatenate([np.ravel(problem.answer.sd[x]) for x in problem.answer.mean]) ** 2
        scattered, said = variance / np.var(means, axis=0, ddof=1), np.median(stated, axis=0)
        rows[make.__name__] = {"stated": said.tolist(), "by scatter": scattered.tolist()}
        each = ", ".join(f"{a:.0f} / {b:.0f}: {a / b:.2f}" for a, b in zip(said, scattered, strict=True))
        print(f"{make.__name__:20s} {each}", flush=True)
    (RESULTS / "effective_draws.json").write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    """Print the table and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--shares", action="store_true")
    parser.add_argument("--ess", action="store_true")
    options = parser.parse_args()
    if options.ess:
        ess_table()
        return
    if options.shares:
        shares_table()
        return
    if options.settings:
        settings_table()
        return
    logging.getLogger("pymc").setLevel(logging.ERROR)
    try:
        train, arrow = (sid.datasets.silverbox(part) for part in ("train", "arrow"))
    except (FileNotFoundError, ImportError) as error:
        print(f"Skipped: the Silverbox record is not here. {error}")
        sys.exit(0)
    model = silverbox_model(train)
    print(f"Silverbox, T = {len(train)}, {N} particles; evidence differs by the Monte Carlo error of each run")
    titles = ("seconds", "evaluations", "log evidence", "noise mV", "sd", "arrow head, RMSE mV")
    print(f"{'':42s}" + "".join(f" {t:>{w}s}" for t, w in zip(titles, (8, 11, 13, 8, 8, 22), strict=True)))
    results = {
        "sample_ibis, second call": whole_call(model, arrow, len(train)),
        "IBIS": ibis(model, arrow, len(train)),
        "IBIS, threshold 0.5": ibis(model, arrow, len(train), "threshold=0.5"),
        "IBIS, plain moves": ibis(model, arrow, len(train), "plain moves, steps=3"),
        "particles": waste_free(model, arrow),
    }
    if not options.quick:
        results["pm.sample_smc"] = pymc_kernel(model, arrow)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process {peak:.0f} MiB")
    (RESULTS / "ibis.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
