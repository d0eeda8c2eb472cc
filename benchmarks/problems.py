"""Posteriors with known answers, from rough priors, by every method that applies: right, or said so, or confidently wrong.

A run is right if every posterior mean is within 0.3 standard deviations of the reference, every standard deviation within a
third of it, every share of a mode within 0.1, and the log evidence (where the method gives one) within four of its errors and
0.3. It *said* that something is wrong if it raised an error, or if its own diagnostics speak against it: R-hat above 1.01,
fewer than 400 effective draws, divergences, a doubt about the evidence, no end within ``--limit`` seconds. A wrong run that
said nothing is confidently wrong. Each run has a process of its own, so that it compiles what it needs.

Run: ``uv run --extra benchmarks benchmarks/problems.py [names of problems]``; ``--seeds N`` (default 20), ``--methods``;
``--short`` takes five seeds and ``sid.sample``, and fails if a run is confidently wrong. Runs are added to those in the file of
results, of which they take the place; ``--missing`` leaves out those that are there. Where no answer is exact,
``references.py`` has one. The record of the tanks needs ``PM_SYSID_DATA``.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import arviz_stats
import numpy as np
import pymc as pm
import references
import rival_samplers
import xarray as xr
from problem_set import PROBLEMS, Problem

import pm_sysid as sid

RESULTS = Path(__file__).parent / "results" / "problems.json"
#: Processes for the chains of a run (``--cores``); times depend on it, results do not.
CORES = 2
#: Seconds after which a run is ended (``--limit``).
LIMIT = 900.0


class Truth(NamedTuple):
    """What a run is compared with: means and standard deviations by variable (None where modes have shares), and evidence."""

    mean: dict[str, np.ndarray] | None
    sd: dict[str, np.ndarray] | None
    log_evidence: float
    error: float


def truth_of(problem: Problem) -> Truth:
    """Exact answers where there are, references by computation elsewhere."""
    answer = problem.answer
    if answer.shares:
        assert answer.log_evidence is not None
        return Truth(None, None, answer.log_evidence, 0.0)
    if answer.log_evidence is not None:
        mean, sd = ({name: np.asarray(v) for name, v in values.items()} for values in (answer.mean, answer.sd))
        return Truth(mean, sd, answer.log_evidence, 0.0)
    found = references.known(problem)
    if not found.counts:
        print(f"{problem.name}: the reference is not certain. {references.shown(problem, found)}", flush=True)
    mean, sd = ({name: np.asarray(v) for name, v in values.items()} for values in (found.mean, found.sd))
    return Truth(mean, sd, found.log_evidence, found.error)


# -- methods --------------------------------------------------------------------------------------------------------------


def by_sample(problem: Problem, seed: int) -> xr.DataTree:
    """One call."""
    return sid.sample(problem.model, cores=CORES, random_seed=seed, progressbar=False)


def by_independent(problem: Problem, seed: int) -> xr.DataTree:
    """One call, by independent proposals whatever the model."""
    options: dict[str, Any] = {"cores": CORES, "random_seed": seed, "progressbar": False}
    return sid.sample(problem.model, method="independent", **options)


def by_mode_and_nuts(problem: Problem, seed: int) -> xr.DataTree:
    """The mode, then NUTS with its curvature; what either warns of counts as said."""
    with problem.model:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            mode = sid.find_mode(random_seed=seed, progressbar=False)
            options: dict[str, Any] = {"initvals": mode.initvals, "step": mode.nuts(), "progressbar": False}
        idata: xr.DataTree = pm.sample(1000, tune=500, chains=4, cores=CORES, random_seed=seed, **options)
    idata.attrs["trusted"] = int(not any(issubclass(w.category, UserWarning) for w in caught))
    return idata


def by_ibis(problem: Problem, seed: int) -> xr.DataTree:
    """Sequential sampling."""
    return sid.sample_ibis(1000, model=problem.model, chains=2, cores=CORES, random_seed=seed, progressbar=False)


def by_annealing(problem: Problem, seed: int) -> xr.DataTree:
    """Data Annealing with its defaults, and what ``check_modes`` says afterwards: it takes the filter's steps as they are."""
    with problem.model:
        options: dict[str, Any] = {"step": sid.DataAnnealing(), "progressbar": False}
        idata: xr.DataTree = pm.sample(10_000, tune=10_000, chains=4, cores=CORES, random_seed=seed, **options)
        idata.attrs["trusted"] = int(sid.check_modes(idata).level != "bad")
    return idata


