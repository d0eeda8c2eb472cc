"""The boards of nonlinearbenchmark.org by their own rules: one row a test, beside the best figure known.

For each board a list of structures (``board_models.py``) is fitted to the training record by free runs (``fit_pem``); the one
with the largest approximation of the evidence is taken. Only then runs of the test records are made, from their inputs and
the samples of the window from which the initial state may be found. Each row has

- ``rmse`` of the posterior mean run by :func:`pm_sysid.score`: draws of Laplace's approximation, weighted by the likelihood;
- ``coverage``: the share of the samples after the window that lie in the 90 % predictive interval, with the deviation of the
  residuals of the training record as noise; ``width``: half of its width in the middle;
- ``seconds`` for all fits of the board, by the clock.

Evidence is Schwarz's criterion. What a free run leaves is not white, so that the log-likelihood counts the same error again and
again; it is divided by ``1 + 2 sum rho_k^2`` (Bartlett) of the residuals of the largest structure. The posterior is Laplace's
approximation with this likelihood, weighted by it; structures of which fewer than ten such draws count are passed over.

A structure that contains another one (``Structure.contains``) cannot have a larger error at its optimum. Where the search ended
with a larger one, ``beaten by`` names the other structure: the search has failed, and error and evidence say nothing.

Run: ``uv run benchmarks/boards.py [Silverbox BoucWen EMPS Cascaded_Tanks F16]``; ``--short`` takes a part of each training
record and the first structures, and saves nothing. Rows take the place of those in the file of results. The records come from
``PM_SYSID_DATA`` or by download. Rows of the F-16 are those of ``examples/f16.py``, by this metric.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import board_models as models
import numpy as np
from board_models import Structure

import pm_sysid as sid

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "results" / "boards.json", HERE.parent / "docs"
DRAWS, SEED = 64, 7
F16_DRAWS = 24
LONG = 5000  # samples of a training record up to which every structure has a posterior and not the chosen one alone
ENOUGH = 10  # effective draws without which a fit is not believed
MEASURED = {"Silverbox": "V", "BoucWen": "m", "EMPS": "m", "Cascaded_Tanks": "V"}  # units of the records
Z90 = 1.6448536269514722  # the middle 90 % of a normal distribution


class Known(NamedTuple):
    """Best figure on a board, in its unit, and whose it is."""

    value: float
    source: str


@dataclass(frozen=True)
class Board:
    """How a board is played: structures, and where runs start."""

    structures: Callable[[], list[Structure]]
    #: Best known by test.
    best: Mapping[str, Known]
    #: State at the first sample of the training record as `fit_pem` takes it: a value, or to be estimated.
    start: Callable[[Structure, sid.TimeSeries], Any]
    #: Samples of the training record of a short run.
    short: int
    #: Other lengths of the window to be scored with, beside that of the benchmark.
    windows: tuple[int, ...] = ()
    #: What else is known of the sensor of a test: a second row.
    sensors: Mapping[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)
    #: Whether the tests are simulations without noise, so that intervals are those of the run alone.
    noiseless: bool = False


class Fitted(NamedTuple):
    """A structure on the training record."""

    structure: Structure
    fit: Any
    seconds: float

    @property
    def values(self) -> dict[str, float]:
        """Parameters, those that are fixed among them."""
        return {**self.structure.fixed, **{name: float(v) for name, v in self.fit.p.items()}}

    @property
    def residuals(self) -> np.ndarray:
        """Errors of the free run on the training record."""
        return np.asarray(self.fit.innovations()["innovation"].values[:, 0])


def fitted(board: Board, structures: Sequence[Structure], train: sid.TimeSeries) -> list[Fitted]:
    """Every structure, each from where the best of those before it ended that have a part of its terms and no others."""
    found: list[Fitted] = []
    for s in structures:
        begin = time.perf_counter()
        smaller = [f for f in found if not f.structure.aside and set(f.structure.terms) <= set(s.terms)]
        guess = s.begin(min(smaller, key=lambda f: f.fit.fun).values if smaller else {})
        lower = {n: s.lower.get(n, -np.inf) for n in guess}
        fit = sid.fit_pem(
            s.system, train, guess, fixed=s.fixed, predictor=sid.ExtendedKalman(substeps=s.substeps),
            x0=board.start(s, train), bounds=(lower, dict.fromkeys(guess, np.inf)) if s.lower else None, starts=s.starts,
            optimiser=sid.Optimiser("lm", {"max_nfev": s.evaluations} if s.evaluations else None),
            random_seed=SEED, progressbar=False,
        )  # fmt: skip
        found.append(Fitted(s, fit, time.perf_counter() - begin))
        print(f"  {s.name:42s} training {np.sqrt(fit.fun):.5g}   {found[-1].seconds:.0f} s  {fit.message[:60]}", flush=True)
    return found


def beaten(one: Fitted, found: Sequence[Fitted]) -> str | None:
    """Structure with a part of the terms of this one and a smaller error: the search of this one did not find its optimum."""
    better = [f for f in found if one.structure.contains(f.structure) and f.fit.fun < one.fit.fun * (1 - 1e-6)]
    return min(better, key=lambda f: f.fit.fun).structure.name if better else None


def repeated(residuals: np.ndarray, lags: int = 1000) -> float:
    """How often the same error is counted: ``1 + 2 sum rho_k^2`` over lags up to a tenth of the record."""
    e = residuals - residuals.mean()
    n = min(lags, len(e) // 10)
    spectrum = np.abs(np.fft.rfft(e, 2 * len(e))) ** 2
    rho = np.fft.irfft(spectrum)[: n + 1]
    return float(1.0 + 2.0 * np.sum((rho[1:] / rho[0]) ** 2 - 1.0 / len(e)))


def evidence(found: Fitted, counted: float) -> float:
    """Schwarz's criterion (1978, half of it) with a log-likelihood that counts each error once."""
    n = len(found.residuals) / counted
    return float(-0.5 * n * (np.log(2 * np.pi * found.fit.fun) + 1.0) - 0.5 * (len(found.fit.x) + 1) * np.log(n))


