"""Exact relations between the states: observations without noise of the solution, at the start and after every step.

A relation ``r(t, x, u, p) = 0`` that every exact solution obeys (conserved mass or energy, the length of a rod) is one more
thing that is known of the solution besides the ODE. It is conditioned on as the ODE's residual is: linearised at the mean, as
an observation without noise (Bosch, Tronarp and Hennig 2022, "Pick-and-mix information operators for probabilistic ODE
solvers"). What is already certain of it is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytensor.scalar.basic as psb
from pytensor.graph.basic import Variable

from pm_sysid.steps.square_root import Matrix, Vector
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import (
    Scalar,
    add,
    as_variable,
    div,
    dot,
    is_number,
    mul,
    sub,
    substitute,
    switch,
)
from pm_sysid.symbolic.system import System

#: A relation whose variance is at most this share of what it would be without correlations is already known: what is left is
#: rounding (of numbers that are squared here), and to divide by it would make the filter certain of noise.
IMPLIED = 1e-20
#: A known initial state may miss a relation by this share of the terms of the relation.
CONTRADICTION = 1e-6
#: Linearisations of nonlinear relations at an uncertain initial state, each at the mean that the one before gives.
ROUNDS = 8


class Consistent(NamedTuple):
    """An initial state that obeys the relations.

    ``mean`` (n,) of the states and ``spread`` (n, free), its derivative by standard normal numbers for the uncertain ones;
    ``possible`` whether what is known of it does not contradict a relation (None: there are no relations).
    """

    mean: Vector
    spread: Matrix
    possible: Variable | None


class Inverse(NamedTuple):
    """Inverse of a variance, and whether it counts (1 or 0): it is zero where it does not."""

    value: Scalar
    counts: Scalar


def inverse_unless_implied(s: Scalar, reference: Scalar) -> Inverse:
    """Inverse of the variance ``s`` of a relation, if it is more than rounding of ``reference``, that without correlations."""
    if is_number(s, 0.0):
        return Inverse(0.0, 0.0)
    counts = psb.gt(as_variable(s), as_variable(mul(IMPLIED, reference)))
    return Inverse(switch(counts, div(1.0, switch(counts, s, 1.0)), 0.0), switch(counts, 1.0, 0.0))


def consistent_start(system: System, x0: Sequence[Scalar], std: Sequence[Scalar], free: Sequence[int]) -> Consistent:
    """Condition the initial state on the relations.

    The uncertain states ``free`` have the standard deviations ``std`` (n,) about ``x0`` (n,). Nonlinear relations are
    linearised again at each mean (the iterated extended Kalman filter). How probable the relations were before is not counted.
    """
    n = len(x0)
    prior: Matrix = [[std[s] if s == f else 0.0 for f in free] for s in range(n)]
    if not system.relations:
        return Consistent(list(x0), prior, None)
    states = system.x[:n]
    slopes = [row[:n] for row in jacobian(system.relations, states)]
    curved = any(not is_number(d, 0.0) for row in jacobian([d for row in slopes for d in row], states) for d in row)
    x, spread = list(x0), prior
    unknown: list[Scalar] = [0.0] * len(slopes)
    for _ in range((ROUNDS if curved else 1) if free else 0):
        at: dict[Variable, Scalar] = dict(zip(states, x, strict=True))
        values, rows = substitute(system.relations, at), [substitute(row, at) for row in slopes]
        mean, spread = list(x0), prior
        for i, (value, row) in enumerate(zip(values, rows, strict=True)):
            z = add(value, dot(row, [sub(a, b) for a, b in zip(mean, x, strict=True)]))
            lean = [dot(row, column) for column in zip(*spread, strict=True)]
            reference = add(*(mul(h, h, dot(p, p)) for h, p in zip(row, prior, strict=True)))
            weight, unknown[i] = inverse_unless_implied(dot(lean, lean), reference)
            gain = [mul(dot(s, lean), weight) for s in spread]
            mean = [sub(m, mul(k, z)) for m, k in zip(mean, gain, strict=True)]
            spread = [[sub(a, mul(k, b)) for a, b in zip(s, lean, strict=True)] for s, k in zip(spread, gain, strict=True)]
        x = mean
    at = dict(zip(states, x, strict=True))
    possible: Variable | None = None
    for relation, row, moved in zip(system.relations, slopes, unknown, strict=True):
        gap, size = misfit(relation, row, states, at)
        # What is uncertain was moved onto the relation; what is known has to be on it.
        obeyed = psb.le(as_variable(mul(sub(1.0, moved), gap)), as_variable(mul(CONTRADICTION, size)))
        possible = obeyed if possible is None else psb.and_(possible, obeyed)
    return Consistent(x, spread, possible)


def misfit(
    relation: Scalar, slopes: Sequence[Scalar], states: Sequence[Variable], at: dict[Variable, Scalar]
) -> tuple[Scalar, Scalar]:
    """How far a relation is from zero at a state, and the size of what should cancel in it: its terms, and its slopes."""
    terms = substitute(_terms(relation), at)
    along = [mul(a, b) for a, b in zip(substitute(slopes, at), substitute(list(states), at), strict=True)]
    size = add(*(psb.abs(as_variable(term)) for term in (*terms, *along)))
    (value,) = substitute([relation], at)
    return psb.abs(as_variable(value)), size


def _terms(e: Scalar) -> list[Scalar]:
    """Terms of a sum, without their signs."""
    if isinstance(e, Variable) and e.owner is not None and isinstance(e.owner.op, psb.Add | psb.Sub | psb.Neg):
        return [term for part in e.owner.inputs for term in _terms(part)]
    return [e]
