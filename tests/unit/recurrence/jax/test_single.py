"""The JAX implementation of a recurrence against the interpreted one, which the numba one is tested against too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
import pytensor.tensor as pt
import pytest

from support.recurrences import (
    ARGUMENTS,
    COTANGENTS,
    LINEAR,
    SYSTEMS,
    Case,
    by_hand,
    filter_case,
    linear,
    long_case,
    pulled,
    two_masses,
)
from support.variable_filters import DUFFING, HYSTERESIS, TWO, at_rest, build, free, missing, positive

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402
from pymc.sampling.jax import get_jaxified_logp  # noqa: E402

from pm_sysid.likelihood.ode_filter import ODEFilter  # noqa: E402
from pm_sysid.models import bouc_wen, duffing  # noqa: E402
from pm_sysid.records.timeseries import TimeSeries  # noqa: E402
from pm_sysid.recurrence.jax.single import jax_recurrence  # noqa: E402
from pm_sysid.recurrence.llvm import single as backend  # noqa: E402
from pm_sysid.recurrence.op import Phase, Recurrence  # noqa: E402
from pm_sysid.solve.filter_graph import Problem  # noqa: E402
from pm_sysid.solve.options import EK0, EK1  # noqa: E402
from pm_sysid.solve.simulate import simulate  # noqa: E402
from pm_sysid.steps.ek import filter_recurrence  # noqa: E402
from pm_sysid.steps.integrate import method_inputs, run_recurrence  # noqa: E402
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence  # noqa: E402
from pm_sysid.symbolic.scalars import add, as_variable, mul, symbols  # noqa: E402
from pm_sysid.symbolic.system import System  # noqa: E402

INTERPRETED = pytensor.compile.mode.Mode(linker="py", optimizer="fast_compile")


def assert_close(got: Any, want: Any, rtol: float = 1e-9) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == np.float64 and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.nanmax(np.abs(b), initial=0.0))


def assert_same(case: Case, rtol: float = 1e-9) -> list[Any]:
    """Compare values and gradients with the interpreted ones; return outputs, final carries and gradients."""
    params, starts, *rest = case.arrays
    cotangents = case.cotangents()

    @jax.jit
    def run(params: Any, starts: Any, cotangents: Any) -> Any:
        results, pull = jax.vjp(lambda p, x: jax_recurrence(case.op)(p, x, *rest), params, starts)
        return *results, *pull(tuple(cotangents))

    got = run(params, starts, cotangents)
    want = backend.python_kernel(case.op)(*case.arrays)
    assert_close(got, [*want, *backend.python_gradient_kernel(case.op)(*case.arrays, *cotangents)], rtol)
    return got


# -- scalar operations ------------------------------------------------------------------------------------------------

GRID = (-np.inf, -2.5, -1.0, -0.3, 0.0, 0.3, 1.0, 2.5, 7.0, np.inf, np.nan)
UNARY = [
    psb.exp, psb.expm1, psb.log, psb.log1p, psb.log2, psb.log10, psb.sqrt, psb.sqr, psb.reciprocal, psb.neg, psb.abs,
    psb.sign, psb.floor, psb.ceil, psb.trunc, psb.sin, psb.cos, psb.tan, psb.arcsin, psb.arccos, psb.arctan, psb.sinh,
    psb.cosh, psb.tanh, psb.arcsinh, psb.arccosh, psb.arctanh, psm.erf, psm.erfc, psm.sigmoid, psm.softplus, psb.identity,
    psb.isnan, psb.isinf,
]  # fmt: skip
BINARY = [
    psb.add, psb.mul, psb.sub, psb.true_div, psb.maximum, psb.minimum, psb.mod, psb.int_div, psb.second, psb.arctan2,
    psb.lt, psb.gt, psb.le, psb.ge, psb.eq, psb.neq,
]  # fmt: skip
MORE: dict[str, Callable[..., Any]] = {
    "power": lambda a, b: psb.pow(psb.abs(a), b),
    "whole power": lambda a, b: psb.pow(a, 3.0) + psb.pow(b, -2.0),
    "gammaln": lambda a, b: psm.gammaln(psb.abs(a) + 0.25),
    "gammaln of a negative number": lambda a, b: psm.gammaln(psb.switch(psb.abs(a) < 3.0, a - 0.1, -0.6)),
    "tail of erfc": lambda a, b: psm.erfc(5.0 + psb.abs(a)),
    "clip": lambda a, b: psb.clip(a, psb.minimum(b, 0.0), psb.maximum(b, 0.5)),
    "clip with crossed bounds": lambda a, b: psb.clip(a, as_variable(1.0), as_variable(-1.0)),
    "and": lambda a, b: psb.and_(a > 0.5, b > 0.5),
    "or": lambda a, b: psb.or_(a > 0.5, b > 0.5),
    "xor": lambda a, b: psb.xor(a > 0.5, b > 0.5),
    "not": lambda a, b: psb.invert(a > 0.5),
    "cast": lambda a, b: psb.cast(a > 0.5, "float64") + psb.cast(b, "float64"),
    "switch": lambda a, b: psb.switch(a > b, a, b),
    "switch on a number": lambda a, b: psb.switch(a, b, -b),
    "switch between conditions": lambda a, b: psb.switch(a > b, a > 0.0, b > 0.0) * 2.0,
    "counted conditions": lambda a, b: add(a > -1.0, b > 0.0, a > 1.0),
    "product of conditions": lambda a, b: mul(a > -1.0, b > 0.0),
    "sum of many": lambda a, b: psb.add(a, b, a, 1.0),
    "root of a condition": lambda a, b: psb.sqrt(a > 0.5),
}  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{op.name or str(op): lambda a, b, op=op: op(a) for op in UNARY},
    **{op.name or str(op): lambda a, b, op=op: op(a, b) for op in BINARY},
    **MORE,
}


@pytest.fixture(scope="module")
def operations() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Every operation on all pairs of the grid: the pairs are the starts of as many runs without a step."""
    n, pair = len(OPERATIONS), symbols("x", 2)
    carry = symbols("carry", n)
    op = Recurrence(
        Phase.build([], [], pair, [operation(*pair) for operation in OPERATIONS.values()]),
        Phase.build(carry, [], [], carry),
        Phase.build(carry, [], [], carry),
        n_carry=n,
        n_params=0,
    )
    starts = np.array(list(product(GRID, GRID)))
    runs = len(starts)
    arrays = (np.empty(0), starts, np.array([0] + [-1] * (runs - 1)), np.empty((0, 0)), np.empty((runs, 0)))
    got, want = jax.jit(jax_recurrence(op))(*arrays)[1], backend.python_kernel(op)(*arrays)[1]
    return {name: (got[:, i], want[:, i]) for i, name in enumerate(OPERATIONS)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_equal_the_interpreted_ones(name: str, operations: Any) -> None:
    got, want = operations[name]
    assert len(np.unique(want[np.isfinite(want)])) > 1 or name == "root of a condition"
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-300)


