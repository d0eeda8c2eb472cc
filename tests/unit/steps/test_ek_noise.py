"""The filter with limits, outliers, correlated, coloured and dependent noise, against dense formulas in 60 digits."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.solve.checks import vector
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.solve.noise import measurement_noise
from pm_sysid.solve.options import EK0, EK1
from pm_sysid.symbolic.driven import driven_system
from support.dense import DIGITS, Linear, Setting, factorise, forward, run, zeros
from support.driven import matern
from support.linear_cases import PYTHON, SYSTEMS
from support.noisy import Density, Matched, Textbook, censored, heavy, jointly, matched

TOLERANCE = 1e-8
NOISE = (0.05, 0.08)
LINEAR = SYSTEMS["oscillator, acceleration"]


def record_of(linear: Linear = LINEAR, n: int = 5) -> sid.TimeSeries:
    rng = np.random.default_rng(5)
    y = 0.4 * rng.normal(size=(n, len(linear.C)))
    y[1, 0] = np.nan
    y[3, -1] = 3.0
    y[2, 0] = 0.05
    return sid.TimeSeries(0.2 + 0.1 * np.arange(n), rng.normal(size=(n, linear.B.shape[1])), y)


def setting_of(linear: Linear, order: int, free: tuple[int, ...]) -> Setting:
    n, rng = len(linear.F), np.random.default_rng(8)
    std = np.where(np.isin(np.arange(n), free), 0.4, 0.0)
    diffusion = [3.0 * 6.0 ** (order + 0.5)] * len(linear.chains)  # wide enough for every part of the covariance to count
    return Setting(order, diffusion, [*NOISE, 0.07][: len(linear.C)], 0.3 * rng.normal(size=n), std, 2)


def built(linear: Linear, solver: Any, free: tuple[int, ...], noise: Any, limits: Any, coloured: Any = None) -> Any:
    """A problem, and a function of the noise vector and an output of the filter."""
    record, setting = record_of(linear), setting_of(linear, solver.order, free)
    system, values = driven_system(linear.system, coloured=coloured)
    found = measurement_noise(system, noise, limits, [record])
    problem = Problem.build(system, solver, [record], free, found.sensors)
    std = pt.concatenate([pt.as_tensor_variable(found.values), vector(found.entries)])
    x0 = np.array([setting.x0]), np.array([setting.x0_std])
    unknowns = Unknowns(vector([*linear.params, *values]), *x0, std, np.array(setting.diffusion))
    return problem, unknowns, record


def package(output: Any, *case: Any, **options: Any) -> np.ndarray:
    problem, unknowns, record = built(*case, **options)
    outputs, _ = problem.run(record.output_matrix, unknowns, problem.data([record], 2), output)
    result: np.ndarray = outputs.eval(mode=PYTHON)
    return result


def compare(case: tuple[Any, ...], truth: Matched, by_sample: bool = False) -> None:
    """Log-densities, and moments after the last sample."""
    loglik, moments = package("loglik", *case), package("moments", *case)[-1]
    summed = (loglik.sum(axis=1), truth.loglik.sum(axis=1)) if by_sample else (loglik, truth.loglik)
    np.testing.assert_allclose(*summed, rtol=TOLERANCE, atol=TOLERANCE)
    n = len(truth.mean)
    size = np.sqrt(np.diag(truth.covariance)) + 1e-9 * np.abs(truth.mean)
    np.testing.assert_allclose((moments[:n] - truth.mean) / size, 0.0, atol=TOLERANCE)
    np.testing.assert_allclose((moments[n:].reshape(n, n) - truth.covariance) / np.outer(size, size), 0.0, atol=TOLERANCE)


LIMITS = {LINEAR.system.outputs[0]: (-0.1, 0.1)}
SOLVERS = [(EK1(order=2, diffusion=1.0), ()), (EK1(order=2, diffusion=1.0), (0, 1)), (EK0(order=2, diffusion=1.0), (1,))]


@pytest.mark.parametrize(("solver", "free"), SOLVERS, ids=str)
def test_a_limit_counts_as_the_probability_of_what_is_beyond(solver: Any, free: tuple[int, ...]) -> None:
    """Would fail for moments of another event, or for a covariance that shrinks in the wrong place."""
    setting, y = setting_of(LINEAR, 2, free), record_of().output_matrix
    assert np.sum(np.abs(y[:, 0]) >= 0.1) > 1

    def sensing(k: int, expected: Any) -> list[Density | None]:
        first = None if np.isnan(y[k, 0]) else censored(y[k, 0], -0.1, 0.1, NOISE[0])
        return [first, censored(y[k, 1], -np.inf, np.inf, NOISE[1])]

    truth = matched(LINEAR, setting, record_of(), sensing, isinstance(solver, EK1))
    compare((LINEAR, solver, free, list(NOISE), LIMITS), truth)


@pytest.mark.parametrize("order", [2, 5])
def test_many_components_and_an_uncertain_start_are_no_special_case(order: int) -> None:
    """From eleven components on the algebra is done by loops; an ambiguous outlier has a negative weight there, too."""
    linear, free = SYSTEMS["two"], (0, 3)
    solver = EK1(order=order, diffusion=1.0)
    assert built(linear, solver, free, 0.1, None)[0].form.rolled == (order == 5)
    setting, y, names = setting_of(linear, order, free), record_of(linear).output_matrix, linear.system.outputs
    noise = {names[0]: 0.05, names[1]: sid.StudentT(nu=3.5, scale=0.08), names[2]: 0.07}

    def sensing(k: int, expected: Any) -> list[Density | None]:
        first = censored(y[k, 0], -0.1, 0.1, 0.05)
        return [None if np.isnan(y[k, 0]) else first, heavy(y[k, 1], 0.08, 3.5), censored(y[k, 2], -np.inf, np.inf, 0.07)]

    truth = matched(linear, setting, record_of(linear), sensing)
    compare((linear, solver, free, noise, {names[0]: (-0.1, 0.1)}), truth)


@pytest.mark.parametrize(("solver", "free"), SOLVERS[:2], ids=str)
def test_outliers_are_averaged_over_their_scales(solver: Any, free: tuple[int, ...]) -> None:
    setting, y = setting_of(LINEAR, 2, free), record_of().output_matrix

    def sensing(k: int, expected: Any) -> list[Density | None]:
        return [None if np.isnan(v) else heavy(v, s, 3.5) for v, s in zip(y[k], NOISE, strict=True)]

    compare(
        (LINEAR, solver, free, sid.StudentT(nu=3.5, scale=list(NOISE)), None), matched(LINEAR, setting, record_of(), sensing)
    )


def test_a_function_of_the_output_is_taken_at_its_expected_value() -> None:
    setting, y, floor = setting_of(LINEAR, 2, (0,)), record_of().output_matrix, pt.dscalar()
    noise = {LINEAR.system.outputs[0]: 0.05, LINEAR.system.outputs[1]: lambda v: pt.sqrt(floor**2 + (0.2 * v) ** 2)}

    def sensing(k: int, expected: Any) -> list[Density | None]:
        std = [mpmath.mpf(0.05), mpmath.sqrt(mpmath.mpf(0.01) ** 2 + (mpmath.mpf(0.2) * expected[1]) ** 2)]
        return [None if np.isnan(v) else censored(v, -np.inf, np.inf, s) for v, s in zip(y[k], std, strict=True)]

    truth = matched(LINEAR, setting, record_of(), sensing)
    problem, unknowns, record = built(LINEAR, EK1(order=2, diffusion=1.0), (0,), noise, None)
    found = problem.run(record.output_matrix, unknowns, problem.data([record], 2))[0].eval({floor: 0.01}, mode=PYTHON)
    np.testing.assert_allclose(found, truth.loglik, rtol=TOLERANCE, atol=TOLERANCE)


COVARIANCE = np.array([[0.0025, 0.003], [0.003, 0.0064]])
THREE = np.array([[0.01, 0.004, -0.003], [0.004, 0.02, 0.006], [-0.003, 0.006, 0.03]])


@pytest.mark.parametrize("by", ["cov", "chol"])
@pytest.mark.parametrize("free", [(), (0, 1)])
def test_correlated_noise_is_that_of_the_dense_gaussian(by: str, free: tuple[int, ...]) -> None:
    """Of the second sample one output is missing: would fail if its noise were taken for known."""
    given = COVARIANCE if by == "cov" else np.linalg.cholesky(COVARIANCE)
    truth = jointly(LINEAR, setting_of(LINEAR, 2, free), record_of(), COVARIANCE)
    case = (LINEAR, EK1(order=2, diffusion=1.0), free, sid.Correlated(**{by: given}), None)
    compare(case, truth, by_sample=True)


def test_so_it_is_for_three_outputs_of_two_chains() -> None:
    linear = SYSTEMS["two"]
    truth = jointly(linear, setting_of(linear, 2, (0,)), record_of(linear), THREE)
    compare((linear, EK1(order=2, diffusion=1.0), (0,), sid.Correlated(cov=THREE), None), truth, by_sample=True)


def test_the_gradient_by_the_noise_is_that_of_the_dense_reference() -> None:
    solver, free, scale = EK1(order=2, diffusion=1.0), (0,), mpmath.mpf(NOISE[0])
    setting, y, sigma, rho = setting_of(LINEAR, 2, free), record_of().output_matrix, pt.dscalar(), pt.dscalar()

    def dense(s: Any) -> Any:
        def sensing(k: int, expected: Any) -> list[Density | None]:
            return [None if np.isnan(y[k, 0]) else censored(y[k, 0], -0.1, 0.1, s), None]

        with mpmath.workdps(DIGITS):
            return matched(LINEAR, setting, record_of(), sensing).loglik.sum()

    problem, unknowns, record = built(LINEAR, solver, free, [sigma, 0.08], LIMITS)
    only = record.output_matrix.copy()
    only[:, 1] = np.nan
    total = problem.run(only, unknowns, problem.data([record], 2))[0].sum()
    found = pytensor.grad(total, sigma).eval({sigma: NOISE[0]}, mode=PYTHON)
    h = 1e-5  # the reference puts out doubles: two orders of differences
    rough = [(dense(scale + i * h) - dense(scale - i * h)) / (2 * i * h) for i in (1, 2)]
    assert found == pytest.approx(float((4 * rough[0] - rough[1]) / 3), rel=1e-7)

    cov = pt.stack([pt.stack([sigma**2, rho]), pt.stack([rho, pt.constant(0.0064)])])
    problem, unknowns, record = built(LINEAR, solver, free, sid.Correlated(cov=cov), None)
    total = problem.run(record.output_matrix, unknowns, problem.data([record], 2))[0].sum()
    slopes = [g.eval({sigma: 0.05, rho: 0.003}, mode=PYTHON) for g in pytensor.grad(total, [sigma, rho])]

    def joint(s: float, r: float) -> float:
        return float(jointly(LINEAR, setting, record_of(), np.array([[s**2, r], [r, 0.0064]])).loglik.sum())

    for i, (x, h) in enumerate(((0.05, 1e-4), (0.003, 1e-5))):
        at = [0.05, 0.003]
        values = []
        for k in (-2, -1, 1, 2):
            at[i] = x + k * h
            values.append(joint(*at))
        a, b, c, d = values
        assert slopes[i] == pytest.approx((8 * (c - b) - (d - a)) / (12 * h), rel=1e-6)


def test_coloured_noise_is_that_of_its_kernel() -> None:
    """The outputs given the ODE are affine in the start; with the kernel added, one dense Gaussian has the record."""
    setting, record, free = setting_of(LINEAR, 2, (0, 1)), record_of(), (0, 1)
    process, kernel = sid.OU(scale=0.3, length=0.25), matern(0.5, 0.3, 0.25)
    name = LINEAR.system.outputs[0]
    case = (LINEAR, EK1(order=2, diffusion=1.0), free, list(NOISE), None, {name: process})
    loglik = package("loglik", *case)
    with mpmath.workdps(DIGITS):
        truth = _with_kernel(LINEAR, setting, record, kernel)
    np.testing.assert_allclose(loglik, truth, rtol=TOLERANCE, atol=TOLERANCE)


def _with_kernel(linear: Linear, setting: Setting, record: sid.TimeSeries, prior: Any) -> np.ndarray:
    """Log-densities of a record whose first output has noise with a kernel: values are affine in the start and that noise."""
    book, y = Textbook(linear, setting, record), record.output_matrix
    nx, T = book.equations.nx, len(record)
    K = zeros(nx + T, nx + T)
    for i in range(nx):
        K[i, i] = mpmath.mpf(setting.x0_std[i]) ** 2
    for a in range(T):
        for b in range(T):
            lag = abs(mpmath.mpf(float(record.t[a])) - mpmath.mpf(float(record.t[b])))
            K[nx + a, nx + b] = prior.covariance(0, mpmath.mpf(0), 0, lag)
    book.m = np.concatenate([book.m, zeros(book.equations.size, T)], axis=1)
    gaps, variances, where = [], [], []

    def on_sample(k: int, jump: Any) -> None:
        book.m[:, 0] += jump
        for j in np.flatnonzero(~np.isnan(y[k])):
            row = book.equations.rows[j]
            gap, s = -(row @ book.m), row @ book.P @ row + mpmath.mpf(setting.noise[j]) ** 2
            gap[0] += mpmath.mpf(y[k, j])
            if j == 0:
                gap[1 + nx + k] -= 1
            gain = book.P @ row / s
            gaps.append(gap)
            variances.append(s)
            where.append((k, int(j)))
            book.m, book.P = book.m + np.outer(gain, gap), book.P - np.outer(gain, gain) * s

    run(book.equations, record, book.on_substep, on_sample)
    rows = np.array(gaps)
    total = rows[:, 1:] @ K @ rows[:, 1:].T
    for i, v in enumerate(variances):
        total[i, i] += v
    L, d = factorise(total)
    e = forward(L, rows[:, :1].copy())[:, 0]
    loglik = np.zeros(y.shape)
    for at, x, v in zip(where, e, d, strict=True):
        loglik[at] = float(-(mpmath.log(2 * mpmath.pi * v) + x * x / v) / 2)
    return loglik