class Posterior(NamedTuple):
    """Weighted draws around a fit; `params` has what is fixed as well."""

    params: dict[str, Any]
    weights: np.ndarray

    @property
    def effective(self) -> float:
        """Number of draws that count."""
        return float(1.0 / np.sum(self.weights**2))


def posterior(found: Fitted, train: sid.TimeSeries, counted: float, times: int = 1) -> Posterior:
    """Importance sampling with Laplace's approximation as the proposal; a likelihood that counts each error once.

    ``times`` as many draws as usual.
    """
    fit, system, rng = found.fit, found.structure.system, np.random.default_rng(SEED)
    number = times * (DRAWS if len(train) * found.structure.substeps > 50_000 else 16 * DRAWS)
    covariance = counted * np.where(np.isfinite(fit.cov), fit.cov, 0.0)
    std = np.sqrt(np.diag(covariance))
    size = np.where(std > 0, std, 1.0)  # unknowns differ by many orders of magnitude
    correlation = covariance / np.outer(size, size)
    z = rng.multivariate_normal(np.zeros(len(std)), correlation, size=number, method="eigh")
    x, away = fit.x + z * size, np.einsum("di,ij,dj->d", z, np.linalg.pinv(correlation, hermitian=True), z)
    drawn = dict(zip(fit.names, x.T, strict=True))
    params = {n: drawn.get(n, v) for n, v in found.values.items()}
    x0 = {n: drawn.get(f"x0.{n}", float(v)) for n, v in zip(system.states, np.ravel(fit.x0), strict=True)}
    runs = sid.simulate(system, train, params, x0=x0, substeps=found.structure.substeps)[system.outputs[0]].values
    with np.errstate(all="ignore"):
        squares = np.mean((runs.reshape(number, -1) - train.y) ** 2, axis=1)
        log_weight = 0.5 * away - 0.5 * len(train) / counted * squares / fit.fun
    for name, least in found.structure.lower.items():
        log_weight = np.where(drawn[name] < least, -np.inf, log_weight) if name in drawn else log_weight
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    weights = np.exp(log_weight - log_weight.max())
    return Posterior(params, weights / weights.sum())