class Odd(psb.UnaryScalarOp):
    """An operation nobody knows."""


def test_an_operation_without_an_implementation_raises() -> None:
    (x,) = symbols("x", 1)
    strange = Odd(psb.same_out, name="odd")(x)
    same = Phase.build([x], [], [], [x])
    op = Recurrence(Phase.build([], [], [x], [strange]), same, same, n_carry=1, n_params=0)
    with pytest.raises(NotImplementedError, match="the operation odd is not available in a recurrence; use elementary"):
        jax_recurrence(op)


# -- loops ------------------------------------------------------------------------------------------------------------


def test_loop_counts_substeps_and_runs_as_written_by_hand() -> None:
    assert_close(jax_recurrence(LINEAR.op)(*LINEAR.arrays), by_hand(LINEAR), rtol=1e-15)


@pytest.mark.parametrize("counts", [[3], [0, 0], [0, 2, 2], [2, -1, -1, 1], [0, 5, 0, 1, -1]])
def test_any_counts(counts: list[int]) -> None:
    n = np.array(counts)
    rng = np.random.default_rng(3)
    runs, total = 1 + np.sum(n < 0), np.sum(np.maximum(n, 0))
    arrays = (np.array([0.5, 2.0]), rng.normal(size=(runs, 2)), n, rng.normal(size=(total, 1)), np.empty((len(n), 0)))
    assert_same(Case(linear(), arrays), rtol=1e-13)


