"""The equations of a system as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytensor.scalar.basic as psb
from pytensor.graph.basic import Constant, Variable

from pm_sysid.symbolic.scalars import Scalar

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
).split()
_FUNCTIONS = {
    "exp": r"\exp",
    "log": r"\ln",
    "sgn": r"\operatorname{sgn}",
    "sign": r"\operatorname{sgn}",
    "maximum": r"\max",
    "minimum": r"\min",
    **{f: rf"\{f}" for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan")},
}
_RELATIONS = {psb.LT: "<", psb.GT: ">", psb.LE: r"\leq", psb.GE: r"\geq", psb.EQ: "=", psb.NEQ: r"\neq"}
_LOGIC = {psb.AND: r"\ \mathrm{and}\ ", psb.OR: r"\ \mathrm{or}\ ", psb.XOR: r"\ \mathrm{xor}\ "}


def symbol_latex(name: str) -> str:
    r"""LaTeX of an identifier: Greek letters, digits and what follows a capital or an underscore as subscripts.

    Examples
    --------
    >>> [symbol_latex(n) for n in ("k3", "zeta_1", "Fc", "stiffness", "x", "K[0, 12]")]
    ['k_{3}', '\\zeta_{1}', 'F_{c}', '\\mathrm{stiffness}', 'x', 'K_{0,12}']
    """
    name, _, index = name.partition("[")
    head, _, below = name.partition("_")
    if not below and (match := re.fullmatch(r"([A-Za-z]+?)(\d+)", head)):
        head, below = match.groups()
    elif not below and re.fullmatch(r"[A-Z][a-z]{1,3}", head) and head not in _GREEK:
        head, below = head[0], head[1:]
    base = rf"\{head}" if head in _GREEK else head if len(head) == 1 else rf"\mathrm{{{head}}}"
    parts = [p if len(p) == 1 or p.isdigit() else rf"\mathrm{{{p}}}" for p in below.split("_") if p]
    parts += index.rstrip("]").split(", ") if index else []
    return base + (f"_{{{','.join(parts)}}}" if parts else "")


def rate_latex(symbol: str) -> str:
    """Time derivative of a symbol."""
    head, mark, below = symbol.partition("_{")
    return rf"\dot{{{head}}}{mark}{below}"


def equations(left: Sequence[str], right: Sequence[Scalar], names: Mapping[Variable, str]) -> list[str]:
    """Lines ``left = right`` of scalar graphs whose symbols have LaTeX names; cases within a line get lines of their own."""
    printer = _Printer(names)
    lines = [f"{name} = {printer.cases(e) or printer.sum(e)}" for name, e in zip(left, right, strict=True)]
    return lines + [f"{symbol} = {text}" for text, symbol in printer.definitions.items()]


class _Printer:
    """Sums of products of powers, in the order in which they were written."""

    def __init__(self, names: Mapping[Variable, str]) -> None:
        self.names = names
        self.letter = next(c for c in "shqwABCDEFG" if not any(n.startswith(f"{c}_") for n in names.values()))
        self.definitions: dict[str, str] = {}

    def cases(self, e: Scalar) -> str:
        """Text of a choice between two expressions; empty for any other."""
        if not isinstance(_op(e), psb.Switch):
            return ""
        condition, yes, no = _inputs(e)
        first = rf"{self.sum(yes)} & \text{{if }} {self._condition(condition)}"
        return rf"\begin{{cases}}{first} \\ {self.sum(no)} & \text{{otherwise}}\end{{cases}}"

    def sum(self, e: Scalar) -> str:
        """Text of an expression."""
        text = ""
        for sign, term in self._terms(e):
            body = self._product(term)
            negative = (sign < 0) != body.startswith("-")
            body = body.removeprefix("-")
            text += f" - {body}" if negative and text else f"-{body}" if negative else f" + {body}" if text else body
        return text

    def _terms(self, e: Scalar, sign: int = 1) -> list[tuple[int, Scalar]]:
        match _op(e):
            case psb.Add():
                return [t for i in _inputs(e) for t in self._terms(i, sign)]
            case psb.Sub():
                a, b = _inputs(e)
                return self._terms(a, sign) + self._terms(b, -sign)
            case psb.Neg() if _op(_inputs(e)[0]).__class__ not in (psb.Add, psb.Sub):
                return self._terms(_inputs(e)[0], -sign)
        return [(sign, e)]

    def _product(self, e: Scalar) -> str:
        powers: dict[str, float] = {}
        sums: set[str] = set()
        coefficient = self._collect(e, 1.0, powers, sums)
        sign, size = ("-", -coefficient) if coefficient < 0 else ("", coefficient)
        above = {b: n for b, n in powers.items() if n > 0}
        below = {b: -n for b, n in powers.items() if n < 0}
        fraction = Fraction(size).limit_denominator(12) if size == size and abs(size) < 1e6 else Fraction(0)
        top, bottom = _number(size), ""
        if fraction.denominator > 1 and float(fraction) == size and len(top) > 5:
            top, bottom = str(fraction.numerator), str(fraction.denominator)
        up = _joined(top if top != "1" or not above else "", above, sums, bool(below or bottom))
        down = _joined(bottom, below, sums, True)
        return sign + (rf"\frac{{{up}}}{{{down}}}" if down else up)

    def _collect(self, e: Scalar, power: float, powers: dict[str, float], sums: set[str]) -> float:
        """Gather the factors of a product with their powers; its numerical factor is returned."""
        value = _value(e)
        if value is not None:
            return float(value**power)
        inputs = _inputs(e)
        match _op(e):
            case psb.Mul():
                coefficient = 1.0
                for i in inputs:
                    coefficient *= self._collect(i, power, powers, sums)
                return coefficient
            case psb.TrueDiv():
                return self._collect(inputs[0], power, powers, sums) * self._collect(inputs[1], -power, powers, sums)
            case psb.Reciprocal():
                return self._collect(inputs[0], -power, powers, sums)
            case psb.Neg() if power == round(power):
                return (-1.0) ** int(power) * self._collect(inputs[0], power, powers, sums)
            case psb.Sqr():
                return self._collect(inputs[0], 2 * power, powers, sums)
            case psb.Pow() if _value(inputs[1]) is not None:
                base = self.sum(inputs[0])  # kept whole: the power of a product of negatives is not that of its factors
                text, exponent = base, power * float(_value(inputs[1]))  # type: ignore[arg-type]
                if _op(inputs[0]) is not None:
                    sums.add(text)
            case _:
                text, exponent = self._atom(e), power
                if isinstance(_op(e), psb.Add | psb.Sub | psb.Neg):
                    sums.add(text)
        powers[text] = powers.get(text, 0.0) + exponent
        return 1.0

    def _atom(self, e: Any) -> str:
        if e in self.names:
            return self.names[e]
        op, inputs = _op(e), _inputs(e)
        if isinstance(op, psb.Add | psb.Sub | psb.Neg):
            return self.sum(e)
        if isinstance(op, psb.Switch):
            return self.definitions.setdefault(self.cases(e), f"{self.letter}_{{{len(self.definitions) + 1}}}")
        if type(op) in _RELATIONS or type(op) in _LOGIC or isinstance(op, psb.Invert):
            return rf"\left[{self._condition(e)}\right]"
        arguments = ",\\, ".join(self.sum(i) for i in inputs)
        if isinstance(op, psb.Abs):
            return rf"\left|{arguments}\right|"
        if isinstance(op, psb.Sqrt):
            return rf"\sqrt{{{arguments}}}"
        if isinstance(op, psb.Pow):
            base, exponent = (self.sum(i) for i in inputs)
            return rf"\left({base}\right)^{{{exponent}}}"
        if isinstance(op, psb.Cast | psb.Identity):
            return self._atom(inputs[0])
        name = type(op).__name__.lower()
        return rf"{_FUNCTIONS.get(name, rf'\operatorname{{{name}}}')}\left({arguments}\right)"

    def _condition(self, e: Any) -> str:
        op, inputs = _op(e), _inputs(e)
        if type(op) in _RELATIONS:
            return f"{self.sum(inputs[0])} {_RELATIONS[type(op)]} {self.sum(inputs[1])}"
        if type(op) in _LOGIC:
            return _LOGIC[type(op)].join(self._condition(i) for i in inputs)
        if isinstance(op, psb.Invert):
            return rf"\mathrm{{not}}\left({self._condition(inputs[0])}\right)"
        return rf"{self.sum(e)} \neq 0"


def _joined(number: str, powers: Mapping[str, float], sums: Iterable[str], alone_is_bare: bool) -> str:
    """Product of a number and powers of symbols; a sum needs brackets unless it stands alone in a fraction."""
    parts = [number] if number else []
    for base, power in powers.items():
        bare = base not in sums or (power == 1 and alone_is_bare and len(powers) == 1 and not number)
        text = base if bare else rf"\left({base}\right)"
        parts.append(
            text if power == 1 else rf"{text}^{{{_number(power)}}}" if "^" not in text else rf"{{{text}}}^{{{power:g}}}"
        )
    return r"\,".join(parts)


def _number(value: float) -> str:
    text = f"{value:.6g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        return (rf"{mantissa}\cdot " if mantissa != "1" else "") + rf"10^{{{int(exponent)}}}"
    return text


def _op(e: Any) -> Any:
    return e.owner.op if isinstance(e, Variable) and e.owner is not None else None


def _inputs(e: Any) -> list[Any]:
    return list(e.owner.inputs) if isinstance(e, Variable) and e.owner is not None else []


def _value(e: Any) -> float | None:
    if isinstance(e, Constant):
        return float(e.data)
    return None if isinstance(e, Variable) else float(e)
