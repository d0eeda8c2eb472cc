"""Recurrences with numbers to run them on: filters of three systems, and a linear one that is followed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt

from pm_sysid.models import bouc_wen, duffing
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import Phase, Recurrence, RecurrenceGradient
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.solve.options import EK1
from pm_sysid.steps.ek import filter_recurrence
from pm_sysid.symbolic.scalars import add, mul, symbols
from pm_sysid.symbolic.system import System

ARGUMENTS = [pt.dvector("p"), pt.dmatrix("starts"), pt.lvector("counts"), pt.dmatrix("sub"), pt.dmatrix("samples")]

COTANGENTS = [pt.dmatrix("g_outputs"), pt.dmatrix("g_final")]


def pulled(op: Recurrence, *inputs: Any) -> list[Any]:
    """Cotangents of parameters that all runs share, and of starts."""
    g_params, g_starts = RecurrenceGradient(op)(*inputs)  # type: ignore[misc]
    return [g_params[0], g_starts]


class Case(NamedTuple):
    """A recurrence and numbers to run it on."""

    op: Recurrence
    arrays: tuple[np.ndarray, ...]

    def cotangents(self) -> list[np.ndarray]:
        rng = np.random.default_rng(7)
        shapes = (len(self.arrays[4]), self.op.n_outputs), (len(self.arrays[1]), self.op.n_carry)
        return [rng.normal(size=s) for s in shapes]


def two_masses() -> System:
    def dynamics(t: Any, x: Any, u: Any, p: Any) -> dict[str, Any]:
        spring = p.kc * (x.a - x.b)
        return dict(
            a=x.va, va=u.F - p.k * x.a - p.k3 * x.a**3 - p.c * x.va - spring, b=x.vb, vb=spring - p.k * x.b - p.c * x.vb
        )

    return System(
        dynamics,
        states=("a", "va", "b", "vb"),
        inputs=("F",),
        params=("k", "k3", "kc", "c"),
        observe=lambda t, x, dx, u, p: (x.a, dx.vb),
    )


SYSTEMS = {
    "duffing": (duffing(), dict(m=1.0, c=0.3, k=4.0, k3=0.5), 4, "bl"),
    "bouc_wen": (bouc_wen(), dict(m=1.0, c=0.3, k=4.0, alpha=3.0, beta=0.8, gamma=0.8, delta=-0.5), 2, "zoh"),
    "two_masses": (two_masses(), dict(k=4.0, k3=0.5, kc=1.0, c=0.2), 2, "foh"),
    "loops": (two_masses(), dict(k=4.0, k3=0.5, kc=1.0, c=0.2), 2, "foh"),
    "chains": (two_masses(), dict(k=4.0, k3=0.5, kc=1.0, c=0.2), 2, "foh"),
    "everywhere": (duffing(), dict(m=1.0, c=0.3, k=4.0, k3=0.5), 4, "zoh"),
}


def filter_case(name: str, output: Any = "loglik", runs: int = 2) -> Case:
    """A filter on short records with a missing sample, uneven times and an uncertain start."""
    system, params, order, intersample = SYSTEMS[name]
    rng = np.random.default_rng(5)
    n_x, n_y = len(system.states), len(system.g)
    covariance = "block" if name in ("two_masses", "chains") else "dense"
    records = []
    for length in (9, 6, 5)[:runs]:
        t = np.cumsum(rng.uniform(0.08, 0.12, length))
        y = rng.normal(0.0, 0.2, (length, n_y))
        y[length // 2, 0] = np.nan
        records.append(TimeSeries(t, rng.normal(size=length), y, intersample=intersample))
    free = () if name == "everywhere" else (0,)
    problem = Problem.build(system, EK1(order=order, diffusion=1.0, covariance=covariance), records, free)
    problem = problem.everywhere() if name == "everywhere" else problem
    data = problem.data(records, 2)
    theta = np.concatenate([list(params.values()), [0.7] * len(system.chain_states), [0.1] * n_y, data.scale])
    start = np.concatenate([rng.normal(0, 0.3, (runs, n_x)), np.full((runs, n_x), 0.1), data.starts], axis=1)
    samples = np.concatenate([data.samples, np.concatenate([r.output_matrix for r in records])], axis=1)
    op = filter_recurrence(problem.system, replace(problem.form, rolled=name in ("loops", "chains")), output)
    return Case(op, (theta, start, data.counts, data.substeps, samples))


def linear(n_carry: int = 2) -> Recurrence:
    """A damped rotation with an input, small enough to follow by hand: x <- a x + u; y = b * sum(x)."""
    carry, params = symbols("carry", n_carry), symbols("p", 2)
    x0, u = symbols("x0", n_carry), symbols("u", 1)
    return Recurrence(
        Phase.build([], params, x0, x0),
        Phase.build(carry, params, u, [add(mul(params[0], c), u[0]) for c in carry]),
        Phase.build(carry, params, [], [*carry, mul(params[1], add(*carry))]),
        n_carry=n_carry,
        n_params=2,
        name="linear",
    )


LINEAR = Case(
    linear(),
    (
        np.array([0.5, 2.0]),
        np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]]),
        np.array([0, 2, 1, -1, 0, 1, -1, 3]),
        np.arange(7.0)[:, None] + 1,
        np.empty((8, 0)),
    ),
)


def by_hand(case: Case) -> tuple[np.ndarray, np.ndarray]:
    (a, b), starts, counts, u, _ = case.arrays
    outputs, final, x, s, r = [], [], starts[0], 0, 0
    for count in counts:
        if count < 0:
            final.append(x)
            r += 1
            x = starts[r]
        for _ in range(max(count, 0)):
            x, s = a * x + u[s, 0], s + 1
        outputs.append([b * x.sum()])
    return np.array(outputs), np.array([*final, x])


def long_case(substeps: int = 3) -> Case:
    """Three runs of 400 samples in all, many tapes long, with restarts inside and at the border of blocks."""
    rng = np.random.default_rng(2)
    counts = rng.integers(0, substeps + 1, 400)
    counts[[0, 63, 64, 128, 300]] = [0, -1, -1, -1, -1]
    total = counts[counts > 0].sum()
    arrays = (
        np.array([0.93, 1.7]),
        rng.normal(size=(5, 2)),
        counts,
        rng.normal(size=(total, 1)),
        np.empty((400, 0)),
    )
    return Case(linear(), arrays)