def test_many_runs_of_uneven_length() -> None:
    assert_same(long_case(), rtol=1e-12)


def test_sizes_of_zero() -> None:
    """No parameter, no input, no output, no substep; and no sample."""
    (x,), (u,) = symbols("x", 1), symbols("u", 1)
    same, twice = Phase.build([x], [], [], [x]), Phase.build([x], [], [], [mul(2.0, x)])
    op = Recurrence(Phase.build([], [], [u], [u]), same, twice, n_carry=1, n_params=0)
    case = Case(op, (np.empty(0), np.array([[1.5]]), np.array([0, 0]), np.empty((0, 0)), np.empty((2, 0))))
    outputs, final, *_ = assert_same(case, rtol=1e-15)
    assert outputs.shape == (2, 0) and float(final[0, 0]) == 6.0
    params, starts, *_, samples = case.arrays
    empty = jax.grad(lambda x: jnp.sum(jax_recurrence(op)(params, x, np.empty(0, int), samples[:0], samples[:0])[1]))
    np.testing.assert_array_equal(empty(starts), [[1.0]])


@pytest.fixture(scope="module")
def small() -> Case:
    """Two records of a Duffing oscillator at uneven times, with a missing sample and an uncertain start."""
    system, rng, records = duffing(), np.random.default_rng(6), []
    for length in (6, 4):
        y = rng.normal(0.0, 0.2, length)
        y[2] = np.nan
        records.append(TimeSeries(np.cumsum(rng.uniform(0.08, 0.12, length)), rng.normal(size=length), y, intersample="foh"))
    problem = Problem.build(system, EK1(order=2, diffusion=1.0), records, (0,))
    data = problem.data(records, 2)
    params = np.concatenate([list(DUFFING.values()), [0.7, 0.1], data.scale])
    starts = np.concatenate([rng.normal(0.0, 0.3, (2, 2)), np.full((2, 2), 0.1), data.starts], axis=1)
    samples = np.concatenate([data.samples, np.concatenate([r.output_matrix for r in records])], axis=1)
    return Case(filter_recurrence(system, problem.form), (params, starts, data.counts, data.substeps, samples))


@pytest.mark.parametrize("name", ["duffing", "two_masses", "loops", "chains", "everywhere"])
def test_filters_equal_the_interpreted_ones(name: str) -> None:
    """Uneven times, several records, missing samples, an uncertain start; several outputs in blocks."""
    case = filter_case(name, runs=3 if name == "duffing" else 2)
    outputs, _, g_params, _ = assert_same(case, rtol=1e-10)
    assert np.isfinite(outputs).all() and np.ptp(outputs) > 0.1
    constants = np.arange(case.op.n_params) >= case.op.n_params - case.op.n_constants
    assert np.all((g_params == 0.0) == constants)


@pytest.mark.parametrize("output", ["innovations", "draw", "moments"])
def test_other_outputs_equal_the_interpreted_ones(output: str) -> None:
    case = filter_case("duffing", output)
    arrays = [np.nan_to_num(a, nan=0.3) if output == "draw" else a for a in case.arrays]
    assert_close(jax.jit(jax_recurrence(case.op))(*arrays), backend.python_kernel(case.op)(*arrays), rtol=1e-11)


def test_what_cannot_be_solved_has_no_likelihood(small: Case) -> None:
    params = np.where(np.arange(small.op.n_params) == 3, -1e200, small.arrays[0])
    outputs = jax_recurrence(small.op)(params, *small.arrays[1:])[0]
    np.testing.assert_array_equal(np.isneginf(outputs[:, 0]), [False] + [True] * 5 + [False] + [True] * 3)


# -- transformations --------------------------------------------------------------------------------------------------


