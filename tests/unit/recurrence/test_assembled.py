"""Recurrences that put their arrays together: the loops against NumPy, and models with them against models without."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.scalar.basic import ScalarType

import pm_sysid as sid
from pm_sysid.compat import Join, Mode, RewriteDatabaseQuery, Split, VMLinker
from pm_sysid.recurrence.assembled import ASSEMBLED, Assembled, Piece, assembled
from pm_sysid.recurrence.functions import numpy_mode
from pm_sysid.recurrence.llvm.assembled import TOO_SHORT, UNEQUAL, layout_source
from pm_sysid.recurrence.llvm.loops import FAULTS
from pm_sysid.recurrence.op import Recurrence, RecurrenceGradient
from support.recurrences import ARGUMENTS, COTANGENTS, filter_case, pulled

RNG = np.random.default_rng(3)


# -- loops ------------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "a row of numbers and parts of vectors": (
        (Piece("number", 0), Piece("row", 1, 1, 3), Piece("number", 2), Piece("row", 1), Piece("row", 3, 0, 0)),
    ),
    "matrices side by side": ((Piece("columns", 4), Piece("column", 5), Piece("columns", 4), Piece("fill", 6, 0, 2, -1.5)),),
    "fills alone": ((Piece("fill", 6, 0, 3, 1.0),), (Piece("fill", 6, 0, 0, 0.0),)),
    "zeros and a tail": ((Piece("fill", 7, 0, 4, 0.0), Piece("row", 1, 0, 4)),),
    "whole ones and counts": ((Piece("whole", 4),), (Piece("counts", 8, 3),), (Piece("whole", 9),)),
}
INPUTS: list[Any] = [
    2.5, RNG.standard_normal(4), np.array(-3.0), RNG.standard_normal(2), RNG.standard_normal((3, 2)), RNG.standard_normal(3),
    np.array(3), np.array(1), np.array([0.5, -1.0, 7.0, 2.0, -1.0, 0.0]), RNG.standard_normal((2, 2)),
]  # fmt: skip


def loops(layout: Any, inputs: list[Any]) -> Any:
    """Arrays by the text that is compiled, run by Python."""
    found: list[Any] = []
    tools = {"zeros": lambda *shape: np.zeros(shape), "integers": lambda n: np.zeros(n, np.int64), "whole": int}
    namespace: dict[str, Any] = {**tools, "faults": FAULTS, "run": lambda *arrays: found.extend(arrays[:-2])}
    exec(layout_source(layout, len(inputs)), namespace)
    namespace["kernel"](*(v.item() if np.ndim(v) == 0 and isinstance(v, np.ndarray) else v for v in inputs), None, None)
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_loops_fill_the_arrays_of_a_layout(name: str) -> None:
    for found, expected in zip(loops(LAYOUTS[name], INPUTS), assembled(LAYOUTS[name], INPUTS), strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def test_loops_refuse_inputs_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=FAULTS[TOO_SHORT]):
        loops(((Piece("row", 1, 2, 5),),), INPUTS)
    with pytest.raises(ValueError, match=FAULTS[UNEQUAL]):
        loops(((Piece("columns", 4), Piece("columns", 9)),), INPUTS)
    with pytest.raises(ValueError, match=FAULTS[UNEQUAL]):
        loops(((Piece("row", 1), Piece("columns", 9)),), INPUTS)
    with pytest.raises(ValueError, match=FAULTS[UNEQUAL]):
        loops(((Piece("columns", 4), Piece("fill", 7, 0, 1, 0.0)),), INPUTS)


# -- models -----------------------------------------------------------------------------------------------------------

SYSTEM = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z - p.k3 * x.z**3),
    states=("z", "v"),
    inputs=("F",),
    params=("c", "k", "k3"),
    observe=lambda t, x, dx, u, p: (x.z, x.v),
)
T = np.arange(12) / 10


def record(n: int = 12) -> sid.TimeSeries:
    y = 0.1 * np.random.default_rng(n).standard_normal((n, 2))
    y[3, 1] = np.nan
    return sid.TimeSeries(T[:n], np.sin(3 * T[:n]), y, inputs="F", outputs=("z", "v"))


def known_start() -> None:
    p = {"c": pm.HalfNormal("c"), "k": pm.Normal("k", 10, 1), "k3": 2.0}
    sid.ODEFilter("y", SYSTEM, record(), p, noise=pm.HalfNormal("s", 0.2, shape=2), x0={"z": 0.1, "v": 0.0}, substeps=2)


def uncertain_start() -> None:
    theta = pm.Normal("theta", [0.5, 10.0, 1.0], 0.1, shape=3)
    start: dict[str, Any] = {"x0": {"z": pm.Normal("z0", 0, 0.1), "v": 0.0}, "x0_std": {"z": 0.0, "v": 0.1}}
    sid.ODEFilter("y", SYSTEM, record(), dict(zip("c k k3".split(), theta, strict=True)), noise=0.1, substeps=1, **start)


def fixed_diffusion() -> None:
    solver = sid.EK0(order=2, diffusion=pm.HalfNormal("d", 10.0))
    p = {"c": 0.5, "k": pm.Normal("k", 10, 1), "k3": 1.0}
    sid.ODEFilter("y", SYSTEM, record(), p, noise=pm.HalfNormal("s", 0.2), x0=0.0, solver=solver, substeps=2)


def two_records() -> None:
    p = {"c": pm.HalfNormal("c"), "k": pm.Normal("k", 10, 1, shape=2), "k3": 2.0}
    sid.ODEFilter("y", SYSTEM, [record(), record(9)], p, noise=0.1, x0=0.0, substeps=2)


def shared_parameters() -> None:
    p = {"c": pm.HalfNormal("c"), "k": pm.Normal("k", 10, 1), "k3": 2.0}
    start = [{"z": pm.Normal("z0", 0, 0.1), "v": 0.0}, {"z": 0.0, "v": 0.0}]
    sid.ODEFilter("y", SYSTEM, [record(), record(9)], p, noise=0.1, x0=start, substeps=2)


def density(model: pm.Model, mode: Any) -> Any:
    """Function of a point: log density and its gradient."""
    return model.compile_fn([model.logp(), model.dlogp()], mode=mode, point_fn=True)


def ops_of(function: Any) -> list[Any]:
    return [node.op for node in function.f.maker.fgraph.toposort()]


def matrices_joined(function: Any) -> bool:
    nodes = function.f.maker.fgraph.toposort()
    return any(isinstance(node.op, Join) and node.outputs[0].type.ndim == 2 for node in nodes)


def same(function: Any, model: pm.Model) -> None:
    """Whether a function has the density and gradient of the arrays as PyTensor puts them together."""
    plain, point = density(model, numpy_mode()), model.initial_point()
    moved = {name: v + 0.1 * RNG.standard_normal(np.shape(v)) for name, v in point.items()}
    for at in (point, moved):
        for found, expected in zip(function(at), plain(at), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("build", [known_start, uncertain_start, fixed_diffusion, two_records, shared_parameters])
def test_models_have_the_same_density_and_gradient(build: Callable[[], None]) -> None:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        build()
    query = RewriteDatabaseQuery(include=["fast_run", "py_only", ASSEMBLED], exclude=["fusion", "inplace", "BlasOpt"])
    function = density(model, Mode(VMLinker(use_cloop=False, c_thunks=False), query))
    ops = ops_of(function)
    assert any(isinstance(op, Assembled) for op in ops)
    assert not any(isinstance(op, Recurrence | RecurrenceGradient) for op in ops)
    same(function, model)


@pytest.mark.numba
@pytest.mark.parametrize("build", [known_start, uncertain_start])
def test_compiled_models_have_them_too_without_join_or_split(build: Callable[[], None]) -> None:
    with pm.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        build()
    function = density(model, None)
    ops = ops_of(function)
    assert sum(isinstance(op, Assembled) for op in ops) == 4
    assert not any(isinstance(op, Recurrence | RecurrenceGradient | Split) for op in ops)
    assert not matrices_joined(function)
    same(function, model)


# -- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.numba
def test_parts_may_be_read_elsewhere_too() -> None:
    case = filter_case("duffing", runs=1)
    params, starts, counts, substeps, samples = case.arrays
    head, tail, constant = pt.dvector(), pt.dvector(), pt.dvector()
    joined = pt.concatenate([head, tail])
    rows = pt.concatenate([constant[None, :2], constant[2:][None]], axis=1)
    outputs, _ = case.op(joined, rows, counts, substeps, samples)
    function = pytensor.function([head, tail, constant], [outputs, joined.sum(), rows * 2])
    flat = np.ravel(params)
    found = function(flat[:2], flat[2:], starts[0])
    expected = pytensor.function([], case.op(*case.arrays)[0], mode=numpy_mode())()
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    assert found[1] == pytest.approx(flat.sum())
    np.testing.assert_array_equal(found[2], 2 * starts)
    # Vectors that are not contiguous are read as they lie.
    for part in (np.repeat(flat, 3)[::3], flat[::-1].copy()[::-1]):
        np.testing.assert_array_equal(function(part[:2], part[2:], np.repeat(starts[0], 2)[::2])[0], found[0])
    with pytest.raises(ValueError, match="wrong number of columns"):
        function(flat[:2], flat[1:], starts[0])


@pytest.mark.numba
def test_compiled_loops_refuse_inputs_that_do_not_fit() -> None:
    case = filter_case("duffing", runs=1)
    params, starts, *others = case.arrays
    flat, first = np.ravel(params), pt.dvector()
    row, rest = pt.dvector(), pt.dmatrix()
    head = pt.specify_shape(row[:2], (2,))
    outputs = case.op(pt.concatenate([head, flat[2:]]), pt.concatenate([rest, first[:, None]], axis=1), *others)[0]
    function = pytensor.function([row, rest, first], outputs)
    assert any(isinstance(node.op, Assembled) for node in function.maker.fgraph.toposort())
    expected = pytensor.function([], case.op(*case.arrays)[0], mode=numpy_mode())()
    columns = np.asfortranarray(np.repeat(starts[:, :-1], 2, axis=0))[::2]
    np.testing.assert_allclose(function(flat[:2], columns, starts[:, -1]), expected, rtol=1e-12)
    with pytest.raises(ValueError, match=FAULTS[TOO_SHORT]):
        function(flat[:1], columns, starts[:, -1])
    with pytest.raises(ValueError, match=FAULTS[UNEQUAL]):
        function(flat[:2], columns, np.repeat(starts[:, -1], 2))


@pytest.mark.numba
def test_recurrences_of_whole_arrays_are_left_as_they_are() -> None:
    case = filter_case("duffing")
    inputs = [pt.dmatrix(), *ARGUMENTS[1:], *COTANGENTS]
    function = pytensor.function(inputs, pulled(case.op, *inputs))
    assert any(isinstance(node.op, RecurrenceGradient) for node in function.maker.fgraph.toposort())


def test_python_runs_it_too_and_it_can_be_pickled() -> None:
    case = filter_case("duffing", runs=1)
    params, *others = case.arrays
    flat = np.ravel(params)
    layout = ((Piece("number", 0), Piece("row", 1)), *((Piece("whole", k),) for k in range(2, 6)))
    op = pickle.loads(pickle.dumps(Assembled(case.op, layout)))
    assert op == Assembled(case.op, layout)
    number: Any = ScalarType("float64")()
    node = op.make_node(number, pt.dvector(), *(v.type() for v in ARGUMENTS[1:]))
    storage: list[list[Any]] = [[None], [None]]
    op.perform(node, [flat[0], flat[1:], *others], storage)
    expected: list[list[Any]] = [[None], [None]]
    case.op.perform(node, case.arrays, expected)
    np.testing.assert_array_equal(storage[0][0], expected[0][0])
