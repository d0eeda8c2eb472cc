"""Logarithm, exponential and hyperbolic tangent of a vector, as LLVM instructions.

A call to the C library for each lane would cost as much as the rest of a filter step. The algorithms are the textbook
ones: reduce the argument by powers of two exactly, then sum a power series that has converged to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

LN2_HIGH = math.ldexp(round(math.ldexp(math.log(2.0), 32)), -32)  # few enough bits that n * LN2_HIGH is exact
LN2_LOW = -4.2009150726810846e-11  # ln 2 - LN2_HIGH
TINY = 2.2250738585072014e-308


class Lanes:
    """Vector types of a number of lanes, and constants of them."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.real = ir.VectorType(ir.DoubleType(), lanes)
        self.integer = ir.VectorType(ir.IntType(64), lanes)

    def number(self, value: float) -> Any:
        """The same double in every lane."""
        return ir.Constant(self.real, value)

    def whole(self, value: int) -> Any:
        """The same integer in every lane."""
        return ir.Constant(self.integer, value)

    def call(self, name: str, *args: Any) -> Any:
        """Call an LLVM intrinsic of the vector."""
        b = self.builder
        full, kind = f"llvm.{name}.v{self.lanes}f64", ir.FunctionType(self.real, [self.real] * len(args))
        function = b.module.globals.get(full) or ir.Function(b.module, kind, full)
        return b.call(function, args)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return ``a b + c`` rounded once, which no fast-math flag takes apart."""
        return self.call("fma", a, b, c)

    def series(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Polynomial in ``x``, lowest power first."""
        total = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.number(c))
        return total

    def log(self, x: Any) -> Any:
        """Natural logarithm: x = 2^n m with m between 1/sqrt(2) and sqrt(2), log m = 2 artanh((m-1)/(m+1))."""
        b = self.builder
        small = b.fcmp_ordered("<", x, self.number(TINY))
        scaled = b.select(small, b.fmul(x, self.number(2.0**54)), x)
        bits = b.bitcast(scaled, self.integer)
        exponent = b.sub(b.lshr(bits, self.whole(52)), self.whole(1023))
        mantissa = b.or_(b.and_(bits, self.whole(2**52 - 1)), self.whole(1023 << 52))
        m = b.bitcast(mantissa, self.real)
        high = b.fcmp_ordered(">", m, self.number(math.sqrt(2.0)))
        m = b.select(high, b.fmul(m, self.number(0.5)), m)
        n = b.sitofp(exponent, self.real)
        n = b.fadd(n, b.select(high, self.number(1.0), self.number(0.0)))
        n = b.fsub(n, b.select(small, self.number(54.0), self.number(0.0)))
        s = b.fdiv(b.fsub(m, self.number(1.0)), b.fadd(m, self.number(1.0)))
        z = b.fmul(s, s)
        tail = b.fmul(b.fmul(s, z), self.series(z, [2.0 / (2 * k + 1) for k in range(1, 11)]))
        low = self.fma(n, self.number(LN2_LOW), tail)
        result = self.fma(n, self.number(LN2_HIGH), self.fma(self.number(2.0), s, low))
        result = b.select(b.fcmp_ordered("==", x, self.number(math.inf)), x, result)
        result = b.select(b.fcmp_ordered("==", x, self.number(0.0)), self.number(-math.inf), result)
        return b.select(b.fcmp_unordered("<", x, self.number(0.0)), self.number(math.nan), result)

    def _reduced(self, x: Any) -> tuple[Any, Any]:
        """N and exp(r) - 1 with x = n ln 2 + r and abs(r) at most half of ln 2."""
        b = self.builder
        n = self.call("rint", b.fmul(x, self.number(1.0 / math.log(2.0))))
        r = self.fma(n, self.number(-LN2_HIGH), x)
        r = self.fma(n, self.number(-LN2_LOW), r)
        return n, b.fmul(r, self.series(r, [1.0 / math.factorial(k) for k in range(1, 15)]))

    def _whole(self, n: Any) -> Any:
        """Whole number as an integer."""
        b = self.builder
        return b.sext(b.fptosi(n, ir.VectorType(ir.IntType(32), self.lanes)), self.integer)

    def _power_of_two(self, n: Any) -> Any:
        """2^n for whole n between -1022 and 1023."""
        b = self.builder
        return b.bitcast(b.shl(b.add(self._whole(n), self.whole(1023)), self.whole(52)), self.real)

    def _between(self, x: Any, low: float, high: float) -> Any:
        b = self.builder
        x = b.select(b.fcmp_ordered(">", x, self.number(low)), x, self.number(low))
        return b.select(b.fcmp_ordered("<", x, self.number(high)), x, self.number(high))

    def exp(self, x: Any) -> Any:
        """Exponential; the power of two is applied in two halves, so that it may leave the range of normal numbers."""
        b = self.builder
        n, em1 = self._reduced(self._between(x, -760.0, 720.0))
        half = self.call("floor", b.fmul(n, self.number(0.5)))
        # The first half goes into the exponent's bits: two products could be reordered to an overflow.
        bits = b.add(b.bitcast(b.fadd(em1, self.number(1.0)), self.integer), b.shl(self._whole(half), self.whole(52)))
        result = b.fmul(b.bitcast(bits, self.real), self._power_of_two(b.fsub(n, half)))
        return b.select(b.fcmp_unordered("uno", x, x), x, result)

    def tanh(self, x: Any) -> Any:
        """Hyperbolic tangent of abs(x) as (e - 1) / (e + 1) with e = exp(2 abs(x)), from e - 1 without cancellation."""
        b = self.builder
        twice = b.fmul(self.number(2.0), self.call("fabs", x))
        n, em1 = self._reduced(self._between(twice, 0.0, 80.0))
        power = self._power_of_two(n)
        em1 = self.fma(power, em1, b.fsub(power, self.number(1.0)))
        result = self.call("copysign", b.fdiv(em1, b.fadd(em1, self.number(2.0))), x)
        return b.select(b.fcmp_unordered("uno", x, x), x, result)
