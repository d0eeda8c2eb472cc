"""A process for an input together with blocks, dynamic diffusion, limits, outliers and coloured noise, in 60 digits."""

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
from pm_sysid.solve.options import EK1
from pm_sysid.symbolic.driven import driven_system
from support.combined import Combined, combined
from support.dense import DIGITS, Linear
from support.driven import APART, OSCILLATOR, PRIORS, TWO, expected, matern, record_of, setting_of
from support.linear_cases import PYTHON
from support.linear_cases import SYSTEMS as LINEAR
from support.noisy import Density, censored, heavy

TOLERANCE = 1e-8
SYSTEMS = {"oscillator": OSCILLATOR, "two": TWO, "apart": APART}
NOISE = 0.05


def package(
    linear: Linear, solver: Any, free: tuple[int, ...], output: Any = "loglik", *, name: str = "matern 3/2", **noise: Any
) -> np.ndarray:
    """Output of the package's filter; ``noise`` as for ODEFilter."""
    record, prior, outputs = record_of(linear), PRIORS[name](), linear.system.outputs
    coloured = {outputs[0]: noise["coloured"]} if "coloured" in noise else None
    system, values = driven_system(linear.system, {linear.system.inputs[-1]: prior.process}, coloured=coloured)
    problem, given = problem_of(linear, solver, free, record, system, values, **noise)
    found, _ = problem.run(record.output_matrix, given, problem.data([record], 2), output)
    result: np.ndarray = found.eval(mode=PYTHON)
    return result


def problem_of(
    linear: Linear, solver: Any, free: tuple[int, ...], record: Any, system: Any = None, values: Any = (), **noise: Any
) -> tuple[Problem, Unknowns]:
    """Problem and unknowns of a system, by default the one without processes."""
    setting, system = setting_of(linear, solver.order, free, 2), system or linear.system
    found = measurement_noise(system, noise.get("noise", NOISE), noise.get("limits"), [record])
    std = pt.concatenate([pt.as_tensor_variable(found.values), vector(found.entries)]) if found.entries else found.values
    x0 = np.array([setting.x0]), np.array([setting.x0_std])
    given = Unknowns(vector([*linear.params, *values]), *x0, std, np.array(setting.diffusion or [1.0]))
    return Problem.build(system, solver, [record], free, found.sensors), given


def compare(found: np.ndarray, truth: Combined | Any) -> None:
    np.testing.assert_allclose(found, truth.loglik, rtol=TOLERANCE, atol=TOLERANCE)


def compare_moments(found: np.ndarray, truth: Combined) -> None:
    """Of the states and derivatives after the last sample (dense)."""
    n = len(truth.mean)
    rest = found.shape[1] - n - n * n  # those of the processes
    states = next(s for s in range(1, 30) if s + s * s == rest)
    mean, covariance = found[-1, :n], found[-1, n + states : n + states + n * n].reshape(n, n)
    size = np.sqrt(np.diag(truth.covariance))
    np.testing.assert_allclose((mean - truth.mean) / size, 0.0, atol=TOLERANCE)
    np.testing.assert_allclose((covariance - truth.covariance) / np.outer(size, size), 0.0, atol=TOLERANCE)


# -- blocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [(), (0, 2)])
def test_blocks_of_chains_apart_are_the_dense_gaussian(free: tuple[int, ...]) -> None:
    """Both chains are pushed by the same path: would fail if its effect on one were lost to the other."""
    found = package(APART, EK1(order=2, diffusion=1.0, covariance="block"), free)
    compare(found, expected(APART, "matern 3/2", 2, free, 2, "zoh"))


def test_blocks_of_coupled_chains_drop_no_more_than_the_covariance_between_them() -> None:
    setting, record = setting_of(TWO, 2, (0, 1, 2), 2), record_of(TWO)
    truth = combined(TWO, setting, record, PRIORS["matern 3/2"](), own_chain=True)
    compare(package(TWO, EK1(order=2, diffusion=1.0, covariance="block"), (0, 1, 2)), truth)
    dense = expected(TWO, "matern 3/2", 2, (0, 1, 2), 2, "zoh").loglik
    assert not np.allclose(truth.loglik, dense, rtol=1e-6)


# -- dynamic diffusion ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "covariance"), [("oscillator", "dense"), ("two", "dense"), ("apart", "block")])
def test_the_diffusion_of_a_step_is_the_mean_over_the_process(name: str, covariance: Any) -> None:
    """Over what is known of it so far; would fail if the diffusion were that of the mean of the path alone."""
    linear, free = SYSTEMS[name], (0,)
    setting = setting_of(linear, 2, free, 2)._replace(diffusion=None)
    truth = combined(linear, setting, record_of(linear), PRIORS["ou"](), own_chain=covariance == "block")
    solver = EK1(order=2, diffusion="dynamic", covariance=covariance)
    # The package is told the size of the setting's diffusion, and does not use it.
    compare(package(linear, solver, free, name="ou"), truth)
    if covariance == "dense":
        compare_moments(package(linear, solver, free, "moments", name="ou"), truth)


# -- noise ------------------------------------------------------------------------------------------------------------


LIMIT = 0.05


