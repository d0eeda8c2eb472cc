"""The rate of the fastest decay along a solution, against eigenvalues that are known."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.solve.stiffness import fastest_decay

T = np.arange(6.0)


def system(f, states, params=(), inputs=()) -> sid.System:
    return sid.System(f, states=states, params=params, inputs=inputs, observe=lambda t, x, dx, u, p: x[0])


def test_a_linear_network_has_its_largest_rate() -> None:
    chain = system(lambda t, x, u, p: (-p.a * x.v, p.a * x.v - p.b * x.w), ("v", "w"), ("a", "b"))
    found = fastest_decay(chain, sid.TimeSeries(T), np.array([1e5, 2.0]), np.array([1.0, 0.0]))
    assert found == pytest.approx(1e5, rel=1e-9)


def test_a_rate_that_grows_along_the_way_is_seen() -> None:
    """Robertson's reactions: at the start nothing is fast."""
    reactions = system(
        lambda t, x, u, p: (
            -0.04 * x.a + 1e4 * x.b * x.c,
            0.04 * x.a - 1e4 * x.b * x.c - 3e7 * x.b**2,
            3e7 * x.b**2,
        ),
        ("a", "b", "c"),
    )
    found = fastest_decay(reactions, sid.TimeSeries(T), np.empty(0), np.array([1.0, 0.0, 0.0]))
    assert found is not None and 2e3 < found < 5e3


def test_a_held_input_changes_the_rate() -> None:
    leak = system(lambda t, x, u, p: -u.valve * x.level, ("level",), (), ("valve",))
    record = sid.TimeSeries(T, [1.0, 2.0, 7.0, 3.0, 1.0, 1.0], intersample="zoh")
    assert fastest_decay(leak, record, np.empty(0), np.ones(1)) == pytest.approx(7.0)


@pytest.mark.parametrize("f", [lambda t, x, u, p: 5.0 * x.z**3, lambda t, x, u, p: pt.sqrt(-x.z)])
def test_a_solution_that_does_not_exist_has_no_rate(f) -> None:
    assert fastest_decay(system(f, ("z",)), sid.TimeSeries(T), np.empty(0), np.ones(1)) is None


def test_growth_is_no_decay() -> None:
    assert fastest_decay(system(lambda t, x, u, p: 0.3 * x.z, ("z",)), sid.TimeSeries(T), np.empty(0), np.ones(1)) == 0.0