def by_pymc(problem: Problem, seed: int) -> xr.DataTree:
    """``pm.sample`` as it comes, with PyMC's own NUTS."""
    with problem.model:
        options: dict[str, Any] = {"nuts_sampler": "pymc", "progressbar": False}
        idata: xr.DataTree = pm.sample(1000, chains=4, cores=CORES, random_seed=seed, **options)
    return idata


def by_nutpie(problem: Problem, seed: int) -> xr.DataTree:
    """``pm.sample`` with nutpie."""
    with problem.model:
        options: dict[str, Any] = {"nuts_sampler": "nutpie", "progressbar": False}
        idata: xr.DataTree = pm.sample(1000, chains=4, cores=CORES, random_seed=seed, **options)
    return idata


def by_pymc_smc(problem: Problem, seed: int) -> xr.DataTree:
    """``pm.sample_smc`` with its own kernel."""
    with problem.model:
        idata: xr.DataTree = pm.sample_smc(1000, chains=2, cores=CORES, random_seed=seed, progressbar=False)
    return idata


def by_particles(problem: Problem, seed: int) -> xr.DataTree:
    """Tempering of the package `particles`."""
    return rival_samplers.by_particles(problem.model, seed)


def by_blackjax(problem: Problem, seed: int) -> xr.DataTree:
    """Tempering of the package `blackjax`."""
    return rival_samplers.by_blackjax(problem.model, seed)


OURS: dict[str, Callable[[Problem, int], xr.DataTree]] = {
    "sid.sample": by_sample,
    "independent proposals": by_independent,
    "sid.sample_ibis": by_ibis,
    "sid.find_mode + NUTS": by_mode_and_nuts,
    "sid.DataAnnealing": by_annealing,
}
PEERS: dict[str, Callable[[Problem, int], xr.DataTree]] = {"pm.sample": by_pymc, "pm.sample_smc": by_pymc_smc}
if find_spec("nutpie") is not None:
    PEERS["nutpie"] = by_nutpie
if find_spec("particles") is not None:
    PEERS["particles"] = by_particles
if find_spec("blackjax") is not None:
    PEERS["blackjax"] = by_blackjax
METHODS = OURS | PEERS


# -- judgement ------------------------------------------------------------------------------------------------------------


def shares_of(idata: xr.DataTree) -> np.ndarray:
    """Mass in the quadrants of the problem with three modes: both positive, a alone, b alone."""
    a, b = (idata["posterior"][n].values.ravel() for n in ("a", "b"))
    return np.array([np.mean((a * s > 0) & (b * t > 0)) for s, t in ((1, 1), (1, -1), (-1, 1))])


def evidence_of(idata: xr.DataTree) -> tuple[float, float]:
    """Log evidence of a run and its error, NaN where it gives none."""
    try:
        found = sid.log_evidence(idata)
    except ValueError:
        return float("nan"), float("nan")
    return found.value, float(np.nan_to_num(found.error))