def first_state(found: Fitted, record: sid.TimeSeries, window: int) -> tuple[np.ndarray, np.ndarray]:
    """State at the first sample of a test, by its first samples alone, and its covariance."""
    s, states = found.structure, found.structure.system.states
    begin = np.atleast_2d(found.fit.x0)[0]
    if window == 0:
        return np.zeros(len(states)), np.zeros((len(states), len(states)))
    guess = dict(zip(states, map(float, begin), strict=True))
    fit = sid.fit_pem(
        s.system, record[:window], {}, fixed=found.values, predictor=sid.ExtendedKalman(substeps=s.substeps),
        x0=sid.InitialState(guess, estimate=True), starts=1, progressbar=False,
    )  # fmt: skip
    covariance = np.where(np.isfinite(fit.cov), fit.cov, 0.0)
    return np.asarray(fit.x0), covariance


def predictive(
    found: Fitted, record: sid.TimeSeries, window: int, draws: Posterior | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (T,) and standard deviation (T,) of free runs over the posterior, without noise; else the run at the fit."""
    s, rng = found.structure, np.random.default_rng(SEED)
    start, covariance = first_state(found, record, window)
    params: dict[str, Any] = found.values
    x0: dict[str, Any] = dict(zip(s.system.states, start.tolist(), strict=True))
    weights = np.ones(1)
    if draws is not None:
        some = np.flatnonzero(draws.weights > 1e-6)
        weights = draws.weights[some] / draws.weights[some].sum()
        params = {n: v[some] if np.ndim(v) else v for n, v in draws.params.items()}
        starts = rng.multivariate_normal(start, covariance, size=len(some), method="svd")
        x0 = {name: starts[:, i] for i, name in enumerate(s.system.states)}
    if window == 0 and record.periodic:  # a steady state: two periods to come there
        last = len(record)
        step = (record.t[-1] - record.t[0]) / (last - 1)
        record = sid.TimeSeries(
            step * np.arange(3 * last), np.tile(record.input_matrix, (3, 1)), intersample=record.intersample, periodic=True
        )
    else:
        last = len(record)
    runs = sid.simulate(s.system, record.replace(inputs=s.system.inputs), params, x0=x0, substeps=s.run_substeps)
    y = runs[s.system.outputs[0]].values.reshape(len(weights), -1)[:, -last:]
    mean = weights @ y
    return mean, np.sqrt(weights @ (y - mean) ** 2)


def scored(
    found: Fitted, draws: Posterior, bench: sid.datasets.Benchmark, board: Board
) -> tuple[list[dict[str, Any]], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Rows of the table, and the runs (mean, half of the 90 % interval)."""
    rows: list[dict[str, Any]] = []
    runs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    noise = float(np.sqrt(found.fit.fun))
    for window in (bench.window, *board.windows):
        rules = replace(bench, window=window)
        for test, record in bench.test.items():
            mean, spread = predictive(found, record, window, draws)
            half = Z90 * (spread if board.noiseless else np.hypot(spread, noise))
            sensed = {"": lambda y: y} | ({"sensor": board.sensors[test]} if test in board.sensors else {})
            for kind, sensor in sensed.items():
                run = sensor(mean)
                one = replace(rules, test={test: record})
                inside = np.abs(run - record.y)[window:] <= half[window:]
                best = board.best.get(test)
                rows.append({
                    "test": test + (", through the generator's filter" if kind else ""),
                    "window": window,
                    "rmse": float(sid.score(one, run)["rmse"][0]),
                    "unit": bench.unit,
                    "best": best.value if best else None,
                    "source": best.source if best else "",
                    "coverage": float(inside.mean()),
                    "width": float(bench.scale * np.median(half[window:])),
                    "noise": bench.scale * noise,
                })  # fmt: skip
                if window == bench.window:
                    runs[rows[-1]["test"]] = (run, half)
    return rows, runs


def test_errors(found: Fitted, bench: sid.datasets.Benchmark) -> dict[str, float]:
    """Errors of the run at the fit, for the page: what an ingredient brings."""
    runs = {test: predictive(found, record, bench.window)[0] for test, record in bench.test.items()}
    return dict(zip(bench.test, sid.score(bench, runs)["rmse"].tolist(), strict=True))


def covered(
    found: Fitted, bench: sid.datasets.Benchmark, train: sid.TimeSeries, counted: float, noiseless: bool
) -> dict[str, float]:
    """Shares of the tests in the 90 % interval of a structure; none where hardly a draw of its posterior counts."""
    draws = posterior(found, train, counted, times=20)
    if draws.effective < ENOUGH:
        return {}
    shares = {}
    for test, record in bench.test.items():
        mean, spread = predictive(found, record, bench.window, draws)
        half = Z90 * (spread if noiseless else np.hypot(spread, np.sqrt(found.fit.fun)))
        shares[test] = float(np.mean(np.abs(mean - record.y)[bench.window :] <= half[bench.window :]))
    return shares


def play(name: str, board: Board, short: bool) -> dict[str, Any]:
    """All of one board."""
    bench = sid.datasets.benchmark(name)  # type: ignore[arg-type]
    train, structures = bench.train[0], board.structures()
    if short:
        train, structures = train[: board.short], structures[:2]
    train = train.replace(inputs=structures[0].system.inputs)
    begin = time.perf_counter()
    found = fitted(board, structures, train)
    largest = max(found, key=lambda f: len(f.fit.x))
    counted = repeated(largest.residuals)
    table = {f.structure.name: evidence(f, counted) for f in found}
    # Schwarz's criterion is Laplace's approximation: where hardly a draw of that counts, neither does the criterion.
    passed_over: list[str] = []
    for chosen in sorted(found, key=lambda f: -table[f.structure.name]):
        draws = posterior(chosen, train, counted)
        if draws.effective >= ENOUGH:
            break
        passed_over.append(chosen.structure.name)
    seconds = time.perf_counter() - begin
    print(f"  passed over: {passed_over}; chosen: {chosen.structure.name}, {draws.effective:.0f} draws count, ", end="")
    print(f"each error {counted:.1f} times", flush=True)
    rows, runs = scored(chosen, draws, bench, board)
    for row in rows:
        row["seconds"] = seconds
        print(f"  {row['test']:44s} {row['rmse']:.4g} {row['unit']}, best known {row['best']}, inside {row['coverage']:.3f}")
    if not short:
        drawn(name, bench, runs).savefig(FIGURES / f"boards_{name.lower()}.png", dpi=130)
    return {
        "rows": rows,
        "chosen": chosen.structure.name,
        "counted": counted,
        "effective draws": draws.effective,
        "passed over": passed_over,
        "values": chosen.values,
        "structures": {
            f.structure.name: {
                "training": bench.scale * float(np.sqrt(f.fit.fun)),
                "unknowns": len(f.fit.x),
                "evidence": table[f.structure.name] - max(table.values()),
                "errors": {} if short else test_errors(f, bench),
                "coverage": covered(f, bench, train, counted, board.noiseless) if len(train) <= LONG and not short else {},
                "seconds": f.seconds,
                "beaten by": beaten(f, found),
            }
            for f in found
        },
    }


def drawn(name: str, bench: sid.datasets.Benchmark, runs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Any:
    """Each test record, and what the run leaves of it with the 90 % interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(runs), figsize=(4.2 * len(runs), 4.6), squeeze=False, sharex="col", layout="constrained")
    for (top, bottom), (title, (run, half)) in zip(axes.T, runs.items(), strict=True):
        record = bench.test[title.split(",")[0]]
        error = bench.scale * (record.y - run)
        top.plot(record.t, record.y, lw=0.4, color="0.3")
        top.set_title(title, fontsize="medium")
        bottom.plot(record.t, error, lw=0.3, color="C0")
        bottom.plot(record.t, bench.scale * half, lw=0.8, color="C3", label="90 % interval")
        bottom.plot(record.t, -bench.scale * half, lw=0.8, color="C3")
        counts = np.abs(error[bench.window :])
        high = 1.2 * max(np.quantile(counts, 0.9995), bench.scale * np.median(half))
        bottom.set(xlabel="time (s)", ylim=(-high, high))
    axes[0, 0].set_ylabel(f"measured ({MEASURED[name]})")
    axes[1, 0].set_ylabel(f"measured - run ({bench.unit})")
    axes[1, 0].legend(loc="upper left", frameon=False, fontsize="small")
    return figure


def estimated(structure: Structure, record: sid.TimeSeries) -> Any:
    """Initial state among the unknowns."""
    return None


def from_rest(structure: Structure, record: sid.TimeSeries) -> Any:
    """Initial state among the unknowns, searched for from zero."""
    return sid.InitialState(0.0, estimate=True)


def levels(structure: Structure, record: sid.TimeSeries) -> Any:
    """Levels of both tanks, the lower from what was measured; a lagging pump has put out the first voltage."""
    value = {"h1": 5.0, "h2": float(record.output_matrix[0, 0]), "q": float(record.input_matrix[0, 0])}
    return sid.InitialState({name: value[name] for name in structure.system.states}, estimate=True)


def measured_start(structure: Structure, record: sid.TimeSeries) -> Any:
    """Position and speed from a cubic through the first 20 samples: the encoder resolves 50 nm, and a line misses the start."""
    *_, speed, position = np.polyfit(record.t[:20] - record.t[0], record.output_matrix[:20, 0], 3)
    return sid.InitialState({"q": float(position), "v": float(speed)}, estimate=False)


def closed_loop_rows() -> list[dict[str, Any]]:
    """Row of the EMPS in closed loop, from the full form of the example: not the board's rule."""
    example = json.loads((HERE.parent / "examples" / "results" / "emps.json").read_text())
    return [{
        "test": "pulses, closed loop", "window": 0, "rmse": example["closed loop, test"][1], "unit": "mm", "best": None,
        "source": "", "coverage": None, "width": None, "noise": None, "seconds": example["seconds"],
    }]  # fmt: skip


def f16_example() -> Any:
    """The example of the F-16 as a module."""
    spec = importlib.util.spec_from_file_location("f16", HERE.parent / "examples" / "f16.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def f16_draws(example: Any, law: str, values: Mapping[str, Any]) -> tuple[list[dict[str, np.ndarray]], float]:
    """Draws of Laplace's approximation around the fit of the example, and how often its likelihood counts the same error."""
    records = [example.training(level, example.PERIOD // 2) for level in example.TRAIN]
    guess = {name: np.asarray(v, dtype=float) for name, v in values.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = sid.fit_pem(
            example.structure(law, len(values["f"])), records, guess, fixed=example.fixed_of(law), x0=0.0, starts=1,
            predictor=sid.ExtendedKalman(substeps=example.FIT_SUBSTEPS), optimiser=sid.Optimiser("lm", {"max_nfev": 1}),
            progressbar=False,
        )  # fmt: skip
    left = [fit.innovations(i)["innovation"].values[example.LEAD :] for i in range(len(records))]
    counted = float(np.mean([repeated(channel) for errors in left for channel in errors.T]))
    known = np.isfinite(np.diag(fit.cov))
    covariance = counted * np.where(np.outer(known, known), fit.cov, 0.0)
    size = np.where(np.diag(covariance) > 0, np.sqrt(np.diag(covariance)), 1.0)
    z = np.random.default_rng(SEED).multivariate_normal(
        np.zeros(len(size)), covariance / np.outer(size, size), size=F16_DRAWS, method="eigh"
    )
    start = np.concatenate([v.ravel() for v in guess.values()])
    ends = np.cumsum([v.size for v in guess.values()])[:-1]
    return [
        {name: part.reshape(v.shape) for (name, v), part in zip(guess.items(), np.split(x, ends), strict=True)}
        for x in start + z * size
    ], counted


def f16_rows() -> dict[str, Any]:
    """Rows of the F-16: the fit of the example in its full form, and intervals.

    The interval holds the uncertainty of the parameters, and errors as large as those of the training levels below and above
    (their geometric mean in each channel): they grow with the level.
    """
    saved = json.loads((HERE.parent / "examples" / "results" / "f16.json").read_text())
    law = max(saved["laws"], key=lambda name: saved["laws"][name]["evidence"]["log_evidence"])
    found, rows, example = saved["laws"][law], [], f16_example()
    draws, counted = f16_draws(example, law, found["values"])
    for level in (2, 4, 6):
        runs = np.array([example.whole_run(law, values, level)[1] for values in draws])
        runs = runs[np.isfinite(runs).all(axis=(1, 2))]
        y, run = example.whole_run(law, found["values"], level)
        near = [np.array(found["errors"][str(one)]["rmse"]) for one in (level - 1, level + 1)]
        noise = np.sqrt(near[0] * near[1])
        half = Z90 * np.hypot(runs.std(axis=0), noise)
        inside = np.abs(run - y) <= half
        for i in range(3):
            rows.append({
                "test": f"level {level}, acc{i + 1}", "window": 50, "rmse": found["errors"][str(level)]["rmse"][i],
                "unit": "m/s^2", "best": None, "source": "", "coverage": float(inside[:, i].mean()),
                "width": float(np.median(half[:, i])), "noise": float(noise[i]),
                "seconds": sum(row["seconds"] for row in saved["laws"].values()),
            })  # fmt: skip
            print(f"  {rows[-1]['test']}: {rows[-1]['rmse']:.4g} m/s^2, inside {rows[-1]['coverage']:.3f}, runs {len(runs)}")
    return {"rows": rows, "chosen": law, "counted": counted, "structures": {}}


ARROW = "GP-NARX (Champneys et al. 2024)"
BOARDS: dict[str, Board] = {
    "Silverbox": Board(
        models.silverbox_structures,
        {
            "multisine_test": Known(0.301, ARROW),
            "arrow_full": Known(0.60, ARROW),
            "arrow_no_extrapolation": Known(0.259, ARROW),
        },
        estimated,
        short=6000,
    ),
    "BoucWen": Board(
        models.bouc_wen_structures,
        {"multisine": Known(7.5e-6, "black box (s)"), "sinesweep": Known(1.9e-6, "white box (s)")},
        from_rest,
        short=4096,
        sensors={"sinesweep": models.decimated},
        noiseless=True,
    ),
    "Cascaded_Tanks": Board(
        models.tanks_structures, {"validation": Known(0.191, "grey box with overflow (s)")}, levels, short=512, windows=(5,)
    ),
    "EMPS": Board(models.emps_structures, {"pulses": Known(2.6, "network, of its own paper")}, measured_start, short=4000),
}


def main() -> None:
    """Play the boards that are named, and keep their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*BOARDS, 'F16'])}; default all")
    parser.add_argument("--short", action="store_true", help="a part of each training record; nothing is saved")
    options = parser.parse_args()
    if unknown := [n for n in options.names if n not in (*BOARDS, "F16")]:
        parser.error(f"unknown: {', '.join(unknown)}; the boards are {', '.join([*BOARDS, 'F16'])}")
    logging.getLogger("pm_sysid").setLevel(logging.WARNING)
    warnings.simplefilter("ignore", sid.SubstepWarning)
    for name in options.names or [*BOARDS, "F16"]:
        print(name, flush=True)
        found = f16_rows() if name == "F16" else play(name, BOARDS[name], options.short)
        found["rows"] += closed_loop_rows() if name == "EMPS" else []
        if not options.short:
            kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            RESULTS.write_text(json.dumps(kept | {name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
