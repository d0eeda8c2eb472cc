"""What a coarse step does to a posterior: bias and coverage by solver, order, substeps, sampling rate and input.

A Duffing oscillator, 10 periods from rest, displacement measured with 1 % noise, sampled 8, 20 or 80 times a (linear)
period, under a band-limited force, one that is linear between the samples, and one that jumps and is held. Data come from an
accurate solution; each record is fitted by the mode and its Gaussian approximation, flat priors on logarithms. Printed for
each cell: the bias of the means in posterior standard deviations (root mean square over m, c, k, k3), the coverage of 90 %
intervals, and the posterior's width beside that of the exact likelihood. ``*`` marks what ``substeps="auto"`` chooses.

Run: ``uv run benchmarks/step_study.py [--short]``; results go to ``benchmarks/results`` and ``docs``.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.likelihood.global_search import climb_all
from pm_sysid.solve.filter_graph import Problem, RecordData, Unknowns
from pm_sysid.solve.filter_substeps import filter_substeps
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence

RESULTS = Path(__file__).parent / "results"
TRUTH = {"m": 1.0, "c": 1.5, "k": 150.0, "k3": 3000.0}
PERIOD, PERIODS, NOISE = 2 * np.pi / np.sqrt(150.0), 10, 0.01
SYSTEM = sid.models.duffing()
INPUTS = {"bl": "smooth", "foh": "linear", "zoh": "jumping"}
SOLVERS: dict[str, Any] = {
    "EK0(2)": sid.EK0(order=2),
    "EK0(4)": sid.EK0(order=4),
    "EK1(3)": sid.EK1(order=3),
    "EK1(4)": sid.EK1(order=4),
    "EK1(5)": sid.EK1(order=5),
    "RK4": None,
}
EXACT = 16
log = logging.getLogger("pm_sysid")


def force(t: np.ndarray, kind: str, seed: int = 1) -> np.ndarray:
    """Ten sines up to twice the natural frequency (N); held inputs are those at the samples."""
    rng = np.random.default_rng(seed)
    w = 2 * np.pi / PERIOD * np.linspace(0.2, 2.0, 10)
    u = (np.sin(w * t[:, None] + rng.uniform(0, 2 * np.pi, 10))).sum(axis=1) * np.minimum(t / PERIOD, 1.0)
    return 6.0 * u if kind != "zoh" else 6.0 * np.round(u)


def experiment(kind: str, rate: int) -> tuple[sid.TimeSeries, np.ndarray, float]:
    """Record without measurement, the true displacement, and the standard deviation of the noise."""
    t = np.arange(rate * PERIODS) * PERIOD / rate
    record = sid.TimeSeries(t, force(t, kind), None, inputs="F", intersample=kind)  # type: ignore[arg-type]
    clean = sid.simulate(SYSTEM, record, TRUTH, x0=0.0, substeps=64)["y"].values
    return record, clean, NOISE * float(clean.std())


def negative(value: Any, theta: Any, args: list[Any]) -> Callable[..., Any]:
    """Compile an objective and its gradient."""
    return pytensor.function([theta, *args], [-value, -pytensor.grad(value, theta)], on_unused_input="ignore")


class Filter:
    """Likelihood of the filter; theta holds the logarithms of m, c, k, k3 and the noise."""

    def __init__(self, solver: Any, record: sid.TimeSeries) -> None:
        self.problem = Problem.build(SYSTEM, solver, [record.replace(y=np.zeros(len(record)))])
        theta, y = pt.dvector("theta"), pt.dmatrix("y")
        arrays = RecordData(*(pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in self.problem.data([record], 1)))
        zero, values = np.zeros((1, 2)), pt.exp(theta)
        unknowns = Unknowns(values[:4], zero, zero, values[4:], np.ones(1))
        loglik, _ = self.problem.run(y, unknowns, arrays)
        self.function = negative(pt.sum(loglik), theta, [y, *arrays])

    def on(self, record: sid.TimeSeries, substeps: int) -> Callable[[np.ndarray, np.ndarray], Any]:
        """Objective of theta and measurements, on a record at a number of substeps."""
        data = self.problem.data([record], substeps)
        return lambda theta, y: self.function(theta, y[:, None], *data)

    def automatic(self, record: sid.TimeSeries, clean: np.ndarray, noise: float) -> int:
        """Substeps that ``"auto"`` chooses at the truth."""
        unknowns = Unknowns(np.array([*TRUTH.values()]), np.zeros((1, 2)), np.zeros((1, 2)), np.array([noise]), np.ones(1))
        return filter_substeps(self.problem, [record.replace(y=clean)], unknowns, "auto", None).substeps


class FreeRun:
    """Likelihood of a free Runge-Kutta run: independent Gaussian errors around it."""

    def __init__(self, solver: Any, record: sid.TimeSeries) -> None:
        theta, y = pt.dvector("theta"), pt.dvector("y")
        arrays = [pt.lvector(), pt.dmatrix(), pt.dmatrix()]
        values = pt.exp(theta)
        out = rk4_recurrence(SYSTEM)(values[:4], np.zeros((1, 2)), *arrays)[0][:, 0]  # type: ignore[misc]
        z = (y - out) / values[4]
        self.function = negative(pt.sum(-0.5 * z**2 - theta[4] - 0.5 * np.log(2 * np.pi)), theta, [y, *arrays])

    def on(self, record: sid.TimeSeries, substeps: int) -> Callable[[np.ndarray, np.ndarray], Any]:
        """Objective of theta and measurements, on a record at a number of substeps."""
        inputs = rk4_inputs(record, substeps)
        return lambda theta, y: self.function(theta, y, inputs.counts, inputs.substeps, inputs.samples)

    def automatic(self, record: sid.TimeSeries, clean: np.ndarray, noise: float) -> int:
        """Substeps that a simulation chooses."""
        return int(sid.simulate(SYSTEM, record, TRUTH, x0=0.0).attrs["substeps"])


def fit(
    objective: Callable[[np.ndarray, np.ndarray], Any], y: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Mode and standard deviations of the logarithms; None where there is no maximum."""

    def of(thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = (np.array(v) for v in zip(*(objective(theta, y) for theta in thetas), strict=True))
        return np.where(np.isfinite(values) & np.isfinite(gradients).all(axis=1), values, np.inf), gradients

    ends = climb_all(of, start[None], np.ones_like(start), [])
    return (ends[0].point, np.sqrt(np.diag(ends[0].covariance))) if ends and ends[0].converged else None


def cell(objective: Any, clean: np.ndarray, noise: float, n: int) -> dict[str, Any]:
    """Fit n records that differ in their noise."""
    truth = np.log([*TRUTH.values(), noise])
    start, errors, widths, failed = truth, [], [], 0
    for seed in range(n):
        y = clean + noise * np.random.default_rng(seed).standard_normal(len(clean))
        result = fit(objective, y, start)
        if result is None:
            failed += 1
            continue
        mean, width = result
        errors.append((mean - truth)[:4] / width[:4])
        widths.append(width[:4])
    if not errors:
        return {"failed": failed}
    z = np.array(errors)
    return {
        "bias": float(np.sqrt(np.mean(z.mean(axis=0) ** 2))),
        "coverage": float(np.mean(np.abs(z) < norm.ppf(0.95))),
        "width": np.mean(widths, axis=0).tolist(),
        "failed": failed,
    }


def study(n: int, rates: list[int], substeps: list[int], solvers: list[str]) -> list[dict[str, Any]]:
    """All cells, with the exact likelihood of each experiment first."""
    rows = []
    for kind in INPUTS:
        experiments = {rate: experiment(kind, rate) for rate in rates}
        first = experiments[rates[0]][0]
        free = FreeRun(None, first)
        exact = {r: cell(free.on(record, EXACT), clean, noise, n) for r, (record, clean, noise) in experiments.items()}
        for name in solvers:
            kernel = free if name == "RK4" else Filter(SOLVERS[name], first)
            for rate, (record, clean, noise) in experiments.items():
                chosen = kernel.automatic(record, clean, noise)
                for s in substeps:
                    found = cell(kernel.on(record, s), clean, noise, n)
                    ratio = np.array(found.get("width", np.nan)) / exact[rate]["width"]
                    row = {"input": kind, "solver": name, "rate": rate, "substeps": s, **found}
                    row |= {"width": float(np.exp(np.mean(np.log(ratio)))), "auto": s == chosen, "chosen": chosen}
                    row["exact"] = {k: exact[rate][k] for k in ("bias", "coverage")}
                    rows.append(row)
                    print(line(row), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    head = (
        f"{INPUTS[row['input']]:8s} {row['solver']:7s} {row['rate']:3d}/period x{row['substeps']}{'*' if row['auto'] else ' '}"
    )
    if "bias" not in row:
        return f"{head}  no record could be fitted"
    text = f"{head}  bias {row['bias']:7.2f} sd  coverage {100 * row['coverage']:5.1f} %  width x{row['width']:.2f}"
    return text + (f"  ({row['failed']} not fitted)" if row["failed"] else "")


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Bias over substeps: a row of panels for each input, a column for each rate; rings mark the automatic choice."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates, solvers = sorted({r["rate"] for r in rows}), list(dict.fromkeys(r["solver"] for r in rows))
    kinds = [k for k in INPUTS if any(r["input"] == k for r in rows)]
    shape = (len(kinds), len(rates))
    # The grey area is what chance makes of the bias.
    figure, axes = pyplot.subplots(*shape, figsize=(8.5, 2.4 * shape[0] + 0.6), sharex=True, sharey=True, squeeze=False)
    for i, kind in enumerate(kinds):
        for j, rate in enumerate(rates):
            ax = axes[i, j]
            ax.axhspan(1e-3, 0.3, color="0.92", lw=0)
            for k, solver in enumerate(solvers):
                some = [r for r in rows if (r["input"], r["rate"], r["solver"]) == (kind, rate, solver) and "bias" in r]
                style: dict[str, Any] = {"color": f"C{k}"} if solver != "RK4" else {"color": "0.2", "ls": "--"}
                ax.loglog([r["substeps"] for r in some], [r["bias"] for r in some], marker=".", label=solver, **style)
                chosen = [r for r in some if r["auto"]]
                ring = {"marker": "o", "ls": "none", "mfc": "none", "ms": 9}
                ax.plot([r["substeps"] for r in chosen], [r["bias"] for r in chosen], color=style["color"], **ring)
            ax.set_ylim(0.02, None)
            if i == 0:
                ax.set_title(f"{rate} samples a period", fontsize="medium")
            if j == 0:
                ax.set_ylabel(f"{INPUTS[kind]} input\nbias (posterior sd)")
            if i == len(kinds) - 1:
                ax.set_xlabel("substeps")
                ax.set_xticks(sorted({r["substeps"] for r in rows}), [str(s) for s in sorted({r["substeps"] for r in rows})])
                ax.minorticks_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize="small")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--short", action="store_true", help="few records and settings; results are not saved")
    parser.add_argument("--records", type=int, default=25)
    options = parser.parse_args()
    log.setLevel(logging.WARNING)
    begin = time.perf_counter()
    if options.short:
        study(5, [20], [1, 2], ["EK1(3)", "RK4"])
        return
    rows = study(options.records, [8, 20, 80], [1, 2, 4], list(SOLVERS))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "step_study.json").write_text(json.dumps({"records": options.records, "rows": rows}, indent=1))
    picture(rows, Path(__file__).parents[1] / "docs" / "step_study.png")
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
