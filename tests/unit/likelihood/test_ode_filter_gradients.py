"""Derivatives of the log-likelihood by everything it depends on, through a PyMC model, against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest

from pm_sysid.models import bouc_wen, duffing
from pm_sysid.solve.options import EK0, EK1, Solver
from support.recurrences import two_masses
from support.variable_filters import DUFFING, HYSTERESIS, TWO, at_rest, build, free, missing, positive, record

pytestmark = pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")


def duffing_mle() -> None:
    start = dict(z=free("z0", 0.1), v=free("v0", -0.3))
    std = dict(z=positive("z0_std", 0.05), v=positive("v0_std", 0.2))
    data = record(duffing(), DUFFING, 25, "bl", start=[0.1, -0.3])
    build(duffing(), data, DUFFING, EK1(order=2), start=start, std=std)


def duffing_dynamic() -> None:
    """Uneven times, two records with their own start, of which one is uncertain."""
    data = [record(duffing(), DUFFING, n, "foh", start=x0, uneven=True) for n, x0 in ((14, [0.1, 0.2]), (9, [-0.1, 0.4]))]
    starts = [dict(z=free("z0", 0.1), v=0.2), free("second", np.array([-0.1, 0.4]))]
    std = [dict.fromkeys("zv", positive("std", 0.1)), dict(z=0.0, v=0.0)]
    build(duffing(), data, DUFFING, EK1(order=2, diffusion="dynamic"), start=starts, std=std)


def duffing_inferred_start() -> None:
    data = missing(record(duffing(), DUFFING, 25, "bl", start=[0.1, -0.3]))
    build(duffing(), data, DUFFING, EK0(order=2), start=None)


def hysteresis_variable() -> None:
    system, x0 = bouc_wen(observe="acceleration"), np.array([0.1, -0.3, 0.2])
    diffusion = dict(z=positive("dz", 2.0), r=positive("dr", 3.0))
    data = record(system, HYSTERESIS, 20, "zoh", start=x0)
    build(system, data, HYSTERESIS, EK1(order=2, diffusion=diffusion), start=free("start", x0))


def two_masses_variable() -> None:
    system, x0 = two_masses(), np.array([0.1, -0.3, 0.2, 0.4])
    solver = EK1(order=2, diffusion=positive("diffusion", np.array([2.0, 3.0])))
    build(system, missing(record(system, TWO, 15, "foh", start=x0)), TWO, solver, start=free("start", x0))


MODELS: dict[str, Callable[[], None]] = {
    "Duffing, bl, EK1(2), mle, uncertain start": duffing_mle,
    "Duffing, foh uneven, EK1(2), dynamic, two records": duffing_dynamic,
    "Duffing, bl missing, EK0(2), mle, start from data": duffing_inferred_start,
    "Bouc-Wen acceleration, zoh, EK1(2), variable": hysteresis_variable,
    "two masses, foh missing, EK1(2), variable": two_masses_variable,
}


def differences(function: Callable[[np.ndarray], float], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Central differences of fourth order with two small steps: one value, and how far apart they are."""
    estimates = []
    for h in (4e-5, 2e-5):
        column = []
        for e in np.eye(at.size) * h:
            near, far = (function(at + k * e) - function(at - k * e) for k in (1, 2))
            column.append((8 * near - far) / (12 * h))
        estimates.append(np.array(column))
    return estimates[0], np.abs(estimates[1] - estimates[0])


#: Those that take longest to compile.
LARGE = ("Bouc-Wen acceleration, zoh, EK1(2), variable", "two masses, foh missing, EK1(2), variable")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in MODELS])
def test_gradient_equals_central_differences(name: str) -> None:
    with pm.Model() as model:
        MODELS[name]()
    logp, dlogp = model.compile_logp(), model.compile_dlogp()
    point = model.initial_point()
    names = [v.name for v in model.value_vars]
    sizes = np.cumsum([np.size(point[n]) for n in names])
    rng = np.random.default_rng(0)
    at = np.concatenate([np.ravel(point[n]) for n in names]) + rng.normal(0.0, 0.03, sizes[-1])

    def split(x: np.ndarray) -> dict[str, np.ndarray]:
        parts = np.split(x, sizes[:-1])
        return {n: p.reshape(np.shape(point[n])) for n, p in zip(names, parts, strict=True)}

    gradient = dlogp(split(at))
    expected, spread = differences(lambda x: float(logp(split(x))), at)
    assert np.all(np.isfinite(gradient)) and np.all(np.abs(expected) > 1e-5)
    assert np.all(spread <= 1e-7 * np.abs(expected).max()), "the differences themselves are not accurate"
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize("diffusion, forced", [("mle", False), ("dynamic", True)])
def test_gradient_is_finite_when_the_record_starts_at_rest(diffusion: Any, forced: bool) -> None:
    model = at_rest(EK0(order=3, diffusion=diffusion), forced)
    point = model.initial_point()
    assert np.isfinite(model.compile_logp()(point))
    assert np.all(np.isfinite(model.compile_dlogp()(point)))


@pytest.mark.parametrize("solver", [EK0(order=2), pytest.param(EK1(order=3), marks=pytest.mark.slow)])
def test_gradient_by_a_parameter_that_is_exactly_zero(solver: Solver) -> None:
    """An acceleration that its uncertain velocity does not enter yet: what it does to it is zero, its derivative is not."""
    system = duffing(observe="acceleration")
    data = record(system, DUFFING, 15, "foh", start=[0.1, -0.3])
    values = {**DUFFING, "c": 0.0}
    with pm.Model() as model:
        build(system, data, values, solver, start=dict(z=0.1, v=-0.3), std=dict(z=0.0, v=0.5))
    point, logp = model.initial_point(), model.compile_logp()
    c = [v.name for v in model.value_vars].index("c")
    expected, spread = differences(lambda x: float(logp({**point, "c": x[0]})), np.zeros(1))
    assert spread < 1e-7 * np.abs(expected)
    np.testing.assert_allclose(model.compile_dlogp()(point)[c], expected[0], rtol=1e-7)