def errors_of(problem: Problem, truth: Truth, idata: xr.DataTree) -> list[str]:
    """What is wrong with a run, by the reference."""
    wrong = []
    if truth.mean is None or truth.sd is None:
        off = np.max(np.abs(shares_of(idata) - np.array(list(problem.answer.shares.values()))[:3]))
        if off > 0.1:
            wrong.append(f"shares off by {off:.2f}")
    else:
        posterior = {name: idata["posterior"][name].values for name in truth.mean}
        flat = problem.answer.judged({name: v.reshape(-1, *v.shape[2:]) for name, v in posterior.items()})
        for name, mean in truth.mean.items():
            draws = flat[name]
            away = float(np.max(np.abs(draws.mean(axis=0) - mean) / truth.sd[name]))
            ratio = np.atleast_1d(draws.std(axis=0) / truth.sd[name])
            if away > 0.3:
                wrong.append(f"mean of {name} off by {away:.2f} sd")
            if ratio.max() > 4 / 3 or ratio.min() < 3 / 4:
                wrong.append(f"sd of {name} {ratio[np.argmax(np.abs(np.log(ratio)))]:.2f} times the right one")
    value, error = evidence_of(idata)
    if np.isfinite(value) and abs(value - truth.log_evidence) > 4 * np.hypot(error, truth.error) + 0.3:
        wrong.append(f"log evidence off by {value - truth.log_evidence:+.2f} (stated error {error:.2f})")
    return wrong


def said_by(idata: xr.DataTree) -> list[str]:
    """What a run says against itself."""
    said = []
    table = arviz_stats.summary(idata, kind="diagnostics", round_to="none")
    if not float(table["r_hat"].astype(float).max()) <= 1.01:
        said.append(f"R-hat {float(table['r_hat'].astype(float).max()):.2f}")
    ess = float(np.nanmin(table[["ess_bulk", "ess_tail"]].astype(float).to_numpy()))
    if ess < 400:
        said.append(f"{ess:.0f} effective draws")
    statistics = idata["sample_stats"]
    if "diverging" in statistics and int(statistics["diverging"].sum()):
        said.append(f"{int(statistics['diverging'].sum())} divergences")
    try:
        said += [doubt] if (doubt := sid.log_evidence(idata).doubt) else []
    except ValueError:
        pass
    if not idata.attrs.get("trusted", 1):
        said.append("verdict")
    return said


def one(problem: Problem, truth: Truth, method: str, seed: int) -> dict[str, Any]:
    """One run, judged."""
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            idata = METHODS[method](problem, seed)
        except Exception as error:
            wrong, said = ["no result"], [f"{type(error).__name__}: {str(error)[:80]}"]
            return {
                "right": False, "said": True, "wrong": wrong, "says": said,
                "seconds": time.perf_counter() - begun, "processor": processor_seconds(),
            }  # fmt: skip
        seconds, processor = time.perf_counter() - begun, processor_seconds()
        wrong, said = errors_of(problem, truth, idata), said_by(idata)
    value, error = evidence_of(idata)
    z = (value - truth.log_evidence) / np.hypot(max(error, 1e-9), truth.error)
    evaluations = float("nan")
    if "evaluations" in idata["sample_stats"] and "time_index" in idata["sample_stats"]:
        statistics = sid.stages(idata)
        earlier = statistics.attrs.get("earlier_evaluations", 0)
        evaluations = float((statistics["evaluations"].max("stage").sum() + earlier) / statistics["time_index"].max())
    elif "n_steps" in idata["sample_stats"]:
        evaluations = float(idata["sample_stats"]["n_steps"].sum())
    return {
        "right": not wrong, "said": bool(said), "wrong": wrong, "says": said, "seconds": seconds, "processor": processor,
        "method": idata.attrs.get("method", method), "evaluations": evaluations,
        "log_evidence": value, "error": error, "z": float(z),
    }  # fmt: skip


def processor_seconds() -> float:
    """Processor seconds of this process, which only one run has used, and of its chains that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def limited(problem: Problem, truth: Truth, method: str, seed: int) -> dict[str, Any]:
    """One run in a process of its own, which is ended with the processes of its chains when its time is over."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, problem, truth, method, seed))
    begun = time.perf_counter()
    process.start()
    sender.close()
    says = f"did not end in {LIMIT:.0f} s"
    if receiver.poll(LIMIT):
        try:
            return dict(receiver.recv())
        except EOFError:
            says = "its process died"
        finally:
            process.join()
    else:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return {"right": False, "said": True, "wrong": ["no result"], "says": [says], "seconds": time.perf_counter() - begun}


