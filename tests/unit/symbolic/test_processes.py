"""Processes in state-space form: kernels, steps of any length, and what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.symbolic.scalars import evaluate, symbol, symbols


def steps(process: Any, length: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Transition, covariance of the noise, initial covariance and weights of the value."""
    kind, h = process.kind, symbol("h")
    p = symbols("p", len(kind.entries))
    at = dict(zip([*p, h], [*map(float, process.values), length], strict=True))

    def numbers(table: Any) -> np.ndarray:
        return np.array([evaluate(row, at) for row in table]).reshape(len(table), -1)

    noise, initial = numbers(kind.noise(p, h)), numbers(kind.initial(p))
    return numbers(kind.transition(p, h)), noise @ noise.T, initial @ initial.T, numbers([kind.value(p)])[0]


STATIONARY = [sid.OU(scale=0.7, rate=2.0), *(sid.Matern(nu=nu, scale=0.7, length=0.4) for nu in (0.5, 1.5, 2.5))]


@pytest.mark.parametrize("process", [*STATIONARY, sid.Periodic(scale=0.7, period=1.3, length=0.8)], ids=repr)
@pytest.mark.parametrize("length", [1e-3, 0.1, 1.0, 30.0])
def test_a_step_of_a_stationary_process_keeps_its_covariance(process: Any, length: float) -> None:
    F, Q, P, _ = steps(process, length)
    np.testing.assert_allclose(F @ P @ F.T + Q, P, atol=3e-14)


@pytest.mark.parametrize("process", [*STATIONARY, sid.IntegratedWiener(order=2, scale=0.7, start=(0.1, 0.2))], ids=repr)
@pytest.mark.parametrize("length", [1e-7, 1e-2, 0.5, 8.0])
def test_two_steps_are_one_of_twice_the_length(process: Any, length: float) -> None:
    """Short steps too, of which each entry has to be right beside its own size."""
    F, Q, _, _ = steps(process, length)
    F2, Q2, _, _ = steps(process, 2 * length)
    np.testing.assert_allclose(F @ F, F2, rtol=1e-11, atol=1e-14)
    size = np.sqrt(np.outer(np.diag(Q2), np.diag(Q2)))
    np.testing.assert_allclose((F @ Q @ F.T + Q) / size, Q2 / size, atol=1e-10)


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("a", [1e-6, 0.03, 4.0, 19.0])
def test_the_noise_of_a_matern_step_is_the_integral_of_its_impulse_response(degree: int, a: float) -> None:
    process = sid.Matern(nu=degree + 0.5, scale=1.0, length=np.sqrt(2 * degree + 1))
    _, Q, _, _ = steps(process, a)
    with mpmath.workdps(40):
        density = 4 if degree == 1 else mpmath.mpf(16) / 3
        value = lambda s: s**degree / mpmath.factorial(degree)  # noqa: E731
        rate = lambda s: s ** (degree - 1) - value(s)  # noqa: E731
        for (i, f), (j, g) in product(enumerate((value, rate)), repeat=2):
            squares = mpmath.quad(lambda s, f=f, g=g: f(s) * g(s) * mpmath.exp(-2 * s), mpmath.linspace(0, a, 6))
            assert Q[i, j] == pytest.approx(float(density * squares), rel=1e-12)


def test_the_periodic_process_has_the_periodic_kernel() -> None:
    """With as many harmonics as the kernel has."""
    process, tau = sid.Periodic(scale=0.7, period=1.3, length=0.9, harmonics=12), 0.37
    F, _, P, weights = steps(process, tau)
    kernel = 0.7**2 * np.exp(-2 * np.sin(np.pi * tau / 1.3) ** 2 / 0.9**2)
    assert weights @ F @ P @ weights == pytest.approx(kernel, rel=1e-12)


@pytest.mark.parametrize("process", STATIONARY, ids=repr)
def test_a_length_far_below_the_step_forgets_everything(process: Any) -> None:
    F, Q, P, _ = steps(process, 1e200)
    np.testing.assert_allclose(F, 0.0, atol=1e-200)
    np.testing.assert_allclose(Q, P, rtol=1e-12, atol=1e-14)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (sid.Matern, {"nu": 2.0, "scale": 1.0, "length": 1.0}, "nu is 2.0; give 0.5, 1.5 or 2.5"),
    (sid.Matern, {"nu": 1.5, "scale": -1.0, "length": 1.0}, "scale is -1.0; give a positive number"),
    (sid.OU, {"scale": 1.0}, "give one of the two"),
    (sid.OU, {"scale": 1.0, "length": 1.0, "rate": 1.0}, "give one of the two"),
    (sid.IntegratedWiener, {"order": 5, "scale": 1.0}, "integer from 0 to 4"),
    (sid.IntegratedWiener, {"order": 0, "scale": 1.0, "start": (1.0, 2.0)}, "at most 1"),
    (sid.Periodic, {"scale": 1.0, "period": 0.0}, "period is 0.0; give a positive number"),
    (sid.Periodic, {"scale": 1.0, "period": 1.0, "harmonics": 0}, "integer from 1 to 20"),
    (sid.RandomWalk, {"scale": 0.0}, "scale is 0.0; give a positive number"),
]


@pytest.mark.parametrize("build, arguments, said", REFUSED)
def test_impossible_processes_are_refused(build: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(**arguments)


@pytest.mark.parametrize("length", [0.05, 1e-200])
def test_harmonics_that_leave_out_most_of_a_periodic_process_are_refused(length: float) -> None:
    with pytest.raises(ValueError, match=r"harmonics hold .*% of the variance .*give more harmonics"):
        sid.Periodic(scale=1.0, period=1.0, length=length)