def test_batches_of_parameters_and_starts_are_the_single_ones(small: Case) -> None:
    params, starts, *rest = small.arrays
    rng = np.random.default_rng(4)
    many = params * rng.uniform(0.95, 1.05, (5, params.size)), starts + rng.normal(0.0, 0.1, (5, *starts.shape))

    def total(p: Any, x: Any) -> Any:
        return jnp.sum(jax_recurrence(small.op)(p, x, *rest)[0])

    single = jax.jit(jax.value_and_grad(total, (0, 1)))
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(total, (0, 1))))(*many)
    for i in range(5):
        value, gradient = single(many[0][i], many[1][i])
        assert_close([values[i], *(g[i] for g in gradients)], [value, *gradient], rtol=1e-12)
    by_params = jax.jit(jax.vmap(total, (0, None)))(many[0], starts)
    assert float(by_params[2]) == pytest.approx(float(total(many[0][2], starts)), rel=1e-12)


def test_forward_mode_equals_reverse_mode(small: Case) -> None:
    """Forward mode differentiates the operations one by one, without what PyTensor knows of them."""
    params, starts, *rest = small.arrays
    varied = small.op.n_params - small.op.n_constants

    def outputs(p: Any, forward_mode: bool) -> Any:
        run = jax_recurrence(small.op, forward_mode=forward_mode)
        return run(jnp.concatenate([p, params[varied:]]), starts, *rest)[0][:, 0]

    forward = jax.jit(jax.jacfwd(lambda p: outputs(p, True)))(params[:varied])
    reverse = jax.jit(jax.jacrev(lambda p: outputs(p, False)))(params[:varied])
    assert np.isfinite(forward).all() and np.abs(forward).max() > 0.1
    assert_close([forward], [reverse])


def test_second_derivatives_equal_differences_of_the_first() -> None:
    _, starts, *rest = LINEAR.arrays

    def gradient(p: Any) -> Any:
        return jax.grad(lambda p: jnp.sum(jax_recurrence(LINEAR.op)(p, starts, *rest)[0] ** 2))(p)

    check_grads(gradient, (LINEAR.arrays[0],), 1, modes=["fwd"])


def test_substeps_and_samples_have_no_derivative() -> None:
    """A zero would be wrong without anyone noticing."""
    *first, substeps, samples = LINEAR.arrays
    with pytest.raises(TypeError, match="differentiable in params and starts, not in substeps and samples"):
        jax.grad(lambda u: jnp.sum(jax_recurrence(LINEAR.op)(*first, u, samples)[0]))(substeps)


def test_gradient_of_one_of_the_two_outputs() -> None:
    params, starts, *rest = LINEAR.arrays
    zeros = [np.zeros_like(c) for c in LINEAR.cotangents()]
    for which in range(2):
        cotangents = [c + (i == which) for i, c in enumerate(zeros)]
        got = jax.grad(lambda p, x, which=which: jnp.sum(jax_recurrence(LINEAR.op)(p, x, *rest)[which]), (0, 1))(params, starts)
        assert_close(got, backend.python_gradient_kernel(LINEAR.op)(*LINEAR.arrays, *cotangents), rtol=1e-14)


# -- checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda p, x, n, u, y: (p, x, n, u[:-1], y),
        lambda p, x, n, u, y: (p, x, n, np.concatenate([u, u]), y),
        lambda p, x, n, u, y: (p, x[:-1], n, u, y),
        lambda p, x, n, u, y: (p, np.concatenate([x, x]), n, u, y),
        lambda p, x, n, u, y: (p, x[:1], n, u, y),
    ],
    ids=["few substeps", "many substeps", "few starts", "many starts", "one start"],
)
def test_counts_that_do_not_fit_raise_or_give_nan(change: Any) -> None:
    p, x, n, u, y = change(*LINEAR.arrays)
    run = jax_recurrence(LINEAR.op)
    with pytest.raises(ValueError, match="counts do not match the rows of starts, substeps and samples"):
        run(p, x, n, u, y)
    with pytest.raises(ValueError, match="counts do not match"):
        jax.jit(lambda p: run(p, x, n, u, y))(p)
    assert all(np.isnan(r).all() for r in jax.jit(run)(p, x, n, u, y))
    gradient = jax.grad(lambda p, x, n: jnp.sum(run(p, x, n, u, y)[0]), (0, 1))
    assert all(np.isnan(g).all() for g in jax.jit(gradient)(p, x, n))


