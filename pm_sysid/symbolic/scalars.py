"""Algebra on scalar graphs: building, folding, substituting.

Every step of the package is a graph of PyTensor scalar operations. The functions here build such graphs without the
clutter of ``x * 1`` and ``x + 0``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
import scipy
from pytensor import config
from pytensor.graph.basic import Apply, Constant, Variable

from pm_sysid.compat import io_toposort

#: A node of a scalar graph, or a number known while the graph is built.
type Scalar = Variable | float


@contextmanager
def untraced() -> Iterator[None]:
    """Build graphs without a stack trace on every node, which takes as long as building them; also a decorator."""
    with config.change_flags(traceback__limit=0):
        yield


def constant(value: Any) -> Variable:
    """Return ``value`` as a double-precision scalar constant."""
    return ps.constant(float(value), dtype="float64")


def symbol(name: str) -> Variable:
    """Return a new double-precision scalar input."""
    return ps.float64(name)


def symbols(prefix: str, count: int) -> list[Variable]:
    """Return ``count`` new scalar inputs named ``prefix0``, ``prefix1``, ..."""
    return [symbol(f"{prefix}{i}") for i in range(count)]


def as_variable(x: Scalar) -> Variable:
    """Return a graph node for a node or a number."""
    return x if isinstance(x, Variable) else constant(x)


def is_number(x: Scalar, value: float | None = None) -> bool:
    """Whether ``x`` is a number while the graph is built (and equals ``value``)."""
    return not isinstance(x, Variable) and (value is None or x == value)


def applied(op: Any, *args: Variable) -> Variable:
    """Apply an arithmetic operation.

    Of doubles it gives a double. PyTensor finds that out by NumPy at each node, which was much of the time of building a step.
    """
    if any(a.type is not ps.float64 for a in args):  # type: ignore[attr-defined]
        return op(*args)  # type: ignore[no-any-return]
    result: Variable = ps.float64.make_variable()
    Apply(op, list(args), [result])
    return result


def add(*terms: Scalar) -> Scalar:
    """Sum that leaves out zeros and folds numbers."""
    number, result = 0.0, None
    for term in terms:
        if isinstance(term, Variable):
            result = term if result is None else applied(psb.add, result, term)
        else:
            number += float(term)
    if result is None:
        return number
    return result if number == 0.0 else applied(psb.add, result, constant(number))


def mul(*factors: Scalar) -> Scalar:
    """Product that leaves out ones, folds numbers, and is zero when a factor is."""
    number, result = 1.0, None
    for factor in factors:
        if isinstance(factor, Variable):
            # The derivative of PyTensor's product takes equal factors for one: a square must be a square.
            if result is None:
                result = factor
            else:
                result = applied(psb.sqr, factor) if result is factor else applied(psb.mul, result, factor)
        else:
            number *= float(factor)
    if result is None or number == 0.0:
        return number
    if number == 1.0:
        return result
    if number == -1.0 and result.type.dtype != "bool":
        return applied(psb.neg, result)
    return applied(psb.mul, constant(number), result)


def sub(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a - b``."""
    if is_number(b, 0.0):
        return a
    if is_number(a, 0.0) or (isinstance(b, Variable) and b.type.dtype == "bool"):
        return add(a, mul(-1.0, b))
    return applied(psb.sub, as_variable(a), as_variable(b)) if isinstance(a, Variable) or isinstance(b, Variable) else a - b


