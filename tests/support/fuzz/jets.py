"""Truncated Taylor series in time whose coefficients carry first derivatives: calculus for the reference filter.

A jet holds many points at once. What a symbolic program gets by differentiating expressions, this gets by arithmetic on
numbers (Griewank and Walther 2008, chapter 13); the two have nothing in common but the calculus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

#: 64 bits of mantissa on x86; where it is no more than a double, the comparisons are only as sharp as doubles are.
REAL: Any = np.longdouble


@contextmanager
def precision(kind: Any) -> Iterator[None]:
    """Compute with another type of number."""
    global REAL
    before, REAL = REAL, kind
    try:
        yield
    finally:
        REAL = before


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Product of two coefficients: value in the first column, derivatives in the others."""
    result = a[..., :1] * b + b[..., :1] * a
    result[..., 0] = a[..., 0] * b[..., 0]
    return result


class Jet:
    """Coefficients ``c[k]`` of ``(t - t0)^k``, shape (order + 1, points, 1 + directions)."""

    __array_priority__ = 1000

    def __init__(self, c: np.ndarray) -> None:
        self.c = c

    @classmethod
    def constant(cls, value: Any, order: int, directions: int, along: int | None = None) -> Jet:
        """Numbers (points,) that do not move; ``along`` is the direction of which they are the coordinate."""
        value = np.asarray(value, REAL)
        c = np.zeros((order + 1, value.size, 1 + directions), REAL)
        c[0, :, 0] = value
        if along is not None:
            c[0, :, 1 + along] = 1
        return cls(c)

    def like(self, value: Any) -> Jet:
        """A constant of the same shape, or the jet that ``value`` is already."""
        if isinstance(value, Jet):
            return value
        c = np.zeros_like(self.c)
        c[0, :, 0] = value
        return Jet(c)

    def scaled(self, factor: Any) -> Jet:
        return Jet(self.c * factor)

    def __add__(self, other: Any) -> Jet:
        return Jet(self.c + self.like(other).c)

    def __mul__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return self.scaled(other)
        return Jet(np.stack([sum(times(self.c[j], other.c[k - j]) for j in range(k + 1)) for k in range(len(self.c))]))

    def __truediv__(self, other: Any) -> Jet:
        if not isinstance(other, Jet):
            return self.scaled(1 / REAL(other))
        inverse, quotient = reciprocal(other.c[0]), []
        for k in range(len(self.c)):
            rest = self.c[k] - sum((times(quotient[j], other.c[k - j]) for j in range(k)), np.zeros_like(self.c[k]))
            quotient.append(times(rest, inverse))
        return Jet(np.stack(quotient))

    def __neg__(self) -> Jet:
        return Jet(-self.c)

    def __sub__(self, other: Any) -> Jet:
        return self + (-self.like(other))

    def __rsub__(self, other: Any) -> Jet:
        return self.like(other) - self

    def __rtruediv__(self, other: Any) -> Jet:
        return self.like(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __pow__(self, n: int) -> Jet:
        result = self
        for _ in range(n - 1):
            result = result * self
        return result

    def __gt__(self, other: Any) -> np.ndarray:
        return self.c[0, :, 0] > self.like(other).c[0, :, 0]

    def __lt__(self, other: Any) -> np.ndarray:
        return self.c[0, :, 0] < self.like(other).c[0, :, 0]


def reciprocal(a: np.ndarray) -> np.ndarray:
    result = -a / a[..., :1] ** 2
    result[..., 0] = 1 / a[..., 0]
    return result


def composed(x: Jet, value: Any, slope: Any) -> Jet:
    """``F(x)`` from ``y' = F'(x) x'``, where ``slope(x, y)`` is F' as a jet of the coefficients known so far."""
    c = np.zeros_like(x.c)
    c[0, :, 0] = value(x.c[0, :, 0])
    d0 = slope(Jet(x.c[:1]), Jet(c[:1, :, :1])).c[0, :, :1] if c.shape[-1] > 1 else None
    if d0 is not None:
        c[0, :, 1:] = d0 * x.c[0, :, 1:]
    for k in range(1, len(c)):
        d = slope(Jet(x.c[:k]), Jet(c[:k])).c
        c[k] = sum(j * times(x.c[j], d[k - j]) for j in range(1, k + 1)) / REAL(k)
    return Jet(c)


class JetMath:
    """The functions systems are written with, for jets."""

    @staticmethod
    def exp(x: Jet) -> Jet:
        return composed(x, np.exp, lambda x, y: y)

    @staticmethod
    def log(x: Jet) -> Jet:
        return composed(x, np.log, lambda x, y: 1 / x)

    @staticmethod
    def sqrt(x: Jet) -> Jet:
        return composed(x, np.sqrt, lambda x, y: 0.5 / y)

    @staticmethod
    def tanh(x: Jet) -> Jet:
        return composed(x, np.tanh, lambda x, y: 1 - y * y)

    @staticmethod
    def arctan(x: Jet) -> Jet:
        return composed(x, np.arctan, lambda x, y: 1 / (1 + x * x))

    @staticmethod
    def sin(x: Jet) -> Jet:
        return _circular(x)[0]

    @staticmethod
    def cos(x: Jet) -> Jet:
        return _circular(x)[1]

    @staticmethod
    def sign(x: Jet) -> Jet:
        return x.like(np.sign(x.c[0, :, 0]))

    @staticmethod
    def abs(x: Jet) -> Jet:
        return Jet(x.c * np.sign(x.c[:1, :, :1]))

    @staticmethod
    def where(condition: np.ndarray, a: Any, b: Any) -> Jet:
        shape = a if isinstance(a, Jet) else b
        return Jet(np.where(condition[None, :, None], shape.like(a).c, shape.like(b).c))

    @staticmethod
    def both(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a & b

    @classmethod
    def maximum(cls, a: Jet, b: Any) -> Jet:
        return cls.where(a > b, a, b)


def _circular(x: Jet) -> tuple[Jet, Jet]:
    s, c = np.zeros_like(x.c), np.zeros_like(x.c)
    s[0, :, 0], c[0, :, 0] = np.sin(x.c[0, :, 0]), np.cos(x.c[0, :, 0])
    s[0, :, 1:], c[0, :, 1:] = c[0, :, :1] * x.c[0, :, 1:], -s[0, :, :1] * x.c[0, :, 1:]
    for k in range(1, len(s)):
        s[k] = sum(j * times(x.c[j], c[k - j]) for j in range(1, k + 1)) / REAL(k)
        c[k] = -sum(j * times(x.c[j], s[k - j]) for j in range(1, k + 1)) / REAL(k)
    return Jet(s), Jet(c)


def flow(dynamics: Any, t: float, x: np.ndarray, levels: Sequence[np.ndarray], p: np.ndarray, order: int) -> np.ndarray:
    """Time derivatives 0 to ``order`` of the solution through states x (points, n), with derivatives by x.

    ``levels[k]`` holds the k-th time derivative of the inputs; those beyond are zero. The result has the shape
    (order + 1, n, points, 1 + n).
    """
    n, points = x.shape[1], len(x)
    series = [Jet.constant(x[:, i], order, n, i) for i in range(n)]
    clock = Jet.constant(np.full(points, t), order, n)
    if order:
        clock.c[1, :, 0] = 1
    inputs = []
    for j in range(len(levels[0])):
        u = Jet.constant(np.full(points, levels[0][j]), order, n)
        factorial = REAL(1)
        for k in range(1, min(order + 1, len(levels))):
            factorial *= k
            u.c[k, :, 0] = REAL(levels[k][j]) / factorial
        inputs.append(u)
    params = [Jet.constant(p[:, i], order, n) for i in range(p.shape[1])]
    cut = lambda jets, k: [Jet(j.c[: k + 1]) for j in jets]  # noqa: E731
    for k in range(order):
        rates = dynamics(JetMath, Jet(clock.c[: k + 1]), cut(series, k), cut(inputs, k), cut(params, k))
        for i, rate in enumerate(rates):
            series[i].c[k + 1] = Jet(series[i].c[: k + 1]).like(rate).c[k] / REAL(k + 1)
    result = np.stack([s.c for s in series], axis=1)
    factorial = REAL(1)
    for k in range(1, order + 1):
        factorial *= k
        result[k] *= factorial
    return result
