"""A linearly implicit step for stiff equations as a scalar graph: Rosenbrock's method of order five, Rodas5P.

An implicit Runge-Kutta step whose stages solve linear systems with one and the same matrix instead of nonlinear ones: the
Jacobian is part of the formula, and is exact here. The method has eight stages, is L-stable and stiffly accurate (a decay that
is fast beside the step is damped at once), and keeps its order where a fast decay follows a slow motion (Prothero, Robinson).

Source: Steinebach (2023), "Construction of Rosenbrock-Wanner method Rodas5P and numerical benchmarks within the Julia
Differential Equations package", BIT Numerical Mathematics 63, 27; the form without products of Jacobian and stages is that of
Hairer and Wanner (1996), Section IV.7.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.steps.elimination import Factors
from pm_sysid.steps.free_run import RunOutput, free_run, run_inputs
from pm_sysid.steps.grid import FilterInputs, StepGrid
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import Scalar, add, mul, sub, substitute, symbol, symbols, untraced
from pm_sysid.symbolic.system import System

#: Diagonal of the matrix of the method.
GAMMA = 0.21193756319429014
#: Weights of the stages before it in the argument of each stage; the last three stages correct the solution one by one.
_LAST = (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946)
A = (
    (),
    (3.0,),
    (2.849394379747939, 0.45842242204463923),
    (-6.954028509809101, 2.489845061869568, -10.358996098473584),
    (2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641),
    _LAST,
    (*_LAST, 1.0),
    (*_LAST, 1.0, 1.0),
)
#: Weights of the stages before it on the right-hand side of each stage.
C = (
    (),
    (-14.155112264123755,),
    (-17.97296035885952, -2.859693295451294),
    (147.12150275711716, -1.41221402718213, 71.68940251302358),
    (165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306),
    (24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125, -0.6610691825249471),
    (30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783, -19.097331116725623, -28.087943162872662),
    (
        37.80277123390563,
        -3.2571969029072276,
        112.26918849496327,
        66.9347231244047,
        -40.06618937091002,
        -54.66780262877968,
        -9.48861652309627,
    ),
)
STAGES = len(A)


def _times() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Place of each stage in the step, and weight of the time derivative in it: row sums of the matrices of the method.

    With lower triangular ``G``, ``C = I / gamma - G^-1`` and ``A = alpha G^-1``.
    """
    lower_a, lower_c = (np.array([[*row, *[0.0] * (STAGES - len(row))] for row in m]) for m in (A, C))
    G = np.linalg.inv(np.eye(STAGES) / GAMMA - lower_c)
    places, weights = (lower_a @ G).sum(axis=1), G.sum(axis=1)
    places[STAGES - 3 :], weights[STAGES - 3 :] = 1.0, 0.0  # as they are but for rounding
    return tuple(map(float, places)), tuple(map(float, weights))


PLACES, WEIGHTS = _times()
#: Places in a step at which it evaluates the equations, each once.
NODES = tuple(dict.fromkeys(PLACES))


@lru_cache(maxsize=64)
@untraced()
def rosenbrock_recurrence(system: System, output: RunOutput = "run") -> Recurrence:
    """Free run of a system as a recurrence; see :func:`~pm_sysid.steps.free_run.free_run`.

    A substep reads ``t, h``, the inputs at the nodes and their time derivatives at its start. With increments ``k_i`` it solves
    ``(I / gamma - h J) k_i = h f(t + c_i h, x + sum a_ij k_j) + sum c_ij k_j + h^2 d_i df/dt``.
    """
    x, n_u = system.x, len(system.u)
    start, h = symbol("start"), symbol("step")
    u = {c: symbols(f"u{i}_", n_u) for i, c in enumerate(NODES)}
    du = symbols("du", n_u)
    here: dict = {system.t: start, **dict(zip(system.u, u[0.0], strict=True))}
    J = [substitute(row, here) for row in jacobian(system.f, x)]
    W = [[sub(float(i == j) / GAMMA, mul(h, a)) for j, a in enumerate(row)] for i, row in enumerate(J)]
    partial = [substitute(row, here) for row in jacobian(system.f, [system.t, *system.u])]
    drift = [mul(h, h, add(*(mul(a, r) for a, r in zip(row, [1.0, *du], strict=True)))) for row in partial]
    factors = Factors(W)
    k: list[list[Scalar]] = []
    for a, c, place, weight in zip(A, C, PLACES, WEIGHTS, strict=True):
        state = [add(v, *(mul(w, s[i]) for w, s in zip(a, k, strict=True))) for i, v in enumerate(x)]
        at = {system.t: add(start, mul(place, h)), **dict(zip(x, state, strict=True))}
        f = substitute(system.f, {**at, **dict(zip(system.u, u[place], strict=True))})
        known = [add(*(mul(w, s[i]) for w, s in zip(c, k, strict=True))) for i in range(len(x))]
        k.append(factors.solve([add(mul(h, fi), r, mul(weight, d)) for fi, r, d in zip(f, known, drift, strict=True)]))
    new = [add(v, *(mul(w, s[i]) for w, s in zip((*A[-1], 1.0), k, strict=True))) for i, v in enumerate(x)]
    inputs = [start, h, *(v for row in u.values() for v in row), *du]
    return free_run(system, Phase.build(x, system.p, inputs, new), output, "Rodas5P")


def rosenbrock_inputs(record: TimeSeries, substeps: int | StepGrid) -> FilterInputs:
    """Evaluate a record's inputs where the Rosenbrock step needs them."""
    return run_inputs(record, substeps, NODES, slope=True)
