"""The filter with an input that is a process, against the dense Gaussian of its kernel in 60 digits."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.solve.options import EK0, EK1
from pm_sysid.symbolic.driven import driven_system
from support.dense import DIGITS
from support.driven import (
    OSCILLATOR,
    PRIORS,
    TWO,
    expected,
    integrated,
    integrated_out,
    log_densities,
    matern,
    path_of,
    periodic,
    problem_of,
    record_of,
    setting_of,
    textbook,
    unknowns_of,
)
from support.linear_cases import PYTHON

TOLERANCE = 1e-8


def log_likelihood(linear: Any, solver: Any, name: str, free: tuple[int, ...], substeps: int, intersample: str) -> np.ndarray:
    record, prior = record_of(linear, intersample), PRIORS[name]()
    problem, values = problem_of(linear, solver, record, prior, free)
    given = unknowns_of(linear, setting_of(linear, solver.order, free, substeps), values)
    found, _ = problem.run(record.output_matrix, given, problem.data([record], substeps))
    result: np.ndarray = found.eval(mode=PYTHON)
    return result


@pytest.mark.parametrize("name", list(PRIORS))
def test_the_log_likelihood_is_that_of_the_kernel(name: str) -> None:
    """Would fail if the ODE were evidence on the path, or for a wrong transition, noise, start or weight of a process."""
    found = log_likelihood(OSCILLATOR, EK1(order=3, diffusion=1.0), name, (), 2, "zoh")
    truth = expected(OSCILLATOR, name, 3, (), 2, "zoh").loglik
    np.testing.assert_allclose(found, truth, rtol=TOLERANCE, atol=TOLERANCE)


OTHERS = [
    ("two", EK1(order=2, diffusion=1.0), "matern 3/2", (0, 1, 2), 1, "foh"),
    ("oscillator", EK1(order=2, diffusion=1.0), "ou", (1,), 3, "foh"),
]


@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_so_it_is_with_two_chains_an_uncertain_start_and_inputs(case: Any) -> None:
    linear, solver, *rest = case
    linear = TWO if linear == "two" else OSCILLATOR
    truth = expected(linear, rest[0], solver.order, *rest[1:]).loglik
    np.testing.assert_allclose(log_likelihood(linear, solver, *rest), truth, rtol=TOLERANCE, atol=TOLERANCE)


def test_ek0_loses_nothing_of_the_path() -> None:
    """Its gain does not see the process, but how the mean depends on the path is exact."""
    record, setting, prior = record_of(TWO), setting_of(TWO, 2, (), 2), PRIORS["matern 3/2"]()
    with mpmath.workdps(DIGITS):
        found = textbook(TWO, setting, record, prior, exact_rows=False)
        truth = integrated_out(found, path_of(TWO, setting, record, prior).covariance, record.output_matrix.shape)
    seen = log_likelihood(TWO, EK0(order=2, diffusion=1.0), "matern 3/2", (), 2, "zoh")
    np.testing.assert_allclose(seen, truth, rtol=TOLERANCE, atol=TOLERANCE)


#: Prior of the reference, process of the filter, and values of what both depend on.
DIFFERENTIATED = {
    "ou": (lambda s, t: matern(0.5, s, t), lambda s, t: sid.OU(scale=s, length=t), (0.7, 0.3)),
    "matern 3/2": (lambda s, t: matern(1.5, s, t), lambda s, t: sid.Matern(nu=1.5, scale=s, length=t), (0.7, 0.3)),
    "matern 5/2": (lambda s, t: matern(2.5, s, t), lambda s, t: sid.Matern(nu=2.5, scale=s, length=t), (0.7, 0.3)),
    "trend": (
        lambda s: integrated(1, s, (0.4, 0.3)),
        lambda s: sid.IntegratedWiener(order=1, scale=s, start=(0.4, 0.3)),
        (1.2,),
    ),
    "periodic": (
        lambda s, t, w: periodic(s, t, w, 2),
        lambda s, t, w: sid.Periodic(scale=s, period=t, length=w, harmonics=2),
        (0.8, 1.1, 0.9),
    ),
}


@pytest.mark.parametrize("name", list(DIFFERENTIATED))
def test_the_gradient_is_that_of_the_dense_gaussian(name: str) -> None:
    prior_at, process_at, values = DIFFERENTIATED[name]
    record, setting = record_of(OSCILLATOR), setting_of(OSCILLATOR, 2, (), 1)
    step = mpmath.mpf(10) ** -20

    def dense(at: Any) -> Any:
        prior = prior_at(*at)
        found = textbook(OSCILLATOR, setting, record, prior, exact_rows=True)
        return sum(log_densities(found, path_of(OSCILLATOR, setting, record, prior).covariance))

    with mpmath.workdps(DIGITS):
        truth, middle = [], [mpmath.mpf(v) for v in values]
        for i in range(len(values)):
            up, down = ([v + sign * step * (j == i) for j, v in enumerate(middle)] for sign in (1, -1))
            truth.append(float((dense(up) - dense(down)) / step / 2))
    free = [pt.dscalar() for _ in values]
    system, params = driven_system(OSCILLATOR.system, {"u1": process_at(*free)})
    problem = Problem.build(system, EK1(order=2, diffusion=1.0), [record])
    data = problem.data([record], 1)
    total = problem.run(record.output_matrix, unknowns_of(OSCILLATOR, setting, params), data)[0].sum()
    at = dict(zip(free, values, strict=True))
    found = [g.eval(at, mode=PYTHON) for g in pytensor.grad(total, free)]
    np.testing.assert_allclose(found, truth, rtol=TOLERANCE)


def test_the_diffusion_is_the_mean_over_the_process_of_what_its_path_would_give() -> None:
    record, setting, prior = record_of(OSCILLATOR), setting_of(OSCILLATOR, 3, (), 2), PRIORS["matern 3/2"]()
    problem, values = problem_of(OSCILLATOR, EK1(order=3), record, prior, ())
    seen = problem.calibrate(unknowns_of(OSCILLATOR, setting, values), problem.data([record], 2)).eval(mode=PYTHON)
    silent = record.replace(y=np.full(record.output_matrix.shape, np.nan))
    with mpmath.workdps(DIGITS):
        unit = setting._replace(diffusion=[1.0])
        found = textbook(OSCILLATOR, unit, silent, prior, exact_rows=True)
        K = path_of(OSCILLATOR, unit, silent, prior).covariance
        squares = [(z[0] ** 2 + z[1:] @ K @ z[1:]) / s for z, s in zip(found.residual, found.spread, strict=True)]
        truth = float(mpmath.sqrt(sum(squares) / len(squares)))
    assert seen[0] == pytest.approx(truth, rel=TOLERANCE)