def _send(sender: Connection, problem: Problem, truth: Truth, method: str, seed: int) -> None:
    """What runs in the process: a group of its own, so that its children end with it."""
    os.setpgid(0, 0)
    sender.send(one(problem, truth, method, seed))


def line(name: str, method: str, runs: list[dict[str, Any]]) -> str:
    """A row of the table."""
    right = sum(r["right"] for r in runs)
    said = sum(not r["right"] and r["said"] for r in runs)
    silent = sum(not r["right"] and not r["said"] for r in runs)
    seconds = np.median([r["seconds"] for r in runs])
    processor = np.array([r.get("processor", np.nan) for r in runs])
    used = f"{np.nanmedian(processor):9.1f}" if np.isfinite(processor).any() else " " * 9
    evaluations = [r.get("evaluations", np.nan) for r in runs]
    known = f"{np.nanmedian(evaluations):9.0f}" if np.isfinite(evaluations).any() else " " * 9
    z = np.array([r.get("z", np.nan) for r in runs])
    spread = f"{np.nanstd(z, ddof=1):6.2f}" if np.isfinite(z).sum() > 2 else " " * 6
    return f"{name:20s} {method:22s} {right:3d} of {len(runs):2d} {said:5d} {silent:8d} {seconds:9.1f} {used} {known} {spread}"


def stored() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Runs in the file of results, by problem and method."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def save(name: str, method: str, run: dict[str, Any]) -> None:
    """Put a run in the place of that of its seed in the file of results, which other processes may write to."""
    RESULTS.parent.mkdir(exist_ok=True)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = stored()
        methods = results.setdefault(name, {})
        runs = {known["seed"]: known for known in methods.get(method, [])} | {run["seed"]: run}
        methods[method] = [runs[seed] for seed in sorted(runs)]
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    global CORES, LIMIT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--methods", nargs="*", default=None, choices=METHODS)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--missing", action="store_true", help="only runs that are not in the file")
    parser.add_argument("--cores", type=int, default=CORES)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which a run is ended")
    options = parser.parse_args()
    CORES, LIMIT = options.cores, options.limit
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    logging.getLogger("pm_sysid").setLevel(logging.CRITICAL)
    chosen = options.methods or (["sid.sample"] if options.short else list(METHODS))
    seeds = range(5 if options.short else options.seeds)
    results = {} if options.short else stored()
    header = (
        f"{'problem':20s} {'method':22s} {'right':>9s} {'said':>5s} {'silent':>8s} {'seconds':>9s} "
        f"{'processor':>9s} {'evals':>9s} {'z sd':>6s}"
    )
    print(header, flush=True)
    silent = 0
    for name in options.problems or PROBLEMS:
        if name == "tanks" and not os.environ.get("PM_SYSID_DATA"):
            print("tanks                left out: PM_SYSID_DATA is not set")
            continue
        problem = PROBLEMS[name]()
        truth = truth_of(problem)
        for method in chosen:
            known = {run["seed"]: run for run in results.get(name, {}).get(method, [])}
            for seed in seeds:
                if not (options.missing and seed in known):
                    known[seed] = {"seed": seed, **limited(problem, truth, method, seed)}
                    if not options.short:
                        save(name, method, known[seed])
            runs = [known[seed] for seed in sorted(known)]
            print(line(name, method, runs), flush=True)
            for found in runs:
                if found["wrong"]:
                    said = "; ".join(found["says"]) or "nothing"
                    print(f"    seed {found['seed']}: {'; '.join(found['wrong'])} -- says: {said}"[:300], flush=True)
            silent += sum(not r["right"] and not r["said"] for r in runs) if method in OURS else 0
    print(f"confidently wrong runs of the package: {silent}")
    sys.exit(int(silent > 0))


if __name__ == "__main__":
    main()