def div(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a / b``."""
    if is_number(a, 0.0) and not is_number(b, 0.0):
        return 0.0
    if is_number(b) and b != 0.0:
        return mul(1.0 / b, a)  # type: ignore[operator]
    if is_number(a) and is_number(b):
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    return applied(psb.true_div, as_variable(a), as_variable(b))


def dot(a: Iterable[Scalar], b: Iterable[Scalar]) -> Scalar:
    """Inner product."""
    return add(*(mul(x, y) for x, y in zip(a, b, strict=True)))


def sqrt(x: Scalar) -> Scalar:
    """Square root."""
    return applied(psb.sqrt, x) if isinstance(x, Variable) else float(np.sqrt(x))


class Root(psb.Sqrt):
    """Square root in an equation of a user: where the argument is zero, its slope counts as zero (``derivatives``)."""


root = Root(psb.upgrade_to_float, name="sqrt")


def is_steep(expression: Scalar) -> bool:
    """Whether an expression has roots or powers with slopes that grow without limit where the argument goes to zero.

    Arguments that are positive by their form (``0.1 + x**2``) do not.
    """
    if not isinstance(expression, Variable):
        return False
    least: dict[Variable, float] = {}  # of each variable the sign that it has at least
    for one in io_toposort([], [expression]):
        signs = [float(np.sign(v.data)) if isinstance(v, Constant) else least.get(v, -1.0) for v in one.inputs]
        exponent = one.inputs[1] if isinstance(one.op, psb.Pow) else None
        whole = isinstance(exponent, Constant) and exponent.data == round(float(exponent.data))
        if isinstance(one.op, (Root, psb.Pow)) and not whole and signs[0] <= 0:
            return True
        least[one.outputs[0]] = _least_sign(one.op, signs)
    return False


def _least_sign(op: Any, signs: Sequence[float]) -> float:
    """Least sign of an operation's result, given those of its arguments; -1 where nothing is known."""
    match op:
        case psb.Exp():
            return 1.0
        case psb.Sqr() | psb.Abs():
            return max(signs[0], 0.0)
        case psb.Add() if min(signs) >= 0:
            return max(signs)
        case psb.Mul() | psb.TrueDiv() | psb.Sqrt() if min(signs) >= 0:
            return min(signs)
        case psb.Maximum():
            return max(signs)
        case psb.Pow() if signs[0] > 0:
            return 1.0
    return -1.0


def switch(condition: Variable, yes: Scalar, no: Scalar) -> Variable:
    """Return ``yes`` where the condition holds, else ``no``."""
    return psb.switch(condition, as_variable(yes), as_variable(no))


# ---------------------------------------------------------------------------------------------------------------------
# folding
# ---------------------------------------------------------------------------------------------------------------------


def _power(x: Variable, exponent: float) -> Scalar | None:
    """Small integer and half powers as products and square roots."""
    if exponent == 0.5:
        return root(x)
    if exponent != round(exponent) or abs(exponent) > 8:
        return None
    n = int(abs(exponent))
    result: Scalar = 1.0
    square: Variable = x
    while n:
        if n & 1:
            result = mul(result, square)
        n >>= 1
        if n:
            square = psb.sqr(square)
    return result if exponent >= 0 else div(1.0, result)


def _cast(x: Scalar, dtype: str) -> Scalar:
    """Convert to another type as a number: steps compute in double precision only."""
    if dtype == "float64" or not isinstance(x, Variable):
        return x
    if dtype == "bool":
        return x if x.type.dtype == "bool" else psb.neq(x, constant(0.0))
    if dtype.startswith(("int", "uint")):
        return x if x.type.dtype == "bool" else psb.trunc(x)
    raise NotImplementedError(f"a cast to {dtype} is not available in a recurrence, which computes in float64; leave it out.")


def _fold(op: Any, args: list[Scalar]) -> Scalar | None:
    """Return a simpler expression for ``op(*args)``, or None."""
    # Classes of PyTensor's operations are abstract: isinstance would be half of the time of folding.
    if type(op) in CONDITIONS:
        return fold_condition(op, args)
    if all(not isinstance(a, Variable) for a in args):
        with np.errstate(all="ignore"):
            return float(op.impl(*(np.float64(a) for a in args)))
    match type(op):
        case psb.Identity:
            return args[0]
        case psb.Cast:
            return _cast(args[0], op.o_type.dtype)
        case psb.Second:
            return args[1]
        case psb.Add:
            return add(*args)
        case psb.Mul:
            return mul(*args)
        case psb.Sub:
            return 0.0 if args[0] is args[1] else sub(*args)
        case psb.TrueDiv:
            return div(*args)
        case psb.Reciprocal:
            return div(1.0, args[0])
        case psb.Neg:
            return mul(-1.0, args[0])
        case psb.Pow if is_number(args[1]):
            return _power(args[0], args[1])  # type: ignore[arg-type]
        case psb.Switch:
            if is_number(args[0]):
                return args[1] if args[0] else args[2]
            if args[1] is args[2] or (is_number(args[1]) and is_number(args[2]) and args[1] == args[2]):
                return args[1]
    return None


CONDITIONS = (psb.AND, psb.OR, psb.XOR, psb.Invert)


def fold_condition(op: Any, args: Sequence[Scalar]) -> Scalar | None:
    """Value of a logical operation of which a side is known; None for anything else."""
    if type(op) not in CONDITIONS:
        return None
    known = [bool(a) for a in args if not isinstance(a, Variable)]
    open_ = [a for a in args if isinstance(a, Variable)]
    if not known:
        return None
    if not open_:
        if isinstance(op, psb.Invert):
            return float(not known[0])
        if isinstance(op, psb.XOR):
            return float(known[0] != known[1])
        return float(all(known) if isinstance(op, psb.AND) else any(known))
    if isinstance(op, psb.XOR):
        return psb.invert(open_[0]) if known[0] else open_[0]
    decided = isinstance(op, psb.OR)
    return float(decided) if known[0] == decided else open_[0]


def simplify(outputs: Sequence[Scalar]) -> list[Scalar]:
    """Fold constants, drop neutral elements and share equal sub-expressions; constant outputs come back as floats."""
    known: dict[Variable, Scalar] = {}
    table: dict[tuple[Any, ...], Variable] = {}
    commutative = (psb.Add, psb.Mul)

    def look_up(v: Variable) -> Scalar:
        if v not in known:
            known[v] = float(v.data) if isinstance(v, Constant) else v
        return known[v]

    def intern(v: Scalar) -> Scalar:
        """Replace the freshly folded nodes of ``v`` by shared ones."""
        if v in canonical or not isinstance(v, Variable):
            return v
        if isinstance(v, Constant):
            return float(v.data)
        if v.owner is None:
            return v
        args, kind = [intern(a) for a in v.owner.inputs], type(v.owner.op)
        if kind is psb.Neg and isinstance(args[0], Variable) and args[0].owner is not None:
            if type(args[0].owner.op) is psb.Neg:
                return intern(args[0].owner.inputs[0])
        if kind is psb.Mul and len(args) == 2 and args[0] is args[1]:
            return intern(psb.sqr(as_variable(args[0])))
        keys = [id(a) if isinstance(a, Variable) else float(a) for a in args]
        if kind in commutative:
            keys.sort(key=repr)
        key = (kind, getattr(v.owner.op, "o_type", None), *keys)
        if key not in table:
            same = all(a is i or not isinstance(a, Variable) for a, i in zip(args, v.owner.inputs, strict=True))
            table[key] = v if same else rebuilt(v.owner, [as_variable(a) for a in args])[0]
            canonical.add(table[key])
        return table[key]

    canonical: set[Variable] = set()
    variables = [o for o in outputs if isinstance(o, Variable)]
    for node in io_toposort([], variables):
        args = [look_up(v) for v in node.inputs]
        if len(node.outputs) != 1:
            same = all(a is v or isinstance(v, Constant) for a, v in zip(args, node.inputs, strict=True))
            made = node.outputs if same else rebuilt(node, args)
            known.update(zip(node.outputs, made, strict=True))
            canonical.update(made)
            continue
        folded = _fold(node.op, args)
        if folded is None:  # nothing to fold: the node itself, unless an argument has changed
            same = all(a is v or isinstance(v, Constant) for a, v in zip(args, node.inputs, strict=True))
            folded = node.outputs[0] if same else rebuilt(node, [as_variable(a) for a in args])[0]
        known[node.outputs[0]] = intern(folded)
    return [look_up(o) if isinstance(o, Variable) else float(o) for o in outputs]


def rebuilt(node: Apply, inputs: Sequence[Any]) -> list[Variable]:
    """Outputs of the same operation on other inputs; of equal types they have the types that the outputs have."""
    if any(not isinstance(a, Variable) or a.type != v.type for a, v in zip(inputs, node.inputs, strict=True)):
        return list(node.op.make_node(*inputs).outputs)
    return list(Apply(node.op, list(inputs), [v.type.make_variable() for v in node.outputs]).outputs)


def again(node: Apply, known: Mapping[Variable, Variable]) -> Iterator[tuple[Variable, Variable]]:
    """Outputs of an operation, each with what the same operation makes of other inputs."""
    return zip(node.outputs, rebuilt(node, [known.get(v, v) for v in node.inputs]), strict=True)


def substitute(outputs: Sequence[Scalar], replace: dict[Variable, Scalar]) -> list[Scalar]:
    """Replace inputs of scalar expressions by other expressions or numbers."""
    known: dict[Variable, Variable] = {k: as_variable(v) for k, v in replace.items()}
    variables = [o for o in outputs if isinstance(o, Variable)]
    for node in io_toposort(list(replace), variables):
        known.update(again(node, known))
    return [known.get(o, o) if isinstance(o, Variable) else o for o in outputs]


def not_polynomial(outputs: Sequence[Scalar], wrt: Sequence[Variable]) -> list[bool]:
    """Whether each scalar expression depends on some inputs otherwise than as a polynomial of them."""
    depends, bent = set(wrt), set[Variable]()
    variables = [o for o in outputs if isinstance(o, Variable)]
    for node in io_toposort(list(wrt), variables):
        if depends.isdisjoint(node.inputs):
            continue
        depends.update(node.outputs)
        if not bent.isdisjoint(node.inputs) or not _polynomial(node, depends):
            bent.update(node.outputs)
    return [isinstance(o, Variable) and o in bent for o in outputs]


def _polynomial(node: Apply, depends: set[Variable]) -> bool:
    """Whether an operation makes a polynomial of polynomials."""
    match node.op:
        case psb.Add() | psb.Sub() | psb.Mul() | psb.Neg() | psb.Sqr() | psb.Identity():
            return True
        case psb.TrueDiv():
            return node.inputs[1] not in depends
        case psb.Pow():
            power = node.inputs[1]
            return isinstance(power, Constant) and power.data >= 0 and float(power.data).is_integer()
    return False


def evaluate(outputs: Sequence[Scalar], values: dict[Variable, float]) -> list[float]:
    """Numbers for scalar expressions, with every input given (slow; for checks at construction)."""
    return as_function(list(values), outputs)(*values.values())


#: Operations of one or two doubles that Python has: ``impl`` of PyTensor's takes five to ten times as long.
_ON_DOUBLES: dict[type, tuple[int, Callable[..., Any]]] = {
    psb.Add: (2, operator.add), psb.Mul: (2, operator.mul), psb.Sub: (2, operator.sub), psb.TrueDiv: (2, operator.truediv),
    psb.Neg: (1, operator.neg), psb.Sqr: (1, lambda x: x * x),
}  # fmt: skip


def as_function(inputs: Sequence[Variable], outputs: Sequence[Scalar]) -> Callable[..., list[float]]:
    """Scalar expressions as a function of one number for each input; the order of operations is found once."""
    values: list[Any] = []
    place: dict[Variable, int] = {}

    def placed(v: Scalar) -> int:
        """Where a value is kept."""
        if not isinstance(v, Variable):
            values.append(v)
            return len(values) - 1
        if v not in place:
            if v.owner is None and not isinstance(v, Constant) and v not in inputs:
                raise KeyError(v)
            place[v] = len(values)
            values.append(v.data if isinstance(v, Constant) else None)
        return place[v]

    given = [placed(v) for v in inputs]
    operations = [
        (_on_numbers(node), [placed(v) for v in node.inputs], [placed(v) for v in node.outputs])
        for node in io_toposort(list(inputs), [o for o in outputs if isinstance(o, Variable)])
    ]
    results = [placed(o) for o in outputs]

    def run(*numbers: float) -> list[float]:
        here = values.copy()
        for i, number in zip(given, numbers, strict=True):
            here[i] = np.float64(number)
        with np.errstate(all="ignore"):
            for function, arguments, found in operations:
                result = function(*[here[i] for i in arguments])
                if len(found) == 1:
                    here[found[0]] = result
                else:
                    for i, one in zip(found, result, strict=True):
                        here[i] = one
        return [float(here[i]) for i in results]

    return run


def _on_numbers(node: Apply) -> Callable[..., Any]:
    """An operation as a function of numbers: its result, or a list of its results."""
    count, function = _ON_DOUBLES.get(type(node.op), (0, None))
    if function is not None and len(node.inputs) == count and all(v.type.dtype == "float64" for v in node.inputs):
        return function
    if len(node.outputs) == 1:
        return node.op.impl  # type: ignore[no-any-return]

    def perform(*args: Any) -> list[Any]:
        storage: list[list[Any]] = [[None] for _ in node.outputs]
        node.op.perform(node, list(args), storage)
        return [s[0] for s in storage]

    return perform


def evaluate_arrays(outputs: Sequence[Scalar], values: dict[Variable, Any]) -> list[np.ndarray]:
    """Arrays for scalar expressions, with an array for every input; what depends on few of them stays as small as these."""
    known: dict[Variable, Any] = {k: np.asarray(v, dtype=float) for k, v in values.items()}
    with np.errstate(all="ignore"):
        for node in io_toposort(list(values), [o for o in outputs if isinstance(o, Variable)]):
            args = [v.data if isinstance(v, Constant) else known[v] for v in node.inputs]
            known[node.outputs[0]] = _on_arrays(node.op, len(args), node.outputs[0].type.dtype)(*args)
    found = (o if not isinstance(o, Variable) else o.data if isinstance(o, Constant) else known[o] for o in outputs)
    return [np.asarray(v, dtype=float) for v in found]


def _on_arrays(op: Any, count: int, dtype: str) -> Callable[..., Any]:
    """A scalar operation as a function of arrays: NumPy's or SciPy's where there is one."""
    if isinstance(op, psb.Cast):
        return lambda x: np.asarray(x).astype(dtype)
    if isinstance(op, psb.Clip):
        return np.clip
    if isinstance(op, psm.Softplus):
        return lambda x: np.logaddexp(0.0, x)
    name, takes, _ = getattr(op, "nfunc_spec", None) or ("", count, 1)
    function = getattr(np, name, None) or getattr(scipy.special, name.rpartition(".")[2], None)
    if function is None:
        return np.vectorize(op.impl, otypes=[dtype])
    if takes != count:  # sums and products of many terms
        return lambda *args: reduce(function, args)
    return function  # type: ignore[no-any-return]


def elementwise(function: Callable[..., Scalar], *arrays: Any) -> np.ndarray:
    """Apply a function of scalars to broadcast object arrays."""
    broadcast = np.broadcast_arrays(*(np.asarray(a, dtype=object) for a in arrays))
    result = np.empty(broadcast[0].shape, dtype=object)
    for index in np.ndindex(result.shape):
        result[index] = function(*(b[index] for b in broadcast))
    return result
