"""What exact relations (conserved mass and energy, the length of a rod) give a solver with steps of a certain length.

For each system, with and without its relations: the error of the filter's states over the record, without data, against an
accurate solution (in units of the size of each state); how many of its own standard deviations that is; and the error of the
log-likelihood of a noisy record at the true parameters, against that of the accurate solution.

Run: ``uv run benchmarks/relations.py`` (about a minute). Writes ``benchmarks/results/relations.json``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from scipy.integrate import solve_ivp
from scipy.stats import norm

import pm_sysid as sid
from pm_sysid.recurrence.functions import compiled
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.solve.options import Solver
from pm_sysid.steps.grid import StepGrid

NOISE = 0.01  # of the size of each state


class Subject(NamedTuple):
    """Equations, relations, initial state, parameters, sampling times, steps a sample; and the settings of the solver."""

    dynamics: Callable[..., Any]
    states: tuple[str, ...]
    relations: Callable[..., Any]
    x0: tuple[float, ...]
    params: dict[str, float]
    times: np.ndarray
    substeps: tuple[int, ...]
    solver: Solver

    def system(self, related: bool) -> sid.System:
        """All states are measured."""
        return sid.System(
            self.dynamics,
            states=self.states,
            params=tuple(self.params),
            observe=lambda t, x, dx, u, p: tuple(x),
            relations=self.relations if related else None,
        )


def robertson(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
    """Three reactions with rates over nine orders of magnitude."""
    ab, bb, bc = p.k1 * x.a, p.k2 * x.b * x.b, p.k3 * x.b * x.c
    return -ab + bc, ab - bc - bb, bb


def rod(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
    """Pendulum in Cartesian coordinates; the force of the rod keeps its length."""
    pull = (x.vx * x.vx + x.vy * x.vy - p.g * x.y) / (x.x * x.x + x.y * x.y)
    return x.vx, x.vy, -pull * x.x, -pull * x.y - p.g


def kepler(t: Any, x: Any, u: Any, p: Any) -> tuple[Any, ...]:
    """A planet."""
    cubed = (x.x * x.x + x.y * x.y) ** 1.5
    return x.vx, x.vy, -p.mu * x.x / cubed, -p.mu * x.y / cubed


SUBJECTS = {
    "Robertson's reactions, mass": Subject(
        robertson,
        ("a", "b", "c"),
        lambda t, x, u, p: x.a + x.b + x.c - 1.0,
        (1.0, 0.0, 0.0),
        {"k1": 0.04, "k2": 3e7, "k3": 1e4},
        np.concatenate([[0.0], np.logspace(-4, 4, 41)]),
        (2, 4, 8),
        sid.EK1(order=3),
    ),
    "undamped Duffing oscillator, energy": Subject(
        lambda t, x, u, p: (x.v, -p.k * x.z - p.k3 * x.z**3),
        ("z", "v"),
        lambda t, x, u, p: x.v**2 / 2 + p.k * x.z**2 / 2 + p.k3 * x.z**4 / 4 - p.energy,
        (1.0, 0.0),
        {"k": 1.0, "k3": 1.0, "energy": 0.75},
        np.linspace(0.0, 100.0, 201),
        (1, 2, 4),
        sid.EK1(order=3),
    ),
    "pendulum on a rod, length": Subject(
        rod,
        ("x", "y", "vx", "vy"),
        lambda t, x, u, p: (x.x**2 + x.y**2 - 1.0, x.x * x.vx + x.y * x.vy),
        (1.0, 0.0, 0.0, 0.0),
        {"g": 9.81},
        np.linspace(0.0, 20.0, 201),
        (1, 2, 4),
        sid.EK1(order=3),
    ),
    "pendulum on a rod, length and energy": Subject(
        rod,
        ("x", "y", "vx", "vy"),
        lambda t, x, u, p: (x.x**2 + x.y**2 - 1.0, x.x * x.vx + x.y * x.vy, (x.vx**2 + x.vy**2) / 2 + p.g * x.y),
        (1.0, 0.0, 0.0, 0.0),
        {"g": 9.81},
        np.linspace(0.0, 20.0, 201),
        (1, 2, 4),
        sid.EK1(order=3),
    ),
    "planet, energy and angular momentum": Subject(
        kepler,
        ("x", "y", "vx", "vy"),
        lambda t, x, u, p: (
            (x.vx**2 + x.vy**2) / 2 - p.mu / pt.sqrt(x.x**2 + x.y**2) + 0.5,
            x.x * x.vy - x.y * x.vx - 0.8,
        ),
        (0.4, 0.0, 0.0, 2.0),
        {"mu": 1.0},
        np.linspace(0.0, 30.0, 201),
        (1, 2, 4),
        sid.EK1(order=3),
    ),
}


def solution(subject: Subject) -> np.ndarray:
    """States (T, n) at the samples, by SciPy with tight tolerances."""
    dynamics = subject.dynamics
    system = subject.system(False)
    fields = [type(name, (), {}) for name in ("x", "p")]

    def rates(t: float, x: np.ndarray) -> list[Any]:
        state, params = fields[0](), fields[1]()
        for names, values, into in ((system.states, x, state), (subject.params, subject.params.values(), params)):
            for name, value in zip(names, values, strict=True):
                setattr(into, name, value)
        return list(dynamics(t, state, None, params))

    t, stiff = subject.times, len(subject.states) == 3
    options = {"method": "Radau", "rtol": 1e-9, "atol": 1e-13} if stiff else {"method": "DOP853", "rtol": 1e-12, "atol": 1e-12}
    found = solve_ivp(rates, (t[0], t[-1]), subject.x0, t_eval=t, **options)
    return found.y.T


def measure(subject: Subject) -> list[dict[str, Any]]:
    """One row for each number of steps, with and without relations."""
    truth = solution(subject)
    size = np.sqrt(np.mean(truth**2, axis=0))
    y = truth + NOISE * size * np.random.default_rng(0).standard_normal(truth.shape)
    exact = float(norm.logpdf(y, truth, NOISE * size).sum())
    record, n = sid.TimeSeries(subject.times, None, y), len(subject.states)
    rows = []
    for related in (False, True):
        problem = Problem.build(subject.system(related), subject.solver, [record])
        problem = problem if record.uniform else problem.graded()
        start = np.array([subject.x0])
        chains = len(problem.system.chain_states)
        given = Unknowns(np.array(list(subject.params.values())), start, 0 * start, NOISE * size, np.ones(chains))
        for substeps in subject.substeps:
            steps = substeps if record.uniform else [StepGrid.equal(np.full(len(record) - 1, substeps))]
            data = problem.data([record], steps)
            loglik, _ = problem.run(y, given, data)
            states, _ = problem.run(np.full_like(y, np.nan), given, data, "moments")
            value, moments = compiled([], [loglik.sum(), states])()
            filtering = problem.steps
            places = [filtering.components(0).index((k, c)) for c, k in (filtering.place[s] for s in range(n))]
            total = len(filtering.components(0))
            variance = moments[1:, total:].reshape(-1, total, total)[:, places, places]
            error = moments[1:, places] - truth[1:]
            rows.append(
                {
                    "relations": related,
                    "substeps": substeps,
                    "error": float(np.sqrt(np.mean((error / size) ** 2))),
                    "deviations": float(np.sqrt(np.mean(error**2 / np.maximum(variance, 1e-300)))),
                    "loglik": float(value - exact),
                }
            )
    return rows


def main() -> None:
    """Measure, print and write."""
    logging.getLogger("pm_sysid").setLevel(logging.ERROR)
    found = {}
    for name, subject in SUBJECTS.items():
        found[name] = measure(subject)
        print(name)
        for row in found[name]:
            print("  ", ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    Path(__file__).with_name("results").joinpath("relations.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
