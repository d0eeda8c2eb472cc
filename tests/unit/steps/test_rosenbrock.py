"""The Rosenbrock step: its order, its stability, and problems that are stiff."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pm_sysid.models import duffing
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.op import interpreted
from pm_sysid.steps.integrate import method_inputs, run_batch
from pm_sysid.steps.rosenbrock import GAMMA, WEIGHTS, rosenbrock_recurrence
from pm_sysid.symbolic.system import System

DECAY = System(lambda t, x, u, p: -p.rate * x.z, states=("z",), params=("rate",), observe=lambda t, x, dx, u, p: x.z)
#: Prothero and Robinson (1974): a slow motion that the solution is drawn to at any rate.
FOLLOWER = System(
    lambda t, x, u, p: -p.rate * (x.z - u.s) + u.v,
    states=("z",),
    inputs=("s", "v"),
    params=("rate",),
    observe=lambda t, x, dx, u, p: x.z,
)
EXPLICIT = System(
    lambda t, x, u, p: -p.rate * (x.z - np.e ** (-(t**2))) - 2 * t * np.e ** (-(t**2)),
    states=("z",),
    params=("rate",),
    observe=lambda t, x, dx, u, p: x.z,
)


def runs(system: System, record: TimeSeries, theta: Any, start: Any, substeps: int) -> np.ndarray:
    theta, start = np.atleast_2d(np.asarray(theta, float)), np.atleast_2d(np.asarray(start, float))
    return run_batch(system, theta, start, method_inputs(record, substeps, "implicit"), method="implicit")


def test_the_order_is_five_with_inputs_and_time() -> None:
    record = TimeSeries(np.arange(11) * 0.4, np.sin(np.arange(11) * 1.3), None, intersample="bl")
    theta, start = [0.8, 0.4, 4.0, 0.6], [0.5, -0.3]
    fine = runs(duffing(), record, theta, start, 64)
    errors = [np.abs(runs(duffing(), record, theta, start, n) - fine).max() for n in (2, 4, 8)]
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert np.all(orders > 4.6) and errors[-1] < 1e-8


@pytest.mark.parametrize("rate", [1.0, 1e3, 1e6])
def test_slow_motions_are_followed_at_any_rate(rate: float) -> None:
    """Methods of low stage order lose their order at large rates; here the errors fall with the rate too."""
    record = TimeSeries(np.array([0.0, 1.0, 2.0]))
    exact = np.exp(-(record.t**2))
    errors = [np.abs(runs(EXPLICIT, record, [rate], [1.0], n)[0, :, 0] - exact).max() for n in (4, 8, 16)]
    assert errors[0] < 1e-4 and errors[-1] < 3e-7 and errors[0] / errors[-1] > 50


@pytest.mark.parametrize("rate", [1e2, 1e5, 1e8])
def test_fast_decays_are_damped_at_once(rate: float) -> None:
    """L-stability: one step of any length leaves nothing; the limit is zero and not a number between zero and one."""
    record = TimeSeries(np.array([0.0, 1.0, 2.0]))
    run = runs(DECAY, record, [rate], [1.0], 1)[0, :, 0]
    assert abs(run[1]) < 30 / rate and abs(run[2]) < abs(run[1])


def test_rates_from_slow_to_fast_stay_finite() -> None:
    rates = np.logspace(-3, 12, 31)[:, None]
    run = runs(DECAY, TimeSeries(np.arange(5.0)), rates, np.ones((31, 1)), 2)
    assert np.all(np.abs(run) <= 1.0)


def test_the_last_stages_do_not_see_the_time_derivative() -> None:
    assert WEIGHTS[0] == pytest.approx(GAMMA) and WEIGHTS[-3:] == (0.0, 0.0, 0.0)


def test_the_kernel_equals_the_interpreted_step() -> None:
    record = TimeSeries(np.arange(4) * 0.3, np.array([[0.1, 0.2], [0.3, -0.1], [0.5, 0.2], [0.1, 0.1]]), None)
    inputs = method_inputs(record, 2, "implicit")
    op = rosenbrock_recurrence(FOLLOWER)
    plain = interpreted(op)(np.array([50.0]), np.array([[1.0]]), inputs.counts, inputs.substeps, inputs.samples)[0]
    np.testing.assert_allclose(runs(FOLLOWER, record, [50.0], [1.0], 2)[0], plain, rtol=1e-13)
