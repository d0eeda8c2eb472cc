"""Square-root Gaussian algebra on scalar graphs: prediction by Householder reflections, updates in Potter's form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytensor.scalar.basic as psb
from pytensor.graph.basic import Variable

from pm_sysid.symbolic.scalars import Scalar, add, as_variable, constant, div, dot, is_number, mul, sqrt, sub, switch

type Vector = list[Scalar]
type Matrix = list[list[Scalar]]


def triangularise(diffusion: Matrix, propagated: Matrix) -> Matrix:
    """Lower triangular root of ``diffusion diffusion' + propagated propagated'``.

    One Householder reflection a row annihilates the row of ``propagated`` against the pivot of ``diffusion``, which must be
    lower triangular with a positive diagonal. In this order every pivot is positive and the rest of its row is zero: no
    sign to choose, no cancellation, and a factor ``propagated`` of zero (a known state) is no special case.

    Parameters
    ----------
    diffusion : matrix, shape (n, n)
    propagated : matrix, shape (n, k)
        Factor of what is propagated from the state before.
    """
    root, _ = reflect(diffusion, propagated)
    return root


def reflect(diffusion: Matrix, propagated: Matrix, rounding: float = 0.0) -> tuple[Matrix, Matrix]:
    """Do so, and put out the two factors that the reflections leave of ``[diffusion, propagated]``.

    More rows than ``diffusion`` has columns are carried along: below, an identity becomes the reflections themselves. A row of
    ``propagated`` that the reflections before have left with less than the part ``rounding`` of its length depends on the rows
    above it and is taken for zero. What it is left with has a direction by chance: the value does not depend on it, but its
    gradient would divide by that length.
    """
    n = len(diffusion[0])
    root = [row[:] for row in diffusion]
    rest = [row[:] for row in propagated]
    for i in range(n):
        tail = dot(rest[i], rest[i])
        if rounding and not is_number(tail, 0.0):
            gone = psb.lt(as_variable(tail), as_variable(mul(rounding**2, dot(propagated[i], propagated[i]))))
            rest[i] = [switch(gone, 0.0, a) for a in rest[i]]
            tail = dot(rest[i], rest[i])
        if is_number(tail, 0.0):
            root[i][i] = mul(-1.0, root[i][i])
            for r in range(i + 1, len(root)):
                root[r][i] = mul(-1.0, root[r][i])
            continue
        alpha = sqrt(add(mul(root[i][i], root[i][i]), tail))
        pivot = add(root[i][i], alpha)
        beta = div(1.0, mul(alpha, pivot))  # 2 / (pivot^2 + tail)
        for r in range(i + 1, len(root)):
            d = mul(add(mul(root[r][i], pivot), dot(rest[r], rest[i])), beta)
            root[r][i] = sub(root[r][i], mul(d, pivot))
            rest[r] = [sub(a, mul(d, b)) for a, b in zip(rest[r], rest[i], strict=True)]
        root[i][i] = mul(-1.0, alpha)
        rest[i] = [0.0] * len(rest[i])
    return root, rest


def project(root: Matrix, h: Sequence[Scalar]) -> Vector:
    """Return ``root' h``: how each column of the root moves a measurement."""
    columns = len(root[0])
    return [dot([row[j] for row in root], h) for j in range(columns)]


def correct(root: Matrix, f: Vector, weight: Scalar, rest: Scalar) -> tuple[Vector, Matrix]:
    """Gain and updated root of a scalar measurement, in Potter's form.

    Parameters
    ----------
    root
        Root of the covariance, ``root root'``.
    f
        ``root' H'`` from :func:`project`.
    weight
        ``1 / s`` with s the innovation variance (zero leaves the root alone: a missing sample).
    rest
        Variance of the measurement that does not come from this root, divided by s. Zero for an exact constraint.
    """
    gain = [mul(dot(row, f), weight) for row in root]
    factor = 1.0 if is_number(rest, 0.0) else div(1.0, add(1.0, sqrt(rest)))
    shrink = [mul(k, factor) for k in gain]
    return gain, [[sub(x, mul(k, fj)) for x, fj in zip(row, f, strict=True)] for row, k in zip(root, shrink, strict=True)]


def log_density(innovation: Scalar, s: Scalar, precision: Scalar, expected: Scalar, missing: Variable) -> Variable:
    """Gaussian log-density; zero for a missing sample, minus infinity once the step has failed."""
    square = mul(innovation, innovation, precision)
    density = mul(-0.5, add(psb.log(mul(2.0 * math.pi, s)), square))
    fine = psb.and_(psb.gt(as_variable(s), constant(0.0)), psb.lt(as_variable(square), constant(math.inf)))
    return switch(missing, _nothing(expected), switch(fine, density, -math.inf))


def known_density(density: Scalar, expected: Scalar, missing: Variable) -> Variable:
    """A log-density, in the same way zero for a missing sample and minus infinity for a step that has failed."""
    fine = psb.lt(psb.abs(as_variable(density)), constant(math.inf))
    return switch(missing, _nothing(expected), switch(fine, density, -math.inf))


def _nothing(expected: Scalar) -> Variable:
    """Log-density of a missing sample: zero as long as the state is a number."""
    return switch(psb.lt(psb.abs(as_variable(expected)), constant(math.inf)), 0.0, -math.inf)