@pytest.mark.parametrize("traced", [False, True])
def test_rows_and_columns_that_do_not_fit_raise(traced: bool) -> None:
    p, x, n, u, y = LINEAR.arrays
    run = jax.jit(jax_recurrence(LINEAR.op)) if traced else jax_recurrence(LINEAR.op)
    with pytest.raises(ValueError, match="counts do not match"):
        run(p, x, n, u, y[:-1])
    for width in (0, 1, 3):
        with pytest.raises(ValueError, match="wrong number of columns"):
            run(np.ones(width), x, n, u, y)
        with pytest.raises(ValueError, match="wrong number of columns"):
            run(p, np.ones((3, width)), n, u, y)


@pytest.fixture
def single_precision() -> Iterator[None]:
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.mark.usefixtures("single_precision")
def test_single_precision_raises() -> None:
    with pytest.raises(RuntimeError, match=r'jax.config.update\("jax_enable_x64", True\)'):
        jax_recurrence(LINEAR.op)(*LINEAR.arrays)


def test_single_precision_numbers_are_converted() -> None:
    p, x, n, u, y = LINEAR.arrays
    arrays = (p.astype(np.float32), x.astype(np.float32), n.astype(np.int32), u.astype(int), y)
    assert_close(jax_recurrence(LINEAR.op)(*arrays), by_hand(LINEAR), rtol=1e-15)
    gradient = jax.grad(lambda p: jnp.sum(jax_recurrence(LINEAR.op)(p, *arrays[1:])[0]))(jnp.asarray(arrays[0]))
    assert gradient.dtype == np.float32


# -- through PyTensor and PyMC ----------------------------------------------------------------------------------------


def test_ops_compiled_by_pytensor_for_jax_equal_the_interpreted_ones(small: Case) -> None:
    inputs, cotangents = [*ARGUMENTS, *COTANGENTS], small.cotangents()
    value = pytensor.function(ARGUMENTS, small.op(*ARGUMENTS), mode="JAX")(*small.arrays)
    assert_close([np.asarray(v) for v in value], backend.python_kernel(small.op)(*small.arrays))
    gradient = pytensor.function(inputs, pulled(small.op, *inputs), mode="JAX")(*small.arrays, *cotangents)
    assert_close([np.asarray(g) for g in gradient], backend.python_gradient_kernel(small.op)(*small.arrays, *cotangents))


@pytest.mark.parametrize("which", [0, 1])
def test_gradients_taken_by_pytensor_equal_the_interpreted_ones(which: int) -> None:
    total = pt.sum(LINEAR.op(*ARGUMENTS)[which] ** 2)
    results = [
        pytensor.function(ARGUMENTS, pytensor.grad(total, ARGUMENTS[:2]), mode=mode)(*LINEAR.arrays)
        for mode in ("JAX", INTERPRETED)
    ]
    assert_close([np.asarray(g) for g in results[0]], results[1], rtol=1e-13)


def record(system: System, length: int, intersample: Any, *, uneven: bool = False, seed: int = 0) -> TimeSeries:
    """Numbers of a likely size; derivatives do not ask whether a system could have produced them."""
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.uniform(0.7, 1.3, length) * 0.1) if uneven else np.arange(length) * 0.1
    y = rng.normal(0.0, 0.2, (length, len(system.outputs)))
    u = np.sin(3 * t) + rng.normal(0.0, 0.3, length)
    return TimeSeries(t, u, y[:, 0] if y.shape[1] == 1 else y, intersample=intersample)


def duffing_model(solver: Any, intersample: Any, *, uneven: bool = False, std: bool = False) -> None:
    start = dict(z=free("z0", 0.1), v=free("v0", -0.3))
    spread = dict(z=positive("z0_std", 0.05), v=positive("v0_std", 0.2)) if std else None
    data = missing(record(duffing(), 15, intersample, uneven=uneven))
    build(duffing(), data, DUFFING, solver, start=start, std=spread)