def sensed(y: np.ndarray, first: Any) -> Any:
    """The first output by a density of its own, the others with Gaussian noise."""

    def sensing(k: int, _: Any) -> list[Density | None]:
        return [first(y[k, 0]), *(censored(v, -np.inf, np.inf, NOISE) for v in y[k, 1:])]

    return sensing


def clipped(y: float) -> Density:
    return censored(y, -np.inf, LIMIT, NOISE)


def with_outliers(y: float) -> Density:
    return heavy(y, NOISE, 3.5)


def options_of(linear: Linear, kind: str) -> tuple[dict[str, Any], Any]:
    """The first output with a limit or outliers: for the package, and for the reference."""
    first = linear.system.outputs[0]
    if kind == "limits":
        return {"limits": {first: (None, LIMIT)}}, clipped
    tails = dict.fromkeys(linear.system.outputs, NOISE) | {first: sid.StudentT(nu=3.5, scale=NOISE)}
    return {"noise": tails}, with_outliers


@pytest.mark.parametrize("kind", ["limits", "outliers"])
@pytest.mark.parametrize(
    ("name", "covariance", "free"), [("oscillator", "dense", (1,)), ("two", "block", (0, 1, 2)), ("apart", "block", ())]
)
def test_limits_and_outliers_are_evidence_on_a_path(name: str, covariance: Any, free: tuple[int, ...], kind: str) -> None:
    linear = SYSTEMS[name]
    record, (given, first) = record_of(linear), options_of(linear, kind)
    assert kind != "limits" or np.nansum(record.output_matrix[:, 0] >= LIMIT) > 0
    setting, block = setting_of(linear, 2, free, 2), covariance == "block"
    truth = combined(linear, setting, record, PRIORS["matern 3/2"](), sensed(record.output_matrix, first), own_chain=block)
    compare(package(linear, EK1(order=2, diffusion=1.0, covariance=covariance), free, **given), truth)


@pytest.mark.parametrize("kind", ["limits", "outliers"])
@pytest.mark.parametrize("free", [(), (0, 3)])
def test_limits_and_outliers_of_blocks(kind: str, free: tuple[int, ...]) -> None:
    """The first output sees both chains, and no input is missing."""
    linear = LINEAR["two"]
    rng = np.random.default_rng(3)
    record = sid.TimeSeries(0.1 * np.arange(4), rng.normal(size=(4, 1)), rng.normal(size=(4, 3)))
    given, first = options_of(linear, kind)
    assert np.sum(record.output_matrix[:, 0] >= LIMIT) > 0
    setting = setting_of(linear, 2, free, 2)
    truth = combined(linear, setting, record, None, sensed(record.output_matrix, first), own_chain=True)
    problem, unknowns = problem_of(linear, EK1(order=2, diffusion=1.0, covariance="block"), free, record, **given)
    found = problem.run(record.output_matrix, unknowns, problem.data([record], 2))[0].eval(mode=PYTHON)
    compare(found, truth)


@pytest.mark.parametrize(("name", "covariance"), [("oscillator", "dense"), ("two", "block")])
def test_coloured_noise_beside_a_path(name: str, covariance: Any) -> None:
    linear, free = SYSTEMS[name], (0,)
    setting, block = setting_of(linear, 2, free, 2), covariance == "block"
    colour = matern(0.5, 0.3, 0.25)
    truth = combined(linear, setting, record_of(linear), PRIORS["matern 3/2"](), colour=colour, own_chain=block)
    compare(package(linear, EK1(order=2, diffusion=1.0, covariance=covariance), free, coloured=colour.process), truth)


def test_the_gradient_of_coloured_noise_is_that_of_the_dense_gaussian() -> None:
    """By scale and length of the noise, and of the force beside it."""
    setting, record = setting_of(OSCILLATOR, 2, (0,), 1), record_of(OSCILLATOR)
    point, h = [0.3, 0.25, 0.7, 0.3], mpmath.mpf(10) ** -20

    def dense(values: list[Any]) -> Any:
        prior, colour = matern(1.5, *values[2:]), matern(0.5, *values[:2])
        with mpmath.workdps(DIGITS):
            return combined(OSCILLATOR, setting, record, prior, colour=colour).total

    truth = []
    with mpmath.workdps(DIGITS):
        for i in range(4):
            up, down = ([mpmath.mpf(v) + s * h * (i == k) for k, v in enumerate(point)] for s in (1, -1))
            truth.append(float((dense(up) - dense(down)) / h / 2))
    at = [pt.dscalar() for _ in point]
    force = sid.Matern(nu=1.5, scale=at[2], length=at[3])
    colour = sid.OU(scale=at[0], length=at[1])
    linear, outputs = OSCILLATOR, OSCILLATOR.system.outputs
    system, values = driven_system(linear.system, {"u1": force}, coloured={outputs[0]: colour})
    problem = Problem.build(system, EK1(order=2, diffusion=1.0), [record], (0,))
    x0 = np.array([setting.x0]), np.array([setting.x0_std])
    given = Unknowns(vector([*linear.params, *values]), *x0, np.full(len(outputs), NOISE), np.array(setting.diffusion))
    total = problem.run(record.output_matrix, given, problem.data([record], 1))[0].sum()
    slopes = pytensor.function(at, pytensor.grad(total, at), mode=PYTHON)(*point)
    np.testing.assert_allclose(slopes, truth, rtol=TOLERANCE)
