"""Derivatives of the log-likelihood by everything it depends on, through a PyMC model, against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytest

from pm_sysid.likelihood import ODEFilter
from pm_sysid.models import bouc_wen, duffing
from pm_sysid.simulation import simulate
from pm_sysid.solver import EK0, EK1, Solver
from pm_sysid.system import System
from pm_sysid.timeseries import TimeSeries

pytestmark = pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")

DUFFING = dict(m=1.0, c=0.3, k=4.0, k3=0.5)
HYSTERESIS = dict(m=1.0, c=0.3, k=4.0, alpha=3.0, beta=0.8, gamma=0.8, delta=-0.5)
TWO = dict(k=4.0, k3=0.5, kc=1.0, c=0.2)


def record(system: System, params: dict[str, float], length: int, intersample: Any, *, start: Any, uneven: Any = 0) -> Any:
    """A record the system could have produced."""
    rng = np.random.default_rng(1)
    t = np.cumsum(rng.uniform(0.7, 1.3, length) * 0.1) if uneven else np.arange(length) * 0.1
    empty = TimeSeries(t, np.sin(3 * t) + rng.normal(0.0, 0.3, length), None, intersample=intersample)
    run = simulate(system, empty, params, x0=start, substeps=16)
    y = np.stack([run[o].values for o in system.outputs], axis=1) + rng.normal(0.0, 0.1, (length, len(system.outputs)))
    return empty.replace(y=y[:, 0] if y.shape[1] == 1 else y)


def missing(data: TimeSeries) -> TimeSeries:
    y = data.output_matrix.copy()
    y[2:4, 0] = np.nan
    y[3, -1] = np.nan
    return data.replace(y=y if data.y is None or data.y.ndim == 2 else y[:, 0])


def two_masses() -> System:
    def dynamics(t: Any, x: Any, u: Any, p: Any) -> dict[str, Any]:
        spring = p.kc * (x.a - x.b)
        return dict(
            a=x.va, va=u.F - p.k * x.a - p.k3 * x.a**3 - p.c * x.va - spring, b=x.vb, vb=spring - p.k * x.b - p.c * x.vb
        )

    return System(
        dynamics,
        states=("a", "va", "b", "vb"),
        inputs=("F",),
        params=("k", "k3", "kc", "c"),
        observe=lambda t, x, dx, u, p: (x.a, dx.vb),
    )


def positive(name: str, value: Any) -> Any:
    return pm.LogNormal(name, np.log(value), 1.0, initval=value, shape=np.shape(value))


def free(name: str, value: Any) -> Any:
    return pm.Normal(name, 0.0, 10.0, initval=value, shape=np.shape(value))


def build(system: System, data: Any, values: dict[str, float], solver: Solver, *, start: Any, std: Any = None) -> Any:
    """Filter with every argument a variable; to be called in a model context."""
    params = {k: positive(k, v) if v > 0 else free(k, v) for k, v in values.items()}
    n_y = len(system.outputs)
    noise = positive("noise", 0.1) if n_y == 1 else positive("noise", np.full(n_y, 0.1))
    return ODEFilter("y", system, data, params, noise=noise, x0=start, x0_std=std, solver=solver, substeps=2)


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
    """State, input and residual are exactly zero at first: a step test, or a record that starts before its input."""
    t = np.arange(20) * 0.1
    data = TimeSeries(t, np.where(t > 0.7, float(forced), 0.0), np.zeros(20), intersample="zoh")
    with pm.Model() as model:
        params = {k: positive(k, v) for k, v in DUFFING.items()}
        ODEFilter("y", duffing(), data, params, noise=0.1, x0=0.0, solver=EK0(order=3, diffusion=diffusion), substeps=2)
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