def two_records() -> None:
    """With their own start, of which one is uncertain."""
    data = [record(duffing(), n, "foh", uneven=True, seed=n) for n in (9, 6)]
    starts = [dict(z=free("z0", 0.1), v=0.2), free("second", np.array([-0.1, 0.4]))]
    std = [dict.fromkeys("zv", positive("std", 0.1)), dict(z=0.0, v=0.0)]
    build(duffing(), data, DUFFING, EK1(order=2, diffusion="dynamic"), start=starts, std=std)


def hysteresis() -> None:
    system, diffusion = bouc_wen(observe="acceleration"), dict(z=positive("dz", 2.0), r=positive("dr", 3.0))
    solver = EK1(order=2, diffusion=diffusion)
    build(system, record(system, 12, "zoh"), HYSTERESIS, solver, start=free("start", np.array([0.1, -0.3, 0.2])))


def masses(covariance: Any, order: int) -> None:
    system, x0 = two_masses(), np.array([0.1, -0.3, 0.2, 0.4])
    solver = EK1(order=order, diffusion=positive("diffusion", np.array([2.0, 3.0])), covariance=covariance)
    build(system, missing(record(system, 10, "foh")), TWO, solver, start=free("x0", x0))


#: Accelerations of two masses under the forces f, by expressions of the parameters that stand outside the recurrence.
OUTSIDE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "solve": lambda f, x, p: pt.linalg.solve(p.M, f - 4.0 * x.q),
    "inverse of a product": lambda f, x, p: pt.linalg.inv(p.M @ p.M.T) @ (f - 4.0 * x.q),
    "eigenvalues": lambda f, x, p: f - pt.linalg.eigh(p.M + p.M.T)[0] * x.q,
    "eigenvectors": lambda f, x, p: f - pt.linalg.eigh(p.M + p.M.T)[1] ** 2 @ x.q,
    "factor": lambda f, x, p: f - pt.linalg.cholesky(p.M @ p.M.T) @ x.q,
}


def outside(law: str) -> None:
    """A matrix of unknowns that enters by its inverse, eigenvalues or a factor."""
    system = System(
        lambda t, x, u, p: {"q": x.v, "v": OUTSIDE[law](pt.stack([u.u, 0.0]) - p.c * x.v, x, p)},
        states={"q": 2, "v": 2},
        inputs=("u",),
        params={"M": (2, 2), "c": ()},
        observe=lambda t, x, dx, u, p: {"y": x.q},
    )
    assert system.derived
    params = {"M": free("M", np.array([[1.5, 0.4], [0.1, 1.1]])), "c": positive("c", 0.3)}
    x0, noise = {"q": free("q", np.array([0.1, -0.3])), "v": [0.2, 0.4]}, positive("noise", 0.1)
    ODEFilter("y", system, record(system, 10, "foh"), params, noise=noise, x0=x0, solver=EK1(order=2), substeps=2)


MODELS: dict[str, Callable[[], None]] = {
    "EK0(2), mle, bl, start from data": lambda: build(
        duffing(), missing(record(duffing(), 15, "bl")), DUFFING, EK0(order=2), start=None
    ),
    "EK0(3), number, zoh": lambda: duffing_model(EK0(order=3, diffusion=2.0), "zoh"),
    "EK0(4), dynamic, foh": lambda: duffing_model(EK0(order=4, diffusion="dynamic"), "foh"),
    "EK1(2), variable, bl, uneven": lambda: duffing_model(EK1(order=2, diffusion=positive("d", 2.0)), "bl", uneven=True),
    "EK1(3), mle, foh, uncertain start": lambda: duffing_model(EK1(order=3), "foh", std=True),
    "EK1(4), dynamic, zoh": lambda: duffing_model(EK1(order=4, diffusion="dynamic"), "zoh"),
    "EK1(2), dynamic, foh, two records": two_records,
    "two masses dense, EK1(2), variable, foh": lambda: masses("dense", 2),
    **{f"{law} outside the recurrence": partial(outside, law) for law in OUTSIDE},
}
SLOW: dict[str, Callable[[], None]] = {
    "Bouc-Wen acceleration, EK1(2), variable, zoh": hysteresis,
    "two masses in blocks, EK1(2), variable, foh": lambda: masses("block", 2),
    "EK1(4), mle, bl, uneven, uncertain start": lambda: duffing_model(EK1(order=4), "bl", uneven=True, std=True),
    "two masses dense, EK1(3), variable, foh": lambda: masses("dense", 3),
    "two masses in blocks, EK1(4), variable, foh": lambda: masses("block", 4),
}


