"""Small tensor expressions as scalar graphs, against PyTensor's own evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable

from pm_sysid.symbolic.lowering import UnsupportedOperation, lower
from pm_sysid.symbolic.scalars import evaluate, simplify, symbols

INPUTS = [pt.dscalar("a"), pt.dscalar("b")]
SCALARS = symbols("s", 2)
PYTHON = Mode(linker="py", optimizer=None)
MATRIX = np.array([[1.0, 2.0], [3.0, 4.0]])


def two(a: Any, b: Any) -> Any:
    return pt.stack([a, b])


def four(a: Any, b: Any) -> Any:
    return pt.stack([a, b, b * b, a - b]).reshape((2, 2))


def lowered(expression: Any) -> tuple[np.ndarray, list[Any]]:
    (array,) = lower([expression], INPUTS, SCALARS)
    flat = [v if isinstance(v, Variable) else float(v) for v in np.atleast_1d(array).ravel()]
    return array, flat


EXPRESSIONS = {
    "stack": lambda a, b: pt.stack([a, b, a * b]),
    "stack along an axis": lambda a, b: pt.stack([two(a, b), two(b, a * a)], axis=1),
    "stack with a number": lambda a, b: pt.stack([a, 2.0, b]),
    "index": lambda a, b: pt.stack([a, b, a * b])[1],
    "index from the end": lambda a, b: pt.stack([a, b, a * b])[-1],
    "slice": lambda a, b: pt.stack([a, b, a * b])[1:],
    "reverse": lambda a, b: two(a, b)[::-1],
    "index of a matrix": lambda a, b: four(a, b)[1, 0],
    "row": lambda a, b: four(a, b)[0],
    "column": lambda a, b: four(a, b)[:, 1],
    "new axis": lambda a, b: two(a, b)[None, :],
    "set of a range": lambda a, b: pt.stack([a, b, a])[0:2].set(a * b),
    "set of one entry": lambda a, b: two(a, b)[0].set(a * b),
    "set in zeros": lambda a, b: pt.zeros((2, 2))[0, 1].set(a),
    "set_subtensor": lambda a, b: pt.set_subtensor(pt.zeros(3)[1], a),
    "set of a row": lambda a, b: pt.zeros((2, 2))[1].set(two(a, b)),
    "inc of one entry": lambda a, b: two(a, b)[1].inc(a * b),
    "inc of a range": lambda a, b: pt.stack([a, b, a])[1:].inc(b),
    "inc of a row": lambda a, b: four(a, b)[1].inc(two(b, a)),
    "switch": lambda a, b: pt.switch(a > b, a, 2.0 * b),
    "switch of vectors": lambda a, b: pt.switch(two(a, b) > 0.0, two(a, b), 0.0),
    "where": lambda a, b: pt.where(pt.ge(a, 0.0), a, b),
    "and, or, not": lambda a, b: pt.switch((a > 0) & ~(b > 0) | (a > 1), a, b),
    "all": lambda a, b: pt.switch(pt.all(two(a, b) > 0), a, b),
    "any": lambda a, b: pt.switch(pt.any(two(a, b) > 0), a, b),
    "and with a constant part": lambda a, b: pt.switch(pt.and_(a > 0, pt.constant(1.0) > 0), a, b),
    "condition as a number": lambda a, b: (a > 0) * b + (1 - (a > 0)) * a,
    "conditions counted": lambda a, b: a * pt.sum(pt.stack([a > 0, a > -3])),
    "abs": lambda a, b: abs(a) * pt.abs(b),
    "sign": lambda a, b: pt.sign(a) * b,
    "tanh": lambda a, b: pt.tanh(a) / (1.0 + b**2),
    "pm.math": lambda a, b: pm.math.sin(a) + pm.math.exp(b) + pm.math.sqr(a) + pm.math.invlogit(b),
    "powers": lambda a, b: a**3 + b**-2 + abs(a) ** 0.5 + abs(b) ** 1.3 + a**0,
    "power of two inputs": lambda a, b: abs(a) ** b,
    "repeated factor": lambda a, b: a * a * a * b * a,
    "square": lambda a, b: pt.sqr(a) * a,
    "remainder": lambda a, b: a % b + a // b,
    "rounding": lambda a, b: pt.floor(a) + pt.ceil(b) + pt.trunc(a),
    "clip": lambda a, b: pt.clip(a, -0.5, 0.5),
    "maximum": lambda a, b: pt.maximum(a, b) + pt.minimum(a, 0.0),
    "logs": lambda a, b: pt.log(abs(a)) + pt.log1p(b**2) + pt.log2(abs(b)) + pt.log10(abs(a)),
    "angles": lambda a, b: pt.arctan2(a, b) + pt.deg2rad(a) + pt.cos(b) + pt.tan(a),
    "error function": lambda a, b: pt.erf(a) + pt.erfc(b) + pt.softplus(a) + pt.sigmoid(b),
    "not a number": lambda a, b: pt.switch(pt.isnan(a), 0.0, a),
    "numpy function": lambda a, b: np.sin(a) + np.sqrt(b * b),
    "numpy array": lambda a, b: np.array([1.0, -2.0]) * a + b,
    "integer constants": lambda a, b: a * (pt.constant(1) / pt.constant(3)) + pt.power(2, 3) * b,
    "dot": lambda a, b: pt.dot(two(a, b), two(b, b)),
    "outer": lambda a, b: pt.outer(two(a, b), two(b, a)),
    "matrix times vector": lambda a, b: MATRIX @ two(a, b),
    "vector times matrix": lambda a, b: two(a, b) @ MATRIX,
    "matrix times matrix": lambda a, b: four(a, b) @ MATRIX,
    "identity times vector": lambda a, b: pt.eye(2) @ two(a, b),
    "sum": lambda a, b: pt.sum(four(a, b)),
    "sum along an axis": lambda a, b: four(a, b).sum(axis=0),
    "sum with kept dims": lambda a, b: four(a, b).sum(axis=1, keepdims=True),
    "sum of nothing": lambda a, b: a + pt.sum(two(a, b)[:0]),
    "mean": lambda a, b: pt.mean(pt.stack([a, b, a * b])),
    "variance": lambda a, b: pt.var(pt.stack([a, b, a * b])),
    "prod": lambda a, b: pt.prod(pt.stack([a, b, a])),
    "prod along an axis": lambda a, b: four(a, b).prod(axis=1),
    "max": lambda a, b: pt.max(pt.stack([a, b, a * b])),
    "min along an axis": lambda a, b: pt.min(four(a, b), axis=0),
    "norm": lambda a, b: pt.linalg.norm(two(a, b)),
    "differences": lambda a, b: pt.diff(pt.stack([a, b, a * b])),
    "reshape": lambda a, b: four(a, b).reshape((4, 1)),
    "reshape with -1": lambda a, b: four(a, b).reshape((-1, 1, 2)),
    "flatten": lambda a, b: four(a, b).flatten(),
    "transpose": lambda a, b: four(a, b).T,
    "transpose of three axes": lambda a, b: pt.stack([a, b, b, a * a, a, b]).reshape((1, 2, 3)).transpose(2, 0, 1),
    "dimshuffle": lambda a, b: two(a, b).dimshuffle("x", 0, "x"),
    "squeeze": lambda a, b: pt.squeeze(two(a, b).reshape((1, 2))),
    "concatenate": lambda a, b: pt.concatenate([two(a, b), pt.stack([b * b]), np.ones(1)]),
    "concatenate along 1": lambda a, b: pt.concatenate([two(a, b).reshape((2, 1)), MATRIX], axis=1),
    "concatenate along -1": lambda a, b: pt.concatenate([two(a, b).reshape((2, 1)), MATRIX], axis=-1),
    "diagonal": lambda a, b: pt.diag(four(a, b)),
    "trace": lambda a, b: pt.trace(four(a, b)),
    "ones": lambda a, b: pt.ones((2, 2)) * a,
    "full": lambda a, b: pt.full((2,), a),
    "zeros_like": lambda a, b: pt.zeros_like(two(a, b)) + b,
    "shape": lambda a, b: two(a, b).shape[0] * a,
    "tile": lambda a, b: pt.tile(two(a, b), 2),
    "roll": lambda a, b: pt.roll(pt.stack([a, b, a * b]), 1),
    "constant": lambda a, b: pt.constant(3.0) + 0 * a,
    "entries by a list": lambda a, b: pt.stack([a, b, a * b])[np.array([2, 0, 0])],
    "entries by a mask": lambda a, b: pt.stack([a, b, a * b])[np.array([True, False, True])],
    "set of entries by a list": lambda a, b: pt.stack([a, b, a * b])[np.array([0, 2])].set(two(b, b)),
    "diagonal matrix": lambda a, b: pt.diag(two(a, b)) @ two(b, a),
    "second part": lambda a, b: pt.split(pt.stack([a, b, a * b]), [1, 2], n_splits=2)[1],
    "cumulative sum": lambda a, b: pt.cumsum(pt.stack([a, b, a * b])),
    "cumulative product along an axis": lambda a, b: pt.cumprod(four(a, b), axis=1),
    "einsum": lambda a, b: pt.einsum("ij,j->i", four(a, b), two(a, b)),
    "tensordot": lambda a, b: pt.tensordot(four(a, b), two(a, b), 1),
    "kron": lambda a, b: pt.linalg.kron(two(a, b)[None], two(b, b)[None]),
    "blocks": lambda a, b: pt.linalg.block_diag(four(a, b), MATRIX),
    "log-sum-exp": lambda a, b: pt.logsumexp(two(a, b)),
    "lower triangle": lambda a, b: pt.tril(four(a, b)),
    "repeat": lambda a, b: pt.repeat(two(a, b), 2),
    "numbers by any operation": lambda a, b: pt.linalg.solve(pt.constant(MATRIX), pt.ones(2)) * a + b,
    "linear system of numbers": lambda a, b: pt.linalg.solve(pt.constant(MATRIX), two(a, b)),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_lowered_expressions_have_the_values_and_shape_of_pytensor(name: str) -> None:
    expression = EXPRESSIONS[name](*INPUTS)
    own = pytensor.function(INPUTS, expression, mode=PYTHON, on_unused_input="ignore")
    array, flat = lowered(expression)
    simple = simplify(flat)
    for x in np.random.default_rng(3).normal(0.0, 1.5, (8, 2)):
        expected = np.asarray(own(*x), dtype=float)
        assert array.shape == expected.shape
        at = dict(zip(SCALARS, x, strict=True))
        for version in (flat, simple):
            values = np.reshape(evaluate(version, at), expected.shape)
            np.testing.assert_allclose(values, expected, rtol=1e-11, atol=1e-13)


def test_lowering_of_several_outputs_shares_nodes() -> None:
    a, b = INPUTS
    common = pt.sin(a * b)
    first, second = lower([common + 1.0, common], INPUTS, SCALARS)
    assert second[()] in first[()].owner.inputs


def test_an_output_that_is_an_input_is_its_scalar() -> None:
    assert lower([INPUTS[1]], INPUTS, SCALARS)[0][()] is SCALARS[1]


def test_element_of_a_stack_is_the_scalar_itself() -> None:
    assert lower([pt.stack(INPUTS)[0]], INPUTS, SCALARS)[0][()] is SCALARS[0]


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b: pt.linalg.det(four(a, b)),
        lambda a, b: pt.linalg.inv(four(a, b))[0, 0],
        lambda a, b: pt.linalg.solve(four(a, b), two(a, b))[0],
        lambda a, b: pt.sort(two(a, b))[0],
        lambda a, b: pt.argmax(two(a, b)) + 0.0,
    ],
    ids=["det", "inv", "solve", "sort", "argmax"],
)
def test_operations_without_scalar_form_are_refused_with_the_remedy(build: Any) -> None:
    with pytest.raises(UnsupportedOperation, match=r"no scalar form\. Write it with Python operators"):
        lower([build(*INPUTS)], INPUTS, SCALARS)


def test_loops_are_refused() -> None:
    a, b = INPUTS
    total = pytensor.scan(lambda s: s * b, outputs_info=a, n_steps=3, return_updates=False)[-1]
    with pytest.raises(UnsupportedOperation, match="no scalar form"):
        lower([total], INPUTS, SCALARS)


def test_symbolic_index_is_refused_with_the_remedy() -> None:
    a, b = INPUTS
    with pytest.raises(UnsupportedOperation, match=r"An index depends on a state, input or parameter; use pt\.switch"):
        lower([two(a, b)[pt.cast(a, "int64")]], INPUTS, SCALARS)


def test_symbolic_shape_is_refused() -> None:
    a, b = INPUTS
    with pytest.raises(UnsupportedOperation, match="A shape depends on a state"):
        lower([pt.full((pt.cast(a, "int64"),), b)], INPUTS, SCALARS)


def test_foreign_variables_are_refused_by_name() -> None:
    a, _ = INPUTS
    for foreign in (pt.dscalar("gravity"), pytensor.shared(9.81, "gravity")):
        with pytest.raises(UnsupportedOperation, match=r"the variable gravity is neither a state.*params="):
            lower([a * foreign], INPUTS, SCALARS)


def test_unsupported_operations_are_type_errors() -> None:
    assert issubclass(UnsupportedOperation, TypeError)