def compare(name: str, mode: Any) -> None:
    """Log-density and gradient as numpyro asks for them, and by PyTensor in another mode."""
    with pm.Model() as model:
        (MODELS | SLOW)[name]()
    rng = np.random.default_rng(0)
    point = {k: v + rng.normal(0.0, 0.03, np.shape(v)) for k, v in model.initial_point().items()}
    logp = get_jaxified_logp(model, negative_logp=True)
    value, gradient = jax.jit(jax.value_and_grad(logp))([jnp.asarray(point[v.name]) for v in model.value_vars])
    expected = [model.compile_logp(mode=mode)(point), model.compile_dlogp(mode=mode)(point)]
    assert np.isfinite(expected[1]).all()
    assert_close([value, np.concatenate([np.ravel(g) for g in gradient])], expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_models_have_the_interpreted_density_and_gradient(name: str) -> None:
    compare(name, INTERPRETED)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS | SLOW)
@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_models_have_the_density_and_gradient_of_numba(name: str) -> None:
    compare(name, "NUMBA")


def test_a_matrix_without_an_inverse_has_no_likelihood() -> None:
    with pm.Model() as model:
        outside("solve")
    point = model.initial_point()
    logp = jax.jit(get_jaxified_logp(model))
    singular = point | {"M": np.array([[1.0, 2.0], [2.0, 4.0]])}
    assert np.isfinite(logp([jnp.asarray(point[v.name]) for v in model.value_vars]))
    assert logp([jnp.asarray(singular[v.name]) for v in model.value_vars]) == -np.inf


@pytest.mark.parametrize("diffusion, forced", [("mle", False), ("dynamic", True)])
def test_gradient_is_finite_when_the_record_starts_at_rest(diffusion: Any, forced: bool) -> None:
    model = at_rest(EK0(order=2, diffusion=diffusion), forced)
    logp = get_jaxified_logp(model)
    point = model.initial_point()
    value, gradient = jax.jit(jax.value_and_grad(logp))([jnp.asarray(point[v.name]) for v in model.value_vars])
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_simulation_and_its_gradient_equal_the_interpreted_ones() -> None:
    system = two_masses()
    data = record(system, 12, "foh").replace(y=None)
    values = {k: pt.dscalar(k) for k in TWO}
    run = simulate(system, data, values, x0=[values["c"], 0.2, 0.0, 0.1], substeps=4)
    at = dict(TWO)
    outputs = [run, *pytensor.grad(pt.sum(run**2), list(values.values()))]
    got, want = (pytensor.function(list(values.values()), outputs, mode=mode)(**at) for mode in ("JAX", INTERPRETED))
    assert_close([np.asarray(g) for g in got], want, rtol=1e-12)


def test_simulator_equals_the_interpreted_one() -> None:
    system, params, *_ = SYSTEMS["bouc_wen"]
    data = record(system, 15, "zoh").replace(y=None)
    inputs = rk4_inputs(data, 3)
    arrays = (np.array(list(params.values())), np.full((1, 3), 0.1), inputs.counts, inputs.substeps, inputs.samples)
    assert_same(Case(rk4_recurrence(system), arrays), rtol=1e-11)


def test_implicit_simulator_equals_the_interpreted_one() -> None:
    system, params, *_ = SYSTEMS["bouc_wen"]
    data = record(system, 6, "foh").replace(y=None)
    inputs = method_inputs(data, 2, "implicit")
    arrays = (np.array(list(params.values())), np.full((1, 3), 0.1), inputs.counts, inputs.substeps, inputs.samples)
    assert_same(Case(run_recurrence(system, "implicit"), arrays), rtol=1e-11)
